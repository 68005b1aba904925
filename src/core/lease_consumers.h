/* Who reads a lease: the consumers of one lease on one producer rank, at most KVF_LEASE_CONSUMERS_MAX.
 *
 * A consumer is one load of another engine. It attaches with its first renewal or acknowledgement, and has completed
 * when each of its readers (ranks) has acknowledged; however often a message comes, and in whatever order, it counts
 * once. Completed and aborted are final. Everything here may come from a peer.
 */
#ifndef KVF_CORE_LEASE_CONSUMERS_H
#define KVF_CORE_LEASE_CONSUMERS_H

#include "base/fence.h"
#include "wire/lease_message.h"

#define KVF_LEASE_CONSUMERS_MAX 4

typedef struct kvf_consumer_key {
  kvf_incarnation incarnation;
  uint64_t request_id;
} kvf_consumer_key;

typedef struct kvf_lease_consumer {
  kvf_consumer_key key;
  uint64_t done; /* bit i: reader i has acknowledged */
} kvf_lease_consumer;

typedef struct kvf_lease_consumers {
  uint8_t state[KVF_LEASE_CONSUMERS_MAX];
  uint8_t readers[KVF_LEASE_CONSUMERS_MAX]; /* 0: not known yet */
  kvf_lease_consumer records[KVF_LEASE_CONSUMERS_MAX];
} kvf_lease_consumers;

typedef enum kvf_consumers_verdict {
  KVF_CONSUMERS_KEEP,      /* somebody reads, or nobody has come yet */
  KVF_CONSUMERS_COMPLETED, /* a consumer has all it needs and no other is attached */
  KVF_CONSUMERS_ABANDONED  /* the last one attached has aborted */
} kvf_consumers_verdict;

/* No consumers. */
void kvf_consumers_init(kvf_lease_consumers *consumers);

/* A renewal. False: this consumer has finished, so its renewal is a late one and must not lengthen the lease. If there
 * is no room for another consumer it is not attached, and true is returned: the lease is kept from running out, but may
 * end as soon as those that are attached have finished. */
bool kvf_consumers_renew(kvf_lease_consumers *consumers, const kvf_consumer_key *key);

/* Reader `reader` of `readers` has all it needs. Ignored: after the consumer has finished, for a reader that is not
 * below `readers`, more readers than KVF_LEASE_READERS_MAX, another number of them than this consumer said before, and
 * if there is no room for another consumer. */
kvf_consumers_verdict kvf_consumers_complete(kvf_lease_consumers *consumers, const kvf_consumer_key *key,
                                             uint32_t reader, uint32_t readers);

/* The consumer, all its readers, will not read (any more). One that never attached is noted as long as others are
 * attached, so that a delayed renewal of its does not attach it; it is the first to be forgotten when room is needed.
 */
kvf_consumers_verdict kvf_consumers_abort(kvf_lease_consumers *consumers, const kvf_consumer_key *key);

#endif
