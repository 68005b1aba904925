/* A node: opened, closed, and asked for its figures and events. */
#include "kvferry/node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/options.h"
#include "base/status.h"
#include "memory/own_fds.h"
#include "runtime/checksummer.h"
#include "runtime/control.h"
#include "runtime/key_file.h"
#include "runtime/ordering.h"
#include "runtime/random.h"
#include "transport/fence_memory.h"
#include "transport/socket.h"
#include "transport/thread.h"

/* All transports there are; the option `transports` chooses and orders. */
static const kvf_transport_ops *const all_transports[] = {&kvf_transport_local, &kvf_transport_tcp, &kvf_transport_ucx};

#define CLOSE_POLL_NS (KVF_NS_PER_MS / 2)

static kvf_status open_core(kvf_node *node, char *message)
{
  kvf_core_config config = {.options = node->config,
                            .is_control = node->config.listen[0] == '\0',
                            .key = node->keys[0],
                            .other_key = node->keys[1],
                            .logger = node->logger};
  if (node->config.require[0] != '\0') {
    (void)snprintf(config.options.transports, sizeof(config.options.transports), "%s", node->config.require);
  }
  if (!kvf_random(&config.incarnation, sizeof(config.incarnation)) ||
      !kvf_random(config.secret, sizeof(config.secret))) {
    return kvf_fail(KVF_SYSTEM, message, "the system gives no random numbers: %s", strerror(errno));
  }
  kvf_status status = kvf_core_create(&config, kvf_clock_now(), &node->core);
  kvf_forget(&config, sizeof(config));
  if (status == KVF_OK) {
    kvf_finder_init(&node->finder, node->core);
  }
  return status == KVF_OK ? KVF_OK
                          : kvf_fail(status, message, "cannot set up the node's tables: %s", kvf_status_name(status));
}

static const kvf_transport_ops *find_transport(const char *name)
{
  for (size_t i = 0; i < sizeof(all_transports) / sizeof(all_transports[0]); i++) {
    if (strcmp(all_transports[i]->name, name) == 0) {
      return all_transports[i];
    }
  }
  return NULL;
}

static void close_transports(kvf_node *node)
{
  while (node->transports_count > 0) {
    kvf_rails_close(&node->transports[--node->transports_count]);
  }
}

static kvf_status open_transports(kvf_node *node, char *message)
{
  const kvf_transport_host host = kvf_node_host(node);
  kvf_transport_config config = {.incarnation = *kvf_core_incarnation(node->core),
                                 .has_key = node->keys[0].bytes > 0,
                                 .connections_max = node->config.connections_max,
                                 .handshake_timeout_ms = node->config.handshake_timeout_ms,
                                 .copy_threads = node->config.copy_threads,
                                 .inline_bytes = node->config.inline_bytes,
                                 .tcp_streams = node->config.tcp_streams,
                                 .tcp_buffer_bytes = node->config.tcp_buffer_bytes,
                                 .spin_us = node->config.spin_us,
                                 .device_gather_bytes = node->config.device_gather_bytes,
                                 .device_gather_blocks = node->config.device_gather_blocks,
                                 .device_gather_threads = node->config.device_gather_threads,
                                 .thread_cpus = node->cpus,
                                 .tls = node->tls};
  (void)kvf_ports_parse(node->config.data_ports, &config.data_port_first, &config.data_port_last);
  if (node->listens_on.port > 0) {
    kvf_address_format(&node->listens_on, config.listen);
  }
  config.listen_other = node->other;
  (void)snprintf(config.ucx_library, sizeof(config.ucx_library), "%s", node->config.ucx_library);
  const char *name;
  for (uint32_t i = 0; (name = kvf_core_transport(node->core, i)) != NULL;) {
    const kvf_transport_ops *ops = find_transport(name);
    kvf_status status = KVF_INVALID;
    if (ops == NULL) {
      (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "transports: this library has no transport \"%s\"", name);
    } else {
      status = kvf_rails_open(ops, &config, &host, &node->transports[i], message);
    }
    const bool may_lack = node->config.require[0] == '\0' && kvf_core_transport(node->core, 1) != NULL;
    if (status == KVF_TRANSFER_SETUP && may_lack) {
      host.log(host.context, KVF_LOG_WARN, message); /* this machine lacks it: the others will do */
      uint64_t now_ns = kvf_node_enter(node);
      kvf_core_leave_out_transport(node->core, i);
      kvf_node_leave(node, now_ns);
      continue;
    }
    if (status != KVF_OK) {
      close_transports(node);
      return status;
    }
    uint64_t now_ns = kvf_node_enter(node);
    kvf_core_set_rails(node->core, i, node->transports[i].count);
    kvf_node_leave(node, now_ns);
    node->transports_count = ++i;
  }
  return KVF_OK;
}

kvf_status kvf_node_equip(kvf_node *node, char *message)
{
  kvf_status status = KVF_OK;
  if (node->memory.fence_table == NULL) {
    status = kvf_fence_table_open(node->config.lease_slots, kvf_core_incarnation(node->core), &node->memory.fence_table,
                                  &node->memory.fence_fd);
  }
  return status == KVF_OK && node->transports_count == 0 ? open_transports(node, message) : status;
}

static kvf_status open_keys(kvf_node *node, char *message)
{
  kvf_status status = KVF_OK;
  node->keys_count = 1;
  if (node->config.key_file[0] != '\0') {
    status = kvf_key_file_read(node->config.key_file, node->keys, &node->keys_count, message);
    if (status == KVF_OK && message[0] != '\0') {
      kvf_log(&node->logger, KVF_LOG_WARN, "%s", message);
      message[0] = '\0';
    }
  }
  return status;
}

static void close_fence(kvf_node *node)
{
  kvf_fence_table_close(node->memory.fence_table, node->config.lease_slots);
  kvf_own_fd_close(node->memory.fence_fd);
}

/* A name that means nothing now may do so later; its first request finds the peer as well. */
static kvf_status add_static(kvf_node *node, char *message)
{
  const char *rest = node->config.peers;
  char text[KVF_HOST_BYTES_MAX];
  while (kvf_peer_names_next(&rest, text)) {
    kvf_address address;
    if (kvf_address_resolve(text, NULL, &address, message) != KVF_OK) {
      kvf_log(&node->logger, KVF_LOG_WARN, "peers: %s is left out: %s", text, message);
    } else if (node->keys[0].bytes == 0 && !kvf_address_is_loopback(&address)) {
      return kvf_fail(KVF_INVALID, message, "peers: %s is off loopback, which needs a shared key (option key_file)",
                      text);
    } else if (kvf_core_add_static(node->core, text, &address) != KVF_OK) {
      return kvf_fail(KVF_LIMIT, message, "peers: more than %d", KVF_STATIC_PEERS_MAX);
    }
  }
  message[0] = '\0';
  return KVF_OK;
}

static kvf_status open_parts(kvf_node *node, char *message)
{
  kvf_status status = open_keys(node, message);
  if (status == KVF_OK) {
    status = kvf_tls_use_open(&node->config, node->keys, node->keys_count, &node->tls, message);
  }
  if (status != KVF_OK) {
    return status;
  }
  status = kvf_control_open(node, &node->clock.control, message);
  if (status != KVF_OK) {
    goto close_tls;
  }
  status = open_core(node, message);
  if (status != KVF_OK) {
    goto close_control;
  }
  status = add_static(node, message);
  if (status != KVF_OK) {
    goto close_core;
  }
  /* One that does not listen is a control node until it has memory. */
  if (node->config.listen[0] != '\0') {
    status = kvf_node_equip(node, message);
  }
  if (status != KVF_OK) {
    goto close_core;
  }
  status = kvf_control_start(node->clock.control);
  if (status == KVF_OK) {
    uint64_t now_ns = kvf_node_enter(node);
    kvf_core_start(node->core, now_ns);
    kvf_node_leave(node, now_ns);
    return KVF_OK;
  }
  (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "cannot start a thread");
  close_transports(node);

close_core:
  close_fence(node);
  kvf_core_destroy(node->core);
close_control:
  kvf_control_close(node->clock.control);
close_tls:
  kvf_tls_context_free(node->tls.context);
  return status;
}

static kvf_status open_cpus(kvf_node *node, char *message)
{
  node->cpus = kvf_thread_cpus_of(node->config.thread_cpus);
  return kvf_thread_cpus_are_usable(&node->cpus)
             ? KVF_OK
             : kvf_fail(KVF_INVALID, message, "thread_cpus = \"%.64s\": this process may use none of these CPUs",
                        node->config.thread_cpus);
}

static kvf_status open_log(kvf_node *node, char *message)
{
  kvf_status status = KVF_OK;
  if (node->config.log_queue != NULL) {
    node->log = node->config.log_queue;
  } else {
    status = kvf_log_sink_open(node->config.log, node->config.log_context, &node->cpus, &node->log);
  }
  node->logger = (kvf_logger){.fn = kvf_node_log, .context = node, .level = node->config.log_level};
  return status == KVF_OK ? KVF_OK
                          : kvf_fail(status, message, "cannot start the log's thread: %s", kvf_status_name(status));
}

kvf_status kvf_node_open(const kvf_config *config, kvf_node **out, char message[KVF_MESSAGE_BYTES_MAX])
{
  char unwanted[KVF_MESSAGE_BYTES_MAX];
  char *text = message == NULL ? unwanted : message;
  text[0] = '\0';
  if (out == NULL) {
    return kvf_answer(KVF_NOT_NULL(out));
  }
  *out = NULL;
  kvf_config options;
  if (config == NULL || kvf_config_copy(config, &options) != KVF_OK) {
    return kvf_answer_as(kvf_fail(KVF_INVALID, text, "no configuration of kvf_config_init()"), text);
  }
  kvf_status status = kvf_config_check(&options, text);
  if (status != KVF_OK) {
    return kvf_answer_as(status, text);
  }
  kvf_node *node = calloc(1, sizeof(*node));
  if (node == NULL) {
    return kvf_answer(KVF_NO_MEMORY);
  }
  node->owner = getpid();
  node->config = options;
  node->memory.fence_fd = -1;
  node->clock.wake_fd = -1;
  node->memory.devices = kvf_memory_devices_of(NULL, 0);
  node->events.fd = KVF_OWN_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (node->events.fd < 0) {
    (void)snprintf(text, KVF_MESSAGE_BYTES_MAX, "no file descriptor left (ulimit -n)");
    free(node);
    return kvf_answer_as(KVF_SYSTEM, text);
  }
  kvf_list_init(&node->dials);
  (void)pthread_mutex_init(&node->lock, NULL);
  (void)pthread_mutex_init(&node->memory.lock, NULL);
  status = open_cpus(node, text);
  if (status == KVF_OK) {
    status = open_log(node, text);
  }
  if (status == KVF_OK) {
    kvf_config_log_gone(&options, &node->logger);
    status = open_parts(node, text);
  }
  if (status != KVF_OK) {
    kvf_log_sink_leave(node->log);
    (void)pthread_mutex_destroy(&node->memory.lock);
    (void)pthread_mutex_destroy(&node->lock);
    kvf_own_fd_close(node->events.fd);
    kvf_forget(node->keys, sizeof(node->keys));
    free(node);
    return kvf_answer_as(status, text);
  }
  *out = node;
  return KVF_OK;
}

static void sleep_briefly(void)
{
  struct timespec pause = {.tv_nsec = (long)CLOSE_POLL_NS};
  (void)nanosleep(&pause, NULL);
}

/* Ends all leases and loads, and waits until the loads are released. */
static void wait_until_released(kvf_node *node)
{
  kvf_event events[32];
  bool released = false;
  while (!released) {
    uint64_t now_ns = kvf_node_enter(node);
    released = kvf_core_clear_memory(node->core, now_ns);
    kvf_node_leave(node, now_ns);
    while (kvf_node_poll(node, events, sizeof(events) / sizeof(events[0])) > 0) {
    }
    if (!released) {
      sleep_briefly();
    }
  }
}

/* Transports go on to report until they are closed: nothing that they say opens or closes a link after this. */
static void disconnect_links(kvf_node *node)
{
  kvf_node_link *link;
  kvf_node_link *next;
  (void)kvf_node_enter(node);
  node->closing = true;
  HASH_ITER(by_link_id, node->links, link, next)
  {
    kvf_rails_disconnect(&node->transports[link->transport], link->parts);
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): uthash finds the table that the link is in */
    HASH_DELETE(by_link_id, node->links, link);
    free(link);
  }
  (void)pthread_mutex_unlock(&node->lock);
}

void kvf_node_close(kvf_node *node)
{
  if (node == NULL || node->owner != getpid()) {
    return;
  }
  wait_until_released(node);
  kvf_ordering_close(node->memory.ordering);
  kvf_checksummer_stop(node->memory.checksummer);
  kvf_control_stop(node->clock.control);
  disconnect_links(node);
  for (uint32_t i = 0; node->memory.is_set && i < node->transports_count; i++) {
    kvf_rails_clear_memory(&node->transports[i]);
  }
  close_transports(node);
  kvf_control_close(node->clock.control);
  kvf_list *dial;
  while ((dial = kvf_list_pop_front(&node->dials)) != NULL) {
    free(KVF_CONTAINER_OF(dial, kvf_dial, link));
  }
  kvf_core_destroy(node->core);
  close_fence(node);
  kvf_checksummer_close(node->memory.checksummer);
  free(node->memory.regions);
  (void)pthread_mutex_destroy(&node->memory.lock);
  (void)pthread_mutex_destroy(&node->lock);
  kvf_own_fd_close(node->events.fd);
  kvf_tls_context_free(node->tls.context);
  kvf_forget(node->keys, sizeof(node->keys));
  kvf_log_sink_leave(node->log);
  free(node);
}

void kvf_node_drain(kvf_node *node)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_core_drain(node->core);
  kvf_node_leave(node, now_ns);
}

bool kvf_node_healthy(kvf_node *node)
{
  uint64_t now_ns = kvf_node_enter(node);
  bool healthy = kvf_core_is_healthy(node->core) && kvf_memory_works(&node->memory.devices);
  kvf_node_leave(node, now_ns);
  return healthy;
}

/* The core knows nothing of data connections, nor of what becomes of its log lines. */
static size_t runtime_stats(const kvf_node *node, kvf_stat *out, size_t capacity)
{
  size_t count = 0;
  if (count < capacity) {
    out[count++] =
        (kvf_stat){.name = "log_lines_dropped", .reason = "", .value = atomic_load(&node->log_lines_dropped)};
  }
  if (count < capacity) {
    out[count++] = (kvf_stat){.name = "data_connections_accepted", .reason = "", .value = node->connections_accepted};
  }
  for (size_t i = 0; i < KVF_NODE_REASONS && count < capacity; i++) {
    out[count++] = (kvf_stat){.name = "data_connections_ended",
                              .reason = kvf_status_name(kvf_node_reasons[i]),
                              .value = node->connections_ended[i]};
  }
  return count;
}

size_t kvf_node_stats(kvf_node *node, kvf_stat *out, size_t capacity)
{
  uint64_t now_ns = kvf_node_enter(node);
  size_t count = kvf_core_stats(node->core, out, capacity);
  count += kvf_finder_stats(&node->finder, out + count, capacity - count);
  count += runtime_stats(node, out + count, capacity - count);
  kvf_node_leave(node, now_ns);
  return count;
}

size_t kvf_node_histograms(kvf_node *node, kvf_histogram *out, size_t capacity)
{
  uint64_t now_ns = kvf_node_enter(node);
  size_t count = kvf_core_histograms(node->core, out, capacity);
  kvf_node_leave(node, now_ns);
  return count;
}

size_t kvf_node_peers(kvf_node *node, kvf_peer_stat *out, size_t capacity)
{
  uint64_t now_ns = kvf_node_enter(node);
  size_t count = kvf_core_peers(node->core, now_ns, out, capacity);
  kvf_node_leave(node, now_ns);
  return count;
}
