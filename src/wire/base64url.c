/* Three bytes to four characters and back, in place if wanted. */
#include "wire/base64url.h"

static const char alphabet[64] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

void kvf_base64url_encode(const uint8_t *data, size_t bytes, char *text)
{
  while (bytes > 0) {
    size_t taken = bytes < 3 ? bytes : 3;
    /* Read before writing: the text may grow into the data. */
    uint32_t bits = (uint32_t)data[0] << 16 | (taken > 1 ? (uint32_t)data[1] << 8 : 0) | (taken > 2 ? data[2] : 0);
    for (size_t i = 0; i <= taken; i++) {
      text[i] = alphabet[bits >> (18 - 6 * i) & 63];
    }
    data += taken;
    bytes -= taken;
    text += taken + 1;
  }
}

#define UNKNOWN 64

/* Each ASCII character's place in the alphabet. */
static const uint8_t values[128] = {
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64,
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 62, 64, 64, 52, 53, 54, 55,
    56, 57, 58, 59, 60, 61, 64, 64, 64, 64, 64, 64, 64, 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
    13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 64, 64, 64, 64, 63, 64, 26, 27, 28, 29, 30, 31, 32,
    33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 64, 64, 64, 64, 64,
};

static uint32_t value_of(char c)
{
  unsigned char at = (unsigned char)c;
  return at < sizeof(values) ? values[at] : UNKNOWN;
}

bool kvf_base64url_decode(const char *text, size_t text_bytes, uint8_t *data)
{
  if (text_bytes % 4 == 1) {
    return false;
  }
  while (text_bytes > 0) {
    size_t taken = text_bytes < 4 ? text_bytes : 4;
    uint32_t bits = 0;
    for (size_t i = 0; i < taken; i++) {
      uint32_t value = value_of(text[i]);
      if (value == UNKNOWN) {
        return false;
      }
      bits |= value << (18 - 6 * i);
    }
    for (size_t i = 0; i + 1 < taken; i++) {
      data[i] = (uint8_t)(bits >> (16 - 8 * i));
    }
    /* The bits after the last byte. */
    if ((bits & ((UINT32_C(1) << (24 - 8 * (taken - 1))) - 1)) != 0) {
      return false;
    }
    text += taken;
    text_bytes -= taken;
    data += taken - 1;
  }
  return true;
}
