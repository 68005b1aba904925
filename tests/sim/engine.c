/* An engine's lives: start, pause, kill, shutdown. */
#include <stdlib.h>
#include <string.h>

#include "../allocation.h"
#include "world.h"

#define STOP_POLL_NS (2 * SIM_MS)

static void on_memory(sim_world *world, const sim_event *event);
static void on_stopping(sim_world *world, const sim_event *event);

sim_engine *sim_engine_of(sim_world *world, uint32_t node)
{
  return &world->engines[node / SIM_NODES_EACH];
}

sim_node *sim_rank_of(sim_world *world, uint32_t engine, uint32_t rank)
{
  return &world->nodes[engine * SIM_NODES_EACH + rank];
}

sim_node *sim_control_of(sim_world *world, uint32_t engine)
{
  return &world->nodes[world->engines[engine].control];
}

bool sim_waits(sim_world *world, uint32_t engine, const sim_event *event)
{
  uint64_t until_ns = engine < SIM_ENGINES_MAX ? world->engines[engine].paused_until_ns : 0;
  if (until_ns <= world->now_ns) {
    return false;
  }
  sim_push(world, until_ns, event->fn, event->a, event->b, event->c);
  return true;
}

static void fill_random(uint8_t *out, size_t bytes, uint64_t seed)
{
  kvf_prng prng = {.state = seed};
  for (size_t i = 0; i < bytes; i++) {
    out[i] = (uint8_t)kvf_prng_next(&prng);
  }
}

kvf_incarnation sim_incarnation(uint32_t node, uint32_t life)
{
  kvf_incarnation incarnation;
  fill_random(incarnation.bytes, sizeof(incarnation.bytes), (uint64_t)node << 32 | life);
  return incarnation;
}

static void start_node(sim_world *world, const sim_engine *engine, sim_node *node)
{
  kvf_core_config *config = &world->core_config;
  uint64_t seed = (uint64_t)node->index << 32 | engine->life;
  config->options = world->config;
  config->options.rank = node->is_rank ? node->rank : 0;
  config->options.ranks = engine->ranks;
  config->is_control = !node->is_rank;
  if (kvf_config_identity(&config->options, "model", engine->is_other ? "b" : "a") != KVF_OK) {
    sim_fail(world, "SIM", "the options have no room for the model's name");
  }
  config->key = world->key;
  config->incarnation = sim_incarnation(node->index, engine->life);
  fill_random(config->secret, sizeof(config->secret), ~seed);
  node->is_up = true;
  node->has_memory = false;
  node->poll_waits = false;
  node->output_waits = false;
  node->tick_at_ns = KVF_TIME_NEVER;
  sim_memory_init(world, node);
  if (kvf_core_init(&node->core, config, world->now_ns + engine->clock_ns) != KVF_OK) {
    node->is_up = false;
    sim_fail(world, "SIM", "node %u cannot be started", node->index);
  } else {
    kvf_finder_init(&node->finder, &node->core);
    sim_find_know(world, node);
  }
  node->core.leases.consumers_max = world->consumers_max;
  if (world->regions > 1) {
    node->core.loads.readers.spread_bytes = sizeof(uint64_t); /* else no load here has enough for two readers */
  }
}

/* What kvf_node_register() does. */
static void set_memory(sim_world *world, sim_node *node)
{
  kvf_welcome welcome = {.rank = node->rank,
                         .ranks = sim_engine_of(world, node->index)->ranks,
                         .block_tokens = SIM_BLOCK_TOKENS,
                         .regions_count = world->regions,
                         .transports_count = node->core.peers.transports_count};
  welcome.regions = calloc(world->regions, sizeof(*welcome.regions));
  for (uint32_t i = 0; i < world->regions; i++) {
    if (welcome.regions != NULL) {
      welcome.regions[i] = (kvf_region_layout){.stride_bytes = sizeof(node->pool[i][0]),
                                               .block_bytes = node->heads * (uint32_t)sizeof(uint64_t),
                                               .blocks = sim_engine_of(world, node->index)->blocks,
                                               .heads = node->heads,
                                               .heads_total = world->heads_total,
                                               .group = i % world->groups};
    }
  }
  for (uint32_t i = 0; i < welcome.transports_count; i++) {
    memcpy(welcome.transports[i].name, node->core.peers.transports[i], sizeof(welcome.transports[i].name));
  }
  (void)sim_node_enter(world, node);
  allocation_spare(true); /* a registration that fails is the engine's to repeat: not of interest here */
  if (kvf_core_set_memory(&node->core, &welcome) != KVF_OK) {
    sim_fail(world, "SIM", "node %u cannot register its memory", node->index);
  }
  node->has_memory = true;
  sim_node_leave(world, node);
}

static void set_ranks(sim_world *world, sim_engine *engine)
{
  kvf_rank_record records[SIM_RANKS_MAX];
  for (uint32_t rank = 0; rank < engine->ranks; rank++) {
    uint32_t node = engine->index * SIM_NODES_EACH + rank;
    const kvf_address address = sim_address_of(world, node);
    records[rank] = kvf_core_record(&world->nodes[node].core, &address, &(kvf_address){.port = 0});
  }
  if (kvf_core_set_ranks(&world->nodes[engine->control].core, records, engine->ranks) != KVF_OK) {
    sim_fail(world, "SIM", "engine %u cannot set its ranks", engine->index);
  }
}

static void on_memory(sim_world *world, const sim_event *event)
{
  sim_engine *engine = &world->engines[event->a];
  bool was_ready = engine->is_ready;
  if (engine->life != event->c || engine->state != SIM_ENGINE_UP || sim_waits(world, event->a, event)) {
    return;
  }
  for (uint32_t rank = 0; rank < engine->ranks; rank++) {
    set_memory(world, sim_rank_of(world, event->a, rank));
  }
  if (!was_ready) {
    set_ranks(world, engine);
  }
  engine->is_ready = true;
  sim_note(world, engine->control, "engine is ready", 0, 0, 0);
}

void sim_engine_start(sim_world *world, sim_engine *engine)
{
  engine->life++;
  engine->state = SIM_ENGINE_UP;
  engine->is_silent = false;
  engine->is_ready = false;
  engine->drains = false;
  for (uint32_t i = 0; i < SIM_NODES_EACH; i++) {
    sim_node *node = &world->nodes[engine->index * SIM_NODES_EACH + i];
    if (node->is_rank || node->is_control) {
      start_node(world, engine, node);
    }
  }
  if (engine->is_producer && sim_strikes(world, SIM_FAULT_SLOW, 2)) {
    set_ranks(world, engine); /* its tickets are out before its memory is registered */
    engine->is_ready = true;
  }
  sim_scheduler_start(world, engine);
  sim_note(world, engine->control, "engine starts, life %, % ranks, % blocks", engine->life, engine->ranks,
           engine->blocks);
  sim_push(world, world->now_ns + sim_lag(world, SIM_FAULT_SLOW, 100 * SIM_MS), on_memory, engine->index, 0,
           engine->life);
}

void sim_on_start(sim_world *world, const sim_event *event)
{
  sim_engine *engine = &world->engines[event->a];
  if (engine->state == SIM_ENGINE_DOWN) {
    sim_engine_start(world, engine);
  }
}

static void end_node(sim_world *world, sim_node *node)
{
  bool silent = sim_engine_of(world, node->index)->is_silent;
  sim_reads_drop_node(world, node->index);
  sim_links_drop_node(world, node->index);
  sim_net_drop_node(world, node->index, silent);
  node->is_up = false;
  kvf_core_free(&node->core);
}

static void end_engine(sim_world *world, sim_engine *engine)
{
  sim_jobs_drop_engine(world, engine->index);
  sim_offers_drop_engine(world, engine->index);
  sim_scheduler_stop(world, engine);
  engine->state = SIM_ENGINE_DOWN;
  engine->is_ready = false;
  engine->paused_until_ns = 0;
  memset(engine->owner, 0, sizeof(engine->owner));
  if (world->healed) {
    sim_push(world, world->now_ns, sim_on_start, engine->index, 0, 0);
  }
  for (uint32_t i = 0; i < SIM_NODES_EACH; i++) {
    sim_node *node = &world->nodes[engine->index * SIM_NODES_EACH + i];
    if (node->is_up) {
      end_node(world, node);
    }
  }
}

void sim_engine_kill(sim_world *world, sim_engine *engine)
{
  sim_note(world, engine->control, "engine is killed, silently: %", engine->is_silent, 0, 0);
  end_engine(world, engine);
}

void sim_engine_stop(sim_world *world, sim_engine *engine)
{
  if (engine->state == SIM_ENGINE_UP) {
    sim_note(world, engine->control, "engine shuts down", 0, 0, 0);
    engine->state = SIM_ENGINE_STOPPING;
    sim_push(world, world->now_ns, on_stopping, engine->index, 0, engine->life);
  }
}

/* What kvf_node_close() waits for. */
static void on_stopping(sim_world *world, const sim_event *event)
{
  sim_engine *engine = &world->engines[event->a];
  if (engine->life != event->c || engine->state != SIM_ENGINE_STOPPING || sim_waits(world, event->a, event)) {
    return;
  }
  bool ranks_released = true;
  for (uint32_t rank = 0; rank < engine->ranks; rank++) {
    sim_node *node = sim_rank_of(world, event->a, rank);
    uint64_t now_ns = sim_node_enter(world, node);
    bool cleared = kvf_core_clear_memory(&node->core, now_ns);
    sim_node_leave(world, node);
    sim_node_catch_up(world, node);
    ranks_released = ranks_released && cleared;
  }
  for (uint32_t i = 0; ranks_released && i < world->reads_end; i++) {
    const sim_read *read = &world->reads[i];
    if (read->used && read->node / SIM_NODES_EACH == engine->index) {
      sim_fail(world, "P4", "engine %u: memory is free to go while read %llu writes to it", engine->index,
               (unsigned long long)read->id);
    }
  }
  if (!ranks_released) {
    sim_push(world, world->now_ns + STOP_POLL_NS, on_stopping, event->a, 0, event->c);
    return;
  }
  sim_note(world, engine->control, "engine is down", 0, 0, 0);
  end_engine(world, engine);
}
