/* Two linked sides, what they read, and volleys of reads. */
#include "sides.h"

#include "../memory_kind.h"
#include "test.h"

static void open_with(side *one, const side_shape *shape, uint32_t memory, uint32_t seed)
{
  side_shape own = *shape;
  for (uint32_t i = 0; i < own.count; i++) {
    own.regions[i].memory = memory;
  }
  side_open(one, under_test.ops, &own, seed);
}

void producer_open(side *one, const side_shape *shape)
{
  open_with(one, shape, under_test.producer_memory, SEED);
}

void consumer_open(side *one, const side_shape *shape)
{
  open_with(one, shape, under_test.consumer_memory, SEED + 1);
}

void sides_meet(sides *two)
{
  side_introduce(&two->producer, &two->introduction);
  two->lease = side_publish(&two->producer, LEASE_ID);
}

sides *sides_open_unlinked(const side_shape *producer, const side_shape *consumer)
{
  sides *two = allocate(sizeof(*two));
  producer_open(&two->producer, producer);
  consumer_open(&two->consumer, consumer);
  sides_meet(two);
  return two;
}

sides *sides_open(const side_shape *producer, const side_shape *consumer)
{
  sides *two = sides_open_unlinked(producer, consumer);
  sides_link(two);
  return two;
}

sides *sides_open_simple(uint32_t blocks, uint32_t block_bytes)
{
  const side_shape shape = side_shape_simple(blocks, block_bytes);
  return sides_open(&shape, &shape);
}

void sides_link(sides *two)
{
  two->link = side_connect_ok(&two->consumer, &two->introduction);
}

void sides_disconnect(sides *two)
{
  two->consumer.ops->disconnect(two->link);
  two->link = NULL;
}

void sides_close(sides *two)
{
  if (two->link != NULL) {
    sides_disconnect(two);
  }
  side_close(&two->consumer);
  if (two->producer.transport != NULL) {
    side_close(&two->producer);
    assert_true(test_memory_is_released()); /* no link of this process has kept one */
  }
  if (two->process.pid != 0) {
    process_end(two);
  }
  free(two);
}

bool read_has(const kvf_transfer *read, uint32_t region)
{
  return read->layers.count == 0 || kvf_layers_have(&read->layers, region);
}

static bool item_matches(const sides *two, const kvf_transfer *read, const kvf_transfer_item *item)
{
  const side_shape *producer = &two->introduction.shape;
  bool matches = true;
  for (uint32_t region = 0; region < producer->count && matches; region++) {
    const kvf_region_layout *layout = &producer->regions[region];
    if (layout->group != item->group || !read_has(read, region)) {
      continue;
    }
    uint64_t head_bytes = layout->block_bytes / layout->heads;
    const size_t bytes = read->heads * head_bytes;
    uint8_t *got = allocate(bytes);
    test_memory_get(got, side_block(&two->consumer, region, item->local_block) + read->local_head * head_bytes, bytes);
    matches = pattern_is(got, (pattern_place){SEED, region, item->remote_block, read->remote_head * head_bytes}, bytes);
    free(got);
  }
  return matches;
}

bool sides_match(const sides *two, const kvf_transfer *read)
{
  for (uint32_t i = 0; i < read->items_count; i++) {
    if (!item_matches(two, read, &read->items[i])) {
      return false;
    }
  }
  return true;
}

kvf_transfer lease_read(side *consumer, const side_lease *lease, uint32_t first)
{
  uint32_t count;
  const kvf_transfer_item *items = side_items(consumer, lease, first, &count);
  return side_read(consumer, &lease->lease, items, count);
}

void read_free(const kvf_transfer *read)
{
  free((void *)read->items);
}

/* ---- volleys ---- */

#define NEXT_OWNER 0x5A

static void next_owner(const side *consumer)
{
  test_memory_set(side_block(consumer, 0, 0), NEXT_OWNER, (size_t)VOLLEY_BLOCKS * VOLLEY_BLOCK_BYTES);
}

void volley_producer(side *one)
{
  const side_shape shape = side_shape_simple(VOLLEY_BLOCKS, VOLLEY_BLOCK_BYTES);
  producer_open(one, &shape);
}

sides *volley_sides_apart(void)
{
  const side_shape shape = side_shape_simple(VOLLEY_BLOCKS + 1, VOLLEY_BLOCK_BYTES);
  sides *two = allocate(sizeof(*two));
  consumer_open(&two->consumer, &shape);
  next_owner(&two->consumer);
  return two;
}

sides *volley_sides(void)
{
  sides *two = volley_sides_apart();
  volley_producer(&two->producer);
  sides_meet(two);
  sides_link(two);
  return two;
}

read_volley volley_start(sides *two)
{
  const uint32_t each = VOLLEY_BLOCKS / VOLLEY_READS;
  read_volley volley = {.two = two};
  uint32_t count;
  volley.items = side_items(&two->consumer, two->lease, 0, &count);
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    volley.reads[i] = side_read(&two->consumer, &two->lease->lease, &volley.items[(size_t)i * each], each);
    two->consumer.ops->read(two->link, &volley.reads[i]);
  }
  return volley;
}

void volley_cancel(const read_volley *volley)
{
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    volley->two->consumer.ops->cancel(volley->two->link, volley->reads[i].id);
  }
}

void volley_end(read_volley *volley)
{
  uint64_t begun_ns = now_ns();
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    kvf_read_result result = side_wait(&volley->two->consumer, volley->reads[i].id);
    assert_true(result.status != KVF_OK || sides_match(volley->two, &volley->reads[i]));
  }
  assert_true(now_ns() - begun_ns < VOLLEY_CANCEL_NS);
  free(volley->items);
  next_owner(&volley->two->consumer);
}

bool next_owner_is_alone(const sides *two)
{
  const uint8_t *blocks = side_block(&two->consumer, 0, 0);
  return test_memory_all_are(blocks, NEXT_OWNER, (size_t)VOLLEY_BLOCKS * VOLLEY_BLOCK_BYTES);
}

void volleys_are_over(sides *two)
{
  side *consumer = &two->consumer;
  const kvf_transfer_item item = {0, 1, two->lease->blocks[1], VOLLEY_BLOCKS};
  for (int tries = 0; tries < 2; tries++) {
    const kvf_transfer read = side_read(consumer, &two->lease->lease, &item, 1);
    const kvf_status status = side_read_now(consumer, two->link, &read).status;
    if (status == KVF_OK) {
      assert_true(sides_match(two, &read));
      break;
    }
    assert_true(tries == 0);
    sides_disconnect(two);
    sides_link(two);
  }
  assert_true(next_owner_is_alone(two));
}
