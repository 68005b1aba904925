/* Lays both engines' memory out, fills it, loads by the planner's segments, and checks each byte against the count. */
#include "pages_world.h"

#include <stdlib.h>
#include <string.h>

#define ITEMS_MAX 256
#define STREAM_MAX 262144

/* One rank: its description, and a number for each byte of its memory. */
typedef struct rank {
  kvf_region_layout regions[WORLD_THINGS_MAX];
  kvf_part parts[WORLD_THINGS_MAX];
  uint32_t thing[WORLD_THINGS_MAX]; /* of each part */
  kvf_pages pages;
  uint32_t *memory[WORLD_THINGS_MAX];
  uint32_t first_layer, end_layer;
  uint32_t dealt_rank;
  uint32_t split; /* of the heads */
} rank;

void world_init(world *w)
{
  *w = (world){.layers = 1, .rounds = 2};
  for (int i = 0; i < 2; i++) {
    world_side *side = i == 0 ? &w->producer : &w->consumer;
    *side = (world_side){.ranks = 1, .dealt = 1, .deal_tokens = 1};
    for (uint32_t group = 0; group < WORLD_GROUPS; group++) {
      side->block_tokens[group] = 4;
      for (uint32_t block = 0; block < WORLD_BLOCKS; block++) {
        side->blocks[group][block] = block;
      }
    }
  }
}

world_thing *world_add(world *w, world_thing thing)
{
  w->things[w->things_count] = thing;
  w->layers = thing.layer >= w->layers ? thing.layer + 1 : w->layers;
  return &w->things[w->things_count++];
}

/* ---- what is where, counted ---- */

static uint32_t at_least_one(uint32_t n)
{
  return n == 0 ? 1 : n;
}

static uint32_t splits_of(const world_side *side)
{
  return side->ranks / side->dealt;
}

static uint32_t stages_of(const world *w, const world_side *side)
{
  uint32_t count = 1;
  for (uint32_t layer = 0; layer + 1 < w->layers; layer++) {
    count += side->stage_ends >> layer & 1;
  }
  return count;
}

/* The layer that a stage begins with. */
static uint32_t stage_begin(const world *w, const world_side *side, uint32_t stage)
{
  uint32_t layer = 0;
  while (layer < w->layers && stage > 0) {
    stage -= side->stage_ends >> layer++ & 1;
  }
  return stage > 0 ? w->layers : layer;
}

static uint32_t thing_heads(const world_side *side, const world_thing *thing)
{
  return at_least_one(thing->heads / splits_of(side));
}

static uint32_t thing_first_head(const world_side *side, const world_thing *thing, uint32_t split)
{
  return split * thing->heads / splits_of(side);
}

static uint32_t all_heads(const world *w)
{
  uint32_t most = 1;
  for (uint32_t i = 0; i < w->things_count; i++) {
    most = w->things[i].heads > most ? w->things[i].heads : most;
  }
  return most;
}

/* A position's block holds so many tokens, on all ranks together. */
static uint32_t wide_tokens(const world_side *side, const world_thing *thing)
{
  return thing->row_tokens == 0 ? 1 : side->block_tokens[thing->group] * side->dealt;
}

static bool owns(const world_side *side, const rank *r, const world_thing *thing, uint32_t token)
{
  return thing->row_tokens == 0 || side->dealt == 1 || token / side->deal_tokens % side->dealt == r->dealt_rank;
}

/* The number of a token among the rank's own of its block. */
static uint32_t token_in_block(const world_side *side, const rank *r, const world_thing *thing, uint32_t token)
{
  uint32_t wide = wide_tokens(side, thing);
  uint32_t number = 0;
  for (uint32_t before = token / wide * wide; before < token; before++) {
    number += owns(side, r, thing, before) ? 1 : 0;
  }
  return number;
}

static uint32_t mix(uint32_t a, uint32_t b)
{
  uint32_t h = (a ^ 0x9e3779b9u) * 0x85ebca6bu;
  h = (h ^ (h >> 13) ^ b) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

/* What each byte of the model's memory is: never 0. */
static uint32_t content(uint32_t thing, uint32_t head, uint32_t token, uint32_t row, uint32_t byte)
{
  return mix(mix(mix(mix(thing, head), token), row), byte) | 1;
}

/* Writes what the rank's memory must hold of a thing's token (or state) at a block. */
static void write_token(const world_side *side, const rank *r, uint32_t part, uint32_t *memory, uint32_t block,
                        uint32_t thing_index, const world_thing *thing, uint32_t token)
{
  const kvf_part *at = &r->parts[part];
  uint32_t rows = thing->row_tokens == 0 ? thing->state_rows : 1;
  if (!owns(side, r, thing, token) || (thing->row_tokens > 0 && token % thing->row_tokens != 0)) {
    return;
  }
  uint32_t first_row = thing->row_tokens == 0 ? 0 : token_in_block(side, r, thing, token) / thing->row_tokens;
  for (uint32_t head = 0; head < at->heads; head++) {
    for (uint32_t row = 0; row < rows; row++) {
      for (uint32_t byte = 0; byte < thing->unit_bytes; byte++) {
        uint64_t place = block * r->regions[at->region].stride_bytes + at->offset_bytes +
                         (uint64_t)(first_row + row) * at->row_bytes + (uint64_t)head * at->head_bytes + byte;
        memory[place] = content(thing_index, at->first_head + head, token, row, byte);
      }
    }
  }
}

/* ---- ranks ---- */

static size_t region_bytes(const kvf_region_layout *region)
{
  return region->stride_bytes * (region->blocks - 1) + region->block_bytes;
}

/* A number for each byte of it. */
static uint32_t *make_memory(const kvf_region_layout *region)
{
  uint32_t *made = calloc(region_bytes(region), sizeof(*made));
  if (made == NULL) {
    abort();
  }
  return made;
}

static void lay_out(const world_side *side, const world_thing *thing, bool tokens_first, kvf_part *part)
{
  const uint32_t pad = side->pad_bytes;
  part->block_tokens = thing->row_tokens == 0 ? 0 : side->block_tokens[thing->group];
  part->rows = thing->row_tokens == 0 ? thing->state_rows : part->block_tokens / thing->row_tokens;
  if (tokens_first) {
    part->head_bytes = part->unit_bytes;
    part->row_bytes = part->heads * part->unit_bytes + pad;
  } else {
    part->row_bytes = part->unit_bytes;
    part->head_bytes = part->rows * part->unit_bytes + pad;
  }
}

static void rank_open(const world *w, const world_side *side, uint32_t stage, uint32_t number, rank *r)
{
  memset(r, 0, sizeof(*r));
  r->first_layer = stage_begin(w, side, stage);
  r->end_layer = stage + 1 < stages_of(w, side) ? stage_begin(w, side, stage + 1) : w->layers;
  r->dealt_rank = number % side->dealt;
  r->split = number / side->dealt;
  uint32_t count = 0;
  uint32_t regions = side->placement == WORLD_REGION_EACH ? 0 : side->placement == WORLD_PAGES ? WORLD_GROUPS : 1;
  for (uint32_t i = 0; i < w->things_count; i++) {
    uint32_t index = side->backwards ? w->things_count - 1 - i : i;
    const world_thing *thing = &w->things[index];
    if (thing->layer < r->first_layer || thing->layer >= r->end_layer) {
      continue;
    }
    kvf_part *part = &r->parts[count];
    *part = (kvf_part){.layer = thing->layer,
                       .kind = thing->kind,
                       .index = thing->index,
                       .group = thing->group,
                       .dtype = KVF_DTYPE_BF16,
                       .unit_bytes = thing->unit_bytes,
                       .heads = thing_heads(side, thing),
                       .first_head = thing_first_head(side, thing, r->split),
                       .heads_total = thing->heads};
    part->region = side->placement == WORLD_REGION_EACH ? regions++ : side->placement == WORLD_PAGES ? thing->group : 0;
    lay_out(side, thing, side->tokens_first >> index & 1, part);
    kvf_region_layout *region = &r->regions[part->region];
    part->offset_bytes = region->block_bytes;
    region->block_bytes +=
        (part->rows - 1) * part->row_bytes + (part->heads - 1) * part->head_bytes + part->unit_bytes + side->pad_bytes;
    r->thing[count++] = index;
  }
  for (uint32_t i = 0; i < regions; i++) {
    kvf_region_layout *region = &r->regions[i];
    region->block_bytes = at_least_one(region->block_bytes);
    region->stride_bytes = region->block_bytes + side->pad_bytes;
    region->blocks = WORLD_BLOCKS;
    region->heads = region->heads_total = 1;
    r->memory[i] = make_memory(region);
  }
  uint32_t all = all_heads(w);
  r->pages = (kvf_pages){.regions = r->regions,
                         .regions_count = regions,
                         .layout = {.parts = r->parts,
                                    .parts_count = count,
                                    .share = {.first_head = r->split * all / splits_of(side),
                                              .heads = at_least_one(all / splits_of(side)),
                                              .heads_total = all}}};
  if (side->dealt > 1) {
    r->pages.layout.deal = (kvf_deal){side->dealt, r->dealt_rank, side->deal_tokens};
  }
}

static void rank_close(rank *r)
{
  for (uint32_t i = 0; i < WORLD_THINGS_MAX; i++) {
    free(r->memory[i]);
  }
}

static const world_thing *of_group(const world *w, uint32_t group)
{
  for (uint32_t i = 0; i < w->things_count; i++) {
    if (w->things[i].group == group) {
      return &w->things[i];
    }
  }
  return NULL;
}

static uint32_t item_tokens(const world *w, const world_thing *thing)
{
  uint32_t there = wide_tokens(&w->producer, thing);
  uint32_t here = wide_tokens(&w->consumer, thing);
  return there < here ? there : here;
}

static uint32_t request_tokens(const world *w, const world_thing *thing)
{
  uint32_t there = wide_tokens(&w->producer, thing);
  uint32_t here = wide_tokens(&w->consumer, thing);
  return w->rounds * (there > here ? there : here);
}

static uint32_t block_at(const world_side *side, const world_thing *thing, uint32_t token)
{
  return side->blocks[thing->group][token / wide_tokens(side, thing)];
}

static void fill(const world *w, rank *r)
{
  for (uint32_t i = 0; i < r->pages.layout.parts_count; i++) {
    const world_thing *thing = &w->things[r->thing[i]];
    for (uint32_t token = 0; token < request_tokens(w, thing); token++) {
      write_token(&w->producer, r, i, r->memory[r->parts[i].region], block_at(&w->producer, thing, token), r->thing[i],
                  thing, token);
    }
  }
}

static uint32_t make_items(const world *w, kvf_transfer_item items[ITEMS_MAX])
{
  uint32_t count = 0;
  uint32_t number = 0;
  for (uint32_t position = 0; position < ITEMS_MAX / WORLD_GROUPS; position++) {
    for (uint32_t group = 0; group < WORLD_GROUPS; group++) {
      const world_thing *thing = of_group(w, group);
      if (thing == NULL || position >= request_tokens(w, thing) / item_tokens(w, thing)) {
        continue;
      }
      uint32_t token = position * item_tokens(w, thing);
      if ((w->skipped >> (number++ % 32) & 1) == 0) {
        items[count++] = (kvf_transfer_item){.group = group,
                                             .position = position,
                                             .remote_block = block_at(&w->producer, thing, token),
                                             .local_block = block_at(&w->consumer, thing, token)};
      }
    }
  }
  return count;
}

/* ---- loads ---- */

/* A run may span blocks, not end outside of one. */
static bool is_run_inside(const kvf_pages *pages, uint32_t region, uint64_t offset, uint64_t bytes)
{
  return region < pages->regions_count && bytes <= region_bytes(&pages->regions[region]) &&
         offset <= region_bytes(&pages->regions[region]) - bytes;
}

static bool is_inside(const kvf_segment *segment, const kvf_pages *local, const kvf_pages *remote)
{
  return is_run_inside(local, segment->local_region, segment->local_offset, segment->bytes) &&
         is_run_inside(remote, segment->remote_region, segment->remote_offset, segment->bytes);
}

/* Where each byte of a stream comes from, in order. */
typedef struct stream {
  uint64_t bytes;
  uint64_t from[STREAM_MAX];
} stream;

static const char *walk(world *w, const kvf_chunk *chunk, const rank *from, rank *to, stream *out)
{
  kvf_segment segments[5];
  kvf_segment_cursor cursor = kvf_segments_begin(chunk);
  size_t count;
  out->bytes = 0;
  while ((count = kvf_segments_next(&cursor, segments, 5, w->bytes_max == 0 ? UINT64_MAX : w->bytes_max)) > 0) {
    for (size_t i = 0; i < count; i++) {
      const kvf_segment *segment = &segments[i];
      if (!is_inside(segment, &to->pages, &from->pages)) {
        return "a segment out of bounds";
      }
      if (out->bytes + segment->bytes > STREAM_MAX) {
        return "a longer stream than there is memory";
      }
      for (uint64_t byte = 0; byte < segment->bytes; byte++) {
        uint32_t *at = &to->memory[segment->local_region][segment->local_offset + byte];
        if (from != to && *at != 0) {
          return "a byte that comes twice";
        }
        *at = from->memory[segment->remote_region][segment->remote_offset + byte];
        if (*at == 0) {
          return "a byte that is nothing of the model's";
        }
        out->from[out->bytes++] = (uint64_t)segment->remote_region << 48 | (segment->remote_offset + byte);
      }
    }
  }
  w->segments += from == to ? 0 : cursor.segments;
  return NULL;
}

/* What a sender that knows its own memory only would send. */
static const char *check_sender(world *w, const kvf_chunk *chunk, rank *p, uint64_t bytes, const stream *wanted)
{
  static stream sent;
  kvf_pair pairs[WORLD_THINGS_MAX];
  kvf_plan plan;
  kvf_transfer_item items[ITEMS_MAX];
  kvf_transfer transfer = *chunk->transfer;
  uint64_t own_bytes = 0;
  kvf_plan_own(&plan, pairs, &p->pages);
  for (uint32_t i = 0; i < transfer.items_count; i++) {
    items[i] = transfer.items[i];
    items[i].local_block = items[i].remote_block;
  }
  transfer.items = items;
  transfer.layers = (kvf_layers){0, 0};
  const kvf_read_selection selection = kvf_chunk_selection(chunk);
  const kvf_chunk own = {.transfer = &transfer, .plan = &plan, .selection = &selection};
  if (kvf_chunk_check(&own, &own_bytes) != KVF_OK || own_bytes != bytes) {
    return "the sender has another size";
  }
  const char *wrong = walk(w, &own, p, p, &sent);
  if (wrong != NULL) {
    return wrong;
  }
  return sent.bytes == wanted->bytes && memcmp(sent.from, wanted->from, sent.bytes * sizeof(sent.from[0])) == 0
             ? NULL
             : "the sender has another order";
}

static const char *load_from(world *w, rank *p, const kvf_rank_share *share, rank *d, const kvf_transfer_item *items,
                             uint32_t count)
{
  static stream wanted;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_pair pairs[WORLD_THINGS_MAX];
  kvf_plan plan;
  uint64_t bytes = 0;
  kvf_status status = kvf_plan_make(&plan, pairs, &d->pages, &p->pages, message);
  if (status != KVF_OK) {
    return "two descriptions of one model do not pair";
  }
  const kvf_transfer transfer = {.remote_head = share->remote_head,
                                 .local_head = share->local_head,
                                 .heads = share->heads,
                                 .layers = share->layers,
                                 .items = items,
                                 .items_count = count};
  const kvf_chunk chunk = {.transfer = &transfer, .plan = &plan, .selection = &plan.selection};
  if (kvf_chunk_check(&chunk, &bytes) != KVF_OK) {
    return "a load that is refused";
  }
  const char *wrong = walk(w, &chunk, p, d, &wanted);
  if (wrong == NULL && wanted.bytes != bytes) {
    wrong = "another size than was said";
  }
  return wrong == NULL ? check_sender(w, &chunk, p, bytes, &wanted) : wrong;
}

/* At once, or some layers at a time. */
static const char *load_share(world *w, rank *p, const kvf_rank_share *share, rank *d, const kvf_transfer_item *items,
                              uint32_t count)
{
  const char *wrong = NULL;
  kvf_rank_share some = *share;
  for (uint32_t left = share->layers.count; wrong == NULL && left > 0; left -= some.layers.count) {
    some.layers.count = w->layers_each > 0 && w->layers_each < left ? w->layers_each : left;
    wrong = load_from(w, p, &some, d, items, count);
    some.layers.first += some.layers.count;
  }
  return wrong;
}

static const char *compare(const world *w, const rank *d, const kvf_transfer_item *items, uint32_t count)
{
  const char *wrong = NULL;
  uint32_t *expected[WORLD_THINGS_MAX] = {NULL};
  for (uint32_t i = 0; i < d->pages.regions_count; i++) {
    expected[i] = make_memory(&d->regions[i]);
  }
  for (uint32_t part = 0; part < d->pages.layout.parts_count; part++) {
    const world_thing *thing = &w->things[d->thing[part]];
    for (uint32_t i = 0; i < count; i++) {
      uint32_t first = items[i].position * item_tokens(w, thing);
      for (uint32_t token = first; items[i].group == thing->group && token < first + item_tokens(w, thing); token++) {
        write_token(&w->consumer, d, part, expected[d->parts[part].region], items[i].local_block, d->thing[part], thing,
                    token);
      }
    }
  }
  for (uint32_t i = 0; i < d->pages.regions_count; i++) {
    if (memcmp(expected[i], d->memory[i], region_bytes(&d->regions[i]) * sizeof(uint32_t)) != 0) {
      wrong = "other bytes than the reference";
    }
    free(expected[i]);
  }
  return wrong;
}

static void open_nth(const world *w, const world_side *side, uint32_t n, rank *r)
{
  const uint32_t stages = stages_of(w, side);
  rank_open(w, side, side->stages_inner ? n % stages : n / side->ranks,
            side->stages_inner ? n / stages : n % side->ranks, r);
}

static kvf_rank_layout rank_layout_of(const rank *r)
{
  return kvf_pages_rank_layout(&r->pages, 0, 1);
}

/* What the producer's ranks say of themselves, in its tickets. Returns how many there are. */
static uint32_t describe_ranks(const world *w, kvf_rank_record records[KVF_RANKS_MAX])
{
  const uint32_t count = stages_of(w, &w->producer) * w->producer.ranks;
  for (uint32_t i = 0; i < count; i++) {
    rank p;
    open_nth(w, &w->producer, i, &p);
    records[i] = (kvf_rank_record){.rank = i, .layers = kvf_pages_layers(&p.pages), .dealt = w->producer.dealt};
    rank_close(&p);
  }
  return count;
}

static const char *load_rank(world *w, uint32_t number)
{
  kvf_transfer_item items[ITEMS_MAX];
  kvf_rank_record records[KVF_RANKS_MAX];
  kvf_rank_share shares[KVF_RANKS_MAX];
  char message[KVF_MESSAGE_BYTES_MAX];
  uint32_t shares_count = 0;
  const char *wrong = NULL;
  rank d;
  open_nth(w, &w->consumer, number, &d);
  const kvf_rank_layout own = rank_layout_of(&d);
  const uint32_t count = make_items(w, items);
  if (kvf_stage_shares(&d.pages, &own, records, describe_ranks(w, records), number, shares, &shares_count, message) !=
      KVF_OK) {
    wrong = "ranks that cannot be read from";
  }
  for (uint32_t i = 0; wrong == NULL && i < shares_count; i++) {
    rank p;
    open_nth(w, &w->producer, shares[i].rank, &p);
    fill(w, &p);
    const kvf_rank_layout theirs = rank_layout_of(&p);
    wrong = kvf_rank_share_is_held(&shares[i], &own, &theirs) ? load_share(w, &p, &shares[i], &d, items, count)
                                                              : "a rank that does not have what it is read for";
    rank_close(&p);
  }
  wrong = wrong == NULL ? compare(w, &d, items, count) : wrong;
  rank_close(&d);
  return wrong;
}

const char *world_check(world *w)
{
  const char *wrong = NULL;
  w->segments = 0;
  for (uint32_t i = 0; wrong == NULL && i < stages_of(w, &w->consumer) * w->consumer.ranks; i++) {
    wrong = load_rank(w, i);
  }
  return wrong;
}

/* ---- random worlds ---- */

static uint32_t power(world_choose choose, void *context, uint32_t n)
{
  return 1u << choose(context, n);
}

static void random_side(world *w, world_side *side, world_choose choose, void *context)
{
  side->ranks = power(choose, context, 3);
  side->dealt = side->ranks >> choose(context, 3);
  side->dealt = choose(context, 3) == 2 ? at_least_one(side->dealt) : 1;
  side->deal_tokens = power(choose, context, 3);
  side->stage_ends = choose(context, 4) == 3 ? choose(context, 1u << (w->layers - 1)) : 0;
  side->stages_inner = side->stage_ends != 0 && choose(context, 4) == 3;
  side->placement = (world_placement)choose(context, 3);
  side->tokens_first = choose(context, 256);
  side->pad_bytes = choose(context, 3) == 2 ? 3 : 0;
  side->backwards = choose(context, 2) == 1;
  for (uint32_t group = 0; group < WORLD_GROUPS; group++) {
    side->block_tokens[group] = 4 * power(choose, context, 2);
    for (uint32_t i = WORLD_BLOCKS - 1; i > 0 && choose(context, 2) == 1; i--) {
      uint32_t other = choose(context, i + 1);
      uint32_t kept = side->blocks[group][i];
      side->blocks[group][i] = side->blocks[group][other];
      side->blocks[group][other] = kept;
    }
  }
}

/* A group is all by token, or all states. */
static void random_layer(world *w, uint32_t layer, world_choose choose, void *context)
{
  uint32_t unit = 1 + choose(context, 4);
  uint32_t heads = power(choose, context, 4);
  uint32_t group = choose(context, 2);
  switch (choose(context, 4)) {
    case 0:
      world_add(w, (world_thing){layer, KVF_PART_KEYS, 0, group, heads, unit, 1, 0});
      world_add(w, (world_thing){layer, KVF_PART_VALUES, 0, group, heads, 1 + choose(context, 4), 1, 0});
      break;
    case 1:
      world_add(w, (world_thing){layer, KVF_PART_LATENT, 0, group, 1, unit, 1, 0});
      world_add(w, (world_thing){layer, KVF_PART_INDEX, 0, group, 1, unit, power(choose, context, 2), 0});
      break;
    case 2:
      world_add(w, (world_thing){layer, KVF_PART_KV, 0, group, heads, unit, 1, 0});
      break;
    default:
      world_add(w, (world_thing){layer, KVF_PART_STATE, 0, 2, heads, unit, 0, 1});
      world_add(w, (world_thing){layer, KVF_PART_CONVOLUTION, 1, 2, 1 + (heads > 1), unit, 0, 3});
      break;
  }
}

static bool makes_sense(const world *w, const world_side *side)
{
  for (uint32_t i = 0; i < w->things_count; i++) {
    const world_thing *thing = &w->things[i];
    if (side->dealt > 1 && thing->row_tokens > 0 &&
        (side->block_tokens[thing->group] % side->deal_tokens != 0 || side->deal_tokens % thing->row_tokens != 0)) {
      return false;
    }
  }
  return true;
}

void world_random(world *w, world_choose choose, void *context)
{
  world_init(w);
  uint32_t layers = 1 + choose(context, 4);
  for (uint32_t layer = 0; layer < layers; layer++) {
    random_layer(w, layer, choose, context);
  }
  uint32_t groups = 0;
  for (uint32_t i = 0; i < w->things_count; i++) { /* groups 0 to n - 1 */
    groups |= 1u << w->things[i].group;
  }
  for (uint32_t i = 0; i < w->things_count; i++) {
    uint32_t group = w->things[i].group;
    w->things[i].group = (uint32_t)__builtin_popcount(groups & ((1u << group) - 1));
  }
  random_side(w, &w->producer, choose, context);
  random_side(w, &w->consumer, choose, context);
  for (int i = 0; i < 2; i++) {
    world_side *side = i == 0 ? &w->producer : &w->consumer;
    if (!makes_sense(w, side)) {
      side->dealt = 1;
    }
  }
  w->rounds = 1 + choose(context, 2);
  w->skipped = choose(context, 2) == 0 ? 0 : choose(context, 256) * 0x01010101u;
  w->bytes_max = choose(context, 3) == 2 ? 1 + choose(context, 64) : 0;
  w->layers_each = choose(context, 3);
}

/* ---- malformed ---- */

static uint32_t odd_number(world_choose choose, void *context)
{
  static const uint32_t numbers[] = {
      0, 1, 2, 3, 4, 5, 7, 8, 16, 255, 256, 65535, 65536, 0x7fffffff, 0x80000000, UINT32_MAX, UINT32_MAX - 1, 12, 48};
  uint32_t n = choose(context, sizeof(numbers) / sizeof(numbers[0]) + 1);
  return n < sizeof(numbers) / sizeof(numbers[0]) ? numbers[n] : choose(context, 256) << 8 | choose(context, 256);
}

/* Overwrites one 32-bit field. */
static void spoil(void *from, size_t bytes, world_choose choose, void *context)
{
  uint32_t number = odd_number(choose, context);
  memcpy((uint8_t *)from + choose(context, (uint32_t)(bytes / 4)) * (size_t)4, &number, sizeof(number));
}

static const char *try_chunk(const kvf_chunk *chunk, const kvf_pages *local, const kvf_pages *remote)
{
  uint64_t bytes = 0;
  uint64_t sum = 0;
  kvf_segment segments[8];
  size_t count;
  if (kvf_chunk_check(chunk, &bytes) != KVF_OK) {
    return NULL;
  }
  kvf_segment_cursor cursor = kvf_segments_begin(chunk);
  for (uint32_t calls = 0; (count = kvf_segments_next(&cursor, segments, 8, UINT64_MAX)) > 0; calls++) {
    if (calls == 2000) {
      return NULL;
    }
    for (size_t i = 0; i < count; i++) {
      sum += segments[i].bytes;
      if (!is_inside(&segments[i], local, remote)) {
        return "a malformed description reads out of bounds";
      }
    }
  }
  return sum == bytes ? NULL : "another size than was said, malformed";
}

const char *world_check_malformed(world *w, world_choose choose, void *context)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_pair pairs[WORLD_THINGS_MAX];
  kvf_plan plan;
  kvf_transfer_item items[ITEMS_MAX];
  rank p;
  rank d;
  rank_open(w, &w->producer, 0, choose(context, w->producer.ranks), &p);
  rank_open(w, &w->consumer, 0, choose(context, w->consumer.ranks), &d);
  kvf_transfer transfer = {.items = items, .items_count = make_items(w, items), .heads = p.pages.layout.share.heads};
  for (uint32_t i = 0; choose(context, 2) == 1 && i < transfer.items_count; i++) {
    items[i].remote_block = items[i].local_block = WORLD_BLOCKS - 1; /* nothing lies behind it */
  }
  kvf_pages told = p.pages;
  kvf_region_layout regions[WORLD_THINGS_MAX];
  kvf_part parts[WORLD_THINGS_MAX];
  memcpy(regions, p.regions, sizeof(regions));
  memcpy(parts, p.parts, sizeof(parts));
  told.regions = regions;
  told.layout.parts = parts;
  const char *wrong = NULL;
  if (choose(context, 2) == 0) {
    for (uint32_t i = 1 + choose(context, 3); i > 0; i--) {
      switch (choose(context, 6)) {
        case 0:
          spoil(regions, told.regions_count * sizeof(regions[0]), choose, context);
          break;
        case 1:
          spoil(&told.layout.share, sizeof(told.layout.share), choose, context);
          break;
        case 2:
          spoil(&told.layout.deal, sizeof(told.layout.deal), choose, context);
          break;
        case 3:
          spoil(&transfer.remote_head, 3 * sizeof(uint32_t), choose, context);
          break;
        default:
          spoil(parts, told.layout.parts_count * sizeof(parts[0]), choose, context);
          break;
      }
    }
    if (kvf_plan_make(&plan, pairs, &d.pages, &told, message) == KVF_OK) {
      const kvf_chunk chunk = {.transfer = &transfer, .plan = &plan, .selection = &plan.selection};
      wrong = kvf_pages_are_valid(&told) ? try_chunk(&chunk, &d.pages, &told) : "an invalid description is taken";
    }
  } else {
    kvf_plan_own(&plan, pairs, &p.pages);
    kvf_read_selection selection = plan.selection;
    const kvf_chunk chunk = {.transfer = &transfer, .plan = &plan, .selection = &selection};
    for (uint32_t i = 0; i < transfer.items_count; i++) {
      items[i].local_block = items[i].remote_block;
    }
    for (uint32_t i = 1 + choose(context, 3); i > 0; i--) {
      if (choose(context, 3) == 2) {
        spoil(&transfer.remote_head, 3 * sizeof(uint32_t), choose, context);
      } else {
        spoil(&selection, 8 * sizeof(uint32_t), choose, context);
      }
    }
    wrong = try_chunk(&chunk, &p.pages, &p.pages);
  }
  rank_close(&p);
  rank_close(&d);
  return wrong;
}
