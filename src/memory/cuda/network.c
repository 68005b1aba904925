/* Runs a callback in a device's context, and waits until a network's writes can be seen by the device's work. */
#include "memory/cuda/network.h"

#include <time.h>

#include "memory/cuda/gpu.h"

#define TRIES 100 /* a millisecond apart */

bool kvf_cuda_within(uint32_t device, void (*run)(void *argument), void *argument)
{
  kvf_cuda_gpu *gpu = kvf_cuda_gpu_opened(device);
  kvf_cuda_stay stay;
  if (gpu == NULL || !kvf_cuda_gpu_enter(gpu, &stay)) {
    return false;
  }
  run(argument);
  kvf_cuda_leave(&stay);
  return true;
}

/* Work that is submitted after a network's completion sees what it has written. Kernels that wait already, or run, see
 * it in any order, unless the device says that they see its own memory's writes in theirs. */
static kvf_cu_result flush_here(const kvf_cuda_gpu *gpu)
{
  const kvf_cuda_api *api = &gpu->cuda->api;
  int ordering = KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
  kvf_cu_result result = api->device_get_attribute(&ordering, KVF_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
                                                   gpu->device->ordinal);
  if (result != KVF_CUDA_SUCCESS || ordering >= KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) {
    return result;
  }
  return api->flush_gpu_direct_rdma_writes(KVF_CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                           KVF_CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
}

/* A refusal may pass. While it does not nobody knows whether the device has what came: the device counts as lost. */
bool kvf_cuda_flush(uint32_t device)
{
  const struct timespec pause = {.tv_nsec = 1000000};
  kvf_cuda_gpu *gpu = kvf_cuda_gpu_opened(device);
  kvf_cuda_stay stay;
  if (gpu == NULL || !kvf_cuda_gpu_enter(gpu, &stay)) {
    return false;
  }
  kvf_cu_result result = flush_here(gpu);
  for (unsigned i = 0;
       i < TRIES && result != KVF_CUDA_SUCCESS && result != KVF_CUDA_ERROR_NOT_SUPPORTED && !kvf_cuda_is_sticky(result);
       i++) {
    (void)nanosleep(&pause, NULL);
    result = flush_here(gpu);
  }
  if (result != KVF_CUDA_SUCCESS && result != KVF_CUDA_ERROR_NOT_SUPPORTED) {
    atomic_store_explicit(&gpu->is_lost, true, memory_order_relaxed);
  }
  kvf_cuda_leave(&stay);
  return result == KVF_CUDA_SUCCESS;
}
