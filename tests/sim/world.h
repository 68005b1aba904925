/* The state of a simulated world, and what the simulator's files offer each other.
 *
 * An engine is one host: up to SIM_RANKS_MAX rank nodes and a control node, each with a real kvf_core. The first
 * engines are producers, the others consumers. Events carry the life of the engine that they are for: one of an earlier
 * life does nothing.
 */
#ifndef KVF_SIM_WORLD_H
#define KVF_SIM_WORLD_H

#include "core/core.h"
#include "core/core_state.h"
#include "find/finder.h"
#include "kvferry/recovery.h"
#include "queue.h"
#include "sim.h"
#include "tape.h"

#define SIM_SIDE_MAX 3 /* producers; consumers */
#define SIM_ENGINES_MAX (2 * SIM_SIDE_MAX)
#define SIM_RANKS_MAX 4
#define SIM_NODES_EACH (SIM_RANKS_MAX + 1)
#define SIM_NODES_MAX (SIM_ENGINES_MAX * SIM_NODES_EACH)
#define SIM_GROUPS_MAX 2
#define SIM_REGIONS_MAX 3
#define SIM_BLOCKS_MAX 12
#define SIM_HEADS_MAX 4
#define SIM_POSITIONS_MAX 5
#define SIM_IDS_MAX (SIM_GROUPS_MAX * SIM_POSITIONS_MAX)
#define SIM_SLOTS_MAX 8
#define SIM_BLOCK_TOKENS 4
#define SIM_PROMPTS 8
#define SIM_CONNS_MAX 640
#define SIM_PIPE_BYTES 8192
#define SIM_LINKS_MAX 192
#define SIM_READS_MAX 256
#define SIM_OFFERS_MAX 64
#define SIM_JOBS_MAX 96
#define SIM_NEWS_MAX 512
#define SIM_TICKET_BYTES 1024
#define SIM_NOBODY UINT32_MAX
#define SIM_CACHE 1000 /* and the entry's index */
#define SIM_MS KVF_NS_PER_MS

/* What may go wrong in this world. */
typedef enum sim_fault {
  SIM_FAULT_DELAY,      /* messages take different times */
  SIM_FAULT_PARTIAL,    /* streams arrive in pieces */
  SIM_FAULT_RESET,      /* control connections are reset */
  SIM_FAULT_PARTITION,  /* one way or both */
  SIM_FAULT_SILENT,     /* hosts die without a word */
  SIM_FAULT_PAUSE,      /* engines stop for a while */
  SIM_FAULT_KILL,       /* engines are killed, and restarted */
  SIM_FAULT_STOP,       /* engines are shut down, and restarted */
  SIM_FAULT_PREEMPT,    /* producers take blocks back */
  SIM_FAULT_CANCEL,     /* clients hang up, engines give up */
  SIM_FAULT_READ,       /* reads fail */
  SIM_FAULT_STALL,      /* reads stand still */
  SIM_FAULT_STUCK,      /* ... and do not even end when they are cancelled */
  SIM_FAULT_LINK,       /* links cannot be opened, or go down */
  SIM_FAULT_REPORT,     /* reports of ranks get lost, come twice or merged */
  SIM_FAULT_REPLAY,     /* tickets come again */
  SIM_FAULT_FORGE,      /* tickets are altered, or come with another prompt */
  SIM_FAULT_STRANGER,   /* somebody without the key connects */
  SIM_FAULT_ALTER,      /* handshakes are altered on their way */
  SIM_FAULT_TABLES,     /* tables are small */
  SIM_FAULT_ALLOCATION, /* allocations fail */
  SIM_FAULT_LATE,       /* engines look at the clock and at events late */
  SIM_FAULT_SLOW,       /* blocks are published late, tickets arrive late */
  SIM_FAULT_REUSED_PID, /* a reader does not notice that another process has the memory */
  SIM_FAULT_DRAIN,      /* producers stop to give leases */
  SIM_FAULT_AGAIN,      /* engines call twice */
  SIM_FAULT_CORRUPT,    /* bytes are hurt, where they lie or on their way: all nodes have checksums */
  SIM_FAULT_COUNT
} sim_fault;

typedef struct sim_prompt {
  kvf_prompt identity;
  uint32_t positions;
  uint64_t prefix[SIM_POSITIONS_MAX]; /* what the block at this position and all before it hold */
} sim_prompt;

typedef struct sim_link {
  bool used;
  bool up;
  bool is_tcp;
  uint32_t link_id;
  uint32_t node; /* the consumer's */
  uint32_t peer; /* the producer's node, and its engine's life when the link was opened */
  uint32_t peer_life;
  uint64_t session_id;
  kvf_incarnation incarnation;
} sim_link;

typedef enum sim_read_phase { SIM_READ_ASKED, SIM_READ_COPYING, SIM_READ_COPIED, SIM_READ_ENDING } sim_read_phase;

typedef struct sim_read {
  bool used;
  bool cancelled;
  bool still; /* stands still until it is cancelled */
  bool stuck; /* or until the faults end */
  bool is_tcp;
  uint32_t serial;
  sim_read_phase phase;
  uint64_t id;
  uint32_t node;
  uint32_t life;
  uint32_t peer;
  uint32_t peer_life;
  uint32_t link_id;
  uint32_t job;
  kvf_lease lease;
  uint32_t remote_head;
  uint32_t local_head;
  uint32_t heads;
  kvf_layers layers; /* regions */
  uint32_t items_count;
  kvf_transfer_item items[SIM_IDS_MAX];
  uint32_t pieces;
  uint32_t piece;
  kvf_status status;
  uint32_t verified; /* leading items that agree with their checksums */
  kvf_fence_sample sample;
} sim_read;

typedef struct sim_node {
  uint32_t index;
  uint32_t rank;
  bool is_rank; /* has memory */
  bool is_control;
  bool is_up;
  bool has_memory;
  bool poll_waits;
  bool output_waits;
  uint32_t heads;
  uint32_t first_head;
  uint64_t tick_at_ns; /* when the event for its next tick is */
  kvf_core core;
  kvf_finder finder;
  kvf_fence_entry table[SIM_SLOTS_MAX];
  uint64_t pool[SIM_REGIONS_MAX][SIM_BLOCKS_MAX][SIM_HEADS_MAX];
  uint64_t checksums[SIM_REGIONS_MAX][SIM_BLOCKS_MAX][SIM_HEADS_MAX]; /* a slice is its own */
  uint16_t writing[SIM_GROUPS_MAX][SIM_BLOCKS_MAX]; /* heads of regions that a read in flight writes to */
} sim_node;

typedef enum sim_engine_state { SIM_ENGINE_DOWN, SIM_ENGINE_UP, SIM_ENGINE_STOPPING } sim_engine_state;

typedef struct sim_engine {
  uint32_t index;
  bool is_producer;
  bool is_other;  /* runs another model */
  bool is_silent; /* the host does not even refuse connections */
  bool drains;
  sim_engine_state state;
  bool is_ready; /* all its ranks have memory, and the control node knows them */
  uint32_t life;
  uint32_t ranks;
  uint32_t control; /* node */
  uint32_t blocks;
  uint64_t clock_ns; /* its clock is the world's and this */
  uint64_t paused_until_ns;
  uint64_t late_ns;
  uint32_t owner[SIM_GROUPS_MAX][SIM_BLOCKS_MAX]; /* producer: offer, consumer: job or SIM_CACHE, plus 1; 0: free */
} sim_engine;

/* A ticket and what is behind it at the producer. */
typedef struct sim_offer {
  uint32_t engine;
  uint32_t life;
  uint32_t prompt;
  kvf_lease lease;
  bool is_over; /* given back, or its engine is gone */
  bool preempted;
  bool is_found; /* by a job's find */
  uint32_t ids[SIM_IDS_MAX];
  uint32_t published;                      /* ranks, as bits: */
  uint32_t ended;                          /* the event has come */
  uint32_t freed;                          /* the rank may use the blocks */
  uint32_t wanted_over;                    /* a consumer has all it needs, or its client has left */
  uint64_t until_ns[SIM_RANKS_MAX];        /* the lease's life: it cannot last longer ... */
  uint64_t until_surely_ns[SIM_RANKS_MAX]; /* ... and must not run out earlier */
  uint64_t until_max_ns[SIM_RANKS_MAX];
  uint32_t ticket_bytes;
  char ticket[SIM_TICKET_BYTES];
} sim_offer;

typedef enum sim_load_state {
  SIM_LOAD_NONE, /* the rank has not been told yet */
  SIM_LOAD_REFUSED,
  SIM_LOAD_OPEN,
  SIM_LOAD_DECIDED,
  SIM_LOAD_RELEASED
} sim_load_state;

typedef struct sim_load {
  sim_load_state state;
  bool was_reported; /* the control node has taken its report in time */
  bool was_let_go;   /* it was told that nothing of it writes, in time: if it has no report, nothing is loaded */
  uint32_t reads;    /* in flight */
  uint64_t deadline_ns;
  uint64_t progress_ns[SIM_RANKS_MAX][SIM_REGIONS_MAX]; /* by the producer's rank and the first region */
  kvf_report report;
} sim_load;

/* Who decides what a consumer does about a load (kvferry/recovery.h). */
typedef enum sim_way {
  SIM_WAY_NONE,    /* the verdict, for an engine that rewinds by itself */
  SIM_WAY_REPORTS, /* one recovery table with the scheduler, fed by the ranks */
  SIM_WAY_EACH     /* one on each rank, and all exchange what is new in every step */
} sim_way;

/* A request in its engine's recovery tables: what they were told, and what they said. */
typedef struct sim_parked {
  bool is_in;     /* it has been admitted */
  bool is_ending; /* the engine has let it go: */
  bool ended;     /* and the tables know */
  bool aborted;
  bool released;
  bool is_unsafe; /* a rank's status is against recomputing */
  uint32_t released_heard;
  uint64_t released_ns; /* when the last rank became released */
  uint32_t reported;    /* ranks, as bits */
  uint32_t ranks_released;
  uint32_t blockers;
  uint32_t prefix;  /* the shortest that was reported */
  uint32_t told;    /* 0, or KVF_RECOVERY_READY, REWIND or TERMINATE */
  uint32_t kept;    /* leading positions that were then called good */
  uint32_t drained; /* failed blocks, as bits */
  uint32_t shared;  /* positions that are in the prefix cache, as bits, and where: */
  uint32_t cache[SIM_POSITIONS_MAX];
} sim_parked;

typedef enum sim_job_state {
  SIM_JOB_NONE,
  SIM_JOB_OPEN,    /* the control node has the ticket */
  SIM_JOB_LOADING, /* begun */
  SIM_JOB_DECIDED, /* verdict, cancelled or refused */
  SIM_JOB_OVER     /* its blocks are free */
} sim_job_state;

typedef struct sim_job {
  sim_job_state state;
  uint32_t engine;
  uint32_t life;
  uint32_t prompt;
  uint32_t tries;
  uint32_t offer;    /* whose ticket it has; SIM_NOBODY: a tampered one, signed with the key */
  uint32_t other;    /* of its second source; SIM_NOBODY: it has none */
  uint32_t attached; /* producer ranks, as bits, that have said so; of the second source: */
  uint32_t attached_other;
  bool is_other; /* its ticket is of another model */
  bool probe;    /* of the healed world: must be served */
  bool cancelled;
  bool waits;  /* for blocks */
  bool waited; /* since then, for another load, as far as its control node knows: */
  uint64_t waits_since_ns;
  bool has_blocks;
  bool had_verdict;
  bool decided_early; /* the library decided before its load could begin */
  bool released;
  bool stuck;       /* told, with its verdict */
  uint32_t let_go;  /* ranks, as bits, that the control node has been told are released */
  bool said_stuck;  /* the control node has been told that */
  uint64_t find_id; /* of the find that has not ended; 0: none */
  kvf_verdict verdict;
  kvf_request_info info;
  kvf_request_options options;
  uint32_t skip; /* leading positions that the engine has already */
  uint32_t ids[SIM_IDS_MAX];
  sim_load load[SIM_RANKS_MAX];
  sim_parked parked;
  uint32_t ticket_bytes;
  char ticket[2 * SIM_TICKET_BYTES + 1];
} sim_job;

typedef enum sim_news_kind {
  SIM_NEWS_REPORT,
  SIM_NEWS_FAILED, /* the same as block ids */
  SIM_NEWS_RELEASED,
  SIM_NEWS_END
} sim_news_kind;

/* Something that a recovery table is to be told. */
typedef struct sim_news {
  sim_news_kind kind;
  uint32_t job;
  bool again; /* comes twice */
  uint32_t rank;
  uint32_t group;
  uint32_t count;
  uint32_t failed[SIM_POSITIONS_MAX];
  uint32_t first_failed; /* position */
  kvf_report report;
} sim_news;

/* A block of each group with the tokens up to its end, for all prompts that begin so. */
typedef struct sim_cached {
  bool used;
  bool is_lost; /* not to be found any more */
  uint32_t users;
  uint64_t prefix;
} sim_cached;

/* Of a consumer that has recovery tables. */
typedef struct sim_scheduler {
  sim_way way;
  uint32_t recompute_max_tokens;
  uint32_t requests_max;
  uint32_t tables_count;
  kvf_recovery *tables[SIM_RANKS_MAX];
  bool step_waits;
  uint32_t news_count; /* since the last step */
  sim_news news[SIM_NEWS_MAX];
  sim_cached cache[SIM_BLOCKS_MAX];
} sim_scheduler;

/* The bytes on their way to one end. */
typedef struct sim_pipe {
  uint32_t bytes;
  uint32_t arrived; /* of them */
  bool scheduled;
  bool fin; /* the sender closed after them */
  uint8_t data[SIM_PIPE_BYTES];
} sim_pipe;

typedef struct sim_end {
  uint32_t node; /* SIM_NOBODY: a stranger */
  uint32_t life;
  bool open;
  uint64_t conn_id;
} sim_end;

typedef enum sim_stranger_kind {
  SIM_STRANGER_NONE,
  SIM_STRANGER_MUTE,
  SIM_STRANGER_GARBAGE,
  SIM_STRANGER_FRAMES,    /* right frames at the wrong time, naming real leases */
  SIM_STRANGER_REPLAY,    /* what it has heard of another handshake */
  SIM_STRANGER_OTHER_KEY, /* a handshake with a key of its own */
  SIM_STRANGER_IMPOSTOR   /* listens where a node has been */
} sim_stranger_kind;

/* end[0] dialed, end[1] accepts; pipe[i] leads to end[i]. */
typedef struct sim_conn {
  bool used;
  bool connecting;
  bool silent; /* an end is gone and nothing will ever say so */
  uint32_t serial;
  sim_stranger_kind stranger;
  uint32_t said; /* times that the stranger has spoken */
  sim_end end[2];
  sim_pipe pipe[2];
} sim_conn;

struct sim_world {
  sim_tape tape;
  FILE *trace;
  kvf_sim_result *result;
  uint64_t now_ns;
  bool checks_all; /* the costly part of kvf_core_check() too: every eighth seed, by its tape */
  bool failed;
  bool healed; /* no new faults; the old ones have ended */
  uint32_t faults;
  bool has_key;
  bool has_replicas;      /* prompts are computed at two producers */
  uint32_t consumers_max; /* of a lease */
  bool has_finds;         /* consumers ask for tickets, and take up what they were handed if they find none */
  kvf_key key;
  kvf_mac mac; /* of the key */
  kvf_config config;
  kvf_core_config core_config; /* too large for the stack of every start */
  uint32_t heads_total;
  uint32_t groups;
  uint32_t regions;
  uint64_t delay_ns; /* of a message, at least */
  uint32_t producers;
  uint32_t engines_count;
  uint64_t blocked_until_ns[SIM_ENGINES_MAX][SIM_ENGINES_MAX];
  sim_engine engines[SIM_ENGINES_MAX];
  sim_scheduler schedulers[SIM_ENGINES_MAX];
  sim_node nodes[SIM_NODES_MAX];
  uint32_t conns_end; /* none from here on is used */
  sim_conn conns[SIM_CONNS_MAX];
  uint32_t links_end;
  sim_link links[SIM_LINKS_MAX];
  uint32_t reads_end;
  sim_read reads[SIM_READS_MAX];
  uint32_t offers_count;
  sim_offer offers[SIM_OFFERS_MAX];
  uint32_t jobs_count;
  sim_job jobs[SIM_JOBS_MAX];
  uint64_t ended_before; /* leases that consumers had ended, see watch.c */
  bool is_heard;         /* the frame that a node takes */
  uint32_t heard_bytes;  /* a consumer's side of a handshake, as a stranger has heard it */
  uint8_t heard[512];
  uint64_t junk;
  sim_queue queue;
};

/* ---- run.c ---- */
void sim_push(sim_world *world, uint64_t at_ns, sim_event_fn fn, uint32_t a, uint32_t b, uint64_t c);
/* The first finding counts. */
__attribute__((format(printf, 3, 4))) void sim_fail(sim_world *world, const char *promise, const char *format, ...);
/* Whether the tape may choose this fault now. */
bool sim_may(const sim_world *world, sim_fault fault);
/* A fault that is possible happens once in `count` times. */
bool sim_strikes(sim_world *world, sim_fault fault, uint32_t count);
/* Some time between 0 and `most_ns`, 0 without the fault. */
uint64_t sim_lag(sim_world *world, sim_fault fault, uint64_t most_ns);

/* P3: a call that comes again has this answer. */
void sim_expect(sim_world *world, const char *call, kvf_status status, kvf_status expected);

/* ---- trace.c: '%' in `what` stands for a, b and c in turn, '$' for one of them as a status ---- */
void sim_note(sim_world *world, uint32_t node, const char *what, uint64_t a, uint64_t b, uint64_t c);
void sim_log_line(void *context, kvf_log_level level, const char *line);

/* ---- setup.c ---- */
void sim_setup(sim_world *world);
const sim_prompt *sim_prompt_at(uint32_t index);

/* ---- engine.c ---- */
sim_engine *sim_engine_of(sim_world *world, uint32_t node);
void sim_engine_start(sim_world *world, sim_engine *engine);
void sim_engine_kill(sim_world *world, sim_engine *engine);
void sim_engine_stop(sim_world *world, sim_engine *engine);
void sim_on_start(sim_world *world, const sim_event *event);
/* Of a node in one of its lives. */
kvf_incarnation sim_incarnation(uint32_t node, uint32_t life);
/* True if the engine is paused: then the event comes again when it goes on. SIM_ENGINES_MAX, a stranger, never is. */
bool sim_waits(sim_world *world, uint32_t engine, const sim_event *event);

/* ---- node.c ---- */
uint64_t sim_node_enter(sim_world *world, sim_node *node);
void sim_node_leave(sim_world *world, sim_node *node);
/* As enter, then leave, with a tick and all events in between: the engine has caught up. */
void sim_node_catch_up(sim_world *world, sim_node *node);

/* ---- net.c ---- */
typedef struct sim_output_context {
  sim_world *world;
  sim_node *node;
} sim_output_context;
/* For kvf_core_take_output(), with a sim_output_context. */
void sim_take_output(void *context, const kvf_core_output *output);
void sim_dial(sim_world *world, sim_node *node, const kvf_peer_action *action);
kvf_address sim_address_of(const sim_world *world, uint32_t node);
/* The connections of a node that is gone. */
void sim_net_drop_node(sim_world *world, uint32_t node, bool silent);
void sim_conn_reset(sim_world *world, sim_conn *conn);
sim_conn *sim_conn_new(sim_world *world);
void sim_conn_send(sim_world *world, sim_conn *conn, uint32_t to, const uint8_t *data, uint32_t bytes);
void sim_conn_connect(sim_world *world, sim_conn *conn);
void sim_conn_close_end(sim_world *world, sim_conn *conn, uint32_t end);
bool sim_is_blocked(const sim_world *world, uint32_t from_engine, uint32_t to_engine);

/* ---- checksums.c: nodes with checksums ---- */

/* The lease's blocks are being checksummed, and become live later. */
void sim_sum_later(sim_world *world, uint32_t offer, uint32_t rank);
/* A slice that has just been copied is hurt. */
void sim_corrupt(sim_world *world, uint64_t *slice);
/* All of the read has been copied: its checksums as well. */
void sim_compare(const sim_world *world, sim_read *read, const sim_node *peer);

/* ---- memory.c ---- */
void sim_memory_init(sim_world *world, sim_node *node);
uint64_t sim_content(const sim_prompt *prompt, uint32_t position, uint32_t region, uint32_t head);
void sim_write_block(sim_world *world, sim_node *node, uint32_t group, uint32_t block, const sim_prompt *prompt,
                     uint32_t position);
/* Another owner writes to the block. */
void sim_scribble(sim_world *world, sim_node *node, uint32_t group, uint32_t block);
bool sim_block_holds(const sim_world *world, const sim_node *node, uint32_t group, uint32_t block,
                     const sim_prompt *prompt, uint32_t position);
/* Takes `positions` free blocks of each group for `owner`, counted from 0; false if there are not so many. */
bool sim_blocks_take(sim_world *world, sim_engine *engine, uint32_t positions, uint32_t owner, uint32_t *ids);
void sim_blocks_give(sim_world *world, sim_engine *engine, uint32_t owner);
uint32_t sim_blocks_used(const sim_world *world, const sim_engine *engine);
void sim_store(sim_world *world, sim_node *node, const kvf_lease_store *store);

/* ---- link.c, read.c ---- */
void sim_link_open(sim_world *world, sim_node *node, const kvf_peer_action *action);
void sim_link_close(sim_world *world, sim_node *node, uint32_t link_id);
sim_link *sim_link_find(sim_world *world, uint32_t node, uint32_t link_id);
void sim_link_break(sim_world *world, sim_link *link, kvf_status status);
void sim_links_drop_node(sim_world *world, uint32_t node);
void sim_read_start(sim_world *world, sim_node *node, const kvf_load_read *action);
void sim_read_cancel(sim_world *world, uint32_t node, uint64_t read_id);
void sim_reads_cancel_link(sim_world *world, uint32_t node, uint32_t link_id);
/* The reads of a node that is gone: nothing is left of them. */
void sim_reads_drop_node(sim_world *world, uint32_t node);
void sim_reads_heal(sim_world *world);

/* ---- producer.c ---- */
/* The offer's index; SIM_NOBODY: no blocks or no lease. */
uint32_t sim_offer_make(sim_world *world, sim_engine *engine, uint32_t prompt);
void sim_offer_preempt(sim_world *world, uint32_t index);
void sim_offer_on_event(sim_world *world, sim_node *node, const kvf_event *event);
void sim_offers_drop_engine(sim_world *world, uint32_t engine);

/* ---- consumer.c, verdict.c ---- */
/* A job that has the offer's ticket; NULL if there are too many. */
sim_job *sim_job_new(sim_world *world, sim_engine *engine, uint32_t offer);
/* Adds the ticket of another offer of the prompt: its second source. */
void sim_job_join(sim_world *world, sim_job *job, uint32_t offer);
/* The ticket reaches the engine. */
void sim_job_arrive(sim_world *world, sim_job *job);

/* ---- find.c ---- */

/* A control node begins to live. */
void sim_find_know(sim_world *world, sim_node *node);
/* The rank has published the offer. */
void sim_find_offer(sim_world *world, sim_node *node, const sim_offer *offer);
/* Looks for a ticket of the job's prompt: sim_job_arrive() follows. False: it is to be called now. */
bool sim_find_start(sim_world *world, sim_job *job);
/* KVF_EVENT_TICKET. */
void sim_find_on_event(sim_world *world, sim_node *node, const kvf_event *event);

/* ---- consumer.c, again ---- */

/* By the client, or, with KVF_FINISH_DETACHED, by the engine for reasons of its own. */
void sim_job_cancel(sim_world *world, sim_job *job, kvf_finish_kind kind);
void sim_job_on_event(sim_world *world, sim_node *node, const kvf_event *event);
void sim_job_on_verdict(sim_world *world, sim_node *node, const kvf_event *event);
/* KVF_EVENT_REQUEST_RELEASED, KVF_EVENT_REQUEST_STUCK. */
void sim_job_on_released(sim_world *world, sim_node *node, const kvf_event *event);
/* A rank's load is released, or its job was decided: perhaps the blocks can go. */
void sim_job_advance(sim_world *world, sim_job *job);
void sim_jobs_drop_engine(sim_world *world, uint32_t engine);
/* The engine has free blocks again: the jobs that wait for some have another try. */
void sim_jobs_try(sim_world *world, uint32_t engine);
/* The ranks of the mask are to abort the job's load. */
void sim_job_abort(sim_world *world, const sim_job *job, uint64_t ranks_mask);
/* The job that the event is for, NULL if its engine has gone; b is the rank, c the engine's life. */
sim_job *sim_job_of(sim_world *world, const sim_event *event);
uint32_t sim_job_index(const sim_world *world, const sim_job *job);
void sim_job_check_prefix(sim_world *world, const sim_job *job, const sim_node *node, uint32_t prefix,
                          const char *when);

/* ---- scheduler.c: consumers that do not rewind by themselves ---- */
sim_scheduler *sim_scheduler_of(sim_world *world, const sim_job *job);
void sim_scheduler_choose(sim_world *world, uint32_t engine, uint32_t choice);
void sim_scheduler_start(sim_world *world, const sim_engine *engine);
void sim_scheduler_stop(sim_world *world, const sim_engine *engine);
/* Finds blocks and parks the request; false if there is no room now. */
bool sim_scheduler_admit(sim_world *world, sim_job *job);
/* A rank's report has come. */
void sim_scheduler_report(sim_world *world, sim_job *job, uint32_t rank, const kvf_report *report);
/* Something of the request is released or decided: the tables hear of it, or its blocks can go. */
void sim_scheduler_advance(sim_world *world, sim_job *job);
void sim_scheduler_end(sim_world *world, sim_job *job);
/* What an event of the tables asks for. */
void sim_scheduler_act(sim_world *world, sim_job *job, const kvf_recovery_event *event);
void sim_scheduler_check_rest(sim_world *world, const sim_engine *engine);

/* ---- tables.c: what recovery tables are told, and what they say ---- */
void sim_tables_tell(sim_world *world, const sim_job *job, const sim_news *news);

/* ---- recovery_watch.c: what they were told, held against what they say ---- */
void sim_recovery_told(sim_job *job, const sim_news *news);
void sim_recovery_on_event(sim_world *world, sim_job *job, const kvf_recovery_event *event);
void sim_recovery_on_error(sim_world *world, sim_job *job, const kvf_recovery_error *error);
/* After a step: everything that could be said has been said. */
void sim_recovery_check_said(sim_world *world, sim_job *job);
bool sim_is_released(const sim_world *world, const sim_job *job);

/* ---- prefix_cache.c ---- */
/* Blocks for all positions of the job, leading ones out of the cache where `use_cache`: job->skip of them, which are
 * shared. False if there are not enough. */
bool sim_cache_take(sim_world *world, sim_job *job, bool use_cache);
/* The job's blocks hold the prompt: others may use those that are full. */
void sim_cache_publish(sim_world *world, sim_job *job);
/* No other request is to find the job's block at `position`. */
void sim_cache_lose(sim_world *world, const sim_job *job, uint32_t position);
void sim_cache_give(sim_world *world, sim_job *job);
/* Lets go of all blocks that nobody uses. */
void sim_cache_clear(sim_world *world, sim_engine *engine);

/* ---- watch.c: around each frame that a node takes, after its effects ---- */
void sim_watch_before(sim_world *world, sim_node *node, uint64_t conn_id, kvf_frame_type type, const uint8_t *body,
                      size_t bytes);
void sim_watch_after(sim_world *world, const sim_conn *conn, sim_node *node, kvf_frame_type type, const uint8_t *body,
                     size_t bytes);
void sim_watch_published(sim_world *world, sim_offer *offer, uint32_t rank);
void sim_watch_end(sim_world *world, const sim_node *node, const sim_offer *offer, kvf_lease_end_cause cause);

/* ---- ticket.c: the public calls that code tickets ---- */
kvf_status sim_ticket_make(sim_world *world, sim_node *node, const kvf_lease *lease, const kvf_blocks *blocks,
                           const kvf_prompt *prompt, char *ticket, uint32_t *ticket_bytes);
kvf_status sim_request_open(sim_world *world, sim_node *node, sim_job *job);
kvf_status sim_load_start(sim_world *world, sim_node *node, sim_job *job, const kvf_blocks *destination,
                          uint64_t point);

/* ---- script.c, faults.c, stranger.c ---- */
/* The router has the job's ticket: it goes to the consumer. */
void sim_job_send(sim_world *world, const sim_job *job);
/* P8: a ticket that was altered, or comes with another prompt. */
void sim_forge_any(sim_world *world, uint32_t jobs_max);
void sim_replay_any(sim_world *world, uint32_t jobs_max);
void sim_script_start(sim_world *world);
sim_job *sim_submit(sim_world *world, uint32_t producer, uint32_t consumer, uint32_t prompt, bool probe,
                    uint32_t tries);
void sim_fault_any(sim_world *world);
void sim_faults_end(sim_world *world);
void sim_stranger_come(sim_world *world);
/* Bytes came for the stranger. */
void sim_stranger_hear(sim_world *world, sim_conn *conn);
/* Bytes of a stranger are about to be taken, and were. */
void sim_stranger_before(sim_world *world, const sim_node *node);
void sim_stranger_after(sim_world *world, const sim_node *node);
/* A consumer's bytes on their way: kept for a replay, or altered. */
void sim_stranger_overhear(sim_world *world, sim_conn *conn, uint32_t to, uint8_t *data, uint32_t bytes);

/* ---- check.c ---- */
/* At the end of a healed world: nothing may be open or held. */
void sim_check_rest(sim_world *world);

#endif
