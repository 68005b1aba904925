/* Forks for each run, limits its processor time, and turns the way in which it ended into a finding. */
#include "child.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* A run takes milliseconds. Of the processor's time, since a busy machine may take any time for it. */
#define RUN_SECONDS_MAX 10

void sim_child_limit_run(void)
{
  const struct itimerval limit = {.it_value = {.tv_sec = RUN_SECONDS_MAX}};
  (void)setitimer(ITIMER_PROF, &limit, NULL);
}

void *sim_shared(size_t bytes)
{
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

bool sim_child_crash(int wait_status, kvf_sim_result *result)
{
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) {
    return false;
  }
  result->found = true;
  (void)snprintf(result->promise, sizeof(result->promise), "P6");
  if (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGPROF) {
    (void)snprintf(result->text, sizeof(result->text), "the run does not end");
  } else if (WIFSIGNALED(wait_status)) {
    (void)snprintf(result->text, sizeof(result->text), "the process dies: %s", strsignal(WTERMSIG(wait_status)));
  } else {
    (void)snprintf(result->text, sizeof(result->text), "the process ends itself: status %d", WEXITSTATUS(wait_status));
  }
  return true;
}

void sim_child_run(const uint8_t *tape, size_t bytes, FILE *trace, kvf_sim_result *result)
{
  static kvf_sim_result *shared;
  int status = 0;
  if (shared == NULL) {
    shared = sim_shared(sizeof(*shared));
  }
  *shared = (kvf_sim_result){0};
  (void)fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    sim_child_limit_run();
    if (trace == NULL) {
      (void)freopen("/dev/null", "w", stderr);
    }
    (void)kvf_sim_run(tape, bytes, trace, shared);
    (void)fflush(NULL);
    exit(0); /* not _exit(): coverage and leaks are reported there */
  }
  (void)waitpid(child, &status, 0);
  *result = *shared;
  (void)sim_child_crash(status, result);
}
