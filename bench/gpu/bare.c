/* What the driver does with the same pieces, on a stream of D's own, which is waited for by asking its event. */
#include <stdlib.h>

#include "gpu_bench.h"

/* As the library's loads have them: block by block, across all regions. */
void bench_list_pieces(bench_pair *pair)
{
  const bench_geometry *geometry = &pair->geometry;
  const uint32_t regions = geometry->layers * geometry->parts;
  const uint64_t all = bench_pieces(geometry);
  pair->listed = all < BENCH_PIECES_MAX ? (size_t)all : BENCH_PIECES_MAX;
  pair->to = calloc(pair->listed, sizeof(*pair->to));
  pair->from = calloc(pair->listed, sizeof(*pair->from));
  pair->bytes = calloc(pair->listed, sizeof(*pair->bytes));
  bench_must(pair->to != NULL && pair->from != NULL && pair->bytes != NULL, "no memory for pieces");
  for (size_t i = 0; i < pair->listed; i++) {
    const uint32_t region = (uint32_t)(i % regions);
    const size_t block = i / regions;
    const uint64_t at = bench_region_at(geometry, region);
    pair->bytes[i] = bench_region_bytes(geometry, region);
    pair->to[i] = (uintptr_t)pair->pool + at + pair->local_ids[block] * pair->bytes[i];
    pair->from[i] = pair->source + at + pair->remote_ids[block] * pair->bytes[i];
  }
}

void bench_list_pinned(bench_pair *pair, bool to_host)
{
  uint8_t *at = pair->pinned;
  bench_list_pieces(pair);
  for (size_t i = 0; i < pair->listed; i++) {
    (to_host ? pair->to : pair->from)[i] = (uintptr_t)at;
    at += pair->bytes[i];
  }
}

void bench_wait(bench_pair *pair)
{
  const kvf_cuda_api *api = &pair->driver->cuda->api;
  kvf_cu_result result;
  bench_cuda(pair->driver, api->event_record(pair->event, pair->stream), "cuEventRecord");
  while ((result = api->event_query(pair->event)) == KVF_CUDA_ERROR_NOT_READY) {
  }
  bench_cuda(pair->driver, result, "cuEventQuery");
}

static void post_batch(bench_pair *pair, size_t first, size_t count)
{
  kvf_cu_memcpy_attributes attributes = {.src_access_order = KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  size_t from_first = 0;
  size_t failed = 0;
  bench_cuda(pair->driver,
             pair->driver->cuda->api.memcpy_batch_async(pair->to + first, pair->from + first, pair->bytes + first,
                                                        count, &attributes, &from_first, 1, &failed, pair->stream),
             "cuMemcpyBatchAsync");
}

void bench_batch(bench_pair *pair, const bench_call *call)
{
  const uint64_t begin_ns = bench_now_ns();
  post_batch(pair, 0, call->pieces);
  pair->posting_ns = bench_now_ns() - begin_ns;
  bench_wait(pair);
}

void bench_batches(bench_pair *pair, const bench_call *call)
{
  const uint64_t begin_ns = bench_now_ns();
  for (size_t first = 0; first < call->pieces; first += BENCH_BATCH_PIECES) {
    const size_t left = call->pieces - first;
    post_batch(pair, first, left < BENCH_BATCH_PIECES ? left : BENCH_BATCH_PIECES);
  }
  pair->posting_ns = bench_now_ns() - begin_ns;
  bench_wait(pair);
}

static void post(bench_pair *pair, kvf_cu_memory to, kvf_cu_memory from, size_t bytes)
{
  bench_cuda(pair->driver, pair->driver->cuda->api.memcpy_async(to, from, bytes, pair->stream), "cuMemcpyAsync");
}

void bench_loop(bench_pair *pair, const bench_call *call)
{
  const uint64_t begin_ns = bench_now_ns();
  for (size_t i = 0; i < call->pieces; i++) {
    post(pair, pair->to[i], pair->from[i], pair->bytes[i]);
  }
  pair->posting_ns = bench_now_ns() - begin_ns;
  bench_wait(pair);
}

/* The same number of bytes in one piece. */
static void copy_whole(bench_pair *pair, kvf_cu_memory to, kvf_cu_memory from)
{
  const uint64_t begin_ns = bench_now_ns();
  post(pair, to, from, bench_bytes(&pair->geometry));
  pair->posting_ns = bench_now_ns() - begin_ns;
  bench_wait(pair);
}

void bench_one(bench_pair *pair, const bench_call *call)
{
  (void)call;
  copy_whole(pair, (uintptr_t)pair->pool, pair->source);
}

void bench_to_device(bench_pair *pair, const bench_call *call)
{
  (void)call;
  copy_whole(pair, (uintptr_t)pair->pool, (uintptr_t)pair->pinned);
}

void bench_to_host(bench_pair *pair, const bench_call *call)
{
  (void)call;
  copy_whole(pair, (uintptr_t)pair->pinned, pair->source);
}
