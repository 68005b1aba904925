/* The recovery table of kvferry/recovery.h. A request says what it has to say next when it is asked (next_kind() of
 * recovery_event.c): its state is what has come in and what has been told, and there is no queue.
 *
 * All lists are indices into arrays that kvf_recovery_open() has made; index + 1 is stored, so that 0 is none. */
#ifndef KVF_CORE_RECOVERY_INTERNAL_H
#define KVF_CORE_RECOVERY_INTERNAL_H

#include "kvferry/consumer.h"
#include "kvferry/recovery.h"

typedef struct kvf_recovery_entry {
  uint64_t request_id;
  uint64_t user;
  kvf_report merged; /* of no rank: ranks_mask is 0 */
  uint64_t quiet_mask;
  uint32_t tokens;
  uint32_t prompt_tokens;
  uint32_t local_blocks;
  uint32_t positions; /* of all groups */
  uint32_t bars;
  uint32_t kept;        /* leading blocks of each group that the engine was told are good */
  uint32_t first_block; /* of its loaded blocks */
  uint32_t error_block; /* the next one to look at for kvf_recovery_drain_errors() */
  uint32_t next;        /* of the same bucket */
  uint32_t told;        /* 0, or KVF_RECOVERY_READY, REWIND or TERMINATE */
  bool ended;
  bool abort_told;
  bool released;
} kvf_recovery_entry;

/* What the table knows of a block of a pool. */
typedef struct kvf_recovery_block {
  uint32_t owner; /* entry whose load it belongs to */
  uint32_t next;  /* the owner's next one, by group and position */
  uint32_t position;
  bool drained;
} kvf_recovery_block;

struct kvf_recovery {
  kvf_recovery_options options;
  uint64_t all_ranks;
  kvf_recovery_entry *entries;
  uint32_t *buckets;
  uint32_t buckets_mask;
  uint64_t *free_entries; /* bitmap: the lowest is taken, whatever the order in which they became free */
  kvf_recovery_block *blocks;
  uint32_t group_first[KVF_GROUPS_MAX + 1]; /* index of each group's block 0 */
  uint64_t *due;                            /* bitmap of entries with an event, its lowest first */
  uint64_t *errors;                         /* bitmap of entries with blocks to drain */
  uint32_t due_count;
  uint32_t errors_count;
  kvf_recovery_stats stats;
};

static inline uint32_t kvf_recovery_index(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return (uint32_t)(entry - recovery->entries);
}

/* Blocks of each group. */
static inline uint32_t kvf_recovery_group_blocks(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return entry->positions / recovery->options.groups;
}

/* Leading blocks of each group that are good, the local prefix at least. With several groups a load is all or nothing:
 * their blocks do not cover the same tokens. */
static inline uint32_t kvf_recovery_good_blocks(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint32_t good = recovery->options.groups == 1 ? entry->merged.prefix : 0;
  if (entry->merged.prefix == entry->positions) {
    good = kvf_recovery_group_blocks(recovery, entry);
  }
  return good > entry->local_blocks ? good : entry->local_blocks;
}

/* ---- recovery_table.c ---- */

kvf_recovery_entry *kvf_recovery_find(const kvf_recovery *recovery, uint64_t request_id);
/* Takes a free entry into the table; NULL if there is none. */
kvf_recovery_entry *kvf_recovery_insert(kvf_recovery *recovery, uint64_t request_id);
void kvf_recovery_remove(kvf_recovery *recovery, kvf_recovery_entry *entry);

/* ---- recovery_blocks.c ---- */

/* Makes `blocks`, which fit the entry's positions, the entry's. KVF_EXISTS: one has an owner; then nothing changes. */
KVF_MUST_USE kvf_status kvf_recovery_own_blocks(kvf_recovery *recovery, kvf_recovery_entry *entry,
                                                const kvf_blocks *blocks);
void kvf_recovery_disown_blocks(kvf_recovery *recovery, const kvf_recovery_entry *entry);
/* The entry's blocks from `kept` on have failed. */
void kvf_recovery_want_drain(kvf_recovery *recovery, kvf_recovery_entry *entry);
void kvf_recovery_drop_errors(kvf_recovery *recovery, const kvf_recovery_entry *entry);

/* ---- recovery_event.c ---- */

/* To be called after each change of an entry, which may be gone then. */
void kvf_recovery_review(kvf_recovery *recovery, kvf_recovery_entry *entry);

#endif
