/* Headers of frames as bytes, their types and limits. */
#include "wire/frame.h"

#include "wire_test.h"

TEST(test_known_bytes)
{
  uint8_t data[KVF_FRAME_HEADER_BYTES];
  kvf_frame_header_encode(KVF_FRAME_PING, 0x010203, data);
  assert_memory_equal(data, "\x03\x02\x01\x00\x08\x00\x00\x00", sizeof(data));
}

static const char *name_of(unsigned type)
{
  return kvf_frame_type_name((kvf_frame_type)type); /* NOLINT: what is not in the enum is meant */
}

TEST(test_every_type)
{
  for (unsigned type = 0; type < 256; type++) {
    uint8_t data[KVF_FRAME_HEADER_BYTES] = {5, 0, 0, 0, (uint8_t)type};
    kvf_frame_header header = {.body_bytes = 77};
    bool known = strcmp(name_of(type), "unknown") != 0;
    if (known != ((type >= 1 && type <= 11) || (type >= 16 && type <= 22))) {
      fail_msg("frame type %u is \"%s\": this test lists the known ones otherwise", type, name_of(type));
    }
    assert_int_equal(kvf_frame_header_decode(data, KVF_FRAME_BODY_BYTES_MAX, &header), known ? KVF_OK : KVF_PROTOCOL);
    assert_int_equal(header.body_bytes, known ? 5 : 77);
    if (known) {
      uint8_t again[KVF_FRAME_HEADER_BYTES];
      assert_int_equal(header.type, type);
      kvf_frame_header_encode(header.type, header.body_bytes, again);
      assert_memory_equal(again, data, sizeof(data));
    }
  }
}

TEST(test_limits)
{
  static const uint32_t limits[] = {KVF_FRAME_BODY_BYTES_MAX, KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX};
  for (size_t i = 0; i < 2; i++) {
    for (uint32_t over = 0; over < 2; over++) {
      uint32_t bytes = limits[i] + over;
      uint8_t data[KVF_FRAME_HEADER_BYTES] = {(uint8_t)bytes, (uint8_t)(bytes >> 8), (uint8_t)(bytes >> 16), 0, 1};
      kvf_frame_header header;
      assert_int_equal(kvf_frame_header_decode(data, limits[i], &header), over ? KVF_PROTOCOL : KVF_OK);
    }
  }
  kvf_frame_header header;
  static const uint8_t huge[KVF_FRAME_HEADER_BYTES] = {255, 255, 255, 255, 1};
  assert_int_equal(kvf_frame_header_decode(huge, KVF_FRAME_BODY_BYTES_MAX, &header), KVF_PROTOCOL);
}

TEST(test_reserved_fields)
{
  for (unsigned bit = 40; bit < 64; bit++) {
    uint8_t data[KVF_FRAME_HEADER_BYTES] = {0, 0, 0, 0, KVF_FRAME_PING};
    kvf_frame_header header;
    data[bit / 8] = (uint8_t)(1u << bit % 8);
    assert_int_equal(kvf_frame_header_decode(data, KVF_FRAME_BODY_BYTES_MAX, &header), KVF_PROTOCOL);
  }
}
