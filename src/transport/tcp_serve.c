/* Answers to READs: authorised right before they begin, sent from the blocks, and closed by what the fence says after
 * the kernel has taken the last byte. */
#include "transport/tcp_server.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_FRAME_BYTES (KVF_FRAME_HEADER_BYTES + KVF_DATA_CHUNK_BYTES_MAX)
#define TRAILER_FRAME_BYTES (KVF_FRAME_HEADER_BYTES + KVF_DATA_TRAILER_BYTES_MAX)

/* Bytes of a system call, for a chunk's first and for later ones. The kernel passes most of a call's bytes on when it
 * ends: of larger calls the consumer could receive nothing while we send, and the bytes would leave the cache in
 * between. */
#define CALL_BYTES_FIRST (128u << 10)
#define CALL_BYTES_MAX (512u << 10)

bool kvf_tcp_conn_has_room(const kvf_tcp_conn *conn)
{
  return conn->requests_count < KVF_TCP_REQUESTS_MAX && conn->items_count < KVF_TCP_ITEMS_MAX;
}

static void request_drop(kvf_tcp_conn *conn, kvf_tcp_request *request)
{
  conn->requests_count--;
  conn->items_count -= request->items_count;
  free(request);
}

void kvf_tcp_requests_free(kvf_tcp_conn *conn)
{
  if (conn->sending != NULL) {
    request_drop(conn, conn->sending);
    conn->sending = NULL;
  }
  while (!kvf_list_is_empty(&conn->requests)) {
    kvf_list *node = kvf_list_pop_front(&conn->requests);
    request_drop(conn, KVF_CONTAINER_OF(node, kvf_tcp_request, in_requests));
  }
}

/* ---- what comes in ---- */

bool kvf_tcp_on_read(kvf_tcp *tcp, kvf_tcp_conn *conn, const uint8_t *body, size_t body_bytes)
{
  kvf_data_read read;
  if (kvf_data_read_decode(body, body_bytes, &read) != KVF_OK) {
    return kvf_tcp_conn_close(tcp, conn, KVF_LOG_WARN, KVF_PROTOCOL, "malformed read");
  }
  kvf_tcp_request *request = malloc(sizeof(*request) + read.items_count * sizeof(request->items[0]));
  if (request == NULL) {
    return kvf_tcp_conn_close(tcp, conn, KVF_LOG_ERROR, KVF_NO_MEMORY, "no memory for a read of its");
  }
  *request = (kvf_tcp_request){.read_id = read.read_id,
                               .lease = read.lease,
                               .head = read.remote_head,
                               .heads = read.heads,
                               .sums = read.sums,
                               .items_count = read.items_count};
  kvf_data_read_items(&read, request->items);
  kvf_list_init(&request->in_requests);
  if (conn->requests_count == 0) {
    conn->taken_ns = tcp->now_ns;
  }
  kvf_list_push_back(&conn->requests, &request->in_requests);
  conn->requests_count++;
  conn->items_count += request->items_count;
  kvf_list_remove(&conn->in_conns);
  kvf_list_push_back(&tcp->serving, &conn->in_conns);
  return true;
}

bool kvf_tcp_on_cancel(kvf_tcp *tcp, kvf_tcp_conn *conn, const uint8_t *body, size_t body_bytes)
{
  kvf_data_cancel cancel;
  if (kvf_data_cancel_decode(body, body_bytes, &cancel) != KVF_OK) {
    return kvf_tcp_conn_close(tcp, conn, KVF_LOG_WARN, KVF_PROTOCOL, "malformed cancel");
  }
  for (kvf_list *node = conn->requests.next; node != &conn->requests; node = node->next) {
    kvf_tcp_request *request = KVF_CONTAINER_OF(node, kvf_tcp_request, in_requests);
    request->cancelled = request->cancelled || request->read_id == cancel.read_id;
  }
  return true;
}

/* ---- what goes out ---- */

/* Whether the request's bytes may be sent; if so conn->chunk is set. */
static kvf_status authorize(kvf_tcp *tcp, kvf_tcp_conn *conn, kvf_tcp_request *request, uint64_t *bytes)
{
  const kvf_tcp_memory *memory = tcp->memory;
  if (request->cancelled) {
    return KVF_CANCELLED;
  }
  if (memory == NULL || request->lease.slot >= memory->table_slots) {
    return KVF_LEASE_UNKNOWN;
  }
  if (request->sums && memory->sums_count == 0) {
    return KVF_INVALID;
  }
  kvf_status status = tcp->host.authorize(tcp->host.context, &request->lease, request->items, request->items_count);
  if (status != KVF_OK) {
    return status;
  }
  for (uint32_t i = 0; i < request->items_count; i++) {
    request->items[i].local_block = request->items[i].remote_block;
  }
  conn->chunk = (kvf_chunk){.local = memory->served,
                            .remote = memory->layouts,
                            .regions_count = memory->regions_count + (request->sums ? memory->sums_count : 0),
                            .items_count = request->items_count,
                            .items = request->items,
                            .remote_head = request->head,
                            .local_head = request->head,
                            .heads = request->heads};
  return kvf_chunk_check(&conn->chunk, bytes);
}

/* The last byte has left the blocks: only now the fence tells whether all were the lease's. */
static void end_sending(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  kvf_tcp_request *request = conn->sending;
  kvf_fence_entry entry = kvf_fence_load(tcp->memory->table, request->lease.slot);
  kvf_data_trailer trailer = {.read_id = request->read_id, .word = entry.word, .digest = entry.digest};
  uint8_t *out = kvf_tcp_stage(&conn->stream, TRAILER_FRAME_BYTES);
  assert(out != NULL); /* nothing else is staged, or this has been asked for */
  size_t body_bytes = 0;
  kvf_status encoded =
      kvf_data_trailer_encode(&trailer, out + KVF_FRAME_HEADER_BYTES, KVF_DATA_TRAILER_BYTES_MAX, &body_bytes);
  assert(encoded == KVF_OK);
  (void)encoded;
  kvf_frame_header_encode(KVF_FRAME_TRAILER, (uint32_t)body_bytes, out);
  kvf_tcp_staged(&conn->stream, KVF_FRAME_HEADER_BYTES + body_bytes);
  conn->sending = NULL;
  request_drop(conn, request);
}

/* Stages the header of the next answer. One that is a refusal is whole with that, and so is a small one, which goes out
 * in one call. */
static void begin_next(kvf_tcp *tcp, kvf_tcp_conn *conn, uint8_t *out)
{
  kvf_list *node = kvf_list_pop_front(&conn->requests);
  kvf_tcp_request *request = KVF_CONTAINER_OF(node, kvf_tcp_request, in_requests);
  uint64_t bytes = 0;
  kvf_status status = authorize(tcp, conn, request, &bytes);
  kvf_data_chunk chunk = {.read_id = request->read_id, .status = status, .payload_bytes = status == KVF_OK ? bytes : 0};
  size_t body_bytes = 0;
  kvf_status encoded =
      kvf_data_chunk_encode(&chunk, out + KVF_FRAME_HEADER_BYTES, KVF_DATA_CHUNK_BYTES_MAX, &body_bytes);
  assert(encoded == KVF_OK);
  (void)encoded;
  kvf_frame_header_encode(KVF_FRAME_CHUNK, (uint32_t)body_bytes, out);
  kvf_tcp_staged(&conn->stream, KVF_FRAME_HEADER_BYTES + body_bytes);
  if (status != KVF_OK) {
    request_drop(conn, request);
    return;
  }
  conn->sending = request;
  conn->call_bytes = CALL_BYTES_FIRST;
  conn->payload = (kvf_tcp_payload){.cursor = kvf_segments_begin(&conn->chunk), .left_bytes = bytes};
  out = bytes <= KVF_TCP_COPIED_BYTES_MAX ? kvf_tcp_stage(&conn->stream, bytes + TRAILER_FRAME_BYTES) : NULL;
  if (out != NULL) {
    kvf_tcp_copy(&conn->payload, out);
    kvf_tcp_staged(&conn->stream, bytes);
    end_sending(tcp, conn);
  }
}

static void begin_what_fits(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  while (conn->sending == NULL && !kvf_list_is_empty(&conn->requests)) {
    uint8_t *out = kvf_tcp_stage(&conn->stream, CHUNK_FRAME_BYTES);
    if (out == NULL) {
      return;
    }
    begin_next(tcp, conn, out);
  }
}

static kvf_tcp_io send_once(kvf_tcp *tcp, kvf_tcp_conn *conn, uint64_t budget_bytes)
{
  if (conn->sending == NULL) {
    return kvf_tcp_send(&conn->stream, NULL, 0);
  }
  tcp->is_bulk = true;
  uint64_t bytes = conn->call_bytes < budget_bytes ? conn->call_bytes : budget_bytes;
  if (conn->call_bytes < CALL_BYTES_MAX) {
    conn->call_bytes *= 2;
  }
  return kvf_tcp_send(&conn->stream, &conn->payload, bytes);
}

static void be_blocked(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  conn->is_blocked = true;
  tcp->stuck_at_ns = kvf_time_min(tcp->stuck_at_ns, kvf_time_add(conn->taken_ns, kvf_tcp_stuck_ns(tcp)));
}

bool kvf_tcp_serve(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  uint64_t budget_bytes = KVF_TCP_TURN_BYTES;
  conn->is_blocked = false;
  for (;;) {
    begin_what_fits(tcp, conn);
    if (conn->sending == NULL && kvf_tcp_unsent_bytes(&conn->stream) == 0) {
      return true;
    }
    if (budget_bytes == 0) {
      be_blocked(tcp, conn);
      return true;
    }
    uint64_t before = conn->payload.left_bytes;
    size_t unsent = kvf_tcp_unsent_bytes(&conn->stream);
    kvf_tcp_io io = send_once(tcp, conn, budget_bytes);
    if (io == KVF_TCP_IO_CLOSED || io == KVF_TCP_IO_FAILED) {
      return kvf_tcp_conn_broken(tcp, conn);
    }
    budget_bytes -= before - conn->payload.left_bytes;
    if (conn->payload.left_bytes < before || kvf_tcp_unsent_bytes(&conn->stream) < unsent) {
      conn->taken_ns = tcp->now_ns;
    }
    bool sent = conn->payload.left_bytes == 0 && kvf_tcp_unsent_bytes(&conn->stream) == 0;
    if (conn->sending != NULL && sent) {
      end_sending(tcp, conn);
    } else if (io == KVF_TCP_IO_BLOCKED) {
      if (!kvf_tcp_is_its_turn(&conn->stream)) {
        be_blocked(tcp, conn);
      }
      return true;
    }
  }
}
