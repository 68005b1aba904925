/* What is to be copied: the one record from a load's wish to a transport's read. */
#ifndef KVF_BASE_TRANSFER_H
#define KVF_BASE_TRANSFER_H

#include "base/fence.h"

/* Layers of a model, of which some may be missing. */
typedef struct kvf_layers {
  uint32_t first;
  uint32_t count; /* from that one on; 0: there are none, or nobody knows */
} kvf_layers;

/* One block. `position` is its index in the lease's list of its group. */
typedef struct kvf_transfer_item {
  uint32_t group;
  uint32_t position;
  uint32_t remote_block;
  uint32_t local_block;
} kvf_transfer_item;

/* Copies `heads` heads of each item, from head `remote_head` of the remote block to head `local_head` of the local
 * block. It does so in each part of the item's group that belongs to one of `layers`. */
typedef struct kvf_transfer {
  uint64_t id; /* unique in the node's life, never 0 */
  kvf_lease lease;
  uint32_t remote_head;
  uint32_t local_head;
  uint32_t heads;
  kvf_layers layers; /* count 0: all that the link is for */
  uint32_t items_count;
  const kvf_transfer_item *items; /* owned by the maker of the transfer, unchanged until it is done */
  bool small;                     /* its caller may help, and waits for it */
} kvf_transfer;

/* What a read took, for metrics. */
typedef struct kvf_read_work {
  uint64_t pieces;            /* runs that were contiguous on both sides */
  uint64_t device_copy_ns;    /* of copies that a device made: from the first call until they were done; of these: */
  uint64_t device_posting_ns; /* until the driver had been told */
} kvf_read_work;

/* Rounded up. */
static inline uint64_t kvf_bytes_divided(uint64_t bytes, uint64_t by)
{
  return bytes / by + (bytes % by != 0);
}

#endif
