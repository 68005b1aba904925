/* The transport `tcp`: chunks are sent straight from the producer's blocks and received straight into the consumer's.
 * The producer looks at the fence after the kernel has taken a chunk's last byte, and says in the trailer what it saw.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "memory/memory.h"
#include "transport/own_fds.h"
#include "transport/tcp/link.h"
#include "transport/tcp/rails.h"
#include "transport/tcp/server.h"
#include "transport/thread.h"
#include "wire/data_message.h"
#include "wire/fields.h"

#define EVENTS_MAX 64

/* ---- the data thread ---- */

static void woken(kvf_tcp *tcp, kvf_tcp_source *source, uint32_t events)
{
  (void)source;
  (void)events;
  kvf_commands_drain(&tcp->commands);
}

/* True: something is left for the data thread's own thread, which is all that is not for callers if one is `calling`.
 */
static bool serve(kvf_tcp *tcp, const struct epoll_event *events, int count, bool calling)
{
  bool left = false;
  tcp->now_ns = kvf_clock_now();
  if (count > 0 && !calling) { /* else its own thread would poll for what callers do */
    tcp->busy_ns = tcp->now_ns;
    tcp->is_bulk = false;
  }

  for (int i = 0; i < count; i++) {
    kvf_tcp_source *source = events[i].data.ptr;
    if (calling && !source->is_for_callers) {
      left = true;
    } else {
      source->ready(tcp, source, events[i].events);
    }
  }
  return left;
}

/* While it polls, what is posted need not wake it. */
static bool may_spin(const kvf_tcp *tcp)
{
  return tcp->config.spin_us > 0 && kvf_driver_may_spin(&tcp->driver) &&
         tcp->now_ns < kvf_time_add(tcp->busy_ns, tcp->config.spin_us * KVF_NS_PER_US) &&
         (!tcp->is_bulk || tcp->now_ns >= tcp->yield_again_ns);
}

/* Waits for events, or commands, and serves them. False: the transport is closing and all commands have been run. */
static bool turn(kvf_tcp *tcp, uint64_t due_ns)
{
  kvf_idleness idleness = kvf_commands_rest(&tcp->commands);
  if (idleness == KVF_OVER) {
    return false;
  }
  struct epoll_event events[EVENTS_MAX];
  int count;
  if (idleness == KVF_IDLE && !may_spin(tcp)) {
    count = kvf_driver_wait(&tcp->driver, &tcp->commands, tcp->epoll_fd, events, EVENTS_MAX, tcp->now_ns, due_ns);
  } else {
    /* Whoever is to send more of a large chunk, or to take it, may have been given this core, and moves more at once
     * the longer it has it. */
    if (idleness == KVF_IDLE && tcp->is_bulk) {
      tcp->yield_again_ns = kvf_thread_yield();
    }
    count = epoll_wait(tcp->epoll_fd, events, EVENTS_MAX, 0);
  }
  kvf_commands_woken(&tcp->commands);
  (void)serve(tcp, events, count, false);
  return true;
}

static uint64_t tick(kvf_tcp *tcp)
{
  uint64_t due_ns = kvf_time_min(kvf_tcp_server_tick(tcp), kvf_tcp_links_tick(tcp));
  kvf_tcp_server_reap(tcp);
  return due_ns;
}

static void *thread_main(void *argument)
{
  kvf_tcp *tcp = argument;
  (void)pthread_mutex_lock(&tcp->driver.lock);
  do {
    (void)kvf_commands_run(&tcp->commands, tcp, &tcp->now_ns);
    kvf_refusals_report(&tcp->commands.refusals, &tcp->commands.lock, &tcp->host);
  } while (turn(tcp, tick(tcp)));
  (void)pthread_mutex_unlock(&tcp->driver.lock);
  assert(kvf_list_is_empty(&tcp->links));
  return NULL;
}

/* The caller sends what small reads ask for, and takes what has come for them. */
static bool tcp_assist(kvf_transport *transport)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  if (kvf_driver_has_small(&tcp->driver) && kvf_driver_take(&tcp->driver, &tcp->commands)) {
    struct epoll_event events[EVENTS_MAX];
    bool asked = !kvf_commands_run(&tcp->commands, tcp, &tcp->now_ns);
    int count = epoll_wait(tcp->epoll_fd, events, EVENTS_MAX, 0);
    bool left = serve(tcp, events, count, true);
    kvf_driver_leave(&tcp->driver, &tcp->commands, asked, tick(tcp), left);
  }
  return kvf_driver_has_small(&tcp->driver);
}

/* ---- open and close ---- */

static kvf_status listen_on(kvf_tcp *tcp, char *message)
{
  if (tcp->config.listen[0] == '\0') {
    return KVF_OK;
  }
  kvf_address address;
  kvf_status status = kvf_address_resolve(tcp->config.listen, NULL, &address, message);
  if (status != KVF_OK) {
    return status;
  }
  address.port = 0;
  status = kvf_socket_listen(&address, &tcp->listener_fd, &tcp->listen, message);
  if (status == KVF_OK) {
    /* Accepted sockets inherit them; set here, they count for the window that the handshake agrees on. */
    kvf_socket_set_buffers(tcp->listener_fd, tcp->config.tcp_buffer_bytes);
  }
  return status;
}

static void close_fds(kvf_tcp *tcp)
{
  if (tcp->listener_fd >= 0) {
    kvf_socket_close(tcp->listener_fd);
  }
  kvf_own_fd_close(tcp->epoll_fd);
}

static bool open_fds(kvf_tcp *tcp)
{
  tcp->epoll_fd = KVF_OWN_FD(epoll_create1(EPOLL_CLOEXEC));
  return tcp->epoll_fd >= 0 && tcp->commands.wake_fd >= 0 &&
         kvf_tcp_watch(tcp, tcp->commands.wake_fd, &tcp->wake, EPOLLIN) && kvf_tcp_server_open(tcp);
}

static void init(kvf_tcp *tcp, const kvf_transport_config *config, const kvf_transport_host *host)
{
  tcp->base.ops = &kvf_transport_tcp_rail;
  tcp->host = *host;
  tcp->config = *config;
  tcp->epoll_fd = -1;
  tcp->listener_fd = -1;
  tcp->wake.ready = woken;
  tcp->now_ns = kvf_clock_now();
  tcp->log_limit.lines_per_s = KVF_TCP_LOG_LINES_PER_S;
  kvf_list_init(&tcp->links);
  kvf_list_init(&tcp->connecting);
  kvf_tcp_server_init(tcp);
  kvf_commands_init(&tcp->commands);
  kvf_driver_init(&tcp->driver);
}

static void destroy(kvf_tcp *tcp)
{
  close_fds(tcp);
  kvf_driver_free(&tcp->driver);
  kvf_commands_free(&tcp->commands);
  free(tcp);
}

static kvf_status tcp_open(const kvf_transport_config *config, const kvf_transport_host *host, kvf_transport **out,
                           char *message)
{
  *out = NULL;
  kvf_tcp *tcp = calloc(1, sizeof(*tcp));
  if (tcp == NULL) {
    return kvf_fail(KVF_NO_MEMORY, message, "tcp: %s", strerror(ENOMEM));
  }
  init(tcp, config, host);
  kvf_status status = listen_on(tcp, message);
  if (status != KVF_OK) {
    goto destroy_tcp;
  }
  if (!open_fds(tcp)) {
    status = kvf_fail(KVF_SYSTEM, message, "tcp: no file descriptors: %s", strerror(errno));
    goto destroy_tcp;
  }
  int error = kvf_thread_start(&tcp->thread, "kvf-tcp", thread_main, tcp, &config->thread_cpus);
  if (error != 0) {
    status = kvf_fail(KVF_SYSTEM, message, "tcp: no thread: %s", strerror(error));
    goto destroy_tcp;
  }
  *out = &tcp->base;
  return KVF_OK;

destroy_tcp:
  destroy(tcp);
  return status;
}

static void tcp_close(kvf_transport *transport)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  kvf_commands_stop(&tcp->commands);
  (void)pthread_join(tcp->thread, NULL);
  kvf_tcp_server_close(tcp);
  if (tcp->memory != NULL) {
    kvf_tcp_memory_drop(tcp->memory);
  }
  destroy(tcp);
}

/* ---- memory ---- */

static void run_set_memory(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  tcp->memory = KVF_CONTAINER_OF(command, kvf_tcp_memory, set);
}

static kvf_status tcp_set_memory(kvf_transport *transport, const kvf_transport_memory *given)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  uint32_t regions = given->regions_count;
  uint32_t count = regions + given->checksums_count;
  kvf_tcp_memory *memory = malloc(sizeof(*memory) + (size_t)count * 2 * sizeof(kvf_region));
  kvf_paging *pages = memory == NULL ? NULL : kvf_paging_of_memory(given);
  if (pages == NULL) {
    free(memory);
    return KVF_NO_MEMORY;
  }
  *memory = (kvf_tcp_memory){.refs = 1,
                             .regions_count = regions,
                             .checksums_count = given->checksums_count,
                             .table_slots = given->table_slots,
                             .table = given->table,
                             .served = memory->regions + count,
                             .pages = pages};
  kvf_command_init(&memory->set, run_set_memory);
  for (uint32_t i = 0; i < count; i++) {
    memory->regions[i] = i < regions ? given->regions[i] : given->checksums_read[i - regions];
    memory->served[i] = i < regions ? given->regions[i] : given->checksums[i - regions];
  }
  if (!kvf_memory_all_are_addressable(given->regions, regions)) {
    memory->staging = malloc(KVF_TCP_STAGING_BYTES);
    if (memory->staging == NULL) {
      kvf_tcp_memory_drop(memory);
      return KVF_NO_MEMORY;
    }
  }
  kvf_commands_lock(&tcp->commands);
  bool taken = tcp->has_memory;
  if (!taken) {
    tcp->has_memory = true;
    tcp->has_checksums = given->checksums_count > 0;
    kvf_commands_post(&tcp->commands, &memory->set);
  }
  kvf_commands_unlock(&tcp->commands);
  if (taken) {
    kvf_tcp_memory_drop(memory);
    return KVF_EXISTS;
  }
  kvf_thread_move(tcp->thread, given->near_cpus);
  return KVF_OK;
}

static void run_clear_memory(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  kvf_tcp_server_clear(tcp);
  kvf_tcp_links_clear(tcp);
  if (tcp->memory != NULL) {
    kvf_tcp_memory_drop(tcp->memory);
    tcp->memory = NULL;
  }
  kvf_commands_lock(&tcp->commands);
  tcp->has_memory = false;
  kvf_commands_unlock(&tcp->commands);
  kvf_commands_end(&tcp->commands, KVF_CONTAINER_OF(command, kvf_waited, command), KVF_OK);
}

static void tcp_clear_memory(kvf_transport *transport)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  kvf_waited clear;
  kvf_command_init(&clear.command, run_clear_memory);
  (void)kvf_commands_wait(&tcp->commands, &clear);
}

/* ---- description ---- */

static kvf_status tcp_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  if (tcp->listen.port == 0) {
    return KVF_INVALID;
  }
  kvf_commands_lock(&tcp->commands);
  bool has_checksums = tcp->has_checksums;
  kvf_commands_unlock(&tcp->commands);
  kvf_tcp_description description = {KVF_TCP_DESCRIPTION_MAGIC, tcp->listen.port, tcp->config.incarnation,
                                     has_checksums ? 1 : 0};
  kvf_codec codec = kvf_writer_of(out, capacity);
  kvf_tcp_description_code(&codec, &description);
  return kvf_writer_end(&codec, true, out_bytes);
}

/* Theirs is read by them. */
static bool tcp_serves(uint32_t theirs, uint32_t ours)
{
  (void)theirs;
  return kvf_memory_ops_of(ours) != NULL;
}

const kvf_transport_ops kvf_transport_tcp_rail = {
    .name = "tcp",
    .serves = tcp_serves,
    .open = tcp_open,
    .close = tcp_close,
    .set_memory = tcp_set_memory,
    .clear_memory = tcp_clear_memory,
    .describe = tcp_describe,
    .connect = kvf_tcp_connect,
    .disconnect = kvf_tcp_disconnect,
    .read = kvf_tcp_read_start,
    .cancel = kvf_tcp_read_cancel,
    .assist = tcp_assist,
};

static kvf_status tcp_rails_open(const kvf_transport_config *config, const kvf_transport_host *host,
                                 kvf_transport **out, char *message)
{
  *out = NULL;
  uint32_t count = config->tcp_streams;
  if (count == 0 || count > KVF_RAILS_MAX) {
    return kvf_fail(KVF_INVALID, message, "tcp_streams is %u: tcp needs 1 to %d", (unsigned)count, KVF_RAILS_MAX);
  }
  kvf_transport_config each = *config;
  each.connections_max = (config->connections_max + count - 1) / count;
  return kvf_rails_open(&kvf_transport_tcp, &kvf_transport_tcp_rail, count, &each, host, out, message);
}

const kvf_transport_ops kvf_transport_tcp = {
    .name = "tcp",
    .serves = tcp_serves,
    .open = tcp_rails_open,
    .close = kvf_rails_close,
    .set_memory = kvf_rails_set_memory,
    .clear_memory = kvf_rails_clear_memory,
    .describe = kvf_rails_describe,
    .connect = kvf_rails_connect,
    .disconnect = kvf_rails_disconnect,
    .read = kvf_rails_read,
    .cancel = kvf_rails_cancel,
    .assist = kvf_rails_assist,
};
