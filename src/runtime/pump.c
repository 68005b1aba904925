/* Carries the core's effects out, and the transports' reports in. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/pump.h"
#include "runtime/random.h"
#include "transport/fence_memory.h"
#include "transport/thread.h"

uint64_t kvf_node_enter(kvf_node *node)
{
  (void)pthread_mutex_lock(&node->lock);
  return kvf_clock_now();
}

void kvf_node_wake(const kvf_node *node)
{
  uint64_t one = 1;
  ssize_t written = write(node->clock.wake_fd, &one, sizeof(one));
  (void)written; /* full means that it is awake already */
}

bool kvf_node_enter_fresh(kvf_node *node, uint64_t *now_ns)
{
  uint8_t fresh[KVF_HASH_BYTES];
  if (!kvf_random(fresh, sizeof(fresh))) {
    return false;
  }
  *now_ns = kvf_node_enter(node);
  kvf_core_stir(node->core, fresh);
  kvf_forget(fresh, sizeof(fresh));
  return true;
}

uint64_t kvf_node_enter_to_help(kvf_node *node)
{
  uint64_t now_ns = kvf_node_enter(node);
  node->caller_helps = true;
  return now_ns;
}

static kvf_node_link *find_link(kvf_node *node, uint32_t link_id)
{
  kvf_node_link *link;
  HASH_FIND(by_link_id, node->links, &link_id, sizeof(link_id), link);
  return link;
}

static void do_dial(kvf_node *node, uint64_t now_ns, const kvf_peer_action *action)
{
  kvf_dial *dial = malloc(sizeof(*dial));
  if (dial == NULL) {
    kvf_core_on_dialed(node->core, now_ns, action->conn_id, KVF_NO_MEMORY);
    return;
  }
  *dial = (kvf_dial){.conn_id = action->conn_id, .address = action->address};
  kvf_list_init(&dial->link);
  kvf_list_push_back(&node->dials, &dial->link);
  node->clock.wants_wake = true;
}

static const kvf_transport_offer *find_offer(const kvf_welcome *welcome, const char *name)
{
  for (uint32_t i = 0; i < welcome->transports_count; i++) {
    if (strcmp(welcome->transports[i].name, name) == 0) {
      return &welcome->transports[i];
    }
  }
  return NULL;
}

static void do_open_link(kvf_node *node, uint64_t now_ns, const kvf_peer_action *action)
{
  const kvf_rails *rails = &node->transports[action->transport];
  const kvf_transport_offer *offer = find_offer(action->welcome, rails->ops->name);
  kvf_node_link *entry = calloc(1, sizeof(*entry));
  kvf_status status = entry == NULL ? KVF_NO_MEMORY : offer == NULL ? KVF_TRANSFER_SETUP : KVF_OK;
  if (status != KVF_OK) {
    goto failed;
  }
  entry->link_id = action->link_id;
  entry->transport = action->transport;
  HASH_ADD(by_link_id, node->links, link_id, sizeof(entry->link_id), entry);
  if (entry->by_link_id.tbl == NULL) {
    status = KVF_NO_MEMORY;
    goto failed;
  }
  kvf_link_spec spec = {.user = action->link_id,
                        .peer = action->address,
                        .incarnation = action->incarnation,
                        .generation = action->welcome->generation,
                        .session_id = action->welcome->session_id,
                        .session_key = *action->session_key,
                        .description = offer->description,
                        .description_bytes = offer->description_bytes,
                        .remote = action->welcome->regions,
                        .remote_count = action->welcome->regions_count,
                        .layout = action->welcome->layout};
  status = kvf_rails_connect(rails, &spec, entry->parts);
  kvf_forget(&spec.session_key, sizeof(spec.session_key));
  if (status == KVF_OK) {
    return;
  }
  HASH_DELETE(by_link_id, node->links, entry);

failed:
  free(entry);
  if (status == KVF_PROTOCOL) {
    kvf_core_on_link_malformed(node->core, now_ns, action->link_id);
  } else {
    kvf_core_on_link(node->core, now_ns, action->link_id, status);
  }
}

static void do_close_link(kvf_node *node, uint32_t link_id)
{
  kvf_node_link *entry = find_link(node, link_id);
  if (entry != NULL) {
    kvf_rails_disconnect(&node->transports[entry->transport], entry->parts);
    HASH_DELETE(by_link_id, node->links, entry);
    free(entry);
  }
}

static void do_read(kvf_node *node, uint64_t now_ns, const kvf_load_read *action)
{
  kvf_node_link *entry = find_link(node, action->link_id);
  kvf_transfer read = action->transfer;
  kvf_status status = KVF_CANCELLED;
  if (entry != NULL) {
    read.small = read.small && node->caller_helps;
    node->small_reads |= (uint32_t)read.small << entry->transport;
    status = node->transports[entry->transport].ops->read(entry->parts[action->rail], &read);
  }
  if (status != KVF_OK) {
    kvf_core_on_read_done(node->core, now_ns, read.id, status, 0, NULL, 0, &(kvf_read_work){0});
  }
}

static void do_cancel(kvf_node *node, const kvf_load_read *action)
{
  kvf_node_link *entry = find_link(node, action->link_id);
  if (entry != NULL) { /* else: its link was disconnected, which has cancelled it */
    node->transports[entry->transport].ops->cancel(entry->parts[action->rail], action->transfer.id);
  }
}

static void do_store(kvf_node *node, const kvf_lease_store *store)
{
  if ((store->entry.word & 1) != 0) {
    kvf_fence_store_live(node->memory.fence_table, store->slot, store->entry);
  } else {
    kvf_fence_store_ended(node->memory.fence_table, store->slot, store->entry);
  }
  kvf_core_on_stored(node->core, store);
}

static void carry_out(kvf_node *node, uint64_t now_ns)
{
  kvf_effect effect;
  while (!node->closing && kvf_core_next_effect(node->core, now_ns, &effect)) {
    switch (effect.kind) {
      case KVF_EFFECT_DIAL:
        do_dial(node, now_ns, &effect.link);
        break;
      case KVF_EFFECT_READ:
        do_read(node, now_ns, &effect.read);
        break;
      case KVF_EFFECT_CANCEL:
        do_cancel(node, &effect.read);
        break;
      case KVF_EFFECT_OPEN_LINK:
        do_open_link(node, now_ns, &effect.link);
        break;
      case KVF_EFFECT_CLOSE_LINK:
        do_close_link(node, effect.link.link_id);
        break;
      case KVF_EFFECT_STORE:
        do_store(node, &effect.store);
        break;
    }
  }
}

static void announce_events(kvf_node *node)
{
  if (!kvf_core_has_event(node->core)) {
    return;
  }
  atomic_store_explicit(&node->events.has, true, memory_order_release);
  if (node->events.fd_wanted && !node->events.fd_readable) {
    uint64_t one = 1;
    ssize_t written = write(node->events.fd, &one, sizeof(one));
    (void)written; /* cannot fail: the counter is 0 */
    node->events.fd_readable = true;
  }
}

void kvf_node_leave(kvf_node *node, uint64_t now_ns)
{
  carry_out(node, now_ns);
  announce_events(node);
  bool early = kvf_core_next_deadline(node->core) < node->clock.armed_ns;
  bool wake = node->clock.wants_wake || early || kvf_core_has_output(node->core);
  uint32_t assist = node->small_reads;
  node->clock.wants_wake = false;
  node->small_reads = 0;
  node->caller_helps = false;
  if (early) {
    node->clock.light_sleep_ns = kvf_time_add(now_ns, KVF_LIGHT_SLEEP_FOR_NS);
  }
  if (wake) {
    node->clock.armed_ns = 0; /* one wake is enough until the control thread has looked */
  }
  (void)pthread_mutex_unlock(&node->lock);

  if (wake) {
    kvf_node_wake(node);
  }
  if (assist != 0) {
    kvf_node_assist(node, assist);
  }
}

void kvf_node_assist(kvf_node *node, uint32_t transports)
{
  for (uint32_t i = 0; i < node->transports_count; i++) {
    const uint32_t bit = UINT32_C(1) << i;
    if ((transports & bit) == 0) {
      continue;
    }
    if (kvf_rails_assist(&node->transports[i])) {
      (void)atomic_fetch_or_explicit(&node->events.may_assist, bit, memory_order_release);
    } else {
      (void)atomic_fetch_and_explicit(&node->events.may_assist, ~bit, memory_order_relaxed);
    }
  }
}

/* ---- events ---- */

/* From here on it is kept: until somebody asks, the system calls are not worth it. */
int kvf_node_event_fd(kvf_node *node)
{
  uint64_t now_ns = kvf_node_enter(node);
  node->events.fd_wanted = true;
  kvf_node_leave(node, now_ns);
  return node->events.fd;
}

size_t kvf_node_poll(kvf_node *node, kvf_event *events, size_t capacity)
{
  /* Acquire: the transports may be younger than the node. */
  const uint32_t assist = atomic_load_explicit(&node->events.may_assist, memory_order_acquire);
  if (assist != 0) {
    kvf_node_assist(node, assist);
  }
  if (capacity == 0 || !atomic_load_explicit(&node->events.has, memory_order_acquire)) {
    return 0;
  }
  size_t count = 0;
  uint64_t now_ns = kvf_node_enter(node);
  while (count < capacity && kvf_core_next_event(node->core, now_ns, &events[count])) {
    count++;
  }
  if (!kvf_core_has_event(node->core)) {
    if (node->events.fd_readable) {
      uint64_t value;
      /* NOLINTNEXTLINE(clang-analyzer-unix.BlockInCriticalSection): it holds one, so this does not wait */
      ssize_t got = read(node->events.fd, &value, sizeof(value));
      (void)got;
      node->events.fd_readable = false;
    }
    atomic_store_explicit(&node->events.has, false, memory_order_relaxed);
  }
  kvf_node_leave(node, now_ns);
  return count;
}

/* ---- what transports call ---- */

static void on_read_done(void *context, const kvf_read_result *result)
{
  kvf_node *node = context;
  uint64_t now_ns = kvf_node_enter(node);
  kvf_core_on_read_done(node->core, now_ns, result->id, result->status, result->verified, &result->sample,
                        result->bytes, &result->work);
  kvf_node_leave(node, now_ns);
}

static void on_read_progress(void *context, uint64_t read_id)
{
  kvf_node *node = context;
  uint64_t now_ns = kvf_node_enter(node);
  kvf_core_on_read_progress(node->core, now_ns, read_id);
  kvf_node_leave(node, now_ns);
}

static void on_link_up(void *context, kvf_link *link, kvf_status status)
{
  kvf_node *node = context;
  uint64_t now_ns = kvf_node_enter(node);
  kvf_core_on_link(node->core, now_ns, (uint32_t)link->user, status);
  kvf_node_leave(node, now_ns);
}

static void on_link_down(void *context, kvf_link *link, kvf_status status)
{
  kvf_node *node = context;
  uint64_t now_ns = kvf_node_enter(node);
  kvf_core_on_link_down(node->core, now_ns, (uint32_t)link->user, status);
  kvf_node_leave(node, now_ns);
}

static bool on_session_key(void *context, uint64_t session_id, kvf_key *out)
{
  kvf_node *node = context;
  (void)pthread_mutex_lock(&node->lock);
  bool found = kvf_core_session_key(node->core, session_id, out);
  (void)pthread_mutex_unlock(&node->lock);
  return found;
}

static kvf_status on_authorize(void *context, const kvf_lease *lease, kvf_transfer_item *items, uint32_t count)
{
  kvf_node *node = context;
  (void)pthread_mutex_lock(&node->lock);
  kvf_status status = kvf_core_authorize(node->core, kvf_clock_now(), lease, items, count);
  (void)pthread_mutex_unlock(&node->lock);
  return status;
}

const kvf_status kvf_node_reasons[KVF_NODE_REASONS] = {KVF_HANDSHAKE_REFUSED,
                                                       KVF_HANDSHAKE_TIMEOUT,
                                                       KVF_PROTOCOL,
                                                       KVF_PEER_DOWN,
                                                       KVF_TRANSFER_STALLED,
                                                       KVF_LIMIT,
                                                       KVF_NO_MEMORY,
                                                       KVF_CLOSED,
                                                       KVF_SYSTEM};

static void on_connection(void *context, kvf_status why)
{
  kvf_node *node = context;
  size_t reason = 0;
  while (reason < KVF_NODE_REASONS - 1 && kvf_node_reasons[reason] != why) {
    reason++;
  }
  (void)pthread_mutex_lock(&node->lock);
  if (why == KVF_OK) {
    node->connections_accepted++;
  } else {
    node->connections_ended[reason]++;
  }
  (void)pthread_mutex_unlock(&node->lock);
}

void kvf_node_log(void *context, kvf_log_level level, const char *line)
{
  kvf_node *node = context;
  if (!kvf_log_sink_put(node->log, level, line)) {
    atomic_fetch_add(&node->log_lines_dropped, 1);
  }
}

static void on_log(void *context, kvf_log_level level, const char *line)
{
  const kvf_node *node = context;
  if (level <= node->config.log_level) {
    kvf_node_log(context, level, line);
  }
}

kvf_transport_host kvf_node_host(kvf_node *node)
{
  return (kvf_transport_host){.context = node,
                              .read_done = on_read_done,
                              .read_progress = on_read_progress,
                              .link_up = on_link_up,
                              .link_down = on_link_down,
                              .session_key = on_session_key,
                              .authorize = on_authorize,
                              .connection = on_connection,
                              .log = on_log};
}
