/* Peers: dials, handshakes, links, breakers; and those that the option peers names. */
#include "core/peer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/time.h"
#include "core/states.h"
#include "wire/ping_message.h"

/* How often to look whether one has to be dialed again. What keeps failing is the breakers' matter. */
#define STATIC_LOOK_NS KVF_NS_PER_S
#define STALE_DIALS_MAX 8 /* of a peer that registers other memory as fast as it is asked; then it is lying */

/* ---- states ---- */

static const unsigned next_states[] = {
    [KVF_PEER_IDLE] = KVF_BIT(KVF_PEER_DIALING),
    [KVF_PEER_DIALING] = KVF_BIT(KVF_PEER_IDLE) | KVF_BIT(KVF_PEER_WAIT_CHALLENGE),
    [KVF_PEER_WAIT_CHALLENGE] = KVF_BIT(KVF_PEER_IDLE) | KVF_BIT(KVF_PEER_WAIT_WELCOME),
    [KVF_PEER_WAIT_WELCOME] = KVF_BIT(KVF_PEER_IDLE) | KVF_BIT(KVF_PEER_READY),
    [KVF_PEER_READY] = KVF_BIT(KVF_PEER_IDLE),
};

static const unsigned next_link_states[] = {
    [KVF_LINK_NONE] = KVF_BIT(KVF_LINK_WANTED),
    [KVF_LINK_WANTED] = KVF_BIT(KVF_LINK_NONE) | KVF_BIT(KVF_LINK_OPENING),
    [KVF_LINK_OPENING] = KVF_BIT(KVF_LINK_UP) | KVF_BIT(KVF_LINK_CLOSING),
    [KVF_LINK_UP] = KVF_BIT(KVF_LINK_CLOSING),
    [KVF_LINK_CLOSING] = KVF_BIT(KVF_LINK_NONE),
};

static void move(kvf_peer *peer, kvf_peer_state next)
{
  KVF_CHECK_MOVE(next_states, peer->state, next);
  peer->state = next;
}

static void move_link(kvf_peer_link *link, kvf_link_state next)
{
  KVF_CHECK_MOVE(next_link_states, link->state, next);
  link->state = next;
}

/* ---- those who wait, and the peer's timer ---- */

static void notify(kvf_peers *peers, kvf_peer *peer, kvf_peer_notice_kind kind)
{
  peer->pending |= 1u << kind;
  kvf_list_ensure_back(&peers->notices, &peer->notice);
}

/* Nothing happens if nobody waits. */
static void answer(kvf_peers *peers, kvf_peer *peer, kvf_peer_notice_kind kind, uint32_t link_id, kvf_status status)
{
  assert(kind == KVF_PEER_LINK || kind == KVF_PEER_OPEN);
  kvf_peer_wait *wait = kind == KVF_PEER_LINK ? &peer->link : &peer->open;
  if (wait->is_wanted) {
    *wait = (kvf_peer_wait){.link_id = link_id, .status = status};
    notify(peers, peer, kind);
  }
}

static void answer_all(kvf_peers *peers, kvf_peer *peer, kvf_status status)
{
  answer(peers, peer, KVF_PEER_LINK, 0, status);
  answer(peers, peer, KVF_PEER_OPEN, 0, status);
}

/* How long a handshake may take, and an answer. */
static uint64_t handshake_by_ns(const kvf_peers *peers, uint64_t now_ns)
{
  return kvf_time_add(now_ns, kvf_ms_to_ns(peers->context->config.handshake_timeout_ms));
}

static void rearm(kvf_peers *peers, kvf_peer *peer, uint64_t now_ns)
{
  uint64_t idle_ns = kvf_ms_to_ns(peers->context->config.idle_timeout_ms);
  uint64_t at = kvf_time_add(now_ns, idle_ns);
  if (peer->state == KVF_PEER_READY) {
    at = kvf_time_min(kvf_time_add(now_ns, idle_ns / 3), peer->answer_by_ns); /* for a ping, at the latest */
    for (uint32_t i = 0; i < peers->transports_count; i++) {
      at = kvf_time_min(at, peer->links[i].open_by_ns);
    }
  } else if (peer->state != KVF_PEER_IDLE) {
    at = handshake_by_ns(peers, now_ns);
  } else if (peer->gone == KVF_OK) {
    at = kvf_time_min(at, peer->breaker.probe_after_ns);
  }
  kvf_wheel_arm(&peers->context->wheel, &peer->timer, at);
}

/* ---- failures ---- */

static void act(kvf_peers *peers, kvf_peer *peer)
{
  kvf_list_ensure_back(&peers->actions, &peer->action);
}

/* Takes a link down: a notice says that its link is down, and an action closes it. */
static void drop_link(kvf_peers *peers, kvf_peer_link *link)
{
  kvf_peer *peer = link->peer;
  link->is_second_try = false;
  if (link->state == KVF_LINK_NONE || link->state == KVF_LINK_CLOSING) {
    return;
  }
  if (link->state == KVF_LINK_UP) {
    notify(peers, peer, KVF_PEER_LINK_DOWN);
  }
  /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): uthash finds the table that the link is in */
  HASH_DELETE(by_link_id, peers->by_link_id, link);
  move_link(link, link->state == KVF_LINK_WANTED ? KVF_LINK_NONE : KVF_LINK_CLOSING);
  link->open_by_ns = KVF_TIME_NEVER;
  act(peers, peer);
}

/* Hangs up, takes its links down: the peer is IDLE. */
static void disconnect(kvf_peers *peers, kvf_peer *peer)
{
  if (peer->guest.in_flight > 0 || !kvf_list_is_empty(&peer->guest.asked)) {
    notify(peers, peer, KVF_PEER_CLOSED);
  }
  for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
    drop_link(peers, &peer->links[i]);
  }
  if (peer->conn != NULL) {
    kvf_conns_hang_up(peer->conn);
    peer->conn = NULL;
  }
  if (peer->memory.welcome != NULL) {
    kvf_welcome_free(peer->memory.welcome);
    free(peer->memory.welcome);
    peer->memory.welcome = NULL;
  }
  peer->dial.is_pending = false;
  peer->dial.is_second_try = false;
  peer->dial.has_turned = false;
  peer->answer_by_ns = KVF_TIME_NEVER;
  if (peer->state != KVF_PEER_IDLE) {
    move(peer, KVF_PEER_IDLE);
  }
}

static void count_failure(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_status status)
{
  peers->counters.failures++;
  peer->stat.connection_failures++;
  peer->stat.last_failure = status;
  peer->last_failure_ns = now_ns;
}

/* Where it is connected, or dialed next. */
static const kvf_address *address_of(const kvf_peer *peer)
{
  return peer->dial.is_at_other ? &peer->dial.other : &peer->key.address;
}

/* To its other address, if it has one. */
static void turn(kvf_peer *peer)
{
  peer->dial.is_at_other = peer->dial.other.port != 0 && !peer->dial.is_at_other;
}

/* A peer that cannot be reached fails all nodes of an engine: the one that decides on its requests says so. What a peer
 * says amiss is one connection's. */
static kvf_log_level level_of(const kvf_peers *peers, kvf_status status)
{
  const bool is_of_all = kvf_status_describe(status)->lost == KVF_LOST_PEER && status != KVF_PROTOCOL;
  return is_of_all && peers->has_loads && !peers->has_requests ? KVF_LOG_DEBUG : KVF_LOG_WARN;
}

/* The connection has failed: hangs up, trips the breaker if the status says so, answers those who wait. */
static void fail(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_status status, const char *what)
{
  kvf_context_log(peers->context, now_ns, status, peer->stat.id, level_of(peers, status), "peer %s: %s: %s",
                  peer->stat.address, kvf_status_name(status), what);
  count_failure(peers, now_ns, peer, status);
  disconnect(peers, peer);
  turn(peer); /* a probe has one try */
  if (status == KVF_PEER_RESTARTED) {
    /* For ever: the proof covers the incarnation. A refusal it does not cover, nor the fields that are refused. */
    peer->gone = status;
  } else {
    kvf_breaker_fail(&peer->breaker, now_ns, status);
  }
  answer_all(peers, peer, status);
  rearm(peers, peer, now_ns);
}

/* ---- the table ---- */

void kvf_peers_init(kvf_peers *peers, kvf_context *context, const kvf_pool *pool)
{
  *peers = (kvf_peers){.context = context, .pool = pool, .next_link_id = 1, .next_id = 1};
  kvf_list_init(&peers->used);
  kvf_list_init(&peers->actions);
  kvf_list_init(&peers->notices);
  kvf_timer_init(&peers->static_timer, KVF_TIMER_STATIC);
}

static void forget(kvf_peers *peers, kvf_peer *peer)
{
  disconnect(peers, peer);
  kvf_wheel_disarm(&peers->context->wheel, &peer->timer);
  kvf_list_remove(&peer->used);
  kvf_list_remove(&peer->action);
  kvf_list_remove(&peer->notice);
  HASH_DELETE(by_key, peers->by_key, peer);
  kvf_forget(&peer->session_key, sizeof(peer->session_key));
  free(peer);
}

void kvf_peers_free(kvf_peers *peers)
{
  while (!kvf_list_is_empty(&peers->used)) {
    forget(peers, KVF_CONTAINER_OF(peers->used.next, kvf_peer, used));
  }
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

/* NULL: there is no memory. */
static kvf_peer *add_peer(kvf_peers *peers, const kvf_peer_key *key)
{
  kvf_peer *peer = calloc(1, sizeof(*peer));
  if (peer == NULL) {
    return NULL;
  }
  const kvf_config *config = &peers->context->config;
  uint64_t cooldown_ns = kvf_ms_to_ns(config->breaker_cooldown_ms);
  uint64_t cooldown_max_ns = kvf_ms_to_ns(config->breaker_cooldown_max_ms);
  memcpy(&peer->key, key, sizeof(*key));
  kvf_breaker_init(&peer->breaker, cooldown_ns, cooldown_max_ns);
  for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
    peer->links[i].peer = peer;
    peer->links[i].transport = i;
    peer->links[i].open_by_ns = KVF_TIME_NEVER;
    kvf_breaker_init(&peer->links[i].breaker, cooldown_ns, cooldown_max_ns);
  }
  peer->answer_by_ns = KVF_TIME_NEVER;
  kvf_timer_init(&peer->timer, KVF_TIMER_PEER);
  kvf_list_init(&peer->used);
  kvf_list_init(&peer->action);
  kvf_list_init(&peer->notice);
  kvf_list_init(&peer->slices.all);
  kvf_list_init(&peer->slices.waiting);
  kvf_list_init(&peer->due);
  kvf_list_init(&peer->guest.due);
  kvf_list_init(&peer->guest.asked);
  HASH_ADD(by_key, peers->by_key, key, sizeof(peer->key), peer);
  if (peer->by_key.tbl == NULL) {
    free(peer);
    return NULL;
  }
  peer->stat.id = peers->next_id++;
  kvf_address_format(&key->address, peer->stat.address);
  kvf_list_push_back(&peers->used, &peer->used);
  return peer;
}

static kvf_peer_key key_of(const kvf_address *address, const kvf_incarnation *incarnation)
{
  kvf_peer_key key; /* hashed as bytes: without what padding may hold */
  memset(&key, 0, sizeof(key));
  memcpy(key.address.ip, address->ip, sizeof(key.address.ip));
  key.address.port = address->port;
  key.incarnation = *incarnation;
  return key;
}

static kvf_peer *find_peer(const kvf_peers *peers, const kvf_peer_key *key)
{
  kvf_peer *peer;
  HASH_FIND(by_key, peers->by_key, key, sizeof(*key), peer);
  return peer;
}

kvf_status kvf_peers_acquire(kvf_peers *peers, const kvf_address *address, const kvf_incarnation *incarnation,
                             kvf_peer **out)
{
  const kvf_peer_key key = key_of(address, incarnation);
  kvf_peer *peer = find_peer(peers, &key);
  if (peer == NULL && HASH_CNT(by_key, peers->by_key) == KVF_PEERS_MAX && !make_room(peers)) {
    return kvf_because(KVF_NO_RESOURCE, "%d producers are in use, which is the limit", KVF_PEERS_MAX);
  }
  peer = peer != NULL ? peer : add_peer(peers, &key);
  if (peer == NULL) {
    return KVF_NO_MEMORY;
  }
  peer->users++;
  kvf_list_remove(&peer->used);
  kvf_list_push_back(&peers->used, &peer->used);
  *out = peer;
  return KVF_OK;
}

kvf_status kvf_peers_acquire_rank(kvf_peers *peers, const kvf_rank_record *rank, kvf_peer **out)
{
  const kvf_peer_key by_other = key_of(&rank->other, &rank->incarnation);
  const bool is_known_by_other = rank->other.port != 0 && find_peer(peers, &by_other) != NULL;
  const kvf_address *address = is_known_by_other ? &rank->other : &rank->address;
  kvf_status status = kvf_peers_acquire(peers, address, &rank->incarnation, out);
  if (status == KVF_OK && rank->other.port != 0 && (*out)->dial.other.port == 0) { /* they do not change in a life */
    (*out)->dial.other = is_known_by_other ? rank->address : rank->other;
  }
  return status;
}

void kvf_peers_release(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  assert(peer->users > 0);
  peer->users--;
  peer->used_ns = now_ns;
  if (!kvf_timer_is_armed(&peer->timer)) {
    rearm(peers, peer, now_ns);
  }
}

/* ---- what is wanted of a peer ---- */

static void dial(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  assert(peer->conn == NULL && peer->gone == KVF_OK);
  peer->conn = kvf_conns_add(&peers->context->conns);
  if (peer->conn == NULL) {
    answer_all(peers, peer, KVF_NO_MEMORY);
    rearm(peers, peer, now_ns);
    return;
  }
  peers->counters.dials++;
  kvf_address_format(address_of(peer), peer->stat.address);
  peer->dial.id = peers->next_id;
  peer->conn->peer = peer;
  move(peer, KVF_PEER_DIALING);
  peer->dial.is_pending = true;
  act(peers, peer);
  rearm(peers, peer, now_ns);
}

/* Whether there may be a try for a load or request that waits; it is the probe if one is due. Links have no other
 * probe, because a load can use other links. A peer is also probed by its timer, until it has been unused for long. */
static bool may_try(kvf_breaker *breaker, uint64_t now_ns)
{
  return kvf_breaker_allows(breaker) || kvf_breaker_probe(breaker, now_ns);
}

static bool offers(const kvf_peer *peer, const char *transport)
{
  for (uint32_t i = 0; i < peer->memory.welcome->transports_count; i++) {
    if (strcmp(peer->memory.welcome->transports[i].name, transport) == 0) {
      return true;
    }
  }
  return false;
}

/* Its kinds of memory that the transport does not bring into ours. */
static uint32_t unserved(const kvf_peers *peers, const kvf_peer *peer, uint32_t transport)
{
  return peer->memory.kinds & peers->unserved[transport];
}

static bool is_usable(const kvf_peers *peers, const kvf_peer *peer, uint32_t transport)
{
  return offers(peer, peers->transports[transport]) && unserved(peers, peer, transport) == 0;
}

/* Whether its link is up, or may be tried. */
static bool may_serve(const kvf_peers *peers, const kvf_peer *peer, uint32_t transport, uint64_t now_ns)
{
  const kvf_peer_link *link = &peer->links[transport];
  return is_usable(peers, peer, transport) && link->unusable == KVF_OK &&
         (kvf_breaker_allows(&link->breaker) || kvf_breaker_wants_probe(&link->breaker, now_ns));
}

static bool want_link(kvf_peers *peers, kvf_peer *peer, kvf_peer_link *link)
{
  assert(link->state == KVF_LINK_NONE);
  link->link_id = peers->next_link_id++;
  HASH_ADD(by_link_id, peers->by_link_id, link_id, sizeof(link->link_id), link);
  if (link->by_link_id.tbl == NULL) {
    return false;
  }
  link->rails_up = 0;
  move_link(link, KVF_LINK_WANTED);
  act(peers, peer);
  return true;
}

#define REASON_BYTES 64

/* Why loads go over another transport than this one. */
static void passed_over(const kvf_peers *peers, const kvf_peer *peer, uint32_t transport, char out[REASON_BYTES])
{
  const kvf_peer_link *link = &peer->links[transport];
  const uint32_t kinds = unserved(peers, peer, transport);
  if (!offers(peer, peers->transports[transport])) {
    (void)snprintf(out, REASON_BYTES, "not offered");
  } else if (kinds != 0) {
    const int own = peers->pool->exists ? (int)peers->pool->pages.regions[0].memory : KVF_MEMORY_HOST;
    (void)snprintf(out, REASON_BYTES, "does not bring %s memory into %s memory",
                   kvf_memory_kind_name(__builtin_ctz(kinds)), kvf_memory_kind_name(own));
  } else {
    (void)snprintf(out, REASON_BYTES, "%s",
                   kvf_status_name(link->unusable != KVF_OK ? link->unusable : link->breaker.cause));
  }
}

/* `what`, and why it is none of the first `count` transports. */
static void say_route(kvf_peers *peers, uint64_t now_ns, const kvf_peer *peer, kvf_status status, const char *what,
                      uint32_t count)
{
  char why[KVF_TRANSPORTS_MAX * (KVF_TRANSPORT_NAME_BYTES + REASON_BYTES)] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < count; i++) {
    char reason[REASON_BYTES];
    passed_over(peers, peer, i, reason);
    (void)snprintf(why + used, sizeof(why) - used, "%s%s: %s", i == 0 ? " (" : ", ", peers->transports[i], reason);
    used = strlen(why);
  }
  kvf_context_log(peers->context, now_ns, status, peer->stat.id, status == KVF_OK ? KVF_LOG_INFO : KVF_LOG_WARN,
                  "peer %s: loads go over %s%s%s", peer->stat.address, what, why, count == 0 ? "" : ")");
}

/* READY and a link is wanted: answers it, or opens the best link that is left to try. */
static void choose_link(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  assert(peer->state == KVF_PEER_READY && peer->link.is_wanted);
  kvf_status cause = KVF_TRANSFER_SETUP;
  for (uint32_t i = 0; i < peers->transports_count; i++) {
    kvf_peer_link *link = &peer->links[i];
    if (!is_usable(peers, peer, i)) {
      continue;
    }
    if (link->unusable != KVF_OK) {
      cause = link->unusable;
      continue;
    }
    if (link->state == KVF_LINK_UP) {
      if (peer->said_transport != peers->transports[i]) {
        peer->said_transport = peers->transports[i];
        say_route(peers, now_ns, peer, KVF_OK, peer->said_transport, i);
      }
      answer(peers, peer, KVF_PEER_LINK, link->link_id, KVF_OK);
      return;
    }
    if (link->state != KVF_LINK_NONE) {
      return;
    }
    if (!may_try(&link->breaker, now_ns)) {
      cause = link->breaker.cause;
    } else if (want_link(peers, peer, link)) {
      return;
    } else {
      cause = KVF_NO_MEMORY;
    }
  }
  peer->said_transport = NULL;
  say_route(peers, now_ns, peer, cause, "no transport", peers->transports_count);
  answer(peers, peer, KVF_PEER_LINK, 0, cause);
}

/* Does the peer's next step: dials, opens a link, or answers. */
static void advance(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  peer->used_ns = now_ns;
  if (!peer->link.is_wanted && !peer->open.is_wanted) {
    return;
  }
  if (peer->gone != KVF_OK) {
    peers->counters.fast_failures++;
    answer_all(peers, peer, peer->gone);
  } else if (peer->state == KVF_PEER_READY) {
    answer(peers, peer, KVF_PEER_OPEN, 0, KVF_OK);
    if (peer->link.is_wanted) {
      choose_link(peers, now_ns, peer);
    }
  } else if (peer->state == KVF_PEER_IDLE) {
    if (may_try(&peer->breaker, now_ns)) {
      dial(peers, now_ns, peer);
    } else {
      peers->counters.fast_failures++;
      answer_all(peers, peer, peer->breaker.cause);
    }
  }
}

/* The session is over, through no fault of anybody's. The next dial tells what has become of the process; one who waits
 * for a link causes it now. */
static void begin_anew(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  disconnect(peers, peer);
  rearm(peers, peer, now_ns);
  advance(peers, now_ns, peer);
}

void kvf_peers_want_link(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  peer->link.is_wanted = true;
  if (peer->state == KVF_PEER_READY && peer->memory.welcome->regions_count == 0) {
    begin_anew(peers, now_ns, peer); /* it may have memory by now */
  } else {
    advance(peers, now_ns, peer);
  }
}

void kvf_peers_want_open(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  peer->open.is_wanted = true;
  advance(peers, now_ns, peer);
}

/* There is no link, and one that may be opened: nobody waits, so what is refused is not asked for again and again. */
static bool may_open_link(const kvf_peers *peers, const kvf_peer *peer, uint64_t now_ns)
{
  bool may = false;
  for (uint32_t i = 0; i < peers->transports_count; i++) {
    if (peer->links[i].state != KVF_LINK_NONE) {
      return false;
    }
    may = may || may_serve(peers, peer, i, now_ns);
  }
  return may;
}

void kvf_peers_want_ready(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  const bool may_dial = peer->state == KVF_PEER_IDLE && peer->gone == KVF_OK && kvf_breaker_allows(&peer->breaker);
  const bool may_open = peer->state == KVF_PEER_READY && !peers->is_control && may_open_link(peers, peer, now_ns);
  if (may_dial || may_open) {
    peer->link.is_wanted = !peers->is_control;
    peer->open.is_wanted = peers->is_control;
    advance(peers, now_ns, peer);
  }
}

void kvf_peers_await(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  assert(peer->state == KVF_PEER_READY);
  if (peer->answer_by_ns == KVF_TIME_NEVER) {
    peer->answer_by_ns = handshake_by_ns(peers, now_ns);
    rearm(peers, peer, now_ns);
  }
}

void kvf_peers_ping(kvf_peers *peers, kvf_peer *peer)
{
  uint8_t *body;
  size_t bytes = 0;
  kvf_ping ping = {.seq = ++peers->next_ping};
  if (peer->state == KVF_PEER_READY && kvf_conn_frame_begin(peer->conn, KVF_PING_BYTES_MAX, &body) == KVF_OK &&
      kvf_ping_encode(&ping, body, KVF_PING_BYTES_MAX, &bytes) == KVF_OK) {
    kvf_conn_frame_end(peer->conn, KVF_FRAME_PING, bytes);
  }
}

bool kvf_peers_next_notice(kvf_peers *peers, kvf_peer_notice *out)
{
  while (!kvf_list_is_empty(&peers->notices)) {
    kvf_peer *peer = KVF_CONTAINER_OF(peers->notices.next, kvf_peer, notice);
    if (peer->pending != 0) {
      const kvf_peer_notice_kind kind = (kvf_peer_notice_kind)__builtin_ctz(peer->pending);
      const kvf_peer_wait *wait = kind == KVF_PEER_LINK ? &peer->link : &peer->open;
      *out = (kvf_peer_notice){.kind = kind, .peer = peer, .link_id = wait->link_id, .status = wait->status};
      peer->pending &= peer->pending - 1;
      return true;
    }
    kvf_list_remove(&peer->notice);
  }
  return false;
}

/* ---- connection and handshake ---- */

/* False if there is no memory for it. */
static bool send_hello(kvf_peers *peers, kvf_peer *peer)
{
  kvf_context *context = peers->context;
  kvf_hello hello = {.version_min = KVF_PROTOCOL_VERSION_MIN,
                     .version_max = KVF_PROTOCOL_VERSION,
                     .role = peers->is_control ? KVF_ROLE_CONTROL : KVF_ROLE_RANK,
                     .client = context->self.incarnation,
                     .expected = peer->key.incarnation,
                     .rank = context->config.rank};
  size_t bytes = 0;
  memcpy(hello.key_id, context->self.macs[0].key_id, sizeof(hello.key_id));
  return kvf_entropy_draw(&context->entropy, hello.nonce, sizeof(hello.nonce)) == KVF_OK &&
         kvf_hello_encode(&hello, peer->dial.hello, sizeof(peer->dial.hello), &bytes) == KVF_OK &&
         kvf_conn_send(peer->conn, KVF_FRAME_HELLO, peer->dial.hello, bytes) == KVF_OK;
}

/* A producer on another host may have named its own loopback, where here is nobody, or somebody else. */
#define OF_THIS_HOST                                                                                       \
  "; a loopback address is of this host alone: a producer on another one needs a key (option key_file or " \
  "KVFERRY_KEY_FILE), or an address in listen"

static bool may_be_elsewhere(const kvf_peer *peer)
{
  return kvf_address_is_loopback(address_of(peer)) && peer->stat.handshakes == 0;
}

void kvf_peers_on_dialed(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_status status)
{
  if (peer->state != KVF_PEER_DIALING) {
    return;
  }
  if (status == KVF_OK && !send_hello(peers, peer)) {
    status = KVF_NO_MEMORY;
  }
  if (status == KVF_PEER_DOWN && peer->dial.other.port != 0 && !peer->dial.has_turned) {
    disconnect(peers, peer);
    turn(peer);
    peer->dial.has_turned = true;
    dial(peers, now_ns, peer);
    return;
  }
  if (status != KVF_OK) {
    const bool hints = status == KVF_PEER_DOWN && may_be_elsewhere(peer);
    fail(peers, now_ns, peer, status, hints ? "cannot connect" OF_THIS_HOST : "cannot connect");
    return;
  }
  move(peer, KVF_PEER_WAIT_CHALLENGE); /* the dial's timer goes on: it bounds connect and handshake together */
}

#define ANOTHER_ANSWERS "another process answers at its address"

static bool is_nobody(const kvf_incarnation *incarnation)
{
  const kvf_incarnation nobody = {0};
  return memcmp(incarnation, &nobody, sizeof(nobody)) == 0;
}

/* The answering process has proved our key. Those that waited for its name go on with the peer of that name. */
static void learn_name(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, const kvf_incarnation *server)
{
  assert(is_nobody(&peer->key.incarnation));
  peer->named = *server;
  notify(peers, peer, KVF_PEER_NAMED);
  kvf_breaker_succeed(&peer->breaker);
  disconnect(peers, peer);
  peer->link.is_wanted = false;
  peer->open.is_wanted = false;
  rearm(peers, peer, now_ns);
}

static bool is_at(const kvf_peer *peer, const kvf_address *address)
{
  return memcmp(&peer->key.address, address, sizeof(*address)) == 0 ||
         (peer->dial.other.port != 0 && memcmp(&peer->dial.other, address, sizeof(*address)) == 0);
}

/* Who answers at the peer's address has proved our key. What was known there before the dial began has ended, if it is
 * another process: it is told so without a dial of its own. */
static void end_others(kvf_peers *peers, uint64_t now_ns, const kvf_peer *peer, const kvf_incarnation *server)
{
  for (kvf_list *node = peers->used.next; node != &peers->used; node = node->next) {
    kvf_peer *other = KVF_CONTAINER_OF(node, kvf_peer, used);
    if (other->state == KVF_PEER_IDLE && other->gone == KVF_OK && other->stat.id < peer->dial.id &&
        is_at(other, address_of(peer)) && memcmp(&other->key.incarnation, server, sizeof(*server)) != 0 &&
        !is_nobody(&other->key.incarnation)) {
      fail(peers, now_ns, other, KVF_PEER_RESTARTED, ANOTHER_ANSWERS);
    }
  }
}

static void on_challenge(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, const uint8_t *body, size_t body_bytes)
{
  kvf_context *context = peers->context;
  kvf_challenge challenge;
  uint8_t expected[KVF_HASH_BYTES];
  if (kvf_challenge_decode(body, body_bytes, &challenge) != KVF_OK || !kvf_protocol_is_known(challenge.version) ||
      is_nobody(&challenge.server)) {
    fail(peers, now_ns, peer, KVF_PROTOCOL, "malformed challenge");
    return;
  }
  if (kvf_handshake_server_proof(&context->self.key, peer->dial.hello, sizeof(peer->dial.hello), &challenge,
                                 expected) != KVF_OK ||
      !kvf_equal_secret(expected, challenge.proof, sizeof(expected))) {
    fail(peers, now_ns, peer, KVF_HANDSHAKE_REFUSED, "it does not have our key (option key_file)");
    return;
  }
  end_others(peers, now_ns, peer, &challenge.server);
  if (is_nobody(&peer->key.incarnation)) {
    learn_name(peers, now_ns, peer, &challenge.server);
    return;
  }
  if (memcmp(&challenge.server, &peer->key.incarnation, sizeof(challenge.server)) != 0) {
    fail(peers, now_ns, peer, KVF_PEER_RESTARTED,
         may_be_elsewhere(peer) ? ANOTHER_ANSWERS OF_THIS_HOST : ANOTHER_ANSWERS);
    return;
  }
  kvf_proof proof = {.identity_count = context->config.identity_fields};
  memcpy(proof.identity, context->config.identity, proof.identity_count * sizeof(proof.identity[0]));
  size_t bytes = 0;
  uint8_t *frame;
  if (kvf_handshake_client_proof(&context->self.key, peer->dial.hello, sizeof(peer->dial.hello), body, body_bytes,
                                 proof.proof) != KVF_OK ||
      kvf_handshake_session_key(&context->self.key, peer->dial.hello, sizeof(peer->dial.hello), body, body_bytes,
                                &peer->session_key) != KVF_OK ||
      kvf_conn_frame_begin(peer->conn, KVF_PROOF_BYTES_MAX, &frame) != KVF_OK ||
      kvf_proof_encode(&proof, frame, KVF_PROOF_BYTES_MAX, &bytes) != KVF_OK) {
    fail(peers, now_ns, peer, KVF_NO_MEMORY, "cannot prove the key");
    return;
  }
  kvf_conn_frame_end(peer->conn, KVF_FRAME_PROOF, bytes);
  peer->conn->is_trusted = true;
  move(peer, KVF_PEER_WAIT_WELCOME);
}

/* What has gone wrong with links to its memory before says nothing about this one. */
static void forgive_links(kvf_peer *peer)
{
  for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
    peer->links[i].unusable = KVF_OK;
    kvf_breaker_succeed(&peer->links[i].breaker);
    peer->links[i].breaker.patient_ns = 0;
  }
}

static void on_welcome(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, const uint8_t *body, size_t body_bytes)
{
  kvf_welcome *welcome = calloc(1, sizeof(*welcome));
  kvf_status status = welcome == NULL ? KVF_NO_MEMORY : kvf_welcome_decode(body, body_bytes, welcome);
  if (status != KVF_OK) {
    free(welcome);
    fail(peers, now_ns, peer, status, "malformed welcome");
    return;
  }
  assert(peer->memory.welcome == NULL);
  peer->memory.welcome = welcome;
  if (welcome->generation != 0 && welcome->generation <= peer->memory.given_up) { /* they only grow */
    fail(peers, now_ns, peer, KVF_PROTOCOL, "describes memory that it has unregistered");
    return;
  }
  if (welcome->generation != peer->memory.generation) {
    forgive_links(peer);
  }
  peer->memory.generation = welcome->generation;
  peer->memory.rank_layout = kvf_pages_rank_layout(
      &(kvf_pages){welcome->regions, welcome->regions_count, welcome->layout}, welcome->rank, welcome->ranks);
  peer->memory.kinds = 0;
  for (uint32_t i = 0; i < welcome->regions_count; i++) {
    peer->memory.kinds |= UINT32_C(1) << welcome->regions[i].memory;
  }
  move(peer, KVF_PEER_READY);
  peers->counters.handshakes++;
  peer->stat.handshakes++;
  kvf_breaker_succeed(&peer->breaker);
  rearm(peers, peer, now_ns);
  advance(peers, now_ns, peer);
}

static void on_refused(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, const uint8_t *body, size_t body_bytes)
{
  kvf_refused refused;
  if (kvf_refused_decode(body, body_bytes, &refused) != KVF_OK) {
    fail(peers, now_ns, peer, KVF_PROTOCOL, "malformed refusal");
    return;
  }
  bool known = refused.status == KVF_INCOMPATIBLE || refused.status == KVF_HANDSHAKE_REFUSED;
  fail(peers, now_ns, peer, known ? (kvf_status)refused.status : KVF_PROTOCOL, refused.message);
}

void kvf_peers_on_malformed(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  fail(peers, now_ns, peer, KVF_PROTOCOL, "malformed message");
}

void kvf_peers_on_insecure(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, const char *why)
{
  fail(peers, now_ns, peer, peer->state == KVF_PEER_READY ? KVF_PROTOCOL : KVF_HANDSHAKE_REFUSED, why);
}

void kvf_peer_on_frame(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_frame_type type, const uint8_t *body,
                       size_t body_bytes)
{
  peer->answer_by_ns = KVF_TIME_NEVER;
  if (type == KVF_FRAME_REFUSED) {
    on_refused(peers, now_ns, peer, body, body_bytes);
  } else if (peer->state == KVF_PEER_WAIT_CHALLENGE && type == KVF_FRAME_CHALLENGE) {
    on_challenge(peers, now_ns, peer, body, body_bytes);
  } else if (peer->state == KVF_PEER_WAIT_WELCOME && type == KVF_FRAME_WELCOME) {
    on_welcome(peers, now_ns, peer, body, body_bytes);
  } else if (peer->state == KVF_PEER_READY && type == KVF_FRAME_PONG) {
    peer->slices.answered = peer->slices.pings;
  } else {
    fail(peers, now_ns, peer, KVF_PROTOCOL, "an unexpected message");
  }
}

void kvf_peer_on_closed(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  peer->conn = NULL; /* the socket is gone: nothing to hang up */
  if (peer->state == KVF_PEER_READY) {
    begin_anew(peers, now_ns, peer);
  } else {
    fail(peers, now_ns, peer, KVF_PEER_DOWN, "closed the connection during the handshake");
  }
}

static bool is_unused(const kvf_peers *peers, uint64_t now_ns, const kvf_peer *peer)
{
  return peer->users == 0 &&
         now_ns >= kvf_time_add(peer->used_ns, kvf_ms_to_ns(peers->context->config.idle_timeout_ms));
}

/* Nobody has answered in time. */
static void on_handshake_timer(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  static const char late[] = "no handshake in time";
  if (peer->dial.is_second_try || !kvf_breaker_allows(&peer->breaker)) {
    fail(peers, now_ns, peer, KVF_HANDSHAKE_TIMEOUT, late);
    return;
  }
  const kvf_log_level level = level_of(peers, KVF_HANDSHAKE_TIMEOUT) == KVF_LOG_WARN ? KVF_LOG_INFO : KVF_LOG_DEBUG;
  kvf_context_log(peers->context, now_ns, KVF_HANDSHAKE_TIMEOUT, peer->stat.id, level, "peer %s: %s: connecting again",
                  peer->stat.address, late);
  count_failure(peers, now_ns, peer, KVF_HANDSHAKE_TIMEOUT);
  if (!peer->dial.has_turned) { /* else nobody can be connected to at the other */
    turn(peer);
  }
  disconnect(peers, peer);
  peer->dial.has_turned = true;
  peer->dial.is_second_try = true;
  dial(peers, now_ns, peer);
}

static void on_ready_timer(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  assert(peer->state == KVF_PEER_READY && peer->conn != NULL);
  if (now_ns >= peer->answer_by_ns) {
    fail(peers, now_ns, peer, KVF_PEER_DOWN, "does not answer");
    return;
  }
  for (uint32_t i = 0; i < peers->transports_count; i++) {
    if (now_ns >= peer->links[i].open_by_ns) {
      kvf_peers_on_link(peers, now_ns, peer->links[i].link_id, KVF_HANDSHAKE_TIMEOUT);
    }
  }
  if (is_unused(peers, now_ns, peer)) {
    disconnect(peers, peer);
  } else {
    kvf_peers_ping(peers, peer); /* so that its side does not close an idle connection */
  }
  rearm(peers, peer, now_ns);
}

void kvf_peer_on_timer(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  if (peer->state == KVF_PEER_READY) {
    on_ready_timer(peers, now_ns, peer);
  } else if (peer->state != KVF_PEER_IDLE) {
    on_handshake_timer(peers, now_ns, peer);
  } else if (is_unused(peers, now_ns, peer)) {
    return; /* unarmed from here: kvf_peers_acquire() makes room among such peers when it needs it */
  } else if (peer->gone == KVF_OK && kvf_breaker_probe(&peer->breaker, now_ns)) {
    dial(peers, now_ns, peer);
  } else {
    rearm(peers, peer, now_ns);
  }
}

/* ---- links ---- */

static kvf_peer_link *find(kvf_peers *peers, uint32_t link_id)
{
  kvf_peer_link *link;
  HASH_FIND(by_link_id, peers->by_link_id, &link_id, sizeof(link_id), link);
  return link;
}

/* What does not trip a breaker (a session that has just ended, no memory) must not be tried again at once either. */
static kvf_status breaker_cause(kvf_status status)
{
  return kvf_status_describe(status)->trips_breaker ? status : KVF_TRANSFER_SETUP;
}

static void give_up(kvf_peers *peers, uint64_t now_ns, kvf_peer_link *link, kvf_status status)
{
  count_failure(peers, now_ns, link->peer, status);
  kvf_context_log(peers->context, now_ns, status, link->peer->stat.id, KVF_LOG_WARN, "transport %s to %s failed: %s",
                  peers->transports[link->transport], link->peer->stat.address, kvf_status_name(status));
  drop_link(peers, link);
  advance(peers, now_ns, link->peer);
}

/* Whether loads have another transport than this to go over, or to try. */
static bool has_another(const kvf_peers *peers, const kvf_peer_link *link, uint64_t now_ns)
{
  bool has = false;
  for (uint32_t i = 0; i < peers->transports_count; i++) {
    has = has || (i != link->transport && may_serve(peers, link->peer, i, now_ns));
  }
  return has;
}

/* It has not answered in time. True: it is opened again before that counts. */
static bool try_again(kvf_peers *peers, uint64_t now_ns, kvf_peer_link *link)
{
  if (link->is_second_try || !kvf_breaker_allows(&link->breaker) || has_another(peers, link, now_ns)) {
    return false;
  }
  give_up(peers, now_ns, link, KVF_HANDSHAKE_TIMEOUT);
  link->is_second_try = true; /* give_up() waits for the runtime to close the first */
  return true;
}

void kvf_peers_link_is_stale(kvf_peers *peers, uint64_t now_ns, uint32_t link_id)
{
  const kvf_peer_link *link = find(peers, link_id);
  if (link != NULL) { /* else that has been heard already */
    kvf_peer *peer = link->peer;
    kvf_context_log(peers->context, now_ns, KVF_AGAIN, peer->stat.id, KVF_LOG_INFO,
                    "peer %s: has registered other memory: asking it again", peer->stat.address);
    peer->memory.given_up = peer->memory.generation;
    begin_anew(peers, now_ns, peer);
  }
}

void kvf_peers_may_link(kvf_peers *peers, uint64_t now_ns)
{
  if (!peers->is_control) {
    return;
  }
  peers->is_control = false;
  for (const kvf_list *node = peers->used.next; node != &peers->used; node = node->next) {
    kvf_peer *peer = KVF_CONTAINER_OF(node, kvf_peer, used);
    if (peer->state != KVF_PEER_IDLE) {
      begin_anew(peers, now_ns, peer);
    }
  }
}

void kvf_peers_close_links(kvf_peers *peers)
{
  for (const kvf_list *node = peers->used.next; node != &peers->used; node = node->next) {
    kvf_peer *peer = KVF_CONTAINER_OF(node, kvf_peer, used);
    for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
      drop_link(peers, &peer->links[i]);
    }
    forgive_links(peer);
    answer(peers, peer, KVF_PEER_LINK, 0, KVF_TRANSFER_SETUP); /* the users that wanted one have gone */
  }
}

void kvf_peers_on_link(kvf_peers *peers, uint64_t now_ns, uint32_t link_id, kvf_status status)
{
  kvf_peer_link *link = find(peers, link_id);
  if (link == NULL || link->state != KVF_LINK_OPENING) {
    return;
  }
  if (status == KVF_AGAIN && ++link->peer->memory.stale_dials > STALE_DIALS_MAX) {
    fail(peers, now_ns, link->peer, KVF_PROTOCOL, "describes memory that it does not have, again and again");
    return;
  }
  if (status == KVF_AGAIN) {
    kvf_peers_link_is_stale(peers, now_ns, link_id);
    return;
  }
  if (status == KVF_OK) {
    if (++link->rails_up < peers->rails[link->transport]) {
      return;
    }
    move_link(link, KVF_LINK_UP);
    link->peer->memory.stale_dials = 0;
    link->open_by_ns = KVF_TIME_NEVER;
    kvf_breaker_succeed(&link->breaker);
    advance(peers, now_ns, link->peer);
    return;
  }
  if (status == KVF_HANDSHAKE_TIMEOUT && try_again(peers, now_ns, link)) {
    return;
  }
  if (status == KVF_INCOMPATIBLE) {
    link->unusable = status; /* another layout: so it stays with these memories */
  } else {
    kvf_breaker_fail(&link->breaker, now_ns, breaker_cause(status));
  }
  give_up(peers, now_ns, link, status);
}

void kvf_peers_on_link_malformed(kvf_peers *peers, uint64_t now_ns, uint32_t link_id)
{
  kvf_peer_link *link = find(peers, link_id);
  if (link != NULL && link->state == KVF_LINK_OPENING) {
    fail(peers, now_ns, link->peer, KVF_PROTOCOL, "its description of its transport is malformed");
  }
}

void kvf_peers_on_link_down(kvf_peers *peers, uint64_t now_ns, uint32_t link_id, kvf_status status)
{
  kvf_peer_link *link = find(peers, link_id);
  if (link != NULL && link->state == KVF_LINK_OPENING && link->rails_up > 0) { /* others are still to come up */
    kvf_peers_on_link(peers, now_ns, link_id, status);
  } else if (link != NULL && link->state == KVF_LINK_UP) {
    kvf_breaker_lose(&link->breaker, now_ns, breaker_cause(status));
    give_up(peers, now_ns, link, status);
  }
}

void kvf_peers_link_stalled(kvf_peers *peers, uint64_t now_ns, uint32_t link_id, bool silent)
{
  kvf_peer_link *link = find(peers, link_id);
  if (link == NULL) {
    return;
  }
  peers->counters.stalls++;
  if (silent) {
    fail(peers, now_ns, link->peer, KVF_TRANSFER_STALLED, "no byte and no answer to a ping");
  } else {
    kvf_breaker_fail(&link->breaker, now_ns, KVF_TRANSFER_STALLED);
    give_up(peers, now_ns, link, KVF_TRANSFER_STALLED);
  }
}

static void begin_opening(kvf_peers *peers, uint64_t now_ns, kvf_peer_link *link)
{
  assert(link->peer->memory.welcome != NULL);
  kvf_timer *timer = &link->peer->timer;
  move_link(link, KVF_LINK_OPENING);
  link->open_by_ns = handshake_by_ns(peers, now_ns);
  if (!kvf_timer_is_armed(timer) || link->open_by_ns < timer->expires_ns) {
    kvf_wheel_arm(&peers->context->wheel, timer, link->open_by_ns);
  }
}

bool kvf_peer_has_link(const kvf_peer *peer, uint32_t link_id)
{
  bool has = false;
  for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
    has = has || (peer->links[i].state == KVF_LINK_UP && peer->links[i].link_id == link_id);
  }
  return has;
}

/* The one with the fewest reads. Links whose reads come one at a time begin with different rails: sessions take turns.
 */
static uint32_t choose_rail(const kvf_peers *peers, const kvf_peer_link *link)
{
  const uint32_t count = peers->rails[link->transport];
  const uint32_t *reads = peers->rail_reads[link->transport];
  const uint32_t first = (uint32_t)(link->peer->memory.welcome->session_id % count);
  uint32_t best = first;
  for (uint32_t n = 1; n < count; n++) {
    const uint32_t i = (first + n) % count;
    best = reads[i] < reads[best] ? i : best;
  }
  return best;
}

kvf_rail kvf_peers_begin_read(kvf_peers *peers, uint32_t link_id)
{
  const kvf_peer_link *link = find(peers, link_id);
  kvf_rail rail = {0}; /* of a link that went down before it was named to loads: the runtime has none to read over */
  if (link != NULL) {
    rail = (kvf_rail){link->transport, choose_rail(peers, link)};
  }
  peers->rail_reads[rail.transport][rail.index]++;
  return rail;
}

void kvf_peers_end_read(kvf_peers *peers, kvf_rail rail)
{
  assert(peers->rail_reads[rail.transport][rail.index] > 0);
  peers->rail_reads[rail.transport][rail.index]--;
}

static bool next_link_action(kvf_peers *peers, uint64_t now_ns, kvf_peer_link *link, kvf_peer_action *out)
{
  kvf_peer *peer = link->peer;
  if (link->state == KVF_LINK_CLOSING) {
    move_link(link, KVF_LINK_NONE);
    *out = (kvf_peer_action){.kind = KVF_PEER_CLOSE_LINK, .link_id = link->link_id};
    advance(peers, now_ns, peer); /* a load may be waiting to open it again */
    return true;
  }
  if (link->state == KVF_LINK_WANTED) {
    begin_opening(peers, now_ns, link);
    *out = (kvf_peer_action){.kind = KVF_PEER_OPEN_LINK,
                             .link_id = link->link_id,
                             .transport = link->transport,
                             .address = *address_of(peer),
                             .incarnation = peer->key.incarnation,
                             .session_key = &peer->session_key,
                             .welcome = peer->memory.welcome};
    return true;
  }
  return false;
}

bool kvf_peers_next_action(kvf_peers *peers, uint64_t now_ns, kvf_peer_action *out)
{
  while (!kvf_list_is_empty(&peers->actions)) {
    kvf_peer *peer = KVF_CONTAINER_OF(peers->actions.next, kvf_peer, action);
    if (peer->dial.is_pending) {
      peer->dial.is_pending = false;
      *out = (kvf_peer_action){.kind = KVF_PEER_DIAL, .conn_id = peer->conn->id, .address = *address_of(peer)};
      return true;
    }
    for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
      if (next_link_action(peers, now_ns, &peer->links[i], out)) {
        return true;
      }
    }
    kvf_list_remove(&peer->action);
  }
  return false;
}

/* ---- for people and metrics ---- */

static kvf_link_stat link_stat_of(const char *name, const kvf_breaker *breaker, bool up)
{
  return (kvf_link_stat){.name = name, .breaker = breaker->state, .cause = breaker->cause, .up = up};
}

size_t kvf_peers_describe(const kvf_peers *peers, uint64_t now_ns, kvf_peer_stat *out, size_t capacity)
{
  const size_t most = capacity < KVF_PEERS_LISTED_MAX ? capacity : KVF_PEERS_LISTED_MAX;
  size_t count = 0;
  for (const kvf_list *node = peers->used.prev; node != &peers->used && count < most; node = node->prev) {
    const kvf_peer *peer = KVF_CONTAINER_OF(node, kvf_peer, used);
    if (is_unused(peers, now_ns, peer)) {
      continue;
    }
    kvf_peer_stat *stat = &out[count++];
    *stat = peer->stat;
    stat->gone = peer->gone;
    stat->users = peer->users;
    if (peer->users == 0) {
      stat->idle_ms = kvf_time_until(peer->used_ns, now_ns) / KVF_NS_PER_MS;
    }
    if (stat->last_failure != KVF_OK) {
      stat->last_failure_age_ms = kvf_time_until(peer->last_failure_ns, now_ns) / KVF_NS_PER_MS;
    }
    stat->links[stat->links_count++] = link_stat_of("control", &peer->breaker, peer->state == KVF_PEER_READY);
    for (uint32_t i = 0; i < peers->transports_count && !peers->is_control; i++) {
      const kvf_peer_link *link = &peer->links[i];
      stat->links[stat->links_count++] = link_stat_of(peers->transports[i], &link->breaker, link->state == KVF_LINK_UP);
    }
  }
  return count;
}

/* ---- static peers ---- */

kvf_status kvf_peers_add_static(kvf_peers *peers, const char *name, const kvf_address *address)
{
  if (peers->static_count == KVF_STATIC_PEERS_MAX) {
    return KVF_LIMIT;
  }
  kvf_static_peer *one = &peers->static_peers[peers->static_count++];
  one->address = *address;
  (void)snprintf(one->name, sizeof(one->name), "%s", name);
  return KVF_OK;
}

kvf_status kvf_peers_acquire_static(kvf_peers *peers, uint32_t i, kvf_peer **out)
{
  const kvf_static_peer *one = &peers->static_peers[i];
  const bool is_there = one->peer != NULL && one->peer->gone == KVF_OK;
  const kvf_incarnation incarnation = is_there ? one->peer->key.incarnation : (kvf_incarnation){0};
  return kvf_peers_acquire(peers, &one->address, &incarnation, out);
}

static void release_static(kvf_peers *peers, uint64_t now_ns, kvf_static_peer *one)
{
  if (one->peer != NULL) {
    kvf_peers_release(peers, now_ns, one->peer);
    one->peer = NULL;
  }
}

/* All zeros: any process that answers. */
static void hold_static(kvf_peers *peers, uint64_t now_ns, kvf_static_peer *one, const kvf_incarnation *incarnation)
{
  release_static(peers, now_ns, one);
  if (kvf_peers_acquire(peers, &one->address, incarnation, &one->peer) == KVF_OK) { /* else later */
    assert(one->peer != NULL);
    kvf_peers_want_ready(peers, now_ns, one->peer);
  }
}

void kvf_peers_look_at_static(kvf_peers *peers, uint64_t now_ns)
{
  for (uint32_t i = 0; i < peers->static_count; i++) {
    kvf_static_peer *one = &peers->static_peers[i];
    if (one->peer == NULL || one->peer->gone != KVF_OK) {
      hold_static(peers, now_ns, one, &(kvf_incarnation){0});
    } else {
      kvf_peers_want_ready(peers, now_ns, one->peer);
    }
  }
  if (peers->static_count > 0) {
    kvf_wheel_arm(&peers->context->wheel, &peers->static_timer, kvf_time_add(now_ns, STATIC_LOOK_NS));
  }
}

void kvf_peers_let_static_go(kvf_peers *peers, uint64_t now_ns)
{
  for (uint32_t i = 0; i < peers->static_count; i++) {
    release_static(peers, now_ns, &peers->static_peers[i]);
  }
  kvf_wheel_disarm(&peers->context->wheel, &peers->static_timer);
}

void kvf_peers_on_named(kvf_peers *peers, uint64_t now_ns, const kvf_peer *peer)
{
  const kvf_incarnation named = peer->named;
  for (uint32_t i = 0; i < peers->static_count; i++) {
    if (peers->static_peers[i].peer == peer) {
      hold_static(peers, now_ns, &peers->static_peers[i], &named);
    }
  }
}
