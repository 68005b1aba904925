/* kvferry/consumer.h: finding tickets, requests and loads.
 *
 *   any node       kvf_ticket_find ──► KVF_EVENT_TICKET ──► kvf_ticket_take (unless a router sends the ticket)
 *   control node   kvf_request_open, _begin ──► kvf_request_report … ──► KVF_EVENT_VERDICT
 *                                              kvf_request_released … ──► KVF_EVENT_REQUEST_RELEASED
 *   each rank      kvf_load_start ──► KVF_EVENT_LOAD ──► KVF_EVENT_RELEASED (send both to the control node)
 *                                └──► it failed: kvf_request_released for this rank, no other call
 *   control node   kvf_request_open failed ──► kvf_request_refused, which returns the verdict
 *   to give up     kvf_request_cancel, and kvf_load_abort on each rank, in either order: no verdict, all other events
 *
 * Sources: if several engines have computed a prompt, the ticket text may contain all their tickets. They are joined by
 * ',' (at most KVF_SOURCES_MAX), the preferred one first.
 *
 * - The leases of all tickets that fit are renewed, and their producers are told the end.
 * - If a load fails at one source with a status that has retry_elsewhere, it continues at the next source. The deadline
 *   stays, and blocks are loaded from the first missing one on. The load first waits until the last read of the old
 *   source has ended, as long as the node is healthy. A slow source is not a failure: the load waits for it.
 * - Each ticket must be genuine: if one is altered or forged, the whole text is refused.
 * - A genuine ticket that does not fit is left out, for example a stale replica's. It is of another model or prompt, or
 *   lacks a position that the first ticket has. If no ticket fits, the text is refused with the status of its first
 *   ticket.
 *
 * Replicas: several ranks of a source may have the same layers and heads (MLA; fewer KV heads than ranks). Then loads
 * take turns at them. After all sources have failed, each such source is tried once more, at its other ranks.
 */
#ifndef KVFERRY_CONSUMER_H
#define KVFERRY_CONSUMER_H

#include "kvferry/node.h"

KVF_C_BEGIN

/* ---- to find a ticket, if no router sends it ---- */

#define KVF_FIND_TIMEOUT_MS_MAX 600000u

/* Any node: asks producers for an offered ticket of the prompt (kvf_ticket_offer()). It asks the addresses of the
 * option peers, and no others. `at` NULL: all of them. Else the one that the option names so, or that has this address
 * (HOST:PORT). So a client cannot make the node connect to an address outside the option.
 *
 * One KVF_EVENT_TICKET follows within timeout_ms (0: handshake_timeout_ms), with the find's id and `user`. Its `found`:
 *
 * - KVF_OK: kvf_ticket_take() returns the ticket. It is genuine, and of this prompt. The first answer is taken; the
 *   lease of another answer expires.
 * - KVF_NOT_FOUND: no peer that answered has a ticket. Compute the prompt, or ask again if it may be offered later.
 * - KVF_DEADLINE: a peer has not answered in time.
 * - KVF_PEER_DOWN, or another status of a lost peer: no peer could be asked. Of several peers, the last one's status.
 * - KVF_NO_MEMORY.
 *
 * A producer gives an offer to one find. So ask once for each request, and give the ticket to kvf_request_open(). Else
 * its lease keeps the producer's blocks until it expires.
 *
 * - KVF_NOT_FOUND: `at` is none of the option peers, or the option is empty.
 * - KVF_NO_RESOURCE: too many finds are open, or too many producers in use.
 * - KVF_INVALID: a NULL argument, or timeout_ms above KVF_FIND_TIMEOUT_MS_MAX.
 * - KVF_NO_MEMORY. */
KVF_API KVF_MUST_USE kvf_status kvf_ticket_find(kvf_node *node, const kvf_prompt *prompt, const char *at,
                                                uint32_t timeout_ms, uint64_t user, uint64_t *find_id);

/* Writes the ticket (text, not terminated) of a find whose event had KVF_OK, and forgets the find. Call it once, within
 * half a minute of the event. If you do not want the ticket any more, call nothing: the find is forgotten after that
 * time. KVF_NOT_FOUND: no such find (any more), or it had no KVF_OK. KVF_LIMIT: `capacity` is too small
 * (KVF_TICKET_BYTES_MAX is always enough); the ticket can still be taken. */
KVF_API KVF_MUST_USE kvf_status kvf_ticket_take(kvf_node *node, uint64_t find_id, char *ticket, size_t capacity,
                                                size_t *ticket_bytes);

/* Writes the prompt of a ticket, or of the first of several joined ones: for programs that store tickets by prompt.
 * Makes no connection. *out is set on success only. Any thread.
 *
 * - KVF_BAD_TICKET: not a ticket, or altered.
 * - KVF_OTHER_KEY: signed with another key.
 * - KVF_INCOMPATIBLE: its version is that of another release.
 * - KVF_INVALID: a NULL argument.
 * - KVF_NO_MEMORY. */
KVF_API KVF_MUST_USE kvf_status kvf_ticket_prompt(const kvf_node *node, const char *ticket, size_t ticket_bytes,
                                                  kvf_prompt *out);

/* ---- requests and loads ---- */

/* The options that can be set for one request. */
typedef struct kvf_request_options {
  kvf_policy policy;
  uint32_t auto_max_recompute_tokens;
  uint32_t load_timeout_ms;
  /* The smallest prefix, in tokens, that the engine can continue from after a failed load. Windows and states can make
   * a shorter prefix useless. 0: any. UINT32_MAX: only a complete load. kvf_request_options_set() cannot set it. */
  uint32_t keep_from_tokens;
  /* The engine's name of the request ("cmpl-8cf87847"), for log lines. kvf_request_open() copies it, cuts it to
   * KVF_REQUEST_NAME_BYTES_MAX, and writes '?' for control characters. NULL: no name. kvf_request_options_set() cannot
   * set it. */
  const char *name;
  uint64_t reserved[4]; /* zero */
} kvf_request_options;

/* Fills *options with the values of the node's configuration. Any thread. */
KVF_API void kvf_request_options_init(const kvf_node *node, kvf_request_options *options);

/* Sets one option from text, which may come from the engine's client. Name and value are as for kvf_config_set().
 * load_timeout_ms can only be made shorter, because a load holds blocks of the engine. On failure *options is
 * unchanged, and `message` (may be NULL) names the allowed values: send it to the client. Any thread.
 * KVF_NOT_FOUND: not an option of a request. KVF_INVALID: the value is not allowed. */
KVF_API KVF_MUST_USE kvf_status kvf_request_options_set(kvf_request_options *options, const char *name,
                                                        const char *value, char message[KVF_MESSAGE_BYTES_MAX]);

/* The content of a ticket, for the engine's block allocation. */
typedef struct kvf_request_info {
  uint64_t id;     /* the request's id: give it to the ranks; unique in the life of the control node */
  uint32_t tokens; /* number of tokens whose KV the ticket offers */
  uint32_t groups;
  uint32_t counts[KVF_GROUPS_MAX]; /* positions of each group */
  uint32_t load_timeout_ms;        /* of the request's options: give it to the ranks' kvf_load_params */
  /* Control address of the first source's first rank, as text, for logs and errors. With several sources, another one
   * may have failed last. */
  char peer[KVF_HOST_BYTES_MAX];
  /* Requests of this node with the same ticket have the same number. They renew its leases together, as one consumer.
   * The leases end with the last of these requests. Unique in the life of the control node; never 0. */
  uint64_t attachment;
  uint64_t reserved[3];
} kvf_request_info;

/* Control node: accepts a ticket for the prompt of the client's request. `options` may be NULL (the node's
 * configuration). `user` comes back in the verdict. *info is set on success only.
 *
 * A thread of the library renews the lease until the verdict, kvf_request_cancel() or kvf_request_detach(). A request
 * that waits gets its verdict as soon as no source is left. A source is lost if it has ended the lease, does not know
 * the lease, or is another process. It is also lost if it could not be reached at two renewals in a row. Renewals are a
 * third of the TTL apart, 5 s at most.
 *
 * - KVF_BAD_TICKET: not a ticket, altered, or of another prompt. No connection was made. Follow the engine's policy:
 *   recompute is safe.
 * - KVF_OTHER_KEY: signed with another key, as all tickets of that engine will be. Else as KVF_BAD_TICKET.
 * - KVF_INCOMPATIBLE: made for another model or layout (the log names the field of the identity that differs), or its
 *   version is that of another release.
 * - KVF_NO_RESOURCE: too many requests are open, or too many producers in use. Retry later or elsewhere.
 * - KVF_NO_MEMORY: retry later or elsewhere.
 * - KVF_INVALID: a NULL argument, or a reserved field of options is not zero. */
KVF_API KVF_MUST_USE kvf_status kvf_request_open(kvf_node *node, const char *ticket, size_t ticket_bytes,
                                                 const kvf_prompt *prompt, const kvf_request_options *options,
                                                 uint64_t user, kvf_request_info *info);

/* Control node: the verdict for a prompt of `tokens` tokens whose ticket kvf_request_open() refused with `status`. It
 * is the verdict of a load without a good block: policy and budget are those of loads. `options`: as in
 * kvf_request_open(). There is no request and no event. *out is set on success only. KVF_INVALID: a NULL argument. */
KVF_API KVF_MUST_USE kvf_status kvf_request_refused(kvf_node *node, kvf_status status, uint32_t tokens,
                                                    const kvf_request_options *options, kvf_verdict *out);

/* Control node: `waits` true: this request waits while another request of the same attachment loads. It will find the
 * blocks in the engine's own cache. `waits` false: the wait is over. The time of waits and load together is
 * load_timeout_ms, which the ranks' kvf_load_params need too. When it is used up, the verdict comes, with KVF_DEADLINE.
 * Idempotent. KVF_NOT_FOUND: cancelled, or the verdict has been polled. KVF_EXISTS: the request has begun. */
KVF_API KVF_MUST_USE kvf_status kvf_request_wait(kvf_node *node, uint64_t request_id, bool waits);

/* Control node: the engine's ranks are about to load. This also ends a wait of the request. The load's deadline runs
 * from here. The verdict comes at the latest release_timeout_ms after the deadline, also without any report. It may
 * come before the reports, if no source was left. KVF_NOT_FOUND: cancelled, or the verdict has been polled. KVF_EXISTS:
 * the request has begun already. */
KVF_API KVF_MUST_USE kvf_status kvf_request_begin(kvf_node *node, uint64_t request_id);

/* Control node: the result of one rank, or of several merged. Idempotent; late and unknown reports are ignored. After
 * the last rank's report the verdict comes, and the producer's ranks are told.
 *
 * The engine may make a report itself if it knows why there is no load. Then `blocks` are all positions of the ticket,
 * and `prefix` is 0. `status` must have recompute_safe (kvf_status_describe()). Else the verdict is KVF_ACTION_FAIL
 * under every policy.
 * KVF_NOT_FOUND: no such request (any more). KVF_INVALID: a rank out of range, wrong numbers, or the request has not
 * begun; the log says which. */
KVF_API kvf_status kvf_request_report(kvf_node *node, const kvf_report *report);

/* Control node: the ranks of the mask (bit r: rank r) do not write to the request's blocks any more. Idempotent. Call
 * it for each rank of every request that has begun, also of a cancelled one; the request's record is kept until then.
 * Call it after one of these:
 *
 * - KVF_EVENT_RELEASED.
 * - kvf_load_start() failed. Exception: after KVF_EXISTS a load goes on, so wait for KVF_EVENT_RELEASED.
 * - The engine decided not to start a load on the rank.
 *
 * When all ranks are released, KVF_EVENT_REQUEST_RELEASED comes, once; if the request was not cancelled, it comes after
 * the verdict. Do not use or free the blocks before that event.
 *
 * Send the report of a load first. A rank that is released without a report counts as KVF_ABORTED without a good block,
 * which the policy may recompute. So after a failed kvf_load_start() this call is enough. A later report counts while
 * the verdict waits for other ranks; after that it is ignored.
 * KVF_NOT_FOUND: no such request (any more). KVF_INVALID: the mask has no rank or one out of range, or the request has
 * not begun; the log says which. */
KVF_API kvf_status kvf_request_released(kvf_node *node, uint64_t request_id, uint64_t ranks_mask);

/* Control node: kvf_load_is_stuck() was true for the request on a rank. Then KVF_EVENT_REQUEST_STUCK comes before
 * KVF_EVENT_REQUEST_RELEASED, unless the verdict is KVF_ACTION_USE. It also comes if a rank has not reported by the
 * deadline. After it follow the verdict, but with other blocks (keep_tokens is 0). Keep the old blocks aside until they
 * are released. Idempotent. KVF_NOT_FOUND: no such request (any more). */
KVF_API kvf_status kvf_request_stuck(kvf_node *node, uint64_t request_id);

/* Control node: the client has gone, or this engine needs no load. Ends the lease at the producer, unless another
 * consumer is attached to it. No verdict comes after this. The engine must abort the loads on its ranks, and report
 * them released. Allowed in every state and any number of times. KVF_NOT_FOUND: no such request (any more), or its
 * verdict has been polled. */
KVF_API kvf_status kvf_request_cancel(kvf_node *node, uint64_t request_id);

/* kvf_request_cancel() for an engine that gives up for its own reasons (it is busy, or shuts down). The lease stays at
 * the producer until it expires, so the client may take the same ticket to another engine. A verdict KVF_ACTION_FAIL
 * with a retry_after_ms does this by itself. */
KVF_API kvf_status kvf_request_detach(kvf_node *node, uint64_t request_id);

/* Merges the reports of two sets of ranks: associative, commutative, idempotent. Both must have the same request and
 * the same number of blocks. Any thread. */
KVF_API kvf_report kvf_report_merge(kvf_report a, kvf_report b);

typedef struct kvf_load_params {
  uint64_t request_id;
  const char *ticket; /* the request's ticket text, with all sources; read during the call only */
  size_t ticket_bytes;
  kvf_prompt prompt;
  kvf_blocks destination; /* all positions of the ticket; KVF_BLOCK_NONE: do not load the block (this engine has it);
                             kvf_report counts it as good */
  uint32_t timeout_ms;    /* 0: load_timeout_ms */
  uint32_t reserved;      /* zero */
  uint64_t user;
  const kvf_ordering_point *after; /* no byte is written before it; NULL: write at once. Read during the call only */
  const char *name;                /* name in kvf_request_options, for the rank's log; copied; NULL: none */
  uint64_t reserved_too[3];        /* zero */
} kvf_load_params;

/* Rank: starts a load: connects at once, and writes after load->after is complete. Until KVF_EVENT_RELEASED the
 * destination blocks belong to the library: the engine must not write to them or free them.
 *
 * The outcome (KVF_EVENT_LOAD) comes by the deadline, also if producers do not answer. There is one outcome for all
 * sources together: the last source's status, and the blocks of all. A load without wanted blocks is complete at once.
 * On failure no event comes, and the blocks are unchanged: call kvf_request_released() for this rank.
 *
 * Does not block on a peer. It may wait for a small load over local (option inline_bytes), for spin_us at most. Most
 * such loads are complete on return. If the core is shared, it waits at most one time slice in 100 ms.
 *
 * - KVF_BAD_TICKET: as for kvf_request_open().
 * - KVF_INCOMPATIBLE: as for kvf_request_open(). Or no source has ranks with this rank's layers, heads or tokens; the
 *   log names them.
 * - KVF_INVALID: no memory is registered, or the positions do not fit the ticket. Or a block id is out of range, or
 *   twice in its group. Or the kind of the registered memory does not know the point.
 * - KVF_EXISTS: a load of this request is not released yet.
 * - KVF_NO_RESOURCE: loads_max loads are open, or too many producers in use.
 * - KVF_NO_MEMORY. */
KVF_API KVF_MUST_USE kvf_status kvf_load_start(kvf_node *node, const kvf_load_params *load);

/* Rank: stops a load. Idempotent, allowed in every state, returns at once. The load's events still come: KVF_EVENT_LOAD
 * (KVF_ABORTED, unless it had its outcome already), then KVF_EVENT_RELEASED.
 * KVF_NOT_FOUND: released already, or unknown. */
KVF_API kvf_status kvf_load_abort(kvf_node *node, uint64_t request_id);

/* Rank: true if the load's outcome is older than release_timeout_ms, but the load is not released. Its blocks may still
 * be written, for an unknown time. Let its request go on without them, and keep them until KVF_EVENT_RELEASED. Ask
 * while kvf_node_healthy() is false. */
KVF_API bool kvf_load_is_stuck(kvf_node *node, uint64_t request_id);

KVF_C_END
#endif
