/* Host memory with regions like a pool's, into which an engine's blocks are copied in the order of its stream. */
#include "kvferry/staging.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "memory/memory.h"
#include "memory/points.h"

#define ALIGNMENT_BYTES 4096u /* of each region's first block */
#define RUNS_MAX 256          /* that a kind is given at a time: none takes fewer */

/* A copy that may not be complete yet. */
typedef struct begun_copy {
  uint64_t number;
  void *mark; /* NULL: it is */
  bool is_good;
} begun_copy;

struct kvf_staging {
  const kvf_memory_ops *ops; /* of the pool's kind */
  uint32_t device;
  uint32_t blocks;
  uint32_t regions_count;
  kvf_region *pool;
  kvf_region *regions;
  size_t bytes;
  uint8_t *memory;
  void *pinned; /* the kind's own, of the memory */
  uint64_t last_number;
  bool is_lost;         /* nobody knows what is under way */
  pthread_mutex_t lock; /* guards what follows */
  uint64_t copied;
  uint32_t begun_first;
  uint32_t begun_count;
  begun_copy begun[KVF_STAGING_COPIES_MAX]; /* a ring */
};

/* ---- memory ---- */

static kvf_status check_pool(const kvf_region *pool, size_t count, uint32_t blocks, const char *library, char *message)
{
  if (pool == NULL || count == 0 || blocks == 0) {
    return kvf_fail(KVF_INVALID, message, "a staging needs regions and blocks");
  }
  if (count > KVF_REGIONS_MAX) {
    return kvf_fail(KVF_LIMIT, message, "more than %d regions", KVF_REGIONS_MAX);
  }
  for (size_t i = 0; i < count; i++) {
    if (pool[i].memory != pool[0].memory || pool[i].device != pool[0].device) {
      return kvf_fail(KVF_INVALID, message, "region %zu is not of the same memory and device as the first", i);
    }
  }
  const kvf_memory_ops *ops = kvf_memory_ops_of(pool[0].memory);
  kvf_status status = KVF_OK;
  if (ops != NULL && ops->open != NULL) {
    status = ops->open(library, message);
  }
  return status == KVF_OK ? kvf_memory_check(pool, (uint32_t)count, message) : status;
}

static size_t region_bytes(const kvf_region *region, uint32_t blocks)
{
  const size_t bytes = (size_t)region->block_bytes * blocks;
  return (bytes + ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
}

static bool take_memory(kvf_staging *staging)
{
  for (uint32_t i = 0; i < staging->regions_count; i++) {
    staging->bytes += region_bytes(&staging->pool[i], staging->blocks);
  }
  if (staging->ops->pin != NULL) {
    return staging->ops->pin(staging->device, staging->bytes, &staging->memory, &staging->pinned);
  }
  staging->memory = aligned_alloc(ALIGNMENT_BYTES, staging->bytes);
  return staging->memory != NULL;
}

static void lay_out(kvf_staging *staging)
{
  size_t offset = 0;
  for (uint32_t i = 0; i < staging->regions_count; i++) {
    kvf_region *region = &staging->regions[i];
    *region = staging->pool[i];
    region->base = staging->memory + offset;
    region->stride_bytes = region->block_bytes;
    region->blocks = staging->blocks;
    region->memory = KVF_MEMORY_HOST;
    region->device = 0;
    offset += region_bytes(region, staging->blocks);
  }
}

static void free_staging(kvf_staging *staging)
{
  if (staging->pinned != NULL) {
    staging->ops->unpin(staging->pinned);
  } else {
    free(staging->memory);
  }
  free(staging->regions);
  free(staging->pool);
  (void)pthread_mutex_destroy(&staging->lock);
  free(staging);
}

kvf_status kvf_staging_open(const kvf_region *pool, size_t count, uint32_t blocks, const char *cuda_library,
                            kvf_staging **out, char message[KVF_MESSAGE_BYTES_MAX])
{
  char unused[KVF_MESSAGE_BYTES_MAX];
  char *said = message != NULL ? message : unused;
  said[0] = '\0';
  *out = NULL;
  kvf_status status = check_pool(pool, count, blocks, cuda_library, said);
  if (status != KVF_OK) {
    return kvf_answer_as(status, said);
  }
  kvf_staging *staging = calloc(1, sizeof(*staging));
  if (staging == NULL) {
    return kvf_answer_as(kvf_fail(KVF_NO_MEMORY, said, "no memory for a staging"), said);
  }
  staging->ops = kvf_memory_ops_of(pool[0].memory);
  staging->device = pool[0].device;
  staging->blocks = blocks;
  staging->regions_count = (uint32_t)count;
  (void)pthread_mutex_init(&staging->lock, NULL);
  staging->pool = malloc(count * sizeof(*pool));
  staging->regions = malloc(count * sizeof(*pool));
  if (staging->pool != NULL && staging->regions != NULL) {
    memcpy(staging->pool, pool, count * sizeof(*pool));
    if (take_memory(staging)) {
      lay_out(staging);
      *out = staging;
      return KVF_OK;
    }
  }
  status =
      kvf_fail(KVF_NO_MEMORY, said, "no memory for %u blocks of staging (%zu bytes)", (unsigned)blocks, staging->bytes);
  free_staging(staging);
  return kvf_answer_as(status, said);
}

void kvf_staging_regions(const kvf_staging *staging, kvf_region *out)
{
  memcpy(out, staging->regions, staging->regions_count * sizeof(*out));
}

/* ---- copies ---- */

/* Under the lock. */
static void look(kvf_staging *staging)
{
  while (staging->begun_count > 0) {
    const begun_copy *first = &staging->begun[staging->begun_first];
    if (first->mark != NULL && !staging->ops->is_complete(first->mark)) {
      return;
    }
    if (first->mark != NULL) {
      staging->ops->unmark(first->mark);
    }
    staging->copied = first->is_good ? first->number : staging->copied;
    staging->begun_first = (staging->begun_first + 1) % KVF_STAGING_COPIES_MAX;
    staging->begun_count--;
  }
}

uint64_t kvf_staging_copied(kvf_staging *staging)
{
  (void)pthread_mutex_lock(&staging->lock);
  look(staging);
  uint64_t copied = staging->copied;
  (void)pthread_mutex_unlock(&staging->lock);
  return copied;
}

static bool has_room(kvf_staging *staging)
{
  (void)kvf_staging_copied(staging);
  (void)pthread_mutex_lock(&staging->lock);
  bool room = staging->begun_count < KVF_STAGING_COPIES_MAX;
  (void)pthread_mutex_unlock(&staging->lock);
  return room;
}

static void remember(kvf_staging *staging, uint64_t number, void *mark, bool is_good)
{
  (void)pthread_mutex_lock(&staging->lock);
  const uint32_t at = (staging->begun_first + staging->begun_count) % KVF_STAGING_COPIES_MAX;
  staging->begun[at] = (begun_copy){.number = number, .mark = mark, .is_good = is_good};
  staging->begun_count++;
  (void)pthread_mutex_unlock(&staging->lock);
}

/* Of a group, the first block's id in `blocks`. */
static uint32_t first_of_group(const kvf_blocks *blocks, uint32_t group)
{
  uint32_t first = 0;
  for (uint32_t i = 0; i < group; i++) {
    first += blocks->counts[i];
  }
  return first;
}

static kvf_status are_in_range(const kvf_staging *staging, const kvf_region *pool, const uint32_t *from,
                               const uint32_t *to, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    const bool is_wanted = from[i] != KVF_BLOCK_NONE && to[i] != KVF_BLOCK_NONE;
    if (is_wanted && (from[i] >= staging->blocks || to[i] >= pool->blocks)) {
      return kvf_because(KVF_INVALID, "from id %u and to id %u of group %u must be below %u and %u blocks",
                         (unsigned)from[i], (unsigned)to[i], (unsigned)pool->group, (unsigned)staging->blocks,
                         (unsigned)pool->blocks);
    }
  }
  return KVF_OK;
}

static kvf_status check_copy(const kvf_staging *staging, uint64_t number, const kvf_blocks *from, const kvf_blocks *to,
                             const kvf_ordering_point *on)
{
  const bool has_stream = staging->ops->copy_on != NULL;
  if (number <= staging->last_number) {
    return kvf_because(KVF_INVALID, "number = %llu must be above that of the copy before, %llu",
                       (unsigned long long)number, (unsigned long long)staging->last_number);
  }
  if (from->groups != to->groups || memcmp(from->counts, to->counts, from->groups * sizeof(from->counts[0])) != 0) {
    return kvf_because(KVF_INVALID, "the groups of from and to have different numbers of blocks, %u and %u",
                       (unsigned)from->groups, (unsigned)to->groups);
  }
  if (has_stream != (on != NULL) ||
      (on != NULL && (on->memory != staging->ops->kind || on->device != staging->device))) {
    return kvf_because(KVF_INVALID, has_stream ? "on must be a stream of the pool's device, %u" : "on must be NULL%.0u",
                       (unsigned)staging->device);
  }
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i < staging->regions_count; i++) {
    const kvf_region *region = &staging->pool[i];
    if (region->group < from->groups) {
      const uint32_t first = first_of_group(from, region->group);
      status = are_in_range(staging, region, from->ids + first, to->ids + first, from->counts[region->group]);
    }
  }
  return status != KVF_OK || on == NULL || staging->ops->check_point == NULL ? status : staging->ops->check_point(on);
}

typedef struct runs {
  struct iovec to[RUNS_MAX];
  struct iovec from[RUNS_MAX];
  size_t count;
} runs;

static bool post(const kvf_staging *staging, const kvf_ordering_point *on, runs *all)
{
  const size_t count = all->count;
  all->count = 0;
  if (count == 0) {
    return true;
  }
  return on != NULL ? staging->ops->copy_on(on, all->to, all->from, count)
                    : staging->ops->copy_in(staging->device, all->to, all->from, count);
}

static struct iovec block_of(const kvf_region *region, uint32_t id)
{
  return (struct iovec){(uint8_t *)region->base + region->stride_bytes * id, region->block_bytes};
}

static bool copy_region(const kvf_staging *staging, uint32_t index, const kvf_blocks *from, const kvf_blocks *to,
                        const kvf_ordering_point *on, runs *all)
{
  const uint32_t group = staging->pool[index].group;
  const uint32_t first = first_of_group(from, group);
  for (uint32_t i = first; i < first + from->counts[group]; i++) {
    if (from->ids[i] == KVF_BLOCK_NONE || to->ids[i] == KVF_BLOCK_NONE) {
      continue;
    }
    all->from[all->count] = block_of(&staging->regions[index], from->ids[i]);
    all->to[all->count++] = block_of(&staging->pool[index], to->ids[i]);
    if (all->count == RUNS_MAX && !post(staging, on, all)) {
      return false;
    }
  }
  return true;
}

/* Of a copy that has failed part of it may be under way: it is waited for like any other. */
static kvf_status end_copy(kvf_staging *staging, uint64_t number, const kvf_ordering_point *on, bool is_good)
{
  void *mark = NULL;
  kvf_status status = on == NULL ? KVF_OK : staging->ops->mark(on, &mark);
  if (status == KVF_OK) {
    remember(staging, number, mark, is_good);
    status = is_good ? KVF_OK : KVF_TRANSFER_FAILED;
  } else {
    staging->is_lost = true;
  }
  staging->last_number = status == KVF_OK ? number : UINT64_MAX; /* nothing comes after a copy that has failed */
  return status;
}

kvf_status kvf_staging_copy(kvf_staging *staging, uint64_t number, const kvf_blocks *from, const kvf_blocks *to,
                            const kvf_ordering_point *on)
{
  runs all;
  kvf_status status = check_copy(staging, number, from, to, on);
  if (status == KVF_OK && !has_room(staging)) {
    status = kvf_because(KVF_LIMIT, "%d copies are not complete yet, KVF_STAGING_COPIES_MAX", KVF_STAGING_COPIES_MAX);
  }
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  bool good = true;
  all.count = 0;
  for (uint32_t i = 0; good && i < staging->regions_count; i++) {
    good = staging->pool[i].group >= from->groups || copy_region(staging, i, from, to, on, &all);
  }
  good = good && post(staging, on, &all);
  return kvf_answer(end_copy(staging, number, on, good));
}

/* ---- the end ---- */

static bool is_idle(kvf_staging *staging)
{
  (void)kvf_staging_copied(staging);
  (void)pthread_mutex_lock(&staging->lock);
  bool idle = staging->begun_count == 0;
  (void)pthread_mutex_unlock(&staging->lock);
  return idle;
}

static bool device_is_lost(const kvf_staging *staging)
{
  return staging->is_lost || (staging->ops->works != NULL && !staging->ops->works(staging->device));
}

void kvf_staging_close(kvf_staging *staging)
{
  if (staging == NULL) {
    return;
  }
  while (!is_idle(staging) && !device_is_lost(staging)) {
    (void)nanosleep(&(struct timespec){.tv_nsec = KVF_POINTS_POLL_NS}, NULL);
  }
  if (!device_is_lost(staging)) { /* else the driver may still have the memory in hand: it stays */
    free_staging(staging);
  }
}
