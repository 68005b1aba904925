/* FIND and FOUND as bytes, and the rule that an answer has a ticket's text or says that there is none. */
#include "wire/find_message.h"

#include <assert.h>

#include "wire/codec.h"
#include "wire/frame.h"

_Static_assert(KVF_FOUND_BYTES_MAX <= KVF_FRAME_BODY_BYTES_MAX, "every answer fits a frame");

static void code_question(kvf_codec *codec, kvf_find_question *question)
{
  kvf_code_u64(codec, &question->id);
  kvf_code_bytes(codec, question->key, sizeof(question->key));
}

kvf_status kvf_find_question_encode(const kvf_find_question *question, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_question(&codec, (kvf_find_question *)question);
  return kvf_writer_end(&codec, true, body_bytes);
}

kvf_status kvf_find_question_decode(const void *body, size_t body_bytes, kvf_find_question *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_question(&codec, out);
  return kvf_reader_end(&codec, true);
}

static bool is_valid(const kvf_found *found)
{
  return found->status == KVF_FOUND_TICKET ? found->text_bytes > 0 && found->text_bytes <= KVF_TICKET_BYTES_MAX
                                           : found->status == KVF_FOUND_NOTHING && found->text_bytes == 0;
}

static void code_head(kvf_codec *codec, kvf_found *found)
{
  kvf_code_u64(codec, &found->id);
  kvf_code_u8(codec, &found->status);
}

kvf_status kvf_found_encode(const kvf_found *found, void *body, size_t capacity, size_t *body_bytes)
{
  const bool valid = is_valid(found);
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_head(&codec, (kvf_found *)found);
  kvf_put_bytes(&codec, found->text, valid ? found->text_bytes : 0);
  return kvf_writer_end(&codec, valid, body_bytes);
}

kvf_status kvf_found_decode(const void *body, size_t body_bytes, kvf_found *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_head(&codec, out);
  out->text_bytes = kvf_codec_left(&codec);
  out->text = (const char *)kvf_get_span(&codec, out->text_bytes);
  return kvf_reader_end(&codec, is_valid(out));
}
