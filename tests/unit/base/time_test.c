#include "base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void sums_saturate(void **state)
{
  (void)state;
  assert_true(kvf_time_add(99, 1) == 100);
  assert_true(kvf_time_add(KVF_TIME_NEVER - 1, 1) == KVF_TIME_NEVER);
  assert_true(kvf_time_add(KVF_TIME_NEVER - 1, 2) == KVF_TIME_NEVER);
  assert_true(kvf_time_add(KVF_TIME_NEVER, KVF_TIME_NEVER) == KVF_TIME_NEVER);
}

static void the_past_is_no_time_away(void **state)
{
  (void)state;
  assert_true(kvf_time_until(99, 100) == 1);
  assert_true(kvf_time_until(100, 100) == 0);
  assert_true(kvf_time_until(101, 100) == 0);
}

static void milliseconds_fit(void **state)
{
  (void)state;
  assert_true(kvf_ms_to_ns(UINT32_MAX) == UINT32_MAX * UINT64_C(1000000));
  assert_true(kvf_time_min(1, KVF_TIME_NEVER) == 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_saturate),
      cmocka_unit_test(the_past_is_no_time_away),
      cmocka_unit_test(milliseconds_fit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
