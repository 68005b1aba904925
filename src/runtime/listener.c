/* Opens the sockets that a node listens on, and hands on what connects to them. */
#include "runtime/listener.h"

#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "transport/own_address.h"
#include "transport/socket.h"

static const struct {
  const char *text;
  kvf_log_level level;
} reasons[] = {
    [KVF_LISTEN_UNSAID] = {"", KVF_LOG_DEBUG},
    [KVF_LISTEN_OPTION] = {"the option listen says so", KVF_LOG_INFO},
    [KVF_LISTEN_VARIABLE] = {"KVFERRY_LISTEN says so", KVF_LOG_INFO},
    [KVF_LISTEN_NIXL] = {"VLLM_NIXL_SIDE_CHANNEL_HOST says so", KVF_LOG_INFO},
    [KVF_LISTEN_ROUTE] = {"it is the address of the default route", KVF_LOG_INFO},
    [KVF_LISTEN_NO_ROUTE] =
        {"for this host alone, since there is no default route: name an address by KVFERRY_LISTEN or "
         "the option listen",
         KVF_LOG_WARN},
    [KVF_LISTEN_NO_KEY] = {"for this host alone, since there is no key: name one by the option key_file or "
                           "KVFERRY_KEY_FILE",
                           KVF_LOG_INFO},
    [KVF_LISTEN_NO_KEY_FOR_NIXL] =
        {"for this host alone, since VLLM_NIXL_SIDE_CHANNEL_HOST counts with a key only: name "
         "one by the option key_file or KVFERRY_KEY_FILE",
         KVF_LOG_WARN},
};

static size_t reason_of(const kvf_node *node)
{
  const size_t source = (size_t)node->config.listen_source;
  return source < sizeof(reasons) / sizeof(reasons[0]) ? source : KVF_LISTEN_UNSAID;
}

/* The address that tickets name: what `advertise` says, else where the node listens. Its port may be 0. */
static kvf_status find_named(const kvf_config *config, const kvf_address *listen, kvf_address *out, char *message)
{
  const bool advertised = config->advertise[0] != '\0';
  *out = *listen;
  kvf_status status = advertised ? kvf_address_resolve(config->advertise, listen, out, message) : KVF_OK;
  if (status == KVF_OK && kvf_address_is_any(out)) {
    return kvf_fail(KVF_INVALID, message,
                    "%s = %.60s names no address that others can connect to: set the option advertise%s",
                    advertised ? "advertise" : "listen", advertised ? config->advertise : config->listen,
                    advertised ? " to one" : "");
  }
  return status;
}

/* Takes the first port that is free, from `address` to `last`; 0: that address alone. */
static kvf_status listen_on(const kvf_node *node, kvf_address address, uint16_t last, int *fd, kvf_address *bound,
                            char *message)
{
  const uint32_t handshake_timeout_ms = node->config.handshake_timeout_ms;
  kvf_status status = kvf_socket_listen_first(&address, last, handshake_timeout_ms, fd, bound, message);
  if (status == KVF_ADDRESS_IN_USE && last > 0 && node->config.listen_source == KVF_LISTEN_NIXL) {
    address.port = 0;
    return kvf_socket_listen(&address, handshake_timeout_ms, fd, bound, message);
  }
  if (status == KVF_ADDRESS_IN_USE && last > 0) {
    char of_last[KVF_MESSAGE_BYTES_MAX];
    (void)snprintf(of_last, sizeof(of_last), "%s", message);
    return kvf_fail(status, message, "listen = %.60s: no port of it is free; the last: %.150s", node->config.listen,
                    of_last);
  }
  return status;
}

static void log_where(const kvf_node *node, const kvf_address *listens_on, const kvf_address *address, uint16_t wished)
{
  char at[KVF_ADDRESS_TEXT_BYTES];
  char named[KVF_ADDRESS_TEXT_BYTES];
  char interface[IF_NAMESIZE];
  char taken[sizeof("; port 65535 is taken")] = "";
  const size_t reason = reason_of(node);
  const bool is_named = memcmp(listens_on, address, sizeof(*address)) != 0;
  kvf_address_format(listens_on, at);
  kvf_address_format(address, named);
  kvf_own_address_interface(listens_on, interface);
  if (wished > 0 && listens_on->port != wished) {
    (void)snprintf(taken, sizeof(taken), "; port %u is taken", (unsigned)wished);
  }
  if (reason != KVF_LISTEN_UNSAID) {
    kvf_log(&node->logger, reasons[reason].level, "listens on %s (%s)%s%s: %s%s", at,
            interface[0] == '\0' ? "every interface" : interface, is_named ? ", tickets name " : "",
            is_named ? named : "", reasons[reason].text, taken);
  }
}

static kvf_status open_at(kvf_node *node, int *fd, char *message)
{
  kvf_address address;
  kvf_address named;
  kvf_address bound;
  char first[KVF_HOST_BYTES_MAX];
  uint16_t last;
  kvf_listen_split(node->config.listen, first, &last);
  kvf_status status = kvf_own_address_find(first, &address, message);
  if (status != KVF_OK) {
    return status;
  }
  const uint16_t wished = node->config.listen_source == KVF_LISTEN_NIXL ? address.port : 0;
  if (wished > 0) {
    last = wished > UINT16_MAX - KVF_LISTEN_PORTS_MAX ? UINT16_MAX : (uint16_t)(wished + KVF_LISTEN_PORTS_MAX);
  }
  if (!kvf_address_is_loopback(&address) && node->keys[0].bytes == 0) {
    return kvf_fail(KVF_INVALID, message,
                    "listen = %.60s is not a loopback address: that needs a shared key (option key_file)",
                    node->config.listen);
  }
  status = find_named(&node->config, &address, &named, message);
  if (status == KVF_OK && last > 0 && node->config.advertise[0] != '\0' && named.port != 0) {
    return kvf_fail(KVF_INVALID, message,
                    "advertise = %.60s names a port, and listen = %.60s is a range: leave the port out, tickets then "
                    "name the one that was taken",
                    node->config.advertise, node->config.listen);
  }
  if (status == KVF_OK) {
    status = listen_on(node, address, last, fd, &bound, message);
  }
  if (status != KVF_OK) {
    return status;
  }
  node->listens_on = bound;
  node->address = named;
  node->address.port = named.port == 0 || last > 0 ? bound.port : named.port;
  log_where(node, &node->listens_on, &node->address, wished);
  return KVF_OK;
}

/* At the same port, if that is free. If listening there fails, the node has one address. A system may have switched a
 * family off, or may not have finished its check that the address is unique. */
static void open_other(kvf_node *node, int *fd)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  const uint32_t handshake_timeout_ms = node->config.handshake_timeout_ms;
  kvf_address address;
  kvf_address bound;
  if (node->config.listen_other[0] == '\0' || node->keys[0].bytes == 0 ||
      kvf_address_parse(node->config.listen_other, node->listens_on.port, &address) != KVF_OK ||
      kvf_address_is_v4(&address) == kvf_address_is_v4(&node->address)) {
    return;
  }
  kvf_status status = kvf_socket_listen(&address, handshake_timeout_ms, fd, &bound, message);
  if (status == KVF_ADDRESS_IN_USE) {
    address.port = 0;
    status = kvf_socket_listen(&address, handshake_timeout_ms, fd, &bound, message);
  }
  if (status != KVF_OK) {
    kvf_log(&node->logger, KVF_LOG_WARN, "has one address instead of one of each family: %s", message);
    return;
  }
  node->other = bound;
  log_where(node, &bound, &bound, 0);
}

kvf_status kvf_listener_open(kvf_node *node, int *out_fd, int *other_fd, char *message)
{
  *out_fd = -1;
  *other_fd = -1;
  kvf_status status = open_at(node, out_fd, message);
  if (status == KVF_OK) {
    open_other(node, other_fd);
  }
  const size_t reason = reason_of(node);
  if (status != KVF_OK && reason > KVF_LISTEN_OPTION) {
    char what[KVF_MESSAGE_BYTES_MAX];
    (void)snprintf(what, sizeof(what), "%s", message);
    return kvf_fail(status, message, "%.180s; %s", what, reasons[reason].text);
  }
  return status;
}
