#include "core/load_sources.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "plan/rank_shares.h"

/* Room for `count` tickets and, behind them, the block ids of each and those of the destination. */
static kvf_load_sources *alloc(uint32_t count, size_t positions)
{
  return calloc(1, sizeof(kvf_load_sources) + count * sizeof(kvf_ticket) + (count + 1) * positions * sizeof(uint32_t));
}

static void copy_ids(uint32_t *to, const uint32_t *from, size_t positions)
{
  if (positions > 0) {
    memcpy(to, from, positions * sizeof(to[0]));
  }
}

/* Attempts are numbered: sources first, then the replicated ones of them. */
static void list_attempts(kvf_load_sources *kept, const kvf_pool *pool)
{
  uint32_t replicated = 0;
  for (uint32_t i = 0; i < kept->count; i++) {
    const kvf_ticket *ticket = &kept->tickets[i];
    if (kvf_ranks_have_replicas(pool->holding.share.heads_total, ticket->rank, ticket->ranks)) {
      kept->replicated[replicated++] = i;
    }
  }
  kept->next = 1;
  kept->attempts = kept->count + replicated;
}

kvf_status kvf_load_sources_keep(const kvf_sources *sources, const kvf_pool *pool, const kvf_blocks *destination,
                                 kvf_load_sources **out)
{
  const size_t positions = (size_t)kvf_ticket_all_positions(sources->tickets[0]); /* and so the destination's */
  kvf_load_sources *kept = alloc(sources->count, positions);
  if (kept == NULL) {
    return KVF_NO_MEMORY;
  }
  uint32_t *ids = (uint32_t *)(kept->tickets + sources->count);
  copy_ids(ids, destination->ids, positions);
  kept->destination = ids;
  kept->count = sources->count;
  for (uint32_t i = 0; i < sources->count; i++) {
    ids += positions;
    copy_ids(ids, sources->tickets[i]->ids, positions);
    kept->tickets[i] = *sources->tickets[i];
    kept->tickets[i].ids = ids;
    kept->digests[i] = sources->digests[i];
  }
  list_attempts(kept, pool);
  *out = kept;
  return KVF_OK;
}

bool kvf_load_sources_has_next(const kvf_load_sources *kept)
{
  return kept != NULL && kept->next < kept->attempts;
}

kvf_load_source kvf_load_sources_next(kvf_load_sources *kept)
{
  assert(kvf_load_sources_has_next(kept));
  const uint32_t attempt = kept->next++;
  const bool again = attempt >= kept->count;
  const uint32_t i = again ? kept->replicated[attempt - kept->count] : attempt;
  return (kvf_load_source){&kept->tickets[i], kept->digests[i], again};
}

void kvf_load_sources_end(kvf_load_sources *kept)
{
  if (kept != NULL) {
    kept->next = kept->attempts;
  }
}
