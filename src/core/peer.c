#include "core/peer.h"

#include <stdlib.h>
#include <string.h>

#include "core/peer_internal.h"
#include "wire/ping_message.h"

kvf_status kvf_peers_init(kvf_peers *peers, kvf_self *self, kvf_conns *conns, kvf_wheel *wheel)
{
  *peers = (kvf_peers){.self = self, .conns = conns, .wheel = wheel, .next_path = 1, .next_id = 1};
  kvf_list_init(&peers->used);
  kvf_list_init(&peers->actions);
  kvf_list_init(&peers->notices);
  peers->table = calloc(KVF_PEERS_MAX, sizeof(kvf_peer *));
  if (peers->table == NULL) {
    return KVF_NO_MEMORY;
  }
  return KVF_OK;
}

static void forget(kvf_peers *peers, kvf_peer *peer)
{
  kvf_peer_disconnect(peers, peer);
  kvf_wheel_disarm(peers->wheel, &peer->timer);
  kvf_list_remove(&peer->used);
  kvf_list_remove(&peer->action);
  kvf_list_remove(&peer->notice);
  HASH_DELETE(by_key, peers->by_key, peer);
  peers->table[peer->index] = NULL;
  peers->count--;
  kvf_forget(&peer->session_key, sizeof(peer->session_key));
  free(peer);
}

void kvf_peers_free(kvf_peers *peers)
{
  for (uint32_t i = 0; peers->table != NULL && i < KVF_PEERS_MAX; i++) {
    if (peers->table[i] != NULL) {
      forget(peers, peers->table[i]);
    }
  }
  free(peers->table);
  peers->table = NULL;
}

/* A peer may go once nobody uses it and the runtime knows of nothing that is still open. */
static bool is_forgettable(const kvf_peer *peer)
{
  if (peer->users > 0) {
    return false;
  }
  for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
    if (peer->links[i].state != KVF_LINK_NONE && peer->links[i].state != KVF_LINK_WANTED) {
      return false;
    }
  }
  return true;
}

static bool make_room(kvf_peers *peers)
{
  for (kvf_list *node = peers->used.next; node != &peers->used; node = node->next) {
    kvf_peer *peer = KVF_CONTAINER_OF(node, kvf_peer, used);
    if (is_forgettable(peer)) {
      forget(peers, peer);
      return true;
    }
  }
  return false;
}

static uint32_t free_index(const kvf_peers *peers)
{
  uint32_t index = 0;
  while (peers->table[index] != NULL) {
    index++;
  }
  return index;
}

static kvf_peer *add_peer(kvf_peers *peers, const kvf_peer_key *key)
{
  if (peers->count == KVF_PEERS_MAX && !make_room(peers)) {
    return NULL;
  }
  kvf_peer *peer = calloc(1, sizeof(*peer));
  if (peer == NULL) {
    return NULL;
  }
  const kvf_config *config = &peers->self->config;
  uint64_t cooldown_ns = kvf_ms_to_ns(config->breaker_cooldown_ms);
  uint64_t cooldown_max_ns = kvf_ms_to_ns(config->breaker_cooldown_max_ms);
  memcpy(&peer->key, key, sizeof(*key));
  kvf_breaker_init(&peer->breaker, cooldown_ns, cooldown_max_ns);
  for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
    peer->links[i].peer = peer;
    peer->links[i].transport = i;
    kvf_breaker_init(&peer->links[i].breaker, cooldown_ns, cooldown_max_ns);
  }
  kvf_timer_init(&peer->timer, KVF_TIMER_PEER);
  kvf_list_init(&peer->used);
  kvf_list_init(&peer->action);
  kvf_list_init(&peer->notice);
  HASH_ADD(by_key, peers->by_key, key, sizeof(peer->key), peer);
  if (peer->by_key.tbl == NULL) {
    free(peer);
    return NULL;
  }
  peer->id = peers->next_id++;
  peer->index = free_index(peers);
  peers->table[peer->index] = peer;
  peers->count++;
  kvf_list_push_back(&peers->used, &peer->used);
  return peer;
}

kvf_status kvf_peers_acquire(kvf_peers *peers, const kvf_peer_key *key, uint32_t *index)
{
  kvf_peer_key clean; /* hashed as bytes: without what padding may hold */
  memset(&clean, 0, sizeof(clean));
  memcpy(clean.address.ip, key->address.ip, sizeof(clean.address.ip));
  clean.address.port = key->address.port;
  clean.incarnation = key->incarnation;
  kvf_peer *peer;
  HASH_FIND(by_key, peers->by_key, &clean, sizeof(clean), peer);
  if (peer == NULL) {
    peer = add_peer(peers, &clean);
  }
  if (peer == NULL) {
    return KVF_NO_MEMORY;
  }
  peer->users++;
  kvf_list_remove(&peer->used);
  kvf_list_push_back(&peers->used, &peer->used);
  *index = peer->index;
  return KVF_OK;
}

void kvf_peers_release(kvf_peers *peers, uint64_t now_ns, uint32_t index)
{
  kvf_peer *peer = peers->table[index];
  peer->users--;
  peer->used_ns = now_ns;
  if (!kvf_timer_is_armed(&peer->timer)) {
    kvf_peer_rearm(peers, peer, now_ns);
  }
}

void kvf_peers_want_path(kvf_peers *peers, uint64_t now_ns, uint32_t index)
{
  peers->table[index]->path_wanted = true;
  kvf_peer_advance(peers, now_ns, peers->table[index]);
}

void kvf_peers_want_open(kvf_peers *peers, uint64_t now_ns, uint32_t index)
{
  peers->table[index]->open_wanted = true;
  kvf_peer_advance(peers, now_ns, peers->table[index]);
}

kvf_conn *kvf_peers_conn(kvf_peers *peers, uint32_t index)
{
  kvf_peer *peer = peers->table[index];
  return peer->state == KVF_PEER_READY ? peer->conn : NULL;
}

void kvf_peers_await(kvf_peers *peers, uint64_t now_ns, uint32_t index)
{
  kvf_peer *peer = peers->table[index];
  if (peer->awaited_since_ns == 0) {
    peer->awaited_since_ns = now_ns == 0 ? 1 : now_ns;
    kvf_peer_rearm(peers, peer, now_ns);
  }
}

void kvf_peers_ping(kvf_peers *peers, uint64_t now_ns, uint32_t index)
{
  (void)now_ns;
  kvf_peer *peer = peers->table[index];
  uint8_t *body;
  size_t bytes = 0;
  kvf_ping ping = {.seq = ++peers->next_ping};
  if (peer->state == KVF_PEER_READY && kvf_conn_frame_begin(peer->conn, KVF_PING_BYTES_MAX, &body) == KVF_OK &&
      kvf_ping_encode(&ping, body, KVF_PING_BYTES_MAX, &bytes) == KVF_OK) {
    kvf_conn_frame_end(peers->conns, peer->conn, KVF_FRAME_PING, bytes);
  }
}

bool kvf_peers_next_notice(kvf_peers *peers, kvf_peer_notice *out)
{
  while (!kvf_list_is_empty(&peers->notices)) {
    kvf_peer *peer = KVF_CONTAINER_OF(peers->notices.next, kvf_peer, notice);
    *out = (kvf_peer_notice){.peer = peer->index};
    /* A path that has gone down is told before its successor. */
    for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
      if (peer->links[i].down_path != 0) {
        out->kind = KVF_PEER_PATH_DOWN;
        out->path = peer->links[i].down_path;
        peer->links[i].down_path = 0;
        return true;
      }
    }
    if (peer->ponged) {
      peer->ponged = false;
      out->kind = KVF_PEER_PONG;
      return true;
    }
    if (peer->open_answered) {
      peer->open_answered = false;
      out->kind = peer->open_status == KVF_OK ? KVF_PEER_OPENED : KVF_PEER_NOT_OPENED;
      out->status = peer->open_status;
      return true;
    }
    if (peer->path_answered) {
      peer->path_answered = false;
      out->kind = KVF_PEER_PATH;
      out->path = peer->answered_path;
      out->status = peer->path_status;
      return true;
    }
    kvf_list_remove(&peer->notice);
  }
  return false;
}
