/* What goes wrong with the fake when a test wants it to, and what it has seen. */
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"

#define BYTES ((size_t)64 * 1024)

TEST(calls_fail_when_they_are_told_to)
{
  kvf_cu_memory at = 0;
  gpu_begin(1, true);
  fake_cuda_fail("cuMemAlloc_v2", KVF_CUDA_ERROR_OUT_OF_MEMORY, 1, 2);
  assert_int_equal(cuMemAlloc_v2(&at, BYTES), KVF_CUDA_SUCCESS);
  assert_int_equal(cuMemAlloc_v2(&at, BYTES), KVF_CUDA_ERROR_OUT_OF_MEMORY);
  assert_int_equal(cuMemAlloc_v2(&at, BYTES), KVF_CUDA_ERROR_OUT_OF_MEMORY);
  assert_int_equal(cuMemAlloc_v2(&at, BYTES), KVF_CUDA_SUCCESS);
  assert_int_equal(fake_cuda_calls("cuMemAlloc_v2"), 4);
}

TEST(after_a_sticky_error_every_call_of_the_context_fails)
{
  gpu_begin(1, true);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  kvf_cu_memory more;
  kvf_cu_stream stream = gpu_stream();
  gpu_fill(stream, at, BYTES, 1);
  kvf_cu_event done = gpu_record(stream);
  fake_cuda_break(0, KVF_CUDA_ERROR_ECC_UNCORRECTABLE);
  fake_cuda_break(0, KVF_CUDA_ERROR_LAUNCH_FAILED); /* the first is the one that is told */
  assert_false(fake_cuda_step());
  assert_int_equal(gpu->event_query(done), KVF_CUDA_ERROR_ECC_UNCORRECTABLE);
  assert_int_equal(gpu->event_synchronize(done), KVF_CUDA_ERROR_ECC_UNCORRECTABLE);
  assert_int_equal(gpu->event_record(done, stream), KVF_CUDA_ERROR_ECC_UNCORRECTABLE);
  assert_int_equal(gpu->memcpy_async(at, at, 1, stream), KVF_CUDA_ERROR_ECC_UNCORRECTABLE);
  assert_int_equal(cuMemAlloc_v2(&more, BYTES), KVF_CUDA_ERROR_ECC_UNCORRECTABLE);
  assert_int_equal(cuMemFree_v2(at), KVF_CUDA_ERROR_ECC_UNCORRECTABLE);
  assert_int_equal(gpu->stream_destroy(stream), KVF_CUDA_ERROR_ECC_UNCORRECTABLE);
  gpu_enter(1); /* the other device's is another */
  assert_int_equal(cuMemAlloc_v2(&more, BYTES), KVF_CUDA_SUCCESS);
  gpu_leave();
  kvf_cu_context same; /* there is no way back */
  assert_int_equal(gpu->device_primary_ctx_release(0), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->device_primary_ctx_retain(&same, 0), KVF_CUDA_ERROR_ECC_UNCORRECTABLE);
}

TEST(who_waits_is_told_when_the_context_is_lost)
{
  gpu_begin(1, false);
  kvf_cu_stream stream = gpu_stream();
  const kvf_cu_memory at = gpu_allocate(BYTES);
  const kvf_cu_memory gone = gpu_allocate(BYTES);
  fake_cuda_stall(stream, true);
  gpu_copy(stream, at, gone, BYTES);
  kvf_cu_event done = gpu_record(stream);
  assert_int_equal(cuMemFree_v2(gone), KVF_CUDA_SUCCESS);
  fake_cuda_stall(stream, false);
  assert_int_equal(gpu->event_synchronize(done), KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(a_batch_of_too_many_breaks_the_context)
{
  gpu_begin(1, true);
  const kvf_cu_memory from = gpu_allocate(BYTES);
  const kvf_cu_memory to = gpu_allocate(BYTES);
  kvf_cu_memory tos[2049];
  kvf_cu_memory froms[2049];
  size_t sizes[2049];
  size_t first = 0;
  size_t failed;
  kvf_cu_memcpy_attributes attributes = {.src_access_order = KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  for (size_t i = 0; i < 2049; i++) {
    tos[i] = to + i;
    froms[i] = from + i;
    sizes[i] = 1;
  }
  kvf_cu_stream stream = gpu_stream();
  assert_int_equal(gpu->memcpy_batch_async(tos, froms, sizes, 2048, &attributes, &first, 1, &failed, stream),
                   KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->memcpy_batch_async(tos, froms, sizes, 2049, &attributes, &first, 1, &failed, stream),
                   KVF_CUDA_ERROR_LAUNCH_FAILED);
  assert_int_equal(gpu->memcpy_async(to, from, 1, stream), KVF_CUDA_ERROR_LAUNCH_FAILED);
}

TEST(calls_that_wait_are_seen_while_they_are_forbidden)
{
  gpu_begin(1, true);
  kvf_cu_memory at = gpu_allocate(BYTES);
  kvf_cu_stream stream = gpu_stream();
  assert_int_equal(fake_cuda_violations(), 0);
  fake_cuda_forbid_waits(true);
  gpu_copy(stream, at, at, 1);
  kvf_cu_event done = gpu_record(stream);
  assert_int_equal(gpu->event_synchronize(done), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->event_query(done), KVF_CUDA_SUCCESS);
  assert_int_equal(fake_cuda_violations(), 0);
  assert_int_equal(cuCtxSynchronize(), KVF_CUDA_SUCCESS);
  assert_int_equal(fake_cuda_violations(), 1);
  assert_int_equal(cuStreamSynchronize(stream), KVF_CUDA_SUCCESS);
  assert_int_equal(fake_cuda_violations(), 2);
  assert_int_equal(cuMemAlloc_v2(&at, BYTES), KVF_CUDA_SUCCESS);
  assert_int_equal(fake_cuda_violations(), 3);
  fake_cuda_forbid_waits(false);
  assert_int_equal(cuMemFree_v2(at), KVF_CUDA_SUCCESS);
  assert_int_equal(fake_cuda_violations(), 3);
}

TEST(a_call_needs_a_context)
{
  gpu_begin(1, true);
  kvf_cu_memory at;
  gpu_leave();
  assert_int_equal(cuMemAlloc_v2(&at, BYTES), KVF_CUDA_ERROR_INVALID_CONTEXT);
  assert_int_equal(gpu->ctx_push_current(NULL), KVF_CUDA_ERROR_INVALID_CONTEXT);
}

static bool count_seven(const fake_cuda_launch *launch)
{
  uint32_t *seven;
  memcpy(&seven, launch->arguments[0], sizeof(seven));
  *seven += launch->grid[0] == 7 ? 1 : 100;
  return launch->step == 2;
}

TEST(a_kernel_is_a_function_by_name)
{
  gpu_begin(1, true);
  kvf_cu_module module;
  kvf_cu_function function;
  uint32_t called = 0;
  uint32_t *argument = &called;
  void *arguments[] = {&argument};
  const size_t bytes = sizeof(argument);
  assert_int_equal(gpu->module_load_data(&module, "image"), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->module_get_function(&function, module, "count_seven"), KVF_CUDA_ERROR_NOT_FOUND);
  fake_cuda_add_kernel("count_seven", count_seven, &bytes, 1);
  assert_int_equal(gpu->module_get_function(&function, module, "count_seven"), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->launch_kernel(function, 7, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL), KVF_CUDA_SUCCESS);
  argument = NULL;
  gpu_finish();
  assert_int_equal(called, 3);
}

TEST(cuda_is_of_no_use_in_a_forked_child)
{
  gpu_begin(1, true);
  const pid_t child = fork();
  if (child == 0) {
    int count;
    _exit(gpu->device_get_count(&count) == KVF_CUDA_ERROR_NOT_INITIALIZED &&
                  gpu->init(0) == KVF_CUDA_ERROR_NOT_INITIALIZED
              ? 0
              : 1);
  }
  int status = 1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}
