/* The recovery table's memory: all of it made at once, and entries found by request id. */
#include <stdlib.h>

#include "base/bitmap.h"
#include "core/recovery_internal.h"

static kvf_status check_options(const kvf_recovery_options *options)
{
  if (options->ranks == 0 || options->block_tokens == 0 || options->requests_max == 0 || options->groups == 0) {
    return KVF_INVALID;
  }
  if (options->ranks > KVF_RANKS_MAX || options->requests_max > KVF_RECOVERY_REQUESTS_MAX ||
      options->groups > KVF_GROUPS_MAX) {
    return KVF_LIMIT;
  }
  uint64_t blocks = 0;
  for (uint32_t group = 0; group < options->groups; group++) {
    if (options->pool_blocks[group] == 0) {
      return KVF_INVALID;
    }
    blocks += options->pool_blocks[group];
  }
  return blocks > KVF_RECOVERY_BLOCKS_MAX ? KVF_LIMIT : KVF_OK;
}

static uint32_t buckets_of(uint32_t requests)
{
  uint32_t buckets = 1;
  while (buckets < requests) {
    buckets *= 2;
  }
  return buckets;
}

static bool allocate(kvf_recovery *recovery)
{
  const kvf_recovery_options *options = &recovery->options;
  for (uint32_t group = 0; group < options->groups; group++) {
    recovery->group_first[group + 1] = recovery->group_first[group] + options->pool_blocks[group];
  }
  uint32_t buckets = buckets_of(options->requests_max);
  size_t words = kvf_bitmap_words(options->requests_max);
  recovery->buckets_mask = buckets - 1;
  recovery->entries = calloc(options->requests_max, sizeof(*recovery->entries));
  recovery->buckets = calloc(buckets, sizeof(*recovery->buckets));
  recovery->blocks = calloc(recovery->group_first[options->groups], sizeof(*recovery->blocks));
  recovery->free_entries = calloc(words, sizeof(*recovery->free_entries));
  recovery->due = calloc(words, sizeof(*recovery->due));
  recovery->errors = calloc(words, sizeof(*recovery->errors));
  return recovery->entries != NULL && recovery->buckets != NULL && recovery->blocks != NULL &&
         recovery->free_entries != NULL && recovery->due != NULL && recovery->errors != NULL;
}

kvf_status kvf_recovery_open(const kvf_recovery_options *options, kvf_recovery **out)
{
  *out = NULL;
  kvf_status status = check_options(options);
  if (status != KVF_OK) {
    return status;
  }
  kvf_recovery *recovery = calloc(1, sizeof(*recovery));
  if (recovery == NULL) {
    return KVF_NO_MEMORY;
  }
  recovery->options = *options;
  recovery->all_ranks = UINT64_MAX >> (KVF_RANKS_MAX - options->ranks);
  if (!allocate(recovery)) {
    kvf_recovery_close(recovery);
    return KVF_NO_MEMORY;
  }
  for (uint32_t i = 0; i < options->requests_max; i++) {
    kvf_bitmap_set(recovery->free_entries, i);
  }
  *out = recovery;
  return KVF_OK;
}

void kvf_recovery_close(kvf_recovery *recovery)
{
  if (recovery == NULL) {
    return;
  }
  free(recovery->errors);
  free(recovery->due);
  free(recovery->free_entries);
  free(recovery->blocks);
  free(recovery->buckets);
  free(recovery->entries);
  free(recovery);
}

/* Fibonacci hashing: ids may be consecutive, or not. */
static uint32_t *bucket_of(const kvf_recovery *recovery, uint64_t request_id)
{
  uint64_t hash = request_id * UINT64_C(0x9e3779b97f4a7c15);
  return &recovery->buckets[(hash >> 32) & recovery->buckets_mask];
}

kvf_recovery_entry *kvf_recovery_find(const kvf_recovery *recovery, uint64_t request_id)
{
  for (uint32_t i = *bucket_of(recovery, request_id); i != 0; i = recovery->entries[i - 1].next) {
    if (recovery->entries[i - 1].request_id == request_id) {
      return &recovery->entries[i - 1];
    }
  }
  return NULL;
}

kvf_recovery_entry *kvf_recovery_insert(kvf_recovery *recovery, uint64_t request_id)
{
  size_t i = kvf_bitmap_first(recovery->free_entries, recovery->options.requests_max);
  if (i == recovery->options.requests_max) {
    return NULL;
  }
  kvf_recovery_entry *entry = &recovery->entries[i];
  uint32_t *bucket = bucket_of(recovery, request_id);
  kvf_bitmap_clear(recovery->free_entries, i);
  *entry = (kvf_recovery_entry){.request_id = request_id, .next = *bucket};
  *bucket = (uint32_t)i + 1;
  recovery->stats.open++;
  return entry;
}

void kvf_recovery_remove(kvf_recovery *recovery, kvf_recovery_entry *entry)
{
  uint32_t i = kvf_recovery_index(recovery, entry) + 1;
  uint32_t *link = bucket_of(recovery, entry->request_id);
  while (*link != i) {
    link = &recovery->entries[*link - 1].next;
  }
  *link = entry->next;
  kvf_bitmap_set(recovery->free_entries, i - 1);
  recovery->stats.open--;
}

void kvf_recovery_get_stats(const kvf_recovery *recovery, kvf_recovery_stats *out)
{
  *out = recovery->stats;
}
