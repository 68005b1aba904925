/* Questions that one process answers. */
#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "memory/cuda/kernels.h"
#include "probe.h"

#define KERNEL_NS 200000000
#define TURNS 200

static void ask_init(void)
{
  char name[64] = "";
  int version = 0;
  int count = 0;
  load_driver();
  const double begin = now_ms();
  must(cuda.api.init(0));
  say_number("init_ms", now_ms() - begin);
  must(cuda.api.driver_get_version(&version));
  say_number("version", version);
  must(cuda.api.device_get_count(&count));
  say_number("devices", count);
  must(cuda.api.device_get(&cuda.device, 0));
  must(cuda.api.device_get_name(name, sizeof(name), cuda.device));
  say_text("name", name);
}

static void ask_attributes(void)
{
  static const struct {
    const char *name;
    unsigned attribute;
  } asked[] = {
      {"compute_major", KVF_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
      {"compute_minor", KVF_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
      {"multiprocessors", 16},
      {"copy_engines", 40},
      {"host_pointer_for_registered", KVF_CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM},
      {"virtual_memory", KVF_CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
      {"file_descriptors", KVF_CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {"gpu_direct_rdma", KVF_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED},
      {"rdma_writes_ordering", KVF_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING},
      {"ipc", KVF_CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED},
      {"host_numa", KVF_CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID},
  };
  init_driver();
  for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
    int value = 0;
    const kvf_cu_result result = cuda.api.device_get_attribute(&value, asked[i].attribute, cuda.device);
    if (result == KVF_CUDA_SUCCESS) {
      say_number(asked[i].name, value);
    } else {
      say_result(asked[i].name, result);
    }
  }
}

static void ask_context(void)
{
  kvf_cu_context context;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  init_driver();
  const double begin = now_ms();
  must(cuda.api.device_primary_ctx_retain(&context, cuda.device));
  say_number("context_ms", now_ms() - begin);
  must(cuda.api.ctx_push_current(context));
  must(cuda.mem_get_info(&free_bytes, &total_bytes));
  say_number("free_bytes", (double)free_bytes);
  say_number("total_bytes", (double)total_bytes);
  if (cuda.priority_range != NULL) {
    int least = 0;
    int greatest = 0;
    must(cuda.priority_range(&least, &greatest));
    say_number("priority_least", least);
    say_number("priority_greatest", greatest);
  }
  unsigned status = 0;
  say_result("is_capturing", cuda.api.stream_is_capturing(make_stream(), &status));
  say_result("is_capturing_legacy", cuda.api.stream_is_capturing(NULL, &status));
}

/* ---- batch copies ---- */

static kvf_cu_result batch(kvf_cu_memory at, unsigned flags, kvf_cu_stream stream)
{
  kvf_cu_memory to[] = {at, at + 2 * MIB};
  kvf_cu_memory from[] = {at + 4 * MIB, at + 6 * MIB};
  size_t bytes[] = {64 * KIB, 64 * KIB};
  size_t first = 0;
  size_t failed = 0;
  kvf_cu_memcpy_attributes attributes = {.src_access_order = KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, .flags = flags};
  kvf_cu_result result = cuda.api.memcpy_batch_async(to, from, bytes, 2, &attributes, &first, 1, &failed, stream);
  return result == KVF_CUDA_SUCCESS ? cuda.stream_synchronize(stream) : result;
}

static void ask_batch(void)
{
  enter_driver();
  if (cuda.api.memcpy_batch_async == NULL) {
    say_text("batch", "not there");
    return;
  }
  const kvf_cu_memory at = allocate(8 * MIB);
  kvf_cu_stream stream = make_stream();
  say_result("batch", batch(at, 0, stream));
  say_result("batch_overlap", batch(at, 1, stream));
  say_result("batch_legacy_null", batch(at, 0, NULL));
}

static void ask_batch_on_legacy_handle(void)
{
  enter_driver();
  if (cuda.api.memcpy_batch_async != NULL) {
    const uintptr_t legacy = 1;
    kvf_cu_stream stream;
    memcpy(&stream, &legacy, sizeof(legacy));
    say_result("batch_legacy_handle", batch(allocate(8 * MIB), 0, stream));
  }
}

/* ---- kernels ---- */

static void time_launch(kvf_cu_function kernel, kvf_cu_stream stream, const char *call_name, const char *done_name)
{
  uint64_t values[] = {0, 0};
  void *arguments[] = {&values[0], &values[1]};
  const double begin = now_ms();
  must(cuda.api.launch_kernel(kernel, 1, 1, 1, KVF_CUDA_KERNEL_THREADS, 1, 1, 0, stream, arguments, NULL));
  say_number(call_name, (now_ms() - begin) * 1e3);
  (void)drain_ms(stream);
  say_number(done_name, (now_ms() - begin) * 1e3);
}

static void ask_kernels(void)
{
  kvf_cu_module module;
  kvf_cu_function checksums;
  kvf_cu_function gather;
  enter_driver();
  kvf_cu_stream stream = make_stream();
  const double begin = now_ms();
  const kvf_cu_result loaded = cuda.api.module_load_data(&module, kvf_cuda_kernels_ptx);
  say_result("ptx", loaded);
  say_number("ptx_ms", now_ms() - begin);
  must(loaded);
  say_result("checksums", cuda.api.module_get_function(&checksums, module, KVF_CUDA_CHECKSUMS_KERNEL));
  must(cuda.api.module_get_function(&gather, module, KVF_CUDA_GATHER_KERNEL));
  say_text("gather", "found");
  time_launch(gather, stream, "first_launch_us", "first_done_us");
  time_launch(gather, stream, "second_launch_us", "second_done_us");
  time_launch(gather, stream, "third_launch_us", "third_done_us");
}

/* Of what a copy thread does all the time. */
static void ask_polling(void)
{
  const struct timespec pause = {0, 50000};
  kvf_cu_event event;
  enter_driver();
  kvf_cu_stream stream = make_stream();
  must(cuda.api.event_create(&event, KVF_CU_EVENT_DISABLE_TIMING));
  must(cuda.api.event_record(event, stream));
  (void)drain_ms(stream);
  double begin = now_ms();
  for (int i = 0; i < TURNS; i++) {
    must(cuda.api.event_query(event));
  }
  say_number("event_query_us", (now_ms() - begin) * 1e3 / TURNS);
  for (int slack_ns = 50000; slack_ns > 0; slack_ns = slack_ns == 1 ? 0 : 1) {
    (void)prctl(PR_SET_TIMERSLACK, slack_ns);
    begin = now_ms();
    for (int i = 0; i < TURNS / 4; i++) {
      (void)nanosleep(&pause, NULL);
    }
    say_number(slack_ns == 1 ? "sleep_50us_slack_1ns_us" : "sleep_50us_us", (now_ms() - begin) * 1e3 / (TURNS / 4.0));
  }
}

/* Which calls wait until a kernel of the same context has ended: M2 and M4 of an engine's fears. */
static void ask_beside_kernel(void)
{
  kvf_cu_module module;
  kvf_cu_memory other = 0;
  enter_driver();
  kvf_cu_stream stream = make_stream();
  const kvf_cu_memory scratch = allocate(2 * MIB);
  if (!begin_kernel(stream, scratch, 0)) {
    give_up("the driver takes no kernels");
  }
  (void)drain_ms(stream);
  (void)begin_kernel(stream, scratch, KERNEL_NS);
  double begin = now_ms();
  must(cuda.mem_alloc(&other, 64 * MIB));
  say_number("alloc_ms", now_ms() - begin);
  begin = now_ms();
  must(cuda.api.module_load_data(&module, kvf_cuda_kernels_ptx));
  say_number("module_load_ms", now_ms() - begin);
  say_number("kernel_left_ms", drain_ms(stream));
  (void)begin_kernel(stream, scratch, KERNEL_NS);
  begin = now_ms();
  must(cuda.mem_free(other));
  say_number("free_ms", now_ms() - begin);
  say_number("kernel_left_after_free_ms", drain_ms(stream));
}

/* ---- memory of the host ---- */

static void ask_host_register(void)
{
  enter_driver();
  void *pages = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    give_up("mmap");
  }
  memset(pages, 0, 2 * MIB);
  const double begin = now_ms();
  const kvf_cu_result result =
      cuda.api.mem_host_register(pages, 2 * MIB, KVF_CU_MEMHOSTREGISTER_PORTABLE | KVF_CU_MEMHOSTREGISTER_DEVICEMAP);
  say_result("host_register", result);
  say_number("host_register_ms", now_ms() - begin);
  uint64_t address = 0;
  void *out = &address;
  unsigned attribute = KVF_CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
  if (result == KVF_CUDA_SUCCESS &&
      cuda.api.pointer_get_attributes(1, &attribute, &out, (uintptr_t)pages) == KVF_CUDA_SUCCESS) {
    say_text("device_address", address == (uintptr_t)pages ? "the host's" : "another");
  }
  void *pinned = NULL;
  say_result("host_alloc", cuda.api.mem_host_alloc(&pinned, 2 * MIB, KVF_CU_MEMHOSTALLOC_PORTABLE));
}

static void ask_mbind(void)
{
  const unsigned long nodes[2] = {1, 0};
  void *pages = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  say_errno("mbind", pages == MAP_FAILED ? -1 : syscall(SYS_mbind, pages, 2 * MIB, MPOL_PREFERRED, nodes, 65UL, 0UL));
}

const question one_process[] = {
    {"init", ask_init, 0, NULL, NULL, 0},
    {"attributes", ask_attributes, 0, NULL, NULL, 0},
    {"context", ask_context, 0, NULL, NULL, 0},
    {"batch", ask_batch, 0, NULL, NULL, 0},
    {"batch-legacy-handle", ask_batch_on_legacy_handle, 0, NULL, NULL, 0},
    {"kernels", ask_kernels, 0, NULL, NULL, 0},
    {"polling", ask_polling, 0, NULL, NULL, 0},
    {"beside-kernel", ask_beside_kernel, 0, NULL, NULL, 0},
    {"host-register", ask_host_register, 0, NULL, NULL, 0},
    {"mbind", ask_mbind, 0, NULL, NULL, 0},
};
const size_t one_process_count = sizeof(one_process) / sizeof(one_process[0]);
