/* A token bucket. */
#include "core/budget.h"

#include <assert.h>

#include "base/time.h"

/* The time in which the bucket gains `tokens`, rounded up. */
static uint64_t cost_ns(const kvf_budget *budget, uint32_t tokens)
{
  assert(budget->tokens_per_s > 0);
  return (tokens * KVF_NS_PER_S + budget->tokens_per_s - 1) / budget->tokens_per_s;
}

uint64_t kvf_budget_wait_ns(const kvf_budget *budget, uint64_t now_ns, uint32_t tokens)
{
  if (budget->tokens_per_s == 0 || tokens == 0) {
    return 0;
  }
  /* A full bucket is one second ahead of an empty one. */
  uint64_t missing_ns = kvf_time_until(now_ns, budget->full_at_ns);
  uint64_t needed_ns = kvf_time_min(cost_ns(budget, tokens), KVF_NS_PER_S);
  return kvf_time_until(KVF_NS_PER_S, kvf_time_add(missing_ns, needed_ns));
}

bool kvf_budget_take(kvf_budget *budget, uint64_t now_ns, uint32_t tokens)
{
  if (kvf_budget_wait_ns(budget, now_ns, tokens) > 0) {
    return false;
  }
  if (budget->tokens_per_s > 0) {
    uint64_t from_ns = budget->full_at_ns > now_ns ? budget->full_at_ns : now_ns;
    budget->full_at_ns = kvf_time_add(from_ns, cost_ns(budget, tokens));
  }
  return true;
}
