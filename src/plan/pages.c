/* Two ranks' pages become a plan, and a plan, a transfer and a cursor become segments. */
#include "plan/pages.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/bitmap.h"
#include "base/status.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
  return a < b ? a : b;
}

/* ---- a description ---- */

kvf_share kvf_pages_share(const kvf_pages *pages)
{
  return pages->layout.parts != NULL || pages->regions_count == 0
             ? pages->layout.share
             : (kvf_share){.heads = pages->regions[0].heads, .heads_total = pages->regions[0].heads_total};
}

kvf_layers kvf_pages_layers(const kvf_pages *pages)
{
  uint32_t first = UINT32_MAX;
  uint32_t last = 0;
  const uint32_t parts = kvf_pages_parts(pages);
  for (uint32_t i = 0; i < parts; i++) {
    const uint32_t layer = kvf_pages_layer(pages, i);
    first = smaller(layer, first);
    last = layer > last ? layer : last;
  }
  return parts == 0 ? (kvf_layers){0} : (kvf_layers){first, last - first + 1};
}

/* ---- a plan ---- */

/* What a deal is in a plan: one of ranks 0 is one of a single rank. */
static kvf_deal deal_of(const kvf_pages *pages)
{
  return kvf_is_dealt(&pages->layout.deal) ? pages->layout.deal : (kvf_deal){.ranks = 1, .tokens = 1};
}

kvf_rank_layout kvf_pages_rank_layout(const kvf_pages *pages, uint32_t rank, uint32_t ranks)
{
  kvf_rank_layout rank_layout = {kvf_pages_layers(pages), kvf_pages_share(pages), deal_of(pages)};
  if (pages->layout.parts == NULL) {
    rank_layout.share.first_head = (uint32_t)((uint64_t)rank * rank_layout.share.heads_total / ranks);
  }
  return rank_layout;
}

void kvf_pages_head_bytes(const kvf_pages *pages, const kvf_rank_layout *own, const kvf_layers *layers, uint32_t dealt,
                          uint64_t out[KVF_GROUPS_MAX])
{
  uint64_t block_bytes[KVF_GROUPS_MAX] = {0};
  for (uint32_t i = 0; i < kvf_pages_parts(pages); i++) {
    const kvf_part part = kvf_pages_part(pages, i);
    if (kvf_layers_have(layers, part.layer)) {
      const uint64_t bytes = (uint64_t)part.unit_bytes * part.rows * part.heads;
      const bool is_piece = part.block_tokens > 0 && dealt > own->deal.ranks;
      block_bytes[part.group] += is_piece ? kvf_bytes_divided(bytes * own->deal.ranks, dealt) : bytes;
    }
  }
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    out[group] = kvf_bytes_divided(block_bytes[group], own->share.heads);
  }
}

static kvf_place place_of(const kvf_pages *pages, const kvf_part *part)
{
  return (kvf_place){.stride_bytes = pages->regions[part->region].stride_bytes,
                     .row_bytes = part->row_bytes,
                     .head_bytes = part->head_bytes,
                     .offset_bytes = part->offset_bytes,
                     .region = part->region,
                     .first_head = part->first_head,
                     .heads = part->heads};
}

static uint32_t block_tokens_of(const kvf_part *part)
{
  return part->block_tokens == 0 ? 1 : part->block_tokens;
}

/* Adds a pair to the plan, and to its group. */
static void add_pair(kvf_plan *plan, kvf_pair *pair, const kvf_pages *local, const kvf_part *here,
                     const kvf_pages *remote, const kvf_part *there)
{
  *pair = (kvf_pair){.local = place_of(local, here),
                     .remote = place_of(remote, there),
                     .layer = there->layer,
                     .group = there->group,
                     .unit_bytes = there->unit_bytes,
                     .rows = there->rows,
                     .row_tokens = there->block_tokens / there->rows,
                     .heads_total = there->heads_total};
  plan->pairs_count++;
  kvf_plan_group *group = &plan->groups[there->group];
  uint32_t local_blocks = local->regions[here->region].blocks;
  uint32_t remote_blocks = remote->regions[there->region].blocks;
  bool first = group->local_blocks == 0;
  group->local_blocks = first ? local_blocks : smaller(local_blocks, group->local_blocks);
  group->remote_blocks = first ? remote_blocks : smaller(remote_blocks, group->remote_blocks);
  group->local_tokens = block_tokens_of(here);
  group->remote_tokens = block_tokens_of(there);
  group->has_tokens = there->block_tokens > 0;
}

static bool follow_each_other(const kvf_part *before, const kvf_part *part)
{
  return before->region == part->region && before->group == part->group;
}

/* Pairs name their run by number till here, and by its end from here on. */
static void end_runs(kvf_pair *pairs, uint32_t count)
{
  uint32_t end = count;
  for (uint32_t i = count, next = 0; i-- > 0;) {
    uint32_t run = pairs[i].run_end;
    end = i + 1 < count && run != next ? i + 1 : end;
    next = run;
    pairs[i].run_end = end;
  }
}

static kvf_status differ(char *message, const char *part, const char *field, uint64_t here, uint64_t there)
{
  return kvf_fail(KVF_INCOMPATIBLE, message, "%s: %s is %" PRIu64 " here, %" PRIu64 " there", part, field, here, there);
}

static kvf_status check_pair(const kvf_part *here, const kvf_part *there, const char *name, bool is_region,
                             char *message)
{
  if (here->group != there->group) {
    return differ(message, name, "group", here->group, there->group);
  }
  if (here->dtype != there->dtype) {
    return differ(message, name, "dtype", here->dtype, there->dtype);
  }
  if (here->heads_total != there->heads_total) {
    return differ(message, name, "heads_total", here->heads_total, there->heads_total);
  }
  if (here->unit_bytes != there->unit_bytes) {
    const char *field = is_region ? "head_bytes (block_bytes / heads)" : "unit_bytes";
    return differ(message, name, field, here->unit_bytes, there->unit_bytes);
  }
  if ((here->block_tokens == 0) != (there->block_tokens == 0)) {
    return differ(message, name, "block_tokens", here->block_tokens, there->block_tokens);
  }
  if (here->block_tokens == 0 && here->rows != there->rows) {
    return differ(message, name, "rows", here->rows, there->rows);
  }
  uint32_t here_row = here->block_tokens / here->rows;
  uint32_t there_row = there->block_tokens / there->rows;
  return here_row == there_row ? KVF_OK : differ(message, name, "tokens of a row", here_row, there_row);
}

static bool is_same(const kvf_part *a, const kvf_part *b)
{
  return a->layer == b->layer && a->kind == b->kind && a->index == b->index;
}

/* The part of `pages` that is `part`, which nothing is paired with yet; looked for from `hint` on. Their number: none.
 */
static uint32_t find(const kvf_pages *pages, const kvf_part *part, const uint64_t *paired, uint32_t hint)
{
  uint32_t count = kvf_pages_parts(pages);
  for (uint32_t tries = 0, i = hint; tries < count; tries++, i++) {
    i = i >= count ? 0 : i;
    const kvf_part other = kvf_pages_part(pages, i);
    if (is_same(&other, part) && !kvf_bitmap_get(paired, i)) {
      return i;
    }
  }
  return count;
}

/* What a plan is made of. */
typedef struct pairing {
  kvf_plan *plan;
  kvf_pair *pairs;
  const kvf_pages *local;
  const kvf_pages *remote;
  uint64_t here[KVF_PARTS_MAX / 64]; /* parts that are paired, on this side and on the other */
  uint64_t there[KVF_PARTS_MAX / 64];
  char *message;
} pairing;

_Static_assert(KVF_REGIONS_MAX <= KVF_PARTS_MAX, "a part a region");

static kvf_status pair_all(pairing *p)
{
  kvf_plan *plan = p->plan;
  uint32_t last_layer = 0;
  kvf_part before = {0};
  for (uint32_t i = 0, run = 0, hint = 0; i < kvf_pages_parts(p->remote); i++) {
    const kvf_part there = kvf_pages_part(p->remote, i);
    run += i > 0 && !follow_each_other(&before, &there) ? 1 : 0;
    before = there;
    uint32_t found = find(p->local, &there, p->here, hint);
    if (found == kvf_pages_parts(p->local)) {
      continue;
    }
    hint = found + 1;
    char name[KVF_PART_NAME_BYTES];
    const kvf_part here = kvf_pages_part(p->local, found);
    kvf_pages_name_part(p->remote, i, name);
    kvf_status status = check_pair(&here, &there, name, p->remote->layout.parts == NULL, p->message);
    if (status != KVF_OK) {
      return status;
    }
    kvf_bitmap_set(p->here, found);
    kvf_bitmap_set(p->there, i);
    kvf_pair *pair = &p->pairs[plan->pairs_count];
    add_pair(plan, pair, p->local, &here, p->remote, &there);
    pair->run_end = run;
    bool first = plan->pairs_count == 1;
    plan->selection.first_layer = first ? there.layer : smaller(there.layer, plan->selection.first_layer);
    last_layer = there.layer > last_layer ? there.layer : last_layer;
  }
  plan->selection.layers = last_layer - plan->selection.first_layer + 1;
  end_runs(p->pairs, plan->pairs_count);
  return KVF_OK;
}

/* All parts must be paired from the other side's first layer to its last. */
static kvf_status check_unpaired(const pairing *p, const kvf_pages *pages, const kvf_pages *other,
                                 const uint64_t *paired, const char *where)
{
  const kvf_layers layers = kvf_pages_layers(other);
  for (uint32_t i = 0; i < kvf_pages_parts(pages); i++) {
    if (kvf_layers_have(&layers, kvf_pages_layer(pages, i)) && !kvf_bitmap_get(paired, i)) {
      char name[KVF_PART_NAME_BYTES];
      kvf_pages_name_part(pages, i, name);
      return kvf_fail(KVF_INCOMPATIBLE, p->message, "%s: %s only, or twice", name, where);
    }
  }
  return KVF_OK;
}

static kvf_status split_groups(pairing *p)
{
  kvf_plan *plan = p->plan;
  for (uint32_t i = 0; i < KVF_GROUPS_MAX; i++) {
    const kvf_plan_group *group = &plan->groups[i];
    if (!group->has_tokens) {
      continue;
    }
    uint32_t here = group->local_tokens * plan->selection.deal.ranks;
    uint32_t there = group->remote_tokens * plan->deal.ranks;
    if (here % there != 0 && there % here != 0) {
      char name[KVF_PART_NAME_BYTES];
      (void)snprintf(name, sizeof(name), "group %" PRIu32, i);
      return differ(p->message, name, "tokens of a block, over the ranks that they are dealt to,", here, there);
    }
    plan->selection.splits[i] = there > here ? there / here : 1;
  }
  return KVF_OK;
}

/* Groups of which a rank may be asked. One with parts may have none of a group that its engine has. */
static uint32_t groups_of(const kvf_pages *pages)
{
  uint32_t groups = pages->layout.parts != NULL ? KVF_GROUPS_MAX : 0;
  for (uint32_t i = 0; pages->layout.parts == NULL && i < pages->regions_count; i++) {
    groups = pages->regions[i].group >= groups ? pages->regions[i].group + 1 : groups;
  }
  return groups;
}

kvf_status kvf_plan_make(kvf_plan *plan, kvf_pair *pairs, const kvf_pages *local, const kvf_pages *remote,
                         char *message)
{
  pairing p = {.plan = plan, .pairs = pairs, .local = local, .remote = remote, .message = message};
  if (local->layout.parts == NULL && remote->layout.parts == NULL && local->regions_count != remote->regions_count) {
    return kvf_fail(KVF_INCOMPATIBLE, message, "regions: %" PRIu32 " here, %" PRIu32 " there", local->regions_count,
                    remote->regions_count);
  }
  char bad[KVF_PART_NAME_BYTES];
  if (!kvf_pages_check(remote, bad)) {
    return kvf_fail(KVF_INCOMPATIBLE, message, "%s of the peer is invalid", bad);
  }
  *plan = (kvf_plan){.pairs = pairs,
                     .share = kvf_pages_share(remote),
                     .deal = deal_of(remote),
                     .selection = kvf_read_selection_whole(0)};
  plan->selection.deal = deal_of(local);
  plan->groups_count = groups_of(local);
  kvf_status status = pair_all(&p);
  if (status == KVF_OK && plan->pairs_count == 0) {
    status = kvf_fail(KVF_INCOMPATIBLE, message, "it has none of the layers that this rank has");
  }
  if (status == KVF_OK) {
    status = check_unpaired(&p, remote, local, p.there, "there");
  }
  if (status == KVF_OK) {
    status = check_unpaired(&p, local, remote, p.here, "here");
  }
  kvf_share here = kvf_pages_share(local);
  if (status == KVF_OK && here.heads_total != plan->share.heads_total) {
    status = differ(message, "layout", "heads_total", here.heads_total, plan->share.heads_total);
  }
  return status == KVF_OK ? split_groups(&p) : status;
}

void kvf_plan_own(kvf_plan *plan, kvf_pair *pairs, const kvf_pages *pages)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_status status = kvf_plan_make(plan, pairs, pages, pages, message);
  assert(status == KVF_OK && plan->pairs_count == kvf_pages_parts(pages));
  (void)status;
  plan->is_own = true;
  plan->selection.deal = kvf_read_selection_whole(0).deal;
}

/* ---- tokens ---- */

/* Tokens of one item that lie side by side in both blocks. */
typedef struct token_run {
  uint32_t local;
  uint32_t remote;
  uint32_t tokens;
} token_run;

/* The first token from `token` on that is the rank's. */
static uint64_t owned_from(const kvf_deal *deal, uint64_t token)
{
  uint64_t turn = (uint64_t)deal->ranks * deal->tokens;
  uint64_t at = token % turn;
  uint64_t begin = (uint64_t)deal->rank * deal->tokens;
  if (at < begin) {
    return token - at + begin;
  }
  return at < begin + deal->tokens ? token : token - at + turn + begin;
}

/* The end of the tokens that go to one rank with this one. */
static uint64_t owned_to(const kvf_deal *deal, uint64_t token)
{
  return kvf_is_dealt(deal) ? (token / deal->tokens + 1) * deal->tokens : UINT64_MAX;
}

/* Where it lies in its rank's block. */
static uint32_t place_in_block(const kvf_deal *deal, uint32_t block_tokens, uint64_t token)
{
  uint64_t turn = (uint64_t)deal->ranks * deal->tokens;
  return (uint32_t)((token / turn * deal->tokens + token % deal->tokens) % block_tokens);
}

static uint64_t item_tokens(const kvf_chunk *chunk, uint32_t group)
{
  const kvf_plan *plan = chunk->plan;
  const kvf_plan_group *of = &plan->groups[group];
  return of->has_tokens ? of->remote_tokens * plan->deal.ranks / chunk->selection->splits[group] : 1;
}

/* The next run of the item from its token *token on, which moves behind it. False: there is none. */
static bool next_run(const kvf_chunk *chunk, const kvf_transfer_item *item, uint64_t *token, token_run *run)
{
  const kvf_plan *plan = chunk->plan;
  const kvf_plan_group *group = &plan->groups[item->group];
  const kvf_deal *reader = &chunk->selection->deal;
  if (!group->has_tokens) {
    /* All ranks that tokens are dealt to have it: one of them gives it. */
    *run = (token_run){.tokens = 1};
    return (*token)++ == 0 && (!kvf_is_dealt(&plan->deal) || plan->deal.rank == reader->rank % plan->deal.ranks);
  }
  const uint64_t tokens = item_tokens(chunk, item->group);
  const uint64_t begin = item->position * tokens;
  const uint64_t end = begin + tokens;
  uint64_t at = begin + *token;
  for (uint64_t next; at < end; at = next) {
    next = owned_from(reader, owned_from(&plan->deal, at));
    if (next == at) {
      break; /* both have it */
    }
  }
  if (at >= end) {
    return false;
  }
  uint64_t stop = owned_to(&plan->deal, at);
  stop = owned_to(reader, at) < stop ? owned_to(reader, at) : stop;
  stop = stop < end ? stop : end;
  run->remote = place_in_block(&plan->deal, group->remote_tokens, at);
  run->local = plan->is_own ? run->remote : place_in_block(reader, group->local_tokens, at);
  run->tokens = (uint32_t)(stop - at);
  *token = stop - begin;
  return true;
}

/* ---- a chunk ---- */

bool kvf_chunk_has(const kvf_chunk *chunk, const kvf_pair *pair)
{
  const kvf_read_selection *selection = chunk->selection;
  const kvf_layers *layers = &chunk->transfer->layers;
  return pair->layer - selection->first_layer < selection->layers &&
         (layers->count == 0 || kvf_layers_have(layers, pair->layer)) &&
         (!pair->is_checksums || selection->checksums != 0);
}

kvf_read_selection kvf_chunk_selection(const kvf_chunk *chunk)
{
  const kvf_layers *layers = &chunk->transfer->layers;
  kvf_read_selection selection = *chunk->selection;
  if (layers->count > 0) {
    selection.first_layer = layers->first;
    selection.layers = layers->count;
  }
  return selection;
}

kvf_head_range kvf_chunk_heads(const kvf_chunk *chunk, const kvf_pair *pair)
{
  const kvf_transfer *transfer = chunk->transfer;
  const kvf_plan *plan = chunk->plan;
  const uint64_t all = plan->share.heads_total;
  const uint64_t own = pair->heads_total;
  kvf_head_range range = {transfer->remote_head, transfer->local_head, transfer->heads};
  if (own != all) {
    uint64_t from = (uint64_t)plan->share.first_head + transfer->remote_head;
    uint64_t first = transfer->local_head == 0 ? from * own / all : (from * own + all - 1) / all;
    uint64_t end = ((from + transfer->heads) * own + all - 1) / all;
    range = (kvf_head_range){first - pair->remote.first_head, first - pair->local.first_head, end - first};
  }
  range.local = plan->is_own ? range.remote : range.local;
  return range;
}

static bool heads_fit(uint64_t first, uint64_t count, uint32_t heads)
{
  return count == 0 || (first <= heads && count <= heads - first);
}

/* Whether a reader's selection can be cut out of a sender's pages. */
static bool want_fits(const kvf_chunk *chunk)
{
  const kvf_plan *plan = chunk->plan;
  const kvf_read_selection *selection = chunk->selection;
  if (!plan->is_own) {
    return true; /* kvf_plan_make() has seen to it */
  }
  for (uint32_t i = 0; i < plan->groups_count; i++) {
    uint32_t tokens = plan->groups[i].has_tokens ? plan->groups[i].remote_tokens * plan->deal.ranks : 1;
    if (selection->splits[i] == 0 || tokens % selection->splits[i] != 0) {
      return false;
    }
  }
  bool has_last = false;
  for (uint32_t i = 0; i < plan->pairs_count; i++) {
    const kvf_pair *pair = &plan->pairs[i];
    const uint32_t row_tokens = pair->row_tokens > 0 ? pair->row_tokens : 1;
    has_last = has_last || pair->layer - selection->first_layer == selection->layers - 1;
    if (kvf_chunk_has(chunk, pair) && (item_tokens(chunk, pair->group) % row_tokens != 0 ||
                                       (kvf_is_dealt(&selection->deal) && selection->deal.tokens % row_tokens != 0))) {
      return false;
    }
  }
  return has_last && selection->deal.ranks > 0 && kvf_deal_is_valid(&selection->deal);
}

/* Bytes of a whole remote block of each group. */
static bool measure_blocks(const kvf_chunk *chunk, uint64_t bytes[KVF_GROUPS_MAX])
{
  for (uint32_t i = 0; i < chunk->plan->pairs_count; i++) {
    const kvf_pair *pair = &chunk->plan->pairs[i];
    if (!kvf_chunk_has(chunk, pair)) {
      continue;
    }
    const kvf_head_range heads = kvf_chunk_heads(chunk, pair);
    if (!heads_fit(heads.remote, heads.count, pair->remote.heads) ||
        !heads_fit(heads.local, heads.count, pair->local.heads)) {
      return false;
    }
    bytes[pair->group] += heads.count * pair->unit_bytes * pair->rows;
  }
  return true;
}

static uint64_t tokens_that_move(const kvf_chunk *chunk, const kvf_transfer_item *item)
{
  uint64_t token = 0;
  uint64_t sum = 0;
  token_run run;
  while (next_run(chunk, item, &token, &run)) {
    sum += run.tokens;
  }
  return sum;
}

kvf_status kvf_chunk_check(const kvf_chunk *chunk, uint64_t *bytes)
{
  const kvf_transfer *transfer = chunk->transfer;
  const kvf_plan *plan = chunk->plan;
  const kvf_share *share = &plan->share;
  const bool dealt = kvf_is_dealt(&plan->deal) || kvf_is_dealt(&chunk->selection->deal);
  uint64_t block_bytes[KVF_GROUPS_MAX] = {0};
  uint64_t item_bytes[KVF_GROUPS_MAX];
  uint64_t total = 0;
  if (transfer->heads == 0 || !heads_fit(transfer->remote_head, transfer->heads, share->heads) || !want_fits(chunk) ||
      !measure_blocks(chunk, block_bytes)) {
    return KVF_INVALID;
  }
  for (uint32_t i = 0; i < plan->groups_count; i++) {
    item_bytes[i] = block_bytes[i] == 0 ? 0 : block_bytes[i] * item_tokens(chunk, i) / plan->groups[i].remote_tokens;
  }
  for (uint32_t i = 0; i < transfer->items_count; i++) {
    const kvf_transfer_item *item = &transfer->items[i];
    if (item->group >= plan->groups_count) {
      return KVF_INVALID;
    }
    const kvf_plan_group *group = &plan->groups[item->group];
    if (block_bytes[item->group] == 0) {
      continue; /* no layer of that group is on both ranks: nothing moves */
    }
    if (item->local_block >= group->local_blocks || item->remote_block >= group->remote_blocks) {
      return KVF_INVALID;
    }
    total += dealt ? block_bytes[item->group] * tokens_that_move(chunk, item) / group->remote_tokens
                   : item_bytes[item->group];
  }
  if (bytes != NULL) {
    *bytes = total;
  }
  return KVF_OK;
}

/* ---- segments ---- */

static uint64_t rows_of(const kvf_pair *pair, uint32_t tokens)
{
  return pair->row_tokens == 1 ? tokens : tokens / pair->row_tokens;
}

static kvf_box box_of(const kvf_chunk *chunk, const kvf_pair *pair, const kvf_transfer_item *item, const token_run *run)
{
  const kvf_place *local = &pair->local;
  const kvf_place *remote = &pair->remote;
  const kvf_head_range heads = kvf_chunk_heads(chunk, pair);
  const bool by_token = pair->row_tokens > 0;
  const uint64_t rows = by_token ? rows_of(pair, run->tokens) : pair->rows;
  const uint64_t local_row = by_token ? rows_of(pair, run->local) : 0;
  const uint64_t remote_row = by_token ? rows_of(pair, run->remote) : 0;
  const uint64_t unit = pair->unit_bytes;
  kvf_box box = {.local_offset = item->local_block * local->stride_bytes + local->offset_bytes +
                                 heads.local * local->head_bytes + local_row * local->row_bytes,
                 .remote_offset = item->remote_block * remote->stride_bytes + remote->offset_bytes +
                                  heads.remote * remote->head_bytes + remote_row * remote->row_bytes};
  bool rows_outer = remote->row_bytes >= remote->head_bytes;
  uint64_t outer = rows_outer ? rows : heads.count;
  uint64_t inner = rows_outer ? heads.count : rows;
  box.local_step[rows_outer ? 0 : 1] = local->row_bytes;
  box.local_step[rows_outer ? 1 : 0] = local->head_bytes;
  box.remote_step[rows_outer ? 0 : 1] = remote->row_bytes;
  box.remote_step[rows_outer ? 1 : 0] = remote->head_bytes;
  box.piece_bytes = unit;
  if (inner == 1 || (box.local_step[1] == unit && box.remote_step[1] == unit)) {
    box.piece_bytes *= inner;
    inner = 1;
  }
  if (inner == 1 && (outer == 1 || (box.local_step[0] == box.piece_bytes && box.remote_step[0] == box.piece_bytes))) {
    box.piece_bytes *= outer;
    outer = 1;
  }
  box.inner = (uint32_t)inner;
  box.pieces = heads.count == 0 ? 0 : (uint32_t)(outer * inner);
  return box;
}

kvf_segment_cursor kvf_segments_begin(const kvf_chunk *chunk)
{
  return (kvf_segment_cursor){.chunk = chunk};
}

/* Whether an item of the group is a whole block of each side, and both have all its tokens. */
static bool is_whole(const kvf_chunk *chunk, uint32_t group)
{
  const kvf_plan *plan = chunk->plan;
  const kvf_plan_group *of = &plan->groups[group];
  const uint64_t tokens = item_tokens(chunk, group);
  return !kvf_is_dealt(&plan->deal) && !kvf_is_dealt(&chunk->selection->deal) &&
         (!of->has_tokens || (tokens == of->remote_tokens && (plan->is_own || tokens == of->local_tokens)));
}

/* The next of the item in the cursor's pair. False: there is none. Working out each anew would take longer than all
 * else that a short piece costs. */
static bool next_box(kvf_segment_cursor *cursor, const kvf_transfer_item *item)
{
  const kvf_chunk *chunk = cursor->chunk;
  const kvf_pair *pair = &chunk->plan->pairs[cursor->pair];
  const uint64_t local = item->local_block * pair->local.stride_bytes;
  const uint64_t remote = item->remote_block * pair->remote.stride_bytes;
  token_run run;
  if (cursor->alike == cursor->pair + 1) {
    cursor->box.local_offset = cursor->first_local + local;
    cursor->box.remote_offset = cursor->first_remote + remote;
    return cursor->token++ == 0;
  }
  cursor->alike = 0;
  if (!kvf_chunk_has(chunk, pair) || !next_run(chunk, item, &cursor->token, &run)) {
    return false;
  }
  cursor->box = box_of(chunk, pair, item, &run);
  if (is_whole(chunk, item->group)) {
    cursor->alike = cursor->pair + 1;
    cursor->first_local = cursor->box.local_offset - local;
    cursor->first_remote = cursor->box.remote_offset - remote;
  }
  return true;
}

/* Moves to the next box, unless there is something left of this one. False at the end. */
static bool settle(kvf_segment_cursor *cursor)
{
  const kvf_chunk *chunk = cursor->chunk;
  const kvf_plan *plan = chunk->plan;
  while (cursor->piece == cursor->box.pieces) {
    if (cursor->run == plan->pairs_count) {
      return false;
    }
    const kvf_pair *first = &plan->pairs[cursor->run];
    if (cursor->item == chunk->transfer->items_count) {
      cursor->run = first->run_end;
      cursor->pair = cursor->run;
      cursor->item = 0;
      continue;
    }
    const kvf_transfer_item *item = &chunk->transfer->items[cursor->item];
    if (cursor->pair == first->run_end || item->group != first->group) {
      cursor->pair = cursor->run;
      cursor->item++;
      continue;
    }
    if (!next_box(cursor, item)) {
      cursor->token = 0;
      cursor->pair++;
      continue;
    }
    cursor->piece = 0;
  }
  return true;
}

/* What is left of the piece that the cursor stands at. */
static kvf_segment piece(const kvf_segment_cursor *cursor)
{
  const kvf_pair *pair = &cursor->chunk->plan->pairs[cursor->pair];
  const kvf_box *box = &cursor->box;
  const uint64_t outer = box->inner == 1 ? cursor->piece : cursor->piece / box->inner;
  const uint64_t inner = box->inner == 1 ? 0 : cursor->piece % box->inner;
  return (kvf_segment){
      .local_region = pair->local.region,
      .remote_region = pair->remote.region,
      .local_offset = box->local_offset + outer * box->local_step[0] + inner * box->local_step[1] + cursor->taken_bytes,
      .remote_offset =
          box->remote_offset + outer * box->remote_step[0] + inner * box->remote_step[1] + cursor->taken_bytes,
      .bytes = box->piece_bytes - cursor->taken_bytes,
  };
}

static bool continues(const kvf_segment *before, const kvf_segment *next)
{
  return before->local_region == next->local_region && before->remote_region == next->remote_region &&
         before->local_offset + before->bytes == next->local_offset &&
         before->remote_offset + before->bytes == next->remote_offset;
}

size_t kvf_segments_next(kvf_segment_cursor *cursor, kvf_segment *out, size_t capacity, uint64_t bytes_max)
{
  size_t count = 0;
  while (bytes_max > 0 && settle(cursor)) {
    kvf_segment next = piece(cursor);
    bool joins = count > 0 && continues(&out[count - 1], &next);
    if (!joins && count == capacity) {
      break;
    }
    bool whole = next.bytes <= bytes_max;
    if (!whole) {
      next.bytes = bytes_max;
    }
    if (joins) {
      out[count - 1].bytes += next.bytes;
    } else {
      out[count++] = next;
      cursor->segments += cursor->taken_bytes == 0 ? 1 : 0;
    }
    bytes_max -= next.bytes;
    cursor->taken_bytes = whole ? 0 : cursor->taken_bytes + next.bytes;
    cursor->piece += whole ? 1 : 0;
  }
  return count;
}
