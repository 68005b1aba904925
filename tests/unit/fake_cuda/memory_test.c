/* What memory is to the fake: addresses that only the driver can use, what it says of them, pinned memory, and virtual
 * memory management. */
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "gpu.h"

#define BYTES ((size_t)64 * 1024)
#define GRAIN FAKE_CUDA_GRANULARITY_BYTES

static bool is_readable(kvf_cu_memory at)
{
  uint8_t byte;
  const struct iovec to = {&byte, 1};
  const struct iovec from = {(void *)(uintptr_t)at, 1};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

TEST(a_pointer_cannot_read_a_devices_memory)
{
  gpu_begin(1, true);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  uint8_t host[4] = {1, 2, 3, 4};
  assert_false(is_readable(at));
  assert_true(fake_cuda_write(at + 5, host, 4));
  assert_false(is_readable(at));
  assert_int_equal(gpu_byte(at + 7), 3);
  assert_int_equal(cuMemFree_v2(at), KVF_CUDA_SUCCESS);
  assert_false(fake_cuda_read(at, host, 1));
  assert_int_equal(cuMemFree_v2(at), KVF_CUDA_ERROR_INVALID_VALUE);
}

static uint64_t attribute(kvf_cu_memory at, unsigned which)
{
  uint64_t value = 0;
  void *data[] = {&value};
  assert_int_equal(gpu->pointer_get_attributes(1, &which, data, at), KVF_CUDA_SUCCESS);
  return value;
}

TEST(what_is_said_of_a_devices_memory)
{
  gpu_begin(1, true);
  gpu_enter(1);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  gpu_leave();
  kvf_cu_memory base = 0;
  size_t bytes = 0;
  assert_int_equal(gpu->mem_get_address_range(&base, &bytes, at + 100), KVF_CUDA_SUCCESS);
  assert_int_equal(base, at);
  assert_int_equal(bytes, BYTES);
  assert_int_equal(attribute(at + 100, KVF_CU_POINTER_ATTRIBUTE_MEMORY_TYPE), KVF_CU_MEMORYTYPE_DEVICE);
  assert_int_equal(attribute(at + 100, KVF_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 1);
  assert_int_equal(attribute(at + 100, KVF_CU_POINTER_ATTRIBUTE_DEVICE_POINTER), at + 100);
  assert_int_equal(attribute(at + 100, KVF_CU_POINTER_ATTRIBUTE_HOST_POINTER), 0);
  assert_int_equal(attribute(at + 100, KVF_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), at);
  assert_int_equal(attribute(at + 100, KVF_CU_POINTER_ATTRIBUTE_RANGE_SIZE), BYTES);
  assert_int_equal(attribute(at + 100, KVF_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 1);
  assert_int_equal(attribute(at + 100, KVF_CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES), 0);
  assert_int_not_equal(attribute(at, KVF_CU_POINTER_ATTRIBUTE_CONTEXT), 0);
}

TEST(of_other_memory_nothing_is_known)
{
  gpu_begin(1, true);
  uint8_t host[16];
  const kvf_cu_memory at = (uintptr_t)host;
  assert_int_equal(attribute(at, KVF_CU_POINTER_ATTRIBUTE_MEMORY_TYPE), 0);
  assert_int_equal(attribute(at, KVF_CU_POINTER_ATTRIBUTE_MAPPED), 0);
  assert_int_equal(gpu->mem_get_address_range(NULL, NULL, at), KVF_CUDA_ERROR_NOT_FOUND);
}

/* As a restarted engine gets it: what names memory by its address alone takes it for the old. */
TEST(an_address_that_is_allocated_anew_is_another_buffer)
{
  gpu_begin(1, true);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  const uint64_t buffer = attribute(at, KVF_CU_POINTER_ATTRIBUTE_BUFFER_ID);
  assert_int_equal(cuMemFree_v2(at), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu_allocate(BYTES), at);
  assert_int_not_equal(attribute(at, KVF_CU_POINTER_ATTRIBUTE_BUFFER_ID), buffer);
}

/* The call was right; when its turn comes the context is lost. */
TEST(a_copy_from_memory_that_has_been_freed_breaks_the_context)
{
  gpu_begin(1, true);
  const kvf_cu_memory from = gpu_allocate(BYTES);
  const kvf_cu_memory to = gpu_allocate(BYTES);
  kvf_cu_stream stream = gpu_stream();
  gpu_copy(stream, to, from, BYTES);
  kvf_cu_event done = gpu_record(stream);
  assert_int_equal(cuMemFree_v2(from), KVF_CUDA_SUCCESS);
  gpu_finish();
  assert_int_equal(gpu->event_query(done), KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
  assert_int_equal(gpu->memcpy_async(to, to, 1, stream), KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* ---- memory of the host ---- */

TEST(host_memory_is_registered_once)
{
  gpu_begin(1, true);
  uint8_t *pages = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(pages, MAP_FAILED);
  assert_int_equal(gpu->mem_host_register(pages, BYTES, 1), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_host_register(pages + 4096, 4096, 0), KVF_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  assert_int_equal(attribute((uintptr_t)pages, KVF_CU_POINTER_ATTRIBUTE_MEMORY_TYPE), KVF_CU_MEMORYTYPE_HOST);
  assert_int_equal(gpu->mem_host_unregister(pages + 4096), KVF_CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  assert_int_equal(gpu->mem_host_unregister(pages), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_host_unregister(pages), KVF_CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  assert_int_equal(munmap(pages, BYTES), 0);
  assert_int_equal(gpu->mem_host_register(pages, BYTES, 0), KVF_CUDA_ERROR_INVALID_VALUE);
}

TEST(pinned_memory_is_copied_to_and_from)
{
  gpu_begin(1, false);
  void *pinned = NULL;
  assert_int_equal(gpu->mem_host_alloc(&pinned, BYTES, 0), KVF_CUDA_SUCCESS);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  kvf_cu_stream stream = gpu_stream();
  memset(pinned, 6, BYTES);
  fake_cuda_forbid_waits(true);
  gpu_copy(stream, at, (uintptr_t)pinned, BYTES);
  kvf_cu_event up = gpu_record(stream);
  assert_int_equal(gpu->event_synchronize(up), KVF_CUDA_SUCCESS);
  memset(pinned, 0, BYTES);
  gpu_copy(stream, (uintptr_t)pinned, at, BYTES);
  kvf_cu_event down = gpu_record(stream);
  assert_int_equal(gpu->event_synchronize(down), KVF_CUDA_SUCCESS);
  for (size_t i = 0; i < BYTES; i++) {
    assert_int_equal(((const uint8_t *)pinned)[i], 6);
  }
  assert_int_equal(fake_cuda_violations(), 0);
  uint8_t stack[64] = {8};
  gpu_copy(stream, at, (uintptr_t)stack, sizeof(stack)); /* read before the call returns */
  stack[0] = 0;
  assert_int_equal(fake_cuda_violations(), 1);
  kvf_cu_event last = gpu_record(stream);
  assert_int_equal(gpu->event_synchronize(last), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu_byte(at), 8);
  assert_int_equal(gpu->mem_free_host(pinned), KVF_CUDA_SUCCESS);
}

/* ---- virtual memory management ---- */

TEST(memory_is_mapped_piece_by_piece)
{
  gpu_begin(1, true);
  kvf_cu_memory at = 0;
  const kvf_cu_mem_access_desc access = {{.type = KVF_CU_MEM_LOCATION_TYPE_DEVICE},
                                         KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  kvf_cu_allocation pieces[2] = {gpu_create(GRAIN, 1), gpu_create(GRAIN, 1)};
  assert_int_equal(gpu->mem_address_reserve(&at, 4 * GRAIN, 0, 0, 0), KVF_CUDA_SUCCESS);
  assert_false(is_readable(at));
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(gpu->mem_map(at + i * GRAIN, GRAIN, 0, pieces[i], 0), KVF_CUDA_SUCCESS);
  }
  assert_int_equal(gpu->mem_map(at, GRAIN, 0, pieces[1], 0), KVF_CUDA_ERROR_ALREADY_MAPPED);
  assert_int_equal(gpu->mem_set_access(at, 2 * GRAIN, &access, 1), KVF_CUDA_SUCCESS);
  assert_int_equal(attribute(at + GRAIN, KVF_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), at);
  assert_int_equal(attribute(at + GRAIN, KVF_CU_POINTER_ATTRIBUTE_RANGE_SIZE), 4 * GRAIN);
  assert_int_equal(attribute(at + GRAIN, KVF_CU_POINTER_ATTRIBUTE_MAPPED), 1);
  assert_int_equal(attribute(at + 3 * GRAIN, KVF_CU_POINTER_ATTRIBUTE_MAPPED), 0);
  assert_int_equal(attribute(at, KVF_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0);
  assert_int_equal(attribute(at, KVF_CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES), 1);
  kvf_cu_memory base = 0;
  size_t bytes = 0;
  assert_int_equal(gpu->mem_get_address_range(&base, &bytes, at + GRAIN + 1), KVF_CUDA_SUCCESS);
  assert_int_equal(base, at + GRAIN); /* the mapping, and not what is reserved */
  assert_int_equal(bytes, GRAIN);

  gpu_fill(NULL, at + GRAIN - 5000, 10000, 7); /* over the seam */
  gpu_copy(NULL, at, at + GRAIN - 5000, 10000);
  gpu_finish();
  assert_true(gpu_all_are(at, 10000, 7));

  assert_int_equal(gpu->mem_address_free(at, 4 * GRAIN), KVF_CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(gpu->mem_release(pieces[0]), KVF_CUDA_SUCCESS); /* it stays as long as it is mapped */
  assert_int_equal(gpu_byte(at), 7);
  assert_int_equal(gpu->mem_unmap(at, GRAIN / 2), KVF_CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(gpu->mem_unmap(at, 2 * GRAIN), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_address_free(at, 4 * GRAIN), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_release(pieces[1]), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_release(pieces[1]), KVF_CUDA_ERROR_INVALID_VALUE);
  const fake_cuda_open open = fake_cuda_count();
  assert_int_equal(open.maps + open.reservations + open.allocations, 0);
}

/* `access` decides whether a copy out of it, and one into it, breaks the context. */
static kvf_cu_result access_result(unsigned access, bool into)
{
  gpu_begin(1, true);
  const kvf_cu_memory at = gpu_map(gpu_create(GRAIN, 0), GRAIN, access);
  const kvf_cu_memory other = gpu_allocate(BYTES);
  gpu_copy(NULL, into ? at : other, into ? other : at, BYTES);
  kvf_cu_event done = gpu_record(NULL);
  gpu_finish();
  return gpu->event_query(done);
}

TEST(a_device_needs_access_to_what_is_mapped)
{
  assert_int_equal(access_result(KVF_CU_MEM_ACCESS_FLAGS_PROT_NONE, false), KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
  assert_int_equal(access_result(KVF_CU_MEM_ACCESS_FLAGS_PROT_READ, false), KVF_CUDA_SUCCESS);
  assert_int_equal(access_result(KVF_CU_MEM_ACCESS_FLAGS_PROT_READ, true), KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
  assert_int_equal(access_result(KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE, true), KVF_CUDA_SUCCESS);
}

TEST(a_handle_is_had_of_what_is_mapped)
{
  gpu_begin(1, true);
  kvf_cu_allocation made = gpu_create(GRAIN, KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const kvf_cu_memory at = gpu_map(made, GRAIN, KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  kvf_cu_allocation retained = 0;
  int fd = -1;
  assert_int_equal(gpu->mem_retain_allocation_handle(&retained, (void *)(uintptr_t)(at + 5)), KVF_CUDA_SUCCESS);
  assert_int_equal(retained, made);
  assert_int_equal(gpu->mem_release(made), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_export_to_shareable_handle(&fd, retained, KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                   KVF_CUDA_SUCCESS);
  assert_true(fd >= 0);
  assert_int_equal(gpu->mem_release(retained), KVF_CUDA_SUCCESS);
  gpu_unmap(at, GRAIN);

  kvf_cu_allocation imported = 0; /* in the same process, too; the descriptor stays the caller's */
  assert_int_equal(gpu->mem_import_from_shareable_handle(&imported, (void *)(uintptr_t)fd,
                                                         KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                   KVF_CUDA_SUCCESS);
  assert_int_equal(close(fd), 0);
  assert_int_equal(gpu->mem_release(imported), KVF_CUDA_SUCCESS);
  const kvf_cu_memory legacy = gpu_allocate(BYTES);
  assert_int_equal(gpu->mem_retain_allocation_handle(&retained, (void *)(uintptr_t)legacy),
                   KVF_CUDA_ERROR_INVALID_VALUE);
}

/* As vLLM's sleep mode makes it. */
TEST(memory_that_was_made_without_a_handle_type_cannot_be_exported)
{
  gpu_begin(1, true);
  kvf_cu_allocation made = gpu_create(GRAIN, KVF_CU_MEM_HANDLE_TYPE_NONE);
  const kvf_cu_memory at = gpu_map(made, GRAIN, KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  kvf_cu_ipc_mem_handle handle;
  int fd = -1;
  assert_int_equal(attribute(at, KVF_CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES), 0);
  assert_int_equal(gpu->mem_export_to_shareable_handle(&fd, made, KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                   KVF_CUDA_ERROR_NOT_SUPPORTED);
  assert_int_equal(gpu->ipc_get_mem_handle(&handle, at), KVF_CUDA_ERROR_INVALID_VALUE);
}
