/* The thread that makes checksums of what a node publishes. */
#include "runtime/checksummer.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "transport/checksums.h"
#include "transport/paging.h"
#include "transport/thread.h"

struct kvf_checksummer_job {
  kvf_list in_jobs;
  kvf_lease lease;
  uint32_t groups;
  uint32_t counts[KVF_GROUPS_MAX];
  uint32_t ids[];
};

struct kvf_checksummer {
  kvf_node *node;
  kvf_paging *pages;                         /* of the node's memory, with checksums */
  uint32_t count;                            /* groups, and so regions of each of the next */
  kvf_region checksums[KVF_GROUPS_MAX];      /* of what is published */
  kvf_region checksums_read[KVF_GROUPS_MAX]; /* of what is loaded, as it came */

  pthread_t thread;
  bool stopped;
  atomic_bool stop;
  pthread_mutex_t lock; /* taken inside the node's; guards the jobs */
  pthread_cond_t work;
  kvf_list jobs;
};

/* False: there is no need to go on. */
static bool sum_blocks(kvf_checksummer *checksummer, const kvf_checksummer_job *job)
{
  const kvf_paging *pages = checksummer->pages;
  const uint32_t *next = job->ids;
  for (uint32_t group = 0; group < job->groups; group++) {
    for (const uint32_t *end = next + job->counts[group]; next < end; next++) {
      if (atomic_load_explicit(&checksummer->stop, memory_order_relaxed)) {
        return false;
      }
      if (*next != KVF_BLOCK_NONE && !kvf_checksums_make(&pages->plan, pages->served, group, *next)) {
        return false; /* the lease is never live, and runs out */
      }
    }
  }
  return true;
}

static kvf_checksummer_job *wait_for_job(kvf_checksummer *checksummer)
{
  kvf_checksummer_job *job = NULL;
  (void)pthread_mutex_lock(&checksummer->lock);
  while (job == NULL && !atomic_load_explicit(&checksummer->stop, memory_order_relaxed)) {
    kvf_list *link = kvf_list_pop_front(&checksummer->jobs);
    if (link != NULL) {
      job = KVF_CONTAINER_OF(link, kvf_checksummer_job, in_jobs);
    } else {
      (void)pthread_cond_wait(&checksummer->work, &checksummer->lock);
    }
  }
  (void)pthread_mutex_unlock(&checksummer->lock);
  return job;
}

static void *run(void *context)
{
  kvf_checksummer *checksummer = context;
  kvf_node *node = checksummer->node;
  kvf_checksummer_job *job;
  kvf_thread_sleep_exactly();
  while ((job = wait_for_job(checksummer)) != NULL) {
    if (sum_blocks(checksummer, job)) {
      uint64_t now_ns = kvf_node_enter(node);
      kvf_core_on_complete(node->core, &job->lease);
      kvf_node_leave(node, now_ns);
    }
    free(job);
  }
  return NULL;
}

/* Both kinds of checksums, and what they are of. */
static kvf_status open_checksums(kvf_checksummer *checksummer, const kvf_pages *pages, char *message)
{
  kvf_checksums_layout layout;
  kvf_transport_memory memory = {
      .regions = checksummer->node->memory.regions, .regions_count = pages->regions_count, .layout = pages->layout};
  kvf_status status = kvf_checksums_lay_out(pages, &layout, message);
  if (status != KVF_OK) {
    return status;
  }
  checksummer->count = layout.count;
  status = kvf_checksums_open(&layout, checksummer->checksums);
  if (status == KVF_OK) {
    status = kvf_checksums_open(&layout, checksummer->checksums_read);
  }
  kvf_checksummer_describe(checksummer, &memory);
  checksummer->pages = status == KVF_OK ? kvf_paging_of_memory(&memory) : NULL;
  return checksummer->pages != NULL ? KVF_OK : kvf_fail(KVF_NO_MEMORY, message, "no memory for checksums");
}

static void free_checksummer(kvf_checksummer *checksummer)
{
  free(checksummer->pages);
  kvf_checksums_close(checksummer->checksums_read, checksummer->count);
  kvf_checksums_close(checksummer->checksums, checksummer->count);
  free(checksummer);
}

kvf_status kvf_checksummer_open(kvf_node *node, const kvf_pages *pages, kvf_checksummer **out, char *message)
{
  kvf_checksummer *checksummer = calloc(1, sizeof(*checksummer));
  if (checksummer == NULL) {
    return kvf_fail(KVF_NO_MEMORY, message, "no memory for checksums");
  }
  checksummer->node = node;
  kvf_list_init(&checksummer->jobs);
  kvf_status status = open_checksums(checksummer, pages, message);
  if (status != KVF_OK) {
    free_checksummer(checksummer);
    return status;
  }
  (void)pthread_mutex_init(&checksummer->lock, NULL);
  (void)pthread_cond_init(&checksummer->work, NULL);
  if (kvf_thread_start(&checksummer->thread, "kvf-checksums", run, checksummer, &node->cpus) != 0) {
    (void)pthread_cond_destroy(&checksummer->work);
    (void)pthread_mutex_destroy(&checksummer->lock);
    free_checksummer(checksummer);
    return kvf_fail(KVF_SYSTEM, message, "no thread for checksums");
  }
  *out = checksummer;
  return KVF_OK;
}

void kvf_checksummer_describe(const kvf_checksummer *checksummer, kvf_transport_memory *memory)
{
  if (checksummer != NULL) {
    memory->checksums_count = checksummer->count;
    memory->checksums = checksummer->checksums;
    memory->checksums_read = checksummer->checksums_read;
  }
}

void kvf_checksummer_stop(kvf_checksummer *checksummer)
{
  if (checksummer == NULL || checksummer->stopped) {
    return;
  }
  (void)pthread_mutex_lock(&checksummer->lock);
  atomic_store_explicit(&checksummer->stop, true, memory_order_relaxed);
  (void)pthread_cond_signal(&checksummer->work);
  (void)pthread_mutex_unlock(&checksummer->lock);
  (void)pthread_join(checksummer->thread, NULL);
  checksummer->stopped = true;
}

void kvf_checksummer_close(kvf_checksummer *checksummer)
{
  if (checksummer == NULL) {
    return;
  }
  kvf_list *link;
  while ((link = kvf_list_pop_front(&checksummer->jobs)) != NULL) {
    free(KVF_CONTAINER_OF(link, kvf_checksummer_job, in_jobs));
  }
  (void)pthread_cond_destroy(&checksummer->work);
  (void)pthread_mutex_destroy(&checksummer->lock);
  free_checksummer(checksummer);
}

kvf_checksummer_job *kvf_checksummer_prepare(const kvf_lease *lease, const kvf_blocks *blocks)
{
  const size_t total = kvf_blocks_count(blocks);
  kvf_checksummer_job *job = malloc(sizeof(*job) + total * sizeof(job->ids[0]));
  if (job == NULL) {
    return NULL;
  }
  kvf_list_init(&job->in_jobs);
  job->lease = *lease;
  job->groups = blocks->groups;
  memcpy(job->counts, blocks->counts, blocks->groups * sizeof(job->counts[0]));
  memcpy(job->ids, blocks->ids, total * sizeof(job->ids[0]));
  return job;
}

void kvf_checksummer_submit(kvf_checksummer *checksummer, kvf_checksummer_job *job)
{
  (void)pthread_mutex_lock(&checksummer->lock);
  kvf_list_push_back(&checksummer->jobs, &job->in_jobs);
  (void)pthread_cond_signal(&checksummer->work);
  (void)pthread_mutex_unlock(&checksummer->lock);
}
