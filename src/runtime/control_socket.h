/* One control connection: a non-blocking socket with what has been read of a frame and what is still to be written. */
#ifndef KVF_RUNTIME_CONTROL_SOCKET_H
#define KVF_RUNTIME_CONTROL_SOCKET_H

#include "core/core.h"
#include "transport/tls.h"

/* What may wait to be written; a peer that does not read so much is hung up on. */
#define KVF_CONTROL_UNSENT_BYTES_MAX (2 * KVF_OUTBOX_BYTES_MAX)

typedef struct kvf_control_socket {
  uint64_t conn_id;
  UT_hash_handle by_id;
  int fd;
  kvf_tls *tls; /* NULL: frames go by as they are */
  bool connecting;
  bool heard;  /* something has come */
  bool broken; /* to be closed at the end of the turn */
  bool unread; /* because its peer does not read */
  bool let_go; /* the core has let go of it already */
  bool writable_wanted;
  uint8_t *in;
  size_t in_bytes;
  size_t in_capacity;
  uint8_t *out;
  size_t out_first;
  size_t out_bytes;
  size_t out_capacity;
} kvf_control_socket;

kvf_control_socket *kvf_control_socket_new(uint64_t conn_id, int fd, bool connecting);
/* Before the first byte. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_control_socket_secure(kvf_control_socket *socket, const kvf_tls_context *context);
/* Closes the descriptor. */
void kvf_control_socket_free(kvf_control_socket *socket);

/* Keeps a copy of the bytes to be written. KVF_LIMIT: the peer does not read. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_control_socket_queue(kvf_control_socket *socket, const void *data, size_t bytes);
/* Writes what the kernel takes. KVF_PEER_DOWN: the connection is gone. */
KVF_MUST_USE kvf_status kvf_control_socket_flush(kvf_control_socket *socket);
/* Reads what has come, up to one buffer. KVF_PEER_DOWN: closed or broken. KVF_NOT_FOUND: nothing there. */
KVF_MUST_USE kvf_status kvf_control_socket_fill(kvf_control_socket *socket);
/* Whether something has come that the descriptor does not tell of any more: fill again. */
bool kvf_control_socket_holds_more(const kvf_control_socket *socket);
/* Whether anything is to be written, and whether that waits for the descriptor: not while it is the peer's turn in a
 * handshake. */
bool kvf_control_socket_has_unsent(const kvf_control_socket *socket);
bool kvf_control_socket_waits_to_send(const kvf_control_socket *socket);
/* Why the two sides do not come together in TLS; "" they do, or nobody speaks it. */
const char *kvf_control_socket_why(const kvf_control_socket *socket);
/* The next whole frame in what has been read: *type, *body, *body_bytes, good until the next fill or drop.
 * KVF_NOT_FOUND: not whole yet. KVF_PROTOCOL: not a frame, or larger than `limit`. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_control_socket_frame(kvf_control_socket *socket, size_t limit, kvf_frame_type *type,
                                                 const uint8_t **body, size_t *body_bytes);
/* The frame has been used. */
void kvf_control_socket_drop_frame(kvf_control_socket *socket, size_t body_bytes);

#endif
