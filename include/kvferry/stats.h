/* kvferry/stats.h: counters of a node. */
#ifndef KVFERRY_STATS_H
#define KVFERRY_STATS_H

#include "kvferry/node.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One number of a node. Counters only grow; gauges go up and down. `reason` is the status' name for those that are
 * counted by reason, else "". */
typedef struct kvf_stat {
  const char *name;   /* "loads_failed" */
  const char *reason; /* "lease_expired" */
  uint64_t value;
  bool gauge;
  uint8_t reserved[7];
} kvf_stat;

#define KVF_STATS_MAX 256

/* Writes a snapshot of all numbers, at most `capacity` (KVF_STATS_MAX is always enough); returns how many. The strings
 * are static. Numbers of one snapshot belong together. */
KVF_API size_t kvf_stats(kvf_node *node, kvf_stat *out, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
