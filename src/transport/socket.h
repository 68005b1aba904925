/* TCP sockets as kvferry uses them: non-blocking, close-on-exec, without Nagle's delay. Used by the tcp transport's
 * data connections and by the runtime's control connections.
 *
 * Addresses are kvf_address values; an IPv4 address (its mapped form) always gets an IPv4 socket, so that machines
 * without IPv6 serve. Functions keep no state; any thread. Only kvf_address_resolve() may block, and only for a name.
 */
#ifndef KVF_TRANSPORT_SOCKET_H
#define KVF_TRANSPORT_SOCKET_H

#include <stdbool.h>
#include <sys/socket.h>

#include "kvferry/types.h"
#include "wire/address.h"

/* A peer whose host has vanished (no power, no network) sends no end. The kernel gives a connection up if the other
 * host has sent no answer for so many handshake timeouts, neither to bytes nor to probes. That is long after kvferry's
 * own clocks have ended the work that waits for the peer. It is much sooner than idle_timeout_ms, or the two hours of
 * the kernel. */
#define KVF_SOCKET_PATIENCE_HANDSHAKES 10
#define KVF_SOCKET_PATIENCE_MS_MIN 3000 /* so that a few lost packets in a row are no vanished host */
#define KVF_SOCKET_PROBES 4             /* in the second half of that time */

uint32_t kvf_socket_patience_ms(uint32_t handshake_timeout_ms);

/* As kvf_address_parse(), port 0 where none is given, and HOST may also be a name that the system can resolve. Where
 * others are to connect to `listener` (else NULL), it is one of a family that that serves, if the name has one. On
 * failure *out is unchanged and `message` (KVF_MESSAGE_BYTES_MAX bytes) says what is wrong with the text. KVF_INVALID.
 */
KVF_MUST_USE kvf_status kvf_address_resolve(const char *text, const kvf_address *listener, kvf_address *out,
                                            char *message);

/* Returns the length to pass on. */
socklen_t kvf_address_to_sockaddr(const kvf_address *address, struct sockaddr_storage *out);
/* False: neither IPv4 nor IPv6. */
KVF_MUST_USE bool kvf_address_from_sockaddr(const struct sockaddr_storage *from, kvf_address *out);

/* Listens, with as many that wait to be accepted as the system allows. *bound is the address with the port that the
 * system chose if address->port is 0. The descriptor is the caller's. On failure *out_fd is -1 and `message` names the
 * address and what to change. KVF_ADDRESS_IN_USE: another socket listens there, or the address is not this machine's.
 * KVF_SYSTEM: the rest. */
KVF_MUST_USE kvf_status kvf_socket_listen(const kvf_address *address, uint32_t handshake_timeout_ms, int *out_fd,
                                          kvf_address *bound, char *message);

/* The same at the first port that is free, from address->port to `last`; 0: at that of the address alone.
 * KVF_ADDRESS_IN_USE: none of them is, and `message` is about the last. */
KVF_MUST_USE kvf_status kvf_socket_listen_first(const kvf_address *address, uint16_t last,
                                                uint32_t handshake_timeout_ms, int *out_fd, kvf_address *bound,
                                                char *message);

/* Takes one waiting connection; `peer` tells whose. -1 with errno, as accept4() does: EAGAIN: none is waiting;
 * ECONNABORTED: that of `peer` was reset before its turn came: go on with the next. */
int kvf_socket_accept(int listener, kvf_address *peer);

/* Begins to connect: wait until the descriptor is writable, then ask kvf_socket_error(). buffer_bytes: size of the
 * kernel's buffers, 0 leaves them to the kernel. -1 with errno: it failed at once. */
int kvf_socket_connect(const kvf_address *peer, uint32_t handshake_timeout_ms, uint32_t buffer_bytes);

/* Ends the connection, or the listening, and closes the descriptor. A child that was spawned and has not called exec()
 * holds a copy of the descriptor (see own_fds.h). The other side sees the end in spite of it. Such a copy also keeps an
 * epoll watch alive: remove the watch first. */
void kvf_socket_close(int fd);

/* Closing the descriptor then drops unsent bytes, and the other side gets a reset at once. For a reader that takes no
 * bytes: else the kernel would keep its bytes, and the end would wait behind them. */
void kvf_socket_drop_unsent(int fd);

/* The descriptor's pending error, 0 if none. */
int kvf_socket_error(int fd);

/* Sets both kernel buffers; 0 leaves them as they are. A refusal of the kernel's is no error. */
void kvf_socket_set_buffers(int fd, uint32_t bytes);

#endif
