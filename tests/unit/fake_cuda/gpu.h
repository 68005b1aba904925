/* A process with a context on the fake's first device, for tests of what the fake does and of the kind of memory of
 * NVIDIA's GPUs on it. Each step is asserted to go well. */
#ifndef KVF_TESTS_GPU_H
#define KVF_TESTS_GPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "../../child_process.h"
#include "fake_cuda.h"
#include "memory/cuda/driver.h"
#include "memory/memory.h"
#include "test.h"

/* ---- the fake, by the calls that the loader has found ---- */

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

/* ---- the kind of memory ---- */

extern char kind_message[KVF_MESSAGE_BYTES_MAX]; /* of the last call */

/* The fake as it is after a process' start, once a process; device 0's context is the thread's. */
void kind_begin(void);

/* In one block, of device 0. */
kvf_region kind_region(kvf_cu_memory base, size_t bytes);
/* Of device 0, which is open from here on. Freed by cuMemFree_v2(). */
kvf_cu_memory kind_allocate(size_t bytes);
/* Addresses of this length, of so many mappings of equal length, side by side; freed by gpu_unmap(). */
kvf_cu_memory kind_map(size_t bytes, unsigned count, unsigned handle_types);

/* The same bytes for the same seed. */
void kind_write(uint8_t *to, size_t bytes, uint64_t seed);
/* Of memory that may have more than one mapping. */
void kind_write_device(kvf_cu_memory to, size_t bytes, uint64_t seed);
bool kind_is_written(const uint8_t *at, size_t bytes, uint64_t seed);
bool kind_device_is_written(kvf_cu_memory at, size_t bytes, uint64_t seed);
/* All that is on streams has been done. */
void kind_finish(void);

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

/* ---- a process that exports memory of its device 0: a child of a test's program, whose main() calls exporter_run()
 * ----
 */

#define EXPORTER_MODE "exports"

typedef enum exporter_kind { EXPORT_ALLOCATION, EXPORT_MAPPINGS } exporter_kind;

/* What it is to make: a region in this, that is written by kind_write(), and exported. */
typedef struct exporter_order {
  exporter_kind kind;
  unsigned mappings;     /* of equal length; 0 with EXPORT_ALLOCATION */
  unsigned handle_types; /* with EXPORT_MAPPINGS */
  size_t bytes;
  size_t offset;
  size_t region_bytes;
  uint64_t seed;
} exporter_order;

typedef struct exporter_reply {
  pid_t pid;
  kvf_status status;
  char message[KVF_MESSAGE_BYTES_MAX];
  kind_export exported;
  unsigned descriptors_before; /* before the export */
  unsigned allocations_before;
  unsigned descriptors;
  unsigned allocations;
  bool is_written; /* the region is as it was */
} exporter_reply;

typedef enum exporter_question { EXPORTER_LOOK, EXPORTER_UNEXPORT } exporter_question;

exporter_reply exporter_start(child_process *child, const exporter_order *order);
exporter_reply exporter_ask(const child_process *child, exporter_question question);
void exporter_end(const child_process *child);

/* In the child. */
int exporter_run(void);

#endif
