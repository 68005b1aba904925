/* Finds the address that this machine has in a network, on an interface, or for the default route. */
#include "transport/own_address.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <linux/in6.h> /* after netinet/in.h, which it gives way to */

#include "base/status.h"
#include "kvferry/config.h"
#include "memory/own_fds.h"
#include "transport/socket.h"

#define FOUND_MAX 16 /* that a message has room for; more are counted alike */
#define V4_PREFIX_BITS 96

/* Addresses reserved for documents (RFC 5737, 3849), of those that laboratories rarely use. No host has them, so only a
 * default route leads there. */
#define NOBODY_V4 "203.0.113.1:9"
#define NOBODY_V6 "[2001:db8:ffff:ffff::1]:9"

typedef struct network {
  kvf_address prefix;
  uint32_t bits; /* 0 to 128 */
} network;

typedef struct own {
  kvf_address address;
  char interface[IF_NAMESIZE];
} own;

typedef struct own_list {
  own items[FOUND_MAX];
  size_t count;
} own_list;

static bool is_link_local(const kvf_address *address)
{
  return address->ip[0] == 0xfe && (address->ip[1] & 0xc0) == 0x80;
}

static bool is_in(const network *within, const kvf_address *address)
{
  const uint32_t whole = within->bits / 8;
  const uint32_t rest = within->bits % 8;
  return memcmp(within->prefix.ip, address->ip, whole) == 0 &&
         (rest == 0 || (within->prefix.ip[whole] ^ address->ip[whole]) >> (8 - rest) == 0);
}

static bool has(const own_list *list, const kvf_address *address)
{
  for (size_t i = 0; i < list->count; i++) {
    if (memcmp(list->items[i].address.ip, address->ip, sizeof(address->ip)) == 0) {
      return true;
    }
  }
  return false;
}

/* False: this entry is no address for others. */
static bool read_entry(const struct ifaddrs *entry, own *out)
{
  if (entry->ifa_addr == NULL || (entry->ifa_flags & IFF_UP) == 0) {
    return false;
  }
  const sa_family_t family = entry->ifa_addr->sa_family;
  struct sockaddr_storage storage = {0};
  *out = (own){0};
  if (family != AF_INET && family != AF_INET6) {
    return false;
  }
  memcpy(&storage, entry->ifa_addr, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
  (void)snprintf(out->interface, sizeof(out->interface), "%s", entry->ifa_name);
  return kvf_address_from_sockaddr(&storage, &out->address) && !is_link_local(&out->address);
}

/* Of an interface (NULL: any) and in a network; each address once. Where the system does not say, there are none. */
static void list_own(const char *interface, const network *within, own_list *out)
{
  struct ifaddrs *first = NULL;
  out->count = 0;
  if (getifaddrs(&first) != 0) {
    return;
  }
  for (const struct ifaddrs *entry = first; entry != NULL && out->count < FOUND_MAX; entry = entry->ifa_next) {
    own found;
    if ((interface == NULL || strcmp(entry->ifa_name, interface) == 0) && read_entry(entry, &found) &&
        is_in(within, &found.address) && !has(out, &found.address)) {
      out->items[out->count++] = found;
    }
  }
  freeifaddrs(first);
}

static void name_all(const own_list *list, char *out, size_t bytes)
{
  size_t length = 0;
  out[0] = '\0';
  for (size_t i = 0; i < list->count && length < bytes; i++) {
    char text[KVF_ADDRESS_TEXT_BYTES];
    kvf_address_format_host(&list->items[i].address, text);
    length +=
        (size_t)snprintf(out + length, bytes - length, "%s%s (%s)", i == 0 ? "" : ", ", text, list->items[i].interface);
  }
}

static kvf_status say_several(const char *text, const own_list *list, char *message)
{
  char all[KVF_MESSAGE_BYTES_MAX];
  name_all(list, all, sizeof(all));
  return kvf_fail(KVF_INVALID, message, "listen = %.60s: this machine has several addresses there, name one: %s", text,
                  all);
}

static const network v4 = {.prefix.ip = {[10] = 0xff, [11] = 0xff}, .bits = V4_PREFIX_BITS};
static const network everywhere = {.bits = 0};

static kvf_status say_none(const char *text, const char *what, char *message)
{
  char all[KVF_MESSAGE_BYTES_MAX];
  own_list list;
  list_own(NULL, &everywhere, &list);
  name_all(&list, all, sizeof(all));
  return kvf_fail(KVF_INVALID, message, "listen = %.60s: %s; this machine has: %s", text, what, all);
}

/* `none`: what is the matter where there is none. */
static kvf_status take_one(const char *text, const own_list *list, const char *none, uint16_t port, kvf_address *out,
                           char *message)
{
  if (list->count == 0) {
    return say_none(text, none, message);
  }
  if (list->count > 1) {
    return say_several(text, list, message);
  }
  *out = list->items[0].address;
  out->port = port;
  return KVF_OK;
}

/* Reads "10.0.0.0/8", "fd00::/8", "[fd00::/8]" or "10.0.0.0/8:PORT", "[fd00::/8]:PORT". False: it is none. */
static bool parse_network(const char *text, network *out, uint16_t *port)
{
  char prefix[KVF_HOST_BYTES_MAX];
  const char *slash = strchr(text, '/');
  char *rest = NULL;
  const bool has_brackets = text[0] == '[';
  const size_t bytes = slash == NULL ? 0 : (size_t)(slash - text) - has_brackets;
  if (bytes == 0 || bytes >= sizeof(prefix)) {
    return false;
  }
  memcpy(prefix, text + has_brackets, bytes);
  prefix[bytes] = '\0';
  const unsigned long bits = strtoul(slash + 1, &rest, 10);
  rest += has_brackets && *rest == ']';
  /* A port comes after the bits. */
  if (kvf_address_parse(prefix, 0, &out->prefix) != KVF_OK || out->prefix.port != 0) {
    return false;
  }
  const bool is_v4 = kvf_address_is_v4(&out->prefix);
  out->bits = (uint32_t)bits + (is_v4 ? V4_PREFIX_BITS : 0);
  *port = (uint16_t)(*rest == ':' ? strtoul(rest + 1, NULL, 10) : 0);
  return bits <= (is_v4 ? 32 : 128);
}

static kvf_status find_in_network(const char *text, kvf_address *out, char *message)
{
  network within;
  own_list list;
  uint16_t port = 0;
  if (!parse_network(text, &within, &port)) {
    return kvf_fail(KVF_INVALID, message, "listen = %.60s is no network: one is like 10.0.0.0/8, or fd00::/8", text);
  }
  list_own(NULL, &within, &list);
  return take_one(text, &list, "no address of this machine is in that network", port, out, message);
}

static kvf_status find_of_interface(const char *text, const char *name, uint16_t port, kvf_address *out, char *message)
{
  own_list list;
  list_own(name, &v4, &list);
  if (list.count == 0) {
    list_own(name, &everywhere, &list);
  }
  return take_one(text, &list, "that interface is down, or has no address", port, out, message);
}

kvf_status kvf_own_address_find(const char *text, kvf_address *out, char *message)
{
  char name[IF_NAMESIZE];
  const size_t bytes = strcspn(text, ":");
  if (kvf_address_parse(text, 0, out) == KVF_OK) {
    return KVF_OK;
  }
  if (strchr(text, '/') != NULL) {
    return find_in_network(text, out, message);
  }
  if (bytes < sizeof(name)) {
    memcpy(name, text, bytes);
    name[bytes] = '\0';
    if (if_nametoindex(name) != 0) {
      const unsigned long port = text[bytes] == ':' ? strtoul(text + bytes + 1, NULL, 10) : 0;
      return find_of_interface(text, name, (uint16_t)port, out, message);
    }
  }
  return kvf_address_resolve(text, NULL, out, message);
}

void kvf_own_address_interface(const kvf_address *address, char out[IF_NAMESIZE])
{
  const network alone = {.prefix = *address, .bits = 128};
  own_list list;
  list_own(NULL, &alone, &list);
  (void)snprintf(out, IF_NAMESIZE, "%s", list.count == 0 ? "" : list.items[0].interface);
}

bool kvf_own_address_of_route(bool is_v4, kvf_address *out)
{
  kvf_address nobody;
  struct sockaddr_storage storage;
  socklen_t bytes = sizeof(storage);
  bool found = false;
  if (kvf_address_parse(is_v4 ? NOBODY_V4 : NOBODY_V6, 0, &nobody) != KVF_OK) {
    return false;
  }
  int fd = KVF_OWN_FD(socket(is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd < 0) {
    return false;
  }
  if (!is_v4) {
    const int lasting = IPV6_PREFER_SRC_PUBLIC;
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, &lasting, sizeof(lasting));
  }
  /* Chooses a route, and an address of ours for it. */
  const socklen_t nobody_bytes = kvf_address_to_sockaddr(&nobody, &storage);
  if (connect(fd, (const struct sockaddr *)&storage, nobody_bytes) == 0 &&
      getsockname(fd, (struct sockaddr *)&storage, &bytes) == 0) {
    kvf_address chosen = {0};
    found = kvf_address_from_sockaddr(&storage, &chosen) && !kvf_address_is_loopback(&chosen) &&
            !kvf_address_is_any(&chosen) && !is_link_local(&chosen);
    if (found) {
      chosen.port = 0;
      *out = chosen;
    }
  }
  kvf_own_fd_close(fd);
  return found;
}
