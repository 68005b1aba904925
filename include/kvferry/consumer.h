/* kvferry/consumer.h: finding tickets, requests and loads.
 *
 *   any node       kvf_ticket_find ──► KVF_EVENT_TICKET ──► kvf_ticket_take (unless the ticket came some other way)
 *   control node   kvf_request_open, _begin ──► kvf_request_report … ──► KVF_EVENT_VERDICT
 *                                              kvf_request_released … ──► KVF_EVENT_REQUEST_RELEASED
 *   each rank      kvf_load_start ──► KVF_EVENT_LOAD (its report to the control node) ──► KVF_EVENT_RELEASED (as well)
 *                                └──► it failed: kvf_request_released of this rank, and nothing else
 *   control node   kvf_request_open failed ──► kvf_request_refused, which has the verdict
 *   to give up     kvf_request_cancel, and kvf_load_abort on each rank, in either order: no verdict; the rest as ever
 *
 * Sources: where a prompt has been computed by several engines, the text that is given as the ticket may be all their
 * tickets, joined by ',' (at most KVF_SOURCES_MAX), the preferred one first. The leases of all that fit are kept
 * alive, and their producers are told the end. A load that fails at one source (whose reason says retry_elsewhere) goes
 * on from the next, under the same deadline, with the blocks from the first that is missing on, and not before the last
 * read of the old one has ended (which is waited for as long as the node is healthy). A source that is only slow is
 * waited for. Each ticket must be genuine: one that is altered or forged spoils the text. A genuine one that does not
 * fit (another model or prompt, or a position that the first one has and it has not) is left out, as a stale replica's
 * may be; where none fits the text is refused as its first ticket would be.
 *
 * Replicas: where several ranks of a source have the same layers and heads (MLA; fewer KV heads than ranks), loads
 * take turns at them. When all sources have failed, each such source is tried once more, at other ranks of it.
 */
#ifndef KVFERRY_CONSUMER_H
#define KVFERRY_CONSUMER_H

#include "kvferry/node.h"

KVF_C_BEGIN

/* ---- to find a ticket: instead of being handed it by a router ---- */

#define KVF_FIND_TIMEOUT_MS_MAX 600000u

/* Any node: asks producers, by the prompt, for the ticket that one of them has offered (kvf_ticket_offer()). Asked are
 * those of the option peers, and nobody else: all of them, or, if `at` is not NULL, the one that the option names so,
 * or that has this address (HOST:PORT). Nothing that a client says makes the node connect anywhere else.
 *
 * One KVF_EVENT_TICKET follows, with the find's id and `user`, within timeout_ms (0: handshake_timeout_ms). Its
 * `found`: KVF_OK: kvf_ticket_take() has the ticket: genuine, and of this prompt. The first that came is taken; the
 * lease of another one runs out. KVF_NOT_FOUND: nobody that has answered has one: compute the prompt, or ask again if
 * it may be offered later. KVF_DEADLINE: somebody has not answered in time. KVF_PEER_DOWN, or another status of a lost
 * peer: nobody could be asked; of several peers, why the last could not. KVF_NO_MEMORY.
 *
 * A producer gives an offer to one find: ask once for each request, and take what was found to kvf_request_open(), or
 * its lease keeps the producer's blocks until it runs out. KVF_NOT_FOUND: `at` is none of the option peers, or there
 * are none. KVF_NO_RESOURCE: too many finds are open, or producers in use. KVF_INVALID: a NULL argument, or a longer
 * timeout than KVF_FIND_TIMEOUT_MS_MAX. KVF_NO_MEMORY. */
KVF_API KVF_MUST_USE kvf_status kvf_ticket_find(kvf_node *node, const kvf_prompt *prompt, const char *at,
                                                uint32_t timeout_ms, uint64_t user, uint64_t *find_id);

/* Writes the ticket (text, not terminated) of a find whose event has said KVF_OK, and forgets the find: once, within
 * half a minute of the event; whoever wants it no more lets that time pass. KVF_NOT_FOUND: no such find (any more), or
 * it has not said so. KVF_LIMIT: `capacity` is too small (KVF_TICKET_BYTES_MAX is always enough); the ticket can still
 * be taken. */
KVF_API KVF_MUST_USE kvf_status kvf_ticket_take(kvf_node *node, uint64_t find_id, char *ticket, size_t capacity,
                                                size_t *ticket_bytes);

/* Which prompt a ticket is for, the first where several are joined: for who keeps tickets by what is in them, before
 * anything is done with them. Nothing is connected to. KVF_BAD_TICKET: not a ticket, or altered. KVF_OTHER_KEY: signed
 * with another key. KVF_INCOMPATIBLE: of another release's version. KVF_INVALID: a NULL argument. KVF_NO_MEMORY. *out
 * is set on success only. */
KVF_API KVF_MUST_USE kvf_status kvf_ticket_prompt(const kvf_node *node, const char *ticket, size_t ticket_bytes,
                                                  kvf_prompt *out);

/* ---- requests and loads ---- */

/* The options that a request may have of its own. */
typedef struct kvf_request_options {
  kvf_policy policy;
  uint32_t auto_max_recompute_tokens;
  uint32_t load_timeout_ms;
  /* A shorter good prefix of a failed load is of no use to the engine: what its windows look at would not be there, or
   * it has a state of all tokens only. 0: any may be kept; UINT32_MAX: all, or none. Not from text. */
  uint32_t keep_from_tokens;
  /* What the engine calls the request ("cmpl-8cf87847"): lines of the log name it so. Copied by kvf_request_open(), as
   * far as KVF_REQUEST_NAME_BYTES_MAX, with '?' for control characters. NULL: it has no name. Not from text. */
  const char *name;
  uint64_t reserved[4]; /* zero */
} kvf_request_options;

/* Fills *options with the node's own. Any thread. */
KVF_API void kvf_request_options_init(const kvf_node *node, kvf_request_options *options);

/* Sets one of them from text that may come from the engine's client: name and value as for kvf_config_set(), but
 * load_timeout_ms can only be made shorter, since it is the engine's blocks that a load holds. On failure *options is
 * unchanged, and `message` (may be NULL) says what is allowed: send it to the client.
 * KVF_NOT_FOUND: not an option of a request. KVF_INVALID: the value. Any thread. */
KVF_API KVF_MUST_USE kvf_status kvf_request_options_set(kvf_request_options *options, const char *name,
                                                        const char *value, char message[KVF_MESSAGE_BYTES_MAX]);

/* What a ticket says, for the engine's block allocation. */
typedef struct kvf_request_info {
  uint64_t id;     /* the request's id: give it to the ranks; unique in the life of the control node */
  uint32_t tokens; /* tokens whose KV the ticket offers */
  uint32_t groups;
  uint32_t counts[KVF_GROUPS_MAX]; /* positions of each group */
  uint32_t load_timeout_ms;        /* of the request's options: give it to the ranks' kvf_load_params */
  /* Control address of the first source's first rank, as text, for logs and errors: where there are several sources,
   * not always the one that failed last. */
  char peer[KVF_HOST_BYTES_MAX];
  /* Requests of this node that have the same number came with the same ticket: they keep its leases alive together, as
   * one consumer, and the leases end with the last of them. Unique in the life of the control node; never 0. */
  uint64_t attachment;
  uint64_t reserved[3];
} kvf_request_info;

/* Control node: takes up a ticket for the prompt that this engine was asked for. From here the lease is renewed by the
 * library's own thread until the verdict, kvf_request_cancel() or kvf_request_detach(). A request that waits has its
 * verdict as soon as no source is left: each has ended the lease, or does not know it, or is another process, or could
 * not be reached at two renewals in a row (they are a third of the TTL apart, 5 s at most). `options` may be NULL (the
 * node's configuration); `user` comes back in the verdict. *info is set on success only. KVF_BAD_TICKET: not a ticket,
 * altered, or of another prompt: nothing was connected to; go on by the engine's policy (recompute is safe).
 * KVF_OTHER_KEY: signed with another key: as KVF_BAD_TICKET, but the next ticket of that engine will be, too.
 * KVF_INCOMPATIBLE: made for another model or layout (the log names the identity's field that differs), or of another
 * release's version. KVF_NO_RESOURCE: too many requests open, or producers in use; retry later or elsewhere.
 * KVF_NO_MEMORY: retry later or elsewhere. KVF_INVALID: a NULL argument, or reserved room of options is not zero. */
KVF_API KVF_MUST_USE kvf_status kvf_request_open(kvf_node *node, const char *ticket, size_t ticket_bytes,
                                                 const kvf_prompt *prompt, const kvf_request_options *options,
                                                 uint64_t user, kvf_request_info *info);

/* Control node: what to do with a prompt of `tokens` tokens whose ticket kvf_request_open() has refused with `status`:
 * the verdict of a load that brought nothing, by the same policy and out of the same budget. `options` as there. There
 * is no request and no event. KVF_INVALID: a NULL argument. *out is set on success only. */
KVF_API KVF_MUST_USE kvf_status kvf_request_refused(kvf_node *node, kvf_status status, uint32_t tokens,
                                                    const kvf_request_options *options, kvf_verdict *out);

/* Control node: the engine lets this request wait while another one of the same attachment loads, since it will find
 * the blocks in the engine's own cache; or, with `waits` false, the wait is over. The time of its waits is taken from
 * that of its load, load_timeout_ms, which the ranks' kvf_load_params must say, too; when there is none left the
 * verdict comes, of KVF_DEADLINE. A repetition changes nothing. KVF_NOT_FOUND: cancelled, or the verdict has been
 * polled. KVF_EXISTS: has begun. */
KVF_API KVF_MUST_USE kvf_status kvf_request_wait(kvf_node *node, uint64_t request_id, bool waits);

/* Control node: the engine's ranks are about to load, and its wait, if any, is over. The load's deadline runs from
 * here; the verdict comes by then plus release_timeout_ms, whatever the ranks do, and perhaps before they report, if no
 * source was left already. KVF_NOT_FOUND: cancelled, or the verdict has been polled. KVF_EXISTS: has begun. */
KVF_API KVF_MUST_USE kvf_status kvf_request_begin(kvf_node *node, uint64_t request_id);

/* Control node: what one rank, or several merged, found. Idempotent; late and unknown reports are ignored. When the
 * last rank is in, the verdict comes and the producer's ranks are told. A report of the engine's own makes sense where
 * it knows why there is no load: `blocks` are all positions of the ticket, `prefix` is 0, and `status` is one after
 * which recomputing is safe (kvf_status_describe()), since else the verdict is KVF_ACTION_FAIL whatever the policy.
 * KVF_NOT_FOUND: no such request (any more). KVF_INVALID: a rank out of range, other numbers, or the request has not
 * begun; the log says which. */
KVF_API kvf_status kvf_request_report(kvf_node *node, const kvf_report *report);

/* Control node: nothing on the ranks of the mask (bit r: rank r) writes to the request's blocks any more:
 * KVF_EVENT_RELEASED; or kvf_load_start() failed, but with KVF_EXISTS, whose load goes on; or no load will be started
 * there. To be said of every request that has begun, cancelled ones too: its record is kept until then. When all ranks
 * are released, and after the verdict unless it was cancelled, KVF_EVENT_REQUEST_RELEASED comes, once: until then its
 * blocks are neither to be used nor freed. A rank that is released and has not reported counts as one that has reported
 * KVF_ABORTED, and no good block, which the policy may recompute: after a kvf_load_start() that failed nothing else
 * need be said. So the report of a load comes first: a later one still counts while the verdict waits for other ranks,
 * and is ignored after that. Idempotent. KVF_NOT_FOUND: no such request (any more). KVF_INVALID: no rank or one out of
 * range, or the request has not begun; the log says which. */
KVF_API kvf_status kvf_request_released(kvf_node *node, uint64_t request_id, uint64_t ranks_mask);

/* Control node: kvf_load_is_stuck() of the request on a rank. With this, or if a rank has not reported by the deadline,
 * KVF_EVENT_REQUEST_STUCK comes before KVF_EVENT_REQUEST_RELEASED, unless the verdict is KVF_ACTION_USE: go on by the
 * verdict, but with other blocks (keep_tokens is 0), and put these aside until they are released. Idempotent.
 * KVF_NOT_FOUND: no such request (any more). */
KVF_API kvf_status kvf_request_stuck(kvf_node *node, uint64_t request_id);

/* Control node: nobody wants the request any more, or this engine has all it needs without a load. Ends the lease at
 * the producer, unless another consumer is attached to it. No verdict comes after this; loads on the ranks are the
 * ranks' to abort, and to be said released. Legal in every state and any number of times. KVF_NOT_FOUND: no such
 * request (any more), or its verdict has been polled. */
KVF_API kvf_status kvf_request_cancel(kvf_node *node, uint64_t request_id);

/* As kvf_request_cancel(), but this engine gives up for reasons of its own (it is busy, or shuts down), and its client
 * may go to another one with the same ticket: lets go of the lease, which lives on until it runs out. A verdict that
 * fails the request and says when to retry has done this. */
KVF_API kvf_status kvf_request_detach(kvf_node *node, uint64_t request_id);

/* Merges what two sets of ranks found: associative, commutative, idempotent. Both must be of one request and the same
 * number of blocks. Any thread. */
KVF_API kvf_report kvf_report_merge(kvf_report a, kvf_report b);

typedef struct kvf_load_params {
  uint64_t request_id;
  const char *ticket; /* the request's, sources and all; read during the call only */
  size_t ticket_bytes;
  kvf_prompt prompt;
  kvf_blocks destination; /* all positions of the ticket; to load a subset, KVF_BLOCK_NONE where a block is not wanted
                             (this engine has it): kvf_report counts it as good */
  uint32_t timeout_ms;    /* 0: load_timeout_ms */
  uint32_t reserved;      /* zero */
  uint64_t user;
  const kvf_ordering_point *after; /* no byte is written before it; NULL: at once. Read during the call only */
  const char *name;                /* the request's (kvf_request_options), for the rank's log; copied; NULL: none */
  uint64_t reserved_too[3];        /* zero */
} kvf_load_params;

/* Rank: starts loading: connects at once, and writes once load->after is complete. On KVF_OK the destination blocks are
 * the library's until KVF_EVENT_RELEASED: nothing else may write to them or free them. The outcome (KVF_EVENT_LOAD)
 * comes by the deadline, whatever the producers do: one, however many sources were tried, with the last one's status
 * and all that they have brought. A load of no wanted blocks is done at once. On failure no event comes and the blocks
 * are untouched: kvf_request_released() says so to the control node. KVF_BAD_TICKET, KVF_INCOMPATIBLE: as for
 * kvf_request_open(); KVF_INCOMPATIBLE also: no source's ranks have this rank's layers, heads or tokens, as the log
 * says. KVF_INVALID: no memory registered, a block id out of range or named twice in its group, positions that do not
 * fit the ticket, or a point that the registered memory's kind does not know. KVF_EXISTS: a load of this request is not
 * released yet. KVF_NO_RESOURCE: loads_max loads are open, or too many producers in use. KVF_NO_MEMORY. Waits for
 * nothing but a small load over local (option inline_bytes), which is mostly over by then: for spin_us at most, and
 * where the core is shared, for one time slice in 100 ms. */
KVF_API KVF_MUST_USE kvf_status kvf_load_start(kvf_node *node, const kvf_load_params *load);

/* Rank: stops loading. Idempotent, legal in every state, returns at once. The load's events come as ever: an outcome
 * (KVF_ABORTED, unless it already had one), then its release. KVF_NOT_FOUND: released already, or unknown. */
KVF_API kvf_status kvf_load_abort(kvf_node *node, uint64_t request_id);

/* Rank: whether the load's outcome is older than release_timeout_ms and it still is not released: something may write
 * to its blocks for nobody knows how long. Let its request go on without them, and keep them until KVF_EVENT_RELEASED.
 * Worth asking while kvf_node_healthy() says no. */
KVF_API bool kvf_load_is_stuck(kvf_node *node, uint64_t request_id);

KVF_C_END
#endif
