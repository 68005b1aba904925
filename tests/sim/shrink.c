/* Cuts pieces out of a tape, zeroes pieces and lowers bytes, and keeps each change that still finds it. */
#include "shrink.h"

#include <ctype.h>
#include <string.h>
#include <time.h>

#include "child.h"
#include "tape.h"

typedef struct shrinking {
  uint8_t *tape;
  size_t *bytes;
  kvf_sim_result *result;
  time_t until;
} shrinking;

/* The same promise, and the same text but for its numbers. */
static bool is_same_kind(const kvf_sim_result *a, const kvf_sim_result *b)
{
  const char *x = a->text;
  const char *y = b->text;
  if (!a->found || !b->found || strcmp(a->promise, b->promise) != 0) {
    return false;
  }
  while (*x != '\0' || *y != '\0') {
    while (isdigit((unsigned char)*x)) {
      x++;
    }
    while (isdigit((unsigned char)*y)) {
      y++;
    }
    if (*x != *y) {
      return false;
    }
    x += *x != '\0';
    y += *y != '\0';
  }
  return true;
}

/* Keeps the candidate if it still finds it. */
static bool keep(shrinking *work, const uint8_t *candidate, size_t bytes)
{
  kvf_sim_result result;
  if (time(NULL) >= work->until) {
    return false;
  }
  sim_child_run(candidate, bytes, NULL, &result);
  if (!is_same_kind(&result, work->result)) {
    return false;
  }
  memmove(work->tape, candidate, bytes);
  *work->bytes = bytes;
  *work->result = result;
  return true;
}

static bool cut_pieces(shrinking *work, size_t piece)
{
  uint8_t candidate[SIM_TAPE_FILE_BYTES];
  bool any = false;
  for (size_t end = *work->bytes; end >= piece && end > 0; end -= piece < end ? piece : end) {
    if (end > *work->bytes) {
      continue;
    }
    memcpy(candidate, work->tape, end - piece);
    memcpy(candidate + end - piece, work->tape + end, *work->bytes - end);
    any = keep(work, candidate, *work->bytes - piece) || any;
  }
  return any;
}

static bool is_zero(const uint8_t *data, size_t bytes)
{
  for (size_t i = 0; i < bytes; i++) {
    if (data[i] != 0) {
      return false;
    }
  }
  return true;
}

static bool zero_pieces(shrinking *work, size_t piece)
{
  uint8_t candidate[SIM_TAPE_FILE_BYTES];
  bool any = false;
  for (size_t at = 0; at + piece <= *work->bytes; at += piece) {
    if (!is_zero(work->tape + at, piece)) {
      memcpy(candidate, work->tape, *work->bytes);
      memset(candidate + at, 0, piece);
      any = keep(work, candidate, *work->bytes) || any;
    }
  }
  return any;
}

/* Small numbers are easier to read. */
static bool lower_bytes(shrinking *work)
{
  uint8_t candidate[SIM_TAPE_FILE_BYTES];
  bool any = false;
  for (size_t at = 0; at < *work->bytes; at++) {
    static const uint8_t masks[] = {0x0f, 0x3f, 0x7f};
    for (size_t i = 0; i < sizeof(masks); i++) {
      memcpy(candidate, work->tape, *work->bytes);
      candidate[at] &= masks[i];
      if (candidate[at] != work->tape[at] && keep(work, candidate, *work->bytes)) {
        any = true;
        break;
      }
    }
  }
  return any;
}

void sim_shrink(uint8_t *tape, size_t *bytes, unsigned seconds, kvf_sim_result *result)
{
  shrinking work = {tape, bytes, result, time(NULL) + (time_t)seconds};
  bool any = true;
  while (any && time(NULL) < work.until) {
    any = false;
    for (size_t piece = 128; piece > 0; piece /= 2) {
      any = cut_pieces(&work, piece) || any;
      any = zero_pieces(&work, piece) || any;
    }
    any = lower_bytes(&work) || any;
  }
}
