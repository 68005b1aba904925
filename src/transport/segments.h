/* Which bytes a chunk is made of: from blocks, regions and heads to {local region and offset,
 * remote region and offset, length}.
 *
 * Pure functions, used by every transport on both sides, so that a chunk has one byte order: for each item in order,
 * for each region of the item's group in order, `heads` heads. A side that knows its own memory only (tcp) passes its
 * own layouts and blocks as the remote ones too (remote_block == local_block, remote_head == local_head): the lengths
 * add up to the same stream, however either side splits it.
 */
#ifndef KVF_TRANSPORT_SEGMENTS_H
#define KVF_TRANSPORT_SEGMENTS_H

#include "transport/transport.h"
#include "wire/layout.h"

/* A run of bytes that is contiguous on both sides. */
typedef struct kvf_segment {
  uint32_t local_region;
  uint32_t remote_region;
  uint64_t local_offset; /* from the region's base, like the next */
  uint64_t remote_offset;
  uint64_t bytes;
} kvf_segment;

/* A transfer in these regions. Everything is the caller's and must stay unchanged while a cursor is in use. */
typedef struct kvf_chunk {
  const kvf_transfer *transfer;
  const kvf_region *local;
  const kvf_region_layout *remote; /* as many as local ones */
  uint32_t regions_count;
} kvf_chunk;

/* Where a walk over a chunk's segments stands. Plain data. */
typedef struct kvf_segment_cursor {
  const kvf_chunk *chunk;
  uint32_t item;
  uint32_t region;
  uint64_t taken_bytes; /* of the piece at {item, region} */
} kvf_segment_cursor;

/* Where a segment's bytes lie here. */
static inline uint8_t *kvf_segment_local(const kvf_chunk *chunk, const kvf_segment *segment)
{
  return (uint8_t *)chunk->local[segment->local_region].base + segment->local_offset;
}

/* From the first byte of a region to its last. */
static inline uint64_t kvf_region_layout_bytes(const kvf_region_layout *layout)
{
  return layout->stride_bytes * (layout->blocks - 1) + layout->block_bytes;
}

/* A registered region as its owner describes it to a peer. */
kvf_region_layout kvf_region_layout_of(const kvf_region *region);

/* Whether a peer's layouts make sense and pair with ours, which are valid (kvf_node_register() has checked them).
 * KVF_INCOMPATIBLE: they do not; message (KVF_MESSAGE_BYTES_MAX) names the region and field. */
KVF_MUST_USE kvf_status kvf_layouts_check(const kvf_region *local, uint32_t local_count,
                                          const kvf_region_layout *remote, uint32_t remote_count, char *message);

/* Whether every byte of the chunk lies in the regions of both sides. The layouts must have passed kvf_layouts_check().
 * *bytes (may be NULL) is set to the chunk's size. KVF_INVALID: a group without a region, a block or a head out of
 * range. To be called before a cursor is used. */
KVF_MUST_USE kvf_status kvf_chunk_check(const kvf_chunk *chunk, uint64_t *bytes);

/* Starts at the chunk's first byte. */
kvf_segment_cursor kvf_segments_begin(const kvf_chunk *chunk);

/* Writes the next segments, at most `capacity` of them and `bytes_max` bytes together, and moves on. Neighbours that
 * are contiguous on both sides come as one; a segment is split where bytes_max ends. Returns how many were written, 0
 * at the chunk's end. */
size_t kvf_segments_next(kvf_segment_cursor *cursor, kvf_segment *out, size_t capacity, uint64_t bytes_max);

#endif
