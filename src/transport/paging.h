/* A rank's pages as a transport keeps them: a copy of the description, and a plan. For the rank's own memory: its
 * addresses, and the plan of the bytes that others read. For each link's peer: the plan of the bytes that are read
 * there. One allocation, for free().
 */
#ifndef KVF_TRANSPORT_PAGING_H
#define KVF_TRANSPORT_PAGING_H

#include "plan/pages.h"
#include "transport/transport.h"

typedef struct kvf_paging {
  kvf_pages pages;            /* without checksums */
  uint32_t regions_count;     /* of `pages` */
  uint32_t checksums_count;   /* that are used: of a link 0 if one of the two sides has none */
  kvf_region_layout *regions; /* of `pages`, then of the checksums; room for those of all groups */
  kvf_pair *pairs;            /* of `plan`; room for a pair a part, and for its checksums */
  kvf_plan plan;

  /* Of the rank's own memory. */
  const void *table;
  uint32_t table_slots;
  kvf_region *local;  /* its regions, then the checksums of what is read */
  kvf_region *served; /* its regions, then the checksums of what others read */
} kvf_paging;

/* Regions that reads are of: with the checksums that are used. */
static inline uint32_t kvf_paging_regions(const kvf_paging *paging)
{
  return paging->regions_count + paging->checksums_count;
}

/* What is registered here, checksums included, with the plan of a sender. NULL: no memory. */
kvf_paging *kvf_paging_of_memory(const kvf_transport_memory *memory);

/* What a peer says; without a plan. The spec is within its limits. NULL: no memory. */
kvf_paging *kvf_paging_of_link(const kvf_link_spec *spec);

/* Checks what the peer says, and makes the plan of reading it, without checksums. KVF_INCOMPATIBLE: the message
 * (KVF_MESSAGE_BYTES_MAX) says why. */
KVF_MUST_USE kvf_status kvf_paging_pair(kvf_paging *theirs, const kvf_paging *ours, char *message);

/* Writes what the checksums of a peer must be, which kvf_paging_pair() has checked, behind its regions. Returns how
 * many there are; 0: its pages are among those that have none. */
uint32_t kvf_paging_lay_out_checksums(kvf_paging *theirs);

/* Blocks are verified if both sides have checksums: then the plan has them too, from here. False: only we have. */
bool kvf_paging_agree_on_checksums(kvf_paging *theirs, const kvf_paging *ours, bool they_have);

#endif
