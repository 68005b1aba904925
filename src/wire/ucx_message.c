#include "wire/ucx_message.h"

#include "wire/cursor.h"
#include "wire/fields.h"

void kvf_ucx_ask_write(const kvf_ucx_ask *ask, uint8_t out[KVF_UCX_ASK_BYTES])
{
  kvf_encoder encoder = kvf_encoder_of(out, KVF_UCX_ASK_BYTES);
  kvf_put_u64(&encoder, ask->token);
  kvf_put_u32(&encoder, ask->memory);
  kvf_put_u32(&encoder, ask->slot);
  kvf_put_u64(&encoder, ask->offset);
  kvf_put_u64(&encoder, ask->word);
  kvf_put_u32(&encoder, ask->bytes);
}

static bool is_look(const kvf_ucx_ask *ask)
{
  return ask->memory == KVF_UCX_MEMORY_TABLE && ask->bytes == 0;
}

/* Bytes are given for a live lease only. */
static bool is_for_bytes(const kvf_ucx_ask *ask)
{
  return ask->memory != KVF_UCX_MEMORY_TABLE && ask->bytes > 0 && ask->bytes <= KVF_UCX_ANSWER_DATA_BYTES_MAX &&
         ask->slot != KVF_UCX_SLOT_NONE && (ask->word & 1) == 1;
}

kvf_status kvf_ucx_ask_read(const void *data, size_t bytes, kvf_ucx_ask *out)
{
  kvf_decoder decoder = kvf_decoder_of(data, bytes);
  out->token = kvf_get_u64(&decoder);
  out->memory = kvf_get_u32(&decoder);
  out->slot = kvf_get_u32(&decoder);
  out->offset = kvf_get_u64(&decoder);
  out->word = kvf_get_u64(&decoder);
  out->bytes = kvf_get_u32(&decoder);
  if (!is_look(out) && !is_for_bytes(out)) {
    kvf_decoder_fail(&decoder);
  }
  return kvf_decoder_end(&decoder);
}

void kvf_ucx_answer_write(const kvf_ucx_answer *answer, uint8_t out[KVF_UCX_ANSWER_BYTES])
{
  kvf_encoder encoder = kvf_encoder_of(out, KVF_UCX_ANSWER_BYTES);
  kvf_put_u64(&encoder, answer->token);
  kvf_put_u32(&encoder, (uint32_t)answer->kind);
  kvf_put_u32(&encoder, answer->bytes);
  kvf_put_u64(&encoder, answer->sample.head.magic);
  kvf_put_incarnation(&encoder, &answer->sample.head.incarnation);
  kvf_put_u64(&encoder, answer->sample.head.slots);
  kvf_put_u64(&encoder, answer->sample.entry.word);
  kvf_put_u64(&encoder, answer->sample.entry.digest);
}

kvf_status kvf_ucx_answer_read(const void *data, size_t bytes, kvf_ucx_answer *out)
{
  kvf_decoder decoder = kvf_decoder_of(data, bytes);
  out->token = kvf_get_u64(&decoder);
  uint32_t kind = kvf_get_u32(&decoder);
  out->kind = (kvf_ucx_answer_kind)kind;
  out->bytes = kvf_get_u32(&decoder);
  out->sample.head.magic = kvf_get_u64(&decoder);
  kvf_get_incarnation(&decoder, &out->sample.head.incarnation);
  out->sample.head.slots = kvf_get_u64(&decoder);
  out->sample.entry.word = kvf_get_u64(&decoder);
  out->sample.entry.digest = kvf_get_u64(&decoder);
  bool has_bytes = kind == KVF_UCX_ANSWER_DATA;
  if (kind > KVF_UCX_ANSWER_DATA || (out->bytes > 0) != has_bytes || out->bytes > KVF_UCX_ANSWER_DATA_BYTES_MAX) {
    kvf_decoder_fail(&decoder);
  }
  return kvf_decoder_end(&decoder);
}

kvf_status kvf_ucx_answers_take_last(const uint8_t *data, size_t *bytes, kvf_ucx_answer *out)
{
  if (*bytes < KVF_UCX_ANSWER_BYTES) {
    return KVF_PROTOCOL;
  }
  *bytes -= KVF_UCX_ANSWER_BYTES;
  kvf_status status = kvf_ucx_answer_read(data + *bytes, KVF_UCX_ANSWER_BYTES, out);
  if (status != KVF_OK || out->bytes > *bytes) {
    return KVF_PROTOCOL;
  }
  *bytes -= out->bytes;
  return KVF_OK;
}
