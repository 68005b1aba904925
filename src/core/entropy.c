#include "core/entropy.h"

#include <assert.h>
#include <string.h>

void kvf_entropy_stir(kvf_entropy *entropy, const uint8_t fresh[KVF_HASH_BYTES])
{
  for (size_t i = 0; i < KVF_HASH_BYTES; i++) {
    entropy->secret[i] ^= fresh[i];
  }
}

kvf_status kvf_entropy_draw(kvf_entropy *entropy, void *out, size_t bytes)
{
  assert(bytes <= KVF_HASH_BYTES);
  uint8_t hash[KVF_HASH_BYTES];
  entropy->counter++;
  const kvf_span spans[] = {{entropy->secret, sizeof(entropy->secret)}, {&entropy->counter, sizeof(entropy->counter)}};
  kvf_status status = kvf_sha256(spans, 2, hash);
  if (status == KVF_OK) {
    memcpy(out, hash, bytes);
  }
  return status;
}
