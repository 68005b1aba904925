/* Who hears what: connections to sessions and peers, peers to loads and requests, and all of them to the runtime. */
#include <string.h>

/* clang-format off */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "control_world.h"

#define BLOCKS 4

static control_world world;
static kvf_ticket ticket;
static uint32_t ids[BLOCKS];

static void open_world(bool control)
{
  control_options options;
  control_options_init(&options);
  options.control = control;
  control_world_open(&world, &options);
  control_ticket(&world, &ticket, ids, BLOCKS);
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
  kvf_load load = {.request_id = 1,
                   .prompt = ticket.prompt,
                   .destination = {.ids = destination, .counts = ticket.counts, .groups = 1}};
  uint64_t digest = 0;
  assert_int_equal(kvf_fence_digest(&ticket.lease, &blocks, &ticket.prompt, &digest), KVF_OK);
  assert_int_equal(kvf_core_load_start(consumer(), world.now_ns,
                                       &(kvf_sources){.count = 1, .tickets = {&ticket}, .digests = {digest}}, &load),
                   KVF_OK);
  control_settle(&world);
}

/* A load whose control connection is up and whose link is being opened. */
static void open_link(void)
{
  open_world(false);
  start_load();
  control_dial(&world, KVF_OK);
  assert_int_not_equal(world.consumer.opened_path, 0);
}

/* A load with a read in flight. */
static void open_read(void)
{
  open_link();
  kvf_core_on_link(consumer(), world.now_ns, world.consumer.opened_path, KVF_OK);
  control_settle(&world);
  assert_int_equal(world.consumer.reads, 1);
}

static bool next_event(kvf_event *event)
{
  bool got = kvf_core_next_event(consumer(), world.now_ns, event);
  control_settle(&world);
  return got;
}

static void assert_outcome(kvf_status status)
{
  kvf_event event;
  assert_true(next_event(&event));
  assert_int_equal(event.kind, KVF_EVENT_LOAD);
  assert_int_equal(event.u.report.status, status);
}

/* ---- connections ---- */

/* Late news of what is gone already. */
static void unknown_connections_are_ignored(void **state)
{
  (void)state;
  const uint8_t body[4] = {0};
  open_world(false);
  kvf_core_on_dialed(producer(), world.now_ns, 99, KVF_OK);
  kvf_core_on_frame(producer(), world.now_ns, 99, KVF_FRAME_PING, body, sizeof(body));
  kvf_core_on_malformed(producer(), world.now_ns, 99);
  kvf_core_on_insecure(producer(), world.now_ns, 99, "without a key");
  kvf_core_on_closed(producer(), world.now_ns, 99);
  assert_int_equal(kvf_core_frame_limit(producer(), 99), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  assert_false(kvf_core_has_output(producer()));
  control_world_close(&world);
}

/* P8: neither side takes long frames from who has not proved the key. */
static void frames_are_short_until_the_key_is_proved(void **state)
{
  (void)state;
  open_world(false);
  world.held = true;
  start_load();
  control_dial(&world, KVF_OK);
  uint64_t accepted = world.producer.conn_id;
  uint64_t dialed = world.consumer.conn_id;
  assert_int_equal(kvf_core_frame_limit(producer(), accepted), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  assert_int_equal(kvf_core_frame_limit(consumer(), dialed), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  world.held = false;
  control_settle(&world);
  assert_int_equal(kvf_core_frame_limit(producer(), accepted), KVF_FRAME_BODY_BYTES_MAX);
  assert_int_equal(kvf_core_frame_limit(consumer(), dialed), KVF_FRAME_BODY_BYTES_MAX);
  control_world_close(&world);
}

/* What waits behind the frame that ended a connection may not be long either. */
static void frames_are_short_after_hanging_up(void **state)
{
  (void)state;
  kvf_address from = {.port = 7};
  uint64_t conn_id = 0;
  open_world(false);
  assert_int_equal(kvf_core_on_accepted(producer(), world.now_ns, from, &conn_id), KVF_OK);
  kvf_core_on_frame(producer(), world.now_ns, conn_id, KVF_FRAME_PING, NULL, 0);
  assert_int_equal(kvf_core_frame_limit(producer(), conn_id), KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
  kvf_core_on_frame(producer(), world.now_ns, conn_id, KVF_FRAME_PING, NULL, 0);
  kvf_core_on_malformed(producer(), world.now_ns, conn_id);
  assert_int_equal(producer()->sessions.counters.protocol_errors, 1);
  control_world_close(&world);
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

static void output_is_taken_once(void **state)
{
  (void)state;
  kvf_address from = {.port = 7};
  uint64_t conn_id = 0;
  taken t = {0};
  open_world(false);
  assert_int_equal(kvf_core_on_accepted(producer(), world.now_ns, from, &conn_id), KVF_OK);
  assert_false(kvf_core_has_output(producer()));
  kvf_core_on_malformed(producer(), world.now_ns, conn_id);
  assert_true(kvf_core_has_output(producer()));
  kvf_core_take_output(producer(), take, &t);
  assert_int_equal(t.calls, 1);
  assert_int_equal(t.hang_ups, 1);
  assert_true(t.bytes > KVF_FRAME_HEADER_BYTES); /* why */
  assert_null(kvf_conns_find(&producer()->conns, conn_id));
  assert_false(kvf_core_has_output(producer()));
  kvf_core_take_output(producer(), take, &t);
  assert_int_equal(t.calls, 1);
  kvf_core_on_closed(producer(), world.now_ns, conn_id); /* the socket's own end comes late */
  control_world_close(&world);
}

static void closed_connections_end_their_session(void **state)
{
  (void)state;
  kvf_address from = {.port = 7};
  uint64_t conn_id = 0;
  open_world(false);
  assert_int_equal(kvf_core_on_accepted(producer(), world.now_ns, from, &conn_id), KVF_OK);
  kvf_core_on_closed(producer(), world.now_ns, conn_id);
  assert_int_equal(producer()->sessions.unproven_count, 0);
  assert_int_equal(producer()->sessions.counters.abandoned, 1);
  assert_non_null(strstr(world.producer.last_log, ":7: peer_down: it went before its handshake"));
  assert_null(kvf_conns_find(&producer()->conns, conn_id));
  assert_false(kvf_core_has_output(producer()));

  start_load();
  control_dial(&world, KVF_OK);
  assert_int_equal(producer()->sessions.open_count, 1);
  control_cut(&world);
  assert_int_equal(producer()->sessions.open_count, 0);
  assert_int_equal(producer()->sessions.counters.abandoned, 1); /* that one had proved itself */
  control_world_close(&world);
}

static void malformed_frames_end_either_side(void **state)
{
  (void)state;
  open_world(false);
  start_load();
  control_dial(&world, KVF_OK);
  kvf_core_on_malformed(producer(), world.now_ns, world.producer.conn_id);
  assert_int_equal(producer()->sessions.open_count, 0);
  assert_int_equal(producer()->sessions.counters.protocol_errors, 1);
  kvf_core_on_malformed(consumer(), world.now_ns, world.consumer.conn_id);
  assert_non_null(strstr(world.consumer.last_log, "protocol: malformed message"));
  assert_int_equal(consumer()->peers.counters.failures, 1);
  control_world_close(&world);
}

/* What is below the frames has found fault with the other side: before the handshake is over it lacks the key. */
static void insecure_connections_end_either_side(void **state)
{
  (void)state;
  open_world(false);
  start_load();
  control_dial(&world, KVF_OK);
  kvf_core_on_insecure(producer(), world.now_ns, world.producer.conn_id, "altered on its way");
  assert_int_equal(producer()->sessions.open_count, 0);
  assert_int_equal(producer()->sessions.counters.protocol_errors, 1);
  assert_non_null(strstr(world.producer.last_log, "protocol: altered on its way"));
  kvf_core_on_insecure(consumer(), world.now_ns, world.consumer.conn_id, "altered on its way");
  assert_non_null(strstr(world.consumer.last_log, "protocol: altered on its way"));
  assert_int_equal(consumer()->peers.counters.failures, 1);
  control_world_close(&world);

  open_world(false);
  world.held = true;
  start_load();
  control_dial(&world, KVF_OK);
  kvf_core_on_insecure(producer(), world.now_ns, world.producer.conn_id, "it has another key");
  assert_int_equal(producer()->sessions.unproven_count, 0);
  assert_int_equal(producer()->sessions.counters.refused_key, 1);
  assert_non_null(strstr(world.producer.last_log, "handshake_refused: it has another key"));
  kvf_core_on_closed(producer(), world.now_ns, world.producer.conn_id);
  assert_int_equal(producer()->sessions.counters.abandoned, 0);
  kvf_core_on_insecure(consumer(), world.now_ns, world.consumer.conn_id, "it refused our key");
  assert_non_null(strstr(world.consumer.last_log, "handshake_refused: it refused our key"));
  kvf_core_on_insecure(consumer(), world.now_ns, world.consumer.conn_id, "it refused our key"); /* hung up on already */
  assert_int_equal(consumer()->peers.counters.failures, 1);
  control_world_close(&world);
}

static void lease_states_go_to_the_requests(void **state)
{
  (void)state;
  uint64_t id = 0;
  const uint8_t garbage[3] = {1, 2, 3};
  open_world(true);
  assert_int_equal(
      kvf_requests_open(&consumer()->requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                        &ticket.prompt, NULL, 5, &id, NULL),
      KVF_OK);
  control_settle(&world);
  control_dial(&world, KVF_OK);
  uint64_t conn_id = world.consumer.conn_id;
  kvf_core_on_frame(consumer(), world.now_ns, conn_id, KVF_FRAME_LEASE_STATES, garbage, sizeof(garbage));
  assert_int_equal(consumer()->peers.counters.failures, 1);
  assert_non_null(strstr(world.consumer.last_log, "protocol"));
  control_world_close(&world);
}

/* Before the handshake has ended they are no answer to anything. */
static void early_lease_states_are_refused(void **state)
{
  (void)state;
  open_world(false);
  world.held = true;
  start_load();
  control_dial(&world, KVF_OK);
  kvf_core_on_frame(consumer(), world.now_ns, world.consumer.conn_id, KVF_FRAME_LEASE_STATES, NULL, 0);
  control_settle(&world);
  assert_int_equal(consumer()->peers.counters.failures, 1);
  assert_outcome(KVF_PROTOCOL);
  control_world_close(&world);
}

/* ---- peers to loads and requests ---- */

static void failed_dial_ends_the_load(void **state)
{
  (void)state;
  open_world(false);
  start_load();
  control_dial(&world, KVF_PEER_DOWN);
  assert_outcome(KVF_PEER_DOWN);
  control_world_close(&world);
}

static void failed_link_ends_the_load(void **state)
{
  (void)state;
  open_link();
  kvf_core_on_link(consumer(), world.now_ns, world.consumer.opened_path, KVF_TRANSFER_SETUP);
  control_settle(&world);
  assert_outcome(KVF_TRANSFER_SETUP);
  assert_int_equal(world.consumer.closed_links, 1);
  control_world_close(&world);
}

static void reads_come_back_to_their_load(void **state)
{
  (void)state;
  kvf_event event;
  open_read();
  control_publish(&world, &ticket);
  kvf_core_on_read_done(consumer(), world.now_ns, 12345, KVF_OK, NULL, 7); /* nobody's */
  assert_int_equal(kvf_loads_stats(consumer()->loads)->late, 1);
  kvf_core_on_read_done(consumer(), world.now_ns, world.consumer.last_read.read_id, KVF_LEASE_UNKNOWN, NULL, 7);
  assert_outcome(KVF_LEASE_UNKNOWN);
  assert_true(next_event(&event));
  assert_int_equal(event.kind, KVF_EVENT_QUIET);
  control_world_close(&world);
}

static void lose_link(void)
{
  kvf_core_on_link_down(consumer(), world.now_ns, world.consumer.opened_path, KVF_PEER_DOWN);
  control_settle(&world);
  kvf_core_on_read_done(consumer(), world.now_ns, world.consumer.last_read.read_id, KVF_PEER_DOWN, NULL, 0);
  control_settle(&world);
}

/* A link that breaks takes its reads with it. They are asked for again over a new one; there is no third. */
static void lost_link_is_opened_anew_once(void **state)
{
  (void)state;
  kvf_event event;
  open_read();
  uint32_t first = world.consumer.opened_path;
  lose_link();
  assert_int_equal(world.consumer.closed_links, 1);
  assert_false(next_event(&event));
  control_advance(&world, 20); /* its backoff */
  assert_int_not_equal(world.consumer.opened_path, first);
  kvf_core_on_link(consumer(), world.now_ns, world.consumer.opened_path, KVF_OK);
  control_settle(&world);
  assert_int_equal(world.consumer.reads, 2);
  lose_link();
  control_advance(&world, 40);
  assert_outcome(KVF_PEER_DOWN);
  assert_int_equal(world.consumer.reads, 2);
  control_world_close(&world);
}

/* Silence on the path: the peer is asked, answers, and so only the path is given up. */
static void pings_and_pongs_find_the_stalled_path(void **state)
{
  (void)state;
  open_read();
  control_advance(&world, 501);
  assert_int_equal(kvf_loads_stats(consumer()->loads)->pings, 1);
  for (int half = 0; half < 2; half++) {
    control_advance(&world, 500);
    assert_int_equal(kvf_loads_stats(consumer()->loads)->stalls, 0); /* it has answered */
  }
  control_advance(&world, 500);
  assert_int_equal(kvf_loads_stats(consumer()->loads)->stalls, 1);
  assert_int_equal(consumer()->peers.counters.stalls, 1);
  assert_int_equal(world.consumer.closed_links, 1);
  assert_int_not_equal(world.consumer.conn_id, 0); /* the peer itself is fine */
  control_world_close(&world);
}

static void silent_peer_is_given_up_with_its_path(void **state)
{
  (void)state;
  open_read();
  world.held = true;
  control_advance(&world, 501);
  control_advance(&world, 500);
  assert_int_equal(consumer()->peers.counters.stalls, 1);
  assert_int_equal(world.consumer.conn_id, 0);
  assert_non_null(strstr(world.consumer.last_log, "transfer_stalled: no byte and no answer to a ping"));
  control_world_close(&world);
}

static void progress_puts_the_stall_off(void **state)
{
  (void)state;
  open_read();
  for (int i = 0; i < 20; i++) {
    control_advance(&world, 400);
    kvf_core_on_read_progress(consumer(), world.now_ns, world.consumer.last_read.read_id);
    kvf_core_on_read_progress(consumer(), world.now_ns, 12345);
  }
  assert_int_equal(kvf_loads_stats(consumer()->loads)->pings, 0);
  assert_int_equal(kvf_loads_stats(consumer()->loads)->stalls, 0);
  control_world_close(&world);
}

static void open_and_failed_connections_are_heard_by_the_requests(void **state)
{
  (void)state;
  uint64_t id = 0;
  open_world(true);
  control_publish(&world, &ticket);
  assert_int_equal(
      kvf_requests_open(&consumer()->requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                        &ticket.prompt, NULL, 5, &id, NULL),
      KVF_OK);
  control_settle(&world);
  control_dial(&world, KVF_PEER_DOWN);
  assert_int_equal(consumer()->requests.counters.renewals, 0);
  assert_true(kvf_list_is_empty(&consumer()->requests.due[0])); /* dropped until its next time */
  control_advance(&world, 501);                                 /* the probe */
  control_dial(&world, KVF_OK);
  control_advance(&world, 5000);
  assert_int_equal(consumer()->requests.counters.renewals, 1);
  assert_int_equal(producer()->leases.counters.late_renewals, 0);
  control_world_close(&world);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unknown_connections_are_ignored),
      cmocka_unit_test(frames_are_short_until_the_key_is_proved),
      cmocka_unit_test(frames_are_short_after_hanging_up),
      cmocka_unit_test(output_is_taken_once),
      cmocka_unit_test(closed_connections_end_their_session),
      cmocka_unit_test(malformed_frames_end_either_side),
      cmocka_unit_test(insecure_connections_end_either_side),
      cmocka_unit_test(lease_states_go_to_the_requests),
      cmocka_unit_test(early_lease_states_are_refused),
      cmocka_unit_test(failed_dial_ends_the_load),
      cmocka_unit_test(failed_link_ends_the_load),
      cmocka_unit_test(reads_come_back_to_their_load),
      cmocka_unit_test(lost_link_is_opened_anew_once),
      cmocka_unit_test(pings_and_pongs_find_the_stalled_path),
      cmocka_unit_test(silent_peer_is_given_up_with_its_path),
      cmocka_unit_test(progress_puts_the_stall_off),
      cmocka_unit_test(open_and_failed_connections_are_heard_by_the_requests),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
