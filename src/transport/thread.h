/* The library's threads, and the clock that they look at. */
#ifndef KVF_TRANSPORT_THREAD_H
#define KVF_TRANSPORT_THREAD_H

#include <pthread.h>

#include "base/cpu_list.h"
#include "base/time.h"

/* CLOCK_MONOTONIC: nobody sets it, and it is the same for all threads. */
uint64_t kvf_clock_now(void);

/* Where threads may run. All 0: on all CPUs that the process may use. */
typedef struct kvf_thread_cpus {
  bool inherit;      /* where their makers may */
  kvf_cpu_list only; /* if it is not empty: on those of them that the process may use */
} kvf_thread_cpus;

/* What the option thread_cpus says. */
kvf_thread_cpus kvf_thread_cpus_of(const char *option);
/* Neither near some memory nor anywhere else in particular: the choice is ours. */
bool kvf_thread_cpus_are_free(const kvf_thread_cpus *cpus);
/* False: the process may use none of them. Makes a thread to find out. */
bool kvf_thread_cpus_are_usable(const kvf_thread_cpus *cpus);

/* pthread_create() of a thread with all signals blocked, because signals are for the engine. It has a name of at most
 * 15 characters, and the default scheduling class instead of the engine's. Returns the error of pthread_create().
 * EINVAL also for CPUs that the process may not use. */
int kvf_thread_start(pthread_t *thread, const char *name, void *(*main)(void *context), void *context,
                     const kvf_thread_cpus *cpus);

/* From now on it runs on these CPUs, if the process may use one of them; else, and for NULL, as before. */
void kvf_thread_move(pthread_t thread, const kvf_cpu_list *cpus);

/* For epoll_wait(): how long until `due_ns`, rounded up; at most a minute, and -1 for KVF_TIME_NEVER. */
int kvf_thread_wait_ms(uint64_t now_ns, uint64_t due_ns);

/* For a thread that sleeps between looks, and is the library's: it sleeps as long as it asks for. The kernel adds up to
 * 50 us for others. */
void kvf_thread_sleep_exactly(void);

/* For a thread that polls: sched_yield() before each look. Returns the time until which it should not poll. This is 0,
 * unless the call took so long that another thread must be busy on the core: each look then costs a time slice. */
uint64_t kvf_thread_yield(void);

#endif
