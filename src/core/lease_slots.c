#include "core/lease_slots.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/fence.h"
#include "core/hash.h"

struct kvf_lease_slot {
  uint64_t lease_id;
  uint32_t blocks;
  UT_hash_handle by_id;
};

static_assert(sizeof(((kvf_lease *)0)->token) == KVF_LEASE_TOKEN_BYTES, "the size of a lease's token");

static void check(const kvf_lease_slots *slots)
{
  assert(slots->free_count <= slots->count);
  assert(slots->free_first < slots->count);
  assert(HASH_CNT(by_id, slots->reserved) == slots->count - slots->free_count);
  assert(slots->free_count < slots->count || slots->blocks == 0);
  (void)slots;
}

kvf_status kvf_lease_slots_init(kvf_lease_slots *slots, uint32_t count, uint64_t first_id, uint32_t share_percent)
{
  if (count == 0 || share_percent > 100) {
    return KVF_INVALID;
  }
  *slots = (kvf_lease_slots){.count = count, .free_count = count, .share_percent = share_percent, .next_id = first_id};
  slots->slots = calloc(count, sizeof(*slots->slots));
  slots->free = calloc(count, sizeof(*slots->free));
  if (slots->slots == NULL || slots->free == NULL) {
    kvf_lease_slots_free(slots);
    return KVF_NO_MEMORY;
  }
  for (uint32_t slot = 0; slot < count; slot++) {
    slots->free[slot] = slot;
  }
  check(slots);
  return KVF_OK;
}

void kvf_lease_slots_free(kvf_lease_slots *slots)
{
  HASH_CLEAR(by_id, slots->reserved);
  free(slots->free);
  free(slots->slots);
  *slots = (kvf_lease_slots){0};
}

/* KVF_LIMIT: it never fits; KVF_NO_LEASE: not now. */
static kvf_status fit_share(const kvf_lease_slots *slots, uint32_t blocks, uint64_t pool_blocks)
{
  uint64_t share = slots->share_percent;
  uint64_t cap = pool_blocks / 100 * share + pool_blocks % 100 * share / 100;
  if (pool_blocks == 0) {
    return KVF_OK;
  }
  if (blocks > cap) {
    return KVF_LIMIT;
  }
  return slots->blocks <= cap - blocks ? KVF_OK : KVF_NO_LEASE;
}

/* False if there is no memory. */
/* NOLINTNEXTLINE(readability-function-size): uthash's macros */
static bool insert(kvf_lease_slots *slots, kvf_lease_slot *slot)
{
  HASH_ADD(by_id, slots->reserved, lease_id, sizeof(slot->lease_id), slot);
  return slot->by_id.tbl != NULL;
}

kvf_status kvf_lease_slots_reserve(kvf_lease_slots *slots, uint32_t blocks, uint64_t pool_blocks,
                                   const uint8_t token[KVF_LEASE_TOKEN_BYTES], kvf_lease *out)
{
  if (slots->draining) {
    return KVF_DRAINING;
  }
  kvf_status status = fit_share(slots, blocks, pool_blocks);
  if (status != KVF_OK) {
    return status;
  }
  if (slots->free_count == 0 || slots->next_id >= KVF_LEASE_ID_MAX) {
    return KVF_NO_LEASE;
  }
  uint32_t index = slots->free[slots->free_first];
  kvf_lease_slot *slot = &slots->slots[index];
  *slot = (kvf_lease_slot){.lease_id = slots->next_id, .blocks = blocks};
  if (!insert(slots, slot)) {
    return KVF_NO_MEMORY;
  }
  slots->free_first = (slots->free_first + 1) % slots->count;
  slots->free_count -= 1;
  slots->next_id += 1;
  slots->blocks += blocks;
  *out = (kvf_lease){.id = slot->lease_id, .slot = index};
  memcpy(out->token, token, sizeof(out->token));
  check(slots);
  return KVF_OK;
}

/* NULL if there is none of this id. */
/* NOLINTNEXTLINE(readability-function-size): uthash's macros */
static kvf_lease_slot *take_out(kvf_lease_slots *slots, uint64_t lease_id)
{
  kvf_lease_slot *slot;
  HASH_FIND(by_id, slots->reserved, &lease_id, sizeof(lease_id), slot);
  if (slot != NULL) {
    HASH_DELETE(by_id, slots->reserved, slot);
  }
  return slot;
}

kvf_status kvf_lease_slots_release(kvf_lease_slots *slots, uint64_t lease_id)
{
  const kvf_lease_slot *slot = take_out(slots, lease_id);
  if (slot == NULL) {
    return KVF_NOT_FOUND;
  }
  uint32_t last = (uint32_t)(((uint64_t)slots->free_first + slots->free_count) % slots->count);
  slots->free[last] = (uint32_t)(slot - slots->slots);
  slots->free_count += 1;
  slots->blocks -= slot->blocks;
  check(slots);
  return KVF_OK;
}

void kvf_lease_slots_drain(kvf_lease_slots *slots)
{
  slots->draining = true;
}

uint32_t kvf_lease_slots_live(const kvf_lease_slots *slots)
{
  return slots->count - slots->free_count;
}
