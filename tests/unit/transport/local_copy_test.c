/* The system calls are replaced (--wrap), so that what the kernel rarely does can be made to happen. */
#include "transport/local/copy.h"

#include <errno.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/prng.h"
#include "base/time.h"
#include "test.h"
#include "transport/fence_memory.h"

#define BLOCKS 700
#define BLOCK_BYTES 5000

/* What the next calls do. */
static struct {
  kvf_prng *short_counts; /* cut calls short at random */
  int interrupts;         /* calls that fail with EINTR first */
  int fail_call;          /* the n-th call from now fails; 0: none */
  int error;              /* with this, or returns 0 if it is 0 */
  int stop_call;          /* after the n-th call *stop is set */
  atomic_bool stop;
  int calls;
  uint64_t longest_bytes;
  uint64_t longest_segments;
  uint64_t clock_ns;
  uint64_t clock_step_ns; /* per call */
  void (*before_call)(void);
  void (*amid_call)(void); /* once, when all but the last segment have been copied */
} fake;

static void fake_reset(void)
{
  memset(&fake, 0, sizeof(fake));
  atomic_init(&fake.stop, false);
}

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
  (void)clock;
  out->tv_sec = (time_t)(fake.clock_ns / KVF_NS_PER_S);
  out->tv_nsec = (long)(fake.clock_ns % KVF_NS_PER_S);
  return 0;
}

static uint64_t bytes_of(const struct iovec *vector, unsigned long count)
{
  uint64_t bytes = 0;
  for (unsigned long i = 0; i < count; i++) {
    bytes += vector[i].iov_len;
  }
  return bytes;
}

/* Copies exactly `bytes` of them. */
static ssize_t copy_part(pid_t pid, const struct iovec *local, const struct iovec *remote, uint64_t bytes)
{
  uint64_t done = 0;
  for (size_t i = 0; done < bytes; i++) {
    struct iovec to = local[i];
    struct iovec from = remote[i];
    if (to.iov_len > bytes - done) {
      to.iov_len = bytes - done;
      from.iov_len = to.iov_len;
    }
    done += (uint64_t)__real_process_vm_readv(pid, &to, 1, &from, 1, 0);
  }
  return (ssize_t)done;
}

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags)
{
  uint64_t bytes = bytes_of(local, locals);
  assert_int_equal(bytes, bytes_of(remote, remotes));
  fake.calls++;
  fake.clock_ns += fake.clock_step_ns;
  fake.longest_bytes = bytes > fake.longest_bytes ? bytes : fake.longest_bytes;
  fake.longest_segments = locals > fake.longest_segments ? locals : fake.longest_segments;
  if (fake.before_call != NULL) {
    fake.before_call();
  }
  if (fake.interrupts > 0) {
    fake.interrupts--;
    errno = EINTR;
    return -1;
  }
  if (fake.fail_call != 0 && fake.calls == fake.fail_call) {
    errno = fake.error;
    return fake.error == 0 ? 0 : -1;
  }
  if (fake.stop_call != 0 && fake.calls == fake.stop_call) {
    atomic_store(&fake.stop, true);
  }
  if (fake.short_counts != NULL) {
    return copy_part(pid, local, remote, 1 + kvf_prng_below(fake.short_counts, bytes));
  }
  if (fake.amid_call != NULL) {
    ssize_t done = copy_part(pid, local, remote, bytes - local[locals - 1].iov_len);
    fake.amid_call();
    fake.amid_call = NULL;
    return done + __real_process_vm_readv(pid, &local[locals - 1], 1, &remote[locals - 1], 1, flags);
  }
  return __real_process_vm_readv(pid, local, locals, remote, remotes, flags);
}

/* ---- a chunk of the test's own memory ---- */

typedef struct test_scene {
  uint8_t *from;
  uint8_t *to;
  kvf_region local;
  kvf_region_layout remote;
  kvf_pair pair;
  kvf_plan plan;
  kvf_transfer_item items[BLOCKS];
  kvf_memory_import import;
  kvf_transfer transfer;
  kvf_chunk chunk;
  kvf_local_copy copy;
  uint32_t arrived;
  atomic_ullong moved_ns;
  kvf_read_work work;
} test_scene;

static test_scene scene;
static uint64_t copied; /* bytes, by the last copy */

static void arrived(void *context)
{
  ((test_scene *)context)->arrived++;
}

static void scene_open(void)
{
  fake_reset();
  memset(&scene, 0, sizeof(scene));
  scene.from = allocate((size_t)BLOCKS * BLOCK_BYTES);
  scene.to = allocate((size_t)BLOCKS * BLOCK_BYTES);
  kvf_prng prng = {1};
  for (size_t i = 0; i < (size_t)BLOCKS * BLOCK_BYTES; i++) {
    scene.from[i] = (uint8_t)kvf_prng_next(&prng);
  }
  scene.local = (kvf_region){scene.to, BLOCK_BYTES, BLOCK_BYTES, BLOCKS, 1, 1, 0, KVF_MEMORY_HOST, 0};
  scene.remote = kvf_region_layout_of(&scene.local);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    scene.items[i] = (kvf_transfer_item){0, i, i, (uint32_t)((uint64_t)i * 11 % BLOCKS)};
  }
  scene.import = (kvf_memory_import){.ops = &kvf_memory_host, .base = (uintptr_t)scene.from};
  scene.transfer = (kvf_transfer){.items = scene.items, .items_count = BLOCKS, .heads = 1};
  const kvf_pages pages = {.regions = &scene.remote, .regions_count = 1};
  char message[KVF_MESSAGE_BYTES_MAX];
  assert_int_equal(kvf_plan_make(&scene.plan, &scene.pair, &pages, &pages, message), KVF_OK);
  scene.chunk = (kvf_chunk){&scene.transfer, &scene.plan, &scene.plan.selection, &scene.local};
  scene.copy = (kvf_local_copy){.pid = getpid(),
                                .imports = &scene.import,
                                .stop = &fake.stop,
                                .moved_ns = &scene.moved_ns,
                                .work = &scene.work,
                                .arrived = arrived,
                                .context = &scene};
}

static void scene_close(void)
{
  free(scene.from);
  free(scene.to);
}

#define SCENE_TEST(name) TEST_WITH(name, scene_open, scene_close)

static kvf_status copy(void)
{
  copied = 0;
  return kvf_local_copy_chunk(&scene.copy, &scene.chunk, 0, NULL, &copied);
}

static void assert_all_copied(void)
{
  for (uint32_t i = 0; i < BLOCKS; i++) {
    const kvf_transfer_item *item = &scene.items[i];
    assert_memory_equal(scene.to + (size_t)item->local_block * BLOCK_BYTES,
                        scene.from + (size_t)item->remote_block * BLOCK_BYTES, BLOCK_BYTES);
  }
}

SCENE_TEST(a_chunk_is_copied_in_bounded_calls)
{
  assert_int_equal(copy(), KVF_OK);
  assert_int_equal(copied, (uint64_t)BLOCKS * BLOCK_BYTES);
  assert_all_copied();
  assert_true(fake.longest_bytes <= kvf_memory_host.batch_bytes_max);
  assert_true(fake.longest_segments <= kvf_memory_host.batch_runs_max);
  assert_int_equal(fake.calls, 4);
}

SCENE_TEST(short_counts_lose_and_repeat_nothing)
{
  kvf_prng prng = {2};
  fake.short_counts = &prng;
  for (int i = 0; i < 20; i++) {
    memset(scene.to, 0, (size_t)BLOCKS * BLOCK_BYTES);
    assert_int_equal(copy(), KVF_OK);
    assert_int_equal(copied, (uint64_t)BLOCKS * BLOCK_BYTES);
    assert_all_copied();
  }
}

SCENE_TEST(interrupted_calls_are_made_again)
{
  fake.interrupts = 3;
  assert_int_equal(copy(), KVF_OK);
  assert_int_equal(fake.calls, 3 + 4);
  assert_all_copied();
}

static void assert_failure(int error, kvf_status expected)
{
  fake_reset();
  fake.fail_call = 3;
  fake.error = error;
  assert_int_equal(copy(), expected);
  assert_int_equal(copied, 2 * kvf_memory_host.batch_bytes_max);
  assert_int_equal(fake.calls, 3);
}

SCENE_TEST(errors_say_what_was_lost)
{
  assert_failure(ESRCH, KVF_PEER_DOWN);
  assert_failure(EFAULT, KVF_TRANSFER_FAILED);
  assert_failure(EPERM, KVF_TRANSFER_FAILED);
  assert_failure(ENOMEM, KVF_NO_MEMORY);
  assert_failure(0, KVF_TRANSFER_FAILED);
}

SCENE_TEST(a_stop_is_seen_at_the_next_call)
{
  fake.stop_call = 2;
  assert_int_equal(copy(), KVF_CANCELLED);
  assert_int_equal(fake.calls, 2);
  assert_int_equal(copied, 2 * kvf_memory_host.batch_bytes_max);
  assert_int_equal(copy(), KVF_CANCELLED);
  assert_int_equal(fake.calls, 2);
  assert_int_equal(copied, 0);
}

/* ---- a kind that can be begun: its copies are made when they are finished ---- */

#define STEP_MEMORY 9u
#define STEP_RUNS 100

static struct {
  unsigned begun;
  unsigned finished;
  unsigned fail_begin; /* the n-th; 0: none */
  unsigned fail_finish;
  unsigned stop_at; /* the n-th is begun */
  struct {
    size_t count; /* of its own runs, since the batch is filled anew meanwhile */
    struct iovec to[STEP_RUNS];
    struct iovec from[STEP_RUNS];
  } under_way[2];
} steps;

static kvf_status begin_step(const kvf_memory_batch *batch, const kvf_memory_step *before, kvf_memory_step *step)
{
  const unsigned open = steps.begun - steps.finished;
  assert_int_equal(open, before == NULL ? 0 : 1);
  assert_true(before == NULL || before->state == &steps.under_way[steps.finished % 2]);
  assert_int_equal(batch->first, 0);
  if (steps.begun + 1 == steps.fail_begin) {
    return KVF_NO_MEMORY;
  }
  *step = (kvf_memory_step){.import = batch->import, .state = &steps.under_way[steps.begun % 2]};
  steps.under_way[steps.begun % 2].count = batch->count;
  memcpy(steps.under_way[steps.begun % 2].to, batch->to, batch->count * sizeof(batch->to[0]));
  memcpy(steps.under_way[steps.begun % 2].from, batch->from, batch->count * sizeof(batch->from[0]));
  steps.begun++;
  atomic_store(&fake.stop, steps.begun == steps.stop_at);
  return KVF_OK;
}

/* The next has been begun by now, unless this is the last. */
static kvf_status finish_step(kvf_memory_step *step, kvf_read_work *work)
{
  const unsigned open = steps.begun - steps.finished;
  assert_ptr_equal(step->import, &scene.import);
  assert_ptr_equal(step->state, &steps.under_way[steps.finished % 2]);
  assert_ptr_equal(work, &scene.work);
  assert_true(open == 2 || steps.begun == BLOCKS / STEP_RUNS || steps.fail_begin != 0 || steps.fail_finish != 0 ||
              steps.stop_at != 0);
  for (size_t i = 0; i < steps.under_way[steps.finished % 2].count; i++) {
    const struct iovec to = steps.under_way[steps.finished % 2].to[i];
    memcpy(to.iov_base, steps.under_way[steps.finished % 2].from[i].iov_base, to.iov_len);
  }
  steps.finished++;
  return steps.finished == steps.fail_finish ? KVF_TRANSFER_FAILED : KVF_OK;
}

static const kvf_memory_ops step_ops = {.kind = (kvf_memory_kind)STEP_MEMORY,
                                        .batch_runs_max = STEP_RUNS,
                                        .batch_bytes_max = UINT64_C(1) << 30,
                                        .begin = begin_step,
                                        .finish = finish_step};

const kvf_memory_ops *__real_kvf_memory_ops_of(uint32_t kind);
const kvf_memory_ops *__wrap_kvf_memory_ops_of(uint32_t kind);

const kvf_memory_ops *__wrap_kvf_memory_ops_of(uint32_t kind)
{
  return kind == STEP_MEMORY ? &step_ops : __real_kvf_memory_ops_of(kind);
}

static kvf_status copy_by_steps(void)
{
  fake_reset();
  steps.begun = steps.finished = 0;
  scene.work.pieces = 0;
  scene.import.ops = &step_ops;
  scene.local.memory = (kvf_memory_kind)STEP_MEMORY;
  kvf_status status = copy();
  assert_int_equal(steps.finished, steps.begun);
  return status;
}

SCENE_TEST(the_next_step_is_begun_while_one_is_under_way)
{
  memset(&steps, 0, sizeof(steps));
  assert_int_equal(copy_by_steps(), KVF_OK);
  assert_int_equal(steps.finished, BLOCKS / STEP_RUNS);
  assert_int_equal(copied, (uint64_t)BLOCKS * BLOCK_BYTES);
  assert_all_copied();
}

SCENE_TEST(a_step_that_fails_is_the_last)
{
  memset(&steps, 0, sizeof(steps));
  steps.fail_begin = 3;
  assert_int_equal(copy_by_steps(), KVF_NO_MEMORY);
  assert_int_equal(copied, (uint64_t)2 * STEP_RUNS * BLOCK_BYTES);
  steps.fail_begin = 0;
  steps.fail_finish = 3;
  assert_int_equal(copy_by_steps(), KVF_TRANSFER_FAILED);
  assert_int_equal(steps.finished, 4); /* the one behind it had been begun */
  assert_int_equal(copied, (uint64_t)3 * STEP_RUNS * BLOCK_BYTES);
}

SCENE_TEST(a_stop_is_seen_between_steps)
{
  memset(&steps, 0, sizeof(steps));
  steps.stop_at = 2;
  assert_int_equal(copy_by_steps(), KVF_CANCELLED);
  assert_int_equal(copied, (uint64_t)2 * STEP_RUNS * BLOCK_BYTES);
}

SCENE_TEST(progress_is_told_once_per_interval)
{
  fake.clock_step_ns = 12499999; /* four calls: 1 ns short of the interval */
  assert_int_equal(copy(), KVF_OK);
  assert_int_equal(scene.arrived, 0);
  fake.clock_step_ns = 12500000;
  assert_int_equal(copy(), KVF_OK);
  assert_int_equal(scene.arrived, 1);
  fake.clock_step_ns = 25000000;
  scene.arrived = 0;
  assert_int_equal(copy(), KVF_OK);
  assert_int_equal(scene.arrived, 2);
}

/* ---- the sample ---- */

static const kvf_incarnation incarnation = {{3}};

/* The entry that changes under the sample: at each call the next lease is published. */
static void *changing_table;
static uint64_t changing_id;

static void lease_open(void)
{
  assert_int_equal(kvf_fence_table_open(4, &incarnation, &changing_table, NULL), KVF_OK);
  scene_open();
}

static void lease_close(void)
{
  kvf_fence_table_close(changing_table, 4);
  scene_close();
}

#define LEASE_TEST(name) TEST_WITH(name, lease_open, lease_close)

static void change_entry(void)
{
  changing_id++;
  kvf_fence_store_live(changing_table, 1, (kvf_fence_entry){kvf_fence_word_live(changing_id), changing_id * 7});
}

LEASE_TEST(a_sample_is_head_and_entry_of_one_call)
{
  changing_id = 50;
  fake.before_call = change_entry;
  kvf_fence_sample sample;
  assert_int_equal(kvf_local_sample(getpid(), (uintptr_t)changing_table, 1, &sample), KVF_OK);
  assert_int_equal(fake.calls, 1);
  const kvf_fence_claim claim = {incarnation, 0, 51, UINT64_C(51) * 7};
  assert_int_equal(kvf_fence_check(&sample, &claim), KVF_OK);
  assert_int_equal(sample.head.slots, 4);
}

LEASE_TEST(word_and_digest_are_of_one_lease)
{
  changing_id = 60;
  change_entry();
  fake.amid_call = change_entry;
  kvf_fence_sample sample;
  assert_int_equal(kvf_local_sample(getpid(), (uintptr_t)changing_table, 1, &sample), KVF_OK);
  assert_int_equal(fake.calls, 2);
  const kvf_fence_claim claim = {incarnation, 0, 62, UINT64_C(62) * 7};
  assert_int_equal(kvf_fence_check(&sample, &claim), KVF_OK);
}

SCENE_TEST(a_sample_fails_as_a_copy_does)
{
  kvf_fence_sample sample;
  fake.fail_call = 1;
  fake.error = ESRCH;
  assert_int_equal(kvf_local_sample(getpid(), 4096, 1, &sample), KVF_PEER_DOWN);
  assert_int_equal(kvf_local_sample(getpid(), 1, 0, &sample), KVF_TRANSFER_FAILED);
  fake.interrupts = 2;
  assert_int_equal(kvf_local_sample(getpid(), 1, 0, &sample), KVF_TRANSFER_FAILED);
}

/* ---- a copy between two samples ---- */

#define SLOT 1
#define LEASE_ID 50

static void store(uint64_t word)
{
  const kvf_fence_entry entry = {word, 7};
  if (word % 2 == 1) {
    kvf_fence_store_live(changing_table, SLOT, entry);
  } else {
    kvf_fence_store_ended(changing_table, SLOT, entry);
  }
}

static void publish_at_first_call(void)
{
  if (fake.calls == 1) {
    store(kvf_fence_word_live(LEASE_ID));
  }
}

static void publish_at_second_call(void)
{
  if (fake.calls == 2) {
    store(kvf_fence_word_live(LEASE_ID));
  }
}

static void end_at_third_call(void)
{
  if (fake.calls == 3) {
    store(kvf_fence_word_ended(LEASE_ID));
  }
}

static void end_at_second_call(void)
{
  if (fake.calls == 2) {
    store(kvf_fence_word_ended(LEASE_ID));
  }
}

/* The fence's answer to a read of the lease. */
static kvf_status read_lease(void)
{
  const kvf_fence_claim claim = {incarnation, 0, LEASE_ID, 7};
  kvf_fence_sample sample;
  fake.calls = 0;
  copied = 1;
  scene.transfer.lease = (kvf_lease){.id = LEASE_ID, .slot = SLOT};
  kvf_status status = kvf_local_copy_lease(&scene.copy, &scene.chunk, (uintptr_t)changing_table, &copied, &sample);
  return status == KVF_OK ? kvf_fence_check(&sample, &claim) : status;
}

static void live_open(void)
{
  lease_open();
  store(kvf_fence_word_live(LEASE_ID));
}

#define LIVE_TEST(name) TEST_WITH(name, live_open, lease_close)

LIVE_TEST(a_live_lease_is_copied_between_two_samples)
{
  assert_int_equal(read_lease(), KVF_OK);
  assert_int_equal(copied, (uint64_t)BLOCKS * BLOCK_BYTES);
  assert_int_equal(fake.calls, 1 + 4 + 1);
  assert_all_copied();
}

/* P1: bytes that are read before the lease is published may be the last owner's; a look at the fence afterwards finds
 * it live and cannot tell. */
LEASE_TEST(nothing_counts_that_was_copied_before_it_was_published)
{
  fake.before_call = publish_at_second_call;
  assert_int_equal(read_lease(), KVF_NOT_PUBLISHED);
  assert_int_equal(copied, 0);
  fake.before_call = NULL;
  store(kvf_fence_word_live(LEASE_ID));
  assert_int_equal(read_lease(), KVF_OK);
}

LIVE_TEST(a_lease_that_ends_during_the_copy_is_over)
{
  fake.before_call = end_at_third_call;
  assert_int_equal(read_lease(), KVF_LEASE_EXPIRED);
  assert_int_equal(copied, (uint64_t)BLOCKS * BLOCK_BYTES);
  fake.before_call = NULL;
  assert_int_equal(read_lease(), KVF_LEASE_EXPIRED);
  assert_int_equal(copied, 0);
}

LIVE_TEST(a_lease_cannot_be_read_where_copy_or_sample_fails)
{
  fake.error = ESRCH;
  for (fake.fail_call = 1; fake.fail_call <= 6; fake.fail_call++) {
    assert_int_equal(read_lease(), KVF_PEER_DOWN);
  }
}

/* ---- where the fence table is mapped ---- */

LIVE_TEST(a_mapped_fence_costs_no_call)
{
  scene.copy.fence = changing_table;
  assert_int_equal(read_lease(), KVF_OK);
  assert_int_equal(copied, (uint64_t)BLOCKS * BLOCK_BYTES);
  assert_int_equal(fake.calls, 4);
  assert_all_copied();
  kvf_prng prng = {3};
  fake.short_counts = &prng;
  memset(scene.to, 0, (size_t)BLOCKS * BLOCK_BYTES);
  assert_int_equal(read_lease(), KVF_OK);
  assert_int_equal(copied, (uint64_t)BLOCKS * BLOCK_BYTES);
  assert_all_copied();
}

LEASE_TEST(a_mapped_fence_is_looked_at_before_and_after)
{
  scene.copy.fence = changing_table;
  fake.before_call = publish_at_first_call; /* after the first look */
  assert_int_equal(read_lease(), KVF_NOT_PUBLISHED);
  assert_int_equal(copied, 0);
  fake.before_call = end_at_third_call;
  assert_int_equal(read_lease(), KVF_LEASE_EXPIRED);
  assert_int_equal(copied, (uint64_t)BLOCKS * BLOCK_BYTES);
  assert_int_equal(read_lease(), KVF_LEASE_EXPIRED);
  assert_int_equal(copied, 0);
}

/* P1: the mapping of a process that has ended says live for ever, and another process may have its id. */
LIVE_TEST(a_mapped_fence_is_not_believed_about_another_process)
{
  static const kvf_incarnation another = {{9}};
  void *mapped = changing_table;
  assert_int_equal(kvf_fence_table_open(4, &another, &changing_table, NULL), KVF_OK);
  store(kvf_fence_word_live(LEASE_ID));
  scene.copy.fence = mapped;
  assert_int_equal(read_lease(), KVF_PEER_RESTARTED);
  scene.transfer.items_count = 0;
  assert_int_equal(read_lease(), KVF_PEER_RESTARTED);
  kvf_fence_table_close(changing_table, 4);
  scene.transfer.items_count = BLOCKS;
  changing_table = (void *)(uintptr_t)4096; /* nothing */
  assert_int_equal(read_lease(), KVF_TRANSFER_FAILED);
  scene.transfer.items_count = 0;
  assert_int_equal(read_lease(), KVF_TRANSFER_FAILED);
  changing_table = mapped;
}

LIVE_TEST(a_copy_fails_under_a_mapped_fence)
{
  scene.copy.fence = changing_table;
  fake.error = ESRCH;
  for (fake.fail_call = 1; fake.fail_call <= 4; fake.fail_call++) {
    assert_int_equal(read_lease(), KVF_PEER_DOWN);
  }
  scene.import.base = 4096;
  fake.fail_call = 0;
  assert_int_equal(read_lease(), KVF_TRANSFER_FAILED);
  fake.before_call = end_at_second_call;
  assert_int_equal(read_lease(), KVF_LEASE_EXPIRED); /* which is why they are gone */
}

/* ---- where other memory is registered ---- */

static void register_at_second_call(void)
{
  if (fake.calls == 2) {
    kvf_fence_store_generation(changing_table, 1);
  }
}

/* P1: the imports are not of the lease's memory. Here the lease goes on, so that the generation alone tells. */
LIVE_TEST(other_memory_is_not_read)
{
  kvf_fence_store_generation(changing_table, 1);
  for (int mapped = 0; mapped < 2; mapped++) {
    scene.copy.fence = mapped ? changing_table : NULL;
    assert_int_equal(read_lease(), KVF_AGAIN);
    assert_int_equal(copied, 0);
  }
}

LIVE_TEST(other_memory_is_seen_after_the_copy)
{
  for (int mapped = 0; mapped < 2; mapped++) {
    kvf_fence_store_generation(changing_table, 0);
    scene.copy.fence = mapped ? changing_table : NULL;
    fake.before_call = register_at_second_call;
    assert_int_equal(read_lease(), KVF_AGAIN);
    assert_int_equal(copied, (uint64_t)BLOCKS * BLOCK_BYTES);
  }
}

LEASE_TEST(a_peek_reads_cookie_and_head)
{
  const uint8_t cookie[4] = {1, 2, 3, 4};
  uint8_t seen[4] = {0};
  kvf_fence_head head;
  assert_int_equal(kvf_local_peek(getpid(), (uintptr_t)cookie, seen, sizeof(seen), (uintptr_t)changing_table, &head),
                   0);
  assert_int_equal(fake.calls, 1);
  assert_memory_equal(seen, cookie, sizeof(cookie));
  assert_int_equal(head.magic, KVF_FENCE_MAGIC);
  assert_memory_equal(&head.incarnation, &incarnation, sizeof(incarnation));
  assert_int_equal(kvf_local_peek(getpid(), (uintptr_t)cookie, seen, sizeof(seen), 1, &head), EFAULT);
  assert_int_equal(kvf_local_peek(getpid(), 1, seen, sizeof(seen), (uintptr_t)changing_table, &head), EFAULT);
}
