/* Blocks under lease, counted once each. */
#include "core/lease_blocks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/fence.h"
#include "base/status.h"

#define IDS_END_MIN 1024

struct kvf_block_list {
  uint32_t counts[KVF_GROUPS_MAX];
  uint32_t count; /* of all groups */
  uint32_t ids[];
};

void kvf_lease_blocks_free(kvf_lease_blocks *all)
{
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    free(all->leases[group]);
  }
  *all = (kvf_lease_blocks){0};
}

uint32_t kvf_block_list_count(const kvf_block_list *list)
{
  return list->count;
}

/* Without the positions that have no block. */
static kvf_status copy(const kvf_blocks *blocks, kvf_block_list **out)
{
  kvf_status status = kvf_blocks_check(blocks);
  if (status != KVF_OK) {
    return status;
  }
  kvf_block_list *list = malloc(sizeof(*list) + kvf_blocks_count(blocks) * sizeof(list->ids[0]));
  if (list == NULL) {
    return KVF_NO_MEMORY;
  }
  memset(list, 0, sizeof(*list));
  const uint32_t *from = blocks->ids;
  for (uint32_t group = 0; group < blocks->groups; group++) {
    for (const uint32_t *end = from + blocks->counts[group]; from < end; from++) {
      if (*from != KVF_BLOCK_NONE) {
        list->ids[list->count++] = *from;
        list->counts[group]++;
      }
    }
  }
  *out = list;
  return KVF_OK;
}

/* Of one group. */
static kvf_status make_room(kvf_lease_blocks *all, uint32_t group, const uint32_t *ids, uint32_t count)
{
  uint32_t last = 0;
  for (uint32_t i = 0; i < count; i++) {
    last = ids[i] > last ? ids[i] : last;
  }
  if (last >= KVF_LEASE_BLOCK_IDS_MAX) {
    return kvf_because(KVF_LIMIT, "block id %u of group %u is not below %d", (unsigned)last, (unsigned)group,
                       KVF_LEASE_BLOCK_IDS_MAX);
  }
  uint32_t end = all->ids_end[group];
  if (count == 0 || last < end) {
    return KVF_OK;
  }
  for (end = end == 0 ? IDS_END_MIN : end; end <= last;) {
    end *= 2;
  }
  uint32_t *leases = realloc(all->leases[group], end * sizeof(*leases));
  if (leases == NULL) {
    return KVF_NO_MEMORY;
  }
  memset(leases + all->ids_end[group], 0, (end - all->ids_end[group]) * sizeof(*leases));
  all->leases[group] = leases;
  all->ids_end[group] = end;
  return KVF_OK;
}

static kvf_status make_room_for(kvf_lease_blocks *all, const kvf_block_list *list)
{
  if (list->count > KVF_LEASE_BLOCKS_LISTED_MAX - all->listed) {
    return kvf_because(KVF_NO_LEASE, "all leases together would list more than %d block ids",
                       KVF_LEASE_BLOCKS_LISTED_MAX);
  }
  kvf_status status = KVF_OK;
  const uint32_t *ids = list->ids;
  for (uint32_t group = 0; status == KVF_OK && group < KVF_GROUPS_MAX; ids += list->counts[group++]) {
    status = make_room(all, group, ids, list->counts[group]);
  }
  return status;
}

kvf_status kvf_lease_blocks_add(kvf_lease_blocks *all, const kvf_blocks *blocks, kvf_block_list **out)
{
  kvf_block_list *list = NULL;
  kvf_status status = copy(blocks, &list);
  if (status == KVF_OK) {
    status = make_room_for(all, list);
  }
  if (status != KVF_OK) {
    free(list);
    return status;
  }
  const uint32_t *id = list->ids;
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    for (const uint32_t *end = id + list->counts[group]; id < end; id++) {
      all->held += all->leases[group][*id]++ == 0;
    }
  }
  all->listed += list->count;
  assert(all->held <= all->listed);
  *out = list;
  return KVF_OK;
}

void kvf_lease_blocks_remove(kvf_lease_blocks *all, kvf_block_list *list)
{
  const uint32_t *id = list->ids;
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    for (const uint32_t *end = id + list->counts[group]; id < end; id++) {
      assert(all->leases[group][*id] > 0);
      all->held -= --all->leases[group][*id] == 0;
    }
  }
  all->listed -= list->count;
  assert(all->held <= all->listed && (all->held == 0) == (all->listed == 0));
  free(list);
}

#ifndef NDEBUG

void kvf_lease_blocks_check(const kvf_lease_blocks *all)
{
  uint64_t listed = 0;
  uint64_t held = 0;
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    assert((all->leases[group] != NULL) == (all->ids_end[group] > 0));
    for (uint32_t id = 0; id < all->ids_end[group]; id++) {
      listed += all->leases[group][id];
      held += all->leases[group][id] > 0;
    }
  }
  assert(listed == all->listed && listed <= KVF_LEASE_BLOCKS_LISTED_MAX);
  assert(held == all->held);
}

#endif
