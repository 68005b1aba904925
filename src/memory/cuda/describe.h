/* What a device can do, as its driver says it, for people. */
#ifndef KVF_MEMORY_CUDA_DESCRIBE_H
#define KVF_MEMORY_CUDA_DESCRIBE_H

#include "kvferry/types.h"

/* As kvf_memory_ops has them. */
KVF_MUST_USE kvf_status kvf_cuda_describe(uint32_t index, char *message);
void kvf_cuda_remark(uint32_t device, char *message);

#endif
