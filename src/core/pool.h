/* This rank's registered memory, as far as the core has to know it: groups, and how many blocks of what size each has.
 */
#ifndef KVF_CORE_POOL_H
#define KVF_CORE_POOL_H

#include "kvferry/node.h"
#include "wire/pages.h"
#include "wire/ticket.h"

typedef struct kvf_pool {
  bool exists;
  uint32_t groups;
  uint64_t head_bytes[KVF_GROUPS_MAX]; /* of one head of the share in one block, over all parts of the group */
  uint32_t group_blocks[KVF_GROUPS_MAX];
  uint64_t *named[KVF_GROUPS_MAX]; /* scratch: a bit per block of the group, all 0 between calls */
  kvf_share share;                 /* this rank's */
  bool is_device;                  /* some of it is not the host's */
} kvf_pool;

/* There are regions, and the pages are valid. The engine has so many ranks, and this is one of them. KVF_INVALID: they
 * cannot share the heads evenly. KVF_NO_MEMORY. There is no pool then, as before. */
KVF_MUST_USE kvf_status kvf_pool_set(kvf_pool *pool, const kvf_pages *pages, uint32_t rank, uint32_t ranks);
/* There is none any more. */
void kvf_pool_free(kvf_pool *pool);

/* Whether these blocks can be published. KVF_INVALID: no memory, or a group or block that it does not have. KVF_LIMIT:
 * more than KVF_BLOCKS_PER_LEASE_MAX. */
KVF_MUST_USE kvf_status kvf_pool_check_blocks(const kvf_pool *pool, const kvf_blocks *blocks);

/* Whether the ticket's positions can be loaded into these blocks. KVF_INVALID: no memory, other positions, a block that
 * it does not have, or one that is named twice in its group. */
KVF_MUST_USE kvf_status kvf_pool_check_destination(const kvf_pool *pool, const kvf_ticket *ticket,
                                                   const kvf_blocks *destination);

#endif
