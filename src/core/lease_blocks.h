/* Which blocks the leases of an engine have: a block counts once, however many of them have it.
 *
 * A block id is one of its KV group's: two groups may have the same. KVF_BLOCK_NONE is no block. All zeros: no lease
 * has any. Each call takes time in the block ids of the lease. Not for use by several threads at once.
 */
#ifndef KVF_CORE_LEASE_BLOCKS_H
#define KVF_CORE_LEASE_BLOCKS_H

#include "kvferry/types.h"

#define KVF_LEASE_BLOCK_IDS_MAX 16777216     /* block ids are below: 4 bytes for each, as far as a group has had them */
#define KVF_LEASE_BLOCKS_LISTED_MAX 16777216 /* block ids of all leases together, those that they share as often */

typedef struct kvf_lease_blocks {
  uint32_t *leases[KVF_GROUPS_MAX]; /* by block id: how many leases have it */
  uint32_t ids_end[KVF_GROUPS_MAX]; /* of that */
  uint64_t listed;                  /* the sum of `leases` */
  uint64_t held;                    /* how many of `leases` are not 0 */
} kvf_lease_blocks;

/* What one lease has. */
typedef struct kvf_block_list kvf_block_list;

void kvf_lease_blocks_free(kvf_lease_blocks *all);

/* A lease has these blocks (copied). On failure nothing has changed. KVF_LIMIT: more groups than KVF_GROUPS_MAX, more
 * positions than KVF_BLOCKS_PER_LEASE_MAX, or a block id out of range. KVF_NO_LEASE: other leases list too many.
 * KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_lease_blocks_add(kvf_lease_blocks *all, const kvf_blocks *blocks, kvf_block_list **out);

/* It has them no more; frees the list. */
void kvf_lease_blocks_remove(kvf_lease_blocks *all, kvf_block_list *list);

/* For kvf_core_check(): costs time in the block ids. */
void kvf_lease_blocks_check(const kvf_lease_blocks *all);
/* How many it has. */
uint32_t kvf_block_list_count(const kvf_block_list *list);

#endif
