/* A region of a device, shared with other processes of this host. Memory of cuMemAlloc() is shared by its IPC handle,
 * memory of cuMemMap() by a file descriptor for each mapping. */
#ifndef KVF_MEMORY_CUDA_EXPORT_H
#define KVF_MEMORY_CUDA_EXPORT_H

#include "memory/cuda/gpu.h"
#include "memory/memory.h"

#define KVF_CUDA_MAPPINGS_MAX 4096 /* of one region */

/* As kvf_memory_ops has them, but that an import's `ops` is not set. */
KVF_MUST_USE kvf_status kvf_cuda_export(const kvf_region *region, void *out, size_t *bytes, char *message);
void kvf_cuda_unexport(const void *exported);
KVF_MUST_USE kvf_status kvf_cuda_import(const kvf_memory_source *source, kvf_memory_import *out, char *message);
void kvf_cuda_release(kvf_memory_import *import);

/* Whether what the import's process has exported may be read, by the device *gpu, until kvf_cuda_import_leave(). */
bool kvf_cuda_import_enter(const kvf_memory_import *import, kvf_cuda_gpu **gpu);
void kvf_cuda_import_leave(const kvf_memory_import *import);
/* The device that reads it. */
kvf_cuda_gpu *kvf_cuda_import_gpu(const kvf_memory_import *import);
/* Whether it is memory of the device that reads it, as its process says. */
bool kvf_cuda_import_is_of_reader(const kvf_memory_import *import);

#endif
