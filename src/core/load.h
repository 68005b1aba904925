/* Loads: the consumer's state machine. A load fetches, for one request, blocks into this rank's memory. It has parts:
 * one for each producer rank that holds a slice of their heads. A block is good when all parts have it.
 *
 *   part   WAIT_PATH ──► READING ──► DONE            all its blocks are confirmed by the fence
 *              ▲            │ trouble                STOPPED: its load was decided before that
 *              │            ▼
 *           BACKOFF ◄── DRAINING                     no new reads; those in flight end first
 *
 *   load   OPEN ──► DECIDED (outcome event) ──► QUIET (quiet event) ──► freed when that event is taken
 *
 * A block enters a new attempt only when its last attempt is quiet, that is, when its on_read_done() has come. What a
 * trouble means, see kvf_loads_on_read_done(). The machine retries reads; whether a peer can be reached is the peers'
 * machine's business, which is asked for a path (WANT_PATH) and whose "no" is final.
 *
 * The caller calls an input, then takes actions until there are none, then events. Time is monotonic and does not go
 * backwards. Not for use by several threads at once. Memory: one allocation a load and one a peer, all in
 * kvf_loads_start(), and the hash tables' own.
 */
#ifndef KVF_CORE_LOAD_H
#define KVF_CORE_LOAD_H

#include "base/fence.h"
#include "core/histogram.h"
#include "wire/layout.h"

#define KVF_CHUNK_ITEMS_MAX 1024u
#define KVF_CHUNKS_IN_FLIGHT_MAX 64u

typedef struct kvf_loads kvf_loads;

typedef struct kvf_loads_config {
  uint32_t loads_max;        /* loads that are not quiet, or whose events have not been taken */
  uint64_t stall_timeout_ns; /* at least 2 */
  uint64_t quiet_timeout_ns;
  uint64_t backoff_min_ns;
  uint64_t backoff_max_ns;
  uint32_t chunk_bytes;      /* a chunk of one item may be larger */
  uint32_t readers;          /* reads over one path that go on at the same time, each on a core of its own; 0 is 1 */
  uint32_t spread_bytes;     /* a load of less for each reader is cut for fewer; 0 is 1 */
  uint32_t chunks_in_flight; /* of each part: 1 to KVF_CHUNKS_IN_FLIGHT_MAX */
  uint32_t inline_bytes;     /* a load whose whole rest is one chunk of at most this is read as `small` */
  bool sums;                 /* blocks are to be verified: those that are not are counted */
  uint64_t seed;             /* of the jitter */
} kvf_loads_config;

/* What loads have seen of one peer. The memory is the caller's; see kvf_peer_stat for the words. */
typedef struct kvf_load_tally {
  uint64_t chunks;
  uint64_t bytes;
  uint64_t blocks;
  uint64_t retries;
  uint64_t stalls;
  uint64_t loads[KVF_STATUSES_MAX];
  uint32_t reads_in_flight;
  kvf_status last_failure; /* KVF_OK: none yet */
  uint64_t last_failure_ns;
} kvf_load_tally;

typedef struct kvf_load_part_spec {
  uint32_t peer;         /* the peers' machine's number for the producer rank */
  kvf_load_tally *tally; /* what is counted of this peer, until the load is quiet; NULL: nothing */
  kvf_fence_claim claim; /* what its fence must say */
  uint32_t remote_head;  /* the slice: `heads` heads, there from this one on ... */
  uint32_t local_head;   /* ... and here from this one on */
  uint32_t heads;
} kvf_load_part_spec;

/* Copied by kvf_loads_start(). `items` are the wanted blocks, in strictly ascending order of position, then group, so
 * that the groups' prefixes grow together; local blocks must differ within a group. */
typedef struct kvf_load_spec {
  uint64_t request_id;
  uint64_t user;       /* comes back in the events */
  uint64_t earlier_ns; /* what attempts at other sources have taken: counts with this one's time */
  uint64_t deadline_ns;
  kvf_lease lease;
  uint32_t rank; /* this node's: below KVF_RANKS_MAX */
  uint32_t groups;
  uint32_t positions; /* of all groups together, those that are not wanted included */
  uint32_t items_count;
  const kvf_transfer_item *items;
  const uint64_t *head_bytes; /* by group: bytes of one head of one block, over all regions of the group */
  const kvf_load_part_spec *parts;
  uint32_t parts_count; /* 1 to KVF_RANKS_MAX; 0 is allowed without items */
} kvf_load_spec;

typedef enum kvf_load_action_kind {
  KVF_LOAD_READ,        /* start this read: exactly one on_read_done() must follow */
  KVF_LOAD_CANCEL,      /* end this read early: its on_read_done() is still to come */
  KVF_LOAD_WANT_PATH,   /* ask the peers' machine: on_path() must follow */
  KVF_LOAD_PING,        /* ask the peer for a sign of life: on_pong() */
  KVF_LOAD_PATH_STALLED /* no byte over this path for too long; once a path. `silent`: no pong either */
} kvf_load_action_kind;

typedef struct kvf_load_action {
  kvf_load_action_kind kind;
  uint32_t peer;         /* READ, WANT_PATH, PING, PATH_STALLED */
  uint32_t path;         /* READ, CANCEL, PATH_STALLED */
  bool silent;           /* PATH_STALLED */
  kvf_transfer transfer; /* READ: its items are unchanged until on_read_done(); CANCEL: its id */
} kvf_load_action;

typedef enum kvf_load_event_kind { KVF_LOAD_OUTCOME, KVF_LOAD_QUIET } kvf_load_event_kind;

typedef struct kvf_load_event {
  kvf_load_event_kind kind;
  uint64_t request_id;
  uint64_t user;
  kvf_report report; /* OUTCOME */
} kvf_load_event;

/* All only grow, but for `open`, `overdue` and `overdue_blocks`. Blocks and items are counted once for each part. */
typedef struct kvf_load_stats {
  uint64_t open;           /* loads in the table */
  uint64_t overdue;        /* loads that are past quiet_timeout_ns without being quiet */
  uint64_t overdue_blocks; /* wanted blocks of those */
  uint64_t overdue_total;  /* loads that ever were */
  uint64_t chunks;         /* reads started */
  uint64_t bytes;          /* that landed, confirmed or not */
  uint64_t blocks;         /* confirmed */
  uint64_t retries;        /* times that a part has backed off */
  uint64_t stalls;         /* times that a part's stall clock has run out */
  uint64_t pings;
  uint64_t verified;                   /* blocks confirmed that agree with their checksums */
  uint64_t unverified;                 /* blocks confirmed that have none, though config.sums wants them */
  uint64_t mismatches;                 /* reads that brought a block that does not agree with its checksums */
  uint64_t late;                       /* completions of reads that are not in flight */
  uint64_t outcomes[KVF_STATUSES_MAX]; /* loads by status: [i] counts kvf_status_at(i) */
  kvf_histogram load_ns;               /* good loads, from start to outcome */
  kvf_histogram load_bytes;            /* what they brought */
  kvf_histogram detection_ns;          /* failed ones, from their last byte, or start, to their outcome */
} kvf_load_stats;

/* An empty table, the caller's, for kvf_loads_destroy(). KVF_INVALID: a number is out of its range. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_loads_create(const kvf_loads_config *config, uint64_t now_ns, kvf_loads **out);

/* Frees everything, whatever is in flight: only when no read can touch the loads' blocks or items any more. NULL is
 * allowed. */
void kvf_loads_destroy(kvf_loads *loads);

/* Whether kvf_loads_start() takes it. */
KVF_MUST_USE bool kvf_load_spec_is_valid(const kvf_load_spec *spec);

/* Starts a load: from KVF_OK on it has one outcome, by its deadline, and then one quiet. Without items both come at
 * once. KVF_EXISTS: a load of this request is in the table. KVF_NO_MEMORY: loads_max, or an allocation failed.
 * KVF_INVALID: the spec breaks a rule above. On failure nothing has changed. */
KVF_MUST_USE kvf_status kvf_loads_start(kvf_loads *loads, uint64_t now_ns, const kvf_load_spec *spec);

/* Decides the load as KVF_ABORTED, unless it has been decided. KVF_NOT_FOUND: not in the table (any more). */
kvf_status kvf_loads_abort(kvf_loads *loads, uint64_t now_ns, uint64_t request_id);
void kvf_loads_abort_all(kvf_loads *loads, uint64_t now_ns);

/* The answer to WANT_PATH. KVF_OK: the parts that wait for this peer read over `path` (not 0). Else it is final for
 * their loads, whose status is then the first trouble that the part met since its last confirmed block, and `status` if
 * it met none: a peer that stalled and then could not be reached again counts as stalled. */
void kvf_loads_on_path(kvf_loads *loads, uint64_t now_ns, uint32_t peer, uint32_t path, kvf_status status);

/* The path takes no new reads. Its reads in flight are completed by the transport; then their parts ask anew. */
void kvf_loads_on_path_down(kvf_loads *loads, uint64_t now_ns, uint32_t peer, uint32_t path);

/* The first `items` items of this read agree with their checksums. Its on_read_done() follows. Unknown ids are ignored.
 */
void kvf_loads_on_read_verified(kvf_loads *loads, uint64_t read_id, uint32_t items);

/* A read has ended: nothing writes to its blocks any more. `sample` is read if `status` is KVF_OK or KVF_CHECKSUM, and
 * judged first:
 * - live: the blocks are good; if `status` is KVF_CHECKSUM those that were verified, and the next is missing again, or
 * decides the load if it has come with wrong checksums before;
 * - KVF_NOT_PUBLISHED (from the fence or as `status`): asked again, over the same path, after a pause;
 * - KVF_LEASE_EXPIRED, KVF_LEASE_UNKNOWN, KVF_BAD_TICKET, KVF_PEER_RESTARTED, KVF_INVALID, KVF_INCOMPATIBLE: decides
 * the load; what was confirmed before counts in the prefix;
 * - all else: the blocks are missing again; when the part has no read in flight it pauses and asks for a path anew.
 * Unknown ids are ignored and counted as late. */
void kvf_loads_on_read_done(kvf_loads *loads, uint64_t now_ns, uint64_t read_id, kvf_status status,
                            const kvf_fence_sample *sample, uint64_t bytes);

/* Bytes of this read have landed. Unknown ids are ignored. */
void kvf_loads_on_read_progress(kvf_loads *loads, uint64_t now_ns, uint64_t read_id);

/* The peer answered a ping. */
void kvf_loads_on_pong(kvf_loads *loads, uint32_t peer);

/* Does what is due, at most `max_items` timers of it: if there is more, kvf_loads_next_deadline() is in the past.
 *
 * Stalls: while a part has reads in flight and no byte lands for stall_timeout_ns / 2, its peer is pinged. Without a
 * pong by stall_timeout_ns the peer has failed; with one the path has, at 2 * stall_timeout_ns. Either way:
 * PATH_STALLED, the part's reads are cancelled, and it goes on as after any trouble. A tick() that is
 * stall_timeout_ns / 2 late or later shows that this process did not run: the silence begins anew, with a ping. */
void kvf_loads_tick(kvf_loads *loads, uint64_t now_ns, uint32_t max_items);

/* When to call kvf_loads_tick(). KVF_TIME_NEVER: not needed. */
uint64_t kvf_loads_next_deadline(const kvf_loads *loads);

/* The next thing to do; false: nothing. Loads take turns, a chunk each. */
KVF_MUST_USE bool kvf_loads_next_action(kvf_loads *loads, uint64_t now_ns, kvf_load_action *out);

/* The next event; false: none. A load's outcome comes before its quiet; both come once. */
KVF_MUST_USE bool kvf_loads_next_event(kvf_loads *loads, kvf_load_event *out);

/* False while a load is past quiet_timeout_ns without being quiet. */
bool kvf_loads_healthy(const kvf_loads *loads);
/* Whether this load is what makes it unhealthy. */
bool kvf_loads_is_stuck(const kvf_loads *loads, uint64_t request_id);

/* Valid as long as the table; the numbers move. */
const kvf_load_stats *kvf_loads_stats(const kvf_loads *loads);

#endif
