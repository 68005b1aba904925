/* A producer in a process of its own, which can be stopped and told to overwrite what it offered. */
#ifndef KVF_TESTS_PRODUCER_PROCESS_H
#define KVF_TESTS_PRODUCER_PROCESS_H

#include "../../child_process.h"
#include "pair.h"

typedef struct producer_process {
  child_process child;
  pair_node *here; /* not NULL: it is this node, and no process of its own */
} producer_process;

/* What main() does when it was started with the one argument "--producer". */
int producer_process_main(void);

/* With at most PRODUCER_OPTIONS_MAX options of pair_open_node(). */
#define PRODUCER_OPTIONS_MAX 8
void producer_process_start(producer_process *process, const pair_option *options);
/* The orders are carried out by this node, in the calling thread. */
void producer_process_here(producer_process *process, pair_node *node);
void producer_process_end(producer_process *process);
void producer_process_stop(producer_process *process);
void producer_process_continue(producer_process *process);

/* It forks a child, which closes its copy of the node; with the last offer made, it may be killed, and the child lives
 * on until it is released. */
void producer_process_fork(producer_process *process);
void producer_process_kill(producer_process *process);
void producer_process_release(producer_process *process);

/* It publishes `count` blocks with the bytes of `seed`, from its block `first` on: see pair_offer(). */
void producer_process_offer(producer_process *process, uint32_t first, uint32_t count, uint32_t seed,
                            pair_ticket *ticket);
/* It takes the blocks back and writes the bytes of another seed into them. */
void producer_process_overwrite(producer_process *process, const pair_ticket *ticket, uint32_t seed);

/* What its engine writes into all of the blocks, by pair_write(): not 0. */
typedef struct engine_write {
  uint8_t value;
  bool out_of_order; /* the lease is live before that is done; or still live when it is */
} engine_write;

/* Both by its engine, behind whose work the lease is published; the fake's work takes the course of `seed`. */
void producer_process_write(producer_process *process, uint32_t first, uint32_t count, uint32_t seed,
                            engine_write write, pair_ticket *ticket);
void producer_process_write_over(producer_process *process, const pair_ticket *ticket, engine_write write);

#endif
