/* What a rank's description is, and whether it makes sense. */
#include "wire/layout.h"

#include <inttypes.h>
#include <stdio.h>

kvf_region_layout kvf_region_layout_of(const kvf_region *region)
{
  return (kvf_region_layout){
      .stride_bytes = region->stride_bytes,
      .block_bytes = region->block_bytes,
      .blocks = region->blocks,
      .heads = region->heads,
      .heads_total = region->heads_total,
      .group = region->group,
      .memory = region->memory,
  };
}

bool kvf_region_layout_is_valid(const kvf_region_layout *layout)
{
  if (layout->blocks == 0 || layout->heads == 0 || layout->block_bytes == 0) {
    return false;
  }
  if (layout->block_bytes % layout->heads != 0 || layout->heads > layout->heads_total) {
    return false;
  }
  if (layout->stride_bytes < layout->block_bytes || layout->group >= KVF_GROUPS_MAX ||
      layout->memory >= KVF_MEMORY_KINDS_MAX) {
    return false;
  }
  uint64_t before_last = layout->blocks - 1;
  uint64_t room = KVF_REGION_BYTES_MAX - layout->block_bytes;
  return before_last == 0 || layout->stride_bytes <= room / before_last;
}

bool kvf_region_layouts_are_valid(const kvf_region_layout *layouts, uint32_t count)
{
  uint32_t groups = 0;
  if (count > KVF_REGIONS_MAX) {
    return false;
  }
  for (uint32_t i = 0; i < count; i++) {
    if (!kvf_region_layout_is_valid(&layouts[i]) || layouts[i].heads_total != layouts[0].heads_total) {
      return false;
    }
    groups |= UINT32_C(1) << layouts[i].group;
  }
  /* Groups 0 to n-1 and no other: one less than a power of two. */
  return (groups & (groups + 1)) == 0;
}

uint32_t kvf_pages_parts(const kvf_pages *pages)
{
  return pages->layout.parts == NULL ? pages->regions_count : (uint32_t)pages->layout.parts_count;
}

kvf_part kvf_pages_part(const kvf_pages *pages, uint32_t i)
{
  if (pages->layout.parts != NULL) {
    return pages->layout.parts[i];
  }
  const kvf_region_layout *region = &pages->regions[i];
  uint32_t head_bytes = region->block_bytes / region->heads;
  return (kvf_part){.layer = i,
                    .kind = KVF_PART_KV,
                    .group = region->group,
                    .region = i,
                    .unit_bytes = head_bytes,
                    .head_bytes = head_bytes,
                    .rows = 1,
                    .heads = region->heads,
                    .heads_total = region->heads_total};
}

void kvf_pages_name_part(const kvf_pages *pages, uint32_t i, char name[KVF_PART_NAME_BYTES])
{
  static const char *const kinds[] = {"KV", "keys", "values", "latent", "index", "scales", "state", "convolution"};
  const kvf_part part = kvf_pages_part(pages, i);
  if (pages->layout.parts == NULL) {
    (void)snprintf(name, KVF_PART_NAME_BYTES, "region %" PRIu32, i);
  } else if ((uint32_t)part.kind < sizeof(kinds) / sizeof(kinds[0])) {
    (void)snprintf(name, KVF_PART_NAME_BYTES, "layer %" PRIu32 " %s %" PRIu32, part.layer, kinds[part.kind],
                   part.index);
  } else {
    (void)snprintf(name, KVF_PART_NAME_BYTES, "layer %" PRIu32 " kind %d %" PRIu32, part.layer, (int)part.kind,
                   part.index);
  }
}

static bool strides_are_valid(const kvf_part *part)
{
  uint64_t unit = part->unit_bytes;
  bool heads_first = part->head_bytes >= (uint64_t)(part->rows - 1) * part->row_bytes + unit;
  bool rows_first = part->row_bytes >= (uint64_t)(part->heads - 1) * part->head_bytes + unit;
  if (part->rows == 1 || part->heads == 1) {
    return (part->rows == 1 || part->row_bytes >= unit) && (part->heads == 1 || part->head_bytes >= unit);
  }
  return (heads_first && part->row_bytes >= unit) || (rows_first && part->head_bytes >= unit);
}

/* Whether it has just the heads that begin in the rank's share, and the first one that goes on into it: no more move.
 */
static bool heads_follow(const kvf_share *share, const kvf_part *part)
{
  const uint64_t all = share->heads_total;
  const uint64_t own = part->heads_total;
  const uint64_t end = ((uint64_t)share->first_head + share->heads) * own;
  return part->first_head == share->first_head * own / all &&
         (uint64_t)part->first_head + part->heads == (end + all - 1) / all;
}

static bool part_is_valid(const kvf_pages *pages, const kvf_part *part)
{
  if (part->layer >= KVF_LAYERS_MAX || (uint32_t)part->kind > UINT8_MAX || part->index >= KVF_PART_INDEX_MAX ||
      (uint32_t)part->dtype > UINT8_MAX || part->group >= KVF_GROUPS_MAX || part->region >= pages->regions_count) {
    return false;
  }
  if (part->unit_bytes == 0 || part->rows == 0 || part->rows > KVF_PART_ROWS_MAX || part->heads == 0 ||
      part->heads_total > pages->layout.share.heads_total || part->heads > part->heads_total ||
      part->first_head > part->heads_total - part->heads || !heads_follow(&pages->layout.share, part) ||
      !strides_are_valid(part)) {
    return false;
  }
  if (part->block_tokens > KVF_PART_ROWS_MAX || part->block_tokens % part->rows != 0) {
    return false;
  }
  uint64_t bytes =
      (uint64_t)(part->rows - 1) * part->row_bytes + (uint64_t)(part->heads - 1) * part->head_bytes + part->unit_bytes;
  return part->offset_bytes + bytes <= pages->regions[part->region].block_bytes;
}

bool kvf_deal_is_valid(const kvf_deal *deal)
{
  return deal->ranks == 0 || (deal->ranks <= KVF_RANKS_MAX && deal->rank < deal->ranks && deal->tokens > 0 &&
                              deal->tokens <= KVF_PART_ROWS_MAX);
}

/* Whole rows, and whole turns, in every block. */
static bool deal_fits(const kvf_deal *deal, uint32_t block_tokens, uint32_t rows)
{
  return !kvf_is_dealt(deal) || (block_tokens % deal->tokens == 0 && deal->tokens % (block_tokens / rows) == 0);
}

/* False: *bad is the part. */
static bool parts_are_valid(const kvf_pages *pages, uint32_t *bad)
{
  uint32_t block_tokens[KVF_GROUPS_MAX];
  uint32_t groups = 0;
  for (uint32_t i = 0; i < pages->layout.parts_count; i++) {
    const kvf_part *part = &pages->layout.parts[i];
    *bad = i;
    if (!part_is_valid(pages, part)) {
      return false;
    }
    bool first = (groups >> part->group & 1) == 0;
    if ((!first && part->block_tokens != block_tokens[part->group]) ||
        (part->block_tokens > 0 && !deal_fits(&pages->layout.deal, part->block_tokens, part->rows))) {
      return false;
    }
    block_tokens[part->group] = part->block_tokens;
    groups |= UINT32_C(1) << part->group;
  }
  return true;
}

bool kvf_pages_check(const kvf_pages *pages, char bad[KVF_PART_NAME_BYTES])
{
  const kvf_share *share = &pages->layout.share;
  uint32_t part;
  (void)snprintf(bad, KVF_PART_NAME_BYTES, "layout");
  if (pages->regions_count > KVF_REGIONS_MAX) {
    return false;
  }
  for (uint32_t i = 0; i < pages->regions_count; i++) {
    if (!kvf_region_layout_is_valid(&pages->regions[i])) {
      (void)snprintf(bad, KVF_PART_NAME_BYTES, "region %" PRIu32, i);
      return false;
    }
  }
  if (pages->layout.parts == NULL) {
    return true;
  }
  if (pages->layout.parts_count == 0 || pages->layout.parts_count > KVF_PARTS_MAX || share->heads == 0 ||
      share->heads_total > KVF_PART_HEADS_MAX || share->heads > share->heads_total ||
      share->first_head > share->heads_total - share->heads || !kvf_deal_is_valid(&pages->layout.deal)) {
    return false;
  }
  if (!parts_are_valid(pages, &part)) {
    kvf_pages_name_part(pages, part, bad);
    return false;
  }
  return true;
}

bool kvf_pages_are_valid(const kvf_pages *pages)
{
  char bad[KVF_PART_NAME_BYTES];
  return pages->layout.parts == NULL ? kvf_region_layouts_are_valid(pages->regions, pages->regions_count)
                                     : kvf_pages_check(pages, bad);
}

kvf_read_selection kvf_read_selection_whole(uint32_t layers)
{
  kvf_read_selection selection = {.layers = layers, .deal = {.ranks = 1, .tokens = 1}};
  for (uint32_t i = 0; i < KVF_GROUPS_MAX; i++) {
    selection.splits[i] = 1;
  }
  return selection;
}
