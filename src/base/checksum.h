/* The checksum of a run of bytes: XXH3, 64 bits. It finds accidents, not attacks. */
#ifndef KVF_BASE_CHECKSUM_H
#define KVF_BASE_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t kvf_checksum(const void *data, size_t bytes);

/* The next piece of a run, good until the next call; 0 bytes: there is none left. False: it cannot be had. */
typedef bool (*kvf_checksum_source)(void *context, const void **data, size_t *bytes);

/* The same of a run that comes in pieces. False: one could not be had. */
bool kvf_checksum_of_pieces(kvf_checksum_source next, void *context, uint64_t *out);

#endif
