#include "core/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"

void kvf_pool_free(kvf_pool *pool)
{
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    free(pool->named[group]);
    pool->named[group] = NULL;
  }
}

kvf_status kvf_pool_set(kvf_pool *pool, const kvf_region *regions, uint32_t count)
{
  pool->groups = 0;
  pool->heads_total = regions[0].heads_total;
  memset(pool->head_bytes, 0, sizeof(pool->head_bytes));
  for (uint32_t i = 0; i < count; i++) {
    uint32_t group = regions[i].group;
    bool first = pool->head_bytes[group] == 0;
    pool->head_bytes[group] += regions[i].block_bytes / regions[i].heads;
    pool->group_blocks[group] =
        first || regions[i].blocks < pool->group_blocks[group] ? regions[i].blocks : pool->group_blocks[group];
    pool->groups = group + 1 > pool->groups ? group + 1 : pool->groups;
  }
  for (uint32_t group = 0; group < pool->groups; group++) {
    pool->named[group] = calloc(kvf_bitmap_words(pool->group_blocks[group]), sizeof(uint64_t));
    if (pool->named[group] == NULL) {
      kvf_pool_free(pool);
      return KVF_NO_MEMORY;
    }
  }
  pool->exists = true;
  pool->has_existed = true;
  return KVF_OK;
}

kvf_status kvf_pool_check_blocks(const kvf_pool *pool, const kvf_blocks *blocks)
{
  size_t next = 0;
  if (!pool->exists || blocks->groups == 0 || blocks->groups > pool->groups) {
    return KVF_INVALID;
  }
  for (uint32_t group = 0; group < blocks->groups; group++) {
    for (uint32_t i = 0; i < blocks->counts[group]; i++, next++) {
      if (next >= KVF_BLOCKS_PER_LEASE_MAX) {
        return KVF_LIMIT;
      }
      if (blocks->ids[next] != KVF_BLOCK_NONE && blocks->ids[next] >= pool->group_blocks[group]) {
        return KVF_INVALID;
      }
    }
  }
  return KVF_OK;
}

/* Two positions in one block: neither could be good. The ids must be in range. */
static bool names_a_block_twice(const kvf_pool *pool, const kvf_blocks *destination)
{
  bool twice = false;
  for (int pass = 0; pass < 2; pass++) { /* sets the bits, then takes them back */
    size_t next = 0;
    for (uint32_t group = 0; group < destination->groups; group++) {
      uint64_t *named = pool->named[group];
      for (uint32_t i = 0; i < destination->counts[group]; i++, next++) {
        uint32_t block = destination->ids[next];
        if (block == KVF_BLOCK_NONE) {
          continue;
        }
        twice = twice || (pass == 0 && kvf_bitmap_get(named, block));
        if (pass == 0) {
          kvf_bitmap_set(named, block);
        } else {
          kvf_bitmap_clear(named, block);
        }
      }
    }
  }
  return twice;
}

kvf_status kvf_pool_check_destination(const kvf_pool *pool, const kvf_ticket *ticket, const kvf_blocks *destination)
{
  if (!pool->exists || destination->groups != ticket->groups || ticket->groups != pool->groups) {
    return KVF_INVALID;
  }
  size_t next = 0;
  for (uint32_t group = 0; group < ticket->groups; group++) {
    if (destination->counts[group] != ticket->counts[group]) {
      return KVF_INVALID;
    }
    for (uint32_t i = 0; i < ticket->counts[group]; i++, next++) {
      uint32_t block = destination->ids[next];
      if (block != KVF_BLOCK_NONE && (block >= pool->group_blocks[group] || ticket->ids[next] == KVF_BLOCK_NONE)) {
        return KVF_INVALID;
      }
    }
  }
  if (names_a_block_twice(pool, destination)) {
    return KVF_INVALID;
  }
  return KVF_OK;
}
