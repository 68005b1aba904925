#include "wire/find_message.h"

#include <assert.h>
#include <string.h>

#include "wire/codec.h"
#include "wire/frame.h"

_Static_assert(KVF_FOUND_BYTES_MAX <= KVF_FRAME_BODY_BYTES_MAX, "every answer fits a frame");

#define LABEL_PROMPT "kvferry find prompt"
#define NAME_SPANS_MAX 3

static void code_find(kvf_codec *codec, kvf_find *find)
{
  kvf_code_u64(codec, &find->id);
  kvf_code_bytes(codec, find->tag, sizeof(find->tag));
}

kvf_status kvf_find_encode(const kvf_find *find, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_find(&codec, (kvf_find *)find);
  return kvf_writer_end(&codec, true, body_bytes);
}

kvf_status kvf_find_decode(const void *body, size_t body_bytes, kvf_find *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_find(&codec, out);
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

kvf_status kvf_find_tag(const kvf_mac *mac, const char *label, const kvf_span *name, size_t spans,
                        uint8_t out[KVF_HASH_BYTES])
{
  assert(spans <= NAME_SPANS_MAX);
  kvf_span all[1 + NAME_SPANS_MAX] = {{label, strlen(label) + 1}}; /* with its end: no label begins another one */
  memcpy(&all[1], name, spans * sizeof(all[0]));
  return kvf_mac_make(mac, all, 1 + spans, out);
}

kvf_status kvf_find_prompt_tag(const kvf_mac *mac, const kvf_prompt *prompt, uint8_t out[KVF_HASH_BYTES])
{
  uint8_t tokens[4];
  kvf_codec codec = kvf_writer_of(tokens, sizeof(tokens));
  uint32_t count = prompt->tokens;
  kvf_code_u32(&codec, &count);
  const kvf_span name[] = {
      {prompt->hash, sizeof(prompt->hash)}, {prompt->model, sizeof(prompt->model)}, {tokens, sizeof(tokens)}};
  return kvf_find_tag(mac, LABEL_PROMPT, name, sizeof(name) / sizeof(name[0]), out);
}
