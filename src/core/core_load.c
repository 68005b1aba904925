/* A load over the sources of its ticket: one attempt after the other, until one has brought all that is missing. To the
 * load machine each attempt is a load of its own, which never knew of another; to the engine all are one load, with one
 * outcome and one quiet. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "base/status.h"
#include "core/core_load.h"
#include "core/parts.h"

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

/* ---- attempts ---- */

/* The wanted blocks that no earlier attempt has brought, by position and then group, so that the groups' prefixes grow
 * together. */
static uint32_t list_items(const kvf_ticket *ticket, const uint32_t *destination, uint32_t prefix,
                           kvf_transfer_item *items)
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
  for (uint32_t position = prefix; position < longest; position++) {
    for (uint32_t group = 0; group < ticket->groups; group++) {
      uint32_t index = firsts[group] + position;
      if (position < ticket->counts[group] && destination[index] != KVF_BLOCK_NONE) {
        items[count++] = (kvf_transfer_item){.group = group,
                                             .position = position,
                                             .remote_block = ticket->ids[index],
                                             .local_block = destination[index]};
      }
    }
  }
  return count;
}

static void release_peers(kvf_core *core, uint64_t now_ns, kvf_core_load *load)
{
  while (load->peers_count > 0) {
    kvf_peers_release(&core->peers, now_ns, load->peers[--load->peers_count]);
  }
}

/* Plans which rank of the source has which heads, and holds those. */
static kvf_status plan_parts(kvf_core *core, uint64_t now_ns, kvf_core_load *load, const kvf_ticket *ticket,
                             uint64_t digest, kvf_load_part_spec *parts)
{
  kvf_part plan[KVF_RANKS_MAX];
  uint32_t count = 0;
  kvf_status status =
      kvf_parts_plan(core->heads_total, ticket->ranks, core->self.config.ranks, core->self.config.rank, plan, &count);
  for (uint32_t i = 0; status == KVF_OK && i < count; i++) {
    const kvf_rank_record *record = &ticket->rank[plan[i].rank];
    kvf_peer_key key = {.address = record->address, .incarnation = record->incarnation};
    status = kvf_peers_acquire(&core->peers, &key, &load->peers[i]);
    if (status != KVF_OK) {
      break;
    }
    load->peers_count++;
    parts[i] = (kvf_load_part_spec){
        .peer = load->peers[i],
        .tally = &core->peers.table[load->peers[i]]->tally,
        .claim = {.incarnation = record->incarnation, .lease_id = ticket->lease.id, .digest = digest},
        .remote_head = plan[i].remote_head,
        .local_head = plan[i].local_head,
        .heads = plan[i].heads};
  }
  if (status != KVF_OK) {
    release_peers(core, now_ns, load);
  }
  return status;
}

static kvf_status attempt(kvf_core *core, uint64_t now_ns, kvf_core_load *load, const kvf_ticket *ticket,
                          uint64_t digest, const uint32_t *destination)
{
  kvf_load_part_spec parts[KVF_RANKS_MAX];
  const uint32_t positions = (uint32_t)kvf_ticket_all_positions(ticket);
  kvf_status status = plan_parts(core, now_ns, load, ticket, digest, parts);
  if (status != KVF_OK) {
    return status;
  }
  kvf_transfer_item *items = calloc(positions == 0 ? 1 : positions, sizeof(*items));
  if (items == NULL) {
    release_peers(core, now_ns, load);
    return KVF_NO_MEMORY;
  }
  uint32_t prefix = load->report.prefix;
  kvf_load_spec spec = {.request_id = load->request_id,
                        .user = load->user,
                        .earlier_ns = now_ns - load->begun_ns,
                        .deadline_ns = load->deadline_ns,
                        .lease = ticket->lease,
                        .rank = core->self.config.rank,
                        .groups = ticket->groups,
                        .positions = positions,
                        .items_count = list_items(ticket, destination, prefix, items),
                        .items = items,
                        .head_bytes = core->head_bytes,
                        .parts = parts,
                        .parts_count = load->peers_count};
  status = kvf_loads_start(core->loads, now_ns, &spec);
  free(items);
  if (status != KVF_OK) {
    release_peers(core, now_ns, load);
  }
  return status;
}

/* ---- what the attempts came to ---- */

/* The load of this request, until its quiet has been taken; NULL: there is none. */
static kvf_core_load *find_load(const kvf_core *core, uint64_t request_id)
{
  kvf_core_load *load;
  HASH_FIND(by_id, core->open_loads, &request_id, sizeof(request_id), load);
  return load;
}

static void tell_outcome(kvf_core *core, kvf_core_load *load)
{
  kvf_wheel_disarm(&core->wheel, &load->timer);
  load->state = KVF_CORE_LOAD_TOLD;
  load->outcome_due = true;
  core->outcomes[kvf_status_index(load->report.status)]++;
  kvf_list_ensure_back(&core->load_events, &load->event);
}

static bool has_source_left(const kvf_core_load *load)
{
  return load->others != NULL && load->others->next < load->others->sources.count;
}

static void on_outcome(kvf_core *core, uint64_t now_ns, kvf_core_load *load, const kvf_report *report)
{
  load->report = *report;
  bool may_go_on = report->status != KVF_OK && kvf_status_describe(report->status)->retry_elsewhere &&
                   now_ns < load->deadline_ns && has_source_left(load);
  if (!may_go_on) {
    tell_outcome(core, load);
    return;
  }
  load->state = KVF_CORE_LOAD_HELD;
  /* A load that still reads by then makes the node unhealthy: its outcome is to come before that. */
  uint64_t hopeless_ns = kvf_time_add(now_ns, kvf_ms_to_ns(core->self.config.quiet_timeout_ms));
  kvf_wheel_arm(&core->wheel, &load->timer, kvf_time_min(hopeless_ns, load->deadline_ns));
}

static void log_switch(kvf_core *core, uint64_t now_ns, const kvf_core_load *load, const kvf_ticket *ticket,
                       const char *from)
{
  char to[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&ticket->rank[0].address, to);
  kvf_self_log(&core->self, now_ns, load->report.status, load->peers_count > 0 ? load->peers[0] : 0, KVF_LOG_WARN,
               "request %llu: %s at %s: %u of %u blocks are good, the others are asked of %s",
               (unsigned long long)load->request_id, kvf_status_name(load->report.status), from, load->report.prefix,
               load->report.blocks, to);
}

/* Starts at the next source that can be started at; false if there is none. */
static bool go_on(kvf_core *core, uint64_t now_ns, kvf_core_load *load, const char *from)
{
  while (has_source_left(load)) {
    uint32_t i = load->others->next++;
    const kvf_ticket *ticket = load->others->sources.tickets[i];
    if (attempt(core, now_ns, load, ticket, load->others->sources.digests[i], load->others->destination) == KVF_OK) {
      load->state = KVF_CORE_LOAD_TRIES;
      core->source_switches++;
      log_switch(core, now_ns, load, ticket, from);
      return true;
    }
  }
  return false;
}

/* The attempt is over: no block that it wanted is written to any more, so that another one may have them. */
static void on_quiet(kvf_core *core, uint64_t now_ns, kvf_core_load *load)
{
  char from[KVF_ADDRESS_TEXT_BYTES] = "";
  if (load->state == KVF_CORE_LOAD_HELD && load->peers_count > 0) {
    kvf_address_format(&core->peers.table[load->peers[0]]->key.address, from);
  }
  release_peers(core, now_ns, load);
  if (load->state == KVF_CORE_LOAD_HELD) {
    kvf_wheel_disarm(&core->wheel, &load->timer);
    if (now_ns < load->deadline_ns && go_on(core, now_ns, load, from)) {
      return;
    }
    tell_outcome(core, load);
  }
  load->quiet_due = true;
  kvf_list_ensure_back(&core->load_events, &load->event);
}

bool kvf_core_take_load_event(kvf_core *core, uint64_t now_ns)
{
  kvf_load_event event;
  if (!kvf_loads_next_event(core->loads, &event)) {
    return false;
  }
  kvf_core_load *load = find_load(core, event.request_id);
  assert(load != NULL); /* it outlives its attempts */
  if (event.kind == KVF_LOAD_OUTCOME) {
    on_outcome(core, now_ns, load, &event.report);
  } else {
    on_quiet(core, now_ns, load);
  }
  return true;
}

void kvf_core_load_on_timer(kvf_core *core, kvf_core_load *load)
{
  assert(load->state == KVF_CORE_LOAD_HELD);
  tell_outcome(core, load);
}

void kvf_core_load_give_up(kvf_core *core, kvf_core_load *load)
{
  if (load->others != NULL) {
    load->others->next = load->others->sources.count;
  }
  if (load->state == KVF_CORE_LOAD_HELD) {
    load->report.status = KVF_ABORTED;
    tell_outcome(core, load);
  }
}

void kvf_core_load_free(kvf_core *core, kvf_core_load *load)
{
  assert(load->peers_count == 0);
  kvf_wheel_disarm(&core->wheel, &load->timer);
  kvf_list_remove(&load->event);
  HASH_DELETE(by_id, core->open_loads, load);
  free(load->others);
  free(load);
}

bool kvf_core_next_load_event(kvf_core *core, uint64_t now_ns, kvf_event *out)
{
  while (kvf_list_is_empty(&core->load_events)) {
    if (!kvf_core_take_load_event(core, now_ns)) {
      return false;
    }
  }
  kvf_core_load *load = KVF_CONTAINER_OF(core->load_events.next, kvf_core_load, event);
  *out = (kvf_event){.id = load->request_id, .user = load->user};
  if (load->outcome_due) {
    out->kind = KVF_EVENT_LOAD;
    out->u.report = load->report;
    load->outcome_due = false;
    if (!load->quiet_due) {
      kvf_list_remove(&load->event);
    }
    return true;
  }
  out->kind = KVF_EVENT_QUIET;
  kvf_core_load_free(core, load);
  return true;
}

/* ---- calls ---- */

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
  if (find_load(core, load->request_id) != NULL) {
    return KVF_EXISTS;
  }
  if (HASH_CNT(by_id, core->open_loads) >= core->self.config.loads_max) {
    return KVF_NO_MEMORY;
  }
  status = create(core, now_ns, &good, load, &open);
  if (status != KVF_OK) {
    return status;
  }
  status = attempt(core, now_ns, open, good.tickets[0], good.digests[0], load->destination.ids);
  if (status != KVF_OK) {
    kvf_core_load_free(core, open);
  }
  return status;
}

kvf_status kvf_core_load_abort(kvf_core *core, uint64_t now_ns, uint64_t request_id)
{
  kvf_core_load *load = find_load(core, request_id);
  if (load == NULL) {
    return KVF_NOT_FOUND;
  }
  kvf_core_load_give_up(core, load);
  (void)kvf_loads_abort(core->loads, now_ns, request_id); /* its last attempt may be over */
  return KVF_OK;
}
