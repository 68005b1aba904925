/* Reads: sent, received into their blocks, judged whole, reported. */
#include <assert.h>
#include <stdlib.h>

#include "transport/sums.h"
#include "transport/tcp_link.h"

#define CANCEL_FRAME_BYTES (KVF_FRAME_HEADER_BYTES + KVF_DATA_CANCEL_BYTES_MAX)

/* ---- the end of a read ---- */

static void drop_if_over(kvf_tcp_read *read)
{
  if (read->is_reported && !kvf_list_is_linked(&read->in_link)) {
    free(read);
  }
}

/* From here nothing writes to its blocks. Frees the read unless its answer is still to come. */
static void report(kvf_tcp *tcp, kvf_tcp_read *read, const kvf_read_result *result)
{
  kvf_commands_close_read(&tcp->commands, &read->posted);
  read->is_reported = true;
  kvf_driver_read_closed(&tcp->driver, read->posted.read.small);
  tcp->host.read_done(tcp->host.context, result);
  drop_if_over(read);
}

static void end(kvf_tcp *tcp, kvf_tcp_read *read, kvf_status status)
{
  kvf_read_result result = {.id = read->posted.read.id, .status = status, .bytes = read->landed_bytes};
  report(tcp, read, &result);
}

/* Their answers will never come. */
static void forget(kvf_list *reads)
{
  while (!kvf_list_is_empty(reads)) {
    kvf_tcp_read *read = KVF_CONTAINER_OF(reads->next, kvf_tcp_read, in_link);
    kvf_list_remove(&read->in_link);
    drop_if_over(read);
  }
}

static kvf_tcp_read *first_open(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_posted_read *posted = kvf_commands_open_read(&tcp->commands, &link->open);
  return posted == NULL ? NULL : KVF_CONTAINER_OF(posted, kvf_tcp_read, posted);
}

void kvf_tcp_reads_end(kvf_tcp *tcp, kvf_tcp_link *link, kvf_status status)
{
  forget(&link->waiting);
  forget(&link->sent);
  link->sent_count = 0;
  kvf_tcp_read *read;
  while ((read = first_open(tcp, link)) != NULL) {
    end(tcp, read, status);
  }
}

/* ---- start and cancel ---- */

/* Whether the read can be sent, else why not. */
static kvf_status prepare(const kvf_tcp *tcp, kvf_tcp_read *read)
{
  kvf_tcp_link *link = read->link;
  if (link->state != KVF_TCP_LINK_UP) {
    return link->state == KVF_TCP_LINK_DOWN ? link->failure : KVF_TRANSFER_SETUP;
  }
  if (link->memory != tcp->memory) {
    return KVF_TRANSFER_SETUP; /* made for memory that is not registered any more */
  }
  read->chunk =
      kvf_chunk_of(&read->posted.read, link->memory->regions, link->remote, link->remote_count + link->sums_count);
  return kvf_chunk_check(&read->chunk, &read->bytes);
}

static void run_start(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  kvf_tcp_read *read = KVF_CONTAINER_OF(command, kvf_tcp_read, posted.start);
  kvf_status status = prepare(tcp, read);
  if (status != KVF_OK) {
    end(tcp, read, status);
    return;
  }
  kvf_tcp_link *link = read->link;
  read->progress_ns = tcp->now_ns;
  kvf_list_push_back(&link->waiting, &read->in_link);
  kvf_tcp_link_send_reads(tcp, link);
}

/* The producer need not begin with it. There is no room only while it takes nothing anyway. */
static bool send_cancel(kvf_tcp *tcp, kvf_tcp_read *read)
{
  kvf_tcp_stream *stream = &read->link->stream;
  kvf_data_cancel cancel = {.read_id = read->posted.read.id};
  size_t bytes = 0;
  uint8_t *out = kvf_tcp_stage(stream, CANCEL_FRAME_BYTES);
  if (out == NULL ||
      kvf_data_cancel_encode(&cancel, out + KVF_FRAME_HEADER_BYTES, KVF_DATA_CANCEL_BYTES_MAX, &bytes) != KVF_OK) {
    return true;
  }
  kvf_frame_header_encode(KVF_FRAME_CANCEL, (uint32_t)bytes, out);
  kvf_tcp_staged(stream, KVF_FRAME_HEADER_BYTES + bytes);
  return kvf_tcp_link_flush(tcp, read->link);
}

static bool has_begun(const kvf_tcp_read *read)
{
  const kvf_tcp_link *link = read->link;
  bool chunk_has_come = link->awaits == KVF_TCP_AWAITS_PAYLOAD || link->awaits == KVF_TCP_AWAITS_TRAILER;
  return chunk_has_come && link->sent.next == &read->in_link;
}

static bool was_sent(const kvf_tcp_read *read)
{
  const kvf_tcp_link *link = read->link;
  for (const kvf_list *node = link->sent.next; node != &link->sent; node = node->next) {
    if (node == &read->in_link) {
      return true;
    }
  }
  return false;
}

static void cancel_read(kvf_tcp *tcp, kvf_tcp_read *read)
{
  if (!was_sent(read)) {
    kvf_list_remove(&read->in_link); /* where it waits, if it has been started */
  } else if (!has_begun(read) && !send_cancel(tcp, read)) {
    return; /* the link has failed, and reported it */
  }
  end(tcp, read, KVF_CANCELLED);
}

static void run_cancel(void *owner, kvf_command *command)
{
  cancel_read(owner, KVF_CONTAINER_OF(command, kvf_tcp_read, posted.cancel));
}

void kvf_tcp_reads_cancel(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_tcp_read *read;
  while ((read = first_open(tcp, link)) != NULL) {
    cancel_read(tcp, read);
  }
}

void kvf_tcp_read_start(kvf_link *base, const kvf_read *request)
{
  kvf_tcp_link *link = KVF_CONTAINER_OF(base, kvf_tcp_link, base);
  kvf_tcp *tcp = kvf_tcp_of(base->transport);
  kvf_tcp_read *read = malloc(sizeof(*read));
  bool caller_starts = false;
  if (read != NULL) {
    *read = (kvf_tcp_read){.link = link};
    kvf_posted_read_init(&read->posted, request, run_start, run_cancel);
    kvf_list_init(&read->in_link);
    caller_starts = kvf_driver_read_opened(&tcp->driver, request->small);
  }
  kvf_commands_start_read(&tcp->commands, &link->open, read == NULL ? NULL : &read->posted, request->id,
                          !caller_starts);
}

void kvf_tcp_read_cancel(kvf_link *base, uint64_t read_id)
{
  kvf_tcp_link *link = KVF_CONTAINER_OF(base, kvf_tcp_link, base);
  kvf_commands_cancel_read(&kvf_tcp_of(base->transport)->commands, &link->open, read_id);
}

/* ---- what goes out ---- */

/* Stages the READ of the first that waits. False: there is no room for it now. */
static bool stage_read(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_tcp_read *read = KVF_CONTAINER_OF(link->waiting.next, kvf_tcp_read, in_link);
  uint64_t room = KVF_DATA_READ_HEAD_BYTES + (uint64_t)read->posted.read.items_count * KVF_DATA_READ_RUN_BYTES;
  if (room > KVF_FRAME_BODY_BYTES_MAX) {
    room = KVF_FRAME_BODY_BYTES_MAX;
  }
  uint8_t *out = kvf_tcp_stage(&link->stream, KVF_FRAME_HEADER_BYTES + room);
  if (out == NULL) {
    return false;
  }
  kvf_data_read message = {.read_id = read->posted.read.id,
                           .lease = read->posted.read.lease,
                           .remote_head = read->posted.read.remote_head,
                           .heads = read->posted.read.heads,
                           .items_count = read->posted.read.items_count,
                           .sums = read->link->sums_count > 0};
  size_t bytes = 0;
  kvf_status status =
      kvf_data_read_encode(&message, read->posted.read.items, out + KVF_FRAME_HEADER_BYTES, room, &bytes);
  if (status != KVF_OK) {
    kvf_list_remove(&read->in_link);
    end(tcp, read, status);
    return true;
  }
  kvf_frame_header_encode(KVF_FRAME_READ, (uint32_t)bytes, out);
  kvf_tcp_staged(&link->stream, KVF_FRAME_HEADER_BYTES + bytes);
  kvf_list_remove(&read->in_link);
  kvf_list_push_back(&link->sent, &read->in_link);
  link->sent_count++;
  return true;
}

void kvf_tcp_link_send_reads(kvf_tcp *tcp, kvf_tcp_link *link)
{
  do {
    bool room = true;
    while (room && link->sent_count < KVF_TCP_REQUESTS_MAX && !kvf_list_is_empty(&link->waiting)) {
      room = stage_read(tcp, link);
    }
    if (!kvf_tcp_link_flush(tcp, link)) {
      return;
    }
  } while (!link->is_blocked && link->sent_count < KVF_TCP_REQUESTS_MAX && !kvf_list_is_empty(&link->waiting));
}

/* ---- what comes in ---- */

static kvf_tcp_read *answered(const kvf_tcp_link *link)
{
  return kvf_list_is_empty(&link->sent) ? NULL : KVF_CONTAINER_OF(link->sent.next, kvf_tcp_read, in_link);
}

static void note_bulk(kvf_tcp *tcp, const kvf_tcp_read *read)
{
  tcp->is_bulk = tcp->is_bulk || read->bytes > KVF_TCP_COPIED_BYTES_MAX;
}

static kvf_tcp_read *take_answered(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_tcp_read *read = answered(link);
  note_bulk(tcp, read);
  kvf_list_remove(&read->in_link);
  link->sent_count--;
  link->awaits = KVF_TCP_AWAITS_CHUNK;
  return read;
}

/* What a producer's refusal means to the load. */
static kvf_status refusal(int32_t status)
{
  switch (status) {
    case KVF_LEASE_EXPIRED:
    case KVF_LEASE_UNKNOWN:
    case KVF_NOT_PUBLISHED:
      return (kvf_status)status;
    case KVF_INVALID: /* it has no such block: the ticket is not of this lease */
      return KVF_BAD_TICKET;
    default:
      return KVF_TRANSFER_FAILED;
  }
}

bool kvf_tcp_link_on_chunk(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes)
{
  kvf_data_chunk chunk;
  kvf_tcp_read *read = answered(link);
  const char *wrong = NULL;
  if (kvf_data_chunk_decode(body, body_bytes, &chunk) != KVF_OK) {
    wrong = "malformed chunk";
  } else if (read == NULL || chunk.read_id != read->posted.read.id) {
    wrong = "a chunk that is not the next one";
  } else if (chunk.status == KVF_OK && chunk.payload_bytes != read->bytes) {
    wrong = "a chunk of another size than was asked for";
  }
  if (wrong != NULL) {
    kvf_tcp_link_fail(tcp, link, KVF_PROTOCOL, KVF_PROTOCOL, "%s", wrong);
    return false;
  }
  if (chunk.status == KVF_OK) {
    link->payload = (kvf_tcp_payload){.cursor = kvf_segments_begin(&read->chunk), .left_bytes = read->bytes};
    link->awaits = KVF_TCP_AWAITS_PAYLOAD;
    return true;
  }
  (void)take_answered(tcp, link);
  if (read->is_reported) {
    drop_if_over(read);
  } else {
    end(tcp, read, refusal(chunk.status));
  }
  return true;
}

kvf_tcp_io kvf_tcp_link_take_payload(kvf_tcp *tcp, kvf_tcp_link *link, uint64_t *budget_bytes)
{
  kvf_tcp_read *read = answered(link);
  uint64_t before = link->payload.left_bytes;
  kvf_tcp_io io = kvf_tcp_receive(&link->stream, &link->payload, read->is_reported, *budget_bytes);
  uint64_t landed = before - link->payload.left_bytes;
  note_bulk(tcp, read);
  *budget_bytes -= landed < *budget_bytes ? landed : *budget_bytes;
  if (link->payload.left_bytes == 0) {
    link->awaits = KVF_TCP_AWAITS_TRAILER;
  }
  if (!read->is_reported && landed > 0) {
    read->landed_bytes += landed;
    if (tcp->now_ns >= kvf_time_add(read->progress_ns, KVF_PROGRESS_NS)) {
      read->progress_ns = tcp->now_ns;
      tcp->host.read_progress(tcp->host.context, read->posted.read.id);
    }
  }
  return io;
}

bool kvf_tcp_link_on_trailer(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes)
{
  kvf_data_trailer trailer;
  kvf_tcp_read *read = answered(link);
  if (kvf_data_trailer_decode(body, body_bytes, &trailer) != KVF_OK || trailer.read_id != read->posted.read.id) {
    kvf_tcp_link_fail(tcp, link, KVF_PROTOCOL, KVF_PROTOCOL, "a trailer that is not the chunk's");
    return false;
  }
  (void)take_answered(tcp, link);
  if (read->is_reported) {
    drop_if_over(read);
    return true;
  }
  /* The session is with this incarnation, and nobody else has its key: the table can be no other's. */
  kvf_read_result result = {.id = read->posted.read.id,
                            .status = KVF_OK,
                            .sample = {.head = {.magic = KVF_FENCE_MAGIC, .incarnation = link->incarnation},
                                       .entry = {.word = trailer.word, .digest = trailer.digest}},
                            .bytes = read->landed_bytes};
  kvf_sums_judge(&read->chunk, link->sums_count, &read->posted.read.lease, &result);
  report(tcp, read, &result);
  return true;
}
