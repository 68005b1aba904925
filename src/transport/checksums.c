#include "transport/checksums.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"

#define SUM_BYTES sizeof(uint64_t)
#define SUMS_MAX 256 /* at a time: no kind takes fewer runs */

static uint32_t smaller(uint32_t a, uint32_t b)
{
  return a < b ? a : b;
}

uint32_t kvf_checksums_layouts(const kvf_region_layout *regions, uint32_t count, kvf_region_layout out[KVF_GROUPS_MAX])
{
  uint32_t members[KVF_GROUPS_MAX] = {0};
  uint32_t groups = 0;
  for (uint32_t i = 0; i < count; i++) {
    const kvf_region_layout *region = &regions[i];
    kvf_region_layout *checksums = &out[region->group];
    /* What only some of its regions have cannot be read of the group. */
    bool first = members[region->group]++ == 0;
    *checksums = (kvf_region_layout){.blocks = first ? region->blocks : smaller(region->blocks, checksums->blocks),
                                     .heads = first ? region->heads : smaller(region->heads, checksums->heads),
                                     .heads_total = region->heads_total,
                                     .group = region->group};
    groups = region->group + 1 > groups ? region->group + 1 : groups;
  }
  for (uint32_t group = 0; group < groups; group++) {
    uint64_t row_bytes = SUM_BYTES * members[group] * out[group].heads;
    if (row_bytes > UINT32_MAX) {
      return 0;
    }
    out[group].stride_bytes = row_bytes;
    out[group].block_bytes = (uint32_t)row_bytes;
    if (!kvf_region_layout_is_valid(&out[group])) {
      return 0;
    }
  }
  return groups;
}

kvf_status kvf_checksums_open(const kvf_region *regions, uint32_t regions_count, kvf_region out[KVF_GROUPS_MAX],
                              uint32_t *count)
{
  kvf_region_layout layouts[KVF_REGIONS_MAX];
  kvf_region_layout checksums[KVF_GROUPS_MAX];
  *count = 0;
  for (uint32_t i = 0; i < regions_count; i++) {
    layouts[i] = kvf_region_layout_of(&regions[i]);
  }
  uint32_t groups = kvf_checksums_layouts(layouts, regions_count, checksums);
  if (groups == 0) {
    return KVF_LIMIT;
  }
  for (uint32_t group = 0; group < groups; group++) {
    void *base = calloc(checksums[group].blocks, checksums[group].stride_bytes);
    if (base == NULL) {
      kvf_checksums_close(out, group);
      return KVF_NO_MEMORY;
    }
    out[group] = (kvf_region){.base = base,
                              .stride_bytes = checksums[group].stride_bytes,
                              .block_bytes = checksums[group].block_bytes,
                              .blocks = checksums[group].blocks,
                              .heads = checksums[group].heads,
                              .heads_total = checksums[group].heads_total,
                              .group = group};
  }
  *count = groups;
  return KVF_OK;
}

void kvf_checksums_close(kvf_region *checksums, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    free(checksums[i].base);
    checksums[i].base = NULL;
  }
}

/* The checksums of one head of one block: one for each region of the group, in order. */
static uint64_t *checksums_at(const kvf_region *checksums, uint32_t block, uint32_t head)
{
  uint8_t *base = checksums->base;
  return (void *)(base + block * checksums->stride_bytes + head * (size_t)(checksums->block_bytes / checksums->heads));
}

/* Readers that are too late, whom the fence tells so, may be reading it just now: by system calls, for which there is
 * no atomic load. Not seen by ThreadSanitizer, which knows of no fence. */
__attribute__((no_sanitize("thread"))) static void store(volatile uint64_t *at, uint64_t sum)
{
  if (*at != sum) {
    *at = sum;
  }
}

/* Runs whose sums a device makes in one go, and where these are to be, or are. */
typedef struct sum_batch {
  const kvf_region *region; /* of the runs: of its kind and device */
  size_t count;
  struct iovec runs[SUMS_MAX];
  uint64_t *at[SUMS_MAX];
} sum_batch;

/* Writes the sums, or compares them. False: one differs, or the device has failed. */
static bool end_batch(sum_batch *batch, bool writes)
{
  uint64_t sums[SUMS_MAX];
  bool good =
      batch->count == 0 ||
      kvf_memory_ops_of(batch->region->memory)->checksums(batch->region->device, batch->runs, batch->count, sums);
  for (size_t i = 0; good && i < batch->count; i++) {
    const uint64_t sum = htole64(sums[i]);
    if (writes) {
      store(batch->at[i], sum);
    } else {
      good = *batch->at[i] == sum;
    }
  }
  batch->count = 0;
  return good;
}

/* False: as of the batch before, where there is no room for one more. */
static bool add_sum(sum_batch *batch, const kvf_region *region, uint32_t block, uint32_t head, uint64_t *at,
                    bool writes)
{
  const size_t head_bytes = region->block_bytes / region->heads;
  uint8_t *base = region->base;
  const bool goes_along = batch->count < SUMS_MAX && (batch->count == 0 || batch->region->memory == region->memory);
  if (!goes_along && !end_batch(batch, writes)) {
    return false;
  }
  batch->region = region;
  batch->runs[batch->count] = (struct iovec){base + block * region->stride_bytes + head * head_bytes, head_bytes};
  batch->at[batch->count] = at;
  batch->count++;
  return true;
}

/* Writes the checksums of these heads of a block, or compares them. False: one differs, or the device has failed. */
static bool each_sum(const kvf_region *regions, uint32_t regions_count, const kvf_region *checksums, uint32_t block,
                     uint32_t first_head, uint32_t heads, bool writes)
{
  uint32_t member = 0;
  sum_batch batch;
  batch.count = 0;
  for (uint32_t i = 0; i < regions_count; i++) {
    if (regions[i].group != checksums->group) {
      continue;
    }
    for (uint32_t head = first_head; head < first_head + heads; head++) {
      if (!add_sum(&batch, &regions[i], block, head, checksums_at(checksums, block, head) + member, writes)) {
        return false;
      }
    }
    member++;
  }
  return end_batch(&batch, writes);
}

bool kvf_checksums_make(const kvf_region *regions, uint32_t regions_count, const kvf_region *checksums, uint32_t block)
{
  return each_sum(regions, regions_count, checksums, block, 0, checksums->heads, true);
}

static bool item_agrees(const kvf_chunk *chunk, uint32_t regions_count, const kvf_transfer_item *item)
{
  return each_sum(chunk->local, regions_count, &chunk->local[regions_count + item->group], item->local_block,
                  chunk->transfer->local_head, chunk->transfer->heads, false);
}

void kvf_checksums_judge(const kvf_chunk *chunk, uint32_t checksums_count, kvf_read_result *result)
{
  const kvf_transfer *transfer = chunk->transfer;
  const uint64_t live = kvf_fence_word_live(transfer->lease.id);
  if (checksums_count == 0 || result->status != KVF_OK || result->sample.entry.word != live) {
    return;
  }
  while (result->verified < transfer->items_count &&
         item_agrees(chunk, chunk->plan->pairs_count - checksums_count, &transfer->items[result->verified])) {
    result->verified++;
  }
  if (result->verified < transfer->items_count) {
    result->status = KVF_CHECKSUM;
  }
}
