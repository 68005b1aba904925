/* Finds: asks, answers, and what came of them. */
#include "find/find.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/time.h"
#include "core/check_list.h"
#include "wire/find_message.h"
#include "wire/ticket.h"

#define ANSWER_BYTES_MAX ((size_t)KVF_FRAME_HEADER_BYTES + KVF_FOUND_BYTES_MAX)

_Static_assert(KVF_FINDS_IN_FLIGHT_MAX < KVF_OUTBOX_BYTES_MAX / ANSWER_BYTES_MAX,
               "who is asked is not hung up on for his answers");

void kvf_finds_init(kvf_finds *finds, kvf_guest *guest)
{
  *finds = (kvf_finds){.guest = guest, .next_id = 1};
}

/* Nothing is awaited of this peer any more. */
static void end_ask(kvf_finds *finds, uint64_t now_ns, kvf_find_ask *ask)
{
  if (ask->peer != NULL) {
    kvf_list_remove(&ask->link);
    kvf_peers_release(finds->guest->peers, now_ns, ask->peer);
    ask->peer = NULL;
    assert(ask->find->waiting > 0);
    ask->find->waiting--;
  }
}

static void end_asks(kvf_finds *finds, uint64_t now_ns, kvf_find *find)
{
  for (uint32_t i = 0; i < find->asks_count; i++) {
    end_ask(finds, now_ns, &find->asks[i]);
  }
}

static void free_find(kvf_finds *finds, uint64_t now_ns, kvf_find *find)
{
  end_asks(finds, now_ns, find);
  kvf_wheel_disarm(&finds->guest->context->wheel, &find->timer);
  kvf_list_remove(&find->event);
  HASH_DELETE(by_id, finds->by_id, find);
  free(find->text);
  free(find);
}

void kvf_finds_free(kvf_finds *finds)
{
  kvf_find *find;
  kvf_find *next;
  HASH_ITER(by_id, finds->by_id, find, next)
  {
    free_find(finds, 0, find);
  }
}

static kvf_find *find_of(const kvf_finds *finds, uint64_t id)
{
  kvf_find *find;
  HASH_FIND(by_id, finds->by_id, &id, sizeof(id), find);
  return find;
}

/* ---- the result ---- */

static void decide(kvf_finds *finds, uint64_t now_ns, kvf_find *find, kvf_status status)
{
  assert(find->state == KVF_FIND_ASKING);
  end_asks(finds, now_ns, find);
  kvf_wheel_disarm(&finds->guest->context->wheel, &find->timer);
  find->state = KVF_FIND_DECIDED;
  find->status = status;
  kvf_list_push_back(&finds->guest->events, &find->event);
  finds->counters.over[kvf_status_index(status)]++;
}

/* This peer has none (KVF_NOT_FOUND), or cannot say. */
static void give_up(kvf_finds *finds, uint64_t now_ns, kvf_find_ask *ask, kvf_status status)
{
  kvf_find *find = ask->find;
  end_ask(finds, now_ns, ask);
  find->any_answered = find->any_answered || status == KVF_NOT_FOUND;
  find->status = status;
  if (find->waiting == 0) {
    decide(finds, now_ns, find, find->any_answered ? KVF_NOT_FOUND : status);
  }
}

/* ---- questions ---- */

/* It is to be asked when its connection is open: an OPEN or NAMED notice follows. */
static void want(kvf_finds *finds, uint64_t now_ns, kvf_find_ask *ask)
{
  kvf_list_ensure_back(&ask->peer->guest.due, &ask->link);
  kvf_peers_want_open(finds->guest->peers, now_ns, ask->peer);
}

/* Asks under another name of the peer at this address; all zeros: any process that answers there. */
static void rename_peer(kvf_finds *finds, uint64_t now_ns, kvf_find_ask *ask, const kvf_incarnation *name)
{
  kvf_peer *peer;
  kvf_status status = kvf_peers_acquire(finds->guest->peers, &ask->peer->key.address, name, &peer);
  if (status != KVF_OK) {
    give_up(finds, now_ns, ask, status);
    return;
  }
  kvf_list_remove(&ask->link);
  kvf_peers_release(finds->guest->peers, now_ns, ask->peer);
  ask->peer = peer;
  want(finds, now_ns, ask);
}

static void send_due(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer)
{
  kvf_list *node;
  while (peer->guest.in_flight < KVF_FINDS_IN_FLIGHT_MAX && (node = kvf_list_pop_front(&peer->guest.due)) != NULL) {
    kvf_find_ask *ask = KVF_CONTAINER_OF(node, kvf_find_ask, link);
    kvf_find_question question = {.id = ask->find->id};
    uint8_t body[KVF_FIND_BYTES_MAX];
    size_t bytes = 0;
    memcpy(question.key, ask->find->seal, sizeof(question.key));
    kvf_status status = kvf_find_question_encode(&question, body, sizeof(body), &bytes);
    if (status == KVF_OK) {
      status = kvf_conn_send(peer->conn, KVF_FRAME_FIND, body, bytes);
    }
    if (status != KVF_OK) {
      give_up(finds, now_ns, ask, status == KVF_NO_MEMORY ? status : KVF_PEER_DOWN); /* it does not read */
      continue;
    }
    kvf_list_push_back(&peer->guest.asked, &ask->link);
    peer->guest.in_flight++;
    ask->tries++;
    finds->counters.asked++;
    kvf_peers_await(finds->guest->peers, now_ns, peer);
  }
}

void kvf_finds_on_open(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer, kvf_status status)
{
  kvf_list *node;
  if (status == KVF_OK && peer->state == KVF_PEER_READY) {
    send_due(finds, now_ns, peer);
  } else if (status == KVF_OK && !kvf_list_is_empty(&peer->guest.due)) {
    kvf_peers_want_open(finds->guest->peers, now_ns, peer); /* it was open, and has been given up for a new one since */
  }
  while (status != KVF_OK && (node = kvf_list_pop_front(&peer->guest.due)) != NULL) {
    kvf_find_ask *ask = KVF_CONTAINER_OF(node, kvf_find_ask, link);
    if (status == KVF_PEER_RESTARTED && !ask->is_renamed) {
      ask->is_renamed = true;
      rename_peer(finds, now_ns, ask, &(kvf_incarnation){0});
    } else {
      give_up(finds, now_ns, ask, status);
    }
  }
}

void kvf_finds_on_named(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer)
{
  const kvf_incarnation named = peer->named;
  while (!kvf_list_is_empty(&peer->guest.due)) {
    rename_peer(finds, now_ns, KVF_CONTAINER_OF(peer->guest.due.next, kvf_find_ask, link), &named);
  }
}

void kvf_finds_on_closed(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer)
{
  kvf_list *node;
  peer->guest.in_flight = 0;
  while ((node = kvf_list_pop_front(&peer->guest.asked)) != NULL) {
    kvf_find_ask *ask = KVF_CONTAINER_OF(node, kvf_find_ask, link);
    if (ask->tries < KVF_FIND_TRIES_MAX) {
      kvf_list_push_back(&peer->guest.due, &ask->link);
    } else {
      give_up(finds, now_ns, ask, KVF_PEER_DOWN);
    }
  }
  if (!kvf_list_is_empty(&peer->guest.due)) {
    kvf_peers_want_open(finds->guest->peers, now_ns, peer);
  }
}

/* ---- answers ---- */

static kvf_find_ask *asked_of(kvf_peer *peer, uint64_t id)
{
  for (kvf_list *node = peer->guest.asked.next; node != &peer->guest.asked; node = node->next) {
    kvf_find_ask *ask = KVF_CONTAINER_OF(node, kvf_find_ask, link);
    if (ask->find->id == id) {
      return ask;
    }
  }
  return NULL;
}

/* KVF_PROTOCOL: not a ticket of our shared key, or not one that was asked for. KVF_INCOMPATIBLE: of a version that we
 * do not read. KVF_NO_MEMORY. */
static kvf_status check_ticket(const kvf_finds *finds, const kvf_find *find, const kvf_found *found)
{
  const kvf_context *context = finds->guest->context;
  kvf_ticket *ticket = malloc(sizeof(*ticket));
  if (ticket == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_status status =
      kvf_ticket_decode(found->text, found->text_bytes, context->self.macs, context->self.macs_count, ticket);
  if (status == KVF_OK) {
    status = kvf_find_key_fits(&find->key, ticket) ? KVF_OK : KVF_PROTOCOL;
    kvf_ticket_free(ticket);
  }
  free(ticket);
  return status == KVF_BAD_TICKET || status == KVF_OTHER_KEY ? KVF_PROTOCOL : status;
}

static kvf_status take_ticket(const kvf_finds *finds, kvf_find *find, const kvf_found *found)
{
  kvf_status status = check_ticket(finds, find, found);
  if (status == KVF_OK) {
    find->text = malloc(found->text_bytes);
    status = find->text == NULL ? KVF_NO_MEMORY : KVF_OK;
  }
  if (status == KVF_OK) {
    memcpy(find->text, found->text, found->text_bytes);
    find->text_bytes = found->text_bytes;
  }
  return status;
}

kvf_status kvf_finds_on_found(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer, const uint8_t *body, size_t body_bytes)
{
  kvf_found found;
  if (peer->guest.in_flight == 0 || kvf_found_decode(body, body_bytes, &found) != KVF_OK) {
    return KVF_PROTOCOL;
  }
  peer->guest.in_flight--;
  kvf_find_ask *ask = asked_of(peer, found.id);
  kvf_status status = KVF_NOT_FOUND;
  if (ask == NULL) {
    finds->counters.dropped += found.status == KVF_FOUND_TICKET;
  } else if (found.status == KVF_FOUND_TICKET) {
    status = take_ticket(finds, ask->find, &found);
  }
  if (status == KVF_OK) {
    decide(finds, now_ns, ask->find, KVF_OK);
  } else if (ask != NULL) {
    give_up(finds, now_ns, ask, status);
  }
  if (status == KVF_PROTOCOL) {
    return status;
  }
  if (peer->guest.in_flight > 0) {
    kvf_peers_await(finds->guest->peers, now_ns, peer);
  }
  send_due(finds, now_ns, peer);
  return KVF_OK;
}

/* ---- a find from its call to its end ---- */

/* Whether `at` is this peer, as the option names it or by its address. */
static bool is_at(const kvf_static_peer *one, const char *at)
{
  kvf_address address;
  return strcmp(one->name, at) == 0 ||
         (kvf_address_parse(at, 0, &address) == KVF_OK && address.port == one->address.port &&
          memcmp(address.ip, one->address.ip, sizeof(address.ip)) == 0);
}

/* Holds each peer that is to be asked once. */
static kvf_status acquire_peers(kvf_finds *finds, uint64_t now_ns, kvf_find *find, const char *at)
{
  kvf_peers *peers = finds->guest->peers;
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; i < peers->static_count && status == KVF_OK; i++) {
    kvf_find_ask *ask = &find->asks[find->asks_count];
    if (at != NULL && !is_at(&peers->static_peers[i], at)) {
      continue;
    }
    status = kvf_peers_acquire_static(peers, i, &ask->peer);
    bool is_new = status == KVF_OK;
    for (uint32_t k = 0; k < find->asks_count; k++) {
      is_new = is_new && find->asks[k].peer != ask->peer;
    }
    if (is_new) {
      ask->find = find;
      kvf_list_init(&ask->link);
      find->asks_count++;
      find->waiting++;
    } else if (status == KVF_OK) {
      kvf_peers_release(peers, now_ns, ask->peer); /* two names of one address */
    }
  }
  if (status == KVF_OK && find->asks_count == 0) {
    status = at == NULL ? kvf_because(KVF_NOT_FOUND, "the option peers is empty")
                        : kvf_because(KVF_NOT_FOUND, "at = \"%.100s\" is not in the option peers", at);
  }
  return status;
}

kvf_status kvf_finds_start(kvf_finds *finds, uint64_t now_ns, const kvf_find_key *key, const char *at,
                           uint32_t timeout_ms, uint64_t user, uint64_t *id)
{
  if (timeout_ms > KVF_FIND_TIMEOUT_MS_MAX) {
    return kvf_because(KVF_INVALID, "timeout_ms = %u: at most %u", (unsigned)timeout_ms, KVF_FIND_TIMEOUT_MS_MAX);
  }
  if (HASH_CNT(by_id, finds->by_id) >= KVF_FINDS_MAX) {
    return kvf_because(KVF_NO_RESOURCE, "%u finds are open, which is the limit", (unsigned)KVF_FINDS_MAX);
  }
  kvf_find *find = calloc(1, sizeof(*find) + finds->guest->peers->static_count * sizeof(find->asks[0]));
  if (find == NULL) {
    return KVF_NO_MEMORY;
  }
  find->id = finds->next_id;
  find->user = user;
  find->key = *key;
  kvf_list_init(&find->event);
  kvf_timer_init(&find->timer, KVF_TIMER_GUEST);
  kvf_status status = kvf_find_key_seal(key, &finds->guest->context->self.macs[0], find->seal);
  if (status == KVF_OK) {
    status = acquire_peers(finds, now_ns, find, at);
  }
  if (status == KVF_OK) {
    HASH_ADD(by_id, finds->by_id, id, sizeof(find->id), find);
    status = find->by_id.tbl == NULL ? KVF_NO_MEMORY : KVF_OK;
  }
  if (status != KVF_OK) {
    end_asks(finds, now_ns, find);
    free(find);
    return status;
  }
  *id = finds->next_id++;
  const uint32_t own_ms = finds->guest->context->config.handshake_timeout_ms;
  kvf_wheel_arm(&finds->guest->context->wheel, &find->timer,
                kvf_time_add(now_ns, kvf_ms_to_ns(timeout_ms == 0 ? own_ms : timeout_ms)));
  for (uint32_t i = 0; i < find->asks_count; i++) {
    want(finds, now_ns, &find->asks[i]);
  }
  return KVF_OK;
}

kvf_status kvf_finds_take(kvf_finds *finds, uint64_t now_ns, uint64_t id, char *text, size_t capacity,
                          size_t *text_bytes)
{
  kvf_find *find = find_of(finds, id);
  if (find == NULL || find->state != KVF_FIND_TOLD) {
    return kvf_because(KVF_NOT_FOUND, "find %llu is unknown, taken already, or has no ticket", (unsigned long long)id);
  }
  if (find->text_bytes > capacity) {
    return kvf_because(KVF_LIMIT, "capacity = %zu: the ticket has %zu bytes", capacity, find->text_bytes);
  }
  memcpy(text, find->text, find->text_bytes);
  *text_bytes = find->text_bytes;
  free_find(finds, now_ns, find);
  return KVF_OK;
}

void kvf_finds_on_timer(kvf_finds *finds, uint64_t now_ns, kvf_find *find)
{
  if (find->state == KVF_FIND_ASKING) {
    decide(finds, now_ns, find, KVF_DEADLINE);
  } else {
    finds->counters.forgotten++;
    free_find(finds, now_ns, find);
  }
}

bool kvf_finds_next_event(kvf_finds *finds, uint64_t now_ns, kvf_event *out)
{
  kvf_list *node = kvf_list_pop_front(&finds->guest->events);
  if (node == NULL) {
    return false;
  }
  kvf_find *find = KVF_CONTAINER_OF(node, kvf_find, event);
  *out = (kvf_event){.kind = KVF_EVENT_TICKET, .id = find->id, .user = find->user, .u = {.found = find->status}};
  if (find->status == KVF_OK) {
    find->state = KVF_FIND_TOLD;
    kvf_wheel_arm(&finds->guest->context->wheel, &find->timer, kvf_time_add(now_ns, KVF_FIND_KEPT_NS));
  } else {
    free_find(finds, now_ns, find);
  }
  return true;
}

#ifndef NDEBUG

static void check_ask(const kvf_find_ask *ask)
{
  const kvf_peer *peer = ask->peer;
  assert(kvf_list_is_linked(&ask->link) == (peer != NULL));
  assert(ask->tries <= KVF_FIND_TRIES_MAX);
  if (peer != NULL) {
    assert(peer->users > 0 && peer->guest.in_flight <= KVF_FINDS_IN_FLIGHT_MAX);
  }
}

static void check_find(const kvf_find *find)
{
  uint32_t waiting = 0;
  for (uint32_t i = 0; i < find->asks_count; i++) {
    check_ask(&find->asks[i]);
    waiting += find->asks[i].peer != NULL;
  }
  assert(waiting == find->waiting);
  assert((waiting > 0) == (find->state == KVF_FIND_ASKING));
  assert(kvf_list_is_linked(&find->event) == (find->state == KVF_FIND_DECIDED));
  assert(kvf_timer_is_armed(&find->timer) == (find->state != KVF_FIND_DECIDED));
  assert((find->text != NULL) == (find->state != KVF_FIND_ASKING && find->status == KVF_OK));
}

uint32_t kvf_finds_check(const kvf_finds *finds)
{
  uint32_t events = 0;
  uint32_t holds = 0;
  for (const kvf_find *find = finds->by_id; find != NULL; find = find->by_id.next) {
    check_find(find);
    events += kvf_list_is_linked(&find->event);
    holds += find->waiting;
  }
  assert(events == kvf_check_list(&finds->guest->events));
  assert(HASH_CNT(by_id, finds->by_id) <= KVF_FINDS_MAX);
  return holds;
}

#endif
