/* What a load costs of the driver: calls, events, and the time of the engine's thread. The fake counts. */
#include "base/time.h"
#include "fake_cuda.h"
#include "pair.h"
#include "test.h"
#include "transport/thread.h"

/* Llama-3-70B: 64 blocks of 16 tokens, 80 layers, 64 KiB a block and layer. */
#define LAYERS 80
#define BLOCKS 64 /* the producer's are every second of its pool, so that none lies beside another */
#define LAYER_BYTES 65536
#define PATIENCE_US UINT64_C(30000000)

static const char *gather_bytes = "0"; /* the option */

static void open_ranks(uint32_t regions, uint32_t block_bytes)
{
  char numbers[2][16];
  const pair_option options[] = {{"transports", "local"},
                                 {"listen", "127.0.0.1"},
                                 {"cuda_library", FAKE_CUDA_LIBRARY},
                                 {"device_gather_bytes", gather_bytes},
                                 {"memory", "cuda"},
                                 {"blocks", "128"},
                                 {"regions", numbers[0]},
                                 {"block_bytes", numbers[1]},
                                 {NULL, NULL}};
  (void)snprintf(numbers[0], sizeof(numbers[0]), "%u", regions);
  (void)snprintf(numbers[1], sizeof(numbers[1]), "%u", block_bytes);
  pair_open(options);
}

static unsigned were_kernels_refused(pair_node *n)
{
  return pair_logged(n, "device 0 does not run kvferry's kernels (CUDA_ERROR_JIT_COMPILER_",
                     "libnvidia-ptxjitcompiler.so.1 must be there");
}

static const kvf_ordering_point now = {.memory = KVF_MEMORY_CUDA}; /* on the default stream */

static void wait_for_load(uint64_t id)
{
  pair_result result = {0};
  assert_true(pair_poll_load(&p.consumer, id, PATIENCE_US, &result));
  assert_int_equal(result.report.status, KVF_OK);
}

static void load(uint64_t id, const kvf_ordering_point *after)
{
  pair_ticket ticket;
  pair_reserve(&p.producer, 0, BLOCKS, 1, &ticket);
  assert_int_equal(pair_publish_after(&p.producer, &ticket, after), KVF_OK);
  assert_int_equal(pair_load_after(&p.consumer, &ticket, id, BLOCKS, after, 0), KVF_OK);
  wait_for_load(id);
}

typedef struct calls {
  uint64_t batches;
  uint64_t copies;
  uint64_t kernels;
  uint64_t events;
  uint64_t violations;
  uint64_t pieces;
  unsigned refused; /* of the two ranks: whose log says that the device takes no kernels */
} calls;

static calls calls_until_now(void)
{
  return (calls){fake_cuda_calls("cuMemcpyBatchAsync"),
                 fake_cuda_calls("cuMemcpyAsync"),
                 fake_cuda_calls("cuLaunchKernel"),
                 fake_cuda_calls("cuEventRecord"),
                 fake_cuda_violations(),
                 pair_stat(&p.consumer, "read_pieces", ""),
                 0};
}

/* The second load: the first opens the link. */
static calls calls_of_a_load(uint32_t regions_count, uint32_t block_bytes)
{
  open_ranks(regions_count, block_bytes);
  load(1, &now);
  const calls before = calls_until_now();
  fake_cuda_forbid_waits(true);
  fake_cuda_capture(true);
  load(2, &now);
  fake_cuda_forbid_waits(false);
  fake_cuda_capture(false);
  const calls after = calls_until_now();
  const unsigned refused = were_kernels_refused(&p.producer) + were_kernels_refused(&p.consumer);
  pair_close();
  const calls made = {after.batches - before.batches,
                      after.copies - before.copies,
                      after.kernels - before.kernels,
                      after.events - before.events,
                      after.violations - before.violations,
                      after.pieces - before.pieces,
                      refused};
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
  const calls made = calls_of_a_load(LAYERS, 4096);
  assert_int_equal(made.refused, has_kernels() ? 0 : 2);
  assert_int_equal(made.pieces, LAYERS * BLOCKS);
  assert_int_equal(made.batches, has_kernels() ? 0 : 4);
  assert_int_equal(made.kernels, has_kernels() ? 4 : 0);
  assert_int_equal(made.violations, 0);
}

/* ---- the engine's thread ---- */

#define TIMES 301

typedef struct cost {
  uint64_t publish_ns;
  uint64_t load_start_ns;
} cost;

/* What the fastest calls take: others have waited for a core. That a publication records one event, and a load's start
 * another. */
static cost cost_of(uint64_t first_id, const kvf_ordering_point *after)
{
  cost fastest = {UINT64_MAX, UINT64_MAX};
  const uint64_t events_each = after != NULL ? 1 : 0;
  for (unsigned i = 0; i < TIMES; i++) {
    pair_ticket ticket;
    pair_reserve(&p.producer, 0, 1, 1, &ticket);
    fake_cuda_stall_device(0, true); /* so that all events are the calls' */
    const uint64_t events = fake_cuda_calls("cuEventRecord");
    const uint64_t since_ns = kvf_clock_now();
    assert_int_equal(pair_publish_after(&p.producer, &ticket, after), KVF_OK);
    fastest.publish_ns = kvf_time_min(fastest.publish_ns, kvf_clock_now() - since_ns);
    assert_int_equal(fake_cuda_calls("cuEventRecord") - events, events_each);
    const uint64_t starts_ns = kvf_clock_now();
    assert_int_equal(pair_load_after(&p.consumer, &ticket, first_id + i, 0, after, 0), KVF_OK);
    fastest.load_start_ns = kvf_time_min(fastest.load_start_ns, kvf_clock_now() - starts_ns);
    assert_true(after == NULL || fake_cuda_calls("cuEventRecord") - events == 2);
    fake_cuda_stall_device(0, false);
    wait_for_load(first_id + i);
    pair_take_back(&p.producer, &ticket);
  }
  return fastest;
}

static void expect_cheap(const char *what, uint64_t without_ns, uint64_t with_ns)
{
  print_message("%s: %u ns, with an ordering point %u ns\n", what, (unsigned)without_ns, (unsigned)with_ns);
  assert_true(SANITIZED || with_ns < without_ns + 10000);
}

PAIR_TEST(the_engines_thread_records_one_event_a_call)
{
  open_ranks(1, LAYER_BYTES);
  load(1, &now);
  const cost without = cost_of(1000, NULL);
  const cost with = cost_of(2000, &now);
  expect_cheap("publish", without.publish_ns, with.publish_ns);
  expect_cheap("load start", without.load_start_ns, with.load_start_ns);
}
