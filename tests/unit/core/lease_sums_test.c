/* The leases of a node with checksums: a live word waits for them. */
#include "lease_world.h"

#define NOT_PUBLISHED KVF_LEASE_STATE_NOT_PUBLISHED

static lease_world world;

static int set_up(void **state)
{
  world_init(&world, 0);
  *state = &world;
  return 0;
}

static int tear_down(void **state)
{
  lease_world *w = *state;
  kvf_lease_table_free(&w->table);
  return 0;
}

static kvf_status authorize(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  return kvf_lease_table_authorize(&w->table, now_ns, &lease, NULL, 0);
}

static void summed(lease_world *w, uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  kvf_lease_table_summed(&w->table, &lease);
}

static void live_waits_for_its_sums(void **state)
{
  lease_world *w = *state;
  kvf_lease_store store;
  w->table.config.sums = true;
  assert_int_equal(world_publish(w, 0, 1, 7), KVF_OK);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(authorize(w, 0, 1, 7), KVF_NOT_PUBLISHED);
  assert_int_equal(world_renew(w, 0, 1, 7, 'a'), NOT_PUBLISHED);
  summed(w, 1, 6); /* not these */
  summed(w, 2, 7);
  summed(w, WORLD_SLOTS, 7);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  summed(w, 1, 7);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.entry.word, kvf_fence_word_live(7));
  kvf_lease_table_stored(&w->table, 1, store.entry.word);
  summed(w, 1, 7); /* again: nothing */
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(authorize(w, 0, 1, 7), KVF_OK);
}

static void ended_before_its_sums_is_never_live(void **state)
{
  lease_world *w = *state;
  kvf_lease_store store;
  w->table.config.sums = true;
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.entry.word, kvf_fence_word_over(3));
  summed(w, 0, 3);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  w->fence[0] = store.entry;
  kvf_lease_table_stored(&w->table, 0, store.entry.word);
  summed(w, 0, 3);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  assert_int_equal(world_publish(w, 0, 0, 4), KVF_OK);
  summed(w, 0, 3); /* of the one before */
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  summed(w, 0, 4);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.entry.word, kvf_fence_word_live(4));
}

/* Another store of the slot is on its way, or waits: it does not take the live word along. */
static void held_behind_another_store(void **state)
{
  lease_world *w = *state;
  kvf_lease_store store;
  w->table.config.sums = true;
  assert_int_equal(world_end(w, 0, 0, 3), KVF_NOT_FOUND);
  assert_int_equal(world_publish(w, 0, 0, 4), KVF_OK);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(world_end(w, 0, 1, 3), KVF_NOT_FOUND);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(world_publish(w, 0, 1, 4), KVF_OK);
  kvf_lease_table_stored(&w->table, 1, store.entry.word);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(authorize(w, 0, 1, 4), KVF_NOT_PUBLISHED);

  assert_int_equal(world_end(w, 0, 2, 3), KVF_NOT_FOUND);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(world_publish(w, 0, 2, 4), KVF_OK);
  summed(w, 2, 4);
  assert_int_equal(authorize(w, 0, 2, 4), KVF_NOT_PUBLISHED);
  kvf_lease_table_stored(&w->table, 2, store.entry.word);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.entry.word, kvf_fence_word_live(4));
}

static void runs_out_while_it_is_being_summed(void **state)
{
  lease_world *w = *state;
  w->table.config.sums = true;
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  kvf_lease_table_tick(&w->table, WORLD_TTL_NS, 100);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_EXPIRED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
  const struct CMUnitTest tests[] = {
      TEST(live_waits_for_its_sums),
      TEST(ended_before_its_sums_is_never_live),
      TEST(held_behind_another_store),
      TEST(runs_out_while_it_is_being_summed),
  };
  return cmocka_run_group_tests_name("core/lease_sums", tests, NULL, NULL);
}
