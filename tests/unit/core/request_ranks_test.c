/* A request whose producer has several ranks: each is told of the end, those that nobody read included (P5, P7). */

#include "ranks_world.h"
#include "test.h"

#define PRODUCERS 4
#define POSITIONS 4

static kvf_ticket ticket;
static uint32_t ids[RANKS_BLOCKS];

static void open_world(uint32_t consumer_ranks, uint32_t ttl_ms)
{
  ranks_options options;
  ranks_options_init(&options, PRODUCERS, consumer_ranks, 4);
  options.control = true;
  options.config.lease_ttl_ms = ttl_ms;
  ranks_open(&options);
  ranks_ticket(&ticket, ids, POSITIONS);
}

static void publish_all(void)
{
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    ranks_publish(i, &ticket);
  }
}

static kvf_requests *requests(void)
{
  return &world.consumer.core.requests;
}

static uint64_t open_request(void)
{
  uint64_t id = 0;
  assert_int_equal(kvf_requests_open(requests(), world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                                     &ticket.prompt, NULL, 5, &id, NULL),
                   KVF_OK);
  ranks_settle();
  return id;
}

static void report(uint64_t id, uint32_t rank, kvf_status status, uint32_t prefix)
{
  kvf_report found = {
      .request_id = id, .ranks_mask = UINT64_C(1) << rank, .blocks = POSITIONS, .prefix = prefix, .status = status};
  assert_int_equal(kvf_requests_report(requests(), world.now_ns, &found), KVF_OK);
  ranks_settle();
}

static uint64_t loaded_request(void)
{
  uint64_t id = open_request();
  assert_int_equal(kvf_requests_begin(requests(), world.now_ns, id), KVF_OK);
  return id;
}

static uint32_t live(void)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    count += world.producers[i].core.leases.live;
  }
  return count;
}

/* How often this rank's lease has ended for this cause; nothing may have ended for another. */
static uint64_t ended(uint32_t producer, kvf_lease_end_cause cause)
{
  const uint64_t *counts = world.producers[producer].core.leases.counters.ended;
  for (kvf_lease_end_cause other = KVF_LEASE_END_COMPLETED; other <= KVF_LEASE_END_REVOKED; other++) {
    assert_true(other == cause || counts[other] == 0);
  }
  return counts[cause];
}

/* All of the engine's ranks are released. */
static void let_go(uint64_t id)
{
  kvf_event event;
  uint64_t all = (UINT64_C(1) << world.consumer.core.context.config.ranks) - 1;
  assert_int_equal(kvf_requests_released(requests(), world.now_ns, id, all), KVF_OK);
  assert_true(ranks_event(KVF_EVENT_REQUEST_RELEASED, &event));
  assert_int_equal(event.id, id);
}

static void assert_forgotten(void)
{
  assert_int_equal(HASH_CNT(by_id, requests()->attachments.by_id), 0);
  assert_int_equal(ranks_peers_held(), 0);
}

static kvf_verdict verdict(void)
{
  kvf_event event;
  assert_true(ranks_event(KVF_EVENT_VERDICT, &event));
  assert_int_equal(event.user, 5);
  return event.u.verdict;
}

static void open_published(uint32_t own_ranks, uint32_t ttl_ms)
{
  open_world(own_ranks, ttl_ms);
  publish_all();
}

static void cancel(uint64_t id)
{
  assert_int_equal(kvf_requests_cancel(requests(), world.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
  ranks_settle();
}

static void assert_all_ended(kvf_lease_end_cause cause)
{
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    assert_int_equal(ended(i, cause), 1);
  }
}

static void assert_used(uint64_t id)
{
  assert_int_equal(verdict().action, KVF_ACTION_USE);
  let_go(id);
  assert_forgotten();
}

static int set_up(__attribute__((unused)) void **state)
{
  open_published(1, 30000);
  return 0;
}

#define PUBLISHED_TEST(name) TEST_WITH(name, set_up, ranks_close)

/* The engine's only rank read from one producer rank; the others hold a lease all the same. */
PUBLISHED_TEST(every_rank_is_told_of_completion)
{
  uint64_t id = loaded_request();
  assert_int_equal(live(), PRODUCERS);
  report(id, 0, KVF_OK, POSITIONS);
  assert_int_equal(live(), 0);
  assert_all_ended(KVF_LEASE_END_COMPLETED);
  assert_used(id);
}

PUBLISHED_TEST(every_rank_is_told_of_a_cancellation)
{
  uint64_t id = open_request();
  cancel(id);
  assert_all_ended(KVF_LEASE_END_ABANDONED);
  assert_forgotten();
}

RANKS_TEST(every_rank_is_renewed)
{
  open_published(1, 300);
  uint64_t id = open_request();
  for (int i = 0; i < 20; i++) {
    ranks_advance(90);
    assert_int_equal(live(), PRODUCERS);
  }
  cancel(id);
  assert_int_equal(live(), 0);
}

/* One producer rank cannot be reached: the others have their blocks back, the verdict does not wait, and it is told
 * when it can be reached again. */
PUBLISHED_TEST(unreachable_rank_is_told_later)
{
  world.wires[2].down = true;
  uint64_t id = loaded_request();
  report(id, 0, KVF_OK, POSITIONS);
  assert_int_equal(live(), 1);
  assert_int_equal(ended(2, KVF_LEASE_END_COMPLETED), 0);
  assert_int_equal(verdict().action, KVF_ACTION_USE);
  assert_int_equal(HASH_CNT(by_id, requests()->attachments.by_id), 1);
  world.wires[2].down = false;
  ranks_advance(510); /* the breaker's probe */
  ranks_advance(5000);
  assert_int_equal(ended(2, KVF_LEASE_END_COMPLETED), 1);
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    assert_int_equal(world.producers[i].core.leases.counters.late_acknowledgements, 0); /* P3: told once */
  }
  let_go(id);
  assert_forgotten();
}

RANKS_TEST(rank_that_never_comes_back_is_given_up)
{
  open_published(1, 300);
  world.wires[3].down = true;
  uint64_t id = loaded_request();
  report(id, 0, KVF_OK, POSITIONS);
  assert_int_equal(verdict().action, KVF_ACTION_USE);
  ranks_advance(440);
  assert_int_equal(HASH_CNT(by_id, requests()->attachments.by_id), 1);
  ranks_advance(20);
  assert_int_equal(requests()->attachments.counters.finishes_given_up, 1);
  assert_int_equal(ended(3, KVF_LEASE_END_EXPIRED), 1); /* by itself */
  let_go(id);
  assert_forgotten();
}

/* A rank that had not published when the end came: it hears it again, and keeps nothing. */
RANKS_TEST(rank_that_publishes_late_is_told_again)
{
  open_world(1, 3000);
  for (uint32_t i = 0; i + 1 < PRODUCERS; i++) {
    ranks_publish(i, &ticket);
  }
  uint64_t id = loaded_request();
  report(id, 0, KVF_OK, POSITIONS);
  assert_int_equal(live(), 0);
  assert_int_equal(HASH_CNT(by_id, requests()->attachments.by_id), 1);
  ranks_publish(PRODUCERS - 1, &ticket);
  assert_int_equal(live(), 1);
  ranks_advance(1001);
  assert_int_equal(ended(PRODUCERS - 1, KVF_LEASE_END_COMPLETED), 1);
  assert_used(id);
}

/* A connection that breaks while the end is under way. */
PUBLISHED_TEST(end_survives_a_broken_connection)
{
  uint64_t id = loaded_request();
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    ranks_cut(i);
  }
  report(id, 0, KVF_TRANSFER_FAILED, 1);
  assert_int_equal(live(), 0);
  assert_int_equal(verdict().keep_blocks, 1);
  let_go(id);
  assert_forgotten();
}

/* P7: all of the engine's own ranks must be in, and the shortest prefix counts. */
RANKS_TEST(verdict_waits_for_all_own_ranks)
{
  kvf_event event;
  open_published(3, 30000);
  uint64_t id = loaded_request();
  report(id, 2, KVF_OK, POSITIONS);
  report(id, 0, KVF_LEASE_EXPIRED, 1);
  report(id, 0, KVF_LEASE_EXPIRED, 1); /* said twice */
  assert_false(ranks_event(KVF_EVENT_VERDICT, &event));
  assert_int_equal(live(), PRODUCERS);
  report(id, 1, KVF_OK, POSITIONS);
  kvf_verdict decided = verdict();
  assert_int_equal(decided.action, KVF_ACTION_RECOMPUTE);
  assert_int_equal(decided.status, KVF_LEASE_EXPIRED);
  assert_int_equal(decided.keep_blocks, 1);
  assert_int_equal(live(), 0);
  let_go(id);
  assert_forgotten();
}

/* Two engines decode from one ticket: the first one's end detaches only itself, on every rank. */
PUBLISHED_TEST(other_consumer_keeps_every_rank)
{
  uint64_t first = open_request();
  uint64_t second = open_request();
  cancel(first);
  assert_int_equal(live(), PRODUCERS);
  cancel(second);
  assert_int_equal(live(), 0);
  assert_forgotten();
}

/* ---- several sources ---- */

/* Ranks 0 and 1 are one engine, 2 and 3 another, each with a lease of its own. */
static kvf_ticket both[2];

static uint64_t open_two_sources(uint32_t ttl_ms, uint32_t other_ttl_ms)
{
  uint64_t id = 0;
  open_world(1, ttl_ms);
  for (uint32_t source = 0; source < 2; source++) {
    if (source == 1) {
      ranks_ticket(&ticket, ids, POSITIONS);
    }
    both[source] = ticket;
    both[source].ranks = 2;
    for (uint32_t i = 0; i < 2; i++) {
      both[source].rank[i] = ticket.rank[2 * source + i];
      both[source].rank[i].rank = i;
      ranks_publish(2 * source + i, &ticket);
    }
  }
  both[1].ttl_ms = other_ttl_ms;
  const kvf_sources sources = {.count = 2, .tickets = {&both[0], &both[1]}};
  const kvf_ticket *first = NULL;
  assert_int_equal(kvf_requests_open(requests(), world.now_ns, &sources, &ticket.prompt, NULL, 5, &id, &first), KVF_OK);
  assert_ptr_equal(first, &both[0]);
  ranks_settle();
  return id;
}

/* P5: nobody knows here which of them the ranks read from. */
RANKS_TEST(every_source_is_kept_alive_and_told)
{
  uint64_t id = open_two_sources(1000, 1000);
  for (uint32_t i = 0; i < 50; i++) {
    ranks_advance(100);
  }
  assert_int_equal(live(), PRODUCERS);
  assert_int_equal(kvf_requests_begin(requests(), world.now_ns, id), KVF_OK);
  report(id, 0, KVF_OK, POSITIONS);
  assert_int_equal(live(), 0);
  assert_all_ended(KVF_LEASE_END_COMPLETED);
  assert_used(id);
}

RANKS_TEST(every_source_is_told_of_a_cancellation)
{
  uint64_t id = open_two_sources(1000, 1000);
  cancel(id);
  assert_all_ended(KVF_LEASE_END_ABANDONED);
  assert_forgotten();
}

static void take_down(uint32_t producer)
{
  ranks_cut(producer);
  world.wires[producer].down = true;
}

/* A source that is dead concerns no one but the ranks that read from it. */
RANKS_TEST(a_lost_source_costs_the_request_nothing)
{
  uint64_t id = open_two_sources(1000, 1000);
  take_down(0);
  take_down(1);
  for (uint32_t i = 0; i < 30; i++) {
    ranks_advance(100);
  }
  assert_int_equal(world.producers[3].core.leases.live, 1);
  assert_int_equal(kvf_requests_begin(requests(), world.now_ns, id), KVF_OK);
  report(id, 0, KVF_OK, POSITIONS);
  assert_int_equal(verdict().action, KVF_ACTION_USE);
  assert_int_equal(ended(3, KVF_LEASE_END_COMPLETED), 1);
  assert_int_equal(HASH_CNT(by_id, requests()->attachments.by_id), 1); /* two ranks have not heard of it */
  for (uint32_t i = 0; i < 16; i++) {
    ranks_advance(100);
  }
  assert_int_equal(requests()->attachments.counters.finishes_given_up, 2);
  let_go(id);
  assert_forgotten();
}

/* It cannot be loaded whole from a source that lacks a rank. */
RANKS_TEST(a_waiting_request_ends_with_its_last_source)
{
  kvf_event event;
  uint64_t id = open_two_sources(1000, 1000);
  take_down(1);
  for (uint32_t i = 0; i < 20; i++) {
    ranks_advance(100);
  }
  assert_false(ranks_event(KVF_EVENT_VERDICT, &event));
  assert_int_equal(kvf_core_lease_end(&world.producers[2].core, world.now_ns, &both[1].lease), KVF_OK);
  for (uint32_t i = 0; i < 4; i++) {
    ranks_advance(100);
  }
  kvf_verdict decided = verdict();
  assert_int_equal(decided.action, KVF_ACTION_RECOMPUTE);
  assert_int_equal(decided.status, KVF_LEASE_EXPIRED);
  assert_int_equal(kvf_requests_begin(requests(), world.now_ns, id), KVF_NOT_FOUND);
  assert_int_equal(ended(3, KVF_LEASE_END_COMPLETED), 1);
}

/* Renewed as often as the shortest lease needs, told of the end for as long as the longest may live. */
RANKS_TEST(each_source_has_its_own_life)
{
  for (uint32_t turn = 0; turn < 2; turn++) {
    uint64_t id = open_two_sources(turn == 0 ? 300 : 3000, turn == 0 ? 3000 : 300);
    uint64_t before = requests()->attachments.counters.renewals;
    ranks_advance(101);
    assert_int_equal(requests()->attachments.counters.renewals - before, PRODUCERS);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
      ranks_cut(i);
      world.wires[i].down = true;
    }
    assert_int_equal(kvf_requests_cancel(requests(), world.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
    ranks_advance(4400);
    assert_int_equal(HASH_CNT(by_id, requests()->attachments.by_id), 1);
    ranks_advance(200);
    assert_int_equal(requests()->attachments.counters.finishes_given_up, PRODUCERS);
    assert_forgotten();
  }
}

/* Two leases of one engine: what a rank says of one is not said of the other. */
PUBLISHED_TEST(leases_of_one_rank_are_apart)
{
  static uint32_t other_ids[RANKS_BLOCKS];
  kvf_ticket later;
  uint64_t id = 0;
  ranks_ticket(&later, other_ids, POSITIONS);
  const kvf_sources sources = {.count = 2, .tickets = {&ticket, &later}};
  assert_int_equal(kvf_requests_open(requests(), world.now_ns, &sources, &ticket.prompt, NULL, 5, &id, NULL), KVF_OK);
  ranks_settle();
  cancel(id);
  assert_int_equal(live(), 0);
  assert_int_equal(HASH_CNT(by_id, requests()->attachments.by_id), 1); /* the other is not published yet */
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    ranks_publish(i, &later);
  }
  ranks_advance(6000);
  assert_int_equal(live(), 0);
  assert_forgotten();
}

PUBLISHED_TEST(a_lease_that_is_named_twice_is_told_once)
{
  uint64_t id = 0;
  const kvf_sources sources = {.count = 2, .tickets = {&ticket, &ticket}};
  assert_int_equal(kvf_requests_open(requests(), world.now_ns, &sources, &ticket.prompt, NULL, 5, &id, NULL), KVF_OK);
  ranks_settle();
  cancel(id);
  assert_all_ended(KVF_LEASE_END_ABANDONED);
  assert_forgotten();
}
