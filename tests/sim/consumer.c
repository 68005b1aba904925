/* A consumer engine: takes up a ticket, finds blocks, loads on each rank, reports to its control node, and uses or
 * frees the blocks when the library lets go of them. */
#include <string.h>

#include "world.h"

#define BLOCKS_RETRY_NS (15 * SIM_MS)
#define BLOCKS_TRIES 20
#define WATCH_SLACK_NS (3 * SIM_MS)
#define USE_NS (5 * SIM_MS)

static void on_blocks(sim_world *world, const sim_event *event);
static void on_load(sim_world *world, const sim_event *event);
static void on_report(sim_world *world, const sim_event *event);
static void on_let_go(sim_world *world, const sim_event *event);
static void on_abort(sim_world *world, const sim_event *event);
static void on_load_watch(sim_world *world, const sim_event *event);
static void on_verdict_watch(sim_world *world, const sim_event *event);
static void on_wait_watch(sim_world *world, const sim_event *event);
static void on_released_watch(sim_world *world, const sim_event *event);
static void on_used(sim_world *world, const sim_event *event);

uint32_t sim_job_index(const sim_world *world, const sim_job *job)
{
  return (uint32_t)(job - world->jobs);
}

/* Messages within an engine: b is the rank. */
static void tell(sim_world *world, const sim_job *job, sim_event_fn fn, uint32_t rank, uint64_t after_ns)
{
  sim_push(world, world->now_ns + after_ns, fn, sim_job_index(world, job), rank, job->life);
}

static bool is_alive(const sim_world *world, const sim_event *event)
{
  const sim_engine *engine = &world->engines[world->jobs[event->a].engine];
  return engine->life == event->c && engine->state != SIM_ENGINE_DOWN;
}

sim_job *sim_job_of(sim_world *world, const sim_event *event)
{
  sim_job *job = &world->jobs[event->a];
  return is_alive(world, event) && job->state != SIM_JOB_OVER ? job : NULL;
}

sim_job *sim_job_new(sim_world *world, sim_engine *engine, uint32_t offer)
{
  const sim_offer *from = &world->offers[offer];
  if (world->jobs_count == SIM_JOBS_MAX) {
    return NULL;
  }
  sim_job *job = &world->jobs[world->jobs_count++];
  memset(job, 0, offsetof(sim_job, ticket));
  job->engine = engine->index;
  job->offer = offer;
  job->other = SIM_NOBODY;
  job->prompt = from->prompt;
  job->is_other = world->engines[from->engine].is_other;
  job->ticket_bytes = from->ticket_bytes;
  memcpy(job->ticket, from->ticket, from->ticket_bytes);
  return job;
}

void sim_job_join(sim_world *world, sim_job *job, uint32_t offer)
{
  const sim_offer *from = &world->offers[offer];
  job->other = offer;
  if (world->engines[from->engine].is_other != job->is_other) {
    job->is_other = world->engines[job->engine].is_other; /* one of them is of its model */
  }
  job->ticket[job->ticket_bytes++] = ',';
  memcpy(job->ticket + job->ticket_bytes, from->ticket, from->ticket_bytes);
  job->ticket_bytes += from->ticket_bytes;
}

/* ---- from the ticket to the loads ---- */

/* As an engine does whose cache will have the blocks when another request has loaded them. */
static void wait_for_another(sim_world *world, sim_job *job)
{
  sim_node *control = sim_control_of(world, job->engine);
  job->waited = true;
  job->waits_since_ns = sim_node_enter(world, control);
  sim_expect(world, "wait", kvf_requests_wait(&control->core.requests, job->waits_since_ns, job->info.id, true),
             KVF_OK);
  sim_node_leave(world, control);
  tell(world, job, on_wait_watch, 0, kvf_ms_to_ns(job->options.load_timeout_ms) + WATCH_SLACK_NS);
}

void sim_job_arrive(sim_world *world, sim_job *job)
{
  sim_engine *engine = &world->engines[job->engine];
  sim_node *control = sim_control_of(world, job->engine);
  job->life = engine->life;
  job->options = (kvf_request_options){.policy = world->config.policy,
                                       .auto_max_recompute_tokens = world->config.auto_max_recompute_tokens,
                                       .load_timeout_ms = world->config.load_timeout_ms};
  kvf_status status = sim_request_open(world, control, job);
  sim_note(world, control->index, "job % opens request %: $", sim_job_index(world, job), job->info.id,
           (uint64_t)(int64_t)status);
  if (status != KVF_OK) {
    job->state = SIM_JOB_OVER;
    return;
  }
  if (engine->is_other != job->is_other) {
    sim_fail(world, "P1", "job %u: engine %u takes up a ticket of another model", sim_job_index(world, job),
             engine->index);
    return;
  }
  job->state = SIM_JOB_OPEN;
  if (!job->probe && sim_choose(&world->tape, 8) == 1) {
    wait_for_another(world, job);
  }
  tell(world, job, on_blocks, 0, sim_lag(world, SIM_FAULT_SLOW, 200 * SIM_MS));
}

static void begin(sim_world *world, sim_job *job)
{
  const sim_engine *engine = &world->engines[job->engine];
  sim_node *control = sim_control_of(world, job->engine);
  const kvf_request *request;
  uint64_t now_ns = sim_node_enter(world, control);
  kvf_status status = kvf_requests_begin(&control->core.requests, now_ns, job->info.id);
  HASH_FIND(by_id, control->core.requests.by_id, &job->info.id, sizeof(job->info.id), request);
  job->decided_early = request != NULL && request->state == KVF_REQUEST_DONE;
  if (sim_strikes(world, SIM_FAULT_AGAIN, 4)) {
    sim_expect(world, "begin", kvf_requests_begin(&control->core.requests, now_ns, job->info.id), KVF_EXISTS);
  }
  sim_node_leave(world, control);
  sim_note(world, control->index, "job % begins: $", sim_job_index(world, job), (uint64_t)(int64_t)status, 0);
  if (status != KVF_OK) {
    sim_fail(world, "P3", "job %u cannot begin: %s", sim_job_index(world, job), kvf_status_name(status));
    return;
  }
  job->state = SIM_JOB_LOADING;
  for (uint32_t rank = 0; rank < engine->ranks; rank++) {
    tell(world, job, on_load, rank, sim_lag(world, SIM_FAULT_DELAY, 5 * SIM_MS));
  }
  tell(world, job, on_verdict_watch, 0,
       kvf_ms_to_ns(job->options.load_timeout_ms) + kvf_ms_to_ns(world->config.release_timeout_ms) + WATCH_SLACK_NS);
}

/* False if there is no room now. */
static bool take_blocks(sim_world *world, sim_job *job)
{
  const sim_prompt *prompt = sim_prompt_at(job->prompt);
  sim_engine *engine = &world->engines[job->engine];
  if (sim_scheduler_of(world, job)->way != SIM_WAY_NONE) {
    return sim_scheduler_admit(world, job);
  }
  if (!sim_blocks_take(world, engine, prompt->positions, sim_job_index(world, job), job->ids)) {
    return false;
  }
  job->skip = sim_choose(&world->tape, 8) == 7 ? sim_choose(&world->tape, prompt->positions + 1) : 0;
  for (uint32_t rank = 0; rank < engine->ranks; rank++) {
    sim_write_blocks(world, sim_rank_of(world, job->engine, rank), job->ids, prompt, 0, job->skip);
  }
  return true;
}

/* False if there is no room now. */
static bool try_to_begin(sim_world *world, sim_job *job)
{
  job->waits = !take_blocks(world, job);
  if (job->waits) {
    return false;
  }
  job->has_blocks = true;
  for (uint32_t rank = 0; rank < world->engines[job->engine].ranks; rank++) {
    sim_scribble_blocks(world, sim_rank_of(world, job->engine, rank), job->ids, sim_prompt_at(job->prompt), job->skip);
  }
  begin(world, job);
  return true;
}

static void on_blocks(sim_world *world, const sim_event *event)
{
  sim_job *job = sim_job_of(world, event);
  if (job == NULL || job->state != SIM_JOB_OPEN || sim_waits(world, job->engine, event) || try_to_begin(world, job)) {
    return;
  }
  if (event->b == BLOCKS_TRIES) {
    sim_job_cancel(world, job, KVF_FINISH_DETACHED);
  } else {
    tell(world, job, on_blocks, event->b + 1, BLOCKS_RETRY_NS);
  }
}

void sim_jobs_try(sim_world *world, uint32_t engine)
{
  for (uint32_t i = 0; i < world->jobs_count && !world->failed; i++) {
    sim_job *job = &world->jobs[i];
    if (job->engine == engine && job->life == world->engines[engine].life && job->state == SIM_JOB_OPEN && job->waits) {
      (void)try_to_begin(world, job);
    }
  }
}

/* Nothing of the load writes on this rank any more, or there is none: the worker says so, perhaps twice. */
static void let_go(sim_world *world, sim_job *job, uint32_t rank, sim_load_state state)
{
  job->load[rank].state = state;
  tell(world, job, on_let_go, rank, sim_lag(world, SIM_FAULT_DELAY, 5 * SIM_MS));
  if (sim_strikes(world, SIM_FAULT_AGAIN, 4)) {
    tell(world, job, on_let_go, rank, sim_lag(world, SIM_FAULT_AGAIN, 20 * SIM_MS));
  }
  sim_job_advance(world, job);
}

/* The worker may pass on why; a recovery table must hear it. */
static void refuse_load(sim_world *world, sim_job *job, uint32_t rank, kvf_status status)
{
  sim_load *load = &job->load[rank];
  load->report = (kvf_report){.request_id = job->info.id,
                              .ranks_mask = UINT64_C(1) << rank,
                              .blocks = sim_prompt_at(job->prompt)->positions * world->groups,
                              .prefix = 0,
                              .status = status};
  if (job->parked.is_in || sim_choose(&world->tape, 2) == 1) {
    tell(world, job, on_report, rank, sim_lag(world, SIM_FAULT_DELAY, 5 * SIM_MS));
  }
  let_go(world, job, rank, SIM_LOAD_REFUSED);
}

/* Each rank's load of a job has one of its own. */
static uint64_t point_of(const sim_world *world, const sim_job *job, uint32_t rank)
{
  return (uint64_t)sim_job_index(world, job) * SIM_RANKS_MAX + rank + 1;
}

/* The engine has done what it was given before the load began, and that has written to the destination: the load's
 * ordering point. */
static void on_point(sim_world *world, const sim_event *event)
{
  sim_job *job = sim_job_of(world, event);
  if (job == NULL || sim_waits(world, job->engine, event)) {
    return;
  }
  sim_node *node = sim_rank_of(world, job->engine, event->b);
  const sim_load_state state = job->load[event->b].state;
  if (state == SIM_LOAD_OPEN || state == SIM_LOAD_DECIDED) {
    sim_scribble_blocks(world, node, job->ids, sim_prompt_at(job->prompt), job->skip);
  }
  (void)sim_node_enter(world, node);
  kvf_core_on_point(&node->core, job->info.id, point_of(world, job, event->b));
  sim_node_leave(world, node);
}

static void on_load(sim_world *world, const sim_event *event)
{
  sim_job *job = sim_job_of(world, event);
  if (job == NULL || sim_waits(world, job->engine, event)) {
    return;
  }
  sim_node *node = sim_rank_of(world, job->engine, event->b);
  if (job->load[event->b].state != SIM_LOAD_NONE) {
    return; /* aborted before it began */
  }
  if (job->parked.is_in && (job->cancelled || job->state != SIM_JOB_LOADING)) {
    refuse_load(world, job, event->b, KVF_ABORTED);
    return;
  }
  if (job->cancelled || job->state != SIM_JOB_LOADING) {
    let_go(world, job, event->b, SIM_LOAD_REFUSED); /* nothing to do any more */
    return;
  }
  const sim_prompt *prompt = sim_prompt_at(job->prompt);
  uint32_t ids[SIM_IDS_MAX];
  uint32_t counts[SIM_GROUPS_MAX];
  for (uint32_t i = 0; i < world->groups * prompt->positions; i++) {
    ids[i] = i % prompt->positions < job->skip ? KVF_BLOCK_NONE : job->ids[i];
    counts[i / prompt->positions] = prompt->positions;
  }
  const kvf_blocks destination = {.ids = ids, .counts = counts, .groups = world->groups};
  const uint64_t point = sim_strikes(world, SIM_FAULT_SLOW, 3) ? point_of(world, job, event->b) : 0;
  kvf_status status = sim_load_start(world, node, job, &destination, point);
  sim_note(world, node->index, "job % starts to load: $", event->a, (uint64_t)(int64_t)status, 0);
  if (status != KVF_OK) {
    refuse_load(world, job, event->b, status);
    return;
  }
  if (kvf_loads_open(&node->core.loads) > world->config.loads_max) {
    sim_fail(world, "P6", "node %u has more loads than it may", node->index);
  }
  if (sim_strikes(world, SIM_FAULT_AGAIN, 4) && !sim_may(world, SIM_FAULT_ALLOCATION)) {
    sim_expect(world, "load_start", sim_load_start(world, node, job, &destination, 0), KVF_EXISTS);
  }
  sim_load *load = &job->load[event->b];
  load->state = SIM_LOAD_OPEN;
  if (point != 0) {
    tell(world, job, on_point, event->b, SIM_MS + sim_lag(world, SIM_FAULT_SLOW, 20 * SIM_MS));
  }
  load->deadline_ns = world->now_ns + kvf_ms_to_ns(job->options.load_timeout_ms);
  tell(world, job, on_load_watch, event->b, load->deadline_ns + WATCH_SLACK_NS - world->now_ns);
}

/* ---- what comes of them ---- */

void sim_job_check_prefix(sim_world *world, const sim_job *job, const sim_node *node, uint32_t prefix, const char *when)
{
  const sim_prompt *prompt = sim_prompt_at(job->prompt);
  uint32_t positions = prompt->positions;
  uint32_t good = prefix == positions * world->groups ? positions : prefix;
  if (good > positions) {
    sim_fail(world, "P1", "node %u: job %u has a prefix of %u of %u blocks", node->index, sim_job_index(world, job),
             prefix, positions * world->groups);
    return;
  }
  for (uint32_t i = 0; i < world->groups * positions; i++) {
    if (i % positions < good && !sim_block_holds(world, node, i / positions, job->ids[i], prompt, i % positions)) {
      sim_fail(world, "P1", "node %u: job %u %s: block %u at position %u of group %u is not the prompt's", node->index,
               sim_job_index(world, job), when, job->ids[i], i % positions, i / positions);
      return;
    }
  }
}

void sim_job_check_ranks(sim_world *world, const sim_job *job, uint32_t prefix, const char *when)
{
  for (uint32_t rank = 0; rank < world->engines[job->engine].ranks; rank++) {
    sim_job_check_prefix(world, job, sim_rank_of(world, job->engine, rank), prefix, when);
  }
}

static void on_outcome(sim_world *world, sim_job *job, sim_node *node, const kvf_report *report)
{
  sim_load *load = &job->load[node->rank];
  sim_note(world, node->index, "load of job % has its outcome: prefix %, $", sim_job_index(world, job), report->prefix,
           (uint64_t)(int64_t)report->status);
  if (load->state != SIM_LOAD_OPEN || report->ranks_mask != UINT64_C(1) << node->rank) {
    sim_fail(world, "P3", "node %u: a second or unfounded outcome of job %u", node->index, sim_job_index(world, job));
    return;
  }
  load->state = SIM_LOAD_DECIDED;
  load->report = *report;
  tell(world, job, on_released_watch, node->rank, kvf_ms_to_ns(world->config.release_timeout_ms) + WATCH_SLACK_NS);
  world->result->loads++;
  sim_job_check_prefix(world, job, node, report->prefix, "is loaded");
  if (job->offer == SIM_NOBODY && report->prefix > job->skip && job->skip < sim_prompt_at(job->prompt)->positions) {
    sim_fail(world, "P1", "node %u: blocks count as loaded by a ticket that does not name the lease's", node->index);
  }
  if (sim_strikes(world, SIM_FAULT_REPORT, 6)) {
    return; /* the worker's message is lost */
  }
  tell(world, job, on_report, node->rank, sim_lag(world, SIM_FAULT_DELAY, 5 * SIM_MS));
  if (sim_strikes(world, SIM_FAULT_REPORT, 3)) {
    tell(world, job, on_report, node->rank, sim_lag(world, SIM_FAULT_REPORT, 20 * SIM_MS));
  }
}

static void on_released(sim_world *world, sim_job *job, const sim_node *node)
{
  sim_load *load = &job->load[node->rank];
  sim_note(world, node->index, "load of job % is released", sim_job_index(world, job), 0, 0);
  if (load->state != SIM_LOAD_DECIDED) {
    sim_fail(world, "P3", "node %u: a second released of job %u, or one before its outcome", node->index,
             sim_job_index(world, job));
    return;
  }
  if (load->reads > 0) {
    sim_fail(world, "P4", "node %u: job %u is released with %u reads in flight", node->index, sim_job_index(world, job),
             load->reads);
  }
  let_go(world, job, node->rank, SIM_LOAD_RELEASED);
}

void sim_job_on_event(sim_world *world, sim_node *node, const kvf_event *event)
{
  sim_job *job = event->user < world->jobs_count ? &world->jobs[event->user] : NULL;
  if (job == NULL || job->info.id != event->id || job->engine != node->index / SIM_NODES_EACH) {
    sim_fail(world, "P3", "node %u: an event of request %llu, which is not known", node->index,
             (unsigned long long)event->id);
  } else if (event->kind == KVF_EVENT_LOAD) {
    on_outcome(world, job, node, &event->u.report);
  } else {
    on_released(world, job, node);
  }
}

/* P2: the outcome is there by the deadline, once the node has looked at the clock. */
static void on_load_watch(sim_world *world, const sim_event *event)
{
  sim_job *job = sim_job_of(world, event);
  if (job == NULL || sim_waits(world, job->engine, event)) {
    return;
  }
  if (job->load[event->b].state == SIM_LOAD_OPEN) {
    sim_node_catch_up(world, sim_rank_of(world, job->engine, event->b));
  }
  if (job->load[event->b].state == SIM_LOAD_OPEN) {
    sim_fail(world, "P2", "node %u: job %u has no outcome at its deadline",
             sim_rank_of(world, job->engine, event->b)->index, event->a);
  }
}

/* P4: blocks that a copy keeps for too long are told of. */
static void on_released_watch(sim_world *world, const sim_event *event)
{
  sim_job *job = sim_job_of(world, event);
  if (job == NULL || sim_waits(world, job->engine, event)) {
    return;
  }
  sim_node *node = sim_rank_of(world, job->engine, event->b);
  if (job->load[event->b].state == SIM_LOAD_DECIDED) {
    sim_node_catch_up(world, node);
  }
  if (job->load[event->b].state == SIM_LOAD_DECIDED && kvf_core_is_healthy(&node->core)) {
    sim_fail(world, "P4", "node %u says that it is healthy, but job %u is not released", node->index, event->a);
  }
  if (job->load[event->b].state == SIM_LOAD_DECIDED) {
    sim_node *control = sim_control_of(world, job->engine);
    (void)sim_node_enter(world, control);
    (void)kvf_requests_stuck(&control->core.requests, job->info.id);
    sim_node_leave(world, control);
    job->said_stuck = true;
  }
}

static bool is_undecided(const sim_node *control, const sim_job *job)
{
  const kvf_request *request;
  HASH_FIND(by_id, control->core.requests.by_id, &job->info.id, sizeof(job->info.id), request);
  return request != NULL && request->state == KVF_REQUEST_LOADING;
}

static void on_let_go(sim_world *world, const sim_event *event)
{
  sim_job *job = &world->jobs[event->a]; /* its blocks may have been given back already, by a recovery table */
  if (!is_alive(world, event) || sim_waits(world, job->engine, event)) {
    return;
  }
  sim_node *control = sim_control_of(world, job->engine);
  bool is_news = (job->let_go >> event->b & 1) == 0;
  job->let_go |= 1u << event->b;
  uint64_t now_ns = sim_node_enter(world, control);
  job->load[event->b].was_let_go = job->load[event->b].was_let_go || is_undecided(control, job);
  kvf_status status = kvf_requests_released(&control->core.requests, now_ns, job->info.id, UINT64_C(1) << event->b);
  sim_node_leave(world, control);
  sim_note(world, control->index, "job %: rank % is released: $", event->a, event->b, (uint64_t)(int64_t)status);
  if (is_news && status != KVF_OK) {
    sim_fail(world, "P4", "job %u is forgotten before it is released: %s", event->a, kvf_status_name(status));
  }
}

/* The job has had its time, and is still in this state. */
static void must_be_decided(sim_world *world, const sim_event *event, sim_job_state undecided)
{
  sim_job *job = sim_job_of(world, event);
  if (job == NULL || sim_waits(world, job->engine, event)) {
    return;
  }
  if (job->state == undecided) {
    sim_node_catch_up(world, sim_control_of(world, job->engine));
  }
  if (job->state == undecided) {
    sim_fail(world, "P2", "job %u has no verdict at its deadline", event->a);
  }
}

static void on_verdict_watch(sim_world *world, const sim_event *event)
{
  must_be_decided(world, event, SIM_JOB_LOADING);
}

static void on_wait_watch(sim_world *world, const sim_event *event)
{
  must_be_decided(world, event, SIM_JOB_OPEN);
}

static void on_report(sim_world *world, const sim_event *event)
{
  sim_job *job = sim_job_of(world, event);
  if (job == NULL || sim_waits(world, job->engine, event)) {
    return;
  }
  sim_node *control = sim_control_of(world, job->engine);
  kvf_report report = job->load[event->b].report;
  uint32_t other = sim_choose(&world->tape, 4) == 3 ? sim_choose(&world->tape, SIM_RANKS_MAX) : event->b;
  if (sim_may(world, SIM_FAULT_REPORT) && job->load[other].was_reported) {
    report = kvf_report_merge(job->load[other].report, report);
  }
  uint64_t now_ns = sim_node_enter(world, control);
  kvf_status status = kvf_requests_report(&control->core.requests, now_ns, &report);
  job->load[event->b].was_reported = job->load[event->b].was_reported || status == KVF_OK;
  sim_node_leave(world, control);
  sim_note(world, control->index, "job %: report of rank %: $", event->a, event->b, (uint64_t)(int64_t)status);
  if (job->parked.is_in) {
    sim_scheduler_report(world, job, event->b, &report);
  }
}

/* ---- the end ---- */

void sim_job_cancel(sim_world *world, sim_job *job, kvf_finish_kind kind)
{
  sim_node *control = sim_control_of(world, job->engine);
  if (job->state == SIM_JOB_DECIDED && job->parked.is_in) {
    job->cancelled = true;
    sim_scheduler_end(world, job);
  }
  if (job->state != SIM_JOB_OPEN && job->state != SIM_JOB_LOADING) {
    return;
  }
  uint64_t now_ns = sim_node_enter(world, control);
  kvf_status status = kvf_requests_cancel(&control->core.requests, now_ns, job->info.id, kind);
  if (sim_strikes(world, SIM_FAULT_AGAIN, 2)) {
    sim_expect(world, "cancel", kvf_requests_cancel(&control->core.requests, now_ns, job->info.id, kind),
               KVF_NOT_FOUND);
    sim_expect(world, "begin", kvf_requests_begin(&control->core.requests, now_ns, job->info.id), KVF_NOT_FOUND);
  }
  sim_node_leave(world, control);
  sim_note(world, control->index, kind == KVF_FINISH_DETACHED ? "job % is detached: $" : "job % is cancelled: $",
           sim_job_index(world, job), (uint64_t)(int64_t)status, 0);
  if (status != KVF_OK) {
    sim_fail(world, "P3", "job %u cannot be cancelled: %s", sim_job_index(world, job), kvf_status_name(status));
  }
  job->cancelled = true;
  bool is_loading = job->state == SIM_JOB_LOADING;
  job->state = SIM_JOB_DECIDED;
  if (job->parked.is_in) {
    sim_scheduler_end(world, job);
    return;
  }
  if (is_loading) {
    sim_job_abort(world, job, UINT64_MAX);
  }
  sim_job_advance(world, job);
}

void sim_job_abort(sim_world *world, const sim_job *job, uint64_t ranks_mask)
{
  for (uint32_t rank = 0; rank < world->engines[job->engine].ranks; rank++) {
    if ((ranks_mask >> rank & 1) != 0) {
      tell(world, job, on_abort, rank, sim_lag(world, SIM_FAULT_DELAY, 5 * SIM_MS));
    }
  }
}

static void on_abort(sim_world *world, const sim_event *event)
{
  sim_job *job = sim_job_of(world, event);
  if (job == NULL || sim_waits(world, job->engine, event)) {
    return;
  }
  sim_node *node = sim_rank_of(world, job->engine, event->b);
  if (job->load[event->b].state == SIM_LOAD_OPEN || job->load[event->b].state == SIM_LOAD_DECIDED) {
    uint64_t now_ns = sim_node_enter(world, node);
    (void)kvf_core_load_abort(&node->core, now_ns, job->info.id);
    (void)kvf_core_load_abort(&node->core, now_ns, job->info.id);
    sim_node_leave(world, node);
  } else if (job->load[event->b].state == SIM_LOAD_NONE && job->parked.is_in) {
    refuse_load(world, job, event->b, KVF_ABORTED);
  }
}

/* The engine computes what is missing, decodes for a while, and lets the blocks go. */
void sim_job_advance(sim_world *world, sim_job *job)
{
  const sim_engine *engine = &world->engines[job->engine];
  if (job->parked.is_in) {
    sim_scheduler_advance(world, job);
    return;
  }
  if (job->state != SIM_JOB_DECIDED) {
    return;
  }
  if (job->has_blocks && !job->released) {
    return;
  }
  if (!job->has_blocks || job->cancelled || job->verdict.action == KVF_ACTION_FAIL) {
    job->state = SIM_JOB_OVER;
    sim_blocks_give(world, &world->engines[job->engine], sim_job_index(world, job));
    return;
  }
  for (uint32_t rank = 0; job->verdict.action == KVF_ACTION_RECOMPUTE && rank < engine->ranks; rank++) {
    sim_write_blocks(world, sim_rank_of(world, job->engine, rank), job->ids, sim_prompt_at(job->prompt),
                     job->verdict.keep_blocks, SIM_POSITIONS_MAX);
  }
  tell(world, job, on_used, 0, USE_NS);
}

static void on_used(sim_world *world, const sim_event *event)
{
  sim_job *job = sim_job_of(world, event);
  if (job == NULL || sim_waits(world, job->engine, event)) {
    return;
  }
  sim_job_check_ranks(world, job, sim_prompt_at(job->prompt)->positions * world->groups, "was used");
  job->state = SIM_JOB_OVER;
  sim_blocks_give(world, &world->engines[job->engine], event->a);
}

void sim_jobs_drop_engine(sim_world *world, uint32_t engine)
{
  for (uint32_t i = 0; i < world->jobs_count; i++) {
    if (world->jobs[i].engine == engine && world->jobs[i].life == world->engines[engine].life) {
      world->jobs[i].state = SIM_JOB_OVER;
    }
  }
}
