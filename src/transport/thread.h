/* The library's threads. */
#ifndef KVF_TRANSPORT_THREAD_H
#define KVF_TRANSPORT_THREAD_H

#include <pthread.h>
#include <stdint.h>

/* As pthread_create(), whose error it returns: a thread with all signals blocked, since the engine's are not for it,
 * and with a name of at most 15 characters. */
int kvf_thread_start(pthread_t *thread, const char *name, void *(*main)(void *context), void *context);

/* For epoll_wait(): how long until `due_ns`, rounded up; at most a minute, and -1 for KVF_TIME_NEVER. */
int kvf_thread_wait_ms(uint64_t now_ns, uint64_t due_ns);

/* For a thread that polls: as sched_yield(), before each look. Returns until when it should not poll: 0, unless this
 * took so long that somebody else must be busy on the core, since each look costs a time slice then. */
uint64_t kvf_thread_yield(void);

#endif
