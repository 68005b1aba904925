/* Memory of devices and pinned memory: what an address is, where its bytes are, and how they are moved. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "state.h"

#define BOUNCE_BYTES 32768
#define ANY_DEVICE (-1) /* tests and kernels read and write where they like */
#define VACANT_MAX 64   /* ranges that are kept for the next that asks for so many bytes */

static kvf_list mappings = {&mappings, &mappings};

static mapping *mapping_behind(const kvf_list *link)
{
  return link->next == &mappings ? NULL : KVF_CONTAINER_OF(link->next, mapping, in_list);
}

static mapping *mapping_first(void)
{
  return mapping_behind(&mappings);
}

static mapping *mapping_after(const mapping *one)
{
  return mapping_behind(&one->in_list);
}

/* ---- what it is made of ---- */

backing *backing_create(size_t bytes)
{
  char name[64];
  backing *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    return NULL;
  }
  made->id = ++fake.last_id;
  made->refs = 1;
  made->bytes = bytes;
  (void)snprintf(name, sizeof(name), "fake-cuda-%016llx-%llu", (unsigned long long)fake.nonce,
                 (unsigned long long)made->id);
  made->fd = memfd_create(name, MFD_CLOEXEC);
  if (made->fd < 0 || ftruncate(made->fd, (off_t)bytes) != 0) {
    give_up("no file for memory");
  }
  return made;
}

void backing_hold(backing *held)
{
  held->refs++;
}

void backing_drop(backing *held)
{
  if (--held->refs == 0) {
    if (held->view != NULL) {
      (void)munmap(held->view, held->bytes);
    }
    (void)close(held->fd);
    free(held);
  }
}

/* ---- addresses ---- */

kvf_cu_memory addresses_take(size_t bytes)
{
  for (mapping *found = mapping_first(); found != NULL; found = mapping_after(found)) {
    if (found->kind == MAPPING_VACANT && found->bytes == bytes) {
      const kvf_cu_memory base = found->base;
      kvf_list_remove(&found->in_list);
      free(found);
      return base;
    }
  }
  void *taken = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return taken == MAP_FAILED ? 0 : (uintptr_t)taken;
}

/* The next allocation of this size gets the same address, as is usual with drivers. */
void addresses_give(kvf_cu_memory base, size_t bytes)
{
  if (mappings_of(MAPPING_VACANT) < VACANT_MAX) {
    (void)mapping_add(MAPPING_VACANT, base, bytes, NULL);
  } else {
    (void)munmap((void *)(uintptr_t)base, bytes);
  }
}

mapping *mapping_add(mapping_kind kind, kvf_cu_memory base, size_t bytes, backing *held)
{
  mapping *added = calloc(1, sizeof(*added));
  if (added == NULL) {
    give_up("no memory");
  }
  *added = (mapping){.kind = kind, .base = base, .bytes = bytes, .id = ++fake.last_id, .backing = held};
  if (kind != MAPPING_MAP && context_current() != NULL) {
    added->context = context_current();
    added->device = added->context->device;
  }
  kvf_list_init(&added->in_list);
  kvf_list_push_back(&mappings, &added->in_list);
  return added;
}

mapping *mapping_at(kvf_cu_memory address)
{
  for (mapping *found = mapping_first(); found != NULL; found = mapping_after(found)) {
    if (found->kind != MAPPING_VACANT && address >= found->base && address - found->base < found->bytes) {
      return found;
    }
  }
  return NULL;
}

mapping *mapping_of(mapping_kind kind, kvf_cu_memory base)
{
  for (mapping *found = mapping_first(); found != NULL; found = mapping_after(found)) {
    if (found->kind == kind && found->base == base) {
      return found;
    }
  }
  return NULL;
}

mapping *mapping_import_of(const context *importer, uint64_t nonce, uint64_t id)
{
  for (mapping *found = mapping_first(); found != NULL; found = mapping_after(found)) {
    if (found->kind == MAPPING_IMPORT && found->context == importer && found->backing->exporter_nonce == nonce &&
        found->backing->exporter_id == id) {
      return found;
    }
  }
  return NULL;
}

/* An importer sees freed memory as a file that has nothing in it. */
void mapping_remove(mapping *gone)
{
  kvf_list_remove(&gone->in_list);
  if (gone->is_adopted) {
    adopted_give_back(gone);
  }
  if (gone->kind == MAPPING_MEMORY && ftruncate(gone->backing->fd, 0) != 0) {
    give_up("memory cannot be emptied");
  }
  if (gone->backing != NULL) {
    backing_drop(gone->backing);
  }
  if (gone->is_allocated) {
    free((void *)(uintptr_t)gone->base);
  }
  if ((gone->kind == MAPPING_MEMORY && !gone->is_adopted) || gone->kind == MAPPING_IMPORT) {
    addresses_give(gone->base, gone->bytes);
  }
  if (gone->kind == MAPPING_VACANT) {
    (void)munmap((void *)(uintptr_t)gone->base, gone->bytes);
  }
  free(gone);
}

unsigned mappings_of(mapping_kind kind)
{
  unsigned count = 0;
  for (mapping *found = mapping_first(); found != NULL; found = mapping_after(found)) {
    count += found->kind == kind ? 1 : 0;
  }
  return count;
}

void memory_end(const context *ended)
{
  mapping *next;
  for (mapping *found = mapping_first(); found != NULL; found = next) {
    next = mapping_after(found);
    if (found->kind != MAPPING_VACANT && found->context == ended) {
      mapping_remove(found);
    }
  }
}

static void remove_all(bool are_vacant)
{
  mapping *next;
  for (mapping *found = mapping_first(); found != NULL; found = next) {
    next = mapping_after(found);
    if ((found->kind == MAPPING_VACANT) == are_vacant) {
      mapping_remove(found);
    }
  }
}

/* What is removed leaves vacant addresses. */
void memory_reset(void)
{
  remove_all(false);
  remove_all(true);
}

/* ---- where bytes are ---- */

/* Host memory as a kernel sees it: not a crash where there is none, and nothing that a sanitizer watches. */
static bool host_move(void *host, void *ours, size_t bytes, bool to_host)
{
  const struct iovec local = {ours, bytes};
  const struct iovec remote = {host, bytes};
  const ssize_t moved = to_host ? process_vm_writev(getpid(), &local, 1, &remote, 1, 0)
                                : process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  return moved == (ssize_t)bytes;
}

static bool is_host_memory(kvf_cu_memory address)
{
  uint8_t byte;
  return host_move((void *)(uintptr_t)address, &byte, 1, false);
}

bool memory_is_known(kvf_cu_memory address, size_t bytes, bool *pinned)
{
  const kvf_cu_memory last = address + (bytes == 0 ? 0 : bytes - 1);
  *pinned = mapping_at(address) != NULL;
  return *pinned ? mapping_at(last) != NULL : is_host_memory(address) && is_host_memory(last);
}

static bool may_access(const mapping *found, int device, bool to_write)
{
  const unsigned wanted =
      to_write ? KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE : (unsigned)KVF_CU_MEM_ACCESS_FLAGS_PROT_READ;
  return found->kind != MAPPING_MAP || device == ANY_DEVICE || (found->access[device] & wanted) == wanted;
}

bool place_find(kvf_cu_memory address, int device, bool to_write, place *out)
{
  const mapping *found = mapping_at(address);
  if (found == NULL) {
    *out =
        (place){.host = (uint8_t *)(uintptr_t)address, .bytes = SIZE_MAX}; /* the driver takes pageable memory, too */
    return is_host_memory(address);
  }
  if (!may_access(found, device, to_write)) {
    return false;
  }
  const uint64_t past = address - found->base;
  *out = (place){.backing = found->backing, .offset = past, .bytes = found->bytes - past};
  if (found->backing == NULL) {
    out->host = (uint8_t *)(uintptr_t)address;
  } else {
    backing_hold(found->backing);
  }
  return true;
}

void place_drop(const place *held)
{
  if (held->backing != NULL) {
    backing_drop(held->backing);
  }
}

bool place_read(const place *from, size_t offset, void *to, size_t bytes)
{
  if (from->backing == NULL) {
    return host_move(from->host + offset, to, bytes, false);
  }
  ssize_t got =
      exporter_is_alive(from->backing) ? pread(from->backing->fd, to, bytes, (off_t)(from->offset + offset)) : 0;
  if (got < (ssize_t)bytes) { /* it has been freed */
    got = got < 0 ? 0 : got;
    memset((uint8_t *)to + got, FAKE_CUDA_POISON, bytes - (size_t)got);
  }
  return true;
}

bool place_write(const place *to, size_t offset, const void *from, size_t bytes)
{
  if (to->backing == NULL) {
    return host_move(to->host + offset, (void *)(uintptr_t)from, bytes, true);
  }
  return pwrite(to->backing->fd, from, bytes, (off_t)(to->offset + offset)) == (ssize_t)bytes;
}

bool place_copy(const place *to, const place *from, size_t bytes)
{
  uint8_t bounce[BOUNCE_BYTES];
  for (size_t done = 0; done < bytes; done += sizeof(bounce)) {
    const size_t some = bytes - done < sizeof(bounce) ? bytes - done : sizeof(bounce);
    if (!place_read(from, done, bounce, some) || !place_write(to, done, bounce, some)) {
      return false;
    }
  }
  return true;
}

static bool move_some(kvf_cu_memory at, uint8_t *ours, size_t bytes, bool to_device, size_t *moved)
{
  place where;
  (void)pthread_mutex_lock(&fake.lock);
  bool good = place_find(at, ANY_DEVICE, to_device, &where);
  (void)pthread_mutex_unlock(&fake.lock);
  if (!good) {
    return false;
  }
  *moved = bytes < where.bytes ? bytes : where.bytes;
  good = to_device ? place_write(&where, 0, ours, *moved) : place_read(&where, 0, ours, *moved);
  (void)pthread_mutex_lock(&fake.lock);
  place_drop(&where);
  (void)pthread_mutex_unlock(&fake.lock);
  return good;
}

static bool move_all(kvf_cu_memory at, uint8_t *ours, size_t bytes, bool to_device)
{
  size_t moved = 0;
  for (size_t done = 0; done < bytes; done += moved) {
    if (!move_some(at + done, ours + done, bytes - done, to_device, &moved)) {
      return false;
    }
  }
  return true;
}

bool fake_cuda_read(kvf_cu_memory from, void *to, size_t bytes)
{
  return move_all(from, to, bytes, false);
}

bool fake_cuda_write(kvf_cu_memory to, const void *from, size_t bytes)
{
  return move_all(to, (uint8_t *)(uintptr_t)from, bytes, true);
}

void *fake_cuda_view(kvf_cu_memory at)
{
  uint8_t *view = NULL;
  (void)pthread_mutex_lock(&fake.lock);
  const mapping *found = mapping_at(at);
  if (found != NULL && found->backing != NULL) {
    backing *behind = found->backing;
    if (behind->view == NULL) {
      void *mapped = mmap(NULL, behind->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, behind->fd, 0);
      behind->view = mapped == MAP_FAILED ? NULL : mapped;
    }
    view = behind->view == NULL ? NULL : (uint8_t *)behind->view + (at - found->base);
  }
  (void)pthread_mutex_unlock(&fake.lock);
  return view;
}

/* ---- allocations ---- */

kvf_cu_result cuMemAlloc_v2(kvf_cu_memory *address, size_t bytes)
{
  BEGIN(cuMemAlloc_v2, NEEDS_CONTEXT);
  wait_is_seen();
  const kvf_cu_memory base = bytes == 0 ? 0 : addresses_take(rounded(bytes));
  if (base == 0) {
    return call_end(bytes == 0 ? KVF_CUDA_ERROR_INVALID_VALUE : KVF_CUDA_ERROR_OUT_OF_MEMORY);
  }
  backing *made = backing_create(rounded(bytes));
  if (made == NULL) {
    addresses_give(base, rounded(bytes));
    return call_end(KVF_CUDA_ERROR_OUT_OF_MEMORY);
  }
  made->device = context_current()->device;
  (void)mapping_add(MAPPING_MEMORY, base, made->bytes, made);
  *address = base;
  return call_end(KVF_CUDA_SUCCESS);
}

/* The driver may wait here for work on it, and may not: this one does not. */
kvf_cu_result cuMemFree_v2(kvf_cu_memory address)
{
  BEGIN(cuMemFree_v2, NEEDS_CONTEXT);
  wait_is_seen();
  mapping *freed = mapping_of(MAPPING_MEMORY, address);
  if (freed == NULL) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  mapping_remove(freed);
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
  BEGIN(cuMemGetInfo_v2, NEEDS_CONTEXT);
  *free_bytes = FAKE_CUDA_MEMORY_BYTES;
  *total_bytes = FAKE_CUDA_MEMORY_BYTES;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
  BEGIN(cuMemHostAlloc, NEEDS_CONTEXT);
  wait_is_seen();
  *address = flags > 7 ? NULL : aligned_alloc(PAGE_BYTES, rounded(bytes));
  if (*address == NULL) {
    return call_end(flags > 7 ? KVF_CUDA_ERROR_INVALID_VALUE : KVF_CUDA_ERROR_OUT_OF_MEMORY);
  }
  mapping *added = mapping_add(MAPPING_PINNED, (uintptr_t)*address, rounded(bytes), NULL);
  added->is_allocated = true;
  added->has_address = true;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuMemFreeHost(void *address)
{
  BEGIN(cuMemFreeHost, NEEDS_CONTEXT);
  wait_is_seen();
  mapping *freed = mapping_of(MAPPING_PINNED, (uintptr_t)address);
  if (freed == NULL || !freed->is_allocated) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  mapping_remove(freed);
  return call_end(KVF_CUDA_SUCCESS);
}

bool mapping_overlaps(kvf_cu_memory base, size_t bytes)
{
  for (mapping *found = mapping_first(); found != NULL; found = mapping_after(found)) {
    if (found->kind != MAPPING_VACANT && base < found->base + found->bytes && found->base < base + bytes) {
      return true;
    }
  }
  return false;
}

kvf_cu_result cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
  const kvf_cu_memory base = (uintptr_t)address;
  BEGIN(cuMemHostRegister_v2, NEEDS_CONTEXT);
  wait_is_seen();
  if (bytes == 0 || flags > 15 || !is_host_memory(base) || !is_host_memory(base + bytes - 1)) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  if (mapping_overlaps(base, bytes)) {
    return call_end(KVF_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  }
  mapping_add(MAPPING_PINNED, base, bytes, NULL)->has_address =
      fake.settings.has_host_pointers && (flags & KVF_CU_MEMHOSTREGISTER_DEVICEMAP) != 0;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuMemHostUnregister(void *address)
{
  BEGIN(cuMemHostUnregister, NEEDS_CONTEXT);
  wait_is_seen();
  mapping *gone = mapping_of(MAPPING_PINNED, (uintptr_t)address);
  if (gone == NULL || gone->is_allocated) {
    return call_end(KVF_CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  }
  mapping_remove(gone);
  return call_end(KVF_CUDA_SUCCESS);
}

/* ---- what an address is ---- */

/* FAKE_CUDA_TELLS_. */
static bool is_told(const mapping *of, unsigned what)
{
  return of->kind != MAPPING_IMPORT || (fake.settings.told_of_imports & what) != 0;
}

kvf_cu_result cuMemGetAddressRange_v2(kvf_cu_memory *base, size_t *bytes, kvf_cu_memory address)
{
  BEGIN(cuMemGetAddressRange_v2, NEEDS_CONTEXT);
  const mapping *found = mapping_at(address);
  if (found == NULL || found->kind == MAPPING_PINNED || !is_told(found, FAKE_CUDA_TELLS_RANGE)) {
    return call_end(KVF_CUDA_ERROR_NOT_FOUND);
  }
  if (base != NULL) {
    *base = found->base;
  }
  if (bytes != NULL) {
    *bytes = found->bytes;
  }
  return call_end(KVF_CUDA_SUCCESS);
}

/* As wide as any user of the driver takes it to be. */
typedef struct answer {
  uint64_t value;
  size_t bytes; /* 0: this fake does not know the attribute */
} answer;

#define ANSWER(type, what) ((answer){(uint64_t)(what), sizeof(type)})

/* Of an address that is not known all is 0. */
static answer attribute_of(unsigned attribute, const mapping *found, kvf_cu_memory address)
{
  const mapping none = {.kind = MAPPING_VACANT};
  const mapping *at = found == NULL ? &none : found;
  const bool is_device = at->backing != NULL;
  const unsigned memory_type = is_device       ? KVF_CU_MEMORYTYPE_DEVICE
                               : found != NULL ? (unsigned)KVF_CU_MEMORYTYPE_HOST
                                               : 0;
  kvf_cu_memory base = at->base;
  size_t bytes = at->bytes;
  if (found == NULL || at->kind == MAPPING_MAP) {
    (void)vmm_reservation_of(address, &base, &bytes);
  }
  switch (attribute) {
    case KVF_CU_POINTER_ATTRIBUTE_CONTEXT:
      return ANSWER(void *, (uintptr_t)at->context);
    case KVF_CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return ANSWER(unsigned, memory_type);
    case KVF_CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return ANSWER(kvf_cu_memory, is_device || at->has_address ? address : 0);
    case KVF_CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return ANSWER(void *, found == NULL || is_device ? 0 : address);
    case KVF_CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return ANSWER(uint64_t, is_told(at, FAKE_CUDA_TELLS_ID) ? at->id : 0);
    case KVF_CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return ANSWER(int, false);
    case KVF_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return ANSWER(int, found == NULL ? (uint64_t)-2 : (uint64_t)at->device); /* CU_DEVICE_INVALID */
    case KVF_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return ANSWER(int, at->kind == MAPPING_MEMORY);
    case KVF_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return ANSWER(void *, is_told(at, FAKE_CUDA_TELLS_SIZE) ? base : 0);
    case KVF_CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return ANSWER(size_t, is_told(at, FAKE_CUDA_TELLS_SIZE) ? bytes : 0);
    case KVF_CU_POINTER_ATTRIBUTE_MAPPED:
      return ANSWER(int, is_device);
    case KVF_CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return ANSWER(uint64_t, is_device ? at->backing->handle_types : 0);
    default:
      return (answer){0};
  }
}

kvf_cu_result cuPointerGetAttributes(unsigned count, unsigned *attributes, void **data, kvf_cu_memory address)
{
  BEGIN(cuPointerGetAttributes, NEEDS_CONTEXT);
  for (unsigned i = 0; i < count; i++) {
    const answer told = attribute_of(attributes[i], mapping_at(address), address);
    if (told.bytes == 0) {
      return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
    }
    memcpy(data[i], &told.value, told.bytes); /* little-endian */
  }
  return call_end(KVF_CUDA_SUCCESS);
}
