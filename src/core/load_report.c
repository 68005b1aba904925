/* A load's two events: its outcome, which comes by the deadline, and its quiet, when no read is in flight any more. */
#include <assert.h>

#include "base/bitmap.h"
#include "base/status.h"
#include "core/load_internal.h"

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

static const kvf_load_part *first_open_part(const kvf_load_entry *load)
{
  const kvf_load_part *part = load->parts;
  while (part->state == KVF_PART_DONE) {
    part++;
  }
  return part;
}

/* A load that was aborted says nothing of its peer. */
static void count_failed(kvf_loads *loads, uint64_t now_ns, const kvf_load_entry *load, const kvf_load_part *part,
                         kvf_status status)
{
  kvf_load_tally *tally = part->tally;
  tally->loads[kvf_status_index(status)]++;
  if (status != KVF_ABORTED) {
    tally->last_failure = status;
    tally->last_failure_ns = now_ns;
    kvf_histogram_add(&loads->stats.detection_ns, now_ns - load->byte_ns);
  }
}

void kvf_load_settle(kvf_loads *loads, kvf_load_entry *load)
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

void kvf_load_decide(kvf_loads *loads, uint64_t now_ns, kvf_load_entry *load, const kvf_load_part *part,
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
    count_failed(loads, now_ns, load, part != NULL ? part : first_open_part(load), (kvf_status)load->report.status);
  }
  for (uint32_t i = 0; i < load->parts_count; i++) {
    if (load->parts[i].state != KVF_PART_DONE) {
      kvf_part_stop(loads, &load->parts[i]);
    }
  }
  kvf_list_push_back(&loads->events, &load->event);
  kvf_wheel_arm(&loads->wheel, &load->timer, kvf_time_add(now_ns, loads->config.quiet_timeout_ns));
  kvf_load_settle(loads, load);
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
  kvf_load_forget(loads, load);
  kvf_load_free_if_over(loads, load);
  return true;
}
