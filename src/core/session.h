/* Sessions: the accepted side of control connections. A consumer's node says hello, both sides prove the key, then it
 * renews and finishes leases, asks a guest and pings. Nothing is told, allocated by its wish, or done before it has
 * proved the key.
 * Who says that it only checks (KVF_ROLE_CHECK) is told versions and transports, and may ping, no more.
 */
#ifndef KVF_CORE_SESSION_H
#define KVF_CORE_SESSION_H

#include "base/wheel.h"
#include "core/budget.h"
#include "core/conn.h"
#include "core/context.h"
#include "core/guest.h"
#include "core/lease_table.h"
#include "core/pool.h"
#include "wire/address.h"

/* Connections that have not proved the key: at most a quarter of connections_max, beyond connections_max. So they never
 * push out a connection that has proved it. */
#define KVF_SESSIONS_UNPROVEN_SHARE 4

/* What a node makes up in PONGs, for all who check it together; beyond it a PONG has no bytes. */
#define KVF_CHECK_BYTES_PER_S (64u << 20)

typedef enum kvf_session_state { KVF_SESSION_WAIT_HELLO, KVF_SESSION_WAIT_PROOF, KVF_SESSION_OPEN } kvf_session_state;

struct kvf_session {
  kvf_session_state state;
  kvf_conn *conn;
  kvf_address address;
  kvf_timer timer;
  kvf_crowd_member place; /* in kvf_sessions.unproven or .open */
  uint64_t id;
  UT_hash_handle by_id;  /* once open */
  const kvf_key *shared; /* the one of ours that its hello names */
  kvf_key key;           /* of this session */
  kvf_incarnation client;
  uint8_t role;
  uint16_t version;                   /* of the protocol, that both speak */
  kvf_budget guest_budget;            /* of questions to a guest: its own */
  uint8_t hello[KVF_HELLO_BYTES_MAX]; /* the bodies that the proofs are of have fixed lengths */
  uint8_t challenge[KVF_CHALLENGE_BYTES_MAX];
};

typedef struct kvf_session_counters {
  uint64_t accepted;
  uint64_t refused_key;
  uint64_t refused_incompatible;
  uint64_t timed_out;
  uint64_t abandoned; /* by their peer, before the handshake had ended, or begun */
  uint64_t evicted;
  uint64_t protocol_errors;
  uint64_t unread; /* their peer asked and asked, and did not read the answers */
} kvf_session_counters;

typedef struct kvf_sessions {
  kvf_context *context;
  const kvf_pool *pool;
  kvf_lease_table *leases;
  kvf_guest *guest;   /* NULL: none */
  kvf_session *by_id; /* the open ones */
  kvf_crowd unproven;
  kvf_crowd open;          /* least recently used first */
  kvf_budget check_budget; /* in bytes */
  kvf_session_counters counters;
  bool had_consumer; /* some session was another process's, and not to check only */
} kvf_sessions;

/* The pointers must outlive the sessions. */
void kvf_sessions_init(kvf_sessions *sessions, kvf_context *context, const kvf_pool *pool, kvf_lease_table *leases);
void kvf_sessions_free(kvf_sessions *sessions);

/* Ends the open sessions of rank nodes: what they were told of the memory is not true any more. They come again. */
void kvf_sessions_end_readers(kvf_sessions *sessions);

/* A connection from `address` was accepted, and is *conn_id from here. If too many have not proved the key, one of them
 * makes room: kvf_crowd_victim(). */
KVF_MUST_USE kvf_status kvf_sessions_accept(kvf_sessions *sessions, uint64_t now_ns, kvf_address address,
                                            uint64_t *conn_id);

/* One that came from this address was reset before it could be accepted. */
void kvf_sessions_on_reset(kvf_sessions *sessions, uint64_t now_ns, const kvf_address *from);

/* Something came, if not yet a frame. */
void kvf_session_on_heard(kvf_sessions *sessions, kvf_session *session);

/* A frame came. What does not follow the protocol ends the session. */
void kvf_session_on_frame(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns, kvf_frame_type type,
                          const uint8_t *body, size_t body_bytes);

/* What came is not a frame, or too large a one. Ends the session. */
void kvf_session_on_malformed(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns);
/* kvf_core_on_insecure(). */
void kvf_session_on_insecure(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns, const char *why);

/* The socket closed, or the session's timer went off. Frees the session. */
void kvf_session_on_closed(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns);
void kvf_session_on_timer(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns);
/* More waits to be sent to its peer than may. The session is as it was: its connection is about to be closed. */
void kvf_session_on_unread(kvf_sessions *sessions, const kvf_session *session, uint64_t now_ns);

/* For kvf_core_check(). Returns how many there are. */
uint32_t kvf_sessions_check(const kvf_sessions *sessions);

/* The key of an open session, for the data connections of its peer: false if there is none, or it only checks. */
bool kvf_sessions_key(const kvf_sessions *sessions, uint64_t session_id, kvf_key *out);

#endif
