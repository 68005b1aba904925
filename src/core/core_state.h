/* What a core is made of: its machines, and what concerns several of them. For core.c, and tests that look inside. */
#ifndef KVF_CORE_CORE_STATE_H
#define KVF_CORE_CORE_STATE_H

#include "core/guest.h"
#include "core/lease_slots.h"
#include "core/lease_table.h"
#include "core/load.h"
#include "core/peer.h"
#include "core/request.h"
#include "core/session.h"
#include "kvferry/kvferry.h"

struct kvf_core {
  kvf_context context;
  kvf_sessions sessions;
  kvf_peers peers;
  kvf_requests requests;
  kvf_lease_slots slots;
  kvf_lease_table leases;
  kvf_pool pool;
  kvf_loads loads;
  kvf_guest *guest; /* NULL: none */
  uint32_t engine_ranks;
  kvf_rank_record engine[KVF_RANKS_MAX]; /* of this node's own engine: kvf_node_set_ranks() */
  kvf_read_work read_work;               /* of all reads */
  uint32_t unchecked;                    /* calls since the last kvf_core_check() */
  bool said_alone;                       /* say_if_alone() has */
};

#endif
