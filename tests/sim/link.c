/* Links: a consumer node's ways to one producer node. `local` reads its memory whatever its threads do; `tcp` needs
 * them, and the network. */
#include <string.h>

#include "world.h"

#define LINK_DOWN_NS (3 * SIM_MS)

static void on_link_open(sim_world *world, const sim_event *event);
static void on_link_down(sim_world *world, const sim_event *event);

sim_link *sim_link_find(sim_world *world, uint32_t node, uint32_t link_id)
{
  for (uint32_t i = 0; i < world->links_end; i++) {
    sim_link *link = &world->links[i];
    if (link->used && link->node == node && link->link_id == link_id) {
      return link;
    }
  }
  return NULL;
}

static sim_link *new_link(sim_world *world)
{
  for (uint32_t i = 0; i < SIM_LINKS_MAX; i++) {
    if (!world->links[i].used) {
      world->links_end = i < world->links_end ? world->links_end : i + 1;
      return &world->links[i];
    }
  }
  sim_fail(world, "SIM", "more than %d links", SIM_LINKS_MAX);
  return NULL;
}

void sim_link_open(sim_world *world, sim_node *node, const kvf_peer_action *action)
{
  sim_link *link = new_link(world);
  if (link == NULL) {
    return;
  }
  const char *name = node->core.peers.transports[action->transport];
  *link = (sim_link){.used = true,
                     .is_tcp = strcmp(name, "tcp") == 0,
                     .link_id = action->link_id,
                     .node = node->index,
                     .peer = action->address.port - sim_address_of(world, 0).port,
                     .session_id = action->welcome->session_id,
                     .incarnation = action->incarnation};
  link->peer_life = sim_engine_of(world, link->peer)->life;
  sim_note(world, node->index, "opens link % to node %, tcp: %", link->link_id, link->peer, link->is_tcp);
  if (action->welcome->regions_count == 0) {
    link->session_id = 0; /* both transports refuse what has no memory */
  }
  sim_push(world, world->now_ns + world->delay_ns + sim_lag(world, SIM_FAULT_DELAY, 4 * SIM_MS), on_link_open,
           node->index, link->link_id, sim_engine_of(world, node->index)->life);
}

/* The link that the event is for, NULL if it is gone. */
static sim_link *link_of(sim_world *world, const sim_event *event)
{
  return sim_engine_of(world, event->a)->life == event->c ? sim_link_find(world, event->a, event->b) : NULL;
}

static kvf_status open_status(sim_world *world, const sim_link *link)
{
  const sim_node *peer = &world->nodes[link->peer];
  kvf_key key;
  if (link->session_id == 0) {
    return KVF_TRANSFER_SETUP;
  }
  if (!peer->is_up ||
      memcmp(&peer->core.context.self.incarnation, &link->incarnation, sizeof(link->incarnation)) != 0) {
    return link->is_tcp ? KVF_PEER_DOWN : KVF_TRANSFER_SETUP;
  }
  if (link->is_tcp && !kvf_sessions_key(&peer->core.sessions, link->session_id, &key)) {
    return KVF_HANDSHAKE_REFUSED;
  }
  return sim_strikes(world, SIM_FAULT_LINK, 4) ? KVF_TRANSFER_SETUP : KVF_OK;
}

static void on_link_open(sim_world *world, const sim_event *event)
{
  sim_link *link = link_of(world, event);
  if (link == NULL || sim_waits(world, event->a / SIM_NODES_EACH, event)) {
    return;
  }
  uint32_t from = event->a / SIM_NODES_EACH;
  uint32_t to = link->peer / SIM_NODES_EACH;
  if (link->is_tcp && (sim_is_blocked(world, from, to) || sim_is_blocked(world, to, from) ||
                       world->engines[to].paused_until_ns > world->now_ns)) {
    sim_push(world, world->now_ns + 10 * SIM_MS, on_link_open, event->a, event->b, event->c);
    return;
  }
  if (sim_strikes(world, SIM_FAULT_LINK, 16)) {
    return; /* stuck in the peer's memory, or the answer is lost: nothing more is heard of it */
  }
  kvf_status status = open_status(world, link);
  sim_node *node = &world->nodes[event->a];
  link->up = status == KVF_OK;
  sim_note(world, node->index, "link %: $", event->b, (uint64_t)(int64_t)status, 0);
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_peers_on_link(&node->core.peers, now_ns, event->b, status);
  sim_node_leave(world, node);
}

static void on_link_down(sim_world *world, const sim_event *event)
{
  sim_link *link = link_of(world, event);
  if (link == NULL || sim_waits(world, event->a / SIM_NODES_EACH, event)) {
    return;
  }
  sim_node *node = &world->nodes[event->a];
  sim_note(world, node->index, "link % is down", event->b, 0, 0);
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_peers_on_link_down(&node->core.peers, now_ns, event->b, KVF_PEER_DOWN);
  sim_node_leave(world, node);
}

void sim_link_break(sim_world *world, sim_link *link, kvf_status status)
{
  (void)status;
  if (link->up) {
    link->up = false;
    sim_push(world, world->now_ns + sim_lag(world, SIM_FAULT_DELAY, LINK_DOWN_NS), on_link_down, link->node,
             link->link_id, sim_engine_of(world, link->node)->life);
  }
}

void sim_link_close(sim_world *world, sim_node *node, uint32_t link_id)
{
  sim_link *link = sim_link_find(world, node->index, link_id);
  sim_note(world, node->index, "closes link %", link_id, 0, 0);
  if (link != NULL) {
    link->used = false;
    sim_reads_cancel_link(world, node->index, link_id);
  }
}

void sim_links_drop_node(sim_world *world, uint32_t node)
{
  for (uint32_t i = 0; i < world->links_end; i++) {
    sim_link *link = &world->links[i];
    if (link->used && link->node == node) {
      link->used = false;
    } else if (link->used && link->peer == node && !sim_engine_of(world, node)->is_silent) {
      sim_link_break(world, link, KVF_PEER_DOWN); /* a watched process, or a reset connection */
    }
  }
}
