#include "core/load.h"

static bool items_are_valid(const kvf_load_spec *spec)
{
  for (uint32_t i = 0; i < spec->items_count; i++) {
    const kvf_transfer_item *item = &spec->items[i];
    if (item->group >= spec->groups || item->position >= spec->positions) {
      return false;
    }
    if (i > 0) {
      const kvf_transfer_item *before = &spec->items[i - 1];
      if (item->position < before->position || (item->position == before->position && item->group <= before->group)) {
        return false;
      }
    }
  }
  return true;
}

bool kvf_load_spec_is_valid(const kvf_load_spec *spec)
{
  if (spec->rank >= KVF_RANKS_MAX || spec->groups == 0 || spec->groups > KVF_GROUPS_MAX ||
      spec->items_count > KVF_BLOCKS_PER_LEASE_MAX || spec->parts_count > KVF_RANKS_MAX ||
      (spec->parts_count == 0 && spec->items_count > 0)) {
    return false;
  }
  for (uint32_t i = 0; i < spec->parts_count; i++) {
    if (spec->parts[i].heads == 0) {
      return false;
    }
  }
  return items_are_valid(spec);
}
