/* A part of a load: its states, what comes in for it, its stall clock. */
#include <assert.h>

#include "core/load_internal.h"

#include "base/bitmap.h"

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

void kvf_part_update_ready(kvf_loads *loads, kvf_load_part *part)
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

static void queue_for_path(kvf_loads *loads, kvf_load_part *part)
{
  kvf_load_peer *peer = part->peer;
  kvf_list_push_back(&peer->waiting, &part->waiting);
  if (!peer->asked) {
    kvf_list_ensure_back(&loads->wants, &peer->want);
  }
}

void kvf_part_wait_path(kvf_loads *loads, kvf_load_part *part)
{
  if (part->state != KVF_PART_WAIT_PATH) {
    move(part, KVF_PART_WAIT_PATH);
  }
  queue_for_path(loads, part);
}

static void read_over(kvf_loads *loads, kvf_load_part *part, uint32_t path)
{
  move(part, KVF_PART_READING);
  part->path = path;
  part->given_up = false;
  kvf_part_update_ready(loads, part);
}

/* DONE or STOPPED: it needs nothing and nobody any more, but for the ends of its reads. */
static void leave(kvf_loads *loads, kvf_load_part *part, kvf_load_part_state state)
{
  move(part, state);
  kvf_part_update_ready(loads, part);
  kvf_wheel_disarm(&loads->wheel, &part->timer);
  kvf_list_remove(&part->waiting);
  kvf_list_remove(&part->by_peer);
  kvf_load_peer_release(loads, part->peer);
  part->peer = NULL;
}

static void cancel_reads(kvf_loads *loads, kvf_load_part *part)
{
  kvf_list *next;
  for (kvf_list *link = part->flying.next; link != &part->flying; link = next) {
    kvf_load_chunk *chunk = KVF_CONTAINER_OF(link, kvf_load_chunk, link);
    next = link->next;
    kvf_chunk_cancel(loads, chunk);
  }
}

void kvf_part_stop(kvf_loads *loads, kvf_load_part *part)
{
  cancel_reads(loads, part);
  leave(loads, part, KVF_PART_STOPPED);
}

/* ---- the stall clock: runs while reads are in flight, until it has run out ---- */

static bool clock_runs(const kvf_load_part *part)
{
  return (part->state == KVF_PART_READING || part->state == KVF_PART_DRAINING) && !part->given_up &&
         !kvf_list_is_empty(&part->flying);
}

void kvf_part_clock_start(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
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
    kvf_part_clock_start(loads, now_ns, part);
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
  kvf_part_trouble(loads, now_ns, part, KVF_TRANSFER_STALLED);
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

void kvf_part_on_timer(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
{
  if (part->state != KVF_PART_BACKOFF) {
    assert(clock_runs(part));
    on_clock(loads, now_ns, part);
  } else if (part->path != KVF_PATH_NONE) {
    read_over(loads, part, part->path);
  } else {
    kvf_part_wait_path(loads, part);
  }
}

/* ---- trouble ---- */

/* After the end of a read, or a loss of the path: the clock may stop, and what drains may be dry. */
static void settle(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
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
  kvf_part_update_ready(loads, part);
}

/* No new reads until those in flight have ended and a pause is over. */
static void drain(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part)
{
  if (part->state == KVF_PART_READING) {
    move(part, KVF_PART_DRAINING);
  }
  settle(loads, now_ns, part);
}

/* The path has failed the part. A cancelled read says nothing about the cause. */
void kvf_part_trouble(kvf_loads *loads, uint64_t now_ns, kvf_load_part *part, kvf_status cause)
{
  if (part->cause == KVF_OK && cause != KVF_CANCELLED) {
    part->cause = cause;
  }
  part->path = KVF_PATH_NONE;
  drain(loads, now_ns, part);
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
  kvf_load_peer *peer = kvf_load_peer_find(loads, peer_index);
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
      kvf_load_decide(loads, now_ns, part->load, part, cause_of_refusal(part, status));
    }
  }
  kvf_load_peer_release(loads, peer);
}

void kvf_loads_on_path_down(kvf_loads *loads, uint64_t now_ns, uint32_t peer_index, uint32_t path)
{
  kvf_load_peer *peer = kvf_load_peer_find(loads, peer_index);
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
  kvf_chunk_confirm(loads, chunk, chunk->count);
  part->cause = KVF_OK;
  kvf_backoff_reset(&part->backoff);
  if (part->good_count < part->load->items_count) {
    settle(loads, now_ns, part);
    return;
  }
  leave(loads, part, KVF_PART_DONE);
  if (--part->load->parts_open == 0) {
    kvf_load_decide(loads, now_ns, part->load, part, KVF_OK);
  }
}

/* The fence was good, and a block came that is not what the producer published. What came before it is good. The block
 * gets one more try, which helps if the bytes were hurt on their way; where they lie they stay wrong. */
static void on_mismatch(kvf_loads *loads, uint64_t now_ns, const kvf_load_chunk *chunk)
{
  kvf_load_part *part = chunk->part;
  uint32_t good = chunk->verified < chunk->count ? chunk->verified : chunk->count - 1;
  uint32_t wrong = chunk->first + good;
  loads->stats.mismatches++;
  if (good > 0) {
    kvf_chunk_confirm(loads, chunk, good);
    part->cause = KVF_OK;
    kvf_backoff_reset(&part->backoff);
  }
  kvf_chunk_miss(chunk, good);
  if (kvf_bitmap_get(part->wrong, wrong)) {
    kvf_load_decide(loads, now_ns, part->load, part, KVF_CHECKSUM);
    return;
  }
  kvf_bitmap_set(part->wrong, wrong);
  kvf_part_trouble(loads, now_ns, part, KVF_CHECKSUM);
}

void kvf_loads_on_read_verified(kvf_loads *loads, uint64_t read_id, uint32_t items)
{
  kvf_load_chunk *chunk = kvf_chunk_find(loads, read_id);
  if (chunk != NULL) {
    chunk->verified = items;
  }
}

void kvf_loads_on_read_done(kvf_loads *loads, uint64_t now_ns, uint64_t read_id, kvf_status status,
                            const kvf_fence_sample *sample, uint64_t bytes)
{
  kvf_load_chunk *chunk = kvf_chunk_find(loads, read_id);
  if (chunk == NULL) {
    loads->stats.late++;
    return;
  }
  kvf_load_part *part = chunk->part;
  kvf_chunk_end(loads, chunk);
  loads->stats.bytes += bytes;
  part->tally->bytes += bytes;
  part->load->bytes += bytes;
  if (part->load->state != KVF_LOAD_IS_OPEN) {
    kvf_load_settle(loads, part->load);
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
  kvf_chunk_miss(chunk, 0);
  if (is_final(status)) {
    kvf_load_decide(loads, now_ns, part->load, part, status);
  } else if (status == KVF_NOT_PUBLISHED) {
    drain(loads, now_ns, part);
  } else {
    kvf_part_trouble(loads, now_ns, part, status);
  }
}

void kvf_loads_on_read_progress(kvf_loads *loads, uint64_t now_ns, uint64_t read_id)
{
  kvf_load_chunk *chunk = kvf_chunk_find(loads, read_id);
  if (chunk != NULL && clock_runs(chunk->part)) {
    clock_progress(loads, now_ns, chunk->part);
  }
}

void kvf_loads_on_pong(kvf_loads *loads, uint32_t peer_index)
{
  kvf_load_peer *peer = kvf_load_peer_find(loads, peer_index);
  if (peer != NULL) {
    peer->answered = peer->pings;
  }
}
