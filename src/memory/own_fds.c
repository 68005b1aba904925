/* A bitmap of our descriptors, and the handlers of fork() that close them in the child. */
#include "memory/own_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/bitmap.h"

/* fork() runs the handlers in the thread that forks. So the thread that holds the lock also releases it, in the child
 * too. This is the innermost lock: only system calls are made under it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_guarded;                      /* written once */
static uint64_t owned[KVF_OWN_FDS_MAX / 64]; /* under the lock */
static int end;                              /* under the lock; no bit is set from here on */

static void before_fork(void)
{
  (void)pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
  (void)pthread_mutex_unlock(&lock);
}

/* Plain close() alone: of shutdown() or epoll_ctl() the parent would feel, too. */
static void in_child(void)
{
  for (int word = 0; word * 64 < end; word++) {
    for (; owned[word] != 0; owned[word] &= owned[word] - 1) {
      (void)close(word * 64 + __builtin_ctzll(owned[word]));
    }
  }
  end = 0;
  (void)pthread_mutex_unlock(&lock);
}

static void guard(void)
{
  is_guarded = pthread_atfork(before_fork, after_fork, in_child) == 0;
}

void kvf_own_fds_begin(void)
{
  (void)pthread_once(&once, guard);
  (void)pthread_mutex_lock(&lock);
}

/* A program may have closed those of its standard streams, to which it, and we with its log, go on writing. */
static int above_standard_streams(int fd)
{
  if (fd < 0 || fd > STDERR_FILENO) {
    return fd;
  }
  int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  int error = errno;
  (void)close(fd);
  errno = error;
  return above;
}

int kvf_own_fds_end(int fd)
{
  fd = above_standard_streams(fd);
  int error = errno;
  if (fd >= 0 && (!is_guarded || fd >= KVF_OWN_FDS_MAX)) {
    (void)close(fd);
    error = is_guarded ? EMFILE : ENOMEM;
    fd = -1;
  }
  if (fd >= 0) {
    kvf_bitmap_set(owned, (size_t)fd);
    end = fd >= end ? fd + 1 : end;
  }
  (void)pthread_mutex_unlock(&lock);
  errno = error;
  return fd;
}

/* Under the lock: who gets the number next may be another thread of ours. */
void kvf_own_fd_close(int fd)
{
  if (fd < 0) {
    return;
  }
  (void)pthread_mutex_lock(&lock);
  if (fd < KVF_OWN_FDS_MAX) {
    kvf_bitmap_clear(owned, (size_t)fd);
  }
  (void)close(fd);
  (void)pthread_mutex_unlock(&lock);
}
