/* A description that makes sense, for tests to spoil. */
#ifndef KVF_TESTS_WIRE_DESCRIBED_H
#define KVF_TESTS_WIRE_DESCRIBED_H

#include "wire/layout.h"

/* Keys and values of one layer, 4 heads of 4 tokens, 2 bytes each. */
typedef struct described {
  kvf_region_layout regions[1];
  kvf_part parts[2];
  kvf_pages pages;
} described;

static inline void describe(described *d)
{
  static const kvf_region_layout region = {
      .stride_bytes = 64, .block_bytes = 64, .blocks = 4, .heads = 1, .heads_total = 1};
  *d = (described){.regions = {region}};
  for (uint32_t i = 0; i < 2; i++) {
    d->parts[i] = (kvf_part){.kind = i == 0 ? KVF_PART_KEYS : KVF_PART_VALUES,
                             .dtype = KVF_DTYPE_BF16,
                             .offset_bytes = 32 * i,
                             .unit_bytes = 2,
                             .row_bytes = 2,
                             .head_bytes = 8,
                             .rows = 4,
                             .block_tokens = 4,
                             .heads = 4,
                             .heads_total = 4};
  }
  d->pages = (kvf_pages){.regions = d->regions,
                         .regions_count = 1,
                         .layout = {.parts = d->parts, .parts_count = 2, .share = {.heads = 4, .heads_total = 4}}};
}

#endif
