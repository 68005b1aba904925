/* The library's version against the header's. */
#include "kvferry/kvferry.h"
#include "test.h"

TEST(version_is_that_of_the_header)
{
  assert_string_equal(kvf_version(), KVF_VERSION_TEXT);
}
