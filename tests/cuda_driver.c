/* NVIDIA's driver as tests use it: see cuda_driver.h. */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cuda_kernels.h"

#ifndef FAKE_CUDA_LIBRARY
#define FAKE_CUDA_LIBRARY KVF_CUDA_LIBRARY
#endif
#define SHARED_BLOCK_BYTES ((size_t)2 << 20) /* shorter allocations of drivers are parts of such a block */
#define FILL_BLOCKS_MAX 128u
#define FILL_THREADS 256u
#define MAPPING_BYTES ((size_t)2 << 20) /* what devices allocate at least */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static cuda_driver driver;
static bool is_open;

_Noreturn static void give_up(const char *why)
{
  (void)fprintf(stderr, "CUDA's driver %s: %s\n", cuda_driver_library(), why);
  abort();
}

void cuda_driver_expect(kvf_cu_result result, const char *call, const char *file, int line)
{
  if (result != KVF_CUDA_SUCCESS) {
    const char *name = driver.cuda != NULL ? kvf_cuda_error_name(driver.cuda, result) : "";
    (void)fprintf(stderr, "%s:%d: %s: %s (%d)\n", file, line, call, name, (int)result);
    abort();
  }
}

bool cuda_driver_is_named(void)
{
  return getenv("KVFERRY_TEST_CUDA_LIBRARY") != NULL;
}

const char *cuda_driver_library(void)
{
  return cuda_driver_is_named() ? getenv("KVFERRY_TEST_CUDA_LIBRARY") : FAKE_CUDA_LIBRARY;
}

static void find(void *library, const char *symbol, void *field)
{
  void *found = dlsym(library, symbol);
  if (found == NULL) {
    give_up(symbol);
  }
  memcpy(field, &found, sizeof(found));
}

static void enter(const cuda_driver *one, kvf_cuda_stay *stay)
{
  if (kvf_cuda_enter(one->cuda, one->context, stay) != KVF_OK) {
    give_up("its context cannot be entered");
  }
}

static void find_calls(cuda_driver *out)
{
  void *library = dlopen(cuda_driver_library(), RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    give_up("it cannot be loaded");
  }
  find(library, "cuMemAlloc_v2", &out->mem_alloc);
  find(library, "cuMemFree_v2", &out->mem_free);
  find(library, "cuMemCreate", &out->mem_create);
  find(library, "cuMemGetInfo_v2", &out->mem_get_info);
  find(library, "cuStreamSynchronize", &out->stream_synchronize);
  const void *mark = dlsym(library, "fake_cuda_seed");
  out->is_fake = mark != NULL;
  out->is_linked = mark != NULL && mark == dlsym(RTLD_DEFAULT, "fake_cuda_seed");
}

static void make(cuda_driver *out)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_cuda_stay stay;
  kvf_cu_module module;
  if (kvf_cuda_load(cuda_driver_library(), &out->cuda, message) != KVF_OK ||
      kvf_cuda_context_retain(out->cuda, &out->cuda->devices[0], &out->context, message) != KVF_OK) {
    give_up(message);
  }
  find_calls(out);
  enter(out, &stay);
  cuda_driver_must(out->cuda->api.stream_create_with_priority(&out->stream, KVF_CU_STREAM_NON_BLOCKING, 0));
  /* A fake has them all, also when it takes no PTX. */
  const char *text = out->is_fake ? "any" : cuda_kernels_ptx;
  kvf_cu_result result = out->cuda->api.module_load_data(&module, text);
  if (result == KVF_CUDA_SUCCESS) {
    cuda_driver_must(out->cuda->api.module_get_function(&out->fill, module, "test_fill"));
    cuda_driver_must(out->cuda->api.module_get_function(&out->multiply, module, "test_multiply"));
  } else {
    (void)fprintf(stderr, "kernels of the tests: %s\n", kvf_cuda_error_name(out->cuda, result));
  }
  kvf_cuda_leave(&stay);
}

const cuda_driver *cuda_driver_open(void)
{
  (void)pthread_mutex_lock(&lock);
  if (!is_open) {
    make(&driver);
    is_open = true;
  }
  (void)pthread_mutex_unlock(&lock);
  return &driver;
}

const cuda_driver *cuda_driver_enter(void)
{
  const cuda_driver *one = cuda_driver_open();
  cuda_driver_must(one->cuda->api.ctx_push_current(one->context));
  return one;
}

void *cuda_driver_allocate(size_t bytes)
{
  const cuda_driver *one = cuda_driver_open();
  kvf_cuda_stay stay;
  kvf_cu_memory address = 0;
  if (getenv("KVFERRY_TEST_SMALL_ALLOCATIONS") == NULL) {
    bytes = (bytes + SHARED_BLOCK_BYTES - 1) / SHARED_BLOCK_BYTES * SHARED_BLOCK_BYTES;
  }
  enter(one, &stay);
  cuda_driver_must(one->mem_alloc(&address, bytes));
  kvf_cuda_leave(&stay);
  return (void *)(uintptr_t)address;
}

void cuda_driver_free(void *memory)
{
  const cuda_driver *one = cuda_driver_open();
  kvf_cuda_stay stay;
  enter(one, &stay);
  cuda_driver_must(one->mem_free((uintptr_t)memory));
  kvf_cuda_leave(&stay);
}

static size_t mapped_bytes(size_t bytes)
{
  return (bytes + MAPPING_BYTES - 1) / MAPPING_BYTES * MAPPING_BYTES;
}

void *cuda_driver_map(size_t bytes)
{
  const cuda_driver *one = cuda_driver_open();
  const kvf_cuda_api *api = &one->cuda->api;
  const kvf_cu_mem_location device = {KVF_CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const kvf_cu_mem_access_desc access = {device, KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const kvf_cu_mem_allocation_prop prop = {.type = KVF_CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .requested_handle_types = KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           .location = device};
  kvf_cuda_stay stay;
  kvf_cu_memory base = 0;
  enter(one, &stay);
  cuda_driver_must(api->mem_address_reserve(&base, mapped_bytes(bytes), 0, 0, 0));
  for (size_t done = 0; done < bytes; done += MAPPING_BYTES) {
    kvf_cu_allocation allocation;
    cuda_driver_must(one->mem_create(&allocation, MAPPING_BYTES, &prop, 0));
    cuda_driver_must(api->mem_map(base + done, MAPPING_BYTES, 0, allocation, 0));
    cuda_driver_must(api->mem_release(allocation)); /* the mapping keeps it */
  }
  cuda_driver_must(api->mem_set_access(base, mapped_bytes(bytes), &access, 1));
  kvf_cuda_leave(&stay);
  return (void *)(uintptr_t)base;
}

void cuda_driver_unmap(void *memory, size_t bytes)
{
  const cuda_driver *one = cuda_driver_open();
  kvf_cuda_stay stay;
  enter(one, &stay);
  cuda_driver_must(one->cuda->api.mem_unmap((uintptr_t)memory, mapped_bytes(bytes)));
  cuda_driver_must(one->cuda->api.mem_address_free((uintptr_t)memory, mapped_bytes(bytes)));
  kvf_cuda_leave(&stay);
}

void cuda_driver_copy(void *to, const void *from, size_t bytes)
{
  const cuda_driver *one = cuda_driver_open();
  kvf_cuda_stay stay;
  enter(one, &stay);
  cuda_driver_must(one->cuda->api.memcpy_async((uintptr_t)to, (uintptr_t)from, bytes, one->stream));
  cuda_driver_must(one->stream_synchronize(one->stream));
  kvf_cuda_leave(&stay);
}

void cuda_driver_fill(kvf_cu_stream stream, void *to, size_t bytes, uint8_t value, uint64_t delay_ns)
{
  const cuda_driver *one = cuda_driver_open();
  if (one->fill == NULL) {
    give_up("it takes no kernels");
  }
  uint64_t values[] = {(uintptr_t)to, bytes, value, delay_ns};
  void *arguments[] = {&values[0], &values[1], &values[2], &values[3]};
  const uint64_t needed = (bytes + FILL_THREADS - 1) / FILL_THREADS;
  const unsigned blocks = needed < FILL_BLOCKS_MAX ? (unsigned)needed : FILL_BLOCKS_MAX;
  cuda_driver_must(
      one->cuda->api.launch_kernel(one->fill, blocks, 1, 1, FILL_THREADS, 1, 1, 0, stream, arguments, NULL));
}
