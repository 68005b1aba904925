/* The ranks of one request, merged: what they have found of its load, and which of them it has released. The request
 * machine and kvferry/recovery.h stand on this. */
#ifndef KVF_CORE_RANKS_H
#define KVF_CORE_RANKS_H

#include "kvferry/node.h"

typedef struct kvf_ranks {
  kvf_report merged; /* ranks_mask: those that have reported */
  uint64_t released; /* those on which nothing of the load writes any more */
  uint64_t all;
  bool stuck; /* nobody knows when some rank will be released */
} kvf_ranks;

/* 1 to KVF_RANKS_MAX ranks that load `blocks` positions. */
kvf_ranks kvf_ranks_of(uint32_t ranks, uint64_t request_id, uint32_t blocks);

/* KVF_INVALID, and nothing has changed: ranks that are none of these, or another number of blocks. */
kvf_status kvf_ranks_report(kvf_ranks *ranks, const kvf_report *report);
kvf_status kvf_ranks_release(kvf_ranks *ranks, uint64_t mask);

/* For kvf_core_check(). */
void kvf_ranks_check(const kvf_ranks *ranks);
bool kvf_ranks_have_reported(const kvf_ranks *ranks);
/* Each has reported, or was released without a report. */
bool kvf_ranks_are_in(const kvf_ranks *ranks);
bool kvf_ranks_are_released(const kvf_ranks *ranks);

#endif
