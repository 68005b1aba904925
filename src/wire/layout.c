#include "wire/layout.h"

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
