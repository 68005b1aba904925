/* A heap of events by time, then by number. */
#include "queue.h"

static bool is_before(const sim_event *a, const sim_event *b)
{
  return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

bool sim_queue_push(sim_queue *queue, sim_event event)
{
  if (queue->count == SIM_EVENTS_MAX) {
    return false;
  }
  event.seq = queue->next_seq++;
  uint32_t at = queue->count++;
  while (at > 0 && is_before(&event, &queue->heap[(at - 1) / 2])) {
    queue->heap[at] = queue->heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  queue->heap[at] = event;
  return true;
}

bool sim_queue_pop(sim_queue *queue, sim_event *out)
{
  if (queue->count == 0) {
    return false;
  }
  *out = queue->heap[0];
  sim_event last = queue->heap[--queue->count];
  uint32_t at = 0;
  for (uint32_t child = 1; child < queue->count; child = 2 * at + 1) {
    if (child + 1 < queue->count && is_before(&queue->heap[child + 1], &queue->heap[child])) {
      child++;
    }
    if (!is_before(&queue->heap[child], &last)) {
      break;
    }
    queue->heap[at] = queue->heap[child];
    at = child;
  }
  queue->heap[at] = last;
  return true;
}
