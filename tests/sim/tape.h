/* The choice tape: every choice of a run is the next byte of a tape. Past its end each choice is 0, and 0 is always the
 * most benign one, so that deleting and zeroing bytes makes a run simpler. */
#ifndef KVF_SIM_TAPE_H
#define KVF_SIM_TAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a seed's tape. */
#define SIM_TAPE_BYTES 640

typedef struct sim_tape {
  const uint8_t *data;
  size_t bytes;
  size_t at;
} sim_tape;

static inline bool sim_tape_is_over(const sim_tape *tape)
{
  return tape->at >= tape->bytes;
}

/* A number below `count`, which is 1 to 256. */
static inline uint32_t sim_choose(sim_tape *tape, uint32_t count)
{
  return sim_tape_is_over(tape) ? 0 : tape->data[tape->at++] % count;
}

/* As sim_choose(), and what is left of the byte decides something else: *rest is 0 to 255 / count, most benign 0. So a
 * choice is added without a byte of its own, and kept tapes go on to mean what they meant. */
static inline uint32_t sim_choose_both(sim_tape *tape, uint32_t count, uint32_t *rest)
{
  uint32_t byte = sim_choose(tape, 256);
  *rest = byte / count;
  return byte % count;
}

/* True once in `count` times. */
static inline bool sim_chance(sim_tape *tape, uint32_t count)
{
  return sim_choose(tape, count) == count - 1;
}

/* The tape of a seed. */
void sim_tape_of_seed(uint64_t seed, uint8_t data[SIM_TAPE_BYTES]);

/* ---- files: hexadecimal digits in lines; lines that begin with '#' say what the tape is for ---- */

#define SIM_TAPE_FILE_BYTES 4096 /* of a tape */

/* False, with a message on standard error, if the file cannot be read or is no tape. */
bool sim_tape_read(const char *link_id, uint8_t data[SIM_TAPE_FILE_BYTES], size_t *bytes);
/* `what` is the comment. */
bool sim_tape_write(const char *link_id, const uint8_t *data, size_t bytes, const char *what);

#endif
