/* kvferry/stats.h: counters of a node, in total and by peer.
 *
 * Each function writes a consistent snapshot. Counters only grow in the life of the node; gauges go up and down. No
 * function blocks: call them as often as you like, from any thread.
 */
#ifndef KVFERRY_STATS_H
#define KVFERRY_STATS_H

#include "kvferry/node.h"

KVF_C_BEGIN

/* One number of a node. `reason` is the name of a status if the number is counted by reason, else "". */
typedef struct kvf_stat {
  const char *name;   /* "loads_failed" */
  const char *reason; /* "lease_expired" */
  uint64_t value;
  bool gauge;
  uint8_t reserved[7];
} kvf_stat;

#define KVF_STATS_MAX 256

/* Writes all numbers, at most `capacity` (KVF_STATS_MAX is always enough). Returns their count. The strings are static.
 */
KVF_API size_t kvf_node_stats(kvf_node *node, kvf_stat *out, size_t capacity);

/* ---- distributions ---- */

#define KVF_HISTOGRAMS_MAX 8
#define KVF_HISTOGRAM_BUCKETS_MAX 16

/* The distribution of one quantity. The unit is the last word of the name: "load_ns". Bucket i holds the values above
 * bounds[i - 1] and up to bounds[i]; the last bound is UINT64_MAX. Each bucket has a sum too. So the difference of two
 * snapshots gives the mean of the new values in each bucket. */
typedef struct kvf_histogram {
  const char *name;
  const uint64_t *bounds; /* `buckets` of them, static */
  uint32_t buckets;
  uint32_t reserved;
  uint64_t counts[KVF_HISTOGRAM_BUCKETS_MAX];
  uint64_t sums[KVF_HISTOGRAM_BUCKETS_MAX];
} kvf_histogram;

/* Writes all distributions, at most `capacity` (KVF_HISTOGRAMS_MAX is always enough). Returns their count. */
KVF_API size_t kvf_node_histograms(kvf_node *node, kvf_histogram *out, size_t capacity);

/* ---- peers ---- */

/* From best to worst. */
typedef enum kvf_breaker_state {
  KVF_BREAKER_CLOSED,    /* in use */
  KVF_BREAKER_HALF_OPEN, /* a probe is finding out whether the peer is back */
  KVF_BREAKER_OPEN       /* loads fail at once, or use another link */
} kvf_breaker_state;

/* One connection to a peer: the control connection, or a transport's link. */
typedef struct kvf_link_stat {
  const char *name;          /* "control", or the transport's; valid as long as the node */
  kvf_breaker_state breaker; /* of "control": for the whole peer; else for this transport */
  kvf_status cause;          /* the reason why the breaker is not closed; else KVF_OK */
  bool up;                   /* connected now */
  uint8_t reserved[7];
} kvf_link_stat;

/* A producer that this node loads from: one life of one rank of another engine. Counters count this node's actions. */
typedef struct kvf_peer_stat {
  uint64_t id; /* unique in the life of the node */
  char address[KVF_HOST_BYTES_MAX];
  kvf_status gone;  /* KVF_PEER_RESTARTED: another process has taken its place; else KVF_OK */
  uint32_t users;   /* loads and requests that hold it */
  uint64_t idle_ms; /* since its last use; 0 while it has users */
  kvf_link_stat links[1 + KVF_TRANSPORTS_MAX];
  uint32_t links_count;
  uint32_t reads_in_flight;
  uint64_t handshakes;
  uint64_t connection_failures; /* of the control connection or a link */
  uint64_t chunks;              /* reads started */
  uint64_t bytes;               /* all received bytes, confirmed or not */
  uint64_t blocks;              /* confirmed */
  uint64_t retries;             /* pauses of a load before it tried again */
  uint64_t stalls;              /* reads that received no byte for too long */
  /* Loads by outcome: [i] counts kvf_status_at(i). A failed load counts at the peer where it failed or waited. A good
   * load counts at each peer that it read from. */
  uint64_t loads[KVF_STATUSES_MAX];
  kvf_status last_failure; /* of a load (except KVF_ABORTED) or of a connection; KVF_OK: none yet */
  uint32_t reserved;
  uint64_t last_failure_age_ms;
  uint64_t reserved_too[8];
} kvf_peer_stat;

/* The maximum number of listed peers, and so of values of a metric's label `peer` at a time. */
#define KVF_PEERS_LISTED_MAX 64

/* Writes the peers that are in use, or were used within idle_timeout_ms, latest first: at most `capacity`, and at most
 * KVF_PEERS_LISTED_MAX. Returns their count. The totals of kvf_node_stats() also include peers that are not listed. */
KVF_API size_t kvf_node_peers(kvf_node *node, kvf_peer_stat *out, size_t capacity);

KVF_C_END
#endif
