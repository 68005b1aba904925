/* One run: the world is set up from the tape, lives through its events, and ends. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "../allocation.h"
#include "world.h"

/* A world that has more to do than this does not come to rest. */
#define EVENTS_MAX 60000
#define COSTLY_SHARE 8

void sim_push(sim_world *world, uint64_t at_ns, sim_event_fn fn, uint32_t a, uint32_t b, uint64_t c)
{
  sim_event event = {.at_ns = at_ns < world->now_ns ? world->now_ns : at_ns, .fn = fn, .a = a, .b = b, .c = c};
  if (!sim_queue_push(&world->queue, event)) {
    sim_fail(world, "SIM", "more than %d events wait", SIM_EVENTS_MAX);
  }
}

void sim_fail(sim_world *world, const char *promise, const char *format, ...)
{
  if (world->failed) {
    return;
  }
  world->failed = true;
  world->result->found = true;
  (void)snprintf(world->result->promise, sizeof(world->result->promise), "%s", promise);
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(world->result->text, sizeof(world->result->text), format, arguments);
  va_end(arguments);
  if (world->trace != NULL) {
    (void)fprintf(world->trace, "%10.3f ms  FOUND %s: %s\n", (double)world->now_ns / (double)SIM_MS, promise,
                  world->result->text);
  }
}

void sim_expect(sim_world *world, const char *call, kvf_status status, kvf_status expected)
{
  if (status != expected) {
    sim_fail(world, "P3", "%s, called again, answers %s", call, kvf_status_name(status));
  }
}

bool sim_may(const sim_world *world, sim_fault fault)
{
  return !world->healed && (world->faults & 1u << fault) != 0;
}

bool sim_strikes(sim_world *world, sim_fault fault, uint32_t count)
{
  return sim_may(world, fault) && sim_chance(&world->tape, count);
}

uint64_t sim_lag(sim_world *world, sim_fault fault, uint64_t most_ns)
{
  if (most_ns == 0 || !sim_may(world, fault)) {
    return 0;
  }
  uint64_t part = sim_choose(&world->tape, 16);
  return most_ns * part * part / 225; /* short ones more often */
}

static void close_world(sim_world *world)
{
  (void)allocation_stop();
  allocation_spare(true);
  for (uint32_t i = 0; i < world->engines_count; i++) {
    sim_scheduler_stop(world, &world->engines[i]);
  }
  for (uint32_t i = 0; i < world->engines_count * SIM_NODES_EACH; i++) {
    if (world->nodes[i].is_up) {
      kvf_core_free(&world->nodes[i].core);
      world->nodes[i].is_up = false;
    }
  }
  kvf_mac_free(&world->mac);
}

/* What the last run has left behind, but for the arrays that the counts make empty. */
static void clear(sim_world *world)
{
  for (uint32_t i = 0; i < world->conns_end; i++) {
    world->conns[i].used = false;
    world->conns[i].serial = 0;
  }
  for (uint32_t i = 0; i < world->links_end; i++) {
    world->links[i].used = false;
  }
  for (uint32_t i = 0; i < world->reads_end; i++) {
    world->reads[i].used = false;
    world->reads[i].serial = 0;
  }
  for (uint32_t i = 0; i < SIM_NODES_MAX; i++) {
    world->nodes[i].is_up = false;
  }
  memset(world->blocked_until_ns, 0, sizeof(world->blocked_until_ns));
  memset(&world->config, 0, sizeof(world->config));
  memset(&world->key, 0, sizeof(world->key));
  world->conns_end = 0;
  world->links_end = 0;
  world->reads_end = 0;
  world->offers_count = 0;
  world->jobs_count = 0;
  world->heard_bytes = 0;
  world->junk = 0;
  world->queue.count = 0;
  world->queue.next_seq = 0;
  world->now_ns = 0;
  world->failed = false;
  world->healed = false;
}

static void live(sim_world *world)
{
  sim_event event;
  while (!world->failed && sim_queue_pop(&world->queue, &event)) {
    world->now_ns = event.at_ns;
    if (++world->result->events > EVENTS_MAX) {
      sim_fail(world, "P2", "the world does not come to rest");
    } else {
      event.fn(world, &event);
    }
  }
}

int kvf_sim_run(const uint8_t *tape, size_t bytes, FILE *trace, kvf_sim_result *result)
{
  static sim_world world; /* large, and mostly not to be cleared */
  *result = (kvf_sim_result){0};
  clear(&world);
  world.tape = (sim_tape){.data = tape, .bytes = bytes};
  world.trace = trace;
  world.result = result;
  world.checks_all = bytes > 0 && tape[bytes - 1] % COSTLY_SHARE == 0;
  long allocations = allocation_live();
  sim_setup(&world);
  sim_script_start(&world);
  live(&world);
  close_world(&world);
  if (!world.failed && allocation_live() != allocations) {
    sim_fail(&world, "P5", "%ld allocations are never freed", allocation_live() - allocations);
  }
  result->now_ns = world.now_ns;
  return result->found ? 1 : 0;
}
