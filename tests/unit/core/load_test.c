/* Loads of a consumer rank from the ranks of a producer: what is refused, which ranks are read what from, and what
 * prefix is reported. */
#include "core/core_state.h"
#include "scene.h"

#define POSITIONS 6

static uint32_t dialed(void)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < c.producer.ranks; i++) {
    count += c.wires[i].dials;
  }
  return count;
}

__attribute__((format(printf, 1, 2))) static void open_with(const char *format, ...)
{
  char options[256];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(options, sizeof(options), format, args);
  va_end(args);
  cluster_open(options);
}

/* All is loaded, and is what the producer's ranks hold. */
static void assert_loads(uint32_t blocks)
{
  char expected[64];
  (void)snprintf(expected, sizeof(expected), "load 1: ok %u/%u; load 1 released", blocks, blocks);
  assert_int_equal(cluster_load("A", 1), KVF_OK);
  assert_string_equal(cluster_said(), expected);
  assert_true(cluster_holds_all(&c.tickets[0]));
  assert_int_equal(cluster_users(), 0);
}

/* ---- heads ---- */

/* A consumer rank gets its heads, whatever the numbers of ranks, and asks no rank that has none of them. */
CLUSTER_TEST(each_rank_gets_its_heads)
{
  static const uint32_t widths[] = {1, 2, 4};
  static const uint32_t heads[] = {1, 2, 4, 8};
  for (size_t h = 0; h < 4; h++) {
    for (size_t p = 0; p < 3; p++) {
      for (size_t d = 0; d < 3; d++) {
        for (uint32_t rank = 0; rank < widths[d]; rank++) {
          open_with("ranks=%u own=%u rank=%u heads=%u groups=2 blocks=6 published", widths[p], widths[d], rank,
                    heads[h]);
          assert_loads(2 * POSITIONS);
          const uint32_t parts = widths[p] > widths[d] ? widths[p] / widths[d] : 1;
          const uint32_t heads_here = heads[h] > widths[d] ? heads[h] / widths[d] : 1;
          assert_int_equal(dialed(), parts < heads_here ? parts : heads_here);
        }
      }
    }
  }
}

#define FOUR 4
#define LOADS 200

/* Heads that several ranks of the producer hold are read from each of them as often as from the others. */
CLUSTER_TEST(loads_spread_over_replicas)
{
  for (uint32_t heads = 1; heads <= 2; heads++) {
    uint32_t reads[FOUR] = {0};
    for (uint32_t rank = 0; rank < 2; rank++) {
      open_with("ranks=%d own=2 rank=%u heads=%u published hold=reads", FOUR, rank, heads);
      for (uint32_t i = 0; i < LOADS; i++, c.tickets[0].lease.id++) {
        assert_int_equal(cluster_load("A", i), KVF_OK);
        for (uint32_t k = 0; k < FOUR; k++) {
          reads[k] += cluster_reads_of(k);
        }
        assert_int_equal(kvf_core_load_abort(c.d.core, c.now_ns, i), KVF_OK);
        cluster_settle();
        (void)cluster_said();
      }
    }
    for (uint32_t i = 0; i < FOUR; i++) {
      assert_int_equal(reads[i], 2 * LOADS / FOUR);
    }
  }
}

CLUSTER_TEST(heads_that_do_not_divide_are_incompatible)
{
  cluster_open("ranks=2 heads=2 published");
  assert_true(cluster_clear_memory(&c.d));
  c.d.regions[0].block_bytes = 6;
  c.d.regions[0].heads = c.d.regions[0].heads_total = 3;
  cluster_set_memory(&c.d);
  scene(
      "load 1 A > incompatible\n"
      "stats D loads_failed.incompatible peers_known > 1; 0\n");
}

/* ---- pipelines and dealt tokens ---- */

typedef struct engines {
  cluster_split producer; /* ranks, where stages end, and ranks that tokens are dealt to */
  cluster_split consumer;
  uint32_t heads;
} engines;

/* As rank `rank` of the consumer's, with reads of one block. */
static void open_split(const engines *both, uint32_t rank, uint32_t groups, uint32_t blocks, const char *more)
{
  open_with(
      "ranks=%u stages=%u dealt=%u own=%u own_stages=%u own_dealt=%u heads=%u rank=%u groups=%u blocks=%u layers=6 "
      "published %s",
      both->producer.ranks, both->producer.stage_ends, both->producer.dealt, both->consumer.ranks,
      both->consumer.stage_ends, both->consumer.dealt, both->heads, rank, groups, blocks, more);
}

/* Whatever the stages, heads and dealt tokens of both engines. */
CLUSTER_TEST(each_rank_gets_its_layers)
{
  static const engines rows[] = {
      {{2, 0x04, 1}, {1, 0, 0}, 1},    /* 2 stages to 1 */
      {{2, 0x01, 1}, {1, 0, 0}, 2},    /* of unequal length */
      {{1, 0, 0}, {2, 0x08, 1}, 1},    /* 1 to 2 */
      {{2, 0x04, 1}, {2, 0x02, 1}, 1}, /* 2 to 2 others */
      {{4, 0x0b, 1}, {2, 0x04, 1}, 1}, /* 4 to 2 */
      {{3, 0x05, 1}, {6, 0x1f, 1}, 2}, /* 3 to 6 */
      {{4, 0x04, 1}, {1, 0, 0}, 2},    /* 2 stages of 2 ranks to 1 rank */
      {{2, 0x04, 1}, {2, 0, 0}, 2},    /* 2 stages of 1 rank to 2 ranks */
      {{4, 0x04, 1}, {2, 0x08, 1}, 4}, /* 2 of 2 ranks to 2 of 1 */
      {{2, 0x04, 1}, {4, 0x01, 1}, 4}, /* 2 of 1 rank to 2 of 2 */
      {{8, 0x04, 1}, {2, 0x02, 1}, 2}, /* heads that are replicated there */
      {{2, 0x04, 1}, {4, 0x02, 1}, 1}, /* here */
      {{8, 0x04, 1}, {8, 0x01, 1}, 1}, /* on both sides */
      {{2, 0, 2}, {1, 0, 0}, 1},       /* tokens dealt there */
      {{1, 0, 0}, {2, 0, 2}, 1},       /* here */
      {{4, 0, 2}, {4, 0, 4}, 2},       /* on both sides */
      {{8, 0x04, 2}, {1, 0, 0}, 2},    /* all of it */
      {{8, 0x04, 4}, {4, 0x02, 2}, 1}, {{8, 0x13, 2}, {4, 0x04, 1}, 8},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    for (uint32_t groups = 1; groups <= 3; groups++) {
      for (uint32_t rank = 0; rank < rows[i].consumer.ranks; rank++) {
        open_split(&rows[i], rank, groups, POSITIONS, "single");
        assert_loads(groups * POSITIONS);
      }
    }
  }
}

/* ---- few blocks, for several readers: none of these memories is so large that they would be cut by themselves ---- */

static void open_few(const engines *both, uint32_t rank, uint32_t groups, uint32_t readers, const char *more)
{
  char options[64];
  (void)snprintf(options, sizeof(options), "chunks_in_flight=48 %s", more);
  open_split(both, rank, groups, 1, options);
  c.d.core->loads.readers = (kvf_load_readers){.count = readers, .spread_bytes = 1};
}

static const engines alone = {{1, 0, 0}, {1, 0, 0}, 1};

/* Three blocks of six layers; each counts once. */
CLUSTER_TEST(few_blocks_are_read_by_layers)
{
  open_few(&alone, 0, 3, 4, "hold=reads");
  scene(
      "load 1 A > read 1 of P0 [0-1]: 0.0,1.0,2.0; read 2 of P0 [2-2]: 0.0,1.0,2.0; read 3 of P0 [3-4]: 0.0,1.0,2.0; "
      "read 4 of P0 [5-5]: 0.0,1.0,2.0\n"
      "done P0 4 ok > load 1: ok 3/3; load 1 released\n"
      "stats D blocks_loaded loads_done > 3; 1\n");
  assert_true(cluster_holds_all(&c.tickets[0]));
}

CLUSTER_TEST(a_block_is_good_when_all_its_layers_are)
{
  open_few(&alone, 0, 1, 2, "hold=reads");
  scene(
      "load 1 A > read 1 of P0 [0-2]: 0; read 2 of P0 [3-5]: 0\n"
      "done P0 1 ok\n"
      "done P0 1 lease_expired > load 1: lease_expired 0/1; load 1 released\n"
      "stats D blocks_loaded > 0\n");
}

/* Nor is it verified when a part came over a transport that did not check it. */
CLUSTER_TEST(a_block_is_verified_when_all_its_layers_are)
{
  for (uint32_t parts = 0; parts < 4; parts++) { /* a bit for each of the two that is checked */
    open_few(&alone, 0, 1, 2, "checksum=on hold=reads");
    assert_int_equal(cluster_load("A", 1), KVF_OK);
    for (uint32_t part = 0; part < 2; part++) {
      c.verified = parts >> part & 1;
      assert_int_equal(cluster_end_reads(0, 1, KVF_OK), 1);
    }
    assert_int_equal(cluster_stat(&c.d, "blocks_verified", ""), parts == 3 ? 1 : 0);
    assert_int_equal(cluster_stat(&c.d, "blocks_unverified", ""), parts == 3 ? 0 : 1);
    (void)cluster_said();
  }
}

/* Whatever the stages, heads and dealt tokens of both engines. */
CLUSTER_TEST(each_rank_gets_all_layers_of_few_blocks)
{
  static const engines rows[] = {
      {{1, 0, 0}, {1, 0, 0}, 2},       {{2, 0x01, 1}, {1, 0, 0}, 2},    {{1, 0, 0}, {2, 0x08, 1}, 1},
      {{4, 0x04, 1}, {2, 0x08, 1}, 4}, {{8, 0x04, 2}, {4, 0x04, 1}, 8}, {{2, 0, 2}, {1, 0, 0}, 1},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    for (uint32_t groups = 1; groups <= 3; groups++) {
      for (uint32_t readers = 2; readers <= 7; readers++) {
        for (uint32_t rank = 0; rank < rows[i].consumer.ranks; rank++) {
          open_few(&rows[i], rank, groups, readers, "");
          assert_loads(groups);
        }
      }
    }
  }
}

/* ---- stages ---- */

/* Of four stages the two that have layers 1 to 3. */
SCENE(stages_without_a_layer_of_the_reader_are_left_alone,
      "ranks=4 stages=0x0d own=3 own_stages=0x09 rank=1 layers=6 published hold=dials",
      "load 1 A > dial P1; dial P2\n"
      "accept P1\n"
      "accept P2 > load 1: ok 4/4; load 1 released\n"
      "holds A > 4\n")

#define HALVES "ranks=2 stages=0x04 layers=6 published "

/* A position is good when it has come from all stages. */
SCENE(prefix_is_the_shortest_of_the_stages, HALVES "single hold=reads",
      "load 1 A > read 1 of P0 [0-2]: 0 | 1 | 2 | 3; read 5 of P1 [3-5]: 0 | 1 | 2 | 3\n"
      "done P0 4 ok\n"
      "done P1 2 ok\n"
      "done P1 1 lease_expired > cancel 8; load 1: lease_expired 2/4; load 1 released\n"
      "holds A > 2\n")

SCENE(a_first_stage_that_is_dead_fails_the_load, HALVES,
      "down P0\n"
      "load 1 A > load 1: peer_down 0/4; load 1 released\n")

SCENE(a_last_stage_that_is_dead_fails_the_load, HALVES,
      "down P1\n"
      "load 1 A > load 1: peer_down 0/4; load 1 released\n")

/* Each stage's heads are on both of its ranks: of one that fails, the other has them. */
SCENE(another_replica_of_the_first_stage_is_tried, "ranks=4 stages=0x04 layers=6 published single hold=reads",
      "load 1 A > read 1 of P1 [0-2]: 0 | 1 | 2 | 3; read 5 of P3 [3-5]: 0 | 1 | 2 | 3\n"
      "done P3 4 ok\n"
      "done P1 1 peer_restarted > cancel 2,3,4; read 9 of P0 [0-2]: 0 | 1 | 2 | 3; read 13 of P2 [3-5]: 0 | 1 | 2 | 3\n"
      "done P0 4 ok\n"
      "done P2 4 ok > load 1: ok 4/4; load 1 released\n"
      "holds A > 4\n")

SCENE(another_replica_of_the_last_stage_is_tried, "ranks=4 stages=0x04 layers=6 published single hold=reads",
      "load 1 A > read 1 of P1 [0-2]: 0 | 1 | 2 | 3; read 5 of P3 [3-5]: 0 | 1 | 2 | 3\n"
      "done P1 4 ok\n"
      "done P3 1 peer_restarted > cancel 6,7,8; read 9 of P0 [0-2]: 0 | 1 | 2 | 3; read 13 of P2 [3-5]: 0 | 1 | 2 | 3\n"
      "done P0 4 ok\n"
      "done P2 4 ok > load 1: ok 4/4; load 1 released\n"
      "holds A > 4\n")

/* No more than one rank for each head of a stage: nothing else to try. */
SCENE(stages_are_no_replicas, "ranks=4 stages=0x04 layers=6 heads=2 published hold=reads",
      "load 1 A > read 1 of P0 [0-2]: 0,1,2,3; read 2 of P1 [0-2]: 0,1,2,3; read 3 of P2 [3-5]: 0,1,2,3; read 4 of P3 "
      "[3-5]: 0,1,2,3\n"
      "done P3 1 peer_restarted > cancel 1,2,3; load 1: peer_restarted 0/4; load 1 released\n")

CLUSTER_TEST(layers_that_no_rank_has_are_incompatible)
{
  cluster_open(HALVES);
  c.tickets[0].rank[1].layers.count--;
  scene(
      "load 1 A > incompatible\n"
      "stats D peers_known > 0\n");
}

/* P1: a ticket that says other things than the ranks' memory does not make good what never comes. */
CLUSTER_TEST(ranks_must_have_what_their_ticket_says)
{
  for (uint32_t kind = 0; kind < 5; kind++) {
    cluster_open(kind < 3 ? HALVES "heads=2" : "ranks=2 dealt=2 layers=6 heads=2 published");
    kvf_rank_record *rank = c.tickets[0].rank;
    const kvf_layers first = rank[0].layers;
    switch (kind) {
      case 0: /* each has the other's layers */
        rank[0].layers = rank[1].layers;
        rank[1].layers = first;
        break;
      case 1: /* nothing: they could have half of the heads each */
        rank[0].layers = rank[1].layers = (kvf_layers){0, 0};
        break;
      case 2: /* of all layers, and the other rank's have half of the heads each */
        rank[0].layers = rank[1].layers = (kvf_layers){0, CLUSTER_LAYERS};
        break;
      case 3: /* one deals other tokens than the other */
        assert_true(cluster_clear_memory(&c.p[1]));
        c.p[1].pages.layout.deal.tokens = 4;
        cluster_set_memory(&c.p[1]);
        break;
      default: /* tokens are not dealt */
        rank[0].dealt = rank[1].dealt = 1;
        break;
    }
    (void)cluster_said();
    assert_int_equal(cluster_load("A", 1), KVF_OK);
    assert_non_null(strstr(cluster_said(), "load 1: incompatible 0/4; load 1 released"));
  }
}

CLUSTER_TEST(ranks_that_do_not_say_what_they_have_may_have_all)
{
  cluster_open("ranks=2 layers=6 heads=2 published");
  c.tickets[0].rank[0].layers = c.tickets[0].rank[1].layers = (kvf_layers){0, 0};
  assert_loads(4);
}

/* A read takes as many blocks as its share of their layers and tokens leaves room for: two whole ones, here. */
CLUSTER_TEST(chunks_count_what_comes_with_them)
{
  static const engines rows[] = {{{1, 0, 0}, {1, 0, 0}, 2}, {{2, 0x04, 1}, {1, 0, 0}, 2}, {{2, 0, 2}, {1, 0, 0}, 1}};
  static const char *const reads[] = {"read 1 of P0 [0-5]: 0,1 | 2,3 | 4,5",
                                      "read 1 of P0 [0-2]: 0,1,2,3 | 4,5; read 3 of P1 [3-5]: 0,1,2,3 | 4,5",
                                      "read 1 of P0 [0-5]: 0,1,2,3 | 4,5; read 3 of P1 [0-5]: 0,1,2,3 | 4,5"};
  const uint32_t block_bytes = CLUSTER_LAYERS * CLUSTER_BLOCK_TOKENS * (uint32_t)sizeof(uint16_t);
  for (uint32_t i = 0; i < 3; i++) {
    char more[64];
    (void)snprintf(more, sizeof(more), "hold=reads exact_chunk_bytes=%u", 2 * block_bytes * rows[i].heads);
    open_split(&rows[i], 0, 1, POSITIONS, more);
    assert_int_equal(cluster_load("A", 1), KVF_OK);
    assert_string_equal(cluster_said(), reads[i]);
    while (c.reads_count > 0) {
      cluster_end_read(0, KVF_OK);
    }
    assert_true(cluster_holds_all(&c.tickets[0]));
    assert_int_equal(c.read_bytes, POSITIONS * block_bytes * rows[i].heads);
  }
}

/* ---- prefixes ---- */

/* A position is good when all its parts are. */
SCENE(prefix_is_the_shortest_of_the_parts, "ranks=2 heads=4 published single hold=reads",
      "load 1 A > read 1 of P0: 0 | 1 | 2 | 3; read 5 of P1: 0 | 1 | 2 | 3\n"
      "done P0 4 ok\n"
      "done P1 2 ok\n"
      "done P1 1 lease_expired > cancel 8; load 1: lease_expired 2/4; load 1 released\n"
      "holds A > 2\n")

/* P7: a position is good when it is good in all groups; which are read side by side, so that a position's blocks come
 * together. */
CLUSTER_TEST(prefix_is_the_shortest_of_the_groups)
{
  for (uint32_t good = 0; good <= 8; good++) {
    char expected[64];
    cluster_open("groups=2 published single hold=reads");
    scene("load 1 A > read 1 of P0: 0.0 | 1.0 | 0.1 | 1.1 | 0.2 | 1.2 | 0.3 | 1.3\n");
    assert_int_equal(cluster_end_reads(0, good, KVF_OK), good);
    assert_int_equal(cluster_end_reads(0, 1, KVF_LEASE_EXPIRED), good < 8);
    (void)snprintf(expected, sizeof(expected), "load 1: %s %u/8; load 1 released", good == 8 ? "ok" : "lease_expired",
                   good == 8 ? 8 : good / 2);
    assert_non_null(strstr(cluster_said(), expected));
  }
}

/* Two blocks of the second group are as long as one of the first. The state, which is of all tokens, comes last. */
CLUSTER_TEST(prefix_of_groups_with_other_blocks)
{
  for (uint32_t good = 0; good <= 6; good++) {
    char expected[64];
    cluster_open("groups=3 blocks=2 group_block_tokens=16,8,0 published single hold=reads");
    scene("load 1 A > read 1 of P0: 0.0 | 1.0 | 1.1 | 0.1 | 1.2 | 1.3 | 2.0\n");
    assert_int_equal(cluster_end_reads(0, good, KVF_OK), good);
    assert_int_equal(cluster_end_reads(0, 1, KVF_LEASE_EXPIRED), 1);
    (void)snprintf(expected, sizeof(expected), "load 1: lease_expired %u/7; load 1 released", good < 6 ? good / 3 : 1);
    assert_non_null(strstr(cluster_said(), expected));
  }
}

/* ---- which blocks ---- */

/* The prefix ends at the first position that is missing; what is not wanted is good already. */
SCENE(only_wanted_blocks_are_read, "blocks=6 published single hold=reads",
      "load 1 A want=1,3,4 > read 1 of P0: 1 | 3 | 4\n"
      "done P0 1 ok\n"
      "done P0 1 lease_expired > cancel 3; load 1: lease_expired 3/6; load 1 released\n")

SCENE(nothing_wanted_is_done_at_once, "published hold=dials", "load 1 A want= > load 1: ok 4/4; load 1 released\n")

SCENE(ticket_without_tokens_is_done_at_once, "published hold=dials",
      "alter A empty\n"
      "load 1 A > load 1: ok 0/0; load 1 released\n")

static kvf_status load_into(const uint32_t *ids, uint32_t groups, const uint32_t *counts)
{
  const kvf_sources sources = cluster_sources("A");
  kvf_load_params load = cluster_load_params(&c.tickets[0], 1);
  load.destination = (kvf_blocks){.ids = ids, .counts = counts, .groups = groups};
  const kvf_status status = kvf_core_load_start(c.d.core, c.now_ns, &sources, &load, 0);
  cluster_settle();
  return status;
}

CLUSTER_TEST(destinations_that_do_not_fit_are_refused)
{
  uint32_t ids[POSITIONS] = {0, 1, 2, 3, 4, 5};
  const uint32_t counts[2] = {POSITIONS - 1, 1};
  const uint32_t more[1] = {POSITIONS + 1};
  cluster_open("blocks=6 published");
  const uint32_t *fit = c.tickets[0].counts;
  assert_int_equal(load_into(ids, 1, counts), KVF_INVALID);
  assert_int_equal(load_into(ids, 1, more), KVF_INVALID);
  assert_int_equal(load_into(ids, 2, counts), KVF_INVALID);
  assert_int_equal(load_into(ids, 0, counts), KVF_INVALID);
  ids[5] = CLUSTER_BLOCKS; /* one past the pool */
  assert_int_equal(load_into(ids, 1, fit), KVF_INVALID);
  ids[5] = CLUSTER_BLOCKS - 1;
  ids[1] = ids[4]; /* two positions in one block */
  assert_int_equal(load_into(ids, 1, fit), KVF_INVALID);
  assert_int_equal(load_into(ids, 1, fit), KVF_INVALID);
  ids[1] = 1;
  const uint32_t slid_out = c.tickets[0].ids[2];
  c.tickets[0].ids[2] = KVF_BLOCK_NONE; /* the producer does not have it any more */
  assert_int_equal(load_into(ids, 1, fit), KVF_INVALID);
  c.tickets[0].ids[2] = slid_out;
  assert_int_equal(dialed(), 0);
  assert_int_equal(load_into(ids, 1, fit), KVF_OK);
}

/* What is of a group without memory on a rank is not written anywhere; what else is, has its limits. */
CLUSTER_TEST(destinations_of_a_stage)
{
  for (uint32_t rank = 0; rank < 2; rank++) {
    uint32_t ids[2 * POSITIONS];
    const size_t first = (size_t)rank * POSITIONS;
    open_with("own=2 own_stages=0x04 rank=%u layers=6 groups=2 blocks=6 published", rank);
    for (uint32_t i = 0; i < 2 * POSITIONS; i++) {
      ids[i] = i / POSITIONS == rank ? cluster_destination(i % POSITIONS) : UINT32_MAX - 1;
    }
    const uint32_t *fit = c.tickets[0].counts;
    assert_int_equal(load_into(ids, 1, fit), KVF_INVALID);
    ids[first] = CLUSTER_BLOCKS;
    assert_int_equal(load_into(ids, 2, fit), KVF_INVALID);
    ids[first] = ids[first + 1];
    assert_int_equal(load_into(ids, 2, fit), KVF_INVALID);
    ids[first] = cluster_destination(0);
    assert_int_equal(load_into(ids, 2, fit), KVF_OK);
    assert_string_equal(cluster_said(), "load 1: ok 12/12; load 1 released");
    for (uint32_t position = 0; position < POSITIONS; position++) {
      assert_true(cluster_holds(&c.tickets[0], rank, position));
    }
  }
}

SCENE(memory_must_be_registered, "control published", "load 1 A > invalid\n")

/* A ticket of fewer groups than this engine has cannot be of its model. */
CLUSTER_TEST(groups_must_be_those_of_the_memory)
{
  cluster_open("groups=2 published");
  c.tickets[0].groups = 1;
  scene("load 1 A > invalid\n");
}

/* ---- tickets and tables ---- */

/* P8: nothing is connected to. */
SCENE(tickets_of_others_are_refused, "published hold=dials",
      "alter A compat\n"
      "load 1 A > incompatible\n"
      "alter A compat\n"
      "alter A hash\n"
      "load 1 A > bad_ticket\n"
      "stats D peers_known tickets_refused.incompatible tickets_refused.bad_ticket > 0; 1; 1\n")

/* P1: a producer whose lease covers other blocks than the ticket says. */
SCENE(digest_must_be_that_of_the_lease, "published",
      "alter A block\n"
      "load 1 A > load 1: bad_ticket 0/4; load 1 released\n")

/* Nor while its release has not been taken. */
SCENE(a_request_loads_once_at_a_time, "published hold=reads,events",
      "load 1 A > read 1 of P0: small 0,1,2,3\n"
      "load 1 A > exists\n"
      "done 1 ok\n"
      "load 1 A > exists\n"
      "event > load 1: ok 4/4; load 1 released\n"
      "load 1 A > read 2 of P0: small 0,1,2,3\n")

SCENE(table_is_bounded_and_what_is_refused_holds_nothing, "ranks=2 heads=4 loads_max=2 published hold=reads",
      "load 1 A > read 1 of P0: 0,1,2,3; read 2 of P1: 0,1,2,3\n"
      "load 2 A > read 3 of P0: 0,1,2,3; read 4 of P1: 0,1,2,3\n"
      "peers > P1 x2 +control +local -tcp; P0 x2 +control +local -tcp\n"
      "load 3 A > no_resource\n"
      "peers > P1 x2 +control +local -tcp; P0 x2 +control +local -tcp\n"
      "stats D loads_open > 2\n")

/* P6: an engine that takes no events does not fill the memory. */
CLUSTER_TEST(loads_whose_events_wait_are_open)
{
  cluster_open("loads_max=2 published hold=events");
  scene(
      "load 1 A\n"
      "load 2 A\n"
      "load 3 A > no_resource\n");
  assert_true(cluster_event(KVF_EVENT_LOAD));
  scene(
      "load 3 A > no_resource\n"
      "event > load 1 released; load 2: ok 4/4; load 2 released\n"
      "load 3 A\n");
}

/* P2 */
SCENE(deadline_is_the_loads_or_the_nodes, "published load_timeout_ms=400 stall_timeout_ms=10000 hold=reads",
      "load 1 A > read 1 of P0: small 0,1,2,3\n"
      "+399\n"
      "+2 > cancel 1; load 1: deadline 0/4; load 1 released\n"
      "load 2 A timeout=250 > read 2 of P0: small 0,1,2,3\n"
      "+249\n"
      "+2 > cancel 2; load 2: deadline 0/4; load 2 released\n")

/* ---- abort ---- */

/* P4: released comes when the last read has ended, not before. */
SCENE(abort_waits_for_its_reads, "ranks=2 heads=4 published hold=reads,cancels",
      "load 1 A > read 1 of P0: 0,1,2,3; read 2 of P1: 0,1,2,3\n"
      "abort 1 > cancel 1,2; load 1: aborted 0/4\n"
      "abort 1\n"
      "done P0 1 cancelled\n"
      "peers > P1 x1 +control +local -tcp; P0 x1 +control +local -tcp\n"
      "done P1 1 ok > load 1 released\n"
      "abort 1 > not_found\n"
      "abort 99 > not_found\n")

CLUSTER_TEST(refused_tickets_are_counted)
{
  static const kvf_status refused[] = {KVF_BAD_TICKET, KVF_OTHER_KEY, KVF_OTHER_KEY, KVF_INCOMPATIBLE, KVF_NO_MEMORY};
  cluster_open("");
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
    kvf_core_ticket_refused(c.d.core, c.now_ns, (kvf_log_request){0}, refused[i]);
  }
  scene("stats D tickets_refused.bad_ticket tickets_refused.other_key tickets_refused.incompatible > 1; 2; 1\n");
}
