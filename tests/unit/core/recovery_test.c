/* What engines that cannot rewind by themselves need, as TensorRT-LLM's Remote-G2 has spelled it out: each of its
 * tests, under its own name, and each behaviour that it describes. */
#include "recovery_world.h"

/* ---- its tests ---- */

TEST(worker_failure_releases_once_and_publishes_nothing)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_over(recovery, 1, BOTH, 0, KVF_TRANSFER_FAILED);
  kvf_recovery_event event = world_rewind(recovery, 1, 0); /* no block may be published */
  assert_int_equal(event.status, KVF_TRANSFER_FAILED);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_over(recovery, 1, BOTH, 0, KVF_TRANSFER_FAILED); /* said again */
  world_silent(recovery);
  world_end_and_close(recovery, 1);
}

/* The engine's own deadline ends a load; the table has no clock. */
TEST(worker_timeout_releases_transfer_and_lease_once)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_over(recovery, 1, 1, 1, KVF_DEADLINE);
  world_over(recovery, 1, 2, 3, KVF_DEADLINE);
  assert_int_equal(world_rewind(recovery, 1, 1).status, KVF_DEADLINE);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_silent(recovery);
  world_end_and_close(recovery, 1);
}

/* A failure that arrives before the engine has been told to go on is a fallback, even if all had looked well. */
TEST(worker_emits_fallback_before_validity_or_publication)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_good(recovery, 1, BOTH);
  world_outcome(recovery, 1, 2, 2, KVF_CHECKSUM);
  assert_int_equal(world_rewind(recovery, 1, 2).status, KVF_CHECKSUM);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_silent(recovery);
  assert_int_equal(world_stats(recovery).late_reports, 0);
  world_end_and_close(recovery, 1);
}

/* After it, tokens may have been computed from the block: there is no way back. */
TEST(worker_emits_failed_after_validity_is_marked)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_good(recovery, 1, BOTH);
  kvf_recovery_event event = world_event(recovery, KVF_RECOVERY_READY, 1);
  assert_int_equal(event.computed_tokens, TOKENS);
  assert_int_equal(event.confirmed_blocks, LOADED_BLOCKS);
  assert_int_equal(event.recompute_tokens, 0);
  assert_int_equal(event.status, KVF_OK);
  world_outcome(recovery, 1, 2, 2, KVF_CHECKSUM);
  assert_int_equal(world_terminate(recovery, 1, KVF_BAR_USED).status, KVF_CHECKSUM);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_outcome(recovery, 1, 2, 0, KVF_CHECKSUM);
  world_silent(recovery);
  assert_int_equal(world_stats(recovery).late_reports, 2);
  world_end_and_close(recovery, 1);
}

/* A failed load is data of its own request. Others go on. */
TEST(worker_failed_state_does_not_propagate_and_reports_blocks)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_admit(recovery, 2);
  world_over(recovery, 1, BOTH, 2, KVF_TRANSFER_FAILED);
  world_rewind(recovery, 1, 2);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  kvf_recovery_error errors[POOL];
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 2);
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(errors[i].request_id, 1);
    assert_int_equal(errors[i].group, 0);
    assert_int_equal(errors[i].block_id, LOADED_BLOCKS + 2 + i);
    assert_int_equal(errors[i].position, LOCAL_BLOCKS + 2 + i);
    assert_int_equal(errors[i].status, KVF_TRANSFER_FAILED);
  }
  world_good(recovery, 2, BOTH);
  world_event(recovery, KVF_RECOVERY_READY, 2);
  world_event(recovery, KVF_RECOVERY_RELEASE, 2);
  assert_int_equal(kvf_recovery_end(recovery, 2), KVF_OK);
  world_end_and_close(recovery, 1);
}

TEST(worker_failed_block_ids_drained_once_per_step)
{
  kvf_recovery *recovery = world_open();
  kvf_recovery_error errors[POOL];
  bool seen[POOL] = {false};
  world_admit(recovery, 1);
  world_admit(recovery, 2);
  world_over(recovery, 1, BOTH, 1, KVF_PEER_DOWN);
  world_over(recovery, 2, BOTH, 0, KVF_PEER_DOWN);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 0); /* nothing is decided yet */
  world_rewind(recovery, 1, 1);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_rewind(recovery, 2, 0);
  world_event(recovery, KVF_RECOVERY_RELEASE, 2);
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
  assert_int_equal(world_stats(recovery).errors, 7);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 0);
  assert_int_equal(kvf_recovery_end(recovery, 2), KVF_OK);
  world_end_and_close(recovery, 1);
}

TEST(abort_request_calls_result_abort)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_good(recovery, 1, 1);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  assert_int_equal(world_event(recovery, KVF_RECOVERY_ABORT, 1).ranks_mask, 2); /* only where it is in flight */
  world_silent(recovery);
  world_over(recovery, 1, 2, 0, KVF_ABORTED);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_close_empty(recovery);
}

TEST(abort_request_releases_lease_once)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_NOT_FOUND);
  assert_int_equal(world_event(recovery, KVF_RECOVERY_ABORT, 1).ranks_mask, BOTH);
  assert_int_equal(kvf_recovery_quiet(recovery, 1, BOTH), KVF_OK);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_NOT_FOUND);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_NOT_FOUND);
  world_close_empty(recovery);
}

/* The handle's memory is the load's until every rank is quiet, and it is let go of once. */
TEST(abort_request_releases_transfer_handle_once)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_event(recovery, KVF_RECOVERY_ABORT, 1);
  world_outcome(recovery, 1, BOTH, 0, KVF_ABORTED);
  world_silent(recovery);
  assert_int_equal(kvf_recovery_quiet(recovery, 1, 1), KVF_OK);
  world_silent(recovery);
  assert_int_equal(kvf_recovery_quiet(recovery, 1, 2), KVF_OK);
  assert_int_equal(kvf_recovery_quiet(recovery, 1, 2), KVF_OK);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  assert_int_equal(kvf_recovery_quiet(recovery, 1, 2), KVF_NOT_FOUND);
  world_close_empty(recovery);
}

TEST(abort_request_after_completion_is_noop)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_good(recovery, 1, BOTH);
  world_event(recovery, KVF_RECOVERY_READY, 1);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_silent(recovery); /* no abort, no second release */
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_NOT_FOUND);
  assert_int_equal(world_stats(recovery).aborted, 0);
  world_close_empty(recovery);
}

TEST(abort_request_unknown_id_is_noop)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  assert_int_equal(kvf_recovery_end(recovery, 7), KVF_NOT_FOUND);
  world_silent(recovery);
  assert_int_equal(world_stats(recovery).loading, 1);
  kvf_recovery_close(recovery);
}

TEST(recompute_failed_load_rewinds_to_local_prefix)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  kvf_report refused = world_report(1, BOTH, 0, KVF_BAD_TICKET);
  refused.prefix = 0; /* not even the positions that were not wanted were looked at */
  assert_int_equal(kvf_recovery_report(recovery, &refused), KVF_OK);
  assert_int_equal(kvf_recovery_quiet(recovery, 1, BOTH), KVF_OK);
  assert_int_equal(world_rewind(recovery, 1, 0).computed_tokens, LOCAL_BLOCKS * BLOCK_TOKENS);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_end_and_close(recovery, 1);
}

/* ---- its behaviours ---- */

TEST(failure_is_decided_with_the_last_report)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_over(recovery, 1, 1, 3, KVF_TRANSFER_FAILED);
  world_silent(recovery);
  world_good(recovery, 1, 2);
  world_rewind(recovery, 1, 3);
  kvf_recovery_close(recovery);
}

TEST(every_failure_releases_once)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    kvf_recovery *recovery = world_open();
    world_admit(recovery, 1);
    if (info->status == KVF_OK) {
      world_good(recovery, 1, BOTH);
      world_event(recovery, KVF_RECOVERY_READY, 1);
    } else {
      world_over(recovery, 1, BOTH, 2, info->status);
      if (info->recompute_safe) {
        assert_int_equal(world_rewind(recovery, 1, 2).status, info->status);
      } else {
        assert_int_equal(world_terminate(recovery, 1, KVF_BAR_UNSAFE).status, info->status);
      }
    }
    world_event(recovery, KVF_RECOVERY_RELEASE, 1);
    world_end_and_close(recovery, 1);
  }
}

TEST(one_local_recompute_event_for_a_request)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_over(recovery, 1, BOTH, 1, KVF_PEER_DOWN);
  world_rewind(recovery, 1, 1);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_outcome(recovery, 1, 1, 1, KVF_PEER_DOWN);
  world_outcome(recovery, 1, 2, 3, KVF_DEADLINE);
  world_silent(recovery);
  kvf_recovery_stats stats = world_stats(recovery);
  assert_int_equal(stats.rewound, 1);
  assert_int_equal(stats.kept_blocks, 1);
  assert_int_equal(stats.recompute_tokens, 3 * BLOCK_TOKENS);
  world_end_and_close(recovery, 1);
}

/* A second rewind, further back, would take back what the engine has computed from: it ends the request. */
TEST(block_lost_after_the_rewind_terminates)
{
  kvf_recovery *recovery = world_open();
  kvf_recovery_error errors[POOL];
  world_admit(recovery, 1);
  world_over(recovery, 1, BOTH, 3, KVF_PEER_DOWN);
  world_rewind(recovery, 1, 3);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 1);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_outcome(recovery, 1, 1, 1, KVF_CHECKSUM);
  world_terminate(recovery, 1, KVF_BAR_USED);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 2); /* the new ones only */
  assert_int_equal(errors[0].block_id, LOADED_BLOCKS + 1);
  assert_int_equal(errors[1].block_id, LOADED_BLOCKS + 2);
  world_silent(recovery);
  world_end_and_close(recovery, 1);
}

/* Blocks that wait to be drained when more are lost come once too. */
TEST(errors_of_two_failures_are_drained_once)
{
  for (size_t before = 0; before <= 2; before++) {
    kvf_recovery *recovery = world_open();
    kvf_recovery_error errors[POOL];
    world_admit(recovery, 1);
    world_over(recovery, 1, BOTH, 2, KVF_PEER_DOWN);
    world_rewind(recovery, 1, 2);
    world_event(recovery, KVF_RECOVERY_RELEASE, 1);
    assert_int_equal(kvf_recovery_drain_errors(recovery, errors, before), before);
    world_outcome(recovery, 1, 1, 0, KVF_CHECKSUM);
    world_terminate(recovery, 1, KVF_BAR_USED);
    assert_int_equal(kvf_recovery_drain_errors(recovery, errors + before, POOL), LOADED_BLOCKS - before);
    uint32_t seen = 0;
    for (size_t i = 0; i < LOADED_BLOCKS; i++) {
      seen |= 1u << (errors[i].block_id - LOADED_BLOCKS);
    }
    assert_int_equal(seen, 15);
    world_end_and_close(recovery, 1);
  }
}

TEST(failed_blocks_of_all_ranks_map_to_their_requests)
{
  kvf_recovery *recovery = world_open();
  for (uint64_t id = 1; id <= 3; id++) {
    world_admit(recovery, id);
  }
  const uint32_t on_first[] = {LOADED_BLOCKS * 1 + 3, LOADED_BLOCKS * 3 + 1, 60};
  const uint32_t on_second[] = {LOADED_BLOCKS * 3 + 3, LOADED_BLOCKS * 3 + 2};
  assert_int_equal(kvf_recovery_report_blocks(recovery, 0, 0, on_first, 3, KVF_TRANSFER_FAILED), KVF_OK);
  assert_int_equal(kvf_recovery_report_blocks(recovery, 1, 0, on_second, 2, KVF_PEER_DOWN), KVF_OK);
  assert_int_equal(world_stats(recovery).unknown_blocks, 1);
  world_outcome(recovery, 1, 2, LOADED_BLOCKS, KVF_OK);
  world_outcome(recovery, 2, BOTH, LOADED_BLOCKS, KVF_OK);
  for (uint64_t id = 1; id <= 3; id++) {
    assert_int_equal(kvf_recovery_quiet(recovery, id, BOTH), KVF_OK);
  }
  assert_int_equal(world_rewind(recovery, 1, 3).status, KVF_TRANSFER_FAILED);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_event(recovery, KVF_RECOVERY_READY, 2);
  world_event(recovery, KVF_RECOVERY_RELEASE, 2);
  assert_int_equal(world_rewind(recovery, 3, 1).status, KVF_PEER_DOWN);
  world_event(recovery, KVF_RECOVERY_RELEASE, 3);
  kvf_recovery_close(recovery);
}

/* What its reviewer found: a rank that alone has seen the error must not act on it. */
TEST(no_event_before_all_ranks_are_in)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_over(recovery, 1, 2, 1, KVF_TRANSFER_FAILED);
  world_over(recovery, 1, 2, 1, KVF_TRANSFER_FAILED); /* the same rank again */
  world_silent(recovery);
  world_outcome(recovery, 1, 1, LOADED_BLOCKS, KVF_OK);
  world_silent(recovery); /* rank 0 has its outcome; it may still write */
  assert_int_equal(kvf_recovery_quiet(recovery, 1, 1), KVF_OK);
  world_rewind(recovery, 1, 1);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_admit(recovery, 2);
  assert_int_equal(kvf_recovery_quiet(recovery, 2, BOTH), KVF_OK);
  world_silent(recovery);
  world_outcome(recovery, 2, 1, 1, KVF_TRANSFER_FAILED);
  world_silent(recovery); /* what rank 1 has is on its way */
  world_outcome(recovery, 2, 2, 0, KVF_TRANSFER_FAILED);
  world_rewind(recovery, 2, 0);
  kvf_recovery_close(recovery);
}

/* Re-admitted without new blocks: they stay the request's, and nobody else's, through the rewind. */
TEST(rewound_request_keeps_its_blocks)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_over(recovery, 1, BOTH, 1, KVF_PEER_DOWN);
  world_rewind(recovery, 1, 1);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  const uint32_t ids[] = {LOADED_BLOCKS + 3};
  const uint32_t counts[] = {1};
  const kvf_recovery_request thief = {
      .request_id = 9, .blocks = {ids, counts, 1}, .tokens = BLOCK_TOKENS, .prompt_tokens = BLOCK_TOKENS};
  assert_int_equal(kvf_recovery_admit(recovery, &thief), KVF_EXISTS);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  assert_int_equal(kvf_recovery_admit(recovery, &thief), KVF_OK);
  kvf_recovery_close(recovery);
}

TEST(terminated_only_if_the_rewind_cannot_apply)
{
  for (uint32_t bar = KVF_BAR_GENERATED; bar <= KVF_BAR_NO_CONTEXT; bar *= 2) {
    kvf_recovery *recovery = world_open();
    assert_int_equal(world_try_admit(recovery, 1, bar), KVF_OK); /* from the beginning */
    world_admit(recovery, 2);                                    /* while it loads */
    assert_int_equal(world_try_admit(recovery, 3, bar), KVF_OK); /* nothing to take back */
    world_admit(recovery, 4);
    assert_int_equal(kvf_recovery_bar(recovery, 2, bar), KVF_OK);
    for (uint64_t id = 1; id <= 4; id++) {
      world_over(recovery, id, BOTH, id == 3 ? LOADED_BLOCKS : 2, id == 3 ? KVF_OK : KVF_PEER_DOWN);
    }
    for (uint64_t id = 1; id <= 2; id++) {
      assert_int_equal(world_terminate(recovery, id, bar).status, KVF_PEER_DOWN);
      world_event(recovery, KVF_RECOVERY_RELEASE, id);
    }
    world_event(recovery, KVF_RECOVERY_READY, 3);
    world_event(recovery, KVF_RECOVERY_RELEASE, 3);
    world_rewind(recovery, 4, 2);
    kvf_recovery_close(recovery);
  }
}

/* An engine without chunked context computes what it goes back for in one step. */
TEST(terminated_if_too_long_for_one_context_step)
{
  kvf_recovery_options options = world_options;
  options.recompute_max_tokens = PROMPT - TOKENS + BLOCK_TOKENS;
  kvf_recovery *recovery;
  assert_int_equal(kvf_recovery_open(&options, &recovery), KVF_OK);
  world_admit(recovery, 1);
  world_admit(recovery, 2);
  world_admit(recovery, 3);
  world_over(recovery, 1, BOTH, 3, KVF_PEER_DOWN);
  world_over(recovery, 2, BOTH, 2, KVF_PEER_DOWN);
  world_good(recovery, 3, BOTH);
  world_rewind(recovery, 1, 3);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_terminate(recovery, 2, KVF_BAR_TOO_LONG);
  world_event(recovery, KVF_RECOVERY_RELEASE, 2);
  world_event(recovery, KVF_RECOVERY_READY, 3);
  kvf_recovery_close(recovery);
}

/* Told at once, since a lost rank may never become quiet; what it may write to is held until it is. */
TEST(lost_rank_terminates_and_its_blocks_stay_held)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_good(recovery, 1, 1);
  kvf_report lost = world_report(1, 2, 0, KVF_RANK_LOST);
  lost.prefix = 0;
  assert_int_equal(kvf_recovery_report(recovery, &lost), KVF_OK);
  assert_int_equal(world_terminate(recovery, 1, KVF_BAR_UNSAFE).status, KVF_RANK_LOST);
  assert_int_equal(world_event(recovery, KVF_RECOVERY_ABORT, 1).ranks_mask, 2);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_silent(recovery); /* neither a second abort nor a release */
  assert_int_equal(world_try_admit(recovery, 1, 0), KVF_EXISTS);
  world_good(recovery, 1, 2); /* it comes back, too late */
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  assert_int_equal(world_try_admit(recovery, 1, 0), KVF_OK);
  kvf_recovery_close(recovery);
}

TEST(canceled_request_is_not_tracked_as_loading)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_outcome(recovery, 1, BOTH, 1, KVF_PEER_DOWN);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_event(recovery, KVF_RECOVERY_ABORT, 1);
  assert_int_equal(kvf_recovery_quiet(recovery, 1, BOTH), KVF_OK);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1); /* and no rewind: nobody wants it any more */
  world_close_empty(recovery);
}

/* An aborted load that was complete before the abort reached it has nothing more to say either. */
TEST(canceled_request_with_a_decision_due_says_nothing_of_it)
{
  kvf_recovery *recovery = world_open();
  world_admit(recovery, 1);
  world_good(recovery, 1, BOTH);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  world_close_empty(recovery);
}

TEST(errors_of_a_request_that_left_are_dropped)
{
  kvf_recovery *recovery = world_open();
  kvf_recovery_error errors[POOL];
  world_admit(recovery, 1);
  world_over(recovery, 1, BOTH, 1, KVF_PEER_DOWN);
  world_rewind(recovery, 1, 1);
  assert_int_equal(kvf_recovery_end(recovery, 1), KVF_OK);
  world_event(recovery, KVF_RECOVERY_RELEASE, 1);
  assert_int_equal(kvf_recovery_drain_errors(recovery, errors, POOL), 0);
  world_close_empty(recovery);
}

TEST(partial_prefix_is_the_shortest_of_the_ranks)
{
  for (uint32_t a = 0; a <= LOADED_BLOCKS; a++) {
    for (uint32_t b = 0; b <= LOADED_BLOCKS; b++) {
      kvf_recovery *recovery = world_open();
      world_admit(recovery, 1);
      world_over(recovery, 1, 1, a, a == LOADED_BLOCKS ? KVF_OK : KVF_PEER_DOWN);
      world_over(recovery, 1, 2, b, b == LOADED_BLOCKS ? KVF_OK : KVF_PEER_DOWN);
      if (a == LOADED_BLOCKS && b == LOADED_BLOCKS) {
        world_event(recovery, KVF_RECOVERY_READY, 1);
      } else {
        world_rewind(recovery, 1, a < b ? a : b);
      }
      kvf_recovery_close(recovery);
    }
  }
}
