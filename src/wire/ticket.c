/* A ticket's payload with its fields and limits, the seal around it, and the versions that are read and written. */
#include "wire/ticket.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "wire/base64url.h"
#include "wire/block_runs.h"
#include "wire/fields.h"
#include "wire/handshake_message.h"

#define NAME "kvf"
#define NAME_BYTES (sizeof(NAME) - 1)
#define VERSION_DIGITS_MAX 4
#define VERSION_BYTES (NAME_BYTES + 2) /* of those that are known: "kvf5." */
#define KEY_ID_TEXT_BYTES 11           /* kvf_base64url_text_bytes(KVF_KEY_ID_BYTES) */
#define LABEL "kvferry ticket"
#define MAC_TEXT_BYTES 43 /* kvf_base64url_text_bytes(KVF_HASH_BYTES) */
#define SUFFIX_BYTES (1 + MAC_TEXT_BYTES)
#define WITH_KEY_ID 5 /* from this version on */

_Static_assert(KVF_TICKET_VERSION_MAX <= 9, "versions that are known have one digit");

/* What stands before the payload. */
static size_t prefix_bytes(uint32_t version)
{
  return VERSION_BYTES + (version >= WITH_KEY_ID ? KEY_ID_TEXT_BYTES + 1 : 0);
}

uint32_t kvf_ticket_blocks_each(const kvf_ticket *ticket, uint32_t group)
{
  const uint32_t tokens = ticket->group_tokens[group];
  return tokens == 0 ? 0 : ticket->block_tokens / tokens;
}

uint64_t kvf_ticket_all_positions(const kvf_ticket *ticket)
{
  uint64_t total = 0;
  for (uint32_t group = 0; group < ticket->groups; group++) {
    total += ticket->counts[group];
  }
  return total;
}

static kvf_status check_ranks(const kvf_ticket *ticket)
{
  if (ticket->ranks > KVF_RANKS_MAX) {
    return KVF_LIMIT;
  }
  for (uint32_t i = 0; i < ticket->ranks; i++) {
    const kvf_rank_record *rank = &ticket->rank[i];
    if (rank->rank != i || !kvf_rank_record_is_valid(rank) || rank->dealt != ticket->rank[0].dealt) {
      return KVF_INVALID;
    }
  }
  return ticket->ranks > 0 ? KVF_OK : KVF_INVALID;
}

static kvf_status check_blocks(const kvf_ticket *ticket)
{
  if (ticket->groups > KVF_GROUPS_MAX) {
    return KVF_LIMIT;
  }
  if (ticket->groups == 0 || ticket->block_tokens == 0) {
    return KVF_INVALID;
  }
  for (uint32_t group = 0; group < ticket->groups; group++) {
    const uint32_t tokens = ticket->group_tokens[group];
    const uint64_t positions = kvf_ticket_positions(ticket->prompt.tokens, tokens);
    if ((tokens > 0 && ticket->block_tokens % tokens != 0) || ticket->counts[group] != positions) {
      return kvf_because(KVF_INVALID, "blocks->counts[%u] = %u: %u tokens in blocks of %u are %llu positions",
                         (unsigned)group, (unsigned)ticket->counts[group], (unsigned)ticket->prompt.tokens,
                         (unsigned)tokens, (unsigned long long)positions);
    }
  }
  const uint64_t all = kvf_ticket_all_positions(ticket);
  if (all > KVF_BLOCKS_PER_LEASE_MAX) {
    return kvf_because(KVF_LIMIT, "%llu positions in all groups: at most %d, KVF_BLOCKS_PER_LEASE_MAX",
                       (unsigned long long)all, KVF_BLOCKS_PER_LEASE_MAX);
  }
  /* Where there are only states: a report says by the number of blocks which tokens are good. */
  return all >= kvf_ticket_positions(ticket->prompt.tokens, ticket->block_tokens)
             ? KVF_OK
             : kvf_because(KVF_INVALID, "prompt->tokens = %u: where all groups are states, at most block_tokens = %u",
                           (unsigned)ticket->prompt.tokens, (unsigned)ticket->block_tokens);
}

/* Everything but the ids. */
static kvf_status check_ticket(const kvf_ticket *ticket)
{
  if (ticket->version < KVF_TICKET_VERSION_MIN || ticket->version > KVF_TICKET_VERSION_MAX ||
      !kvf_lease_is_valid(&ticket->lease) || ticket->ttl_ms == 0) {
    return kvf_because(KVF_INVALID, "lease %llu of slot %u is none of kvf_lease_reserve()",
                       (unsigned long long)ticket->lease.id, (unsigned)ticket->lease.slot);
  }
  if (ticket->fields > KVF_IDENTITY_FIELDS_MAX) {
    return KVF_LIMIT;
  }
  kvf_status status = check_ranks(ticket);
  return status == KVF_OK ? check_blocks(ticket) : status;
}

/* Without the ids. */
static void code_head(kvf_codec *codec, kvf_ticket *ticket)
{
  kvf_code_u32_in(codec, &ticket->ranks, 1);
  for (uint32_t i = 0; i < ticket->ranks && i < KVF_RANKS_MAX; i++) {
    (ticket->version >= WITH_KEY_ID ? kvf_code_rank : kvf_code_rank_before)(codec, &ticket->rank[i]);
  }
  kvf_code_lease(codec, &ticket->lease);
  kvf_code_bytes(codec, ticket->prompt.hash, sizeof(ticket->prompt.hash));
  kvf_code_bytes(codec, ticket->prompt.model, sizeof(ticket->prompt.model));
  kvf_code_u32(codec, &ticket->prompt.tokens);
  kvf_code_u32(codec, &ticket->block_tokens);
  kvf_code_u32(codec, &ticket->ttl_ms);
  kvf_code_bytes(codec, ticket->compat, sizeof(ticket->compat));
  kvf_code_u32_in(codec, &ticket->fields, 1);
  for (uint32_t i = 0; i < ticket->fields && i < KVF_IDENTITY_FIELDS_MAX; i++) {
    kvf_code_u16(codec, &ticket->field[i].name);
    kvf_code_u16(codec, &ticket->field[i].value);
  }
  kvf_code_u32_in(codec, &ticket->groups, 1);
  for (uint32_t group = 0; group < ticket->groups && group < KVF_GROUPS_MAX; group++) {
    kvf_code_u32(codec, &ticket->group_tokens[group]);
  }
}

/* Without blocks there are no ids to point into: no group of a prompt without tokens has any. */
static void code_ids(kvf_codec *codec, const kvf_ticket *ticket)
{
  size_t next = 0;
  for (uint32_t group = 0; group < ticket->groups && ticket->counts[group] > 0 && !codec->failed; group++) {
    kvf_code_block_runs(codec, ticket->ids + next, ticket->counts[group]);
    next += ticket->counts[group];
  }
}

static kvf_status sign(const kvf_mac *mac, const char *text, size_t bytes, uint8_t out[KVF_HASH_BYTES])
{
  const kvf_span spans[] = {{LABEL, strlen(LABEL)}, {text, bytes}};
  return kvf_mac_make(mac, spans, sizeof(spans) / sizeof(spans[0]), out);
}

/* "kvf5." and the key's id, or "kvf4.": prefix_bytes(). */
static void put_prefix(uint32_t version, const kvf_mac *mac, char *text)
{
  memcpy(text, NAME, NAME_BYTES);
  text[NAME_BYTES] = (char)('0' + version);
  text[VERSION_BYTES - 1] = '.';
  if (version >= WITH_KEY_ID) {
    kvf_base64url_encode(mac->key_id, sizeof(mac->key_id), text + VERSION_BYTES);
    text[VERSION_BYTES + KEY_ID_TEXT_BYTES] = '.';
  }
}

kvf_status kvf_ticket_encode(const kvf_ticket *ticket, const kvf_mac *mac, char *text, size_t capacity,
                             size_t *text_bytes)
{
  kvf_status status = check_ticket(ticket);
  if (status != KVF_OK) {
    return status;
  }
  const size_t before = prefix_bytes(ticket->version);
  size_t room = capacity < KVF_TICKET_BYTES_MAX ? capacity : KVF_TICKET_BYTES_MAX;
  if (room < before + SUFFIX_BYTES) {
    return kvf_because(KVF_LIMIT, "capacity = %zu: a ticket has %zu bytes at least", capacity, before + SUFFIX_BYTES);
  }
  room -= before + SUFFIX_BYTES;
  char *payload = text + before;
  size_t data_bytes = 0;
  kvf_codec codec = kvf_writer_of(payload, room);
  code_head(&codec, (kvf_ticket *)ticket);
  code_ids(&codec, ticket);
  status = kvf_writer_end(&codec, true, &data_bytes);
  size_t payload_bytes = kvf_base64url_text_bytes(data_bytes);
  if (status != KVF_OK || payload_bytes > room) {
    return kvf_because(KVF_LIMIT, "capacity = %zu: the ticket is longer; KVF_TICKET_BYTES_MAX = %d is always enough",
                       capacity, KVF_TICKET_BYTES_MAX);
  }
  char *data = payload + payload_bytes - data_bytes;
  memmove(data, payload, data_bytes);
  kvf_base64url_encode((const uint8_t *)data, data_bytes, payload);
  uint8_t seal[KVF_HASH_BYTES];
  put_prefix(ticket->version, mac, text);
  status = sign(mac, text, before + payload_bytes, seal);
  if (status != KVF_OK) {
    return status;
  }
  char *suffix = payload + payload_bytes;
  suffix[0] = '.';
  kvf_base64url_encode(seal, sizeof(seal), suffix + 1);
  *text_bytes = before + payload_bytes + SUFFIX_BYTES;
  return KVF_OK;
}

/* What a reader knows of a text before it has checked anything. */
typedef struct outside {
  uint32_t version;
  uint8_t key_id[KVF_KEY_ID_BYTES]; /* from WITH_KEY_ID on */
  uint8_t seal[KVF_HASH_BYTES];
  size_t signed_bytes;
} outside;

/* "kvf" and a number without leading zeros, then '.'; else 0. */
static uint32_t read_version(const char *text, size_t text_bytes)
{
  uint32_t version = 0;
  if (text_bytes < NAME_BYTES || memcmp(text, NAME, NAME_BYTES) != 0) {
    return 0;
  }
  for (size_t at = NAME_BYTES; at < text_bytes && at <= NAME_BYTES + VERSION_DIGITS_MAX; at++) {
    if (text[at] == '.') {
      return version;
    }
    if (text[at] < '0' || text[at] > '9' || (text[at] == '0' && version == 0)) {
      return 0;
    }
    version = 10 * version + (uint32_t)(text[at] - '0');
  }
  return 0;
}

static kvf_status read_outside(const char *text, size_t text_bytes, outside *out)
{
  const uint32_t version = read_version(text, text_bytes);
  if (version != 0 && (version < KVF_TICKET_VERSION_MIN || version > KVF_TICKET_VERSION_MAX)) {
    return KVF_INCOMPATIBLE;
  }
  if (version == 0 || text_bytes > KVF_TICKET_BYTES_MAX || text_bytes < prefix_bytes(version) + SUFFIX_BYTES) {
    return KVF_BAD_TICKET;
  }
  out->version = version;
  out->signed_bytes = text_bytes - SUFFIX_BYTES;
  const char *suffix = text + out->signed_bytes;
  const char *id = text + VERSION_BYTES;
  if (suffix[0] != '.' || !kvf_base64url_decode(suffix + 1, MAC_TEXT_BYTES, out->seal)) {
    return KVF_BAD_TICKET;
  }
  if (version >= WITH_KEY_ID &&
      (id[KEY_ID_TEXT_BYTES] != '.' || !kvf_base64url_decode(id, KEY_ID_TEXT_BYTES, out->key_id))) {
    return KVF_BAD_TICKET;
  }
  return KVF_OK;
}

/* Under this key. KVF_OTHER_KEY: the text names another one. */
static kvf_status check_seal(const char *text, const outside *read, const kvf_mac *mac)
{
  uint8_t expected[KVF_HASH_BYTES];
  if (read->version >= WITH_KEY_ID && memcmp(mac->key_id, read->key_id, sizeof(mac->key_id)) != 0) {
    return KVF_OTHER_KEY;
  }
  kvf_status status = sign(mac, text, read->signed_bytes, expected);
  if (status != KVF_OK) {
    return status;
  }
  return kvf_equal_secret(expected, read->seal, sizeof(expected)) ? KVF_OK : KVF_BAD_TICKET;
}

/* Under any of the keys. */
static kvf_status check_seals(const char *text, const outside *read, const kvf_mac *macs, size_t macs_count)
{
  bool have_key = false;
  for (size_t i = 0; i < macs_count; i++) {
    have_key = have_key || macs[i].has_key;
  }
  kvf_status result = read->version >= WITH_KEY_ID ? KVF_OTHER_KEY : KVF_BAD_TICKET;
  for (size_t i = 0; i < macs_count; i++) {
    if (have_key && !macs[i].has_key) {
      continue;
    }
    kvf_status status = check_seal(text, read, &macs[i]);
    if (status == KVF_BAD_TICKET) {
      result = status;
    } else if (status != KVF_OTHER_KEY) {
      return status;
    }
  }
  return result;
}

static kvf_status get_payload(kvf_codec *codec, kvf_ticket *ticket)
{
  code_head(codec, ticket);
  for (uint32_t i = 0; i < ticket->ranks && i < KVF_RANKS_MAX; i++) {
    ticket->rank[i].rank = i;
  }
  for (uint32_t group = 0; group < ticket->groups && group < KVF_GROUPS_MAX; group++) {
    ticket->counts[group] = kvf_ticket_positions(ticket->prompt.tokens, ticket->group_tokens[group]);
  }
  if (codec->failed || check_ticket(ticket) != KVF_OK) {
    return KVF_BAD_TICKET;
  }
  size_t total = (size_t)kvf_ticket_all_positions(ticket);
  if (total > 0) {
    ticket->ids = calloc(total, sizeof(ticket->ids[0]));
    if (ticket->ids == NULL) {
      return KVF_NO_MEMORY;
    }
  }
  code_ids(codec, ticket);
  return kvf_reader_end(codec, true) == KVF_OK ? KVF_OK : KVF_BAD_TICKET;
}

static kvf_status decode_payload(uint32_t version, const char *payload, size_t payload_bytes, kvf_ticket *out)
{
  size_t data_bytes = kvf_base64url_data_bytes(payload_bytes);
  uint8_t *data = malloc(data_bytes + 1);
  if (data == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_ticket ticket = {.version = version};
  kvf_status status = KVF_BAD_TICKET;
  if (kvf_base64url_decode(payload, payload_bytes, data)) {
    kvf_codec codec = kvf_reader_of(data, data_bytes);
    status = get_payload(&codec, &ticket);
  }
  free(data);
  if (status == KVF_OK) {
    *out = ticket;
  } else {
    kvf_ticket_free(&ticket);
  }
  return status;
}

kvf_status kvf_ticket_decode(const char *text, size_t text_bytes, const kvf_mac *macs, size_t macs_count,
                             kvf_ticket *out)
{
  outside read;
  kvf_status status = read_outside(text, text_bytes, &read);
  if (status == KVF_OK) {
    status = check_seals(text, &read, macs, macs_count);
  }
  if (status != KVF_OK) {
    return status;
  }
  const size_t before = prefix_bytes(read.version);
  return decode_payload(read.version, text + before, read.signed_bytes - before, out);
}

void kvf_ticket_free(kvf_ticket *ticket)
{
  free(ticket->ids);
  ticket->ids = NULL;
}
