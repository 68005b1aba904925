/* Fails the n-th allocation, for every n. Linked with --wrap for calloc and malloc. */
#include "load_world.h"

void *__real_calloc(size_t count, size_t bytes);
void *__real_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);

static long allocations_left = -1; /* until one fails; below 0: none does */

static bool fails_now(void)
{
  if (allocations_left < 0) {
    return false;
  }
  allocations_left--;
  return allocations_left < 0;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
  return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_malloc(size_t bytes)
{
  return fails_now() ? NULL : __real_malloc(bytes);
}

static kvf_status start_with(long allocations)
{
  allocations_left = allocations;
  kvf_status status = kvf_loads_start(w.loads, 0, &w.spec);
  allocations_left = -1;
  return status;
}

LOAD_TEST(create)
{
  kvf_loads *loads = w.loads;
  allocations_left = 0;
  kvf_status status = kvf_loads_create(&w.config, 0, &loads);
  allocations_left = -1;
  assert_int_equal(status, KVF_NO_MEMORY);
  assert_null(loads);
}

LOAD_TEST(start_leaves_nothing)
{
  long allocations = 0;
  world_spec(500, 6, "123");
  while (start_with(allocations) != KVF_OK) {
    expect(0, "");
    assert_int_equal(kvf_loads_stats(w.loads)->open, 0);
    assert_int_equal(kvf_loads_next_deadline(w.loads), KVF_TIME_NEVER);
    assert_int_equal(kvf_loads_abort(w.loads, 0, 500), KVF_NOT_FOUND);
    allocations++;
  }
  assert_in_range(allocations, 8, 16); /* the load, three peers, two tables of two allocations each */
  expect(0, "want 1; want 2; want 3");
}

LOAD_TEST(start_leaves_other_loads_alone)
{
  long allocations = 0;
  world_spec(500, 1, "1");
  world_start(0);
  expect(0, "want 1");
  world_spec(501, 1, "12");
  while (start_with(allocations) != KVF_OK) {
    expect(0, "");
    allocations++;
  }
  assert_int_equal(allocations, 2);
  expect(0, "want 2");
  world_path(0, 1, 11);
  expect(0, "read 1 over 11: 0; read 2 over 11: 0");
}

/* The read cannot be remembered, so it is not started; another attempt follows. */
LOAD_TEST(read)
{
  world_spec(500, 1, "1");
  world_start(0);
  expect(0, "want 1");
  world_path(0, 1, 11);
  allocations_left = 0;
  (void)world_trace(0);
  allocations_left = -1;
  assert_string_equal(w.trace, "");
  world_tick(10);
  expect(10, "want 1");
  world_path(10, 1, 11);
  expect(10, "read 2 over 11: 0");
  world_live(10, 1, 2);
  expect(10, "outcome 500 ok 1/1; quiet 500");
}
