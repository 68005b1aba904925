/* The library's own kernels on the fake, from the text that it gives the driver. */
#include "base/checksum.h"
#include "base/prng.h"
#include "gpu.h"
#include "memory/cuda/kernels.h"

#define BYTES ((size_t)64 * 1024)
#define ENTRIES 40

static uint8_t bytes_there[BYTES]; /* what is in device memory */

static kvf_cu_memory random_memory(kvf_prng *prng)
{
  const kvf_cu_memory made = gpu_allocate(BYTES);
  for (size_t i = 0; i < BYTES; i++) {
    bytes_there[i] = (uint8_t)kvf_prng_next(prng);
  }
  assert_true(fake_cuda_write(made, bytes_there, BYTES));
  return made;
}

static kvf_cu_memory put(const void *list, size_t bytes)
{
  const kvf_cu_memory made = gpu_allocate(bytes);
  assert_true(fake_cuda_write(made, list, bytes));
  return made;
}

static void launch(const char *name, kvf_cu_memory list, uint64_t count, kvf_cu_memory out)
{
  kvf_cu_module module;
  kvf_cu_function kernel;
  void *arguments[] = {&list, &count, &out};
  assert_int_equal(gpu->module_load_data(&module, kvf_cuda_kernels_ptx), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->module_get_function(&kernel, module, name), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->launch_kernel(kernel, KVF_CUDA_KERNEL_BLOCKS_MAX, 1, 1, KVF_CUDA_KERNEL_THREADS, 1, 1, 0,
                                      gpu_stream(), arguments, NULL),
                   KVF_CUDA_SUCCESS);
}

TEST(checksums_are_of_the_bytes_on_the_device)
{
  gpu_begin(1, true);
  kvf_prng prng = {1};
  const kvf_cu_memory data = random_memory(&prng);
  kvf_cuda_run runs[ENTRIES];
  void *sums; /* of pinned memory, as the library's own are */
  assert_int_equal(gpu->mem_host_alloc(&sums, ENTRIES * sizeof(uint64_t), 0), KVF_CUDA_SUCCESS);
  for (int i = 0; i < ENTRIES; i++) {
    const uint64_t skip = kvf_prng_below(&prng, 100);
    runs[i] = (kvf_cuda_run){data + skip, i == 0 ? 0 : kvf_prng_below(&prng, i < 20 ? 300 : BYTES - skip)};
  }
  launch(KVF_CUDA_CHECKSUMS_KERNEL, put(runs, sizeof(runs)), ENTRIES, (uintptr_t)sums);
  gpu_finish();
  for (int i = 0; i < ENTRIES; i++) {
    assert_int_equal(((uint64_t *)sums)[i], kvf_checksum(bytes_there + (runs[i].address - data), runs[i].bytes));
  }
}

TEST(gather_copies_on_the_device)
{
  gpu_begin(1, true);
  kvf_prng prng = {2};
  const kvf_cu_memory from = random_memory(&prng);
  const kvf_cu_memory to = gpu_allocate(BYTES);
  kvf_cuda_piece pieces[ENTRIES];
  static uint8_t found[BYTES];
  static uint8_t wanted[BYTES];
  memset(wanted, 0x11, BYTES);
  assert_true(fake_cuda_write(to, wanted, BYTES));
  for (uint64_t i = 0; i < ENTRIES; i++) {
    const uint64_t at = i * (BYTES / ENTRIES) + kvf_prng_below(&prng, 20);
    const uint64_t source = kvf_prng_below(&prng, BYTES / 2);
    pieces[i] = (kvf_cuda_piece){to + at, from + source, kvf_prng_below(&prng, BYTES / ENTRIES - 20)};
    memcpy(wanted + at, bytes_there + source, pieces[i].bytes);
  }
  launch(KVF_CUDA_GATHER_KERNEL, put(pieces, sizeof(pieces)), ENTRIES, 0);
  gpu_finish();
  assert_true(fake_cuda_read(to, found, BYTES));
  assert_memory_equal(found, wanted, BYTES);
}

/* A list of none is done at once; an address that is not there costs the context. */
TEST(what_is_not_there_breaks_the_context)
{
  for (int from_list = 0; from_list < 2; from_list++) {
    gpu_begin(1, true);
    const kvf_cuda_run run = {16, 1000};
    const kvf_cu_memory list = put(&run, sizeof(run));
    launch(KVF_CUDA_CHECKSUMS_KERNEL, 16, 0, 16);
    launch(KVF_CUDA_GATHER_KERNEL, 16, 0, 16);
    gpu_finish();
    assert_int_equal(cuCtxSynchronize(), KVF_CUDA_SUCCESS);
    launch(from_list == 1 ? KVF_CUDA_CHECKSUMS_KERNEL : KVF_CUDA_GATHER_KERNEL, from_list == 1 ? list : 16, 1, list);
    gpu_finish();
    assert_int_equal(cuCtxSynchronize(), KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
  }
}
