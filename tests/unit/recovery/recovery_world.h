/* A recovery table of an engine with two ranks and blocks of 16 tokens, and short ways to say what happens to it. */
#ifndef TESTS_RECOVERY_WORLD_H
#define TESTS_RECOVERY_WORLD_H

#include "kvferry/consumer.h"
#include "kvferry/recovery.h"
#include "test.h"

enum { BLOCK_TOKENS = 16, POOL = 64, REQUESTS = 8, LOCAL_BLOCKS = 2, LOADED_BLOCKS = 4, BOTH = 3 };
enum { POSITIONS = LOCAL_BLOCKS + LOADED_BLOCKS, TOKENS = POSITIONS * BLOCK_TOKENS, PROMPT = TOKENS + 5 };

static const kvf_recovery_options world_options = {
    .ranks = 2, .block_tokens = BLOCK_TOKENS, .requests_max = REQUESTS, .groups = 1, .pool_blocks = {POOL}};

static kvf_recovery *recovery;

static inline int world_close(__attribute__((unused)) void **state)
{
  kvf_recovery_close(recovery);
  recovery = NULL;
  return 0;
}

/* Closes the one before. */
static inline void world_open_with(const kvf_recovery_options *options)
{
  (void)world_close(NULL);
  assert_int_equal(kvf_recovery_open(options, &recovery), KVF_OK);
}

static inline int world_open(__attribute__((unused)) void **state)
{
  world_open_with(&world_options);
  return 0;
}

/* Begins with an empty table. */
#define RECOVERY_TEST(name) TEST_WITH(name, world_open, world_close)

/* Two blocks of local prefix, and four loaded into blocks 4 * id to 4 * id + 3. */
static inline kvf_status world_try_admit(uint64_t id, uint32_t blockers)
{
  uint32_t ids[POSITIONS];
  const uint32_t counts[] = {POSITIONS};
  for (uint32_t i = 0; i < POSITIONS; i++) {
    ids[i] = i < LOCAL_BLOCKS ? KVF_BLOCK_NONE : (uint32_t)id * LOADED_BLOCKS + i - LOCAL_BLOCKS;
  }
  return kvf_recovery_admit(recovery, &(kvf_recovery_request){.request_id = id,
                                                              .user = 100 + id,
                                                              .blocks = {ids, counts, 1},
                                                              .local_prefix_tokens = LOCAL_BLOCKS * BLOCK_TOKENS,
                                                              .tokens = TOKENS,
                                                              .prompt_tokens = PROMPT,
                                                              .blockers = blockers});
}

static inline void world_admit(uint64_t id)
{
  assert_int_equal(world_try_admit(id, 0), KVF_OK);
}

static inline kvf_report world_report(uint64_t id, uint64_t ranks_mask, uint32_t loaded, kvf_status status)
{
  return (kvf_report){.request_id = id,
                      .ranks_mask = ranks_mask,
                      .blocks = POSITIONS,
                      .prefix = LOCAL_BLOCKS + loaded,
                      .status = status};
}

/* `loaded` of the blocks are good on the ranks. */
static inline void world_outcome(uint64_t id, uint64_t ranks_mask, uint32_t loaded, kvf_status status)
{
  kvf_report report = world_report(id, ranks_mask, loaded, status);
  assert_int_equal(kvf_recovery_report(recovery, &report), KVF_OK);
}

/* The outcome of a load that is over and released. */
static inline void world_over(uint64_t id, uint64_t ranks_mask, uint32_t loaded, kvf_status status)
{
  world_outcome(id, ranks_mask, loaded, status);
  assert_int_equal(kvf_recovery_released(recovery, id, ranks_mask), KVF_OK);
}

static inline void world_good(uint64_t id, uint64_t ranks_mask)
{
  world_over(id, ranks_mask, LOADED_BLOCKS, KVF_OK);
}

static inline void world_silent(void)
{
  kvf_recovery_event event;
  assert_false(kvf_recovery_next_event(recovery, &event));
}

static inline kvf_recovery_event world_event(kvf_recovery_event_kind kind, uint64_t id)
{
  kvf_recovery_event event;
  assert_true(kvf_recovery_next_event(recovery, &event));
  assert_int_equal(event.kind, kind);
  assert_int_equal(event.request_id, id);
  assert_int_equal(event.user, 100 + id);
  return event;
}

static inline kvf_recovery_event world_rewind(uint64_t id, uint32_t confirmed)
{
  kvf_recovery_event event = world_event(KVF_RECOVERY_REWIND, id);
  assert_int_equal(event.confirmed_blocks, confirmed);
  assert_int_equal(event.computed_tokens, (LOCAL_BLOCKS + confirmed) * BLOCK_TOKENS);
  assert_int_equal(event.recompute_tokens, (LOADED_BLOCKS - confirmed) * BLOCK_TOKENS);
  assert_int_equal(event.blockers, 0);
  return event;
}

static inline kvf_recovery_event world_terminate(uint64_t id, uint32_t blockers)
{
  kvf_recovery_event event = world_event(KVF_RECOVERY_TERMINATE, id);
  assert_int_equal(event.blockers, blockers);
  return event;
}

static inline kvf_recovery_stats world_stats(void)
{
  kvf_recovery_stats stats;
  kvf_recovery_get_stats(recovery, &stats);
  return stats;
}

/* Nothing is in the table, and what came in has gone out once. */
static inline void world_expect_empty(void)
{
  kvf_recovery_stats stats = world_stats();
  world_silent();
  assert_int_equal(stats.open, 0);
  assert_int_equal(stats.loading, 0);
  assert_int_equal(stats.released, stats.admitted);
}

static inline void world_end_last(uint64_t id)
{
  assert_int_equal(kvf_recovery_end(recovery, id), KVF_OK);
  world_expect_empty();
}

#endif
