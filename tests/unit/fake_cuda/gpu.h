/* A process with a context on the fake's first device, for tests of what the fake does, by the calls that the loader
 * has found. Each is asserted to go well. */
#ifndef KVF_TESTS_GPU_H
#define KVF_TESTS_GPU_H

#include "fake_cuda.h"
#include "memory/cuda/load.h"
#include "test.h"

extern const kvf_cuda_api *gpu;

/* The fake as it is after a process' start, one step of work a call of fake_cuda_step(), or by its thread; a context of
 * device 0 is current. */
void gpu_begin(uint64_t seed, bool by_hand);
/* Makes a context of this device current; gpu_leave() brings back the one before. */
void gpu_enter(int device);
void gpu_leave(void);

kvf_cu_memory gpu_allocate(size_t bytes);
kvf_cu_stream gpu_stream(void);
kvf_cu_event gpu_event(void);
/* An event, recorded now. */
kvf_cu_event gpu_record(kvf_cu_stream on);
/* By a kernel, in its turn. */
void gpu_fill(kvf_cu_stream on, kvf_cu_memory to, size_t bytes, uint8_t value);
void gpu_copy(kvf_cu_stream on, kvf_cu_memory to, kvf_cu_memory from, size_t bytes);
/* `count` copies of equal length, side by side, in one call. */
void gpu_batch(kvf_cu_stream on, kvf_cu_memory to, kvf_cu_memory from, size_t bytes, size_t count, unsigned order);
/* As it is now. */
uint8_t gpu_byte(kvf_cu_memory at);
bool gpu_all_are(kvf_cu_memory at, size_t bytes, uint8_t value);
/* Of cuMemCreate(), that may be exported or not. */
kvf_cu_allocation gpu_create(size_t bytes, unsigned handle_types);
/* Addresses where it is mapped, for device 0 to read, or to write as well. */
kvf_cu_memory gpu_map(kvf_cu_allocation allocation, size_t bytes, unsigned access);
void gpu_unmap(kvf_cu_memory at, size_t bytes);
void gpu_finish(void);
/* Not a single one that was asked for: what some seed is to show has been shown by now. */
bool gpu_had_all_seeds(void);

#endif
