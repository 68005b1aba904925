/* The producer's side of the tcp transport: what its files share. A connection proves the session's key first
 * (tcp_server.c), then asks for chunks (tcp_serve.c). All in the data thread.
 */
#ifndef KVF_TRANSPORT_TCP_SERVER_H
#define KVF_TRANSPORT_TCP_SERVER_H

#include "transport/tcp.h"
#include "wire/data_message.h"
#include "wire/frame.h"

/* A READ that has come and not been answered. */
typedef struct kvf_tcp_request {
  kvf_list in_requests;
  uint64_t read_id;
  kvf_lease lease;
  uint32_t head;
  uint32_t heads;
  bool cancelled;
  bool sums;
  uint32_t items_count;
  kvf_read_item items[];
} kvf_tcp_request;

typedef struct kvf_tcp_conn {
  kvf_tcp_source source;
  kvf_list in_conns; /* tcp->greeting, tcp->serving or tcp->retired */
  kvf_tcp_stream stream;
  kvf_address peer;
  bool is_trusted;      /* it has proved its key */
  bool is_full;         /* no READ more is taken until one has been answered */
  bool is_blocked;      /* there is more to send than the kernel, or this turn, takes */
  uint64_t deadline_ns; /* of the proof */
  uint64_t taken_ns;    /* when it last took some of its answers, or asked for the first */
  kvf_data_challenge challenge;

  kvf_list requests;
  uint32_t requests_count;
  uint32_t items_count;     /* of all requests */
  kvf_tcp_request *sending; /* out of `requests`; its payload, or its trailer, has not left */
  kvf_chunk chunk;          /* of `sending` */
  kvf_tcp_payload payload;
  uint64_t call_bytes; /* that the next system call sends of it at most */
} kvf_tcp_conn;

/* ---- tcp_server.c ---- */

/* Closes it, says why and has it counted (NULL: not worth either). It is freed at the end of the turn. False, for those
 * who say so of a connection that has been closed; likewise the next. */
bool kvf_tcp_conn_close(kvf_tcp *tcp, kvf_tcp_conn *conn, kvf_log_level level, kvf_status why, const char *message);
/* The kernel could not send or receive. */
bool kvf_tcp_conn_broken(kvf_tcp *tcp, kvf_tcp_conn *conn);

/* How long a proved connection may take nothing of its answers: by then a consumer has given its reads up. Half of what
 * its host may be silent for, since TCP_USER_TIMEOUT ends a connection with a full window too, and cannot say why. */
uint64_t kvf_tcp_stuck_ns(const kvf_tcp *tcp);

/* ---- tcp_serve.c. False: the connection has been closed. ---- */

KVF_MUST_USE bool kvf_tcp_on_read(kvf_tcp *tcp, kvf_tcp_conn *conn, const uint8_t *body, size_t body_bytes);
KVF_MUST_USE bool kvf_tcp_on_cancel(kvf_tcp *tcp, kvf_tcp_conn *conn, const uint8_t *body, size_t body_bytes);
/* Whether another READ can be taken. */
bool kvf_tcp_conn_has_room(const kvf_tcp_conn *conn);
/* Sends what there is to send, up to KVF_TCP_TURN_BYTES. */
KVF_MUST_USE bool kvf_tcp_serve(kvf_tcp *tcp, kvf_tcp_conn *conn);
void kvf_tcp_requests_free(kvf_tcp_conn *conn);

#endif
