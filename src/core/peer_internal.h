/* What the files of the peer machine share: peer.c (the table), peer_connect.c (connection and handshake), peer_link.c.
 */
#ifndef KVF_CORE_PEER_INTERNAL_H
#define KVF_CORE_PEER_INTERNAL_H

#include "core/peer.h"

/* Moves on whatever is wanted of the peer: dials, opens a link, or answers. */
void kvf_peer_advance(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer);
/* Arms the peer's timer for what comes next in its state. */
void kvf_peer_rearm(kvf_peers *peers, kvf_peer *peer, uint64_t now_ns);
/* Hangs up, takes its links down: the peer is IDLE. */
void kvf_peer_disconnect(kvf_peers *peers, kvf_peer *peer);
/* The connection has failed: hangs up, trips the breaker if the status says so, answers those who wait. */
void kvf_peer_fail(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_status status, const char *what);

/* Counts a failure of a connection or link. */
void kvf_peer_count_failure(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_status status);

/* Whether the path may be tried for somebody who waits; he is the probe if one is due. Links have no other probe, since
 * a load has other links to go on with; a peer is also probed by its timer, until it has been unused for long. */
bool kvf_peer_may_try(kvf_breaker *breaker, uint64_t now_ns);

/* Answers the load or request that waits, if one does. */
void kvf_peer_answer_path(kvf_peers *peers, kvf_peer *peer, uint32_t path, kvf_status status);
void kvf_peer_answer_open(kvf_peers *peers, kvf_peer *peer, kvf_status status);

/* READY and a path is wanted: answers it, or opens the best link that is left to try. */
void kvf_peer_choose_link(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer);
/* Takes a link down: its path is told down, the runtime is told to close it. */
void kvf_peer_drop_link(kvf_peers *peers, kvf_peer_link *link);

#endif
