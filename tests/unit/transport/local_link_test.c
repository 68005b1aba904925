/* Which peers the local transport takes, and what it says about the others. process_vm_readv is replaced (--wrap), so
 * that it can fail as it would for a process that may not be read. */
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../sides/side.h"
#include "test.h"
#include "transport/local/local.h"

static const kvf_transport_ops *const ops = &kvf_transport_local;
static atomic_int fake_error; /* of every call; 0: the real call */
static atomic_int calls;
static atomic_int stick; /* so many calls wait for `go`, and post `stuck` */
static sem_t stuck;
static sem_t go;

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags);

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags)
{
  int error = atomic_load(&fake_error);
  (void)atomic_fetch_add(&calls, 1);
  if (atomic_fetch_sub(&stick, 1) > 0) {
    (void)sem_post(&stuck);
    while (sem_wait(&go) != 0) {
    }
  }
  if (error != 0) {
    errno = error;
    return -1;
  }
  return __real_process_vm_readv(pid, local, locals, remote, remotes, flags);
}

/* One node that is its own peer. */
typedef struct test_scene {
  side one;
  side_introduction introduction;
  kvf_local_description *head; /* in the introduction */
} test_scene;

static test_scene scene;

static void scene_open(void)
{
  const side_shape shape = side_shape_simple(4, 4096);
  memset(&scene, 0, sizeof(scene));
  atomic_store(&fake_error, 0);
  atomic_store(&stick, 0);
  (void)sem_init(&stuck, 0, 0);
  (void)sem_init(&go, 0, 0);
  side_open(&scene.one, ops, &shape, 1, NULL);
  side_introduce(&scene.one, &scene.introduction);
  scene.head = (void *)scene.introduction.description;
}

static void scene_close(void)
{
  side_close(&scene.one);
}

#define SCENE_TEST(name) TEST_WITH(name, scene_open, scene_close)

static void assert_refused(kvf_status expected, const char *line)
{
  const kvf_link_spec spec = side_spec(&scene.introduction);
  kvf_link *link = NULL;
  assert_int_equal(side_connect(&scene.one, &spec, &link), expected);
  if (!side_has_logged(&scene.one, line)) {
    fail_msg("\"%s\" is not \"%s\"", scene.one.lines[0], line);
  }
  assert_non_null(link);
  const kvf_transfer_item item = {0};
  const kvf_transfer read = side_read(&scene.one, &(kvf_lease){0}, &item, 1); /* an eager caller's */
  assert_int_equal(side_read_now(&scene.one, link, &read).status, expected);
  ops->disconnect(link);
}

SCENE_TEST(a_process_that_is_gone)
{
  pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  assert_int_equal(waitpid(child, NULL, 0), child);
  scene.head->pid = (uint32_t)child;
  assert_refused(KVF_TRANSFER_SETUP, "cannot be watched: No such process");
}

SCENE_TEST(a_process_that_may_not_be_read)
{
  atomic_store(&fake_error, EPERM);
  assert_refused(KVF_TRANSFER_SETUP, "cannot be read: Operation not permitted (another user,");
}

SCENE_TEST(a_process_without_that_memory)
{
  scene.head->cookie_address = 4096;
  assert_refused(KVF_TRANSFER_SETUP, "cannot be read: Bad address");
}

SCENE_TEST(a_process_with_another_cookie)
{
  scene.head->cookie[31] ^= 1;
  assert_refused(KVF_TRANSFER_SETUP, "is not the one that described itself");
}

SCENE_TEST(a_fence_table_of_another_incarnation)
{
  scene.introduction.incarnation.bytes[0] ^= 1;
  scene.head->incarnation.bytes[0] ^= 1;
  assert_refused(KVF_TRANSFER_SETUP, "fence table of process");
}

SCENE_TEST(a_fence_table_of_other_size)
{
  scene.head->table_slots++;
  assert_refused(KVF_TRANSFER_SETUP, "fence table of process");
}

SCENE_TEST(another_host)
{
  scene.head->place.boot[0] ^= 1;
  assert_refused(KVF_TRANSFER_SETUP, "peer 127.0.0.1:9: it runs on another host");
}

SCENE_TEST(other_layouts)
{
  scene.introduction.shape.regions[0].group = 1;
  assert_refused(KVF_INCOMPATIBLE, "region 0: group is 0 here, 1 there");
}

SCENE_TEST(no_memory_here)
{
  ops->clear_memory(scene.one.transport);
  assert_refused(KVF_TRANSFER_SETUP, "no memory is registered here");
}

SCENE_TEST(more_than_a_description_can_hold)
{
  kvf_link_spec spec = side_spec(&scene.introduction);
  kvf_link *link = (void *)&scene;
  spec.description_bytes = KVF_TRANSPORT_DESCRIPTION_BYTES_MAX + 1;
  assert_int_equal(ops->connect(scene.one.transport, &spec, &link), KVF_TRANSFER_SETUP);
  assert_null(link);
  spec.description_bytes = 100;
  spec.remote_count = KVF_REGIONS_MAX + 1;
  assert_int_equal(ops->connect(scene.one.transport, &spec, &link), KVF_TRANSFER_SETUP);
  spec.remote_count = 0;
  assert_int_equal(ops->connect(scene.one.transport, &spec, &link), KVF_TRANSFER_SETUP);
}

SCENE_TEST(disconnected_before_it_was_checked)
{
  kvf_link_spec spec = side_spec(&scene.introduction);
  for (int i = 0; i < 200; i++) {
    kvf_link *link = NULL;
    assert_int_equal(side_begin_connect(&scene.one, &spec, &link), KVF_OK);
    ops->disconnect(link);
  }
  ops->disconnect(side_connect_ok(&scene.one, &scene.introduction));
}

static kvf_link *connect_stuck(void)
{
  kvf_link_spec spec = side_spec(&scene.introduction);
  kvf_link *link = NULL;
  atomic_store(&stick, 1);
  assert_int_equal(side_begin_connect(&scene.one, &spec, &link), KVF_OK);
  (void)sem_wait(&stuck);
  return link;
}

/* P2: a look at one peer's memory does not come back. */
SCENE_TEST(a_stuck_check_delays_no_other_peer)
{
  kvf_link *link = connect_stuck();
  kvf_link *healthy = side_connect_ok(&scene.one, &scene.introduction);
  ops->disconnect(healthy);
  (void)sem_post(&go);
  assert_int_equal(side_wait_up(&scene.one, link), KVF_OK);
  ops->disconnect(link);
}

/* P6: nor does anybody wait for it when nobody wants to know any more. */
SCENE_TEST(a_stuck_check_is_left_behind)
{
  ops->disconnect(connect_stuck());
  side_close(&scene.one); /* which frees the transport */
  (void)sem_post(&go);
  sleep_us(100000); /* it ends, and touches nothing that has gone: the sanitizers look */
  scene_open();
}

/* One process cannot take the places of all others. */
SCENE_TEST(stuck_checks_of_one_process_are_bounded)
{
  kvf_link *links[KVF_LOCAL_CHECKS_OF_ONE_MAX];
  kvf_link_spec spec = side_spec(&scene.introduction);
  kvf_link *another = NULL;
  for (uint32_t i = 0; i < KVF_LOCAL_CHECKS_OF_ONE_MAX; i++) {
    links[i] = connect_stuck();
  }
  atomic_store(&calls, 0);
  assert_int_equal(side_begin_connect(&scene.one, &spec, &another), KVF_OK);
  sleep_us(100000);
  assert_int_equal(atomic_load(&calls), 0); /* it waits for one of these */
  for (uint32_t i = 0; i < KVF_LOCAL_CHECKS_OF_ONE_MAX; i++) {
    (void)sem_post(&go);
  }
  for (uint32_t i = 0; i < KVF_LOCAL_CHECKS_OF_ONE_MAX; i++) {
    assert_int_equal(side_wait_up(&scene.one, links[i]), KVF_OK);
    ops->disconnect(links[i]);
  }
  assert_int_equal(side_wait_up(&scene.one, another), KVF_OK);
  ops->disconnect(another);
}

/* How many system calls a read takes over a new link. */
static int calls_of_a_read(uint64_t lease_id)
{
  kvf_link *link = side_connect_ok(&scene.one, &scene.introduction);
  const kvf_transfer_item item = {0, 0, 0, 1};
  const kvf_transfer read = side_read(&scene.one, &side_publish(&scene.one, lease_id)->lease, &item, 1);
  atomic_store(&calls, 0);
  kvf_read_result result = side_read_now(&scene.one, link, &read);
  int needed = atomic_load(&calls);
  assert_int_equal(result.status, KVF_OK);
  assert_int_equal(result.bytes, 4096);
  assert_memory_equal(&result.sample.head.incarnation, &scene.one.incarnation, sizeof(kvf_incarnation));
  assert_int_equal(result.sample.entry.word, kvf_fence_word_live(lease_id));
  ops->disconnect(link);
  return needed;
}

SCENE_TEST(a_fence_table_that_can_be_mapped_is)
{
  assert_int_equal(calls_of_a_read(3), 1);
  scene.head->table_fd = 1u << 30;
  assert_int_equal(calls_of_a_read(4), 3);
  scene.head->table_fd = (uint32_t)scene.one.table_fd;
  assert_int_equal(calls_of_a_read(5), 1);
  scene.head->has_table_fd = 0;
  assert_int_equal(calls_of_a_read(6), 3);
}

/* A child that is a copy of this process has all that the description says, but for the fence table. */
static pid_t fork_copy(void)
{
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    (void)pause();
    _exit(0);
  }
  return child;
}

SCENE_TEST(a_forked_child_is_not_its_parent)
{
  pid_t child = fork_copy();
  scene.head->pid = (uint32_t)child;
  assert_refused(KVF_TRANSFER_SETUP, "cannot be read: Bad address");
  (void)kill(child, SIGKILL);
  assert_int_equal(waitpid(child, NULL, 0), child);
}
