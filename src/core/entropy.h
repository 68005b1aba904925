/* Nonces, tokens and ids from one secret that the runtime draws from the operating system: SHA-256 in counter mode, so
 * that the core stays free of I/O and a simulated world is replayable from its secret. */
#ifndef KVF_CORE_ENTROPY_H
#define KVF_CORE_ENTROPY_H

#include "base/crypto.h"

typedef struct kvf_entropy {
  uint8_t secret[KVF_HASH_BYTES];
  uint64_t counter;
} kvf_entropy;

/* Writes `bytes` (at most KVF_HASH_BYTES) that nobody without the secret can foretell. */
KVF_MUST_USE kvf_status kvf_entropy_draw(kvf_entropy *entropy, void *out, size_t bytes);

#endif
