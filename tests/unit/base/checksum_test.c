#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/checksum.h"

/* XXH3's own test vectors: nodes of different builds must agree. */
static void is_xxh3(void **state)
{
  (void)state;
  assert_int_equal(kvf_checksum("", 0), UINT64_C(0x2d06800538d394c2));
  assert_int_equal(kvf_checksum("a", 1), UINT64_C(0xe6c632b61e964e1f));
  assert_int_equal(kvf_checksum("abc", 3), UINT64_C(0x78af5f94892f3950));
}

static void every_bit_counts(void **state)
{
  (void)state;
  uint8_t bytes[300];
  for (size_t count = 1; count <= sizeof(bytes); count += 23) {
    memset(bytes, 0x5a, sizeof(bytes));
    uint64_t good = kvf_checksum(bytes, count);
    for (size_t bit = 0; bit < 8 * count; bit++) {
      bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
      assert_int_not_equal(kvf_checksum(bytes, count), good);
      bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    assert_int_equal(kvf_checksum(bytes, count), good);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(is_xxh3), cmocka_unit_test(every_bit_counts)};
  return cmocka_run_group_tests_name("base/checksum", tests, NULL, NULL);
}
