#include "transport/segments.h"

#include <inttypes.h>

kvf_region_layout kvf_region_layout_of(const kvf_region *region)
{
  return (kvf_region_layout){
      .stride_bytes = region->stride_bytes,
      .block_bytes = region->block_bytes,
      .blocks = region->blocks,
      .heads = region->heads,
      .heads_total = region->heads_total,
      .group = region->group,
      .memory = region->memory,
  };
}

static uint32_t head_bytes_of(const kvf_region *region)
{
  return region->block_bytes / region->heads;
}

static kvf_status differ(char *message, uint32_t region, const char *field, uint64_t here, uint64_t there)
{
  return kvf_fail(KVF_INCOMPATIBLE, message, "region %" PRIu32 ": %s is %" PRIu64 " here, %" PRIu64 " there", region,
                  field, here, there);
}

/* A layout on its own: it comes from a peer. */
static kvf_status check_layout(const kvf_region_layout *layout, uint32_t region, char *message)
{
  if (kvf_region_layout_is_valid(layout)) {
    return KVF_OK;
  }
  return kvf_fail(KVF_INCOMPATIBLE, message,
                  "region %" PRIu32 " of the peer makes no sense: blocks %" PRIu32 ", block_bytes %" PRIu32
                  ", stride_bytes %" PRIu64 ", heads %" PRIu32 " of %" PRIu32 ", group %" PRIu32,
                  region, layout->blocks, layout->block_bytes, layout->stride_bytes, layout->heads, layout->heads_total,
                  layout->group);
}

kvf_status kvf_layouts_check(const kvf_region *local, uint32_t local_count, const kvf_region_layout *remote,
                             uint32_t remote_count, char *message)
{
  if (local_count != remote_count) {
    return kvf_fail(KVF_INCOMPATIBLE, message, "regions: %" PRIu32 " here, %" PRIu32 " there", local_count,
                    remote_count);
  }
  for (uint32_t i = 0; i < local_count; i++) {
    const kvf_region *here = &local[i];
    const kvf_region_layout *there = &remote[i];
    kvf_status status = check_layout(there, i, message);
    if (status != KVF_OK) {
      return status;
    }
    if (here->group != there->group) {
      return differ(message, i, "group", here->group, there->group);
    }
    if (here->heads_total != there->heads_total) {
      return differ(message, i, "heads_total", here->heads_total, there->heads_total);
    }
    uint32_t here_head_bytes = head_bytes_of(here);
    uint32_t there_head_bytes = there->block_bytes / there->heads;
    if (here_head_bytes != there_head_bytes) {
      return differ(message, i, "head_bytes (block_bytes / heads)", here_head_bytes, there_head_bytes);
    }
  }
  return KVF_OK;
}

static bool heads_fit(uint32_t first, uint32_t count, uint32_t heads)
{
  return first <= heads && count <= heads - first;
}

/* Adds the item's bytes. False: some of them lie outside. */
static bool check_item(const kvf_chunk *chunk, const kvf_transfer_item *item, uint64_t *bytes)
{
  const kvf_transfer *transfer = chunk->transfer;
  bool known = false;
  for (uint32_t i = 0; i < chunk->regions_count; i++) {
    const kvf_region *local = &chunk->local[i];
    const kvf_region_layout *remote = &chunk->remote[i];
    if (local->group != item->group) {
      continue;
    }
    known = true;
    if (item->local_block >= local->blocks || item->remote_block >= remote->blocks ||
        !heads_fit(transfer->local_head, transfer->heads, local->heads) ||
        !heads_fit(transfer->remote_head, transfer->heads, remote->heads)) {
      return false;
    }
    *bytes += (uint64_t)transfer->heads * head_bytes_of(local);
  }
  return known;
}

kvf_status kvf_chunk_check(const kvf_chunk *chunk, uint64_t *bytes)
{
  uint64_t total = 0;
  if (chunk->transfer->heads == 0) {
    return KVF_INVALID;
  }
  for (uint32_t i = 0; i < chunk->transfer->items_count; i++) {
    if (!check_item(chunk, &chunk->transfer->items[i], &total)) {
      return KVF_INVALID;
    }
  }
  if (bytes != NULL) {
    *bytes = total;
  }
  return KVF_OK;
}

kvf_segment_cursor kvf_segments_begin(const kvf_chunk *chunk)
{
  return (kvf_segment_cursor){.chunk = chunk};
}

/* Moves to a region of the item's group, over to the next item where there is none left. False at the end. */
static bool settle(kvf_segment_cursor *cursor)
{
  const kvf_chunk *chunk = cursor->chunk;
  for (; cursor->item < chunk->transfer->items_count; cursor->item++) {
    uint32_t group = chunk->transfer->items[cursor->item].group;
    for (; cursor->region < chunk->regions_count; cursor->region++) {
      if (chunk->local[cursor->region].group == group) {
        return true;
      }
    }
    cursor->region = 0;
  }
  return false;
}

/* What is left of the piece that the cursor stands at: one item in one region. */
static kvf_segment piece(const kvf_segment_cursor *cursor)
{
  const kvf_chunk *chunk = cursor->chunk;
  const kvf_transfer *transfer = chunk->transfer;
  const kvf_transfer_item *item = &transfer->items[cursor->item];
  const kvf_region *local = &chunk->local[cursor->region];
  const kvf_region_layout *remote = &chunk->remote[cursor->region];
  uint64_t head_bytes = head_bytes_of(local);
  uint64_t local_offset = item->local_block * local->stride_bytes + transfer->local_head * head_bytes;
  uint64_t remote_offset = item->remote_block * remote->stride_bytes + transfer->remote_head * head_bytes;
  return (kvf_segment){
      .local_region = cursor->region,
      .remote_region = cursor->region,
      .local_offset = local_offset + cursor->taken_bytes,
      .remote_offset = remote_offset + cursor->taken_bytes,
      .bytes = transfer->heads * head_bytes - cursor->taken_bytes,
  };
}

static bool continues(const kvf_segment *before, const kvf_segment *next)
{
  return before->local_region == next->local_region && before->remote_region == next->remote_region &&
         before->local_offset + before->bytes == next->local_offset &&
         before->remote_offset + before->bytes == next->remote_offset;
}

size_t kvf_segments_next(kvf_segment_cursor *cursor, kvf_segment *out, size_t capacity, uint64_t bytes_max)
{
  size_t count = 0;
  while (bytes_max > 0 && settle(cursor)) {
    kvf_segment next = piece(cursor);
    bool joins = count > 0 && continues(&out[count - 1], &next);
    if (!joins && count == capacity) {
      break;
    }
    bool whole = next.bytes <= bytes_max;
    if (!whole) {
      next.bytes = bytes_max;
    }
    if (joins) {
      out[count - 1].bytes += next.bytes;
    } else {
      out[count++] = next;
    }
    bytes_max -= next.bytes;
    if (whole) {
      cursor->region++;
      cursor->taken_bytes = 0;
    } else {
      cursor->taken_bytes += next.bytes;
    }
  }
  return count;
}
