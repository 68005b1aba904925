#include "../memory_kind.h"
#include "pair.h"
#include "test.h"

#define BLOCKS 8
#define HEADS 4
#define HEAD_BYTES 96

/* Two regions in the first group and one in the second; the consumer has the upper half of the heads. */
static pair *open_pair(void)
{
  const node_shape producer = {
      .count = 3,
      .regions = {{1024, HEADS * HEAD_BYTES, BLOCKS, HEADS, HEADS, 0, 0},
                  {512, HEADS * 64, BLOCKS, HEADS, HEADS, 1, 0},
                  {(uint64_t)HEADS * HEAD_BYTES, HEADS * HEAD_BYTES, BLOCKS, HEADS, HEADS, 0, 0}}};
  const node_shape consumer = {.count = 3,
                               .regions = {{512, 2 * HEAD_BYTES, BLOCKS, 2, HEADS, 0, 0},
                                           {128, 2 * 64, BLOCKS, 2, HEADS, 1, 0},
                                           {512, 2 * HEAD_BYTES, BLOCKS, 2, HEADS, 0, 0}}};
  return pair_open(&producer, &consumer);
}

static kvf_read_result read_upper_half(pair *two, const node_lease *lease)
{
  kvf_transfer read = lease_read(&two->consumer, lease, 0);
  read.remote_head = 2;
  read.local_head = 0;
  read.heads = 2;
  kvf_read_result result = node_read_now(&two->consumer, two->link, &read);
  const kvf_fence_claim claim = node_claim(&two->introduction, lease);
  assert_int_equal(kvf_fence_check(&result.sample, &claim), KVF_OK);
  read_free(&read);
  return result;
}

static void alter(uint8_t *at, uint8_t bits)
{
  uint8_t byte;
  test_memory_get(&byte, at, 1);
  byte ^= bits;
  test_memory_put(at, &byte, 1);
}

/* Items go by position, then group: position 3's are the 7th and 8th. */
TEST(bytes_altered_after_publication)
{
  pair *two = open_pair();
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  const struct {
    uint32_t region;
    uint32_t offset;
    uint32_t verified; /* of 16 */
  } altered[] = {
      {0, 0, 16},                  /* a head that is not read */
      {0, 2 * HEAD_BYTES - 1, 16}, /* likewise */
      {0, 2 * HEAD_BYTES, 6},
      {0, 4 * HEAD_BYTES - 1, 6},
      {2, 3 * HEAD_BYTES, 6},
      {1, 2 * 64, 7},
  };
  for (size_t i = 0; i < sizeof(altered) / sizeof(altered[0]); i++) {
    uint8_t *byte = node_block(&two->producer, altered[i].region, lease->blocks[3]) + altered[i].offset;
    alter(byte, 1);
    kvf_read_result result = read_upper_half(two, lease);
    bool is_found = traits->has_checksums && altered[i].verified < 16;
    assert_int_equal(result.status, is_found ? KVF_CHECKSUM : KVF_OK);
    assert_int_equal(result.verified, traits->has_checksums ? altered[i].verified : 0);
    alter(byte, 1);
  }
  pair_close(two);
}

TEST(altered_and_mended)
{
  pair *two = open_pair();
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  uint8_t *byte = node_block(&two->producer, 0, lease->blocks[0]) + (size_t)2 * HEAD_BYTES;
  alter(byte, 0x80);
  assert_int_equal(read_upper_half(two, lease).status, traits->has_checksums ? KVF_CHECKSUM : KVF_OK);
  alter(byte, 0x80);
  assert_int_equal(read_upper_half(two, lease).status, KVF_OK);

  /* Published again with other bytes, it has other checksums. */
  alter(byte, 0x80);
  lease = node_publish(&two->producer, LEASE_ID + NODE_SLOTS);
  assert_int_equal(read_upper_half(two, lease).status, KVF_OK);
  pair_close(two);
}
