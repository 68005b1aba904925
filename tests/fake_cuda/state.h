/* What the parts of the fake share: one lock around all of it, objects behind the driver's handles, and who may call.
 */
#ifndef KVF_TESTS_FAKE_CUDA_STATE_H
#define KVF_TESTS_FAKE_CUDA_STATE_H

#include <pthread.h>
#include <sys/types.h>

#include "base/list.h"
#include "base/prng.h"
#include "fake_cuda.h"

#define FAKE_CUDA_SYMBOL(symbol, field) FAKE_CUDA_API extern __typeof__ (*((kvf_cuda_api *)0)->field)(symbol);
KVF_CUDA_CALLS(FAKE_CUDA_SYMBOL)
#undef FAKE_CUDA_SYMBOL

/* ---- calls (control.c) ---- */

#define FAKE_CUDA_OTHER_CALLS(CALL)            \
  CALL(cuMemcpyBatchAsync, memcpy_batch_async) \
  CALL(cuMemAlloc_v2, )                        \
  CALL(cuMemFree_v2, )                         \
  CALL(cuMemGetInfo_v2, )                      \
  CALL(cuMemCreate, )                          \
  CALL(cuCtxGetCurrent, )                      \
  CALL(cuCtxSynchronize, )                     \
  CALL(cuStreamSynchronize, )                  \
  CALL(fake_cuda_adopt, )

#define FAKE_CUDA_NUMBER(symbol, field) CALL_##symbol,
typedef enum call_number { KVF_CUDA_CALLS(FAKE_CUDA_NUMBER) FAKE_CUDA_OTHER_CALLS(FAKE_CUDA_NUMBER) CALLS } call_number;
#undef FAKE_CUDA_NUMBER

typedef enum call_needs {
  NEEDS_NOTHING,
  NEEDS_INIT,
  NEEDS_CONTEXT /* current on the thread, and not lost */
} call_needs;

/* Takes the lock, and keeps it if all is well. */
kvf_cu_result call_begin(call_number call, call_needs needs);
/* Gives it back, and returns the result. */
kvf_cu_result call_end(kvf_cu_result result);
/* The first line of each call. It returns from the function if it may not go on. */
#define BEGIN(symbol, needs)                                \
  do {                                                      \
    kvf_cu_result begun = call_begin(CALL_##symbol, needs); \
    if (begun != KVF_CUDA_SUCCESS) {                        \
      return begun;                                         \
    }                                                       \
  } while (false)

typedef struct fake_state {
  pthread_mutex_t lock; /* guards all that follows, and all objects */
  pthread_cond_t changed;
  fake_cuda_settings settings;
  kvf_prng prng;
  bool is_initialised;
  bool is_forked; /* a child of the process that loaded it: CUDA is of no use there */
  bool forbids_waits;
  bool captures;
  uint64_t violations;
  uint64_t nonce; /* of this process and no other */
  uint64_t last_id;
} fake_state;

extern fake_state fake;

void wait_is_seen(void);
/* A call that ends the capture of a graph. */
void unsafe_is_seen(void);
/* The calling thread's. */
unsigned capture_mode(void); /* device.c */
_Noreturn void give_up(const char *why);

/* ---- contexts (device.c) ---- */

typedef struct CUctx_st {
  int device; /* its ordinal */
  unsigned retains;
  kvf_cu_result error; /* that it is lost by */
  bool is_stalled;
  kvf_cu_stream legacy; /* its default stream */
  unsigned modules;
  unsigned launched; /* a bit for each kernel that has been */
} context;

context *context_of(int device);
context *context_current(void);
void context_break(context *lost, kvf_cu_result error);
void contexts_reset(void);
void contexts_count(fake_cuda_open *out);
/* The UUID of one of the host's devices. */
kvf_cu_uuid device_uuid(unsigned physical);

/* ---- memory (memory.c) ---- */

/* What memory is made of; it lives as long as it is mapped or held. */
typedef struct backing {
  unsigned refs;
  uint64_t id; /* in this process, never again */
  int fd;
  void *view; /* NULL: no test has asked for one */
  size_t bytes;
  unsigned handle_types;
  int device;
  /* Of an import of another process': it is there as long as a word of its memory reads so. */
  pid_t exporter;
  uint64_t exporter_pulse;
  uint64_t exporter_nonce;
  uint64_t exporter_id;
} backing;

typedef enum mapping_kind { MAPPING_MEMORY, MAPPING_IMPORT, MAPPING_MAP, MAPPING_PINNED, MAPPING_VACANT } mapping_kind;

/* A range of addresses that the driver knows. */
typedef struct mapping {
  kvf_list in_list;
  mapping_kind kind;
  kvf_cu_memory base;
  size_t bytes;
  uint64_t id;
  backing *backing;  /* NULL: the host's memory */
  bool is_allocated; /* the host's memory is our own */
  bool has_address;  /* with MAPPING_PINNED: the host's is the devices', too */
  bool is_adopted;   /* with MAPPING_MEMORY: at addresses that are not ours */
  context *context;  /* NULL with MAPPING_MAP */
  int device;
  unsigned opens;                         /* with MAPPING_IMPORT */
  unsigned access[FAKE_CUDA_DEVICES_MAX]; /* with MAPPING_MAP */
} mapping;

/* Where bytes are, for as long as it is held. */
typedef struct place {
  backing *backing; /* NULL: at `host` */
  uint64_t offset;
  uint8_t *host;
  size_t bytes; /* that lie together from here on */
} place;

#define PAGE_BYTES ((size_t)4096)

static inline size_t rounded(size_t bytes)
{
  return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

backing *backing_create(size_t bytes);
void backing_hold(backing *held);
void backing_drop(backing *held);

/* Takes the reference to what is held over. */
mapping *mapping_add(mapping_kind kind, kvf_cu_memory base, size_t bytes, backing *held);
mapping *mapping_at(kvf_cu_memory address);
/* NULL: there is none of this kind that begins there. */
mapping *mapping_of(mapping_kind kind, kvf_cu_memory base);
mapping *mapping_import_of(const context *importer, uint64_t nonce, uint64_t id);
/* Nothing is known there any more; its backing is dropped. */
void mapping_remove(mapping *gone);
/* Whether anything is known in the range. */
bool mapping_overlaps(kvf_cu_memory base, size_t bytes);
unsigned mappings_of(mapping_kind kind);
/* Whether anything but vacant addresses is there. */
bool mapping_overlaps(kvf_cu_memory base, size_t bytes);
void memory_end(const context *ended);
void memory_reset(void);
/* Addresses that nothing can be read or written at. 0: there are none. */
kvf_cu_memory addresses_take(size_t bytes);
void addresses_give(kvf_cu_memory base, size_t bytes);

/* Whether it is an address that a copy may be asked for; it may still go wrong when its turn comes. */
bool memory_is_known(kvf_cu_memory address, size_t bytes, bool *pinned);
/* False: the device may not read, or write, there. */
bool place_find(kvf_cu_memory address, int device, bool to_write, place *out);
void place_drop(const place *held);
/* Without the lock. */
bool place_read(const place *from, size_t offset, void *to, size_t bytes);
bool place_write(const place *to, size_t offset, const void *from, size_t bytes);
bool place_copy(const place *to, const place *from, size_t bytes);

/* Whether the process that has exported it is there. */
bool exporter_is_alive(const backing *imported); /* ipc.c */

/* Before its file is emptied: the engine keeps its bytes, in memory that is its own alone. */
void adopted_give_back(const mapping *gone); /* adopt.c */

void vmm_reset(void);
unsigned vmm_reservations(void);
unsigned vmm_allocations(void);
/* What a network has written is dropped. */
void network_reset(void);
bool vmm_reservation_of(kvf_cu_memory address, kvf_cu_memory *base, size_t *bytes);

/* ---- streams (stream.c) and what is done on them (work.c) ---- */

/* What a record has captured: the stream's work until then. */
typedef struct moment {
  unsigned refs;
  bool is_past;
} moment;

typedef struct CUevent_st {
  kvf_list in_list;
  context *context;
  moment *latest;   /* NULL: it was never recorded */
  bool is_captured; /* its last record is part of a graph */
} event;

typedef struct piece {
  kvf_cu_memory to;
  kvf_cu_memory from;
  size_t bytes;   /* that are left */
  uint8_t *early; /* the source's bytes, where they have been read before its turn */
  size_t early_offset;
} piece;

typedef enum work_kind { WORK_COPY, WORK_RECORD, WORK_WAIT, WORK_KERNEL } work_kind;

typedef struct work {
  kvf_list in_stream;
  work_kind kind;
  uint64_t due_ns; /* by hand: in steps */
  moment *moment;  /* with WORK_RECORD and WORK_WAIT */
  size_t pieces_left;
  piece *pieces; /* with WORK_COPY */
  fake_cuda_kernel run;
  fake_cuda_launch launch;
  uint8_t arguments[FAKE_CUDA_ARGUMENTS_MAX][FAKE_CUDA_ARGUMENT_BYTES_MAX];
} work;

typedef struct CUstream_st {
  kvf_list in_list;
  context *context;
  kvf_list works; /* in order */
  bool is_busy;   /* the first is being done, without the lock */
  bool is_stalled;
  bool is_destroyed; /* it ends when it has nothing more to do */
  pid_t thread;      /* whose default stream it is; 0: nobody's */
  bool is_blocking;  /* it and the legacy one wait for each other */
  bool is_captured;  /* what it is given goes into a graph, which nobody launches */
} stream;

stream *stream_create(context *owner);
/* The stream behind the handle, which is to be of the thread's context. NULL: it is none, *error says what it is. */
stream *stream_of(kvf_cu_stream handle, kvf_cu_result *error);
/* The same, for work: the legacy stream takes none while a blocking one is captured, whose capture that would end. */
stream *stream_for_work(kvf_cu_stream handle, kvf_cu_result *error);
/* Also where it is of another context. */
bool stream_exists(const stream *asked);
void streams_end(const context *ended);
void streams_reset(void);
void moment_drop(moment *dropped);
/* The streams, for the thread that does their work. */
kvf_list *streams_all(void);
void streams_count(fake_cuda_open *out);

work *work_create(work_kind kind);
void work_add(stream *to, work *added);
void work_free(work *done);
void work_begin_thread(void);
/* cuMemcpyBatchAsync, which is found by its version alone. */
kvf_cu_result fake_batch(kvf_cu_memory *to, kvf_cu_memory *from, size_t *bytes, size_t count,
                         kvf_cu_memcpy_attributes *attributes, size_t *first, size_t attributes_count,
                         size_t *fail_index, kvf_cu_stream at);
/* Waits, with the lock, until the moment is past or the context is lost. */
kvf_cu_result work_wait(const moment *awaited, const context *owner);

/* ---- kernels (kernel.c), of which these are the library's (shipped.c) ---- */

bool fake_checksums(const fake_cuda_launch *launch);
bool fake_gather(const fake_cuda_launch *launch);

#endif
