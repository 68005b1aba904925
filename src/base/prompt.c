/* A prompt's hashes: over its tokens with a salt, and over what the model is beside them. */
#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/crypto.h"
#include "base/status.h"
#include "kvferry/types.h"

/* The hash is over numbers as they lie in memory, and the two engines may be on different hosts. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "kvferry is for little-endian hosts");

kvf_status kvf_prompt_hash(const uint32_t *token_ids, uint32_t tokens, const void *salt, size_t salt_bytes,
                           kvf_prompt *out)
{
  static const char domain[] = "kvferry prompt 1";
  kvf_status status = KVF_NOT_NULL(token_ids, out);
  if (status == KVF_OK && salt == NULL && salt_bytes > 0) {
    status = kvf_because(KVF_INVALID, "salt is NULL, but salt_bytes = %zu", salt_bytes);
  }
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  /* The lengths come first, so that no salt can pass for tokens. */
  const uint64_t lengths[2] = {salt_bytes, tokens};
  const kvf_span spans[] = {
      {domain, sizeof(domain)},
      {lengths, sizeof(lengths)},
      {salt, salt_bytes},
      {token_ids, tokens * sizeof(*token_ids)},
  };
  kvf_prompt prompt = {.tokens = tokens};
  status = kvf_sha256(spans, sizeof(spans) / sizeof(spans[0]), prompt.hash);
  if (status == KVF_OK) {
    *out = prompt;
  }
  return kvf_answer(status);
}

kvf_status kvf_prompt_set_model(kvf_prompt *prompt, const void *model, size_t model_bytes)
{
  static const char domain[] = "kvferry model 1";
  kvf_status status = KVF_NOT_NULL(prompt, model);
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  assert(prompt != NULL); /* clang-tidy does not follow KVF_NOT_NULL() */
  uint8_t hash[sizeof(prompt->model)];
  const kvf_span spans[] = {{domain, sizeof(domain)}, {model, model_bytes}};
  status = kvf_sha256(spans, sizeof(spans) / sizeof(spans[0]), hash);
  if (status == KVF_OK) {
    memcpy(prompt->model, hash, sizeof(hash));
  }
  return kvf_answer(status);
}
