/* Where an engine's blocks lie, and how it writes them: in the host's memory, at once; in that of a GPU, by kernels on
 * its stream, which run later. The GPU is the fake's: fake_cuda.h. */
#include <stdlib.h>
#include <string.h>

#include "../cuda_driver.h"
#include "../memory_kind.h"
#include "fake_cuda.h"
#include "stress.h"

#define KERNEL "stress_block"
#define ARGUMENTS 5
#define DELAY_NS_MAX 200000
#define FAULTS_MAX 4    /* of the driver's calls, one after the other */
#define TRIES_MAX 100   /* of a call of the engine's that may be hit by them */
#define PAUSE_US 200000 /* between faults, at most */
#define STALL_US 300000
#define LONG_STALL_US 2500000 /* more than a load has, and than a node takes to be unhealthy */

static kvf_cu_function block_kernel;

static uint64_t word_of(uint64_t seed, uint32_t position, uint32_t region, uint32_t i)
{
  return seed * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)position << 40) + ((uint64_t)region << 32) + i;
}

static uint64_t *words_at(const stress_site *site, uint32_t region, uint32_t block)
{
  return &site->pool[region][(size_t)block * STRESS_BLOCK_WORDS];
}

static bool are_words(const uint64_t *words, uint64_t seed, uint32_t position, uint32_t region)
{
  uint32_t i = 0;
  while (i < STRESS_BLOCK_WORDS && words[i] == word_of(seed, position, region, i)) {
    i++;
  }
  return i == STRESS_BLOCK_WORDS;
}

static bool region_holds(const stress_site *site, uint32_t region, uint32_t block, uint64_t seed, uint32_t position)
{
  uint64_t words[STRESS_BLOCK_WORDS];
  if (!site->on_device) {
    return are_words(words_at(site, region, block), seed, position, region);
  }
  test_memory_get(words, words_at(site, region, block), sizeof(words));
  return are_words(words, seed, position, region);
}

bool stress_holds(const stress_site *site, uint32_t block, uint64_t seed, uint32_t position)
{
  bool holds = true;
  for (uint32_t region = 0; region < STRESS_REGIONS; region++) {
    holds = holds && region_holds(site, region, block, seed, position);
  }
  return holds;
}

static void fail_touched(uint32_t block)
{
  stress_fail("P4", "block %u was written to after it had been released", block);
}

/* ---- a GPU's ---- */

/* A region a step. */
static bool run_kernel(const fake_cuda_launch *launch)
{
  uint64_t argument[ARGUMENTS];
  uint64_t words[STRESS_BLOCK_WORDS];
  for (uint32_t i = 0; i < ARGUMENTS; i++) {
    memcpy(&argument[i], launch->arguments[i], sizeof(argument[i]));
  }
  stress_site *site = (void *)(uintptr_t)argument[0];
  const uint32_t block = (uint32_t)argument[1];
  const uint32_t position = (uint32_t)argument[3];
  const uint32_t region = launch->step;
  const bool looks = argument[4] != 0;
  if (looks && !region_holds(site, region, block, argument[2], position)) {
    fail_touched(block);
  }
  for (uint32_t i = 0; i < STRESS_BLOCK_WORDS && !looks; i++) {
    words[i] = word_of(argument[2], position, region, i);
  }
  if (!looks) {
    test_memory_put(words_at(site, region, block), words, sizeof(words));
  }
  const bool is_last = region + 1 == STRESS_REGIONS;
  atomic_fetch_sub(&site->queued, is_last);
  return is_last;
}

static void launch(stress_site *site, uint32_t block, uint64_t seed, uint32_t position, bool looks)
{
  uint64_t values[ARGUMENTS] = {(uintptr_t)site, block, seed, position, looks};
  void *arguments[ARGUMENTS] = {&values[0], &values[1], &values[2], &values[3], &values[4]};
  const kvf_cuda_api *api = &cuda_driver_enter()->cuda->api;
  kvf_cu_result result = KVF_CUDA_ERROR_NOT_READY;
  kvf_cu_context was;
  atomic_fetch_add(&site->queued, 1);
  for (int i = 0; i < TRIES_MAX && result != KVF_CUDA_SUCCESS; i++) {
    result = api->launch_kernel(block_kernel, 1, 1, 1, 1, 1, 1, 0, site->point.handle, arguments, NULL);
  }
  cuda_driver_must(result);
  cuda_driver_must(api->ctx_pop_current(&was));
}

void stress_devices_begin(void)
{
  static const size_t argument_bytes[ARGUMENTS] = {8, 8, 8, 8, 8};
  kvf_prng prng = stress_prng();
  fake_cuda_settings settings = fake_cuda_defaults();
  kvf_cu_module module;
  kvf_cu_context was;
  settings.seed = kvf_prng_next(&prng);
  settings.delay_ns = kvf_prng_below(&prng, DELAY_NS_MAX);
  settings.has_compiler = !stress_one_in(&prng, 4);
  settings.version = stress_one_in(&prng, 4) ? KVF_CUDA_VERSION_MIN : settings.version;
  fake_cuda_reset(&settings);
  fake_cuda_add_kernel(KERNEL, run_kernel, argument_bytes, ARGUMENTS);
  const kvf_cuda_api *api = &cuda_driver_enter()->cuda->api;
  cuda_driver_must(api->module_load_data(&module, KERNEL));
  cuda_driver_must(api->module_get_function(&block_kernel, module, KERNEL));
  cuda_driver_must(api->ctx_pop_current(&was));
}

void *stress_shake_device(void *unused)
{
  static const char *const calls[] = {"cuMemcpyBatchAsync", "cuMemcpyAsync", "cuLaunchKernel", "cuIpcGetMemHandle",
                                      "cuIpcOpenMemHandle_v2"};
  kvf_prng prng = stress_prng();
  (void)unused;
  while (!atomic_load(&stress_stop)) {
    if (stress_one_in(&prng, 3)) {
      fake_cuda_stall_device(0, true);
      stress_sleep_us(kvf_prng_below(&prng, stress_one_in(&prng, 8) ? LONG_STALL_US : STALL_US));
      fake_cuda_stall_device(0, false);
    } else {
      const kvf_cu_result error = stress_one_in(&prng, 2) ? KVF_CUDA_ERROR_OUT_OF_MEMORY : KVF_CUDA_ERROR_NOT_SUPPORTED;
      fake_cuda_fail(calls[kvf_prng_below(&prng, sizeof(calls) / sizeof(calls[0]))], error,
                     (unsigned)kvf_prng_below(&prng, 8), 1 + (unsigned)kvf_prng_below(&prng, FAULTS_MAX));
    }
    stress_sleep_us(kvf_prng_below(&prng, PAUSE_US));
  }
  return NULL;
}

/* ---- either's ---- */

const kvf_ordering_point *stress_point(const stress_site *site)
{
  return site->on_device ? &site->point : NULL;
}

/* Not a race: an engine may write to the blocks of a lease that it has ended while a reader still copies them. */
__attribute__((no_sanitize("thread"))) void stress_fill(stress_site *site, uint32_t block, uint64_t seed,
                                                        uint32_t position)
{
  if (site->on_device) {
    launch(site, block, seed, position, false);
    return;
  }
  for (uint32_t region = 0; region < STRESS_REGIONS; region++) {
    uint64_t *words = words_at(site, region, block);
    for (uint32_t i = 0; i < STRESS_BLOCK_WORDS; i++) {
      words[i] = word_of(seed, position, region, i);
    }
  }
}

void stress_expect_untouched(stress_site *site, uint32_t block)
{
  if (site->on_device) {
    launch(site, block, 0, 0, true);
  } else if (!stress_holds(site, block, 0, 0)) {
    fail_touched(block);
  }
}

bool stress_pool_open(stress_site *site)
{
  kvf_prng prng = stress_prng();
  site->on_device = site->setting.devices && stress_one_in(&prng, 2);
  for (uint32_t i = 0; i < STRESS_REGIONS; i++) {
    site->pool[i] = site->on_device ? test_memory_allocate(KVF_MEMORY_CUDA, (size_t)STRESS_BLOCKS * STRESS_BLOCK_BYTES)
                                    : calloc(STRESS_BLOCKS, STRESS_BLOCK_BYTES);
    if (site->pool[i] == NULL) {
      return false;
    }
  }
  if (site->on_device) {
    const kvf_cuda_api *api = &cuda_driver_enter()->cuda->api;
    kvf_cu_stream stream;
    kvf_cu_context was;
    cuda_driver_must(api->stream_create_with_priority(&stream, KVF_CU_STREAM_NON_BLOCKING, 0));
    cuda_driver_must(api->ctx_pop_current(&was));
    site->point = (kvf_ordering_point){.memory = KVF_MEMORY_CUDA, .handle = stream};
  }
  for (uint32_t i = 0; i < STRESS_BLOCKS; i++) {
    stress_fill(site, i, 0, 0);
  }
  return true;
}

void stress_pool_close(stress_site *site)
{
  if (site->on_device) {
    const cuda_driver *driver = cuda_driver_enter();
    kvf_cu_context was;
    cuda_driver_must(driver->stream_synchronize(site->point.handle));
    cuda_driver_must(driver->cuda->api.stream_destroy(site->point.handle));
    cuda_driver_must(driver->cuda->api.ctx_pop_current(&was));
  }
  for (uint32_t i = 0; i < STRESS_REGIONS; i++) {
    if (site->on_device) {
      test_memory_free(site->pool[i]);
    } else {
      free(site->pool[i]);
    }
  }
}
