/* Chunks: which items a read takes, and what becomes of them. */
#include <assert.h>

#include "base/bitmap.h"
#include "core/load_internal.h"

static uint64_t item_bytes(const kvf_load_part *part, uint32_t index)
{
  const kvf_load_entry *load = part->load;
  return load->head_bytes[load->items[index].group] * part->spec.heads;
}

static uint64_t divided(uint64_t bytes, uint64_t by)
{
  return bytes / by + (bytes % by != 0);
}

/* As few chunks as there can be, but as many for one reader as for another. */
void kvf_chunk_choose_size(const kvf_loads *loads, kvf_load_part *part)
{
  const kvf_loads_config *config = &loads->config;
  uint64_t readers = config->readers > 0 ? config->readers : 1;
  uint64_t spread_bytes = config->spread_bytes > 0 ? config->spread_bytes : 1;
  uint64_t bytes = 0;
  uint64_t largest = 1;
  for (uint32_t i = 0; i < part->load->items_count; i++) {
    uint64_t each = item_bytes(part, i);
    bytes += each;
    largest = each > largest ? each : largest;
  }
  readers = readers < bytes / spread_bytes ? readers : bytes / spread_bytes;
  if (readers <= 1) {
    part->chunk_bytes = config->chunk_bytes;
    return;
  }
  uint64_t rounds = divided(bytes, config->chunk_bytes * readers);
  uint64_t even = divided(bytes, rounds * readers) + largest - 1; /* chunks are of whole items */
  part->chunk_bytes = even < config->chunk_bytes ? even : config->chunk_bytes;
}

/* Sets the chunk to the first run of missing items, as long as the limits allow. */
static void choose_items(const kvf_load_part *part, kvf_load_chunk *chunk)
{
  uint32_t end = part->load->items_count;
  uint32_t first = part->first_missing;
  while (first < end && kvf_bitmap_get(part->taken, first)) {
    first++;
  }
  assert(first < end);
  uint64_t bytes = item_bytes(part, first);
  uint32_t count = 1;
  while (count < KVF_CHUNK_ITEMS_MAX && first + count < end && !kvf_bitmap_get(part->taken, first + count) &&
         bytes + item_bytes(part, first + count) <= part->chunk_bytes) {
    bytes += item_bytes(part, first + count);
    count++;
  }
  chunk->first = first;
  chunk->count = count;
}

static void take_items(kvf_load_part *part, const kvf_load_chunk *chunk)
{
  for (uint32_t i = 0; i < chunk->count; i++) {
    assert(!kvf_bitmap_get(part->taken, chunk->first + i)); /* its last attempt is quiet */
    kvf_bitmap_set(part->taken, chunk->first + i);
  }
  part->missing_count -= chunk->count;
  part->first_missing = chunk->first + chunk->count;
}

kvf_load_chunk *kvf_chunk_begin(kvf_loads *loads, kvf_load_part *part)
{
  assert(part->state == KVF_PART_READING && part->path != KVF_PATH_NONE);
  assert(!kvf_list_is_empty(&part->idle) && part->missing_count > 0);
  kvf_load_chunk *chunk = KVF_CONTAINER_OF(part->idle.next, kvf_load_chunk, link);
  chunk->read_id = loads->next_read_id++;
  if (!kvf_chunk_remember(loads, chunk)) {
    return NULL;
  }
  choose_items(part, chunk);
  take_items(part, chunk);
  chunk->path = part->path;
  chunk->cancelled = false;
  chunk->verified = 0;
  kvf_list_remove(&chunk->link);
  kvf_list_push_back(&part->flying, &chunk->link);
  part->load->reads_in_flight++;
  loads->stats.chunks++;
  part->tally->chunks++;
  part->tally->reads_in_flight++;
  return chunk;
}

void kvf_chunk_end(kvf_loads *loads, kvf_load_chunk *chunk)
{
  kvf_load_entry *load = chunk->part->load;
  assert(load->reads_in_flight > 0);
  kvf_chunk_forget(loads, chunk);
  kvf_list_remove(&chunk->cancel);
  kvf_list_remove(&chunk->link);
  kvf_list_push_back(&chunk->part->idle, &chunk->link);
  load->reads_in_flight--;
  chunk->part->tally->reads_in_flight--;
}

void kvf_chunk_confirm(kvf_loads *loads, const kvf_load_chunk *chunk, uint32_t count)
{
  kvf_load_part *part = chunk->part;
  assert(count <= chunk->count);
  for (uint32_t i = 0; i < count; i++) {
    assert(kvf_bitmap_get(part->taken, chunk->first + i) && !kvf_bitmap_get(part->good, chunk->first + i));
    kvf_bitmap_set(part->good, chunk->first + i);
  }
  part->good_count += count;
  part->tally->blocks += count;
  loads->stats.blocks += count;
  if (chunk->verified > 0) {
    loads->stats.verified += count;
  } else if (loads->config.sums) {
    loads->stats.unverified += count;
  }
}

void kvf_chunk_miss(const kvf_load_chunk *chunk, uint32_t good)
{
  kvf_load_part *part = chunk->part;
  for (uint32_t i = good; i < chunk->count; i++) {
    assert(kvf_bitmap_get(part->taken, chunk->first + i) && !kvf_bitmap_get(part->good, chunk->first + i));
    kvf_bitmap_clear(part->taken, chunk->first + i);
  }
  part->missing_count += chunk->count - good;
  if (chunk->first + good < part->first_missing) {
    part->first_missing = chunk->first + good;
  }
}

void kvf_chunk_cancel(kvf_loads *loads, kvf_load_chunk *chunk)
{
  if (!chunk->cancelled) {
    chunk->cancelled = true;
    kvf_list_push_back(&loads->cancels, &chunk->cancel);
  }
}

/* Whether it is all that its load still needs, and few bytes. */
bool kvf_chunk_is_small(const kvf_loads *loads, const kvf_load_chunk *chunk)
{
  const kvf_load_part *part = chunk->part;
  if (part->load->parts_open != 1 || part->load->items_count - part->good_count != chunk->count) {
    return false;
  }
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < chunk->count; i++) {
    bytes += item_bytes(part, chunk->first + i);
  }
  return bytes <= loads->config.inline_bytes;
}
