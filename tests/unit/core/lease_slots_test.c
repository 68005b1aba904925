/* The control node's slots and counted blocks: each rule by itself, then many leases at random. */
#include "core/lease_slots.h"

#include "base/fence.h"
#include "base/prng.h"
#include "test.h"

static const uint8_t secret[KVF_LEASE_TOKEN_BYTES] = "0123456789abcdef";

static kvf_lease_slots slots;
static kvf_lease lease;

static void tear_down(void)
{
  kvf_lease_slots_free(&slots);
}

#define SLOTS_TEST(name) TEST_WITH(name, NULL, tear_down)

static kvf_status reserve(uint32_t blocks, uint64_t pool_blocks, kvf_lease *out)
{
  return kvf_lease_slots_reserve(&slots, NULL, blocks, pool_blocks, secret, out);
}

/* Of one group. */
static kvf_status reserve_blocks(const uint32_t *ids, uint32_t count, uint64_t pool_blocks, kvf_lease *out)
{
  const kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  return kvf_lease_slots_reserve(&slots, &blocks, 0, pool_blocks, secret, out);
}

static void name(uint64_t lease_id, const uint32_t *ids, uint32_t count)
{
  const kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  kvf_lease_slots_name(&slots, lease_id, &blocks);
}

SLOTS_TEST(ids_grow_and_slots_are_reused_in_order)
{
  kvf_lease leases[3];
  assert_int_equal(kvf_lease_slots_init(&slots, 3, 1000, 100), KVF_OK);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(reserve(1, 0, &leases[i]), KVF_OK);
    assert_int_equal(leases[i].id, 1000 + i);
    assert_int_equal(leases[i].slot, i);
    assert_int_equal(leases[i].reserved, 0);
    assert_memory_equal(leases[i].token, secret, sizeof(secret));
  }
  assert_int_equal(kvf_lease_slots_live(&slots), 3);
  assert_int_equal(reserve(1, 0, &lease), KVF_NO_LEASE);
  assert_int_equal(kvf_lease_slots_release(&slots, 1001), KVF_OK);
  assert_int_equal(kvf_lease_slots_release(&slots, 1002), KVF_OK);
  assert_int_equal(kvf_lease_slots_release(&slots, 1000), KVF_OK);
  assert_int_equal(kvf_lease_slots_live(&slots), 0);
  static const uint32_t order[] = {1, 2, 0};
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(reserve(1, 0, &lease), KVF_OK);
    assert_int_equal(lease.id, 1003 + i);
    assert_int_equal(lease.slot, order[i]);
  }
}

SLOTS_TEST(release_counts_once)
{
  assert_int_equal(kvf_lease_slots_init(&slots, 2, 7, 100), KVF_OK);
  assert_int_equal(kvf_lease_slots_release(&slots, 7), KVF_NOT_FOUND);
  assert_int_equal(reserve(1, 0, &lease), KVF_OK);
  assert_int_equal(kvf_lease_slots_release(&slots, 6), KVF_NOT_FOUND);
  assert_int_equal(kvf_lease_slots_release(&slots, 7), KVF_OK);
  assert_int_equal(kvf_lease_slots_release(&slots, 7), KVF_NOT_FOUND);
  assert_int_equal(reserve(1, 0, &lease), KVF_OK);
  assert_int_equal(kvf_lease_slots_release(&slots, 7), KVF_NOT_FOUND);
  assert_int_equal(kvf_lease_slots_live(&slots), 1);
}

SLOTS_TEST(the_last_rank_releases_it)
{
  assert_int_equal(kvf_lease_slots_init(&slots, 1, 7, 100), KVF_OK);
  assert_int_equal(reserve(1, 0, &lease), KVF_OK);
  assert_int_equal(kvf_lease_slots_ended(&slots, 7, 0, 3), KVF_INVALID);
  assert_int_equal(kvf_lease_slots_ended(&slots, 7, 8, 3), KVF_INVALID);
  assert_int_equal(kvf_lease_slots_ended(&slots, 8, 1, 3), KVF_NOT_FOUND);
  assert_int_equal(kvf_lease_slots_ended(&slots, 7, 4, 3), KVF_AGAIN);
  assert_int_equal(kvf_lease_slots_ended(&slots, 7, 4, 3), KVF_AGAIN);
  assert_int_equal(kvf_lease_slots_ended(&slots, 7, 1, 3), KVF_AGAIN);
  assert_int_equal(kvf_lease_slots_live(&slots), 1);
  assert_int_equal(kvf_lease_slots_ended(&slots, 7, 2, 3), KVF_OK);
  assert_int_equal(kvf_lease_slots_live(&slots), 0);
  assert_int_equal(kvf_lease_slots_ended(&slots, 7, 2, 3), KVF_NOT_FOUND);
  assert_int_equal(reserve(1, 0, &lease), KVF_OK); /* of whose ranks none has ended it */
  assert_int_equal(kvf_lease_slots_ended(&slots, 8, 5, 3), KVF_AGAIN);
  assert_int_equal(kvf_lease_slots_ended(&slots, 8, UINT64_C(1) << 63, 64), KVF_AGAIN);
}

SLOTS_TEST(share_of_the_pool)
{
  assert_int_equal(kvf_lease_slots_init(&slots, 8, 0, 80), KVF_OK);
  assert_int_equal(reserve(81, 100, &lease), KVF_LIMIT);
  assert_int_equal(reserve(50, 100, &lease), KVF_OK);
  assert_int_equal(reserve(31, 100, &lease), KVF_NO_LEASE);
  assert_int_equal(reserve(30, 100, &lease), KVF_OK);
  assert_int_equal(reserve(0, 100, &lease), KVF_OK);
  assert_int_equal(reserve(1, 100, &lease), KVF_NO_LEASE);
  assert_int_equal(kvf_lease_slots_release(&slots, 0), KVF_OK);
  assert_int_equal(reserve(50, 100, &lease), KVF_OK);
  assert_int_equal(reserve(1, 99, &lease), KVF_NO_LEASE);
  assert_int_equal(reserve(81, 100, &lease), KVF_LIMIT); /* never, full or not */
  assert_int_equal(reserve(UINT32_MAX, 0, &lease), KVF_OK);
  assert_int_equal(reserve(1, 100, &lease), KVF_NO_LEASE);
  assert_int_equal(reserve(UINT32_MAX, UINT64_MAX, &lease), KVF_OK);
}

/* Prompts that begin alike: 20 blocks of all, and one of each. */
SLOTS_TEST(a_block_of_several_leases_counts_once)
{
  enum { PREFIX = 20, SHARE = 90, LEASES = SHARE - PREFIX };
  uint32_t ids[PREFIX + 1];
  assert_int_equal(kvf_lease_slots_init(&slots, 100, 0, SHARE), KVF_OK);
  for (uint32_t i = 0; i < PREFIX; i++) {
    ids[i] = i;
  }
  for (uint32_t i = 0; i < LEASES; i++) {
    ids[PREFIX] = PREFIX + i;
    assert_int_equal(reserve_blocks(ids, PREFIX + 1, 100, &lease), KVF_OK);
    assert_int_equal(kvf_lease_slots_blocks(&slots), PREFIX + 1 + i);
  }
  ids[PREFIX] = PREFIX + LEASES;
  assert_int_equal(reserve_blocks(ids, PREFIX + 1, 100, &lease), KVF_NO_LEASE);
  assert_int_equal(reserve_blocks(ids, PREFIX, 100, &lease), KVF_OK); /* nothing new */
  assert_int_equal(reserve(1, 100, &lease), KVF_NO_LEASE);
  for (uint32_t i = 0; i < LEASES; i++) {
    assert_int_equal(kvf_lease_slots_release(&slots, i), KVF_OK);
    assert_int_equal(kvf_lease_slots_blocks(&slots), SHARE - 1 - i);
  }
  assert_int_equal(kvf_lease_slots_release(&slots, LEASES), KVF_OK);
  assert_int_equal(kvf_lease_slots_blocks(&slots), 0);
}

SLOTS_TEST(what_a_lease_alone_cannot_have)
{
  static uint32_t ids[KVF_BLOCKS_PER_LEASE_MAX + 1];
  uint32_t counts[KVF_GROUPS_MAX + 1] = {0};
  kvf_blocks blocks = {.ids = ids, .counts = counts, .groups = KVF_GROUPS_MAX + 1};
  assert_int_equal(kvf_lease_slots_init(&slots, 8, 0, 50), KVF_OK);
  for (uint32_t i = 0; i <= KVF_BLOCKS_PER_LEASE_MAX; i++) {
    ids[i] = i;
  }
  assert_int_equal(reserve_blocks(ids, 51, 100, &lease), KVF_LIMIT);
  assert_int_equal(reserve_blocks(ids, 51, 101, &lease), KVF_LIMIT);
  assert_int_equal(reserve_blocks(ids, KVF_BLOCKS_PER_LEASE_MAX + 1, 0, &lease), KVF_LIMIT);
  assert_int_equal(kvf_lease_slots_reserve(&slots, &blocks, 0, 0, secret, &lease), KVF_LIMIT);
  ids[0] = KVF_LEASE_BLOCK_IDS_MAX;
  assert_int_equal(reserve_blocks(ids, 1, 0, &lease), KVF_LIMIT);
  assert_int_equal(kvf_lease_slots_live(&slots) + kvf_lease_slots_blocks(&slots), 0);
  ids[0] = KVF_LEASE_BLOCK_IDS_MAX - 1;
  assert_int_equal(reserve_blocks(ids, 50, 100, &lease), KVF_OK);
  assert_int_equal(reserve_blocks(ids, 0, 100, &lease), KVF_OK);
  assert_int_equal(kvf_lease_slots_blocks(&slots), 50);
}

/* The ids of all leases have a limit, shared or not. */
SLOTS_TEST(lists_are_bounded)
{
  static uint32_t ids[KVF_BLOCKS_PER_LEASE_MAX];
  const uint32_t fit = KVF_LEASE_BLOCKS_LISTED_MAX / KVF_BLOCKS_PER_LEASE_MAX;
  assert_int_equal(kvf_lease_slots_init(&slots, fit + 2, 0, 90), KVF_OK);
  for (uint32_t i = 0; i < KVF_BLOCKS_PER_LEASE_MAX; i++) {
    ids[i] = i;
  }
  for (uint32_t i = 0; i < fit; i++) {
    assert_int_equal(reserve_blocks(ids, KVF_BLOCKS_PER_LEASE_MAX, 100000, &lease), KVF_OK);
  }
  assert_int_equal(reserve_blocks(ids, 1, 100000, &lease), KVF_NO_LEASE);
  assert_int_equal(reserve(1, 100000, &lease), KVF_OK);
  name(lease.id, ids, 1);
  assert_int_equal(kvf_lease_slots_blocks(&slots), KVF_BLOCKS_PER_LEASE_MAX + 1); /* goes on counting by its number */
  assert_int_equal(kvf_lease_slots_release(&slots, 0), KVF_OK);
  assert_int_equal(reserve_blocks(ids, 1, 100000, &lease), KVF_OK);
}

/* The number counts until then. */
SLOTS_TEST(blocks_become_known)
{
  static const uint32_t ids[] = {3, 4, 5}, others[] = {7, 8, 9};
  assert_int_equal(kvf_lease_slots_init(&slots, 4, 0, 50), KVF_OK);
  assert_int_equal(reserve_blocks(ids, 2, 10, &lease), KVF_OK);
  assert_int_equal(reserve(3, 10, &lease), KVF_OK);
  assert_int_equal(kvf_lease_slots_blocks(&slots), 5);
  assert_int_equal(reserve_blocks(ids, 2, 10, &lease), KVF_OK);
  assert_int_equal(reserve_blocks(others, 1, 10, &lease), KVF_NO_LEASE);
  name(1, ids, 3);
  assert_int_equal(kvf_lease_slots_blocks(&slots), 3);
  name(1, others, 3);
  name(0, others, 3); /* they are what they were said to be first */
  name(77, others, 3);
  assert_int_equal(kvf_lease_slots_blocks(&slots), 3);
  assert_int_equal(reserve_blocks(others, 2, 10, &lease), KVF_OK);
  assert_int_equal(kvf_lease_slots_release(&slots, 1), KVF_OK);
  assert_int_equal(kvf_lease_slots_blocks(&slots), 4);
}

enum { LIVE = 12, GROUPS = 3, POOL = 40, LONGEST = 9 };

typedef struct lease_model {
  uint64_t id;
  uint32_t number;
  uint32_t counts[GROUPS];
  uint32_t ids[GROUPS * LONGEST];
  bool is_live;
  bool is_known; /* which blocks it has */
} lease_model;

static kvf_blocks choose_blocks(kvf_prng *prng, lease_model *model)
{
  model->number = 0;
  for (uint32_t group = 0; group < GROUPS; group++) {
    model->counts[group] = (uint32_t)kvf_prng_below(prng, LONGEST + 1);
    for (uint32_t i = 0; i < model->counts[group]; i++) {
      uint32_t id = (uint32_t)kvf_prng_below(prng, POOL + 1);
      model->ids[model->number++] = id == POOL ? KVF_BLOCK_NONE : id * 100;
    }
  }
  return (kvf_blocks){.ids = model->ids, .counts = model->counts, .groups = GROUPS};
}

/* A lease begins, becomes known, or ends. */
static void change(kvf_prng *prng, lease_model *model)
{
  const bool by_name = kvf_prng_below(prng, 2) == 0;
  if (!model->is_live) {
    const kvf_blocks blocks = choose_blocks(prng, model);
    kvf_status status =
        by_name ? kvf_lease_slots_reserve(&slots, &blocks, 0, 0, secret, &lease) : reserve(model->number, 0, &lease);
    assert_int_equal(status, KVF_OK);
    model->id = lease.id;
    model->is_live = true;
    model->is_known = by_name;
  } else if (!model->is_known && by_name) {
    const kvf_blocks blocks = {.ids = model->ids, .counts = model->counts, .groups = GROUPS};
    kvf_lease_slots_name(&slots, model->id, &blocks);
    model->is_known = true;
  } else {
    assert_int_equal(kvf_lease_slots_release(&slots, model->id), KVF_OK);
    model->is_live = false;
  }
}

/* How many of its blocks are none of those; adds them. */
static uint32_t hold(const lease_model *model, bool held[GROUPS][POOL])
{
  uint32_t new_ones = 0;
  const uint32_t *id = model->ids;
  for (uint32_t group = 0; group < GROUPS; group++) {
    for (const uint32_t *end = id + model->counts[group]; id < end; id++) {
      if (*id != KVF_BLOCK_NONE) {
        new_ones += !held[group][*id / 100];
        held[group][*id / 100] = true;
      }
    }
  }
  return new_ones;
}

/* Each block of the leases that are known once, and the numbers of the others. */
SLOTS_TEST(as_many_as_there_are)
{
  enum { ROUNDS = 20000 };
  lease_model models[LIVE] = {{0}};
  kvf_prng prng = {1};
  assert_int_equal(kvf_lease_slots_init(&slots, LIVE, 0, 100), KVF_OK);
  for (uint32_t round = 0; round < ROUNDS; round++) {
    change(&prng, &models[kvf_prng_below(&prng, LIVE)]);
    bool held[GROUPS][POOL] = {{false}};
    uint64_t expected = 0;
    for (uint32_t i = 0; i < LIVE; i++) {
      if (models[i].is_live) {
        expected += models[i].is_known ? hold(&models[i], held) : models[i].number;
      }
    }
    assert_int_equal(kvf_lease_slots_blocks(&slots), expected);
  }
}

SLOTS_TEST(draining_refuses)
{
  assert_int_equal(kvf_lease_slots_init(&slots, 1, 5, 100), KVF_OK);
  assert_int_equal(reserve(1, 0, &lease), KVF_OK);
  slots.draining = true;
  assert_int_equal(reserve(1, 0, &lease), KVF_DRAINING);
  assert_int_equal(reserve_blocks(NULL, 0, 0, &lease), KVF_DRAINING);
  assert_int_equal(kvf_lease_slots_release(&slots, 5), KVF_OK);
  assert_int_equal(reserve(1, 0, &lease), KVF_DRAINING);
  assert_int_equal(kvf_lease_slots_live(&slots), 0);
}

SLOTS_TEST(ids_end)
{
  assert_int_equal(kvf_lease_slots_init(&slots, 4, KVF_LEASE_ID_MAX - 1, 100), KVF_OK);
  assert_int_equal(reserve(1, 0, &lease), KVF_OK);
  assert_int_equal(lease.id, KVF_LEASE_ID_MAX - 1);
  assert_int_equal(reserve(1, 0, &lease), KVF_NO_LEASE);
}

SLOTS_TEST(many)
{
  enum { SLOTS = 5000 };
  assert_int_equal(kvf_lease_slots_init(&slots, SLOTS, 0, 100), KVF_OK);
  for (uint64_t i = 0; i < UINT64_C(3) * SLOTS; i++) {
    if (i >= SLOTS) {
      assert_int_equal(kvf_lease_slots_release(&slots, i - SLOTS), KVF_OK);
    }
    assert_int_equal(reserve(1, SLOTS, &lease), KVF_OK);
    assert_int_equal(lease.id, i);
    assert_int_equal(lease.slot, i % SLOTS);
  }
  assert_int_equal(kvf_lease_slots_live(&slots), SLOTS);
}
