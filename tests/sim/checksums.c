/* Checksums: made after the publication, compared at the end of a read; and the bytes that they are against. A slice is
 * one number, so its checksum is that number. */
#include "world.h"

/* What engines alter themselves before it is checksummed cannot be told, so nothing is hurt until then. */
static void on_checksummed(sim_world *world, const sim_event *event)
{
  const sim_offer *offer = &world->offers[event->a];
  const sim_engine *engine = &world->engines[offer->engine];
  if (engine->life != event->c || offer->is_over || sim_waits(world, offer->engine, event)) {
    return;
  }
  sim_node *node = sim_rank_of(world, offer->engine, event->b);
  uint32_t positions = sim_prompt_at(offer->prompt)->positions;
  bool is_mine = (offer->freed & 1u << event->b) == 0;
  for (uint32_t i = 0; i < world->groups * positions; i++) {
    uint32_t block = offer->ids[i];
    for (uint32_t region = i / positions; region < world->regions; region += world->groups) {
      for (uint32_t head = 0; head < node->heads; head++) {
        node->checksums[region][block][head] = node->pool[region][block][head];
        if (is_mine && sim_strikes(world, SIM_FAULT_CORRUPT, 40)) {
          sim_note(world, node->index, "block % is hurt where it lies", block, 0, 0);
          node->pool[region][block][head] ^= 1;
        }
      }
    }
  }
  (void)sim_node_enter(world, node);
  kvf_lease_table_complete(&node->core.leases, &offer->lease);
  sim_node_leave(world, node);
}

void sim_sum_later(sim_world *world, uint32_t offer, uint32_t rank)
{
  uint64_t lag_ns = sim_lag(world, SIM_FAULT_CORRUPT, 5 * SIM_MS);
  sim_push(world, world->now_ns + lag_ns, on_checksummed, offer, rank, world->offers[offer].life);
}

void sim_corrupt(sim_world *world, uint64_t *slice)
{
  if (sim_strikes(world, SIM_FAULT_CORRUPT, 60)) {
    sim_note(world, SIM_NOBODY, "a slice is hurt on its way", 0, 0, 0);
    *slice ^= 1;
  }
}

static bool agrees(const sim_world *world, const sim_read *read, const sim_node *peer, const kvf_transfer_item *item)
{
  const sim_node *node = &world->nodes[read->node];
  for (uint32_t region = item->group; region < world->regions; region += world->groups) {
    for (uint32_t head = 0; kvf_layers_have(&read->layers, region) && head < read->heads; head++) {
      if (node->pool[region][item->local_block][read->local_head + head] !=
          peer->checksums[region][item->remote_block][read->remote_head + head]) {
        return false;
      }
    }
  }
  return true;
}

void sim_compare(const sim_world *world, sim_read *read, const sim_node *peer)
{
  if (!world->config.checksum) {
    return;
  }
  while (read->verified < read->items_count && agrees(world, read, peer, &read->items[read->verified])) {
    read->verified++;
  }
}
