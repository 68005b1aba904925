/* The kind of memory of NVIDIA GPUs on the fake driver, for tests of it: contexts, memory and streams are gpu.h's. Each
 * step is asserted to go well. */
#ifndef KVF_TESTS_CUDA_KIND_H
#define KVF_TESTS_CUDA_KIND_H

#include <pthread.h>
#include <stdatomic.h>

#include "memory/memory.h"
#include "unit/fake_cuda/gpu.h"

extern char kind_message[KVF_MESSAGE_BYTES_MAX]; /* of the last call */

/* The fake as it is after a process' start, once a process; device 0's context is the thread's. */
void kind_begin(void);

/* In one block, of device 0. */
kvf_region kind_region(kvf_cu_memory base, size_t bytes);
/* Of device 0, which is open from here on. Freed by cuMemFree_v2(). */
kvf_cu_memory kind_allocate(size_t bytes);
/* Addresses of this length, of so many mappings of equal length, side by side; freed by kind_unmap(). */
kvf_cu_memory kind_map(size_t bytes, unsigned count, unsigned handle_types);
void kind_unmap(kvf_cu_memory base, size_t bytes);

/* The same bytes for the same seed. */
void kind_write(uint8_t *to, size_t bytes, uint64_t seed);
/* Of memory that may have more than one mapping. */
void kind_write_device(kvf_cu_memory to, size_t bytes, uint64_t seed);
bool kind_is_written(const uint8_t *at, size_t bytes, uint64_t seed);
bool kind_device_is_written(kvf_cu_memory at, size_t bytes, uint64_t seed);
/* All that is on streams has been done. */
void kind_finish(void);

/* Descriptors of this process that are open. */
unsigned kind_descriptors(void);

/* ---- regions of this process or another, as they are read ---- */

typedef struct kind_export {
  uint8_t bytes[KVF_MEMORY_EXPORT_BYTES_MAX];
  size_t length;
} kind_export;

kind_export kind_share(kvf_cu_memory base, size_t bytes);
kvf_status kind_import(pid_t pid, uint32_t device, const kind_export *shared, size_t region_bytes,
                       kvf_memory_import *out);
/* By this process, for device 0. */
kvf_memory_import kind_import_own(const kind_export *shared, size_t region_bytes);
/* A batch of one run, or so many of equal length, of which the last come first, from the import's first byte on. */
void kind_batch(kvf_memory_batch *batch, const kvf_memory_import *import, const kvf_memory_ops *into, void *to,
                size_t bytes, size_t count);
/* A step, with books of its own of what it takes; the batch stays as it is. */
kvf_status kind_step(pid_t pid, const kvf_memory_batch *batch, uint64_t *bytes);
/* Into the host's memory, in as many steps as it takes. */
kvf_status kind_read(pid_t pid, const kvf_memory_import *import, uint64_t offset, uint8_t *to, size_t bytes);

/* ---- calls that may not return at once ---- */

typedef struct kind_side {
  void (*run)(void *context);
  void *context;
  pthread_t thread;
  atomic_int id;
  atomic_bool is_done;
} kind_side;

/* In a thread of its own. */
void kind_side_start(kind_side *side, void (*run)(void *context), void *context);
void kind_side_join(kind_side *side);
/* Whether it comes to stand still, in a lock. */
bool kind_side_is_stuck(const kind_side *side);
/* Whether it is done within so long. */
bool kind_side_ends(const kind_side *side, unsigned seconds);

/* A read in such a thread. */
typedef struct kind_reading {
  kind_side side;
  const kvf_memory_batch *batch;
  uint64_t bytes;
  kvf_status status;
} kind_reading;

void kind_reading_start(kind_reading *reading, const kvf_memory_batch *batch);
kvf_status kind_reading_join(kind_reading *reading);
/* Waits until so many calls of this name have been made. */
void kind_wait_calls(const char *call, uint64_t count);

#endif
