/* The reads of a load from one source: its blocks, and the shares of its producer ranks. Pure.
 *
 * Several reads go on at the same time, each on its own core, and each reader should have an equal part of the load.
 * Many blocks can be dealt out evenly. A few large ones (states; pages of some megabytes) cannot: then each rank's
 * share is cut by layers. */
#ifndef KVF_PLAN_LOAD_PLAN_H
#define KVF_PLAN_LOAD_PLAN_H

#include "plan/rank_shares.h"
#include "wire/ticket.h"

/* Writes the wanted blocks from position `from` on (positions have block_tokens tokens), by position and then group, so
 * that the groups' prefixes grow together. States, which are of all tokens, come last. At most
 * kvf_ticket_all_positions() of them; returns their count. */
uint32_t kvf_load_plan_items(const kvf_ticket *ticket, uint32_t from, const uint32_t *destination,
                             kvf_transfer_item *items);

/* Who reads. */
typedef struct kvf_load_readers {
  uint32_t count;        /* reads over one link that go on at the same time */
  uint32_t spread_bytes; /* a load of less for each is cut for fewer */
} kvf_load_readers;

typedef struct kvf_load_plan {
  kvf_rank_share shares[KVF_RANKS_MAX]; /* those of one rank follow each other */
  uint32_t count;
  uint32_t cuts; /* shares of one rank, at most */
} kvf_load_plan;

/* Cuts a plan of one share for each rank by layers, if it has few blocks: wanted[i] of group i. `own` is the
 * consumer rank's memory, with what it holds. */
void kvf_load_plan_cut(kvf_load_plan *plan, const kvf_pages *own, const kvf_rank_layout *rank_layout,
                       const uint32_t wanted[KVF_GROUPS_MAX], const kvf_load_readers *readers);

/* The bytes that a slice reads at a time, of blocks of `largest_bytes` at most. The number of chunks is as small as
 * possible, but equal for all readers. */
uint64_t kvf_load_chunk_bytes(uint64_t bytes, uint64_t largest_bytes, uint64_t chunk_bytes_max,
                              const kvf_load_readers *readers);

#endif
