/* What a consumer's recovery tables are told, and what they say: one table beside the scheduler, which hears at once,
 * or one on each rank, which hears in every step what is new on all ranks, each in an order of its own. */
#include <string.h>

#include "recovery/recovery_check.h"
#include "world.h"

#define STEP_NS SIM_MS
#define EVENTS_MAX 128
#define ERRORS_AT_ONCE 3

static kvf_recovery_event said[SIM_RANKS_MAX][EVENTS_MAX];
static kvf_recovery_error errors[SIM_RANKS_MAX][EVENTS_MAX];

static void on_step(sim_world *world, const sim_event *event);

/* ---- in ---- */

static kvf_status tell_once(kvf_recovery *table, const sim_job *job, const sim_news *news)
{
  switch (news->kind) {
    case SIM_NEWS_REPORT:
      return kvf_recovery_report(table, &news->report);
    case SIM_NEWS_FAILED:
      return kvf_recovery_report_blocks(table, news->rank, news->group, news->failed, news->count,
                                        (kvf_status)news->report.status);
    case SIM_NEWS_RELEASED:
      return kvf_recovery_released(table, job->info.id, UINT64_C(1) << news->rank);
    default:
      return kvf_recovery_end(table, job->info.id);
  }
}

/* After the model has heard: a request that has left is not found. */
static void tell(sim_world *world, kvf_recovery *table, const sim_news *news)
{
  const sim_job *job = &world->jobs[news->job];
  bool may_have_left = job->parked.ended && job->parked.released;
  kvf_status status = tell_once(table, job, news);
  if (status != KVF_OK && (status != KVF_NOT_FOUND || !may_have_left || news->kind == SIM_NEWS_END)) {
    sim_fail(world, "P3", "engine %u: its recovery table answers %s to news of kind %d on job %u", job->engine,
             kvf_status_name(status), (int)news->kind, news->job);
  }
  if (news->again) {
    status = tell_once(table, job, news);
    if (status != KVF_NOT_FOUND && (status != KVF_OK || news->kind == SIM_NEWS_END)) {
      sim_fail(world, "P3", "engine %u: its recovery table answers %s to news of kind %d on job %u, told again",
               job->engine, kvf_status_name(status), (int)news->kind, news->job);
    }
  }
}

static void wake(sim_world *world, uint32_t index)
{
  sim_scheduler *scheduler = &world->schedulers[index];
  const sim_engine *engine = &world->engines[index];
  if (!scheduler->step_waits) {
    scheduler->step_waits = true;
    sim_push(world, world->now_ns + STEP_NS + sim_lag(world, SIM_FAULT_LATE, 2 * engine->late_ns), on_step, index, 0,
             engine->life);
  }
}

void sim_tables_tell(sim_world *world, const sim_job *job, const sim_news *news)
{
  sim_scheduler *scheduler = sim_scheduler_of(world, job);
  if (scheduler->news_count == SIM_NEWS_MAX) {
    sim_fail(world, "SIM", "engine %u has too much to tell its recovery tables", job->engine);
    return;
  }
  sim_news *own = &scheduler->news[scheduler->news_count++];
  *own = *news;
  own->job = sim_job_index(world, job);
  own->again = sim_strikes(world, SIM_FAULT_AGAIN, 8);
  wake(world, job->engine);
  if (scheduler->way != SIM_WAY_EACH) {
    scheduler->news_count = 0;
    sim_recovery_told(&world->jobs[own->job], own);
    tell(world, scheduler->tables[0], own);
  }
}

/* Some order of the news, for each table another; by 0 all have the same. */
static void shuffle(uint32_t *order, uint32_t count, uint64_t by, uint32_t table)
{
  kvf_prng prng = {.state = by << 8 | table};
  for (uint32_t i = 0; i < count; i++) {
    order[i] = i;
  }
  for (uint32_t i = count; by != 0 && i > 1; i--) {
    uint32_t other = (uint32_t)(kvf_prng_next(&prng) % i);
    uint32_t last = order[i - 1];
    order[i - 1] = order[other];
    order[other] = last;
  }
}

/* The collective of a step. */
static void exchange(sim_world *world, sim_scheduler *scheduler)
{
  uint32_t order[SIM_NEWS_MAX];
  uint32_t count = scheduler->news_count;
  uint64_t by = count > 1 && scheduler->tables_count > 1 ? sim_choose(&world->tape, 256) : 0;
  scheduler->news_count = 0;
  for (uint32_t i = 0; i < count; i++) {
    sim_recovery_told(&world->jobs[scheduler->news[i].job], &scheduler->news[i]);
  }
  for (uint32_t table = 0; table < scheduler->tables_count; table++) {
    shuffle(order, count, by, table);
    for (uint32_t i = 0; i < count; i++) {
      tell(world, scheduler->tables[table], &scheduler->news[order[i]]);
    }
  }
}

/* ---- out ---- */

static bool is_same(const kvf_recovery_event *a, const kvf_recovery_event *b)
{
  return a->kind == b->kind && a->status == b->status && a->request_id == b->request_id && a->user == b->user &&
         a->ranks_mask == b->ranks_mask && a->blockers == b->blockers && a->confirmed_blocks == b->confirmed_blocks &&
         a->computed_tokens == b->computed_tokens && a->recompute_tokens == b->recompute_tokens;
}

static bool is_same_error(const kvf_recovery_error *a, const kvf_recovery_error *b)
{
  return a->request_id == b->request_id && a->group == b->group && a->block_id == b->block_id &&
         a->position == b->position && a->status == b->status;
}

static uint32_t take_events(kvf_recovery *table, kvf_recovery_event *out)
{
  uint32_t count = 0;
  while (count < EVENTS_MAX && kvf_recovery_next_event(table, &out[count])) {
    count++;
  }
  return count;
}

static uint32_t drain(kvf_recovery *table, kvf_recovery_error *out)
{
  uint32_t count = 0;
  size_t more = 1;
  while (more > 0 && count + ERRORS_AT_ONCE <= EVENTS_MAX) {
    more = kvf_recovery_drain_errors(table, &out[count], ERRORS_AT_ONCE);
    count += (uint32_t)more;
  }
  return count;
}

static bool is_parked(const sim_world *world, uint32_t engine, const sim_job *job)
{
  return job->engine == engine && job->life == world->engines[engine].life && job->parked.is_in &&
         job->state != SIM_JOB_OVER;
}

static sim_job *job_that_is_meant(sim_world *world, uint32_t engine, uint64_t user, uint64_t request_id)
{
  sim_job *job = user < world->jobs_count ? &world->jobs[user] : NULL;
  if (job == NULL || !is_parked(world, engine, job) || job->info.id != request_id) {
    sim_fail(world, "P3", "engine %u: its recovery table speaks of request %llu, which is not parked", engine,
             (unsigned long long)request_id);
    return NULL;
  }
  return job;
}

static void check_errors(sim_world *world, uint32_t engine)
{
  sim_scheduler *scheduler = &world->schedulers[engine];
  uint32_t count = drain(scheduler->tables[0], errors[0]);
  for (uint32_t table = 1; table < scheduler->tables_count; table++) {
    bool same = drain(scheduler->tables[table], errors[table]) == count;
    for (uint32_t i = 0; same && i < count; i++) {
      same = is_same_error(&errors[0][i], &errors[table][i]);
    }
    if (!same) {
      sim_fail(world, "P7", "engine %u: ranks 0 and %u drain other errors", engine, table);
    }
  }
  for (uint32_t i = 0; i < count && !world->failed; i++) {
    uint32_t j = 0;
    while (j < world->jobs_count &&
           (world->jobs[j].info.id != errors[0][i].request_id || !is_parked(world, engine, &world->jobs[j]))) {
      j++;
    }
    sim_job *job = job_that_is_meant(world, engine, j, errors[0][i].request_id);
    if (job != NULL) {
      sim_recovery_on_error(world, job, &errors[0][i]);
    }
  }
}

static bool all_say_the_same(sim_world *world, uint32_t engine, uint32_t *count)
{
  const sim_scheduler *scheduler = &world->schedulers[engine];
  *count = take_events(scheduler->tables[0], said[0]);
  for (uint32_t table = 1; table < scheduler->tables_count; table++) {
    bool same = take_events(scheduler->tables[table], said[table]) == *count;
    for (uint32_t i = 0; same && i < *count; i++) {
      same = is_same(&said[0][i], &said[table][i]);
    }
    if (!same) {
      sim_fail(world, "P7", "engine %u: the recovery tables of ranks 0 and %u say different things", engine, table);
      return false;
    }
  }
  return true;
}

static void each_parked(sim_world *world, uint32_t engine, void (*what)(sim_world *, sim_job *))
{
  for (uint32_t i = 0; i < world->jobs_count && !world->failed; i++) {
    if (is_parked(world, engine, &world->jobs[i])) {
      what(world, &world->jobs[i]);
    }
  }
}

static void check_tables(const sim_world *world, const sim_scheduler *scheduler)
{
  for (uint32_t table = 0; world->checks_all && table < scheduler->tables_count; table++) {
    kvf_recovery_check(scheduler->tables[table]);
  }
}

static void on_step(sim_world *world, const sim_event *event)
{
  sim_scheduler *scheduler = &world->schedulers[event->a];
  const sim_engine *engine = &world->engines[event->a];
  uint32_t count;
  if (engine->life != event->c || engine->state == SIM_ENGINE_DOWN || sim_waits(world, event->a, event)) {
    return;
  }
  scheduler->step_waits = false;
  if (scheduler->way == SIM_WAY_EACH) {
    exchange(world, scheduler);
  }
  check_tables(world, scheduler);
  if (!all_say_the_same(world, event->a, &count)) {
    return;
  }
  check_tables(world, scheduler);
  for (uint32_t i = 0; i < count && !world->failed; i++) {
    sim_job *job = job_that_is_meant(world, event->a, said[0][i].user, said[0][i].request_id);
    if (job != NULL) {
      sim_recovery_on_event(world, job, &said[0][i]);
    }
  }
  check_errors(world, event->a);
  each_parked(world, event->a, sim_recovery_check_said);
  for (uint32_t i = 0; i < count && !world->failed; i++) {
    sim_scheduler_act(world, &world->jobs[said[0][i].user], &said[0][i]);
  }
  each_parked(world, event->a, sim_scheduler_advance);
  check_tables(world, scheduler);
}
