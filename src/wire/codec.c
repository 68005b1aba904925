/* Takes bytes from a buffer, in either direction, until the first that is not there. */
#include "wire/codec.h"

#include <string.h>

#define VARINT_BYTES_MAX 10

static const uint8_t nothing; /* where no bytes are read or written */

kvf_codec kvf_reader_of(const void *data, size_t bytes)
{
  return (kvf_codec){.data = (uint8_t *)(data != NULL ? data : &nothing), .bytes = bytes, .reads = true};
}

kvf_codec kvf_writer_of(void *data, size_t capacity)
{
  return (kvf_codec){.data = data != NULL ? data : (void *)&nothing, .bytes = capacity};
}

size_t kvf_codec_left(const kvf_codec *codec)
{
  return codec->failed ? 0 : codec->bytes - codec->at;
}

void kvf_codec_fail(kvf_codec *codec)
{
  codec->failed = true;
}

kvf_status kvf_reader_end(const kvf_codec *codec, bool valid)
{
  return !codec->failed && codec->at == codec->bytes && valid ? KVF_OK : KVF_PROTOCOL;
}

kvf_status kvf_writer_end(const kvf_codec *codec, bool valid, size_t *bytes)
{
  if (!valid || codec->failed) {
    return valid ? KVF_LIMIT : KVF_INVALID;
  }
  *bytes = codec->at;
  return KVF_OK;
}

/* The next bytes to be read or written; NULL on failure only. */
static uint8_t *take(kvf_codec *codec, size_t bytes)
{
  if (codec->failed || bytes > codec->bytes - codec->at) {
    codec->failed = true;
    return NULL;
  }
  uint8_t *taken = codec->data + codec->at;
  codec->at += bytes;
  return taken;
}

const uint8_t *kvf_get_span(kvf_codec *codec, size_t bytes)
{
  return take(codec, bytes);
}

void kvf_put_bytes(kvf_codec *codec, const void *data, size_t bytes)
{
  uint8_t *out = take(codec, bytes);
  if (out != NULL && bytes > 0) {
    memcpy(out, data, bytes);
  }
}

void kvf_code_bytes(kvf_codec *codec, void *data, size_t bytes)
{
  if (!codec->reads) {
    kvf_put_bytes(codec, data, bytes);
    return;
  }
  const uint8_t *in = take(codec, bytes);
  if (in == NULL) {
    memset(data, 0, bytes);
  } else if (bytes > 0) {
    memcpy(data, in, bytes);
  }
}

/* Returns what was read, or else the value. */
static uint64_t code_number(kvf_codec *codec, uint64_t value, size_t bytes)
{
  uint8_t *at = take(codec, bytes);
  uint64_t read = 0;
  for (size_t i = 0; at != NULL && i < bytes; i++) {
    if (codec->reads) {
      read |= (uint64_t)at[i] << (8 * i);
    } else {
      at[i] = (uint8_t)(value >> (8 * i));
    }
  }
  return codec->reads ? read : value;
}

void kvf_code_u8(kvf_codec *codec, uint8_t *value)
{
  const uint64_t number = code_number(codec, *value, sizeof(*value));
  if (codec->reads) {
    *value = (uint8_t)number;
  }
}

void kvf_code_u16(kvf_codec *codec, uint16_t *value)
{
  const uint64_t number = code_number(codec, *value, sizeof(*value));
  if (codec->reads) {
    *value = (uint16_t)number;
  }
}

void kvf_code_u32_in(kvf_codec *codec, uint32_t *value, size_t bytes)
{
  const uint64_t number = code_number(codec, *value, bytes);
  if (codec->reads) {
    *value = (uint32_t)number;
  }
}

void kvf_code_u32(kvf_codec *codec, uint32_t *value)
{
  kvf_code_u32_in(codec, value, sizeof(*value));
}

void kvf_code_u64(kvf_codec *codec, uint64_t *value)
{
  const uint64_t number = code_number(codec, *value, sizeof(*value));
  if (codec->reads) {
    *value = number;
  }
}

void kvf_code_i32(kvf_codec *codec, int32_t *value)
{
  kvf_code_u32(codec, (uint32_t *)value);
}

static uint64_t read_varint(kvf_codec *codec)
{
  uint64_t value = 0;
  for (unsigned i = 0; i < VARINT_BYTES_MAX; i++) {
    uint8_t byte = (uint8_t)code_number(codec, 0, 1);
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
  codec->failed = true;
  return 0;
}

void kvf_code_varint(kvf_codec *codec, uint64_t *value)
{
  if (codec->reads) {
    *value = read_varint(codec);
    return;
  }
  uint64_t rest = *value;
  for (; rest >= 0x80u; rest >>= 7) {
    (void)code_number(codec, rest | 0x80u, 1);
  }
  (void)code_number(codec, rest, 1);
}
