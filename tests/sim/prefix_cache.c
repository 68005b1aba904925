/* A consumer's prefix cache: full blocks that were computed or loaded stay, and requests whose prompts begin alike
 * share them. One that nobody uses is given up when blocks are wanted. */
#include <string.h>

#include "world.h"

static sim_cached *cache_of(sim_world *world, uint32_t engine)
{
  return world->schedulers[engine].cache;
}

static uint32_t find(sim_world *world, uint32_t engine, uint64_t prefix)
{
  const sim_cached *cache = cache_of(world, engine);
  for (uint32_t i = 0; i < SIM_BLOCKS_MAX; i++) {
    if (cache[i].used && !cache[i].is_lost && cache[i].prefix == prefix) {
      return i;
    }
  }
  return SIM_NOBODY;
}

static uint32_t block_of(const sim_engine *engine, uint32_t group, uint32_t entry)
{
  uint32_t block = 0;
  while (engine->owner[group][block] != SIM_CACHE + entry + 1) {
    block++;
  }
  return block;
}

/* Blocks that are not full are never shared: somebody may still write to them. */
static uint32_t full_blocks(const sim_prompt *prompt)
{
  return prompt->identity.tokens / SIM_BLOCK_TOKENS;
}

static void use(sim_world *world, sim_job *job, uint32_t position, uint32_t entry)
{
  cache_of(world, job->engine)[entry].users++;
  job->parked.shared |= 1u << position;
  job->parked.cache[position] = entry;
}

static void give_up(sim_world *world, sim_engine *engine, uint32_t entry)
{
  sim_cached *cached = &cache_of(world, engine->index)[entry];
  if (cached->used && cached->users == 0) {
    cached->used = false;
    sim_blocks_give(world, engine, SIM_CACHE + entry);
  }
}

static bool make_room(sim_world *world, sim_engine *engine, uint32_t blocks)
{
  for (uint32_t i = 0; i < SIM_BLOCKS_MAX && engine->blocks - sim_blocks_used(world, engine) < blocks; i++) {
    give_up(world, engine, i);
  }
  return engine->blocks - sim_blocks_used(world, engine) >= blocks;
}

bool sim_cache_take(sim_world *world, sim_job *job, bool use_cache)
{
  const sim_prompt *prompt = sim_prompt_at(job->prompt);
  sim_engine *engine = &world->engines[job->engine];
  uint32_t positions = prompt->positions;
  job->skip = 0;
  while (use_cache && job->skip < full_blocks(prompt)) {
    uint32_t entry = find(world, job->engine, prompt->prefix[job->skip]);
    if (entry == SIM_NOBODY) {
      break;
    }
    for (uint32_t group = 0; group < world->groups; group++) {
      job->ids[group * positions + job->skip] = block_of(engine, group, entry);
    }
    use(world, job, job->skip, entry);
    job->skip++;
  }
  uint32_t own = positions - job->skip;
  uint32_t ids[SIM_IDS_MAX];
  if (!make_room(world, engine, own) || !sim_blocks_take(world, engine, own, sim_job_index(world, job), ids)) {
    sim_cache_give(world, job);
    return false;
  }
  for (uint32_t i = 0; own > 0 && i < own * world->groups; i++) {
    job->ids[i / own * positions + job->skip + i % own] = ids[i];
  }
  return true;
}

static uint32_t free_entry(sim_world *world, uint32_t engine)
{
  uint32_t i = 0;
  while (cache_of(world, engine)[i].used) {
    i++; /* each has a block of its own, so that there is always one */
  }
  return i;
}

void sim_cache_publish(sim_world *world, sim_job *job)
{
  const sim_prompt *prompt = sim_prompt_at(job->prompt);
  sim_engine *engine = &world->engines[job->engine];
  for (uint32_t position = job->skip; position < full_blocks(prompt); position++) {
    if ((job->parked.shared & 1u << position) != 0 ||
        find(world, job->engine, prompt->prefix[position]) != SIM_NOBODY) {
      continue;
    }
    uint32_t entry = free_entry(world, job->engine);
    cache_of(world, job->engine)[entry] = (sim_cached){.used = true, .prefix = prompt->prefix[position]};
    for (uint32_t group = 0; group < world->groups; group++) {
      engine->owner[group][job->ids[group * prompt->positions + position]] = SIM_CACHE + entry + 1;
    }
    use(world, job, position, entry);
  }
}

void sim_cache_lose(sim_world *world, const sim_job *job, uint32_t position)
{
  if ((job->parked.shared & 1u << position) != 0) {
    cache_of(world, job->engine)[job->parked.cache[position]].is_lost = true;
  }
}

void sim_cache_give(sim_world *world, sim_job *job)
{
  sim_engine *engine = &world->engines[job->engine];
  for (uint32_t position = 0; position < SIM_POSITIONS_MAX; position++) {
    if ((job->parked.shared & 1u << position) != 0) {
      sim_cached *cached = &cache_of(world, job->engine)[job->parked.cache[position]];
      cached->users--;
      if (cached->is_lost) {
        give_up(world, engine, job->parked.cache[position]);
      }
    }
  }
  job->parked.shared = 0;
  sim_blocks_give(world, engine, sim_job_index(world, job));
}

void sim_cache_clear(sim_world *world, sim_engine *engine)
{
  for (uint32_t i = 0; i < SIM_BLOCKS_MAX; i++) {
    give_up(world, engine, i);
  }
}
