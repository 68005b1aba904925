/* Where an engine of several nodes listens, from the environment and from its number. */
#include "kvferry/address.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/status.h"
#include "transport/own_address.h"

#define NIXL_HOST "VLLM_NIXL_SIDE_CHANNEL_HOST"
#define NIXL_PORT "VLLM_NIXL_SIDE_CHANNEL_PORT"

/* "": it is not set. */
static const char *variable(char *const *environment, const char *name)
{
  const size_t bytes = strlen(name);
  for (; environment != NULL && *environment != NULL; environment++) {
    if (strncmp(*environment, name, bytes) == 0 && (*environment)[bytes] == '=') {
      return *environment + bytes + 1;
    }
  }
  return "";
}

/* Sets the option, if the variable is set. */
static kvf_status set_from(kvf_config *config, const char *option, char *const *environment, const char *name,
                           char *message)
{
  char why[KVF_MESSAGE_BYTES_MAX];
  const char *value = variable(environment, name);
  kvf_status status = value[0] == '\0' ? KVF_OK : kvf_config_set(config, option, value, why);
  return status == KVF_OK ? KVF_OK : kvf_fail(status, message, "%s: %s", name, why);
}

/* Moves the port of "HOST:PORT", or "[V6]:PORT", on. A range is left alone: each node takes the first of it that is
 * free. */
static kvf_status move_port(kvf_config *config, const char *option, const char *value, uint32_t by, char *message)
{
  const char *colon = strrchr(value, ':');
  char *end = NULL;
  const unsigned long port = colon == NULL || kvf_is_bare_ipv6(value) ? 0 : strtoul(colon + 1, &end, 10);
  if (port == 0 || *end != '\0') {
    return KVF_OK;
  }
  char moved[KVF_HOST_BYTES_MAX + sizeof("4294967295")];
  (void)snprintf(moved, sizeof(moved), "%.*s:%lu", (int)(colon - value), value, port + by);
  return kvf_config_set(config, option, moved, message);
}

static bool is_wildcard(const char *host)
{
  kvf_address address;
  return kvf_address_parse(host, 0, &address) == KVF_OK && kvf_address_is_any(&address);
}

/* A port that is none counts as not set: it is but a wish. */
static kvf_status set_nixl(kvf_config *config, const char *host, const char *port, uint32_t index, char *message)
{
  char why[KVF_MESSAGE_BYTES_MAX];
  char listen[4 * KVF_HOST_BYTES_MAX];
  char *end = NULL;
  const unsigned long wished = strtoul(port, &end, 10) + index;
  const bool has_port = port[0] >= '1' && port[0] <= '9' && *end == '\0' && wished <= UINT16_MAX;
  const bool is_ipv6 = host[0] != '[' && strchr(host, ':') != NULL;
  (void)snprintf(listen, sizeof(listen), is_ipv6 ? "[%.200s]" : "%.200s", host);
  if (has_port) {
    (void)snprintf(listen + strlen(listen), sizeof("65535:"), ":%lu", wished);
  }
  kvf_status status = kvf_config_set(config, "listen", listen, why);
  return status == KVF_OK ? KVF_OK : kvf_fail(status, message, NIXL_HOST ": %s", why);
}

/* Of each family that has a default route. Who advertises an address has tickets name that one. */
static void set_route(kvf_config *config)
{
  kvf_address v4;
  kvf_address v6;
  const bool has_v4 = kvf_own_address_of_route(true, &v4);
  const bool has_v6 = kvf_own_address_of_route(false, &v6);
  config->listen_source = has_v4 || has_v6 ? KVF_LISTEN_ROUTE : KVF_LISTEN_NO_ROUTE;
  if (has_v4 || has_v6) {
    kvf_address_format_host(has_v4 ? &v4 : &v6, config->listen);
  }
  if (has_v4 && has_v6 && config->advertise[0] == '\0') {
    kvf_address_format_host(&v6, config->listen_other);
  }
}

static kvf_status set_listen(kvf_config *config, uint32_t index, char *const *environment, char *message)
{
  const char *nixl_host = variable(environment, NIXL_HOST);
  const bool has_nixl = nixl_host[0] != '\0' && !is_wildcard(nixl_host);
  (void)snprintf(config->listen, sizeof(config->listen), "127.0.0.1");
  if (variable(environment, "KVFERRY_LISTEN")[0] != '\0') {
    config->listen_source = KVF_LISTEN_VARIABLE;
    kvf_status status = set_from(config, "listen", environment, "KVFERRY_LISTEN", message);
    return status == KVF_OK && config->advertise[0] == '\0'
               ? set_from(config, "advertise", environment, "KVFERRY_ADVERTISE", message)
               : status;
  }
  if (variable(environment, "KVFERRY_ADVERTISE")[0] != '\0') {
    return kvf_fail(KVF_INVALID, message, "KVFERRY_ADVERTISE goes with KVFERRY_LISTEN, which is not set");
  }
  if (config->key_file[0] == '\0') {
    config->listen_source = has_nixl ? KVF_LISTEN_NO_KEY_FOR_NIXL : KVF_LISTEN_NO_KEY;
    return KVF_OK;
  }
  if (has_nixl) {
    config->listen_source = KVF_LISTEN_NIXL;
    return set_nixl(config, nixl_host, variable(environment, NIXL_PORT), index, message);
  }
  set_route(config);
  return KVF_OK;
}

kvf_status kvf_address_choose(kvf_config *config, bool listen_is_given, uint32_t index, char *const *environment,
                              char message[KVF_MESSAGE_BYTES_MAX])
{
  char unwanted[KVF_MESSAGE_BYTES_MAX];
  char *text = message == NULL ? unwanted : message;
  kvf_status status = KVF_OK;
  if (config == NULL || config->struct_bytes < offsetof(kvf_config, listen_other) + sizeof(config->listen_other)) {
    return kvf_answer_as(kvf_fail(KVF_INVALID, text, "no configuration of kvf_config_init()"), text);
  }
  if (config->key_file[0] == '\0') {
    status = set_from(config, "key_file", environment, "KVFERRY_KEY_FILE", text);
  }
  config->listen_source = KVF_LISTEN_OPTION;
  config->listen_other[0] = '\0';
  if (status == KVF_OK && !listen_is_given) {
    status = set_listen(config, index, environment, text);
  }
  if (status == KVF_OK && config->listen_source != KVF_LISTEN_NIXL) {
    status = move_port(config, "listen", config->listen, index, text);
  }
  status = status == KVF_OK ? move_port(config, "advertise", config->advertise, index, text) : status;
  return kvf_answer_as(status, text);
}
