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

/* A fault that was drawn has been done. */
void chaos_count(chaos_call call, chaos_kind kind);

/* Draws, and does what is to be done before the call: true if that fails, with `value`; it has been delayed otherwise,
 * if it was to be.
 */
bool chaos_goes_wrong(chaos_call call, chaos_fault *fault);

static inline bool chaos_is_on(void)
{
  return chaos_mapped != 0 && atomic_load_explicit(&chaos_mapped->on, memory_order_relaxed) != 0;
}

#endif
