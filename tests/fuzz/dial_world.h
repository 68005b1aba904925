/* The world of the target `dial`: a core, what it wants of its surroundings, and the model that says what it may do. */
#ifndef KVF_TESTS_FUZZ_DIAL_WORLD_H
#define KVF_TESTS_FUZZ_DIAL_WORLD_H

#include "find/finder.h"
#include "fuzz.h"
#include "wires.h"

#define MS KVF_NS_PER_MS
#define PRODUCERS 3
#define LOADS_MAX 12
#define REQUESTS_MAX 8
#define READS_MAX 64
#define POSITIONS 4
#define BLOCK_TOKENS 16
#define DIGEST 9
#define FIRST_PORT 80
#define FINDS_MAX 16

typedef struct load_model {
  uint64_t deadline_ns;
  uint32_t producer;
  bool wanted[POSITIONS];
  bool good[POSITIONS];
  bool has_outcome;
  bool is_released;
} load_model;

typedef struct read_model {
  uint64_t read_id; /* 0: not in use */
  uint32_t load;
  uint32_t count;
  uint32_t positions[POSITIONS];
} read_model;

typedef struct request_model {
  uint64_t id;
  bool begun;
  bool cancelled;
  bool has_verdict;
  bool is_let_go; /* its rank is said to be released */
  bool is_released;
  uint64_t verdict_by_ns;
} request_model;

typedef struct find_model {
  uint64_t id;
  uint64_t deadline_ns;
  bool is_over;
} find_model;

typedef struct dial_world {
  kvf_core *core;
  kvf_finder finder;
  uint8_t compat[KVF_HASH_BYTES];
  kvf_core_config config;
  wires all;
  uint64_t dials[WIRES_MAX]; /* that wait for an answer; 0: none */
  bool is_named[PRODUCERS];  /* by an accepted ticket */
  uint32_t open_paths[WIRES_MAX];
  uint32_t open_paths_count;
  load_model loads[LOADS_MAX];
  uint32_t loads_count;
  read_model reads[READS_MAX];
  request_model requests[REQUESTS_MAX];
  uint32_t requests_count;
  find_model finds[FINDS_MAX];
  uint32_t finds_count;
} dial_world;

extern dial_world world;

kvf_incarnation dial_incarnation(uint32_t producer);
kvf_lease dial_lease(uint32_t load);
/* What all ask for. */
kvf_prompt dial_prompt(void);

void dial_open(void);
/* Nothing is left. */
void dial_close(void);
/* Everything that must hold after each step. */
void dial_check(void);
/* Time goes by; at most 10 ms, where time counts. */
void dial_pass(uint64_t ns);
/* The read is over; `is_good`: with a live fence's sample. */
void dial_end_read(read_model *read, kvf_status status, const kvf_fence_sample *sample, bool is_good);
/* Whether every load is released and every request has what it waits for. */
/* Says that the only rank is released, or that it is stuck. */
void dial_let_go(request_model *request, bool is_stuck);
bool dial_is_settled(void);

#endif
