/* The transport `ucx`: the consumer reads the producer's blocks, and its fence table, with UCX's get. Where the network
 * can read memory by itself nothing is needed of the producer's threads; over TCP its data thread answers. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "transport/socket.h"
#include "transport/thread.h"
#include "transport/ucx/get.h"
#include "transport/ucx/message.h"
#include "transport/ucx/ucx_link.h"
#include "transport/ucx/ucx_memory.h"

#define EVENTS_MAX 8
#define UCX_ADDS_BYTES 256    /* to a message, at most; far less */
#define ASSIST_TURNS 4        /* of a caller; what there is then is left to the data thread's own thread */
#define POLL_NS KVF_NS_PER_MS /* where UCX cannot be waited for */

/* ---- set-up, in the data thread ---- */

/* Sets what the environment does not: `variable` is UCX_TCP_ and the name of the setting. */
static void set_tcp(const kvf_ucx *ucx, kvf_ucp_config config, const char *variable, const char *value)
{
  const unsigned first_with_prefix = 17; /* the minor version; before it a setting of one transport has none */
  const char *name = variable + strlen(ucx->api->minor >= first_with_prefix ? "UCX_" : "UCX_TCP_");
  if (getenv(variable) == NULL) {
    (void)ucx->api->config_modify(config, name, value); /* one that is not known has nothing to be set for */
  }
}

/* UCX warns of settings that nothing uses. */
static bool may_use_tcp(void)
{
  const char *transports = getenv("UCX_TLS");
  return transports == NULL || transports[0] == '^' || strstr(transports, "tcp") != NULL ||
         strstr(transports, "all") != NULL;
}

/* Before 1.16, and without its new protocols, short gets are copied by the host, wherever they go. */
static bool minds_memory_types(const kvf_ucx_api *api)
{
  const char *protocols = getenv("UCX_PROTO_ENABLE");
  return api->minor >= 16 && (protocols == NULL || strchr("yYtT1", protocols[0]) != NULL);
}

static kvf_ucs_status configure(const kvf_ucx *ucx, kvf_ucp_config config)
{
  if (may_use_tcp()) {
    /* A message of answers, with what UCX adds, fits into one buffer; UCX wants it no larger than those that receive.
     */
    if (getenv("UCX_TCP_RX_SEG_SIZE") == NULL) {
      set_tcp(ucx, config, "UCX_TCP_TX_SEG_SIZE", "62k");
      static_assert(KVF_UCX_ANSWERS_BYTES_MAX + UCX_ADDS_BYTES <= 62u << 10, "one buffer");
    }
    /* Events are taken one by one. If several were taken, the first could end the connection of another; a UCX with
     * assertions (Debian's) then aborts the process (uct_tcp_iface_handle_events). */
    set_tcp(ucx, config, "UCX_TCP_MAX_POLL", "1");
  }
  /* A node whose peers are all on this host shall not be reached from elsewhere through UCX either. */
  bool is_restricted = ucx->is_loopback && getenv("UCX_NET_DEVICES") == NULL;
  return is_restricted ? ucx->api->config_modify(config, "NET_DEVICES", "lo") : KVF_UCS_OK;
}

static kvf_status context_open(kvf_ucx *ucx, char *message)
{
  const kvf_ucp_params params = {.field_mask = KVF_UCP_PARAM_FIELD_FEATURES,
                                 .features = KVF_UCP_FEATURE_RMA | KVF_UCP_FEATURE_AM | KVF_UCP_FEATURE_WAKEUP};
  kvf_ucp_config config = NULL;
  kvf_ucs_status error = ucx->api->config_read(NULL, NULL, &config);
  if (error == KVF_UCS_OK) {
    error = configure(ucx, config);
    if (error == KVF_UCS_OK) {
      error = ucx->api->init_version(KVF_UCX_MAJOR, KVF_UCX_MINOR, &params, config, &ucx->context);
    }
    ucx->api->config_release(config);
  }
  if (error != KVF_UCS_OK) {
    const char *transports = getenv("UCX_TLS");
    const char *devices = getenv("UCX_NET_DEVICES");
    ucx->context = NULL;
    return kvf_fail(KVF_TRANSFER_SETUP, message,
                    "UCX %u.%u.%u finds nothing that it can use: %s (UCX_TLS=%.32s, UCX_NET_DEVICES=%.32s)",
                    ucx->api->major, ucx->api->minor, ucx->api->release, kvf_ucx_text(ucx, error),
                    transports == NULL ? "" : transports,
                    devices != NULL    ? devices
                    : ucx->is_loopback ? "lo, since all peers are on this host"
                                       : "");
  }
  kvf_ucp_context_attr attr = {.field_mask = KVF_UCP_ATTR_FIELD_MEMORY_TYPES};
  error = ucx->api->context_query(ucx->context, &attr);
  ucx->has_cuda =
      error == KVF_UCS_OK && (attr.memory_types >> KVF_UCS_MEMORY_TYPE_CUDA & 1) != 0 && minds_memory_types(ucx->api);
  return KVF_OK;
}

static kvf_status rooms_open(kvf_ucx *ucx, char *message)
{
  const size_t bytes = KVF_UCX_ROOMS_MAX * sizeof(*ucx->rooms);
  ucx->rooms = aligned_alloc(4096, bytes);
  if (ucx->rooms == NULL) {
    return kvf_fail(KVF_SYSTEM, message, "%s", strerror(ENOMEM));
  }
  memset(ucx->rooms, 0, bytes);
  kvf_ucs_status error = kvf_ucx_map(ucx, ucx->rooms, bytes, &ucx->rooms_mem);
  if (error != KVF_UCS_OK) {
    return kvf_fail(KVF_SYSTEM, message, "UCX does not take memory: %s", kvf_ucx_text(ucx, error));
  }
  for (uint32_t i = 0; i < KVF_UCX_ROOMS_MAX; i++) {
    ucx->rooms_free[ucx->rooms_free_count++] = (uint16_t)i;
  }
  return KVF_OK;
}

static kvf_status open_ucx(void *owner, void *message)
{
  kvf_ucx *ucx = owner;
  kvf_status status = kvf_ucx_load(ucx->data_thread.config.ucx_library, &ucx->api, message);
  status = status == KVF_OK ? context_open(ucx, message) : status;
  status = status == KVF_OK ? kvf_ucx_messages_open(ucx, message) : status;
  status = status == KVF_OK ? kvf_ucx_worker_open(ucx, &ucx->reader, message) : status;
  status = status == KVF_OK ? kvf_ucx_messages_serve_reader(ucx, message) : status;
  return status == KVF_OK ? rooms_open(ucx, message) : status;
}

static void close_ucx(kvf_ucx *ucx)
{
  kvf_ucx_memory_close(ucx);
  if (ucx->rooms_mem.mem != NULL) {
    (void)ucx->api->mem_unmap(ucx->context, ucx->rooms_mem.mem);
  }
  free(ucx->rooms);
  kvf_ucx_worker_close(ucx, &ucx->reader);
  kvf_ucx_messages_free(&ucx->asks);
  kvf_ucx_messages_close(ucx);
  if (ucx->context != NULL) {
    ucx->api->cleanup(ucx->context);
  }
}

/* ---- the data thread ---- */

static bool progress(const kvf_ucx *ucx, kvf_ucp_worker worker)
{
  bool progressed = false;
  for (int i = 0; worker != NULL && i < KVF_UCX_PROGRESS_TURNS && ucx->api->worker_progress(worker) > 0; i++) {
    progressed = true;
  }
  return progressed;
}

static bool run_ready(kvf_ucx *ucx)
{
  bool ran = false;
  kvf_list *node;
  while ((node = kvf_list_pop_front(&ucx->ready)) != NULL) {
    kvf_ucx_batch *batch = KVF_CONTAINER_OF(node, kvf_ucx_batch, in_ready);
    batch->ready(ucx, batch);
    ran = true;
  }
  return ran;
}

/* Whether the worker's descriptor will tell of its events. */
static bool arm(const kvf_ucx *ucx, kvf_ucp_worker worker, uint64_t *due_ns)
{
  kvf_ucs_status status = worker == NULL ? KVF_UCS_OK : ucx->api->worker_arm(worker);
  if (status != KVF_UCS_OK && status != KVF_UCS_ERR_BUSY) {
    *due_ns = kvf_time_min(*due_ns, kvf_time_add(ucx->data_thread.now_ns, POLL_NS));
    return true;
  }
  return status == KVF_UCS_OK;
}

static bool may_wait(const kvf_ucx *ucx, uint64_t *due_ns)
{
  return !kvf_data_thread_may_spin(&ucx->data_thread) && arm(ucx, ucx->reader, due_ns) && arm(ucx, ucx->server, due_ns);
}

/* Waits for events or commands. False: the transport is closing, and nothing is left. */
static bool turn(kvf_ucx *ucx, bool was_busy, uint64_t due_ns)
{
  kvf_idleness idleness = kvf_commands_rest(&ucx->data_thread.commands);
  if (idleness == KVF_STOPPED && kvf_list_is_empty(&ucx->data_thread.links)) {
    return false;
  }
  bool is_idle = !was_busy && idleness != KVF_BUSY;
  if (is_idle && may_wait(ucx, &due_ns)) {
    struct epoll_event events[EVENTS_MAX];
    int count = kvf_data_thread_wait(&ucx->data_thread, events, EVENTS_MAX, due_ns);
    for (int i = 0; i < count; i++) {
      if (events[i].data.ptr == NULL) {
        kvf_commands_drain(&ucx->data_thread.commands);
      }
    }
  }
  kvf_commands_woken(&ucx->data_thread.commands);
  return true;
}

/* What has come of UCX's work. Whether there was something, or there may be more right now. */
static bool act(kvf_ucx *ucx, bool busy, uint64_t *due_ns)
{
  ucx->data_thread.now_ns = kvf_clock_now();
  busy = run_ready(ucx) || busy;
  busy = kvf_ucx_links_run(ucx) || busy;
  *due_ns = kvf_time_min(kvf_ucx_links_tick(ucx), kvf_ucx_reads_tick(ucx));
  *due_ns = kvf_time_min(*due_ns, kvf_data_thread_links_tick(&ucx->data_thread, "answer"));
  busy = ucx->has_called || busy;
  ucx->has_called = false;
  return busy;
}

static void *thread_main(void *argument)
{
  kvf_ucx *ucx = argument;
  bool busy;
  uint64_t due_ns;
  (void)pthread_mutex_lock(&ucx->data_thread.lock);
  do {
    busy = kvf_commands_run(&ucx->data_thread.commands, ucx, &ucx->data_thread.now_ns);
    busy = progress(ucx, ucx->reader) || busy;
    busy = progress(ucx, ucx->server) || busy;
    busy = act(ucx, busy, &due_ns);
    if (busy) {
      ucx->data_thread.busy_ns = ucx->data_thread.now_ns;
    }
  } while (turn(ucx, busy, due_ns));
  (void)pthread_mutex_unlock(&ucx->data_thread.lock);
  close_ucx(ucx);
  return NULL;
}

/* ---- a caller ---- */

/* Whether others wish to read our memory: that is left to the data thread's own thread, which may not be looking. */
static bool is_asked(const kvf_ucx *ucx)
{
  struct epoll_event events[EVENTS_MAX];
  int count = ucx->server == NULL ? 0 : epoll_wait(ucx->data_thread.epoll_fd, events, EVENTS_MAX, 0);
  for (int i = 0; i < count; i++) {
    if (events[i].data.ptr == ucx->server) {
      return true;
    }
  }
  return false;
}

/* The caller sends what small reads ask for, and takes what has come for them. */
static bool ucx_assist(kvf_transport *transport)
{
  kvf_ucx *ucx = kvf_ucx_of(transport);
  if (kvf_data_thread_has_small(&ucx->data_thread) && kvf_data_thread_take(&ucx->data_thread)) {
    uint64_t due_ns = KVF_TIME_NEVER;
    bool asked = !kvf_commands_run(&ucx->data_thread.commands, ucx, &ucx->data_thread.now_ns);
    bool busy = true;
    for (int i = 0; busy && i < ASSIST_TURNS; i++) {
      busy = act(ucx, progress(ucx, ucx->reader), &due_ns);
    }
    kvf_data_thread_leave(&ucx->data_thread, asked, due_ns, busy || is_asked(ucx));
  }
  return kvf_data_thread_has_small(&ucx->data_thread);
}

/* ---- open and close ---- */

static void init(kvf_ucx *ucx)
{
  ucx->data_thread.close_link = kvf_ucx_link_close;
  kvf_list_init(&ucx->troubled);
  kvf_list_init(&ucx->ready);
  kvf_list_init(&ucx->leaving);
  kvf_list_init(&ucx->waiting);
  kvf_list_init(&ucx->stopping);
  kvf_ucx_messages_init(&ucx->asks);
  kvf_ucx_messages_init(&ucx->answers);
}

static void destroy(kvf_ucx *ucx)
{
  kvf_data_thread_free(&ucx->data_thread);
  free(ucx);
}

static kvf_status open_in_thread(kvf_ucx *ucx, char *message)
{
  char said[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_status status = kvf_data_thread_start(&ucx->data_thread, "kvf-ucx", thread_main, message);
  if (status != KVF_OK) {
    return status;
  }
  status = kvf_commands_ask(&ucx->data_thread.commands, open_ucx, said);
  if (status != KVF_OK) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "ucx: %.*s", KVF_MESSAGE_BYTES_MAX - 6, said);
    kvf_data_thread_stop(&ucx->data_thread);
  }
  return status;
}

static kvf_status ucx_open(const kvf_transport_config *config, const kvf_transport_host *host, kvf_transport **out,
                           char *message)
{
  kvf_address listen = {0};
  *out = NULL;
  if (config->listen[0] != '\0') {
    kvf_status status = kvf_address_resolve(config->listen, NULL, &listen, message);
    if (status != KVF_OK) {
      return status;
    }
  }
  kvf_ucx *ucx = calloc(1, sizeof(*ucx));
  if (ucx == NULL) {
    return kvf_fail(KVF_NO_MEMORY, message, "ucx: %s", strerror(ENOMEM));
  }
  init(ucx);
  ucx->is_loopback = config->listen[0] == '\0' ? !config->has_key : kvf_address_is_loopback(&listen);
  kvf_status status =
      kvf_data_thread_open(&ucx->data_thread, &kvf_transport_ucx, config, host, KVF_UCX_LOG_LINES_PER_S, message);
  status = status == KVF_OK ? open_in_thread(ucx, message) : status;
  if (status != KVF_OK) {
    destroy(ucx);
    return status;
  }
  *out = &ucx->data_thread.base;
  return KVF_OK;
}

static void ucx_close(kvf_transport *transport)
{
  kvf_ucx *ucx = kvf_ucx_of(transport);
  kvf_data_thread_stop(&ucx->data_thread);
  destroy(ucx);
}

static bool is_known(uint32_t kind)
{
  return kind == KVF_MEMORY_HOST || kind == KVF_MEMORY_CUDA;
}

/* Of CUDA's, where UCX knows it (ucx_memory.c) and the network reads memory by itself (ucx_link.c). */
static bool ucx_serves(uint32_t theirs, uint32_t ours)
{
  return is_known(theirs) && is_known(ours);
}

const kvf_transport_ops kvf_transport_ucx = {
    .name = "ucx",
    .serves = ucx_serves,
    .open = ucx_open,
    .close = ucx_close,
    .set_memory = kvf_ucx_set_memory,
    .clear_memory = kvf_ucx_clear_memory,
    .describe = kvf_ucx_describe,
    .connect = kvf_ucx_connect,
    .disconnect = kvf_data_thread_disconnect,
    .read = kvf_ucx_read_start,
    .cancel = kvf_data_thread_read_cancel,
    .assist = ucx_assist,
};
