/* Peers that the node dials on its own (option peers), so that the first request which needs one finds it connected,
 * with a transport's link up. It knows only their addresses: the first handshake tells which process answers there, and
 * after each restart another one does.
 */
#ifndef KVF_CORE_KNOWN_H
#define KVF_CORE_KNOWN_H

#include "base/options.h"
#include "core/peer.h"

typedef struct kvf_known_peer {
  kvf_address address;
  uint32_t peer; /* which it holds */
  bool held;
} kvf_known_peer;

typedef struct kvf_known {
  kvf_peers *peers;
  kvf_wheel *wheel;
  kvf_timer timer;
  uint32_t count;
  kvf_known_peer entries[KVF_KNOWN_PEERS_MAX];
} kvf_known;

void kvf_known_init(kvf_known *known, kvf_peers *peers, kvf_wheel *wheel);
/* KVF_LIMIT: more than KVF_KNOWN_PEERS_MAX. */
KVF_MUST_USE kvf_status kvf_known_add(kvf_known *known, const kvf_address *address);
/* The node can load from now on, or not any more. */
void kvf_known_start(kvf_known *known, uint64_t now_ns);
void kvf_known_stop(kvf_known *known, uint64_t now_ns);
/* KVF_PEER_NAMED came. */
void kvf_known_on_named(kvf_known *known, uint64_t now_ns, uint32_t peer);
void kvf_known_on_timer(kvf_known *known, uint64_t now_ns);

#endif
