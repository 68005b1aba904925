/* A circuit breaker, one per (peer, transport). While it is open, new loads fail at once, and a probe in the background
 * tests whether the peer is back.
 *
 *   CLOSED --fail--> OPEN --cooldown over, probe--> HALF_OPEN --succeed--> CLOSED
 *                     ^----------- fail, cooldown doubled ----------'
 *
 * A dead peer is probed again: every state except CLOSED has a deadline after which a probe is wanted.
 */
#ifndef KVF_CORE_BREAKER_H
#define KVF_CORE_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

#include "kvferry/stats.h"

typedef struct kvf_breaker {
  kvf_breaker_state state;
  kvf_status cause; /* why it is not closed; KVF_OK while closed */
  uint64_t cooldown_min_ns;
  uint64_t cooldown_max_ns;
  uint64_t cooldown_ns;    /* of the current, or next, opening */
  uint64_t probe_after_ns; /* when a probe will be wanted; KVF_TIME_NEVER while closed */
  uint64_t patient_ns;     /* until when a loss counts as any failure */
} kvf_breaker;

/* Closed. Cooldowns grow from cooldown_ns to cooldown_max_ns (cooldown_ns <= cooldown_max_ns). */
void kvf_breaker_init(kvf_breaker *breaker, uint64_t cooldown_ns, uint64_t cooldown_max_ns);

/* Whether a load may use the link. Only while closed: in half-open the probe alone does. */
bool kvf_breaker_allows(const kvf_breaker *breaker);

/* Whether a probe should start now. */
bool kvf_breaker_wants_probe(const kvf_breaker *breaker, uint64_t now_ns);

/* If a probe should start now it has started: true. It is to end in kvf_breaker_fail() or kvf_breaker_succeed(). One
 * that does neither within the longest cooldown is taken for lost, and another is wanted. */
KVF_MUST_USE bool kvf_breaker_probe(kvf_breaker *breaker, uint64_t now_ns);

/* An attempt, or the probe, has failed. While closed only statuses that trip a breaker open it; in half-open any status
 * does. While open there is no effect: these are attempts that began before it opened. */
void kvf_breaker_fail(kvf_breaker *breaker, uint64_t now_ns, kvf_status cause);

/* A working link has broken. Opens for a probe at once, because most often only that connection was lost. If the last
 * such loss is less than the longest cooldown ago, it opens as after any failure. So loads do not use a link that
 * breaks repeatedly. While closed only. */
void kvf_breaker_lose(kvf_breaker *breaker, uint64_t now_ns, kvf_status cause);

/* For kvf_core_check(). */
void kvf_breaker_check(const kvf_breaker *breaker);

/* The peer works. Closes; the next opening has the shortest cooldown again. */
void kvf_breaker_succeed(kvf_breaker *breaker);

#endif
