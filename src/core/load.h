/* Loads. One load of a request reads from the sources of its ticket, one after the other, until no block is missing.
 * The engine gets one outcome and one release.
 *
 *   READING ──► HELD      its outcome is held back: once no read of it is in flight, the next source is read
 *    │   ▲        │
 *    │   └────────┤
 *    └────────────┴──► DECIDED (outcome event) ──► RELEASED (release event), and freed
 *
 * From a source it fetches blocks into this rank's memory in slices (plan/load_plan.h): some of their layers, heads or
 * tokens, of one producer rank. A block is good when all slices have it.
 *
 *   slice   WAIT_LINK ──► READING ──► DONE           all its blocks are confirmed by the fence
 *               ▲            │ trouble               STOPPED: its load was decided before that
 *               │            ▼
 *            BACKOFF ◄── DRAINING                    no new reads; those in flight end first
 *
 * A block is read again only when its last read is released, that is, when its on_read_done() has come. For the meaning
 * of a trouble see kvf_loads_on_read_done(). This machine retries reads. The peers' machine decides whether a peer can
 * be reached: it is asked for a link, and its "no" is final.
 *
 * The caller calls an input, then takes cancels and reads until there are none, then events. Time is monotonic and does
 * not go backwards. Not for use by several threads at once. Memory: two allocations for each load, two for each source
 * that it reads from, and the hash tables' own.
 */
#ifndef KVF_CORE_LOAD_H
#define KVF_CORE_LOAD_H

#include "base/histogram.h"
#include "base/prng.h"
#include "base/transfer.h"
#include "core/peer.h"
#include "core/pool.h"
#include "core/source.h"
#include "kvferry/kvferry.h"
#include "plan/load_plan.h"

#define KVF_CHUNK_ITEMS_MAX 1024u

typedef struct kvf_open_load kvf_open_load; /* a load, until its release has been taken */
typedef struct kvf_load_chunk kvf_load_chunk;

/* A read to start, of which exactly one on_read_done() must follow; of one to cancel `transfer` has its id alone. */
typedef struct kvf_load_read {
  uint32_t link_id;
  uint32_t rail;         /* of the link's transport */
  kvf_transfer transfer; /* its items are unchanged until on_read_done() */
} kvf_load_read;

/* All only grow, but for `stuck` and `stuck_blocks`. Blocks are counted once for each producer rank. */
typedef struct kvf_load_stats {
  uint64_t stuck;        /* loads that are past release_timeout_ms without being released */
  uint64_t stuck_blocks; /* wanted blocks of those */
  uint64_t chunks;       /* reads started */
  uint64_t bytes;        /* that arrived, confirmed or not */
  uint64_t blocks;       /* confirmed */
  uint64_t retries;      /* times that a slice has backed off */
  uint64_t stalls;       /* times that a slice's stall clock has run out */
  uint64_t pings;
  uint64_t verified;   /* blocks confirmed that agree with their checksums */
  uint64_t unverified; /* blocks confirmed that have none, though the option checksum wants them */
  uint64_t mismatches; /* reads that brought a block that does not agree with its checksums */
  uint64_t late;       /* completions of reads that are not in flight */
  uint64_t source_switches;
  uint64_t outcomes[KVF_STATUSES_MAX]; /* loads by status: [i] counts kvf_status_at(i) */
  kvf_histogram load_ns;               /* good loads, from start to outcome */
  kvf_histogram load_bytes;            /* what they brought */
  kvf_histogram detection_ns;          /* failed ones, from their last byte, or start, to their outcome */
} kvf_load_stats;

typedef struct kvf_loads {
  kvf_context *context;
  kvf_peers *peers;
  const kvf_pool *pool;
  kvf_load_readers readers;
  kvf_prng jitter;
  kvf_open_load *by_id; /* the request's */
  kvf_load_chunk *by_read;
  uint64_t next_read_id;
  kvf_list ready;
  kvf_list cancels;
  kvf_list going_on;
  kvf_list events;
  kvf_load_stats stats;
} kvf_loads;

/* All that it is given outlives it. */
void kvf_loads_init(kvf_loads *loads, kvf_context *context, kvf_peers *peers, const kvf_pool *pool, uint64_t seed);
/* Before the peers, and only when no read can touch the loads' blocks or items any more. */
void kvf_loads_free(kvf_loads *loads);

/* As kvf_load_start(). `point`: see kvf_core_load_start(). `sources` have been decoded with the node's key, and have
 * their digests. */
KVF_MUST_USE kvf_status kvf_loads_start(kvf_loads *loads, uint64_t now_ns, const kvf_sources *sources,
                                        const kvf_load_params *load, uint64_t point);
/* See kvf_core_on_point(). */
void kvf_loads_on_point(kvf_loads *loads, uint64_t request_id, uint64_t point);
/* As kvf_load_abort(). */
kvf_status kvf_loads_abort(kvf_loads *loads, uint64_t now_ns, uint64_t request_id);
void kvf_loads_abort_all(kvf_loads *loads, uint64_t now_ns);

/* Loads with a held-back outcome and no write in flight continue from another source, which needs links. Call it before
 * notices are taken. */
void kvf_loads_go_on(kvf_loads *loads, uint64_t now_ns);

/* How many there are. */
uint32_t kvf_loads_open(const kvf_loads *loads);
/* Whether this load makes the node unhealthy: it is past release_timeout_ms without being released. */
bool kvf_loads_is_stuck(const kvf_loads *loads, uint64_t request_id);

/* The answer to kvf_peers_want_link(). KVF_OK: the slices that wait for this peer read over `link` (not 0). Else it is
 * final for their source. The source's status is then the first trouble that the slice met since its last confirmed
 * block, else `status`. So a peer that stalled and then could not be reached again counts as stalled. */
void kvf_loads_on_link(kvf_loads *loads, uint64_t now_ns, kvf_peer *peer, uint32_t link_id, kvf_status status);
/* A link of the peer takes no new reads. Its reads in flight are completed by the transport; then their slices ask
 * anew. */
void kvf_loads_on_link_down(kvf_loads *loads, uint64_t now_ns, const kvf_peer *peer);

/* A read has ended: nothing writes to its blocks any more. The first `verified` items of it agree with their checksums.
 * `sample` is read if `status` is KVF_OK or KVF_CHECKSUM, and judged first:
 * - live: the blocks are good. If `status` is KVF_CHECKSUM, only the verified ones are good, and the next is missing
 *   again. If that block had wrong checksums before, it decides the source.
 * - KVF_NOT_PUBLISHED (from the fence or as `status`): asked again, over the same link, after a pause.
 * - KVF_LEASE_EXPIRED, KVF_LEASE_UNKNOWN, KVF_BAD_TICKET, KVF_PEER_RESTARTED, KVF_INVALID, KVF_INCOMPATIBLE: decides
 *   the source. Blocks confirmed before count in the prefix.
 * - all else: the blocks are missing again; when the slice has no read in flight it pauses and asks for a link anew.
 * Unknown ids are ignored and counted as late. */
void kvf_loads_on_read_done(kvf_loads *loads, uint64_t now_ns, uint64_t read_id, kvf_status status, uint32_t verified,
                            const kvf_fence_sample *sample, uint64_t bytes);
/* Bytes of this read have arrived. Unknown ids are ignored. */
void kvf_loads_on_read_progress(kvf_loads *loads, uint64_t now_ns, uint64_t read_id);

/* KVF_TIMER_LOAD or KVF_TIMER_SLICE has come.
 *
 * Stalls: while a slice has reads in flight and no byte lands for half of stall_timeout_ms, its peer is pinged. Without
 * a pong by stall_timeout_ms the peer has failed; with one the link has, at twice that. Either way the peers' machine
 * is told, the slice's reads are cancelled, and it goes on as after any trouble. One that is half of
 * stall_timeout_ms late or later shows that this process did not run: the silence begins anew, with a ping. */
void kvf_loads_on_timer(kvf_loads *loads, uint64_t now_ns, kvf_timer *timer);

/* The next read to end early, whose on_read_done() is still to come; the next to start: loads take turns, a chunk each.
 * False: there is none. */
KVF_MUST_USE bool kvf_loads_next_cancel(kvf_loads *loads, kvf_load_read *out);
KVF_MUST_USE bool kvf_loads_next_read(kvf_loads *loads, uint64_t now_ns, kvf_load_read *out);
/* For kvf_core_check(). Returns how many holds of peers the slices have; *reads: in flight. */
uint32_t kvf_loads_check(const kvf_loads *loads, uint32_t *reads, bool costly);

/* A load's outcome, then its release, each once. False: nothing is due. */
KVF_MUST_USE bool kvf_loads_next_event(kvf_loads *loads, kvf_event *out);

#endif
