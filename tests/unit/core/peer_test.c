#include "control_world.h"
#include "test.h"

static kvf_ticket ticket;
static uint32_t ids[16];

static kvf_peer *acquire(void)
{
  const kvf_rank_record *rank = &ticket.rank[0];
  kvf_peer *peer;
  assert_int_equal(kvf_peers_acquire(&world.consumer.core.peers, &rank->address, &rank->incarnation, &peer), KVF_OK);
  return peer;
}

static void open_world(const char *consumer_key, const char *producer_key, const char *model)
{
  control_options options;
  control_options_init(&options);
  options.consumer_key = consumer_key;
  options.producer_key = producer_key;
  options.consumer_model = model;
  control_world_open(&options);
  control_ticket(&ticket, ids, 4);
}

/* A world in which the producer offers these transports, NULL: one only. */
static void open_offering(const char *wanted, const char *first, const char *second)
{
  control_options options;
  control_options_init(&options);
  (void)snprintf(options.config.transports, sizeof(options.config.transports), "%s", wanted);
  control_world_open(&options);
  control_ticket(&ticket, ids, 4);
  kvf_welcome *welcome = &world.producer.core.pool.welcome;
  (void)snprintf(welcome->transports[0].name, sizeof(welcome->transports[0].name), "%s", first);
  if (second != NULL) {
    (void)snprintf(welcome->transports[1].name, sizeof(welcome->transports[1].name), "%s", second);
    welcome->transports[1].description = calloc(1, 1);
    welcome->transports[1].description_bytes = 1;
    welcome->transports_count = 2;
  }
}

/* Wants a link and returns what was answered; the dial succeeds. */
static kvf_peer_notice ask_link(kvf_peer *peer)
{
  kvf_peer_notice notice = {0};
  kvf_peers *peers = &world.consumer.core.peers;
  kvf_peers_want_link(peers, world.now_ns, peer);
  if (!kvf_peers_next_notice(peers, &notice)) {
    control_settle();
  }
  return notice;
}

static kvf_peer_notice next_notice(void)
{
  kvf_peer_notice notice;
  assert_true(kvf_peers_next_notice(&world.consumer.core.peers, &notice));
  return notice;
}

/* The process at the ticket's address that was, is, or will be there. */
static kvf_peer *acquire_life(kvf_incarnation now, uint8_t other)
{
  ticket.rank[0].incarnation = now;
  ticket.rank[0].incarnation.bytes[0] ^= other;
  return acquire();
}

/* A peer that is connected, and whose link is opening. */
static kvf_peer *linked(void)
{
  open_world(NULL, NULL, "m");
  kvf_peer *peer = acquire();
  (void)ask_link(peer);
  control_dial(KVF_OK);
  return peer;
}

/* Likewise, without a link. */
static kvf_peer *connected(void)
{
  open_world(NULL, NULL, "m");
  kvf_peer *peer = acquire();
  kvf_peers_want_open(&world.consumer.core.peers, world.now_ns, peer);
  control_settle();
  control_dial(KVF_OK);
  return peer;
}

/* One that is dialed once and answers, or not. */
static kvf_peer *dialed(const char *consumer_key, const char *producer_key, const char *model)
{
  open_world(consumer_key, producer_key, model);
  kvf_peer *peer = acquire();
  kvf_peers_want_link(&world.consumer.core.peers, world.now_ns, peer);
  control_settle();
  control_dial(KVF_OK);
  return peer;
}

CONTROL_TEST(shakes_hands_and_opens_the_best_link)
{
  open_world("a key of sixteen", "a key of sixteen", "m");
  kvf_peer *peer = acquire();
  (void)ask_link(peer);
  control_dial(KVF_OK);
  assert_int_equal(peer->state, KVF_PEER_READY);
  assert_int_not_equal(world.consumer.opened_link_id, 0);
  assert_int_equal(peer->links[0].state, KVF_LINK_OPENING);
  kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, world.consumer.opened_link_id, KVF_OK);
  kvf_peer_notice notice = next_notice();
  assert_int_equal(notice.kind, KVF_PEER_LINK);
  assert_int_equal(notice.status, KVF_OK);
  assert_int_equal(notice.link_id, world.consumer.opened_link_id);
  kvf_key key;
  assert_true(kvf_sessions_key(&world.producer.core.sessions, peer->memory.welcome->session_id, &key));
  assert_memory_equal(key.data, peer->session_key.data, key.bytes);
}

CONTROL_TEST(refused_dial_opens_the_breaker_and_a_probe_closes_it)
{
  open_world(NULL, NULL, "m");
  kvf_peer *peer = acquire();
  (void)ask_link(peer);
  control_dial(KVF_PEER_DOWN);
  uint64_t dials = world.consumer.core.peers.counters.dials;
  kvf_peer_notice notice = ask_link(peer);
  assert_int_equal(notice.kind, KVF_PEER_LINK);
  assert_int_equal(notice.status, KVF_PEER_DOWN);
  assert_int_equal(world.consumer.core.peers.counters.dials, dials);
  control_advance(499);
  assert_false(world.consumer.dial_wanted);
  control_advance(2);
  assert_true(world.consumer.dial_wanted); /* the probe, with nobody waiting */
  control_dial(KVF_OK);
  assert_int_equal(peer->state, KVF_PEER_READY);
  assert_true(kvf_breaker_allows(&peer->breaker));
}

/* The probes end with the peer's use. What they found then says nothing of it much later. */
CONTROL_TEST(unused_breaker_does_not_fail_a_new_load)
{
  open_world(NULL, NULL, "m");
  kvf_peer *peer = acquire();
  (void)ask_link(peer);
  control_dial(KVF_PEER_DOWN);
  kvf_peers_release(&world.consumer.core.peers, world.now_ns, peer);
  for (int i = 0; i < 400; i++) {
    control_advance(1000);
    if (world.consumer.dial_wanted) {
      assert_true(i < 301);
      control_dial(KVF_PEER_DOWN);
    }
  }
  assert_ptr_equal(acquire(), peer);
  assert_false(kvf_breaker_allows(&peer->breaker));
  kvf_peer_notice notice = ask_link(peer);
  assert_int_equal(notice.kind, 0);
  assert_true(world.consumer.dial_wanted);
  control_dial(KVF_OK);
  assert_int_equal(peer->state, KVF_PEER_READY);
}

/* Whoever waits has not heard yet, as long as control_settle() has not been called. */
static void time_out(const kvf_peer *peer)
{
  control_advance(999);
  assert_int_equal(peer->state, KVF_PEER_WAIT_CHALLENGE);
  assert_true(kvf_breaker_allows(&peer->breaker));
  world.now_ns += 2 * MS;
  kvf_core_tick(&world.consumer.core, world.now_ns);
}

/* One whose dial nobody has answered in time. */
static kvf_peer *unanswered(void)
{
  open_world(NULL, NULL, "m");
  kvf_peer *peer = acquire();
  kvf_peers_want_link(&world.consumer.core.peers, world.now_ns, peer);
  control_settle();
  world.held = true;
  control_dial(KVF_OK);
  time_out(peer);
  return peer;
}

CONTROL_TEST(silent_handshake_times_out_twice)
{
  kvf_peer *peer = unanswered();
  kvf_peer_notice notice;
  assert_false(kvf_peers_next_notice(&world.consumer.core.peers, &notice)); /* whoever waits goes on waiting */
  assert_true(kvf_breaker_allows(&peer->breaker));
  assert_string_equal(world.consumer.last_log, "peer [::1]:80: no handshake in time: it is dialed again");
  control_settle();
  control_dial(KVF_OK);
  time_out(peer);
  notice = next_notice();
  assert_int_equal(notice.status, KVF_HANDSHAKE_TIMEOUT);
  assert_false(kvf_breaker_allows(&peer->breaker));
  assert_int_equal(world.consumer.core.peers.counters.failures, 2);
  notice = ask_link(peer); /* which fails at once, for the same reason */
  assert_int_equal(notice.kind, KVF_PEER_LINK);
  assert_int_equal(notice.status, KVF_HANDSHAKE_TIMEOUT);

  control_advance(501); /* a probe is one try */
  uint64_t dials = world.consumer.core.peers.counters.dials;
  control_dial(KVF_OK);
  control_advance(1001);
  assert_int_equal(world.consumer.core.peers.counters.dials, dials);
  assert_int_equal(peer->breaker.state, KVF_BREAKER_OPEN);
}

CONTROL_TEST(second_try_is_answered)
{
  kvf_peer *peer = unanswered();
  control_settle();
  world.held = false;
  control_dial(KVF_OK);
  assert_int_equal(peer->state, KVF_PEER_READY);
  assert_int_not_equal(world.consumer.opened_link_id, 0);
  control_cut(); /* and what comes later has two tries again */
  world.held = true;
  kvf_peers_want_open(&world.consumer.core.peers, world.now_ns, peer);
  control_settle();
  control_dial(KVF_OK);
  time_out(peer);
  control_settle();
  assert_true(kvf_breaker_allows(&peer->breaker));
  assert_true(world.consumer.dial_wanted);
}

CONTROL_TEST(wrong_key_is_refused_by_both)
{
  kvf_peer *peer = dialed("a key of sixteen", "another key here", "m");
  assert_int_equal(world.producer.core.sessions.counters.refused_key, 1);
  assert_int_equal(HASH_CNT(by_id, world.producer.core.sessions.by_id), 0);
  assert_int_equal(peer->state, KVF_PEER_IDLE);
  assert_non_null(strstr(world.consumer.last_log, "key_file"));
}

CONTROL_TEST(other_model_is_refused_and_named)
{
  kvf_peer *peer = dialed(NULL, NULL, "x");
  assert_int_equal(world.producer.core.sessions.counters.refused_incompatible, 1);
  assert_non_null(strstr(world.consumer.last_log, "model differs"));
  /* Anybody on the way could have said or caused that: the next load asks again. */
  assert_int_equal(peer->gone, KVF_OK);
  assert_true(kvf_breaker_allows(&peer->breaker));
}

/* P8: who has not proved the key may refuse us, but is not believed for ever. */
CONTROL_TEST(refusal_without_proof_is_not_final)
{
  open_world(NULL, NULL, "m");
  kvf_peer *peer = acquire();
  (void)ask_link(peer);
  world.held = true;
  control_dial(KVF_OK);
  assert_int_equal(peer->state, KVF_PEER_WAIT_CHALLENGE);
  kvf_refused refused = {.status = KVF_INCOMPATIBLE, .message = "x"};
  uint8_t body[KVF_REFUSED_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_refused_encode(&refused, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(&world.consumer.core, world.now_ns, world.consumer.conn_id, KVF_FRAME_REFUSED, body, bytes);
  kvf_peer_notice notice = next_notice();
  assert_int_equal(notice.status, KVF_INCOMPATIBLE);
  assert_int_equal(peer->gone, KVF_OK);
}

/* Somebody waits for a link to a producer that has no memory yet. */
static kvf_peer *ask_one_without_memory(void)
{
  control_options options;
  control_options_init(&options);
  options.without_memory = true;
  control_world_open(&options);
  control_ticket(&ticket, ids, 4);
  kvf_peer *peer = acquire();
  (void)ask_link(peer);
  return peer;
}

/* A consumer that was faster than the producer's registration must not go on believing that there is no memory. */
CONTROL_TEST(registration_is_heard_by_those_who_came_before)
{
  kvf_peer *peer = ask_one_without_memory();
  control_dial(KVF_OK);
  assert_int_equal(peer->state, KVF_PEER_READY);
  assert_int_equal(peer->link.status, KVF_TRANSFER_SETUP);
  control_set_memory(&world.producer);
  control_settle();
  assert_int_equal(peer->state, KVF_PEER_IDLE);
  (void)ask_link(peer);
  control_dial(KVF_OK);
  assert_int_not_equal(world.consumer.opened_link_id, 0);
}

/* Nor one that has not heard of it: who wants a link asks again, once. */
CONTROL_TEST(who_has_had_no_memory_is_asked_again)
{
  kvf_peer *peer = ask_one_without_memory();
  for (int dials = 0; dials < 3; dials++) {
    control_dial(KVF_OK);
    assert_int_equal(peer->state, KVF_PEER_READY);
    assert_false(peer->link.is_wanted);
    assert_int_equal(peer->link.status, KVF_TRANSFER_SETUP);
    assert_false(world.consumer.dial_wanted);
    (void)ask_link(peer);
  }
}

/* ---- other memory than a link is for ---- */

/* The link that was up, or was opening, is found to be for memory that has gone. */
static void find_stale(uint32_t link_id, kvf_status opened)
{
  if (opened == KVF_OK) {
    kvf_peers_link_is_stale(&world.consumer.core.peers, world.now_ns, link_id);
  } else {
    kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, link_id, opened);
  }
}

CONTROL_TEST(other_memory_takes_another_session)
{
  for (int up = 0; up < 2; up++) {
    kvf_peer *peer = linked();
    uint32_t link_id = world.consumer.opened_link_id;
    if (up) {
      kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, link_id, KVF_OK);
      assert_int_equal(next_notice().status, KVF_OK);
    }
    world.held = true; /* the producer's end of the session is not heard */
    control_move(&world.producer);
    find_stale(link_id, up ? KVF_OK : KVF_AGAIN);
    find_stale(link_id, up ? KVF_OK : KVF_AGAIN); /* which another read says too */
    if (up) {
      assert_int_equal(next_notice().kind, KVF_PEER_LINK_DOWN);
      kvf_peers_want_link(&world.consumer.core.peers, world.now_ns, peer);
    }
    control_settle();
    world.held = false;
    assert_int_equal(world.consumer.closed_links, 1);
    control_dial(KVF_OK);
    assert_int_equal(peer->memory.generation, 2);
    assert_int_not_equal(world.consumer.opened_link_id, link_id);
    assert_int_equal(world.consumer.core.peers.counters.failures, 0);
  }
}

/* Else the two would dial each other without end. */
CONTROL_TEST(memory_that_has_gone_does_not_come_back)
{
  kvf_peer *peer = linked();
  find_stale(world.consumer.opened_link_id, KVF_AGAIN);
  control_settle();
  control_dial(KVF_OK);
  assert_int_equal(peer->link.status, KVF_PROTOCOL);
  assert_int_equal(peer->state, KVF_PEER_IDLE);
}

/* What could not be with the memory before, its own or ours, may be with this one. */
CONTROL_TEST(other_memory_is_tried_again)
{
  for (int ours = 0; ours < 2; ours++) {
    for (int tripped = 0; tripped < 2; tripped++) {
      kvf_peer *peer = linked();
      uint32_t link_id = world.consumer.opened_link_id;
      kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, link_id,
                        tripped ? KVF_TRANSFER_SETUP : KVF_INCOMPATIBLE);
      control_settle();
      assert_int_not_equal(peer->link.status, KVF_OK);
      control_move(ours ? &world.consumer : &world.producer);
      control_settle();
      (void)ask_link(peer);
      if (!ours) {
        control_dial(KVF_OK);
      }
      assert_int_not_equal(world.consumer.opened_link_id, link_id);
    }
  }
}

CONTROL_TEST(links_go_with_our_own_memory)
{
  for (int up = 0; up < 2; up++) {
    kvf_peer *peer = linked();
    if (up) {
      kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, world.consumer.opened_link_id, KVF_OK);
      assert_int_equal(next_notice().status, KVF_OK);
    }
    assert_true(kvf_core_clear_memory(&world.consumer.core, world.now_ns));
    control_settle();
    assert_int_equal(world.consumer.closed_links, 1);
    assert_int_equal(peer->links[0].state, KVF_LINK_NONE); /* nobody wants it any more */
    assert_int_equal(peer->state, KVF_PEER_READY);
  }
}

CONTROL_TEST(other_incarnation_is_a_restart)
{
  open_world(NULL, NULL, "m");
  ticket.rank[0].incarnation.bytes[0] ^= 1;
  kvf_peer *peer = acquire();
  kvf_peers_want_link(&world.consumer.core.peers, world.now_ns, peer);
  control_settle();
  control_dial(KVF_OK);
  assert_int_equal(peer->gone, KVF_PEER_RESTARTED);
  kvf_peer_notice notice = ask_link(peer);
  assert_int_equal(notice.status, KVF_PEER_RESTARTED);
  assert_false(world.consumer.dial_wanted); /* it will not come back */
}

/* What another dial to its address has shown, it need not find out by one of its own: but a process that was named only
 * after that dial began may have been started since. */
CONTROL_TEST(restart_is_known_of_all_who_were_there_before)
{
  open_world(NULL, NULL, "m");
  const kvf_incarnation now = ticket.rank[0].incarnation;
  kvf_peer *last_life = acquire_life(now, 1);
  kvf_peer *peer = acquire_life(now, 0);
  kvf_peers_want_open(&world.consumer.core.peers, world.now_ns, peer);
  control_settle();
  kvf_peer *next_life = acquire_life(now, 2);
  control_dial(KVF_OK);
  assert_int_equal(peer->state, KVF_PEER_READY);
  assert_int_equal(last_life->gone, KVF_PEER_RESTARTED);
  assert_int_equal(next_life->gone, KVF_OK);
  kvf_peers_want_open(&world.consumer.core.peers, world.now_ns, next_life);
  control_settle();
  assert_true(world.consumer.dial_wanted);
}

CONTROL_TEST(closed_connection_takes_its_links_down)
{
  kvf_peer *peer = linked();
  uint32_t link_id = world.consumer.opened_link_id;
  kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, link_id, KVF_OK);
  (void)next_notice();
  kvf_core_on_closed(&world.consumer.core, world.now_ns, world.consumer.conn_id);
  kvf_peer_notice notice = next_notice();
  assert_int_equal(notice.kind, KVF_PEER_LINK_DOWN);
  assert_int_equal(notice.link_id, link_id);
  world.consumer.conn_id = 0;
  control_settle();
  assert_int_equal(world.consumer.closed_links, 1);
  assert_true(kvf_breaker_allows(&peer->breaker)); /* the next dial tells */
}

CONTROL_TEST(unusable_transport_is_not_tried_again)
{
  kvf_peer *peer = linked();
  kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, world.consumer.opened_link_id, KVF_INCOMPATIBLE);
  kvf_peer_notice notice = next_notice();
  assert_int_equal(notice.kind, KVF_PEER_LINK);
  assert_int_equal(notice.status, KVF_INCOMPATIBLE); /* the producer offers nothing else */
  control_settle();
  notice = ask_link(peer);
  assert_int_equal(notice.status, KVF_INCOMPATIBLE);
}

/* What came of the link that is opening. */
static void answer_link(kvf_status status)
{
  kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, world.consumer.opened_link_id, status);
}

CONTROL_TEST(chosen_transport_and_why_is_said_once)
{
  static const char *const whys[] = {"local: not offered", "local: incompatible", "local: transfer_setup"};
  static const kvf_status causes[] = {KVF_OK, KVF_INCOMPATIBLE, KVF_TRANSFER_SETUP};
  for (size_t i = 0; i < 3; i++) {
    char expected[128];
    (void)snprintf(expected, sizeof(expected), "peer [::1]:80: loads go over tcp (%s)", whys[i]);
    open_offering("local,tcp", i == 0 ? "tcp" : "local", i == 0 ? NULL : "tcp");
    kvf_peer *peer = acquire();
    (void)ask_link(peer);
    control_dial(KVF_OK);
    if (causes[i] != KVF_OK) {
      answer_link(causes[i]);
      control_settle();
    }
    answer_link(KVF_OK);
    assert_int_equal(next_notice().status, KVF_OK);
    assert_string_equal(world.consumer.last_log, expected);
    world.consumer.last_log[0] = '\0';
    assert_int_equal(ask_link(peer).status, KVF_OK);
    assert_string_equal(world.consumer.last_log, "");

    control_advance(501);
    uint32_t link_id = world.consumer.opened_link_id;
    (void)ask_link(peer);
    assert_int_equal(world.consumer.opened_link_id == link_id, causes[i] != KVF_TRANSFER_SETUP); /* tried again */
  }
  answer_link(KVF_OK);
  assert_string_equal(world.consumer.last_log, "peer [::1]:80: loads go over local");
}

CONTROL_TEST(other_transports_than_wanted_are_refused)
{
  open_offering("tcp", "local", NULL);
  kvf_peer *peer = acquire();
  (void)ask_link(peer);
  control_dial(KVF_OK);
  assert_int_equal(ask_link(peer).status, KVF_TRANSFER_SETUP);
  assert_int_equal(world.consumer.opened_link_id, 0);
  assert_string_equal(world.consumer.last_log, "peer [::1]:80: loads go over no transport (tcp: not offered)");

  open_offering("tcp", "local", "tcp");
  peer = acquire();
  (void)ask_link(peer);
  control_dial(KVF_OK);
  answer_link(KVF_OK);
  assert_int_equal(next_notice().status, KVF_OK);
  assert_string_equal(world.consumer.last_log, "peer [::1]:80: loads go over tcp");
}

/* A session that ended while its data connections were made, a moment without memory: not for ever, and not at once. */
CONTROL_TEST(passing_failure_of_a_transport_is_tried_again)
{
  static const kvf_status causes[] = {KVF_HANDSHAKE_REFUSED, KVF_NO_MEMORY};
  for (size_t i = 0; i < 2; i++) {
    kvf_peer *peer = linked();
    uint32_t link_id = world.consumer.opened_link_id;
    kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, link_id, causes[i]);
    control_settle();
    assert_int_equal(world.consumer.closed_links, 1);
    assert_int_equal(ask_link(peer).status, KVF_TRANSFER_SETUP);
    assert_int_equal(world.consumer.opened_link_id, link_id);
    control_advance(501);
    (void)ask_link(peer);
    assert_int_not_equal(world.consumer.opened_link_id, link_id);
  }
}

/* A transport may be stuck in the peer's memory: the next one is tried, and nothing waits for the first. */
CONTROL_TEST(transport_that_does_not_answer_is_given_up)
{
  open_offering("local,tcp", "local", "tcp");
  kvf_peer *peer = acquire();
  (void)ask_link(peer);
  control_dial(KVF_OK);
  uint32_t silent = world.consumer.opened_link_id;
  control_advance(999);
  assert_int_equal(world.consumer.opened_link_id, silent);
  control_advance(2);
  assert_int_equal(world.consumer.closed_links, 1);
  assert_int_equal(peer->links[0].state, KVF_LINK_NONE);
  assert_int_equal(peer->links[1].state, KVF_LINK_OPENING);
  kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, silent, KVF_OK); /* too late */
  assert_int_equal(peer->links[0].state, KVF_LINK_NONE);

  answer_link(KVF_OK);
  kvf_peer_notice notice = next_notice();
  assert_int_equal(notice.status, KVF_OK);
  assert_int_equal(notice.link_id, world.consumer.opened_link_id);
  assert_string_equal(world.consumer.last_log, "peer [::1]:80: loads go over tcp (local: handshake_timeout)");
  assert_int_equal(ask_link(peer).link_id, notice.link_id); /* not tried again at once */
}

/* Where there is no other, it is tried again first. */
CONTROL_TEST(only_transport_does_not_answer)
{
  kvf_peer *peer = linked();
  uint32_t first = world.consumer.opened_link_id;
  control_advance(1001);
  assert_true(peer->link.is_wanted);
  assert_int_equal(world.consumer.closed_links, 1);
  assert_int_not_equal(world.consumer.opened_link_id, first);
  assert_true(kvf_breaker_allows(&peer->links[0].breaker));
  control_advance(1001);
  assert_int_equal(world.consumer.closed_links, 2);
  assert_false(kvf_breaker_allows(&peer->links[0].breaker));
  assert_false(peer->link.is_wanted); /* whoever waited has heard */
  assert_int_equal(ask_link(peer).status, KVF_HANDSHAKE_TIMEOUT);
  assert_int_equal(peer->state, KVF_PEER_READY);
}

/* The bytes were damaged on their way: a new session has others. */
CONTROL_TEST(malformed_offer_ends_the_session)
{
  kvf_peer *peer = linked();
  uint32_t link_id = world.consumer.opened_link_id;
  kvf_peers_on_link_malformed(&world.consumer.core.peers, world.now_ns, link_id);
  kvf_peer_notice notice = next_notice();
  assert_int_equal(notice.status, KVF_PROTOCOL);
  control_settle();
  assert_int_equal(world.consumer.closed_links, 1);
  assert_int_equal(peer->state, KVF_PEER_IDLE);
  assert_int_equal(ask_link(peer).status, KVF_PROTOCOL); /* not at once */
  control_advance(501);
  (void)ask_link(peer);
  control_dial(KVF_OK);
  assert_int_not_equal(world.consumer.opened_link_id, link_id);
}

CONTROL_TEST(stalled_link_has_a_breaker_of_its_own)
{
  kvf_peer *peer = linked();
  uint32_t link_id = world.consumer.opened_link_id;
  kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, link_id, KVF_OK);
  kvf_peers_link_stalled(&world.consumer.core.peers, world.now_ns, link_id, false);
  control_settle();
  assert_int_equal(peer->state, KVF_PEER_READY);
  kvf_peer_notice notice = ask_link(peer);
  assert_int_equal(notice.status, KVF_TRANSFER_STALLED);
  control_advance(501);
  (void)ask_link(peer); /* the load that comes after the cooldown is the probe */
  assert_int_not_equal(world.consumer.opened_link_id, link_id);
}

CONTROL_TEST(unused_peer_is_disconnected_and_makes_room)
{
  kvf_peer *peer = connected();
  kvf_peers_release(&world.consumer.core.peers, world.now_ns, peer);
  for (int i = 0; i < 5; i++) {
    control_advance(100000);
  }
  assert_int_equal(peer->state, KVF_PEER_IDLE);
  assert_int_equal(HASH_CNT(by_id, world.producer.core.sessions.by_id), 0);
}

static kvf_status acquire_port(uint16_t port, kvf_peer **peer)
{
  kvf_address address = ticket.rank[0].address;
  address.port = port;
  return kvf_peers_acquire(&world.consumer.core.peers, &address, &ticket.rank[0].incarnation, peer);
}

/* Takes all places that are left; returns the last peer. */
static kvf_peer *fill_table(void)
{
  kvf_peer *last = NULL;
  for (uint16_t port = 1000; HASH_CNT(by_key, world.consumer.core.peers.by_key) < KVF_PEERS_MAX; port++) {
    assert_int_equal(acquire_port(port, &last), KVF_OK);
  }
  return last;
}

/* P6: what is in use, or has a link that the runtime still knows, keeps its place; what nobody uses gives it. */
CONTROL_TEST(table_is_bounded_and_unused_peers_make_room)
{
  kvf_peers *peers = &world.consumer.core.peers;
  kvf_peer *got = NULL;
  kvf_peer *kept = linked();
  kvf_peers_release(peers, world.now_ns, kept);
  kvf_peer *last = fill_table();
  const uint16_t last_port = last->key.address.port;
  assert_int_equal(acquire_port(1, &got), KVF_NO_RESOURCE);
  assert_null(got);
  assert_int_equal(HASH_CNT(by_key, peers->by_key), KVF_PEERS_MAX);
  kvf_peers_release(peers, world.now_ns, last);
  assert_int_equal(acquire_port(1, &got), KVF_OK);
  assert_int_equal(acquire_port(last_port, &got), KVF_NO_RESOURCE); /* it was the one that went */
  assert_int_equal(kept->links[0].state, KVF_LINK_OPENING);
  assert_int_equal(acquire_port(2, &got), KVF_NO_RESOURCE);
}

/* A link that the runtime has not been told of goes with its peer, and is never opened. */
CONTROL_TEST(wanted_link_does_not_keep_an_unused_peer)
{
  kvf_peers *peers = &world.consumer.core.peers;
  kvf_peer *got;
  kvf_peer *peer = connected();
  kvf_peers_want_link(peers, world.now_ns, peer);
  assert_int_equal(peer->links[0].state, KVF_LINK_WANTED);
  kvf_peers_release(peers, world.now_ns, peer);
  (void)fill_table();
  assert_int_equal(acquire_port(1, &got), KVF_OK);
  control_settle();
  assert_int_equal(world.consumer.opened_link_id, 0);
  assert_int_equal(HASH_CNT(by_id, world.producer.core.sessions.by_id), 0);
}

/* And where its peer stays: what was never opened is not closed either. */
CONTROL_TEST(wanted_link_goes_with_its_connection)
{
  kvf_peer *peer = connected();
  kvf_peers_want_link(&world.consumer.core.peers, world.now_ns, peer);
  control_cut();
  assert_int_equal(world.consumer.opened_link_id, 0);
  assert_int_equal(world.consumer.closed_links, 0);
  control_dial(KVF_OK); /* the link is wanted still */
  assert_int_not_equal(world.consumer.opened_link_id, 0);
}

CONTROL_TEST(news_of_what_is_decided_changes_nothing)
{
  kvf_core *core = &world.consumer.core;
  open_world(NULL, NULL, "m");
  kvf_peer *peer = acquire();
  (void)ask_link(peer);
  uint64_t conn_id = world.consumer.dial_conn_id;
  control_dial(KVF_OK);
  const kvf_peer_link *link = &peer->links[0];
  uint32_t link_id = world.consumer.opened_link_id;
  kvf_core_on_dialed(core, world.now_ns, conn_id, KVF_PEER_DOWN);
  kvf_peers_on_link_down(&core->peers, world.now_ns, link_id, KVF_PEER_DOWN); /* it is not up yet */
  kvf_peers_on_link_down(&core->peers, world.now_ns, link_id + 1, KVF_PEER_DOWN);
  kvf_peers_on_link(&core->peers, world.now_ns, link_id + 1, KVF_PEER_DOWN);
  assert_int_equal(link->state, KVF_LINK_OPENING);
  kvf_peers_on_link(&core->peers, world.now_ns, link_id, KVF_OK);
  kvf_peers_on_link(&core->peers, world.now_ns, link_id, KVF_PEER_DOWN);
  kvf_peers_on_link_malformed(&core->peers, world.now_ns, link_id);
  kvf_peers_on_link_malformed(&core->peers, world.now_ns, link_id + 1);
  assert_int_equal(link->state, KVF_LINK_UP);
  assert_int_equal(peer->state, KVF_PEER_READY);
  assert_int_equal(core->peers.counters.failures, 0);
}

/* P8: each state of the handshake takes its own message and no other. */
CONTROL_TEST(frames_out_of_place_end_the_connection)
{
  static const struct {
    kvf_peer_state state;
    kvf_frame_type type;
  } rows[] = {{KVF_PEER_WAIT_CHALLENGE, KVF_FRAME_WELCOME}, {KVF_PEER_WAIT_CHALLENGE, KVF_FRAME_PONG},
              {KVF_PEER_WAIT_WELCOME, KVF_FRAME_CHALLENGE}, {KVF_PEER_WAIT_WELCOME, KVF_FRAME_PONG},
              {KVF_PEER_READY, KVF_FRAME_CHALLENGE},        {KVF_PEER_READY, KVF_FRAME_WELCOME}};
  const uint8_t body[8] = {0};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    kvf_peer *peer = linked();
    peer->state = rows[i].state; /* as if it had come so far */
    kvf_core_on_frame(&world.consumer.core, world.now_ns, world.consumer.conn_id, rows[i].type, body, sizeof(body));
    assert_int_equal(peer->state, KVF_PEER_IDLE);
    assert_non_null(strstr(world.consumer.last_log, "protocol: a message that does not belong here"));
  }
}

/* ---- two addresses ---- */

static const kvf_address v4 = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}, .port = 81};

/* Dialed at its first address, and not answered yet. */
static kvf_peer *dialed_of_two(void)
{
  open_world(NULL, NULL, "m");
  ticket.rank[0].other = v4;
  kvf_peer *peer = NULL;
  assert_int_equal(kvf_peers_acquire_rank(&world.consumer.core.peers, &ticket.rank[0], &peer), KVF_OK);
  (void)ask_link(peer);
  return peer;
}

static void assert_dialed(const kvf_address *address)
{
  assert_true(world.consumer.dial_wanted);
  assert_memory_equal(&world.consumer.dial_address, address, sizeof(*address));
}

/* P2: at once, and within the time of one dial. */
CONTROL_TEST(where_it_cannot_be_connected_to_the_other_address_is_dialed)
{
  const kvf_peer *peer = dialed_of_two();
  assert_dialed(&ticket.rank[0].address);
  control_dial(KVF_PEER_DOWN);
  assert_dialed(&v4);
  assert_int_equal(world.consumer.core.peers.counters.failures, 0);
  control_dial(KVF_OK);
  assert_int_equal(peer->state, KVF_PEER_READY);
  assert_memory_equal(&world.consumer.link_address, &v4, sizeof(v4));
  assert_string_equal(peer->stat.address, "127.0.0.1:81");
}

CONTROL_TEST(a_peer_that_is_at_neither_address_is_down)
{
  const kvf_peer *peer = dialed_of_two();
  control_dial(KVF_PEER_DOWN);
  control_dial(KVF_PEER_DOWN);
  assert_false(world.consumer.dial_wanted);
  assert_int_equal(peer->state, KVF_PEER_IDLE);
  assert_int_equal(peer->stat.last_failure, KVF_PEER_DOWN);
  assert_int_equal(world.consumer.core.peers.counters.failures, 1);
}

/* Where packets are lost on one of the two ways. */
CONTROL_TEST(the_second_try_goes_to_the_other_address)
{
  const kvf_peer *peer = dialed_of_two();
  control_advance(1001);
  assert_dialed(&v4);
  control_dial(KVF_OK);
  assert_int_equal(peer->state, KVF_PEER_READY);
}

/* Nobody can be connected to at the one, and the other has not answered in time: that is asked twice. */
CONTROL_TEST(the_second_try_does_not_go_where_nobody_is)
{
  (void)dialed_of_two();
  control_dial(KVF_PEER_DOWN);
  control_advance(1001);
  assert_dialed(&v4);
  control_dial(KVF_PEER_DOWN);
  assert_false(world.consumer.dial_wanted);
}

/* A probe, which has one try, is of each in turn; and it is dialed first where it was reached last. */
CONTROL_TEST(probes_take_turns_at_the_addresses)
{
  kvf_peer *peer = dialed_of_two();
  control_advance(1001);
  control_advance(1001);
  assert_int_equal(peer->stat.last_failure, KVF_HANDSHAKE_TIMEOUT);
  control_advance(600);
  const kvf_address first = world.consumer.dial_address;
  control_advance(1001);
  control_advance(1500);
  assert_memory_not_equal(&world.consumer.dial_address, &first, sizeof(first));
  const kvf_address reached = world.consumer.dial_address;
  control_dial(KVF_OK);
  assert_int_equal(peer->state, KVF_PEER_READY);
  control_cut();
  (void)ask_link(peer);
  assert_dialed(&reached);
}

/* Also by a ticket that names the addresses the other way round, or by the option peers. */
CONTROL_TEST(a_peer_of_two_addresses_is_one_peer)
{
  kvf_peers *peers = &world.consumer.core.peers;
  const kvf_peer *peer = dialed_of_two();
  kvf_rank_record round = ticket.rank[0];
  kvf_peer *again = NULL;
  round.address = v4;
  round.other = ticket.rank[0].address;
  assert_int_equal(kvf_peers_acquire_rank(peers, &round, &again), KVF_OK);
  assert_ptr_equal(again, peer);
  round.incarnation.bytes[0] ^= 1; /* another process */
  assert_int_equal(kvf_peers_acquire_rank(peers, &round, &again), KVF_OK);
  assert_ptr_not_equal(again, peer);

  kvf_peer *named = NULL;
  round.incarnation.bytes[0] ^= 3;
  assert_int_equal(kvf_peers_acquire(peers, &round.other, &round.incarnation, &named), KVF_OK);
  assert_int_equal(kvf_peers_acquire_rank(peers, &round, &again), KVF_OK);
  assert_ptr_equal(again, named);
  assert_memory_equal(&again->dial.other, &v4, sizeof(v4));
}

/* Who was reached at a loopback address is of this host. */
CONTROL_TEST(a_loopback_address_is_explained_where_nobody_was_reached)
{
  for (int reached = 0; reached < 2; reached++) {
    kvf_peer *peer = dialed_of_two();
    if (reached != 0) {
      control_dial(KVF_OK);
      control_cut();
      (void)ask_link(peer);
    }
    control_dial(KVF_PEER_DOWN);
    control_dial(KVF_PEER_DOWN);
    assert_int_equal(strstr(world.consumer.last_log, "is of this host alone") == NULL, reached);
  }
}

/* It is told without a dial of its own, by whichever address another process answers. */
CONTROL_TEST(who_answers_at_the_other_address_ends_it_too)
{
  kvf_peers *peers = &world.consumer.core.peers;
  (void)dialed_of_two();
  control_dial(KVF_OK);
  kvf_rank_record before = ticket.rank[0];
  kvf_peer *gone = NULL;
  before.incarnation.bytes[0] ^= 1;
  before.address = (kvf_address){.ip = {[0] = 0x20}, .port = 82};
  assert_int_equal(kvf_peers_acquire_rank(peers, &before, &gone), KVF_OK);
  kvf_rank_record now = ticket.rank[0];
  kvf_peer *peer = NULL;
  now.address = (kvf_address){.ip = {[0] = 0x20}, .port = 83};
  assert_int_equal(kvf_peers_acquire_rank(peers, &now, &peer), KVF_OK);
  (void)ask_link(peer);
  control_dial(KVF_PEER_DOWN);
  control_dial(KVF_OK);
  assert_int_equal(gone->gone, KVF_PEER_RESTARTED);
}

/* 0 is a moment like any other, and not "nothing is awaited". */
CONTROL_TEST(silence_is_noticed_from_time_zero_on)
{
  kvf_peer *peer = connected();
  kvf_peers_await(&world.consumer.core.peers, 0, peer);
  kvf_core_tick(&world.consumer.core, world.now_ns + 1001 * MS);
  assert_int_equal(peer->state, KVF_PEER_IDLE);
  assert_non_null(strstr(world.consumer.last_log, "peer_down: does not answer"));
}

/* ---- peers that the node dials on its own ---- */

static void open_known(bool control)
{
  control_options options;
  control_options_init(&options);
  options.control = control;
  control_world_open(&options);
  control_ticket(&ticket, ids, 4);
  assert_int_equal(kvf_core_add_known(&world.consumer.core, "p:80", &ticket.rank[0].address), KVF_OK);
  kvf_core_start(&world.consumer.core, world.now_ns);
  control_settle();
}

static uint64_t handshakes(void)
{
  return world.consumer.core.peers.counters.handshakes;
}

CONTROL_TEST(known_peer_is_ready_before_anybody_asks)
{
  open_known(false);
  assert_true(world.consumer.dial_wanted);
  control_dial(KVF_OK); /* who answers there? */
  assert_int_equal(handshakes(), 0);
  assert_true(world.consumer.dial_wanted);
  control_dial(KVF_OK);
  assert_int_equal(handshakes(), 1);
  assert_int_not_equal(world.consumer.opened_link_id, 0);
  kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, world.consumer.opened_link_id, KVF_OK);
  control_settle();
  kvf_peer *peer = acquire();
  assert_int_equal(peer->users, 2);
  kvf_peers_want_link(&world.consumer.core.peers, world.now_ns, peer);
  assert_int_equal(next_notice().link_id, world.consumer.opened_link_id); /* at once */
  assert_int_equal(handshakes(), 1);
}

/* Nobody waits for it, and it would be said each time. */
CONTROL_TEST(known_peer_that_offers_no_usable_link_is_left_in_peace)
{
  open_known(false);
  control_dial(KVF_OK);
  control_dial(KVF_OK);
  kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, world.consumer.opened_link_id, KVF_INCOMPATIBLE);
  control_settle();
  kvf_peer *peer = acquire();
  assert_int_equal(peer->links[0].unusable, KVF_INCOMPATIBLE);
  world.consumer.last_log[0] = '\0';
  control_advance(3000);
  assert_string_equal(world.consumer.last_log, "");
}

CONTROL_TEST(nobody_is_called_nothing)
{
  open_known(false);
  memset(&world.producer.core.context.self.incarnation, 0, sizeof(kvf_incarnation));
  control_dial(KVF_OK);
  assert_non_null(strstr(world.consumer.last_log, "malformed challenge"));
  assert_false(world.consumer.dial_wanted);
}

CONTROL_TEST(control_node_opens_no_link_to_a_known_peer)
{
  open_known(true);
  control_dial(KVF_OK);
  control_dial(KVF_OK);
  assert_int_equal(handshakes(), 1);
  assert_int_equal(world.consumer.opened_link_id, 0);
}

CONTROL_TEST(known_peer_is_dialed_until_it_is_there_and_after_each_restart)
{
  open_known(false);
  for (int i = 0; i < 3; i++) {
    control_dial(KVF_PEER_DOWN);
    for (int ms = 0; ms < 20000 && !world.consumer.dial_wanted; ms += 100) {
      control_advance(100);
    }
    assert_true(world.consumer.dial_wanted);
  }
  control_dial(KVF_OK);
  control_dial(KVF_OK);
  assert_int_equal(handshakes(), 1);

  control_cut();
  world.producer.core.context.self.incarnation.bytes[0] ^= 1; /* another process */
  for (int ms = 0; ms < 5000 && handshakes() == 1; ms += 100) {
    control_advance(100);
    if (world.consumer.dial_wanted) {
      control_dial(KVF_OK);
    }
  }
  assert_int_equal(handshakes(), 2);
}

CONTROL_TEST(known_peers_go_with_the_memory)
{
  open_known(false);
  control_dial(KVF_OK);
  control_dial(KVF_OK);
  kvf_peer *peer = acquire();
  assert_true(kvf_core_clear_memory(&world.consumer.core, world.now_ns));
  assert_int_equal(peer->users, 1);
}

CONTROL_TEST(known_peers_are_bounded)
{
  open_known(false);
  for (int i = 1; i < KVF_KNOWN_PEERS_MAX; i++) {
    assert_int_equal(kvf_core_add_known(&world.consumer.core, "p:80", &ticket.rank[0].address), KVF_OK);
  }
  assert_int_equal(kvf_core_add_known(&world.consumer.core, "p:80", &ticket.rank[0].address), KVF_LIMIT);
}
