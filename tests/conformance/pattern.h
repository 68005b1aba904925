/* What the blocks of a region hold until somebody writes to them. A word at a time: a byte at a time is most of what
 * the whole suite costs, and with a sanitizer many times that. */
#ifndef KVF_CONFORMANCE_PATTERN_H
#define KVF_CONFORMANCE_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where in a block. */
typedef struct pattern_place {
  uint32_t seed;
  uint32_t region;
  uint32_t block;
  uint64_t offset;
} pattern_place;

void pattern_fill(uint8_t *to, pattern_place at, size_t bytes);
bool pattern_is(const uint8_t *got, pattern_place at, size_t bytes);

#endif
