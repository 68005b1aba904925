/* Virtual memory management: allocations, addresses, and what is mapped where. An allocation lives as long as a handle
 * or a mapping of any process, or a file descriptor, holds it: its file does the counting. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

typedef struct allocation {
  kvf_list in_list;
  kvf_cu_allocation number;
  unsigned refs; /* cuMemRelease() calls that are due */
  backing *backing;
} allocation;

typedef struct reservation {
  kvf_list in_list;
  kvf_cu_memory base;
  size_t bytes;
} reservation;

static kvf_list allocations = {&allocations, &allocations};
static kvf_list reservations = {&reservations, &reservations};

static bool is_granular(uint64_t bytes)
{
  return bytes % FAKE_CUDA_GRANULARITY_BYTES == 0;
}

/* ---- allocations ---- */

static allocation *allocation_of(kvf_cu_allocation number)
{
  for (kvf_list *link = allocations.next; link != &allocations; link = link->next) {
    allocation *found = KVF_CONTAINER_OF(link, allocation, in_list);
    if (found->number == number) {
      return found;
    }
  }
  return NULL;
}

/* Takes the reference to its backing over. */
static allocation *allocation_add(backing *held)
{
  allocation *added = calloc(1, sizeof(*added));
  if (added == NULL) {
    give_up("no memory");
  }
  *added = (allocation){.number = ++fake.last_id, .refs = 1, .backing = held};
  kvf_list_init(&added->in_list);
  kvf_list_push_back(&allocations, &added->in_list);
  return added;
}

static void allocation_remove(allocation *gone)
{
  kvf_list_remove(&gone->in_list);
  backing_drop(gone->backing);
  free(gone);
}

kvf_cu_result cuMemCreate(kvf_cu_allocation *out, size_t bytes, const kvf_cu_mem_allocation_prop *prop,
                          unsigned long long flags)
{
  BEGIN(cuMemCreate, NEEDS_CONTEXT);
  wait_is_seen();
  if (bytes == 0 || !is_granular(bytes) || flags != 0 || prop->type != KVF_CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != KVF_CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
      (unsigned)prop->location.id >= fake.settings.devices_count) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  backing *made = backing_create(bytes);
  if (made == NULL) {
    return call_end(KVF_CUDA_ERROR_OUT_OF_MEMORY);
  }
  made->device = prop->location.id;
  made->handle_types = prop->requested_handle_types;
  *out = allocation_add(made)->number;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuMemRelease(kvf_cu_allocation number)
{
  BEGIN(cuMemRelease, NEEDS_INIT);
  allocation *released = allocation_of(number);
  if (released == NULL) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  if (--released->refs == 0) {
    allocation_remove(released);
  }
  return call_end(KVF_CUDA_SUCCESS);
}

/* The handle that is mapped at the address. */
kvf_cu_result cuMemRetainAllocationHandle(kvf_cu_allocation *out, void *address)
{
  BEGIN(cuMemRetainAllocationHandle, NEEDS_INIT);
  const mapping *found = mapping_at((uintptr_t)address);
  if (found == NULL || found->kind != MAPPING_MAP) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  for (kvf_list *link = allocations.next; link != &allocations; link = link->next) {
    allocation *known = KVF_CONTAINER_OF(link, allocation, in_list);
    if (known->backing == found->backing) {
      known->refs++;
      *out = known->number;
      return call_end(KVF_CUDA_SUCCESS);
    }
  }
  backing_hold(found->backing);
  *out = allocation_add(found->backing)->number;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuMemExportToShareableHandle(void *out, kvf_cu_allocation number, unsigned type, unsigned long long flags)
{
  BEGIN(cuMemExportToShareableHandle, NEEDS_INIT);
  const allocation *exported = allocation_of(number);
  if (exported == NULL || flags != 0 || type != KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      (exported->backing->handle_types & type) == 0) {
    return call_end(exported == NULL ? KVF_CUDA_ERROR_INVALID_VALUE : KVF_CUDA_ERROR_NOT_SUPPORTED);
  }
  *(int *)out = fcntl(exported->backing->fd, F_DUPFD_CLOEXEC, 0);
  return call_end(*(int *)out < 0 ? KVF_CUDA_ERROR_OPERATING_SYSTEM : KVF_CUDA_SUCCESS);
}

kvf_cu_result cuMemImportFromShareableHandle(kvf_cu_allocation *out, void *handle, unsigned type)
{
  struct stat file;
  const int fd = (int)(uintptr_t)handle;
  BEGIN(cuMemImportFromShareableHandle, NEEDS_CONTEXT);
  if (type != KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &file) != 0 || file.st_size == 0 ||
      !is_granular((uint64_t)file.st_size)) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  backing *made = backing_create(0);
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (made == NULL || copy < 0) {
    give_up("no file for an import");
  }
  (void)close(made->fd);
  made->fd = copy;
  made->bytes = (size_t)file.st_size;
  made->handle_types = KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  made->device = context_current()->device;
  *out = allocation_add(made)->number;
  return call_end(KVF_CUDA_SUCCESS);
}

/* ---- addresses ---- */

static reservation *reservation_at(kvf_cu_memory address)
{
  for (kvf_list *link = reservations.next; link != &reservations; link = link->next) {
    reservation *found = KVF_CONTAINER_OF(link, reservation, in_list);
    if (address >= found->base && address - found->base < found->bytes) {
      return found;
    }
  }
  return NULL;
}

bool vmm_reservation_of(kvf_cu_memory address, kvf_cu_memory *base, size_t *bytes)
{
  const reservation *found = reservation_at(address);
  if (found != NULL) {
    *base = found->base;
    *bytes = found->bytes;
  }
  return found != NULL;
}

kvf_cu_result cuMemAddressReserve(kvf_cu_memory *out, size_t bytes, size_t alignment, kvf_cu_memory wanted,
                                  unsigned long long flags)
{
  (void)wanted; /* a wish */
  (void)alignment;
  BEGIN(cuMemAddressReserve, NEEDS_INIT);
  if (bytes == 0 || !is_granular(bytes) || flags != 0) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  reservation *made = calloc(1, sizeof(*made));
  if (made == NULL || (made->base = addresses_take(bytes)) == 0) {
    free(made);
    return call_end(KVF_CUDA_ERROR_OUT_OF_MEMORY);
  }
  made->bytes = bytes;
  kvf_list_init(&made->in_list);
  kvf_list_push_back(&reservations, &made->in_list);
  *out = made->base;
  return call_end(KVF_CUDA_SUCCESS);
}

static void reservation_remove(reservation *gone)
{
  kvf_list_remove(&gone->in_list);
  (void)munmap((void *)(uintptr_t)gone->base, gone->bytes);
  free(gone);
}

kvf_cu_result cuMemAddressFree(kvf_cu_memory address, size_t bytes)
{
  BEGIN(cuMemAddressFree, NEEDS_INIT);
  reservation *freed = reservation_at(address);
  if (freed == NULL || freed->base != address || freed->bytes != bytes || mapping_overlaps(address, bytes)) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  reservation_remove(freed);
  return call_end(KVF_CUDA_SUCCESS);
}

/* ---- what is mapped where ---- */

kvf_cu_result cuMemMap(kvf_cu_memory address, size_t bytes, size_t offset, kvf_cu_allocation number,
                       unsigned long long flags)
{
  BEGIN(cuMemMap, NEEDS_INIT);
  const allocation *mapped = allocation_of(number);
  const reservation *where = reservation_at(address);
  if (mapped == NULL || where == NULL || bytes == 0 || !is_granular(bytes) || !is_granular(address - where->base) ||
      offset != 0 || flags != 0 || bytes > mapped->backing->bytes || bytes > where->bytes - (address - where->base)) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  if (mapping_overlaps(address, bytes)) {
    return call_end(KVF_CUDA_ERROR_ALREADY_MAPPED);
  }
  backing_hold(mapped->backing);
  mapping_add(MAPPING_MAP, address, bytes, mapped->backing)->device = mapped->backing->device;
  return call_end(KVF_CUDA_SUCCESS);
}

/* All of what lies there, mapping by mapping. */
kvf_cu_result cuMemUnmap(kvf_cu_memory address, size_t bytes)
{
  BEGIN(cuMemUnmap, NEEDS_INIT);
  for (size_t done = 0; done < bytes;) {
    const mapping *found = mapping_of(MAPPING_MAP, address + done);
    if (found == NULL || found->bytes > bytes - done) {
      return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
    }
    done += found->bytes;
  }
  for (size_t done = 0; done < bytes;) {
    mapping *found = mapping_of(MAPPING_MAP, address + done);
    done += found->bytes;
    mapping_remove(found);
  }
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuMemSetAccess(kvf_cu_memory address, size_t bytes, const kvf_cu_mem_access_desc *access, size_t count)
{
  BEGIN(cuMemSetAccess, NEEDS_INIT);
  for (size_t done = 0; done < bytes;) {
    mapping *found = mapping_of(MAPPING_MAP, address + done);
    if (found == NULL || found->bytes > bytes - done) {
      return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < count; i++) {
      if (access[i].location.type != KVF_CU_MEM_LOCATION_TYPE_DEVICE || access[i].location.id < 0 ||
          access[i].location.id >= FAKE_CUDA_DEVICES_MAX ||
          (access[i].flags == KVF_CU_MEM_ACCESS_FLAGS_PROT_READ && !fake.settings.maps_for_reading)) {
        return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
      }
      found->access[access[i].location.id] = access[i].flags;
    }
    done += found->bytes;
  }
  return call_end(KVF_CUDA_SUCCESS);
}

/* ---- all of it ---- */

static unsigned length_of(const kvf_list *list)
{
  unsigned length = 0;
  for (const kvf_list *link = list->next; link != list; link = link->next) {
    length++;
  }
  return length;
}

unsigned vmm_allocations(void)
{
  return length_of(&allocations);
}

unsigned vmm_reservations(void)
{
  return length_of(&reservations);
}

void vmm_reset(void)
{
  while (!kvf_list_is_empty(&allocations)) {
    allocation_remove(KVF_CONTAINER_OF(allocations.next, allocation, in_list));
  }
  while (!kvf_list_is_empty(&reservations)) {
    reservation_remove(KVF_CONTAINER_OF(reservations.next, reservation, in_list));
  }
}
