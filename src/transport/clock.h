/* The monotonic clock of the machine. */
#ifndef KVF_TRANSPORT_CLOCK_H
#define KVF_TRANSPORT_CLOCK_H

#include <time.h>

#include "base/time.h"

/* CLOCK_MONOTONIC: nobody sets it, and it is the same for all threads. */
static inline uint64_t kvf_clock_now(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
}

#endif
