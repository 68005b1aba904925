/* The verdict on a request: use, recompute or fail. */
#include "core/policy.h"

#include <assert.h>

#include "base/time.h"

static bool is_complete(const kvf_policy_input *input)
{
  return input->report.prefix == input->report.blocks;
}

static uint32_t keep_blocks(const kvf_policy_input *input)
{
  const uint32_t prefix = input->report.prefix;
  return is_complete(input) || (uint64_t)prefix * input->block_tokens >= input->keep_from_tokens ? prefix : 0;
}

uint32_t kvf_policy_tokens_in(uint32_t blocks, uint32_t block_tokens, uint32_t tokens)
{
  const uint64_t whole = (uint64_t)blocks * block_tokens;
  return whole < tokens ? (uint32_t)whole : tokens;
}

static uint32_t keep_tokens(const kvf_policy_input *input)
{
  return kvf_policy_tokens_in(keep_blocks(input), input->block_tokens, input->tokens);
}

uint32_t kvf_policy_recompute_tokens(const kvf_policy_input *input)
{
  return input->tokens - keep_tokens(input);
}

/* A report that is not of all blocks is neither a success nor of all tokens. */
static kvf_status effective_status(const kvf_policy_input *input)
{
  const kvf_report *report = &input->report;
  if (report->prefix > report->blocks || (uint64_t)report->blocks * input->block_tokens < input->tokens ||
      (!is_complete(input) &&
       (report->status == KVF_OK || (uint64_t)report->prefix * input->block_tokens >= input->tokens))) {
    return KVF_INVALID;
  }
  return kvf_status_describe(report->status)->status;
}

/* Never before the budget would allow it, and spread, so that a producer's death does not bring all of its requests
 * back in one moment. */
static uint32_t retry_after_ms(uint64_t wait_ns, uint64_t jitter)
{
  uint64_t after_ms = wait_ns / KVF_NS_PER_MS + (wait_ns % KVF_NS_PER_MS != 0);
  if (after_ms < KVF_RETRY_MIN_MS) {
    after_ms = KVF_RETRY_MIN_MS;
  }
  after_ms += jitter % (KVF_RETRY_JITTER_MS + 1);
  return after_ms < UINT32_MAX ? (uint32_t)after_ms : UINT32_MAX;
}

static kvf_verdict fail(kvf_status status, uint64_t wait_ns, uint64_t jitter)
{
  const kvf_status_info *info = kvf_status_describe(status);
  bool retry = info->retry_here || info->retry_elsewhere;
  return (kvf_verdict){
      .action = KVF_ACTION_FAIL, .status = status, .retry_after_ms = retry ? retry_after_ms(wait_ns, jitter) : 0};
}

kvf_verdict kvf_policy_decide(const kvf_policy_input *input)
{
  const kvf_status status = effective_status(input);
  if (!kvf_status_describe(status)->recompute_safe) {
    return fail(status, 0, input->jitter);
  }
  kvf_verdict verdict = {
      .status = status,
      .keep_blocks = keep_blocks(input),
      .keep_tokens = keep_tokens(input),
      .recompute_tokens = kvf_policy_recompute_tokens(input),
  };
  if (is_complete(input)) {
    /* A failure after the last block was confirmed has lost no block. */
    verdict.action = KVF_ACTION_USE;
    verdict.status = KVF_OK;
    return verdict;
  }
  const bool is_wanted =
      input->policy == KVF_POLICY_RECOMPUTE ||
      (input->policy == KVF_POLICY_AUTO && verdict.recompute_tokens <= input->auto_max_recompute_tokens);
  if (!is_wanted || input->budget_wait_ns > 0) {
    return fail(status, is_wanted ? input->budget_wait_ns : 0, input->jitter);
  }
  verdict.action = KVF_ACTION_RECOMPUTE;
  return verdict;
}
