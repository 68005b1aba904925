/* What is always true of peers and their links: states against connections, timers, tables and those who wait. */
#include "core/peer.h"

#ifndef NDEBUG

#include <string.h>

#include "core/check_list.h"

static bool is_in_table(const kvf_peer_link *link)
{
  return link->state == KVF_LINK_WANTED || link->state == KVF_LINK_OPENING || link->state == KVF_LINK_UP;
}

static void check_link(const kvf_peers *peers, const kvf_peer *peer, const kvf_peer_link *link)
{
  kvf_breaker_check(&link->breaker);
  assert(link->peer == peer && link == &peer->links[link->transport]);
  assert(link->state == KVF_LINK_NONE || (link->link_id > 0 && link->link_id < peers->next_link_id));
  assert((link->open_by_ns != KVF_TIME_NEVER) == (link->state == KVF_LINK_OPENING));
  assert(link->state != KVF_LINK_OPENING || link->rails_up < peers->rails[link->transport]);
  assert(link->state != KVF_LINK_UP || link->rails_up == peers->rails[link->transport]);
  assert(!is_in_table(link) || peer->state == KVF_PEER_READY);
  assert(link->state != KVF_LINK_UP || kvf_breaker_allows(&link->breaker));
  assert(link->state != KVF_LINK_UP || link->unusable == KVF_OK);
  assert((link->state != KVF_LINK_WANTED && link->state != KVF_LINK_CLOSING) || kvf_list_is_linked(&peer->action));
  assert(peer->state != KVF_PEER_READY || peer->timer.expires_ns <= link->open_by_ns);
}

/* Nobody waits for what never comes. A peer whose key names no process is known by another one before it has links. */
static void check_waits(const kvf_peers *peers, const kvf_peer *peer)
{
  const kvf_incarnation nobody = {0};
  const bool is_busy = peer->state != KVF_PEER_IDLE && peer->state != KVF_PEER_READY;
  bool opens = false;
  for (uint32_t i = 0; i < peers->transports_count; i++) { /* the runtime has something to do, or is doing it */
    opens = opens || (peer->links[i].state != KVF_LINK_NONE && peer->links[i].state != KVF_LINK_UP);
  }
  assert(!peer->open.is_wanted || is_busy || peer->users == 0);
  assert(!peer->link.is_wanted || is_busy || (peer->state == KVF_PEER_READY && opens) || peer->users == 0);
  assert(!peer->slices.asked || peer->link.is_wanted || (peer->pending & 1u << KVF_PEER_LINK) != 0 ||
         memcmp(&peer->key.incarnation, &nobody, sizeof(nobody)) == 0);
  assert(peer->pending == 0 || kvf_list_is_linked(&peer->notice));
}

static void check_peer(const kvf_peers *peers, const kvf_peer *peer)
{
  const bool is_ready = peer->state == KVF_PEER_READY;
  kvf_breaker_check(&peer->breaker);
  assert((peer->conn != NULL) == (peer->state != KVF_PEER_IDLE));
  assert(peer->conn == NULL || (peer->conn->peer == peer && peer->conn->session == NULL));
  assert(peer->conn == NULL || !peer->conn->hanging_up);
  assert((peer->memory.welcome != NULL) == is_ready);
  assert(peer->gone == KVF_OK || peer->state == KVF_PEER_IDLE);
  assert(peer->answer_by_ns == KVF_TIME_NEVER || is_ready);
  assert(peer->state == KVF_PEER_IDLE || kvf_timer_is_armed(&peer->timer));
  assert(!is_ready || peer->timer.expires_ns <= peer->answer_by_ns);
  assert(!peer->dial.is_pending || (peer->conn != NULL && kvf_list_is_linked(&peer->action)));
  assert(!peer->dial.is_at_other || peer->dial.other.port != 0);
  assert(peer->guest.in_flight == 0 || is_ready || (peer->pending & 1u << KVF_PEER_CLOSED) != 0);
  assert(peer->stat.id < peers->next_id && peer->dial.id <= peers->next_id);
  check_waits(peers, peer);
}

uint32_t kvf_peers_check(const kvf_peers *peers, uint32_t *holds, uint32_t *reads)
{
  uint32_t known = 0;
  uint32_t conns = 0;
  uint32_t in_table = 0;
  uint32_t notices = 0;
  uint32_t actions = 0;
  uint32_t rail_reads = 0;
  for (const kvf_list *node = peers->used.next; node != &peers->used; node = node->next, known++) {
    const kvf_peer *peer = KVF_CONTAINER_OF(node, kvf_peer, used);
    check_peer(peers, peer);
    for (uint32_t i = 0; i < peers->transports_count; i++) {
      check_link(peers, peer, &peer->links[i]);
      in_table += is_in_table(&peer->links[i]);
    }
    conns += peer->conn != NULL;
    notices += kvf_list_is_linked(&peer->notice);
    actions += kvf_list_is_linked(&peer->action);
    *holds += peer->users;
    *reads += (uint32_t)peer->stat.reads_in_flight;
  }
  for (uint32_t i = 0; i < peers->transports_count * KVF_RAILS_MAX; i++) {
    rail_reads += peers->rail_reads[i / KVF_RAILS_MAX][i % KVF_RAILS_MAX];
  }
  assert(rail_reads == *reads);
  for (uint32_t i = 0; i < peers->static_count; i++) {
    *holds -= peers->static_peers[i].peer != NULL;
  }
  assert(known == HASH_CNT(by_key, peers->by_key) && known <= KVF_PEERS_MAX);
  assert(in_table == HASH_CNT(by_link_id, peers->by_link_id));
  assert(notices == kvf_check_list(&peers->notices));
  assert(actions == kvf_check_list(&peers->actions));
  return conns;
}

#endif
