/* The bounds of the buckets, and counting a value. Times are from 1 ms to 30 s, sizes from 64 KiB to 16 GiB. */
#include "base/histogram.h"

#include "base/time.h"

#define KIB UINT64_C(1024)

static const uint64_t bounds_ns[] = {
    1 * KVF_NS_PER_MS,    5 * KVF_NS_PER_MS / 2, 5 * KVF_NS_PER_MS,   10 * KVF_NS_PER_MS,  25 * KVF_NS_PER_MS,
    50 * KVF_NS_PER_MS,   100 * KVF_NS_PER_MS,   250 * KVF_NS_PER_MS, 500 * KVF_NS_PER_MS, 1 * KVF_NS_PER_S,
    5 * KVF_NS_PER_S / 2, 5 * KVF_NS_PER_S,      10 * KVF_NS_PER_S,   30 * KVF_NS_PER_S,   UINT64_MAX};

static const uint64_t bounds_bytes[] = {64 * KIB,          256 * KIB,          KIB *KIB,       4 * KIB *KIB,
                                        16 * KIB *KIB,     64 * KIB *KIB,      256 * KIB *KIB, KIB *KIB *KIB,
                                        4 * KIB *KIB *KIB, 16 * KIB *KIB *KIB, UINT64_MAX};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

_Static_assert(COUNT(bounds_ns) <= KVF_HISTOGRAM_BUCKETS_MAX, "KVF_HISTOGRAM_BUCKETS_MAX");
_Static_assert(COUNT(bounds_bytes) <= KVF_HISTOGRAM_BUCKETS_MAX, "KVF_HISTOGRAM_BUCKETS_MAX");

void kvf_histogram_init_ns(kvf_histogram *histogram, const char *name)
{
  *histogram = (kvf_histogram){.name = name, .bounds = bounds_ns, .buckets = COUNT(bounds_ns)};
}

void kvf_histogram_init_bytes(kvf_histogram *histogram, const char *name)
{
  *histogram = (kvf_histogram){.name = name, .bounds = bounds_bytes, .buckets = COUNT(bounds_bytes)};
}

void kvf_histogram_add(kvf_histogram *histogram, uint64_t value)
{
  uint32_t bucket = 0;
  while (value > histogram->bounds[bucket]) {
    bucket++;
  }
  histogram->counts[bucket]++;
  histogram->sums[bucket] += value;
}
