/* Who hears what: connections to sessions and peers, peers to loads and requests, and all of them to the runtime. */
#include "scene.h"

#define HELD "hold=dials,links,reads "
#define OPENING          \
  "load 1 A > dial P0\n" \
  "accept P0 > open 1 P0 local\n"

/* A node that does not listen is a control node until it has memory: its peers have not told it of theirs. */
CLUSTER_TEST(a_control_node_that_gets_memory_asks_again)
{
  cluster_open("control hold=dials,links,reads");
  scene(
      "request 1 A > dial P0\n"
      "hold P0\n"
      "accept P0\n" /* as a control node; there is no answer yet */
      "memory D\n");
  kvf_core_start(c.d.core, c.now_ns);
  scene(
      "load 1 A > dial P0; D hangs up on P0\n"
      "let P0\n"
      "accept P0 > open 1 P0 local\n");
}

/* ---- connections ---- */

static kvf_core *producer(void)
{
  return c.p[0].core;
}

/* Late news of what is gone already. */
CLUSTER_TEST(unknown_connections_are_ignored)
{
  const uint8_t body[4] = {0};
  cluster_open("");
  kvf_core_on_dialed(producer(), c.now_ns, 99, KVF_OK);
  kvf_core_on_frame(producer(), c.now_ns, 99, KVF_FRAME_PING, body, sizeof(body));
  kvf_core_on_malformed(producer(), c.now_ns, 99);
  kvf_core_on_insecure(producer(), c.now_ns, 99, "without a key");
  kvf_core_on_closed(producer(), c.now_ns, 99);
  assert_int_equal(kvf_core_frame_limit(producer(), 99), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  assert_false(kvf_core_has_output(producer()));
}

/* P8: neither side takes long frames from who has not proved the key. */
CLUSTER_TEST(frames_are_short_until_the_key_is_proved)
{
  cluster_open(HELD);
  for (uint32_t proved = 0; proved < 2; proved++) {
    const size_t most = proved == 1 ? KVF_FRAME_BODY_BYTES_MAX : KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX;
    scene(proved == 1 ? "let P0 > open 1 P0 local\n" : "hold P0\nload 1 A > dial P0\naccept P0\n");
    assert_int_equal(kvf_core_frame_limit(producer(), c.wires[0].producer_id), most);
    assert_int_equal(kvf_core_frame_limit(c.d.core, c.wires[0].consumer_id), most);
  }
}

/* What waits behind the frame that ended a connection may not be long either. */
CLUSTER_TEST(frames_are_short_after_hanging_up)
{
  cluster_open("");
  const uint64_t conn_id = cluster_accept(&c.p[0], 0);
  kvf_core_on_frame(producer(), c.now_ns, conn_id, KVF_FRAME_PING, NULL, 0);
  assert_int_equal(kvf_core_frame_limit(producer(), conn_id), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  kvf_core_on_frame(producer(), c.now_ns, conn_id, KVF_FRAME_PING, NULL, 0);
  kvf_core_on_malformed(producer(), c.now_ns, conn_id);
  scene("stats P0 sessions_refused.protocol > 1\n");
}

/* The last frame says why. The socket's own end comes late. */
CLUSTER_TEST(output_is_taken_once)
{
  cluster_open("");
  const uint64_t conn_id = cluster_accept(&c.p[0], 0);
  assert_false(kvf_core_has_output(producer()));
  kvf_core_on_malformed(producer(), c.now_ns, conn_id);
  assert_true(kvf_core_has_output(producer()));
  assert_int_equal(cluster_hang_ups(&c.p[0]), 1);
  assert_int_equal(c.stray.last.type, KVF_FRAME_REFUSED);
  assert_false(kvf_core_has_conn(producer(), conn_id));
  assert_false(kvf_core_has_output(producer()));
  assert_int_equal(cluster_hang_ups(&c.p[0]), 0);
  assert_int_equal(c.stray.frames, 1);
  kvf_core_on_closed(producer(), c.now_ns, conn_id);
}

/* One that had not proved itself, and one that had. */
CLUSTER_TEST(closed_connections_end_their_session)
{
  cluster_open(HELD);
  const uint64_t conn_id = cluster_accept(&c.p[0], 0);
  kvf_core_on_closed(producer(), c.now_ns, conn_id);
  assert_false(kvf_core_has_conn(producer(), conn_id));
  assert_false(kvf_core_has_output(producer()));
  scene(
      "stats P0 sessions_abandoned > 1\n"
      "log P0 > closed a connection from [::]:7: peer_down: it closed the connection before the end of its "
      "handshake\n" OPENING
      "stats P0 sessions_open > 1\n"
      "cut P0 > dial P0; close 1\n"
      "stats P0 sessions_open sessions_abandoned > 0; 1\n");
}

SCENE(malformed_frames_end_the_session, HELD,
      OPENING
      "garble P0 P0 > P0 hangs up on D; close 1; load 1: protocol 0/4; load 1 released\n"
      "stats P0 sessions_open sessions_refused.protocol > 0; 1\n"
      "log D peer > peer [::1]:80: protocol: not a frame, or a larger one than is allowed before the handshake has "
      "ended\n")

SCENE(malformed_frames_end_the_peer_s_connection, HELD,
      OPENING
      "garble D P0 > close 1; D hangs up on P0; load 1: protocol 0/4; load 1 released\n"
      "log D peer > peer [::1]:80: protocol: malformed message\n"
      "stats D peer_failures > 1\n")

/* What is below the frames has found fault with the other side. */
SCENE(insecure_connections_end_either_side, HELD,
      OPENING
      "insecure P0 P0 > P0 hangs up on D; close 1; load 1: protocol 0/4; load 1 released\n"
      "stats P0 sessions_open sessions_refused.protocol > 0; 1\n"
      "log P0 > refused a connection from [::]:9: protocol: it has another key\n"
      "+501 > dial P0\n"
      "accept P0\n"
      "insecure D P0 > D hangs up on P0\n"
      "log D peer > peer [::1]:80: protocol: it has another key\n")

/* Before the handshake is over it lacks the key. */
SCENE(insecure_strangers_lack_the_key, HELD,
      "hold P0\n"
      "load 1 A > dial P0\n"
      "accept P0\n"
      "insecure P0 P0\n"
      "stats P0 sessions_refused.handshake_refused > 1\n"
      "log P0 > refused a connection from [::]:9: handshake_refused: it has another key\n"
      "insecure D P0 > D hangs up on P0; load 1: handshake_refused 0/4; load 1 released\n"
      "log D peer > debug: peer [::1]:80: handshake_refused: it has another key\n"
      "insecure D P0\n" /* hung up on already */
      "stats D peer_failures > 1\n"
      "let P0\n"
      "stats P0 sessions_abandoned > 0\n")

static void to_consumer(kvf_frame_type type, const void *body, size_t bytes)
{
  kvf_core_on_frame(c.d.core, c.now_ns, c.wires[0].consumer_id, type, body, bytes);
  cluster_settle();
}

CLUSTER_TEST(lease_states_go_to_the_requests)
{
  const uint8_t garbage[3] = {1, 2, 3};
  cluster_open("control hold=dials");
  scene(
      "request 1 A > dial P0\n"
      "accept P0\n");
  to_consumer(KVF_FRAME_LEASE_STATES, garbage, sizeof(garbage));
  scene(
      "stats D peer_failures > D hangs up on P0; 1\n"
      "log D peer > peer [::1]:80: protocol: malformed message\n");
}

/* ---- peers to loads and requests ---- */

/* A link that breaks takes its reads with it. They are asked for again over a new one; there is no third. */
SCENE(lost_link_is_opened_anew_once, HELD "published offers=local",
      OPENING
      "link 1 ok > read 1 of P0 over 1: small 0,1,2,3\n"
      "linkdown 1 peer_down > close 1\n"
      "done 1 peer_down\n"
      "+20 > open 2 P0 local\n"
      "link 2 ok > read 2 of P0 over 2: small 0,1,2,3\n"
      "linkdown 2 peer_down > close 2\n"
      "done 2 peer_down\n"
      "+40 > load 1: peer_down 0/4; load 1 released\n")

/* P2: what breaks under a read is read again over the other transport, and what had been confirmed is not. */
SCENE(another_transport_brings_the_rest, HELD "published single",
      OPENING
      "link 1 ok > read 1 of P0 over 1: 0 | 1 | 2 | 3\n"
      "done P0 2 ok\n"
      "linkdown 1 transfer_failed > close 1\n"
      "done P0 2 transfer_failed\n"
      "+20 > open 2 P0 local\n"
      "link 2 transfer_setup > close 2; open 3 P0 tcp\n"
      "link 3 ok > read 5 of P0 over 3: 2 | 3\n"
      "done P0 2 ok > load 1: ok 4/4; load 1 released\n"
      "holds A > 4\n"
      "stats D blocks_loaded > 4\n")

/* What there was to say is dropped until its next time. */
SCENE(open_and_failed_connections_are_heard_by_the_requests, "control published hold=dials",
      "request 1 A > dial P0\n"
      "refuse P0\n"
      "stats D renewals_sent > 0\n"
      "+501 > dial P0\n" /* the probe */
      "accept P0\n"
      "stats D renewals_sent > 0\n"
      "+5000\n"
      "stats D renewals_sent > 1\n"
      "stats P0 late_renewals > 0\n")
