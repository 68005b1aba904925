/* Monotonic time in nanoseconds. The origin means nothing: compare with these helpers only. */
#ifndef KVF_BASE_TIME_H
#define KVF_BASE_TIME_H

#include <stdbool.h>
#include <stdint.h>

#define KVF_NS_PER_US UINT64_C(1000)
#define KVF_NS_PER_MS UINT64_C(1000000)
#define KVF_NS_PER_S UINT64_C(1000000000)
#define KVF_TIME_NEVER UINT64_MAX

static inline uint64_t kvf_ms_to_ns(uint32_t ms)
{
  return (uint64_t)ms * KVF_NS_PER_MS;
}

/* Saturates at KVF_TIME_NEVER. */
static inline uint64_t kvf_time_add(uint64_t time_ns, uint64_t delta_ns)
{
  return delta_ns > KVF_TIME_NEVER - time_ns ? KVF_TIME_NEVER : time_ns + delta_ns;
}

/* How long from `from_ns` until `to_ns`; 0 if that is past. */
static inline uint64_t kvf_time_until(uint64_t from_ns, uint64_t to_ns)
{
  return to_ns > from_ns ? to_ns - from_ns : 0;
}

static inline uint64_t kvf_time_min(uint64_t a_ns, uint64_t b_ns)
{
  return a_ns < b_ns ? a_ns : b_ns;
}

#endif
