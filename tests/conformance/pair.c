#include "pair.h"

#include "../memory_kind.h"
#include "test.h"

static void open_with(side *node, const node_shape *shape, uint32_t memory, uint32_t seed)
{
  node_shape own = *shape;
  for (uint32_t i = 0; i < own.count; i++) {
    own.regions[i].memory = memory;
  }
  node_open(node, traits->ops, &own, seed);
}

void producer_open(side *node, const node_shape *shape)
{
  open_with(node, shape, traits->producer_memory, SEED);
}

void consumer_open(side *node, const node_shape *shape)
{
  open_with(node, shape, traits->consumer_memory, SEED + 1);
}

pair *pair_open(const node_shape *producer, const node_shape *consumer)
{
  pair *two = allocate(sizeof(*two));
  producer_open(&two->producer, producer);
  consumer_open(&two->consumer, consumer);
  node_introduce(&two->producer, &two->introduction);
  two->link = node_connect_ok(&two->consumer, &two->introduction);
  return two;
}

void pair_close(pair *two)
{
  if (two->link != NULL) {
    traits->ops->disconnect(two->link);
  }
  node_close(&two->consumer);
  node_close(&two->producer);
  assert_true(test_memory_is_released()); /* no link of this process has kept one */
  free(two);
}

bool read_has(const kvf_transfer *read, uint32_t region)
{
  return read->layers.count == 0 || kvf_layers_have(&read->layers, region);
}

static bool item_matches(const side *consumer, const node_shape *producer, const kvf_transfer *read,
                         const kvf_transfer_item *item)
{
  bool matches = true;
  for (uint32_t region = 0; region < producer->count && matches; region++) {
    const kvf_region_layout *layout = &producer->regions[region];
    if (layout->group != item->group || !read_has(read, region)) {
      continue;
    }
    uint64_t head_bytes = layout->block_bytes / layout->heads;
    const size_t bytes = read->heads * head_bytes;
    uint8_t *got = allocate(bytes);
    test_memory_get(got, node_block(consumer, region, item->local_block) + read->local_head * head_bytes, bytes);
    matches = pattern_is(got, (pattern_place){SEED, region, item->remote_block, read->remote_head * head_bytes}, bytes);
    free(got);
  }
  return matches;
}

bool pair_bytes_match(const side *consumer, const node_shape *producer, const kvf_transfer *read)
{
  for (uint32_t i = 0; i < read->items_count; i++) {
    if (!item_matches(consumer, producer, read, &read->items[i])) {
      return false;
    }
  }
  return true;
}

kvf_transfer lease_read(side *consumer, const node_lease *lease, uint32_t first)
{
  kvf_transfer read = node_read(consumer);
  read.lease = lease->lease;
  read.items = node_items(consumer, lease, first, &read.items_count);
  return read;
}

void read_free(const kvf_transfer *read)
{
  free((void *)read->items);
}

/* ---- volleys ---- */

#define NEXT_OWNER 0x5A

read_volley volley_start(side *consumer, kvf_link *link, const node_lease *lease)
{
  read_volley volley = {.consumer = consumer};
  uint32_t count;
  volley.items = node_items(consumer, lease, 0, &count);
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    volley.reads[i] = node_read(consumer);
    volley.reads[i].lease = lease->lease;
    volley.reads[i].items = &volley.items[(size_t)i * (VOLLEY_BLOCKS / VOLLEY_READS)];
    volley.reads[i].items_count = VOLLEY_BLOCKS / VOLLEY_READS;
    consumer->ops->read(link, &volley.reads[i]);
  }
  return volley;
}

void volley_cancel(const read_volley *volley, kvf_link *link)
{
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    volley->consumer->ops->cancel(link, volley->reads[i].id);
  }
}

void next_owner(const side *consumer)
{
  test_memory_set(node_block(consumer, 0, 0), NEXT_OWNER, (size_t)VOLLEY_BLOCKS * VOLLEY_BLOCK_BYTES);
}

void volley_end(read_volley *volley, const node_shape *producer)
{
  uint64_t begun_ns = now_ns();
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    kvf_read_result result = node_wait(volley->consumer, volley->reads[i].id);
    assert_true(result.status != KVF_OK || pair_bytes_match(volley->consumer, producer, &volley->reads[i]));
  }
  assert_true(now_ns() - begun_ns < VOLLEY_CANCEL_NS);
  free(volley->items);
  next_owner(volley->consumer);
}

bool next_owner_is_alone(const side *consumer)
{
  return test_memory_all_are(node_block(consumer, 0, 0), NEXT_OWNER, (size_t)VOLLEY_BLOCKS * VOLLEY_BLOCK_BYTES);
}

void volley_probe(side *consumer, kvf_link **link, const node_introduction *introduction, const node_lease *lease)
{
  for (int tries = 0;; tries++) {
    const kvf_transfer_item item = {0, 1, lease->blocks[1], VOLLEY_BLOCKS};
    kvf_transfer read = node_read(consumer);
    read.lease = lease->lease;
    read.items = &item;
    read.items_count = 1;
    if (node_read_now(consumer, *link, &read).status == KVF_OK) {
      assert_true(pair_bytes_match(consumer, &introduction->shape, &read));
      return;
    }
    assert_true(tries == 0);
    consumer->ops->disconnect(*link);
    *link = node_connect_ok(consumer, introduction);
  }
}
