/* The data thread's turns with callers, its links from connecting to down, and reads from their start to the report. */
#include "transport/driven.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/own_fds.h"
#include "transport/checksums.h"

/* ---- life ---- */

kvf_status kvf_driven_open(kvf_driven *driven, const kvf_transport_ops *ops, const kvf_transport_config *config,
                           const kvf_transport_host *host, uint32_t log_lines_per_s, char *message)
{
  struct epoll_event event = {.events = EPOLLIN};
  driven->base.ops = ops;
  driven->host = *host;
  driven->config = *config;
  driven->now_ns = kvf_clock_now();
  driven->log_limit.lines_per_s = log_lines_per_s;
  kvf_list_init(&driven->links);
  kvf_list_init(&driven->connecting);
  (void)pthread_mutex_init(&driven->lock, NULL);
  kvf_commands_init(&driven->commands);
  driven->epoll_fd = KVF_OWN_FD(epoll_create1(EPOLL_CLOEXEC));
  if (driven->epoll_fd < 0 || driven->commands.wake_fd < 0 ||
      epoll_ctl(driven->epoll_fd, EPOLL_CTL_ADD, driven->commands.wake_fd, &event) != 0) {
    return kvf_fail(KVF_SYSTEM, message, "%s: no file descriptors: %s", ops->name, strerror(errno));
  }
  return KVF_OK;
}

kvf_status kvf_driven_start(kvf_driven *driven, const char *thread_name, void *(*main)(void *driven), char *message)
{
  int error = kvf_thread_start(&driven->thread, thread_name, main, driven, &driven->config.thread_cpus);
  return error == 0 ? KVF_OK
                    : kvf_fail(KVF_SYSTEM, message, "%s: no thread: %s", driven->base.ops->name, strerror(error));
}

void kvf_driven_stop(kvf_driven *driven)
{
  kvf_commands_stop(&driven->commands);
  (void)pthread_join(driven->thread, NULL);
}

void kvf_driven_free(kvf_driven *driven)
{
  kvf_own_fd_close(driven->epoll_fd);
  (void)pthread_mutex_destroy(&driven->lock);
  kvf_commands_free(&driven->commands);
}

void kvf_driven_log(kvf_driven *driven, kvf_log_level level, kvf_status why, const kvf_address *peer,
                    const char *format, ...)
{
  uint32_t left_out = 0;
  if (!kvf_log_limit_allows(&driven->log_limit, (uint32_t)-why, driven->now_ns, &left_out)) {
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
  int used = snprintf(line, sizeof(line), "%s: peer %s: %s", driven->base.ops->name, address, message);
  if (left_out > 0) {
    (void)snprintf(line + used, sizeof(line) - (size_t)used, " (and %u lines left out)", (unsigned)left_out);
  }
  driven->host.log(driven->host.context, level, line);
}

void kvf_driven_use_memory(kvf_driven *driven, const kvf_paging *memory)
{
  driven->memory = memory;
  driven->generation++;
}

/* ---- whose turn it is ---- */

int kvf_driven_wait(kvf_driven *driven, struct epoll_event *events, int capacity, uint64_t due_ns)
{
  const uint64_t now_ns = driven->now_ns;
  if (driven->asks >= KVF_DRIVEN_ASKS_MIN) {
    driven->light_until_ns = kvf_time_add(now_ns, KVF_DRIVEN_LOOK_NS);
  }
  driven->asks = 0;
  bool is_light =
      now_ns < driven->light_until_ns && atomic_load_explicit(&driven->large_open, memory_order_relaxed) == 0;
  if (is_light) {
    due_ns = kvf_time_min(due_ns, driven->light_until_ns);
  }

  int wait_ms = kvf_thread_wait_ms(now_ns, due_ns);
  int count = 0;
  driven->waits_until_ns = due_ns;
  driven->has_driven = false;
  (void)pthread_mutex_unlock(&driven->lock);
  if (is_light) {
    struct pollfd wake = {.fd = driven->commands.wake_fd, .events = POLLIN};
    (void)poll(&wake, 1, wait_ms);
  } else {
    count = epoll_wait(driven->epoll_fd, events, capacity, wait_ms);
  }
  (void)pthread_mutex_lock(&driven->lock);
  return is_light || driven->has_driven ? epoll_wait(driven->epoll_fd, events, capacity, 0) : count;
}

bool kvf_driven_may_spin(const kvf_driven *driven)
{
  return atomic_load_explicit(&driven->small_open, memory_order_relaxed) == 0 &&
         driven->now_ns < kvf_time_add(driven->busy_ns, driven->config.spin_us * KVF_NS_PER_US);
}

/* ---- a caller ---- */

bool kvf_driven_has_small(const kvf_driven *driven)
{
  return atomic_load_explicit(&driven->small_open, memory_order_relaxed) > 0 &&
         atomic_load_explicit(&driven->large_open, memory_order_relaxed) == 0;
}

bool kvf_driven_take(kvf_driven *driven)
{
  if (pthread_mutex_trylock(&driven->lock) != 0) {
    kvf_commands_wake(&driven->commands, true); /* it may have looked already */
    return false;
  }
  driven->has_driven = true;
  return true;
}

void kvf_driven_leave(kvf_driven *driven, bool asked, uint64_t due_ns, bool wakes)
{
  driven->asks += asked;
  bool is_early = due_ns < driven->waits_until_ns;
  (void)pthread_mutex_unlock(&driven->lock);
  if (is_early || wakes) {
    kvf_commands_wake(&driven->commands, false);
  }
}

/* ---- links ---- */

bool kvf_driven_link_init(kvf_driven_link *link, kvf_transport *transport, const kvf_link_spec *spec,
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

void kvf_driven_connect(kvf_driven_link *link)
{
  kvf_commands *commands = &kvf_driven_of(link->base.transport)->commands;
  kvf_commands_lock(commands);
  kvf_commands_post(commands, &link->connect);
  kvf_commands_unlock(commands);
}

void kvf_driven_disconnect(kvf_link *base)
{
  kvf_driven_link *link = kvf_driven_link_of(base);
  kvf_commands *commands = &kvf_driven_of(base->transport)->commands;
  kvf_commands_lock(commands);
  link->disconnected = true;
  kvf_commands_post(commands, &link->disconnect);
  kvf_commands_unlock(commands);
}

kvf_status kvf_driven_link_begin(kvf_driven_link *link, char *message)
{
  kvf_driven *driven = kvf_driven_of(link->base.transport);
  kvf_list_push_back(&driven->links, &link->in_links);
  kvf_list_push_back(&driven->connecting, &link->in_connecting);
  link->deadline_ns = kvf_time_add(driven->now_ns, kvf_ms_to_ns(driven->config.handshake_timeout_ms));
  link->generation = driven->generation;
  if (driven->memory == NULL) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "no memory is registered here");
  }
  return kvf_paging_pair(link->pages, driven->memory, message);
}

void kvf_driven_agree_on_checksums(kvf_driven_link *link, bool they_have)
{
  kvf_driven *driven = kvf_driven_of(link->base.transport);
  if (!kvf_paging_agree_on_checksums(link->pages, driven->memory, they_have)) {
    kvf_driven_log(driven, KVF_LOG_WARN, KVF_OK, &link->peer, KVF_NO_CHECKSUMS_LINE);
  }
}

static bool is_wanted(kvf_driven *driven, const kvf_driven_link *link)
{
  kvf_commands_lock(&driven->commands);
  bool wanted = !link->disconnected;
  kvf_commands_unlock(&driven->commands);
  return wanted;
}

void kvf_driven_link_up(kvf_driven_link *link)
{
  kvf_driven *driven = kvf_driven_of(link->base.transport);
  kvf_list_remove(&link->in_connecting);
  link->state = KVF_DRIVEN_UP;
  if (is_wanted(driven, link)) {
    driven->host.link_up(driven->host.context, &link->base, KVF_OK);
  }
}

bool kvf_driven_link_fail(kvf_driven_link *link, kvf_status status, const char *format, ...)
{
  kvf_driven *driven = kvf_driven_of(link->base.transport);
  const bool was_up = link->state == KVF_DRIVEN_UP;
  if (link->state == KVF_DRIVEN_DOWN) {
    return false;
  }
  char message[KVF_MESSAGE_BYTES_MAX];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(message, sizeof(message), format, arguments); /* before what it speaks of is closed */
  va_end(arguments);
  link->state = KVF_DRIVEN_DOWN;
  link->failure = status;
  kvf_list_remove(&link->in_connecting);
  driven->close_link(driven, link, status == KVF_PEER_DOWN ? KVF_TRANSFER_FAILED : status);
  if (is_wanted(driven, link)) {
    kvf_driven_log(driven, KVF_LOG_WARN, status, &link->peer, "link failed: %s", message);
    (was_up ? driven->host.link_down : driven->host.link_up)(driven->host.context, &link->base, status);
  }
  return false;
}

uint64_t kvf_driven_links_tick(kvf_driven *driven, const char *what)
{
  while (!kvf_list_is_empty(&driven->connecting)) {
    kvf_driven_link *link = KVF_CONTAINER_OF(driven->connecting.next, kvf_driven_link, in_connecting);
    if (link->deadline_ns > driven->now_ns) {
      return link->deadline_ns;
    }
    (void)kvf_driven_link_fail(link, KVF_HANDSHAKE_TIMEOUT, "no %s in %u ms", what,
                               (unsigned)driven->config.handshake_timeout_ms);
  }
  return KVF_TIME_NEVER;
}

/* ---- reads ---- */

static atomic_uint *open_count(kvf_driven *driven, const kvf_transfer *read)
{
  return read->small ? &driven->small_open : &driven->large_open;
}

void kvf_driven_read_start(kvf_link *base, const kvf_transfer *request, kvf_driven_read *read,
                           void (*start)(void *, kvf_command *), void (*cancel)(void *, kvf_command *))
{
  kvf_driven *driven = kvf_driven_of(base->transport);
  kvf_driven_link *link = kvf_driven_link_of(base);
  read->link = link;
  read->transfer = *request;
  kvf_command_init(&read->start, start);
  kvf_command_init(&read->cancel, cancel);
  (void)atomic_fetch_add_explicit(open_count(driven, request), 1, memory_order_relaxed);
  kvf_commands_lock(&driven->commands);
  kvf_list_push_back(&link->open, &read->in_open);
  if (request->small && kvf_driven_has_small(driven)) { /* the caller starts it: no thread need be woken */
    kvf_list_push_back(&driven->commands.list, &read->start.in_commands);
  } else {
    kvf_commands_post(&driven->commands, &read->start);
  }
  kvf_commands_unlock(&driven->commands);
}

void kvf_driven_read_cancel(kvf_link *base, uint64_t read_id)
{
  const kvf_list *open = &kvf_driven_link_of(base)->open;
  kvf_commands *commands = &kvf_driven_of(base->transport)->commands;
  kvf_commands_lock(commands);
  for (kvf_list *node = open->next; node != open; node = node->next) {
    kvf_driven_read *read = KVF_CONTAINER_OF(node, kvf_driven_read, in_open);
    if (read->transfer.id == read_id) {
      kvf_commands_post(commands, &read->cancel);
      break;
    }
  }
  kvf_commands_unlock(commands);
}

kvf_status kvf_driven_read_prepare(kvf_driven_read *read)
{
  const kvf_driven *driven = kvf_driven_of(read->link->base.transport);
  const kvf_driven_link *link = read->link;
  if (link->state != KVF_DRIVEN_UP) {
    return link->state == KVF_DRIVEN_DOWN ? link->failure : KVF_TRANSFER_SETUP;
  }
  if (link->generation != driven->generation) {
    return KVF_TRANSFER_SETUP; /* made for memory that is not registered any more */
  }
  read->progress_ns = driven->now_ns;
  read->chunk = kvf_chunk_of(&link->pages->plan, &read->transfer, driven->memory->local);
  return kvf_chunk_check(&read->chunk, &read->bytes);
}

void kvf_driven_read_progress(kvf_driven_read *read)
{
  kvf_driven *driven = kvf_driven_of(read->link->base.transport);
  if (driven->now_ns >= kvf_time_add(read->progress_ns, KVF_PROGRESS_NS)) {
    read->progress_ns = driven->now_ns;
    driven->host.read_progress(driven->host.context, read->transfer.id);
  }
}

kvf_driven_read *kvf_driven_open_read(kvf_driven_link *link)
{
  kvf_commands *commands = &kvf_driven_of(link->base.transport)->commands;
  kvf_commands_lock(commands);
  kvf_list *first = kvf_list_is_empty(&link->open) ? NULL : link->open.next;
  kvf_commands_unlock(commands);
  return first == NULL ? NULL : KVF_CONTAINER_OF(first, kvf_driven_read, in_open);
}

void kvf_driven_read_done(kvf_driven_read *read, const kvf_read_result *result)
{
  kvf_driven *driven = kvf_driven_of(read->link->base.transport);
  kvf_commands_lock(&driven->commands);
  kvf_list_remove(&read->in_open);
  kvf_list_remove(&read->start.in_commands);
  kvf_list_remove(&read->cancel.in_commands);
  kvf_commands_unlock(&driven->commands);
  (void)atomic_fetch_sub_explicit(open_count(driven, &read->transfer), 1, memory_order_relaxed);
  driven->host.read_done(driven->host.context, result);
}
