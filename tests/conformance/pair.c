#include "pair.h"

#include "pattern.h"
#include "test.h"

pair *pair_open(const conformance_traits *traits, const node_shape *producer, const node_shape *consumer)
{
  pair *two = allocate(sizeof(*two));
  two->traits = traits;
  node_open(&two->producer, traits->ops, producer, SEED);
  node_open(&two->consumer, traits->ops, consumer, SEED + 1);
  node_introduce(&two->producer, &two->introduction);
  two->link = node_connect_ok(&two->consumer, &two->introduction);
  return two;
}

void pair_close(pair *two)
{
  if (two->link != NULL) {
    two->traits->ops->disconnect(two->link);
  }
  node_close(&two->consumer);
  node_close(&two->producer);
  free(two);
}

static bool item_matches(const side *consumer, const node_shape *producer, const kvf_read *read,
                         const kvf_read_item *item)
{
  for (uint32_t region = 0; region < producer->count; region++) {
    const kvf_region_layout *layout = &producer->regions[region];
    if (layout->group != item->group) {
      continue;
    }
    uint64_t head_bytes = layout->block_bytes / layout->heads;
    const uint8_t *got = node_block(consumer, region, item->local_block) + read->local_head * head_bytes;
    if (!pattern_is(got, (pattern_place){SEED, region, item->remote_block, read->remote_head * head_bytes},
                    read->heads * head_bytes)) {
      return false;
    }
  }
  return true;
}

bool pair_bytes_match(const side *consumer, const node_shape *producer, const kvf_read *read)
{
  for (uint32_t i = 0; i < read->items_count; i++) {
    if (!item_matches(consumer, producer, read, &read->items[i])) {
      return false;
    }
  }
  return true;
}

kvf_read lease_read(side *consumer, const node_lease *lease, uint32_t first)
{
  kvf_read read = node_read(consumer);
  read.lease = lease->lease;
  read.items = node_items(consumer, lease, first, &read.items_count);
  return read;
}

void read_free(const kvf_read *read)
{
  free((void *)read->items);
}
