/* What a core is made of: its machines, and what concerns several of them. */
#ifndef KVF_CORE_CORE_STATE_H
#define KVF_CORE_CORE_STATE_H

#include "core/known.h"
#include "core/lease_slots.h"
#include "core/lease_table.h"
#include "core/load.h"
#include "core/peer.h"
#include "core/request.h"
#include "core/session.h"
#include "kvferry/kvferry.h"

/* What a load takes to go on from another source: a copy of what it was started with, in one allocation. */
typedef struct kvf_load_others {
  kvf_sources sources; /* all but the one that it began with */
  uint32_t next;       /* to try */
  const uint32_t *destination;
  kvf_ticket tickets[]; /* and then the block ids of each, and of the destination */
} kvf_load_others;

typedef enum kvf_core_load_state {
  KVF_CORE_LOAD_TRIES, /* an attempt is under way */
  KVF_CORE_LOAD_HELD,  /* its outcome is held back: once it is quiet the next source is tried */
  KVF_CORE_LOAD_TOLD   /* the engine's outcome is decided */
} kvf_core_load_state;

/* A load, until its quiet has been taken. */
typedef struct kvf_core_load {
  uint64_t request_id;
  uint64_t user;
  UT_hash_handle by_id;
  kvf_core_load_state state;
  kvf_list event; /* in kvf_core.load_events while an event of it is due */
  bool outcome_due;
  bool quiet_due;
  kvf_report report; /* of the last attempt */
  uint64_t begun_ns;
  uint64_t deadline_ns;    /* of all attempts together */
  kvf_timer timer;         /* HELD: the deadline, or quiet_timeout_ms from the last outcome if that is earlier */
  kvf_load_others *others; /* NULL: its ticket names no other source */
  uint32_t peers_count;
  uint32_t peers[KVF_RANKS_MAX]; /* that its attempt holds */
} kvf_core_load;

typedef struct kvf_core {
  kvf_self self;
  kvf_wheel wheel;
  kvf_conns conns;
  kvf_sessions sessions;
  kvf_peers peers;
  kvf_known known;
  kvf_requests requests;
  kvf_lease_slots slots;
  kvf_lease_table leases;
  kvf_loads *loads;
  kvf_core_load *open_loads; /* by request id */
  kvf_list load_events;
  uint64_t outcomes[KVF_STATUSES_MAX]; /* of loads, by status: [i] counts kvf_status_at(i) */
  uint64_t source_switches;
  uint32_t engine_ranks;
  kvf_rank_record engine[KVF_RANKS_MAX]; /* of this node's own engine: kvf_node_set_ranks() */
  bool has_memory;
  bool had_memory; /* stays true: a peer that still has the first memory's layout would read wrong bytes for a later
                      lease */
  uint32_t groups;
  uint64_t head_bytes[KVF_GROUPS_MAX];
  uint32_t group_blocks[KVF_GROUPS_MAX];
  uint64_t *named[KVF_GROUPS_MAX]; /* scratch: a bit per block of the group, all 0 between calls */
  uint32_t heads_total;
  uint64_t bad_tickets; /* counted by the caller: a ticket that does not decode never reaches the core */
} kvf_core;

#endif
