/* SplitMix64 (Steele, Lea, Flood 2014): jitter and simulation only, never secrets. */
#ifndef KVF_BASE_PRNG_H
#define KVF_BASE_PRNG_H

#include <stdint.h>

typedef struct kvf_prng {
  uint64_t state;
} kvf_prng;

static inline uint64_t kvf_prng_next(kvf_prng *prng)
{
  uint64_t z = prng->state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

/* A number in [0, bound), 0 if bound is 0. The bias of the modulo is below 2^-32 for bounds that fit 32 bits. */
static inline uint64_t kvf_prng_below(kvf_prng *prng, uint64_t bound)
{
  return bound == 0 ? 0 : kvf_prng_next(prng) % bound;
}

#endif
