/* Exports regions and imports them: what travels between the processes, how it is checked, and how it is mapped. */
#include "memory/cuda/export.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "memory/cuda/gpu.h"
#include "memory/cuda/own.h"
#include "memory/own_fds.h"

typedef enum share_how { SHARE_HANDLE = 1, SHARE_FILES = 2 } share_how;

/* A mapping of the region's, as its process keeps it while the region is exported: readers look there. */
typedef struct shared_file {
  uint64_t bytes;
  int32_t fd;
  uint32_t reserved;
} shared_file;

/* As it travels, between processes of one machine. */
typedef struct shared_region {
  kvf_cu_uuid device;
  uint32_t how;
  uint32_t files_count;
  uint64_t address; /* of the region, in its own process */
  uint64_t offset;  /* of the region, in what is shared */
  uint64_t bytes;   /* of what is shared */
  uint64_t own;     /* among those that the process itself may read: own.h */
  union {
    kvf_cu_ipc_mem_handle handle;
    uint64_t files; /* the address of the first, in the region's process */
  } u;
} shared_region;

_Static_assert(sizeof(shared_region) <= KVF_MEMORY_EXPORT_BYTES_MAX, "an export is as long as that");

/* A region of another process, mapped here. */
typedef struct import_state {
  kvf_cuda_gpu *gpu;
  bool is_of_gpu;       /* else of another device */
  kvf_cuda_own *own;    /* NULL: it is another process' */
  kvf_cu_memory opened; /* of an IPC handle; 0: none is open */
  kvf_cu_memory reserved;
  uint64_t reserved_bytes;
  uint32_t files_count;
  uint32_t mapped_count; /* of the files, the first */
  shared_file files[];
} import_state;

bool kvf_cuda_import_enter(const kvf_memory_import *import, kvf_cuda_gpu **gpu)
{
  const import_state *state = import->state;
  *gpu = state->gpu;
  return state->own == NULL || kvf_cuda_own_enter(state->own);
}

void kvf_cuda_import_leave(const kvf_memory_import *import)
{
  if (((const import_state *)import->state)->own != NULL) {
    kvf_cuda_own_leave();
  }
}

kvf_cuda_gpu *kvf_cuda_import_gpu(const kvf_memory_import *import)
{
  return ((const import_state *)import->state)->gpu;
}

bool kvf_cuda_import_is_of_reader(const kvf_memory_import *import)
{
  return ((const import_state *)import->state)->is_of_gpu;
}

/* ---- exporting ---- */

static uint64_t region_bytes_of(const kvf_region *region)
{
  return region->stride_bytes * (region->blocks - 1) + region->block_bytes;
}

/* What an attribute of an address is; 0 if the driver does not say. */
static uint64_t attribute_of(const kvf_cuda *cuda, kvf_cu_memory address, unsigned attribute)
{
  uint64_t value = 0;
  void *out = &value;
  return cuda->api.pointer_get_attributes(1, &attribute, &out, address) == KVF_CUDA_SUCCESS ? value : 0;
}

static kvf_status fail_call(const kvf_cuda *cuda, const char *call, kvf_cu_result result, char *message)
{
  return kvf_fail(KVF_TRANSFER_SETUP, message, "%s: %s", call, kvf_cuda_error_name(cuda, result));
}

static kvf_status export_handle(const kvf_cuda *cuda, shared_region *shared, uint64_t region_bytes, char *message)
{
  kvf_cu_memory base;
  size_t bytes;
  kvf_cu_result result = cuda->api.mem_get_address_range(&base, &bytes, shared->address);
  if (result == KVF_CUDA_SUCCESS) {
    result = cuda->api.ipc_get_mem_handle(&shared->u.handle, base);
  }
  if (result != KVF_CUDA_SUCCESS) {
    return fail_call(cuda, "cuIpcGetMemHandle", result, message);
  }
  if (region_bytes > bytes - (shared->address - base)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "it lies in more than one allocation");
  }
  shared->how = SHARE_HANDLE;
  shared->offset = shared->address - base;
  shared->bytes = bytes;
  return KVF_OK;
}

static void close_files(shared_file *files, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    kvf_own_fd_close(files[i].fd);
  }
}

/* A descriptor of the mapping at this address. */
static kvf_cu_result file_of(const kvf_cuda *cuda, kvf_cu_memory address, int32_t *fd)
{
  kvf_cu_allocation allocation;
  int made = -1;
  kvf_cu_result result = cuda->api.mem_retain_allocation_handle(&allocation, (void *)(uintptr_t)address);
  if (result != KVF_CUDA_SUCCESS) {
    return result;
  }
  result = cuda->api.mem_export_to_shareable_handle(&made, allocation, KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  (void)cuda->api.mem_release(allocation);
  if (result == KVF_CUDA_SUCCESS) {
    *fd = KVF_OWN_FD(fcntl(made, F_DUPFD_CLOEXEC, 0)); /* the driver's own is inherited */
    (void)close(made);
    result = *fd >= 0 ? KVF_CUDA_SUCCESS : KVF_CUDA_ERROR_OPERATING_SYSTEM;
  }
  return result;
}

/* Each mapping from the region's first byte to its last. */
static kvf_status fill_files(const kvf_cuda *cuda, shared_region *shared, uint64_t region_bytes, shared_file *files,
                             char *message)
{
  const kvf_cu_memory end = shared->address + region_bytes;
  kvf_cu_memory at = shared->address;
  while (at < end) {
    kvf_cu_memory base;
    size_t bytes;
    if (shared->files_count == KVF_CUDA_MAPPINGS_MAX) {
      return kvf_fail(KVF_TRANSFER_SETUP, message, "it is made of more than %d mappings", KVF_CUDA_MAPPINGS_MAX);
    }
    kvf_cu_result result = cuda->api.mem_get_address_range(&base, &bytes, at);
    shared_file *file = &files[shared->files_count];
    if (result == KVF_CUDA_SUCCESS) {
      result = file_of(cuda, at, &file->fd);
    }
    if (result != KVF_CUDA_SUCCESS) {
      return fail_call(cuda, "cuMemExportToShareableHandle", result, message);
    }
    file->bytes = bytes;
    shared->offset = shared->files_count == 0 ? at - base : shared->offset;
    shared->bytes += bytes;
    shared->files_count++;
    at = base + bytes;
  }
  return KVF_OK;
}

static kvf_status export_files(const kvf_cuda *cuda, shared_region *shared, uint64_t region_bytes, char *message)
{
  shared_file *files = calloc(KVF_CUDA_MAPPINGS_MAX, sizeof(*files));
  if (files == NULL) {
    return kvf_fail(KVF_NO_MEMORY, message, "no memory");
  }
  shared->how = SHARE_FILES;
  shared->u.files = (uintptr_t)files;
  kvf_status status = fill_files(cuda, shared, region_bytes, files, message);
  if (status != KVF_OK) {
    close_files(files, shared->files_count);
    free(files);
  }
  return status;
}

static kvf_status export_region(kvf_cuda_gpu *gpu, shared_region *shared, uint64_t region_bytes, char *message)
{
  const kvf_cuda *cuda = gpu->cuda;
  const unsigned legacy =
      (unsigned)attribute_of(cuda, shared->address, KVF_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
  const uint64_t types = attribute_of(cuda, shared->address, KVF_CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
  if (legacy != 0) {
    return export_handle(cuda, shared, region_bytes, message);
  }
  if ((types & KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
    return export_files(cuda, shared, region_bytes, message);
  }
  return kvf_fail(KVF_TRANSFER_SETUP, message,
                  "its allocator made it without a handle for other processes (as vLLM's sleep mode does)");
}

static void take_back(const shared_region *shared)
{
  kvf_cuda_own_remove(shared->own);
  if (shared->how == SHARE_FILES) {
    shared_file *files = (void *)(uintptr_t)shared->u.files;
    close_files(files, shared->files_count);
    free(files);
  }
}

kvf_status kvf_cuda_export(const kvf_region *region, void *out, size_t *bytes, char *message)
{
  kvf_cuda_gpu *gpu;
  kvf_cuda_stay stay;
  kvf_status status = kvf_cuda_gpu_of(region->device, &gpu, message);
  if (status != KVF_OK) {
    return status;
  }
  shared_region shared = {.device = gpu->device->uuid, .address = (uintptr_t)region->base};
  if (!kvf_cuda_gpu_enter(gpu, &stay)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "the device is lost");
  }
  status = export_region(gpu, &shared, region_bytes_of(region), message);
  kvf_cuda_leave(&stay);
  if (status == KVF_OK && (shared.own = kvf_cuda_own_add(shared.address, region_bytes_of(region))) == 0) {
    take_back(&shared);
    status = kvf_fail(KVF_NO_MEMORY, message, "no memory");
  }
  if (status == KVF_OK) {
    memcpy(out, &shared, sizeof(shared));
    *bytes = sizeof(shared);
  }
  return status;
}

void kvf_cuda_unexport(const void *exported)
{
  shared_region shared;
  memcpy(&shared, exported, sizeof(shared));
  take_back(&shared);
}

/* ---- importing ---- */

/* What has been opened of a process is in the way of what it has allocated there since, until all have closed it. */
#define OPEN_TRIES 100

/* The driver says of both ends that they are in one buffer, or one range of addresses, and nothing against it. */
static bool is_one_allocation(const kvf_cuda *cuda, kvf_cu_memory first, kvf_cu_memory last)
{
  static const unsigned attributes[] = {KVF_CU_POINTER_ATTRIBUTE_BUFFER_ID, KVF_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                        KVF_CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  uint64_t told = 0;
  bool is_one = true;
  for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
    const uint64_t value = attribute_of(cuda, first, attributes[i]);
    is_one = is_one && value == attribute_of(cuda, last, attributes[i]);
    told |= value;
  }
  return is_one && told != 0;
}

/* Whether so much is mapped at `opened`, by the driver's word and not the peer's. CUDA's documents promise
 * cuMemGetAddressRange() for memory of the process' own alone. */
static kvf_status check_length(const kvf_cuda *cuda, kvf_cu_memory opened, uint64_t wanted, char *message)
{
  kvf_cu_memory base = 0;
  size_t bytes = 0;
  if (cuda->api.mem_get_address_range(&base, &bytes, opened) != KVF_CUDA_SUCCESS) {
    return is_one_allocation(cuda, opened, opened + wanted - 1)
               ? KVF_OK
               : kvf_fail(KVF_TRANSFER_SETUP, message,
                          "the driver does not say that the allocation behind its handle has %llu bytes",
                          (unsigned long long)wanted);
  }
  return base <= opened && wanted <= bytes - (opened - base)
             ? KVF_OK
             : kvf_fail(KVF_TRANSFER_SETUP, message, "the allocation behind its handle is %zu bytes long", bytes);
}

/* In the device's context: the whole allocation. */
static kvf_status open_handle(import_state *state, const shared_region *shared, uint64_t end, char *message)
{
  const kvf_cuda *cuda = state->gpu->cuda;
  const struct timespec pause = {.tv_nsec = 10000000};
  kvf_cu_result result = KVF_CUDA_ERROR_ALREADY_MAPPED;
  for (unsigned i = 0; result == KVF_CUDA_ERROR_ALREADY_MAPPED && i < OPEN_TRIES; i++) {
    if (i > 0) {
      (void)nanosleep(&pause, NULL);
    }
    result = cuda->api.ipc_open_mem_handle(&state->opened, shared->u.handle, KVF_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  if (result != KVF_CUDA_SUCCESS) {
    state->opened = 0;
    return fail_call(cuda, "cuIpcOpenMemHandle", result, message);
  }
  return check_length(cuda, state->opened, end, message);
}

static int fetch_fd(pid_t pid, int32_t fd)
{
  int process = KVF_OWN_FD((int)syscall(SYS_pidfd_open, pid, 0));
  int fetched = process < 0 ? -1 : KVF_OWN_FD((int)syscall(SYS_pidfd_getfd, process, fd, 0));
  kvf_own_fd_close(process);
  return fetched;
}

static kvf_cu_result allow_as(const import_state *state, kvf_cu_memory at, size_t bytes, unsigned flags)
{
  const kvf_cu_mem_access_desc access = {{KVF_CU_MEM_LOCATION_TYPE_DEVICE, state->gpu->device->ordinal}, flags};
  return state->gpu->cuda->api.mem_set_access(at, bytes, &access, 1);
}

/* Reading is all that is wanted. Drivers that know no mapping for that alone are asked once. */
static kvf_cu_result allow(const import_state *state, kvf_cu_memory at, size_t bytes)
{
  atomic_bool *for_writing = &state->gpu->maps_for_writing;
  const bool is_known = atomic_load_explicit(for_writing, memory_order_relaxed);
  kvf_cu_result result = KVF_CUDA_ERROR_NOT_SUPPORTED;
  if (!is_known) {
    result = allow_as(state, at, bytes, KVF_CU_MEM_ACCESS_FLAGS_PROT_READ);
  }
  if (result != KVF_CUDA_SUCCESS && !kvf_cuda_is_sticky(result)) {
    result = allow_as(state, at, bytes, KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (result == KVF_CUDA_SUCCESS && !is_known) {
      atomic_store_explicit(for_writing, true, memory_order_relaxed);
    }
  }
  return result;
}

/* The driver refuses a mapping that is longer than the allocation. */
static kvf_cu_result map_file(import_state *state, pid_t pid, kvf_cu_memory at, const shared_file *file)
{
  const kvf_cuda_api *api = &state->gpu->cuda->api;
  kvf_cu_allocation allocation;
  int fd = fetch_fd(pid, file->fd);
  if (fd < 0) {
    return KVF_CUDA_ERROR_OPERATING_SYSTEM;
  }
  kvf_cu_result result = api->mem_import_from_shareable_handle(&allocation, (void *)(uintptr_t)fd,
                                                               KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  kvf_own_fd_close(fd);
  if (result != KVF_CUDA_SUCCESS) {
    return result;
  }
  result = api->mem_map(at, file->bytes, 0, allocation, 0);
  (void)api->mem_release(allocation); /* the mapping keeps it */
  if (result == KVF_CUDA_SUCCESS) {
    result = allow(state, at, file->bytes);
    if (result != KVF_CUDA_SUCCESS) {
      (void)api->mem_unmap(at, file->bytes);
    }
  }
  return result;
}

/* Side by side, as they lie in their own process. */
static kvf_status map_files(import_state *state, const kvf_memory_source *source, char *message)
{
  const kvf_cuda *cuda = state->gpu->cuda;
  for (uint32_t i = 0; i < state->files_count; i++) {
    state->reserved_bytes += state->files[i].bytes;
  }
  kvf_cu_result result = cuda->api.mem_address_reserve(&state->reserved, state->reserved_bytes, 0, 0, 0);
  if (result != KVF_CUDA_SUCCESS) {
    state->reserved = 0;
    return fail_call(cuda, "cuMemAddressReserve", result, message);
  }
  kvf_cu_memory at = state->reserved;
  for (uint32_t i = 0; i < state->files_count; i++) {
    result = map_file(state, source->pid, at, &state->files[i]);
    if (result != KVF_CUDA_SUCCESS) {
      return fail_call(cuda, "mapping its shared memory", result, message);
    }
    state->mapped_count++;
    at += state->files[i].bytes;
  }
  return KVF_OK;
}

/* Lengths are the peer's word until the driver has mapped them: their sum is checked here, and may not overflow. */
static bool read_files(import_state *state, pid_t pid, const shared_region *shared)
{
  const size_t bytes = state->files_count * sizeof(*state->files);
  const struct iovec to = {state->files, bytes};
  const struct iovec from = {(void *)(uintptr_t)shared->u.files, bytes};
  uint64_t sum = 0;
  if (process_vm_readv(pid, &to, 1, &from, 1, 0) != (ssize_t)bytes) {
    return false;
  }
  for (uint32_t i = 0; i < state->files_count; i++) {
    if (state->files[i].bytes == 0 || state->files[i].bytes > shared->bytes - sum) {
      return false;
    }
    sum += state->files[i].bytes;
  }
  return sum == shared->bytes;
}

/* What does not depend on the driver. */
static kvf_status check_shared(const kvf_memory_source *source, shared_region *shared, char *message)
{
  if (source->exported_bytes != sizeof(*shared)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "it is described by %zu bytes, not by %zu", source->exported_bytes,
                    sizeof(*shared));
  }
  memcpy(shared, source->exported, sizeof(*shared));
  const bool is_known = shared->how == SHARE_HANDLE ? shared->files_count == 0
                                                    : shared->how == SHARE_FILES && shared->files_count > 0 &&
                                                          shared->files_count <= KVF_CUDA_MAPPINGS_MAX;
  if (!is_known || shared->bytes > INT64_MAX || shared->offset > shared->bytes ||
      source->region_bytes > shared->bytes - shared->offset ||
      !kvf_address_is_possible(shared->address, source->region_bytes)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description is invalid");
  }
  return KVF_OK;
}

/* The reader's own, else the memory's, else any: the first. */
static kvf_status choose_gpu(const kvf_memory_source *source, const kvf_cu_uuid *uuid, kvf_cuda_gpu **out,
                             char *message)
{
  const kvf_cuda *cuda;
  if (source->device != KVF_MEMORY_NO_DEVICE) {
    return kvf_cuda_gpu_of(source->device, out, message);
  }
  kvf_status status = kvf_cuda_load("", &cuda, message);
  if (status != KVF_OK) {
    return status;
  }
  const kvf_cuda_device *device = kvf_cuda_device_of(cuda, uuid);
  return kvf_cuda_gpu_of((uint32_t)(device == NULL ? cuda->devices[0].ordinal : device->ordinal), out, message);
}

/* Between enter and leave. What has been made is for unmap(). */
static kvf_status open_shared(import_state *state, const kvf_memory_source *source, const shared_region *shared,
                              uint64_t *base, char *message)
{
  kvf_status status;
  if (source->pid == getpid()) {
    state->own = kvf_cuda_own_hold(shared->own, shared->address, source->region_bytes);
    *base = shared->address;
    return state->own != NULL ? KVF_OK : kvf_fail(KVF_TRANSFER_SETUP, message, "this process does not export it");
  }
  if (shared->how == SHARE_HANDLE) {
    status = open_handle(state, shared, shared->offset + source->region_bytes, message);
    *base = state->opened + shared->offset;
  } else if (!read_files(state, source->pid, shared)) {
    status = kvf_fail(KVF_TRANSFER_SETUP, message, "process %d sent an invalid description of its mappings",
                      (int)source->pid);
  } else {
    status = map_files(state, source, message);
    *base = state->reserved + shared->offset;
  }
  return status;
}

/* Between enter and leave. Takes back what open_shared() has made. */
static void unmap(import_state *state)
{
  const kvf_cuda_api *api = &state->gpu->cuda->api;
  kvf_cu_memory at = state->reserved;
  if (state->opened != 0) {
    (void)api->ipc_close_mem_handle(state->opened);
  }
  for (uint32_t i = 0; i < state->mapped_count; i++) {
    (void)api->mem_unmap(at, state->files[i].bytes);
    at += state->files[i].bytes;
  }
  if (state->reserved != 0) {
    (void)api->mem_address_free(state->reserved, state->reserved_bytes);
  }
}

static void close_state(import_state *state)
{
  kvf_cuda_stay stay;
  if (kvf_cuda_gpu_enter(state->gpu, &stay)) { /* else the driver has let go of it */
    unmap(state);
    kvf_cuda_leave(&stay);
  }
  if (state->own != NULL) {
    kvf_cuda_own_drop(state->own);
  }
  free(state);
}

kvf_status kvf_cuda_import(const kvf_memory_source *source, kvf_memory_import *out, char *message)
{
  shared_region shared = {.how = 0};
  kvf_cuda_gpu *gpu = NULL;
  kvf_cuda_stay stay;
  uint64_t base = 0;
  kvf_status status = check_shared(source, &shared, message);
  if (status == KVF_OK) {
    status = choose_gpu(source, &shared.device, &gpu, message);
  }
  if (status != KVF_OK) {
    return status;
  }
  import_state *state = calloc(1, sizeof(*state) + shared.files_count * sizeof(state->files[0]));
  if (state == NULL) {
    return kvf_fail(KVF_NO_MEMORY, message, "no memory");
  }
  state->gpu = gpu;
  state->is_of_gpu = memcmp(&shared.device, &gpu->device->uuid, sizeof(shared.device)) == 0;
  state->files_count = shared.files_count;
  status = kvf_fail(KVF_TRANSFER_SETUP, message, "the device is lost");
  if (kvf_cuda_gpu_enter(gpu, &stay)) {
    status = open_shared(state, source, &shared, &base, message);
    kvf_cuda_leave(&stay);
  }
  if (status != KVF_OK) {
    close_state(state);
    return status;
  }
  *out = (kvf_memory_import){.base = base, .state = state};
  return KVF_OK;
}

void kvf_cuda_release(kvf_memory_import *import)
{
  close_state(import->state);
}
