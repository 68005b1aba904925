#include "load_world.h"

static void whole_load(void **state)
{
  world *w = *state;
  world_spec(w, 500, 6, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 1, 1, 11);
  expect(w, 1, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
  world_live(w, 2, 1, 2);
  expect(w, 2, "");
  world_live(w, 3, 1, 1);
  expect(w, 3, "outcome 500 ok 6/6; quiet 500");
  assert_int_equal(kvf_loads_next_deadline(w->loads), KVF_TIME_NEVER);
  assert_int_equal(kvf_loads_stats(w->loads)->open, 0);
  assert_int_equal(kvf_loads_stats(w->loads)->outcomes[0], 1);
  assert_int_equal(kvf_loads_stats(w->loads)->chunks, 2);
  assert_int_equal(kvf_loads_stats(w->loads)->blocks, 6);
  assert_int_equal(kvf_loads_stats(w->loads)->bytes, 800);
}

static void spec_is_copied(void **state)
{
  world *w = *state;
  world_spec(w, 500, 2, "1");
  world_start(w, 0);
  memset(w->items, 0xff, sizeof(w->items));
  memset(w->parts, 0xff, sizeof(w->parts));
  memset(w->head_bytes, 0xff, sizeof(w->head_bytes));
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0,1");
  world_live(w, 0, 1, 1);
  expect(w, 0, "outcome 500 ok 2/2; quiet 500");
}

static void nothing_wanted(void **state)
{
  world *w = *state;
  world_spec(w, 500, 0, "12");
  w->spec.positions = 9;
  world_start(w, 0);
  expect(w, 0, "outcome 500 ok 9/9; quiet 500");
  world_spec(w, 501, 0, "");
  world_start(w, 0);
  expect(w, 0, "outcome 501 ok 0/0; quiet 501");
}

static void same_request_twice(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  world_start(w, 0);
  assert_int_equal(kvf_loads_start(w->loads, 0, &w->spec), KVF_EXISTS);
  assert_int_equal(kvf_loads_abort(w->loads, 0, 500), KVF_OK);
  assert_int_equal(kvf_loads_start(w->loads, 0, &w->spec), KVF_EXISTS);
  expect(w, 0, "outcome 500 aborted 0/1; quiet 500");
  world_start(w, 0);
  expect(w, 0, "want 1");
}

static void table_is_full(void **state)
{
  world *w = *state;
  for (uint64_t request_id = 500; request_id < 504; request_id++) {
    world_spec(w, request_id, 1, "1");
    world_start(w, 0);
  }
  world_spec(w, 504, 1, "1");
  assert_int_equal(kvf_loads_start(w->loads, 0, &w->spec), KVF_NO_MEMORY);
  kvf_loads_abort(w->loads, 0, 502);
  expect(w, 0, "want 1; outcome 502 aborted 0/1; quiet 502");
  world_start(w, 0);
}

static void spec_that_breaks_a_rule(void **state)
{
  world *w = *state;
#define REFUSED(change)                                                    \
  do {                                                                     \
    world_spec(w, 500, 3, "1");                                            \
    change;                                                                \
    assert_int_equal(kvf_loads_start(w->loads, 0, &w->spec), KVF_INVALID); \
  } while (0)
  REFUSED(w->items[1].group = 1);
  REFUSED(w->items[2].position = 3);
  REFUSED(w->items[2].position = 1);
  REFUSED(w->items[2].position = 0);
  REFUSED(w->spec.parts_count = 0);
  REFUSED(w->spec.parts_count = KVF_RANKS_MAX + 1);
  REFUSED(w->parts[0].heads = 0);
  REFUSED(w->spec.groups = 0);
  REFUSED(w->spec.groups = KVF_GROUPS_MAX + 1);
  REFUSED(w->spec.rank = KVF_RANKS_MAX);
  REFUSED(w->spec.items_count = KVF_BLOCKS_PER_LEASE_MAX + 1);
#undef REFUSED
  expect(w, 0, "");
}

static void config_that_breaks_a_rule(void **state)
{
  world *w = *state;
  kvf_loads *loads;
#define REFUSED(change)                                                  \
  do {                                                                   \
    kvf_loads_config config = w->config;                                 \
    config.change;                                                       \
    assert_int_equal(kvf_loads_create(&config, 0, &loads), KVF_INVALID); \
    assert_null(loads);                                                  \
  } while (0)
  REFUSED(loads_max = 0);
  REFUSED(stall_timeout_ns = 1);
  REFUSED(backoff_min_ns = 0);
  REFUSED(backoff_min_ns = 11 * MS);
  REFUSED(chunks_in_flight = 0);
  REFUSED(chunks_in_flight = KVF_CHUNKS_IN_FLIGHT_MAX + 1);
#undef REFUSED
}

static void abort_in_every_state(void **state)
{
  world *w = *state;
  assert_int_equal(kvf_loads_abort(w->loads, 0, 500), KVF_NOT_FOUND);
  world_spec(w, 500, 6, "1"); /* WAIT_PATH */
  world_start(w, 0);
  assert_int_equal(kvf_loads_abort(w->loads, 0, 500), KVF_OK);
  assert_int_equal(kvf_loads_abort(w->loads, 0, 500), KVF_OK);
  expect(w, 0, "outcome 500 aborted 0/6; quiet 500");
  assert_int_equal(kvf_loads_abort(w->loads, 0, 500), KVF_NOT_FOUND);

  world_spec(w, 501, 6, "1"); /* READING */
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
  world_live(w, 1, 1, 1);
  assert_int_equal(kvf_loads_abort(w->loads, 1, 501), KVF_OK);
  expect(w, 1, "cancel 2 over 11; outcome 501 aborted 4/6");
  assert_int_equal(kvf_loads_abort(w->loads, 1, 501), KVF_OK);
  expect(w, 1, "");
  world_failed(w, 2, 2, KVF_CANCELLED);
  expect(w, 2, "quiet 501");

  world_spec(w, 502, 6, "1"); /* DRAINING, then BACKOFF */
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 3 over 11: 0,1,2,3; read 4 over 11: 4,5");
  world_failed(w, 2, 3, KVF_TRANSFER_FAILED);
  kvf_loads_abort(w->loads, 3, 502);
  expect(w, 3, "cancel 4 over 11; outcome 502 aborted 0/6");
  world_live(w, 3, 1, 4);
  expect(w, 3, "quiet 502");

  world_spec(w, 503, 1, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 5 over 11: 0");
  world_failed(w, 4, 5, KVF_TRANSFER_FAILED);
  kvf_loads_abort(w->loads, 4, 503);
  expect(w, 4, "outcome 503 aborted 0/1; quiet 503");
  world_tick(w, 100);
  expect(w, 100, "");
}

static void abort_all(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  world_start(w, 0);
  world_spec(w, 501, 1, "2");
  world_start(w, 0);
  expect(w, 0, "want 1; want 2");
  world_path(w, 0, 2, 12);
  expect(w, 0, "read 1 over 12: 0");
  kvf_loads_abort_all(w->loads, 0);
  kvf_loads_abort_all(w->loads, 0);
  expect(w, 0, "cancel 1 over 12; outcome 500 aborted 0/1; quiet 500; outcome 501 aborted 0/1");
  world_live(w, 0, 2, 1);
  expect(w, 0, "quiet 501");
}

static void tick_is_bounded(void **state)
{
  world *w = *state;
  for (uint64_t request_id = 500; request_id < 503; request_id++) {
    world_spec(w, request_id, 1, "1");
    w->spec.deadline_ns = 100 * MS;
    world_start(w, 0);
  }
  expect(w, 0, "want 1");
  uint32_t ticks = 0;
  while (kvf_loads_next_deadline(w->loads) <= 100 * MS) {
    kvf_loads_tick(w->loads, 100 * MS, 1);
    ticks++;
  }
  assert_true(ticks >= 3);
  expect(w, 100,
         "outcome 500 deadline 0/1; quiet 500; outcome 501 deadline 0/1; quiet 501; "
         "outcome 502 deadline 0/1; quiet 502");
}

static void destroyed_at_any_time(void **state)
{
  world *w = *state;
  world_spec(w, 500, 6, "12");
  world_start(w, 0);
  expect(w, 0, "want 1; want 2");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
  kvf_loads_destroy(NULL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      world_test(whole_load),
      world_test(spec_is_copied),
      world_test(nothing_wanted),
      world_test(same_request_twice),
      world_test(table_is_full),
      world_test(spec_that_breaks_a_rule),
      world_test(config_that_breaks_a_rule),
      world_test(abort_in_every_state),
      world_test(abort_all),
      world_test(tick_is_bounded),
      world_test(destroyed_at_any_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
