/* Memory of NVIDIA GPUs, by the process that it is of: what a region must be, and how its bytes come and go. */
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../fake_cuda/gpu.h"
#include "base/checksum.h"
#include "base/prng.h"
#include "child_process.h"
#include "memory/cuda/device_copy.h"

#define MIB ((size_t)1 << 20)
#define GRAIN FAKE_CUDA_GRANULARITY_BYTES
#define HALF KVF_CUDA_HALF_BYTES

static const kvf_memory_ops *const cuda = &kvf_memory_cuda;

/* ---- opening a device: first, while none is open ---- */

/* The engine captures a graph meanwhile, and its context is another device's. */
TEST(a_device_is_opened_beside_the_engine)
{
  kvf_cu_context before = NULL;
  kvf_cu_context after = NULL;
  kind_begin();
  const kvf_region region = kind_region(gpu_allocate(MIB), MIB);
  gpu_enter(1);
  assert_int_equal(cuCtxGetCurrent(&before), KVF_CUDA_SUCCESS);
  fake_cuda_capture(true);
  assert_true(cuda->works(0)); /* nobody has opened it */
  assert_int_equal(cuda->check(&region, kind_message), KVF_OK);
  fake_cuda_capture(false);
  assert_int_equal(fake_cuda_violations(), 0);
  assert_int_equal(cuCtxGetCurrent(&after), KVF_CUDA_SUCCESS);
  assert_ptr_equal(after, before);
  gpu_leave();
  assert_true(cuda->works(0));
  assert_int_equal(cuMemFree_v2((uintptr_t)region.base), KVF_CUDA_SUCCESS); /* another's may lie beside it */
}

/* Device 1, which has no context of the test's. */
static kvf_status open_other(void)
{
  kvf_region region = kind_region(kind_allocate(MIB), MIB);
  region.device = 1;
  kvf_status status = cuda->check(&region, kind_message);
  assert_int_equal(cuMemFree_v2((uintptr_t)region.base), KVF_CUDA_SUCCESS);
  return status;
}

TEST(a_device_that_gives_too_little_is_tried_again)
{
  kind_begin();
  fake_cuda_fail("cuDevicePrimaryCtxRetain", KVF_CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
  assert_int_equal(open_other(), KVF_NO_MEMORY);
  assert_string_equal(kind_message, "device 1 (Fake GPU 1) has no context for this process: CUDA_ERROR_OUT_OF_MEMORY");
  const fake_cuda_open before = fake_cuda_count();
  for (unsigned i = 0; i < 3; i++) {
    fake_cuda_fail("cuMemHostRegister_v2", KVF_CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
    fake_cuda_fail("cuMemHostAlloc", KVF_CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
    assert_int_equal(open_other(), KVF_NO_MEMORY);
    assert_string_equal(kind_message, "device 1 (Fake GPU 1) gives no streams, events or pinned memory");
    assert_int_equal(fake_cuda_count().streams, before.streams); /* what is of no use is given back */
    assert_int_equal(fake_cuda_count().events, before.events);
  }
  for (unsigned i = 0; i < 10; i++) { /* after the lanes' events, and some of the marks' */
    fake_cuda_fail("cuEventCreate", KVF_CUDA_ERROR_OUT_OF_MEMORY, i == 0 ? 2 * KVF_CUDA_LANES_FIRST + 40 : 10, 1);
    assert_int_equal(open_other(), i < 3 ? KVF_NO_MEMORY : KVF_INVALID);
  }
  assert_string_equal(strstr(kind_message, "memory of"), "memory of CUDA device 0, not 1");
  assert_int_equal(fake_cuda_count().streams, before.streams + KVF_CUDA_LANES_FIRST);
  assert_int_equal(fake_cuda_count().memory, before.memory + KVF_CUDA_LANES_FIRST);
  assert_int_equal(fake_cuda_count().events, before.events + 2 * KVF_CUDA_LANES_FIRST + 64);
}

/* ---- what a region must be ---- */

static kvf_status check(const void *base, size_t bytes, uint32_t device)
{
  kvf_region region = kind_region((uintptr_t)base, bytes);
  region.device = device;
  return cuda->check(&region, kind_message);
}

/* Refused, with a message that has this in it. */
static void expect_refused(const void *base, size_t bytes, const char *why)
{
  assert_int_equal(check(base, bytes, 0), KVF_INVALID);
  assert_non_null(strstr(kind_message, why));
}

static void *at(kvf_cu_memory address)
{
  return (void *)(uintptr_t)address;
}

TEST(a_region_lies_in_an_allocation)
{
  const kvf_cu_memory made = kind_allocate(MIB);
  char expected[KVF_MESSAGE_BYTES_MAX];
  assert_int_equal(check(at(made), MIB, 0), KVF_OK);
  assert_int_equal(check(at(made + 1000), MIB - 1000, 0), KVF_OK);
  (void)snprintf(expected, sizeof(expected), "%zu bytes at %p are not all allocated", MIB - 999, at(made + 1000));
  expect_refused(at(made + 1000), MIB - 999, expected);
  expect_refused(at(made - 1), 2, "is nothing that CUDA knows, not memory of a CUDA device");
  kvf_region region = kind_region(made, 1000); /* all blocks are looked at, and what is between them */
  region.stride_bytes = 4096;
  region.blocks = 256;
  assert_int_equal(cuda->check(&region, kind_message), KVF_OK);
  region.blocks = 257;
  assert_int_equal(cuda->check(&region, kind_message), KVF_INVALID);
  assert_int_equal(cuMemFree_v2(made), KVF_CUDA_SUCCESS);
  expect_refused(at(made), MIB, "is nothing that CUDA knows");
}

TEST(other_memory_is_named)
{
  static uint8_t own[100];
  void *pinned = NULL;
  kind_begin();
  assert_int_equal(gpu->mem_host_alloc(&pinned, MIB, 0), KVF_CUDA_SUCCESS);
  expect_refused(own, sizeof(own), "is nothing that CUDA knows, not memory of a CUDA device");
  expect_refused(at(4096), 100, "0x1000 is nothing that CUDA knows");
  expect_refused(NULL, 100, "is nothing that CUDA knows");
  expect_refused(pinned, MIB, "is the host's memory, not memory of a CUDA device");
  assert_int_equal(gpu->mem_free_host(pinned), KVF_CUDA_SUCCESS);
}

TEST(a_driver_that_does_not_answer_is_quoted)
{
  const kvf_cu_memory made = kind_allocate(MIB);
  fake_cuda_fail("cuPointerGetAttributes", KVF_CUDA_ERROR_NOT_SUPPORTED, 0, 1);
  expect_refused(at(made), MIB, "CUDA_ERROR_NOT_SUPPORTED");
  assert_int_equal(cuMemFree_v2(made), KVF_CUDA_SUCCESS);
}

TEST(memory_of_another_device_is_refused)
{
  const kvf_cu_memory made = kind_allocate(MIB);
  assert_int_equal(check(at(made), MIB, 1), KVF_INVALID);
  assert_non_null(strstr(kind_message, "is memory of CUDA device 0, not 1"));
  gpu_enter(1);
  const kvf_cu_memory other = gpu_allocate(MIB);
  assert_int_equal(check(at(other), MIB, 1), KVF_OK);
  expect_refused(at(other), MIB, "is memory of CUDA device 1, not 0");
  assert_int_equal(cuMemFree_v2(other), KVF_CUDA_SUCCESS);
  gpu_leave();
  assert_int_equal(cuMemFree_v2(made), KVF_CUDA_SUCCESS);
}

TEST(a_device_that_is_not_there_is_named)
{
  const kvf_cu_memory made = kind_allocate(MIB);
  assert_int_equal(check(at(made), MIB, 2), KVF_TRANSFER_SETUP);
  assert_string_equal(kind_message, "this process sees no CUDA device 2, but 2 others");
  assert_int_equal(check(at(made), MIB, 64), KVF_TRANSFER_SETUP);
  assert_string_equal(kind_message, "CUDA device 64 is beyond the 64 that are used");
  assert_int_equal(check(at(made), MIB, KVF_MEMORY_NO_DEVICE), KVF_TRANSFER_SETUP);
  assert_int_equal(cuMemFree_v2(made), KVF_CUDA_SUCCESS);
}

/* As an allocator does that makes its memory longer when it needs more. */
TEST(a_region_may_have_more_than_one_mapping)
{
  const kvf_cu_memory made = kind_map(3 * GRAIN, 3, KVF_CU_MEM_HANDLE_TYPE_NONE);
  assert_int_equal(check(at(made), 3 * GRAIN, 0), KVF_OK);
  assert_int_equal(check(at(made + 100), 3 * GRAIN - 100, 0), KVF_OK);
  expect_refused(at(made), 3 * GRAIN + 1, "are not all allocated");
  assert_int_equal(gpu->mem_unmap(made + GRAIN, GRAIN), KVF_CUDA_SUCCESS);
  assert_int_equal(check(at(made), GRAIN, 0), KVF_OK);
  expect_refused(at(made), GRAIN + 1, "are not all allocated"); /* a hole */
  expect_refused(at(made), 3 * GRAIN, "are not all allocated");
  /* of another device */
  kvf_cu_allocation other = 0;
  const kvf_cu_mem_allocation_prop prop = {.type = KVF_CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .location = {.type = KVF_CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
  assert_int_equal(cuMemCreate(&other, GRAIN, &prop, 0), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_map(made + GRAIN, GRAIN, 0, other, 0), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_release(other), KVF_CUDA_SUCCESS);
  expect_refused(at(made), 3 * GRAIN, "are not all allocated on CUDA device 0");
  gpu_unmap(made, 3 * GRAIN);
}

static void check_without_context(void *made)
{
  kvf_cu_context current = NULL;
  assert_int_equal(check(made, MIB, 0), KVF_OK);
  assert_int_equal(cuCtxGetCurrent(&current), KVF_CUDA_SUCCESS);
  assert_null(current);
}

TEST(the_current_context_stays)
{
  const kvf_cu_memory made = kind_allocate(MIB);
  kvf_cu_context before = NULL;
  kvf_cu_context after = NULL;
  uint8_t byte = 1;
  uint64_t sum;
  const struct iovec ours = {&byte, 1};
  const struct iovec its = {at(made), 1};
  kind_side side;
  gpu_enter(1);
  assert_int_equal(cuCtxGetCurrent(&before), KVF_CUDA_SUCCESS);
  assert_int_equal(check(at(made), MIB, 0), KVF_OK);
  expect_refused(at(made), MIB + 1, "allocated");
  assert_true(cuda->copy_in(0, &its, &ours, 1));
  assert_true(cuda->copy_out(0, &ours, &its, 1));
  assert_true(cuda->checksums(0, &its, 1, &sum));
  assert_int_equal(cuCtxGetCurrent(&after), KVF_CUDA_SUCCESS);
  assert_ptr_equal(after, before);
  gpu_leave();
  kind_side_start(&side, check_without_context, at(made));
  kind_side_join(&side);
  assert_int_equal(cuMemFree_v2(made), KVF_CUDA_SUCCESS);
}

/* ---- bytes ---- */

#define SPACE (10 * MIB)
#define LARGEST (3 * MIB)
#define SEEDS (SANITIZED ? 5 : 20)

/* Runs on either side of a copy: those of the device in another order, and with gaps between them. */
typedef struct plan {
  size_t count;
  struct iovec device[KVF_CUDA_PIECES_MAX];
  struct iovec host[KVF_CUDA_PIECES_MAX];
  kvf_cu_memory memory; /* SPACE bytes */
  uint8_t *view;        /* of it */
  uint8_t *bytes;       /* SPACE bytes, the host's */
  uint8_t *before;      /* what the side that is written was */
} plan;

static plan all;

static void make_space(void)
{
  if (all.bytes == NULL) {
    all.memory = kind_allocate(SPACE);
    all.view = fake_cuda_view(all.memory);
    all.bytes = allocate(SPACE);
    all.before = allocate(SPACE);
    assert_non_null(all.view);
  }
}

static size_t draw_bytes(kvf_prng *prng)
{
  const uint64_t drawn = kvf_prng_below(prng, 100);
  return drawn == 0   ? MIB + kvf_prng_below(prng, LARGEST - MIB + 1)
         : drawn < 50 ? 1 + kvf_prng_below(prng, 64)
         : drawn < 60 ? HALF / 8 - 2 + kvf_prng_below(prng, 5)
                      : 1 + kvf_prng_below(prng, 8192);
}

static void shuffle(kvf_prng *prng, size_t *order, size_t count)
{
  for (size_t i = 0; i < count; i++) {
    const size_t other = kvf_prng_below(prng, i + 1);
    order[i] = order[other];
    order[other] = i;
  }
}

/* As many as there is room for. */
static void draw_plan(kvf_prng *prng)
{
  static size_t order[KVF_CUDA_PIECES_MAX];
  const size_t wanted = 200 + kvf_prng_below(prng, 400);
  size_t used = 0;
  all.count = 0;
  while (all.count < wanted && used + LARGEST + 100 < SPACE) {
    const size_t bytes = draw_bytes(prng);
    all.host[all.count] = (struct iovec){all.bytes + used, bytes};
    all.device[all.count++].iov_len = bytes;
    used += bytes + kvf_prng_below(prng, 100);
  }
  shuffle(prng, order, all.count);
  used = 0;
  for (size_t i = 0; i < all.count; i++) {
    struct iovec *run = &all.device[order[i]];
    run->iov_base = at(all.memory + used);
    used += run->iov_len + 1;
  }
}

static uint8_t *view_of(const struct iovec *run)
{
  return all.view + ((uintptr_t)run->iov_base - all.memory);
}

/* The side that is written is as it was, but for the runs, which are as on the other side. */
static void expect_copied(bool in)
{
  for (size_t i = 0; i < all.count; i++) {
    const size_t past =
        in ? (size_t)(view_of(&all.device[i]) - all.view) : (size_t)((uint8_t *)all.host[i].iov_base - all.bytes);
    memcpy(all.before + past, in ? all.host[i].iov_base : view_of(&all.device[i]), all.host[i].iov_len);
  }
  assert_memory_equal(in ? all.view : all.bytes, all.before, SPACE);
}

static void copy_plan(bool in, uint64_t seed)
{
  kind_write(all.view, SPACE, seed);
  kind_write(all.bytes, SPACE, ~seed);
  memcpy(all.before, in ? all.view : all.bytes, SPACE);
  fake_cuda_forbid_waits(true);
  fake_cuda_capture(true);
  const bool good =
      in ? cuda->copy_in(0, all.device, all.host, all.count) : cuda->copy_out(0, all.host, all.device, all.count);
  fake_cuda_forbid_waits(false);
  fake_cuda_capture(false);
  assert_true(good);
  assert_int_equal(fake_cuda_count().works, 0);
  expect_copied(in);
}

static void copies_lists(bool in)
{
  uint64_t seed;
  const uint64_t before = fake_cuda_violations();
  make_space();
  while (test_next_seed(SEEDS, &seed)) {
    kvf_prng prng = {seed};
    fake_cuda_seed(seed);
    draw_plan(&prng);
    copy_plan(in, seed);
  }
  assert_int_equal(fake_cuda_violations(), before);
}

SEEDS_TEST(bytes_are_copied_to_a_device)
{
  copies_lists(true);
}

SEEDS_TEST(bytes_are_copied_from_a_device)
{
  copies_lists(false);
}

/* `count` runs of equal length, side by side. */
static void plan_equal(size_t count, size_t bytes)
{
  all.count = count;
  for (size_t i = 0; i < count; i++) {
    all.host[i] = (struct iovec){all.bytes + i * bytes, bytes};
    all.device[i] = (struct iovec){at(all.memory + i * bytes), bytes};
  }
}

TEST(bytes_of_lengths_at_the_edge)
{
  static const struct {
    size_t count;
    size_t bytes;
  } rows[] = {{0, 1},        {1, 1},        {1, HALF - 1},     {1, HALF},
              {1, HALF + 1}, {1, 2 * HALF}, {1, 2 * HALF + 1}, {1, SPACE},
              {2, HALF},     {3, HALF - 1}, {64, HALF / 32},   {KVF_CUDA_PIECES_MAX, 1},
              {3, 0},        {5, HALF + 1}, {1, 3 * HALF},     {KVF_CUDA_PIECES_MAX, 4 * HALF / KVF_CUDA_PIECES_MAX}};
  make_space();
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    plan_equal(rows[i].count, rows[i].bytes);
    copy_plan(true, i);
    copy_plan(false, i);
  }
  plan_equal(4, 1000); /* of which two behind each other have no length */
  all.host[1].iov_len = all.device[1].iov_len = all.host[2].iov_len = all.device[2].iov_len = 0;
  copy_plan(true, 99);
  copy_plan(false, 99);
}

/* Of as many runs as one call may have, of lengths short and long, at any address. */
static void plan_sums(kvf_prng *prng)
{
  static const size_t lengths[] = {0, 1, 16, 240, 241, 1024, 65535, 65536, 65537};
  all.count = KVF_CUDA_PIECES_MAX;
  for (size_t i = 0; i < all.count; i++) {
    const size_t bytes = i == 0 ? LARGEST : lengths[kvf_prng_below(prng, i < 100 ? 9 : 6)];
    all.device[i] = (struct iovec){at(all.memory + kvf_prng_below(prng, SPACE - bytes)), bytes};
  }
}

/* First of all with a kernel: that it was launched before shows here. */
TEST(bytes_are_summed)
{
  static uint64_t sums[KVF_CUDA_PIECES_MAX];
  kvf_prng prng = {5};
  make_space();
  kind_write(all.view, SPACE, 5);
  plan_sums(&prng);
  const uint64_t violations = fake_cuda_violations();
  const uint64_t kernels = fake_cuda_calls("cuLaunchKernel");
  fake_cuda_forbid_waits(true);
  fake_cuda_capture(true);
  assert_true(cuda->checksums(0, all.device, all.count, sums));
  fake_cuda_forbid_waits(false);
  fake_cuda_capture(false);
  assert_int_equal(fake_cuda_calls("cuLaunchKernel") - kernels, fake_cuda_defaults().has_compiler ? 1 : 0);
  assert_int_equal(fake_cuda_violations(), violations);
  assert_int_equal(fake_cuda_count().works, 0);
  for (size_t i = 0; i < all.count; i++) {
    assert_int_equal(sums[i], kvf_checksum(view_of(&all.device[i]), all.device[i].iov_len));
  }
}

/* Those that have been begun are waited for all the same. */
TEST(bytes_that_are_refused)
{
  const char *call = fake_cuda_defaults().version >= KVF_CUDA_VERSION_BATCH ? "cuMemcpyBatchAsync" : "cuMemcpyAsync";
  const char *sums_call = fake_cuda_defaults().has_compiler ? "cuLaunchKernel" : call;
  uint64_t sum;
  make_space();
  plan_equal(8, HALF / 2);
  for (unsigned after = 0; after < 4; after++) {
    for (unsigned in = 0; in < 2; in++) {
      fake_cuda_fail(call, KVF_CUDA_ERROR_INVALID_VALUE, after, 1);
      assert_false(in == 1 ? cuda->copy_in(0, all.device, all.host, all.count)
                           : cuda->copy_out(0, all.host, all.device, all.count));
      assert_int_equal(fake_cuda_count().works, 0);
    }
  }
  fake_cuda_fail(sums_call, KVF_CUDA_ERROR_INVALID_VALUE, 0, 1);
  assert_false(cuda->checksums(0, all.device, 1, &sum));
  assert_true(cuda->works(0));
  copy_plan(true, 7);
}

/* ---- in a process of its own ---- */

/* The tests whose names begin like this, on a driver of which this is set. */
static void run_bytes_with(const char *variable, const char *value)
{
  child_process child;
  assert_int_equal(setenv(variable, value, 1), 0);
  assert_true(child_start(&child, "bytes_", SOCK_STREAM));
  assert_int_equal(unsetenv(variable), 0);
  assert_int_equal(child_end(&child), 0);
}

TEST(an_older_driver_does_it_one_by_one)
{
  run_bytes_with("KVFERRY_FAKE_CUDA_VERSION", "12070");
}

TEST(a_driver_without_a_compiler_does_it)
{
  run_bytes_with("KVFERRY_FAKE_CUDA_COMPILER", "0");
}

/* The usual library, which is not there: the message is cuda_load_test.c's. */
static int check_without_driver(void)
{
  const kvf_region region = kind_region(4096, 100);
  if (dlopen("libcuda.so.1", RTLD_NOW) != NULL) {
    return 0;
  }
  return cuda->check(&region, kind_message) == KVF_TRANSFER_SETUP && strstr(kind_message, "libcuda.so.1") != NULL &&
                 cuda->open("", kind_message) == KVF_TRANSFER_SETUP &&
                 cuda->open(FAKE_CUDA_LIBRARY, kind_message) == KVF_OK && strstr(kind_message, "CUDA 12.8, 2 ") != NULL
             ? 0
             : 1;
}

TEST(without_a_driver_no_region_is_good)
{
  child_process child;
  assert_true(child_start(&child, "no driver", SOCK_STREAM));
  assert_int_equal(child_end(&child), 0);
}

int main(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], "no driver") == 0) {
    return check_without_driver();
  }
  return test_run(argc > 1 ? argv[1] : NULL);
}
