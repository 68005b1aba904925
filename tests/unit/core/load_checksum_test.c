/* What becomes of a load whose blocks do not agree with their checksums. */
#include "load_world.h"

/* The read ends: `items` agree, and if they are not all, the next does not. */
static void verified(world *w, uint64_t now_ms, uint64_t read_id, kvf_status status, uint32_t items, uint64_t word)
{
  kvf_fence_sample sample = world_sample(1, word);
  kvf_loads_on_read_verified(w->loads, read_id, items);
  kvf_loads_on_read_done(w->loads, now_ms * MS, read_id, status, &sample, 400);
}

static void mismatch(world *w, uint64_t now_ms, uint64_t read_id, uint32_t items)
{
  verified(w, now_ms, read_id, KVF_CHECKSUM, items, kvf_fence_word_live(LEASE_ID));
}

static void good(world *w, uint64_t now_ms, uint64_t read_id, uint32_t items)
{
  verified(w, now_ms, read_id, KVF_OK, items, kvf_fence_word_live(LEASE_ID));
}

static void assert_counted(const world *w, uint64_t mismatches, uint64_t agreed, uint64_t unverified)
{
  const kvf_load_stats *stats = kvf_loads_stats(w->loads);
  assert_int_equal(stats->mismatches, mismatches);
  assert_int_equal(stats->verified, agreed);
  assert_int_equal(stats->unverified, unverified);
}

/* The items before the wrong one are good: only it and what follows is read again. */
static void one_more_try(void **state)
{
  world *w = *state;
  world_start_reading(w);
  good(w, 1, 2, 2);
  mismatch(w, 1, 1, 2);
  expect(w, 1, "");
  world_tick(w, 11);
  expect(w, 11, "want 1");
  world_path(w, 11, 1, 11);
  expect(w, 11, "read 3 over 11: 2,3");
  good(w, 12, 3, 2);
  expect(w, 12, "outcome 500 ok 6/6; quiet 500");
  assert_counted(w, 1, 6, 0);
}

static void wrong_twice_decides(void **state)
{
  world *w = *state;
  world_start_reading(w);
  good(w, 1, 2, 2);
  mismatch(w, 1, 1, 2);
  world_tick(w, 11);
  expect(w, 11, "want 1");
  world_path(w, 11, 1, 11);
  expect(w, 11, "read 3 over 11: 2,3");
  mismatch(w, 12, 3, 0);
  expect(w, 12, "outcome 500 checksum 2/6; quiet 500");
  assert_counted(w, 2, 4, 0);
}

/* Each item has a second try of its own. */
static void another_item_is_wrong(void **state)
{
  world *w = *state;
  world_spec(w, 500, 4, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0,1,2,3");
  mismatch(w, 1, 1, 0);
  world_tick(w, 11);
  expect(w, 11, "want 1");
  world_path(w, 11, 1, 11);
  expect(w, 11, "read 2 over 11: 0,1,2,3");
  mismatch(w, 12, 2, 1);
  world_tick(w, 22);
  expect(w, 22, "want 1");
  world_path(w, 22, 1, 11);
  expect(w, 22, "read 3 over 11: 1,2,3");
  mismatch(w, 23, 3, 0);
  expect(w, 23, "outcome 500 checksum 1/4; quiet 500");
  assert_counted(w, 3, 1, 0);
}

/* A wrong checksum of bytes that are the lease's no more says nothing, and what was verified is not good either. */
static void the_fence_goes_first(void **state)
{
  world *w = *state;
  world_start_reading(w);
  verified(w, 1, 2, KVF_CHECKSUM, 1, kvf_fence_word_over(LEASE_ID));
  expect(w, 1, "cancel 1 over 11; outcome 500 lease_expired 0/6");
  world_failed(w, 2, 1, KVF_CANCELLED);
  expect(w, 2, "quiet 500");
  assert_counted(w, 0, 0, 0);
}

/* Says that all agree, and that one does not: taken for the latter. Without a sample nothing is good. */
static void contradictions(void **state)
{
  world *w = *state;
  world_start_reading(w);
  mismatch(w, 1, 2, 2);
  kvf_loads_on_read_verified(w->loads, 1, 3);
  world_failed(w, 1, 1, KVF_CHECKSUM);
  kvf_loads_on_read_verified(w->loads, 77, 1);
  world_tick(w, 11);
  expect(w, 11, "want 1");
  world_path(w, 11, 1, 11);
  expect(w, 11, "read 3 over 11: 0,1,2,3; read 4 over 11: 5");
}

static void unverified_blocks_are_counted(void **state)
{
  world *w = *state;
  kvf_loads_destroy(w->loads);
  w->config.sums = true;
  world_open(w);
  world_start_reading(w);
  good(w, 1, 2, 2);
  world_live(w, 1, 1, 1);
  expect(w, 1, "outcome 500 ok 6/6; quiet 500");
  assert_counted(w, 0, 2, 4);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      world_test(one_more_try),         world_test(wrong_twice_decides), world_test(another_item_is_wrong),
      world_test(the_fence_goes_first), world_test(contradictions),      world_test(unverified_blocks_are_counted),
  };
  return cmocka_run_group_tests_name("core/load_checksum", tests, NULL, NULL);
}
