/* Sides in processes of their own, of this very executable. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sides.h"
#include "test.h"

/* ---- a producer ---- */

void process_start(sides *two)
{
  const int *channel = &two->process.channel;
  two->lease = &two->producer.leases[0];
  assert_true(child_start(&two->process, "--producer", SOCK_STREAM));
  assert_true(child_receive(*channel, &two->introduction, sizeof(two->introduction)));
  assert_true(child_receive(*channel, two->lease, sizeof(*two->lease)));
  sides_link(two);
}

void process_stop(const sides *two)
{
  assert_true(child_stop(&two->process));
}

void process_continue(const sides *two)
{
  assert_true(child_continue(&two->process));
}

void process_kill(sides *two)
{
  consumer_kill(&two->process);
  two->process.pid = 0;
}

void process_end(sides *two)
{
  int status = child_end(&two->process);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

int process_main(void)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  sides *two = allocate(sizeof(*two));
  volley_producer(&two->producer);
  sides_meet(two);
  if (!child_send(STDIN_FILENO, &two->introduction, sizeof(two->introduction)) ||
      !child_send(STDIN_FILENO, two->lease, sizeof(*two->lease))) {
    return EXIT_FAILURE;
  }
  char byte;
  while (child_receive(STDIN_FILENO, &byte, sizeof(byte))) {
  }
  side_close(&two->producer);
  free(two);
  return EXIT_SUCCESS;
}

/* ---- a consumer ---- */

#define CONSUMER_VOLLEYS 32 /* at once: more than sockets hold */

void consumer_start(child_process *child, const sides *two)
{
  char begun;
  assert_true(child_start(child, "--consumer", SOCK_STREAM));
  assert_true(child_send(child->channel, &two->introduction, sizeof(two->introduction)));
  assert_true(child_send(child->channel, two->lease, sizeof(*two->lease)));
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
  sides *two = volley_sides_apart();
  two->lease = &two->producer.leases[0];
  if (!child_receive(STDIN_FILENO, &two->introduction, sizeof(two->introduction)) ||
      !child_receive(STDIN_FILENO, two->lease, sizeof(*two->lease))) {
    return EXIT_FAILURE;
  }
  sides_link(two);
  for (int i = 0; i < CONSUMER_VOLLEYS; i++) {
    const char begun = 1;
    (void)volley_start(two);
    if (i == 0 && !child_send(STDIN_FILENO, &begun, sizeof(begun))) {
      return EXIT_FAILURE;
    }
  }
  sleep_us(SIDE_PATIENCE_MS * UINT64_C(1000));
  return EXIT_FAILURE; /* nobody has killed it */
}
