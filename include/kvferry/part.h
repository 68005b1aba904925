/* kvferry/part.h: what a page is, where a region's block is more than one piece of keys and values.
 *
 * A *part* is one thing of one layer in the blocks of one KV group: keys, values, a latent, an index, a state. It lies
 * in each block of a region at one offset, as rows times heads of `unit_bytes` each, at any strides. Any number of
 * parts may share a region's block (all layers of a page; keys beside values), and groups may share a region.
 *
 * Both engines describe their own memory; parts pair by {layer, kind, index}. They may differ in place, order (heads or
 * tokens outermost: the strides), block_tokens (multiples, either way), blocks, and in the layers and heads that a rank
 * has: a stage of a pipeline has some of the layers, and perhaps no part of some group. What they must agree on is
 * compared when the ranks connect, else loads end with KVF_INCOMPATIBLE and the log names it. docs/c-guide.md has
 * pictures, and an example that is compiled.
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
  KVF_PART_KV = 0, /* keys and values in one piece; what a region without parts is */
  KVF_PART_KEYS = 1,
  KVF_PART_VALUES = 2,
  KVF_PART_LATENT = 3, /* of multi-head latent attention */
  KVF_PART_INDEX = 4,  /* of a sparse attention's indexer */
  KVF_PART_SCALES = 5,
  KVF_PART_STATE = 6, /* of a recurrent layer */
  KVF_PART_CONVOLUTION = 7
} kvf_part_kind;

/* Equal on both sides, or the parts do not pair: nothing is converted. */
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
  uint32_t layer; /* of the whole model, whatever rank has it */
  kvf_part_kind kind;
  uint32_t index; /* where a layer has several of a kind, else 0 */
  uint32_t group; /* KV group whose block ids name its blocks; those of a group without parts here name nothing */
  kvf_dtype dtype;
  uint32_t region;       /* that it lies in, by index */
  uint32_t offset_bytes; /* from the beginning of each block */
  /* Row r of the rank's head h lies at offset_bytes + r * row_bytes + h * head_bytes. Heads outermost (HND): head_bytes
   * is rows * unit_bytes, row_bytes is unit_bytes. Tokens outermost (NHD): row_bytes is heads * unit_bytes, head_bytes
   * is unit_bytes. Larger where other things lie between; no two of these units may overlap. */
  uint32_t unit_bytes; /* of one head of one row */
  uint32_t row_bytes;  /* not read if there is one row */
  uint32_t head_bytes; /* not read if there is one head */
  /* A row is a token, or block_tokens / rows tokens. One row: what is inside of a block only its engine can tell, so
   * block_tokens must be equal on both sides. */
  uint32_t rows;
  uint32_t block_tokens; /* of the group's blocks, equal in all its parts; 0: it is not by token (a sequence's state) */
  /* The rank has `heads` of heads_total, from first_head on: those that its share of the layout's heads reaches over,
   * in proportion. Replicated on all ranks: 1, 0 and 1. */
  uint32_t heads;
  uint32_t first_head;
  uint32_t heads_total;
} kvf_part;

/* A rank's share of the KV heads that its engine splits over ranks: of the layers that have most of them. */
typedef struct kvf_share {
  uint32_t first_head;
  uint32_t heads;
  uint32_t heads_total; /* 1: nothing is split */
} kvf_share;

/* Tokens dealt to ranks (context parallel in decode): `tokens` at a time in turn, token t belongs to rank
 * t / tokens % ranks. block_tokens, of all groups that are by token, is then what one rank's block holds: a multiple of
 * `tokens`. ranks 0: they are not dealt. */
typedef struct kvf_deal {
  uint32_t ranks;
  uint32_t rank;
  uint32_t tokens;
} kvf_deal;

/* What a rank's pages are. */
typedef struct kvf_layout {
  const kvf_part *parts; /* NULL: each region is a part of its own, as its kvf_region says, and nothing is dealt */
  size_t parts_count;
  kvf_share share;
  kvf_deal deal;
} kvf_layout;

KVF_C_END
#endif
