#include "core/budget.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define SECOND_NS UINT64_C(1000000000)
#define MS_NS UINT64_C(1000000)

static kvf_budget budget_of(uint32_t tokens_per_s)
{
  kvf_budget budget;
  kvf_budget_init(&budget, tokens_per_s);
  return budget;
}

static void zero_is_no_limit(void **state)
{
  (void)state;
  kvf_budget budget = budget_of(0);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(kvf_budget_wait_ns(&budget, 0, UINT32_MAX), 0);
    assert_true(kvf_budget_take(&budget, 0, UINT32_MAX));
  }
}

static void one_second_may_be_taken_at_once(void **state)
{
  (void)state;
  kvf_budget budget = budget_of(1000);
  assert_true(kvf_budget_take(&budget, 0, 600));
  assert_true(kvf_budget_take(&budget, 0, 400));
  assert_false(kvf_budget_take(&budget, 0, 1));
  assert_int_equal(kvf_budget_wait_ns(&budget, 0, 1), MS_NS);
}

static void tokens_come_back_with_time(void **state)
{
  (void)state;
  kvf_budget budget = budget_of(1000);
  assert_true(kvf_budget_take(&budget, 0, 1000));
  assert_int_equal(kvf_budget_wait_ns(&budget, 0, 100), 100 * MS_NS);
  assert_false(kvf_budget_take(&budget, 100 * MS_NS - 1, 100));
  assert_true(kvf_budget_take(&budget, 100 * MS_NS, 100));
  assert_false(kvf_budget_take(&budget, 100 * MS_NS, 1));
}

static void quiet_times_save_up_no_more_than_a_second(void **state)
{
  (void)state;
  kvf_budget budget = budget_of(1000);
  assert_true(kvf_budget_take(&budget, 100 * SECOND_NS, 1000));
  assert_false(kvf_budget_take(&budget, 100 * SECOND_NS, 1));
}

static void a_large_request_goes_when_full_and_is_paid_off(void **state)
{
  (void)state;
  kvf_budget budget = budget_of(1000);
  assert_true(kvf_budget_take(&budget, 0, 5000));
  assert_int_equal(kvf_budget_wait_ns(&budget, 0, 1), 4 * SECOND_NS + MS_NS);
  assert_int_equal(kvf_budget_wait_ns(&budget, 0, 5000), 5 * SECOND_NS);
  assert_false(kvf_budget_take(&budget, 5 * SECOND_NS - 1, 5000));
  assert_true(kvf_budget_take(&budget, 5 * SECOND_NS, 5000));
}

static void nothing_costs_nothing(void **state)
{
  (void)state;
  kvf_budget budget = budget_of(1);
  assert_true(kvf_budget_take(&budget, 0, 100));
  assert_true(kvf_budget_take(&budget, 0, 0));
}

static void extremes_do_not_overflow(void **state)
{
  (void)state;
  kvf_budget budget = budget_of(1);
  assert_true(kvf_budget_take(&budget, UINT64_MAX - 5, UINT32_MAX));
  assert_true(kvf_budget_wait_ns(&budget, UINT64_MAX - 5, UINT32_MAX) > 0);
  budget = budget_of(UINT32_MAX);
  assert_true(kvf_budget_take(&budget, 0, UINT32_MAX));
  assert_int_equal(kvf_budget_wait_ns(&budget, 0, UINT32_MAX), SECOND_NS);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(zero_is_no_limit),
      cmocka_unit_test(one_second_may_be_taken_at_once),
      cmocka_unit_test(tokens_come_back_with_time),
      cmocka_unit_test(quiet_times_save_up_no_more_than_a_second),
      cmocka_unit_test(a_large_request_goes_when_full_and_is_paid_off),
      cmocka_unit_test(nothing_costs_nothing),
      cmocka_unit_test(extremes_do_not_overflow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
