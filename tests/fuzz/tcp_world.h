/* The whole tcp transport in the fuzzer's thread: its data thread's loop runs as ever, and where it would wait for
 * events the target does the next thing on its tape. Sockets are pairs, time is a number. The calls that make it so are
 * replaced
 * (`wrap` in meson.build): epoll_wait, pthread_create, pthread_join, clock_gettime, and the transport's own
 * kvf_socket_listen, kvf_socket_accept, kvf_socket_connect. */
#ifndef KVF_TESTS_FUZZ_TCP_WORLD_H
#define KVF_TESTS_FUZZ_TCP_WORLD_H

#include "fuzz.h"
#include "transport/tcp/common.h"
#include "wire/frame.h"

#define TCP_ENDS_MAX 6
#define TCP_REGIONS 3 /* two of group 0, one of group 1 */
#define TCP_BLOCKS 8
#define TCP_BLOCK_BYTES 128u
#define TCP_STRIDE_BYTES 160u
#define TCP_HEADS 2u
#define TCP_SLOTS 4
#define TCP_SESSION_ID 77

/* The other end of a connection of the transport's. */
typedef struct tcp_end {
  int fd;         /* ours; -1: not in use */
  int product_fd; /* theirs, while they have it */
  bool is_deaf;   /* reads nothing for now */
  bool is_closed; /* the transport has closed it; what it had sent has been read */
} tcp_end;

typedef struct tcp_world {
  kvf_transport *transport;
  kvf_tcp *tcp;
  uint64_t now_ns;
  uint8_t memory[TCP_REGIONS][TCP_BLOCKS * TCP_STRIDE_BYTES];
  kvf_region regions[TCP_REGIONS];
  kvf_region_layout layouts[TCP_REGIONS];
  void *table;
  kvf_key session_key;
  tcp_end ends[TCP_ENDS_MAX];
  bool refuse_connects; /* those that the transport makes */

  /* The target's. turn(): the transport would wait; false: it is over, all links have been disconnected. `idle`:
   * nothing was there for it to do. */
  bool (*turn)(bool idle);
  void (*on_bytes)(tcp_end *from, const uint8_t *data, size_t bytes);
  /* The transport has connected: this is the other end. */
  void (*on_connect)(tcp_end *end);
} tcp_world;

extern tcp_world tcp;

/* Opens a transport (that listens, or not) with the memory registered, runs it until turn() ends it, closes it. `host`
 * needs read_done, read_progress, link_up, link_down and authorize. */
void tcp_world_run(bool listens, const kvf_transport_host *host);

/* Connects to the transport. NULL: all ends are in use. */
tcp_end *tcp_dial(void);
/* Sends what the kernel takes; returns how much that was. */
size_t tcp_send_bytes(tcp_end *end, const void *data, size_t bytes);
size_t tcp_send_frame(tcp_end *end, kvf_frame_type type, const void *body, size_t bytes);
void tcp_hang_up(tcp_end *end);
/* The end of this connection of the transport's; NULL: none. */
tcp_end *tcp_end_of(int product_fd);

uint8_t tcp_pattern(uint32_t region, size_t offset);

#endif
