#include "wire/ucx_message.h"

#include "base/mark.h"
#include "wire/cursor.h"

void kvf_ucx_ask_write(const kvf_ucx_ask *ask, uint8_t out[KVF_UCX_ASK_BYTES])
{
  kvf_encoder encoder;
  kvf_encoder_init(&encoder, out, KVF_UCX_ASK_BYTES);
  kvf_put_u64(&encoder, ask->token);
  kvf_put_u32(&encoder, ask->memory);
  kvf_put_u32(&encoder, ask->bytes);
  kvf_put_u64(&encoder, ask->offset);
}

kvf_status kvf_ucx_ask_read(const void *data, size_t bytes, kvf_ucx_ask *out)
{
  kvf_decoder decoder;
  kvf_decoder_init(&decoder, data, bytes);
  out->token = kvf_get_u64(&decoder);
  out->memory = kvf_get_u32(&decoder);
  out->bytes = kvf_get_u32(&decoder);
  out->offset = kvf_get_u64(&decoder);
  if (out->bytes == 0 || out->bytes > KVF_UCX_ANSWER_DATA_BYTES_MAX) {
    KVF_MARK(ucx_ask_of_bad_length);
    kvf_decoder_fail(&decoder);
  }
  return kvf_decoder_end(&decoder);
}

void kvf_ucx_answer_write(const kvf_ucx_answer *answer, uint8_t out[KVF_UCX_ANSWER_BYTES])
{
  kvf_encoder encoder;
  kvf_encoder_init(&encoder, out, KVF_UCX_ANSWER_BYTES);
  kvf_put_u64(&encoder, answer->token);
  kvf_put_u32(&encoder, answer->is_refused ? 1 : 0);
}

kvf_status kvf_ucx_answer_read(const void *data, size_t bytes, kvf_ucx_answer *out)
{
  kvf_decoder decoder;
  kvf_decoder_init(&decoder, data, bytes);
  out->token = kvf_get_u64(&decoder);
  uint32_t refused = kvf_get_u32(&decoder);
  out->is_refused = refused != 0;
  if (refused > 1) {
    KVF_MARK(ucx_answer_of_no_kind);
    kvf_decoder_fail(&decoder);
  }
  return kvf_decoder_end(&decoder);
}
