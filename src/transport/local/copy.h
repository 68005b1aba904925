/* Copies out of another process, as its memory's kind does it, and looks at its fence with process_vm_readv. No state
 * and no threads: local.c owns those. */
#ifndef KVF_TRANSPORT_LOCAL_COPY_H
#define KVF_TRANSPORT_LOCAL_COPY_H

#include <stdatomic.h>
#include <sys/types.h>

#include "memory/memory.h"
#include "transport/paging.h"

#define KVF_LOCAL_STAGE_BYTES 65536 /* that are read into host memory first, where two kinds do not go together */

typedef struct kvf_local_copy {
  pid_t pid;
  const kvf_memory_import *imports; /* of the remote regions */
  /* The fence table as it is mapped here, if both sides' memory is the host's; NULL: it is looked at by system calls.
   */
  const void *fence;
  uint64_t generation;            /* of the memory that the imports are of */
  kvf_memory_gather gather;       /* if devices bring them */
  const atomic_bool *stop;        /* set by another thread to end the copy early */
  atomic_ullong *moved_ns;        /* when bytes have arrived, after each system call */
  kvf_read_work *work;            /* what it took */
  void (*arrived)(void *context); /* bytes have arrived: at most once per KVF_PROGRESS_NS */
  void *context;
} kvf_local_copy;

/* Copies a chunk that has passed kvf_chunk_check(); with `head`, every call reads the fence table's head as well.
 * *bytes is what has arrived, also on failure. When it returns nothing writes to the destination. KVF_CANCELLED: *stop
 * was set. KVF_PEER_DOWN: no such process. KVF_TRANSFER_FAILED: the process is there, the memory is not, or may not be
 * read. KVF_NO_MEMORY: of the kernel. */
KVF_MUST_USE kvf_status kvf_local_copy_chunk(const kvf_local_copy *copy, const kvf_chunk *chunk, uint64_t table,
                                             kvf_fence_head *head, uint64_t *bytes);

/* Reads the head and one entry of the fence table at `table`, in one call, later than all earlier copies of this
 * thread. KVF_PEER_DOWN, KVF_TRANSFER_FAILED, KVF_NO_MEMORY: as kvf_local_copy_chunk(). */
KVF_MUST_USE kvf_status kvf_local_sample(pid_t pid, uint64_t table, uint32_t slot, kvf_fence_sample *out);

/* Copies a chunk of a lease between two looks at its fence. On KVF_OK *out is the last sample. Bytes are copied only if
 * the first look found the lease live, and the imports are of its memory. The second look would not show that bytes
 * were read before the publication. `table` is the address of the fence table in the other process. */
KVF_MUST_USE kvf_status kvf_local_copy_lease(const kvf_local_copy *copy, const kvf_chunk *chunk, uint64_t table,
                                             uint64_t *bytes, kvf_fence_sample *out);

/* Reads bytes of the process' own. Returns 0 or an errno. */
KVF_MUST_USE int kvf_local_fetch(pid_t pid, uint64_t address, void *out, size_t bytes);

/* Reads a cookie and the head of the fence table in one call, so that both are of one process. Returns 0 or an errno.
 */
KVF_MUST_USE int kvf_local_peek(pid_t pid, uint64_t cookie_address, void *cookie, size_t cookie_bytes, uint64_t table,
                                kvf_fence_head *head);

#endif
