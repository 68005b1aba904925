/* Nonces, tokens and ids from a secret that the runtime draws from the operating system: SHA-256 in counter mode, so
 * that the core stays free of I/O and a simulated world is replayable from its secret. The runtime stirs it before what
 * a stranger could replay is drawn: of a process that was copied (a virtual machine's snapshot) each copy goes on with
 * the same secret and counter. */
#ifndef KVF_CORE_ENTROPY_H
#define KVF_CORE_ENTROPY_H

#include "base/crypto.h"

typedef struct kvf_entropy {
  uint8_t secret[KVF_HASH_BYTES];
  uint64_t counter;
} kvf_entropy;

/* What is drawn from now on depends on these bytes, too. */
void kvf_entropy_stir(kvf_entropy *entropy, const uint8_t fresh[KVF_HASH_BYTES]);

/* Writes `bytes` (at most KVF_HASH_BYTES) that nobody without the secret can foretell. */
KVF_MUST_USE kvf_status kvf_entropy_draw(kvf_entropy *entropy, void *out, size_t bytes);

#endif
