#include "load_world.h"

/* ---- retries ---- */

static void retry_only_what_is_missing(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_failed(w, 1, 1, KVF_TRANSFER_FAILED);
  world_tick(w, 100);
  expect(w, 100, ""); /* read 2 is not quiet */
  world_live(w, 100, 1, 2);
  world_tick(w, 104);
  expect(w, 104, "");
  world_tick(w, 110);
  expect(w, 110, "want 1");
  world_path(w, 111, 1, 12);
  expect(w, 111, "read 3 over 12: 0,1,2,3");
  world_live(w, 112, 1, 3);
  expect(w, 112, "outcome 500 ok 6/6; quiet 500");
  assert_int_equal(kvf_loads_stats(w->loads)->retries, 1);
}

static void retryable_statuses(void **state)
{
  world *w = *state;
  const kvf_status statuses[] = {KVF_TRANSFER_FAILED, KVF_TRANSFER_STALLED, KVF_PEER_DOWN, KVF_CANCELLED, KVF_CHECKSUM};
  uint64_t read_id = 1;
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    world_spec(w, 500 + i, 1, "1");
    world_start(w, 0);
    expect(w, 0, "want 1");
    world_path(w, 0, 1, 11);
    world_trace(w, 0);
    world_failed(w, 0, read_id++, statuses[i]);
    expect(w, 0, "");
    world_tick(w, 10 * (i + 1));
    expect(w, 10 * (i + 1), "want 1");
    world_path(w, 10 * (i + 1), 1, 12);
    world_trace(w, 10 * (i + 1));
    world_live(w, 10 * (i + 1), 1, read_id++);
    assert_string_not_equal(world_trace(w, 10 * (i + 1)), "");
    assert_int_equal(kvf_loads_stats(w->loads)->outcomes[0], i + 1);
  }
}

static void final_statuses(void **state)
{
  world *w = *state;
  const kvf_status statuses[] = {KVF_LEASE_EXPIRED, KVF_LEASE_UNKNOWN, KVF_BAD_TICKET, KVF_PEER_RESTARTED,
                                 KVF_INCOMPATIBLE};
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    world_spec(w, 500 + i, 1, "1");
    world_start(w, 0);
    expect(w, 0, "want 1");
    world_path(w, 0, 1, 11);
    world_trace(w, 0);
    world_failed(w, 0, 1 + i, statuses[i]);
    char text[128];
    (void)snprintf(text, sizeof(text), "outcome %d %s 0/1; quiet %d", (int)(500 + i), kvf_status_name(statuses[i]),
                   (int)(500 + i));
    expect(w, 0, text);
  }
}

static void lease_over_midway(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_live(w, 1, 1, 1);
  expect(w, 1, "");
  world_over(w, 2, 1, 2);
  expect(w, 2, "outcome 500 lease_expired 4/6; quiet 500");
}

static void lease_over_cancels_the_rest(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_over(w, 2, 1, 1);
  expect(w, 2, "cancel 2 over 11; outcome 500 lease_expired 0/6");
  world_live(w, 3, 1, 2); /* too late to count */
  expect(w, 3, "quiet 500");
}

static void another_process_answers(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_live(w, 1, 1, 1);
  world_live(w, 2, 2, 2);
  expect(w, 2, "outcome 500 peer_restarted 4/6; quiet 500");
}

static void not_published_then_live(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_not_published(w, 1, 1, 1);
  expect(w, 1, "");
  world_failed(w, 2, 2, KVF_NOT_PUBLISHED); /* the producer says it itself */
  world_tick(w, 6);
  expect(w, 6, "");
  world_tick(w, 12);
  expect(w, 12, "read 3 over 11: 0,1,2,3; read 4 over 11: 4,5"); /* the same path */
  world_live(w, 13, 1, 3);
  world_live(w, 13, 1, 4);
  expect(w, 13, "outcome 500 ok 6/6; quiet 500");
}

static void never_published(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  w->spec.deadline_ns = 100 * MS;
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  uint64_t read_id = 1;
  for (uint64_t now_ms = 0; now_ms < 100; now_ms++) {
    world_tick(w, now_ms);
    if (world_trace(w, now_ms)[0] == 'r') {
      world_not_published(w, now_ms, 1, read_id++);
    }
  }
  assert_in_range(read_id, 10, 21);
  world_tick(w, 100);
  expect(w, 100, "outcome 500 deadline 0/1; quiet 500");
}

static void path_lost_while_not_published(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0");
  world_not_published(w, 0, 1, 1);
  kvf_loads_on_path_down(w->loads, 1 * MS, 1, 11);
  world_tick(w, 10);
  expect(w, 10, "want 1");
}

/* Pauses of 10, 20, 40 ms and so on, at least half of each, until a block is confirmed. */
static void pauses_grow_until_a_success(void **state)
{
  world *w = *state;
  w->config.backoff_max_ns = 1000 * MS;
  w->config.chunks_in_flight = 1;
  kvf_loads_destroy(w->loads);
  world_open(w);
  world_spec(w, 500, 5, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0,1,2,3");
  world_not_published(w, 0, 1, 1);
  world_tick(w, 10);
  expect(w, 10, "read 2 over 11: 0,1,2,3");
  world_not_published(w, 10, 1, 2);
  world_tick(w, 30);
  expect(w, 30, "read 3 over 11: 0,1,2,3");
  world_not_published(w, 30, 1, 3);
  world_tick(w, 49);
  expect(w, 49, "");
  world_tick(w, 70);
  expect(w, 70, "read 4 over 11: 0,1,2,3");
  world_live(w, 70, 1, 4);
  expect(w, 70, "read 5 over 11: 4");
  world_not_published(w, 70, 1, 5);
  world_tick(w, 80);
  expect(w, 80, "read 6 over 11: 4");
}

/* What this node was called with was right when the load began: a failure has another reason, which is counted. */
static void outcome_is_never_the_callers_mistake(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  world_trace(w, 0);
  world_failed(w, 0, 1, KVF_INVALID); /* the producer has no such block */
  expect(w, 0, "outcome 500 bad_ticket 0/1; quiet 500");
  const int statuses[] = {KVF_INVALID, KVF_LIMIT, KVF_CLOSED, -12345}; /* the last is no enumerator */
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    char text[128];
    world_spec(w, 600 + i, 1, "1");
    world_start(w, 0);
    expect(w, 0, "want 1");
    kvf_loads_on_path(w->loads, 0, 1, 0, statuses[i]);
    (void)snprintf(text, sizeof(text), "outcome %d transfer_failed 0/1; quiet %d", (int)(600 + i), (int)(600 + i));
    expect(w, 0, text);
  }
  uint64_t counted = 0;
  for (unsigned i = 0; kvf_status_at(i) != NULL && i < KVF_STATUSES_MAX; i++) {
    bool shown = kvf_status_at(i)->lost != KVF_LOST_CALL;
    counted += shown ? kvf_loads_stats(w->loads)->outcomes[i] : 0;
  }
  assert_int_equal(counted, 5);
}

/* ---- paths ---- */

static void path_refused(void **state)
{
  world *w = *state;
  world_spec(w, 500, 6, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  kvf_loads_on_path(w->loads, 1 * MS, 1, 0, KVF_HANDSHAKE_REFUSED);
  expect(w, 1, "outcome 500 handshake_refused 0/6; quiet 500");
}

static void first_trouble_is_remembered(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_failed(w, 1, 1, KVF_CANCELLED);
  world_failed(w, 1, 2, KVF_CHECKSUM);
  world_tick(w, 11);
  expect(w, 11, "want 1");
  world_path(w, 11, 1, 12);
  expect(w, 11, "read 3 over 12: 0,1,2,3; read 4 over 12: 4,5");
  world_failed(w, 12, 3, KVF_TRANSFER_FAILED);
  world_failed(w, 12, 4, KVF_TRANSFER_FAILED);
  world_tick(w, 22);
  expect(w, 22, "want 1");
  kvf_loads_on_path(w->loads, 22 * MS, 1, 0, KVF_PEER_DOWN);
  expect(w, 22, "outcome 500 checksum 0/6; quiet 500");
}

/* A producer that is killed is heard of by its data connection or its control connection, whichever ends first. */
static void broken_path_of_a_peer_that_is_gone(void **state)
{
  world *w = *state;
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
    world_spec(w, 500 + i, 1, "1");
    world_start(w, now_ms);
    expect(w, now_ms, "want 1");
    world_path(w, now_ms, 1, 11);
    world_trace(w, now_ms);
    world_failed(w, now_ms, i + 1, KVF_TRANSFER_FAILED);
    world_tick(w, now_ms + 50);
    expect(w, now_ms + 50, "want 1");
    kvf_loads_on_path(w->loads, (now_ms + 50) * MS, 1, 0, cases[i].refusal);
    (void)snprintf(text, sizeof(text), "outcome %d %s 0/1; quiet %d", (int)(500 + i), cases[i].expected,
                   (int)(500 + i));
    expect(w, now_ms + 50, text);
  }
}

static void trouble_that_is_over_is_forgotten(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_failed(w, 1, 1, KVF_TRANSFER_FAILED);
  world_live(w, 1, 1, 2);
  world_tick(w, 11);
  expect(w, 11, "want 1");
  kvf_loads_on_path(w->loads, 11 * MS, 1, 0, KVF_PEER_DOWN);
  expect(w, 11, "outcome 500 peer_down 0/6; quiet 500");
}

static void path_down(void **state)
{
  world *w = *state;
  world_spec(w, 500, 12, "1"); /* 0 to 7 in flight */
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  kvf_loads_on_path_down(w->loads, 1 * MS, 1, 99); /* another one */
  kvf_loads_on_path_down(w->loads, 1 * MS, 2, 11);
  world_live(w, 1, 1, 1);
  expect(w, 1, "read 3 over 11: 8,9,10,11");
  kvf_loads_on_path_down(w->loads, 2 * MS, 1, 11);
  kvf_loads_on_path_down(w->loads, 2 * MS, 1, 11);
  world_live(w, 3, 1, 2);
  expect(w, 3, "");
  world_failed(w, 4, 3, KVF_CANCELLED);
  world_tick(w, 14);
  expect(w, 14, "want 1");
  kvf_loads_on_path(w->loads, 15 * MS, 1, 0, KVF_PEER_DOWN);
  expect(w, 15, "outcome 500 peer_down 8/12; quiet 500");
}

static void path_down_before_any_read(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  kvf_loads_on_path_down(w->loads, 0, 1, 11);
  expect(w, 0, "");
  world_tick(w, 10);
  expect(w, 10, "want 1");
}

static void last_read_ends_well_after_path_down(void **state)
{
  world *w = *state;
  world_start_reading(w);
  kvf_loads_on_path_down(w->loads, 1 * MS, 1, 11);
  world_live(w, 2, 1, 2);
  world_live(w, 2, 1, 1);
  expect(w, 2, "outcome 500 ok 6/6; quiet 500");
}

static void answers_that_nobody_waits_for(void **state)
{
  world *w = *state;
  world_path(w, 0, 1, 11);
  kvf_loads_on_pong(w->loads, 1);
  kvf_loads_on_path_down(w->loads, 0, 1, 11);
  world_start_reading(w);
  world_path(w, 1, 1, 12);
  kvf_loads_on_path(w->loads, 1 * MS, 1, 0, KVF_PEER_DOWN);
  kvf_loads_on_pong(w->loads, 1);
  expect(w, 1, "");
  world_failed(w, 1, 99, KVF_TRANSFER_FAILED);
  world_live(w, 1, 1, 2);
  world_live(w, 1, 1, 2); /* twice */
  kvf_loads_on_read_progress(w->loads, 1 * MS, 99);
  expect(w, 1, "");
  assert_int_equal(kvf_loads_stats(w->loads)->late, 2);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      world_test(retry_only_what_is_missing),
      world_test(retryable_statuses),
      world_test(final_statuses),
      world_test(lease_over_midway),
      world_test(lease_over_cancels_the_rest),
      world_test(another_process_answers),
      world_test(not_published_then_live),
      world_test(never_published),
      world_test(path_lost_while_not_published),
      world_test(pauses_grow_until_a_success),
      world_test(outcome_is_never_the_callers_mistake),
      world_test(path_refused),
      world_test(first_trouble_is_remembered),
      world_test(broken_path_of_a_peer_that_is_gone),
      world_test(trouble_that_is_over_is_forgotten),
      world_test(path_down),
      world_test(path_down_before_any_read),
      world_test(last_read_ends_well_after_path_down),
      world_test(answers_that_nobody_waits_for),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
