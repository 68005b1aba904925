/* What will happen, in order of virtual time; at the same time, in the order in which it was decided. */
#ifndef KVF_SIM_QUEUE_H
#define KVF_SIM_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_EVENTS_MAX 4096

typedef struct sim_world sim_world;
typedef struct sim_event sim_event;
typedef void (*sim_event_fn)(sim_world *world, const sim_event *event);

struct sim_event {
  uint64_t at_ns;
  uint64_t seq;
  sim_event_fn fn;
  uint32_t a;
  uint32_t b;
  uint64_t c;
};

typedef struct sim_queue {
  uint64_t next_seq;
  uint32_t count;
  sim_event heap[SIM_EVENTS_MAX];
} sim_queue;

/* False if there is no room. */
bool sim_queue_push(sim_queue *queue, sim_event event);
/* The next event; false if there is none. */
bool sim_queue_pop(sim_queue *queue, sim_event *out);

#endif
