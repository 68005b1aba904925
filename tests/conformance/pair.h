/* A producer and a consumer in this process, linked; and a producer in a process of its own. */
#ifndef KVF_TESTS_CONFORMANCE_PAIR_H
#define KVF_TESTS_CONFORMANCE_PAIR_H

#include "../child_process.h"
#include "node.h"
#include "suite.h"

#define SEED 5
#define LEASE_ID UINT64_C(1001)

typedef struct pair {
  const conformance_traits *traits;
  side producer;
  side consumer;
  node_introduction introduction;
  kvf_link *link;
} pair;

/* Linked sides; the producer's memory is filled with SEED. */
pair *pair_open(const conformance_traits *traits, const node_shape *producer, const node_shape *consumer);
/* Disconnects (unless link is NULL), closes both, frees. */
void pair_close(pair *two);

/* Whether the items' bytes at the consumer are those that the producer was filled with. */
bool pair_bytes_match(const side *consumer, const node_shape *producer, const kvf_read *read);
/* A read of every position of the lease, to local blocks from `first` on. read->items is to be freed. */
kvf_read lease_read(side *consumer, const node_lease *lease, uint32_t first);
void read_free(const kvf_read *read);

/* ---- another process ---- */

typedef struct producer_process {
  child_process child;
  bool killed;
  node_introduction introduction;
  node_lease lease; /* LEASE_ID, published */
} producer_process;

/* Starts this executable as a producer of that shape, filled with SEED. */
void process_start(producer_process *process, const node_shape *shape);
/* SIGSTOP; returns when it stands still. */
void process_stop(producer_process *process);
void process_continue(producer_process *process);
void process_kill(producer_process *process);
/* Ends it by closing its channel, unless it has been killed, and expects that it exits well. */
void process_end(producer_process *process);
/* What such a process does. Returns its exit status. */
int process_main(const conformance_traits *traits);

/* Likewise a consumer (volley.h) in a process of its own, which reads the lease over and over until it is killed.
 * Returns when it has begun. */
void consumer_start(child_process *child, const node_introduction *introduction, const node_lease *lease);
void consumer_kill(const child_process *child);
int consumer_main(const conformance_traits *traits);

#endif
