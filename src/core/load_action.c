/* What the caller is to do next. */
#include <assert.h>

#include "core/load_internal.h"

static bool next_cancel(kvf_loads *loads, kvf_load_action *out)
{
  kvf_list *link = kvf_list_pop_front(&loads->cancels);
  if (link == NULL) {
    return false;
  }
  const kvf_load_chunk *chunk = KVF_CONTAINER_OF(link, kvf_load_chunk, cancel);
  out->kind = KVF_LOAD_CANCEL;
  out->path = chunk->path;
  out->read_id = chunk->read_id;
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
  kvf_load_free_if_over(loads, part->load);
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
  out->read_id = chunk->read_id;
  out->small = kvf_chunk_is_small(loads, chunk);
  out->lease = part->load->lease;
  out->remote_head = part->spec.remote_head;
  out->local_head = part->spec.local_head;
  out->heads = part->spec.heads;
  out->items_count = chunk->count;
  out->items = &part->load->items[chunk->first];
}

/* A chunk of the load whose turn it is, then the turn is the next one's; likewise for the parts of a load. */
static bool next_read(kvf_loads *loads, uint64_t now_ns, kvf_load_action *out)
{
  while (!kvf_list_is_empty(&loads->ready)) {
    kvf_load_entry *load = KVF_CONTAINER_OF(loads->ready.next, kvf_load_entry, ready);
    kvf_list_remove(&load->ready);
    kvf_load_part *part = KVF_CONTAINER_OF(kvf_list_pop_front(&load->ready_parts), kvf_load_part, ready);
    bool first_in_flight = kvf_list_is_empty(&part->flying);
    const kvf_load_chunk *chunk = kvf_chunk_begin(loads, part);
    if (chunk == NULL) {
      kvf_part_trouble(loads, now_ns, part, KVF_NO_MEMORY);
    } else {
      kvf_part_update_ready(loads, part);
      if (first_in_flight) {
        kvf_part_clock_start(loads, now_ns, part);
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
