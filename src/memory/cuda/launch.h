/* The kernels of kernels.h as a device has them: loaded, launched over lists, or refused. */
#ifndef KVF_MEMORY_CUDA_LAUNCH_H
#define KVF_MEMORY_CUDA_LAUNCH_H

#include "memory/cuda/driver.h"
#include "memory/cuda/kernels.h"

/* The priority of our streams. It is CUDA's default and lowest one: an engine's kernel comes first only if the engine
 * has asked for a higher one. */
#define KVF_CUDA_STREAM_PRIORITY 0

/* All of them, or none. */
typedef struct kvf_cuda_kernels {
  kvf_cu_module module;
  kvf_cu_function checksums; /* NULL: none */
  kvf_cu_function gather;    /* NULL: none */
  kvf_cu_result refused;     /* by what error; KVF_CUDA_SUCCESS: they are there */
} kvf_cuda_kernels;

/* In the device's context. Launches each kernel once, over an empty list, so that no later launch loads code. Loading
 * would wait for the device's work, and other threads of the engine would wait for the loading. Returns out->refused.
 */
kvf_cu_result kvf_cuda_kernels_load(const kvf_cuda *cuda, kvf_cuda_kernels *out);
/* In the device's context. Nothing of the kernels is under way. */
void kvf_cuda_kernels_unload(const kvf_cuda *cuda, kvf_cuda_kernels *kernels);

/* Of a launch. */
typedef struct kvf_cuda_shape {
  unsigned blocks; /* at most */
  unsigned threads;
} kvf_cuda_shape;

static const kvf_cuda_shape kvf_cuda_usual_shape = {KVF_CUDA_KERNEL_BLOCKS_MAX, KVF_CUDA_KERNEL_THREADS};

/* Over a list of `count` entries, with as many blocks as it can use. */
kvf_cu_result kvf_cuda_launch(const kvf_cuda *cuda, kvf_cu_stream stream, kvf_cu_function kernel, kvf_cuda_shape shape,
                              size_t count, void **arguments);

#endif
