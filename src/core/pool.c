/* This rank's registered memory. */
#include "core/pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "base/fence.h"
#include "base/status.h"

void kvf_pool_free(kvf_pool *pool)
{
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    free(pool->named[group]);
  }
  kvf_welcome_free(&pool->welcome);
  *pool = (kvf_pool){.exists = false};
}

kvf_status kvf_pool_set(kvf_pool *pool, const kvf_welcome *welcome)
{
  const kvf_pages pages = {welcome->regions, welcome->regions_count, welcome->layout};
  const kvf_rank_layout rank_layout = kvf_pages_rank_layout(&pages, welcome->rank, welcome->ranks);
  const uint32_t total = rank_layout.share.heads_total;
  if (pages.layout.parts == NULL && total > welcome->ranks && total % welcome->ranks != 0) {
    return kvf_because(KVF_INVALID, "heads_total = %u cannot be shared evenly by ranks = %u", (unsigned)total,
                       (unsigned)welcome->ranks);
  }
  assert(!pool->exists && welcome->regions_count > 0);
  memset(pool, 0, sizeof(*pool));
  pool->pages = pages;
  pool->rank_layout = rank_layout;
  for (uint32_t i = 0; i < kvf_pages_parts(&pages); i++) {
    const kvf_part part = kvf_pages_part(&pages, i);
    const uint32_t blocks = pages.regions[part.region].blocks;
    uint32_t *group_blocks = &pool->group_blocks[part.group];
    pool->is_device = pool->is_device || pages.regions[part.region].memory != KVF_MEMORY_HOST;
    *group_blocks = *group_blocks == 0 || blocks < *group_blocks ? blocks : *group_blocks;
    pool->groups = part.group + 1 > pool->groups ? part.group + 1 : pool->groups;
  }
  for (uint32_t group = 0; group < pool->groups; group++) {
    const uint32_t blocks = pool->group_blocks[group];
    pool->named[group] = blocks > 0 ? calloc(kvf_bitmap_words(blocks), sizeof(uint64_t)) : NULL;
    if (blocks > 0 && pool->named[group] == NULL) {
      kvf_pool_free(pool);
      return KVF_NO_MEMORY;
    }
  }
  pool->welcome = *welcome;
  pool->exists = true;
  return KVF_OK;
}

kvf_status kvf_pool_check_blocks(const kvf_pool *pool, const kvf_blocks *blocks)
{
  const bool may_lack_groups = pool->pages.layout.parts != NULL;
  size_t next = 0;
  if (!pool->exists) {
    return kvf_because(KVF_INVALID, "no memory is registered: kvf_node_register()");
  }
  const uint32_t groups_max = may_lack_groups ? KVF_GROUPS_MAX : pool->groups;
  if (blocks->groups == 0 || blocks->groups > groups_max) {
    return kvf_because(KVF_INVALID, "blocks->groups = %u must be 1 to %u", (unsigned)blocks->groups,
                       (unsigned)groups_max);
  }
  for (uint32_t group = 0; group < blocks->groups; group++) {
    const bool has_memory = pool->group_blocks[group] > 0;
    for (uint32_t i = 0; i < blocks->counts[group]; i++, next++) {
      if (next >= KVF_BLOCKS_PER_LEASE_MAX) {
        return kvf_blocks_check(blocks);
      }
      if (has_memory && blocks->ids[next] != KVF_BLOCK_NONE && blocks->ids[next] >= pool->group_blocks[group]) {
        return kvf_because(KVF_INVALID, "block id %u of position %u of group %u is not below the region's %u blocks",
                           (unsigned)blocks->ids[next], (unsigned)i, (unsigned)group,
                           (unsigned)pool->group_blocks[group]);
      }
    }
  }
  return KVF_OK;
}

/* Two positions in one block: neither could be good. The ids must be in range. */
static kvf_status names_no_block_twice(const kvf_pool *pool, const kvf_blocks *destination)
{
  kvf_status status = KVF_OK;
  for (int pass = 0; pass < 2; pass++) { /* sets the bits, then takes them back */
    size_t next = 0;
    for (uint32_t group = 0; group < destination->groups; group++) {
      uint64_t *named = pool->named[group];
      for (uint32_t i = 0; i < destination->counts[group]; i++, next++) {
        uint32_t block = destination->ids[next];
        if (block == KVF_BLOCK_NONE || pool->group_blocks[group] == 0) {
          continue;
        }
        if (pass == 0 && kvf_bitmap_get(named, block)) {
          status = kvf_because(KVF_INVALID, "block id %u of position %u of group %u is named twice", (unsigned)block,
                               (unsigned)i, (unsigned)group);
        }
        if (pass == 0) {
          kvf_bitmap_set(named, block);
        } else {
          kvf_bitmap_clear(named, block);
        }
      }
    }
  }
  return status;
}

static kvf_status check_positions(const kvf_pool *pool, const kvf_ticket *ticket, const kvf_blocks *destination)
{
  if (destination->groups != ticket->groups || ticket->groups < pool->groups) {
    return kvf_because(KVF_INVALID, "destination.groups = %u: the ticket has %u KV groups, the registered memory %u",
                       (unsigned)destination->groups, (unsigned)ticket->groups, (unsigned)pool->groups);
  }
  for (uint32_t group = 0; group < ticket->groups; group++) {
    if (destination->counts[group] != ticket->counts[group]) {
      return kvf_because(KVF_INVALID, "destination.counts[%u] = %u: the ticket has %u positions of that group",
                         (unsigned)group, (unsigned)destination->counts[group], (unsigned)ticket->counts[group]);
    }
  }
  return KVF_OK;
}

kvf_status kvf_pool_check_destination(const kvf_pool *pool, const kvf_ticket *ticket, const kvf_blocks *destination)
{
  if (!pool->exists) {
    return kvf_because(KVF_INVALID, "no memory is registered: kvf_node_register()");
  }
  kvf_status status = check_positions(pool, ticket, destination);
  if (status == KVF_OK) {
    status = kvf_pool_check_blocks(pool, destination);
  }
  if (status != KVF_OK) {
    return status;
  }
  const size_t positions = kvf_blocks_count(destination);
  for (size_t i = 0; i < positions; i++) {
    if (destination->ids[i] != KVF_BLOCK_NONE && ticket->ids[i] == KVF_BLOCK_NONE) {
      return kvf_because(KVF_INVALID, "destination has block id %u at index %zu, where the ticket has no block",
                         (unsigned)destination->ids[i], i);
    }
  }
  return names_no_block_twice(pool, destination);
}

#ifndef NDEBUG

void kvf_pool_check(const kvf_pool *pool, bool costly)
{
  assert(pool->exists == (pool->welcome.regions_count > 0));
  assert(pool->exists == (pool->groups > 0) && pool->groups <= KVF_GROUPS_MAX);
  assert(!pool->exists || pool->pages.regions == pool->welcome.regions);
  for (uint32_t group = 0; costly && group < KVF_GROUPS_MAX; group++) {
    const uint32_t blocks = pool->group_blocks[group];
    assert(group < pool->groups || blocks == 0);
    assert((pool->named[group] != NULL) == (blocks > 0));
    for (size_t word = 0; word < kvf_bitmap_words(blocks); word++) {
      assert(pool->named[group][word] == 0);
    }
  }
}

#endif
