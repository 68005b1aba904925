/* Pinned memory: on the node that is nearest to its device, where it can be put there. */
#include <errno.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../fake_cuda/gpu.h"
#include "memory/cuda/gpu.h"

#define PAGE ((size_t)4096)
#define SIZE (64 * PAGE)
#define NODES 2048
#define NODES_OF_A_WORD (sizeof(unsigned long) * CHAR_BIT)
#define NODE "5"
#define NODE_OF_1 6 /* as the fake has it */

/* ---- what the system is asked for ---- */

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
int __real_madvise(void *address, size_t size, int advice);
int __wrap_madvise(void *address, size_t size, int advice);
int __real_munmap(void *address, size_t size);
int __wrap_munmap(void *address, size_t size);

static struct {
  unsigned count;
  uint8_t *address;
  size_t size;
  int mode;
  unsigned nodes_count;
  unsigned node; /* one of them */
  bool was_touched;
} binds;                  /* the last of so many */
static unsigned unmapped; /* how often these have been, as a whole */
static int bind_error;
static int madvise_error;

static bool is_resident(const uint8_t *at)
{
  unsigned char resident = 0;
  assert_int_equal(mincore((void *)(uintptr_t)at, PAGE, &resident), 0);
  return (resident & 1) != 0;
}

/* The kernel counts them in words, and looks at one less than it is told. */
static void see_nodes(const unsigned long *mask, unsigned long told)
{
  binds.nodes_count = 0;
  assert_in_range(told, 2, NODES);
  for (unsigned node = 0; node < told - 1; node++) {
    if ((mask[node / NODES_OF_A_WORD] >> (node % NODES_OF_A_WORD) & 1) != 0) {
      binds.nodes_count++;
      binds.node = node;
    }
  }
}

long __wrap_syscall(long number, ...)
{
  long given[6];
  va_list list;
  va_start(list, number);
  for (size_t i = 0; i < 6; i++) {
    given[i] = va_arg(list, long);
  }
  va_end(list);
  if (number != SYS_mbind) {
    return __real_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
  }
  binds.count++;
  binds.address = (uint8_t *)given[0];
  binds.size = (size_t)given[1];
  binds.mode = (int)given[2];
  binds.was_touched = is_resident(binds.address);
  see_nodes((const unsigned long *)given[3], (unsigned long)given[4]);
  errno = bind_error;
  return bind_error == 0 ? 0 : -1;
}

int __wrap_madvise(void *address, size_t size, int advice)
{
  if (madvise_error == 0) {
    return __real_madvise(address, size, advice);
  }
  binds.address = address;
  binds.size = size;
  errno = madvise_error;
  return -1;
}

int __wrap_munmap(void *address, size_t size)
{
  unmapped += address == binds.address && size == binds.size ? 1 : 0;
  return __real_munmap(address, size);
}

/* ---- a device of its own for each test ---- */

static const kvf_cuda *cuda;
static kvf_cuda_pinned pinned;

/* Device 1's context is current; `variable` of the fake's, or NULL. */
static void begin_with(const char *variable, const char *value)
{
  assert_int_equal(setenv("KVFERRY_FAKE_CUDA_NUMA_NODE", NODE, 1), 0);
  assert_int_equal(variable == NULL ? 0 : setenv(variable, value, 1), 0);
  gpu_begin(1, false);
  assert_int_equal(variable == NULL ? 0 : unsetenv(variable), 0);
  gpu_enter(1);
  assert_int_equal(kvf_cuda_load("", &cuda, kind_message), KVF_OK);
  memset(&binds, 0, sizeof(binds));
  unmapped = 0;
  bind_error = 0;
  madvise_error = 0;
}

static kvf_cu_memory address_on_device(void)
{
  kvf_cu_memory address = 0;
  unsigned attribute = KVF_CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
  void *data = &address;
  assert_int_equal(gpu->pointer_get_attributes(1, &attribute, &data, (uintptr_t)pinned.bytes), KVF_CUDA_SUCCESS);
  return address;
}

/* By the driver alone, with so many calls for our own pages to be registered before. */
static void expect_of_driver(unsigned registrations)
{
  assert_int_equal(kvf_cuda_pin(cuda, 1, SIZE, &pinned), KVF_CUDA_SUCCESS);
  assert_false(pinned.is_ours);
  assert_int_equal(fake_cuda_calls("cuMemHostAlloc"), 1);
  assert_int_equal(fake_cuda_calls("cuMemHostRegister_v2"), registrations);
  assert_int_equal(address_on_device(), (uintptr_t)pinned.bytes);
  memset(pinned.bytes, 1, SIZE);
  kvf_cuda_unpin(cuda, &pinned);
  assert_null(pinned.bytes);
  assert_int_equal(fake_cuda_count().memory, 0);
}

static void expect_near(void)
{
  assert_int_equal(kvf_cuda_pin(cuda, 1, SIZE, &pinned), KVF_CUDA_SUCCESS);
  assert_true(pinned.is_ours);
  assert_int_equal(fake_cuda_calls("cuMemHostAlloc"), 0);
  assert_int_equal(binds.count, 1);
  assert_ptr_equal(binds.address, pinned.bytes);
  assert_int_equal(address_on_device(), (uintptr_t)pinned.bytes);
  memset(pinned.bytes, 1, SIZE);
}

/* ---- where it lies ---- */

TEST(it_lies_on_the_node_of_its_device)
{
  begin_with(NULL, NULL);
  expect_near();
  assert_int_equal(binds.size, SIZE);
  assert_int_equal(binds.mode, MPOL_PREFERRED); /* with a node that is full, on another */
  assert_int_equal(binds.nodes_count, 1);
  assert_int_equal(binds.node, NODE_OF_1);
  assert_false(binds.was_touched); /* pages that are there stay where they are */
  kvf_cuda_unpin(cuda, &pinned);
  assert_null(pinned.bytes);
  assert_int_equal(unmapped, 1);
  assert_int_equal(fake_cuda_count().memory, 0);
}

TEST(the_last_node_is_one_as_well)
{
  begin_with("KVFERRY_FAKE_CUDA_NUMA_NODE", "1022");
  expect_near();
  assert_int_equal(binds.node, 1023);
  kvf_cuda_unpin(cuda, &pinned);
}

TEST(where_nodes_must_not_be_chosen_it_lies_anywhere)
{
  begin_with(NULL, NULL);
  bind_error = EPERM;
  expect_near();
  kvf_cuda_unpin(cuda, &pinned);
  assert_int_equal(unmapped, 1);
}

TEST(a_fork_does_not_move_it)
{
  begin_with(NULL, NULL);
  expect_near();
  const pid_t child = fork();
  if (child == 0) {
    unsigned char resident[SIZE / PAGE];
    _exit(mincore(pinned.bytes, SIZE, resident) != 0 && errno == ENOMEM ? 0 : 1); /* it has none of it */
  }
  int status = 1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  kvf_cuda_unpin(cuda, &pinned);
}

/* ---- where it cannot be put there ---- */

TEST(a_device_that_knows_no_node_has_the_drivers)
{
  begin_with("KVFERRY_FAKE_CUDA_NUMA_NODE", "-1");
  expect_of_driver(0);
  begin_with("KVFERRY_FAKE_CUDA_NUMA_NODE", "1023"); /* the second has 1024, which is none */
  expect_of_driver(0);
  begin_with(NULL, NULL);
  fake_cuda_fail("cuDeviceGetAttribute", KVF_CUDA_ERROR_INVALID_VALUE, 0, 1); /* an older driver */
  expect_of_driver(0);
  assert_int_equal(binds.count, 0);
}

TEST(a_device_with_other_addresses_has_the_drivers)
{
  begin_with("KVFERRY_FAKE_CUDA_HOST_POINTERS", "0");
  expect_of_driver(0);
  begin_with(NULL, NULL);
  fake_cuda_fail("cuDeviceGetAttribute", KVF_CUDA_ERROR_INVALID_VALUE, 1, 1);
  expect_of_driver(0);
  assert_int_equal(binds.count, 0);
}

TEST(pages_that_a_fork_would_share_are_not_taken)
{
  begin_with(NULL, NULL);
  madvise_error = EINVAL;
  expect_of_driver(0);
  assert_int_equal(unmapped, 1);
}

TEST(pages_that_the_driver_does_not_take_are_given_back)
{
  begin_with(NULL, NULL);
  fake_cuda_fail("cuMemHostRegister_v2", KVF_CUDA_ERROR_NOT_PERMITTED, 0, 1);
  expect_of_driver(1);
  assert_int_equal(binds.count, 1);
  assert_int_equal(unmapped, 1);
}

TEST(when_the_driver_has_none_either_nothing_is_left)
{
  begin_with(NULL, NULL);
  fake_cuda_fail("cuMemHostRegister_v2", KVF_CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
  fake_cuda_fail("cuMemHostAlloc", KVF_CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
  assert_int_equal(kvf_cuda_pin(cuda, 1, SIZE, &pinned), KVF_CUDA_ERROR_OUT_OF_MEMORY);
  assert_null(pinned.bytes);
  assert_int_equal(unmapped, 1);
  assert_int_equal(fake_cuda_count().memory, 0);
  kvf_cuda_unpin(cuda, &pinned); /* of what is not there */
}

/* Whatever would come to lie at their address, copies would go to them. */
TEST(pages_that_the_driver_keeps_stay_mapped)
{
  begin_with(NULL, NULL);
  expect_near();
  fake_cuda_fail("cuMemHostUnregister", KVF_CUDA_ERROR_ILLEGAL_ADDRESS, 0, 1);
  kvf_cuda_unpin(cuda, &pinned);
  assert_int_equal(unmapped, 0);
  assert_int_equal(gpu->mem_host_unregister(binds.address), KVF_CUDA_SUCCESS);
  assert_int_equal(munmap(binds.address, SIZE), 0);
}

/* ---- a device's lanes ---- */

/* Last, since a device is opened once in a process. */
TEST(lanes_lie_near_their_device)
{
  kvf_cuda_gpu *opened = NULL;
  kvf_cuda_stay stay;
  begin_with(NULL, NULL);
  assert_int_equal(kvf_cuda_gpu_of(1, &opened, kind_message), KVF_OK);
  assert_int_equal(binds.count, KVF_CUDA_LANES_FIRST);
  assert_int_equal(binds.size, 2 * KVF_CUDA_HALF_BYTES);
  assert_int_equal(binds.node, NODE_OF_1);
  assert_true(kvf_cuda_gpu_enter(opened, &stay));
  kvf_cuda_lane *lane = kvf_cuda_lane_take(opened);
  assert_ptr_equal(lane->pinned.bytes, binds.address);
  kvf_cuda_lane_free(opened, lane);
  assert_int_equal(fake_cuda_count().memory, KVF_CUDA_LANES_FIRST - 1);
  assert_int_equal(unmapped, 1);
  kvf_cuda_leave(&stay);
}
