#include "lease_world.h"

#define LIVE KVF_LEASE_STATE_LIVE
#define NOT_PUBLISHED KVF_LEASE_STATE_NOT_PUBLISHED
#define OVER KVF_LEASE_STATE_OVER
#define UNKNOWN KVF_LEASE_STATE_UNKNOWN

static lease_world world;
static lease_world *const w = &world;

static int set_up(void **state)
{
  (void)state;
  world_init(w, 0);
  return 0;
}

static int tear_down(void **state)
{
  (void)state;
  kvf_lease_table_free(&w->table);
  return 0;
}

#define LEASE_TEST(name) TEST_WITH(name, set_up, tear_down)

static kvf_status authorize(uint64_t now_ns, uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  return kvf_lease_table_authorize(&w->table, now_ns, &lease, NULL, 0);
}

TEST(bad_config)
{
  static kvf_lease_table table;
  kvf_lease_table_config config = {0, 1, 1, false};
  assert_int_equal(kvf_lease_table_init(&table, &config, 0), KVF_INVALID);
  config = (kvf_lease_table_config){1, 0, 1, false};
  assert_int_equal(kvf_lease_table_init(&table, &config, 0), KVF_INVALID);
  config = (kvf_lease_table_config){1, 1, 0, false};
  assert_int_equal(kvf_lease_table_init(&table, &config, 0), KVF_INVALID);
}

/* ---- life ---- */

LEASE_TEST(published_then_live_then_completed)
{
  kvf_lease_store store;
  assert_int_equal(world_renew(w, 0, 1, 7, 'a'), NOT_PUBLISHED);
  assert_int_equal(authorize(0, 1, 7), KVF_NOT_PUBLISHED);
  assert_int_equal(world_publish(w, 0, 1, 7), KVF_OK);
  assert_int_equal(world_renew(w, 0, 1, 7, 'a'), NOT_PUBLISHED);
  assert_int_equal(authorize(0, 1, 7), KVF_NOT_PUBLISHED);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.slot, 1);
  assert_int_equal(store.entry.word, kvf_fence_word_live(7));
  assert_int_equal(store.entry.digest, 1007);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(authorize(0, 1, 7), KVF_NOT_PUBLISHED);
  kvf_lease_table_stored(&w->table, 1, kvf_fence_word_live(7));
  assert_int_equal(authorize(0, 1, 7), KVF_OK);
  assert_int_equal(world_renew(w, 0, 1, 7, 'a'), LIVE);
  assert_int_equal(w->table.live, 1);
  assert_int_equal(world_complete(w, 1, 1, 7, 'a'), OVER);
  assert_int_equal(authorize(1, 1, 7), KVF_LEASE_EXPIRED);
  assert_int_equal(world_renew(w, 1, 1, 7, 'a'), OVER);
  assert_int_equal(w->table.live, 0);
  assert_int_equal(w->table.held, 1);
  world_expect_ended(w, 1, 7, KVF_LEASE_END_COMPLETED);
  assert_int_equal(w->table.held, 0);
  assert_int_equal(world_renew(w, 1, 1, 7, 'a'), OVER);
  assert_int_equal(kvf_lease_table_next_deadline(&w->table), KVF_TIME_NEVER);
}

LEASE_TEST(given_back_only_after_over_is_stored)
{
  kvf_lease_store store;
  world_live(w, 0, 0, 3);
  assert_int_equal(world_end(w, 1, 0, 3), KVF_OK);
  world_expect_none_ended(w);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.entry.word, kvf_fence_word_over(3));
  world_expect_none_ended(w);
  w->fence[0] = store.entry;
  kvf_lease_table_stored(&w->table, 0, store.entry.word);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
}

LEASE_TEST(ended_before_live_is_stored)
{
  kvf_lease_store store;
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.entry.word, kvf_fence_word_over(3));
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  w->fence[0] = store.entry;
  kvf_lease_table_stored(&w->table, 0, store.entry.word);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
}

/* Over must not overtake live on its way to the fence table. */
LEASE_TEST(ended_while_live_is_being_stored)
{
  kvf_lease_store store;
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  kvf_lease_table_stored(&w->table, 0, kvf_fence_word_live(3));
  assert_int_equal(authorize(0, 0, 3), KVF_LEASE_EXPIRED);
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
}

LEASE_TEST(ids_of_a_slot)
{
  world_live(w, 0, 2, 50);
  assert_int_equal(world_renew(w, 0, 2, 49, 'a'), OVER);
  assert_int_equal(authorize(0, 2, 49), KVF_LEASE_EXPIRED);
  assert_int_equal(world_renew(w, 0, 2, 51, 'a'), NOT_PUBLISHED);
  assert_int_equal(authorize(0, 2, 51), KVF_NOT_PUBLISHED);
  assert_int_equal(world_publish(w, 0, 2, 50), KVF_EXISTS);
  assert_int_equal(world_publish(w, 0, 2, 49), KVF_EXISTS);
  assert_int_equal(world_publish(w, 0, 2, 51), KVF_EXISTS); /* 50 has not been given back */
  assert_int_equal(world_end(w, 0, 2, 50), KVF_OK);
  assert_int_equal(world_publish(w, 0, 2, 51), KVF_EXISTS);
  world_store_all(w);
  assert_int_equal(world_publish(w, 0, 2, 51), KVF_EXISTS);
  world_expect_ended(w, 2, 50, KVF_LEASE_END_REVOKED);
  assert_int_equal(world_publish(w, 0, 2, 50), KVF_EXISTS);
  world_live(w, 0, 2, 51);
  assert_int_equal(world_renew(w, 0, 2, 50, 'a'), OVER);
  assert_int_equal(world_renew(w, 0, 2, 51, 'a'), LIVE);
}

LEASE_TEST(out_of_range)
{
  assert_int_equal(world_publish(w, 0, WORLD_SLOTS, 1), KVF_INVALID);
  assert_int_equal(world_publish(w, 0, 0, KVF_LEASE_ID_MAX), KVF_INVALID);
  assert_int_equal(world_renew(w, 0, WORLD_SLOTS, 1, 'a'), UNKNOWN);
  assert_int_equal(world_renew(w, 0, UINT32_MAX, 1, 'a'), UNKNOWN);
  assert_int_equal(world_renew(w, 0, 0, KVF_LEASE_ID_MAX, 'a'), UNKNOWN);
  assert_int_equal(world_renew(w, 0, 0, UINT64_MAX, 'a'), UNKNOWN);
  assert_int_equal(world_complete(w, 0, WORLD_SLOTS, 1, 'a'), UNKNOWN);
  assert_int_equal(authorize(0, WORLD_SLOTS, 1), KVF_LEASE_UNKNOWN);
  assert_int_equal(authorize(0, 0, UINT64_MAX), KVF_LEASE_UNKNOWN);
  assert_int_equal(world_end(w, 0, WORLD_SLOTS, 1), KVF_NOT_FOUND);
  assert_int_equal(world_end(w, 0, 0, UINT64_MAX), KVF_NOT_FOUND);
  world_live(w, 0, 0, KVF_LEASE_ID_MAX - 1);
  assert_int_equal(world_end(w, 0, 0, KVF_LEASE_ID_MAX - 1), KVF_OK);
  world_expect_ended(w, 0, KVF_LEASE_ID_MAX - 1, KVF_LEASE_END_REVOKED);
}

LEASE_TEST(wrong_token_is_unknown)
{
  const kvf_consumer_key key = key_of('a');
  world_live(w, 0, 0, 3);
  kvf_lease lease = lease_of(0, 3);
  lease.token[15] ^= 1;
  assert_int_equal(kvf_lease_table_renew(&w->table, 50, &lease, &key), UNKNOWN);
  assert_int_equal(kvf_lease_table_finish(&w->table, 50, &lease, &key, true), UNKNOWN);
  assert_int_equal(kvf_lease_table_finish(&w->table, 50, &lease, &key, false), UNKNOWN);
  assert_int_equal(kvf_lease_table_authorize(&w->table, 50, &lease, NULL, 0), KVF_LEASE_UNKNOWN);
  assert_int_equal(w->table.live, 1);
  assert_int_equal(world_renew(w, MS(100), 0, 3, 'a'), OVER); /* nothing has lengthened it */
  assert_int_equal(kvf_lease_table_renew(&w->table, MS(100), &lease, &key), UNKNOWN);
}

/* ---- revoking ---- */

LEASE_TEST(end_counts_once)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_NOT_FOUND);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_NOT_FOUND);
  assert_int_equal(world_end(w, 0, 0, 2), KVF_NOT_FOUND);
  world_store_all(w);
  world_expect_none_ended(w);
}

LEASE_TEST(end_of_unpublished_is_remembered)
{
  assert_int_equal(world_end(w, 0, 0, 3), KVF_NOT_FOUND);
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_EXISTS);
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), OVER);
  world_store_all(w);
  assert_int_equal(w->fence[0].word, kvf_fence_word_over(3)); /* readers need not wait for it */
  world_expect_none_ended(w);
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_EXISTS);
  world_live(w, 0, 0, 4);
  assert_int_equal(world_renew(w, 0, 0, 4, 'a'), LIVE);
  assert_int_equal(w->fence[0].word, kvf_fence_word_live(4));
}

LEASE_TEST(publish_while_an_unpublished_end_is_being_stored)
{
  kvf_lease_store store;
  assert_int_equal(world_end(w, 0, 0, 3), KVF_NOT_FOUND);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(world_publish(w, 0, 0, 4), KVF_OK);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  kvf_lease_table_stored(&w->table, 0, kvf_fence_word_over(3));
  assert_int_equal(authorize(0, 0, 4), KVF_NOT_PUBLISHED);
  world_store_all(w);
  assert_int_equal(authorize(0, 0, 4), KVF_OK);
}

LEASE_TEST(end_of_a_later_id_ends_the_slots_lease)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_end(w, 0, 0, 5), KVF_NOT_FOUND);
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), OVER);
  assert_int_equal(world_renew(w, 0, 0, 5, 'a'), OVER);
  assert_int_equal(world_renew(w, 0, 0, 6, 'a'), NOT_PUBLISHED);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  assert_int_equal(w->fence[0].word, kvf_fence_word_over(5));
  world_live(w, 0, 0, 6);
}

LEASE_TEST(end_of_a_later_id_while_the_slots_lease_waits)
{
  kvf_lease_ended ended;
  world_live(w, 0, 0, 3);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  world_store_all(w);
  assert_int_equal(world_end(w, 0, 0, 5), KVF_NOT_FOUND);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  assert_false(kvf_lease_table_next_ended(&w->table, &ended));
}

LEASE_TEST(end_all)
{
  kvf_lease_ended ended;
  world_live(w, 0, 0, 3);
  world_live(w, MS(90), 3, 4);
  assert_int_equal(world_publish(w, MS(90), 2, 5), KVF_OK);
  kvf_lease_table_end_all(&w->table, MS(100));
  assert_int_equal(w->table.live, 0);
  world_store_all(w);
  unsigned count = 0;
  while (kvf_lease_table_next_ended(&w->table, &ended)) {
    assert_int_equal(ended.cause, ended.id == 3 ? KVF_LEASE_END_EXPIRED : KVF_LEASE_END_REVOKED);
    count++;
  }
  assert_int_equal(count, 3);
  kvf_lease_table_end_all(&w->table, MS(100));
  assert_int_equal(w->fence[2].word, kvf_fence_word_over(5));
}

/* ---- time ---- */

LEASE_TEST(expires_at_its_ttl)
{
  world_live(w, 0, 0, 3);
  assert_true(kvf_lease_table_next_deadline(&w->table) <= MS(100));
  kvf_lease_table_tick(&w->table, MS(99), 1000);
  assert_int_equal(authorize(MS(99), 0, 3), KVF_OK);
  assert_int_equal(kvf_lease_table_next_deadline(&w->table), MS(100));
  kvf_lease_table_tick(&w->table, MS(100), 1000);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_EXPIRED);
  assert_int_equal(w->table.counters.ended[KVF_LEASE_END_EXPIRED], 1);
  assert_int_equal(kvf_lease_table_next_deadline(&w->table), KVF_TIME_NEVER);
}

/* At its deadline a lease is over for every call, although no tick has come. */
LEASE_TEST(over_without_a_tick)
{
  for (uint32_t slot = 0; slot < 4; slot++) {
    world_live(w, 0, slot, 3);
  }
  assert_int_equal(authorize(MS(100) - 1, 0, 3), KVF_OK);
  assert_int_equal(authorize(MS(100), 0, 3), KVF_LEASE_EXPIRED);
  assert_int_equal(world_renew(w, MS(100), 0, 3, 'a'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_EXPIRED);
  assert_int_equal(world_complete(w, MS(100), 1, 3, 'a'), OVER);
  world_expect_ended(w, 1, 3, KVF_LEASE_END_EXPIRED);
  assert_int_equal(world_end(w, MS(100), 2, 3), KVF_NOT_FOUND);
  world_expect_ended(w, 2, 3, KVF_LEASE_END_EXPIRED);
  assert_int_equal(world_abort(w, MS(100), 3, 3, 'a'), OVER);
  world_expect_ended(w, 3, 3, KVF_LEASE_END_EXPIRED);
}

LEASE_TEST(renewal_lengthens)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_renew(w, MS(99), 0, 3, 'a'), LIVE);
  kvf_lease_table_tick(&w->table, MS(100), 1000);
  kvf_lease_table_tick(&w->table, MS(198), 1000);
  assert_int_equal(authorize(MS(198), 0, 3), KVF_OK);
  assert_int_equal(kvf_lease_table_next_deadline(&w->table), MS(199));
  kvf_lease_table_tick(&w->table, MS(199), 1000);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_EXPIRED);
}

LEASE_TEST(renewal_before_live_is_stored_counts)
{
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  assert_int_equal(world_renew(w, MS(50), 0, 3, 'a'), NOT_PUBLISHED);
  world_store_all(w);
  assert_int_equal(authorize(MS(149), 0, 3), KVF_OK);
  assert_int_equal(authorize(MS(150), 0, 3), KVF_LEASE_EXPIRED);
}

LEASE_TEST(longest_life)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_renew(w, MS(99), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(198), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(249), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(250), 0, 3, 'a'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_EXPIRED);
}

TEST(ttl_above_longest_life)
{
  static kvf_lease_table table;
  const kvf_lease_table_config config = {1, MS(100), MS(40), false};
  const kvf_lease lease = lease_of(0, 1);
  const kvf_blocks blocks = {NULL, NULL, 0};
  assert_int_equal(kvf_lease_table_init(&table, &config, 0), KVF_OK);
  assert_int_equal(kvf_lease_table_publish(&table, 0, &lease, &blocks, 0, 0), KVF_OK);
  assert_int_equal(kvf_lease_table_next_deadline(&table), MS(40));
  kvf_lease_table_free(&table);
}

LEASE_TEST(finished_consumer_does_not_lengthen)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_renew(w, MS(50), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(60), 0, 3, 'b'), LIVE);
  assert_int_equal(world_complete(w, MS(70), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(80), 0, 3, 'a'), LIVE);
  assert_int_equal(authorize(MS(159), 0, 3), KVF_OK);
  assert_int_equal(authorize(MS(160), 0, 3), KVF_LEASE_EXPIRED);
}

LEASE_TEST(fifth_consumer_lengthens)
{
  world_live(w, 0, 0, 3);
  for (int name = 'a'; name < 'a' + KVF_LEASE_CONSUMERS_MAX; name++) {
    assert_int_equal(world_renew(w, MS(10), 0, 3, (char)name), LIVE);
  }
  assert_int_equal(world_renew(w, MS(90), 0, 3, 'z'), LIVE);
  assert_int_equal(authorize(MS(189), 0, 3), KVF_OK);
  assert_int_equal(authorize(MS(190), 0, 3), KVF_LEASE_EXPIRED);
}

LEASE_TEST(tick_is_bounded)
{
  for (uint32_t slot = 0; slot < WORLD_SLOTS; slot++) {
    world_live(w, 0, slot, 3);
  }
  for (uint32_t left = WORLD_SLOTS; left > 0; left--) {
    assert_int_equal(w->table.live, left);
    assert_true(kvf_lease_table_next_deadline(&w->table) <= MS(100));
    kvf_lease_table_tick(&w->table, MS(100), 1);
  }
  assert_int_equal(w->table.live, 0);
}

/* More than are looked at together, and no more than was asked for. */
TEST(many_run_out_in_one_tick)
{
  kvf_lease_table table;
  const kvf_lease_table_config config = {100, WORLD_TTL_NS, WORLD_MAX_NS, false};
  const kvf_blocks blocks = {NULL, NULL, 0};
  assert_int_equal(kvf_lease_table_init(&table, &config, 0), KVF_OK);
  for (uint32_t slot = 0; slot < 100; slot++) {
    const kvf_lease lease = lease_of(slot, 3);
    assert_int_equal(kvf_lease_table_publish(&table, slot < 90 ? 0 : MS(50), &lease, &blocks, 1, slot), KVF_OK);
  }
  kvf_lease_table_tick(&table, MS(100), 40);
  assert_int_equal(table.live, 60);
  kvf_lease_table_tick(&table, MS(100), 1000);
  assert_int_equal(table.live, 10);
  assert_int_equal(table.counters.ended[KVF_LEASE_END_EXPIRED], 90);
  assert_in_range(kvf_lease_table_next_deadline(&table), MS(100), MS(150));
  kvf_lease_table_free(&table);
}

LEASE_TEST(time_near_its_end)
{
  uint64_t now_ns = UINT64_MAX - MS(120);
  kvf_lease_table_free(&w->table);
  world_init(w, now_ns);
  world_live(w, now_ns, 0, 3);
  assert_int_equal(authorize(now_ns + MS(99), 0, 3), KVF_OK);
  assert_int_equal(world_renew(w, now_ns + MS(99), 0, 3, 'a'), LIVE); /* from here its deadline is never */
  kvf_lease_table_tick(&w->table, UINT64_MAX - 1, 1000);
  assert_int_equal(authorize(UINT64_MAX - 1, 0, 3), KVF_OK);
  assert_int_equal(world_end(w, UINT64_MAX - 1, 0, 3), KVF_OK);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
}

/* ---- consumers ---- */

LEASE_TEST(last_abort_abandons)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'b'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_ABANDONED);
}

LEASE_TEST(abort_without_a_renewal)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_abort(w, 0, 0, 3, 'a'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_ABANDONED);
}

LEASE_TEST(acknowledgement_waits_for_others_and_counts_once)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'b'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LEASE_TEST(finished_is_final)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(60), 0, 3, 'a'), LIVE); /* late: lengthens nothing */
  assert_int_equal(authorize(MS(100), 0, 3), KVF_LEASE_EXPIRED);
  assert_int_equal(world_abort(w, MS(60), 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, MS(60), 0, 3, 'b'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LEASE_TEST(abort_by_one_that_never_attached)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), LIVE); /* delayed: it does not attach */
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LEASE_TEST(consumers_differ_in_every_part_of_their_key)
{
  const kvf_lease lease = lease_of(0, 3);
  kvf_consumer_key keys[3] = {key_of('a'), key_of('a'), key_of('a')};
  keys[1].request_id++;
  keys[2].incarnation.bytes[KVF_INCARNATION_BYTES - 1] = 1;
  world_live(w, 0, 0, 3);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(kvf_lease_table_renew(&w->table, 0, &lease, &keys[i]), LIVE);
  }
  assert_int_equal(kvf_lease_table_finish(&w->table, 0, &lease, &keys[0], false), LIVE);
  assert_int_equal(kvf_lease_table_finish(&w->table, 0, &lease, &keys[2], false), LIVE);
  assert_int_equal(kvf_lease_table_finish(&w->table, 0, &lease, &keys[1], false), OVER);
}

LEASE_TEST(no_room_for_another_consumer)
{
  world_live(w, 0, 0, 3);
  for (int i = 0; i < KVF_LEASE_CONSUMERS_MAX; i++) {
    assert_int_equal(world_renew(w, 0, 0, 3, (char)('a' + i)), LIVE);
  }
  assert_int_equal(world_renew(w, MS(60), 0, 3, 'e'), LIVE); /* lengthens the lease, without being attached */
  assert_int_equal(authorize(MS(100), 0, 3), KVF_OK);
  assert_int_equal(world_complete(w, MS(60), 0, 3, 'e'), LIVE);
  assert_int_equal(world_abort(w, MS(60), 0, 3, 'e'), LIVE);
  assert_int_equal(world_abort(w, MS(60), 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, MS(60), 0, 3, 'b'), LIVE);
  assert_int_equal(world_abort(w, MS(60), 0, 3, 'c'), LIVE);
  assert_int_equal(world_complete(w, MS(60), 0, 3, 'd'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LEASE_TEST(aborted_consumer_makes_room)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'c'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'd'), LIVE);
  assert_int_equal(world_renew(w, 0, 0, 3, 'e'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'e'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LEASE_TEST(late_messages_are_counted)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), OVER);
  assert_int_equal(w->table.counters.late_acknowledgements, 0);
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), OVER);
  assert_int_equal(world_complete(w, 0, 0, 2, 'a'), OVER);
  assert_int_equal(world_abort(w, 0, 0, 3, 'b'), OVER);
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), OVER);
  assert_int_equal(w->table.counters.late_acknowledgements, 2);
  assert_int_equal(w->table.counters.late_renewals, 1);
  assert_int_equal(w->table.counters.published, 1);
  assert_int_equal(w->table.counters.ended[KVF_LEASE_END_COMPLETED], 1);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

/* The next lease of a slot has none of the last one's consumers. */
LEASE_TEST(consumers_do_not_outlive_the_lease)
{
  world_live(w, 0, 0, 3);
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  world_live(w, 0, 0, 4);
  assert_int_equal(world_complete(w, 0, 0, 4, 'b'), OVER);
  world_expect_ended(w, 0, 4, KVF_LEASE_END_COMPLETED);
}

/* ---- blocks ---- */

LEASE_TEST(authorize_turns_positions_into_blocks)
{
  const kvf_lease lease = lease_of(0, 3);
  world_live(w, 0, 0, 3);
  kvf_read_item items[] = {
      {.group = 2, .position = 1, .local_block = 77},
      {.group = 0, .position = 0},
      {.group = 0, .position = 1},
      {.group = 2, .position = 0},
  };
  assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, items, 4), KVF_OK);
  assert_int_equal(items[0].remote_block, 21);
  assert_int_equal(items[0].local_block, 77);
  assert_int_equal(items[1].remote_block, 10);
  assert_int_equal(items[2].remote_block, 11);
  assert_int_equal(items[3].remote_block, 20);
  static const kvf_read_item bad[] = {
      {.group = 0, .position = 2}, /* KVF_BLOCK_NONE */
      {.group = 0, .position = 3},
      {.group = 1, .position = 0},
      {.group = 2, .position = 2},
      {.group = 3, .position = 0},
      {.group = 0, .position = UINT32_MAX},
      {.group = UINT32_MAX, .position = 0},
      {.group = UINT32_MAX, .position = UINT32_MAX},
  };
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    kvf_read_item pair[] = {items[0], bad[i]};
    assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, pair, 2), KVF_INVALID);
  }
}

LEASE_TEST(block_limits)
{
  static uint32_t ids[KVF_BLOCKS_PER_LEASE_MAX];
  uint32_t counts[KVF_GROUPS_MAX + 1] = {KVF_BLOCKS_PER_LEASE_MAX};
  kvf_blocks blocks = {ids, counts, KVF_GROUPS_MAX + 1};
  const kvf_lease lease = lease_of(0, 3);
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0), KVF_LIMIT);
  blocks.groups = KVF_GROUPS_MAX;
  counts[1] = 1;
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0), KVF_LIMIT);
  counts[1] = UINT32_MAX - KVF_BLOCKS_PER_LEASE_MAX + 1; /* their sum is 2^32 */
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0), KVF_LIMIT);
  assert_int_equal(w->table.held, 0);
  counts[1] = 0;
  ids[KVF_BLOCKS_PER_LEASE_MAX - 1] = 99;
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0), KVF_OK);
  world_store_all(w);
  kvf_read_item item = {.group = 0, .position = KVF_BLOCKS_PER_LEASE_MAX - 1};
  assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, &item, 1), KVF_OK);
  assert_int_equal(item.remote_block, 99);
}

LEASE_TEST(blocks_are_copied)
{
  uint32_t ids[] = {5};
  uint32_t counts[] = {1};
  const kvf_blocks blocks = {ids, counts, 1};
  const kvf_lease lease = lease_of(0, 3);
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0), KVF_OK);
  world_store_all(w);
  ids[0] = 6;
  counts[0] = 0;
  kvf_read_item item = {0};
  assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, &item, 1), KVF_OK);
  assert_int_equal(item.remote_block, 5);
}

/* ---- checksums: a live word waits for them ---- */

static void summed(uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  kvf_lease_table_summed(&w->table, &lease);
}

LEASE_TEST(live_waits_for_its_sums)
{
  kvf_lease_store store;
  w->table.config.sums = true;
  assert_int_equal(world_publish(w, 0, 1, 7), KVF_OK);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(authorize(0, 1, 7), KVF_NOT_PUBLISHED);
  assert_int_equal(world_renew(w, 0, 1, 7, 'a'), NOT_PUBLISHED);
  summed(1, 6); /* not these */
  summed(2, 7);
  summed(WORLD_SLOTS, 7);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  summed(1, 7);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.entry.word, kvf_fence_word_live(7));
  kvf_lease_table_stored(&w->table, 1, store.entry.word);
  summed(1, 7); /* again: nothing */
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(authorize(0, 1, 7), KVF_OK);
}

LEASE_TEST(ended_before_its_sums_is_never_live)
{
  kvf_lease_store store;
  w->table.config.sums = true;
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.entry.word, kvf_fence_word_over(3));
  summed(0, 3);
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  w->fence[0] = store.entry;
  kvf_lease_table_stored(&w->table, 0, store.entry.word);
  summed(0, 3);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  assert_int_equal(world_publish(w, 0, 0, 4), KVF_OK);
  summed(0, 3); /* of the one before */
  assert_false(kvf_lease_table_next_store(&w->table, &store));
  summed(0, 4);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.entry.word, kvf_fence_word_live(4));
}

/* Another store of the slot is on its way, or waits: it does not take the live word along. */
LEASE_TEST(held_behind_another_store)
{
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
  assert_int_equal(authorize(0, 1, 4), KVF_NOT_PUBLISHED);

  assert_int_equal(world_end(w, 0, 2, 3), KVF_NOT_FOUND);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(world_publish(w, 0, 2, 4), KVF_OK);
  summed(2, 4);
  assert_int_equal(authorize(0, 2, 4), KVF_NOT_PUBLISHED);
  kvf_lease_table_stored(&w->table, 2, store.entry.word);
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.entry.word, kvf_fence_word_live(4));
}

LEASE_TEST(runs_out_while_it_is_being_summed)
{
  w->table.config.sums = true;
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  kvf_lease_table_tick(&w->table, WORLD_TTL_NS, 100);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_EXPIRED);
}
