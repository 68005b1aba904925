/* Bytes of the input as choices, numbers as a target puts them into a seed, and how a finding is told. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The fuzzers' compiler has this interface, gcc 12 does not. */
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#include <sanitizer/allocator_interface.h>
#endif
#endif

void fuzz_fail(const char *file, int line, const char *what)
{
  (void)fprintf(stderr, "%s:%d: broken: %s\n", file, line, what);
  abort();
}

size_t fuzz_heap_bytes(void)
{
#ifdef HAS_ASAN
  return __sanitizer_get_current_allocated_bytes();
#else
  return 0;
#endif
}

void fuzz_put(fuzz_seed_out *out, const void *data, size_t bytes)
{
  fuzz_check(bytes <= FUZZ_SEED_BYTES_MAX - out->bytes);
  if (bytes > 0) {
    memcpy(out->data + out->bytes, data, bytes);
    out->bytes += bytes;
  }
}

void fuzz_put_u8(fuzz_seed_out *out, unsigned value)
{
  uint8_t byte = (uint8_t)value;
  fuzz_put(out, &byte, 1);
}

const uint8_t *fuzz_bytes(fuzz_tape *tape, size_t wanted, size_t *got)
{
  static const uint8_t none;
  size_t left = tape->bytes - tape->at;
  const uint8_t *bytes = left == 0 ? &none : tape->data + tape->at;
  *got = wanted < left ? wanted : left;
  tape->at += *got;
  return bytes;
}

static uint64_t little_endian(fuzz_tape *tape, size_t wanted)
{
  size_t got;
  const uint8_t *bytes = fuzz_bytes(tape, wanted, &got);
  uint64_t value = 0;
  for (size_t i = 0; i < got; i++) {
    value |= (uint64_t)bytes[i] << (8 * i);
  }
  return value;
}

uint8_t fuzz_u8(fuzz_tape *tape)
{
  return (uint8_t)little_endian(tape, 1);
}

uint16_t fuzz_u16(fuzz_tape *tape)
{
  return (uint16_t)little_endian(tape, 2);
}

uint32_t fuzz_u32(fuzz_tape *tape)
{
  return (uint32_t)little_endian(tape, 4);
}

uint64_t fuzz_u64(fuzz_tape *tape)
{
  return little_endian(tape, 8);
}

unsigned fuzz_choose(fuzz_tape *tape, unsigned n)
{
  return fuzz_u8(tape) % n;
}

bool fuzz_put_nth(fuzz_seed_out *out, unsigned i, const fuzz_tape_seed *seeds, size_t count)
{
  if (i < count) {
    fuzz_put(out, seeds[i].tape, seeds[i].bytes);
  }
  return i < count;
}

void fuzz_drive(const fuzz_world *world, const uint8_t *data, size_t bytes)
{
  static bool is_warm;
  if (!is_warm) {
    world->open();
    world->warm_up();
    world->close();
    is_warm = true;
  }
  fuzz_tape tape = {.data = data, .bytes = bytes};
  size_t heap = fuzz_heap_bytes();
  world->open();
  while (!fuzz_is_over(&tape)) {
    world->step(&tape);
    world->check();
  }
  world->close();
  fuzz_check(fuzz_heap_bytes() == heap);
}
