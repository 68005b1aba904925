/* Publications and loads that wait for an ordering point. */
#include "runtime/ordering.h"

#include <stdlib.h>

#include "transport/thread.h"

struct kvf_ordering {
  kvf_node *node;
  pthread_t thread;
  kvf_points points;
};

kvf_status kvf_ordered_make(const kvf_ordering_point *point, kvf_ordered **out)
{
  *out = NULL;
  if (point == NULL) {
    return KVF_OK;
  }
  kvf_ordered *ordered = calloc(1, sizeof(*ordered));
  kvf_status status = ordered == NULL ? KVF_NO_MEMORY : kvf_point_mark(point, &ordered->point);
  if (status != KVF_OK) {
    free(ordered);
  } else if (kvf_point_is_complete(&ordered->point)) {
    kvf_ordered_free(ordered);
  } else {
    *out = ordered;
  }
  return status;
}

void kvf_ordered_free(kvf_ordered *ordered)
{
  if (ordered != NULL) {
    kvf_point_unmark(&ordered->point);
    free(ordered->job);
    free(ordered);
  }
}

static void tell(kvf_node *node, kvf_ordered *ordered)
{
  uint64_t now_ns = kvf_node_enter(node);
  if (ordered->number != 0) {
    kvf_core_on_point(node->core, ordered->request_id, ordered->number);
  } else if (ordered->job != NULL) {
    kvf_checksummer_submit(node->memory.checksummer, ordered->job);
    ordered->job = NULL;
  } else {
    kvf_core_on_complete(node->core, &ordered->lease);
  }
  kvf_node_leave(node, now_ns);
}

static void give(void *context, kvf_point *point, bool complete)
{
  kvf_ordered *ordered = KVF_CONTAINER_OF(point, kvf_ordered, point);
  if (complete) {
    tell(((kvf_ordering *)context)->node, ordered);
  }
  kvf_ordered_free(ordered);
}

static void *run(void *context)
{
  kvf_ordering *ordering = context;
  kvf_thread_sleep_exactly();
  kvf_points_run(&ordering->points, give, ordering);
  return NULL;
}

kvf_status kvf_ordering_open(kvf_node *node, kvf_ordering **out)
{
  *out = NULL;
  if (!kvf_memory_any_has_points(node->memory.regions, node->memory.regions_count)) {
    return KVF_OK;
  }
  kvf_ordering *ordering = calloc(1, sizeof(*ordering));
  if (ordering == NULL) {
    return KVF_NO_MEMORY;
  }
  ordering->node = node;
  kvf_points_init(&ordering->points);
  if (kvf_thread_start(&ordering->thread, "kvf-ordering", run, ordering, &node->cpus) == 0) {
    *out = ordering;
    return KVF_OK;
  }
  kvf_points_free(&ordering->points);
  free(ordering);
  return KVF_SYSTEM;
}

void kvf_ordering_close(kvf_ordering *ordering)
{
  if (ordering != NULL) {
    kvf_points_stop(&ordering->points);
    (void)pthread_join(ordering->thread, NULL);
    kvf_points_free(&ordering->points);
    free(ordering);
  }
}

void kvf_ordering_submit(kvf_ordering *ordering, kvf_ordered *ordered)
{
  kvf_points_submit(&ordering->points, &ordered->point);
}
