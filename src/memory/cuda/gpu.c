/* Devices that were opened, by ordinal: free lanes and marks, waiting for an event, and when a device is lost. */
#include "memory/cuda/gpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "base/time.h"

#define MARKS_FIRST 64

/* A copy within a device takes some 10 us, one to the host 1 ms: at first the core is only offered to others. */
#define YIELD_NS (100 * KVF_NS_PER_US)
#define PAUSE_NS (20 * KVF_NS_PER_US)
#define ERROR_NS KVF_NS_PER_S /* for so long an error may pass */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* held while a device is opened */
static kvf_cuda_gpu gpus[KVF_CUDA_DEVICES_MAX];             /* by ordinal */
static atomic_bool is_open[KVF_CUDA_DEVICES_MAX];

/* ---- errors ---- */

static void lose(kvf_cuda_gpu *gpu)
{
  atomic_store_explicit(&gpu->is_lost, true, memory_order_relaxed);
}

/* That error alone, for ERROR_NS: so answers a card that has fallen off the bus. */
static bool is_gone(kvf_cuda_gpu *gpu, kvf_cu_result result)
{
  if (result != KVF_CUDA_ERROR_UNKNOWN) {
    if (atomic_load_explicit(&gpu->unknown_since_ns, memory_order_relaxed) != 0) {
      atomic_store_explicit(&gpu->unknown_since_ns, 0, memory_order_relaxed);
    }
    return false;
  }
  const uint64_t now_ns = kvf_cuda_now_ns();
  uint_fast64_t since_ns = 0; /* becomes the time of the first thread */
  return !atomic_compare_exchange_strong_explicit(&gpu->unknown_since_ns, &since_ns, now_ns, memory_order_relaxed,
                                                  memory_order_relaxed) &&
         now_ns >= kvf_time_add(since_ns, ERROR_NS);
}

/* Then nothing on it goes on any more. */
static bool is_lost_by(kvf_cuda_gpu *gpu, kvf_cu_result result)
{
  const bool is_lost = is_gone(gpu, result) || kvf_cuda_is_sticky(result);
  if (is_lost) {
    lose(gpu);
  }
  return is_lost;
}

kvf_status kvf_cuda_gpu_status(kvf_cuda_gpu *gpu, kvf_cu_result result)
{
  (void)is_lost_by(gpu, result);
  return kvf_cuda_status(result);
}

bool kvf_cuda_gpu_enter(kvf_cuda_gpu *gpu, kvf_cuda_stay *stay)
{
  if (atomic_load_explicit(&gpu->is_lost, memory_order_relaxed)) {
    return false;
  }
  const bool entered = kvf_cuda_enter(gpu->cuda, gpu->context, stay) == KVF_OK;
  if (!entered) { /* the end of the context has ended all work in it */
    lose(gpu);
  }
  return entered;
}

/* ---- lanes ---- */

void kvf_cuda_lane_free(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane)
{
  const kvf_cuda_api *api = &gpu->cuda->api;
  for (unsigned half = 0; half < 2; half++) {
    if (lane->events[half] != NULL) {
      (void)api->event_destroy(lane->events[half]);
    }
  }
  if (lane->stream != NULL) {
    (void)api->stream_destroy(lane->stream);
  }
  kvf_cuda_unpin(gpu->cuda, &lane->pinned);
  free(lane);
}

static kvf_cu_result fill_lane(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane)
{
  const kvf_cuda_api *api = &gpu->cuda->api;
  kvf_cu_result result =
      api->stream_create_with_priority(&lane->stream, KVF_CU_STREAM_NON_BLOCKING, KVF_CUDA_STREAM_PRIORITY);
  for (unsigned half = 0; half < 2 && result == KVF_CUDA_SUCCESS; half++) {
    result = api->event_create(&lane->events[half], KVF_CU_EVENT_DISABLE_TIMING);
  }
  return result == KVF_CUDA_SUCCESS
             ? kvf_cuda_pin(gpu->cuda, gpu->device->ordinal, 2 * KVF_CUDA_HALF_BYTES, &lane->pinned)
             : result;
}

kvf_status kvf_cuda_lane_make(kvf_cuda_gpu *gpu, kvf_cuda_lane **out)
{
  kvf_cuda_lane *lane = calloc(1, sizeof(*lane));
  *out = NULL;
  if (lane == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_status status = kvf_cuda_gpu_status(gpu, fill_lane(gpu, lane));
  if (status != KVF_OK) {
    kvf_cuda_lane_free(gpu, lane);
    return status;
  }
  *out = lane;
  return KVF_OK;
}

/* With the lock, which it gives up meanwhile. One that cannot be made will do without, if there are others. */
static kvf_cuda_lane *one_more(kvf_cuda_gpu *gpu)
{
  kvf_cuda_lane *made;
  gpu->lanes_count++;
  (void)pthread_mutex_unlock(&gpu->lock);
  kvf_status status = kvf_cuda_lane_make(gpu, &made);
  (void)pthread_mutex_lock(&gpu->lock);
  gpu->lanes_count -= status == KVF_OK ? 0 : 1;
  return made;
}

kvf_cuda_lane *kvf_cuda_lane_take(kvf_cuda_gpu *gpu)
{
  kvf_cuda_lane *taken = NULL;
  (void)pthread_mutex_lock(&gpu->lock);
  if (gpu->lanes == NULL && gpu->lanes_count < KVF_CUDA_LANES_MAX) {
    taken = one_more(gpu);
  }
  while (taken == NULL && gpu->lanes == NULL && gpu->lanes_count > 0) {
    (void)pthread_cond_wait(&gpu->given, &gpu->lock);
  }
  if (taken == NULL && gpu->lanes != NULL) {
    taken = gpu->lanes;
    gpu->lanes = taken->next;
  }
  (void)pthread_mutex_unlock(&gpu->lock);
  return taken;
}

void kvf_cuda_lane_give(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane)
{
  (void)pthread_mutex_lock(&gpu->lock);
  lane->next = gpu->lanes;
  gpu->lanes = lane;
  (void)pthread_cond_signal(&gpu->given);
  (void)pthread_mutex_unlock(&gpu->lock);
}

static void pause_for(uint64_t ns)
{
  const struct timespec pause = {.tv_nsec = (long)ns};
  (void)nanosleep(&pause, NULL);
}

uint64_t kvf_cuda_now_ns(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* A copy is over when its event is complete, or when its device is known to be lost. After any other error its state is
 * unknown. The error may pass. If it does not, the node is not healthy, and the caller goes on waiting. */
static bool goes_on(kvf_cuda_gpu *gpu, kvf_cu_result result, uint64_t *since_ns)
{
  const uint64_t now_ns = kvf_cuda_now_ns();
  if (is_lost_by(gpu, result)) {
    return false;
  }
  if (result == KVF_CUDA_ERROR_NOT_READY) {
    *since_ns = 0;
    return true;
  }
  *since_ns = *since_ns == 0 ? now_ns : *since_ns;
  if (now_ns - *since_ns >= ERROR_NS) {
    lose(gpu);
  }
  return true;
}

kvf_status kvf_cuda_lane_record(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane, unsigned half)
{
  uint64_t error_ns = 0;
  kvf_cu_result result;
  while ((result = gpu->cuda->api.event_record(lane->events[half], lane->stream)) != KVF_CUDA_SUCCESS &&
         goes_on(gpu, result, &error_ns)) {
    pause_for(PAUSE_NS);
  }
  return kvf_cuda_gpu_status(gpu, result);
}

kvf_status kvf_cuda_lane_wait(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane, unsigned half)
{
  const uint64_t begun_ns = kvf_cuda_now_ns();
  uint64_t error_ns = 0;
  kvf_cu_result result;
  while ((result = gpu->cuda->api.event_query(lane->events[half])) != KVF_CUDA_SUCCESS &&
         goes_on(gpu, result, &error_ns)) {
    if (kvf_cuda_now_ns() - begun_ns < YIELD_NS) {
      (void)sched_yield();
    } else {
      pause_for(PAUSE_NS);
    }
  }
  return kvf_cuda_gpu_status(gpu, result);
}

/* ---- ordering points ---- */

static kvf_status make_mark(kvf_cuda_gpu *gpu, kvf_cuda_mark **out)
{
  kvf_cuda_mark *mark = calloc(1, sizeof(*mark));
  *out = NULL;
  if (mark == NULL) {
    return KVF_NO_MEMORY;
  }
  mark->gpu = gpu;
  kvf_status status = kvf_cuda_gpu_status(gpu, gpu->cuda->api.event_create(&mark->event, KVF_CU_EVENT_DISABLE_TIMING));
  if (status != KVF_OK) {
    free(mark);
    return status;
  }
  *out = mark;
  return KVF_OK;
}

kvf_status kvf_cuda_mark_take(kvf_cuda_gpu *gpu, kvf_cuda_mark **out)
{
  (void)pthread_mutex_lock(&gpu->lock);
  kvf_cuda_mark *mark = gpu->marks;
  if (mark != NULL) {
    gpu->marks = mark->next;
  }
  (void)pthread_mutex_unlock(&gpu->lock);
  *out = mark;
  return mark != NULL ? KVF_OK : make_mark(gpu, out);
}

void kvf_cuda_mark_give(kvf_cuda_mark *mark)
{
  kvf_cuda_gpu *gpu = mark->gpu;
  (void)pthread_mutex_lock(&gpu->lock);
  mark->next = gpu->marks;
  gpu->marks = mark;
  (void)pthread_mutex_unlock(&gpu->lock);
}

/* ---- opening ---- */

/* What is missing of it: somebody may have tried before. */
static kvf_status stock(kvf_cuda_gpu *gpu)
{
  kvf_status status = KVF_OK;
  while (status == KVF_OK && gpu->lanes_count < KVF_CUDA_LANES_FIRST) {
    kvf_cuda_lane *lane;
    status = kvf_cuda_lane_make(gpu, &lane);
    if (status == KVF_OK) {
      gpu->lanes_count++;
      kvf_cuda_lane_give(gpu, lane);
    }
  }
  while (status == KVF_OK && gpu->marks_stocked < MARKS_FIRST) {
    kvf_cuda_mark *mark;
    status = make_mark(gpu, &mark);
    if (status == KVF_OK) {
      gpu->marks_stocked++;
      kvf_cuda_mark_give(mark);
    }
  }
  return status;
}

/* What was made until a failure is kept, for the next who tries. */
static kvf_status open_context(kvf_cuda_gpu *gpu, const kvf_cuda *cuda, const kvf_cuda_device *device, char *message)
{
  if (gpu->device == NULL) {
    kvf_status status = kvf_cuda_context_retain(cuda, device, &gpu->context, message);
    if (status != KVF_OK) {
      return status;
    }
    (void)pthread_mutex_init(&gpu->lock, NULL);
    (void)pthread_cond_init(&gpu->given, NULL);
    gpu->cuda = cuda;
    gpu->device = device;
  }
  kvf_cuda_stay stay;
  if (!kvf_cuda_gpu_enter(gpu, &stay)) {
    return kvf_fail(KVF_TRANSFER_FAILED, message, "device %d (%s) has failed", (int)device->ordinal, device->name);
  }
  kvf_status status = stock(gpu);
  if (status == KVF_OK && kvf_cuda_is_sticky(kvf_cuda_kernels_load(cuda, &gpu->kernels))) {
    lose(gpu); /* any other refusal: copies take the kernels' place */
  }
  kvf_cuda_leave(&stay);
  return status == KVF_OK ? KVF_OK
                          : kvf_fail(status, message, "device %d (%s) gives no streams, events or pinned memory",
                                     (int)device->ordinal, device->name);
}

static const kvf_cuda_device *device_of(const kvf_cuda *cuda, uint32_t ordinal)
{
  for (uint32_t i = 0; i < cuda->devices_count; i++) {
    if ((uint32_t)cuda->devices[i].ordinal == ordinal) {
      return &cuda->devices[i];
    }
  }
  return NULL;
}

static kvf_status open_gpu(uint32_t ordinal, char *message)
{
  const kvf_cuda *cuda;
  kvf_status status = kvf_cuda_load("", &cuda, message);
  if (status != KVF_OK) {
    return status;
  }
  const kvf_cuda_device *device = device_of(cuda, ordinal);
  if (device == NULL) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "this process sees no CUDA device %u, but %u others",
                    (unsigned)ordinal, (unsigned)cuda->devices_count);
  }
  return open_context(&gpus[ordinal], cuda, device, message);
}

kvf_cuda_gpu *kvf_cuda_gpu_opened(uint32_t ordinal)
{
  const bool is = ordinal < KVF_CUDA_DEVICES_MAX && atomic_load_explicit(&is_open[ordinal], memory_order_acquire);
  return is ? &gpus[ordinal] : NULL;
}

kvf_status kvf_cuda_gpu_of(uint32_t ordinal, kvf_cuda_gpu **out, char *message)
{
  kvf_status status = KVF_OK;
  *out = kvf_cuda_gpu_opened(ordinal);
  if (*out != NULL) {
    return KVF_OK;
  }
  if (ordinal >= KVF_CUDA_DEVICES_MAX) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "CUDA device %u is beyond the %u that are used", (unsigned)ordinal,
                    (unsigned)KVF_CUDA_DEVICES_MAX);
  }
  (void)pthread_mutex_lock(&opening);
  if (kvf_cuda_gpu_opened(ordinal) == NULL) {
    status = open_gpu(ordinal, message);
    atomic_store_explicit(&is_open[ordinal], status == KVF_OK, memory_order_release);
  }
  (void)pthread_mutex_unlock(&opening);
  *out = status == KVF_OK ? &gpus[ordinal] : NULL;
  return status;
}
