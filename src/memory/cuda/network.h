/* What a network's adapter that reads and writes a device's memory by itself needs of the driver. */
#ifndef KVF_MEMORY_CUDA_NETWORK_H
#define KVF_MEMORY_CUDA_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

/* As kvf_memory_ops says; of a device that somebody has opened. */
bool kvf_cuda_within(uint32_t device, void (*run)(void *argument), void *argument);
bool kvf_cuda_flush(uint32_t device);

#endif
