#include "core/lease_consumers.h"

#include "test.h"

#define KEEP KVF_CONSUMERS_KEEP
#define COMPLETED KVF_CONSUMERS_COMPLETED
#define ABANDONED KVF_CONSUMERS_ABANDONED

static kvf_lease_consumers consumers;

static int reset(void **state)
{
  (void)state;
  kvf_consumers_init(&consumers);
  return 0;
}

static kvf_consumer_key key_of(char name)
{
  return (kvf_consumer_key){.incarnation = {{(uint8_t)name}}, .request_id = 9};
}

static bool renew(char name)
{
  kvf_consumer_key key = key_of(name);
  return kvf_consumers_renew(&consumers, &key);
}

static kvf_consumers_verdict complete(char name, uint32_t reader, uint32_t readers)
{
  kvf_consumer_key key = key_of(name);
  return kvf_consumers_complete(&consumers, &key, reader, readers);
}

static kvf_consumers_verdict abandon(char name)
{
  kvf_consumer_key key = key_of(name);
  return kvf_consumers_abort(&consumers, &key);
}

TEST_WITH(all_readers_complete, reset, NULL)
{
  assert_true(renew('a'));
  assert_int_equal(complete('a', 2, 3), KEEP);
  assert_int_equal(complete('a', 2, 3), KEEP);
  assert_int_equal(complete('a', 0, 3), KEEP);
  assert_int_equal(complete('a', 2, 3), KEEP);
  assert_int_equal(complete('a', 1, 3), COMPLETED);
}

TEST_WITH(sixty_four_readers, reset, NULL)
{
  for (uint32_t reader = 63; reader > 0; reader--) {
    assert_int_equal(complete('a', reader, 64), KEEP);
  }
  assert_int_equal(complete('a', 0, 64), COMPLETED);
}

TEST_WITH(without_a_renewal, reset, NULL)
{
  assert_int_equal(complete('a', 0, 1), COMPLETED);
}

TEST_WITH(bad_readers_are_ignored, reset, NULL)
{
  assert_int_equal(complete('a', 0, 0), KEEP);
  assert_int_equal(complete('a', 1, 1), KEEP);
  assert_int_equal(complete('a', 0, 65), KEEP);
  assert_int_equal(complete('a', UINT32_MAX, UINT32_MAX), KEEP);
  assert_int_equal(complete('a', 0, 2), KEEP);
  assert_int_equal(complete('a', 0, 1), KEEP);
  assert_int_equal(complete('a', 1, 3), KEEP);
  assert_int_equal(complete('a', 1, 2), COMPLETED);
}

TEST_WITH(waits_for_others, reset, NULL)
{
  assert_true(renew('a'));
  assert_true(renew('b'));
  assert_int_equal(complete('a', 0, 1), KEEP);
  assert_int_equal(complete('a', 0, 1), KEEP);
  assert_int_equal(abandon('b'), COMPLETED);
}

TEST_WITH(last_abort_abandons, reset, NULL)
{
  assert_true(renew('a'));
  assert_true(renew('b'));
  assert_int_equal(abandon('a'), KEEP);
  assert_int_equal(abandon('a'), KEEP);
  assert_int_equal(abandon('b'), ABANDONED);
}

TEST_WITH(abort_by_a_stranger, reset, NULL)
{
  assert_true(renew('a'));
  assert_int_equal(abandon('b'), KEEP);
  assert_false(renew('b')); /* delayed: it has aborted */
  assert_int_equal(complete('a', 0, 1), COMPLETED);
  reset(NULL);
  assert_int_equal(abandon('b'), ABANDONED);
}

TEST_WITH(abort_covers_all_readers, reset, NULL)
{
  assert_true(renew('b'));
  assert_int_equal(complete('a', 0, 2), KEEP);
  assert_int_equal(abandon('a'), KEEP);
  assert_int_equal(complete('a', 1, 2), KEEP);
  assert_int_equal(abandon('b'), ABANDONED);
}

TEST_WITH(finished_is_final, reset, NULL)
{
  assert_true(renew('b'));
  assert_int_equal(complete('a', 0, 1), KEEP);
  assert_false(renew('a'));
  assert_int_equal(abandon('a'), KEEP);
  assert_int_equal(abandon('b'), COMPLETED);
}

TEST_WITH(keys_differ_in_every_part, reset, NULL)
{
  kvf_consumer_key key = key_of('a');
  kvf_consumer_key other = key;
  other.request_id++;
  assert_true(kvf_consumers_renew(&consumers, &key));
  assert_true(kvf_consumers_renew(&consumers, &other));
  other = key;
  other.incarnation.bytes[KVF_INCARNATION_BYTES - 1] = 1;
  assert_true(kvf_consumers_renew(&consumers, &other));
  assert_int_equal(kvf_consumers_abort(&consumers, &key), KEEP);
  assert_int_equal(kvf_consumers_abort(&consumers, &other), KEEP);
  other = key;
  other.request_id++;
  assert_int_equal(kvf_consumers_abort(&consumers, &other), ABANDONED);
}

TEST_WITH(no_room, reset, NULL)
{
  assert_true(renew('a'));
  assert_true(renew('b'));
  assert_true(renew('c'));
  assert_true(renew('d'));
  assert_true(renew('e')); /* lengthens the lease, without being attached */
  assert_int_equal(complete('e', 0, 1), KEEP);
  assert_int_equal(abandon('e'), KEEP);
  assert_int_equal(abandon('a'), KEEP);
  assert_int_equal(abandon('b'), KEEP);
  assert_int_equal(abandon('c'), KEEP);
  assert_int_equal(complete('d', 0, 1), COMPLETED);
}

TEST_WITH(aborted_makes_room, reset, NULL)
{
  assert_true(renew('a'));
  assert_true(renew('b'));
  assert_int_equal(complete('c', 0, 1), KEEP);
  assert_int_equal(abandon('d'), KEEP);
  assert_true(renew('e'));
  assert_int_equal(abandon('a'), KEEP);
  assert_int_equal(abandon('b'), KEEP);
  assert_int_equal(abandon('e'), COMPLETED);
}
