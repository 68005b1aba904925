#include "core/find.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/time.h"
#include "wire/find_message.h"
#include "wire/ticket.h"

#define ANSWER_BYTES_MAX ((size_t)KVF_FRAME_HEADER_BYTES + KVF_FOUND_BYTES_MAX)

_Static_assert(KVF_FINDS_IN_FLIGHT_MAX < KVF_OUTBOX_BYTES_MAX / ANSWER_BYTES_MAX,
               "who is asked is not hung up on for his answers");

void kvf_finds_init(kvf_finds *finds, kvf_context *context, kvf_peers *peers)
{
  *finds = (kvf_finds){.context = context, .peers = peers, .next_id = 1};
  kvf_list_init(&finds->events);
}

/* Nothing is awaited of this peer any more. */
static void end_ask(kvf_finds *finds, uint64_t now_ns, kvf_lookup_ask *ask)
{
  if (ask->peer != NULL) {
    kvf_list_remove(&ask->link);
    kvf_peers_release(finds->peers, now_ns, ask->peer);
    ask->peer = NULL;
    ask->lookup->waiting--;
  }
}

static void end_asks(kvf_finds *finds, uint64_t now_ns, kvf_lookup *lookup)
{
  for (uint32_t i = 0; i < lookup->asks_count; i++) {
    end_ask(finds, now_ns, &lookup->asks[i]);
  }
}

static void free_lookup(kvf_finds *finds, uint64_t now_ns, kvf_lookup *lookup)
{
  end_asks(finds, now_ns, lookup);
  kvf_wheel_disarm(&finds->context->wheel, &lookup->timer);
  kvf_list_remove(&lookup->event);
  HASH_DELETE(by_id, finds->by_id, lookup);
  free(lookup->text);
  free(lookup);
}

void kvf_finds_free(kvf_finds *finds)
{
  kvf_lookup *lookup;
  kvf_lookup *next;
  HASH_ITER(by_id, finds->by_id, lookup, next)
  {
    free_lookup(finds, 0, lookup);
  }
}

static kvf_lookup *find(const kvf_finds *finds, uint64_t id)
{
  kvf_lookup *lookup;
  HASH_FIND(by_id, finds->by_id, &id, sizeof(id), lookup);
  return lookup;
}

/* ---- the result ---- */

static void decide(kvf_finds *finds, uint64_t now_ns, kvf_lookup *lookup, kvf_status status)
{
  assert(lookup->state == KVF_LOOKUP_ASKING);
  end_asks(finds, now_ns, lookup);
  kvf_wheel_disarm(&finds->context->wheel, &lookup->timer);
  lookup->state = KVF_LOOKUP_DECIDED;
  lookup->status = status;
  kvf_list_push_back(&finds->events, &lookup->event);
  finds->counters.over[kvf_status_index(status)]++;
}

/* This peer has none (KVF_NOT_FOUND), or cannot say. */
static void give_up(kvf_finds *finds, uint64_t now_ns, kvf_lookup_ask *ask, kvf_status status)
{
  kvf_lookup *lookup = ask->lookup;
  end_ask(finds, now_ns, ask);
  lookup->any_answered = lookup->any_answered || status == KVF_NOT_FOUND;
  lookup->status = status;
  if (lookup->waiting == 0) {
    decide(finds, now_ns, lookup, lookup->any_answered ? KVF_NOT_FOUND : status);
  }
}

/* ---- questions ---- */

/* It is to be asked when its connection is open: an OPEN or NAMED notice follows. */
static void want(kvf_finds *finds, uint64_t now_ns, kvf_lookup_ask *ask)
{
  kvf_list_ensure_back(&ask->peer->finds.due, &ask->link);
  kvf_peers_want_open(finds->peers, now_ns, ask->peer);
}

/* Asks under another name of the peer at this address; all zeros: whoever answers there. */
static void rename_peer(kvf_finds *finds, uint64_t now_ns, kvf_lookup_ask *ask, const kvf_incarnation *name)
{
  kvf_peer *peer;
  kvf_status status = kvf_peers_acquire(finds->peers, &ask->peer->key.address, name, &peer);
  if (status != KVF_OK) {
    give_up(finds, now_ns, ask, status);
    return;
  }
  kvf_list_remove(&ask->link);
  kvf_peers_release(finds->peers, now_ns, ask->peer);
  ask->peer = peer;
  want(finds, now_ns, ask);
}

static void send_due(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer)
{
  kvf_list *node;
  while (peer->finds.in_flight < KVF_FINDS_IN_FLIGHT_MAX && (node = kvf_list_pop_front(&peer->finds.due)) != NULL) {
    kvf_lookup_ask *ask = KVF_CONTAINER_OF(node, kvf_lookup_ask, link);
    kvf_find message = {.id = ask->lookup->id};
    uint8_t body[KVF_FIND_BYTES_MAX];
    size_t bytes = 0;
    memcpy(message.tag, ask->lookup->tag, sizeof(message.tag));
    kvf_status status = kvf_find_encode(&message, body, sizeof(body), &bytes);
    if (status == KVF_OK) {
      status = kvf_conn_send(peer->conn, KVF_FRAME_FIND, body, bytes);
    }
    if (status != KVF_OK) {
      give_up(finds, now_ns, ask, status == KVF_NO_MEMORY ? status : KVF_PEER_DOWN); /* it does not read */
      continue;
    }
    kvf_list_push_back(&peer->finds.asked, &ask->link);
    peer->finds.in_flight++;
    ask->tries++;
    finds->counters.asked++;
    kvf_peers_await(finds->peers, now_ns, peer);
  }
}

void kvf_finds_on_open(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer, kvf_status status)
{
  kvf_list *node;
  if (status == KVF_OK && peer->state == KVF_PEER_READY) {
    send_due(finds, now_ns, peer);
  } else if (status == KVF_OK && !kvf_list_is_empty(&peer->finds.due)) {
    kvf_peers_want_open(finds->peers, now_ns, peer); /* it was open, and has been given up for a new one since */
  }
  while (status != KVF_OK && (node = kvf_list_pop_front(&peer->finds.due)) != NULL) {
    kvf_lookup_ask *ask = KVF_CONTAINER_OF(node, kvf_lookup_ask, link);
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
  while (!kvf_list_is_empty(&peer->finds.due)) {
    rename_peer(finds, now_ns, KVF_CONTAINER_OF(peer->finds.due.next, kvf_lookup_ask, link), &named);
  }
}

void kvf_finds_on_closed(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer)
{
  kvf_list *node;
  peer->finds.in_flight = 0;
  while ((node = kvf_list_pop_front(&peer->finds.asked)) != NULL) {
    kvf_lookup_ask *ask = KVF_CONTAINER_OF(node, kvf_lookup_ask, link);
    if (ask->tries < KVF_FIND_TRIES_MAX) {
      kvf_list_push_back(&peer->finds.due, &ask->link);
    } else {
      give_up(finds, now_ns, ask, KVF_PEER_DOWN);
    }
  }
  if (!kvf_list_is_empty(&peer->finds.due)) {
    kvf_peers_want_open(finds->peers, now_ns, peer);
  }
}

/* ---- answers ---- */

static kvf_lookup_ask *asked_of(kvf_peer *peer, uint64_t id)
{
  for (kvf_list *node = peer->finds.asked.next; node != &peer->finds.asked; node = node->next) {
    kvf_lookup_ask *ask = KVF_CONTAINER_OF(node, kvf_lookup_ask, link);
    if (ask->lookup->id == id) {
      return ask;
    }
  }
  return NULL;
}

/* KVF_PROTOCOL: not a ticket of our key, or of another prompt. KVF_INCOMPATIBLE: of a version that we do not read.
 * KVF_NO_MEMORY. */
static kvf_status check_ticket(const kvf_finds *finds, const kvf_lookup *lookup, const kvf_found *found)
{
  const kvf_context *context = finds->context;
  kvf_ticket *ticket = malloc(sizeof(*ticket));
  if (ticket == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_status status =
      kvf_ticket_decode(found->text, found->text_bytes, context->self.macs, context->self.macs_count, ticket);
  if (status == KVF_OK) {
    const kvf_prompt *prompt = &ticket->prompt;
    const bool is_it = prompt->tokens == lookup->prompt.tokens &&
                       memcmp(prompt->hash, lookup->prompt.hash, sizeof(prompt->hash)) == 0 &&
                       memcmp(prompt->model, lookup->prompt.model, sizeof(prompt->model)) == 0;
    status = is_it ? KVF_OK : KVF_PROTOCOL;
    kvf_ticket_free(ticket);
  }
  free(ticket);
  return status == KVF_BAD_TICKET || status == KVF_OTHER_KEY ? KVF_PROTOCOL : status;
}

static kvf_status take_ticket(const kvf_finds *finds, kvf_lookup *lookup, const kvf_found *found)
{
  kvf_status status = check_ticket(finds, lookup, found);
  if (status == KVF_OK) {
    lookup->text = malloc(found->text_bytes);
    status = lookup->text == NULL ? KVF_NO_MEMORY : KVF_OK;
  }
  if (status == KVF_OK) {
    memcpy(lookup->text, found->text, found->text_bytes);
    lookup->text_bytes = found->text_bytes;
  }
  return status;
}

kvf_status kvf_finds_on_found(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer, const uint8_t *body, size_t body_bytes)
{
  kvf_found found;
  if (peer->finds.in_flight == 0 || kvf_found_decode(body, body_bytes, &found) != KVF_OK) {
    return KVF_PROTOCOL;
  }
  peer->finds.in_flight--;
  kvf_lookup_ask *ask = asked_of(peer, found.id);
  kvf_status status = KVF_NOT_FOUND;
  if (ask == NULL) {
    finds->counters.dropped += found.status == KVF_FOUND_TICKET;
  } else if (found.status == KVF_FOUND_TICKET) {
    status = take_ticket(finds, ask->lookup, &found);
  }
  if (status == KVF_OK) {
    decide(finds, now_ns, ask->lookup, KVF_OK);
  } else if (ask != NULL) {
    give_up(finds, now_ns, ask, status);
  }
  if (status == KVF_PROTOCOL) {
    return status;
  }
  if (peer->finds.in_flight > 0) {
    kvf_peers_await(finds->peers, now_ns, peer);
  }
  send_due(finds, now_ns, peer);
  return KVF_OK;
}

/* ---- a find from its call to its end ---- */

/* Whether `at` is this peer, as the option names it or by its address. */
static bool is_at(const kvf_known_peer *known, const char *at)
{
  kvf_address address;
  return strcmp(known->name, at) == 0 ||
         (kvf_address_parse(at, 0, &address) == KVF_OK && address.port == known->address.port &&
          memcmp(address.ip, known->address.ip, sizeof(address.ip)) == 0);
}

/* Holds each peer that is to be asked once. */
static kvf_status acquire_peers(kvf_finds *finds, uint64_t now_ns, kvf_lookup *lookup, const char *at)
{
  kvf_peers *peers = finds->peers;
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; i < peers->known_count && status == KVF_OK; i++) {
    kvf_lookup_ask *ask = &lookup->asks[lookup->asks_count];
    if (at != NULL && !is_at(&peers->known[i], at)) {
      continue;
    }
    status = kvf_peers_acquire_known(peers, i, &ask->peer);
    bool is_new = status == KVF_OK;
    for (uint32_t k = 0; k < lookup->asks_count; k++) {
      is_new = is_new && lookup->asks[k].peer != ask->peer;
    }
    if (is_new) {
      ask->lookup = lookup;
      kvf_list_init(&ask->link);
      lookup->asks_count++;
      lookup->waiting++;
    } else if (status == KVF_OK) {
      kvf_peers_release(peers, now_ns, ask->peer); /* two names of one address */
    }
  }
  return status == KVF_OK && lookup->asks_count == 0 ? KVF_NOT_FOUND : status;
}

kvf_status kvf_finds_start(kvf_finds *finds, uint64_t now_ns, const kvf_prompt *prompt, const char *at,
                           uint32_t timeout_ms, uint64_t user, uint64_t *id)
{
  if (timeout_ms > KVF_FIND_TIMEOUT_MS_MAX) {
    return KVF_INVALID;
  }
  if (HASH_CNT(by_id, finds->by_id) >= KVF_FINDS_MAX) {
    return KVF_NO_RESOURCE;
  }
  kvf_lookup *lookup = calloc(1, sizeof(*lookup) + finds->peers->known_count * sizeof(lookup->asks[0]));
  if (lookup == NULL) {
    return KVF_NO_MEMORY;
  }
  lookup->id = finds->next_id;
  lookup->user = user;
  lookup->prompt = *prompt;
  kvf_list_init(&lookup->event);
  kvf_timer_init(&lookup->timer, KVF_TIMER_FIND);
  kvf_status status = kvf_find_prompt_tag(&finds->context->self.macs[0], prompt, lookup->tag);
  if (status == KVF_OK) {
    status = acquire_peers(finds, now_ns, lookup, at);
  }
  if (status == KVF_OK) {
    HASH_ADD(by_id, finds->by_id, id, sizeof(lookup->id), lookup);
    status = lookup->by_id.tbl == NULL ? KVF_NO_MEMORY : KVF_OK;
  }
  if (status != KVF_OK) {
    end_asks(finds, now_ns, lookup);
    free(lookup);
    return status;
  }
  *id = finds->next_id++;
  const uint32_t own_ms = finds->context->config.handshake_timeout_ms;
  kvf_wheel_arm(&finds->context->wheel, &lookup->timer,
                kvf_time_add(now_ns, kvf_ms_to_ns(timeout_ms == 0 ? own_ms : timeout_ms)));
  for (uint32_t i = 0; i < lookup->asks_count; i++) {
    want(finds, now_ns, &lookup->asks[i]);
  }
  return KVF_OK;
}

kvf_status kvf_finds_take(kvf_finds *finds, uint64_t now_ns, uint64_t id, char *text, size_t capacity,
                          size_t *text_bytes)
{
  kvf_lookup *lookup = find(finds, id);
  if (lookup == NULL || lookup->state != KVF_LOOKUP_TOLD) {
    return KVF_NOT_FOUND;
  }
  if (lookup->text_bytes > capacity) {
    return KVF_LIMIT;
  }
  memcpy(text, lookup->text, lookup->text_bytes);
  *text_bytes = lookup->text_bytes;
  free_lookup(finds, now_ns, lookup);
  return KVF_OK;
}

kvf_status kvf_finds_forget(kvf_finds *finds, uint64_t now_ns, uint64_t id)
{
  kvf_lookup *lookup = find(finds, id);
  if (lookup == NULL) {
    return KVF_NOT_FOUND;
  }
  finds->counters.forgotten++;
  free_lookup(finds, now_ns, lookup);
  return KVF_OK;
}

void kvf_finds_on_timer(kvf_finds *finds, uint64_t now_ns, kvf_lookup *lookup)
{
  if (lookup->state == KVF_LOOKUP_ASKING) {
    decide(finds, now_ns, lookup, KVF_DEADLINE);
  } else {
    finds->counters.forgotten++;
    free_lookup(finds, now_ns, lookup);
  }
}

bool kvf_finds_next_event(kvf_finds *finds, uint64_t now_ns, kvf_event *out)
{
  kvf_list *node = kvf_list_pop_front(&finds->events);
  if (node == NULL) {
    return false;
  }
  kvf_lookup *lookup = KVF_CONTAINER_OF(node, kvf_lookup, event);
  *out = (kvf_event){.kind = KVF_EVENT_TICKET, .id = lookup->id, .user = lookup->user, .u = {.found = lookup->status}};
  if (lookup->status == KVF_OK) {
    lookup->state = KVF_LOOKUP_TOLD;
    kvf_wheel_arm(&finds->context->wheel, &lookup->timer, kvf_time_add(now_ns, KVF_FIND_KEPT_NS));
  } else {
    free_lookup(finds, now_ns, lookup);
  }
  return true;
}
