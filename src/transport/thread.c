/* Starts threads on their CPUs and with signals blocked, as far as the system allows; the clock, waiting, yielding. */
#include "transport/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define WAIT_MS_MAX 60000
#define YIELD_LATE_NS (2 * KVF_NS_PER_MS) /* more than a peer on the same core takes until it waits for us */
#define YIELD_PAUSE_NS (100 * KVF_NS_PER_MS)

_Static_assert(KVF_CPU_LIST_MAX == CPU_SETSIZE, "a list is a cpu_set_t");

uint64_t kvf_clock_now(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
}

static cpu_set_t set_of(const kvf_cpu_list *list)
{
  cpu_set_t set;
  CPU_ZERO(&set);
  for (unsigned i = 0; i < KVF_CPU_LIST_MAX; i++) {
    if (kvf_bitmap_get(list->words, i)) {
      CPU_SET(i, &set);
    }
  }
  return set;
}

kvf_thread_cpus kvf_thread_cpus_of(const char *option)
{
  kvf_thread_cpus cpus = {.inherit = strcmp(option, "inherit") == 0};
  if (!kvf_cpu_list_parse(option, &cpus.only)) {
    cpus.only = (kvf_cpu_list){0};
  }
  return cpus;
}

bool kvf_thread_cpus_are_free(const kvf_thread_cpus *cpus)
{
  return !cpus->inherit && kvf_cpu_list_count(&cpus->only) == 0;
}

static void *do_nothing(void *context)
{
  return context;
}

bool kvf_thread_cpus_are_usable(const kvf_thread_cpus *cpus)
{
  pthread_t thread;
  int error = kvf_thread_start(&thread, "kvf-try", do_nothing, NULL, cpus);
  if (error == 0) {
    (void)pthread_join(thread, NULL);
  }
  return error != EINVAL;
}

void kvf_thread_move(pthread_t thread, const kvf_cpu_list *cpus)
{
  if (cpus != NULL) {
    const cpu_set_t set = set_of(cpus);
    (void)pthread_setaffinity_np(thread, sizeof(set), &set);
  }
}

static int create(pthread_t *thread, void *(*main)(void *context), void *context, const kvf_thread_cpus *cpus,
                  bool of_usual_class)
{
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error != 0) {
    return error;
  }
  if (of_usual_class) {
    (void)pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
    (void)pthread_attr_setschedpolicy(&attributes, SCHED_OTHER);
  }
  if (!cpus->inherit) {
    cpu_set_t set = set_of(&cpus->only);
    if (kvf_thread_cpus_are_free(cpus)) {
      memset(&set, 0xff, sizeof(set)); /* the kernel cuts it to those of the process */
    }
    error = pthread_attr_setaffinity_np(&attributes, sizeof(set), &set);
  }
  error = error != 0 ? error : pthread_create(thread, &attributes, main, context);
  (void)pthread_attr_destroy(&attributes);
  return error;
}

static bool is_forbidden(int error)
{
  return error == EPERM || error == ENOSYS;
}

/* A sandbox may let nobody choose the class, or the CPUs. */
static int create_as_allowed(pthread_t *thread, void *(*main)(void *context), void *context,
                             const kvf_thread_cpus *cpus)
{
  const kvf_thread_cpus inherited = {.inherit = true};
  int error = create(thread, main, context, cpus, true);
  error = is_forbidden(error) ? create(thread, main, context, cpus, false) : error;
  return is_forbidden(error) ? create(thread, main, context, &inherited, false) : error;
}

int kvf_thread_start(pthread_t *thread, const char *name, void *(*main)(void *context), void *context,
                     const kvf_thread_cpus *cpus)
{
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = create_as_allowed(thread, main, context, cpus);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) {
    (void)pthread_setname_np(*thread, name);
  }
  return error;
}

int kvf_thread_wait_ms(uint64_t now_ns, uint64_t due_ns)
{
  if (due_ns == KVF_TIME_NEVER) {
    return -1;
  }
  uint64_t ms = (kvf_time_until(now_ns, due_ns) + KVF_NS_PER_MS - 1) / KVF_NS_PER_MS;
  return ms > WAIT_MS_MAX ? WAIT_MS_MAX : (int)ms;
}

void kvf_thread_sleep_exactly(void)
{
  (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

uint64_t kvf_thread_yield(void)
{
  uint64_t before_ns = kvf_clock_now();
  (void)sched_yield();
  uint64_t after_ns = kvf_clock_now();
  return after_ns - before_ns > YIELD_LATE_NS ? after_ns + YIELD_PAUSE_NS : 0;
}
