/* Requests of a control node: from the ticket to the verdict and the release. */
#include "core/request.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/check_list.h"
#include "core/policy.h"
#include "core/source.h"
#include "core/states.h"

/* ---- memory ---- */

void kvf_requests_init(kvf_requests *requests, kvf_context *context, kvf_peers *peers, uint64_t seed)
{
  *requests = (kvf_requests){.context = context, .next_id = 1, .prng = {.state = seed}};
  kvf_attachments_init(&requests->attachments, context, peers);
  kvf_list_init(&requests->events);
  requests->budget.tokens_per_s = context->config.recompute_budget_tokens_per_s;
}

static void free_request(kvf_requests *requests, kvf_request *request)
{
  kvf_list_remove(&request->member);
  kvf_list_remove(&request->event);
  kvf_wheel_disarm(&requests->context->wheel, &request->timer);
  HASH_DELETE(by_id, requests->by_id, request);
  free(request);
}

void kvf_requests_free(kvf_requests *requests)
{
  kvf_request *request;
  kvf_request *next;
  HASH_ITER(by_id, requests->by_id, request, next)
  {
    free_request(requests, request);
  }
  kvf_attachments_free(&requests->attachments);
}

static kvf_request *find(const kvf_requests *requests, uint64_t id)
{
  kvf_request *request;
  HASH_FIND(by_id, requests->by_id, &id, sizeof(id), request);
  return request;
}

static const unsigned next_states[] = {
    [KVF_REQUEST_OPEN] = KVF_BIT(KVF_REQUEST_LOADING) | KVF_BIT(KVF_REQUEST_DONE),
    [KVF_REQUEST_LOADING] = KVF_BIT(KVF_REQUEST_DONE),
    [KVF_REQUEST_DONE] = 0,
};

static void move(kvf_request *request, kvf_request_state next)
{
  KVF_CHECK_MOVE(next_states, request->state, next);
  request->state = next;
}

/* It lets go of its leases. */
static void finish(kvf_requests *requests, uint64_t now_ns, kvf_request *request, kvf_finish_kind kind)
{
  move(request, KVF_REQUEST_DONE);
  kvf_wheel_disarm(&requests->context->wheel, &request->timer);
  kvf_attachments_leave(&requests->attachments, now_ns, request->attachment, &request->member, kind);
  request->attachment = NULL;
}

/* ---- what the engine is to hear of it ---- */

#define NOTHING 0u

static uint32_t next_kind(const kvf_request *request)
{
  if (request->verdict_pending) {
    return KVF_EVENT_VERDICT;
  }
  if (request->state != KVF_REQUEST_DONE || !request->begun) {
    return NOTHING;
  }
  if (kvf_ranks_are_released(&request->own)) {
    return KVF_EVENT_REQUEST_RELEASED;
  }
  bool is_good = request->verdict.action == KVF_ACTION_USE; /* it is in no hurry */
  return request->own.stuck && !is_good && !request->stuck_given ? KVF_EVENT_REQUEST_STUCK : NOTHING;
}

/* To be called after each step that may give a request a message, or end it: the request may be gone. */
static void review(kvf_requests *requests, kvf_request *request)
{
  if (request->state == KVF_REQUEST_DONE && !request->verdict_pending && !request->begun) {
    free_request(requests, request);
  } else if (next_kind(request) == NOTHING) {
    kvf_list_remove(&request->event);
  } else {
    kvf_list_ensure_back(&requests->events, &request->event);
  }
}

/* ---- a request from its ticket to its verdict ---- */

kvf_request_options kvf_requests_options(const kvf_requests *requests, const kvf_request_options *options)
{
  const kvf_config *config = &requests->context->config;
  return options != NULL ? *options
                         : (kvf_request_options){.policy = config->policy,
                                                 .auto_max_recompute_tokens = config->auto_max_recompute_tokens,
                                                 .load_timeout_ms = config->load_timeout_ms};
}

static void fill(const kvf_requests *requests, kvf_request *request, const kvf_ticket *ticket,
                 const kvf_request_options *options, uint64_t user)
{
  request->id = requests->next_id;
  request->user = user;
  request->tokens = ticket->prompt.tokens;
  request->block_tokens = ticket->block_tokens;
  request->options = kvf_requests_options(requests, options);
  kvf_log_copy_name(request->name, request->options.name);
  request->options.name = NULL; /* the caller's */
  request->left_ns = kvf_ms_to_ns(request->options.load_timeout_ms);
  request->own =
      kvf_ranks_of(requests->context->config.ranks, requests->next_id, (uint32_t)kvf_ticket_all_positions(ticket));
  kvf_timer_init(&request->timer, KVF_TIMER_REQUEST);
  kvf_list_init(&request->member);
  kvf_list_init(&request->event);
}

kvf_status kvf_requests_open(kvf_requests *requests, uint64_t now_ns, const kvf_sources *sources,
                             const kvf_prompt *prompt, const kvf_request_options *options, uint64_t user, uint64_t *id,
                             const kvf_ticket **first)
{
  kvf_sources good;
  const kvf_log_request asked = {.name = options == NULL ? NULL : options->name};
  kvf_status status = kvf_sources_judge(requests->context, now_ns, asked, sources, prompt, &good);
  if (status != KVF_OK) {
    return status;
  }
  if (HASH_CNT(by_id, requests->by_id) >= KVF_REQUESTS_MAX ||
      HASH_CNT(by_id, requests->attachments.by_id) >= KVF_REQUESTS_MAX) {
    return kvf_because(KVF_NO_RESOURCE, "%u requests are open, which is the limit", (unsigned)KVF_REQUESTS_MAX);
  }
  kvf_request *request = calloc(1, sizeof(*request));
  if (request == NULL) {
    return KVF_NO_MEMORY;
  }
  fill(requests, request, good.tickets[0], options, user);
  HASH_ADD(by_id, requests->by_id, id, sizeof(request->id), request);
  if (request->by_id.tbl == NULL) {
    free(request);
    return KVF_NO_MEMORY;
  }
  status = kvf_attachments_join(&requests->attachments, now_ns, &good, &request->member, &request->attachment);
  if (status != KVF_OK) {
    free_request(requests, request);
    return status;
  }
  requests->next_id++;
  requests->counters.opened++;
  *id = request->id;
  if (first != NULL) {
    *first = good.tickets[0];
  }
  return KVF_OK;
}

uint64_t kvf_requests_attachment(const kvf_requests *requests, uint64_t id)
{
  const kvf_request *request = find(requests, id);
  return request == NULL || request->attachment == NULL ? 0 : request->attachment->id;
}

/* If it waits. */
static void stop_waiting(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  if (request->state == KVF_REQUEST_OPEN && kvf_timer_is_armed(&request->timer)) {
    request->left_ns = kvf_time_until(now_ns, request->timer.expires_ns);
    kvf_wheel_disarm(&requests->context->wheel, &request->timer);
  }
}

static kvf_status unknown(uint64_t id)
{
  return kvf_because(KVF_NOT_FOUND, "request %llu is unknown, or over", (unsigned long long)id);
}

kvf_status kvf_requests_wait(kvf_requests *requests, uint64_t now_ns, uint64_t id, bool waits)
{
  kvf_request *request = find(requests, id);
  if (request == NULL || (request->state == KVF_REQUEST_DONE && !request->verdict_pending)) {
    return unknown(id);
  }
  if (request->begun) {
    return kvf_because(KVF_EXISTS, "request %llu has begun", (unsigned long long)id);
  }
  if (!waits) {
    stop_waiting(requests, now_ns, request);
  } else if (request->state == KVF_REQUEST_OPEN && !kvf_timer_is_armed(&request->timer)) {
    kvf_wheel_arm(&requests->context->wheel, &request->timer, kvf_time_add(now_ns, request->left_ns));
  }
  return KVF_OK;
}

kvf_status kvf_requests_begin(kvf_requests *requests, uint64_t now_ns, uint64_t id)
{
  kvf_request *request = find(requests, id);
  if (request == NULL || (request->state == KVF_REQUEST_DONE && !request->verdict_pending)) {
    return unknown(id);
  }
  if (request->begun) {
    return kvf_because(KVF_EXISTS, "request %llu has begun", (unsigned long long)id);
  }
  request->begun = true;
  if (request->state == KVF_REQUEST_DONE) {
    return KVF_OK; /* its verdict is on the way */
  }
  stop_waiting(requests, now_ns, request);
  move(request, KVF_REQUEST_LOADING);
  const uint64_t release_ns = kvf_ms_to_ns(requests->context->config.release_timeout_ms);
  kvf_wheel_arm(&requests->context->wheel, &request->timer, kvf_time_add(now_ns, request->left_ns + release_ns));
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
  assert(verdict.action != KVF_ACTION_USE || verdict.recompute_tokens == 0);
  requests->counters.verdicts[verdict.action]++;
  if (verdict.action == KVF_ACTION_RECOMPUTE) {
    (void)kvf_budget_take(&requests->budget, now_ns, verdict.recompute_tokens);
    requests->counters.recomputed_tokens[kvf_status_index(verdict.status)] += verdict.recompute_tokens;
  }
  return verdict;
}

static kvf_log_prefix prefix_of(const kvf_request *request)
{
  return kvf_log_request_prefix((kvf_log_request){.id = request->id, .name = request->name});
}

static kvf_policy_input input_of(const kvf_request *request)
{
  return (kvf_policy_input){.report = request->own.merged,
                            .keep_from_tokens = request->options.keep_from_tokens,
                            .block_tokens = request->block_tokens,
                            .tokens = request->tokens};
}

/* As kvf_policy_decide() has found. */
static const char *why_it_fails(const kvf_request *request)
{
  const kvf_policy_input input = input_of(request);
  if (!kvf_status_describe(request->verdict.status)->recompute_safe) {
    return "recomputing is not safe after this";
  }
  if (request->options.policy == KVF_POLICY_FAIL) {
    return "policy fail";
  }
  return request->options.policy == KVF_POLICY_AUTO &&
                 kvf_policy_recompute_tokens(&input) > request->options.auto_max_recompute_tokens
             ? "policy auto: more tokens are missing than auto_max_recompute_tokens"
             : "the recompute_budget_tokens_per_s is spent";
}

/* What of its prompt has come, and what becomes of the rest. */
static void log_verdict(kvf_requests *requests, uint64_t now_ns, const kvf_request *request)
{
  const kvf_attachment *attachment = request->attachment;
  const kvf_peer_stat *peer = &attachment->ranks[0].peer->stat;
  const kvf_verdict *verdict = &request->verdict;
  const kvf_report *report = &request->own.merged;
  char what[96];
  if (verdict->action == KVF_ACTION_RECOMPUTE) {
    (void)snprintf(what, sizeof(what), "the last %u are computed here", verdict->recompute_tokens);
  } else {
    (void)snprintf(what, sizeof(what), "it fails (%s)", why_it_fails(request));
  }
  kvf_context_log(requests->context, now_ns, verdict->status, peer->id, KVF_LOG_WARN,
                  "%s%s: %u of %u tokens were loaded (%u of %u blocks), %s; lease %llu of %s", prefix_of(request).text,
                  kvf_status_name(verdict->status),
                  kvf_policy_tokens_in(report->prefix, request->block_tokens, request->tokens), request->tokens,
                  report->prefix, report->blocks, what, (unsigned long long)attachment->leases[0].id, peer->address);
}

static void conclude(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  const kvf_attachment *attachment = request->attachment;
  assert(request->state != KVF_REQUEST_DONE && !request->verdict_pending);
  assert(kvf_ranks_have_reported(&request->own) || request->own.merged.prefix == 0);
  if (attachment->crowded && request->own.merged.status == KVF_LEASE_EXPIRED) {
    request->own.merged.status = KVF_LEASE_CROWDED; /* that is why the lease ended without it */
  }
  request->verdict = decide(requests, now_ns, &request->options, input_of(request));
  request->verdict_pending = true;
  review(requests, request);
  if (request->verdict.action != KVF_ACTION_USE) {
    log_verdict(requests, now_ns, request);
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
  if (!request->begun) {
    kvf_context_log(requests->context, now_ns, KVF_INVALID, 0, KVF_LOG_WARN, "%s%s before kvf_request_begin()",
                    prefix_of(request).text, call);
    (void)kvf_because(KVF_INVALID, "request %llu: %s before kvf_request_begin()", (unsigned long long)request->id,
                      call);
    return;
  }
  kvf_context_log(requests->context, now_ns, KVF_INVALID, 0, KVF_LOG_WARN,
                  "%s%s: ranks_mask = %#llx must be some of %#llx; a report has blocks = %u, and prefix at most that",
                  prefix_of(request).text, call, (unsigned long long)ranks_mask, (unsigned long long)request->own.all,
                  request->own.merged.blocks);
}

kvf_status kvf_requests_report(kvf_requests *requests, uint64_t now_ns, const kvf_report *report)
{
  kvf_request *request = find(requests, report->request_id);
  if (request == NULL || request->state == KVF_REQUEST_DONE) {
    requests->counters.late_reports++;
    return unknown(report->request_id);
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
    return unknown(id);
  }
  kvf_status status = request->begun ? kvf_ranks_release(&request->own, ranks_mask) : KVF_INVALID;
  if (status != KVF_OK) {
    log_invalid(requests, now_ns, request, "kvf_request_released()", ranks_mask);
  }
  conclude_when_all_are_in(requests, now_ns, request);
  review(requests, request);
  return status;
}

kvf_status kvf_requests_stuck(kvf_requests *requests, uint64_t id)
{
  kvf_request *request = find(requests, id);
  if (request == NULL) {
    return unknown(id);
  }
  request->own.stuck = true;
  review(requests, request);
  return KVF_OK;
}

kvf_status kvf_requests_cancel(kvf_requests *requests, uint64_t now_ns, uint64_t id, kvf_finish_kind kind)
{
  kvf_request *request = find(requests, id);
  if (request == NULL || (request->state == KVF_REQUEST_DONE && !request->verdict_pending)) {
    return unknown(id);
  }
  requests->counters.cancelled += kind != KVF_FINISH_DETACHED;
  requests->counters.detached += kind == KVF_FINISH_DETACHED;
  if (request->verdict_pending) {
    request->verdict_pending = false;
  } else {
    finish(requests, now_ns, request, kind);
  }
  review(requests, request);
  return KVF_OK;
}

/* ---- what becomes of the attachments ---- */

/* A load that has begun finds out for itself. */
static void lose_open_requests(kvf_requests *requests, uint64_t now_ns, const kvf_attachment *attachment)
{
  const kvf_list *node = attachment->requests.next;
  while (node != &attachment->requests) {
    kvf_request *request = KVF_CONTAINER_OF(node, kvf_request, member);
    node = node->next;
    if (request->state == KVF_REQUEST_OPEN) {
      requests->counters.lost[kvf_status_index(attachment->lost)]++;
      find_nothing(request, attachment->lost);
      conclude(requests, now_ns, request);
    }
  }
}

void kvf_requests_take_losses(kvf_requests *requests, uint64_t now_ns)
{
  const kvf_attachment *attachment;
  while ((attachment = kvf_attachments_next_lost(&requests->attachments)) != NULL) {
    lose_open_requests(requests, now_ns, attachment);
  }
}

/* ---- time and events ---- */

void kvf_requests_on_timer(kvf_requests *requests, uint64_t now_ns, kvf_request *request)
{
  assert(now_ns >= request->timer.expires_ns && request->state != KVF_REQUEST_DONE); /* no timer is early */
  if (request->state == KVF_REQUEST_LOADING) {
    /* Ranks that have not reported are lost, and so is who could say that they are released. */
    requests->counters.ranks_lost++;
    find_nothing(request, KVF_RANK_LOST);
    request->own.stuck = true;
  } else {
    find_nothing(request, KVF_DEADLINE); /* another request's load has taken its time */
  }
  conclude(requests, now_ns, request);
}

bool kvf_requests_next_event(kvf_requests *requests, kvf_event *out)
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
    free_request(requests, request);
    return true;
  }
  review(requests, request);
  return true;
}

#ifndef NDEBUG

static void check_request(const kvf_requests *requests, const kvf_request *request)
{
  const bool is_done = request->state == KVF_REQUEST_DONE;
  const bool is_loading = request->state == KVF_REQUEST_LOADING;
  assert(request->id < requests->next_id && request->own.merged.request_id == request->id);
  assert((request->attachment == NULL) == is_done);
  assert(kvf_list_is_linked(&request->member) == !is_done);
  assert(request->state == KVF_REQUEST_OPEN || kvf_timer_is_armed(&request->timer) == is_loading);
  assert(is_done || request->begun == is_loading);
  assert(!request->verdict_pending || is_done);
  assert(!is_done || request->verdict_pending || request->begun);
  assert(kvf_list_is_linked(&request->event) == (next_kind(request) != NOTHING));
  assert(!request->stuck_given || request->own.stuck);
  assert(is_done || request->attachment->lost == KVF_OK || is_loading);
  kvf_ranks_check(&request->own);
}

uint32_t kvf_requests_check(const kvf_requests *requests)
{
  uint32_t events = 0;
  uint32_t members = 0;
  uint32_t holds = 0;
  for (const kvf_request *request = requests->by_id; request != NULL; request = request->by_id.next) {
    check_request(requests, request);
    events += kvf_list_is_linked(&request->event);
    members += request->attachment != NULL;
  }
  assert(events == kvf_check_list(&requests->events));
  assert(members == kvf_attachments_check(&requests->attachments, &holds));
  assert(HASH_CNT(by_id, requests->by_id) <= KVF_REQUESTS_MAX);
  return holds;
}

#endif
