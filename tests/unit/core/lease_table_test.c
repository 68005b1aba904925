/* The lease table with the fence table that it stores into: each call, and all of them against a model. */
#include "core/lease_table.h"

#include "base/prng.h"
#include "test.h"

#define MS(n) ((n) * KVF_NS_PER_MS)
#define WORLD_SLOTS 4
#define WORLD_TTL_MS 100
#define WORLD_MAX_MS 250

typedef struct lease_world {
  kvf_lease_table table;
  bool incomplete; /* what is published, until complete() */
  kvf_fence_entry fence[WORLD_SLOTS];
} lease_world;

static void world_init(lease_world *w, uint64_t now_ns)
{
  static const kvf_config config = {
      .lease_slots = WORLD_SLOTS, .lease_ttl_ms = WORLD_TTL_MS, .lease_max_ms = WORLD_MAX_MS};
  *w = (lease_world){0};
  assert_int_equal(kvf_lease_table_init(&w->table, &config, now_ns), KVF_OK);
}

/* The lease of this id; its token follows from the id. */
static kvf_lease lease_of(uint32_t slot, uint64_t id)
{
  return (kvf_lease){.id = id, .slot = slot, .token = {(uint8_t)id, 1, 2, 3}};
}

static kvf_consumer_key key_of(char name)
{
  return (kvf_consumer_key){.incarnation = {{(uint8_t)name}}, .request_id = 5};
}

static void world_store_all(lease_world *w)
{
  kvf_lease_store store;
  while (kvf_lease_table_next_store(&w->table, &store)) {
    assert_true(store.entry.word > w->fence[store.slot].word);
    w->fence[store.slot] = store.entry;
    kvf_lease_table_stored(&w->table, store.slot, store.entry.word);
  }
}

static kvf_status world_publish(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id)
{
  static const uint32_t ids[] = {10, 11, KVF_BLOCK_NONE, 20, 21};
  static const uint32_t counts[] = {3, 0, 2};
  const kvf_blocks blocks = {ids, counts, 3};
  const kvf_lease lease = lease_of(slot, id);
  return kvf_lease_table_publish(&w->table, now_ns, &lease, &blocks, 1000 + id, 2000 + id, w->incomplete);
}

/* Published, and its live word stored. */
static void world_live(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id)
{
  assert_int_equal(world_publish(w, now_ns, slot, id), KVF_OK);
  world_store_all(w);
}

static kvf_lease_state world_renew(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id, char name)
{
  const kvf_lease lease = lease_of(slot, id);
  const kvf_consumer_key key = key_of(name);
  return kvf_lease_table_on_consumer(&w->table, now_ns, &lease, &key, KVF_FINISH_NONE);
}

static kvf_lease_state world_finish(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id, char name,
                                    kvf_finish_kind kind)
{
  const kvf_lease lease = lease_of(slot, id);
  const kvf_consumer_key key = key_of(name);
  return kvf_lease_table_on_consumer(&w->table, now_ns, &lease, &key, kind);
}

static kvf_lease_state world_complete(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id, char name)
{
  return world_finish(w, now_ns, slot, id, name, KVF_FINISH_COMPLETED);
}

static kvf_lease_state world_abort(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id, char name)
{
  return world_finish(w, now_ns, slot, id, name, KVF_FINISH_ABORTED);
}

static kvf_lease_state world_detach(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id, char name)
{
  return world_finish(w, now_ns, slot, id, name, KVF_FINISH_DETACHED);
}

static kvf_status world_end(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  return kvf_lease_table_end(&w->table, now_ns, &lease);
}

/* Nothing has been given back. */
static void world_expect_none_ended(lease_world *w)
{
  kvf_event ended;
  assert_false(kvf_lease_table_next_ended(&w->table, &ended));
}

/* Exactly this lease has been given back, once its over was stored. */
static void world_expect_ended(lease_world *w, uint32_t slot, uint64_t id, kvf_lease_end_cause cause)
{
  kvf_event ended;
  if (w->fence[slot].word < kvf_fence_word_ended(id)) {
    world_expect_none_ended(w);
  }
  world_store_all(w);
  assert_true(w->fence[slot].word >= kvf_fence_word_ended(id));
  assert_true(kvf_lease_table_next_ended(&w->table, &ended));
  assert_int_equal(ended.id, id);
  assert_int_equal(ended.user, 2000 + id);
  assert_int_equal(ended.u.lease_end, cause);
  world_expect_none_ended(w);
}

#define LIVE KVF_LEASE_STATE_LIVE
#define NOT_PUBLISHED KVF_LEASE_STATE_NOT_PUBLISHED
#define OVER KVF_LEASE_STATE_ENDED
#define UNKNOWN KVF_LEASE_STATE_UNKNOWN

static lease_world world;
static lease_world *const w = &world;

static void expect_no_store(void)
{
  kvf_lease_store store;
  assert_false(kvf_lease_table_next_store(&w->table, &store));
}

/* The next store to make is this word. It is on its way until stored() says that it is done. */
static void expect_store(uint32_t slot, uint64_t word)
{
  kvf_lease_store store;
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.slot, slot);
  assert_int_equal(store.entry.word, word);
  w->fence[slot] = store.entry;
}

static void stored(uint32_t slot)
{
  kvf_lease_table_stored(&w->table, slot, w->fence[slot].word);
}

static void set_up(void)
{
  world_init(w, 0);
}

static void tear_down(void)
{
  kvf_lease_table_free(&w->table);
}

#define LEASE_TEST(name) TEST_WITH(name, set_up, tear_down)

static void set_up_live(void)
{
  set_up();
  world_live(w, 0, 0, 3);
}

/* Begins with lease 3 live in slot 0. */
#define LIVE_TEST(name) TEST_WITH(name, set_up_live, tear_down)

static kvf_status authorize(uint64_t now_ns, uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  return kvf_lease_table_authorize(&w->table, now_ns, &lease, NULL, 0);
}

/* ---- life ---- */

LEASE_TEST(published_then_live_then_completed)
{
  assert_int_equal(world_renew(w, 0, 1, 7, 'a'), NOT_PUBLISHED);
  assert_int_equal(authorize(0, 1, 7), KVF_NOT_PUBLISHED);
  assert_int_equal(world_publish(w, 0, 1, 7), KVF_OK);
  assert_int_equal(world_renew(w, 0, 1, 7, 'a'), NOT_PUBLISHED);
  assert_int_equal(authorize(0, 1, 7), KVF_NOT_PUBLISHED);
  expect_store(1, kvf_fence_word_live(7));
  assert_int_equal(w->fence[1].digest, 1007);
  expect_no_store();
  assert_int_equal(authorize(0, 1, 7), KVF_NOT_PUBLISHED);
  stored(1);
  assert_int_equal(authorize(0, 1, 7), KVF_OK);
  assert_int_equal(world_renew(w, 0, 1, 7, 'a'), LIVE);
  assert_int_equal(w->table.live, 1);
  assert_int_equal(world_complete(w, 1, 1, 7, 'a'), OVER);
  assert_int_equal(authorize(1, 1, 7), KVF_LEASE_EXPIRED);
  assert_int_equal(world_renew(w, 1, 1, 7, 'a'), OVER);
  assert_int_equal(w->table.live, 0);
  assert_int_equal(w->table.unreleased, 1);
  world_expect_ended(w, 1, 7, KVF_LEASE_END_COMPLETED);
  assert_int_equal(w->table.unreleased, 0);
  assert_int_equal(world_renew(w, 1, 1, 7, 'a'), OVER);
  assert_int_equal(kvf_wheel_next_deadline(&w->table.wheel), KVF_TIME_NEVER);
}

LIVE_TEST(given_back_only_after_over_is_stored)
{
  assert_int_equal(world_end(w, 1, 0, 3), KVF_OK);
  world_expect_none_ended(w);
  expect_store(0, kvf_fence_word_ended(3));
  world_expect_none_ended(w);
  stored(0);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
}

LEASE_TEST(ended_before_live_is_stored)
{
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  expect_store(0, kvf_fence_word_ended(3));
  expect_no_store();
  stored(0);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
}

/* Over must not overtake live on its way to the fence table. */
LEASE_TEST(ended_while_live_is_being_stored)
{
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  expect_store(0, kvf_fence_word_live(3));
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  expect_no_store();
  stored(0);
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
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 50, &lease, &key, KVF_FINISH_NONE), UNKNOWN);
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 50, &lease, &key, KVF_FINISH_COMPLETED), UNKNOWN);
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 50, &lease, &key, KVF_FINISH_ABORTED), UNKNOWN);
  assert_int_equal(kvf_lease_table_authorize(&w->table, 50, &lease, NULL, 0), KVF_LEASE_UNKNOWN);
  assert_int_equal(w->table.live, 1);
  assert_int_equal(world_renew(w, MS(100), 0, 3, 'a'), OVER); /* nothing has lengthened it */
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, MS(100), &lease, &key, KVF_FINISH_NONE), UNKNOWN);
}

/* ---- revoking ---- */

LIVE_TEST(end_counts_once)
{
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
  assert_int_equal(w->fence[0].word, kvf_fence_word_ended(3)); /* readers need not wait for it */
  world_expect_none_ended(w);
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_EXISTS);
  world_live(w, 0, 0, 4);
  assert_int_equal(world_renew(w, 0, 0, 4, 'a'), LIVE);
  assert_int_equal(w->fence[0].word, kvf_fence_word_live(4));
}

LEASE_TEST(publish_while_an_unpublished_end_is_being_stored)
{
  assert_int_equal(world_end(w, 0, 0, 3), KVF_NOT_FOUND);
  expect_store(0, kvf_fence_word_ended(3));
  assert_int_equal(world_publish(w, 0, 0, 4), KVF_OK);
  expect_no_store();
  stored(0);
  assert_int_equal(authorize(0, 0, 4), KVF_NOT_PUBLISHED);
  world_store_all(w);
  assert_int_equal(authorize(0, 0, 4), KVF_OK);
}

LIVE_TEST(end_of_a_later_id_ends_the_slots_lease)
{
  assert_int_equal(world_end(w, 0, 0, 5), KVF_NOT_FOUND);
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), OVER);
  assert_int_equal(world_renew(w, 0, 0, 5, 'a'), OVER);
  assert_int_equal(world_renew(w, 0, 0, 6, 'a'), NOT_PUBLISHED);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  assert_int_equal(w->fence[0].word, kvf_fence_word_ended(5));
  world_live(w, 0, 0, 6);
}

LEASE_TEST(end_of_a_later_id_while_the_slots_lease_waits)
{
  kvf_event ended;
  world_live(w, 0, 0, 3);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  world_store_all(w);
  assert_int_equal(world_end(w, 0, 0, 5), KVF_NOT_FOUND);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  assert_false(kvf_lease_table_next_ended(&w->table, &ended));
}

LEASE_TEST(end_all)
{
  kvf_event ended;
  world_live(w, 0, 0, 3);
  world_live(w, MS(90), 3, 4);
  assert_int_equal(world_publish(w, MS(90), 2, 5), KVF_OK);
  kvf_lease_table_end_all(&w->table, MS(100));
  assert_int_equal(w->table.live, 0);
  world_store_all(w);
  unsigned count = 0;
  while (kvf_lease_table_next_ended(&w->table, &ended)) {
    assert_int_equal(ended.u.lease_end, ended.id == 3 ? KVF_LEASE_END_EXPIRED : KVF_LEASE_END_REVOKED);
    count++;
  }
  assert_int_equal(count, 3);
  kvf_lease_table_end_all(&w->table, MS(100));
  assert_int_equal(w->fence[2].word, kvf_fence_word_ended(5));
}

/* ---- time ---- */

LIVE_TEST(expires_at_its_ttl)
{
  assert_true(kvf_wheel_next_deadline(&w->table.wheel) <= MS(100));
  kvf_lease_table_tick(&w->table, MS(99), 1000);
  assert_int_equal(authorize(MS(99), 0, 3), KVF_OK);
  assert_int_equal(kvf_wheel_next_deadline(&w->table.wheel), MS(100));
  kvf_lease_table_tick(&w->table, MS(100), 1000);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_EXPIRED);
  assert_int_equal(w->table.counters.ended[KVF_LEASE_END_EXPIRED], 1);
  assert_int_equal(kvf_wheel_next_deadline(&w->table.wheel), KVF_TIME_NEVER);
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

LIVE_TEST(renewal_lengthens)
{
  assert_int_equal(world_renew(w, MS(99), 0, 3, 'a'), LIVE);
  kvf_lease_table_tick(&w->table, MS(100), 1000);
  kvf_lease_table_tick(&w->table, MS(198), 1000);
  assert_int_equal(authorize(MS(198), 0, 3), KVF_OK);
  assert_int_equal(kvf_wheel_next_deadline(&w->table.wheel), MS(199));
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

LIVE_TEST(longest_life)
{
  assert_int_equal(world_renew(w, MS(99), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(198), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(249), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(250), 0, 3, 'a'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_EXPIRED);
}

TEST(ttl_above_longest_life)
{
  static kvf_lease_table table;
  const kvf_config config = {.lease_slots = 1, .lease_ttl_ms = 100, .lease_max_ms = 40};
  const kvf_lease lease = lease_of(0, 1);
  const kvf_blocks blocks = {NULL, NULL, 0};
  assert_int_equal(kvf_lease_table_init(&table, &config, 0), KVF_OK);
  assert_int_equal(kvf_lease_table_publish(&table, 0, &lease, &blocks, 0, 0, false), KVF_OK);
  assert_int_equal(kvf_wheel_next_deadline(&table.wheel), MS(40));
  kvf_lease_table_free(&table);
}

LIVE_TEST(finished_consumer_does_not_lengthen)
{
  assert_int_equal(world_renew(w, MS(50), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(60), 0, 3, 'b'), LIVE);
  assert_int_equal(world_complete(w, MS(70), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(80), 0, 3, 'a'), LIVE);
  assert_int_equal(authorize(MS(159), 0, 3), KVF_OK);
  assert_int_equal(authorize(MS(160), 0, 3), KVF_LEASE_EXPIRED);
}

static char said[KVF_LOG_LINE_BYTES_MAX];

static void keep_said(void *context, kvf_log_level level, const char *line)
{
  (void)context;
  (void)snprintf(said, sizeof(said), "%d %.400s", (int)level, line);
}

static void assert_said(const char *expected)
{
  assert_string_equal(said, expected);
  said[0] = '\0';
}

static void listen_to_table(void)
{
  static kvf_context context;
  context = (kvf_context){.logger = {.fn = keep_said, .level = KVF_LOG_DEBUG}, .log_limit = {.lines_per_s = 5}};
  w->table.context = &context;
}

static void expire(uint64_t now_ms, uint32_t slot, uint64_t id)
{
  kvf_lease_table_tick(&w->table, MS(now_ms), 100);
  world_expect_ended(w, slot, id, KVF_LEASE_END_EXPIRED);
}

LEASE_TEST(lease_that_nobody_has_loaded_says_why)
{
  listen_to_table();
  world_live(w, 0, 0, 1);
  expire(WORLD_TTL_MS, 0, 1);
  assert_said("1 lease 1 has ended unread: no engine has come with its ticket within lease_ttl_ms");
  world_live(w, MS(1000), 1, 2);
  (void)world_renew(w, MS(1000), 1, 2, 'a');
  expire(1000 + WORLD_TTL_MS, 1, 2);
  assert_said("1 lease 2 has ended unread: the engine that came for it has not renewed it within lease_ttl_ms");
  world_live(w, MS(2000), 2, 3);
  for (uint64_t at_ms = 2000; at_ms < 2000 + WORLD_MAX_MS; at_ms += WORLD_TTL_MS / 2) {
    (void)world_renew(w, MS(at_ms), 2, 3, 'a');
  }
  expire(2000 + WORLD_MAX_MS, 2, 3);
  assert_said("1 lease 3 has ended unread: it is as old as lease_max_ms");
  world_live(w, MS(3000), 3, 4);
  (void)world_abort(w, MS(3000), 3, 4, 'a');
  assert_said("2 lease 4 has ended unread: the engine that came for it has given it up, as its log says");
  world_live(w, MS(4000), 0, 5);
  assert_int_equal(world_end(w, MS(4000), 0, 5), KVF_OK);
  assert_said("2 lease 5 has ended unread: this engine has taken its blocks back");
  world_live(w, MS(5000), 1, 6);
  assert_int_equal(world_end(w, MS(5000), 1, 7), KVF_NOT_FOUND); /* a later one of its slot */
  assert_said("2 lease 6 has ended unread: this engine has taken its blocks back");
}

/* Nor is it said of one that has been loaded, nor by any rank but the first, nor without end. */
LEASE_TEST(lease_that_is_loaded_ends_in_silence)
{
  kvf_config of_rank = *w->table.config;
  w->table.config = &of_rank;
  listen_to_table();
  world_live(w, 0, 0, 1);
  (void)world_complete(w, 0, 0, 1, 'a');
  world_expect_ended(w, 0, 1, KVF_LEASE_END_COMPLETED);
  of_rank.rank = 1;
  world_live(w, 0, 0, 2);
  expire(WORLD_TTL_MS, 0, 2);
  assert_said("");
  of_rank.rank = 0;
  for (uint64_t id = 3; id < 13; id++) {
    world_live(w, MS(WORLD_TTL_MS), 0, id);
    assert_int_equal(world_end(w, MS(WORLD_TTL_MS), 0, id), KVF_OK);
    world_expect_ended(w, 0, id, KVF_LEASE_END_REVOKED);
  }
  assert_said("2 lease 7 has ended unread: this engine has taken its blocks back");
}

LEASE_TEST(tick_is_bounded)
{
  for (uint32_t slot = 0; slot < WORLD_SLOTS; slot++) {
    world_live(w, 0, slot, 3);
  }
  for (uint32_t left = WORLD_SLOTS; left > 0; left--) {
    assert_int_equal(w->table.live, left);
    assert_true(kvf_wheel_next_deadline(&w->table.wheel) <= MS(100));
    kvf_lease_table_tick(&w->table, MS(100), 1);
  }
  assert_int_equal(w->table.live, 0);
}

/* More than are looked at together, and no more than was asked for. */
TEST(many_run_out_in_one_tick)
{
  kvf_lease_table table;
  const kvf_config config = {.lease_slots = 100, .lease_ttl_ms = WORLD_TTL_MS, .lease_max_ms = WORLD_MAX_MS};
  const kvf_blocks blocks = {NULL, NULL, 0};
  assert_int_equal(kvf_lease_table_init(&table, &config, 0), KVF_OK);
  for (uint32_t slot = 0; slot < 100; slot++) {
    const kvf_lease lease = lease_of(slot, 3);
    assert_int_equal(kvf_lease_table_publish(&table, slot < 90 ? 0 : MS(50), &lease, &blocks, 1, slot, false), KVF_OK);
  }
  kvf_lease_table_tick(&table, MS(100), 40);
  assert_int_equal(table.live, 60);
  kvf_lease_table_tick(&table, MS(100), 1000);
  assert_int_equal(table.live, 10);
  assert_int_equal(table.counters.ended[KVF_LEASE_END_EXPIRED], 90);
  assert_in_range(kvf_wheel_next_deadline(&table.wheel), MS(100), MS(150));
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

LIVE_TEST(last_abort_abandons)
{
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'b'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_ABANDONED);
}

LIVE_TEST(abort_without_a_renewal)
{
  assert_int_equal(world_abort(w, 0, 0, 3, 'a'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_ABANDONED);
}

LIVE_TEST(untaken_until_its_first_consumer)
{
  world_live(w, 0, 1, 7);
  assert_int_equal(w->table.untaken, 2);
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(w->table.untaken, 1);
  assert_int_equal(world_detach(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(w->table.untaken, 1);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  assert_int_equal(w->table.untaken, 1);
  assert_int_equal(world_end(w, 0, 1, 7), KVF_OK);
  assert_int_equal(w->table.untaken, 0);
}

/* Whoever gives up for reasons of its own leaves the lease to another, as long as it lasts. */
LIVE_TEST(detached_leaves_the_lease_to_others)
{
  assert_int_equal(world_renew(w, MS(40), 0, 3, 'a'), LIVE);
  assert_int_equal(world_detach(w, MS(50), 0, 3, 'a'), LIVE);
  assert_int_equal(world_detach(w, MS(60), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(60), 0, 3, 'a'), LIVE); /* late: neither attaches it nor lengthens */
  assert_int_equal(world_renew(w, MS(70), 0, 3, 'b'), LIVE);
  assert_int_equal(world_complete(w, MS(80), 0, 3, 'b'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LIVE_TEST(detached_runs_out)
{
  assert_int_equal(world_renew(w, MS(40), 0, 3, 'a'), LIVE);
  assert_int_equal(world_detach(w, MS(50), 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, MS(50), 0, 3, 'a'), LIVE); /* it stays as it has finished */
  kvf_lease_table_tick(&w->table, MS(139), 1000);
  assert_int_equal(authorize(MS(139), 0, 3), KVF_OK);
  kvf_lease_table_tick(&w->table, MS(140), 1000);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_EXPIRED);
}

/* In whatever order: an end that somebody wanted while another was attached comes when that one detaches. */
LIVE_TEST(detached_last_ends_what_others_have_finished)
{
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_detach(w, 0, 0, 3, 'a'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
  world_live(w, 0, 0, 4);
  assert_int_equal(world_detach(w, 0, 0, 4, 'a'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 4, 'b'), OVER);
  world_expect_ended(w, 0, 4, KVF_LEASE_END_ABANDONED);
}

/* ---- leases that linger ---- */

#define LINGER_MS 20

static void let_linger(void)
{
  static const kvf_config config = {.lease_slots = WORLD_SLOTS,
                                    .lease_ttl_ms = WORLD_TTL_MS,
                                    .lease_max_ms = WORLD_MAX_MS,
                                    .lease_linger_ms = LINGER_MS};
  w->table.config = &config;
}

/* Another engine with the same ticket has so long to come; if none does the blocks are back. */
LIVE_TEST(completed_lease_lingers_for_another_engine)
{
  let_linger();
  assert_int_equal(world_renew(w, MS(1), 0, 3, 'a'), LIVE);
  assert_int_equal(world_complete(w, MS(2), 0, 3, 'a'), LIVE);
  kvf_lease_table_tick(&w->table, MS(1 + LINGER_MS), 1000);
  assert_int_equal(authorize(MS(1 + LINGER_MS), 0, 3), KVF_OK);
  kvf_lease_table_tick(&w->table, MS(2 + LINGER_MS), 1000);
  assert_int_equal(authorize(MS(2 + LINGER_MS), 0, 3), KVF_LEASE_EXPIRED);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

/* One that comes while it lingers has a whole TTL; the time is that of the first completion, and it is over by then. */
LIVE_TEST(engine_that_comes_while_it_lingers_attaches)
{
  let_linger();
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(LINGER_MS - 1), 0, 3, 'a'), LIVE); /* a late one: it has finished */
  assert_int_equal(world_renew(w, MS(LINGER_MS - 1), 0, 3, 'b'), LIVE);
  kvf_lease_table_tick(&w->table, MS(LINGER_MS + 1), 1000);
  assert_int_equal(authorize(MS(LINGER_MS + 1), 0, 3), KVF_OK);
  kvf_lease_table_end_lingering(&w->table); /* it does not linger now */
  assert_int_equal(world_detach(w, MS(LINGER_MS + 2), 0, 3, 'b'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LIVE_TEST(engine_that_goes_while_it_lingers_changes_nothing)
{
  let_linger();
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(5), 0, 3, 'b'), LIVE);
  assert_int_equal(world_abort(w, MS(10), 0, 3, 'b'), LIVE);
  kvf_lease_table_tick(&w->table, MS(LINGER_MS), 1000);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

/* Nobody has wanted what was aborted. */
LIVE_TEST(aborted_lease_does_not_linger)
{
  let_linger();
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, MS(1), 0, 3, 'a'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_ABANDONED);
}

LIVE_TEST(lingering_leases_make_room)
{
  let_linger();
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), LIVE);
  world_live(w, 0, 1, 3);
  kvf_lease_table_end_lingering(&w->table);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
  assert_int_equal(w->table.live, 1);
}

LIVE_TEST(revoked_while_it_lingers)
{
  let_linger();
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), LIVE);
  kvf_lease_table_end_all(&w->table, MS(1));
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  kvf_lease_table_end_lingering(&w->table);
}

LIVE_TEST(detached_consumers_make_room)
{
  assert_int_equal(world_renew(w, 0, 0, 3, 'z'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'y'), LIVE);
  w->table.consumers_max = KVF_LEASE_CONSUMERS_IN_SLOT;
  for (int name = 'a'; name < 'a' + 3 * KVF_LEASE_CONSUMERS_IN_SLOT; name++) {
    assert_int_equal(world_renew(w, 0, 0, 3, (char)name), LIVE);
    assert_int_equal(world_detach(w, 0, 0, 3, (char)name), LIVE);
  }
  assert_int_equal(world_detach(w, 0, 0, 3, 'z'), OVER); /* the one that aborted is not forgotten for those */
  world_expect_ended(w, 0, 3, KVF_LEASE_END_ABANDONED);
}

LIVE_TEST(acknowledgement_waits_for_others_and_counts_once)
{
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'b'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LIVE_TEST(finished_is_final)
{
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(60), 0, 3, 'a'), LIVE); /* late: lengthens nothing */
  assert_int_equal(authorize(MS(100), 0, 3), KVF_LEASE_EXPIRED);
  assert_int_equal(world_abort(w, MS(60), 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, MS(60), 0, 3, 'b'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LIVE_TEST(abort_by_one_that_never_attached)
{
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
    assert_int_equal(kvf_lease_table_on_consumer(&w->table, 0, &lease, &keys[i], KVF_FINISH_NONE), LIVE);
  }
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 0, &lease, &keys[0], KVF_FINISH_ABORTED), LIVE);
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 0, &lease, &keys[2], KVF_FINISH_ABORTED), LIVE);
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 0, &lease, &keys[1], KVF_FINISH_ABORTED), OVER);
}

/* However many there are, the lease lasts as long as one of them is attached. */
LIVE_TEST(all_that_are_attached_are_remembered)
{
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < KVF_LEASE_CONSUMERS_MAX; i++) {
      assert_int_equal(world_renew(w, MS(60), 0, 3, (char)i), LIVE);
    }
  }
  assert_int_equal(w->table.stored, KVF_LEASE_CONSUMERS_MAX - KVF_LEASE_CONSUMERS_IN_SLOT);
  for (int i = KVF_LEASE_CONSUMERS_MAX - 1; i > 0; i--) {
    assert_int_equal(world_complete(w, MS(60), 0, 3, (char)i), LIVE);
    assert_int_equal(world_renew(w, MS(60), 0, 3, (char)i), LIVE);
  }
  assert_int_equal(world_detach(w, MS(60), 0, 3, 0), OVER);
  assert_int_equal(w->table.stored, 0);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LIVE_TEST(no_room_for_another_consumer)
{
  w->table.consumers_max = 6;
  for (int i = 0; i < 6; i++) {
    assert_int_equal(world_renew(w, 0, 0, 3, (char)('a' + i)), LIVE);
  }
  assert_int_equal(world_renew(w, MS(60), 0, 3, 'x'), KVF_LEASE_STATE_CROWDED); /* and lengthens nothing */
  assert_int_equal(world_complete(w, MS(60), 0, 3, 'x'), LIVE);
  assert_int_equal(world_abort(w, MS(60), 0, 3, 'x'), LIVE);
  assert_int_equal(authorize(MS(100), 0, 3), KVF_LEASE_EXPIRED);
  assert_int_equal(world_complete(w, MS(70), 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, MS(70), 0, 3, 'x'), LIVE); /* in the place of the one that is done */
  assert_int_equal(authorize(MS(169), 0, 3), KVF_OK);
  for (int i = 1; i < 6; i++) {
    assert_int_equal(world_abort(w, MS(80), 0, 3, (char)('a' + i)), LIVE);
  }
  assert_int_equal(world_detach(w, MS(80), 0, 3, 'x'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

/* What one lease has of the store the others have not, until it ends. */
LEASE_TEST(no_place_in_the_store)
{
  w->table.stored_max = 6;
  world_live(w, 0, 0, 3);
  world_live(w, 0, 1, 3);
  for (int i = 0; i < KVF_LEASE_CONSUMERS_IN_SLOT + 6; i++) {
    assert_int_equal(world_renew(w, 0, 0, 3, (char)('a' + i)), LIVE);
  }
  for (int i = 0; i < KVF_LEASE_CONSUMERS_IN_SLOT; i++) {
    assert_int_equal(world_renew(w, 0, 1, 3, (char)('a' + i)), LIVE);
  }
  assert_int_equal(world_renew(w, 0, 0, 3, 'x'), KVF_LEASE_STATE_CROWDED);
  assert_int_equal(world_renew(w, 0, 1, 3, 'x'), KVF_LEASE_STATE_CROWDED);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  assert_int_equal(world_renew(w, 0, 1, 3, 'x'), LIVE);
}

LIVE_TEST(aborted_consumer_makes_room)
{
  w->table.consumers_max = KVF_LEASE_CONSUMERS_IN_SLOT;
  assert_int_equal(world_renew(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_renew(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'c'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'd'), LIVE);
  assert_int_equal(world_renew(w, 0, 0, 3, 'e'), LIVE);
  assert_int_equal(world_complete(w, 0, 0, 3, 'c'), LIVE); /* it is not the one that was forgotten */
  assert_int_equal(world_abort(w, 0, 0, 3, 'a'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'b'), LIVE);
  assert_int_equal(world_abort(w, 0, 0, 3, 'e'), OVER);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_COMPLETED);
}

LIVE_TEST(late_messages_are_counted)
{
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
LIVE_TEST(consumers_do_not_outlive_the_lease)
{
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
  kvf_transfer_item items[] = {
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
  static const kvf_transfer_item bad[] = {
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
    kvf_transfer_item pair[] = {items[0], bad[i]};
    assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, pair, 2), KVF_INVALID);
  }
}

LEASE_TEST(block_limits)
{
  static uint32_t ids[KVF_BLOCKS_PER_LEASE_MAX];
  uint32_t counts[KVF_GROUPS_MAX + 1] = {KVF_BLOCKS_PER_LEASE_MAX};
  kvf_blocks blocks = {ids, counts, KVF_GROUPS_MAX + 1};
  const kvf_lease lease = lease_of(0, 3);
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0, false), KVF_LIMIT);
  blocks.groups = KVF_GROUPS_MAX;
  counts[1] = 1;
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0, false), KVF_LIMIT);
  counts[1] = UINT32_MAX - KVF_BLOCKS_PER_LEASE_MAX + 1; /* their sum is 2^32 */
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0, false), KVF_LIMIT);
  assert_int_equal(w->table.unreleased, 0);
  counts[1] = 0;
  ids[KVF_BLOCKS_PER_LEASE_MAX - 1] = 99;
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0, false), KVF_OK);
  world_store_all(w);
  kvf_transfer_item item = {.group = 0, .position = KVF_BLOCKS_PER_LEASE_MAX - 1};
  assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, &item, 1), KVF_OK);
  assert_int_equal(item.remote_block, 99);
}

LEASE_TEST(blocks_are_copied)
{
  uint32_t ids[] = {5};
  uint32_t counts[] = {1};
  const kvf_blocks blocks = {ids, counts, 1};
  const kvf_lease lease = lease_of(0, 3);
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0, false), KVF_OK);
  world_store_all(w);
  ids[0] = 6;
  counts[0] = 0;
  kvf_transfer_item item = {0};
  assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, &item, 1), KVF_OK);
  assert_int_equal(item.remote_block, 5);
}

/* ---- bytes, or their checksums, that are not complete: a live word waits for them ---- */

static void complete(uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  kvf_lease_table_complete(&w->table, &lease);
}

LEASE_TEST(live_waits_for_its_bytes)
{
  w->incomplete = true;
  assert_int_equal(world_publish(w, 0, 1, 7), KVF_OK);
  expect_no_store();
  assert_int_equal(authorize(0, 1, 7), KVF_NOT_PUBLISHED);
  assert_int_equal(world_renew(w, 0, 1, 7, 'a'), NOT_PUBLISHED);
  complete(1, 6); /* not these */
  complete(2, 7);
  complete(WORLD_SLOTS, 7);
  expect_no_store();
  complete(1, 7);
  expect_store(1, kvf_fence_word_live(7));
  stored(1);
  complete(1, 7); /* again: nothing */
  expect_no_store();
  assert_int_equal(authorize(0, 1, 7), KVF_OK);
}

LEASE_TEST(ended_before_its_bytes_is_never_live)
{
  w->incomplete = true;
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  assert_int_equal(world_end(w, 0, 0, 3), KVF_OK);
  expect_store(0, kvf_fence_word_ended(3));
  complete(0, 3);
  expect_no_store();
  stored(0);
  complete(0, 3);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_REVOKED);
  assert_int_equal(world_publish(w, 0, 0, 4), KVF_OK);
  complete(0, 3); /* of the one before */
  expect_no_store();
  complete(0, 4);
  expect_store(0, kvf_fence_word_live(4));
}

/* Another store of the slot is on its way, or waits: it does not take the live word along. */
LEASE_TEST(incomplete_behind_another_store)
{
  w->incomplete = true;
  assert_int_equal(world_end(w, 0, 0, 3), KVF_NOT_FOUND);
  assert_int_equal(world_publish(w, 0, 0, 4), KVF_OK);
  expect_no_store();
  assert_int_equal(world_end(w, 0, 1, 3), KVF_NOT_FOUND);
  expect_store(1, kvf_fence_word_ended(3));
  assert_int_equal(world_publish(w, 0, 1, 4), KVF_OK);
  stored(1);
  expect_no_store();
  assert_int_equal(authorize(0, 1, 4), KVF_NOT_PUBLISHED);

  assert_int_equal(world_end(w, 0, 2, 3), KVF_NOT_FOUND);
  expect_store(2, kvf_fence_word_ended(3));
  assert_int_equal(world_publish(w, 0, 2, 4), KVF_OK);
  complete(2, 4);
  assert_int_equal(authorize(0, 2, 4), KVF_NOT_PUBLISHED);
  stored(2);
  expect_store(2, kvf_fence_word_live(4));
}

LEASE_TEST(runs_out_before_its_bytes)
{
  w->incomplete = true;
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  kvf_lease_table_tick(&w->table, MS(WORLD_TTL_MS), 100);
  world_expect_ended(w, 0, 3, KVF_LEASE_END_EXPIRED);
}

/* ---- a model ---- */

/* The lease table against a model that keeps every message it has ever seen and judges by looking through them all.
 * Messages are repeated and come late, to leases that are live, over, gone or still to come. */
enum { NAMES = 4, IDS = 400, STEPS = 6000 };

typedef enum model_consumer_state { AWAY, ATTACHED, COMPLETED, ABORTED, DETACHED } model_consumer_state;

typedef struct model_lease {
  bool published;
  bool refused; /* ended before it was published */
  bool over;
  bool given_back;
  kvf_lease_end_cause cause;
  uint64_t deadline_ns;
  uint64_t deadline_max_ns;
  model_consumer_state consumers[NAMES];
} model_lease;

typedef struct model {
  lease_world world;
  kvf_prng prng;
  uint64_t now_ns;
  uint64_t base_id;
  uint64_t seen[WORLD_SLOTS]; /* 0, or 1 + the index of the latest lease that the slot has heard of */
  uint64_t next;              /* index of the next lease to publish; lease i is of slot i % WORLD_SLOTS */
  model_lease leases[IDS];
} model;

static void model_end(model_lease *lease, kvf_lease_end_cause cause)
{
  lease->over = true;
  lease->cause = cause;
}

static bool model_is_live(const model_lease *lease)
{
  return lease->published && !lease->over;
}

static void model_run_out(model *m, model_lease *lease)
{
  if (model_is_live(lease) && m->now_ns >= lease->deadline_ns) {
    model_end(lease, KVF_LEASE_END_EXPIRED);
  }
}

static kvf_lease_state model_state(const model *m, uint64_t i)
{
  uint32_t slot = (uint32_t)(i % WORLD_SLOTS);
  if (m->seen[slot] <= i) {
    return KVF_LEASE_STATE_NOT_PUBLISHED;
  }
  if (m->seen[slot] > i + 1 || !model_is_live(&m->leases[i])) {
    return KVF_LEASE_STATE_ENDED;
  }
  return m->world.fence[slot].word == kvf_fence_word_live(m->base_id + i) ? KVF_LEASE_STATE_LIVE
                                                                          : KVF_LEASE_STATE_NOT_PUBLISHED;
}

static bool any_in(const model_lease *lease, model_consumer_state state)
{
  bool any = false;
  for (int name = 0; name < NAMES; name++) {
    any = any || lease->consumers[name] == state;
  }
  return any;
}

static void model_judge(model_lease *lease)
{
  if (!any_in(lease, ATTACHED) && any_in(lease, COMPLETED)) {
    model_end(lease, KVF_LEASE_END_COMPLETED);
  } else if (!any_in(lease, ATTACHED) && any_in(lease, ABORTED)) {
    model_end(lease, KVF_LEASE_END_ABANDONED);
  }
}

static void model_renew(model *m, model_lease *lease, model_consumer_state *consumer)
{
  *consumer = *consumer == AWAY ? ATTACHED : *consumer;
  if (*consumer == ATTACHED) {
    lease->deadline_ns = kvf_time_min(m->now_ns + MS(WORLD_TTL_MS), lease->deadline_max_ns);
  }
}

static void model_finish(model_lease *lease, model_consumer_state *consumer, model_consumer_state how)
{
  *consumer = *consumer > ATTACHED ? *consumer : how;
  model_judge(lease);
}

/* ---- steps: the same to the table and to the model ---- */

static uint64_t random_index(model *m)
{
  uint64_t back = kvf_prng_below(&m->prng, UINT64_C(3) * WORLD_SLOTS);
  uint64_t i = m->next + 2 > back ? m->next + 2 - back : 0;
  return i < IDS ? i : IDS - 1;
}

static void step_publish(model *m)
{
  uint64_t i = kvf_prng_below(&m->prng, 4) == 0 ? random_index(m) : m->next;
  uint32_t slot = (uint32_t)(i % WORLD_SLOTS);
  if (i >= IDS) {
    return;
  }
  bool occupied = false;
  for (uint64_t j = slot; j < i; j += WORLD_SLOTS) {
    occupied = occupied || (m->leases[j].published && !m->leases[j].given_back);
  }
  kvf_status expected = m->seen[slot] > i || occupied ? KVF_EXISTS : KVF_OK;
  assert_int_equal(world_publish(&m->world, m->now_ns, slot, m->base_id + i), expected);
  if (expected == KVF_OK) {
    model_lease *lease = &m->leases[i];
    lease->published = true;
    lease->deadline_max_ns = m->now_ns + MS(WORLD_MAX_MS);
    lease->deadline_ns = m->now_ns + MS(WORLD_TTL_MS);
    m->seen[slot] = i + 1;
  }
  if (i == m->next && (expected == KVF_OK || m->seen[slot] > i)) {
    m->next++;
  }
}

static void step_message(model *m)
{
  static const struct {
    kvf_finish_kind kind;
    model_consumer_state state;
  } finishes[] = {{KVF_FINISH_COMPLETED, COMPLETED},
                  {KVF_FINISH_DETACHED, DETACHED},
                  {KVF_FINISH_COMPLETED, COMPLETED},
                  {KVF_FINISH_ABORTED, ABORTED}};
  uint64_t i = random_index(m);
  uint32_t slot = (uint32_t)(i % WORLD_SLOTS);
  uint64_t id = m->base_id + i;
  int name = (int)kvf_prng_below(&m->prng, NAMES);
  uint64_t kind = kvf_prng_below(&m->prng, 8);
  model_lease *lease = &m->leases[i];
  model_run_out(m, lease);
  kvf_lease_state expected = model_state(m, i);
  kvf_lease_state state;
  if (kind < 4) {
    state = world_renew(&m->world, m->now_ns, slot, id, (char)name);
  } else {
    state = world_finish(&m->world, m->now_ns, slot, id, (char)name, finishes[kind - 4].kind);
  }
  if (model_is_live(lease) && kind < 4) {
    model_renew(m, lease, &lease->consumers[name]);
  } else if (model_is_live(lease)) {
    model_finish(lease, &lease->consumers[name], finishes[kind - 4].state);
  }
  assert_int_equal(state, lease->over ? KVF_LEASE_STATE_ENDED : expected);
}

static void step_end(model *m)
{
  uint64_t i = random_index(m);
  uint32_t slot = (uint32_t)(i % WORLD_SLOTS);
  for (uint64_t j = slot; j < IDS; j += WORLD_SLOTS) {
    model_run_out(m, &m->leases[j]);
  }
  bool live = model_is_live(&m->leases[i]);
  assert_int_equal(world_end(&m->world, m->now_ns, slot, m->base_id + i), live ? KVF_OK : KVF_NOT_FOUND);
  if (live || m->seen[slot] <= i) {
    for (uint64_t j = slot; j <= i; j += WORLD_SLOTS) {
      if (model_is_live(&m->leases[j])) {
        model_end(&m->leases[j], KVF_LEASE_END_REVOKED);
      }
    }
    m->seen[slot] = i + 1;
  }
}

static void step_time(model *m)
{
  m->now_ns += kvf_prng_below(&m->prng, MS(20));
  if (kvf_prng_below(&m->prng, 2) == 0) {
    kvf_lease_table_tick(&m->world.table, m->now_ns, (uint32_t)kvf_prng_below(&m->prng, 4));
  }
}

/* One store, sometimes with something else between its being given out and its being done. */
static void step_store(model *m)
{
  kvf_lease_store store;
  if (!kvf_lease_table_next_store(&m->world.table, &store)) {
    return;
  }
  assert_true(store.entry.word > m->world.fence[store.slot].word);
  for (uint64_t more = kvf_prng_below(&m->prng, 3); more > 0; more--) {
    step_message(m);
    step_end(m);
  }
  m->world.fence[store.slot] = store.entry;
  kvf_lease_table_stored(&m->world.table, store.slot, store.entry.word);
}

static void take_ended(model *m)
{
  kvf_event ended;
  while (kvf_lease_table_next_ended(&m->world.table, &ended)) {
    assert_in_range(ended.id - m->base_id, 0, IDS - 1);
    model_lease *lease = &m->leases[ended.id - m->base_id];
    model_run_out(m, lease);
    assert_true(lease->published && lease->over && !lease->given_back);
    assert_int_equal(ended.u.lease_end, lease->cause);
    assert_int_equal(ended.user, 2000 + ended.id);
    assert_true(m->world.fence[(ended.id - m->base_id) % WORLD_SLOTS].word >= kvf_fence_word_ended(ended.id));
    lease->given_back = true;
  }
}

static void live_by_seed(uint64_t seed)
{
  static model m;
  m = (model){.prng = {seed}, .now_ns = seed * MS(12345), .base_id = seed << 40};
  world_init(&m.world, m.now_ns);
  for (unsigned step = 0; step < STEPS; step++) {
    switch (kvf_prng_below(&m.prng, 16)) {
      case 0:
      case 1:
        step_publish(&m);
        break;
      case 2:
        if (kvf_prng_below(&m.prng, 4) == 0) {
          step_end(&m);
        }
        break;
      case 3:
        step_time(&m);
        break;
      case 4:
      case 5:
      case 6:
        step_store(&m);
        break;
      case 7:
        take_ended(&m);
        break;
      default:
        step_message(&m);
    }
  }
  assert_true(m.next > IDS / 4);
  for (m.now_ns += MS(WORLD_MAX_MS); m.world.table.live > 0; m.now_ns += MS(1)) {
    kvf_lease_table_tick(&m.world.table, m.now_ns, 1);
  }
  world_store_all(&m.world);
  take_ended(&m);
  for (uint64_t i = 0; i < IDS; i++) {
    assert_true(m.leases[i].published == m.leases[i].given_back);
  }
  assert_int_equal(m.world.table.unreleased, 0);
  assert_int_equal(kvf_wheel_next_deadline(&m.world.table.wheel), KVF_TIME_NEVER);
  kvf_lease_table_free(&m.world.table);
}

TEST(agrees_with_model)
{
  for (uint64_t seed = 1; seed <= 200; seed++) {
    live_by_seed(seed);
  }
}
