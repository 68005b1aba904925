#include "load_world.h"

/* ---- retries ---- */

LOAD_TEST(retry_only_what_is_missing)
{
  world_start_reading();
  world_failed(1, 1, KVF_TRANSFER_FAILED);
  expect_at(100, ""); /* read 2 is not quiet */
  world_live(100, 1, 2);
  expect_at(104, "");
  expect_at(110, "want 1");
  world_path(111, 1, 12);
  expect(111, "read 3 over 12: 0,1,2,3");
  world_live(112, 1, 3);
  expect(112, "outcome 500 ok 6/6; quiet 500");
  assert_int_equal(kvf_loads_stats(w.loads)->retries, 1);
}

LOAD_TEST(retryable_statuses)
{
  const kvf_status statuses[] = {KVF_TRANSFER_FAILED, KVF_TRANSFER_STALLED, KVF_PEER_DOWN, KVF_CANCELLED, KVF_CHECKSUM};
  uint64_t read_id = 1;
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    world_spec(500 + i, 1, "1");
    world_start(0);
    expect(0, "want 1");
    world_path(0, 1, 11);
    world_trace(0);
    world_failed(0, read_id++, statuses[i]);
    expect(0, "");
    expect_at(10 * (i + 1), "want 1");
    world_path(10 * (i + 1), 1, 12);
    world_trace(10 * (i + 1));
    world_live(10 * (i + 1), 1, read_id++);
    assert_string_not_equal(world_trace(10 * (i + 1)), "");
    assert_int_equal(kvf_loads_stats(w.loads)->outcomes[0], i + 1);
  }
}

LOAD_TEST(final_statuses)
{
  const kvf_status statuses[] = {KVF_LEASE_EXPIRED, KVF_LEASE_UNKNOWN, KVF_BAD_TICKET, KVF_PEER_RESTARTED,
                                 KVF_INCOMPATIBLE};
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    world_spec(500 + i, 1, "1");
    world_start(0);
    expect(0, "want 1");
    world_path(0, 1, 11);
    world_trace(0);
    world_failed(0, 1 + i, statuses[i]);
    char text[128];
    (void)snprintf(text, sizeof(text), "outcome %d %s 0/1; quiet %d", (int)(500 + i), kvf_status_name(statuses[i]),
                   (int)(500 + i));
    expect(0, text);
  }
}

LOAD_TEST(lease_over_midway)
{
  world_start_reading();
  world_live(1, 1, 1);
  expect(1, "");
  world_over(2, 1, 2);
  expect(2, "outcome 500 lease_expired 4/6; quiet 500");
}

LOAD_TEST(lease_over_cancels_the_rest)
{
  world_start_reading();
  world_over(2, 1, 1);
  expect(2, "cancel 2 over 11; outcome 500 lease_expired 0/6");
  world_live(3, 1, 2); /* too late to count */
  expect(3, "quiet 500");
}

LOAD_TEST(another_process_answers)
{
  world_start_reading();
  world_live(1, 1, 1);
  world_live(2, 2, 2);
  expect(2, "outcome 500 peer_restarted 4/6; quiet 500");
}

LOAD_TEST(not_published_then_live)
{
  world_start_reading();
  world_not_published(1, 1, 1);
  expect(1, "");
  world_failed(2, 2, KVF_NOT_PUBLISHED); /* the producer says it itself */
  expect_at(6, "");
  expect_at(12, "read 3 over 11: 0,1,2,3; read 4 over 11: 4,5"); /* the same path */
  world_live(13, 1, 3);
  world_live(13, 1, 4);
  expect(13, "outcome 500 ok 6/6; quiet 500");
}

LOAD_TEST(never_published)
{
  world_spec(500, 1, "1");
  w.spec.deadline_ns = 100 * MS;
  world_start(0);
  expect(0, "want 1");
  world_path(0, 1, 11);
  uint64_t read_id = 1;
  for (uint64_t now_ms = 0; now_ms < 100; now_ms++) {
    world_tick(now_ms);
    if (world_trace(now_ms)[0] == 'r') {
      world_not_published(now_ms, 1, read_id++);
    }
  }
  assert_in_range(read_id, 10, 21);
  expect_at(100, "outcome 500 deadline 0/1; quiet 500");
}

LOAD_TEST(path_lost_while_not_published)
{
  world_spec(500, 1, "1");
  expect_started(0, "read 1 over 11: 0");
  world_not_published(0, 1, 1);
  kvf_loads_on_path_down(w.loads, 1 * MS, 1, 11);
  expect_at(10, "want 1");
}

/* Pauses of 10, 20, 40 ms and so on, at least half of each, until a block is confirmed. */
LOAD_TEST(pauses_grow_until_a_success)
{
  w.config.backoff_max_ns = 1000 * MS;
  w.config.chunks_in_flight = 1;
  kvf_loads_destroy(w.loads);
  world_open();
  world_spec(500, 5, "1");
  expect_started(0, "read 1 over 11: 0,1,2,3");
  world_not_published(0, 1, 1);
  expect_at(10, "read 2 over 11: 0,1,2,3");
  world_not_published(10, 1, 2);
  expect_at(30, "read 3 over 11: 0,1,2,3");
  world_not_published(30, 1, 3);
  expect_at(49, "");
  expect_at(70, "read 4 over 11: 0,1,2,3");
  world_live(70, 1, 4);
  expect(70, "read 5 over 11: 4");
  world_not_published(70, 1, 5);
  expect_at(80, "read 6 over 11: 4");
}

/* What this node was called with was right when the load began: a failure has another reason, which is counted. */
LOAD_TEST(outcome_is_never_the_callers_mistake)
{
  world_spec(500, 1, "1");
  world_start(0);
  expect(0, "want 1");
  world_path(0, 1, 11);
  world_trace(0);
  world_failed(0, 1, KVF_INVALID); /* the producer has no such block */
  expect(0, "outcome 500 bad_ticket 0/1; quiet 500");
  const int statuses[] = {KVF_INVALID, KVF_LIMIT, KVF_CLOSED, -12345}; /* the last is no enumerator */
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    char text[128];
    world_spec(600 + i, 1, "1");
    world_start(0);
    expect(0, "want 1");
    kvf_loads_on_path(w.loads, 0, 1, 0, statuses[i]);
    (void)snprintf(text, sizeof(text), "outcome %d transfer_failed 0/1; quiet %d", (int)(600 + i), (int)(600 + i));
    expect(0, text);
  }
  uint64_t counted = 0;
  for (unsigned i = 0; kvf_status_at(i) != NULL && i < KVF_STATUSES_MAX; i++) {
    bool shown = kvf_status_at(i)->lost != KVF_LOST_CALL;
    counted += shown ? kvf_loads_stats(w.loads)->outcomes[i] : 0;
  }
  assert_int_equal(counted, 5);
}

/* ---- paths ---- */

LOAD_TEST(path_refused)
{
  world_spec(500, 6, "1");
  world_start(0);
  expect(0, "want 1");
  kvf_loads_on_path(w.loads, 1 * MS, 1, 0, KVF_HANDSHAKE_REFUSED);
  expect(1, "outcome 500 handshake_refused 0/6; quiet 500");
}

LOAD_TEST(first_trouble_is_remembered)
{
  world_start_reading();
  world_failed(1, 1, KVF_CANCELLED);
  world_failed(1, 2, KVF_CHECKSUM);
  expect_at(11, "want 1");
  world_path(11, 1, 12);
  expect(11, "read 3 over 12: 0,1,2,3; read 4 over 12: 4,5");
  world_failed(12, 3, KVF_TRANSFER_FAILED);
  world_failed(12, 4, KVF_TRANSFER_FAILED);
  expect_at(22, "want 1");
  kvf_loads_on_path(w.loads, 22 * MS, 1, 0, KVF_PEER_DOWN);
  expect(22, "outcome 500 checksum 0/6; quiet 500");
}

/* A producer that is killed is heard of by its data connection or its control connection, whichever ends first. */
LOAD_TEST(broken_path_of_a_peer_that_is_gone)
{
  static const struct {
    kvf_status refusal;
    const char *expected;
  } cases[] = {{KVF_PEER_DOWN, "peer_down"},
               {KVF_PEER_RESTARTED, "peer_restarted"},
               {KVF_TRANSFER_SETUP, "transfer_failed"},
               {KVF_HANDSHAKE_TIMEOUT, "transfer_failed"}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    char text[128];
    uint64_t now_ms = 100 * i;
    world_spec(500 + i, 1, "1");
    world_start(now_ms);
    expect(now_ms, "want 1");
    world_path(now_ms, 1, 11);
    world_trace(now_ms);
    world_failed(now_ms, i + 1, KVF_TRANSFER_FAILED);
    expect_at(now_ms + 50, "want 1");
    kvf_loads_on_path(w.loads, (now_ms + 50) * MS, 1, 0, cases[i].refusal);
    (void)snprintf(text, sizeof(text), "outcome %d %s 0/1; quiet %d", (int)(500 + i), cases[i].expected,
                   (int)(500 + i));
    expect(now_ms + 50, text);
  }
}

LOAD_TEST(trouble_that_is_over_is_forgotten)
{
  world_start_reading();
  world_failed(1, 1, KVF_TRANSFER_FAILED);
  world_live(1, 1, 2);
  expect_at(11, "want 1");
  kvf_loads_on_path(w.loads, 11 * MS, 1, 0, KVF_PEER_DOWN);
  expect(11, "outcome 500 peer_down 0/6; quiet 500");
}

LOAD_TEST(path_down)
{
  world_spec(500, 12, "1"); /* 0 to 7 in flight */
  expect_started(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  kvf_loads_on_path_down(w.loads, 1 * MS, 1, 99); /* another one */
  kvf_loads_on_path_down(w.loads, 1 * MS, 2, 11);
  world_live(1, 1, 1);
  expect(1, "read 3 over 11: 8,9,10,11");
  kvf_loads_on_path_down(w.loads, 2 * MS, 1, 11);
  kvf_loads_on_path_down(w.loads, 2 * MS, 1, 11);
  world_live(3, 1, 2);
  expect(3, "");
  world_failed(4, 3, KVF_CANCELLED);
  expect_at(14, "want 1");
  kvf_loads_on_path(w.loads, 15 * MS, 1, 0, KVF_PEER_DOWN);
  expect(15, "outcome 500 peer_down 8/12; quiet 500");
}

LOAD_TEST(path_down_before_any_read)
{
  world_spec(500, 1, "1");
  world_start(0);
  expect(0, "want 1");
  world_path(0, 1, 11);
  kvf_loads_on_path_down(w.loads, 0, 1, 11);
  expect(0, "");
  expect_at(10, "want 1");
}

LOAD_TEST(last_read_ends_well_after_path_down)
{
  world_start_reading();
  kvf_loads_on_path_down(w.loads, 1 * MS, 1, 11);
  world_live(2, 1, 2);
  world_live(2, 1, 1);
  expect(2, "outcome 500 ok 6/6; quiet 500");
}

LOAD_TEST(answers_that_nobody_waits_for)
{
  world_path(0, 1, 11);
  kvf_loads_on_pong(w.loads, 1);
  kvf_loads_on_path_down(w.loads, 0, 1, 11);
  world_start_reading();
  world_path(1, 1, 12);
  kvf_loads_on_path(w.loads, 1 * MS, 1, 0, KVF_PEER_DOWN);
  kvf_loads_on_pong(w.loads, 1);
  expect(1, "");
  world_failed(1, 99, KVF_TRANSFER_FAILED);
  world_live(1, 1, 2);
  world_live(1, 1, 2); /* twice */
  kvf_loads_on_read_progress(w.loads, 1 * MS, 99);
  expect(1, "");
  assert_int_equal(kvf_loads_stats(w.loads)->late, 2);
}
