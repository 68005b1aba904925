/* What a consumer's recovery tables say, held against what they were told and against the blocks themselves: the
 * rewind point is the shortest prefix of all ranks (P7) and all before it is the prompt's (P1); one decision, one
 * abort, one release, each failed block once (P3); none before nothing writes any more (P4); and at once (P2). */
#include "world.h"

static uint64_t all_ranks(const sim_world *world, const sim_job *job)
{
  return (UINT64_C(1) << world->engines[job->engine].ranks) - 1;
}

/* ---- what they were told ---- */

static void on_report(sim_parked *parked, uint64_t ranks_mask, uint32_t prefix, int status)
{
  parked->reported |= (uint32_t)ranks_mask;
  parked->prefix = prefix < parked->prefix ? prefix : parked->prefix;
  parked->is_unsafe = parked->is_unsafe || !kvf_status_describe(status)->recompute_safe;
}

void sim_recovery_told(sim_job *job, const sim_news *news)
{
  sim_parked *parked = &job->parked;
  if (parked->ended && parked->released) {
    return; /* it has left */
  }
  switch (news->kind) {
    case SIM_NEWS_REPORT:
      on_report(parked, news->report.ranks_mask, news->report.prefix, news->report.status);
      break;
    case SIM_NEWS_FAILED:
      on_report(parked, UINT64_C(1) << news->rank, news->first_failed, news->report.status);
      break;
    case SIM_NEWS_RELEASED:
      parked->ranks_released |= 1u << news->rank;
      break;
    case SIM_NEWS_END:
      parked->ended = true;
      break;
  }
}

/* ---- what they should say ---- */

bool sim_is_released(const sim_world *world, const sim_job *job)
{
  for (uint32_t rank = 0; rank < world->engines[job->engine].ranks; rank++) {
    if (job->load[rank].state != SIM_LOAD_RELEASED && job->load[rank].state != SIM_LOAD_REFUSED) {
      return false;
    }
  }
  return true;
}

/* Leading positions that are good in all groups. */
static uint32_t good_positions(const sim_world *world, const sim_job *job)
{
  uint32_t positions = sim_prompt_at(job->prompt)->positions;
  uint32_t good = job->parked.prefix == positions * world->groups ? positions : job->parked.prefix;
  return good > job->skip ? good : job->skip;
}

static uint32_t good_tokens(const sim_world *world, const sim_job *job)
{
  uint32_t tokens = good_positions(world, job) * SIM_BLOCK_TOKENS;
  return tokens < job->info.tokens ? tokens : job->info.tokens;
}

static uint32_t blockers_of_rewind(sim_world *world, const sim_job *job)
{
  uint32_t most = sim_scheduler_of(world, job)->recompute_max_tokens;
  uint32_t blockers = job->parked.blockers | (job->parked.is_unsafe ? (uint32_t)KVF_BLOCKER_UNSAFE : 0);
  uint32_t missing = job->info.tokens - good_tokens(world, job);
  blockers |= most != 0 && missing > most ? (uint32_t)KVF_BLOCKER_TOO_LONG : 0;
  return blockers | (job->parked.told != 0 ? (uint32_t)KVF_BLOCKER_USED : 0);
}

/* The decision that is due: 0, KVF_RECOVERY_READY, REWIND or TERMINATE. */
static uint32_t due_decision(sim_world *world, const sim_job *job)
{
  const sim_parked *parked = &job->parked;
  uint32_t good = good_positions(world, job);
  bool is_whole = good == sim_prompt_at(job->prompt)->positions;
  if (parked->ended || parked->told == KVF_RECOVERY_TERMINATE || parked->reported != all_ranks(world, job)) {
    return 0;
  }
  if (parked->told != 0) {
    return good < parked->kept ? KVF_RECOVERY_TERMINATE : 0;
  }
  if (is_whole ? parked->is_unsafe : blockers_of_rewind(world, job) != 0) {
    return KVF_RECOVERY_TERMINATE;
  }
  if (parked->ranks_released != all_ranks(world, job)) {
    return 0;
  }
  return is_whole ? KVF_RECOVERY_READY : KVF_RECOVERY_REWIND;
}

/* Each failed block of a request that goes back or ends; of others there is none. */
static bool has_drained(const sim_world *world, const sim_job *job)
{
  uint32_t positions = sim_prompt_at(job->prompt)->positions;
  for (uint32_t i = 0; i < positions * world->groups; i++) {
    if (i % positions >= job->parked.kept && (job->parked.drained & 1u << i) == 0) {
      return false;
    }
  }
  return true;
}

void sim_recovery_check_said(sim_world *world, sim_job *job)
{
  const sim_parked *parked = &job->parked;
  bool is_released = parked->ranks_released == all_ranks(world, job);
  bool is_given_up = parked->ended || parked->told == KVF_RECOVERY_TERMINATE;
  uint32_t index = sim_job_index(world, job);
  if (due_decision(world, job) != 0) {
    sim_fail(world, "P2", "job %u: all ranks are in, and nothing is decided", index);
  } else if (is_given_up && !is_released && !parked->aborted) {
    sim_fail(world, "P2", "job %u is given up, and its loads are not aborted", index);
  } else if ((parked->ended || parked->told != 0) && is_released && !parked->released) {
    sim_fail(world, "P5", "job %u is released, and not released", index);
  } else if (!parked->ended && parked->told != 0 && !has_drained(world, job)) {
    sim_fail(world, "P3", "job %u: a failed block is never told of", index);
  }
}

/* ---- what they say ---- */

static void fail(sim_world *world, const sim_job *job, const kvf_recovery_event *event, const char *promise,
                 const char *what)
{
  static const char *const names[] = {"?", "READY", "REWIND", "TERMINATE", "ABORT", "RELEASE"};
  sim_fail(world, promise, "engine %u: job %u: %s, K %u, blockers %u: %s", job->engine, sim_job_index(world, job),
           names[event->kind <= KVF_RECOVERY_RELEASE ? event->kind : 0], event->confirmed_blocks, event->blockers,
           what);
}

/* What is wrong with a decision; NULL if nothing is. */
static const char *wrong_decision(sim_world *world, const sim_job *job, const kvf_recovery_event *event,
                                  const char **promise)
{
  const sim_parked *parked = &job->parked;
  bool terminates = event->kind == KVF_RECOVERY_TERMINATE;
  *promise = "P3";
  if (parked->ended || parked->told == KVF_RECOVERY_TERMINATE || (parked->told != 0 && !terminates)) {
    return "a second decision, or one after the end";
  }
  *promise = "P7";
  if (parked->reported != all_ranks(world, job)) {
    return "before all ranks are in";
  }
  *promise = "P4";
  if (!terminates && (parked->ranks_released != all_ranks(world, job) || !sim_is_released(world, job))) {
    return "before all ranks are released";
  }
  if (event->kind == due_decision(world, job)) {
    return NULL;
  }
  *promise = terminates ? "P2" : "P7";
  if (event->kind == KVF_RECOVERY_REWIND && blockers_of_rewind(world, job) != 0) {
    *promise = "P1";
    return "a rewind cannot apply";
  }
  return terminates ? "nothing is against going on" : "not what the ranks have";
}

static bool is_at_right_point(const sim_world *world, const sim_job *job, const kvf_recovery_event *event)
{
  uint32_t tokens = good_tokens(world, job);
  return event->confirmed_blocks == good_positions(world, job) - job->skip && event->computed_tokens == tokens &&
         event->recompute_tokens == job->info.tokens - tokens;
}

static void on_decision(sim_world *world, sim_job *job, const kvf_recovery_event *event)
{
  const char *promise;
  const char *wrong = wrong_decision(world, job, event, &promise);
  if (wrong != NULL) {
    fail(world, job, event, promise, wrong);
    return;
  }
  if (event->kind == KVF_RECOVERY_TERMINATE) {
    if (event->blockers == 0 || event->blockers != blockers_of_rewind(world, job)) {
      fail(world, job, event, "P2", "other reasons than there are");
    }
  } else if (!is_at_right_point(world, job, event)) {
    fail(world, job, event, "P7", "not the shortest prefix of the ranks");
  }
  if ((event->status == KVF_OK) != (event->kind == KVF_RECOVERY_READY)) {
    fail(world, job, event, "P3", "with a status that does not belong to it");
  }
  bool is_first = job->parked.told == 0;
  job->parked.told = event->kind;
  job->parked.kept = good_positions(world, job);
  if (is_first && event->kind != KVF_RECOVERY_TERMINATE) {
    sim_job_check_ranks(world, job, job->parked.kept, "is recovered");
  }
}

static void on_abort(sim_world *world, sim_job *job, const kvf_recovery_event *event)
{
  sim_parked *parked = &job->parked;
  if (parked->aborted || (!parked->ended && parked->told != KVF_RECOVERY_TERMINATE)) {
    fail(world, job, event, "P3", "a second one, or nobody has given up");
  } else if (event->ranks_mask == 0 || event->ranks_mask != (all_ranks(world, job) & ~parked->ranks_released)) {
    fail(world, job, event, "P4", "not for the ranks that are not released");
  }
  parked->aborted = true;
}

static void on_release(sim_world *world, sim_job *job, const kvf_recovery_event *event)
{
  sim_parked *parked = &job->parked;
  if (parked->released || (!parked->ended && parked->told == 0)) {
    fail(world, job, event, "P3", "a second one, or nothing is decided");
  } else if (parked->ranks_released != all_ranks(world, job) || !sim_is_released(world, job)) {
    fail(world, job, event, "P4", "before all ranks are released");
  }
  parked->released = true;
}

void sim_recovery_on_event(sim_world *world, sim_job *job, const kvf_recovery_event *event)
{
  sim_note(world, world->engines[job->engine].control, "recovery of job %: event %, % tokens are computed",
           sim_job_index(world, job), event->kind, event->computed_tokens);
  if (event->kind == KVF_RECOVERY_ABORT) {
    on_abort(world, job, event);
  } else if (event->kind == KVF_RECOVERY_RELEASE) {
    on_release(world, job, event);
  } else {
    on_decision(world, job, event);
  }
}

void sim_recovery_on_error(sim_world *world, sim_job *job, const kvf_recovery_error *error)
{
  uint32_t positions = sim_prompt_at(job->prompt)->positions;
  uint32_t index = error->group * positions + error->position;
  sim_parked *parked = &job->parked;
  if (error->group >= world->groups || error->position >= positions || job->ids[index] != error->block_id ||
      (parked->told != KVF_RECOVERY_REWIND && parked->told != KVF_RECOVERY_TERMINATE) ||
      error->position < parked->kept) {
    sim_fail(world, "P3", "engine %u: block %u at position %u of job %u is drained, but has not failed", job->engine,
             error->block_id, error->position, sim_job_index(world, job));
    return;
  }
  if ((parked->drained & 1u << index) != 0) {
    sim_fail(world, "P3", "engine %u: block %u at position %u of job %u is drained twice", job->engine, error->block_id,
             error->position, sim_job_index(world, job));
  }
  parked->drained |= 1u << index;
  sim_cache_lose(world, job, error->position);
}
