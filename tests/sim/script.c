/* The application and the router: what is asked of the cluster, and when; then the end of all faults, a time to settle,
 * and requests that must be served. */
#include <string.h>

#include "world.h"

#define STEPS_MAX 60
#define SCRIPT_OFFERS_MAX (SIM_OFFERS_MAX - SIM_SIDE_MAX * SIM_SIDE_MAX)
#define SCRIPT_JOBS_MAX (SIM_JOBS_MAX - SIM_SIDE_MAX * SIM_SIDE_MAX)
#define PROBE_EVERY_NS (120 * SIM_MS)
#define PROBE_PROMPT 0

static void on_step(sim_world *world, const sim_event *event);
static void on_ticket(sim_world *world, const sim_event *event);
static void on_settled(sim_world *world, const sim_event *event);
static void on_probe(sim_world *world, const sim_event *event);
static void on_end(sim_world *world, const sim_event *event);

void sim_script_start(sim_world *world)
{
  sim_push(world, 10 * SIM_MS, on_step, 0, 0, 0);
}

/* ---- requests ---- */

void sim_job_send(sim_world *world, const sim_job *job)
{
  sim_push(world, world->now_ns + world->delay_ns + sim_lag(world, SIM_FAULT_SLOW, 400 * SIM_MS), on_ticket,
           sim_job_index(world, job), 0, 0);
}

static void on_ticket(sim_world *world, const sim_event *event)
{
  sim_job *job = &world->jobs[event->a];
  const sim_engine *engine = &world->engines[job->engine];
  if (sim_waits(world, job->engine, event)) {
    return;
  }
  if (engine->state != SIM_ENGINE_UP || !engine->is_ready) {
    job->state = SIM_JOB_OVER; /* the router hears so, and so does the client */
    return;
  }
  if (!sim_find_start(world, job)) {
    sim_job_arrive(world, job);
  }
}

/* The router has another producer compute the prompt, too. */
static void add_source(sim_world *world, sim_job *job, uint32_t producer)
{
  sim_engine *engine = &world->engines[producer];
  if (engine->paused_until_ns <= world->now_ns && world->offers_count < SCRIPT_OFFERS_MAX) {
    uint32_t offer = sim_offer_make(world, engine, job->prompt);
    if (offer != SIM_NOBODY) {
      sim_job_join(world, job, offer);
    }
  }
}

sim_job *sim_submit(sim_world *world, uint32_t producer, uint32_t consumer, uint32_t prompt, bool probe, uint32_t tries)
{
  sim_engine *engine = &world->engines[producer];
  if (engine->paused_until_ns > world->now_ns || (!probe && world->offers_count >= SCRIPT_OFFERS_MAX) ||
      (!probe && world->jobs_count >= SCRIPT_JOBS_MAX)) {
    return NULL;
  }
  uint32_t offer = sim_offer_make(world, engine, prompt);
  sim_job *job = offer == SIM_NOBODY ? NULL : sim_job_new(world, &world->engines[consumer], offer);
  if (job != NULL) {
    job->probe = probe;
    job->tries = tries;
    sim_job_send(world, job);
  } else if (probe && !engine->drains) {
    sim_fail(world, "P5", "engine %u has no blocks or no lease, although nothing uses any", producer);
  }
  return job;
}

static void submit_any(sim_world *world)
{
  sim_tape *tape = &world->tape;
  uint32_t producer = sim_choose(tape, world->producers);
  uint32_t consumer = world->producers + sim_choose(tape, world->engines_count - world->producers);
  uint32_t replica;
  uint32_t prompt = sim_choose_both(tape, SIM_PROMPTS, &replica);
  sim_job *job = sim_submit(world, producer, consumer, prompt, false, 0);
  if (job != NULL && world->has_replicas && replica % 2 == 1) {
    add_source(world, job, (producer + 1 + replica / 2) % world->producers);
  }
}

static void cancel_any(sim_world *world)
{
  if (world->jobs_count > 0) {
    uint32_t who;
    uint32_t back = sim_choose_both(&world->tape, world->jobs_count < 6 ? world->jobs_count : 6, &who);
    sim_job *job = &world->jobs[world->jobs_count - 1 - back];
    const sim_engine *engine = &world->engines[job->engine];
    if (engine->life == job->life && engine->state == SIM_ENGINE_UP && engine->paused_until_ns <= world->now_ns) {
      sim_job_cancel(world, job, who % 2 == 1 ? KVF_FINISH_DETACHED : KVF_FINISH_ABORTED);
    }
  }
}

static void preempt_any(sim_world *world)
{
  if (world->offers_count > 0) {
    uint32_t back = sim_choose(&world->tape, world->offers_count < 4 ? world->offers_count : 4);
    sim_offer_preempt(world, world->offers_count - 1 - back);
  }
}

/* ---- steps ---- */

static void act(sim_world *world)
{
  uint32_t action = sim_choose(&world->tape, 16);
  if (action == 6 && sim_may(world, SIM_FAULT_PREEMPT)) {
    preempt_any(world);
  } else if (action == 7 && sim_may(world, SIM_FAULT_CANCEL)) {
    cancel_any(world);
  } else if (action == 8 && sim_may(world, SIM_FAULT_REPLAY)) {
    sim_replay_any(world, SCRIPT_JOBS_MAX);
  } else if (action == 9 && sim_may(world, SIM_FAULT_FORGE)) {
    sim_forge_any(world, SCRIPT_JOBS_MAX);
  } else if (action == 10 && sim_may(world, SIM_FAULT_STRANGER)) {
    sim_stranger_come(world);
  } else if (action > 11) {
    sim_fault_any(world);
  } else {
    submit_any(world);
  }
}

static uint64_t pause_ns(sim_world *world)
{
  uint64_t ttl_ns = kvf_ms_to_ns(world->config.lease_ttl_ms);
  const uint64_t pauses_ns[] = {SIM_MS, SIM_MS / 10, 3 * SIM_MS, 8 * SIM_MS, 20 * SIM_MS, 60 * SIM_MS, ttl_ns / 3, 0};
  return pauses_ns[sim_choose(&world->tape, 8)];
}

static uint64_t latest(const sim_world *world)
{
  uint64_t at_ns = world->now_ns;
  for (uint32_t i = 0; i < world->engines_count; i++) {
    at_ns = world->engines[i].paused_until_ns > at_ns ? world->engines[i].paused_until_ns : at_ns;
    for (uint32_t j = 0; j < world->engines_count; j++) {
      at_ns = world->blocked_until_ns[i][j] > at_ns ? world->blocked_until_ns[i][j] : at_ns;
    }
  }
  return at_ns;
}

/* How long everything may go on by itself once nothing goes wrong any more. */
static uint64_t settling_ns(const sim_world *world)
{
  const kvf_config *config = &world->config;
  return 1200 * SIM_MS + kvf_ms_to_ns(config->load_timeout_ms) + kvf_ms_to_ns(config->release_timeout_ms) +
         kvf_ms_to_ns(config->lease_ttl_ms) * 5 / 2 + kvf_ms_to_ns(config->handshake_timeout_ms) +
         kvf_ms_to_ns(config->breaker_cooldown_max_ms) * 2;
}

static void on_step(sim_world *world, const sim_event *event)
{
  if (sim_tape_is_over(&world->tape) || event->b == STEPS_MAX) {
    sim_faults_end(world);
    if (event->b == 0) {
      submit_any(world);
    }
    sim_push(world, latest(world) + settling_ns(world), on_settled, 0, 0, 0);
    return;
  }
  act(world);
  sim_push(world, world->now_ns + pause_ns(world), on_step, 0, event->b + 1, 0);
}

/* ---- the healed world ---- */

static void on_settled(sim_world *world, const sim_event *event)
{
  (void)event;
  sim_note(world, SIM_NOBODY, "the world has settled", 0, 0, 0);
  sim_check_rest(world);
  sim_push(world, world->now_ns, on_probe, 0, world->producers, 0);
}

static void on_probe(sim_world *world, const sim_event *event)
{
  if (world->engines[event->a].is_other == world->engines[event->b].is_other) {
    (void)sim_submit(world, event->a, event->b, PROBE_PROMPT, true, 0);
  }
  uint32_t consumer = event->b + 1 < world->engines_count ? event->b + 1 : world->producers;
  uint32_t producer = event->a + (consumer == world->producers);
  if (producer < world->producers) {
    const uint64_t after_ns = PROBE_EVERY_NS + kvf_ms_to_ns(world->config.lease_linger_ms);
    sim_push(world, world->now_ns + after_ns, on_probe, producer, consumer, 0);
  } else {
    sim_push(world, world->now_ns + settling_ns(world), on_end, 0, 0, 0);
  }
}

static void on_end(sim_world *world, const sim_event *event)
{
  (void)event;
  sim_check_rest(world);
  for (uint32_t i = 0; i < world->jobs_count; i++) {
    if (world->jobs[i].probe && !world->jobs[i].had_verdict) {
      sim_fail(world, "P2", "job %u: nothing is wrong any more, but it is not even taken up", i);
    }
  }
  world->queue.count = 0; /* the world ends */
}
