/* Control connections: two byte streams each, with delay, pieces, resets, silence; frames are cut out of them as the
 * runtime does. */
#include <string.h>

#include "../allocation.h"
#include "world.h"

#define FIRST_PORT 1000
#define DIAL_AGAIN_NS (20 * SIM_MS)

static void on_arrival(sim_world *world, const sim_event *event);
static void on_dial(sim_world *world, const sim_event *event);
static void on_accept(sim_world *world, const sim_event *event);
static void on_reset(sim_world *world, const sim_event *event);

kvf_address sim_address_of(const sim_world *world, uint32_t node)
{
  kvf_address address = {.port = (uint16_t)(FIRST_PORT + node)};
  address.ip[10] = 0xff;
  address.ip[11] = 0xff;
  address.ip[12] = world->has_key ? 10 : 127;
  address.ip[15] = 1;
  return address;
}

bool sim_is_blocked(const sim_world *world, uint32_t from_engine, uint32_t to_engine)
{
  return from_engine < SIM_ENGINES_MAX && to_engine < SIM_ENGINES_MAX &&
         world->blocked_until_ns[from_engine][to_engine] > world->now_ns;
}

/* Of SIM_ENGINES_MAX: a stranger. */
static uint32_t engine_at(const sim_end *end)
{
  return end->node == SIM_NOBODY ? SIM_ENGINES_MAX : end->node / SIM_NODES_EACH;
}

/* When a message that leaves now arrives; late enough if the way is blocked. */
static uint64_t arrival_ns(sim_world *world, const sim_conn *conn, uint32_t to)
{
  uint64_t at_ns = world->now_ns + world->delay_ns + sim_lag(world, SIM_FAULT_DELAY, 4 * SIM_MS);
  uint32_t from_engine = engine_at(&conn->end[1 - to]);
  uint32_t to_engine = engine_at(&conn->end[to]);
  if (from_engine < SIM_ENGINES_MAX && to_engine < SIM_ENGINES_MAX &&
      world->blocked_until_ns[from_engine][to_engine] > at_ns) {
    at_ns = world->blocked_until_ns[from_engine][to_engine];
  }
  return at_ns;
}

/* ---- connections ---- */

sim_conn *sim_conn_new(sim_world *world)
{
  for (uint32_t i = 0; i < SIM_CONNS_MAX; i++) {
    sim_conn *conn = &world->conns[i];
    if (!conn->used) {
      uint32_t serial = conn->serial + 1;
      conn->used = true;
      conn->connecting = true;
      conn->silent = false;
      conn->serial = serial;
      conn->stranger = SIM_STRANGER_NONE;
      conn->said = 0;
      for (uint32_t end = 0; end < 2; end++) {
        conn->end[end] = (sim_end){.node = SIM_NOBODY};
        conn->pipe[end].bytes = 0;
        conn->pipe[end].arrived = 0;
        conn->pipe[end].scheduled = false;
        conn->pipe[end].fin = false;
      }
      world->conns_end = i < world->conns_end ? world->conns_end : i + 1;
      return conn;
    }
  }
  sim_fail(world, "SIM", "more than %d connections", SIM_CONNS_MAX);
  return NULL;
}

static void push_conn(sim_world *world, uint64_t at_ns, sim_event_fn fn, const sim_conn *conn, uint32_t end)
{
  sim_push(world, at_ns, fn, (uint32_t)(conn - world->conns), end, conn->serial);
}

/* NULL if the connection that the event is for is gone. */
static sim_conn *conn_of(sim_world *world, const sim_event *event)
{
  sim_conn *conn = &world->conns[event->a];
  return conn->used && conn->serial == event->c ? conn : NULL;
}

static void free_if_closed(sim_conn *conn)
{
  if (!conn->end[0].open && !conn->end[1].open) {
    conn->used = false;
  }
}

/* The node at this end, if it still lives the life in which it had the connection. */
static sim_node *node_at(sim_world *world, const sim_end *end)
{
  if (!end->open || end->node == SIM_NOBODY || !world->nodes[end->node].is_up ||
      sim_engine_of(world, end->node)->life != end->life) {
    return NULL;
  }
  return &world->nodes[end->node];
}

/* The node's own end closes; what it has sent still arrives, or the other side is reset. */
void sim_conn_close_end(sim_world *world, sim_conn *conn, uint32_t end)
{
  sim_pipe *pipe = &conn->pipe[1 - end];
  conn->end[end].open = false;
  if (conn->connecting) {
    conn->end[1 - end].open = false;
  } else if (conn->end[1 - end].open && !conn->silent) {
    if (sim_strikes(world, SIM_FAULT_RESET, 4)) {
      pipe->bytes = pipe->arrived;
    }
    pipe->fin = true;
    if (!pipe->scheduled) {
      pipe->scheduled = true;
      push_conn(world, arrival_ns(world, conn, 1 - end), on_arrival, conn, 1 - end);
    }
  }
  free_if_closed(conn);
}

/* The end hears that the connection is gone. */
static void tell_closed(sim_world *world, sim_conn *conn, uint32_t end)
{
  sim_node *node = node_at(world, &conn->end[end]);
  uint64_t conn_id = conn->end[end].conn_id;
  conn->end[end].open = false;
  free_if_closed(conn);
  if (node != NULL) {
    sim_note(world, node->index, "connection % is closed", conn_id, 0, 0);
    uint64_t now_ns = sim_node_enter(world, node);
    kvf_core_on_closed(&node->core, now_ns, conn_id);
    sim_node_leave(world, node);
  }
}

static void on_reset(sim_world *world, const sim_event *event)
{
  sim_conn *conn = conn_of(world, event);
  if (conn != NULL && conn->end[event->b].open && !sim_waits(world, engine_at(&conn->end[event->b]), event)) {
    tell_closed(world, conn, event->b);
  }
}

/* Its own bytes wait, and no more are taken. */
static void on_unread(sim_world *world, const sim_event *event)
{
  sim_conn *conn = conn_of(world, event);
  sim_node *node = conn == NULL ? NULL : node_at(world, &conn->end[event->b]);
  if (node != NULL) {
    uint64_t now_ns = sim_node_enter(world, node);
    kvf_core_on_unread(&node->core, now_ns, conn->end[event->b].conn_id);
    sim_node_leave(world, node);
  }
}

void sim_conn_reset(sim_world *world, sim_conn *conn)
{
  for (uint32_t end = 0; end < 2; end++) {
    if (conn->end[end].open) {
      push_conn(world, arrival_ns(world, conn, end), on_reset, conn, end);
    }
  }
}

void sim_net_drop_node(sim_world *world, uint32_t node, bool silent)
{
  for (uint32_t i = 0; i < world->conns_end; i++) {
    sim_conn *conn = &world->conns[i];
    for (uint32_t end = 0; conn->used && end < 2; end++) {
      if (conn->end[end].node != node || !conn->end[end].open) {
        continue;
      }
      conn->end[end].open = false;
      conn->silent = silent;
      if (conn->connecting) {
        conn->end[1 - end].open = false;
      } else if (conn->end[1 - end].open && !silent) {
        push_conn(world, arrival_ns(world, conn, 1 - end), on_reset, conn, 1 - end);
      }
      free_if_closed(conn);
    }
  }
}

/* ---- dialing ---- */

void sim_conn_connect(sim_world *world, sim_conn *conn)
{
  push_conn(world, arrival_ns(world, conn, 1), on_dial, conn, 0);
}

void sim_dial(sim_world *world, sim_node *node, const kvf_peer_action *action)
{
  uint32_t target = (uint32_t)action->address.port - FIRST_PORT;
  kvf_address address = sim_address_of(world, target);
  sim_note(world, node->index, "dials port %, connection %", action->address.port, action->conn_id, 0);
  if (target >= SIM_NODES_MAX || memcmp(address.ip, action->address.ip, sizeof(address.ip)) != 0) {
    sim_fail(world, "P8", "node %u dials an address that no genuine ticket names, port %u", node->index,
             action->address.port);
    return;
  }
  sim_conn *conn = sim_conn_new(world);
  if (conn != NULL) {
    conn->end[0] = (sim_end){
        .node = node->index, .life = sim_engine_of(world, node->index)->life, .open = true, .conn_id = action->conn_id};
    conn->end[1].node = target;
    sim_conn_connect(world, conn);
  }
}

static void tell_dialed(sim_world *world, sim_conn *conn, kvf_status status)
{
  sim_node *node = node_at(world, &conn->end[0]);
  if (status == KVF_OK) {
    conn->connecting = false;
  }
  if (node == NULL) {
    return; /* a stranger, who need not be told */
  }
  sim_note(world, node->index, "connection % is dialed: $", conn->end[0].conn_id, (uint64_t)(int64_t)status, 0);
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_core_on_dialed(&node->core, now_ns, conn->end[0].conn_id, status);
  sim_node_leave(world, node); /* a failed one is hung up on by the core, which frees it */
}

static void on_dial(sim_world *world, const sim_event *event)
{
  sim_conn *conn = conn_of(world, event);
  if (conn == NULL || !conn->connecting || !conn->end[0].open) {
    return;
  }
  uint32_t from = engine_at(&conn->end[0]);
  uint32_t target = conn->end[1].node;
  const sim_engine *engine = sim_engine_of(world, target);
  if (from < SIM_ENGINES_MAX && sim_waits(world, from, event)) {
    return;
  }
  if (sim_is_blocked(world, from, engine->index) || sim_is_blocked(world, engine->index, from) ||
      (engine->is_silent && !world->nodes[target].is_up)) {
    push_conn(world, world->now_ns + DIAL_AGAIN_NS, on_dial, conn, 0);
    return;
  }
  if (!world->nodes[target].is_up && conn->end[0].node != SIM_NOBODY && sim_strikes(world, SIM_FAULT_STRANGER, 3)) {
    conn->stranger = SIM_STRANGER_IMPOSTOR; /* another process has its port */
    conn->end[1] = (sim_end){.node = SIM_NOBODY, .open = true};
    tell_dialed(world, conn, KVF_OK);
    return;
  }
  if (!world->nodes[target].is_up || !world->nodes[target].is_rank || sim_strikes(world, SIM_FAULT_RESET, 8)) {
    if (conn->end[0].node == SIM_NOBODY) {
      conn->end[0].open = false;
      free_if_closed(conn);
    } else {
      tell_dialed(world, conn, sim_strikes(world, SIM_FAULT_ALLOCATION, 4) ? KVF_NO_MEMORY : KVF_PEER_DOWN);
    }
    return;
  }
  conn->end[1].life = engine->life;
  conn->end[1].open = true;
  push_conn(world, world->now_ns, on_accept, conn, 1);
  tell_dialed(world, conn, KVF_OK);
}

static void on_accept(sim_world *world, const sim_event *event)
{
  sim_conn *conn = conn_of(world, event);
  sim_node *node = conn == NULL ? NULL : node_at(world, &conn->end[1]);
  if (node == NULL || sim_waits(world, node->index / SIM_NODES_EACH, event)) {
    return;
  }
  const kvf_address from = {.ip = {[0] = (uint8_t)engine_at(&conn->end[0])}, .port = (uint16_t)(1 + event->a)};
  uint64_t conn_id = 0;
  sim_stranger_before(world, node);
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_status status = kvf_core_on_accepted(&node->core, now_ns, from, &conn_id);
  conn->end[1].conn_id = conn_id;
  sim_node_leave(world, node);
  sim_stranger_after(world, node);
  const kvf_sessions *sessions = &node->core.sessions;
  if (HASH_CNT(by_id, sessions->by_id) > world->config.connections_max ||
      sessions->unproven.count > world->config.connections_max / KVF_SESSIONS_UNPROVEN_SHARE + 1) {
    sim_fail(world, "P6", "node %u holds more connections than it may", node->index);
  }
  sim_note(world, node->index, "accepts connection %: $", conn_id, (uint64_t)(int64_t)status, 0);
  if (status != KVF_OK) {
    sim_conn_close_end(world, conn, 1);
  } else if (conn->stranger != SIM_STRANGER_NONE) {
    sim_stranger_hear(world, conn);
  }
}

/* ---- bytes ---- */

void sim_conn_send(sim_world *world, sim_conn *conn, uint32_t to, const uint8_t *data, uint32_t bytes)
{
  sim_pipe *pipe = &conn->pipe[to];
  if (bytes == 0) {
    return;
  }
  if (conn->silent || !conn->end[to].open) {
    /* Nobody is there: a host that is back, or has never gone, says so. */
    if (!conn->silent || world->healed) {
      push_conn(world, arrival_ns(world, conn, 1 - to), on_reset, conn, 1 - to);
    }
    return;
  }
  uint32_t most = sim_may(world, SIM_FAULT_TABLES) ? SIM_PIPE_BYTES / 8 : SIM_PIPE_BYTES;
  if (bytes > most || pipe->bytes > most - bytes) {
    sim_conn_reset(world, conn); /* as the runtime does with who does not read */
    push_conn(world, world->now_ns, on_unread, conn, 1 - to);
    return;
  }
  memcpy(pipe->data + pipe->bytes, data, bytes);
  sim_stranger_overhear(world, conn, to, pipe->data + pipe->bytes, bytes);
  pipe->bytes += bytes;
  if (!pipe->scheduled) {
    pipe->scheduled = true;
    push_conn(world, arrival_ns(world, conn, to), on_arrival, conn, to);
  }
}

static sim_conn *find(sim_world *world, uint32_t node, uint64_t conn_id, uint32_t *end)
{
  for (uint32_t i = 0; i < world->conns_end; i++) {
    sim_conn *conn = &world->conns[i];
    for (*end = 0; conn->used && *end < 2; (*end)++) {
      if (conn->end[*end].open && conn->end[*end].node == node && conn->end[*end].conn_id == conn_id) {
        return conn;
      }
    }
  }
  return NULL;
}

void sim_take_output(void *context, const kvf_core_output *output)
{
  const sim_output_context *out = context;
  uint32_t end;
  sim_conn *conn = find(out->world, out->node->index, output->conn_id, &end);
  if (conn == NULL) {
    return; /* closed in the meantime */
  }
  sim_conn_send(out->world, conn, 1 - end, output->data, (uint32_t)output->bytes);
  if (output->hang_up) {
    sim_note(out->world, out->node->index, "hangs up connection %", output->conn_id, 0, 0);
    sim_conn_close_end(out->world, conn, end);
  }
}

/* Gives the core one frame of what has arrived; false if there is no whole one. */
static bool take_frame(sim_world *world, sim_conn *conn, uint32_t end, sim_node *node)
{
  sim_pipe *pipe = &conn->pipe[end];
  uint64_t conn_id = conn->end[end].conn_id;
  kvf_frame_header header;
  if (pipe->arrived < KVF_FRAME_HEADER_BYTES) {
    return false;
  }
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_core_on_heard(&node->core, conn_id);
  uint32_t limit = (uint32_t)kvf_core_frame_limit(&node->core, conn_id);
  if (kvf_frame_header_decode(pipe->data, limit, &header) != KVF_OK) {
    sim_note(world, node->index, "cannot read what came on connection %", conn_id, 0, 0);
    kvf_core_on_malformed(&node->core, now_ns, conn_id);
    pipe->arrived = 0;
    pipe->bytes = 0;
    sim_node_leave(world, node);
    return false;
  }
  uint32_t whole = KVF_FRAME_HEADER_BYTES + header.body_bytes;
  if (pipe->arrived < whole) {
    allocation_spare(true);
    return false;
  }
  static uint8_t body[SIM_PIPE_BYTES];
  memcpy(body, pipe->data + KVF_FRAME_HEADER_BYTES, header.body_bytes);
  sim_watch_before(world, node, conn_id, header.type, body, header.body_bytes);
  sim_note(world, node->index, "gets frame % of % bytes on connection %", header.type, header.body_bytes, conn_id);
  kvf_core_on_frame(&node->core, now_ns, conn_id, header.type, body, header.body_bytes);
  pipe->arrived -= whole;
  pipe->bytes -= whole;
  memmove(pipe->data, pipe->data + whole, pipe->bytes);
  sim_node_leave(world, node);
  sim_watch_after(world, conn, node, header.type, body, header.body_bytes);
  return true;
}

static void take_frames(sim_world *world, sim_conn *conn, uint32_t end, sim_node *node)
{
  uint32_t serial = conn->serial;
  bool is_stranger = conn->end[0].node == SIM_NOBODY;
  bool more = true;
  while (more && !world->failed && conn->used && conn->serial == serial && conn->end[end].open) {
    if (is_stranger) {
      sim_stranger_before(world, node);
    }
    more = take_frame(world, conn, end, node);
    if (is_stranger) {
      sim_stranger_after(world, node);
    }
  }
}

static void on_arrival(sim_world *world, const sim_event *event)
{
  sim_conn *conn = conn_of(world, event);
  uint32_t end = event->b;
  if (conn == NULL || !conn->end[end].open) {
    return;
  }
  sim_pipe *pipe = &conn->pipe[end];
  uint32_t engine = engine_at(&conn->end[end]);
  if ((engine < SIM_ENGINES_MAX && sim_waits(world, engine, event))) {
    return;
  }
  if (sim_is_blocked(world, engine_at(&conn->end[1 - end]), engine)) {
    push_conn(world, arrival_ns(world, conn, end), on_arrival, conn, end);
    return;
  }
  uint32_t piece = pipe->bytes - pipe->arrived;
  if (piece > 1 && sim_strikes(world, SIM_FAULT_PARTIAL, 3)) {
    piece = 1 + sim_choose(&world->tape, piece > 256 ? 256 : piece);
  }
  pipe->arrived += piece;
  sim_node *node = node_at(world, &conn->end[end]);
  uint32_t serial = conn->serial;
  if (node != NULL) {
    take_frames(world, conn, end, node);
  } else if (conn->end[end].node == SIM_NOBODY) {
    pipe->arrived = 0;
    pipe->bytes -= piece;
    sim_stranger_hear(world, conn);
  }
  if (!conn->used || conn->serial != serial || !conn->end[end].open) {
    return;
  }
  pipe->scheduled = pipe->arrived < pipe->bytes || pipe->fin;
  if (pipe->arrived < pipe->bytes) {
    push_conn(world, arrival_ns(world, conn, end), on_arrival, conn, end);
  } else if (pipe->fin) {
    tell_closed(world, conn, end);
  }
}
