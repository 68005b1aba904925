/* Arithmetic of times at its limits. */
#include "base/time.h"
#include "test.h"

TEST(checksums_saturate)
{
  assert_true(kvf_time_add(99, 1) == 100);
  assert_true(kvf_time_add(KVF_TIME_NEVER - 1, 1) == KVF_TIME_NEVER);
  assert_true(kvf_time_add(KVF_TIME_NEVER - 1, 2) == KVF_TIME_NEVER);
  assert_true(kvf_time_add(KVF_TIME_NEVER, KVF_TIME_NEVER) == KVF_TIME_NEVER);
}

TEST(the_past_is_no_time_away)
{
  assert_true(kvf_time_until(99, 100) == 1);
  assert_true(kvf_time_until(100, 100) == 0);
  assert_true(kvf_time_until(101, 100) == 0);
}

TEST(milliseconds_fit)
{
  assert_true(kvf_ms_to_ns(UINT32_MAX) == UINT32_MAX * UINT64_C(1000000));
  assert_true(kvf_time_min(1, KVF_TIME_NEVER) == 1);
}
