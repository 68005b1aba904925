/* The checksum of a run of bytes: XXH3, 64 bits. It finds accidents, not attacks. */
#ifndef KVF_BASE_CHECKSUM_H
#define KVF_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint64_t kvf_checksum(const void *data, size_t bytes);

#endif
