/* Pinned memory of the host's, which has one address for the host and the device. */
#ifndef KVF_MEMORY_CUDA_PINNED_H
#define KVF_MEMORY_CUDA_PINNED_H

#include "memory/cuda/driver.h"

typedef struct kvf_cuda_pinned {
  uint8_t *bytes; /* NULL: there is none */
  size_t size;
  bool is_ours; /* pages of our own that the driver has pinned; else it has allocated them */
} kvf_cuda_pinned;

/* Within a context: allocates memory on the host's NUMA node that is nearest to the device, if device and system allow
 * it. Else the driver chooses the place. For kvf_cuda_unpin(), also within a context. On an error there is no memory.
 */
KVF_MUST_USE kvf_cu_result kvf_cuda_pin(const kvf_cuda *cuda, kvf_cu_device device, size_t size, kvf_cuda_pinned *out);
void kvf_cuda_unpin(const kvf_cuda *cuda, kvf_cuda_pinned *pinned);

#endif
