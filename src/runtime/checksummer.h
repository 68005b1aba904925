/* Checksums of published blocks, made by one thread in the order of the publications. So neither the engine's thread
 * nor the node's lock waits for them. A block that has changed its owner gets the checksums of the last one.
 */
#ifndef KVF_RUNTIME_CHECKSUMMER_H
#define KVF_RUNTIME_CHECKSUMMER_H

#include "runtime/pump.h"

/* A lease whose blocks are to be checksummed. */
typedef struct kvf_checksummer_job kvf_checksummer_job;

/* Makes room for the checksums of node->memory.regions, which are `pages`, and starts the thread. KVF_INVALID,
 * KVF_LIMIT: these have none (transport/checksums.h), as the message (KVF_MESSAGE_BYTES_MAX) says. KVF_NO_MEMORY,
 * KVF_SYSTEM: no memory, no thread. On success *out is the caller's. */
KVF_MUST_USE kvf_status kvf_checksummer_open(kvf_node *node, const kvf_pages *pages, kvf_checksummer **out,
                                             char *message);

/* Adds the checksums to what transports are given: they point into `checksummer`. */
void kvf_checksummer_describe(const kvf_checksummer *checksummer, kvf_transport_memory *memory);

/* When this returns nothing reads the regions any more. What waited is dropped. Not under the node's lock. NULL is
 * allowed, here and below. */
void kvf_checksummer_stop(kvf_checksummer *checksummer);

/* Frees it. It has been stopped, and no transport has its memory. */
void kvf_checksummer_close(kvf_checksummer *checksummer);

/* `blocks` is copied. NULL: no memory. */
kvf_checksummer_job *kvf_checksummer_prepare(const kvf_lease *lease, const kvf_blocks *blocks);

/* The lease was published: takes the job over. kvf_core_on_complete() follows, from the thread. Under the node's
 * lock. */
void kvf_checksummer_submit(kvf_checksummer *checksummer, kvf_checksummer_job *job);

#endif
