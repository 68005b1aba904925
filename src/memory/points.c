/* The loop of the thread that asks ordering points: takes what was submitted, asks each, and sleeps in between. */
#include "memory/points.h"

#include <time.h>

#include "base/status.h"

kvf_status kvf_point_mark(const kvf_ordering_point *point, kvf_point *out)
{
  kvf_list_init(&out->in_list);
  out->ops = kvf_memory_ops_of(point->memory);
  return out->ops == NULL || out->ops->mark == NULL
             ? kvf_because(KVF_INVALID, "%s memory knows no ordering points", kvf_memory_kind_name((int)point->memory))
             : out->ops->mark(point, &out->mark);
}

bool kvf_point_is_complete(const kvf_point *point)
{
  return point->ops->is_complete(point->mark);
}

void kvf_point_unmark(kvf_point *point)
{
  point->ops->unmark(point->mark);
}

void kvf_points_init(kvf_points *points)
{
  kvf_list_init(&points->submitted);
  (void)pthread_mutex_init(&points->lock, NULL);
  (void)pthread_cond_init(&points->work, NULL);
  points->stop = false;
}

void kvf_points_free(kvf_points *points)
{
  (void)pthread_cond_destroy(&points->work);
  (void)pthread_mutex_destroy(&points->lock);
}

void kvf_points_submit(kvf_points *points, kvf_point *point)
{
  (void)pthread_mutex_lock(&points->lock);
  kvf_list_push_back(&points->submitted, &point->in_list);
  (void)pthread_cond_signal(&points->work);
  (void)pthread_mutex_unlock(&points->lock);
}

void kvf_points_stop(kvf_points *points)
{
  (void)pthread_mutex_lock(&points->lock);
  points->stop = true;
  (void)pthread_cond_signal(&points->work);
  (void)pthread_mutex_unlock(&points->lock);
}

/* Moves what was submitted to `waiting`, and waits for some if there is nothing. False: it is to stop. */
static bool take(kvf_points *points, kvf_list *waiting)
{
  kvf_list *link;
  (void)pthread_mutex_lock(&points->lock);
  while (!points->stop && kvf_list_is_empty(&points->submitted) && kvf_list_is_empty(waiting)) {
    (void)pthread_cond_wait(&points->work, &points->lock);
  }
  while ((link = kvf_list_pop_front(&points->submitted)) != NULL) {
    kvf_list_push_back(waiting, link);
  }
  const bool go_on = !points->stop;
  (void)pthread_mutex_unlock(&points->lock);
  return go_on;
}

void kvf_points_run(kvf_points *points, void (*give)(void *context, kvf_point *point, bool complete), void *context)
{
  const struct timespec pause = {.tv_nsec = (long)KVF_POINTS_POLL_NS};
  kvf_list waiting;
  kvf_list_init(&waiting);
  while (take(points, &waiting)) {
    kvf_list *next;
    for (kvf_list *link = waiting.next; link != &waiting; link = next) {
      kvf_point *point = KVF_CONTAINER_OF(link, kvf_point, in_list);
      next = link->next;
      if (kvf_point_is_complete(point)) {
        kvf_list_remove(link);
        give(context, point, true);
      }
    }
    if (!kvf_list_is_empty(&waiting)) {
      (void)nanosleep(&pause, NULL);
    }
  }
  kvf_list *link;
  while ((link = kvf_list_pop_front(&waiting)) != NULL) {
    give(context, KVF_CONTAINER_OF(link, kvf_point, in_list), false);
  }
}
