/* Which blocks a load reads, and how few large ones are cut by layers. */
#include "plan/load_plan.h"

/* The wanted ones of some blocks of a group, whose first one is `ids`-th of the ticket's. */
static uint32_t list_blocks(const kvf_ticket *ticket, const uint32_t *destination, uint32_t group, uint32_t ids,
                            uint32_t first, uint32_t end, kvf_transfer_item *items)
{
  uint32_t count = 0;
  for (uint32_t position = first; position < end && position < ticket->counts[group]; position++) {
    if (destination[ids + position] != KVF_BLOCK_NONE) {
      items[count++] = (kvf_transfer_item){.group = group,
                                           .position = position,
                                           .remote_block = ticket->ids[ids + position],
                                           .local_block = destination[ids + position]};
    }
  }
  return count;
}

uint32_t kvf_load_plan_items(const kvf_ticket *ticket, uint32_t from, const uint32_t *destination,
                             kvf_transfer_item *items)
{
  const uint32_t positions = kvf_ticket_positions(ticket->prompt.tokens, ticket->block_tokens);
  uint32_t count = 0;
  for (uint32_t position = from; position < positions; position++) {
    uint32_t ids = 0;
    for (uint32_t group = 0; group < ticket->groups; ids += ticket->counts[group++]) {
      const uint32_t each = kvf_ticket_blocks_each(ticket, group);
      const uint32_t first = position * each;
      const uint32_t end = each > 0 ? first + each : position + 1 == positions;
      count += list_blocks(ticket, destination, group, ids, first, end, items + count);
    }
  }
  return count;
}

#define FEW_BLOCKS 8 /* for each reader: one more or less is much of its part */

static uint64_t readers_for(uint64_t bytes, const kvf_load_readers *readers)
{
  const uint64_t worth = bytes / readers->spread_bytes;
  return worth < readers->count ? worth : readers->count;
}

uint64_t kvf_load_chunk_bytes(uint64_t bytes, uint64_t largest_bytes, uint64_t chunk_bytes_max,
                              const kvf_load_readers *readers)
{
  const uint64_t count = readers_for(bytes, readers);
  if (count <= 1) {
    return chunk_bytes_max;
  }
  const uint64_t rounds = kvf_bytes_divided(bytes, chunk_bytes_max * count);
  const uint64_t even = kvf_bytes_divided(bytes, rounds * count) + largest_bytes - 1; /* chunks are of whole blocks */
  return even < chunk_bytes_max ? even : chunk_bytes_max;
}

/* Where the bytes of a load go, and of how many blocks they are. */
typedef struct load {
  const kvf_pages *own;
  const kvf_rank_layout *rank_layout;
  const uint32_t *wanted;
} load;

/* Of a share's first `layers` layers. */
static uint64_t bytes_of(const load *of, const kvf_rank_share *share, uint32_t layers)
{
  const kvf_layers leading = {share->layers.first, layers};
  uint64_t head_bytes[KVF_GROUPS_MAX];
  uint64_t bytes = 0;
  kvf_pages_head_bytes(of->own, of->rank_layout, &leading, share->dealt, head_bytes);
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    bytes += of->wanted[group] * head_bytes[group] * share->heads;
  }
  return bytes;
}

/* The fewest first layers that have so many bytes; so the last of them is one that there is. */
static uint32_t layers_with(const load *of, const kvf_rank_share *share, uint64_t bytes)
{
  uint32_t low = 0;
  uint32_t high = share->layers.count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (bytes_of(of, share, middle) >= bytes) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

/* Into runs of layers of about as many bytes. */
static void add_cut(kvf_load_plan *plan, const load *of, const kvf_rank_share *share)
{
  const uint32_t all = share->layers.count;
  const uint64_t each = kvf_bytes_divided(bytes_of(of, share, all), plan->cuts);
  uint32_t from = 0;
  for (uint32_t i = 1; i <= plan->cuts; i++) {
    const uint32_t to = i < plan->cuts ? layers_with(of, share, i * each) : all;
    if (to > from) {
      plan->shares[plan->count] = *share;
      plan->shares[plan->count++].layers = (kvf_layers){share->layers.first + from, to - from};
      from = to;
    }
  }
}

void kvf_load_plan_cut(kvf_load_plan *plan, const kvf_pages *own, const kvf_rank_layout *rank_layout,
                       const uint32_t wanted[KVF_GROUPS_MAX], const kvf_load_readers *readers)
{
  const load of = {own, rank_layout, wanted};
  uint64_t blocks = 0;
  uint64_t cuts = readers->count;
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    blocks += wanted[group];
  }
  plan->cuts = 1;
  if (blocks >= (uint64_t)FEW_BLOCKS * readers->count) {
    return;
  }
  for (uint32_t i = 0; i < plan->count && cuts > 1; i++) {
    const kvf_rank_share *share = &plan->shares[i];
    const bool helps = share->layers.count > blocks; /* else a block is less than a layer */
    const uint64_t worth = helps ? readers_for(bytes_of(&of, share, share->layers.count), readers) : 1;
    cuts = worth < cuts ? worth : cuts;
  }
  if (cuts <= 1 || plan->count * cuts > KVF_RANKS_MAX) {
    return;
  }
  const kvf_load_plan whole = *plan;
  plan->cuts = (uint32_t)cuts;
  plan->count = 0;
  for (uint32_t i = 0; i < whole.count; i++) {
    add_cut(plan, &of, &whole.shares[i]);
  }
}
