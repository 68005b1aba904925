/* clang-format off */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "core/histogram.h"
#include "base/time.h"

static kvf_histogram histogram;

static void a_bound_belongs_to_its_bucket(void **state)
{
  (void)state;
  kvf_histogram_init_ns(&histogram, "x_ns");
  kvf_histogram_add(&histogram, 0);
  kvf_histogram_add(&histogram, KVF_NS_PER_MS);
  assert_int_equal(histogram.counts[0], 2);
  assert_int_equal(histogram.sums[0], KVF_NS_PER_MS);
  kvf_histogram_add(&histogram, KVF_NS_PER_MS + 1);
  assert_int_equal(histogram.counts[0], 2);
  assert_int_equal(histogram.counts[1], 1);
  assert_int_equal(histogram.sums[1], KVF_NS_PER_MS + 1);
}

static void nothing_is_beyond_the_last(void **state)
{
  (void)state;
  kvf_histogram_init_bytes(&histogram, "x_bytes");
  kvf_histogram_add(&histogram, UINT64_MAX);
  assert_int_equal(histogram.counts[histogram.buckets - 1], 1);
}

static void assert_ascending(void)
{
  assert_true(histogram.buckets <= KVF_HISTOGRAM_BUCKETS_MAX);
  for (uint32_t i = 1; i < histogram.buckets; i++) {
    assert_true(histogram.bounds[i - 1] < histogram.bounds[i]);
  }
  assert_int_equal(histogram.bounds[histogram.buckets - 1], UINT64_MAX);
}

static void bounds_ascend(void **state)
{
  (void)state;
  kvf_histogram_init_ns(&histogram, "x_ns");
  assert_ascending();
  kvf_histogram_init_bytes(&histogram, "x_bytes");
  assert_ascending();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_bound_belongs_to_its_bucket),
      cmocka_unit_test(nothing_is_beyond_the_last),
      cmocka_unit_test(bounds_ascend),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
