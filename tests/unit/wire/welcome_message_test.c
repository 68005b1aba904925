/* WELCOME there and back, how compact it is and how large it gets, and its rules. */
#include <stdio.h>

#include "wire/frame.h"
#include "wire/handshake_message.h"
#include "wire_test.h"

static kvf_region_layout regions[KVF_REGIONS_MAX + 1];
static uint8_t description[KVF_TRANSPORT_DESCRIPTION_BYTES_MAX + 1];

static kvf_status decode_welcome(const void *body, size_t body_bytes)
{
  kvf_welcome out;
  kvf_status status = kvf_welcome_decode(body, body_bytes, &out);
  if (status == KVF_OK) {
    kvf_welcome_free(&out);
    kvf_welcome_free(&out);
  }
  return status;
}

static kvf_welcome some_welcome(uint32_t regions_count)
{
  for (uint32_t i = 0; i <= KVF_REGIONS_MAX; i++) {
    regions[i] = (kvf_region_layout){.stride_bytes = 8192,
                                     .block_bytes = 4096,
                                     .blocks = 100,
                                     .heads = 2,
                                     .heads_total = 4,
                                     .group = 0,
                                     .memory = 7};
  }
  fill(description, sizeof(description), 9);
  return (kvf_welcome){.session_id = UINT64_C(0x1122334455667788),
                       .generation = UINT64_C(0x99aabbccddeeff00),
                       .rank = 1,
                       .ranks = 2,
                       .block_tokens = 16,
                       .regions_count = regions_count,
                       .regions = regions,
                       .transports_count = 2,
                       .transports = {{.name = "local", .description = description, .description_bytes = 5},
                                      {.name = "tcp", .description = description + 5, .description_bytes = 0}},
                       .version_min = 2,
                       .version_max = 0x0304,
                       .library = "0.1"};
}

/* Keys, then values, of so many parts, in a region each. */
static kvf_welcome with_parts(uint32_t count)
{
  static kvf_part parts[KVF_PARTS_MAX];
  kvf_welcome welcome = some_welcome(2);
  for (uint32_t i = 0; i < count; i++) {
    parts[i] = (kvf_part){.layer = i / 2,
                          .kind = i % 2 == 0 ? KVF_PART_KEYS : KVF_PART_VALUES,
                          .index = i % KVF_PART_INDEX_MAX,
                          .dtype = KVF_DTYPE_BF16,
                          .region = i % 2,
                          .offset_bytes = 5,
                          .unit_bytes = 6,
                          .row_bytes = 7,
                          .head_bytes = 300,
                          .rows = 4,
                          .block_tokens = 16,
                          .heads = 2,
                          .first_head = 2,
                          .heads_total = 8};
  }
  welcome.layout = (kvf_layout){.parts = parts,
                                .parts_count = count,
                                .share = {.first_head = 2, .heads = 2, .heads_total = 8},
                                .deal = {.ranks = 2, .rank = 1, .tokens = 4}};
  return welcome;
}

/* Encodes into the heap; the caller frees it. */
static uint8_t *encode(const kvf_welcome *welcome, size_t *bytes)
{
  size_t room = kvf_welcome_bytes_max(welcome);
  uint8_t *body = allocate(room);
  assert_int_equal(kvf_welcome_encode(welcome, body, room, bytes), KVF_OK);
  return body;
}

static void check_equal(const kvf_welcome *a, const kvf_welcome *b)
{
  assert_true(a->session_id == b->session_id);
  assert_true(a->generation == b->generation);
  assert_int_equal(a->rank, b->rank);
  assert_int_equal(a->ranks, b->ranks);
  assert_int_equal(a->block_tokens, b->block_tokens);
  assert_int_equal(a->version_min, b->version_min);
  assert_int_equal(a->version_max, b->version_max);
  assert_string_equal(a->library, b->library);
  assert_int_equal(a->regions_count, b->regions_count);
  for (uint32_t i = 0; i < a->regions_count; i++) {
    assert_true(a->regions[i].stride_bytes == b->regions[i].stride_bytes);
    assert_int_equal(a->regions[i].block_bytes, b->regions[i].block_bytes);
    assert_int_equal(a->regions[i].blocks, b->regions[i].blocks);
    assert_int_equal(a->regions[i].heads, b->regions[i].heads);
    assert_int_equal(a->regions[i].heads_total, b->regions[i].heads_total);
    assert_int_equal(a->regions[i].group, b->regions[i].group);
    assert_int_equal(a->regions[i].memory, b->regions[i].memory);
  }
  assert_int_equal(a->layout.parts_count, b->layout.parts_count);
  assert_memory_equal(&a->layout.share, &b->layout.share, sizeof(a->layout.share));
  assert_memory_equal(&a->layout.deal, &b->layout.deal, sizeof(a->layout.deal));
  for (size_t i = 0; i < a->layout.parts_count; i++) {
    assert_memory_equal(&a->layout.parts[i], &b->layout.parts[i], sizeof(kvf_part));
  }
  assert_int_equal(a->transports_count, b->transports_count);
  for (uint32_t i = 0; i < a->transports_count; i++) {
    assert_string_equal(a->transports[i].name, b->transports[i].name);
    assert_int_equal(a->transports[i].description_bytes, b->transports[i].description_bytes);
    if (a->transports[i].description_bytes > 0) {
      assert_memory_equal(a->transports[i].description, b->transports[i].description,
                          a->transports[i].description_bytes);
    }
  }
}

static void check_round_trip(const kvf_welcome *welcome, size_t bytes_most)
{
  size_t bytes = 0;
  uint8_t *body = encode(welcome, &bytes);
  uint8_t *copy = exact_copy(body, bytes);
  kvf_welcome back;
  assert_true(bytes <= bytes_most);
  assert_int_equal(kvf_welcome_decode(copy, bytes, &back), KVF_OK);
  check_equal(&back, welcome);
  size_t less = 77;
  assert_int_equal(kvf_welcome_encode(welcome, body, bytes - 1, &less), KVF_LIMIT);
  assert_int_equal(less, 77);
  kvf_welcome_free(&back);
  assert_null(back.regions);
  free(copy);
  free(body);
}

TEST(test_round_trips)
{
  kvf_welcome welcome = some_welcome(3);
  check_round_trip(&welcome, 200);
  regions[1].group = 1;
  regions[2].blocks = 7;
  check_round_trip(&welcome, 200);
  welcome.regions_count = 0;
  welcome.regions = NULL;
  welcome.transports_count = 0;
  check_round_trip(&welcome, 48);
}

TEST(test_equal_regions_are_compact)
{
  kvf_welcome welcome = some_welcome(KVF_REGIONS_MAX);
  check_round_trip(&welcome, 100);
}

TEST(test_parts)
{
  kvf_welcome welcome = with_parts(2);
  check_round_trip(&welcome, 300);
  size_t bytes = 0;
  uint8_t *body = encode(&welcome, &bytes);
  check_length(decode_welcome, body, bytes);
  body[61] = 3; /* more parts than there are */
  assert_int_equal(decode_welcome(body, bytes), KVF_PROTOCOL);
  body[61] = 2;
  body[61 + 26] = 0xff; /* a layer that only one of them has, which is no mistake */
  assert_int_equal(decode_welcome(body, bytes), KVF_OK);
  body[61 + 26 + 6] = 2; /* a region that there is not */
  assert_int_equal(decode_welcome(body, bytes), KVF_PROTOCOL);
  free(body);
}

TEST(test_the_largest_fits_a_frame)
{
  kvf_welcome welcome = with_parts(KVF_PARTS_MAX);
  welcome.regions_count = KVF_REGIONS_MAX;
  for (uint32_t i = 0; i < KVF_REGIONS_MAX; i++) {
    regions[i].blocks = i + 1;
  }
  welcome.transports_count = KVF_TRANSPORTS_MAX;
  for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
    memset(welcome.transports[i].name, 'a' + (int)i, KVF_TRANSPORT_NAME_BYTES - 1);
    welcome.transports[i].description = description;
    welcome.transports[i].description_bytes = KVF_TRANSPORT_DESCRIPTION_BYTES_MAX;
  }
  assert_true(kvf_welcome_bytes_max(&welcome) <= KVF_FRAME_BODY_BYTES_MAX);
  check_round_trip(&welcome, KVF_FRAME_BODY_BYTES_MAX);
}

TEST(test_cut_short)
{
  kvf_welcome welcome = some_welcome(3);
  regions[2].blocks = 7;
  size_t bytes = 0;
  uint8_t *body = encode(&welcome, &bytes);
  check_length(decode_welcome, body, bytes);
  free(body);
}

static void check_invalid(const kvf_welcome *welcome)
{
  static uint8_t body[KVF_FRAME_BODY_BYTES_MAX];
  size_t bytes = 77;
  assert_int_equal(kvf_welcome_encode(welcome, body, sizeof(body), &bytes), KVF_INVALID);
  assert_int_equal(bytes, 77);
}

TEST(test_rules)
{
  kvf_welcome welcome = some_welcome(3);
  welcome.rank = 2;
  check_invalid(&welcome);
  welcome = some_welcome(3);
  welcome.ranks = KVF_RANKS_MAX + 1;
  check_invalid(&welcome);
  welcome = some_welcome(3);
  welcome.block_tokens = 0;
  check_invalid(&welcome);
  welcome = some_welcome(KVF_REGIONS_MAX + 1);
  check_invalid(&welcome);
  welcome = some_welcome(3);
  regions[2].heads = 3;
  check_invalid(&welcome);
  welcome = some_welcome(3);
  regions[2].group = 2;
  check_invalid(&welcome);
  welcome = with_parts(2);
  welcome.layout.share.heads = 0;
  check_invalid(&welcome);
  welcome = some_welcome(3);
  welcome.transports_count = KVF_TRANSPORTS_MAX + 1;
  check_invalid(&welcome);
  welcome = some_welcome(3);
  welcome.transports[0].description_bytes = KVF_TRANSPORT_DESCRIPTION_BYTES_MAX + 1;
  check_invalid(&welcome);
  static const char *const names[] = {"", "tcp", "Local", "lo cal", "local\n"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    welcome = some_welcome(3);
    (void)snprintf(welcome.transports[0].name, sizeof(welcome.transports[0].name), "%s", names[i]);
    check_invalid(&welcome);
  }
  memset(welcome.transports[0].name, 'a', KVF_TRANSPORT_NAME_BYTES);
  check_invalid(&welcome);
  welcome = some_welcome(3);
  welcome.library[0] = '\n';
  check_invalid(&welcome);
}

/* Offsets in the body of some_welcome(3): head 22, one run of regions 31, no parts (53), then the transports. */
TEST(test_decoding_checks_the_same)
{
  static const struct {
    size_t at;
    uint8_t byte;
  } rows[] = {{16, 2},    /* rank == ranks */
              {20, 65},   /* ranks */
              {24, 0},    /* block_tokens */
              {28, 2},    /* fewer regions than the run */
              {28, 4},    /* more */
              {29, 4},    /* 1027 */
              {30, 0},    /* an empty run */
              {30, 4},    /* a run beyond the count */
              {31, 0xff}, /* … far beyond */
              {33, 0},    /* stride 0 */
              {39, 0xff}, /* a stride that overflows */
              {41, 0},    /* block_bytes 0 */
              {44, 0},    /* blocks 0 */
              {48, 0},    /* heads 0 */
              {48, 3},    /* heads that do not divide block_bytes */
              {52, 1},    /* heads_total below heads */
              {56, 1},    /* no group 0 */
              {56, 16},   /* group */
              {60, 32},   /* memory */
              {61, 1},    /* more parts than there are */
              {62, 0xff}, /* more than allowed */
              {63, 3},    /* more transports than there are */
              {63, 5},    /* more than allowed */
              {64, 16},   /* a name's length */
              {65, ' '},  /* a name's character */
              {71, 0xff}, /* a description's length */
              {73, 1},    /* … far beyond */
              {72, 0x81}, /* … beyond the limit */
              {91, 2},    /* the library's length */
              {92, 7}};   /* a character of it */
  kvf_welcome welcome = some_welcome(3);
  size_t bytes = 0;
  uint8_t *body = encode(&welcome, &bytes);
  assert_int_equal(decode_welcome(body, bytes), KVF_OK);
  assert_int_equal(body[63], 2);
  assert_int_equal(body[70], 5);
  assert_int_equal(body[91], 3);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    uint8_t *copy = exact_copy(body, bytes);
    copy[rows[i].at] = rows[i].byte;
    if (decode_welcome(copy, bytes) != KVF_PROTOCOL) {
      fail_msg("row %zu was taken", i);
    }
    free(copy);
  }
  free(body);
}

TEST(test_transports_limit)
{
  for (uint8_t count = KVF_TRANSPORTS_MAX; count <= KVF_TRANSPORTS_MAX + 1; count++) {
    /* By hand: head, no regions, no parts, transports "a", "b" … without descriptions. */
    uint8_t body[32 + 1 + 6 * (KVF_TRANSPORTS_MAX + 1) + 5] = {[20] = 1, [24] = 16, [32] = count};
    size_t bytes = 33;
    for (uint8_t i = 0; i < count; i++) {
      body[bytes] = 1;
      body[bytes + 1] = (uint8_t)('a' + i);
      bytes += 6;
    }
    bytes += 5; /* no versions */
    assert_int_equal(decode_welcome(body, bytes), count == KVF_TRANSPORTS_MAX ? KVF_OK : KVF_PROTOCOL);
  }
}

TEST(test_description_limit)
{
  for (uint32_t over = 0; over < 2; over++) {
    /* By hand, since encoding refuses it: head, no regions, no parts, one transport. */
    size_t bytes = 32 + 1 + 2 + 4 + KVF_TRANSPORT_DESCRIPTION_BYTES_MAX + over + 5;
    uint8_t *body = allocate(bytes);
    body[20] = 1;
    body[24] = 16;
    body[32] = 1;
    put(body + 33, "\x01t", 2);
    body[35] = (uint8_t)over;
    body[36] = KVF_TRANSPORT_DESCRIPTION_BYTES_MAX >> 8;
    assert_int_equal(decode_welcome(body, bytes), over ? KVF_PROTOCOL : KVF_OK);
    free(body);
  }
}
