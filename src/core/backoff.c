#include "core/backoff.h"

#include <assert.h>

void kvf_backoff_init(kvf_backoff *backoff, uint64_t min_ns, uint64_t max_ns)
{
  assert(min_ns <= max_ns);
  backoff->min_ns = min_ns;
  backoff->max_ns = max_ns;
  backoff->current_ns = min_ns;
}

uint64_t kvf_backoff_next(kvf_backoff *backoff, kvf_prng *prng)
{
  uint64_t longest_ns = backoff->current_ns;
  backoff->current_ns = longest_ns > backoff->max_ns / 2 ? backoff->max_ns : 2 * longest_ns;
  return longest_ns - kvf_prng_below(prng, longest_ns / 2 + 1);
}

void kvf_backoff_reset(kvf_backoff *backoff)
{
  backoff->current_ns = backoff->min_ns;
}
