/* The transport `tcp`: chunks are sent straight from the producer's blocks and received straight into the consumer's.
 * The producer looks at the fence after the kernel has taken a chunk's last byte, and says in the trailer what it saw.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "memory/memory.h"
#include "transport/tcp/server.h"
#include "transport/tcp/tcp_link.h"
#include "transport/thread.h"
#include "wire/data_message.h"
#include "wire/fields.h"

#define EVENTS_MAX 64

/* ---- the data thread ---- */

/* True: something is left for the data thread's own thread, which is all that is not for callers if one is `calling`.
 */
static bool serve(kvf_tcp *tcp, const struct epoll_event *events, int count, bool calling)
{
  bool left = false;
  tcp->data_thread.now_ns = kvf_clock_now();
  if (count > 0 && !calling) { /* else its own thread would poll for what callers do */
    tcp->data_thread.busy_ns = tcp->data_thread.now_ns;
    tcp->is_bulk = false;
  }

  for (int i = 0; i < count; i++) {
    kvf_tcp_source *source = events[i].data.ptr;
    if (calling && (source == NULL || !source->is_for_callers)) {
      left = true;
    } else if (source == NULL) {
      kvf_commands_drain(&tcp->data_thread.commands);
    } else {
      source->ready(tcp, source, events[i].events);
    }
  }
  return left;
}

static bool may_spin(const kvf_tcp *tcp)
{
  return kvf_data_thread_may_spin(&tcp->data_thread) &&
         (!tcp->is_bulk || tcp->data_thread.now_ns >= tcp->yield_again_ns);
}

/* Waits for events, or commands, and serves them. False: the transport is closing and all commands have been run. */
static bool turn(kvf_tcp *tcp, uint64_t due_ns)
{
  kvf_idleness idleness = kvf_commands_rest(&tcp->data_thread.commands);
  if (idleness == KVF_STOPPED) {
    return false;
  }
  struct epoll_event events[EVENTS_MAX];
  int count;
  if (idleness == KVF_IDLE && !may_spin(tcp)) {
    count = kvf_data_thread_wait(&tcp->data_thread, events, EVENTS_MAX, due_ns);
  } else {
    /* The thread that sends or takes the rest of a large chunk may have been given this core. The longer it has the
     * core, the more it moves at once. */
    if (idleness == KVF_IDLE && tcp->is_bulk) {
      tcp->yield_again_ns = kvf_thread_yield();
    }
    count = epoll_wait(tcp->data_thread.epoll_fd, events, EVENTS_MAX, 0);
  }
  kvf_commands_woken(&tcp->data_thread.commands);
  (void)serve(tcp, events, count, false);
  return true;
}

static uint64_t tick(kvf_tcp *tcp)
{
  uint64_t due_ns = kvf_time_min(kvf_tcp_server_tick(tcp), kvf_data_thread_links_tick(&tcp->data_thread, "handshake"));
  kvf_tcp_server_reap(tcp);
  return due_ns;
}

static void *thread_main(void *argument)
{
  kvf_tcp *tcp = argument;
  (void)pthread_mutex_lock(&tcp->data_thread.lock);
  do {
    (void)kvf_commands_run(&tcp->data_thread.commands, tcp, &tcp->data_thread.now_ns);
  } while (turn(tcp, tick(tcp)));
  (void)pthread_mutex_unlock(&tcp->data_thread.lock);
  assert(kvf_list_is_empty(&tcp->data_thread.links));
  return NULL;
}

/* The caller sends what small reads ask for, and takes what has come for them. */
static bool tcp_assist(kvf_transport *transport)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  if (kvf_data_thread_has_small(&tcp->data_thread) && kvf_data_thread_take(&tcp->data_thread)) {
    struct epoll_event events[EVENTS_MAX];
    bool asked = !kvf_commands_run(&tcp->data_thread.commands, tcp, &tcp->data_thread.now_ns);
    int count = epoll_wait(tcp->data_thread.epoll_fd, events, EVENTS_MAX, 0);
    bool left = serve(tcp, events, count, true);
    kvf_data_thread_leave(&tcp->data_thread, asked, tick(tcp), left);
  }
  return kvf_data_thread_has_small(&tcp->data_thread);
}

/* ---- open and close ---- */

#define TRIES_MAX 64 /* to find a port that is free at both addresses, where any will do */

/* At the first port from address.port on that is free, at both addresses if there are two. */
static kvf_status listen_at_both(kvf_tcp *tcp, kvf_address address, char *message)
{
  const kvf_transport_config *config = &tcp->data_thread.config;
  const uint32_t timeout_ms = config->handshake_timeout_ms;
  kvf_address other = config->listen_other;
  kvf_address bound;
  int *fds[] = {&tcp->listeners[0].fd, &tcp->listeners[1].fd};
  for (int i = 0; i < TRIES_MAX || address.port != 0; i++) {
    kvf_status status =
        kvf_socket_listen_first(&address, config->data_port_last, timeout_ms, fds[0], &tcp->listen, message);
    if (status != KVF_OK || other.port == 0) {
      return status;
    }
    other.port = tcp->listen.port;
    status = kvf_socket_listen(&other, timeout_ms, fds[1], &bound, message);
    if (status != KVF_ADDRESS_IN_USE || tcp->listen.port == config->data_port_last) {
      return status;
    }
    kvf_socket_close(*fds[0]);
    *fds[0] = -1;
    if (address.port != 0) {
      address.port = (uint16_t)(tcp->listen.port + 1);
    }
  }
  return KVF_ADDRESS_IN_USE;
}

static kvf_status listen_at(kvf_tcp *tcp, kvf_address address, char *message)
{
  const kvf_transport_config *config = &tcp->data_thread.config;
  kvf_status status = listen_at_both(tcp, address, message);
  if (status == KVF_ADDRESS_IN_USE && config->data_port_first > 0) {
    char of_last[KVF_MESSAGE_BYTES_MAX];
    (void)snprintf(of_last, sizeof(of_last), "%s", message);
    return kvf_fail(status, message,
                    "data_ports = %u-%u: no port of it is free; each rank takes as many as tcp_streams says (%u): name "
                    "more of them; the last: %.100s",
                    (unsigned)config->data_port_first, (unsigned)config->data_port_last, (unsigned)config->tcp_streams,
                    of_last);
  }
  return status;
}

static kvf_status listen_on(kvf_tcp *tcp, char *message)
{
  if (tcp->data_thread.config.listen[0] == '\0') {
    return KVF_OK;
  }
  kvf_address address;
  kvf_status status = kvf_address_resolve(tcp->data_thread.config.listen, NULL, &address, message);
  if (status != KVF_OK) {
    return status;
  }
  address.port = tcp->data_thread.config.data_port_first;
  status = listen_at(tcp, address, message);
  if (status != KVF_OK) {
    return status;
  }
  /* Accepted sockets inherit them; set here, they count for the window that the handshake agrees on. */
  for (size_t i = 0; i < KVF_TCP_LISTENERS_MAX; i++) {
    if (tcp->listeners[i].fd >= 0) {
      kvf_socket_set_buffers(tcp->listeners[i].fd, tcp->data_thread.config.tcp_buffer_bytes);
    }
  }
  return kvf_tcp_watch_listeners(tcp, EPOLLIN)
             ? KVF_OK
             : kvf_fail(KVF_SYSTEM, message, "tcp: no file descriptors: %s", strerror(errno));
}

static void close_listeners(kvf_tcp *tcp)
{
  for (size_t i = 0; i < KVF_TCP_LISTENERS_MAX; i++) {
    if (tcp->listeners[i].fd >= 0) {
      kvf_socket_close(tcp->listeners[i].fd);
      tcp->listeners[i].fd = -1;
    }
  }
}

static void memory_free(kvf_tcp_memory *memory)
{
  if (memory != NULL) {
    kvf_tcp_rings_close(&memory->rings);
    free(memory->staging);
    free(memory->pages);
    free(memory);
  }
}

static void destroy(kvf_tcp *tcp)
{
  close_listeners(tcp);
  kvf_data_thread_free(&tcp->data_thread);
  memory_free(tcp->memory);
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
  kvf_tcp_server_init(tcp);
  tcp->data_thread.close_link = kvf_tcp_link_close;
  kvf_status status =
      kvf_data_thread_open(&tcp->data_thread, &kvf_transport_tcp, config, host, KVF_TCP_LOG_LINES_PER_S, message);
  status = status == KVF_OK ? listen_on(tcp, message) : status;
  status = status == KVF_OK ? kvf_data_thread_start(&tcp->data_thread, "kvf-tcp", thread_main, message) : status;
  if (status != KVF_OK) {
    destroy(tcp);
    return status;
  }
  *out = &tcp->data_thread.base;
  return KVF_OK;
}

static void tcp_close(kvf_transport *transport)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  kvf_data_thread_stop(&tcp->data_thread);
  kvf_tcp_server_close(tcp);
  destroy(tcp);
}

/* ---- memory ---- */

static void run_set_memory(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  tcp->memory = KVF_CONTAINER_OF(command, kvf_tcp_memory, set);
  kvf_data_thread_use_memory(&tcp->data_thread, tcp->memory->pages);
}

/* NULL: no memory. */
static kvf_tcp_memory *memory_of(const kvf_transport_memory *given)
{
  const bool is_staged = !kvf_memory_all_are_addressable(given->regions, given->regions_count);
  kvf_tcp_memory *memory = calloc(1, sizeof(*memory));
  if (memory == NULL) {
    return NULL;
  }
  kvf_command_init(&memory->set, run_set_memory);
  memory->pages = kvf_paging_of_memory(given);
  memory->staging = is_staged ? malloc(KVF_TCP_STAGING_BYTES) : NULL;
  if (memory->pages == NULL || (is_staged && memory->staging == NULL)) {
    memory_free(memory);
    return NULL;
  }
  if (is_staged) {
    kvf_tcp_rings_open(&memory->rings, given->regions, given->regions_count);
  }
  return memory;
}

static kvf_status tcp_set_memory(kvf_transport *transport, const kvf_transport_memory *given)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  kvf_tcp_memory *memory = memory_of(given);
  if (memory == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_commands_lock(&tcp->data_thread.commands);
  bool taken = tcp->has_memory;
  if (!taken) {
    tcp->has_memory = true;
    tcp->has_checksums = given->checksums_count > 0;
    kvf_commands_post(&tcp->data_thread.commands, &memory->set);
  }
  kvf_commands_unlock(&tcp->data_thread.commands);
  if (taken) {
    memory_free(memory);
    return KVF_EXISTS;
  }
  kvf_thread_move(tcp->data_thread.thread, given->near_cpus);
  return KVF_OK;
}

static kvf_status clear_memory(void *owner, void *argument)
{
  kvf_tcp *tcp = owner;
  (void)argument;
  kvf_tcp_server_clear(tcp);
  kvf_tcp_links_clear(tcp);
  memory_free(tcp->memory);
  tcp->memory = NULL;
  kvf_data_thread_use_memory(&tcp->data_thread, NULL);
  kvf_commands_lock(&tcp->data_thread.commands);
  tcp->has_memory = false;
  kvf_commands_unlock(&tcp->data_thread.commands);
  return KVF_OK;
}

static void tcp_clear_memory(kvf_transport *transport)
{
  (void)kvf_commands_ask(&kvf_tcp_of(transport)->data_thread.commands, clear_memory, NULL);
}

/* ---- description ---- */

static kvf_status tcp_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  if (tcp->listen.port == 0) {
    return KVF_INVALID;
  }
  kvf_commands_lock(&tcp->data_thread.commands);
  bool has_checksums = tcp->has_checksums;
  kvf_commands_unlock(&tcp->data_thread.commands);
  kvf_tcp_description description = {KVF_TCP_DESCRIPTION_MAGIC, tcp->listen.port, tcp->data_thread.config.incarnation,
                                     has_checksums ? 1 : 0};
  kvf_codec codec = kvf_writer_of(out, capacity);
  kvf_tcp_description_code(&codec, &description);
  return kvf_writer_end(&codec, true, out_bytes);
}

static bool tcp_serves(uint32_t theirs, uint32_t ours)
{
  (void)theirs;
  return kvf_memory_ops_of(ours) != NULL;
}

const kvf_transport_ops kvf_transport_tcp = {
    .name = "tcp",
    .has_rails = true,
    .serves = tcp_serves,
    .open = tcp_open,
    .close = tcp_close,
    .set_memory = tcp_set_memory,
    .clear_memory = tcp_clear_memory,
    .describe = tcp_describe,
    .connect = kvf_tcp_connect,
    .disconnect = kvf_data_thread_disconnect,
    .read = kvf_tcp_read_start,
    .cancel = kvf_data_thread_read_cancel,
    .assist = tcp_assist,
};
