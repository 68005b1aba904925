#include "wire/cursor.h"

#include "wire_test.h"

TEST(test_numbers_are_little_endian)
{
  static const uint8_t expected[] = {1, 3, 2, 7, 6, 5, 4, 15, 14, 13, 12, 11, 10, 9, 8, 0xfe, 0xff, 0xff, 0xff};
  uint8_t data[sizeof(expected)];
  kvf_encoder encoder = kvf_encoder_of(data, sizeof(data));
  kvf_put_u8(&encoder, 1);
  kvf_put_u16(&encoder, 0x0203);
  kvf_put_u32(&encoder, 0x04050607);
  kvf_put_u64(&encoder, UINT64_C(0x08090a0b0c0d0e0f));
  kvf_put_i32(&encoder, -2);
  size_t bytes = 0;
  assert_int_equal(kvf_encoder_end(&encoder, &bytes), KVF_OK);
  assert_int_equal(bytes, sizeof(expected));
  assert_memory_equal(data, expected, sizeof(expected));

  kvf_decoder decoder = kvf_decoder_of(data, sizeof(data));
  assert_int_equal(kvf_get_u8(&decoder), 1);
  assert_int_equal(kvf_get_u16(&decoder), 0x0203);
  assert_int_equal(kvf_get_u32(&decoder), 0x04050607);
  assert_true(kvf_get_u64(&decoder) == UINT64_C(0x08090a0b0c0d0e0f));
  assert_int_equal(kvf_decoder_end(&decoder), KVF_PROTOCOL);
  assert_int_equal(kvf_get_i32(&decoder), -2);
  assert_int_equal(kvf_decoder_end(&decoder), KVF_OK);
}

TEST(test_reading_past_the_end_sticks)
{
  uint8_t *data = exact_copy("\x01\x02\x03", 3);
  uint8_t out[4] = {9, 9, 9, 9};
  kvf_decoder decoder = kvf_decoder_of(data, 3);
  assert_int_equal(kvf_get_u32(&decoder), 0);
  assert_true(decoder.failed);
  assert_int_equal(kvf_get_u8(&decoder), 0);
  assert_null(kvf_get_span(&decoder, 0));
  assert_int_equal(kvf_decoder_left(&decoder), 0);
  kvf_get_bytes(&decoder, out, sizeof(out));
  assert_memory_equal(out, "\0\0\0\0", 4);
  assert_int_equal(kvf_decoder_end(&decoder), KVF_PROTOCOL);

  decoder = kvf_decoder_of(data, 3);
  assert_null(kvf_get_span(&decoder, SIZE_MAX));
  free(data);
}

TEST(test_empty_input)
{
  kvf_decoder decoder = kvf_decoder_of(NULL, 0);
  assert_int_equal(kvf_decoder_end(&decoder), KVF_OK);
  assert_non_null(kvf_get_span(&decoder, 0));
  assert_int_equal(kvf_get_u8(&decoder), 0);
  assert_int_equal(kvf_decoder_end(&decoder), KVF_PROTOCOL);
}

TEST(test_refusing_sticks)
{
  kvf_decoder decoder = kvf_decoder_of("", 0);
  kvf_decoder_fail(&decoder);
  assert_int_equal(kvf_decoder_end(&decoder), KVF_PROTOCOL);
}

TEST(test_writing_past_the_end_sticks)
{
  uint8_t data[4] = {0, 0, 0, 9};
  size_t bytes = 77;
  kvf_encoder encoder = kvf_encoder_of(data, 3);
  kvf_put_u16(&encoder, 0x0101);
  kvf_put_u16(&encoder, 0x0101);
  kvf_put_u8(&encoder, 1);
  assert_int_equal(kvf_encoder_end(&encoder, &bytes), KVF_LIMIT);
  assert_int_equal(bytes, 77);
  assert_memory_equal(data, "\x01\x01\x00\x09", 4);

  encoder = kvf_encoder_of(NULL, 0);
  kvf_put_bytes(&encoder, NULL, 0);
  assert_int_equal(kvf_encoder_end(&encoder, &bytes), KVF_OK);
  assert_int_equal(bytes, 0);
}

TEST(test_varints)
{
  static const struct {
    uint64_t value;
    size_t bytes;
  } rows[] = {{0, 1},
              {127, 1},
              {128, 2},
              {16383, 2},
              {16384, 3},
              {UINT32_MAX, 5},
              {(UINT64_C(1) << 63) - 1, 9},
              {UINT64_C(1) << 63, 10},
              {UINT64_MAX, 10}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    uint8_t data[10];
    kvf_encoder encoder = kvf_encoder_of(data, sizeof(data));
    kvf_put_varint(&encoder, rows[i].value);
    assert_int_equal(encoder.bytes, rows[i].bytes);
    for (size_t bytes = 0; bytes <= rows[i].bytes; bytes++) {
      uint8_t *copy = exact_copy(data, bytes);
      kvf_decoder decoder = kvf_decoder_of(copy, bytes);
      assert_true(kvf_get_varint(&decoder) == (bytes == rows[i].bytes ? rows[i].value : 0));
      assert_int_equal(decoder.failed, bytes != rows[i].bytes);
      free(copy);
    }
  }
}

TEST(test_varints_have_one_form)
{
  static const struct {
    const char *data;
    size_t bytes;
  } rows[] = {{"\x80\x00", 2},
              {"\xff\x80\x00", 3},
              {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 10},
              {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00", 11}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    kvf_decoder decoder = kvf_decoder_of(rows[i].data, rows[i].bytes);
    assert_int_equal(kvf_get_varint(&decoder), 0);
    assert_true(decoder.failed);
  }
}
