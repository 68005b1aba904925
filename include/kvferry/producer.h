/* kvferry/producer.h: leases and tickets.
 *
 *   control node   kvf_lease_reserve_blocks ──► (lease to the ranks) ──► kvf_ticket_make ──► ticket to the consumer
 *   each rank      kvf_lease_publish ──► … ──► KVF_EVENT_LEASE_ENDED
 *   control node   kvf_lease_ended for each rank; the last one releases the lease (kvf_lease_release: all at once)
 *   a rank         kvf_ticket_offer, if consumers ask for tickets instead of getting them from a router
 */
#ifndef KVFERRY_PRODUCER_H
#define KVFERRY_PRODUCER_H

#include "kvferry/node.h"

KVF_C_BEGIN

/* Control node: reserves a lease slot for these blocks of all groups (copied). *out is plain data.
 *
 * The blocks count against lease_pool_share_percent of `pool_blocks`: the size of the engine's pool in blocks, all
 * groups together (0: no share). A block that several leases have, as for prompts with a common beginning, counts once.
 * Each group has its own block ids: equal ids in two groups are two blocks. KVF_BLOCK_NONE does not count.
 *
 * - KVF_NO_LEASE: the table or the share is full, or all leases together list 16,777,216 block ids (a shared block
 *   counts for each lease). Serve the request without a ticket, or later.
 * - KVF_LIMIT: these blocks alone are more than the share, KVF_BLOCKS_PER_LEASE_MAX positions, or KVF_GROUPS_MAX
 *   groups. Or a block id is not below 16,777,216. Serve the request without a ticket.
 * - KVF_DRAINING, KVF_NO_MEMORY: serve the request without a ticket.
 * - KVF_SYSTEM: the system gives no random numbers. */
KVF_API KVF_MUST_USE kvf_status kvf_lease_reserve_blocks(kvf_node *node, const kvf_blocks *blocks, uint64_t pool_blocks,
                                                         kvf_lease *out);

/* Control node: reserves a lease before its block ids are known, for example for a prompt that waits for its lease
 * before it is computed. `blocks` is their number, all groups together. Until kvf_ticket_make() names the blocks, all
 * of them count, as if no other lease had them. Errors: those of kvf_lease_reserve_blocks(). */
KVF_API KVF_MUST_USE kvf_status kvf_lease_reserve(kvf_node *node, uint32_t blocks, uint64_t pool_blocks,
                                                  kvf_lease *out);

/* Control node: every rank has ended the lease, so its slot may be used again. For an engine of one rank, or one that
 * counts its ranks itself. KVF_NOT_FOUND: released already. */
KVF_API kvf_status kvf_lease_release(kvf_node *node, uint64_t lease_id);

/* Control node: the ranks of the mask (bit r: rank r) have ended the lease. They had KVF_EVENT_LEASE_ENDED, or could
 * not publish it. Call it in any order, any number of times. KVF_EVENT_LEASE_ENDED can come before D's engine has
 * polled its KVF_EVENT_REQUEST_RELEASED. So the next ticket of the same blocks may reach D before that event.
 *
 * - KVF_OK: all ranks of the engine have ended the lease, and it is released. Its blocks belong to the engine again.
 * - KVF_AGAIN: other ranks have not ended it yet.
 * - KVF_NOT_FOUND: released already.
 * - KVF_INVALID: the mask has no rank, or one out of range. */
KVF_API KVF_MUST_USE kvf_status kvf_lease_ended(kvf_node *node, uint64_t lease_id, uint64_t ranks_mask);

/* Control node: writes the ticket of a reserved lease: text without a terminating zero, valid inside a JSON string.
 * `ticket` has room for `capacity` bytes; KVF_TICKET_BYTES_MAX is always enough. The ticket may be sent before the
 * ranks have published the lease. `blocks` are the lease's. After kvf_lease_reserve(), they count from now on as in
 * kvf_lease_reserve_blocks().
 * KVF_LIMIT: too many blocks, or `capacity` is too small. KVF_INVALID: kvf_node_set_ranks() has not been called, or the
 * number of blocks does not fit prompt->tokens. */
KVF_API KVF_MUST_USE kvf_status kvf_ticket_make(kvf_node *node, const kvf_lease *lease, const kvf_blocks *blocks,
                                                const kvf_prompt *prompt, char *ticket, size_t capacity,
                                                size_t *ticket_bytes);

/* Rank: publishes the lease: consumers may read the bytes of `blocks` in this rank's memory. The bytes are complete
 * now, or at the ordering point `after` (if not NULL). They must not change until the lease has ended.
 *
 * Consumers can read once the point is reached. With the option checksum, a thread of the library then makes the
 * checksums first. Before that, consumers wait. The lease may also end before; if the point is never reached, it
 * expires. `blocks` and `prompt` must be those of the ticket, else loads end with KVF_BAD_TICKET. `user` comes back in
 * KVF_EVENT_LEASE_ENDED. On failure the lease is not published, and no event comes.
 *
 * - KVF_INVALID: no memory is registered; or the node does not listen (the log says so). Or a block id is outside its
 *   regions, or the kind of the registered memory does not know the point.
 * - KVF_EXISTS: this id, or a later one, has been published in the lease's slot.
 * - KVF_NO_MEMORY, KVF_LIMIT, KVF_CLOSED: as in status.h. */
KVF_API KVF_MUST_USE kvf_status kvf_lease_publish(kvf_node *node, const kvf_lease *lease, const kvf_blocks *blocks,
                                                  const kvf_prompt *prompt, const kvf_ordering_point *after,
                                                  uint64_t user);

/* Rank: offers the ticket (one, not several joined) to consumers that ask for its prompt: kvf_ticket_find(). `ticket`
 * is copied. Its lease must have been published on this node, complete or not. The offer ends with the lease. In an
 * engine with several ranks one rank offers it, by convention rank 0: consumers name this rank in their option peers.
 *
 * One find gets the offer, because the lease ends with the request that uses it. An engine that computes a prompt twice
 * offers two tickets. If a prompt is asked for more often than it is offered, the other finds end with KVF_NOT_FOUND.
 *
 * - KVF_BAD_TICKET, KVF_OTHER_KEY: not a ticket of this node's key.
 * - KVF_NOT_FOUND: its lease is not published here, or has ended.
 * - KVF_EXISTS: it has been offered already.
 * - KVF_NO_RESOURCE, KVF_NO_MEMORY: all offered texts together are longer than 64 MiB, or memory is short. Send the
 *   ticket with the request, or serve the request without a ticket.
 * - KVF_INVALID: a NULL argument. */
KVF_API KVF_MUST_USE kvf_status kvf_ticket_offer(kvf_node *node, const char *ticket, size_t ticket_bytes);

/* Rank: ends the lease now. When this returns, no reader can mistake later bytes of the blocks for those of the lease.
 * Call it before you reuse the blocks without KVF_EVENT_LEASE_ENDED. Allowed in every state and any number of times;
 * KVF_EVENT_LEASE_ENDED still comes once. KVF_NOT_FOUND: ended already, or never published (then a later publish of the
 * id is refused). */
KVF_API kvf_status kvf_lease_end(kvf_node *node, const kvf_lease *lease);

/* Rank: ends the leases that only linger (option lease_linger_ms): a load of each has completed, and no engine is
 * attached. Call it if the engine needs their blocks or slots: a prompt lacks blocks, a lease was refused with
 * KVF_NO_LEASE, or the engine drains. For each lease KVF_EVENT_LEASE_ENDED comes, with the cause of a completed lease.
 */
KVF_API void kvf_leases_end_lingering(kvf_node *node);

KVF_C_END
#endif
