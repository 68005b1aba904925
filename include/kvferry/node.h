/* kvferry/node.h: a node's life, its memory, its events.
 *
 * A node is one kvferry instance in a process, which may have several, also each for a device of its own. A *rank node*
 * registers a rank's KV memory, publishes leases of it and loads into it. It listens, unless it only loads. A *control
 * node* lives with an engine's scheduler: it reserves leases and makes tickets, keeps other engines' leases alive,
 * merges the ranks' reports and decides. One node may be both (one-process engines).
 *
 * Threads: every function may be called from any thread at any time, except that no other call may be under way when
 * kvf_node_close() is called, and none may follow. No call blocks on a peer, on the network or on a lock held during
 * I/O.
 *
 * Fork: fork() and exec() with open nodes is fine. A child that does not call exec() must not use a node of its parent,
 * but may close it, which does nothing there. Neither holds a descriptor of the library's or a fence table; a child
 * without exec() holds a copy of the process' other memory, and so of the key. What UCX opens for the transport ucx is
 * UCX's own, and is inherited.
 */
#ifndef KVFERRY_NODE_H
#define KVFERRY_NODE_H

#include "kvferry/config.h"
#include "kvferry/part.h"

KVF_C_BEGIN

/* Starts a node: its threads, its socket (if config->listen is not empty), its random incarnation. `config` is copied.
 * The transports of one that does not listen are opened by kvf_node_register().
 * On success *out is the caller's, to be given to kvf_node_close(). On failure *out is NULL, and `message`
 * (may be NULL) says what to change.
 * KVF_INVALID: an option, or key file, is unusable, or an address off loopback without a key. KVF_ADDRESS_IN_USE:
 * choose another port (or 0 for any free one). KVF_TRANSFER_SETUP: this machine lacks what the only transport needs.
 * KVF_SYSTEM, KVF_NO_MEMORY: the operating system refused. */
KVF_API KVF_MUST_USE kvf_status kvf_node_open(const kvf_config *config, kvf_node **out,
                                              char message[KVF_MESSAGE_BYTES_MAX]);

/* Ends all leases (readers see them ended before this returns), aborts all loads, waits until no thread of the library
 * touches any memory of the caller's, and frees the node. Takes at most about release_timeout_ms, unless
 * a copy is stuck in the kernel: then it waits for that copy, since its destination is the caller's memory. Does
 * nothing to NULL, and to a node that the process has from the one that forked it. */
KVF_API void kvf_node_close(kvf_node *node);

/* ---- memory ---- */

/* One layer's pool: `blocks` blocks, the i-th at base + i * stride_bytes, block_bytes long, in `heads` equal parts (KV
 * heads outermost; 1 where blocks are not split over ranks). heads_total is the number over all ranks of the engine.
 * Regions pair by their index: the i-th of a consumer is loaded from the i-th of the producer. */
typedef struct kvf_region {
  void *base;
  uint64_t stride_bytes;
  uint32_t block_bytes;
  uint32_t blocks;
  uint32_t heads;
  uint32_t heads_total;
  uint32_t group; /* KV group whose block ids index this region */
  kvf_memory_kind memory;
  uint32_t device; /* of that kind, as this process counts them; 0 for KVF_MEMORY_HOST */
} kvf_region;

/* Registers the rank's whole KV memory; one registration at a time. The memory stays the caller's and must stay mapped
 * until kvf_node_unregister() or kvf_node_close() has returned; `regions` is copied. It must be memory that no other
 * process writes, and that does not outlive this one (as a file in /dev/shm does): nobody would end the leases of a
 * process that is gone before its successor writes there. What is on devices is on one: each has a node of its own. A
 * transport that does not serve this kind of memory is left out, as the log says. A node that does not listen (option
 * listen is empty) may register too: it can load, and not publish, since nobody could read it. KVF_EXISTS: registered
 * already. KVF_INVALID: a region is empty, or is not memory of its kind and device as the log says, block_bytes is not
 * a multiple of heads, regions disagree on heads_total, the engine's ranks cannot share that evenly, or a group has no
 * region. KVF_LIMIT: more than KVF_REGIONS_MAX or KVF_GROUPS_MAX. KVF_TRANSFER_SETUP: all transports, or one that the
 * option require names, would be left out, or this machine lacks what the kind of memory needs, as the log says; of a
 * node that does not listen also what a transport needs, and KVF_SYSTEM, KVF_NO_MEMORY as for kvf_node_open(). */
KVF_API KVF_MUST_USE kvf_status kvf_node_register(kvf_node *node, const kvf_region *regions, size_t count);

/* As kvf_node_register(), where a region's block is more than one piece of keys and values: `layout`, which is copied,
 * says what lies where (part.h); the regions' heads, heads_total and group are not read then. KVF_INVALID: besides, a
 * part is not within its region's block, or breaks a rule of part.h, or the option `checksum` is on and a part can have
 * no checksums, as the log says: these cover whole blocks, so with it each part has one row and a region of its own,
 * and tokens are not dealt to ranks. From a producer whose parts are not so, which then has no checksums, blocks are
 * loaded without being verified, as from any that has none; the log says so. KVF_LIMIT: besides, more than
 * KVF_PARTS_MAX, or, with checksums, too many heads. */
KVF_API KVF_MUST_USE kvf_status kvf_node_register_layout(kvf_node *node, const kvf_region *regions, size_t count,
                                                         const kvf_layout *layout);

/* Ends every lease (readers see them ended before this returns) and aborts every load. KVF_OK: nothing of the library
 * touches the memory any more, and other memory, or the same, may be registered; nobody publishes or loads meanwhile
 * what is meant for it. Peers are told. KVF_AGAIN: a read has not ended yet; keep the memory mapped, poll, and call
 * again. */
KVF_API KVF_MUST_USE kvf_status kvf_node_unregister(kvf_node *node);

/* ---- engine ---- */

/* Writes this rank's address record (where it listens, its incarnation and rank, and what layers the memory has that is
 * registered), KVF_ADDRESS_BYTES_MAX bytes of room. Opaque bytes for kvf_node_set_ranks() of the engine's control node.
 * Register first: a record made before says nothing of layers, and loads of an engine that is split by them, or that
 * deals tokens, end with KVF_INCOMPATIBLE. KVF_LIMIT: `capacity` is too small.
 * A rank that only loads needs neither this nor kvf_node_set_ranks(). KVF_INVALID: the node does not listen. */
KVF_API KVF_MUST_USE kvf_status kvf_node_address(kvf_node *node, void *out, size_t capacity, size_t *out_bytes);

/* Tells the control node where its engine's ranks are, for the tickets that it makes: `ranks` records one after the
 * other in `records`, the i-th bytes[i] long, in any order. Tickets made afterwards name them. May be called again (a
 * restarted worker, other memory). Ranks with the same layers are a stage of the engine's pipeline, and share heads and
 * tokens in the order of their numbers. All stages must have as many ranks and no layer in common, else loads from it
 * end with KVF_INCOMPATIBLE. KVF_INVALID: not address records, not exactly one for each of config->ranks ranks, or not
 * as many ranks in all of them that tokens are dealt to. */
KVF_API KVF_MUST_USE kvf_status kvf_node_set_ranks(kvf_node *node, const void *records, const size_t *bytes,
                                                   size_t ranks);

/* Refuses new leases (KVF_DRAINING) from now on. Then poll kvf_node_stats() until leases_live is 0, or as long
 * as you can wait. */
KVF_API void kvf_node_drain(kvf_node *node);

/* True while no load has failed to be released for release_timeout_ms, and the device is not lost on which the memory
 * is. An engine that is not healthy should be replaced: some of its blocks cannot be used again, or none. */
KVF_API bool kvf_node_healthy(kvf_node *node);

/* ---- events ---- */

typedef enum kvf_event_kind {
  KVF_EVENT_LEASE_ENDED = 1,      /* rank node: the lease's blocks are the engine's again */
  KVF_EVENT_LOAD = 2,             /* rank node: the load has its outcome */
  KVF_EVENT_RELEASED = 3,         /* rank node: nothing will write to the load's destination blocks any more */
  KVF_EVENT_VERDICT = 4,          /* control node: what to do with the request */
  KVF_EVENT_REQUEST_RELEASED = 5, /* control node: nothing on any rank will write to the request's blocks any more */
  KVF_EVENT_REQUEST_STUCK = 6,    /* control node: nobody knows when that will be: go on without the blocks */
  KVF_EVENT_TICKET = 7            /* a find is over: kvf_ticket_find() */
} kvf_event_kind;

typedef enum kvf_lease_end_cause {
  KVF_LEASE_END_COMPLETED = 1, /* a consumer has all it needs and no other is attached */
  KVF_LEASE_END_ABANDONED = 2, /* one aborted, none has completed, and no other is attached */
  KVF_LEASE_END_EXPIRED = 3,   /* not renewed within its TTL, or as old as lease_max_ms */
  KVF_LEASE_END_REVOKED = 4    /* ended here: kvf_lease_end(), kvf_node_unregister() */
} kvf_lease_end_cause;

/* What one rank, or several merged, know of a load. Plain data; send it to the control node in any way. */
typedef struct kvf_report {
  uint64_t request_id;
  uint64_t ranks_mask; /* bit r: rank r is in this report */
  uint32_t blocks;     /* positions of the load, those that were not wanted included */
  uint32_t prefix;     /* leading positions of each group, of block_tokens each, that are good on all its ranks, or
                          were not wanted; if all are, `blocks` */
  int32_t status;      /* kvf_status: KVF_OK if all blocks are good, else the reason, the worst of the ranks */
  uint32_t reserved;
} kvf_report;

typedef enum kvf_action {
  KVF_ACTION_USE = 1,       /* all blocks are good */
  KVF_ACTION_RECOMPUTE = 2, /* the first keep_tokens tokens are good in each group: compute the rest */
  KVF_ACTION_FAIL = 3       /* end the request with an error */
} kvf_action;

typedef struct kvf_verdict {
  kvf_action action;
  kvf_status status;         /* why, KVF_OK for KVF_ACTION_USE */
  uint32_t keep_blocks;      /* good leading positions of each group, of block_tokens each; of all: the load's blocks */
  uint32_t keep_tokens;      /* the same in tokens, at most the prompt's */
  uint32_t recompute_tokens; /* tokens that the engine has to compute itself */
  uint32_t retry_after_ms;   /* for KVF_ACTION_FAIL: when a retry is sensible; 0: not at all */
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
    kvf_status found;              /* KVF_EVENT_TICKET: KVF_OK: kvf_ticket_take(); else why there is none */
    uint64_t reserved[8];
  } u;
} kvf_event;

/* Takes up to `capacity` events, any number; returns how many were written. What is not taken waits: no event is lost.
 * Never blocks; small reads in flight over tcp and ucx (option inline_bytes) are moved on by it, but go on without it.
 * Each event comes once, those of one load in order: LOAD, then RELEASED; those of one request, too: VERDICT unless it
 * was cancelled, perhaps REQUEST_STUCK, and if it had begun REQUEST_RELEASED. docs/c-guide.md has a table of which
 * events follow which call. */
KVF_API size_t kvf_node_poll(kvf_node *node, kvf_event *events, size_t capacity);

/* A file descriptor that is readable while kvf_node_poll() has something to report, for the caller's own epoll, or for
 * several; small reads need no wake of their own. Edge-triggered: poll until kvf_node_poll() writes fewer events than
 * `capacity`. Where several threads poll, one may find nothing. Never read from it, never close it. */
KVF_API int kvf_node_event_fd(kvf_node *node);

KVF_C_END
#endif
