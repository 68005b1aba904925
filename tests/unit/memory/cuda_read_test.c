/* Steps of read() from memory of NVIDIA GPUs: how much they ask of the driver, and what they do when it refuses or
 * stands still, or the device is lost. */
#include <sys/socket.h>
#include <unistd.h>

#include "../fake_cuda/gpu.h"
#include "base/prng.h"
#include "child_process.h"
#include "memory/cuda/device_copy.h"

#define RUNS KVF_MEMORY_BATCH_RUNS_MAX
#define RUN_BYTES ((size_t)2048)
#define BYTES (RUNS * RUN_BYTES)
#define SEEDS (SANITIZED ? 10 : 60)
#define SOME_US 20000 /* in which what is not to happen would have happened */

static const kvf_memory_ops *const cuda = &kvf_memory_cuda;

/* Two regions of the same device, of which one is exported. */
static kvf_cu_memory theirs;
static kvf_cu_memory ours;
static uint8_t *theirs_view;
static uint8_t *ours_view;
static uint8_t *host;
static kvf_memory_import import;
static kvf_memory_batch batch;

static void begin(void)
{
  if (theirs == 0) {
    theirs = kind_allocate(BYTES);
    ours = kind_allocate(BYTES);
    theirs_view = fake_cuda_view(theirs);
    ours_view = fake_cuda_view(ours);
    host = allocate(BYTES);
    const kind_export shared = kind_share(theirs, BYTES);
    import = kind_import_own(&shared, BYTES);
  }
  kind_write(theirs_view, BYTES, 1);
  memset(ours_view, 0, BYTES);
  memset(host, 0, BYTES);
}

static void begin_batch(bool within)
{
  begin();
  void *to = within ? (void *)(uintptr_t)ours : host;
  kind_batch(&batch, &import, within ? cuda : &kvf_memory_host, to, RUN_BYTES, RUNS);
}

static uint8_t *target(bool within)
{
  return within ? ours_view : host;
}

static bool all_are(const uint8_t *at, size_t bytes, uint8_t value)
{
  return at[0] == value && memcmp(at, at + 1, bytes - 1) == 0;
}

static bool has_batches(void)
{
  return fake_cuda_defaults().version >= KVF_CUDA_VERSION_BATCH;
}

static bool has_kernels(void)
{
  return fake_cuda_defaults().has_compiler;
}

/* By which runs are asked for. */
static const char *call_of(bool within)
{
  return within && has_kernels() ? "cuLaunchKernel" : has_batches() ? "cuMemcpyBatchAsync" : "cuMemcpyAsync";
}

/* How often, if each call takes so many runs where it takes more than one. */
static unsigned calls_for(bool within, size_t runs_a_call)
{
  return strcmp(call_of(within), "cuMemcpyAsync") == 0 ? RUNS : (unsigned)(RUNS / runs_a_call);
}

static void expect_read(bool within)
{
  uint64_t bytes = 0;
  assert_int_equal(kind_step(getpid(), &batch, &bytes), KVF_OK);
  assert_int_equal(bytes, BYTES);
  assert_int_equal(fake_cuda_count().works, 0);
  assert_true(kind_is_written(target(within), BYTES, 1));
}

/* ---- what is asked of the driver ---- */

/* And nobody waits: the kernel was launched before. */
TEST(reads_of_a_full_batch_are_one_call)
{
  static const char *const calls[] = {"cuLaunchKernel", "cuMemcpyBatchAsync", "cuMemcpyAsync"};
  uint64_t made[3];
  begin_batch(true);
  const uint64_t records = fake_cuda_calls("cuEventRecord");
  const uint64_t violations = fake_cuda_violations();
  for (size_t i = 0; i < 3; i++) {
    made[i] = fake_cuda_calls(calls[i]);
  }
  fake_cuda_forbid_waits(true);
  expect_read(true);
  fake_cuda_forbid_waits(false);
  assert_int_equal(fake_cuda_violations(), violations);
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(fake_cuda_calls(calls[i]) - made[i],
                     strcmp(calls[i], call_of(true)) == 0 ? calls_for(true, RUNS) : 0);
  }
  assert_int_equal(fake_cuda_calls("cuEventRecord") - records, 1);
}

/* Of runs of so many bytes, from the import. */
static void expect_kernels(const kvf_memory_import *from, kvf_memory_gather gather, size_t bytes, uint64_t expected)
{
  uint64_t read;
  begin();
  kind_batch(&batch, from, cuda, (void *)(uintptr_t)ours, bytes, BYTES / bytes);
  batch.gather = gather;
  const uint64_t kernels = fake_cuda_calls("cuLaunchKernel");
  assert_int_equal(kind_step(getpid(), &batch, &read), KVF_OK);
  assert_int_equal(fake_cuda_calls("cuLaunchKernel") - kernels, has_kernels() ? expected : 0);
  assert_true(kind_is_written(ours_view, BYTES, 1));
}

/* A kernel has nothing to save there, and takes processors from the engine. */
TEST(reads_of_long_runs_are_no_kernels)
{
  static const kvf_memory_gather usual = {0};
  const kvf_memory_gather said = {.bytes = BYTES / 4};
  begin();
  for (size_t bytes = said.bytes; bytes <= BYTES; bytes *= 2) {
    expect_kernels(&import, said, bytes, 0);
  }
  expect_kernels(&import, said, said.bytes / 2, 1);
  _Static_assert(BYTES / 2 < KVF_CUDA_GATHER_BYTES, "which is the usual limit");
  expect_kernels(&import, usual, BYTES / 2, 1);
  kind_batch(&batch, &import, cuda, (void *)(uintptr_t)ours, 1000, 1); /* nor is one that is alone */
  const uint64_t kernels = fake_cuda_calls("cuLaunchKernel");
  uint64_t bytes;
  assert_int_equal(kind_step(getpid(), &batch, &bytes), KVF_OK);
  assert_int_equal(fake_cuda_calls("cuLaunchKernel"), kernels);
}

/* Which the memory's process names: here as if it were another's. */
TEST(reads_from_another_device_are_kernels_up_to_less)
{
  static const kvf_memory_gather usual = {0};
  begin();
  kind_export shared = kind_share(theirs, BYTES);
  kvf_memory_import other;
  const kind_export truth = shared;
  shared.bytes[0] ^= 1; /* of the device's UUID */
  assert_int_equal(kind_import(getpid(), 0, &shared, BYTES, &other), KVF_OK);
  expect_kernels(&other, usual, KVF_CUDA_GATHER_PEER_BYTES, 0);
  expect_kernels(&other, usual, KVF_CUDA_GATHER_PEER_BYTES / 2, 1);
  cuda->release(&other);
  cuda->unexport(truth.bytes);
}

TEST(reads_gather_as_they_are_told)
{
  static const struct {
    kvf_memory_gather gather;
    uint64_t kernels;
    unsigned blocks;
    unsigned threads;
  } rows[] = {{{.bytes = 1}, 0, 0, 0},
              {{.bytes = 4096}, 0, 0, 0},
              {{.bytes = 4097}, 1, KVF_CUDA_KERNEL_BLOCKS_MAX, KVF_CUDA_KERNEL_THREADS},
              {{.blocks = 3}, 1, 3, KVF_CUDA_KERNEL_THREADS},
              {{.blocks = 1024, .threads = 32}, 1, 1024, 32},
              {{.threads = 255}, 1, KVF_CUDA_KERNEL_BLOCKS_MAX, 224}};
  begin();
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    unsigned blocks;
    unsigned threads;
    expect_kernels(&import, rows[i].gather, 4096, rows[i].kernels);
    fake_cuda_last_launch(&blocks, &threads);
    assert_true(!has_kernels() || rows[i].kernels == 0 || (blocks == rows[i].blocks && threads == rows[i].threads));
  }
}

TEST(reads_say_what_they_took)
{
  for (unsigned within = 0; within < 2; within++) {
    kvf_read_work work = {.device_copy_ns = 1, .device_posting_ns = 1};
    uint64_t bytes;
    begin_batch(within == 1);
    batch.work = &work;
    assert_int_equal(cuda->read(getpid(), &batch, &bytes), KVF_OK);
    assert_true(work.device_copy_ns > work.device_posting_ns);
    assert_int_equal(work.device_posting_ns > 1, within == 1);
  }
}

TEST(reads_into_the_host_go_by_halves)
{
  begin_batch(false);
  const uint64_t records = fake_cuda_calls("cuEventRecord");
  expect_read(false);
  assert_int_equal(fake_cuda_calls("cuEventRecord") - records, BYTES / KVF_CUDA_HALF_BYTES);
}

TEST(reads_begin_where_the_batch_has_come_to)
{
  for (unsigned within = 0; within < 2; within++) {
    uint64_t bytes = 0;
    begin_batch(within == 1);
    batch.first = RUNS / 4; /* the last quarter of the memory, since the last runs come first */
    assert_int_equal(kind_step(getpid(), &batch, &bytes), KVF_OK);
    assert_int_equal(bytes, BYTES / 4 * 3);
    assert_true(kind_is_written(target(within == 1), BYTES / 4 * 3, 1));
    assert_true(all_are(target(within == 1) + BYTES / 4 * 3, BYTES / 4, 0));
  }
}

/* Of any length, from anywhere, also from the same place more than once. */
static void draw_batch(kvf_prng *prng, bool within, uint8_t *expected)
{
  size_t used = 0;
  kind_batch(&batch, &import, within ? cuda : &kvf_memory_host, NULL, 0, 0);
  memcpy(expected, target(within), BYTES);
  while (batch.count < 300) {
    const size_t bytes = 1 + kvf_prng_below(prng, kvf_prng_below(prng, 50) == 0 ? 600000 : 9000);
    const size_t past = kvf_prng_below(prng, BYTES - bytes);
    used += kvf_prng_below(prng, 20);
    if (used + bytes > BYTES) {
      break;
    }
    uint8_t *to = (within ? (uint8_t *)(uintptr_t)ours : host) + used;
    batch.from[batch.count] = (struct iovec){(void *)(uintptr_t)(import.base + past), bytes};
    batch.to[batch.count++] = (struct iovec){to, bytes};
    memcpy(expected + used, theirs_view + past, bytes);
    used += bytes;
  }
}

static void read_at_random(bool within)
{
  static uint8_t expected[BYTES];
  uint64_t seed;
  const uint64_t before = fake_cuda_violations();
  begin();
  while (test_next_seed(SEEDS, &seed)) {
    kvf_prng prng = {seed};
    uint64_t bytes = 0;
    fake_cuda_seed(seed);
    draw_batch(&prng, within, expected);
    fake_cuda_forbid_waits(true);
    fake_cuda_capture(true);
    kvf_status status = kind_step(getpid(), &batch, &bytes);
    fake_cuda_forbid_waits(false);
    fake_cuda_capture(false);
    assert_int_equal(status, KVF_OK);
    assert_memory_equal(target(within), expected, BYTES);
  }
  assert_int_equal(fake_cuda_violations(), before);
}

SEEDS_TEST(reads_within_a_device)
{
  read_at_random(true);
}

SEEDS_TEST(reads_into_the_host)
{
  read_at_random(false);
}

/* ---- a device that takes its time ---- */

/* Rule R3 of base/fence.h: no byte is read before it is asked for, and here all after the bytes have changed. */
TEST(reads_wait_for_the_device)
{
  for (unsigned within = 0; within < 2; within++) {
    kind_reading reading;
    begin_batch(within == 1);
    const uint64_t asked = fake_cuda_calls("cuEventQuery");
    const uint64_t records = fake_cuda_calls("cuEventRecord");
    kind_write(theirs_view, BYTES, 2);
    fake_cuda_stall_device(0, true);
    kind_reading_start(&reading, &batch);
    kind_wait_calls("cuEventQuery", asked + 20);
    sleep_us(SOME_US);
    assert_false(atomic_load(&reading.side.is_done));
    assert_int_equal(fake_cuda_calls("cuEventRecord") - records, within == 1 ? 1 : 2); /* of two halves meanwhile */
    kind_write(theirs_view, BYTES, 1);
    fake_cuda_stall_device(0, false);
    assert_int_equal(kind_reading_join(&reading), KVF_OK);
    assert_true(kind_is_written(target(within == 1), BYTES, 1));
  }
}

/* Its lists are the caller's again, and the copy is done by what it was given. */
TEST(reads_that_are_begun_need_no_batch)
{
  kvf_read_work work = {0};
  kvf_memory_step step;
  begin_batch(true);
  batch.work = &work;
  fake_cuda_stall_device(0, true);
  assert_int_equal(cuda->begin(&batch, NULL, &step), KVF_OK);
  memset(batch.to, 0xff, sizeof(batch.to));
  memset(batch.from, 0xff, sizeof(batch.from));
  batch.count = 0;
  fake_cuda_stall_device(0, false);
  assert_int_equal(cuda->finish(&step, &work), KVF_OK);
  assert_int_equal(step.bytes, BYTES);
  assert_int_equal(fake_cuda_count().works, 0);
  assert_true(kind_is_written(target(true), BYTES, 1));
  assert_true(work.device_copy_ns > 0);
}

/* The second waits in the same stream, and the first is done before it. */
TEST(a_read_is_begun_behind_another)
{
  kvf_read_work work = {0};
  kvf_memory_step first;
  kvf_memory_step second;
  begin_batch(true);
  batch.work = &work;
  fake_cuda_stall_device(0, true);
  assert_int_equal(cuda->begin(&batch, NULL, &first), KVF_OK);
  batch.first = batch.count - 2; /* its list is another */
  assert_int_equal(cuda->begin(&batch, &first, &second), KVF_OK);
  assert_ptr_equal(second.state, first.state);
  fake_cuda_stall_device(0, false);
  assert_int_equal(cuda->finish(&first, &work), KVF_OK);
  assert_true(kind_is_written(target(true), BYTES, 1));
  assert_int_equal(cuda->finish(&second, &work), KVF_OK);
  assert_int_equal(fake_cuda_count().works, 0);
  assert_int_equal(cuda->begin(&batch, NULL, &first), KVF_OK);
  fake_cuda_fail(call_of(true), KVF_CUDA_ERROR_INVALID_VALUE, 0, 1);
  assert_int_equal(cuda->begin(&batch, &first, &second), KVF_TRANSFER_FAILED);
  assert_int_equal(cuda->finish(&first, &work), KVF_OK);
  assert_int_equal(fake_cuda_count().works, 0);
}

TEST(reads_wait_although_no_event_is_recorded_at_once)
{
  for (unsigned within = 0; within < 2; within++) {
    for (unsigned after = 0; after < (within == 1 ? 1 : 3); after++) {
      begin_batch(within == 1);
      const uint64_t records = fake_cuda_calls("cuEventRecord");
      fake_cuda_fail("cuEventRecord", KVF_CUDA_ERROR_INVALID_VALUE, after, 5);
      expect_read(within == 1);
      assert_true(fake_cuda_calls("cuEventRecord") - records >= 6);
    }
  }
}

TEST(reads_wait_although_the_driver_does_not_say)
{
  static const kvf_cu_result errors[] = {KVF_CUDA_ERROR_INVALID_VALUE, KVF_CUDA_ERROR_UNKNOWN};
  for (unsigned i = 0; i < 4; i++) {
    const unsigned within = i % 2;
    kind_reading reading;
    begin_batch(within == 1);
    const uint64_t asked = fake_cuda_calls("cuEventQuery");
    fake_cuda_stall_device(0, true);
    fake_cuda_fail("cuEventQuery", errors[i / 2], 2, 5);
    kind_reading_start(&reading, &batch);
    kind_wait_calls("cuEventQuery", asked + 20);
    assert_false(atomic_load(&reading.side.is_done));
    fake_cuda_stall_device(0, false);
    assert_int_equal(kind_reading_join(&reading), KVF_OK);
    assert_true(kind_is_written(target(within == 1), BYTES, 1));
    assert_true(cuda->works(0));
  }
}

/* ---- a driver that refuses ---- */

/* Of the calls for a batch the one that comes after so many. */
static void expect_refused(bool within, unsigned after, kvf_cu_result error, kvf_status expected)
{
  uint64_t bytes = 99;
  begin_batch(within);
  fake_cuda_fail(call_of(within), error, after, 1);
  assert_int_equal(kind_step(getpid(), &batch, &bytes), expected);
  assert_int_equal(bytes, 0);
  memset(target(within), 0xaa, BYTES); /* it is ours again */
  assert_int_equal(fake_cuda_count().works, 0);
  kind_finish();
  sleep_us(SOME_US);
  assert_true(all_are(target(within), BYTES, 0xaa));
  assert_true(cuda->works(0));
}

TEST(reads_that_are_refused_write_nothing_afterwards)
{
  const unsigned calls = calls_for(true, RUNS);
  const unsigned host_calls = calls_for(false, KVF_CUDA_HALF_BYTES / RUN_BYTES);
  expect_refused(true, 0, KVF_CUDA_ERROR_OUT_OF_MEMORY, KVF_NO_MEMORY);
  expect_refused(true, 0, KVF_CUDA_ERROR_INVALID_VALUE, KVF_TRANSFER_FAILED);
  expect_refused(true, calls - 1, KVF_CUDA_ERROR_OUT_OF_MEMORY, KVF_NO_MEMORY);
  expect_refused(true, calls / 2, KVF_CUDA_ERROR_INVALID_VALUE, KVF_TRANSFER_FAILED);
  for (unsigned i = 0; i < 4; i++) {
    expect_refused(false, i * (host_calls / 4), KVF_CUDA_ERROR_INVALID_VALUE, KVF_TRANSFER_FAILED);
    expect_refused(false, (i + 1) * (host_calls / 4) - 1, KVF_CUDA_ERROR_OUT_OF_MEMORY, KVF_NO_MEMORY);
  }
  begin_batch(true);
  expect_read(true);
}

/* ---- many at a time ---- */

#define READERS (KVF_CUDA_LANES_MAX + 8)

static void *duplicate(const kvf_memory_batch *from)
{
  kvf_memory_batch *made = allocate(sizeof(*made));
  memcpy(made, from, sizeof(*made));
  return made;
}

/* While the device stands still, so many of them are under way, and no more; it goes on, and all are good. */
static void read_together(unsigned under_way)
{
  static kind_reading readings[READERS];
  const size_t bytes = BYTES / READERS;
  begin();
  fake_cuda_stall_device(0, true);
  const uint64_t copies = fake_cuda_calls("cuMemcpyBatchAsync");
  for (size_t i = 0; i < READERS; i++) {
    kind_batch(&batch, &import, cuda, (void *)(uintptr_t)(ours + i * bytes), bytes, 1);
    batch.from[0].iov_base = (uint8_t *)batch.from[0].iov_base + i * bytes;
    kind_reading_start(&readings[i], duplicate(&batch));
  }
  kind_wait_calls("cuMemcpyBatchAsync", copies + under_way);
  sleep_us(SOME_US);
  assert_int_equal(fake_cuda_calls("cuMemcpyBatchAsync"), copies + under_way);
  fake_cuda_stall_device(0, false);
  for (size_t i = 0; i < READERS; i++) {
    assert_int_equal(kind_reading_join(&readings[i]), KVF_OK);
    free((void *)(uintptr_t)readings[i].batch);
  }
  assert_true(kind_is_written(ours_view, bytes * READERS, 1));
}

/* First, while there are no other lanes. */
TEST(lanes_that_cannot_be_made_are_done_without)
{
  begin();
  const fake_cuda_open before = fake_cuda_count();
  static const char *const calls[] = {"cuStreamCreateWithPriority", "cuEventCreate", "cuMemHostAlloc"};
  fake_cuda_fail("cuMemHostRegister_v2", KVF_CUDA_ERROR_OUT_OF_MEMORY, 0, 1000); /* which is tried first */
  for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
    fake_cuda_fail(calls[i], KVF_CUDA_ERROR_OUT_OF_MEMORY, 0, 1000);
    read_together(KVF_CUDA_LANES_FIRST);
    fake_cuda_fail(calls[i], KVF_CUDA_SUCCESS, 0, 0);
    const fake_cuda_open after = fake_cuda_count();
    assert_int_equal(after.streams, before.streams);
    assert_int_equal(after.events, before.events);
    assert_int_equal(after.memory, before.memory);
  }
  fake_cuda_fail("cuMemHostRegister_v2", KVF_CUDA_SUCCESS, 0, 0);
}

TEST(more_lanes_are_made_when_they_are_needed)
{
  begin();
  const fake_cuda_open before = fake_cuda_count();
  for (unsigned i = 0; i < 2; i++) {
    read_together(KVF_CUDA_LANES_MAX);
    assert_int_equal(fake_cuda_count().streams, before.streams + KVF_CUDA_LANES_MAX - KVF_CUDA_LANES_FIRST);
  }
}

/* ---- in a process of its own ---- */

static void run_in_child(const char *mode)
{
  child_process child;
  assert_true(child_start(&child, mode, SOCK_STREAM));
  assert_int_equal(child_end(&child), 0);
}

/* The tests whose names begin like this, on a driver of which these are set; `other` may be NULL. */
static void run_reads_with(const char *variable, const char *value, const char *other, const char *other_value)
{
  assert_int_equal(setenv(variable, value, 1), 0);
  assert_int_equal(other == NULL ? 0 : setenv(other, other_value, 1), 0);
  assert_int_equal(setenv("KVFERRY_FAKE_CUDA_DELAY_NS", "2000000", 1), 0);
  run_in_child("reads_");
  assert_int_equal(unsetenv(variable), 0);
  assert_int_equal(other == NULL ? 0 : unsetenv(other), 0);
  assert_int_equal(unsetenv("KVFERRY_FAKE_CUDA_DELAY_NS"), 0);
}

/* The fake takes as many copies in a batch as drivers that have been seen to break, and no more. */
TEST(a_driver_without_a_compiler_copies)
{
  run_reads_with("KVFERRY_FAKE_CUDA_COMPILER", "0", NULL, NULL);
}

TEST(an_older_driver_has_kernels)
{
  run_reads_with("KVFERRY_FAKE_CUDA_VERSION", "12070", NULL, NULL);
}

TEST(an_older_driver_copies_one_by_one)
{
  run_reads_with("KVFERRY_FAKE_CUDA_VERSION", "12070", "KVFERRY_FAKE_CUDA_COMPILER", "0");
}

/* Nothing can be done any more, and nothing hangs. */
static void expect_lost(const kind_export *shared, void *mark)
{
  const kvf_region region = kind_region(ours, BYTES);
  const kvf_ordering_point point = {.memory = KVF_MEMORY_CUDA};
  const struct iovec its = {(void *)(uintptr_t)ours, 1};
  const struct iovec own = {host, 1};
  kind_export again;
  kvf_memory_import other;
  uint64_t number = 99;
  void *marked = NULL;
  assert_false(cuda->works(0));
  assert_true(cuda->works(1));
  assert_int_equal(kind_step(getpid(), &batch, &number), KVF_TRANSFER_FAILED);
  assert_int_equal(number, 0);
  assert_false(cuda->copy_in(0, &its, &own, 1));
  assert_false(cuda->copy_out(0, &own, &its, 1));
  assert_false(cuda->checksums(0, &its, 1, &number));
  assert_int_equal(cuda->check(&region, kind_message), KVF_TRANSFER_SETUP);
  assert_string_equal(kind_message, "CUDA device 0 is lost");
  assert_int_equal(cuda->export(&region, again.bytes, &again.length, kind_message), KVF_TRANSFER_SETUP);
  assert_string_equal(kind_message, "the device is lost");
  assert_int_equal(kind_import(getpid(), 0, shared, BYTES, &other), KVF_TRANSFER_SETUP);
  assert_string_equal(kind_message, "the device is lost");
  assert_int_equal(cuda->mark(&point, &marked), KVF_TRANSFER_FAILED);
  assert_false(cuda->is_complete(mark));
  cuda->unmark(mark);
  cuda->release(&import);
  cuda->unexport(shared->bytes);
}

/* With copies of all sorts under way. */
static void lose_while_reading(kvf_cu_result error)
{
  static kind_reading readings[6];
  const uint64_t records = fake_cuda_calls("cuEventRecord");
  fake_cuda_stall_device(0, true);
  for (size_t i = 0; i < 6; i++) { /* those that are left wait for a lane */
    begin_batch(i % 2 == 0);
    kind_reading_start(&readings[i], duplicate(&batch));
  }
  kind_wait_calls("cuEventRecord", records + 6);
  fake_cuda_break(0, error);
  for (size_t i = 0; i < 6; i++) {
    assert_int_equal(kind_reading_join(&readings[i]), KVF_TRANSFER_FAILED);
    assert_int_equal(readings[i].bytes, 0);
    free((void *)(uintptr_t)readings[i].batch);
  }
}

/* By what is asked next. */
static void lose_before(const char *what, void *mark)
{
  uint64_t bytes;
  fake_cuda_break(0, strcmp(what, "unknown") == 0 ? KVF_CUDA_ERROR_UNKNOWN : KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
  if (strcmp(what, "unknown") == 0) { /* it takes a second of that */
    assert_false(cuda->is_complete(mark));
    assert_true(cuda->works(0));
    while (cuda->works(0)) {
      assert_false(cuda->is_complete(mark));
      sleep_us(SOME_US);
    }
  } else if (strcmp(what, "read") == 0) {
    assert_int_equal(kind_step(getpid(), &batch, &bytes), KVF_TRANSFER_FAILED);
  } else {
    assert_false(cuda->is_complete(mark));
  }
}

static int lose(const char *how)
{
  const kvf_ordering_point point = {.memory = KVF_MEMORY_CUDA};
  void *mark = NULL;
  (void)alarm(60); /* it hangs */
  begin_batch(true);
  const kind_export shared = kind_share(theirs, BYTES);
  cuda->release(&import);
  import = kind_import_own(&shared, BYTES);
  kind_batch(&batch, &import, cuda, (void *)(uintptr_t)ours, RUN_BYTES, RUNS);
  fake_cuda_stall_device(0, true);
  assert_int_equal(cuda->mark(&point, &mark), KVF_OK);
  if (how[0] >= '0' && how[0] <= '9') {
    lose_while_reading((kvf_cu_result)strtoul(how, NULL, 10));
  } else {
    lose_before(how, mark);
  }
  expect_lost(&shared, mark);
  return 0;
}

TEST(a_device_that_is_lost_meanwhile_ends_all)
{
  static const kvf_cu_result errors[] = {KVF_CUDA_ERROR_ILLEGAL_ADDRESS, KVF_CUDA_ERROR_LAUNCH_FAILED,
                                         KVF_CUDA_ERROR_ECC_UNCORRECTABLE, KVF_CUDA_ERROR_CONTEXT_IS_DESTROYED,
                                         KVF_CUDA_ERROR_UNKNOWN};
  for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
    char mode[32];
    (void)snprintf(mode, sizeof(mode), "lose %u", errors[i]);
    run_in_child(mode);
  }
}

TEST(a_loss_is_noticed_by_what_comes_next)
{
  run_in_child("lose read");
  run_in_child("lose mark");
  run_in_child("lose unknown");
}

int main(int argc, char **argv)
{
  if (argc > 1 && strncmp(argv[1], "lose ", 5) == 0) {
    return lose(argv[1] + 5);
  }
  return test_run(argc > 1 ? argv[1] : NULL);
}
