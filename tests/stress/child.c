/* A producer in a process of its own, which is stopped, continued and killed. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stress.h"

/* ---- in the child ---- */

/* Its engine, until the parent has hung up. */
int stress_child_main(void)
{
  static stress_site site;
  stress_setting setting;
  stress_threads engine = {.count = 0};
  stress_threads poller = {.count = 0};
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  stress_seed((uint64_t)getpid());
  if (!child_receive(STDIN_FILENO, &setting, sizeof(setting))) {
    return EXIT_FAILURE;
  }
  stress_mix_now = setting.churn ? &stress_churn_mix : &stress_rain_mix;
  stress_offer_to(STDIN_FILENO);
  if (setting.devices) {
    stress_devices_begin();
  }
  stress_site_open(&site, &setting);
  stress_begin(&engine, stress_engine, &site);
  stress_begin(&poller, stress_poll, &site);
  if (setting.devices && !setting.churn) {
    stress_begin(&engine, stress_shake_device, NULL);
  }
  struct pollfd parent = {.fd = STDIN_FILENO, .events = POLLIN}; /* it writes no more: readable means that it hung up */
  while (atomic_load(&stress_wrong) == 0 && poll(&parent, 1, 5) == 0) {
  }
  atomic_store(&stress_stop, true);
  stress_join(&engine);
  atomic_store(&stress_last, true);
  stress_join(&poller);
  stress_site_close(&site);
  return atomic_load(&stress_wrong) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* ---- in the parent ---- */

bool stress_child_start(child_process *child, const stress_setting *setting)
{
  bool started = child_start(child, "--child", SOCK_SEQPACKET) && child_send(child->channel, setting, sizeof(*setting));
  if (!started) {
    stress_fail("P6", "no child process");
  }
  return started;
}

stress_news stress_child_hear(const child_process *child, stress_ticket *out)
{
  struct pollfd readable = {.fd = child->channel, .events = POLLIN};
  if (poll(&readable, 1, 5) <= 0) {
    return STRESS_NO_NEWS;
  }
  return recv(child->channel, out, sizeof(*out), 0) == (ssize_t)sizeof(*out) ? STRESS_TICKET : STRESS_HUNG_UP;
}

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
  stress_news news = STRESS_NO_NEWS;
  for (int i = 0; i < 20 && news != STRESS_HUNG_UP; i++) {
    news = stress_child_hear(child, &ticket);
    if (news == STRESS_TICKET) {
      stress_offer(&ticket);
    }
  }
  return news != STRESS_HUNG_UP;
}

static void pause_child(const child_process *child, kvf_prng *prng)
{
  (void)kill(child->pid, SIGSTOP);
  sleep_us(kvf_prng_below(prng, 500000));
  (void)kill(child->pid, SIGCONT);
}

void *stress_child(void *context)
{
  kvf_prng prng = stress_prng();
  while (!atomic_load(&stress_stop)) {
    child_process child;
    bool killed = stress_one_in(&prng, 2);
    if (!stress_child_start(&child, context)) {
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
