/* What both sides of the transport `ucx` share.
 *
 * One data thread makes every call of UCX: see data_thread.h. Two workers: one whose endpoints read (ucx_link.h), and,
 * while memory is registered, one through which others read that memory (ucx_memory.h). The second is destroyed when
 * the memory goes away. The reason: over TCP, UCX answers gets from any address, registered or not, until the worker
 * ends. All state belongs to the data thread, except the fields that the lock of `commands` guards.
 *
 * UCX calls back from inside its own functions; what is called notes what has happened, and the thread acts on it
 * afterwards.
 */
#ifndef KVF_TRANSPORT_UCX_UCX_COMMON_H
#define KVF_TRANSPORT_UCX_UCX_COMMON_H

#include "memory/memory.h"
#include "transport/data_thread.h"
#include "transport/ucx/libucp.h"
#include "wire/ucx_description.h"
#include "wire/ucx_message.h"

#define KVF_UCX_GETS_MAX 64              /* of one read, in flight; the bits of kvf_ucx_batch.busy */
#define KVF_UCX_GET_BYTES_MAX (1u << 20) /* of one get: a read shows progress when one of its gets has ended */
#define KVF_UCX_MESSAGES_MAX 65536       /* that a worker has not sent yet: as many gets as can be in flight */
#define KVF_UCX_ROOMS_MAX 1024           /* reads and checks of links that are under way; other reads wait */
#define KVF_UCX_ROOMS_OF_LINKS 64        /* of these, which reads do not take */
#define KVF_UCX_SEEN 16                  /* leases that a link remembers to have found live */
#define KVF_UCX_SAMPLES_MAX 4            /* in a row, of an entry that changes meanwhile */
#define KVF_UCX_STOP_NS \
  (100 * KVF_NS_PER_MS)           /* what gets that nobody wants any more may take: then their endpoint is closed */
#define KVF_UCX_PROGRESS_TURNS 64 /* calls for progress before the others have their turn */
#define KVF_UCX_LOG_LINES_PER_S 5 /* for one reason */

/* The way out is for who runs the node. */
#define KVF_UCX_NO_CUDA \
  "UCX here takes none: it was built without CUDA, or UCX_TLS leaves cuda_copy out; PyPI's libucx-cu12 has it"

typedef struct kvf_ucx kvf_ucx;
typedef struct kvf_ucx_batch kvf_ucx_batch;

/* Memory that UCX knows. */
typedef struct kvf_ucx_registered {
  kvf_ucp_mem mem; /* NULL: it does not yet */
  int type;        /* one of KVF_UCS_MEMORY_TYPE_ */
} kvf_ucx_registered;

typedef struct kvf_ucx_get {
  kvf_ucx_batch *batch;
  uint32_t bytes;
  void *to;       /* NULL: the batch's room */
  uint64_t token; /* of the answer, where it is a message */
} kvf_ucx_get;

/* What a batch's messages ask for, and what they were told, where gets are messages. */
typedef struct kvf_ucx_claim {
  uint32_t slot; /* KVF_UCX_SLOT_NONE: no lease */
  uint64_t word; /* of the lease, live */
  bool is_lost;  /* the room's sample says that the lease is not live */
} kvf_ucx_claim;

/* Gets in flight for one purpose. Their destinations may be written to until they have ended. */
struct kvf_ucx_batch {
  kvf_list in_ready; /* ucx->ready: some have ended since it was looked at */
  kvf_ucx *ucx;
  void (*ready)(kvf_ucx *ucx, kvf_ucx_batch *batch);
  uint32_t room;        /* UINT32_MAX: none */
  uint64_t busy;        /* which of `gets` are in flight */
  uint64_t ended_bytes; /* of those that have ended well */
  kvf_ucs_status error; /* of the first that has not */
  kvf_ucx_claim claim;
  kvf_ucx_get gets[KVF_UCX_GETS_MAX];
};

/* Where a sample of a fence table lands: registered memory. */
typedef struct kvf_ucx_room {
  kvf_fence_sample sample;
} kvf_ucx_room;

_Static_assert(sizeof(kvf_ucx_room) == 64, "each has a cache line of its own");

/* Messages that a worker sends, and that UCX has not sent yet. */
typedef struct kvf_ucx_messages {
  kvf_list free;
  kvf_list busy;
  uint32_t busy_count;
} kvf_ucx_messages;

/* The rank's memory, registered with UCX. Refs: the transport's, and one for each read that writes to it. `mems` are
 * UCX's handles of what is read into, of the checksums of what others read, and of the table. */
typedef struct kvf_ucx_memory {
  kvf_ucx *ucx;
  uint32_t refs;
  kvf_paging *pages;
  kvf_memory_devices devices; /* that it is on */
  uint32_t mems_count;
  kvf_ucx_registered mems[];
} kvf_ucx_memory;

/* A lease that was live when this was read. */
typedef struct kvf_ucx_seen {
  uint32_t slot;
  kvf_fence_entry entry;
} kvf_ucx_seen;

typedef struct kvf_ucx_link {
  kvf_data_thread_link common;
  bool is_given_back; /* `disconnect` has run: it is to be freed */
  kvf_list in_leaving;
  kvf_list in_troubled; /* ucx->troubled: its endpoint has failed or been closed since it was looked at */
  kvf_list reads;       /* that have been started */
  kvf_ucp_ep ep;
  bool has_messages;    /* its gets are messages: see libucp.h */
  bool is_closing;      /* the endpoint is being closed: UCX says when it is */
  kvf_ucs_status error; /* of the endpoint */
  kvf_ucx_batch check;
  kvf_ucx_seen seen[KVF_UCX_SEEN];

  uint32_t table_slots;
  uint64_t *bases;    /* of its regions, then of their checksums, then of the table */
  kvf_ucp_rkey *keys; /* in the order of bases */
  size_t description_bytes;
  uint8_t *description;
} kvf_ucx_link;

struct kvf_ucx {
  kvf_data_thread data_thread; /* the lock of its commands guards `description` too */
  uint8_t *description;        /* NULL: no memory */
  size_t description_bytes;
  bool is_loopback; /* constant: nobody off this host is to be listened to */

  const kvf_ucx_api *api;
  kvf_ucp_context context;
  bool has_cuda; /* it takes memory of CUDA devices */
  kvf_ucp_worker reader;
  kvf_ucp_worker server; /* NULL: no memory */
  bool has_called;       /* UCX was asked for something, which it may do in its next progress only */
  kvf_ucx_memory *memory;

  kvf_ucx_messages asks;
  kvf_ucx_messages answers;
  uint64_t asked;                 /* so far */
  uint64_t message_type;          /* UCX's datatype of a message's data; 0: not made yet */
  struct kvf_ucx_message *asking; /* not sent yet, for the next; NULL: none */
  kvf_ucx_get *asking_for[KVF_UCX_ASKS_MAX];

  kvf_ucx_room *rooms;
  kvf_ucx_registered rooms_mem;
  uint32_t rooms_free_count;
  uint16_t rooms_free[KVF_UCX_ROOMS_MAX];
  kvf_ucx_batch *in_rooms[KVF_UCX_ROOMS_MAX]; /* whose they are; NULL: nobody's */

  kvf_list troubled;
  kvf_list ready;    /* batches */
  kvf_list leaving;  /* links that were given back while gets were in flight; oldest first */
  kvf_list waiting;  /* reads without a room */
  kvf_list stopping; /* reads that were cancelled, whose gets have not ended; oldest first */
};

static inline kvf_ucx *kvf_ucx_of(kvf_transport *transport)
{
  return KVF_CONTAINER_OF(transport, kvf_ucx, data_thread.base);
}

const char *kvf_ucx_text(const kvf_ucx *ucx, kvf_ucs_status status);
/* The data thread waits for the worker's events, too. KVF_SYSTEM: message (KVF_MESSAGE_BYTES_MAX). */
KVF_MUST_USE kvf_status kvf_ucx_worker_open(kvf_ucx *ucx, kvf_ucp_worker *out, char *message);
void kvf_ucx_worker_close(kvf_ucx *ucx, kvf_ucp_worker *worker);
/* In the data thread: registers memory of out->type with UCX; out->mem is NULL on failure. */
kvf_ucs_status kvf_ucx_map(const kvf_ucx *ucx, const void *address, uint64_t bytes, kvf_ucx_registered *out);
/* And what a memory has of it. */
void kvf_ucx_unmap_all(kvf_ucx_memory *memory);
/* In the data thread: one ref less. */
void kvf_ucx_memory_drop(kvf_ucx_memory *memory);

#endif
