/* Several reads at once, ended in whatever way, and what must be true when they have all ended. */
#ifndef KVF_TESTS_CONFORMANCE_VOLLEY_H
#define KVF_TESTS_CONFORMANCE_VOLLEY_H

#include "base/time.h"
#include "pair.h"

#define VOLLEY_READS 4
#define VOLLEY_BLOCKS 64
#define VOLLEY_BLOCK_BYTES 131072
/* A cancelled read ends much sooner; a machine that is busy may take its time. */
#define VOLLEY_CANCEL_NS (5 * KVF_NS_PER_S)

/* Reads that together fetch a whole lease of VOLLEY_BLOCKS into the consumer's first blocks. */
typedef struct read_volley {
  side *consumer;
  kvf_read reads[VOLLEY_READS];
  kvf_read_item *items;
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

#endif
