/* The transport `local`, between processes of one host and one user: process_vm_readv, or what the memory's kind has in
 * its place. It needs only the producer's memory: the producer may be stopped. A process that may read this memory may
 * read all of it. So this transport is for processes that trust each other. */
#include "transport/local/local.h"

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

#include "memory/own_fds.h"
#include "transport/checksums.h"
#include "transport/fence_memory.h"
#include "transport/local/copy.h"
#include "transport/thread.h"

#define EVENTS_MAX 16

/* A read of which nothing comes for so long is stuck, if others wait: a step of the host's copies 1 MiB at most. One of
 * a GPU's takes as long only where the GPU is busy, and then another worker does no harm. */
#define STUCK_NS (50 * KVF_NS_PER_MS)

/* Takes no lock. */
__attribute__((format(printf, 4, 5))) static void log_line(kvf_local *local, kvf_log_level level,
                                                           const kvf_address *peer, const char *format, ...)
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

/* Any thread. */
static void wake_reaper(kvf_local *local)
{
  uint64_t one = 1;
  /* Full means that the reaper is about to wake anyway. */
  ssize_t written = write(local->wake_fd, &one, sizeof(one));
  (void)written;
}

/* Without the lock: the first of a list, taken out; NULL: it is empty. */
static kvf_list *take_first(kvf_local *local, kvf_list *list)
{
  (void)pthread_mutex_lock(&local->lock);
  kvf_list *node = kvf_list_pop_front(list);
  (void)pthread_mutex_unlock(&local->lock);
  return node;
}

/* With the lock. */
static void memory_drop(kvf_local_memory *memory)
{
  memory->refs--;
  if (memory->refs == 0) {
    free(memory->pages);
    free(memory);
  }
}

/* ---- links ---- */

/* With the lock: the read ends without a copy, reported by the reaper. */
static void end_waiting(kvf_local *local, kvf_local_read *read, kvf_status status)
{
  read->status = status;
  kvf_list_remove(&read->in_queue);
  kvf_list_push_back(&local->ended, &read->in_queue);
  wake_reaper(local);
}

/* With the lock. A running copy stops only for a cancel. If the peer has died, the copy finds that out itself, and the
 * bytes copied until then may be complete. */
static void end_read(kvf_local *local, kvf_local_read *read, kvf_status status)
{
  if (read->status != KVF_OK) {
    return;
  }
  if (kvf_list_is_linked(&read->in_queue)) {
    end_waiting(local, read, status);
  } else if (status == KVF_CANCELLED) {
    atomic_store_explicit(&read->stop, true, memory_order_relaxed);
  }
}

/* With the lock: ends the link's reads that wait with `status`; stops those being copied if it is KVF_CANCELLED. */
static void reads_end(kvf_local *local, kvf_local_link *link, kvf_status status)
{
  for (kvf_list *node = link->reads.next; node != &link->reads; node = node->next) {
    end_read(local, KVF_CONTAINER_OF(node, kvf_local_read, in_link), status);
  }
}

/* With the lock: a read of the link is over, or the link was given back. */
static void link_drop(kvf_local *local, kvf_local_link *link)
{
  link->refs--;
  if (link->refs == 0) {
    kvf_list_remove(&link->in_checks);
    kvf_list_push_back(&local->retired, &link->in_checks);
    wake_reaper(local);
  }
}

static kvf_status local_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  kvf_local *local = kvf_local_of(transport);
  *out = NULL;
  if (!kvf_link_spec_is_whole(spec)) {
    return KVF_TRANSFER_SETUP;
  }
  kvf_local_link *link = calloc(1, sizeof(*link) + spec->description_bytes);
  kvf_paging *pages = link == NULL ? NULL : kvf_paging_of_link(spec);
  if (pages == NULL) {
    free(link);
    return KVF_NO_MEMORY;
  }
  *link = (kvf_local_link){.base = {.transport = transport, .user = spec->user},
                           .refs = 1,
                           .state = KVF_LOCAL_CHECKING,
                           .peer = spec->peer,
                           .incarnation = spec->incarnation,
                           .generation = spec->generation,
                           .description_bytes = spec->description_bytes,
                           .description = memcpy(link + 1, spec->description, spec->description_bytes),
                           .pages = pages};
  kvf_list_init(&link->in_links);
  kvf_list_init(&link->in_checks);
  kvf_list_init(&link->reads);

  (void)pthread_mutex_lock(&local->lock);
  kvf_list_push_back(&local->links, &link->in_links);
  kvf_list_push_back(&local->unchecked, &link->in_checks);
  if (local->memory != NULL) {
    link->memory = local->memory;
    link->memory->refs++;
  }
  wake_reaper(local);
  (void)pthread_mutex_unlock(&local->lock);
  *out = &link->base;
  return KVF_OK;
}

static void local_disconnect(kvf_link *base)
{
  kvf_local_link *link = kvf_local_link_of(base);
  kvf_local *local = kvf_local_of(base->transport);
  (void)pthread_mutex_lock(&local->lock);
  link->disconnected = true;
  reads_end(local, link, KVF_CANCELLED);
  link_drop(local, link);
  (void)pthread_mutex_unlock(&local->lock);
}

/* Without the lock: frees a link that is in no list but `links`. */
static void link_free(kvf_local *local, kvf_local_link *link)
{
  if (link->check != NULL && link->state != KVF_LOCAL_CHECKING) {
    /* Closing is not enough: a spawned child's copy would keep it watched, and name this link when the peer ends. */
    (void)epoll_ctl(local->epoll_fd, EPOLL_CTL_DEL, link->check->pidfd, NULL);
  }
  kvf_local_check_drop(link->check);
  (void)pthread_mutex_lock(&local->lock);
  kvf_list_remove(&link->in_links);
  if (link->memory != NULL) {
    memory_drop(link->memory);
  }
  (void)pthread_mutex_unlock(&local->lock);
  free(link->pages);
  free(link);
}

/* Only the host's own calls can tell, while they read the blocks, whose they are: see copy.c. */
static void forgo_fence(const kvf_local_link *link)
{
  kvf_local_check *check = link->check;
  bool is_host = link->memory->is_host;
  for (uint32_t i = 0; i < check->imports_count; i++) {
    is_host = is_host && check->imports[i].ops == &kvf_memory_host;
  }
  if (!is_host) {
    kvf_fence_table_close(check->fence, check->description.table_slots);
    check->fence = NULL;
  }
}

/* Without the lock. KVF_OK: the check is under way. KVF_LIMIT: not yet, since others are. Else it has failed. */
static kvf_status begin_check(kvf_local *local, kvf_local_link *link, char *message)
{
  if (link->memory == NULL) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "no memory is registered here");
  }
  kvf_local_description description;
  kvf_status status = kvf_paging_pair(link->pages, link->memory->pages, message);
  if (status == KVF_OK) {
    status = kvf_local_description_read(link->description, link->description_bytes, &local->place, &link->incarnation,
                                        link->pages->regions_count, kvf_paging_lay_out_checksums(link->pages),
                                        &description, message);
  }
  if (status != KVF_OK) {
    return status;
  }
  const kvf_local_check_spec spec = {
      .description = &description,
      .generation = link->generation,
      .remote = link->pages->regions,
      .devices = kvf_memory_devices_of(link->memory->pages->local, link->memory->pages->regions_count)};
  return kvf_local_check_start(&spec, local->wake_fd, &local->cpus, &link->check, message);
}

static void report_check(kvf_local *local, kvf_local_link *link, kvf_status status, const char *message)
{
  (void)pthread_mutex_lock(&local->lock);
  link->state = status == KVF_OK ? KVF_LOCAL_UP : KVF_LOCAL_DOWN;
  link->failure = status;
  bool wanted = !link->disconnected;
  (void)pthread_mutex_unlock(&local->lock);
  if (!wanted) {
    return;
  }
  if (status != KVF_OK) {
    log_line(local, KVF_LOG_WARN, &link->peer, "%s", message);
  }
  local->host.link_up(local->host.context, &link->base, status);
}

/* Without the lock, when the check is done. */
static void link_end_check(kvf_local *local, kvf_local_link *link)
{
  kvf_local_check *check = link->check;
  struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = link}};
  kvf_status status = check->status;
  if (status == KVF_OK && epoll_ctl(local->epoll_fd, EPOLL_CTL_ADD, check->pidfd, &event) != 0) {
    status = kvf_fail(KVF_TRANSFER_SETUP, check->message, "process %d cannot be watched: %s",
                      (int)check->description.pid, strerror(errno));
  }
  if (status == KVF_OK) {
    if (!kvf_paging_agree_on_checksums(link->pages, link->memory->pages, check->description.checksums_count > 0)) {
      log_line(local, KVF_LOG_WARN, &link->peer, KVF_NO_CHECKSUMS_LINE);
    }
    forgo_fence(link);
  }
  report_check(local, link, status, check->message);
}

static pid_t pid_of(const kvf_local_link *link)
{
  return (pid_t)link->check->description.pid;
}

/* Without the lock, the link held. Only the first failure counts. `format` is given the process. */
static void link_fail(kvf_local *local, kvf_local_link *link, kvf_status status, const char *format)
{
  (void)pthread_mutex_lock(&local->lock);
  bool first = link->state == KVF_LOCAL_UP;
  if (first) {
    link->state = KVF_LOCAL_DOWN;
    link->failure = status;
    reads_end(local, link, status);
  }
  bool wanted = first && !link->disconnected;
  (void)pthread_mutex_unlock(&local->lock);
  if (wanted) {
    log_line(local, KVF_LOG_WARN, &link->peer, format, pid_of(link));
    local->host.link_down(local->host.context, &link->base, status);
  }
}

void kvf_local_link_died(kvf_local *local, kvf_local_link *link)
{
  (void)epoll_ctl(local->epoll_fd, EPOLL_CTL_DEL, link->check->pidfd, NULL);
  link_fail(local, link, KVF_PEER_DOWN, "process %d has ended");
}

/* ---- reads: queued, copied, sampled, reported ---- */

/* No second worker to the same link, nor too many to links that a process has offered one after the other. */
static bool may_copy_from(const kvf_local *local, const kvf_local_link *link)
{
  unsigned same = 0;
  for (const kvf_list *node = local->stuck.next; node != &local->stuck; node = node->next) {
    const kvf_local_worker *worker = KVF_CONTAINER_OF(node, kvf_local_worker, in_workers);
    same += worker->link != NULL && pid_of(worker->link) == pid_of(link);
  }
  return link->stuck == 0 && same < KVF_LOCAL_STUCK_WORKERS_OF_ONE_MAX;
}

static kvf_local_read *first_of(const kvf_local *local, const kvf_list *queue)
{
  for (kvf_list *node = queue->next; node != queue; node = node->next) {
    kvf_local_read *read = KVF_CONTAINER_OF(node, kvf_local_read, in_queue);
    if (may_copy_from(local, read->link)) {
      return read;
    }
  }
  return NULL;
}

/* With the lock. */
static kvf_local_read *next_read(const kvf_local *local)
{
  kvf_local_read *read = first_of(local, &local->small);
  return read != NULL ? read : first_of(local, &local->bulk);
}

static void wake_workers(kvf_local *local)
{
  (void)atomic_fetch_add_explicit(&local->posted, 1, memory_order_relaxed);
  (void)pthread_cond_broadcast(&local->work);
}

/* With the lock. Reads that wait while all are busy may wait for ever, unless somebody looks. */
static void watch_if_all_busy(kvf_local *local)
{
  if (!local->watching && local->busy_count == local->workers_count && next_read(local) != NULL) {
    local->watching = true;
    wake_reaper(local);
  }
}

/* With the lock: there is a read for them. */
static void workers_post(kvf_local *local, kvf_local_read *read)
{
  kvf_list_push_back(read->read.small ? &local->small : &local->bulk, &read->in_queue);
  (void)atomic_fetch_add_explicit(&local->posted, 1, memory_order_relaxed);
  (void)pthread_cond_signal(&local->work);
  watch_if_all_busy(local);
}

/* With the lock: whether this link can take the read, else why not. */
static kvf_status admit(const kvf_local *local, const kvf_local_link *link, const kvf_transfer *read)
{
  if (link->state != KVF_LOCAL_UP) {
    return link->state == KVF_LOCAL_DOWN ? link->failure : KVF_TRANSFER_SETUP;
  }
  if (link->memory != local->memory) {
    return KVF_TRANSFER_SETUP; /* made for memory that is not registered any more */
  }
  return read->lease.slot < link->check->description.table_slots ? KVF_OK : KVF_LEASE_UNKNOWN;
}

static kvf_status local_read(kvf_link *base, const kvf_transfer *request)
{
  kvf_local_link *link = kvf_local_link_of(base);
  kvf_local *local = kvf_local_of(base->transport);
  kvf_local_read *read = malloc(sizeof(*read));
  if (read == NULL) {
    return KVF_NO_MEMORY;
  }
  *read = (kvf_local_read){.link = link, .read = *request};
  kvf_list_init(&read->in_queue);
  (void)pthread_mutex_lock(&local->lock);
  link->refs++;
  kvf_list_push_back(&link->reads, &read->in_link);
  (void)atomic_fetch_add_explicit(&local->small_open, request->small ? 1 : 0, memory_order_relaxed);
  kvf_status status = admit(local, link, request);
  if (status != KVF_OK) {
    end_waiting(local, read, status);
  } else {
    workers_post(local, read);
  }
  (void)pthread_mutex_unlock(&local->lock);
  return KVF_OK;
}

static void local_cancel(kvf_link *base, uint64_t read_id)
{
  kvf_local_link *link = kvf_local_link_of(base);
  kvf_local *local = kvf_local_of(base->transport);
  (void)pthread_mutex_lock(&local->lock);
  for (kvf_list *node = link->reads.next; node != &link->reads; node = node->next) {
    kvf_local_read *read = KVF_CONTAINER_OF(node, kvf_local_read, in_link);
    if (read->read.id == read_id) {
      end_read(local, read, KVF_CANCELLED);
      break;
    }
  }
  (void)pthread_mutex_unlock(&local->lock);
}

static void arrived(void *context)
{
  kvf_local_read *read = context;
  kvf_local *local = kvf_local_of(read->link->base.transport);
  local->host.read_progress(local->host.context, read->read.id);
}

static void copy_and_judge(kvf_local_worker *worker, kvf_local_read *read, kvf_read_result *result)
{
  const kvf_local_link *link = read->link;
  const kvf_transfer *request = &read->read;
  const kvf_chunk chunk = kvf_chunk_of(&link->pages->plan, request, link->memory->pages->local);
  const kvf_local_copy copy = {.pid = pid_of(link),
                               .imports = link->check->imports,
                               .fence = link->check->fence,
                               .generation = link->generation,
                               .gather = kvf_local_of(link->base.transport)->gather,
                               .stop = &read->stop,
                               .moved_ns = &worker->since_ns,
                               .work = &result->work,
                               .arrived = arrived,
                               .context = read};
  result->status = kvf_chunk_check(&chunk, NULL);
  if (result->status == KVF_OK) {
    result->status =
        kvf_local_copy_lease(&copy, &chunk, link->check->description.table_address, &result->bytes, &result->sample);
  }
  if (link->pages->checksums_count > 0) {
    kvf_checksums_judge(&chunk, result);
  }
}

/* Without the lock: reports a read and frees it. */
static void read_finish(kvf_local *local, kvf_local_read *read, const kvf_read_result *result)
{
  kvf_local_link *link = read->link;
  const unsigned small = read->read.small ? 1 : 0;
  (void)pthread_mutex_lock(&local->lock);
  kvf_list_remove(&read->in_link); /* from here cancel() does not find it */
  (void)pthread_mutex_unlock(&local->lock);
  free(read);
  local->host.read_done(local->host.context, result);
  (void)atomic_fetch_sub_explicit(&local->small_open, small, memory_order_release);
  (void)pthread_mutex_lock(&local->lock);
  link_drop(local, link);
  (void)pthread_mutex_unlock(&local->lock);
}

/* Without the lock: copies and reports. */
static void read_run(kvf_local_worker *worker, kvf_local_read *read)
{
  kvf_local *local = worker->local;
  kvf_read_result result = {.id = read->read.id};
  copy_and_judge(worker, read, &result);
  /* A process that has ended may keep its descriptors for long, if one of its threads is stuck in the kernel. */
  if (result.status == KVF_TRANSFER_FAILED || result.status == KVF_PEER_DOWN) {
    link_fail(local, read->link, result.status, "memory of process %d cannot be read any more");
  }
  read_finish(local, read, &result);
}

/* The caller does not copy: it would be stuck with the peer's memory. But most small reads are over before it has
 * anything else to do. */
static bool local_assist(kvf_transport *transport)
{
  kvf_local *local = kvf_local_of(transport);
  const unsigned open = atomic_load_explicit(&local->small_open, memory_order_acquire);
  uint64_t now_ns = kvf_clock_now();
  uint64_t again_ns = atomic_load_explicit(&local->assist_again_ns, memory_order_relaxed);
  const uint64_t until_ns = kvf_time_add(now_ns, local->spin_ns);
  while (open > 0 && atomic_load_explicit(&local->small_open, memory_order_acquire) >= open && now_ns < until_ns &&
         now_ns >= again_ns) {
    again_ns = kvf_thread_yield();
    now_ns = kvf_clock_now();
  }
  if (again_ns > now_ns) {
    atomic_store_explicit(&local->assist_again_ns, again_ns, memory_order_relaxed);
  }
  return false;
}

/* ---- workers ----
 *
 * A copy waits in the kernel while the peer's memory does not answer (its process holds its memory map, or swaps from a
 * dead disk). No signal ends that. So another thread takes the place of such a worker, and the same link cannot block a
 * second one meanwhile. */

/* With the lock, which it gives up meanwhile. A worker that has copied polls for more: one that sleeps is often woken
 * on a core that another is copying on. */
static void spin(kvf_local *local, uint64_t *again_ns)
{
  const unsigned seen = atomic_load_explicit(&local->posted, memory_order_relaxed);
  (void)pthread_mutex_unlock(&local->lock);
  uint64_t now_ns = kvf_clock_now();
  const uint64_t until_ns = kvf_time_add(now_ns, local->spin_ns);
  while (now_ns < until_ns && now_ns >= *again_ns &&
         atomic_load_explicit(&local->posted, memory_order_relaxed) == seen) {
    *again_ns = kvf_thread_yield();
    now_ns = kvf_clock_now();
  }
  (void)pthread_mutex_lock(&local->lock);
}

/* With the lock, which it gives up meanwhile. */
static void copy(kvf_local_worker *worker, kvf_local_read *read)
{
  kvf_local *local = worker->local;
  kvf_local_link *link = read->link;
  kvf_list_remove(&read->in_queue);
  link->refs++;
  worker->link = link;
  atomic_store_explicit(&worker->since_ns, kvf_clock_now(), memory_order_relaxed);
  local->busy_count++;
  watch_if_all_busy(local);
  (void)pthread_mutex_unlock(&local->lock);
  read_run(worker, read);
  (void)pthread_mutex_lock(&local->lock);
  worker->link = NULL;
  if (worker->is_stuck) {
    link->stuck--;
    wake_workers(local); /* the link's other reads have waited for this */
  } else {
    local->busy_count--;
  }
  link_drop(local, link);
}

static void *worker_main(void *argument)
{
  kvf_local_worker *worker = argument;
  kvf_local *local = worker->local;
  bool has_copied = false;
  uint64_t again_ns = 0;
  kvf_thread_sleep_exactly();
  (void)pthread_mutex_lock(&local->lock);
  worker->thread = pthread_self();
  kvf_list_push_back(&local->workers, &worker->in_workers);
  kvf_thread_move(worker->thread, local->has_near ? &local->near : NULL);
  while (!worker->is_stuck) {
    kvf_local_read *read = next_read(local);
    if (read != NULL) {
      copy(worker, read);
      has_copied = true;
    } else if (local->closing && local->stuck_count == 0) {
      break; /* a link's reads may have waited for the one that is stuck */
    } else if (has_copied && !local->closing) {
      spin(local, &again_ns);
      has_copied = false;
    } else {
      (void)pthread_cond_wait(&local->work, &local->lock);
    }
  }
  kvf_list_remove(&worker->in_workers);
  if (worker->is_stuck) {
    local->stuck_count--;
    wake_workers(local);
  } else {
    local->workers_count--;
  }
  kvf_list_push_back(&local->gone, &worker->in_workers);
  wake_reaper(local);
  (void)pthread_mutex_unlock(&local->lock);
  return NULL;
}

/* Without the lock, which to start a thread may take too long for. */
static bool start_worker(kvf_local *local)
{
  pthread_t thread;
  kvf_local_worker *worker = calloc(1, sizeof(*worker));
  if (worker == NULL) {
    return false;
  }
  worker->local = local;
  kvf_list_init(&worker->in_workers);
  const bool started = kvf_thread_start(&thread, "kvf-copy", worker_main, worker, &local->cpus) == 0;
  if (!started) {
    free(worker);
  }
  return started;
}

/* With the lock: a worker that has been copying for too long; NULL: none has. */
static kvf_local_worker *find_stuck(const kvf_local *local, uint64_t now_ns)
{
  for (kvf_list *node = local->workers.next; node != &local->workers; node = node->next) {
    kvf_local_worker *worker = KVF_CONTAINER_OF(node, kvf_local_worker, in_workers);
    const uint64_t since_ns = atomic_load_explicit(&worker->since_ns, memory_order_relaxed);
    if (worker->link != NULL && now_ns >= kvf_time_add(since_ns, STUCK_NS)) {
      return worker;
    }
  }
  return NULL;
}

/* The link that a worker is stuck at, held for the caller, if there may be another worker in its place; else NULL. */
static kvf_local_link *set_one_aside(kvf_local *local, uint64_t now_ns)
{
  kvf_local_link *link = NULL;
  (void)pthread_mutex_lock(&local->lock);
  kvf_local_worker *worker = find_stuck(local, now_ns);
  if (worker != NULL && local->stuck_count < KVF_LOCAL_STUCK_WORKERS_MAX) {
    worker->is_stuck = true;
    kvf_list_remove(&worker->in_workers);
    kvf_list_push_back(&local->stuck, &worker->in_workers);
    local->workers_count--;
    local->busy_count--;
    local->stuck_count++;
    link = worker->link;
    link->stuck++;
    link->refs++;
  }
  (void)pthread_mutex_unlock(&local->lock);
  return link;
}

/* Without the lock. False: the system has no thread left. */
static bool fill_up(kvf_local *local)
{
  bool started = true;
  (void)pthread_mutex_lock(&local->lock);
  while (started && local->workers_count < local->copy_threads) {
    local->workers_count++; /* it is counted before it runs */
    (void)pthread_mutex_unlock(&local->lock);
    started = start_worker(local);
    (void)pthread_mutex_lock(&local->lock);
    local->workers_count -= started ? 0 : 1;
  }
  (void)pthread_mutex_unlock(&local->lock);
  return started;
}

/* All are set aside before others take their places, which else could begin where the next one is stuck. */
static void replace_stuck(kvf_local *local)
{
  kvf_local_link *links[KVF_LOCAL_STUCK_WORKERS_MAX];
  size_t count = 0;
  const uint64_t now_ns = kvf_clock_now();
  while (count < KVF_LOCAL_STUCK_WORKERS_MAX && (links[count] = set_one_aside(local, now_ns)) != NULL) {
    count++;
  }
  const bool is_full = fill_up(local);
  for (size_t i = 0; i < count; i++) {
    log_line(local, KVF_LOG_WARN, &links[i]->peer, "copying from process %d makes no progress: loads from it wait%s",
             pid_of(links[i]), is_full ? "" : ", and those from others too: no thread is left");
    (void)pthread_mutex_lock(&local->lock);
    link_drop(local, links[i]);
    (void)pthread_mutex_unlock(&local->lock);
  }
}

static void join_gone(kvf_local *local)
{
  kvf_list *node;
  while ((node = take_first(local, &local->gone)) != NULL) {
    kvf_local_worker *worker = KVF_CONTAINER_OF(node, kvf_local_worker, in_workers);
    (void)pthread_join(worker->thread, NULL);
    free(worker);
  }
}

/* Without the lock: puts others in the place of those that are stuck. Returns in how many milliseconds to look again,
 * -1: when somebody wakes us. */
static int workers_keep(kvf_local *local)
{
  join_gone(local);
  (void)pthread_mutex_lock(&local->lock);
  local->watching = local->watching && next_read(local) != NULL;
  const bool watching = local->watching;
  (void)pthread_mutex_unlock(&local->lock);
  if (watching) {
    replace_stuck(local);
  }
  return watching ? KVF_LOCAL_LOOK_MS : -1;
}

/* ---- the thread that looks after links and workers ---- */

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

/* A link whose check is done, taken out; NULL: there is none. */
static kvf_local_link *take_checked(kvf_local *local)
{
  kvf_local_link *found = NULL;
  (void)pthread_mutex_lock(&local->lock);
  for (kvf_list *node = local->checking.next; node != &local->checking && found == NULL; node = node->next) {
    kvf_local_link *link = KVF_CONTAINER_OF(node, kvf_local_link, in_checks);
    found = kvf_local_check_is_done(link->check) ? link : NULL;
  }
  if (found != NULL) {
    kvf_list_remove(&found->in_checks);
  }
  (void)pthread_mutex_unlock(&local->lock);
  return found;
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
    char message[KVF_MESSAGE_BYTES_MAX];
    kvf_status status = begin_check(local, link, message);
    if (status != KVF_OK && status != KVF_LIMIT) {
      report_check(local, link, status, message);
    }
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
  while ((link = take_checked(local)) != NULL) {
    link_end_check(local, link);
  }
  return wait_ms;
}

static void keep_ended(kvf_local *local)
{
  kvf_list *node;
  while ((node = take_first(local, &local->ended)) != NULL) {
    kvf_local_read *read = KVF_CONTAINER_OF(node, kvf_local_read, in_queue);
    kvf_read_result result = {.id = read->read.id, .status = read->status};
    read_finish(local, read, &result);
  }
}

/* Frees what nobody holds; true when the transport is closing and nothing is left to keep. Only the reaper frees links,
 * after the events of a turn, so that no event names a freed one. */
static bool keep_retired(kvf_local *local)
{
  kvf_list *node;
  while ((node = take_first(local, &local->retired)) != NULL) {
    link_free(local, KVF_CONTAINER_OF(node, kvf_local_link, in_checks));
  }
  (void)pthread_mutex_lock(&local->lock);
  bool over = local->closing && local->workers_count + local->stuck_count == 0 && kvf_list_is_empty(&local->gone) &&
              kvf_list_is_empty(&local->links);
  (void)pthread_mutex_unlock(&local->lock);
  return over;
}

static void *reaper_main(void *argument)
{
  kvf_local *local = argument;
  int timeout_ms = -1;
  do {
    keep_events(local, timeout_ms);
    const int checks_ms = keep_checks(local);
    keep_ended(local);
    const int workers_ms = workers_keep(local);
    timeout_ms = checks_ms < 0 ? workers_ms : checks_ms;
  } while (!keep_retired(local));
  return NULL;
}

static void stop_threads(kvf_local *local)
{
  (void)pthread_mutex_lock(&local->lock);
  local->closing = true;
  wake_workers(local);
  wake_reaper(local);
  (void)pthread_mutex_unlock(&local->lock);
  (void)pthread_join(local->reaper, NULL);
}

/* ---- open and close ---- */

static bool open_fds(kvf_local *local)
{
  struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = NULL}};
  local->epoll_fd = KVF_OWN_FD(epoll_create1(EPOLL_CLOEXEC));
  local->wake_fd = KVF_OWN_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return local->epoll_fd >= 0 && local->wake_fd >= 0 &&
         epoll_ctl(local->epoll_fd, EPOLL_CTL_ADD, local->wake_fd, &event) == 0;
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
  if (kvf_thread_start(&local->reaper, "kvf-reaper", reaper_main, local, &local->cpus) != 0) {
    return false;
  }
  if (!fill_up(local)) {
    stop_threads(local);
    return false;
  }
  return true;
}

static void destroy(kvf_local *local)
{
  kvf_own_fd_close(local->wake_fd);
  kvf_own_fd_close(local->epoll_fd);
  (void)pthread_cond_destroy(&local->work);
  (void)pthread_mutex_destroy(&local->lock);
  free(local);
}

static kvf_status local_open(const kvf_transport_config *config, const kvf_transport_host *host, kvf_transport **out,
                             char *message)
{
  const char *failed = NULL;
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
  local->gather =
      (kvf_memory_gather){config->device_gather_bytes, config->device_gather_blocks, config->device_gather_threads};
  local->copy_threads = config->copy_threads;
  local->cpus = config->thread_cpus;
  local->place = kvf_local_place_here();
  init_lists(local);
  (void)pthread_mutex_init(&local->lock, NULL);
  (void)pthread_cond_init(&local->work, NULL);
  if (!open_fds(local)) {
    failed = "file descriptors";
  } else if (getentropy(local->cookie, sizeof(local->cookie)) != 0) {
    failed = "random bytes";
  } else if (!start_threads(local)) {
    failed = "threads";
    errno = EAGAIN; /* pthread_create() does not set it, and has no other reason here */
  }
  if (failed != NULL) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "local: no %s: %s", failed, strerror(errno));
    destroy(local);
    return KVF_SYSTEM;
  }
  *out = &local->base;
  return KVF_OK;
}

/* ---- memory ---- */

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

/* Without the lock: nobody reads it any more by what it has exported. */
static void withdraw(kvf_local *local, kvf_local_memory *memory)
{
  const kvf_paging *pages = memory->pages;
  kvf_local_unexport(pages->served, kvf_paging_regions(pages), memory->exports, memory->exports_bytes);
  memory->exports = NULL;
  (void)pthread_mutex_lock(&local->lock);
  memory_drop(memory);
  (void)pthread_mutex_unlock(&local->lock);
}

static kvf_status local_set_memory(kvf_transport *transport, const kvf_transport_memory *given)
{
  kvf_local *local = kvf_local_of(transport);
  kvf_local_memory *memory = calloc(1, sizeof(*memory));
  kvf_paging *pages = memory == NULL ? NULL : kvf_paging_of_memory(given);
  if (pages == NULL) {
    free(memory);
    return KVF_NO_MEMORY;
  }
  *memory =
      (kvf_local_memory){.refs = 1,
                         .table_fd = given->table_fd,
                         .pages = pages,
                         .is_host = kvf_memory_kinds(given->regions, given->regions_count) == 1u << KVF_MEMORY_HOST};
  char line[KVF_MESSAGE_BYTES_MAX + 40] = "transport local is left out: ";
  const size_t used = strlen(line);
  kvf_status status = kvf_local_export(given, &memory->exports, &memory->exports_bytes, line + used);
  if (status != KVF_OK) {
    local->host.log(local->host.context, KVF_LOG_WARN, line);
  }
  (void)pthread_mutex_lock(&local->lock);
  if (status == KVF_OK && local->memory != NULL) {
    status = KVF_EXISTS;
  } else if (status == KVF_OK) {
    local->memory = memory;
    move_workers(local, given->near_cpus);
  }
  (void)pthread_mutex_unlock(&local->lock);
  if (status != KVF_OK) {
    withdraw(local, memory);
  }
  return status;
}

static void local_clear_memory(kvf_transport *transport)
{
  kvf_local *local = kvf_local_of(transport);
  (void)pthread_mutex_lock(&local->lock);
  kvf_local_memory *memory = local->memory;
  local->memory = NULL;
  (void)pthread_mutex_unlock(&local->lock);
  if (memory != NULL) {
    withdraw(local, memory);
  }
}

static void local_close(kvf_transport *transport)
{
  kvf_local *local = kvf_local_of(transport);
  stop_threads(local);
  local_clear_memory(transport);
  destroy(local);
}

static kvf_status describe_memory(const kvf_local *local, void *out, size_t capacity, size_t *out_bytes)
{
  const kvf_local_memory *memory = local->memory;
  if (memory == NULL || memory->pages->table == NULL) {
    return KVF_INVALID;
  }
  kvf_local_description head = {
      .magic = KVF_LOCAL_MAGIC,
      .place = local->place,
      .incarnation = local->incarnation,
      .cookie_address = (uintptr_t)local->cookie,
      .table_address = (uintptr_t)memory->pages->table,
      .exports_address = (uintptr_t)memory->exports,
      .exports_bytes = memory->exports_bytes,
      .table_slots = memory->pages->table_slots,
      .pid = (uint32_t)getpid(),
      .regions_count = memory->pages->regions_count,
      .checksums_count = memory->pages->checksums_count,
      .has_table_fd = memory->table_fd >= 0,
      .table_fd = memory->table_fd >= 0 ? (uint32_t)memory->table_fd : 0,
  };
  memcpy(head.cookie, local->cookie, sizeof(head.cookie));
  *out_bytes = sizeof(head);
  if (*out_bytes > capacity) {
    return KVF_LIMIT;
  }
  memcpy(out, &head, sizeof(head));
  return KVF_OK;
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

/* We do it all: read theirs, and write ours. */
static bool local_serves(uint32_t theirs, uint32_t ours)
{
  const kvf_memory_ops *ops = kvf_memory_ops_of(theirs);
  return ops != NULL && ops->import != NULL && kvf_memory_ops_of(ours) != NULL;
}

const kvf_transport_ops kvf_transport_local = {
    .name = "local",
    .serves = local_serves,
    .open = local_open,
    .close = local_close,
    .set_memory = local_set_memory,
    .clear_memory = local_clear_memory,
    .describe = local_describe,
    .connect = local_connect,
    .disconnect = local_disconnect,
    .read = local_read,
    .cancel = local_cancel,
    .assist = local_assist,
};
