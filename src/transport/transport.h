/* The contract between the runtime and a transport. tests/conformance/ runs the same suite against each of them.
 *
 * A transport moves bytes and reports; it decides nothing. It may own threads. The runtime calls the operations from
 * any thread, possibly under the core's lock. So none may block, do bulk work or call back. The transport calls the
 * host's functions from its own threads, under none of its locks: they take the core's lock.
 *
 * Reads. read() takes a chunk: blocks of one lease on one producer rank. It ends in exactly one read_done(), after
 * which nothing writes to the chunk's destination any more: that is what "released" rests on. A read with status KVF_OK
 * has a fence sample that was taken after the chunk's last byte had been copied. Its first byte was copied after the
 * lease had been found live, in the memory that the link is for. If the lease was not live, no byte was copied, and the
 * sample says so. The host judges the sample. If both sides have checksums, KVF_OK also says that all items agree with
 * theirs. KVF_CHECKSUM, also with a sample, says that one does not; the sample is judged first. cancel() asks for an
 * early end: read_done() still comes, with KVF_CANCELLED or with what happened before.
 */
#ifndef KVF_TRANSPORT_TRANSPORT_H
#define KVF_TRANSPORT_TRANSPORT_H

#include "base/crypto.h"
#include "base/fence.h"
#include "base/status.h"
#include "kvferry/node.h"
#include "transport/thread.h"
#include "transport/tls.h"
#include "wire/address.h"
#include "wire/layout.h"

typedef struct kvf_transport kvf_transport;
typedef struct kvf_link kvf_link; /* a way to one producer rank */

typedef struct kvf_read_result {
  uint64_t id;
  kvf_status status; /* KVF_OK, KVF_CANCELLED, KVF_TRANSFER_FAILED, KVF_PEER_DOWN, KVF_LEASE_* as the producer says … */
  kvf_fence_sample sample; /* valid if status is KVF_OK or KVF_CHECKSUM */
  uint64_t bytes;          /* that arrived, checksums included */
  kvf_read_work work;      /* of those bytes */
  /* Leading items whose bytes agree with the producer's checksums: all, or fewer if status is KVF_CHECKSUM. 0 if one of
   * the two sides has no checksums. */
  uint32_t verified;
} kvf_read_result;

/* What the transport needs of the node that it is part of. */
typedef struct kvf_transport_host {
  void *context;
  void (*read_done)(void *context, const kvf_read_result *result);
  /* Bytes of this read have arrived: at most once per KVF_PROGRESS_NS and read. */
  void (*read_progress)(void *context, uint64_t read_id);
  /* The outcome of connect(), once: KVF_OK, or why not (the link is then good for disconnect() only). */
  void (*link_up)(void *context, kvf_link *link, kvf_status status);
  /* A link that was up has failed. Its reads have been, or are being, completed, at the latest when it is given back.
   * Comes at most once per link. */
  void (*link_down)(void *context, kvf_link *link, kvf_status status);
  /* Producer side. The key of a session that the control handshake has set up; false: no such session. */
  bool (*session_key)(void *context, uint64_t session_id, kvf_key *out);
  /* Producer side. Whether this lease is live with this token; if so, turns positions into block ids
   * (items[i].remote_block). KVF_LEASE_UNKNOWN, KVF_LEASE_EXPIRED, KVF_NOT_PUBLISHED or KVF_INVALID (position). */
  kvf_status (*authorize)(void *context, const kvf_lease *lease, kvf_transfer_item *items, uint32_t count);
  /* Producer side, to be counted: a consumer's connection was accepted (KVF_OK), or was ended for this reason. Not told
   * of a consumer that leaves when it has nothing open, and when the transport closes. */
  void (*connection)(void *context, kvf_status why);
  /* For log lines of its own; takes a formatted line. */
  void (*log)(void *context, kvf_log_level level, const char *line);
} kvf_transport_host;

#define KVF_PROGRESS_NS UINT64_C(50000000)

typedef struct kvf_transport_config {
  kvf_incarnation incarnation;
  char listen[KVF_HOST_BYTES_MAX]; /* the node's own "IP:PORT"; data ports are at the same address; "" none */
  kvf_address listen_other; /* a second one, of the other family; data is at the same port of both; port 0: none */
  uint16_t data_port_first; /* of those that data ports are taken from; 0: any that is free */
  uint16_t data_port_last;
  bool has_key; /* else all peers are on this host */
  uint32_t connections_max;
  uint32_t handshake_timeout_ms;
  uint32_t copy_threads;
  uint32_t inline_bytes;
  uint32_t tcp_streams;
  uint32_t tcp_buffer_bytes;
  char ucx_library[KVF_PATH_BYTES_MAX]; /* "": see transport/ucx/libucp.h */
  uint32_t spin_us;
  /* Of kvf_config; 0: the default. */
  uint32_t device_gather_bytes;
  uint32_t device_gather_blocks;
  uint32_t device_gather_threads;
  kvf_thread_cpus thread_cpus;
  kvf_tls_use tls; /* valid until the transport is closed */
} kvf_transport_config;

/* The memory of this rank. `table` is its fence table: a shared mapping, kvf_fence_table_bytes() long. The transport
 * reads it with kvf_fence_load() only. Valid until clear_memory(). */
typedef struct kvf_transport_memory {
  const kvf_region *regions;
  uint32_t regions_count;
  kvf_layout layout; /* of the regions: valid */
  const void *table;
  uint32_t table_slots;
  int table_fd;                  /* its file, for others to map; -1: none */
  const kvf_cpu_list *near_cpus; /* where threads that copy are to run; read during the call only; NULL: as before */
  /* Checksums (transport/checksums.h), if the node has them: of the blocks that others read, and where those of the
   * blocks that we read are put. */
  uint32_t checksums_count;
  const kvf_region *checksums;
  const kvf_region *checksums_read;
} kvf_transport_memory;

typedef struct kvf_link_spec {
  uint64_t user;               /* the host's own: in kvf_link.user */
  kvf_address peer;            /* control address of the peer; tcp data runs to the same host */
  kvf_incarnation incarnation; /* that the peer must have */
  uint64_t generation;         /* of the peer's memory, the only one that the link is for */
  uint64_t session_id;
  kvf_key session_key;
  const void *description; /* what describe() gave on the peer; read during the call only */
  size_t description_bytes;
  const kvf_region_layout *remote; /* read during the call only */
  uint32_t remote_count;
  kvf_layout layout; /* of these; read during the call only */
} kvf_link_spec;

/* Whether it has regions, and a description, within their limits: for transports that cannot do without. */
static inline bool kvf_link_spec_is_whole(const kvf_link_spec *spec)
{
  return spec->remote_count > 0 && spec->remote_count <= KVF_REGIONS_MAX && spec->layout.parts_count <= KVF_PARTS_MAX &&
         spec->description_bytes > 0 && spec->description_bytes <= KVF_TRANSPORT_DESCRIPTION_BYTES_MAX;
}

typedef struct kvf_transport_ops {
  const char *name; /* as in the option `transports` */
  /* A node has as many as tcp_streams, which peers are told of as one (transport/rails.h); else a node has one. */
  bool has_rails;

  /* Whether it brings bytes from a producer's memory of one kind (kvf_memory_kind; it may be none of ours) into a
   * consumer's of another. A node gives it no memory that it serves in no pair, and no link whose pairs it does not
   * serve. */
  bool (*serves)(uint32_t theirs, uint32_t ours);

  /* Starts threads and sockets. On failure *out is NULL and message (KVF_MESSAGE_BYTES_MAX) says why;
   * KVF_TRANSFER_SETUP: this machine lacks what the transport needs, and a node can do without. */
  kvf_status (*open)(const kvf_transport_config *config, const kvf_transport_host *host, kvf_transport **out,
                     char *message);
  /* All links must be disconnected. Waits for its threads; no call of the host's afterwards. May block. */
  void (*close)(kvf_transport *transport);

  /* Producer and consumer: the rank's memory, set at most once at a time. May block for as long as it takes to register
   * it with the system; never called under the core's lock. */
  kvf_status (*set_memory)(kvf_transport *transport, const kvf_transport_memory *memory);
  /* Stops serving it. When this returns nothing of the transport's producer side reads it any more. May block for the
   * time of one bounded copy; never called under the core's lock. */
  void (*clear_memory)(kvf_transport *transport);
  /* What a consumer needs to connect; bytes for the handshake, at most KVF_TRANSPORT_DESCRIPTION_BYTES_MAX. Checked by
   * connect() on the other side: it comes from a peer. */
  kvf_status (*describe)(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes);

  /* Consumer. Begins to connect; link_up() tells the outcome, later, from another thread. KVF_TRANSFER_SETUP: this peer
   * cannot be reached this way (another host). KVF_AGAIN: the peer has registered other memory than `spec` says.
   * KVF_PROTOCOL: the description is malformed. */
  kvf_status (*connect)(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out);
  /* Gives the link back: its open reads are cancelled (each still gets its read_done()); then it is freed. A
   * link_up() or link_down() that is on its way may still come, and the link stays allocated until it has returned. */
  void (*disconnect)(kvf_link *link);
  /* KVF_NO_MEMORY: it has not begun, and there is no read_done(). */
  kvf_status (*read)(kvf_link *link, const kvf_transfer *read);
  void (*cancel)(kvf_link *link, uint64_t read_id); /* unknown ids are ignored */
  /* Does, in the caller's thread, what there is to do for small reads, or waits for them for a moment: nothing that can
   * be stuck. Returns whether there may be more later. May be NULL. Never under a lock. */
  bool (*assist)(kvf_transport *transport);
} kvf_transport_ops;

struct kvf_transport {
  const kvf_transport_ops *ops;
};

struct kvf_link {
  kvf_transport *transport;
  uint64_t user;
};

extern const kvf_transport_ops kvf_transport_local; /* process_vm_readv: same host, same user */
extern const kvf_transport_ops kvf_transport_tcp;
extern const kvf_transport_ops kvf_transport_ucx; /* RDMA and what else UCX has; loaded at run time */

/* Reads one entry of a table that another thread may be storing to: word, then digest, then word again. So both are of
 * one lease. Begins with an acquire barrier, which keeps it after the copies that it judges. */
kvf_fence_entry kvf_fence_load(const void *table, uint32_t slot);

/* The generation of a table that another thread, or process, may be storing to. It is loaded after all earlier loads: a
 * lease that was found live there is not of an older generation. */
uint64_t kvf_fence_generation(const void *table);

/* A full barrier: all earlier loads come before all later ones, also if another processor or part of the system copies.
 * For transports that let others copy between two looks at the fence. */
void kvf_fence_barrier(void);

#endif
