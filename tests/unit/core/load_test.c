/* kvf_core_load_start(): what it refuses, which ranks it reads what from, and what prefix it reports. */

#include "base/status.h"
#include "ranks_world.h"
#include "test.h"

#define POSITIONS 6

static kvf_ticket ticket;
static uint32_t ids[RANKS_GROUPS * RANKS_BLOCKS];

static void open_with(const ranks_options *options, uint32_t positions)
{
  ranks_open(options);
  ranks_ticket(&ticket, ids, positions);
  for (uint32_t i = 0; i < world.ranks; i++) {
    ranks_publish(i, &ticket);
  }
}

static void open_world(const ranks_options *options)
{
  open_with(options, POSITIONS);
}

static ranks_options simple(void)
{
  ranks_options options;
  ranks_options_init(&options, 1, 1, 2);
  return options;
}

static int open_simple(__attribute__((unused)) void **state)
{
  const ranks_options options = simple();
  open_world(&options);
  return 0;
}

#define SIMPLE_TEST(name) TEST_WITH(name, open_simple, ranks_close)

static kvf_status start_load(const kvf_load_params *load)
{
  return kvf_core_load_start(&world.consumer.core, world.now_ns,
                             &(kvf_sources){.count = 1, .tickets = {&ticket}, .digests = {1}}, load, 0);
}

static kvf_report outcome(void)
{
  kvf_event event;
  assert_true(ranks_event(KVF_EVENT_LOAD, &event));
  assert_int_equal(event.user, 5);
  return event.u.report;
}

static void assert_released(void)
{
  kvf_event event;
  assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
  assert_int_equal(event.user, 5);
  assert_int_equal(ranks_peers_held(), 0);
}

static void assert_outcome(kvf_status status, uint32_t prefix)
{
  kvf_report report = outcome();
  assert_int_equal(report.status, status);
  assert_int_equal(report.prefix, prefix);
  assert_released();
}

static kvf_status load_into(uint32_t *destination, uint32_t groups, const uint32_t *counts)
{
  kvf_blocks blocks = {.ids = ticket.ids, .counts = ticket.counts, .groups = ticket.groups};
  uint64_t digest = 0;
  kvf_load_params load = {.request_id = 1,
                          .prompt = ticket.prompt,
                          .destination = {.ids = destination, .counts = counts, .groups = groups},
                          .user = 5};
  assert_int_equal(kvf_fence_digest(&ticket.lease, &blocks, &ticket.prompt, &digest), KVF_OK);
  kvf_status status =
      kvf_core_load_start(&world.consumer.core, world.now_ns,
                          &(kvf_sources){.count = 1, .tickets = {&ticket}, .digests = {digest}}, &load, 0);
  ranks_settle();
  return status;
}

static uint32_t dialed(void)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < world.ranks; i++) {
    count += world.wires[i].dials;
  }
  return count;
}

/* ---- heads ---- */

static void load_with(uint32_t producer_ranks, uint32_t consumer_ranks, uint32_t consumer_rank, uint32_t heads_total)
{
  ranks_options options;
  ranks_options_init(&options, producer_ranks, consumer_ranks, heads_total);
  options.consumer_rank = consumer_rank;
  options.groups = 2;
  open_world(&options);
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  kvf_report report = outcome();
  assert_int_equal(report.status, KVF_OK);
  assert_int_equal(report.ranks_mask, UINT64_C(1) << consumer_rank);
  assert_int_equal(report.blocks, 2 * POSITIONS);
  assert_int_equal(report.prefix, 2 * POSITIONS);
  for (uint32_t position = 0; position < POSITIONS; position++) {
    assert_true(ranks_holds(&ticket, 0, position));
    assert_true(ranks_holds(&ticket, 1, position));
  }
  assert_released();
}

/* A consumer rank gets its heads, whatever the numbers of ranks, and asks no rank that has none of them. */
RANKS_TEST(each_rank_gets_its_heads)
{
  static const uint32_t widths[] = {1, 2, 4};
  static const uint32_t heads[] = {1, 2, 4, 8};
  for (size_t h = 0; h < 4; h++) {
    for (size_t p = 0; p < 3; p++) {
      for (size_t d = 0; d < 3; d++) {
        for (uint32_t rank = 0; rank < widths[d]; rank++) {
          load_with(widths[p], widths[d], rank, heads[h]);
          uint32_t parts = widths[p] > widths[d] ? widths[p] / widths[d] : 1;
          uint32_t heads_here = heads[h] > widths[d] ? heads[h] / widths[d] : 1;
          assert_int_equal(dialed(), parts < heads_here ? parts : heads_here);
        }
      }
    }
  }
}

#define FOUR 4

/* How often each of four producer ranks is read from by so many loads of each of two consumer ranks. */
static void count_reads(uint32_t heads_total, uint32_t loads, uint32_t reads[FOUR])
{
  for (uint32_t rank = 0; rank < 2; rank++) {
    ranks_options options;
    ranks_options_init(&options, FOUR, 2, heads_total);
    options.consumer_rank = rank;
    open_world(&options);
    world.hold_reads = true;
    for (uint32_t i = 0; i < loads; i++, ticket.lease.id++) {
      assert_int_equal(ranks_load(&ticket, i), KVF_OK);
      for (uint32_t k = 0; k < world.reads_count; k++) {
        reads[world.path_producer[world.reads[k].link_id]]++;
      }
      assert_int_equal(kvf_loads_abort(&world.consumer.core.loads, world.now_ns, i), KVF_OK);
      ranks_settle();
      (void)outcome();
      assert_released();
    }
  }
}

/* Heads that several ranks of the producer hold are read from each of them as often as from the others. */
RANKS_TEST(loads_spread_over_replicas)
{
  static const uint32_t heads[] = {1, 2};
  for (int h = 0; h < 2; h++) {
    uint32_t reads[FOUR] = {0};
    count_reads(heads[h], 1000, reads);
    for (uint32_t i = 0; i < FOUR; i++) {
      assert_int_equal(reads[i], 2 * 1000 / FOUR * POSITIONS);
    }
  }
}

RANKS_TEST(heads_that_do_not_divide_are_incompatible)
{
  ranks_options options;
  ranks_options_init(&options, 2, 1, 2);
  open_world(&options);
  world.consumer.core.pool.holding.share = (kvf_share){0, 3, 3};
  assert_int_equal(ranks_load(&ticket, 1), KVF_INCOMPATIBLE);
  assert_int_equal(world.consumer.core.loads.stats.outcomes[kvf_status_index(KVF_INCOMPATIBLE)], 1);
  assert_int_equal(ranks_peers_held(), 0);
  assert_int_equal(dialed(), 0);
}

/* ---- pipelines and dealt tokens ---- */

typedef struct engines {
  uint32_t producer_ranks; /* of all stages */
  ranks_split producer;
  uint32_t consumer_ranks;
  ranks_split consumer;
  uint32_t heads_total;
} engines;

static ranks_options split(const engines *both, uint32_t consumer_rank)
{
  ranks_options options;
  ranks_options_init(&options, both->producer_ranks, both->consumer_ranks, both->heads_total);
  options.consumer_rank = consumer_rank;
  options.producer = both->producer;
  options.consumer = both->consumer;
  options.layers = RANKS_LAYERS;
  return options;
}

static void open_split(const engines *both)
{
  const ranks_options options = split(both, 0);
  open_world(&options);
}

static void assert_holds_all(void)
{
  for (uint32_t group = 0; group < ticket.groups; group++) {
    for (uint32_t position = 0; position < POSITIONS; position++) {
      assert_true(ranks_holds(&ticket, group, position));
    }
  }
}

static void assert_loaded(uint32_t blocks)
{
  assert_outcome(KVF_OK, blocks);
  assert_holds_all();
}

/* Two stages of three layers. */
#define HALVES ((ranks_split){.stage_ends = 0x04})

/* Whatever the stages, heads and dealt tokens of both engines. */
RANKS_TEST(each_rank_gets_its_layers)
{
  static const engines rows[] = {
      {2, {0x04, 1}, 1, {0}, 1},       /* 2 stages to 1 */
      {2, {0x01, 1}, 1, {0}, 2},       /* of unequal length */
      {1, {0}, 2, {0x08, 1}, 1},       /* 1 to 2 */
      {2, {0x04, 1}, 2, {0x02, 1}, 1}, /* 2 to 2 others */
      {4, {0x0b, 1}, 2, {0x04, 1}, 1}, /* 4 to 2 */
      {3, {0x05, 1}, 6, {0x1f, 1}, 2}, /* 3 to 6 */
      {4, {0x04, 1}, 1, {0}, 2},       /* 2 stages of 2 ranks to 1 rank */
      {2, {0x04, 1}, 2, {0}, 2},       /* 2 stages of 1 rank to 2 ranks */
      {4, {0x04, 1}, 2, {0x08, 1}, 4}, /* 2 of 2 ranks to 2 of 1 */
      {2, {0x04, 1}, 4, {0x01, 1}, 4}, /* 2 of 1 rank to 2 of 2 */
      {8, {0x04, 1}, 2, {0x02, 1}, 2}, /* heads that are replicated there */
      {2, {0x04, 1}, 4, {0x02, 1}, 1}, /* here */
      {8, {0x04, 1}, 8, {0x01, 1}, 1}, /* on both sides */
      {2, {0, 2}, 1, {0}, 1},          /* tokens dealt there */
      {1, {0}, 2, {0, 2}, 1},          /* here */
      {4, {0, 2}, 4, {0, 4}, 2},       /* on both sides */
      {8, {0x04, 2}, 1, {0}, 2},       /* all of it */
      {8, {0x04, 4}, 4, {0x02, 2}, 1}, {8, {0x13, 2}, 4, {0x04, 1}, 8},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    for (uint32_t groups = 1; groups <= 3; groups++) {
      for (uint32_t rank = 0; rank < rows[i].consumer_ranks; rank++) {
        ranks_options options = split(&rows[i], rank);
        options.groups = groups;
        open_world(&options);
        assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
        assert_loaded(groups * POSITIONS);
      }
    }
  }
}

/* ---- few blocks, for several readers ---- */

/* `rank` of these engines loads one block of each group, with so many readers. */
static void begin_few(const engines *both, uint32_t rank, uint32_t groups, uint32_t readers, bool held)
{
  ranks_options options = split(both, rank);
  options.groups = groups;
  options.config.chunk_bytes = UINT32_MAX;
  open_with(&options, 1);
  world.hold_reads = held;
  world.consumer.core.loads.readers = (kvf_load_readers){.count = readers, .spread_bytes = 1};
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
}

static void assert_layers(uint32_t read, uint32_t first, uint32_t count)
{
  assert_int_equal(world.reads[read].transfer.layers.first, first);
  assert_int_equal(world.reads[read].transfer.layers.count, count);
}

RANKS_TEST(few_blocks_are_read_by_layers)
{
  const engines both = {1, {0}, 1, {0}, 1};
  begin_few(&both, 0, 3, 4, true); /* three blocks of six layers */
  assert_int_equal(world.reads_count, 4);
  assert_layers(0, 0, 2);
  assert_layers(1, 2, 1);
  assert_layers(2, 3, 2);
  assert_layers(3, 5, 1);
  assert_int_equal(ranks_complete(0, 4, KVF_OK), 4);
  assert_outcome(KVF_OK, 3);
  for (uint32_t group = 0; group < 3; group++) {
    assert_true(ranks_holds(&ticket, group, 0));
  }
  /* Each counts once. */
  assert_int_equal(world.consumer.core.loads.stats.blocks, 3);
  assert_int_equal(world.consumer.core.peers.by_key->stat.blocks, 3);
  assert_int_equal(world.consumer.core.peers.by_key->stat.loads[kvf_status_index(KVF_OK)], 1);
}

RANKS_TEST(a_block_is_good_when_all_its_layers_are)
{
  const engines both = {1, {0}, 1, {0}, 1};
  begin_few(&both, 0, 1, 2, true);
  assert_int_equal(world.reads_count, 2);
  assert_int_equal(ranks_complete(0, 1, KVF_OK), 1);
  assert_int_equal(ranks_complete(0, 1, KVF_LEASE_EXPIRED), 1);
  assert_outcome(KVF_LEASE_EXPIRED, 0);
  assert_int_equal(world.consumer.core.loads.stats.blocks, 0);
  assert_int_equal(world.consumer.core.peers.by_key->stat.loads[kvf_status_index(KVF_LEASE_EXPIRED)], 1);
}

/* Nor is it verified when a part came over a transport that did not check it. */
RANKS_TEST(a_block_is_verified_when_all_its_layers_are)
{
  const engines both = {1, {0}, 1, {0}, 1};
  for (uint32_t parts = 0; parts < 4; parts++) { /* a bit for each of the two that is checked */
    begin_few(&both, 0, 1, 2, true);
    world.consumer.core.context.config.checksum = true;
    for (uint32_t part = 0; part < 2; part++) {
      world.verified = parts >> part & 1;
      assert_int_equal(ranks_complete(0, 1, KVF_OK), 1);
    }
    assert_outcome(KVF_OK, 1);
    assert_int_equal(world.consumer.core.loads.stats.verified, parts == 3 ? 1 : 0);
    assert_int_equal(world.consumer.core.loads.stats.unverified, parts == 3 ? 0 : 1);
  }
}

/* Whatever the stages, heads and dealt tokens of both engines. */
RANKS_TEST(each_rank_gets_all_layers_of_few_blocks)
{
  static const engines rows[] = {
      {1, {0}, 1, {0}, 2},
      {2, {0x01, 1}, 1, {0}, 2},
      {1, {0}, 2, {0x08, 1}, 1},
      {4, {0x04, 1}, 2, {0x08, 1}, 4},
      {8, {0x04, 2}, 4, {0x04, 1}, 8},
      {2, {0, 2}, 1, {0}, 1},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    for (uint32_t groups = 1; groups <= 3; groups++) {
      for (uint32_t readers = 2; readers <= 7; readers++) {
        for (uint32_t rank = 0; rank < rows[i].consumer_ranks; rank++) {
          begin_few(&rows[i], rank, groups, readers, false);
          assert_outcome(KVF_OK, groups);
          for (uint32_t group = 0; group < groups; group++) {
            assert_true(ranks_holds(&ticket, group, 0));
          }
        }
      }
    }
  }
}

/* ---- stages ---- */

/* Of four stages the two that have layers 1 to 3. */
RANKS_TEST(stages_without_a_layer_of_the_reader_are_left_alone)
{
  static const engines both = {4, {0x0d, 1}, 3, {0x09, 1}, 1};
  const ranks_options options = split(&both, 1);
  open_world(&options);
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_loaded(POSITIONS);
  assert_int_equal(world.wires[0].dials, 0);
  assert_int_equal(world.wires[1].dials, 1);
  assert_int_equal(world.wires[2].dials, 1);
  assert_int_equal(world.wires[3].dials, 0);
}

/* A position is good when it has come from all stages. */
RANKS_TEST(prefix_is_the_shortest_of_the_stages)
{
  const engines both = {2, HALVES, 1, {0}, 1};
  open_split(&both);
  world.hold_reads = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_OK), POSITIONS);
  assert_int_equal(ranks_complete(1, 2, KVF_OK), 2);
  assert_int_equal(ranks_complete(1, 1, KVF_LEASE_EXPIRED), 1);
  assert_outcome(KVF_LEASE_EXPIRED, 2);
  assert_true(ranks_holds(&ticket, 0, 1));
  assert_false(ranks_holds(&ticket, 0, 2));
}

RANKS_TEST(a_stage_that_is_dead_fails_the_load)
{
  for (uint32_t dead = 0; dead < 2; dead++) {
    const engines both = {2, HALVES, 1, {0}, 1};
    open_split(&both);
    world.wires[dead].down = true;
    assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
    for (uint32_t ms = 0; ms < 5000 && !kvf_core_has_event(&world.consumer.core); ms += 10) {
      ranks_advance(10);
    }
    assert_outcome(KVF_PEER_DOWN, 0);
  }
}

/* Each stage's heads are on both of its ranks: of one that fails, the other has them. */
RANKS_TEST(another_replica_of_the_stage_is_tried)
{
  for (uint32_t stage = 0; stage < 2; stage++) {
    const engines both = {4, HALVES, 1, {0}, 1};
    open_split(&both);
    world.hold_reads = true;
    assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
    uint32_t of_stage[2];
    for (uint32_t i = 0; i < 2; i++) {
      of_stage[i] = world.wires[(size_t)2 * i].dials == 1 ? 2 * i : 2 * i + 1;
    }
    assert_int_equal(dialed(), 2);
    assert_int_equal(ranks_complete(of_stage[1 - stage], POSITIONS, KVF_OK), POSITIONS);
    assert_int_equal(ranks_complete(of_stage[stage], 1, KVF_PEER_RESTARTED), 1);
    assert_int_equal(dialed(), 4);
    assert_int_equal(ranks_complete(of_stage[0] ^ 1, POSITIONS, KVF_OK), POSITIONS);
    assert_int_equal(ranks_complete(of_stage[1] ^ 1, POSITIONS, KVF_OK), POSITIONS);
    assert_loaded(POSITIONS);
  }
}

/* No more than one rank for each head of a stage: nothing else to try. */
RANKS_TEST(stages_are_no_replicas)
{
  const engines both = {4, HALVES, 1, {0}, 2};
  open_split(&both);
  world.hold_reads = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(ranks_complete(3, 1, KVF_PEER_RESTARTED), 1);
  assert_outcome(KVF_PEER_RESTARTED, 0);
}

RANKS_TEST(layers_that_no_rank_has_are_incompatible)
{
  const engines both = {2, HALVES, 1, {0}, 1};
  open_split(&both);
  ticket.rank[1].layers.count--;
  assert_int_equal(ranks_load(&ticket, 1), KVF_INCOMPATIBLE);
  assert_int_equal(ranks_peers_held(), 0);
  assert_int_equal(dialed(), 0);
}

/* P1: a ticket that says other things than the ranks' memory does not make good what never comes. */
RANKS_TEST(ranks_must_have_what_their_ticket_says)
{
  for (uint32_t kind = 0; kind < 5; kind++) {
    const engines pipeline = {2, HALVES, 1, {0}, 2};
    const engines dealt = {2, {.dealt = 2}, 1, {0}, 2};
    open_split(kind < 3 ? &pipeline : &dealt);
    const kvf_layers first = ticket.rank[0].layers;
    switch (kind) {
      case 0: /* each has the other's layers */
        ticket.rank[0].layers = ticket.rank[1].layers;
        ticket.rank[1].layers = first;
        break;
      case 1: /* nothing: they could have half of the heads each */
        ticket.rank[0].layers = ticket.rank[1].layers = (kvf_layers){0, 0};
        break;
      case 2: /* of all layers, and the other rank's have half of the heads each */
        ticket.rank[0].layers = ticket.rank[1].layers = (kvf_layers){0, RANKS_LAYERS};
        break;
      case 3: /* one deals other tokens than the other */
        world.producers[1].core.pool.welcome.layout.deal.tokens = 4;
        break;
      default: /* tokens are not dealt */
        ticket.rank[0].dealt = ticket.rank[1].dealt = 1;
        break;
    }
    assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
    assert_outcome(KVF_INCOMPATIBLE, 0);
  }
}

RANKS_TEST(ranks_that_do_not_say_what_they_have_may_have_all)
{
  const engines both = {2, {.dealt = 1}, 1, {0}, 2};
  open_split(&both);
  ticket.rank[0].layers = ticket.rank[1].layers = (kvf_layers){0, 0};
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_loaded(POSITIONS);
}

/* A read takes as many blocks as its share of their layers and tokens leaves room for. */
RANKS_TEST(chunks_count_what_comes_with_them)
{
  static const engines rows[] = {{1, {0}, 1, {0}, 2}, {2, {0x04, 1}, 1, {0}, 2}, {2, {0, 2}, 1, {0}, 1}};
  const uint32_t block_bytes = RANKS_LAYERS * RANKS_BLOCK_TOKENS * (uint32_t)sizeof(uint16_t);
  for (uint32_t i = 0; i < 3; i++) {
    ranks_options options = split(&rows[i], 0);
    options.config.chunk_bytes = 2 * block_bytes * rows[i].heads_total;
    open_world(&options);
    world.hold_reads = true;
    assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
    for (uint32_t k = 0; k < world.reads_count; k++) {
      const kvf_transfer *transfer = &world.reads[k].transfer;
      assert_int_equal(transfer->items_count, i > 0 && transfer->items[0].position == 0 ? 4 : 2);
    }
    while (world.reads_count > 0) {
      (void)ranks_complete(world.path_producer[world.reads[0].link_id], 1, KVF_OK);
    }
    assert_loaded(POSITIONS);
    assert_int_equal(world.read_bytes, POSITIONS * block_bytes * rows[i].heads_total);
  }
}

/* What is of a group without memory on a rank is not written anywhere; what else is, has its limits. */
RANKS_TEST(destinations_of_a_stage)
{
  const engines both = {1, {0}, 2, HALVES, 1};
  for (uint32_t rank = 0; rank < 2; rank++) {
    ranks_options options = split(&both, rank);
    options.groups = 2;
    open_world(&options);
    const size_t first = (size_t)rank * POSITIONS;
    uint32_t destination[2 * POSITIONS];
    for (uint32_t i = 0; i < 2 * POSITIONS; i++) {
      destination[i] = i / POSITIONS == rank ? ranks_destination(i % POSITIONS) : UINT32_MAX - 1;
    }
    assert_int_equal(load_into(destination, 1, ticket.counts), KVF_INVALID);
    destination[first] = RANKS_BLOCKS;
    assert_int_equal(load_into(destination, 2, ticket.counts), KVF_INVALID);
    destination[first] = destination[first + 1];
    assert_int_equal(load_into(destination, 2, ticket.counts), KVF_INVALID);
    destination[first] = ranks_destination(0);
    assert_int_equal(load_into(destination, 2, ticket.counts), KVF_OK);
    assert_outcome(KVF_OK, 2 * POSITIONS);
    for (uint32_t position = 0; position < POSITIONS; position++) {
      assert_true(ranks_holds(&ticket, rank, position));
    }
  }
}

/* ---- prefixes ---- */

static void open_two_parts(uint32_t groups)
{
  ranks_options options;
  ranks_options_init(&options, 2, 1, 4);
  options.groups = groups;
  open_world(&options);
  world.hold_reads = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(world.reads_count, 2 * groups * POSITIONS);
}

/* A position is good when all its parts are. */
RANKS_TEST(prefix_is_the_shortest_of_the_parts)
{
  open_two_parts(1);
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_OK), POSITIONS);
  assert_int_equal(ranks_complete(1, 2, KVF_OK), 2);
  assert_int_equal(ranks_complete(1, 1, KVF_LEASE_EXPIRED), 1);
  kvf_report report = outcome();
  assert_int_equal(report.status, KVF_LEASE_EXPIRED);
  assert_int_equal(report.prefix, 2);
  assert_int_equal(report.blocks, POSITIONS);
  assert_true(ranks_holds(&ticket, 0, 1));
  assert_released();
}

RANKS_TEST(one_part_is_not_enough)
{
  open_two_parts(1);
  assert_int_equal(ranks_complete(1, POSITIONS, KVF_OK), POSITIONS);
  assert_int_equal(ranks_complete(0, 1, KVF_LEASE_UNKNOWN), 1);
  assert_outcome(KVF_LEASE_UNKNOWN, 0);
}

/* P7: a position is good when it is good in all groups. */
RANKS_TEST(prefix_is_the_shortest_of_the_groups)
{
  for (uint32_t good = 0; good <= 2 * POSITIONS; good++) {
    open_two_parts(2);
    assert_int_equal(ranks_complete(0, 2 * POSITIONS, KVF_OK), 2 * POSITIONS);
    assert_int_equal(ranks_complete(1, good, KVF_OK), good);
    assert_int_equal(ranks_complete(1, 1, KVF_LEASE_EXPIRED), good < 2 * POSITIONS);
    bool all = good == 2 * POSITIONS;
    assert_outcome(all ? KVF_OK : KVF_LEASE_EXPIRED, all ? good : good / 2);
  }
}

/* Two blocks of the second group are as long as one of the first. The state, which is of all tokens, comes last. */
RANKS_TEST(prefix_of_groups_with_other_blocks)
{
  ranks_options options;
  ranks_options_init(&options, 1, 1, 1);
  options.groups = 3;
  (void)strcpy(options.config.group_block_tokens, "16,8,0");
  const uint32_t all = 3 * POSITIONS + 1;
  for (uint32_t good = 0; good < all; good++) {
    open_world(&options);
    world.hold_reads = true;
    assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
    assert_int_equal(world.reads_count, all);
    for (uint32_t i = 0; i < all; i++) {
      const kvf_transfer_item *item = world.reads[i].transfer.items;
      const uint32_t place = i % 3;
      assert_int_equal(item->group, i == all - 1 ? 2 : place > 0);
      assert_int_equal(item->position, i == all - 1 ? 0 : place == 0 ? i / 3 : 2 * (i / 3) + place - 1);
    }
    assert_int_equal(ranks_complete(0, good, KVF_OK), good);
    assert_int_equal(ranks_complete(0, 1, KVF_LEASE_EXPIRED), 1);
    kvf_report report = outcome();
    assert_int_equal(report.blocks, all);
    assert_int_equal(report.prefix, good < all - 1 ? good / 3 : POSITIONS - 1);
    assert_released();
  }
}

/* Groups are read side by side, so that a position's blocks come together. */
RANKS_TEST(groups_are_read_position_by_position)
{
  open_two_parts(2);
  uint32_t seen[2] = {0};
  for (uint32_t i = 0; i < world.reads_count; i++) {
    uint32_t producer = world.path_producer[world.reads[i].link_id];
    const kvf_transfer_item *item = world.reads[i].transfer.items;
    assert_int_equal(item->position, seen[producer] / 2);
    assert_int_equal(item->group, seen[producer] % 2);
    assert_int_equal(item->remote_block, ids[item->group * POSITIONS + item->position]);
    seen[producer]++;
  }
  assert_int_equal(ranks_complete(0, 2 * POSITIONS, KVF_OK), 2 * POSITIONS);
  assert_int_equal(ranks_complete(1, 2 * POSITIONS, KVF_OK), 2 * POSITIONS);
}

/* ---- transports ---- */

/* What breaks under a read is read again over the other transport, and what had been confirmed is not. */
SIMPLE_TEST(another_transport_brings_the_rest)
{
  world.hold_reads = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(world.reads_count, POSITIONS);
  uint32_t local = world.reads[0].link_id;
  assert_int_equal(world.path_transport[local], 0);
  assert_int_equal(ranks_complete(0, 2, KVF_OK), 2);
  world.transports_down = 1;
  kvf_peers_on_link_down(&world.consumer.core.peers, world.now_ns, local, KVF_TRANSFER_FAILED);
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_TRANSFER_FAILED), POSITIONS - 2);
  for (uint32_t ms = 0; world.reads_count == 0 && ms < 1000; ms += 10) {
    ranks_advance(10);
  }
  assert_int_equal(world.reads_count, POSITIONS - 2);
  for (uint32_t i = 0; i < world.reads_count; i++) {
    assert_int_equal(world.path_transport[world.reads[i].link_id], 1);
    assert_int_equal(world.reads[i].transfer.items_count, 1);
    assert_int_equal(world.reads[i].transfer.items[0].position, 2 + i);
  }
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_OK), POSITIONS - 2);
  assert_int_equal(outcome().status, KVF_OK);
  for (uint32_t position = 0; position < POSITIONS; position++) {
    assert_true(ranks_holds(&ticket, 0, position));
  }
  assert_int_equal(world.consumer.core.loads.stats.blocks, POSITIONS);
  assert_released();
}

/* ---- which blocks ---- */

SIMPLE_TEST(only_wanted_blocks_are_read)
{
  uint32_t destination[POSITIONS] = {KVF_BLOCK_NONE, 1, KVF_BLOCK_NONE, 2, 3, KVF_BLOCK_NONE};
  world.hold_reads = true;
  assert_int_equal(load_into(destination, 1, ticket.counts), KVF_OK);
  assert_int_equal(world.reads_count, 3);
  assert_int_equal(ranks_complete(0, 1, KVF_OK), 1);
  assert_int_equal(ranks_complete(0, 1, KVF_LEASE_EXPIRED), 1);
  assert_int_equal(outcome().prefix, 3); /* the first position that is missing; what is not wanted is good already */
  assert_released();
}

SIMPLE_TEST(nothing_wanted_is_done_at_once)
{
  uint32_t destination[POSITIONS];
  memset(destination, 0xff, sizeof(destination));
  assert_int_equal(load_into(destination, 1, ticket.counts), KVF_OK);
  assert_outcome(KVF_OK, POSITIONS);
  assert_int_equal(dialed(), 0);
}

SIMPLE_TEST(destinations_that_do_not_fit_are_refused)
{
  uint32_t good[POSITIONS] = {0, 1, 2, 3, 4, 5};
  const uint32_t counts[2] = {POSITIONS - 1, 1};
  const uint32_t more[1] = {POSITIONS + 1};
  assert_int_equal(load_into(good, 1, counts), KVF_INVALID);
  assert_int_equal(load_into(good, 1, more), KVF_INVALID);
  assert_int_equal(load_into(good, 2, counts), KVF_INVALID);
  assert_int_equal(load_into(good, 0, counts), KVF_INVALID);
  good[5] = RANKS_BLOCKS; /* one past the pool */
  assert_int_equal(load_into(good, 1, ticket.counts), KVF_INVALID);
  good[5] = RANKS_BLOCKS - 1;
  good[1] = good[4]; /* two positions in one block */
  assert_int_equal(load_into(good, 1, ticket.counts), KVF_INVALID);
  assert_int_equal(load_into(good, 1, ticket.counts), KVF_INVALID);
  good[1] = 1;
  uint32_t slid_out = ticket.ids[2];
  ticket.ids[2] = KVF_BLOCK_NONE; /* the producer does not have it any more */
  assert_int_equal(load_into(good, 1, ticket.counts), KVF_INVALID);
  ticket.ids[2] = slid_out;
  assert_int_equal(ranks_peers_held(), 0);
  assert_int_equal(dialed(), 0);
  assert_int_equal(load_into(good, 1, ticket.counts), KVF_OK);
}

RANKS_TEST(memory_must_be_registered)
{
  ranks_options options = simple();
  options.control = true;
  open_world(&options);
  assert_int_equal(ranks_load(&ticket, 1), KVF_INVALID);
}

/* A ticket of fewer groups than this engine has cannot be of its model. */
RANKS_TEST(groups_must_be_those_of_the_memory)
{
  ranks_options options = simple();
  options.groups = 2;
  open_world(&options);
  ticket.groups = 1;
  assert_int_equal(ranks_load(&ticket, 1), KVF_INVALID);
}

/* ---- tickets and tables ---- */

/* P8: nothing is connected to. */
SIMPLE_TEST(tickets_of_others_are_refused)
{
  uint32_t destination[POSITIONS] = {0, 1, 2, 3, 4, 5};
  ticket.compat[31] ^= 1;
  assert_int_equal(load_into(destination, 1, ticket.counts), KVF_INCOMPATIBLE);
  ticket.compat[31] ^= 1;
  kvf_load_params load = {.request_id = 1,
                          .prompt = ticket.prompt,
                          .destination = {.ids = destination, .counts = ticket.counts, .groups = 1}};
  load.prompt.hash[0] ^= 1;
  assert_int_equal(start_load(&load), KVF_BAD_TICKET);
  load.prompt = ticket.prompt;
  load.prompt.tokens--;
  assert_int_equal(start_load(&load), KVF_BAD_TICKET);
  ranks_settle();
  assert_int_equal(dialed(), 0);
  assert_null(world.consumer.core.peers.by_key);
}

/* P1: a producer whose lease covers other blocks than the ticket says. */
SIMPLE_TEST(digest_must_be_that_of_the_lease)
{
  ticket.ids[0]++;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  kvf_report report = outcome();
  assert_int_equal(report.status, KVF_BAD_TICKET);
  assert_int_equal(report.prefix, 0);
}

SIMPLE_TEST(a_request_loads_once_at_a_time)
{
  world.hold_reads = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(ranks_load(&ticket, 1), KVF_EXISTS);
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_OK), POSITIONS);
  assert_int_equal(ranks_load(&ticket, 1), KVF_EXISTS); /* its release has not been taken */
  assert_int_equal(outcome().status, KVF_OK);
  assert_released();
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
}

RANKS_TEST(table_is_bounded_and_what_is_refused_holds_nothing)
{
  ranks_options options;
  ranks_options_init(&options, 2, 1, 4);
  options.config.loads_max = 2;
  open_world(&options);
  world.hold_reads = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(ranks_load(&ticket, 2), KVF_OK);
  assert_int_equal(ranks_peers_held(), 4);
  assert_int_equal(ranks_load(&ticket, 3), KVF_NO_RESOURCE);
  assert_int_equal(ranks_peers_held(), 4);
  assert_int_equal(kvf_loads_open(&world.consumer.core.loads), 2);
}

/* P6: an engine that takes no events does not fill the memory. */
RANKS_TEST(loads_whose_events_wait_are_open)
{
  ranks_options options = simple();
  options.config.loads_max = 2;
  open_world(&options);
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(ranks_load(&ticket, 2), KVF_OK);
  assert_int_equal(ranks_load(&ticket, 3), KVF_NO_RESOURCE);
  assert_int_equal(outcome().status, KVF_OK);
  assert_int_equal(ranks_load(&ticket, 3), KVF_NO_RESOURCE);
  assert_released();
  assert_int_equal(ranks_load(&ticket, 3), KVF_OK);
}

/* P2 */
RANKS_TEST(deadline_is_the_loads_or_the_nodes)
{
  ranks_options options = simple();
  options.config.load_timeout_ms = 400;
  options.config.stall_timeout_ms = 10000;
  open_world(&options);
  world.hold_reads = true;
  for (uint32_t own_ms = 0; own_ms <= 250; own_ms += 250) {
    uint32_t destination[POSITIONS] = {0, 1, 2, 3, 4, 5};
    kvf_event event;
    kvf_load_params load = {.request_id = 1,
                            .prompt = ticket.prompt,
                            .destination = {.ids = destination, .counts = ticket.counts, .groups = 1},
                            .timeout_ms = own_ms,
                            .user = 5};
    assert_int_equal(start_load(&load), KVF_OK);
    ranks_settle();
    ranks_advance(own_ms == 0 ? 399 : own_ms - 1);
    assert_false(ranks_event(KVF_EVENT_LOAD, &event));
    ranks_advance(2); /* the wheel's resolution */
    assert_int_equal(outcome().status, KVF_DEADLINE);
    assert_released();
  }
}

/* ---- abort ---- */

/* P4: released comes when the last read has ended, not before. */
RANKS_TEST(abort_waits_for_its_reads)
{
  kvf_event event;
  open_two_parts(1);
  world.hold_cancels = true;
  kvf_core *core = &world.consumer.core;
  assert_int_equal(kvf_core_load_abort(core, world.now_ns, 1), KVF_OK);
  assert_int_equal(kvf_core_load_abort(core, world.now_ns, 1), KVF_OK);
  assert_int_equal(outcome().status, KVF_ABORTED);
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_CANCELLED), POSITIONS);
  assert_int_equal(ranks_complete(1, POSITIONS - 1, KVF_OK), POSITIONS - 1);
  assert_false(ranks_event(KVF_EVENT_RELEASED, &event));
  assert_int_equal(ranks_peers_held(), 2);
  assert_int_equal(ranks_complete(1, 1, KVF_CANCELLED), 1);
  assert_released();
  assert_int_equal(kvf_core_load_abort(core, world.now_ns, 1), KVF_NOT_FOUND);
  assert_int_equal(kvf_core_load_abort(core, world.now_ns, 99), KVF_NOT_FOUND);
}

SIMPLE_TEST(refused_tickets_are_counted)
{
  const kvf_ticket_counters *counters = &world.consumer.core.context.tickets;
  const kvf_status refused[] = {KVF_BAD_TICKET, KVF_OTHER_KEY, KVF_OTHER_KEY, KVF_INCOMPATIBLE, KVF_NO_MEMORY};
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
    kvf_core_ticket_refused(&world.consumer.core, world.now_ns, refused[i]);
  }
  assert_int_equal(counters->bad, 1);
  assert_int_equal(counters->other_key, 2);
  assert_int_equal(counters->incompatible, 1);
}

SIMPLE_TEST(ticket_without_tokens_is_done_at_once)
{
  ticket.prompt.tokens = 0;
  ticket.counts[0] = 0;
  assert_int_equal(load_into(NULL, 1, ticket.counts), KVF_OK);
  kvf_report report = outcome();
  assert_int_equal(report.status, KVF_OK);
  assert_int_equal(report.blocks, 0);
  assert_released();
  assert_int_equal(dialed(), 0);
}
