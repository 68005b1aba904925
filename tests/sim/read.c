/* A read takes time: slices are copied at different moments, the fence is looked at after the last one, and the report
 * comes after that. It may fail, stand still, or go on for a while after it was cancelled. */
#include <string.h>

#include "world.h"

/* How long after its time a node may look at the clock. */
#define STALL_SLACK_NS (12 * SIM_MS)

static void on_read(sim_world *world, const sim_event *event);
static void on_stall_watch(sim_world *world, const sim_event *event);

static void schedule(sim_world *world, const sim_read *read, uint64_t at_ns)
{
  sim_push(world, at_ns, on_read, (uint32_t)(read - world->reads), 0, read->serial);
}

static uint64_t step_ns(sim_world *world)
{
  static const uint64_t steps_ns[] = {SIM_MS / 10, SIM_MS / 100, SIM_MS, 5 * SIM_MS, 15 * SIM_MS, 50 * SIM_MS};
  return steps_ns[sim_may(world, SIM_FAULT_DELAY) ? sim_choose(&world->tape, 6) : 0];
}

/* What it writes of a block of a group. */
static uint16_t head_bits(const sim_world *world, const sim_read *read, uint32_t group)
{
  uint32_t bits = 0;
  for (uint32_t region = group; region < world->regions; region += world->groups) {
    if (kvf_layers_have(&read->layers, region)) {
      bits |= ((1u << read->heads) - 1) << (region * SIM_HEADS_MAX + read->local_head);
    }
  }
  return (uint16_t)bits;
}

/* P4: the blocks are this load's, and no other read writes to them. */
static void claim_blocks(sim_world *world, const sim_read *read)
{
  const sim_engine *engine = sim_engine_of(world, read->node);
  sim_node *node = &world->nodes[read->node];
  for (uint32_t i = 0; i < read->items_count; i++) {
    const kvf_transfer_item *item = &read->items[i];
    if (item->group >= world->groups || item->local_block >= engine->blocks ||
        engine->owner[item->group][item->local_block] != read->job + 1) {
      sim_fail(world, "P4", "node %u: read %llu writes to block %u, which is not its load's", read->node,
               (unsigned long long)read->id, item->local_block);
      return;
    }
    const uint16_t bits = head_bits(world, read, item->group);
    if ((node->writing[item->group][item->local_block] & bits) != 0) {
      sim_fail(world, "P4", "node %u: two reads write to block %u at a time", read->node, item->local_block);
      return;
    }
    node->writing[item->group][item->local_block] |= bits;
  }
}

/* The job whose load this is: the core does not say, but its blocks do. */
static uint32_t job_of(const sim_world *world, const sim_node *node, const kvf_load_read *action)
{
  const sim_engine *engine = &world->engines[node->index / SIM_NODES_EACH];
  const kvf_transfer_item *item = &action->transfer.items[0];
  if (action->transfer.items_count == 0 || item->group >= world->groups || item->local_block >= engine->blocks) {
    return SIM_NOBODY;
  }
  uint32_t owner = engine->owner[item->group][item->local_block];
  return owner == 0 ? SIM_NOBODY : owner - 1;
}

static sim_read *new_read(sim_world *world)
{
  for (uint32_t i = 0; i < SIM_READS_MAX; i++) {
    if (!world->reads[i].used) {
      world->reads_end = i < world->reads_end ? world->reads_end : i + 1;
      world->reads[i].serial++;
      return &world->reads[i];
    }
  }
  sim_fail(world, "SIM", "more than %d reads", SIM_READS_MAX);
  return NULL;
}

static bool fill(sim_world *world, sim_node *node, sim_read *read, const kvf_load_read *action)
{
  const sim_link *link = sim_link_find(world, node->index, action->link_id);
  uint32_t job = job_of(world, node, action);
  if (job == SIM_NOBODY || action->transfer.items_count > SIM_IDS_MAX || action->transfer.heads == 0 ||
      action->transfer.local_head + action->transfer.heads > node->heads ||
      action->transfer.layers.first >= world->regions) {
    sim_fail(world, "P4", "node %u: read %llu writes to what is no load's", node->index,
             (unsigned long long)action->transfer.id);
    return false;
  }
  uint32_t serial = read->serial;
  *read = (sim_read){.used = true,
                     .serial = serial,
                     .id = action->transfer.id,
                     .node = node->index,
                     .life = sim_engine_of(world, node->index)->life,
                     .link_id = action->link_id,
                     .job = job,
                     .lease = action->transfer.lease,
                     .remote_head = action->transfer.remote_head,
                     .local_head = action->transfer.local_head,
                     .heads = action->transfer.heads,
                     .layers = action->transfer.layers,
                     .items_count = action->transfer.items_count,
                     .peer = SIM_NOBODY,
                     .status = KVF_CANCELLED};
  memcpy(read->items, action->transfer.items, action->transfer.items_count * sizeof(read->items[0]));
  for (uint32_t i = 0; i < read->items_count; i++) {
    read->pieces += (uint32_t)__builtin_popcount(head_bits(world, read, read->items[i].group));
  }
  if (link != NULL) {
    read->is_tcp = link->is_tcp;
    read->peer = link->peer;
    read->peer_life = link->peer_life;
    read->status = link->up ? KVF_OK : KVF_TRANSFER_SETUP;
  }
  return true;
}

/* The stall clock is one for all reads of a load from one producer rank, of the same layers. */
static uint64_t *progress_of(sim_world *world, const sim_read *read)
{
  sim_load *load = &world->jobs[read->job].load[world->nodes[read->node].rank];
  return &load->progress_ns[read->peer % SIM_NODES_EACH][read->layers.first];
}

static void progressed(sim_world *world, const sim_read *read)
{
  if (read->peer != SIM_NOBODY) {
    *progress_of(world, read) = world->now_ns;
  }
}

static void watch_stall(sim_world *world, const sim_read *read, uint64_t since_ns)
{
  sim_push(world, since_ns + 2 * kvf_ms_to_ns(world->config.stall_timeout_ms) + STALL_SLACK_NS, on_stall_watch,
           (uint32_t)(read - world->reads), 0, read->serial);
}

/* P2: a read without a byte is cancelled in time. */
static void on_stall_watch(sim_world *world, const sim_event *event)
{
  const sim_read *read = &world->reads[event->a];
  if (!read->used || read->serial != event->c || read->cancelled || !read->still) {
    return;
  }
  const sim_engine *engine = sim_engine_of(world, read->node);
  uint64_t since_ns = *progress_of(world, read);
  since_ns = since_ns < engine->paused_until_ns ? engine->paused_until_ns : since_ns;
  if (world->now_ns < since_ns + 2 * kvf_ms_to_ns(world->config.stall_timeout_ms) + STALL_SLACK_NS) {
    watch_stall(world, read, since_ns);
  } else {
    sim_fail(world, "P2", "node %u: read %llu stands still and nobody notices", read->node,
             (unsigned long long)read->id);
  }
}

void sim_read_start(sim_world *world, sim_node *node, const kvf_load_read *action)
{
  sim_read *read = new_read(world);
  if (read == NULL || !fill(world, node, read, action)) {
    return;
  }
  sim_note(world, node->index, "read % begins: % blocks of lease %", read->id, read->items_count, read->lease.id);
  world->jobs[read->job].load[node->rank].reads++;
  claim_blocks(world, read);
  if (read->status != KVF_OK) {
    read->phase = SIM_READ_ENDING;
  }
  read->still = sim_strikes(world, SIM_FAULT_STALL, 6);
  read->stuck = read->still && sim_strikes(world, SIM_FAULT_STUCK, 3);
  progressed(world, read);
  if (read->still) {
    watch_stall(world, read, world->now_ns);
  }
  schedule(world, read, world->now_ns + step_ns(world));
}

void sim_read_cancel(sim_world *world, uint32_t node, uint64_t read_id)
{
  for (uint32_t i = 0; i < world->reads_end; i++) {
    sim_read *read = &world->reads[i];
    if (read->used && read->node == node && read->id == read_id && !read->cancelled) {
      sim_note(world, node, "read % is cancelled", read_id, 0, 0);
      read->cancelled = true;
      if (read->still && !read->stuck) {
        read->still = false;
        schedule(world, read, world->now_ns + step_ns(world));
      }
    }
  }
}

void sim_reads_cancel_link(sim_world *world, uint32_t node, uint32_t link_id)
{
  for (uint32_t i = 0; i < world->reads_end; i++) {
    if (world->reads[i].used && world->reads[i].node == node && world->reads[i].link_id == link_id) {
      sim_read_cancel(world, node, world->reads[i].id);
    }
  }
}

void sim_reads_drop_node(sim_world *world, uint32_t node)
{
  for (uint32_t i = 0; i < world->reads_end; i++) {
    if (world->reads[i].node == node) {
      world->reads[i].used = false;
    }
  }
}

void sim_reads_heal(sim_world *world)
{
  for (uint32_t i = 0; i < world->reads_end; i++) {
    sim_read *read = &world->reads[i];
    if (read->used && read->still) {
      read->still = false;
      read->stuck = false;
      schedule(world, read, world->now_ns + step_ns(world));
    }
  }
}

/* ---- steps ---- */

static void end(sim_world *world, sim_read *read)
{
  sim_node *node = &world->nodes[read->node];
  sim_load *load = &world->jobs[read->job].load[node->rank];
  for (uint32_t i = 0; i < read->items_count; i++) {
    const uint32_t group = read->items[i].group;
    node->writing[group][read->items[i].local_block] &= (uint16_t)~head_bits(world, read, group);
  }
  read->used = false;
  progressed(world, read);
  load->reads--;
  sim_note(world, node->index, "read % ends: $, fence word %", read->id, (uint64_t)(int64_t)read->status,
           read->sample.entry.word);
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_loads_on_read_done(&node->core.loads, now_ns, read->id, read->status, read->verified, &read->sample,
                         (uint64_t)read->piece * sizeof(uint64_t));
  sim_node_leave(world, node);
}

/* The producer's node if the read still reaches it. A reader that does not notice that the process is another one
 * reads that one's memory. */
static sim_node *source(sim_world *world, const sim_read *read)
{
  sim_node *peer = &world->nodes[read->peer];
  bool same_life = sim_engine_of(world, read->peer)->life == read->peer_life;
  bool reaches = same_life || (!read->is_tcp && sim_may(world, SIM_FAULT_REUSED_PID));
  return peer->is_up && peer->has_memory && reaches ? peer : NULL;
}

/* P4: the load whose blocks are written to is not released. */
static bool may_write(sim_world *world, const sim_read *read, const kvf_transfer_item *item)
{
  const sim_engine *engine = sim_engine_of(world, read->node);
  const sim_load *load = &world->jobs[read->job].load[world->nodes[read->node].rank];
  if (engine->owner[item->group][item->local_block] == read->job + 1 &&
      (load->state == SIM_LOAD_OPEN || load->state == SIM_LOAD_DECIDED || load->state == SIM_LOAD_NONE)) {
    return true;
  }
  sim_fail(world, "P4", "node %u: read %llu writes to block %u after its load was released", read->node,
           (unsigned long long)read->id, item->local_block);
  return false;
}

static void copy_pieces(sim_world *world, sim_read *read, const sim_node *from, uint32_t count)
{
  sim_node *to = &world->nodes[read->node];
  uint32_t piece = 0;
  for (uint32_t i = 0; i < read->items_count; i++) {
    const kvf_transfer_item *item = &read->items[i];
    for (uint32_t region = item->group; region < world->regions; region += world->groups) {
      for (uint32_t head = 0; kvf_layers_have(&read->layers, region) && head < read->heads; head++, piece++) {
        if (piece < read->piece || piece >= read->piece + count) {
          continue;
        }
        if (!may_write(world, read, item)) {
          return;
        }
        to->pool[region][item->local_block][read->local_head + head] =
            from->pool[region][item->remote_block][read->remote_head + head];
        sim_corrupt(world, &to->pool[region][item->local_block][read->local_head + head]);
      }
    }
  }
  read->piece += count;
}

/* What the producer's side of tcp asks its core before it sends. */
static kvf_status authorize(sim_world *world, sim_read *read, sim_node *peer)
{
  kvf_transfer_item items[SIM_IDS_MAX];
  memcpy(items, read->items, sizeof(items));
  uint64_t now_ns = sim_node_enter(world, peer);
  kvf_status status = kvf_lease_table_authorize(&peer->core.leases, now_ns, &read->lease, items, read->items_count);
  sim_node_leave(world, peer);
  for (uint32_t i = 0; status == KVF_OK && i < read->items_count; i++) {
    read->items[i].remote_block = items[i].remote_block;
  }
  return status;
}

static void take_sample(sim_world *world, sim_read *read, const sim_node *peer)
{
  read->sample.head = (kvf_fence_head){.magic = KVF_FENCE_MAGIC,
                                       .incarnation = peer->core.context.self.incarnation,
                                       .slots = SIM_SLOTS_MAX,
                                       .generation = peer->core.pool.welcome.generation};
  read->sample.entry = peer->table[read->lease.slot % SIM_SLOTS_MAX];
  sim_note(world, read->node, "read % looks at the fence: word %", read->id, read->sample.entry.word, 0);
}

/* `local` looks at the fence before its first byte, too: what is not live yet may still be being made. */
static void look_before(sim_world *world, sim_read *read, const sim_node *peer)
{
  for (uint32_t i = 0; i < read->items_count; i++) {
    if (read->items[i].remote_block >= world->engines[read->peer / SIM_NODES_EACH].blocks ||
        read->remote_head + read->heads > peer->heads) {
      read->status = KVF_INVALID; /* as kvf_chunk_check() says */
    }
  }
  take_sample(world, read, peer);
  bool live = read->sample.entry.word == kvf_fence_word_live(read->lease.id);
  read->phase = live && read->status == KVF_OK ? SIM_READ_COPYING : SIM_READ_ENDING;
}

static void ask(sim_world *world, sim_read *read, sim_node *peer)
{
  if (read->is_tcp) {
    read->status = authorize(world, read, peer);
    read->phase = read->status == KVF_OK ? SIM_READ_COPYING : SIM_READ_ENDING;
  } else {
    look_before(world, read, peer);
  }
}

static void copy_some(sim_world *world, sim_read *read, const sim_node *peer)
{
  uint32_t left = read->pieces - read->piece;
  uint32_t count = left;
  if (left > 1 && !world->healed && sim_choose(&world->tape, 3) != 0) {
    count = 1 + sim_choose(&world->tape, left);
  }
  copy_pieces(world, read, peer, count);
  if (read->piece < read->pieces) {
    sim_note(world, read->node, "read % has copied % of % slices", read->id, read->piece, read->pieces);
    if (!read->cancelled) {
      uint64_t now_ns = sim_node_enter(world, &world->nodes[read->node]);
      kvf_loads_on_read_progress(&world->nodes[read->node].core.loads, now_ns, read->id);
      progressed(world, read);
      sim_node_leave(world, &world->nodes[read->node]);
    }
  } else {
    read->phase = SIM_READ_COPIED;
  }
}

static void step(sim_world *world, sim_read *read, sim_node *peer)
{
  switch (read->phase) {
    case SIM_READ_ASKED:
      ask(world, read, peer);
      break;
    case SIM_READ_COPYING:
      copy_some(world, read, peer);
      break;
    case SIM_READ_COPIED:
      sim_compare(world, read, peer);
      take_sample(world, read, peer);
      if (world->config.checksum && read->verified < read->items_count) {
        read->status = KVF_CHECKSUM;
      }
      read->phase = SIM_READ_ENDING;
      break;
    case SIM_READ_ENDING:
      break;
  }
}

/* True if the way from the producer is closed for now: the event comes again. */
static bool is_held_up(sim_world *world, const sim_read *read, const sim_event *event)
{
  uint32_t to = read->node / SIM_NODES_EACH;
  if (sim_waits(world, to, event)) {
    return true;
  }
  uint32_t from = read->peer / SIM_NODES_EACH;
  if (!read->is_tcp || read->cancelled || read->phase == SIM_READ_ENDING) {
    return false;
  }
  if (sim_waits(world, from, event)) {
    return true;
  }
  uint64_t until_ns = world->blocked_until_ns[from][to];
  if (until_ns > world->now_ns) {
    schedule(world, read, until_ns);
    return true;
  }
  const sim_engine *engine = &world->engines[from];
  if (engine->is_silent && engine->state == SIM_ENGINE_DOWN) {
    schedule(world, read, world->now_ns + 20 * SIM_MS); /* no byte and no reset will come */
    return true;
  }
  return false;
}

static void on_read(sim_world *world, const sim_event *event)
{
  sim_read *read = &world->reads[event->a];
  if (!read->used || read->serial != event->c || read->still || is_held_up(world, read, event)) {
    return;
  }
  bool at_end = read->phase == SIM_READ_ENDING;
  if (read->cancelled && !at_end && !sim_strikes(world, SIM_FAULT_STALL, 2)) {
    read->status = KVF_CANCELLED;
    at_end = true;
  }
  if (!at_end) {
    sim_node *peer = source(world, read);
    if (peer == NULL) {
      read->status = read->is_tcp ? KVF_PEER_DOWN : KVF_TRANSFER_FAILED;
      at_end = true;
    } else if (sim_strikes(world, SIM_FAULT_READ, 12)) {
      static const kvf_status troubles[] = {KVF_TRANSFER_FAILED, KVF_PEER_DOWN, KVF_CANCELLED, KVF_NO_MEMORY};
      read->status = troubles[sim_choose(&world->tape, 4)];
      at_end = true;
    } else {
      step(world, read, peer);
    }
  }
  if (at_end) {
    end(world, read);
  } else if (read->used) {
    schedule(world, read, world->now_ns + step_ns(world));
  }
}
