/* What opens a breaker, who may probe, and how long it cools down. */
#include "core/breaker.h"

#include "base/time.h"

#include "test.h"

/* Cooldowns from 100 to 350. */
static kvf_breaker closed(void)
{
  kvf_breaker breaker;
  kvf_breaker_init(&breaker, 100, 350);
  return breaker;
}

static kvf_breaker opened_at(uint64_t now_ns)
{
  kvf_breaker breaker = closed();
  kvf_breaker_fail(&breaker, now_ns, KVF_PEER_DOWN);
  return breaker;
}

TEST(closed_allows_and_wants_nothing)
{
  kvf_breaker breaker = closed();
  assert_true(kvf_breaker_allows(&breaker));
  assert_false(kvf_breaker_wants_probe(&breaker, KVF_TIME_NEVER));
  assert_int_equal(breaker.cause, KVF_OK);
  assert_true(breaker.probe_after_ns == KVF_TIME_NEVER);
  assert_false(kvf_breaker_probe(&breaker, 5));
  assert_true(kvf_breaker_allows(&breaker));
}

TEST(first_failure_opens)
{
  kvf_breaker breaker = opened_at(1000);
  assert_false(kvf_breaker_allows(&breaker));
  assert_int_equal(breaker.cause, KVF_PEER_DOWN);
  assert_int_equal(breaker.probe_after_ns, 1100);
  assert_false(kvf_breaker_wants_probe(&breaker, 1099));
  assert_true(kvf_breaker_wants_probe(&breaker, 1100));
}

TEST(losses_of_requests_do_not_count)
{
  const kvf_status harmless[] = {KVF_BAD_TICKET, KVF_LEASE_EXPIRED, KVF_CANCELLED, KVF_PEER_RESTARTED, KVF_OK};
  for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++) {
    kvf_breaker breaker = closed();
    kvf_breaker_fail(&breaker, 1000, harmless[i]);
    assert_true(kvf_breaker_allows(&breaker));
  }
}

TEST(late_failures_while_open_change_nothing)
{
  kvf_breaker breaker = opened_at(1000);
  kvf_breaker_fail(&breaker, 1050, KVF_TRANSFER_STALLED);
  assert_int_equal(breaker.cause, KVF_PEER_DOWN);
  assert_int_equal(breaker.probe_after_ns, 1100);
}

TEST(half_open_lets_only_one_probe_through)
{
  kvf_breaker breaker = opened_at(1000);
  assert_true(kvf_breaker_probe(&breaker, 1100));
  assert_false(kvf_breaker_allows(&breaker));
  assert_false(kvf_breaker_wants_probe(&breaker, 1449));
  kvf_breaker_succeed(&breaker);
  assert_true(kvf_breaker_allows(&breaker));
  assert_int_equal(breaker.cause, KVF_OK);
  assert_true(breaker.probe_after_ns == KVF_TIME_NEVER);
}

TEST(cooldown_doubles_up_to_the_longest)
{
  kvf_breaker breaker = opened_at(1000);
  const uint64_t cooldowns[] = {200, 350, 350};
  uint64_t now_ns = 1100;
  for (size_t i = 0; i < sizeof(cooldowns) / sizeof(cooldowns[0]); i++) {
    assert_true(kvf_breaker_probe(&breaker, now_ns));
    kvf_breaker_fail(&breaker, now_ns + 10, KVF_HANDSHAKE_TIMEOUT);
    assert_int_equal(breaker.probe_after_ns, now_ns + 10 + cooldowns[i]);
    now_ns += 10 + cooldowns[i];
  }
  kvf_breaker_succeed(&breaker);
  kvf_breaker_fail(&breaker, 5000, KVF_PEER_DOWN);
  assert_int_equal(breaker.probe_after_ns, 5100);
}

TEST(any_failure_of_the_probe_reopens)
{
  kvf_breaker breaker = opened_at(1000);
  assert_true(kvf_breaker_probe(&breaker, 1100));
  kvf_breaker_fail(&breaker, 1110, KVF_HANDSHAKE_REFUSED);
  assert_int_equal(breaker.cause, KVF_HANDSHAKE_REFUSED);
  assert_false(kvf_breaker_wants_probe(&breaker, 1309));
  assert_true(kvf_breaker_wants_probe(&breaker, 1310));
}

TEST(lost_probe_is_followed_by_another)
{
  kvf_breaker breaker = opened_at(1000);
  assert_true(kvf_breaker_probe(&breaker, 1100));
  assert_int_equal(breaker.probe_after_ns, 1450);
  assert_true(kvf_breaker_wants_probe(&breaker, 1450));
}

TEST(lost_link_is_probed_at_once_but_not_twice)
{
  kvf_breaker breaker = closed();
  kvf_breaker_lose(&breaker, 0, KVF_PEER_DOWN);
  assert_false(kvf_breaker_allows(&breaker));
  assert_int_equal(breaker.cause, KVF_PEER_DOWN);
  assert_true(kvf_breaker_wants_probe(&breaker, 0));
  assert_true(kvf_breaker_probe(&breaker, 0));
  kvf_breaker_succeed(&breaker);
  kvf_breaker_lose(&breaker, 349, KVF_PEER_DOWN);
  assert_false(kvf_breaker_wants_probe(&breaker, 448));
  assert_true(kvf_breaker_wants_probe(&breaker, 449));
  assert_true(kvf_breaker_probe(&breaker, 449));
  kvf_breaker_succeed(&breaker);
  kvf_breaker_lose(&breaker, 349 + 350, KVF_PEER_DOWN);
  assert_true(kvf_breaker_wants_probe(&breaker, 349 + 350));
}
