#include "load_world.h"

/* The first chunk of a load with one read in flight. */
static void expect_first(world *w, const char *text)
{
  kvf_loads_destroy(w->loads);
  w->config.chunks_in_flight = 1;
  world_open(w);
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, text);
}

static void as_many_bytes_as_allowed(void **state)
{
  world *w = *state;
  world_spec(w, 500, 9, "1");
  w->config.chunk_bytes = 399;
  expect_first(w, "read 1 over 11: 0,1,2");
  w->config.chunk_bytes = 400;
  expect_first(w, "read 1 over 11: 0,1,2,3");
  w->parts[0].heads = 2;
  expect_first(w, "read 1 over 11: 0,1");
}

static void at_least_one_item(void **state)
{
  world *w = *state;
  world_spec(w, 500, 9, "1");
  w->config.chunk_bytes = 1;
  expect_first(w, "read 1 over 11: 0");
}

static void at_most_the_named_limit(void **state)
{
  world *w = *state;
  kvf_load_action action;
  world_spec(w, 500, KVF_CHUNK_ITEMS_MAX + 1, "1");
  w->config.chunk_bytes = UINT32_MAX;
  kvf_loads_destroy(w->loads);
  world_open(w);
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  assert_true(kvf_loads_next_action(w->loads, 0, &action));
  assert_int_equal(action.items_count, KVF_CHUNK_ITEMS_MAX);
  assert_true(kvf_loads_next_action(w->loads, 0, &action));
  assert_int_equal(action.items_count, 1);
  assert_int_equal(action.items[0].position, KVF_CHUNK_ITEMS_MAX);
}

static void all_readers_have_as_many(void **state)
{
  world *w = *state;
  w->config.readers = 2;
  world_spec(w, 500, 4, "1");
  expect_first(w, "read 1 over 11: 0,1");
  world_spec(w, 500, 3, "1");
  expect_first(w, "read 1 over 11: 0,1"); /* whole items */
  world_spec(w, 500, 1, "1");
  expect_first(w, "read 1 over 11: 0");
  world_spec(w, 500, 8, "1");
  expect_first(w, "read 1 over 11: 0,1,2,3");
  world_spec(w, 500, 10, "1"); /* four, since three are not even */
  expect_first(w, "read 1 over 11: 0,1,2");
  w->config.readers = 3;
  expect_first(w, "read 1 over 11: 0,1,2,3");
  world_spec(w, 500, 20, "1");
  expect_first(w, "read 1 over 11: 0,1,2,3");
}

static void no_chunk_is_made_small_for_that(void **state)
{
  world *w = *state;
  w->config.readers = 4;
  w->config.spread_bytes = 200;
  world_spec(w, 500, 4, "1");
  expect_first(w, "read 1 over 11: 0,1");
  world_spec(w, 500, 3, "1");
  expect_first(w, "read 1 over 11: 0,1,2");
  w->config.spread_bytes = 300;
  world_spec(w, 500, 4, "1");
  expect_first(w, "read 1 over 11: 0,1,2,3");
  w->config.spread_bytes = 1000; /* more than a chunk may have */
  expect_first(w, "read 1 over 11: 0,1,2,3");
}

static void a_load_of_no_bytes_is_read_all_the_same(void **state)
{
  world *w = *state;
  w->config.readers = 2;
  world_spec(w, 500, 3, "1");
  w->head_bytes[0] = 0;
  expect_first(w, "read 1 over 11: small 0,1,2");
}

static void groups_have_sizes_of_their_own(void **state)
{
  world *w = *state;
  world_spec(w, 500, 6, "1");
  w->spec.groups = 2;
  w->spec.positions = 8;
  w->head_bytes[1] = 250;
  const kvf_read_item items[] = {{0, 0, 1, 1}, {1, 0, 2, 2}, {0, 1, 3, 3}, {1, 1, 4, 4}, {0, 2, 5, 5}, {0, 3, 6, 6}};
  memcpy(w->items, items, sizeof(items));
  expect_first(w, "read 1 over 11: 0.0,1.0"); /* 350 of 400 bytes */
  world_live(w, 0, 1, 1);
  expect(w, 0, "read 2 over 11: 0.1,1.1");
  world_live(w, 0, 1, 2);
  expect(w, 0, "read 3 over 11: 0.2,0.3");
  world_live(w, 0, 1, 3);
  expect(w, 0, "outcome 500 ok 8/8; quiet 500");
}

static void read_says_what_the_spec_said(void **state)
{
  world *w = *state;
  kvf_load_action action;
  world_spec(w, 500, 3, "1");
  w->parts[0].remote_head = 4;
  w->parts[0].local_head = 2;
  w->spec.lease = (kvf_lease){.id = LEASE_ID, .slot = 9, .token = {1, 2, 3}};
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  assert_true(kvf_loads_next_action(w->loads, 0, &action));
  assert_int_equal(action.kind, KVF_LOAD_READ);
  assert_int_equal(action.peer, 1);
  assert_int_equal(action.remote_head, 4);
  assert_int_equal(action.local_head, 2);
  assert_int_equal(action.heads, 1);
  assert_memory_equal(&action.lease, &w->spec.lease, sizeof(action.lease));
  assert_memory_equal(action.items, w->items, 3 * sizeof(*w->items));
}

/* A chunk ends where the next item is in flight or good. */
static void holes_are_filled_in_order(void **state)
{
  world *w = *state;
  world_spec(w, 500, 12, "1");
  w->config.chunks_in_flight = 3;
  kvf_loads_destroy(w->loads);
  world_open(w);
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7; read 3 over 11: 8,9,10,11");
  world_failed(w, 0, 3, KVF_NOT_PUBLISHED);
  world_live(w, 0, 1, 2);
  world_failed(w, 0, 1, KVF_NOT_PUBLISHED);
  world_tick(w, 10);
  expect(w, 10, "read 4 over 11: 0,1,2,3; read 5 over 11: 8,9,10,11");
}

static void small_is_the_whole_rest(void **state)
{
  world *w = *state;
  kvf_loads_destroy(w->loads);
  w->config.inline_bytes = 400;
  world_open(w);
  world_spec(w, 500, 4, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: small 0,1,2,3");
  world_live(w, 0, 1, 1);
  expect(w, 0, "outcome 500 ok 4/4; quiet 500");

  world_spec(w, 501, 5, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 2 over 11: 0,1,2,3; read 3 over 11: 4");
  world_live(w, 0, 1, 2);
  world_failed(w, 0, 3, KVF_NOT_PUBLISHED);
  world_tick(w, 10);
  expect(w, 10, "read 4 over 11: small 4"); /* what is left */
  world_live(w, 10, 1, 4);
  expect(w, 10, "outcome 501 ok 5/5; quiet 501");

  world_spec(w, 502, 1, "12"); /* two parts */
  world_start(w, 10);
  expect(w, 10, "want 1; want 2");
  world_path(w, 10, 1, 11);
  expect(w, 10, "read 5 over 11: 0");
  world_live(w, 10, 1, 5);
  world_path(w, 10, 2, 12);
  expect(w, 10, "read 6 over 12: small 0");
}

static void too_many_bytes_for_small(void **state)
{
  world *w = *state;
  kvf_loads_destroy(w->loads);
  w->config.inline_bytes = 399;
  world_open(w);
  world_spec(w, 500, 4, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0,1,2,3");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      world_test(as_many_bytes_as_allowed),
      world_test(at_least_one_item),
      world_test(at_most_the_named_limit),
      world_test(groups_have_sizes_of_their_own),
      world_test(read_says_what_the_spec_said),
      world_test(holes_are_filled_in_order),
      world_test(small_is_the_whole_rest),
      world_test(too_many_bytes_for_small),
      world_test(all_readers_have_as_many),
      world_test(no_chunk_is_made_small_for_that),
      world_test(a_load_of_no_bytes_is_read_all_the_same),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
