#include "memory/cuda/describe.h"

#include "base/status.h"
#include "memory/cuda/load.h"

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
  return kvf_fail(
      has_handles ? KVF_OK : KVF_TRANSFER_SETUP, message,
      "%d %s: other processes map its memory by IPC handle (cudaMalloc): %s, by file descriptor (cuMemMap): "
      "%s; it reads %u of %u other devices; GPUDirect RDMA: %s",
      (int)device->ordinal, device->name, yes_or_no(has_handles), yes_or_no(has_files), count_peers(cuda, device),
      (unsigned)cuda->devices_count - 1, yes_or_no(has_rdma));
}
