/* The core of one consumer rank and the cores of all ranks of a producer, each reached over a connection of its own.
 * Reads are carried out here, on pools in which one number stands for one head of one token of one layer, or of all
 * tokens of a block, where memory has no parts. Time is a number. */
#ifndef KVF_TESTS_RANKS_WORLD_H
#define KVF_TESTS_RANKS_WORLD_H

#include "core/core.h"
#include "core/core_state.h"
#include "test.h"

#define MS KVF_NS_PER_MS
#define RANKS_TEST(name) TEST_WITH(name, NULL, ranks_close)
#define RANKS_PRODUCERS 8
#define RANKS_GROUPS 3
#define RANKS_LAYERS 6
#define RANKS_BLOCKS 16
#define RANKS_BLOCK_TOKENS 16
#define RANKS_HEADS 8
#define RANKS_SLOTS 4
#define RANKS_READS 256
#define RANKS_PATHS 32

typedef struct ranks_node {
  kvf_core core;
  kvf_region_layout regions[RANKS_LAYERS]; /* one for each layer of this rank; there are as many parts, or none */
  kvf_part parts[RANKS_LAYERS];
  kvf_pages pages;
  uint32_t first_layer;
  uint32_t heads; /* of this rank */
  uint32_t first_head;
  kvf_deal deal;
  uint32_t rows; /* of a block */
  uint16_t pool[RANKS_LAYERS][RANKS_BLOCKS][RANKS_BLOCK_TOKENS * RANKS_HEADS];
  kvf_fence_entry table[RANKS_SLOTS];
} ranks_node;

/* The connection between the consumer and one producer rank; ids are 0 while there is none. */
typedef struct ranks_wire {
  uint64_t consumer_id;
  uint64_t producer_id;
  bool down; /* dials fail */
  uint32_t dials;
} ranks_wire;

typedef struct ranks_world {
  bool is_open;
  uint64_t now_ns;
  uint32_t ranks; /* of the producer */
  uint32_t groups;
  uint32_t layers;
  ranks_node consumer;
  ranks_node producers[RANKS_PRODUCERS];
  ranks_wire wires[RANKS_PRODUCERS];
  uint32_t path_producer[RANKS_PATHS];
  uint32_t path_transport[RANKS_PATHS]; /* index into the consumer's list */
  uint32_t transports_down;             /* as bits: links over these cannot be opened */
  bool hold_reads;                      /* ranks_complete() ends them */
  bool hold_cancels;                    /* those that were cancelled too */
  uint32_t verified;                    /* items of each read that agree with their checksums */
  kvf_load_read reads[RANKS_READS];
  uint32_t reads_count;
  uint64_t read_bytes; /* of all reads that were good */
} ranks_world;

extern ranks_world world;

/* How an engine is split, where it has a pipeline or deals tokens. */
typedef struct ranks_split {
  uint32_t stage_ends; /* bit l: a stage ends with layer l; the last does anyway */
  uint32_t dealt;      /* ranks of a stage that tokens are dealt to, two at a time */
} ranks_split;

typedef struct ranks_options {
  uint32_t producer_ranks; /* of all stages together */
  uint32_t consumer_ranks;
  uint32_t consumer_rank;
  uint32_t heads_total;
  uint32_t groups;
  uint32_t
      layers; /* with parts, the first of them in group 0 and so on; 0: regions without parts, one for each group */
  ranks_split producer;
  ranks_split consumer;
  bool control; /* the consumer is a control node without memory */
  kvf_config config;
} ranks_options;

void ranks_options_init(ranks_options *options, uint32_t producer_ranks, uint32_t consumer_ranks, uint32_t heads_total);
/* Closes the one before. */
void ranks_open(const ranks_options *options);
/* Of the last world that was opened, if it is still open. */
int ranks_close(void **state);

/* Carries effects and frames to and fro until nothing moves. */
void ranks_settle(void);
void ranks_advance(uint64_t ms);
/* Both ends see the connection of this producer rank closed. */
void ranks_cut(uint32_t producer);
/* Ends up to `count` held reads of this producer rank, oldest first; KVF_OK copies and samples the fence. Returns how
 * many there were. */
uint32_t ranks_complete(uint32_t producer, uint32_t count, kvf_status status);

/* A ticket for `positions` blocks of RANKS_BLOCK_TOKENS; `ids` has room for all groups. */
void ranks_ticket(kvf_ticket *ticket, uint32_t *ids, uint32_t positions);
void ranks_publish(uint32_t producer, const kvf_ticket *ticket);

/* Starts a load of all positions into the blocks ranks_destination() of each group. */
kvf_status ranks_load(const kvf_ticket *ticket, uint64_t request_id);
uint32_t ranks_destination(uint32_t position);
/* Whether all that the consumer has of this position is what the producer ranks hold. */
bool ranks_holds(const kvf_ticket *ticket, uint32_t group, uint32_t position);
/* Takes events until one of this kind comes; false: none did. */
bool ranks_event(kvf_event_kind kind, kvf_event *out);
/* Loads' parts and requests' ranks that hold a peer. */
uint32_t ranks_peers_held(void);

#endif
