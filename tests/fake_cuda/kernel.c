/* Kernels: functions of the host, by name. */
#include <stdlib.h>
#include <string.h>

#include "memory/cuda/kernels.h"
#include "state.h"

#define KERNELS_MAX 16
#define NAME_BYTES 48

typedef struct CUfunc_st {
  char name[NAME_BYTES];
  fake_cuda_kernel run;
  size_t argument_bytes[FAKE_CUDA_ARGUMENTS_MAX];
  size_t arguments_count;
} function;

struct CUmod_st {
  char unused;
};

/* A quarter a step, the last also what is left over. */
static bool fill(const fake_cuda_launch *launch)
{
  uint64_t argument[3];
  uint8_t values[4096];
  for (int i = 0; i < 3; i++) {
    memcpy(&argument[i], launch->arguments[i], sizeof(argument[i]));
  }
  const uint64_t each = argument[1] / FAKE_CUDA_FILL_STEPS;
  const bool is_last = launch->step == FAKE_CUDA_FILL_STEPS - 1;
  const uint64_t end = is_last ? argument[1] : each * (launch->step + 1);
  memset(values, (int)argument[2], sizeof(values));
  for (uint64_t at = each * launch->step; at < end;) {
    const size_t some = end - at < sizeof(values) ? (size_t)(end - at) : sizeof(values);
    if (!fake_cuda_write(argument[0] + at, values, some)) {
      fake_cuda_break(launch->device, KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
      return true;
    }
    at += some;
  }
  return is_last;
}

/* A step of work, and nothing of it. */
static bool multiply(const fake_cuda_launch *launch)
{
  (void)launch;
  return true;
}

static function kernels[KERNELS_MAX] = {{"test_fill", fill, {8, 8, 8, 8}, 4},
                                        {"test_multiply", multiply, {8, 8, 8, 8}, 4},
                                        {KVF_CUDA_CHECKSUMS_KERNEL, fake_checksums, {8, 8, 8}, 3},
                                        {KVF_CUDA_GATHER_KERNEL, fake_gather, {8, 8}, 2}};
static size_t kernels_count = 4;
static struct CUmod_st module;

void fake_cuda_add_kernel(const char *name, fake_cuda_kernel run, const size_t *argument_bytes, size_t arguments_count)
{
  (void)pthread_mutex_lock(&fake.lock);
  if (kernels_count == KERNELS_MAX || strlen(name) >= NAME_BYTES || arguments_count > FAKE_CUDA_ARGUMENTS_MAX) {
    give_up("too much of a kernel");
  }
  function *added = &kernels[kernels_count++];
  memcpy(added->name, name, strlen(name) + 1);
  added->run = run;
  added->arguments_count = arguments_count;
  for (size_t i = 0; i < arguments_count; i++) {
    if (argument_bytes[i] > FAKE_CUDA_ARGUMENT_BYTES_MAX) {
      give_up("too large an argument");
    }
    added->argument_bytes[i] = argument_bytes[i];
  }
  (void)pthread_mutex_unlock(&fake.lock);
}

/* The image is whatever the real driver would be given. */
kvf_cu_result cuModuleLoadData(kvf_cu_module *out, const void *image)
{
  BEGIN(cuModuleLoadData, NEEDS_CONTEXT);
  wait_is_seen();
  if (!fake.settings.has_compiler && image != NULL && strstr(image, ".version") != NULL) {
    return call_end(KVF_CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
  }
  if (image == NULL) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  *out = &module;
  context_current()->modules++;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuModuleUnload(kvf_cu_module unloaded)
{
  BEGIN(cuModuleUnload, NEEDS_CONTEXT);
  wait_is_seen();
  if (unloaded != &module || context_current()->modules == 0) {
    return call_end(KVF_CUDA_ERROR_INVALID_HANDLE);
  }
  context_current()->modules--;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuModuleGetFunction(kvf_cu_function *out, kvf_cu_module from, const char *name)
{
  BEGIN(cuModuleGetFunction, NEEDS_CONTEXT);
  if (from != &module) {
    return call_end(KVF_CUDA_ERROR_INVALID_HANDLE);
  }
  for (size_t i = 0; i < kernels_count; i++) {
    if (strcmp(kernels[i].name, name) == 0) {
      *out = &kernels[i];
      return call_end(KVF_CUDA_SUCCESS);
    }
  }
  return call_end(KVF_CUDA_ERROR_NOT_FOUND);
}

static unsigned last_blocks;
static unsigned last_threads;

void fake_cuda_last_launch(unsigned *blocks, unsigned *threads)
{
  (void)pthread_mutex_lock(&fake.lock);
  *blocks = last_blocks;
  *threads = last_threads;
  (void)pthread_mutex_unlock(&fake.lock);
}

static unsigned kernel_bit(const function *of)
{
  return 1U << (of - kernels);
}

kvf_cu_result cuLaunchKernel(kvf_cu_function launched, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                             kvf_cu_stream at, void **arguments, void **extra)
{
  kvf_cu_result error;
  (void)shared_bytes;
  BEGIN(cuLaunchKernel, NEEDS_CONTEXT);
  stream *on = stream_for_work(at, &error);
  if (on == NULL || extra != NULL || grid_x * grid_y * grid_z == 0 || block_x * block_y * block_z == 0) {
    return call_end(on == NULL ? error : KVF_CUDA_ERROR_INVALID_VALUE);
  }
  if ((context_current()->launched & kernel_bit(launched)) == 0) { /* drivers load a kernel as late as here */
    wait_is_seen();
    context_current()->launched |= kernel_bit(launched);
  }
  work *added = work_create(WORK_KERNEL);
  added->run = launched->run;
  last_blocks = grid_x;
  last_threads = block_x;
  added->launch = (fake_cuda_launch){
      .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}, .device = context_current()->device};
  for (size_t i = 0; i < launched->arguments_count; i++) {
    memcpy(added->arguments[i], arguments[i], launched->argument_bytes[i]);
    added->launch.arguments[i] = added->arguments[i];
  }
  work_add(on, added);
  return call_end(KVF_CUDA_SUCCESS);
}
