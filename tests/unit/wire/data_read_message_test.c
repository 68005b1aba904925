/* READ: how items become runs, in any order, and the limits of both sides. */
#include "base/fence.h"
#include "base/prng.h"
#include "wire/data_message.h"
#include "wire/frame.h"
#include "wire_test.h"

static kvf_transfer_item items[KVF_READ_ITEMS_MAX + 1];
static kvf_transfer_item items_back[KVF_READ_ITEMS_MAX];
static uint8_t body[KVF_DATA_READ_HEAD_BYTES + (KVF_READ_ITEMS_MAX + 1) * KVF_DATA_READ_RUN_BYTES];

/* Decodes, and if that succeeds writes the items to a heap array with none to spare. */
static kvf_status decode_read(const void *data, size_t bytes)
{
  kvf_data_read read;
  kvf_status status = kvf_data_read_decode(data, bytes, &read);
  if (status == KVF_OK) {
    kvf_transfer_item *out = allocate(read.items_count * sizeof(*out));
    kvf_data_read_items(&read, out);
    free(out);
  }
  return status;
}

static kvf_data_read some_read(uint32_t items_count)
{
  kvf_data_read read = {.read_id = UINT64_C(0x0102030405060708),
                        .lease = {.id = KVF_LEASE_ID_MAX, .slot = 7},
                        .remote_head = UINT32_MAX - 2,
                        .local_head = 5,
                        .heads = 2,
                        .selection = {.first_layer = 3, .layers = 4, .checksums = 1, .deal = {4, 3, 16}},
                        .items_count = items_count};
  for (uint32_t i = 0; i < KVF_GROUPS_MAX; i++) {
    read.selection.splits[i] = i + 1;
  }
  fill(read.lease.token, sizeof(read.lease.token), 1);
  return read;
}

static kvf_transfer_item item(uint32_t group, uint32_t position)
{
  return (kvf_transfer_item){
      .group = group, .position = position, .remote_block = KVF_BLOCK_NONE, .local_block = KVF_BLOCK_NONE};
}

/* Returns the encoded length. */
static size_t round_trip(uint32_t items_count)
{
  kvf_data_read read = some_read(items_count);
  kvf_data_read back;
  size_t bytes = 0;
  assert_int_equal(kvf_data_read_encode(&read, items, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(kvf_data_read_decode(body, bytes, &back), KVF_OK);
  assert_true(back.read_id == read.read_id);
  assert_memory_equal(&back.lease, &read.lease, sizeof(read.lease));
  assert_int_equal(back.remote_head, read.remote_head);
  assert_int_equal(back.heads, read.heads);
  assert_int_equal(back.items_count, items_count);
  assert_int_equal(back.local_head, read.local_head);
  assert_memory_equal(&back.selection, &read.selection, sizeof(read.selection));
  kvf_data_read_items(&back, items_back);
  assert_memory_equal(items_back, items, items_count * sizeof(items[0]));
  size_t less = 77;
  assert_int_equal(kvf_data_read_encode(&read, items, body, bytes - 1, &less), KVF_LIMIT);
  assert_int_equal(less, 77);
  return bytes;
}

TEST(test_runs)
{
  items[0] = item(15, 65535);
  assert_int_equal(round_trip(1), KVF_DATA_READ_HEAD_BYTES + KVF_DATA_READ_RUN_BYTES);
  items[1] = item(0, 5);
  items[2] = item(0, 6);
  items[3] = item(1, 7);
  items[4] = item(1, 7);
  items[5] = item(1, 6);
  assert_int_equal(round_trip(6), KVF_DATA_READ_HEAD_BYTES + 5 * KVF_DATA_READ_RUN_BYTES);
  kvf_data_read read = some_read(6);
  size_t bytes = 0;
  assert_int_equal(kvf_data_read_encode(&read, items, body, KVF_DATA_READ_HEAD_BYTES, &bytes), KVF_LIMIT);
}

TEST(test_a_whole_lease_in_order_fits_a_frame)
{
  for (uint32_t i = 0; i < KVF_READ_ITEMS_MAX; i++) {
    items[i] = item(0, i);
  }
  assert_int_equal(round_trip(KVF_READ_ITEMS_MAX), KVF_DATA_READ_HEAD_BYTES + KVF_DATA_READ_RUN_BYTES);
  for (uint32_t i = 0; i < KVF_READ_ITEMS_MAX / 2; i++) {
    items[i] = item(3, 2 * i);
  }
  assert_true(round_trip(KVF_READ_ITEMS_MAX / 2) <= KVF_FRAME_BODY_BYTES_MAX);
}

TEST(test_any_order)
{
  kvf_prng prng = {1};
  for (uint32_t i = 0; i < 1000; i++) {
    items[i] = item((uint32_t)kvf_prng_below(&prng, KVF_GROUPS_MAX),
                    (uint32_t)kvf_prng_below(&prng, KVF_BLOCKS_PER_LEASE_MAX));
  }
  (void)round_trip(1000);
}

TEST(test_cut_short)
{
  kvf_data_read read = some_read(4);
  size_t bytes = 0;
  items[0] = item(0, 1);
  items[1] = item(0, 2);
  items[2] = item(0, 4);
  items[3] = item(0, 5);
  assert_int_equal(kvf_data_read_encode(&read, items, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_read, body, bytes);
}

TEST(test_rules)
{
  const kvf_data_read good = {.read_id = 1, .heads = 1, .selection = kvf_read_selection_whole(1), .items_count = 1};
  kvf_data_read reads[8] = {good, good, good, good, good, good, good, good};
  reads[0].read_id = 0;
  reads[1].heads = 0;
  reads[2].remote_head = UINT32_MAX;
  reads[3].lease.id = KVF_LEASE_ID_MAX + 1;
  reads[4].items_count = 0;
  reads[5].items_count = KVF_READ_ITEMS_MAX + 1;
  reads[6].selection.splits[KVF_GROUPS_MAX - 1] = 0;
  reads[7].selection.checksums = 2;
  for (uint32_t i = 0; i <= KVF_READ_ITEMS_MAX; i++) {
    items[i] = item(0, i % KVF_BLOCKS_PER_LEASE_MAX);
  }
  size_t bytes = 0;
  for (size_t i = 0; i < 8; i++) {
    assert_int_equal(kvf_data_read_encode(&reads[i], items, body, sizeof(body), &bytes), KVF_INVALID);
  }
  assert_int_equal(kvf_data_read_encode(&good, items, body, sizeof(body), &bytes), KVF_OK);
  items[0] = item(KVF_GROUPS_MAX, 0);
  assert_int_equal(kvf_data_read_encode(&good, items, body, sizeof(body), &bytes), KVF_INVALID);
  items[0] = item(0, KVF_BLOCKS_PER_LEASE_MAX);
  assert_int_equal(kvf_data_read_encode(&good, items, body, sizeof(body), &bytes), KVF_INVALID);
}

/* Offsets: read_id 0, lease 8, remote_head 36, local_head 40, heads 44, selection 48 (splits 68, checksums 132),
 * items_count 133, runs 137. */
TEST(test_decoding_checks_the_same)
{
  static const struct {
    size_t at;
    uint8_t byte;
  } rows[] = {{0, 0},     /* read_id */
              {15, 0x80}, /* lease id */
              {44, 0},    /* heads */
              {68, 0},    /* a split */
              {132, 2},   /* checksums */
              {133, 0},   /* no items */
              {133, 1},   /* fewer than the run */
              {133, 3},   /* more than the run */
              {135, 2},   /* beyond the limit */
              {137, 16},  /* group */
              {140, 2}};  /* a run beyond the count */
  kvf_data_read read = {.read_id = 1, .heads = 1, .selection = kvf_read_selection_whole(1), .items_count = 2};
  size_t bytes = 0;
  items[0] = item(0, 65534);
  items[1] = item(0, 65535);
  assert_int_equal(kvf_data_read_encode(&read, items, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(bytes, KVF_DATA_READ_HEAD_BYTES + KVF_DATA_READ_RUN_BYTES);
  assert_int_equal(decode_read(body, bytes), KVF_OK);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    uint8_t *copy = exact_copy(body, bytes);
    copy[rows[i].at] = rows[i].byte;
    if (decode_read(copy, bytes) != KVF_PROTOCOL) {
      fail_msg("row %zu was taken", i);
    }
    free(copy);
  }
  memset(body + 36, 0xff, 4); /* remote_head + heads */
  assert_int_equal(decode_read(body, bytes), KVF_PROTOCOL);
  memset(body + 36, 0, 4);
  memset(body + 138, 0xff, 2); /* a run beyond the last position */
  assert_int_equal(decode_read(body, bytes), KVF_PROTOCOL);
}

TEST(test_items_limit)
{
  /* Single items: as many as allowed, then one more. */
  for (uint32_t count = KVF_READ_ITEMS_MAX; count <= KVF_READ_ITEMS_MAX + 1; count++) {
    kvf_data_read read = {.read_id = 1, .heads = 1, .selection = kvf_read_selection_whole(1), .items_count = 1};
    size_t bytes = 0;
    items[0] = item(0, 0);
    memset(body, 0, sizeof(body));
    assert_int_equal(kvf_data_read_encode(&read, items, body, sizeof(body), &bytes), KVF_OK);
    memcpy(body + 133, &count, sizeof(count));
    bytes = KVF_DATA_READ_HEAD_BYTES + (size_t)count * KVF_DATA_READ_RUN_BYTES;
    assert_int_equal(decode_read(body, bytes), count == KVF_READ_ITEMS_MAX ? KVF_OK : KVF_PROTOCOL);
  }
}
