/* Tickets that are asked for: a control node looks for one of its prompt before it takes up the one that it was handed,
 * and what it finds takes that one's place. Nobody finds a lease that another one has found, nor one of another prompt,
 * and each find is over by its time. */
#include <string.h>

#include "world.h"

#define TIMEOUT_MS 200u
#define WATCH_SLACK_NS (30 * SIM_MS)

void sim_find_know(sim_world *world, sim_node *node)
{
  const bool asks = world->has_finds && node->is_control && !sim_engine_of(world, node->index)->is_producer;
  for (uint32_t i = 0; asks && i < world->producers; i++) {
    const kvf_address address = sim_address_of(world, i * SIM_NODES_EACH);
    if (kvf_core_add_static(&node->core, "", &address) != KVF_OK) {
      sim_fail(world, "SIM", "node %u cannot know its peers", node->index);
    }
  }
}

void sim_find_offer(sim_world *world, sim_node *node, const sim_offer *offer)
{
  if (!world->has_finds || node->rank != 0) {
    return;
  }
  const kvf_find_key key = kvf_find_key_of_prompt(&sim_prompt_at(offer->prompt)->identity);
  kvf_offers *offers = &node->finder.offers;
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_status status = kvf_offers_add(offers, now_ns, &offer->lease, &key, offer->ticket, offer->ticket_bytes);
  const bool is_short = status == KVF_NO_MEMORY && sim_may(world, SIM_FAULT_ALLOCATION);
  if (status == KVF_OK && sim_strikes(world, SIM_FAULT_AGAIN, 3)) {
    sim_expect(world, "offer", kvf_offers_add(offers, now_ns, &offer->lease, &key, offer->ticket, offer->ticket_bytes),
               KVF_EXISTS);
  }
  sim_node_leave(world, node);
  if (status != KVF_OK && !is_short) {
    sim_fail(world, "P5", "node %u cannot offer what it has published: %s", node->index, kvf_status_name(status));
  }
}

/* P2 */
static void on_watch(sim_world *world, const sim_event *event)
{
  const sim_job *job = &world->jobs[event->a];
  const sim_node *node = sim_control_of(world, job->engine);
  if (world->engines[job->engine].life != event->c || !node->is_up || sim_waits(world, job->engine, event)) {
    return;
  }
  if (job->find_id != 0) {
    sim_node_catch_up(world, sim_control_of(world, job->engine));
  }
  if (job->find_id != 0) {
    sim_fail(world, "P2", "job %u: its find is not over in its time", event->a);
  }
}

bool sim_find_start(sim_world *world, sim_job *job)
{
  const sim_engine *engine = &world->engines[job->engine];
  sim_node *node = sim_control_of(world, job->engine);
  if (!world->has_finds || job->probe || job->offer == SIM_NOBODY || job->other != SIM_NOBODY) {
    return false;
  }
  const uint32_t index = sim_job_index(world, job);
  const kvf_find_key key = kvf_find_key_of_prompt(&sim_prompt_at(job->prompt)->identity);
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_status status = kvf_finds_start(&node->finder.finds, now_ns, &key, NULL, TIMEOUT_MS, index, &job->find_id);
  sim_node_leave(world, node);
  sim_note(world, node->index, "job % looks for its ticket: $", index, (uint64_t)(int64_t)status, 0);
  if (status != KVF_OK) {
    job->find_id = 0;
    return false;
  }
  sim_push(world, world->now_ns + kvf_ms_to_ns(TIMEOUT_MS) + WATCH_SLACK_NS, on_watch, index, 0, engine->life);
  return true;
}

/* The offer that has this very ticket; SIM_NOBODY: there is none. */
static uint32_t offer_with(const sim_world *world, const char *text, size_t bytes)
{
  for (uint32_t i = 0; i < world->offers_count; i++) {
    if (world->offers[i].ticket_bytes == bytes && memcmp(world->offers[i].ticket, text, bytes) == 0) {
      return i;
    }
  }
  return SIM_NOBODY;
}

static void take(sim_world *world, sim_node *node, sim_job *job, uint64_t id)
{
  char text[SIM_TICKET_BYTES];
  size_t bytes = 0;
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_status status = kvf_finds_take(&node->finder.finds, now_ns, id, text, sizeof(text), &bytes);
  sim_node_leave(world, node);
  const uint32_t index = status == KVF_OK ? offer_with(world, text, bytes) : SIM_NOBODY;
  if (index == SIM_NOBODY || world->offers[index].prompt != job->prompt) {
    sim_fail(world, "P8", "job %u finds a ticket that nobody has offered for its prompt", sim_job_index(world, job));
    return;
  }
  sim_offer *offer = &world->offers[index];
  if (offer->is_found) {
    sim_fail(world, "P3", "the lease of offer %u is found twice", index);
    return;
  }
  offer->is_found = true;
  job->offer = index;
  job->is_other = world->engines[offer->engine].is_other;
  job->ticket_bytes = (uint32_t)bytes;
  memcpy(job->ticket, text, bytes);
}

void sim_find_on_event(sim_world *world, sim_node *node, const kvf_event *event)
{
  sim_job *job = event->user < world->jobs_count ? &world->jobs[event->user] : NULL;
  const sim_engine *engine = sim_engine_of(world, node->index);
  if (job == NULL || job->find_id != event->id || job->state != SIM_JOB_NONE || job->engine != engine->index) {
    sim_fail(world, "P3", "node %u: a second event of find %llu, or one that nobody has started", node->index,
             (unsigned long long)event->id);
    return;
  }
  job->find_id = 0;
  sim_note(world, node->index, "the find of job % is over: $", event->user, (uint64_t)(int64_t)event->u.found, 0);
  if (event->u.found == KVF_OK) {
    take(world, node, job, event->id);
  }
  if (engine->state != SIM_ENGINE_UP || !engine->is_ready) {
    job->state = SIM_JOB_OVER;
  } else if (!world->failed) {
    sim_job_arrive(world, job);
  }
}
