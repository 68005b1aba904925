/* The common part of transports whose state belongs to one data thread (tcp, ucx): its thread, its links and its reads.
 * For the requests of other threads see commands.h.
 *
 * The holder of `lock` is the data thread. This is the thread that was started for it, or a caller that drives its own
 * small reads. Then no thread must be woken to send or to receive them. The started thread releases the lock while it
 * waits. While callers poll repeatedly, it waits for commands only, so that an answer wakes no thread.
 */
#ifndef KVF_TRANSPORT_DATA_THREAD_H
#define KVF_TRANSPORT_DATA_THREAD_H

#include <stdatomic.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "base/time.h"
#include "transport/commands.h"
#include "transport/paging.h"

/* Callers that have asked this often since the data thread began to wait are taken to poll without a pause, */
#define KVF_DATA_THREAD_ASKS_MIN 3
/* for this long. It is also the longest that an answer waits if they stop polling. */
#define KVF_DATA_THREAD_LOOK_NS KVF_NS_PER_MS

typedef struct kvf_data_thread_link kvf_data_thread_link;

/* The first member of the transport's own structure. What is not marked otherwise is the data thread's. */
typedef struct kvf_data_thread {
  kvf_transport base;
  kvf_transport_host host;     /* constant */
  kvf_transport_config config; /* constant */
  /* Constant. The link has failed: closes what it has open, and ends its reads as `status`. */
  void (*close_link)(struct kvf_data_thread *data_thread, kvf_data_thread_link *link, kvf_status status);

  pthread_mutex_t lock;    /* taken before the host's locks, never under them; of all down to has_driven */
  uint64_t waits_until_ns; /* the data thread's own */
  uint64_t light_until_ns; /* until when the data thread waits for commands only */
  uint32_t asks;           /* callers', since the data thread began to wait */
  bool has_driven;         /* a caller has, since then */
  atomic_uint small_open;  /* reads that callers may look after */
  atomic_uint large_open;  /* others: while there is one, no caller drives, since it would copy that too */
  kvf_commands commands;
  pthread_t thread;
  int epoll_fd;     /* the commands' wake_fd is in it, with NULL as its data */
  uint64_t now_ns;  /* of this turn, or command */
  uint64_t busy_ns; /* when its own thread had something to do last */
  kvf_log_limit log_limit;
  const kvf_paging *memory; /* NULL: none */
  uint64_t generation;      /* of the memory */
  kvf_list links;           /* all of them */
  kvf_list connecting;      /* those that are not up yet, oldest first */
} kvf_data_thread;

typedef enum kvf_data_thread_link_state {
  KVF_DATA_THREAD_LINK_CONNECTING,
  KVF_DATA_THREAD_LINK_UP,
  KVF_DATA_THREAD_LINK_DOWN /* link->failure says why */
} kvf_data_thread_link_state;

/* The first member of a link. */
struct kvf_data_thread_link {
  kvf_link base;
  kvf_command connect;
  kvf_command disconnect;
  kvf_list open;     /* reads that have not been reported; with the lock */
  bool disconnected; /* with the lock */

  /* The data thread's, from here. */
  kvf_list in_links;
  kvf_list in_connecting;
  kvf_data_thread_link_state state;
  kvf_status failure;
  uint64_t deadline_ns; /* to come up */
  kvf_address peer;
  kvf_incarnation incarnation;
  uint64_t peer_generation; /* a link is for one memory of the peer's only, */
  uint64_t generation;      /* and for one of ours */
  kvf_paging *pages;        /* the peer's */
};

/* The first member of a read. */
typedef struct kvf_data_thread_read {
  kvf_command start;
  kvf_command cancel;
  kvf_list in_open; /* link->open; with the lock */
  kvf_transfer transfer;
  kvf_data_thread_link *link;
  kvf_chunk chunk;
  uint64_t bytes;
  uint64_t arrived_bytes;
  uint64_t progress_ns; /* when progress was told last, or the read began */
} kvf_data_thread_read;

static inline kvf_data_thread *kvf_data_thread_of(kvf_transport *transport)
{
  return KVF_CONTAINER_OF(transport, kvf_data_thread, base);
}

static inline kvf_data_thread_link *kvf_data_thread_link_of(kvf_link *link)
{
  return KVF_CONTAINER_OF(link, kvf_data_thread_link, base);
}

/* ---- life ---- */

/* At most `log_lines_per_s` for one reason. kvf_data_thread_free() is to be called in any case. Of this and the next,
 * on failure: message (KVF_MESSAGE_BYTES_MAX) says why. */
KVF_MUST_USE kvf_status kvf_data_thread_open(kvf_data_thread *data_thread, const kvf_transport_ops *ops,
                                             const kvf_transport_config *config, const kvf_transport_host *host,
                                             uint32_t log_lines_per_s, char *message);
/* Starts the data thread, main(data_thread). */
KVF_MUST_USE kvf_status kvf_data_thread_start(kvf_data_thread *data_thread, const char *thread_name,
                                              void *(*main)(void *data_thread), char *message);
/* Waits for it: it ends when it has run what was posted. */
void kvf_data_thread_stop(kvf_data_thread *data_thread);
void kvf_data_thread_free(kvf_data_thread *data_thread);

/* In the data thread: logs "NAME: peer ADDRESS: …". If there are too many lines of this `why`, it logs nothing, and the
 * next line says how many are missing. */
void kvf_data_thread_log(kvf_data_thread *data_thread, kvf_log_level level, kvf_status why, const kvf_address *peer,
                         const char *format, ...) __attribute__((format(printf, 5, 6)));
/* In the data thread: from now on `memory` is the rank's; NULL: it has none. */
void kvf_data_thread_use_memory(kvf_data_thread *data_thread, const kvf_paging *memory);

/* ---- the data thread's own thread, with `lock` ---- */

/* As epoll_wait() until `due_ns`, without `lock` meanwhile. What callers have served by then is not among the events.
 */
int kvf_data_thread_wait(kvf_data_thread *data_thread, struct epoll_event *events, int capacity, uint64_t due_ns);
/* Whether it is to poll rather than to wait: then no caller drives. What is posted need not wake it. */
bool kvf_data_thread_may_spin(const kvf_data_thread *data_thread);

/* ---- a caller, without locks ---- */

/* Whether there are small reads that callers may look after. */
bool kvf_data_thread_has_small(const kvf_data_thread *data_thread);
/* Becomes the data thread, unless that is at work: then it is told to look for commands once more if there are some. */
bool kvf_data_thread_take(kvf_data_thread *data_thread);
/* Ends that. `asked`: there was no command, the caller came to ask. There is something to do at `due_ns`, or at once
 * for the data thread's own thread if `wakes`. */
void kvf_data_thread_leave(kvf_data_thread *data_thread, bool asked, uint64_t due_ns, bool wakes);

/* ---- links ---- */

/* Any thread. The link is zeroed; False: no memory, and `link` has been freed. */
KVF_MUST_USE bool kvf_data_thread_link_init(kvf_data_thread_link *link, kvf_transport *transport,
                                            const kvf_link_spec *spec, void (*connect)(void *, kvf_command *),
                                            void (*disconnect)(void *, kvf_command *));
/* Any thread: has the link's connect run. */
void kvf_data_thread_connect(kvf_data_thread_link *link);
/* Operation: has its disconnect run. */
void kvf_data_thread_disconnect(kvf_link *base);

/* The rest in the data thread.
 *
 * What a link's connect begins with. Else, message (KVF_MESSAGE_BYTES_MAX), it is to fail. */
KVF_MUST_USE kvf_status kvf_data_thread_link_begin(kvf_data_thread_link *link, char *message);
/* Blocks are verified if both sides have checksums. */
void kvf_data_thread_agree_on_checksums(kvf_data_thread_link *link, bool they_have);
void kvf_data_thread_link_up(kvf_data_thread_link *link);
/* Brings the link down, unless it is, and ends its reads as KVF_TRANSFER_FAILED if the peer has gone, else as `status`.
 * The line names the peer and what happened. Returns false, for callers to return. */
bool kvf_data_thread_link_fail(kvf_data_thread_link *link, kvf_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Fails links that were too slow to come up: nothing came of `what`. Returns when to call again. */
uint64_t kvf_data_thread_links_tick(kvf_data_thread *data_thread, const char *what);

/* ---- reads ---- */

/* Any thread: has the start of the read run, which is zeroed. */
void kvf_data_thread_read_start(kvf_link *base, const kvf_transfer *request, kvf_data_thread_read *read,
                                void (*start)(void *, kvf_command *), void (*cancel)(void *, kvf_command *));
/* Operation: has its cancel run. */
void kvf_data_thread_read_cancel(kvf_link *base, uint64_t read_id);

/* The rest in the data thread.
 *
 * Whether the read can begin, else why not. */
KVF_MUST_USE kvf_status kvf_data_thread_read_prepare(kvf_data_thread_read *read);
/* Bytes have arrived. */
void kvf_data_thread_read_progress(kvf_data_thread_read *read);
/* Any of the link's open reads; NULL: none. */
kvf_data_thread_read *kvf_data_thread_open_read(kvf_data_thread_link *link);
/* Reports the read: from here nothing writes to its blocks. */
void kvf_data_thread_read_done(kvf_data_thread_read *read, const kvf_read_result *result);

#endif
