/* Copies a description into one allocation, makes the plan that goes with it, and adds the checksums to both. */
#include "transport/paging.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "transport/checksums.h"

/* The struct and its arrays in one allocation, those with the strictest alignment first. */
static kvf_paging *alloc(uint32_t regions_count, uint32_t own_count, const kvf_layout *layout)
{
  const size_t rooms = (size_t)regions_count + KVF_GROUPS_MAX;
  const size_t pairs = 2 * (layout->parts == NULL ? regions_count : layout->parts_count);
  kvf_paging *paging =
      calloc(1, sizeof(*paging) + (size_t)2 * own_count * sizeof(kvf_region) + rooms * sizeof(kvf_region_layout) +
                    pairs * sizeof(kvf_pair) + layout->parts_count * sizeof(kvf_part));
  if (paging == NULL) {
    return NULL;
  }
  paging->local = (void *)(paging + 1);
  paging->served = paging->local + own_count;
  paging->regions = (void *)(paging->served + own_count);
  paging->pairs = (void *)(paging->regions + rooms);
  paging->regions_count = regions_count;
  paging->pages = (kvf_pages){.regions = paging->regions, .regions_count = regions_count, .layout = *layout};
  if (layout->parts != NULL) {
    void *parts = paging->pairs + pairs;
    paging->pages.layout.parts = memcpy(parts, layout->parts, layout->parts_count * sizeof(kvf_part));
  }
  return paging;
}

/* Of the rank's own memory, if it has them. */
static kvf_checksums_layout checksums_of(const kvf_paging *own)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_checksums_layout layout;
  kvf_status status = kvf_checksums_lay_out(&own->pages, &layout, message);
  assert(status == KVF_OK && layout.count == own->checksums_count);
  (void)status;
  return layout;
}

kvf_paging *kvf_paging_of_memory(const kvf_transport_memory *memory)
{
  const uint32_t regions = memory->regions_count;
  const uint32_t count = regions + memory->checksums_count;
  kvf_paging *paging = alloc(regions, count, &memory->layout);
  if (paging == NULL) {
    return NULL;
  }
  for (uint32_t i = 0; i < count; i++) {
    paging->local[i] = i < regions ? memory->regions[i] : memory->checksums_read[i - regions];
    paging->served[i] = i < regions ? memory->regions[i] : memory->checksums[i - regions];
    paging->regions[i] = kvf_region_layout_of(&paging->served[i]);
  }
  paging->table = memory->table;
  paging->table_slots = memory->table_slots;
  paging->checksums_count = memory->checksums_count;
  kvf_plan_own(&paging->plan, paging->pairs, &paging->pages);
  if (paging->checksums_count > 0) {
    const kvf_checksums_layout checksums = checksums_of(paging);
    kvf_checksums_join(&paging->plan, paging->pairs, &checksums, &checksums);
  }
  return paging;
}

kvf_paging *kvf_paging_of_link(const kvf_link_spec *spec)
{
  kvf_paging *paging = alloc(spec->remote_count, 0, &spec->layout);
  if (paging != NULL && spec->remote_count > 0) {
    memcpy(paging->regions, spec->remote, spec->remote_count * sizeof(*spec->remote));
  }
  return paging;
}

kvf_status kvf_paging_pair(kvf_paging *theirs, const kvf_paging *ours, char *message)
{
  return kvf_plan_make(&theirs->plan, theirs->pairs, &ours->pages, &theirs->pages, message);
}

uint32_t kvf_paging_lay_out_checksums(kvf_paging *theirs)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_checksums_layout layout;
  if (kvf_checksums_lay_out(&theirs->pages, &layout, message) != KVF_OK) {
    return 0;
  }
  memcpy(theirs->regions + theirs->regions_count, layout.rows, layout.count * sizeof(layout.rows[0]));
  return layout.count;
}

bool kvf_paging_agree_on_checksums(kvf_paging *theirs, const kvf_paging *ours, bool they_have)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_checksums_layout remote;
  if (ours->checksums_count == 0) {
    return true;
  }
  if (!they_have || kvf_checksums_lay_out(&theirs->pages, &remote, message) != KVF_OK) {
    return false;
  }
  const kvf_checksums_layout local = checksums_of(ours);
  theirs->checksums_count = remote.count;
  kvf_checksums_join(&theirs->plan, theirs->pairs, &local, &remote);
  return true;
}
