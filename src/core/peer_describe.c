/* Peers as a list for people and metrics. */
#include <string.h>

#include "base/time.h"
#include "core/peer.h"

static kvf_path_stat path_of(const char *name, const kvf_breaker *breaker, bool up)
{
  return (kvf_path_stat){.name = name, .breaker = breaker->state, .cause = kvf_breaker_cause(breaker), .up = up};
}

static void describe_paths(const kvf_peers *peers, const kvf_peer *peer, kvf_peer_stat *out)
{
  out->paths[out->paths_count++] = path_of("control", &peer->breaker, peer->state == KVF_PEER_READY);
  for (uint32_t i = 0; i < peers->transports_count && !peers->is_control; i++) {
    const kvf_peer_link *link = &peer->links[i];
    out->paths[out->paths_count++] = path_of(peers->transports[i], &link->breaker, link->state == KVF_LINK_UP);
  }
}

static void describe(const kvf_peers *peers, uint64_t now_ns, const kvf_peer *peer, kvf_peer_stat *out)
{
  const kvf_load_tally *tally = &peer->tally;
  *out = (kvf_peer_stat){.id = peer->id,
                         .gone = peer->gone,
                         .users = peer->users,
                         .reads_in_flight = tally->reads_in_flight,
                         .handshakes = peer->handshakes,
                         .connection_failures = peer->failures,
                         .chunks = tally->chunks,
                         .bytes = tally->bytes,
                         .blocks = tally->blocks,
                         .retries = tally->retries,
                         .stalls = tally->stalls,
                         .last_failure = tally->last_failure};
  kvf_address_format(&peer->key.address, out->address);
  memcpy(out->loads, tally->loads, sizeof(out->loads));
  if (peer->users == 0) {
    out->idle_ms = kvf_time_until(peer->used_ns, now_ns) / KVF_NS_PER_MS;
  }
  if (tally->last_failure != KVF_OK) {
    out->last_failure_age_ms = kvf_time_until(tally->last_failure_ns, now_ns) / KVF_NS_PER_MS;
  }
  describe_paths(peers, peer, out);
}

size_t kvf_peers_describe(const kvf_peers *peers, uint64_t now_ns, kvf_peer_stat *out, size_t capacity)
{
  const uint64_t idle_ns = kvf_ms_to_ns(peers->self->config.idle_timeout_ms);
  const size_t most = capacity < KVF_PEERS_LISTED_MAX ? capacity : KVF_PEERS_LISTED_MAX;
  size_t count = 0;
  for (const kvf_list *node = peers->used.prev; node != &peers->used && count < most; node = node->prev) {
    const kvf_peer *peer = KVF_CONTAINER_OF(node, kvf_peer, used);
    if (peer->users > 0 || now_ns < kvf_time_add(peer->used_ns, idle_ns)) {
      describe(peers, now_ns, peer, &out[count++]);
    }
  }
  return count;
}
