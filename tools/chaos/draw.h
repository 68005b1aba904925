/* Whether this call is one that goes wrong, and how. */
#ifndef KVFERRY_CHAOS_DRAW_H
#define KVFERRY_CHAOS_DRAW_H

#include <stdbool.h>
#include <stdint.h>

#include "control.h"

/* CHAOS_KINDS as the kind: none. */
typedef struct chaos_fault {
  chaos_kind kind;
  uint32_t value;
  uint64_t entropy; /* for what the fault has to choose: a length, a byte */
} chaos_fault;

/* NULL: there is no control file. */
extern chaos_control *chaos_mapped;

/* The next fault of this thread's sequence for the call. The sequence follows from the seed, the thread's place in the
 * order in which threads have made their first draw, the call, and how many draws the thread has made for it.
 */
chaos_fault chaos_draw(chaos_call call);

/* A fault that was drawn has been done. */
void chaos_count(chaos_call call, chaos_kind kind);

/* Sleeps where the fault says so, and counts it. */
void chaos_delay(chaos_call call, const chaos_fault *fault);

static inline bool chaos_is_on(void)
{
  return chaos_mapped != 0 && atomic_load_explicit(&chaos_mapped->on, memory_order_relaxed) != 0;
}

#endif
