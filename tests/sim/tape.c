#include "tape.h"

#include <string.h>

#include "base/prng.h"

void sim_tape_of_seed(uint64_t seed, uint8_t data[SIM_TAPE_BYTES])
{
  kvf_prng prng = {.state = seed};
  for (size_t at = 0; at < SIM_TAPE_BYTES; at += sizeof(uint64_t)) {
    uint64_t word = kvf_prng_next(&prng);
    for (size_t i = 0; i < sizeof(word); i++) {
      data[at + i] = (uint8_t)(word >> (8 * i));
    }
  }
}
