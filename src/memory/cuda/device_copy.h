/* Copies by lists of runs, each waited for: within the device, and between it and the host by way of pinned memory. */
#ifndef KVF_MEMORY_CUDA_DEVICE_COPY_H
#define KVF_MEMORY_CUDA_DEVICE_COPY_H

#include <sys/uio.h>

#include "memory/cuda/gpu.h"

/* Of one call of the driver's: some were seen to break at 8,192 copies and more. */
#define KVF_CUDA_PIECES_MAX 2048

/* Shorter pieces than that, on average, are copied by a kernel, which uses some of the device's processors. A batch
 * takes time for each piece. Within a device the driver copies one piece after the other. That is 4 us each on an H100:
 * as much as the kernel takes for 4 MiB. From another device the driver merges pieces; that time has not been measured.
 */
#define KVF_CUDA_GATHER_BYTES ((size_t)8 << 20)
#define KVF_CUDA_GATHER_PEER_BYTES ((size_t)256 << 10)

#define KVF_CUDA_WARP 32u /* threads that go together */

/* Begins to copy runs within devices, of equal length on both sides, at most KVF_CUDA_PIECES_MAX. The runs are the
 * caller's again when this returns. *lane NULL: by a free lane; else behind the one copy that is under way in it. On
 * KVF_OK *lane is for kvf_cuda_finish() by the same thread. That thread is in the device's context until the last copy
 * is finished. On failure no part of this copy is under way. *posting_ns: the time of the driver's calls. The bytes of
 * `gather` are not 0. KVF_TRANSFER_FAILED: the driver refused, or the device is lost. KVF_NO_MEMORY: the device has no
 * memory. */
KVF_MUST_USE kvf_status kvf_cuda_begin_within(kvf_cuda_gpu *gpu, kvf_memory_gather gather, const struct iovec *to,
                                              const struct iovec *from, size_t count, kvf_cuda_lane **lane,
                                              uint64_t *posting_ns);
/* The lane's oldest copy. When it returns nothing of that is under way. */
KVF_MUST_USE kvf_status kvf_cuda_finish(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane);

/* Runs and errors as of kvf_cuda_begin_within(). When these return nothing of the copy is under way. Not in the
 * device's context. */
KVF_MUST_USE kvf_status kvf_cuda_copy_out(kvf_cuda_gpu *gpu, const struct iovec *to, const struct iovec *from,
                                          size_t count);
KVF_MUST_USE kvf_status kvf_cuda_copy_in(kvf_cuda_gpu *gpu, const struct iovec *to, const struct iovec *from,
                                         size_t count);

/* Begins to copy runs, of the device's and of pinned memory, one of each: to be waited for by an event. Not in the
 * device's context. */
KVF_MUST_USE kvf_status kvf_cuda_begin(kvf_cuda_gpu *gpu, kvf_cu_stream stream, const struct iovec *to,
                                       const struct iovec *from, size_t count);

/* kvf_checksum() of each run. Errors as of kvf_cuda_begin_within(). KVF_INVALID: the device has no kernel for it. */
KVF_MUST_USE kvf_status kvf_cuda_checksums(kvf_cuda_gpu *gpu, const struct iovec *runs, size_t count, uint64_t *out);

#endif
