/* Reads of the local transport: queued, copied, sampled, reported. */
#include <stdlib.h>

#include "transport/local.h"
#include "transport/local_copy.h"
#include "transport/sums.h"
#include "transport/thread.h"

/* With the lock: the read ends without a copy, reported by the keeper. */
static void end_waiting(kvf_local *local, kvf_local_read *read, kvf_status status)
{
  read->status = status;
  kvf_list_remove(&read->in_queue);
  kvf_list_push_back(&local->ended, &read->in_queue);
  kvf_local_wake_keeper(local);
}

/* With the lock: whether this link can take the read, else why not. */
static kvf_status admit(const kvf_local *local, const kvf_local_link *link, const kvf_read *read)
{
  if (link->state != KVF_LOCAL_UP) {
    return link->state == KVF_LOCAL_DOWN ? link->failure : KVF_TRANSFER_SETUP;
  }
  if (link->memory != local->memory) {
    return KVF_TRANSFER_SETUP; /* made for memory that is not registered any more */
  }
  if (read->lease.slot >= link->table_slots) {
    return KVF_LEASE_UNKNOWN;
  }
  return KVF_OK;
}

void kvf_local_read_start(kvf_link *base, const kvf_read *request)
{
  kvf_local_link *link = kvf_local_link_of(base);
  kvf_local *local = kvf_local_of(base->transport);
  kvf_local_read *read = malloc(sizeof(*read));
  if (read != NULL) {
    read->link = link;
    read->read = *request;
    read->status = KVF_OK;
    atomic_init(&read->stop, false);
    kvf_list_init(&read->in_queue);
    kvf_list_init(&read->in_link);
  }
  (void)pthread_mutex_lock(&local->lock);
  if (read == NULL) {
    kvf_refusals_note(&local->refusals, request->id);
    kvf_local_wake_keeper(local);
    goto unlock;
  }
  link->refs++;
  kvf_list_push_back(&link->reads, &read->in_link);
  (void)atomic_fetch_add_explicit(&local->small_open, request->small ? 1 : 0, memory_order_relaxed);
  kvf_status status = admit(local, link, request);
  if (status != KVF_OK) {
    end_waiting(local, read, status);
  } else {
    kvf_local_workers_post(local, read);
  }
unlock:
  (void)pthread_mutex_unlock(&local->lock);
}

/* With the lock. A copy that is under way stops for a cancel only: when the peer has died it finds that out itself, and
 * what it has copied until then may be whole. */
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

void kvf_local_read_cancel(kvf_link *base, uint64_t read_id)
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

void kvf_local_reads_end(kvf_local *local, kvf_local_link *link, kvf_status status)
{
  for (kvf_list *node = link->reads.next; node != &link->reads; node = node->next) {
    end_read(local, KVF_CONTAINER_OF(node, kvf_local_read, in_link), status);
  }
}

static void landed(void *context)
{
  kvf_local_read *read = context;
  kvf_local *local = kvf_local_of(read->link->base.transport);
  local->host.read_progress(local->host.context, read->read.id);
}

static void copy_and_judge(kvf_local_worker *worker, kvf_local_read *read, kvf_read_result *result)
{
  const kvf_local_link *link = read->link;
  const kvf_read *request = &read->read;
  const kvf_chunk chunk =
      kvf_chunk_of(request, link->memory->regions, link->remote, link->regions_count + link->sums_count);
  const kvf_local_copy copy = {.pid = link->pid,
                               .bases = link->bases,
                               .fence = link->fence,
                               .stop = &read->stop,
                               .moved_ns = &worker->since_ns,
                               .landed = landed,
                               .context = read};
  result->status = kvf_chunk_check(&chunk, NULL);
  if (result->status == KVF_OK) {
    result->status = kvf_local_copy_lease(&copy, &chunk, link->table, &request->lease, &result->bytes, &result->sample);
  }
  kvf_sums_judge(&chunk, link->sums_count, &request->lease, result);
}

void kvf_local_read_run(kvf_local_worker *worker, kvf_local_read *read)
{
  kvf_local *local = worker->local;
  kvf_read_result result = {.id = read->read.id};
  copy_and_judge(worker, read, &result);
  /* A process that has ended may keep its descriptors for long, if one of its threads is stuck in the kernel. */
  if (result.status == KVF_TRANSFER_FAILED || result.status == KVF_PEER_DOWN) {
    kvf_local_link_unreadable(local, read->link, result.status);
  }
  kvf_local_read_finish(local, read, &result);
}

void kvf_local_read_finish(kvf_local *local, kvf_local_read *read, const kvf_read_result *result)
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
  kvf_local_link_drop(local, link);
  (void)pthread_mutex_unlock(&local->lock);
}

/* The caller does not copy: it would be stuck with the peer's memory. But most small reads are over before it has
 * anything else to do. */
bool kvf_local_read_assist(kvf_transport *transport)
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
