/* An engine's work beside loads: what each costs the other. Multiplications in a loop, two of them in the stream, so
 * that the device always has the next one. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "gpu_bench.h"

#define PAUSE_NS 5000
#define MATRICES 3
#define TILE 32u         /* of the kernel */
#define NUMBER_BYTE 0x3f /* makes numbers near 0.75 */

typedef struct multiplier {
  pthread_t thread;
  const cuda_driver *driver;
  uint32_t n;
  uint8_t *matrices;
  kvf_cu_stream stream;
  kvf_cu_event events[2];
  atomic_bool stopping;
  double us[BENCH_SAMPLES_MAX];
  size_t count;
} multiplier;

static size_t matrix_bytes(const multiplier *m)
{
  return (size_t)m->n * m->n * sizeof(float);
}

static void launch(multiplier *m, unsigned which)
{
  const kvf_cuda_api *api = &m->driver->cuda->api;
  const uint64_t at = (uintptr_t)m->matrices;
  uint64_t values[] = {at, at + matrix_bytes(m), at + 2 * matrix_bytes(m), m->n};
  void *arguments[] = {&values[0], &values[1], &values[2], &values[3]};
  bench_cuda(m->driver,
             api->launch_kernel(m->driver->multiply, m->n / TILE, m->n / TILE, 1, TILE, TILE, 1, 0, m->stream,
                                arguments, NULL),
             "cuLaunchKernel");
  bench_cuda(m->driver, api->event_record(m->events[which], m->stream), "cuEventRecord");
}

static void wait_for(const multiplier *m, unsigned which)
{
  const struct timespec pause = {0, PAUSE_NS};
  kvf_cu_result result;
  while ((result = m->driver->cuda->api.event_query(m->events[which])) == KVF_CUDA_ERROR_NOT_READY) {
    (void)nanosleep(&pause, NULL);
  }
  bench_cuda(m->driver, result, "cuEventQuery");
}

static void *multiply(void *context)
{
  multiplier *m = context;
  (void)cuda_driver_enter();
  (void)prctl(PR_SET_TIMERSLACK, 1);
  launch(m, 0);
  unsigned which = 0;
  uint64_t last_ns = 0;
  while (!atomic_load(&m->stopping)) {
    launch(m, 1 - which);
    wait_for(m, which);
    const uint64_t now_ns = bench_now_ns();
    if (last_ns != 0 && m->count < BENCH_SAMPLES_MAX) {
      m->us[m->count++] = (double)(now_ns - last_ns) / 1e3;
    }
    last_ns = now_ns;
    which = 1 - which;
  }
  wait_for(m, which);
  return NULL;
}

static multiplier *multiplier_make(const bench_pair *pair)
{
  multiplier *m = calloc(1, sizeof(*m));
  const kvf_cuda_api *api = &pair->driver->cuda->api;
  bench_must(m != NULL, "no memory");
  m->driver = pair->driver;
  m->n = pair->settings->multiply_n;
  m->matrices = cuda_driver_allocate(MATRICES * matrix_bytes(m));
  bench_cuda(m->driver, api->stream_create_with_priority(&m->stream, KVF_CU_STREAM_NON_BLOCKING, 0),
             "cuStreamCreateWithPriority");
  for (int i = 0; i < 2; i++) {
    bench_cuda(m->driver, api->event_create(&m->events[i], KVF_CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }
  cuda_driver_fill(m->stream, m->matrices, MATRICES * matrix_bytes(m), NUMBER_BYTE, 0);
  return m;
}

static void begin(multiplier *m)
{
  atomic_store(&m->stopping, false);
  m->count = 0;
  bench_must(pthread_create(&m->thread, NULL, multiply, m) == 0, "cannot start a thread");
}

static void end(multiplier *m)
{
  atomic_store(&m->stopping, true);
  (void)pthread_join(m->thread, NULL);
}

/* ---- what runs beside it ---- */

static void load(bench_pair *pair)
{
  bench_load(pair, pair->spins, NULL);
}

static void batches(bench_pair *pair)
{
  bench_batches(pair, pair->listed);
}

static double phase_s(const bench_pair *pair)
{
  return pair->settings->is_quick ? 0.02 : 0.8;
}

/* Back to back. */
static void repeat(bench_pair *pair, void (*run)(bench_pair *pair), const char *impl)
{
  static double speeds[BENCH_SAMPLES_MAX];
  const uint64_t begin_ns = bench_now_ns();
  size_t count = 0;
  do {
    const uint64_t since_ns = bench_now_ns();
    run(pair);
    speeds[count++] = (double)bench_bytes(&pair->geometry) / (double)(bench_now_ns() - since_ns);
  } while (count < BENCH_SAMPLES_MAX && (double)(bench_now_ns() - begin_ns) / 1e9 < phase_s(pair));
  bench_print_samples(pair->of, "", impl, "GB/s", speeds, count, true);
}

static void pause_for(double seconds)
{
  const struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  (void)nanosleep(&pause, NULL);
}

static void measure_beside(bench_pair *pair, multiplier *m, void (*run)(bench_pair *pair), const char *beside,
                           const char *impl)
{
  begin(m);
  if (run != NULL) {
    repeat(pair, run, impl);
  } else {
    pause_for(phase_s(pair));
  }
  end(m);
  bench_print_samples(pair->of, "/multiply", beside, "us", m->us, m->count, false);
}

void bench_run_multiply(bench_pair *pair)
{
  const bool has_batches = pair->driver->cuda->api.memcpy_batch_async != NULL;
  if (pair->driver->multiply == NULL) {
    bench_print_note(pair->of, "kvferry", "this driver takes no kernels");
    return;
  }
  bench_open_source(pair);
  bench_list_pieces(pair);
  multiplier *m = multiplier_make(pair);
  bench_clear(pair);
  load(pair);
  bench_verify(pair, bench_pieces(&pair->geometry), "kvferry");
  measure_beside(pair, m, NULL, "alone", "");
  repeat(pair, load, "kvferry");
  measure_beside(pair, m, load, "beside kvferry", "kvferry+multiply");
  if (has_batches) {
    repeat(pair, batches, "batch-2048");
    measure_beside(pair, m, batches, "beside batch-2048", "batch-2048+multiply");
  }
  cuda_driver_free(m->matrices);
  free(m);
}
