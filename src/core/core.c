#include "core/core.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "base/options.h"
#include "core/core_load.h"

/* Timers of one kind that one tick looks at. */
#define TICK_ITEMS_MAX 1024
/* Of a load that is cut for several readers: a chunk takes as long as to wake another thread on both sides. */
#define SPREAD_BYTES (256u << 10)

static kvf_status init_self(kvf_core *core, const kvf_core_config *config)
{
  kvf_self *self = &core->self;
  char tokens[16];
  self->config = config->options;
  self->incarnation = config->incarnation;
  self->key = config->key;
  self->other_key = config->other_key;
  self->logger = config->logger;
  kvf_log_limit_init(&self->log_limit, KVF_LOG_LINES_PER_S);
  memcpy(self->entropy.secret, config->secret, sizeof(self->entropy.secret));
  self->welcome.rank = config->options.rank;
  self->welcome.ranks = config->options.ranks;
  self->welcome.block_tokens = config->options.block_tokens;
  (void)snprintf(tokens, sizeof(tokens), "%u", config->options.block_tokens);
  kvf_status status = kvf_config_identity(&self->config, "block_tokens", tokens);
  return status == KVF_OK ? kvf_self_compat(&self->config, self->compat) : status;
}

static kvf_status init_loads(kvf_core *core, uint64_t now_ns, uint64_t seed)
{
  const kvf_config *options = &core->self.config;
  uint32_t readers = options->tcp_streams > options->copy_threads ? options->tcp_streams : options->copy_threads;
  readers = readers < options->chunks_in_flight ? readers : options->chunks_in_flight;
  uint32_t spread_bytes = options->inline_bytes > SPREAD_BYTES ? options->inline_bytes : SPREAD_BYTES;
  kvf_loads_config config = {.loads_max = options->loads_max,
                             .stall_timeout_ns = kvf_ms_to_ns(options->stall_timeout_ms),
                             .quiet_timeout_ns = kvf_ms_to_ns(options->quiet_timeout_ms),
                             .backoff_min_ns = kvf_ms_to_ns(options->backoff_min_ms),
                             .backoff_max_ns = kvf_ms_to_ns(options->backoff_max_ms),
                             .chunk_bytes = options->chunk_bytes,
                             .readers = readers,
                             .spread_bytes = spread_bytes,
                             .chunks_in_flight = options->chunks_in_flight,
                             .inline_bytes = options->inline_bytes,
                             .sums = options->checksum == KVF_ON,
                             .seed = seed};
  return kvf_loads_create(&config, now_ns, &core->loads);
}

static kvf_status init_leases(kvf_core *core, uint64_t now_ns, uint64_t first_id)
{
  const kvf_config *options = &core->self.config;
  kvf_lease_table_config config = {.slots = options->lease_slots,
                                   .ttl_ns = kvf_ms_to_ns(options->lease_ttl_ms),
                                   .lease_max_ns = kvf_ms_to_ns(options->lease_max_ms),
                                   .sums = options->checksum == KVF_ON};
  kvf_status status = kvf_lease_table_init(&core->leases, &config, now_ns);
  if (status != KVF_OK) {
    return status;
  }
  status = kvf_lease_slots_init(&core->slots, options->lease_slots, first_id, options->lease_pool_share_percent);
  if (status != KVF_OK) {
    kvf_lease_table_free(&core->leases);
  }
  return status;
}

/* The transports of the option `transports`, in its order. */
static void list_transports(kvf_core *core)
{
  char names[sizeof(core->self.config.transports)];
  char *rest = names;
  (void)snprintf(names, sizeof(names), "%s", core->self.config.transports);
  for (char *name = strtok_r(rest, ", ", &rest); name != NULL && core->peers.transports_count < KVF_TRANSPORTS_MAX;
       name = strtok_r(NULL, ", ", &rest)) {
    char *slot = core->peers.transports[core->peers.transports_count++];
    (void)snprintf(slot, KVF_TRANSPORT_NAME_BYTES, "%s", name);
  }
}

void kvf_core_leave_out_transport(kvf_core *core, uint32_t i)
{
  kvf_peers *peers = &core->peers;
  assert(i < peers->transports_count);
  peers->transports_count--;
  memmove(peers->transports[i], peers->transports[i + 1], (peers->transports_count - i) * sizeof(peers->transports[0]));
}

kvf_status kvf_core_init(kvf_core *core, const kvf_core_config *config, uint64_t now_ns)
{
  memset(core, 0, sizeof(*core));
  uint64_t first_id = 0;
  uint64_t seeds[2] = {0};
  kvf_status status = init_self(core, config);
  if (status == KVF_OK) {
    status = kvf_entropy_draw(&core->self.entropy, &first_id, sizeof(first_id));
  }
  if (status == KVF_OK) {
    status = kvf_entropy_draw(&core->self.entropy, seeds, sizeof(seeds));
  }
  if (status != KVF_OK) {
    return status;
  }
  /* Random, so that a restarted control node does not use its predecessor's ids; small enough that ids never run out.
   */
  status = init_leases(core, now_ns, first_id >> 3);
  if (status != KVF_OK) {
    return status;
  }
  kvf_wheel_init(&core->wheel, now_ns);
  kvf_list_init(&core->load_events);
  kvf_conns_init(&core->conns);
  kvf_sessions_init(&core->sessions, &core->self, &core->conns, &core->leases, &core->wheel);
  status = kvf_peers_init(&core->peers, &core->self, &core->conns, &core->wheel);
  core->peers.is_control = config->is_control;
  kvf_known_init(&core->known, &core->peers, &core->wheel);
  list_transports(core);
  if (status == KVF_OK) {
    status = kvf_requests_init(&core->requests, &core->self, &core->conns, &core->peers, &core->wheel, seeds[0]);
  }
  if (status == KVF_OK) {
    status = init_loads(core, now_ns, seeds[1]);
  }
  if (status != KVF_OK) {
    kvf_core_free(core);
  }
  return status;
}

kvf_status kvf_core_add_known(kvf_core *core, const kvf_address *address)
{
  return kvf_known_add(&core->known, address);
}

void kvf_core_start(kvf_core *core, uint64_t now_ns)
{
  if (core->peers.is_control || core->has_memory) {
    kvf_known_start(&core->known, now_ns);
  }
}

static void free_named(kvf_core *core)
{
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    free(core->named[group]);
    core->named[group] = NULL;
  }
}

void kvf_core_free(kvf_core *core)
{
  kvf_core_load *load;
  kvf_core_load *next;
  kvf_loads_destroy(core->loads);
  free_named(core);
  HASH_ITER(by_id, core->open_loads, load, next)
  {
    load->peers_count = 0; /* they are freed below */
    kvf_core_load_free(core, load);
  }
  kvf_requests_free(&core->requests);
  kvf_peers_free(&core->peers);
  kvf_sessions_free(&core->sessions);
  kvf_conns_free(&core->conns);
  kvf_lease_slots_free(&core->slots);
  kvf_lease_table_free(&core->leases);
  kvf_welcome_free(&core->self.welcome);
  kvf_forget(&core->self.key, sizeof(core->self.key));
  kvf_forget(&core->self.other_key, sizeof(core->self.other_key));
  kvf_forget(&core->self.entropy, sizeof(core->self.entropy));
}

/* ---- memory and engine ---- */

/* What the core has to know of the regions: for each group, how large a head and how many blocks. */
static kvf_status measure_groups(kvf_core *core, const kvf_region *regions, uint32_t count)
{
  core->groups = 0;
  core->heads_total = regions[0].heads_total;
  memset(core->head_bytes, 0, sizeof(core->head_bytes));
  for (uint32_t i = 0; i < count; i++) {
    uint32_t group = regions[i].group;
    bool first = core->head_bytes[group] == 0;
    core->head_bytes[group] += regions[i].block_bytes / regions[i].heads;
    core->group_blocks[group] =
        first || regions[i].blocks < core->group_blocks[group] ? regions[i].blocks : core->group_blocks[group];
    core->groups = group + 1 > core->groups ? group + 1 : core->groups;
  }
  for (uint32_t group = 0; group < core->groups; group++) {
    core->named[group] = calloc(kvf_bitmap_words(core->group_blocks[group]), sizeof(uint64_t));
    if (core->named[group] == NULL) {
      free_named(core);
      return KVF_NO_MEMORY;
    }
  }
  return KVF_OK;
}

kvf_status kvf_core_set_memory(kvf_core *core, const kvf_region *regions, uint32_t count, kvf_welcome *welcome)
{
  if (core->had_memory) {
    return KVF_EXISTS;
  }
  kvf_status status = measure_groups(core, regions, count);
  if (status != KVF_OK) {
    return status;
  }
  kvf_welcome_free(&core->self.welcome);
  core->self.welcome = *welcome;
  core->has_memory = true;
  core->had_memory = true;
  kvf_sessions_end_readers(&core->sessions); /* they were told that there is none */
  return KVF_OK;
}

static void give_up_all(kvf_core *core)
{
  kvf_core_load *load;
  kvf_core_load *next;
  HASH_ITER(by_id, core->open_loads, load, next)
  {
    kvf_core_load_give_up(core, load);
  }
}

bool kvf_core_clear_memory(kvf_core *core, uint64_t now_ns)
{
  if (core->has_memory) {
    kvf_known_stop(&core->known, now_ns);
    kvf_lease_table_end_all(&core->leases, now_ns);
    give_up_all(core);
    kvf_loads_abort_all(core->loads, now_ns);
  }
  if (HASH_CNT(by_id, core->open_loads) > 0) { /* until its quiet has been taken a load's blocks are the library's */
    return false;
  }
  core->has_memory = false;
  kvf_welcome_free(&core->self.welcome);
  core->self.welcome.regions_count = 0;
  core->self.welcome.transports_count = 0;
  return true;
}

kvf_status kvf_core_set_ranks(kvf_core *core, const kvf_rank_record *records, uint32_t count)
{
  kvf_rank_record sorted[KVF_RANKS_MAX];
  uint64_t seen = 0;
  if (count != core->self.config.ranks) {
    return KVF_INVALID;
  }
  for (uint32_t i = 0; i < count; i++) {
    if (records[i].rank >= count || (seen & (UINT64_C(1) << records[i].rank)) != 0) {
      return KVF_INVALID;
    }
    seen |= UINT64_C(1) << records[i].rank;
    sorted[records[i].rank] = records[i];
  }
  memcpy(core->engine, sorted, count * sizeof(sorted[0]));
  core->engine_ranks = count;
  return KVF_OK;
}

/* ---- producer ---- */

kvf_status kvf_core_lease_reserve(kvf_core *core, uint32_t blocks, uint64_t pool_blocks, kvf_lease *out)
{
  uint8_t token[KVF_LEASE_TOKEN_BYTES];
  kvf_status status = kvf_entropy_draw(&core->self.entropy, token, sizeof(token));
  return status == KVF_OK ? kvf_lease_slots_reserve(&core->slots, blocks, pool_blocks, token, out) : status;
}

kvf_status kvf_core_ticket(const kvf_core *core, const kvf_lease *lease, const kvf_blocks *blocks,
                           const kvf_prompt *prompt, kvf_ticket *out)
{
  if (core->engine_ranks == 0 || blocks->groups == 0 || prompt->tokens == 0) {
    return KVF_INVALID;
  }
  if (blocks->groups > KVF_GROUPS_MAX) {
    return KVF_LIMIT;
  }
  memset(out, 0, sizeof(*out));
  out->ranks = core->engine_ranks;
  memcpy(out->rank, core->engine, core->engine_ranks * sizeof(out->rank[0]));
  out->lease = *lease;
  out->prompt = *prompt;
  out->block_tokens = core->self.config.block_tokens;
  out->ttl_ms = core->self.config.lease_ttl_ms;
  memcpy(out->compat, core->self.compat, sizeof(out->compat));
  out->groups = blocks->groups;
  memcpy(out->counts, blocks->counts, blocks->groups * sizeof(out->counts[0]));
  union {
    const uint32_t *borrowed;
    uint32_t *ids;
  } ids = {.borrowed = blocks->ids}; /* encoding only reads them */
  out->ids = ids.ids;
  return KVF_OK;
}

static kvf_status check_blocks(const kvf_core *core, const kvf_blocks *blocks)
{
  size_t next = 0;
  if (!core->has_memory || blocks->groups == 0 || blocks->groups > core->groups) {
    return KVF_INVALID;
  }
  for (uint32_t group = 0; group < blocks->groups; group++) {
    for (uint32_t i = 0; i < blocks->counts[group]; i++, next++) {
      if (next >= KVF_BLOCKS_PER_LEASE_MAX) {
        return KVF_LIMIT;
      }
      if (blocks->ids[next] != KVF_BLOCK_NONE && blocks->ids[next] >= core->group_blocks[group]) {
        return KVF_INVALID;
      }
    }
  }
  return KVF_OK;
}

kvf_status kvf_core_publish(kvf_core *core, uint64_t now_ns, const kvf_lease *lease, const kvf_blocks *blocks,
                            uint64_t digest, uint64_t user)
{
  kvf_status status = check_blocks(core, blocks);
  return status == KVF_OK ? kvf_lease_table_publish(&core->leases, now_ns, lease, blocks, digest, user) : status;
}

kvf_status kvf_core_lease_end(kvf_core *core, uint64_t now_ns, const kvf_lease *lease)
{
  /* A control node has published nothing, and has no fence table to store to. */
  return core->peers.is_control ? KVF_NOT_FOUND : kvf_lease_table_end(&core->leases, now_ns, lease);
}

/* ---- time and events ---- */

void kvf_core_tick(kvf_core *core, uint64_t now_ns)
{
  uint32_t work = TICK_ITEMS_MAX;
  kvf_timer *timer;
  while ((timer = kvf_wheel_expire(&core->wheel, now_ns, &work)) != NULL) {
    switch (timer->kind) {
      case KVF_TIMER_SESSION:
        kvf_session_on_timer(&core->sessions, KVF_CONTAINER_OF(timer, kvf_session, timer), now_ns);
        break;
      case KVF_TIMER_PEER:
        kvf_peer_on_timer(&core->peers, now_ns, KVF_CONTAINER_OF(timer, kvf_peer, timer));
        break;
      case KVF_TIMER_KNOWN:
        kvf_known_on_timer(&core->known, now_ns);
        break;
      case KVF_TIMER_LOAD:
        kvf_core_load_on_timer(core, KVF_CONTAINER_OF(timer, kvf_core_load, timer));
        break;
      default:
        kvf_requests_on_timer(&core->requests, now_ns, KVF_CONTAINER_OF(timer, kvf_request, timer));
        break;
    }
  }
  kvf_lease_table_tick(&core->leases, now_ns, TICK_ITEMS_MAX);
  kvf_loads_tick(core->loads, now_ns, TICK_ITEMS_MAX);
}

uint64_t kvf_core_next_deadline(const kvf_core *core)
{
  uint64_t at = kvf_wheel_next_deadline(&core->wheel);
  at = kvf_time_min(at, kvf_lease_table_next_deadline(&core->leases));
  return kvf_time_min(at, kvf_loads_next_deadline(core->loads));
}

bool kvf_core_next_event(kvf_core *core, uint64_t now_ns, kvf_event *out)
{
  kvf_lease_ended ended;
  if (kvf_lease_table_next_ended(&core->leases, &ended)) {
    *out =
        (kvf_event){.kind = KVF_EVENT_LEASE_ENDED, .id = ended.id, .user = ended.user, .u = {.lease_end = ended.cause}};
    return true;
  }
  return kvf_core_next_load_event(core, now_ns, out) || kvf_requests_next_event(&core->requests, now_ns, out);
}

bool kvf_core_has_event(const kvf_core *core)
{
  return !kvf_list_is_empty(&core->leases.ended) || !kvf_list_is_empty(&core->load_events) ||
         !kvf_list_is_empty(&core->requests.events);
}

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
  kvf_peer_answered(peer);
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
      kvf_requests_on_not_open(&core->requests, now_ns, notice->peer, notice->status);
      break;
    case KVF_PEER_NAMED:
      kvf_known_on_named(&core->known, now_ns, notice->peer);
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
      kvf_peers_ping(&core->peers, action->peer);
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
