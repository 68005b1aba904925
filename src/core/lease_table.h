/* The leases of one producer rank: a fixed table of slots, one lease a slot, each operation O(1).
 *
 * The states of a lease:
 * - published: its live word is to be stored, once its blocks' bytes, and their checksums, are complete;
 * - live: the live word has been stored;
 * - ended: the word that ends it (fence.h) is to be stored;
 * - given back: that has been stored, and kvf_lease_table_next_ended() has named the lease, once.
 * It ends at the first of these: no consumer is attached and one has completed or aborted; it expires; it is revoked
 * here. With lease_linger_ms it first lingers for that time from its first completion: another engine may still come
 * with the same ticket.
 *
 * The table stores nothing into shared memory itself. After any call, take kvf_lease_table_next_store() until it is
 * empty. Store each entry (digest, then word, then a full barrier) and report it with kvf_lease_table_stored(). Then
 * take kvf_lease_table_next_ended() until it is empty. So no blocks are given back before their ended word is in place.
 *
 * Time: a lease whose deadline has come has ended for every call from then on, with or without a tick. `now_ns` must
 * not go backwards. Not for use by several threads at once. The table must not be moved once it is initialised.
 *
 * A consumer is one load of another engine, and its control node speaks for all its ranks. It attaches with its first
 * renewal or finish. Repeated messages, in any order, count once. A consumer that has finished stays finished, unless
 * its place is needed. A lease has at most KVF_LEASE_CONSUMERS_MAX consumers. Those beyond KVF_LEASE_CONSUMERS_IN_SLOT
 * take places from a store of KVF_LEASE_CONSUMERS_STORED for all leases of the table.
 *
 * kvf_lease arguments of renew, finish and authorize, and consumers, come from peers and may hold anything.
 */
#ifndef KVF_CORE_LEASE_TABLE_H
#define KVF_CORE_LEASE_TABLE_H

#include "base/fence.h"
#include "base/wheel.h"
#include "core/context.h"
#include "kvferry/node.h"
#include "wire/layout.h"
#include "wire/lease_message.h"

#define KVF_LEASE_CONSUMERS_IN_SLOT 4
#define KVF_LEASE_CONSUMERS_MAX 256
#define KVF_LEASE_CONSUMERS_STORED 16384

typedef struct kvf_consumer_key {
  kvf_incarnation incarnation;
  uint64_t request_id;
} kvf_consumer_key;

/* Only grow. */
typedef struct kvf_lease_counters {
  uint64_t published;
  uint64_t ended[KVF_LEASE_END_REVOKED + 1]; /* by kvf_lease_end_cause */
  uint64_t late_acknowledgements;            /* completions of leases that had ended; repeated ones count again */
  uint64_t late_renewals;                    /* renewals of leases that had ended */
} kvf_lease_counters;

typedef struct kvf_lease_entry kvf_lease_entry;

typedef struct kvf_lease_table {
  void *memory;
  kvf_lease_entry *entries; /* in `memory`, at the beginning of a cache line */
  const kvf_config *config; /* lease_slots, lease_ttl_ms, lease_max_ms, lease_linger_ms, rank */
  kvf_context *context;     /* whose log hears of leases that nobody has loaded; NULL: none */
  kvf_list stores;
  kvf_list ended;
  kvf_list lingering;
  uint32_t live;          /* published and not ended */
  uint32_t untaken;       /* of these: no consumer has come for them yet */
  uint32_t unreleased;    /* published and not given back yet */
  uint32_t stored;        /* places for consumers beside those in the slots */
  uint32_t consumers_max; /* KVF_LEASE_CONSUMERS_MAX and _STORED, unless a test has fewer */
  uint32_t stored_max;
  kvf_lease_counters counters;
  kvf_wheel wheel;
} kvf_lease_table;

/* An entry to be stored in the fence table. */
typedef struct kvf_lease_store {
  uint32_t slot;
  kvf_fence_entry entry;
} kvf_lease_store;

/* `config` has been checked, and outlives the table. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_lease_table_init(kvf_lease_table *table, const kvf_config *config, uint64_t now_ns);
/* Also after a failed kvf_lease_table_init(), or of a table that is all zeros. */
void kvf_lease_table_free(kvf_lease_table *table);

/* Publishes a lease of these blocks (copied). `digest` is their kvf_fence_digest(). `user` comes back when the lease
 * has been given back. With `incomplete` its live word waits for kvf_lease_table_complete(). On failure nothing has
 * changed. KVF_INVALID: slot or id out of range. KVF_EXISTS: this id or a later one has been seen in the slot
 * (kvf_lease_table_end() counts), or the slot's last lease has not been given back. KVF_LIMIT: too many groups or
 * blocks. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_lease_table_publish(kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease,
                                                const kvf_blocks *blocks, uint64_t digest, uint64_t user,
                                                bool incomplete);

/* The bytes of a lease's blocks, and what checksums they have, are where readers find them. Only if it was published
 * `incomplete`, once; without effect on a lease that has ended meanwhile, whose live word is never stored. */
void kvf_lease_table_complete(kvf_lease_table *table, const kvf_lease *lease);

/* A consumer's message about a lease; returns the state afterwards.
 *
 * KVF_FINISH_NONE is a renewal: attaches the consumer, and lengthens the lease. If the consumer has finished, the
 * renewal is late and does neither. KVF_LEASE_STATE_CROWDED: there is no room for another consumer, and nothing has
 * changed. Until its live word has been stored, the lease is KVF_LEASE_STATE_NOT_PUBLISHED, but the renewal counts.
 *
 * With any other kind the consumer will not read (any more). This ends the lease, perhaps after it has lingered, if no
 * consumer is attached and one has completed or aborted. Consumers that have only detached leave the lease to others
 * until it expires. If there is no room for the consumer, nothing happens. A consumer that finishes without having
 * attached is noted, so that its delayed renewal does not attach it. When room is needed, detached consumers are
 * forgotten first, then aborted ones, then completed ones; attached ones stay. */
kvf_lease_state kvf_lease_table_on_consumer(kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease,
                                            const kvf_consumer_key *key, kvf_finish_kind kind);

/* Revokes a lease. KVF_NOT_FOUND: it has ended already, or was never published. Then its id counts as ended from here
 * on: readers are told so, and a later publish is refused. An earlier lease that is still in the slot also counts as
 * ended. */
kvf_status kvf_lease_table_end(kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease);

/* Ends the leases that linger: their room is wanted. Takes time in their number. */
void kvf_lease_table_end_lingering(kvf_lease_table *table);

/* Revokes all leases. Takes time in the number of slots. */
void kvf_lease_table_end_all(kvf_lease_table *table, uint64_t now_ns);

/* Ends leases that have run out, looking at `max_items` timers at most. When to call it says table.wheel. */
void kvf_lease_table_tick(kvf_lease_table *table, uint64_t now_ns, uint32_t max_items);

/* The next entry to store; false if there is none. No two stores of a slot are out at once. */
bool kvf_lease_table_next_store(kvf_lease_table *table, kvf_lease_store *out);

/* The entry that kvf_lease_table_next_store() gave out for the slot has been stored, and readers see it. */
void kvf_lease_table_stored(kvf_lease_table *table, uint32_t slot, uint64_t word);

/* KVF_EVENT_LEASE_ENDED of the next lease that is given back; false if there is none. Each published lease comes
 * exactly once. */
bool kvf_lease_table_next_ended(kvf_lease_table *table, kvf_event *out);

/* For kvf_core_check(): what has something to be done about it; `costly`: every slot. */
void kvf_lease_table_check(const kvf_lease_table *table, bool costly);

/* Whether this lease has been published, complete or not, and has not ended. */
bool kvf_lease_table_holds(const kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease);

/* Whether a reader that shows this lease may read these positions; if so turns them into block ids
 * (items[i].remote_block, else unspecified). KVF_LEASE_UNKNOWN, KVF_NOT_PUBLISHED, KVF_LEASE_EXPIRED: as it stands.
 * KVF_INVALID: a position that the lease does not have, or that has no block. */
KVF_MUST_USE kvf_status kvf_lease_table_authorize(const kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease,
                                                  kvf_transfer_item *items, uint32_t count);

#endif
