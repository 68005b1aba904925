/* kvferry and the bare copies in turns: each once a round, in random order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "gpu_bench.h"

#define WAYS_MAX 24
#define ROUNDS_MIN 3
#define ROUNDS_MAX 301
#define WARM_UP 2
#define GRACE_S 5.0
#define VERIFY_BYTES_MAX ((uint64_t)1 << 30) /* of the bare copies */
#define CPU_LOADS 20
#define CPU_LOADS_QUICK 2
#define CPU_S 1.0

typedef struct way {
  char impl[BENCH_TEXT_BYTES];
  void (*run)(bench_pair *pair, const bench_call *call);
  bench_call call;
  uint64_t bytes;
  bool has_pieces; /* which arrive where the load's do */
  double *ns;
  size_t count;
  uint64_t posting_ns;
} way;

typedef struct field {
  bench_pair *pair;
  way ways[WAYS_MAX];
  size_t count;
} field;

static void load(bench_pair *pair, const bench_call *call)
{
  (void)call;
  bench_load(pair, pair->spins, NULL);
}

/* ---- who takes part ---- */

static way *add(field *f, const char *impl, void (*run)(bench_pair *pair, const bench_call *call), bool has_pieces)
{
  const bench_geometry *geometry = &f->pair->geometry;
  bench_must(f->count < WAYS_MAX, "too many take part");
  way *added = &f->ways[f->count++];
  *added = (way){.run = run,
                 .call = {.pieces = bench_pieces(geometry)},
                 .bytes = bench_bytes(geometry),
                 .has_pieces = has_pieces,
                 .ns = calloc(BENCH_SAMPLES_MAX, sizeof(double))};
  (void)snprintf(added->impl, sizeof(added->impl), "%s", impl);
  bench_must(added->ns != NULL, "no memory");
  return added;
}

/* So many of the pieces are enough to know the speed. */
static way *add_bare(field *f, const char *impl, void (*run)(bench_pair *pair, const bench_call *call),
                     uint64_t pieces_max, bool has_pieces)
{
  const bench_pair *pair = f->pair;
  way *added = add(f, impl, run, has_pieces);
  if (added->call.pieces <= pieces_max) {
    return added;
  }
  char note[BENCH_TEXT_BYTES];
  (void)snprintf(note, sizeof(note), "of the first %" PRIu64 " pieces of %" PRIu64, pieces_max, added->call.pieces);
  bench_print_note(pair->of, impl, note);
  added->call.pieces = pieces_max;
  added->bytes = 0;
  for (size_t i = 0; i < pieces_max; i++) {
    added->bytes += pair->bytes[i];
  }
  return added;
}

static bool has_batches(const field *f)
{
  const bool has = f->pair->driver->cuda->api.memcpy_batch_async != NULL;
  if (!has) {
    bench_print_note(f->pair->of, "batch", "this driver has no batch copies");
  }
  return has;
}

static void add_gather(field *f, unsigned blocks, unsigned threads, const char *impl)
{
  char name[64];
  (void)snprintf(name, sizeof(name), "gather-%ux%u", blocks, threads);
  way *added = add_bare(f, impl != NULL ? impl : name, bench_gather, BENCH_PIECES_MAX, true);
  added->call.blocks = blocks;
  added->call.threads = threads;
}

static bool takes_gather(field *f)
{
  bench_load_gather(f->pair);
  if (f->pair->gather == NULL) {
    bench_print_note(f->pair->of, "gather", "this driver does not take the kernel");
  }
  return f->pair->gather != NULL;
}

static void add_within_device(field *f)
{
  bench_open_source(f->pair);
  bench_list_pieces(f->pair);
  if (has_batches(f)) {
    (void)add_bare(f, "batch", bench_batch, BENCH_SINGLE_PIECES, true);
    (void)add_bare(f, "batch-2048", bench_batches, BENCH_PIECES_MAX, true);
  }
  if (takes_gather(f)) {
    add_gather(f, KVF_CUDA_KERNEL_BLOCKS_MAX, KVF_CUDA_KERNEL_THREADS, "gather");
  }
  (void)add_bare(f, "loop", bench_loop, BENCH_LOOP_PIECES, true);
  (void)add(f, "one", bench_one, false);
}

/* Loads that pass through host memory have the speed of pinned memory beside them, and where they pass it once that of
 * the same pieces. */
static void add_pinned(field *f, bool to_host, bool to_device)
{
  bench_pin(f->pair);
  if (to_host) {
    bench_open_source(f->pair);
    (void)add(f, "pinned-to-host", bench_to_host, false);
  }
  if (to_device) {
    (void)add(f, "pinned-to-device", bench_to_device, false);
  }
  if (to_host != to_device && has_batches(f)) {
    bench_list_pinned(f->pair, to_host);
    (void)add_bare(f, "batch-2048", bench_batches, BENCH_PIECES_MAX, false);
  }
}

/* With options of its own it is another. */
static void add_kvferry(field *f)
{
  const bench_settings *settings = f->pair->settings;
  char name[BENCH_TEXT_BYTES] = "kvferry";
  for (size_t i = 0; i < settings->options_count; i++) {
    const size_t used = strlen(name);
    (void)snprintf(name + used, sizeof(name) - used, " %s", settings->options[i]);
  }
  (void)add(f, name, load, true);
}

static void add_all(field *f)
{
  const bench_case *of = f->pair->of;
  add_kvferry(f);
  if (of->source_is_host || of->destination_is_host || of->transport[0] != 'l') {
    add_pinned(f, !of->source_is_host, !of->destination_is_host);
  } else {
    add_within_device(f);
  }
}

/* By which of these the limits between the kernel and batch copies, and its blocks, are to be chosen. */
static void add_matrix(field *f)
{
  static const unsigned blocks[] = {16, 32, 64, 128};
  add_kvferry(f);
  if (f->pair->settings->options_count > 0) { /* the others do not depend on them */
    return;
  }
  bench_open_source(f->pair);
  bench_list_pieces(f->pair);
  (void)add(f, "one", bench_one, false);
  if (has_batches(f)) {
    (void)add_bare(f, "batch-2048", bench_batches, BENCH_PIECES_MAX, true);
  }
  const bool takes = takes_gather(f);
  for (size_t i = 0; takes && i < sizeof(blocks) / sizeof(blocks[0]); i++) {
    add_gather(f, blocks[i], KVF_CUDA_KERNEL_THREADS, NULL);
  }
}

/* ---- turns ---- */

static void verify(field *f)
{
  for (size_t i = 0; i < f->count; i++) {
    way *w = &f->ways[i];
    const bool is_looked_at = w->has_pieces && (i == 0 || w->bytes <= VERIFY_BYTES_MAX);
    if (is_looked_at) {
      bench_clear(f->pair);
    }
    w->run(f->pair, &w->call);
    if (is_looked_at) {
      bench_verify(f->pair, w->call.pieces, w->impl);
    }
  }
}

static void run_once(field *f, way *w, bool is_measured)
{
  const uint64_t begin_ns = bench_now_ns();
  w->run(f->pair, &w->call);
  const uint64_t ns = bench_now_ns() - begin_ns;
  if (is_measured) {
    w->ns[w->count++] = (double)ns;
    w->posting_ns += f->pair->posting_ns;
  }
}

static void run_round(field *f, kvf_prng *prng, bool is_measured)
{
  size_t order[WAYS_MAX] = {0};
  for (size_t i = 0; i < f->count; i++) {
    const size_t j = (size_t)kvf_prng_below(prng, (uint32_t)i + 1);
    order[i] = order[j];
    order[j] = i;
  }
  for (size_t i = 0; i < f->count; i++) {
    run_once(f, &f->ways[order[i]], is_measured);
  }
}

static void run_rounds(field *f)
{
  kvf_prng prng = {3};
  const double case_s = f->pair->settings->case_s;
  const size_t rounds_max = bench_pieces(&f->pair->geometry) == 1 ? BENCH_SAMPLES_MAX : ROUNDS_MAX;
  const uint64_t begin_ns = bench_now_ns();
  double elapsed_s = 0;
  for (size_t rounds = 0; rounds < rounds_max && (elapsed_s < case_s || rounds < ROUNDS_MIN); rounds++) {
    run_round(f, &prng, true);
    elapsed_s = (double)(bench_now_ns() - begin_ns) / 1e9;
    if (elapsed_s > 3 * case_s + GRACE_S) {
      return;
    }
  }
}

/* ---- what it cost ---- */

typedef struct work {
  uint64_t copy_ns;
  uint64_t posting_ns;
  uint64_t pieces;
  uint64_t chunks;
} work;

static work work_of(kvf_node *node)
{
  return (work){.copy_ns = bench_stat(node, "device_copy_ns"),
                .posting_ns = bench_stat(node, "device_posting_ns"),
                .pieces = bench_stat(node, "read_pieces"),
                .chunks = bench_stat(node, "chunks")};
}

static void print_work(const bench_pair *pair, const work *before, const work *after, size_t loads)
{
  const bench_case *of = pair->of;
  const double count = (double)loads;
  bench_print_value(of, "/posting", "kvferry", "us", (double)(after->posting_ns - before->posting_ns) / count / 1e3,
                    loads);
  bench_print_value(of, "/copying", "kvferry", "us", (double)(after->copy_ns - before->copy_ns) / count / 1e3, loads);
  bench_print_value(of, "/pieces", "kvferry", "a load", (double)(after->pieces - before->pieces) / count, loads);
  bench_print_value(of, "/chunks", "kvferry", "a load", (double)(after->chunks - before->chunks) / count, loads);
}

/* Its caller sleeps meanwhile: one that asks takes a core for as long as a load is. */
static void measure_cpu(bench_pair *pair)
{
  const size_t most = pair->settings->is_quick ? CPU_LOADS_QUICK : CPU_LOADS;
  const uint64_t begin_ns = bench_now_ns();
  const double producer_s = bench_producer_cpu_s(pair);
  const double consumer_s = bench_cpu_s();
  size_t loads = 0;
  while (loads < most && (loads < 2 || (double)(bench_now_ns() - begin_ns) / 1e9 < CPU_S)) {
    bench_load(pair, false, NULL);
    loads++;
  }
  const double own_s = bench_cpu_s() - consumer_s;
  const double their_s = bench_producer_cpu_s(pair) - producer_s;
  bench_print_value(pair->of, "/cpu-consumer", "kvferry", "us", own_s / (double)loads * 1e6, loads);
  bench_print_value(pair->of, "/cpu-producer", "kvferry", "us", their_s / (double)loads * 1e6, loads);
}

static void print_way(const field *f, way *w)
{
  const bench_case *of = f->pair->of;
  const bool is_single = bench_pieces(&f->pair->geometry) == 1;
  for (size_t i = 0; i < w->count; i++) {
    w->ns[i] = is_single ? w->ns[i] / 1e3 : (double)w->bytes / w->ns[i];
  }
  bench_print_samples(of, "", w->impl, is_single ? "us" : "GB/s", w->ns, w->count, !is_single);
  if (w->run != load && w->count > 0) {
    bench_print_value(of, "/posting", w->impl, "us", (double)w->posting_ns / (double)w->count / 1e3, w->count);
  }
}

static void run_field(bench_pair *pair, void (*add_ways)(field *f))
{
  static field f;
  kvf_prng prng = {4};
  f = (field){.pair = pair};
  add_ways(&f);
  verify(&f);
  for (size_t i = 0; i < WARM_UP && bench_pieces(&pair->geometry) < BENCH_LOOP_PIECES; i++) {
    run_round(&f, &prng, false);
  }
  const work before = work_of(pair->node);
  run_rounds(&f);
  const work after = work_of(pair->node);
  for (size_t i = 0; i < f.count; i++) {
    print_way(&f, &f.ways[i]);
  }
  if (pair->settings->options_count == 0) {
    print_work(pair, &before, &after, f.ways[0].count);
    measure_cpu(pair);
  }
  for (size_t i = 0; i < f.count; i++) {
    free(f.ways[i].ns);
  }
}

void bench_run_rounds(bench_pair *pair)
{
  run_field(pair, add_all);
}

/* What a host with two devices does not have: kernels of two processes take turns on one. */
void bench_run_rounds_beside_producer(bench_pair *pair)
{
  bench_ask_work(pair, true);
  run_field(pair, add_all);
  bench_ask_work(pair, false);
}

void bench_run_matrix(bench_pair *pair)
{
  run_field(pair, add_matrix);
}
