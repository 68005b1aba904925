/* Where an engine's blocks lie, and how it writes them: in the host's memory, at once; in that of a GPU, by kernels on
 * its stream, which run later. The GPU is the fake's: fake_cuda.h. */
#include <string.h>

#include "../cuda_driver.h"
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

bool stress_on_device(const stress_site *site)
{
  return site->n.memory == KVF_MEMORY_CUDA;
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
  for (uint32_t i = 0; i < ARGUMENTS; i++) {
    memcpy(&argument[i], launch->arguments[i], sizeof(argument[i]));
  }
  stress_site *site = (void *)(uintptr_t)argument[0];
  const uint32_t block = (uint32_t)argument[1];
  const uint32_t position = (uint32_t)argument[3];
  const uint32_t region = launch->step;
  const bool looks = argument[4] != 0;
  if (looks && !pair_region_holds(&site->n, region, block, argument[2], position)) {
    fail_touched(block);
  }
  if (!looks) {
    pair_fill_region(&site->n, region, block, argument[2], position);
  }
  const bool is_last = region + 1 == site->n.regions;
  atomic_fetch_sub(&site->queued, is_last);
  return is_last;
}

static void launch(stress_site *site, uint32_t block, uint64_t seed, uint32_t position, bool looks)
{
  uint64_t values[ARGUMENTS] = {(uintptr_t)site, block, seed, position, looks};
  void *arguments[ARGUMENTS] = {&values[0], &values[1], &values[2], &values[3], &values[4]};
  const kvf_cuda_api *api = &cuda_driver_open()->cuda->api;
  kvf_cu_result result = KVF_CUDA_ERROR_NOT_READY;
  stress_enter_device(site);
  atomic_fetch_add(&site->queued, 1);
  for (int i = 0; i < TRIES_MAX && result != KVF_CUDA_SUCCESS; i++) {
    result = api->launch_kernel(block_kernel, 1, 1, 1, 1, 1, 1, 0, site->n.point.handle, arguments, NULL);
  }
  cuda_driver_must(result);
  stress_leave_device(site);
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
      sleep_us(kvf_prng_below(&prng, stress_one_in(&prng, 8) ? LONG_STALL_US : STALL_US));
      fake_cuda_stall_device(0, false);
    } else {
      const kvf_cu_result error = stress_one_in(&prng, 2) ? KVF_CUDA_ERROR_OUT_OF_MEMORY : KVF_CUDA_ERROR_NOT_SUPPORTED;
      fake_cuda_fail(calls[kvf_prng_below(&prng, sizeof(calls) / sizeof(calls[0]))], error,
                     (unsigned)kvf_prng_below(&prng, 8), 1 + (unsigned)kvf_prng_below(&prng, FAULTS_MAX));
    }
    sleep_us(kvf_prng_below(&prng, PAUSE_US));
  }
  return NULL;
}

/* ---- either's ---- */

void stress_enter_device(const stress_site *site)
{
  if (site->setting.devices) {
    (void)cuda_driver_enter();
  }
}

void stress_leave_device(const stress_site *site)
{
  kvf_cu_context was;
  if (site->setting.devices) {
    cuda_driver_must(cuda_driver_open()->cuda->api.ctx_pop_current(&was));
  }
}

const kvf_ordering_point *stress_point(const stress_site *site)
{
  return stress_on_device(site) ? &site->n.point : NULL;
}

void stress_fill(stress_site *site, uint32_t block, uint64_t seed, uint32_t position)
{
  if (stress_on_device(site)) {
    launch(site, block, seed, position, false);
  } else {
    pair_fill(&site->n, block, seed, position);
  }
}

void stress_expect_untouched(stress_site *site, uint32_t block)
{
  if (stress_on_device(site)) {
    launch(site, block, 0, 0, true);
  } else if (!pair_holds(&site->n, block, 0, 0)) {
    fail_touched(block);
  }
}
