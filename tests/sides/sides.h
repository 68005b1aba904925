/* Two linked sides of the transport under test: both in this process, or the producer in a process of its own. */
#ifndef KVF_TESTS_SIDES_SIDES_H
#define KVF_TESTS_SIDES_SIDES_H

#include "../child_process.h"
#include "base/time.h"
#include "side.h"

#define SEED 5 /* of the producer's memory */
#define LEASE_ID UINT64_C(1001)

typedef struct sides {
  side producer; /* of one in another process nothing but `leases` is used */
  side consumer;
  side_introduction introduction;
  side_lease *lease; /* LEASE_ID, of all blocks, published */
  kvf_link *link;    /* NULL: it has been disconnected */
  child_process process;
} sides;

/* Either side alone, with its kind of memory. */
void producer_open(side *one, const side_shape *shape);
void consumer_open(side *one, const side_shape *shape);
sides *sides_open(const side_shape *producer, const side_shape *consumer);
sides *sides_open_unlinked(const side_shape *producer, const side_shape *consumer);
/* Both of so many blocks. */
sides *sides_open_simple(uint32_t blocks, uint32_t block_bytes);
/* Disconnects what is linked, closes both, frees. */
void sides_close(sides *two);
void sides_disconnect(sides *two);
/* The producer introduces itself and publishes the lease. */
void sides_meet(sides *two);
/* Connects, and expects success. */
void sides_link(sides *two);

/* Whether a read is of this region, if its items are of the region's group. */
bool read_has(const kvf_transfer *read, uint32_t region);
/* Whether the items' bytes at the consumer are those that the producer was filled with. */
bool sides_match(const sides *two, const kvf_transfer *read);
/* A read of every position of the lease, to local blocks from `first` on. read->items is to be freed. */
kvf_transfer lease_read(side *consumer, const side_lease *lease, uint32_t first);
void read_free(const kvf_transfer *read);

/* ---- several reads at once, ended in whatever way, and what must be true when they have all ended ---- */

#define VOLLEY_READS 4
#define VOLLEY_BLOCKS 64
#define VOLLEY_BLOCK_BYTES 131072
/* A cancelled read ends much sooner; a machine that is busy may take its time. */
#define VOLLEY_CANCEL_NS (5 * KVF_NS_PER_S)

/* Reads that together fetch a whole lease of VOLLEY_BLOCKS into the consumer's first blocks. */
typedef struct read_volley {
  sides *two;
  kvf_transfer reads[VOLLEY_READS];
  kvf_transfer_item *items;
} read_volley;

/* Sides for volleys; the consumer has one block more than they fill. */
sides *volley_sides(void);
void volley_producer(side *one);
read_volley volley_start(sides *two);
void volley_cancel(const read_volley *volley);
/* Waits for all; those that say so must have the right bytes. Then the blocks get their next owner. */
void volley_end(read_volley *volley);
/* Nobody but the next owner has written to their blocks. */
bool next_owner_is_alone(const sides *two);
/* So it is, and the link still works, or a new one does, to read one block into the one more. */
void volleys_are_over(sides *two);

/* ---- another process ---- */

/* Sides for volleys whose producer is to be started. */
sides *volley_sides_apart(void);
/* Starts this executable as the producer, and links. */
void process_start(sides *two);
void process_stop(const sides *two);
void process_continue(const sides *two);
void process_kill(sides *two);
/* Ends it by closing its channel, and expects that it exits well. */
void process_end(sides *two);
/* What such a process does. Returns its exit status. */
int process_main(void);

/* A consumer in a process of its own, which reads the lease over and over until it is killed. Returns when it has
 * begun. */
void consumer_start(child_process *child, const sides *two);
void consumer_kill(const child_process *child);
int consumer_main(void);

#endif
