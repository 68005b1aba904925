/* The control node's verdict, held against what the ranks reported (P7), and the client that comes again. */
#include "world.h"

#define RETRIES 2
#define PROBE_BACK_NS (60 * SIM_MS)

typedef struct expected {
  bool all_are_in;      /* each rank has reported, or was released without */
  bool all_good;        /* every block on every rank, and nothing went wrong */
  bool recompute_is_ok; /* no rank has a reason against it */
  uint32_t prefix;
} expected;

static expected expect(const sim_world *world, const sim_job *job)
{
  const sim_engine *engine = &world->engines[job->engine];
  expected out = {.all_are_in = true, .all_good = true, .recompute_is_ok = true, .prefix = UINT32_MAX};
  for (uint32_t rank = 0; rank < engine->ranks; rank++) {
    const sim_load *load = &job->load[rank];
    const uint32_t prefix = load->was_reported ? load->report.prefix : 0;
    out.prefix = prefix < out.prefix ? prefix : out.prefix;
    out.all_are_in = out.all_are_in && (load->was_reported || load->was_let_go);
    out.all_good = out.all_good && load->was_reported && load->report.status == KVF_OK;
    out.recompute_is_ok =
        out.recompute_is_ok && (!load->was_reported || kvf_status_describe(load->report.status)->recompute_safe);
  }
  return out;
}

/* On a request that waits: no source is left. */
static const char *what_is_wrong_early(const sim_world *world, const sim_job *job, const kvf_verdict *verdict)
{
  const kvf_status_info *info = kvf_status_describe(verdict->status);
  if (!(job->waited && verdict->status == KVF_DEADLINE) && verdict->status != KVF_LEASE_EXPIRED &&
      verdict->status != KVF_LEASE_UNKNOWN && verdict->status != KVF_LEASE_CROWDED && info->lost != KVF_LOST_PEER) {
    return "comes early without a reason";
  }
  if (verdict->action == KVF_ACTION_FAIL) {
    return job->options.policy == KVF_POLICY_RECOMPUTE && world->config.recompute_budget_tokens_per_s == 0
               ? "fails what could be computed"
               : NULL;
  }
  return verdict->action == KVF_ACTION_RECOMPUTE && verdict->keep_blocks == 0 ? NULL : "keeps what was not loaded";
}

static const char *what_is_wrong(const sim_world *world, const sim_job *job, const kvf_verdict *verdict)
{
  expected want = expect(world, job);
  uint32_t blocks = sim_prompt_at(job->prompt)->positions * world->groups;
  switch (verdict->action) {
    case KVF_ACTION_USE:
      return want.prefix == blocks ? NULL : "uses blocks that a rank does not have";
    case KVF_ACTION_RECOMPUTE:
      if (!want.all_are_in) {
        return "decides before all ranks are in";
      }
      return verdict->keep_blocks == want.prefix && want.prefix < blocks ? NULL : "does not keep the shortest prefix";
    case KVF_ACTION_FAIL:
      if (want.all_good) {
        return "fails what is whole";
      }
      return want.all_are_in && want.recompute_is_ok && job->options.policy == KVF_POLICY_RECOMPUTE &&
                     world->config.recompute_budget_tokens_per_s == 0
                 ? "fails what could be recomputed"
                 : NULL;
  }
  return "is no action";
}

static uint32_t kept_positions(const sim_world *world, const sim_job *job, const kvf_verdict *verdict)
{
  if (verdict->action == KVF_ACTION_USE) {
    return sim_prompt_at(job->prompt)->positions * world->groups;
  }
  return verdict->action == KVF_ACTION_RECOMPUTE ? verdict->keep_blocks : 0;
}

/* P3, P4: once, after the verdict, and only when no rank's load may write any more, and the control node knows that. */
void sim_job_on_released(sim_world *world, sim_node *node, const kvf_event *event)
{
  sim_job *job = event->user < world->jobs_count ? &world->jobs[event->user] : NULL;
  bool is_release = event->kind == KVF_EVENT_REQUEST_RELEASED;
  sim_note(world, node->index, is_release ? "job % is released" : "job % is stuck", event->user, 0, 0);
  if (job == NULL || job->info.id != event->id || job->released || (!is_release && job->stuck) ||
      !(job->had_verdict || job->cancelled)) {
    sim_fail(world, "P3", "node %u: request %llu is released or stuck twice, or too early", node->index,
             (unsigned long long)event->id);
    return;
  }
  if (!is_release) {
    bool is_late = job->had_verdict && job->verdict.status == KVF_RANK_LOST;
    if ((job->had_verdict && job->verdict.action == KVF_ACTION_USE) || (!job->said_stuck && !is_late)) {
      sim_fail(world, "P7", "job %llu is stuck, and no rank has said so", (unsigned long long)event->user);
    }
    job->stuck = true;
    return;
  }
  for (uint32_t rank = 0; rank < world->engines[job->engine].ranks; rank++) {
    sim_load_state state = job->load[rank].state;
    if ((state != SIM_LOAD_RELEASED && state != SIM_LOAD_REFUSED) || (job->let_go >> rank & 1) == 0) {
      sim_fail(world, "P4", "job %llu is released, and rank %u is not", (unsigned long long)event->user, rank);
    }
  }
  job->released = true;
  sim_job_advance(world, job);
}

static uint32_t any_producer(sim_world *world)
{
  return sim_choose(&world->tape, world->producers);
}

/* P5: told that the consumer has all it needs, the producer waits for no more than the lease's linger. */
static void on_probe_over(sim_world *world, const sim_event *event)
{
  if (!world->offers[event->a].is_over) {
    sim_fail(world, "P5", "offer %u: nothing is wrong any more, but its blocks do not come back at once", event->a);
  }
}

void sim_job_on_verdict(sim_world *world, sim_node *node, const kvf_event *event)
{
  sim_job *job = event->user < world->jobs_count ? &world->jobs[event->user] : NULL;
  const kvf_verdict *verdict = &event->u.verdict;
  sim_note(world, node->index, "verdict on job %: action %, $", event->user, verdict->action,
           (uint64_t)(int64_t)verdict->status);
  bool is_due = job != NULL && job->info.id == event->id && !job->had_verdict &&
                (job->state == SIM_JOB_OPEN || job->state == SIM_JOB_LOADING);
  if (!is_due) {
    sim_fail(world, "P3", "node %u: a second or unfounded verdict on request %llu", node->index,
             (unsigned long long)event->id);
    return;
  }
  job->had_verdict = true;
  job->verdict = *verdict;
  const char *wrong = job->state == SIM_JOB_OPEN || job->decided_early ? what_is_wrong_early(world, job, verdict)
                                                                       : what_is_wrong(world, job, verdict);
  if (wrong != NULL) {
    sim_fail(world, "P7", "node %u: the verdict on job %llu %s: keeps %u blocks, %s", node->index,
             (unsigned long long)event->user, wrong, verdict->keep_blocks, kvf_status_name(verdict->status));
  }
  sim_job_check_ranks(world, job, kept_positions(world, job, verdict), "is decided");
  job->state = SIM_JOB_DECIDED;
  world->result->used += verdict->action == KVF_ACTION_USE;
  if (job->probe && verdict->action != KVF_ACTION_USE) {
    sim_fail(world, "P2", "job %llu: nothing is wrong any more, but its load fails: %s",
             (unsigned long long)event->user, kvf_status_name(verdict->status));
  }
  if (job->probe) {
    sim_push(world, world->now_ns + PROBE_BACK_NS + kvf_ms_to_ns(world->config.lease_linger_ms), on_probe_over,
             job->offer, 0, 0);
  }
  if (verdict->action == KVF_ACTION_FAIL && !world->healed && job->tries < RETRIES) {
    (void)sim_submit(world, any_producer(world), job->engine, job->prompt, false, job->tries + 1);
  }
  sim_job_advance(world, job);
}
