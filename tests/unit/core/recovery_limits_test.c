/* What a recovery table refuses, and that it then has not changed. */
#include "recovery_world.h"

static void try_open(kvf_recovery_options options, kvf_status expected)
{
  kvf_recovery *recovery = (kvf_recovery *)&options;
  assert_int_equal(kvf_recovery_open(&options, &recovery), expected);
  assert_true((recovery != NULL) == (expected == KVF_OK));
  kvf_recovery_close(recovery);
}

/* With these options changed. */
#define OPEN(expected, ...)                       \
  do {                                            \
    kvf_recovery_options options = world_options; \
    __VA_ARGS__;                                  \
    try_open(options, expected);                  \
  } while (0)

TEST(options_out_of_range)
{
  OPEN(KVF_INVALID, options.ranks = 0);
  OPEN(KVF_OK, options.ranks = KVF_RANKS_MAX);
  OPEN(KVF_LIMIT, options.ranks = KVF_RANKS_MAX + 1);
  OPEN(KVF_INVALID, options.block_tokens = 0);
  OPEN(KVF_INVALID, options.requests_max = 0);
  OPEN(KVF_OK, options.requests_max = KVF_RECOVERY_REQUESTS_MAX);
  OPEN(KVF_LIMIT, options.requests_max = KVF_RECOVERY_REQUESTS_MAX + 1);
  OPEN(KVF_INVALID, options.groups = 0);
  OPEN(KVF_INVALID, options.groups = 2); /* the second pool is empty */
  OPEN(KVF_LIMIT, options.groups = 2, options.pool_blocks[1] = KVF_RECOVERY_BLOCKS_MAX - POOL + 1);
  OPEN(KVF_LIMIT, options.groups = KVF_GROUPS_MAX + 1);
}

typedef struct admission {
  uint32_t ids[POSITIONS + 1];
  uint32_t counts[2];
  kvf_recovery_request request;
} admission;

static void try_admit(const admission *a, kvf_status expected)
{
  kvf_recovery *recovery = world_open();
  kvf_recovery_request request = a->request;
  request.blocks.ids = a->ids;
  request.blocks.counts = a->counts;
  assert_int_equal(kvf_recovery_admit(recovery, &request), expected);
  assert_int_equal(world_stats(recovery).admitted, expected == KVF_OK);
  assert_int_equal(world_stats(recovery).open, expected == KVF_OK);
  kvf_recovery_close(recovery);
}

static const admission good = {
    .ids = {KVF_BLOCK_NONE, KVF_BLOCK_NONE, 5, 6, 7, POOL - 1},
    .counts = {POSITIONS},
    .request = {.blocks = {.groups = 1}, .local_prefix_tokens = 32, .tokens = TOKENS - 15, .prompt_tokens = TOKENS},
};

/* A good one with these changes. */
#define ADMIT(expected, ...) \
  do {                       \
    admission a = good;      \
    __VA_ARGS__;             \
    try_admit(&a, expected); \
  } while (0)

TEST(admissions_out_of_range)
{
  try_admit(&good, KVF_OK);
  ADMIT(KVF_INVALID, a.request.local_prefix_tokens = 31); /* not whole blocks */
  ADMIT(KVF_INVALID, a.request.local_prefix_tokens = 48); /* its last block is loaded over */
  ADMIT(KVF_INVALID, a.request.local_prefix_tokens = TOKENS);
  ADMIT(KVF_INVALID, a.request.tokens = TOKENS + 1);
#define LONGER a.request.tokens = TOKENS + 1, a.request.prompt_tokens = TOKENS + 1
  ADMIT(KVF_INVALID, LONGER);                                                       /* a position is missing */
  ADMIT(KVF_INVALID, LONGER, a.counts[0] = POSITIONS + 1, a.ids[POSITIONS] = POOL); /* out of the pool */
  ADMIT(KVF_EXISTS, LONGER, a.counts[0] = POSITIONS + 1, a.ids[POSITIONS] = 7);     /* twice */
  ADMIT(KVF_OK, LONGER, a.counts[0] = POSITIONS + 1, a.ids[POSITIONS] = 0);
#undef LONGER
  ADMIT(KVF_INVALID, a.request.bars = KVF_BAR_USED); /* the table's own */
  ADMIT(KVF_INVALID, a.request.blocks.groups = 2);
  ADMIT(KVF_LIMIT, a.request.tokens = KVF_BLOCKS_PER_LEASE_MAX * BLOCK_TOKENS + 1,
        a.request.prompt_tokens = UINT32_MAX);
}

/* The blocks before the one that has an owner are not kept by a request that was not admitted. */
TEST(refused_admission_leaves_no_block_behind)
{
  kvf_recovery *recovery = world_open();
  const uint32_t ids[] = {20, 22, 21, 20, 23};
  const uint32_t counts[] = {3};
  kvf_recovery_request request = {.request_id = 1, .blocks = {ids + 1, counts, 1}, .tokens = 48, .prompt_tokens = 48};
  assert_int_equal(kvf_recovery_admit(recovery, &request), KVF_OK); /* 22, 21, 20 */
  request.request_id = 2;
  request.blocks.ids = ids + 2;
  assert_int_equal(kvf_recovery_admit(recovery, &request), KVF_EXISTS); /* 21, 20, 23 */
  const uint32_t others[] = {23, 24, 25};
  request.blocks.ids = others;
  assert_int_equal(kvf_recovery_admit(recovery, &request), KVF_OK);
  kvf_recovery_close(recovery);
}

TEST(table_full_and_ids_taken)
{
  kvf_recovery *recovery = world_open();
  for (uint64_t id = 0; id < REQUESTS; id++) {
    world_admit(recovery, id);
    assert_int_equal(world_try_admit(recovery, id, 0), KVF_EXISTS);
  }
  assert_int_equal(world_try_admit(recovery, REQUESTS, 0), KVF_NO_MEMORY);
  world_good(recovery, 3, BOTH);
  assert_int_equal(kvf_recovery_end(recovery, 3), KVF_OK);
  assert_int_equal(world_try_admit(recovery, REQUESTS, 0), KVF_NO_MEMORY); /* its blocks are not released yet */
  world_event(recovery, KVF_RECOVERY_RELEASE, 3);
  world_admit(recovery, REQUESTS);
  kvf_recovery_close(recovery);
}

static void try_report(uint64_t ranks_mask, uint32_t blocks, uint32_t prefix, kvf_status status, kvf_status expected)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  const kvf_report report = {
      .request_id = 1, .ranks_mask = ranks_mask, .blocks = blocks, .prefix = prefix, .status = status};
  assert_int_equal(kvf_recovery_quiet(recovery, 1, BOTH), KVF_OK);
  assert_int_equal(kvf_recovery_report(recovery, &report), expected);
  if (expected != KVF_OK) {
    world_silent(recovery);
    world_outcome(recovery, 1, BOTH, LOADED_BLOCKS, KVF_OK);
    world_event(recovery, KVF_RECOVERY_READY, 1);
  }
  kvf_recovery_close(recovery);
}

TEST(reports_that_contradict_themselves)
{
  try_report(BOTH, POSITIONS, 3, KVF_PEER_DOWN, KVF_OK);
  try_report(0, POSITIONS, 3, KVF_PEER_DOWN, KVF_INVALID);
  try_report(4, POSITIONS, 3, KVF_PEER_DOWN, KVF_INVALID);
  try_report(BOTH, POSITIONS - 1, 3, KVF_PEER_DOWN, KVF_INVALID);
  try_report(BOTH, POSITIONS, POSITIONS + 1, KVF_PEER_DOWN, KVF_INVALID);
  try_report(BOTH, POSITIONS, POSITIONS - 1, KVF_OK, KVF_INVALID);
}

TEST(a_status_of_a_newer_version_is_not_trusted)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  kvf_report report = world_report(1, BOTH, 2, KVF_OK);
  report.status = -9999;
  assert_int_equal(kvf_recovery_report(recovery, &report), KVF_OK);
  assert_int_equal(kvf_recovery_quiet(recovery, 1, BOTH), KVF_OK);
  assert_int_equal(world_terminate(recovery, 1, KVF_BAR_UNSAFE).status, KVF_INVALID);
  kvf_recovery_close(recovery);
}

TEST(what_is_of_no_request)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  const kvf_report report = world_report(2, BOTH, 1, KVF_PEER_DOWN);
  const kvf_verdict verdict = {.action = KVF_ACTION_FAIL, .status = KVF_PEER_DOWN};
  const uint32_t ids[] = {LOADED_BLOCKS, POOL};
  assert_int_equal(kvf_recovery_report(recovery, &report), KVF_NOT_FOUND);
  assert_int_equal(kvf_recovery_verdict(recovery, 2, &verdict), KVF_NOT_FOUND);
  assert_int_equal(kvf_recovery_quiet(recovery, 2, BOTH), KVF_NOT_FOUND);
  assert_int_equal(kvf_recovery_quiet(recovery, 1, 4), KVF_INVALID);
  assert_int_equal(kvf_recovery_bar(recovery, 2, KVF_BAR_BEAMS), KVF_NOT_FOUND);
  assert_int_equal(kvf_recovery_bar(recovery, 1, KVF_BAR_POLICY), KVF_INVALID);
  assert_int_equal(kvf_recovery_report_blocks(recovery, 2, 0, ids, 1, KVF_PEER_DOWN), KVF_INVALID);
  assert_int_equal(kvf_recovery_report_blocks(recovery, 0, 1, ids, 1, KVF_PEER_DOWN), KVF_INVALID);
  assert_int_equal(kvf_recovery_report_blocks(recovery, 0, 0, ids, 1, KVF_OK), KVF_INVALID);
  assert_int_equal(kvf_recovery_report_blocks(recovery, 0, 0, ids, 2, KVF_PEER_DOWN), KVF_INVALID);
  world_outcome(recovery, 1, 2, LOADED_BLOCKS, KVF_OK);
  world_silent(recovery); /* rank 0 has not been heard: the last of these changed nothing either */
  kvf_recovery_close(recovery);
}

/* ---- verdicts of a control node ---- */

static kvf_recovery *with_verdict(kvf_verdict verdict, kvf_status expected)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  assert_int_equal(kvf_recovery_quiet(recovery, 1, BOTH), KVF_OK);
  assert_int_equal(kvf_recovery_verdict(recovery, 1, &verdict), expected);
  if (expected != KVF_OK) {
    world_silent(recovery);
  }
  return recovery;
}

TEST(verdict_speaks_for_all_ranks)
{
  kvf_recovery *recovery = with_verdict((kvf_verdict){.action = KVF_ACTION_USE}, KVF_OK);
  world_event(recovery, KVF_RECOVERY_READY, 1);
  kvf_recovery_close(recovery);
  recovery = with_verdict(
      (kvf_verdict){.action = KVF_ACTION_RECOMPUTE, .status = KVF_PEER_DOWN, .keep_blocks = LOCAL_BLOCKS + 3}, KVF_OK);
  assert_int_equal(world_rewind(recovery, 1, 3).status, KVF_PEER_DOWN);
  kvf_recovery_close(recovery);
  recovery = with_verdict((kvf_verdict){.action = KVF_ACTION_FAIL, .status = KVF_PEER_DOWN}, KVF_OK);
  assert_int_equal(world_terminate(recovery, 1, KVF_BAR_POLICY).status, KVF_PEER_DOWN);
  kvf_recovery_close(recovery);
  recovery = with_verdict((kvf_verdict){.action = KVF_ACTION_FAIL, .status = KVF_RANK_LOST}, KVF_OK);
  world_terminate(recovery, 1, KVF_BAR_POLICY | KVF_BAR_UNSAFE);
  kvf_recovery_close(recovery);
}

TEST(verdicts_that_contradict_themselves)
{
  const kvf_verdict verdicts[] = {
      {.action = KVF_ACTION_USE, .status = KVF_PEER_DOWN},
      {.action = KVF_ACTION_RECOMPUTE, .status = KVF_OK, .keep_blocks = 1},
      {.action = KVF_ACTION_RECOMPUTE, .status = KVF_PEER_DOWN, .keep_blocks = POSITIONS},
      {.action = KVF_ACTION_FAIL, .status = KVF_OK},
      {.action = (kvf_action)4, .status = KVF_PEER_DOWN}, /* NOLINT(clang-analyzer-optin.core.EnumCastOutOfRange) */
  };
  for (size_t i = 0; i < sizeof(verdicts) / sizeof(verdicts[0]); i++) {
    kvf_recovery_close(with_verdict(verdicts[i], KVF_INVALID));
  }
}

/* ---- several groups, nothing to load ---- */

/* Groups do not cover the same tokens with the same blocks: all is kept or nothing. */
TEST(groups_are_all_or_nothing)
{
  kvf_recovery_options options = world_options;
  options.groups = 3;
  options.pool_blocks[1] = options.pool_blocks[2] = POOL;
  const uint32_t ids[] = {KVF_BLOCK_NONE, 1, 2, KVF_BLOCK_NONE, 1, 3, KVF_BLOCK_NONE, KVF_BLOCK_NONE, 63};
  const uint32_t counts[] = {3, 3, 3};
  const uint32_t failed[] = {3};
  for (int round = 0; round < 3; round++) {
    kvf_recovery *recovery;
    kvf_recovery_event event;
    kvf_recovery_error errors[8];
    assert_int_equal(kvf_recovery_open(&options, &recovery), KVF_OK);
    const kvf_recovery_request request = {
        .request_id = 1, .blocks = {ids, counts, 3}, .local_prefix_tokens = 16, .tokens = 40, .prompt_tokens = 40};
    assert_int_equal(kvf_recovery_admit(recovery, &request), KVF_OK);
    assert_int_equal(kvf_recovery_quiet(recovery, 1, BOTH), KVF_OK);
    kvf_report report = {.request_id = 1, .ranks_mask = BOTH, .blocks = 9, .prefix = 9};
    kvf_verdict verdict = {.action = KVF_ACTION_RECOMPUTE, .status = KVF_PEER_DOWN};
    if (round == 2) {
      assert_int_equal(kvf_recovery_verdict(recovery, 1, &verdict), KVF_OK);
    } else {
      assert_int_equal(kvf_recovery_report(recovery, &report), KVF_OK);
    }
    if (round == 1) {
      assert_int_equal(kvf_recovery_report_blocks(recovery, 1, 1, failed, 1, KVF_CHECKSUM), KVF_OK);
    }
    assert_true(kvf_recovery_next_event(recovery, &event));
    assert_int_equal(event.kind, round == 0 ? KVF_RECOVERY_READY : KVF_RECOVERY_REWIND);
    assert_int_equal(event.computed_tokens, round == 0 ? 40 : 16);
    assert_int_equal(event.recompute_tokens, round == 0 ? 0 : 24);
    assert_int_equal(event.confirmed_blocks, round == 0 ? 2 : 0);
    assert_int_equal(kvf_recovery_drain_errors(recovery, errors, 8), round == 0 ? 0 : 5);
    if (round > 0) {
      assert_int_equal(errors[3].group, 1);
      assert_int_equal(errors[3].block_id, 3);
      assert_int_equal(errors[3].position, 2);
      assert_int_equal(errors[4].group, 2);
      assert_int_equal(errors[4].block_id, 63);
    }
    kvf_recovery_close(recovery);
  }
}

/* A rank that fails a load of nothing has lost nothing. */
TEST(loads_of_no_blocks)
{
  const uint32_t ids[] = {KVF_BLOCK_NONE};
  const uint32_t counts[] = {1};
  for (uint32_t blocks = 0; blocks <= 1; blocks++) {
    kvf_recovery *recovery = world_open();
    const uint32_t tokens = blocks * BLOCK_TOKENS;
    const kvf_recovery_request request = {.request_id = 1,
                                          .user = 101,
                                          .blocks = {ids, blocks == 0 ? (const uint32_t[]){0} : counts, 1},
                                          .local_prefix_tokens = tokens,
                                          .tokens = tokens,
                                          .prompt_tokens = 20};
    assert_int_equal(kvf_recovery_admit(recovery, &request), KVF_OK);
    const kvf_report report = {.request_id = 1, .ranks_mask = BOTH, .blocks = blocks, .status = KVF_PEER_DOWN};
    assert_int_equal(kvf_recovery_report(recovery, &report), KVF_OK);
    assert_int_equal(kvf_recovery_quiet(recovery, 1, BOTH), KVF_OK);
    kvf_recovery_event event = world_event(recovery, KVF_RECOVERY_READY, 1);
    assert_int_equal(event.computed_tokens, tokens);
    assert_int_equal(event.status, KVF_OK);
    world_event(recovery, KVF_RECOVERY_RELEASE, 1);
    world_end_and_close(recovery, 1);
  }
}

/* But for a lost rank, of which nothing is known: a request that it has a part in cannot go on. */
TEST(lost_rank_ends_even_what_is_complete)
{
  kvf_recovery_options options = world_options;
  options.recompute_max_tokens = 1; /* of no interest, since nothing would have to be computed */
  const uint32_t ids[] = {KVF_BLOCK_NONE};
  const uint32_t counts[] = {1};
  const kvf_recovery_request request = {.request_id = 1,
                                        .user = 101,
                                        .blocks = {ids, counts, 1},
                                        .local_prefix_tokens = BLOCK_TOKENS,
                                        .tokens = BLOCK_TOKENS,
                                        .prompt_tokens = PROMPT};
  kvf_recovery *recovery;
  assert_int_equal(kvf_recovery_open(&options, &recovery), KVF_OK);
  assert_int_equal(kvf_recovery_admit(recovery, &request), KVF_OK);
  const kvf_report lost = {.request_id = 1, .ranks_mask = BOTH, .blocks = 1, .status = KVF_RANK_LOST};
  assert_int_equal(kvf_recovery_report(recovery, &lost), KVF_OK);
  world_terminate(recovery, 1, KVF_BAR_UNSAFE);
  kvf_recovery_close(recovery);
}

TEST(bars_have_names)
{
  const char *names[] = {"generated", "published", "blocks_gone", "beams", "no_context",
                         "too_long",  "unsafe",    "policy",      "used"};
  const uint32_t bars[] = {KVF_BAR_GENERATED, KVF_BAR_PUBLISHED, KVF_BAR_BLOCKS_GONE, KVF_BAR_BEAMS, KVF_BAR_NO_CONTEXT,
                           KVF_BAR_TOO_LONG,  KVF_BAR_UNSAFE,    KVF_BAR_POLICY,      KVF_BAR_USED};
  for (size_t i = 0; i < 9; i++) {
    assert_string_equal(kvf_rewind_bar_name(bars[i]), names[i]);
    assert_string_equal(kvf_rewind_bar_name(bars[i] | KVF_BAR_USED), names[i]);
  }
  assert_string_equal(kvf_rewind_bar_name(0), "none");
}
