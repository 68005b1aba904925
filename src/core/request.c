#include "core/request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/policy.h"

/* How often a lease is renewed in its TTL, so that two renewals may be lost; and the bounds of that interval. */
#define RENEWALS_PER_TTL 3
#define TELL_MIN_NS (50 * KVF_NS_PER_MS)
#define TELL_MAX_NS (5 * KVF_NS_PER_S)

/* ---- memory ---- */

void kvf_requests_init(kvf_requests *requests, kvf_context *context, kvf_peers *peers, uint64_t seed)
{
  *requests = (kvf_requests){.context = context, .peers = peers, .next_id = 1, .prng = {.state = seed}};
  kvf_list_init(&requests->events);
  requests->budget.tokens_per_s = context->config.recompute_budget_tokens_per_s;
}

/* There is nothing to tell its producers any more. */
static void let_peers_go(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  for (uint32_t i = 0; i < request->ranks_count; i++) {
    kvf_list_remove(&request->ranks[i].due);
    kvf_peers_release(requests->peers, now_ns, request->ranks[i].peer);
  }
  request->ranks_count = 0;
  kvf_wheel_disarm(&requests->context->wheel, &request->timer);
}

static void free_request(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  let_peers_go(requests, now_ns, request);
  kvf_list_remove(&request->event);
  HASH_DELETE(by_id, requests->by_id, request);
  free(request);
}

void kvf_requests_free(kvf_requests *requests)
{
  kvf_request *request;
  kvf_request *next;
  HASH_ITER(by_id, requests->by_id, request, next)
  {
    free_request(requests, 0, request);
  }
}

static kvf_request *find(const kvf_requests *requests, uint64_t id)
{
  kvf_request *request;
  HASH_FIND(by_id, requests->by_id, &id, sizeof(id), request);
  return request;
}

/* ---- which sources of a ticket's text are for this engine and this prompt ---- */

/* Without a key anybody can make a ticket: it must not make this node connect to wherever he likes. */
static bool is_near(const kvf_context *context, const kvf_ticket *ticket)
{
  for (uint32_t i = 0; context->key.bytes == 0 && i < ticket->ranks; i++) {
    if (!kvf_address_is_loopback(&ticket->rank[i].address)) {
      return false;
    }
  }
  return true;
}

/* *why may be what is written to `difference` (KVF_MESSAGE_BYTES_MAX). */
static kvf_status judge(const kvf_context *context, const kvf_ticket *ticket, const kvf_prompt *prompt,
                        char *difference, const char **why)
{
  if (memcmp(ticket->compat, context->compat, sizeof(ticket->compat)) != 0) {
    kvf_context_name_difference(context, ticket, difference);
    *why = difference;
    return KVF_INCOMPATIBLE;
  }
  if (memcmp(ticket->prompt.model, prompt->model, sizeof(prompt->model)) != 0) {
    *why = "computed with other weights, another LoRA adapter, or by an engine that names media otherwise";
    return KVF_INCOMPATIBLE;
  }
  if (!is_near(context, ticket)) {
    *why = "names another host, which needs a shared key (option key_file)";
    return KVF_BAD_TICKET;
  }
  if (ticket->prompt.tokens != prompt->tokens || memcmp(ticket->prompt.hash, prompt->hash, sizeof(prompt->hash)) != 0) {
    *why = "made for another prompt";
    return KVF_BAD_TICKET;
  }
  return KVF_OK;
}

kvf_status kvf_requests_check_sources(kvf_requests *requests, uint64_t now_ns, const kvf_sources *all,
                                      const kvf_prompt *prompt, kvf_sources *good)
{
  kvf_status status[KVF_SOURCES_MAX] = {KVF_BAD_TICKET};
  const char *why[KVF_SOURCES_MAX] = {"names no source"};
  char differences[KVF_SOURCES_MAX][KVF_MESSAGE_BYTES_MAX];
  *good = (kvf_sources){.count = 0};
  for (uint32_t i = 0; i < all->count; i++) {
    status[i] = judge(requests->context, all->tickets[i], prompt, differences[i], &why[i]);
    if (status[i] == KVF_OK && good->count > 0 && !kvf_source_can_replace(good->tickets[0], all->tickets[i])) {
      status[i] = KVF_INCOMPATIBLE;
      why[i] = "offers other blocks than the first one";
    }
    if (status[i] == KVF_OK) {
      good->tickets[good->count] = all->tickets[i];
      good->digests[good->count++] = all->digests[i];
    }
  }
  if (good->count == 0) {
    requests->counters.incompatible += status[0] == KVF_INCOMPATIBLE;
    requests->counters.bad_tickets += status[0] == KVF_BAD_TICKET;
    kvf_context_log(requests->context, now_ns, status[0], 0, KVF_LOG_WARN, "ticket refused: %s: %s",
                    kvf_status_name(status[0]), why[0]);
    return status[0];
  }
  for (uint32_t i = 0; i < all->count; i++) {
    if (status[i] != KVF_OK) {
      char address[KVF_ADDRESS_TEXT_BYTES];
      kvf_address_format(&all->tickets[i]->rank[0].address, address);
      requests->counters.sources_left_out++;
      kvf_context_log(requests->context, now_ns, status[i], 0, KVF_LOG_WARN, "a ticket's source %s is left out: %s: %s",
                      address, kvf_status_name(status[i]), why[i]);
    }
  }
  return KVF_OK;
}

/* ---- renewals and the end, to every rank of the producers ---- */

static void rearm(kvf_requests *requests, kvf_request *request)
{
  uint64_t at = request->renew_ns;
  if (request->state != KVF_REQUEST_OPEN) {
    at = kvf_time_min(at, request->until_ns);
  }
  kvf_wheel_arm(&requests->context->wheel, &request->timer, at);
}

static void tell(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  uint64_t interval_ns = request->ttl_min_ns / RENEWALS_PER_TTL;
  interval_ns = interval_ns < TELL_MIN_NS ? TELL_MIN_NS : kvf_time_min(interval_ns, TELL_MAX_NS);
  request->renew_ns = kvf_time_add(now_ns, interval_ns);
  rearm(requests, request);
  for (uint32_t i = 0; i < request->ranks_count; i++) {
    kvf_request_rank *rank = &request->ranks[i];
    if (!rank->acked) {
      kvf_list_ensure_back(&rank->peer->due, &rank->due);
      kvf_peers_want_open(requests->peers, now_ns, rank->peer);
    }
  }
}

static void finish(kvf_requests *requests, uint64_t now_ns, kvf_request *request, kvf_finish_kind kind)
{
  request->state = KVF_REQUEST_FINISHING;
  request->finish = kind;
  /* The last renewal may have been processed a moment ago; half a TTL covers clocks and queues. */
  request->until_ns = kvf_time_add(now_ns, request->ttl_max_ns + request->ttl_max_ns / 2);
  tell(requests, now_ns, request);
}

/* ---- what the engine is to hear of it ---- */

#define NOTHING 0u

static uint32_t next_kind(const kvf_request *request)
{
  if (request->verdict_pending) {
    return KVF_EVENT_VERDICT;
  }
  if (request->state < KVF_REQUEST_FINISHING || !request->begun || request->released_given) {
    return NOTHING;
  }
  if (kvf_ranks_are_released(&request->own)) {
    return KVF_EVENT_REQUEST_RELEASED;
  }
  bool is_good = request->verdict.action == KVF_ACTION_USE; /* it is in no hurry */
  return request->own.stuck && !is_good && !request->stuck_given ? KVF_EVENT_REQUEST_STUCK : NOTHING;
}

/* To be called after whatever may give a request something to say, or end it: the request may be gone. */
static void review(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  bool all_said = !request->verdict_pending && (!request->begun || request->released_given);
  if (request->state == KVF_REQUEST_ACKED && all_said) {
    free_request(requests, now_ns, request);
  } else if (next_kind(request) == NOTHING) {
    kvf_list_remove(&request->event);
  } else {
    kvf_list_ensure_back(&requests->events, &request->event);
  }
}

/* ---- the end of the telling ---- */

static void stop_telling(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  request->state = KVF_REQUEST_ACKED;
  let_peers_go(requests, now_ns, request);
  review(requests, now_ns, request);
}

/* Producer ranks that have not answered its end. */
static uint32_t count_unacked(const kvf_request *request)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < request->ranks_count; i++) {
    count += !request->ranks[i].acked;
  }
  return count;
}

/* Takes what is due off the list, as much as fits one frame. */
static void collect(kvf_requests *requests, kvf_list *due, kvf_leases *leases)
{
  kvf_list *node;
  leases->count = 0;
  leases->seq = ++requests->next_seq;
  while (leases->count < KVF_LEASE_ITEMS_MAX && (node = kvf_list_pop_front(due)) != NULL) {
    kvf_request_rank *rank = KVF_CONTAINER_OF(node, kvf_request_rank, due);
    const kvf_request *request = rank->request;
    const bool finishes = request->state == KVF_REQUEST_FINISHING;
    rank->unreached = false;
    if (finishes && rank->finish_seq == 0) {
      rank->finish_seq = leases->seq;
    }
    requests->counters.finishes += finishes;
    requests->counters.renewals += !finishes;
    leases->items[leases->count++] = (kvf_leases_item){.lease = request->leases[rank->source],
                                                       .request_id = request->id,
                                                       .kind = (uint8_t)(finishes ? request->finish : KVF_FINISH_NONE)};
  }
}

/* ---- a request from its ticket to its verdict ---- */

static kvf_status acquire_peers(kvf_requests *requests, kvf_request *request, const kvf_ticket *ticket, uint32_t source)
{
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i < ticket->ranks; i++) {
    kvf_request_rank *rank = &request->ranks[request->ranks_count];
    *rank = (kvf_request_rank){.request = request, .source = source};
    status = kvf_peers_acquire(requests->peers, &ticket->rank[i].address, &ticket->rank[i].incarnation, &rank->peer);
    kvf_list_init(&rank->due);
    request->ranks_count += status == KVF_OK;
  }
  return status;
}

kvf_request_options kvf_requests_options(const kvf_requests *requests, const kvf_request_options *options)
{
  const kvf_config *config = &requests->context->config;
  return options != NULL ? *options
                         : (kvf_request_options){.policy = config->policy,
                                                 .auto_max_recompute_tokens = config->auto_max_recompute_tokens,
                                                 .load_timeout_ms = config->load_timeout_ms};
}

static void fill(const kvf_requests *requests, kvf_request *request, const kvf_sources *sources,
                 const kvf_request_options *options, uint64_t user)
{
  const kvf_ticket *ticket = sources->tickets[0];
  request->id = requests->next_id;
  request->user = user;
  request->sources_left = (1u << sources->count) - 1;
  request->ttl_min_ns = kvf_ms_to_ns(ticket->ttl_ms);
  for (uint32_t i = 0; i < sources->count; i++) {
    uint64_t ttl_ns = kvf_ms_to_ns(sources->tickets[i]->ttl_ms);
    request->leases[i] = sources->tickets[i]->lease;
    request->ttl_min_ns = kvf_time_min(request->ttl_min_ns, ttl_ns);
    request->ttl_max_ns = ttl_ns > request->ttl_max_ns ? ttl_ns : request->ttl_max_ns;
  }
  request->tokens = ticket->prompt.tokens;
  request->block_tokens = ticket->block_tokens;
  request->options = kvf_requests_options(requests, options);
  request->own =
      kvf_ranks_of(requests->context->config.ranks, requests->next_id, (uint32_t)kvf_ticket_all_positions(ticket));
  kvf_timer_init(&request->timer, KVF_TIMER_REQUEST);
  kvf_list_init(&request->event);
}

kvf_status kvf_requests_open(kvf_requests *requests, uint64_t now_ns, const kvf_sources *sources,
                             const kvf_prompt *prompt, const kvf_request_options *options, uint64_t user, uint64_t *id,
                             const kvf_ticket **first)
{
  kvf_sources good;
  kvf_status status = kvf_requests_check_sources(requests, now_ns, sources, prompt, &good);
  if (status != KVF_OK) {
    return status;
  }
  if (HASH_CNT(by_id, requests->by_id) >= KVF_REQUESTS_MAX) {
    return KVF_NO_RESOURCE;
  }
  uint32_t ranks = 0;
  for (uint32_t i = 0; i < good.count; i++) {
    ranks += good.tickets[i]->ranks;
  }
  kvf_request *request = calloc(1, sizeof(*request) + ranks * sizeof(request->ranks[0]));
  if (request == NULL) {
    return KVF_NO_MEMORY;
  }
  fill(requests, request, &good, options, user);
  for (uint32_t i = 0; status == KVF_OK && i < good.count; i++) {
    status = acquire_peers(requests, request, good.tickets[i], i);
  }
  if (status == KVF_OK) {
    HASH_ADD(by_id, requests->by_id, id, sizeof(request->id), request);
    status = request->by_id.tbl == NULL ? KVF_NO_MEMORY : KVF_OK;
  }
  if (status != KVF_OK) {
    let_peers_go(requests, now_ns, request);
    free(request);
    return status;
  }
  requests->next_id++;
  requests->counters.opened++;
  *id = request->id;
  if (first != NULL) {
    *first = good.tickets[0];
  }
  tell(requests, now_ns, request);
  return KVF_OK;
}

kvf_status kvf_requests_begin(kvf_requests *requests, uint64_t now_ns, uint64_t id)
{
  kvf_request *request = find(requests, id);
  if (request == NULL || (request->state >= KVF_REQUEST_FINISHING && !request->verdict_pending)) {
    return KVF_NOT_FOUND;
  }
  if (request->begun) {
    return KVF_EXISTS;
  }
  request->begun = true;
  if (request->state >= KVF_REQUEST_FINISHING) {
    return KVF_OK; /* its verdict is on the way */
  }
  request->state = KVF_REQUEST_LOADING;
  request->until_ns = kvf_time_add(now_ns, kvf_ms_to_ns(request->options.load_timeout_ms) +
                                               kvf_ms_to_ns(requests->context->config.release_timeout_ms));
  rearm(requests, request);
  return KVF_OK;
}

/* Adds the policy, the budget and the jitter to what is known of a load. */
static kvf_verdict decide(kvf_requests *requests, uint64_t now_ns, const kvf_request_options *options,
                          kvf_policy_input input)
{
  input.policy = options->policy;
  input.auto_max_recompute_tokens = options->auto_max_recompute_tokens;
  input.jitter = kvf_prng_next(&requests->prng);
  uint32_t recompute_tokens = kvf_policy_recompute_tokens(&input);
  input.budget_wait_ns = kvf_budget_wait_ns(&requests->budget, now_ns, recompute_tokens);
  kvf_verdict verdict = kvf_policy_decide(&input);
  requests->counters.verdicts[verdict.action]++;
  if (verdict.action == KVF_ACTION_RECOMPUTE) {
    (void)kvf_budget_take(&requests->budget, now_ns, verdict.recompute_tokens);
    requests->counters.recomputed_tokens[kvf_status_index(verdict.status)] += verdict.recompute_tokens;
  }
  return verdict;
}

static void conclude(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  if (request->crowded && request->own.merged.status == KVF_LEASE_EXPIRED) {
    request->own.merged.status = KVF_LEASE_CROWDED; /* that is why the lease ended without it */
  }
  request->verdict = decide(requests, now_ns, &request->options,
                            (kvf_policy_input){.report = request->own.merged,
                                               .keep_from_tokens = request->options.keep_from_tokens,
                                               .block_tokens = request->block_tokens,
                                               .tokens = request->tokens});
  request->verdict_pending = true;
  review(requests, now_ns, request);
  if (request->verdict.action != KVF_ACTION_USE) {
    const kvf_peer_stat *peer = &request->ranks[0].peer->stat;
    kvf_context_log(requests->context, now_ns, request->verdict.status, peer->id, KVF_LOG_WARN,
                    "request %llu, lease %llu of %s: %s: %u of %u blocks are good, %u tokens to recompute: %s",
                    (unsigned long long)request->id, (unsigned long long)request->leases[0].id, peer->address,
                    kvf_status_name(request->verdict.status), request->own.merged.prefix, request->own.merged.blocks,
                    request->verdict.recompute_tokens,
                    request->verdict.action == KVF_ACTION_RECOMPUTE ? "recompute" : "fail");
  }
  /* A client that is told to come again may come again to another engine, with the same ticket. */
  const kvf_finish_kind failed = request->verdict.retry_after_ms > 0 ? KVF_FINISH_DETACHED : KVF_FINISH_ABORTED;
  finish(requests, now_ns, request, request->verdict.action == KVF_ACTION_FAIL ? failed : KVF_FINISH_COMPLETED);
}

/* The ranks that have not reported have nothing, for this reason. */
static void find_nothing(kvf_request *request, kvf_status status)
{
  kvf_report nothing = request->own.merged;
  nothing.prefix = 0;
  nothing.status = status;
  request->own.merged = kvf_report_merge(request->own.merged, nothing);
}

/* To be called after what a rank has said. One that is released without a report gave up by itself. */
static void conclude_when_all_are_in(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  if (request->state != KVF_REQUEST_LOADING || !kvf_ranks_are_in(&request->own)) {
    return;
  }
  if (!kvf_ranks_have_reported(&request->own)) {
    find_nothing(request, KVF_ABORTED);
  }
  conclude(requests, now_ns, request);
}

kvf_verdict kvf_requests_refused(kvf_requests *requests, uint64_t now_ns, kvf_status status, uint32_t tokens,
                                 const kvf_request_options *options)
{
  const kvf_request_options chosen = kvf_requests_options(requests, options);
  const uint32_t block_tokens = requests->context->config.block_tokens;
  const uint32_t blocks = kvf_ticket_positions(tokens, block_tokens);
  return decide(requests, now_ns, &chosen,
                (kvf_policy_input){
                    .report = {.blocks = blocks, .status = status}, .block_tokens = block_tokens, .tokens = tokens});
}

/* What the engine says of its ranks cannot be. */
static void log_invalid(kvf_requests *requests, uint64_t now_ns, const kvf_request *request, const char *call,
                        uint64_t ranks_mask)
{
  const unsigned long long id = request->id;
  if (!request->begun) {
    kvf_context_log(requests->context, now_ns, KVF_INVALID, 0, KVF_LOG_WARN,
                    "request %llu: %s before kvf_request_begin()", id, call);
    return;
  }
  kvf_context_log(requests->context, now_ns, KVF_INVALID, 0, KVF_LOG_WARN,
                  "request %llu: %s: ranks_mask = %#llx must be some of %#llx; a report has blocks = %u, and prefix at "
                  "most that",
                  id, call, (unsigned long long)ranks_mask, (unsigned long long)request->own.all,
                  request->own.merged.blocks);
}

kvf_status kvf_requests_report(kvf_requests *requests, uint64_t now_ns, const kvf_report *report)
{
  kvf_request *request = find(requests, report->request_id);
  if (request == NULL || request->state >= KVF_REQUEST_FINISHING) {
    requests->counters.late_reports++;
    return KVF_NOT_FOUND;
  }
  kvf_status status = request->state == KVF_REQUEST_OPEN ? KVF_INVALID : kvf_ranks_report(&request->own, report);
  if (status != KVF_OK) {
    log_invalid(requests, now_ns, request, "kvf_request_report()", report->ranks_mask);
  }
  conclude_when_all_are_in(requests, now_ns, request);
  return status;
}

kvf_status kvf_requests_released(kvf_requests *requests, uint64_t now_ns, uint64_t id, uint64_t ranks_mask)
{
  kvf_request *request = find(requests, id);
  if (request == NULL) {
    return KVF_NOT_FOUND;
  }
  kvf_status status = request->begun ? kvf_ranks_release(&request->own, ranks_mask) : KVF_INVALID;
  if (status != KVF_OK) {
    log_invalid(requests, now_ns, request, "kvf_request_released()", ranks_mask);
  }
  conclude_when_all_are_in(requests, now_ns, request);
  review(requests, now_ns, request);
  return status;
}

kvf_status kvf_requests_stuck(kvf_requests *requests, uint64_t now_ns, uint64_t id)
{
  kvf_request *request = find(requests, id);
  if (request == NULL) {
    return KVF_NOT_FOUND;
  }
  request->own.stuck = true;
  review(requests, now_ns, request);
  return KVF_OK;
}

kvf_status kvf_requests_cancel(kvf_requests *requests, uint64_t now_ns, uint64_t id, kvf_finish_kind kind)
{
  kvf_request *request = find(requests, id);
  if (request == NULL || (request->state >= KVF_REQUEST_FINISHING && !request->verdict_pending)) {
    return KVF_NOT_FOUND;
  }
  requests->counters.cancelled += kind != KVF_FINISH_DETACHED;
  requests->counters.detached += kind == KVF_FINISH_DETACHED;
  if (request->verdict_pending) {
    request->verdict_pending = false;
  } else {
    finish(requests, now_ns, request, kind);
  }
  review(requests, now_ns, request);
  return KVF_OK;
}

/* ---- what becomes of the producers while a request waits ---- */

/* This rank's source lacks it from now on. A load that has begun finds that out for itself. */
static void lose(kvf_requests *requests, uint64_t now_ns, const kvf_request_rank *rank, kvf_status status)
{
  kvf_request *request = rank->request;
  if (request->state != KVF_REQUEST_OPEN) {
    return;
  }
  request->sources_left &= ~(1u << rank->source);
  if (request->sources_left == 0) {
    requests->counters.lost[kvf_status_index(status)]++;
    find_nothing(request, status);
    conclude(requests, now_ns, request);
  }
}

/* A single try may meet a full backlog or a network that is back in a moment: a peer is given up after two in a row. */
static void on_unreached(kvf_requests *requests, uint64_t now_ns, kvf_request_rank *rank, kvf_status status)
{
  if (status == KVF_NO_MEMORY) {
    return; /* ours: it says nothing of the peer */
  }
  if (rank->unreached || status == KVF_PEER_RESTARTED) {
    /* Loads of this node may have seen that it stands still: what a request that waits has lost is the peer. */
    const bool is_of_blocks = kvf_status_describe(status)->lost == KVF_LOST_BLOCK;
    lose(requests, now_ns, rank, is_of_blocks ? KVF_PEER_DOWN : status);
  }
  rank->unreached = true;
}

void kvf_requests_on_open(kvf_requests *requests, uint64_t now_ns, kvf_peer *peer, kvf_status status)
{
  kvf_leases leases;
  uint8_t body[KVF_LEASES_BYTES_MAX];
  size_t bytes = 0;
  kvf_list *node;
  while (status != KVF_OK && (node = kvf_list_pop_front(&peer->due)) != NULL) {
    on_unreached(requests, now_ns, KVF_CONTAINER_OF(node, kvf_request_rank, due), status);
  }
  while (peer->state == KVF_PEER_READY && !kvf_list_is_empty(&peer->due)) {
    collect(requests, &peer->due, &leases);
    if (kvf_leases_encode(&leases, body, sizeof(body), &bytes) != KVF_OK ||
        kvf_conn_send(peer->conn, KVF_FRAME_LEASES, body, bytes) != KVF_OK) {
      return; /* the peer does not read: what was taken comes again at its next time */
    }
    kvf_peers_await(requests->peers, now_ns, peer);
  }
}

static void on_finish_heard(kvf_request_rank *rank, uint32_t seq, uint32_t state)
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

static void on_rank_state(kvf_requests *requests, uint64_t now_ns, kvf_request_rank *rank, uint32_t seq, uint32_t state)
{
  if (rank->request->state == KVF_REQUEST_FINISHING) {
    on_finish_heard(rank, seq, state);
  } else if (state == KVF_LEASE_STATE_ENDED) {
    lose(requests, now_ns, rank, KVF_LEASE_EXPIRED);
  } else if (state == KVF_LEASE_STATE_UNKNOWN) {
    lose(requests, now_ns, rank, KVF_LEASE_UNKNOWN);
  } else if (state == KVF_LEASE_STATE_CROWDED) {
    rank->request->crowded = true;
    lose(requests, now_ns, rank, KVF_LEASE_CROWDED); /* not attached, it may lose the blocks at any moment */
  }
}

/* A text that names one lease twice has several ranks for it. */
static void on_state(kvf_requests *requests, uint64_t now_ns, const kvf_peer *peer, uint32_t seq,
                     const kvf_lease_states_item *item)
{
  kvf_request *request = find(requests, item->request_id);
  bool asked = false;
  for (uint32_t i = 0; request != NULL && i < request->ranks_count; i++) {
    kvf_request_rank *rank = &request->ranks[i];
    if (rank->peer == peer && request->leases[rank->source].id == item->lease_id) {
      asked = true;
      on_rank_state(requests, now_ns, rank, seq, item->state);
    }
  }
  if (asked && request->state == KVF_REQUEST_FINISHING && count_unacked(request) == 0) {
    stop_telling(requests, now_ns, request);
  }
}

kvf_status kvf_requests_on_states(kvf_requests *requests, uint64_t now_ns, const kvf_peer *peer, const uint8_t *body,
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

/* ---- time and events ---- */

void kvf_requests_on_timer(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  if (request->state == KVF_REQUEST_LOADING && now_ns >= request->until_ns) {
    /* Ranks that have not reported are lost, and so is who could say that they are released. */
    requests->counters.ranks_lost++;
    find_nothing(request, KVF_RANK_LOST);
    request->own.stuck = true;
    conclude(requests, now_ns, request);
  } else if (request->state == KVF_REQUEST_FINISHING && now_ns >= request->until_ns) {
    requests->counters.finishes_given_up += count_unacked(request);
    stop_telling(requests, now_ns, request);
  } else {
    assert(now_ns >=
           request->renew_ns); /* no timer is early, and it is set anew whenever one of the two times changes */
    tell(requests, now_ns, request);
  }
}

bool kvf_requests_next_event(kvf_requests *requests, uint64_t now_ns, kvf_event *out)
{
  kvf_list *node = kvf_list_pop_front(&requests->events);
  if (node == NULL) {
    return false;
  }
  kvf_request *request = KVF_CONTAINER_OF(node, kvf_request, event);
  uint32_t kind = next_kind(request);
  assert(kind != NOTHING);
  *out = (kvf_event){.kind = (kvf_event_kind)kind, .id = request->id, .user = request->user};
  if (kind == KVF_EVENT_VERDICT) {
    out->u.verdict = request->verdict;
    request->verdict_pending = false;
  } else if (kind == KVF_EVENT_REQUEST_STUCK) {
    request->stuck_given = true;
  } else {
    request->released_given = true;
  }
  review(requests, now_ns, request);
  return true;
}
