/* A consumer's peers: handshakes, links, breakers, addresses, and how they are described; through loads and requests.
 */
#include "base/status.h"
#include "scene.h"

#define HELD "hold=dials,links,reads "
#define OPENING          \
  "load 1 A > dial P0\n" \
  "accept P0 > open 1 P0 local\n"
#define READING OPENING "link 1 ok > read 1 of P0 over 1: small 0,1,2,3\n"

/* ---- the handshake and the best link ---- */

SCENE(shakes_hands_and_opens_the_best_link, HELD "key=a-key-of-sixteen published",
      READING "peers > P0 x1 +control +local -tcp\n")

SCENE(refused_dial_opens_the_breaker_and_a_probe_closes_it, HELD,
      "load 1 A > dial P0\n"
      "refuse P0 > load 1: peer_down 0/4; load 1 released\n"
      "load 2 A > load 2: peer_down 0/4; load 2 released\n" /* is not dialed for */
      "peers > P0 x0 -control(open peer_down) -local -tcp\n"
      "load 3 A > load 3: peer_down 0/4; load 3 released\n"
      "stats D peer_dials breaker_refusals > 1; 2\n"
      "+499\n"
      "+2 > dial P0\n" /* the probe, with nobody waiting */
      "accept P0\n"
      "peers > P0 x0 +control -local -tcp\n")

/* The probes end with the peer's use. What they found then says nothing of it much later. */
SCENE(unused_breaker_does_not_fail_a_new_load, HELD,
      "down P0\n"
      "load 1 A > dial P0\n"
      "refuse P0 > load 1: peer_down 0/4; load 1 released\n"
      "+501 > dial P0\n"
      "refuse P0\n"
      "+400000\n"
      "stats D peers_known > 1\n"
      "load 2 A > dial P0\n"
      "accept P0 > open 1 P0 local\n"
      "peers > P0 x1 +control -local -tcp\n")

/* Whoever waits goes on waiting; then it fails at once, for the same reason. A probe is one try. */
SCENE(silent_handshake_times_out_twice, HELD,
      "hold P0\n"
      "load 1 A > dial P0\n"
      "accept P0\n"
      "+999\n"
      "+2 > dial P0; D hangs up on P0\n"
      "log D > debug: peer [::1]:80: no handshake in time: connecting again\n"
      "peers > P0 x1 -control -local -tcp\n"
      "accept P0\n"
      "+999\n"
      "+2 > D hangs up on P0; load 1: handshake_timeout 0/4; load 1 released\n"
      "peers > P0 x0 -control(open handshake_timeout) -local -tcp\n"
      "stats D peer_failures > 2\n"
      "load 2 A > load 2: handshake_timeout 0/4; load 2 released\n"
      "load 3 A > load 3: handshake_timeout 0/4; load 3 released\n"
      "+501 > dial P0\n"
      "stats D peer_dials > 3\n")

/* And what comes later has two tries again. */
SCENE(second_try_is_answered, HELD,
      "hold P0\n"
      "load 1 A > dial P0\n"
      "accept P0\n"
      "+1001 > dial P0; D hangs up on P0\n"
      "let P0\n"
      "accept P0 > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: small 0,1,2,3\n"
      "hold P0\n"
      "cut P0 > close 1\n"
      "done 1 peer_down\n"
      "+20 > dial P0\n"
      "accept P0\n"
      "+1001 > dial P0; D hangs up on P0\n"
      "peers > P0 x1 -control -local -tcp\n")

SCENE(wrong_key_is_refused_by_both, HELD "d.key=a-key-of-sixteen p.key=another-key-here",
      "load 1 A > dial P0\n"
      "accept P0 > P0 hangs up on D; load 1: handshake_refused 0/4; load 1 released\n"
      "log D > debug: peer [::1]:80: handshake_refused: the two nodes do not have the same key (option key_file)\n"
      "stats P0 sessions_refused.handshake_refused sessions_open > 1; 0\n"
      "peers > P0 x0 -control -local -tcp\n")

/* A ticket can be for another model only by mistake. */
static void pretend_compatible(const char *options)
{
  cluster_open(options);
  cluster_node *d = &c.d;
  kvf_ticket *own = &c.tickets[0];
  const kvf_rank_record record = kvf_core_record(d->core, &c.p[0].address, &(kvf_address){.port = 0});
  kvf_ticket of_d;
  const kvf_blocks blocks = {.ids = own->ids, .counts = own->counts, .groups = 1};
  assert_int_equal(kvf_core_set_ranks(d->core, &record, 1), KVF_OK);
  assert_int_equal(kvf_core_ticket(d->core, &own->lease, &blocks, &own->prompt, &of_d), KVF_OK);
  memcpy(own->compat, of_d.compat, sizeof(own->compat));
}

/* Anybody on the way could have said or caused that: the next load asks again. */
CLUSTER_TEST(other_model_is_refused_and_named)
{
  pretend_compatible(HELD "p.model=x");
  scene(
      "load 1 A > dial P0\n"
      "accept P0 > P0 hangs up on D; load 1: incompatible 0/4; load 1 released\n"
      "log D > debug: peer [::1]:80: incompatible: model differs: producer has \"x\", consumer has \"m\"\n"
      "stats P0 sessions_refused.incompatible > 1\n"
      "peers > P0 x0 -control -local -tcp\n"
      "load 2 A > dial P0\n");
}

static void to_consumer(kvf_frame_type type, const void *body, size_t bytes)
{
  kvf_core_on_frame(c.d.core, c.now_ns, c.wires[0].consumer_id, type, body, bytes);
  cluster_settle();
}

/* P8: who has not proved the key may refuse us, but is not believed for ever. */
CLUSTER_TEST(refusal_without_proof_is_not_final)
{
  const kvf_refused refused = {.status = KVF_INCOMPATIBLE, .message = "x"};
  uint8_t body[KVF_REFUSED_BYTES_MAX];
  size_t bytes = 0;
  cluster_open(HELD);
  scene(
      "hold P0\n"
      "load 1 A > dial P0\n"
      "accept P0\n");
  assert_int_equal(kvf_refused_encode(&refused, body, sizeof(body), &bytes), KVF_OK);
  to_consumer(KVF_FRAME_REFUSED, body, bytes);
  scene("load 2 A > D hangs up on P0; load 1: incompatible 0/4; load 1 released; dial P0\n");
}

/* P8: each state of the handshake takes its own message and no other. */
CLUSTER_TEST(frames_out_of_place_end_the_connection)
{
  static const char *const states[] = {"hold P0\nload 1 A > dial P0\naccept P0\n",
                                       "hold P0\nload 1 A > dial P0\naccept P0\nhold D\nlet P0\n",
                                       "load 1 A > dial P0\naccept P0 > open 1 P0 local\n"};
  static const struct {
    uint32_t state;
    kvf_frame_type type;
  } rows[] = {{0, KVF_FRAME_WELCOME},   {0, KVF_FRAME_PONG},   {0, KVF_FRAME_LEASE_STATES},
              {1, KVF_FRAME_CHALLENGE}, {1, KVF_FRAME_PONG},   {1, KVF_FRAME_LEASE_STATES},
              {2, KVF_FRAME_CHALLENGE}, {2, KVF_FRAME_WELCOME}};
  const uint8_t body[8] = {0};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    cluster_open(HELD);
    scene(states[rows[i].state]);
    to_consumer(rows[i].type, body, sizeof(body));
    assert_non_null(strstr(cluster_log(&c.d, "peer"), "protocol: an unexpected message"));
    assert_non_null(strstr(cluster_said(), "load 1: protocol 0/4"));
  }
}

CLUSTER_TEST(nobody_is_called_nothing)
{
  const kvf_challenge challenge = {.version = KVF_PROTOCOL_VERSION};
  uint8_t body[KVF_CHALLENGE_BYTES_MAX];
  size_t bytes = 0;
  cluster_open(HELD);
  scene(
      "hold P0\n"
      "know P0 > dial P0\n"
      "accept P0\n");
  assert_int_equal(kvf_challenge_encode(&challenge, body, sizeof(body), &bytes), KVF_OK);
  to_consumer(KVF_FRAME_CHALLENGE, body, bytes);
  scene("log D > D hangs up on P0; peer [::1]:80: protocol: malformed challenge\n");
}

/* ---- memory ---- */

/* A consumer that was faster than the producer's registration must not go on believing that there is no memory. */
SCENE(registration_is_heard_by_those_who_came_before, HELD "nomemory",
      "load 1 A > dial P0\n"
      "accept P0 > load 1: transfer_setup 0/4; load 1 released\n"
      "memory P0 > P0 hangs up on D\n"
      "load 2 A > dial P0\n"
      "accept P0 > open 1 P0 local\n")

/* Nor one that has not heard of it: who wants a link asks again, once. */
SCENE(who_has_had_no_memory_is_asked_again, HELD "nomemory",
      "load 1 A > dial P0\n"
      "accept P0 > load 1: transfer_setup 0/4; load 1 released\n"
      "load 2 A > dial P0; D hangs up on P0\n"
      "accept P0 > load 2: transfer_setup 0/4; load 2 released\n"
      "load 3 A > dial P0; D hangs up on P0\n"
      "accept P0 > load 3: transfer_setup 0/4; load 3 released\n")

/* The producer's end of the session is not heard; the link that was opening is found to be for memory that has gone,
 * twice, and nobody has failed. */
SCENE(other_memory_takes_another_session, HELD "published offers=local",
      OPENING
      "hold P0\n"
      "move P0 > P0 ends A: revoked\n"
      "link 1 again > dial P0; close 1; D hangs up on P0\n"
      "link 1 again\n"
      "let P0\n"
      "accept P0 > open 2 P0 local\n"
      "stats D peer_failures > 0\n")

/* The read of a link that was up finds it. */
SCENE(other_memory_is_found_by_a_read, HELD "published offers=local",
      READING
      "hold P0\n"
      "move P0 > P0 ends A: revoked\n"
      "done 1 again > close 1; D hangs up on P0\n"
      "+20 > dial P0\n"
      "let P0\n"
      "accept P0 > open 2 P0 local\n"
      "stats D peer_failures > 0\n")

/* Else the two would dial each other without end. */
SCENE(memory_that_has_gone_does_not_come_back, HELD "published offers=local",
      OPENING
      "link 1 again > dial P0; close 1; D hangs up on P0\n"
      "accept P0 > D hangs up on P0; load 1: protocol 0/4; load 1 released\n"
      "peers > P0 x0 -control(open protocol) -local -tcp\n")

/* What could not be with the memory before, its own or ours, may be with this one. */
SCENE(other_memory_is_tried_again, HELD "offers=local",
      OPENING
      "link 1 incompatible > close 1; load 1: incompatible 0/4; load 1 released\n"
      "load 2 A > load 2: incompatible 0/4; load 2 released\n"
      "move P0 > P0 hangs up on D\n"
      "load 3 A > dial P0\n"
      "accept P0 > open 2 P0 local\n"
      "link 2 transfer_setup > close 2; load 3: transfer_setup 0/4; load 3 released\n"
      "move P0 > P0 hangs up on D\n"
      "load 4 A > dial P0\n"
      "accept P0 > open 3 P0 local\n"
      "link 3 incompatible > close 3; load 4: incompatible 0/4; load 4 released\n"
      "move D\n"
      "load 5 A > open 4 P0 local\n")

/* Nobody wants it any more, and the peer is there. */
SCENE(links_go_with_our_own_memory, HELD "offers=local",
      OPENING
      "clear D > not yet; load 1: aborted 0/4; load 1 released\n"
      "clear D > close 1\n"
      "peers > P0 x0 +control -local -tcp\n"
      "memory D\n"
      "load 2 A > open 2 P0 local\n"
      "link 2 ok > read 1 of P0 over 2: small 0,1,2,3\n"
      "clear D > not yet; cancel 1; load 2: aborted 0/4; load 2 released\n"
      "clear D > close 2\n"
      "peers > P0 x0 +control -local -tcp\n")

/* ---- who answers ---- */

SCENE(other_incarnation_is_a_restart, HELD,
      "alter A incarnation\n"
      "load 1 A > dial P0\n"
      "accept P0 > D hangs up on P0; load 1: peer_restarted 0/4; load 1 released\n"
      "peers > P0 x0 -control -local -tcp peer_restarted\n"
      "load 2 A > load 2: peer_restarted 0/4; load 2 released\n" /* it will not come back */)

/* What another dial to its address has shown, it need not find out by one of its own: but a process that was named only
 * after that dial began may have been started since. A is of the process that was there before, B of the one that is, C
 * of one to come. */
SCENE(restart_is_known_of_all_who_were_there_before, "control hold=dials",
      "ticket 4\n"
      "ticket 4\n"
      "alter A incarnation\n"
      "request 1 A > dial P0\n"
      "refuse P0\n"
      "request 2 B > dial P0\n"
      "alter C life\n"
      "request 3 C > dial P0\n"
      "accept P0\n"
      "peers > P0 x1 -control; P0 x1 +control; P0 x1 -control(open peer_down) peer_restarted\n")

/* ---- links ---- */

/* The next dial tells whether the peer has gone. */
SCENE(closed_connection_takes_its_links_down, HELD "published",
      READING
      "cut P0 > close 1\n"
      "peers > P0 x1 -control -local -tcp\n")

/* The producer offers nothing else. */
SCENE(unusable_transport_is_not_tried_again, HELD "offers=local",
      OPENING
      "link 1 incompatible > close 1; load 1: incompatible 0/4; load 1 released\n"
      "load 2 A > load 2: incompatible 0/4; load 2 released\n")

SCENE(chosen_transport_is_said_once_if_it_is_not_offered, HELD "offers=tcp",
      "load 1 A > dial P0\n"
      "accept P0 > open 1 P0 tcp\n"
      "link 1 ok > read 1 of P0 over 1: small 0,1,2,3\n"
      "log D > peer [::1]:80: loads go over tcp (local: not offered)\n"
      "load 2 A > read 2 of P0 over 1: small 0,1,2,3\n"
      "log D\n")

SCENE(chosen_transport_is_said_once_if_it_is_incompatible, HELD,
      OPENING
      "link 1 incompatible > close 1; open 2 P0 tcp\n"
      "link 2 ok > read 1 of P0 over 2: small 0,1,2,3\n"
      "log D > peer [::1]:80: loads go over tcp (local: incompatible)\n"
      "load 2 A > read 2 of P0 over 2: small 0,1,2,3\n"
      "+501 > ping P0\n"
      "load 3 A > read 3 of P0 over 2: small 0,1,2,3\n"
      "log D\n")

/* It is tried again. */
SCENE(chosen_transport_is_said_once_if_it_failed, HELD,
      OPENING
      "link 1 transfer_setup > close 1; open 2 P0 tcp\n"
      "link 2 ok > read 1 of P0 over 2: small 0,1,2,3\n"
      "log D > peer [::1]:80: loads go over tcp (local: transfer_setup)\n"
      "load 2 A > read 2 of P0 over 2: small 0,1,2,3\n"
      "log D\n"
      "+501 > ping P0\n"
      "load 3 A > open 3 P0 local\n"
      "link 3 ok > read 3 of P0 over 3: small 0,1,2,3\n"
      "log D > peer [::1]:80: loads go over local\n")

SCENE(other_transports_than_wanted_are_refused, HELD "transports=tcp offers=local",
      "load 1 A > dial P0\n"
      "accept P0 > load 1: transfer_setup 0/4; load 1 released\n"
      "log D > peer [::1]:80: loads go over no transport (tcp: not offered)\n")

SCENE(offered_first_is_not_wanted, HELD "transports=tcp",
      "load 1 A > dial P0\n"
      "accept P0 > open 1 P0 tcp\n"
      "link 1 ok > read 1 of P0 over 1: small 0,1,2,3\n"
      "log D > peer [::1]:80: loads go over tcp\n")

/* A session that ended while its data connections were made, a moment without memory: not for ever, and not at once. */
SCENE(passing_failure_of_a_transport_is_tried_again, HELD "offers=local",
      OPENING
      "link 1 handshake_refused > close 1; load 1: transfer_setup 0/4; load 1 released\n"
      "load 2 A > load 2: transfer_setup 0/4; load 2 released\n"
      "+501\n"
      "load 3 A > open 2 P0 local\n"
      "link 2 no_memory > close 2; load 3: transfer_setup 0/4; load 3 released\n"
      "load 4 A > load 4: transfer_setup 0/4; load 4 released\n")

/* A transport may be stuck in the peer's memory: the next one is tried, and nothing waits for the first. */
SCENE(transport_that_does_not_answer_is_given_up, HELD,
      OPENING
      "+999\n"
      "+2 > close 1; open 2 P0 tcp; ping P0\n"
      "link 1 ok\n" /* too late */
      "link 2 ok > read 1 of P0 over 2: small 0,1,2,3\n"
      "log D > peer [::1]:80: loads go over tcp (local: handshake_timeout)\n"
      "load 2 A > read 2 of P0 over 2: small 0,1,2,3\n" /* not tried again at once */)

/* Where there is no other, it is tried again first; then whoever waited has heard. */
SCENE(only_transport_does_not_answer, HELD "offers=local",
      OPENING
      "+1001 > close 1; open 2 P0 local; ping P0\n"
      "peers > P0 x1 +control -local -tcp\n"
      "+1001 > close 2; ping P0; load 1: handshake_timeout 0/4; load 1 released\n"
      "peers > P0 x0 +control -local(open handshake_timeout) -tcp\n"
      "load 2 A > load 2: handshake_timeout 0/4; load 2 released\n")

/* The bytes were damaged on their way: a new session has others, and not at once. */
SCENE(malformed_offer_ends_the_session, HELD,
      OPENING
      "malformed 1 > close 1; D hangs up on P0; load 1: protocol 0/4; load 1 released\n"
      "load 2 A > load 2: protocol 0/4; load 2 released\n"
      "+501 > dial P0\n"
      "load 3 A\n"
      "accept P0 > open 2 P0 local\n")

/* Who waits after the cooldown is the probe. */
SCENE(stalled_link_has_a_breaker_of_its_own, HELD "published offers=local",
      READING
      "+501 > ping P0\n"
      "+500 > ping P0\n"
      "+500\n"
      "+500 > cancel 1; close 1\n"
      "peers > P0 x1 +control -local(open transfer_stalled) -tcp\n"
      "load 2 A > load 2: transfer_stalled 0/4; load 2 released\n"
      "+501 > open 2 P0 local\n"
      "load 3 A\n")

SCENE(news_of_what_is_decided_changes_nothing, HELD "published",
      OPENING
      "linkdown 1 peer_down\n" /* it is not up yet */
      "linkdown 2 peer_down\n"
      "link 2 peer_down\n"
      "malformed 2\n"
      "link 1 ok > read 1 of P0 over 1: small 0,1,2,3\n"
      "link 1 peer_down\n"
      "malformed 1\n"
      "peers > P0 x1 +control +local -tcp\n"
      "stats D peer_failures > 0\n")

/* ---- the table ---- */

SCENE(unused_peer_is_disconnected_and_makes_room, "published",
      "load 1 A > load 1: ok 4/4; load 1 released\n"
      "stats P0 sessions_open > 1\n"
      "+100000 x5 > P0 ends A: expired; close 1; D hangs up on P0\n"
      "stats P0 sessions_open > 0\n"
      "peers > P0 x0 -control -local -tcp\n")

/* A request that holds a peer of a port where nobody is. */
static kvf_status open_of(uint32_t i, uint64_t *id)
{
  kvf_ticket ticket = c.tickets[0];
  const kvf_sources sources = {.count = 1, .tickets = {&ticket}};
  ticket.rank[0].address.port = (uint16_t)(1000 + i);
  ticket.lease.token[15] = (uint8_t)i;
  ticket.lease.token[14] = (uint8_t)(i >> 8);
  return kvf_core_request_open(c.d.core, c.now_ns, &sources, &ticket.prompt, NULL, i, id, NULL);
}

/* Takes all places that are left; returns the last request. */
static uint64_t fill_table(void)
{
  uint64_t id = 0;
  for (uint32_t i = 0; cluster_stat(&c.d, "peers_known", "") < KVF_PEERS_MAX; i++) {
    assert_int_equal(open_of(i, &id), KVF_OK);
  }
  return id;
}

/* P6: what is in use, or has a link that the runtime still knows, keeps its place; what nobody uses gives it. Dials of
 * these peers are never taken. */
CLUSTER_TEST(table_is_bounded_and_unused_peers_make_room)
{
  uint64_t id = 0;
  cluster_open(HELD);
  scene(OPENING "abort 1 > load 1: aborted 0/4; load 1 released\n");
  const uint64_t last = fill_table();
  assert_int_equal(open_of(5000, &id), KVF_NO_RESOURCE);
  assert_int_equal(cluster_stat(&c.d, "peers_known", ""), KVF_PEERS_MAX);
  assert_int_equal(kvf_core_request_cancel(c.d.core, c.now_ns, last, KVF_FINISH_ABORTED), KVF_OK);
  c.now_ns += 60000 * MS; /* its lease must be over: nobody is told of its end */
  while (cluster_stat(&c.d, "acknowledgements_given_up", "") == 0) {
    kvf_core_tick(c.d.core, c.now_ns);
  }
  assert_int_equal(open_of(5000, &id), KVF_OK);
  assert_int_equal(open_of(5001, &id), KVF_NO_RESOURCE);
}

/* A load that the runtime has not heard of. */
static void start_unheard(void)
{
  const kvf_sources sources = cluster_sources("A");
  const kvf_load_params load = cluster_load_params(&c.tickets[0], 1);
  assert_int_equal(kvf_core_load_start(c.d.core, c.now_ns, &sources, &load, 0), KVF_OK);
}

/* A link that the runtime has not been told of goes with its peer, and is never opened. */
CLUSTER_TEST(wanted_link_does_not_keep_an_unused_peer)
{
  uint64_t id = 0;
  cluster_open(HELD "published");
  scene(
      "request 1 A > dial P0\n"
      "accept P0\n"
      "cancel 1 > P0 ends A: abandoned\n"
      "stats P0 sessions_open > 1\n");
  start_unheard();
  assert_int_equal(kvf_core_load_abort(c.d.core, c.now_ns, 1), KVF_OK);
  for (int i = 0; i < 2; i++) {
    assert_true(kvf_core_next_event(c.d.core, c.now_ns, &c.event));
  }
  (void)fill_table();
  assert_int_equal(open_of(5000, &id), KVF_OK);
  scene(
      "stats P0 sessions_open > 1; D hangs up on P0\n"
      "+1\n"
      "stats P0 sessions_open > 0\n");
}

/* And where its peer stays: what was never opened is not closed either. */
CLUSTER_TEST(wanted_link_goes_with_its_connection)
{
  cluster_open(HELD "published");
  scene(
      "request 1 A > dial P0\n"
      "accept P0\n");
  start_unheard();
  scene(
      "cut P0 > dial P0\n"
      "accept P0 > open 2 P0 local\n");
}

/* ---- two addresses ---- */

/* P2: at once, and within the time of one dial. */
SCENE(where_it_cannot_be_connected_to_the_other_address_is_dialed, HELD "two",
      "load 1 A > dial P0\n"
      "refuse P0 > dial P0 at v4\n"
      "stats D peer_failures > 0\n"
      "accept P0 > open 1 P0 at v4 local\n"
      "peers > 127.0.0.1:180 x1 +control -local -tcp\n")

SCENE(a_peer_that_is_at_neither_address_is_down, HELD "two",
      "load 1 A > dial P0\n"
      "refuse P0 > dial P0 at v4\n"
      "refuse P0 > load 1: peer_down 0/4; load 1 released\n"
      "stats D peer_failures > 1\n")

/* Where packets are lost on one of the two ways. */
SCENE(the_second_try_goes_to_the_other_address, HELD "two",
      "load 1 A > dial P0\n"
      "+1001 > dial P0 at v4\n"
      "accept P0 > open 1 P0 at v4 local\n")

/* Nobody can be connected to at the one, and the other has not answered in time: that is asked twice. */
SCENE(the_second_try_does_not_go_where_nobody_is, HELD "two",
      "load 1 A > dial P0\n"
      "refuse P0 > dial P0 at v4\n"
      "+1001 > dial P0 at v4\n"
      "refuse P0 > load 1: peer_down 0/4; load 1 released\n")

/* A probe, which has one try, is of each in turn; and it is dialed first where it was reached last. */
SCENE(probes_take_turns_at_the_addresses, "control two hold=dials",
      "request 1 A > dial P0\n"
      "+1001 > dial P0 at v4\n"
      "+1001\n"
      "+600 > dial P0\n"
      "+1001\n"
      "+1500 > dial P0 at v4\n"
      "accept P0\n"
      "cut P0\n"
      "+20000 > dial P0 at v4\n")

/* Also by a ticket that names the addresses the other way round; C is of another process. */
SCENE(a_peer_of_two_addresses_is_one_peer, "control two hold=dials",
      "ticket 4\n"
      "ticket 4\n"
      "alter B round\n"
      "alter C round\n"
      "alter C incarnation\n"
      "request 1 A > dial P0\n"
      "request 2 B\n"
      "peers > P0 x2 -control\n"
      "request 3 C > dial P0 at v4\n"
      "peers > 127.0.0.1:180 x1 -control; P0 x2 -control\n")

SCENE(a_static_peer_s_other_address_is_learnt, "control two hold=dials",
      "know P0 > dial P0\n"
      "accept P0 > dial P0; D hangs up on P0\n"
      "accept P0\n"
      "request 1 A\n"
      "peers > P0 x2 +control; P0 x0 -control\n"
      "cut P0\n"
      "+10000 > dial P0\n"
      "refuse P0 > dial P0 at v4\n")

/* Who was reached at a loopback address is of this host. */
SCENE(a_loopback_address_is_explained_where_nobody_was_reached, HELD "two",
      "load 1 A > dial P0\n"
      "refuse P0 > dial P0 at v4\n"
      "refuse P0 > load 1: peer_down 0/4; load 1 released\n"
      "log D peer > debug: peer 127.0.0.1:180: peer_down: cannot connect; a loopback address is of this host alone: a "
      "producer on another one needs a key (option key_file or KVFERRY_KEY_FILE), or an address in listen\n"
      "+501 > dial P0\n"
      "accept P0\n"
      "cut P0\n"
      "load 2 A > dial P0\n"
      "refuse P0 > dial P0 at v4\n"
      "refuse P0 > load 2: peer_down 0/4; load 2 released\n"
      "log D peer > debug: peer 127.0.0.1:180: peer_down: cannot connect\n")

/* Of an engine's nodes it is the control node, which has the requests, that says it at a level that is shown. */
SCENE(who_has_requests_says_that_a_peer_is_down, HELD "two",
      "request 1 A > dial P0\n"
      "load 1 A\n"
      "refuse P0 > dial P0 at v4\n"
      "refuse P0 > load 1: peer_down 0/4; load 1 released\n"
      "log D peer > peer 127.0.0.1:180: peer_down: cannot connect; a loopback address is of this host alone: a "
      "producer on another one needs a key (option key_file or KVFERRY_KEY_FILE), or an address in listen\n")

/* It is told without a dial of its own, by whichever address another process answers. */
SCENE(who_answers_at_the_other_address_ends_it_too, "control two key=a-key-of-sixteen hold=dials",
      "ticket 4\n"
      "alter B address\n"
      "alter B incarnation\n"
      "request 2 B\n"
      "+1001 > dial P0 at v4\n"
      "refuse P0\n"
      "request 1 A > dial P0\n"
      "refuse P0 > dial P0 at v4\n"
      "accept P0\n"
      "peers > 127.0.0.1:180 x1 +control; 127.0.0.1:180 x1 -control(open peer_down) peer_restarted\n")

/* 0 is a moment like any other, and not "nothing is awaited". */
SCENE(silence_is_noticed_from_time_zero_on, "control start_ms=0 published",
      "request 1 A\n"
      "hold P0\n"
      "cancel 1 > P0 ends A: abandoned\n"
      "+1001 > D hangs up on P0\n"
      "log D > peer [::1]:80: peer_down: does not answer\n")

/* ---- peers that the node dials on its own ---- */

/* Who answers there? Then it is dialed by its name, and at the first load its link is up. */
SCENE(static_peer_is_ready_before_anybody_asks, HELD "published",
      "know P0 > dial P0\n"
      "accept P0 > dial P0; D hangs up on P0\n"
      "stats D peer_handshakes > 0\n"
      "accept P0 > open 1 P0 local\n"
      "link 1 ok\n"
      "load 1 A > read 1 of P0 over 1: small 0,1,2,3\n"
      "peers > P0 x2 +control +local -tcp; P0 x0 -control -local -tcp\n"
      "stats D peer_handshakes > 1\n")

/* Nobody waits for it, and it would be said each time. */
SCENE(static_peer_that_offers_no_usable_link_is_left_in_peace, HELD "offers=local",
      "know P0 > dial P0\n"
      "accept P0 > dial P0; D hangs up on P0\n"
      "accept P0 > open 1 P0 local\n"
      "link 1 incompatible > close 1\n"
      "log D > peer [::1]:80: loads go over no transport (local: incompatible, tcp: not offered)\n"
      "+3000 > ping P0\n"
      "log D\n")

SCENE(control_node_opens_no_link_to_a_static_peer, "control hold=dials,links",
      "know P0 > dial P0\n"
      "accept P0 > dial P0; D hangs up on P0\n"
      "accept P0\n"
      "stats D peer_handshakes > 1\n")

SCENE(static_peer_is_dialed_until_it_is_there_and_after_each_restart, HELD,
      "know P0 > dial P0\n"
      "refuse P0\n"
      "+1100 > dial P0\n"
      "refuse P0\n"
      "+2000 > dial P0\n"
      "accept P0 > dial P0; D hangs up on P0\n"
      "accept P0 > open 1 P0 local\n"
      "stats D peer_handshakes > 1\n"
      "restart P0 > dial P0; close 1\n"
      "accept P0 > D hangs up on P0\n"
      "+1000 > dial P0\n"
      "accept P0 > dial P0; D hangs up on P0\n"
      "accept P0 > open 2 P0 local\n"
      "stats D peer_handshakes > 2\n")

SCENE(static_peers_go_with_the_memory, HELD "published",
      "know P0 > dial P0\n"
      "accept P0 > dial P0; D hangs up on P0\n"
      "accept P0 > open 1 P0 local\n"
      "load 1 A\n"
      "peers > P0 x2 +control -local -tcp; P0 x0 -control -local -tcp\n"
      "abort 1 > load 1: aborted 0/4; load 1 released\n"
      "clear D > close 1\n"
      "peers > P0 x0 +control -local -tcp; P0 x0 -control -local -tcp\n")

CLUSTER_TEST(static_peers_are_bounded)
{
  cluster_open("");
  for (int i = 0; i < KVF_STATIC_PEERS_MAX; i++) {
    assert_int_equal(kvf_core_add_static(c.d.core, "p:80", &c.p[0].address), KVF_OK);
  }
  assert_int_equal(kvf_core_add_static(c.d.core, "p:80", &c.p[0].address), KVF_LIMIT);
}

/* ---- what is said of them ---- */

static kvf_peer_stat listed[KVF_PEERS_LISTED_MAX + 1];

static size_t list(void)
{
  memset(listed, 0xee, sizeof(listed));
  return kvf_core_peers(c.d.core, c.now_ns, listed, KVF_PEERS_LISTED_MAX + 1);
}

static uint64_t loads_with(uint32_t i, kvf_status status)
{
  return listed[i].loads[kvf_status_index(status)];
}

CLUSTER_TEST(a_load_shows_at_its_peer)
{
  cluster_open("published hold=reads single");
  assert_int_equal(list(), 0);
  scene("load 1 A > read 1 of P0: 0 | 1 | 2 | 3\n");
  assert_int_equal(list(), 1);
  assert_int_equal(listed[0].handshakes, 1);
  assert_int_equal(listed[0].reads_in_flight, 4);
  assert_int_equal(listed[0].blocks, 0);
  scene(
      "peers > P0 x1 +control +local -tcp\n"
      "done P0 4 ok > load 1: ok 4/4; load 1 released\n"
      "+20\n"
      "peers > P0 x0 +control +local -tcp\n");
  assert_int_equal(list(), 1);
  assert_int_equal(listed[0].idle_ms, 20);
  assert_int_equal(listed[0].reads_in_flight, 0);
  assert_int_equal(listed[0].chunks, 4);
  assert_int_equal(listed[0].blocks, 4);
  assert_int_equal(loads_with(0, KVF_OK), 1);
  assert_int_equal(listed[0].connection_failures, 0);
  assert_int_equal(listed[0].last_failure, KVF_OK);
}

/* Of two peers only the one that failed is blamed; it is the latest, and so the first. */
CLUSTER_TEST(a_failure_shows_where_it_happened)
{
  cluster_open("ranks=2 heads=4 published hold=reads");
  scene(
      "load 1 A > read 1 of P0: 0,1,2,3; read 2 of P1: 0,1,2,3\n"
      "done 1 ok\n"
      "done 2 lease_unknown > load 1: lease_unknown 0/4; load 1 released\n"
      "+30\n"
      "peers > P1 x0 +control +local -tcp; P0 x0 +control +local -tcp\n");
  assert_int_equal(list(), 2);
  const uint32_t failed = loads_with(0, KVF_LEASE_UNKNOWN) == 1 ? 0 : 1;
  assert_int_equal(loads_with(failed, KVF_LEASE_UNKNOWN), 1);
  assert_non_null(strstr(listed[failed].address, ":81"));
  assert_int_equal(listed[failed].last_failure, KVF_LEASE_UNKNOWN);
  assert_int_equal(listed[failed].last_failure_age_ms, 30);
  assert_int_equal(loads_with(1 - failed, KVF_LEASE_UNKNOWN), 0);
  assert_int_equal(listed[1 - failed].last_failure, KVF_OK);
  assert_int_not_equal(listed[0].id, listed[1].id);
}

CLUSTER_TEST(the_deadline_blames_who_was_waited_for)
{
  cluster_open("ranks=2 heads=4 published hold=reads load_timeout_ms=400");
  scene(
      "load 1 A > read 1 of P0: 0,1,2,3; read 2 of P1: 0,1,2,3\n"
      "done 1 ok\n"
      "+401 > cancel 2; load 1: deadline 0/4; load 1 released\n");
  assert_int_equal(list(), 2);
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(loads_with(i, KVF_DEADLINE), strstr(listed[i].address, ":81") != NULL);
  }
}

/* The client that hangs up says nothing of the peer. */
CLUSTER_TEST(an_abort_is_no_failure)
{
  kvf_histogram histograms[3];
  cluster_open("published hold=reads");
  scene(
      "load 1 A > read 1 of P0: small 0,1,2,3\n"
      "abort 1 > cancel 1; load 1: aborted 0/4; load 1 released\n");
  assert_int_equal(list(), 1);
  assert_int_equal(loads_with(0, KVF_ABORTED), 1);
  assert_int_equal(listed[0].last_failure, KVF_OK);
  assert_int_equal(kvf_core_histograms(c.d.core, histograms, 3), 3);
  assert_int_equal(histograms[2].sums[0], 0); /* detection_ns */
}

CLUSTER_TEST(a_breaker_shows)
{
  cluster_open("published");
  scene(
      "down P0\n"
      "load 1 A > load 1: peer_down 0/4; load 1 released\n"
      "peers > P0 x0 -control(open peer_down) -local -tcp\n");
  assert_int_equal(list(), 1);
  assert_int_equal(listed[0].connection_failures, 1);
  assert_int_equal(loads_with(0, KVF_PEER_DOWN), 1);
  scene(
      "up P0\n"
      "+600\n"
      "peers > P0 x0 +control -local -tcp\n");
  assert_int_equal(list(), 1);
  assert_int_equal(listed[0].last_failure, KVF_PEER_DOWN);
}

CLUSTER_TEST(the_list_is_bounded_and_begins_with_the_latest)
{
  uint64_t id = 0;
  cluster_open("control hold=dials");
  for (uint32_t i = 1; i <= KVF_PEERS_LISTED_MAX + 5; i++) {
    assert_int_equal(open_of(i, &id), KVF_OK);
  }
  assert_int_equal(list(), KVF_PEERS_LISTED_MAX);
  assert_non_null(strstr(listed[0].address, ":1069"));
  assert_int_equal(kvf_core_peers(c.d.core, c.now_ns, listed, 3), 3);
  assert_non_null(strstr(listed[2].address, ":1067"));
}

SCENE(a_peer_that_goes_unused_is_listed_no_more, "control idle_timeout_ms=2000 published",
      "request 1 A\n"
      "cancel 1 > P0 ends A: abandoned\n"
      "stats D requests_open > 0\n"
      "peers > P0 x0 +control\n"
      "+1999\n"
      "peers > P0 x0 +control\n"
      "+1\n"
      "peers\n")
