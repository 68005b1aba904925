/* The whole tcp transport in the fuzzer's thread: its data thread's loop runs as ever, and where it would wait for
 * events the target does the next thing on its tape. Sockets are pairs, time is a number. The calls that make it so are
 * replaced (`wrap` in meson.build): epoll_wait, pthread_create, pthread_join, clock_gettime, and the transport's own
 * kvf_socket_listen_first, kvf_socket_accept, kvf_socket_connect. */
#ifndef KVF_TESTS_FUZZ_TCP_WORLD_H
#define KVF_TESTS_FUZZ_TCP_WORLD_H

#include "fuzz.h"
#include "transport/tcp/tcp_common.h"
#include "wire/data_message.h"
#include "wire/frame.h"

#define TCP_ENDS_MAX 6
#define TCP_FRAME_BYTES_MAX 4096 /* that the transport sends */
#define TCP_REGIONS 3            /* two of group 0, one of group 1 */
#define TCP_BLOCKS 8
#define TCP_BLOCK_BYTES 128u
#define TCP_STRIDE_BYTES 160u
#define TCP_HEADS 2u
#define TCP_SLOTS 4
#define TCP_SESSION_ID 77

/* The other end of a connection of the transport's. */
typedef struct tcp_end {
  int fd;                                /* ours; -1: not in use */
  int product_fd;                        /* theirs, while they have it */
  bool is_deaf;                          /* reads nothing for now */
  bool is_closed;                        /* the transport has closed it; what it had sent has been read */
  uint8_t received[TCP_FRAME_BYTES_MAX]; /* a part of a frame */
  size_t received_bytes;
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
  void (*on_frame)(tcp_end *from, kvf_frame_type type, const uint8_t *body, size_t bytes);
  /* Takes what is in no frame, and says how much of it that was; NULL: all is in frames. */
  size_t (*on_payload)(tcp_end *from, const uint8_t *data, size_t bytes);
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
/* Encodes a message and gives it to `send`, which may be a function of the target's. */
#define TCP_SEND(send, end, type, name, message)                                                       \
  do {                                                                                                 \
    uint8_t encoded[KVF_DATA_HELLO_BYTES_MAX];                                                         \
    size_t encoded_bytes = 0;                                                                          \
    fuzz_check(kvf_data_##name##_encode(message, encoded, sizeof(encoded), &encoded_bytes) == KVF_OK); \
    send(end, type, encoded, encoded_bytes);                                                           \
  } while (0)
void tcp_hang_up(tcp_end *end);
/* The end of this connection of the transport's; NULL: none. */
tcp_end *tcp_end_of(int product_fd);

uint8_t tcp_pattern(uint32_t region, size_t offset);

#endif
