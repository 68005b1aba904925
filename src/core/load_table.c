/* The table of loads: their memory, their lookups, their timers. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "core/load_internal.h"

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
  kvf_load_peer *peer = kvf_load_forget_all(loads);
  while (peer != NULL) {
    kvf_load_peer *next = peer->by_index.next;
    free(peer);
    peer = next;
  }
  kvf_list *link = loads->all.next;
  while (link != &loads->all) {
    kvf_list *next = link->next;
    free(KVF_CONTAINER_OF(link, kvf_load_entry, link));
    link = next;
  }
  free(loads);
}

/* ---- peers ---- */

/* The peer, known or new, for one user more; NULL if there is no memory. */
static kvf_load_peer *acquire_peer(kvf_loads *loads, uint32_t index)
{
  kvf_load_peer *peer = kvf_load_peer_find(loads, index);
  if (peer != NULL) {
    peer->users++;
    return peer;
  }
  peer = calloc(1, sizeof(*peer));
  if (peer == NULL) {
    return NULL;
  }
  peer->index = index;
  if (!kvf_load_peer_remember(loads, peer)) {
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

void kvf_load_peer_release(kvf_loads *loads, kvf_load_peer *peer)
{
  assert(peer->users > 0);
  if (--peer->users > 0) {
    return;
  }
  assert(kvf_list_is_empty(&peer->parts));
  kvf_list_remove(&peer->want);
  kvf_list_remove(&peer->ping);
  kvf_load_peer_forget(loads, peer);
  free(peer);
}

/* ---- loads ---- */

static bool items_are_valid(const kvf_load_spec *spec)
{
  for (uint32_t i = 0; i < spec->items_count; i++) {
    const kvf_read_item *item = &spec->items[i];
    if (item->group >= spec->groups || item->position >= spec->positions) {
      return false;
    }
    if (i > 0) {
      const kvf_read_item *before = &spec->items[i - 1];
      if (item->position < before->position || (item->position == before->position && item->group <= before->group)) {
        return false;
      }
    }
  }
  return true;
}

static bool spec_is_valid(const kvf_load_spec *spec)
{
  if (spec->rank >= KVF_RANKS_MAX || spec->groups == 0 || spec->groups > KVF_GROUPS_MAX ||
      spec->items_count > KVF_BLOCKS_PER_LEASE_MAX || spec->parts_count > KVF_RANKS_MAX ||
      (spec->parts_count == 0 && spec->items_count > 0)) {
    return false;
  }
  for (uint32_t i = 0; i < spec->parts_count; i++) {
    if (spec->parts[i].heads == 0) {
      return false;
    }
  }
  return items_are_valid(spec);
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
  char *memory = calloc(1, items_at + spec->items_count * sizeof(kvf_read_item));
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

/* Takes the peers of the parts up to the first that finds no memory; false if there is one. */
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

static void release_peers(kvf_loads *loads, kvf_load_entry *load)
{
  for (uint32_t i = 0; i < load->parts_count && load->parts[i].peer != NULL; i++) {
    kvf_load_peer_release(loads, load->parts[i].peer);
  }
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
    kvf_load_decide(loads, now_ns, load, NULL, KVF_OK);
    return;
  }
  load->parts_open = load->parts_count;
  kvf_wheel_arm(&loads->wheel, &load->timer, deadline_ns);
  for (uint32_t i = 0; i < load->parts_count; i++) {
    kvf_load_part *part = &load->parts[i];
    kvf_chunk_choose_size(loads, part);
    kvf_list_push_back(&part->peer->parts, &part->by_peer);
    kvf_part_wait_path(loads, part);
  }
}

kvf_status kvf_loads_start(kvf_loads *loads, uint64_t now_ns, const kvf_load_spec *spec)
{
  if (!spec_is_valid(spec)) {
    return KVF_INVALID;
  }
  if (kvf_load_find(loads, spec->request_id) != NULL) {
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
  if (!kvf_load_remember(loads, load)) {
    goto release;
  }
  open_load(loads, now_ns, load, spec->earlier_ns, spec->deadline_ns);
  return KVF_OK;

release:
  release_peers(loads, load);
  free(load);
  return KVF_NO_MEMORY;
}

void kvf_load_free_if_over(kvf_loads *loads, kvf_load_entry *load)
{
  if (load->quiet_taken && load->stalls_queued == 0) {
    assert(load->state == KVF_LOAD_IS_QUIET && load->reads_in_flight == 0);
    kvf_list_remove(&load->link);
    loads->stats.open--;
    free(load);
  }
}

kvf_status kvf_loads_abort(kvf_loads *loads, uint64_t now_ns, uint64_t request_id)
{
  kvf_load_entry *load = kvf_load_find(loads, request_id);
  if (load == NULL) {
    return KVF_NOT_FOUND;
  }
  if (load->state == KVF_LOAD_IS_OPEN) {
    kvf_load_decide(loads, now_ns, load, NULL, KVF_ABORTED);
  }
  return KVF_OK;
}

void kvf_loads_abort_all(kvf_loads *loads, uint64_t now_ns)
{
  for (kvf_list *link = loads->all.next; link != &loads->all; link = link->next) {
    kvf_load_entry *load = KVF_CONTAINER_OF(link, kvf_load_entry, link);
    if (load->state == KVF_LOAD_IS_OPEN) {
      kvf_load_decide(loads, now_ns, load, NULL, KVF_ABORTED);
    }
  }
}

/* ---- time ---- */

static void on_load_timer(kvf_loads *loads, uint64_t now_ns, kvf_load_entry *load)
{
  if (load->state == KVF_LOAD_IS_OPEN) {
    kvf_load_decide(loads, now_ns, load, NULL, KVF_DEADLINE);
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
      kvf_part_on_timer(loads, now_ns, KVF_CONTAINER_OF(timer, kvf_load_part, timer));
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

const kvf_load_stats *kvf_loads_stats(const kvf_loads *loads)
{
  return &loads->stats;
}
