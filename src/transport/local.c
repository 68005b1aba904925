/* The transport `local`: process_vm_readv between processes of one host and one user. Of the producer nothing is needed
 * but its memory: it may be stopped. Whoever may read it this way may read all of it, which is why this transport is
 * for processes that trust each other. */
#include "transport/local.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "transport/own_fds.h"
#include "transport/thread.h"

#define EVENTS_MAX 16

void kvf_local_log(kvf_local *local, kvf_log_level level, const kvf_address *peer, const char *format, ...)
{
  char address[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(peer, address);
  char line[KVF_MESSAGE_BYTES_MAX + sizeof(address) + 16];
  int used = snprintf(line, sizeof(line), "local: peer %s: ", address);
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(line + used, sizeof(line) - (size_t)used, format, arguments);
  va_end(arguments);
  local->host.log(local->host.context, level, line);
}

void kvf_local_wake_keeper(kvf_local *local)
{
  uint64_t one = 1;
  /* Full means that the keeper is about to wake anyway. */
  ssize_t written = write(local->wake_fd, &one, sizeof(one));
  (void)written;
}

/* ---- threads ---- */

static void keep_events(kvf_local *local, int timeout_ms)
{
  struct epoll_event events[EVENTS_MAX];
  int count = epoll_wait(local->epoll_fd, events, EVENTS_MAX, timeout_ms);
  for (int i = 0; i < count; i++) {
    if (events[i].data.ptr != NULL) {
      kvf_local_link_died(local, events[i].data.ptr);
    } else {
      uint64_t wakes;
      ssize_t got = read(local->wake_fd, &wakes, sizeof(wakes));
      (void)got;
    }
  }
}

/* Under the lock: a link whose check is done, taken out; NULL: there is none. */
static kvf_local_link *take_checked(kvf_local *local)
{
  for (kvf_list *node = local->checking.next; node != &local->checking; node = node->next) {
    kvf_local_link *link = KVF_CONTAINER_OF(node, kvf_local_link, in_checks);
    if (kvf_local_check_is_done(link->check)) {
      kvf_list_remove(node);
      return link;
    }
  }
  return NULL;
}

/* False: there are too many checks under way, and it has to be tried again. */
static bool begin_checks(kvf_local *local)
{
  kvf_list later;
  kvf_list *node;
  kvf_list_init(&later);
  (void)pthread_mutex_lock(&local->lock);
  while ((node = kvf_list_pop_front(&local->unchecked)) != NULL) {
    kvf_local_link *link = KVF_CONTAINER_OF(node, kvf_local_link, in_checks);
    (void)pthread_mutex_unlock(&local->lock);
    kvf_status status = kvf_local_link_begin_check(local, link);
    (void)pthread_mutex_lock(&local->lock);
    const bool is_held = !kvf_list_is_linked(&link->in_checks); /* else nobody wants it any more */
    if (is_held && (status == KVF_OK || status == KVF_LIMIT)) {
      kvf_list_push_back(status == KVF_OK ? &local->checking : &later, &link->in_checks);
    }
  }
  while ((node = kvf_list_pop_front(&later)) != NULL) {
    kvf_list_push_back(&local->unchecked, node);
  }
  const bool all_begun = kvf_list_is_empty(&local->unchecked);
  (void)pthread_mutex_unlock(&local->lock);
  return all_begun;
}

/* In how many milliseconds to look again, -1: when it is woken. */
static int keep_checks(kvf_local *local)
{
  kvf_local_link *link;
  const int wait_ms = begin_checks(local) ? -1 : KVF_LOCAL_LOOK_MS;
  for (;;) {
    (void)pthread_mutex_lock(&local->lock);
    link = take_checked(local);
    (void)pthread_mutex_unlock(&local->lock);
    if (link == NULL) {
      return wait_ms;
    }
    kvf_local_link_end_check(local, link);
  }
}

static void keep_ended(kvf_local *local)
{
  for (;;) {
    (void)pthread_mutex_lock(&local->lock);
    kvf_list *node = kvf_list_pop_front(&local->ended);
    (void)pthread_mutex_unlock(&local->lock);
    if (node == NULL) {
      return;
    }
    kvf_local_read *read = KVF_CONTAINER_OF(node, kvf_local_read, in_queue);
    kvf_read_result result = {.id = read->read.id, .status = read->status};
    kvf_local_read_finish(local, read, &result);
  }
}

/* Frees what nobody holds; true when the transport is closing and nothing is left to keep. Only the keeper frees links,
 * after the events of a turn, so that no event names a freed one. */
static bool keep_retired(kvf_local *local)
{
  kvf_list *node;
  (void)pthread_mutex_lock(&local->lock);
  while ((node = kvf_list_pop_front(&local->retired)) != NULL) {
    (void)pthread_mutex_unlock(&local->lock);
    kvf_local_link_free(local, KVF_CONTAINER_OF(node, kvf_local_link, in_checks));
    (void)pthread_mutex_lock(&local->lock);
  }
  bool over = local->closing && local->workers_count + local->stuck_count == 0 && kvf_list_is_empty(&local->gone) &&
              kvf_list_is_empty(&local->links) && local->refusals.count == 0;
  (void)pthread_mutex_unlock(&local->lock);
  return over;
}

static void *keeper_main(void *argument)
{
  kvf_local *local = argument;
  int timeout_ms = -1;
  do {
    keep_events(local, timeout_ms);
    const int checks_ms = keep_checks(local);
    kvf_refusals_report(&local->refusals, &local->lock, &local->host);
    keep_ended(local);
    const int workers_ms = kvf_local_workers_keep(local);
    timeout_ms = checks_ms < 0 ? workers_ms : checks_ms;
  } while (!keep_retired(local));
  return NULL;
}

static void stop_threads(kvf_local *local)
{
  (void)pthread_mutex_lock(&local->lock);
  local->closing = true;
  (void)atomic_fetch_add_explicit(&local->posted, 1, memory_order_relaxed);
  (void)pthread_cond_broadcast(&local->work);
  kvf_local_wake_keeper(local);
  (void)pthread_mutex_unlock(&local->lock);
  (void)pthread_join(local->keeper, NULL);
}

/* ---- open and close ---- */

static bool open_fds(kvf_local *local)
{
  local->epoll_fd = KVF_OWN_FD(epoll_create1(EPOLL_CLOEXEC));
  if (local->epoll_fd < 0) {
    return false;
  }
  local->wake_fd = KVF_OWN_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (local->wake_fd < 0) {
    goto close_epoll;
  }
  struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = NULL}};
  if (epoll_ctl(local->epoll_fd, EPOLL_CTL_ADD, local->wake_fd, &event) == 0) {
    return true;
  }
  kvf_own_fd_close(local->wake_fd);
close_epoll:
  kvf_own_fd_close(local->epoll_fd);
  return false;
}

static void init_lists(kvf_local *local)
{
  kvf_list_init(&local->small);
  kvf_list_init(&local->bulk);
  kvf_list_init(&local->ended);
  kvf_list_init(&local->links);
  kvf_list_init(&local->unchecked);
  kvf_list_init(&local->checking);
  kvf_list_init(&local->retired);
  kvf_list_init(&local->workers);
  kvf_list_init(&local->stuck);
  kvf_list_init(&local->gone);
}

static bool start_threads(kvf_local *local)
{
  if (kvf_thread_start(&local->keeper, "kvf-keeper", keeper_main, local, &local->cpus) != 0) {
    return false;
  }
  if (!kvf_local_workers_start(local)) {
    stop_threads(local);
    return false;
  }
  return true;
}

static kvf_status local_open(const kvf_transport_config *config, const kvf_transport_host *host, kvf_transport **out,
                             char *message)
{
  const char *failed;
  *out = NULL;
  if (config->copy_threads == 0) {
    return kvf_fail(KVF_INVALID, message, "copy_threads is 0: local needs at least 1");
  }
  kvf_local *local = calloc(1, sizeof(*local));
  if (local == NULL) {
    return kvf_fail(KVF_NO_MEMORY, message, "local: %s", strerror(ENOMEM));
  }
  local->base.ops = &kvf_transport_local;
  local->host = *host;
  local->incarnation = config->incarnation;
  local->spin_ns = config->spin_us * KVF_NS_PER_US;
  local->copy_threads = config->copy_threads;
  local->cpus = config->thread_cpus;
  local->place = kvf_local_place_here();
  init_lists(local);
  failed = "random bytes";
  if (getentropy(local->cookie, sizeof(local->cookie)) != 0) {
    goto free_local;
  }
  failed = "file descriptors";
  if (!open_fds(local)) {
    goto free_local;
  }
  (void)pthread_mutex_init(&local->lock, NULL);
  (void)pthread_cond_init(&local->work, NULL);
  failed = "threads";
  if (!start_threads(local)) {
    errno = EAGAIN; /* pthread_create() does not set it, and has no other reason here */
    goto close_fds;
  }
  *out = &local->base;
  return KVF_OK;

close_fds:
  (void)pthread_cond_destroy(&local->work);
  (void)pthread_mutex_destroy(&local->lock);
  kvf_own_fd_close(local->wake_fd);
  kvf_own_fd_close(local->epoll_fd);
free_local:
  (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "local: no %s: %s", failed, strerror(errno));
  free(local);
  return KVF_SYSTEM;
}

static void local_close(kvf_transport *transport)
{
  kvf_local *local = kvf_local_of(transport);
  stop_threads(local);
  if (local->memory != NULL) {
    kvf_local_memory_drop(local->memory);
  }
  kvf_own_fd_close(local->wake_fd);
  kvf_own_fd_close(local->epoll_fd);
  (void)pthread_cond_destroy(&local->work);
  (void)pthread_mutex_destroy(&local->lock);
  free(local);
}

/* ---- memory ---- */

void kvf_local_memory_drop(kvf_local_memory *memory)
{
  memory->refs--;
  if (memory->refs == 0) {
    free(memory);
  }
}

/* With the lock. */
static void move_workers(kvf_local *local, const kvf_cpu_list *cpus)
{
  local->has_near = cpus != NULL;
  if (cpus != NULL) {
    local->near = *cpus;
  }
  for (kvf_list *node = local->workers.next; node != &local->workers; node = node->next) {
    kvf_thread_move(KVF_CONTAINER_OF(node, kvf_local_worker, in_workers)->thread, cpus);
  }
}

static kvf_status local_set_memory(kvf_transport *transport, const kvf_transport_memory *given)
{
  kvf_local *local = kvf_local_of(transport);
  size_t regions_bytes = given->regions_count * sizeof(kvf_region);
  size_t sums_bytes = given->sums_count * sizeof(kvf_region);
  kvf_local_memory *memory = malloc(sizeof(*memory) + regions_bytes + 2 * sums_bytes);
  if (memory == NULL) {
    return KVF_NO_MEMORY;
  }
  memory->refs = 1;
  memory->given = *given;
  kvf_region *sums_read = memory->regions + given->regions_count;
  kvf_region *sums = sums_read + given->sums_count;
  memory->given.regions = memory->regions;
  memory->given.sums_read = sums_read;
  memory->given.sums = sums;
  memcpy(memory->regions, given->regions, regions_bytes);
  if (sums_bytes > 0) {
    memcpy(sums_read, given->sums_read, sums_bytes);
    memcpy(sums, given->sums, sums_bytes);
  }
  kvf_status status = KVF_OK;
  (void)pthread_mutex_lock(&local->lock);
  if (local->memory == NULL) {
    local->memory = memory;
    move_workers(local, given->near_cpus);
  } else {
    status = KVF_EXISTS;
  }
  (void)pthread_mutex_unlock(&local->lock);
  if (status != KVF_OK) {
    free(memory);
  }
  return status;
}

static void local_clear_memory(kvf_transport *transport)
{
  kvf_local *local = kvf_local_of(transport);
  (void)pthread_mutex_lock(&local->lock);
  if (local->memory != NULL) {
    kvf_local_memory_drop(local->memory);
    local->memory = NULL;
  }
  (void)pthread_mutex_unlock(&local->lock);
}

static kvf_status describe_memory(const kvf_local *local, void *out, size_t capacity, size_t *out_bytes)
{
  if (local->memory == NULL || local->memory->given.table == NULL) {
    return KVF_INVALID;
  }
  const kvf_transport_memory *memory = &local->memory->given;
  kvf_local_description head = {
      .magic = KVF_LOCAL_MAGIC,
      .place = local->place,
      .incarnation = local->incarnation,
      .cookie_address = (uintptr_t)local->cookie,
      .table_address = (uintptr_t)memory->table,
      .table_slots = memory->table_slots,
      .pid = (uint32_t)getpid(),
      .regions_count = memory->regions_count,
      .sums_count = memory->sums_count,
      .has_table_fd = memory->table_fd >= 0,
      .table_fd = memory->table_fd >= 0 ? (uint32_t)memory->table_fd : 0,
  };
  memcpy(head.cookie, local->cookie, sizeof(head.cookie));
  return kvf_local_description_write(&head, memory, out, capacity, out_bytes);
}

static kvf_status local_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes)
{
  kvf_local *local = kvf_local_of(transport);
  /* Where Yama is on, processes of the same user may read each other only if the one that is read says so. Without Yama
   * this fails, and is not needed. */
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  (void)pthread_mutex_lock(&local->lock);
  kvf_status status = describe_memory(local, out, capacity, out_bytes);
  (void)pthread_mutex_unlock(&local->lock);
  return status;
}

const kvf_transport_ops kvf_transport_local = {
    .name = "local",
    .open = local_open,
    .close = local_close,
    .set_memory = local_set_memory,
    .clear_memory = local_clear_memory,
    .describe = local_describe,
    .connect = kvf_local_connect,
    .disconnect = kvf_local_disconnect,
    .read = kvf_local_read_start,
    .cancel = kvf_local_read_cancel,
    .assist = kvf_local_read_assist,
};
