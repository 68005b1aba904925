/* kvferry/node.h: a node's life, its memory, its events.
 *
 * A node is one kvferry instance in a process. A process may have several nodes, for example one for each device. A
 * *rank node* registers a rank's KV memory, publishes leases of it and loads into it. It listens, unless it only loads.
 * A *control node* belongs to an engine's scheduler. It reserves leases, makes tickets, and renews other engines'
 * leases; it merges the ranks' reports and gives the verdict. One node may be both (one-process engines).
 *
 * Threads: any thread may call any function at any time, with one exception. During kvf_node_close() no other call may
 * be under way, and none may follow. No call blocks on a peer, on the network or on a lock held during I/O.
 *
 * Fork: fork() and exec() with open nodes is allowed. A child without exec() must not use a node of its parent. It may
 * close the node, which has no effect. A child has none of the library's descriptors and no fence table. A child
 * without exec() has a copy of the process' other memory, with the key. The descriptors that UCX opens for the
 * transport ucx are inherited.
 */
#ifndef KVFERRY_NODE_H
#define KVFERRY_NODE_H

#include "kvferry/config.h"
#include "kvferry/part.h"

KVF_C_BEGIN

/* Starts a node: its threads, its socket (if config->listen is not empty), its random incarnation. `config` is copied.
 * If the node does not listen, its transports are opened by kvf_node_register(). On success *out is the caller's, for
 * kvf_node_close(). On failure *out is NULL, and `message` (may be NULL) says what to change.
 *
 * - KVF_INVALID: an option or the key file is unusable, or there is no key for an address off loopback.
 * - KVF_ADDRESS_IN_USE: choose another port (or 0 for any free one).
 * - KVF_TRANSFER_SETUP: the machine does not support the only transport.
 * - KVF_SYSTEM, KVF_NO_MEMORY: the operating system refused. */
KVF_API KVF_MUST_USE kvf_status kvf_node_open(const kvf_config *config, kvf_node **out,
                                              char message[KVF_MESSAGE_BYTES_MAX]);

/* Ends all leases (readers see them ended before this returns) and aborts all loads. Waits until no thread of the
 * library uses memory of the caller, then frees the node. Takes at most about release_timeout_ms, unless a copy is
 * stuck in the kernel. Then it waits for that copy, because the copy's destination is the caller's memory. Has no
 * effect on NULL, or in a forked child on a node of the parent. */
KVF_API void kvf_node_close(kvf_node *node);

/* ---- memory ---- */

/* One layer's pool: `blocks` blocks, the i-th at base + i * stride_bytes, block_bytes long. A block has `heads` equal
 * parts (KV heads outermost; 1 if blocks are not split over ranks). heads_total is the number of heads over all ranks
 * of the engine. Regions pair by their index: the consumer's i-th region is loaded from the producer's i-th. */
typedef struct kvf_region {
  void *base;
  uint64_t stride_bytes;
  uint32_t block_bytes;
  uint32_t blocks;
  uint32_t heads;
  uint32_t heads_total;
  uint32_t group; /* KV group whose block ids index this region */
  kvf_memory_kind memory;
  uint32_t device; /* its number among the devices of that kind in this process; 0 for KVF_MEMORY_HOST */
} kvf_region;

/* Registers the rank's whole KV memory; one registration at a time. `regions` is copied. The memory stays the caller's.
 * It must stay mapped until kvf_node_unregister() has returned KVF_OK, or kvf_node_close() has returned.
 *
 * No other process may write the memory, and it must disappear with this process. Do not use a file in /dev/shm: after
 * a crash, a new process could overwrite it while its old leases still look live. Regions on devices must all be on one
 * device: use one node for each device. A transport that does not support this kind of memory is left out, and the log
 * says so. A node that does not listen (option listen is empty) may register too: it can load, but not publish.
 *
 * - KVF_EXISTS: the node has registered memory already.
 * - KVF_INVALID: a region is empty, or is not memory of its kind and device (the log names it). Or block_bytes is not a
 *   multiple of heads, or a group has no region. Or regions have different heads_total, or the engine's ranks cannot
 *   share the heads evenly.
 * - KVF_LIMIT: more than KVF_REGIONS_MAX regions or KVF_GROUPS_MAX groups.
 * - KVF_TRANSFER_SETUP: no transport is left, or one that the option require names is left out. Or this machine cannot
 *   use this kind of memory. The log says which. For a node that does not listen also: as for kvf_node_open().
 * - KVF_SYSTEM, KVF_NO_MEMORY: for a node that does not listen, as for kvf_node_open(). */
KVF_API KVF_MUST_USE kvf_status kvf_node_register(kvf_node *node, const kvf_region *regions, size_t count);

/* kvf_node_register() for regions whose block is more than one piece of keys and values. `layout` (copied) describes
 * the parts of a block: part.h. The regions' heads, heads_total and group are not read.
 *
 * With the option `checksum`, a checksum covers a whole block. So each part must have one row and its own region, and
 * tokens must not be dealt to ranks. If the producer has no checksums, its blocks are loaded unverified, and the log
 * says so.
 *
 * Errors: those of kvf_node_register(), and
 *
 * - KVF_INVALID: a part is not within its region's block, or breaks a rule of part.h. Or the option `checksum` is on,
 *   and a part cannot have checksums (the log names it).
 * - KVF_LIMIT: more than KVF_PARTS_MAX parts, or too many heads for checksums. */
KVF_API KVF_MUST_USE kvf_status kvf_node_register_layout(kvf_node *node, const kvf_region *regions, size_t count,
                                                         const kvf_layout *layout);

/* Ends every lease (readers see them ended before this returns) and aborts every load. Peers are told.
 *
 * - KVF_OK: the library does not use the memory any more. Memory, the same or other, may be registered again. Publish
 *   and load only after that.
 * - KVF_AGAIN: a read has not ended yet. Keep the memory mapped, poll, and call again. */
KVF_API KVF_MUST_USE kvf_status kvf_node_unregister(kvf_node *node);

/* ---- engine ---- */

/* Writes this rank's address record: listen address, incarnation, rank, and the layers of the registered memory. These
 * are opaque bytes for kvf_node_set_ranks() of the engine's control node. KVF_ADDRESS_BYTES_MAX bytes of room are
 * enough. A rank that only loads needs neither this function nor kvf_node_set_ranks().
 *
 * Register the memory first. A record made before contains no layers. Then loads from an engine that splits layers or
 * tokens over ranks end with KVF_INCOMPATIBLE.
 * KVF_LIMIT: `capacity` is too small. KVF_INVALID: the node does not listen. */
KVF_API KVF_MUST_USE kvf_status kvf_node_address(kvf_node *node, void *out, size_t capacity, size_t *out_bytes);

/* Gives the control node the addresses of its engine's ranks, which later tickets name. `records` holds `ranks` records
 * one after the other, in any order; the i-th is bytes[i] long. May be called again (a restarted worker, other memory).
 *
 * Ranks with the same layers are a stage of the engine's pipeline, and share heads and tokens in the order of their
 * rank numbers. All stages must have the same number of ranks, and no layer in common. Else loads from this engine end
 * with KVF_INCOMPATIBLE.
 * KVF_INVALID: not address records, or not exactly one for each of config->ranks ranks. Or the records disagree on the
 * number of ranks that tokens are dealt to. */
KVF_API KVF_MUST_USE kvf_status kvf_node_set_ranks(kvf_node *node, const void *records, const size_t *bytes,
                                                   size_t ranks);

/* Refuses new leases (KVF_DRAINING) from now on. Then poll kvf_node_stats() until leases_live is 0, or as long as you
 * can wait. */
KVF_API void kvf_node_drain(kvf_node *node);

/* False if a load has not been released within release_timeout_ms, or if the device of the registered memory is lost.
 * Then some or all blocks of the engine cannot be used again: replace the engine. */
KVF_API bool kvf_node_healthy(kvf_node *node);

/* ---- events ---- */

typedef enum kvf_event_kind {
  KVF_EVENT_LEASE_ENDED = 1,      /* rank node: the lease's blocks belong to the engine again */
  KVF_EVENT_LOAD = 2,             /* rank node: the load has its outcome */
  KVF_EVENT_RELEASED = 3,         /* rank node: the load's destination blocks will not be written any more */
  KVF_EVENT_VERDICT = 4,          /* control node: what to do with the request */
  KVF_EVENT_REQUEST_RELEASED = 5, /* control node: no rank will write to the request's blocks any more */
  KVF_EVENT_REQUEST_STUCK = 6,    /* control node: the time of release is unknown: go on without the blocks */
  KVF_EVENT_TICKET = 7            /* a find is over: kvf_ticket_find() */
} kvf_event_kind;

typedef enum kvf_lease_end_cause {
  KVF_LEASE_END_COMPLETED = 1, /* a consumer has loaded all it needs, and no other is attached */
  KVF_LEASE_END_ABANDONED = 2, /* a consumer aborted, none has completed, and none is attached */
  KVF_LEASE_END_EXPIRED = 3,   /* not renewed within its TTL, or as old as lease_max_ms */
  KVF_LEASE_END_REVOKED = 4    /* ended here: kvf_lease_end(), kvf_node_unregister() */
} kvf_lease_end_cause;

/* The result of a load on one rank, or on several ranks merged. Plain data; send it to the control node in any way. */
typedef struct kvf_report {
  uint64_t request_id;
  uint64_t ranks_mask; /* bit r: rank r is in this report */
  uint32_t blocks;     /* all positions of the load, wanted or not */
  uint32_t prefix;     /* leading positions of each group, of block_tokens each, that were not wanted or are good on all
                          these ranks; if all are, `blocks` */
  int32_t status;      /* kvf_status: KVF_OK if all blocks are good, else the reason of the worst rank */
  uint32_t reserved;
} kvf_report;

typedef enum kvf_action {
  KVF_ACTION_USE = 1,       /* all blocks are good */
  KVF_ACTION_RECOMPUTE = 2, /* the first keep_tokens tokens are good in each group: compute the rest */
  KVF_ACTION_FAIL = 3       /* end the request with an error */
} kvf_action;

typedef struct kvf_verdict {
  kvf_action action;
  kvf_status status;         /* the reason; KVF_OK for KVF_ACTION_USE */
  uint32_t keep_blocks;      /* good leading positions of each group, of block_tokens each; if all are good: all
                                positions of the load */
  uint32_t keep_tokens;      /* keep_blocks in tokens, at most those of the prompt */
  uint32_t recompute_tokens; /* tokens that the engine has to compute itself */
  uint32_t retry_after_ms;   /* for KVF_ACTION_FAIL: wait so long before a retry; 0: do not retry */
} kvf_verdict;

typedef struct kvf_event {
  kvf_event_kind kind;
  uint32_t reserved;
  uint64_t id;   /* of the lease, load, request or find */
  uint64_t user; /* the caller's own value, from publish, load, request_open or ticket_find */
  union {
    kvf_lease_end_cause lease_end; /* KVF_EVENT_LEASE_ENDED */
    kvf_report report;             /* KVF_EVENT_LOAD */
    kvf_verdict verdict;           /* KVF_EVENT_VERDICT */
    kvf_status found;              /* KVF_EVENT_TICKET: KVF_OK: call kvf_ticket_take(); else the reason */
    uint64_t reserved[8];
  } u;
} kvf_event;

/* Takes up to `capacity` events, any number; returns the number that it wrote. The others wait: no event is lost. Never
 * blocks. It also drives small reads in flight over tcp and ucx (option inline_bytes); they go on without it too.
 *
 * Each event comes once, and those of one load or request come in order:
 *
 * - A load: LOAD, then RELEASED.
 * - A request: VERDICT (unless it was cancelled), perhaps REQUEST_STUCK, then REQUEST_RELEASED (if it had begun).
 *
 * docs/c-guide.md has a table of the events that follow each call. */
KVF_API size_t kvf_node_poll(kvf_node *node, kvf_event *events, size_t capacity);

/* A file descriptor that is readable while kvf_node_poll() has an event, for one or more epoll sets of the caller.
 * Small reads need no separate wake-up. With edge-triggered epoll, poll until kvf_node_poll() writes fewer events than
 * `capacity`. If several threads poll, one may get no event. Never read from it, never close it. */
KVF_API int kvf_node_event_fd(kvf_node *node);

KVF_C_END
#endif
