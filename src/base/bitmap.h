/* Bits in an array of 64-bit words that the caller owns. */
#ifndef KVF_BASE_BITMAP_H
#define KVF_BASE_BITMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline size_t kvf_bitmap_words(size_t bits)
{
  return (bits + 63) / 64;
}

static inline bool kvf_bitmap_get(const uint64_t *words, size_t bit)
{
  return (words[bit / 64] >> (bit % 64)) & 1u;
}

static inline void kvf_bitmap_set(uint64_t *words, size_t bit)
{
  words[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static inline void kvf_bitmap_clear(uint64_t *words, size_t bit)
{
  words[bit / 64] &= ~(UINT64_C(1) << (bit % 64));
}

/* The first of the first `bits` bits that is set; `bits` if none is. */
static inline size_t kvf_bitmap_first(const uint64_t *words, size_t bits)
{
  for (size_t word = 0; word < kvf_bitmap_words(bits); word++) {
    if (words[word] != 0) {
      size_t first = word * 64 + (size_t)__builtin_ctzll(words[word]);
      return first < bits ? first : bits;
    }
  }
  return bits;
}

/* How many of the first `bits` bits are set without a gap, from bit 0 on. */
static inline size_t kvf_bitmap_prefix(const uint64_t *words, size_t bits)
{
  for (size_t word = 0; word < kvf_bitmap_words(bits); word++) {
    if (words[word] != UINT64_MAX) {
      size_t prefix = word * 64 + (size_t)__builtin_ctzll(~words[word]);
      return prefix < bits ? prefix : bits;
    }
  }
  return bits;
}

#endif
