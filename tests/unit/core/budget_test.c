/* How much may be taken from a bucket at once, and how it fills again. */
#include "core/budget.h"

#include "test.h"

#define SECOND_NS UINT64_C(1000000000)
#define MS_NS UINT64_C(1000000)

static kvf_budget budget_of(uint32_t tokens_per_s)
{
  return (kvf_budget){.tokens_per_s = tokens_per_s};
}

TEST(zero_is_no_limit)
{
  kvf_budget budget = budget_of(0);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(kvf_budget_wait_ns(&budget, 0, UINT32_MAX), 0);
    assert_true(kvf_budget_take(&budget, 0, UINT32_MAX));
  }
}

TEST(one_second_may_be_taken_at_once)
{
  kvf_budget budget = budget_of(1000);
  assert_true(kvf_budget_take(&budget, 0, 600));
  assert_true(kvf_budget_take(&budget, 0, 400));
  assert_false(kvf_budget_take(&budget, 0, 1));
  assert_int_equal(kvf_budget_wait_ns(&budget, 0, 1), MS_NS);
}

TEST(tokens_come_back_with_time)
{
  kvf_budget budget = budget_of(1000);
  assert_true(kvf_budget_take(&budget, 0, 1000));
  assert_int_equal(kvf_budget_wait_ns(&budget, 0, 100), 100 * MS_NS);
  assert_false(kvf_budget_take(&budget, 100 * MS_NS - 1, 100));
  assert_true(kvf_budget_take(&budget, 100 * MS_NS, 100));
  assert_false(kvf_budget_take(&budget, 100 * MS_NS, 1));
}

TEST(released_times_save_up_no_more_than_a_second)
{
  kvf_budget budget = budget_of(1000);
  assert_true(kvf_budget_take(&budget, 100 * SECOND_NS, 1000));
  assert_false(kvf_budget_take(&budget, 100 * SECOND_NS, 1));
}

TEST(a_large_request_goes_when_full_and_is_paid_off)
{
  kvf_budget budget = budget_of(1000);
  assert_true(kvf_budget_take(&budget, 0, 5000));
  assert_int_equal(kvf_budget_wait_ns(&budget, 0, 1), 4 * SECOND_NS + MS_NS);
  assert_int_equal(kvf_budget_wait_ns(&budget, 0, 5000), 5 * SECOND_NS);
  assert_false(kvf_budget_take(&budget, 5 * SECOND_NS - 1, 5000));
  assert_true(kvf_budget_take(&budget, 5 * SECOND_NS, 5000));
}

TEST(nothing_costs_nothing)
{
  kvf_budget budget = budget_of(1);
  assert_true(kvf_budget_take(&budget, 0, 100));
  assert_true(kvf_budget_take(&budget, 0, 0));
}

TEST(extremes_do_not_overflow)
{
  kvf_budget budget = budget_of(1);
  assert_true(kvf_budget_take(&budget, UINT64_MAX - 5, UINT32_MAX));
  assert_true(kvf_budget_wait_ns(&budget, UINT64_MAX - 5, UINT32_MAX) > 0);
  budget = budget_of(UINT32_MAX);
  assert_true(kvf_budget_take(&budget, 0, UINT32_MAX));
  assert_int_equal(kvf_budget_wait_ns(&budget, 0, UINT32_MAX), SECOND_NS);
}
