/* The data thread's turns with callers, its links from connecting to down, and reads from their start to the report. */
#include "transport/data_thread.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/own_fds.h"
#include "transport/checksums.h"

/* ---- life ---- */

kvf_status kvf_data_thread_open(kvf_data_thread *data_thread, const kvf_transport_ops *ops,
                                const kvf_transport_config *config, const kvf_transport_host *host,
                                uint32_t log_lines_per_s, char *message)
{
  struct epoll_event event = {.events = EPOLLIN};
  data_thread->base.ops = ops;
  data_thread->host = *host;
  data_thread->config = *config;
  data_thread->now_ns = kvf_clock_now();
  data_thread->log_limit.lines_per_s = log_lines_per_s;
  kvf_list_init(&data_thread->links);
  kvf_list_init(&data_thread->connecting);
  (void)pthread_mutex_init(&data_thread->lock, NULL);
  kvf_commands_init(&data_thread->commands);
  data_thread->epoll_fd = KVF_OWN_FD(epoll_create1(EPOLL_CLOEXEC));
  if (data_thread->epoll_fd < 0 || data_thread->commands.wake_fd < 0 ||
      epoll_ctl(data_thread->epoll_fd, EPOLL_CTL_ADD, data_thread->commands.wake_fd, &event) != 0) {
    return kvf_fail(KVF_SYSTEM, message, "%s: no file descriptors: %s", ops->name, strerror(errno));
  }
  return KVF_OK;
}

kvf_status kvf_data_thread_start(kvf_data_thread *data_thread, const char *thread_name,
                                 void *(*main)(void *data_thread), char *message)
{
  int error = kvf_thread_start(&data_thread->thread, thread_name, main, data_thread, &data_thread->config.thread_cpus);
  return error == 0 ? KVF_OK
                    : kvf_fail(KVF_SYSTEM, message, "%s: no thread: %s", data_thread->base.ops->name, strerror(error));
}

void kvf_data_thread_stop(kvf_data_thread *data_thread)
{
  kvf_commands_stop(&data_thread->commands);
  (void)pthread_join(data_thread->thread, NULL);
}

void kvf_data_thread_free(kvf_data_thread *data_thread)
{
  kvf_own_fd_close(data_thread->epoll_fd);
  (void)pthread_mutex_destroy(&data_thread->lock);
  kvf_commands_free(&data_thread->commands);
}

void kvf_data_thread_log(kvf_data_thread *data_thread, kvf_log_level level, kvf_status why, const kvf_address *peer,
                         const char *format, ...)
{
  uint32_t left_out = 0;
  if (!kvf_log_limit_allows(&data_thread->log_limit, (uint32_t)-why, data_thread->now_ns, &left_out)) {
    return;
  }
  char address[KVF_ADDRESS_TEXT_BYTES];
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_address_format(peer, address);
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  char line[KVF_LOG_LINE_BYTES_MAX];
  int used = snprintf(line, sizeof(line), "%s: peer %s: %s", data_thread->base.ops->name, address, message);
  if (left_out > 0) {
    (void)snprintf(line + used, sizeof(line) - (size_t)used, " (and %u lines left out)", (unsigned)left_out);
  }
  data_thread->host.log(data_thread->host.context, level, line);
}

void kvf_data_thread_use_memory(kvf_data_thread *data_thread, const kvf_paging *memory)
{
  data_thread->memory = memory;
  data_thread->generation++;
}

/* ---- whose turn it is ---- */

int kvf_data_thread_wait(kvf_data_thread *data_thread, struct epoll_event *events, int capacity, uint64_t due_ns)
{
  const uint64_t now_ns = data_thread->now_ns;
  if (data_thread->asks >= KVF_DATA_THREAD_ASKS_MIN) {
    data_thread->light_until_ns = kvf_time_add(now_ns, KVF_DATA_THREAD_LOOK_NS);
  }
  data_thread->asks = 0;
  bool is_light =
      now_ns < data_thread->light_until_ns && atomic_load_explicit(&data_thread->large_open, memory_order_relaxed) == 0;
  if (is_light) {
    due_ns = kvf_time_min(due_ns, data_thread->light_until_ns);
  }

  int wait_ms = kvf_thread_wait_ms(now_ns, due_ns);
  int count = 0;
  data_thread->waits_until_ns = due_ns;
  data_thread->has_driven = false;
  (void)pthread_mutex_unlock(&data_thread->lock);
  if (is_light) {
    struct pollfd wake = {.fd = data_thread->commands.wake_fd, .events = POLLIN};
    (void)poll(&wake, 1, wait_ms);
  } else {
    count = epoll_wait(data_thread->epoll_fd, events, capacity, wait_ms);
  }
  (void)pthread_mutex_lock(&data_thread->lock);
  return is_light || data_thread->has_driven ? epoll_wait(data_thread->epoll_fd, events, capacity, 0) : count;
}

bool kvf_data_thread_may_spin(const kvf_data_thread *data_thread)
{
  return atomic_load_explicit(&data_thread->small_open, memory_order_relaxed) == 0 &&
         data_thread->now_ns < kvf_time_add(data_thread->busy_ns, data_thread->config.spin_us * KVF_NS_PER_US);
}

/* ---- a caller ---- */

bool kvf_data_thread_has_small(const kvf_data_thread *data_thread)
{
  return atomic_load_explicit(&data_thread->small_open, memory_order_relaxed) > 0 &&
         atomic_load_explicit(&data_thread->large_open, memory_order_relaxed) == 0;
}

bool kvf_data_thread_take(kvf_data_thread *data_thread)
{
  if (pthread_mutex_trylock(&data_thread->lock) != 0) {
    kvf_commands_wake(&data_thread->commands, true); /* it may have looked already */
    return false;
  }
  data_thread->has_driven = true;
  return true;
}

void kvf_data_thread_leave(kvf_data_thread *data_thread, bool asked, uint64_t due_ns, bool wakes)
{
  data_thread->asks += asked;
  bool is_early = due_ns < data_thread->waits_until_ns;
  (void)pthread_mutex_unlock(&data_thread->lock);
  if (is_early || wakes) {
    kvf_commands_wake(&data_thread->commands, false);
  }
}

/* ---- links ---- */

bool kvf_data_thread_link_init(kvf_data_thread_link *link, kvf_transport *transport, const kvf_link_spec *spec,
                               void (*connect)(void *, kvf_command *), void (*disconnect)(void *, kvf_command *))
{
  kvf_paging *pages = kvf_paging_of_link(spec);
  if (pages == NULL) {
    free(link);
    return false;
  }
  link->base = (kvf_link){.transport = transport, .user = spec->user};
  kvf_command_init(&link->connect, connect);
  kvf_command_init(&link->disconnect, disconnect);
  kvf_list_init(&link->open);
  kvf_list_init(&link->in_links);
  kvf_list_init(&link->in_connecting);
  link->peer = spec->peer;
  link->incarnation = spec->incarnation;
  link->peer_generation = spec->generation;
  link->pages = pages;
  return true;
}

void kvf_data_thread_connect(kvf_data_thread_link *link)
{
  kvf_commands *commands = &kvf_data_thread_of(link->base.transport)->commands;
  kvf_commands_lock(commands);
  kvf_commands_post(commands, &link->connect);
  kvf_commands_unlock(commands);
}

void kvf_data_thread_disconnect(kvf_link *base)
{
  kvf_data_thread_link *link = kvf_data_thread_link_of(base);
  kvf_commands *commands = &kvf_data_thread_of(base->transport)->commands;
  kvf_commands_lock(commands);
  link->disconnected = true;
  kvf_commands_post(commands, &link->disconnect);
  kvf_commands_unlock(commands);
}

kvf_status kvf_data_thread_link_begin(kvf_data_thread_link *link, char *message)
{
  kvf_data_thread *data_thread = kvf_data_thread_of(link->base.transport);
  kvf_list_push_back(&data_thread->links, &link->in_links);
  kvf_list_push_back(&data_thread->connecting, &link->in_connecting);
  link->deadline_ns = kvf_time_add(data_thread->now_ns, kvf_ms_to_ns(data_thread->config.handshake_timeout_ms));
  link->generation = data_thread->generation;
  if (data_thread->memory == NULL) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "no memory is registered here");
  }
  return kvf_paging_pair(link->pages, data_thread->memory, message);
}

void kvf_data_thread_agree_on_checksums(kvf_data_thread_link *link, bool they_have)
{
  kvf_data_thread *data_thread = kvf_data_thread_of(link->base.transport);
  if (!kvf_paging_agree_on_checksums(link->pages, data_thread->memory, they_have)) {
    kvf_data_thread_log(data_thread, KVF_LOG_WARN, KVF_OK, &link->peer, KVF_NO_CHECKSUMS_LINE);
  }
}

static bool is_wanted(kvf_data_thread *data_thread, const kvf_data_thread_link *link)
{
  kvf_commands_lock(&data_thread->commands);
  bool wanted = !link->disconnected;
  kvf_commands_unlock(&data_thread->commands);
  return wanted;
}

void kvf_data_thread_link_up(kvf_data_thread_link *link)
{
  kvf_data_thread *data_thread = kvf_data_thread_of(link->base.transport);
  kvf_list_remove(&link->in_connecting);
  link->state = KVF_DATA_THREAD_LINK_UP;
  if (is_wanted(data_thread, link)) {
    data_thread->host.link_up(data_thread->host.context, &link->base, KVF_OK);
  }
}

bool kvf_data_thread_link_fail(kvf_data_thread_link *link, kvf_status status, const char *format, ...)
{
  kvf_data_thread *data_thread = kvf_data_thread_of(link->base.transport);
  const bool was_up = link->state == KVF_DATA_THREAD_LINK_UP;
  if (link->state == KVF_DATA_THREAD_LINK_DOWN) {
    return false;
  }
  char message[KVF_MESSAGE_BYTES_MAX];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(message, sizeof(message), format, arguments); /* before what it speaks of is closed */
  va_end(arguments);
  link->state = KVF_DATA_THREAD_LINK_DOWN;
  link->failure = status;
  kvf_list_remove(&link->in_connecting);
  data_thread->close_link(data_thread, link, status == KVF_PEER_DOWN ? KVF_TRANSFER_FAILED : status);
  if (is_wanted(data_thread, link)) {
    kvf_data_thread_log(data_thread, KVF_LOG_WARN, status, &link->peer, "link failed: %s", message);
    (was_up ? data_thread->host.link_down : data_thread->host.link_up)(data_thread->host.context, &link->base, status);
  }
  return false;
}

uint64_t kvf_data_thread_links_tick(kvf_data_thread *data_thread, const char *what)
{
  while (!kvf_list_is_empty(&data_thread->connecting)) {
    kvf_data_thread_link *link = KVF_CONTAINER_OF(data_thread->connecting.next, kvf_data_thread_link, in_connecting);
    if (link->deadline_ns > data_thread->now_ns) {
      return link->deadline_ns;
    }
    (void)kvf_data_thread_link_fail(link, KVF_HANDSHAKE_TIMEOUT, "no %s in %u ms", what,
                                    (unsigned)data_thread->config.handshake_timeout_ms);
  }
  return KVF_TIME_NEVER;
}

/* ---- reads ---- */

static atomic_uint *open_count(kvf_data_thread *data_thread, const kvf_transfer *read)
{
  return read->small ? &data_thread->small_open : &data_thread->large_open;
}

void kvf_data_thread_read_start(kvf_link *base, const kvf_transfer *request, kvf_data_thread_read *read,
                                void (*start)(void *, kvf_command *), void (*cancel)(void *, kvf_command *))
{
  kvf_data_thread *data_thread = kvf_data_thread_of(base->transport);
  kvf_data_thread_link *link = kvf_data_thread_link_of(base);
  read->link = link;
  read->transfer = *request;
  kvf_command_init(&read->start, start);
  kvf_command_init(&read->cancel, cancel);
  (void)atomic_fetch_add_explicit(open_count(data_thread, request), 1, memory_order_relaxed);
  kvf_commands_lock(&data_thread->commands);
  kvf_list_push_back(&link->open, &read->in_open);
  if (request->small && kvf_data_thread_has_small(data_thread)) { /* the caller starts it: no thread need be woken */
    kvf_list_push_back(&data_thread->commands.list, &read->start.in_commands);
  } else {
    kvf_commands_post(&data_thread->commands, &read->start);
  }
  kvf_commands_unlock(&data_thread->commands);
}

void kvf_data_thread_read_cancel(kvf_link *base, uint64_t read_id)
{
  const kvf_list *open = &kvf_data_thread_link_of(base)->open;
  kvf_commands *commands = &kvf_data_thread_of(base->transport)->commands;
  kvf_commands_lock(commands);
  for (kvf_list *node = open->next; node != open; node = node->next) {
    kvf_data_thread_read *read = KVF_CONTAINER_OF(node, kvf_data_thread_read, in_open);
    if (read->transfer.id == read_id) {
      kvf_commands_post(commands, &read->cancel);
      break;
    }
  }
  kvf_commands_unlock(commands);
}

kvf_status kvf_data_thread_read_prepare(kvf_data_thread_read *read)
{
  const kvf_data_thread *data_thread = kvf_data_thread_of(read->link->base.transport);
  const kvf_data_thread_link *link = read->link;
  if (link->state != KVF_DATA_THREAD_LINK_UP) {
    return link->state == KVF_DATA_THREAD_LINK_DOWN ? link->failure : KVF_TRANSFER_SETUP;
  }
  if (link->generation != data_thread->generation) {
    return KVF_TRANSFER_SETUP; /* made for memory that is not registered any more */
  }
  read->progress_ns = data_thread->now_ns;
  read->chunk = kvf_chunk_of(&link->pages->plan, &read->transfer, data_thread->memory->local);
  return kvf_chunk_check(&read->chunk, &read->bytes);
}

void kvf_data_thread_read_progress(kvf_data_thread_read *read)
{
  kvf_data_thread *data_thread = kvf_data_thread_of(read->link->base.transport);
  if (data_thread->now_ns >= kvf_time_add(read->progress_ns, KVF_PROGRESS_NS)) {
    read->progress_ns = data_thread->now_ns;
    data_thread->host.read_progress(data_thread->host.context, read->transfer.id);
  }
}

kvf_data_thread_read *kvf_data_thread_open_read(kvf_data_thread_link *link)
{
  kvf_commands *commands = &kvf_data_thread_of(link->base.transport)->commands;
  kvf_commands_lock(commands);
  kvf_list *first = kvf_list_is_empty(&link->open) ? NULL : link->open.next;
  kvf_commands_unlock(commands);
  return first == NULL ? NULL : KVF_CONTAINER_OF(first, kvf_data_thread_read, in_open);
}

void kvf_data_thread_read_done(kvf_data_thread_read *read, const kvf_read_result *result)
{
  kvf_data_thread *data_thread = kvf_data_thread_of(read->link->base.transport);
  kvf_commands_lock(&data_thread->commands);
  kvf_list_remove(&read->in_open);
  kvf_list_remove(&read->start.in_commands);
  kvf_list_remove(&read->cancel.in_commands);
  kvf_commands_unlock(&data_thread->commands);
  (void)atomic_fetch_sub_explicit(open_count(data_thread, &read->transfer), 1, memory_order_relaxed);
  data_thread->host.read_done(data_thread->host.context, result);
}
