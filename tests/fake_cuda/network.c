/* What a network's adapter has written into a device's memory: it lies on its way until it is flushed. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

typedef struct written {
  kvf_list in_list;
  int device;
  kvf_cu_memory to;
  size_t bytes;
  uint8_t data[];
} written;

static kvf_list under_way = {&under_way, &under_way}; /* in order; under the lock */

/* Where it begins, on a device. */
static const mapping *device_memory_at(kvf_cu_memory to, size_t bytes)
{
  const mapping *found = mapping_at(to);
  return found != NULL && found->backing != NULL && bytes <= found->bytes - (to - found->base) ? found : NULL;
}

/* What has been freed meanwhile is nobody's. */
static bool arrive(int device, kvf_cu_memory to, const void *from, size_t bytes)
{
  place at;
  if (device_memory_at(to, bytes) == NULL || !place_find(to, device, true, &at)) {
    return false;
  }
  const bool arrived = place_write(&at, 0, from, bytes);
  place_drop(&at);
  return arrived;
}

bool fake_cuda_write_by_network(kvf_cu_memory to, const void *from, size_t bytes)
{
  (void)pthread_mutex_lock(&fake.lock);
  const mapping *found = device_memory_at(to, bytes);
  bool written_to = found != NULL;
  if (written_to && fake.settings.network_order >= KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) {
    written_to = arrive(found->device, to, from, bytes);
  } else if (written_to) {
    written *one = malloc(sizeof(*one) + bytes);
    if (one == NULL) {
      give_up("no memory");
    }
    *one = (written){.device = found->device, .to = to, .bytes = bytes};
    memcpy(one->data, from, bytes);
    kvf_list_push_back(&under_way, &one->in_list);
  }
  (void)pthread_mutex_unlock(&fake.lock);
  return written_to;
}

kvf_cu_result cuFlushGPUDirectRDMAWrites(unsigned target, unsigned scope)
{
  BEGIN(cuFlushGPUDirectRDMAWrites, NEEDS_CONTEXT);
  if (target != KVF_CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
      scope != KVF_CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  kvf_list *next;
  for (kvf_list *node = under_way.next; node != &under_way; node = next) {
    written *one = KVF_CONTAINER_OF(node, written, in_list);
    next = node->next;
    if (one->device == context_current()->device) {
      kvf_list_remove(node);
      (void)arrive(one->device, one->to, one->data, one->bytes);
      free(one);
    }
  }
  return call_end(KVF_CUDA_SUCCESS);
}

void network_reset(void)
{
  kvf_list *node;
  while ((node = kvf_list_pop_front(&under_way)) != NULL) {
    free(KVF_CONTAINER_OF(node, written, in_list));
  }
}

void fake_cuda_order_network(int order)
{
  (void)pthread_mutex_lock(&fake.lock);
  fake.settings.network_order = order;
  (void)pthread_mutex_unlock(&fake.lock);
}

unsigned fake_cuda_unflushed(void)
{
  unsigned count = 0;
  (void)pthread_mutex_lock(&fake.lock);
  for (const kvf_list *node = under_way.next; node != &under_way; node = node->next) {
    count++;
  }
  (void)pthread_mutex_unlock(&fake.lock);
  return count;
}
