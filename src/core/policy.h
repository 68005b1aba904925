/* What to do with a request once all its ranks have reported: one pure function, called once per request. */
#ifndef KVF_CORE_POLICY_H
#define KVF_CORE_POLICY_H

#include "kvferry/node.h"

/* A client that is told to retry comes back this long after, plus what the budget's wait exceeds it by. */
#define KVF_RETRY_MIN_MS 500
#define KVF_RETRY_JITTER_MS 1000

typedef struct kvf_policy_input {
  kvf_policy policy;
  uint32_t auto_max_recompute_tokens; /* KVF_POLICY_AUTO: recompute at most so many */
  kvf_report report;                  /* of all ranks, merged */
  uint32_t keep_from_tokens;          /* a shorter prefix is not kept */
  uint32_t block_tokens;
  uint32_t tokens;         /* that the ticket offered */
  uint64_t budget_wait_ns; /* kvf_budget_wait_ns() of kvf_policy_recompute_tokens(); 0: the budget allows it */
  uint64_t jitter;         /* any random number */
} kvf_policy_input;

/* How many of a prompt's `tokens` its first `blocks` have: its last block may be filled in part. */
uint32_t kvf_policy_tokens_in(uint32_t blocks, uint32_t block_tokens, uint32_t tokens);

/* How many tokens a recompute would cost. Does not look at `policy` or the fields after `tokens`. */
uint32_t kvf_policy_recompute_tokens(const kvf_policy_input *input);

/* The verdict. Total: inputs that contradict themselves end in KVF_ACTION_FAIL with KVF_INVALID, never in a guess.
 * The caller takes recompute_tokens from the budget if, and only if, the action is KVF_ACTION_RECOMPUTE.
 * A prefix that is too short to be kept counts for nothing. */
kvf_verdict kvf_policy_decide(const kvf_policy_input *input);

#endif
