/* What both sides of the tcp transport share.
 *
 * One data thread per transport serves both sides: the connections that consumers made to us (server.h) and the links
 * that we made (link.h): see driven.h. All state is the data thread's, but for what the lock of `commands` guards.
 * Since only the data thread writes to destination blocks, a read is released as soon as it says so.
 */
#ifndef KVF_TRANSPORT_TCP_COMMON_H
#define KVF_TRANSPORT_TCP_COMMON_H

#include "transport/driven.h"
#include "transport/socket.h"
#include "transport/tcp/stream.h"
#include "wire/codec.h"
#include "wire/frame.h"

/* Limits. What a peer can make us keep or do is bounded by these. */
#define KVF_TCP_GREETING_SHARE 4 /* of connections_max that connections without proof of their key may be on top */
#define KVF_TCP_REQUESTS_MAX 16  /* READs of a connection that wait; then no more is received from it */
#define KVF_TCP_ITEMS_MAX KVF_READ_ITEMS_MAX          /* of those READs: from here on, likewise */
#define KVF_TCP_TURN_BYTES (4u << 20)                 /* one socket moves these before the others have their turn */
#define KVF_TCP_COPIED_BYTES_MAX 16384                /* answers up to this size are copied, and sent in one call */
#define KVF_TCP_ACCEPTS_MAX 64                        /* of a turn */
#define KVF_TCP_ACCEPT_PAUSE_NS (100 * KVF_NS_PER_MS) /* when the system has no descriptors left */
#define KVF_TCP_LOG_LINES_PER_S 5                     /* for one reason */

/* Begins what describe() writes. */
#define KVF_TCP_DESCRIPTION_MAGIC UINT32_C(0x3374766b) /* "kvt3" */

typedef struct kvf_tcp_description {
  uint32_t magic;
  uint16_t port; /* not 0 */
  kvf_incarnation incarnation;
  uint8_t has_checksums; /* 0 or 1 */
} kvf_tcp_description;

typedef struct kvf_tcp kvf_tcp;

/* Something that the data thread waits for. */
typedef struct kvf_tcp_source {
  void (*ready)(kvf_tcp *tcp, struct kvf_tcp_source *source, uint32_t events);
  uint32_t events;     /* epoll's, as it is watched now; 0: not at all */
  bool is_for_callers; /* a caller that is the data thread may serve it */
} kvf_tcp_source;

/* The rank's memory. */
typedef struct kvf_tcp_memory {
  kvf_command set;
  uint8_t *staging; /* of kvf_tcp_payload; NULL: it needs none, nor rings */
  kvf_tcp_rings rings;
  kvf_paging *pages;
} kvf_tcp_memory;

typedef struct kvf_tcp_listener {
  kvf_tcp_source source;
  int fd; /* -1: does not listen */
} kvf_tcp_listener;

#define KVF_TCP_LISTENERS_MAX 2

struct kvf_tcp {
  kvf_driven driven; /* the lock of its commands guards the next two too */
  bool has_memory;
  bool has_checksums; /* of the memory */
  kvf_address listen; /* constant; port 0: does not listen */

  kvf_tcp_listener listeners[KVF_TCP_LISTENERS_MAX]; /* of an address, or one of each family, at the same port */
  uint64_t accept_again_ns;                          /* KVF_TIME_NEVER: is accepting */
  uint64_t stuck_at_ns; /* when a connection may have taken nothing for too long; KVF_TIME_NEVER: none can */
  bool is_bulk;         /* the last thing to do was for a chunk that is not copied, but sent from its blocks */
  uint64_t yield_again_ns;
  kvf_tcp_memory *memory;
  kvf_list greeting;   /* connections that have not proved their key, oldest first */
  kvf_list serving;    /* the others, least recently used first */
  kvf_list retired;    /* closed ones, freed at the end of the turn */
  kvf_crowd strangers; /* those of `greeting` */
  kvf_crowd proved;    /* those of `serving` */
};

static inline kvf_tcp *kvf_tcp_of(kvf_transport *transport)
{
  return KVF_CONTAINER_OF(transport, kvf_tcp, driven.base);
}

/* How so much payload of this memory's chunk goes, from its first byte on: for kvf_tcp_payload_end(). NULL: nowhere. */
kvf_tcp_payload kvf_tcp_payload_of(kvf_tcp_memory *memory, const kvf_chunk *chunk, uint64_t bytes);
/* From here on nothing of it is read or written. May be called again. */
void kvf_tcp_payload_end(kvf_tcp *tcp, kvf_tcp_payload *payload);
/* The data thread waits for these epoll events of the descriptor, 0: for none. False: errno. */
KVF_MUST_USE bool kvf_tcp_watch(kvf_tcp *tcp, int fd, kvf_tcp_source *source, uint32_t events);
/* Takes the stream's socket off what is waited for, and closes it: see kvf_socket_close(). */
void kvf_tcp_close(kvf_tcp *tcp, kvf_tcp_stream *stream, kvf_tcp_source *source);
void kvf_tcp_description_code(kvf_codec *codec, kvf_tcp_description *description);
/* Stages a frame. False: there is no room for it now. */
bool kvf_tcp_stage_frame(kvf_tcp_stream *stream, kvf_frame_type type, const void *body, size_t body_bytes);
/* Reads what describe() of a peer's has written. KVF_PROTOCOL: malformed, or of another incarnation. */
KVF_MUST_USE kvf_status kvf_tcp_description_read(const void *data, size_t bytes, const kvf_incarnation *expected,
                                                 kvf_tcp_description *out);

#endif
