#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "pair.h"

extern char **environ;

static bool send_all(int fd, const void *from, size_t bytes)
{
  const uint8_t *at = from;
  while (bytes > 0) {
    ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    at += sent;
    bytes -= (size_t)sent;
  }
  return true;
}

static bool receive_all(int fd, void *to, size_t bytes)
{
  uint8_t *at = to;
  while (bytes > 0) {
    ssize_t got = recv(fd, at, bytes, 0);
    if (got <= 0) {
      return false;
    }
    at += got;
    bytes -= (size_t)got;
  }
  return true;
}

void process_start(producer_process *process, const node_shape *shape)
{
  int ends[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  posix_spawn_file_actions_t actions;
  assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
  assert_int_equal(posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO), 0);
  char self[] = "/proc/self/exe";
  char mode[] = "--producer";
  char *arguments[] = {self, mode, NULL};
  assert_int_equal(posix_spawn(&process->pid, self, &actions, NULL, arguments, environ), 0);
  (void)posix_spawn_file_actions_destroy(&actions);
  (void)close(ends[1]);
  process->channel = ends[0];
  process->stopped = false;
  assert_true(send_all(process->channel, shape, sizeof(*shape)));
  assert_true(receive_all(process->channel, &process->introduction, sizeof(process->introduction)));
  assert_true(receive_all(process->channel, &process->lease, sizeof(process->lease)));
}

void process_stop(producer_process *process)
{
  int status;
  assert_int_equal(kill(process->pid, SIGSTOP), 0);
  assert_int_equal(waitpid(process->pid, &status, WUNTRACED), process->pid);
  assert_true(WIFSTOPPED(status));
  process->stopped = true;
}

void process_continue(producer_process *process)
{
  assert_int_equal(kill(process->pid, SIGCONT), 0);
  process->stopped = false;
}

void process_kill(producer_process *process)
{
  int status;
  assert_int_equal(kill(process->pid, SIGKILL), 0);
  assert_int_equal(waitpid(process->pid, &status, 0), process->pid);
  process->pid = 0;
}

void process_end(producer_process *process)
{
  (void)close(process->channel);
  if (process->pid != 0) {
    int status;
    assert_int_equal(waitpid(process->pid, &status, 0), process->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
  }
}

int process_main(const conformance_traits *traits)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  node_shape shape;
  side *producer = allocate(sizeof(*producer));
  node_introduction *introduction = allocate(sizeof(*introduction));
  if (!receive_all(STDIN_FILENO, &shape, sizeof(shape))) {
    return EXIT_FAILURE;
  }
  node_open(producer, traits->ops, &shape, SEED);
  node_introduce(producer, introduction);
  const node_lease *lease = node_publish(producer, LEASE_ID);
  if (!send_all(STDIN_FILENO, introduction, sizeof(*introduction)) || !send_all(STDIN_FILENO, lease, sizeof(*lease))) {
    return EXIT_FAILURE;
  }
  char byte;
  while (receive_all(STDIN_FILENO, &byte, sizeof(byte))) {
  }
  node_close(producer);
  free(introduction);
  free(producer);
  return EXIT_SUCCESS;
}
