#include "wire/ticket.h"

#include <stdlib.h>
#include <string.h>

#include "wire/base64url.h"
#include "wire/block_runs.h"
#include "wire/fields.h"

#define PREFIX "kvf4."
#define PREFIX_BYTES (sizeof(PREFIX) - 1)
#define LABEL "kvferry ticket"
#define MAC_TEXT_BYTES 43 /* kvf_base64url_text_bytes(KVF_HASH_BYTES) */
#define SUFFIX_BYTES (1 + MAC_TEXT_BYTES)

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
    if ((tokens > 0 && ticket->block_tokens % tokens != 0) ||
        ticket->counts[group] != kvf_ticket_positions(ticket->prompt.tokens, tokens)) {
      return KVF_INVALID;
    }
  }
  const uint64_t all = kvf_ticket_all_positions(ticket);
  if (all > KVF_BLOCKS_PER_LEASE_MAX) {
    return KVF_LIMIT;
  }
  /* Where there are only states: a report says by the number of blocks which tokens are good. */
  return all < kvf_ticket_positions(ticket->prompt.tokens, ticket->block_tokens) ? KVF_INVALID : KVF_OK;
}

/* Everything but the ids. */
static kvf_status check_ticket(const kvf_ticket *ticket)
{
  if (!kvf_lease_is_valid(&ticket->lease) || ticket->ttl_ms == 0) {
    return KVF_INVALID;
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
    kvf_code_rank(codec, &ticket->rank[i]);
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

kvf_status kvf_ticket_encode(const kvf_ticket *ticket, const kvf_mac *mac, char *text, size_t capacity,
                             size_t *text_bytes)
{
  kvf_status status = check_ticket(ticket);
  if (status != KVF_OK) {
    return status;
  }
  size_t room = capacity < KVF_TICKET_BYTES_MAX ? capacity : KVF_TICKET_BYTES_MAX;
  if (room < PREFIX_BYTES + SUFFIX_BYTES) {
    return KVF_LIMIT;
  }
  room -= PREFIX_BYTES + SUFFIX_BYTES;
  char *payload = text + PREFIX_BYTES;
  size_t data_bytes = 0;
  kvf_codec codec = kvf_writer_of(payload, room);
  code_head(&codec, (kvf_ticket *)ticket);
  code_ids(&codec, ticket);
  status = kvf_writer_end(&codec, true, &data_bytes);
  size_t payload_bytes = kvf_base64url_text_bytes(data_bytes);
  if (status != KVF_OK || payload_bytes > room) {
    return KVF_LIMIT;
  }
  memcpy(text, PREFIX, PREFIX_BYTES);
  char *data = payload + payload_bytes - data_bytes;
  memmove(data, payload, data_bytes);
  kvf_base64url_encode((const uint8_t *)data, data_bytes, payload);
  uint8_t seal[KVF_HASH_BYTES];
  status = sign(mac, text, PREFIX_BYTES + payload_bytes, seal);
  if (status != KVF_OK) {
    return status;
  }
  char *suffix = payload + payload_bytes;
  suffix[0] = '.';
  kvf_base64url_encode(seal, sizeof(seal), suffix + 1);
  *text_bytes = PREFIX_BYTES + payload_bytes + SUFFIX_BYTES;
  return KVF_OK;
}

static kvf_status check_seal(const char *text, size_t signed_bytes, const uint8_t seal[KVF_HASH_BYTES],
                             const kvf_mac *macs, size_t macs_count)
{
  bool have_key = false;
  for (size_t i = 0; i < macs_count; i++) {
    have_key = have_key || macs[i].has_key;
  }
  for (size_t i = 0; i < macs_count; i++) {
    uint8_t expected[KVF_HASH_BYTES];
    if (have_key && !macs[i].has_key) {
      continue;
    }
    kvf_status status = sign(&macs[i], text, signed_bytes, expected);
    if (status != KVF_OK) {
      return status;
    }
    if (kvf_equal_secret(expected, seal, sizeof(expected))) {
      return KVF_OK;
    }
  }
  return KVF_BAD_TICKET;
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

static kvf_status decode_payload(const char *payload, size_t payload_bytes, kvf_ticket *out)
{
  size_t data_bytes = kvf_base64url_data_bytes(payload_bytes);
  uint8_t *data = malloc(data_bytes + 1);
  if (data == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_ticket ticket = {0};
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
  if (text_bytes > KVF_TICKET_BYTES_MAX || text_bytes < PREFIX_BYTES + SUFFIX_BYTES ||
      memcmp(text, PREFIX, PREFIX_BYTES) != 0) {
    return KVF_BAD_TICKET;
  }
  uint8_t seal[KVF_HASH_BYTES];
  size_t signed_bytes = text_bytes - SUFFIX_BYTES;
  const char *suffix = text + signed_bytes;
  if (suffix[0] != '.' || !kvf_base64url_decode(suffix + 1, MAC_TEXT_BYTES, seal)) {
    return KVF_BAD_TICKET;
  }
  kvf_status status = check_seal(text, signed_bytes, seal, macs, macs_count);
  if (status != KVF_OK) {
    return status;
  }
  return decode_payload(text + PREFIX_BYTES, signed_bytes - PREFIX_BYTES, out);
}

void kvf_ticket_free(kvf_ticket *ticket)
{
  free(ticket->ids);
  ticket->ids = NULL;
}
