/* An engine's own memory, adopted: pointers and driver calls see the same bytes, and another process has them by a
 * handle. */
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "child_process.h"
#include "gpu.h"
#include "memory/memory.h"

#define PAGE ((size_t)4096)
#define PAGES 6
#define BYTES (3 * PAGE)       /* of the pool */
#define START (PAGE + 100)     /* where it begins: neither begins nor ends with a page */
#define ADOPTED (4 * PAGE)     /* the pages that hold it */
#define AFTER (PAGE + ADOPTED) /* the first page behind them */

static uint8_t *pages; /* of the engine's allocator, and in them the pool */
static uint8_t *pool;

static uint8_t pattern(size_t i)
{
  return (uint8_t)(i * 7 + i / PAGE);
}

static void make_pool(void)
{
  pages = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(pages != MAP_FAILED);
  pool = pages + START;
  for (size_t i = 0; i < PAGES * PAGE; i++) {
    pages[i] = pattern(i);
  }
}

static void begin(void)
{
  gpu_begin(1, false);
  make_pool();
}

static void end(void)
{
  gpu_begin(1, false); /* what is adopted goes back to where it was */
  assert_int_equal(munmap(pages, PAGES * PAGE), 0);
}

static void adopt_pool(void)
{
  assert_int_equal(fake_cuda_adopt(pool, BYTES), KVF_CUDA_SUCCESS);
}

static kvf_cu_memory address_of(const void *at)
{
  return (uintptr_t)at;
}

static void copy_now(kvf_cu_memory to, kvf_cu_memory from, size_t bytes)
{
  gpu_copy(NULL, to, from, bytes);
  assert_int_equal(cuStreamSynchronize(NULL), KVF_CUDA_SUCCESS);
}

static unsigned memory_type(const void *at)
{
  uint64_t value = 0;
  void *data[] = {&value};
  unsigned which = KVF_CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  assert_int_equal(gpu->pointer_get_attributes(1, &which, data, address_of(at)), KVF_CUDA_SUCCESS);
  return (unsigned)value;
}

TEST(all_bytes_of_its_pages_stay)
{
  begin();
  adopt_pool();
  for (size_t i = 0; i < PAGES * PAGE; i++) {
    assert_int_equal(pages[i], pattern(i));
  }
  end();
}

TEST(it_is_a_devices_memory_and_what_lies_beside_it_is_not)
{
  begin();
  assert_int_equal(memory_type(pool), 0);
  adopt_pool();
  assert_int_equal(memory_type(pool), KVF_CU_MEMORYTYPE_DEVICE);
  assert_int_equal(memory_type(pages + PAGE - 1), 0);
  assert_int_equal(memory_type(pages + AFTER), 0);
  kvf_cu_memory base;
  size_t bytes;
  assert_int_equal(gpu->mem_get_address_range(&base, &bytes, address_of(pool + 5)), KVF_CUDA_SUCCESS);
  assert_int_equal(base, address_of(pages + PAGE));
  assert_int_equal(bytes, ADOPTED);
  end();
}

TEST(the_library_takes_it_for_a_devices)
{
  begin();
  char message[KVF_MESSAGE_BYTES_MAX];
  uint8_t exported[KVF_MEMORY_EXPORT_BYTES_MAX];
  size_t bytes;
  const kvf_region region = {
      .base = pool, .stride_bytes = BYTES / 4, .block_bytes = BYTES / 4, .blocks = 4, .memory = KVF_MEMORY_CUDA};
  assert_int_equal(kvf_memory_cuda.check(&region, message), KVF_INVALID);
  adopt_pool();
  assert_int_equal(kvf_memory_cuda.check(&region, message), KVF_OK);
  assert_int_equal(kvf_memory_cuda.export(&region, exported, &bytes, message), KVF_OK);
  kvf_memory_cuda.unexport(exported);
  end();
}

TEST(pointers_and_the_device_see_each_others_writes)
{
  begin();
  adopt_pool();
  const kvf_cu_memory other = gpu_allocate(BYTES);
  memset(pool, 5, BYTES);
  copy_now(other, address_of(pool), BYTES);
  assert_true(gpu_all_are(other, BYTES, 5));
  gpu_fill(NULL, other, BYTES, 6);
  copy_now(address_of(pool + 10), other, BYTES - 20);
  assert_int_equal(pool[9], 5);
  assert_int_equal(pool[10], 6);
  assert_int_equal(pool[BYTES - 11], 6);
  assert_int_equal(pool[BYTES - 10], 5);
  end();
}

TEST(what_was_adopted_may_be_adopted_again)
{
  begin();
  adopt_pool();
  adopt_pool();
  assert_int_equal(fake_cuda_adopt(pool + 10, 1), KVF_CUDA_SUCCESS);
  assert_int_equal(fake_cuda_count().memory, 1);
  assert_int_equal(fake_cuda_adopt(pages, BYTES), KVF_CUDA_ERROR_ALREADY_MAPPED);
  assert_int_equal(fake_cuda_adopt(pages + AFTER - 1, 2), KVF_CUDA_ERROR_ALREADY_MAPPED);
  assert_int_equal(fake_cuda_adopt(pages, 100), KVF_CUDA_SUCCESS);
  assert_int_equal(fake_cuda_count().memory, 2);
  end();
}

TEST(what_cannot_be_adopted)
{
  begin();
  assert_int_equal(mprotect(pages + 2 * PAGE, PAGE, PROT_NONE), 0);
  assert_int_equal(fake_cuda_adopt(pool, BYTES), KVF_CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(fake_cuda_adopt(pool, 0), KVF_CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(fake_cuda_count().memory, 0);
  assert_int_equal(pool[0], pattern(START));
  gpu_leave();
  assert_int_equal(fake_cuda_adopt(pool, 1), KVF_CUDA_ERROR_INVALID_CONTEXT);
  end();
}

static void expect_given_back(void)
{
  const kvf_cu_memory old = address_of(pages + PAGE);
  assert_int_equal(memory_type(pool), 0);
  for (size_t i = 0; i < PAGES * PAGE; i++) {
    assert_int_equal(pages[i], i == START ? 9 : pattern(i));
  }
  assert_int_not_equal(gpu_allocate(ADOPTED), old); /* the addresses are the engine's */
}

TEST(freed_memory_is_the_engines_again)
{
  begin();
  adopt_pool();
  pool[0] = 9;
  assert_int_equal(cuMemFree_v2(address_of(pages + PAGE)), KVF_CUDA_SUCCESS);
  expect_given_back();
  end();
}

TEST(the_end_of_the_context_gives_it_back)
{
  begin();
  adopt_pool();
  pool[0] = 9;
  gpu_begin(2, false);
  expect_given_back();
  end();
}

/* ---- another process ---- */

/* Adopts, and writes by a pointer what it is told to. */
static int lend_to_parent(void)
{
  kvf_cu_ipc_mem_handle handle;
  uint8_t value;
  begin();
  adopt_pool();
  if (gpu->ipc_get_mem_handle(&handle, address_of(pool)) != KVF_CUDA_SUCCESS ||
      !child_send(STDIN_FILENO, &handle, sizeof(handle))) {
    return 1;
  }
  while (child_receive(STDIN_FILENO, &value, 1)) {
    memset(pool, value, BYTES);
    if (!child_send(STDIN_FILENO, &value, 1)) {
      return 1;
    }
  }
  return 0;
}

static child_process child;

static void let_write(uint8_t value)
{
  assert_true(child_send(child.channel, &value, 1));
  assert_true(child_receive(child.channel, &value, 1));
}

TEST(another_process_has_it_by_its_handle)
{
  kvf_cu_ipc_mem_handle handle;
  kvf_cu_memory at = 0;
  gpu_begin(1, false);
  assert_true(child_start(&child, "lends", SOCK_STREAM));
  assert_true(child_receive(child.channel, &handle, sizeof(handle)));
  assert_int_equal(gpu->ipc_open_mem_handle(&at, handle, KVF_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), KVF_CUDA_SUCCESS);
  const kvf_cu_memory its_pool = at + START % PAGE;
  assert_int_equal(gpu_byte(its_pool), pattern(START));
  const kvf_cu_memory own = gpu_allocate(BYTES);
  for (uint8_t value = 1; value < 4; value++) {
    let_write(value);
    copy_now(own, its_pool, BYTES);
    assert_true(gpu_all_are(own, BYTES, value));
  }
  assert_int_equal(gpu_byte(its_pool - 1), pattern(START - 1));
  assert_true(child_kill(&child));
  copy_now(own, its_pool, BYTES);
  assert_true(gpu_all_are(own, BYTES, FAKE_CUDA_POISON));
}

int main(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], "lends") == 0) {
    return lend_to_parent();
  }
  return test_run(argc > 1 ? argv[1] : NULL);
}
