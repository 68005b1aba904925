#include "base/status.h"
#include "ranks_world.h"
#include "test.h"

#define POSITIONS 4

static kvf_ticket ticket;
static uint32_t ids[RANKS_BLOCKS];
static kvf_peer_stat listed[KVF_PEERS_LISTED_MAX + 1];

static void open_world(uint32_t producer_ranks)
{
  ranks_options options;
  ranks_options_init(&options, producer_ranks, 1, 2);
  ranks_open(&options);
  ranks_ticket(&ticket, ids, POSITIONS);
  for (uint32_t i = 0; i < producer_ranks; i++) {
    ranks_publish(i, &ticket);
  }
  world.hold_reads = true;
}

static size_t list(void)
{
  memset(listed, 0xee, sizeof(listed));
  return kvf_peers_describe(&world.consumer.core.peers, world.now_ns, listed, KVF_PEERS_LISTED_MAX + 1);
}

static uint64_t loads_with(const kvf_peer_stat *peer, kvf_status status)
{
  return peer->loads[kvf_status_index(status)];
}

RANKS_TEST(a_load_shows_at_its_peer)
{
  kvf_event event;
  open_world(1);
  assert_int_equal(list(), 0);
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(list(), 1);
  char address[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&ticket.rank[0].address, address);
  assert_string_equal(listed[0].address, address);
  assert_int_equal(listed[0].users, 1);
  assert_int_equal(listed[0].handshakes, 1);
  assert_int_equal(listed[0].reads_in_flight, POSITIONS);
  assert_int_equal(listed[0].blocks, 0);
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_OK), POSITIONS);
  assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
  ranks_advance(20);
  assert_int_equal(list(), 1);
  assert_int_equal(listed[0].users, 0);
  assert_int_equal(listed[0].idle_ms, 20);
  assert_int_equal(listed[0].reads_in_flight, 0);
  assert_int_equal(listed[0].chunks, POSITIONS);
  assert_int_equal(listed[0].blocks, POSITIONS);
  assert_int_equal(loads_with(&listed[0], KVF_OK), 1);
  assert_int_equal(listed[0].connection_failures, 0);
  assert_int_equal(listed[0].last_failure, KVF_OK);
}

/* Of two peers only the one that failed is blamed. */
RANKS_TEST(a_failure_shows_where_it_happened)
{
  kvf_event event;
  open_world(2);
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_OK), POSITIONS);
  assert_int_equal(ranks_complete(1, 1, KVF_LEASE_UNKNOWN), 1);
  ranks_complete(1, POSITIONS, KVF_CANCELLED);
  assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
  ranks_advance(30);
  assert_int_equal(list(), 2);
  char address[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&ticket.rank[1].address, address);
  const kvf_peer_stat *failed = strcmp(listed[0].address, address) == 0 ? &listed[0] : &listed[1];
  const kvf_peer_stat *other = failed == &listed[0] ? &listed[1] : &listed[0];
  assert_int_equal(loads_with(failed, KVF_LEASE_UNKNOWN), 1);
  assert_int_equal(failed->last_failure, KVF_LEASE_UNKNOWN);
  assert_int_equal(failed->last_failure_age_ms, 30);
  assert_int_equal(loads_with(other, KVF_LEASE_UNKNOWN), 0);
  assert_int_equal(other->last_failure, KVF_OK);
  assert_int_not_equal(failed->id, other->id);
}

RANKS_TEST(the_deadline_blames_who_was_waited_for)
{
  kvf_event event;
  open_world(2);
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_OK), POSITIONS);
  world.now_ns += 40000 * MS;
  kvf_core_tick(&world.consumer.core, world.now_ns);
  ranks_settle();
  ranks_complete(1, POSITIONS, KVF_CANCELLED);
  assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
  char address[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&ticket.rank[1].address, address);
  size_t count = list();
  assert_int_equal(count, 2);
  for (size_t i = 0; i < count; i++) {
    bool blamed = loads_with(&listed[i], KVF_DEADLINE) + loads_with(&listed[i], KVF_TRANSFER_STALLED) == 1;
    assert_int_equal(blamed, strcmp(listed[i].address, address) == 0);
  }
}

/* The client that hangs up says nothing of the peer. */
RANKS_TEST(an_abort_is_no_failure)
{
  open_world(1);
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(kvf_core_load_abort(&world.consumer.core, world.now_ns, 1), KVF_OK);
  ranks_settle();
  assert_int_equal(list(), 1);
  assert_int_equal(loads_with(&listed[0], KVF_ABORTED), 1);
  assert_int_equal(listed[0].last_failure, KVF_OK);
  assert_int_equal(world.consumer.core.loads.stats.detection_ns.sums[0], 0);
}

RANKS_TEST(a_breaker_shows)
{
  kvf_event event;
  open_world(1);
  world.wires[0].down = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
  assert_int_equal(list(), 1);
  assert_true(listed[0].links_count >= 2);
  assert_string_equal(listed[0].links[0].name, "control");
  assert_int_equal(listed[0].links[0].breaker, KVF_BREAKER_OPEN);
  assert_int_equal(listed[0].links[0].cause, KVF_PEER_DOWN);
  assert_false(listed[0].links[0].up);
  assert_int_equal(listed[0].links[1].breaker, KVF_BREAKER_CLOSED);
  assert_int_equal(listed[0].connection_failures, 1);
  assert_int_equal(loads_with(&listed[0], KVF_PEER_DOWN), 1);
  world.wires[0].down = false;
  ranks_advance(600);
  assert_int_equal(list(), 1);
  assert_int_equal(listed[0].links[0].breaker, KVF_BREAKER_CLOSED);
  assert_true(listed[0].links[0].up);
  assert_int_equal(listed[0].last_failure, KVF_PEER_DOWN);
}

static kvf_peer *know_peer(uint16_t port)
{
  kvf_address address = ticket.rank[0].address;
  address.port = port;
  kvf_peer *peer;
  assert_int_equal(kvf_peers_acquire(&world.consumer.core.peers, &address, &ticket.rank[0].incarnation, &peer), KVF_OK);
  return peer;
}

RANKS_TEST(the_list_is_bounded_and_begins_with_the_latest)
{
  open_world(1);
  for (uint16_t port = 1; port <= KVF_PEERS_LISTED_MAX + 5; port++) {
    (void)know_peer(port);
  }
  assert_int_equal(list(), KVF_PEERS_LISTED_MAX);
  assert_non_null(strstr(listed[0].address, ":69"));
  assert_int_equal(kvf_peers_describe(&world.consumer.core.peers, world.now_ns, listed, 3), 3);
  assert_non_null(strstr(listed[2].address, ":67"));
}

RANKS_TEST(a_peer_that_goes_unused_is_listed_no_more)
{
  open_world(1);
  kvf_peer *peer = know_peer(7);
  assert_int_equal(list(), 1);
  kvf_peers_release(&world.consumer.core.peers, world.now_ns, peer);
  world.now_ns += (uint64_t)world.consumer.core.context.config.idle_timeout_ms * MS - 1;
  assert_int_equal(list(), 1);
  world.now_ns += 1;
  assert_int_equal(list(), 0);
}
