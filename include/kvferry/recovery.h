/* kvferry/recovery.h: engines that cannot rewind by themselves.
 *
 * vLLM takes back a request whose load has failed; other engines park a request while its blocks are loaded and know
 * no way back. A recovery table tells such an engine's scheduler, for each parked request and exactly once, to go on,
 * to go back to the first token that it has to compute, or to end the request:
 *
 *   kvf_recovery_admit ──► each rank: kvf_recovery_report, _released ──► READY | REWIND | TERMINATE, then RELEASE
 *                     └──► kvf_recovery_end ──────────────────────────────► (ABORT, then) RELEASE
 *
 * It is bookkeeping: no node, thread, clock or I/O, and memory only from kvf_recovery_open(). The engine feeds it what
 * its ranks' loads report (KVF_EVENT_LOAD, KVF_EVENT_RELEASED, or any other transport's equivalents) and takes out
 * events between two of its steps.
 *
 * No rank acts on what it alone has seen: an event comes only when all ranks are in, so that no rank enters a
 * collective without the others. Either one table lives with the scheduler, which sends the events to all ranks with
 * the next step; or each rank has one, all ranks exchange what is new with a collective that runs in *every* step, and
 * then take out all events: tables that admit the same requests in the same order, and are told the same between two
 * steps, in whatever order, say the same in the same order.
 *
 * Threads: one at a time for each table. No function blocks. */
#ifndef KVFERRY_RECOVERY_H
#define KVFERRY_RECOVERY_H

#include "kvferry/node.h"

KVF_C_BEGIN

/* Limits of a table; beyond one: KVF_LIMIT. */
#define KVF_RECOVERY_REQUESTS_MAX 65536
#define KVF_RECOVERY_BLOCKS_MAX 16777216 /* of all groups' pools together; 16 bytes each */

typedef struct kvf_recovery kvf_recovery;

typedef struct kvf_recovery_options {
  uint32_t ranks;
  uint32_t block_tokens;
  uint32_t requests_max;                /* requests at a time, from admission to their end */
  uint32_t recompute_max_tokens;        /* prompt tokens that the engine computes in one go; 0: as many as there are */
  uint32_t groups;                      /* KV groups */
  uint32_t pool_blocks[KVF_GROUPS_MAX]; /* blocks of each group's pool: its block ids are below it */
} kvf_recovery_options;

/* On success *out is the caller's, to be given to kvf_recovery_close(); on failure it is NULL.
 * KVF_INVALID: a number is 0. KVF_LIMIT: more than a limit allows. KVF_NO_MEMORY. */
KVF_API KVF_MUST_USE kvf_status kvf_recovery_open(const kvf_recovery_options *options, kvf_recovery **out);

/* Frees the table, whatever is in it. NULL is allowed. */
KVF_API void kvf_recovery_close(kvf_recovery *recovery);

/* ---- requests ---- */

/* Why a rewind cannot apply: bits. The engine sets those of the first group, at admission: while a request is parked no
 * other can come up. */
typedef enum kvf_rewind_blocker {
  KVF_BLOCKER_GENERATED = 1,   /* tokens have been sampled from the request: they may have left the engine */
  KVF_BLOCKER_PUBLISHED = 2,   /* other requests can find its blocks: taking back this one does not mend those */
  KVF_BLOCKER_BLOCKS_GONE = 4, /* the engine does not hold the blocks any more: there is nothing to compute into */
  KVF_BLOCKER_BEAMS = 8,       /* several beams share the blocks or have copied them */
  KVF_BLOCKER_NO_CONTEXT = 16, /* the engine cannot compute context tokens now, or at all */

  KVF_BLOCKER_TOO_LONG = 256, /* more than recompute_max_tokens would have to be computed in one go */
  KVF_BLOCKER_UNSAFE = 512, /* a rank is lost, or its report makes no sense: something may still write to the blocks */
  KVF_BLOCKER_USED = 2048   /* the engine has been told to go on, and the failure came after that */
} kvf_rewind_blocker;

/* A parked request. Positions count blocks from the prompt's first token, as in kvf_load_params. */
typedef struct kvf_recovery_request {
  uint64_t request_id;          /* unique among the table's requests */
  uint64_t user;                /* comes back in its events: the engine's record, with the load's handle and lease */
  kvf_blocks blocks;            /* as kvf_load_params.destination: KVF_BLOCK_NONE where nothing is loaded */
  uint32_t local_prefix_tokens; /* that the engine has itself: whole blocks, none of them loaded */
  uint32_t tokens;              /* whose KV is complete once all is loaded: local prefix and external match */
  uint32_t prompt_tokens;
  uint32_t blockers; /* kvf_rewind_blocker */
} kvf_recovery_request;

/* Enters a request, before its ranks start to load. From here until its RELEASE nothing else may write to the blocks
 * or free them. `request` is copied. On failure nothing has changed.
 * KVF_INVALID: local prefix <= tokens <= prompt does not hold, the local prefix is not whole blocks (round down: a load
 * overwrites whole blocks) or one of them is loaded, a group has not one position for each block of `tokens`, a block
 * id is out of its pool, or a blocker is not the engine's. KVF_LIMIT: more than KVF_BLOCKS_PER_LEASE_MAX positions.
 * KVF_EXISTS: the id is in the table, or a block belongs to a request in it (whose load may still write to it).
 * KVF_NO_RESOURCE: requests_max are in the table; let the request wait, or compute its prompt. */
KVF_API KVF_MUST_USE kvf_status kvf_recovery_admit(kvf_recovery *recovery, const kvf_recovery_request *request);

/* The request leaves the engine: finished, terminated, or cancelled at any time. No READY, REWIND or TERMINATE comes
 * after this. While a rank may still write to its blocks, KVF_RECOVERY_ABORT comes, and KVF_RECOVERY_RELEASE when none
 * may; only after both this and RELEASE may the engine free the blocks, and the id and the blocks be admitted again.
 * KVF_NOT_FOUND: it has left already, or is unknown: nothing has changed. */
KVF_API kvf_status kvf_recovery_end(kvf_recovery *recovery, uint64_t request_id);

/* ---- what the ranks found ---- */

/* The outcome of a load on one rank, or on several merged (kvf_report_merge()): KVF_EVENT_LOAD's report as it is. In
 * any order, any number of times. A rank that could not start its load, or has not reported by the engine's own
 * deadline, is reported in its place with prefix 0 and why (KVF_RANK_LOST unless it is known to be released).
 * KVF_NOT_FOUND: not in the table (any more). KVF_INVALID: a rank out of range, or numbers that contradict each other
 * or the request: nothing has changed. */
KVF_API kvf_status kvf_recovery_report(kvf_recovery *recovery, const kvf_report *report);

/* The same for transports that name failed blocks, of any number of requests: `count` block ids of `group` on `rank`.
 * Each request that has one of them gets a report of that rank: all before its first failed block is good, the rest is
 * not. Blocks of no request are ignored; so call this before the rank is reported released, since later the blocks may
 * be another request's. KVF_INVALID: a rank, group or block id out of range, or `why` is no failure: nothing has
 * changed. */
KVF_API kvf_status kvf_recovery_report_blocks(kvf_recovery *recovery, uint32_t rank, uint32_t group,
                                              const uint32_t *block_ids, size_t count, kvf_status why);

/* Nothing on the ranks of the mask (bit r: rank r) will write to the request's blocks any more: KVF_EVENT_RELEASED; or
 * kvf_load_abort() did not find the load and none will be started; or the rank's process has ended. Any number of
 * times. KVF_NOT_FOUND: not in the table (any more). KVF_INVALID: no rank, or one out of range. */
KVF_API kvf_status kvf_recovery_released(kvf_recovery *recovery, uint64_t request_id, uint64_t ranks_mask);

/* ---- what to do ---- */

typedef enum kvf_recovery_event_kind {
  KVF_RECOVERY_READY = 1,     /* all blocks are good: go on after computed_tokens */
  KVF_RECOVERY_REWIND = 2,    /* go back: compute the prompt from computed_tokens on, into the same blocks */
  KVF_RECOVERY_TERMINATE = 3, /* end the request with an error, then call kvf_recovery_end() */
  KVF_RECOVERY_ABORT = 4,     /* abort the load on the ranks of ranks_mask, and report when they are released */
  KVF_RECOVERY_RELEASE = 5    /* the load is over on all ranks: release its handle and lease */
} kvf_recovery_event_kind;

/* One request's events: READY or REWIND or TERMINATE, at most one of them, once every rank has reported, and but for
 * TERMINATE once every rank is released too. After READY or REWIND a TERMINATE may follow, if a rank takes back a block
 * that the engine has gone on from. ABORT at most once. RELEASE exactly once. */
typedef struct kvf_recovery_event {
  kvf_recovery_event_kind kind;
  kvf_status status; /* the worst of the ranks: why there is something to recover; KVF_OK for READY */
  uint64_t request_id;
  uint64_t user;
  uint64_t ranks_mask; /* ABORT: ranks that are not released */
  uint32_t blockers;   /* TERMINATE: why the request cannot be rewound */
  /* READY, REWIND: K, the good blocks of each group that follow the local prefix. Behind a position where a group has
   * none (its window has passed it) they are all or none */
  uint32_t confirmed_blocks;
  uint32_t computed_tokens;  /* READY, REWIND: leading tokens whose KV is good: local_prefix + K * block_tokens */
  uint32_t recompute_tokens; /* REWIND: of the tokens that were to be loaded, those to compute instead */
} kvf_recovery_event;

/* Takes out the next event; false if there is none. Call it until then, between two steps of the engine: what it says
 * is decided in this call, from all that was reported before. */
KVF_API KVF_MUST_USE bool kvf_recovery_next_event(kvf_recovery *recovery, kvf_recovery_event *out);

/* A block whose content is not what was to be loaded: not to be published, or found by another request, before it has
 * been computed. */
typedef struct kvf_recovery_error {
  uint64_t request_id;
  uint32_t group;
  uint32_t block_id;
  uint32_t position;
  int32_t status; /* kvf_status: the request's */
} kvf_recovery_error;

/* Takes out the failed blocks of the requests that REWIND or TERMINATE has come for, at most `capacity`; returns how
 * many. Each comes once; those of requests that leave the table before are dropped. */
KVF_API size_t kvf_recovery_drain_errors(kvf_recovery *recovery, kvf_recovery_error *out, size_t capacity);

/* Counters since kvf_recovery_open(), then gauges. */
typedef struct kvf_recovery_stats {
  uint64_t admitted;
  uint64_t ready;
  uint64_t rewound;
  uint64_t terminated;
  uint64_t aborted; /* ABORT events */
  uint64_t released;
  uint64_t kept_blocks; /* confirmed ones of rewound requests */
  uint64_t recompute_tokens;
  uint64_t errors;         /* failed blocks drained */
  uint64_t unknown_blocks; /* reported as failed, of no request */
  uint64_t late_reports;   /* for requests that had been told what to do, or had left */
  uint32_t open;           /* requests in the table */
  uint32_t loading;        /* of these, not released yet */
} kvf_recovery_stats;

KVF_API void kvf_recovery_get_stats(const kvf_recovery *recovery, kvf_recovery_stats *out);

KVF_C_END
#endif
