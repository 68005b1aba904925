/* By mbind() of own pages, and not by a thread's memory policy around cuMemHostAlloc(). No document says that the
 * driver obeys that policy. And an engine's thread would keep the policy if it could not be reset. */
#include "memory/cuda/pinned.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODES_MAX 1024 /* no kernel has more */
#define NODES_OF_A_WORD (sizeof(unsigned long) * CHAR_BIT)

/* -1: nobody knows. */
static int node_of(const kvf_cuda_api *api, kvf_cu_device device)
{
  int node = -1;
  const bool is_known =
      api->device_get_attribute(&node, KVF_CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) == KVF_CUDA_SUCCESS;
  return is_known && node < NODES_MAX ? node : -1;
}

/* Kernels are given the host's address, by which not every device reaches memory that the driver has not allocated. */
static bool takes_our_addresses(const kvf_cuda_api *api, kvf_cu_device device)
{
  int takes = 0;
  return api->device_get_attribute(&takes, KVF_CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device) ==
             KVF_CUDA_SUCCESS &&
         takes == 1;
}

/* Containers often forbid mbind(). What it is refused for does not matter: far memory is slower, and no worse. */
static void put_near(void *pages, size_t size, int node)
{
  unsigned long nodes[NODES_MAX / NODES_OF_A_WORD + 1] = {0}; /* one bit less is looked at than is given */
  nodes[(size_t)node / NODES_OF_A_WORD] = 1UL << ((size_t)node % NODES_OF_A_WORD);
  (void)syscall(SYS_mbind, pages, size, MPOL_PREFERRED, nodes, NODES_MAX + 1UL, 0UL);
}

/* A fork would share the pages, and the next write then moves them away from what the device has pinned. */
static uint8_t *map_near(size_t size, int node)
{
  void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || madvise(pages, size, MADV_DONTFORK) != 0) {
    (void)(pages == MAP_FAILED ? 0 : munmap(pages, size));
    return NULL;
  }
  put_near(pages, size, node);
  memset(pages, 0, size); /* from here on they are somewhere */
  return pages;
}

static bool pin_near(const kvf_cuda_api *api, kvf_cu_device device, kvf_cuda_pinned *out)
{
  const int node = node_of(api, device);
  uint8_t *pages = node >= 0 && takes_our_addresses(api, device) ? map_near(out->size, node) : NULL;
  if (pages == NULL) {
    return false;
  }
  if (api->mem_host_register(pages, out->size, KVF_CU_MEMHOSTREGISTER_PORTABLE | KVF_CU_MEMHOSTREGISTER_DEVICEMAP) !=
      KVF_CUDA_SUCCESS) {
    (void)munmap(pages, out->size);
    return false;
  }
  out->bytes = pages;
  out->is_ours = true;
  return true;
}

kvf_cu_result kvf_cuda_pin(const kvf_cuda *cuda, kvf_cu_device device, size_t size, kvf_cuda_pinned *out)
{
  void *bytes = NULL;
  *out = (kvf_cuda_pinned){.size = size};
  if (pin_near(&cuda->api, device, out)) {
    return KVF_CUDA_SUCCESS;
  }
  kvf_cu_result result = cuda->api.mem_host_alloc(&bytes, size, KVF_CU_MEMHOSTALLOC_PORTABLE);
  out->bytes = result == KVF_CUDA_SUCCESS ? bytes : NULL;
  return result;
}

void kvf_cuda_unpin(const kvf_cuda *cuda, kvf_cuda_pinned *pinned)
{
  const kvf_cuda_api *api = &cuda->api;
  if (pinned->bytes != NULL && !pinned->is_ours) {
    (void)api->mem_free_host(pinned->bytes);
  } else if (pinned->bytes != NULL && api->mem_host_unregister(pinned->bytes) == KVF_CUDA_SUCCESS) {
    (void)munmap(pinned->bytes, pinned->size); /* else the driver would take what comes to lie there for these pages */
  }
  *pinned = (kvf_cuda_pinned){0};
}
