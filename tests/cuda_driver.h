/* NVIDIA's driver as tests and bench/gpu use it beside the library: that which $KVFERRY_TEST_CUDA_LIBRARY names, or the
 * fake of the tests. Device 0 alone. A call that fails ends the program. */
#ifndef KVF_TESTS_CUDA_DRIVER_H
#define KVF_TESTS_CUDA_DRIVER_H

#include "memory/cuda/driver.h"

typedef struct cuda_driver {
  const kvf_cuda *cuda;
  bool is_fake;
  bool is_linked;         /* it is the fake that the program is linked with */
  kvf_cu_context context; /* the primary one, kept */
  kvf_cu_stream stream;
  kvf_cu_function fill; /* cuda_kernels.cu; NULL: a real driver that does not take them */
  kvf_cu_function multiply;
  kvf_cu_result (*mem_alloc)(kvf_cu_memory *address, size_t bytes);
  kvf_cu_result (*mem_free)(kvf_cu_memory address);
  kvf_cu_result (*mem_create)(kvf_cu_allocation *allocation, size_t bytes, const kvf_cu_mem_allocation_prop *prop,
                              unsigned long long flags);
  kvf_cu_result (*mem_get_info)(size_t *free_bytes, size_t *total_bytes);
  kvf_cu_result (*stream_synchronize)(kvf_cu_stream stream);
} cuda_driver;

#define cuda_driver_must(result) cuda_driver_expect(result, #result, __FILE__, __LINE__)
void cuda_driver_expect(kvf_cu_result result, const char *call, const char *file, int line);

/* For the option cuda_library. */
const char *cuda_driver_library(void);
/* Whether the variable names one: then processes may take a second to start, and a while to end. */
bool cuda_driver_is_named(void);
/* The same for all of the process. Its context does not become the thread's. */
const cuda_driver *cuda_driver_open(void);
/* Its context is the thread's from here on. */
const cuda_driver *cuda_driver_enter(void);

/* Of cuMemAlloc(), a multiple of 2 MiB, as engines allocate their pools: of what is shorter drivers put several into
 * one block, and an IPC handle is of the whole block. $KVFERRY_TEST_SMALL_ALLOCATIONS: of no more bytes than that. */
void *cuda_driver_allocate(size_t bytes);
void cuda_driver_free(void *memory);
/* Of cuMemCreate(): mappings of 2 MiB side by side, each of which other processes can be given as a file. */
void *cuda_driver_map(size_t bytes);
void cuda_driver_unmap(void *memory, size_t bytes);
/* Between any two memories, the host's too, past all streams but the driver's own; it is done when this returns. */
void cuda_driver_copy(void *to, const void *from, size_t bytes);
/* On a stream of the current context, delay_ns after the work before it has ended. */
void cuda_driver_fill(kvf_cu_stream stream, void *to, size_t bytes, uint8_t value, uint64_t delay_ns);

#endif
