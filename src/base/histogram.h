/* Distributions of what loads took: fixed buckets, no allocation. kvferry/stats.h says what a bucket is. */
#ifndef KVF_BASE_HISTOGRAM_H
#define KVF_BASE_HISTOGRAM_H

#include "kvferry/stats.h"

/* Of times, from 1 ms to 30 s, and of sizes, from 64 KiB to 16 GiB: empty. `name` is static. */
void kvf_histogram_init_ns(kvf_histogram *histogram, const char *name);
void kvf_histogram_init_bytes(kvf_histogram *histogram, const char *name);

void kvf_histogram_add(kvf_histogram *histogram, uint64_t value);

#endif
