#include "runtime/summing.h"

#include <stdlib.h>
#include <string.h>

#include "transport/sums.h"
#include "transport/thread.h"

struct kvf_summing_job {
  kvf_list in_jobs;
  kvf_lease lease;
  uint32_t groups;
  uint32_t counts[KVF_GROUPS_MAX];
  uint32_t ids[];
};

struct kvf_summing {
  kvf_node *node;
  uint32_t count;                       /* groups, and so regions of each of the next */
  kvf_region sums[KVF_GROUPS_MAX];      /* of what is published */
  kvf_region sums_read[KVF_GROUPS_MAX]; /* of what is loaded, as it came */

  pthread_t thread;
  bool stopped;
  atomic_bool stop;
  pthread_mutex_t lock; /* taken inside the node's; guards the jobs */
  pthread_cond_t work;
  kvf_list jobs;
};

/* False: there is no need to go on. */
static bool sum_blocks(kvf_summing *summing, const kvf_summing_job *job)
{
  const kvf_node *node = summing->node;
  const uint32_t *next = job->ids;
  for (uint32_t group = 0; group < job->groups; group++) {
    for (const uint32_t *end = next + job->counts[group]; next < end; next++) {
      if (atomic_load_explicit(&summing->stop, memory_order_relaxed)) {
        return false;
      }
      if (*next != KVF_BLOCK_NONE) {
        kvf_sums_make(node->regions, node->regions_count, &summing->sums[group], *next);
      }
    }
  }
  return true;
}

static kvf_summing_job *wait_for_job(kvf_summing *summing)
{
  kvf_summing_job *job = NULL;
  (void)pthread_mutex_lock(&summing->lock);
  while (job == NULL && !atomic_load_explicit(&summing->stop, memory_order_relaxed)) {
    kvf_list *link = kvf_list_pop_front(&summing->jobs);
    if (link != NULL) {
      job = KVF_CONTAINER_OF(link, kvf_summing_job, in_jobs);
    } else {
      (void)pthread_cond_wait(&summing->work, &summing->lock);
    }
  }
  (void)pthread_mutex_unlock(&summing->lock);
  return job;
}

static void *run(void *context)
{
  kvf_summing *summing = context;
  kvf_node *node = summing->node;
  kvf_summing_job *job;
  while ((job = wait_for_job(summing)) != NULL) {
    if (sum_blocks(summing, job)) {
      uint64_t now_ns = kvf_node_enter(node);
      kvf_core_on_summed(node->core, &job->lease);
      kvf_node_leave(node, now_ns);
    }
    free(job);
  }
  return NULL;
}

kvf_status kvf_summing_open(kvf_node *node, kvf_summing **out)
{
  uint32_t read_count = 0;
  kvf_summing *summing = calloc(1, sizeof(*summing));
  if (summing == NULL) {
    return KVF_NO_MEMORY;
  }
  summing->node = node;
  kvf_list_init(&summing->jobs);
  kvf_status status = kvf_sums_open(node->regions, node->regions_count, summing->sums, &summing->count);
  if (status != KVF_OK) {
    goto free_summing;
  }
  status = kvf_sums_open(node->regions, node->regions_count, summing->sums_read, &read_count);
  if (status != KVF_OK) {
    goto close_sums;
  }
  (void)pthread_mutex_init(&summing->lock, NULL);
  (void)pthread_cond_init(&summing->work, NULL);
  if (kvf_thread_start(&summing->thread, "kvf-sums", run, summing, &node->cpus) == 0) {
    *out = summing;
    return KVF_OK;
  }
  status = KVF_SYSTEM;
  (void)pthread_cond_destroy(&summing->work);
  (void)pthread_mutex_destroy(&summing->lock);
  kvf_sums_close(summing->sums_read, read_count);

close_sums:
  kvf_sums_close(summing->sums, summing->count);
free_summing:
  free(summing);
  return status;
}

void kvf_summing_describe(const kvf_summing *summing, kvf_transport_memory *memory)
{
  if (summing != NULL) {
    memory->sums_count = summing->count;
    memory->sums = summing->sums;
    memory->sums_read = summing->sums_read;
  }
}

void kvf_summing_stop(kvf_summing *summing)
{
  if (summing == NULL || summing->stopped) {
    return;
  }
  (void)pthread_mutex_lock(&summing->lock);
  atomic_store_explicit(&summing->stop, true, memory_order_relaxed);
  (void)pthread_cond_signal(&summing->work);
  (void)pthread_mutex_unlock(&summing->lock);
  (void)pthread_join(summing->thread, NULL);
  summing->stopped = true;
}

void kvf_summing_close(kvf_summing *summing)
{
  if (summing == NULL) {
    return;
  }
  kvf_list *link;
  while ((link = kvf_list_pop_front(&summing->jobs)) != NULL) {
    free(KVF_CONTAINER_OF(link, kvf_summing_job, in_jobs));
  }
  (void)pthread_cond_destroy(&summing->work);
  (void)pthread_mutex_destroy(&summing->lock);
  kvf_sums_close(summing->sums_read, summing->count);
  kvf_sums_close(summing->sums, summing->count);
  free(summing);
}

kvf_summing_job *kvf_summing_prepare(const kvf_lease *lease, const kvf_blocks *blocks)
{
  const size_t total = kvf_blocks_count(blocks);
  kvf_summing_job *job = malloc(sizeof(*job) + total * sizeof(job->ids[0]));
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

void kvf_summing_submit(kvf_summing *summing, kvf_summing_job *job)
{
  (void)pthread_mutex_lock(&summing->lock);
  kvf_list_push_back(&summing->jobs, &job->in_jobs);
  (void)pthread_cond_signal(&summing->work);
  (void)pthread_mutex_unlock(&summing->lock);
}
