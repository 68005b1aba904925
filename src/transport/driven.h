/* A transport whose state is one data thread's, as far as that is the same in all of them (tcp, ucx): its thread, its
 * links and its reads. Who the data thread is, driver.h says; what other threads ask of it, commands.h.
 */
#ifndef KVF_TRANSPORT_DRIVEN_H
#define KVF_TRANSPORT_DRIVEN_H

#include "base/log.h"
#include "transport/commands.h"
#include "transport/driver.h"
#include "transport/paging.h"

typedef struct kvf_driven_link kvf_driven_link;

/* The first member of the transport's own structure. What is not marked otherwise is the data thread's. */
typedef struct kvf_driven {
  kvf_transport base;
  kvf_transport_host host;     /* constant */
  kvf_transport_config config; /* constant */
  /* Constant. The link has failed: closes what it has open, and ends its reads as `status`. */
  void (*close_link)(struct kvf_driven *driven, kvf_driven_link *link, kvf_status status);

  kvf_driver driver;
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
} kvf_driven;

typedef enum kvf_driven_state {
  KVF_DRIVEN_CONNECTING,
  KVF_DRIVEN_UP,
  KVF_DRIVEN_DOWN /* link->failure says why */
} kvf_driven_state;

/* The first member of a link. */
struct kvf_driven_link {
  kvf_link base;
  kvf_command connect;
  kvf_command disconnect;
  kvf_list open;     /* reads that have not been reported; with the lock */
  bool disconnected; /* with the lock */

  /* The data thread's, from here. */
  kvf_list in_links;
  kvf_list in_connecting;
  kvf_driven_state state;
  kvf_status failure;
  uint64_t deadline_ns; /* to come up */
  kvf_address peer;
  kvf_incarnation incarnation;
  uint64_t generation; /* a link is for one memory only */
  kvf_paging *pages;   /* the peer's */
};

/* The first member of a read. */
typedef struct kvf_driven_read {
  kvf_command start;
  kvf_command cancel;
  kvf_list in_open; /* link->open; with the lock */
  kvf_transfer transfer;
  kvf_driven_link *link;
  kvf_chunk chunk;
  uint64_t bytes;
  uint64_t arrived_bytes;
  uint64_t progress_ns; /* when progress was told last, or the read began */
} kvf_driven_read;

static inline kvf_driven *kvf_driven_of(kvf_transport *transport)
{
  return KVF_CONTAINER_OF(transport, kvf_driven, base);
}

static inline kvf_driven_link *kvf_driven_link_of(kvf_link *link)
{
  return KVF_CONTAINER_OF(link, kvf_driven_link, base);
}

/* ---- life ---- */

/* At most `log_lines_per_s` for one reason. kvf_driven_free() is to be called, also if nothing else is. */
void kvf_driven_init(kvf_driven *driven, const kvf_transport_ops *ops, const kvf_transport_config *config,
                     const kvf_transport_host *host, uint32_t log_lines_per_s);
/* Starts the data thread, main(driven). On failure it runs not, and message (KVF_MESSAGE_BYTES_MAX) says why. */
KVF_MUST_USE kvf_status kvf_driven_start(kvf_driven *driven, const char *thread_name, void *(*main)(void *driven),
                                         char *message);
/* In it: whether to poll rather than to wait. While it does, what is posted need not wake it. */
bool kvf_driven_may_spin(const kvf_driven *driven);
/* Waits for it: it ends when it has run what was posted. */
void kvf_driven_stop(kvf_driven *driven);
void kvf_driven_free(kvf_driven *driven);

/* In the data thread: "NAME: peer ADDRESS: …", unless the limit has had enough of this `why`; then the next line says
 * how many are missing. */
void kvf_driven_log(kvf_driven *driven, kvf_log_level level, kvf_status why, const kvf_address *peer,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));
/* In the data thread: from now on `memory` is the rank's; NULL: it has none. */
void kvf_driven_use_memory(kvf_driven *driven, const kvf_paging *memory);

/* ---- links ---- */

/* Any thread. The link is zeroed; False: no memory, and `link` has been freed. */
KVF_MUST_USE bool kvf_driven_link_init(kvf_driven_link *link, kvf_transport *transport, const kvf_link_spec *spec,
                                       void (*connect)(void *, kvf_command *),
                                       void (*disconnect)(void *, kvf_command *));
/* Any thread: has the link's connect run. */
void kvf_driven_connect(kvf_driven_link *link);
/* Operation: has its disconnect run. */
void kvf_driven_disconnect(kvf_link *base);

/* The rest in the data thread.
 *
 * What a link's connect begins with. Else, message (KVF_MESSAGE_BYTES_MAX), it is to fail. */
KVF_MUST_USE kvf_status kvf_driven_link_begin(kvf_driven_link *link, char *message);
/* Blocks are verified if both sides have checksums. */
void kvf_driven_agree_on_checksums(kvf_driven_link *link, bool they_have);
void kvf_driven_link_up(kvf_driven_link *link);
/* Brings the link down, unless it is, and ends its reads: of a peer that has gone as KVF_TRANSFER_FAILED, else
 * likewise. The line names the peer and what happened. False, for those who say so of a link that has failed. */
bool kvf_driven_link_fail(kvf_driven_link *link, kvf_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Fails links that were too slow to come up: nothing came of `what`. Returns when to call again. */
uint64_t kvf_driven_links_tick(kvf_driven *driven, const char *what);

/* ---- reads ---- */

/* Any thread: has the start of the read run, which is zeroed. */
void kvf_driven_read_start(kvf_link *base, const kvf_transfer *request, kvf_driven_read *read,
                           void (*start)(void *, kvf_command *), void (*cancel)(void *, kvf_command *));
/* Operation: has its cancel run. */
void kvf_driven_read_cancel(kvf_link *base, uint64_t read_id);

/* The rest in the data thread.
 *
 * Whether the read can begin, else why not. */
KVF_MUST_USE kvf_status kvf_driven_read_prepare(kvf_driven_read *read);
/* Bytes have arrived. */
void kvf_driven_read_progress(kvf_driven_read *read);
/* Any of the link's open reads; NULL: none. */
kvf_driven_read *kvf_driven_open_read(kvf_driven_link *link);
/* Reports the read: from here nothing writes to its blocks. */
void kvf_driven_read_done(kvf_driven_read *read, const kvf_read_result *result);

#endif
