#include "core/backoff.h"

#include "test.h"

static void assert_next(kvf_backoff *backoff, kvf_prng *prng, uint64_t longest_ns)
{
  uint64_t wait_ns = kvf_backoff_next(backoff, prng);
  assert_in_range(wait_ns, (longest_ns + 1) / 2, longest_ns);
}

TEST(waits_double_up_to_the_longest)
{
  for (uint64_t seed = 0; seed < 1000; seed++) {
    kvf_prng prng = {seed};
    kvf_backoff backoff;
    kvf_backoff_init(&backoff, 10, 100);
    assert_next(&backoff, &prng, 10);
    assert_next(&backoff, &prng, 20);
    assert_next(&backoff, &prng, 40);
    assert_next(&backoff, &prng, 80);
    assert_next(&backoff, &prng, 100);
    assert_next(&backoff, &prng, 100);
    kvf_backoff_reset(&backoff);
    assert_next(&backoff, &prng, 10);
  }
}

TEST(jitter_reaches_both_ends)
{
  kvf_prng prng = {1};
  unsigned shortest = 0;
  unsigned longest = 0;
  for (int i = 0; i < 1000; i++) {
    kvf_backoff backoff;
    kvf_backoff_init(&backoff, 9, 9);
    uint64_t wait_ns = kvf_backoff_next(&backoff, &prng);
    shortest += wait_ns == 5;
    longest += wait_ns == 9;
  }
  assert_in_range(shortest, 100, 300);
  assert_in_range(longest, 100, 300);
}

TEST(extremes_do_not_overflow)
{
  kvf_prng prng = {1};
  kvf_backoff backoff;
  kvf_backoff_init(&backoff, 0, 0);
  assert_int_equal(kvf_backoff_next(&backoff, &prng), 0);
  kvf_backoff_init(&backoff, UINT64_MAX - 1, UINT64_MAX);
  assert_next(&backoff, &prng, UINT64_MAX - 1);
  assert_next(&backoff, &prng, UINT64_MAX);
}
