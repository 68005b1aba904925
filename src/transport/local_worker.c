/* The threads of the local transport that copy. A copy waits in the kernel for as long as the peer's memory does not
 * answer (its process holds its memory map, swaps from a dead disk), and no signal ends that. So another thread takes
 * the place of such a worker, and no second one is lost to the same link meanwhile. */
#include <stdlib.h>

#include "transport/local.h"
#include "transport/thread.h"

/* A read of which nothing comes for so long is stuck, if others wait: a system call copies 1 MiB at most. */
#define STUCK_NS (50 * KVF_NS_PER_MS)

/* With the lock, which it gives up meanwhile. A worker that has copied polls for more: one that sleeps is often woken
 * on a core that another is copying on. */
static void linger(kvf_local *local, uint64_t *again_ns)
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

/* No second worker to the same link, nor too many to links that a process has offered one after the other. */
static bool may_copy_from(const kvf_local *local, const kvf_local_link *link)
{
  unsigned same = 0;
  for (const kvf_list *node = local->stuck.next; node != &local->stuck; node = node->next) {
    const kvf_local_worker *worker = KVF_CONTAINER_OF(node, kvf_local_worker, in_workers);
    same += worker->link != NULL && worker->link->pid == link->pid;
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
    kvf_local_wake_keeper(local);
  }
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
  kvf_local_read_run(worker, read);
  (void)pthread_mutex_lock(&local->lock);
  worker->link = NULL;
  if (worker->is_stuck) {
    link->stuck--;
    wake_workers(local); /* the link's other reads have waited for this */
  } else {
    local->busy_count--;
  }
  kvf_local_link_drop(local, link);
}

static void *worker_main(void *argument)
{
  kvf_local_worker *worker = argument;
  kvf_local *local = worker->local;
  bool has_copied = false;
  uint64_t again_ns = 0;
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
      linger(local, &again_ns);
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
  kvf_local_wake_keeper(local);
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

void kvf_local_workers_post(kvf_local *local, kvf_local_read *read)
{
  kvf_list_push_back(read->read.small ? &local->small : &local->bulk, &read->in_queue);
  (void)atomic_fetch_add_explicit(&local->posted, 1, memory_order_relaxed);
  (void)pthread_cond_signal(&local->work);
  watch_if_all_busy(local);
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
    kvf_local_log(local, KVF_LOG_WARN, &links[i]->peer, "memory of process %d does not answer: its reads wait%s",
                  (int)links[i]->pid, is_full ? "" : ", and others' too: no thread is left");
    (void)pthread_mutex_lock(&local->lock);
    kvf_local_link_drop(local, links[i]);
    (void)pthread_mutex_unlock(&local->lock);
  }
}

static void join_gone(kvf_local *local)
{
  for (;;) {
    (void)pthread_mutex_lock(&local->lock);
    kvf_list *node = kvf_list_pop_front(&local->gone);
    (void)pthread_mutex_unlock(&local->lock);
    if (node == NULL) {
      return;
    }
    kvf_local_worker *worker = KVF_CONTAINER_OF(node, kvf_local_worker, in_workers);
    (void)pthread_join(worker->thread, NULL);
    free(worker);
  }
}

bool kvf_local_workers_start(kvf_local *local)
{
  return fill_up(local);
}

int kvf_local_workers_keep(kvf_local *local)
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
