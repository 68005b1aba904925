/* Slots and ids for leases (control node). */
#include "core/lease_slots.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/fence.h"
#include "base/status.h"
#include "core/check_list.h"
#include "core/hash.h"

struct kvf_lease_slot {
  uint64_t lease_id;
  uint64_t ended_mask;   /* ranks that have ended it */
  uint32_t unnamed;      /* blocks, as long as they are not known */
  kvf_block_list *named; /* NULL: not known */
  UT_hash_handle by_id;
  kvf_list free; /* in kvf_lease_slots.free */
};

static_assert(sizeof(((kvf_lease *)0)->token) == KVF_LEASE_TOKEN_BYTES, "the size of a lease's token");

kvf_status kvf_lease_slots_init(kvf_lease_slots *slots, uint32_t count, uint64_t first_id, uint32_t share_percent)
{
  *slots = (kvf_lease_slots){.share_percent = share_percent, .next_id = first_id};
  kvf_list_init(&slots->free);
  slots->slots = calloc(count, sizeof(*slots->slots));
  if (slots->slots == NULL) {
    return KVF_NO_MEMORY;
  }
  for (uint32_t slot = 0; slot < count; slot++) {
    kvf_list_push_back(&slots->free, &slots->slots[slot].free);
  }
  return KVF_OK;
}

/* Of a lease that ends. */
static void forget_blocks(kvf_lease_slots *slots, kvf_lease_slot *slot)
{
  if (slot->named != NULL) {
    kvf_lease_blocks_remove(&slots->named, slot->named);
  }
  slot->named = NULL;
  assert(slots->unnamed >= slot->unnamed);
  slots->unnamed -= slot->unnamed;
  slot->unnamed = 0;
}

void kvf_lease_slots_free(kvf_lease_slots *slots)
{
  for (kvf_lease_slot *slot = slots->reserved; slot != NULL; slot = slot->by_id.next) {
    forget_blocks(slots, slot);
  }
  HASH_CLEAR(by_id, slots->reserved);
  kvf_lease_blocks_free(&slots->named);
  free(slots->slots);
  *slots = (kvf_lease_slots){0};
}

/* Of blocks that by themselves are `alone`, and with those under lease `all`. KVF_LIMIT: they never fit; KVF_NO_LEASE:
 * not now. */
static kvf_status fit_share(const kvf_lease_slots *slots, uint32_t alone, uint64_t all, uint64_t pool_blocks)
{
  uint64_t share = slots->share_percent;
  uint64_t cap = pool_blocks / 100 * share + pool_blocks % 100 * share / 100;
  if (pool_blocks == 0) {
    return KVF_OK;
  }
  if (alone > cap) {
    return kvf_because(KVF_LIMIT, "%u blocks: lease_pool_share_percent = %u of %llu pool blocks allows %llu",
                       (unsigned)alone, (unsigned)slots->share_percent, (unsigned long long)pool_blocks,
                       (unsigned long long)cap);
  }
  return all <= cap ? KVF_OK
                    : kvf_because(KVF_NO_LEASE,
                                  "%llu blocks would be leased: lease_pool_share_percent = %u of %llu pool blocks "
                                  "allows %llu",
                                  (unsigned long long)all, (unsigned)slots->share_percent,
                                  (unsigned long long)pool_blocks, (unsigned long long)cap);
}

static kvf_status take_slot(kvf_lease_slots *slots, kvf_block_list *named, uint32_t unnamed,
                            const uint8_t token[KVF_LEASE_TOKEN_BYTES], kvf_lease *out)
{
  if (kvf_list_is_empty(&slots->free) || slots->next_id >= KVF_LEASE_ID_MAX) {
    return kvf_because(KVF_NO_LEASE, "all lease slots are in use (option lease_slots)");
  }
  kvf_lease_slot *slot = KVF_CONTAINER_OF(slots->free.next, kvf_lease_slot, free);
  assert(slot->named == NULL && slot->unnamed == 0);
  slot->lease_id = slots->next_id;
  slot->ended_mask = 0;
  HASH_ADD(by_id, slots->reserved, lease_id, sizeof(slot->lease_id), slot);
  if (slot->by_id.tbl == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_list_remove(&slot->free);
  slots->next_id += 1;
  slots->unnamed += unnamed;
  slot->unnamed = unnamed;
  slot->named = named;
  *out = (kvf_lease){.id = slot->lease_id, .slot = (uint32_t)(slot - slots->slots)};
  memcpy(out->token, token, sizeof(out->token));
  return KVF_OK;
}

kvf_status kvf_lease_slots_reserve(kvf_lease_slots *slots, const kvf_blocks *blocks, uint32_t unnamed,
                                   uint64_t pool_blocks, const uint8_t token[KVF_LEASE_TOKEN_BYTES], kvf_lease *out)
{
  assert(blocks == NULL || unnamed == 0);
  if (slots->draining) {
    return kvf_because(KVF_DRAINING, "kvf_node_drain() has been called: this node takes no new leases");
  }
  kvf_block_list *named = NULL;
  kvf_status status = blocks == NULL ? KVF_OK : kvf_lease_blocks_add(&slots->named, blocks, &named);
  if (status != KVF_OK) {
    return status;
  }
  const uint32_t alone = named == NULL ? unnamed : kvf_block_list_count(named);
  status = fit_share(slots, alone, kvf_lease_slots_blocks(slots) + unnamed, pool_blocks);
  if (status == KVF_OK) {
    status = take_slot(slots, named, unnamed, token, out);
  }
  if (status != KVF_OK && named != NULL) {
    kvf_lease_blocks_remove(&slots->named, named);
  }
  return status;
}

static kvf_lease_slot *find(const kvf_lease_slots *slots, uint64_t lease_id)
{
  kvf_lease_slot *slot;
  HASH_FIND(by_id, slots->reserved, &lease_id, sizeof(lease_id), slot);
  return slot;
}

static kvf_status not_reserved(uint64_t lease_id)
{
  return kvf_because(KVF_NOT_FOUND, "lease %llu has been released already, or was never reserved",
                     (unsigned long long)lease_id);
}

void kvf_lease_slots_name(kvf_lease_slots *slots, uint64_t lease_id, const kvf_blocks *blocks)
{
  kvf_block_list *list;
  kvf_lease_slot *slot = find(slots, lease_id);
  if (slot == NULL || slot->named != NULL || kvf_lease_blocks_add(&slots->named, blocks, &list) != KVF_OK) {
    return;
  }
  forget_blocks(slots, slot);
  slot->named = list;
}

kvf_status kvf_lease_slots_ended(kvf_lease_slots *slots, uint64_t lease_id, uint64_t ranks_mask, uint32_t ranks)
{
  const uint64_t all = UINT64_MAX >> (64 - ranks);
  if (ranks_mask == 0 || (ranks_mask & ~all) != 0) {
    return kvf_because(KVF_INVALID, "ranks_mask = %#llx must be some of %#llx", (unsigned long long)ranks_mask,
                       (unsigned long long)all);
  }
  kvf_lease_slot *slot = find(slots, lease_id);
  if (slot == NULL) {
    return not_reserved(lease_id);
  }
  slot->ended_mask |= ranks_mask;
  return slot->ended_mask == all ? kvf_lease_slots_release(slots, lease_id) : KVF_AGAIN;
}

kvf_status kvf_lease_slots_release(kvf_lease_slots *slots, uint64_t lease_id)
{
  kvf_lease_slot *slot = find(slots, lease_id);
  if (slot == NULL) {
    return not_reserved(lease_id);
  }
  HASH_DELETE(by_id, slots->reserved, slot);
  kvf_list_push_back(&slots->free, &slot->free);
  forget_blocks(slots, slot);
  assert(HASH_CNT(by_id, slots->reserved) > 0 || (slots->unnamed == 0 && slots->named.listed == 0));
  return KVF_OK;
}

uint32_t kvf_lease_slots_live(const kvf_lease_slots *slots)
{
  return HASH_CNT(by_id, slots->reserved);
}

uint64_t kvf_lease_slots_blocks(const kvf_lease_slots *slots)
{
  return slots->named.held + slots->unnamed;
}

#ifndef NDEBUG

void kvf_lease_slots_check(const kvf_lease_slots *slots, bool costly)
{
  uint64_t unnamed = 0;
  uint64_t listed = 0;
  for (const kvf_lease_slot *slot = slots->reserved; slot != NULL; slot = slot->by_id.next) {
    assert(slot->lease_id < slots->next_id && !kvf_list_is_linked(&slot->free));
    assert(slot->named == NULL || slot->unnamed == 0);
    unnamed += slot->unnamed;
    listed += slot->named == NULL ? 0 : kvf_block_list_count(slot->named);
  }
  assert(unnamed == slots->unnamed);
  assert(listed == slots->named.listed);
  assert(slots->named.held <= listed);
  if (costly) {
    kvf_lease_blocks_check(&slots->named);
    for (const kvf_list *node = slots->free.next; node != &slots->free; node = node->next) {
      const kvf_lease_slot *slot = KVF_CONTAINER_OF(node, kvf_lease_slot, free);
      assert(slot->named == NULL && slot->unnamed == 0);
    }
  }
}

#endif
