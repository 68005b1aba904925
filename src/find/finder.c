/* The finder as a core's guest: hands what concerns them to offers and finds, and answers FINDs. */
#include "find/finder.h"

#include <string.h>

#include "base/status.h"
#include "core/session.h"
#include "wire/find_message.h"

static kvf_finder *finder_of(kvf_guest *guest)
{
  return KVF_CONTAINER_OF(guest, kvf_finder, guest);
}

/* ---- questions ---- */

static void log_limit(const kvf_finder *finder, const kvf_session *session, uint64_t now_ns)
{
  char address[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&session->address, address);
  kvf_context_log(finder->guest.context, now_ns, KVF_LIMIT, session->address.port, KVF_LOG_WARN,
                  "%s asks for more than %u tickets a second: further finds end with not_found", address,
                  KVF_FINDS_PER_S);
}

/* The offer that the question is answered with; NULL: none. */
static const kvf_offer *offer_for(kvf_finder *finder, uint64_t now_ns, kvf_session *session,
                                  const kvf_find_question *question)
{
  session->guest_budget.tokens_per_s = KVF_FINDS_PER_S;
  if (!kvf_budget_take(&session->guest_budget, now_ns, 1)) {
    finder->counters.refused++;
    log_limit(finder, session, now_ns);
    return NULL;
  }
  finder->counters.heard++;
  kvf_asker asker = {.incarnation = session->client, .find_id = question->id};
  memcpy(asker.key, question->key, sizeof(asker.key));
  return kvf_offers_take(&finder->offers, now_ns, &asker);
}

/* If there is none, the answer has the same bytes for any reason. */
static kvf_status on_question(kvf_guest *guest, uint64_t now_ns, kvf_session *session, const uint8_t *body,
                              size_t body_bytes)
{
  kvf_find_question question;
  uint8_t *answer;
  size_t bytes = 0;
  if (kvf_find_question_decode(body, body_bytes, &question) != KVF_OK) {
    return KVF_PROTOCOL;
  }
  kvf_found found = {.id = question.id};
  const kvf_offer *offer = offer_for(finder_of(guest), now_ns, session, &question);
  if (offer != NULL) {
    found.status = KVF_FOUND_TICKET;
    found.text = offer->text;
    found.text_bytes = offer->text_bytes;
  }
  const size_t room = KVF_FOUND_BYTES_MAX - KVF_TICKET_BYTES_MAX + found.text_bytes;
  kvf_status status = kvf_conn_frame_begin(session->conn, room, &answer);
  if (status == KVF_OK) {
    status = kvf_found_encode(&found, answer, room, &bytes);
  }
  if (status == KVF_OK) {
    kvf_conn_frame_end(session->conn, KVF_FRAME_FOUND, bytes);
  }
  return status;
}

/* ---- the rest of what a guest hears ---- */

static kvf_status on_answer(kvf_guest *guest, uint64_t now_ns, kvf_peer *peer, const uint8_t *body, size_t body_bytes)
{
  return kvf_finds_on_found(&finder_of(guest)->finds, now_ns, peer, body, body_bytes);
}

static void on_peer(kvf_guest *guest, uint64_t now_ns, const kvf_peer_notice *notice)
{
  kvf_finds *finds = &finder_of(guest)->finds;
  if (notice->kind == KVF_PEER_OPEN) {
    kvf_finds_on_open(finds, now_ns, notice->peer, notice->status);
  } else if (notice->kind == KVF_PEER_NAMED) {
    kvf_finds_on_named(finds, now_ns, notice->peer);
  } else {
    kvf_finds_on_closed(finds, now_ns, notice->peer);
  }
}

static void on_timer(kvf_guest *guest, uint64_t now_ns, kvf_timer *timer)
{
  kvf_finds_on_timer(&finder_of(guest)->finds, now_ns, KVF_CONTAINER_OF(timer, kvf_find, timer));
}

static void on_lease_ended(kvf_guest *guest, uint32_t slot)
{
  kvf_offers_lease_ended(&finder_of(guest)->offers, slot);
}

static bool next_event(kvf_guest *guest, uint64_t now_ns, kvf_event *out)
{
  return kvf_finds_next_event(&finder_of(guest)->finds, now_ns, out);
}

static uint32_t check(const kvf_guest *guest)
{
#ifdef NDEBUG
  (void)guest;
  return 0;
#else
  const kvf_finder *finder = KVF_CONTAINER_OF(guest, const kvf_finder, guest);
  kvf_offers_check(&finder->offers);
  return kvf_finds_check(&finder->finds);
#endif
}

static void leave(kvf_guest *guest)
{
  kvf_finds_free(&finder_of(guest)->finds);
  kvf_offers_free(&finder_of(guest)->offers);
}

void kvf_finder_init(kvf_finder *finder, kvf_core *core)
{
  *finder = (kvf_finder){.guest = {.question = KVF_FRAME_FIND,
                                   .answer = KVF_FRAME_FOUND,
                                   .on_question = on_question,
                                   .on_answer = on_answer,
                                   .on_peer = on_peer,
                                   .on_timer = on_timer,
                                   .on_lease_ended = on_lease_ended,
                                   .next_event = next_event,
                                   .check = check,
                                   .leave = leave}};
  kvf_core_invite(core, &finder->guest);
  kvf_offers_init(&finder->offers, finder->guest.context, finder->guest.leases);
  kvf_finds_init(&finder->finds, &finder->guest);
}

/* ---- for metrics ---- */

/* Whether a find can come to this. */
static bool ends_a_find(const kvf_status_info *info)
{
  static const kvf_status others[] = {KVF_OK, KVF_NOT_FOUND, KVF_DEADLINE, KVF_NO_MEMORY, KVF_NO_RESOURCE};
  bool ends = info->lost == KVF_LOST_PEER;
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
    ends = ends || info->status == others[i];
  }
  return ends;
}

size_t kvf_finder_stats(const kvf_finder *finder, kvf_stat *out, size_t capacity)
{
  const kvf_find_counters *finds = &finder->finds.counters;
  const kvf_stat stats[] = {
      {.name = "offers_open", .value = HASH_CNT(by_slot, finder->offers.by_slot), .gauge = true},
      {.name = "offers_made", .value = finder->offers.counters.made},
      {.name = "offers_given", .value = finder->offers.counters.given},
      {.name = "finds_heard", .value = finder->counters.heard},
      {.name = "finds_refused", .value = finder->counters.refused},
      {.name = "finds_asked", .value = finds->asked},
      {.name = "finds_dropped", .value = finds->dropped},
      {.name = "finds_forgotten", .value = finds->forgotten},
  };
  size_t count = 0;
  for (; count < sizeof(stats) / sizeof(stats[0]) && count < capacity; count++) {
    out[count] = stats[count];
    out[count].reason = "";
  }
  for (unsigned i = 0; kvf_status_at(i) != NULL && i < KVF_STATUSES_MAX && count < capacity; i++) {
    if (ends_a_find(kvf_status_at(i))) {
      out[count++] = (kvf_stat){.name = "finds", .reason = kvf_status_at(i)->name, .value = finds->over[i]};
    }
  }
  return count;
}
