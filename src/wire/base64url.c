#include "wire/base64url.h"

#include "base/mark.h"

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

static uint32_t value_of(char c)
{
  if (c >= 'A' && c <= 'Z') {
    return (uint32_t)(c - 'A');
  }
  if (c >= 'a' && c <= 'z') {
    return (uint32_t)(c - 'a') + 26;
  }
  if (c >= '0' && c <= '9') {
    return (uint32_t)(c - '0') + 52;
  }
  return c == '-' ? 62 : c == '_' ? 63 : 64;
}

bool kvf_base64url_decode(const char *text, size_t text_bytes, uint8_t *data)
{
  if (text_bytes % 4 == 1) {
    KVF_MARK(base64_length_impossible);
    return false;
  }
  while (text_bytes > 0) {
    size_t taken = text_bytes < 4 ? text_bytes : 4;
    uint32_t bits = 0;
    for (size_t i = 0; i < taken; i++) {
      uint32_t value = value_of(text[i]);
      if (value > 63) {
        KVF_MARK(base64_character_unknown);
        return false;
      }
      bits |= value << (18 - 6 * i);
    }
    for (size_t i = 0; i + 1 < taken; i++) {
      data[i] = (uint8_t)(bits >> (16 - 8 * i));
    }
    /* The bits after the last byte. */
    if ((bits & ((UINT32_C(1) << (24 - 8 * (taken - 1))) - 1)) != 0) {
      KVF_MARK(base64_bits_left_over);
      return false;
    }
    text += taken;
    text_bytes -= taken;
    data += taken - 1;
  }
  return true;
}
