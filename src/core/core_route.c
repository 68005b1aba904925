#include "core/core_internal.h"

/* ---- control connections ---- */

kvf_status kvf_core_on_accepted(kvf_core *core, uint64_t now_ns, kvf_address from, uint64_t *conn_id)
{
  kvf_conn *conn;
  kvf_status status = kvf_sessions_accept(&core->sessions, now_ns, from, &conn);
  if (status == KVF_OK) {
    *conn_id = conn->id;
  }
  return status;
}

void kvf_core_on_dialed(kvf_core *core, uint64_t now_ns, uint64_t conn_id, kvf_status status)
{
  kvf_conn *conn = kvf_conns_find(&core->conns, conn_id);
  if (conn != NULL && conn->peer != NULL) {
    kvf_peers_on_dialed(&core->peers, now_ns, conn->peer, status);
  }
}

static void on_peer_frame(kvf_core *core, uint64_t now_ns, kvf_peer *peer, kvf_frame_type type, const uint8_t *body,
                          size_t body_bytes)
{
  if (peer->state != KVF_PEER_READY || type != KVF_FRAME_LEASE_STATES) {
    kvf_peer_on_frame(&core->peers, now_ns, peer, type, body, body_bytes);
    return;
  }
  kvf_peers_answered(&core->peers, peer);
  if (kvf_requests_on_states(&core->requests, now_ns, peer->index, body, body_bytes) != KVF_OK) {
    kvf_peers_on_malformed(&core->peers, now_ns, peer);
  }
}

void kvf_core_on_frame(kvf_core *core, uint64_t now_ns, uint64_t conn_id, kvf_frame_type type, const uint8_t *body,
                       size_t body_bytes)
{
  kvf_conn *conn = kvf_conns_find(&core->conns, conn_id);
  if (conn == NULL) {
    return;
  }
  if (conn->session != NULL) {
    kvf_session_on_frame(&core->sessions, conn->session, now_ns, type, body, body_bytes);
  } else if (conn->peer != NULL) {
    on_peer_frame(core, now_ns, conn->peer, type, body, body_bytes);
  }
}

void kvf_core_on_malformed(kvf_core *core, uint64_t now_ns, uint64_t conn_id)
{
  kvf_conn *conn = kvf_conns_find(&core->conns, conn_id);
  if (conn != NULL && conn->session != NULL) {
    kvf_session_on_malformed(&core->sessions, conn->session, now_ns);
  } else if (conn != NULL && conn->peer != NULL) {
    kvf_peers_on_malformed(&core->peers, now_ns, conn->peer);
  }
}

void kvf_core_on_insecure(kvf_core *core, uint64_t now_ns, uint64_t conn_id, const char *why)
{
  kvf_conn *conn = kvf_conns_find(&core->conns, conn_id);
  if (conn != NULL && conn->session != NULL) {
    kvf_session_on_insecure(&core->sessions, conn->session, now_ns, why);
  } else if (conn != NULL && conn->peer != NULL) {
    kvf_peers_on_insecure(&core->peers, now_ns, conn->peer, why);
  }
}

void kvf_core_on_unread(kvf_core *core, uint64_t now_ns, uint64_t conn_id)
{
  const kvf_conn *conn = kvf_conns_find(&core->conns, conn_id);
  if (conn != NULL && conn->session != NULL) {
    kvf_session_on_unread(&core->sessions, conn->session, now_ns);
  } /* else: a peer that does not read does not answer either, which is found out */
}

void kvf_core_on_closed(kvf_core *core, uint64_t now_ns, uint64_t conn_id)
{
  kvf_conn *conn = kvf_conns_find(&core->conns, conn_id);
  if (conn == NULL) {
    return;
  }
  if (conn->session != NULL) {
    kvf_session_on_closed(&core->sessions, conn->session, now_ns);
  } else if (conn->peer != NULL) {
    kvf_peer_on_closed(&core->peers, now_ns, conn->peer);
  }
  kvf_conns_drop(&core->conns, conn);
}

size_t kvf_core_frame_limit(kvf_core *core, uint64_t conn_id)
{
  kvf_conn *conn = kvf_conns_find(&core->conns, conn_id);
  bool trusted = false;
  if (conn != NULL && conn->session != NULL) {
    trusted = kvf_session_is_trusted(conn->session);
  } else if (conn != NULL && conn->peer != NULL) {
    trusted = kvf_peer_is_trusted(conn->peer);
  }
  return trusted ? KVF_FRAME_BODY_BYTES_MAX : KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX;
}

void kvf_core_take_output(kvf_core *core, void (*take)(void *context, const kvf_core_output *output), void *context)
{
  kvf_conn *conn;
  while ((conn = kvf_conns_next_output(&core->conns)) != NULL) {
    kvf_core_output output = {
        .conn_id = conn->id, .data = conn->outbox.data, .bytes = conn->outbox.bytes, .hang_up = conn->hanging_up};
    take(context, &output);
    if (conn->hanging_up) {
      kvf_conns_drop(&core->conns, conn);
    } else {
      kvf_outbox_clear(&conn->outbox);
    }
  }
}

bool kvf_core_has_output(const kvf_core *core)
{
  return !kvf_list_is_empty(&core->conns.output);
}

/* ---- what the machines say to each other, and to the runtime ---- */

static void route_notice(kvf_core *core, uint64_t now_ns, const kvf_peer_notice *notice)
{
  switch (notice->kind) {
    case KVF_PEER_PATH:
      kvf_loads_on_path(core->loads, now_ns, notice->peer, notice->path, notice->status);
      break;
    case KVF_PEER_PATH_DOWN:
      kvf_loads_on_path_down(core->loads, now_ns, notice->peer, notice->path);
      break;
    case KVF_PEER_OPENED:
      kvf_requests_on_open(&core->requests, now_ns, notice->peer);
      break;
    case KVF_PEER_NOT_OPENED:
      kvf_requests_on_not_open(&core->requests, notice->peer);
      break;
    case KVF_PEER_PONG:
      kvf_loads_on_pong(core->loads, notice->peer);
      break;
  }
}

/* Whether `out` is for the runtime; if not it has been routed. */
static bool route_load_action(kvf_core *core, uint64_t now_ns, kvf_effect *out)
{
  const kvf_load_action *action = &out->read;
  switch (action->kind) {
    case KVF_LOAD_READ:
      out->kind = KVF_EFFECT_READ;
      return true;
    case KVF_LOAD_CANCEL:
      out->kind = KVF_EFFECT_CANCEL;
      return true;
    case KVF_LOAD_WANT_PATH:
      kvf_peers_want_path(&core->peers, now_ns, action->peer);
      return false;
    case KVF_LOAD_PING:
      kvf_peers_ping(&core->peers, now_ns, action->peer);
      return false;
    case KVF_LOAD_PATH_STALLED:
      kvf_peers_path_stalled(&core->peers, now_ns, action->path, action->silent);
      break;
  }
  return false;
}

bool kvf_core_next_effect(kvf_core *core, uint64_t now_ns, kvf_effect *out)
{
  kvf_peer_notice notice;
  for (;;) {
    if (kvf_lease_table_next_store(&core->leases, &out->store)) {
      out->kind = KVF_EFFECT_STORE;
      return true;
    }
    if (kvf_peers_next_notice(&core->peers, &notice)) {
      route_notice(core, now_ns, &notice);
    } else if (kvf_loads_next_action(core->loads, now_ns, &out->read)) {
      if (route_load_action(core, now_ns, out)) {
        return true;
      }
    } else if (kvf_peers_next_action(&core->peers, now_ns, &out->link)) {
      out->kind = out->link.kind == KVF_PEER_DIAL        ? KVF_EFFECT_DIAL
                  : out->link.kind == KVF_PEER_OPEN_LINK ? KVF_EFFECT_OPEN_LINK
                                                         : KVF_EFFECT_CLOSE_LINK;
      return true;
    } else if (!kvf_core_take_load_event(core, now_ns)) {
      return false;
    }
  }
}

void kvf_core_on_stored(kvf_core *core, const kvf_lease_store *store)
{
  kvf_lease_table_stored(&core->leases, store->slot, store->entry.word);
}

void kvf_core_on_link(kvf_core *core, uint64_t now_ns, uint32_t path, kvf_status status)
{
  kvf_peers_on_link(&core->peers, now_ns, path, status);
}

void kvf_core_on_link_malformed(kvf_core *core, uint64_t now_ns, uint32_t path)
{
  kvf_peers_on_link_malformed(&core->peers, now_ns, path);
}

void kvf_core_on_link_down(kvf_core *core, uint64_t now_ns, uint32_t path, kvf_status status)
{
  kvf_peers_on_link_down(&core->peers, now_ns, path, status);
}

void kvf_core_on_read_done(kvf_core *core, uint64_t now_ns, uint64_t read_id, kvf_status status,
                           const kvf_fence_sample *sample, uint64_t bytes)
{
  kvf_loads_on_read_done(core->loads, now_ns, read_id, status, sample, bytes);
}

void kvf_core_on_read_verified(kvf_core *core, uint64_t read_id, uint32_t items)
{
  kvf_loads_on_read_verified(core->loads, read_id, items);
}

void kvf_core_on_read_progress(kvf_core *core, uint64_t now_ns, uint64_t read_id)
{
  kvf_loads_on_read_progress(core->loads, now_ns, read_id);
}
