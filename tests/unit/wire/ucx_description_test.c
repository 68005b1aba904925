/* What the transport `ucx` says of a rank, there and back; bytes that were changed under the checksum, or with it. */
#include "wire/ucx_description.h"

#include "base/crypto.h"
#include "wire_test.h"

#define ROOM 4096
#define SUM_BYTES 16

static const char worker[] = "an address of a worker";
static const char keys[][8] = {"table", "r0", "region1", "sums"};
static const kvf_ucx_memory_key memories[] = {{0x1000, keys[1], 2}, {UINT64_MAX, keys[2], 7}, {0x3000, keys[3], 4}};

static kvf_ucx_description good(void)
{
  return (kvf_ucx_description){.incarnation = {{1, 2, 3}},
                               .ucx_major = 1,
                               .ucx_minor = 22,
                               .worker = worker,
                               .worker_bytes = sizeof(worker),
                               .table_slots = 16384,
                               .table = {0x7000, keys[0], 5},
                               .regions_count = 2,
                               .checksums_count = 1,
                               .memories = memories};
}

static size_t written(const kvf_ucx_description *description, uint8_t out[ROOM])
{
  size_t bytes = 0;
  assert_int_equal(kvf_ucx_description_write(description, out, ROOM, &bytes), KVF_OK);
  return bytes;
}

static void assert_same_key(const kvf_ucx_memory_key *a, const kvf_ucx_memory_key *b)
{
  assert_int_equal(a->address, b->address);
  assert_int_equal(a->key_bytes, b->key_bytes);
  assert_memory_equal(a->key, b->key, b->key_bytes);
}

TEST(what_is_written_is_read)
{
  const kvf_ucx_description in = good();
  uint8_t bytes[ROOM];
  kvf_ucx_memory_key room[KVF_UCX_MEMORIES_MAX];
  kvf_ucx_description out;
  assert_int_equal(kvf_ucx_description_read(bytes, written(&in, bytes), room, &out), KVF_OK);
  assert_memory_equal(&out.incarnation, &in.incarnation, sizeof(in.incarnation));
  assert_int_equal(out.ucx_major, 1);
  assert_int_equal(out.ucx_minor, 22);
  assert_int_equal(out.worker_bytes, sizeof(worker));
  assert_memory_equal(out.worker, worker, sizeof(worker));
  assert_int_equal(out.table_slots, 16384);
  assert_same_key(&out.table, &in.table);
  assert_int_equal(out.regions_count, 2);
  assert_int_equal(out.checksums_count, 1);
  assert_ptr_equal(out.memories, room);
  for (size_t i = 0; i < 3; i++) {
    assert_same_key(&out.memories[i], &memories[i]);
  }
}

TEST(any_byte_that_differs_or_is_missing_is_noticed)
{
  const kvf_ucx_description in = good();
  uint8_t bytes[ROOM];
  kvf_ucx_memory_key room[KVF_UCX_MEMORIES_MAX];
  kvf_ucx_description out;
  size_t count = written(&in, bytes);
  for (size_t i = 0; i < count; i++) {
    bytes[i] ^= 0x10;
    assert_int_equal(kvf_ucx_description_read(bytes, count, room, &out), KVF_PROTOCOL);
    bytes[i] ^= 0x10;
    assert_int_equal(kvf_ucx_description_read(bytes, i, room, &out), KVF_PROTOCOL);
  }
  bytes[count] = 0;
  assert_int_equal(kvf_ucx_description_read(bytes, count + 1, room, &out), KVF_PROTOCOL);
  assert_int_equal(kvf_ucx_description_read(bytes, count, room, &out), KVF_OK);
}

TEST(no_room_no_description)
{
  const kvf_ucx_description in = good();
  uint8_t bytes[ROOM];
  size_t count = written(&in, bytes);
  for (size_t room = 0; room < count; room++) {
    size_t used = 77;
    assert_int_equal(kvf_ucx_description_write(&in, bytes, room, &used), KVF_LIMIT);
    assert_int_equal(used, 77);
  }
}

TEST(what_is_over_a_limit_is_not_written)
{
  uint8_t bytes[ROOM];
  size_t used = 0;
  kvf_ucx_description wrong[7] = {good(), good(), good(), good(), good(), good(), good()};
  const kvf_ucx_memory_key long_key[] = {memories[0], {1, worker, KVF_UCX_KEY_BYTES_MAX + 1}, memories[2]};
  wrong[0].worker_bytes = 0;
  wrong[1].worker_bytes = KVF_UCX_ADDRESS_BYTES_MAX + 1;
  wrong[2].table.key_bytes = 0;
  wrong[3].table_slots = 0;
  wrong[4].regions_count = 0;
  wrong[5].checksums_count = KVF_GROUPS_MAX + 1;
  wrong[6].memories = long_key;
  for (size_t i = 0; i < 7; i++) {
    assert_int_equal(kvf_ucx_description_write(&wrong[i], bytes, sizeof(bytes), &used), KVF_LIMIT);
  }
}

/* A checksum is no proof: one that fits makes no bad field good. */
TEST(fields_outside_their_limits_are_refused_under_a_good_checksum)
{
  const kvf_ucx_description in = good();
  static const struct {
    size_t at; /* of a little-endian u16 */
    uint16_t value;
  } rows[] = {{0, 0},                                                      /* the magic number */
              {24, 0},                                                     /* the worker's length */
              {24, KVF_UCX_ADDRESS_BYTES_MAX + 1},                         /* the worker's length */
              {26 + sizeof(worker) + 4 + 8, 0},                            /* the table's key */
              {26 + sizeof(worker) + 4 + 8, KVF_UCX_KEY_BYTES_MAX + 1},    /* the table's key */
              {26 + sizeof(worker) + 4 + 10 + 5, 0},                       /* regions */
              {26 + sizeof(worker) + 4 + 10 + 5, KVF_REGIONS_MAX + 1},     /* regions */
              {26 + sizeof(worker) + 4 + 10 + 5, 3},                       /* more than there are */
              {26 + sizeof(worker) + 4 + 10 + 5 + 2, KVF_GROUPS_MAX + 1}}; /* checksums */
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    uint8_t bytes[ROOM];
    uint8_t hash[KVF_HASH_BYTES];
    kvf_ucx_memory_key room[KVF_UCX_MEMORIES_MAX];
    kvf_ucx_description out;
    size_t count = written(&in, bytes);
    bytes[rows[i].at] = (uint8_t)rows[i].value;
    bytes[rows[i].at + 1] = (uint8_t)(rows[i].value >> 8);
    const kvf_span span = {bytes, count - SUM_BYTES};
    assert_int_equal(kvf_sha256(&span, 1, hash), KVF_OK);
    memcpy(bytes + count - SUM_BYTES, hash, SUM_BYTES);
    assert_int_equal(kvf_ucx_description_read(bytes, count, room, &out), KVF_PROTOCOL);
  }
}
