/* A producer and a consumer in this process, linked; and a producer in a process of its own. */
#ifndef KVF_TESTS_CONFORMANCE_PAIR_H
#define KVF_TESTS_CONFORMANCE_PAIR_H

#include "../child_process.h"
#include "base/time.h"
#include "node.h"

#define SEED 5
#define LEASE_ID UINT64_C(1001)

/* Where transports may differ. */
typedef struct conformance_traits {
  const kvf_transport_ops *ops;
  bool producer_checks_lease;   /* a read of a lease that is not live or not known is refused before any byte */
  bool producer_checks_session; /* a connection must show the session's key */
  bool reads_stopped_producer;  /* nothing of the producer but its memory is needed */
  bool has_checksums;           /* both sides have checksums */
  bool is_slow;                 /* fewer rounds of what is one round trip after the other */
  bool has_no_peers;            /* the cases of peers that come and go are left out */
  bool is_inside_tls;           /* all connections */
  uint32_t producer_memory;     /* kvf_memory_kind, or the test's */
  uint32_t consumer_memory;
  bool has_faults; /* it is a fault transport: the cases of cases_fault.c are run too */
} conformance_traits;

/* Those of this program, which the build names. */
extern const conformance_traits *traits;
bool suite_has_peers(void);
bool suite_has_faults(void);

/* Cases add themselves; those of peers that come and go, and those of fault transports, where the suite has them. */
#define PEER_TEST(name) TEST_IF(suite_has_peers(), name, NULL, NULL)
#define FAULT_TEST(name) TEST_IF(suite_has_faults(), name, NULL, NULL)

typedef struct pair {
  side producer;
  side consumer;
  node_introduction introduction;
  kvf_link *link;
} pair;

/* Either side, with the suite's kind of memory; a producer's is filled with SEED. */
void producer_open(side *node, const node_shape *shape);
void consumer_open(side *node, const node_shape *shape);
/* Linked sides; the producer's memory is filled with SEED. */
pair *pair_open(const node_shape *producer, const node_shape *consumer);
/* Disconnects (unless link is NULL), closes both, frees. */
void pair_close(pair *two);

/* Whether a read is of this region, if its items are of the region's group. */
bool read_has(const kvf_transfer *read, uint32_t region);
/* Whether the items' bytes at the consumer are those that the producer was filled with. */
bool pair_bytes_match(const side *consumer, const node_shape *producer, const kvf_transfer *read);
/* A read of every position of the lease, to local blocks from `first` on. read->items is to be freed. */
kvf_transfer lease_read(side *consumer, const node_lease *lease, uint32_t first);
void read_free(const kvf_transfer *read);

/* ---- several reads at once, ended in whatever way, and what must be true when they have all ended ---- */

#define VOLLEY_READS 4
#define VOLLEY_BLOCKS 64
#define VOLLEY_BLOCK_BYTES 131072
/* A cancelled read ends much sooner; a machine that is busy may take its time. */
#define VOLLEY_CANCEL_NS (5 * KVF_NS_PER_S)

/* Reads that together fetch a whole lease of VOLLEY_BLOCKS into the consumer's first blocks. */
typedef struct read_volley {
  side *consumer;
  kvf_transfer reads[VOLLEY_READS];
  kvf_transfer_item *items;
} read_volley;

read_volley volley_start(side *consumer, kvf_link *link, const node_lease *lease);
void volley_cancel(const read_volley *volley, kvf_link *link);
/* Waits for all; those that say so must have the right bytes. Then the blocks get their next owner. */
void volley_end(read_volley *volley, const node_shape *producer);
/* The blocks of the volleys get their next owner; whether nobody else has written to them since. */
void next_owner(const side *consumer);
bool next_owner_is_alone(const side *consumer);
/* The link still works, or a new one does: reads one block into the block after the volleys'. */
void volley_probe(side *consumer, kvf_link **link, const node_introduction *introduction, const node_lease *lease);

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
int process_main(void);

/* Likewise a consumer in a process of its own, which reads the lease over and over until it is killed.
 * Returns when it has begun. */
void consumer_start(child_process *child, const node_introduction *introduction, const node_lease *lease);
void consumer_kill(const child_process *child);
int consumer_main(void);

#endif
