/* The finder: tickets are asked for by a key if no router sends them. It is a guest of a core (core/guest.h) with two
 * sides: the offers of this node (offers.h), and its own questions to others (find.h). */
#ifndef KVF_FIND_FINDER_H
#define KVF_FIND_FINDER_H

#include "core/core.h"
#include "find/find.h"
#include "find/offers.h"

/* How often a session may ask for a ticket, a second's worth at once; beyond it there is none. As many as a consumer
 * has open at most (KVF_FINDS_MAX), since it asks for all of them again when it has lost its connection. */
#define KVF_FINDS_PER_S 1000u

/* Only grow. */
typedef struct kvf_finder_counters {
  uint64_t heard;   /* questions for which an offer was looked for */
  uint64_t refused; /* beyond KVF_FINDS_PER_S */
} kvf_finder_counters;

typedef struct kvf_finder {
  kvf_guest guest;
  kvf_offers offers;
  kvf_finds finds;
  kvf_finder_counters counters;
} kvf_finder;

/* In memory that does not move. It is freed with the core. */
void kvf_finder_init(kvf_finder *finder, kvf_core *core);

/* kvferry/stats.h. */
size_t kvf_finder_stats(const kvf_finder *finder, kvf_stat *out, size_t capacity);

#endif
