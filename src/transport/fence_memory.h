/* The fence table's memory and the stores to it: the producer's half of promise P1 (base/fence.h). Reading an entry is
 * kvf_fence_load() in transport/transport.h. */
#ifndef KVF_TRANSPORT_FENCE_MEMORY_H
#define KVF_TRANSPORT_FENCE_MEMORY_H

#include <sys/types.h>

#include "base/fence.h"

/* Makes a table of `slots` entries, all of them below any lease's live word, with a head of this incarnation, and no
 * memory registered. It has its own pages, shared and not inherited by a forked child. So a store never goes to a
 * private copy of a page that a reader does not see. On success *out is the caller's, for kvf_fence_table_close(). *fd
 * (may be NULL) is the file, which a process of the same user can map; it is the caller's, for kvf_own_fd_close().
 * KVF_NO_MEMORY: *out is NULL; also without descriptors. */
KVF_MUST_USE kvf_status kvf_fence_table_open(uint32_t slots, const kvf_incarnation *incarnation, void **out, int *fd);

/* Maps the table that is file `fd` of another process, for reading; the caller's, for kvf_fence_table_close(). NULL:
 * the system refused, or it is not that table. The mapping outlives the process, which then ends no lease any more. So
 * a reader of blocks by process id must check, with or after the last block, that it is still the same process. */
void *kvf_fence_table_map(pid_t pid, uint32_t fd, uint32_t slots, const kvf_incarnation *incarnation);

/* Unmaps it. No reader may be left in this process; one in another process that looks here by address finds nothing and
 * fails. NULL is allowed. */
void kvf_fence_table_close(void *table, uint32_t slots);

/* The memory that is registered from here on is of this generation; 0: there is none. All leases have ended, and the
 * first of the new memory's is not live yet. */
void kvf_fence_store_generation(void *table, uint64_t generation);

/* Foreign writes to the table do not affect either: the lease table of the core knows the words, and that they only
 * grow.
 *
 * Publishes: the digest, then the live word. The bytes of the lease's blocks must be complete. One thread per slot at a
 * time. */
void kvf_fence_store_live(void *table, uint32_t slot, kvf_fence_entry entry);

/* Ends: the ended word, then a full barrier. After this returns, a reader that finds the live word has read all its
 * bytes before: the blocks may be given away. The digest is unchanged. */
void kvf_fence_store_ended(void *table, uint32_t slot, kvf_fence_entry entry);

#endif
