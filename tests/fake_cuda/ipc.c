/* Memory of cuMemAlloc() in other processes: a handle names the process, one of its open files, and what it must be. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "state.h"

typedef struct handle {
  int32_t pid;
  int32_t fd;
  uint64_t id; /* no other allocation of the process has it, ever */
  uint64_t nonce;
  uint64_t pulse;
  uint64_t bytes;
  kvf_cu_uuid device;
  uint64_t reserved;
} handle;

_Static_assert(sizeof(handle) == sizeof(kvf_cu_ipc_mem_handle), "it fills a handle");

/* A word of the process' memory goes before the device's memory does, which is given back when its files are closed.
 * So a read that finds the word after a copy, as the fence's sample does, knows that the copy saw no poison. */
bool exporter_is_alive(const backing *imported)
{
  uint64_t nonce = 0;
  const struct iovec local = {&nonce, sizeof(nonce)};
  const struct iovec remote = {(void *)(uintptr_t)imported->exporter_pulse, sizeof(nonce)};
  return imported->exporter == 0 ||
         (process_vm_readv(imported->exporter, &local, 1, &remote, 1, 0) == (ssize_t)sizeof(nonce) &&
          nonce == imported->exporter_nonce);
}

/* Of the whole allocation, wherever in it the address is. */
kvf_cu_result cuIpcGetMemHandle(kvf_cu_ipc_mem_handle *out, kvf_cu_memory address)
{
  BEGIN(cuIpcGetMemHandle, NEEDS_CONTEXT);
  const mapping *found = mapping_at(address);
  if (found == NULL || found->kind != MAPPING_MEMORY) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  const handle exported = {.pid = getpid(),
                           .fd = found->backing->fd,
                           .id = found->backing->id,
                           .nonce = fake.nonce,
                           .pulse = (uintptr_t)&fake.nonce,
                           .bytes = found->bytes,
                           .device = device_uuid(fake.settings.devices[found->device])};
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* the driver needs no leave for what it does */
  memcpy(out, &exported, sizeof(*out));
  return call_end(KVF_CUDA_SUCCESS);
}

/* -1: there is no such allocation any more. */
static int open_file(const handle *exported)
{
  char expected[96];
  char name[96];
  char path[64];
  int bytes = snprintf(expected, sizeof(expected), "/memfd:fake-cuda-%016llx-%llu (deleted)",
                       (unsigned long long)exported->nonce, (unsigned long long)exported->id);
  (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)exported->pid, (int)exported->fd);
  const ssize_t length = readlink(path, name, sizeof(name));
  return length == bytes && memcmp(name, expected, (size_t)bytes) == 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

static kvf_cu_result import(const handle *exported, kvf_cu_memory *address)
{
  struct stat file;
  const int fd = open_file(exported);
  if (fd < 0) {
    return KVF_CUDA_ERROR_INVALID_HANDLE;
  }
  if (fstat(fd, &file) != 0 || (uint64_t)file.st_size != exported->bytes) {
    (void)close(fd);
    return KVF_CUDA_ERROR_INVALID_HANDLE;
  }
  backing *made = backing_create(0);
  const kvf_cu_memory base = addresses_take(exported->bytes);
  if (made == NULL || base == 0) {
    give_up("no memory");
  }
  (void)close(made->fd);
  made->fd = fd;
  made->bytes = exported->bytes;
  made->exporter = exported->pid;
  made->exporter_pulse = exported->pulse;
  made->exporter_nonce = exported->nonce;
  made->exporter_id = exported->id;
  mapping_add(MAPPING_IMPORT, base, made->bytes, made)->opens = 1;
  *address = base;
  return KVF_CUDA_SUCCESS;
}

/* A second time in the same context: the same address. */
kvf_cu_result cuIpcOpenMemHandle_v2(kvf_cu_memory *address, kvf_cu_ipc_mem_handle opened, unsigned flags)
{
  handle exported;
  BEGIN(cuIpcOpenMemHandle_v2, NEEDS_CONTEXT);
  memcpy(&exported, &opened, sizeof(exported));
  if (flags != KVF_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  if (exported.nonce == fake.nonce) { /* a process has no way to open its own */
    return call_end(KVF_CUDA_ERROR_INVALID_CONTEXT);
  }
  mapping *known = mapping_import_of(context_current(), exported.nonce, exported.id);
  if (known == NULL) {
    return call_end(import(&exported, address));
  }
  known->opens++;
  *address = known->base;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuIpcCloseMemHandle(kvf_cu_memory address)
{
  BEGIN(cuIpcCloseMemHandle, NEEDS_CONTEXT);
  mapping *closed = mapping_of(MAPPING_IMPORT, address);
  if (closed == NULL || closed->context != context_current()) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  if (--closed->opens == 0) {
    mapping_remove(closed);
  }
  return call_end(KVF_CUDA_SUCCESS);
}
