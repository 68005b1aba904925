#include "core/request_internal.h"
#include "wire/lease_message.h"

/* How often a lease is renewed in its TTL, so that two renewals may be lost; and the bounds of that interval. */
#define RENEWALS_PER_TTL 3
#define TELL_MIN_NS (50 * KVF_NS_PER_MS)
#define TELL_MAX_NS (5 * KVF_NS_PER_S)

static uint64_t interval_ns(const kvf_request *request)
{
  uint64_t interval = request->ttl_min_ns / RENEWALS_PER_TTL;
  if (interval < TELL_MIN_NS) {
    return TELL_MIN_NS;
  }
  return kvf_time_min(interval, TELL_MAX_NS);
}

void kvf_request_rearm(kvf_requests *requests, kvf_request *request)
{
  uint64_t at = request->renew_ns;
  if (request->state != KVF_REQUEST_OPEN) {
    at = kvf_time_min(at, request->until_ns);
  }
  kvf_wheel_arm(requests->wheel, &request->timer, at);
}

void kvf_request_tell(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  request->renew_ns = kvf_time_add(now_ns, interval_ns(request));
  kvf_request_rearm(requests, request);
  for (uint32_t i = 0; i < request->ranks_count; i++) {
    kvf_request_rank *rank = &request->ranks[i];
    if (!rank->told) {
      kvf_list_ensure_back(&requests->due[rank->peer], &rank->due);
      kvf_peers_want_open(requests->peers, now_ns, rank->peer);
    }
  }
}

void kvf_request_finish(kvf_requests *requests, uint64_t now_ns, kvf_request *request, bool completed)
{
  request->state = KVF_REQUEST_FINISHING;
  request->completed = completed;
  /* The last renewal may have been processed a moment ago; half a TTL covers clocks and queues. */
  request->until_ns = kvf_time_add(now_ns, request->ttl_max_ns + request->ttl_max_ns / 2);
  kvf_request_tell(requests, now_ns, request);
}

bool kvf_request_is_told(const kvf_request *request)
{
  for (uint32_t i = 0; i < request->ranks_count; i++) {
    if (!request->ranks[i].told) {
      return false;
    }
  }
  return true;
}

static void free_if_done(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  if (!request->verdict_pending && kvf_request_is_told(request)) {
    kvf_request_free(requests, now_ns, request);
  }
}

void kvf_request_give_up(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  for (uint32_t i = 0; i < request->ranks_count; i++) {
    requests->counters.finishes_given_up += !request->ranks[i].told;
    request->ranks[i].told = true;
    kvf_list_remove(&request->ranks[i].due);
  }
  free_if_done(requests, now_ns, request);
}

static kvf_status send_renew(kvf_requests *requests, kvf_conn *conn, kvf_renew *renew)
{
  uint8_t *body;
  size_t bytes = 0;
  kvf_status status = renew->count == 0 ? KVF_OK : kvf_conn_frame_begin(conn, KVF_RENEW_BYTES_MAX, &body);
  if (status == KVF_OK && renew->count > 0) {
    requests->counters.renewals += renew->count;
    status = kvf_renew_encode(renew, body, KVF_RENEW_BYTES_MAX, &bytes);
    if (status == KVF_OK) {
      kvf_conn_frame_end(requests->conns, conn, KVF_FRAME_RENEW, bytes);
    }
  }
  return status;
}

static kvf_status send_finish(kvf_requests *requests, kvf_conn *conn, kvf_finish *finish)
{
  uint8_t *body;
  size_t bytes = 0;
  kvf_status status = finish->count == 0 ? KVF_OK : kvf_conn_frame_begin(conn, KVF_FINISH_BYTES_MAX, &body);
  if (status == KVF_OK && finish->count > 0) {
    requests->counters.finishes += finish->count;
    status = kvf_finish_encode(finish, body, KVF_FINISH_BYTES_MAX, &bytes);
    if (status == KVF_OK) {
      kvf_conn_frame_end(requests->conns, conn, KVF_FRAME_FINISH, bytes);
    }
  }
  return status;
}

/* Takes what is due off the list, as much as fits one frame of each kind. */
static void collect(kvf_requests *requests, kvf_list *due, kvf_renew *renew, kvf_finish *finish)
{
  renew->count = 0;
  renew->seq = ++requests->next_seq;
  finish->count = 0;
  finish->seq = ++requests->next_seq;
  while (renew->count < KVF_LEASE_ITEMS_MAX && finish->count < KVF_LEASE_ITEMS_MAX) {
    kvf_list *node = kvf_list_pop_front(due);
    if (node == NULL) {
      return;
    }
    kvf_request_rank *rank = KVF_CONTAINER_OF(node, kvf_request_rank, due);
    const kvf_request *request = rank->request;
    if (request->state == KVF_REQUEST_FINISHING) {
      rank->finish_seq = rank->finish_seq == 0 ? finish->seq : rank->finish_seq;
      finish->items[finish->count++] =
          (kvf_finish_item){.lease = request->leases[rank->source],
                            .request_id = request->id,
                            .kind = request->completed ? KVF_FINISH_COMPLETED : KVF_FINISH_ABORTED};
    } else {
      renew->items[renew->count++] =
          (kvf_renew_item){.lease = request->leases[rank->source], .request_id = request->id};
    }
  }
}

void kvf_requests_on_open(kvf_requests *requests, uint64_t now_ns, uint32_t peer)
{
  kvf_conn *conn = kvf_peers_conn(requests->peers, peer);
  kvf_renew renew;
  kvf_finish finish;
  while (conn != NULL && !kvf_list_is_empty(&requests->due[peer])) {
    collect(requests, &requests->due[peer], &renew, &finish);
    if (send_renew(requests, conn, &renew) != KVF_OK || send_finish(requests, conn, &finish) != KVF_OK) {
      return; /* the peer does not read: what was taken comes again at its next time */
    }
    kvf_peers_await(requests->peers, now_ns, peer);
  }
}

void kvf_requests_on_not_open(kvf_requests *requests, uint32_t peer)
{
  while (kvf_list_pop_front(&requests->due[peer]) != NULL) {
  }
}

static void on_rank_state(kvf_request_rank *rank, uint32_t seq, uint32_t state)
{
  /* The answer to a renewal that was under way says nothing of our finish. */
  if (rank->finish_seq == 0 || (int32_t)(seq - rank->finish_seq) < 0) {
    return;
  }
  /* Live after our finish: another consumer is attached, ours is counted. Not published yet: it must hear us again. */
  if (state != KVF_LEASE_STATE_NOT_PUBLISHED) {
    rank->told = true;
    kvf_list_remove(&rank->due);
  }
}

/* A text that names one lease twice has several ranks for it. */
static void on_state(kvf_requests *requests, uint64_t now_ns, uint32_t peer, uint32_t seq,
                     const kvf_lease_states_item *item)
{
  kvf_request *request;
  bool asked = false;
  HASH_FIND(by_id, requests->by_id, &item->request_id, sizeof(item->request_id), request);
  for (uint32_t i = 0; request != NULL && request->state == KVF_REQUEST_FINISHING && i < request->ranks_count; i++) {
    kvf_request_rank *rank = &request->ranks[i];
    if (rank->peer == peer && request->leases[rank->source].id == item->lease_id) {
      asked = true;
      on_rank_state(rank, seq, item->state);
    }
  }
  if (!asked) {
    return;
  }
  free_if_done(requests, now_ns, request);
}

kvf_status kvf_requests_on_states(kvf_requests *requests, uint64_t now_ns, uint32_t peer, const uint8_t *body,
                                  size_t body_bytes)
{
  kvf_lease_states states;
  if (kvf_lease_states_decode(body, body_bytes, &states) != KVF_OK) {
    return KVF_PROTOCOL;
  }
  for (uint32_t i = 0; i < states.count; i++) {
    on_state(requests, now_ns, peer, states.seq, &states.items[i]);
  }
  return KVF_OK;
}
