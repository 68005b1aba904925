#include "mutants.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mutant.h"
#include "child.h"
#include "tape.h"

#define STARTS_MAX 32

#ifdef KVF_MUTANTS_BUILT

/* What only real memory and real threads can show: tests/litmus. */
static bool is_of_memory_order(kvf_mutant mutant)
{
  return mutant == KVF_MUTANT_LIVE_UNORDERED || mutant == KVF_MUTANT_DIGEST_STORED_LATE;
}

/* The search for one bug from one start. */
typedef struct search {
  uint64_t seeds; /* so far; all of them if nothing was found */
  kvf_sim_result result;
} search;

static void look_for(const char *name, const sim_mutants_task *task, unsigned start, search *out)
{
  uint8_t tape[SIM_TAPE_BYTES];
  (void)freopen("/dev/null", "w", stderr); /* an assertion's words */
  if (!kvf_mutant_choose(name)) {
    _exit(1);
  }
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

static bool print_row(kvf_mutant mutant, const sim_mutants_task *task, const search *searches)
{
  uint64_t seeds[STARTS_MAX];
  unsigned found = 0;
  const char *by = "";
  const char *text = "not found";
  for (unsigned i = 0; i < task->starts; i++) {
    seeds[i] = searches[i].seeds;
    if (searches[i].result.found) {
      found++;
      by = searches[i].result.promise;
      text = searches[i].result.text;
    }
  }
  qsort(seeds, task->starts, sizeof(seeds[0]), compare);
  printf("%-28s %-3s  %-3s  %u/%-3u %9" PRIu64 " %9" PRIu64 "  %s\n", kvf_mutant_name(mutant),
         kvf_mutant_promise(mutant), by, found, task->starts, seeds[task->starts / 2], seeds[task->starts - 1], text);
  (void)fflush(stdout);
  return found == task->starts;
}

/* All starts of one bug, `jobs` at a time. */
static bool run_mutant(kvf_mutant mutant, const sim_mutants_task *task, search *searches)
{
  unsigned running = 0;
  pid_t children[STARTS_MAX];
  for (unsigned next = 0, ended = 0; ended < task->starts;) {
    if (next < task->starts && running < task->jobs) {
      searches[next] = (search){0};
      (void)fflush(NULL);
      children[next] = fork();
      if (children[next] == 0) {
        look_for(kvf_mutant_name(mutant), task, next, &searches[next]);
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
  return print_row(mutant, task, searches);
}

int sim_mutants_run(const sim_mutants_task *given)
{
  sim_mutants_task task = *given;
  task.starts = task.starts > STARTS_MAX ? STARTS_MAX : task.starts;
  search *searches = sim_shared(STARTS_MAX * sizeof(*searches));
  bool all = true;
  if (searches == NULL) {
    return 1;
  }
  printf("%-28s %-3s  %-3s  %-5s %9s %9s\n", "planted bug", "of", "by", "found", "median", "most");
  for (int i = KVF_MUTANT_NONE + 1; i < KVF_MUTANT_COUNT; i++) {
    if (is_of_memory_order((kvf_mutant)i)) {
      printf("%-28s %-3s  %-3s  see tests/litmus\n", kvf_mutant_name((kvf_mutant)i), kvf_mutant_promise((kvf_mutant)i),
             "");
    } else if (task.only == NULL || strcasecmp(task.only, kvf_mutant_name((kvf_mutant)i)) == 0) {
      all = run_mutant((kvf_mutant)i, &task, searches) && all;
    }
  }
  return all ? 0 : 1;
}

#else

int sim_mutants_run(const sim_mutants_task *task)
{
  (void)task;
  (void)fprintf(stderr, "this build has no planted bugs: -Dmutants=true\n");
  return 2;
}

#endif
