/* This program once more, in a process of its own: see child_process.h. */
#include "child_process.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

bool child_start(child_process *child, const char *mode, int socket_type)
{
  int ends[2];
  char self[] = "/proc/self/exe";
  char argument[32];
  char *arguments[] = {self, argument, NULL};
  posix_spawn_file_actions_t actions;
  (void)snprintf(argument, sizeof(argument), "%s", mode);
  if (socketpair(AF_UNIX, socket_type | SOCK_CLOEXEC, 0, ends) != 0) {
    return false;
  }
  (void)posix_spawn_file_actions_init(&actions);
  bool spawned = posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO) == 0 &&
                 posix_spawn(&child->pid, self, &actions, NULL, arguments, environ) == 0;
  (void)posix_spawn_file_actions_destroy(&actions);
  (void)close(ends[1]);
  child->channel = ends[0];
  if (!spawned) {
    (void)close(ends[0]);
  }
  return spawned;
}

child_process child_idle(void)
{
  const child_process child = {.pid = _Fork(), .channel = -1};
  if (child.pid == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)pause();
    _exit(0);
  }
  return child;
}

bool child_stop(const child_process *child)
{
  int status = 0;
  return kill(child->pid, SIGSTOP) == 0 && waitpid(child->pid, &status, WUNTRACED) == child->pid && WIFSTOPPED(status);
}

bool child_continue(const child_process *child)
{
  return kill(child->pid, SIGCONT) == 0;
}

int child_end(const child_process *child)
{
  int status = 0;
  (void)close(child->channel);
  while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

bool child_kill(const child_process *child)
{
  return kill(child->pid, SIGKILL) == 0 && WIFSIGNALED(child_end(child));
}

bool child_send(int channel, const void *data, size_t bytes)
{
  const uint8_t *at = data;
  while (bytes > 0) {
    ssize_t sent = send(channel, at, bytes, MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    at += sent;
    bytes -= (size_t)sent;
  }
  return true;
}

bool child_receive(int channel, void *data, size_t bytes)
{
  uint8_t *at = data;
  while (bytes > 0) {
    ssize_t got = recv(channel, at, bytes, 0);
    if (got <= 0) {
      return false;
    }
    at += got;
    bytes -= (size_t)got;
  }
  return true;
}
