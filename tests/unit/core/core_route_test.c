/* Who hears what: connections to sessions and peers, peers to loads and requests, and all of them to the runtime. */

#include "control_world.h"
#include "test.h"

#define BLOCKS 4

static kvf_ticket ticket;
static uint32_t ids[BLOCKS];

static void open_world(bool control)
{
  control_options options;
  control_options_init(&options);
  options.control = control;
  control_world_open(&options);
  control_ticket(&ticket, ids, BLOCKS);
}

static kvf_core *consumer(void)
{
  return &world.consumer.core;
}

static kvf_core *producer(void)
{
  return &world.producer.core;
}

static void start_load(void)
{
  static const uint32_t destination[BLOCKS] = {8, 9, 10, 11};
  kvf_blocks blocks = {.ids = ids, .counts = ticket.counts, .groups = 1};
  kvf_load_params load = {.request_id = 1,
                          .prompt = ticket.prompt,
                          .destination = {.ids = destination, .counts = ticket.counts, .groups = 1}};
  uint64_t digest = 0;
  assert_int_equal(kvf_fence_digest(&ticket.lease, &blocks, &ticket.prompt, &digest), KVF_OK);
  assert_int_equal(kvf_core_load_start(consumer(), world.now_ns,
                                       &(kvf_sources){.count = 1, .tickets = {&ticket}, .digests = {digest}}, &load, 0),
                   KVF_OK);
  control_settle();
}

/* A load whose control connection is up and whose link is being opened. */
static void open_link(void)
{
  open_world(false);
  start_load();
  control_dial(KVF_OK);
  assert_int_not_equal(world.consumer.opened_link_id, 0);
}

/* A load with a read in flight. */
static void open_read(void)
{
  open_link();
  kvf_peers_on_link(&consumer()->peers, world.now_ns, world.consumer.opened_link_id, KVF_OK);
  control_settle();
  assert_int_equal(world.consumer.reads, 1);
}

static bool next_event(kvf_event *event)
{
  bool got = kvf_core_next_event(consumer(), world.now_ns, event);
  control_settle();
  return got;
}

static void assert_outcome(kvf_status status)
{
  kvf_event event;
  assert_true(next_event(&event));
  assert_int_equal(event.kind, KVF_EVENT_LOAD);
  assert_int_equal(event.u.report.status, status);
}

/* A node that does not listen is a control node until it has memory: its peers have not told it of theirs. */
CONTROL_TEST(a_control_node_that_gets_memory_asks_again)
{
  uint64_t id = 0;
  open_world(true);
  assert_int_equal(kvf_core_request_open(consumer(), world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                                         &ticket.prompt, NULL, 5, &id, NULL),
                   KVF_OK);
  control_settle();
  world.held = true;
  control_dial(KVF_OK); /* as a control node; there is no answer yet */
  control_set_memory(&world.consumer);
  kvf_core_start(consumer(), world.now_ns);
  start_load();
  world.held = false;
  control_settle();
  control_dial(KVF_OK);
  assert_int_not_equal(world.consumer.opened_link_id, 0);
}

/* ---- connections ---- */

static int set_up(__attribute__((unused)) void **state)
{
  open_world(false);
  return 0;
}

#define WORLD_TEST(name) TEST_WITH(name, set_up, control_world_close)

/* Late news of what is gone already. */
WORLD_TEST(unknown_connections_are_ignored)
{
  const uint8_t body[4] = {0};
  kvf_core_on_dialed(producer(), world.now_ns, 99, KVF_OK);
  kvf_core_on_frame(producer(), world.now_ns, 99, KVF_FRAME_PING, body, sizeof(body));
  kvf_core_on_malformed(producer(), world.now_ns, 99);
  kvf_core_on_insecure(producer(), world.now_ns, 99, "without a key");
  kvf_core_on_closed(producer(), world.now_ns, 99);
  assert_int_equal(kvf_core_frame_limit(producer(), 99), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  assert_false(kvf_core_has_output(producer()));
}

/* P8: neither side takes long frames from who has not proved the key. */
WORLD_TEST(frames_are_short_until_the_key_is_proved)
{
  world.held = true;
  start_load();
  control_dial(KVF_OK);
  uint64_t accepted = world.producer.conn_id;
  uint64_t dialed = world.consumer.conn_id;
  assert_int_equal(kvf_core_frame_limit(producer(), accepted), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  assert_int_equal(kvf_core_frame_limit(consumer(), dialed), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  world.held = false;
  control_settle();
  assert_int_equal(kvf_core_frame_limit(producer(), accepted), KVF_FRAME_BODY_BYTES_MAX);
  assert_int_equal(kvf_core_frame_limit(consumer(), dialed), KVF_FRAME_BODY_BYTES_MAX);
}

/* What waits behind the frame that ended a connection may not be long either. */
WORLD_TEST(frames_are_short_after_hanging_up)
{
  kvf_address from = {.port = 7};
  uint64_t conn_id = 0;
  assert_int_equal(kvf_core_on_accepted(producer(), world.now_ns, from, &conn_id), KVF_OK);
  kvf_core_on_frame(producer(), world.now_ns, conn_id, KVF_FRAME_PING, NULL, 0);
  assert_int_equal(kvf_core_frame_limit(producer(), conn_id), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  kvf_core_on_frame(producer(), world.now_ns, conn_id, KVF_FRAME_PING, NULL, 0);
  kvf_core_on_malformed(producer(), world.now_ns, conn_id);
  assert_int_equal(producer()->sessions.counters.protocol_errors, 1);
}

typedef struct taken {
  uint32_t calls;
  uint32_t hang_ups;
  size_t bytes;
} taken;

static void take(void *context, const kvf_core_output *output)
{
  taken *t = context;
  t->calls++;
  t->hang_ups += output->hang_up;
  t->bytes += output->bytes;
}

WORLD_TEST(output_is_taken_once)
{
  kvf_address from = {.port = 7};
  uint64_t conn_id = 0;
  taken t = {0};
  assert_int_equal(kvf_core_on_accepted(producer(), world.now_ns, from, &conn_id), KVF_OK);
  assert_false(kvf_core_has_output(producer()));
  kvf_core_on_malformed(producer(), world.now_ns, conn_id);
  assert_true(kvf_core_has_output(producer()));
  kvf_core_take_output(producer(), take, &t);
  assert_int_equal(t.calls, 1);
  assert_int_equal(t.hang_ups, 1);
  assert_true(t.bytes > KVF_FRAME_HEADER_BYTES); /* why */
  assert_null(kvf_conns_find(&producer()->context.conns, conn_id));
  assert_false(kvf_core_has_output(producer()));
  kvf_core_take_output(producer(), take, &t);
  assert_int_equal(t.calls, 1);
  kvf_core_on_closed(producer(), world.now_ns, conn_id); /* the socket's own end comes late */
}

WORLD_TEST(closed_connections_end_their_session)
{
  kvf_address from = {.port = 7};
  uint64_t conn_id = 0;
  assert_int_equal(kvf_core_on_accepted(producer(), world.now_ns, from, &conn_id), KVF_OK);
  kvf_core_on_closed(producer(), world.now_ns, conn_id);
  assert_int_equal(producer()->sessions.unproven.count, 0);
  assert_int_equal(producer()->sessions.counters.abandoned, 1);
  assert_non_null(strstr(world.producer.last_log, ":7: peer_down: it went before its handshake"));
  assert_null(kvf_conns_find(&producer()->context.conns, conn_id));
  assert_false(kvf_core_has_output(producer()));

  start_load();
  control_dial(KVF_OK);
  assert_int_equal(HASH_CNT(by_id, producer()->sessions.by_id), 1);
  control_cut();
  assert_int_equal(HASH_CNT(by_id, producer()->sessions.by_id), 0);
  assert_int_equal(producer()->sessions.counters.abandoned, 1); /* that one had proved itself */
}

WORLD_TEST(malformed_frames_end_either_side)
{
  start_load();
  control_dial(KVF_OK);
  kvf_core_on_malformed(producer(), world.now_ns, world.producer.conn_id);
  assert_int_equal(HASH_CNT(by_id, producer()->sessions.by_id), 0);
  assert_int_equal(producer()->sessions.counters.protocol_errors, 1);
  kvf_core_on_malformed(consumer(), world.now_ns, world.consumer.conn_id);
  assert_non_null(strstr(world.consumer.last_log, "protocol: malformed message"));
  assert_int_equal(consumer()->peers.counters.failures, 1);
}

/* What is below the frames has found fault with the other side: before the handshake is over it lacks the key. */
WORLD_TEST(insecure_connections_end_either_side)
{
  start_load();
  control_dial(KVF_OK);
  kvf_core_on_insecure(producer(), world.now_ns, world.producer.conn_id, "altered on its way");
  assert_int_equal(HASH_CNT(by_id, producer()->sessions.by_id), 0);
  assert_int_equal(producer()->sessions.counters.protocol_errors, 1);
  assert_non_null(strstr(world.producer.last_log, "protocol: altered on its way"));
  kvf_core_on_insecure(consumer(), world.now_ns, world.consumer.conn_id, "altered on its way");
  assert_non_null(strstr(world.consumer.last_log, "protocol: altered on its way"));
  assert_int_equal(consumer()->peers.counters.failures, 1);

  open_world(false);
  world.held = true;
  start_load();
  control_dial(KVF_OK);
  kvf_core_on_insecure(producer(), world.now_ns, world.producer.conn_id, "it has another key");
  assert_int_equal(producer()->sessions.unproven.count, 0);
  assert_int_equal(producer()->sessions.counters.refused_key, 1);
  assert_non_null(strstr(world.producer.last_log, "handshake_refused: it has another key"));
  kvf_core_on_closed(producer(), world.now_ns, world.producer.conn_id);
  assert_int_equal(producer()->sessions.counters.abandoned, 0);
  kvf_core_on_insecure(consumer(), world.now_ns, world.consumer.conn_id, "it refused our key");
  assert_non_null(strstr(world.consumer.last_log, "handshake_refused: it refused our key"));
  kvf_core_on_insecure(consumer(), world.now_ns, world.consumer.conn_id, "it refused our key"); /* hung up on already */
  assert_int_equal(consumer()->peers.counters.failures, 1);
}

CONTROL_TEST(lease_states_go_to_the_requests)
{
  uint64_t id = 0;
  const uint8_t garbage[3] = {1, 2, 3};
  open_world(true);
  assert_int_equal(
      kvf_requests_open(&consumer()->requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                        &ticket.prompt, NULL, 5, &id, NULL),
      KVF_OK);
  control_settle();
  control_dial(KVF_OK);
  uint64_t conn_id = world.consumer.conn_id;
  kvf_core_on_frame(consumer(), world.now_ns, conn_id, KVF_FRAME_LEASE_STATES, garbage, sizeof(garbage));
  assert_int_equal(consumer()->peers.counters.failures, 1);
  assert_non_null(strstr(world.consumer.last_log, "protocol"));
}

/* Before the handshake has ended they are no answer to anything. */
WORLD_TEST(early_lease_states_are_refused)
{
  world.held = true;
  start_load();
  control_dial(KVF_OK);
  kvf_core_on_frame(consumer(), world.now_ns, world.consumer.conn_id, KVF_FRAME_LEASE_STATES, NULL, 0);
  control_settle();
  assert_int_equal(consumer()->peers.counters.failures, 1);
  assert_outcome(KVF_PROTOCOL);
}

/* ---- peers to loads and requests ---- */

WORLD_TEST(failed_dial_ends_the_load)
{
  start_load();
  control_dial(KVF_PEER_DOWN);
  assert_outcome(KVF_PEER_DOWN);
}

CONTROL_TEST(failed_link_ends_the_load)
{
  open_link();
  kvf_peers_on_link(&consumer()->peers, world.now_ns, world.consumer.opened_link_id, KVF_TRANSFER_SETUP);
  control_settle();
  assert_outcome(KVF_TRANSFER_SETUP);
  assert_int_equal(world.consumer.closed_links, 1);
}

CONTROL_TEST(reads_come_back_to_their_load)
{
  kvf_event event;
  open_read();
  control_publish(&ticket);
  kvf_loads_on_read_done(&consumer()->loads, world.now_ns, 12345, KVF_OK, 0, NULL, 7); /* nobody's */
  assert_int_equal(consumer()->loads.stats.late, 1);
  kvf_loads_on_read_done(&consumer()->loads, world.now_ns, world.consumer.last_read.transfer.id, KVF_LEASE_UNKNOWN, 0,
                         NULL, 7);
  assert_outcome(KVF_LEASE_UNKNOWN);
  assert_true(next_event(&event));
  assert_int_equal(event.kind, KVF_EVENT_RELEASED);
}

static void lose_link(void)
{
  kvf_peers_on_link_down(&consumer()->peers, world.now_ns, world.consumer.opened_link_id, KVF_PEER_DOWN);
  control_settle();
  kvf_loads_on_read_done(&consumer()->loads, world.now_ns, world.consumer.last_read.transfer.id, KVF_PEER_DOWN, 0, NULL,
                         0);
  control_settle();
}

/* A link that breaks takes its reads with it. They are asked for again over a new one; there is no third. */
CONTROL_TEST(lost_link_is_opened_anew_once)
{
  kvf_event event;
  open_read();
  uint32_t first = world.consumer.opened_link_id;
  lose_link();
  assert_int_equal(world.consumer.closed_links, 1);
  assert_false(next_event(&event));
  control_advance(20); /* its backoff */
  assert_int_not_equal(world.consumer.opened_link_id, first);
  kvf_peers_on_link(&consumer()->peers, world.now_ns, world.consumer.opened_link_id, KVF_OK);
  control_settle();
  assert_int_equal(world.consumer.reads, 2);
  lose_link();
  control_advance(40);
  assert_outcome(KVF_PEER_DOWN);
  assert_int_equal(world.consumer.reads, 2);
}

/* Silence on the link: the peer is asked, answers, and so only the link is given up. */
CONTROL_TEST(pings_and_pongs_find_the_stalled_path)
{
  open_read();
  control_advance(501);
  assert_int_equal(consumer()->loads.stats.pings, 1);
  for (int half = 0; half < 2; half++) {
    control_advance(500);
    assert_int_equal(consumer()->loads.stats.stalls, 0); /* it has answered */
  }
  control_advance(500);
  assert_int_equal(consumer()->loads.stats.stalls, 1);
  assert_int_equal(consumer()->peers.counters.stalls, 1);
  assert_int_equal(world.consumer.closed_links, 1);
  assert_int_not_equal(world.consumer.conn_id, 0); /* the peer itself is fine */
}

CONTROL_TEST(silent_peer_is_given_up_with_its_path)
{
  open_read();
  world.held = true;
  control_advance(501);
  control_advance(500);
  assert_int_equal(consumer()->peers.counters.stalls, 1);
  assert_int_equal(world.consumer.conn_id, 0);
  assert_non_null(strstr(world.consumer.last_log, "transfer_stalled: no byte and no answer to a ping"));
}

CONTROL_TEST(progress_puts_the_stall_off)
{
  open_read();
  for (int i = 0; i < 20; i++) {
    control_advance(400);
    kvf_loads_on_read_progress(&consumer()->loads, world.now_ns, world.consumer.last_read.transfer.id);
    kvf_loads_on_read_progress(&consumer()->loads, world.now_ns, 12345);
  }
  assert_int_equal(consumer()->loads.stats.pings, 0);
  assert_int_equal(consumer()->loads.stats.stalls, 0);
}

CONTROL_TEST(open_and_failed_connections_are_heard_by_the_requests)
{
  uint64_t id = 0;
  open_world(true);
  control_publish(&ticket);
  assert_int_equal(
      kvf_requests_open(&consumer()->requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                        &ticket.prompt, NULL, 5, &id, NULL),
      KVF_OK);
  control_settle();
  control_dial(KVF_PEER_DOWN);
  assert_int_equal(consumer()->requests.attachments.counters.renewals, 0);
  assert_true(kvf_list_is_empty(&consumer()->peers.by_key->due)); /* dropped until its next time */
  control_advance(501);                                           /* the probe */
  control_dial(KVF_OK);
  control_advance(5000);
  assert_int_equal(consumer()->requests.attachments.counters.renewals, 1);
  assert_int_equal(producer()->leases.counters.late_renewals, 0);
}
