/* Loads between two engines' pages, compared with a reference byte by byte; and plans that are refused. */
#include "plan/pages.h"

#include "../../pages_world.h"
#include "../wire/described.h"
#include "base/prng.h"
#include "test.h"

#define RUNS 20000

/* ---- loads, compared with the reference byte by byte ---- */

static const world_thing keys = {.kind = KVF_PART_KEYS, .heads = 8, .unit_bytes = 3, .row_tokens = 1};
static const world_thing values = {.kind = KVF_PART_VALUES, .heads = 8, .unit_bytes = 2, .row_tokens = 1};
static const world_thing latent = {.kind = KVF_PART_LATENT, .heads = 1, .unit_bytes = 5, .row_tokens = 1};
static const world_thing recurrent = {.kind = KVF_PART_STATE, .group = 1, .heads = 4, .unit_bytes = 6, .state_rows = 3};

static world world_of(const world_thing *things, uint32_t count)
{
  world w;
  world_init(&w);
  for (uint32_t i = 0; i < count; i++) {
    (void)world_add(&w, things[i]);
  }
  return w;
}

static world attention(void)
{
  return world_of((world_thing[]){keys, values}, 2);
}

static void check(world *w)
{
  const char *wrong = world_check(w);
  if (wrong != NULL) {
    fail_msg("%s", wrong);
  }
}

TEST(a_block_is_a_block)
{
  world w = attention();
  check(&w);
  assert_int_equal(w.segments, 2);
}

TEST(smaller_blocks_here)
{
  world w = attention();
  w.producer.block_tokens[0] = 16;
  check(&w);
}

TEST(smaller_blocks_there)
{
  world w = attention();
  w.consumer.block_tokens[0] = 16;
  check(&w);
}

TEST(heads_first_there_tokens_first_here)
{
  world w = attention();
  w.consumer.tokens_first = 3;
  check(&w);
}

TEST(tokens_first_there_heads_first_here)
{
  world w = attention();
  w.producer.tokens_first = 3;
  w.producer.block_tokens[0] = 8;
  check(&w);
}

static void check_ranks(world *w, uint32_t producer, uint32_t consumer)
{
  w->producer.ranks = producer;
  w->consumer.ranks = consumer;
  check(w);
}

TEST(heads_over_other_numbers_of_ranks)
{
  world w = attention();
  check_ranks(&w, 1, 2);
  check_ranks(&w, 2, 1);
  check_ranks(&w, 4, 2);
  check_ranks(&w, 2, 8);
}

TEST(replicated_heads)
{
  world w = attention();
  w.things[0].heads = w.things[1].heads = 2;
  check_ranks(&w, 8, 1);
  check_ranks(&w, 8, 4);
  check_ranks(&w, 1, 8);
  check_ranks(&w, 2, 4);
}

TEST(replicated_latents)
{
  world w = world_of(&latent, 1);
  check_ranks(&w, 4, 2);
  check_ranks(&w, 1, 4);
  assert_int_equal(w.segments, 4); /* two neighbouring blocks for each */
}

TEST(replicated_beside_split)
{
  world w = world_of((world_thing[]){keys, latent}, 2);
  check_ranks(&w, 4, 1);
  check_ranks(&w, 4, 2);
  check_ranks(&w, 1, 4);
  w.things[1].heads = 2; /* fewer heads in one layer than in others */
  check_ranks(&w, 4, 1);
  check_ranks(&w, 1, 4);
  check_ranks(&w, 8, 2);
}

TEST(dealt_tokens)
{
  world w = world_of((world_thing[]){keys, latent}, 2);
  w.producer.dealt = 2;
  for (w.producer.deal_tokens = 1; w.producer.deal_tokens <= 4; w.producer.deal_tokens *= 2) {
    w.consumer.dealt = 1;
    check_ranks(&w, 4, 1);
    w.consumer.dealt = 2;
    check_ranks(&w, 2, 4);
    w.consumer.deal_tokens = 2;
  }
  w.producer.dealt = 1;
  check_ranks(&w, 1, 2);
}

TEST(layers_on_other_ranks)
{
  world w = attention();
  for (uint32_t layer = 1; layer < 5; layer++) {
    world_add(&w, keys)->layer = layer;
    w.layers = layer + 1;
  }
  w.producer.stage_ends = 0x02;
  check(&w);
  w.consumer.stage_ends = 0x0c;
  w.consumer.backwards = true;
  check(&w);
  w.producer.stage_ends = 0x0d;
  w.producer.stages_inner = true;
  check_ranks(&w, 2, 1);
  check_ranks(&w, 2, 4);
}

/* A stage without any layer of group 0, one without any of group 1. */
TEST(groups_on_other_ranks)
{
  world w = world_of((world_thing[]){recurrent, keys, keys}, 3);
  w.things[1].layer = 1;
  w.things[2].layer = 2;
  w.layers = 3;
  w.producer.stage_ends = 0x01;
  check(&w);
  w.consumer.stage_ends = 0x02;
  check_ranks(&w, 2, 1);
  w.consumer.stage_ends = 0x01;
  check_ranks(&w, 1, 2);
}

TEST(states_are_whole)
{
  world w = world_of((world_thing[]){keys, recurrent}, 2);
  w.consumer.block_tokens[0] = w.consumer.block_tokens[1] = 8;
  w.consumer.tokens_first = 2;
  check_ranks(&w, 2, 1);
  check_ranks(&w, 1, 4);
}

TEST(rows_of_several_tokens)
{
  world w = attention();
  (void)world_add(&w, (world_thing){.kind = KVF_PART_INDEX, .heads = 1, .unit_bytes = 1, .row_tokens = 4});
  w.producer.block_tokens[0] = 16;
  check(&w);
}

/* ---- runs ---- */

static world layers_of_pages(uint32_t layers)
{
  world w = attention();
  for (uint32_t layer = 1; layer < layers; layer++) {
    world_add(&w, keys)->layer = layer;
    world_add(&w, values)->layer = layer;
  }
  w.layers = layers;
  w.rounds = 8;
  w.producer.placement = w.consumer.placement = WORLD_PAGES;
  return w;
}

TEST(runs_go_over_layers_and_blocks)
{
  world w = layers_of_pages(3);
  check(&w);
  assert_int_equal(w.segments, 1);
}

TEST(runs_end_where_one_side_ends)
{
  world w = layers_of_pages(3);
  w.consumer.pad_bytes = 3; /* after each of the three layers' keys and values */
  check(&w);
  assert_int_equal(w.segments, 8 * 6 * 8); /* and behind each head */
  w.consumer.pad_bytes = 0;
  w.skipped = 0x04; /* block 2 */
  check(&w);
  assert_int_equal(w.segments, 2);
  w.skipped = 0;
  w.consumer.placement = WORLD_REGION_EACH;
  check(&w);
  assert_int_equal(w.segments, 8 * 6);
  w.producer.placement = WORLD_REGION_EACH;
  check(&w);
  assert_int_equal(w.segments, 6); /* each layer's blocks are neighbours */
}

/* ---- any two engines ---- */

static uint32_t choose(void *context, uint32_t n)
{
  return (uint32_t)kvf_prng_below(context, n);
}

SEEDS_TEST(any_load_is_as_the_reference_says)
{
  for (uint64_t seed; test_next_seed(RUNS, &seed);) {
    kvf_prng prng = {seed};
    world w;
    world_random(&w, choose, &prng);
    check(&w);
  }
}

SEEDS_TEST(what_a_peer_says_stays_in_bounds)
{
  for (uint64_t seed; test_next_seed(RUNS, &seed);) {
    kvf_prng prng = {seed};
    world w;
    world_random(&w, choose, &prng);
    for (int i = 0; i < 4; i++) {
      const char *wrong = world_check_malformed(&w, choose, &prng);
      if (wrong != NULL) {
        fail_msg("%s", wrong);
      }
    }
  }
}

/* ---- what does not pair ---- */

static void assert_incompatible(const described *here, const described *there, const char *named)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_pair pairs[2];
  kvf_plan plan;
  assert_int_equal(kvf_plan_make(&plan, pairs, &here->pages, &there->pages, message), KVF_INCOMPATIBLE);
  if (strstr(message, named) == NULL) {
    fail_msg("\"%s\" does not name %s", message, named);
  }
}

TEST(what_does_not_pair_is_named)
{
  described here;
  described there;
  describe(&here);
#define INCOMPATIBLE(change, named)            \
  do {                                         \
    describe(&there);                          \
    change;                                    \
    assert_incompatible(&here, &there, named); \
  } while (0)
  INCOMPATIBLE(there.parts[1].dtype = KVF_DTYPE_F16, "layer 0 values 0: dtype is 3 here, 2 there");
  INCOMPATIBLE(there.parts[1].unit_bytes = 1, "layer 0 values 0: unit_bytes is 2 here, 1 there");
  INCOMPATIBLE(there.parts[1].group = 1, "layer 0 values 0: group is 0 here, 1 there");
  INCOMPATIBLE(there.parts[1].heads_total = 2; there.parts[1].heads = 2, "heads_total is 4 here, 2 there");
  INCOMPATIBLE(there.pages.layout.share = ((kvf_share){0, 8, 8}), "layout: heads_total is 4 here, 8 there");
  INCOMPATIBLE(there.parts[1].rows = 2; there.parts[0].rows = 2, "tokens of a row is 1 here, 2 there");
  INCOMPATIBLE(there.parts[1].block_tokens = 0; there.parts[0].block_tokens = 0, "block_tokens is 4 here, 0 there");
  INCOMPATIBLE(there.parts[1].kind = KVF_PART_STATE, "layer 0 state 0: there only");
  INCOMPATIBLE(there.parts[1].kind = KVF_PART_KEYS, "layer 0 keys 0: there only, or twice");
  INCOMPATIBLE(there.pages.layout.parts_count = 1, "layer 0 values 0: here only");
  INCOMPATIBLE(there.parts[0].layer = there.parts[1].layer = 3, "it has none of the layers");
  INCOMPATIBLE(there.parts[1].rows = 0, "layer 0 values 0 of the peer is invalid");
  INCOMPATIBLE(there.pages.layout.share.heads = 0, "layout of the peer is invalid");
  INCOMPATIBLE(there.regions[0].blocks = 0, "region 0 of the peer is invalid");
  INCOMPATIBLE(
      for (int i = 0; i < 2; i++) { there.parts[i].rows = there.parts[i].block_tokens = 3; },
      "group 0: tokens of a block, over the ranks that they are dealt to, is 4 here, 3 there");
  describe(&there);
  here.parts[0].rows = here.parts[1].rows = there.parts[0].rows = there.parts[1].rows = 1;
  there.parts[0].block_tokens = there.parts[1].block_tokens = 8;
  assert_incompatible(&here, &there, "tokens of a row is 4 here, 8 there");
}

static void describe_layers(described *d, uint32_t first, uint32_t second)
{
  describe(d);
  d->parts[1] = d->parts[0];
  d->parts[0].layer = first;
  d->parts[1].layer = second;
}

/* Where one side has a layer, the other must have it too, if it has any before and after it. */
TEST(layers_in_between_must_be_there)
{
  described here;
  described there;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_pair pairs[2];
  kvf_plan plan;
  describe_layers(&here, 1, 2);
  describe_layers(&there, 0, 1);
  assert_int_equal(kvf_plan_make(&plan, pairs, &here.pages, &there.pages, message), KVF_OK);
  assert_int_equal(plan.pairs_count, 1);
  describe_layers(&here, 0, 2);
  assert_incompatible(&here, &there, "layer 1 keys 0: there only, or twice");
  assert_incompatible(&there, &here, "layer 1 keys 0: here only, or twice");
}

TEST(wants_are_checked)
{
  described d;
  describe(&d);
  kvf_pair pairs[2];
  kvf_plan plan;
  kvf_plan_own(&plan, pairs, &d.pages);
  const kvf_transfer_item item = {.position = 3, .remote_block = 1, .local_block = 1};
  const kvf_transfer transfer = {.heads = 4, .items = &item, .items_count = 1};
  kvf_read_selection selection = plan.selection;
  const kvf_chunk chunk = {.transfer = &transfer, .plan = &plan, .selection = &selection};
  uint64_t bytes = 0;
  assert_int_equal(kvf_chunk_check(&chunk, &bytes), KVF_OK);
  assert_int_equal(bytes, 64);
  selection.splits[0] = 2;
  assert_int_equal(kvf_chunk_check(&chunk, &bytes), KVF_OK);
  assert_int_equal(bytes, 32);
  selection.splits[0] = 3;
  assert_int_equal(kvf_chunk_check(&chunk, &bytes), KVF_INVALID);
  selection.splits[0] = 0;
  assert_int_equal(kvf_chunk_check(&chunk, &bytes), KVF_INVALID);
  selection = plan.selection;
  selection.deal = (kvf_deal){2, 2, 1};
  assert_int_equal(kvf_chunk_check(&chunk, &bytes), KVF_INVALID);
  selection = plan.selection;
  selection.layers = 2;
  assert_int_equal(kvf_chunk_check(&chunk, &bytes), KVF_INVALID); /* it has one */
  selection.layers = 0;
  assert_int_equal(kvf_chunk_check(&chunk, &bytes), KVF_INVALID);
}
