/* Which lease slots of an engine are free, and how many blocks are under lease: the control node's side of
 * kvf_lease_reserve() and kvf_lease_release().
 *
 * Ids only grow. Slots are used again in the order of their release. So a slot rests as long as possible, and a late
 * reader recognises the old lease in it. Not for use by several threads at once.
 */
#ifndef KVF_CORE_LEASE_SLOTS_H
#define KVF_CORE_LEASE_SLOTS_H

#include "base/list.h"
#include "core/lease_blocks.h"

#define KVF_LEASE_TOKEN_BYTES 16

typedef struct kvf_lease_slot kvf_lease_slot;

typedef struct kvf_lease_slots {
  kvf_lease_slot *slots;
  kvf_lease_slot *reserved; /* by lease id */
  kvf_list free;            /* first released first */
  uint32_t share_percent;
  uint64_t next_id;
  kvf_lease_blocks named; /* what is known of the reserved leases' blocks */
  uint64_t unnamed;       /* blocks of those of which no more than their number is known */
  bool draining;          /* refuses reservations from now on */
} kvf_lease_slots;

/* `first_id` is random and below 2^62 in production. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_lease_slots_init(kvf_lease_slots *slots, uint32_t count, uint64_t first_id,
                                             uint32_t share_percent);
/* Also after a failed kvf_lease_slots_init(), or of slots that are all zeros. */
void kvf_lease_slots_free(kvf_lease_slots *slots);

/* Reserves a slot for these blocks, of which those that other leases have do not count again. NULL: for `unnamed`
 * blocks, which are not known yet; else that is 0. The engine's pool has `pool_blocks` (0: no cap). `token` is random,
 * the lease's secret. *out is set on success only. KVF_DRAINING: slots.draining. KVF_NO_LEASE: every slot is taken, or
 * the blocks of all leases would be more than share_percent of the pool. KVF_LIMIT: these alone would. KVF_NO_MEMORY.
 * Fails as kvf_lease_blocks_add(), too. */
KVF_MUST_USE kvf_status kvf_lease_slots_reserve(kvf_lease_slots *slots, const kvf_blocks *blocks, uint32_t unnamed,
                                                uint64_t pool_blocks, const uint8_t token[KVF_LEASE_TOKEN_BYTES],
                                                kvf_lease *out);

/* These are the blocks of a lease that was reserved by their number, which counts no more. Without effect on any other
 * lease, or where kvf_lease_blocks_add() fails: then the number goes on counting. */
void kvf_lease_slots_name(kvf_lease_slots *slots, uint64_t lease_id, const kvf_blocks *blocks);

/* KVF_NOT_FOUND: not reserved, or released already. */
kvf_status kvf_lease_slots_release(kvf_lease_slots *slots, uint64_t lease_id);

/* The ranks of the mask have ended the lease, of an engine with these. KVF_OK: all have, and it is released. KVF_AGAIN:
 * not all. KVF_NOT_FOUND: not reserved, or released already. KVF_INVALID: no rank, or none of the engine's. */
KVF_MUST_USE kvf_status kvf_lease_slots_ended(kvf_lease_slots *slots, uint64_t lease_id, uint64_t ranks_mask,
                                              uint32_t ranks);

/* For kvf_core_check(). */
void kvf_lease_slots_check(const kvf_lease_slots *slots, bool costly);
/* Leases that are reserved. */
uint32_t kvf_lease_slots_live(const kvf_lease_slots *slots);

/* Blocks of these, as they count against the share. */
uint64_t kvf_lease_slots_blocks(const kvf_lease_slots *slots);

#endif
