/* Loads: what an engine asked for, as one load of its request, over the sources of its ticket: one attempt after the
 * other, until one has brought all that is missing. An attempt never knows of another; the engine has one outcome and
 * one quiet.
 *
 *   TRIES ──► HELD (its outcome is held back: once it is quiet the next source is tried) ──► TRIES
 *     └─────────┴──► TOLD (outcome event) ──► quiet event, and freed
 */
#ifndef KVF_CORE_LOAD_H
#define KVF_CORE_LOAD_H

#include "core/attempt.h"
#include "core/peer.h"
#include "core/pool.h"
#include "core/request.h"
#include "kvferry/kvferry.h"

/* What a load takes to go on from another source: a copy of what it was started with, in one allocation. */
typedef struct kvf_load_others {
  kvf_sources sources; /* all but the one that it began with */
  uint32_t next;       /* to try */
  const uint32_t *destination;
  kvf_ticket tickets[]; /* and then the block ids of each, and of the destination */
} kvf_load_others;

typedef enum kvf_open_load_state { KVF_OPEN_LOAD_TRIES, KVF_OPEN_LOAD_HELD, KVF_OPEN_LOAD_TOLD } kvf_open_load_state;

/* A load, until its quiet has been taken. */
typedef struct kvf_open_load {
  uint64_t request_id;
  uint64_t user;
  UT_hash_handle by_id;
  uint64_t point; /* that its attempts write nothing before; 0: none, or it has come */
  kvf_open_load_state state;
  kvf_list event; /* in kvf_loads.events while an event of it is due */
  bool outcome_due;
  bool quiet_due;
  kvf_report report; /* of the last attempt */
  uint64_t begun_ns;
  uint64_t deadline_ns;    /* of all attempts together */
  kvf_timer timer;         /* HELD: the deadline, or quiet_timeout_ms from the last outcome if that is earlier */
  kvf_load_others *others; /* NULL: its ticket names no other source */
  kvf_attempt *attempt;    /* NULL: the last one is quiet */
  uint32_t peers_count;
  uint32_t peers[KVF_RANKS_MAX]; /* that its attempt holds */
} kvf_open_load;

typedef struct kvf_loads {
  kvf_self *self;
  kvf_wheel *wheel;
  kvf_peers *peers;
  kvf_requests *requests;
  const kvf_pool *pool;
  kvf_attempts *attempts;
  kvf_open_load *by_id; /* the request's */
  kvf_list events;
  uint64_t outcomes[KVF_STATUSES_MAX]; /* by status: [i] counts kvf_status_at(i) */
  uint64_t source_switches;
} kvf_loads;

/* All that it is given outlives it. KVF_INVALID: the options. KVF_NO_MEMORY. On failure nothing is left. */
KVF_MUST_USE kvf_status kvf_loads_init(kvf_loads *loads, kvf_self *self, kvf_wheel *wheel, kvf_peers *peers,
                                       kvf_requests *requests, const kvf_pool *pool, uint64_t now_ns, uint64_t seed);
/* Before the peers. Also after kvf_loads_init() has failed. */
void kvf_loads_free(kvf_loads *loads);

/* As kvf_load_start(). `point`: see kvf_core_load_start(). `sources` have been decoded with the node's key, and have
 * their digests. */
KVF_MUST_USE kvf_status kvf_loads_start(kvf_loads *loads, uint64_t now_ns, const kvf_sources *sources,
                                        const kvf_load *load, uint64_t point);
/* See kvf_core_on_point(). */
void kvf_loads_on_point(kvf_loads *loads, uint64_t request_id, uint64_t point);
/* As kvf_load_abort(). */
kvf_status kvf_loads_abort(kvf_loads *loads, uint64_t now_ns, uint64_t request_id);
void kvf_loads_abort_all(kvf_loads *loads, uint64_t now_ns);

/* How many there are. */
uint32_t kvf_loads_open(const kvf_loads *loads);
/* Whether this load makes the node unhealthy. */
bool kvf_loads_is_stuck(const kvf_loads *loads, uint64_t request_id);

/* Takes one of the attempts' events; false: there is none. */
bool kvf_loads_take_event(kvf_loads *loads, uint64_t now_ns);
/* Its outcome, then its quiet, each once. False: nothing is due. */
KVF_MUST_USE bool kvf_loads_next_event(kvf_loads *loads, uint64_t now_ns, kvf_event *out);
/* Its timer (KVF_TIMER_LOAD) is due. */
void kvf_load_on_timer(kvf_loads *loads, kvf_open_load *load);

#endif
