/* Loads whose ticket names several sources: one outcome and one release, whatever the attempts come to. */

#include "base/status.h"
#include "ranks_world.h"
#include "test.h"

#define SOURCES 3
#define POSITIONS 6
#define TIMEOUT_MS 400

static kvf_ticket tickets[SOURCES];
static uint32_t ids[SOURCES][RANKS_GROUPS * RANKS_BLOCKS];

/* Each producer rank of the world is an engine of its own here, and has the prompt in other blocks. */
static void open_world(uint32_t groups)
{
  ranks_options options;
  ranks_options_init(&options, SOURCES, 1, 1);
  options.groups = groups;
  options.config.load_timeout_ms = TIMEOUT_MS;
  options.config.stall_timeout_ms = 10 * TIMEOUT_MS;
  ranks_open(&options);
  for (uint32_t i = 0; i < SOURCES; i++) {
    ranks_ticket(&tickets[i], ids[i], POSITIONS);
    for (uint32_t id = 0; id < groups * POSITIONS; id++) {
      ids[i][id] = (ids[i][id] + i) % RANKS_BLOCKS;
    }
    tickets[i].rank[0] = tickets[i].rank[i];
    tickets[i].rank[0].rank = 0;
    tickets[i].ranks = 1;
    ranks_publish(i, &tickets[i]);
  }
  world.hold_reads = true;
}

static kvf_core *core(void)
{
  return &world.consumer.core;
}

static kvf_status start(uint32_t count)
{
  kvf_sources sources = {.count = count};
  uint32_t destination[RANKS_GROUPS * RANKS_BLOCKS];
  for (uint32_t i = 0; i < tickets[0].groups * POSITIONS; i++) {
    destination[i] = ranks_destination(i % POSITIONS);
  }
  for (uint32_t i = 0; i < count; i++) {
    sources.tickets[i] = &tickets[i];
  }
  kvf_load_params load = {.request_id = 1,
                          .prompt = {.tokens = tickets[0].prompt.tokens},
                          .destination = {.ids = destination, .counts = tickets[0].counts, .groups = tickets[0].groups},
                          .user = 5};
  assert_int_equal(kvf_sources_digest(&sources), KVF_OK);
  kvf_status status = kvf_core_load_start(core(), world.now_ns, &sources, &load, 0);
  ranks_settle();
  return status;
}

static uint32_t reads_of(uint32_t source)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < world.reads_count; i++) {
    count += world.path_producer[world.reads[i].link_id] == source;
  }
  return count;
}

/* The first two blocks of the first source are good, then its lease is over. */
static void fail_after_two(void)
{
  assert_int_equal(reads_of(0), POSITIONS);
  assert_int_equal(ranks_complete(0, 2, KVF_OK), 2);
  assert_int_equal(ranks_complete(0, 1, KVF_LEASE_EXPIRED), 1);
}

/* A load from so many sources of one group. */
static void begin(uint32_t count)
{
  open_world(1);
  assert_int_equal(start(count), KVF_OK);
}

/* Likewise from two; the first fails after two blocks, and its other reads do not end. */
static void begin_stuck(void)
{
  open_world(1);
  world.hold_cancels = true;
  assert_int_equal(start(2), KVF_OK);
  fail_after_two();
}

/* They do, and no other source is tried. */
static void end_stuck(void)
{
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_CANCELLED), POSITIONS - 3);
  assert_int_equal(world.wires[1].dials, 0);
}

static void assert_nothing_is_told(void)
{
  kvf_event event;
  assert_false(kvf_core_has_event(core()));
  assert_false(kvf_core_next_event(core(), world.now_ns, &event));
}

static void assert_outcome(kvf_status status, uint32_t prefix)
{
  kvf_event event;
  assert_true(kvf_core_next_event(core(), world.now_ns, &event));
  assert_int_equal(event.kind, KVF_EVENT_LOAD);
  assert_int_equal(event.id, 1);
  assert_int_equal(event.user, 5);
  assert_int_equal(event.u.report.status, status);
  assert_int_equal(event.u.report.prefix, prefix);
  assert_int_equal(event.u.report.blocks, tickets[0].groups * POSITIONS);
}

static void assert_released_and_over(void)
{
  kvf_event event;
  assert_true(kvf_core_next_event(core(), world.now_ns, &event));
  assert_int_equal(event.kind, KVF_EVENT_RELEASED);
  assert_int_equal(event.user, 5);
  assert_nothing_is_told();
  assert_int_equal(ranks_peers_held(), 0);
  assert_null(core()->loads.by_id);
}

static void assert_over(kvf_status status, uint32_t prefix)
{
  assert_outcome(status, prefix);
  assert_released_and_over();
}

/* ---- going on ---- */

RANKS_TEST(the_next_source_brings_the_rest)
{
  begin(2);
  fail_after_two();
  assert_nothing_is_told();
  assert_int_equal(reads_of(0), 0);
  assert_int_equal(reads_of(1), POSITIONS - 2);
  for (uint32_t i = 0; i < world.reads_count; i++) {
    assert_int_equal(world.reads[i].transfer.items[0].position, 2 + i);
  }
  assert_int_equal(ranks_complete(1, POSITIONS, KVF_OK), POSITIONS - 2);
  for (uint32_t position = 0; position < POSITIONS; position++) {
    assert_true(ranks_holds(&tickets[position < 2 ? 0 : 1], 0, position));
  }
  assert_int_equal(core()->loads.stats.source_switches, 1);
  assert_int_equal(core()->loads.stats.outcomes[0], 1);
  assert_over(KVF_OK, POSITIONS);
}

RANKS_TEST(one_source_is_all_there_is)
{
  begin(1);
  fail_after_two();
  assert_over(KVF_LEASE_EXPIRED, 2);
}

RANKS_TEST(sources_that_cannot_be_reached_are_passed_over)
{
  open_world(1);
  world.wires[0].down = true;
  world.wires[1].down = true;
  assert_int_equal(start(3), KVF_OK);
  assert_int_equal(world.wires[1].dials, 1);
  assert_int_equal(ranks_complete(2, POSITIONS, KVF_OK), POSITIONS);
  assert_int_equal(core()->loads.stats.source_switches, 2);
  assert_over(KVF_OK, POSITIONS);
}

/* They have not this rank's layers. */
RANKS_TEST(sources_that_cannot_be_begun_are_passed_over)
{
  for (uint32_t bad = 1; bad <= 3; bad++) {
    open_world(1);
    for (uint32_t i = 0; i < bad; i++) {
      tickets[i].rank[0].layers.first += 100;
    }
    assert_int_equal(start(3), bad < 3 ? KVF_OK : KVF_INCOMPATIBLE);
    assert_int_equal(world.wires[0].dials, 0);
    if (bad < 3) {
      assert_int_equal(ranks_complete(bad, POSITIONS, KVF_OK), POSITIONS);
      assert_int_equal(core()->loads.stats.source_switches, 1);
      assert_over(KVF_OK, POSITIONS);
    } else {
      assert_nothing_is_told();
      assert_int_equal(core()->loads.stats.outcomes[kvf_status_index(KVF_INCOMPATIBLE)], 1);
      assert_null(core()->loads.by_id);
    }
  }
}

/* What an earlier source has brought counts, and the last one says why it is not more. */
RANKS_TEST(the_prefix_only_grows)
{
  begin(3);
  fail_after_two();
  assert_int_equal(ranks_complete(1, 1, KVF_OK), 1);
  assert_int_equal(ranks_complete(1, 1, KVF_PEER_RESTARTED), 1);
  assert_int_equal(reads_of(2), POSITIONS - 3);
  assert_int_equal(ranks_complete(2, 1, KVF_LEASE_UNKNOWN), 1);
  assert_over(KVF_LEASE_UNKNOWN, 3);
}

RANKS_TEST(its_time_is_that_of_all_attempts)
{
  begin(2);
  ranks_advance(70);
  fail_after_two();
  ranks_advance(30);
  assert_int_equal(ranks_complete(1, POSITIONS, KVF_OK), POSITIONS - 2);
  assert_outcome(KVF_OK, POSITIONS);
  kvf_histogram load_ns;
  assert_int_equal(kvf_core_histograms(core(), &load_ns, 1), 1);
  uint64_t sum_ns = 0;
  for (uint32_t bucket = 0; bucket < load_ns.buckets; bucket++) {
    sum_ns += load_ns.sums[bucket];
  }
  assert_int_equal(sum_ns, 100 * MS);
  assert_released_and_over();
}

/* The next source is asked for what is missing in some group. */
RANKS_TEST(several_groups_go_on_from_the_shortest_prefix)
{
  open_world(2);
  assert_int_equal(start(2), KVF_OK);
  assert_int_equal(ranks_complete(0, 3, KVF_OK), 3);
  assert_int_equal(ranks_complete(0, 1, KVF_LEASE_EXPIRED), 1);
  assert_int_equal(ranks_complete(1, 2 * POSITIONS, KVF_OK), 2 * POSITIONS - 2);
  for (uint32_t position = 0; position < POSITIONS; position++) {
    assert_true(ranks_holds(&tickets[position > 0], 0, position));
    assert_true(ranks_holds(&tickets[position > 0], 1, position));
  }
  assert_over(KVF_OK, 2 * POSITIONS);
}

/* ---- held back ---- */

/* P4: no block is in two attempts at a time. */
RANKS_TEST(the_next_source_waits_for_released)
{
  begin_stuck();
  assert_int_equal(ranks_complete(0, POSITIONS - 4, KVF_CANCELLED), POSITIONS - 4);
  assert_nothing_is_told();
  assert_int_equal(reads_of(0), 1);
  assert_int_equal(reads_of(1), 0);
  assert_int_equal(ranks_complete(0, 1, KVF_CANCELLED), 1);
  assert_int_equal(reads_of(1), POSITIONS - 2);
  assert_int_equal(ranks_complete(1, POSITIONS, KVF_OK), POSITIONS - 2);
  assert_over(KVF_OK, POSITIONS);
}

/* P2: a copy that does not end costs the next source, not the deadline. */
RANKS_TEST(the_deadline_ends_the_wait)
{
  begin_stuck();
  ranks_advance(TIMEOUT_MS - 1);
  assert_nothing_is_told();
  ranks_advance(2);
  assert_outcome(KVF_LEASE_EXPIRED, 2);
  assert_nothing_is_told();
  end_stuck();
  assert_released_and_over();
}

/* P2: reads that do not end make the node unhealthy; the engine has its outcome by then. */
RANKS_TEST(what_is_never_released_is_not_waited_for)
{
  open_world(1);
  world.consumer.core.context.config.release_timeout_ms = TIMEOUT_MS / 4;
  world.hold_cancels = true;
  assert_int_equal(start(2), KVF_OK);
  fail_after_two();
  ranks_advance(TIMEOUT_MS / 4 - 1);
  assert_nothing_is_told();
  ranks_advance(2);
  assert_outcome(KVF_LEASE_EXPIRED, 2);
  assert_nothing_is_told();
  end_stuck();
  assert_released_and_over();
}

/* P2 */
RANKS_TEST(all_sources_share_one_deadline)
{
  begin(3);
  ranks_advance(TIMEOUT_MS - 100);
  fail_after_two();
  assert_int_equal(reads_of(1), POSITIONS - 2);
  world.hold_cancels = true;
  ranks_advance(98);
  assert_nothing_is_told();
  ranks_advance(4);
  assert_outcome(KVF_DEADLINE, 2); /* at once: there is nothing to wait for */
  assert_int_equal(ranks_complete(1, POSITIONS, KVF_CANCELLED), POSITIONS - 2);
  assert_int_equal(world.wires[2].dials, 0);
  assert_released_and_over();
}

/* The clock has not been looked at since. */
RANKS_TEST(released_past_the_deadline_tries_no_other)
{
  begin_stuck();
  world.now_ns += TIMEOUT_MS * MS;
  end_stuck();
  assert_over(KVF_LEASE_EXPIRED, 2);
}

/* ---- abort ---- */

RANKS_TEST(abort_between_sources_works_at_once)
{
  begin_stuck();
  assert_int_equal(kvf_core_load_abort(core(), world.now_ns, 1), KVF_OK);
  assert_int_equal(kvf_core_load_abort(core(), world.now_ns, 1), KVF_OK);
  assert_outcome(KVF_ABORTED, 2);
  assert_nothing_is_told();
  end_stuck();
  assert_released_and_over();
}

RANKS_TEST(abort_at_a_source_tries_no_other)
{
  for (uint32_t source = 0; source < 2; source++) {
    begin(3);
    if (source == 1) {
      fail_after_two();
    }
    assert_int_equal(reads_of(source), source == 1 ? POSITIONS - 2 : POSITIONS);
    assert_int_equal(kvf_core_load_abort(core(), world.now_ns, 1), KVF_OK);
    ranks_settle();
    assert_int_equal(world.wires[source + 1].dials, 0);
    assert_over(KVF_ABORTED, source == 1 ? 2 : 0);
  }
}

/* P4: memory that is let go of is written to by no further source. */
RANKS_TEST(unregistering_tries_no_other)
{
  begin_stuck();
  assert_false(kvf_core_clear_memory(core(), world.now_ns));
  end_stuck();
  assert_false(kvf_core_clear_memory(core(), world.now_ns));
  assert_outcome(KVF_ABORTED, 2);
  kvf_event event;
  assert_true(kvf_core_next_event(core(), world.now_ns, &event));
  assert_int_equal(event.kind, KVF_EVENT_RELEASED);
  assert_true(kvf_core_clear_memory(core(), world.now_ns));
}

/* ---- others of a source's ranks ---- */

/* One source, all of whose ranks hold the same heads. Returns the rank that is read from. */
static uint32_t begin_replicated(void)
{
  ranks_options options;
  ranks_options_init(&options, RANKS_PRODUCERS, 1, 1);
  options.config.load_timeout_ms = TIMEOUT_MS;
  ranks_open(&options);
  ranks_ticket(&tickets[0], ids[0], POSITIONS);
  for (uint32_t i = 0; i < RANKS_PRODUCERS; i++) {
    ranks_publish(i, &tickets[0]);
  }
  world.hold_reads = true;
  assert_int_equal(start(1), KVF_OK);
  uint32_t rank = 0;
  while (rank < RANKS_PRODUCERS - 1 && reads_of(rank) == 0) {
    rank++;
  }
  assert_int_equal(reads_of(rank), POSITIONS);
  assert_int_equal(world.reads_count, POSITIONS);
  return rank;
}

RANKS_TEST(another_replica_brings_the_rest)
{
  uint32_t rank = begin_replicated();
  assert_int_equal(ranks_complete(rank, 2, KVF_OK), 2);
  assert_int_equal(ranks_complete(rank, 1, KVF_PEER_RESTARTED), 1);
  assert_nothing_is_told();
  rank = (rank + 1) % RANKS_PRODUCERS;
  assert_int_equal(reads_of(rank), POSITIONS - 2);
  assert_int_equal(ranks_complete(rank, POSITIONS, KVF_OK), POSITIONS - 2);
  for (uint32_t position = 0; position < POSITIONS; position++) {
    assert_true(ranks_holds(&tickets[0], 0, position));
  }
  assert_over(KVF_OK, POSITIONS);
}

RANKS_TEST(a_third_replica_is_not_tried)
{
  uint32_t rank = begin_replicated();
  assert_int_equal(ranks_complete(rank, 1, KVF_LEASE_EXPIRED), 1);
  rank = (rank + 1) % RANKS_PRODUCERS;
  assert_int_equal(ranks_complete(rank, 2, KVF_OK), 2);
  assert_int_equal(ranks_complete(rank, 1, KVF_LEASE_EXPIRED), 1);
  assert_over(KVF_LEASE_EXPIRED, 2);
}

RANKS_TEST(abort_at_a_replica_tries_no_other)
{
  (void)begin_replicated();
  assert_int_equal(kvf_loads_abort(&core()->loads, world.now_ns, 1), KVF_OK);
  ranks_settle();
  assert_over(KVF_ABORTED, 0);
}

/* ---- sources that do not fit ---- */

RANKS_TEST(source_of_another_layout_is_left_out)
{
  for (uint32_t kind = 0; kind < 6; kind++) {
    open_world(1);
    switch (kind) {
      case 0:
        tickets[1].ids[3] = KVF_BLOCK_NONE; /* it has slid out there */
        break;
      case 1:
        tickets[1].compat[0] ^= 1;
        break;
      case 2:
        tickets[1].prompt.hash[0] ^= 1;
        break;
      case 3:
        tickets[1].counts[0]--;
        break;
      case 4:
        tickets[1].prompt.model[0] ^= 1;
        break;
      default:
        tickets[1].groups = 2;
        tickets[1].counts[0] = POSITIONS / 2;
        tickets[1].counts[1] = POSITIONS / 2;
        break;
    }
    assert_int_equal(start(3), KVF_OK);
    assert_int_equal(core()->context.tickets.sources_left_out, 1);
    assert_int_equal(core()->context.tickets.bad + core()->context.tickets.incompatible, 0);
    fail_after_two();
    assert_int_equal(world.wires[1].dials, 0);
    assert_int_equal(ranks_complete(2, POSITIONS, KVF_OK), POSITIONS - 2);
    assert_over(KVF_OK, POSITIONS);
  }
}

/* The first that fits is the one that the others are held against. */
RANKS_TEST(the_first_source_may_be_left_out)
{
  open_world(1);
  tickets[0].compat[0] ^= 1;
  assert_int_equal(start(2), KVF_OK);
  assert_int_equal(ranks_complete(1, POSITIONS, KVF_OK), POSITIONS);
  assert_int_equal(world.wires[0].dials, 0);
  assert_over(KVF_OK, POSITIONS);
}

RANKS_TEST(another_model_is_incompatible)
{
  open_world(1);
  tickets[0].prompt.model[0] ^= 1;
  assert_int_equal(start(1), KVF_INCOMPATIBLE);
  assert_int_equal(core()->context.tickets.incompatible, 1);
  assert_nothing_is_told();
}

RANKS_TEST(no_source_that_fits_is_a_refusal)
{
  open_world(1);
  tickets[0].prompt.hash[0] ^= 1;
  tickets[1].compat[0] ^= 1;
  assert_int_equal(start(2), KVF_BAD_TICKET);
  assert_int_equal(core()->context.tickets.bad, 1);
  assert_int_equal(core()->context.tickets.incompatible, 0);
  assert_int_equal(core()->context.tickets.sources_left_out, 0);
  assert_nothing_is_told();
  assert_null(core()->loads.by_id);
}
