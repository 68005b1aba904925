#include "core/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "base/fence.h"

void kvf_pool_free(kvf_pool *pool)
{
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    free(pool->named[group]);
    pool->named[group] = NULL;
  }
  pool->exists = false;
}

/* Regions without parts do not say where the rank's heads begin: the engine's ranks have them in turn. */
static kvf_status share_of(const kvf_pages *pages, uint32_t rank, uint32_t ranks, kvf_share *share)
{
  *share = kvf_pages_share(pages);
  if (pages->layout.parts != NULL) {
    return KVF_OK;
  }
  const uint32_t total = share->heads_total;
  share->first_head = (uint32_t)((uint64_t)rank * total / ranks);
  return total <= ranks || total % ranks == 0 ? KVF_OK : KVF_INVALID;
}

kvf_status kvf_pool_set(kvf_pool *pool, const kvf_pages *pages, uint32_t rank, uint32_t ranks)
{
  kvf_share share;
  kvf_status status = share_of(pages, rank, ranks, &share);
  if (status != KVF_OK) {
    return status;
  }
  uint64_t block_bytes[KVF_GROUPS_MAX] = {0};
  pool->groups = 0;
  pool->share = share;
  pool->is_device = false;
  for (uint32_t i = 0; i < kvf_pages_parts(pages); i++) {
    const kvf_part part = kvf_pages_part(pages, i);
    const uint32_t blocks = pages->regions[part.region].blocks;
    bool first = block_bytes[part.group] == 0;
    pool->is_device = pool->is_device || pages->regions[part.region].memory != KVF_MEMORY_HOST;
    block_bytes[part.group] += (uint64_t)part.unit_bytes * part.rows * part.heads;
    pool->group_blocks[part.group] =
        first || blocks < pool->group_blocks[part.group] ? blocks : pool->group_blocks[part.group];
    pool->groups = part.group + 1 > pool->groups ? part.group + 1 : pool->groups;
  }
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    pool->head_bytes[group] = (block_bytes[group] + share.heads - 1) / share.heads;
  }
  for (uint32_t group = 0; group < pool->groups; group++) {
    pool->named[group] = calloc(kvf_bitmap_words(pool->group_blocks[group]), sizeof(uint64_t));
    if (pool->named[group] == NULL) {
      kvf_pool_free(pool);
      return KVF_NO_MEMORY;
    }
  }
  pool->exists = true;
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
  if (!pool->exists || destination->groups != ticket->groups || ticket->groups != pool->groups ||
      memcmp(destination->counts, ticket->counts, ticket->groups * sizeof(ticket->counts[0])) != 0 ||
      kvf_pool_check_blocks(pool, destination) != KVF_OK) {
    return KVF_INVALID;
  }
  const size_t positions = kvf_blocks_count(destination);
  for (size_t i = 0; i < positions; i++) {
    if (destination->ids[i] != KVF_BLOCK_NONE && ticket->ids[i] == KVF_BLOCK_NONE) {
      return KVF_INVALID;
    }
  }
  return names_a_block_twice(pool, destination) ? KVF_INVALID : KVF_OK;
}
