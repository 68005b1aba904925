#include "core/lease_slots.h"

#include "base/fence.h"
#include "test.h"

static const uint8_t secret[KVF_LEASE_TOKEN_BYTES] = "0123456789abcdef";

static kvf_lease_slots slots;
static kvf_lease lease;

static int tear_down(__attribute__((unused)) void **state)
{
  kvf_lease_slots_free(&slots);
  return 0;
}

#define SLOTS_TEST(name) TEST_WITH(name, NULL, tear_down)

static kvf_status reserve(uint32_t blocks, uint64_t pool_blocks, kvf_lease *out)
{
  return kvf_lease_slots_reserve(&slots, blocks, pool_blocks, secret, out);
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

SLOTS_TEST(draining_refuses)
{
  assert_int_equal(kvf_lease_slots_init(&slots, 1, 5, 100), KVF_OK);
  assert_int_equal(reserve(1, 0, &lease), KVF_OK);
  slots.draining = true;
  assert_int_equal(reserve(1, 0, &lease), KVF_DRAINING);
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
