/* The producer's side of the tcp transport. A connection proves the session's key first, then asks for chunks. All in
 * the data thread.
 */
#ifndef KVF_TRANSPORT_TCP_SERVER_H
#define KVF_TRANSPORT_TCP_SERVER_H

#include "transport/tcp/tcp_common.h"
#include "wire/data_message.h"

/* A READ that has come and not been answered. */
typedef struct kvf_tcp_request {
  kvf_list in_requests;
  bool cancelled;
  kvf_read_selection selection;
  kvf_transfer transfer;
  kvf_transfer_item items[]; /* its own */
} kvf_tcp_request;

typedef struct kvf_tcp_conn {
  kvf_tcp_source source;
  kvf_list in_conns;      /* tcp->greeting, tcp->serving or tcp->retired */
  kvf_crowd_member place; /* tcp->strangers, tcp->proved or nowhere */
  kvf_tcp_stream stream;
  kvf_address peer;
  bool is_trusted;      /* it has proved its key, */
  uint64_t generation;  /* and is for this memory */
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

void kvf_tcp_server_init(kvf_tcp *tcp);
/* EPOLLIN: for who wants to connect, at each address; 0: for nobody. False: the system does not. */
KVF_MUST_USE bool kvf_tcp_watch_listeners(kvf_tcp *tcp, uint32_t events);
/* Closes connections that were too slow to prove their key, or to take what they asked for. Returns when to call again.
 */
uint64_t kvf_tcp_server_tick(kvf_tcp *tcp);
/* The memory goes away: connections that have something of it left to send are closed. */
void kvf_tcp_server_clear(kvf_tcp *tcp);
/* Frees the connections that were closed since; not while events of epoll's are being looked at. */
void kvf_tcp_server_reap(kvf_tcp *tcp);
void kvf_tcp_server_close(kvf_tcp *tcp);

/* How long a proved connection may take nothing of its answers: by then a consumer has given its reads up. Half of what
 * its host may be silent for, since TCP_USER_TIMEOUT ends a connection with a full window too, and cannot say why. */
uint64_t kvf_tcp_stuck_ns(const kvf_tcp *tcp);

#endif
