/* The core's door: each input goes to its machine, and what the machines say goes to each other and to the runtime. */
#include "core/core.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/status.h"
#include "core/core_state.h"
#include "core/source.h"

/* Timers that one tick looks at, and as many leases. */
#define TICK_ITEMS_MAX 1024

static kvf_status init_macs(kvf_context *context)
{
  kvf_status status = kvf_mac_init(&context->self.macs[context->self.macs_count++], &context->self.key);
  if (status == KVF_OK && context->self.other_key.bytes > 0) {
    status = kvf_mac_init(&context->self.macs[context->self.macs_count++], &context->self.other_key);
  }
  return status;
}

/* Blocks of two engines pair by position, so that their sizes belong to what engines compare. */
static kvf_status init_block_tokens(kvf_context *context)
{
  char tokens[16];
  const char *by_group = context->config.group_block_tokens;
  for (uint32_t group = 0; group < KVF_GROUPS_MAX; group++) {
    context->self.group_tokens[group] = context->config.block_tokens;
  }
  context->self.groups = kvf_group_tokens_parse(by_group, context->self.group_tokens);
  (void)snprintf(tokens, sizeof(tokens), "%u", context->config.block_tokens);
  return kvf_config_identity(&context->config, "block_tokens", context->self.groups == 0 ? tokens : by_group);
}

static kvf_status init_context(kvf_core *core, const kvf_core_config *config)
{
  kvf_context *context = &core->context;
  context->config = config->options;
  context->self.incarnation = config->incarnation;
  context->self.key = config->key;
  context->self.other_key = config->other_key;
  context->logger = config->logger;
  context->log_limit.lines_per_s = KVF_LOG_LINES_PER_S;
  memcpy(context->entropy.secret, config->secret, sizeof(context->entropy.secret));
  kvf_status status = init_block_tokens(context);
  if (status == KVF_OK) {
    status = kvf_context_compat(&context->config, context->self.compat);
  }
  if (status == KVF_OK) {
    status = kvf_context_fields(&context->config, context->self.fields);
  }
  return status == KVF_OK ? init_macs(context) : status;
}

const kvf_mac *kvf_core_macs(const kvf_core *core, size_t *count)
{
  *count = core->context.self.macs_count;
  return core->context.self.macs;
}

/* The transports of the option `transports`, in its order. */
static void list_transports(kvf_core *core)
{
  char names[sizeof(core->context.config.transports)];
  char *rest = names;
  (void)snprintf(names, sizeof(names), "%s", core->context.config.transports);
  for (char *name = strtok_r(rest, ", ", &rest); name != NULL && core->peers.transports_count < KVF_TRANSPORTS_MAX;
       name = strtok_r(NULL, ", ", &rest)) {
    core->peers.rails[core->peers.transports_count] = 1;
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

void kvf_core_set_rails(kvf_core *core, uint32_t i, uint32_t count)
{
  assert(count > 0 && count <= KVF_RAILS_MAX && core->peers.by_link_id == NULL);
  core->peers.rails[i] = count;
}

void kvf_core_set_served(kvf_core *core, uint32_t i, uint32_t kinds)
{
  core->peers.unserved[i] = ~kinds;
}

kvf_status kvf_core_init(kvf_core *core, const kvf_core_config *config, uint64_t now_ns)
{
  memset(core, 0, sizeof(*core));
  const kvf_config *options = &core->context.config;
  uint64_t random[3] = {0}; /* for the first lease id, and two seeds */
  kvf_status status = init_context(core, config);
  if (status == KVF_OK) {
    status = kvf_entropy_draw(&core->context.entropy, random, sizeof(random));
  }
  kvf_wheel_init(&core->context.wheel, now_ns);
  kvf_conns_init(&core->context.conns);
  kvf_sessions_init(&core->sessions, &core->context, &core->pool, &core->leases);
  kvf_peers_init(&core->peers, &core->context, &core->pool);
  core->peers.is_control = config->is_control;
  list_transports(core);
  kvf_requests_init(&core->requests, &core->context, &core->peers, random[1]);
  kvf_loads_init(&core->loads, &core->context, &core->peers, &core->pool, random[2]);
  if (status == KVF_OK) {
    status = kvf_lease_table_init(&core->leases, options, now_ns);
    core->leases.context = &core->context;
  }
  if (status == KVF_OK) {
    /* Random, so that a restarted control node does not use its predecessor's ids; small enough that ids never run out.
     */
    status =
        kvf_lease_slots_init(&core->slots, options->lease_slots, random[0] >> 3, options->lease_pool_share_percent);
  }
  if (status != KVF_OK) {
    kvf_core_free(core);
  }
  return status;
}

kvf_status kvf_core_create(const kvf_core_config *config, uint64_t now_ns, kvf_core **out)
{
  *out = NULL;
  kvf_core *core = malloc(sizeof(*core));
  kvf_status status = core == NULL ? KVF_NO_MEMORY : kvf_core_init(core, config, now_ns);
  if (status != KVF_OK) {
    free(core);
    return status;
  }
  *out = core;
  return KVF_OK;
}

void kvf_core_destroy(kvf_core *core)
{
  if (core != NULL) {
    kvf_core_free(core);
    free(core);
  }
}

void kvf_core_stir(kvf_core *core, const uint8_t fresh[KVF_HASH_BYTES])
{
  kvf_entropy_stir(&core->context.entropy, fresh);
}

const kvf_incarnation *kvf_core_incarnation(const kvf_core *core)
{
  return &core->context.self.incarnation;
}

const char *kvf_core_transport(const kvf_core *core, uint32_t i)
{
  return i < core->peers.transports_count ? core->peers.transports[i] : NULL;
}

kvf_status kvf_core_add_static(kvf_core *core, const char *name, const kvf_address *address)
{
  return kvf_peers_add_static(&core->peers, name, address);
}

void kvf_core_invite(kvf_core *core, kvf_guest *guest)
{
  assert(core->guest == NULL);
  guest->context = &core->context;
  guest->peers = &core->peers;
  guest->leases = &core->leases;
  kvf_list_init(&guest->events);
  core->guest = guest;
  core->sessions.guest = guest;
}

void kvf_core_start(kvf_core *core, uint64_t now_ns)
{
  if (core->pool.exists) {
    kvf_peers_may_link(&core->peers, now_ns);
  }
  if (core->peers.is_control || core->pool.exists) {
    kvf_peers_look_at_static(&core->peers, now_ns);
  }
}

void kvf_core_free(kvf_core *core)
{
  kvf_loads_free(&core->loads);
  kvf_pool_free(&core->pool);
  kvf_requests_free(&core->requests);
  if (core->guest != NULL) {
    core->guest->leave(core->guest);
  }
  kvf_peers_free(&core->peers);
  kvf_sessions_free(&core->sessions);
  kvf_conns_free(&core->context.conns);
  kvf_lease_slots_free(&core->slots);
  kvf_lease_table_free(&core->leases);
  for (uint32_t i = 0; i < KVF_KEYS_MAX; i++) {
    kvf_mac_free(&core->context.self.macs[i]);
  }
  kvf_forget(&core->context.self.key, sizeof(core->context.self.key));
  kvf_forget(&core->context.self.other_key, sizeof(core->context.self.other_key));
  kvf_forget(&core->context.entropy, sizeof(core->context.entropy));
}

/* ---- memory and engine ---- */

kvf_status kvf_core_set_memory(kvf_core *core, const kvf_welcome *welcome)
{
  if (core->pool.exists) {
    return kvf_because(KVF_EXISTS, "memory is registered already: kvf_node_unregister() comes first");
  }
  kvf_status status = kvf_pool_set(&core->pool, welcome);
  if (status == KVF_OK) {
    kvf_sessions_end_readers(&core->sessions); /* they were told that there is none */
  }
  return status;
}

bool kvf_core_clear_memory(kvf_core *core, uint64_t now_ns)
{
  if (core->pool.exists) {
    kvf_peers_let_static_go(&core->peers, now_ns);
    kvf_lease_table_end_all(&core->leases, now_ns);
    kvf_loads_abort_all(&core->loads, now_ns);
  }
  if (kvf_loads_open(&core->loads) > 0) { /* until its release has been taken a load's blocks are the library's */
    return false;
  }
  if (core->pool.exists) {
    kvf_pool_free(&core->pool);
    kvf_sessions_end_readers(&core->sessions); /* so that they let go of it; what they are told next is not it */
    kvf_peers_close_links(&core->peers);
  }
  assert(!core->pool.exists && core->leases.live == 0);
  return true;
}

kvf_rank_record kvf_core_record(const kvf_core *core, const kvf_address *address, const kvf_address *other)
{
  const kvf_context *context = &core->context;
  kvf_rank_record record = {.address = *address,
                            .other = *other,
                            .incarnation = context->self.incarnation,
                            .rank = context->config.rank,
                            .dealt = 1};
  if (core->pool.exists) {
    record.layers = core->pool.rank_layout.layers;
    record.dealt = core->pool.rank_layout.deal.ranks;
  }
  return record;
}

kvf_status kvf_core_set_ranks(kvf_core *core, const kvf_rank_record *records, uint32_t count)
{
  kvf_rank_record sorted[KVF_RANKS_MAX];
  uint64_t seen = 0;
  if (count != core->context.config.ranks) {
    return kvf_because(KVF_INVALID, "ranks = %u, but the option ranks is %u", (unsigned)count,
                       (unsigned)core->context.config.ranks);
  }
  for (uint32_t i = 0; i < count; i++) {
    if (records[i].rank >= count || (seen & (UINT64_C(1) << records[i].rank)) != 0) {
      return kvf_because(KVF_INVALID, "record %u is of rank %u: each of the ranks below %u comes once", (unsigned)i,
                         (unsigned)records[i].rank, (unsigned)count);
    }
    if (records[i].dealt != records[0].dealt) {
      return kvf_because(KVF_INVALID, "record %u: tokens are dealt to %u ranks, in record 0 to %u", (unsigned)i,
                         (unsigned)records[i].dealt, (unsigned)records[0].dealt);
    }
    seen |= UINT64_C(1) << records[i].rank;
    sorted[records[i].rank] = records[i];
  }
  memcpy(core->engine, sorted, count * sizeof(sorted[0]));
  core->engine_ranks = count;
  return KVF_OK;
}

/* ---- producer ---- */

kvf_status kvf_core_lease_reserve(kvf_core *core, const kvf_blocks *blocks, uint32_t count, uint64_t pool_blocks,
                                  kvf_lease *out)
{
  uint8_t token[KVF_LEASE_TOKEN_BYTES];
  kvf_status status = kvf_entropy_draw(&core->context.entropy, token, sizeof(token));
  return status == KVF_OK ? kvf_lease_slots_reserve(&core->slots, blocks, count, pool_blocks, token, out) : status;
}

kvf_status kvf_core_ticket(kvf_core *core, const kvf_lease *lease, const kvf_blocks *blocks, const kvf_prompt *prompt,
                           kvf_ticket *out)
{
  const kvf_context *context = &core->context;
  const bool has_groups = context->self.groups == 0 || context->self.groups == blocks->groups;
  if (core->engine_ranks == 0) {
    return kvf_because(KVF_INVALID, "kvf_node_set_ranks() has not been called");
  }
  if (blocks->groups == 0 || !has_groups) {
    return kvf_because(KVF_INVALID, "blocks->groups = %u must be %u (option group_block_tokens)",
                       (unsigned)blocks->groups, context->self.groups == 0 ? 1 : (unsigned)context->self.groups);
  }
  if (prompt->tokens == 0) {
    return kvf_because(KVF_INVALID, "prompt->tokens = 0");
  }
  kvf_status status = kvf_blocks_check(blocks);
  if (status != KVF_OK) {
    return status;
  }
  union {
    const uint32_t *borrowed;
    uint32_t *ids;
  } ids = {.borrowed = blocks->ids}; /* encoding only reads them */
  *out = (kvf_ticket){.version = context->config.ticket_version,
                      .ranks = core->engine_ranks,
                      .lease = *lease,
                      .prompt = *prompt,
                      .block_tokens = context->config.block_tokens,
                      .ttl_ms = context->config.lease_ttl_ms,
                      .fields = context->config.identity_fields,
                      .groups = blocks->groups,
                      .ids = ids.ids};
  memcpy(out->group_tokens, context->self.group_tokens, blocks->groups * sizeof(out->group_tokens[0]));
  memcpy(out->rank, core->engine, core->engine_ranks * sizeof(out->rank[0]));
  memcpy(out->compat, context->self.compat, sizeof(out->compat));
  memcpy(out->field, context->self.fields, sizeof(out->field));
  memcpy(out->counts, blocks->counts, blocks->groups * sizeof(out->counts[0]));
  kvf_lease_slots_name(&core->slots, lease->id, blocks);
  return KVF_OK;
}

kvf_status kvf_core_publish(kvf_core *core, uint64_t now_ns, const kvf_lease *lease, const kvf_blocks *blocks,
                            uint64_t digest, uint64_t user, bool incomplete)
{
  if (core->context.config.listen[0] == '\0') {
    kvf_context_log(
        &core->context, now_ns, KVF_INVALID, 0, KVF_LOG_WARN,
        "lease %llu is not published: this node does not listen (option listen), so no consumer could read it",
        (unsigned long long)lease->id);
    return kvf_because(KVF_INVALID, "this node does not listen (option listen), so no consumer could read the lease");
  }
  kvf_status status = kvf_pool_check_blocks(&core->pool, blocks);
  return status == KVF_OK ? kvf_lease_table_publish(&core->leases, now_ns, lease, blocks, digest, user, incomplete)
                          : status;
}

kvf_status kvf_core_lease_end(kvf_core *core, uint64_t now_ns, const kvf_lease *lease)
{
  /* A node without memory has published nothing, and perhaps no fence table to store to. */
  return core->peers.is_control ? kvf_because(KVF_NOT_FOUND, "this node has no memory, and so no published lease")
                                : kvf_lease_table_end(&core->leases, now_ns, lease);
}

kvf_status kvf_core_lease_release(kvf_core *core, uint64_t lease_id)
{
  return kvf_lease_slots_release(&core->slots, lease_id);
}

kvf_status kvf_core_lease_ended(kvf_core *core, uint64_t lease_id, uint64_t ranks_mask)
{
  return kvf_lease_slots_ended(&core->slots, lease_id, ranks_mask, core->context.config.ranks);
}

void kvf_core_end_lingering(kvf_core *core)
{
  kvf_lease_table_end_lingering(&core->leases);
}

void kvf_core_drain(kvf_core *core)
{
  core->slots.draining = true;
  core->context.config.lease_linger_ms = 0;
  kvf_core_end_lingering(core);
}

void kvf_core_on_complete(kvf_core *core, const kvf_lease *lease)
{
  kvf_lease_table_complete(&core->leases, lease);
}

kvf_status kvf_core_authorize(const kvf_core *core, uint64_t now_ns, const kvf_lease *lease, kvf_transfer_item *items,
                              uint32_t count)
{
  return kvf_lease_table_authorize(&core->leases, now_ns, lease, items, count);
}

bool kvf_core_session_key(const kvf_core *core, uint64_t session_id, kvf_key *out)
{
  return kvf_sessions_key(&core->sessions, session_id, out);
}

/* ---- consumer ---- */

void kvf_core_ticket_refused(kvf_core *core, uint64_t now_ns, kvf_log_request request, kvf_status status)
{
  kvf_sources_refused(&core->context, now_ns, request, status);
}

kvf_request_options kvf_core_request_options(const kvf_core *core, const kvf_request_options *options)
{
  return kvf_requests_options(&core->requests, options);
}

kvf_status kvf_core_request_open(kvf_core *core, uint64_t now_ns, const kvf_sources *sources, const kvf_prompt *prompt,
                                 const kvf_request_options *options, uint64_t user, uint64_t *id,
                                 const kvf_ticket **first)
{
  kvf_status status = kvf_requests_open(&core->requests, now_ns, sources, prompt, options, user, id, first);
  if (status == KVF_NO_RESOURCE || status == KVF_NO_MEMORY) { /* else it is the ticket, of which a line has told */
    const kvf_log_request request = {.name = options == NULL ? NULL : options->name};
    kvf_context_log(&core->context, now_ns, status, 0, KVF_LOG_WARN, "%sticket refused: %s: %s",
                    kvf_log_request_prefix(request).text, kvf_status_name(status),
                    kvf_status_describe(status)->meaning);
  }
  return status;
}

kvf_verdict kvf_core_request_refused(kvf_core *core, uint64_t now_ns, kvf_status status, uint32_t tokens,
                                     const kvf_request_options *options)
{
  return kvf_requests_refused(&core->requests, now_ns, status, tokens, options);
}

uint64_t kvf_core_request_attachment(const kvf_core *core, uint64_t id)
{
  return kvf_requests_attachment(&core->requests, id);
}

kvf_status kvf_core_request_wait(kvf_core *core, uint64_t now_ns, uint64_t id, bool waits)
{
  return kvf_requests_wait(&core->requests, now_ns, id, waits);
}

kvf_status kvf_core_request_begin(kvf_core *core, uint64_t now_ns, uint64_t id)
{
  return kvf_requests_begin(&core->requests, now_ns, id);
}

kvf_status kvf_core_request_report(kvf_core *core, uint64_t now_ns, const kvf_report *report)
{
  return kvf_requests_report(&core->requests, now_ns, report);
}

kvf_status kvf_core_request_released(kvf_core *core, uint64_t now_ns, uint64_t id, uint64_t ranks_mask)
{
  return kvf_requests_released(&core->requests, now_ns, id, ranks_mask);
}

kvf_status kvf_core_request_stuck(kvf_core *core, uint64_t id)
{
  return kvf_requests_stuck(&core->requests, id);
}

kvf_status kvf_core_request_cancel(kvf_core *core, uint64_t now_ns, uint64_t id, kvf_finish_kind kind)
{
  return kvf_requests_cancel(&core->requests, now_ns, id, kind);
}

kvf_status kvf_core_load_start(kvf_core *core, uint64_t now_ns, const kvf_sources *sources, const kvf_load_params *load,
                               uint64_t point)
{
  kvf_status status = kvf_loads_start(&core->loads, now_ns, sources, load, point);
  /* The control node hears of it without the reason, unless the engine passes it on. Of a ticket or layout that does
   * not fit a line has told. */
  if (status != KVF_OK && status != KVF_BAD_TICKET && status != KVF_INCOMPATIBLE) {
    const kvf_log_request request = {.id = load->request_id, .name = load->name};
    kvf_context_log(&core->context, now_ns, status, 0, KVF_LOG_WARN, "%sno load: %s: %s",
                    kvf_log_request_prefix(request).text, kvf_status_name(status),
                    kvf_status_describe(status)->meaning);
  }
  return status;
}

void kvf_core_on_point(kvf_core *core, uint64_t request_id, uint64_t point)
{
  kvf_loads_on_point(&core->loads, request_id, point);
}

kvf_status kvf_core_load_abort(kvf_core *core, uint64_t now_ns, uint64_t request_id)
{
  return kvf_loads_abort(&core->loads, now_ns, request_id);
}

bool kvf_core_load_is_stuck(const kvf_core *core, uint64_t request_id)
{
  return kvf_loads_is_stuck(&core->loads, request_id);
}

bool kvf_core_is_healthy(const kvf_core *core)
{
  return core->loads.stats.stuck == 0;
}

void kvf_core_on_link(kvf_core *core, uint64_t now_ns, uint32_t link_id, kvf_status status)
{
  kvf_peers_on_link(&core->peers, now_ns, link_id, status);
}

void kvf_core_on_link_malformed(kvf_core *core, uint64_t now_ns, uint32_t link_id)
{
  kvf_peers_on_link_malformed(&core->peers, now_ns, link_id);
}

void kvf_core_on_link_down(kvf_core *core, uint64_t now_ns, uint32_t link_id, kvf_status status)
{
  kvf_peers_on_link_down(&core->peers, now_ns, link_id, status);
}

void kvf_core_on_read_done(kvf_core *core, uint64_t now_ns, uint64_t read_id, kvf_status status, uint32_t verified,
                           const kvf_fence_sample *sample, uint64_t bytes, const kvf_read_work *work)
{
  core->read_work.pieces += work->pieces;
  core->read_work.device_copy_ns += work->device_copy_ns;
  core->read_work.device_posting_ns += work->device_posting_ns;
  kvf_loads_on_read_done(&core->loads, now_ns, read_id, status, verified, sample, bytes);
}

void kvf_core_on_read_progress(kvf_core *core, uint64_t now_ns, uint64_t read_id)
{
  kvf_loads_on_read_progress(&core->loads, now_ns, read_id);
}

size_t kvf_core_peers(const kvf_core *core, uint64_t now_ns, kvf_peer_stat *out, size_t capacity)
{
  return kvf_peers_describe(&core->peers, now_ns, out, capacity);
}

/* ---- time and events ---- */

/* Without a key a node listens on loopback, and does not notice a consumer on another host. The sign is a lease that
 * expires while no consumer has ever connected. Logged once for each engine. */
static void say_if_alone(kvf_core *core, uint64_t now_ns)
{
  if (core->said_alone || core->leases.counters.ended[KVF_LEASE_END_EXPIRED] == 0 || core->sessions.had_consumer ||
      core->context.self.key.bytes != 0 || core->context.config.rank != 0) {
    return;
  }
  core->said_alone = true;
  kvf_context_log(
      &core->context, now_ns, KVF_LEASE_EXPIRED, 0, KVF_LOG_WARN,
      "a lease has expired, and no consumer has ever connected: without a key this engine listens for this host alone; "
      "others need one on both sides (option key_file or KVFERRY_KEY_FILE), and perhaps an address here (listen)");
}

void kvf_core_tick(kvf_core *core, uint64_t now_ns)
{
  uint32_t work = TICK_ITEMS_MAX;
  kvf_timer *timer;
  while ((timer = kvf_wheel_expire(&core->context.wheel, now_ns, &work)) != NULL) {
    switch (timer->kind) {
      case KVF_TIMER_SESSION:
        kvf_session_on_timer(&core->sessions, KVF_CONTAINER_OF(timer, kvf_session, timer), now_ns);
        break;
      case KVF_TIMER_PEER:
        kvf_peer_on_timer(&core->peers, now_ns, KVF_CONTAINER_OF(timer, kvf_peer, timer));
        break;
      case KVF_TIMER_STATIC:
        kvf_peers_look_at_static(&core->peers, now_ns);
        break;
      case KVF_TIMER_ATTACHMENT:
        kvf_attachments_on_timer(&core->requests.attachments, now_ns, KVF_CONTAINER_OF(timer, kvf_attachment, timer));
        break;
      case KVF_TIMER_REQUEST:
        kvf_requests_on_timer(&core->requests, now_ns, KVF_CONTAINER_OF(timer, kvf_request, timer));
        break;
      case KVF_TIMER_GUEST:
        assert(core->guest != NULL);
        core->guest->on_timer(core->guest, now_ns, timer);
        break;
      default:
        assert(timer->kind == KVF_TIMER_LOAD || timer->kind == KVF_TIMER_SLICE);
        kvf_loads_on_timer(&core->loads, now_ns, timer);
        break;
    }
  }
  kvf_lease_table_tick(&core->leases, now_ns, TICK_ITEMS_MAX);
  say_if_alone(core, now_ns);
}

uint64_t kvf_core_next_deadline(const kvf_core *core)
{
  return kvf_time_min(kvf_wheel_next_deadline(&core->context.wheel), kvf_wheel_next_deadline(&core->leases.wheel));
}

bool kvf_core_next_event(kvf_core *core, uint64_t now_ns, kvf_event *out)
{
  return kvf_lease_table_next_ended(&core->leases, out) || kvf_loads_next_event(&core->loads, out) ||
         kvf_requests_next_event(&core->requests, out) ||
         (core->guest != NULL && core->guest->next_event(core->guest, now_ns, out));
}

bool kvf_core_has_event(const kvf_core *core)
{
  return !kvf_list_is_empty(&core->leases.ended) || !kvf_list_is_empty(&core->loads.events) ||
         !kvf_list_is_empty(&core->requests.events) ||
         (core->guest != NULL && !kvf_list_is_empty(&core->guest->events));
}

/* ---- control connections ---- */

kvf_status kvf_core_on_accepted(kvf_core *core, uint64_t now_ns, kvf_address from, uint64_t *conn_id)
{
  return kvf_sessions_accept(&core->sessions, now_ns, from, conn_id);
}

void kvf_core_on_reset(kvf_core *core, uint64_t now_ns, const kvf_address *from)
{
  kvf_sessions_on_reset(&core->sessions, now_ns, from);
}

void kvf_core_on_heard(kvf_core *core, uint64_t conn_id)
{
  kvf_conn *conn = kvf_conns_find(&core->context.conns, conn_id);
  if (conn != NULL && conn->session != NULL) {
    kvf_session_on_heard(&core->sessions, conn->session);
  }
}

void kvf_core_on_dialed(kvf_core *core, uint64_t now_ns, uint64_t conn_id, kvf_status status)
{
  kvf_conn *conn = kvf_conns_find(&core->context.conns, conn_id);
  if (conn != NULL && conn->peer != NULL) {
    kvf_peers_on_dialed(&core->peers, now_ns, conn->peer, status);
  }
}

/* Frames of a peer that are not its own machine's, but of those who have asked for them. */
static kvf_status on_answer(kvf_core *core, uint64_t now_ns, kvf_peer *peer, kvf_frame_type type, const uint8_t *body,
                            size_t body_bytes)
{
  peer->answer_by_ns = KVF_TIME_NEVER;
  return type == KVF_FRAME_LEASE_STATES
             ? kvf_attachments_on_states(&core->requests.attachments, now_ns, peer, body, body_bytes)
             : core->guest->on_answer(core->guest, now_ns, peer, body, body_bytes);
}

void kvf_core_on_frame(kvf_core *core, uint64_t now_ns, uint64_t conn_id, kvf_frame_type type, const uint8_t *body,
                       size_t body_bytes)
{
  kvf_conn *conn = kvf_conns_find(&core->context.conns, conn_id);
  kvf_peer *peer = conn == NULL ? NULL : conn->peer;
  if (conn != NULL && conn->session != NULL) {
    kvf_session_on_frame(&core->sessions, conn->session, now_ns, type, body, body_bytes);
  } else if (peer != NULL && peer->state == KVF_PEER_READY &&
             (type == KVF_FRAME_LEASE_STATES || (core->guest != NULL && type == core->guest->answer))) {
    if (on_answer(core, now_ns, peer, type, body, body_bytes) != KVF_OK) {
      kvf_peers_on_malformed(&core->peers, now_ns, peer);
    }
  } else if (peer != NULL) {
    kvf_peer_on_frame(&core->peers, now_ns, peer, type, body, body_bytes);
  }
}

void kvf_core_on_malformed(kvf_core *core, uint64_t now_ns, uint64_t conn_id)
{
  kvf_conn *conn = kvf_conns_find(&core->context.conns, conn_id);
  if (conn != NULL && conn->session != NULL) {
    kvf_session_on_malformed(&core->sessions, conn->session, now_ns);
  } else if (conn != NULL && conn->peer != NULL) {
    kvf_peers_on_malformed(&core->peers, now_ns, conn->peer);
  }
}

void kvf_core_on_insecure(kvf_core *core, uint64_t now_ns, uint64_t conn_id, const char *why)
{
  kvf_conn *conn = kvf_conns_find(&core->context.conns, conn_id);
  if (conn != NULL && conn->session != NULL) {
    kvf_session_on_insecure(&core->sessions, conn->session, now_ns, why);
  } else if (conn != NULL && conn->peer != NULL) {
    kvf_peers_on_insecure(&core->peers, now_ns, conn->peer, why);
  }
}

void kvf_core_on_unread(kvf_core *core, uint64_t now_ns, uint64_t conn_id)
{
  const kvf_conn *conn = kvf_conns_find(&core->context.conns, conn_id);
  if (conn != NULL && conn->session != NULL) {
    kvf_session_on_unread(&core->sessions, conn->session, now_ns);
  } /* else: a peer that does not read does not answer either, which is found out */
}

void kvf_core_on_closed(kvf_core *core, uint64_t now_ns, uint64_t conn_id)
{
  kvf_conn *conn = kvf_conns_find(&core->context.conns, conn_id);
  if (conn == NULL) {
    return;
  }
  if (conn->session != NULL) {
    kvf_session_on_closed(&core->sessions, conn->session, now_ns);
  } else if (conn->peer != NULL) {
    kvf_peer_on_closed(&core->peers, now_ns, conn->peer);
  }
  kvf_conns_drop(conn);
}

bool kvf_core_has_conn(kvf_core *core, uint64_t conn_id)
{
  return kvf_conns_find(&core->context.conns, conn_id) != NULL;
}

size_t kvf_core_frame_limit(kvf_core *core, uint64_t conn_id)
{
  const kvf_conn *conn = kvf_conns_find(&core->context.conns, conn_id);
  return conn != NULL && conn->is_trusted ? KVF_FRAME_BODY_BYTES_MAX : KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX;
}

void kvf_core_take_output(kvf_core *core, void (*take)(void *context, const kvf_core_output *output), void *context)
{
  kvf_conn *conn;
  while ((conn = kvf_conns_next_output(&core->context.conns)) != NULL) {
    kvf_core_output output = {
        .conn_id = conn->id, .data = conn->outbox, .bytes = conn->outbox_bytes, .hang_up = conn->hanging_up};
    take(context, &output);
    kvf_conns_taken(conn);
  }
}

bool kvf_core_has_output(const kvf_core *core)
{
  return !kvf_list_is_empty(&core->context.conns.output);
}

/* ---- what the machines say to each other, and to the runtime ---- */

static void route_notice(kvf_core *core, uint64_t now_ns, const kvf_peer_notice *notice)
{
  switch (notice->kind) {
    case KVF_PEER_LINK:
      kvf_loads_on_link(&core->loads, now_ns, notice->peer, notice->link_id, notice->status);
      return;
    case KVF_PEER_LINK_DOWN:
      kvf_loads_on_link_down(&core->loads, now_ns, notice->peer);
      return;
    case KVF_PEER_OPEN:
      kvf_attachments_on_open(&core->requests.attachments, now_ns, notice->peer, notice->status);
      break;
    case KVF_PEER_NAMED:
      kvf_peers_on_named(&core->peers, now_ns, notice->peer);
      break;
    case KVF_PEER_CLOSED:
      break;
  }
  if (core->guest != NULL) {
    core->guest->on_peer(core->guest, now_ns, notice);
  }
}

/* What inputs and notices have left to do, which may cause notices. */
static void go_on(kvf_core *core, uint64_t now_ns)
{
  kvf_loads_go_on(&core->loads, now_ns);
  if (!kvf_list_is_empty(&core->requests.attachments.lost)) {
    kvf_requests_take_losses(&core->requests, now_ns);
  }
}

#ifndef NDEBUG

void kvf_core_check(const kvf_core *core, bool costly)
{
  const kvf_guest *guest = core->guest;
  uint32_t users = 0;
  uint32_t counted = 0;
  uint32_t reads = 0;
  const uint32_t conns = kvf_peers_check(&core->peers, &users, &counted) + kvf_sessions_check(&core->sessions);
  const uint32_t holds = kvf_loads_check(&core->loads, &reads, costly) + kvf_requests_check(&core->requests) +
                         (guest == NULL ? 0 : guest->check(guest));
  assert(conns == kvf_conns_check(&core->context.conns));
  assert(users >= holds);
  assert(!costly || users == holds); /* a test may hold some itself */
  assert(reads == counted);
  assert(core->loads.by_id == NULL || core->pool.exists);
  assert(core->context.self.macs_count > 0 && core->context.self.macs_count <= KVF_KEYS_MAX);
  kvf_lease_table_check(&core->leases, costly);
  kvf_lease_slots_check(&core->slots, costly);
  kvf_pool_check(&core->pool, costly);
}

/* A large core is looked at less often, so that each call pays as much as in a small one. */
static void check_sometimes(kvf_core *core)
{
  const uint32_t things = HASH_CNT(by_key, core->peers.by_key) + core->sessions.open.count +
                          core->sessions.unproven.count + HASH_CNT(by_id, core->requests.by_id) +
                          HASH_CNT(by_id, core->requests.attachments.by_id) + kvf_loads_open(&core->loads) +
                          kvf_lease_slots_live(&core->slots) + core->leases.unreleased;
  if (core->unchecked++ >= 4 * things) {
    core->unchecked = 0;
    kvf_core_check(core, false);
  }
}

#else

void kvf_core_check(const kvf_core *core, bool costly)
{
  (void)core;
  (void)costly;
}

static void check_sometimes(const kvf_core *core)
{
  (void)core;
}

#endif

bool kvf_core_next_effect(kvf_core *core, uint64_t now_ns, kvf_effect *out)
{
  kvf_peer_notice notice;
  go_on(core, now_ns);
  while (kvf_peers_next_notice(&core->peers, &notice)) {
    route_notice(core, now_ns, &notice);
    go_on(core, now_ns);
  }
  if (kvf_lease_table_next_store(&core->leases, &out->store)) {
    out->kind = KVF_EFFECT_STORE;
    if ((out->store.entry.word & 1) == 0 && core->guest != NULL) { /* the lease has ended */
      core->guest->on_lease_ended(core->guest, out->store.slot);
    }
  } else if (kvf_loads_next_cancel(&core->loads, &out->read)) {
    out->kind = KVF_EFFECT_CANCEL;
  } else if (kvf_loads_next_read(&core->loads, now_ns, &out->read)) {
    out->kind = KVF_EFFECT_READ;
  } else if (kvf_peers_next_action(&core->peers, now_ns, &out->link)) {
    out->kind = (kvf_effect_kind)out->link.kind;
  } else {
    check_sometimes(core);
    return false;
  }
  return true;
}

void kvf_core_on_stored(kvf_core *core, const kvf_lease_store *store)
{
  kvf_lease_table_stored(&core->leases, store->slot, store->entry.word);
}
