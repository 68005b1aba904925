/* Ordering points on streams of NVIDIA GPUs. */
#include <unistd.h>

#include "../fake_cuda/gpu.h"
#include "memory/points.h"

#define BYTES ((size_t)1 << 16)
#define SEEDS (SANITIZED ? 20 : 100)
#define STOCK 64 /* events that there are at first: memory/cuda/gpu.c */

static const kvf_memory_ops *const cuda = &kvf_memory_cuda;
static kvf_cu_memory memory;
static kvf_cu_stream engine;

static void begin(void)
{
  if (memory == 0) {
    memory = kind_allocate(BYTES);
    engine = gpu_stream();
  }
  assert_true(fake_cuda_write(memory, (const uint8_t[BYTES]){0}, BYTES));
}

#define POINTS_TEST(name) TEST_WITH(name, begin, NULL)

static kvf_ordering_point point_on(kvf_cu_stream stream)
{
  return (kvf_ordering_point){.memory = KVF_MEMORY_CUDA, .handle = stream};
}

static void *mark_on(kvf_cu_stream stream)
{
  const kvf_ordering_point point = point_on(stream);
  void *mark = NULL;
  assert_int_equal(cuda->mark(&point, &mark), KVF_OK);
  assert_non_null(mark);
  return mark;
}

static void wait_for(void *mark)
{
  while (!cuda->is_complete(mark)) {
    (void)usleep(100);
  }
}

/* ---- what a point is behind ---- */

static void follow_work(kvf_cu_stream stream)
{
  uint64_t seed;
  begin();
  while (test_next_seed(SEEDS, &seed)) {
    const uint8_t value = (uint8_t)(seed + 1);
    fake_cuda_seed(seed);
    fake_cuda_stall_device(0, true);
    gpu_fill(stream, memory, BYTES, value);
    void *mark = mark_on(stream);
    assert_false(cuda->is_complete(mark));
    fake_cuda_stall_device(0, false);
    wait_for(mark);
    assert_true(gpu_all_are(memory, BYTES, value));
    cuda->unmark(mark);
  }
}

SEEDS_TEST(a_point_is_behind_the_work_of_its_stream)
{
  begin(); /* which makes the stream */
  follow_work(engine);
}

SEEDS_TEST(a_point_may_be_on_a_default_stream)
{
  for (uintptr_t handle = 0; handle <= KVF_CU_STREAM_PER_THREAD; handle++) {
    follow_work((kvf_cu_stream)handle);
  }
}

/* What comes after it waits for another stream, which stands still. */
POINTS_TEST(work_behind_a_point_does_not_matter)
{
  kvf_cu_stream other = gpu_stream();
  fake_cuda_stall(other, true);
  gpu_fill(engine, memory, BYTES, 1);
  void *mark = mark_on(engine);
  assert_int_equal(gpu->stream_wait_event(engine, gpu_record(other), 0), KVF_CUDA_SUCCESS);
  gpu_fill(engine, memory, BYTES, 2);
  void *behind = mark_on(engine);
  wait_for(mark);
  assert_true(gpu_all_are(memory, BYTES, 1));
  for (unsigned i = 0; i < 100; i++) {
    assert_true(cuda->is_complete(mark)); /* it stays so */
    assert_false(cuda->is_complete(behind));
  }
  fake_cuda_stall(other, false);
  wait_for(behind);
  assert_true(gpu_all_are(memory, BYTES, 2));
  cuda->unmark(mark);
  cuda->unmark(behind);
  assert_int_equal(gpu->stream_destroy(other), KVF_CUDA_SUCCESS);
}

POINTS_TEST(another_stream_does_not_matter)
{
  kvf_cu_stream other = gpu_stream();
  fake_cuda_stall(other, true);
  gpu_fill(other, memory, BYTES, 1);
  void *idle = mark_on(engine);
  void *busy = mark_on(other);
  wait_for(idle);
  assert_false(cuda->is_complete(busy));
  cuda->unmark(busy); /* before it is complete */
  cuda->unmark(idle);
  void *anew = mark_on(engine); /* by the same events */
  void *other_anew = mark_on(engine);
  wait_for(anew);
  wait_for(other_anew);
  cuda->unmark(anew);
  cuda->unmark(other_anew);
  fake_cuda_stall(other, false);
  kind_finish();
}

/* The default stream is that of the point's device, whichever context is current. */
POINTS_TEST(the_current_context_does_not_matter)
{
  kvf_cu_context before = NULL;
  kvf_cu_context after = NULL;
  fake_cuda_stall_device(0, true);
  gpu_enter(1);
  assert_int_equal(cuCtxGetCurrent(&before), KVF_CUDA_SUCCESS);
  void *mark = mark_on(NULL);
  assert_false(cuda->is_complete(mark));
  fake_cuda_stall_device(0, false);
  wait_for(mark);
  cuda->unmark(mark);
  assert_int_equal(cuCtxGetCurrent(&after), KVF_CUDA_SUCCESS);
  assert_ptr_equal(after, before);
  gpu_leave();
}

static void mark_in_thread(void *out)
{
  kvf_cu_context current = NULL;
  void **mark = out;
  *mark = mark_on(engine);
  assert_int_equal(cuCtxGetCurrent(&current), KVF_CUDA_SUCCESS);
  assert_null(current);
}

static void wait_in_thread(void *mark)
{
  wait_for(mark);
}

/* Threads of ours have no context. */
POINTS_TEST(any_thread_may_mark_and_ask)
{
  kind_side side;
  void *mark = NULL;
  kind_side_start(&side, mark_in_thread, &mark);
  kind_side_join(&side);
  kind_side_start(&side, wait_in_thread, mark);
  kind_side_join(&side);
  cuda->unmark(mark);
}

/* ---- what it takes ---- */

POINTS_TEST(a_mark_is_one_call_and_nobody_waits)
{
  const uint64_t violations = fake_cuda_violations();
  const uint64_t records = fake_cuda_calls("cuEventRecord");
  fake_cuda_forbid_waits(true);
  fake_cuda_capture(true);
  for (unsigned i = 0; i < 50; i++) {
    void *mark = mark_on(engine);
    wait_for(mark);
    cuda->unmark(mark);
  }
  fake_cuda_forbid_waits(false);
  fake_cuda_capture(false);
  assert_int_equal(fake_cuda_calls("cuEventRecord") - records, 50);
  assert_int_equal(fake_cuda_violations(), violations);
}

POINTS_TEST(events_are_used_again)
{
  static void *marks[100];
  const unsigned before = fake_cuda_count().events;
  const uint64_t made = fake_cuda_calls("cuEventCreate");
  for (unsigned i = 0; i < 1000; i++) {
    cuda->unmark(mark_on(engine));
  }
  assert_int_equal(fake_cuda_calls("cuEventCreate"), made);
  for (unsigned round = 0; round < 3; round++) {
    for (unsigned i = 0; i < 100; i++) {
      marks[i] = mark_on(engine);
    }
    for (unsigned i = 0; i < 100; i++) {
      cuda->unmark(marks[i]);
    }
    assert_int_equal(fake_cuda_count().events, before + 100 - STOCK);
  }
  kind_finish();
}

/* ---- points that there are none of ---- */

POINTS_TEST(a_device_that_is_not_open_has_no_points)
{
  static const uint32_t devices[] = {1, 2, 64, KVF_MEMORY_NO_DEVICE};
  for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
    kvf_ordering_point point = point_on(NULL);
    void *mark;
    point.device = devices[i];
    assert_int_equal(cuda->mark(&point, &mark), KVF_INVALID);
  }
}

static void expect_none_on(kvf_cu_stream stream)
{
  const kvf_ordering_point point = point_on(stream);
  const uint64_t records = fake_cuda_calls("cuEventRecord");
  void *mark;
  assert_int_equal(cuda->check_point(&point), KVF_INVALID);
  assert_int_equal(cuda->mark(&point, &mark), KVF_INVALID);
  assert_int_equal(fake_cuda_calls("cuEventRecord"), records);
}

/* What is put behind its work would be part of a graph. */
POINTS_TEST(a_stream_that_is_captured_has_no_points)
{
  const unsigned events = fake_cuda_count().events;
  fake_cuda_capture_stream(engine, true);
  expect_none_on(engine);
  fake_cuda_capture_stream(engine, false);
  void *mark = mark_on(engine);
  wait_for(mark);
  cuda->unmark(mark);
  assert_int_equal(fake_cuda_count().events, events);
}

/* The capture goes on, of which the mark would be the end. */
POINTS_TEST(the_legacy_stream_has_none_while_another_is_captured)
{
  kvf_cu_stream blocking;
  assert_int_equal(gpu->stream_create_with_priority(&blocking, KVF_CU_STREAM_DEFAULT, 0), KVF_CUDA_SUCCESS);
  const uint64_t violations = fake_cuda_violations();
  fake_cuda_capture_stream(blocking, true);
  expect_none_on(NULL);
  expect_none_on((kvf_cu_stream)KVF_CU_STREAM_LEGACY);
  void *mark = mark_on(engine);
  fake_cuda_capture_stream(blocking, false);
  wait_for(mark);
  cuda->unmark(mark);
  cuda->unmark(mark_on(NULL));
  assert_int_equal(fake_cuda_violations(), violations);
  assert_int_equal(gpu->stream_destroy(blocking), KVF_CUDA_SUCCESS);
}

POINTS_TEST(a_stream_that_the_driver_does_not_know_is_refused)
{
  const kvf_ordering_point point = {.memory = KVF_MEMORY_CUDA};
  void *mark;
  fake_cuda_fail("cuStreamIsCapturing", KVF_CUDA_ERROR_INVALID_HANDLE, 0, 1);
  assert_int_equal(cuda->mark(&point, &mark), KVF_TRANSFER_FAILED);
  assert_true(cuda->works(0));
}

POINTS_TEST(a_mark_that_is_refused_leaves_nothing)
{
  const kvf_ordering_point point = {.memory = KVF_MEMORY_CUDA};
  kvf_cu_stream other;
  void *mark;
  const unsigned before = fake_cuda_count().events;
  fake_cuda_fail("cuEventRecord", KVF_CUDA_ERROR_INVALID_HANDLE, 0, 300);
  for (unsigned i = 0; i < 299; i++) {
    assert_int_equal(cuda->mark(&point, &mark), KVF_TRANSFER_FAILED);
  }
  fake_cuda_fail("cuEventRecord", KVF_CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
  assert_int_equal(cuda->mark(&point, &mark), KVF_NO_MEMORY);
  gpu_enter(1);
  other = gpu_stream();
  const kvf_ordering_point foreign = point_on(other); /* of another device */
  assert_int_equal(cuda->mark(&foreign, &mark), KVF_TRANSFER_FAILED);
  gpu_leave();
  assert_int_equal(fake_cuda_count().events, before);
  assert_true(cuda->works(0));
  mark = mark_on(engine);
  wait_for(mark);
  cuda->unmark(mark);
}

POINTS_TEST(no_event_is_no_memory)
{
  static void *marks[1000];
  const kvf_ordering_point point = {.memory = KVF_MEMORY_CUDA};
  unsigned count = 0;
  fake_cuda_fail("cuEventCreate", KVF_CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
  while (count < 1000 && cuda->mark(&point, &marks[count]) == KVF_OK) {
    count++;
  }
  assert_true(count >= STOCK && count < 1000);
  assert_int_equal(cuda->mark(&point, &marks[count]), KVF_OK);
  for (unsigned i = 0; i <= count; i++) {
    cuda->unmark(marks[i]);
  }
}

/* ---- a driver that does not say ---- */

POINTS_TEST(an_error_is_not_completion)
{
  void *mark = mark_on(engine);
  wait_for(mark);
  fake_cuda_fail("cuEventQuery", KVF_CUDA_ERROR_INVALID_VALUE, 0, 3);
  for (unsigned i = 0; i < 3; i++) {
    assert_false(cuda->is_complete(mark));
  }
  assert_true(cuda->is_complete(mark));
  assert_true(cuda->works(0));
  cuda->unmark(mark);
}

/* Only a device that says nothing else for a second is lost: cuda_read_test.c. */
POINTS_TEST(an_unknown_error_that_passes_is_no_loss)
{
  fake_cuda_stall_device(0, true);
  void *mark = mark_on(engine);
  for (unsigned i = 0; i < 2; i++) {
    fake_cuda_fail("cuEventQuery", KVF_CUDA_ERROR_UNKNOWN, 0, 1);
    assert_false(cuda->is_complete(mark));
    assert_true(cuda->works(0));
    assert_false(cuda->is_complete(mark)); /* it answers */
    (void)usleep(i == 0 ? 1100000 : 0);
  }
  fake_cuda_stall_device(0, false);
  wait_for(mark);
  cuda->unmark(mark);
}

/* ---- among points of all kinds ---- */

POINTS_TEST(points_know_the_kind)
{
  kvf_point mine;
  const kvf_ordering_point point = point_on(engine);
  fake_cuda_stall_device(0, true);
  assert_int_equal(kvf_point_mark(&point, &mine), KVF_OK);
  assert_false(kvf_point_is_complete(&mine));
  fake_cuda_stall_device(0, false);
  while (!kvf_point_is_complete(&mine)) {
    (void)usleep(100);
  }
  kvf_point_unmark(&mine);
}
