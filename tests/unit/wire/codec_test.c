/* Numbers in both directions, and that the first failure stays. */
#include "wire/codec.h"

#include "wire_test.h"

typedef struct numbers {
  uint8_t u8;
  uint16_t u16;
  uint32_t u32;
  uint64_t u64;
  int32_t i32;
  uint32_t in_16;
} numbers;

static void code_numbers(kvf_codec *codec, numbers *n)
{
  kvf_code_u8(codec, &n->u8);
  kvf_code_u16(codec, &n->u16);
  kvf_code_u32(codec, &n->u32);
  kvf_code_u64(codec, &n->u64);
  kvf_code_i32(codec, &n->i32);
  kvf_code_u32_in(codec, &n->in_16, 2);
}

TEST(test_numbers_are_little_endian)
{
  static const numbers written = {1, 0x0203, 0x04050607, UINT64_C(0x08090a0b0c0d0e0f), -2, 0x1011};
  static const uint8_t expected[] = {1,  3,  2, 7, 6,    5,    4,    15,   14,   13,  12,
                                     11, 10, 9, 8, 0xfe, 0xff, 0xff, 0xff, 0x11, 0x10};
  uint8_t data[sizeof(expected)];
  size_t bytes = 0;
  kvf_codec writer = kvf_writer_of(data, sizeof(data));
  code_numbers(&writer, (numbers *)&written); /* where it is written, it is not touched: it lies in constant memory */
  assert_int_equal(kvf_writer_end(&writer, true, &bytes), KVF_OK);
  assert_int_equal(bytes, sizeof(expected));
  assert_memory_equal(data, expected, sizeof(expected));

  numbers read;
  memset(&read, 0xff, sizeof(read));
  kvf_codec reader = kvf_reader_of(data, sizeof(data));
  assert_int_equal(kvf_reader_end(&reader, true), KVF_PROTOCOL);
  code_numbers(&reader, &read);
  assert_int_equal(read.u8, written.u8);
  assert_int_equal(read.u16, written.u16);
  assert_int_equal(read.u32, written.u32);
  assert_true(read.u64 == written.u64);
  assert_int_equal(read.i32, written.i32);
  assert_int_equal(read.in_16, written.in_16);
  assert_int_equal(kvf_reader_end(&reader, true), KVF_OK);
  assert_int_equal(kvf_reader_end(&reader, false), KVF_PROTOCOL);
}

TEST(test_reading_past_the_end_sticks)
{
  uint8_t *data = exact_copy("\x01\x02\x03", 3);
  uint8_t out[4] = {9, 9, 9, 9};
  uint32_t number = 9;
  uint8_t byte = 9;
  kvf_codec reader = kvf_reader_of(data, 3);
  kvf_code_u32(&reader, &number);
  assert_int_equal(number, 0);
  assert_true(reader.failed);
  kvf_code_u8(&reader, &byte);
  assert_int_equal(byte, 0);
  assert_null(kvf_get_span(&reader, 0));
  assert_int_equal(kvf_codec_left(&reader), 0);
  kvf_code_bytes(&reader, out, sizeof(out));
  assert_memory_equal(out, "\0\0\0\0", 4);
  assert_int_equal(kvf_reader_end(&reader, true), KVF_PROTOCOL);

  reader = kvf_reader_of(data, 3);
  assert_null(kvf_get_span(&reader, SIZE_MAX));
  free(data);
}

TEST(test_empty_input)
{
  uint8_t byte = 9;
  kvf_codec reader = kvf_reader_of(NULL, 0);
  assert_int_equal(kvf_reader_end(&reader, true), KVF_OK);
  assert_non_null(kvf_get_span(&reader, 0));
  kvf_code_u8(&reader, &byte);
  assert_int_equal(byte, 0);
  assert_int_equal(kvf_reader_end(&reader, true), KVF_PROTOCOL);
}

TEST(test_refusing_sticks)
{
  kvf_codec reader = kvf_reader_of("", 0);
  kvf_codec_fail(&reader);
  assert_int_equal(kvf_reader_end(&reader, true), KVF_PROTOCOL);
}

TEST(test_writing_past_the_end_sticks)
{
  uint8_t data[4] = {0, 0, 0, 9};
  size_t bytes = 77;
  uint16_t number = 0x0101;
  kvf_codec writer = kvf_writer_of(data, 3);
  kvf_code_u16(&writer, &number);
  assert_int_equal(kvf_writer_end(&writer, false, &bytes), KVF_INVALID);
  kvf_code_u16(&writer, &number);
  kvf_put_bytes(&writer, data, 1);
  assert_int_equal(kvf_writer_end(&writer, true, &bytes), KVF_LIMIT);
  assert_int_equal(bytes, 77);
  assert_memory_equal(data, "\x01\x01\x00\x09", 4);

  writer = kvf_writer_of(NULL, 0);
  kvf_put_bytes(&writer, NULL, 0);
  assert_int_equal(kvf_writer_end(&writer, true, &bytes), KVF_OK);
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
    kvf_codec writer = kvf_writer_of(data, sizeof(data));
    kvf_code_varint(&writer, (uint64_t *)&rows[i].value);
    assert_int_equal(writer.at, rows[i].bytes);
    for (size_t bytes = 0; bytes <= rows[i].bytes; bytes++) {
      uint64_t read;
      uint8_t *copy = exact_copy(data, bytes);
      kvf_codec reader = kvf_reader_of(copy, bytes);
      kvf_code_varint(&reader, &read);
      assert_true(read == (bytes == rows[i].bytes ? rows[i].value : 0));
      assert_int_equal(reader.failed, bytes != rows[i].bytes);
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
    uint64_t read = 9;
    kvf_codec reader = kvf_reader_of(rows[i].data, rows[i].bytes);
    kvf_code_varint(&reader, &read);
    assert_int_equal(read, 0);
    assert_true(reader.failed);
  }
}
