/* Reads: a look at the lease, the gets of the chunk, a second look at the lease, then the report.
 *
 * A look is a get of the table's head and of the slot's entry, begun when all earlier gets have ended. UCX promises no
 * order of gets, and a get of several words may see several moments. So word and digest count as of one lease if they
 * were equal in two looks, the second begun after the end of the first. The look before a chunk is one of the two, and
 * its result is kept: later chunks of the lease begin with their bytes.
 *
 * Where gets are messages the producer looks, before and after an answer's bytes are copied (message.c).
 */
#include "transport/ucx/ucx_link.h"

#include <stdlib.h>
#include <string.h>

#include "transport/checksums.h"
#include "transport/ucx/get.h"

typedef enum read_state {
  READ_WAITING, /* for a room */
  READ_LOOKING, /* is the lease live? */
  READ_COPYING,
  READ_JUDGING /* was it, all the time? */
} read_state;

typedef struct ucx_read {
  kvf_data_thread_read common;
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
  kvf_segment_cursor cursor;
} ucx_read;

/* A get of the link's has failed. */
static void link_get_failed(kvf_ucx *ucx, kvf_ucx_link *link, kvf_ucs_status error);

/* Frees the link if it was given back and nothing of it is left. */
static void link_settle(kvf_ucx *ucx, kvf_ucx_link *link);

/* ---- the end of a read ---- */

static void start_waiting(kvf_ucx *ucx);

/* The bytes that its gets have written to a device become visible for all of the device's work. So no write is left
 * that could reach the blocks' next owner. */
static bool flush(const ucx_read *read)
{
  return read->cursor.segments == 0 || kvf_memory_flush(&read->memory->devices);
}

static void report(kvf_ucx *ucx, ucx_read *read, const kvf_read_result *result)
{
  kvf_ucx_link *link = read->link;
  kvf_list_remove(&read->in_reads);
  kvf_list_remove(&read->in_queue);
  kvf_list_remove(&read->batch.in_ready);
  if (read->state != READ_WAITING) {
    kvf_ucx_room_give(ucx, &read->batch);
    kvf_ucx_memory_drop(read->memory);
  }
  kvf_data_thread_read_done(&read->common, result);
  free(read);
  link_settle(ucx, link);
}

static void end(kvf_ucx *ucx, ucx_read *read, kvf_status status)
{
  (void)flush(read); /* if it fails the device is lost, and the node says so */
  const kvf_read_result result = {
      .id = read->common.transfer.id, .status = status, .bytes = read->common.arrived_bytes};
  report(ucx, read, &result);
}

static void end_judged(kvf_ucx *ucx, ucx_read *read)
{
  kvf_read_result result = {.id = read->common.transfer.id,
                            .status = KVF_OK,
                            .sample = ucx->rooms[read->batch.room].sample,
                            .bytes = read->common.arrived_bytes,
                            .work = {.pieces = read->cursor.segments}};
  if (!flush(read)) {
    result.status = KVF_TRANSFER_FAILED;
  } else if (read->state == READ_JUDGING) {
    kvf_checksums_judge(&read->common.chunk, &result);
  }
  report(ucx, read, &result);
}

/* ---- steps ---- */

static kvf_ucx_seen *place_of(kvf_ucx_link *link, uint32_t slot)
{
  return &link->seen[slot % KVF_UCX_SEEN];
}

static void note_seen(ucx_read *read, kvf_fence_entry entry)
{
  const uint32_t slot = read->common.transfer.lease.slot;
  read->seen = entry;
  *place_of(read->link, slot) = (kvf_ucx_seen){.slot = slot, .entry = entry};
}

static void look(ucx_read *read, read_state state)
{
  read->state = state;
  kvf_ucx_sample_start(&read->batch, read->link, read->common.transfer.lease.slot);
}

static uint32_t get_bytes_max(const kvf_ucx_link *link)
{
  return link->has_messages ? kvf_ucx_ask_bytes_max(kvf_ucx_of(link->common.base.transport)) : KVF_UCX_GET_BYTES_MAX;
}

/* As many gets as may be in flight. */
static void copy(ucx_read *read)
{
  const kvf_ucx_link *link = read->link;
  kvf_segment segment;
  while (!kvf_ucx_batch_is_full(&read->batch) && read->batch.error == KVF_UCS_OK &&
         kvf_segments_next(&read->cursor, &segment, 1, get_bytes_max(link)) == 1) {
    kvf_ucx_get_start(&read->batch, link, segment.remote_region, segment.remote_offset,
                      kvf_segment_local(&read->common.chunk, &segment), &read->memory->mems[segment.local_region],
                      (uint32_t)segment.bytes);
  }
  kvf_ucx_asks_send(read->batch.ucx, link);
}

static void begin_copy(ucx_read *read)
{
  kvf_fence_barrier(); /* UCX may copy itself, in this thread */
  read->state = READ_COPYING;
  read->batch.ended_bytes = 0;
  read->cursor = kvf_segments_begin(&read->common.chunk);
  if (read->common.bytes == 0) {
    look(read, READ_JUDGING);
    return;
  }
  copy(read);
}

static void looked(kvf_ucx *ucx, ucx_read *read)
{
  const kvf_lease *lease = &read->common.transfer.lease;
  const kvf_fence_sample *sample = &ucx->rooms[read->batch.room].sample;
  bool live =
      sample->entry.word == kvf_fence_word_live(lease->id) && sample->head.magic == KVF_FENCE_MAGIC &&
      memcmp(&sample->head.incarnation, &read->link->common.incarnation, sizeof(sample->head.incarnation)) == 0 &&
      sample->head.generation == read->link->common.peer_generation;
  if (!live) {
    end_judged(ucx, read);
    return;
  }
  note_seen(read, sample->entry);
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
  read->common.arrived_bytes = read->batch.ended_bytes;
  if (read->batch.claim.is_lost) {
    if (read->batch.busy == 0) {
      end_judged(ucx, read);
    }
    return;
  }
  if (read->common.arrived_bytes == read->common.bytes) {
    judge(ucx, read);
    return;
  }
  copy(read);
  kvf_data_thread_read_progress(&read->common);
}

static void judged(kvf_ucx *ucx, ucx_read *read)
{
  const kvf_fence_entry entry = ucx->rooms[read->batch.room].sample.entry;
  bool live = entry.word == kvf_fence_word_live(read->common.transfer.lease.id);
  read->samples++;
  if (!read->link->has_messages && live && entry.digest != read->seen.digest && read->samples < KVF_UCX_SAMPLES_MAX) {
    note_seen(read, entry);
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
    link_get_failed(ucx, read->link, batch->error); /* stops and, if it can, ends this read too */
  } else if (read->stop == KVF_OK && read->state == READ_COPYING) {
    copied(ucx, read);
  } else if (batch->busy == 0 && read->stop != KVF_OK) {
    end(ucx, read, read->stop);
  } else if (batch->busy == 0 && read->state == READ_LOOKING) {
    looked(ucx, read);
  } else if (batch->busy == 0) {
    judged(ucx, read);
  }
  start_waiting(ucx);
}

/* ---- start ---- */

/* Whether the read can begin, else why not. */
static kvf_status prepare(ucx_read *read)
{
  kvf_status status = kvf_data_thread_read_prepare(&read->common);
  return status == KVF_OK && read->common.transfer.lease.slot >= read->link->table_slots ? KVF_LEASE_UNKNOWN : status;
}

static void begin(kvf_ucx *ucx, ucx_read *read)
{
  const kvf_lease *lease = &read->common.transfer.lease;
  const kvf_ucx_seen *seen = place_of(read->link, lease->slot);
  read->memory = ucx->memory;
  read->memory->refs++;
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
    kvf_status status = prepare(read);
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
  ucx_read *read = KVF_CONTAINER_OF(command, ucx_read, common.start);
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
    read->stop_at_ns = kvf_time_add(ucx->data_thread.now_ns, KVF_UCX_STOP_NS);
    kvf_list_push_back(&ucx->stopping, &read->in_queue);
  }
}

static void run_cancel(void *owner, kvf_command *command)
{
  stop(owner, KVF_CONTAINER_OF(command, ucx_read, common.cancel), KVF_CANCELLED);
}

void kvf_ucx_reads_stop(kvf_ucx *ucx, kvf_ucx_link *link, kvf_status status)
{
  const kvf_list *last = link->reads.prev;
  kvf_list *next = link->reads.next;
  bool over = kvf_list_is_empty(&link->reads);
  while (!over) {
    ucx_read *read = KVF_CONTAINER_OF(next, ucx_read, in_reads);
    over = next == last; /* the link may be gone with it */
    next = next->next;
    stop(ucx, read, status);
  }
}

static void reads_forget(const kvf_ucx_link *link)
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
    if (read->link->common.state == KVF_DATA_THREAD_LINK_DOWN) {
      continue; /* its endpoint is being closed: there is nothing more that could be done */
    }
    if (read->stop_at_ns > ucx->data_thread.now_ns) {
      return read->stop_at_ns;
    }
    (void)kvf_data_thread_link_fail(&read->link->common, KVF_TRANSFER_FAILED,
                                    "a cancelled read did not end: its endpoint is closed");
    return ucx->data_thread.now_ns; /* the list has changed */
  }
  return KVF_TIME_NEVER;
}

/* ---- operations ---- */

kvf_status kvf_ucx_read_start(kvf_link *base, const kvf_transfer *request)
{
  ucx_read *read = calloc(1, sizeof(*read));
  if (read == NULL) {
    return KVF_NO_MEMORY;
  }
  read->link = KVF_CONTAINER_OF(base, kvf_ucx_link, common.base);
  kvf_list_init(&read->in_reads);
  kvf_list_init(&read->in_queue);
  kvf_ucx_batch_init(&read->batch, kvf_ucx_of(base->transport), step);
  kvf_data_thread_read_start(base, request, &read->common, run_start, run_cancel);
  return KVF_OK;
}

/* ---- links: connected, checked, failed, given back ---- */

/* ---- failing ---- */

static void closed(kvf_ucx_link *link)
{
  kvf_ucx *ucx = kvf_ucx_of(link->common.base.transport);
  link->ep = NULL;
  link->is_closing = false;
  kvf_list_ensure_back(&ucx->troubled, &link->in_troubled);
}

static void on_closed(void *request, kvf_ucs_status status, void *user_data)
{
  kvf_ucx_link *link = user_data;
  (void)status;
  kvf_ucx_of(link->common.base.transport)->api->request_free(request);
  closed(link);
}

/* By force: without asking the peer, which may be stopped. UCX ends the gets in flight, and reports for each when it
 * writes no more bytes. Gets that are messages are written only by us, and end here. */
static void close_endpoint(kvf_ucx *ucx, kvf_ucx_link *link)
{
  if (link->ep == NULL || link->is_closing) {
    return;
  }
  const kvf_ucp_request_param param = {
      .op_attr_mask = KVF_UCP_OP_ATTR_FIELD_FLAGS | KVF_UCP_OP_ATTR_FIELD_CALLBACK | KVF_UCP_OP_ATTR_FIELD_USER_DATA,
      .flags = KVF_UCP_EP_CLOSE_FLAG_FORCE,
      .send = on_closed,
      .user_data = link,
  };
  link->is_closing = true;
  if (link->has_messages) {
    reads_forget(link);
    kvf_ucx_batch_forget(&link->check);
  }
  ucx->has_called = true;
  void *request = ucx->api->ep_close_nbx(link->ep, &param);
  if (request == NULL || kvf_ucs_is_error(request)) {
    closed(link);
  }
}

static void give_check_room(kvf_ucx *ucx, kvf_ucx_link *link)
{
  if (link->check.room != UINT32_MAX && link->check.busy == 0) {
    kvf_ucx_room_give(ucx, &link->check);
  }
}

void kvf_ucx_link_close(kvf_data_thread *data_thread, kvf_data_thread_link *base, kvf_status status)
{
  kvf_ucx *ucx = KVF_CONTAINER_OF(data_thread, kvf_ucx, data_thread);
  kvf_ucx_link *link = KVF_CONTAINER_OF(base, kvf_ucx_link, common);
  kvf_ucx_reads_stop(ucx, link, status);
  close_endpoint(ucx, link);
}

static void endpoint_failed(kvf_ucx *ucx, kvf_ucx_link *link, kvf_ucs_status error)
{
  if (link->common.state == KVF_DATA_THREAD_LINK_DOWN) {
    close_endpoint(ucx, link); /* what a link that is given back has in flight need not be waited for */
  } else if (error == KVF_UCS_ERR_NO_MEMORY) {
    (void)kvf_data_thread_link_fail(&link->common, KVF_TRANSFER_FAILED, "%s", kvf_ucx_text(ucx, error));
  } else {
    (void)kvf_data_thread_link_fail(&link->common, KVF_PEER_DOWN, "%s", kvf_ucx_text(ucx, error));
  }
}

static void link_get_failed(kvf_ucx *ucx, kvf_ucx_link *link, kvf_ucs_status error)
{
  endpoint_failed(ucx, link, link->error != KVF_UCS_OK ? link->error : error);
}

static void on_error(void *argument, kvf_ucp_ep ep, kvf_ucs_status status)
{
  kvf_ucx_link *link = argument;
  kvf_ucx *ucx = kvf_ucx_of(link->common.base.transport);
  (void)ep;
  if (link->error == KVF_UCS_OK) {
    link->error = status;
  }
  kvf_list_ensure_back(&ucx->troubled, &link->in_troubled);
}

/* ---- connecting ---- */

static kvf_status check_description(const kvf_ucx *ucx, kvf_ucx_link *link, const kvf_ucx_description *description,
                                    char *message)
{
  const kvf_region_layout *remote = link->common.pages->regions;
  const uint32_t regions = link->common.pages->regions_count;
  const uint32_t groups = kvf_paging_lay_out_checksums(link->common.pages);
  bool possible = kvf_address_is_possible(description->table.address, kvf_fence_table_bytes(description->table_slots));
  if (memcmp(&description->incarnation, &link->common.incarnation, sizeof(link->common.incarnation)) != 0) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description is of another incarnation");
  }
  if (description->ucx_major != ucx->api->major) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "UCX is %u.%u there and %u.%u here", description->ucx_major,
                    description->ucx_minor, ucx->api->major, ucx->api->minor);
  }
  if (description->regions_count != regions ||
      (description->checksums_count != 0 && description->checksums_count != groups)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description has %u regions and %u checksums, not %u and %u",
                    (unsigned)description->regions_count, (unsigned)description->checksums_count, (unsigned)regions,
                    (unsigned)groups);
  }
  for (uint32_t i = 0; i < description->regions_count + description->checksums_count; i++) {
    possible =
        possible && kvf_address_is_possible(description->memories[i].address, kvf_region_layout_bytes(&remote[i]));
  }
  return possible ? KVF_OK : kvf_fail(KVF_TRANSFER_SETUP, message, "its description has an impossible address");
}

static bool has_devices(const kvf_ucx *ucx, const kvf_paging *theirs)
{
  const kvf_paging *ours = ucx->memory->pages;
  bool has = !kvf_memory_all_are_addressable(ours->local, ours->regions_count);
  for (uint32_t i = 0; i < theirs->regions_count; i++) {
    has = has || theirs->regions[i].memory != KVF_MEMORY_HOST;
  }
  return has;
}

/* Device memory is read only by UCX's own gets. The bytes of a message are written by address, inside UCX, where there
 * is no time to wait for a device. The transport tcp does that, in pieces that are copied while others are on their
 * way. */
static kvf_status check_memory(const kvf_ucx *ucx, const kvf_ucx_link *link, char *message)
{
  if (!has_devices(ucx, link->common.pages)) {
    return KVF_OK;
  }
  if (!ucx->has_cuda) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "it has memory of GPUs, and " KVF_UCX_NO_CUDA);
  }
  if (link->has_messages) {
    return kvf_fail(KVF_TRANSFER_SETUP, message,
                    "no network between it and here reads memory by itself: memory of GPUs goes another way");
  }
  return KVF_OK;
}

static kvf_ucs_status open_endpoint(kvf_ucx *ucx, kvf_ucx_link *link, const kvf_ucx_description *description)
{
  const kvf_ucp_ep_params params = {
      .field_mask = KVF_UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | KVF_UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                    KVF_UCP_EP_PARAM_FIELD_ERR_HANDLER,
      .address = description->worker,
      .err_mode = KVF_UCP_ERR_HANDLING_MODE_PEER,
      .err_handler = {.cb = on_error, .arg = link},
  };
  kvf_ucs_status error = ucx->api->ep_create(ucx->reader, &params, &link->ep);
  if (error != KVF_UCS_OK) {
    link->ep = NULL;
    return error;
  }
  link->has_messages = !kvf_ucx_path_reads_memory(ucx->api, link->ep);
  const uint32_t count = kvf_paging_regions(link->common.pages);
  for (uint32_t i = 0; error == KVF_UCS_OK && i <= count; i++) {
    const kvf_ucx_memory_key *memory = i < count ? &description->memories[i] : &description->table;
    link->bases[i] = memory->address;
    error = ucx->api->ep_rkey_unpack(link->ep, memory->key, &link->keys[i]);
  }
  return error;
}

static kvf_status connect_with(kvf_ucx *ucx, kvf_ucx_link *link, kvf_ucx_memory_key *memories, char *message)
{
  kvf_ucx_description description;
  kvf_status status = kvf_ucx_description_read(link->description, link->description_bytes, memories, &description);
  if (status != KVF_OK) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description is malformed");
  }
  status = check_description(ucx, link, &description, message);
  if (status != KVF_OK) {
    return status;
  }
  link->table_slots = description.table_slots;
  kvf_data_thread_agree_on_checksums(&link->common, description.checksums_count > 0);
  kvf_ucs_status error = open_endpoint(ucx, link, &description);
  if (error != KVF_UCS_OK) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "no endpoint: %s", kvf_ucx_text(ucx, error));
  }
  status = check_memory(ucx, link, message);
  if (status != KVF_OK) {
    return status;
  }
  if (!kvf_ucx_room_take(ucx, &link->check, 0)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "too many links and reads at a time");
  }
  kvf_ucx_sample_start(&link->check, link, KVF_UCX_SLOT_NONE);
  return KVF_OK;
}

static kvf_status begin_check(kvf_ucx *ucx, kvf_ucx_link *link, char *message)
{
  kvf_status status = kvf_data_thread_link_begin(&link->common, message);
  if (status != KVF_OK) {
    return status;
  }
  kvf_ucx_memory_key *memories = malloc(KVF_UCX_MEMORIES_MAX * sizeof(*memories));
  if (memories == NULL) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "no memory for its keys");
  }
  status = connect_with(ucx, link, memories, message);
  free(memories);
  return status;
}

static void run_connect(void *owner, kvf_command *command)
{
  kvf_ucx_link *link = KVF_CONTAINER_OF(command, kvf_ucx_link, common.connect);
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_status status = begin_check(owner, link, message);
  if (status != KVF_OK) {
    (void)kvf_data_thread_link_fail(&link->common, status, "%s", message);
  }
}

/* The head of the peer's fence table has come: whether the memory is that of the peer that described itself. */
static void checked(kvf_ucx *ucx, kvf_ucx_batch *batch)
{
  kvf_ucx_link *link = KVF_CONTAINER_OF(batch, kvf_ucx_link, check);
  if (batch->busy != 0) {
    return;
  }
  if (link->common.state == KVF_DATA_THREAD_LINK_CONNECTING) {
    const kvf_fence_head *head = &ucx->rooms[link->check.room].sample.head;
    if (batch->error != KVF_UCS_OK) {
      link_get_failed(ucx, link, batch->error);
    } else if (head->magic != KVF_FENCE_MAGIC || head->slots != link->table_slots ||
               memcmp(&head->incarnation, &link->common.incarnation, sizeof(link->common.incarnation)) != 0) {
      (void)kvf_data_thread_link_fail(&link->common, KVF_TRANSFER_SETUP, "its fence table is of another incarnation");
    } else if (head->generation != link->common.peer_generation) {
      (void)kvf_data_thread_link_fail(&link->common, KVF_AGAIN, "it has registered other memory");
    } else {
      kvf_data_thread_link_up(&link->common);
    }
  }
  give_check_room(ucx, link);
  link_settle(ucx, link);
}

/* ---- the end ---- */

static void link_free(const kvf_ucx *ucx, kvf_ucx_link *link)
{
  for (uint32_t i = 0; i <= kvf_paging_regions(link->common.pages); i++) {
    if (link->keys[i] != NULL) {
      ucx->api->rkey_destroy(link->keys[i]);
    }
  }
  kvf_list_remove(&link->check.in_ready);
  kvf_list_remove(&link->in_troubled);
  kvf_list_remove(&link->in_leaving);
  kvf_list_remove(&link->common.in_links);
  free(link->common.pages);
  free(link);
}

static void link_settle(kvf_ucx *ucx, kvf_ucx_link *link)
{
  if (!link->is_given_back || link->check.busy != 0 || !kvf_list_is_empty(&link->reads)) {
    return;
  }
  close_endpoint(ucx, link);
  if (link->ep == NULL) {
    give_check_room(ucx, link);
    link_free(ucx, link);
  }
}

static void run_disconnect(void *owner, kvf_command *command)
{
  kvf_ucx *ucx = owner;
  kvf_ucx_link *link = KVF_CONTAINER_OF(command, kvf_ucx_link, common.disconnect);
  if (link->common.state != KVF_DATA_THREAD_LINK_DOWN) {
    link->common.state = KVF_DATA_THREAD_LINK_DOWN;
    link->common.failure = KVF_CANCELLED;
  }
  kvf_list_remove(&link->common.in_connecting);
  kvf_ucx_reads_stop(ucx, link, KVF_CANCELLED);
  link->is_given_back = true;
  link->common.deadline_ns = kvf_time_add(ucx->data_thread.now_ns, KVF_UCX_STOP_NS);
  kvf_list_push_back(&ucx->leaving, &link->in_leaving);
  if (link->has_messages) {
    close_endpoint(ucx, link); /* only we write to its blocks: nothing need be waited for */
  }
  link_settle(ucx, link);
}

bool kvf_ucx_links_run(kvf_ucx *ucx)
{
  bool ran = false;
  kvf_list *node;
  while ((node = kvf_list_pop_front(&ucx->troubled)) != NULL) {
    kvf_ucx_link *link = KVF_CONTAINER_OF(node, kvf_ucx_link, in_troubled);
    if (link->error != KVF_UCS_OK) {
      endpoint_failed(ucx, link, link->error);
    }
    link_settle(ucx, link);
    ran = true;
  }
  return ran;
}

uint64_t kvf_ucx_links_tick(kvf_ucx *ucx)
{
  while (!kvf_list_is_empty(&ucx->leaving)) {
    kvf_ucx_link *link = KVF_CONTAINER_OF(ucx->leaving.next, kvf_ucx_link, in_leaving);
    if (link->common.deadline_ns > ucx->data_thread.now_ns) {
      return link->common.deadline_ns;
    }
    kvf_list_remove(&link->in_leaving);
    close_endpoint(ucx, link);
  }
  return KVF_TIME_NEVER;
}

/* ---- operations ---- */

/* The link and its arrays in one allocation, those with the strictest alignment first. */
kvf_status kvf_ucx_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  *out = NULL;
  if (!kvf_link_spec_is_whole(spec)) {
    return KVF_TRANSFER_SETUP;
  }
  size_t count = (size_t)spec->remote_count + KVF_GROUPS_MAX + 1;
  size_t each = sizeof(uint64_t) + sizeof(kvf_ucp_rkey);
  kvf_ucx_link *link = calloc(1, sizeof(*link) + count * each + spec->description_bytes);
  if (link == NULL || !kvf_data_thread_link_init(&link->common, transport, spec, run_connect, run_disconnect)) {
    return KVF_NO_MEMORY;
  }
  link->bases = (void *)(link + 1);
  link->keys = (void *)(link->bases + count);
  link->description_bytes = spec->description_bytes;
  link->description = memcpy(link->keys + count, spec->description, spec->description_bytes);
  kvf_list_init(&link->in_troubled);
  kvf_list_init(&link->in_leaving);
  kvf_list_init(&link->reads);
  kvf_ucx_batch_init(&link->check, kvf_ucx_of(transport), checked);
  *out = &link->common.base;
  kvf_data_thread_connect(&link->common);
  return KVF_OK;
}
