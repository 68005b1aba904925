/* Where checksums lie, their pairs in a plan, making them at the producer and judging by them at the consumer. */
#include "transport/checksums.h"

#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "base/status.h"
#include "memory/memory.h"

#define SUM_BYTES ((uint32_t)sizeof(uint64_t))
#define SUMS_MAX 256 /* at a time: no kind takes fewer runs */

static uint32_t smaller(uint32_t a, uint32_t b)
{
  return a < b ? a : b;
}

/* ---- where they lie ---- */

static kvf_status refuse(const kvf_part *part, uint32_t i, const char *why, char *message)
{
  return kvf_fail(KVF_INVALID, message, "no checksums of part %" PRIu32 " (layer %" PRIu32 ", region %" PRIu32 "): %s",
                  i, part->layer, part->region, why);
}

/* A row as long as a part's sums more. */
static kvf_status lengthen(kvf_region_layout *row, const kvf_part *part, uint32_t blocks, char *message)
{
  const uint64_t bytes = row->stride_bytes + (uint64_t)part->heads * SUM_BYTES;
  const bool first = row->stride_bytes == 0;
  /* What only some of its parts have cannot be read of the group. */
  *row = (kvf_region_layout){.stride_bytes = bytes,
                             .block_bytes = (uint32_t)bytes,
                             .blocks = first ? blocks : smaller(blocks, row->blocks),
                             .heads = 1,
                             .heads_total = 1,
                             .group = part->group};
  return bytes <= UINT32_MAX && kvf_region_layout_is_valid(row)
             ? KVF_OK
             : kvf_fail(KVF_LIMIT, message, "no checksums of group %" PRIu32 ": too many heads", part->group);
}

kvf_status kvf_checksums_lay_out(const kvf_pages *pages, kvf_checksums_layout *out, char *message)
{
  uint64_t seen[(KVF_REGIONS_MAX + 63) / 64] = {0};
  *out = (kvf_checksums_layout){.first_region = pages->regions_count};
  for (uint32_t i = 0; i < kvf_pages_parts(pages); i++) {
    const kvf_part part = kvf_pages_part(pages, i);
    if (pages->layout.deal.ranks > 1) {
      return refuse(&part, i, "tokens are dealt to ranks", message);
    }
    if (part.rows != 1) {
      return refuse(&part, i, "it has more rows than one", message);
    }
    if (kvf_bitmap_get(seen, part.region)) {
      return refuse(&part, i, "another part is in its region", message);
    }
    kvf_bitmap_set(seen, part.region);
    kvf_region_layout *row = &out->rows[part.group];
    out->offsets[part.region] = row->block_bytes;
    kvf_status status = lengthen(row, &part, pages->regions[part.region].blocks, message);
    if (status != KVF_OK) {
      return status;
    }
    out->count = part.group >= out->count ? part.group + 1 : out->count;
  }
  return KVF_OK;
}

static kvf_place place_of(const kvf_checksums_layout *layout, uint32_t group, const kvf_place *part)
{
  return (kvf_place){.stride_bytes = layout->rows[group].stride_bytes,
                     .head_bytes = SUM_BYTES,
                     .offset_bytes = layout->offsets[part->region],
                     .region = layout->first_region + group,
                     .first_head = part->first_head,
                     .heads = part->heads};
}

static void add_group(kvf_plan *plan, kvf_pair *pairs, uint32_t parts, uint32_t group,
                      const kvf_checksums_layout *local, const kvf_checksums_layout *remote)
{
  kvf_plan_group *of = &plan->groups[group];
  uint32_t count = plan->pairs_count;
  for (uint32_t i = 0; i < parts; i++) {
    if (pairs[i].group == group) {
      kvf_pair *sums = &pairs[count++];
      *sums = pairs[i];
      sums->local = place_of(local, group, &pairs[i].local);
      sums->remote = place_of(remote, group, &pairs[i].remote);
      sums->unit_bytes = SUM_BYTES;
      sums->is_checksums = true;
    }
  }
  for (uint32_t i = plan->pairs_count; i < count; i++) {
    pairs[i].run_end = count;
  }
  plan->pairs_count = count;
  of->local_blocks = smaller(of->local_blocks, local->rows[group].blocks);
  of->remote_blocks = smaller(of->remote_blocks, remote->rows[group].blocks);
}

void kvf_checksums_join(kvf_plan *plan, kvf_pair *pairs, const kvf_checksums_layout *local,
                        const kvf_checksums_layout *remote)
{
  const uint32_t parts = plan->pairs_count;
  plan->selection.checksums = 1;
  for (uint32_t group = 0; group < plan->groups_count; group++) {
    add_group(plan, pairs, parts, group, local, remote);
  }
}

/* ---- their memory ---- */

kvf_status kvf_checksums_open(const kvf_checksums_layout *layout, kvf_region out[KVF_GROUPS_MAX])
{
  for (uint32_t group = 0; group < layout->count; group++) {
    const kvf_region_layout *row = &layout->rows[group];
    void *base = calloc(row->blocks, row->stride_bytes);
    if (base == NULL) {
      kvf_checksums_close(out, group);
      return KVF_NO_MEMORY;
    }
    out[group] = (kvf_region){.base = base,
                              .stride_bytes = row->stride_bytes,
                              .block_bytes = row->block_bytes,
                              .blocks = row->blocks,
                              .heads = row->heads,
                              .heads_total = row->heads_total,
                              .group = row->group};
  }
  return KVF_OK;
}

void kvf_checksums_close(kvf_region *checksums, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    free(checksums[i].base);
    checksums[i].base = NULL;
  }
}

/* ---- making and comparing ---- */

/* Late readers, which learn from the fence that they are late, may be reading it just now. They read by system calls,
 * for which there is no atomic load. Hidden from ThreadSanitizer, which does not know the fence. */
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
static bool add_sum(sum_batch *batch, const kvf_region *region, void *bytes, size_t count, void *at, bool writes)
{
  const bool goes_along = batch->count < SUMS_MAX && (batch->count == 0 || batch->region->memory == region->memory);
  if (!goes_along && !end_batch(batch, writes)) {
    return false;
  }
  batch->region = region;
  batch->runs[batch->count] = (struct iovec){bytes, count};
  batch->at[batch->count] = at;
  batch->count++;
  return true;
}

/* Where a head of a block lies here. */
static void *head_at(const kvf_region *regions, const kvf_place *place, uint32_t block, uint64_t head)
{
  uint8_t *base = regions[place->region].base;
  return base + block * place->stride_bytes + place->offset_bytes + head * place->head_bytes;
}

/* The pair whose checksums are the group's first. Those of its parts follow each other in the order of the parts. */
static const kvf_pair *first_sums(const kvf_plan *plan, uint32_t group)
{
  const kvf_pair *sums = &plan->pairs[plan->pairs_count / 2];
  while (sums->group != group) {
    sums++;
  }
  return sums;
}

/* Compares the checksums of what the chunk has moved of a block, or, where there is none, writes those of all that the
 * block has. False: one differs, or the device has failed. */
static bool each_sum(const kvf_plan *plan, const kvf_region *regions, const kvf_chunk *chunk, uint32_t group,
                     uint32_t block)
{
  const kvf_pair *sums = NULL;
  const bool writes = chunk == NULL;
  sum_batch batch;
  batch.count = 0;
  for (const kvf_pair *pair = plan->pairs; pair < plan->pairs + plan->pairs_count / 2; pair++) {
    if (pair->group != group) {
      continue;
    }
    sums = sums == NULL ? first_sums(plan, group) : sums + 1;
    if (!writes && !kvf_chunk_has(chunk, pair)) {
      continue;
    }
    const kvf_head_range heads = writes ? (kvf_head_range){.count = pair->local.heads} : kvf_chunk_heads(chunk, pair);
    for (uint64_t i = 0; i < heads.count; i++) {
      const uint64_t head = heads.local + i;
      if (!add_sum(&batch, &regions[pair->local.region], head_at(regions, &pair->local, block, head), pair->unit_bytes,
                   head_at(regions, &sums->local, block, head), writes)) {
        return false;
      }
    }
  }
  return end_batch(&batch, writes);
}

bool kvf_checksums_make(const kvf_plan *plan, const kvf_region *regions, uint32_t group, uint32_t block)
{
  return each_sum(plan, regions, NULL, group, block);
}

static bool item_agrees(const kvf_chunk *chunk, const kvf_transfer_item *item)
{
  return each_sum(chunk->plan, chunk->local, chunk, item->group, item->local_block);
}

void kvf_checksums_judge(const kvf_chunk *chunk, kvf_read_result *result)
{
  const kvf_transfer *transfer = chunk->transfer;
  const uint64_t live = kvf_fence_word_live(transfer->lease.id);
  if (chunk->selection->checksums == 0 || result->status != KVF_OK || result->sample.entry.word != live) {
    return;
  }
  while (result->verified < transfer->items_count && item_agrees(chunk, &transfer->items[result->verified])) {
    result->verified++;
  }
  if (result->verified < transfer->items_count) {
    result->status = KVF_CHECKSUM;
  }
}
