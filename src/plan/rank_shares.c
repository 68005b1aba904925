/* Which ranks of a producer are read, and which heads and tokens of each. */
#include "plan/rank_shares.h"

#include <inttypes.h>

#include "base/status.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
  return a < b ? a : b;
}

/* ---- a stage ---- */

static uint32_t heads_per_rank(uint32_t heads_total, uint32_t ranks)
{
  return heads_total > ranks ? heads_total / ranks : 1;
}

static uint32_t first_head(uint32_t heads_total, uint32_t ranks, uint32_t rank)
{
  return (uint32_t)((uint64_t)rank * heads_total / ranks);
}

/* The lowest rank whose heads begin at `head` or later. */
static uint32_t first_rank_from(uint32_t heads_total, uint32_t ranks, uint32_t head)
{
  return (uint32_t)(((uint64_t)head * ranks + heads_total - 1) / heads_total);
}

static uint32_t rank_to_read(uint32_t heads_total, uint32_t stage_ranks, uint64_t turn, uint32_t head)
{
  if (stage_ranks <= heads_total) {
    return head / heads_per_rank(heads_total, stage_ranks);
  }
  uint32_t first = first_rank_from(heads_total, stage_ranks, head);
  uint32_t replicas = first_rank_from(heads_total, stage_ranks, head + 1) - first;
  return first + (uint32_t)(turn % replicas);
}

static kvf_status check_ranks(const kvf_share *own, uint32_t stage_ranks, uint32_t dealt)
{
  if (own->heads == 0 || stage_ranks == 0 || dealt == 0 || own->first_head > own->heads_total ||
      own->heads > own->heads_total - own->first_head) {
    return KVF_INVALID;
  }
  if (stage_ranks > KVF_RANKS_MAX) {
    return KVF_LIMIT;
  }
  uint32_t splits = stage_ranks / dealt;
  if (stage_ranks % dealt != 0 || (splits < own->heads_total && own->heads_total % splits != 0)) {
    return KVF_INCOMPATIBLE;
  }
  return KVF_OK;
}

kvf_status kvf_rank_shares(const kvf_share *own, uint32_t stage_ranks, uint32_t dealt, uint64_t turn,
                           kvf_rank_share shares[KVF_RANKS_MAX], uint32_t *count)
{
  kvf_status status = check_ranks(own, stage_ranks, dealt);
  if (status != KVF_OK) {
    return status;
  }
  const uint32_t total = own->heads_total;
  const uint32_t splits = stage_ranks / dealt;
  uint32_t written = 0;
  for (uint32_t done = 0; done < own->heads;) {
    uint32_t head = own->first_head + done;
    uint32_t split = rank_to_read(total, splits, turn, head);
    uint32_t remote = head - first_head(total, splits, split);
    uint32_t together = smaller(heads_per_rank(total, splits) - remote, own->heads - done);
    for (uint32_t i = 0; i < dealt && written < KVF_RANKS_MAX; i++) {
      shares[written++] = (kvf_rank_share){.rank = split * dealt + i,
                                           .remote_head = remote,
                                           .local_head = done,
                                           .heads = together,
                                           .dealt = dealt,
                                           .deal_rank = i};
    }
    done += together;
  }
  *count = written;
  return KVF_OK;
}

/* ---- all stages ---- */

/* Ranks with the same layers, in their order. */
typedef struct rank_stage {
  kvf_layers layers;
  uint32_t ranks;
  uint32_t first_layer; /* of the consumer rank's in this stage; above the next: none */
  uint32_t last_layer;
} rank_stage;

static kvf_layers layers_of(const kvf_rank_record *rank)
{
  return rank->layers.count > 0 ? rank->layers : (kvf_layers){0, KVF_LAYERS_MAX};
}

static bool is_of_stage(const kvf_rank_record *rank, const kvf_layers *stage)
{
  const kvf_layers layers = layers_of(rank);
  return layers.first == stage->first && layers.count == stage->count;
}

static uint32_t ranks_of_stage(const kvf_rank_record *ranks, uint32_t ranks_count, const kvf_layers *stage)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < ranks_count; i++) {
    count += is_of_stage(&ranks[i], stage);
  }
  return count;
}

/* The number among all of a stage's n-th rank, which there is. */
static uint32_t nth_rank(const kvf_rank_record *ranks, const kvf_layers *stage, uint32_t n)
{
  uint32_t rank = 0;
  while (!is_of_stage(&ranks[rank], stage) || n-- > 0) {
    rank++;
  }
  return rank;
}

static kvf_status add_stage(rank_stage *stages, uint32_t *count, const kvf_rank_record *ranks, uint32_t ranks_count,
                            kvf_layers layers, char *message)
{
  const uint32_t in_stage = ranks_of_stage(ranks, ranks_count, &layers);
  for (uint32_t i = 0; i < *count; i++) {
    const kvf_layers *other = &stages[i].layers;
    if (kvf_layers_have(other, layers.first) || kvf_layers_have(&layers, other->first)) {
      return kvf_fail(KVF_INCOMPATIBLE, message,
                      "the producer's ranks have layers %" PRIu32 " to %" PRIu32 ", and %" PRIu32 " to %" PRIu32
                      ": neither equal nor separate",
                      other->first, other->first + other->count - 1, layers.first, layers.first + layers.count - 1);
    }
    if (stages[i].ranks != in_stage) {
      return kvf_fail(KVF_INCOMPATIBLE, message,
                      "%" PRIu32 " ranks of the producer have layers from %" PRIu32 " on, and %" PRIu32 " from %" PRIu32
                      " on",
                      stages[i].ranks, other->first, in_stage, layers.first);
    }
  }
  stages[(*count)++] = (rank_stage){layers, in_stage, UINT32_MAX, 0};
  return KVF_OK;
}

static kvf_status list_stages(rank_stage stages[KVF_RANKS_MAX], uint32_t *count, const kvf_rank_record *ranks,
                              uint32_t ranks_count, char *message)
{
  kvf_status status = KVF_OK;
  *count = 0;
  for (uint32_t rank = 0; status == KVF_OK && rank < ranks_count; rank++) {
    const kvf_layers layers = layers_of(&ranks[rank]);
    if (nth_rank(ranks, &layers, 0) == rank) {
      status = add_stage(stages, count, ranks, ranks_count, layers, message);
    }
  }
  return status;
}

/* Which layers of the consumer rank each stage has. */
static kvf_status spread_layers(const kvf_pages *pages, rank_stage *stages, uint32_t count, char *message)
{
  const uint32_t parts = kvf_pages_parts(pages);
  uint32_t at = 0;
  for (uint32_t i = 0; i < parts; i++) {
    const uint32_t layer = kvf_pages_layer(pages, i);
    for (uint32_t tries = 0; tries < count && !kvf_layers_have(&stages[at].layers, layer); tries++) {
      at = at + 1 < count ? at + 1 : 0;
    }
    rank_stage *stage = &stages[at];
    if (!kvf_layers_have(&stage->layers, layer)) {
      return kvf_fail(KVF_INCOMPATIBLE, message, "no rank of the producer has layer %" PRIu32, layer);
    }
    stage->first_layer = smaller(layer, stage->first_layer);
    stage->last_layer = layer > stage->last_layer ? layer : stage->last_layer;
  }
  return KVF_OK;
}

static kvf_status add_shares(const rank_stage *stage, const kvf_share *own, const kvf_rank_record *ranks, uint64_t turn,
                             kvf_rank_share *shares, uint32_t *count, char *message)
{
  kvf_rank_share of_stage[KVF_RANKS_MAX];
  uint32_t more = 0;
  kvf_status status = kvf_rank_shares(own, stage->ranks, ranks[0].dealt, turn, of_stage, &more);
  if (status != KVF_OK) {
    return kvf_fail(status, message,
                    "%" PRIu32 " of %" PRIu32 " heads cannot be read from %" PRIu32
                    " ranks with tokens dealt to %" PRIu32,
                    own->heads, own->heads_total, stage->ranks, ranks[0].dealt);
  }
  for (uint32_t i = 0; i < more; i++) {
    kvf_rank_share *share = &shares[(*count)++];
    *share = of_stage[i];
    share->rank = nth_rank(ranks, &stage->layers, share->rank);
    share->layers = (kvf_layers){stage->first_layer, stage->last_layer - stage->first_layer + 1};
  }
  return KVF_OK;
}

kvf_status kvf_stage_shares(const kvf_pages *pages, const kvf_rank_layout *own, const kvf_rank_record *ranks,
                            uint32_t ranks_count, uint64_t turn, kvf_rank_share shares[KVF_RANKS_MAX], uint32_t *count,
                            char *message)
{
  rank_stage stages[KVF_RANKS_MAX];
  uint32_t stages_count = 0;
  uint32_t written = 0;
  if (ranks_count == 0 || ranks_count > KVF_RANKS_MAX) {
    return kvf_fail(ranks_count == 0 ? KVF_INVALID : KVF_LIMIT, message, "%" PRIu32 " ranks", ranks_count);
  }
  kvf_status status = list_stages(stages, &stages_count, ranks, ranks_count, message);
  if (status == KVF_OK) {
    status = spread_layers(pages, stages, stages_count, message);
  }
  for (uint32_t i = 0; status == KVF_OK && i < stages_count; i++) {
    if (stages[i].first_layer <= stages[i].last_layer) {
      status = add_shares(&stages[i], &own->share, ranks, turn, shares, &written, message);
    }
  }
  if (status == KVF_OK) {
    *count = written;
  }
  return status;
}

bool kvf_ranks_have_replicas(uint32_t heads_total, const kvf_rank_record *ranks, uint32_t ranks_count)
{
  const kvf_layers stage = layers_of(&ranks[0]);
  return ranks_of_stage(ranks, ranks_count, &stage) / ranks[0].dealt > heads_total;
}

bool kvf_rank_share_is_held(const kvf_rank_share *share, const kvf_rank_layout *own, const kvf_rank_layout *rank)
{
  const uint32_t last = share->layers.first + share->layers.count - 1;
  return kvf_layers_have(&rank->layers, share->layers.first) && kvf_layers_have(&rank->layers, last) &&
         rank->deal.ranks == share->dealt && rank->deal.rank == share->deal_rank &&
         rank->share.first_head + share->remote_head == own->share.first_head + share->local_head;
}
