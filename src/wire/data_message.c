/* All messages of a data connection but for READ, their rules, and the proofs in HELLO and READY. */
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
  kvf_codec codec = kvf_writer_of(body, capacity);
  kvf_put_bytes(&codec, challenge->nonce, sizeof(challenge->nonce));
  return kvf_writer_end(&codec, true, body_bytes);
}

kvf_status kvf_data_challenge_decode(const void *body, size_t body_bytes, kvf_data_challenge *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  kvf_code_bytes(&codec, out->nonce, sizeof(out->nonce));
  return kvf_reader_end(&codec, true);
}

static void code_hello_head(kvf_codec *codec, kvf_data_hello *hello)
{
  kvf_code_u64(codec, &hello->session_id);
  kvf_code_u64(codec, &hello->generation);
  kvf_code_bytes(codec, hello->nonce, sizeof(hello->nonce));
}

static void code_hello(kvf_codec *codec, kvf_data_hello *hello)
{
  code_hello_head(codec, hello);
  kvf_code_bytes(codec, hello->proof, sizeof(hello->proof));
}

kvf_status kvf_data_hello_encode(const kvf_data_hello *hello, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_hello(&codec, (kvf_data_hello *)hello);
  return kvf_writer_end(&codec, true, body_bytes);
}

kvf_status kvf_data_hello_decode(const void *body, size_t body_bytes, kvf_data_hello *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_hello(&codec, out);
  return kvf_reader_end(&codec, true);
}

static kvf_status prove(const kvf_key *session_key, const char *label, const kvf_data_challenge *challenge,
                        const kvf_data_hello *hello, kvf_span more, uint8_t out[KVF_HASH_BYTES])
{
  uint8_t head[KVF_DATA_HELLO_BYTES_MAX - KVF_HASH_BYTES];
  kvf_codec codec = kvf_writer_of(head, sizeof(head));
  code_hello_head(&codec, (kvf_data_hello *)hello);
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
  kvf_codec codec = kvf_writer_of(body, capacity);
  kvf_put_bytes(&codec, ready->proof, sizeof(ready->proof));
  return kvf_writer_end(&codec, true, body_bytes);
}

kvf_status kvf_data_ready_decode(const void *body, size_t body_bytes, kvf_data_ready *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  kvf_code_bytes(&codec, out->proof, sizeof(out->proof));
  return kvf_reader_end(&codec, true);
}

static bool chunk_is_valid(const kvf_data_chunk *chunk)
{
  return chunk->read_id != 0 && chunk->status <= 0 && (chunk->status == KVF_OK || chunk->payload_bytes == 0);
}

static void code_chunk(kvf_codec *codec, kvf_data_chunk *chunk)
{
  kvf_code_u64(codec, &chunk->read_id);
  kvf_code_i32(codec, &chunk->status);
  kvf_code_u64(codec, &chunk->payload_bytes);
}

kvf_status kvf_data_chunk_encode(const kvf_data_chunk *chunk, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_chunk(&codec, (kvf_data_chunk *)chunk);
  return kvf_writer_end(&codec, chunk_is_valid(chunk), body_bytes);
}

kvf_status kvf_data_chunk_decode(const void *body, size_t body_bytes, kvf_data_chunk *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_chunk(&codec, out);
  return kvf_reader_end(&codec, chunk_is_valid(out));
}

static void code_trailer(kvf_codec *codec, kvf_data_trailer *trailer)
{
  kvf_code_u64(codec, &trailer->read_id);
  kvf_code_u64(codec, &trailer->word);
  kvf_code_u64(codec, &trailer->digest);
}

kvf_status kvf_data_trailer_encode(const kvf_data_trailer *trailer, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_trailer(&codec, (kvf_data_trailer *)trailer);
  return kvf_writer_end(&codec, trailer->read_id != 0, body_bytes);
}

kvf_status kvf_data_trailer_decode(const void *body, size_t body_bytes, kvf_data_trailer *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_trailer(&codec, out);
  return kvf_reader_end(&codec, out->read_id != 0);
}

kvf_status kvf_data_cancel_encode(const kvf_data_cancel *cancel, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  kvf_code_u64(&codec, &((kvf_data_cancel *)cancel)->read_id);
  return kvf_writer_end(&codec, cancel->read_id != 0, body_bytes);
}

kvf_status kvf_data_cancel_decode(const void *body, size_t body_bytes, kvf_data_cancel *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  kvf_code_u64(&codec, &out->read_id);
  return kvf_reader_end(&codec, out->read_id != 0);
}
