/* After how many seeds is a bug found, from several starts? For planted bugs: tests/mutants/test_mutants.py. */
#ifndef KVF_SIM_SEARCH_H
#define KVF_SIM_SEARCH_H

#include <stdint.h>

#define SIM_SEARCH_STARTS_MAX 32

typedef struct sim_search_task {
  uint64_t first; /* of the first start's seeds; the next start begins `seeds_max` further on */
  unsigned starts;
  uint64_t seeds_max;
  unsigned jobs;
} sim_search_task;

/* Prints one line: from how many starts something was found, the median and the most of the seeds that it took, the
 * promise and what was found. 0: found from every start. 1: not. */
int sim_search_run(const sim_search_task *task);

#endif
