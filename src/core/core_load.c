#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "core/core_internal.h"

void kvf_core_count_bad_ticket(kvf_core *core)
{
  core->bad_tickets++;
}

/* Two positions in one block: neither could be good. The ids must be in range. */
static bool names_a_block_twice(const kvf_core *core, const kvf_blocks *destination)
{
  bool twice = false;
  for (int pass = 0; pass < 2; pass++) { /* sets the bits, then takes them back */
    size_t next = 0;
    for (uint32_t group = 0; group < destination->groups; group++) {
      uint64_t *named = core->named[group];
      for (uint32_t i = 0; i < destination->counts[group]; i++, next++) {
        uint32_t block = destination->ids[next];
        if (block == KVF_BLOCK_NONE) {
          continue;
        }
        twice = twice || (pass == 0 && kvf_bitmap_get(named, block));
        if (pass == 0) {
          kvf_bitmap_set(named, block);
        } else {
          kvf_bitmap_clear(named, block);
        }
      }
    }
  }
  return twice;
}

/* Whether the load's positions are those of the ticket, and its blocks this rank's. */
static kvf_status check_destination(const kvf_core *core, const kvf_ticket *ticket, const kvf_blocks *destination)
{
  if (!core->has_memory || destination->groups != ticket->groups || ticket->groups != core->groups) {
    return KVF_INVALID;
  }
  size_t next = 0;
  for (uint32_t group = 0; group < ticket->groups; group++) {
    if (destination->counts[group] != ticket->counts[group]) {
      return KVF_INVALID;
    }
    for (uint32_t i = 0; i < ticket->counts[group]; i++, next++) {
      uint32_t block = destination->ids[next];
      if (block != KVF_BLOCK_NONE && (block >= core->group_blocks[group] || ticket->ids[next] == KVF_BLOCK_NONE)) {
        return KVF_INVALID;
      }
    }
  }
  if (names_a_block_twice(core, destination)) {
    return KVF_INVALID;
  }
  return KVF_OK;
}

/* Copies what attempts at the sources after the first need. */
static kvf_status keep_others(kvf_core_load *load, const kvf_sources *sources, const kvf_blocks *destination)
{
  const size_t positions = (size_t)kvf_ticket_all_positions(sources->tickets[0]); /* and so the destination's */
  const uint32_t count = sources->count - 1;
  kvf_load_others *others =
      calloc(1, sizeof(*others) + count * sizeof(kvf_ticket) + (count + 1) * positions * sizeof(uint32_t));
  if (others == NULL) {
    return KVF_NO_MEMORY;
  }
  uint32_t *ids = (uint32_t *)(others->tickets + count);
  if (positions > 0) {
    memcpy(ids, destination->ids, positions * sizeof(ids[0]));
  }
  others->destination = ids;
  others->sources.count = count;
  for (uint32_t i = 0; i < count; i++) {
    const kvf_ticket *ticket = sources->tickets[i + 1];
    ids += positions;
    if (positions > 0) {
      memcpy(ids, ticket->ids, positions * sizeof(ids[0]));
    }
    others->tickets[i] = *ticket;
    others->tickets[i].ids = ids;
    others->sources.tickets[i] = &others->tickets[i];
    others->sources.digests[i] = sources->digests[i + 1];
  }
  load->others = others;
  return KVF_OK;
}

static kvf_status create(kvf_core *core, uint64_t now_ns, const kvf_sources *sources, const kvf_load *spec,
                         kvf_core_load **out)
{
  kvf_core_load *load = calloc(1, sizeof(*load));
  if (load == NULL) {
    return KVF_NO_MEMORY;
  }
  uint32_t timeout_ms = spec->timeout_ms == 0 ? core->self.config.load_timeout_ms : spec->timeout_ms;
  load->request_id = spec->request_id;
  load->user = spec->user;
  load->begun_ns = now_ns;
  load->deadline_ns = kvf_time_add(now_ns, kvf_ms_to_ns(timeout_ms));
  kvf_list_init(&load->event);
  kvf_timer_init(&load->timer, KVF_TIMER_LOAD);
  kvf_status status = sources->count > 1 ? keep_others(load, sources, &spec->destination) : KVF_OK;
  if (status == KVF_OK) {
    HASH_ADD(by_id, core->open_loads, request_id, sizeof(load->request_id), load);
    if (load->by_id.tbl == NULL) {
      status = KVF_NO_MEMORY;
    }
  }
  if (status != KVF_OK) {
    free(load->others);
    free(load);
    return status;
  }
  *out = load;
  return KVF_OK;
}

kvf_status kvf_core_load_start(kvf_core *core, uint64_t now_ns, const kvf_sources *sources, const kvf_load *load)
{
  kvf_sources good;
  kvf_core_load *open;
  kvf_status status = kvf_requests_check_sources(&core->requests, now_ns, sources, &load->prompt, &good);
  if (status == KVF_OK) {
    status = check_destination(core, good.tickets[0], &load->destination);
  }
  if (status != KVF_OK) {
    return status;
  }
  if (kvf_core_find_load(core, load->request_id) != NULL) {
    return KVF_EXISTS;
  }
  if (HASH_CNT(by_id, core->open_loads) >= core->self.config.loads_max) {
    return KVF_NO_MEMORY;
  }
  status = create(core, now_ns, &good, load, &open);
  if (status != KVF_OK) {
    return status;
  }
  status = kvf_core_attempt(core, now_ns, open, good.tickets[0], good.digests[0], load->destination.ids);
  if (status != KVF_OK) {
    kvf_core_load_free(core, open);
  }
  return status;
}

kvf_status kvf_core_load_abort(kvf_core *core, uint64_t now_ns, uint64_t request_id)
{
  kvf_core_load *load = kvf_core_find_load(core, request_id);
  if (load == NULL) {
    return KVF_NOT_FOUND;
  }
  kvf_core_load_give_up(core, load);
  (void)kvf_loads_abort(core->loads, now_ns, request_id); /* its last attempt may be over */
  return KVF_OK;
}
