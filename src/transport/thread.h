/* The library's threads. */
#ifndef KVF_TRANSPORT_THREAD_H
#define KVF_TRANSPORT_THREAD_H

#include <pthread.h>

/* As pthread_create(), whose error it returns: a thread with all signals blocked, since the engine's are not for it,
 * and with a name of at most 15 characters. */
int kvf_thread_start(pthread_t *thread, const char *name, void *(*main)(void *context), void *context);

#endif
