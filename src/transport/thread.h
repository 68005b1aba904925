/* The library's threads, and the clock that they look at. */
#ifndef KVF_TRANSPORT_THREAD_H
#define KVF_TRANSPORT_THREAD_H

#include <pthread.h>
#include <time.h>

#include "base/time.h"

/* CLOCK_MONOTONIC: nobody sets it, and it is the same for all threads. */
static inline uint64_t kvf_clock_now(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* As pthread_create(), whose error it returns: a thread with all signals blocked, since the engine's are not for it,
 * and with a name of at most 15 characters. */
int kvf_thread_start(pthread_t *thread, const char *name, void *(*main)(void *context), void *context);

/* For epoll_wait(): how long until `due_ns`, rounded up; at most a minute, and -1 for KVF_TIME_NEVER. */
int kvf_thread_wait_ms(uint64_t now_ns, uint64_t due_ns);

/* For a thread that polls: as sched_yield(), before each look. Returns until when it should not poll: 0, unless this
 * took so long that somebody else must be busy on the core, since each look costs a time slice then. */
uint64_t kvf_thread_yield(void);

#endif
