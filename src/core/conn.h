/* Control connections as the core sees them: an id, frames to send, an end. The runtime owns the sockets.
 *
 * A connection belongs to a session (accepted) or to a peer (dialed). Its owner ends it with kvf_conns_hang_up(). The
 * connection stays until the runtime has taken its last bytes and closed the socket.
 */
#ifndef KVF_CORE_CONN_H
#define KVF_CORE_CONN_H

#include "base/list.h"
#include "core/hash.h"
#include "wire/frame.h"

/* Of frames that a connection has still to send: a peer that asks without reading answers must not use memory. */
#define KVF_OUTBOX_BYTES_MAX ((size_t)1024 * 1024)

typedef struct kvf_session kvf_session;
typedef struct kvf_peer kvf_peer;

typedef struct kvf_conn {
  uint64_t id; /* never used again */
  UT_hash_handle by_id;
  struct kvf_conns *conns;
  kvf_list output; /* in kvf_conns.output while there is something to do */
  uint8_t *outbox; /* the frames that it has still to send */
  size_t outbox_bytes;
  size_t outbox_capacity;
  kvf_session *session; /* exactly one owner, none once it hangs up */
  kvf_peer *peer;
  bool is_trusted; /* the other side has proved the key, and may send bodies of KVF_FRAME_BODY_BYTES_MAX */
  bool hanging_up;
} kvf_conn;

typedef struct kvf_conns {
  kvf_conn *by_id;
  kvf_list output;
  uint64_t next_id;
} kvf_conns;

void kvf_conns_init(kvf_conns *conns);
void kvf_conns_free(kvf_conns *conns);

/* A new connection with an id of its own; NULL if there is no memory. */
kvf_conn *kvf_conns_add(kvf_conns *conns);
kvf_conn *kvf_conns_find(kvf_conns *conns, uint64_t id);

/* The owner lets go: what is in the outbox is still sent, then the socket is closed. */
void kvf_conns_hang_up(kvf_conn *conn);

/* The socket is closed already: forgets the connection. The owner must have let go. */
void kvf_conns_drop(kvf_conn *conn);

/* Begins a frame: *body points to room for `body_bytes_max` bytes. Hang up on KVF_LIMIT, the other side does not read,
 * and on KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_conn_frame_begin(kvf_conn *conn, size_t body_bytes_max, uint8_t **body);
/* Ends the frame that was begun: it is sent. */
void kvf_conn_frame_end(kvf_conn *conn, kvf_frame_type type, size_t body_bytes);
/* Both, for a body that is there already. */
KVF_MUST_USE kvf_status kvf_conn_send(kvf_conn *conn, kvf_frame_type type, const uint8_t *body, size_t body_bytes);

/* The next connection with work, NULL if there is none. The runtime takes the bytes of its outbox, closes the socket if
 * it is hanging up, and calls kvf_conns_taken(). */
kvf_conn *kvf_conns_next_output(kvf_conns *conns);
/* For kvf_core_check(). Returns how many have an owner. */
uint32_t kvf_conns_check(const kvf_conns *conns);

/* Everything has been handed to the socket's owner; a connection that hangs up is dropped. */
void kvf_conns_taken(kvf_conn *conn);

#endif
