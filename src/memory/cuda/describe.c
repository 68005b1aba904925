/* A device in one line: how other processes may map its memory, which others it reads, and if it runs the kernels. */
#include "memory/cuda/describe.h"

#include "base/status.h"
#include "memory/cuda/gpu.h"

static bool has(const kvf_cuda *cuda, const kvf_cuda_device *device, unsigned attribute)
{
  int value = 0;
  return cuda->api.device_get_attribute(&value, attribute, device->ordinal) == KVF_CUDA_SUCCESS && value != 0;
}

/* Others whose memory it can read by itself, without the host. */
static unsigned count_peers(const kvf_cuda *cuda, const kvf_cuda_device *device)
{
  unsigned count = 0;
  for (uint32_t i = 0; i < cuda->devices_count; i++) {
    const kvf_cuda_device *other = &cuda->devices[i];
    int can = 0;
    if (other != device &&
        cuda->api.device_can_access_peer(&can, device->ordinal, other->ordinal) == KVF_CUDA_SUCCESS && can != 0) {
      count++;
    }
  }
  return count;
}

/* By what error it does not run the kernels. Where this process has not opened it, they are tried, in its context. */
static kvf_cu_result kernels_refused(const kvf_cuda *cuda, const kvf_cuda_device *device)
{
  const kvf_cuda_gpu *gpu = kvf_cuda_gpu_opened((uint32_t)device->ordinal);
  kvf_cuda_kernels kernels;
  kvf_cu_context context;
  kvf_cuda_stay stay;
  if (gpu != NULL) {
    return gpu->kernels.refused;
  }
  kvf_cu_result result = cuda->api.device_primary_ctx_retain(&context, device->ordinal);
  if (result != KVF_CUDA_SUCCESS) {
    return result;
  }
  result = KVF_CUDA_ERROR_INVALID_CONTEXT;
  if (kvf_cuda_enter(cuda, context, &stay) == KVF_OK) {
    result = kvf_cuda_kernels_load(cuda, &kernels);
    if (result == KVF_CUDA_SUCCESS) {
      kvf_cuda_kernels_unload(cuda, &kernels);
    }
    kvf_cuda_leave(&stay);
  }
  kvf_cuda_context_release(cuda, device);
  return result;
}

void kvf_cuda_remark(uint32_t device, char *message)
{
  const kvf_cuda_gpu *gpu = kvf_cuda_gpu_opened(device);
  message[0] = '\0';
  if (gpu != NULL && gpu->kernels.refused != KVF_CUDA_SUCCESS) {
    (void)kvf_fail(KVF_OK, message,
                   "device %u does not run kvferry's kernels (%s), and copies take their place, which is slower: the "
                   "driver's libnvidia-ptxjitcompiler.so.1 must be there, and CUDA_DISABLE_PTX_JIT unset",
                   (unsigned)device, kvf_cuda_error_name(gpu->cuda, gpu->kernels.refused));
  }
}

static const char *yes_or_no(bool is)
{
  return is ? "yes" : "no";
}

kvf_status kvf_cuda_describe(uint32_t index, char *message)
{
  const kvf_cuda *cuda;
  kvf_status status = kvf_cuda_load("", &cuda, message);
  if (status != KVF_OK) {
    return status;
  }
  if (index >= cuda->devices_count) {
    return kvf_fail(KVF_NOT_FOUND, message, "there are %u devices", (unsigned)cuda->devices_count);
  }
  const kvf_cuda_device *device = &cuda->devices[index];
  const bool has_handles = has(cuda, device, KVF_CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
  const bool has_files = has(cuda, device, KVF_CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  const bool has_rdma = has(cuda, device, KVF_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
  const kvf_cu_result refused = kernels_refused(cuda, device);
  return kvf_fail(
      has_handles ? kvf_cuda_status(refused) : KVF_TRANSFER_SETUP, message,
      "%d %s: other processes map its memory by IPC handle (cudaMalloc): %s, by file descriptor (cuMemMap): "
      "%s; it reads %u of %u other devices; GPUDirect RDMA: %s; kernels: %s",
      (int)device->ordinal, device->name, yes_or_no(has_handles), yes_or_no(has_files), count_peers(cuda, device),
      (unsigned)cuda->devices_count - 1, yes_or_no(has_rdma),
      refused == KVF_CUDA_SUCCESS ? "yes" : kvf_cuda_error_name(cuda, refused));
}
