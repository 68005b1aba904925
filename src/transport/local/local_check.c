/* The thread that looks at a peer: its pidfd, cookie, fence table and regions; and letting go of all that. */
#include "transport/local/local_check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory/own_fds.h"
#include "transport/fence_memory.h"
#include "transport/local/copy.h"

/* Of this process, since a stuck thread may outlive its transport: whom it looks at. 0: nobody. */
static pthread_mutex_t under_way_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t under_way[KVF_LOCAL_CHECKS_MAX];

/* NULL: there are too many. */
static pid_t *begin_look(pid_t pid)
{
  pid_t *place = NULL;
  unsigned same = 0;
  (void)pthread_mutex_lock(&under_way_lock);
  for (unsigned i = 0; i < KVF_LOCAL_CHECKS_MAX; i++) {
    place = under_way[i] == 0 ? &under_way[i] : place;
    same += under_way[i] == pid;
  }
  place = same < KVF_LOCAL_CHECKS_OF_ONE_MAX ? place : NULL;
  if (place != NULL) {
    *place = pid;
  }
  (void)pthread_mutex_unlock(&under_way_lock);
  return place;
}

static void end_look(pid_t *place)
{
  (void)pthread_mutex_lock(&under_way_lock);
  *place = 0;
  (void)pthread_mutex_unlock(&under_way_lock);
}

static void *free_check(void *context)
{
  kvf_local_check *check = context;
  kvf_memory_release(check->imports, check->imports_count);
  kvf_fence_table_close(check->fence, check->description.table_slots);
  kvf_own_fd_close(check->pidfd);
  free(check);
  return NULL;
}

/* To let go of a device's memory may wait for the device, and the reaper may not. */
static bool may_wait(const kvf_local_check *check)
{
  bool may = false;
  for (uint32_t i = 0; i < check->imports_count; i++) {
    may = may || check->imports[i].ops->release != NULL;
  }
  return may;
}

void kvf_local_check_drop(kvf_local_check *check)
{
  const kvf_thread_cpus cpus = {.inherit = true};
  pthread_t thread;
  if (check == NULL || atomic_fetch_sub(&check->refs, 1) > 1) {
    return;
  }
  if (may_wait(check) && kvf_thread_start(&thread, "kvf-release", free_check, check, &cpus) == 0) {
    (void)pthread_detach(thread);
  } else {
    (void)free_check(check);
  }
}

static kvf_status import(kvf_local_check *check)
{
  const kvf_local_description *description = &check->description;
  const pid_t pid = (pid_t)description->pid;
  const kvf_memory_exports exports = {check->exports, description->exports_bytes};
  int error = kvf_local_fetch(pid, description->exports_address, check->exports, description->exports_bytes);
  if (error != 0) {
    return kvf_fail(KVF_TRANSFER_SETUP, check->message, "the exports of process %d cannot be read: %s", (int)pid,
                    strerror(error));
  }
  return kvf_local_import(description, exports, check->remote, &check->devices, check->imports, check->message);
}

/* The pidfd comes first: were the process id to change hands, either the pidfd or the cookie would be of the wrong
 * process. */
static kvf_status look(kvf_local_check *check)
{
  const kvf_local_description *description = &check->description;
  char *message = check->message;
  pid_t pid = (pid_t)description->pid;
  check->pidfd = KVF_OWN_FD((int)syscall(SYS_pidfd_open, pid, 0));
  if (check->pidfd < 0) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "process %d cannot be watched: %s", (int)pid, strerror(errno));
  }
  uint8_t cookie[KVF_LOCAL_COOKIE_BYTES];
  kvf_fence_head head;
  int error =
      kvf_local_peek(pid, description->cookie_address, cookie, sizeof(cookie), description->table_address, &head);
  if (error != 0) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "memory of process %d cannot be read: %s%s", (int)pid, strerror(error),
                    error == EPERM ? " (another user, a container's limits, or kernel.yama.ptrace_scope above 1)" : "");
  }
  if (!kvf_equal_secret(cookie, description->cookie, sizeof(cookie))) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "process %d is not the one that described itself", (int)pid);
  }
  if (head.magic != KVF_FENCE_MAGIC || head.slots != description->table_slots ||
      memcmp(&head.incarnation, &description->incarnation, sizeof(head.incarnation)) != 0) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "the fence table of process %d is of another incarnation", (int)pid);
  }
  if (head.generation != check->generation) { /* what it exported then is not its to export any more */
    return kvf_fail(KVF_AGAIN, message, "process %d has registered other memory", (int)pid);
  }
  kvf_status status = import(check);
  if (status != KVF_OK) {
    error = kvf_local_peek(pid, description->cookie_address, cookie, sizeof(cookie), description->table_address, &head);
    return error == 0 && head.generation != check->generation ? KVF_AGAIN : status; /* while it took them back */
  }
  check->imports_count = description->regions_count + description->checksums_count;
  if (description->has_table_fd != 0) {
    check->fence = kvf_fence_table_map(pid, description->table_fd, description->table_slots, &description->incarnation);
  }
  return KVF_OK;
}

static void *run(void *context)
{
  kvf_local_check *check = context;
  const uint64_t one = 1;
  check->status = look(check);
  end_look(check->place);
  atomic_store_explicit(&check->done, true, memory_order_release);
  ssize_t written = write(check->wake_fd, &one, sizeof(one));
  (void)written; /* full means that it is readable already */
  kvf_own_fd_close(check->wake_fd);
  kvf_local_check_drop(check);
  return NULL;
}

/* A check with room for what it fetches and imports, and copies of what it needs for that, in one allocation. */
static kvf_local_check *alloc(const kvf_local_check_spec *spec)
{
  const size_t count = (size_t)spec->description->regions_count + spec->description->checksums_count;
  kvf_local_check *check = calloc(1, sizeof(*check) + count * (sizeof(*check->imports) + sizeof(*check->remote)) +
                                         spec->description->exports_bytes);
  if (check == NULL) {
    return NULL;
  }
  check->description = *spec->description;
  check->generation = spec->generation;
  check->devices = spec->devices;
  check->imports = (void *)(check + 1);
  check->remote = (void *)(check->imports + count);
  memcpy(check->remote, spec->remote, count * sizeof(*check->remote));
  check->exports = (void *)(check->remote + count);
  return check;
}

kvf_status kvf_local_check_start(const kvf_local_check_spec *spec, int wake_fd, const kvf_thread_cpus *cpus,
                                 kvf_local_check **out, char *message)
{
  pthread_t thread;
  const pid_t pid = (pid_t)spec->description->pid;
  *out = NULL;
  pid_t *place = begin_look(pid);
  if (place == NULL) {
    return KVF_LIMIT;
  }
  kvf_status status = KVF_NO_MEMORY;
  kvf_local_check *check = alloc(spec);
  if (check == NULL) {
    goto failed;
  }
  check->place = place;
  check->pidfd = -1;
  atomic_init(&check->refs, 2);
  check->wake_fd = KVF_OWN_FD(fcntl(wake_fd, F_DUPFD_CLOEXEC, 0));
  if (check->wake_fd >= 0 && kvf_thread_start(&thread, "kvf-check", run, check, cpus) == 0) {
    (void)pthread_detach(thread);
    *out = check;
    return KVF_OK;
  }
  status = KVF_SYSTEM;
  kvf_own_fd_close(check->wake_fd);
  free(check);
failed:
  end_look(place);
  return kvf_fail(status, message, "no memory, descriptor or thread to look at process %d", (int)pid);
}

bool kvf_local_check_is_done(kvf_local_check *check)
{
  return atomic_load_explicit(&check->done, memory_order_acquire);
}
