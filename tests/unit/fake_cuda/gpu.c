#include "gpu.h"

#define BATCH_MAX 8192

const kvf_cuda_api *gpu;
static kvf_cu_context contexts[FAKE_CUDA_DEVICES_MAX];

void gpu_begin(uint64_t seed, bool by_hand)
{
  const kvf_cuda *loaded;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_cu_context was;
  fake_cuda_settings settings = fake_cuda_defaults();
  settings.seed = seed;
  settings.by_hand = by_hand;
  assert_int_equal(kvf_cuda_load(FAKE_CUDA_LIBRARY, &loaded, message), KVF_OK);
  gpu = &loaded->api;
  while (gpu->ctx_pop_current(&was) == KVF_CUDA_SUCCESS) { /* those of the test before */
  }
  fake_cuda_reset(&settings);
  assert_int_equal(gpu->init(0), KVF_CUDA_SUCCESS);
  gpu_enter(0);
}

void gpu_enter(int device)
{
  assert_int_equal(gpu->device_primary_ctx_retain(&contexts[device], device), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->ctx_push_current(contexts[device]), KVF_CUDA_SUCCESS);
}

void gpu_leave(void)
{
  kvf_cu_context was;
  assert_int_equal(gpu->ctx_pop_current(&was), KVF_CUDA_SUCCESS);
}

kvf_cu_memory gpu_allocate(size_t bytes)
{
  kvf_cu_memory address = 0;
  assert_int_equal(cuMemAlloc_v2(&address, bytes), KVF_CUDA_SUCCESS);
  return address;
}

kvf_cu_stream gpu_stream(void)
{
  kvf_cu_stream made = NULL;
  assert_int_equal(gpu->stream_create_with_priority(&made, KVF_CU_STREAM_NON_BLOCKING, 99), KVF_CUDA_SUCCESS);
  return made;
}

kvf_cu_event gpu_event(void)
{
  kvf_cu_event made = NULL;
  assert_int_equal(gpu->event_create(&made, KVF_CU_EVENT_DISABLE_TIMING), KVF_CUDA_SUCCESS);
  return made;
}

kvf_cu_event gpu_record(kvf_cu_stream on)
{
  kvf_cu_event made = gpu_event();
  assert_int_equal(gpu->event_record(made, on), KVF_CUDA_SUCCESS);
  return made;
}

void gpu_fill(kvf_cu_stream on, kvf_cu_memory to, size_t bytes, uint8_t value)
{
  kvf_cu_module module;
  kvf_cu_function fill;
  uint64_t values[4] = {to, bytes, value, 0};
  void *arguments[] = {&values[0], &values[1], &values[2], &values[3]};
  assert_int_equal(gpu->module_load_data(&module, "image"), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->module_get_function(&fill, module, "test_fill"), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->launch_kernel(fill, 1, 1, 1, 32, 1, 1, 0, on, arguments, NULL), KVF_CUDA_SUCCESS);
  memset(values, 0xff, sizeof(values)); /* they are the caller's again */
}

void gpu_copy(kvf_cu_stream on, kvf_cu_memory to, kvf_cu_memory from, size_t bytes)
{
  assert_int_equal(gpu->memcpy_async(to, from, bytes, on), KVF_CUDA_SUCCESS);
}

void gpu_batch(kvf_cu_stream on, kvf_cu_memory to, kvf_cu_memory from, size_t bytes, size_t count, unsigned order)
{
  static kvf_cu_memory tos[BATCH_MAX];
  static kvf_cu_memory froms[BATCH_MAX];
  static size_t sizes[BATCH_MAX];
  kvf_cu_memcpy_attributes attributes = {.src_access_order = order};
  size_t first = 0;
  size_t failed;
  for (size_t i = 0; i < count; i++) {
    tos[i] = to + i * bytes;
    froms[i] = from + i * bytes;
    sizes[i] = bytes;
  }
  assert_int_equal(gpu->memcpy_batch_async(tos, froms, sizes, count, &attributes, &first, 1, &failed, on),
                   KVF_CUDA_SUCCESS);
  memset(tos, 0, sizeof(tos)); /* likewise */
  memset(froms, 0, sizeof(froms));
}

uint8_t gpu_byte(kvf_cu_memory at)
{
  uint8_t byte;
  assert_true(fake_cuda_read(at, &byte, 1));
  return byte;
}

bool gpu_all_are(kvf_cu_memory at, size_t bytes, uint8_t value)
{
  uint8_t *found = malloc(bytes);
  assert_non_null(found);
  assert_true(fake_cuda_read(at, found, bytes));
  bool all = true;
  for (size_t i = 0; i < bytes && all; i++) {
    all = found[i] == value;
  }
  free(found);
  return all;
}

kvf_cu_allocation gpu_create(size_t bytes, unsigned handle_types)
{
  kvf_cu_allocation made = 0;
  const kvf_cu_mem_allocation_prop prop = {.type = KVF_CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .requested_handle_types = handle_types,
                                           .location = {.type = KVF_CU_MEM_LOCATION_TYPE_DEVICE}};
  assert_int_equal(cuMemCreate(&made, bytes, &prop, 0), KVF_CUDA_SUCCESS);
  return made;
}

kvf_cu_memory gpu_map(kvf_cu_allocation allocation, size_t bytes, unsigned access)
{
  kvf_cu_memory at = 0;
  const kvf_cu_mem_access_desc desc = {{.type = KVF_CU_MEM_LOCATION_TYPE_DEVICE}, access};
  assert_int_equal(gpu->mem_address_reserve(&at, bytes, 0, 0, 0), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_map(at, bytes, 0, allocation, 0), KVF_CUDA_SUCCESS);
  if (access != KVF_CU_MEM_ACCESS_FLAGS_PROT_NONE) {
    assert_int_equal(gpu->mem_set_access(at, bytes, &desc, 1), KVF_CUDA_SUCCESS);
  }
  return at;
}

void gpu_unmap(kvf_cu_memory at, size_t bytes)
{
  assert_int_equal(gpu->mem_unmap(at, bytes), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_address_free(at, bytes), KVF_CUDA_SUCCESS);
}

void gpu_finish(void)
{
  while (fake_cuda_step()) {
  }
}

bool gpu_had_all_seeds(void)
{
  return getenv("KVF_TEST_SEED") == NULL;
}
