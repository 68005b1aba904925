/* XXH3 over bytes in one place, or over pieces that a source brings one after the other. */
#include "base/checksum.h"

/* Compiled in: who uses the library needs no other one for it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t kvf_checksum(const void *data, size_t bytes)
{
  return XXH3_64bits(data, bytes);
}

bool kvf_checksum_of_pieces(kvf_checksum_source next, void *context, uint64_t *out)
{
  XXH3_state_t state;
  const void *data;
  size_t bytes;
  (void)XXH3_64bits_reset(&state);
  do {
    if (!next(context, &data, &bytes)) {
      return false;
    }
    (void)XXH3_64bits_update(&state, data, bytes);
  } while (bytes > 0);
  *out = XXH3_64bits_digest(&state);
  return true;
}
