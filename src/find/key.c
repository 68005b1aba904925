/* Keys of each kind, and their seals. */
#include "find/key.h"

#include <string.h>

#include "wire/codec.h"

/* What is sealed with a key's bytes: no kind's key has the seal of another's. */
static const char *const labels[] = {[KVF_FIND_BY_PROMPT] = "kvferry find prompt"};

_Static_assert(sizeof(((kvf_prompt *)NULL)->hash) + sizeof(((kvf_prompt *)NULL)->model) + sizeof(uint32_t) <=
                   KVF_FIND_KEY_BYTES_MAX,
               "a prompt fits into a key");

kvf_find_key kvf_find_key_of_prompt(const kvf_prompt *prompt)
{
  kvf_find_key key = {.kind = KVF_FIND_BY_PROMPT};
  kvf_codec codec = kvf_writer_of(key.data, sizeof(key.data));
  uint32_t tokens = prompt->tokens;
  kvf_put_bytes(&codec, prompt->hash, sizeof(prompt->hash));
  kvf_put_bytes(&codec, prompt->model, sizeof(prompt->model));
  kvf_code_u32(&codec, &tokens);
  key.bytes = sizeof(prompt->hash) + sizeof(prompt->model) + sizeof(tokens);
  return key;
}

kvf_status kvf_find_key_seal(const kvf_find_key *key, const kvf_mac *mac, uint8_t out[KVF_HASH_BYTES])
{
  const char *label = labels[key->kind];
  const kvf_span spans[] = {{label, strlen(label) + 1}, {key->data, key->bytes}}; /* no label begins another one */
  return kvf_mac_make(mac, spans, sizeof(spans) / sizeof(spans[0]), out);
}

bool kvf_find_key_fits(const kvf_find_key *key, const kvf_ticket *ticket)
{
  const kvf_find_key own = kvf_find_key_of_prompt(&ticket->prompt);
  return key->kind == own.kind && key->bytes == own.bytes && memcmp(key->data, own.data, own.bytes) == 0;
}
