/* A device as this process uses it: its primary context, which is the engine's as well, and streams, events and pinned
 * memory of our own. Made when it is first needed, for the rest of the process' life: nothing is allocated while blocks
 * are carried.
 */
#ifndef KVF_MEMORY_CUDA_GPU_H
#define KVF_MEMORY_CUDA_GPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "memory/cuda/driver.h"
#include "memory/cuda/launch.h"
#include "memory/cuda/pinned.h"
#include "memory/stage.h"

#define KVF_CUDA_LANES_MAX 32  /* copies at a time, those included that are stuck; more wait for one of them */
#define KVF_CUDA_LANES_FIRST 4 /* made at once; others when they are needed */
#define KVF_CUDA_HALF_BYTES KVF_STAGE_HALF_BYTES

/* One copy's own: a stream, and two halves of pinned memory, each with an event of when it was last used. */
typedef struct kvf_cuda_lane {
  struct kvf_cuda_lane *next; /* of those that are free */
  kvf_cu_stream stream;
  kvf_cu_event events[2];
  kvf_cuda_pinned pinned; /* 2 * KVF_CUDA_HALF_BYTES, which kernels read and write, too */
  kvf_cuda_stay stay;     /* of the thread that has begun copies by it, until it finishes the last */
  unsigned oldest;        /* of the copies under way: its half */
  unsigned under_way;     /* one a half at most */
} kvf_cuda_lane;

/* An ordering point: an event. */
typedef struct kvf_cuda_mark {
  struct kvf_cuda_mark *next; /* of those that are free */
  struct kvf_cuda_gpu *gpu;
  kvf_cu_event event;
} kvf_cuda_mark;

typedef struct kvf_cuda_gpu {
  const kvf_cuda *cuda;          /* constant */
  const kvf_cuda_device *device; /* constant; NULL: it has not been opened */
  kvf_cu_context context;        /* constant */
  kvf_cuda_kernels kernels;      /* constant once it is open */
  atomic_bool is_lost;
  atomic_bool maps_for_writing;          /* its driver has refused a mapping that can only be read, and only that */
  atomic_uint_fast64_t unknown_since_ns; /* all that was heard since is KVF_CUDA_ERROR_UNKNOWN; 0: something else was */
  uint32_t marks_stocked;                /* until it is open */

  pthread_mutex_t lock; /* guards what follows */
  pthread_cond_t given;
  kvf_cuda_lane *lanes; /* free ones */
  uint32_t lanes_count; /* all */
  kvf_cuda_mark *marks; /* free ones */
} kvf_cuda_gpu;

/* The device of this ordinal. KVF_TRANSFER_SETUP: CUDA cannot be used, or there is no such device. Else what opening it
 * has failed by. The message (KVF_MESSAGE_BYTES_MAX) says why. Any thread; the first call takes long. */
KVF_MUST_USE kvf_status kvf_cuda_gpu_of(uint32_t ordinal, kvf_cuda_gpu **out, char *message);
/* The same of a device that somebody has opened. NULL: nobody has. */
kvf_cuda_gpu *kvf_cuda_gpu_opened(uint32_t ordinal);

/* Makes its context current, until kvf_cuda_leave() on the same thread. False: it is lost. */
KVF_MUST_USE bool kvf_cuda_gpu_enter(kvf_cuda_gpu *gpu, kvf_cuda_stay *stay);

/* What a call of the driver's for this device has returned: remembers if the device is lost with it. */
KVF_MUST_USE kvf_status kvf_cuda_gpu_status(kvf_cuda_gpu *gpu, kvf_cu_result result);

uint64_t kvf_cuda_now_ns(void);

/* Between enter and leave: one for the caller alone, for kvf_cuda_lane_free(), when nothing of it is under way. */
KVF_MUST_USE kvf_status kvf_cuda_lane_make(kvf_cuda_gpu *gpu, kvf_cuda_lane **out);
void kvf_cuda_lane_free(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane);
/* Between enter and leave: a free lane, which is waited for; NULL: there is none, and none can be made. */
kvf_cuda_lane *kvf_cuda_lane_take(kvf_cuda_gpu *gpu);
/* Nothing of it is under way any more. */
void kvf_cuda_lane_give(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane);

/* Records the half's event behind all that its stream has been given. Anything but KVF_OK: the context is lost, and all
 * that was under way with it. */
KVF_MUST_USE kvf_status kvf_cuda_lane_record(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane, unsigned half);
/* Waits until that event is complete. Anything but KVF_OK: the context is lost, and all that was under way with it. */
KVF_MUST_USE kvf_status kvf_cuda_lane_wait(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane, unsigned half);

/* Between enter and leave: an event, for kvf_cuda_mark_give(). */
KVF_MUST_USE kvf_status kvf_cuda_mark_take(kvf_cuda_gpu *gpu, kvf_cuda_mark **out);
void kvf_cuda_mark_give(kvf_cuda_mark *mark);

#endif
