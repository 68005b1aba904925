/* What engines that cannot rewind by themselves need, as TensorRT-LLM's Remote-G2 has spelled it out: each of its
 * tests, under its own name, and each behaviour that it describes. */
#include "../../allocation.h"
#include "recovery_world.h"

static int start_one(void **state)
{
  (void)world_open(state);
  world_admit(1);
  return 0;
}

/* Begins while request 1 loads. */
#define LOADING_TEST(name) TEST_WITH(name, start_one, world_close)

/* ---- its tests ---- */

LOADING_TEST(worker_failure_releases_once_and_publishes_nothing)
{
  world_over(1, BOTH, 0, KVF_TRANSFER_FAILED);
  kvf_recovery_event event = world_rewind(1, 0); /* no block may be published */
  assert_int_equal(event.status, KVF_TRANSFER_FAILED);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_over(1, BOTH, 0, KVF_TRANSFER_FAILED); /* said again */
  world_silent();
  world_end_last(1);
}

/* The engine's own deadline ends a load; the table has no clock. */
LOADING_TEST(worker_timeout_releases_transfer_and_lease_once)
{
  world_over(1, 1, 1, KVF_DEADLINE);
  world_over(1, 2, 3, KVF_DEADLINE);
  assert_int_equal(world_rewind(1, 1).status, KVF_DEADLINE);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_silent();
  world_end_last(1);
}

/* A failure that arrives before the engine has been told to go on is a fallback, even if all had looked well. */
LOADING_TEST(worker_emits_fallback_before_validity_or_publication)
{
  world_good(1, BOTH);
  world_outcome(1, 2, 2, KVF_CHECKSUM);
  assert_int_equal(world_rewind(1, 2).status, KVF_CHECKSUM);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_silent();
  assert_int_equal(world_stats().late_reports, 0);
  world_end_last(1);
}

/* After it, tokens may have been computed from the block: there is no way back. */
LOADING_TEST(worker_emits_failed_after_validity_is_marked)
{
  world_good(1, BOTH);
  kvf_recovery_event event = world_event(KVF_RECOVERY_READY, 1);
  assert_int_equal(event.computed_tokens, TOKENS);
  assert_int_equal(event.confirmed_blocks, LOADED_BLOCKS);
  assert_int_equal(event.recompute_tokens, 0);
  assert_int_equal(event.status, KVF_OK);
  world_outcome(1, 2, 2, KVF_CHECKSUM);
  assert_int_equal(world_terminate(1, KVF_BLOCKER_USED).status, KVF_CHECKSUM);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_outcome(1, 2, 0, KVF_CHECKSUM);
  world_silent();
  assert_int_equal(world_stats().late_reports, 2);
  world_end_last(1);
}

/* A failed load is data of its own request. Others go on. */
LOADING_TEST(worker_failed_state_does_not_propagate_and_reports_blocks)
{
  world_admit(2);
  world_over(1, BOTH, 2, KVF_TRANSFER_FAILED);
  world_rewind(1, 2);
  world_event(KVF_RECOVERY_RELEASE, 1);
  kvf_recovery_error errors[POOL];
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 2);
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(errors[i].request_id, 1);
    assert_int_equal(errors[i].group, 0);
    assert_int_equal(errors[i].block_id, LOADED_BLOCKS + 2 + i);
    assert_int_equal(errors[i].position, LOCAL_BLOCKS + 2 + i);
    assert_int_equal(errors[i].status, KVF_TRANSFER_FAILED);
  }
  world_good(2, BOTH);
  world_event(KVF_RECOVERY_READY, 2);
  world_event(KVF_RECOVERY_RELEASE, 2);
  assert_int_equal(kvf_recovery_end(recovery, 2), KVF_OK);
  world_end_last(1);
}

RECOVERY_TEST(worker_failed_block_ids_drained_once_per_step)
{
  kvf_recovery_error errors[POOL];
  bool seen[POOL] = {false};
  world_admit(1);
  world_admit(2);
  world_over(1, BOTH, 1, KVF_PEER_DOWN);
  world_over(2, BOTH, 0, KVF_PEER_DOWN);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 0); /* nothing is decided yet */
  world_rewind(1, 1);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_rewind(2, 0);
  world_event(KVF_RECOVERY_RELEASE, 2);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, 0), 0);
  size_t count = 0;
  for (size_t step = 0; step < 4; step++) {
    size_t got = kvf_recovery_drain_errors(recovery, errors, 2);
    for (size_t i = 0; i < got; i++) {
      assert_false(seen[errors[i].block_id]);
      seen[errors[i].block_id] = true;
    }
    count += got;
  }
  assert_int_equal(count, 3 + 4);
  assert_int_equal(world_stats().errors, 7);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 0);
  assert_int_equal(kvf_recovery_end(recovery, 2), KVF_OK);
  world_end_last(1);
}

LOADING_TEST(abort_request_calls_result_abort)
{
  world_good(1, 1);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  assert_int_equal(world_event(KVF_RECOVERY_ABORT, 1).ranks_mask, 2); /* only where it is in flight */
  world_silent();
  world_over(1, 2, 0, KVF_ABORTED);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_expect_empty();
}

LOADING_TEST(abort_request_releases_lease_once)
{
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_NOT_FOUND);
  assert_int_equal(world_event(KVF_RECOVERY_ABORT, 1).ranks_mask, BOTH);
  assert_int_equal(kvf_recovery_released(recovery, 1, BOTH), KVF_OK);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_NOT_FOUND);
  world_event(KVF_RECOVERY_RELEASE, 1);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_NOT_FOUND);
  world_expect_empty();
}

/* The handle's memory is the load's until every rank is released, and it is let go of once. */
LOADING_TEST(abort_request_releases_transfer_handle_once)
{
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_event(KVF_RECOVERY_ABORT, 1);
  world_outcome(1, BOTH, 0, KVF_ABORTED);
  world_silent();
  assert_int_equal(kvf_recovery_released(recovery, 1, 1), KVF_OK);
  world_silent();
  assert_int_equal(kvf_recovery_released(recovery, 1, 2), KVF_OK);
  assert_int_equal(kvf_recovery_released(recovery, 1, 2), KVF_OK);
  world_event(KVF_RECOVERY_RELEASE, 1);
  assert_int_equal(kvf_recovery_released(recovery, 1, 2), KVF_NOT_FOUND);
  world_expect_empty();
}

LOADING_TEST(abort_request_after_completion_is_noop)
{
  world_good(1, BOTH);
  world_event(KVF_RECOVERY_READY, 1);
  world_event(KVF_RECOVERY_RELEASE, 1);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_silent(); /* no abort, no second release */
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_NOT_FOUND);
  assert_int_equal(world_stats().aborted, 0);
  world_expect_empty();
}

LOADING_TEST(abort_request_unknown_id_is_noop)
{
  assert_int_equal(kvf_recovery_end(recovery, 7), KVF_NOT_FOUND);
  world_silent();
  assert_int_equal(world_stats().loading, 1);
}

LOADING_TEST(recompute_failed_load_rewinds_to_local_prefix)
{
  kvf_report refused = world_report(1, BOTH, 0, KVF_BAD_TICKET);
  refused.prefix = 0; /* not even the positions that were not wanted were looked at */
  assert_int_equal(kvf_recovery_report(recovery, &refused), KVF_OK);
  assert_int_equal(kvf_recovery_released(recovery, 1, BOTH), KVF_OK);
  assert_int_equal(world_rewind(1, 0).computed_tokens, LOCAL_BLOCKS * BLOCK_TOKENS);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_end_last(1);
}

/* ---- its behaviours ---- */

LOADING_TEST(failure_is_decided_with_the_last_report)
{
  world_over(1, 1, 3, KVF_TRANSFER_FAILED);
  world_silent();
  world_good(1, 2);
  world_rewind(1, 3);
}

RECOVERY_TEST(every_failure_releases_once)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    (void)world_open(NULL);
    world_admit(1);
    if (info->status == KVF_OK) {
      world_good(1, BOTH);
      world_event(KVF_RECOVERY_READY, 1);
    } else {
      world_over(1, BOTH, 2, info->status);
      if (info->recompute_safe) {
        assert_int_equal(world_rewind(1, 2).status, info->status);
      } else {
        assert_int_equal(world_terminate(1, KVF_BLOCKER_UNSAFE).status, info->status);
      }
    }
    world_event(KVF_RECOVERY_RELEASE, 1);
    world_end_last(1);
  }
}

LOADING_TEST(one_local_recompute_event_for_a_request)
{
  world_over(1, BOTH, 1, KVF_PEER_DOWN);
  world_rewind(1, 1);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_outcome(1, 1, 1, KVF_PEER_DOWN);
  world_outcome(1, 2, 3, KVF_DEADLINE);
  world_silent();
  kvf_recovery_stats stats = world_stats();
  assert_int_equal(stats.rewound, 1);
  assert_int_equal(stats.kept_blocks, 1);
  assert_int_equal(stats.recompute_tokens, 3 * BLOCK_TOKENS);
  world_end_last(1);
}

/* A second rewind, further back, would take back what the engine has computed from: it ends the request. */
LOADING_TEST(block_lost_after_the_rewind_terminates)
{
  kvf_recovery_error errors[POOL];
  world_over(1, BOTH, 3, KVF_PEER_DOWN);
  world_rewind(1, 3);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 1);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_outcome(1, 1, 1, KVF_CHECKSUM);
  world_terminate(1, KVF_BLOCKER_USED);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 2); /* the new ones only */
  assert_int_equal(errors[0].block_id, LOADED_BLOCKS + 1);
  assert_int_equal(errors[1].block_id, LOADED_BLOCKS + 2);
  world_silent();
  world_end_last(1);
}

/* Blocks that wait to be drained when more are lost come once too. */
RECOVERY_TEST(errors_of_two_failures_are_drained_once)
{
  for (size_t before = 0; before <= 2; before++) {
    (void)world_open(NULL);
    kvf_recovery_error errors[POOL];
    world_admit(1);
    world_over(1, BOTH, 2, KVF_PEER_DOWN);
    world_rewind(1, 2);
    world_event(KVF_RECOVERY_RELEASE, 1);
    assert_int_equal(kvf_recovery_drain_errors(recovery, errors, before), before);
    world_outcome(1, 1, 0, KVF_CHECKSUM);
    world_terminate(1, KVF_BLOCKER_USED);
    assert_int_equal(kvf_recovery_drain_errors(recovery, errors + before, POOL), LOADED_BLOCKS - before);
    uint32_t seen = 0;
    for (size_t i = 0; i < LOADED_BLOCKS; i++) {
      seen |= 1u << (errors[i].block_id - LOADED_BLOCKS);
    }
    assert_int_equal(seen, 15);
    world_end_last(1);
  }
}

RECOVERY_TEST(failed_blocks_of_all_ranks_map_to_their_requests)
{
  for (uint64_t id = 1; id <= 3; id++) {
    world_admit(id);
  }
  const uint32_t on_first[] = {LOADED_BLOCKS * 1 + 3, LOADED_BLOCKS * 3 + 1, 60};
  const uint32_t on_second[] = {LOADED_BLOCKS * 3 + 3, LOADED_BLOCKS * 3 + 2};
  assert_int_equal(kvf_recovery_report_blocks(recovery, 0, 0, on_first, 3, KVF_TRANSFER_FAILED), KVF_OK);
  assert_int_equal(kvf_recovery_report_blocks(recovery, 1, 0, on_second, 2, KVF_PEER_DOWN), KVF_OK);
  assert_int_equal(world_stats().unknown_blocks, 1);
  world_outcome(1, 2, LOADED_BLOCKS, KVF_OK);
  world_outcome(2, BOTH, LOADED_BLOCKS, KVF_OK);
  for (uint64_t id = 1; id <= 3; id++) {
    assert_int_equal(kvf_recovery_released(recovery, id, BOTH), KVF_OK);
  }
  assert_int_equal(world_rewind(1, 3).status, KVF_TRANSFER_FAILED);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_event(KVF_RECOVERY_READY, 2);
  world_event(KVF_RECOVERY_RELEASE, 2);
  assert_int_equal(world_rewind(3, 1).status, KVF_PEER_DOWN);
  world_event(KVF_RECOVERY_RELEASE, 3);
}

/* What its reviewer found: a rank that alone has seen the error must not act on it. */
LOADING_TEST(no_event_before_all_ranks_are_in)
{
  world_over(1, 2, 1, KVF_TRANSFER_FAILED);
  world_over(1, 2, 1, KVF_TRANSFER_FAILED); /* the same rank again */
  world_silent();
  world_outcome(1, 1, LOADED_BLOCKS, KVF_OK);
  world_silent(); /* rank 0 has its outcome; it may still write */
  assert_int_equal(kvf_recovery_released(recovery, 1, 1), KVF_OK);
  world_rewind(1, 1);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_admit(2);
  assert_int_equal(kvf_recovery_released(recovery, 2, BOTH), KVF_OK);
  world_silent();
  world_outcome(2, 1, 1, KVF_TRANSFER_FAILED);
  world_silent(); /* what rank 1 has is on its way */
  world_outcome(2, 2, 0, KVF_TRANSFER_FAILED);
  world_rewind(2, 0);
}

/* Re-admitted without new blocks: they stay the request's, and nobody else's, through the rewind. */
LOADING_TEST(rewound_request_keeps_its_blocks)
{
  world_over(1, BOTH, 1, KVF_PEER_DOWN);
  world_rewind(1, 1);
  world_event(KVF_RECOVERY_RELEASE, 1);
  const uint32_t ids[] = {LOADED_BLOCKS + 3};
  const uint32_t counts[] = {1};
  const kvf_recovery_request thief = {
      .request_id = 9, .blocks = {ids, counts, 1}, .tokens = BLOCK_TOKENS, .prompt_tokens = BLOCK_TOKENS};
  assert_int_equal(kvf_recovery_admit(recovery, &thief), KVF_EXISTS);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  assert_int_equal(kvf_recovery_admit(recovery, &thief), KVF_OK);
}

RECOVERY_TEST(terminated_only_if_the_rewind_cannot_apply)
{
  for (uint32_t blocker = KVF_BLOCKER_GENERATED; blocker <= KVF_BLOCKER_NO_CONTEXT; blocker *= 2) {
    (void)world_open(NULL);
    assert_int_equal(world_try_admit(1, blocker), KVF_OK);
    assert_int_equal(world_try_admit(2, blocker), KVF_OK); /* nothing to take back */
    world_admit(3);
    for (uint64_t id = 1; id <= 3; id++) {
      world_over(id, BOTH, id == 2 ? LOADED_BLOCKS : 2, id == 2 ? KVF_OK : KVF_PEER_DOWN);
    }
    assert_int_equal(world_terminate(1, blocker).status, KVF_PEER_DOWN);
    world_event(KVF_RECOVERY_RELEASE, 1);
    world_event(KVF_RECOVERY_READY, 2);
    world_event(KVF_RECOVERY_RELEASE, 2);
    world_rewind(3, 2);
  }
}

/* An engine without chunked context computes what it goes back for in one step. */
RECOVERY_TEST(terminated_if_too_long_for_one_context_step)
{
  kvf_recovery_options options = world_options;
  options.recompute_max_tokens = PROMPT - TOKENS + BLOCK_TOKENS;
  world_open_with(&options);
  world_admit(1);
  world_admit(2);
  world_admit(3);
  world_over(1, BOTH, 3, KVF_PEER_DOWN);
  world_over(2, BOTH, 2, KVF_PEER_DOWN);
  world_good(3, BOTH);
  world_rewind(1, 3);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_terminate(2, KVF_BLOCKER_TOO_LONG);
  world_event(KVF_RECOVERY_RELEASE, 2);
  world_event(KVF_RECOVERY_READY, 3);
}

/* Told at once, since a lost rank may never be released; what it may write to is held until it is. */
LOADING_TEST(lost_rank_terminates_and_its_blocks_stay_held)
{
  world_good(1, 1);
  kvf_report lost = world_report(1, 2, 0, KVF_RANK_LOST);
  lost.prefix = 0;
  assert_int_equal(kvf_recovery_report(recovery, &lost), KVF_OK);
  assert_int_equal(world_terminate(1, KVF_BLOCKER_UNSAFE).status, KVF_RANK_LOST);
  assert_int_equal(world_event(KVF_RECOVERY_ABORT, 1).ranks_mask, 2);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_silent(); /* neither a second abort nor a release */
  assert_int_equal(world_try_admit(1, 0), KVF_EXISTS);
  world_good(1, 2); /* it comes back, too late */
  world_event(KVF_RECOVERY_RELEASE, 1);
  assert_int_equal(world_try_admit(1, 0), KVF_OK);
}

LOADING_TEST(canceled_request_is_not_tracked_as_loading)
{
  world_outcome(1, BOTH, 1, KVF_PEER_DOWN);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_event(KVF_RECOVERY_ABORT, 1);
  assert_int_equal(kvf_recovery_released(recovery, 1, BOTH), KVF_OK);
  world_event(KVF_RECOVERY_RELEASE, 1); /* and no rewind: nobody wants it any more */
  world_expect_empty();
}

/* An aborted load that was complete before the abort reached it has nothing more to say either. */
LOADING_TEST(canceled_request_with_a_decision_due_says_nothing_of_it)
{
  world_good(1, BOTH);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_event(KVF_RECOVERY_RELEASE, 1);
  world_expect_empty();
}

LOADING_TEST(errors_of_a_request_that_left_are_dropped)
{
  kvf_recovery_error errors[POOL];
  world_over(1, BOTH, 1, KVF_PEER_DOWN);
  world_rewind(1, 1);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_event(KVF_RECOVERY_RELEASE, 1);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 0);
  world_expect_empty();
}

RECOVERY_TEST(partial_prefix_is_the_shortest_of_the_ranks)
{
  for (uint32_t a = 0; a <= LOADED_BLOCKS; a++) {
    for (uint32_t b = 0; b <= LOADED_BLOCKS; b++) {
      (void)world_open(NULL);
      world_admit(1);
      world_over(1, 1, a, a == LOADED_BLOCKS ? KVF_OK : KVF_PEER_DOWN);
      world_over(1, 2, b, b == LOADED_BLOCKS ? KVF_OK : KVF_PEER_DOWN);
      if (a == LOADED_BLOCKS && b == LOADED_BLOCKS) {
        world_event(KVF_RECOVERY_READY, 1);
      } else {
        world_rewind(1, a < b ? a : b);
      }
    }
  }
}

/* ---- what a table refuses, and that it then has not changed ---- */

static void try_open(kvf_recovery_options options, kvf_status expected)
{
  kvf_recovery *opened = (kvf_recovery *)&options;
  assert_int_equal(kvf_recovery_open(&options, &opened), expected);
  assert_true((opened != NULL) == (expected == KVF_OK));
  kvf_recovery_close(opened);
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
  (void)world_open(NULL);
  kvf_recovery_request request = a->request;
  request.blocks.ids = a->ids;
  request.blocks.counts = a->counts;
  assert_int_equal(kvf_recovery_admit(recovery, &request), expected);
  assert_int_equal(world_stats().admitted, expected == KVF_OK);
  assert_int_equal(world_stats().open, expected == KVF_OK);
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

RECOVERY_TEST(admissions_out_of_range)
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
  ADMIT(KVF_INVALID, a.request.blockers = KVF_BLOCKER_USED); /* the table's own */
  ADMIT(KVF_INVALID, a.request.blocks.groups = 2);
  ADMIT(KVF_LIMIT, a.request.tokens = KVF_BLOCKS_PER_LEASE_MAX * BLOCK_TOKENS + 1,
        a.request.prompt_tokens = UINT32_MAX);
}

/* The blocks before the one that has an owner are not kept by a request that was not admitted. */
RECOVERY_TEST(refused_admission_leaves_no_block_behind)
{
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
}

RECOVERY_TEST(table_full_and_ids_taken)
{
  for (uint64_t id = 0; id < REQUESTS; id++) {
    world_admit(id);
    assert_int_equal(world_try_admit(id, 0), KVF_EXISTS);
  }
  assert_int_equal(world_try_admit(REQUESTS, 0), KVF_NO_RESOURCE);
  world_good(3, BOTH);
  assert_int_equal(kvf_recovery_end(recovery, 3), KVF_OK);
  assert_int_equal(world_try_admit(REQUESTS, 0), KVF_NO_RESOURCE); /* its blocks are not released yet */
  world_event(KVF_RECOVERY_RELEASE, 3);
  world_admit(REQUESTS);
}

static void try_report(uint64_t ranks_mask, uint32_t blocks, uint32_t prefix, kvf_status status, kvf_status expected)
{
  (void)world_open(NULL);
  world_admit(1);
  const kvf_report report = {
      .request_id = 1, .ranks_mask = ranks_mask, .blocks = blocks, .prefix = prefix, .status = status};
  assert_int_equal(kvf_recovery_released(recovery, 1, BOTH), KVF_OK);
  assert_int_equal(kvf_recovery_report(recovery, &report), expected);
  if (expected != KVF_OK) {
    world_silent();
    world_outcome(1, BOTH, LOADED_BLOCKS, KVF_OK);
    world_event(KVF_RECOVERY_READY, 1);
  }
}

RECOVERY_TEST(reports_that_contradict_themselves)
{
  try_report(BOTH, POSITIONS, 3, KVF_PEER_DOWN, KVF_OK);
  try_report(0, POSITIONS, 3, KVF_PEER_DOWN, KVF_INVALID);
  try_report(4, POSITIONS, 3, KVF_PEER_DOWN, KVF_INVALID);
  try_report(BOTH, POSITIONS - 1, 3, KVF_PEER_DOWN, KVF_INVALID);
  try_report(BOTH, POSITIONS, POSITIONS + 1, KVF_PEER_DOWN, KVF_INVALID);
  try_report(BOTH, POSITIONS, POSITIONS - 1, KVF_OK, KVF_INVALID);
}

LOADING_TEST(a_status_of_a_newer_version_is_not_trusted)
{
  kvf_report report = world_report(1, BOTH, 2, KVF_OK);
  report.status = -9999;
  assert_int_equal(kvf_recovery_report(recovery, &report), KVF_OK);
  assert_int_equal(kvf_recovery_released(recovery, 1, BOTH), KVF_OK);
  assert_int_equal(world_terminate(1, KVF_BLOCKER_UNSAFE).status, KVF_INVALID);
}

LOADING_TEST(what_is_of_no_request)
{
  const kvf_report report = world_report(2, BOTH, 1, KVF_PEER_DOWN);
  const uint32_t ids[] = {LOADED_BLOCKS, POOL};
  assert_int_equal(kvf_recovery_report(recovery, &report), KVF_NOT_FOUND);
  assert_int_equal(kvf_recovery_released(recovery, 2, BOTH), KVF_NOT_FOUND);
  assert_int_equal(kvf_recovery_released(recovery, 1, 4), KVF_INVALID);
  assert_int_equal(kvf_recovery_report_blocks(recovery, 2, 0, ids, 1, KVF_PEER_DOWN), KVF_INVALID);
  assert_int_equal(kvf_recovery_report_blocks(recovery, 0, 1, ids, 1, KVF_PEER_DOWN), KVF_INVALID);
  assert_int_equal(kvf_recovery_report_blocks(recovery, 0, 0, ids, 1, KVF_OK), KVF_INVALID);
  assert_int_equal(kvf_recovery_report_blocks(recovery, 0, 0, ids, 2, KVF_PEER_DOWN), KVF_INVALID);
  world_outcome(1, 2, LOADED_BLOCKS, KVF_OK);
  world_silent(); /* rank 0 has not been heard: the last of these changed nothing either */
}

/* ---- several groups, nothing to load ---- */

/* Of the third group a window may have passed a block, of which one that comes before the last token has need. */
static void load_of_groups(bool has_gap)
{
  kvf_recovery_options options = world_options;
  options.groups = 3;
  options.pool_blocks[1] = options.pool_blocks[2] = POOL;
  const uint32_t ids[] = {KVF_BLOCK_NONE, 1, 2, KVF_BLOCK_NONE, 1, 3, KVF_BLOCK_NONE, has_gap ? KVF_BLOCK_NONE : 9, 63};
  const uint32_t counts[] = {3, 3, 3};
  const uint32_t failed[] = {3};
  for (int round = 0; round < 3; round++) {
    const uint32_t kept = round == 0 ? 3 : round == 1 && !has_gap ? 2 : 1;
    const uint32_t errors_count = (3 - kept) * 3 - (has_gap && kept == 1);
    kvf_recovery_event event;
    kvf_recovery_error errors[8];
    world_open_with(&options);
    const kvf_recovery_request request = {
        .request_id = 1, .blocks = {ids, counts, 3}, .local_prefix_tokens = 16, .tokens = 40, .prompt_tokens = 40};
    assert_int_equal(kvf_recovery_admit(recovery, &request), KVF_OK);
    assert_int_equal(kvf_recovery_released(recovery, 1, BOTH), KVF_OK);
    /* A failed load that has all three positions of each group contradicts itself. */
    kvf_report report = {.request_id = 1, .ranks_mask = BOTH, .blocks = 9, .prefix = 3, .status = KVF_PEER_DOWN};
    assert_int_equal(kvf_recovery_report(recovery, &report), KVF_INVALID);
    report = (kvf_report){.request_id = 1, .ranks_mask = BOTH, .blocks = 9, .prefix = 9};
    if (round == 2) {
      report = (kvf_report){.request_id = 1, .ranks_mask = BOTH, .blocks = 9, .status = KVF_PEER_DOWN};
    }
    assert_int_equal(kvf_recovery_report(recovery, &report), KVF_OK);
    if (round == 1) {
      assert_int_equal(kvf_recovery_report_blocks(recovery, 1, 1, failed, 1, KVF_CHECKSUM), KVF_OK);
    }
    assert_true(kvf_recovery_next_event(recovery, &event));
    assert_int_equal(event.kind, round == 0 ? KVF_RECOVERY_READY : KVF_RECOVERY_REWIND);
    assert_int_equal(event.computed_tokens, round == 0 ? 40 : kept * BLOCK_TOKENS);
    assert_int_equal(event.recompute_tokens, 40 - event.computed_tokens);
    assert_int_equal(event.confirmed_blocks, kept - 1);
    assert_int_equal(kvf_recovery_drain_errors(recovery, errors, 8), errors_count);
    if (round > 0) {
      const kvf_recovery_error *second = &errors[errors_count - 1 - (has_gap ? 1 : 3 - kept)];
      assert_int_equal(second->group, 1);
      assert_int_equal(second->block_id, 3);
      assert_int_equal(second->position, 2);
      assert_int_equal(errors[errors_count - 1].group, 2);
      assert_int_equal(errors[errors_count - 1].block_id, 63);
      assert_int_equal(errors[errors_count - 1].position, 2);
    }
  }
}

RECOVERY_TEST(of_groups_is_kept_what_all_have)
{
  load_of_groups(false);
}

RECOVERY_TEST(behind_a_gap_is_all_kept_or_nothing)
{
  load_of_groups(true);
}

/* A rank that fails a load of nothing has lost nothing. */
RECOVERY_TEST(loads_of_no_blocks)
{
  const uint32_t ids[] = {KVF_BLOCK_NONE};
  const uint32_t counts[] = {1};
  for (uint32_t blocks = 0; blocks <= 1; blocks++) {
    (void)world_open(NULL);
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
    assert_int_equal(kvf_recovery_released(recovery, 1, BOTH), KVF_OK);
    kvf_recovery_event event = world_event(KVF_RECOVERY_READY, 1);
    assert_int_equal(event.computed_tokens, tokens);
    assert_int_equal(event.status, KVF_OK);
    world_event(KVF_RECOVERY_RELEASE, 1);
    world_end_last(1);
  }
}

/* But for a lost rank, of which nothing is known: a request that it has a part in cannot go on. */
RECOVERY_TEST(lost_rank_ends_even_what_is_complete)
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
  world_open_with(&options);
  assert_int_equal(kvf_recovery_admit(recovery, &request), KVF_OK);
  const kvf_report lost = {.request_id = 1, .ranks_mask = BOTH, .blocks = 1, .status = KVF_RANK_LOST};
  assert_int_equal(kvf_recovery_report(recovery, &lost), KVF_OK);
  world_terminate(1, KVF_BLOCKER_UNSAFE);
}

/* ---- memory ---- */

/* Nothing is left of a table that could not be opened; an open one asks for no more. */
TEST(memory_is_from_its_opening_alone)
{
  const long live = allocation_live();
  kvf_status status = KVF_NO_MEMORY;
  for (long spared = 0; status != KVF_OK; spared++) {
    allocation_fail(spared, 1);
    status = kvf_recovery_open(&world_options, &recovery);
    assert_true(allocation_stop() == (status == KVF_NO_MEMORY));
    assert_true((recovery == NULL) == (status == KVF_NO_MEMORY));
    assert_true((allocation_live() == live) == (status == KVF_NO_MEMORY));
  }
  allocation_fail(0, 1);
  for (uint64_t id = 0; id < REQUESTS; id++) {
    world_admit(id);
    world_over(id, BOTH, 1, KVF_PEER_DOWN);
  }
  kvf_recovery_event event;
  kvf_recovery_error error;
  uint32_t said = 0;
  while (kvf_recovery_next_event(recovery, &event) || kvf_recovery_drain_errors(recovery, &error, 1) > 0) {
    assert_true(said++ < REQUESTS * (2 + LOADED_BLOCKS));
  }
  assert_false(allocation_stop());
  (void)world_close(NULL);
  kvf_recovery_close(NULL);
}

/* ---- several ranks ---- */

/* One table for each rank. */
static kvf_recovery *tables[2];

static int open_tables(void **state)
{
  for (size_t t = 0; t < 2; t++) {
    recovery = NULL;
    (void)world_open(state);
    tables[t] = recovery;
  }
  return 0;
}

static int close_tables(__attribute__((unused)) void **state)
{
  kvf_recovery_close(tables[0]);
  kvf_recovery_close(tables[1]);
  recovery = NULL;
  return 0;
}

#define TABLES_TEST(name) TEST_WITH(name, open_tables, close_tables)

static void say_the_same_until_silent(size_t events_count)
{
  kvf_recovery_event events[2];
  for (size_t i = 0; i < events_count; i++) {
    assert_true(kvf_recovery_next_event(tables[0], &events[0]));
    assert_true(kvf_recovery_next_event(tables[1], &events[1]));
    assert_int_equal(events[0].kind, events[1].kind);
    assert_int_equal(events[0].status, events[1].status);
    assert_int_equal(events[0].request_id, events[1].request_id);
    assert_int_equal(events[0].computed_tokens, events[1].computed_tokens);
  }
  assert_false(kvf_recovery_next_event(tables[0], &events[0]));
  assert_false(kvf_recovery_next_event(tables[1], &events[1]));
}

/* Each is told in an order of its own. */
TABLES_TEST(tables_of_all_ranks_say_the_same)
{
  const kvf_report reports[] = {
      world_report(2, 1, 3, KVF_PEER_DOWN), world_report(1, 1, 1, KVF_LEASE_EXPIRED), world_report(3, 2, 4, KVF_OK),
      world_report(2, 2, 1, KVF_CHECKSUM),  world_report(1, 2, 2, KVF_PEER_DOWN),     world_report(3, 1, 4, KVF_OK),
  };
  const size_t count = sizeof(reports) / sizeof(reports[0]);
  for (size_t t = 0; t < 2; t++) {
    recovery = tables[t];
    for (uint64_t id = 1; id <= 3; id++) {
      world_admit(id);
      assert_int_equal(kvf_recovery_released(recovery, id, BOTH), KVF_OK);
    }
    for (size_t i = 0; i < count; i++) {
      assert_int_equal(kvf_recovery_report(recovery, &reports[t == 0 ? i : count - 1 - i]), KVF_OK);
    }
  }
  say_the_same_until_silent(6);
}

static void all_load(uint64_t first_id, uint64_t last_id)
{
  for (size_t t = 0; t < 2; t++) {
    recovery = tables[t];
    for (uint64_t id = first_id; id <= last_id; id++) {
      world_admit(id);
      world_good(id, BOTH);
    }
  }
}

/* Found by the simulator: requests that left in another order on another rank changed the order of later events. */
TABLES_TEST(tables_say_the_same_whoever_left_first)
{
  all_load(1, 4);
  say_the_same_until_silent(8);
  for (uint64_t i = 0; i < 3; i++) {
    assert_int_equal(kvf_recovery_end(tables[0], 1 + i), KVF_OK);
    assert_int_equal(kvf_recovery_end(tables[1], 3 - i), KVF_OK);
  }
  all_load(5, 7);
  say_the_same_until_silent(6);
}
