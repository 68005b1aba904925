/* The world at rest: every request has its end, and everything has gone back to where it came from (P2, P5). */
#include "world.h"

static void check_node(sim_world *world, const sim_node *node)
{
  const kvf_core *core = &node->core;
  if (core->requests.by_id != NULL) {
    sim_fail(world, "P5", "node %u: request %llu is never over", node->index,
             (unsigned long long)core->requests.by_id->id);
  }
  if (core->requests.attachments.by_id != NULL) {
    sim_fail(world, "P5", "node %u: attachment %llu is never over", node->index,
             (unsigned long long)core->requests.attachments.by_id->id);
  }
  if (core->loads.by_id != NULL) {
    sim_fail(world, "P2", "node %u: a load is never released", node->index);
  }
  if (core->leases.live != 0 || core->leases.unreleased != 0) {
    sim_fail(world, "P5", "node %u: %u leases are live and %u held for ever", node->index, core->leases.live,
             core->leases.unreleased);
  }
  if (kvf_lease_slots_live(&core->slots) != 0) {
    sim_fail(world, "P5", "node %u: %u lease slots are never released", node->index,
             kvf_lease_slots_live(&core->slots));
  }
  if (!kvf_core_is_healthy(core)) {
    sim_fail(world, "P4", "node %u says that it is not healthy", node->index);
  }
  for (const kvf_peer *peer = core->peers.by_key; peer != NULL; peer = peer->by_key.next) {
    if (peer->users != 0) {
      sim_fail(world, "P5", "node %u: %u users hold a peer for ever", node->index, peer->users);
    }
  }
}

void sim_check_rest(sim_world *world)
{
  for (uint32_t i = 0; i < world->engines_count * SIM_NODES_EACH && !world->failed; i++) {
    if (world->nodes[i].is_up) {
      check_node(world, &world->nodes[i]);
    }
  }
  for (uint32_t i = 0; i < world->jobs_count && !world->failed; i++) {
    if (world->jobs[i].state != SIM_JOB_OVER && world->jobs[i].state != SIM_JOB_NONE) {
      sim_fail(world, "P2", "job %u is never over", i);
    }
  }
  for (uint32_t i = 0; i < world->offers_count && !world->failed; i++) {
    if (!world->offers[i].is_over) {
      sim_fail(world, "P5", "the blocks of offer %u never come back", i);
    }
  }
  for (uint32_t i = 0; i < world->engines_count && !world->failed; i++) {
    sim_scheduler_check_rest(world, &world->engines[i]);
    sim_cache_clear(world, &world->engines[i]);
    if (sim_blocks_used(world, &world->engines[i]) != 0) {
      sim_fail(world, "P5", "engine %u: blocks are never free again", i);
    }
  }
}
