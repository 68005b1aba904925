/* A producer, a consumer that something is done to, and a healthy consumer beside it that loads all the while. */
#ifndef KVF_TESTS_HOSTILE_WORLD_H
#define KVF_TESTS_HOSTILE_WORLD_H

#include <pthread.h>
#include <stdatomic.h>

#include "../unit/runtime/pair.h"

#define WORLD_BLOCKS 8          /* of a load */
#define WORLD_PATIENCE_MS 30000 /* nothing takes this long unless it hangs */
#define WORLD_LOAD_TIMEOUT_MS 1500

/* ---- what a node costs ---- */

typedef struct costs {
  size_t descriptors;
  size_t threads;
  size_t memory_bytes; /* allocated; 0 where the allocator does not tell */
} costs;

costs costs_now(void);
/* Waits until descriptors and threads are as many as before, and memory no more than `slack_bytes` above; else fails.
 */
void costs_expect(costs before, size_t slack_bytes);

/* ---- a consumer beside ---- */

typedef struct beside {
  pair_node *producer;
  pair_node consumer;
  pthread_t thread;
  pthread_mutex_t offers; /* held while it makes a ticket */
  atomic_bool stop;
  atomic_uint loads;
  atomic_int failure; /* of the first load that failed */
} beside;

/* Opens the consumer and begins; returns when two loads have succeeded. */
void beside_start(beside *b, pair_node *producer, const pair_option *options);
/* It has gone on, goes on, and has never failed, retried, or lost its peer. */
void beside_expect_undisturbed(beside *b);
void beside_stop(beside *b);

/* ---- a load, and what must be true of any ---- */

typedef struct outcome {
  kvf_status started; /* of kvf_request_open() or kvf_load_start(); the rest is of no meaning if it is not KVF_OK */
  kvf_status status;
  uint32_t prefix;
  uint64_t took_ms;
  uint64_t retries;
  kvf_verdict verdict;
} outcome;

/* Offers blocks that no other load of the world uses, loads them, and checks P1 (the blocks that are said to be good
 * are), P2 (the outcome comes in time, and released and the verdict after it), P3 (each once: pair_wait()), and that a
 * failure has a reason that is not a caller's mistake. */
void world_load(pair_node *producer, pair_node *consumer, uint32_t seed, outcome *out);
/* As above with a ticket of one's own: of another process' producer, say. */
void world_load_ticket(pair_node *consumer, const pair_ticket *ticket, uint32_t seed, outcome *out);
/* Loads until one succeeds. */
void world_expect_recovery(pair_node *producer, pair_node *consumer, uint32_t seed);
uint16_t world_control_port(const pair_node *producer);

#endif
