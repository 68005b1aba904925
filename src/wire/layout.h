/* The shapes that both sides of a transfer must agree on: a rank's regions and parts, and what a read wants of them.
 * What comes of two ranks' shapes: plan/pages.h. */
#ifndef KVF_WIRE_LAYOUT_H
#define KVF_WIRE_LAYOUT_H

#include "base/transfer.h"
#include "kvferry/node.h"

#define KVF_TRANSPORT_DESCRIPTION_BYTES_MAX 32768
#define KVF_TRANSPORT_NAME_BYTES 16 /* with its terminating zero */
#define KVF_PART_NAME_BYTES 48
#define KVF_READ_ITEMS_MAX 65536 /* items of one read */

/* From a region's first byte to its last: 256 TiB, so that checksums over KVF_REGIONS_MAX regions cannot overflow. */
#define KVF_REGION_BYTES_MAX (UINT64_C(1) << 48)

/* A region as its owner describes it to a peer: kvf_region without the address, and without the device, whose number
 * means nothing in another process. */
typedef struct kvf_region_layout {
  uint64_t stride_bytes;
  uint32_t block_bytes;
  uint32_t blocks;
  uint32_t heads;
  uint32_t heads_total;
  uint32_t group;
  uint32_t memory; /* kvf_memory_kind; a newer peer may have one that is not among ours */
} kvf_region_layout;

/* They are below KVF_LAYERS_MAX; and no layers have one form. */
static inline bool kvf_layers_are_valid(const kvf_layers *layers)
{
  return layers->count == 0 ? layers->first == 0
                            : layers->first < KVF_LAYERS_MAX && layers->count <= KVF_LAYERS_MAX - layers->first;
}

static inline bool kvf_layers_have(const kvf_layers *layers, uint32_t layer)
{
  return layer - layers->first < layers->count;
}

/* A registered region as its owner describes it to a peer. */
kvf_region_layout kvf_region_layout_of(const kvf_region *region);

/* From the first byte of a region to its last. */
static inline uint64_t kvf_region_layout_bytes(const kvf_region_layout *layout)
{
  return layout->stride_bytes * (layout->blocks - 1) + layout->block_bytes;
}

/* True if one region is valid by itself. Blocks, heads and block_bytes are above 0, heads are whole and within
 * heads_total. The stride is at least block_bytes, and the length at most KVF_REGION_BYTES_MAX. The group is below
 * KVF_GROUPS_MAX, the memory below KVF_MEMORY_KINDS_MAX. */
bool kvf_region_layout_is_valid(const kvf_region_layout *layout);

/* Whether a rank's regions make sense together: each by itself, at most KVF_REGIONS_MAX, one heads_total, and no group
 * below the highest without a region. No regions at all: yes. */
bool kvf_region_layouts_are_valid(const kvf_region_layout *layouts, uint32_t count);

/* A rank's memory, as it is described. Everything is the caller's. */
typedef struct kvf_pages {
  const kvf_region_layout *regions;
  uint32_t regions_count;
  kvf_layout layout;
} kvf_pages;

/* Whether it makes sense; every number in it is then within its limit, and every part within its region. No regions at
 * all: yes. */
bool kvf_pages_are_valid(const kvf_pages *pages);
/* As kvf_pages_are_valid(), but that regions without parts are looked at one by one. False: `bad` is what makes no
 * sense. */
bool kvf_pages_check(const kvf_pages *pages, char bad[KVF_PART_NAME_BYTES]);

uint32_t kvf_pages_parts(const kvf_pages *pages);
/* The i-th part; without parts, what the i-th region is: a part of that number as its layer. */
kvf_part kvf_pages_part(const kvf_pages *pages, uint32_t i);
/* The layer of kvf_pages_part(). */
static inline uint32_t kvf_pages_layer(const kvf_pages *pages, uint32_t i)
{
  return pages->layout.parts == NULL ? i : pages->layout.parts[i].layer;
}

/* The i-th part in words, for messages. */
void kvf_pages_name_part(const kvf_pages *pages, uint32_t i, char name[KVF_PART_NAME_BYTES]);

static inline bool kvf_is_dealt(const kvf_deal *deal)
{
  return deal->ranks > 1;
}
/* Its numbers are within their limits; ranks 0: tokens are not dealt. */
bool kvf_deal_is_valid(const kvf_deal *deal);

/* What a reader wants of a producer rank's pages, in terms of that rank only. A link's is the same for all its
 * reads; one of them may be of some of the layers. */
typedef struct kvf_read_selection {
  uint32_t first_layer;
  uint32_t layers;                 /* from that one on */
  uint32_t checksums;              /* 1: those of what it reads, too; else 0 */
  kvf_deal deal;                   /* the reader's */
  uint32_t splits[KVF_GROUPS_MAX]; /* items of one producer's block; 1 where its group has no tokens */
} kvf_read_selection;

/* All of the first `layers` layers, block by block. */
kvf_read_selection kvf_read_selection_whole(uint32_t layers);

#endif
