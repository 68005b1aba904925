/* What becomes of a load whose blocks do not agree with their checksums. */
#include "load_world.h"

/* The read ends: `items` agree, and if they are not all, the next does not. */
static void verified(uint64_t now_ms, uint64_t read_id, kvf_status status, uint32_t items, uint64_t word)
{
  kvf_fence_sample sample = world_sample(1, word);
  kvf_loads_on_read_verified(w.loads, read_id, items);
  kvf_loads_on_read_done(w.loads, now_ms * MS, read_id, status, &sample, 400);
}

static void mismatch(uint64_t now_ms, uint64_t read_id, uint32_t items)
{
  verified(now_ms, read_id, KVF_CHECKSUM, items, kvf_fence_word_live(LEASE_ID));
}

static void good(uint64_t now_ms, uint64_t read_id, uint32_t items)
{
  verified(now_ms, read_id, KVF_OK, items, kvf_fence_word_live(LEASE_ID));
}

static void assert_counted(uint64_t mismatches, uint64_t agreed, uint64_t unverified)
{
  const kvf_load_stats *stats = kvf_loads_stats(w.loads);
  assert_int_equal(stats->mismatches, mismatches);
  assert_int_equal(stats->verified, agreed);
  assert_int_equal(stats->unverified, unverified);
}

/* The items before the wrong one are good: only it and what follows is read again. */
LOAD_TEST(one_more_try)
{
  world_start_reading();
  good(1, 2, 2);
  mismatch(1, 1, 2);
  expect(1, "");
  expect_at(11, "want 1");
  world_path(11, 1, 11);
  expect(11, "read 3 over 11: 2,3");
  good(12, 3, 2);
  expect(12, "outcome 500 ok 6/6; quiet 500");
  assert_counted(1, 6, 0);
}

LOAD_TEST(wrong_twice_decides)
{
  world_start_reading();
  good(1, 2, 2);
  mismatch(1, 1, 2);
  expect_at(11, "want 1");
  world_path(11, 1, 11);
  expect(11, "read 3 over 11: 2,3");
  mismatch(12, 3, 0);
  expect(12, "outcome 500 checksum 2/6; quiet 500");
  assert_counted(2, 4, 0);
}

/* Each item has a second try of its own. */
LOAD_TEST(another_item_is_wrong)
{
  world_spec(500, 4, "1");
  expect_started(0, "read 1 over 11: 0,1,2,3");
  mismatch(1, 1, 0);
  expect_at(11, "want 1");
  world_path(11, 1, 11);
  expect(11, "read 2 over 11: 0,1,2,3");
  mismatch(12, 2, 1);
  expect_at(22, "want 1");
  world_path(22, 1, 11);
  expect(22, "read 3 over 11: 1,2,3");
  mismatch(23, 3, 0);
  expect(23, "outcome 500 checksum 1/4; quiet 500");
  assert_counted(3, 1, 0);
}

/* A wrong checksum of bytes that are the lease's no more says nothing, and what was verified is not good either. */
LOAD_TEST(the_fence_goes_first)
{
  world_start_reading();
  verified(1, 2, KVF_CHECKSUM, 1, kvf_fence_word_over(LEASE_ID));
  expect(1, "cancel 1 over 11; outcome 500 lease_expired 0/6");
  world_failed(2, 1, KVF_CANCELLED);
  expect(2, "quiet 500");
  assert_counted(0, 0, 0);
}

/* Says that all agree, and that one does not: taken for the latter. Without a sample nothing is good. */
LOAD_TEST(contradictions)
{
  world_start_reading();
  mismatch(1, 2, 2);
  kvf_loads_on_read_verified(w.loads, 1, 3);
  world_failed(1, 1, KVF_CHECKSUM);
  kvf_loads_on_read_verified(w.loads, 77, 1);
  expect_at(11, "want 1");
  world_path(11, 1, 11);
  expect(11, "read 3 over 11: 0,1,2,3; read 4 over 11: 5");
}

LOAD_TEST(unverified_blocks_are_counted)
{
  kvf_loads_destroy(w.loads);
  w.config.sums = true;
  world_open();
  world_start_reading();
  good(1, 2, 2);
  world_live(1, 1, 1);
  expect(1, "outcome 500 ok 6/6; quiet 500");
  assert_counted(0, 2, 4);
}
