/* How the local transport queues, cancels and fails reads. Copies can be held (--wrap), so that what happens to the
 * others meanwhile is no matter of luck; allocations can fail. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>

#include "../../allocation.h"
#include "../../sides/side.h"
#include "test.h"
#include "transport/local/local.h"

#define SMALLEST_COPY_BYTES 4096

static const kvf_transport_ops *const ops = &kvf_transport_local;
static atomic_bool hold; /* copies of blocks wait for `go` */
static sem_t held;       /* posted by each copy that waits */
static sem_t go;
static atomic_bool no_process; /* copies of blocks end so */
static atomic_ullong clock_ns; /* of other threads, which stands still; 0: the system's */
static pthread_t tester;

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags);
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags)
{
  bool is_sample = local[0].iov_len < SMALLEST_COPY_BYTES; /* or what is asked of a new peer */
  if (!is_sample && atomic_load(&hold)) {
    (void)sem_post(&held);
    while (sem_wait(&go) != 0) {
    }
  }
  if (!is_sample && atomic_load(&no_process)) {
    errno = ESRCH;
    return -1;
  }
  return __real_process_vm_readv(pid, local, locals, remote, remotes, flags);
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
  const uint64_t at_ns = atomic_load(&clock_ns);
  if (at_ns != 0 && !pthread_equal(pthread_self(), tester)) {
    *now = (struct timespec){.tv_sec = (time_t)(at_ns / KVF_NS_PER_S), .tv_nsec = (long)(at_ns % KVF_NS_PER_S)};
    return 0;
  }
  return __real_clock_gettime(clock, now);
}

#define BLOCKS 32
#define BLOCK_BYTES 524288

/* One node that is its own peer, with one worker: it reads its lower blocks into its upper ones. */
typedef struct test_scene {
  side one;
  side_introduction introduction;
  kvf_link *link;
  side_lease *lease;
  kvf_transfer_item items[BLOCKS / 2];
} test_scene;

static test_scene scene;

static void scene_open_with(uint32_t spin_us)
{
  const side_shape shape = side_shape_simple(BLOCKS, BLOCK_BYTES);
  tester = pthread_self();
  memset(&scene, 0, sizeof(scene));
  kvf_transport_config config = side_config();
  atomic_store(&hold, false);
  (void)allocation_stop();
  atomic_store(&no_process, false);
  (void)sem_init(&held, 0, 0);
  (void)sem_init(&go, 0, 0);
  config.copy_threads = 1;
  config.spin_us = spin_us;
  side_open(&scene.one, ops, &shape, 1, &config);
  side_introduce(&scene.one, &scene.introduction);
  scene.link = side_connect_ok(&scene.one, &scene.introduction);
  scene.lease = side_publish(&scene.one, 3);
  for (uint32_t i = 0; i < BLOCKS / 2; i++) {
    scene.items[i] = (kvf_transfer_item){0, i, i, BLOCKS / 2 + i};
  }
}

static void scene_open(void)
{
  scene_open_with(0);
}

/* Once it has copied, the worker polls, and finds no end of its time. */
static void scene_open_polling(void)
{
  atomic_store(&clock_ns, KVF_NS_PER_S);
  scene_open_with(1);
}

static void scene_close(void)
{
  atomic_store(&hold, false);
  for (uint32_t i = 0; i < KVF_LOCAL_STUCK_WORKERS_MAX; i++) {
    (void)sem_post(&go); /* what a test that has failed still holds */
  }
  ops->disconnect(scene.link);
  side_close(&scene.one);
  atomic_store(&clock_ns, 0);
}

#define SCENE_TEST(name) TEST_WITH(name, scene_open, scene_close)

/* Block i of the scene. */
static kvf_transfer read_of(uint32_t i)
{
  return side_read(&scene.one, &scene.lease->lease, &scene.items[i], 1);
}

static bool is_copied(uint32_t i)
{
  return memcmp(side_block(&scene.one, 0, i), side_block(&scene.one, 0, BLOCKS / 2 + i), BLOCK_BYTES) == 0;
}

/* Starts a read of block 0 and returns when its copy is in the system call. */
static kvf_transfer hold_worker(void)
{
  kvf_transfer read = read_of(0);
  atomic_store(&hold, true);
  ops->read(scene.link, &read);
  (void)sem_wait(&held);
  atomic_store(&hold, false);
  return read;
}

SCENE_TEST(a_waiting_read_is_cancelled_though_the_worker_is_stuck)
{
  const kvf_transfer stuck = hold_worker();
  const kvf_transfer waiting = read_of(1);
  ops->read(scene.link, &waiting);
  ops->cancel(scene.link, waiting.id);
  kvf_read_result result = side_wait(&scene.one, waiting.id);
  assert_int_equal(result.status, KVF_CANCELLED);
  assert_int_equal(result.bytes, 0);
  assert_false(side_is_done(&scene.one, stuck.id));
  (void)sem_post(&go);
  assert_int_equal(side_wait(&scene.one, stuck.id).status, KVF_OK);
  assert_true(is_copied(0));
  assert_false(is_copied(1));
}

SCENE_TEST(a_copy_that_is_cancelled_ends_after_its_call)
{
  kvf_transfer read = side_read(&scene.one, &scene.lease->lease, scene.items, 4); /* two calls of 1 MiB */
  atomic_store(&hold, true);
  ops->read(scene.link, &read);
  (void)sem_wait(&held);
  atomic_store(&hold, false);
  ops->cancel(scene.link, read.id);
  sleep_us(1000);
  assert_false(side_is_done(&scene.one, read.id)); /* it is still writing */
  (void)sem_post(&go);
  kvf_read_result result = side_wait(&scene.one, read.id);
  assert_int_equal(result.status, KVF_CANCELLED);
  assert_int_equal(result.bytes, 2 * BLOCK_BYTES);
  assert_true(is_copied(1));
  assert_false(is_copied(2));
}

/* P6: nor does the caller copy a small read itself, since its peer's memory may not answer. */
SCENE_TEST(a_small_read_does_not_hold_its_caller)
{
  kvf_transfer small = read_of(1);
  small.small = true;
  atomic_store(&hold, true);
  ops->read(scene.link, &small);
  assert_false(ops->assist(scene.one.transport));
  (void)sem_wait(&held);
  assert_false(ops->assist(scene.one.transport));
  assert_false(side_is_done(&scene.one, small.id));
  atomic_store(&hold, false);
  (void)sem_post(&go);
  assert_int_equal(side_wait(&scene.one, small.id).status, KVF_OK);
  assert_true(is_copied(1));
}

SCENE_TEST(small_reads_come_first)
{
  const kvf_transfer stuck = hold_worker();
  const kvf_transfer bulk = read_of(2);
  kvf_transfer small = read_of(1);
  small.small = true;
  ops->read(scene.link, &bulk);
  ops->read(scene.link, &small);
  atomic_store(&hold, true);
  (void)sem_post(&go);
  (void)sem_wait(&held); /* the second copy */
  (void)sem_post(&go);
  assert_int_equal(side_wait(&scene.one, small.id).status, KVF_OK);
  assert_int_equal(side_wait(&scene.one, stuck.id).status, KVF_OK);
  assert_false(side_is_done(&scene.one, bulk.id));
  (void)sem_post(&go);
  assert_int_equal(side_wait(&scene.one, bulk.id).status, KVF_OK);
}

/* ---- workers that are stuck ---- */

static void assert_workers(uint32_t running, uint32_t stuck)
{
  kvf_local *local = kvf_local_of(scene.one.transport);
  bool as_expected = false;
  for (int i = 0; i < 10000 && !as_expected; i++) {
    sleep_us(1000);
    (void)pthread_mutex_lock(&local->lock);
    as_expected = local->workers_count == running && local->stuck_count == stuck && kvf_list_is_empty(&local->gone);
    (void)pthread_mutex_unlock(&local->lock);
  }
  assert_true(as_expected);
}

/* P2: the one worker there is does not come back from the memory of one peer. */
SCENE_TEST(a_stuck_worker_is_no_matter_of_other_peers)
{
  kvf_link *healthy = side_connect_ok(&scene.one, &scene.introduction);
  const kvf_transfer stuck = hold_worker();
  const kvf_transfer behind = read_of(1);
  ops->read(scene.link, &behind);
  for (int i = 0; i < 20; i++) {
    const kvf_transfer read = read_of(2);
    assert_int_equal(side_read_now(&scene.one, healthy, &read).status, KVF_OK);
  }
  assert_true(is_copied(2));
  assert_workers(1, 1);
  assert_true(side_has_logged(&scene.one, "loads from it wait"));
  assert_false(side_is_done(&scene.one, stuck.id));
  assert_false(side_is_done(&scene.one, behind.id)); /* it takes no second worker */
  (void)sem_post(&go);
  assert_int_equal(side_wait(&scene.one, stuck.id).status, KVF_OK);
  assert_int_equal(side_wait(&scene.one, behind.id).status, KVF_OK);
  assert_workers(1, 0);
  ops->disconnect(healthy);
}

/* What counts is how long nothing comes, not how large the read is. */
SCENE_TEST(a_slow_worker_is_not_stuck)
{
  kvf_link *other = side_connect_ok(&scene.one, &scene.introduction);
  kvf_transfer slow = side_read(&scene.one, &scene.lease->lease, scene.items, 4); /* two calls of 1 MiB */
  const kvf_transfer behind = read_of(1);
  atomic_store(&clock_ns, KVF_NS_PER_S);
  atomic_store(&hold, true);
  ops->read(scene.link, &slow);
  (void)sem_wait(&held);
  ops->read(other, &behind);
  atomic_store(&clock_ns, KVF_NS_PER_S + 40 * KVF_NS_PER_MS);
  (void)sem_post(&go);
  (void)sem_wait(&held); /* the second call */
  atomic_store(&clock_ns, KVF_NS_PER_S + 80 * KVF_NS_PER_MS);
  sleep_us(100000);
  assert_workers(1, 0);
  atomic_store(&hold, false);
  atomic_store(&clock_ns, KVF_NS_PER_S + 91 * KVF_NS_PER_MS);
  assert_int_equal(side_wait(&scene.one, behind.id).status, KVF_OK);
  (void)sem_post(&go);
  assert_int_equal(side_wait(&scene.one, slow.id).status, KVF_OK);
  ops->disconnect(other);
}

/* Each link takes one worker, until its process has all that one may have. */
SCENE_TEST(stuck_workers_of_one_process_are_bounded)
{
  enum { LINKS = KVF_LOCAL_STUCK_WORKERS_OF_ONE_MAX + 2 };
  kvf_link *links[LINKS];
  kvf_transfer reads[LINKS];
  atomic_store(&hold, true);
  for (uint32_t i = 0; i < LINKS; i++) {
    links[i] = side_connect_ok(&scene.one, &scene.introduction);
    reads[i] = read_of(i);
    ops->read(links[i], &reads[i]);
  }
  assert_workers(1, KVF_LOCAL_STUCK_WORKERS_OF_ONE_MAX);
  sleep_us(200000);
  assert_workers(1, KVF_LOCAL_STUCK_WORKERS_OF_ONE_MAX);
  for (uint32_t i = 0; i < LINKS; i++) {
    (void)sem_post(&go);
  }
  for (uint32_t i = 0; i < LINKS; i++) {
    assert_int_equal(side_wait(&scene.one, reads[i].id).status, KVF_OK);
    ops->disconnect(links[i]);
  }
  assert_workers(1, 0);
}

/* And the end: the scene is closed while it polls. */
TEST_WITH(a_worker_that_polls_sees_what_is_posted, scene_open_polling, scene_close)
{
  for (uint32_t i = 0; i < BLOCKS / 2; i++) {
    const kvf_transfer read = read_of(i);
    assert_int_equal(side_read_now(&scene.one, scene.link, &read).status, KVF_OK);
    assert_true(is_copied(i));
    sleep_us(1000);
  }
}

SCENE_TEST(a_small_read_is_cancelled_while_it_waits)
{
  const kvf_transfer stuck = hold_worker();
  kvf_transfer small = read_of(1);
  small.small = true;
  ops->read(scene.link, &small);
  ops->cancel(scene.link, small.id);
  assert_int_equal(side_wait(&scene.one, small.id).status, KVF_CANCELLED);
  (void)sem_post(&go);
  assert_int_equal(side_wait(&scene.one, stuck.id).status, KVF_OK);
  assert_false(is_copied(1));
}

SCENE_TEST(reads_for_which_there_is_no_memory_do_not_begin)
{
  kvf_transfer reads[3];
  kvf_status statuses[3];
  allocation_fail(0, LONG_MAX);
  for (size_t i = 0; i < 3; i++) {
    reads[i] = read_of(1);
    statuses[i] = ops->read(scene.link, &reads[i]);
  }
  (void)allocation_stop();
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(statuses[i], KVF_NO_MEMORY);
    assert_false(side_is_done(&scene.one, reads[i].id));
    assert_int_equal(side_read_now(&scene.one, scene.link, &reads[i]).status, KVF_OK);
  }
}

SCENE_TEST(a_slot_past_the_table_is_no_lease)
{
  kvf_transfer read = read_of(1);
  read.lease.slot = SIDE_SLOTS;
  assert_int_equal(side_read_now(&scene.one, scene.link, &read).status, KVF_LEASE_UNKNOWN);
  assert_false(is_copied(1));
}

SCENE_TEST(a_link_does_not_outlive_the_memory_it_was_made_for)
{
  const kvf_transport_memory memory = {.regions = scene.one.regions,
                                       .regions_count = 1,
                                       .table = scene.one.table,
                                       .table_slots = SIDE_SLOTS,
                                       .table_fd = scene.one.table_fd};
  ops->clear_memory(scene.one.transport);
  const kvf_transfer without = read_of(1);
  assert_int_equal(side_read_now(&scene.one, scene.link, &without).status, KVF_TRANSFER_SETUP);
  assert_int_equal(ops->set_memory(scene.one.transport, &memory), KVF_OK);
  const kvf_transfer with_new = read_of(1);
  assert_int_equal(side_read_now(&scene.one, scene.link, &with_new).status, KVF_TRANSFER_SETUP);
  assert_false(is_copied(1));
}

SCENE_TEST(disconnect_ends_all_and_waits_for_none)
{
  const kvf_transfer stuck = hold_worker();
  const kvf_transfer waiting = read_of(1);
  kvf_transfer small = read_of(2);
  small.small = true;
  ops->read(scene.link, &waiting);
  ops->read(scene.link, &small);
  ops->disconnect(scene.link);
  assert_int_equal(side_wait(&scene.one, waiting.id).status, KVF_CANCELLED);
  assert_int_equal(side_wait(&scene.one, small.id).status, KVF_CANCELLED);
  assert_false(side_is_done(&scene.one, stuck.id));
  (void)sem_post(&go);
  (void)side_wait(&scene.one, stuck.id);
  scene.link = side_connect_ok(&scene.one, &scene.introduction);
}

/* The process lives on, so that its memory can be read on as that of one that is just dying. */
SCENE_TEST(death_of_the_peer_ends_waiting_reads)
{
  kvf_local_link *link = kvf_local_link_of(scene.link);
  const kvf_transfer stuck = hold_worker();
  const kvf_transfer waiting = read_of(1);
  ops->read(scene.link, &waiting);
  kvf_local_link_died(kvf_local_of(scene.one.transport), link);
  assert_int_equal(side_wait_down(&scene.one, scene.link), KVF_PEER_DOWN);
  assert_int_equal(side_wait(&scene.one, waiting.id).status, KVF_PEER_DOWN);
  (void)sem_post(&go);
  assert_int_equal(side_wait(&scene.one, stuck.id).status, KVF_OK); /* it had the memory in its hands */
  const kvf_transfer late = read_of(1);
  assert_int_equal(side_read_now(&scene.one, scene.link, &late).status, KVF_PEER_DOWN);
  assert_true(side_has_logged(&scene.one, "has ended"));
}

/* Or its loads would come back to it until their deadline, though another transport can do better. */
SCENE_TEST(memory_that_cannot_be_read_ends_the_link)
{
  const kvf_transfer stuck = hold_worker();
  const kvf_transfer waiting = read_of(1);
  ops->read(scene.link, &waiting);
  assert_int_equal(mprotect(side_block(&scene.one, 0, 0), BLOCK_BYTES, PROT_NONE), 0);
  (void)sem_post(&go);
  assert_int_equal(side_wait_down(&scene.one, scene.link), KVF_TRANSFER_FAILED);
  assert_int_equal(side_wait(&scene.one, stuck.id).status, KVF_TRANSFER_FAILED);
  assert_int_equal(side_wait(&scene.one, waiting.id).status, KVF_TRANSFER_FAILED);
  const kvf_transfer late = read_of(2);
  assert_int_equal(side_read_now(&scene.one, scene.link, &late).status, KVF_TRANSFER_FAILED);
  assert_true(side_has_logged(&scene.one, "cannot be read any more"));
  kvf_local_link_died(kvf_local_of(scene.one.transport), kvf_local_link_of(scene.link)); /* is not told again */
  assert_int_equal(mprotect(side_block(&scene.one, 0, 0), BLOCK_BYTES, PROT_READ | PROT_WRITE), 0);
}

/* Its memory has gone before its descriptors: nothing else says so. */
SCENE_TEST(process_without_memory_ends_the_link)
{
  atomic_store(&no_process, true);
  const kvf_transfer read = read_of(0);
  ops->read(scene.link, &read);
  assert_int_equal(side_wait_down(&scene.one, scene.link), KVF_PEER_DOWN);
  assert_int_equal(side_wait(&scene.one, read.id).status, KVF_PEER_DOWN);
}

/* The fence says more of it than the memory does, and other reads of the link go on. */
SCENE_TEST(memory_that_was_taken_back_ends_the_read_alone)
{
  side_lease *other = side_publish(&scene.one, 4);
  const kvf_transfer taken = hold_worker();
  side_end(&scene.one, scene.lease);
  assert_int_equal(mprotect(side_block(&scene.one, 0, 0), BLOCK_BYTES, PROT_NONE), 0);
  (void)sem_post(&go);
  kvf_read_result result = side_wait(&scene.one, taken.id);
  assert_int_equal(result.status, KVF_OK);
  const kvf_fence_claim claim = side_claim(&scene.introduction, scene.lease);
  assert_int_equal(kvf_fence_check(&result.sample, &claim), KVF_LEASE_EXPIRED);
  kvf_transfer good = read_of(1);
  good.lease = other->lease;
  assert_int_equal(side_read_now(&scene.one, scene.link, &good).status, KVF_OK);
  assert_int_equal(mprotect(side_block(&scene.one, 0, 0), BLOCK_BYTES, PROT_READ | PROT_WRITE), 0);
}
