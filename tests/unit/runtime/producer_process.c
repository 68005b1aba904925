#include "producer_process.h"
#include "test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define TAKEN 32 /* descriptors of a child; more than a node has */

typedef enum order_kind { ORDER_OFFER = 1, ORDER_OVERWRITE = 2, ORDER_FORK = 3 } order_kind;

typedef struct order {
  order_kind kind;
  uint32_t first;
  uint32_t count;
  uint32_t seed;
  pair_ticket ticket; /* OVERWRITE, and the answer to OFFER */
} order;

/* ---- the producer ---- */

/* In the child: closes the copy of the node. False: that took descriptors which have the numbers of the node's now. */
static bool close_copy(const pair_node *node)
{
  int taken[TAKEN];
  bool kept = true;
  for (int i = 0; i < TAKEN; i++) {
    taken[i] = dup(STDERR_FILENO);
  }
  kvf_node_close(node->node);
  for (int i = 0; i < TAKEN; i++) {
    kept = close(taken[i]) == 0 && kept;
  }
  return kept;
}

/* The child closes its copy of the node, and lives until the test lets it go. False: it does not come to that. */
static bool fork_child(const pair_node *node)
{
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return false;
  }
  pid_t pid = fork();
  if (pid == 0) {
    struct pollfd channel = {.fd = STDIN_FILENO}; /* that it is closed: what is in it is its parent's */
    if (!close_copy(node) || write(ends[1], "", 1) != 1) {
      _exit(EXIT_FAILURE);
    }
    (void)poll(&channel, 1, -1);
    _exit(EXIT_SUCCESS);
  }
  char done;
  struct pollfd child = {.fd = ends[0], .events = POLLIN};
  (void)close(ends[1]);
  bool closed = poll(&child, 1, PAIR_LATE_MS) == 1 && read(ends[0], &done, 1) == 1;
  (void)close(ends[0]);
  if (!closed) {
    (void)kill(pid, SIGKILL); /* it holds the channel */
  }
  return closed;
}

static bool carry_out(pair_node *node, order *what)
{
  if (what->kind == ORDER_FORK) {
    return fork_child(node);
  }
  if (what->kind == ORDER_OFFER) {
    pair_offer(node, what->first, what->count, what->seed, true, &what->ticket);
    return true;
  }
  (void)kvf_lease_end(node->node, &what->ticket.lease);
  for (uint32_t i = 0; i < what->ticket.count; i++) {
    pair_fill(node, what->ticket.blocks[i], what->seed, i);
  }
  (void)kvf_lease_release(node->node, what->ticket.lease.id);
  return true;
}

int producer_process_main(void)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  char transports[32];
  if (!child_receive(STDIN_FILENO, transports, sizeof(transports))) {
    return EXIT_FAILURE;
  }
  const pair_option options[] = {{"transports", transports}, {NULL, NULL}};
  pair_node node;
  order *what = calloc(1, sizeof(*what));
  pair_open_node(&node, options);
  while (what != NULL && child_receive(STDIN_FILENO, what, sizeof(*what))) {
    if (!carry_out(&node, what) || !child_send(STDIN_FILENO, what, sizeof(*what))) {
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
  char named[32] = {0};
  assert_true(child_start(&process->child, "--producer", SOCK_STREAM));
  (void)snprintf(named, sizeof(named), "%s", transports);
  assert_true(child_send(process->child.channel, named, sizeof(named)));
}

void producer_process_end(producer_process *process)
{
  int status = child_end(&process->child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), EXIT_SUCCESS);
}

void producer_process_stop(producer_process *process)
{
  assert_true(child_stop(&process->child));
}

void producer_process_continue(producer_process *process)
{
  assert_true(child_continue(&process->child));
}

void producer_process_kill(producer_process *process)
{
  assert_int_equal(kill(process->child.pid, SIGKILL), 0);
  assert_int_equal(waitpid(process->child.pid, NULL, 0), process->child.pid);
}

void producer_process_release(producer_process *process)
{
  (void)close(process->child.channel);
}

static void give_order(producer_process *process, order *what)
{
  assert_true(child_send(process->child.channel, what, sizeof(*what)));
  assert_true(child_receive(process->child.channel, what, sizeof(*what)));
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

void producer_process_fork(producer_process *process)
{
  order *what = calloc(1, sizeof(*what));
  assert_non_null(what);
  what->kind = ORDER_FORK;
  give_order(process, what);
  free(what);
}
