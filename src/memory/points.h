/* Ordering points that are waited for. A call notes them, and one thread asks repeatedly whether they are complete. So
 * no other thread waits. */
#ifndef KVF_MEMORY_POINTS_H
#define KVF_MEMORY_POINTS_H

#include <pthread.h>

#include "base/list.h"
#include "memory/memory.h"

/* How often they are asked, by a thread that sleeps as long as it asks for. */
#define KVF_POINTS_POLL_NS UINT64_C(50000)

/* Part of what waits for it. */
typedef struct kvf_point {
  kvf_list in_list;
  const kvf_memory_ops *ops;
  void *mark;
} kvf_point;

typedef struct kvf_points {
  pthread_mutex_t lock; /* innermost; guards what follows */
  pthread_cond_t work;
  kvf_list submitted;
  bool stop;
} kvf_points;

/* Notes the point: *out is for kvf_point_unmark(). KVF_INVALID: it is none that its kind knows. */
KVF_MUST_USE kvf_status kvf_point_mark(const kvf_ordering_point *point, kvf_point *out);
bool kvf_point_is_complete(const kvf_point *point);
void kvf_point_unmark(kvf_point *point);

void kvf_points_init(kvf_points *points);
/* kvf_points_run() has returned. */
void kvf_points_free(kvf_points *points);
/* Any thread. */
void kvf_points_submit(kvf_points *points, kvf_point *point);
/* Any thread: kvf_points_run() is to return, soon. */
void kvf_points_stop(kvf_points *points);
/* The thread: gives each point back, without the lock; `complete`, or if it is not by the time of the stop. */
void kvf_points_run(kvf_points *points, void (*give)(void *context, kvf_point *point, bool complete), void *context);

#endif
