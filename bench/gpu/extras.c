/* The first load of two nodes, and what the calls of an engine's thread take. */
#include "gpu_bench.h"

#define FIRSTS 7
#define FIRSTS_QUICK 2
#define WARM_LOADS 5
#define CALLS 200
#define CALLS_QUICK 5
#define FILL_BYTES 65536

static double load_us(bench_pair *pair)
{
  const uint64_t begin_ns = bench_now_ns();
  bench_load(pair, pair->spins, NULL);
  return (double)(bench_now_ns() - begin_ns) / 1e3;
}

/* Of a few the shortest: what is not there is not taken off. */
static double warm_us(bench_pair *pair)
{
  double least = load_us(pair);
  for (int i = 1; i < WARM_LOADS; i++) {
    const double us = load_us(pair);
    least = us < least ? us : least;
  }
  return least;
}

/* Nodes that have not met, in processes that have: contexts, modules and pinned memory stay. The first of all is the
 * one whose process opens the memory for the first time. */
void bench_run_first(bench_pair *pair)
{
  double first[FIRSTS];
  double link[FIRSTS];
  const size_t count = pair->settings->is_quick ? FIRSTS_QUICK : FIRSTS;
  bench_clear(pair);
  for (size_t i = 0; i < count; i++) {
    if (i > 0) {
      kvf_node_close(pair->node);
      bench_ask_node(pair);
      pair->node =
          bench_pool_node(pair->of, pair->settings, &pair->geometry, pair->of->destination_is_host, pair->pool);
    }
    first[i] = load_us(pair);
    link[i] = first[i] - warm_us(pair);
  }
  bench_verify(pair, bench_pieces(&pair->geometry), "kvferry");
  bench_print_value(pair->of, "/of-all", "kvferry", "us", first[0], 1);
  bench_print_samples(pair->of, "", "kvferry", "us", first + 1, count - 1, false);
  bench_print_samples(pair->of, "/link", "kvferry", "us", link + 1, count - 1, false);
}

/* An engine names its stream, which has work. */
static void measure_load_start(bench_pair *pair)
{
  double us[CALLS];
  const kvf_ordering_point after = {.memory = KVF_MEMORY_CUDA, .device = 0, .handle = pair->stream};
  const size_t count = pair->settings->is_quick ? CALLS_QUICK : CALLS;
  void *scratch = cuda_driver_allocate(FILL_BYTES);
  bench_load(pair, false, NULL); /* connects */
  for (size_t i = 0; i < count; i++) {
    if (pair->driver->fill != NULL) {
      cuda_driver_fill(pair->stream, scratch, FILL_BYTES, 1, 0);
    }
    bench_load(pair, false, &after);
    us[i] = (double)pair->start_ns / 1e3;
  }
  bench_wait(pair);
  cuda_driver_free(scratch);
  bench_print_samples(pair->of, "/load-start", "kvferry", "us", us, count, false);
}

static void measure_publish(bench_pair *pair)
{
  double us[CALLS];
  size_t count = 0;
  const char what = BENCH_ASK_PUBLISH;
  bench_send(pair->fd, &what, 1);
  bench_receive(pair->fd, &count, sizeof(count));
  bench_must(count <= CALLS, "P has sent too much");
  bench_receive(pair->fd, us, count * sizeof(us[0]));
  bench_print_samples(pair->of, "/publish", "kvferry", "us", us, count, false);
}

void bench_run_calls(bench_pair *pair)
{
  measure_load_start(pair);
  measure_publish(pair);
}
