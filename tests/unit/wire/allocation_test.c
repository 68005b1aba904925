/* The two decoders that allocate, with every allocation counted and made to fail in turn. */
#include "../../allocation.h"
#include "ticket_tool.h"
#include "wire/handshake_message.h"
#include "wire/sources.h"

static char text[KVF_TICKET_BYTES_MAX];

TEST(test_ticket_fails_cleanly)
{
  allocation_fail(0, 0);
  size_t bytes = some_text(&usual_key, text);
  assert_int_equal(allocation_count(), 0);
  for (long fail = 1; fail <= 3; fail++) {
    kvf_ticket out = {.ranks = 77};
    allocation_fail(fail - 1, 1);
    kvf_status status = kvf_ticket_decode(text, bytes, mac_of(&usual_key), 1, &out);
    assert_int_equal(status, fail <= 2 ? KVF_NO_MEMORY : KVF_OK);
    assert_int_equal(out.ranks, fail <= 2 ? 77 : 2);
    if (status == KVF_OK) {
      kvf_ticket_free(&out);
    }
  }
}

TEST(test_sources_fail_cleanly)
{
  kvf_ticket ticket = some_ticket();
  size_t bytes = 0;
  size_t more = 0;
  allocation_fail(0, 0);
  assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&usual_key), text, sizeof(text), &bytes), KVF_OK);
  text[bytes++] = ',';
  assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&usual_key), text + bytes, sizeof(text) - bytes, &more), KVF_OK);
  for (long fail = 1; fail <= 7; fail++) {
    kvf_sources out = {.count = 77};
    allocation_fail(fail - 1, 1);
    kvf_status status = kvf_sources_decode(text, bytes + more, mac_of(&usual_key), 1, &out);
    assert_int_equal(status, fail <= 6 ? KVF_NO_MEMORY : KVF_OK);
    assert_int_equal(out.count, fail <= 6 ? 77 : 2);
    if (status == KVF_OK) {
      kvf_sources_free(&out);
    }
  }
}

TEST(test_strangers_allocate_nothing)
{
  kvf_ticket ticket = some_ticket();
  kvf_ticket out;
  kvf_key other = key_of("other");
  size_t bytes = 0;
  assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&other), text, sizeof(text), &bytes), KVF_OK);
  allocation_fail(0, 0);
  assert_int_equal(kvf_ticket_decode(text, bytes, mac_of(&usual_key), 1, &out), KVF_OTHER_KEY);
  bytes = seal((const uint8_t *)"any", 3, &usual_key, text);
  text[bytes - 1] = (char)(text[bytes - 1] ^ 4); /* altered */
  assert_int_equal(kvf_ticket_decode(text, bytes, mac_of(&usual_key), 1, &out), KVF_BAD_TICKET);
  assert_int_equal(allocation_count(), 0);
}

/* Some bytes that claim 2^32 blocks: no more is allocated than a ticket within the limits could need. */
TEST(test_ticket_bombs)
{
  static uint8_t payload[1000];
  kvf_ticket out;
  size_t bytes = some_text(&usual_key, text);
  size_t payload_bytes = unseal(text, bytes, payload);
  static const struct {
    uint32_t tokens;
    uint32_t block_tokens;
    uint32_t count;
  } rows[] = {{UINT32_MAX, 1, UINT32_MAX}, {UINT32_MAX, 2, 1u << 31}, {65536, 1, 65536}, {90, 16, UINT32_MAX}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    memcpy(payload + AT_TOKENS, &rows[i].tokens, 4);
    memcpy(payload + AT_BLOCK_TOKENS, &rows[i].block_tokens, 4);
    memcpy(payload + AT_GROUP_TOKENS, &rows[i].count, 4);
    memcpy(payload + AT_GROUP_TOKENS + 4, &rows[i].count, 4);
    bytes = seal(payload, payload_bytes, &usual_key, text);
    allocation_fail(0, 0);
    assert_int_equal(kvf_ticket_decode(text, bytes, mac_of(&usual_key), 1, &out), KVF_BAD_TICKET);
    assert_true(allocation_largest_bytes() <= KVF_BLOCKS_PER_LEASE_MAX * sizeof(uint32_t));
    assert_int_equal(allocation_count(), 1);
  }
}

TEST(test_welcome_fails_cleanly)
{
  kvf_region_layout region = {.stride_bytes = 64, .block_bytes = 64, .blocks = 9, .heads = 1, .heads_total = 1};
  kvf_part part = {
      .unit_bytes = 4, .row_bytes = 4, .head_bytes = 64, .rows = 16, .block_tokens = 16, .heads = 1, .heads_total = 1};
  kvf_welcome welcome = {.ranks = 1,
                         .block_tokens = 16,
                         .regions_count = 1,
                         .regions = &region,
                         .layout = {.parts = &part, .parts_count = 1, .share = {.heads = 1, .heads_total = 1}},
                         .transports_count = 2,
                         .transports = {{.name = "local", .description = (uint8_t *)text, .description_bytes = 3},
                                        {.name = "tcp", .description = (uint8_t *)text, .description_bytes = 4}}};
  uint8_t body[300];
  size_t bytes = 0;
  allocation_fail(0, 0);
  assert_int_equal(kvf_welcome_encode(&welcome, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(allocation_count(), 0);
  for (long fail = 1; fail <= 5; fail++) {
    kvf_welcome out = {.rank = 77};
    allocation_fail(fail - 1, 1);
    kvf_status status = kvf_welcome_decode(body, bytes, &out);
    assert_int_equal(status, fail <= 4 ? KVF_NO_MEMORY : KVF_OK);
    assert_int_equal(out.regions != NULL, fail > 4); /* nothing is left to be freed */
    if (status == KVF_OK) {
      kvf_welcome_free(&out);
    }
  }
}

/* One region, said to be there KVF_REGIONS_MAX times, then once more: a short body must not make a long array. */
TEST(test_welcome_bomb)
{
  kvf_region_layout region = {.stride_bytes = 64, .block_bytes = 64, .blocks = 9, .heads = 1, .heads_total = 1};
  kvf_welcome welcome = {.ranks = 1, .block_tokens = 16, .regions_count = 1, .regions = &region};
  for (uint16_t over = 0; over < 2; over++) {
    uint8_t body[100];
    size_t bytes = 0;
    uint16_t count = (uint16_t)(KVF_REGIONS_MAX + over);
    kvf_welcome out;
    assert_int_equal(kvf_welcome_encode(&welcome, body, sizeof(body), &bytes), KVF_OK);
    memcpy(body + 28, &count, sizeof(count));
    memcpy(body + 30, &count, sizeof(count));
    allocation_fail(0, 0);
    assert_int_equal(kvf_welcome_decode(body, bytes, &out), over == 0 ? KVF_OK : KVF_PROTOCOL);
    assert_int_equal(allocation_count(), over == 0 ? 1 : 0);
    if (over == 0) {
      kvf_welcome_free(&out);
    }
  }
}
