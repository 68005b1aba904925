/* What is always true of loads: their states against their timers, lists, counts and reads. */
#include "core/load.h"
#include "core/load_state.h"

#ifndef NDEBUG

#include "base/bitmap.h"
#include "core/check_list.h"

/* Of all loads. */
typedef struct totals {
  uint32_t events;
  uint32_t going_on;
  uint32_t ready;
  uint32_t flying;
  uint32_t cancels;
  uint32_t stuck;
  uint64_t stuck_blocks;
  uint32_t held; /* peers, once for each slice */
} totals;

static bool is_over(const kvf_slice *slice)
{
  return slice->state == SLICE_DONE || slice->state == SLICE_STOPPED;
}

static void check_items(const kvf_slice *slice)
{
  const uint32_t count = slice->load->items_count;
  uint32_t good = 0;
  uint32_t taken = 0;
  for (uint32_t i = 0; i < count; i++) {
    good += kvf_bitmap_get(slice->good, i);
    taken += kvf_bitmap_get(slice->taken, i);
    assert(!kvf_bitmap_get(slice->good, i) || kvf_bitmap_get(slice->taken, i));
  }
  assert(good == slice->good_count);
  assert(taken == count - slice->missing_count);
}

/* Returns the items that its reads in flight have. */
static uint32_t check_flying(const kvf_slice *slice, totals *all)
{
  uint32_t items = 0;
  for (const kvf_list *node = slice->flying.next; node != &slice->flying; node = node->next) {
    const kvf_load_chunk *chunk = KVF_CONTAINER_OF(node, kvf_load_chunk, link);
    assert(chunk->slice == slice && chunk->by_read.tbl != NULL);
    assert(chunk->count > 0 && chunk->first + chunk->count <= slice->load->items_count);
    assert(slice->given_up || !kvf_list_is_linked(&chunk->cancel));
    assert(chunk->link_id != KVF_NO_LINK);
    items += chunk->count;
    all->cancels += kvf_list_is_linked(&chunk->cancel);
    all->flying++;
  }
  return items;
}

static void check_slice(const kvf_loads *loads, const kvf_slice *slice, bool costly, totals *all)
{
  const kvf_open_load *load = slice->load;
  const kvf_slice_state state = slice->state;
  const bool is_reading = load->state == LOAD_READING;
  const bool flies = !kvf_list_is_empty(&slice->flying);
  const bool clock_runs = flies && !slice->given_up && (state == SLICE_READING || state == SLICE_DRAINING);
  const uint32_t in_flight = check_flying(slice, all);
  assert(is_reading || is_over(slice));
  assert(!is_reading || state != SLICE_STOPPED);
  assert(kvf_list_is_linked(&slice->waiting) == (state == SLICE_WAIT_LINK));
  assert(state != SLICE_WAIT_LINK || slice->peer->slices.asked);
  assert(kvf_list_is_linked(&slice->by_peer) == !is_over(slice));
  assert(kvf_list_is_linked(&slice->ready) ==
         (state == SLICE_READING && load->point == 0 && slice->missing_count > 0 && !kvf_list_is_empty(&slice->idle)));
  assert(kvf_timer_is_armed(&slice->timer) == (clock_runs || state == SLICE_BACKOFF));
  assert(!flies || state == SLICE_READING || state == SLICE_DRAINING || state == SLICE_STOPPED);
  assert(flies || state != SLICE_DRAINING);
  assert(state != SLICE_READING || slice->link_id != KVF_NO_LINK);
  assert(state != SLICE_DONE || slice->good_count == load->items_count);
  assert(!is_reading || slice->good_count + slice->missing_count + in_flight == load->items_count);
  assert(slice->backoff_ns <= kvf_ms_to_ns(loads->context->config.backoff_max_ms));
  if (costly && is_reading) {
    check_items(slice);
  }
}

/* What is true of a load in its state, but for its slices. */
static void check_state(const kvf_open_load *load)
{
  const bool is_due = kvf_list_is_linked(&load->event);
  const bool is_armed = kvf_timer_is_armed(&load->timer);
  switch (load->state) {
    case LOAD_READING:
      assert(load->slices_open > 0 && load->items_count > 0);
      assert(is_armed && !is_due && !load->is_stuck);
      assert(!kvf_list_is_linked(&load->going_on));
      break;
    case LOAD_HELD:
      assert(is_armed && !is_due);
      assert(kvf_list_is_linked(&load->going_on) == (load->reads_in_flight == 0));
      break;
    case LOAD_DECIDED:
      assert(is_armed == !load->is_stuck);
      assert(is_due == load->outcome_due);
      assert(load->reads_in_flight > 0 || kvf_list_is_linked(&load->going_on));
      break;
    case LOAD_RELEASED:
      assert(is_due && !is_armed);
      assert(load->slices == NULL && load->reads_in_flight == 0);
      assert(!kvf_list_is_linked(&load->going_on));
      break;
  }
}

static void check_load(const kvf_loads *loads, const kvf_open_load *load, bool costly, totals *all)
{
  const uint32_t flying_before = all->flying;
  uint32_t open = 0;
  uint32_t ready = 0;
  check_state(load);
  for (uint32_t i = 0; i < load->slices_count; i++) {
    assert(load->slices[i].load == load && load->slices[i].peer->users > 0);
    check_slice(loads, &load->slices[i], costly, all);
    open += load->slices[i].state != SLICE_DONE;
    ready += kvf_list_is_linked(&load->slices[i].ready);
  }
  assert(load->state != LOAD_READING || open == load->slices_open);
  assert(all->flying - flying_before == load->reads_in_flight);
  assert(ready == kvf_check_list(&load->ready_slices));
  assert(kvf_list_is_linked(&load->ready) == (ready > 0));
  assert(load->report.prefix <= load->report.blocks);
  all->events += kvf_list_is_linked(&load->event);
  all->going_on += kvf_list_is_linked(&load->going_on);
  all->ready += kvf_list_is_linked(&load->ready);
  all->held += load->slices_count;
  if (load->is_stuck && load->state != LOAD_RELEASED) {
    all->stuck++;
    all->stuck_blocks += load->items_count;
  }
}

uint32_t kvf_loads_check(const kvf_loads *loads, uint32_t *reads, bool costly)
{
  totals all = {0};
  for (const kvf_open_load *load = loads->by_id; load != NULL; load = load->by_id.next) {
    check_load(loads, load, costly, &all);
  }
  assert(all.events == kvf_check_list(&loads->events));
  assert(all.going_on == kvf_check_list(&loads->going_on));
  assert(all.ready == kvf_check_list(&loads->ready));
  assert(all.cancels == kvf_check_list(&loads->cancels));
  assert(all.flying == HASH_CNT(by_read, loads->by_read));
  assert(all.stuck == loads->stats.stuck && all.stuck_blocks == loads->stats.stuck_blocks);
  assert(HASH_CNT(by_id, loads->by_id) <= loads->context->config.loads_max);
  *reads = all.flying;
  return all.held;
}

#endif
