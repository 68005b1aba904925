/* Pages have parts: which bytes of a consumer's block come from which bytes of a producer's.
 *
 * A rank describes its memory as regions (blocks that follow each other with a stride) and parts (pieces of a region's
 * block: node.h, kvf_part). Here the two descriptions become a plan. A plan, a transfer and a cursor become segments:
 * runs of bytes {local region and offset, remote region and offset, length}. Pure; without allocations: a plan's pairs
 * are in memory of the caller. A peer's description is checked before it is used.
 *
 * Parts pair by layer, kind and index, in any order and place. A rank may have some of the layers only, and so no part
 * of some group. Where the ranks' layers, from first to last, overlap, the parts must be the same. Rows of a part are
 * tokens (or several tokens each), so block sizes may be multiples of each other, either way. An item has the tokens of
 * the smaller of the two blocks; its position counts items. Tokens may be dealt to ranks on both sides (kvf_deal):
 * tokens that both ranks own move. Parts without tokens (states, and parts that only their engine can interpret) pair
 * block by block.
 *
 * Heads. A transfer's heads are shares of the layout's heads_total. A part with fewer of them (replicated ones have 1)
 * moves with the share that its head begins in, or with the consumer rank's first one. So it moves once, for any choice
 * of ranks.
 *
 * Order. The bytes of a chunk come in the order of the *producer's* memory, as it describes it. The loops are, from the
 * outside: each run of parts that follow each other in one region and group, each item, each of those parts. Rows and
 * heads come in their order in memory. So a sender that has only a kvf_read_selection sends just the bytes that the
 * reader walks through.
 */
#ifndef KVF_PLAN_PAGES_H
#define KVF_PLAN_PAGES_H

#include "wire/layout.h"

kvf_share kvf_pages_share(const kvf_pages *pages);
/* From the first layer of a part to the last. */
kvf_layers kvf_pages_layers(const kvf_pages *pages);

/* What of the model a rank has. */
typedef struct kvf_rank_layout {
  kvf_layers layers;
  kvf_share share;
  kvf_deal deal; /* where tokens are not dealt, rank 0 of 1 */
} kvf_rank_layout;

/* Of rank `rank` of the engine's `ranks`: regions without parts do not say where its heads begin, the ranks have them
 * in turn. */
kvf_rank_layout kvf_pages_rank_layout(const kvf_pages *pages, uint32_t rank, uint32_t ranks);

/* Bytes of a head of the share in a block of each group, for these layers, on average over the group's parts. They come
 * from one of `dealt` ranks that tokens are dealt to. */
void kvf_pages_head_bytes(const kvf_pages *pages, const kvf_rank_layout *own, const kvf_layers *layers, uint32_t dealt,
                          uint64_t out[KVF_GROUPS_MAX]);

/* Where a part lies on one side. */
typedef struct kvf_place {
  uint64_t stride_bytes; /* block to block */
  uint64_t row_bytes;
  uint64_t head_bytes;
  uint32_t offset_bytes;
  uint32_t region;
  uint32_t first_head;
  uint32_t heads;
} kvf_place;

typedef struct kvf_pair {
  kvf_place local;
  kvf_place remote;
  uint32_t layer;
  uint32_t group;
  uint32_t unit_bytes; /* of one head of one row */
  uint32_t rows;       /* of a remote block */
  uint32_t row_tokens; /* 0: its rows are no tokens, and move together */
  uint32_t heads_total;
  uint32_t run_end; /* the pair behind the last that lies in the same run of the producer's parts */
  bool is_checksums;
} kvf_pair;

/* Of a group without tokens: a block is one token. */
typedef struct kvf_plan_group {
  uint32_t local_blocks; /* that all its parts have; 0: no part of it is on both sides */
  uint32_t remote_blocks;
  uint32_t local_tokens; /* of a block, on this rank */
  uint32_t remote_tokens;
  bool has_tokens;
} kvf_plan_group;

/* Plain data; `pairs` is the caller's. */
typedef struct kvf_plan {
  const kvf_pair *pairs;
  uint32_t pairs_count;
  uint32_t groups_count; /* items' groups are below */
  kvf_plan_group groups[KVF_GROUPS_MAX];
  kvf_share share; /* the producer's */
  kvf_deal deal;
  kvf_read_selection selection;
  bool is_own; /* of kvf_plan_own() */
} kvf_plan;

/* Pairs a peer's pages with ours, which are valid. `pairs` has room for kvf_pages_parts(remote) of them, and must stay.
 * KVF_INCOMPATIBLE: they make no sense, or do not pair; message (KVF_MESSAGE_BYTES_MAX) names the part and field. */
KVF_MUST_USE kvf_status kvf_plan_make(kvf_plan *plan, kvf_pair *pairs, const kvf_pages *local, const kvf_pages *remote,
                                      char *message);

/* For a sender: its own pages, which are valid, on both sides. What is read of them says a kvf_read_selection. */
void kvf_plan_own(kvf_plan *plan, kvf_pair *pairs, const kvf_pages *pages);

/* ---- a chunk, and its segments ---- */

/* A transfer under a plan. Everything is the caller's and must stay unchanged while a cursor is in use. */
typedef struct kvf_chunk {
  const kvf_transfer *transfer;
  const kvf_plan *plan;
  const kvf_read_selection
      *selection; /* plan->selection, or a reader's. Items of a sender have remote_block == local_block */
  const kvf_region *local;
} kvf_chunk;

/* A transfer to these regions, as the plan says. */
static inline kvf_chunk kvf_chunk_of(const kvf_plan *plan, const kvf_transfer *transfer, const kvf_region *local)
{
  return (kvf_chunk){.transfer = transfer, .plan = plan, .selection = &plan->selection, .local = local};
}

/* Whether every byte of the chunk lies in the regions of both sides, and what is wanted can be cut out. *bytes (may be
 * NULL) is set to the chunk's size. KVF_INVALID: a group, block, head or selection out of range. To be called before a
 * cursor is used. */
KVF_MUST_USE kvf_status kvf_chunk_check(const kvf_chunk *chunk, uint64_t *bytes);

/* Heads of a part, counted in each rank's own. */
typedef struct kvf_head_range {
  uint64_t remote; /* this and `local` wrap below 0 where the rank does not have them */
  uint64_t local;
  uint64_t count;
} kvf_head_range;

/* Whether something of this pair moves: its layer is wanted, and checksums are, if it is of those. */
bool kvf_chunk_has(const kvf_chunk *chunk, const kvf_pair *pair);

/* What a sender is to be told: the reader's selection, of the transfer's layers. */
kvf_read_selection kvf_chunk_selection(const kvf_chunk *chunk);

/* Those that move of a pair that the chunk has. */
kvf_head_range kvf_chunk_heads(const kvf_chunk *chunk, const kvf_pair *pair);

/* A run of bytes that is contiguous on both sides. */
typedef struct kvf_segment {
  uint32_t local_region;
  uint32_t remote_region;
  uint64_t local_offset; /* this and remote_offset: from the region's base */
  uint64_t remote_offset;
  uint64_t bytes;
} kvf_segment;

/* Where a segment's bytes lie here. */
static inline uint8_t *kvf_segment_local(const kvf_chunk *chunk, const kvf_segment *segment)
{
  return (uint8_t *)chunk->local[segment->local_region].base + segment->local_offset;
}

/* Rows and heads of one part in one item that lie the same way on both sides: outer times inner pieces. */
typedef struct kvf_box {
  uint64_t local_offset;
  uint64_t remote_offset;
  uint64_t piece_bytes;
  uint64_t local_step[2]; /* outer, inner */
  uint64_t remote_step[2];
  uint32_t inner;
  uint32_t pieces;
} kvf_box;

/* Where a walk over a chunk's segments stands. Plain data. */
typedef struct kvf_segment_cursor {
  const kvf_chunk *chunk;
  uint32_t run; /* its first pair */
  uint32_t item;
  uint32_t pair;
  uint32_t piece; /* of the box */
  uint64_t token; /* of the item: where the next box is looked for */
  kvf_box box;
  uint32_t alike;       /* 1 and the pair whose blocks all have a box like this one, but for its place; 0: none */
  uint64_t first_local; /* of such boxes: the place in a block 0 */
  uint64_t first_remote;
  uint64_t taken_bytes; /* of the piece */
  uint64_t segments;    /* so far; one that is split by bytes_max counts once */
} kvf_segment_cursor;

/* Starts at the chunk's first byte. */
kvf_segment_cursor kvf_segments_begin(const kvf_chunk *chunk);

/* Writes the next segments, at most `capacity` of them and `bytes_max` bytes together, and moves on. Neighbours that
 * are contiguous on both sides come as one, over parts and blocks; a segment is split where bytes_max ends. Returns how
 * many were written, 0 at the chunk's end. */
size_t kvf_segments_next(kvf_segment_cursor *cursor, kvf_segment *out, size_t capacity, uint64_t bytes_max);

#endif
