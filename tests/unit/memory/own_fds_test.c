/* Which descriptors of this process are ours. */
#include "memory/own_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

#define LOOKED_AT 64
#define FORKS 300

static bool is_open(int fd)
{
  return fcntl(fd, F_GETFD) >= 0;
}

static unsigned count_open(void)
{
  unsigned count = 0;
  for (int fd = 0; fd < LOOKED_AT; fd++) {
    count += is_open(fd);
  }
  return count;
}

/* How many descriptors of a forked child's are open; `fd` must be if it is `kept`. */
static unsigned count_in_child(int fd, bool kept)
{
  int status = 0;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    _exit(is_open(fd) == kept ? (int)count_open() : 255);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return (unsigned)WEXITSTATUS(status);
}

TEST(a_forked_child_has_those_of_others_only)
{
  unsigned before = count_open();
  int foreign = eventfd(0, EFD_CLOEXEC);
  int own = KVF_OWN_FD(eventfd(0, EFD_CLOEXEC));
  assert_true(foreign >= 0 && own >= 0);
  assert_int_equal(count_in_child(own, false), before + 1);
  assert_int_equal(count_in_child(foreign, true), before + 1);
  assert_true(is_open(own));
  kvf_own_fd_close(own);
  assert_false(is_open(own));
  assert_int_equal(dup2(foreign, own), own); /* the number is somebody else's now */
  assert_int_equal(count_in_child(own, true), before + 2);
  (void)close(foreign);
  (void)close(own);
}

TEST(none_has_the_number_of_a_standard_stream)
{
  int in = dup(STDIN_FILENO);
  unsigned before = count_open();
  assert_true(in > STDERR_FILENO);
  (void)close(STDIN_FILENO);
  int own = KVF_OWN_FD(eventfd(0, EFD_CLOEXEC));
  assert_true(own > STDERR_FILENO);
  assert_true((fcntl(own, F_GETFD) & FD_CLOEXEC) != 0);
  assert_int_equal(count_in_child(own, false), before - 1);
  assert_int_equal(count_open(), before);
  kvf_own_fd_close(own);
  assert_int_equal(dup2(in, STDIN_FILENO), STDIN_FILENO);
  (void)close(in);
}

TEST(a_call_that_failed_keeps_its_reason)
{
  kvf_own_fds_begin();
  errno = EMFILE;
  assert_int_equal(kvf_own_fds_end(-1), -1);
  assert_int_equal(errno, EMFILE);
  kvf_own_fd_close(-1);
}

TEST(one_beyond_the_table_is_none)
{
  kvf_own_fds_begin();
  assert_int_equal(kvf_own_fds_end(KVF_OWN_FDS_MAX), -1);
  assert_int_equal(errno, EMFILE);
}

static void *make_and_close(void *stop)
{
  while (!atomic_load((atomic_bool *)stop)) {
    kvf_own_fd_close(KVF_OWN_FD(eventfd(0, EFD_CLOEXEC)));
  }
  return NULL;
}

TEST(no_fork_falls_between_making_and_noting)
{
  pthread_t threads[2];
  atomic_bool stop = false;
  unsigned before = count_open();
  for (int i = 0; i < 2; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, make_and_close, &stop), 0);
  }
  for (int i = 0; i < FORKS; i++) {
    assert_int_equal(count_in_child(-1, false), before);
  }
  atomic_store(&stop, true);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  }
}
