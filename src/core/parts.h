/* Which heads a consumer rank reads from which producer ranks, when the two engines are split over different numbers of
 * ranks. Rank r of T owns max(1, H/T) of H heads, from head floor(r*H/T) on; where T > H heads are replicated. */
#ifndef KVF_CORE_PARTS_H
#define KVF_CORE_PARTS_H

#include <stdint.h>

#include "kvferry/types.h"

typedef struct kvf_part {
  uint32_t rank;        /* of the producer */
  uint32_t remote_head; /* first head, counted in the producer rank's own */
  uint32_t local_head;  /* first head, counted in the consumer rank's own */
  uint32_t heads;
} kvf_part;

/* Writes the parts that together hold each of the consumer rank's heads exactly once, one part per producer rank, by
 * local_head. Where heads are replicated on the producer's side the consumer ranks spread over the replicas. `parts`
 * and *count are set on success only.
 * KVF_INVALID: a number is 0, consumer_rank is not below consumer_ranks. KVF_LIMIT: more than KVF_RANKS_MAX ranks.
 * KVF_INCOMPATIBLE: the heads cannot be divided evenly over the ranks of one side. */
KVF_MUST_USE kvf_status kvf_parts_plan(uint32_t heads_total, uint32_t producer_ranks, uint32_t consumer_ranks,
                                       uint32_t consumer_rank, kvf_part parts[KVF_RANKS_MAX], uint32_t *count);

#endif
