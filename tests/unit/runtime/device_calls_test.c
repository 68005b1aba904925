/* What a load costs of the driver: calls, events, and the time of the engine's thread. The fake counts. */
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "../../memory_kind.h"
#include "../../sanitizer.h"
#include "fake_cuda.h"
#include "memory/cuda/load.h"
#include "pair.h"
#include "test.h"

/* Llama-3-70B: 64 blocks of 16 tokens, 80 layers, 64 KiB a block and layer. */
#define LAYERS 80
#define BLOCKS 64
#define POOL_BLOCKS (2 * BLOCKS)
#define LAYER_BYTES 65536
#define PATIENCE_MS 30000

typedef struct rank {
  kvf_node *node;
  void *bases[LAYERS];
  uint32_t regions_count;
} rank;

static rank producer;
static rank consumer;

static atomic_uint remarks; /* in the logs of nodes that are closed: that the kernels were refused */

static void hear(void *context, kvf_log_level level, const char *line)
{
  (void)context;
  if (level == KVF_LOG_WARN &&
      strstr(line, "device 0 does not run kvferry's kernels (CUDA_ERROR_JIT_COMPILER_") != NULL &&
      strstr(line, "libnvidia-ptxjitcompiler.so.1 must be there") != NULL) {
    (void)atomic_fetch_add(&remarks, 1);
  }
}

static const char *gather_bytes = "0"; /* the option */

static void open_rank(rank *one, uint32_t regions_count, uint32_t block_bytes)
{
  kvf_config config;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_region regions[LAYERS] = {0};
  kvf_config_init(&config);
  config.block_tokens = 16;
  config.log = hear;
  assert_int_equal(kvf_config_set(&config, "transports", "local", message), KVF_OK);
  assert_int_equal(kvf_config_set(&config, "listen", "127.0.0.1", message), KVF_OK);
  assert_int_equal(kvf_config_set(&config, "cuda_library", FAKE_CUDA_LIBRARY, message), KVF_OK);
  assert_int_equal(kvf_config_set(&config, "device_gather_bytes", gather_bytes, message), KVF_OK);
  assert_int_equal(kvf_config_identity(&config, "model", "llama"), KVF_OK);
  assert_int_equal(kvf_node_open(&config, &one->node, message), KVF_OK);
  one->regions_count = regions_count;
  for (uint32_t i = 0; i < regions_count; i++) {
    one->bases[i] = test_memory_allocate(KVF_MEMORY_CUDA, (size_t)POOL_BLOCKS * block_bytes);
    regions[i] = (kvf_region){.base = one->bases[i],
                              .stride_bytes = block_bytes,
                              .block_bytes = block_bytes,
                              .blocks = POOL_BLOCKS,
                              .heads = 1,
                              .heads_total = 1,
                              .memory = KVF_MEMORY_CUDA};
  }
  assert_int_equal(kvf_node_register(one->node, regions, regions_count), KVF_OK);
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_node_address(one->node, record, sizeof(record), &bytes), KVF_OK);
  assert_int_equal(kvf_node_set_ranks(one->node, record, &bytes, 1), KVF_OK);
}

static void close_rank(rank *one)
{
  kvf_node_close(one->node);
  for (uint32_t i = 0; i < one->regions_count; i++) {
    test_memory_free(one->bases[i]);
  }
}

static const kvf_ordering_point now = {.memory = KVF_MEMORY_CUDA}; /* on the default stream */

/* Every second block: none lies beside another. */
static void list_blocks(uint32_t blocks[BLOCKS], uint32_t first)
{
  for (uint32_t i = 0; i < BLOCKS; i++) {
    blocks[i] = first + 2 * i;
  }
}

static void wait_for_load(void)
{
  const uint64_t until_ms = pair_now_ms() + PATIENCE_MS;
  kvf_event event = {0};
  while (event.kind != KVF_EVENT_RELEASED) {
    if (kvf_node_poll(consumer.node, &event, 1) == 0) {
      assert_true(pair_now_ms() < until_ms);
      pair_sleep_ms(1);
    } else if (event.kind == KVF_EVENT_LOAD) {
      assert_int_equal(event.u.report.status, KVF_OK);
    }
  }
}

static kvf_lease publish(const kvf_ordering_point *after, char *ticket, size_t *ticket_bytes, kvf_prompt *prompt)
{
  uint32_t ids[BLOCKS];
  const uint32_t count = BLOCKS;
  const kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  kvf_lease lease;
  list_blocks(ids, 0);
  *prompt = pair_prompt(BLOCKS * 16, 1);
  assert_int_equal(kvf_lease_reserve(producer.node, BLOCKS, 0, &lease), KVF_OK);
  assert_int_equal(kvf_ticket_make(producer.node, &lease, &blocks, prompt, ticket, 8192, ticket_bytes), KVF_OK);
  assert_int_equal(kvf_lease_publish(producer.node, &lease, &blocks, prompt, after, 7), KVF_OK);
  return lease;
}

static void load(uint64_t id, const kvf_ordering_point *after)
{
  char ticket[8192];
  uint32_t ids[BLOCKS];
  const uint32_t count = BLOCKS;
  kvf_load_params params = {.request_id = id, .ticket = ticket, .after = after};
  list_blocks(ids, 1);
  params.destination = (kvf_blocks){.ids = ids, .counts = &count, .groups = 1};
  (void)publish(after, ticket, &params.ticket_bytes, &params.prompt);
  assert_int_equal(kvf_load_start(consumer.node, &params), KVF_OK);
  wait_for_load();
}

typedef struct calls {
  uint64_t batches;
  uint64_t copies;
  uint64_t kernels;
  uint64_t events;
  uint64_t violations;
  uint64_t pieces;
} calls;

static calls calls_until_now(void)
{
  kvf_stat stats[512];
  calls made = {
      fake_cuda_calls("cuMemcpyBatchAsync"), fake_cuda_calls("cuMemcpyAsync"), fake_cuda_calls("cuLaunchKernel"),
      fake_cuda_calls("cuEventRecord"),      fake_cuda_violations(),           0};
  size_t count = kvf_node_stats(consumer.node, stats, 512);
  for (size_t i = 0; i < count; i++) {
    made.pieces += strcmp(stats[i].name, "read_pieces") == 0 ? (uint64_t)stats[i].value : 0;
  }
  return made;
}

/* The second load: the first opens the link. */
static calls calls_of_a_load(uint32_t regions_count, uint32_t block_bytes)
{
  open_rank(&producer, regions_count, block_bytes);
  open_rank(&consumer, regions_count, block_bytes);
  load(1, &now);
  const calls before = calls_until_now();
  fake_cuda_forbid_waits(true);
  fake_cuda_capture(true);
  load(2, &now);
  fake_cuda_forbid_waits(false);
  fake_cuda_capture(false);
  const calls after = calls_until_now();
  close_rank(&consumer);
  close_rank(&producer);
  const calls made = {after.batches - before.batches,       after.copies - before.copies,
                      after.kernels - before.kernels,       after.events - before.events,
                      after.violations - before.violations, after.pieces - before.pieces};
  print_message("%u regions of %u bytes: %u batches, %u copies, %u kernels, %u events, %u pieces\n", regions_count,
                block_bytes, (unsigned)made.batches, (unsigned)made.copies, (unsigned)made.kernels,
                (unsigned)made.events, (unsigned)made.pieces);
  return made;
}

static bool has_kernels(void)
{
  return fake_cuda_defaults().has_compiler;
}

TEST(pieces_that_lie_apart_take_few_calls)
{
  const calls made = calls_of_a_load(LAYERS, LAYER_BYTES);
  assert_int_equal(made.pieces, LAYERS * BLOCKS);
  assert_true(has_kernels() ? made.batches == 0 && made.kernels <= 12 : made.batches <= 12 && made.kernels == 0);
  assert_int_equal(made.copies, 0);
  assert_true(made.events <= 14);
  assert_int_equal(made.violations, 0);
}

/* As the option says. */
TEST(pieces_are_a_drivers_where_the_kernel_is_not_to_copy)
{
  gather_bytes = "1";
  const calls made = calls_of_a_load(LAYERS, LAYER_BYTES);
  gather_bytes = "0";
  assert_true(made.batches > 0 && made.batches <= 12);
  assert_int_equal(made.kernels, 0);
  assert_true(made.events <= 14);
  assert_int_equal(made.violations, 0);
}

TEST(layers_that_lie_together_are_one_piece)
{
  const calls made = calls_of_a_load(1, LAYERS * LAYER_BYTES);
  assert_int_equal(made.pieces, BLOCKS);
  assert_true(made.batches <= 12);
  assert_int_equal(made.violations, 0);
}

/* 2,560 and more pieces a chunk: a longer batch breaks the fake, as it has broken drivers. */
TEST(small_pieces_are_a_kernels)
{
  atomic_store(&remarks, 0);
  const calls made = calls_of_a_load(LAYERS, 4096);
  assert_int_equal(atomic_load(&remarks), has_kernels() ? 0 : 2); /* one a registration */
  assert_int_equal(made.pieces, LAYERS * BLOCKS);
  assert_int_equal(made.batches, has_kernels() ? 0 : 4);
  assert_int_equal(made.kernels, has_kernels() ? 4 : 0);
  assert_int_equal(made.violations, 0);
}

/* ---- the engine's thread ---- */

#define TIMES 301

static uint64_t now_ns(void)
{
  struct timespec time;
  (void)clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

typedef struct cost {
  uint64_t publish_ns;
  uint64_t load_start_ns;
} cost;

static uint64_t less_of(uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

/* What the fastest calls take: others have waited for a core. That a publication records one event, and a load's start
 * another. */
static cost cost_of(uint64_t first_id, const kvf_ordering_point *after)
{
  cost fastest = {UINT64_MAX, UINT64_MAX};
  uint32_t ids[BLOCKS];
  const uint32_t count = 1;
  const kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  char ticket[8192];
  kvf_lease lease;
  list_blocks(ids, 0);
  for (unsigned i = 0; i < TIMES; i++) {
    kvf_load_params params = {.request_id = first_id + i,
                              .ticket = ticket,
                              .after = after,
                              .destination = blocks,
                              .prompt = pair_prompt(16, 1)};
    assert_int_equal(kvf_lease_reserve(producer.node, 1, 0, &lease), KVF_OK);
    assert_int_equal(
        kvf_ticket_make(producer.node, &lease, &blocks, &params.prompt, ticket, sizeof(ticket), &params.ticket_bytes),
        KVF_OK);
    fake_cuda_stall_device(0, true); /* so that all events are the calls' */
    const uint64_t events = fake_cuda_calls("cuEventRecord");
    const uint64_t since_ns = now_ns();
    assert_int_equal(kvf_lease_publish(producer.node, &lease, &blocks, &params.prompt, after, 7), KVF_OK);
    const uint64_t published_ns = now_ns();
    assert_int_equal(fake_cuda_calls("cuEventRecord") - events, after != NULL ? 1 : 0);
    const uint64_t starts_ns = now_ns();
    assert_int_equal(kvf_load_start(consumer.node, &params), KVF_OK);
    fastest.load_start_ns = less_of(fastest.load_start_ns, now_ns() - starts_ns);
    fastest.publish_ns = less_of(fastest.publish_ns, published_ns - since_ns);
    assert_true(after == NULL || fake_cuda_calls("cuEventRecord") - events == 2);
    fake_cuda_stall_device(0, false);
    wait_for_load();
    (void)kvf_lease_end(producer.node, &lease);
    assert_int_equal(kvf_lease_release(producer.node, lease.id), KVF_OK);
  }
  return fastest;
}

static void expect_cheap(const char *what, uint64_t without_ns, uint64_t with_ns)
{
  print_message("%s: %u ns, with an ordering point %u ns\n", what, (unsigned)without_ns, (unsigned)with_ns);
  assert_true(SANITIZED || with_ns < without_ns + 10000);
}

TEST(the_engines_thread_records_one_event_a_call)
{
  open_rank(&producer, 1, LAYER_BYTES);
  open_rank(&consumer, 1, LAYER_BYTES);
  load(1, &now);
  const cost without = cost_of(1000, NULL);
  const cost with = cost_of(2000, &now);
  expect_cheap("publish", without.publish_ns, with.publish_ns);
  expect_cheap("load start", without.load_start_ns, with.load_start_ns);
  close_rank(&consumer);
  close_rank(&producer);
}
