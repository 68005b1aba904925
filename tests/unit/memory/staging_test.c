/* Staging: host memory whose blocks are copied to a pool's, in the order of the engine's stream. */
#include "kvferry/staging.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../fake_cuda/gpu.h"

#define BLOCK_BYTES 512u
#define STRIDE_BYTES ((size_t)1024)
#define POOL_BLOCKS 8u
#define STAGED_BLOCKS 4u
#define REGIONS 3u /* two of group 0, one of group 1 */
#define POOL_BYTES (STRIDE_BYTES * POOL_BLOCKS)
#define SEEDS (SANITIZED ? 20 : 100)
#define NONE KVF_BLOCK_NONE

static uint8_t host_pool[REGIONS][POOL_BYTES];
static kvf_cu_memory device_pool[REGIONS];
static kvf_cu_stream engine;
static kvf_ordering_point on; /* it */
static kvf_region pool[REGIONS];
static kvf_region staged[REGIONS];
static kvf_staging *staging;
static char message[KVF_MESSAGE_BYTES_MAX];

static kvf_region region_at(void *base, uint32_t group, kvf_memory_kind memory)
{
  return (kvf_region){.base = base,
                      .stride_bytes = STRIDE_BYTES,
                      .block_bytes = BLOCK_BYTES,
                      .blocks = POOL_BLOCKS,
                      .heads = 2,
                      .heads_total = 4,
                      .group = group,
                      .memory = memory};
}

/* Each byte says of which region and block it is. */
static uint8_t byte_of(uint32_t region, uint32_t block)
{
  return (uint8_t)(100 + 16 * region + block);
}

static void open_staging(void)
{
  assert_int_equal(kvf_staging_open(pool, REGIONS, STAGED_BLOCKS, "", &staging, message), KVF_OK);
  kvf_staging_regions(staging, staged);
  for (uint32_t i = 0; i < REGIONS; i++) {
    for (uint32_t block = 0; block < STAGED_BLOCKS; block++) {
      memset((uint8_t *)staged[i].base + staged[i].stride_bytes * block, byte_of(i, block), BLOCK_BYTES);
    }
  }
}

static void begin_on_host(void)
{
  memset(host_pool, 0, sizeof(host_pool));
  for (uint32_t i = 0; i < REGIONS; i++) {
    pool[i] = region_at(host_pool[i], i / 2, KVF_MEMORY_HOST);
  }
  open_staging();
}

static void begin_on_device(void)
{
  static const uint8_t zeros[POOL_BYTES];
  if (engine == NULL) {
    for (uint32_t i = 0; i < REGIONS; i++) {
      device_pool[i] = kind_allocate(POOL_BYTES);
    }
    engine = gpu_stream();
    on = (kvf_ordering_point){.memory = KVF_MEMORY_CUDA, .handle = engine};
  }
  for (uint32_t i = 0; i < REGIONS; i++) {
    assert_true(fake_cuda_write(device_pool[i], zeros, POOL_BYTES));
    pool[i] = region_at((void *)(uintptr_t)device_pool[i], i / 2, KVF_MEMORY_CUDA);
  }
  open_staging();
}

static void end(void)
{
  kvf_staging_close(staging);
  staging = NULL;
}

#define HOST_TEST(name) TEST_WITH(name, begin_on_host, end)
#define DEVICE_TEST(name) TEST_WITH(name, begin_on_device, end)

static kvf_status copy_ids(uint64_t number, const uint32_t from[4], const uint32_t to[4],
                           const kvf_ordering_point *after)
{
  static const uint32_t counts[] = {3, 1};
  const kvf_blocks source = {.ids = from, .counts = counts, .groups = 2};
  const kvf_blocks destination = {.ids = to, .counts = counts, .groups = 2};
  return kvf_staging_copy(staging, number, &source, &destination, after);
}

/* Blocks 3, 0 and 2 of the staging to 7, 1 and 0 of group 0; 1 to 5 of group 1. */
static const uint32_t from_ids[] = {3, 0, 2, 1};
static const uint32_t to_ids[] = {7, 1, 0, 5};

/* What the pool's block holds after that copy. */
static uint8_t expected(uint32_t region, uint32_t block)
{
  const uint32_t first = region < 2 ? 0 : 3;
  const uint32_t count = region < 2 ? 3 : 1;
  for (uint32_t i = first; i < first + count; i++) {
    if (to_ids[i] == block) {
      return byte_of(region, from_ids[i]);
    }
  }
  return 0;
}

static bool is_filled(const uint8_t *at, size_t bytes, uint8_t value)
{
  size_t i = 0;
  while (i < bytes && at[i] == value) {
    i++;
  }
  return i == bytes;
}

static void assert_copied(uint32_t region, const uint8_t *bytes)
{
  for (uint32_t block = 0; block < POOL_BLOCKS; block++) {
    const uint8_t *at = bytes + (size_t)STRIDE_BYTES * block;
    assert_true(is_filled(at, BLOCK_BYTES, expected(region, block)));
    assert_true(is_filled(at + BLOCK_BYTES, STRIDE_BYTES - BLOCK_BYTES, 0));
  }
}

static void assert_device_copied(void)
{
  static uint8_t bytes[POOL_BYTES];
  for (uint32_t i = 0; i < REGIONS; i++) {
    assert_true(fake_cuda_read(device_pool[i], bytes, POOL_BYTES));
    assert_copied(i, bytes);
  }
}

static void wait_copied(uint64_t number)
{
  while (kvf_staging_copied(staging) < number) {
    (void)usleep(100);
  }
}

/* ---- what it is ---- */

HOST_TEST(its_regions_are_like_the_pools_in_host_memory)
{
  for (uint32_t i = 0; i < REGIONS; i++) {
    assert_int_equal(staged[i].block_bytes, BLOCK_BYTES);
    assert_int_equal(staged[i].blocks, STAGED_BLOCKS);
    assert_int_equal(staged[i].heads, 2);
    assert_int_equal(staged[i].heads_total, 4);
    assert_int_equal(staged[i].group, i / 2);
    assert_int_equal(staged[i].memory, KVF_MEMORY_HOST);
  }
}

TEST(a_devices_is_pinned_and_given_back)
{
  begin_on_device();
  end();
  const unsigned before = fake_cuda_count().memory;
  begin_on_device();
  assert_int_not_equal(fake_cuda_count().memory, before);
  fake_cuda_forbid_waits(true); /* so is a copy from memory that is not pinned */
  const uint64_t violations = fake_cuda_violations();
  assert_int_equal(copy_ids(1, from_ids, to_ids, &on), KVF_OK);
  assert_int_equal(fake_cuda_violations(), violations);
  fake_cuda_forbid_waits(false);
  end();
  assert_int_equal(fake_cuda_count().memory, before);
}

/* ---- copies ---- */

HOST_TEST(a_copy_to_host_memory_is_complete_on_return)
{
  assert_int_equal(kvf_staging_copied(staging), 0);
  assert_int_equal(copy_ids(5, from_ids, to_ids, NULL), KVF_OK);
  assert_int_equal(kvf_staging_copied(staging), 5);
  for (uint32_t i = 0; i < REGIONS; i++) {
    assert_copied(i, host_pool[i]);
  }
}

HOST_TEST(positions_without_a_block_are_left_out)
{
  static const uint32_t from[] = {3, NONE, 2, 1};
  static const uint32_t to[] = {7, 1, NONE, 5};
  assert_int_equal(copy_ids(1, from, to, NULL), KVF_OK);
  assert_true(is_filled(host_pool[0] + 7 * STRIDE_BYTES, BLOCK_BYTES, byte_of(0, 3)));
  assert_true(is_filled(host_pool[0], 7 * STRIDE_BYTES, 0));
  assert_true(is_filled(host_pool[2] + 5 * STRIDE_BYTES, BLOCK_BYTES, byte_of(2, 1)));
}

static void copy_in_order(kvf_cu_stream stream)
{
  uint64_t seed;
  begin_on_device();
  uint64_t number = 0;
  const kvf_ordering_point after = {.memory = KVF_MEMORY_CUDA, .handle = stream};
  while (test_next_seed(SEEDS, &seed)) {
    fake_cuda_seed(seed);
    fake_cuda_stall_device(0, true);
    for (uint32_t i = 0; i < REGIONS; i++) { /* work on the blocks that is not done yet */
      gpu_fill(stream, device_pool[i], POOL_BYTES, 0);
    }
    number++;
    assert_int_equal(copy_ids(number, from_ids, to_ids, &after), KVF_OK);
    assert_int_equal(kvf_staging_copied(staging), number - 1);
    kvf_cu_event behind = gpu_record(stream);
    fake_cuda_stall_device(0, false);
    while (gpu->event_query(behind) != KVF_CUDA_SUCCESS) {
      (void)usleep(100);
    }
    assert_device_copied();
    wait_copied(number);
    assert_int_equal(gpu->event_destroy(behind), KVF_CUDA_SUCCESS);
  }
  end();
}

SEEDS_TEST(a_copy_is_in_its_streams_order)
{
  begin_on_device(); /* which makes the stream */
  end();
  copy_in_order(engine);
}

/* Engines whose stream nobody has chosen: PyTorch's, say. */
SEEDS_TEST(a_copy_may_be_on_a_default_stream)
{
  for (uintptr_t handle = 0; handle <= KVF_CU_STREAM_PER_THREAD; handle++) {
    copy_in_order((kvf_cu_stream)handle);
  }
}

DEVICE_TEST(copies_are_complete_in_their_order)
{
  kvf_cu_stream other = gpu_stream();
  const kvf_ordering_point aside = {.memory = KVF_MEMORY_CUDA, .handle = other};
  fake_cuda_stall(engine, true);
  assert_int_equal(copy_ids(1, from_ids, to_ids, &on), KVF_OK);
  assert_int_equal(copy_ids(2, from_ids, to_ids, &aside), KVF_OK);
  kvf_cu_event behind = gpu_record(other);
  assert_int_equal(gpu->event_synchronize(behind), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->event_destroy(behind), KVF_CUDA_SUCCESS);
  assert_int_equal(kvf_staging_copied(staging), 0);
  fake_cuda_stall(engine, false);
  wait_copied(2);
  end();
  assert_int_equal(gpu->stream_destroy(other), KVF_CUDA_SUCCESS);
}

/* More runs than the library gives a kind at a time. */
TEST(a_copy_may_be_of_any_length)
{
  enum { MANY = 700 };
  static uint8_t bytes[MANY][64];
  static uint32_t ids[MANY];
  const uint32_t count = MANY;
  const kvf_region region = {bytes, 64, 64, MANY, 1, 1, 0, KVF_MEMORY_HOST, 0};
  kvf_region mine;
  memset(bytes, 0, sizeof(bytes));
  assert_int_equal(kvf_staging_open(&region, 1, MANY, "", &staging, message), KVF_OK);
  kvf_staging_regions(staging, &mine);
  memset(mine.base, 3, sizeof(bytes));
  for (uint32_t i = 0; i < MANY; i++) {
    ids[i] = i;
  }
  const kvf_blocks blocks = {ids, &count, 1};
  assert_int_equal(kvf_staging_copy(staging, 1, &blocks, &blocks, NULL), KVF_OK);
  assert_true(is_filled(&bytes[0][0], sizeof(bytes), 3));
  end();
}

/* ---- what is wrong ---- */

TEST(calls_that_make_no_sense)
{
  static const uint32_t too_high[] = {STAGED_BLOCKS, 0, 0, 0};
  static const uint32_t beyond[] = {0, 0, 0, POOL_BLOCKS};
  const kvf_ordering_point elsewhere = {.memory = KVF_MEMORY_CUDA, .device = 1};
  begin_on_host();
  assert_int_equal(copy_ids(0, from_ids, to_ids, NULL), KVF_INVALID);
  assert_int_equal(copy_ids(1, too_high, to_ids, NULL), KVF_INVALID);
  assert_int_equal(copy_ids(1, from_ids, beyond, NULL), KVF_INVALID);
  assert_int_equal(copy_ids(1, from_ids, to_ids, &on), KVF_INVALID);
  assert_int_equal(copy_ids(1, from_ids, to_ids, NULL), KVF_OK);
  assert_int_equal(copy_ids(1, from_ids, to_ids, NULL), KVF_INVALID);
  end();
  begin_on_device();
  assert_int_equal(copy_ids(1, from_ids, to_ids, NULL), KVF_INVALID);
  assert_int_equal(copy_ids(1, from_ids, to_ids, &elsewhere), KVF_INVALID);
  end();
  kvf_staging_close(NULL);
}

/* Nothing has been begun, and the next is as good as ever. */
DEVICE_TEST(a_copy_is_not_captured)
{
  const uint64_t violations = fake_cuda_violations();
  fake_cuda_capture_stream(engine, true);
  assert_int_equal(copy_ids(1, from_ids, to_ids, &on), KVF_INVALID);
  fake_cuda_capture_stream(engine, false);
  assert_int_equal(fake_cuda_violations(), violations);
  assert_int_equal(copy_ids(1, from_ids, to_ids, &on), KVF_OK);
  wait_copied(1);
  assert_device_copied();
}

TEST(pools_that_it_cannot_be_for)
{
  begin_on_host();
  end();
  assert_int_equal(kvf_staging_open(pool, 0, 1, "", &staging, message), KVF_INVALID);
  assert_int_equal(kvf_staging_open(pool, REGIONS, 0, "", &staging, message), KVF_INVALID);
  pool[1].memory = (kvf_memory_kind)9;
  assert_int_equal(kvf_staging_open(pool, REGIONS, 1, "", &staging, NULL), KVF_INVALID);
  assert_null(staging);
}

DEVICE_TEST(a_copy_that_a_device_refuses_is_never_complete)
{
  assert_int_equal(copy_ids(1, from_ids, to_ids, &on), KVF_OK);
  wait_copied(1);
  fake_cuda_fail("cuMemcpyBatchAsync", KVF_CUDA_ERROR_INVALID_VALUE, 0, 1);
  assert_int_equal(copy_ids(2, from_ids, to_ids, &on), KVF_TRANSFER_FAILED);
  assert_int_equal(copy_ids(3, from_ids, to_ids, &on), KVF_INVALID);
  kind_finish();
  assert_int_equal(kvf_staging_copied(staging), 1);
}

DEVICE_TEST(copies_that_are_not_complete_have_a_limit)
{
  static const uint32_t none[] = {NONE, NONE, NONE, NONE};
  fake_cuda_stall(engine, true);
  for (uint64_t number = 1; number <= KVF_STAGING_COPIES_MAX; number++) {
    assert_int_equal(copy_ids(number, none, to_ids, &on), KVF_OK);
  }
  assert_int_equal(copy_ids(KVF_STAGING_COPIES_MAX + 1, none, to_ids, &on), KVF_LIMIT);
  fake_cuda_stall(engine, false);
  wait_copied(KVF_STAGING_COPIES_MAX);
  assert_int_equal(copy_ids(KVF_STAGING_COPIES_MAX + 1, from_ids, to_ids, &on), KVF_OK);
  end(); /* waits for it */
  assert_device_copied();
}
