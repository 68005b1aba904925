#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pair.h"
#include "test.h"

void process_start(producer_process *process, const node_shape *shape)
{
  assert_true(child_start(&process->child, "--producer", SOCK_STREAM));
  process->killed = false;
  assert_true(child_send(process->child.channel, shape, sizeof(*shape)));
  assert_true(child_receive(process->child.channel, &process->introduction, sizeof(process->introduction)));
  assert_true(child_receive(process->child.channel, &process->lease, sizeof(process->lease)));
}

void process_stop(producer_process *process)
{
  assert_true(child_stop(&process->child));
}

void process_continue(producer_process *process)
{
  assert_true(child_continue(&process->child));
}

void process_kill(producer_process *process)
{
  assert_int_equal(kill(process->child.pid, SIGKILL), 0);
  assert_true(WIFSIGNALED(child_end(&process->child)));
  process->killed = true;
}

void process_end(producer_process *process)
{
  if (!process->killed) {
    int status = child_end(&process->child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
  }
}

int process_main(void)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  node_shape shape;
  side *producer = allocate(sizeof(*producer));
  node_introduction *introduction = allocate(sizeof(*introduction));
  if (!child_receive(STDIN_FILENO, &shape, sizeof(shape))) {
    return EXIT_FAILURE;
  }
  producer_open(producer, &shape);
  node_introduce(producer, introduction);
  const node_lease *lease = node_publish(producer, LEASE_ID);
  if (!child_send(STDIN_FILENO, introduction, sizeof(*introduction)) ||
      !child_send(STDIN_FILENO, lease, sizeof(*lease))) {
    return EXIT_FAILURE;
  }
  char byte;
  while (child_receive(STDIN_FILENO, &byte, sizeof(byte))) {
  }
  node_close(producer);
  free(introduction);
  free(producer);
  return EXIT_SUCCESS;
}

/* ---- a consumer ---- */

#define CONSUMER_VOLLEYS 32 /* at once: more than sockets hold */

void consumer_start(child_process *child, const node_introduction *introduction, const node_lease *lease)
{
  char begun;
  assert_true(child_start(child, "--consumer", SOCK_STREAM));
  assert_true(child_send(child->channel, introduction, sizeof(*introduction)));
  assert_true(child_send(child->channel, lease, sizeof(*lease)));
  assert_true(child_receive(child->channel, &begun, sizeof(begun)));
}

void consumer_kill(const child_process *child)
{
  assert_int_equal(kill(child->pid, SIGKILL), 0);
  assert_true(WIFSIGNALED(child_end(child)));
}

int consumer_main(void)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  side *consumer = allocate(sizeof(*consumer));
  node_introduction *introduction = allocate(sizeof(*introduction));
  node_lease *lease = allocate(sizeof(*lease));
  const node_shape shape = node_shape_simple(VOLLEY_BLOCKS, VOLLEY_BLOCK_BYTES);
  if (!child_receive(STDIN_FILENO, introduction, sizeof(*introduction)) ||
      !child_receive(STDIN_FILENO, lease, sizeof(*lease))) {
    return EXIT_FAILURE;
  }
  consumer_open(consumer, &shape);
  kvf_link *link = node_connect_ok(consumer, introduction);
  for (int i = 0; i < CONSUMER_VOLLEYS; i++) {
    const char begun = 1;
    (void)volley_start(consumer, link, lease);
    if (i == 0 && !child_send(STDIN_FILENO, &begun, sizeof(begun))) {
      return EXIT_FAILURE;
    }
  }
  sleep_us(NODE_PATIENCE_MS * UINT64_C(1000));
  return EXIT_FAILURE; /* nobody has killed it */
}
