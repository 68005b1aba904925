/* kvferry/part.h: the layout of a block that is more than one piece of keys and values.
 *
 * A *part* is one tensor of one layer in the blocks of one KV group: keys, values, a latent, an index, a state. It is
 * at the same offset in each block of a region. It consists of rows times heads units of `unit_bytes` each, at any
 * strides. Several parts may share a region's block (all layers of a page; keys beside values). Groups may share a
 * region.
 *
 * Each engine describes its own memory. Parts pair by {layer, kind, index}. Paired parts may differ in:
 *
 * - their place, their order (heads or tokens outermost: the strides), and the number of blocks;
 * - block_tokens, if one is a multiple of the other;
 * - the layers and heads of a rank: a pipeline stage has some of the layers, and perhaps no part of a group.
 *
 * All other properties are compared when the ranks connect. If they differ, loads end with KVF_INCOMPATIBLE, and the
 * log names the difference. docs/c-guide.md has pictures, and an example that is compiled.
 */
#ifndef KVFERRY_PART_H
#define KVFERRY_PART_H

#include "kvferry/types.h"

KVF_C_BEGIN

#define KVF_PARTS_MAX 2048       /* parts of one rank */
#define KVF_LAYERS_MAX 65536     /* layer numbers are below */
#define KVF_PART_INDEX_MAX 256   /* indexes are below */
#define KVF_PART_ROWS_MAX 65536  /* rows of a part, and tokens of a block */
#define KVF_PART_HEADS_MAX 65536 /* heads of a part */

typedef enum kvf_part_kind {
  KVF_PART_KV = 0, /* keys and values in one piece; a region without a layout is one such part */
  KVF_PART_KEYS = 1,
  KVF_PART_VALUES = 2,
  KVF_PART_LATENT = 3, /* of multi-head latent attention */
  KVF_PART_INDEX = 4,  /* of a sparse attention's indexer */
  KVF_PART_SCALES = 5,
  KVF_PART_STATE = 6, /* of a recurrent layer */
  KVF_PART_CONVOLUTION = 7
} kvf_part_kind;

/* Must be equal on both sides: nothing is converted. */
typedef enum kvf_dtype {
  KVF_DTYPE_UNSPECIFIED = 0, /* compared like any other */
  KVF_DTYPE_F32 = 1,
  KVF_DTYPE_F16 = 2,
  KVF_DTYPE_BF16 = 3,
  KVF_DTYPE_F8_E4M3 = 4,
  KVF_DTYPE_F8_E5M2 = 5,
  KVF_DTYPE_I8 = 6,
  KVF_DTYPE_U8 = 7
} kvf_dtype;

typedef struct kvf_part {
  uint32_t layer; /* its number in the whole model, not in the rank */
  kvf_part_kind kind;
  uint32_t index; /* distinguishes several parts of a kind in one layer; else 0 */
  uint32_t group; /* its KV group: block ids of the group name its blocks; a group may have no part in this rank */
  kvf_dtype dtype;
  uint32_t region;       /* index of its region */
  uint32_t offset_bytes; /* from the beginning of each block */
  /* Row r of the rank's head h lies at offset_bytes + r * row_bytes + h * head_bytes. Heads outermost (HND): head_bytes
   * is rows * unit_bytes, row_bytes is unit_bytes. Tokens outermost (NHD): row_bytes is heads * unit_bytes, head_bytes
   * is unit_bytes. Use larger strides if other data is in between. No two units may overlap. */
  uint32_t unit_bytes; /* of one head of one row */
  uint32_t row_bytes;  /* ignored if there is one row */
  uint32_t head_bytes; /* ignored if there is one head */
  /* A row is one token, or block_tokens / rows tokens. With one row, only the engine knows the order inside a block.
   * Then block_tokens must be equal on both sides. */
  uint32_t rows;
  uint32_t block_tokens; /* of the group's blocks, equal in all its parts; 0: not per token (a sequence's state) */
  /* The rank has `heads` of heads_total heads, from first_head on. This is the range of the layout's `share`, scaled to
   * heads_total and rounded outwards. Replicated on all ranks: 1, 0 and 1. */
  uint32_t heads;
  uint32_t first_head;
  uint32_t heads_total;
} kvf_part;

/* A rank's share of the KV heads that its engine splits over ranks. If layers differ, those with most heads count. */
typedef struct kvf_share {
  uint32_t first_head;
  uint32_t heads;
  uint32_t heads_total; /* 1: heads are not split */
} kvf_share;

/* Tokens dealt to ranks in turn (decode context parallelism), `tokens` at a time. Token t belongs to the rank with
 * number (t / tokens) % ranks. block_tokens of each group with tokens is then the number of tokens in one rank's block,
 * a multiple of `tokens`. ranks 0: tokens are not dealt. */
typedef struct kvf_deal {
  uint32_t ranks;
  uint32_t rank;
  uint32_t tokens;
} kvf_deal;

/* The layout of a rank's blocks. */
typedef struct kvf_layout {
  const kvf_part *parts; /* NULL: each region is one part, described by its kvf_region; tokens are not dealt */
  size_t parts_count;
  kvf_share share;
  kvf_deal deal;
} kvf_layout;

KVF_C_END
#endif
