/* A producer in a process of its own, which is stopped, continued and killed. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../child_process.h"
#include "stress.h"

#define OFFER_PAUSE_US 2000

/* ---- in the child ---- */

static bool send_ticket(const stress_ticket *ticket)
{
  return send(STDIN_FILENO, ticket, sizeof(*ticket), MSG_NOSIGNAL) == (ssize_t)sizeof(*ticket);
}

/* Its engine, and a thread that sends the tickets to the parent until that is gone. */
int stress_child_main(void)
{
  static stress_site site;
  pthread_t threads[2];
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  stress_seed((uint64_t)getpid());
  kvf_prng prng = stress_prng();
  if (!stress_site_open(&site, "local,tcp", false) || pthread_create(&threads[0], NULL, stress_produce, &site) != 0 ||
      pthread_create(&threads[1], NULL, stress_produce_poll, &site) != 0) {
    return EXIT_FAILURE;
  }
  bool listens = true;
  while (listens && atomic_load(&stress_wrong) == 0) {
    stress_ticket ticket;
    struct pollfd parent = {.fd = STDIN_FILENO, .events = POLLIN}; /* it never writes: readable means that it hung up */
    if (stress_take(&prng, &ticket)) {
      listens = send_ticket(&ticket);
    }
    listens = listens && poll(&parent, 1, 0) == 0;
    stress_sleep_us(OFFER_PAUSE_US);
  }
  atomic_store(&stress_stop, true);
  (void)pthread_join(threads[0], NULL);
  atomic_store(&stress_last, true);
  (void)pthread_join(threads[1], NULL);
  stress_site_close(&site);
  return atomic_load(&stress_wrong) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- in the parent ---- */

/* Waits for its end, having hung up or killed it. */
static void reap(const child_process *child, bool killed)
{
  if (killed) {
    (void)kill(child->pid, SIGKILL);
  }
  int status = child_end(child);
  if (!killed && !(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS)) {
    stress_fail("P6", "the child process has failed (%d)", status);
  }
}

/* False: it has hung up. */
static bool pass_tickets_on(const child_process *child)
{
  stress_ticket ticket;
  struct pollfd readable = {.fd = child->channel, .events = POLLIN};
  for (int i = 0; i < 20; i++) {
    if (poll(&readable, 1, 5) == 0) {
      continue;
    }
    if (recv(child->channel, &ticket, sizeof(ticket), 0) != (ssize_t)sizeof(ticket)) {
      return false;
    }
    stress_offer(&ticket);
  }
  return true;
}

static void pause_child(const child_process *child, kvf_prng *prng)
{
  (void)kill(child->pid, SIGSTOP);
  stress_sleep_us(kvf_prng_below(prng, 500000));
  (void)kill(child->pid, SIGCONT);
}

void *stress_child(void *unused)
{
  (void)unused;
  kvf_prng prng = stress_prng();
  while (!atomic_load(&stress_stop)) {
    child_process child;
    bool killed = stress_one_in(&prng, 2);
    if (!child_start(&child, "--child", SOCK_SEQPACKET)) {
      stress_fail("P6", "no child process");
      return NULL;
    }
    uint64_t turns = 5 + kvf_prng_below(&prng, 40);
    bool talks = true;
    while (talks && turns-- > 0 && !atomic_load(&stress_stop)) {
      talks = pass_tickets_on(&child);
      if (talks && stress_one_in(&prng, 6)) {
        pause_child(&child, &prng);
      }
    }
    reap(&child, killed && talks);
  }
  return NULL;
}
