#include "runtime/ordering.h"

#include <stdlib.h>
#include <time.h>

#include "transport/thread.h"

struct kvf_ordering {
  kvf_node *node;
  pthread_t thread;
  pthread_mutex_t lock; /* taken inside the node's; guards what follows */
  pthread_cond_t work;
  kvf_list submitted;
  bool stop;
};

kvf_status kvf_ordered_make(const kvf_ordering_point *point, kvf_ordered **out)
{
  *out = NULL;
  if (point == NULL) {
    return KVF_OK;
  }
  const kvf_memory_ops *ops = kvf_memory_ops_of(point->memory);
  if (ops == NULL || ops->mark == NULL) {
    return KVF_INVALID;
  }
  kvf_ordered *ordered = calloc(1, sizeof(*ordered));
  if (ordered == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_list_init(&ordered->in_list);
  ordered->ops = ops;
  kvf_status status = ops->mark(point, &ordered->mark);
  if (status != KVF_OK) {
    free(ordered);
    return status;
  }
  if (ops->is_complete(ordered->mark)) {
    kvf_ordered_free(ordered);
    return KVF_OK;
  }
  *out = ordered;
  return KVF_OK;
}

void kvf_ordered_free(kvf_ordered *ordered)
{
  if (ordered != NULL) {
    ordered->ops->unmark(ordered->mark);
    free(ordered->job);
    free(ordered);
  }
}

/* Its point is complete. */
static void tell(kvf_node *node, kvf_ordered *ordered)
{
  uint64_t now_ns = kvf_node_enter(node);
  if (ordered->point != 0) {
    kvf_core_on_point(node->core, ordered->request_id, ordered->point);
  } else if (ordered->job != NULL) {
    kvf_checksummer_submit(node->checksummer, ordered->job);
    ordered->job = NULL;
  } else {
    kvf_core_on_complete(node->core, &ordered->lease);
  }
  kvf_node_leave(node, now_ns);
  kvf_ordered_free(ordered);
}

/* Moves what was submitted to `waiting`, and waits for some if there is nothing. False: to be stopped. */
static bool take(kvf_ordering *ordering, kvf_list *waiting)
{
  kvf_list *link;
  (void)pthread_mutex_lock(&ordering->lock);
  while (!ordering->stop && kvf_list_is_empty(&ordering->submitted) && kvf_list_is_empty(waiting)) {
    (void)pthread_cond_wait(&ordering->work, &ordering->lock);
  }
  while ((link = kvf_list_pop_front(&ordering->submitted)) != NULL) {
    kvf_list_push_back(waiting, link);
  }
  const bool go_on = !ordering->stop;
  (void)pthread_mutex_unlock(&ordering->lock);
  return go_on;
}

static void *run(void *context)
{
  kvf_ordering *ordering = context;
  const struct timespec pause = {.tv_nsec = (long)KVF_ORDERING_POLL_NS};
  kvf_list waiting;
  kvf_list_init(&waiting);
  while (take(ordering, &waiting)) {
    kvf_list *next;
    for (kvf_list *link = waiting.next; link != &waiting; link = next) {
      kvf_ordered *ordered = KVF_CONTAINER_OF(link, kvf_ordered, in_list);
      next = link->next;
      if (ordered->ops->is_complete(ordered->mark)) {
        kvf_list_remove(link);
        tell(ordering->node, ordered);
      }
    }
    if (!kvf_list_is_empty(&waiting)) {
      (void)nanosleep(&pause, NULL);
    }
  }
  kvf_list *link;
  while ((link = kvf_list_pop_front(&waiting)) != NULL) {
    kvf_ordered_free(KVF_CONTAINER_OF(link, kvf_ordered, in_list));
  }
  return NULL;
}

kvf_status kvf_ordering_open(kvf_node *node, kvf_ordering **out)
{
  bool has_points = false;
  for (uint32_t i = 0; i < node->regions_count; i++) {
    has_points = has_points || kvf_memory_ops_of(node->regions[i].memory)->mark != NULL;
  }
  *out = NULL;
  if (!has_points) {
    return KVF_OK;
  }
  kvf_ordering *ordering = calloc(1, sizeof(*ordering));
  if (ordering == NULL) {
    return KVF_NO_MEMORY;
  }
  ordering->node = node;
  kvf_list_init(&ordering->submitted);
  (void)pthread_mutex_init(&ordering->lock, NULL);
  (void)pthread_cond_init(&ordering->work, NULL);
  if (kvf_thread_start(&ordering->thread, "kvf-ordering", run, ordering, &node->cpus) == 0) {
    *out = ordering;
    return KVF_OK;
  }
  (void)pthread_cond_destroy(&ordering->work);
  (void)pthread_mutex_destroy(&ordering->lock);
  free(ordering);
  return KVF_SYSTEM;
}

void kvf_ordering_close(kvf_ordering *ordering)
{
  if (ordering == NULL) {
    return;
  }
  (void)pthread_mutex_lock(&ordering->lock);
  ordering->stop = true;
  (void)pthread_cond_signal(&ordering->work);
  (void)pthread_mutex_unlock(&ordering->lock);
  (void)pthread_join(ordering->thread, NULL);
  (void)pthread_cond_destroy(&ordering->work);
  (void)pthread_mutex_destroy(&ordering->lock);
  free(ordering);
}

void kvf_ordering_submit(kvf_ordering *ordering, kvf_ordered *ordered)
{
  (void)pthread_mutex_lock(&ordering->lock);
  kvf_list_push_back(&ordering->submitted, &ordered->in_list);
  (void)pthread_cond_signal(&ordering->work);
  (void)pthread_mutex_unlock(&ordering->lock);
}
