/* An attempt: a load from one source. It fetches blocks into this rank's memory, in slices: one for each producer rank
 * that has some of their heads. A block is good when all slices have it.
 *
 *   slice   WAIT_PATH ──► READING ──► DONE           all its blocks are confirmed by the fence
 *               ▲            │ trouble               STOPPED: its attempt was decided before that
 *               │            ▼
 *            BACKOFF ◄── DRAINING                    no new reads; those in flight end first
 *
 *   attempt   OPEN ──► DECIDED (outcome) ──► QUIET ──► freed when that is taken
 *
 * A block is read again only when its last read is quiet, that is, when its on_read_done() has come. What a trouble
 * means, see kvf_attempts_on_read_done(). The machine retries reads; whether a peer can be reached is the peers'
 * machine's business, which is asked for a path (WANT_PATH) and whose "no" is final. Whether another source is tried is
 * the load's (load.h), which it has events for.
 *
 * The caller calls an input, then takes actions until there are none, then events. Time is monotonic and does not go
 * backwards. Not for use by several threads at once. Memory: one allocation an attempt and one a peer, all in
 * kvf_attempts_start(), and the hash tables' own.
 */
#ifndef KVF_CORE_ATTEMPT_H
#define KVF_CORE_ATTEMPT_H

#include "base/fence.h"
#include "core/histogram.h"
#include "wire/layout.h"

#define KVF_CHUNK_ITEMS_MAX 1024u
#define KVF_CHUNKS_IN_FLIGHT_MAX 64u

typedef struct kvf_attempts kvf_attempts;
typedef struct kvf_attempt kvf_attempt;

typedef struct kvf_attempts_config {
  uint64_t stall_timeout_ns; /* at least 2 */
  uint64_t quiet_timeout_ns;
  uint64_t backoff_min_ns;
  uint64_t backoff_max_ns;
  uint32_t chunk_bytes;      /* a chunk of one item may be larger */
  uint32_t readers;          /* reads over one path that go on at the same time, each on a core of its own; 0 is 1 */
  uint32_t spread_bytes;     /* a load of less for each reader is cut for fewer; 0 is 1 */
  uint32_t chunks_in_flight; /* of each slice: 1 to KVF_CHUNKS_IN_FLIGHT_MAX */
  uint32_t inline_bytes;     /* a load whose whole rest is one chunk of at most this is read as `small` */
  bool checksums;            /* blocks are to be verified: those that are not are counted */
  uint64_t seed;             /* of the jitter */
} kvf_attempts_config;

/* What loads have seen of one peer. The memory is the caller's; see kvf_peer_stat for the words. */
typedef struct kvf_peer_tally {
  uint64_t chunks;
  uint64_t bytes;
  uint64_t blocks;
  uint64_t retries;
  uint64_t stalls;
  uint64_t loads[KVF_STATUSES_MAX];
  uint32_t reads_in_flight;
  kvf_status last_failure; /* KVF_OK: none yet */
  uint64_t last_failure_ns;
} kvf_peer_tally;

typedef struct kvf_slice_spec {
  uint32_t peer;         /* the peers' machine's number for the producer rank */
  kvf_peer_tally *tally; /* what is counted of this peer, until the load is quiet; NULL: nothing */
  kvf_fence_claim claim; /* what its fence must say */
  uint32_t remote_head;  /* the slice: `heads` heads, there from this one on ... */
  uint32_t local_head;   /* ... and here from this one on */
  uint32_t heads;
} kvf_slice_spec;

/* Copied by kvf_attempts_start(). `items` are the wanted blocks, in strictly ascending order of position, then group,
 * so that the groups' prefixes grow together; local blocks must differ within a group. */
typedef struct kvf_attempt_spec {
  void *owner;         /* comes back in the events */
  uint64_t request_id; /* of the report */
  uint64_t earlier_ns; /* what attempts at other sources have taken: counts with this one's time */
  uint64_t deadline_ns;
  bool held; /* no read begins before kvf_attempt_release() */
  kvf_lease lease;
  uint32_t rank; /* this node's: below KVF_RANKS_MAX */
  uint32_t groups;
  uint32_t positions; /* of all groups together, those that are not wanted included */
  uint32_t items_count;
  const kvf_transfer_item *items;
  const uint64_t *head_bytes; /* by group: bytes of one head of one block, over all regions of the group */
  const kvf_slice_spec *slices;
  uint32_t slices_count; /* 1 to KVF_RANKS_MAX; 0 is allowed without items */
} kvf_attempt_spec;

typedef enum kvf_attempt_action_kind {
  KVF_ATTEMPT_READ,        /* start this read: exactly one on_read_done() must follow */
  KVF_ATTEMPT_CANCEL,      /* end this read early: its on_read_done() is still to come */
  KVF_ATTEMPT_WANT_PATH,   /* ask the peers' machine: on_path() must follow */
  KVF_ATTEMPT_PING,        /* ask the peer for a sign of life: on_pong() */
  KVF_ATTEMPT_PATH_STALLED /* no byte over this path for too long; once a path. `silent`: no pong either */
} kvf_attempt_action_kind;

typedef struct kvf_attempt_action {
  kvf_attempt_action_kind kind;
  uint32_t peer;         /* READ, WANT_PATH, PING, PATH_STALLED */
  uint32_t path;         /* READ, CANCEL, PATH_STALLED */
  bool silent;           /* PATH_STALLED */
  kvf_transfer transfer; /* READ: its items are unchanged until on_read_done(); CANCEL: its id */
} kvf_attempt_action;

typedef enum kvf_attempt_event_kind {
  KVF_ATTEMPT_OUTCOME,
  KVF_ATTEMPT_QUIET /* nothing writes for it any more, and it is gone */
} kvf_attempt_event_kind;

typedef struct kvf_attempt_event {
  kvf_attempt_event_kind kind;
  void *owner;
  kvf_report report;
} kvf_attempt_event;

/* All only grow, but for `open`, `overdue` and `overdue_blocks`. Blocks and items are counted once for each slice. */
typedef struct kvf_attempt_stats {
  uint64_t open;           /* loads in the table */
  uint64_t overdue;        /* loads that are past quiet_timeout_ns without being quiet */
  uint64_t overdue_blocks; /* wanted blocks of those */
  uint64_t overdue_total;  /* loads that ever were */
  uint64_t chunks;         /* reads started */
  uint64_t bytes;          /* that landed, confirmed or not */
  uint64_t blocks;         /* confirmed */
  uint64_t retries;        /* times that a slice has backed off */
  uint64_t stalls;         /* times that a slice's stall clock has run out */
  uint64_t pings;
  uint64_t verified;                   /* blocks confirmed that agree with their checksums */
  uint64_t unverified;                 /* blocks confirmed that have none, though config.checksums wants them */
  uint64_t mismatches;                 /* reads that brought a block that does not agree with its checksums */
  uint64_t late;                       /* completions of reads that are not in flight */
  uint64_t outcomes[KVF_STATUSES_MAX]; /* loads by status: [i] counts kvf_status_at(i) */
  kvf_histogram load_ns;               /* good loads, from start to outcome */
  kvf_histogram load_bytes;            /* what they brought */
  kvf_histogram detection_ns;          /* failed ones, from their last byte, or start, to their outcome */
} kvf_attempt_stats;

/* An empty table, the caller's, for kvf_attempts_destroy(). KVF_INVALID: a number is out of its range. KVF_NO_MEMORY.
 */
KVF_MUST_USE kvf_status kvf_attempts_create(const kvf_attempts_config *config, uint64_t now_ns, kvf_attempts **out);

/* Frees everything, whatever is in flight: only when no read can touch the loads' blocks or items any more. NULL is
 * allowed. */
void kvf_attempts_destroy(kvf_attempts *attempts);

/* Whether kvf_attempts_start() takes it. */
KVF_MUST_USE bool kvf_attempt_spec_is_valid(const kvf_attempt_spec *spec);

/* Starts one: from KVF_OK on it has one outcome, by its deadline, and is then quiet once. Without items both come at
 * once. *out is good until the quiet has been taken. KVF_NO_MEMORY. KVF_INVALID: the spec breaks a rule above. On
 * failure nothing has changed. */
KVF_MUST_USE kvf_status kvf_attempts_start(kvf_attempts *attempts, uint64_t now_ns, const kvf_attempt_spec *spec,
                                           kvf_attempt **out);

/* Its reads may begin, if it was started `held`. Without effect on one that has been decided. */
void kvf_attempt_release(kvf_attempts *attempts, kvf_attempt *attempt);

/* Decides it as KVF_ABORTED, unless it has been decided. */
void kvf_attempt_abort(kvf_attempts *attempts, uint64_t now_ns, kvf_attempt *attempt);
void kvf_attempts_abort_all(kvf_attempts *attempts, uint64_t now_ns);

/* The answer to WANT_PATH. KVF_OK: the slices that wait for this peer read over `path` (not 0). Else it is final for
 * their loads, whose status is then the first trouble that the slice met since its last confirmed block, and `status`
 * if it met none: a peer that stalled and then could not be reached again counts as stalled. */
void kvf_attempts_on_path(kvf_attempts *attempts, uint64_t now_ns, uint32_t peer, uint32_t path, kvf_status status);

/* The path takes no new reads. Its reads in flight are completed by the transport; then their slices ask anew. */
void kvf_attempts_on_path_down(kvf_attempts *attempts, uint64_t now_ns, uint32_t peer, uint32_t path);

/* The first `items` items of this read agree with their checksums. Its on_read_done() follows. Unknown ids are ignored.
 */
void kvf_attempts_on_read_verified(kvf_attempts *attempts, uint64_t read_id, uint32_t items);

/* A read has ended: nothing writes to its blocks any more. `sample` is read if `status` is KVF_OK or KVF_CHECKSUM, and
 * judged first:
 * - live: the blocks are good; if `status` is KVF_CHECKSUM those that were verified, and the next is missing again, or
 * decides the load if it has come with wrong checksums before;
 * - KVF_NOT_PUBLISHED (from the fence or as `status`): asked again, over the same path, after a pause;
 * - KVF_LEASE_EXPIRED, KVF_LEASE_UNKNOWN, KVF_BAD_TICKET, KVF_PEER_RESTARTED, KVF_INVALID, KVF_INCOMPATIBLE: decides
 * the load; what was confirmed before counts in the prefix;
 * - all else: the blocks are missing again; when the slice has no read in flight it pauses and asks for a path anew.
 * Unknown ids are ignored and counted as late. */
void kvf_attempts_on_read_done(kvf_attempts *attempts, uint64_t now_ns, uint64_t read_id, kvf_status status,
                               const kvf_fence_sample *sample, uint64_t bytes);

/* Bytes of this read have landed. Unknown ids are ignored. */
void kvf_attempts_on_read_progress(kvf_attempts *attempts, uint64_t now_ns, uint64_t read_id);

/* The peer answered a ping. */
void kvf_attempts_on_pong(kvf_attempts *attempts, uint32_t peer);

/* Does what is due, at most `max_items` timers of it: if there is more, kvf_attempts_next_deadline() is in the past.
 *
 * Stalls: while a slice has reads in flight and no byte lands for stall_timeout_ns / 2, its peer is pinged. Without a
 * pong by stall_timeout_ns the peer has failed; with one the path has, at 2 * stall_timeout_ns. Either way:
 * PATH_STALLED, the slice's reads are cancelled, and it goes on as after any trouble. A tick() that is
 * stall_timeout_ns / 2 late or later shows that this process did not run: the silence begins anew, with a ping. */
void kvf_attempts_tick(kvf_attempts *attempts, uint64_t now_ns, uint32_t max_items);

/* When to call kvf_attempts_tick(). KVF_TIME_NEVER: not needed. */
uint64_t kvf_attempts_next_deadline(const kvf_attempts *attempts);

/* The next thing to do; false: nothing. Loads take turns, a chunk each. */
KVF_MUST_USE bool kvf_attempts_next_action(kvf_attempts *attempts, uint64_t now_ns, kvf_attempt_action *out);

/* The next event; false: none. An outcome comes before its quiet; both come once. */
KVF_MUST_USE bool kvf_attempts_next_event(kvf_attempts *attempts, kvf_attempt_event *out);

/* False while one is past quiet_timeout_ns without being quiet. */
bool kvf_attempts_healthy(const kvf_attempts *attempts);
/* Whether this one is. */
bool kvf_attempt_is_stuck(const kvf_attempt *attempt);

/* Valid as long as the table; the numbers move. */
const kvf_attempt_stats *kvf_attempts_stats(const kvf_attempts *attempts);

#endif
