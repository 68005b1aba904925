#include "core/request.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"
#include "core/policy.h"
#include "core/request_internal.h"

kvf_status kvf_requests_init(kvf_requests *requests, kvf_self *self, kvf_conns *conns, kvf_peers *peers,
                             kvf_wheel *wheel, uint64_t seed)
{
  *requests = (kvf_requests){
      .self = self, .conns = conns, .peers = peers, .wheel = wheel, .next_id = 1, .prng = {.state = seed}};
  kvf_list_init(&requests->events);
  kvf_budget_init(&requests->budget, self->config.recompute_budget_tokens_per_s);
  requests->due = calloc(KVF_PEERS_MAX, sizeof(kvf_list));
  if (requests->due == NULL) {
    return KVF_NO_MEMORY;
  }
  for (uint32_t i = 0; i < KVF_PEERS_MAX; i++) {
    kvf_list_init(&requests->due[i]);
  }
  return KVF_OK;
}

void kvf_request_free(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  for (uint32_t i = 0; i < request->ranks_count; i++) {
    kvf_list_remove(&request->ranks[i].due);
    kvf_peers_release(requests->peers, now_ns, request->ranks[i].peer);
  }
  kvf_wheel_disarm(requests->wheel, &request->timer);
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
    kvf_request_free(requests, 0, request);
  }
  free(requests->due);
  requests->due = NULL;
}

static kvf_request *find(const kvf_requests *requests, uint64_t id)
{
  kvf_request *request;
  HASH_FIND(by_id, requests->by_id, &id, sizeof(id), request);
  return request;
}

static void release_peers(kvf_requests *requests, uint64_t now_ns, const kvf_request *request)
{
  for (uint32_t i = 0; i < request->ranks_count; i++) {
    kvf_peers_release(requests->peers, now_ns, request->ranks[i].peer);
  }
}

static kvf_status acquire_peers(kvf_requests *requests, uint64_t now_ns, kvf_request *request, const kvf_ticket *ticket,
                                uint32_t source)
{
  for (uint32_t i = 0; i < ticket->ranks; i++) {
    kvf_request_rank *rank = &request->ranks[request->ranks_count];
    kvf_peer_key key = {.address = ticket->rank[i].address, .incarnation = ticket->rank[i].incarnation};
    kvf_status status = kvf_peers_acquire(requests->peers, &key, &rank->peer);
    if (status != KVF_OK) {
      release_peers(requests, now_ns, request);
      return status;
    }
    rank->request = request;
    rank->source = source;
    kvf_list_init(&rank->due);
    request->ranks_count++;
  }
  return KVF_OK;
}

kvf_request_options kvf_requests_options(const kvf_requests *requests, const kvf_request_options *options)
{
  const kvf_config *config = &requests->self->config;
  if (options != NULL) {
    return *options;
  }
  return (kvf_request_options){config->policy, config->auto_max_recompute_tokens, config->load_timeout_ms};
}

static void fill(const kvf_requests *requests, kvf_request *request, const kvf_sources *sources,
                 const kvf_request_options *options, uint64_t user)
{
  const kvf_ticket *ticket = sources->tickets[0];
  request->user = user;
  request->ttl_min_ns = kvf_ms_to_ns(ticket->ttl_ms);
  for (uint32_t i = 0; i < sources->count; i++) {
    uint64_t ttl_ns = kvf_ms_to_ns(sources->tickets[i]->ttl_ms);
    request->leases[i] = sources->tickets[i]->lease;
    request->ttl_min_ns = kvf_time_min(request->ttl_min_ns, ttl_ns);
    request->ttl_max_ns = ttl_ns > request->ttl_max_ns ? ttl_ns : request->ttl_max_ns;
  }
  request->tokens = ticket->prompt.tokens;
  request->block_tokens = ticket->block_tokens;
  request->groups = ticket->groups;
  request->positions = (uint32_t)kvf_ticket_all_positions(ticket);
  request->options = kvf_requests_options(requests, options);
  kvf_timer_init(&request->timer, KVF_TIMER_REQUEST);
  kvf_list_init(&request->event);
}

static kvf_status create(kvf_requests *requests, uint64_t now_ns, const kvf_sources *sources,
                         const kvf_request_options *options, uint64_t user, kvf_request **out)
{
  uint32_t ranks = 0;
  for (uint32_t i = 0; i < sources->count; i++) {
    ranks += sources->tickets[i]->ranks;
  }
  kvf_request *request = calloc(1, sizeof(*request) + ranks * sizeof(request->ranks[0]));
  if (request == NULL) {
    return KVF_NO_MEMORY;
  }
  fill(requests, request, sources, options, user);
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i < sources->count; i++) {
    status = acquire_peers(requests, now_ns, request, sources->tickets[i], i);
  }
  if (status != KVF_OK) {
    free(request);
    return status;
  }
  request->id = requests->next_id;
  HASH_ADD(by_id, requests->by_id, id, sizeof(request->id), request);
  if (request->by_id.tbl == NULL) {
    release_peers(requests, now_ns, request);
    free(request);
    return KVF_NO_MEMORY;
  }
  *out = request;
  return KVF_OK;
}

kvf_status kvf_requests_open(kvf_requests *requests, uint64_t now_ns, const kvf_sources *sources,
                             const kvf_prompt *prompt, const kvf_request_options *options, uint64_t user, uint64_t *id,
                             const kvf_ticket **first)
{
  kvf_sources good;
  kvf_request *request;
  kvf_status status = kvf_requests_check_sources(requests, now_ns, sources, prompt, &good);
  if (status != KVF_OK) {
    return status;
  }
  if (HASH_CNT(by_id, requests->by_id) >= KVF_REQUESTS_MAX) {
    return KVF_NO_MEMORY;
  }
  status = create(requests, now_ns, &good, options, user, &request);
  if (status != KVF_OK) {
    return status;
  }
  requests->next_id++;
  requests->counters.opened++;
  *id = request->id;
  if (first != NULL) {
    *first = good.tickets[0];
  }
  kvf_request_tell(requests, now_ns, request);
  return KVF_OK;
}

kvf_status kvf_requests_begin(kvf_requests *requests, uint64_t now_ns, uint64_t id)
{
  kvf_request *request = find(requests, id);
  if (request == NULL || request->state == KVF_REQUEST_FINISHING) {
    return KVF_NOT_FOUND;
  }
  if (request->state == KVF_REQUEST_LOADING) {
    return KVF_EXISTS;
  }
  request->state = KVF_REQUEST_LOADING;
  request->until_ns = kvf_time_add(
      now_ns, kvf_ms_to_ns(request->options.load_timeout_ms) + kvf_ms_to_ns(requests->self->config.quiet_timeout_ms));
  kvf_request_rearm(requests, request);
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
  switch (verdict.action) {
    case KVF_ACTION_USE:
      requests->counters.used++;
      break;
    case KVF_ACTION_RECOMPUTE:
      (void)kvf_budget_take(&requests->budget, now_ns, verdict.recompute_tokens);
      requests->counters.recomputed++;
      requests->counters.recomputed_tokens[kvf_status_index(verdict.status)] += verdict.recompute_tokens;
      break;
    case KVF_ACTION_FAIL:
      requests->counters.failed++;
      break;
  }
  return verdict;
}

static void conclude(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  request->verdict = decide(requests, now_ns, &request->options,
                            (kvf_policy_input){.report = request->merged,
                                               .groups = request->groups,
                                               .block_tokens = request->block_tokens,
                                               .tokens = request->tokens});
  request->verdict_pending = true;
  kvf_list_push_back(&requests->events, &request->event);
  if (request->verdict.action != KVF_ACTION_USE) {
    char address[KVF_ADDRESS_TEXT_BYTES];
    kvf_address_format(&requests->peers->table[request->ranks[0].peer]->key.address, address);
    kvf_self_log(requests->self, now_ns, request->verdict.status, request->ranks[0].peer, KVF_LOG_WARN,
                 "request %llu, lease %llu of %s: %s: %u of %u blocks are good, %u tokens to recompute: %s",
                 (unsigned long long)request->id, (unsigned long long)request->leases[0].id, address,
                 kvf_status_name(request->verdict.status), request->merged.prefix, request->positions,
                 request->verdict.recompute_tokens,
                 request->verdict.action == KVF_ACTION_RECOMPUTE ? "recompute" : "fail");
  }
  /* Whatever the verdict: this engine reads no more, which is what the producer wants to know. */
  kvf_request_finish(requests, now_ns, request, true);
}

kvf_verdict kvf_requests_refused(kvf_requests *requests, uint64_t now_ns, kvf_status status, uint32_t tokens,
                                 const kvf_request_options *options)
{
  const kvf_request_options chosen = kvf_requests_options(requests, options);
  const uint32_t block_tokens = requests->self->config.block_tokens;
  const uint32_t blocks = kvf_ticket_positions(tokens, block_tokens);
  return decide(
      requests, now_ns, &chosen,
      (kvf_policy_input){
          .report = {.blocks = blocks, .status = status}, .groups = 1, .block_tokens = block_tokens, .tokens = tokens});
}

kvf_status kvf_requests_report(kvf_requests *requests, uint64_t now_ns, const kvf_report *report)
{
  kvf_request *request = find(requests, report->request_id);
  uint32_t ranks = requests->self->config.ranks;
  uint64_t all = ranks >= 64 ? UINT64_MAX : (UINT64_C(1) << ranks) - 1;
  if (request == NULL || request->state == KVF_REQUEST_FINISHING) {
    requests->counters.late_reports++;
    return KVF_NOT_FOUND;
  }
  if (request->state == KVF_REQUEST_OPEN || report->ranks_mask == 0 || (report->ranks_mask & ~all) != 0 ||
      report->blocks != request->positions || report->prefix > report->blocks) {
    return KVF_INVALID;
  }
  request->merged = request->merged.ranks_mask == 0 ? *report : kvf_report_merge(request->merged, *report);
  if (request->merged.ranks_mask == all) {
    conclude(requests, now_ns, request);
  }
  return KVF_OK;
}

kvf_status kvf_requests_cancel(kvf_requests *requests, uint64_t now_ns, uint64_t id)
{
  kvf_request *request = find(requests, id);
  if (request == NULL || (request->state == KVF_REQUEST_FINISHING && !request->verdict_pending)) {
    return KVF_NOT_FOUND;
  }
  requests->counters.cancelled++;
  if (request->verdict_pending) {
    request->verdict_pending = false;
    kvf_list_remove(&request->event);
    if (kvf_request_is_told(request)) {
      kvf_request_free(requests, now_ns, request);
    }
    return KVF_OK;
  }
  kvf_request_finish(requests, now_ns, request, false);
  return KVF_OK;
}

/* The load's last moment: ranks that have not reported are lost. */
static void on_deadline(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  kvf_report lost = {.request_id = request->id,
                     .ranks_mask = UINT64_MAX,
                     .blocks = request->positions,
                     .prefix = 0,
                     .status = KVF_RANK_LOST};
  requests->counters.ranks_lost++;
  request->merged = request->merged.ranks_mask == 0 ? lost : kvf_report_merge(request->merged, lost);
  conclude(requests, now_ns, request);
}

void kvf_requests_on_timer(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  if (request->state == KVF_REQUEST_LOADING && now_ns >= request->until_ns) {
    on_deadline(requests, now_ns, request);
  } else if (request->state == KVF_REQUEST_FINISHING && now_ns >= request->until_ns) {
    kvf_request_give_up(requests, now_ns, request);
  } else {
    assert(now_ns >=
           request->renew_ns); /* no timer is early, and it is set anew whenever one of the two times changes */
    kvf_request_tell(requests, now_ns, request);
  }
}

bool kvf_requests_next_event(kvf_requests *requests, uint64_t now_ns, kvf_event *out)
{
  kvf_list *node = kvf_list_pop_front(&requests->events);
  if (node == NULL) {
    return false;
  }
  kvf_request *request = KVF_CONTAINER_OF(node, kvf_request, event);
  *out = (kvf_event){
      .kind = KVF_EVENT_VERDICT, .id = request->id, .user = request->user, .u = {.verdict = request->verdict}};
  request->verdict_pending = false;
  if (kvf_request_is_told(request)) {
    kvf_request_free(requests, now_ns, request);
  }
  return true;
}
