#include "base/checksum.h"

/* Compiled in: who uses the library needs no other one for it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t kvf_checksum(const void *data, size_t bytes)
{
  return XXH3_64bits(data, bytes);
}
