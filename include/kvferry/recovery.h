/* kvferry/recovery.h: engines that cannot rewind by themselves.
 *
 * vLLM can rewind a request after a failed load. Other engines park a request while its blocks are loaded, and cannot
 * go back. A recovery table gives such an engine's scheduler one instruction for each parked request. The instruction
 * is: go on, go back to the first token to compute, or end the request.
 *
 *   kvf_recovery_admit ──► each rank: kvf_recovery_report, _released ──► READY | REWIND | TERMINATE, then RELEASE
 *                     └──► kvf_recovery_end ──────────────────────────────► (ABORT, then) RELEASE
 *
 * The table is bookkeeping: no node, thread, clock or I/O. Only kvf_recovery_open() allocates memory. The engine gives
 * it the reports of its ranks' loads (KVF_EVENT_LOAD, KVF_EVENT_RELEASED, or another transport's equivalents). It takes
 * out the events between two of its steps.
 *
 * No rank acts on its own result alone. An event comes after the reports of all ranks, so no rank enters a collective
 * without the others. There are two ways to use tables:
 *
 * - One table in the scheduler, which sends the events to all ranks with the next step.
 * - One table in each rank. All ranks exchange their new reports with a collective that runs in *every* step, then take
 *   out all events. Equal tables give equal events in the same order. Tables are equal if they admit the same requests
 *   in the same order, and get the same reports between two steps, in any order.
 *
 * Threads: one at a time for each table. No function blocks. */
#ifndef KVFERRY_RECOVERY_H
#define KVFERRY_RECOVERY_H

#include "kvferry/node.h"

KVF_C_BEGIN

/* Limits of a table; beyond one: KVF_LIMIT. */
#define KVF_RECOVERY_REQUESTS_MAX 65536
#define KVF_RECOVERY_BLOCKS_MAX 16777216 /* of all groups' pools together; 16 bytes of memory each */

typedef struct kvf_recovery kvf_recovery;

typedef struct kvf_recovery_options {
  uint32_t ranks;
  uint32_t block_tokens;
  uint32_t requests_max;                /* requests at a time, from admission to their end */
  uint32_t recompute_max_tokens;        /* prompt tokens that the engine can compute in one step; 0: no limit */
  uint32_t groups;                      /* KV groups */
  uint32_t pool_blocks[KVF_GROUPS_MAX]; /* blocks of each group's pool; block ids must be below */
} kvf_recovery_options;

/* Makes a table. On success *out is the caller's, for kvf_recovery_close(). On failure it is NULL.
 * KVF_INVALID: a number is 0. KVF_LIMIT: a number is above its limit. KVF_NO_MEMORY. */
KVF_API KVF_MUST_USE kvf_status kvf_recovery_open(const kvf_recovery_options *options, kvf_recovery **out);

/* Frees the table, also if requests are in it. NULL is allowed. */
KVF_API void kvf_recovery_close(kvf_recovery *recovery);

/* ---- requests ---- */

/* Reasons that forbid a rewind: bits. The engine sets the first five, when it admits the request: none of them can
 * arise while the request is parked. The table sets the others. */
typedef enum kvf_rewind_blocker {
  KVF_BLOCKER_GENERATED = 1,   /* tokens have been sampled from the request, and may have left the engine */
  KVF_BLOCKER_PUBLISHED = 2,   /* other requests can find its blocks: a rewind does not repair them */
  KVF_BLOCKER_BLOCKS_GONE = 4, /* the engine does not hold the blocks any more: no place to compute into */
  KVF_BLOCKER_BEAMS = 8,       /* several beams share the blocks or have copied them */
  KVF_BLOCKER_NO_CONTEXT = 16, /* the engine cannot compute context tokens now, or at all */

  KVF_BLOCKER_TOO_LONG = 256, /* more than recompute_max_tokens would have to be computed in one step */
  KVF_BLOCKER_UNSAFE = 512,   /* a rank is lost, or its report is contradictory: the blocks may still be written */
  KVF_BLOCKER_USED = 2048     /* the failure came after READY or REWIND */
} kvf_rewind_blocker;

/* A parked request. Positions count blocks from the prompt's first token, as in kvf_load_params. */
typedef struct kvf_recovery_request {
  uint64_t request_id;          /* unique among the table's requests */
  uint64_t user;                /* comes back in its events; for example the engine's record of the request */
  kvf_blocks blocks;            /* as kvf_load_params.destination: KVF_BLOCK_NONE where nothing is loaded */
  uint32_t local_prefix_tokens; /* tokens that the engine has itself: whole blocks, not loaded */
  uint32_t tokens;              /* tokens with KV after the load: local prefix plus loaded tokens */
  uint32_t prompt_tokens;
  uint32_t blockers; /* kvf_rewind_blocker */
} kvf_recovery_request;

/* Enters a request, before its ranks start to load. `request` is copied. Until its RELEASE only the loads may write to
 * the blocks, and the engine must not free them. On failure nothing has changed.
 *
 * - KVF_INVALID: local prefix <= tokens <= prompt does not hold; or a group does not have one position for each block
 *   of `tokens`. Or the local prefix is not whole blocks, or one of its blocks is loaded. (Round the prefix down: a
 *   load overwrites whole blocks.) Or a block id is outside its pool, or `blockers` has a bit that only the library
 *   sets.
 * - KVF_LIMIT: more than KVF_BLOCKS_PER_LEASE_MAX positions.
 * - KVF_EXISTS: the id is in the table, or a block belongs to a request in it, whose load may still write to it.
 * - KVF_NO_RESOURCE: requests_max requests are in the table. Let the request wait, or compute its prompt. */
KVF_API KVF_MUST_USE kvf_status kvf_recovery_admit(kvf_recovery *recovery, const kvf_recovery_request *request);

/* The request leaves the engine: finished, terminated, or cancelled at any time. No READY, REWIND or TERMINATE comes
 * after this. If a rank may still write to its blocks, KVF_RECOVERY_ABORT comes. KVF_RECOVERY_RELEASE comes when no
 * rank may. After both this call and RELEASE, the engine may free the blocks, and admit the id and the blocks again.
 * KVF_NOT_FOUND: it has left already, or is unknown: nothing has changed. */
KVF_API kvf_status kvf_recovery_end(kvf_recovery *recovery, uint64_t request_id);

/* ---- reports of the ranks ---- */

/* The outcome of a load on one rank, or on several merged (kvf_report_merge()): the unchanged report of KVF_EVENT_LOAD.
 * In any order, any number of times. A rank may fail to start its load, or to report by the engine's own deadline. Then
 * the engine makes a report in its place: prefix 0, and the reason (KVF_RANK_LOST, unless the rank is known to be
 * released).
 * KVF_NOT_FOUND: not in the table (any more). KVF_INVALID: a rank out of range, or numbers that contradict each other
 * or the request: nothing has changed. */
KVF_API kvf_status kvf_recovery_report(kvf_recovery *recovery, const kvf_report *report);

/* For transports that name failed blocks, of any number of requests: `count` block ids of `group` on `rank`. Each
 * request that has one of them gets a report of that rank. In it the blocks before the first failed one are good, the
 * others are not. Block ids without a request are ignored. Call this before kvf_recovery_released() for the rank: after
 * that, the blocks may belong to another request. KVF_INVALID: a rank, group or block id out of range, or `why` is not
 * a failure: nothing has changed. */
KVF_API kvf_status kvf_recovery_report_blocks(kvf_recovery *recovery, uint32_t rank, uint32_t group,
                                              const uint32_t *block_ids, size_t count, kvf_status why);

/* The ranks of the mask (bit r: rank r) will not write to the request's blocks any more. Call it after
 * KVF_EVENT_RELEASED, or after the end of the rank's process. Also after kvf_load_abort() did not find the load, if
 * none will be started. Any number of times. KVF_NOT_FOUND: not in the table (any more). KVF_INVALID: the mask has no
 * rank, or one out of range. */
KVF_API kvf_status kvf_recovery_released(kvf_recovery *recovery, uint64_t request_id, uint64_t ranks_mask);

/* ---- instructions ---- */

typedef enum kvf_recovery_event_kind {
  KVF_RECOVERY_READY = 1,     /* all blocks are good: go on after computed_tokens */
  KVF_RECOVERY_REWIND = 2,    /* go back: compute the prompt from computed_tokens on, into the same blocks */
  KVF_RECOVERY_TERMINATE = 3, /* end the request with an error, then call kvf_recovery_end() */
  KVF_RECOVERY_ABORT = 4,     /* abort the load on the ranks of ranks_mask, and report when they are released */
  KVF_RECOVERY_RELEASE = 5    /* the load is over on all ranks: release its handle and lease */
} kvf_recovery_event_kind;

/* The events of one request:
 *
 * - READY, REWIND or TERMINATE: at most one of them, after every rank has reported. READY and REWIND also wait until
 *   every rank is released. After READY or REWIND a TERMINATE may follow, if a rank reports a failed block that the
 *   engine has used.
 * - ABORT: at most once.
 * - RELEASE: exactly once. */
typedef struct kvf_recovery_event {
  kvf_recovery_event_kind kind;
  kvf_status status; /* the status of the worst rank; KVF_OK for READY */
  uint64_t request_id;
  uint64_t user;
  uint64_t ranks_mask; /* ABORT: ranks that are not released */
  uint32_t blockers;   /* TERMINATE: the reasons that forbid a rewind */
  /* READY, REWIND: K, the number of good blocks of each group after the local prefix. If a group has no block at a
   * position (its window has passed it), either all or none count. */
  uint32_t confirmed_blocks;
  uint32_t computed_tokens;  /* READY, REWIND: leading tokens whose KV is good: local_prefix + K * block_tokens */
  uint32_t recompute_tokens; /* REWIND: tokens to compute that should have been loaded */
} kvf_recovery_event;

/* Takes out the next event. False: there is none. Call it until it returns false, between two steps of the engine. The
 * event is decided in this call, from all earlier reports. */
KVF_API KVF_MUST_USE bool kvf_recovery_next_event(kvf_recovery *recovery, kvf_recovery_event *out);

/* A block whose content is wrong, because its load failed. Until it is computed, it must not be published, and no other
 * request may find it. */
typedef struct kvf_recovery_error {
  uint64_t request_id;
  uint32_t group;
  uint32_t block_id;
  uint32_t position;
  int32_t status; /* kvf_status of the request */
} kvf_recovery_error;

/* Takes out failed blocks of requests that had REWIND or TERMINATE, at most `capacity`. Returns their count. Each comes
 * once. If a request leaves the table first, its failed blocks are dropped. */
KVF_API size_t kvf_recovery_drain_errors(kvf_recovery *recovery, kvf_recovery_error *out, size_t capacity);

/* Counters since kvf_recovery_open(), then gauges. */
typedef struct kvf_recovery_stats {
  uint64_t admitted;
  uint64_t ready;
  uint64_t rewound;
  uint64_t terminated;
  uint64_t aborted; /* ABORT events */
  uint64_t released;
  uint64_t kept_blocks; /* confirmed blocks of rewound requests */
  uint64_t recompute_tokens;
  uint64_t errors;         /* failed blocks drained */
  uint64_t unknown_blocks; /* reported as failed, but of no request */
  uint64_t late_reports;   /* for requests that had their event already, or had left */
  uint32_t open;           /* requests in the table */
  uint32_t loading;        /* of these, not released yet */
} kvf_recovery_stats;

/* Writes the table's numbers. */
KVF_API void kvf_recovery_get_stats(const kvf_recovery *recovery, kvf_recovery_stats *out);

KVF_C_END
#endif
