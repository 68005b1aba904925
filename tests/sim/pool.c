/* Workers take seeds from a shared board until there are none or enough was found; progress is shown meanwhile. */
#include "pool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "tape.h"

#define JOBS_MAX 256

/* What the workers share with their parent. */
typedef struct board {
  _Atomic uint64_t next; /* seeds that have been handed out */
  _Atomic uint64_t done;
  _Atomic uint64_t loads;
  _Atomic uint64_t used;
  _Atomic uint32_t findings;
  atomic_bool stop;
  uint64_t current[JOBS_MAX];
  sim_finding finding[SIM_FINDINGS_MAX];
} board;

static double now_s(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void add_finding(board *shared, uint64_t seed, const kvf_sim_result *result)
{
  uint32_t index = atomic_fetch_add(&shared->findings, 1);
  if (index < SIM_FINDINGS_MAX) {
    shared->finding[index] = (sim_finding){seed, *result};
  }
  if (index + 1 >= SIM_FINDINGS_MAX) {
    atomic_store(&shared->stop, true);
  }
}

static void work(board *shared, const sim_pool_task *task, unsigned job)
{
  uint8_t tape[SIM_TAPE_BYTES];
  kvf_sim_result result;
  while (!atomic_load(&shared->stop)) {
    uint64_t index = atomic_fetch_add(&shared->next, 1);
    if (index >= task->count) {
      break;
    }
    shared->current[job] = task->first + index;
    sim_child_limit_run();
    sim_tape_of_seed(task->first + index, tape);
    if (kvf_sim_run(tape, sizeof(tape), NULL, &result) != 0) {
      add_finding(shared, task->first + index, &result);
    }
    atomic_fetch_add(&shared->done, 1);
    atomic_fetch_add(&shared->loads, result.loads);
    atomic_fetch_add(&shared->used, result.used);
  }
  exit(0); /* not _exit(): coverage and leaks are reported there */
}

static pid_t start_worker(board *shared, const sim_pool_task *task, unsigned job)
{
  (void)fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    work(shared, task, job);
  }
  return child;
}

static void show_progress(board *shared, double seconds)
{
  uint64_t done = atomic_load(&shared->done);
  (void)fprintf(stderr, "\r%" PRIu64 " seeds, %.0f a second, %u findings ", done, (double)done / seconds,
                atomic_load(&shared->findings));
}

/* A worker that has died is a finding, and is replaced. Returns how many live. */
static unsigned reap(board *shared, const sim_pool_task *task, pid_t *workers)
{
  unsigned alive = 0;
  for (unsigned job = 0; job < task->jobs; job++) {
    int status;
    kvf_sim_result result = {0};
    if (workers[job] > 0 && waitpid(workers[job], &status, WNOHANG) == workers[job]) {
      workers[job] = 0;
      if (sim_child_crash(status, &result)) {
        add_finding(shared, shared->current[job], &result);
        atomic_fetch_add(&shared->done, 1);
        workers[job] = atomic_load(&shared->stop) ? 0 : start_worker(shared, task, job);
      }
    }
    alive += workers[job] > 0;
  }
  return alive;
}

bool sim_pool_run(const sim_pool_task *given, sim_pool_outcome *outcome)
{
  sim_pool_task task = *given;
  pid_t workers[JOBS_MAX] = {0};
  board *shared = sim_shared(sizeof(*shared));
  double start_s = now_s();
  double shown_s = start_s;
  task.jobs = task.jobs > JOBS_MAX ? JOBS_MAX : task.jobs;
  if (shared == NULL) {
    (void)fprintf(stderr, "no memory to share: %s\n", strerror(errno));
    return false;
  }
  for (unsigned job = 0; job < task.jobs; job++) {
    workers[job] = start_worker(shared, &task, job);
  }
  while (reap(shared, &task, workers) > 0) {
    struct timespec pause = {.tv_nsec = 5000000};
    (void)nanosleep(&pause, NULL);
    double seconds = now_s() - start_s;
    if (task.seconds != 0 && seconds >= task.seconds) {
      atomic_store(&shared->stop, true);
    }
    if (task.progress && now_s() - shown_s > 0.5) {
      shown_s = now_s();
      show_progress(shared, seconds);
    }
  }
  outcome->seconds = now_s() - start_s;
  if (task.progress) {
    show_progress(shared, outcome->seconds);
    (void)fputc('\n', stderr);
  }
  outcome->seeds = atomic_load(&shared->done);
  outcome->loads = atomic_load(&shared->loads);
  outcome->used = atomic_load(&shared->used);
  outcome->findings_count = atomic_load(&shared->findings);
  outcome->findings_count = outcome->findings_count > SIM_FINDINGS_MAX ? SIM_FINDINGS_MAX : outcome->findings_count;
  memcpy(outcome->findings, shared->finding, sizeof(outcome->findings));
  return true;
}

/* ---- a search ---- */

/* From one start. */
typedef struct search {
  uint64_t seeds; /* so far; all of them if nothing was found */
  kvf_sim_result result;
} search;

static void look(const sim_search_task *task, unsigned start, search *out)
{
  uint8_t tape[SIM_TAPE_BYTES];
  (void)freopen("/dev/null", "w", stderr); /* an assertion's words */
  for (out->seeds = 1; out->seeds <= task->seeds_max; out->seeds++) {
    sim_child_limit_run();
    sim_tape_of_seed(task->first + start * task->seeds_max + out->seeds - 1, tape);
    if (kvf_sim_run(tape, sizeof(tape), NULL, &out->result) != 0) {
      break;
    }
  }
  _exit(0);
}

static int compare(const void *a, const void *b)
{
  uint64_t x = *(const uint64_t *)a;
  uint64_t y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static bool print(const sim_search_task *task, const search *searches)
{
  uint64_t seeds[SIM_SEARCH_STARTS_MAX];
  unsigned found = 0;
  const kvf_sim_result *last = &searches[0].result;
  for (unsigned i = 0; i < task->starts; i++) {
    seeds[i] = searches[i].seeds;
    if (searches[i].result.found) {
      found++;
      last = &searches[i].result;
    }
  }
  qsort(seeds, task->starts, sizeof(seeds[0]), compare);
  printf("%u/%u %" PRIu64 " %" PRIu64 " %s %s\n", found, task->starts, seeds[task->starts / 2], seeds[task->starts - 1],
         found > 0 ? last->promise : "-", found > 0 ? last->text : "not found");
  return found == task->starts;
}

int sim_search_run(const sim_search_task *given)
{
  sim_search_task task = *given;
  pid_t children[SIM_SEARCH_STARTS_MAX];
  unsigned running = 0;
  task.starts = task.starts > SIM_SEARCH_STARTS_MAX ? SIM_SEARCH_STARTS_MAX : task.starts;
  search *searches = sim_shared(SIM_SEARCH_STARTS_MAX * sizeof(*searches));
  if (searches == NULL || task.starts == 0) {
    return 1;
  }
  for (unsigned next = 0, ended = 0; ended < task.starts;) {
    if (next < task.starts && running < task.jobs) {
      (void)fflush(NULL);
      children[next] = fork();
      if (children[next] == 0) {
        look(&task, next, &searches[next]);
      }
      next++;
      running++;
      continue;
    }
    int status = 0;
    pid_t child = wait(&status);
    for (unsigned i = 0; i < next; i++) {
      if (children[i] == child) {
        (void)sim_child_crash(status, &searches[i].result);
      }
    }
    running--;
    ended++;
  }
  return print(&task, searches) ? 0 : 1;
}
