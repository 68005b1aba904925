/* The state of the local transport, for local.c and its tests.
 *
 * Threads. A thread that reads a peer's memory may be stuck in the kernel as long as that peer is. So only threads that
 * no other thread waits for do it. Workers copy: one chunk is one worker's job, and another worker takes the place of a
 * stuck one. A new peer is checked by its own thread (local_check.h). The reaper does the rest: it begins checks,
 * watches peers' deaths and the workers, reports reads that end without a copy, frees links. One lock guards all fields
 * without another mark. It is never held during a system call that can wait, or a call of the host.
 */
#ifndef KVF_TRANSPORT_LOCAL_LOCAL_H
#define KVF_TRANSPORT_LOCAL_LOCAL_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/list.h"
#include "transport/local/description.h"
#include "transport/local/local_check.h"
#include "transport/paging.h"
#include "transport/thread.h"

/* The rank's memory, shared by the transport and the links that were made with it. */
typedef struct kvf_local_memory {
  uint32_t refs;
  int table_fd;
  kvf_paging *pages;
  bool is_host;     /* all of its regions */
  uint8_t *exports; /* what describe() says the place of */
  size_t exports_bytes;
} kvf_local_memory;

typedef struct kvf_local_link kvf_local_link;

/* Workers beyond copy_threads, in place of those that are stuck: at all memory, and at that of one process. */
#define KVF_LOCAL_STUCK_WORKERS_MAX 64
#define KVF_LOCAL_STUCK_WORKERS_OF_ONE_MAX 8
/* How often the reaper looks after what nobody wakes it for. */
#define KVF_LOCAL_LOOK_MS 10

typedef struct kvf_local_worker {
  kvf_list in_workers; /* in workers, stuck or gone */
  struct kvf_local *local;
  pthread_t thread;
  kvf_local_link *link;   /* whose memory it copies from; NULL: none */
  atomic_ullong since_ns; /* when it began, or bytes came last */
  bool is_stuck;
} kvf_local_worker;

typedef struct kvf_local {
  kvf_transport base;
  kvf_transport_host host;                /* constant */
  kvf_incarnation incarnation;            /* constant */
  uint64_t spin_ns;                       /* constant */
  kvf_memory_gather gather;               /* constant */
  uint32_t copy_threads;                  /* constant */
  kvf_thread_cpus cpus;                   /* constant */
  kvf_local_place place;                  /* constant */
  uint8_t cookie[KVF_LOCAL_COOKIE_BYTES]; /* constant; peers read it where it lies */

  pthread_mutex_t lock;
  pthread_cond_t work; /* workers wait here */
  atomic_uint posted;  /* changes when they should look, for those that poll without the lock */
  kvf_list small;      /* reads that wait for a worker, and are taken first */
  kvf_list bulk;       /* reads that wait for a worker, behind those of `small` */
  kvf_list ended;      /* reads that have their status and wait to be reported by the reaper */
  kvf_list links;      /* all links, until they are freed */
  kvf_list unchecked;  /* links whose peer is to be checked */
  kvf_list checking;   /* and those whose is being checked */
  kvf_list retired;    /* links that nobody holds any more */
  kvf_local_memory *memory;
  bool closing;
  atomic_uint small_open;        /* small reads that are not over */
  atomic_ullong assist_again_ns; /* until then callers do not poll for them: it has cost one a time slice */

  kvf_list workers; /* those that are not stuck */
  kvf_list stuck;
  kvf_list gone; /* those whose thread is to be joined */
  bool has_near;
  kvf_cpu_list near;      /* the CPUs near the memory, for workers */
  uint32_t workers_count; /* in workers, and of these the busy ones */
  uint32_t busy_count;
  uint32_t stuck_count;
  bool watching; /* reads wait while all workers are busy: the reaper looks after these */

  int epoll_fd;
  int wake_fd; /* wakes the reaper */
  pthread_t reaper;
} kvf_local;

typedef enum kvf_local_state { KVF_LOCAL_CHECKING, KVF_LOCAL_UP, KVF_LOCAL_DOWN } kvf_local_state;

struct kvf_local_link {
  kvf_link base;
  kvf_list in_links;
  kvf_list in_checks; /* in unchecked or checking, later in retired */
  kvf_list reads;     /* open ones */
  uint32_t refs;      /* the host's, until disconnect(), and one for each open read */
  uint32_t stuck;     /* workers; while there are any no other begins to copy from here */
  bool disconnected;
  kvf_local_state state;
  kvf_status failure; /* while DOWN */

  /* Set by connect() and the reaper's check, constant while UP. */
  kvf_local_memory *memory;
  kvf_address peer;
  kvf_incarnation incarnation;
  uint64_t generation;    /* of the peer's memory */
  kvf_local_check *check; /* NULL: it has not begun. Its fence NULL also if not all memory is the host's: see copy.h */
  size_t description_bytes;
  uint8_t *description;
  kvf_paging *pages; /* the peer's */
};

typedef struct kvf_local_read {
  kvf_list in_queue; /* small, bulk or ended; in none while it is being copied */
  kvf_list in_link;
  kvf_local_link *link;
  kvf_transfer read;
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

/* Without the lock: the link's process has ended. */
void kvf_local_link_died(kvf_local *local, kvf_local_link *link);

#endif
