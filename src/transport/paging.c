#include "transport/paging.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "transport/checksums.h"

/* The struct and its arrays in one allocation, those with the strictest alignment first. */
static kvf_paging *alloc(uint32_t regions_count, const kvf_layout *layout)
{
  const size_t rooms = (size_t)regions_count + KVF_GROUPS_MAX;
  const size_t pairs = rooms + layout->parts_count;
  kvf_paging *paging = calloc(1, sizeof(*paging) + rooms * sizeof(kvf_region_layout) + pairs * sizeof(kvf_pair) +
                                     layout->parts_count * sizeof(kvf_part));
  if (paging == NULL) {
    return NULL;
  }
  void *after = paging + 1;
  paging->regions = after;
  after = paging->regions + rooms;
  paging->pairs = after;
  paging->regions_count = regions_count;
  paging->pages = (kvf_pages){.regions = paging->regions, .regions_count = regions_count, .layout = *layout};
  if (layout->parts != NULL) {
    after = paging->pairs + pairs;
    paging->pages.layout.parts = memcpy(after, layout->parts, layout->parts_count * sizeof(kvf_part));
  }
  return paging;
}

kvf_paging *kvf_paging_of_memory(const kvf_transport_memory *memory)
{
  kvf_paging *paging = alloc(memory->regions_count, &memory->layout);
  if (paging == NULL) {
    return NULL;
  }
  for (uint32_t i = 0; i < memory->regions_count; i++) {
    paging->regions[i] = kvf_region_layout_of(&memory->regions[i]);
  }
  for (uint32_t i = 0; i < memory->checksums_count; i++) {
    paging->regions[memory->regions_count + i] = kvf_region_layout_of(&memory->checksums[i]);
  }
  paging->checksums_count = memory->checksums_count;
  paging->pages.regions_count += memory->checksums_count;
  kvf_plan_own(&paging->plan, paging->pairs, &paging->pages);
  return paging;
}

kvf_paging *kvf_paging_of_link(const kvf_link_spec *spec)
{
  kvf_paging *paging = alloc(spec->remote_count, &spec->layout);
  if (paging != NULL && spec->remote_count > 0) {
    memcpy(paging->regions, spec->remote, spec->remote_count * sizeof(*spec->remote));
  }
  return paging;
}

kvf_status kvf_paging_pair(kvf_paging *theirs, const kvf_paging *ours, char *message)
{
  kvf_pages local = ours->pages;
  local.regions_count = ours->regions_count;
  return kvf_plan_make(&theirs->plan, theirs->pairs, &local, &theirs->pages, message);
}

void kvf_paging_use_checksums(kvf_paging *theirs, const kvf_paging *ours)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  uint32_t groups =
      kvf_checksums_layouts(theirs->regions, theirs->regions_count, theirs->regions + theirs->regions_count);
  if (theirs->pages.layout.parts != NULL || groups != ours->checksums_count) {
    return;
  }
  theirs->checksums_count = groups;
  theirs->pages.regions_count += groups;
  kvf_status status = kvf_plan_make(&theirs->plan, theirs->pairs, &ours->pages, &theirs->pages, message);
  assert(status == KVF_OK); /* as their regions do */
  (void)status;
}
