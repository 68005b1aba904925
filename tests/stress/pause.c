/* What the machine itself takes. A thread sleeps for a millisecond, again and again, and notes how late it wakes: what
 * goes beyond another millisecond is a pause of the machine. A clock that stands still for as long tells it apart from
 * what the library takes. */
#include <time.h>

#include "stress.h"

#define SLEEP_US 1000
#define SLACK_US 1000

static struct {
  pthread_mutex_t lock;
  uint64_t asleep_us; /* since when; 0: nobody watches */
  stress_pauses seen;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t now_us(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* With the lock: by how much it is late by now. */
static uint64_t late_us(uint64_t at_us)
{
  uint64_t due_us = watch.asleep_us + SLEEP_US + SLACK_US;
  return watch.asleep_us == 0 || at_us < due_us ? 0 : at_us - due_us;
}

uint64_t stress_given_us(void)
{
  (void)pthread_mutex_lock(&watch.lock);
  uint64_t at_us = now_us();
  uint64_t given_us = at_us - watch.seen.all_us - late_us(at_us);
  (void)pthread_mutex_unlock(&watch.lock);
  return given_us;
}

stress_pauses stress_pauses_seen(void)
{
  (void)pthread_mutex_lock(&watch.lock);
  stress_pauses seen = watch.seen;
  (void)pthread_mutex_unlock(&watch.lock);
  return seen;
}

void *stress_watch_machine(void *unused)
{
  (void)unused;
  while (!atomic_load(&stress_last)) {
    stress_sleep_us(SLEEP_US);
    (void)pthread_mutex_lock(&watch.lock);
    uint64_t at_us = now_us();
    uint64_t pause_us = late_us(at_us);
    watch.seen.all_us += pause_us;
    watch.seen.count += pause_us > 0;
    watch.seen.longest_us = pause_us > watch.seen.longest_us ? pause_us : watch.seen.longest_us;
    watch.asleep_us = at_us;
    (void)pthread_mutex_unlock(&watch.lock);
  }
  (void)pthread_mutex_lock(&watch.lock);
  watch.asleep_us = 0;
  (void)pthread_mutex_unlock(&watch.lock);
  return NULL;
}
