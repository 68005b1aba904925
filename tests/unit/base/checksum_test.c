/* XXH3's vectors, and that a flipped bit is noticed. */
#include "base/checksum.h"
#include "test.h"

/* XXH3's own test vectors: nodes of different builds must agree. */
TEST(is_xxh3)
{
  assert_int_equal(kvf_checksum("", 0), UINT64_C(0x2d06800538d394c2));
  assert_int_equal(kvf_checksum("a", 1), UINT64_C(0xe6c632b61e964e1f));
  assert_int_equal(kvf_checksum("abc", 3), UINT64_C(0x78af5f94892f3950));
}

TEST(every_bit_counts)
{
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
