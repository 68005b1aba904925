/* kvferry and the bare copies in turns: each once a round, in random order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/prng.h"
#include "gpu_bench.h"

#define WAYS_MAX 8
#define ROUNDS_MIN 3
#define ROUNDS_MAX 301
#define WARM_UP 2
#define GRACE_S 5.0
#define VERIFY_BYTES_MAX ((uint64_t)1 << 30) /* of the bare copies */
#define CPU_LOADS 20
#define CPU_LOADS_QUICK 2
#define CPU_S 1.0

typedef struct way {
  const char *impl;
  void (*run)(bench_pair *pair, uint64_t pieces);
  uint64_t pieces;
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

static void load(bench_pair *pair, uint64_t pieces)
{
  (void)pieces;
  bench_load(pair, pair->spins, NULL);
}

/* ---- who takes part ---- */

static way *add(field *f, const char *impl, void (*run)(bench_pair *pair, uint64_t pieces), bool has_pieces)
{
  const bench_geometry *geometry = &f->pair->geometry;
  way *added = &f->ways[f->count++];
  *added = (way){.impl = impl,
                 .run = run,
                 .pieces = bench_pieces(geometry),
                 .bytes = bench_bytes(geometry),
                 .has_pieces = has_pieces,
                 .ns = calloc(BENCH_SAMPLES_MAX, sizeof(double))};
  bench_must(added->ns != NULL, "no memory");
  return added;
}

/* So many of the pieces are enough to know the speed. */
static void add_bare(field *f, const char *impl, void (*run)(bench_pair *pair, uint64_t pieces), uint64_t pieces_max)
{
  const bench_pair *pair = f->pair;
  way *added = add(f, impl, run, true);
  if (added->pieces <= pieces_max) {
    return;
  }
  char note[BENCH_TEXT_BYTES];
  (void)snprintf(note, sizeof(note), "of the first %" PRIu64 " pieces of %" PRIu64, pieces_max, added->pieces);
  bench_print_note(pair->of, impl, note);
  added->pieces = pieces_max;
  added->bytes = 0;
  for (size_t i = 0; i < pieces_max; i++) {
    added->bytes += pair->bytes[i];
  }
}

static void add_within_device(field *f)
{
  bench_open_source(f->pair);
  bench_list_pieces(f->pair);
  if (f->pair->driver->cuda->api.memcpy_batch_async != NULL) {
    add_bare(f, "batch", bench_batch, BENCH_SINGLE_PIECES);
    add_bare(f, "batch-2048", bench_batches, BENCH_PIECES_MAX);
  } else {
    bench_print_note(f->pair->of, "batch", "this driver has no batch copies");
  }
  add_bare(f, "loop", bench_loop, BENCH_LOOP_PIECES);
  (void)add(f, "one", bench_one, false);
}

/* Loads that pass through host memory have the speed of pinned memory beside them. */
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
}

static void add_all(field *f)
{
  const bench_case *of = f->pair->of;
  (void)add(f, "kvferry", load, true);
  if (of->source_is_host || of->destination_is_host || of->transport[0] != 'l') {
    add_pinned(f, !of->source_is_host, !of->destination_is_host);
  } else {
    add_within_device(f);
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
    w->run(f->pair, w->pieces);
    if (is_looked_at) {
      bench_verify(f->pair, w->pieces, w->impl);
    }
  }
}

static void run_once(field *f, way *w, bool is_measured)
{
  const uint64_t begin_ns = bench_now_ns();
  w->run(f->pair, w->pieces);
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

void bench_run_rounds(bench_pair *pair)
{
  field f = {.pair = pair};
  kvf_prng prng = {4};
  add_all(&f);
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
  print_work(pair, &before, &after, f.ways[0].count);
  measure_cpu(pair);
  for (size_t i = 0; i < f.count; i++) {
    free(f.ways[i].ns);
  }
}
