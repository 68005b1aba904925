/* Known hashes and MACs, a MAC without a key, and comparing secrets. */
#include "base/crypto.h"
#include "test.h"

/* The vectors are of FIPS 180 and RFC 4231 (test case 2). */
TEST(sha256_is_the_standard_one)
{
  const uint8_t expected[KVF_HASH_BYTES] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40,
                                            0xde, 0x5d, 0xae, 0x22, 0x23, 0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17,
                                            0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};
  uint8_t hash[KVF_HASH_BYTES];
  const kvf_span whole[] = {{"abc", 3}};
  const kvf_span split[] = {{"a", 1}, {NULL, 0}, {"bc", 2}};
  assert_int_equal(kvf_sha256(whole, 1, hash), KVF_OK);
  assert_memory_equal(hash, expected, sizeof(hash));
  assert_int_equal(kvf_sha256(split, 3, hash), KVF_OK);
  assert_memory_equal(hash, expected, sizeof(hash));
}

TEST(hmac_is_the_standard_one)
{
  const uint8_t expected[KVF_HASH_BYTES] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24,
                                            0x26, 0x08, 0x95, 0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27,
                                            0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
  const kvf_key key = {.data = "Jefe", .bytes = 4};
  uint8_t mac[KVF_HASH_BYTES];
  const kvf_span spans[] = {{"what do ya want ", 16}, {"for nothing?", 12}};
  assert_int_equal(kvf_hmac(&key, spans, 2, mac), KVF_OK);
  assert_memory_equal(mac, expected, sizeof(mac));
}

TEST(without_a_key_it_is_a_checksum)
{
  const kvf_key none = {.bytes = 0};
  uint8_t first[KVF_HASH_BYTES];
  uint8_t second[KVF_HASH_BYTES];
  const kvf_span a[] = {{"a", 1}};
  const kvf_span b[] = {{"b", 1}};
  assert_int_equal(kvf_hmac(&none, a, 1, first), KVF_OK);
  assert_int_equal(kvf_hmac(&none, b, 1, second), KVF_OK);
  assert_memory_not_equal(first, second, sizeof(first));
}

/* The one whose key is prepared gives the same, each time, whatever others make meanwhile. */
TEST(a_prepared_key_gives_the_same_mac)
{
  const kvf_key keys[] = {{.data = "Jefe", .bytes = 4}, {.bytes = 0}};
  kvf_mac macs[2];
  const kvf_span spans[] = {{"what do ya want ", 16}, {"for nothing?", 12}};
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(kvf_mac_init(&macs[i], &keys[i]), KVF_OK);
    assert_int_equal(macs[i].has_key, keys[i].bytes > 0);
    const kvf_span label = {"kvferry key id", 14};
    uint8_t named[KVF_HASH_BYTES];
    assert_int_equal(kvf_hmac(&keys[i], &label, 1, named), KVF_OK);
    assert_memory_equal(macs[i].key_id, named, sizeof(macs[i].key_id));
  }
  for (size_t n = 0; n < 6; n++) {
    uint8_t expected[KVF_HASH_BYTES];
    uint8_t mac[KVF_HASH_BYTES];
    const kvf_mac copy = macs[n % 2];
    assert_int_equal(kvf_hmac(&keys[n % 2], spans, n < 3 ? 2 : 1, expected), KVF_OK);
    assert_int_equal(kvf_mac_make(&copy, spans, n < 3 ? 2 : 1, mac), KVF_OK);
    assert_memory_equal(mac, expected, sizeof(mac));
  }
  for (size_t i = 0; i < 2; i++) {
    kvf_mac_free(&macs[i]);
    kvf_mac_free(&macs[i]);
  }
}

TEST(secrets_compare_to_the_last_byte)
{
  assert_true(kvf_equal_secret("abcd", "abcd", 4));
  assert_false(kvf_equal_secret("abcd", "abce", 4));
  assert_true(kvf_equal_secret("abcd", "abce", 3));
}
