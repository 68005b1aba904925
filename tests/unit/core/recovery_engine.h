/* An engine that cannot rewind by itself, with a recovery table: prompts that share prefixes, a paged pool that is far
 * too small, a cache of local prefixes, ranks that load into their own memory at their own pace. What a block should
 * hold follows from its prompt and position, so that any other content is recognised. */
#ifndef TESTS_RECOVERY_ENGINE_H
#define TESTS_RECOVERY_ENGINE_H

#include "base/prng.h"
#include "kvferry/consumer.h"
#include "kvferry/recovery.h"
#include "test.h"

enum { RANKS = 4, POOL = 40, FAMILIES = 3, PROMPT_BLOCKS = 8, BLOCK_TOKENS = 4, REQUESTS = 24, TABLE = 6 };
enum { MESSAGES = 512, PATIENCE = 60 };

typedef enum load_state { LOAD_NONE, LOAD_GOING, LOAD_OVER, LOAD_QUIET } load_state;

/* One rank's load of a request. */
typedef struct engine_load {
  load_state state;
  uint32_t done;    /* leading positions that are good */
  uint32_t fail_at; /* the position at which it fails; UINT32_MAX: it does not */
  bool hangs;       /* says nothing, and becomes quiet when the faults end */
  bool aborted;
  bool quiet_sent;
} engine_load;

typedef enum phase { UNUSED, WAITING, PARKED, RUNNING, DONE, GONE } phase;

typedef struct engine_request {
  phase phase;
  uint64_t id;
  uint32_t family;
  uint32_t blocks; /* of the prompt */
  uint32_t prompt_tokens;
  uint32_t local_blocks;
  uint32_t tokens; /* local prefix and external match */
  uint32_t bars;
  uint32_t block_ids[PROMPT_BLOCKS];
  uint32_t age;
  engine_load loads[RANKS];
  /* What has reached the tables. */
  uint64_t reported;
  uint64_t quiet;
  uint32_t prefix;
  bool unsafe;
  /* What they said. */
  uint32_t told; /* kvf_recovery_event_kind, or 0 */
  uint32_t kept;
  uint32_t computed_tokens;
  uint32_t recomputed_tokens; /* of those that were to be loaded */
  uint32_t errors_expected;
  uint32_t drained_mask; /* by position */
  bool terminated;
  bool aborted;
  bool released;
  bool ended;
} engine_request;

typedef enum message_kind { MESSAGE_NONE, MESSAGE_REPORT, MESSAGE_BLOCKS, MESSAGE_QUIET } message_kind;

/* From a rank, on its way. */
typedef struct engine_message {
  message_kind kind;
  uint32_t request;
  uint32_t rank;
  uint32_t delay;
  kvf_report report;
} engine_message;

typedef struct engine {
  kvf_prng prng;
  uint32_t ranks;
  uint64_t all_ranks;
  uint32_t recompute_max_tokens;
  kvf_recovery *tables[RANKS]; /* one with the scheduler, or one for each rank */
  uint32_t tables_count;
  bool faults;
  uint64_t memory[RANKS][POOL];
  uint32_t owners[POOL]; /* 1 + request that may write to it */
  uint32_t references[POOL];
  uint32_t cache[FAMILIES][PROMPT_BLOCKS]; /* 1 + block */
  engine_request requests[REQUESTS];
  uint64_t next_id;
  engine_message messages[MESSAGES];
  uint64_t ready;
  uint64_t rewound;
  uint64_t partial;
  uint64_t terminated;
  uint64_t aborted;
  uint64_t finished;
} engine;

static inline uint32_t pick(engine *e, uint32_t below)
{
  return (uint32_t)kvf_prng_below(&e->prng, below);
}

/* True once in `of` times, and never after the faults have ended. */
static inline bool fault(engine *e, uint32_t of)
{
  return pick(e, of) == 0 && e->faults;
}

/* What a block of a prompt holds. */
static inline uint64_t content(uint32_t family, uint32_t position)
{
  kvf_prng prng = {.state = (uint64_t)family * 1000 + position + 1};
  return kvf_prng_next(&prng);
}

static inline bool is_good(const engine *e, uint32_t rank, const engine_request *request, uint32_t position)
{
  return e->memory[rank][request->block_ids[position]] == content(request->family, position);
}

static inline bool is_good_everywhere(const engine *e, const engine_request *request, uint32_t blocks)
{
  for (uint32_t rank = 0; rank < e->ranks; rank++) {
    for (uint32_t position = 0; position < blocks; position++) {
      if (!is_good(e, rank, request, position)) {
        return false;
      }
    }
  }
  return true;
}

static inline uint32_t index_of(const engine *e, const engine_request *request)
{
  return (uint32_t)(request - e->requests);
}

static inline uint32_t load_blocks(const engine_request *request)
{
  return (request->tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
}

/* Local prefix from the cache, the other blocks from the pool; false if there are not enough. */
bool engine_take_blocks(engine *e, engine_request *request);
void engine_give_back(engine *e, engine_request *request, uint32_t blocks);
/* Enters the whole blocks of a request that has been computed into the cache. */
void engine_publish(engine *e, const engine_request *request);

void engine_start_loads(engine *e, engine_request *request);
/* One thing that a rank does for its load: writes a block, has its outcome, becomes quiet. */
void engine_step_load(engine *e, engine_request *request, uint32_t rank);

#endif
