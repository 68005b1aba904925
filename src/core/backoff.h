/* Jittered exponential backoff: how long to wait before the next attempt. */
#ifndef KVF_CORE_BACKOFF_H
#define KVF_CORE_BACKOFF_H

#include <stdint.h>

#include "base/prng.h"

typedef struct kvf_backoff {
  uint64_t min_ns;
  uint64_t max_ns;
  uint64_t current_ns; /* the longest next wait */
} kvf_backoff;

/* Waits grow from min_ns to max_ns (min_ns <= max_ns). */
void kvf_backoff_init(kvf_backoff *backoff, uint64_t min_ns, uint64_t max_ns);

/* The next wait: in [d/2, d], where d is min_ns at first and doubles with each call, up to max_ns. */
uint64_t kvf_backoff_next(kvf_backoff *backoff, kvf_prng *prng);

/* After a success: the next wait is a first one. */
void kvf_backoff_reset(kvf_backoff *backoff);

#endif
