/* Seeds in many processes at a time. */
#ifndef KVF_SIM_POOL_H
#define KVF_SIM_POOL_H

#include "sim.h"

#define SIM_FINDINGS_MAX 16 /* then the run ends: more of them teach nothing */

typedef struct sim_finding {
  uint64_t seed;
  kvf_sim_result result;
} sim_finding;

typedef struct sim_pool_task {
  uint64_t first;
  uint64_t count;   /* UINT64_MAX: until the time is over */
  unsigned seconds; /* 0: until the seeds are */
  unsigned jobs;
  bool progress;
} sim_pool_task;

typedef struct sim_pool_outcome {
  uint64_t seeds;
  uint64_t loads;
  uint64_t used;
  double seconds;
  uint32_t findings_count;
  sim_finding findings[SIM_FINDINGS_MAX];
} sim_pool_outcome;

/* False, with a message on standard error, if the system does not let it. */
bool sim_pool_run(const sim_pool_task *task, sim_pool_outcome *outcome);

/* After how many seeds is a bug found, from several starts? For planted bugs: tests/mutants/test_mutants.py. */
#define SIM_SEARCH_STARTS_MAX 32

typedef struct sim_search_task {
  uint64_t first; /* of the first start's seeds; the next start begins `seeds_max` further on */
  unsigned starts;
  uint64_t seeds_max;
  unsigned jobs;
} sim_search_task;

/* Prints one line: from how many starts something was found, the median and the most of the seeds that it took, the
 * promise and what was found. 0: found from every start. 1: not. */
int sim_search_run(const sim_search_task *given);

#endif
