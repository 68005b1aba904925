/* Is each planted bug found, and after how many seeds? */
#ifndef KVF_SIM_MUTANTS_H
#define KVF_SIM_MUTANTS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_mutants_task {
  const char *only; /* one bug's name; NULL: all */
  uint64_t first;   /* of the first start's seeds; the next start begins `seeds_max` further on */
  unsigned starts;
  uint64_t seeds_max;
  unsigned jobs;
} sim_mutants_task;

/* Prints a table. 0: all are found from every start. 1: one is not. 2: this build has no planted bugs. */
int sim_mutants_run(const sim_mutants_task *task);

#endif
