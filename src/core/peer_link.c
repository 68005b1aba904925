#include <string.h>

#include "core/peer_internal.h"

static bool offers(const kvf_peer *peer, const char *transport)
{
  for (uint32_t i = 0; i < peer->welcome->transports_count; i++) {
    if (strcmp(peer->welcome->transports[i].name, transport) == 0) {
      return true;
    }
  }
  return false;
}

static void act(kvf_peers *peers, kvf_peer *peer)
{
  kvf_list_ensure_back(&peers->actions, &peer->action);
}

static bool want_link(kvf_peers *peers, kvf_peer *peer, kvf_peer_link *link)
{
  link->path = peers->next_path++;
  HASH_ADD(by_path, peers->by_path, path, sizeof(link->path), link);
  if (link->by_path.tbl == NULL) {
    return false;
  }
  link->state = KVF_LINK_WANTED;
  act(peers, peer);
  return true;
}

void kvf_peer_choose_link(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  kvf_status cause = KVF_TRANSFER_SETUP;
  for (uint32_t i = 0; i < peers->transports_count; i++) {
    kvf_peer_link *link = &peer->links[i];
    if (!offers(peer, peers->transports[i])) {
      continue;
    }
    if (link->unusable != KVF_OK) {
      cause = link->unusable;
      continue;
    }
    if (link->state == KVF_LINK_UP) {
      kvf_peer_answer_path(peers, peer, link->path, KVF_OK);
      return;
    }
    if (link->state != KVF_LINK_NONE) {
      return;
    }
    if (!kvf_peer_may_try(&link->breaker, now_ns)) {
      cause = kvf_breaker_cause(&link->breaker);
    } else if (want_link(peers, peer, link)) {
      return;
    } else {
      cause = KVF_NO_MEMORY;
    }
  }
  kvf_peer_answer_path(peers, peer, 0, cause);
}

void kvf_peer_drop_link(kvf_peers *peers, kvf_peer_link *link)
{
  kvf_peer *peer = link->peer;
  if (link->state == KVF_LINK_NONE || link->state == KVF_LINK_CLOSING) {
    return;
  }
  if (link->state == KVF_LINK_UP) {
    link->down_path = link->path;
    kvf_list_ensure_back(&peers->notices, &peer->notice);
  }
  HASH_DELETE(by_path, peers->by_path, link);
  link->state = link->state == KVF_LINK_WANTED ? KVF_LINK_NONE : KVF_LINK_CLOSING;
  act(peers, peer);
}

static kvf_peer_link *find(kvf_peers *peers, uint32_t path)
{
  kvf_peer_link *link;
  HASH_FIND(by_path, peers->by_path, &path, sizeof(path), link);
  return link;
}

/* What does not trip a breaker (a session that has just ended, no memory) must not be tried again at once either. */
static kvf_status breaker_cause(kvf_status status)
{
  return kvf_status_describe(status)->trips_breaker ? status : KVF_TRANSFER_SETUP;
}

static void give_up(kvf_peers *peers, uint64_t now_ns, kvf_peer_link *link, kvf_status status)
{
  kvf_peer_count_failure(peers, now_ns, link->peer, status);
  char address[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&link->peer->key.address, address);
  kvf_self_log(peers->self, now_ns, status, link->peer->index, KVF_LOG_WARN, "transport %s to %s failed: %s",
               peers->transports[link->transport], address, kvf_status_name(status));
  kvf_peer_drop_link(peers, link);
  kvf_peer_advance(peers, now_ns, link->peer);
}

void kvf_peers_on_link(kvf_peers *peers, uint64_t now_ns, uint32_t path, kvf_status status)
{
  kvf_peer_link *link = find(peers, path);
  if (link == NULL || link->state != KVF_LINK_OPENING) {
    return;
  }
  if (status == KVF_OK) {
    link->state = KVF_LINK_UP;
    kvf_breaker_succeed(&link->breaker);
    kvf_peer_advance(peers, now_ns, link->peer);
    return;
  }
  if (status == KVF_INCOMPATIBLE) {
    link->unusable = status; /* another layout: so it stays in the life of the peer's process */
  } else {
    kvf_breaker_fail(&link->breaker, now_ns, breaker_cause(status));
  }
  give_up(peers, now_ns, link, status);
}

void kvf_peers_on_link_malformed(kvf_peers *peers, uint64_t now_ns, uint32_t path)
{
  kvf_peer_link *link = find(peers, path);
  if (link != NULL && link->state == KVF_LINK_OPENING) {
    kvf_peer_fail(peers, now_ns, link->peer, KVF_PROTOCOL, "what it says of its transport is malformed");
  }
}

void kvf_peers_on_link_down(kvf_peers *peers, uint64_t now_ns, uint32_t path, kvf_status status)
{
  kvf_peer_link *link = find(peers, path);
  if (link != NULL && link->state == KVF_LINK_UP) {
    kvf_breaker_lose(&link->breaker, now_ns, breaker_cause(status));
    give_up(peers, now_ns, link, status);
  }
}

void kvf_peers_path_stalled(kvf_peers *peers, uint64_t now_ns, uint32_t path, bool silent)
{
  kvf_peer_link *link = find(peers, path);
  if (link == NULL) {
    return;
  }
  peers->counters.stalls++;
  if (silent) {
    kvf_peer_fail(peers, now_ns, link->peer, KVF_TRANSFER_STALLED, "no byte and no answer to a ping");
  } else {
    kvf_breaker_fail(&link->breaker, now_ns, KVF_TRANSFER_STALLED);
    give_up(peers, now_ns, link, KVF_TRANSFER_STALLED);
  }
}

static bool next_link_action(kvf_peers *peers, kvf_peer *peer, kvf_peer_link *link, kvf_peer_action *out)
{
  if (link->state == KVF_LINK_CLOSING) {
    link->state = KVF_LINK_NONE;
    *out = (kvf_peer_action){.kind = KVF_PEER_CLOSE_LINK, .path = link->path};
    return true;
  }
  if (link->state == KVF_LINK_WANTED) {
    link->state = KVF_LINK_OPENING;
    *out = (kvf_peer_action){.kind = KVF_PEER_OPEN_LINK,
                             .path = link->path,
                             .transport = link->transport,
                             .address = peer->key.address,
                             .incarnation = peer->key.incarnation,
                             .session_key = &peer->session_key,
                             .welcome = peer->welcome};
    return true;
  }
  (void)peers;
  return false;
}

bool kvf_peers_next_action(kvf_peers *peers, uint64_t now_ns, kvf_peer_action *out)
{
  while (!kvf_list_is_empty(&peers->actions)) {
    kvf_peer *peer = KVF_CONTAINER_OF(peers->actions.next, kvf_peer, action);
    if (peer->dial_pending) {
      peer->dial_pending = false;
      *out = (kvf_peer_action){.kind = KVF_PEER_DIAL, .conn_id = peer->conn->id, .address = peer->key.address};
      return true;
    }
    for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
      if (next_link_action(peers, peer, &peer->links[i], out)) {
        if (out->kind == KVF_PEER_CLOSE_LINK) {
          kvf_peer_advance(peers, now_ns, peer); /* a load may be waiting to open it again */
        }
        return true;
      }
    }
    kvf_list_remove(&peer->action);
  }
  return false;
}
