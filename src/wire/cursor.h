/* Bounds-checked reading and writing of little-endian fields. Both sides have a sticky failure flag: write a message's
 * fields one after the other and look once, at the end. Nothing is allocated; the spans are the caller's.
 */
#ifndef KVF_WIRE_CURSOR_H
#define KVF_WIRE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

typedef struct kvf_decoder {
  const uint8_t *data;
  size_t bytes;
  size_t at;
  bool failed;
} kvf_decoder;

/* `data` may be NULL when `bytes` is 0. */
kvf_decoder kvf_decoder_of(const void *data, size_t bytes);

/* Bytes not read yet; 0 after a failure. */
size_t kvf_decoder_left(const kvf_decoder *decoder);

/* Marks the input as refused: what was read broke a rule. */
void kvf_decoder_fail(kvf_decoder *decoder);

/* KVF_OK if nothing failed and every byte was read, else KVF_PROTOCOL. */
KVF_MUST_USE kvf_status kvf_decoder_end(const kvf_decoder *decoder);
/* Likewise, and `value` must be `valid`: only then its bytes are copied to *out. */
KVF_MUST_USE kvf_status kvf_decoder_give(const kvf_decoder *decoder, bool valid, void *out, const void *value,
                                         size_t bytes);

/* These give 0 once the decoder has failed, or when too few bytes are left, which makes it fail. */
uint8_t kvf_get_u8(kvf_decoder *decoder);
uint16_t kvf_get_u16(kvf_decoder *decoder);
uint32_t kvf_get_u32(kvf_decoder *decoder);
uint64_t kvf_get_u64(kvf_decoder *decoder);
int32_t kvf_get_i32(kvf_decoder *decoder);

/* LEB128. Longer than needed, or more than 64 bits: fails, so that a number has one form. */
uint64_t kvf_get_varint(kvf_decoder *decoder);

/* Copies `bytes` bytes to `out`; zeros on failure. */
void kvf_get_bytes(kvf_decoder *decoder, void *out, size_t bytes);

/* A view of the next `bytes` bytes, good as long as the input; NULL on failure only. */
const uint8_t *kvf_get_span(kvf_decoder *decoder, size_t bytes);

typedef struct kvf_encoder {
  uint8_t *data;
  size_t capacity;
  size_t bytes; /* written */
  bool failed;
} kvf_encoder;

/* `data` may be NULL when `capacity` is 0. */
kvf_encoder kvf_encoder_of(void *data, size_t capacity);

/* KVF_OK and the bytes written, or KVF_LIMIT (*bytes unchanged): the capacity was too small. */
KVF_MUST_USE kvf_status kvf_encoder_end(const kvf_encoder *encoder, size_t *bytes);

/* These write nothing once the encoder has failed, or when too little room is left, which makes it fail. */
void kvf_put_u8(kvf_encoder *encoder, uint8_t value);
void kvf_put_u16(kvf_encoder *encoder, uint16_t value);
void kvf_put_u32(kvf_encoder *encoder, uint32_t value);
void kvf_put_u64(kvf_encoder *encoder, uint64_t value);
void kvf_put_i32(kvf_encoder *encoder, int32_t value);
void kvf_put_varint(kvf_encoder *encoder, uint64_t value);
void kvf_put_bytes(kvf_encoder *encoder, const void *data, size_t bytes);

#endif
