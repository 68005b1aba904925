/* What memory/stage.h needs of a GPU. */
#ifndef KVF_MEMORY_CUDA_DEVICE_STAGE_H
#define KVF_MEMORY_CUDA_DEVICE_STAGE_H

#include "memory/memory.h"

extern const kvf_stage_ops kvf_cuda_stage_ops;

#endif
