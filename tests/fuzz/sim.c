/* The simulator's tape: whole clusters, whose checkers say what must hold (tests/sim). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "fuzz.h"
#include "sim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  kvf_sim_result result;
  /* "SIM": the input makes a world that is larger than the simulator is built for. */
  if (kvf_sim_run(data, bytes, NULL, &result) != 0 && strcmp(result.promise, "SIM") != 0) {
    (void)fprintf(stderr, "broken: %s: %s\n", result.promise, result.text);
    abort();
  }
  return 0;
}

/* The most benign run, and some random ones. */
bool fuzz_seed(unsigned i, fuzz_seed_out *out)
{
  kvf_prng prng = {.state = i};
  if (i >= 8) {
    return false;
  }
  for (unsigned k = 0; k < 100 * i; k++) {
    fuzz_put_u8(out, (unsigned)kvf_prng_below(&prng, 256));
  }
  return true;
}
