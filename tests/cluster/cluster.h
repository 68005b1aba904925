/* Cores joined by wires: one consumer D and up to eight ranks of producers, P0 and so on, each with a connection of its
 * own. What a core wants of its runtime is done here, at once or when the test says so, and what it did is kept as
 * text. Reads are carried out on pools in which one number stands for one head of one token of one layer, or of all
 * tokens of a block, where memory has no parts. Time is a number. Only core.h is called. */
#ifndef KVF_TESTS_CLUSTER_H
#define KVF_TESTS_CLUSTER_H

#include "core/core.h"
#include "test.h"

#define MS KVF_NS_PER_MS
#define CLUSTER_PRODUCERS 8
#define CLUSTER_GROUPS 3
#define CLUSTER_LAYERS 6
#define CLUSTER_BLOCKS 16
#define CLUSTER_BLOCK_TOKENS 16
#define CLUSTER_HEADS 8
#define CLUSTER_SLOTS 16
#define CLUSTER_LOG_LINES 8
#define CLUSTER_DIALS_WAITING 4
#define CLUSTER_READS 256
#define CLUSTER_LINKS 1024
#define CLUSTER_TICKETS 8 /* A to H */
#define CLUSTER_USERS 8   /* numbers of requests that a scene may use */

#define CLUSTER_TEST(name) TEST_WITH(name, NULL, cluster_close)

typedef struct cluster_node {
  kvf_core *core;
  char name[3];
  kvf_core_config config;
  kvf_address address;
  kvf_address other;
  char offers[64];    /* transports of its memory */
  uint64_t memories;  /* it has had */
  bool is_held;       /* what it sends stays in its outbox */
  uint32_t log_lines; /* of which the last are here, each in its turn */
  char log[CLUSTER_LOG_LINES][KVF_LOG_LINE_BYTES_MAX];
  kvf_region_layout regions[CLUSTER_LAYERS]; /* one for each layer of this rank; there are as many parts, or none */
  kvf_part parts[CLUSTER_LAYERS];
  kvf_pages pages;
  uint32_t first_layer;
  uint32_t heads; /* of this rank */
  uint32_t first_head;
  kvf_deal deal;
  uint32_t rows; /* of a block */
  uint16_t pool[CLUSTER_LAYERS][CLUSTER_BLOCKS][CLUSTER_BLOCK_TOKENS * CLUSTER_HEADS];
  kvf_fence_entry table[CLUSTER_SLOTS];
} cluster_node;

/* The connection between the consumer and a producer rank; ids are 0 while there is none. */
typedef struct cluster_wire {
  uint64_t consumer_id;
  uint64_t producer_id;
  uint64_t dial_ids[CLUSTER_DIALS_WAITING]; /* to be answered, the oldest first */
  uint32_t dials_waiting;
  bool is_down; /* dials fail */
  uint32_t dials;
} cluster_wire;

/* What the test decides, instead of what goes well by itself. */
typedef enum cluster_hold {
  CLUSTER_DIALS = 1,
  CLUSTER_LINKS_OPENED = 2,
  CLUSTER_READS_ENDED = 4,
  CLUSTER_CANCELS = 8, /* of reads that are held */
  CLUSTER_EVENTS = 16
} cluster_hold;

/* How an engine is split. */
typedef struct cluster_split {
  uint32_t ranks;      /* of all stages together */
  uint32_t stage_ends; /* bit l: a stage ends with layer l; the last does anyway */
  uint32_t dealt;      /* ranks of a stage that tokens are dealt to, two at a time; 0: they are not */
} cluster_split;

/* What was sent to connections that are no wire's: strangers'. */
typedef struct cluster_stray {
  uint32_t hang_ups;
  uint32_t frames;
  kvf_frame_header last;
  uint8_t body[KVF_FRAME_BODY_BYTES_MAX];
} cluster_stray;

typedef struct cluster {
  bool is_open;
  uint64_t now_ns;
  uint32_t start_ms;
  cluster_split producer;
  cluster_split consumer;
  uint32_t consumer_rank;
  uint32_t heads;
  uint32_t groups;
  uint32_t layers; /* with parts, the first of them in group 0 and so on; 0: no parts, a region for each group */
  uint32_t rails;  /* of each of the consumer's transports */
  uint32_t blocks; /* of the ticket that is made to begin with; 0: none is */
  bool has_two_addresses;
  bool is_apart; /* each producer rank is an engine of its own */
  bool is_control;
  bool has_no_memory; /* the producers */
  bool is_published;
  uint32_t held; /* cluster_hold */
  char producer_model[16];
  cluster_node d;
  cluster_node p[CLUSTER_PRODUCERS];
  cluster_wire wires[CLUSTER_PRODUCERS];
  uint32_t link_producers[CLUSTER_LINKS];
  uint32_t verified; /* items of each read that agree with their checksums */
  kvf_load_read reads[CLUSTER_READS];
  uint32_t reads_count;
  uint64_t read_bytes; /* of all reads that were good */
  kvf_ticket tickets[CLUSTER_TICKETS];
  uint32_t tickets_count;
  uint32_t ids[CLUSTER_TICKETS][CLUSTER_GROUPS * CLUSTER_BLOCKS];
  uint64_t requests[CLUSTER_USERS];
  kvf_event event; /* the last that was taken */
  cluster_stray stray;
  char trace[16384];
  kvf_load_read last_read; /* that was said; and where its entry ends, if it is the last */
  size_t read_said_at;
  size_t cancel_said_at;
} cluster;

extern cluster c;
/* Gives each new core its guest. NULL: there are none. */
extern void (*cluster_invite)(cluster_node *node);

/* Closes the one before. Options are words: `ranks=2` of the producer, `own=2` of the consumer, whose rank `rank=1` is;
 * `heads` of the model, `groups`, `layers`, `stages` and `own_stages` (stage_ends), `rails`, `dealt` and `own_dealt`;
 * `blocks` of ticket A, which is `published`; `start_ms`; `apart`; `control`; `two` addresses; `nomemory`;
 * `offers=tcp`; `key`, `d.key`, `p.key` and `p.other`; `p.model`; `hold=dials,links,reads,cancels,events`; each other
 * one is set on all nodes. */
void cluster_open(const char *options);
/* Of the last that was opened, if it is still open. */
void cluster_close(void);

/* What this core wants of its runtime. */
void cluster_carry_out(cluster_node *node, const kvf_effect *effect);
/* Carries effects and frames to and fro until nothing moves, and takes events. */
void cluster_settle(void);
/* What the consumer and its producers have done since the last call; see scene.h. */
const char *cluster_said(void);
__attribute__((format(printf, 1, 2))) void cluster_say(const char *format, ...);
void cluster_advance(uint64_t ms);

/* The dial that has waited longest succeeds, or fails. */
void cluster_dial(uint32_t producer, kvf_status status);
/* The consumer sees the connection closed, and the producer too, or not. */
void cluster_cut(uint32_t producer, bool at_producer);
/* Another process takes a producer's place. */
void cluster_restart(uint32_t producer);
void cluster_set_memory(cluster_node *node);
/* Without settling. */
bool cluster_clear_memory(cluster_node *node);

/* Ends the i-th of the held reads; KVF_OK copies, and samples the fence. */
void cluster_end_read(uint32_t i, kvf_status status);
/* Ends up to `count` held reads of this producer rank, oldest first. Returns how many there were. */
uint32_t cluster_end_reads(uint32_t producer, uint32_t count, kvf_status status);
uint32_t cluster_reads_of(uint32_t producer);

/* The next ticket, for `positions` blocks of CLUSTER_BLOCK_TOKENS, of an engine that this producer rank belongs to. */
kvf_ticket *cluster_ticket(uint32_t producer, uint32_t positions);
kvf_status cluster_publish(uint32_t producer, const kvf_ticket *ticket);
/* Those of these tickets' letters. */
kvf_sources cluster_sources(const char *letters);

/* A load of all positions into the blocks cluster_destination() of each group. */
kvf_load_params cluster_load_params(const kvf_ticket *ticket, uint64_t request_id);
kvf_status cluster_load(const char *letters, uint64_t request_id);
uint32_t cluster_destination(uint32_t position);
/* Whether all that the consumer has of the lease's blocks is what the producer ranks hold; of one position of a group.
 */
bool cluster_holds(const kvf_ticket *ticket, uint32_t group, uint32_t position);
bool cluster_holds_all(const kvf_ticket *ticket);

/* Takes events until one of this kind comes, which is c.event; false: none did. With CLUSTER_EVENTS. */
bool cluster_event(kvf_event_kind kind);
uint64_t cluster_stat(const cluster_node *node, const char *name, const char *reason);
/* The latest line with this in it; "": none. */
const char *cluster_log(const cluster_node *node, const char *part);
/* How many loads and requests hold the consumer's peers. */
uint32_t cluster_users(void);

/* A connection to this node from a host with this first byte; its id is no wire's. */
uint64_t cluster_accept(cluster_node *node, uint8_t host);
/* How often the node has hung up on strangers since. */
uint32_t cluster_hang_ups(cluster_node *node);

#endif
