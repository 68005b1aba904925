/* This rank's registered memory: what consumer ranks are told of it, its groups, and how many blocks of what size each
 * has. */
#ifndef KVF_CORE_POOL_H
#define KVF_CORE_POOL_H

#include "kvferry/node.h"
#include "plan/pages.h"
#include "wire/handshake_message.h"
#include "wire/ticket.h"

typedef struct kvf_pool {
  bool exists;
  kvf_welcome welcome; /* as consumer ranks are told it, but for what is the session's; all zeros while there is none */
  kvf_pages pages;     /* of that */
  kvf_rank_layout rank_layout;
  uint32_t groups;                       /* up to the last that has memory here */
  uint32_t group_blocks[KVF_GROUPS_MAX]; /* 0: the group has no memory here, as in a stage of a pipeline without it */
  uint64_t *named[KVF_GROUPS_MAX];       /* scratch: a bit per block of the group, all 0 between calls */
  bool is_device;                        /* some of it is not the host's */
} kvf_pool;

/* `welcome` has regions and is valid; it is copied, its allocations become the pool's. KVF_INVALID: the engine's ranks
 * cannot share the heads evenly. KVF_NO_MEMORY. There is no pool then, as before. */
KVF_MUST_USE kvf_status kvf_pool_set(kvf_pool *pool, const kvf_welcome *welcome);
/* For kvf_core_check(). */
void kvf_pool_check(const kvf_pool *pool, bool costly);
/* Frees it: there is no pool any more. */
void kvf_pool_free(kvf_pool *pool);

/* Whether these blocks can be published. KVF_INVALID: no memory, or a block that it does not have. Any id will do in a
 * group without memory here, which only memory with parts may lack. KVF_LIMIT: more than KVF_BLOCKS_PER_LEASE_MAX. */
KVF_MUST_USE kvf_status kvf_pool_check_blocks(const kvf_pool *pool, const kvf_blocks *blocks);

/* Whether the ticket's positions can be loaded into these blocks. KVF_INVALID: no memory, other positions or groups, a
 * block that it does not have, or one that is named twice in its group. */
KVF_MUST_USE kvf_status kvf_pool_check_destination(const kvf_pool *pool, const kvf_ticket *ticket,
                                                   const kvf_blocks *destination);

#endif
