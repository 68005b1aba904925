/* kvf_core_load_start(): what it refuses, which ranks it reads what from, and what prefix it reports. */

#include "ranks_world.h"
#include "test.h"

#define POSITIONS 6

static kvf_ticket ticket;
static uint32_t ids[RANKS_GROUPS * RANKS_BLOCKS];

static void open_world(const ranks_options *options)
{
  ranks_open(options);
  ranks_ticket(&ticket, ids, POSITIONS);
  for (uint32_t i = 0; i < world.ranks; i++) {
    ranks_publish(i, &ticket);
  }
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

/* How often each of four producer ranks is read from by so many loads of each of two consumer ranks. */
static void count_reads(uint32_t heads_total, uint32_t loads, uint32_t reads[RANKS_PRODUCERS])
{
  for (uint32_t rank = 0; rank < 2; rank++) {
    ranks_options options;
    ranks_options_init(&options, RANKS_PRODUCERS, 2, heads_total);
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
    uint32_t reads[RANKS_PRODUCERS] = {0};
    count_reads(heads[h], 1000, reads);
    for (uint32_t i = 0; i < RANKS_PRODUCERS; i++) {
      assert_int_equal(reads[i], 2 * 1000 / RANKS_PRODUCERS * POSITIONS);
    }
  }
}

RANKS_TEST(heads_that_do_not_divide_are_incompatible)
{
  ranks_options options;
  ranks_options_init(&options, 2, 1, 2);
  open_world(&options);
  world.consumer.core.pool.share = (kvf_share){0, 3, 3};
  assert_int_equal(ranks_load(&ticket, 1), KVF_INCOMPATIBLE);
  assert_int_equal(ranks_peers_held(), 0);
  assert_int_equal(dialed(), 0);
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

/* P7: with several KV groups a prefix is of no use, however long. */
RANKS_TEST(prefix_of_several_groups_is_all_or_nothing)
{
  for (uint32_t good = 0; good <= 2 * POSITIONS; good++) {
    open_two_parts(2);
    assert_int_equal(ranks_complete(0, 2 * POSITIONS, KVF_OK), 2 * POSITIONS);
    assert_int_equal(ranks_complete(1, good, KVF_OK), good);
    assert_int_equal(ranks_complete(1, 1, KVF_LEASE_EXPIRED), good < 2 * POSITIONS);
    bool all = good == 2 * POSITIONS;
    assert_outcome(all ? KVF_OK : KVF_LEASE_EXPIRED, all ? good : 0);
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

SIMPLE_TEST(bad_tickets_are_counted)
{
  kvf_core_bad_ticket(&world.consumer.core, world.now_ns);
  assert_int_equal(world.consumer.core.requests.counters.bad_tickets, 1);
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
