/* Keeps a device busy while loads are measured: a thread that multiplies matrices, and times each turn. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "gpu_bench.h"

#define PAUSE_NS 5000
#define LAUNCH_PAUSE_NS 300000 /* an engine's launches come in bursts, and seldom without an end */
#define MATRICES 3
#define TILE 32u         /* of the kernel */
#define NUMBER_BYTE 0x3f /* makes numbers near 0.75 */

struct bench_worker {
  pthread_t thread;
  const cuda_driver *driver;
  bench_work work;
  uint32_t n;
  uint8_t *matrices;
  kvf_cu_stream stream;
  kvf_cu_event events[2];
  atomic_bool stopping;
  double us[BENCH_SAMPLES_MAX];
  size_t count;
};

static size_t matrix_bytes(const bench_worker *w)
{
  return (size_t)w->n * w->n * sizeof(float);
}

static void pause_for(long ns)
{
  const struct timespec pause = {0, ns};
  (void)nanosleep(&pause, NULL);
}

static void add_turn(bench_worker *w, uint64_t ns)
{
  if (w->count < BENCH_SAMPLES_MAX) {
    w->us[w->count++] = (double)ns / 1e3;
  }
}

static void record(const bench_worker *w, unsigned which)
{
  bench_cuda(w->driver, w->driver->cuda->api.event_record(w->events[which], w->stream), "cuEventRecord");
}

static void wait_for(const bench_worker *w, unsigned which)
{
  kvf_cu_result result;
  while ((result = w->driver->cuda->api.event_query(w->events[which])) == KVF_CUDA_ERROR_NOT_READY) {
    pause_for(PAUSE_NS);
  }
  bench_cuda(w->driver, result, "cuEventQuery");
}

static void multiply_once(const bench_worker *w, unsigned which)
{
  const kvf_cuda_api *api = &w->driver->cuda->api;
  const uint64_t at = (uintptr_t)w->matrices;
  uint64_t values[] = {at, at + matrix_bytes(w), at + 2 * matrix_bytes(w), w->n};
  void *arguments[] = {&values[0], &values[1], &values[2], &values[3]};
  bench_cuda(w->driver,
             api->launch_kernel(w->driver->multiply, w->n / TILE, w->n / TILE, 1, TILE, TILE, 1, 0, w->stream,
                                arguments, NULL),
             "cuLaunchKernel");
  record(w, which);
}

static void multiply(bench_worker *w)
{
  multiply_once(w, 0);
  unsigned which = 0;
  uint64_t last_ns = 0;
  while (!atomic_load(&w->stopping)) {
    multiply_once(w, 1 - which);
    wait_for(w, which);
    const uint64_t now_ns = bench_now_ns();
    if (last_ns != 0) {
      add_turn(w, now_ns - last_ns);
    }
    last_ns = now_ns;
    which = 1 - which;
  }
  wait_for(w, which);
}

/* Each is done before the next: no call waits for room in the queue. */
static void launch(bench_worker *w)
{
  while (!atomic_load(&w->stopping)) {
    const uint64_t begin_ns = bench_now_ns();
    cuda_driver_fill(w->stream, w->matrices, 1, NUMBER_BYTE, 0);
    add_turn(w, bench_now_ns() - begin_ns);
    record(w, 0);
    wait_for(w, 0);
    pause_for(LAUNCH_PAUSE_NS);
  }
}

static void *work(void *context)
{
  bench_worker *w = context;
  (void)cuda_driver_enter();
  (void)prctl(PR_SET_TIMERSLACK, 1);
  if (w->work == BENCH_MULTIPLY) {
    multiply(w);
  } else {
    launch(w);
  }
  return NULL;
}

bench_worker *bench_worker_make(const cuda_driver *driver, uint32_t multiply_n, bench_work work)
{
  const kvf_cuda_api *api = &driver->cuda->api;
  if (driver->multiply == NULL) {
    return NULL;
  }
  bench_worker *w = calloc(1, sizeof(*w));
  bench_must(w != NULL, "no memory");
  w->driver = driver;
  w->n = multiply_n;
  w->work = work;
  w->matrices = cuda_driver_allocate(MATRICES * matrix_bytes(w));
  bench_cuda(driver, api->stream_create_with_priority(&w->stream, KVF_CU_STREAM_NON_BLOCKING, 0),
             "cuStreamCreateWithPriority");
  for (int i = 0; i < 2; i++) {
    bench_cuda(driver, api->event_create(&w->events[i], KVF_CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }
  cuda_driver_fill(w->stream, w->matrices, MATRICES * matrix_bytes(w), NUMBER_BYTE, 0);
  return w;
}

void bench_worker_begin(bench_worker *w)
{
  atomic_store(&w->stopping, false);
  w->count = 0;
  bench_must(pthread_create(&w->thread, NULL, work, w) == 0, "cannot start a thread");
}

void bench_worker_end(bench_worker *w)
{
  atomic_store(&w->stopping, true);
  (void)pthread_join(w->thread, NULL);
}

double *bench_worker_turns(bench_worker *w, size_t *count)
{
  *count = w->count;
  return w->us;
}

void bench_worker_free(bench_worker *w)
{
  cuda_driver_free(w->matrices);
  free(w);
}

void bench_warm(bench_pair *pair, double seconds)
{
  const struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  pair->idle = bench_clocks_now(pair);
  bench_worker *w = bench_worker_make(pair->driver, pair->settings->multiply_n, BENCH_MULTIPLY);
  if (w == NULL) {
    return;
  }
  bench_worker_begin(w);
  (void)nanosleep(&pause, NULL);
  pair->warm = bench_clocks_now(pair);
  bench_worker_end(w);
  bench_worker_free(w);
}
