/* Reads bring the bytes that they are for, all of them, and touch no others. */
#include "../memory_kind.h"
#include "base/prng.h"
#include "conformance.h"

#define UNTOUCHED 0xEE

static uint64_t read_bytes(const side_shape *shape, const kvf_transfer *read)
{
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < read->items_count; i++) {
    for (uint32_t region = 0; region < shape->count; region++) {
      const kvf_region_layout *layout = &shape->regions[region];
      if (layout->group == read->items[i].group && read_has(read, region)) {
        bytes += (uint64_t)read->heads *
                 (layout->block_bytes / layout->heads + (under_test.has_checksums ? sizeof(uint64_t) : 0));
      }
    }
  }
  return bytes;
}

/* Reads and checks the result, the bytes, and that as many bytes of the destination have changed as may. */
static void expect_good(const kvf_transfer *read)
{
  side_set_all(&two->consumer, UNTOUCHED);
  kvf_read_result result = side_read_now(&two->consumer, two->link, read);
  const kvf_fence_claim claim = side_claim(&two->introduction, two->lease);
  assert_int_equal(side_verdict(&result, &claim), KVF_OK);
  assert_int_equal(result.verified, under_test.has_checksums ? read->items_count : 0);
  assert_int_equal(result.bytes, read_bytes(&two->introduction.shape, read));
  assert_true(sides_match(read));

  for (uint32_t i = 0; i < read->items_count; i++) {
    for (uint32_t region = 0; region < two->consumer.shape.count; region++) {
      const kvf_region *local = &two->consumer.regions[region];
      if (local->group == read->items[i].group && read_has(read, region)) {
        uint64_t head_bytes = local->block_bytes / local->heads;
        test_memory_set(side_block(&two->consumer, region, read->items[i].local_block) + read->local_head * head_bytes,
                        UNTOUCHED, read->heads * head_bytes);
      }
    }
  }
  assert_true(side_all_are(&two->consumer, UNTOUCHED));
}

SIDES_TEST(single_block)
{
  sides_open_simple(4, 4096);
  const kvf_transfer_item item = {0, 2, two->lease->blocks[2], 3};
  kvf_transfer read = side_read(&two->consumer, &two->lease->lease, &item, 1);
  expect_good(&read);
}

SIDES_TEST(random_blocks)
{
  sides_open_simple(1024, 4096);
  kvf_prng prng = {1};
  uint32_t count;
  kvf_transfer_item *items = side_items(&two->consumer, two->lease, 0, &count);
  for (uint32_t i = count - 1; i > 0; i--) {
    uint32_t other = (uint32_t)kvf_prng_below(&prng, i + 1);
    uint32_t block = items[i].local_block;
    items[i].local_block = items[other].local_block;
    items[other].local_block = block;
  }
  kvf_transfer read = side_read(&two->consumer, &two->lease->lease, items, count);
  expect_good(&read);
  free(items);
}

SIDES_TEST(regions_and_groups)
{
  /* Blocks apart on one side, packed on the other, of odd sizes. */
  const side_shape producer = {.count = 4,
                               .regions = {{4096, 3000, 16, 1, 1, 0, 0},
                                           {520, 520, 20, 1, 1, 1, 0},
                                           {3000, 3000, 16, 1, 1, 0, 0},
                                           {65536, 65536, 18, 1, 1, 1, 0}}};
  const side_shape consumer = {.count = 4,
                               .regions = {{3000, 3000, 40, 1, 1, 0, 0},
                                           {1024, 520, 40, 1, 1, 1, 0},
                                           {3001, 3000, 40, 1, 1, 0, 0},
                                           {70000, 65536, 40, 1, 1, 1, 0}}};
  sides_open(&producer, &consumer);
  kvf_transfer read = lease_read(&two->consumer, two->lease, 5);
  expect_good(&read);
  read_free(&read);
}

/* Of both groups, of one, and the last. */
SIDES_TEST(some_of_the_layers)
{
  static const kvf_layers layers[] = {{0, 1}, {1, 2}, {2, 3}, {4, 1}};
  const side_shape shape = {.count = 5,
                            .regions = {{4096, 3000, 16, 1, 1, 0, 0},
                                        {520, 520, 16, 1, 1, 1, 0},
                                        {3000, 3000, 16, 1, 1, 0, 0},
                                        {66000, 65536, 16, 1, 1, 1, 0},
                                        {1024, 1000, 16, 1, 1, 0, 0}}};
  sides_open(&shape, &shape);
  for (size_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++) {
    kvf_transfer read = lease_read(&two->consumer, two->lease, 0);
    read.layers = layers[i];
    expect_good(&read);
    read_free(&read);
  }
}

static void heads_case(uint32_t producer_heads, uint32_t consumer_heads, uint32_t remote_head, uint32_t local_head,
                       uint32_t heads)
{
  const side_shape producer = {.count = 2,
                               .regions = {{8192, producer_heads * 768, 8, producer_heads, 8, 0, 0},
                                           {8192, producer_heads * 512, 8, producer_heads, 8, 0, 0}}};
  const side_shape consumer = {
      .count = 2,
      .regions = {{UINT64_C(768) * consumer_heads, consumer_heads * 768, 9, consumer_heads, 8, 0, 0},
                  {UINT64_C(512) * consumer_heads, consumer_heads * 512, 9, consumer_heads, 8, 0, 0}}};
  sides_open(&producer, &consumer);
  kvf_transfer read = lease_read(&two->consumer, two->lease, 1);
  read.remote_head = remote_head;
  read.local_head = local_head;
  read.heads = heads;
  expect_good(&read);
  read_free(&read);
  sides_close();
}

TEST(heads_narrower)
{
  heads_case(4, 2, 2, 0, 2);
}

TEST(heads_wider)
{
  heads_case(4, 8, 0, 4, 4);
}

/* A read that must be refused whole: no byte may change. */
static void expect_refused(kvf_transfer *read)
{
  side_set_all(&two->consumer, UNTOUCHED);
  kvf_read_result result = side_read_now(&two->consumer, two->link, read);
  assert_int_not_equal(result.status, KVF_OK);
  assert_int_equal(result.bytes, 0);
  assert_true(side_all_are(&two->consumer, UNTOUCHED));
}

SIDES_TEST(items_out_of_range)
{
  const side_shape shape = {.count = 1, .regions = {{4096, 4096, 8, 4, 8, 0, 0}}};
  sides_open(&shape, &shape);
  /* The good item comes first: its bytes must not move either. The fourth field is ours, the others are the peer's. */
  const kvf_transfer_item bad[][2] = {
      {{0, 0, two->lease->blocks[0], 0}, {0, 1, two->lease->blocks[1], 8}},
      {{0, 0, two->lease->blocks[0], 0}, {0, 1, two->lease->blocks[1], UINT32_MAX}},
      {{0, 0, two->lease->blocks[0], 0}, {1, 1, two->lease->blocks[1], 1}},
      {{0, 0, two->lease->blocks[0], 0}, {0, 4000, 8, 1}},
  };
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    kvf_transfer read = side_read(&two->consumer, &two->lease->lease, bad[i], 2);
    expect_refused(&read);
  }
  const uint32_t heads[][3] = {{0, 0, 5}, {3, 0, 2}, {0, 3, 2}, {5, 0, 1}, {0, UINT32_MAX, 2}, {0, 0, 0}};
  for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
    kvf_transfer read = side_read(&two->consumer, &two->lease->lease, bad[0], 1);
    read.remote_head = heads[i][0];
    read.local_head = heads[i][1];
    read.heads = heads[i][2];
    expect_refused(&read);
  }
}

SIDES_TEST(small_reads)
{
  sides_open_simple(16, 4096);
  for (uint32_t i = 0; i < 200; i++) {
    side_set_all(&two->consumer, UNTOUCHED);
    const kvf_transfer_item item = {0, i % 16, two->lease->blocks[i % 16], (i * 5) % 16};
    kvf_transfer read = side_read(&two->consumer, &two->lease->lease, &item, 1);
    read.small = true;
    if (i % 2 == 0) {
      assert_int_equal(side_read_now(&two->consumer, two->link, &read).status, KVF_OK);
    } else { /* and then asks no more */
      under_test.ops->read(two->link, &read);
      if (under_test.ops->assist != NULL) {
        (void)under_test.ops->assist(two->consumer.transport);
      }
      assert_int_equal(side_wait(&two->consumer, read.id).status, KVF_OK);
    }
    assert_true(sides_match(&read));
  }
}

SIDES_TEST(parallel_reads)
{
  sides_open_simple(1024, 2048);
  kvf_link *links[2] = {two->link, side_connect_ok(&two->consumer, &two->introduction)};
  uint32_t count;
  kvf_transfer_item *items = side_items(&two->consumer, two->lease, 0, &count);
  kvf_transfer parts[64];
  for (uint32_t i = 0; i < 64; i++) {
    parts[i] = side_read(&two->consumer, &two->lease->lease, &items[(size_t)i * 16], 16);
    under_test.ops->read(links[i % 2], &parts[i]);
  }
  for (uint32_t i = 0; i < 64; i++) {
    assert_int_equal(side_wait(&two->consumer, parts[i].id).status, KVF_OK);
    assert_true(sides_match(&parts[i]));
  }
  under_test.ops->disconnect(links[1]);
  free(items);
}
