/* kvferry/staging.h: host memory between loads and an engine's pool, for engines that cannot undo a failed load.
 *
 * Such an engine may learn of blocks only after they have arrived. So its node registers the staging memory in place of
 * the pool, and loads into it before the engine knows of them. Then the engine gets the blocks that have arrived.
 * Copies in the engine's own stream fill its pool. They fail only if the device is lost.
 *
 *   kvf_staging_open, kvf_staging_regions ──► kvf_node_register ──► loads ──► kvf_staging_copy
 *
 * A staging block is free for another load when its copy is complete: kvf_staging_copied().
 *
 * Threads: kvf_staging_copy() by one thread at a time, the other functions by any thread. Only kvf_staging_close()
 * blocks. */
#ifndef KVFERRY_STAGING_H
#define KVFERRY_STAGING_H

#include "kvferry/node.h"

KVF_C_BEGIN

typedef struct kvf_staging kvf_staging;

/* Allocates host memory for `blocks` blocks of each region of `pool`, which has the form of kvf_node_register(). If the
 * pool is on a device, the memory is pinned and near it. `cuda_library`: as the option of that name ("": the usual
 * one). On success *out is the caller's, for kvf_staging_close(). On failure it is NULL, and `message` (may be NULL)
 * says what to change. The pool must stay mapped until kvf_staging_close() has returned. KVF_INVALID: a region is not
 * valid, or regions differ in kind or device. KVF_LIMIT: more than KVF_REGIONS_MAX regions. KVF_TRANSFER_SETUP: this
 * machine cannot use this kind of memory. KVF_NO_MEMORY: take fewer blocks. */
KVF_API KVF_MUST_USE kvf_status kvf_staging_open(const kvf_region *pool, size_t count, uint32_t blocks,
                                                 const char *cuda_library, kvf_staging **out,
                                                 char message[KVF_MESSAGE_BYTES_MAX]);

/* Waits for the copies that have begun, unless the device is lost, then frees the memory. Before this call the node
 * must have unregistered it. NULL is allowed. */
KVF_API void kvf_staging_close(kvf_staging *staging);

/* Writes the regions to register in place of the pool, as many as the pool has. The i-th has the group, heads and block
 * bytes of the pool's i-th, in host memory. */
KVF_API void kvf_staging_regions(const kvf_staging *staging, kvf_region *out);

/* Copies staging blocks to pool blocks, in all regions of their groups: from->ids[i] to to->ids[i]. A pair with
 * KVF_BLOCK_NONE is left out. The copy runs in the stream `on`: after the work that is in the stream now, and before
 * later work. `on` NULL: the pool is host memory, and the copy is complete on return. `number` must be larger than that
 * of the copy before.
 *
 * - KVF_INVALID: `number` is not larger, a block is out of range, or the counts differ. Or `on` is not a stream of the
 *   pool's device, or the stream is being captured. No copy has begun.
 * - KVF_LIMIT: KVF_STAGING_COPIES_MAX copies are not complete yet. An engine that waits for its steps does not get
 *   this. No copy has begun.
 * - KVF_TRANSFER_FAILED, KVF_NO_MEMORY: the device has refused a part of the copy, and is lost. The blocks are not
 *   good. kvf_staging_copied() will never reach this copy or a later one. */
KVF_API KVF_MUST_USE kvf_status kvf_staging_copy(kvf_staging *staging, uint64_t number, const kvf_blocks *from,
                                                 const kvf_blocks *to, const kvf_ordering_point *on);

#define KVF_STAGING_COPIES_MAX 1024

/* The largest number up to which all copies are complete; 0: none is. */
KVF_API uint64_t kvf_staging_copied(kvf_staging *staging);

KVF_C_END
#endif
