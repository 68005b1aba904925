/* A circuit breaker: closed, open, half-open. */
#include "core/breaker.h"

#include <assert.h>

#include "base/time.h"

void kvf_breaker_init(kvf_breaker *breaker, uint64_t cooldown_ns, uint64_t cooldown_max_ns)
{
  assert(cooldown_ns <= cooldown_max_ns);
  *breaker = (kvf_breaker){.cooldown_min_ns = cooldown_ns, .cooldown_max_ns = cooldown_max_ns};
  kvf_breaker_succeed(breaker);
}

bool kvf_breaker_allows(const kvf_breaker *breaker)
{
  return breaker->state == KVF_BREAKER_CLOSED;
}

bool kvf_breaker_wants_probe(const kvf_breaker *breaker, uint64_t now_ns)
{
  return breaker->state != KVF_BREAKER_CLOSED && now_ns >= breaker->probe_after_ns;
}

bool kvf_breaker_probe(kvf_breaker *breaker, uint64_t now_ns)
{
  const bool probes = kvf_breaker_wants_probe(breaker, now_ns);
  if (probes) {
    breaker->state = KVF_BREAKER_HALF_OPEN;
    breaker->probe_after_ns = kvf_time_add(now_ns, breaker->cooldown_max_ns);
  }
  return probes;
}

static void enter_open(kvf_breaker *breaker, uint64_t now_ns, kvf_status cause)
{
  assert(breaker->cooldown_ns >= breaker->cooldown_min_ns && breaker->cooldown_ns <= breaker->cooldown_max_ns);
  breaker->state = KVF_BREAKER_OPEN;
  breaker->cause = cause;
  breaker->probe_after_ns = kvf_time_add(now_ns, breaker->cooldown_ns);
}

void kvf_breaker_fail(kvf_breaker *breaker, uint64_t now_ns, kvf_status cause)
{
  if (breaker->state == KVF_BREAKER_HALF_OPEN) {
    breaker->cooldown_ns =
        breaker->cooldown_ns > breaker->cooldown_max_ns / 2 ? breaker->cooldown_max_ns : 2 * breaker->cooldown_ns;
    enter_open(breaker, now_ns, cause);
  } else if (breaker->state == KVF_BREAKER_CLOSED && kvf_status_describe(cause)->trips_breaker) {
    enter_open(breaker, now_ns, cause);
  }
}

void kvf_breaker_lose(kvf_breaker *breaker, uint64_t now_ns, kvf_status cause)
{
  assert(breaker->state == KVF_BREAKER_CLOSED);
  bool again = now_ns < breaker->patient_ns;
  breaker->patient_ns = kvf_time_add(now_ns, breaker->cooldown_max_ns);
  enter_open(breaker, now_ns, cause);
  if (!again) {
    breaker->probe_after_ns = now_ns;
  }
}

void kvf_breaker_succeed(kvf_breaker *breaker)
{
  breaker->state = KVF_BREAKER_CLOSED;
  breaker->cause = KVF_OK;
  breaker->cooldown_ns = breaker->cooldown_min_ns;
  breaker->probe_after_ns = KVF_TIME_NEVER;
}

#ifndef NDEBUG

void kvf_breaker_check(const kvf_breaker *breaker)
{
  const bool is_closed = breaker->state == KVF_BREAKER_CLOSED;
  assert(is_closed == (breaker->cause == KVF_OK));
  assert(!is_closed || (breaker->probe_after_ns == KVF_TIME_NEVER && breaker->cooldown_ns == breaker->cooldown_min_ns));
  assert(breaker->cooldown_ns >= breaker->cooldown_min_ns && breaker->cooldown_ns <= breaker->cooldown_max_ns);
}

#endif
