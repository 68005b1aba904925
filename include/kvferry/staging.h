/* kvferry/staging.h: host memory in front of an engine's pool, for engines that have no way back from a failed load.
 *
 * Such an engine may be told of blocks only when they are there. So its node registers the staging memory in place of
 * the pool, and loads into it while the engine knows nothing; the engine is offered what has arrived, and its blocks
 * get their bytes by copies in its own stream, which do not fail unless the device is lost:
 *
 *   kvf_staging_open, kvf_staging_regions ──► kvf_node_register ──► loads, as ever ──► kvf_staging_copy
 *
 * A block of the staging is free for another load when its copy is complete: kvf_staging_copied().
 *
 * Threads: kvf_staging_copy() by one at a time; the others by any. None blocks. */
#ifndef KVFERRY_STAGING_H
#define KVFERRY_STAGING_H

#include "kvferry/node.h"

KVF_C_BEGIN

typedef struct kvf_staging kvf_staging;

/* Takes memory for `blocks` blocks of each of the `pool` regions, which are those of kvf_node_register(): host memory,
 * pinned and near the device if they are on one. `cuda_library` as the option of that name ("": the usual one). On
 * success *out is the caller's, to be given to kvf_staging_close(); on failure it is NULL, and `message` (may be NULL)
 * says what to change. The pool must stay where it is until then.
 * KVF_INVALID: a region is none, or they are not all of one kind and device. KVF_LIMIT: more than KVF_REGIONS_MAX
 * regions. KVF_TRANSFER_SETUP: this machine lacks what the kind of memory needs. KVF_NO_MEMORY: take fewer blocks. */
KVF_API KVF_MUST_USE kvf_status kvf_staging_open(const kvf_region *pool, size_t count, uint32_t blocks,
                                                 const char *cuda_library, kvf_staging **out,
                                                 char message[KVF_MESSAGE_BYTES_MAX]);

/* Waits for the copies that have begun, unless the device is lost, and gives the memory back: its node has let go of
 * it. NULL is allowed. */
KVF_API void kvf_staging_close(kvf_staging *staging);

/* Writes as many regions as the pool has, to be registered in its place: the i-th has the same groups, heads and block
 * bytes as the pool's i-th, in host memory. */
KVF_API void kvf_staging_regions(const kvf_staging *staging, kvf_region *out);

/* Copies blocks of the staging to blocks of the pool, in all regions of their groups: from->ids[i] to to->ids[i], left
 * out where one of them is KVF_BLOCK_NONE. The bytes are there for all that the stream `on` is given afterwards; they
 * are written after all that it had been given before. NULL: the pool is host memory, and they are there on return.
 * `number` is larger than that of the copy before. KVF_INVALID: a number that is not; a block out of range; counts
 * that differ; or `on` is not of the pool's device, or of a stream that is being captured. KVF_LIMIT:
 * KVF_STAGING_COPIES_MAX are not complete yet: not to be expected of an engine that waits for its steps. Nothing has
 * been begun then. KVF_TRANSFER_FAILED, KVF_NO_MEMORY: the device has refused some of it: it is lost, and the blocks
 * are not good; the copy, and those after it, will never be said to be complete. */
KVF_API KVF_MUST_USE kvf_status kvf_staging_copy(kvf_staging *staging, uint64_t number, const kvf_blocks *from,
                                                 const kvf_blocks *to, const kvf_ordering_point *on);

#define KVF_STAGING_COPIES_MAX 1024

/* The largest number up to which all copies are complete; 0: none. */
KVF_API uint64_t kvf_staging_copied(kvf_staging *staging);

KVF_C_END
#endif
