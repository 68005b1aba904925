/* The verdict for each outcome and policy, what it costs, and when a retry comes. */
#include "core/policy.h"

#include "test.h"

#define MS_NS UINT64_C(1000000)

/* 10 blocks of 16 tokens, the last one with one token less. */
static kvf_policy_input input_of(kvf_policy policy, uint32_t prefix, int status)
{
  return (kvf_policy_input){
      .policy = policy,
      .auto_max_recompute_tokens = 95,
      .report = {.request_id = 1, .ranks_mask = 1, .blocks = 10, .prefix = prefix, .status = status},
      .block_tokens = 16,
      .tokens = 159};
}

typedef struct cell {
  kvf_policy policy;
  uint32_t keep_from_tokens;
  uint32_t prefix;
  int status;
  uint64_t budget_wait_ns;
  kvf_action action;
  kvf_status verdict_status;
  uint32_t keep_blocks;
  uint32_t keep_tokens;
  uint32_t recompute_tokens;
  uint32_t retry_after_ms;
} cell;

static const cell cells[] = {
    /* All blocks are good: the policy and the budget have no say. */
    {KVF_POLICY_FAIL, 0, 10, KVF_OK, 0, KVF_ACTION_USE, KVF_OK, 10, 159, 0, 0},
    {KVF_POLICY_RECOMPUTE, 0, 10, KVF_OK, MS_NS, KVF_ACTION_USE, KVF_OK, 10, 159, 0, 0},
    {KVF_POLICY_AUTO, UINT32_MAX, 10, KVF_OK, 0, KVF_ACTION_USE, KVF_OK, 10, 159, 0, 0},
    {KVF_POLICY_FAIL, 0, 10, KVF_LEASE_EXPIRED, 0, KVF_ACTION_USE, KVF_OK, 10, 159, 0, 0},
    {KVF_POLICY_RECOMPUTE, UINT32_MAX, 10, KVF_DEADLINE, 0, KVF_ACTION_USE, KVF_OK, 10, 159, 0, 0},

    {KVF_POLICY_FAIL, 0, 9, KVF_LEASE_EXPIRED, 0, KVF_ACTION_FAIL, KVF_LEASE_EXPIRED, 0, 0, 0, 500},
    {KVF_POLICY_FAIL, 0, 0, KVF_BAD_TICKET, 0, KVF_ACTION_FAIL, KVF_BAD_TICKET, 0, 0, 0, 500},

    {KVF_POLICY_RECOMPUTE, 0, 0, KVF_PEER_DOWN, 0, KVF_ACTION_RECOMPUTE, KVF_PEER_DOWN, 0, 0, 159, 0},
    {KVF_POLICY_RECOMPUTE, 0, 4, KVF_LEASE_EXPIRED, 0, KVF_ACTION_RECOMPUTE, KVF_LEASE_EXPIRED, 4, 64, 95, 0},
    {KVF_POLICY_RECOMPUTE, 0, 9, KVF_TRANSFER_STALLED, 0, KVF_ACTION_RECOMPUTE, KVF_TRANSFER_STALLED, 9, 144, 15, 0},
    {KVF_POLICY_RECOMPUTE, UINT32_MAX, 9, KVF_DEADLINE, 0, KVF_ACTION_RECOMPUTE, KVF_DEADLINE, 0, 0, 159, 0},
    {KVF_POLICY_RECOMPUTE, 144, 9, KVF_DEADLINE, 0, KVF_ACTION_RECOMPUTE, KVF_DEADLINE, 9, 144, 15, 0},
    {KVF_POLICY_RECOMPUTE, 145, 9, KVF_DEADLINE, 0, KVF_ACTION_RECOMPUTE, KVF_DEADLINE, 0, 0, 159, 0},
    {KVF_POLICY_RECOMPUTE, 0, 0, KVF_NO_MEMORY, 0, KVF_ACTION_RECOMPUTE, KVF_NO_MEMORY, 0, 0, 159, 0},

    {KVF_POLICY_AUTO, 0, 4, KVF_LEASE_EXPIRED, 0, KVF_ACTION_RECOMPUTE, KVF_LEASE_EXPIRED, 4, 64, 95, 0},
    {KVF_POLICY_AUTO, 0, 3, KVF_LEASE_EXPIRED, 0, KVF_ACTION_FAIL, KVF_LEASE_EXPIRED, 0, 0, 0, 500},
    {KVF_POLICY_AUTO, UINT32_MAX, 9, KVF_LEASE_EXPIRED, 0, KVF_ACTION_FAIL, KVF_LEASE_EXPIRED, 0, 0, 0, 500},

    /* Over the budget. */
    {KVF_POLICY_RECOMPUTE, 0, 4, KVF_PEER_DOWN, 1, KVF_ACTION_FAIL, KVF_PEER_DOWN, 0, 0, 0, 500},
    {KVF_POLICY_RECOMPUTE, 0, 4, KVF_PEER_DOWN, 2000 * MS_NS + 1, KVF_ACTION_FAIL, KVF_PEER_DOWN, 0, 0, 0, 2001},
    {KVF_POLICY_AUTO, 0, 4, KVF_PEER_DOWN, 700 * MS_NS, KVF_ACTION_FAIL, KVF_PEER_DOWN, 0, 0, 0, 700},
    {KVF_POLICY_RECOMPUTE, 0, 4, KVF_PEER_DOWN, UINT64_MAX, KVF_ACTION_FAIL, KVF_PEER_DOWN, 0, 0, 0, UINT32_MAX},
    /* A failure that the policy wants anyway does not wait for the budget. */
    {KVF_POLICY_FAIL, 0, 4, KVF_PEER_DOWN, 2000 * MS_NS, KVF_ACTION_FAIL, KVF_PEER_DOWN, 0, 0, 0, 500},

    /* Unsafe: quarantined blocks, a caller's mistake, a number that is no status. */
    {KVF_POLICY_RECOMPUTE, 0, 4, KVF_RANK_LOST, 0, KVF_ACTION_FAIL, KVF_RANK_LOST, 0, 0, 0, 500},
    {KVF_POLICY_RECOMPUTE, 0, 10, KVF_RANK_LOST, 0, KVF_ACTION_FAIL, KVF_RANK_LOST, 0, 0, 0, 500},
    {KVF_POLICY_AUTO, 0, 9, KVF_NOT_FOUND, 0, KVF_ACTION_FAIL, KVF_NOT_FOUND, 0, 0, 0, 0},
    {KVF_POLICY_RECOMPUTE, 0, 4, 7, 0, KVF_ACTION_FAIL, KVF_INVALID, 0, 0, 0, 0},

    /* Contradictions. */
    {KVF_POLICY_RECOMPUTE, 0, 9, KVF_OK, 0, KVF_ACTION_FAIL, KVF_INVALID, 0, 0, 0, 0},
    {KVF_POLICY_RECOMPUTE, 0, 11, KVF_OK, 0, KVF_ACTION_FAIL, KVF_INVALID, 0, 0, 0, 0},
    {KVF_POLICY_RECOMPUTE, 0, 11, KVF_DEADLINE, 0, KVF_ACTION_FAIL, KVF_INVALID, 0, 0, 0, 0},
    {(kvf_policy)7, 0, 4, KVF_PEER_DOWN, 0, KVF_ACTION_FAIL, KVF_PEER_DOWN, 0, 0, 0, 500},
};

TEST(every_cell_of_the_table)
{
  for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
    const cell *expected = &cells[i];
    kvf_policy_input input = input_of(expected->policy, expected->prefix, expected->status);
    input.keep_from_tokens = expected->keep_from_tokens;
    input.budget_wait_ns = expected->budget_wait_ns;
    kvf_verdict verdict = kvf_policy_decide(&input);
    assert_int_equal(verdict.action, expected->action);
    assert_int_equal(verdict.status, expected->verdict_status);
    assert_int_equal(verdict.keep_blocks, expected->keep_blocks);
    assert_int_equal(verdict.keep_tokens, expected->keep_tokens);
    assert_int_equal(verdict.recompute_tokens, expected->recompute_tokens);
    assert_int_equal(verdict.retry_after_ms, expected->retry_after_ms);
  }
}

TEST(verdict_follows_the_flags_of_each_status)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    if (info->status == KVF_OK) {
      continue;
    }
    kvf_policy_input input = input_of(KVF_POLICY_RECOMPUTE, 4, info->status);
    kvf_verdict verdict = kvf_policy_decide(&input);
    assert_int_equal(verdict.status, info->status);
    assert_int_equal(verdict.action, info->recompute_safe ? KVF_ACTION_RECOMPUTE : KVF_ACTION_FAIL);
    input.policy = KVF_POLICY_FAIL;
    verdict = kvf_policy_decide(&input);
    assert_int_equal(verdict.action, KVF_ACTION_FAIL);
    assert_int_equal(verdict.retry_after_ms > 0, info->retry_here || info->retry_elsewhere);
  }
}

TEST(cost_is_what_the_verdict_says)
{
  for (uint32_t prefix = 0; prefix <= 10; prefix++) {
    kvf_policy_input input = input_of(KVF_POLICY_RECOMPUTE, prefix, KVF_DEADLINE);
    assert_int_equal(kvf_policy_recompute_tokens(&input), kvf_policy_decide(&input).recompute_tokens);
  }
}

TEST(retries_are_spread)
{
  kvf_policy_input input = input_of(KVF_POLICY_FAIL, 4, KVF_DEADLINE);
  input.jitter = 1000;
  assert_int_equal(kvf_policy_decide(&input).retry_after_ms, 1500);
  input.jitter = 1001;
  assert_int_equal(kvf_policy_decide(&input).retry_after_ms, 500);
}

TEST(blocks_that_hold_fewer_tokens_than_offered_are_no_success)
{
  kvf_policy_input input = input_of(KVF_POLICY_RECOMPUTE, 10, KVF_OK);
  input.tokens = 160;
  assert_int_equal(kvf_policy_decide(&input).action, KVF_ACTION_USE);
  input.tokens = 161;
  assert_int_equal(kvf_policy_decide(&input).action, KVF_ACTION_FAIL);
  assert_int_equal(kvf_policy_decide(&input).status, KVF_INVALID);
}

/* Of two groups: a prefix of so many positions is all of them. */
TEST(a_failed_load_has_not_all_tokens)
{
  kvf_policy_input input = input_of(KVF_POLICY_RECOMPUTE, 9, KVF_DEADLINE);
  input.report.blocks = 20;
  assert_int_equal(kvf_policy_decide(&input).keep_tokens, 144);
  input.report.prefix = 10;
  assert_int_equal(kvf_policy_decide(&input).action, KVF_ACTION_FAIL);
  assert_int_equal(kvf_policy_decide(&input).status, KVF_INVALID);
}

TEST(products_do_not_overflow)
{
  kvf_policy_input input = input_of(KVF_POLICY_RECOMPUTE, 65535, KVF_DEADLINE);
  input.report.blocks = 70000;
  input.block_tokens = 65536;
  input.tokens = UINT32_MAX;
  assert_int_equal(kvf_policy_decide(&input).keep_tokens, UINT32_MAX - 65535);
  input.report.prefix = 65537;
  assert_int_equal(kvf_policy_recompute_tokens(&input), 0);
  assert_int_equal(kvf_policy_decide(&input).status, KVF_INVALID);
}
