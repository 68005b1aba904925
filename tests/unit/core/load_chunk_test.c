#include "load_world.h"

/* The first chunk of a load with one read in flight. */
static void expect_first(const char *text)
{
  kvf_loads_destroy(w.loads);
  w.config.chunks_in_flight = 1;
  world_open();
  expect_started(0, text);
}

LOAD_TEST(as_many_bytes_as_allowed)
{
  world_spec(500, 9, "1");
  w.config.chunk_bytes = 399;
  expect_first("read 1 over 11: 0,1,2");
  w.config.chunk_bytes = 400;
  expect_first("read 1 over 11: 0,1,2,3");
  w.parts[0].heads = 2;
  expect_first("read 1 over 11: 0,1");
}

LOAD_TEST(at_least_one_item)
{
  world_spec(500, 9, "1");
  w.config.chunk_bytes = 1;
  expect_first("read 1 over 11: 0");
}

LOAD_TEST(at_most_the_named_limit)
{
  kvf_load_action action;
  world_spec(500, KVF_CHUNK_ITEMS_MAX + 1, "1");
  w.config.chunk_bytes = UINT32_MAX;
  kvf_loads_destroy(w.loads);
  world_open();
  world_start(0);
  expect(0, "want 1");
  world_path(0, 1, 11);
  assert_true(kvf_loads_next_action(w.loads, 0, &action));
  assert_int_equal(action.items_count, KVF_CHUNK_ITEMS_MAX);
  assert_true(kvf_loads_next_action(w.loads, 0, &action));
  assert_int_equal(action.items_count, 1);
  assert_int_equal(action.items[0].position, KVF_CHUNK_ITEMS_MAX);
}

LOAD_TEST(all_readers_have_as_many)
{
  w.config.readers = 2;
  world_spec(500, 4, "1");
  expect_first("read 1 over 11: 0,1");
  world_spec(500, 3, "1");
  expect_first("read 1 over 11: 0,1"); /* whole items */
  world_spec(500, 1, "1");
  expect_first("read 1 over 11: 0");
  world_spec(500, 8, "1");
  expect_first("read 1 over 11: 0,1,2,3");
  world_spec(500, 10, "1"); /* four, since three are not even */
  expect_first("read 1 over 11: 0,1,2");
  w.config.readers = 3;
  expect_first("read 1 over 11: 0,1,2,3");
  world_spec(500, 20, "1");
  expect_first("read 1 over 11: 0,1,2,3");
}

LOAD_TEST(no_chunk_is_made_small_for_that)
{
  w.config.readers = 4;
  w.config.spread_bytes = 200;
  world_spec(500, 4, "1");
  expect_first("read 1 over 11: 0,1");
  world_spec(500, 3, "1");
  expect_first("read 1 over 11: 0,1,2");
  w.config.spread_bytes = 300;
  world_spec(500, 4, "1");
  expect_first("read 1 over 11: 0,1,2,3");
  w.config.spread_bytes = 1000; /* more than a chunk may have */
  expect_first("read 1 over 11: 0,1,2,3");
}

LOAD_TEST(a_load_of_no_bytes_is_read_all_the_same)
{
  w.config.readers = 2;
  world_spec(500, 3, "1");
  w.head_bytes[0] = 0;
  expect_first("read 1 over 11: small 0,1,2");
}

LOAD_TEST(groups_have_sizes_of_their_own)
{
  world_spec(500, 6, "1");
  w.spec.groups = 2;
  w.spec.positions = 8;
  w.head_bytes[1] = 250;
  const kvf_read_item items[] = {{0, 0, 1, 1}, {1, 0, 2, 2}, {0, 1, 3, 3}, {1, 1, 4, 4}, {0, 2, 5, 5}, {0, 3, 6, 6}};
  memcpy(w.items, items, sizeof(items));
  expect_first("read 1 over 11: 0.0,1.0"); /* 350 of 400 bytes */
  world_live(0, 1, 1);
  expect(0, "read 2 over 11: 0.1,1.1");
  world_live(0, 1, 2);
  expect(0, "read 3 over 11: 0.2,0.3");
  world_live(0, 1, 3);
  expect(0, "outcome 500 ok 8/8; quiet 500");
}

LOAD_TEST(read_says_what_the_spec_said)
{
  kvf_load_action action;
  world_spec(500, 3, "1");
  w.parts[0].remote_head = 4;
  w.parts[0].local_head = 2;
  w.spec.lease = (kvf_lease){.id = LEASE_ID, .slot = 9, .token = {1, 2, 3}};
  world_start(0);
  expect(0, "want 1");
  world_path(0, 1, 11);
  assert_true(kvf_loads_next_action(w.loads, 0, &action));
  assert_int_equal(action.kind, KVF_LOAD_READ);
  assert_int_equal(action.peer, 1);
  assert_int_equal(action.remote_head, 4);
  assert_int_equal(action.local_head, 2);
  assert_int_equal(action.heads, 1);
  assert_memory_equal(&action.lease, &w.spec.lease, sizeof(action.lease));
  assert_memory_equal(action.items, w.items, 3 * sizeof(*w.items));
}

/* A chunk ends where the next item is in flight or good. */
LOAD_TEST(holes_are_filled_in_order)
{
  world_spec(500, 12, "1");
  w.config.chunks_in_flight = 3;
  kvf_loads_destroy(w.loads);
  world_open();
  expect_started(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7; read 3 over 11: 8,9,10,11");
  world_failed(0, 3, KVF_NOT_PUBLISHED);
  world_live(0, 1, 2);
  world_failed(0, 1, KVF_NOT_PUBLISHED);
  expect_at(10, "read 4 over 11: 0,1,2,3; read 5 over 11: 8,9,10,11");
}

LOAD_TEST(small_is_the_whole_rest)
{
  kvf_loads_destroy(w.loads);
  w.config.inline_bytes = 400;
  world_open();
  world_spec(500, 4, "1");
  expect_started(0, "read 1 over 11: small 0,1,2,3");
  world_live(0, 1, 1);
  expect(0, "outcome 500 ok 4/4; quiet 500");

  world_spec(501, 5, "1");
  expect_started(0, "read 2 over 11: 0,1,2,3; read 3 over 11: 4");
  world_live(0, 1, 2);
  world_failed(0, 3, KVF_NOT_PUBLISHED);
  expect_at(10, "read 4 over 11: small 4"); /* what is left */
  world_live(10, 1, 4);
  expect(10, "outcome 501 ok 5/5; quiet 501");

  world_spec(502, 1, "12"); /* two parts */
  world_start(10);
  expect(10, "want 1; want 2");
  world_path(10, 1, 11);
  expect(10, "read 5 over 11: 0");
  world_live(10, 1, 5);
  world_path(10, 2, 12);
  expect(10, "read 6 over 12: small 0");
}

LOAD_TEST(too_many_bytes_for_small)
{
  kvf_loads_destroy(w.loads);
  w.config.inline_bytes = 399;
  world_open();
  world_spec(500, 4, "1");
  expect_started(0, "read 1 over 11: 0,1,2,3");
}
