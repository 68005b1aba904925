/* The library's version against the header's. */
#include "kvferry/kvferry.h"
#include "test.h"

TEST(version_is_that_of_the_header)
{
  char numbers[32];
  assert_string_equal(kvf_version(), KVF_VERSION_TEXT);
  (void)snprintf(numbers, sizeof(numbers), "%d.%d.%d", KVF_VERSION_NUM >> 16, KVF_VERSION_NUM >> 8 & 0xff,
                 KVF_VERSION_NUM & 0xff);
  assert_string_equal(numbers, KVF_VERSION_TEXT);
}
