/* Descriptions of pages: the tape builds two engines' (pages_world.h), and a load between all their ranks is compared,
 * byte by byte, with the reference; then what one says to the other is spoiled: it is refused, or stays in bounds. */
#include <stdio.h>

#include "../pages_world.h"
#include "fuzz.h"

static uint32_t choose(void *context, uint32_t n)
{
  fuzz_tape *tape = context;
  return n <= 256 ? fuzz_choose(tape, n) : fuzz_u32(tape) % n;
}

static void expect_nothing(const char *wrong)
{
  if (wrong != NULL) {
    fuzz_fail(__FILE__, __LINE__, wrong);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  fuzz_tape tape = {.data = data, .bytes = bytes};
  world w;
  world_random(&w, choose, &tape);
  expect_nothing(world_check(&w));
  for (int i = 0; i < 8 && !fuzz_is_over(&tape); i++) {
    expect_nothing(world_check_malformed(&w, choose, &tape));
  }
  return 0;
}

bool fuzz_seed(unsigned i, fuzz_seed_out *out)
{
  /* Any bytes are two engines: as many as the longest of them needs. */
  uint32_t number = 12345 + i;
  for (int at = 0; at < 160; at++) {
    number = number * 1664525u + 1013904223u;
    fuzz_put_u8(out, i == 0 ? 0 : number >> 24);
  }
  return i < 24;
}
