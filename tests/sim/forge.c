/* Tickets that should not be there: old ones, altered ones, those of another prompt (P1, P8). */
#include "world.h"

#define REPLAYS 8

static uint32_t any_offer(sim_world *world)
{
  uint32_t back = sim_choose(&world->tape, world->offers_count < 16 ? world->offers_count + 1 : 16);
  return world->offers_count <= back ? SIM_NOBODY : world->offers_count - 1 - back;
}

static sim_engine *any_consumer(sim_world *world)
{
  return &world->engines[world->producers + sim_choose(&world->tape, world->engines_count - world->producers)];
}

void sim_replay_any(sim_world *world, uint32_t jobs_max)
{
  uint32_t offer = any_offer(world);
  sim_engine *consumer = any_consumer(world);
  for (uint32_t i = sim_choose(&world->tape, 4) == 3 ? REPLAYS : 1; i > 0; i--) {
    if (offer != SIM_NOBODY && world->jobs_count < jobs_max) {
      sim_note(world, SIM_NOBODY, "the ticket of offer % comes again", offer, 0, 0);
      sim_job_send(world, sim_job_new(world, consumer, offer));
    }
  }
}

/* Without a key anybody can make a ticket, but none that names another host. */
static bool lead_away(const sim_world *world, sim_job *job)
{
  kvf_ticket content;
  size_t bytes = 0;
  if (kvf_ticket_decode(job->ticket, job->ticket_bytes, &world->mac, 1, &content) != KVF_OK) {
    return false;
  }
  content.rank[content.ranks - 1].address.ip[12] = 10;
  bool good = kvf_ticket_encode(&content, &world->mac, job->ticket, SIM_TICKET_BYTES, &bytes) == KVF_OK;
  job->ticket_bytes = (uint32_t)bytes;
  kvf_ticket_free(&content);
  return good;
}

/* Alters the job's ticket, or its prompt; false if that changes nothing. */
static bool forge(sim_world *world, sim_job *job)
{
  sim_tape *tape = &world->tape;
  uint32_t at = (sim_choose(tape, 256) << 8 | sim_choose(tape, 256)) % job->ticket_bytes;
  char before = job->ticket[at];
  kvf_ticket content;
  const kvf_key other = {.bytes = 5, .data = "other"};
  kvf_mac mac;
  size_t bytes = 0;
  switch (sim_choose(tape, world->has_key ? 4 : 5)) {
    case 0:
      job->prompt = (job->prompt + 1 + sim_choose(tape, SIM_PROMPTS - 1)) % SIM_PROMPTS;
      return true;
    case 1:
      job->ticket[at] = (char)(before ^ (1 << sim_choose(tape, 7)));
      return job->ticket[at] != before;
    case 2:
      job->ticket_bytes = at;
      return true;
    case 4:
      return lead_away(world, job);
    default:
      if (kvf_ticket_decode(job->ticket, job->ticket_bytes, &world->mac, 1, &content) != KVF_OK) {
        return false;
      }
      bool good = kvf_mac_init(&mac, &other) == KVF_OK &&
                  kvf_ticket_encode(&content, &mac, job->ticket, SIM_TICKET_BYTES, &bytes) == KVF_OK;
      kvf_mac_free(&mac);
      job->ticket_bytes = (uint32_t)bytes;
      kvf_ticket_free(&content);
      return good;
  }
}

/* By one who has the key, or where there is none: another token, or other blocks than the lease's. The fence's digest,
 * or the producer, must say so. */
static bool tamper(sim_world *world, sim_job *job, uint32_t blocks)
{
  sim_tape *tape = &world->tape;
  kvf_ticket content;
  size_t bytes = 0;
  if (kvf_ticket_decode(job->ticket, job->ticket_bytes, &world->mac, 1, &content) != KVF_OK) {
    return false;
  }
  if (sim_choose(tape, 2) == 0) {
    content.lease.token[sim_choose(tape, sizeof(content.lease.token))] ^= (uint8_t)(1 << sim_choose(tape, 8));
  } else {
    uint32_t at = sim_choose(tape, content.counts[0]);
    content.ids[at] = (content.ids[at] + 1 + sim_choose(tape, blocks + 1)) % (blocks + 2); /* some are of no pool */
  }
  bool good = kvf_ticket_encode(&content, &world->mac, job->ticket, SIM_TICKET_BYTES, &bytes) == KVF_OK;
  job->ticket_bytes = (uint32_t)bytes;
  job->offer = SIM_NOBODY;
  kvf_ticket_free(&content);
  return good;
}

/* P8: it is refused, by the control node and by a rank, and nothing is connected to. */
static void check_refused(sim_world *world, sim_job *job, uint32_t positions)
{
  const sim_engine *engine = &world->engines[job->engine];
  uint32_t ids[SIM_IDS_MAX] = {0};
  uint32_t counts[SIM_GROUPS_MAX];
  for (uint32_t i = 0; i < world->groups; i++) {
    counts[i] = positions;
  }
  for (uint32_t i = 0; i < SIM_IDS_MAX; i++) {
    ids[i] = i % engine->blocks;
  }
  const kvf_blocks destination = {.ids = ids, .counts = counts, .groups = world->groups};
  sim_node *control = sim_control_of(world, engine->index);
  uint64_t dials = control->core.peers.counters.dials;
  kvf_status status = sim_request_open(world, control, job);
  if (status == KVF_OK || control->core.peers.counters.dials != dials) {
    sim_fail(world, "P8", "engine %u takes up a ticket that was altered or is of another prompt", engine->index);
    return;
  }
  job->info.id = UINT64_MAX;
  sim_node *rank = world->nodes + (size_t)engine->index * SIM_NODES_EACH;
  kvf_status loaded = sim_load_start(world, rank, job, &destination, 0);
  sim_note(world, control->index, "refuses a forged ticket: $, rank: $", (uint64_t)(int64_t)status,
           (uint64_t)(int64_t)loaded, 0);
  if (loaded == KVF_OK) {
    sim_fail(world, "P8", "node %u loads by a ticket that was altered or is of another prompt", rank->index);
  }
}

void sim_forge_any(sim_world *world, uint32_t jobs_max)
{
  uint32_t offer = any_offer(world);
  sim_engine *engine = any_consumer(world);
  if (offer == SIM_NOBODY || world->jobs_count >= jobs_max || engine->state != SIM_ENGINE_UP || !engine->is_ready ||
      engine->paused_until_ns > world->now_ns) {
    return;
  }
  sim_job *job = sim_job_new(world, engine, offer);
  bool with_key = sim_choose(&world->tape, 3) == 2;
  if (with_key && tamper(world, job, world->engines[world->offers[offer].engine].blocks)) {
    sim_note(world, SIM_NOBODY, "the ticket of offer % comes tampered with", offer, 0, 0);
    sim_job_send(world, job);
    return;
  }
  job->state = SIM_JOB_OVER;
  if (!with_key && forge(world, job)) {
    check_refused(world, job, sim_prompt_at(world->offers[offer].prompt)->positions);
  }
}
