/* Bits in words: each for itself, the prefix that is set, and the first that is. */
#include "base/bitmap.h"
#include "test.h"

TEST(words_are_rounded_up)
{
  assert_int_equal(kvf_bitmap_words(0), 0);
  assert_int_equal(kvf_bitmap_words(64), 1);
  assert_int_equal(kvf_bitmap_words(65), 2);
}

TEST(bits_are_independent)
{
  uint64_t words[2] = {0};
  kvf_bitmap_set(words, 63);
  kvf_bitmap_set(words, 64);
  assert_false(kvf_bitmap_get(words, 62));
  assert_true(kvf_bitmap_get(words, 63));
  assert_true(kvf_bitmap_get(words, 64));
  assert_false(kvf_bitmap_get(words, 65));
  kvf_bitmap_clear(words, 63);
  assert_false(kvf_bitmap_get(words, 63));
  assert_true(kvf_bitmap_get(words, 64));
}

TEST(prefix_ends_at_the_first_gap)
{
  uint64_t words[3] = {0};
  for (size_t bit = 0; bit < 130; bit++) {
    assert_int_equal(kvf_bitmap_prefix(words, 130), bit);
    kvf_bitmap_set(words, bit);
  }
  assert_int_equal(kvf_bitmap_prefix(words, 130), 130);
  assert_int_equal(kvf_bitmap_prefix(words, 128), 128);
  assert_int_equal(kvf_bitmap_prefix(words, 100), 100);
  kvf_bitmap_clear(words, 70);
  assert_int_equal(kvf_bitmap_prefix(words, 130), 70);
  assert_int_equal(kvf_bitmap_prefix(words, 50), 50);
  assert_int_equal(kvf_bitmap_prefix(words, 0), 0);
}

TEST(first_bit_that_is_set)
{
  uint64_t words[2] = {0};
  assert_int_equal(kvf_bitmap_first(words, 100), 100);
  kvf_bitmap_set(words, 101);
  assert_int_equal(kvf_bitmap_first(words, 101), 101); /* past the last */
  assert_int_equal(kvf_bitmap_first(words, 102), 101);
  kvf_bitmap_set(words, 63);
  assert_int_equal(kvf_bitmap_first(words, 102), 63);
}
