/* An engine's work beside loads: what each costs the other. */
#include <time.h>

#include "gpu_bench.h"

static void load(bench_pair *pair)
{
  bench_load(pair, pair->spins, NULL);
}

static void batches(bench_pair *pair)
{
  bench_batches(pair, &(bench_call){.pieces = pair->listed});
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

static void measure_beside(bench_pair *pair, bench_worker *worker, const char *work, void (*run)(bench_pair *pair),
                           const char *beside, const char *impl)
{
  size_t count;
  bench_worker_begin(worker);
  if (run != NULL) {
    repeat(pair, run, impl);
  } else {
    pause_for(phase_s(pair));
  }
  bench_worker_end(worker);
  double *us = bench_worker_turns(worker, &count);
  bench_print_samples(pair->of, work, beside, "us", us, count, false);
}

static void run_beside(bench_pair *pair, bench_work work, const char *name)
{
  bench_worker *worker = bench_worker_make(pair->driver, pair->settings->multiply_n, work);
  if (worker == NULL) {
    bench_print_note(pair->of, "kvferry", "this driver takes no kernels");
    return;
  }
  bench_open_source(pair);
  bench_list_pieces(pair);
  bench_clear(pair);
  load(pair);
  bench_verify(pair, bench_pieces(&pair->geometry), "kvferry");
  measure_beside(pair, worker, name, NULL, "alone", "");
  repeat(pair, load, "kvferry");
  measure_beside(pair, worker, name, load, "beside kvferry", "kvferry+work");
  if (pair->driver->cuda->api.memcpy_batch_async != NULL) {
    repeat(pair, batches, "batch-2048");
    measure_beside(pair, worker, name, batches, "beside batch-2048", "batch-2048+work");
  }
  bench_worker_free(worker);
}

void bench_run_beside_multiply(bench_pair *pair)
{
  run_beside(pair, BENCH_MULTIPLY, "/multiply");
}

void bench_run_beside_launch(bench_pair *pair)
{
  run_beside(pair, BENCH_LAUNCH, "/launch");
}
