/* The library's gather kernel on the same pieces, cut as the library cuts them: what a launch takes without the rest,
 * by more or fewer blocks. */
#include "gpu_bench.h"

static void *pinned(const bench_pair *pair, size_t bytes)
{
  void *made = NULL;
  bench_cuda(pair->driver, pair->driver->cuda->api.mem_host_alloc(&made, bytes, KVF_CU_MEMHOSTALLOC_PORTABLE),
             "cuMemHostAlloc");
  return made;
}

static bench_list list_of(const bench_pair *pair)
{
  const size_t bytes_max = KVF_CUDA_ENTRY_BYTES;
  bench_list list = {0};
  size_t count = 0;
  for (size_t i = 0; i < pair->listed; i++) {
    count += (pair->bytes[i] + bytes_max - 1) / bytes_max;
  }
  list.entries = pinned(pair, count * sizeof(*list.entries));
  for (size_t i = 0; i < pair->listed; i++) {
    for (size_t at = 0; at < pair->bytes[i]; at += bytes_max) {
      const size_t left = pair->bytes[i] - at;
      list.entries[list.count++] =
          (kvf_cuda_piece){pair->to[i] + at, pair->from[i] + at, left < bytes_max ? left : bytes_max};
    }
  }
  return list;
}

void bench_load_gather(bench_pair *pair)
{
  const kvf_cuda_api *api = &pair->driver->cuda->api;
  kvf_cu_module module;
  if (api->module_load_data(&module, kvf_cuda_kernels_ptx) != KVF_CUDA_SUCCESS ||
      api->module_get_function(&pair->gather, module, KVF_CUDA_GATHER_KERNEL) != KVF_CUDA_SUCCESS) {
    pair->gather = NULL;
    return;
  }
  pair->entries = list_of(pair);
}

/* As many as the library gives one launch. */
static size_t step_of(const bench_list *list, size_t first, size_t end)
{
  uint64_t bytes = 0;
  size_t count = 0;
  while (first + count < end && count < BENCH_BATCH_PIECES && bytes < BENCH_STEP_BYTES) {
    bytes += list->entries[first + count].bytes;
    count++;
  }
  return count;
}

static void launch(const bench_pair *pair, const bench_call *call, const kvf_cuda_piece *first, size_t count)
{
  uint64_t at = (uintptr_t)first;
  uint64_t entries = count;
  void *arguments[] = {&at, &entries};
  const unsigned blocks = count < call->blocks ? (unsigned)count : call->blocks;
  bench_cuda(pair->driver,
             pair->driver->cuda->api.launch_kernel(pair->gather, blocks, 1, 1, call->threads, 1, 1, 0, pair->stream,
                                                   arguments, NULL),
             "cuLaunchKernel");
}

/* Of all that are listed. */
void bench_gather(bench_pair *pair, const bench_call *call)
{
  const bench_list *list = &pair->entries;
  const uint64_t begin_ns = bench_now_ns();
  for (size_t first = 0; first < list->count;) {
    const size_t count = step_of(list, first, list->count);
    launch(pair, call, &list->entries[first], count);
    first += count;
  }
  pair->posting_ns = bench_now_ns() - begin_ns;
  bench_wait(pair);
}
