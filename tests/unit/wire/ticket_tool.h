/* Tickets for tests: good ones, and payloads that only a holder of the key could have sealed. */
#ifndef KVF_TESTS_TICKET_TOOL_H
#define KVF_TESTS_TICKET_TOOL_H

#include "wire/base64url.h"
#include "wire/ticket.h"
#include "wire_test.h"

static inline kvf_key key_of(const char *text)
{
  kvf_key key = {.bytes = strlen(text)};
  memcpy(key.data, text, key.bytes);
  return key;
}

static const kvf_key usual_key = {"key", 3};

/* The MAC of a key, which stays for the next tests. */
static inline const kvf_mac *mac_of(const kvf_key *key)
{
  static struct {
    kvf_key key;
    kvf_mac mac;
  } made[16];
  size_t i = 0;
  while (made[i].mac.keyed != NULL &&
         (made[i].key.bytes != key->bytes || memcmp(made[i].key.data, key->data, key->bytes) != 0)) {
    i++;
    assert_true(i < sizeof(made) / sizeof(made[0]));
  }
  if (made[i].mac.keyed == NULL) {
    made[i].key = *key;
    assert_int_equal(kvf_mac_init(&made[i].mac, key), KVF_OK);
  }
  return &made[i].mac;
}

/* Two ranks, the second of two addresses, two fields, two groups of six positions; all have the same ids. */
static inline kvf_ticket some_ticket(void)
{
  static uint32_t ids[] = {7, 8, 9, 3, 100000, 100001, KVF_BLOCK_NONE, KVF_BLOCK_NONE, KVF_BLOCK_NONE, 20, 21, 22};
  kvf_ticket ticket = {.version = KVF_TICKET_VERSION_MAX,
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
  for (uint32_t i = 0; i < ticket.ranks; i++) {
    ticket.rank[i].rank = i;
    ticket.rank[i].address.port = (uint16_t)(4000 + i);
    ticket.rank[i].layers = (kvf_layers){8 * i, 8};
    ticket.rank[i].dealt = 2;
    fill(ticket.rank[i].address.ip, sizeof(ticket.rank[i].address.ip), (uint8_t)(10 + i));
    fill(&ticket.rank[i].incarnation, sizeof(ticket.rank[i].incarnation), (uint8_t)(20 + i));
  }
  ticket.rank[1].other = (kvf_address){.ip = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 7}, .port = 5001};
  fill(ticket.lease.token, sizeof(ticket.lease.token), 30);
  fill(ticket.prompt.hash, sizeof(ticket.prompt.hash), 40);
  fill(ticket.prompt.model, sizeof(ticket.prompt.model), 45);
  fill(ticket.compat, sizeof(ticket.compat), 50);
  return ticket;
}

#define TICKET_BEFORE 17 /* characters before the payload: "kvf5.", the key's id, a dot */

/* Puts a dot and the MAC after the first `at` characters; returns the text's length. */
static inline size_t seal_text(char *text, size_t at, const kvf_key *key)
{
  uint8_t mac[KVF_HASH_BYTES];
  const kvf_span spans[] = {{"kvferry ticket", 14}, {text, at}};
  assert_int_equal(kvf_hmac(key, spans, 2, mac), KVF_OK);
  text[at] = '.';
  kvf_base64url_encode(mac, sizeof(mac), text + at + 1);
  return at + 1 + kvf_base64url_text_bytes(sizeof(mac));
}

/* A text with a good MAC around any payload; returns its length. */
static inline size_t seal(const uint8_t *payload, size_t bytes, const kvf_key *key, char *text)
{
  uint8_t id[KVF_HASH_BYTES];
  const kvf_span label = {"kvferry key id", 14};
  assert_int_equal(kvf_hmac(key, &label, 1, id), KVF_OK);
  put(text, "kvf5.", 5);
  kvf_base64url_encode(id, 8, text + 5);
  text[TICKET_BEFORE - 1] = '.';
  kvf_base64url_encode(payload, bytes, text + TICKET_BEFORE);
  return seal_text(text, TICKET_BEFORE + kvf_base64url_text_bytes(bytes), key);
}

/* The payload of a text; returns its length. */
static inline size_t unseal(const char *text, size_t text_bytes, uint8_t *payload)
{
  size_t bytes = text_bytes - TICKET_BEFORE - 44;
  assert_true(kvf_base64url_decode(text + TICKET_BEFORE, bytes, payload));
  return kvf_base64url_data_bytes(bytes);
}

/* Where fields of some_ticket() are in its payload. */
enum {
  AT_RANKS = 0,
  AT_ADDRESSES_0 = 1,
  AT_ADDRESSES_1 = 1 + KVF_RANK_FIELD_BYTES,
  AT_PORT_1 = AT_ADDRESSES_1 + 1 + 16,
  AT_OTHER_1 = AT_PORT_1 + 2,
  AT_LAYERS_1 = AT_OTHER_1 + 18 + 16,
  AT_DEALT_1 = AT_LAYERS_1 + 8,
  AT_LEASE = AT_DEALT_1 + 1,
  AT_TOKENS = AT_LEASE + 28 + 32 + 32,
  AT_BLOCK_TOKENS = AT_TOKENS + 4,
  AT_TTL = AT_BLOCK_TOKENS + 4,
  AT_FIELDS = AT_TTL + 4 + 32,
  AT_GROUPS = AT_FIELDS + 1 + 2 * 4,
  AT_GROUP_TOKENS = AT_GROUPS + 1,
  AT_RUNS = AT_GROUP_TOKENS + 8
};

/* The text of some_ticket(), of at most KVF_TICKET_BYTES_MAX. */
static inline size_t some_text(const kvf_key *key, char *text)
{
  const kvf_ticket ticket = some_ticket();
  size_t bytes = 0;
  assert_int_equal(kvf_ticket_encode(&ticket, mac_of(key), text, KVF_TICKET_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

#endif
