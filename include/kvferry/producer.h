/* kvferry/producer.h: leases and tickets.
 *
 *   control node   kvf_lease_reserve_blocks ──► (lease to the ranks) ──► kvf_ticket_make ──► ticket to the consumer
 *   each rank      kvf_lease_publish ──► … ──► KVF_EVENT_LEASE_ENDED
 *   control node   kvf_lease_ended for each rank; with the last one the lease is released (kvf_lease_release: of all
 *                  ranks at once)
 *   a rank         kvf_ticket_offer, where consumers ask for tickets instead of being handed them
 */
#ifndef KVFERRY_PRODUCER_H
#define KVFERRY_PRODUCER_H

#include "kvferry/node.h"

KVF_C_BEGIN

/* Control node: reserves a lease slot for these blocks of all groups (copied). They count against
 * lease_pool_share_percent of `pool_blocks`, the size of the engine's pool, all groups together (0: no share); a block
 * counts once, however many leases have it, as those of prompts that begin alike. A group's block ids are its own: with
 * the same id, blocks of two groups are two. KVF_BLOCK_NONE does not count. *out is plain data.
 * KVF_NO_LEASE: table or share is full, or all leases together list 16,777,216 block ids, shared ones as often; serve
 * the request without a ticket, or later. KVF_LIMIT: these blocks alone are more than the share, or than
 * KVF_BLOCKS_PER_LEASE_MAX positions or KVF_GROUPS_MAX groups, or one's id is not below 16,777,216: without a ticket.
 * KVF_DRAINING, KVF_NO_MEMORY: without a ticket. KVF_SYSTEM: the system gives no random numbers. */
KVF_API KVF_MUST_USE kvf_status kvf_lease_reserve_blocks(kvf_node *node, const kvf_blocks *blocks, uint64_t pool_blocks,
                                                         kvf_lease *out);

/* Control node: the same before it is known which blocks they will be, as for a prompt that is to wait for its lease
 * before it is computed. `blocks` is their number, all groups together, and all of it counts, as if no other lease had
 * one of them, until kvf_ticket_make() names them. Fails as kvf_lease_reserve_blocks(). */
KVF_API KVF_MUST_USE kvf_status kvf_lease_reserve(kvf_node *node, uint32_t blocks, uint64_t pool_blocks,
                                                  kvf_lease *out);

/* Control node: every rank has ended the lease, as an engine of one rank knows itself; its slot may be used again.
 * KVF_NOT_FOUND: released already. */
KVF_API kvf_status kvf_lease_release(kvf_node *node, uint64_t lease_id);

/* Control node: the ranks of the mask (bit r: rank r) have ended the lease: KVF_EVENT_LEASE_ENDED, or they could not
 * publish it. In any order, any number of times. That event can come before D's engine has polled its own
 * KVF_EVENT_REQUEST_RELEASED: the next ticket of the same blocks may overtake it. KVF_OK: now all of the engine's ranks
 * have, and the lease is released: its blocks are the engine's again. KVF_AGAIN: others have not. KVF_NOT_FOUND:
 * released already. KVF_INVALID: no rank, or one out of range. */
KVF_API KVF_MUST_USE kvf_status kvf_lease_ended(kvf_node *node, uint64_t lease_id, uint64_t ranks_mask);

/* Control node: writes the ticket (text, fit for JSON; not terminated) for a reserved lease. `ticket` has room for
 * `capacity` bytes. The ticket may be handed out before the ranks have published. `blocks` are the lease's: if it was
 * reserved by their number, they count from now on as those of kvf_lease_reserve_blocks() do.
 * KVF_LIMIT: too many blocks, or `capacity` too small. KVF_INVALID: kvf_node_set_ranks() has not been called, or the
 * number of blocks does not fit prompt->tokens. */
KVF_API KVF_MUST_USE kvf_status kvf_ticket_make(kvf_node *node, const kvf_lease *lease, const kvf_blocks *blocks,
                                                const kvf_prompt *prompt, char *ticket, size_t capacity,
                                                size_t *ticket_bytes);

/* Rank: the bytes of `blocks` are complete in this rank's memory, now or, if it is not NULL, at the ordering point
 * `after`, and stay as they are until the lease has ended. From then on consumers may read them; with option checksum,
 * once a thread of the library has made their checksums. Until then they are told that the lease is not published yet;
 * it may end before, and where the point never comes it runs out. `blocks` and `prompt` are those of the ticket: else
 * loads end with KVF_BAD_TICKET. `user` comes back in KVF_EVENT_LEASE_ENDED.
 * KVF_INVALID: no memory registered, a node that does not listen, as the log says, a block id out of its regions, or a
 * point that the registered memory's kind does not know. KVF_EXISTS: this id, or a later one, has been published in
 * that slot. KVF_NO_MEMORY, KVF_LIMIT, KVF_CLOSED: as they say; the lease is not published, no event comes. */
KVF_API KVF_MUST_USE kvf_status kvf_lease_publish(kvf_node *node, const kvf_lease *lease, const kvf_blocks *blocks,
                                                  const kvf_prompt *prompt, const kvf_ordering_point *after,
                                                  uint64_t user);

/* Rank: hands the ticket (one, not several joined) to whoever asks for its prompt in a session: kvf_ticket_find(). Its
 * lease must have been published on this node, complete or not; with the lease the offer goes. `ticket` is copied. Of
 * an engine with several ranks one offers it, rank 0 by convention: that is who consumers name in their option peers.
 *
 * An offer is given to one find, since the lease behind it ends with the request that uses it: an engine that has
 * computed a prompt twice offers two tickets, and a prompt that is asked for more often than it is offered is not
 * found. KVF_BAD_TICKET, KVF_OTHER_KEY: not a ticket of this node's key. KVF_NOT_FOUND: its lease is not published
 * here, or has ended. KVF_EXISTS: it has been offered. KVF_NO_RESOURCE: the offered texts are longer than 64 MiB
 * together: hand the ticket over, or serve the request without. KVF_NO_MEMORY: the same
 * two ways out. KVF_INVALID: a NULL argument. */
KVF_API KVF_MUST_USE kvf_status kvf_ticket_offer(kvf_node *node, const char *ticket, size_t ticket_bytes);

/* Rank: ends the lease now: when this returns, no reader can take later bytes of the blocks for the lease's. Call it
 * before any reuse of the blocks that the library did not grant. Legal in every state and any number of times; the
 * event KVF_EVENT_LEASE_ENDED comes once all the same. KVF_NOT_FOUND: ended already, or never published (then a later
 * publish of the id is refused). */
KVF_API kvf_status kvf_lease_end(kvf_node *node, const kvf_lease *lease);

/* Rank: ends the leases that only linger (option lease_linger_ms): a load of each has completed, and no engine is
 * attached. For an engine that wants their room: a prompt lacks blocks, kvf_lease_reserve() or
 * kvf_lease_reserve_blocks() says KVF_NO_LEASE, or the engine drains. Their KVF_EVENT_LEASE_ENDED come as for any
 * completed lease. */
KVF_API void kvf_leases_end_lingering(kvf_node *node);

KVF_C_END
#endif
