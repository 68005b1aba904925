/* kvferry/stats.h: what a node counts, in all and by peer.
 *
 * Each function writes a snapshot, whose numbers belong together. Counters only grow in the life of the node; gauges go
 * up and down. Nothing here waits for anybody: call it as often as you like, from any thread.
 */
#ifndef KVFERRY_STATS_H
#define KVFERRY_STATS_H

#include "kvferry/node.h"

KVF_C_BEGIN

/* One number of a node. `reason` is the status' name for those that are counted by reason, else "". */
typedef struct kvf_stat {
  const char *name;   /* "loads_failed" */
  const char *reason; /* "lease_expired" */
  uint64_t value;
  bool gauge;
  uint8_t reserved[7];
} kvf_stat;

#define KVF_STATS_MAX 256

/* Writes all numbers, at most `capacity` (KVF_STATS_MAX is always enough); returns how many. The strings are static. */
KVF_API size_t kvf_node_stats(kvf_node *node, kvf_stat *out, size_t capacity);

/* ---- distributions ---- */

#define KVF_HISTOGRAMS_MAX 8
#define KVF_HISTOGRAM_BUCKETS_MAX 16

/* How one quantity was distributed. The unit is the last word of the name: "load_ns". Bucket i holds the values above
 * bounds[i - 1] and up to bounds[i]; the last bound is UINT64_MAX. Sums are kept by bucket, so that whoever takes the
 * difference of two snapshots knows the mean of the values that came between them, and that it lies in the bucket. */
typedef struct kvf_histogram {
  const char *name;
  const uint64_t *bounds; /* `buckets` of them, static */
  uint32_t buckets;
  uint32_t reserved;
  uint64_t counts[KVF_HISTOGRAM_BUCKETS_MAX];
  uint64_t sums[KVF_HISTOGRAM_BUCKETS_MAX];
} kvf_histogram;

/* Writes all distributions, at most `capacity` (KVF_HISTOGRAMS_MAX is always enough); returns how many. */
KVF_API size_t kvf_node_histograms(kvf_node *node, kvf_histogram *out, size_t capacity);

/* ---- peers ---- */

/* Ascending by how bad it is. */
typedef enum kvf_breaker_state {
  KVF_BREAKER_CLOSED,    /* in use */
  KVF_BREAKER_HALF_OPEN, /* a probe is finding out whether the peer is back */
  KVF_BREAKER_OPEN       /* loads fail at once, or take another link */
} kvf_breaker_state;

/* One way to a peer. */
typedef struct kvf_link_stat {
  const char *name;          /* "control", or a transport's: lives as long as the node */
  kvf_breaker_state breaker; /* of "control": decides for the peer, else for this transport */
  kvf_status cause;          /* why it is not closed; KVF_OK while it is */
  bool up;                   /* connected now */
  uint8_t reserved[7];
} kvf_link_stat;

/* A peer of this node as a consumer: one life of one rank of another engine. Counters are of this node's own doings. */
typedef struct kvf_peer_stat {
  uint64_t id; /* of this peer, and never of another one in the life of the node */
  char address[KVF_HOST_BYTES_MAX];
  kvf_status gone;  /* KVF_PEER_RESTARTED: another process has taken its place; else KVF_OK */
  uint32_t users;   /* loads and requests that hold it */
  uint64_t idle_ms; /* since its last use; 0 while it has users */
  kvf_link_stat links[1 + KVF_TRANSPORTS_MAX];
  uint32_t links_count;
  uint32_t reads_in_flight;
  uint64_t handshakes;
  uint64_t connection_failures; /* of the control connection or a transport */
  uint64_t chunks;              /* reads started */
  uint64_t bytes;               /* that arrived, confirmed or not */
  uint64_t blocks;              /* confirmed */
  uint64_t retries;             /* times that a load has paused to try again */
  uint64_t stalls;              /* times that a read went without a byte for too long */
  /* Loads by outcome: [i] counts kvf_status_at(i). A load that failed counts at the peer that it failed at, or waited
   * for, a good one at each peer that it was read from. */
  uint64_t loads[KVF_STATUSES_MAX];
  kvf_status last_failure; /* of a load, other than KVF_ABORTED, or of a connection; KVF_OK: none yet */
  uint32_t reserved;
  uint64_t last_failure_age_ms;
  uint64_t reserved_too[8];
} kvf_peer_stat;

/* The most peers that are listed, and so the most values that a metric's peer label has at a time. */
#define KVF_PEERS_LISTED_MAX 64

/* Writes the peers that are in use, or were within idle_timeout_ms, latest used first: at most `capacity` of them, and
 * KVF_PEERS_LISTED_MAX. Returns how many. What peers that are not listed have done is in kvf_node_stats() all the same.
 */
KVF_API size_t kvf_node_peers(kvf_node *node, kvf_peer_stat *out, size_t capacity);

KVF_C_END
#endif
