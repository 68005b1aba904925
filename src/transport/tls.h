/* TLS 1.3 (RFC 8446) over one non-blocking TCP socket, with the shared key as an external PSK (RFC 9257) and a
 * Diffie-Hellman exchange. Before the first byte of ours, both sides have proved that they hold the key. No party
 * between them can read or alter a byte, and a party that learns the key later cannot read it either.
 *
 * The calls are those of a socket, with their errno. With a session, send and receive through it, and wait for the same
 * descriptor. One thread at a time for a session; a context may be used by several.
 */
#ifndef KVF_TRANSPORT_TLS_H
#define KVF_TRANSPORT_TLS_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "base/crypto.h"
#include "wire/address.h"

/* What may wait for the kernel to take it: before the other side has proved the key, and then. */
#define KVF_TLS_UNSENT_BYTES_FIRST (4u << 10)
#define KVF_TLS_UNSENT_BYTES_MAX (256u << 10)

typedef struct kvf_tls_context kvf_tls_context;
typedef struct kvf_tls kvf_tls;

/* A client offers the first of the keys, a server takes any. `count` is 1 to KVF_KEYS_MAX. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_tls_context_new(const kvf_key *keys, size_t count, kvf_tls_context **out);
/* After the last of its sessions. NULL is allowed. */
void kvf_tls_context_free(kvf_tls_context *context);

/* What a node's connections use: NULL no TLS, else with every peer that is not on loopback, or with every peer. */
typedef struct kvf_tls_use {
  kvf_tls_context *context;
  bool on_loopback;
} kvf_tls_use;

/* Both ends of a connection come to the same answer, if their options agree: what is dialled on loopback comes from
 * there. */
static inline bool kvf_tls_is_due(const kvf_tls_use *use, const kvf_address *peer)
{
  return use->context != NULL && (use->on_loopback || !kvf_address_is_loopback(peer));
}

/* A session over a connected socket, which stays the caller's; nothing is sent before the first call. A server's costs
 * a few bytes until its client has sent some. NULL: no memory. */
kvf_tls *kvf_tls_new(const kvf_tls_context *context, int fd, bool is_client);
/* NULL is allowed. */
void kvf_tls_free(kvf_tls *tls);

/* As sendmsg() and recvmsg() on a non-blocking socket, -1 with errno included. The first calls do the handshake and
 * end with EAGAIN until it is over. EPROTO: kvf_tls_why() says what is wrong with the other side; the session is of no
 * use any more. A send takes what it encrypts, whether or not the kernel does yet (kvf_tls_unsent_bytes()); it may be
 * called without bytes, to send that. A receive takes all that has come, up to what it was offered: after less than
 * that, wait for the descriptor. */
ssize_t kvf_tls_sendmsg(kvf_tls *tls, const struct msghdr *message);
ssize_t kvf_tls_recvmsg(kvf_tls *tls, const struct msghdr *message);

/* Received bytes that were not asked for, at most one record. The descriptor does not show them. The next receive takes
 * bytes only from these (EAGAIN: they are not a whole record). */
size_t kvf_tls_buffered_bytes(const kvf_tls *tls);

/* While there are any: wait until the descriptor takes more, then send. It is also what a handshake waits with. */
size_t kvf_tls_unsent_bytes(const kvf_tls *tls);

/* Whether a server's client has said anything. */
bool kvf_tls_has_heard(const kvf_tls *tls);

/* What went wrong, for a log line; "" if nothing did. Lives as long as the session. */
const char *kvf_tls_why(const kvf_tls *tls);

#endif
