/* A lease table with the fence table that it stores into, for tests. */
#ifndef KVF_TESTS_LEASE_WORLD_H
#define KVF_TESTS_LEASE_WORLD_H

#include "core/lease_table.h"

#include "test.h"

#define MS(n) ((n) * KVF_NS_PER_MS)
#define WORLD_SLOTS 4
#define WORLD_TTL_NS MS(100)
#define WORLD_MAX_NS MS(250)

typedef struct lease_world {
  kvf_lease_table table;
  kvf_fence_entry fence[WORLD_SLOTS];
} lease_world;

static inline void world_init(lease_world *w, uint64_t now_ns)
{
  const kvf_lease_table_config config = {WORLD_SLOTS, WORLD_TTL_NS, WORLD_MAX_NS, false};
  *w = (lease_world){0};
  assert_int_equal(kvf_lease_table_init(&w->table, &config, now_ns), KVF_OK);
}

/* The lease of this id; its token follows from the id. */
static inline kvf_lease lease_of(uint32_t slot, uint64_t id)
{
  return (kvf_lease){.id = id, .slot = slot, .token = {(uint8_t)id, 1, 2, 3}};
}

static inline kvf_consumer_key key_of(char name)
{
  return (kvf_consumer_key){.incarnation = {{(uint8_t)name}}, .request_id = 5};
}

static inline void world_store_all(lease_world *w)
{
  kvf_lease_store store;
  while (kvf_lease_table_next_store(&w->table, &store)) {
    assert_true(store.entry.word > w->fence[store.slot].word);
    w->fence[store.slot] = store.entry;
    kvf_lease_table_stored(&w->table, store.slot, store.entry.word);
  }
}

static inline kvf_status world_publish(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id)
{
  static const uint32_t ids[] = {10, 11, KVF_BLOCK_NONE, 20, 21};
  static const uint32_t counts[] = {3, 0, 2};
  const kvf_blocks blocks = {ids, counts, 3};
  const kvf_lease lease = lease_of(slot, id);
  return kvf_lease_table_publish(&w->table, now_ns, &lease, &blocks, 1000 + id, 2000 + id);
}

/* Published, and its live word stored. */
static inline void world_live(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id)
{
  assert_int_equal(world_publish(w, now_ns, slot, id), KVF_OK);
  world_store_all(w);
}

static inline kvf_lease_state world_renew(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id, char name)
{
  const kvf_lease lease = lease_of(slot, id);
  const kvf_consumer_key key = key_of(name);
  return kvf_lease_table_renew(&w->table, now_ns, &lease, &key);
}

static inline kvf_lease_state world_complete(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id, char name)
{
  const kvf_lease lease = lease_of(slot, id);
  const kvf_consumer_key key = key_of(name);
  return kvf_lease_table_finish(&w->table, now_ns, &lease, &key, true);
}

static inline kvf_lease_state world_abort(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id, char name)
{
  const kvf_lease lease = lease_of(slot, id);
  const kvf_consumer_key key = key_of(name);
  return kvf_lease_table_finish(&w->table, now_ns, &lease, &key, false);
}

static inline kvf_status world_end(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  return kvf_lease_table_end(&w->table, now_ns, &lease);
}

/* Nothing has been given back. */
static inline void world_expect_none_ended(lease_world *w)
{
  kvf_lease_ended ended;
  assert_false(kvf_lease_table_next_ended(&w->table, &ended));
}

/* Exactly this lease has been given back, once its over was stored. */
static inline void world_expect_ended(lease_world *w, uint32_t slot, uint64_t id, kvf_lease_end_cause cause)
{
  kvf_lease_ended ended;
  if (w->fence[slot].word < kvf_fence_word_over(id)) {
    world_expect_none_ended(w);
  }
  world_store_all(w);
  assert_true(w->fence[slot].word >= kvf_fence_word_over(id));
  assert_true(kvf_lease_table_next_ended(&w->table, &ended));
  assert_int_equal(ended.id, id);
  assert_int_equal(ended.slot, slot);
  assert_int_equal(ended.user, 2000 + id);
  assert_int_equal(ended.cause, cause);
  world_expect_none_ended(w);
}

#endif
