/* Tickets. The first byte says what the rest is, and of which version: a text as a client sends it; or a payload,
 * sealed here as only a holder of the key could; or a good ticket and where to damage it. A ticket has one text: what
 * decodes is what encode writes. What only a stranger can have written never decodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "wire/base64url.h"
#include "wire/handshake_message.h"
#include "wire/ticket.h"

#define IDS 12
#define KINDS 5
#define SUFFIX_BYTES 44

static char again[KVF_TICKET_BYTES_MAX];
static const kvf_key keys[2] = {{"a key of 16 bytes", 16}, {{0}, 0}};

static const kvf_mac *macs(void)
{
  static kvf_mac made[2];
  for (size_t i = 0; i < 2 && made[i].keyed == NULL; i++) {
    fuzz_check(kvf_mac_init(&made[i], &keys[i]) == KVF_OK);
  }
  return made;
}

static void check_taken(const kvf_ticket *ticket)
{
  uint64_t blocks = 0;
  fuzz_check(ticket->version == 4 || ticket->version == 5);
  fuzz_check(ticket->ranks > 0 && ticket->ranks <= KVF_RANKS_MAX);
  fuzz_check(ticket->fields <= KVF_IDENTITY_FIELDS_MAX);
  fuzz_check(ticket->groups > 0 && ticket->groups <= KVF_GROUPS_MAX);
  fuzz_check(ticket->block_tokens > 0 && ticket->ttl_ms > 0 && ticket->lease.id <= KVF_LEASE_ID_MAX);
  for (uint32_t i = 0; i < ticket->ranks; i++) {
    const kvf_rank_record *rank = &ticket->rank[i];
    fuzz_check(rank->rank == i && rank->address.port != 0);
    fuzz_check(rank->other.port == 0 || kvf_address_is_v4(&rank->other) != kvf_address_is_v4(&rank->address));
    fuzz_check(rank->other.port == 0 || ticket->version > 4);
    fuzz_check(rank->layers.count <= KVF_LAYERS_MAX && rank->layers.first <= KVF_LAYERS_MAX - rank->layers.count);
    fuzz_check(rank->dealt > 0 && rank->dealt <= KVF_RANKS_MAX && rank->dealt == ticket->rank[0].dealt);
  }
  for (uint32_t i = 0; i < ticket->groups; i++) {
    blocks += ticket->counts[i];
    fuzz_check(ticket->counts[i] == kvf_ticket_positions(ticket->prompt.tokens, ticket->group_tokens[i]));
  }
  fuzz_check(blocks <= KVF_BLOCKS_PER_LEASE_MAX);
}

static bool take(const char *text, size_t bytes)
{
  kvf_ticket ticket;
  size_t again_bytes = 0;
  kvf_status status = kvf_ticket_decode(text, bytes, macs(), 2, &ticket);
  fuzz_check(status == KVF_OK || status == KVF_BAD_TICKET || status == KVF_OTHER_KEY || status == KVF_INCOMPATIBLE);
  if (status != KVF_OK) {
    return false;
  }
  check_taken(&ticket);
  fuzz_check(kvf_ticket_encode(&ticket, macs(), again, sizeof(again), &again_bytes) == KVF_OK);
  fuzz_check(again_bytes == bytes && memcmp(again, text, bytes) == 0);
  kvf_ticket_free(&ticket);
  return true;
}

/* What stands before the payload: returns its length. */
static size_t put_prefix(uint32_t version, const kvf_key *key, char *text)
{
  uint8_t id[KVF_KEY_ID_BYTES];
  (void)snprintf(text, 6, "kvf%u.", version);
  if (version == 4) {
    return 5;
  }
  fuzz_check(kvf_handshake_key_id(key, id) == KVF_OK);
  kvf_base64url_encode(id, sizeof(id), text + 5);
  text[16] = '.';
  return 17;
}

static void take_sealed(uint32_t version, const uint8_t *payload, size_t bytes, const kvf_key *key)
{
  static char text[KVF_TICKET_BYTES_MAX];
  uint8_t mac[KVF_HASH_BYTES];
  const size_t before = put_prefix(version, key, text);
  size_t at = before + kvf_base64url_text_bytes(bytes);
  if (at + SUFFIX_BYTES > sizeof(text)) {
    return;
  }
  kvf_base64url_encode(payload, bytes, text + before);
  const kvf_span spans[] = {{"kvferry ticket", 14}, {text, at}};
  fuzz_check(kvf_hmac(key, spans, 2, mac) == KVF_OK);
  text[at] = '.';
  kvf_base64url_encode(mac, sizeof(mac), text + at + 1);
  bool taken = take(text, at + SUFFIX_BYTES);
  fuzz_check(!taken || key->bytes > 0); /* a mere checksum opens no door where there is a key */
}

static size_t some_text(uint32_t version, char *text)
{
  uint32_t ids[IDS] = {7, 8, 9, 3, 100000, 100001, KVF_BLOCK_NONE, KVF_BLOCK_NONE, KVF_BLOCK_NONE, 20, 21, 22};
  kvf_ticket ticket = {.version = version,
                       .ranks = 2,
                       .lease = {.id = UINT64_C(0x0102030405060708), .slot = 9},
                       .prompt = {.tokens = 90},
                       .block_tokens = 16,
                       .ttl_ms = 30000,
                       .fields = 2,
                       .field = {{.name = 0x1234, .value = 0x5678}, {.name = 0xffff, .value = 0}},
                       .groups = 2,
                       .group_tokens = {16, 16},
                       .counts = {6, 6},
                       .ids = ids};
  size_t bytes = 0;
  for (uint32_t i = 0; i < ticket.ranks; i++) {
    ticket.rank[i].rank = i;
    ticket.rank[i].address.port = (uint16_t)(4000 + i);
    ticket.rank[i].other = (kvf_address){.ip = {[10] = 0xff, [11] = 0xff}, .port = (uint16_t)(i * 5001)};
    ticket.rank[i].layers = (kvf_layers){8 * i, 8};
    ticket.rank[i].dealt = 1;
  }
  fuzz_check(kvf_ticket_encode(&ticket, macs(), text, KVF_TICKET_BYTES_MAX, &bytes) == KVF_OK);
  return bytes;
}

/* Any change of any bytes of a good text. */
static void take_damaged(uint32_t version, fuzz_tape *tape)
{
  char text[1024];
  char good[1024];
  size_t bytes = some_text(version, text);
  memcpy(good, text, bytes);
  for (unsigned i = 0; i < 8 && !fuzz_is_over(tape); i++) {
    size_t at = fuzz_u16(tape) % bytes;
    text[at] = (char)(text[at] ^ fuzz_u8(tape));
  }
  size_t cut = fuzz_u8(tape);
  bool changed = memcmp(text, good, bytes) != 0 || cut > 0;
  fuzz_check(take(text, bytes - (cut < bytes ? cut : bytes)) != changed);
}

static void take_base64(const char *text, size_t bytes)
{
  uint8_t *data = malloc(kvf_base64url_data_bytes(bytes) + 1);
  fuzz_check(data != NULL && bytes < sizeof(again));
  if (kvf_base64url_decode(text, bytes, data)) {
    size_t data_bytes = kvf_base64url_data_bytes(bytes);
    fuzz_check(kvf_base64url_text_bytes(data_bytes) == bytes);
    kvf_base64url_encode(data, data_bytes, again);
    fuzz_check(memcmp(again, text, bytes) == 0);
  }
  free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  if (bytes == 0 || bytes > KVF_TICKET_BYTES_MAX) {
    return 0;
  }
  fuzz_tape rest = {.data = data + 1, .bytes = bytes - 1};
  const uint32_t version = KVF_TICKET_VERSION_MAX - data[0] / KINDS % 2;
  switch (data[0] % KINDS) {
    case 0:
      (void)take((const char *)rest.data, rest.bytes);
      break;
    case 1:
      take_sealed(version, rest.data, rest.bytes, &keys[0]);
      break;
    case 2:
      take_sealed(version, rest.data, rest.bytes, &keys[1]);
      break;
    case 3:
      take_damaged(version, &rest);
      break;
    default:
      take_base64((const char *)rest.data, rest.bytes);
      break;
  }
  return 0;
}

bool fuzz_seed(unsigned i, fuzz_seed_out *out)
{
  static char text[KVF_TICKET_BYTES_MAX];
  uint8_t payload[1024];
  const unsigned kind = i % KINDS;
  const uint32_t version = KVF_TICKET_VERSION_MAX - i / KINDS;
  if (i >= 2 * KINDS) {
    return false;
  }
  size_t bytes = some_text(version, text);
  const size_t before = version == 4 ? 5 : 17;
  const size_t inside = bytes - before - SUFFIX_BYTES;
  fuzz_put_u8(out, i);
  if (kind == 0 || kind == 4) {
    fuzz_put(out, text + (kind == 4 ? before : 0), kind == 4 ? inside : bytes);
  } else if (kind == 3) {
    fuzz_put(out, "\x20\x00\x01", 3);
  } else {
    fuzz_check(kvf_base64url_decode(text + before, inside, payload));
    fuzz_put(out, payload, kvf_base64url_data_bytes(inside));
  }
  return true;
}
