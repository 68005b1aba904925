#include "transport/thread.h"

#include <signal.h>

#include "base/time.h"

#define WAIT_MS_MAX 60000

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
