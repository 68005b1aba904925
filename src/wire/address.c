/* "IP:PORT" as text and as bytes, IPv4 in its mapped form; and what kind of address one is. */
#include "wire/address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

static const uint8_t v4_prefix[12] = {[10] = 0xff, [11] = 0xff};

static bool parse_port(const char *text, uint16_t *out)
{
  unsigned port = 0;
  size_t digits = strlen(text);
  if (digits == 0 || digits > 5) {
    return false;
  }
  for (size_t i = 0; i < digits; i++) {
    if (text[i] < '0' || text[i] > '9') {
      return false;
    }
    port = port * 10 + (unsigned)(text[i] - '0');
  }
  *out = (uint16_t)port;
  return port <= UINT16_MAX;
}

static bool parse_ip(const char *text, size_t bytes, bool v6_only, uint8_t out[16])
{
  char ip[INET6_ADDRSTRLEN];
  if (bytes >= sizeof(ip)) {
    return false;
  }
  memcpy(ip, text, bytes);
  ip[bytes] = '\0';
  if (!v6_only && inet_pton(AF_INET, ip, out + sizeof(v4_prefix)) == 1) {
    memcpy(out, v4_prefix, sizeof(v4_prefix));
    return true;
  }
  return inet_pton(AF_INET6, ip, out) == 1;
}

kvf_status kvf_address_parse(const char *text, uint16_t default_port, kvf_address *out)
{
  kvf_address address = {.port = default_port};
  const char *port = NULL;
  const char *ip = text;
  size_t ip_bytes = strlen(text);
  bool bracketed = text[0] == '[';
  if (bracketed) {
    const char *end = strchr(text, ']');
    if (end == NULL || (end[1] != '\0' && end[1] != ':')) {
      return KVF_INVALID;
    }
    ip = text + 1;
    ip_bytes = (size_t)(end - ip);
    port = end[1] == ':' ? end + 2 : NULL;
  } else {
    /* Several colons outside of brackets: an IPv6 address without a port. */
    const char *colon = strchr(text, ':');
    if (colon != NULL && strchr(colon + 1, ':') == NULL) {
      ip_bytes = (size_t)(colon - text);
      port = colon + 1;
    }
  }
  if (!parse_ip(ip, ip_bytes, bracketed, address.ip) || (port != NULL && !parse_port(port, &address.port))) {
    return KVF_INVALID;
  }
  *out = address;
  return KVF_OK;
}

void kvf_address_format_host(const kvf_address *address, char out[KVF_ADDRESS_TEXT_BYTES])
{
  bool v4 = kvf_address_is_v4(address);
  out[0] = '\0';
  (void)inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? address->ip + sizeof(v4_prefix) : address->ip, out,
                  KVF_ADDRESS_TEXT_BYTES);
}

void kvf_address_format(const kvf_address *address, char out[KVF_ADDRESS_TEXT_BYTES])
{
  char ip[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format_host(address, ip);
  (void)snprintf(out, KVF_ADDRESS_TEXT_BYTES, kvf_address_is_v4(address) ? "%.45s:%u" : "[%.45s]:%u", ip,
                 (unsigned)address->port);
}

bool kvf_address_is_v4(const kvf_address *address)
{
  return memcmp(address->ip, v4_prefix, sizeof(v4_prefix)) == 0;
}

bool kvf_address_is_loopback(const kvf_address *address)
{
  static const uint8_t loopback[16] = {[15] = 1};
  if (kvf_address_is_v4(address)) {
    return address->ip[sizeof(v4_prefix)] == 127;
  }
  return memcmp(address->ip, loopback, sizeof(loopback)) == 0;
}

kvf_host kvf_address_host(const kvf_address *address)
{
  kvf_host host = {0};
  memcpy(host.bytes, address->ip, kvf_address_is_v4(address) ? sizeof(host.bytes) : sizeof(host.bytes) / 2);
  return host;
}

bool kvf_address_is_any(const kvf_address *address)
{
  static const uint8_t zero[16];
  size_t skipped = kvf_address_is_v4(address) ? sizeof(v4_prefix) : 0;
  return memcmp(address->ip + skipped, zero, sizeof(zero) - skipped) == 0;
}
