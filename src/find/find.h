/* Finds: a consumer's node asks producers for the ticket of a key. Only those of the option peers are asked, at most
 * once each, over the control connection (one is made if there is none). The first ticket is the answer.
 *
 *   ASKING ──a ticket, or nobody is left to answer, or the timeout──► DECIDED ──event taken──► TOLD ──taken──► gone
 *
 * A find without a ticket is gone with its event; one with a ticket that is not taken in KVF_FIND_KEPT_NS is forgotten.
 *
 * A producer gives each of its offers to one find. A question that is repeated after a lost connection has the same id,
 * so that a lost answer comes again. A ticket that comes after the end of its find is dropped; its lease expires.
 */
#ifndef KVF_FIND_FIND_H
#define KVF_FIND_FIND_H

#include "core/guest.h"
#include "find/key.h"
#include "kvferry/consumer.h"

/* Open at once, those included whose event or ticket has not been taken. */
#define KVF_FINDS_MAX 1000
/* Questions to a peer that are not answered yet: the answers, with the longest tickets, fit its outbox
 * (KVF_OUTBOX_BYTES_MAX) beside what else is in it. The others wait. */
#define KVF_FINDS_IN_FLIGHT_MAX 4
/* How often a peer is asked anew because the connection was lost. */
#define KVF_FIND_TRIES_MAX 3
/* How long a ticket waits to be taken. */
#define KVF_FIND_KEPT_NS (30 * KVF_NS_PER_S)

typedef enum kvf_find_state { KVF_FIND_ASKING, KVF_FIND_DECIDED, KVF_FIND_TOLD } kvf_find_state;

typedef struct kvf_find kvf_find;

/* One peer that a find asks. */
typedef struct kvf_find_ask {
  kvf_find *find;
  kvf_peer *peer; /* held; NULL: it has answered, or will not */
  kvf_list link;  /* in peer->guest.due, then in .asked */
  uint32_t tries;
  bool is_renamed; /* the process that was known there is gone: its successor is asked, once */
} kvf_find_ask;

struct kvf_find {
  uint64_t id;
  UT_hash_handle by_id;
  uint64_t user;
  kvf_find_key key;
  uint8_t seal[KVF_HASH_BYTES];
  kvf_find_state state;
  kvf_status status; /* ASKING: why the last peer that did not answer has not */
  bool any_answered; /* that it has none */
  kvf_list event;    /* in kvf_guest.events while DECIDED */
  kvf_timer timer;
  char *text; /* owned; NULL: no ticket */
  size_t text_bytes;
  uint32_t waiting; /* asks that have a peer */
  uint32_t asks_count;
  kvf_find_ask asks[];
};

/* Only grow. */
typedef struct kvf_find_counters {
  uint64_t over[KVF_STATUSES_MAX]; /* finds by result: [i] of kvf_status_at(i) */
  uint64_t asked;                  /* questions sent */
  uint64_t dropped;                /* tickets that came, and that nobody wanted any more */
  uint64_t forgotten;              /* with a ticket that was not taken */
} kvf_find_counters;

typedef struct kvf_finds {
  kvf_guest *guest;
  kvf_find *by_id;
  uint64_t next_id;
  kvf_find_counters counters;
} kvf_finds;

void kvf_finds_init(kvf_finds *finds, kvf_guest *guest);
/* Before the peers. */
void kvf_finds_free(kvf_finds *finds);

/* kvf_ticket_find() and kvf_ticket_take() of kvferry/consumer.h. */
KVF_MUST_USE kvf_status kvf_finds_start(kvf_finds *finds, uint64_t now_ns, const kvf_find_key *key, const char *at,
                                        uint32_t timeout_ms, uint64_t user, uint64_t *id);
KVF_MUST_USE kvf_status kvf_finds_take(kvf_finds *finds, uint64_t now_ns, uint64_t id, char *text, size_t capacity,
                                       size_t *text_bytes);

/* What the peers' notices say. KVF_OK: the connection is open: says all that is due. */
void kvf_finds_on_open(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer, kvf_status status);
void kvf_finds_on_named(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer);
void kvf_finds_on_closed(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer);
/* A FOUND came. KVF_PROTOCOL: it is none, or answers nothing, or brings another ticket than was asked for. */
KVF_MUST_USE kvf_status kvf_finds_on_found(kvf_finds *finds, uint64_t now_ns, kvf_peer *peer, const uint8_t *body,
                                           size_t body_bytes);
void kvf_finds_on_timer(kvf_finds *finds, uint64_t now_ns, kvf_find *find);

/* For kvf_core_check(). Returns how many holds of peers they have. */
uint32_t kvf_finds_check(const kvf_finds *finds);

KVF_MUST_USE bool kvf_finds_next_event(kvf_finds *finds, uint64_t now_ns, kvf_event *out);

#endif
