/* A producer's sessions: strangers, handshakes, versions, keys, and those who only check. */
#include "scene.h"
#include "wire/lease_message.h"
#include "wire/ping_message.h"

static uint64_t accepted(void)
{
  return cluster_accept(&c.p[0], 0);
}

static void send(uint64_t conn_id, kvf_frame_type type, const void *body, size_t bytes)
{
  kvf_core_on_frame(c.p[0].core, c.now_ns, conn_id, type, body, bytes);
}

static bool is_there(uint64_t conn_id)
{
  (void)cluster_hang_ups(&c.p[0]); /* those that were hung up on go when that has been heard */
  return kvf_core_has_conn(c.p[0].core, conn_id);
}

static void assert_logged(const char *part)
{
  if (cluster_log(&c.p[0], part)[0] == 0) {
    fail_msg("not logged: %s; but: %s", part, cluster_log(&c.p[0], ""));
  }
}

static void set_up(void)
{
  cluster_open("connections_max=64");
}

#define STRANGERS_TEST(name) TEST_WITH(name, set_up, cluster_close)

/* The places for those who have not proved the key. */
#define UNPROVEN (64 / 4 + 1)

/* ---- strangers ---- */

STRANGERS_TEST(silent_connection_is_closed)
{
  (void)accepted();
  cluster_advance(999);
  assert_int_equal(c.stray.hang_ups, 0);
  cluster_advance(2);
  assert_int_equal(c.stray.hang_ups, 1);
  scene("stats P0 sessions_timed_out > 1\n");
}

STRANGERS_TEST(strangers_cannot_take_all_places)
{
  for (int i = 0; i < 1000; i++) {
    (void)accepted();
  }
  assert_int_equal(cluster_hang_ups(&c.p[0]), 1000 - UNPROVEN);
}

/* The one host takes all places, as it may, and comes again and again: others get one, and keep it. */
STRANGERS_TEST(strangers_of_one_host_keep_no_other_out)
{
  for (int i = 0; i < UNPROVEN; i++) {
    (void)cluster_accept(&c.p[0], 1);
  }
  assert_int_equal(cluster_hang_ups(&c.p[0]), 0);
  const uint64_t other = cluster_accept(&c.p[0], 2);
  const uint64_t another = cluster_accept(&c.p[0], 3);
  for (int i = 0; i < 100; i++) {
    (void)cluster_accept(&c.p[0], 1);
  }
  assert_int_equal(cluster_hang_ups(&c.p[0]), 102);
  assert_true(is_there(other));
  assert_true(is_there(another));
}

static uint64_t speaker(void)
{
  const uint64_t conn_id = accepted();
  kvf_core_on_heard(c.p[0].core, conn_id);
  return conn_id;
}

/* Nor those behind the same address, once these have said something; until those who speak are the most. */
STRANGERS_TEST(silent_strangers_do_not_keep_out_who_speaks)
{
  const uint64_t speaks = speaker();
  const uint64_t silent = accepted();
  for (int i = 0; i < 100; i++) {
    (void)accepted();
  }
  assert_true(is_there(speaks));
  assert_false(is_there(silent));
  for (int i = 0; i < 100; i++) {
    (void)speaker();
  }
  assert_false(is_there(speaks));
}

STRANGERS_TEST(those_who_were_reset_are_counted)
{
  kvf_core_on_reset(c.p[0].core, c.now_ns, &(kvf_address){.port = 7});
  scene(
      "stats P0 sessions_accepted sessions_abandoned > 1; 1\n"
      "log P0 > closed a connection from [::]:7: peer_down: it closed the connection before the end of its "
      "handshake\n");
}

STRANGERS_TEST(anything_but_a_hello_is_refused)
{
  static const kvf_frame_type types[] = {KVF_FRAME_CHALLENGE, KVF_FRAME_PROOF, KVF_FRAME_WELCOME,
                                         KVF_FRAME_LEASES,    KVF_FRAME_PING,  KVF_FRAME_LEASE_STATES,
                                         KVF_FRAME_FIND,      KVF_FRAME_FOUND, KVF_FRAME_HELLO};
  for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
    const uint8_t garbage[40] = {1, 2, 3};
    send(accepted(), types[i], garbage, sizeof(garbage));
    assert_int_equal(cluster_hang_ups(&c.p[0]), 1);
    assert_int_equal(cluster_stat(&c.p[0], "sessions_refused", "protocol"), i + 1);
  }
}

STRANGERS_TEST(untrusted_frames_have_a_small_limit)
{
  const uint64_t conn_id = accepted();
  assert_int_equal(kvf_core_frame_limit(c.p[0].core, conn_id), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  kvf_core_on_malformed(c.p[0].core, c.now_ns, conn_id);
  assert_int_equal(cluster_hang_ups(&c.p[0]), 1);
}

/* ---- a stranger's handshake ---- */

typedef struct stranger {
  uint64_t conn_id;
  uint8_t hello[KVF_HELLO_BYTES_MAX];
  size_t hello_bytes;
} stranger;

/* The stranger's; NULL: it has a name of its own. */
static const kvf_incarnation *name;

/* Names the producer's key. */
static stranger say_hello(uint16_t version_min, uint16_t version_max, uint8_t role)
{
  stranger who = {.conn_id = accepted()};
  kvf_hello hello = {.version_min = version_min, .version_max = version_max, .role = role};
  hello.client = name != NULL ? *name : (kvf_incarnation){.bytes = {'s'}};
  hello.expected = c.p[0].config.incarnation;
  assert_int_equal(kvf_handshake_key_id(&c.p[0].config.key, hello.key_id), KVF_OK);
  assert_int_equal(kvf_hello_encode(&hello, who.hello, sizeof(who.hello), &who.hello_bytes), KVF_OK);
  send(who.conn_id, KVF_FRAME_HELLO, who.hello, who.hello_bytes);
  return who;
}

/* The handshake of a client that speaks these versions, to its end; whose session this is. */
static uint64_t shake_hands(uint16_t version_max, uint8_t role, kvf_welcome *welcome)
{
  const stranger who = say_hello(KVF_PROTOCOL_VERSION_MIN, version_max, role);
  static kvf_proof proof;
  static uint8_t body[KVF_PROOF_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(cluster_hang_ups(&c.p[0]), 0);
  proof = (kvf_proof){.identity_count = 2, .identity = {{"model", "m"}, {"block_tokens", "16"}}};
  assert_int_equal(kvf_handshake_client_proof(&c.p[0].config.key, who.hello, who.hello_bytes, c.stray.body,
                                              c.stray.last.body_bytes, proof.proof),
                   KVF_OK);
  assert_int_equal(kvf_proof_encode(&proof, body, sizeof(body), &bytes), KVF_OK);
  send(who.conn_id, KVF_FRAME_PROOF, body, bytes);
  assert_int_equal(cluster_hang_ups(&c.p[0]), 0);
  assert_int_equal(c.stray.last.type, KVF_FRAME_WELCOME);
  assert_int_equal(kvf_welcome_decode(c.stray.body, c.stray.last.body_bytes, welcome), KVF_OK);
  return who.conn_id;
}

static uint64_t open_as(uint8_t role)
{
  kvf_welcome welcome;
  const uint64_t conn_id = shake_hands(KVF_PROTOCOL_VERSION, role, &welcome);
  kvf_welcome_free(&welcome);
  return conn_id;
}

STRANGERS_TEST(who_names_the_key_is_not_kept_out_by_those_who_talk)
{
  const stranger who = say_hello(KVF_PROTOCOL_VERSION, KVF_PROTOCOL_VERSION, KVF_ROLE_CONTROL);
  for (int i = 0; i < 100; i++) {
    (void)speaker();
  }
  assert_int_equal(cluster_hang_ups(&c.p[0]), 101 - UNPROVEN);
  assert_true(is_there(who.conn_id));
}

STRANGERS_TEST(proof_of_another_key_is_refused)
{
  const stranger who = say_hello(KVF_PROTOCOL_VERSION, KVF_PROTOCOL_VERSION, KVF_ROLE_CONTROL);
  const kvf_proof proof = {.identity_count = 0};
  static uint8_t body[KVF_PROOF_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(cluster_hang_ups(&c.p[0]), 0);
  assert_int_equal(kvf_proof_encode(&proof, body, sizeof(body), &bytes), KVF_OK);
  send(who.conn_id, KVF_FRAME_PROOF, body, bytes);
  assert_int_equal(cluster_hang_ups(&c.p[0]), 1);
  scene("stats P0 sessions_refused.handshake_refused sessions_open > 1; 0\n");
}

/* P6: answers that nobody takes away do not heap up. */
STRANGERS_TEST(who_does_not_read_is_hung_up_on)
{
  const uint64_t conn_id = open_as(KVF_ROLE_RANK);
  const uint8_t ping[KVF_PING_BYTES_MAX] = {1};
  for (size_t i = 0; i < KVF_OUTBOX_BYTES_MAX && cluster_stat(&c.p[0], "sessions_open", "") > 0; i++) {
    send(conn_id, KVF_FRAME_PING, ping, sizeof(ping));
  }
  assert_logged("limit: it sends requests and does not read the answers");
  assert_int_equal(cluster_hang_ups(&c.p[0]), 1);
  scene("stats P0 sessions_open sessions_unread > 0; 1\n");
}

/* P1, P8: two nodes speak the latest version that both know, and no other. */
STRANGERS_TEST(versions_are_negotiated)
{
  static const struct {
    uint16_t min, max, chosen; /* 0: refused */
  } rows[] = {{1, KVF_PROTOCOL_VERSION_MIN - 1, 0},
              {1, KVF_PROTOCOL_VERSION_MIN, KVF_PROTOCOL_VERSION_MIN},
              {KVF_PROTOCOL_VERSION_MIN, KVF_PROTOCOL_VERSION, KVF_PROTOCOL_VERSION},
              {KVF_PROTOCOL_VERSION, KVF_PROTOCOL_VERSION + 9, KVF_PROTOCOL_VERSION},
              {KVF_PROTOCOL_VERSION + 1, KVF_PROTOCOL_VERSION + 9, 0}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    kvf_challenge challenge = {0};
    (void)say_hello(rows[i].min, rows[i].max, KVF_ROLE_RANK);
    assert_int_equal(cluster_hang_ups(&c.p[0]), rows[i].chosen == 0);
    if (rows[i].chosen != 0) {
      assert_int_equal(kvf_challenge_decode(c.stray.body, c.stray.last.body_bytes, &challenge), KVF_OK);
    } else {
      assert_logged("version");
    }
    assert_int_equal(challenge.version, rows[i].chosen);
  }
}

/* ---- open sessions ---- */

/* Its consumers have still to tell it that they are done, and to hear that their leases have ended. */
SCENE(who_has_no_memory_any_more_still_answers, "control",
      "clear P0\n"
      "request 1 A\n"
      "stats P0 sessions_open > 1\n"
      "peers > P0 x1 +control\n")

/* While a fleet changes its key: a producer takes both, whichever it proves to others itself. */
CLUSTER_TEST(either_key_is_taken)
{
  static const char *const keys[] = {"the-old-key.....", "the-new-key.....", "a-stranger's-key"};
  for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
    char options[128];
    (void)snprintf(options, sizeof(options), "control d.key=%s p.key=%s p.other=%s", keys[i], keys[0], keys[1]);
    cluster_open(options);
    scene(i < 2 ? "request 1 A\n" : "request 1 A > P0 hangs up on D\n");
    assert_int_equal(cluster_stat(&c.p[0], "sessions_open", ""), i < 2);
    assert_int_equal(cluster_stat(&c.p[0], "sessions_refused", "handshake_refused"), i == 2);
  }
}

/* Who has the key may not send what he likes either; it is told why. */
CLUSTER_TEST(open_sessions_end_with_a_malformed_or_foreign_frame)
{
  static const kvf_frame_type types[] = {KVF_FRAME_LEASES, KVF_FRAME_FIND,  KVF_FRAME_PING,
                                         KVF_FRAME_HELLO,  KVF_FRAME_FOUND, KVF_FRAME_PONG};
  const uint8_t garbage[3] = {1, 2, 3};
  for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
    cluster_open("control");
    scene("request 1 A\n");
    send(c.wires[0].producer_id, types[i], garbage, sizeof(garbage));
    scene("stats P0 sessions_refused.protocol sessions_open > 1; 0; P0 hangs up on D\n");
    assert_logged("protocol: malformed or unexpected message");
    assert_non_null(strstr(cluster_log(&c.d, "peer"), "protocol"));
  }
}

/* For whoever has proved the key, and no stranger: it may be the same node, whose old connection is dead. The stranger
 * goes too: there is one place. */
CLUSTER_TEST(open_session_makes_room_at_connections_max)
{
  cluster_open("control connections_max=1 hold=dials");
  scene(
      "request 1 A > dial P0\n"
      "accept P0\n");
  const uint64_t old = c.wires[0].producer_id;
  (void)accepted();
  scene(
      "stats P0 sessions_open sessions_evicted > 1; 0\n"
      "lose P0\n"
      "+10000 > dial P0\n"
      "accept P0\n"
      "peers > P0 x1 +control\n"
      "stats P0 sessions_open sessions_evicted > 1; 1\n");
  assert_false(is_there(old));
  assert_logged("limit: connections_max is reached, and this connection was used least recently");
}

/* P8: a session's number without a session opens no data connection. */
STRANGERS_TEST(key_is_that_of_an_open_session_only)
{
  kvf_welcome welcome;
  kvf_key key = {.bytes = 77};
  const uint64_t conn_id = shake_hands(KVF_PROTOCOL_VERSION, KVF_ROLE_RANK, &welcome);
  const uint64_t session_id = welcome.session_id;
  kvf_welcome_free(&welcome);
  assert_false(kvf_core_session_key(c.p[0].core, session_id + 1, &key));
  assert_int_equal(key.bytes, 77);
  assert_true(kvf_core_session_key(c.p[0].core, session_id, &key));
  kvf_core_on_closed(c.p[0].core, c.now_ns, conn_id);
  key.bytes = 77;
  assert_false(kvf_core_session_key(c.p[0].core, session_id, &key));
  assert_int_equal(key.bytes, 77);
}

/* The runtime's news that answers heap up counts for a session; a peer that does not read is found out by its silence.
 */
CLUSTER_TEST(unread_answers_are_counted_for_sessions)
{
  cluster_open("control");
  scene("request 1 A\n");
  kvf_core_on_unread(c.d.core, c.now_ns, c.wires[0].consumer_id);
  kvf_core_on_unread(c.p[0].core, c.now_ns, 99);
  scene(
      "stats D sessions_unread > 0\n"
      "stats P0 sessions_unread > 0\n");
  kvf_core_on_unread(c.p[0].core, c.now_ns, c.wires[0].producer_id);
  scene("stats P0 sessions_unread > 1\n");
  assert_logged("limit: it sends requests and does not read the answers");
}

/* ---- leases ---- */

static kvf_leases leases;
static kvf_lease_states states;

/* `count` consumers of ticket A's lease say this, from the `first` on; the answers are in `states`. */
static void tell(uint64_t conn_id, uint32_t first, uint32_t count, kvf_finish_kind kind)
{
  static uint8_t body[KVF_LEASES_BYTES_MAX];
  size_t bytes = 0;
  leases = (kvf_leases){.count = count};
  for (uint32_t i = 0; i < count; i++) {
    leases.items[i] = (kvf_leases_item){c.tickets[0].lease, first + i, (uint8_t)kind};
  }
  assert_int_equal(kvf_leases_encode(&leases, body, sizeof(body), &bytes), KVF_OK);
  send(conn_id, KVF_FRAME_LEASES, body, bytes);
  (void)cluster_hang_ups(&c.p[0]);
  if (c.stray.last.type == KVF_FRAME_LEASE_STATES) {
    assert_int_equal(kvf_lease_states_decode(c.stray.body, c.stray.last.body_bytes, &states), KVF_OK);
  }
}

/* A node of before KVF_PROTOCOL_CROWDED would refuse the whole answer: it waits for room. */
STRANGERS_TEST(crowded_is_said_to_who_knows_the_word)
{
  assert_int_equal(cluster_publish(0, &c.tickets[0]), KVF_OK);
  for (uint32_t older = 0; older < 2; older++) {
    kvf_welcome welcome;
    const uint64_t conn_id =
        shake_hands((uint16_t)(older == 1 ? KVF_PROTOCOL_CROWDED - 1 : KVF_PROTOCOL_VERSION), KVF_ROLE_RANK, &welcome);
    kvf_welcome_free(&welcome);
    tell(conn_id, 1, KVF_LEASE_CONSUMERS_MAX, KVF_FINISH_NONE);
    assert_int_equal(states.items[KVF_LEASE_CONSUMERS_MAX - 1].state, KVF_LEASE_STATE_LIVE);
    tell(conn_id, 1000, 1, KVF_FINISH_NONE);
    assert_int_equal(states.items[0].state, older == 1 ? KVF_LEASE_STATE_NOT_PUBLISHED : KVF_LEASE_STATE_CROWDED);
  }
}

STRANGERS_TEST(late_messages_are_counted)
{
  assert_int_equal(cluster_publish(0, &c.tickets[0]), KVF_OK);
  const uint64_t conn_id = open_as(KVF_ROLE_RANK);
  for (int i = 0; i < 3; i++) {
    tell(conn_id, 1, 1, KVF_FINISH_COMPLETED);
  }
  tell(conn_id, 1, 1, KVF_FINISH_NONE);
  assert_int_equal(states.items[0].state, KVF_LEASE_STATE_ENDED);
  scene(
      "stats P0 late_acknowledgements late_renewals leases_published leases_ended.completed > 2; 1; 1; 1; P0 ends A: "
      "completed\n");
}

/* ---- those who only check ---- */

/* Who checks has no model, or any. */
STRANGERS_TEST(who_checks_is_told_versions_and_names)
{
  kvf_welcome welcome;
  (void)shake_hands(KVF_PROTOCOL_VERSION, KVF_ROLE_CHECK, &welcome);
  assert_string_equal(welcome.library, kvf_version());
  assert_int_equal(welcome.version_min, KVF_PROTOCOL_VERSION_MIN);
  assert_int_equal(welcome.version_max, KVF_PROTOCOL_VERSION);
  assert_int_equal(welcome.regions_count, 0);
  assert_int_equal(welcome.transports_count, 2);
  assert_string_equal(welcome.transports[0].name, "local");
  assert_int_equal(welcome.transports[0].description_bytes, 0);
  kvf_welcome_free(&welcome);
}

/* P8, and P3: nor does it open a data connection. */
STRANGERS_TEST(who_checks_has_no_say_in_leases)
{
  assert_int_equal(cluster_publish(0, &c.tickets[0]), KVF_OK);
  for (int i = 0; i < 2; i++) {
    kvf_welcome welcome;
    kvf_key key;
    const uint64_t conn_id = shake_hands(KVF_PROTOCOL_VERSION, KVF_ROLE_CHECK, &welcome);
    assert_false(kvf_core_session_key(c.p[0].core, welcome.session_id, &key));
    kvf_welcome_free(&welcome);
    tell(conn_id, 1, 1, i == 0 ? KVF_FINISH_NONE : KVF_FINISH_COMPLETED);
    scene(
        "stats P0 sessions_open > 0\n"
        "fence A P0 > live\n");
  }
}

static void send_ping(uint64_t conn_id, uint32_t wanted_bytes)
{
  const kvf_ping ping = {.seq = 7, .wanted_bytes = wanted_bytes};
  uint8_t body[KVF_PING_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_ping_encode(&ping, body, sizeof(body), &bytes), KVF_OK);
  send(conn_id, KVF_FRAME_PING, body, bytes);
}

/* How many bytes a PING brings. */
static uint32_t ask(uint64_t conn_id, uint32_t wanted_bytes)
{
  kvf_ping pong;
  send_ping(conn_id, wanted_bytes);
  (void)cluster_hang_ups(&c.p[0]);
  assert_int_equal(kvf_ping_decode(c.stray.body, c.stray.last.body_bytes, &pong), KVF_OK);
  assert_int_equal(pong.seq, 7);
  return pong.fill_bytes;
}

STRANGERS_TEST(bytes_are_made_up_for_checks_alone)
{
  for (int role = KVF_ROLE_CONTROL; role <= KVF_ROLE_CHECK; role++) {
    const uint64_t conn_id = open_as((uint8_t)role);
    assert_int_equal(ask(conn_id, 0), 0);
    assert_int_equal(ask(conn_id, 1000), role == KVF_ROLE_CHECK ? 1000 : 0);
  }
}

#define CHECK_BYTES_PER_S (64u << 20)

STRANGERS_TEST(bytes_are_made_up_within_a_budget)
{
  const uint64_t conn_id = open_as(KVF_ROLE_CHECK);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < 2 * CHECK_BYTES_PER_S / KVF_PING_FILL_BYTES_MAX; i++) {
    bytes += ask(conn_id, KVF_PING_FILL_BYTES_MAX);
  }
  assert_int_equal(bytes, CHECK_BYTES_PER_S);
  c.now_ns += 10 * MS;
  assert_int_equal(ask(conn_id, KVF_PING_FILL_BYTES_MAX), KVF_PING_FILL_BYTES_MAX);
}

/* P6 */
STRANGERS_TEST(made_up_bytes_that_nobody_reads_do_not_heap_up)
{
  const uint64_t conn_id = open_as(KVF_ROLE_CHECK);
  size_t pings = 0;
  for (; cluster_stat(&c.p[0], "sessions_open", "") > 0; pings++) {
    send_ping(conn_id, KVF_PING_FILL_BYTES_MAX);
  }
  assert_in_range(pings, 1, 1 + KVF_OUTBOX_BYTES_MAX / KVF_PING_FILL_BYTES_MAX);
  scene("stats P0 sessions_unread > 1\n");
}

/* ---- a producer that nobody comes to ---- */

static bool has_said_alone(void)
{
  const bool said = cluster_log(&c.p[0], "no consumer has ever connected: without a key this engine listens")[0] != 0;
  c.p[0].log_lines = 0;
  return said;
}

static void let_expire(const char *letter)
{
  char text[128];
  (void)snprintf(text, sizeof(text), "publish %s\n+30000 > P0 ends %s: expired\n", letter, letter);
  cluster_said();
  scene(text);
}

CLUSTER_TEST(a_producer_without_a_key_says_once_that_nobody_comes)
{
  cluster_open("");
  cluster_advance(1);
  assert_false(has_said_alone());
  let_expire("A");
  assert_logged("option key_file or KVFERRY_KEY_FILE");
  assert_logged("an address here (listen)");
  assert_true(has_said_alone());
  scene("ticket 4\n");
  let_expire("B");
  assert_false(has_said_alone());
}

CLUSTER_TEST(nor_is_it_said_of_others)
{
  cluster_open("key=a-key-that-both-have");
  let_expire("A");
  assert_false(has_said_alone());
}

SCENE(rank_0_says_it, "ranks=2 published",
      "+30000 x2 > P0,P1 ends A: expired\n"
      "log P1 no\n")

STRANGERS_TEST(who_has_had_a_consumer_is_not_alone)
{
  for (int i = 0; i < 2; i++) {
    set_up();
    (void)open_as(i == 0 ? KVF_ROLE_RANK : KVF_ROLE_CHECK);
    let_expire("A");
    assert_int_equal(has_said_alone(), i == 1);
  }
}

STRANGERS_TEST(its_own_process_is_no_consumer)
{
  name = &c.p[0].config.incarnation;
  (void)open_as(KVF_ROLE_RANK);
  name = NULL;
  let_expire("A");
  assert_true(has_said_alone());
}

/* P on another host has named its own loopback, where D finds a process of its own host. */
SCENE(another_process_at_a_loopback_address_may_be_of_another_host, "control",
      "restart P0\n"
      "request 1 A > D hangs up on P0; request 1: recompute peer_restarted 0+64\n"
      "log D loopback > peer [::1]:80: peer_restarted: another process answers at its address; a loopback address is "
      "of this host alone: a producer on another one needs a key (option key_file or KVFERRY_KEY_FILE), or an address "
      "in listen\n")
