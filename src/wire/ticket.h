/* The ticket: what a producer hands to a consumer through the router.
 *
 *   "kvf5." base64url(key id) "." base64url(payload) "." base64url(MAC over everything before it)
 *
 * The version is read first and then the key's id. So a ticket of another release, or of another key, is not reported
 * as altered. The MAC is checked before the payload is decoded. So a stranger's ticket costs only the check. Without a
 * key it is a checksum. One ticket has one text. Any thread.
 *
 * Version 4, of the release before, has no key id, and each rank has one address. It is read, and written where the
 * option ticket_version says so.
 */
#ifndef KVF_WIRE_TICKET_H
#define KVF_WIRE_TICKET_H

#include "base/crypto.h"
#include "wire/rank_record.h"

/* A field of the producer's identity, by the first bytes of hashes. They decide nothing, the 32 bytes of `compat` do:
 * they only help to say which field it is that differs. */
typedef struct kvf_ticket_field {
  uint16_t name;
  uint16_t value;
} kvf_ticket_field;

#define KVF_TICKET_VERSION_MIN 4u
#define KVF_TICKET_VERSION_MAX 5u

typedef struct kvf_ticket {
  uint32_t version; /* of its text: KVF_TICKET_VERSION_MIN to _MAX; version 4 leaves out the ranks' second addresses */
  uint32_t ranks;
  kvf_rank_record rank[KVF_RANKS_MAX]; /* valid; the i-th is of rank i; tokens are dealt to as many for all */
  kvf_lease lease;
  kvf_prompt prompt;
  uint32_t block_tokens; /* above 0: a multiple of those of each group; of states only, as many as the prompt has */
  uint32_t ttl_ms;       /* above 0 */
  uint8_t compat[KVF_HASH_BYTES];
  uint32_t fields; /* that `compat` is the hash of: at most KVF_IDENTITY_FIELDS_MAX */
  kvf_ticket_field field[KVF_IDENTITY_FIELDS_MAX];
  uint32_t groups;                       /* 1 to KVF_GROUPS_MAX */
  uint32_t group_tokens[KVF_GROUPS_MAX]; /* of its blocks; 0: a state, which is one position */
  uint32_t counts[KVF_GROUPS_MAX];       /* kvf_ticket_positions(); together at most KVF_BLOCKS_PER_LEASE_MAX */
  uint32_t *ids;                         /* all groups one after the other; KVF_BLOCK_NONE where a block slid out */
} kvf_ticket;

/* Positions that a group of a lease has: those that the prompt's tokens fill, the last perhaps in part; a state's one.
 */
static inline uint32_t kvf_ticket_positions(uint32_t tokens, uint32_t block_tokens)
{
  return block_tokens == 0 ? tokens > 0 : tokens / block_tokens + (tokens % block_tokens != 0);
}

/* Blocks of a group in block_tokens tokens; 0: it is a state. */
uint32_t kvf_ticket_blocks_each(const kvf_ticket *ticket, uint32_t group);

/* Positions of all groups together: the length of `ids`. */
uint64_t kvf_ticket_all_positions(const kvf_ticket *ticket);

/* Writes the text, not terminated; *text_bytes is set on success only. Reads ticket->ids, takes nothing.
 * KVF_INVALID: ranks that are not 0, 1, 2 …, or another rule above; a version that is not known. KVF_LIMIT: more than
 * KVF_RANKS_MAX ranks, KVF_IDENTITY_FIELDS_MAX fields, KVF_GROUPS_MAX groups or KVF_BLOCKS_PER_LEASE_MAX blocks, or
 * more text than `capacity` or KVF_TICKET_BYTES_MAX. KVF_NO_MEMORY: no memory for the MAC. */
KVF_MUST_USE kvf_status kvf_ticket_encode(const kvf_ticket *ticket, const kvf_mac *mac, char *text, size_t capacity,
                                          size_t *text_bytes);

/* Takes a ticket that was signed with the key of any of `macs`. An empty key counts only if all are empty, so that an
 * unused place for a second key opens no door. On success give *out back with kvf_ticket_free(); it is unchanged on
 * failure. KVF_INCOMPATIBLE: of a version that is not known; of it nothing is believed but that. KVF_OTHER_KEY: the id
 * is of no key of `macs` that counts (of version 4 that is KVF_BAD_TICKET). KVF_BAD_TICKET: anything else than a ticket
 * that kvf_ticket_encode() wrote. KVF_NO_MEMORY: an allocation failed; none is made before the MAC is found good, and
 * none is longer than a ticket within the limits needs. */
KVF_MUST_USE kvf_status kvf_ticket_decode(const char *text, size_t text_bytes, const kvf_mac *macs, size_t macs_count,
                                          kvf_ticket *out);

/* Frees ticket->ids. Does nothing the second time. */
void kvf_ticket_free(kvf_ticket *ticket);

#endif
