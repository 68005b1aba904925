/* A library that stands for libcuda.so.1 in tests: the calls of memory/cuda/cuda_api.h, and a few that tests need
 * besides.
 *
 * What it does is what CUDA allows, as late, as early and as much out of order as it allows it: device memory is
 * nothing that a pointer can read; work on streams is done later, by a thread of its own, in pieces, copies of one
 * batch in any order; a source is read before its turn where the access order lets it. What of all this happens is
 * drawn by a seed. It is never kinder than CUDA: the legacy default stream does not wait for other streams, nor they
 * for it, nothing waits for the device but what says that it does, and legacy memory whose process is gone, or has
 * freed it, is poison to those that have it open; what a network has written is not there before it is flushed.
 *
 * An engine that has no GPU lends it its own memory: what is adopted can be read by pointers as well. The check that
 * nothing does so is those tests whose device memory cannot.
 *
 * Programs that are linked with it see the same library as those that load it by its path. Of the environment, when it
 * is loaded: KVFERRY_FAKE_CUDA_SEED, _VERSION (12080), _DEVICES ("1,0": which of the host's this process sees, in which
 * order), _DELAY_NS, _BATCH_MAX, _COMPILER (0 or 1), _NETWORK_ORDER (0), _NUMA_NODE (0), _HOST_POINTERS (1),
 * _IMPORTS (FAKE_CUDA_TELLS_ALL) and _READ_ONLY (1), as in fake_cuda_settings.
 */
#ifndef KVF_TESTS_FAKE_CUDA_H
#define KVF_TESTS_FAKE_CUDA_H

#include <stdbool.h>

#include "memory/cuda/cuda_api.h"

#define FAKE_CUDA_API __attribute__((visibility("default")))
#define FAKE_CUDA_DEVICES_MAX 8
#define FAKE_CUDA_GRANULARITY_BYTES ((size_t)2 << 20) /* of cuMemCreate() and so on */
#define FAKE_CUDA_POISON 0xdb
#define FAKE_CUDA_MEMORY_BYTES ((size_t)8 << 30)

/* ---- driver calls that only tests make ---- */

FAKE_CUDA_API kvf_cu_result cuMemAlloc_v2(kvf_cu_memory *address, size_t bytes);
FAKE_CUDA_API kvf_cu_result cuMemFree_v2(kvf_cu_memory address);
/* As if nobody had allocated any: FAKE_CUDA_MEMORY_BYTES. */
FAKE_CUDA_API kvf_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
FAKE_CUDA_API kvf_cu_result cuMemCreate(kvf_cu_allocation *allocation, size_t bytes,
                                        const kvf_cu_mem_allocation_prop *prop, unsigned long long flags);
FAKE_CUDA_API kvf_cu_result cuCtxGetCurrent(kvf_cu_context *context);
FAKE_CUDA_API kvf_cu_result cuCtxSynchronize(void);
FAKE_CUDA_API kvf_cu_result cuStreamSynchronize(kvf_cu_stream stream);

/* ---- an engine's memory ---- */

/* The pages that hold it are from here on memory of the current context's device, as of cuMemAlloc(), with the bytes
 * that they have; the engine, and whoever else has something in these pages, goes on to read and write them by its
 * pointers. Nobody writes to them meanwhile. Pages that were adopted already may hold all of it, or none:
 * KVF_CUDA_ERROR_ALREADY_MAPPED. cuMemFree() of the first page, or the context's end, gives them back, for which they
 * must still be there. */
FAKE_CUDA_API kvf_cu_result fake_cuda_adopt(void *address, size_t bytes);

/* ---- settings ---- */

/* What the driver says of memory that cuIpcOpenMemHandle() has mapped: CUDA's documents promise none of it. */
enum {
  FAKE_CUDA_TELLS_RANGE = 1, /* cuMemGetAddressRange() answers; else it is not found */
  FAKE_CUDA_TELLS_ID = 2,    /* the buffer's id; else 0 */
  FAKE_CUDA_TELLS_SIZE = 4,  /* where the range of its addresses begins, and how long it is; else 0 */
  FAKE_CUDA_TELLS_ALL = 7
};

typedef struct fake_cuda_settings {
  uint64_t seed;
  int version; /* older than KVF_CUDA_VERSION_BATCH: it has no batch copies */
  unsigned devices_count;
  unsigned devices[FAKE_CUDA_DEVICES_MAX]; /* which of the host's, by ordinal */
  uint64_t delay_ns;                       /* work may begin from 0 to so much later than it could */
  size_t batch_max;                        /* a batch of more copies breaks its context, as some have been seen to do */
  bool has_compiler;                       /* else it takes no PTX */
  bool by_hand;                            /* nothing is done but in fake_cuda_step() */
  int network_order;                       /* one of KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ */
  int numa_node;                           /* nearest to the host's first device, one more for each after it; or -1 */
  bool has_host_pointers;                  /* what is registered is there for devices at the host's address */
  unsigned told_of_imports;                /* FAKE_CUDA_TELLS_ */
  bool maps_for_reading;                   /* else it refuses mappings that can only be read */
} fake_cuda_settings;

/* As the environment says. */
FAKE_CUDA_API fake_cuda_settings fake_cuda_defaults(void);
/* As after a process' start: all contexts, memory, work, counts and faults are gone. Nobody else calls meanwhile. */
FAKE_CUDA_API void fake_cuda_reset(const fake_cuda_settings *settings);

/* maps_for_reading, from here on. */
FAKE_CUDA_API void fake_cuda_map_for_reading(bool maps);
/* FAKE_CUDA_TELLS_, from here on. */
FAKE_CUDA_API void fake_cuda_tell_of_imports(unsigned told);

/* Goes on by another seed. */
FAKE_CUDA_API void fake_cuda_seed(uint64_t seed);

/* ---- the course of work ---- */

/* Does one piece of work that can be done, chosen by the seed, or leaves all of it lying. False: none can be done. */
FAKE_CUDA_API bool fake_cuda_step(void);
/* The stream stands still, or goes on. All of a device's, those made later included. */
FAKE_CUDA_API void fake_cuda_stall(kvf_cu_stream stream, bool still);
FAKE_CUDA_API void fake_cuda_stall_device(int device, bool still);

/* ---- bytes, past all streams; false: nothing is there ---- */

FAKE_CUDA_API bool fake_cuda_read(kvf_cu_memory from, void *to, size_t bytes);
FAKE_CUDA_API bool fake_cuda_write(kvf_cu_memory to, const void *from, size_t bytes);
/* As a network's adapter writes: unless the device orders such writes, nobody sees it before the next
 * cuFlushGPUDirectRDMAWrites(). (Work that is submitted later does so as well, of which the fake makes no use.) */
FAKE_CUDA_API bool fake_cuda_write_by_network(kvf_cu_memory to, const void *from, size_t bytes);
/* From here on, of all devices. */
FAKE_CUDA_API void fake_cuda_order_network(int order);
/* Writes that nobody sees yet. */
FAKE_CUDA_API unsigned fake_cuda_unflushed(void);
/* Where the test itself reads and writes what is allocated there, until it is freed. NULL: nothing is there. */
FAKE_CUDA_API void *fake_cuda_view(kvf_cu_memory at);

/* ---- kernels ---- */

#define FAKE_CUDA_ARGUMENTS_MAX 8
#define FAKE_CUDA_ARGUMENT_BYTES_MAX 16

typedef struct fake_cuda_launch {
  void *arguments[FAKE_CUDA_ARGUMENTS_MAX]; /* as they were at the launch */
  unsigned grid[3];
  unsigned block[3];
  int device;
  unsigned step; /* how often it has been called for this launch */
} fake_cuda_launch;

/* Runs in the stream's turn, on the fake's thread; again and again, other work between, until it returns true. */
typedef bool (*fake_cuda_kernel)(const fake_cuda_launch *launch);

/* From here on cuModuleGetFunction() finds it by this name, in any module. There are some already: those of
 * ../cuda_kernels.cu, of which test_fill works in FAKE_CUDA_FILL_STEPS pieces, with no delay but the fake's, and
 * test_multiply does nothing; and the library's own (memory/cuda/kernels.h), which do an entry of their list a step. */
FAKE_CUDA_API void fake_cuda_add_kernel(const char *name, fake_cuda_kernel run, const size_t *argument_bytes,
                                        size_t arguments_count);
#define FAKE_CUDA_FILL_STEPS 4

/* ---- faults ---- */

/* Of the calls of this name that come after `after` more, the next `times` fail. */
FAKE_CUDA_API void fake_cuda_fail(const char *call, kvf_cu_result error, unsigned after, unsigned times);
/* The device's context is lost: its work stands still and each call in it says so. */
FAKE_CUDA_API void fake_cuda_break(int device, kvf_cu_result error);

/* ---- what was seen ---- */

FAKE_CUDA_API uint64_t fake_cuda_calls(const char *call);
/* Of the last cuLaunchKernel(), in one dimension. */
FAKE_CUDA_API void fake_cuda_last_launch(unsigned *blocks, unsigned *threads);
/* While it is true calls that allocate memory, or wait for a stream or context, are violations; they are made all the
 * same. So are copies from and to memory that is not pinned, and the first launch of each kernel in a context, for
 * which the driver waits. */
FAKE_CUDA_API void fake_cuda_forbid_waits(bool forbid);
/* While it is true a thread of the engine captures a CUDA graph: calls that would end that are violations, too, but of
 * threads whose mode is KVF_CU_STREAM_CAPTURE_MODE_RELAXED. */
FAKE_CUDA_API void fake_cuda_capture(bool captures);
/* The stream is captured, by whichever thread: what it is given goes into a graph, events behind it are never complete,
 * and a batch is refused. So is all work on the legacy stream, if this one is a blocking one. The last two end a
 * capture, and are violations. */
FAKE_CUDA_API void fake_cuda_capture_stream(kvf_cu_stream captured, bool captures);
FAKE_CUDA_API uint64_t fake_cuda_violations(void);

/* What there is at the moment, of this process. */
typedef struct fake_cuda_open {
  unsigned contexts; /* that are retained, each as often as it is */
  unsigned modules;
  unsigned streams;
  unsigned events;
  unsigned memory;  /* of cuMemAlloc() and cuMemHostAlloc(), and registrations */
  unsigned imports; /* of cuIpcOpenMemHandle(), one a pointer */
  unsigned reservations;
  unsigned maps;        /* of cuMemMap() */
  unsigned allocations; /* that have not been released */
  unsigned works;       /* on streams, not done */
} fake_cuda_open;

FAKE_CUDA_API fake_cuda_open fake_cuda_count(void);

#endif
