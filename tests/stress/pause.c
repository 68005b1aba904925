/* What the machine itself takes, which a clock of our own leaves out. A thread sleeps for a millisecond, again and
 * again, and notes how late it wakes: what goes beyond another millisecond is a pause of the machine. And where no
 * processor was idle, what others have used of them is time that we were not given. */
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "stress.h"

#define SLEEP_US 1000
#define SLACK_US 1000
#define SPAN_US 50000 /* for what others use: the kernel counts idle time in steps of 10 ms */
#define CHILDREN_MAX 16

typedef struct usage {
  uint64_t at_us;
  uint64_t idle_us; /* of all processors */
  uint64_t ours_us;
} usage;

static struct {
  pthread_mutex_t lock;
  uint64_t asleep_us; /* since when; 0: nobody watches */
  stress_pauses seen;
  usage before;      /* at the beginning of this span */
  uint64_t pause_us; /* in this span */
  double share;      /* that others had of the last span: as much, for now, of this one */
  uint64_t given_us; /* the last that was told */
  pid_t children[CHILDREN_MAX];
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t clock_us(clockid_t clock)
{
  struct timespec now = {0};
  (void)clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static uint64_t now_us(void)
{
  return clock_us(CLOCK_MONOTONIC);
}

void stress_count_child(pid_t pid, bool lives)
{
  (void)pthread_mutex_lock(&watch.lock);
  for (size_t i = 0; i < CHILDREN_MAX; i++) {
    if (watch.children[i] == (lives ? 0 : pid)) {
      watch.children[i] = lives ? pid : 0;
      break;
    }
  }
  (void)pthread_mutex_unlock(&watch.lock);
}

static uint64_t idle_us(void)
{
  double seconds = 0;
  FILE *file = fopen("/proc/uptime", "re");
  if (file == NULL || fscanf(file, "%*f %lf", &seconds) != 1) {
    stress_fail("P6", "no /proc/uptime");
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return (uint64_t)(seconds * 1e6);
}

static uint64_t of_ended_children_us(void)
{
  struct rusage ended;
  (void)getrusage(RUSAGE_CHILDREN, &ended);
  return (uint64_t)(ended.ru_utime.tv_sec + ended.ru_stime.tv_sec) * 1000000 +
         (uint64_t)(ended.ru_utime.tv_usec + ended.ru_stime.tv_usec);
}

/* With the lock. */
static usage use(uint64_t at_us)
{
  usage now = {at_us, idle_us(), clock_us(CLOCK_PROCESS_CPUTIME_ID) + of_ended_children_us()};
  for (size_t i = 0; i < CHILDREN_MAX; i++) {
    clockid_t clock;
    if (watch.children[i] != 0 && clock_getcpuclockid(watch.children[i], &clock) == 0) {
      now.ours_us += clock_us(clock);
    }
  }
  return now;
}

/* With the lock: the span is over. Others have taken of our time what they used beyond what was idle. */
static void end_span(uint64_t at_us)
{
  const uint64_t processors = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
  const usage now = use(at_us);
  const uint64_t all_us = processors * (now.at_us - watch.before.at_us);
  const uint64_t idle = now.idle_us - watch.before.idle_us;
  const uint64_t ours = now.ours_us - watch.before.ours_us;
  const uint64_t others_us = all_us > ours + 2 * idle ? (all_us - ours - 2 * idle) / processors : 0;
  watch.seen.all_us += others_us > watch.pause_us ? others_us - watch.pause_us : 0;
  watch.share = (double)others_us / (double)(now.at_us - watch.before.at_us);
  watch.seen.others_us += others_us;
  watch.before = now;
  watch.pause_us = 0;
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
  uint64_t paused_us = watch.pause_us + late_us(at_us);
  uint64_t others_us = watch.asleep_us == 0 ? 0 : (uint64_t)(watch.share * (double)(at_us - watch.before.at_us));
  uint64_t given_us = at_us - watch.seen.all_us - late_us(at_us) - (others_us > paused_us ? others_us - paused_us : 0);
  watch.given_us = given_us > watch.given_us ? given_us : watch.given_us; /* it was a guess */
  given_us = watch.given_us;
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
    sleep_us(SLEEP_US);
    (void)pthread_mutex_lock(&watch.lock);
    uint64_t at_us = now_us();
    uint64_t pause_us = late_us(at_us);
    watch.seen.all_us += pause_us;
    watch.pause_us += pause_us;
    watch.seen.count += pause_us > 0;
    watch.seen.longest_us = pause_us > watch.seen.longest_us ? pause_us : watch.seen.longest_us;
    if (watch.asleep_us == 0) {
      watch.before = use(at_us);
    } else if (at_us >= watch.before.at_us + SPAN_US) {
      end_span(at_us);
    }
    watch.asleep_us = at_us;
    (void)pthread_mutex_unlock(&watch.lock);
  }
  (void)pthread_mutex_lock(&watch.lock);
  watch.asleep_us = 0;
  (void)pthread_mutex_unlock(&watch.lock);
  return NULL;
}
