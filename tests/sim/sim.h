/* The simulator: whole clusters of kvferry's real core and wire code in one process, under a virtual clock, with every
 * fault that the tape chooses. For programs that run tapes: kvferry-sim, a fuzzer. docs/simulation.md is the manual. */
#ifndef KVF_SIM_SIM_H
#define KVF_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define KVF_SIM_TEXT_BYTES 320

typedef struct kvf_sim_result {
  bool found;
  char promise[8]; /* "P1"; "SIM": the simulator itself is wrong or too small */
  char text[KVF_SIM_TEXT_BYTES];
  uint64_t hash;   /* of all that happened: the same for the same tape, on any machine */
  uint64_t events; /* of the run */
  uint64_t now_ns; /* virtual time when it ended */
  uint32_t loads;  /* that had an outcome */
  uint32_t used;   /* requests whose blocks were all loaded */
} kvf_sim_result;

/* Runs the world of a tape to its end. `trace` (may be NULL) takes what happened as text. Returns 0, or 1 if there is a
 * finding. A failed assertion or a crash of the code under test is one of the process. Not for several threads. */
int kvf_sim_run(const uint8_t *tape, size_t bytes, FILE *trace, kvf_sim_result *result);

#endif
