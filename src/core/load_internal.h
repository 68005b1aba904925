/* What the files of the load machine share. Nobody else includes this.
 *
 * load_table.c   the table: create, start, abort, timers
 * load_index.c   its lookups
 * load_part.c    a part's states, the answers to what it asked, its stall clock
 * load_chunk.c   which items a read takes, and what becomes of them
 * load_report.c  a load's outcome and quiet
 * load_action.c  what the caller is to do next
 */
#ifndef KVF_CORE_LOAD_INTERNAL_H
#define KVF_CORE_LOAD_INTERNAL_H

#include "base/list.h"
#include "base/prng.h"
#include "core/backoff.h"
#include "core/hash.h"
#include "core/load.h"
#include "core/wheel.h"

#define KVF_PATH_NONE 0u

enum { KVF_TIMER_OF_LOAD, KVF_TIMER_OF_PART }; /* kinds in kvf_loads.wheel, which is the loads' own */

typedef struct kvf_load_entry kvf_load_entry;
typedef struct kvf_load_part kvf_load_part;

/* A peer that some part of an open load needs. */
typedef struct kvf_load_peer {
  uint32_t index;
  UT_hash_handle by_index;
  uint32_t users;        /* parts, and whoever must not see it freed under their hands */
  kvf_list parts;        /* all of them */
  kvf_list waiting;      /* those in WAIT_PATH */
  kvf_list want;         /* in kvf_loads.wants until WANT_PATH is taken */
  kvf_list ping;         /* in kvf_loads.pings until PING is taken */
  bool asked;            /* WANT_PATH was taken and not answered */
  uint32_t stalled_path; /* the last one that was reported */
  uint64_t pings;        /* number of the last one */
  uint64_t answered;     /* the last one that was sent before the last pong */
  uint64_t pinged_ns;
} kvf_load_peer;

/* A read: a run of items of a part. */
typedef struct kvf_load_chunk {
  uint64_t read_id;
  UT_hash_handle by_read;
  kvf_list link;   /* in its part's flying or idle */
  kvf_list cancel; /* in kvf_loads.cancels until CANCEL is taken */
  kvf_load_part *part;
  uint32_t path;
  uint32_t first;
  uint32_t count;
  uint32_t verified; /* of its first items, when it ends */
  bool cancelled;
} kvf_load_chunk;

typedef enum kvf_load_part_state {
  KVF_PART_WAIT_PATH,
  KVF_PART_READING,
  KVF_PART_DRAINING,
  KVF_PART_BACKOFF,
  KVF_PART_DONE,
  KVF_PART_STOPPED
} kvf_load_part_state;

struct kvf_load_part {
  kvf_load_entry *load;
  kvf_load_peer *peer; /* NULL once it is DONE or STOPPED */
  kvf_load_part_spec spec;
  kvf_load_part_state state;
  uint32_t path;        /* that its next reads take */
  uint64_t chunk_bytes; /* of its chunks */
  kvf_status cause;     /* its first trouble since its last confirmed block */
  kvf_load_tally *tally;
  kvf_list by_peer;
  kvf_list waiting;
  kvf_list ready; /* in its load's ready_parts while it may start a read */
  kvf_backoff backoff;

  kvf_timer timer; /* end of BACKOFF, or the stall clock */
  bool given_up;   /* the clock ran out: the reads in flight have been cancelled */
  uint64_t progress_ns;
  uint64_t ping; /* the peer's ping that this silence caused or shares; 0: none yet */
  uint64_t pinged_ns;
  bool begun_anew; /* this silence, after a pause of our own */

  kvf_list stalled; /* in kvf_loads.stalls until PATH_STALLED is taken */
  uint32_t stalled_path;
  bool stalled_silent;

  uint64_t *good;  /* by item: confirmed */
  uint64_t *taken; /* by item: confirmed, or in a read that has not ended */
  uint64_t *wrong; /* by item: has come once and did not agree with its checksums */
  uint32_t good_count;
  uint32_t missing_count; /* not taken */
  uint32_t first_missing; /* no item before this one is missing */
  kvf_list flying;
  kvf_list idle;
};

typedef enum kvf_load_state { KVF_LOAD_IS_OPEN, KVF_LOAD_IS_DECIDED, KVF_LOAD_IS_QUIET } kvf_load_state;

struct kvf_load_entry {
  uint64_t request_id;
  UT_hash_handle by_request;
  kvf_list link; /* in kvf_loads.all */
  uint64_t user;
  kvf_lease lease;
  kvf_load_state state;
  kvf_report report; /* complete once DECIDED */
  kvf_timer timer;   /* deadline, then quiet timeout */
  kvf_list event;    /* in kvf_loads.events while the caller has something to hear */
  bool outcome_taken;
  bool quiet_taken;
  bool overdue;
  uint32_t stalls_queued; /* parts that are in kvf_loads.stalls */
  kvf_list ready;         /* in kvf_loads.ready while ready_parts has one */
  kvf_list ready_parts;
  uint32_t reads_in_flight;
  uint64_t start_ns;
  uint64_t byte_ns; /* when its last byte landed; at first start_ns */
  uint64_t bytes;
  uint32_t parts_open;
  uint32_t groups;
  uint32_t parts_count;
  uint32_t items_count;
  uint64_t head_bytes[KVF_GROUPS_MAX];
  kvf_read_item *items;
  kvf_load_part *parts;
};

struct kvf_loads {
  kvf_loads_config config;
  kvf_prng jitter;
  kvf_load_entry *by_request;
  kvf_load_chunk *by_read;
  kvf_load_peer *by_index;
  kvf_list all;
  kvf_wheel wheel;
  kvf_list ready;
  kvf_list cancels;
  kvf_list wants;
  kvf_list pings;
  kvf_list stalls;
  kvf_list events;
  uint64_t next_read_id;
  kvf_load_stats stats;
  kvf_load_tally untold; /* of peers whose tally nobody wants */
};

/* load_index.c: find gives NULL for the unknown, remember gives false if there is no memory. */
kvf_load_entry *kvf_load_find(kvf_loads *loads, uint64_t request_id);
KVF_MUST_USE bool kvf_load_remember(kvf_loads *loads, kvf_load_entry *load);
void kvf_load_forget(kvf_loads *loads, kvf_load_entry *load);
kvf_load_chunk *kvf_chunk_find(kvf_loads *loads, uint64_t read_id);
KVF_MUST_USE bool kvf_chunk_remember(kvf_loads *loads, kvf_load_chunk *chunk);
void kvf_chunk_forget(kvf_loads *loads, kvf_load_chunk *chunk);
kvf_load_peer *kvf_load_peer_find(kvf_loads *loads, uint32_t index);
KVF_MUST_USE bool kvf_load_peer_remember(kvf_loads *loads, kvf_load_peer *peer);
void kvf_load_peer_forget(kvf_loads *loads, kvf_load_peer *peer);
/* Frees the lookups. The first peer: by_index.next leads to the others. */
kvf_load_peer *kvf_load_forget_all(kvf_loads *loads);

/* load_table.c */
void kvf_load_peer_release(kvf_loads *loads, kvf_load_peer *peer);
void kvf_load_free_if_over(kvf_loads *loads, kvf_load_entry *load); /* both events and its actions are taken */

/* load_part.c */
void kvf_part_wait_path(kvf_loads *loads, kvf_load_part *part);
void kvf_part_stop(kvf_loads *loads, kvf_load_part *part);
void kvf_part_trouble(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part, kvf_status cause);
void kvf_part_clock_start(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part);
void kvf_part_on_timer(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part);
void kvf_part_update_ready(kvf_loads *loads, kvf_load_part *part);

/* load_chunk.c */
void kvf_chunk_choose_size(const kvf_loads *loads, kvf_load_part *part); /* before the part's first chunk */
kvf_load_chunk *kvf_chunk_begin(kvf_loads *loads, kvf_load_part *part);  /* NULL: no memory */
void kvf_chunk_end(kvf_loads *loads, kvf_load_chunk *chunk);
/* Its first `count` items are good. */
void kvf_chunk_confirm(kvf_loads *loads, const kvf_load_chunk *chunk, uint32_t count);
/* Its items but for the first `good` ones are missing again. */
void kvf_chunk_miss(const kvf_load_chunk *chunk, uint32_t good);
void kvf_chunk_cancel(kvf_loads *loads, kvf_load_chunk *chunk);
bool kvf_chunk_is_small(const kvf_loads *loads, const kvf_load_chunk *chunk);

/* load_report.c */
/* `part`: the one that the status came from; NULL for the first that is not done. */
void kvf_load_decide(kvf_loads *loads, uint64_t now_ns, kvf_load_entry *load, const kvf_load_part *part,
                     kvf_status status);
void kvf_load_settle(kvf_loads *loads, kvf_load_entry *load); /* quiet, if decided and no read is in flight */

#endif
