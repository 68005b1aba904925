/* What the fuzz targets share. A target is one file: LLVMFuzzerTestOneInput(), which libFuzzer (option `fuzz`) or
 * replay.c calls, and fuzz_seed(), real messages to begin with. What must not happen ends the process: fuzz_check().
 *
 * A target reads its input as a tape of choices: past the end come zeros, and zero is the most benign choice. One input
 * leaves nothing behind, so that any file of the corpus can be replayed alone.
 */
#ifndef KVF_TESTS_FUZZ_H
#define KVF_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define FUZZ_SEED_BYTES_MAX 65536

/* Where a seed is written; writing beyond the room is a mistake of the target's, which ends the process. */
typedef struct fuzz_seed_out {
  uint8_t *data;
  size_t bytes;
} fuzz_seed_out;

/* The i-th seed of the target; false past the last. */
bool fuzz_seed(unsigned i, fuzz_seed_out *out);

void fuzz_put(fuzz_seed_out *out, const void *data, size_t bytes);
void fuzz_put_u8(fuzz_seed_out *out, unsigned value);

typedef struct fuzz_tape_seed {
  const char *tape;
  size_t bytes;
} fuzz_tape_seed;

/* fuzz_seed() of a target whose seeds are this table. */
bool fuzz_put_nth(fuzz_seed_out *out, unsigned i, const fuzz_tape_seed *seeds, size_t count);

/* ---- the tape ---- */

typedef struct fuzz_tape {
  const uint8_t *data;
  size_t bytes;
  size_t at;
} fuzz_tape;

static inline bool fuzz_is_over(const fuzz_tape *tape)
{
  return tape->at == tape->bytes;
}

uint8_t fuzz_u8(fuzz_tape *tape);
uint16_t fuzz_u16(fuzz_tape *tape);
uint32_t fuzz_u32(fuzz_tape *tape);
uint64_t fuzz_u64(fuzz_tape *tape);
/* 0 to n - 1; n is 1 to 256. */
unsigned fuzz_choose(fuzz_tape *tape, unsigned n);
/* The next bytes of the tape, fewer where it ends: *got tells. Never NULL. */
const uint8_t *fuzz_bytes(fuzz_tape *tape, size_t wanted, size_t *got);

/* A world that a tape drives, step by step, and what is checked after each. */
typedef struct fuzz_world {
  void (*open)(void);
  void (*warm_up)(void); /* once, in a world of its own: what OpenSSL allocates once */
  void (*step)(fuzz_tape *tape);
  void (*check)(void);
  void (*close)(void);
} fuzz_world;

/* LLVMFuzzerTestOneInput() of such a target: at the end the heap is as it was. */
void fuzz_drive(const fuzz_world *world, const uint8_t *data, size_t bytes);

/* ---- checks ---- */

/* Says what was broken, and where, and aborts. */
_Noreturn void fuzz_fail(const char *file, int line, const char *what);

#define fuzz_check(condition) ((condition) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #condition))

/* Bytes on the heap, where the address sanitizer counts them; else 0. */
size_t fuzz_heap_bytes(void);

#endif
