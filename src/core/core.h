/* The core of a node: all of its state machines as one, without clock, thread, socket or file.
 *
 *                 inputs                                        outputs, pulled until there are none
 *   API calls (public headers)        ──►  kvf_core_next_event     for the engine
 *   kvf_core_on_*                     ──►  kvf_core_next_effect    reads, links, fence stores
 *   kvf_core_tick                     ──►  kvf_core_take_output    frames of control connections
 *
 * This is the only interface: its parts (core_state.h) are for the core and its tests. kvf_core_next_deadline() says
 * when to tick. Every input does a bounded amount of work; if there is more to do the deadline is in the past. The
 * caller serialises all calls. Time is monotonic.
 *
 * Fence stores: the effect KVF_EFFECT_STORE must be carried out and reported by kvf_core_on_stored() before the lease
 * comes back to the engine. So no queue can give the blocks back before the fence says that the lease has ended.
 */
#ifndef KVF_CORE_CORE_H
#define KVF_CORE_CORE_H

#include "core/guest.h"
#include "core/lease_table.h"
#include "core/load.h"
#include "core/peer.h"
#include "kvferry/kvferry.h"

typedef struct kvf_core kvf_core;

typedef struct kvf_core_config {
  kvf_config options;
  bool is_control; /* opens no links until it has memory: a node that does not listen */
  kvf_incarnation incarnation;
  kvf_key key;                    /* proved to others */
  kvf_key other_key;              /* taken from them too, while a fleet changes its key; bytes == 0: none */
  uint8_t secret[KVF_HASH_BYTES]; /* random: the root of all nonces, tokens and ids */
  kvf_logger logger;
} kvf_core_config;

/* KVF_INVALID: the options. KVF_NO_MEMORY. On failure *out is NULL. */
KVF_MUST_USE kvf_status kvf_core_create(const kvf_core_config *config, uint64_t now_ns, kvf_core **out);
/* NULL is allowed. */
void kvf_core_destroy(kvf_core *core);

/* As kvf_core_create(), in memory of the caller's that does not move, for who knows its size (core_state.h): tests. On
 * failure nothing is to be freed. KVF_INVALID: the options. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_core_init(kvf_core *core, const kvf_core_config *config, uint64_t now_ns);
void kvf_core_free(kvf_core *core);

/* Fresh random bytes: before any input after which it draws a nonce, an id or a token. */
void kvf_core_stir(kvf_core *core, const uint8_t fresh[KVF_HASH_BYTES]);

/* Constant. */
const kvf_incarnation *kvf_core_incarnation(const kvf_core *core);
/* The names of the option's transports, in its order; NULL from the end on. */
const char *kvf_core_transport(const kvf_core *core, uint32_t i);
/* The i-th of the option's transports is not there: all goes on as if it had not been named. Before anything else is
 * asked of the core. */
void kvf_core_leave_out_transport(kvf_core *core, uint32_t i);

/* Sets the number of rails of the i-th transport, KVF_RAILS_MAX at most. A link has one part in each rail. Events of a
 * part are the link's, and each read uses one part. The default is one. Call it while there are no links. */
void kvf_core_set_rails(kvf_core *core, uint32_t i, uint32_t count);

/* Sets the kinds of memory (a bit for each kvf_memory_kind) that the i-th transport can copy into the own memory. The
 * default is all. */
void kvf_core_set_served(kvf_core *core, uint32_t i, uint32_t kinds);

/* One of the option peers, by its name there, and its address. Before anything else is asked of the core. KVF_LIMIT. */
KVF_MUST_USE kvf_status kvf_core_add_static(kvf_core *core, const char *name, const kvf_address *address);
/* At most one, before anything else is asked of the core. */
void kvf_core_invite(kvf_core *core, kvf_guest *guest);
/* The node is open, or has memory. Dials these from now on: for a control node at once, for a rank once it has memory.
 */
void kvf_core_start(kvf_core *core, uint64_t now_ns);

/* ---- API calls: see the public headers ---- */

/* `welcome` describes the memory, of one region at least, as peers are told it, and is valid; it is copied, its
 * allocations become the core's. KVF_EXISTS: the core has memory. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_core_set_memory(kvf_core *core, const kvf_welcome *welcome);
/* Ends all leases and aborts all loads; true once nothing is left of either, nor of sessions and links that knew of the
 * memory. */
bool kvf_core_clear_memory(kvf_core *core, uint64_t now_ns);
/* What kvf_node_address() says of a node that listens there. */
kvf_rank_record kvf_core_record(const kvf_core *core, const kvf_address *address, const kvf_address *other);
/* As kvf_node_set_ranks(). */
KVF_MUST_USE kvf_status kvf_core_set_ranks(kvf_core *core, const kvf_rank_record *records, uint32_t count);

/* For these blocks, or, with `blocks` NULL, for `count` that are not known yet; else that is 0. */
KVF_MUST_USE kvf_status kvf_core_lease_reserve(kvf_core *core, const kvf_blocks *blocks, uint32_t count,
                                               uint64_t pool_blocks, kvf_lease *out);
/* Fills what a ticket for these blocks, which are the lease's, says; `out->ids` is borrowed from `blocks`. */
KVF_MUST_USE kvf_status kvf_core_ticket(kvf_core *core, const kvf_lease *lease, const kvf_blocks *blocks,
                                        const kvf_prompt *prompt, kvf_ticket *out);
/* With `incomplete` no reader is told of it before kvf_core_on_complete(). */
KVF_MUST_USE kvf_status kvf_core_publish(kvf_core *core, uint64_t now_ns, const kvf_lease *lease,
                                         const kvf_blocks *blocks, uint64_t digest, uint64_t user, bool incomplete);
kvf_status kvf_core_lease_end(kvf_core *core, uint64_t now_ns, const kvf_lease *lease);

/* `sources` have been decoded with the node's key, and have their digests. `point` is any number that no other load has
 * had, of what must be before a byte is written: kvf_core_on_point(); 0: nothing. */
KVF_MUST_USE kvf_status kvf_core_load_start(kvf_core *core, uint64_t now_ns, const kvf_sources *sources,
                                            const kvf_load_params *load, uint64_t point);
kvf_status kvf_core_load_abort(kvf_core *core, uint64_t now_ns, uint64_t request_id);
bool kvf_core_load_is_stuck(const kvf_core *core, uint64_t request_id);

kvf_status kvf_core_lease_release(kvf_core *core, uint64_t lease_id);
KVF_MUST_USE kvf_status kvf_core_lease_ended(kvf_core *core, uint64_t lease_id, uint64_t ranks_mask);
void kvf_core_end_lingering(kvf_core *core);
void kvf_core_drain(kvf_core *core);

/* Of the node's keys, ours first: for tickets. They never change: any thread, without the lock. */
const kvf_mac *kvf_core_macs(const kvf_core *core, size_t *count);
/* A ticket did not decode, and is counted and logged, if that is the ticket's fault: it goes no further. */
void kvf_core_ticket_refused(kvf_core *core, uint64_t now_ns, kvf_log_request request, kvf_status status);
/* `options` completed with the node's; NULL: the node's alone. Any thread, without the lock. */
kvf_request_options kvf_core_request_options(const kvf_core *core, const kvf_request_options *options);
/* *first (may be NULL) is the first source that is good. */
KVF_MUST_USE kvf_status kvf_core_request_open(kvf_core *core, uint64_t now_ns, const kvf_sources *sources,
                                              const kvf_prompt *prompt, const kvf_request_options *options,
                                              uint64_t user, uint64_t *id, const kvf_ticket **first);
kvf_verdict kvf_core_request_refused(kvf_core *core, uint64_t now_ns, kvf_status status, uint32_t tokens,
                                     const kvf_request_options *options);
uint64_t kvf_core_request_attachment(const kvf_core *core, uint64_t id);
KVF_MUST_USE kvf_status kvf_core_request_wait(kvf_core *core, uint64_t now_ns, uint64_t id, bool waits);
KVF_MUST_USE kvf_status kvf_core_request_begin(kvf_core *core, uint64_t now_ns, uint64_t id);
kvf_status kvf_core_request_report(kvf_core *core, uint64_t now_ns, const kvf_report *report);
kvf_status kvf_core_request_released(kvf_core *core, uint64_t now_ns, uint64_t id, uint64_t ranks_mask);
kvf_status kvf_core_request_stuck(kvf_core *core, uint64_t id);
/* kvf_request_cancel(), or, with KVF_FINISH_DETACHED, kvf_request_detach(). */
kvf_status kvf_core_request_cancel(kvf_core *core, uint64_t now_ns, uint64_t id, kvf_finish_kind kind);

bool kvf_core_is_healthy(const kvf_core *core);

/* ---- control connections ---- */

/* A connection was accepted: *conn_id is its name from here. */
KVF_MUST_USE kvf_status kvf_core_on_accepted(kvf_core *core, uint64_t now_ns, kvf_address from, uint64_t *conn_id);
/* One was reset before it could be accepted. */
void kvf_core_on_reset(kvf_core *core, uint64_t now_ns, const kvf_address *from);
void kvf_core_on_dialed(kvf_core *core, uint64_t now_ns, uint64_t conn_id, kvf_status status);
/* Something came over an accepted connection, if not yet a frame. */
void kvf_core_on_heard(kvf_core *core, uint64_t conn_id);
void kvf_core_on_frame(kvf_core *core, uint64_t now_ns, uint64_t conn_id, kvf_frame_type type, const uint8_t *body,
                       size_t body_bytes);
/* What came is not a frame, or a larger one than the connection may send. */
void kvf_core_on_malformed(kvf_core *core, uint64_t now_ns, uint64_t conn_id);
/* The layer below the frames does not trust the other side. That side lacks the key, does not encrypt, or its bytes
 * were altered on the way. `why` is for a log line. The core hangs up, unless kvf_core_on_closed() follows. */
void kvf_core_on_insecure(kvf_core *core, uint64_t now_ns, uint64_t conn_id, const char *why);
/* The other side does not read: more waits to be sent than the runtime keeps. kvf_core_on_closed() follows. */
void kvf_core_on_unread(kvf_core *core, uint64_t now_ns, uint64_t conn_id);
/* Whether the core still wants this connection. */
bool kvf_core_has_conn(kvf_core *core, uint64_t conn_id);
/* The socket is closed, by the other side or by an error. The id is gone. */
void kvf_core_on_closed(kvf_core *core, uint64_t now_ns, uint64_t conn_id);
/* The largest frame body that this connection may send now. */
size_t kvf_core_frame_limit(kvf_core *core, uint64_t conn_id);

/* Bytes to send, good during the call; then, if `hang_up`, close the socket once they are sent: the id is gone. */
typedef struct kvf_core_output {
  uint64_t conn_id;
  const uint8_t *data;
  size_t bytes;
  bool hang_up;
} kvf_core_output;

/* Calls `take` for every connection that has something to do. Take effects first: they cause output. */
void kvf_core_take_output(kvf_core *core, void (*take)(void *context, const kvf_core_output *output), void *context);
bool kvf_core_has_output(const kvf_core *core);

/* ---- reads, links, fence ---- */

typedef enum kvf_effect_kind {
  KVF_EFFECT_DIAL = KVF_PEER_DIAL, /* connect to link.address: kvf_core_on_dialed(link.conn_id) tells the outcome */
  KVF_EFFECT_OPEN_LINK = KVF_PEER_OPEN_LINK, /* kvf_core_on_link() or kvf_core_on_link_malformed() follows, within
                                                handshake_timeout_ms, or it counts as failed */
  KVF_EFFECT_CLOSE_LINK = KVF_PEER_CLOSE_LINK,
  KVF_EFFECT_READ, /* kvf_core_on_read_done() follows */
  KVF_EFFECT_CANCEL,
  KVF_EFFECT_STORE /* fence entry */
} kvf_effect_kind;

typedef struct kvf_effect {
  kvf_effect_kind kind;
  kvf_load_read read;    /* READ; CANCEL: link and id */
  kvf_peer_action link;  /* DIAL, OPEN_LINK, CLOSE_LINK */
  kvf_lease_store store; /* STORE */
} kvf_effect;

KVF_MUST_USE bool kvf_core_next_effect(kvf_core *core, uint64_t now_ns, kvf_effect *out);

void kvf_core_on_stored(kvf_core *core, const kvf_lease_store *store);

/* A link, or its part in one rail, is up, or is not, or was. */
void kvf_core_on_link(kvf_core *core, uint64_t now_ns, uint32_t link_id, kvf_status status);
/* What the peer says of this transport is malformed. */
void kvf_core_on_link_malformed(kvf_core *core, uint64_t now_ns, uint32_t link_id);
void kvf_core_on_link_down(kvf_core *core, uint64_t now_ns, uint32_t link_id, kvf_status status);

/* See kvf_loads_on_read_done(). `verified`: of its items, from the first on, those that agree with their checksums.
 * `sample` may be NULL. */
void kvf_core_on_read_done(kvf_core *core, uint64_t now_ns, uint64_t read_id, kvf_status status, uint32_t verified,
                           const kvf_fence_sample *sample, uint64_t bytes, const kvf_read_work *work);
void kvf_core_on_read_progress(kvf_core *core, uint64_t now_ns, uint64_t read_id);

/* For the producer's side of a transport: the key of a session, and whether a lease may be read (kvf_transport_host).
 */
bool kvf_core_session_key(const kvf_core *core, uint64_t session_id, kvf_key *out);
KVF_MUST_USE kvf_status kvf_core_authorize(const kvf_core *core, uint64_t now_ns, const kvf_lease *lease,
                                           kvf_transfer_item *items, uint32_t count);
/* The bytes of a lease that was published `incomplete` are complete, and so are their checksums. */
void kvf_core_on_complete(kvf_core *core, const kvf_lease *lease);
/* What the load waited for has come. Without effect if that is another load's, or it is over. */
void kvf_core_on_point(kvf_core *core, uint64_t request_id, uint64_t point);

/* What is always true once all effects have been taken: each machine's lists against its counters and states, as
 * assertions. `costly`: what takes time in blocks and slots, too. Without assertions nothing happens. Debug builds look
 * by themselves now and then, a large core less often. */
void kvf_core_check(const kvf_core *core, bool costly);

/* ---- time and events ---- */

void kvf_core_tick(kvf_core *core, uint64_t now_ns);
uint64_t kvf_core_next_deadline(const kvf_core *core);
KVF_MUST_USE bool kvf_core_next_event(kvf_core *core, uint64_t now_ns, kvf_event *out);
/* Whether kvf_core_next_event() would give one. Take effects first: they cause events. */
bool kvf_core_has_event(const kvf_core *core);
/* kvferry/stats.h; the core has no name for what only the runtime counts. */
size_t kvf_core_stats(const kvf_core *core, kvf_stat *out, size_t capacity);
size_t kvf_core_peers(const kvf_core *core, uint64_t now_ns, kvf_peer_stat *out, size_t capacity);
size_t kvf_core_histograms(const kvf_core *core, kvf_histogram *out, size_t capacity);

#endif
