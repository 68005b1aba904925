/* How a scheduler that cannot rewind by itself uses a recovery table; docs/recovery.md points here. */

#include "kvferry/kvferry.h"
#include "test.h"

enum { RANKS = 2, BLOCK_TOKENS = 16 };

/* The engine's own record of a request. */
typedef struct sequence {
  uint64_t id;
  uint32_t context_position;
  bool parked;
  bool aborting;
  bool failed;
  bool has_handle; /* and a lease */
} sequence;

/* An event of a rank's node, on whatever way it has come to the scheduler. */
static void on_rank_event(kvf_recovery *recovery, uint32_t rank, const kvf_event *event)
{
  if (event->kind == KVF_EVENT_LOAD) {
    (void)kvf_recovery_report(recovery, &event->u.report);
  } else if (event->kind == KVF_EVENT_RELEASED) {
    (void)kvf_recovery_released(recovery, event->id, UINT64_C(1) << rank);
  }
}

/* Once a step, with the step's plan for all ranks: nobody acts on an error that it alone has seen. */
static void between_steps(kvf_recovery *recovery)
{
  kvf_recovery_event event;
  while (kvf_recovery_next_event(recovery, &event)) {
    sequence *s = (sequence *)(uintptr_t)event.user; /* NOLINT(performance-no-int-to-ptr) */
    switch (event.kind) {
      case KVF_RECOVERY_READY:
      case KVF_RECOVERY_REWIND: /* the blocks stay allocated; nothing of them has been published */
        s->context_position = event.computed_tokens;
        s->parked = false;
        break;
      case KVF_RECOVERY_TERMINATE: /* kvf_status_name(event.status), and event.blockers */
        s->failed = true;
        (void)kvf_recovery_end(recovery, s->id);
        break;
      case KVF_RECOVERY_ABORT: /* kvf_load_abort() on event.ranks_mask */
        s->aborting = true;
        break;
      case KVF_RECOVERY_RELEASE:
        s->has_handle = false;
        break;
    }
  }
}

static kvf_status park(kvf_recovery *recovery, sequence *s, uint32_t blockers)
{
  const uint32_t ids[] = {KVF_BLOCK_NONE, 20, 21, 22}; /* the first block is in the local cache */
  const uint32_t counts[] = {4};
  s->parked = true;
  s->has_handle = true;
  return kvf_recovery_admit(recovery, &(kvf_recovery_request){.request_id = s->id,
                                                              .user = (uintptr_t)s,
                                                              .blocks = {ids, counts, 1},
                                                              .local_prefix_tokens = BLOCK_TOKENS,
                                                              .tokens = 4 * BLOCK_TOKENS,
                                                              .prompt_tokens = 70,
                                                              .blockers = blockers});
}

static void rank_ends(kvf_recovery *recovery, const sequence *s, uint32_t rank, uint32_t prefix, kvf_status status)
{
  const kvf_report report = {
      .request_id = s->id, .ranks_mask = UINT64_C(1) << rank, .blocks = 4, .prefix = prefix, .status = status};
  on_rank_event(recovery, rank, &(kvf_event){.kind = KVF_EVENT_LOAD, .id = s->id, .u = {.report = report}});
  on_rank_event(recovery, rank, &(kvf_event){.kind = KVF_EVENT_RELEASED, .id = s->id});
}

static kvf_recovery *open_table(void)
{
  const kvf_recovery_options options = {
      .ranks = RANKS, .block_tokens = BLOCK_TOKENS, .requests_max = 64, .groups = 1, .pool_blocks = {1000}};
  kvf_recovery *recovery;
  assert_int_equal(kvf_recovery_open(&options, &recovery), KVF_OK);
  return recovery;
}

/* Rank 1 has lost the last block only, rank 0 the last two: both compute from token 32 on. */
TEST(producer_dies_while_two_ranks_load)
{
  kvf_recovery *recovery = open_table();
  sequence s = {.id = 7};
  assert_int_equal(park(recovery, &s, 0), KVF_OK);
  rank_ends(recovery, &s, 1, 3, KVF_PEER_DOWN);
  between_steps(recovery);
  assert_true(s.parked);
  rank_ends(recovery, &s, 0, 2, KVF_PEER_DOWN);
  between_steps(recovery);
  assert_false(s.parked || s.failed || s.has_handle);
  assert_int_equal(s.context_position, 2 * BLOCK_TOKENS);
  assert_int_equal(kvf_recovery_end(recovery, s.id), KVF_OK); /* it has finished */
  kvf_recovery_close(recovery);
}

TEST(request_that_cannot_go_back)
{
  kvf_recovery *recovery = open_table();
  sequence s = {.id = 8};
  assert_int_equal(park(recovery, &s, KVF_BLOCKER_BEAMS), KVF_OK);
  rank_ends(recovery, &s, 0, 2, KVF_LEASE_EXPIRED);
  rank_ends(recovery, &s, 1, 4, KVF_OK);
  between_steps(recovery);
  assert_true(s.failed && !s.has_handle && !s.aborting);
  kvf_recovery_close(recovery);
}

TEST(client_hangs_up_during_the_load)
{
  kvf_recovery *recovery = open_table();
  sequence s = {.id = 9};
  assert_int_equal(park(recovery, &s, 0), KVF_OK);
  assert_int_equal(kvf_recovery_end(recovery, s.id), KVF_OK);
  between_steps(recovery);
  assert_true(s.aborting && s.has_handle);
  rank_ends(recovery, &s, 0, 1, KVF_ABORTED);
  rank_ends(recovery, &s, 1, 3, KVF_ABORTED);
  between_steps(recovery);
  assert_false(s.has_handle);
  kvf_recovery_close(recovery);
}
