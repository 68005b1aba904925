/* Two engines with one model, their memory, and loads between all their ranks: what the planner says is carried out and
 * compared with what a plain count of tokens, heads and bytes says must be where. Shares no code with the planner.
 * For unit tests and the fuzz target `pages`. */
#ifndef KVF_TESTS_PAGES_WORLD_H
#define KVF_TESTS_PAGES_WORLD_H

#include "plan/rank_shares.h"

#define WORLD_THINGS_MAX 8
#define WORLD_GROUPS 3
#define WORLD_BLOCKS 16 /* of each region */

/* 0 to n - 1; 0 is the plainest. */
typedef uint32_t (*world_choose)(void *context, uint32_t n);

/* What a layer of the model keeps. */
typedef struct world_thing {
  uint32_t layer;
  kvf_part_kind kind;
  uint32_t index;
  uint32_t group;
  uint32_t heads; /* of the model; 1: replicated */
  uint32_t unit_bytes;
  uint32_t row_tokens; /* 0: a state */
  uint32_t state_rows;
} world_thing;

typedef enum world_placement {
  WORLD_REGION_EACH, /* each thing has a region of its own */
  WORLD_PAGES,       /* a group's things lie side by side in one region's blocks */
  WORLD_ONE_REGION   /* all groups' things in one region's blocks */
} world_placement;

typedef struct world_side {
  uint32_t ranks;      /* of a stage */
  uint32_t stage_ends; /* bit l: a stage of its pipeline ends with layer l; the last does anyway */
  bool stages_inner;   /* ranks that follow each other are of different stages */
  uint32_t dealt;      /* ranks that tokens are dealt to; 1: they are not */
  uint32_t deal_tokens;
  uint32_t block_tokens[WORLD_GROUPS];
  world_placement placement;
  uint32_t tokens_first;                       /* bit i: thing i is NHD */
  uint32_t pad_bytes;                          /* between units, things and blocks */
  bool backwards;                              /* its parts are listed from the last to the first */
  uint32_t blocks[WORLD_GROUPS][WORLD_BLOCKS]; /* of the request, by position */
} world_side;

typedef struct world {
  world_thing things[WORLD_THINGS_MAX];
  uint32_t things_count;
  uint32_t layers;
  world_side producer;
  world_side consumer;
  uint32_t rounds;      /* the request is as long as so many of the larger blocks */
  uint32_t skipped;     /* bit i % 32: item i is not wanted */
  uint32_t bytes_max;   /* of a call; 0: no limit */
  uint32_t layers_each; /* of a read; 0: all */
  uint64_t segments;    /* of all loads */
} world;

/* A world of one attention layer, one rank on each side, blocks of 4 tokens in order. */
void world_init(world *w);
world_thing *world_add(world *w, world_thing thing);
void world_random(world *w, world_choose choose, void *context);

/* Loads all that each consumer rank wants from the producer's ranks. NULL, or what is wrong. */
const char *world_check(world *w);

/* Breaks what a peer says, and looks whether anything out of bounds gets through. NULL, or what is wrong. */
const char *world_check_malformed(world *w, world_choose choose, void *context);

#endif
