/* Reads: the lease is looked at, the chunk is got, the lease is looked at again, and what was seen is reported.
 *
 * A look is a get of the table's head and of the slot's entry, begun when all gets before it have ended: nothing is
 * promised of the order in which gets are carried out, nor of a get of several words being of one moment. So word and
 * digest count as of one lease if they were the same in two looks, the second begun after the first had ended. The look
 * before a chunk is one of the two, and what it has seen is remembered: the lease's next chunks begin with their bytes.
 *
 * Where gets are messages the producer looks, before and after an answer's bytes are copied (ucx_answer.c).
 */
#include "transport/ucx.h"

#include <stdlib.h>
#include <string.h>

#include "transport/sums.h"

typedef enum read_state {
  READ_WAITING, /* for a room */
  READ_LOOKING, /* is the lease live? */
  READ_COPYING,
  READ_JUDGING /* was it, all the time? */
} read_state;

typedef struct ucx_read {
  kvf_posted_read posted;
  kvf_list in_reads; /* link->reads */
  kvf_list in_queue; /* ucx->waiting or ucx->stopping */
  kvf_ucx_link *link;
  kvf_ucx_memory *memory; /* with a ref, once there is a room */
  kvf_ucx_batch batch;
  read_state state;
  kvf_status stop; /* KVF_OK, or what it ends as when its gets have */
  uint64_t stop_at_ns;
  uint32_t samples;
  kvf_fence_entry seen; /* in the look before */
  kvf_chunk chunk;
  kvf_segment_cursor cursor;
  uint64_t bytes;
  uint64_t landed_bytes;
  uint64_t progress_ns; /* when progress was told last, or the read began */
} ucx_read;

/* ---- the end of a read ---- */

static void start_waiting(kvf_ucx *ucx);

/* From here nothing writes to its blocks. */
static void report(kvf_ucx *ucx, ucx_read *read, const kvf_read_result *result)
{
  kvf_ucx_link *link = read->link;
  kvf_commands_close_read(&ucx->commands, &read->posted);
  kvf_driver_read_closed(&ucx->driver, read->posted.read.small);
  kvf_list_remove(&read->in_reads);
  kvf_list_remove(&read->in_queue);
  kvf_list_remove(&read->batch.in_ready);
  if (read->state != READ_WAITING) {
    kvf_ucx_room_give(ucx, &read->batch);
    kvf_ucx_memory_drop(read->memory);
  }
  ucx->host.read_done(ucx->host.context, result);
  free(read);
  kvf_ucx_link_settle(ucx, link);
}

static void end(kvf_ucx *ucx, ucx_read *read, kvf_status status)
{
  const kvf_read_result result = {.id = read->posted.read.id, .status = status, .bytes = read->landed_bytes};
  report(ucx, read, &result);
}

static void end_judged(kvf_ucx *ucx, ucx_read *read)
{
  kvf_read_result result = {.id = read->posted.read.id,
                            .status = KVF_OK,
                            .sample = ucx->rooms[read->batch.room].sample,
                            .bytes = read->landed_bytes};
  if (read->state == READ_JUDGING) {
    kvf_sums_judge(&read->chunk, read->link->sums_count, &read->posted.read.lease, &result);
  }
  report(ucx, read, &result);
}

/* ---- steps ---- */

static kvf_ucx_seen *place_of(kvf_ucx_link *link, uint32_t slot)
{
  return &link->seen[slot % KVF_UCX_SEEN];
}

static void look(ucx_read *read, read_state state)
{
  read->state = state;
  kvf_ucx_sample_start(&read->batch, read->link, read->posted.read.lease.slot);
}

static uint32_t get_bytes_max(const kvf_ucx_link *link)
{
  return link->has_messages ? kvf_ucx_ask_bytes_max(kvf_ucx_of(link->base.transport)) : KVF_UCX_GET_BYTES_MAX;
}

/* As many gets as may be in flight. */
static void copy(ucx_read *read)
{
  const kvf_ucx_link *link = read->link;
  kvf_segment segment;
  while (!kvf_ucx_batch_is_full(&read->batch) && read->batch.error == KVF_UCS_OK &&
         kvf_segments_next(&read->cursor, &segment, 1, get_bytes_max(link)) == 1) {
    kvf_ucx_get_start(&read->batch, link, segment.region, segment.remote_offset, segment.local,
                      read->memory->mems[segment.region], (int)read->chunk.local[segment.region].memory,
                      (uint32_t)segment.bytes);
  }
  kvf_ucx_asks_send(read->batch.ucx, link);
}

static void begin_copy(ucx_read *read)
{
  kvf_fence_barrier(); /* UCX may copy itself, in this thread */
  read->state = READ_COPYING;
  read->batch.ended_bytes = 0;
  read->cursor = kvf_segments_begin(&read->chunk);
  if (read->bytes == 0) {
    look(read, READ_JUDGING);
    return;
  }
  copy(read);
}

static void looked(kvf_ucx *ucx, ucx_read *read)
{
  const kvf_lease *lease = &read->posted.read.lease;
  const kvf_fence_sample *sample = &ucx->rooms[read->batch.room].sample;
  bool live = sample->entry.word == kvf_fence_word_live(lease->id) && sample->head.magic == KVF_FENCE_MAGIC &&
              memcmp(&sample->head.incarnation, &read->link->incarnation, sizeof(sample->head.incarnation)) == 0;
  if (!live) {
    end_judged(ucx, read);
    return;
  }
  read->seen = sample->entry;
  *place_of(read->link, lease->slot) = (kvf_ucx_seen){.slot = lease->slot, .entry = sample->entry};
  begin_copy(read);
}

/* All bytes are here. */
static void judge(kvf_ucx *ucx, ucx_read *read)
{
  bool has_messages = read->link->has_messages;
  if (has_messages) {
    read->state = READ_JUDGING;
    end_judged(ucx, read);
    return;
  }
  kvf_fence_barrier();
  look(read, READ_JUDGING);
}

static void copied(kvf_ucx *ucx, ucx_read *read)
{
  read->landed_bytes = read->batch.ended_bytes;
  if (read->batch.claim.is_lost) {
    if (read->batch.busy == 0) {
      end_judged(ucx, read);
    }
    return;
  }
  if (read->landed_bytes == read->bytes) {
    judge(ucx, read);
    return;
  }
  copy(read);
  if (ucx->now_ns >= kvf_time_add(read->progress_ns, KVF_PROGRESS_NS)) {
    read->progress_ns = ucx->now_ns;
    ucx->host.read_progress(ucx->host.context, read->posted.read.id);
  }
}

static void judged(kvf_ucx *ucx, ucx_read *read)
{
  const kvf_fence_entry entry = ucx->rooms[read->batch.room].sample.entry;
  bool live = entry.word == kvf_fence_word_live(read->posted.read.lease.id);
  read->samples++;
  if (!read->link->has_messages && live && entry.digest != read->seen.digest && read->samples < KVF_UCX_SAMPLES_MAX) {
    read->seen = entry;
    *place_of(read->link, read->posted.read.lease.slot) =
        (kvf_ucx_seen){.slot = read->posted.read.lease.slot, .entry = entry};
    look(read, READ_JUDGING);
    return;
  }
  end_judged(ucx, read);
}

/* Some of its gets have ended. */
static void step(kvf_ucx *ucx, kvf_ucx_batch *batch)
{
  ucx_read *read = KVF_CONTAINER_OF(batch, ucx_read, batch);
  if (batch->error != KVF_UCS_OK && read->stop == KVF_OK) {
    kvf_ucx_link *link = read->link;
    kvf_ucx_link_get_failed(ucx, link, batch->error); /* stops and, if it can, ends this read too */
    start_waiting(ucx);
    return;
  }
  if (read->stop != KVF_OK) {
    if (batch->busy == 0) {
      end(ucx, read, read->stop);
      start_waiting(ucx);
    }
    return;
  }
  if (read->state == READ_COPYING) {
    copied(ucx, read);
  } else if (batch->busy == 0 && read->state == READ_LOOKING) {
    looked(ucx, read);
  } else if (batch->busy == 0 && read->state == READ_JUDGING) {
    judged(ucx, read);
  }
  start_waiting(ucx);
}

/* ---- start ---- */

/* Whether the read can begin, else why not. */
static kvf_status prepare(const kvf_ucx *ucx, ucx_read *read)
{
  kvf_ucx_link *link = read->link;
  const kvf_read *request = &read->posted.read;
  if (link->state != KVF_UCX_LINK_UP) {
    return link->state == KVF_UCX_LINK_DOWN ? link->failure : KVF_TRANSFER_SETUP;
  }
  if (ucx->memory == NULL || link->generation != ucx->memory->generation) {
    return KVF_TRANSFER_SETUP; /* made for memory that is not registered any more */
  }
  if (request->lease.slot >= link->table_slots) {
    return KVF_LEASE_UNKNOWN;
  }
  read->chunk = kvf_chunk_of(request, ucx->memory->regions, link->remote, link->regions_count + link->sums_count);
  return kvf_chunk_check(&read->chunk, &read->bytes);
}

static void begin(kvf_ucx *ucx, ucx_read *read)
{
  const kvf_lease *lease = &read->posted.read.lease;
  const kvf_ucx_seen *seen = place_of(read->link, lease->slot);
  read->memory = ucx->memory;
  read->memory->refs++;
  read->progress_ns = ucx->now_ns;
  read->batch.claim = (kvf_ucx_claim){.slot = lease->slot, .word = kvf_fence_word_live(lease->id)};
  if (read->link->has_messages) {
    begin_copy(read); /* each of its messages looks first */
  } else if (seen->slot == lease->slot && seen->entry.word == kvf_fence_word_live(lease->id)) {
    read->seen = seen->entry;
    begin_copy(read);
  } else {
    look(read, READ_LOOKING);
  }
}

/* Those whose turn it is, if there is a room for them. */
static void start_waiting(kvf_ucx *ucx)
{
  while (!kvf_list_is_empty(&ucx->waiting)) {
    ucx_read *read = KVF_CONTAINER_OF(ucx->waiting.next, ucx_read, in_queue);
    kvf_status status = prepare(ucx, read);
    if (status != KVF_OK) {
      end(ucx, read, status);
      continue;
    }
    if (!kvf_ucx_room_take(ucx, &read->batch, KVF_UCX_ROOMS_OF_LINKS)) {
      return;
    }
    kvf_list_remove(&read->in_queue);
    begin(ucx, read);
  }
}

static void run_start(void *owner, kvf_command *command)
{
  kvf_ucx *ucx = owner;
  ucx_read *read = KVF_CONTAINER_OF(command, ucx_read, posted.start);
  kvf_list_push_back(&read->link->reads, &read->in_reads);
  kvf_list_push_back(&ucx->waiting, &read->in_queue);
  start_waiting(ucx);
}

/* ---- cancel ---- */

/* It ends as `status` when its gets have: at once, if there are none. */
static void stop(kvf_ucx *ucx, ucx_read *read, kvf_status status)
{
  if (read->batch.busy == 0) {
    end(ucx, read, status);
  } else if (read->stop == KVF_OK) {
    read->stop = status;
    read->stop_at_ns = kvf_time_add(ucx->now_ns, KVF_UCX_STOP_NS);
    kvf_list_push_back(&ucx->stopping, &read->in_queue);
  }
}

static void run_cancel(void *owner, kvf_command *command)
{
  stop(owner, KVF_CONTAINER_OF(command, ucx_read, posted.cancel), KVF_CANCELLED);
}

void kvf_ucx_reads_stop(kvf_ucx *ucx, kvf_ucx_link *link, kvf_status status)
{
  kvf_list *next;
  const kvf_list *last = link->reads.prev;
  if (kvf_list_is_empty(&link->reads)) {
    return;
  }
  for (kvf_list *node = link->reads.next;; node = next) {
    bool is_last = node == last;
    next = node->next;
    stop(ucx, KVF_CONTAINER_OF(node, ucx_read, in_reads), status);
    if (is_last) { /* the link may be gone with it */
      return;
    }
  }
}

void kvf_ucx_reads_forget(const kvf_ucx_link *link)
{
  for (const kvf_list *node = link->reads.next; node != &link->reads; node = node->next) {
    kvf_ucx_batch_forget(&KVF_CONTAINER_OF(node, ucx_read, in_reads)->batch);
  }
}

/* UCX cannot end one get and leave the others: what does not end by itself ends with the endpoint. */
uint64_t kvf_ucx_reads_tick(kvf_ucx *ucx)
{
  for (const kvf_list *node = ucx->stopping.next; node != &ucx->stopping; node = node->next) {
    const ucx_read *read = KVF_CONTAINER_OF(node, ucx_read, in_queue);
    if (read->link->state == KVF_UCX_LINK_DOWN) {
      continue; /* its endpoint is being closed: there is nothing more that could be done */
    }
    if (read->stop_at_ns > ucx->now_ns) {
      return read->stop_at_ns;
    }
    kvf_ucx_link_fail(ucx, read->link, KVF_TRANSFER_FAILED, KVF_TRANSFER_FAILED,
                      "a cancelled read did not end: its endpoint is closed");
    return ucx->now_ns; /* the list has changed */
  }
  return KVF_TIME_NEVER;
}

/* ---- operations ---- */

void kvf_ucx_read_start(kvf_link *base, const kvf_read *request)
{
  kvf_ucx_link *link = KVF_CONTAINER_OF(base, kvf_ucx_link, base);
  kvf_ucx *ucx = kvf_ucx_of(base->transport);
  ucx_read *read = malloc(sizeof(*read));
  bool caller_starts = false;
  if (read != NULL) {
    *read = (ucx_read){.link = link, .state = READ_WAITING};
    kvf_posted_read_init(&read->posted, request, run_start, run_cancel);
    kvf_list_init(&read->in_reads);
    kvf_list_init(&read->in_queue);
    kvf_ucx_batch_init(&read->batch, ucx, step);
    caller_starts = kvf_driver_read_opened(&ucx->driver, request->small);
  }
  kvf_commands_start_read(&ucx->commands, &link->open, read == NULL ? NULL : &read->posted, request->id,
                          !caller_starts);
}

void kvf_ucx_read_cancel(kvf_link *base, uint64_t read_id)
{
  kvf_ucx_link *link = KVF_CONTAINER_OF(base, kvf_ucx_link, base);
  kvf_commands_cancel_read(&kvf_ucx_of(base->transport)->commands, &link->open, read_id);
}
