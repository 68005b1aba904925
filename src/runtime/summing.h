/* Checksums of what a node publishes: made by one thread of its own, in the order of the publications, so that neither
 * the engine's thread nor the node's lock waits for them, and a block that has changed hands gets its last owner's.
 */
#ifndef KVF_RUNTIME_SUMMING_H
#define KVF_RUNTIME_SUMMING_H

#include "runtime/pump.h"

/* A lease whose blocks are to be summed. */
typedef struct kvf_summing_job kvf_summing_job;

/* Makes room for the sums of node->regions, and starts the thread. KVF_LIMIT: more heads and regions than a row of sums
 * can have. KVF_NO_MEMORY. KVF_SYSTEM: no thread. On success *out is the caller's. */
KVF_MUST_USE kvf_status kvf_summing_open(kvf_node *node, kvf_summing **out);

/* Adds the sums to what transports are given: they point into `summing`. */
void kvf_summing_describe(const kvf_summing *summing, kvf_transport_memory *memory);

/* When this returns nothing reads the regions any more. What waited is dropped. Not under the node's lock. NULL is
 * allowed, here and below. */
void kvf_summing_stop(kvf_summing *summing);

/* Frees it. It has been stopped, and no transport has its memory. */
void kvf_summing_close(kvf_summing *summing);

/* `blocks` is copied. NULL: no memory. */
kvf_summing_job *kvf_summing_prepare(const kvf_lease *lease, const kvf_blocks *blocks);

/* The lease was published: takes the job over. kvf_lease_table_summed() follows, from the thread. Under the node's
 * lock. */
void kvf_summing_submit(kvf_summing *summing, kvf_summing_job *job);

#endif
