#include "control_world.h"
#include "test.h"
#include "wire/lease_message.h"
#include "wire/ping_message.h"

static void open_world(uint32_t connections_max)
{
  control_options options;
  control_options_init(&options);
  options.config.connections_max = connections_max;
  control_world_open(&options);
}

static uint64_t accept_from(uint8_t host)
{
  uint64_t conn_id = 0;
  const kvf_address from = {.ip = {[0] = host}, .port = 7};
  assert_int_equal(kvf_core_on_accepted(&world.producer.core, world.now_ns, from, &conn_id), KVF_OK);
  return conn_id;
}

static uint64_t accept_one(void)
{
  return accept_from(0);
}

static void drop_output(void *context, const kvf_core_output *output)
{
  uint32_t *hang_ups = context;
  *hang_ups += output->hang_up;
}

static uint32_t hang_ups(void)
{
  uint32_t count = 0;
  kvf_core_take_output(&world.producer.core, drop_output, &count);
  return count;
}

CONTROL_TEST(silent_connection_is_closed)
{
  open_world(64);
  (void)accept_one();
  world.now_ns += 999 * MS;
  kvf_core_tick(&world.producer.core, world.now_ns);
  assert_int_equal(hang_ups(), 0);
  world.now_ns += 2 * MS;
  kvf_core_tick(&world.producer.core, world.now_ns);
  assert_int_equal(hang_ups(), 1);
  assert_int_equal(world.producer.core.sessions.counters.timed_out, 1);
}

CONTROL_TEST(strangers_cannot_take_all_places)
{
  open_world(64);
  for (int i = 0; i < 1000; i++) {
    (void)accept_one();
  }
  assert_int_equal(world.producer.core.sessions.unproven.count, 64 / KVF_SESSIONS_UNPROVEN_SHARE + 1);
  assert_int_equal(hang_ups(), 1000 - 17);
}

static bool is_there(uint64_t conn_id)
{
  (void)hang_ups(); /* those that were hung up on go when that has been heard */
  return kvf_core_has_conn(&world.producer.core, conn_id);
}

/* The one host takes all places and comes again and again: others get one, and keep it. */
CONTROL_TEST(strangers_of_one_host_keep_no_other_out)
{
  open_world(64);
  const kvf_sessions *sessions = &world.producer.core.sessions;
  for (int i = 0; i < 17; i++) {
    (void)accept_from(1);
  }
  assert_int_equal(sessions->counters.evicted, 0); /* it may have all of them */
  uint64_t other = accept_from(2);
  uint64_t another = accept_from(3);
  for (int i = 0; i < 100; i++) {
    (void)accept_from(1);
  }
  assert_int_equal(sessions->unproven.count, 17);
  assert_true(is_there(other));
  assert_true(is_there(another));
}

/* Nor those behind the same address, once these have said something. */
CONTROL_TEST(silent_strangers_do_not_keep_out_who_speaks)
{
  open_world(64);
  uint64_t speaker = accept_one();
  kvf_core_on_heard(&world.producer.core, speaker);
  uint64_t silent = accept_one();
  for (int i = 0; i < 100; i++) {
    (void)accept_one();
  }
  assert_true(is_there(speaker));
  assert_false(is_there(silent));
  for (int i = 0; i < 100; i++) {
    kvf_core_on_heard(&world.producer.core, accept_one());
  }
  assert_false(is_there(speaker)); /* those who speak are the most by now */
}

CONTROL_TEST(those_who_were_reset_are_counted)
{
  open_world(64);
  kvf_core_on_reset(&world.producer.core, world.now_ns, &(kvf_address){.port = 7});
  assert_int_equal(world.producer.core.sessions.counters.accepted, 1);
  assert_int_equal(world.producer.core.sessions.counters.abandoned, 1);
  assert_string_equal(world.producer.last_log,
                      "closed a connection from [::]:7: peer_down: it went before its handshake had ended");
}

CONTROL_TEST(anything_but_a_hello_is_refused)
{
  const kvf_frame_type types[] = {KVF_FRAME_CHALLENGE, KVF_FRAME_PROOF, KVF_FRAME_WELCOME,
                                  KVF_FRAME_LEASES,    KVF_FRAME_PING,  KVF_FRAME_LEASE_STATES,
                                  KVF_FRAME_FIND,      KVF_FRAME_FOUND, KVF_FRAME_HELLO};
  open_world(64);
  for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
    uint8_t garbage[40] = {1, 2, 3};
    uint64_t conn_id = accept_one();
    kvf_core_on_frame(&world.producer.core, world.now_ns, conn_id, types[i], garbage, sizeof(garbage));
    assert_int_equal(hang_ups(), 1);
    assert_int_equal(world.producer.core.sessions.counters.protocol_errors, i + 1);
  }
  assert_int_equal(world.producer.core.sessions.unproven.count, 0);
}

CONTROL_TEST(untrusted_frames_have_a_small_limit)
{
  open_world(64);
  uint64_t conn_id = accept_one();
  assert_int_equal(kvf_core_frame_limit(&world.producer.core, conn_id), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  kvf_core_on_malformed(&world.producer.core, world.now_ns, conn_id);
  assert_int_equal(hang_ups(), 1);
}

/* Names the producer's key. */
static void say_hello(uint64_t conn_id)
{
  kvf_hello hello = {
      .version_min = KVF_PROTOCOL_VERSION, .version_max = KVF_PROTOCOL_VERSION, .role = KVF_ROLE_CONTROL};
  uint8_t body[KVF_HELLO_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_handshake_key_id(&world.producer.core.context.self.key, hello.key_id), KVF_OK);
  assert_int_equal(kvf_hello_encode(&hello, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(&world.producer.core, world.now_ns, conn_id, KVF_FRAME_HELLO, body, bytes);
}

CONTROL_TEST(who_names_the_key_is_not_kept_out_by_those_who_talk)
{
  open_world(64);
  uint64_t knows = accept_one();
  kvf_core_on_heard(&world.producer.core, knows);
  say_hello(knows);
  for (int i = 0; i < 100; i++) {
    kvf_core_on_heard(&world.producer.core, accept_one());
  }
  assert_int_equal(world.producer.core.sessions.unproven.count, 17);
  assert_true(is_there(knows));
}

CONTROL_TEST(proof_of_another_key_is_refused)
{
  open_world(64);
  uint64_t conn_id = accept_one();
  uint8_t body[KVF_PROOF_BYTES_MAX];
  size_t bytes = 0;
  say_hello(conn_id);
  assert_int_equal(hang_ups(), 0);
  kvf_proof proof = {0};
  assert_int_equal(kvf_proof_encode(&proof, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(&world.producer.core, world.now_ns, conn_id, KVF_FRAME_PROOF, body, bytes);
  assert_int_equal(hang_ups(), 1);
  assert_int_equal(world.producer.core.sessions.counters.refused_key, 1);
}

/* P6: answers that nobody takes away do not heap up. */
CONTROL_TEST(who_does_not_read_is_hung_up_on)
{
  open_world(64);
  uint64_t conn_id = accept_one();
  kvf_sessions *sessions = &world.producer.core.sessions;
  kvf_session *session = kvf_conns_find(&world.producer.core.context.conns, conn_id)->session;
  HASH_ADD(by_id, sessions->by_id, id, sizeof(session->id), session);
  session->state = KVF_SESSION_OPEN; /* as if it had proved its key */
  kvf_crowd_leave(&sessions->unproven, &session->place);
  assert_int_equal(kvf_crowd_join(&sessions->open, &session->place, &(kvf_host){0}), KVF_OK);
  uint8_t ping[KVF_PING_BYTES_MAX] = {1};
  for (size_t i = 0; i < KVF_OUTBOX_BYTES_MAX && HASH_CNT(by_id, sessions->by_id) > 0; i++) {
    kvf_core_on_frame(&world.producer.core, world.now_ns, conn_id, KVF_FRAME_PING, ping, sizeof(ping));
  }
  assert_int_equal(HASH_CNT(by_id, sessions->by_id), 0);
  assert_int_equal(sessions->counters.unread, 1);
  assert_non_null(strstr(world.producer.last_log, "limit: it asks and does not read the answers"));
  assert_int_equal(hang_ups(), 1);
}

CONTROL_TEST(unknown_versions_are_refused)
{
  open_world(64);
  uint64_t conn_id = accept_one();
  kvf_hello hello = {.version_min = KVF_PROTOCOL_VERSION + 1, .version_max = 9, .role = KVF_ROLE_RANK};
  uint8_t body[KVF_HELLO_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_hello_encode(&hello, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(&world.producer.core, world.now_ns, conn_id, KVF_FRAME_HELLO, body, bytes);
  assert_int_equal(hang_ups(), 1);
  assert_non_null(strstr(world.producer.last_log, "version"));
}

/* P1, P8: two nodes speak the latest version that both know, and no other. */
CONTROL_TEST(versions_are_negotiated)
{
  const struct {
    uint16_t min, max, chosen; /* 0: refused */
  } cases[] = {{1, KVF_PROTOCOL_VERSION_MIN - 1, 0},
               {1, KVF_PROTOCOL_VERSION_MIN, KVF_PROTOCOL_VERSION_MIN},
               {KVF_PROTOCOL_VERSION_MIN, KVF_PROTOCOL_VERSION, KVF_PROTOCOL_VERSION},
               {KVF_PROTOCOL_VERSION, KVF_PROTOCOL_VERSION + 9, KVF_PROTOCOL_VERSION}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    open_world(64);
    uint64_t conn_id = accept_one();
    kvf_hello hello = {.version_min = cases[i].min, .version_max = cases[i].max, .role = KVF_ROLE_RANK};
    uint8_t body[KVF_HELLO_BYTES_MAX];
    size_t bytes = 0;
    assert_int_equal(kvf_handshake_key_id(&world.producer.core.context.self.key, hello.key_id), KVF_OK);
    assert_int_equal(kvf_hello_encode(&hello, body, sizeof(body), &bytes), KVF_OK);
    kvf_core_on_frame(&world.producer.core, world.now_ns, conn_id, KVF_FRAME_HELLO, body, bytes);
    const kvf_conn *conn = kvf_conns_find(&world.producer.core.context.conns, conn_id);
    kvf_challenge challenge = {0};
    if (cases[i].chosen != 0) {
      assert_int_equal(kvf_challenge_decode(conn->outbox + KVF_FRAME_HEADER_BYTES,
                                            conn->outbox_bytes - KVF_FRAME_HEADER_BYTES, &challenge),
                       KVF_OK);
    }
    assert_int_equal(challenge.version, cases[i].chosen);
    assert_int_equal(hang_ups(), cases[i].chosen == 0);
  }
}

static void connect_both(void)
{
  kvf_ticket ticket;
  uint32_t ids[1];
  kvf_peer *peer;
  control_ticket(&ticket, ids, 1);
  assert_int_equal(
      kvf_peers_acquire(&world.consumer.core.peers, &ticket.rank[0].address, &ticket.rank[0].incarnation, &peer),
      KVF_OK);
  kvf_peers_want_open(&world.consumer.core.peers, world.now_ns, peer);
  control_settle();
  control_dial(KVF_OK);
}

/* A session that is open on both sides; `connections_max` is the producer's. */
static uint64_t open_session(uint32_t connections_max)
{
  open_world(connections_max);
  connect_both();
  assert_int_equal(HASH_CNT(by_id, world.producer.core.sessions.by_id), 1);
  return world.producer.conn_id;
}

/* Its consumers have still to tell it that they are done, and to hear that their leases have ended. */
CONTROL_TEST(who_has_no_memory_any_more_still_answers)
{
  open_world(64);
  assert_true(kvf_core_clear_memory(&world.producer.core, world.now_ns));
  connect_both();
  assert_int_equal(HASH_CNT(by_id, world.producer.core.sessions.by_id), 1);
  assert_int_equal(world.consumer.core.peers.by_key->state, KVF_PEER_READY);
}

static void set_key(kvf_key *key, const char *text)
{
  key->bytes = strlen(text);
  memcpy(key->data, text, key->bytes);
}

/* While a fleet changes its key: a producer takes both, whichever it proves to others itself. */
CONTROL_TEST(either_key_is_taken)
{
  static const char *const keys[] = {"the old key ....", "the new key ....", "a stranger's key"};
  for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
    open_world(64);
    set_key(&world.consumer.core.context.self.key, keys[i]);
    set_key(&world.producer.core.context.self.key, keys[0]);
    set_key(&world.producer.core.context.self.other_key, keys[1]);
    connect_both();
    assert_int_equal(HASH_CNT(by_id, world.producer.core.sessions.by_id), i < 2);
    assert_int_equal(world.producer.core.sessions.counters.refused_key, i == 2);
  }
}

/* Who has the key may not send what he likes either. */
CONTROL_TEST(open_sessions_end_with_a_malformed_or_foreign_frame)
{
  static const kvf_frame_type types[] = {KVF_FRAME_LEASES, KVF_FRAME_FIND,  KVF_FRAME_PING,
                                         KVF_FRAME_HELLO,  KVF_FRAME_FOUND, KVF_FRAME_PONG};
  const uint8_t garbage[3] = {1, 2, 3};
  for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
    uint64_t conn_id = open_session(64);
    kvf_core_on_frame(&world.producer.core, world.now_ns, conn_id, types[i], garbage, sizeof(garbage));
    assert_int_equal(world.producer.core.sessions.counters.protocol_errors, 1);
    assert_int_equal(HASH_CNT(by_id, world.producer.core.sessions.by_id), 0);
    assert_non_null(strstr(world.producer.last_log, "protocol: malformed or unexpected message"));
    control_settle();
    assert_non_null(strstr(world.consumer.last_log, "protocol")); /* it is told why */
  }
}

/* For whoever has proved the key: it may be the same node, whose old connection is dead. */
CONTROL_TEST(open_session_makes_room_at_connections_max)
{
  const uint64_t old = open_session(1);
  const kvf_sessions *sessions = &world.producer.core.sessions;
  kvf_peers *peers = &world.consumer.core.peers;
  (void)accept_one();
  assert_int_equal(HASH_CNT(by_id, sessions->by_id), 1); /* not for a stranger */
  assert_int_equal(sessions->unproven.count, 1);
  assert_int_equal(sessions->counters.evicted, 0);

  kvf_core_on_closed(&world.consumer.core, world.now_ns,
                     world.consumer.conn_id); /* of which the producer hears nothing */
  kvf_peers_want_open(peers, world.now_ns, peers->by_key);
  control_settle();
  control_dial(KVF_OK);
  assert_int_equal(peers->by_key->state, KVF_PEER_READY);
  assert_int_equal(HASH_CNT(by_id, sessions->by_id), 1);
  assert_false(is_there(old));
  assert_int_equal(sessions->counters.evicted, 2); /* the stranger too: there is one place */
  assert_non_null(strstr(world.producer.last_log, "limit: connections_max is reached, and it was used least recently"));
}

/* P8: a session's number without a session opens no data connection. */
CONTROL_TEST(key_is_that_of_an_open_session_only)
{
  uint64_t conn_id = open_session(64);
  const kvf_sessions *sessions = &world.producer.core.sessions;
  uint64_t id = kvf_conns_find(&world.producer.core.context.conns, conn_id)->session->id;
  kvf_key key = {.bytes = 77};
  assert_false(kvf_sessions_key(sessions, id + 1, &key));
  assert_int_equal(key.bytes, 77);
  assert_true(kvf_sessions_key(sessions, id, &key));
  control_cut();
  key.bytes = 77;
  assert_false(kvf_sessions_key(sessions, id, &key));
  assert_int_equal(key.bytes, 77);
}

/* The runtime's news that answers heap up counts for a session; a peer that does not read is found out by its silence.
 */
CONTROL_TEST(unread_answers_are_counted_for_sessions)
{
  uint64_t conn_id = open_session(64);
  kvf_core_on_unread(&world.consumer.core, world.now_ns, world.consumer.conn_id);
  kvf_core_on_unread(&world.producer.core, world.now_ns, 99);
  assert_int_equal(world.consumer.core.sessions.counters.unread, 0);
  assert_int_equal(world.producer.core.sessions.counters.unread, 0);
  kvf_core_on_unread(&world.producer.core, world.now_ns, conn_id);
  assert_int_equal(world.producer.core.sessions.counters.unread, 1);
  assert_non_null(strstr(world.producer.last_log, "limit: it asks and does not read the answers"));
}

/* ---- those who only check ---- */

/* An open session, as if the peer's hello had said so. Who checks has no model, or any. */
static kvf_conn *open_as(uint8_t role)
{
  control_options options;
  control_options_init(&options);
  options.consumer_model = role == KVF_ROLE_CHECK ? "another" : options.consumer_model;
  control_world_open(&options);
  world.held = true;
  connect_both();
  kvf_conn *conn = kvf_conns_find(&world.producer.core.context.conns, world.producer.conn_id);
  conn->session->role = role;
  world.held = false;
  control_settle();
  assert_int_equal(HASH_CNT(by_id, world.producer.core.sessions.by_id), 1);
  return conn;
}

CONTROL_TEST(who_checks_is_told_versions_and_names)
{
  (void)open_as(KVF_ROLE_CHECK);
  const kvf_welcome *welcome = world.consumer.core.peers.by_key->memory.welcome;
  assert_string_equal(welcome->library, kvf_version());
  assert_int_equal(welcome->version_min, KVF_PROTOCOL_VERSION_MIN);
  assert_int_equal(welcome->version_max, KVF_PROTOCOL_VERSION);
  assert_int_equal(welcome->regions_count, 0);
  assert_int_equal(welcome->transports_count, 1);
  assert_string_equal(welcome->transports[0].name, "local");
  assert_int_equal(welcome->transports[0].description_bytes, 0);
}

static void send_ping(const kvf_conn *conn, uint32_t wanted_bytes)
{
  const kvf_ping ping = {.seq = 7, .wanted_bytes = wanted_bytes};
  uint8_t body[KVF_PING_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_ping_encode(&ping, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(&world.producer.core, world.now_ns, conn->id, KVF_FRAME_PING, body, bytes);
}

/* How many bytes a PING brings. */
static uint32_t ask(kvf_conn *conn, uint32_t wanted_bytes)
{
  kvf_ping pong;
  send_ping(conn, wanted_bytes);
  assert_int_equal(
      kvf_ping_decode(conn->outbox + KVF_FRAME_HEADER_BYTES, conn->outbox_bytes - KVF_FRAME_HEADER_BYTES, &pong),
      KVF_OK);
  assert_int_equal(pong.seq, 7);
  kvf_conns_taken(conn);
  return pong.fill_bytes;
}

/* P8, and P3: nor does it open a data connection. */
CONTROL_TEST(who_checks_has_no_say_in_leases)
{
  static uint8_t body[KVF_LEASES_BYTES_MAX];
  static kvf_leases leases;
  const kvf_finish_kind kinds[] = {KVF_FINISH_NONE, KVF_FINISH_COMPLETED};
  for (int i = 0; i < 2; i++) {
    kvf_ticket ticket;
    uint32_t ids[1];
    size_t bytes = 0;
    kvf_key key;
    const kvf_conn *conn = open_as(KVF_ROLE_CHECK);
    control_ticket(&ticket, ids, 1);
    control_publish(&ticket);
    assert_false(kvf_sessions_key(&world.producer.core.sessions, conn->session->id, &key));
    leases = (kvf_leases){.count = 1, .items = {{.lease = ticket.lease, .kind = (uint8_t)kinds[i]}}};
    assert_int_equal(kvf_leases_encode(&leases, body, sizeof(body), &bytes), KVF_OK);
    kvf_core_on_frame(&world.producer.core, world.now_ns, conn->id, KVF_FRAME_LEASES, body, bytes);
    assert_int_equal(HASH_CNT(by_id, world.producer.core.sessions.by_id), 0);
    assert_int_equal(kvf_lease_table_authorize(&world.producer.core.leases, world.now_ns, &ticket.lease, NULL, 0),
                     KVF_OK);
  }
}

CONTROL_TEST(bytes_are_made_up_for_checks_alone)
{
  for (int role = KVF_ROLE_CONTROL; role <= KVF_ROLE_CHECK; role++) {
    kvf_conn *conn = open_as((uint8_t)role);
    assert_int_equal(ask(conn, 0), 0);
    assert_int_equal(ask(conn, 1000), role == KVF_ROLE_CHECK ? 1000 : 0);
  }
}

CONTROL_TEST(bytes_are_made_up_within_a_budget)
{
  kvf_conn *conn = open_as(KVF_ROLE_CHECK);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < 2 * KVF_CHECK_BYTES_PER_S / KVF_PING_FILL_BYTES_MAX; i++) {
    bytes += ask(conn, KVF_PING_FILL_BYTES_MAX);
  }
  assert_int_equal(bytes, KVF_CHECK_BYTES_PER_S);
  world.now_ns += 10 * MS;
  assert_int_equal(ask(conn, KVF_PING_FILL_BYTES_MAX), KVF_PING_FILL_BYTES_MAX);
}

/* P6 */
CONTROL_TEST(made_up_bytes_that_nobody_reads_do_not_heap_up)
{
  const kvf_conn *conn = open_as(KVF_ROLE_CHECK);
  const kvf_sessions *sessions = &world.producer.core.sessions;
  for (size_t i = 0; i <= KVF_OUTBOX_BYTES_MAX / KVF_PING_FILL_BYTES_MAX && HASH_CNT(by_id, sessions->by_id) > 0; i++) {
    send_ping(conn, KVF_PING_FILL_BYTES_MAX);
    assert_true(conn->outbox_bytes <= KVF_OUTBOX_BYTES_MAX);
  }
  assert_int_equal(HASH_CNT(by_id, sessions->by_id), 0);
  assert_int_equal(sessions->counters.unread, 1);
}

/* ---- a producer that nobody comes to ---- */

static void let_expire_of(uint32_t rank)
{
  kvf_ticket ticket;
  uint32_t ids[1];
  control_ticket(&ticket, ids, 1);
  control_publish(&ticket);
  world.producer.core.context.config.rank = rank;
  for (int i = 0; i < 2; i++) {
    control_advance(world.producer.core.context.config.lease_ttl_ms);
  }
  assert_true(world.producer.core.leases.counters.ended[KVF_LEASE_END_EXPIRED] > 0);
}

static void let_expire(void)
{
  let_expire_of(0);
}

static bool has_said_alone(void)
{
  return strstr(world.producer.last_log, "no consumer has ever connected: without a key this engine listens") != NULL;
}

static void open_alone(const char *key)
{
  control_options options;
  control_options_init(&options);
  options.consumer_key = options.producer_key = key;
  control_world_open(&options);
}

CONTROL_TEST(a_producer_without_a_key_says_once_that_nobody_comes)
{
  open_alone(NULL);
  control_advance(1);
  assert_false(has_said_alone());
  let_expire();
  assert_true(has_said_alone());
  assert_non_null(strstr(world.producer.last_log, "option key_file or KVFERRY_KEY_FILE"));
  assert_non_null(strstr(world.producer.last_log, "an address here (listen)"));
  world.producer.last_log[0] = '\0';
  let_expire();
  assert_false(has_said_alone());
}

CONTROL_TEST(nor_is_it_said_of_others)
{
  open_alone("a key that both have");
  let_expire();
  assert_false(has_said_alone());
  open_alone(NULL);
  let_expire_of(1); /* rank 0 says it */
  assert_false(has_said_alone());
}

CONTROL_TEST(who_has_had_a_consumer_is_not_alone)
{
  for (int i = 0; i < 2; i++) {
    (void)open_as(i == 0 ? KVF_ROLE_RANK : KVF_ROLE_CHECK);
    control_cut();
    let_expire();
    assert_int_equal(has_said_alone(), i == 1);
  }
}

CONTROL_TEST(its_own_process_is_no_consumer)
{
  open_alone(NULL);
  world.consumer.core.context.self.incarnation = world.producer.core.context.self.incarnation;
  connect_both();
  control_cut();
  let_expire();
  assert_true(has_said_alone());
}

/* P on another host has named its own loopback, where D finds a process of its own host. */
CONTROL_TEST(another_process_at_a_loopback_address_may_be_of_another_host)
{
  control_options options;
  control_options_init(&options);
  control_world_open(&options);
  memset(&world.producer.core.context.self.incarnation, 'x', sizeof(world.producer.core.context.self.incarnation));
  connect_both();
  assert_non_null(
      strstr(world.consumer.last_log, "peer_restarted: another process answers at its address; a loopback"));
}
