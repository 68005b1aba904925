/* Peers: the dialing side. One peer is one life (incarnation) of one producer rank at one address. So a restarted
 * process is another peer with a new breaker: failures of the old process do not count against the new one.
 *
 * A node dials when a load wants a link, or a request has a message. After the handshake it opens links for loads: one
 * per common transport that serves both kinds of memory, best first. All retrying of connections is here: a failure
 * from kvf_peers_next_notice() is final for those that waited. The breakers of the control connection and of each link
 * decide whether another try makes sense. While a breaker is open, a probe runs in the background after each cooldown.
 * A try without an answer in time is repeated once before its breaker opens, because a queue on the way may have been
 * full. For a link this is done only if no other transport is left.
 *
 * A peer of two addresses is dialed at the address where it was reached last; at first this is the ticket's first
 * address. After a failure the other one is next. If a connection is refused (no route of this family, no listener),
 * the other address is dialed at once. If there is no answer, the second try goes to the other. So two addresses add
 * only the time of a refusal. Links use the address of the connection.
 */
#ifndef KVF_CORE_PEER_H
#define KVF_CORE_PEER_H

#include "base/options.h"
#include "base/wheel.h"
#include "core/breaker.h"
#include "core/conn.h"
#include "core/context.h"
#include "core/pool.h"
#include "kvferry/stats.h"
#include "plan/pages.h"
#include "wire/rails_description.h" /* KVF_RAILS_MAX */
#include "wire/rank_record.h"

#define KVF_PEERS_MAX 4096 /* known at once; unused ones make room, least recently used first */

typedef enum kvf_peer_state {
  KVF_PEER_IDLE,
  KVF_PEER_DIALING,
  KVF_PEER_WAIT_CHALLENGE,
  KVF_PEER_WAIT_WELCOME,
  KVF_PEER_READY
} kvf_peer_state;

typedef enum kvf_link_state {
  KVF_LINK_NONE,
  KVF_LINK_WANTED, /* the runtime has not taken the open yet */
  KVF_LINK_OPENING,
  KVF_LINK_UP,
  KVF_LINK_CLOSING /* the runtime has not taken the close yet */
} kvf_link_state;

typedef struct kvf_peer_link {
  kvf_link_state state;
  uint32_t link_id; /* the link's id: never used again */
  UT_hash_handle by_link_id;
  uint32_t transport;  /* index into the node's own list of transports */
  uint64_t open_by_ns; /* while OPENING: when that has failed; else KVF_TIME_NEVER */
  uint32_t rails_up;   /* of its transport's, those where its part is up */
  kvf_peer *peer;
  kvf_breaker breaker;
  bool is_second_try;  /* nobody has answered the first */
  kvf_status unusable; /* why this transport can never bring bytes from its memory into ours; KVF_OK while it might */
} kvf_peer_link;

/* What the loads that hold a peer share of it: theirs alone (load.c), but that peer.c notes that a pong has come. */
typedef struct kvf_peer_slices {
  kvf_list all;             /* slices of loads that still need it */
  kvf_list waiting;         /* those that wait for a link */
  bool asked;               /* kvf_peers_want_link() has not been answered yet */
  uint32_t stalled_link_id; /* the last one that was reported */
  uint64_t pings;           /* number of the last one */
  uint64_t answered;        /* the last one that was sent before the last pong */
  uint64_t pinged_ns;
} kvf_peer_slices;

/* What a guest keeps of a peer that it holds: its own (guest.h), but that peer.c tells when in_flight is in vain. */
typedef struct kvf_peer_guest {
  kvf_list due;       /* questions that wait for the connection, or for answers to others */
  kvf_list asked;     /* those that it has been sent */
  uint32_t in_flight; /* answers that are to come, also to those that nobody wants any more */
} kvf_peer_guest;

/* Somebody waits for it, or has been answered. */
typedef struct kvf_peer_wait {
  bool is_wanted;
  kvf_status status;
  uint32_t link_id; /* of a link */
} kvf_peer_wait;

/* One of a transport's rails. */
typedef struct kvf_rail {
  uint32_t transport;
  uint32_t index;
} kvf_rail;

typedef struct kvf_peer_key {
  kvf_address address;
  kvf_incarnation incarnation;
} kvf_peer_key;

/* How it is connected to, and where. */
typedef struct kvf_peer_dialing {
  kvf_address other;  /* of the other family, where the same process is; port 0: none is known */
  bool is_at_other;   /* where it is connected, or dialed next */
  bool has_turned;    /* from one address to the other, in this dial */
  bool is_second_try; /* nobody has answered the first dial */
  bool is_pending;    /* the runtime has not taken the DIAL yet */
  uint64_t id;        /* peers below it were known when it was last dialed */
  uint8_t hello[KVF_HELLO_BYTES_MAX];
} kvf_peer_dialing;

/* Its memory, as it was told last. */
typedef struct kvf_peer_memory {
  kvf_welcome *welcome; /* while READY */
  uint64_t generation;
  uint64_t given_up;    /* a generation that it has given up since it was told; 0: none */
  uint32_t stale_dials; /* links in a row that could not be made, since its memory was another one */
  uint32_t kinds;       /* of its regions, a bit for each kvf_memory_kind */
  kvf_rank_layout rank_layout;
} kvf_peer_memory;

struct kvf_peer {
  kvf_peer_key key;
  UT_hash_handle by_key;
  kvf_peer_state state;
  kvf_status gone;       /* KVF_PEER_RESTARTED: this incarnation can never serve us; KVF_OK while it might */
  kvf_incarnation named; /* of a peer whose key names none: who has answered */
  kvf_timer timer;
  kvf_list used;    /* in kvf_peers.used, least recently used first */
  uint64_t used_ns; /* last acquired or released */
  kvf_list action;  /* in kvf_peers.actions while the runtime has something to do */

  kvf_conn *conn;
  kvf_peer_dialing dial;
  kvf_breaker breaker;
  kvf_key session_key;
  uint64_t answer_by_ns; /* to a frame that calls for one; KVF_TIME_NEVER: nothing is awaited */
  kvf_peer_memory memory;
  kvf_peer_link links[KVF_TRANSPORTS_MAX];
  const char *said_transport; /* the last that the log has named; NULL: none */

  /* Who holds it, waits for it, and is told of it. */
  uint32_t users;     /* loads' slices, requests' ranks, and a guest's */
  kvf_peer_wait link; /* by loads: kvf_peers_want_link() */
  kvf_peer_wait open; /* by requests and a guest: kvf_peers_want_open() */
  kvf_list notice;    /* in kvf_peers.notices while it has a notice */
  uint32_t pending;   /* a bit for each kvf_peer_notice_kind that has not been taken yet */
  kvf_peer_slices slices;
  kvf_list due; /* requests' ranks that have something to say to it: theirs alone (attachment.c) */
  kvf_peer_guest guest;

  kvf_peer_stat stat; /* what is counted, for kvf_peers_describe(), which sets the rest; also by loads that hold it */
  uint64_t last_failure_ns;
};

typedef enum kvf_peer_action_kind { KVF_PEER_DIAL, KVF_PEER_OPEN_LINK, KVF_PEER_CLOSE_LINK } kvf_peer_action_kind;

/* What the runtime is to do. Pointers are good until the next call. */
typedef struct kvf_peer_action {
  kvf_peer_action_kind kind;
  uint64_t conn_id;    /* DIAL */
  kvf_address address; /* DIAL, OPEN_LINK */
  uint32_t link_id;    /* OPEN_LINK, CLOSE_LINK */
  uint32_t transport;  /* OPEN_LINK: index into the node's own list */
  kvf_incarnation incarnation;
  const kvf_key *session_key;
  const kvf_welcome *welcome; /* with the description of this transport */
} kvf_peer_action;

/* In the order in which a peer's are given: that a link has gone down is said before its successor is named. */
typedef enum kvf_peer_notice_kind {
  KVF_PEER_LINK_DOWN, /* some link is not up any more: no new reads on it; those in flight end by themselves */
  KVF_PEER_CLOSED,    /* the connection was lost on which answers to a guest were to come */
  KVF_PEER_NAMED,     /* one whose key names no incarnation has shown whose address it is: peer->named */
  KVF_PEER_OPEN,      /* an answer to kvf_peers_want_open(). KVF_OK: frames may be sent over peer->conn */
  KVF_PEER_LINK       /* an answer to kvf_peers_want_link() */
} kvf_peer_notice_kind;

typedef struct kvf_peer_notice {
  kvf_peer_notice_kind kind;
  kvf_peer *peer;
  uint32_t link_id;  /* LINK */
  kvf_status status; /* LINK, OPEN */
} kvf_peer_notice;

typedef struct kvf_peer_counters {
  uint64_t dials;
  uint64_t handshakes;
  uint64_t failures;
  uint64_t stalls;
  uint64_t fast_failures; /* refused because a breaker was open */
} kvf_peer_counters;

/* A peer that the node dials by itself (option peers). So the first request that needs it finds it connected, with a
 * transport's link up. Only its address is known. The first handshake tells which process answers there; after each
 * restart it is another one. */
typedef struct kvf_static_peer {
  char name[KVF_HOST_BYTES_MAX]; /* as the option has it */
  kvf_address address;
  kvf_peer *peer; /* which it holds, if any */
} kvf_static_peer;

typedef struct kvf_peers {
  kvf_context *context;
  const kvf_pool *pool; /* ours */
  kvf_peer *by_key;
  kvf_peer_link *by_link_id;
  kvf_list used; /* all of them */
  kvf_list actions;
  kvf_list notices;
  uint32_t next_link_id;
  uint64_t next_id;
  uint64_t next_ping;
  uint32_t transports_count;
  char transports[KVF_TRANSPORTS_MAX][KVF_TRANSPORT_NAME_BYTES];
  uint32_t unserved[KVF_TRANSPORTS_MAX]; /* kinds of memory, a bit for each, that it does not bring into ours */
  uint32_t rails[KVF_TRANSPORTS_MAX];    /* how many of it there are: a link has a part in each, and is up with all */
  uint32_t rail_reads[KVF_TRANSPORTS_MAX][KVF_RAILS_MAX]; /* in flight, of all links */
  bool is_control;                                        /* opens no links */
  bool has_requests;                                      /* attachment.c has held one */
  bool has_loads;                                         /* load.c has held one */
  kvf_timer static_timer;
  uint32_t static_count;
  kvf_static_peer static_peers[KVF_STATIC_PEERS_MAX];
  kvf_peer_counters counters;
} kvf_peers;

void kvf_peers_init(kvf_peers *peers, kvf_context *context, const kvf_pool *pool);
void kvf_peers_free(kvf_peers *peers);

/* This peer, known or new, for one user more. KVF_NO_RESOURCE: KVF_PEERS_MAX are in use. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_peers_acquire(kvf_peers *peers, const kvf_address *address,
                                          const kvf_incarnation *incarnation, kvf_peer **out);
/* kvf_peers_acquire() of a ticket's rank, which may have two addresses: one peer, found by either. */
KVF_MUST_USE kvf_status kvf_peers_acquire_rank(kvf_peers *peers, const kvf_rank_record *rank, kvf_peer **out);
void kvf_peers_release(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer);

/* A load waits for a link: one LINK notice follows, perhaps at once. */
void kvf_peers_want_link(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer);
/* A request or a guest waits for the control connection: one OPEN notice follows. Of a peer whose key names no
 * incarnation NAMED may come in its stead. */
void kvf_peers_want_open(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer);
/* Connects the peer, and on a rank node opens a link, although no load waits for it. Dials, or opens the best link, if
 * there is neither yet and no breaker is open. For a peer whose key names no incarnation (all zeros), only the name of
 * the answering process is wanted: NAMED follows. */
void kvf_peers_want_ready(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer);
/* A load's stall clock asks for a sign of life. Nothing happens without a connection. */
void kvf_peers_ping(kvf_peers *peers, kvf_peer *peer);
/* A load got no byte over this link. `silent`: the peer did not answer a ping either. */
void kvf_peers_link_stalled(kvf_peers *peers, uint64_t now_ns, uint32_t link_id, bool silent);

/* The peer has registered other memory than the link is for: all that its WELCOME says is given up, and asked again. */
void kvf_peers_link_is_stale(kvf_peers *peers, uint64_t now_ns, uint32_t link_id);
/* The node has memory, and is a control node no more: what its peers have told a control node is asked again. */
void kvf_peers_may_link(kvf_peers *peers, uint64_t now_ns);
/* Our memory goes, which all links were made for. No load is open. */
void kvf_peers_close_links(kvf_peers *peers);

/* kvf_node_peers() of kvferry/stats.h. */
size_t kvf_peers_describe(const kvf_peers *peers, uint64_t now_ns, kvf_peer_stat *out, size_t capacity);

/* A frame that calls for an answer went out: a peer that then says nothing for handshake_timeout_ms is down. */
void kvf_peers_await(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer);
/* A frame came that its reader could not decode. */
void kvf_peers_on_malformed(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer);
/* kvf_core_on_insecure(). */
void kvf_peers_on_insecure(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, const char *why);

/* Whether this link is up. */
bool kvf_peer_has_link(const kvf_peer *peer, uint32_t link_id);
/* A read begins over this link, on the rail that has the fewest; it has ended. */
kvf_rail kvf_peers_begin_read(kvf_peers *peers, uint32_t link_id);
void kvf_peers_end_read(kvf_peers *peers, kvf_rail rail);

/* What came of a DIAL; of an OPEN_LINK, or of its part in one rail; a link, or part, that was up has failed. Unknown
 * ids are ignored. */
void kvf_peers_on_dialed(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_status status);
void kvf_peers_on_link(kvf_peers *peers, uint64_t now_ns, uint32_t link_id, kvf_status status);
/* What its WELCOME says of this transport is malformed. The session is given up: no other attempt would find better in
 * its WELCOME. */
void kvf_peers_on_link_malformed(kvf_peers *peers, uint64_t now_ns, uint32_t link_id);
void kvf_peers_on_link_down(kvf_peers *peers, uint64_t now_ns, uint32_t link_id, kvf_status status);
/* A frame came on the peer's connection. Frames of requests (LEASE_STATES) and of a guest are the caller's: see
 * kvf_core. */
void kvf_peer_on_frame(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_frame_type type, const uint8_t *body,
                       size_t body_bytes);
void kvf_peer_on_closed(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer);
void kvf_peer_on_timer(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer);

KVF_MUST_USE bool kvf_peers_next_action(kvf_peers *peers, uint64_t now_ns, kvf_peer_action *out);
KVF_MUST_USE bool kvf_peers_next_notice(kvf_peers *peers, kvf_peer_notice *out);

/* For kvf_core_check(). Returns how many have a connection; adds to *holds those that are not static peers', and to
 * *reads those in flight. */
uint32_t kvf_peers_check(const kvf_peers *peers, uint32_t *holds, uint32_t *reads);

/* ---- static peers: kvf_static_peer ---- */

/* `name` is shorter than KVF_HOST_BYTES_MAX. KVF_LIMIT: more than KVF_STATIC_PEERS_MAX. */
KVF_MUST_USE kvf_status kvf_peers_add_static(kvf_peers *peers, const char *name, const kvf_address *address);
/* The i-th, as kvf_peers_acquire(): the process that is known there, else the peer whose key names none. */
KVF_MUST_USE kvf_status kvf_peers_acquire_static(kvf_peers *peers, uint32_t i, kvf_peer **out);
/* The node can load from now on, or a second has gone by: sees to it that each is connected, or will be. */
void kvf_peers_look_at_static(kvf_peers *peers, uint64_t now_ns);
/* The node can load no more. */
void kvf_peers_let_static_go(kvf_peers *peers, uint64_t now_ns);
/* KVF_PEER_NAMED came. */
void kvf_peers_on_named(kvf_peers *peers, uint64_t now_ns, const kvf_peer *peer);

#endif
