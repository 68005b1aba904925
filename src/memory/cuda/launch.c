/* Loads the two kernels, runs each once over nothing, and launches them. */
#include "memory/cuda/launch.h"

kvf_cu_result kvf_cuda_launch(const kvf_cuda *cuda, kvf_cu_stream stream, kvf_cu_function kernel, kvf_cuda_shape shape,
                              size_t count, void **arguments)
{
  const unsigned blocks = count < shape.blocks ? (unsigned)count : shape.blocks;
  return cuda->api.launch_kernel(kernel, blocks, 1, 1, shape.threads, 1, 1, 0, stream, arguments, NULL);
}

/* Over nothing: none reads its list then. */
static kvf_cu_result launch_both(const kvf_cuda *cuda, const kvf_cuda_kernels *kernels, kvf_cu_stream stream)
{
  uint64_t nothing = 0;
  void *arguments[] = {&nothing, &nothing, &nothing};
  kvf_cu_result result = kvf_cuda_launch(cuda, stream, kernels->checksums, kvf_cuda_usual_shape, 1, arguments);
  return result == KVF_CUDA_SUCCESS ? kvf_cuda_launch(cuda, stream, kernels->gather, kvf_cuda_usual_shape, 1, arguments)
                                    : result;
}

static kvf_cu_result wait_for(const kvf_cuda *cuda, kvf_cu_stream stream)
{
  kvf_cu_event done;
  kvf_cu_result result = cuda->api.event_create(&done, KVF_CU_EVENT_DISABLE_TIMING);
  if (result != KVF_CUDA_SUCCESS) {
    return result;
  }
  result = cuda->api.event_record(done, stream);
  if (result == KVF_CUDA_SUCCESS) {
    result = cuda->api.event_synchronize(done);
  }
  (void)cuda->api.event_destroy(done);
  return result;
}

static kvf_cu_result run_once(const kvf_cuda *cuda, const kvf_cuda_kernels *kernels)
{
  kvf_cu_stream stream;
  kvf_cu_result result =
      cuda->api.stream_create_with_priority(&stream, KVF_CU_STREAM_NON_BLOCKING, KVF_CUDA_STREAM_PRIORITY);
  if (result != KVF_CUDA_SUCCESS) {
    return result;
  }
  kvf_cu_result launched = launch_both(cuda, kernels, stream);
  result = wait_for(cuda, stream);
  (void)cuda->api.stream_destroy(stream);
  return launched == KVF_CUDA_SUCCESS ? result : launched;
}

static kvf_cu_result find_both(const kvf_cuda *cuda, kvf_cuda_kernels *out)
{
  kvf_cu_result result = cuda->api.module_get_function(&out->checksums, out->module, KVF_CUDA_CHECKSUMS_KERNEL);
  return result == KVF_CUDA_SUCCESS ? cuda->api.module_get_function(&out->gather, out->module, KVF_CUDA_GATHER_KERNEL)
                                    : result;
}

kvf_cu_result kvf_cuda_kernels_load(const kvf_cuda *cuda, kvf_cuda_kernels *out)
{
  *out = (kvf_cuda_kernels){0};
  kvf_cu_result result = cuda->api.module_load_data(&out->module, kvf_cuda_kernels_ptx);
  if (result == KVF_CUDA_SUCCESS) {
    result = find_both(cuda, out);
    result = result == KVF_CUDA_SUCCESS ? run_once(cuda, out) : result;
    if (result != KVF_CUDA_SUCCESS) {
      kvf_cuda_kernels_unload(cuda, out);
    }
  }
  *out = result == KVF_CUDA_SUCCESS ? *out : (kvf_cuda_kernels){.refused = result};
  return result;
}

void kvf_cuda_kernels_unload(const kvf_cuda *cuda, kvf_cuda_kernels *kernels)
{
  (void)cuda->api.module_unload(kernels->module);
  *kernels = (kvf_cuda_kernels){0};
}
