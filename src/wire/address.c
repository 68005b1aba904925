#include "wire/address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/crypto.h"
#include "wire/fields.h"

#define RECORD_VERSION 1
#define RECORD_CHECKSUM_BYTES 8
#define RECORD_FIELDS_BYTES (KVF_RANK_RECORD_BYTES - RECORD_CHECKSUM_BYTES)

_Static_assert(KVF_RANK_RECORD_BYTES <= KVF_ADDRESS_BYTES_MAX, "a record fits what the public header promises");
_Static_assert(RECORD_FIELDS_BYTES == 1 + KVF_ADDRESS_FIELD_BYTES + KVF_INCARNATION_FIELD_BYTES + 4, "its fields");

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

void kvf_address_format(const kvf_address *address, char out[KVF_ADDRESS_TEXT_BYTES])
{
  char ip[INET6_ADDRSTRLEN] = "?";
  bool v4 = kvf_address_is_v4(address);
  (void)inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? address->ip + sizeof(v4_prefix) : address->ip, ip, sizeof(ip));
  (void)snprintf(out, KVF_ADDRESS_TEXT_BYTES, v4 ? "%s:%u" : "[%s]:%u", ip, (unsigned)address->port);
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

bool kvf_address_is_any(const kvf_address *address)
{
  static const uint8_t zero[16];
  size_t skipped = kvf_address_is_v4(address) ? sizeof(v4_prefix) : 0;
  return memcmp(address->ip + skipped, zero, sizeof(zero) - skipped) == 0;
}

static bool record_is_valid(const kvf_rank_record *record)
{
  return record->address.port != 0 && record->rank < KVF_RANKS_MAX;
}

kvf_status kvf_rank_record_encode(const kvf_rank_record *record, void *out, size_t capacity, size_t *out_bytes)
{
  if (!record_is_valid(record)) {
    return KVF_INVALID;
  }
  uint8_t checksum[KVF_HASH_BYTES];
  kvf_encoder encoder = kvf_encoder_of(out, capacity);
  kvf_put_u8(&encoder, RECORD_VERSION);
  kvf_put_address(&encoder, &record->address);
  kvf_put_incarnation(&encoder, &record->incarnation);
  kvf_put_u32(&encoder, record->rank);
  kvf_span fields = {out, encoder.bytes};
  kvf_status status = kvf_sha256(&fields, 1, checksum);
  if (status != KVF_OK) {
    return status;
  }
  kvf_put_bytes(&encoder, checksum, RECORD_CHECKSUM_BYTES);
  return kvf_encoder_end(&encoder, out_bytes);
}

kvf_status kvf_rank_record_decode(const void *data, size_t bytes, kvf_rank_record *out)
{
  kvf_rank_record record;
  uint8_t checksum[KVF_HASH_BYTES];
  uint8_t expected[KVF_HASH_BYTES];
  if (bytes != KVF_RANK_RECORD_BYTES) {
    return KVF_INVALID;
  }
  kvf_span fields = {data, RECORD_FIELDS_BYTES};
  kvf_status status = kvf_sha256(&fields, 1, expected);
  if (status != KVF_OK) {
    return status;
  }
  kvf_decoder decoder = kvf_decoder_of(data, bytes);
  uint8_t version = kvf_get_u8(&decoder);
  kvf_get_address(&decoder, &record.address);
  kvf_get_incarnation(&decoder, &record.incarnation);
  record.rank = kvf_get_u32(&decoder);
  kvf_get_bytes(&decoder, checksum, RECORD_CHECKSUM_BYTES);
  if (kvf_decoder_end(&decoder) != KVF_OK || version != RECORD_VERSION ||
      memcmp(checksum, expected, RECORD_CHECKSUM_BYTES) != 0 || !record_is_valid(&record)) {
    return KVF_INVALID;
  }
  *out = record;
  return KVF_OK;
}
