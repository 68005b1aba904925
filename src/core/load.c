/* Loads of a consumer rank: their slices, chunks, stall clocks, outcome and release. */
#include "core/load.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "base/status.h"
#include "core/load_state.h"
#include "core/states.h"

/* Of a load that is cut for several readers: a chunk takes as long as to wake another thread on both sides. */
#define SPREAD_BYTES (256u << 10)

/* ---- lookups: NULL for the unknown ---- */

static kvf_load_chunk *find_chunk(const kvf_loads *loads, uint64_t read_id)
{
  kvf_load_chunk *chunk;
  HASH_FIND(by_read, loads->by_read, &read_id, sizeof(read_id), chunk);
  return chunk;
}

static kvf_open_load *find_load(const kvf_loads *loads, uint64_t request_id)
{
  kvf_open_load *load;
  HASH_FIND(by_id, loads->by_id, &request_id, sizeof(request_id), load);
  return load;
}

static uint64_t stall_timeout_ns(const kvf_loads *loads)
{
  return kvf_ms_to_ns(loads->context->config.stall_timeout_ms);
}

/* ---- chunks: which items a read takes, and what becomes of them ---- */

static uint64_t item_bytes(const kvf_slice *slice, uint32_t index)
{
  return slice->head_bytes[slice->load->items[index].group] * slice->share.heads;
}

/* How much it reads at a time. Slices that a rank's share was cut into have the readers between them. */
static void measure_slice(const kvf_loads *loads, kvf_slice *slice)
{
  const kvf_config *config = &loads->context->config;
  const kvf_pool *pool = loads->pool;
  const uint64_t chunk_bytes = pool->is_device ? config->device_chunk_bytes : config->chunk_bytes;
  const kvf_load_readers readers = {loads->readers.count / slice->load->cuts, loads->readers.spread_bytes};
  uint64_t bytes = 0;
  uint64_t largest_bytes = 1;
  kvf_pages_head_bytes(&pool->pages, &pool->rank_layout, &slice->share.layers, slice->share.dealt, slice->head_bytes);
  for (uint32_t i = 0; i < slice->load->items_count; i++) {
    uint64_t each = item_bytes(slice, i);
    bytes += each;
    largest_bytes = each > largest_bytes ? each : largest_bytes;
  }
  slice->chunk_bytes = kvf_load_chunk_bytes(bytes, largest_bytes, chunk_bytes, &readers);
}

/* Takes the first run of missing items, as long as the limits allow. */
static void take_items(kvf_slice *slice, kvf_load_chunk *chunk)
{
  const uint32_t end = slice->load->items_count;
  uint32_t next = (uint32_t)kvf_bitmap_prefix(slice->taken, end);
  assert(next < end);
  chunk->first = next;
  chunk->bytes = 0;
  do {
    chunk->bytes += item_bytes(slice, next);
    kvf_bitmap_set(slice->taken, next++);
  } while (next < end && next - chunk->first < KVF_CHUNK_ITEMS_MAX && !kvf_bitmap_get(slice->taken, next) &&
           chunk->bytes + item_bytes(slice, next) <= slice->chunk_bytes);
  chunk->count = next - chunk->first;
  slice->missing_count -= chunk->count;
}

static kvf_load_chunk *begin_chunk(kvf_loads *loads, kvf_slice *slice)
{
  assert(slice->state == SLICE_READING && slice->link_id != KVF_NO_LINK);
  assert(!kvf_list_is_empty(&slice->idle) && slice->missing_count > 0);
  kvf_load_chunk *chunk = KVF_CONTAINER_OF(slice->idle.next, kvf_load_chunk, link);
  chunk->read_id = loads->next_read_id++;
  HASH_ADD(by_read, loads->by_read, read_id, sizeof(chunk->read_id), chunk);
  if (chunk->by_read.tbl == NULL) {
    return NULL;
  }
  take_items(slice, chunk);
  chunk->link_id = slice->link_id;
  chunk->rail = kvf_peers_begin_read(loads->peers, slice->link_id);
  kvf_list_remove(&chunk->link);
  kvf_list_push_back(&slice->flying, &chunk->link);
  slice->load->reads_in_flight++;
  loads->stats.chunks++;
  slice->peer->stat.chunks++;
  slice->peer->stat.reads_in_flight++;
  return chunk;
}

static void end_chunk(kvf_loads *loads, kvf_load_chunk *chunk)
{
  kvf_open_load *load = chunk->slice->load;
  assert(load->reads_in_flight > 0);
  HASH_DELETE(by_read, loads->by_read, chunk);
  kvf_peers_end_read(loads->peers, chunk->rail);
  kvf_list_remove(&chunk->cancel);
  kvf_list_remove(&chunk->link);
  kvf_list_push_back(&chunk->slice->idle, &chunk->link);
  assert(chunk->slice->peer->stat.reads_in_flight > 0);
  load->reads_in_flight--;
  chunk->slice->peer->stat.reads_in_flight--;
}

/* Whether the other slices of its rank, if that has several, have the item as well. */
static bool is_whole(const kvf_slice *slice, uint32_t item)
{
  const kvf_open_load *load = slice->load;
  bool whole = true;
  for (uint32_t i = 0; load->cuts > 1 && whole && i < load->slices_count; i++) {
    whole = load->slices[i].peer != slice->peer || kvf_bitmap_get(load->slices[i].good, item);
  }
  return whole;
}

/* The trouble before it is over. */
static void confirm(kvf_loads *loads, const kvf_load_chunk *chunk, uint32_t count)
{
  kvf_slice *slice = chunk->slice;
  uint32_t whole = 0;
  assert(count <= chunk->count);
  slice->cause = KVF_OK;
  slice->backoff_ns = kvf_ms_to_ns(loads->context->config.backoff_min_ms);
  for (uint32_t i = 0; i < count; i++) {
    assert(kvf_bitmap_get(slice->taken, chunk->first + i) && !kvf_bitmap_get(slice->good, chunk->first + i));
    kvf_bitmap_set(slice->good, chunk->first + i);
    whole += is_whole(slice, chunk->first + i);
  }
  slice->good_count += count;
  slice->peer->stat.blocks += whole;
  loads->stats.blocks += whole;
  slice->load->is_unverified |= chunk->verified == 0;
  if (chunk->verified > 0 && (slice->load->cuts == 1 || !slice->load->is_unverified)) {
    loads->stats.verified += whole;
  } else if (loads->context->config.checksum) {
    loads->stats.unverified += whole;
  }
}

static void miss(const kvf_load_chunk *chunk, uint32_t good)
{
  kvf_slice *slice = chunk->slice;
  for (uint32_t i = good; i < chunk->count; i++) {
    assert(kvf_bitmap_get(slice->taken, chunk->first + i) && !kvf_bitmap_get(slice->good, chunk->first + i));
    kvf_bitmap_clear(slice->taken, chunk->first + i);
  }
  slice->missing_count += chunk->count - good;
}

/* Whether it is all that its load still needs, and few bytes. Not of a device, which no caller is to wait for. */
static bool is_small(const kvf_loads *loads, const kvf_load_chunk *chunk)
{
  const kvf_slice *slice = chunk->slice;
  return slice->load->slices_open == 1 && slice->load->items_count - slice->good_count == chunk->count &&
         chunk->bytes <= loads->context->config.inline_bytes && !loads->pool->is_device;
}

/* ---- slices: their states, what comes in for them, their stall clock ---- */

#define OVERSLEPT_SHARE 2 /* of the stall timeout */

static const unsigned next_states[] = {
    [SLICE_WAIT_LINK] = KVF_BIT(SLICE_READING) | KVF_BIT(SLICE_STOPPED) | KVF_BIT(SLICE_DONE), /* of no bytes */
    [SLICE_READING] = KVF_BIT(SLICE_DRAINING) | KVF_BIT(SLICE_DONE) | KVF_BIT(SLICE_STOPPED),
    [SLICE_DRAINING] = KVF_BIT(SLICE_BACKOFF) | KVF_BIT(SLICE_DONE) | KVF_BIT(SLICE_STOPPED),
    [SLICE_BACKOFF] = KVF_BIT(SLICE_WAIT_LINK) | KVF_BIT(SLICE_READING) | KVF_BIT(SLICE_STOPPED),
    [SLICE_DONE] = 0,
    [SLICE_STOPPED] = 0,
};

static void move(kvf_slice *slice, kvf_slice_state next)
{
  assert(kvf_list_is_empty(&slice->flying) || next == SLICE_DRAINING || next == SLICE_STOPPED);
  KVF_CHECK_MOVE(next_states, slice->state, next);
  slice->state = next;
}

static void update_ready(kvf_loads *loads, kvf_slice *slice)
{
  kvf_open_load *load = slice->load;
  if (slice->state == SLICE_READING && load->point == 0 && slice->missing_count > 0 &&
      !kvf_list_is_empty(&slice->idle)) {
    kvf_list_ensure_back(&load->ready_slices, &slice->ready);
    kvf_list_ensure_back(&loads->ready, &load->ready);
    return;
  }
  kvf_list_remove(&slice->ready);
  if (kvf_list_is_empty(&load->ready_slices)) {
    kvf_list_remove(&load->ready);
  }
}

static void wait_link(kvf_loads *loads, uint64_t now_ns, kvf_slice *slice)
{
  assert(slice->link_id == KVF_NO_LINK);
  kvf_peer *peer = slice->peer;
  kvf_list_push_back(&peer->slices.waiting, &slice->waiting);
  if (!peer->slices.asked) {
    peer->slices.asked = true;
    kvf_peers_want_link(loads->peers, now_ns, peer);
  }
}

static void read_through(kvf_loads *loads, kvf_slice *slice, uint32_t link_id)
{
  assert(link_id != KVF_NO_LINK);
  move(slice, SLICE_READING);
  slice->link_id = link_id;
  slice->claim.generation = slice->peer->memory.generation;
  slice->given_up = false;
  update_ready(loads, slice);
}

/* DONE or STOPPED: it needs no peer and no timer any more; its reads still end. */
static void leave(kvf_loads *loads, kvf_slice *slice, kvf_slice_state state)
{
  move(slice, state);
  update_ready(loads, slice);
  kvf_wheel_disarm(&loads->context->wheel, &slice->timer);
  kvf_list_remove(&slice->waiting);
  kvf_list_remove(&slice->by_peer);
  assert(!kvf_list_is_linked(&slice->ready));
}

/* Once: from then on the slice begins no read before these have ended. */
static void cancel_reads(kvf_loads *loads, kvf_slice *slice)
{
  if (slice->given_up) {
    return;
  }
  slice->given_up = true;
  for (kvf_list *link = slice->flying.next; link != &slice->flying; link = link->next) {
    kvf_list_push_back(&loads->cancels, &KVF_CONTAINER_OF(link, kvf_load_chunk, link)->cancel);
  }
}

/* ---- outcome and release ---- */

static const unsigned next_load_states[] = {
    [LOAD_READING] = KVF_BIT(LOAD_HELD) | KVF_BIT(LOAD_DECIDED),
    [LOAD_HELD] = KVF_BIT(LOAD_READING) | KVF_BIT(LOAD_DECIDED),
    [LOAD_DECIDED] = KVF_BIT(LOAD_RELEASED),
    [LOAD_RELEASED] = 0,
};

static void move_load(kvf_open_load *load, kvf_load_state next)
{
  KVF_CHECK_MOVE(next_load_states, load->state, next);
  load->state = next;
}

/* Leading positions, of block_tokens each, that all slices have in all groups. What is not wanted is good already. A
 * state is listed last. */
static uint32_t count_prefix(const kvf_open_load *load)
{
  size_t leading = load->items_count;
  for (uint32_t i = 0; i < load->slices_count; i++) {
    size_t good = kvf_bitmap_prefix(load->slices[i].good, load->items_count);
    leading = good < leading ? good : leading;
  }
  if (leading == load->items_count) {
    return load->report.blocks;
  }
  const kvf_transfer_item *missing = &load->items[leading];
  const uint32_t each = load->blocks_each[missing->group];
  return each > 0 ? missing->position / each : load->positions - 1;
}

/* By the first slice from `slice` on that is not done. A load that was aborted says nothing of its peer. */
static void count_failed(kvf_loads *loads, uint64_t now_ns, const kvf_open_load *load, const kvf_slice *slice,
                         kvf_status status)
{
  while (slice->state == SLICE_DONE) {
    slice++;
  }
  slice->peer->stat.loads[kvf_status_index(status)]++;
  if (status != KVF_ABORTED) {
    slice->peer->stat.last_failure = status;
    slice->peer->last_failure_ns = now_ns;
    kvf_histogram_add(&loads->stats.detection_ns, now_ns - load->byte_ns);
  }
}

static uint64_t release_by_ns(const kvf_loads *loads, const kvf_open_load *load)
{
  return kvf_time_add(load->decided_ns, kvf_ms_to_ns(loads->context->config.release_timeout_ms));
}

static void tell(kvf_loads *loads, kvf_open_load *load)
{
  move_load(load, LOAD_DECIDED);
  load->outcome_due = true;
  loads->stats.outcomes[kvf_status_index(load->report.status)]++;
  kvf_list_ensure_back(&loads->events, &load->event);
  kvf_wheel_arm(&loads->context->wheel, &load->timer, release_by_ns(loads, load));
}

/* Lets go of its present source, of which no read can touch its items any more. */
static void drop_source(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load)
{
  for (uint32_t i = 0; i < load->slices_count && load->slices[i].peer != NULL; i++) {
    kvf_wheel_disarm(&loads->context->wheel, &load->slices[i].timer);
    kvf_peers_release(loads->peers, now_ns, load->slices[i].peer);
  }
  free(load->slices);
  free(load->items);
  load->slices = NULL;
  load->items = NULL;
  load->slices_count = 0;
}

static void release(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load)
{
  assert(load->reads_in_flight == 0);
  move_load(load, LOAD_RELEASED);
  kvf_wheel_disarm(&loads->context->wheel, &load->timer);
  if (load->is_stuck) {
    loads->stats.stuck--;
    loads->stats.stuck_blocks -= load->items_count;
  }
  drop_source(loads, now_ns, load);
  kvf_list_ensure_back(&loads->events, &load->event);
}

/* Once it is decided and none of its reads is in flight, no block that it wanted is written to any more. */
static void settle(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load)
{
  if (load->state == LOAD_READING || load->reads_in_flight > 0) {
    return;
  }
  if (load->state == LOAD_HELD) {
    kvf_list_ensure_back(&loads->going_on, &load->going_on);
  } else {
    release(loads, now_ns, load);
  }
}

/* Its present source is. The outcome is reported, or held back if there is another source. A load that still reads at
 * the end of release_timeout_ms makes the node unhealthy; its outcome must come before that. */
static void decide(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load, const kvf_slice *slice, kvf_status status)
{
  assert(load->state == LOAD_READING);
  assert((status == KVF_OK) == (load->slices_open == 0));
  load->decided_ns = now_ns;
  /* An outcome is never "the call was wrong", even if a transport reports that. */
  load->report.status = kvf_status_describe(status)->lost == KVF_LOST_CALL ? KVF_TRANSFER_FAILED : status;
  load->report.prefix = count_prefix(load);
  assert(load->report.prefix <= load->report.blocks);
  if (status == KVF_OK) {
    kvf_histogram_add(&loads->stats.load_ns, now_ns - load->begun_ns);
    kvf_histogram_add(&loads->stats.load_bytes, load->bytes);
  } else {
    count_failed(loads, now_ns, load, slice != NULL ? slice : load->slices, (kvf_status)load->report.status);
  }
  for (uint32_t i = 0; i < load->slices_count; i++) {
    const bool is_counted = i > 0 && load->slices[i].peer == load->slices[i - 1].peer;
    load->slices[i].peer->stat.loads[kvf_status_index(KVF_OK)] += status == KVF_OK && !is_counted;
    if (load->slices[i].state != SLICE_DONE) {
      cancel_reads(loads, &load->slices[i]);
      leave(loads, &load->slices[i], SLICE_STOPPED);
    }
  }
  if (status != KVF_OK && kvf_status_describe(load->report.status)->retry_elsewhere && now_ns < load->deadline_ns &&
      kvf_attempts_has_next(load->others)) {
    move_load(load, LOAD_HELD);
    kvf_wheel_arm(&loads->context->wheel, &load->timer, kvf_time_min(release_by_ns(loads, load), load->deadline_ns));
  } else {
    tell(loads, load);
  }
  settle(loads, now_ns, load);
}

static void give_up(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load)
{
  free(load->others);
  load->others = NULL;
  if (load->state == LOAD_HELD) {
    load->report.status = KVF_ABORTED;
    tell(loads, load);
  } else if (load->state == LOAD_READING) {
    decide(loads, now_ns, load, NULL, KVF_ABORTED);
  }
}

static void load_free(kvf_loads *loads, kvf_open_load *load)
{
  HASH_DELETE(by_id, loads->by_id, load);
  kvf_wheel_disarm(&loads->context->wheel, &load->timer);
  drop_source(loads, 0, load); /* it has one only if the node goes, with all that times are for */
  free(load->others);
  free(load);
}

bool kvf_loads_next_event(kvf_loads *loads, kvf_event *out)
{
  if (kvf_list_is_empty(&loads->events)) {
    return false;
  }
  kvf_open_load *load = KVF_CONTAINER_OF(loads->events.next, kvf_open_load, event);
  *out = (kvf_event){.kind = KVF_EVENT_RELEASED, .id = load->report.request_id, .user = load->user};
  if (load->outcome_due) {
    out->kind = KVF_EVENT_LOAD;
    out->u.report = load->report;
    load->outcome_due = false;
    if (load->state != LOAD_RELEASED) {
      kvf_list_remove(&load->event);
    }
    return true;
  }
  assert(load->state == LOAD_RELEASED);
  kvf_list_remove(&load->event);
  load_free(loads, load);
  return true;
}

/* ---- trouble ---- */

static bool clock_runs(const kvf_slice *slice)
{
  assert(!slice->given_up || slice->state != SLICE_READING);
  return (slice->state == SLICE_READING || slice->state == SLICE_DRAINING) && !slice->given_up &&
         !kvf_list_is_empty(&slice->flying);
}

/* At least half of the longest, which is twice as long each time. */
static uint64_t next_pause_ns(kvf_loads *loads, kvf_slice *slice)
{
  const uint64_t max_ns = kvf_ms_to_ns(loads->context->config.backoff_max_ms);
  uint64_t longest_ns = slice->backoff_ns;
  slice->backoff_ns = longest_ns > max_ns / 2 ? max_ns : 2 * longest_ns;
  return longest_ns - kvf_prng_below(&loads->jitter, longest_ns / 2 + 1);
}

/* After the end of a read, or a loss of the link: without reads in flight the clock stops, and a slice that drains
 * pauses. */
static void settle_slice(kvf_loads *loads, uint64_t now_ns, kvf_slice *slice)
{
  if (!clock_runs(slice) && slice->state != SLICE_BACKOFF) {
    kvf_wheel_disarm(&loads->context->wheel, &slice->timer);
  }
  if (slice->state == SLICE_DRAINING && kvf_list_is_empty(&slice->flying)) {
    move(slice, SLICE_BACKOFF);
    loads->stats.retries++;
    slice->peer->stat.retries++;
    kvf_wheel_arm(&loads->context->wheel, &slice->timer, kvf_time_add(now_ns, next_pause_ns(loads, slice)));
  }
  update_ready(loads, slice);
}

/* No new reads until those in flight have ended and a pause is over. */
static void drain(kvf_loads *loads, uint64_t now_ns, kvf_slice *slice)
{
  if (slice->state == SLICE_READING) {
    move(slice, SLICE_DRAINING);
  }
  settle_slice(loads, now_ns, slice);
}

/* The link has failed the slice. KVF_CANCELLED says nothing about the cause. */
static void on_trouble(kvf_loads *loads, uint64_t now_ns, kvf_slice *slice, kvf_status cause)
{
  if (slice->cause == KVF_OK && cause != KVF_CANCELLED) {
    slice->cause = cause;
  }
  slice->link_id = KVF_NO_LINK;
  drain(loads, now_ns, slice);
}

/* ---- the stall clock: runs while reads are in flight, until it has run out ---- */

static void clock_start(kvf_loads *loads, uint64_t now_ns, kvf_slice *slice)
{
  slice->progress_ns = now_ns;
  slice->begun_anew = false;
  slice->ping = 0;
  kvf_wheel_arm(&loads->context->wheel, &slice->timer, kvf_time_add(now_ns, stall_timeout_ns(loads) / 2));
}

/* While no ping is out, the timer is left as it is: it looks again when it fires. */
static void clock_progress(kvf_loads *loads, uint64_t now_ns, kvf_slice *slice)
{
  slice->progress_ns = now_ns;
  slice->begun_anew = false;
  slice->load->byte_ns = now_ns;
  if (slice->ping != 0) {
    clock_start(loads, now_ns, slice);
  }
}

/* Slices of one peer that fall silent together share a ping. */
static void ping_peer(kvf_loads *loads, uint64_t now_ns, kvf_slice *slice)
{
  kvf_peer_slices *of_peer = &slice->peer->slices;
  if (of_peer->pings == 0 || now_ns - of_peer->pinged_ns >= stall_timeout_ns(loads) / 2) {
    of_peer->pings++;
    of_peer->pinged_ns = now_ns;
    loads->stats.pings++;
    kvf_peers_ping(loads->peers, slice->peer);
  }
  slice->ping = of_peer->pings;
  slice->pinged_ns = of_peer->pinged_ns;
}

/* When the silence, if it lasts, becomes a stall. */
static uint64_t stall_at(const kvf_loads *loads, const kvf_slice *slice)
{
  assert(slice->ping != 0 && slice->ping <= slice->peer->slices.pings);
  uint64_t stall_ns = stall_timeout_ns(loads);
  uint64_t last_ns = kvf_time_add(slice->progress_ns, 2 * stall_ns);
  if (slice->peer->slices.answered >= slice->ping) {
    return last_ns;
  }
  uint64_t at_ns = kvf_time_add(slice->progress_ns, stall_ns);
  uint64_t pong_due_ns = kvf_time_add(slice->pinged_ns, stall_ns / 2);
  return kvf_time_min(pong_due_ns > at_ns ? pong_due_ns : at_ns, last_ns);
}

static void on_stall(kvf_loads *loads, uint64_t now_ns, kvf_slice *slice)
{
  assert(!kvf_list_is_empty(&slice->flying));
  uint32_t link_id = KVF_CONTAINER_OF(slice->flying.next, kvf_load_chunk, link)->link_id; /* that of all its reads */
  bool answered = slice->peer->slices.answered >= slice->ping;
  loads->stats.stalls++;
  slice->peer->stat.stalls++;
  if (slice->peer->slices.stalled_link_id != link_id) {
    bool silent = !answered && now_ns - slice->pinged_ns >= stall_timeout_ns(loads) / 2;
    slice->peer->slices.stalled_link_id = link_id;
    kvf_peers_link_stalled(loads->peers, now_ns, link_id, silent);
  }
  cancel_reads(loads, slice);
  on_trouble(loads, now_ns, slice, KVF_TRANSFER_STALLED);
}

static void on_clock(kvf_loads *loads, uint64_t now_ns, kvf_slice *slice)
{
  /* A clock that is read this late means that this process itself did not run. Bytes that the peer has sent meanwhile
   * may wait in our own buffers. So the silence begins anew, with another ping. This is done once only: else a process
   * that rarely runs would wait for a dead peer until the deadline. */
  if (!slice->begun_anew && now_ns - slice->timer.expires_ns >= stall_timeout_ns(loads) / OVERSLEPT_SHARE) {
    uint64_t silent_since_ns = now_ns - stall_timeout_ns(loads) / 2;
    slice->progress_ns = slice->progress_ns > silent_since_ns ? slice->progress_ns : silent_since_ns;
    slice->begun_anew = true;
    slice->ping = 0;
  }
  uint64_t due_ns = kvf_time_add(slice->progress_ns, stall_timeout_ns(loads) / 2);
  if (slice->ping == 0 && now_ns >= due_ns) {
    ping_peer(loads, now_ns, slice);
  }
  if (slice->ping != 0) {
    due_ns = stall_at(loads, slice);
  }
  if (now_ns < due_ns) {
    kvf_wheel_arm(&loads->context->wheel, &slice->timer, due_ns);
  } else {
    on_stall(loads, now_ns, slice);
  }
}

static void on_slice_timer(kvf_loads *loads, uint64_t now_ns, kvf_slice *slice)
{
  if (slice->state != SLICE_BACKOFF) {
    assert(clock_runs(slice));
    on_clock(loads, now_ns, slice);
  } else if (slice->link_id != KVF_NO_LINK) {
    read_through(loads, slice, slice->link_id);
  } else {
    move(slice, SLICE_WAIT_LINK);
    wait_link(loads, now_ns, slice);
  }
}

/* ---- what comes in ---- */

static kvf_log_prefix prefix_of(const kvf_open_load *load)
{
  return kvf_log_request_prefix((kvf_log_request){.id = load->report.request_id, .name = load->name});
}

/* The first trouble is the cause; but a connection that broke is only how the end of the peer's process was heard of.
 */
static kvf_status cause_of_refusal(const kvf_slice *slice, kvf_status status)
{
  bool peer_is_gone = status == KVF_PEER_DOWN || status == KVF_PEER_RESTARTED;
  return slice->cause == KVF_OK || (slice->cause == KVF_TRANSFER_FAILED && peer_is_gone) ? status : slice->cause;
}

/* Or some tokens would come twice, and others not at all. */
static bool deals_as_others(const kvf_slice *slice)
{
  const kvf_deal *deal = &slice->peer->memory.rank_layout.deal;
  uint32_t *tokens = &slice->load->deal_tokens;
  *tokens = *tokens == 0 && deal->ranks > 1 ? deal->tokens : *tokens;
  return deal->ranks <= 1 || deal->tokens == *tokens;
}

/* The ticket's description of a rank may be older than the rank's memory. Then blocks would count as good although a
 * layer, head or token of them never comes. */
static bool is_as_planned(kvf_loads *loads, uint64_t now_ns, const kvf_slice *slice)
{
  const kvf_layers *layers = &slice->peer->memory.rank_layout.layers;
  char address[KVF_ADDRESS_TEXT_BYTES];
  if (kvf_rank_share_is_held(&slice->share, &loads->pool->rank_layout, &slice->peer->memory.rank_layout) &&
      deals_as_others(slice)) {
    return true;
  }
  kvf_address_format(&slice->peer->key.address, address);
  kvf_context_log(loads->context, now_ns, KVF_INCOMPATIBLE, slice->peer->stat.id, KVF_LOG_WARN,
                  "%sincompatible: the rank %s differs from its engine's ticket, or from another of its ranks: it has "
                  "%u layers from %u on, heads from %u on, and tokens of rank %u of %u, %u at a time",
                  prefix_of(slice->load).text, address, layers->count, layers->first,
                  slice->peer->memory.rank_layout.share.first_head, slice->peer->memory.rank_layout.deal.rank,
                  slice->peer->memory.rank_layout.deal.ranks, slice->peer->memory.rank_layout.deal.tokens);
  return false;
}

void kvf_loads_on_link(kvf_loads *loads, uint64_t now_ns, kvf_peer *peer, uint32_t link_id, kvf_status status)
{
  kvf_peer_slices *of_peer = &peer->slices;
  of_peer->asked = false;
  while (!kvf_list_is_empty(&of_peer->waiting)) {
    kvf_slice *slice = KVF_CONTAINER_OF(of_peer->waiting.next, kvf_slice, waiting);
    if (status != KVF_OK) {
      decide(loads, now_ns, slice->load, slice, cause_of_refusal(slice, status));
    } else if (!is_as_planned(loads, now_ns, slice)) {
      decide(loads, now_ns, slice->load, slice, KVF_INCOMPATIBLE);
    } else {
      assert(link_id != KVF_NO_LINK);
      kvf_list_remove(&slice->waiting);
      read_through(loads, slice, link_id);
    }
  }
}

void kvf_loads_on_link_down(kvf_loads *loads, uint64_t now_ns, const kvf_peer *peer)
{
  for (kvf_list *link = peer->slices.all.next; link != &peer->slices.all; link = link->next) {
    kvf_slice *slice = KVF_CONTAINER_OF(link, kvf_slice, by_peer);
    if (slice->link_id != KVF_NO_LINK && !kvf_peer_has_link(peer, slice->link_id)) {
      on_trouble(loads, now_ns, slice, KVF_CANCELLED);
    }
  }
}

static bool is_final(kvf_status status)
{
  return status == KVF_LEASE_EXPIRED || status == KVF_LEASE_UNKNOWN || status == KVF_BAD_TICKET ||
         status == KVF_PEER_RESTARTED || status == KVF_INCOMPATIBLE;
}

static void on_confirmed(kvf_loads *loads, uint64_t now_ns, kvf_load_chunk *chunk)
{
  kvf_slice *slice = chunk->slice;
  confirm(loads, chunk, chunk->count);
  if (slice->good_count < slice->load->items_count) {
    settle_slice(loads, now_ns, slice);
    return;
  }
  leave(loads, slice, SLICE_DONE);
  if (--slice->load->slices_open == 0) {
    decide(loads, now_ns, slice->load, slice, KVF_OK);
  }
}

/* The fence was good, and a block came that is not what the producer published. What came before it is good. The block
 * gets one more try, which helps if the bytes were changed in transit, and not if they are wrong in the producer's
 * memory. */
static void on_mismatch(kvf_loads *loads, uint64_t now_ns, const kvf_load_chunk *chunk)
{
  kvf_slice *slice = chunk->slice;
  uint32_t good = chunk->verified < chunk->count ? chunk->verified : chunk->count - 1;
  uint32_t wrong = chunk->first + good;
  loads->stats.mismatches++;
  if (good > 0) {
    confirm(loads, chunk, good);
  }
  miss(chunk, good);
  if (kvf_bitmap_get(slice->wrong, wrong)) {
    decide(loads, now_ns, slice->load, slice, KVF_CHECKSUM);
    return;
  }
  kvf_bitmap_set(slice->wrong, wrong);
  on_trouble(loads, now_ns, slice, KVF_CHECKSUM);
}

void kvf_loads_on_read_done(kvf_loads *loads, uint64_t now_ns, uint64_t read_id, kvf_status status, uint32_t verified,
                            const kvf_fence_sample *sample, uint64_t bytes)
{
  kvf_load_chunk *chunk = find_chunk(loads, read_id);
  if (chunk == NULL) {
    loads->stats.late++;
    return;
  }
  kvf_slice *slice = chunk->slice;
  end_chunk(loads, chunk);
  loads->stats.bytes += bytes;
  slice->peer->stat.bytes += bytes;
  slice->load->bytes += bytes;
  if (slice->load->state != LOAD_READING) {
    settle(loads, now_ns, slice->load);
    return;
  }
  if (status == KVF_INVALID) {
    status = KVF_BAD_TICKET; /* ours were checked at the start: it is the peer that has no such blocks */
  }
  chunk->verified = sample == NULL ? 0 : verified; /* says nothing without the fence */
  if (status == KVF_OK || (status == KVF_CHECKSUM && sample != NULL)) {
    clock_progress(loads, now_ns, slice);
    kvf_status fence = kvf_fence_check(sample, &slice->claim);
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
    decide(loads, now_ns, slice->load, slice, status);
  } else if (status == KVF_NOT_PUBLISHED) {
    drain(loads, now_ns, slice);
  } else if (status == KVF_AGAIN) {
    kvf_peers_link_is_stale(loads->peers, now_ns, chunk->link_id);
    on_trouble(loads, now_ns, slice, KVF_CANCELLED); /* it is nobody's fault */
  } else {
    on_trouble(loads, now_ns, slice, status);
  }
}

void kvf_loads_on_read_progress(kvf_loads *loads, uint64_t now_ns, uint64_t read_id)
{
  kvf_load_chunk *chunk = find_chunk(loads, read_id);
  if (chunk != NULL && clock_runs(chunk->slice)) {
    clock_progress(loads, now_ns, chunk->slice);
  }
}

/* ---- start: from the first source, then from others ---- */

/* The slices with their chunks and bitmaps, in one allocation. */
static kvf_status alloc_slices(const kvf_loads *loads, kvf_open_load *load, size_t slices_count)
{
  assert(slices_count > 0 && load->cuts > 0);
  const size_t chunks_each = loads->context->config.chunks_in_flight / load->cuts;
  const size_t words = kvf_bitmap_words(load->items_count);
  const size_t chunks_at = slices_count * sizeof(kvf_slice);
  const size_t bitmaps_at = chunks_at + slices_count * chunks_each * sizeof(kvf_load_chunk);
  char *memory = calloc(1, bitmaps_at + slices_count * 3 * words * sizeof(uint64_t));
  if (memory == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_load_chunk *chunks = (void *)(memory + chunks_at);
  uint64_t *bitmaps = (void *)(memory + bitmaps_at);
  load->slices = (void *)memory;
  load->slices_count = (uint32_t)slices_count;
  for (size_t i = 0; i < slices_count; i++) {
    kvf_slice *slice = &load->slices[i];
    kvf_list_init(&slice->by_peer);
    kvf_list_init(&slice->waiting);
    kvf_list_init(&slice->ready);
    kvf_list_init(&slice->flying);
    kvf_list_init(&slice->idle);
    kvf_timer_init(&slice->timer, KVF_TIMER_SLICE);
    for (size_t k = 0; k < chunks_each; k++, chunks++) {
      chunks->slice = slice;
      kvf_list_init(&chunks->link);
      kvf_list_init(&chunks->cancel);
      kvf_list_push_back(&slice->idle, &chunks->link);
    }
    slice->good = bitmaps + i * 3 * words;
    slice->taken = slice->good + words;
    slice->wrong = slice->taken + words;
  }
  return KVF_OK;
}

/* What `part` of the ticket's blocks this slice reads, from a peer that it holds from here on. */
static kvf_status fill_slice(kvf_loads *loads, kvf_open_load *load, kvf_slice *slice, const kvf_rank_share *part,
                             const kvf_ticket *ticket, uint64_t digest)
{
  const kvf_rank_record *record = &ticket->rank[part->rank];
  kvf_status status = kvf_peers_acquire_rank(loads->peers, record, &slice->peer);
  if (status != KVF_OK) {
    return status;
  }
  slice->load = load;
  slice->claim = (kvf_fence_claim){.incarnation = record->incarnation, .lease_id = ticket->lease.id, .digest = digest};
  slice->share = *part;
  slice->missing_count = load->items_count;
  slice->backoff_ns = kvf_ms_to_ns(loads->context->config.backoff_min_ms);
  return KVF_OK;
}

/* Nothing can fail from here on. */
static void begin(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load)
{
  assert(load->reads_in_flight == 0 && load->items != NULL);
  if (load->state == LOAD_HELD) {
    move_load(load, LOAD_READING);
  }
  load->is_unverified = false;
  load->byte_ns = now_ns;
  load->bytes = 0;
  if (load->items_count == 0) {
    for (uint32_t i = 0; i < load->slices_count; i++) {
      move(&load->slices[i], SLICE_DONE);
    }
    decide(loads, now_ns, load, NULL, KVF_OK);
    return;
  }
  load->slices_open = load->slices_count;
  kvf_wheel_arm(&loads->context->wheel, &load->timer, load->deadline_ns);
  for (uint32_t i = 0; i < load->slices_count; i++) {
    kvf_slice *slice = &load->slices[i];
    measure_slice(loads, slice);
    kvf_list_push_back(&slice->peer->slices.all, &slice->by_peer);
    loads->peers->has_loads = true;
    wait_link(loads, now_ns, slice);
  }
}

static kvf_status plan_slices(const kvf_loads *loads, uint64_t now_ns, const kvf_open_load *load,
                              const kvf_ticket *ticket, uint64_t turn, kvf_load_plan *plan)
{
  const kvf_pool *pool = loads->pool;
  char message[KVF_MESSAGE_BYTES_MAX];
  uint32_t wanted[KVF_GROUPS_MAX] = {0};
  kvf_status status = kvf_stage_shares(&pool->pages, &pool->rank_layout, ticket->rank, ticket->ranks, turn,
                                       plan->shares, &plan->count, message);
  if (status != KVF_OK) {
    char address[KVF_ADDRESS_TEXT_BYTES];
    kvf_address_format(&ticket->rank[0].address, address);
    kvf_context_log(loads->context, now_ns, status, 0, KVF_LOG_WARN, "%scannot be loaded from %s: %s: %s",
                    prefix_of(load).text, address, kvf_status_name(status), message);
    return kvf_because(status, "cannot be loaded from %s: %.160s", address, message);
  }
  for (uint32_t i = 0; i < load->items_count; i++) {
    wanted[load->items[i].group]++;
  }
  kvf_load_plan_cut(plan, &pool->pages, &pool->rank_layout, wanted, &loads->readers);
  return KVF_OK;
}

/* What of the ticket's blocks is wanted, with room for it. */
static kvf_status choose_items(kvf_open_load *load, const kvf_ticket *ticket, const uint32_t *destination)
{
  load->items = malloc(load->report.blocks * sizeof(load->items[0]));
  if (load->items == NULL) {
    return KVF_NO_MEMORY;
  }
  load->lease = ticket->lease;
  load->deal_tokens = 0;
  for (uint32_t group = 0; group < ticket->groups; group++) {
    load->blocks_each[group] = kvf_ticket_blocks_each(ticket, group);
  }
  load->positions = kvf_ticket_positions(ticket->prompt.tokens, ticket->block_tokens);
  load->items_count = kvf_load_plan_items(ticket, load->report.prefix, destination, load->items);
  return KVF_OK;
}

/* Reads from this source what no earlier one has brought. Lease ids of one producer follow each other, so that many
 * loads spread evenly over its replicas. */
static kvf_status read_source(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load, const kvf_attempt *source)
{
  const kvf_ticket *ticket = source->ticket;
  const uint64_t turn = ticket->lease.id + loads->context->config.rank + source->is_again;
  kvf_load_plan plan;
  kvf_status status = choose_items(load, ticket, source->destination);
  if (status == KVF_OK) {
    status = plan_slices(loads, now_ns, load, ticket, turn, &plan);
  }
  if (status == KVF_OK) {
    load->cuts = plan.cuts;
    status = alloc_slices(loads, load, plan.count);
  }
  for (uint32_t i = 0; status == KVF_OK && i < plan.count; i++) {
    status = fill_slice(loads, load, &load->slices[i], &plan.shares[i], ticket, source->digest);
  }
  if (status == KVF_OK) {
    begin(loads, now_ns, load);
  } else {
    drop_source(loads, now_ns, load);
  }
  return status;
}

/* NULL: there is no memory. */
static kvf_open_load *create(kvf_loads *loads, uint64_t now_ns, const kvf_sources *sources, const kvf_load_params *spec,
                             uint64_t point)
{
  const kvf_config *config = &loads->context->config;
  kvf_open_load *load = calloc(1, sizeof(*load));
  if (load == NULL) {
    return NULL;
  }
  load->user = spec->user;
  load->point = point;
  load->begun_ns = now_ns;
  load->deadline_ns =
      kvf_time_add(now_ns, kvf_ms_to_ns(spec->timeout_ms == 0 ? config->load_timeout_ms : spec->timeout_ms));
  kvf_log_copy_name(load->name, spec->name);
  load->report.request_id = spec->request_id;
  load->report.ranks_mask = UINT64_C(1) << config->rank;
  load->report.blocks = (uint32_t)kvf_ticket_all_positions(sources->tickets[0]);
  kvf_list_init(&load->event);
  kvf_list_init(&load->going_on);
  kvf_list_init(&load->ready);
  kvf_list_init(&load->ready_slices);
  kvf_timer_init(&load->timer, KVF_TIMER_LOAD);
  if (kvf_attempts_keep(sources, loads->pool, &spec->destination, &load->others) == KVF_OK) {
    HASH_ADD(by_id, loads->by_id, report.request_id, sizeof(load->report.request_id), load);
  }
  if (load->by_id.tbl == NULL) {
    free(load->others);
    free(load);
    return NULL;
  }
  return load;
}

/* Goes on after `failed` from the next source, or other ranks of one, that can be read from; false if there is none. */
static bool go_on(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load, const kvf_address *failed)
{
  char from[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(failed, from);
  drop_source(loads, now_ns, load);
  while (kvf_attempts_has_next(load->others)) {
    const kvf_attempt source = kvf_attempts_next(load->others);
    if (read_source(loads, now_ns, load, &source) == KVF_OK) {
      char to[KVF_ADDRESS_TEXT_BYTES] = "";
      if (load->slices_count > 0) {
        kvf_address_format(&load->slices[0].peer->key.address, to);
      }
      loads->stats.source_switches++;
      kvf_context_log(loads->context, now_ns, load->report.status,
                      load->slices_count > 0 ? load->slices[0].peer->stat.id : 0, KVF_LOG_WARN,
                      "%s%s at %s: %u of %u blocks were loaded, the others come from %s", prefix_of(load).text,
                      kvf_status_name(load->report.status), from, load->report.prefix, load->report.blocks, to);
      return true;
    }
  }
  return false;
}

kvf_status kvf_loads_start(kvf_loads *loads, uint64_t now_ns, const kvf_sources *sources, const kvf_load_params *load,
                           uint64_t point)
{
  kvf_sources good;
  const kvf_log_request asked = {.id = load->request_id, .name = load->name};
  kvf_status status = kvf_sources_judge(loads->context, now_ns, asked, sources, &load->prompt, &good);
  if (status == KVF_OK) {
    status = kvf_pool_check_destination(loads->pool, good.tickets[0], &load->destination);
  }
  if (status != KVF_OK) {
    return status;
  }
  if (find_load(loads, load->request_id) != NULL) {
    return kvf_because(KVF_EXISTS, "the load of request %llu is not released yet",
                       (unsigned long long)load->request_id);
  }
  if (HASH_CNT(by_id, loads->by_id) >= loads->context->config.loads_max) {
    return kvf_because(KVF_NO_RESOURCE, "%u loads are open, as many as loads_max allows",
                       (unsigned)loads->context->config.loads_max);
  }
  kvf_open_load *open = create(loads, now_ns, &good, load, point);
  if (open == NULL) {
    return KVF_NO_MEMORY;
  }
  const kvf_attempt first = {good.tickets[0], good.digests[0], load->destination.ids, false};
  status = read_source(loads, now_ns, open, &first);
  if (status != KVF_OK && kvf_status_describe(status)->retry_elsewhere) {
    open->report.status = status;
    status = go_on(loads, now_ns, open, &first.ticket->rank[0].address) ? KVF_OK : status;
  }
  if (status != KVF_OK) {
    loads->stats.outcomes[kvf_status_index(status)]++; /* no event comes that would count it */
    load_free(loads, open);
  }
  return status;
}

void kvf_loads_go_on(kvf_loads *loads, uint64_t now_ns)
{
  kvf_list *link;
  while ((link = kvf_list_pop_front(&loads->going_on)) != NULL) {
    kvf_open_load *load = KVF_CONTAINER_OF(link, kvf_open_load, going_on);
    if (load->state == LOAD_HELD) {
      assert(load->slices_count > 0); /* it is held because the source that it has failed */
      const kvf_address failed = load->slices[0].peer->key.address;
      if (now_ns < load->deadline_ns && go_on(loads, now_ns, load, &failed)) {
        continue;
      }
      tell(loads, load);
    }
    release(loads, now_ns, load);
  }
}

void kvf_loads_on_point(kvf_loads *loads, uint64_t request_id, uint64_t point)
{
  kvf_open_load *load = find_load(loads, request_id);
  if (load == NULL || load->point != point) {
    return;
  }
  load->point = 0;
  for (uint32_t i = 0; i < load->slices_count; i++) {
    update_ready(loads, &load->slices[i]);
  }
}

kvf_status kvf_loads_abort(kvf_loads *loads, uint64_t now_ns, uint64_t request_id)
{
  kvf_open_load *load = find_load(loads, request_id);
  if (load == NULL) {
    return kvf_because(KVF_NOT_FOUND, "no load of request %llu: released already, or not started here",
                       (unsigned long long)request_id);
  }
  give_up(loads, now_ns, load);
  return KVF_OK;
}

void kvf_loads_abort_all(kvf_loads *loads, uint64_t now_ns)
{
  kvf_open_load *load;
  kvf_open_load *next;
  HASH_ITER(by_id, loads->by_id, load, next)
  {
    give_up(loads, now_ns, load);
  }
}

bool kvf_loads_is_stuck(const kvf_loads *loads, uint64_t request_id)
{
  const kvf_open_load *load = find_load(loads, request_id);
  return load != NULL && load->is_stuck;
}

uint32_t kvf_loads_open(const kvf_loads *loads)
{
  return HASH_CNT(by_id, loads->by_id);
}

void kvf_loads_init(kvf_loads *loads, kvf_context *context, kvf_peers *peers, const kvf_pool *pool, uint64_t seed)
{
  const kvf_config *config = &context->config;
  const uint32_t readers = config->tcp_streams > config->copy_threads ? config->tcp_streams : config->copy_threads;
  memset(loads, 0, sizeof(*loads));
  loads->context = context;
  loads->peers = peers;
  loads->pool = pool;
  loads->readers.count = readers < config->chunks_in_flight ? readers : config->chunks_in_flight;
  loads->readers.spread_bytes = config->inline_bytes > SPREAD_BYTES ? config->inline_bytes : SPREAD_BYTES;
  loads->jitter.state = seed;
  loads->next_read_id = 1;
  kvf_histogram_init_ns(&loads->stats.load_ns, "load_ns");
  kvf_histogram_init_bytes(&loads->stats.load_bytes, "load_bytes");
  kvf_histogram_init_ns(&loads->stats.detection_ns, "detection_ns");
  kvf_list_init(&loads->ready);
  kvf_list_init(&loads->cancels);
  kvf_list_init(&loads->going_on);
  kvf_list_init(&loads->events);
}

void kvf_loads_free(kvf_loads *loads)
{
  kvf_open_load *load;
  kvf_open_load *next;
  HASH_CLEAR(by_read, loads->by_read);
  HASH_ITER(by_id, loads->by_id, load, next)
  {
    load_free(loads, load);
  }
}

/* ---- time ---- */

static void on_load_timer(kvf_loads *loads, uint64_t now_ns, kvf_open_load *load)
{
  if (load->state == LOAD_READING) {
    decide(loads, now_ns, load, NULL, KVF_DEADLINE);
  } else if (load->state == LOAD_HELD) {
    tell(loads, load);
  } else {
    assert(load->state == LOAD_DECIDED);
    load->is_stuck = true;
    loads->stats.stuck++;
    loads->stats.stuck_blocks += load->items_count;
  }
}

void kvf_loads_on_timer(kvf_loads *loads, uint64_t now_ns, kvf_timer *timer)
{
  if (timer->kind == KVF_TIMER_LOAD) {
    on_load_timer(loads, now_ns, KVF_CONTAINER_OF(timer, kvf_open_load, timer));
  } else {
    on_slice_timer(loads, now_ns, KVF_CONTAINER_OF(timer, kvf_slice, timer));
  }
}

/* ---- what the caller is to do next ---- */

bool kvf_loads_next_cancel(kvf_loads *loads, kvf_load_read *out)
{
  kvf_list *link = kvf_list_pop_front(&loads->cancels);
  if (link == NULL) {
    return false;
  }
  const kvf_load_chunk *chunk = KVF_CONTAINER_OF(link, kvf_load_chunk, cancel);
  *out = (kvf_load_read){.link_id = chunk->link_id, .rail = chunk->rail.index, .transfer = {.id = chunk->read_id}};
  return true;
}

/* A chunk of the load, and of its slice, whose turn it is; then the turn is the next one's. */
bool kvf_loads_next_read(kvf_loads *loads, uint64_t now_ns, kvf_load_read *out)
{
  while (!kvf_list_is_empty(&loads->ready)) {
    kvf_open_load *load = KVF_CONTAINER_OF(loads->ready.next, kvf_open_load, ready);
    kvf_list_remove(&load->ready);
    kvf_slice *slice = KVF_CONTAINER_OF(kvf_list_pop_front(&load->ready_slices), kvf_slice, ready);
    bool first_in_flight = kvf_list_is_empty(&slice->flying);
    const kvf_load_chunk *chunk = begin_chunk(loads, slice);
    if (chunk == NULL) {
      on_trouble(loads, now_ns, slice, KVF_NO_MEMORY);
    } else {
      update_ready(loads, slice);
      if (first_in_flight) {
        clock_start(loads, now_ns, slice);
      }
    }
    if (!kvf_list_is_empty(&load->ready_slices)) {
      kvf_list_ensure_back(&loads->ready, &load->ready);
    }
    if (chunk != NULL) {
      *out = (kvf_load_read){.link_id = chunk->link_id,
                             .rail = chunk->rail.index,
                             .transfer = {.id = chunk->read_id,
                                          .lease = load->lease,
                                          .remote_head = slice->share.remote_head,
                                          .local_head = slice->share.local_head,
                                          .heads = slice->share.heads,
                                          .layers = slice->share.layers,
                                          .items_count = chunk->count,
                                          .items = &load->items[chunk->first],
                                          .small = is_small(loads, chunk)}};
      return true;
    }
  }
  return false;
}
