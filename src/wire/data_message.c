#include "wire/data_message.h"

#include <string.h>

#include "wire/fields.h"
#include "wire/frame.h"

#define LABEL_DATA_HELLO "kvferry data hello"
#define LABEL_DATA_READY "kvferry data ready"

_Static_assert(KVF_BLOCKS_PER_LEASE_MAX <= 65536, "positions travel in 16 bits");
/* Runs of ordered positions that cannot be joined have a gap between them; each group may begin one more. */
_Static_assert(KVF_DATA_READ_HEAD_BYTES + KVF_DATA_READ_RUN_BYTES * (KVF_BLOCKS_PER_LEASE_MAX / 2 + KVF_GROUPS_MAX) <=
                   KVF_FRAME_BODY_BYTES_MAX,
               "a read of a whole lease in order fits a frame");

kvf_status kvf_data_challenge_encode(const kvf_data_challenge *challenge, void *body, size_t capacity,
                                     size_t *body_bytes)
{
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_bytes(&encoder, challenge->nonce, sizeof(challenge->nonce));
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_data_challenge_decode(const void *body, size_t body_bytes, kvf_data_challenge *out)
{
  kvf_data_challenge challenge;
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  kvf_get_bytes(&decoder, challenge.nonce, sizeof(challenge.nonce));
  return kvf_decoder_give(&decoder, true, out, &challenge, sizeof(challenge));
}

static void put_hello_head(kvf_encoder *encoder, const kvf_data_hello *hello)
{
  kvf_put_u64(encoder, hello->session_id);
  kvf_put_bytes(encoder, hello->nonce, sizeof(hello->nonce));
}

kvf_status kvf_data_hello_encode(const kvf_data_hello *hello, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  put_hello_head(&encoder, hello);
  kvf_put_bytes(&encoder, hello->proof, sizeof(hello->proof));
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_data_hello_decode(const void *body, size_t body_bytes, kvf_data_hello *out)
{
  kvf_data_hello hello;
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  hello.session_id = kvf_get_u64(&decoder);
  kvf_get_bytes(&decoder, hello.nonce, sizeof(hello.nonce));
  kvf_get_bytes(&decoder, hello.proof, sizeof(hello.proof));
  return kvf_decoder_give(&decoder, true, out, &hello, sizeof(hello));
}

static kvf_status prove(const kvf_key *session_key, const char *label, const kvf_data_challenge *challenge,
                        const kvf_data_hello *hello, kvf_span more, uint8_t out[KVF_HASH_BYTES])
{
  uint8_t head[KVF_DATA_HELLO_BYTES_MAX - KVF_HASH_BYTES];
  kvf_encoder encoder = kvf_encoder_of(head, sizeof(head));
  put_hello_head(&encoder, hello);
  const kvf_span spans[] = {
      {label, strlen(label)}, {challenge->nonce, sizeof(challenge->nonce)}, {head, sizeof(head)}, more};
  return kvf_hmac(session_key, spans, sizeof(spans) / sizeof(spans[0]), out);
}

kvf_status kvf_data_hello_proof(const kvf_key *session_key, const kvf_data_challenge *challenge,
                                const kvf_data_hello *hello, uint8_t out[KVF_HASH_BYTES])
{
  return prove(session_key, LABEL_DATA_HELLO, challenge, hello, (kvf_span){hello->proof, 0}, out);
}

kvf_status kvf_data_ready_proof(const kvf_key *session_key, const kvf_data_challenge *challenge,
                                const kvf_data_hello *hello, uint8_t out[KVF_HASH_BYTES])
{
  return prove(session_key, LABEL_DATA_READY, challenge, hello, (kvf_span){hello->proof, sizeof(hello->proof)}, out);
}

kvf_status kvf_data_ready_encode(const kvf_data_ready *ready, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_bytes(&encoder, ready->proof, sizeof(ready->proof));
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_data_ready_decode(const void *body, size_t body_bytes, kvf_data_ready *out)
{
  kvf_data_ready ready;
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  kvf_get_bytes(&decoder, ready.proof, sizeof(ready.proof));
  return kvf_decoder_give(&decoder, true, out, &ready, sizeof(ready));
}

kvf_status kvf_data_chunk_encode(const kvf_data_chunk *chunk, void *body, size_t capacity, size_t *body_bytes)
{
  if (chunk->read_id == 0 || chunk->status > 0 || (chunk->status != KVF_OK && chunk->payload_bytes != 0)) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_u64(&encoder, chunk->read_id);
  kvf_put_i32(&encoder, chunk->status);
  kvf_put_u64(&encoder, chunk->payload_bytes);
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_data_chunk_decode(const void *body, size_t body_bytes, kvf_data_chunk *out)
{
  kvf_data_chunk chunk;
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  chunk.read_id = kvf_get_u64(&decoder);
  chunk.status = kvf_get_i32(&decoder);
  chunk.payload_bytes = kvf_get_u64(&decoder);
  bool valid = chunk.read_id != 0 && chunk.status <= 0 && (chunk.status == KVF_OK || chunk.payload_bytes == 0);
  return kvf_decoder_give(&decoder, valid, out, &chunk, sizeof(chunk));
}

kvf_status kvf_data_trailer_encode(const kvf_data_trailer *trailer, void *body, size_t capacity, size_t *body_bytes)
{
  if (trailer->read_id == 0) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_u64(&encoder, trailer->read_id);
  kvf_put_u64(&encoder, trailer->word);
  kvf_put_u64(&encoder, trailer->digest);
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_data_trailer_decode(const void *body, size_t body_bytes, kvf_data_trailer *out)
{
  kvf_data_trailer trailer;
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  trailer.read_id = kvf_get_u64(&decoder);
  trailer.word = kvf_get_u64(&decoder);
  trailer.digest = kvf_get_u64(&decoder);
  return kvf_decoder_give(&decoder, trailer.read_id != 0, out, &trailer, sizeof(trailer));
}

kvf_status kvf_data_cancel_encode(const kvf_data_cancel *cancel, void *body, size_t capacity, size_t *body_bytes)
{
  if (cancel->read_id == 0) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_u64(&encoder, cancel->read_id);
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_data_cancel_decode(const void *body, size_t body_bytes, kvf_data_cancel *out)
{
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  kvf_data_cancel cancel = {.read_id = kvf_get_u64(&decoder)};
  return kvf_decoder_give(&decoder, cancel.read_id != 0, out, &cancel, sizeof(cancel));
}
