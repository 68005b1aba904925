/* Bounds-checked little-endian fields. A codec reads or writes. So a message's fields are named once, in a function
 * that does both: a writing codec writes them, a reading codec sets them. Such a function takes its message without
 * const, and changes it only where the codec reads. A failure is sticky: code a message's fields one after the other
 * and look once, at the end. Nothing is allocated; the bytes are the caller's.
 */
#ifndef KVF_WIRE_CODEC_H
#define KVF_WIRE_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

typedef struct kvf_codec {
  uint8_t *data; /* never written to by one that reads */
  size_t bytes;  /* there are, or are room for */
  size_t at;     /* read or written */
  bool reads;
  bool failed;
} kvf_codec;

/* Both: `data` may be NULL when there are no bytes. */
kvf_codec kvf_reader_of(const void *data, size_t bytes);
kvf_codec kvf_writer_of(void *data, size_t capacity);

/* Bytes not read yet; 0 after a failure. */
size_t kvf_codec_left(const kvf_codec *codec);

/* What was read broke a rule. */
void kvf_codec_fail(kvf_codec *codec);

/* KVF_OK if nothing failed, every byte was read, and what they said is `valid`; else KVF_PROTOCOL. */
KVF_MUST_USE kvf_status kvf_reader_end(const kvf_codec *codec, bool valid);
/* KVF_OK and the bytes written; else *bytes is unchanged. KVF_INVALID: what was written is not `valid`. KVF_LIMIT: the
 * capacity was too small. */
KVF_MUST_USE kvf_status kvf_writer_end(const kvf_codec *codec, bool valid, size_t *bytes);

/* Once the codec has failed, or where too few bytes are left, which makes it fail, these write nothing and read 0. */
void kvf_code_u8(kvf_codec *codec, uint8_t *value);
void kvf_code_u16(kvf_codec *codec, uint16_t *value);
void kvf_code_u32(kvf_codec *codec, uint32_t *value);
void kvf_code_u64(kvf_codec *codec, uint64_t *value);
void kvf_code_i32(kvf_codec *codec, int32_t *value);
/* A number that travels in 1 or 2 bytes, and fits them. */
void kvf_code_u32_in(kvf_codec *codec, uint32_t *value, size_t bytes);
/* LEB128. Longer than needed, or more than 64 bits: fails, so that a number has one form. */
void kvf_code_varint(kvf_codec *codec, uint64_t *value);
void kvf_code_bytes(kvf_codec *codec, void *data, size_t bytes);

/* Writing alone. */
void kvf_put_bytes(kvf_codec *codec, const void *data, size_t bytes);
/* Reading alone: a view of the next `bytes` bytes, good as long as the input; NULL on failure only. */
const uint8_t *kvf_get_span(kvf_codec *codec, size_t bytes);

#endif
