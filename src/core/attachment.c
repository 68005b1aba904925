/* Attachments: a ticket's leases, kept alive at every rank of their producers, and told the end. */
#include "core/attachment.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/check_list.h"

/* How often a lease is renewed in its TTL, so that two renewals may be lost; and the bounds of that interval. */
#define RENEWALS_PER_TTL 3
#define TELL_MIN_NS (50 * KVF_NS_PER_MS)
#define TELL_MAX_NS (5 * KVF_NS_PER_S)

/* ---- memory ---- */

void kvf_attachments_init(kvf_attachments *attachments, kvf_context *context, kvf_peers *peers)
{
  *attachments = (kvf_attachments){.context = context, .peers = peers, .next_id = 1};
  kvf_list_init(&attachments->lost);
}

static void let_peers_go(kvf_attachments *attachments, uint64_t now_ns, kvf_attachment *attachment)
{
  for (uint32_t i = 0; i < attachment->ranks_count; i++) {
    kvf_list_remove(&attachment->ranks[i].due);
    kvf_peers_release(attachments->peers, now_ns, attachment->ranks[i].peer);
  }
}

/* Requests join it no more. */
static void close(kvf_attachments *attachments, kvf_attachment *attachment)
{
  if (attachment->by_leases.tbl != NULL) {
    HASH_DELETE(by_leases, attachments->by_leases, attachment);
    attachment->by_leases.tbl = NULL;
  }
}

static void free_attachment(kvf_attachments *attachments, uint64_t now_ns, kvf_attachment *attachment)
{
  assert(kvf_list_is_empty(&attachment->requests));
  let_peers_go(attachments, now_ns, attachment);
  kvf_wheel_disarm(&attachments->context->wheel, &attachment->timer);
  kvf_list_remove(&attachment->losing);
  close(attachments, attachment);
  HASH_DELETE(by_id, attachments->by_id, attachment);
  free(attachment);
}

void kvf_attachments_free(kvf_attachments *attachments)
{
  kvf_attachment *attachment;
  kvf_attachment *next;
  HASH_ITER(by_id, attachments->by_id, attachment, next)
  {
    free_attachment(attachments, 0, attachment);
  }
}

static bool is_left(const kvf_attachment *attachment)
{
  return kvf_list_is_empty(&attachment->requests);
}

/* ---- renewals and the end, to every rank of the producers ---- */

static void tell(kvf_attachments *attachments, uint64_t now_ns, kvf_attachment *attachment)
{
  uint64_t interval_ns = attachment->ttl_min_ns / RENEWALS_PER_TTL;
  interval_ns = interval_ns < TELL_MIN_NS ? TELL_MIN_NS : kvf_time_min(interval_ns, TELL_MAX_NS);
  kvf_wheel_arm(&attachments->context->wheel, &attachment->timer,
                kvf_time_min(kvf_time_add(now_ns, interval_ns), attachment->until_ns));
  for (uint32_t i = 0; i < attachment->ranks_count; i++) {
    kvf_attachment_rank *rank = &attachment->ranks[i];
    if (!rank->acked) {
      kvf_list_ensure_back(&rank->peer->due, &rank->due);
      kvf_peers_want_open(attachments->peers, now_ns, rank->peer);
    }
  }
}

/* Producer ranks that have not answered its end. */
static uint32_t count_unacked(const kvf_attachment *attachment)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < attachment->ranks_count; i++) {
    count += !attachment->ranks[i].acked;
  }
  return count;
}

static void stop_telling(kvf_attachments *attachments, uint64_t now_ns, kvf_attachment *attachment)
{
  assert(attachments->left > 0 && is_left(attachment));
  attachments->left--;
  free_attachment(attachments, now_ns, attachment);
}

/* Takes what is due off the list, as much as fits one frame. */
static void collect(kvf_attachments *attachments, kvf_list *due, kvf_leases *leases)
{
  kvf_list *node;
  leases->count = 0;
  leases->seq = ++attachments->next_seq;
  while (leases->count < KVF_LEASE_ITEMS_MAX && (node = kvf_list_pop_front(due)) != NULL) {
    kvf_attachment_rank *rank = KVF_CONTAINER_OF(node, kvf_attachment_rank, due);
    const kvf_attachment *attachment = rank->attachment;
    const bool finishes = is_left(attachment);
    rank->unreached = false;
    if (finishes && rank->finish_seq == 0) {
      rank->finish_seq = leases->seq;
    }
    assert(rank->finish_seq == 0 || finishes);
    attachments->counters.finishes += finishes;
    attachments->counters.renewals += !finishes;
    leases->items[leases->count++] =
        (kvf_leases_item){.lease = attachment->leases[rank->source],
                          .request_id = attachment->id,
                          .kind = (uint8_t)(finishes ? attachment->finish : KVF_FINISH_NONE)};
  }
}

/* ---- who joins and leaves ---- */

static kvf_status acquire_peers(kvf_attachments *attachments, kvf_attachment *attachment, const kvf_ticket *ticket,
                                uint32_t source)
{
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i < ticket->ranks; i++) {
    kvf_attachment_rank *rank = &attachment->ranks[attachment->ranks_count];
    *rank = (kvf_attachment_rank){.attachment = attachment, .source = source};
    status = kvf_peers_acquire_rank(attachments->peers, &ticket->rank[i], &rank->peer);
    kvf_list_init(&rank->due);
    attachment->ranks_count += status == KVF_OK;
  }
  return status;
}

static void name_leases(const kvf_sources *sources, kvf_lease leases[KVF_SOURCES_MAX])
{
  memset(leases, 0, KVF_SOURCES_MAX * sizeof(leases[0])); /* the bytes are a key */
  for (uint32_t i = 0; i < sources->count; i++) {
    const kvf_lease *lease = &sources->tickets[i]->lease;
    leases[i].id = lease->id;
    leases[i].slot = lease->slot;
    memcpy(leases[i].token, lease->token, sizeof(lease->token));
  }
}

static void fill(kvf_attachments *attachments, kvf_attachment *attachment, const kvf_sources *sources)
{
  attachment->id = attachments->next_id;
  attachment->sources_left = (1u << sources->count) - 1;
  attachment->until_ns = KVF_TIME_NEVER;
  attachment->ttl_min_ns = kvf_ms_to_ns(sources->tickets[0]->ttl_ms);
  for (uint32_t i = 0; i < sources->count; i++) {
    const uint64_t ttl_ns = kvf_ms_to_ns(sources->tickets[i]->ttl_ms);
    attachment->ttl_min_ns = kvf_time_min(attachment->ttl_min_ns, ttl_ns);
    attachment->ttl_max_ns = ttl_ns > attachment->ttl_max_ns ? ttl_ns : attachment->ttl_max_ns;
  }
  name_leases(sources, attachment->leases);
  kvf_list_init(&attachment->requests);
  kvf_list_init(&attachment->losing);
  kvf_timer_init(&attachment->timer, KVF_TIMER_ATTACHMENT);
}

/* KVF_NO_MEMORY: it is in neither table. */
static kvf_status enter(kvf_attachments *attachments, kvf_attachment *attachment)
{
  HASH_ADD(by_id, attachments->by_id, id, sizeof(attachment->id), attachment);
  if (attachment->by_id.tbl == NULL) {
    return KVF_NO_MEMORY;
  }
  HASH_ADD(by_leases, attachments->by_leases, leases, sizeof(attachment->leases), attachment);
  if (attachment->by_leases.tbl == NULL) {
    HASH_DELETE(by_id, attachments->by_id, attachment);
    return KVF_NO_MEMORY;
  }
  return KVF_OK;
}

static kvf_status begin(kvf_attachments *attachments, uint64_t now_ns, const kvf_sources *sources, kvf_attachment **out)
{
  uint32_t ranks = 0;
  for (uint32_t i = 0; i < sources->count; i++) {
    ranks += sources->tickets[i]->ranks;
  }
  kvf_attachment *attachment = calloc(1, sizeof(*attachment) + ranks * sizeof(attachment->ranks[0]));
  if (attachment == NULL) {
    return KVF_NO_MEMORY;
  }
  fill(attachments, attachment, sources);
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i < sources->count; i++) {
    status = acquire_peers(attachments, attachment, sources->tickets[i], i);
  }
  status = status == KVF_OK ? enter(attachments, attachment) : status;
  if (status != KVF_OK) {
    let_peers_go(attachments, now_ns, attachment);
    free(attachment);
    return status;
  }
  attachments->next_id++;
  attachments->peers->has_requests = true;
  *out = attachment;
  return KVF_OK;
}

kvf_status kvf_attachments_join(kvf_attachments *attachments, uint64_t now_ns, const kvf_sources *sources,
                                kvf_list *member, kvf_attachment **out)
{
  kvf_lease leases[KVF_SOURCES_MAX];
  kvf_attachment *attachment;
  name_leases(sources, leases);
  HASH_FIND(by_leases, attachments->by_leases, leases, sizeof(leases), attachment);
  const bool is_new = attachment == NULL;
  if (is_new) {
    kvf_status status = begin(attachments, now_ns, sources, &attachment);
    if (status != KVF_OK) {
      return status;
    }
  }
  assert(attachment->lost == KVF_OK && is_new == is_left(attachment));
  kvf_list_push_back(&attachment->requests, member);
  if (is_new) {
    tell(attachments, now_ns, attachment);
  }
  *out = attachment;
  return KVF_OK;
}

void kvf_attachments_leave(kvf_attachments *attachments, uint64_t now_ns, kvf_attachment *attachment, kvf_list *member,
                           kvf_finish_kind kind)
{
  assert(kind != KVF_FINISH_NONE && kvf_list_is_linked(member));
  kvf_list_remove(member);
  if (attachment->finish == KVF_FINISH_NONE || kind < attachment->finish) {
    attachment->finish = kind;
  }
  if (is_left(attachment)) {
    close(attachments, attachment);
    attachments->left++;
    /* The last renewal may have been processed a moment ago; half a TTL covers clocks and queues. */
    attachment->until_ns = kvf_time_add(now_ns, attachment->ttl_max_ns + attachment->ttl_max_ns / 2);
    tell(attachments, now_ns, attachment);
  }
}

/* ---- what becomes of the producers meanwhile ---- */

/* This rank's source lacks it from now on. */
static void lose(kvf_attachments *attachments, const kvf_attachment_rank *rank, kvf_status status)
{
  kvf_attachment *attachment = rank->attachment;
  if (is_left(attachment) || attachment->lost != KVF_OK) {
    return;
  }
  assert(attachment->sources_left != 0);
  attachment->sources_left &= ~(1u << rank->source);
  if (attachment->sources_left == 0) {
    attachment->lost = status;
    close(attachments, attachment);
    kvf_list_push_back(&attachments->lost, &attachment->losing);
  }
}

kvf_attachment *kvf_attachments_next_lost(kvf_attachments *attachments)
{
  kvf_list *node = kvf_list_pop_front(&attachments->lost);
  return node == NULL ? NULL : KVF_CONTAINER_OF(node, kvf_attachment, losing);
}

/* A single try may meet a full backlog, or a short failure of the network. So a peer is given up after two failures in
 * a row. */
static void on_unreached(kvf_attachments *attachments, kvf_attachment_rank *rank, kvf_status status)
{
  if (status == KVF_NO_MEMORY) {
    return; /* ours: it says nothing of the peer */
  }
  if (rank->unreached || status == KVF_PEER_RESTARTED) {
    /* Loads of this node may have seen that it stands still: what a request that waits has lost is the peer. */
    const bool is_of_blocks = kvf_status_describe(status)->lost == KVF_LOST_BLOCK;
    lose(attachments, rank, is_of_blocks ? KVF_PEER_DOWN : status);
  }
  rank->unreached = true;
}

void kvf_attachments_on_open(kvf_attachments *attachments, uint64_t now_ns, kvf_peer *peer, kvf_status status)
{
  kvf_leases leases;
  uint8_t body[KVF_LEASES_BYTES_MAX];
  size_t bytes = 0;
  kvf_list *node;
  while (status != KVF_OK && (node = kvf_list_pop_front(&peer->due)) != NULL) {
    on_unreached(attachments, KVF_CONTAINER_OF(node, kvf_attachment_rank, due), status);
  }
  while (peer->state == KVF_PEER_READY && !kvf_list_is_empty(&peer->due)) {
    collect(attachments, &peer->due, &leases);
    if (kvf_leases_encode(&leases, body, sizeof(body), &bytes) != KVF_OK ||
        kvf_conn_send(peer->conn, KVF_FRAME_LEASES, body, bytes) != KVF_OK) {
      return; /* the peer does not read: what was taken comes again at its next time */
    }
    kvf_peers_await(attachments->peers, now_ns, peer);
  }
}

static void on_finish_heard(kvf_attachment_rank *rank, uint32_t seq, uint32_t state)
{
  /* The answer to a renewal that was under way says nothing of our finish. */
  if (rank->finish_seq == 0 || (int32_t)(seq - rank->finish_seq) < 0) {
    return;
  }
  /* Live after our finish: another consumer is attached, ours is counted. Not published yet: it must hear us again. */
  if (state != KVF_LEASE_STATE_NOT_PUBLISHED) {
    rank->acked = true;
    kvf_list_remove(&rank->due);
  }
}

static void on_rank_state(kvf_attachments *attachments, kvf_attachment_rank *rank, uint32_t seq, uint32_t state)
{
  if (is_left(rank->attachment)) {
    on_finish_heard(rank, seq, state);
  } else if (state == KVF_LEASE_STATE_ENDED) {
    lose(attachments, rank, KVF_LEASE_EXPIRED);
  } else if (state == KVF_LEASE_STATE_UNKNOWN) {
    lose(attachments, rank, KVF_LEASE_UNKNOWN);
  } else if (state == KVF_LEASE_STATE_CROWDED) {
    rank->attachment->crowded = true;
    lose(attachments, rank, KVF_LEASE_CROWDED); /* not attached, it may lose the blocks at any moment */
  }
}

/* A text that names one lease twice has several ranks for it. */
static void on_state(kvf_attachments *attachments, uint64_t now_ns, const kvf_peer *peer, uint32_t seq,
                     const kvf_lease_states_item *item)
{
  kvf_attachment *attachment;
  HASH_FIND(by_id, attachments->by_id, &item->request_id, sizeof(item->request_id), attachment);
  bool asked = false;
  for (uint32_t i = 0; attachment != NULL && i < attachment->ranks_count; i++) {
    kvf_attachment_rank *rank = &attachment->ranks[i];
    if (rank->peer == peer && attachment->leases[rank->source].id == item->lease_id) {
      asked = true;
      on_rank_state(attachments, rank, seq, item->state);
    }
  }
  if (asked && is_left(attachment) && count_unacked(attachment) == 0) {
    stop_telling(attachments, now_ns, attachment);
  }
}

kvf_status kvf_attachments_on_states(kvf_attachments *attachments, uint64_t now_ns, const kvf_peer *peer,
                                     const uint8_t *body, size_t body_bytes)
{
  kvf_lease_states states;
  if (kvf_lease_states_decode(body, body_bytes, &states) != KVF_OK) {
    return KVF_PROTOCOL;
  }
  for (uint32_t i = 0; i < states.count; i++) {
    on_state(attachments, now_ns, peer, states.seq, &states.items[i]);
  }
  return KVF_OK;
}

void kvf_attachments_on_timer(kvf_attachments *attachments, uint64_t now_ns, kvf_attachment *attachment)
{
  if (now_ns >= attachment->until_ns) {
    attachments->counters.finishes_given_up += count_unacked(attachment);
    stop_telling(attachments, now_ns, attachment);
  } else {
    assert(now_ns >= attachment->timer.expires_ns); /* no timer is early */
    tell(attachments, now_ns, attachment);
  }
}

#ifndef NDEBUG

static void check_rank(const kvf_attachment *attachment, const kvf_attachment_rank *rank)
{
  const bool left = is_left(attachment);
  assert(rank->attachment == attachment && rank->source < KVF_SOURCES_MAX);
  assert(rank->peer->users > 0);
  assert(!rank->acked || (rank->finish_seq != 0 && !kvf_list_is_linked(&rank->due)));
  assert(rank->finish_seq == 0 || left);
}

static void check_attachment(const kvf_attachments *attachments, const kvf_attachment *attachment)
{
  const bool left = is_left(attachment);
  assert(attachment->id < attachments->next_id);
  assert(kvf_timer_is_armed(&attachment->timer));
  assert(attachment->timer.expires_ns <= attachment->until_ns);
  assert(left || attachment->until_ns == KVF_TIME_NEVER);
  assert(!left || (attachment->finish != KVF_FINISH_NONE && count_unacked(attachment) > 0));
  assert((attachment->by_leases.tbl != NULL) == (!left && attachment->lost == KVF_OK));
  assert((attachment->sources_left == 0) == (attachment->lost != KVF_OK));
  assert(attachment->ttl_min_ns <= attachment->ttl_max_ns);
  for (uint32_t i = 0; i < attachment->ranks_count; i++) {
    check_rank(attachment, &attachment->ranks[i]);
  }
}

uint32_t kvf_attachments_check(const kvf_attachments *attachments, uint32_t *holds)
{
  uint32_t requests = 0;
  uint32_t left = 0;
  uint32_t joinable = 0;
  for (const kvf_attachment *attachment = attachments->by_id; attachment != NULL; attachment = attachment->by_id.next) {
    check_attachment(attachments, attachment);
    requests += kvf_check_list(&attachment->requests);
    left += is_left(attachment);
    joinable += attachment->by_leases.tbl != NULL;
    *holds += attachment->ranks_count;
  }
  assert(kvf_list_is_empty(&attachments->lost));
  assert(left == attachments->left);
  assert(joinable == HASH_CNT(by_leases, attachments->by_leases));
  return requests;
}

#endif
