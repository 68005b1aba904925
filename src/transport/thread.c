#include "transport/thread.h"

#include <signal.h>

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
