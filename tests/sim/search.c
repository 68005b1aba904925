#include "search.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "tape.h"

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
