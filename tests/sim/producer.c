/* A producer engine: takes blocks, reserves a lease, hands out a ticket, fills and publishes on each rank, and uses the
 * blocks for something else the moment it may. */
#include "world.h"

#define MEMORY_POLL_NS (5 * SIM_MS)
#define ALL(engine) ((1u << (engine)->ranks) - 1)

static void on_publish(sim_world *world, const sim_event *event);
static void on_preempt(sim_world *world, const sim_event *event);

static kvf_blocks blocks_of(const sim_world *world, const sim_offer *offer, uint32_t counts[SIM_GROUPS_MAX])
{
  for (uint32_t group = 0; group < world->groups; group++) {
    counts[group] = sim_prompt_at(offer->prompt)->positions;
  }
  return (kvf_blocks){.ids = offer->ids, .counts = counts, .groups = world->groups};
}

/* All ranks have let go: the lease's slot and its blocks are free. */
static void give_back(sim_world *world, sim_offer *offer)
{
  sim_engine *engine = &world->engines[offer->engine];
  sim_node *control = sim_control_of(world, engine->index);
  uint32_t index = (uint32_t)(offer - world->offers);
  (void)sim_node_enter(world, control);
  kvf_status status = kvf_lease_slots_release(&control->core.slots, offer->lease.id);
  if (sim_strikes(world, SIM_FAULT_AGAIN, 3)) {
    sim_expect(world, "release", kvf_lease_slots_release(&control->core.slots, offer->lease.id), KVF_NOT_FOUND);
  }
  sim_node_leave(world, control);
  if (status != KVF_OK) {
    sim_fail(world, "P3", "lease %llu cannot be released: %s", (unsigned long long)offer->lease.id,
             kvf_status_name(status));
  }
  sim_note(world, engine->control, "lease % of offer % is given back", offer->lease.id, index, 0);
  offer->is_over = true;
  sim_blocks_give(world, engine, index);
}

/* The rank may use the blocks again, and does so at once. */
static void free_on_rank(sim_world *world, sim_offer *offer, uint32_t rank)
{
  if ((offer->freed & 1u << rank) != 0) {
    return;
  }
  offer->freed |= 1u << rank;
  sim_scribble_blocks(world, sim_rank_of(world, offer->engine, rank), offer->ids, sim_prompt_at(offer->prompt), 0);
}

static void give_back_if_done(sim_world *world, sim_offer *offer)
{
  uint32_t all = ALL(&world->engines[offer->engine]);
  /* A rank that has published tells of the end in an event, however it came to it. */
  if (!offer->is_over && offer->freed == all && (offer->published & ~offer->ended) == 0) {
    give_back(world, offer);
  }
}

/* Blocks that are under lease, each of one: those of the offers that are not over. */
static uint64_t leased(const sim_world *world, const sim_engine *engine)
{
  uint64_t blocks = 0;
  for (uint32_t i = 0; i < world->offers_count; i++) {
    const sim_offer *offer = &world->offers[i];
    if (offer->engine == engine->index && offer->life == engine->life && !offer->is_over) {
      blocks += (uint64_t)sim_prompt_at(offer->prompt)->positions * world->groups;
    }
  }
  return blocks;
}

static kvf_status reserve(sim_world *world, sim_engine *engine, sim_offer *offer)
{
  sim_node *control = sim_control_of(world, engine->index);
  uint32_t counts[SIM_GROUPS_MAX];
  kvf_blocks blocks = blocks_of(world, offer, counts);
  (void)sim_node_enter(world, control);
  const uint64_t pool_blocks = (uint64_t)engine->blocks * world->groups;
  const uint32_t number = counts[0] * world->groups;
  const bool are_known = offer->prompt % 2 == 0; /* else the ticket names them */
  kvf_status status = kvf_core_lease_reserve(&control->core, are_known ? &blocks : NULL, are_known ? 0 : number,
                                             pool_blocks, &offer->lease);
  sim_node_leave(world, control);
  if (status != KVF_OK) {
    return status;
  }
  const uint64_t under_lease = kvf_lease_slots_blocks(&control->core.slots);
  if (engine->drains || under_lease * 100 > world->config.lease_pool_share_percent * pool_blocks) {
    sim_fail(world, "P5", "engine %u gives a lease although it drains or has given its share", engine->index);
  }
  if (under_lease != leased(world, engine) + number) {
    sim_fail(world, "P5", "engine %u counts %llu blocks under lease", engine->index, (unsigned long long)under_lease);
  }
  status = sim_ticket_make(world, control, &offer->lease, &blocks, &sim_prompt_at(offer->prompt)->identity,
                           offer->ticket, &offer->ticket_bytes);
  if (status != KVF_OK) {
    (void)sim_node_enter(world, control);
    (void)kvf_lease_slots_release(&control->core.slots, offer->lease.id);
    sim_node_leave(world, control);
  }
  return status;
}

/* The engine lacks blocks or leases: those that only linger go first. */
static void on_make_room(sim_world *world, const sim_event *event)
{
  sim_engine *engine = &world->engines[event->a];
  if (engine->life != event->c || engine->state == SIM_ENGINE_DOWN || sim_waits(world, event->a, event)) {
    return;
  }
  sim_node *node = sim_rank_of(world, event->a, event->b);
  (void)sim_node_enter(world, node);
  kvf_core_end_lingering(&node->core);
  sim_node_leave(world, node);
}

static uint32_t refuse_offer(sim_world *world, const sim_engine *engine)
{
  for (uint32_t rank = 0; rank < engine->ranks; rank++) {
    sim_push(world, world->now_ns + world->delay_ns, on_make_room, engine->index, rank, engine->life);
  }
  return SIM_NOBODY;
}

uint32_t sim_offer_make(sim_world *world, sim_engine *engine, uint32_t prompt)
{
  uint32_t index = world->offers_count;
  if (index == SIM_OFFERS_MAX || !engine->is_ready || engine->state != SIM_ENGINE_UP) {
    return SIM_NOBODY;
  }
  sim_offer *offer = &world->offers[index];
  *offer = (sim_offer){.engine = engine->index, .life = engine->life, .prompt = prompt};
  if (!sim_blocks_take(world, engine, sim_prompt_at(prompt)->positions, index, offer->ids)) {
    return refuse_offer(world, engine);
  }
  kvf_status status = reserve(world, engine, offer);
  sim_note(world, engine->control, "offers prompt % with lease %: $", prompt, offer->lease.id,
           (uint64_t)(int64_t)status);
  if (status != KVF_OK) {
    sim_blocks_give(world, engine, index);
    return refuse_offer(world, engine);
  }
  world->offers_count++;
  for (uint32_t rank = 0; rank < engine->ranks; rank++) {
    sim_push(world, world->now_ns + world->delay_ns + sim_lag(world, SIM_FAULT_SLOW, 60 * SIM_MS), on_publish, index,
             rank, engine->life);
  }
  return index;
}

/* The offer that a message of the scheduler to a rank is about, NULL if its engine has gone. */
static sim_offer *offer_of(sim_world *world, const sim_event *event)
{
  sim_offer *offer = &world->offers[event->a];
  return world->engines[offer->engine].life == event->c && !offer->is_over ? offer : NULL;
}

static void compute(sim_world *world, const sim_offer *offer, sim_node *node)
{
  sim_write_blocks(world, node, offer->ids, sim_prompt_at(offer->prompt), 0, SIM_POSITIONS_MAX);
}

/* The device has done what it was given before the lease was published: the publication's ordering point. */
static void on_computed(sim_world *world, const sim_event *event)
{
  const sim_offer *offer = offer_of(world, event);
  if (offer == NULL || sim_waits(world, offer->engine, event)) {
    return;
  }
  sim_node *node = sim_rank_of(world, offer->engine, event->b);
  if ((offer->freed & 1u << event->b) == 0) {
    compute(world, offer, node);
  }
  if (world->config.checksum) {
    sim_sum_later(world, event->a, event->b);
    return;
  }
  (void)sim_node_enter(world, node);
  kvf_lease_table_complete(&node->core.leases, &offer->lease);
  sim_node_leave(world, node);
}

static void on_publish(sim_world *world, const sim_event *event)
{
  sim_offer *offer = offer_of(world, event);
  if (offer == NULL || sim_waits(world, offer->engine, event)) {
    return;
  }
  const sim_prompt *prompt = sim_prompt_at(offer->prompt);
  sim_node *node = sim_rank_of(world, offer->engine, event->b);
  bool was_ended = (offer->freed & 1u << event->b) != 0;
  if (!node->has_memory) {
    sim_push(world, world->now_ns + MEMORY_POLL_NS, on_publish, event->a, event->b, event->c);
    return;
  }
  uint32_t counts[SIM_GROUPS_MAX];
  kvf_blocks blocks = blocks_of(world, offer, counts);
  uint64_t digest = 0;
  const bool computes_later = !was_ended && sim_strikes(world, SIM_FAULT_SLOW, 3);
  const bool incomplete = computes_later || world->config.checksum;
  if (!was_ended && !computes_later) {
    compute(world, offer, node);
  }
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_status status = kvf_fence_digest(&offer->lease, &blocks, &prompt->identity, &digest);
  if (status == KVF_OK) {
    status = kvf_core_publish(&node->core, now_ns, &offer->lease, &blocks, digest, event->a, incomplete);
  }
  if (status == KVF_OK) {
    offer->published |= 1u << event->b;
    sim_watch_published(world, offer, event->b);
    if (computes_later) {
      sim_push(world, world->now_ns + SIM_MS + sim_lag(world, SIM_FAULT_SLOW, 20 * SIM_MS), on_computed, event->a,
               event->b, event->c);
    } else if (incomplete) {
      sim_sum_later(world, event->a, event->b);
    }
    if (sim_strikes(world, SIM_FAULT_AGAIN, 3) && !sim_may(world, SIM_FAULT_ALLOCATION)) {
      sim_expect(world, "publish",
                 kvf_core_publish(&node->core, now_ns, &offer->lease, &blocks, digest, event->a, incomplete),
                 KVF_EXISTS);
    }
  }
  sim_node_leave(world, node);
  if (status == KVF_OK) {
    sim_find_offer(world, node, offer);
  }
  sim_note(world, node->index, "publishes lease %: $", offer->lease.id, (uint64_t)(int64_t)status, 0);
  if (status == KVF_OK && was_ended) {
    sim_fail(world, "P1", "node %u: lease %llu can be published after its end", node->index,
             (unsigned long long)offer->lease.id);
  } else if (status != KVF_OK && !was_ended) {
    sim_offer_preempt(world, event->a); /* no consumer could get it whole */
  }
}

void sim_offer_preempt(sim_world *world, uint32_t index)
{
  sim_offer *offer = &world->offers[index];
  const sim_engine *engine = &world->engines[offer->engine];
  if (offer->is_over || offer->preempted) {
    return;
  }
  offer->preempted = true;
  sim_note(world, engine->control, "preempts offer %, lease %", index, offer->lease.id, 0);
  for (uint32_t rank = 0; rank < engine->ranks; rank++) {
    sim_push(world, world->now_ns + sim_lag(world, SIM_FAULT_DELAY, 2 * SIM_MS), on_preempt, index, rank, offer->life);
  }
}

static void on_preempt(sim_world *world, const sim_event *event)
{
  sim_offer *offer = offer_of(world, event);
  if (offer == NULL || sim_waits(world, offer->engine, event)) {
    return;
  }
  sim_node *node = sim_rank_of(world, offer->engine, event->b);
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_status status = kvf_core_lease_end(&node->core, now_ns, &offer->lease);
  if (sim_strikes(world, SIM_FAULT_AGAIN, 2)) {
    sim_expect(world, "lease_end", kvf_core_lease_end(&node->core, now_ns, &offer->lease), KVF_NOT_FOUND);
  }
  sim_node_leave(world, node);
  sim_note(world, node->index, "ends lease %: $", offer->lease.id, (uint64_t)(int64_t)status, 0);
  if (node->table[offer->lease.slot].word < kvf_fence_word_ended(offer->lease.id)) {
    sim_fail(world, "P1", "node %u: lease %llu was ended, but the fence does not say so", node->index,
             (unsigned long long)offer->lease.id);
  }
  free_on_rank(world, offer, event->b);
  give_back_if_done(world, offer);
}

void sim_offer_on_event(sim_world *world, sim_node *node, const kvf_event *event)
{
  sim_offer *offer = event->user < world->offers_count ? &world->offers[event->user] : NULL;
  uint32_t bit = 1u << node->rank;
  sim_note(world, node->index, "lease % has ended, cause %", event->id, event->u.lease_end, 0);
  if (offer == NULL || event->id != offer->lease.id || (offer->published & bit) == 0 || (offer->ended & bit) != 0) {
    sim_fail(world, "P3", "node %u: a second or unfounded end of lease %llu", node->index,
             (unsigned long long)event->id);
    return;
  }
  if (node->table[offer->lease.slot].word < kvf_fence_word_ended(offer->lease.id)) {
    sim_fail(world, "P1", "node %u: the blocks of lease %llu come back before over is stored", node->index,
             (unsigned long long)event->id);
  }
  offer->ended |= bit;
  sim_watch_end(world, node, offer, event->u.lease_end);
  free_on_rank(world, offer, node->rank);
  give_back_if_done(world, offer);
}

void sim_offers_drop_engine(sim_world *world, uint32_t engine)
{
  for (uint32_t i = 0; i < world->offers_count; i++) {
    if (world->offers[i].engine == engine && world->offers[i].life == world->engines[engine].life) {
      world->offers[i].is_over = true;
    }
  }
}
