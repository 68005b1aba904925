/* Drives one core as src/runtime does: an input, then its effects; frames and events later, in turns of their own. */
#include "../allocation.h"
#include "world.h"

static void on_tick(sim_world *world, const sim_event *event);
static void on_poll(sim_world *world, const sim_event *event);
static void on_output(sim_world *world, const sim_event *event);

/* The engine's own clock. */
static uint64_t now_of(const sim_world *world, const sim_engine *engine)
{
  return world->now_ns + engine->clock_ns;
}

uint64_t sim_node_enter(sim_world *world, sim_node *node)
{
  allocation_spare(false);
  return now_of(world, sim_engine_of(world, node->index));
}

static void carry_out(sim_world *world, sim_node *node, const kvf_effect *effect)
{
  switch (effect->kind) {
    case KVF_EFFECT_DIAL:
      sim_dial(world, node, &effect->link);
      break;
    case KVF_EFFECT_READ:
      sim_read_start(world, node, &effect->read);
      break;
    case KVF_EFFECT_CANCEL:
      sim_read_cancel(world, node->index, effect->read.transfer.id);
      break;
    case KVF_EFFECT_OPEN_LINK:
      sim_link_open(world, node, &effect->link);
      break;
    case KVF_EFFECT_CLOSE_LINK:
      sim_link_close(world, node, effect->link.link_id);
      break;
    case KVF_EFFECT_STORE:
      sim_store(world, node, &effect->store);
      break;
  }
}

/* The tick that the core wants, as an event; an event for a later time is left to do nothing. */
static void arm(sim_world *world, sim_node *node)
{
  const sim_engine *engine = sim_engine_of(world, node->index);
  uint64_t deadline_ns = kvf_core_next_deadline(&node->core);
  if (deadline_ns == KVF_TIME_NEVER) {
    return;
  }
  uint64_t at_ns = kvf_time_add(world->now_ns, kvf_time_until(now_of(world, engine), deadline_ns));
  at_ns += world->healed ? 0 : engine->late_ns;
  if (at_ns < node->tick_at_ns) {
    node->tick_at_ns = at_ns;
    sim_push(world, at_ns, on_tick, node->index, 0, engine->life);
  }
}

void sim_node_leave(sim_world *world, sim_node *node)
{
  const sim_engine *engine = sim_engine_of(world, node->index);
  uint64_t now_ns = now_of(world, engine);
  kvf_effect effect;
  node->core.unchecked = 0; /* it is below */
  while (!world->failed && kvf_core_next_effect(&node->core, now_ns, &effect)) {
    carry_out(world, node, &effect);
  }
  if (kvf_core_has_output(&node->core) && !node->output_waits) {
    node->output_waits = true;
    sim_push(world, world->now_ns + sim_lag(world, SIM_FAULT_LATE, engine->late_ns), on_output, node->index, 0,
             engine->life);
  }
  if (kvf_core_has_event(&node->core) && !node->poll_waits) {
    node->poll_waits = true;
    sim_push(world, world->now_ns + sim_lag(world, SIM_FAULT_LATE, 8 * engine->late_ns), on_poll, node->index, 0,
             engine->life);
  }
  arm(world, node);
  if (!world->failed) { /* else what the seed has found would be hidden */
    kvf_core_check(&node->core, world->checks_all);
  }
  allocation_spare(true);
}

static sim_node *live_node(sim_world *world, const sim_event *event)
{
  sim_node *node = &world->nodes[event->a];
  return node->is_up && sim_engine_of(world, event->a)->life == event->c ? node : NULL;
}

static void on_tick(sim_world *world, const sim_event *event)
{
  sim_node *node = live_node(world, event);
  if (node == NULL || node->tick_at_ns != event->at_ns) {
    return;
  }
  const sim_engine *engine = sim_engine_of(world, event->a);
  if (engine->paused_until_ns > world->now_ns) {
    node->tick_at_ns = engine->paused_until_ns;
    sim_push(world, engine->paused_until_ns, on_tick, event->a, 0, event->c);
    return;
  }
  node->tick_at_ns = KVF_TIME_NEVER;
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_core_tick(&node->core, now_ns);
  sim_node_leave(world, node);
}

static void on_output(sim_world *world, const sim_event *event)
{
  sim_node *node = live_node(world, event);
  if (node == NULL || sim_waits(world, event->a / SIM_NODES_EACH, event)) {
    return;
  }
  sim_output_context context = {world, node};
  node->output_waits = false;
  (void)sim_node_enter(world, node);
  kvf_core_take_output(&node->core, sim_take_output, &context);
  sim_node_leave(world, node);
}

static void take_events(sim_world *world, sim_node *node)
{
  kvf_event event;
  uint64_t now_ns = sim_node_enter(world, node);
  bool more = kvf_core_next_event(&node->core, now_ns, &event);
  sim_node_leave(world, node);
  while (more && !world->failed) {
    switch (event.kind) {
      case KVF_EVENT_LEASE_ENDED:
        sim_offer_on_event(world, node, &event);
        break;
      case KVF_EVENT_VERDICT:
        sim_job_on_verdict(world, node, &event);
        break;
      case KVF_EVENT_TICKET:
        sim_find_on_event(world, node, &event);
        break;
      case KVF_EVENT_REQUEST_RELEASED:
      case KVF_EVENT_REQUEST_STUCK:
        sim_job_on_released(world, node, &event);
        break;
      default:
        sim_job_on_event(world, node, &event);
        break;
    }
    now_ns = sim_node_enter(world, node);
    more = kvf_core_next_event(&node->core, now_ns, &event);
    sim_node_leave(world, node);
  }
}

static void on_poll(sim_world *world, const sim_event *event)
{
  sim_node *node = live_node(world, event);
  if (node == NULL || sim_waits(world, event->a / SIM_NODES_EACH, event)) {
    return;
  }
  node->poll_waits = false;
  take_events(world, node);
}

void sim_node_catch_up(sim_world *world, sim_node *node)
{
  uint64_t now_ns = sim_node_enter(world, node);
  if (now_ns >= kvf_core_next_deadline(&node->core)) {
    kvf_core_tick(&node->core, now_ns);
  }
  sim_node_leave(world, node);
  take_events(world, node);
}
