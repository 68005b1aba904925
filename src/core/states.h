/* Machines with states: each has a table that says of each state, by bits, which may follow it. */
#ifndef KVF_CORE_STATES_H
#define KVF_CORE_STATES_H

#include <assert.h>
#include <stdbool.h>

#define KVF_BIT(state) (1u << (state))

/* A macro, so that a build without assertions has no code of this. */
#define KVF_CHECK_MOVE(next_states, from, to)         \
  do {                                                \
    assert(((next_states)[from] & KVF_BIT(to)) != 0); \
    (void)(next_states);                              \
  } while (false)

#endif
