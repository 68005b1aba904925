#include "pattern.h"

#include <string.h>

#define PART_BYTES 4096

typedef struct part {
  uint64_t words[PART_BYTES / sizeof(uint64_t)];
  const uint8_t *bytes; /* from the place on */
  size_t count;
} part;

static uint64_t word_at(pattern_place at, uint64_t index)
{
  uint64_t mixed = (at.seed * UINT64_C(0x9e3779b97f4a7c15)) ^ (at.region * UINT64_C(0xbf58476d1ce4e5b9)) ^
                   (at.block * UINT64_C(0x94d049bb133111eb)) ^ (index * UINT64_C(0xd6e8feb86659fd93));
  return (mixed ^ (mixed >> 32)) * UINT64_C(0xff51afd7ed558ccd);
}

/* As much of `bytes` as a part holds. */
static void make_part(part *out, pattern_place at, size_t bytes)
{
  size_t skip = at.offset % sizeof(uint64_t);
  out->bytes = (const uint8_t *)out->words + skip;
  out->count = bytes < PART_BYTES - skip ? bytes : PART_BYTES - skip;
  for (size_t i = 0; i * sizeof(uint64_t) < skip + out->count; i++) {
    out->words[i] = word_at(at, at.offset / sizeof(uint64_t) + i);
  }
}

void pattern_fill(uint8_t *to, pattern_place at, size_t bytes)
{
  part made;
  for (; bytes > 0; bytes -= made.count, at.offset += made.count, to += made.count) {
    make_part(&made, at, bytes);
    memcpy(to, made.bytes, made.count);
  }
}

bool pattern_is(const uint8_t *got, pattern_place at, size_t bytes)
{
  part made;
  for (; bytes > 0; bytes -= made.count, at.offset += made.count, got += made.count) {
    make_part(&made, at, bytes);
    if (memcmp(got, made.bytes, made.count) != 0) {
      return false;
    }
  }
  return true;
}
