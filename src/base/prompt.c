/* A prompt's hashes: over its tokens with a salt, and over what the model is beside them. */
#include <stddef.h>
#include <string.h>

#include "base/crypto.h"
#include "kvferry/types.h"

/* The hash is over numbers as they lie in memory, and the two engines may be on different hosts. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "kvferry is for little-endian hosts");

kvf_status kvf_prompt_hash(const uint32_t *token_ids, uint32_t tokens, const void *salt, size_t salt_bytes,
                           kvf_prompt *out)
{
  static const char domain[] = "kvferry prompt 1";
  if (token_ids == NULL || out == NULL || (salt == NULL && salt_bytes > 0)) {
    return KVF_INVALID;
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
  kvf_status status = kvf_sha256(spans, sizeof(spans) / sizeof(spans[0]), prompt.hash);
  if (status == KVF_OK) {
    *out = prompt;
  }
  return status;
}

kvf_status kvf_prompt_set_model(kvf_prompt *prompt, const void *model, size_t model_bytes)
{
  static const char domain[] = "kvferry model 1";
  if (prompt == NULL || model == NULL) {
    return KVF_INVALID;
  }
  uint8_t hash[sizeof(prompt->model)];
  const kvf_span spans[] = {{domain, sizeof(domain)}, {model, model_bytes}};
  kvf_status status = kvf_sha256(spans, sizeof(spans) / sizeof(spans[0]), hash);
  if (status == KVF_OK) {
    memcpy(prompt->model, hash, sizeof(hash));
  }
  return status;
}
