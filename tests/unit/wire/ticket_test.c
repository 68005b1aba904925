/* Tickets there and back, each bit and each length that is wrong, keys, versions and limits. */
#include "wire/ticket.h"

#include "ticket_tool.h"
#include "wire/block_runs.h"

static char text[KVF_TICKET_BYTES_MAX + 1];
static uint8_t payload[KVF_TICKET_BYTES_MAX];

/* Decodes from the heap with no byte to spare, and throws the ticket away. */
static kvf_status decode(const char *from, size_t bytes, const kvf_key *keys, size_t keys_count)
{
  char *copy = exact_copy(from, bytes);
  kvf_ticket ticket;
  kvf_ticket before;
  memset(&ticket, 0x5a, sizeof(ticket));
  memcpy(&before, &ticket, sizeof(ticket));
  kvf_mac macs[KVF_KEYS_MAX];
  for (size_t i = 0; i < keys_count; i++) {
    macs[i] = *mac_of(&keys[i]);
  }
  kvf_status status = kvf_ticket_decode(copy, bytes, macs, keys_count, &ticket);
  if (status == KVF_OK) {
    kvf_ticket_free(&ticket);
    kvf_ticket_free(&ticket);
  } else {
    assert_memory_equal(&ticket, &before, sizeof(ticket));
  }
  free(copy);
  return status;
}

static void check_equal(const kvf_ticket *a, const kvf_ticket *b)
{
  size_t ids = 0;
  assert_int_equal(a->version, b->version);
  assert_int_equal(a->ranks, b->ranks);
  for (uint32_t i = 0; i < a->ranks; i++) {
    assert_int_equal(a->rank[i].rank, i);
    assert_memory_equal(&a->rank[i].address, &b->rank[i].address, sizeof(kvf_address));
    assert_memory_equal(&a->rank[i].other, &b->rank[i].other, sizeof(kvf_address));
    assert_memory_equal(&a->rank[i].incarnation, &b->rank[i].incarnation, sizeof(kvf_incarnation));
    assert_memory_equal(&a->rank[i].layers, &b->rank[i].layers, sizeof(kvf_layers));
    assert_int_equal(a->rank[i].dealt, b->rank[i].dealt);
  }
  assert_memory_equal(&a->lease, &b->lease, sizeof(kvf_lease));
  assert_memory_equal(a->prompt.hash, b->prompt.hash, sizeof(a->prompt.hash));
  assert_memory_equal(a->prompt.model, b->prompt.model, sizeof(a->prompt.model));
  assert_int_equal(a->prompt.tokens, b->prompt.tokens);
  assert_int_equal(a->block_tokens, b->block_tokens);
  assert_int_equal(a->ttl_ms, b->ttl_ms);
  assert_memory_equal(a->compat, b->compat, sizeof(a->compat));
  assert_int_equal(a->fields, b->fields);
  for (uint32_t i = 0; i < a->fields; i++) {
    assert_int_equal(a->field[i].name, b->field[i].name);
    assert_int_equal(a->field[i].value, b->field[i].value);
  }
  assert_int_equal(a->groups, b->groups);
  for (uint32_t group = 0; group < a->groups; group++) {
    assert_int_equal(a->group_tokens[group], b->group_tokens[group]);
    assert_int_equal(a->counts[group], b->counts[group]);
    ids += a->counts[group];
  }
  if (ids > 0) {
    assert_memory_equal(a->ids, b->ids, ids * sizeof(a->ids[0]));
  }
}

/* Returns the text's length. */
static size_t round_trip(const kvf_ticket *ticket)
{
  kvf_ticket back;
  size_t bytes = 0;
  assert_int_equal(kvf_ticket_encode(ticket, mac_of(&usual_key), text, sizeof(text), &bytes), KVF_OK);
  assert_int_equal(kvf_ticket_decode(text, bytes, mac_of(&usual_key), 1, &back), KVF_OK);
  check_equal(&back, ticket);
  kvf_ticket_free(&back);
  return bytes;
}

TEST(test_round_trip)
{
  kvf_ticket ticket = some_ticket();
  size_t bytes = round_trip(&ticket);
  assert_memory_equal(text, "kvf5.", 5);
  for (size_t i = 0; i < bytes; i++) {
    assert_true(text[i] > ' ' && text[i] <= 'z' && text[i] != '"' && text[i] != '\\');
  }
  assert_true(bytes < 450);
}

TEST(test_no_blocks)
{
  kvf_ticket ticket = some_ticket();
  ticket.prompt.tokens = 0;
  ticket.counts[0] = 0;
  ticket.counts[1] = 0;
  ticket.ids = NULL;
  (void)round_trip(&ticket);
}

/* From none to all, and any two bytes: these lists hold nothing that could be wrong but their length. */
TEST(test_fields)
{
  kvf_ticket ticket = some_ticket();
  ticket.fields = 0;
  const size_t without = round_trip(&ticket);
  for (uint32_t i = 0; i < KVF_IDENTITY_FIELDS_MAX; i++) {
    ticket.field[i] = (kvf_ticket_field){.name = (uint16_t)(0xff00 + i / 2), .value = (uint16_t)(i * 0x0801)};
    ticket.fields = i + 1;
    const size_t more = kvf_base64url_text_bytes((size_t)4 * ticket.fields);
    assert_in_range(round_trip(&ticket), without + more - 1, without + more + 1);
  }
}

TEST(test_capacity)
{
  kvf_ticket ticket = some_ticket();
  size_t bytes = 0;
  assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&usual_key), text, sizeof(text), &bytes), KVF_OK);
  for (size_t capacity = 0; capacity <= bytes; capacity++) {
    char *room = exact_room(capacity);
    size_t written = 77;
    kvf_status status = kvf_ticket_encode(&ticket, mac_of(&usual_key), room, capacity, &written);
    assert_int_equal(status, capacity == bytes ? KVF_OK : KVF_LIMIT);
    assert_int_equal(written, capacity == bytes ? bytes : 77);
    if (status == KVF_OK) {
      assert_memory_equal(room, text, bytes);
    }
    free(room);
  }
}

TEST(test_every_length_but_the_right_one)
{
  size_t bytes = some_text(&usual_key, text);
  text[bytes] = 'A';
  for (size_t cut = 0; cut <= bytes + 1; cut++) {
    assert_int_equal(decode(text, cut, &usual_key, 1), cut == bytes ? KVF_OK : KVF_BAD_TICKET);
  }
}

/* What a text is called of which one character is another now. */
static kvf_status expected_of(size_t at, char now, const char *before)
{
  if (at == 3) {
    return now >= '1' && now <= '9' && now != '4' ? KVF_INCOMPATIBLE : KVF_BAD_TICKET;
  }
  if (at >= 5 && at < TICKET_BEFORE - 1) {
    uint8_t id[8];
    char copy[11];
    memcpy(copy, before + 5, sizeof(copy));
    copy[at - 5] = now;
    return kvf_base64url_decode(copy, sizeof(copy), id) ? KVF_OTHER_KEY : KVF_BAD_TICKET;
  }
  return KVF_BAD_TICKET;
}

static void check_every_bit(const kvf_key *key)
{
  size_t bytes = some_text(key, text);
  for (size_t bit = 0; bit < bytes * 8; bit++) {
    text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
    assert_int_equal(decode(text, bytes, key, 1), expected_of(bit / 8, text[bit / 8], text));
    text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
  }
  assert_int_equal(decode(text, bytes, key, 1), KVF_OK);
}

TEST(test_every_bit_flip_is_refused)
{
  kvf_key none = {.bytes = 0};
  check_every_bit(&usual_key);
  check_every_bit(&none);
}

TEST(test_keys)
{
  kvf_ticket ticket = some_ticket();
  kvf_key old = key_of("old");
  kvf_key none = {.bytes = 0};
  kvf_key keys[2] = {key_of("new"), old};
  size_t bytes = 0;
  for (ticket.version = KVF_TICKET_VERSION_MIN; ticket.version <= KVF_TICKET_VERSION_MAX; ticket.version++) {
    const kvf_status other = ticket.version == 4 ? KVF_BAD_TICKET : KVF_OTHER_KEY; /* version 4 does not tell */
    keys[0] = key_of("new");
    keys[1] = old;
    assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&old), text, sizeof(text), &bytes), KVF_OK);
    assert_int_equal(decode(text, bytes, keys, 1), other);
    assert_int_equal(decode(text, bytes, keys, 2), KVF_OK);
    assert_int_equal(decode(text, bytes, keys, 0), other);
    assert_int_equal(decode(text, bytes, &none, 1), other);
    text[bytes - 1] = (char)(text[bytes - 1] ^ 4);
    assert_int_equal(decode(text, bytes, keys, 2), KVF_BAD_TICKET);

    /* A ticket without a key is good only where there is none at all. */
    assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&none), text, sizeof(text), &bytes), KVF_OK);
    assert_int_equal(decode(text, bytes, &none, 1), KVF_OK);
    assert_int_equal(decode(text, bytes, keys, 2), other);
    keys[1] = none;
    assert_int_equal(decode(text, bytes, keys, 2), other);
    keys[0] = none;
    assert_int_equal(decode(text, bytes, keys, 2), KVF_OK);
  }
}

/* With the id of a key that is ours, and another key's MAC: that is no other key's ticket, but a forged one. */
TEST(test_another_keys_id)
{
  kvf_key other = key_of("other");
  size_t bytes = some_text(&usual_key, text);
  assert_int_equal(seal_text(text, bytes - 44, &other), bytes);
  assert_int_equal(decode(text, bytes, &usual_key, 1), KVF_BAD_TICKET);
  kvf_key both[2] = {usual_key, other};
  assert_int_equal(decode(text, bytes, both, 2), KVF_BAD_TICKET);
}

/* As the release before wrote it: one address a rank, and no key's id. */
TEST(test_version_4)
{
  static const char before[] =
      "kvf4.AgsSGSAnLjU8Q0pRWF9mbXSgDxUcIyoxOD9GTVRbYmlwd34AAAAACAAAAAIMExohKC82PURLUllgZ251oQ8WHSQrMjlAR05"
      "VXGNqcXh_CAAAAAgAAAACCAcGBQQDAgEJAAAAHyYtNDtCSVBXXmVsc3qBiCkwNz5FTFNaYWhvdn2Ei5KZoKeutbzDytHY3-bt9Ps"
      "DLjU8Q0pRWF9mbXR7gomQl56lrLO6wcjP1t3k6_L5AQhaAAAAEAAAADB1AAAzOkFIT1ZdZGtyeYCHjpWco6qxuL_GzdTb4unw9_4"
      "GDQI0EnhW__8AAAIQAAAAEAAAADkBNOHpMAAKoQEB.6P7Xocf7FJXa5u2SSIfabUJpOO0fLtzotR7qaY0c0Xo";
  kvf_ticket ticket = some_ticket();
  kvf_ticket back;
  size_t bytes = 0;
  assert_int_equal(kvf_ticket_decode(before, sizeof(before) - 1, mac_of(&usual_key), 1, &back), KVF_OK);
  ticket.version = 4;
  assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&usual_key), text, sizeof(text), &bytes), KVF_OK);
  assert_int_equal(bytes, sizeof(before) - 1);
  assert_memory_equal(text, before, bytes);
  ticket.rank[1].other = (kvf_address){.port = 0};
  check_equal(&back, &ticket);
  kvf_ticket_free(&back);
  for (size_t cut = 0; cut < bytes; cut++) {
    assert_int_equal(decode(before, cut, &usual_key, 1), KVF_BAD_TICKET);
  }
  for (size_t bit = (size_t)4 * 8; bit < bytes * 8; bit++) {
    text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
    assert_int_equal(decode(text, bytes, &usual_key, 1), KVF_BAD_TICKET);
    text[bit / 8] = (char)(text[bit / 8] ^ (1 << bit % 8));
  }
}

TEST(test_one_text_per_ticket)
{
  kvf_ticket ticket = some_ticket();
  size_t bytes = 0;
  assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&usual_key), text, sizeof(text), &bytes), KVF_OK);
  size_t payload_bytes = unseal(text, bytes, payload);
  assert_int_equal(seal(payload, payload_bytes, &usual_key, text), bytes);
  assert_int_equal(decode(text, bytes, &usual_key, 1), KVF_OK);
  /* A trailing bit in the payload's last character, sealed by a holder of the key. */
  for (size_t more = 1; more <= 2; more++) {
    memset(payload + payload_bytes, 0, more);
    kvf_base64url_encode(payload, payload_bytes + more, text + TICKET_BEFORE);
    char *last = text + TICKET_BEFORE + kvf_base64url_text_bytes(payload_bytes + more);
    last[-1] = (char)(last[-1] + 1);
    assert_int_equal(decode(text, seal_text(text, (size_t)(last - text), &usual_key), &usual_key, 1), KVF_BAD_TICKET);
  }
}

TEST(test_groups_with_other_blocks)
{
  kvf_ticket ticket = some_ticket();
  ticket.group_tokens[1] = 0;
  ticket.counts[1] = 1;
  (void)round_trip(&ticket);
  ticket.block_tokens = 32;
  ticket.group_tokens[1] = 32;
  ticket.counts[1] = 3;
  (void)round_trip(&ticket);
}

static kvf_status encode_status(const kvf_ticket *ticket)
{
  size_t bytes = 77;
  kvf_status status = kvf_ticket_encode(ticket, mac_of(&usual_key), text, sizeof(text), &bytes);
  if (status != KVF_OK) {
    assert_int_equal(bytes, 77);
  }
  return status;
}

TEST(test_encoding_refuses)
{
  static kvf_ticket bad[18];
  static kvf_ticket beyond[3];
  const size_t count = sizeof(bad) / sizeof(bad[0]);
  for (size_t i = 0; i < count; i++) {
    bad[i] = some_ticket();
    beyond[i % 3] = some_ticket();
  }
  assert_int_equal(encode_status(&bad[0]), KVF_OK);
  bad[0].version = KVF_TICKET_VERSION_MIN - 1;
  bad[1].version = KVF_TICKET_VERSION_MAX + 1;
  bad[2].ranks = 0;
  bad[3].rank[1].rank = 0; /* twice, and rank 1 not at all */
  bad[4].rank[1].address.port = 0;
  bad[5].rank[0].other = (kvf_address){.port = 4002}; /* two of one family */
  bad[6].rank[1].layers = (kvf_layers){KVF_LAYERS_MAX, 1};
  bad[7].rank[1].dealt = 1; /* rank 0 says 2 */
  bad[8].lease.id = KVF_LEASE_ID_MAX + 1;
  bad[9].block_tokens = 0;
  bad[10].ttl_ms = 0;
  bad[11].groups = 0;
  bad[12].counts[1] = 5;
  bad[13].group_tokens[1] = 15;
  bad[14].group_tokens[1] = 32;
  bad[14].counts[1] = 3;
  bad[15].prompt.tokens = 97;
  bad[16].prompt.tokens = 80;
  bad[17].groups = 1;
  bad[17].group_tokens[0] = 0; /* a state alone: one position */
  bad[17].counts[0] = 1;
  bad[17].prompt.tokens = bad[17].block_tokens = 1 << 24;
  assert_int_equal(encode_status(&bad[17]), KVF_OK);
  bad[17].prompt.tokens++;
  for (size_t i = 0; i < count; i++) {
    if (encode_status(&bad[i]) != KVF_INVALID) {
      fail_msg("ticket %zu was taken", i);
    }
  }
  beyond[0].ranks = KVF_RANKS_MAX + 1;
  beyond[1].fields = KVF_IDENTITY_FIELDS_MAX + 1;
  beyond[2].groups = KVF_GROUPS_MAX + 1;
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(encode_status(&beyond[i]), KVF_LIMIT);
  }
  kvf_ticket good = some_ticket();
  good.prompt.tokens = 96;
  assert_int_equal(encode_status(&good), KVF_OK);
}

TEST(test_sealed_payloads_are_checked)
{
  static const struct {
    size_t at;
    uint8_t bytes[4];
    size_t count;
  } rows[] = {{AT_RANKS, {0}, 1},
              {AT_RANKS, {1}, 1},
              {AT_RANKS, {3}, 1},
              {AT_RANKS, {65}, 1},
              {AT_RANKS, {255}, 1},
              {AT_ADDRESSES_0, {0}, 1},
              {AT_ADDRESSES_1, {0}, 1},
              {AT_ADDRESSES_1, {1}, 1},
              {AT_ADDRESSES_1, {3}, 1},
              {AT_ADDRESSES_1, {255}, 1},
              {AT_PORT_1, {0, 0}, 2},
              {AT_OTHER_1, {1}, 1},         /* two IPv6 ones */
              {AT_OTHER_1 + 16, {0, 0}, 2}, /* one has another form */
              {AT_LAYERS_1 + 1, {0, 1}, 2}, /* from 65544 on */
              {AT_LAYERS_1 + 4, {0}, 1},    /* none, but not from 0 on */
              {AT_LAYERS_1 + 4, {0xf9, 0xff}, 2},
              {AT_LAYERS_1 + 4, {0xff, 0xff, 0xff, 0xff}, 4},
              {AT_DEALT_1, {0}, 1},
              {AT_DEALT_1, {3}, 1}, /* rank 0 says 2 */
              {AT_DEALT_1, {KVF_RANKS_MAX + 1}, 1},
              {AT_LEASE + 7, {0x41}, 1},
              {AT_TOKENS, {97}, 1},
              {AT_TOKENS, {80}, 1},
              {AT_TOKENS, {0xff, 0xff, 0xff, 0xff}, 4},
              {AT_BLOCK_TOKENS, {0}, 1},
              {AT_BLOCK_TOKENS, {14}, 1},
              {AT_TTL, {0, 0, 0, 0}, 4},
              {AT_FIELDS, {0}, 1},
              {AT_FIELDS, {1}, 1},
              {AT_FIELDS, {3}, 1},
              {AT_FIELDS, {KVF_IDENTITY_FIELDS_MAX}, 1},
              {AT_FIELDS, {KVF_IDENTITY_FIELDS_MAX + 1}, 1},
              {AT_FIELDS, {255}, 1},
              {AT_GROUPS, {0}, 1},
              {AT_GROUPS, {1}, 1},
              {AT_GROUPS, {3}, 1},
              {AT_GROUPS, {17}, 1},
              {AT_GROUPS, {255}, 1},
              {AT_GROUP_TOKENS, {15}, 1}, /* of which 16 is not a multiple */
              {AT_GROUP_TOKENS, {8}, 1},
              {AT_GROUP_TOKENS + 4, {0}, 1},
              {AT_GROUP_TOKENS + 4, {0xff, 0xff, 0xff, 0xff}, 4},
              {AT_RUNS, {3}, 1},
              {AT_RUNS + 1, {4}, 1}};
  size_t bytes = some_text(&usual_key, text);
  size_t payload_bytes = unseal(text, bytes, payload);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    uint8_t saved[4];
    memcpy(saved, payload + rows[i].at, rows[i].count);
    memcpy(payload + rows[i].at, rows[i].bytes, rows[i].count);
    if (decode(text, seal(payload, payload_bytes, &usual_key, text), &usual_key, 1) != KVF_BAD_TICKET) {
      fail_msg("row %zu was taken", i);
    }
    memcpy(payload + rows[i].at, saved, rows[i].count);
  }
  for (size_t cut = 0; cut <= payload_bytes + 1; cut++) {
    payload[payload_bytes] = 0;
    kvf_status status = decode(text, seal(payload, cut, &usual_key, text), &usual_key, 1);
    assert_int_equal(status, cut == payload_bytes ? KVF_OK : KVF_BAD_TICKET);
  }
}

/* What decoding must refuse although the MAC is good and every byte is there: one field too many. */
TEST(test_fields_limit_when_decoding)
{
  for (size_t over = 0; over < 2; over++) {
    kvf_ticket ticket = some_ticket();
    ticket.fields = KVF_IDENTITY_FIELDS_MAX;
    size_t bytes = 0;
    assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&usual_key), text, sizeof(text), &bytes), KVF_OK);
    bytes = unseal(text, bytes, payload);
    const size_t at = AT_FIELDS + 1 + (size_t)4 * KVF_IDENTITY_FIELDS_MAX;
    memmove(payload + at + 4 * over, payload + at, bytes - at);
    payload[AT_FIELDS] = (uint8_t)(KVF_IDENTITY_FIELDS_MAX + over);
    kvf_status status = decode(text, seal(payload, bytes + 4 * over, &usual_key, text), &usual_key, 1);
    assert_int_equal(status, over ? KVF_BAD_TICKET : KVF_OK);
  }
}

/* One group of `blocks` blocks, all in one run. */
static void check_blocks(uint32_t groups, uint32_t blocks, kvf_status status)
{
  uint32_t total = groups * blocks;
  uint32_t *ids = allocate(total * sizeof(ids[0]));
  kvf_ticket ticket = some_ticket();
  ticket.prompt.tokens = blocks;
  ticket.block_tokens = 1;
  ticket.groups = groups;
  ticket.ids = ids;
  for (uint32_t group = 0; group < groups; group++) {
    ticket.group_tokens[group] = 1;
    ticket.counts[group] = blocks;
  }
  for (uint32_t i = 0; i < total; i++) {
    ids[i] = i;
  }
  assert_int_equal(encode_status(&ticket), status);
  if (status == KVF_OK) {
    (void)round_trip(&ticket);
  }
  free(ids);
}

TEST(test_limits)
{
  check_blocks(1, KVF_BLOCKS_PER_LEASE_MAX, KVF_OK);
  check_blocks(1, KVF_BLOCKS_PER_LEASE_MAX + 1, KVF_LIMIT);
  check_blocks(16, KVF_BLOCKS_PER_LEASE_MAX / 16, KVF_OK);
  check_blocks(16, KVF_BLOCKS_PER_LEASE_MAX / 16 + 1, KVF_LIMIT);

  kvf_ticket ticket = some_ticket();
  ticket.ranks = KVF_RANKS_MAX;
  for (uint32_t i = 0; i < KVF_RANKS_MAX; i++) {
    ticket.rank[i] = ticket.rank[1];
    ticket.rank[i].rank = i;
  }
  (void)round_trip(&ticket);
}

/* What decoding must refuse although the MAC is good: one block too many, in one short run. */
TEST(test_blocks_limit_when_decoding)
{
  for (uint32_t over = 0; over < 2; over++) {
    uint32_t blocks = KVF_BLOCKS_PER_LEASE_MAX + over;
    kvf_ticket ticket = some_ticket();
    ticket.groups = 1;
    size_t bytes = 0;
    assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&usual_key), text, sizeof(text), &bytes), KVF_OK);
    (void)unseal(text, bytes, payload);
    memcpy(payload + AT_TOKENS, &blocks, 4);
    memset(payload + AT_BLOCK_TOKENS, 0, 4);
    payload[AT_BLOCK_TOKENS] = 1;
    memcpy(payload + AT_GROUP_TOKENS, payload + AT_BLOCK_TOKENS, 4);
    /* From here as varints: "none", blocks - 1 more of them. */
    size_t at = AT_GROUP_TOKENS + 4;
    uint32_t run = (blocks - 1) << 2 | 2;
    payload[at++] = (uint8_t)(run | 0x80);
    payload[at++] = (uint8_t)(run >> 7 | 0x80);
    payload[at++] = (uint8_t)(run >> 14);
    kvf_status status = decode(text, seal(payload, at, &usual_key, text), &usual_key, 1);
    assert_int_equal(status, over ? KVF_BAD_TICKET : KVF_OK);
  }
}

/* Ids that make a payload of exactly `bytes` bytes, with one group of one-token blocks. Returns how many. */
static uint32_t fill_ids(uint32_t *ids, size_t bytes)
{
  uint32_t count = 0;
  uint32_t last = 0;
  for (size_t at = AT_GROUP_TOKENS + 4; at < bytes;) {
    bool far = bytes - at >= 3;
    last = !far ? last + 2 : count % 2 == 0 ? 50000 : 10000;
    ids[count++] = last;
    at += far ? 3 : 1;
  }
  return count;
}

TEST(test_text_limit)
{
  /* The longest text, and the shortest that is too long. */
  static const size_t lengths[] = {98258, 98259};
  static char over[KVF_TICKET_BYTES_MAX + 1];
  uint32_t *ids = allocate(KVF_BLOCKS_PER_LEASE_MAX * sizeof(ids[0]));
  kvf_ticket ticket = some_ticket();
  ticket.ids = ids;
  ticket.groups = 1;
  ticket.block_tokens = ticket.group_tokens[0] = 1;
  ticket.counts[0] = ticket.prompt.tokens = fill_ids(ids, lengths[0]);
  assert_int_equal(round_trip(&ticket), KVF_TICKET_BYTES_MAX);
  size_t bytes = unseal(text, KVF_TICKET_BYTES_MAX, payload);
  assert_int_equal(bytes, lengths[0]);

  /* One more block, one byte further on. */
  ticket.counts[0] = ticket.prompt.tokens = fill_ids(ids, lengths[1]);
  assert_int_equal(encode_status(&ticket), KVF_LIMIT);
  uint32_t count = ticket.counts[0];
  memcpy(payload + AT_TOKENS, &count, 4);
  kvf_codec codec = kvf_writer_of(payload + AT_GROUP_TOKENS + 4, sizeof(payload) - AT_GROUP_TOKENS - 4);
  kvf_code_block_runs(&codec, ids, count);
  assert_int_equal(AT_GROUP_TOKENS + 4 + codec.at, lengths[1]);
  bytes = seal(payload, lengths[1], &usual_key, over);
  assert_int_equal(bytes, KVF_TICKET_BYTES_MAX + 1);
  assert_int_equal(decode(over, bytes, &usual_key, 1), KVF_BAD_TICKET);
  free(ids);
}

TEST(test_versions_and_garbage)
{
  static const struct {
    const char *text;
    kvf_status status;
  } rows[] = {{"", KVF_BAD_TICKET},
              {"null", KVF_BAD_TICKET},
              {"kvf5", KVF_BAD_TICKET},
              {"kvf5.", KVF_BAD_TICKET},
              {"kvf5..", KVF_BAD_TICKET},
              {"kvf4.", KVF_BAD_TICKET},
              {"kvf4.AAAA.AAAA", KVF_BAD_TICKET},
              {"kvf4..AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", KVF_BAD_TICKET},
              {"kvf5.AAAAAAAAAAA..AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", KVF_OTHER_KEY},
              {"kvf5.AAAAAAAAAAB..AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", KVF_BAD_TICKET}, /* a trailing bit */
              {"kvf5.AAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", KVF_BAD_TICKET},
              {"kvf5.AAAAAAAAAAA..AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", KVF_BAD_TICKET},
              {"kvf3.", KVF_INCOMPATIBLE},
              {"kvf6.", KVF_INCOMPATIBLE},
              {"kvf6.whatever it has", KVF_INCOMPATIBLE},
              {"kvf10.AAAA", KVF_INCOMPATIBLE},
              {"kvf9999.", KVF_INCOMPATIBLE},
              {"kvf99999.", KVF_BAD_TICKET},
              {"kvf99999999999999999999.", KVF_BAD_TICKET},
              {"kvf6", KVF_BAD_TICKET},
              {"kvf.", KVF_BAD_TICKET},
              {"kvf0.", KVF_BAD_TICKET},
              {"kvf06.", KVF_BAD_TICKET},
              {"kvf-1.", KVF_BAD_TICKET},
              {"kvf6,", KVF_BAD_TICKET},
              {"kv6.", KVF_BAD_TICKET}};
  kvf_key none = {.bytes = 0};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    if (decode(rows[i].text, strlen(rows[i].text), &none, 1) != rows[i].status) {
      fail_msg("%s", rows[i].text);
    }
  }
  assert_int_equal(decode(text, seal(payload, 0, &none, text), &none, 1), KVF_BAD_TICKET);
}
