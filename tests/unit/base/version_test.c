#include "kvferry/kvferry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void version_is_that_of_the_header(void **state)
{
  (void)state;
  assert_string_equal(kvf_version(), KVF_VERSION_TEXT);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(version_is_that_of_the_header),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
