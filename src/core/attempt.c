#include "core/attempt.h"

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

enum { KVF_TIMER_OF_ATTEMPT, KVF_TIMER_OF_SLICE }; /* kinds in kvf_attempts.wheel, which is the attempts' own */

typedef struct kvf_attempt kvf_attempt;
typedef struct kvf_slice kvf_slice;

/* A peer that some slice of an open attempt needs. */
typedef struct kvf_attempt_peer {
  uint32_t index;
  UT_hash_handle by_index;
  uint32_t users;        /* slices, and a caller that walks through them: it is freed at 0 */
  kvf_list slices;       /* all of them */
  kvf_list waiting;      /* those in WAIT_PATH */
  kvf_list want;         /* in kvf_attempts.wants until WANT_PATH is taken */
  kvf_list ping;         /* in kvf_attempts.pings until PING is taken */
  bool asked;            /* WANT_PATH was taken and not answered */
  uint32_t stalled_path; /* the last one that was reported */
  uint64_t pings;        /* number of the last one */
  uint64_t answered;     /* the last one that was sent before the last pong */
  uint64_t pinged_ns;
} kvf_attempt_peer;

/* A read: a run of items of a slice. */
typedef struct kvf_attempt_chunk {
  uint64_t read_id;
  UT_hash_handle by_read;
  kvf_list link;   /* in its slice's flying or idle */
  kvf_list cancel; /* in kvf_attempts.cancels until CANCEL is taken */
  kvf_slice *slice;
  uint32_t path;
  uint32_t first;
  uint32_t count;
  uint32_t verified; /* of its first items, when it ends */
  bool cancelled;
} kvf_attempt_chunk;

typedef enum kvf_slice_state {
  KVF_SLICE_WAIT_PATH,
  KVF_SLICE_READING,
  KVF_SLICE_DRAINING,
  KVF_SLICE_BACKOFF,
  KVF_SLICE_DONE,
  KVF_SLICE_STOPPED
} kvf_slice_state;

struct kvf_slice {
  kvf_attempt *attempt;
  kvf_attempt_peer *peer; /* NULL once it is DONE or STOPPED */
  kvf_slice_spec spec;
  kvf_slice_state state;
  uint32_t path;        /* that its next reads take */
  uint64_t chunk_bytes; /* of its chunks */
  kvf_status cause;     /* its first trouble since its last confirmed block */
  kvf_peer_tally *tally;
  kvf_list by_peer;
  kvf_list waiting;
  kvf_list ready; /* in its attempt's ready_parts while it may start a read */
  kvf_backoff backoff;

  kvf_timer timer; /* end of BACKOFF, or the stall clock */
  bool given_up;   /* the clock ran out: the reads in flight have been cancelled */
  uint64_t progress_ns;
  uint64_t ping; /* the peer's ping that this silence caused or shares; 0: none yet */
  uint64_t pinged_ns;
  bool begun_anew; /* this silence, after a pause of our own */

  kvf_list stalled; /* in kvf_attempts.stalls until PATH_STALLED is taken */
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

typedef enum kvf_attempt_state { KVF_ATTEMPT_IS_OPEN, KVF_ATTEMPT_IS_DECIDED, KVF_ATTEMPT_IS_QUIET } kvf_attempt_state;

struct kvf_attempt {
  void *owner;
  kvf_list link; /* in kvf_attempts.all */
  kvf_lease lease;
  kvf_attempt_state state;
  bool held;         /* no read begins */
  kvf_report report; /* complete once DECIDED */
  kvf_timer timer;   /* deadline, then quiet timeout */
  kvf_list event;    /* in kvf_attempts.events while one of its is due */
  bool outcome_taken;
  bool quiet_taken;
  bool overdue;
  uint32_t stalls_queued; /* slices that are in kvf_attempts.stalls */
  kvf_list ready;         /* in kvf_attempts.ready while ready_parts has one */
  kvf_list ready_slices;
  uint32_t reads_in_flight;
  uint64_t start_ns;
  uint64_t byte_ns; /* when its last byte landed; at first start_ns */
  uint64_t bytes;
  uint32_t slices_open;
  uint32_t groups;
  uint32_t slices_count;
  uint32_t items_count;
  uint64_t head_bytes[KVF_GROUPS_MAX];
  kvf_transfer_item *items;
  kvf_slice *slices;
};

struct kvf_attempts {
  kvf_attempts_config config;
  kvf_prng jitter;
  kvf_attempt_chunk *by_read;
  kvf_attempt_peer *by_index;
  kvf_list all;
  kvf_wheel wheel;
  kvf_list ready;
  kvf_list cancels;
  kvf_list wants;
  kvf_list pings;
  kvf_list stalls;
  kvf_list events;
  uint64_t next_read_id;
  kvf_attempt_stats stats;
  kvf_peer_tally untold; /* counts of peers for which the spec names no tally */
};

/* ---- lookups: NULL for the unknown ---- */

static kvf_attempt_chunk *find_chunk(const kvf_attempts *attempts, uint64_t read_id)
{
  kvf_attempt_chunk *chunk;
  HASH_FIND(by_read, attempts->by_read, &read_id, sizeof(read_id), chunk);
  return chunk;
}

static kvf_attempt_peer *find_peer(const kvf_attempts *attempts, uint32_t index)
{
  kvf_attempt_peer *peer;
  HASH_FIND(by_index, attempts->by_index, &index, sizeof(index), peer);
  return peer;
}

/* ---- peers ---- */

/* The peer, known or new, for one user more; NULL if there is no memory. */
static kvf_attempt_peer *acquire_peer(kvf_attempts *attempts, uint32_t index)
{
  kvf_attempt_peer *peer = find_peer(attempts, index);
  if (peer != NULL) {
    peer->users++;
    return peer;
  }
  peer = calloc(1, sizeof(*peer));
  if (peer == NULL) {
    return NULL;
  }
  peer->index = index;
  HASH_ADD(by_index, attempts->by_index, index, sizeof(peer->index), peer);
  if (peer->by_index.tbl == NULL) {
    free(peer);
    return NULL;
  }
  peer->users = 1;
  kvf_list_init(&peer->slices);
  kvf_list_init(&peer->waiting);
  kvf_list_init(&peer->want);
  kvf_list_init(&peer->ping);
  return peer;
}

static void release_peer(kvf_attempts *attempts, kvf_attempt_peer *peer)
{
  assert(peer->users > 0);
  if (--peer->users > 0) {
    return;
  }
  assert(kvf_list_is_empty(&peer->slices));
  kvf_list_remove(&peer->want);
  kvf_list_remove(&peer->ping);
  HASH_DELETE(by_index, attempts->by_index, peer);
  free(peer);
}

/* ---- chunks: which items a read takes, and what becomes of them ---- */

static uint64_t item_bytes(const kvf_slice *slice, uint32_t index)
{
  const kvf_attempt *attempt = slice->attempt;
  return attempt->head_bytes[attempt->items[index].group] * slice->spec.heads;
}

static uint64_t divided(uint64_t bytes, uint64_t by)
{
  return bytes / by + (bytes % by != 0);
}

/* As few chunks as there can be, but as many for one reader as for another. */
static void choose_chunk_bytes(const kvf_attempts *attempts, kvf_slice *slice)
{
  const kvf_attempts_config *config = &attempts->config;
  uint64_t readers = config->readers > 0 ? config->readers : 1;
  uint64_t spread_bytes = config->spread_bytes > 0 ? config->spread_bytes : 1;
  uint64_t bytes = 0;
  uint64_t largest = 1;
  for (uint32_t i = 0; i < slice->attempt->items_count; i++) {
    uint64_t each = item_bytes(slice, i);
    bytes += each;
    largest = each > largest ? each : largest;
  }
  readers = readers < bytes / spread_bytes ? readers : bytes / spread_bytes;
  if (readers <= 1) {
    slice->chunk_bytes = config->chunk_bytes;
    return;
  }
  uint64_t rounds = divided(bytes, config->chunk_bytes * readers);
  uint64_t even = divided(bytes, rounds * readers) + largest - 1; /* chunks are of whole items */
  slice->chunk_bytes = even < config->chunk_bytes ? even : config->chunk_bytes;
}

/* Sets the chunk to the first run of missing items, as long as the limits allow. */
static void choose_items(const kvf_slice *slice, kvf_attempt_chunk *chunk)
{
  uint32_t end = slice->attempt->items_count;
  uint32_t first = slice->first_missing;
  while (first < end && kvf_bitmap_get(slice->taken, first)) {
    first++;
  }
  assert(first < end);
  uint64_t bytes = item_bytes(slice, first);
  uint32_t count = 1;
  while (count < KVF_CHUNK_ITEMS_MAX && first + count < end && !kvf_bitmap_get(slice->taken, first + count) &&
         bytes + item_bytes(slice, first + count) <= slice->chunk_bytes) {
    bytes += item_bytes(slice, first + count);
    count++;
  }
  chunk->first = first;
  chunk->count = count;
}

static void take_items(kvf_slice *slice, const kvf_attempt_chunk *chunk)
{
  for (uint32_t i = 0; i < chunk->count; i++) {
    assert(!kvf_bitmap_get(slice->taken, chunk->first + i)); /* no read of it is in flight */
    kvf_bitmap_set(slice->taken, chunk->first + i);
  }
  slice->missing_count -= chunk->count;
  slice->first_missing = chunk->first + chunk->count;
}

static kvf_attempt_chunk *begin_chunk(kvf_attempts *attempts, kvf_slice *slice)
{
  assert(slice->state == KVF_SLICE_READING && slice->path != KVF_PATH_NONE);
  assert(!kvf_list_is_empty(&slice->idle) && slice->missing_count > 0);
  kvf_attempt_chunk *chunk = KVF_CONTAINER_OF(slice->idle.next, kvf_attempt_chunk, link);
  chunk->read_id = attempts->next_read_id++;
  HASH_ADD(by_read, attempts->by_read, read_id, sizeof(chunk->read_id), chunk);
  if (chunk->by_read.tbl == NULL) {
    return NULL;
  }
  choose_items(slice, chunk);
  take_items(slice, chunk);
  chunk->path = slice->path;
  chunk->cancelled = false;
  chunk->verified = 0;
  kvf_list_remove(&chunk->link);
  kvf_list_push_back(&slice->flying, &chunk->link);
  slice->attempt->reads_in_flight++;
  attempts->stats.chunks++;
  slice->tally->chunks++;
  slice->tally->reads_in_flight++;
  return chunk;
}

static void end_chunk(kvf_attempts *attempts, kvf_attempt_chunk *chunk)
{
  kvf_attempt *attempt = chunk->slice->attempt;
  assert(attempt->reads_in_flight > 0);
  HASH_DELETE(by_read, attempts->by_read, chunk);
  kvf_list_remove(&chunk->cancel);
  kvf_list_remove(&chunk->link);
  kvf_list_push_back(&chunk->slice->idle, &chunk->link);
  attempt->reads_in_flight--;
  chunk->slice->tally->reads_in_flight--;
}

static void confirm(kvf_attempts *attempts, const kvf_attempt_chunk *chunk, uint32_t count)
{
  kvf_slice *slice = chunk->slice;
  assert(count <= chunk->count);
  for (uint32_t i = 0; i < count; i++) {
    assert(kvf_bitmap_get(slice->taken, chunk->first + i) && !kvf_bitmap_get(slice->good, chunk->first + i));
    kvf_bitmap_set(slice->good, chunk->first + i);
  }
  slice->good_count += count;
  slice->tally->blocks += count;
  attempts->stats.blocks += count;
  if (chunk->verified > 0) {
    attempts->stats.verified += count;
  } else if (attempts->config.checksums) {
    attempts->stats.unverified += count;
  }
}

static void miss(const kvf_attempt_chunk *chunk, uint32_t good)
{
  kvf_slice *slice = chunk->slice;
  for (uint32_t i = good; i < chunk->count; i++) {
    assert(kvf_bitmap_get(slice->taken, chunk->first + i) && !kvf_bitmap_get(slice->good, chunk->first + i));
    kvf_bitmap_clear(slice->taken, chunk->first + i);
  }
  slice->missing_count += chunk->count - good;
  if (chunk->first + good < slice->first_missing) {
    slice->first_missing = chunk->first + good;
  }
}

/* Whether it is all that its attempt still needs, and few bytes. */
static bool is_small(const kvf_attempts *attempts, const kvf_attempt_chunk *chunk)
{
  const kvf_slice *slice = chunk->slice;
  if (slice->attempt->slices_open != 1 || slice->attempt->items_count - slice->good_count != chunk->count) {
    return false;
  }
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < chunk->count; i++) {
    bytes += item_bytes(slice, chunk->first + i);
  }
  return bytes <= attempts->config.inline_bytes;
}

/* ---- slices: their states, what comes in for them, their stall clock ---- */

#define BIT(state) (1u << (state))
#define OVERSLEPT_SHARE 2 /* of the stall timeout */

/* From each state, where a slice may go next. */
static const unsigned next_states[] = {
    [KVF_SLICE_WAIT_PATH] = BIT(KVF_SLICE_READING) | BIT(KVF_SLICE_STOPPED),
    [KVF_SLICE_READING] = BIT(KVF_SLICE_DRAINING) | BIT(KVF_SLICE_DONE) | BIT(KVF_SLICE_STOPPED),
    [KVF_SLICE_DRAINING] = BIT(KVF_SLICE_BACKOFF) | BIT(KVF_SLICE_DONE) | BIT(KVF_SLICE_STOPPED),
    [KVF_SLICE_BACKOFF] = BIT(KVF_SLICE_WAIT_PATH) | BIT(KVF_SLICE_READING) | BIT(KVF_SLICE_STOPPED),
    [KVF_SLICE_DONE] = 0,
    [KVF_SLICE_STOPPED] = 0,
};

static void move(kvf_slice *slice, kvf_slice_state next)
{
  bool legal = (next_states[slice->state] & BIT(next)) != 0;
  assert(legal);
  (void)legal;
  assert(kvf_list_is_empty(&slice->flying) || next == KVF_SLICE_DRAINING || next == KVF_SLICE_STOPPED);
  slice->state = next;
}

static void update_ready(kvf_attempts *attempts, kvf_slice *slice)
{
  kvf_attempt *attempt = slice->attempt;
  if (slice->state == KVF_SLICE_READING && !attempt->held && slice->missing_count > 0 &&
      !kvf_list_is_empty(&slice->idle)) {
    kvf_list_ensure_back(&attempt->ready_slices, &slice->ready);
    kvf_list_ensure_back(&attempts->ready, &attempt->ready);
    return;
  }
  kvf_list_remove(&slice->ready);
  if (kvf_list_is_empty(&attempt->ready_slices)) {
    kvf_list_remove(&attempt->ready);
  }
}

static void wait_path(kvf_attempts *attempts, kvf_slice *slice)
{
  kvf_attempt_peer *peer = slice->peer;
  if (slice->state != KVF_SLICE_WAIT_PATH) {
    move(slice, KVF_SLICE_WAIT_PATH);
  }
  kvf_list_push_back(&peer->waiting, &slice->waiting);
  if (!peer->asked) {
    kvf_list_ensure_back(&attempts->wants, &peer->want);
  }
}

static void read_over(kvf_attempts *attempts, kvf_slice *slice, uint32_t path)
{
  move(slice, KVF_SLICE_READING);
  slice->path = path;
  slice->given_up = false;
  update_ready(attempts, slice);
}

/* DONE or STOPPED: it needs no peer and no timer any more; its reads still end. */
static void leave(kvf_attempts *attempts, kvf_slice *slice, kvf_slice_state state)
{
  move(slice, state);
  update_ready(attempts, slice);
  kvf_wheel_disarm(&attempts->wheel, &slice->timer);
  kvf_list_remove(&slice->waiting);
  kvf_list_remove(&slice->by_peer);
  release_peer(attempts, slice->peer);
  slice->peer = NULL;
}

static void cancel_reads(kvf_attempts *attempts, kvf_slice *slice)
{
  for (kvf_list *link = slice->flying.next; link != &slice->flying; link = link->next) {
    kvf_attempt_chunk *chunk = KVF_CONTAINER_OF(link, kvf_attempt_chunk, link);
    if (!chunk->cancelled) {
      chunk->cancelled = true;
      kvf_list_push_back(&attempts->cancels, &chunk->cancel);
    }
  }
}

static void stop_slice(kvf_attempts *attempts, kvf_slice *slice)
{
  cancel_reads(attempts, slice);
  leave(attempts, slice, KVF_SLICE_STOPPED);
}

/* ---- outcome and quiet ---- */

/* Leading positions that all slices have. Positions that are not wanted are good already. With several groups a partial
 * prefix is of no use: an engine's groups do not cover the same tokens with the same number of blocks. */
static uint32_t count_prefix(const kvf_attempt *attempt)
{
  size_t leading = attempt->items_count;
  for (uint32_t i = 0; i < attempt->slices_count; i++) {
    size_t good = kvf_bitmap_prefix(attempt->slices[i].good, attempt->items_count);
    leading = good < leading ? good : leading;
  }
  if (leading == attempt->items_count) {
    return attempt->report.blocks;
  }
  return attempt->groups == 1 ? attempt->items[leading].position : 0;
}

static void count_done(kvf_attempts *attempts, uint64_t now_ns, const kvf_attempt *attempt)
{
  for (uint32_t i = 0; i < attempt->slices_count; i++) {
    attempt->slices[i].tally->loads[kvf_status_index(KVF_OK)]++;
  }
  kvf_histogram_add(&attempts->stats.load_ns, now_ns - attempt->start_ns);
  kvf_histogram_add(&attempts->stats.load_bytes, attempt->bytes);
}

/* By the first slice from `slice` on that is not done. An attempt that was aborted says nothing of its peer. */
static void count_failed(kvf_attempts *attempts, uint64_t now_ns, const kvf_attempt *attempt, const kvf_slice *slice,
                         kvf_status status)
{
  while (slice->state == KVF_SLICE_DONE) {
    slice++;
  }
  kvf_peer_tally *tally = slice->tally;
  tally->loads[kvf_status_index(status)]++;
  if (status != KVF_ABORTED) {
    tally->last_failure = status;
    tally->last_failure_ns = now_ns;
    kvf_histogram_add(&attempts->stats.detection_ns, now_ns - attempt->byte_ns);
  }
}

static void settle(kvf_attempts *attempts, kvf_attempt *attempt)
{
  if (attempt->state != KVF_ATTEMPT_IS_DECIDED || attempt->reads_in_flight > 0) {
    return;
  }
  attempt->state = KVF_ATTEMPT_IS_QUIET;
  kvf_wheel_disarm(&attempts->wheel, &attempt->timer);
  if (attempt->overdue) {
    attempt->overdue = false;
    attempts->stats.overdue--;
    attempts->stats.overdue_blocks -= attempt->items_count;
  }
  kvf_list_ensure_back(&attempts->events, &attempt->event);
}

static void decide(kvf_attempts *attempts, uint64_t now_ns, kvf_attempt *attempt, const kvf_slice *slice,
                   kvf_status status)
{
  assert(attempt->state == KVF_ATTEMPT_IS_OPEN);
  assert((status == KVF_OK) == (attempt->slices_open == 0));
  attempt->state = KVF_ATTEMPT_IS_DECIDED;
  /* An attempt's outcome is never "the call was wrong", whatever a transport says. */
  attempt->report.status = kvf_status_describe(status)->lost == KVF_LOST_CALL ? KVF_TRANSFER_FAILED : status;
  attempt->report.prefix = count_prefix(attempt);
  attempts->stats.outcomes[kvf_status_index(attempt->report.status)]++;
  if (status == KVF_OK) {
    count_done(attempts, now_ns, attempt);
  } else {
    count_failed(attempts, now_ns, attempt, slice != NULL ? slice : attempt->slices,
                 (kvf_status)attempt->report.status);
  }
  for (uint32_t i = 0; i < attempt->slices_count; i++) {
    if (attempt->slices[i].state != KVF_SLICE_DONE) {
      stop_slice(attempts, &attempt->slices[i]);
    }
  }
  kvf_list_push_back(&attempts->events, &attempt->event);
  kvf_wheel_arm(&attempts->wheel, &attempt->timer, kvf_time_add(now_ns, attempts->config.quiet_timeout_ns));
  settle(attempts, attempt);
}

static void free_if_over(kvf_attempts *attempts, kvf_attempt *attempt)
{
  if (attempt->quiet_taken && attempt->stalls_queued == 0) {
    assert(attempt->state == KVF_ATTEMPT_IS_QUIET && attempt->reads_in_flight == 0);
    kvf_list_remove(&attempt->link);
    attempts->stats.open--;
    free(attempt);
  }
}

bool kvf_attempts_next_event(kvf_attempts *attempts, kvf_attempt_event *out)
{
  if (kvf_list_is_empty(&attempts->events)) {
    return false;
  }
  kvf_attempt *attempt = KVF_CONTAINER_OF(attempts->events.next, kvf_attempt, event);
  out->owner = attempt->owner;
  out->report = attempt->report;
  if (!attempt->outcome_taken) {
    out->kind = KVF_ATTEMPT_OUTCOME;
    attempt->outcome_taken = true;
    if (attempt->state != KVF_ATTEMPT_IS_QUIET) {
      kvf_list_remove(&attempt->event);
    }
    return true;
  }
  assert(attempt->state == KVF_ATTEMPT_IS_QUIET);
  out->kind = KVF_ATTEMPT_QUIET;
  attempt->quiet_taken = true;
  kvf_list_remove(&attempt->event);
  free_if_over(attempts, attempt);
  return true;
}

/* ---- trouble ---- */

static bool clock_runs(const kvf_slice *slice)
{
  return (slice->state == KVF_SLICE_READING || slice->state == KVF_SLICE_DRAINING) && !slice->given_up &&
         !kvf_list_is_empty(&slice->flying);
}

/* After the end of a read, or a loss of the path: without reads in flight the clock stops, and a slice that drains
 * pauses. */
static void settle_slice(kvf_attempts *attempts, uint64_t now_ns, kvf_slice *slice)
{
  if (!clock_runs(slice) && slice->state != KVF_SLICE_BACKOFF) {
    kvf_wheel_disarm(&attempts->wheel, &slice->timer);
  }
  if (slice->state == KVF_SLICE_DRAINING && kvf_list_is_empty(&slice->flying)) {
    move(slice, KVF_SLICE_BACKOFF);
    attempts->stats.retries++;
    slice->tally->retries++;
    uint64_t wait_ns = kvf_backoff_next(&slice->backoff, &attempts->jitter);
    kvf_wheel_arm(&attempts->wheel, &slice->timer, kvf_time_add(now_ns, wait_ns));
  }
  update_ready(attempts, slice);
}

/* No new reads until those in flight have ended and a pause is over. */
static void drain(kvf_attempts *attempts, uint64_t now_ns, kvf_slice *slice)
{
  if (slice->state == KVF_SLICE_READING) {
    move(slice, KVF_SLICE_DRAINING);
  }
  settle_slice(attempts, now_ns, slice);
}

/* The path has failed the slice. A cancelled read says nothing about the cause. */
static void on_trouble(kvf_attempts *attempts, uint64_t now_ns, kvf_slice *slice, kvf_status cause)
{
  if (slice->cause == KVF_OK && cause != KVF_CANCELLED) {
    slice->cause = cause;
  }
  slice->path = KVF_PATH_NONE;
  drain(attempts, now_ns, slice);
}

/* ---- the stall clock: runs while reads are in flight, until it has run out ---- */

static void clock_start(kvf_attempts *attempts, uint64_t now_ns, kvf_slice *slice)
{
  slice->progress_ns = now_ns;
  slice->begun_anew = false;
  slice->ping = 0;
  kvf_wheel_arm(&attempts->wheel, &slice->timer, kvf_time_add(now_ns, attempts->config.stall_timeout_ns / 2));
}

/* While no ping is out, the timer is left as it is: it looks again when it fires. */
static void clock_progress(kvf_attempts *attempts, uint64_t now_ns, kvf_slice *slice)
{
  slice->progress_ns = now_ns;
  slice->begun_anew = false;
  slice->attempt->byte_ns = now_ns;
  if (slice->ping != 0) {
    clock_start(attempts, now_ns, slice);
  }
}

/* Parts of one peer that fall silent together share a ping. */
static void ping_peer(kvf_attempts *attempts, uint64_t now_ns, kvf_slice *slice)
{
  kvf_attempt_peer *peer = slice->peer;
  if (peer->pings == 0 || now_ns - peer->pinged_ns >= attempts->config.stall_timeout_ns / 2) {
    peer->pings++;
    peer->pinged_ns = now_ns;
    attempts->stats.pings++;
    kvf_list_ensure_back(&attempts->pings, &peer->ping);
  }
  slice->ping = peer->pings;
  slice->pinged_ns = peer->pinged_ns;
}

/* When the silence, if it lasts, becomes a stall. */
static uint64_t stall_at(const kvf_attempts *attempts, const kvf_slice *slice)
{
  uint64_t stall_ns = attempts->config.stall_timeout_ns;
  uint64_t last_ns = kvf_time_add(slice->progress_ns, 2 * stall_ns);
  if (slice->peer->answered >= slice->ping) {
    return last_ns;
  }
  uint64_t at_ns = kvf_time_add(slice->progress_ns, stall_ns);
  uint64_t pong_due_ns = kvf_time_add(slice->pinged_ns, stall_ns / 2);
  return kvf_time_min(pong_due_ns > at_ns ? pong_due_ns : at_ns, last_ns);
}

static void on_stall(kvf_attempts *attempts, uint64_t now_ns, kvf_slice *slice)
{
  uint32_t path = KVF_CONTAINER_OF(slice->flying.next, kvf_attempt_chunk, link)->path; /* that of all its reads */
  uint64_t waited_ns = now_ns - slice->pinged_ns;
  bool answered = slice->peer->answered >= slice->ping;
  attempts->stats.stalls++;
  slice->tally->stalls++;
  if (slice->peer->stalled_path != path) {
    slice->peer->stalled_path = path;
    slice->stalled_path = path;
    slice->stalled_silent = !answered && waited_ns >= attempts->config.stall_timeout_ns / 2;
    if (!kvf_list_is_linked(&slice->stalled)) {
      slice->attempt->stalls_queued++;
      kvf_list_push_back(&attempts->stalls, &slice->stalled);
    }
  }
  slice->given_up = true;
  cancel_reads(attempts, slice);
  on_trouble(attempts, now_ns, slice, KVF_TRANSFER_STALLED);
}

/* A clock that is looked at this late means that this process itself did not run: what the peer has sent meanwhile may
 * wait in our own buffers. So the silence begins anew, with another ping; but once only, or a process that hardly ever
 * runs would wait for a dead peer until the deadline. */
static bool has_overslept(const kvf_attempts *attempts, uint64_t now_ns, const kvf_slice *slice)
{
  return !slice->begun_anew && now_ns - slice->timer.expires_ns >= attempts->config.stall_timeout_ns / OVERSLEPT_SHARE;
}

static void on_clock(kvf_attempts *attempts, uint64_t now_ns, kvf_slice *slice)
{
  if (has_overslept(attempts, now_ns, slice)) {
    uint64_t silent_since_ns = now_ns - attempts->config.stall_timeout_ns / 2;
    slice->progress_ns = slice->progress_ns > silent_since_ns ? slice->progress_ns : silent_since_ns;
    slice->begun_anew = true;
    slice->ping = 0;
  }
  uint64_t ping_at_ns = kvf_time_add(slice->progress_ns, attempts->config.stall_timeout_ns / 2);
  if (slice->ping == 0 && now_ns < ping_at_ns) {
    kvf_wheel_arm(&attempts->wheel, &slice->timer, ping_at_ns);
    return;
  }
  if (slice->ping == 0) {
    ping_peer(attempts, now_ns, slice);
  }
  uint64_t at_ns = stall_at(attempts, slice);
  if (now_ns < at_ns) {
    kvf_wheel_arm(&attempts->wheel, &slice->timer, at_ns);
    return;
  }
  on_stall(attempts, now_ns, slice);
}

static void on_slice_timer(kvf_attempts *attempts, uint64_t now_ns, kvf_slice *slice)
{
  if (slice->state != KVF_SLICE_BACKOFF) {
    assert(clock_runs(slice));
    on_clock(attempts, now_ns, slice);
  } else if (slice->path != KVF_PATH_NONE) {
    read_over(attempts, slice, slice->path);
  } else {
    wait_path(attempts, slice);
  }
}

/* ---- what comes in ---- */

/* The first trouble is the cause; but a connection that broke is only how the end of the peer's process was heard of.
 */
static kvf_status cause_of_refusal(const kvf_slice *slice, kvf_status status)
{
  bool peer_is_gone = status == KVF_PEER_DOWN || status == KVF_PEER_RESTARTED;
  return slice->cause == KVF_OK || (slice->cause == KVF_TRANSFER_FAILED && peer_is_gone) ? status : slice->cause;
}

void kvf_attempts_on_path(kvf_attempts *attempts, uint64_t now_ns, uint32_t peer_index, uint32_t path,
                          kvf_status status)
{
  kvf_attempt_peer *peer = find_peer(attempts, peer_index);
  if (peer == NULL) {
    return;
  }
  peer->asked = false;
  peer->users++; /* the last slice that leaves must not free it here */
  while (!kvf_list_is_empty(&peer->waiting)) {
    kvf_slice *slice = KVF_CONTAINER_OF(peer->waiting.next, kvf_slice, waiting);
    if (status == KVF_OK) {
      assert(path != KVF_PATH_NONE);
      kvf_list_remove(&slice->waiting);
      read_over(attempts, slice, path);
    } else {
      decide(attempts, now_ns, slice->attempt, slice, cause_of_refusal(slice, status));
    }
  }
  release_peer(attempts, peer);
}

void kvf_attempts_on_path_down(kvf_attempts *attempts, uint64_t now_ns, uint32_t peer_index, uint32_t path)
{
  kvf_attempt_peer *peer = find_peer(attempts, peer_index);
  if (peer == NULL || path == KVF_PATH_NONE) {
    return;
  }
  for (kvf_list *link = peer->slices.next; link != &peer->slices; link = link->next) {
    kvf_slice *slice = KVF_CONTAINER_OF(link, kvf_slice, by_peer);
    if (slice->path == path) {
      slice->path = KVF_PATH_NONE;
      drain(attempts, now_ns, slice);
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

static void on_confirmed(kvf_attempts *attempts, uint64_t now_ns, kvf_attempt_chunk *chunk)
{
  kvf_slice *slice = chunk->slice;
  confirm(attempts, chunk, chunk->count);
  slice->cause = KVF_OK;
  kvf_backoff_reset(&slice->backoff);
  if (slice->good_count < slice->attempt->items_count) {
    settle_slice(attempts, now_ns, slice);
    return;
  }
  leave(attempts, slice, KVF_SLICE_DONE);
  if (--slice->attempt->slices_open == 0) {
    decide(attempts, now_ns, slice->attempt, slice, KVF_OK);
  }
}

/* The fence was good, and a block came that is not what the producer published. What came before it is good. The block
 * gets one more try, which helps if the bytes were changed in transit, and not if they are wrong in the producer's
 * memory. */
static void on_mismatch(kvf_attempts *attempts, uint64_t now_ns, const kvf_attempt_chunk *chunk)
{
  kvf_slice *slice = chunk->slice;
  uint32_t good = chunk->verified < chunk->count ? chunk->verified : chunk->count - 1;
  uint32_t wrong = chunk->first + good;
  attempts->stats.mismatches++;
  if (good > 0) {
    confirm(attempts, chunk, good);
    slice->cause = KVF_OK;
    kvf_backoff_reset(&slice->backoff);
  }
  miss(chunk, good);
  if (kvf_bitmap_get(slice->wrong, wrong)) {
    decide(attempts, now_ns, slice->attempt, slice, KVF_CHECKSUM);
    return;
  }
  kvf_bitmap_set(slice->wrong, wrong);
  on_trouble(attempts, now_ns, slice, KVF_CHECKSUM);
}

void kvf_attempts_on_read_verified(kvf_attempts *attempts, uint64_t read_id, uint32_t items)
{
  kvf_attempt_chunk *chunk = find_chunk(attempts, read_id);
  if (chunk != NULL) {
    chunk->verified = items;
  }
}

void kvf_attempts_on_read_done(kvf_attempts *attempts, uint64_t now_ns, uint64_t read_id, kvf_status status,
                               const kvf_fence_sample *sample, uint64_t bytes)
{
  kvf_attempt_chunk *chunk = find_chunk(attempts, read_id);
  if (chunk == NULL) {
    attempts->stats.late++;
    return;
  }
  kvf_slice *slice = chunk->slice;
  end_chunk(attempts, chunk);
  attempts->stats.bytes += bytes;
  slice->tally->bytes += bytes;
  slice->attempt->bytes += bytes;
  if (slice->attempt->state != KVF_ATTEMPT_IS_OPEN) {
    settle(attempts, slice->attempt);
    return;
  }
  if (status == KVF_INVALID) {
    status = KVF_BAD_TICKET; /* ours were checked at the start: it is the peer that has no such blocks */
  }
  if (sample == NULL) {
    chunk->verified = 0; /* says nothing without the fence */
  }
  if (status == KVF_OK || (status == KVF_CHECKSUM && sample != NULL)) {
    clock_progress(attempts, now_ns, slice);
    kvf_status fence = kvf_fence_check(sample, &slice->spec.claim);
    status = fence == KVF_OK ? status : fence;
  }
  if (status == KVF_OK) {
    on_confirmed(attempts, now_ns, chunk);
    return;
  }
  if (status == KVF_CHECKSUM) {
    on_mismatch(attempts, now_ns, chunk);
    return;
  }
  miss(chunk, 0);
  if (is_final(status)) {
    decide(attempts, now_ns, slice->attempt, slice, status);
  } else if (status == KVF_NOT_PUBLISHED) {
    drain(attempts, now_ns, slice);
  } else {
    on_trouble(attempts, now_ns, slice, status);
  }
}

void kvf_attempts_on_read_progress(kvf_attempts *attempts, uint64_t now_ns, uint64_t read_id)
{
  kvf_attempt_chunk *chunk = find_chunk(attempts, read_id);
  if (chunk != NULL && clock_runs(chunk->slice)) {
    clock_progress(attempts, now_ns, chunk->slice);
  }
}

void kvf_attempts_on_pong(kvf_attempts *attempts, uint32_t peer_index)
{
  kvf_attempt_peer *peer = find_peer(attempts, peer_index);
  if (peer != NULL) {
    peer->answered = peer->pings;
  }
}

/* ---- the table: memory, start, abort ---- */

static bool items_are_valid(const kvf_attempt_spec *spec)
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

bool kvf_attempt_spec_is_valid(const kvf_attempt_spec *spec)
{
  if (spec->rank >= KVF_RANKS_MAX || spec->groups == 0 || spec->groups > KVF_GROUPS_MAX ||
      spec->items_count > KVF_BLOCKS_PER_LEASE_MAX || spec->slices_count > KVF_RANKS_MAX ||
      (spec->slices_count == 0 && spec->items_count > 0)) {
    return false;
  }
  for (uint32_t i = 0; i < spec->slices_count; i++) {
    if (spec->slices[i].heads == 0) {
      return false;
    }
  }
  return items_are_valid(spec);
}

static bool config_is_valid(const kvf_attempts_config *config)
{
  return config->stall_timeout_ns >= 2 && config->backoff_min_ns > 0 &&
         config->backoff_min_ns <= config->backoff_max_ns && config->chunks_in_flight > 0 &&
         config->chunks_in_flight <= KVF_CHUNKS_IN_FLIGHT_MAX;
}

kvf_status kvf_attempts_create(const kvf_attempts_config *config, uint64_t now_ns, kvf_attempts **out)
{
  *out = NULL;
  if (!config_is_valid(config)) {
    return KVF_INVALID;
  }
  kvf_attempts *attempts = calloc(1, sizeof(*attempts));
  if (attempts == NULL) {
    return KVF_NO_MEMORY;
  }
  attempts->config = *config;
  attempts->jitter.state = config->seed;
  attempts->next_read_id = 1;
  kvf_histogram_init_ns(&attempts->stats.load_ns, "load_ns");
  kvf_histogram_init_bytes(&attempts->stats.load_bytes, "load_bytes");
  kvf_histogram_init_ns(&attempts->stats.detection_ns, "detection_ns");
  kvf_list_init(&attempts->all);
  kvf_list_init(&attempts->ready);
  kvf_list_init(&attempts->cancels);
  kvf_list_init(&attempts->wants);
  kvf_list_init(&attempts->pings);
  kvf_list_init(&attempts->stalls);
  kvf_list_init(&attempts->events);
  kvf_wheel_init(&attempts->wheel, now_ns);
  *out = attempts;
  return KVF_OK;
}

void kvf_attempts_destroy(kvf_attempts *attempts)
{
  if (attempts == NULL) {
    return;
  }
  HASH_CLEAR(by_read, attempts->by_read);
  kvf_attempt_peer *peer;
  kvf_attempt_peer *next_peer;
  HASH_ITER(by_index, attempts->by_index, peer, next_peer)
  {
    HASH_DELETE(by_index, attempts->by_index, peer);
    free(peer);
  }
  kvf_list *link = attempts->all.next;
  while (link != &attempts->all) {
    kvf_list *next = link->next;
    free(KVF_CONTAINER_OF(link, kvf_attempt, link));
    link = next;
  }
  free(attempts);
}

static void init_slice(kvf_attempts *attempts, kvf_attempt *attempt, kvf_slice *slice, const kvf_slice_spec *spec)
{
  slice->attempt = attempt;
  slice->spec = *spec;
  slice->tally = spec->tally != NULL ? spec->tally : &attempts->untold;
  slice->missing_count = attempt->items_count;
  kvf_list_init(&slice->by_peer);
  kvf_list_init(&slice->waiting);
  kvf_list_init(&slice->ready);
  kvf_list_init(&slice->stalled);
  kvf_list_init(&slice->flying);
  kvf_list_init(&slice->idle);
  kvf_timer_init(&slice->timer, KVF_TIMER_OF_SLICE);
  kvf_backoff_init(&slice->backoff, attempts->config.backoff_min_ns, attempts->config.backoff_max_ns);
}

static void init_chunks(kvf_slice *slice, kvf_attempt_chunk *chunks, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    chunks[i].slice = slice;
    kvf_list_init(&chunks[i].link);
    kvf_list_init(&chunks[i].cancel);
    kvf_list_push_back(&slice->idle, &chunks[i].link);
  }
}

/* An attempt with its slices, chunks, bitmaps and items in one allocation; NULL if there is no memory. */
static kvf_attempt *create(kvf_attempts *attempts, const kvf_attempt_spec *spec)
{
  size_t chunks_each = attempts->config.chunks_in_flight;
  size_t words = kvf_bitmap_words(spec->items_count);
  size_t slices_count = spec->slices_count;
  size_t slices_at = sizeof(kvf_attempt);
  size_t chunks_at = slices_at + slices_count * sizeof(kvf_slice);
  size_t bitmaps_at = chunks_at + slices_count * chunks_each * sizeof(kvf_attempt_chunk);
  size_t items_at = bitmaps_at + slices_count * 3 * words * sizeof(uint64_t);
  char *memory = calloc(1, items_at + spec->items_count * sizeof(kvf_transfer_item));
  if (memory == NULL) {
    return NULL;
  }
  kvf_attempt *attempt = (void *)memory;
  kvf_attempt_chunk *chunks = (void *)(memory + chunks_at);
  uint64_t *bitmaps = (void *)(memory + bitmaps_at);
  attempt->slices = (void *)(memory + slices_at);
  attempt->items = (void *)(memory + items_at);
  attempt->items_count = spec->items_count;
  attempt->slices_count = spec->slices_count;
  for (size_t i = 0; i < spec->slices_count; i++) {
    kvf_slice *slice = &attempt->slices[i];
    init_slice(attempts, attempt, slice, &spec->slices[i]);
    init_chunks(slice, chunks + i * chunks_each, (uint32_t)chunks_each);
    slice->good = bitmaps + i * 3 * words;
    slice->taken = slice->good + words;
    slice->wrong = slice->taken + words;
  }
  return attempt;
}

static void fill(kvf_attempt *attempt, const kvf_attempt_spec *spec)
{
  attempt->owner = spec->owner;
  attempt->lease = spec->lease;
  attempt->held = spec->held;
  attempt->groups = spec->groups;
  attempt->report.request_id = spec->request_id;
  attempt->report.ranks_mask = UINT64_C(1) << spec->rank;
  attempt->report.blocks = spec->positions;
  if (spec->items_count > 0) {
    memcpy(attempt->items, spec->items, spec->items_count * sizeof(*attempt->items));
    memcpy(attempt->head_bytes, spec->head_bytes, spec->groups * sizeof(*attempt->head_bytes));
  }
  kvf_list_init(&attempt->link);
  kvf_timer_init(&attempt->timer, KVF_TIMER_OF_ATTEMPT);
  kvf_list_init(&attempt->event);
  kvf_list_init(&attempt->ready);
  kvf_list_init(&attempt->ready_slices);
}

/* False: there was no memory for all. */
static bool acquire_peers(kvf_attempts *attempts, kvf_attempt *attempt)
{
  for (uint32_t i = 0; i < attempt->slices_count; i++) {
    attempt->slices[i].peer = acquire_peer(attempts, attempt->slices[i].spec.peer);
    if (attempt->slices[i].peer == NULL) {
      return false;
    }
  }
  return true;
}

/* Nothing can fail from here on. */
static void open_attempt(kvf_attempts *attempts, uint64_t now_ns, kvf_attempt *attempt, uint64_t earlier_ns,
                         uint64_t deadline_ns)
{
  attempts->stats.open++;
  attempt->start_ns = now_ns - earlier_ns;
  attempt->byte_ns = now_ns;
  kvf_list_push_back(&attempts->all, &attempt->link);
  if (attempt->items_count == 0) {
    for (uint32_t i = 0; i < attempt->slices_count; i++) {
      attempt->slices[i].state = KVF_SLICE_DONE;
    }
    decide(attempts, now_ns, attempt, NULL, KVF_OK);
    return;
  }
  attempt->slices_open = attempt->slices_count;
  kvf_wheel_arm(&attempts->wheel, &attempt->timer, deadline_ns);
  for (uint32_t i = 0; i < attempt->slices_count; i++) {
    kvf_slice *slice = &attempt->slices[i];
    choose_chunk_bytes(attempts, slice);
    kvf_list_push_back(&slice->peer->slices, &slice->by_peer);
    wait_path(attempts, slice);
  }
}

kvf_status kvf_attempts_start(kvf_attempts *attempts, uint64_t now_ns, const kvf_attempt_spec *spec, kvf_attempt **out)
{
  *out = NULL;
  if (!kvf_attempt_spec_is_valid(spec)) {
    return KVF_INVALID;
  }
  kvf_attempt *attempt = create(attempts, spec);
  if (attempt == NULL) {
    return KVF_NO_MEMORY;
  }
  fill(attempt, spec);
  if (attempt->items_count > 0 && !acquire_peers(attempts, attempt)) {
    for (uint32_t i = 0; i < attempt->slices_count && attempt->slices[i].peer != NULL; i++) {
      release_peer(attempts, attempt->slices[i].peer);
    }
    free(attempt);
    return KVF_NO_MEMORY;
  }
  open_attempt(attempts, now_ns, attempt, spec->earlier_ns, spec->deadline_ns);
  *out = attempt;
  return KVF_OK;
}

void kvf_attempt_release(kvf_attempts *attempts, kvf_attempt *attempt)
{
  attempt->held = false;
  for (uint32_t i = 0; i < attempt->slices_count; i++) {
    update_ready(attempts, &attempt->slices[i]);
  }
}

void kvf_attempt_abort(kvf_attempts *attempts, uint64_t now_ns, kvf_attempt *attempt)
{
  if (attempt->state == KVF_ATTEMPT_IS_OPEN) {
    decide(attempts, now_ns, attempt, NULL, KVF_ABORTED);
  }
}

void kvf_attempts_abort_all(kvf_attempts *attempts, uint64_t now_ns)
{
  for (kvf_list *link = attempts->all.next; link != &attempts->all; link = link->next) {
    kvf_attempt_abort(attempts, now_ns, KVF_CONTAINER_OF(link, kvf_attempt, link));
  }
}

/* ---- time ---- */

static void on_attempt_timer(kvf_attempts *attempts, uint64_t now_ns, kvf_attempt *attempt)
{
  if (attempt->state == KVF_ATTEMPT_IS_OPEN) {
    decide(attempts, now_ns, attempt, NULL, KVF_DEADLINE);
    return;
  }
  assert(attempt->state == KVF_ATTEMPT_IS_DECIDED);
  attempt->overdue = true;
  attempts->stats.overdue++;
  attempts->stats.overdue_blocks += attempt->items_count;
  attempts->stats.overdue_total++;
}

void kvf_attempts_tick(kvf_attempts *attempts, uint64_t now_ns, uint32_t max_items)
{
  uint32_t work = max_items;
  for (kvf_timer *timer = kvf_wheel_expire(&attempts->wheel, now_ns, &work); timer != NULL;
       timer = kvf_wheel_expire(&attempts->wheel, now_ns, &work)) {
    if (timer->kind == KVF_TIMER_OF_ATTEMPT) {
      on_attempt_timer(attempts, now_ns, KVF_CONTAINER_OF(timer, kvf_attempt, timer));
    } else {
      on_slice_timer(attempts, now_ns, KVF_CONTAINER_OF(timer, kvf_slice, timer));
    }
  }
}

uint64_t kvf_attempts_next_deadline(const kvf_attempts *attempts)
{
  return kvf_wheel_next_deadline(&attempts->wheel);
}

bool kvf_attempts_healthy(const kvf_attempts *attempts)
{
  return attempts->stats.overdue == 0;
}

bool kvf_attempt_is_stuck(const kvf_attempt *attempt)
{
  return attempt->overdue;
}

const kvf_attempt_stats *kvf_attempts_stats(const kvf_attempts *attempts)
{
  return &attempts->stats;
}

/* ---- what the caller is to do next ---- */

static bool next_cancel(kvf_attempts *attempts, kvf_attempt_action *out)
{
  kvf_list *link = kvf_list_pop_front(&attempts->cancels);
  if (link == NULL) {
    return false;
  }
  const kvf_attempt_chunk *chunk = KVF_CONTAINER_OF(link, kvf_attempt_chunk, cancel);
  out->kind = KVF_ATTEMPT_CANCEL;
  out->path = chunk->path;
  out->transfer.id = chunk->read_id;
  return true;
}

static bool next_stall(kvf_attempts *attempts, kvf_attempt_action *out)
{
  kvf_list *link = kvf_list_pop_front(&attempts->stalls);
  if (link == NULL) {
    return false;
  }
  kvf_slice *slice = KVF_CONTAINER_OF(link, kvf_slice, stalled);
  out->kind = KVF_ATTEMPT_PATH_STALLED;
  out->peer = slice->spec.peer;
  out->path = slice->stalled_path;
  out->silent = slice->stalled_silent;
  slice->attempt->stalls_queued--;
  free_if_over(attempts, slice->attempt);
  return true;
}

static bool next_ping(kvf_attempts *attempts, kvf_attempt_action *out)
{
  kvf_list *link = kvf_list_pop_front(&attempts->pings);
  if (link == NULL) {
    return false;
  }
  out->kind = KVF_ATTEMPT_PING;
  out->peer = KVF_CONTAINER_OF(link, kvf_attempt_peer, ping)->index;
  return true;
}

static bool next_want(kvf_attempts *attempts, kvf_attempt_action *out)
{
  for (kvf_list *link = kvf_list_pop_front(&attempts->wants); link != NULL;
       link = kvf_list_pop_front(&attempts->wants)) {
    kvf_attempt_peer *peer = KVF_CONTAINER_OF(link, kvf_attempt_peer, want);
    if (!kvf_list_is_empty(&peer->waiting)) {
      peer->asked = true;
      out->kind = KVF_ATTEMPT_WANT_PATH;
      out->peer = peer->index;
      return true;
    }
  }
  return false;
}

static void fill_read(const kvf_attempts *attempts, const kvf_attempt_chunk *chunk, kvf_attempt_action *out)
{
  const kvf_slice *slice = chunk->slice;
  out->kind = KVF_ATTEMPT_READ;
  out->peer = slice->spec.peer;
  out->path = chunk->path;
  out->transfer = (kvf_transfer){.id = chunk->read_id,
                                 .lease = slice->attempt->lease,
                                 .remote_head = slice->spec.remote_head,
                                 .local_head = slice->spec.local_head,
                                 .heads = slice->spec.heads,
                                 .items_count = chunk->count,
                                 .items = &slice->attempt->items[chunk->first],
                                 .small = is_small(attempts, chunk)};
}

/* A chunk of the attempt whose turn it is, then the turn is the next one's; likewise for the slices of an attempt. */
static bool next_read(kvf_attempts *attempts, uint64_t now_ns, kvf_attempt_action *out)
{
  while (!kvf_list_is_empty(&attempts->ready)) {
    kvf_attempt *attempt = KVF_CONTAINER_OF(attempts->ready.next, kvf_attempt, ready);
    kvf_list_remove(&attempt->ready);
    kvf_slice *slice = KVF_CONTAINER_OF(kvf_list_pop_front(&attempt->ready_slices), kvf_slice, ready);
    bool first_in_flight = kvf_list_is_empty(&slice->flying);
    const kvf_attempt_chunk *chunk = begin_chunk(attempts, slice);
    if (chunk == NULL) {
      on_trouble(attempts, now_ns, slice, KVF_NO_MEMORY);
    } else {
      update_ready(attempts, slice);
      if (first_in_flight) {
        clock_start(attempts, now_ns, slice);
      }
    }
    if (!kvf_list_is_empty(&attempt->ready_slices)) {
      kvf_list_ensure_back(&attempts->ready, &attempt->ready);
    }
    if (chunk != NULL) {
      fill_read(attempts, chunk, out);
      return true;
    }
  }
  return false;
}

bool kvf_attempts_next_action(kvf_attempts *attempts, uint64_t now_ns, kvf_attempt_action *out)
{
  *out = (kvf_attempt_action){0};
  return next_cancel(attempts, out) || next_stall(attempts, out) || next_ping(attempts, out) ||
         next_want(attempts, out) || next_read(attempts, now_ns, out);
}
