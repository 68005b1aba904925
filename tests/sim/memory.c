/* Pools and what blocks hold. A slice (one head of one layer of a block) is one number, made from all tokens up to the
 * block's end, so that the bytes of any other prompt, position, layer or head are recognised. */
#include <string.h>

#include "world.h"

static uint64_t mix(uint64_t a, uint64_t b)
{
  uint64_t z = (a ^ (b + UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

uint64_t sim_content(const sim_prompt *prompt, uint32_t position, uint32_t region, uint32_t head)
{
  return mix(prompt->prefix[position], region * SIM_HEADS_MAX + head);
}

static uint64_t junk(sim_world *world)
{
  return mix(UINT64_C(0x6b6e756a), ++world->junk);
}

void sim_memory_init(sim_world *world, sim_node *node)
{
  memset(node->table, 0, sizeof(node->table));
  memset(node->writing, 0, sizeof(node->writing));
  for (uint32_t group = 0; group < world->groups; group++) {
    for (uint32_t block = 0; block < SIM_BLOCKS_MAX; block++) {
      sim_scribble(world, node, group, block);
    }
  }
}

void sim_write_block(sim_world *world, sim_node *node, uint32_t group, uint32_t block, const sim_prompt *prompt,
                     uint32_t position)
{
  for (uint32_t region = group; region < world->regions; region += world->groups) {
    for (uint32_t head = 0; head < node->heads; head++) {
      node->pool[region][block][head] = sim_content(prompt, position, region, node->first_head + head);
    }
  }
}

void sim_write_blocks(sim_world *world, sim_node *node, const uint32_t *ids, const sim_prompt *prompt, uint32_t first,
                      uint32_t end)
{
  for (uint32_t i = 0; i < world->groups * prompt->positions; i++) {
    const uint32_t position = i % prompt->positions;
    if (position >= first && position < end) {
      sim_write_block(world, node, i / prompt->positions, ids[i], prompt, position);
    }
  }
}

void sim_scribble_blocks(sim_world *world, sim_node *node, const uint32_t *ids, const sim_prompt *prompt,
                         uint32_t first)
{
  for (uint32_t i = 0; i < world->groups * prompt->positions; i++) {
    if (i % prompt->positions >= first) {
      sim_scribble(world, node, i / prompt->positions, ids[i]);
    }
  }
}

void sim_scribble(sim_world *world, sim_node *node, uint32_t group, uint32_t block)
{
  for (uint32_t region = group; region < world->regions; region += world->groups) {
    for (uint32_t head = 0; head < node->heads; head++) {
      node->pool[region][block][head] = junk(world);
    }
  }
}

bool sim_block_holds(const sim_world *world, const sim_node *node, uint32_t group, uint32_t block,
                     const sim_prompt *prompt, uint32_t position)
{
  for (uint32_t region = group; region < world->regions; region += world->groups) {
    for (uint32_t head = 0; head < node->heads; head++) {
      if (node->pool[region][block][head] != sim_content(prompt, position, region, node->first_head + head)) {
        return false;
      }
    }
  }
  return true;
}

/* ---- which blocks are whose: the last one given back is the first one taken ---- */

bool sim_blocks_take(sim_world *world, sim_engine *engine, uint32_t positions, uint32_t owner, uint32_t *ids)
{
  uint32_t free_blocks = engine->blocks - sim_blocks_used(world, engine);
  if (free_blocks < positions) {
    return false;
  }
  for (uint32_t group = 0; group < world->groups; group++) {
    uint32_t taken = 0;
    for (uint32_t block = 0; taken < positions; block++) {
      if (engine->owner[group][block] == 0) {
        engine->owner[group][block] = owner + 1;
        ids[group * positions + taken++] = block;
      }
    }
  }
  return true;
}

void sim_blocks_give(sim_world *world, sim_engine *engine, uint32_t owner)
{
  for (uint32_t group = 0; group < world->groups; group++) {
    for (uint32_t block = 0; block < engine->blocks; block++) {
      if (engine->owner[group][block] == owner + 1) {
        engine->owner[group][block] = 0;
      }
    }
  }
}

uint32_t sim_blocks_used(const sim_world *world, const sim_engine *engine)
{
  uint32_t used = 0;
  (void)world;
  for (uint32_t block = 0; block < engine->blocks; block++) {
    used += engine->owner[0][block] != 0; /* all groups are taken alike */
  }
  return used;
}

/* ---- the fence ---- */

void sim_store(sim_world *world, sim_node *node, const kvf_lease_store *store)
{
  if (store->slot >= SIM_SLOTS_MAX || node->table[store->slot].word >= store->entry.word) {
    sim_fail(world, "P1", "node %u: the fence's word of slot %u does not grow", node->index, store->slot);
    return;
  }
  node->table[store->slot] = store->entry;
  sim_note(world, node->index, "stores word % into slot %", store->entry.word, store->slot, 0);
  kvf_core_on_stored(&node->core, store);
}
