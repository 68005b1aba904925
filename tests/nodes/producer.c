/* A producer in a process of its own: see pair.h. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../cuda_driver.h"
#include "fake_cuda.h"
#include "pair.h"
#include "test.h"

#define WRITES_BEFORE 30
#define READ_MS 5 /* readers come to a lease that has been written over */
#define TAKEN 32  /* descriptors of a child; more than a node has */

typedef enum order_kind { ORDER_OFFER = 1, ORDER_OVERWRITE = 2, ORDER_FORK = 3 } order_kind;

/* As it travels. */
typedef struct option_text {
  char name[32];
  char value[256];
} option_text;

typedef struct order {
  order_kind kind;
  uint32_t first;
  uint32_t count;
  uint32_t seed;
  engine_write write; /* its value is 0: the bytes of the seed are there at once */
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

static void write_blocks(pair_node *node, const order *what)
{
  for (uint32_t i = 0; i < what->ticket.count; i++) {
    if (what->write.value != 0) {
      pair_write(node, what->ticket.blocks[i], what->write.value);
    } else {
      pair_fill(node, what->ticket.blocks[i], what->seed, i);
    }
  }
}

static void offer(pair_node *node, order *what)
{
  fake_cuda_seed(what->seed);
  pair_reserve(node, what->first, what->count, what->seed, &what->ticket);
  for (int i = 0; i < WRITES_BEFORE && what->write.out_of_order; i++) { /* readers come before the last */
    pair_write(node, what->ticket.blocks[0], (uint8_t)(what->write.value + 1));
  }
  write_blocks(node, what);
  const kvf_ordering_point *after = what->write.out_of_order ? NULL : pair_point(node);
  assert_int_equal(pair_publish_after(node, &what->ticket, after), KVF_OK);
}

static void overwrite(pair_node *node, const order *what)
{
  const kvf_lease *lease = &what->ticket.lease;
  if (what->write.out_of_order) {
    write_blocks(node, what);
    pair_finish(node);
    sleep_ms(READ_MS);
  }
  (void)kvf_lease_end(node->node, lease);
  if (!what->write.out_of_order) {
    write_blocks(node, what);
  }
  (void)pair_wait_lease_end(node, lease->id, PAIR_LATE_MS);
  assert_int_equal(kvf_lease_release(node->node, lease->id), KVF_OK);
}

static bool carry_out(pair_node *node, order *what)
{
  switch (what->kind) {
    case ORDER_OFFER:
      offer(node, what);
      break;
    case ORDER_OVERWRITE:
      overwrite(node, what);
      break;
    case ORDER_FORK:
      return fork_child(node);
  }
  return true;
}

static int run_producer(void)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  option_text texts[PRODUCER_OPTIONS_MAX];
  pair_option options[PRODUCER_OPTIONS_MAX + 1] = {{NULL, NULL}};
  if (!child_receive(STDIN_FILENO, texts, sizeof(texts))) {
    return EXIT_FAILURE;
  }
  for (int i = 0; i < PRODUCER_OPTIONS_MAX && texts[i].name[0] != '\0'; i++) {
    options[i] = (pair_option){texts[i].name, texts[i].value};
  }
  pair_node node;
  order what;
  pair_open_node(&node, options);
  if (node.memory == KVF_MEMORY_CUDA) {
    (void)cuda_driver_enter();
  }
  while (child_receive(STDIN_FILENO, &what, sizeof(what))) {
    if (!carry_out(&node, &what) || !child_send(STDIN_FILENO, &what, sizeof(what))) {
      break;
    }
  }
  pair_close_node(&node);
  return EXIT_SUCCESS;
}

int producer_process_main(int argc, char **argv)
{
  const char *argument = argc > 1 ? argv[1] : NULL;
  const bool is_producer = argument != NULL && strcmp(argument, "--producer") == 0;
  return is_producer ? run_producer() : test_run(argument);
}

/* ---- the test ---- */

void producer_process_start(producer_process *process, const pair_option *options)
{
  option_text texts[PRODUCER_OPTIONS_MAX] = {0};
  *process = (producer_process){.here = NULL};
  for (int i = 0; options[i].name != NULL; i++) {
    assert_true(i < PRODUCER_OPTIONS_MAX && strlen(options[i].value) < sizeof(texts[i].value));
    (void)snprintf(texts[i].name, sizeof(texts[i].name), "%s", options[i].name);
    (void)snprintf(texts[i].value, sizeof(texts[i].value), "%s", options[i].value);
  }
  assert_true(child_start(&process->child, "--producer", SOCK_STREAM));
  assert_true(child_send(process->child.channel, texts, sizeof(texts)));
}

void producer_process_here(producer_process *process, pair_node *node)
{
  *process = (producer_process){.here = node};
}

void producer_process_end(producer_process *process)
{
  int status = child_end(&process->child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), EXIT_SUCCESS);
}

void producer_process_kill(producer_process *process)
{
  assert_int_equal(kill(process->child.pid, SIGKILL), 0);
  assert_int_equal(waitpid(process->child.pid, NULL, 0), process->child.pid);
}

static void give_order(producer_process *process, order *what)
{
  if (process->here != NULL) {
    assert_true(carry_out(process->here, what));
    return;
  }
  assert_true(child_send(process->child.channel, what, sizeof(*what)));
  assert_true(child_receive(process->child.channel, what, sizeof(*what)));
}

void producer_process_write(producer_process *process, uint32_t first, uint32_t count, uint32_t seed,
                            engine_write write, pair_ticket *ticket)
{
  order what = {.kind = ORDER_OFFER, .first = first, .count = count, .seed = seed, .write = write};
  give_order(process, &what);
  *ticket = what.ticket;
}

void producer_process_offer(producer_process *process, uint32_t first, uint32_t count, uint32_t seed,
                            pair_ticket *ticket)
{
  producer_process_write(process, first, count, seed, (engine_write){0}, ticket);
}

void producer_process_overwrite(producer_process *process, const pair_ticket *ticket, uint32_t seed, engine_write write)
{
  order what = {.kind = ORDER_OVERWRITE, .seed = seed, .write = write, .ticket = *ticket};
  give_order(process, &what);
}

void producer_process_fork(producer_process *process)
{
  order what = {.kind = ORDER_FORK};
  give_order(process, &what);
}
