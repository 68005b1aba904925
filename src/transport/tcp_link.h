/* The consumer's side of the tcp transport: what its files share. A link is one socket; it is up when both ends have
 * proved the session's key there, and fails with it (tcp_link.c). Reads are answered in the order in which they were
 * sent (tcp_read.c).
 */
#ifndef KVF_TRANSPORT_TCP_LINK_H
#define KVF_TRANSPORT_TCP_LINK_H

#include "transport/tcp.h"
#include "wire/data_message.h"
#include "wire/frame.h"

typedef enum kvf_tcp_link_state {
  KVF_TCP_LINK_CONNECTING,
  KVF_TCP_LINK_UP,
  KVF_TCP_LINK_DOWN /* link->failure says why */
} kvf_tcp_link_state;

/* What comes next on its socket. */
typedef enum kvf_tcp_awaits {
  KVF_TCP_AWAITS_CONNECT,
  KVF_TCP_AWAITS_CHALLENGE,
  KVF_TCP_AWAITS_READY,
  KVF_TCP_AWAITS_CHUNK,
  KVF_TCP_AWAITS_PAYLOAD,
  KVF_TCP_AWAITS_TRAILER
} kvf_tcp_awaits;

typedef struct kvf_tcp_link {
  kvf_link base;
  kvf_command connect;
  kvf_command disconnect;
  kvf_list open;     /* reads that have not been reported; with the lock */
  bool disconnected; /* with the lock */

  /* The data thread's, from here. */
  kvf_list in_links;
  kvf_list in_connecting;
  kvf_tcp_link_state state;
  kvf_status failure;
  uint64_t deadline_ns; /* to come up */
  kvf_address peer;     /* its data port */
  kvf_incarnation incarnation;
  uint64_t session_id;
  kvf_key session_key; /* until it is up */
  kvf_tcp_memory *memory;
  uint32_t remote_count;
  uint32_t sums_count; /* 0: blocks are not verified */
  bool has_sums;       /* the peer */
  kvf_tcp_source source;
  kvf_tcp_awaits awaits;
  kvf_tcp_stream stream;
  uint8_t ready_proof[KVF_HASH_BYTES]; /* what the producer must answer */
  bool is_blocked;                     /* the kernel takes nothing more now */
  kvf_list waiting;                    /* reads whose READ has not been staged */
  kvf_list sent;                       /* reads in the order of their READs: the first is answered next */
  uint32_t sent_count;
  kvf_tcp_payload payload;    /* of the first in `sent`, when it awaits PAYLOAD */
  kvf_region_layout remote[]; /* of its regions and then of their sums */
} kvf_tcp_link;

/* A read from read() until it has been reported and its answer, if it was sent, has been received. */
typedef struct kvf_tcp_read {
  kvf_posted_read posted;
  kvf_list in_link; /* `waiting` or `sent` */
  kvf_tcp_link *link;
  bool is_reported; /* nothing may be written any more, and items are gone: what still comes is thrown away */
  kvf_chunk chunk;
  uint64_t bytes;
  uint64_t landed_bytes;
  uint64_t progress_ns; /* when progress was told last, or the read began */
} kvf_tcp_read;

/* ---- tcp_link.c ---- */

/* Brings the link down and reports its reads as `reads`. The line names the peer and what happened. */
void kvf_tcp_link_fail(kvf_tcp *tcp, kvf_tcp_link *link, kvf_status status, kvf_status reads, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The kernel could not send or receive. */
void kvf_tcp_link_broken(kvf_tcp *tcp, kvf_tcp_link *link);
/* Sends what is staged and tells epoll what to wait for. False: the link has failed. */
KVF_MUST_USE bool kvf_tcp_link_flush(kvf_tcp *tcp, kvf_tcp_link *link);

/* ---- tcp_read.c. False: the link has failed. ---- */

KVF_MUST_USE bool kvf_tcp_link_on_chunk(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes);
KVF_MUST_USE bool kvf_tcp_link_on_trailer(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes);
/* One system call's worth of payload. */
KVF_MUST_USE kvf_tcp_io kvf_tcp_link_take_payload(kvf_tcp *tcp, kvf_tcp_link *link, uint64_t *budget_bytes);
/* Sends READs for what waits, as many as may be open. The link may have failed then. */
void kvf_tcp_link_send_reads(kvf_tcp *tcp, kvf_tcp_link *link);
/* The socket is closed for good: reads are reported as `status` and freed. */
void kvf_tcp_reads_end(kvf_tcp *tcp, kvf_tcp_link *link, kvf_status status);
/* The link lives on: reads are cancelled. */
void kvf_tcp_reads_cancel(kvf_tcp *tcp, kvf_tcp_link *link);

#endif
