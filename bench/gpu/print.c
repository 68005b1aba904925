/* What gpu_bench prints: a line of JSON for each measurement, and for what could not be measured, why. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu_bench.h"

/* The texts are ours or the driver's: what JSON does not take as it is, is left out of them. */
static void print_text(const char *name, const char *text)
{
  (void)printf("\"%s\":\"", name);
  for (; *text != '\0'; text++) {
    if (*text >= ' ' && *text != '"' && *text != '\\') {
      (void)putchar(*text);
    }
  }
  (void)putchar('"');
}

static void begin(const bench_case *of, const char *suffix)
{
  (void)printf("{\"case\":\"%s/%s%s\"", of->path, of->shape.name, suffix);
}

static void end(void)
{
  (void)printf("}\n");
  (void)fflush(stdout);
}

void bench_print_machine(const bench_pair *pair, size_t free_bytes)
{
  const kvf_cuda *cuda = pair->driver->cuda;
  kvf_cu_module module;
  const kvf_cu_result result = cuda->api.module_load_data(&module, kvf_cuda_kernels_ptx);
  (void)printf("{\"case\":\"machine\",");
  print_text("device", cuda->devices[0].name);
  (void)printf(",\"cuda\":%d,\"fake\":%s,\"free_bytes\":%zu,\"batch_copies\":%s,\"spins\":%s", cuda->version,
               pair->driver->is_fake ? "true" : "false", free_bytes,
               cuda->api.memcpy_batch_async != NULL ? "true" : "false", pair->spins ? "true" : "false");
  (void)putchar(',');
  print_text("kernels", result == KVF_CUDA_SUCCESS ? "taken" : kvf_cuda_error_name(cuda, result));
  end();
}

void bench_print_shape(const bench_pair *pair)
{
  const bench_geometry *geometry = &pair->geometry;
  begin(pair->of, "");
  (void)printf(",\"layers\":%u,\"blocks\":%u,\"block_bytes\":[%u,%u],\"pool_blocks\":%u,\"pieces\":%" PRIu64
               ",\"bytes\":%" PRIu64 ",",
               (unsigned)geometry->layers, (unsigned)geometry->blocks, (unsigned)geometry->block_bytes[0],
               (unsigned)geometry->block_bytes[1], (unsigned)geometry->pool_blocks, bench_pieces(geometry),
               bench_bytes(geometry));
  print_text("cut", geometry->cut);
  end();
}

void bench_print_clocks(const bench_pair *pair, const bench_clocks *end_clocks)
{
  begin(pair->of, "");
  (void)printf(",\"sm_mhz\":{\"idle\":%u,\"warm\":%u,\"end\":%u},\"memory_mhz\":{\"idle\":%u,\"warm\":%u,\"end\":%u}",
               pair->idle.sm, pair->warm.sm, end_clocks->sm, pair->idle.memory, pair->warm.memory, end_clocks->memory);
  end();
}

void bench_print_failure(const bench_case *of, const char *why)
{
  begin(of, "");
  (void)putchar(',');
  print_text("failed", why);
  end();
}

void bench_print_note(const bench_case *of, const char *impl, const char *note)
{
  begin(of, "");
  (void)printf(",\"impl\":\"%s\",", impl);
  print_text("note", note);
  end();
}

void bench_print_refused(const bench_settings *settings, const char *why)
{
  (void)printf("{\"case\":\"gather\",");
  print_text("impl", settings->options[0]);
  (void)putchar(',');
  print_text("note", "not switchable");
  (void)putchar(',');
  print_text("why", why);
  end();
}

static int compare(const void *a, const void *b)
{
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

static void print_row(const bench_case *of, const char *suffix, const char *impl, const char *unit, double median,
                      double p99, size_t runs)
{
  begin(of, suffix);
  (void)printf(",\"impl\":\"%s\",\"unit\":\"%s\",\"median\":%.4g,\"p99\":%.4g,\"runs\":%zu", impl, unit, median, p99,
               runs);
  end();
}

void bench_print_samples(const bench_case *of, const char *suffix, const char *impl, const char *unit, double *samples,
                         size_t count, bool more_is_better)
{
  if (count == 0) {
    bench_print_note(of, impl, "nothing was measured");
    return;
  }
  qsort(samples, count, sizeof(samples[0]), compare);
  print_row(of, suffix, impl, unit, samples[count / 2],
            more_is_better ? samples[count / 100] : samples[count * 99 / 100], count);
}

void bench_print_value(const bench_case *of, const char *suffix, const char *impl, const char *unit, double value,
                       size_t runs)
{
  print_row(of, suffix, impl, unit, value, value, runs);
}
