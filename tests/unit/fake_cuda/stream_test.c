/* When work on streams is done: as late, as early and as much out of order as CUDA allows it, and never earlier. */
#include <pthread.h>

#include "gpu.h"

#define SEEDS 200
#define BYTES ((size_t)64 * 1024)

SEEDS_TEST(work_of_a_stream_is_done_in_order_and_of_two_in_any)
{
  uint64_t seed;
  unsigned firsts[2] = {0, 0};
  while (test_next_seed(SEEDS, &seed)) {
    gpu_begin(seed, true);
    const kvf_cu_memory both = gpu_allocate(BYTES);
    kvf_cu_stream a = gpu_stream();
    kvf_cu_stream b = gpu_stream();
    gpu_fill(a, both, BYTES, 1);
    gpu_fill(a, both, BYTES, 2);
    kvf_cu_event a_done = gpu_record(a);
    gpu_fill(b, both, BYTES, 3);
    kvf_cu_event b_done = gpu_record(b);
    while (gpu->event_query(a_done) == KVF_CUDA_ERROR_NOT_READY &&
           gpu->event_query(b_done) == KVF_CUDA_ERROR_NOT_READY) {
      assert_true(fake_cuda_step());
    }
    firsts[gpu->event_query(a_done) == KVF_CUDA_SUCCESS ? 0 : 1]++;
    gpu_finish();
    assert_int_not_equal(gpu_byte(both), 1); /* 2 came after it, on the same stream */
  }
  assert_true(!gpu_had_all_seeds() || (firsts[0] > 0 && firsts[1] > 0));
}

SEEDS_TEST(an_event_is_complete_when_all_before_it_is_and_not_before)
{
  uint64_t seed;
  unsigned half_done = 0;
  while (test_next_seed(SEEDS, &seed)) {
    gpu_begin(seed, true);
    const kvf_cu_memory from = gpu_allocate(BYTES);
    const kvf_cu_memory to = gpu_allocate(BYTES);
    kvf_cu_stream stream = gpu_stream();
    gpu_fill(stream, from, BYTES, 7);
    gpu_batch(stream, to, from, BYTES / 16, 16, KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    kvf_cu_event done = gpu_record(stream);
    while (gpu->event_query(done) == KVF_CUDA_ERROR_NOT_READY) {
      half_done += gpu_byte(to) == 7 && gpu_byte(to + BYTES - 1) == 0 ? 1 : 0;
      assert_true(fake_cuda_step());
    }
    assert_int_equal(gpu->event_query(done), KVF_CUDA_SUCCESS);
    assert_true(gpu_all_are(to, BYTES, 7));
  }
  assert_true(!gpu_had_all_seeds() || (half_done > 0));
}

TEST(an_event_that_was_never_recorded_is_complete)
{
  gpu_begin(1, true);
  kvf_cu_stream stream = gpu_stream();
  kvf_cu_event never = gpu_event();
  assert_int_equal(gpu->event_query(never), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->event_synchronize(never), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->stream_wait_event(stream, never, 0), KVF_CUDA_SUCCESS);
  assert_int_equal(fake_cuda_count().works, 0);
}

/* What waits for an event waits for what it captured at that moment, not for what it captures later. */
TEST(an_event_that_is_recorded_again_is_another)
{
  gpu_begin(1, true);
  kvf_cu_stream first = gpu_stream();
  kvf_cu_stream second = gpu_stream();
  kvf_cu_stream waits = gpu_stream();
  fake_cuda_stall(first, true);
  kvf_cu_event event = gpu_record(first);
  assert_int_equal(gpu->stream_wait_event(waits, event, 0), KVF_CUDA_SUCCESS);
  kvf_cu_event after = gpu_record(waits);
  assert_int_equal(gpu->event_record(event, second), KVF_CUDA_SUCCESS);
  gpu_finish();
  assert_int_equal(gpu->event_query(event), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->event_query(after), KVF_CUDA_ERROR_NOT_READY);
  fake_cuda_stall(first, false);
  gpu_finish();
  assert_int_equal(gpu->event_query(after), KVF_CUDA_SUCCESS);
}

SEEDS_TEST(a_stream_waits_for_the_event_of_another)
{
  uint64_t seed;
  while (test_next_seed(SEEDS, &seed)) {
    gpu_begin(seed, true);
    const kvf_cu_memory from = gpu_allocate(BYTES);
    const kvf_cu_memory to = gpu_allocate(BYTES);
    kvf_cu_stream writes = gpu_stream();
    kvf_cu_stream copies = gpu_stream();
    gpu_fill(writes, from, BYTES, 5);
    kvf_cu_event written = gpu_record(writes);
    assert_int_equal(gpu->stream_wait_event(copies, written, 0), KVF_CUDA_SUCCESS);
    assert_int_equal(gpu->event_destroy(written), KVF_CUDA_SUCCESS); /* what waits for it goes on waiting */
    gpu_copy(copies, to, from, BYTES);
    gpu_finish();
    assert_true(gpu_all_are(to, BYTES, 5));
  }
}

/* Without the event it is another matter, which a test must be able to see. */
SEEDS_TEST(a_stream_that_does_not_wait_reads_what_is_not_written_yet)
{
  uint64_t seed;
  unsigned early = 0;
  while (test_next_seed(SEEDS, &seed)) {
    gpu_begin(seed, true);
    const kvf_cu_memory from = gpu_allocate(BYTES);
    const kvf_cu_memory to = gpu_allocate(BYTES);
    gpu_fill(gpu_stream(), from, BYTES, 5);
    gpu_copy(NULL, to, from, BYTES); /* the default stream waits for none */
    gpu_finish();
    early += gpu_all_are(to, BYTES, 5) ? 0 : 1;
  }
  assert_true(!gpu_had_all_seeds() || (early > SEEDS / 10));
}

/* How many sources of a batch were read before the kernel that writes them, on the same stream. */
static unsigned early_reads(uint64_t seed, unsigned order)
{
  unsigned early = 0;
  gpu_begin(seed, true);
  const kvf_cu_memory from = gpu_allocate(BYTES);
  const kvf_cu_memory to = gpu_allocate(BYTES);
  kvf_cu_stream stream = gpu_stream();
  gpu_fill(stream, from, BYTES, 9);
  gpu_batch(stream, to, from, BYTES / 8, 8, order);
  gpu_finish();
  for (size_t i = 0; i < 8; i++) {
    early += gpu_byte(to + i * BYTES / 8) == 9 ? 0 : 1;
  }
  return early;
}

SEEDS_TEST(a_source_is_read_early_where_the_access_order_allows_it)
{
  uint64_t seed;
  unsigned any = 0;
  while (test_next_seed(SEEDS, &seed)) {
    assert_int_equal(early_reads(seed, KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM), 0);
    assert_int_equal(early_reads(seed, KVF_CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL), 8);
    const unsigned early = early_reads(seed, KVF_CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
    any += early > 0 && early < 8 ? 1 : 0;
  }
  assert_true(!gpu_had_all_seeds() || (any > SEEDS / 2));
}

/* One source, two copies of a batch into the same place: whichever comes last stays. */
SEEDS_TEST(copies_of_a_batch_come_in_any_order)
{
  uint64_t seed;
  unsigned last[2] = {0, 0};
  while (test_next_seed(SEEDS, &seed)) {
    gpu_begin(seed, true);
    kvf_cu_memory from[2] = {gpu_allocate(BYTES), gpu_allocate(BYTES)};
    const kvf_cu_memory to = gpu_allocate(BYTES);
    kvf_cu_memory tos[2] = {to, to};
    size_t sizes[2] = {BYTES, BYTES};
    kvf_cu_memcpy_attributes attributes[2] = {{.src_access_order = KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM},
                                              {.src_access_order = KVF_CU_MEMCPY_SRC_ACCESS_ORDER_ANY}};
    size_t first[2] = {0, 1};
    size_t failed;
    kvf_cu_stream stream = gpu_stream();
    gpu_fill(NULL, from[0], BYTES, 0);
    gpu_fill(NULL, from[1], BYTES, 1);
    gpu_finish();
    assert_int_equal(gpu->memcpy_batch_async(tos, from, sizes, 2, attributes, first, 2, &failed, stream),
                     KVF_CUDA_SUCCESS);
    gpu_finish();
    last[gpu_byte(to + BYTES - 1)]++;
  }
  assert_true(!gpu_had_all_seeds() || (last[0] > SEEDS / 10 && last[1] > SEEDS / 10));
}

/* The same seed, the same course: what a test has found it finds again. */
TEST(a_seed_decides_all_of_it)
{
  for (uint64_t seed = 0; seed < 20; seed++) {
    uint8_t seen[2][BYTES / 1024];
    unsigned steps[2] = {0, 0};
    for (int run = 0; run < 2; run++) {
      gpu_begin(seed, true);
      const kvf_cu_memory from = gpu_allocate(BYTES);
      const kvf_cu_memory to = gpu_allocate(BYTES);
      gpu_fill(gpu_stream(), from, BYTES, 3);
      gpu_batch(gpu_stream(), to, from, 1024, BYTES / 1024, KVF_CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
      while (fake_cuda_step()) {
        steps[run]++;
      }
      for (size_t i = 0; i < sizeof(seen[run]); i++) {
        seen[run][i] = gpu_byte(to + i * 1024);
      }
    }
    assert_int_equal(steps[0], steps[1]);
    assert_memory_equal(seen[0], seen[1], sizeof(seen[0]));
  }
}

TEST(a_stream_stands_still_until_it_is_told)
{
  gpu_begin(1, true);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  kvf_cu_stream stream = gpu_stream();
  fake_cuda_stall(stream, true);
  gpu_fill(stream, at, BYTES, 1);
  kvf_cu_event done = gpu_record(stream);
  assert_false(fake_cuda_step());
  fake_cuda_stall(stream, false);
  fake_cuda_stall_device(0, true);
  assert_false(fake_cuda_step());
  fake_cuda_stall_device(0, false);
  assert_int_equal(gpu->event_synchronize(done), KVF_CUDA_SUCCESS);
  assert_true(gpu_all_are(at, BYTES, 1));
}

TEST(what_is_on_a_stream_that_is_destroyed_is_done)
{
  gpu_begin(1, true);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  kvf_cu_stream stream = gpu_stream();
  gpu_fill(stream, at, BYTES, 1);
  kvf_cu_event done = gpu_record(stream);
  assert_int_equal(gpu->stream_destroy(stream), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->stream_destroy(stream), KVF_CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(fake_cuda_count().streams, 0);
  gpu_finish();
  assert_int_equal(gpu->event_query(done), KVF_CUDA_SUCCESS);
  assert_true(gpu_all_are(at, BYTES, 1));
}

TEST(what_a_batch_does_not_take)
{
  gpu_begin(1, true);
  kvf_cu_memory at[2] = {gpu_allocate(BYTES), gpu_allocate(BYTES)};
  kvf_cu_memory nothing[2] = {at[0], 4096};
  size_t sizes[2] = {BYTES, BYTES};
  size_t first = 0;
  size_t failed = 0;
  kvf_cu_memcpy_attributes attributes = {.src_access_order = KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  kvf_cu_stream stream = gpu_stream();
  for (uintptr_t legacy = 0; legacy <= KVF_CU_STREAM_LEGACY; legacy++) {
    assert_int_equal(gpu->memcpy_batch_async(at, at, sizes, 2, &attributes, &first, 1, &failed, (kvf_cu_stream)legacy),
                     KVF_CUDA_ERROR_INVALID_VALUE);
  }
  assert_int_equal(gpu->memcpy_batch_async(at, nothing, sizes, 2, &attributes, &first, 1, &failed, stream),
                   KVF_CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(failed, 1);
  attributes.src_access_order = 0; /* it must be said */
  assert_int_equal(gpu->memcpy_batch_async(at, at, sizes, 2, &attributes, &first, 1, &failed, stream),
                   KVF_CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(fake_cuda_count().works, 0);
}

static kvf_cu_stream const per_thread = (kvf_cu_stream)KVF_CU_STREAM_PER_THREAD;

static void *fill_on_its_own(void *at)
{
  gpu_enter(0);
  gpu_fill(per_thread, *(kvf_cu_memory *)at, BYTES, 2);
  gpu_leave();
  return NULL;
}

TEST(each_thread_has_a_stream_of_its_own)
{
  pthread_t thread;
  gpu_begin(1, true);
  kvf_cu_memory at = gpu_allocate(BYTES);
  gpu_fill(per_thread, at, BYTES, 1);
  gpu_batch(per_thread, at + BYTES / 2, at, BYTES / 2, 1, KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  assert_int_equal(pthread_create(&thread, NULL, fill_on_its_own, &at), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(fake_cuda_count().streams, 0);
  assert_int_equal(gpu->stream_destroy(per_thread), KVF_CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(cuStreamSynchronize(per_thread), KVF_CUDA_SUCCESS);
  gpu_finish();
  assert_int_equal(fake_cuda_count().works, 0);
  assert_int_not_equal(gpu_byte(at), 0);
}

/* What a captured stream is given goes into a graph, that nobody launches here. */
TEST(a_captured_stream_does_nothing)
{
  gpu_begin(1, true);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  kvf_cu_memory pieces[] = {at};
  kvf_cu_memcpy_attributes attributes = {.src_access_order = KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  size_t size = 1;
  size_t first = 0;
  size_t failed;
  unsigned status = 99;
  kvf_cu_stream stream = gpu_stream();
  assert_int_equal(gpu->stream_is_capturing(stream, &status), KVF_CUDA_SUCCESS);
  assert_int_equal(status, KVF_CU_STREAM_CAPTURE_STATUS_NONE);
  fake_cuda_capture_stream(stream, true);
  assert_int_equal(gpu->stream_is_capturing(stream, &status), KVF_CUDA_SUCCESS);
  assert_int_equal(status, KVF_CU_STREAM_CAPTURE_STATUS_ACTIVE);
  gpu_fill(stream, at, BYTES, 1);
  kvf_cu_event event = gpu_record(stream);
  assert_int_equal(gpu->event_query(event), KVF_CUDA_ERROR_CAPTURED_EVENT);
  assert_int_equal(fake_cuda_count().works, 0);
  assert_int_equal(fake_cuda_violations(), 0);
  assert_int_equal(gpu->memcpy_batch_async(pieces, pieces, &size, 1, &attributes, &first, 1, &failed, stream),
                   KVF_CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  assert_int_equal(fake_cuda_violations(), 1);
  fake_cuda_capture_stream(stream, false);
  assert_int_equal(gpu->event_query(event), KVF_CUDA_ERROR_CAPTURED_EVENT);
  assert_int_equal(gpu->event_record(event, stream), KVF_CUDA_SUCCESS);
  gpu_finish();
  assert_int_equal(gpu->event_query(event), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu_byte(at), 0);
}

TEST(the_legacy_stream_cannot_be_used_while_one_that_it_waits_for_is_captured)
{
  unsigned status = 99;
  kvf_cu_stream blocking;
  gpu_begin(1, true);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  kvf_cu_event event = gpu_event();
  kvf_cu_stream stream = gpu_stream();
  fake_cuda_capture_stream(stream, true);
  assert_int_equal(gpu->stream_is_capturing(NULL, &status), KVF_CUDA_SUCCESS); /* that one it does not wait for */
  assert_int_equal(gpu->stream_create_with_priority(&blocking, KVF_CU_STREAM_DEFAULT, 0), KVF_CUDA_SUCCESS);
  fake_cuda_capture_stream(blocking, true);
  assert_int_equal(gpu->stream_is_capturing(NULL, &status), KVF_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  assert_int_equal(fake_cuda_violations(), 0);
  assert_int_equal(gpu->event_record(event, NULL), KVF_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  assert_int_equal(gpu->memcpy_async(at, at, 1, NULL), KVF_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  assert_int_equal(gpu->stream_wait_event(NULL, event, 0), KVF_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  assert_int_equal(fake_cuda_violations(), 3);
}

TEST(streams_and_events_are_of_their_context)
{
  gpu_begin(1, true);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  kvf_cu_stream stream = gpu_stream();
  kvf_cu_event done = gpu_record(stream);
  gpu_enter(1);
  kvf_cu_stream other = gpu_stream();
  kvf_cu_event own = gpu_event();
  assert_int_equal(gpu->memcpy_async(at, at, 1, stream), KVF_CUDA_ERROR_INVALID_CONTEXT);
  assert_int_equal(gpu->event_record(done, other), KVF_CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(gpu->event_record(own, other), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->stream_wait_event(other, done, 0), KVF_CUDA_SUCCESS); /* of any device */
  assert_int_equal(gpu->event_query(done), KVF_CUDA_ERROR_NOT_READY);         /* any thread asks */
  gpu_leave();
}

/* ---- with the thread ---- */

TEST(a_thread_does_the_work_later)
{
  unsigned late = 0;
  for (uint64_t seed = 0; seed < 50; seed++) {
    gpu_begin(seed, false);
    const kvf_cu_memory from = gpu_allocate(BYTES);
    const kvf_cu_memory to = gpu_allocate(BYTES);
    kvf_cu_stream stream = gpu_stream();
    gpu_fill(stream, from, BYTES, 4);
    gpu_batch(stream, to, from, 4096, BYTES / 4096, KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    kvf_cu_event done = gpu_record(stream);
    late += gpu->event_query(done) == KVF_CUDA_ERROR_NOT_READY ? 1 : 0;
    assert_int_equal(gpu->event_synchronize(done), KVF_CUDA_SUCCESS);
    assert_true(gpu_all_are(to, BYTES, 4));
    assert_int_equal(gpu->event_destroy(done), KVF_CUDA_SUCCESS);
  }
  assert_true(late > 0);
}

TEST(who_waits_for_a_stream_or_context_finds_it_done)
{
  gpu_begin(1, false);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  gpu_fill(NULL, at, BYTES, 1);
  assert_int_equal(cuStreamSynchronize(NULL), KVF_CUDA_SUCCESS);
  assert_true(gpu_all_are(at, BYTES, 1));
  gpu_fill(gpu_stream(), at, BYTES, 2);
  assert_int_equal(cuCtxSynchronize(), KVF_CUDA_SUCCESS);
  assert_true(gpu_all_are(at, BYTES, 2));
}

TEST(a_context_ends_with_its_last_release)
{
  gpu_begin(1, false);
  const kvf_cu_memory at = gpu_allocate(BYTES);
  kvf_cu_stream stream = gpu_stream();
  for (int i = 0; i < 100; i++) {
    gpu_fill(stream, at, BYTES, 1);
  }
  kvf_cu_event done = gpu_record(stream);
  assert_int_equal(gpu->device_primary_ctx_release(0), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->device_primary_ctx_release(0), KVF_CUDA_ERROR_INVALID_CONTEXT);
  assert_int_equal(gpu->event_query(done), KVF_CUDA_ERROR_INVALID_HANDLE);
  assert_int_equal(gpu->memcpy_async(at, at, 1, stream), KVF_CUDA_ERROR_CONTEXT_IS_DESTROYED);
  const fake_cuda_open open = fake_cuda_count();
  assert_int_equal(open.contexts + open.streams + open.events + open.memory + open.works, 0);
}
