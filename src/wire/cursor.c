#include "wire/cursor.h"

#include <string.h>

#define VARINT_BYTES_MAX 10

static const uint8_t nothing;

kvf_decoder kvf_decoder_of(const void *data, size_t bytes)
{
  return (kvf_decoder){.data = data != NULL ? data : &nothing, .bytes = bytes};
}

size_t kvf_decoder_left(const kvf_decoder *decoder)
{
  return decoder->failed ? 0 : decoder->bytes - decoder->at;
}

void kvf_decoder_fail(kvf_decoder *decoder)
{
  decoder->failed = true;
}

kvf_status kvf_decoder_end(const kvf_decoder *decoder)
{
  return !decoder->failed && decoder->at == decoder->bytes ? KVF_OK : KVF_PROTOCOL;
}

kvf_status kvf_decoder_give(const kvf_decoder *decoder, bool valid, void *out, const void *value, size_t bytes)
{
  if (kvf_decoder_end(decoder) != KVF_OK || !valid) {
    return KVF_PROTOCOL;
  }
  memcpy(out, value, bytes);
  return KVF_OK;
}

const uint8_t *kvf_get_span(kvf_decoder *decoder, size_t bytes)
{
  if (decoder->failed || bytes > decoder->bytes - decoder->at) {
    decoder->failed = true;
    return NULL;
  }
  const uint8_t *span = decoder->data + decoder->at;
  decoder->at += bytes;
  return span;
}

static uint64_t get_number(kvf_decoder *decoder, size_t bytes)
{
  const uint8_t *span = kvf_get_span(decoder, bytes);
  uint64_t value = 0;
  for (size_t i = 0; span != NULL && i < bytes; i++) {
    value |= (uint64_t)span[i] << (8 * i);
  }
  return value;
}

uint8_t kvf_get_u8(kvf_decoder *decoder)
{
  return (uint8_t)get_number(decoder, 1);
}

uint16_t kvf_get_u16(kvf_decoder *decoder)
{
  return (uint16_t)get_number(decoder, 2);
}

uint32_t kvf_get_u32(kvf_decoder *decoder)
{
  return (uint32_t)get_number(decoder, 4);
}

uint64_t kvf_get_u64(kvf_decoder *decoder)
{
  return get_number(decoder, 8);
}

int32_t kvf_get_i32(kvf_decoder *decoder)
{
  return (int32_t)kvf_get_u32(decoder);
}

uint64_t kvf_get_varint(kvf_decoder *decoder)
{
  uint64_t value = 0;
  for (unsigned i = 0; i < VARINT_BYTES_MAX; i++) {
    uint8_t byte = kvf_get_u8(decoder);
    value |= (uint64_t)(byte & 0x7fu) << (7 * i);
    if ((byte & 0x80u) == 0) {
      bool too_long = i > 0 && byte == 0;
      bool too_large = i == VARINT_BYTES_MAX - 1 && byte > 1;
      if (too_long || too_large) {
        break;
      }
      return value;
    }
  }
  decoder->failed = true;
  return 0;
}

void kvf_get_bytes(kvf_decoder *decoder, void *out, size_t bytes)
{
  const uint8_t *span = kvf_get_span(decoder, bytes);
  if (span == NULL) {
    memset(out, 0, bytes);
  } else {
    memcpy(out, span, bytes);
  }
}

kvf_encoder kvf_encoder_of(void *data, size_t capacity)
{
  return (kvf_encoder){.data = data, .capacity = capacity};
}

kvf_status kvf_encoder_end(const kvf_encoder *encoder, size_t *bytes)
{
  if (encoder->failed) {
    return KVF_LIMIT;
  }
  *bytes = encoder->bytes;
  return KVF_OK;
}

void kvf_put_bytes(kvf_encoder *encoder, const void *data, size_t bytes)
{
  if (encoder->failed || bytes > encoder->capacity - encoder->bytes) {
    encoder->failed = true;
    return;
  }
  if (bytes > 0) {
    memcpy(encoder->data + encoder->bytes, data, bytes);
    encoder->bytes += bytes;
  }
}

static void put_number(kvf_encoder *encoder, uint64_t value, size_t bytes)
{
  uint8_t data[sizeof(value)];
  for (size_t i = 0; i < bytes; i++) {
    data[i] = (uint8_t)(value >> (8 * i));
  }
  kvf_put_bytes(encoder, data, bytes);
}

void kvf_put_u8(kvf_encoder *encoder, uint8_t value)
{
  put_number(encoder, value, 1);
}

void kvf_put_u16(kvf_encoder *encoder, uint16_t value)
{
  put_number(encoder, value, 2);
}

void kvf_put_u32(kvf_encoder *encoder, uint32_t value)
{
  put_number(encoder, value, 4);
}

void kvf_put_u64(kvf_encoder *encoder, uint64_t value)
{
  put_number(encoder, value, 8);
}

void kvf_put_i32(kvf_encoder *encoder, int32_t value)
{
  kvf_put_u32(encoder, (uint32_t)value);
}

void kvf_put_varint(kvf_encoder *encoder, uint64_t value)
{
  while (value >= 0x80u) {
    kvf_put_u8(encoder, (uint8_t)(value | 0x80u));
    value >>= 7;
  }
  kvf_put_u8(encoder, (uint8_t)value);
}
