/* What goes wrong with hosts, networks and memory; and the moment when nothing does any more. */
#include "../allocation.h"
#include "world.h"

static sim_engine *any_engine(sim_world *world)
{
  return &world->engines[sim_choose(&world->tape, world->engines_count)];
}

static uint64_t duration_ns(sim_world *world)
{
  const uint64_t ttl_ns = kvf_ms_to_ns(world->config.lease_ttl_ms);
  const uint64_t stall_ns = kvf_ms_to_ns(world->config.stall_timeout_ms);
  const uint64_t durations_ns[] = {5 * SIM_MS,   30 * SIM_MS,     stall_ns / 2 + SIM_MS,
                                   3 * stall_ns, ttl_ns + SIM_MS, kvf_ms_to_ns(world->config.load_timeout_ms)};
  return durations_ns[sim_choose(&world->tape, 6)];
}

static void reset_any(sim_world *world)
{
  if (world->conns_end > 0) {
    sim_conn *conn = &world->conns[sim_choose(&world->tape, world->conns_end)];
    if (conn->used && !conn->connecting) {
      sim_note(world, SIM_NOBODY, "a connection between node % and node % is reset", conn->end[0].node,
               conn->end[1].node, 0);
      sim_conn_reset(world, conn);
    }
  }
}

static void partition_any(sim_world *world)
{
  uint32_t a = any_engine(world)->index;
  uint32_t b = any_engine(world)->index;
  uint64_t until_ns = world->now_ns + duration_ns(world);
  sim_note(world, SIM_NOBODY, "nothing gets from engine % to engine % until %", a, b, until_ns);
  world->blocked_until_ns[a][b] = until_ns;
  if (sim_choose(&world->tape, 2) == 0) {
    world->blocked_until_ns[b][a] = until_ns;
  }
}

static void pause_any(sim_world *world)
{
  sim_engine *engine = any_engine(world);
  uint64_t until_ns = world->now_ns + duration_ns(world);
  engine->paused_until_ns = until_ns > engine->paused_until_ns ? until_ns : engine->paused_until_ns;
  sim_note(world, SIM_NOBODY, "engine % is paused until %", engine->index, engine->paused_until_ns, 0);
}

static void restart_later(sim_world *world, const sim_engine *engine)
{
  sim_push(world, world->now_ns + duration_ns(world), sim_on_start, engine->index, 0, 0);
}

static void kill_any(sim_world *world)
{
  sim_engine *engine = any_engine(world);
  if (engine->state != SIM_ENGINE_DOWN) {
    engine->is_silent = sim_strikes(world, SIM_FAULT_SILENT, 2);
    sim_engine_kill(world, engine);
    restart_later(world, engine);
  }
}

static void stop_any(sim_world *world)
{
  sim_engine *engine = any_engine(world);
  sim_engine_stop(world, engine);
  restart_later(world, engine);
}

static void drain_any(sim_world *world)
{
  sim_engine *engine = &world->engines[sim_choose(&world->tape, world->producers)];
  if (engine->state == SIM_ENGINE_UP) {
    engine->drains = true;
    world->nodes[engine->control].core.slots.draining = true;
  }
}

static void break_any_link(sim_world *world)
{
  if (world->links_end > 0) {
    sim_link *link = &world->links[sim_choose(&world->tape, world->links_end)];
    if (link->used) {
      sim_link_break(world, link, KVF_PEER_DOWN);
    }
  }
}

static void starve(sim_world *world)
{
  uint32_t skip = sim_choose(&world->tape, 32);
  allocation_fail(skip, 1 + sim_choose(&world->tape, 6));
}

void sim_fault_any(sim_world *world)
{
  static const struct {
    sim_fault fault;
    void (*strike)(sim_world *world);
  } kinds[] = {
      {SIM_FAULT_RESET, reset_any}, {SIM_FAULT_PARTITION, partition_any}, {SIM_FAULT_PAUSE, pause_any},
      {SIM_FAULT_KILL, kill_any},   {SIM_FAULT_STOP, stop_any},           {SIM_FAULT_LINK, break_any_link},
      {SIM_FAULT_DRAIN, drain_any}, {SIM_FAULT_ALLOCATION, starve},
  };
  uint32_t count = sizeof(kinds) / sizeof(kinds[0]);
  uint32_t kind = sim_choose(&world->tape, count);
  for (uint32_t i = 0; i < count; i++) {
    uint32_t next = (kind + i) % count; /* the next one that this world has */
    if (sim_may(world, kinds[next].fault)) {
      kinds[next].strike(world);
      return;
    }
  }
}

void sim_faults_end(sim_world *world)
{
  sim_note(world, SIM_NOBODY, "nothing goes wrong from here on", 0, 0, 0);
  world->healed = true;
  (void)allocation_stop();
  sim_reads_heal(world);
  for (uint32_t i = 0; i < world->conns_end; i++) {
    sim_conn *conn = &world->conns[i];
    if (conn->used && conn->silent) {
      conn->silent = false;
      sim_conn_reset(world, conn);
    }
  }
  for (uint32_t i = 0; i < world->engines_count; i++) {
    sim_engine *engine = &world->engines[i];
    engine->is_silent = false;
    if (engine->state == SIM_ENGINE_DOWN) {
      sim_push(world, world->now_ns, sim_on_start, i, 0, 0);
    }
  }
}
