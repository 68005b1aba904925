/* When timers fire, by hand and against a model, and that waiting for the deadlines gets on. */
#include "base/wheel.h"

#include "base/prng.h"
#include "test.h"

#define MS(n) ((n) * KVF_NS_PER_MS)
#define GRANULE KVF_WHEEL_GRANULE_NS
#define ENOUGH UINT32_MAX

static kvf_timer *expire(kvf_wheel *wheel, uint64_t now_ns)
{
  uint32_t work = ENOUGH;
  return kvf_wheel_expire(wheel, now_ns, &work);
}

static void arm_new(kvf_wheel *wheel, kvf_timer *timer, uint64_t expires_ns)
{
  kvf_timer_init(timer, 0);
  kvf_wheel_arm(wheel, timer, expires_ns);
}

TEST(fires_at_its_time)
{
  static kvf_wheel wheel;
  kvf_timer timer;
  kvf_wheel_init(&wheel, 0);
  assert_int_equal(kvf_wheel_next_deadline(&wheel), KVF_TIME_NEVER);
  kvf_timer_init(&timer, 7);
  assert_int_equal(timer.kind, 7);
  assert_false(kvf_timer_is_armed(&timer));
  kvf_wheel_arm(&wheel, &timer, MS(100));
  assert_true(kvf_timer_is_armed(&timer));
  assert_int_equal(kvf_wheel_next_deadline(&wheel), MS(100));
  assert_null(expire(&wheel, MS(99)));
  assert_null(expire(&wheel, MS(100) - 1));
  assert_ptr_equal(expire(&wheel, MS(100)), &timer);
  assert_false(kvf_timer_is_armed(&timer));
  assert_null(expire(&wheel, MS(1000)));
  assert_int_equal(kvf_wheel_next_deadline(&wheel), KVF_TIME_NEVER);
}

TEST(within_a_granule_fires_at_its_end)
{
  static kvf_wheel wheel;
  kvf_timer timer;
  kvf_wheel_init(&wheel, 0);
  arm_new(&wheel, &timer, MS(100) + 1);
  assert_null(expire(&wheel, MS(101) - 1));
  assert_int_equal(kvf_wheel_next_deadline(&wheel), MS(101));
  assert_ptr_equal(expire(&wheel, MS(101)), &timer);
}

TEST(past_fires_at_once)
{
  static kvf_wheel wheel;
  kvf_timer timer;
  kvf_wheel_init(&wheel, MS(500) + 3);
  arm_new(&wheel, &timer, MS(20));
  assert_true(kvf_wheel_next_deadline(&wheel) <= MS(500) + 3);
  assert_ptr_equal(expire(&wheel, MS(500) + 3), &timer);
}

TEST(armed_anew_fires_once)
{
  static kvf_wheel wheel;
  kvf_timer timer;
  kvf_wheel_init(&wheel, 0);
  arm_new(&wheel, &timer, MS(100));
  kvf_wheel_arm(&wheel, &timer, MS(70000));
  assert_null(expire(&wheel, MS(69999)));
  kvf_wheel_arm(&wheel, &timer, MS(70005));
  assert_null(expire(&wheel, MS(70004)));
  assert_ptr_equal(expire(&wheel, MS(70005)), &timer);
  assert_null(expire(&wheel, MS(900000)));
}

TEST(disarmed_never_fires)
{
  static kvf_wheel wheel;
  kvf_timer timers[3];
  kvf_wheel_init(&wheel, 0);
  for (unsigned i = 0; i < 3; i++) {
    arm_new(&wheel, &timers[i], MS(100));
  }
  kvf_wheel_disarm(&wheel, &timers[1]);
  kvf_wheel_disarm(&wheel, &timers[1]);
  kvf_wheel_arm(&wheel, &timers[0], KVF_TIME_NEVER);
  assert_false(kvf_timer_is_armed(&timers[0]));
  assert_int_equal(kvf_wheel_next_deadline(&wheel), MS(100));
  kvf_wheel_disarm(&wheel, &timers[2]);
  assert_int_equal(kvf_wheel_next_deadline(&wheel), KVF_TIME_NEVER);
  assert_null(expire(&wheel, MS(1000)));
}

TEST(due_can_be_disarmed)
{
  static kvf_wheel wheel;
  kvf_timer timers[3];
  uint32_t work = 1;
  kvf_wheel_init(&wheel, 0);
  for (unsigned i = 0; i < 3; i++) {
    arm_new(&wheel, &timers[i], MS(100));
  }
  kvf_timer *first = kvf_wheel_expire(&wheel, MS(100), &work);
  assert_non_null(first);
  for (unsigned i = 0; i < 3; i++) {
    kvf_wheel_disarm(&wheel, &timers[i]);
  }
  assert_null(expire(&wheel, MS(100)));
  assert_int_equal(kvf_wheel_next_deadline(&wheel), KVF_TIME_NEVER);
}

/* No call looks at more timers than it may, moves between levels included, and what is left over is due at once. */
TEST(work_is_bounded)
{
  enum { TIMERS = 1000 };
  static kvf_wheel wheel;
  static kvf_timer timers[TIMERS];
  const uint64_t when_ns = MS(3) * 256 * 256 + MS(5);
  kvf_wheel_init(&wheel, 0);
  for (unsigned i = 0; i < TIMERS; i++) {
    arm_new(&wheel, &timers[i], when_ns);
  }
  unsigned fired = 0;
  unsigned calls = 0;
  while (kvf_wheel_next_deadline(&wheel) <= when_ns) {
    unsigned before = fired;
    uint32_t work = 7;
    while (kvf_wheel_expire(&wheel, when_ns, &work) != NULL) {
      fired++;
    }
    assert_true(fired - before <= 7);
    calls++;
  }
  assert_int_equal(fired, TIMERS);
  assert_in_range(calls, 2 * TIMERS / 7, KVF_WHEEL_LEVELS * TIMERS / 7 + KVF_WHEEL_LEVELS);
}

TEST(far_times)
{
  static const uint64_t delays_ns[] = {
      MS(255), MS(256), MS(65536), MS(86400000) * 30, MS(86400000) * 36500, UINT64_MAX / 2,
  };
  for (unsigned i = 0; i < sizeof(delays_ns) / sizeof(delays_ns[0]); i++) {
    static kvf_wheel wheel;
    kvf_timer timer;
    kvf_wheel_init(&wheel, MS(123456));
    uint64_t when_ns = MS(123456) + delays_ns[i] / GRANULE * GRANULE;
    arm_new(&wheel, &timer, when_ns);
    assert_true(kvf_wheel_next_deadline(&wheel) <= when_ns);
    assert_null(expire(&wheel, when_ns - 1));
    assert_ptr_equal(expire(&wheel, when_ns), &timer);
  }
}

TEST(end_of_time)
{
  static kvf_wheel wheel;
  kvf_timer timers[2];
  kvf_wheel_init(&wheel, UINT64_MAX - MS(20));
  arm_new(&wheel, &timers[0], UINT64_MAX - MS(10));
  arm_new(&wheel, &timers[1], UINT64_MAX - 1); /* in the last granule, whose end does not come */
  assert_null(expire(&wheel, UINT64_MAX - MS(10) - 1));
  assert_ptr_equal(expire(&wheel, UINT64_MAX - MS(9)), &timers[0]);
  assert_int_equal(kvf_wheel_next_deadline(&wheel), KVF_TIME_NEVER);
  assert_null(expire(&wheel, UINT64_MAX));
}

/* ---- against a model: a flag and a time a timer ---- */

enum { MODEL_TIMERS = 64 };

static uint64_t random_delay(kvf_prng *prng)
{
  uint64_t scale = UINT64_C(1) << kvf_prng_below(prng, 44);
  return kvf_prng_below(prng, scale) + kvf_prng_below(prng, 2) * MS(1);
}

static void random_life(uint64_t origin_ns, uint64_t seed)
{
  static kvf_wheel wheel;
  kvf_timer timers[MODEL_TIMERS];
  uint64_t when_ns[MODEL_TIMERS];
  bool armed[MODEL_TIMERS] = {false};
  kvf_prng prng = {seed};
  uint64_t now_ns = origin_ns;
  kvf_wheel_init(&wheel, now_ns);
  for (unsigned i = 0; i < MODEL_TIMERS; i++) {
    kvf_timer_init(&timers[i], 0);
  }
  for (unsigned step = 0; step < 4000; step++) {
    unsigned i = (unsigned)kvf_prng_below(&prng, MODEL_TIMERS);
    switch (kvf_prng_below(&prng, 4)) {
      case 0:
      case 1:
        when_ns[i] = kvf_time_add(now_ns, random_delay(&prng));
        armed[i] = when_ns[i] != KVF_TIME_NEVER;
        kvf_wheel_arm(&wheel, &timers[i], when_ns[i]);
        break;
      case 2:
        armed[i] = false;
        kvf_wheel_disarm(&wheel, &timers[i]);
        break;
      default: {
        now_ns = kvf_time_add(now_ns, random_delay(&prng));
        uint32_t work = kvf_prng_below(&prng, 3) == 0 ? 5 : ENOUGH;
        kvf_timer *timer;
        while ((timer = kvf_wheel_expire(&wheel, now_ns, &work)) != NULL) {
          assert_true(armed[timer - timers]);
          assert_true(when_ns[timer - timers] <= now_ns);
          armed[timer - timers] = false;
        }
        uint64_t next_ns = kvf_wheel_next_deadline(&wheel);
        for (i = 0; i < MODEL_TIMERS; i++) {
          assert_true(!armed[i] || work == 0 || kvf_time_add(when_ns[i], GRANULE) > now_ns);
          assert_true(!armed[i] || kvf_time_add(when_ns[i], GRANULE) > next_ns || next_ns <= now_ns ||
                      next_ns == KVF_TIME_NEVER);
          assert_true(armed[i] == kvf_timer_is_armed(&timers[i]));
        }
      }
    }
  }
}

TEST(agrees_with_model)
{
  static const uint64_t origins_ns[] = {0, 1, MS(1), MS(77777777) + 5, UINT64_C(1) << 63, UINT64_MAX - MS(100000)};
  for (unsigned i = 0; i < sizeof(origins_ns) / sizeof(origins_ns[0]); i++) {
    for (uint64_t seed = 1; seed <= 10; seed++) {
      random_life(origins_ns[i], seed);
    }
  }
}

/* A caller that sleeps until the next deadline wakes up a few times a timer. */
TEST(deadlines_do_not_spin)
{
  static kvf_wheel wheel;
  kvf_prng prng = {5};
  uint64_t now_ns = MS(98765) + 4321;
  for (unsigned round = 0; round < 1000; round++) {
    kvf_timer timer;
    kvf_wheel_init(&wheel, now_ns);
    uint64_t when_ns = now_ns + random_delay(&prng);
    arm_new(&wheel, &timer, when_ns);
    unsigned wakes = 0;
    while (kvf_timer_is_armed(&timer)) {
      uint64_t next_ns = kvf_wheel_next_deadline(&wheel);
      assert_true(next_ns >= now_ns || when_ns <= now_ns);
      now_ns = next_ns > now_ns ? next_ns : now_ns;
      (void)expire(&wheel, now_ns);
      wakes++;
    }
    assert_in_range(wakes, 1, KVF_WHEEL_LEVELS);
    assert_true(now_ns >= when_ns && now_ns < when_ns + GRANULE);
  }
}
