/* UCX's workers, memory that it registers for us, and texts for its errors. */
#include "transport/ucx/ucx_common.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

const char *kvf_ucx_text(const kvf_ucx *ucx, kvf_ucs_status status)
{
  return ucx->api->status_string(status);
}

kvf_status kvf_ucx_worker_open(kvf_ucx *ucx, kvf_ucp_worker *out, char *message)
{
  const kvf_ucp_worker_params params = {
      .field_mask = KVF_UCP_WORKER_PARAM_FIELD_THREAD_MODE | KVF_UCP_WORKER_PARAM_FIELD_FLAGS,
      .thread_mode = KVF_UCS_THREAD_MODE_SERIALIZED, /* by the lock of who drives */
      /* Answers that are on their way when the memory goes away: nobody waits for them. */
      .flags = KVF_UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK,
  };
  int fd = -1;
  kvf_ucs_status error = ucx->api->worker_create(ucx->context, &params, out);
  if (error != KVF_UCS_OK) {
    *out = NULL;
    return kvf_fail(KVF_SYSTEM, message, "UCX makes no worker: %s", kvf_ucx_text(ucx, error));
  }
  error = ucx->api->worker_get_efd(*out, &fd);
  struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = *out}};
  if (error == KVF_UCS_OK && epoll_ctl(ucx->data_thread.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0) {
    return KVF_OK;
  }
  const char *why = error != KVF_UCS_OK ? kvf_ucx_text(ucx, error) : strerror(errno);
  ucx->api->worker_destroy(*out);
  *out = NULL;
  return kvf_fail(KVF_SYSTEM, message, "UCX's events cannot be waited for: %s", why);
}

void kvf_ucx_worker_close(kvf_ucx *ucx, kvf_ucp_worker *worker)
{
  int fd;
  if (*worker == NULL) {
    return;
  }
  /* Closing is not enough: a forked child's copy would keep it watched. */
  if (ucx->api->worker_get_efd(*worker, &fd) == KVF_UCS_OK) {
    (void)epoll_ctl(ucx->data_thread.epoll_fd, EPOLL_CTL_DEL, fd, NULL);
  }
  ucx->api->worker_destroy(*worker);
  *worker = NULL;
}

kvf_ucs_status kvf_ucx_map(const kvf_ucx *ucx, const void *address, uint64_t bytes, kvf_ucx_registered *out)
{
  const kvf_ucp_mem_map_params params = {
      .field_mask = KVF_UCP_MEM_MAP_PARAM_FIELD_ADDRESS | KVF_UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                    KVF_UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
      .address = (void *)(uintptr_t)address,
      .length = bytes,
      .memory_type = out->type,
  };
  kvf_ucs_status error = ucx->api->mem_map(ucx->context, &params, &out->mem);
  if (error != KVF_UCS_OK) {
    out->mem = NULL;
  }
  return error;
}

void kvf_ucx_unmap_all(kvf_ucx_memory *memory)
{
  const kvf_ucx *ucx = memory->ucx;
  for (uint32_t i = 0; i < memory->mems_count; i++) {
    if (memory->mems[i].mem != NULL) {
      (void)ucx->api->mem_unmap(ucx->context, memory->mems[i].mem);
      memory->mems[i].mem = NULL;
    }
  }
}

void kvf_ucx_memory_drop(kvf_ucx_memory *memory)
{
  memory->refs--;
  if (memory->refs == 0) {
    kvf_ucx_unmap_all(memory);
    free(memory->pages);
    free(memory);
  }
}
