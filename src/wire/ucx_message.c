/* Asks and answers of fixed length, and the rule which of them come with bytes. */
#include "wire/ucx_message.h"

#include "wire/fields.h"

static void code_ask(kvf_codec *codec, kvf_ucx_ask *ask)
{
  kvf_code_u64(codec, &ask->token);
  kvf_code_u32(codec, &ask->memory);
  kvf_code_u32(codec, &ask->slot);
  kvf_code_u64(codec, &ask->offset);
  kvf_code_u64(codec, &ask->word);
  kvf_code_u32(codec, &ask->bytes);
}

void kvf_ucx_ask_write(const kvf_ucx_ask *ask, uint8_t out[KVF_UCX_ASK_BYTES])
{
  kvf_codec codec = kvf_writer_of(out, KVF_UCX_ASK_BYTES);
  code_ask(&codec, (kvf_ucx_ask *)ask);
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
  kvf_codec codec = kvf_reader_of(data, bytes);
  code_ask(&codec, out);
  return kvf_reader_end(&codec, is_look(out) || is_for_bytes(out));
}

static void code_answer(kvf_codec *codec, kvf_ucx_answer *answer)
{
  kvf_code_u64(codec, &answer->token);
  kvf_code_u32(codec, (uint32_t *)&answer->kind);
  kvf_code_u32(codec, &answer->bytes);
  kvf_code_u64(codec, &answer->sample.head.magic);
  kvf_code_incarnation(codec, &answer->sample.head.incarnation);
  kvf_code_u64(codec, &answer->sample.head.slots);
  kvf_code_u64(codec, &answer->sample.head.generation);
  kvf_code_u64(codec, &answer->sample.entry.word);
  kvf_code_u64(codec, &answer->sample.entry.digest);
}

void kvf_ucx_answer_write(const kvf_ucx_answer *answer, uint8_t out[KVF_UCX_ANSWER_BYTES])
{
  kvf_codec codec = kvf_writer_of(out, KVF_UCX_ANSWER_BYTES);
  code_answer(&codec, (kvf_ucx_answer *)answer);
}

kvf_status kvf_ucx_answer_read(const void *data, size_t bytes, kvf_ucx_answer *out)
{
  kvf_codec codec = kvf_reader_of(data, bytes);
  *out = (kvf_ucx_answer){0};
  code_answer(&codec, out);
  const bool has_bytes = out->kind == KVF_UCX_ANSWER_DATA;
  return kvf_reader_end(&codec, out->kind <= KVF_UCX_ANSWER_DATA && (out->bytes > 0) == has_bytes &&
                                    out->bytes <= KVF_UCX_ANSWER_DATA_BYTES_MAX);
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
