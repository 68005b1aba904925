/* What checksums find of bytes that were altered, and what they do not. */
#include "../memory_kind.h"
#include "conformance.h"
#include "plan/rank_shares.h"

#define BLOCKS 8
#define HEADS 4
#define HEAD_BYTES 96

/* Two regions in the first group and one in the second; the consumer has the upper half of the heads. */
static void open_sides(void)
{
  const side_shape producer = {
      .count = 3,
      .regions = {{1024, HEADS * HEAD_BYTES, BLOCKS, HEADS, HEADS, 0, 0},
                  {512, HEADS * 64, BLOCKS, HEADS, HEADS, 1, 0},
                  {(uint64_t)HEADS * HEAD_BYTES, HEADS * HEAD_BYTES, BLOCKS, HEADS, HEADS, 0, 0}}};
  const side_shape consumer = {.count = 3,
                               .regions = {{512, 2 * HEAD_BYTES, BLOCKS, 2, HEADS, 0, 0},
                                           {128, 2 * 64, BLOCKS, 2, HEADS, 1, 0},
                                           {512, 2 * HEAD_BYTES, BLOCKS, 2, HEADS, 0, 0}}};
  sides_open(&producer, &consumer);
}

static kvf_read_result read_upper_half(void)
{
  kvf_transfer read = lease_read(&two->consumer, two->lease, 0);
  read.remote_head = 2;
  read.local_head = 0;
  read.heads = 2;
  kvf_read_result result = side_read_now(&two->consumer, two->link, &read);
  const kvf_fence_claim claim = side_claim(&two->introduction, two->lease);
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
SIDES_TEST(bytes_altered_after_publication)
{
  open_sides();
  const struct {
    uint32_t region;
    uint32_t offset;
    uint32_t verified; /* of 16 */
  } altered[] = {
      {0, 0, 16}, /* of heads that are not read */
      {0, 2 * HEAD_BYTES - 1, 16},
      {0, 2 * HEAD_BYTES, 6},
      {0, 4 * HEAD_BYTES - 1, 6},
      {2, 3 * HEAD_BYTES, 6},
      {1, 2 * 64, 7},
  };
  for (size_t i = 0; i < sizeof(altered) / sizeof(altered[0]); i++) {
    uint8_t *byte = side_block(&two->producer, altered[i].region, two->lease->blocks[3]) + altered[i].offset;
    alter(byte, 1);
    kvf_read_result result = read_upper_half();
    bool is_found = under_test.has_checksums && altered[i].verified < 16;
    assert_int_equal(result.status, is_found ? KVF_CHECKSUM : KVF_OK);
    assert_int_equal(result.verified, under_test.has_checksums ? altered[i].verified : 0);
    alter(byte, 1);
  }
}

SIDES_TEST(altered_and_mended)
{
  open_sides();
  uint8_t *byte = side_block(&two->producer, 0, two->lease->blocks[0]) + (size_t)2 * HEAD_BYTES;
  alter(byte, 0x80);
  assert_int_equal(read_upper_half().status, under_test.has_checksums ? KVF_CHECKSUM : KVF_OK);
  alter(byte, 0x80);
  assert_int_equal(read_upper_half().status, KVF_OK);

  /* Published again with other bytes, it has other checksums. */
  alter(byte, 0x80);
  two->lease = side_publish(&two->producer, LEASE_ID + SIDE_SLOTS);
  assert_int_equal(read_upper_half().status, KVF_OK);
}

/* ---- parts ---- */

#define LAYERS 4
#define ALTERED 5 /* byte of a head */

static const struct {
  kvf_part_kind kind;
  uint32_t group;
  uint32_t head_bytes;
  uint32_t heads_total;
} layers[LAYERS] = {{KVF_PART_KV, 0, 96, HEADS},
                    {KVF_PART_VALUES, 1, 32, 2},
                    {KVF_PART_LATENT, 0, 160, 1},
                    {KVF_PART_KV, 1, 48, HEADS}};

/* Of an engine: which layers it has, and heads of them. */
typedef struct rank {
  uint32_t first_layer;
  uint32_t layers;
  uint32_t number;
  uint32_t ranks;
} rank;

static kvf_share share_of(rank of, uint32_t heads_total)
{
  return (kvf_share){.first_head = of.number * heads_total / of.ranks,
                     .heads = heads_total > of.ranks ? heads_total / of.ranks : 1,
                     .heads_total = heads_total};
}

/* A part a region, its heads one after the other. */
static side_shape shape_of(rank of)
{
  side_shape shape = {.count = of.layers, .parts_count = of.layers, .share = share_of(of, HEADS)};
  for (uint32_t i = 0; i < of.layers; i++) {
    const uint32_t layer = of.first_layer + i;
    const uint32_t head_bytes = layers[layer].head_bytes;
    const kvf_share share = share_of(of, layers[layer].heads_total);
    const uint32_t block_bytes = head_bytes * share.heads;
    shape.regions[i] = (kvf_region_layout){block_bytes + 32, block_bytes, BLOCKS, 1, 1, 0, 0};
    shape.parts[i] = (kvf_part){.layer = layer,
                                .kind = layers[layer].kind,
                                .group = layers[layer].group,
                                .region = i,
                                .unit_bytes = head_bytes,
                                .head_bytes = head_bytes,
                                .rows = 1,
                                .block_tokens = layers[layer].group == 0 ? 16 : 0,
                                .heads = share.heads,
                                .first_head = share.first_head,
                                .heads_total = share.heads_total};
  }
  return shape;
}

/* Ranks of two engines, with links from each consumer to each producer. */
typedef struct engines {
  const rank *from;
  const rank *to;
  uint32_t producers_count;
  uint32_t consumers_count;
  side producers[2];
  side consumers[2];
  const side_lease *leases[2];
  side_introduction introductions[2];
  kvf_link *links[2][2];
} engines;

static engines *open_engines(const rank *from, uint32_t producers, const rank *to, uint32_t consumers)
{
  engines *all = allocate(sizeof(*all));
  *all = (engines){.from = from, .to = to, .producers_count = producers, .consumers_count = consumers};
  for (uint32_t i = 0; i < producers; i++) {
    const side_shape shape = shape_of(from[i]);
    producer_open(&all->producers[i], &shape);
    side_introduce(&all->producers[i], &all->introductions[i]);
    all->leases[i] = side_publish(&all->producers[i], LEASE_ID);
  }
  for (uint32_t i = 0; i < consumers; i++) {
    const side_shape shape = shape_of(to[i]);
    consumer_open(&all->consumers[i], &shape);
    for (uint32_t j = 0; j < producers; j++) {
      all->links[i][j] = side_connect_ok(&all->consumers[i], &all->introductions[j]);
    }
  }
  return all;
}

static void close_engines(engines *all)
{
  for (uint32_t i = 0; i < all->consumers_count; i++) {
    for (uint32_t j = 0; j < all->producers_count; j++) {
      under_test.ops->disconnect(all->links[i][j]);
    }
    side_close(&all->consumers[i]);
  }
  for (uint32_t i = 0; i < all->producers_count; i++) {
    side_close(&all->producers[i]);
  }
  assert_true(test_memory_is_released());
  free(all);
}

/* Whether that read was wrong. */
static bool read_share(engines *all, uint32_t consumer, uint32_t producer, const kvf_rank_share *share)
{
  side *one = &all->consumers[consumer];
  kvf_transfer read = lease_read(one, all->leases[producer], 0);
  read.remote_head = share->remote_head;
  read.local_head = share->local_head;
  read.heads = share->heads;
  const kvf_read_result result = side_read_now(one, all->links[consumer][producer], &read);
  const bool is_wrong = result.status == KVF_CHECKSUM;
  assert_true(is_wrong || result.status == KVF_OK);
  assert_true(is_wrong || result.verified == (under_test.has_checksums ? read.items_count : 0));
  read_free(&read);
  return is_wrong;
}

/* All heads of all layers that the consumers have. Returns how many reads were wrong. */
static uint32_t read_engines(engines *all)
{
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < all->consumers_count; i++) {
    for (uint32_t j = 0; j < all->producers_count; j++) {
      const kvf_share own = share_of(all->to[i], HEADS);
      kvf_rank_share shares[KVF_RANKS_MAX];
      uint32_t count = 0;
      assert_int_equal(kvf_rank_shares(&own, all->from[j].ranks, 1, 0, shares, &count), KVF_OK);
      for (uint32_t k = 0; k < count; k++) {
        wrong += shares[k].rank == all->from[j].number && read_share(all, i, j, &shares[k]);
      }
    }
  }
  return wrong;
}

/* How many consumers read that head of the layer from that producer. What all its ranks have is read of the first. */
static uint32_t readers_of(const engines *all, rank producer, uint32_t layer, uint32_t head)
{
  uint32_t readers = 0;
  for (uint32_t i = 0; i < all->consumers_count; i++) {
    const rank to = all->to[i];
    const kvf_share own = share_of(to, layers[layer].heads_total);
    const bool has_head = head - own.first_head < own.heads;
    const bool is_read = layers[layer].heads_total > 1 || producer.number == 0;
    readers += layer - to.first_layer < to.layers && has_head && is_read;
  }
  return readers;
}

/* Alters each head of each producer in turn: whoever reads it finds that, and nobody else does. */
static void alter_each(const rank *from, uint32_t producers, const rank *to, uint32_t consumers, uint32_t expected)
{
  engines *all = open_engines(from, producers, to, consumers);
  uint32_t found = 0;
  assert_int_equal(read_engines(all), 0);
  for (uint32_t i = 0; i < producers; i++) {
    for (uint32_t region = 0; region < from[i].layers; region++) {
      const uint32_t layer = from[i].first_layer + region;
      const kvf_share share = share_of(from[i], layers[layer].heads_total);
      for (uint32_t head = 0; head < share.heads; head++) {
        uint8_t *block = side_block(&all->producers[i], region, all->leases[i]->blocks[3]);
        uint8_t *byte = block + (size_t)head * layers[layer].head_bytes + ALTERED;
        alter(byte, 1);
        const uint32_t wrong = read_engines(all);
        alter(byte, 1);
        const uint32_t readers = readers_of(all, from[i], layer, share.first_head + head);
        assert_int_equal(wrong, under_test.has_checksums ? readers : 0);
        found += wrong;
      }
    }
  }
  assert_int_equal(found, under_test.has_checksums ? expected : 0);
  assert_int_equal(read_engines(all), 0);
  close_engines(all);
}

static const rank whole = {0, LAYERS, 0, 1};
static const rank halves[] = {{0, LAYERS, 0, 2}, {0, LAYERS, 1, 2}};

TEST(parts_with_other_heads)
{
  alter_each(&whole, 1, &whole, 1, HEADS + 2 + 1 + HEADS);
}

TEST(parts_of_two_ranks_into_one)
{
  alter_each(halves, 2, &whole, 1, HEADS + 2 + 1 + HEADS);
}

TEST(parts_of_one_rank_into_two)
{
  alter_each(&whole, 1, halves, 2, HEADS + 2 + 2 + HEADS);
}

/* Ranks with some of the layers only, on either side. */
TEST(parts_of_stages)
{
  static const rank stages[] = {{0, 2, 0, 1}, {2, 2, 0, 1}};
  static const rank inner = {1, 2, 0, 1};
  alter_each(stages, 2, &whole, 1, HEADS + 2 + 1 + HEADS);
  alter_each(&whole, 1, stages, 2, HEADS + 2 + 1 + HEADS);
  alter_each(&whole, 1, &inner, 1, 2 + 1);
}
