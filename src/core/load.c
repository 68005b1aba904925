#include "core/load.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "base/list.h"
#include "base/prng.h"
#include "base/status.h"
#include "core/backoff.h"
#include "core/hash.h"
#include "core/wheel.h"

#define KVF_PATH_NONE 0u

enum { KVF_TIMER_OF_LOAD, KVF_TIMER_OF_PART }; /* kinds in kvf_loads.wheel, which is the loads' own */

typedef struct kvf_load_entry kvf_load_entry;
typedef struct kvf_load_part kvf_load_part;

/* A peer that some part of an open load needs. */
typedef struct kvf_load_peer {
  uint32_t index;
  UT_hash_handle by_index;
  uint32_t users;        /* parts, and a caller that walks through them: it is freed at 0 */
  kvf_list parts;        /* all of them */
  kvf_list waiting;      /* those in WAIT_PATH */
  kvf_list want;         /* in kvf_loads.wants until WANT_PATH is taken */
  kvf_list ping;         /* in kvf_loads.pings until PING is taken */
  bool asked;            /* WANT_PATH was taken and not answered */
  uint32_t stalled_path; /* the last one that was reported */
  uint64_t pings;        /* number of the last one */
  uint64_t answered;     /* the last one that was sent before the last pong */
  uint64_t pinged_ns;
} kvf_load_peer;

/* A read: a run of items of a part. */
typedef struct kvf_load_chunk {
  uint64_t read_id;
  UT_hash_handle by_read;
  kvf_list link;   /* in its part's flying or idle */
  kvf_list cancel; /* in kvf_loads.cancels until CANCEL is taken */
  kvf_load_part *part;
  uint32_t path;
  uint32_t first;
  uint32_t count;
  uint32_t verified; /* of its first items, when it ends */
  bool cancelled;
} kvf_load_chunk;

typedef enum kvf_load_part_state {
  KVF_PART_WAIT_PATH,
  KVF_PART_READING,
  KVF_PART_DRAINING,
  KVF_PART_BACKOFF,
  KVF_PART_DONE,
  KVF_PART_STOPPED
} kvf_load_part_state;

struct kvf_load_part {
  kvf_load_entry *load;
  kvf_load_peer *peer; /* NULL once it is DONE or STOPPED */
  kvf_load_part_spec spec;
  kvf_load_part_state state;
  uint32_t path;        /* that its next reads take */
  uint64_t chunk_bytes; /* of its chunks */
  kvf_status cause;     /* its first trouble since its last confirmed block */
  kvf_load_tally *tally;
  kvf_list by_peer;
  kvf_list waiting;
  kvf_list ready; /* in its load's ready_parts while it may start a read */
  kvf_backoff backoff;

  kvf_timer timer; /* end of BACKOFF, or the stall clock */
  bool given_up;   /* the clock ran out: the reads in flight have been cancelled */
  uint64_t progress_ns;
  uint64_t ping; /* the peer's ping that this silence caused or shares; 0: none yet */
  uint64_t pinged_ns;
  bool begun_anew; /* this silence, after a pause of our own */

  kvf_list stalled; /* in kvf_loads.stalls until PATH_STALLED is taken */
  uint32_t stalled_path;
  bool stalled_silent;

  uint64_t *good;  /* by item: confirmed */
  uint64_t *taken; /* by item: confirmed, or in a read that has not ended */
  uint64_t *wrong; /* by item: has come once and did not agree with its checksums */
  uint32_t good_count;
  uint32_t missing_count; /* not taken */
  uint32_t first_missing; /* no item before this one is missing */
  kvf_list flying;
  kvf_list idle;
};

typedef enum kvf_load_state { KVF_LOAD_IS_OPEN, KVF_LOAD_IS_DECIDED, KVF_LOAD_IS_QUIET } kvf_load_state;

struct kvf_load_entry {
  uint64_t request_id;
  UT_hash_handle by_request;
  kvf_list link; /* in kvf_loads.all */
  uint64_t user;
  kvf_lease lease;
  kvf_load_state state;
  kvf_report report; /* complete once DECIDED */
  kvf_timer timer;   /* deadline, then quiet timeout */
  kvf_list event;    /* in kvf_loads.events while an event of it is due */
  bool outcome_taken;
  bool quiet_taken;
  bool overdue;
  uint32_t stalls_queued; /* parts that are in kvf_loads.stalls */
  kvf_list ready;         /* in kvf_loads.ready while ready_parts has one */
  kvf_list ready_parts;
  uint32_t reads_in_flight;
  uint64_t start_ns;
  uint64_t byte_ns; /* when its last byte landed; at first start_ns */
  uint64_t bytes;
  uint32_t parts_open;
  uint32_t groups;
  uint32_t parts_count;
  uint32_t items_count;
  uint64_t head_bytes[KVF_GROUPS_MAX];
  kvf_transfer_item *items;
  kvf_load_part *parts;
};

struct kvf_loads {
  kvf_loads_config config;
  kvf_prng jitter;
  kvf_load_entry *by_request;
  kvf_load_chunk *by_read;
  kvf_load_peer *by_index;
  kvf_list all;
  kvf_wheel wheel;
  kvf_list ready;
  kvf_list cancels;
  kvf_list wants;
  kvf_list pings;
  kvf_list stalls;
  kvf_list events;
  uint64_t next_read_id;
  kvf_load_stats stats;
  kvf_load_tally untold; /* counts of peers for which the spec names no tally */
};

/* ---- lookups: NULL for the unknown ---- */

static kvf_load_entry *find_load(const kvf_loads *loads, uint64_t request_id)
{
  kvf_load_entry *load;
  HASH_FIND(by_request, loads->by_request, &request_id, sizeof(request_id), load);
  return load;
}

static kvf_load_chunk *find_chunk(const kvf_loads *loads, uint64_t read_id)
{
  kvf_load_chunk *chunk;
  HASH_FIND(by_read, loads->by_read, &read_id, sizeof(read_id), chunk);
  return chunk;
}

static kvf_load_peer *find_peer(const kvf_loads *loads, uint32_t index)
{
  kvf_load_peer *peer;
  HASH_FIND(by_index, loads->by_index, &index, sizeof(index), peer);
  return peer;
}

/* ---- peers ---- */

/* The peer, known or new, for one user more; NULL if there is no memory. */
static kvf_load_peer *acquire_peer(kvf_loads *loads, uint32_t index)
{
  kvf_load_peer *peer = find_peer(loads, index);
  if (peer != NULL) {
    peer->users++;
    return peer;
  }
  peer = calloc(1, sizeof(*peer));
  if (peer == NULL) {
    return NULL;
  }
  peer->index = index;
  HASH_ADD(by_index, loads->by_index, index, sizeof(peer->index), peer);
  if (peer->by_index.tbl == NULL) {
    free(peer);
    return NULL;
  }
  peer->users = 1;
  kvf_list_init(&peer->parts);
  kvf_list_init(&peer->waiting);
  kvf_list_init(&peer->want);
  kvf_list_init(&peer->ping);
  return peer;
}

static void release_peer(kvf_loads *loads, kvf_load_peer *peer)
{
  assert(peer->users > 0);
  if (--peer->users > 0) {
    return;
  }
  assert(kvf_list_is_empty(&peer->parts));
  kvf_list_remove(&peer->want);
  kvf_list_remove(&peer->ping);
  HASH_DELETE(by_index, loads->by_index, peer);
  free(peer);
}

/* ---- chunks: which items a read takes, and what becomes of them ---- */

static uint64_t item_bytes(const kvf_load_part *part, uint32_t index)
{
  const kvf_load_entry *load = part->load;
  return load->head_bytes[load->items[index].group] * part->spec.heads;
}

static uint64_t divided(uint64_t bytes, uint64_t by)
{
  return bytes / by + (bytes % by != 0);
}

/* As few chunks as there can be, but as many for one reader as for another. */
static void choose_chunk_bytes(const kvf_loads *loads, kvf_load_part *part)
{
  const kvf_loads_config *config = &loads->config;
  uint64_t readers = config->readers > 0 ? config->readers : 1;
  uint64_t spread_bytes = config->spread_bytes > 0 ? config->spread_bytes : 1;
  uint64_t bytes = 0;
  uint64_t largest = 1;
  for (uint32_t i = 0; i < part->load->items_count; i++) {
    uint64_t each = item_bytes(part, i);
    bytes += each;
    largest = each > largest ? each : largest;
  }
  readers = readers < bytes / spread_bytes ? readers : bytes / spread_bytes;
  if (readers <= 1) {
    part->chunk_bytes = config->chunk_bytes;
    return;
  }
  uint64_t rounds = divided(bytes, config->chunk_bytes * readers);
  uint64_t even = divided(bytes, rounds * readers) + largest - 1; /* chunks are of whole items */
  part->chunk_bytes = even < config->chunk_bytes ? even : config->chunk_bytes;
}

/* Sets the chunk to the first run of missing items, as long as the limits allow. */
static void choose_items(const kvf_load_part *part, kvf_load_chunk *chunk)
{
  uint32_t end = part->load->items_count;
  uint32_t first = part->first_missing;
  while (first < end && kvf_bitmap_get(part->taken, first)) {
    first++;
  }
  assert(first < end);
  uint64_t bytes = item_bytes(part, first);
  uint32_t count = 1;
  while (count < KVF_CHUNK_ITEMS_MAX && first + count < end && !kvf_bitmap_get(part->taken, first + count) &&
         bytes + item_bytes(part, first + count) <= part->chunk_bytes) {
    bytes += item_bytes(part, first + count);
    count++;
  }
  chunk->first = first;
  chunk->count = count;
}

static void take_items(kvf_load_part *part, const kvf_load_chunk *chunk)
{
  for (uint32_t i = 0; i < chunk->count; i++) {
    assert(!kvf_bitmap_get(part->taken, chunk->first + i)); /* no read of it is in flight */
    kvf_bitmap_set(part->taken, chunk->first + i);
  }
  part->missing_count -= chunk->count;
  part->first_missing = chunk->first + chunk->count;
}

static kvf_load_chunk *begin_chunk(kvf_loads *loads, kvf_load_part *part)
{
  assert(part->state == KVF_PART_READING && part->path != KVF_PATH_NONE);
  assert(!kvf_list_is_empty(&part->idle) && part->missing_count > 0);
  kvf_load_chunk *chunk = KVF_CONTAINER_OF(part->idle.next, kvf_load_chunk, link);
  chunk->read_id = loads->next_read_id++;
  HASH_ADD(by_read, loads->by_read, read_id, sizeof(chunk->read_id), chunk);
  if (chunk->by_read.tbl == NULL) {
    return NULL;
  }
  choose_items(part, chunk);
  take_items(part, chunk);
  chunk->path = part->path;
  chunk->cancelled = false;
  chunk->verified = 0;
  kvf_list_remove(&chunk->link);
  kvf_list_push_back(&part->flying, &chunk->link);
  part->load->reads_in_flight++;
  loads->stats.chunks++;
  part->tally->chunks++;
  part->tally->reads_in_flight++;
  return chunk;
}

static void end_chunk(kvf_loads *loads, kvf_load_chunk *chunk)
{
  kvf_load_entry *load = chunk->part->load;
  assert(load->reads_in_flight > 0);
  HASH_DELETE(by_read, loads->by_read, chunk);
  kvf_list_remove(&chunk->cancel);
  kvf_list_remove(&chunk->link);
  kvf_list_push_back(&chunk->part->idle, &chunk->link);
  load->reads_in_flight--;
  chunk->part->tally->reads_in_flight--;
}

static void confirm(kvf_loads *loads, const kvf_load_chunk *chunk, uint32_t count)
{
  kvf_load_part *part = chunk->part;
  assert(count <= chunk->count);
  for (uint32_t i = 0; i < count; i++) {
    assert(kvf_bitmap_get(part->taken, chunk->first + i) && !kvf_bitmap_get(part->good, chunk->first + i));
    kvf_bitmap_set(part->good, chunk->first + i);
  }
  part->good_count += count;
  part->tally->blocks += count;
  loads->stats.blocks += count;
  if (chunk->verified > 0) {
    loads->stats.verified += count;
  } else if (loads->config.sums) {
    loads->stats.unverified += count;
  }
}

static void miss(const kvf_load_chunk *chunk, uint32_t good)
{
  kvf_load_part *part = chunk->part;
  for (uint32_t i = good; i < chunk->count; i++) {
    assert(kvf_bitmap_get(part->taken, chunk->first + i) && !kvf_bitmap_get(part->good, chunk->first + i));
    kvf_bitmap_clear(part->taken, chunk->first + i);
  }
  part->missing_count += chunk->count - good;
  if (chunk->first + good < part->first_missing) {
    part->first_missing = chunk->first + good;
  }
}

/* Whether it is all that its load still needs, and few bytes. */
static bool is_small(const kvf_loads *loads, const kvf_load_chunk *chunk)
{
  const kvf_load_part *part = chunk->part;
  if (part->load->parts_open != 1 || part->load->items_count - part->good_count != chunk->count) {
    return false;
  }
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < chunk->count; i++) {
    bytes += item_bytes(part, chunk->first + i);
  }
  return bytes <= loads->config.inline_bytes;
}

/* ---- parts: their states, what comes in for them, their stall clock ---- */

#define BIT(state) (1u << (state))
#define OVERSLEPT_SHARE 2 /* of the stall timeout */

/* From each state, where a part may go next. */
static const unsigned next_states[] = {
    [KVF_PART_WAIT_PATH] = BIT(KVF_PART_READING) | BIT(KVF_PART_STOPPED),
    [KVF_PART_READING] = BIT(KVF_PART_DRAINING) | BIT(KVF_PART_DONE) | BIT(KVF_PART_STOPPED),
    [KVF_PART_DRAINING] = BIT(KVF_PART_BACKOFF) | BIT(KVF_PART_DONE) | BIT(KVF_PART_STOPPED),
    [KVF_PART_BACKOFF] = BIT(KVF_PART_WAIT_PATH) | BIT(KVF_PART_READING) | BIT(KVF_PART_STOPPED),
    [KVF_PART_DONE] = 0,
    [KVF_PART_STOPPED] = 0,
};

static void move(kvf_load_part *part, kvf_load_part_state next)
{
  bool legal = (next_states[part->state] & BIT(next)) != 0;
  assert(legal);
  (void)legal;
  assert(kvf_list_is_empty(&part->flying) || next == KVF_PART_DRAINING || next == KVF_PART_STOPPED);
  part->state = next;
}

static void update_ready(kvf_loads *loads, kvf_load_part *part)
{
  kvf_load_entry *load = part->load;
  if (part->state == KVF_PART_READING && part->missing_count > 0 && !kvf_list_is_empty(&part->idle)) {
    kvf_list_ensure_back(&load->ready_parts, &part->ready);
    kvf_list_ensure_back(&loads->ready, &load->ready);
    return;
  }
  kvf_list_remove(&part->ready);
  if (kvf_list_is_empty(&load->ready_parts)) {
    kvf_list_remove(&load->ready);
  }
}

static void wait_path(kvf_loads *loads, kvf_load_part *part)
{
  kvf_load_peer *peer = part->peer;
  if (part->state != KVF_PART_WAIT_PATH) {
    move(part, KVF_PART_WAIT_PATH);
  }
  kvf_list_push_back(&peer->waiting, &part->waiting);
  if (!peer->asked) {
    kvf_list_ensure_back(&loads->wants, &peer->want);
  }
}

static void read_over(kvf_loads *loads, kvf_load_part *part, uint32_t path)
{
  move(part, KVF_PART_READING);
  part->path = path;
  part->given_up = false;
  update_ready(loads, part);
}

/* DONE or STOPPED: it needs no peer and no timer any more; its reads still end. */
static void leave(kvf_loads *loads, kvf_load_part *part, kvf_load_part_state state)
{
  move(part, state);
  update_ready(loads, part);
  kvf_wheel_disarm(&loads->wheel, &part->timer);
  kvf_list_remove(&part->waiting);
  kvf_list_remove(&part->by_peer);
  release_peer(loads, part->peer);
  part->peer = NULL;
}

static void cancel_reads(kvf_loads *loads, kvf_load_part *part)
{
  for (kvf_list *link = part->flying.next; link != &part->flying; link = link->next) {
    kvf_load_chunk *chunk = KVF_CONTAINER_OF(link, kvf_load_chunk, link);
    if (!chunk->cancelled) {
      chunk->cancelled = true;
      kvf_list_push_back(&loads->cancels, &chunk->cancel);
    }
  }
}

static void stop_part(kvf_loads *loads, kvf_load_part *part)
{
  cancel_reads(loads, part);
  leave(loads, part, KVF_PART_STOPPED);
}

/* ---- outcome and quiet ---- */

/* Leading positions that all parts have. Positions that are not wanted are good already. With several groups a partial
 * prefix is of no use: an engine's groups do not cover the same tokens with the same number of blocks. */
static uint32_t count_prefix(const kvf_load_entry *load)
{
  size_t leading = load->items_count;
  for (uint32_t i = 0; i < load->parts_count; i++) {
    size_t good = kvf_bitmap_prefix(load->parts[i].good, load->items_count);
    leading = good < leading ? good : leading;
  }
  if (leading == load->items_count) {
    return load->report.blocks;
  }
  return load->groups == 1 ? load->items[leading].position : 0;
}

static void count_done(kvf_loads *loads, uint64_t now_ns, const kvf_load_entry *load)
{
  for (uint32_t i = 0; i < load->parts_count; i++) {
    load->parts[i].tally->loads[kvf_status_index(KVF_OK)]++;
  }
  kvf_histogram_add(&loads->stats.load_ns, now_ns - load->start_ns);
  kvf_histogram_add(&loads->stats.load_bytes, load->bytes);
}

/* By the first part from `part` on that is not done. A load that was aborted says nothing of its peer. */
static void count_failed(kvf_loads *loads, uint64_t now_ns, const kvf_load_entry *load, const kvf_load_part *part,
                         kvf_status status)
{
  while (part->state == KVF_PART_DONE) {
    part++;
  }
  kvf_load_tally *tally = part->tally;
  tally->loads[kvf_status_index(status)]++;
  if (status != KVF_ABORTED) {
    tally->last_failure = status;
    tally->last_failure_ns = now_ns;
    kvf_histogram_add(&loads->stats.detection_ns, now_ns - load->byte_ns);
  }
}

static void settle_load(kvf_loads *loads, kvf_load_entry *load)
{
  if (load->state != KVF_LOAD_IS_DECIDED || load->reads_in_flight > 0) {
    return;
  }
  load->state = KVF_LOAD_IS_QUIET;
  kvf_wheel_disarm(&loads->wheel, &load->timer);
  if (load->overdue) {
    load->overdue = false;
    loads->stats.overdue--;
    loads->stats.overdue_blocks -= load->items_count;
  }
  kvf_list_ensure_back(&loads->events, &load->event);
}

static void decide_load(kvf_loads *loads, uint64_t now_ns, kvf_load_entry *load, const kvf_load_part *part,
                        kvf_status status)
{
  assert(load->state == KVF_LOAD_IS_OPEN);
  assert((status == KVF_OK) == (load->parts_open == 0));
  load->state = KVF_LOAD_IS_DECIDED;
  /* A load's outcome is never "the call was wrong", whatever a transport says. */
  load->report.status = kvf_status_describe(status)->lost == KVF_LOST_CALL ? KVF_TRANSFER_FAILED : status;
  load->report.prefix = count_prefix(load);
  loads->stats.outcomes[kvf_status_index(load->report.status)]++;
  if (status == KVF_OK) {
    count_done(loads, now_ns, load);
  } else {
    count_failed(loads, now_ns, load, part != NULL ? part : load->parts, (kvf_status)load->report.status);
  }
  for (uint32_t i = 0; i < load->parts_count; i++) {
    if (load->parts[i].state != KVF_PART_DONE) {
      stop_part(loads, &load->parts[i]);
    }
  }
  kvf_list_push_back(&loads->events, &load->event);
  kvf_wheel_arm(&loads->wheel, &load->timer, kvf_time_add(now_ns, loads->config.quiet_timeout_ns));
  settle_load(loads, load);
}

static void free_if_over(kvf_loads *loads, kvf_load_entry *load)
{
  if (load->quiet_taken && load->stalls_queued == 0) {
    assert(load->state == KVF_LOAD_IS_QUIET && load->reads_in_flight == 0);
    kvf_list_remove(&load->link);
    loads->stats.open--;
    free(load);
  }
}

bool kvf_loads_next_event(kvf_loads *loads, kvf_load_event *out)
{
  if (kvf_list_is_empty(&loads->events)) {
    return false;
  }
  kvf_load_entry *load = KVF_CONTAINER_OF(loads->events.next, kvf_load_entry, event);
  out->request_id = load->request_id;
  out->user = load->user;
  out->report = load->report;
  if (!load->outcome_taken) {
    out->kind = KVF_LOAD_OUTCOME;
    load->outcome_taken = true;
    if (load->state != KVF_LOAD_IS_QUIET) {
      kvf_list_remove(&load->event);
    }
    return true;
  }
  assert(load->state == KVF_LOAD_IS_QUIET);
  out->kind = KVF_LOAD_QUIET;
  load->quiet_taken = true;
  kvf_list_remove(&load->event);
  HASH_DELETE(by_request, loads->by_request, load);
  free_if_over(loads, load);
  return true;
}

/* ---- trouble ---- */

static bool clock_runs(const kvf_load_part *part)
{
  return (part->state == KVF_PART_READING || part->state == KVF_PART_DRAINING) && !part->given_up &&
         !kvf_list_is_empty(&part->flying);
}

/* After the end of a read, or a loss of the path: without reads in flight the clock stops, and a part that drains
 * pauses. */
static void settle_part(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
{
  if (!clock_runs(part) && part->state != KVF_PART_BACKOFF) {
    kvf_wheel_disarm(&loads->wheel, &part->timer);
  }
  if (part->state == KVF_PART_DRAINING && kvf_list_is_empty(&part->flying)) {
    move(part, KVF_PART_BACKOFF);
    loads->stats.retries++;
    part->tally->retries++;
    uint64_t wait_ns = kvf_backoff_next(&part->backoff, &loads->jitter);
    kvf_wheel_arm(&loads->wheel, &part->timer, kvf_time_add(now_ns, wait_ns));
  }
  update_ready(loads, part);
}

/* No new reads until those in flight have ended and a pause is over. */
static void drain(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
{
  if (part->state == KVF_PART_READING) {
    move(part, KVF_PART_DRAINING);
  }
  settle_part(loads, now_ns, part);
}

/* The path has failed the part. A cancelled read says nothing about the cause. */
static void on_trouble(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part, kvf_status cause)
{
  if (part->cause == KVF_OK && cause != KVF_CANCELLED) {
    part->cause = cause;
  }
  part->path = KVF_PATH_NONE;
  drain(loads, now_ns, part);
}

/* ---- the stall clock: runs while reads are in flight, until it has run out ---- */

static void clock_start(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
{
  part->progress_ns = now_ns;
  part->begun_anew = false;
  part->ping = 0;
  kvf_wheel_arm(&loads->wheel, &part->timer, kvf_time_add(now_ns, loads->config.stall_timeout_ns / 2));
}

/* While no ping is out, the timer is left as it is: it looks again when it fires. */
static void clock_progress(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
{
  part->progress_ns = now_ns;
  part->begun_anew = false;
  part->load->byte_ns = now_ns;
  if (part->ping != 0) {
    clock_start(loads, now_ns, part);
  }
}

/* Parts of one peer that fall silent together share a ping. */
static void ping_peer(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
{
  kvf_load_peer *peer = part->peer;
  if (peer->pings == 0 || now_ns - peer->pinged_ns >= loads->config.stall_timeout_ns / 2) {
    peer->pings++;
    peer->pinged_ns = now_ns;
    loads->stats.pings++;
    kvf_list_ensure_back(&loads->pings, &peer->ping);
  }
  part->ping = peer->pings;
  part->pinged_ns = peer->pinged_ns;
}

/* When the silence, if it lasts, becomes a stall. */
static uint64_t stall_at(const kvf_loads *loads, const kvf_load_part *part)
{
  uint64_t stall_ns = loads->config.stall_timeout_ns;
  uint64_t last_ns = kvf_time_add(part->progress_ns, 2 * stall_ns);
  if (part->peer->answered >= part->ping) {
    return last_ns;
  }
  uint64_t at_ns = kvf_time_add(part->progress_ns, stall_ns);
  uint64_t pong_due_ns = kvf_time_add(part->pinged_ns, stall_ns / 2);
  return kvf_time_min(pong_due_ns > at_ns ? pong_due_ns : at_ns, last_ns);
}

static void on_stall(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
{
  uint32_t path = KVF_CONTAINER_OF(part->flying.next, kvf_load_chunk, link)->path; /* that of all its reads */
  uint64_t waited_ns = now_ns - part->pinged_ns;
  bool answered = part->peer->answered >= part->ping;
  loads->stats.stalls++;
  part->tally->stalls++;
  if (part->peer->stalled_path != path) {
    part->peer->stalled_path = path;
    part->stalled_path = path;
    part->stalled_silent = !answered && waited_ns >= loads->config.stall_timeout_ns / 2;
    if (!kvf_list_is_linked(&part->stalled)) {
      part->load->stalls_queued++;
      kvf_list_push_back(&loads->stalls, &part->stalled);
    }
  }
  part->given_up = true;
  cancel_reads(loads, part);
  on_trouble(loads, now_ns, part, KVF_TRANSFER_STALLED);
}

/* A clock that is looked at this late means that this process itself did not run: what the peer has sent meanwhile may
 * wait in our own buffers. So the silence begins anew, with another ping; but once only, or a process that hardly ever
 * runs would wait for a dead peer until the deadline. */
static bool has_overslept(const kvf_loads *loads, uint64_t now_ns, const kvf_load_part *part)
{
  return !part->begun_anew && now_ns - part->timer.expires_ns >= loads->config.stall_timeout_ns / OVERSLEPT_SHARE;
}

static void on_clock(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
{
  if (has_overslept(loads, now_ns, part)) {
    uint64_t silent_since_ns = now_ns - loads->config.stall_timeout_ns / 2;
    part->progress_ns = part->progress_ns > silent_since_ns ? part->progress_ns : silent_since_ns;
    part->begun_anew = true;
    part->ping = 0;
  }
  uint64_t ping_at_ns = kvf_time_add(part->progress_ns, loads->config.stall_timeout_ns / 2);
  if (part->ping == 0 && now_ns < ping_at_ns) {
    kvf_wheel_arm(&loads->wheel, &part->timer, ping_at_ns);
    return;
  }
  if (part->ping == 0) {
    ping_peer(loads, now_ns, part);
  }
  uint64_t at_ns = stall_at(loads, part);
  if (now_ns < at_ns) {
    kvf_wheel_arm(&loads->wheel, &part->timer, at_ns);
    return;
  }
  on_stall(loads, now_ns, part);
}

static void on_part_timer(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
{
  if (part->state != KVF_PART_BACKOFF) {
    assert(clock_runs(part));
    on_clock(loads, now_ns, part);
  } else if (part->path != KVF_PATH_NONE) {
    read_over(loads, part, part->path);
  } else {
    wait_path(loads, part);
  }
}

/* ---- what comes in ---- */

/* The first trouble is the cause; but a connection that broke is only how the end of the peer's process was heard of.
 */
static kvf_status cause_of_refusal(const kvf_load_part *part, kvf_status status)
{
  bool peer_is_gone = status == KVF_PEER_DOWN || status == KVF_PEER_RESTARTED;
  return part->cause == KVF_OK || (part->cause == KVF_TRANSFER_FAILED && peer_is_gone) ? status : part->cause;
}

void kvf_loads_on_path(kvf_loads *loads, uint64_t now_ns, uint32_t peer_index, uint32_t path, kvf_status status)
{
  kvf_load_peer *peer = find_peer(loads, peer_index);
  if (peer == NULL) {
    return;
  }
  peer->asked = false;
  peer->users++; /* the last part that leaves must not free it here */
  while (!kvf_list_is_empty(&peer->waiting)) {
    kvf_load_part *part = KVF_CONTAINER_OF(peer->waiting.next, kvf_load_part, waiting);
    if (status == KVF_OK) {
      assert(path != KVF_PATH_NONE);
      kvf_list_remove(&part->waiting);
      read_over(loads, part, path);
    } else {
      decide_load(loads, now_ns, part->load, part, cause_of_refusal(part, status));
    }
  }
  release_peer(loads, peer);
}

void kvf_loads_on_path_down(kvf_loads *loads, uint64_t now_ns, uint32_t peer_index, uint32_t path)
{
  kvf_load_peer *peer = find_peer(loads, peer_index);
  if (peer == NULL || path == KVF_PATH_NONE) {
    return;
  }
  for (kvf_list *link = peer->parts.next; link != &peer->parts; link = link->next) {
    kvf_load_part *part = KVF_CONTAINER_OF(link, kvf_load_part, by_peer);
    if (part->path == path) {
      part->path = KVF_PATH_NONE;
      drain(loads, now_ns, part);
    }
  }
}

static bool is_final(kvf_status status)
{
  switch ((int)status) {
    case KVF_LEASE_EXPIRED:
    case KVF_LEASE_UNKNOWN:
    case KVF_BAD_TICKET:
    case KVF_PEER_RESTARTED:
    case KVF_INCOMPATIBLE:
      return true;
    default:
      return false;
  }
}

static void on_confirmed(kvf_loads *loads, uint64_t now_ns, kvf_load_chunk *chunk)
{
  kvf_load_part *part = chunk->part;
  confirm(loads, chunk, chunk->count);
  part->cause = KVF_OK;
  kvf_backoff_reset(&part->backoff);
  if (part->good_count < part->load->items_count) {
    settle_part(loads, now_ns, part);
    return;
  }
  leave(loads, part, KVF_PART_DONE);
  if (--part->load->parts_open == 0) {
    decide_load(loads, now_ns, part->load, part, KVF_OK);
  }
}

/* The fence was good, and a block came that is not what the producer published. What came before it is good. The block
 * gets one more try, which helps if the bytes were changed in transit, and not if they are wrong in the producer's
 * memory. */
static void on_mismatch(kvf_loads *loads, uint64_t now_ns, const kvf_load_chunk *chunk)
{
  kvf_load_part *part = chunk->part;
  uint32_t good = chunk->verified < chunk->count ? chunk->verified : chunk->count - 1;
  uint32_t wrong = chunk->first + good;
  loads->stats.mismatches++;
  if (good > 0) {
    confirm(loads, chunk, good);
    part->cause = KVF_OK;
    kvf_backoff_reset(&part->backoff);
  }
  miss(chunk, good);
  if (kvf_bitmap_get(part->wrong, wrong)) {
    decide_load(loads, now_ns, part->load, part, KVF_CHECKSUM);
    return;
  }
  kvf_bitmap_set(part->wrong, wrong);
  on_trouble(loads, now_ns, part, KVF_CHECKSUM);
}

void kvf_loads_on_read_verified(kvf_loads *loads, uint64_t read_id, uint32_t items)
{
  kvf_load_chunk *chunk = find_chunk(loads, read_id);
  if (chunk != NULL) {
    chunk->verified = items;
  }
}

void kvf_loads_on_read_done(kvf_loads *loads, uint64_t now_ns, uint64_t read_id, kvf_status status,
                            const kvf_fence_sample *sample, uint64_t bytes)
{
  kvf_load_chunk *chunk = find_chunk(loads, read_id);
  if (chunk == NULL) {
    loads->stats.late++;
    return;
  }
  kvf_load_part *part = chunk->part;
  end_chunk(loads, chunk);
  loads->stats.bytes += bytes;
  part->tally->bytes += bytes;
  part->load->bytes += bytes;
  if (part->load->state != KVF_LOAD_IS_OPEN) {
    settle_load(loads, part->load);
    return;
  }
  if (status == KVF_INVALID) {
    status = KVF_BAD_TICKET; /* ours were checked at the start: it is the peer that has no such blocks */
  }
  if (sample == NULL) {
    chunk->verified = 0; /* says nothing without the fence */
  }
  if (status == KVF_OK || (status == KVF_CHECKSUM && sample != NULL)) {
    clock_progress(loads, now_ns, part);
    kvf_status fence = kvf_fence_check(sample, &part->spec.claim);
    status = fence == KVF_OK ? status : fence;
  }
  if (status == KVF_OK) {
    on_confirmed(loads, now_ns, chunk);
    return;
  }
  if (status == KVF_CHECKSUM) {
    on_mismatch(loads, now_ns, chunk);
    return;
  }
  miss(chunk, 0);
  if (is_final(status)) {
    decide_load(loads, now_ns, part->load, part, status);
  } else if (status == KVF_NOT_PUBLISHED) {
    drain(loads, now_ns, part);
  } else {
    on_trouble(loads, now_ns, part, status);
  }
}

void kvf_loads_on_read_progress(kvf_loads *loads, uint64_t now_ns, uint64_t read_id)
{
  kvf_load_chunk *chunk = find_chunk(loads, read_id);
  if (chunk != NULL && clock_runs(chunk->part)) {
    clock_progress(loads, now_ns, chunk->part);
  }
}

void kvf_loads_on_pong(kvf_loads *loads, uint32_t peer_index)
{
  kvf_load_peer *peer = find_peer(loads, peer_index);
  if (peer != NULL) {
    peer->answered = peer->pings;
  }
}

/* ---- the table: memory, start, abort ---- */

static bool config_is_valid(const kvf_loads_config *config)
{
  return config->loads_max > 0 && config->stall_timeout_ns >= 2 && config->backoff_min_ns > 0 &&
         config->backoff_min_ns <= config->backoff_max_ns && config->chunks_in_flight > 0 &&
         config->chunks_in_flight <= KVF_CHUNKS_IN_FLIGHT_MAX;
}

kvf_status kvf_loads_create(const kvf_loads_config *config, uint64_t now_ns, kvf_loads **out)
{
  *out = NULL;
  if (!config_is_valid(config)) {
    return KVF_INVALID;
  }
  kvf_loads *loads = calloc(1, sizeof(*loads));
  if (loads == NULL) {
    return KVF_NO_MEMORY;
  }
  loads->config = *config;
  loads->jitter.state = config->seed;
  loads->next_read_id = 1;
  kvf_histogram_init_ns(&loads->stats.load_ns, "load_ns");
  kvf_histogram_init_bytes(&loads->stats.load_bytes, "load_bytes");
  kvf_histogram_init_ns(&loads->stats.detection_ns, "detection_ns");
  kvf_list_init(&loads->all);
  kvf_list_init(&loads->ready);
  kvf_list_init(&loads->cancels);
  kvf_list_init(&loads->wants);
  kvf_list_init(&loads->pings);
  kvf_list_init(&loads->stalls);
  kvf_list_init(&loads->events);
  kvf_wheel_init(&loads->wheel, now_ns);
  *out = loads;
  return KVF_OK;
}

void kvf_loads_destroy(kvf_loads *loads)
{
  if (loads == NULL) {
    return;
  }
  HASH_CLEAR(by_request, loads->by_request);
  HASH_CLEAR(by_read, loads->by_read);
  kvf_load_peer *peer;
  kvf_load_peer *next_peer;
  HASH_ITER(by_index, loads->by_index, peer, next_peer)
  {
    HASH_DELETE(by_index, loads->by_index, peer);
    free(peer);
  }
  kvf_list *link = loads->all.next;
  while (link != &loads->all) {
    kvf_list *next = link->next;
    free(KVF_CONTAINER_OF(link, kvf_load_entry, link));
    link = next;
  }
  free(loads);
}

static void init_part(kvf_loads *loads, kvf_load_entry *load, kvf_load_part *part, const kvf_load_part_spec *spec)
{
  part->load = load;
  part->spec = *spec;
  part->tally = spec->tally != NULL ? spec->tally : &loads->untold;
  part->missing_count = load->items_count;
  kvf_list_init(&part->by_peer);
  kvf_list_init(&part->waiting);
  kvf_list_init(&part->ready);
  kvf_list_init(&part->stalled);
  kvf_list_init(&part->flying);
  kvf_list_init(&part->idle);
  kvf_timer_init(&part->timer, KVF_TIMER_OF_PART);
  kvf_backoff_init(&part->backoff, loads->config.backoff_min_ns, loads->config.backoff_max_ns);
}

static void init_chunks(kvf_load_part *part, kvf_load_chunk *chunks, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    chunks[i].part = part;
    kvf_list_init(&chunks[i].link);
    kvf_list_init(&chunks[i].cancel);
    kvf_list_push_back(&part->idle, &chunks[i].link);
  }
}

/* A load with its parts, chunks, bitmaps and items in one allocation; NULL if there is no memory. */
static kvf_load_entry *create_load(kvf_loads *loads, const kvf_load_spec *spec)
{
  size_t chunks_each = loads->config.chunks_in_flight;
  size_t words = kvf_bitmap_words(spec->items_count);
  size_t parts_count = spec->parts_count;
  size_t parts_at = sizeof(kvf_load_entry);
  size_t chunks_at = parts_at + parts_count * sizeof(kvf_load_part);
  size_t bitmaps_at = chunks_at + parts_count * chunks_each * sizeof(kvf_load_chunk);
  size_t items_at = bitmaps_at + parts_count * 3 * words * sizeof(uint64_t);
  char *memory = calloc(1, items_at + spec->items_count * sizeof(kvf_transfer_item));
  if (memory == NULL) {
    return NULL;
  }
  kvf_load_entry *load = (void *)memory;
  kvf_load_chunk *chunks = (void *)(memory + chunks_at);
  uint64_t *bitmaps = (void *)(memory + bitmaps_at);
  load->parts = (void *)(memory + parts_at);
  load->items = (void *)(memory + items_at);
  load->items_count = spec->items_count;
  load->parts_count = spec->parts_count;
  for (size_t i = 0; i < spec->parts_count; i++) {
    kvf_load_part *part = &load->parts[i];
    init_part(loads, load, part, &spec->parts[i]);
    init_chunks(part, chunks + i * chunks_each, (uint32_t)chunks_each);
    part->good = bitmaps + i * 3 * words;
    part->taken = part->good + words;
    part->wrong = part->taken + words;
  }
  return load;
}

static void fill_load(kvf_load_entry *load, const kvf_load_spec *spec)
{
  load->request_id = spec->request_id;
  load->user = spec->user;
  load->lease = spec->lease;
  load->groups = spec->groups;
  load->report.request_id = spec->request_id;
  load->report.ranks_mask = UINT64_C(1) << spec->rank;
  load->report.blocks = spec->positions;
  if (spec->items_count > 0) {
    memcpy(load->items, spec->items, spec->items_count * sizeof(*load->items));
    memcpy(load->head_bytes, spec->head_bytes, spec->groups * sizeof(*load->head_bytes));
  }
  kvf_list_init(&load->link);
  kvf_timer_init(&load->timer, KVF_TIMER_OF_LOAD);
  kvf_list_init(&load->event);
  kvf_list_init(&load->ready);
  kvf_list_init(&load->ready_parts);
}

/* False: there was no memory for all. */
static bool acquire_peers(kvf_loads *loads, kvf_load_entry *load)
{
  for (uint32_t i = 0; i < load->parts_count; i++) {
    load->parts[i].peer = acquire_peer(loads, load->parts[i].spec.peer);
    if (load->parts[i].peer == NULL) {
      return false;
    }
  }
  return true;
}

/* Nothing can fail from here on. */
static void open_load(kvf_loads *loads, uint64_t now_ns, kvf_load_entry *load, uint64_t earlier_ns,
                      uint64_t deadline_ns)
{
  loads->stats.open++;
  load->start_ns = now_ns - earlier_ns;
  load->byte_ns = now_ns;
  kvf_list_push_back(&loads->all, &load->link);
  if (load->items_count == 0) {
    for (uint32_t i = 0; i < load->parts_count; i++) {
      load->parts[i].state = KVF_PART_DONE;
    }
    decide_load(loads, now_ns, load, NULL, KVF_OK);
    return;
  }
  load->parts_open = load->parts_count;
  kvf_wheel_arm(&loads->wheel, &load->timer, deadline_ns);
  for (uint32_t i = 0; i < load->parts_count; i++) {
    kvf_load_part *part = &load->parts[i];
    choose_chunk_bytes(loads, part);
    kvf_list_push_back(&part->peer->parts, &part->by_peer);
    wait_path(loads, part);
  }
}

kvf_status kvf_loads_start(kvf_loads *loads, uint64_t now_ns, const kvf_load_spec *spec)
{
  if (!kvf_load_spec_is_valid(spec)) {
    return KVF_INVALID;
  }
  if (find_load(loads, spec->request_id) != NULL) {
    return KVF_EXISTS;
  }
  if (loads->stats.open >= loads->config.loads_max) {
    return KVF_NO_MEMORY;
  }
  kvf_load_entry *load = create_load(loads, spec);
  if (load == NULL) {
    return KVF_NO_MEMORY;
  }
  fill_load(load, spec);
  if (load->items_count > 0 && !acquire_peers(loads, load)) {
    goto release;
  }
  HASH_ADD(by_request, loads->by_request, request_id, sizeof(load->request_id), load);
  if (load->by_request.tbl == NULL) {
    goto release;
  }
  open_load(loads, now_ns, load, spec->earlier_ns, spec->deadline_ns);
  return KVF_OK;

release:
  for (uint32_t i = 0; i < load->parts_count && load->parts[i].peer != NULL; i++) {
    release_peer(loads, load->parts[i].peer);
  }
  free(load);
  return KVF_NO_MEMORY;
}

kvf_status kvf_loads_abort(kvf_loads *loads, uint64_t now_ns, uint64_t request_id)
{
  kvf_load_entry *load = find_load(loads, request_id);
  if (load == NULL) {
    return KVF_NOT_FOUND;
  }
  if (load->state == KVF_LOAD_IS_OPEN) {
    decide_load(loads, now_ns, load, NULL, KVF_ABORTED);
  }
  return KVF_OK;
}

void kvf_loads_abort_all(kvf_loads *loads, uint64_t now_ns)
{
  for (kvf_list *link = loads->all.next; link != &loads->all; link = link->next) {
    kvf_load_entry *load = KVF_CONTAINER_OF(link, kvf_load_entry, link);
    if (load->state == KVF_LOAD_IS_OPEN) {
      decide_load(loads, now_ns, load, NULL, KVF_ABORTED);
    }
  }
}

/* ---- time ---- */

static void on_load_timer(kvf_loads *loads, uint64_t now_ns, kvf_load_entry *load)
{
  if (load->state == KVF_LOAD_IS_OPEN) {
    decide_load(loads, now_ns, load, NULL, KVF_DEADLINE);
    return;
  }
  assert(load->state == KVF_LOAD_IS_DECIDED);
  load->overdue = true;
  loads->stats.overdue++;
  loads->stats.overdue_blocks += load->items_count;
  loads->stats.overdue_total++;
}

void kvf_loads_tick(kvf_loads *loads, uint64_t now_ns, uint32_t max_items)
{
  uint32_t work = max_items;
  for (kvf_timer *timer = kvf_wheel_expire(&loads->wheel, now_ns, &work); timer != NULL;
       timer = kvf_wheel_expire(&loads->wheel, now_ns, &work)) {
    if (timer->kind == KVF_TIMER_OF_LOAD) {
      on_load_timer(loads, now_ns, KVF_CONTAINER_OF(timer, kvf_load_entry, timer));
    } else {
      on_part_timer(loads, now_ns, KVF_CONTAINER_OF(timer, kvf_load_part, timer));
    }
  }
}

uint64_t kvf_loads_next_deadline(const kvf_loads *loads)
{
  return kvf_wheel_next_deadline(&loads->wheel);
}

bool kvf_loads_healthy(const kvf_loads *loads)
{
  return loads->stats.overdue == 0;
}

bool kvf_loads_is_stuck(const kvf_loads *loads, uint64_t request_id)
{
  const kvf_load_entry *load = find_load(loads, request_id);
  return load != NULL && load->overdue;
}

const kvf_load_stats *kvf_loads_stats(const kvf_loads *loads)
{
  return &loads->stats;
}

/* ---- what the caller is to do next ---- */

static bool next_cancel(kvf_loads *loads, kvf_load_action *out)
{
  kvf_list *link = kvf_list_pop_front(&loads->cancels);
  if (link == NULL) {
    return false;
  }
  const kvf_load_chunk *chunk = KVF_CONTAINER_OF(link, kvf_load_chunk, cancel);
  out->kind = KVF_LOAD_CANCEL;
  out->path = chunk->path;
  out->transfer.id = chunk->read_id;
  return true;
}

static bool next_stall(kvf_loads *loads, kvf_load_action *out)
{
  kvf_list *link = kvf_list_pop_front(&loads->stalls);
  if (link == NULL) {
    return false;
  }
  kvf_load_part *part = KVF_CONTAINER_OF(link, kvf_load_part, stalled);
  out->kind = KVF_LOAD_PATH_STALLED;
  out->peer = part->spec.peer;
  out->path = part->stalled_path;
  out->silent = part->stalled_silent;
  part->load->stalls_queued--;
  free_if_over(loads, part->load);
  return true;
}

static bool next_ping(kvf_loads *loads, kvf_load_action *out)
{
  kvf_list *link = kvf_list_pop_front(&loads->pings);
  if (link == NULL) {
    return false;
  }
  out->kind = KVF_LOAD_PING;
  out->peer = KVF_CONTAINER_OF(link, kvf_load_peer, ping)->index;
  return true;
}

static bool next_want(kvf_loads *loads, kvf_load_action *out)
{
  for (kvf_list *link = kvf_list_pop_front(&loads->wants); link != NULL; link = kvf_list_pop_front(&loads->wants)) {
    kvf_load_peer *peer = KVF_CONTAINER_OF(link, kvf_load_peer, want);
    if (!kvf_list_is_empty(&peer->waiting)) {
      peer->asked = true;
      out->kind = KVF_LOAD_WANT_PATH;
      out->peer = peer->index;
      return true;
    }
  }
  return false;
}

static void fill_read(const kvf_loads *loads, const kvf_load_chunk *chunk, kvf_load_action *out)
{
  const kvf_load_part *part = chunk->part;
  out->kind = KVF_LOAD_READ;
  out->peer = part->spec.peer;
  out->path = chunk->path;
  out->transfer = (kvf_transfer){.id = chunk->read_id,
                                 .lease = part->load->lease,
                                 .remote_head = part->spec.remote_head,
                                 .local_head = part->spec.local_head,
                                 .heads = part->spec.heads,
                                 .items_count = chunk->count,
                                 .items = &part->load->items[chunk->first],
                                 .small = is_small(loads, chunk)};
}

/* A chunk of the load whose turn it is, then the turn is the next one's; likewise for the parts of a load. */
static bool next_read(kvf_loads *loads, uint64_t now_ns, kvf_load_action *out)
{
  while (!kvf_list_is_empty(&loads->ready)) {
    kvf_load_entry *load = KVF_CONTAINER_OF(loads->ready.next, kvf_load_entry, ready);
    kvf_list_remove(&load->ready);
    kvf_load_part *part = KVF_CONTAINER_OF(kvf_list_pop_front(&load->ready_parts), kvf_load_part, ready);
    bool first_in_flight = kvf_list_is_empty(&part->flying);
    const kvf_load_chunk *chunk = begin_chunk(loads, part);
    if (chunk == NULL) {
      on_trouble(loads, now_ns, part, KVF_NO_MEMORY);
    } else {
      update_ready(loads, part);
      if (first_in_flight) {
        clock_start(loads, now_ns, part);
      }
    }
    if (!kvf_list_is_empty(&load->ready_parts)) {
      kvf_list_ensure_back(&loads->ready, &load->ready);
    }
    if (chunk != NULL) {
      fill_read(loads, chunk, out);
      return true;
    }
  }
  return false;
}

bool kvf_loads_next_action(kvf_loads *loads, uint64_t now_ns, kvf_load_action *out)
{
  *out = (kvf_load_action){0};
  return next_cancel(loads, out) || next_stall(loads, out) || next_ping(loads, out) || next_want(loads, out) ||
         next_read(loads, now_ns, out);
}
