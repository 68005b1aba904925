/* The n-th allocation fails, for every n: nothing leaks, nothing changes, and the call says so. Linked with
 * --wrap=malloc and --wrap=calloc. */
#include "core/lease_slots.h"
#include "lease_world.h"

void *__real_malloc(size_t bytes);               /* NOLINT(bugprone-reserved-identifier): the linker's names */
void *__real_calloc(size_t count, size_t bytes); /* NOLINT(bugprone-reserved-identifier) */
void *__wrap_malloc(size_t bytes);               /* NOLINT(bugprone-reserved-identifier) */
void *__wrap_calloc(size_t count, size_t bytes); /* NOLINT(bugprone-reserved-identifier) */

static uint32_t allocations_left = UINT32_MAX;

static bool may_allocate(void)
{
  if (allocations_left == 0) {
    return false;
  }
  allocations_left -= allocations_left != UINT32_MAX;
  return true;
}

void *__wrap_malloc(size_t bytes)
{
  return may_allocate() ? __real_malloc(bytes) : NULL;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
  return may_allocate() ? __real_calloc(count, bytes) : NULL;
}

TEST(table)
{
  static lease_world w;
  const kvf_lease_table_config config = {WORLD_SLOTS, WORLD_TTL_NS, WORLD_MAX_NS, false};
  allocations_left = 0;
  assert_int_equal(kvf_lease_table_init(&w.table, &config, 0), KVF_NO_MEMORY);
  kvf_lease_table_free(&w.table);
  allocations_left = 1;
  world_init(&w, 0);
  assert_int_equal(world_publish(&w, 0, 0, 3), KVF_NO_MEMORY);
  allocations_left = UINT32_MAX;
  kvf_lease_store store;
  assert_false(kvf_lease_table_next_store(&w.table, &store));
  assert_int_equal(w.table.held, 0);
  assert_int_equal(world_renew(&w, 0, 0, 3, 'a'), KVF_LEASE_STATE_NOT_PUBLISHED);
  world_live(&w, 0, 0, 3);
  kvf_lease_table_free(&w.table); /* with a lease in it */
}

static bool reserve_many(kvf_lease_slots *slots)
{
  static const uint8_t token[KVF_LEASE_TOKEN_BYTES] = {0};
  for (uint32_t i = 0; i < slots->count; i++) {
    kvf_lease lease;
    kvf_status status = kvf_lease_slots_reserve(slots, 1, 0, token, &lease);
    if (status != KVF_OK) {
      assert_int_equal(status, KVF_NO_MEMORY);
      assert_int_equal(kvf_lease_slots_live(slots), i);
      return false;
    }
  }
  return true;
}

TEST(slots)
{
  enum { SLOTS = 2000 };
  bool done = false;
  uint32_t n = 0;
  for (; !done; n++) {
    kvf_lease_slots slots;
    allocations_left = n;
    kvf_status status = kvf_lease_slots_init(&slots, SLOTS, 0, 100);
    if (status != KVF_OK) {
      assert_int_equal(status, KVF_NO_MEMORY);
      continue;
    }
    done = reserve_many(&slots);
    for (uint32_t id = kvf_lease_slots_live(&slots); id > 0; id--) {
      assert_int_equal(kvf_lease_slots_release(&slots, id - 1), KVF_OK);
    }
    allocations_left = UINT32_MAX;
    assert_true(reserve_many(&slots));
    kvf_lease_slots_free(&slots);
  }
  allocations_left = UINT32_MAX;
  assert_in_range(n, 5, 100);
}
