/* Known texts, decoding in place, and texts that are not the only one of their bytes. */
#include "wire/base64url.h"

#include "wire_test.h"

TEST(test_known_texts)
{
  /* RFC 4648, section 10, without the padding. */
  static const struct {
    const char *data;
    const char *text;
  } rows[] = {{"", ""},           {"f", "Zg"},          {"fo", "Zm8"},          {"foo", "Zm9v"},
              {"foob", "Zm9vYg"}, {"fooba", "Zm9vYmE"}, {"foobar", "Zm9vYmFy"}, {"\xfb\xff", "-_8"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    size_t bytes = strlen(rows[i].data);
    size_t text_bytes = strlen(rows[i].text);
    assert_int_equal(kvf_base64url_text_bytes(bytes), text_bytes);
    assert_int_equal(kvf_base64url_data_bytes(text_bytes), bytes);
    char text[16];
    uint8_t data[16];
    kvf_base64url_encode((const uint8_t *)rows[i].data, bytes, text);
    assert_memory_equal(text, rows[i].text, text_bytes);
    assert_true(kvf_base64url_decode(text, text_bytes, data));
    assert_memory_equal(data, rows[i].data, bytes);
  }
}

TEST(test_in_place)
{
  for (size_t bytes = 0; bytes < 100; bytes++) {
    uint8_t data[100];
    uint8_t back[100];
    fill(data, bytes, (uint8_t)bytes);
    size_t text_bytes = kvf_base64url_text_bytes(bytes);
    char *text = exact_room(text_bytes);
    uint8_t *end = (uint8_t *)text + text_bytes - bytes;
    put(end, data, bytes);
    kvf_base64url_encode(end, bytes, text);
    assert_true(kvf_base64url_decode(text, text_bytes, back));
    assert_memory_equal(back, data, bytes);
    free(text);
  }
}

TEST(test_every_two_characters)
{
  /* Each of 256 bytes has one text of two characters, and no other text is taken. */
  size_t taken = 0;
  for (unsigned i = 0; i < 65536; i++) {
    char text[2] = {(char)(i & 255), (char)(i >> 8)};
    char again[2];
    uint8_t data[2];
    if (kvf_base64url_decode(text, 2, data)) {
      kvf_base64url_encode(data, 1, again);
      assert_memory_equal(again, text, 2);
      taken++;
    }
  }
  assert_int_equal(taken, 256);
}

TEST(test_refused)
{
  static const char *const rows[] = {"A",    "AAAAA", "Zg==",   "Zh", "Zm9", "Zm9v\n", "Zm+v",
                                     "Zm/v", "Zm 9v", "Zm9vYh", "@A", "A[",  "`A",     "A{"};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    uint8_t data[16];
    assert_false(kvf_base64url_decode(rows[i], strlen(rows[i]), data));
  }
}
