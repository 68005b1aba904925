/* Which producer ranks a consumer rank reads from, and what of each, when the two engines are split over different
 * numbers of ranks. Pure.
 *
 * Ranks of a producer that have the same layers are a stage of its pipeline; often there is one only. A stage's ranks
 * split the heads, or replicate them where there are fewer heads than ranks; where tokens are dealt, neighbours share
 * heads. A consumer rank, which may be of a stage itself, reads from each stage that has some of its layers.
 */
#ifndef KVF_PLAN_RANK_SHARES_H
#define KVF_PLAN_RANK_SHARES_H

#include "plan/pages.h"
#include "wire/rank_record.h"

/* What one producer rank has of a consumer rank's heads and layers. */
typedef struct kvf_rank_share {
  uint32_t rank;        /* of the producer */
  uint32_t remote_head; /* first head, counted in the producer rank's own */
  uint32_t local_head;  /* first head, counted in the consumer rank's own */
  uint32_t heads;
  uint32_t dealt;     /* ranks that the producer's tokens are dealt to */
  uint32_t deal_rank; /* of this rank among them */
  kvf_layers layers;  /* the consumer rank's, from the first to the last in this rank's stage */
} kvf_rank_share;

/* The shares of one stage of `stage_ranks` ranks, numbered within it; their layers are left empty. `own` is the
 * consumer rank's share. Rank r of T owns max(1, H/T) of H heads, from head floor(r*H/T) on. Writes the shares that
 * together hold each of the consumer rank's heads (and each token of it) exactly once, by local_head. Where heads are
 * replicated it is their turn-th replica, counted round. `shares` and *count are set on success only.
 * KVF_INVALID: a number is 0, or heads that are not among the total. KVF_LIMIT: more than KVF_RANKS_MAX ranks.
 * KVF_INCOMPATIBLE: heads or tokens cannot be divided evenly over the ranks. */
KVF_MUST_USE kvf_status kvf_rank_shares(const kvf_share *own, uint32_t stage_ranks, uint32_t dealt, uint64_t turn,
                                        kvf_rank_share shares[KVF_RANKS_MAX], uint32_t *count);

/* The shares of all stages of a producer with these ranks, no rank twice, for a consumer rank with these pages, of one
 * part at least. A rank without a list of layers counts as one with all layers. As kvf_rank_shares(), but `shares` may
 * be written to on failure.
 * KVF_INCOMPATIBLE: also stages that overlap or have different numbers of ranks, or a layer of the consumer rank that
 * no stage has. `message` (KVF_MESSAGE_BYTES_MAX) names it. */
KVF_MUST_USE kvf_status kvf_stage_shares(const kvf_pages *pages, const kvf_rank_layout *own,
                                         const kvf_rank_record *ranks, uint32_t ranks_count, uint64_t turn,
                                         kvf_rank_share shares[KVF_RANKS_MAX], uint32_t *count, char *message);

/* Whether in each stage several ranks have the same heads and tokens. */
bool kvf_ranks_have_replicas(uint32_t heads_total, const kvf_rank_record *ranks, uint32_t ranks_count);

/* Whether a rank has, as its own description says, what was planned to be read from it. */
bool kvf_rank_share_is_held(const kvf_rank_share *share, const kvf_rank_layout *own, const kvf_rank_layout *rank);

#endif
