/* What the files of the local transport share.
 *
 * Threads. Workers copy: one chunk is one worker's job. The keeper does everything that must not wait behind a copy:
 * checks new peers, watches their deaths, reports reads that end without a copy, frees links. One lock guards all that
 * is not marked otherwise; it is never held during a copy, another system call that can wait, or a call of the host's.
 */
#ifndef KVF_TRANSPORT_LOCAL_H
#define KVF_TRANSPORT_LOCAL_H

#include <stdatomic.h>
#include <sys/types.h>

#include "transport/commands.h"
#include "transport/local_description.h"
#include "transport/thread.h"

/* The rank's memory, shared by the transport and the links that were made with it. `given` points to the copies that
 * follow: the regions, the sums of what is read, the sums of what others read. */
typedef struct kvf_local_memory {
  uint32_t refs;
  kvf_transport_memory given;
  kvf_region regions[];
} kvf_local_memory;

typedef struct kvf_local {
  kvf_transport base;
  kvf_transport_host host;                /* constant */
  kvf_incarnation incarnation;            /* constant */
  uint64_t spin_ns;                       /* constant */
  kvf_local_place place;                  /* constant */
  uint8_t cookie[KVF_LOCAL_COOKIE_BYTES]; /* constant; peers read it where it lies */

  pthread_mutex_t lock;
  pthread_cond_t work; /* workers wait here */
  atomic_uint posted;  /* changes when they should look, for those that poll without the lock */
  kvf_list small;      /* reads that wait for assist(), or for a worker that is awake anyway */
  kvf_list bulk;       /* reads that wait for a worker */
  kvf_list ended;      /* reads that have their status and wait to be reported by the keeper */
  kvf_list links;      /* all links, until they are freed */
  kvf_list checks;     /* links whose peer is to be checked */
  kvf_list retired;    /* links that nobody holds any more */
  kvf_local_memory *memory;
  kvf_refusals refusals;
  bool closing;
  bool workers_gone;

  int epoll_fd;
  int wake_fd; /* wakes the keeper */
  pthread_t keeper;
  kvf_thread_cpus cpus; /* of workers: near the memory, when there is some */
  uint32_t workers_count;
  pthread_t workers[];
} kvf_local;

typedef enum kvf_local_state { KVF_LOCAL_CHECKING, KVF_LOCAL_UP, KVF_LOCAL_DOWN } kvf_local_state;

typedef struct kvf_local_link {
  kvf_link base;
  kvf_list in_links;
  kvf_list in_checks; /* in checks, later in retired */
  kvf_list reads;     /* open ones */
  uint32_t refs;      /* the host's, until disconnect(), and one for each open read */
  bool disconnected;
  kvf_local_state state;
  kvf_status failure; /* while DOWN */

  /* Set by connect() and the keeper's check, constant while UP. */
  kvf_local_memory *memory;
  kvf_address peer;
  kvf_incarnation incarnation;
  pid_t pid;
  int pidfd; /* the keeper's */
  uint64_t table;
  uint32_t table_slots;
  void *fence; /* that table, mapped; NULL: it cannot be */
  uint32_t regions_count;
  uint32_t sums_count; /* 0: blocks are not verified, since one of the two sides has no checksums */
  size_t description_bytes;
  uint8_t *description;
  kvf_region_layout *remote; /* of regions, then of their sums; likewise the next */
  uint64_t *bases;
} kvf_local_link;

typedef struct kvf_local_read {
  kvf_list in_queue; /* small, bulk or ended; in none while it is being copied */
  kvf_list in_link;
  kvf_local_link *link;
  kvf_read read;
  kvf_status status; /* KVF_OK until it has ended without a copy */
  atomic_bool stop;
} kvf_local_read;

static inline kvf_local *kvf_local_of(kvf_transport *transport)
{
  return KVF_CONTAINER_OF(transport, kvf_local, base);
}

static inline kvf_local_link *kvf_local_link_of(kvf_link *link)
{
  return KVF_CONTAINER_OF(link, kvf_local_link, base);
}

/* local.c. Log takes no lock. The others are called with the lock held. */
void kvf_local_log(kvf_local *local, kvf_log_level level, const kvf_address *peer, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void kvf_local_wake_keeper(kvf_local *local);
void kvf_local_memory_drop(kvf_local_memory *memory);

/* local_link.c: operations, and the keeper's part of them. */
kvf_status kvf_local_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out);
void kvf_local_disconnect(kvf_link *base);
/* Without the lock: checks the peer of a link in CHECKING and reports link_up(). */
void kvf_local_link_check(kvf_local *local, kvf_local_link *link);
/* Without the lock: the process has ended. */
void kvf_local_link_died(kvf_local *local, kvf_local_link *link);
/* Without the lock, during a read of the link, which has ended so: KVF_TRANSFER_FAILED, KVF_PEER_DOWN. */
void kvf_local_link_unreadable(kvf_local *local, kvf_local_link *link, kvf_status status);
/* With the lock: a read of the link is over. */
void kvf_local_link_drop(kvf_local *local, kvf_local_link *link);
/* With the lock: frees a link that is in no list but `links`. */
void kvf_local_link_free(kvf_local *local, kvf_local_link *link);

/* local_read.c: operations, and what the threads do with reads. */
void kvf_local_read_start(kvf_link *base, const kvf_read *request);
void kvf_local_read_cancel(kvf_link *base, uint64_t read_id);
bool kvf_local_read_assist(kvf_transport *transport);
/* With the lock: ends the link's reads that wait with `status`; stops those being copied if it is KVF_CANCELLED. */
void kvf_local_reads_end(kvf_local *local, kvf_local_link *link, kvf_status status);
/* Without the lock: copies and reports. */
void kvf_local_read_run(kvf_local *local, kvf_local_read *read);
/* Without the lock: reports a read and frees it. */
void kvf_local_read_finish(kvf_local *local, kvf_local_read *read, const kvf_read_result *result);

#endif
