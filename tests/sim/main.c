#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "base/mutant.h"
#include "sim.h"
#include "tape.h"

int main(int argc, char **argv)
{
  uint64_t from = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  uint64_t to = argc > 2 ? strtoull(argv[2], NULL, 10) : from;
  FILE *trace = argc > 3 ? stdout : NULL;
  uint8_t tape[SIM_TAPE_BYTES];
  kvf_sim_result result;
  uint64_t events = 0, loads = 0, used = 0, found = 0;
  clock_t start = clock();
  for (uint64_t seed = from; seed <= to; seed++) {
    sim_tape_of_seed(seed, tape);
    if (kvf_sim_run(tape, sizeof(tape), trace, &result)) {
      printf("seed %" PRIu64 ": %s: %s\n", seed, result.promise, result.text);
      if (++found >= 10) break;
    }
    events += result.events; loads += result.loads; used += result.used;
  }
  double s = (double)(clock() - start) / CLOCKS_PER_SEC;
  uint64_t n = to - from + 1;
  printf("%.2f s, %.2f ms a seed, %.1f events, %.2f loads, %.2f used\n", s, 1e3 * s / (double)n, (double)events / (double)n, (double)loads / (double)n, (double)used / (double)n);
  return 0;
}
