/* Machines with states: each has a table of a bit for each state that may follow another. */
#ifndef KVF_CORE_STATES_H
#define KVF_CORE_STATES_H

#include <assert.h>

#define KVF_BIT(state) (1u << (state))

static inline void kvf_check_move(const unsigned *next_states, unsigned from, unsigned to)
{
  assert((next_states[from] & KVF_BIT(to)) != 0);
  (void)next_states;
  (void)from;
  (void)to;
}

#endif
