#include "transport/thread.h"

#include <sched.h>
#include <signal.h>

#define WAIT_MS_MAX 60000
#define YIELD_LATE_NS (2 * KVF_NS_PER_MS) /* more than a peer on the same core takes until it waits for us */
#define YIELD_PAUSE_NS (100 * KVF_NS_PER_MS)

int kvf_thread_start(pthread_t *thread, const char *name, void *(*main)(void *context), void *context)
{
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(thread, NULL, main, context);
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

uint64_t kvf_thread_yield(void)
{
  uint64_t before_ns = kvf_clock_now();
  (void)sched_yield();
  uint64_t after_ns = kvf_clock_now();
  return after_ns - before_ns > YIELD_LATE_NS ? after_ns + YIELD_PAUSE_NS : 0;
}
