/* What loads are made of: for load.c and load_check.c. */
#ifndef KVF_CORE_LOAD_STATE_H
#define KVF_CORE_LOAD_STATE_H

#include "base/fence.h"
#include "base/transfer.h"
#include "core/hash.h"
#include "core/peer.h"
#include "core/source.h"
#include "kvferry/kvferry.h"
#include "plan/rank_shares.h"

#define KVF_NO_LINK 0u

typedef struct kvf_open_load kvf_open_load;
typedef struct kvf_load_chunk kvf_load_chunk;
typedef struct kvf_slice kvf_slice;

/* A read: a run of items of a slice. */
struct kvf_load_chunk {
  uint64_t read_id;
  UT_hash_handle by_read;
  kvf_list link;   /* in its slice's flying or idle */
  kvf_list cancel; /* in kvf_loads.cancels until it is taken */
  kvf_slice *slice;
  uint32_t link_id;
  kvf_rail rail;
  uint32_t first;
  uint32_t count;
  uint64_t bytes;    /* of its items */
  uint32_t verified; /* of its first items, when it ends */
};

typedef enum kvf_slice_state {
  SLICE_WAIT_LINK,
  SLICE_READING,
  SLICE_DRAINING,
  SLICE_BACKOFF,
  SLICE_DONE,
  SLICE_STOPPED
} kvf_slice_state;

struct kvf_slice {
  kvf_open_load *load;
  kvf_peer *peer;                      /* which it holds */
  kvf_fence_claim claim;               /* what its fence must say */
  kvf_rank_share share;                /* the heads and layers that it reads, there and here */
  uint64_t head_bytes[KVF_GROUPS_MAX]; /* of one head of one block, of its layers, on average */
  kvf_slice_state state;
  uint32_t link_id;     /* that its next reads take */
  uint64_t chunk_bytes; /* of its chunks */
  kvf_status cause;     /* its first trouble since its last confirmed block */
  uint64_t backoff_ns;  /* its next pause, at most */
  kvf_list by_peer;
  kvf_list waiting;
  kvf_list ready; /* in its load's ready_slices while it may start a read */

  kvf_timer timer; /* end of BACKOFF, or the stall clock */
  bool given_up;   /* the clock ran out, or the load was decided: the reads in flight have been cancelled */
  uint64_t progress_ns;
  uint64_t ping; /* the peer's ping that this silence caused or shares; 0: none yet */
  uint64_t pinged_ns;
  bool begun_anew; /* this silence, after a pause of our own */

  uint64_t *good;  /* by item: confirmed */
  uint64_t *taken; /* by item: confirmed, or in a read that has not ended */
  uint64_t *wrong; /* by item: has come once and did not agree with its checksums */
  uint32_t good_count;
  uint32_t missing_count; /* not taken */
  kvf_list flying;
  kvf_list idle;
};

typedef enum kvf_load_state { LOAD_READING, LOAD_HELD, LOAD_DECIDED, LOAD_RELEASED } kvf_load_state;

struct kvf_open_load {
  uint64_t user;
  UT_hash_handle by_id; /* by report.request_id */
  uint64_t point;       /* that nothing is written before; 0: none, or it has come */
  kvf_load_state state;
  kvf_report report;                     /* complete when it is decided */
  char name[KVF_REQUEST_NAME_BYTES_MAX]; /* the engine's; empty: none */
  kvf_list event;                        /* in kvf_loads.events while one of its is due */
  bool outcome_due;                      /* else an event that is due is its release */
  kvf_list going_on;    /* in kvf_loads.going_on when nothing writes for it any more, though it was HELD */
  kvf_attempts *others; /* NULL: there is one attempt only, or the load was aborted */
  uint64_t begun_ns;
  uint64_t deadline_ns; /* of all sources together */
  uint64_t decided_ns;
  kvf_timer timer; /* READING: the deadline; HELD: when its outcome is told all the same; DECIDED: release_timeout_ms */
  bool is_stuck;

  /* Of its present source. */
  kvf_lease lease;
  uint32_t blocks_each[KVF_GROUPS_MAX]; /* kvf_ticket_blocks_each() */
  uint32_t positions;                   /* of block_tokens each */
  uint32_t deal_tokens;                 /* its ranks deal so many at a time; 0: they do not, or none is known yet */
  uint32_t items_count;
  kvf_transfer_item *items;
  uint32_t slices_count;
  uint32_t slices_open;
  uint32_t cuts;     /* slices of one rank, at most: they follow each other */
  kvf_slice *slices; /* and behind them their chunks and bitmaps */
  kvf_list ready;    /* in kvf_loads.ready while ready_slices has one */
  kvf_list ready_slices;
  uint32_t reads_in_flight;
  bool is_unverified; /* a chunk has come that its transport did not check */
  uint64_t byte_ns;   /* when its last byte arrived; at first when it began */
  uint64_t bytes;
};

#endif
