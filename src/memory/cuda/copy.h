/* Copies by lists of runs, each waited for: within the device, and between it and the host by way of pinned memory. */
#ifndef KVF_MEMORY_CUDA_COPY_H
#define KVF_MEMORY_CUDA_COPY_H

#include <sys/uio.h>

#include "memory/cuda/gpu.h"

/* Of one call of the driver's: some were seen to break at 8,192 copies and more. */
#define KVF_CUDA_PIECES_MAX 2048

/* Runs of equal length on both sides, at most KVF_CUDA_PIECES_MAX. When these return nothing of the copy is under way.
 * Not in the device's context. KVF_TRANSFER_FAILED: the driver refused, or the device is lost. KVF_NO_MEMORY: its. */
KVF_MUST_USE kvf_status kvf_cuda_copy_within(kvf_cuda_gpu *gpu, const struct iovec *to, const struct iovec *from,
                                             size_t count);
KVF_MUST_USE kvf_status kvf_cuda_copy_out(kvf_cuda_gpu *gpu, const struct iovec *to, const struct iovec *from,
                                          size_t count);
KVF_MUST_USE kvf_status kvf_cuda_copy_in(kvf_cuda_gpu *gpu, const struct iovec *to, const struct iovec *from,
                                         size_t count);

#endif
