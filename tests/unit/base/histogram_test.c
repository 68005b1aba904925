/* Which bucket a value falls into, and that bounds ascend. */
#include "base/histogram.h"
#include "base/time.h"
#include "test.h"

static kvf_histogram histogram;

TEST(a_bound_belongs_to_its_bucket)
{
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

TEST(nothing_is_beyond_the_last)
{
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

TEST(bounds_ascend)
{
  kvf_histogram_init_ns(&histogram, "x_ns");
  assert_ascending();
  kvf_histogram_init_bytes(&histogram, "x_bytes");
  assert_ascending();
}
