#include "producer_process.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* clang-format off */
#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>
/* clang-format on */

typedef enum order_kind { ORDER_OFFER = 1, ORDER_OVERWRITE = 2 } order_kind;

typedef struct order {
  order_kind kind;
  uint32_t first;
  uint32_t count;
  uint32_t seed;
  pair_ticket ticket; /* OVERWRITE, and the answer to OFFER */
} order;

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

/* ---- the producer ---- */

static void carry_out(pair_node *node, order *what)
{
  if (what->kind == ORDER_OFFER) {
    pair_offer(node, what->first, what->count, what->seed, true, &what->ticket);
    return;
  }
  (void)kvf_lease_end(node->node, &what->ticket.lease);
  for (uint32_t i = 0; i < what->ticket.count; i++) {
    pair_fill(node, what->ticket.blocks[i], what->seed, i);
  }
  (void)kvf_lease_release(node->node, what->ticket.lease.id);
}

int producer_process_main(void)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  char transports[32];
  if (!receive_all(STDIN_FILENO, transports, sizeof(transports))) {
    return EXIT_FAILURE;
  }
  const pair_option options[] = {{"transports", transports}, {NULL, NULL}};
  pair_node node;
  order *what = calloc(1, sizeof(*what));
  pair_open_node(&node, options);
  while (what != NULL && receive_all(STDIN_FILENO, what, sizeof(*what))) {
    carry_out(&node, what);
    if (!send_all(STDIN_FILENO, what, sizeof(*what))) {
      break;
    }
  }
  free(what);
  pair_close_node(&node);
  return EXIT_SUCCESS;
}

/* ---- the test ---- */

void producer_process_start(producer_process *process, const char *transports)
{
  int ends[2];
  char named[32] = {0};
  posix_spawn_file_actions_t actions;
  char self[] = "/proc/self/exe";
  char mode[] = "--producer";
  char *arguments[] = {self, mode, NULL};
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
  assert_int_equal(posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO), 0);
  assert_int_equal(posix_spawn(&process->pid, self, &actions, NULL, arguments, environ), 0);
  (void)posix_spawn_file_actions_destroy(&actions);
  (void)close(ends[1]);
  process->channel = ends[0];
  (void)snprintf(named, sizeof(named), "%s", transports);
  assert_true(send_all(process->channel, named, sizeof(named)));
}

void producer_process_end(producer_process *process)
{
  int status = 0;
  (void)close(process->channel);
  assert_int_equal(waitpid(process->pid, &status, 0), process->pid);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), EXIT_SUCCESS);
}

void producer_process_stop(producer_process *process)
{
  int status = 0;
  assert_int_equal(kill(process->pid, SIGSTOP), 0);
  assert_int_equal(waitpid(process->pid, &status, WUNTRACED), process->pid);
  assert_true(WIFSTOPPED(status));
}

void producer_process_continue(producer_process *process)
{
  assert_int_equal(kill(process->pid, SIGCONT), 0);
}

static void give_order(producer_process *process, order *what)
{
  assert_true(send_all(process->channel, what, sizeof(*what)));
  assert_true(receive_all(process->channel, what, sizeof(*what)));
}

void producer_process_offer(producer_process *process, uint32_t first, uint32_t count, uint32_t seed,
                            pair_ticket *ticket)
{
  order *what = calloc(1, sizeof(*what));
  assert_non_null(what);
  what->kind = ORDER_OFFER;
  what->first = first;
  what->count = count;
  what->seed = seed;
  give_order(process, what);
  *ticket = what->ticket;
  free(what);
}

void producer_process_overwrite(producer_process *process, const pair_ticket *ticket, uint32_t seed)
{
  order *what = calloc(1, sizeof(*what));
  assert_non_null(what);
  what->kind = ORDER_OVERWRITE;
  what->seed = seed;
  what->ticket = *ticket;
  give_order(process, what);
  free(what);
}
