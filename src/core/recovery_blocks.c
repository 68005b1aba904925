/* Which request a block belongs to, and which blocks have failed. */
#include "base/bitmap.h"
#include "core/recovery_internal.h"

void kvf_recovery_disown_blocks(kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint32_t i = entry->first_block;
  while (i != 0) {
    kvf_recovery_block *block = &recovery->blocks[i - 1];
    i = block->next;
    *block = (kvf_recovery_block){0};
  }
}

/* From the last block to the first, so that the list ends up in order. */
kvf_status kvf_recovery_own_blocks(kvf_recovery *recovery, kvf_recovery_entry *entry, const kvf_blocks *blocks)
{
  uint32_t group_blocks = kvf_recovery_group_blocks(recovery, entry);
  for (uint32_t i = entry->positions; i-- > 0;) {
    if (blocks->ids[i] == KVF_BLOCK_NONE) {
      continue;
    }
    uint32_t index = recovery->group_first[i / group_blocks] + blocks->ids[i];
    kvf_recovery_block *block = &recovery->blocks[index];
    if (block->owner != 0) {
      kvf_recovery_disown_blocks(recovery, entry);
      return KVF_EXISTS;
    }
    *block = (kvf_recovery_block){
        .owner = kvf_recovery_index(recovery, entry) + 1, .next = entry->first_block, .position = i % group_blocks};
    entry->first_block = index + 1;
  }
  return KVF_OK;
}

static kvf_status check_failed(const kvf_recovery *recovery, uint32_t rank, uint32_t group, const uint32_t *block_ids,
                               size_t count, kvf_status why)
{
  if (rank >= recovery->options.ranks || group >= recovery->options.groups || why == KVF_OK) {
    return KVF_INVALID;
  }
  for (size_t i = 0; i < count; i++) {
    if (block_ids[i] >= recovery->options.pool_blocks[group]) {
      return KVF_INVALID;
    }
  }
  return KVF_OK;
}

kvf_status kvf_recovery_report_blocks(kvf_recovery *recovery, uint32_t rank, uint32_t group, const uint32_t *block_ids,
                                      size_t count, kvf_status why)
{
  kvf_status status = check_failed(recovery, rank, group, block_ids, count, why);
  for (size_t i = 0; status == KVF_OK && i < count; i++) {
    const kvf_recovery_block *block = &recovery->blocks[recovery->group_first[group] + block_ids[i]];
    if (block->owner == 0) {
      recovery->stats.unknown_blocks++;
      continue;
    }
    const kvf_recovery_entry *entry = &recovery->entries[block->owner - 1];
    uint32_t good = block->position;
    status = kvf_recovery_report(recovery, &(kvf_report){.request_id = entry->request_id,
                                                         .ranks_mask = UINT64_C(1) << rank,
                                                         .blocks = entry->positions,
                                                         .prefix = good,
                                                         .status = why});
  }
  return status;
}

/* ---- errors ---- */

void kvf_recovery_want_drain(kvf_recovery *recovery, kvf_recovery_entry *entry)
{
  entry->error_block = entry->first_block;
  uint32_t index = kvf_recovery_index(recovery, entry);
  if (!kvf_bitmap_get(recovery->errors, index)) {
    kvf_bitmap_set(recovery->errors, index);
    recovery->errors_count++;
  }
}

void kvf_recovery_drop_errors(kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint32_t index = kvf_recovery_index(recovery, entry);
  if (kvf_bitmap_get(recovery->errors, index)) {
    kvf_bitmap_clear(recovery->errors, index);
    recovery->errors_count--;
  }
}

static uint32_t group_of(const kvf_recovery *recovery, uint32_t index)
{
  uint32_t group = 0;
  while (index >= recovery->group_first[group + 1]) {
    group++;
  }
  return group;
}

/* Writes the entry's failed blocks; all of them are written if there is room left. */
static size_t drain_entry(kvf_recovery *recovery, kvf_recovery_entry *entry, kvf_recovery_error *out, size_t capacity)
{
  size_t count = 0;
  while (count < capacity && entry->error_block != 0) {
    uint32_t index = entry->error_block - 1;
    kvf_recovery_block *block = &recovery->blocks[index];
    entry->error_block = block->next;
    if (block->position < entry->kept || block->drained) {
      continue;
    }
    uint32_t group = group_of(recovery, index);
    block->drained = true;
    out[count++] = (kvf_recovery_error){.request_id = entry->request_id,
                                        .group = group,
                                        .block_id = index - recovery->group_first[group],
                                        .position = block->position,
                                        .status = entry->merged.status};
  }
  return count;
}

size_t kvf_recovery_drain_errors(kvf_recovery *recovery, kvf_recovery_error *out, size_t capacity)
{
  size_t count = 0;
  while (recovery->errors_count > 0 && count < capacity) {
    kvf_recovery_entry *entry = &recovery->entries[kvf_bitmap_first(recovery->errors, recovery->options.requests_max)];
    count += drain_entry(recovery, entry, out + count, capacity - count);
    if (entry->error_block == 0) {
      kvf_recovery_drop_errors(recovery, entry);
    }
  }
  recovery->stats.errors += count;
  return count;
}
