/* The fence: how a reader knows that the bytes it has just copied still belonged to the lease (promise P1).
 *
 * A producer rank keeps a table in shared memory: one head, then one entry per lease slot. The word of lease n is 2n+1
 * while it is live and 2n+2 when it has ended; ids only grow, so a word only grows. A reader copies a chunk and
 * *afterwards* takes a sample (head and entry in one call). If the sample says LIVE, no byte of the chunk can have been
 * overwritten by a next owner. The reason: the producer stores the second word, with a full barrier, before it gives
 * the blocks back.
 *
 * Devices write and copy blocks later than the work is submitted. For them the promise holds by five rules. (An event
 * of a device is complete when all earlier work of its stream is complete, and visible to later reads and writes.)
 *
 * - R1: live is stored after an event is complete that was recorded behind the last kernel that wrote the blocks.
 * - R2: no kernel that writes them is put on any stream until the lease's end has been stored. This holds even for a
 *   kernel that has not started.
 * - R3: the reader looks, and finds live, before it submits the copy. The copy reads its source at its turn in the
 *   stream, not earlier (CUDA's access order STREAM).
 * - R4: it takes the sample after an event is complete that was recorded behind the copy. If it is live then: by R2 all
 *   work that could overwrite the blocks was submitted after the last byte was read. By R1 and R3 no byte was read too
 *   early.
 * - R5: no byte is written to the destination before an event is complete that was recorded on the engine's stream when
 *   the load began. The blocks' last owner, and kernels that zero them, write before it. Work that the engine submits
 *   after it knows the outcome comes after the copy.
 *
 * kvf_ordering_point carries R1 and R5, memory/cuda/device_copy.c R3 and R4's event; R2 is the engine's.
 *
 * A rank may register other memory in its life, and ids go on. A reader's knowledge of a lease's blocks (addresses,
 * mappings, keys, layout) belongs to one registration. The head says to which registration the live words belong. It is
 * stored after the last lease of the old registration has ended, and before the first live word of the new one.
 */
#ifndef KVF_BASE_FENCE_H
#define KVF_BASE_FENCE_H

#include <stdint.h>

#include "kvferry/types.h"

#define KVF_FENCE_MAGIC UINT64_C(0x32656e656672766b) /* "kvrfene2" */
#define KVF_INCARNATION_BYTES 16

/* The random id of a node's life. */
typedef struct kvf_incarnation {
  uint8_t bytes[KVF_INCARNATION_BYTES];
} kvf_incarnation;

typedef struct kvf_fence_head {
  uint64_t magic;
  kvf_incarnation incarnation;
  uint64_t slots;
  uint64_t generation; /* of the registered memory: the registrations in the life of the node; 0: there is none */
  uint64_t reserved;   /* no entry lies in two cache lines */
} kvf_fence_head;

typedef struct kvf_fence_entry {
  uint64_t word;
  uint64_t digest; /* kvf_fence_digest() of what the lease covers on this rank */
} kvf_fence_entry;

/* What a reader saw of the table, after its last byte. */
typedef struct kvf_fence_sample {
  kvf_fence_head head;
  kvf_fence_entry entry;
} kvf_fence_sample;

/* What a reader expects: the lease that its ticket names, in the memory that its link was made for. */
typedef struct kvf_fence_claim {
  kvf_incarnation incarnation;
  uint64_t generation;
  uint64_t lease_id;
  uint64_t digest;
} kvf_fence_claim;

static inline uint64_t kvf_fence_word_live(uint64_t lease_id)
{
  return 2 * lease_id + 1;
}

static inline uint64_t kvf_fence_word_ended(uint64_t lease_id)
{
  return 2 * lease_id + 2;
}

/* Largest id whose words fit. Ids start at a random number below 2^62, so this is never reached. */
#define KVF_LEASE_ID_MAX (UINT64_C(1) << 62)

static inline size_t kvf_fence_entry_offset(uint32_t slot)
{
  return sizeof(kvf_fence_head) + (size_t)slot * sizeof(kvf_fence_entry);
}

static inline size_t kvf_fence_table_bytes(uint32_t slots)
{
  return kvf_fence_entry_offset(slots);
}

/* The one check that every transport's reader uses.
 * KVF_OK: live, the bytes are good. KVF_NOT_PUBLISHED: ask again. KVF_LEASE_EXPIRED: ended. KVF_PEER_RESTARTED: another
 * process' table, or none. KVF_AGAIN: not ended, and of another registration than the link is for: ask the peer for its
 * memory again, and make another. KVF_BAD_TICKET: the lease covers other blocks, or another prompt, than the ticket
 * says. */
KVF_MUST_USE kvf_status kvf_fence_check(const kvf_fence_sample *sample, const kvf_fence_claim *claim);

/* Of all groups together. */
static inline size_t kvf_blocks_count(const kvf_blocks *blocks)
{
  size_t count = 0;
  for (uint32_t group = 0; group < blocks->groups; group++) {
    count += blocks->counts[group];
  }
  return count;
}

/* KVF_LIMIT: more groups, or positions, than a lease may have. */
KVF_MUST_USE kvf_status kvf_blocks_check(const kvf_blocks *blocks);

/* What an entry's digest covers: the lease's secret token, the prompt and all its block ids by group. */
KVF_MUST_USE kvf_status kvf_fence_digest(const kvf_lease *lease, const kvf_blocks *blocks, const kvf_prompt *prompt,
                                         uint64_t *out);

#endif
