/* Lists of CPUs that are taken, and texts that are none. */
#include "base/cpu_list.h"

#include "test.h"

static void assert_list(const char *text, const unsigned *expected, unsigned count)
{
  kvf_cpu_list list;
  assert_true(kvf_cpu_list_parse(text, &list));
  assert_int_equal(kvf_cpu_list_count(&list), count);
  for (unsigned i = 0; i < count; i++) {
    assert_true(kvf_bitmap_get(list.words, expected[i]));
  }
}

TEST(numbers_and_ranges)
{
  assert_list("0", (unsigned[]){0}, 1);
  assert_list("0-3,8", (unsigned[]){0, 1, 2, 3, 8}, 5);
  assert_list("8,0-1,8", (unsigned[]){0, 1, 8}, 3); /* in any order, named twice */
  assert_list("62-65,1023", (unsigned[]){62, 63, 64, 65, 1023}, 5);
  assert_list("5-5", (unsigned[]){5}, 1);
}

TEST(what_is_no_list)
{
  static const char *const texts[] = {"",     ",",      "0,",  ",0",  "-3", "3-", "3-1", "0-1-2",
                                      "1024", "0-1024", "0 1", "0x1", "a",  " 0", "0\n", "99999999999999999999"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    kvf_cpu_list list;
    assert_false(kvf_cpu_list_parse(texts[i], &list));
  }
}
