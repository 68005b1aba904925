/* What the programs of the benchmarks share. */
#ifndef KVF_BENCH_BENCH_H
#define KVF_BENCH_BENCH_H

#include <stdint.h>
#include <time.h>

/* Ends the process unless `good`. */
#define bench_must(good, what) ((good) ? (void)0 : bench_give_up("%s", what))
/* Each program has its own. */
_Noreturn void bench_give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline uint64_t bench_now_ns(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#endif
