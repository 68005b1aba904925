#include <stdlib.h>

#include "base/bitmap.h"
#include "base/mark.h"
#include "core/core_internal.h"
#include "core/parts.h"

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
    KVF_MARK(load_of_other_groups);
    return KVF_INVALID;
  }
  size_t next = 0;
  for (uint32_t group = 0; group < ticket->groups; group++) {
    if (destination->counts[group] != ticket->counts[group]) {
      KVF_MARK(load_of_other_positions);
      return KVF_INVALID;
    }
    for (uint32_t i = 0; i < ticket->counts[group]; i++, next++) {
      uint32_t block = destination->ids[next];
      if (block != KVF_BLOCK_NONE && (block >= core->group_blocks[group] || ticket->ids[next] == KVF_BLOCK_NONE)) {
        KVF_MARK(load_into_unknown_block);
        return KVF_INVALID;
      }
    }
  }
  if (names_a_block_twice(core, destination)) {
    KVF_MARK(load_names_block_twice);
    return KVF_INVALID;
  }
  return KVF_OK;
}

/* The wanted blocks, by position and then group, so that the groups' prefixes grow together. */
static uint32_t list_items(const kvf_ticket *ticket, const kvf_blocks *destination, kvf_read_item *items)
{
  uint32_t firsts[KVF_GROUPS_MAX];
  uint32_t longest = 0;
  uint32_t total = 0;
  for (uint32_t group = 0; group < ticket->groups; group++) {
    firsts[group] = total;
    total += ticket->counts[group];
    longest = ticket->counts[group] > longest ? ticket->counts[group] : longest;
  }
  uint32_t count = 0;
  for (uint32_t position = 0; position < longest; position++) {
    for (uint32_t group = 0; group < ticket->groups; group++) {
      uint32_t index = firsts[group] + position;
      if (position < ticket->counts[group] && destination->ids[index] != KVF_BLOCK_NONE) {
        items[count++] = (kvf_read_item){.group = group,
                                         .position = position,
                                         .remote_block = ticket->ids[index],
                                         .local_block = destination->ids[index]};
      }
    }
  }
  return count;
}

static kvf_status hold_peers(kvf_core *core, uint64_t now_ns, const kvf_ticket *ticket, uint64_t request_id,
                             const kvf_part *parts, uint32_t count, kvf_load_peers **out)
{
  kvf_load_peers *held = calloc(1, sizeof(*held) + count * sizeof(held->peers[0]));
  kvf_status status = held == NULL ? KVF_NO_MEMORY : KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i < count; i++) {
    const kvf_rank_record *record = &ticket->rank[parts[i].rank];
    kvf_peer_key key = {.address = record->address, .incarnation = record->incarnation};
    status = kvf_peers_acquire(&core->peers, &key, &held->peers[i]);
    held->count += status == KVF_OK;
  }
  if (status == KVF_OK) {
    held->request_id = request_id;
    HASH_ADD(by_id, core->load_peers, request_id, sizeof(held->request_id), held);
    status = held->by_id.tbl == NULL ? KVF_NO_MEMORY : KVF_OK;
  }
  if (status == KVF_OK) {
    *out = held;
    return KVF_OK;
  }
  KVF_MARK(load_peers_not_held);
  for (uint32_t i = 0; held != NULL && i < held->count; i++) {
    kvf_peers_release(&core->peers, now_ns, held->peers[i]);
  }
  free(held);
  return status;
}

void kvf_core_release_peers(kvf_core *core, uint64_t now_ns, kvf_load_peers *held)
{
  for (uint32_t i = 0; i < held->count; i++) {
    kvf_peers_release(&core->peers, now_ns, held->peers[i]);
  }
  HASH_DELETE(by_id, core->load_peers, held);
  free(held);
}

static kvf_status start(kvf_core *core, uint64_t now_ns, const kvf_ticket *ticket, uint64_t digest,
                        const kvf_load *load, const kvf_read_item *items, uint32_t items_count)
{
  const kvf_config *config = &core->self.config;
  kvf_part plan[KVF_RANKS_MAX];
  kvf_load_part_spec parts[KVF_RANKS_MAX];
  uint32_t count = 0;
  kvf_load_peers *held = NULL;
  kvf_status status = kvf_parts_plan(core->heads_total, ticket->ranks, config->ranks, config->rank, plan, &count);
  if (status == KVF_OK) {
    status = hold_peers(core, now_ns, ticket, load->request_id, plan, count, &held);
  }
  if (status != KVF_OK) {
    return status;
  }
  for (uint32_t i = 0; i < count; i++) {
    parts[i] = (kvf_load_part_spec){.peer = held->peers[i],
                                    .tally = &core->peers.table[held->peers[i]]->tally,
                                    .claim = {.incarnation = ticket->rank[plan[i].rank].incarnation,
                                              .lease_id = ticket->lease.id,
                                              .digest = digest},
                                    .remote_head = plan[i].remote_head,
                                    .local_head = plan[i].local_head,
                                    .heads = plan[i].heads};
  }
  uint32_t positions = 0;
  for (uint32_t group = 0; group < ticket->groups; group++) {
    positions += ticket->counts[group];
  }
  uint32_t timeout_ms = load->timeout_ms == 0 ? config->load_timeout_ms : load->timeout_ms;
  kvf_load_spec spec = {.request_id = load->request_id,
                        .user = load->user,
                        .deadline_ns = kvf_time_add(now_ns, kvf_ms_to_ns(timeout_ms)),
                        .lease = ticket->lease,
                        .rank = config->rank,
                        .groups = ticket->groups,
                        .positions = positions,
                        .items_count = items_count,
                        .items = items,
                        .head_bytes = core->head_bytes,
                        .parts = parts,
                        .parts_count = count};
  status = kvf_loads_start(core->loads, now_ns, &spec);
  if (status != KVF_OK) {
    KVF_MARK(load_not_started);
    kvf_core_release_peers(core, now_ns, held);
  }
  return status;
}

kvf_status kvf_core_load_start(kvf_core *core, uint64_t now_ns, const kvf_ticket *ticket, uint64_t digest,
                               const kvf_load *load)
{
  kvf_status status = check_destination(core, ticket, &load->destination);
  if (status != KVF_OK) {
    return status;
  }
  status = kvf_requests_check_ticket(&core->requests, now_ns, ticket, &load->prompt);
  if (status != KVF_OK) {
    return status;
  }
  kvf_load_peers *held;
  HASH_FIND(by_id, core->load_peers, &load->request_id, sizeof(load->request_id), held);
  if (held != NULL) {
    KVF_MARK(load_peers_held_twice);
    return KVF_EXISTS;
  }
  uint32_t positions = 0;
  for (uint32_t group = 0; group < ticket->groups; group++) {
    positions += ticket->counts[group];
  }
  kvf_read_item *items = calloc(positions == 0 ? 1 : positions, sizeof(*items));
  if (items == NULL) {
    KVF_MARK(load_items_no_memory);
    return KVF_NO_MEMORY;
  }
  uint32_t items_count = list_items(ticket, &load->destination, items);
  status = start(core, now_ns, ticket, digest, load, items, items_count);
  free(items);
  return status;
}

kvf_status kvf_core_load_abort(kvf_core *core, uint64_t now_ns, uint64_t request_id)
{
  return kvf_loads_abort(core->loads, now_ns, request_id);
}
