/* Whose turn it is to be a transport's data thread: the thread that was started for it, or a caller that looks after
 * its own small reads, so that no thread must be woken to send or to receive them. Whoever holds `lock` is the data
 * thread. Its own thread lets go of it while it waits, and while callers ask again and again it waits for commands
 * only, so that an answer wakes nobody. Used by the transports whose state is one thread's (tcp, ucx).
 */
#ifndef KVF_TRANSPORT_DRIVER_H
#define KVF_TRANSPORT_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/time.h"
#include "transport/commands.h"

/* Callers that have asked this often since the data thread began to wait are taken to poll without a pause, */
#define KVF_DRIVER_ASKS_MIN 3
/* for this long. It is also the longest that an answer waits if they stop polling. */
#define KVF_DRIVER_LOOK_NS KVF_NS_PER_MS

typedef struct kvf_driver {
  pthread_mutex_t lock;    /* taken before the host's locks, never under them */
  uint64_t waits_until_ns; /* the data thread's own; this and the next three with `lock` */
  uint64_t light_until_ns; /* until when the data thread waits for commands only */
  uint32_t asks;           /* callers', since the data thread began to wait */
  bool has_driven;         /* a caller has, since then */

  atomic_uint small_open; /* reads that callers may look after */
  atomic_uint large_open; /* others: while there is one, no caller drives, since it would copy that too */
} kvf_driver;

void kvf_driver_init(kvf_driver *driver);
void kvf_driver_free(kvf_driver *driver);

/* ---- any thread ---- */

/* A read is about to be put to the commands. True: a caller will start it, and need not wake the data thread. */
bool kvf_driver_read_opened(kvf_driver *driver, bool small);
/* It is over. */
void kvf_driver_read_closed(kvf_driver *driver, bool small);

/* ---- the data thread's own thread, with `lock` ---- */

/* As epoll_wait() until `due_ns`, without `lock` meanwhile. What callers have served by then is not among the events.
 */
int kvf_driver_wait(kvf_driver *driver, const kvf_commands *commands, int epoll_fd, struct epoll_event *events,
                    int capacity, uint64_t now_ns, uint64_t due_ns);

/* Whether it may poll: then no caller does. */
static inline bool kvf_driver_may_spin(const kvf_driver *driver)
{
  return atomic_load_explicit(&driver->small_open, memory_order_relaxed) == 0;
}

/* ---- a caller, without locks ---- */

/* Whether there are small reads that callers may look after. */
bool kvf_driver_has_small(const kvf_driver *driver);

/* Becomes the data thread, unless that is at work: then it is told to look for commands once more if there are some. */
bool kvf_driver_take(kvf_driver *driver, kvf_commands *commands);

/* Ends that. `asked`: there was no command, the caller came to ask. There is something to do at `due_ns`, or at once
 * for the data thread's own thread if `wakes`. */
void kvf_driver_leave(kvf_driver *driver, kvf_commands *commands, bool asked, uint64_t due_ns, bool wakes);

#endif
