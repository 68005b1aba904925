#include "core/load.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "wire/pages.h"

/* Of a load that is cut for several readers: a chunk takes as long as to wake another thread on both sides. */
#define SPREAD_BYTES (256u << 10)

/* Copies what attempts at the sources after the first need. */
static kvf_status keep_others(kvf_open_load *load, const kvf_sources *sources, const kvf_blocks *destination)
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

static kvf_status create(kvf_loads *loads, uint64_t now_ns, const kvf_sources *sources, const kvf_load *spec,
                         uint64_t point, kvf_open_load **out)
{
  kvf_open_load *load = calloc(1, sizeof(*load));
  if (load == NULL) {
    return KVF_NO_MEMORY;
  }
  uint32_t timeout_ms = spec->timeout_ms == 0 ? loads->self->config.load_timeout_ms : spec->timeout_ms;
  load->request_id = spec->request_id;
  load->user = spec->user;
  load->point = point;
  load->begun_ns = now_ns;
  load->deadline_ns = kvf_time_add(now_ns, kvf_ms_to_ns(timeout_ms));
  kvf_list_init(&load->event);
  kvf_timer_init(&load->timer, KVF_TIMER_LOAD);
  kvf_status status = sources->count > 1 ? keep_others(load, sources, &spec->destination) : KVF_OK;
  if (status == KVF_OK) {
    HASH_ADD(by_id, loads->by_id, request_id, sizeof(load->request_id), load);
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

static void release_peers(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load)
{
  while (load->peers_count > 0) {
    kvf_peers_release(loads->peers, now_ns, load->peers[--load->peers_count]);
  }
}

/* Plans which rank of the source has which heads, and holds those. */
static kvf_status plan_slices(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load, const kvf_ticket *ticket,
                              uint64_t digest, kvf_slice_spec *slices)
{
  kvf_rank_share plan[KVF_RANKS_MAX];
  uint32_t count = 0;
  kvf_status status = kvf_rank_shares(loads->pool->heads_total, ticket->ranks, 1, loads->self->config.ranks,
                                      loads->self->config.rank, plan, &count);
  for (uint32_t i = 0; status == KVF_OK && i < count; i++) {
    const kvf_rank_record *record = &ticket->rank[plan[i].rank];
    kvf_peer_key key = {.address = record->address, .incarnation = record->incarnation};
    status = kvf_peers_acquire(loads->peers, &key, &load->peers[i]);
    if (status != KVF_OK) {
      break;
    }
    load->peers_count++;
    slices[i] =
        (kvf_slice_spec){.peer = load->peers[i],
                         .tally = &loads->peers->table[load->peers[i]]->tally,
                         .claim = {.incarnation = record->incarnation, .lease_id = ticket->lease.id, .digest = digest},
                         .remote_head = plan[i].remote_head,
                         .local_head = plan[i].local_head,
                         .heads = plan[i].heads};
  }
  if (status != KVF_OK) {
    release_peers(loads, now_ns, load);
  }
  return status;
}

static kvf_status attempt(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load, const kvf_ticket *ticket,
                          uint64_t digest, const uint32_t *destination)
{
  kvf_slice_spec slices[KVF_RANKS_MAX];
  const uint32_t positions = (uint32_t)kvf_ticket_all_positions(ticket);
  kvf_status status = plan_slices(loads, now_ns, load, ticket, digest, slices);
  if (status != KVF_OK) {
    return status;
  }
  kvf_transfer_item *items = calloc(positions == 0 ? 1 : positions, sizeof(*items));
  if (items == NULL) {
    release_peers(loads, now_ns, load);
    return KVF_NO_MEMORY;
  }
  uint32_t prefix = load->report.prefix;
  kvf_attempt_spec spec = {.owner = load,
                           .request_id = load->request_id,
                           .earlier_ns = now_ns - load->begun_ns,
                           .deadline_ns = load->deadline_ns,
                           .held = load->point != 0,
                           .lease = ticket->lease,
                           .rank = loads->self->config.rank,
                           .groups = ticket->groups,
                           .positions = positions,
                           .items_count = list_items(ticket, destination, prefix, items),
                           .items = items,
                           .head_bytes = loads->pool->head_bytes,
                           .slices = slices,
                           .slices_count = load->peers_count};
  status = kvf_attempts_start(loads->attempts, now_ns, &spec, &load->attempt);
  free(items);
  if (status != KVF_OK) {
    release_peers(loads, now_ns, load);
  }
  return status;
}

/* ---- what the attempts came to ---- */

/* The load of this request, until its quiet has been taken; NULL: there is none. */
static kvf_open_load *find_load(const kvf_loads *loads, uint64_t request_id)
{
  kvf_open_load *load;
  HASH_FIND(by_id, loads->by_id, &request_id, sizeof(request_id), load);
  return load;
}

static void tell_outcome(kvf_loads *loads, kvf_open_load *load)
{
  kvf_wheel_disarm(loads->wheel, &load->timer);
  load->state = KVF_OPEN_LOAD_TOLD;
  load->outcome_due = true;
  loads->outcomes[kvf_status_index(load->report.status)]++;
  kvf_list_ensure_back(&loads->events, &load->event);
}

static bool has_source_left(const kvf_open_load *load)
{
  return load->others != NULL && load->others->next < load->others->sources.count;
}

static void on_outcome(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load, const kvf_report *report)
{
  load->report = *report;
  bool may_go_on = report->status != KVF_OK && kvf_status_describe(report->status)->retry_elsewhere &&
                   now_ns < load->deadline_ns && has_source_left(load);
  if (!may_go_on) {
    tell_outcome(loads, load);
    return;
  }
  load->state = KVF_OPEN_LOAD_HELD;
  /* A load that still reads by then makes the node unhealthy: its outcome is to come before that. */
  uint64_t hopeless_ns = kvf_time_add(now_ns, kvf_ms_to_ns(loads->self->config.quiet_timeout_ms));
  kvf_wheel_arm(loads->wheel, &load->timer, kvf_time_min(hopeless_ns, load->deadline_ns));
}

static void log_switch(kvf_loads *loads, uint64_t now_ns, const kvf_open_load *load, const kvf_ticket *ticket,
                       const char *from)
{
  char to[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&ticket->rank[0].address, to);
  kvf_self_log(loads->self, now_ns, load->report.status, load->peers_count > 0 ? load->peers[0] : 0, KVF_LOG_WARN,
               "request %llu: %s at %s: %u of %u blocks are good, the others are asked of %s",
               (unsigned long long)load->request_id, kvf_status_name(load->report.status), from, load->report.prefix,
               load->report.blocks, to);
}

/* Starts at the next source that can be started at; false if there is none. */
static bool go_on(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load, const char *from)
{
  while (has_source_left(load)) {
    uint32_t i = load->others->next++;
    const kvf_ticket *ticket = load->others->sources.tickets[i];
    if (attempt(loads, now_ns, load, ticket, load->others->sources.digests[i], load->others->destination) == KVF_OK) {
      load->state = KVF_OPEN_LOAD_TRIES;
      loads->source_switches++;
      log_switch(loads, now_ns, load, ticket, from);
      return true;
    }
  }
  return false;
}

/* The attempt is over: no block that it wanted is written to any more, so that another one may have them. */
static void on_quiet(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load)
{
  char from[KVF_ADDRESS_TEXT_BYTES] = "";
  load->attempt = NULL;
  if (load->state == KVF_OPEN_LOAD_HELD && load->peers_count > 0) {
    kvf_address_format(&loads->peers->table[load->peers[0]]->key.address, from);
  }
  release_peers(loads, now_ns, load);
  if (load->state == KVF_OPEN_LOAD_HELD) {
    kvf_wheel_disarm(loads->wheel, &load->timer);
    if (now_ns < load->deadline_ns && go_on(loads, now_ns, load, from)) {
      return;
    }
    tell_outcome(loads, load);
  }
  load->quiet_due = true;
  kvf_list_ensure_back(&loads->events, &load->event);
}

bool kvf_loads_take_event(kvf_loads *loads, uint64_t now_ns)
{
  kvf_attempt_event event;
  if (!kvf_attempts_next_event(loads->attempts, &event)) {
    return false;
  }
  if (event.kind == KVF_ATTEMPT_OUTCOME) {
    on_outcome(loads, now_ns, event.owner, &event.report);
  } else {
    on_quiet(loads, now_ns, event.owner);
  }
  return true;
}

void kvf_load_on_timer(kvf_loads *loads, kvf_open_load *load)
{
  assert(load->state == KVF_OPEN_LOAD_HELD);
  tell_outcome(loads, load);
}

static void give_up(kvf_loads *loads, kvf_open_load *load)
{
  if (load->others != NULL) {
    load->others->next = load->others->sources.count;
  }
  if (load->state == KVF_OPEN_LOAD_HELD) {
    load->report.status = KVF_ABORTED;
    tell_outcome(loads, load);
  }
}

/* It is in the table no more. */
static void load_free(kvf_loads *loads, kvf_open_load *load)
{
  kvf_wheel_disarm(loads->wheel, &load->timer);
  kvf_list_remove(&load->event);
  free(load->others);
  free(load);
}

static void forget(kvf_loads *loads, kvf_open_load *load)
{
  assert(load->peers_count == 0);
  HASH_DELETE(by_id, loads->by_id, load);
  load_free(loads, load);
}

bool kvf_loads_next_event(kvf_loads *loads, uint64_t now_ns, kvf_event *out)
{
  while (kvf_list_is_empty(&loads->events)) {
    if (!kvf_loads_take_event(loads, now_ns)) {
      return false;
    }
  }
  kvf_open_load *load = KVF_CONTAINER_OF(loads->events.next, kvf_open_load, event);
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
  forget(loads, load);
  return true;
}

/* ---- calls ---- */

kvf_status kvf_loads_start(kvf_loads *loads, uint64_t now_ns, const kvf_sources *sources, const kvf_load *load,
                           uint64_t point)
{
  kvf_sources good;
  kvf_open_load *open;
  kvf_status status = kvf_requests_check_sources(loads->requests, now_ns, sources, &load->prompt, &good);
  if (status == KVF_OK) {
    status = kvf_pool_check_destination(loads->pool, good.tickets[0], &load->destination);
  }
  if (status != KVF_OK) {
    return status;
  }
  if (find_load(loads, load->request_id) != NULL) {
    return KVF_EXISTS;
  }
  if (HASH_CNT(by_id, loads->by_id) >= loads->self->config.loads_max) {
    return KVF_NO_MEMORY;
  }
  status = create(loads, now_ns, &good, load, point, &open);
  if (status != KVF_OK) {
    return status;
  }
  status = attempt(loads, now_ns, open, good.tickets[0], good.digests[0], load->destination.ids);
  if (status != KVF_OK) {
    forget(loads, open);
  }
  return status;
}

void kvf_loads_on_point(kvf_loads *loads, uint64_t request_id, uint64_t point)
{
  kvf_open_load *load = find_load(loads, request_id);
  if (load == NULL || load->point != point) {
    return;
  }
  load->point = 0;
  if (load->attempt != NULL) {
    kvf_attempt_release(loads->attempts, load->attempt);
  }
}

kvf_status kvf_loads_abort(kvf_loads *loads, uint64_t now_ns, uint64_t request_id)
{
  kvf_open_load *load = find_load(loads, request_id);
  if (load == NULL) {
    return KVF_NOT_FOUND;
  }
  give_up(loads, load);
  if (load->attempt != NULL) {
    kvf_attempt_abort(loads->attempts, now_ns, load->attempt);
  }
  return KVF_OK;
}

void kvf_loads_abort_all(kvf_loads *loads, uint64_t now_ns)
{
  kvf_open_load *load;
  kvf_open_load *next;
  HASH_ITER(by_id, loads->by_id, load, next)
  {
    give_up(loads, load);
  }
  kvf_attempts_abort_all(loads->attempts, now_ns);
}

bool kvf_loads_is_stuck(const kvf_loads *loads, uint64_t request_id)
{
  const kvf_open_load *load = find_load(loads, request_id);
  return load != NULL && load->attempt != NULL && kvf_attempt_is_stuck(load->attempt);
}

uint32_t kvf_loads_open(const kvf_loads *loads)
{
  return HASH_CNT(by_id, loads->by_id);
}

/* ---- the table ---- */

static kvf_status create_attempts(kvf_loads *loads, uint64_t now_ns, uint64_t seed)
{
  const kvf_config *options = &loads->self->config;
  uint32_t readers = options->tcp_streams > options->copy_threads ? options->tcp_streams : options->copy_threads;
  readers = readers < options->chunks_in_flight ? readers : options->chunks_in_flight;
  uint32_t spread_bytes = options->inline_bytes > SPREAD_BYTES ? options->inline_bytes : SPREAD_BYTES;
  kvf_attempts_config config = {.stall_timeout_ns = kvf_ms_to_ns(options->stall_timeout_ms),
                                .quiet_timeout_ns = kvf_ms_to_ns(options->quiet_timeout_ms),
                                .backoff_min_ns = kvf_ms_to_ns(options->backoff_min_ms),
                                .backoff_max_ns = kvf_ms_to_ns(options->backoff_max_ms),
                                .chunk_bytes = options->chunk_bytes,
                                .readers = readers,
                                .spread_bytes = spread_bytes,
                                .chunks_in_flight = options->chunks_in_flight,
                                .inline_bytes = options->inline_bytes,
                                .checksums = options->checksum == KVF_ON,
                                .seed = seed};
  return kvf_attempts_create(&config, now_ns, &loads->attempts);
}

kvf_status kvf_loads_init(kvf_loads *loads, kvf_self *self, kvf_wheel *wheel, kvf_peers *peers, kvf_requests *requests,
                          const kvf_pool *pool, uint64_t now_ns, uint64_t seed)
{
  *loads = (kvf_loads){.self = self, .wheel = wheel, .peers = peers, .requests = requests, .pool = pool};
  kvf_list_init(&loads->events);
  return create_attempts(loads, now_ns, seed);
}

void kvf_loads_free(kvf_loads *loads)
{
  kvf_open_load *load;
  kvf_open_load *next;
  kvf_attempts_destroy(loads->attempts);
  HASH_ITER(by_id, loads->by_id, load, next)
  {
    HASH_DELETE(by_id, loads->by_id, load);
    load_free(loads, load); /* the peers that it holds are freed as a whole */
  }
}
