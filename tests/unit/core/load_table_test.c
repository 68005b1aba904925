#include "load_world.h"

LOAD_TEST(whole_load)
{
  world_spec(500, 6, "1");
  world_start(0);
  expect(0, "want 1");
  world_path(1, 1, 11);
  expect(1, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
  world_live(2, 1, 2);
  expect(2, "");
  world_live(3, 1, 1);
  expect(3, "outcome 500 ok 6/6; quiet 500");
  assert_int_equal(kvf_loads_next_deadline(w.loads), KVF_TIME_NEVER);
  assert_int_equal(kvf_loads_stats(w.loads)->open, 0);
  assert_int_equal(kvf_loads_stats(w.loads)->outcomes[0], 1);
  assert_int_equal(kvf_loads_stats(w.loads)->chunks, 2);
  assert_int_equal(kvf_loads_stats(w.loads)->blocks, 6);
  assert_int_equal(kvf_loads_stats(w.loads)->bytes, 800);
}

LOAD_TEST(spec_is_copied)
{
  world_spec(500, 2, "1");
  world_start(0);
  memset(w.items, 0xff, sizeof(w.items));
  memset(w.parts, 0xff, sizeof(w.parts));
  memset(w.head_bytes, 0xff, sizeof(w.head_bytes));
  expect(0, "want 1");
  world_path(0, 1, 11);
  expect(0, "read 1 over 11: 0,1");
  world_live(0, 1, 1);
  expect(0, "outcome 500 ok 2/2; quiet 500");
}

LOAD_TEST(nothing_wanted)
{
  world_spec(500, 0, "12");
  w.spec.positions = 9;
  world_start(0);
  expect(0, "outcome 500 ok 9/9; quiet 500");
  world_spec(501, 0, "");
  world_start(0);
  expect(0, "outcome 501 ok 0/0; quiet 501");
}

LOAD_TEST(same_request_twice)
{
  world_spec(500, 1, "1");
  world_start(0);
  assert_int_equal(kvf_loads_start(w.loads, 0, &w.spec), KVF_EXISTS);
  assert_int_equal(kvf_loads_abort(w.loads, 0, 500), KVF_OK);
  assert_int_equal(kvf_loads_start(w.loads, 0, &w.spec), KVF_EXISTS);
  expect(0, "outcome 500 aborted 0/1; quiet 500");
  world_start(0);
  expect(0, "want 1");
}

LOAD_TEST(table_is_full)
{
  for (uint64_t request_id = 500; request_id < 504; request_id++) {
    world_spec(request_id, 1, "1");
    world_start(0);
  }
  world_spec(504, 1, "1");
  assert_int_equal(kvf_loads_start(w.loads, 0, &w.spec), KVF_NO_MEMORY);
  kvf_loads_abort(w.loads, 0, 502);
  expect(0, "want 1; outcome 502 aborted 0/1; quiet 502");
  world_start(0);
}

LOAD_TEST(spec_that_breaks_a_rule)
{
#define REFUSED(change)                                                  \
  do {                                                                   \
    world_spec(500, 3, "1");                                             \
    change;                                                              \
    assert_int_equal(kvf_loads_start(w.loads, 0, &w.spec), KVF_INVALID); \
  } while (0)
  REFUSED(w.items[1].group = 1);
  REFUSED(w.items[2].position = 3);
  REFUSED(w.items[2].position = 1);
  REFUSED(w.items[2].position = 0);
  REFUSED(w.spec.parts_count = 0);
  REFUSED(w.spec.parts_count = KVF_RANKS_MAX + 1);
  REFUSED(w.parts[0].heads = 0);
  REFUSED(w.spec.groups = 0);
  REFUSED(w.spec.groups = KVF_GROUPS_MAX + 1);
  REFUSED(w.spec.rank = KVF_RANKS_MAX);
  REFUSED(w.spec.items_count = KVF_BLOCKS_PER_LEASE_MAX + 1);
#undef REFUSED
  expect(0, "");
}

LOAD_TEST(config_that_breaks_a_rule)
{
  kvf_loads *loads;
#define REFUSED(change)                                                  \
  do {                                                                   \
    kvf_loads_config config = w.config;                                  \
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

LOAD_TEST(abort_in_every_state)
{
  assert_int_equal(kvf_loads_abort(w.loads, 0, 500), KVF_NOT_FOUND);
  world_spec(500, 6, "1"); /* WAIT_PATH */
  world_start(0);
  assert_int_equal(kvf_loads_abort(w.loads, 0, 500), KVF_OK);
  assert_int_equal(kvf_loads_abort(w.loads, 0, 500), KVF_OK);
  expect(0, "outcome 500 aborted 0/6; quiet 500");
  assert_int_equal(kvf_loads_abort(w.loads, 0, 500), KVF_NOT_FOUND);

  world_spec(501, 6, "1"); /* READING */
  expect_started(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
  world_live(1, 1, 1);
  assert_int_equal(kvf_loads_abort(w.loads, 1, 501), KVF_OK);
  expect(1, "cancel 2 over 11; outcome 501 aborted 4/6");
  assert_int_equal(kvf_loads_abort(w.loads, 1, 501), KVF_OK);
  expect(1, "");
  world_failed(2, 2, KVF_CANCELLED);
  expect(2, "quiet 501");

  world_spec(502, 6, "1"); /* DRAINING, then BACKOFF */
  expect_started(0, "read 3 over 11: 0,1,2,3; read 4 over 11: 4,5");
  world_failed(2, 3, KVF_TRANSFER_FAILED);
  kvf_loads_abort(w.loads, 3, 502);
  expect(3, "cancel 4 over 11; outcome 502 aborted 0/6");
  world_live(3, 1, 4);
  expect(3, "quiet 502");

  world_spec(503, 1, "1");
  expect_started(0, "read 5 over 11: 0");
  world_failed(4, 5, KVF_TRANSFER_FAILED);
  kvf_loads_abort(w.loads, 4, 503);
  expect(4, "outcome 503 aborted 0/1; quiet 503");
  expect_at(100, "");
}

LOAD_TEST(abort_all)
{
  world_spec(500, 1, "1");
  world_start(0);
  world_spec(501, 1, "2");
  world_start(0);
  expect(0, "want 1; want 2");
  world_path(0, 2, 12);
  expect(0, "read 1 over 12: 0");
  kvf_loads_abort_all(w.loads, 0);
  kvf_loads_abort_all(w.loads, 0);
  expect(0, "cancel 1 over 12; outcome 500 aborted 0/1; quiet 500; outcome 501 aborted 0/1");
  world_live(0, 2, 1);
  expect(0, "quiet 501");
}

LOAD_TEST(tick_is_bounded)
{
  for (uint64_t request_id = 500; request_id < 503; request_id++) {
    world_spec(request_id, 1, "1");
    w.spec.deadline_ns = 100 * MS;
    world_start(0);
  }
  expect(0, "want 1");
  uint32_t ticks = 0;
  while (kvf_loads_next_deadline(w.loads) <= 100 * MS) {
    kvf_loads_tick(w.loads, 100 * MS, 1);
    ticks++;
  }
  assert_true(ticks >= 3);
  expect(100,
         "outcome 500 deadline 0/1; quiet 500; outcome 501 deadline 0/1; quiet 501; "
         "outcome 502 deadline 0/1; quiet 502");
}

LOAD_TEST(destroyed_at_any_time)
{
  world_spec(500, 6, "12");
  world_start(0);
  expect(0, "want 1; want 2");
  world_path(0, 1, 11);
  expect(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
  kvf_loads_destroy(NULL);
}
