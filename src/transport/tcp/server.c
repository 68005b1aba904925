/* Connections from accepting to freeing: the proof, READs, chunks with their trailers, and who makes room for whom. */
#include "transport/tcp/server.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "memory/own_fds.h"

/* Buffers for received bytes: as long as the peer is a stranger, and later. Besides payload a connection sends a
 * challenge, or a trailer and the next chunk's header. If reads are refused, it sends several headers. */
#define STRANGER_IN_BYTES 128
#define TRUSTED_IN_BYTES (KVF_FRAME_HEADER_BYTES + KVF_FRAME_BODY_BYTES_MAX)
#define OUT_BYTES 512
#define TRUSTED_OUT_BYTES (OUT_BYTES + KVF_TCP_COPIED_BYTES_MAX)
#define TAKES_NOTHING "it has open reads, and takes no bytes"

static_assert(STRANGER_IN_BYTES >= KVF_FRAME_HEADER_BYTES + KVF_DATA_HELLO_BYTES_MAX, "a hello fits");

#define CHUNK_FRAME_BYTES (KVF_FRAME_HEADER_BYTES + KVF_DATA_CHUNK_BYTES_MAX)
#define TRAILER_FRAME_BYTES (KVF_FRAME_HEADER_BYTES + KVF_DATA_TRAILER_BYTES_MAX)

/* Bytes of a system call, for a chunk's first and for later ones. The kernel passes most of a call's bytes on when the
 * call ends. With larger calls the consumer could receive no bytes while we send, and the bytes would leave the cache
 * meanwhile. */
#define CALL_BYTES_FIRST (128u << 10)
#define CALL_BYTES_MAX (512u << 10)

/* ---- the end of a connection ---- */

/* Closes it, says why and has it counted (NULL: not worth either). It is freed at the end of the turn. False, for
 * callers to return: here each bool says whether the connection is still open. */
static bool conn_close(kvf_tcp *tcp, kvf_tcp_conn *conn, kvf_log_level level, kvf_status why, const char *message)
{
  assert(conn->stream.fd >= 0);
  if (message != NULL) {
    kvf_data_thread_log(&tcp->data_thread, level, why, &conn->peer, "connection closed: %s", message);
    tcp->data_thread.host.connection(tcp->data_thread.host.context, why);
  }
  kvf_tcp_close(tcp, &conn->stream, &conn->source);
  kvf_tcp_payload_end(tcp, &conn->payload);
  kvf_crowd_leave(conn->is_trusted ? &tcp->proved : &tcp->strangers, &conn->place);
  kvf_list_remove(&conn->in_conns);
  kvf_list_push_back(&tcp->retired, &conn->in_conns);
  return false;
}

/* The kernel could not send or receive. */
static bool conn_broken(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  const bool has_reads = conn->sending != NULL || !kvf_list_is_empty(&conn->requests);
  const char *message = NULL;                         /* a proved peer that leaves when it is done: nothing to say */
  if (conn->stream.error == ETIMEDOUT && has_reads) { /* the kernel's clock, which may be ahead of close_stuck()'s */
    return conn_close(tcp, conn, KVF_LOG_WARN, KVF_TRANSFER_STALLED, TAKES_NOTHING);
  }
  if (conn->stream.error == EPROTO) {
    kvf_status why = conn->is_trusted ? KVF_PROTOCOL : KVF_HANDSHAKE_REFUSED;
    return conn_close(tcp, conn, KVF_LOG_WARN, why, kvf_tcp_stream_why(&conn->stream));
  }
  if (conn->stream.error != 0) {
    message = kvf_tcp_stream_why(&conn->stream);
  } else if (has_reads) {
    message = "the peer left while it had reads open";
  } else if (!conn->is_trusted) {
    message = "the peer left before it had proved its key";
  }
  return conn_close(tcp, conn, KVF_LOG_INFO, KVF_PEER_DOWN, message);
}

uint64_t kvf_tcp_stuck_ns(const kvf_tcp *tcp)
{
  return kvf_ms_to_ns(kvf_socket_patience_ms(tcp->data_thread.config.handshake_timeout_ms)) / 2;
}

/* ---- answers to READs ----
 *
 * Authorised right before they begin, sent from the blocks, and closed by what the fence says after the kernel has
 * taken the last byte. */

/* Whether another READ can be taken. */
static bool conn_has_room(const kvf_tcp_conn *conn)
{
  return conn->requests_count < KVF_TCP_REQUESTS_MAX && conn->items_count < KVF_TCP_ITEMS_MAX;
}

static void request_drop(kvf_tcp_conn *conn, kvf_tcp_request *request)
{
  conn->requests_count--;
  conn->items_count -= request->transfer.items_count;
  free(request);
}

static void requests_free(kvf_tcp_conn *conn)
{
  kvf_list *node;
  if (conn->sending != NULL) {
    request_drop(conn, conn->sending);
  }
  while ((node = kvf_list_pop_front(&conn->requests)) != NULL) {
    request_drop(conn, KVF_CONTAINER_OF(node, kvf_tcp_request, in_requests));
  }
}

/* ---- what comes in ---- */

static bool on_read(kvf_tcp *tcp, kvf_tcp_conn *conn, const uint8_t *body, size_t body_bytes)
{
  kvf_data_read read;
  if (kvf_data_read_decode(body, body_bytes, &read) != KVF_OK) {
    return conn_close(tcp, conn, KVF_LOG_WARN, KVF_PROTOCOL, "malformed read");
  }
  kvf_tcp_request *request = malloc(sizeof(*request) + read.items_count * sizeof(request->items[0]));
  if (request == NULL) {
    return conn_close(tcp, conn, KVF_LOG_ERROR, KVF_NO_MEMORY, "no memory for one of its reads");
  }
  *request = (kvf_tcp_request){.selection = read.selection,
                               .transfer = {.id = read.read_id,
                                            .lease = read.lease,
                                            .remote_head = read.remote_head,
                                            .local_head = read.local_head,
                                            .heads = read.heads,
                                            .items_count = read.items_count,
                                            .items = request->items}};
  kvf_data_read_items(&read, request->items);
  kvf_list_init(&request->in_requests);
  if (conn->requests_count == 0) {
    conn->taken_ns = tcp->data_thread.now_ns;
  }
  kvf_list_push_back(&conn->requests, &request->in_requests);
  conn->requests_count++;
  conn->items_count += request->transfer.items_count;
  kvf_list_remove(&conn->in_conns);
  kvf_list_push_back(&tcp->serving, &conn->in_conns);
  return true;
}

static bool on_cancel(kvf_tcp *tcp, kvf_tcp_conn *conn, const uint8_t *body, size_t body_bytes)
{
  kvf_data_cancel cancel;
  if (kvf_data_cancel_decode(body, body_bytes, &cancel) != KVF_OK) {
    return conn_close(tcp, conn, KVF_LOG_WARN, KVF_PROTOCOL, "malformed cancel");
  }
  for (kvf_list *node = conn->requests.next; node != &conn->requests; node = node->next) {
    kvf_tcp_request *request = KVF_CONTAINER_OF(node, kvf_tcp_request, in_requests);
    request->cancelled = request->cancelled || request->transfer.id == cancel.read_id;
  }
  return true;
}

/* ---- what goes out ---- */

/* Turns positions into blocks. A lease's count whole blocks, the reader's those pieces that it has room for in one. */
static kvf_status authorize_items(kvf_tcp *tcp, kvf_tcp_request *request)
{
  const uint32_t count = request->transfer.items_count;
  for (uint32_t i = 0; i < count; i++) {
    kvf_transfer_item *item = &request->items[i];
    item->local_block = item->position % request->selection.splits[item->group];
    item->position /= request->selection.splits[item->group];
  }
  kvf_status status =
      tcp->data_thread.host.authorize(tcp->data_thread.host.context, &request->transfer.lease, request->items, count);
  for (uint32_t i = 0; i < count; i++) {
    kvf_transfer_item *item = &request->items[i];
    item->position = item->position * request->selection.splits[item->group] + item->local_block;
    item->local_block = item->remote_block; /* ours are the only ones that are known here */
  }
  return status;
}

/* Whether the request's bytes may be sent; if so conn->chunk is set. */
static kvf_status authorize(kvf_tcp *tcp, kvf_tcp_conn *conn, kvf_tcp_request *request, uint64_t *bytes)
{
  const kvf_tcp_memory *memory = tcp->memory;
  if (request->cancelled) {
    return KVF_CANCELLED;
  }
  if (memory == NULL) {
    return KVF_AGAIN; /* it is of the registration before */
  }
  if (request->transfer.lease.slot >= memory->pages->table_slots) {
    return KVF_LEASE_UNKNOWN;
  }
  kvf_status status = authorize_items(tcp, request);
  const bool is_over = status == KVF_LEASE_EXPIRED || status == KVF_LEASE_UNKNOWN;
  if (!is_over && conn->generation != kvf_fence_generation(memory->pages->table)) {
    return KVF_AGAIN; /* its plan is of other memory than this */
  }
  if (status != KVF_OK) {
    return status;
  }
  conn->chunk = (kvf_chunk){.transfer = &request->transfer,
                            .plan = &memory->pages->plan,
                            .selection = &request->selection,
                            .local = memory->pages->served};
  return kvf_chunk_check(&conn->chunk, bytes);
}

/* There is room: nothing else is staged, or this has been asked for. */
static void stage(kvf_tcp_conn *conn, kvf_frame_type type, kvf_status encoded, const void *body, size_t body_bytes)
{
  bool staged = encoded == KVF_OK && kvf_tcp_stage_frame(&conn->stream, type, body, body_bytes);
  assert(staged);
  (void)staged;
}

/* The last byte has left the blocks: only now the fence tells whether all were the lease's. */
static void end_sending(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  kvf_tcp_request *request = conn->sending;
  kvf_fence_entry entry = kvf_fence_load(tcp->memory->pages->table, request->transfer.lease.slot);
  kvf_data_trailer trailer = {.read_id = request->transfer.id, .word = entry.word, .digest = entry.digest};
  uint8_t body[KVF_DATA_TRAILER_BYTES_MAX];
  size_t body_bytes = 0;
  kvf_status encoded = kvf_data_trailer_encode(&trailer, body, sizeof(body), &body_bytes);
  stage(conn, KVF_FRAME_TRAILER, encoded, body, body_bytes);
  kvf_tcp_payload_end(tcp, &conn->payload);
  conn->sending = NULL;
  request_drop(conn, request);
}

/* Stages the header of the next answer. One that is a refusal is whole with that, and so is a small one, which goes out
 * in one call. */
static void begin_next(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  kvf_list *node = kvf_list_pop_front(&conn->requests);
  kvf_tcp_request *request = KVF_CONTAINER_OF(node, kvf_tcp_request, in_requests);
  uint64_t bytes = 0;
  kvf_status status = authorize(tcp, conn, request, &bytes);
  kvf_data_chunk chunk = {
      .read_id = request->transfer.id, .status = status, .payload_bytes = status == KVF_OK ? bytes : 0};
  uint8_t body[KVF_DATA_CHUNK_BYTES_MAX];
  size_t body_bytes = 0;
  kvf_status encoded = kvf_data_chunk_encode(&chunk, body, sizeof(body), &body_bytes);
  stage(conn, KVF_FRAME_CHUNK, encoded, body, body_bytes);
  if (status != KVF_OK) {
    request_drop(conn, request);
    return;
  }
  conn->sending = request;
  conn->call_bytes = CALL_BYTES_FIRST;
  conn->payload = kvf_tcp_payload_of(tcp->memory, &conn->chunk, bytes);
  bool small = bytes <= KVF_TCP_COPIED_BYTES_MAX;
  uint8_t *out = small ? kvf_tcp_stage(&conn->stream, bytes + TRAILER_FRAME_BYTES) : NULL;
  if (out != NULL && kvf_tcp_copy(&conn->payload, out)) { /* else it is sent from its blocks, or fails there */
    kvf_tcp_staged(&conn->stream, bytes);
    end_sending(tcp, conn);
  }
}

static void begin_what_fits(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  while (conn->sending == NULL && !kvf_list_is_empty(&conn->requests) &&
         kvf_tcp_stage(&conn->stream, CHUNK_FRAME_BYTES) != NULL) {
    begin_next(tcp, conn);
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

/* Sends what there is to send, up to KVF_TCP_TURN_BYTES. */
static bool answer(kvf_tcp *tcp, kvf_tcp_conn *conn)
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
      return conn_broken(tcp, conn);
    }
    budget_bytes -= before - conn->payload.left_bytes;
    if (conn->payload.left_bytes < before || kvf_tcp_unsent_bytes(&conn->stream) < unsent) {
      conn->taken_ns = tcp->data_thread.now_ns;
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

/* ---- life ---- */

void kvf_tcp_server_reap(kvf_tcp *tcp)
{
  kvf_list *node;
  while ((node = kvf_list_pop_front(&tcp->retired)) != NULL) {
    kvf_tcp_conn *conn = KVF_CONTAINER_OF(node, kvf_tcp_conn, in_conns);
    requests_free(conn);
    kvf_tcp_stream_free(&conn->stream);
    free(conn);
  }
}

static void close_all(kvf_tcp *tcp, kvf_list *conns)
{
  while (!kvf_list_is_empty(conns)) {
    conn_close(tcp, KVF_CONTAINER_OF(conns->next, kvf_tcp_conn, in_conns), KVF_LOG_DEBUG, KVF_CLOSED, NULL);
  }
}

void kvf_tcp_server_close(kvf_tcp *tcp)
{
  close_all(tcp, &tcp->greeting);
  close_all(tcp, &tcp->serving);
  kvf_tcp_server_reap(tcp);
}

void kvf_tcp_server_clear(kvf_tcp *tcp)
{
  kvf_list *next;
  for (kvf_list *node = tcp->serving.next; node != &tcp->serving; node = next) {
    next = node->next;
    kvf_tcp_conn *conn = KVF_CONTAINER_OF(node, kvf_tcp_conn, in_conns);
    if (conn->sending != NULL) {
      conn_close(tcp, conn, KVF_LOG_INFO, KVF_CLOSED, "the memory is not registered any more");
    }
  }
}

/* Looks at all of them, which is seldom: stuck_at_ns moves on by as long as the one that is stuck longest has left. */
static void close_stuck(kvf_tcp *tcp)
{
  tcp->stuck_at_ns = KVF_TIME_NEVER;
  kvf_list *next;
  for (kvf_list *node = tcp->serving.next; node != &tcp->serving; node = next) {
    next = node->next;
    kvf_tcp_conn *conn = KVF_CONTAINER_OF(node, kvf_tcp_conn, in_conns);
    uint64_t stuck_at_ns = kvf_time_add(conn->taken_ns, kvf_tcp_stuck_ns(tcp));
    if (!conn->is_blocked) {
      continue;
    }
    if (stuck_at_ns <= tcp->data_thread.now_ns) {
      kvf_socket_drop_unsent(conn->stream.fd);
      conn_close(tcp, conn, KVF_LOG_WARN, KVF_TRANSFER_STALLED, TAKES_NOTHING);
    } else {
      tcp->stuck_at_ns = kvf_time_min(tcp->stuck_at_ns, stuck_at_ns);
    }
  }
}

uint64_t kvf_tcp_server_tick(kvf_tcp *tcp)
{
  if (tcp->stuck_at_ns <= tcp->data_thread.now_ns) {
    close_stuck(tcp);
  }
  if (tcp->accept_again_ns <= tcp->data_thread.now_ns) {
    bool waits = kvf_tcp_watch_listeners(tcp, EPOLLIN);
    tcp->accept_again_ns = waits ? KVF_TIME_NEVER : kvf_time_add(tcp->data_thread.now_ns, KVF_TCP_ACCEPT_PAUSE_NS);
  }
  while (!kvf_list_is_empty(&tcp->greeting)) {
    kvf_tcp_conn *conn = KVF_CONTAINER_OF(tcp->greeting.next, kvf_tcp_conn, in_conns);
    if (conn->deadline_ns > tcp->data_thread.now_ns) {
      return kvf_time_min(conn->deadline_ns, kvf_time_min(tcp->accept_again_ns, tcp->stuck_at_ns));
    }
    conn_close(tcp, conn, KVF_LOG_WARN, KVF_HANDSHAKE_TIMEOUT, "it did not prove its key in time");
  }
  return kvf_time_min(tcp->accept_again_ns, tcp->stuck_at_ns);
}

/* ---- frames ---- */

/* It has answers to take and takes nothing: stopped, gone without a word, or hostile. */
static bool is_stuck(const kvf_tcp *tcp, const kvf_tcp_conn *conn)
{
  uint64_t patience_ns = kvf_ms_to_ns(tcp->data_thread.config.handshake_timeout_ms);
  return conn->requests_count > 0 && tcp->data_thread.now_ns >= kvf_time_add(conn->taken_ns, patience_ns);
}

static bool is_idle(const kvf_tcp_conn *conn)
{
  return conn->sending == NULL && kvf_list_is_empty(&conn->requests);
}

/* As kvf_crowd_victim(), of those that have nothing to do or take nothing. NULL: there is none. */
static kvf_tcp_conn *find_victim(const kvf_tcp *tcp)
{
  kvf_tcp_conn *victim = NULL;
  for (kvf_list *node = tcp->serving.next; node != &tcp->serving; node = node->next) {
    kvf_tcp_conn *conn = KVF_CONTAINER_OF(node, kvf_tcp_conn, in_conns);
    if ((is_idle(conn) || is_stuck(tcp, conn)) &&
        (victim == NULL || conn->place.group->count > victim->place.group->count)) {
      victim = conn;
    }
  }
  return victim;
}

/* Makes room for one more proved connection. False: all others are busy. */
static bool make_room(kvf_tcp *tcp)
{
  if (tcp->proved.count < tcp->data_thread.config.connections_max) {
    return true;
  }
  kvf_tcp_conn *victim = find_victim(tcp);
  if (victim != NULL && is_idle(victim)) {
    conn_close(tcp, victim, KVF_LOG_INFO, KVF_LIMIT,
               "connections_max is reached, and this connection was idle longest");
  } else if (victim != NULL) {
    conn_close(tcp, victim, KVF_LOG_WARN, KVF_LIMIT, "connections_max is reached, and the peer takes no bytes");
  }
  return victim != NULL;
}

/* Whether the consumer has proved the session's key; if so *ready is our proof of it. */
static bool prove(kvf_tcp *tcp, const kvf_tcp_conn *conn, const kvf_data_hello *hello, kvf_data_ready *ready)
{
  kvf_key key;
  uint8_t proof[KVF_HASH_BYTES];
  bool good = tcp->data_thread.host.session_key(tcp->data_thread.host.context, hello->session_id, &key) &&
              kvf_data_hello_proof(&key, &conn->challenge, hello, proof) == KVF_OK &&
              kvf_equal_secret(proof, hello->proof, sizeof(proof)) &&
              kvf_data_ready_proof(&key, &conn->challenge, hello, ready->proof) == KVF_OK;
  OPENSSL_cleanse(&key, sizeof(key));
  return good;
}

static bool on_hello(kvf_tcp *tcp, kvf_tcp_conn *conn, const uint8_t *body, size_t body_bytes)
{
  kvf_data_hello hello;
  if (kvf_data_hello_decode(body, body_bytes, &hello) != KVF_OK) {
    return conn_close(tcp, conn, KVF_LOG_WARN, KVF_PROTOCOL, "malformed data_hello");
  }
  kvf_data_ready ready;
  if (!prove(tcp, conn, &hello, &ready)) {
    return conn_close(tcp, conn, KVF_LOG_WARN, KVF_HANDSHAKE_REFUSED, "unknown session, or wrong proof of its key");
  }
  if (!make_room(tcp)) {
    return conn_close(tcp, conn, KVF_LOG_WARN, KVF_LIMIT, "connections_max is reached, and all connections are busy");
  }
  if (kvf_tcp_stream_grow(&conn->stream, TRUSTED_IN_BYTES, TRUSTED_OUT_BYTES) != KVF_OK) {
    return conn_close(tcp, conn, KVF_LOG_WARN, KVF_NO_MEMORY, "no memory for its buffer");
  }
  const kvf_host host = kvf_address_host(&conn->peer);
  kvf_crowd_leave(&tcp->strangers, &conn->place);
  conn->is_trusted = true;
  if (kvf_crowd_join(&tcp->proved, &conn->place, &host) != KVF_OK) {
    return conn_close(tcp, conn, KVF_LOG_ERROR, KVF_NO_MEMORY, "no memory for its place");
  }
  conn->generation = hello.generation;
  conn->taken_ns = tcp->data_thread.now_ns;
  kvf_list_remove(&conn->in_conns);
  kvf_list_push_back(&tcp->serving, &conn->in_conns);
  uint8_t proof[KVF_DATA_READY_BYTES_MAX];
  size_t proof_bytes = 0;
  kvf_status encoded = kvf_data_ready_encode(&ready, proof, sizeof(proof), &proof_bytes);
  stage(conn, KVF_FRAME_DATA_READY, encoded, proof, proof_bytes);
  return true;
}

static bool on_frame(kvf_tcp *tcp, kvf_tcp_conn *conn, kvf_frame_type type, const uint8_t *body, size_t body_bytes)
{
  if (!conn->is_trusted && type == KVF_FRAME_DATA_HELLO) {
    return on_hello(tcp, conn, body, body_bytes);
  }
  if (conn->is_trusted && type == KVF_FRAME_READ) {
    return on_read(tcp, conn, body, body_bytes);
  }
  if (conn->is_trusted && type == KVF_FRAME_CANCEL) {
    return on_cancel(tcp, conn, body, body_bytes);
  }
  char message[KVF_MESSAGE_BYTES_MAX];
  (void)snprintf(message, sizeof(message), "unexpected frame %s %s its handshake", kvf_frame_type_name(type),
                 conn->is_trusted ? "after" : "before");
  return conn_close(tcp, conn, KVF_LOG_WARN, KVF_PROTOCOL, message);
}

/* Takes the frames that have come whole, as long as there is room for what they ask. False: the connection was closed.
 */
static bool take_frames(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  for (;;) {
    conn->is_full = conn->is_trusted && !conn_has_room(conn);
    size_t waiting = kvf_tcp_waiting_bytes(&conn->stream);
    if (conn->is_full || waiting < KVF_FRAME_HEADER_BYTES) {
      return true;
    }
    uint32_t body_max =
        conn->is_trusted ? KVF_FRAME_BODY_BYTES_MAX : (uint32_t)(STRANGER_IN_BYTES - KVF_FRAME_HEADER_BYTES);
    kvf_frame_header header;
    if (kvf_frame_header_decode(kvf_tcp_waiting(&conn->stream), body_max, &header) != KVF_OK) {
      return conn_close(tcp, conn, KVF_LOG_WARN, KVF_PROTOCOL, "not a frame, or one that is too long");
    }
    size_t bytes = KVF_FRAME_HEADER_BYTES + (size_t)header.body_bytes;
    if (waiting < bytes) {
      return true;
    }
    if (!on_frame(tcp, conn, header.type, kvf_tcp_waiting(&conn->stream) + KVF_FRAME_HEADER_BYTES, header.body_bytes)) {
      return false;
    }
    kvf_tcp_consume(&conn->stream, bytes);
  }
}

static bool fill(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  kvf_tcp_io io = kvf_tcp_fill(&conn->stream);
  if (io == KVF_TCP_IO_CLOSED || io == KVF_TCP_IO_FAILED) {
    return conn_broken(tcp, conn);
  }
  return true;
}

/* One that has begun to speak TLS, in which it has several turns before it can prove the session's key. */
static void note_progress(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  if (!conn->is_trusted && conn->place.stage == KVF_CROWD_SILENT && conn->stream.tls != NULL &&
      kvf_tls_has_heard(conn->stream.tls)) {
    kvf_crowd_move(&tcp->strangers, &conn->place, KVF_CROWD_HEARD);
  }
}

/* Answers what has come; what waits behind a full queue is looked at again when the queue has become shorter. */
static void run(kvf_tcp *tcp, kvf_tcp_conn *conn)
{
  bool again;
  do {
    if (!take_frames(tcp, conn) || !answer(tcp, conn)) {
      return;
    }
    again = conn->is_full && conn_has_room(conn);
    if (!conn->is_full && kvf_tcp_buffered_bytes(&conn->stream) > 0) {
      if (!fill(tcp, conn)) {
        return;
      }
      again = true;
    }
  } while (again);
  note_progress(tcp, conn);
  uint32_t events = (conn->is_full ? 0u : (uint32_t)EPOLLIN) | (conn->is_blocked ? (uint32_t)EPOLLOUT : 0u);
  if (!kvf_tcp_watch(tcp, conn->stream.fd, &conn->source, events)) {
    conn_close(tcp, conn, KVF_LOG_WARN, KVF_SYSTEM, strerror(errno));
  }
}

static void conn_ready(kvf_tcp *tcp, kvf_tcp_source *source, uint32_t events)
{
  kvf_tcp_conn *conn = KVF_CONTAINER_OF(source, kvf_tcp_conn, source);
  if (conn->stream.fd < 0) {
    return;
  }
  bool dead = (events & (uint32_t)(EPOLLERR | EPOLLHUP)) != 0;
  if (!conn->is_full && (dead || (events & EPOLLIN) != 0)) {
    if (!fill(tcp, conn)) {
      return;
    }
  } else if (dead) {
    conn->stream.error = kvf_socket_error(conn->stream.fd);
    conn_broken(tcp, conn);
    return;
  }
  run(tcp, conn);
}

/* ---- accepting ---- */

static void no_room(kvf_tcp *tcp, const kvf_address *peer)
{
  kvf_data_thread_log(&tcp->data_thread, KVF_LOG_ERROR, KVF_NO_MEMORY, peer, "connection closed: no memory for it");
  tcp->data_thread.host.connection(tcp->data_thread.host.context, KVF_NO_MEMORY);
}

static void make_room_for_stranger(kvf_tcp *tcp)
{
  if (tcp->strangers.count > tcp->data_thread.config.connections_max / KVF_TCP_GREETING_SHARE) {
    kvf_tcp_conn *victim = KVF_CONTAINER_OF(kvf_crowd_victim(&tcp->strangers), kvf_tcp_conn, place);
    conn_close(tcp, victim, KVF_LOG_WARN, KVF_LIMIT, "too many connections have not proved their key");
  }
}

static void admit(kvf_tcp *tcp, int fd, const kvf_address *peer)
{
  tcp->data_thread.host.connection(tcp->data_thread.host.context, KVF_OK);
  kvf_tcp_conn *conn = calloc(1, sizeof(*conn));
  if (conn == NULL) {
    kvf_own_fd_close(fd);
    no_room(tcp, peer);
    return;
  }
  kvf_list_init(&conn->in_conns);
  kvf_list_init(&conn->requests);
  conn->source.ready = conn_ready;
  conn->peer = *peer;
  conn->deadline_ns = kvf_time_add(tcp->data_thread.now_ns, kvf_ms_to_ns(tcp->data_thread.config.handshake_timeout_ms));
  const kvf_tls_use *tls = &tcp->data_thread.config.tls;
  if (kvf_tcp_stream_open(&conn->stream, fd, STRANGER_IN_BYTES, OUT_BYTES,
                          kvf_tls_is_due(tls, peer) ? tls->context : NULL, false) != KVF_OK) {
    free(conn);
    no_room(tcp, peer);
    return;
  }
  make_room_for_stranger(tcp);
  kvf_list_push_back(&tcp->greeting, &conn->in_conns);
  const kvf_host host = kvf_address_host(peer);
  if (kvf_crowd_join(&tcp->strangers, &conn->place, &host) != KVF_OK) {
    conn_close(tcp, conn, KVF_LOG_ERROR, KVF_NO_MEMORY, "no memory for its place");
    return;
  }
  uint8_t body[KVF_DATA_CHALLENGE_BYTES_MAX];
  size_t body_bytes;
  if (getentropy(conn->challenge.nonce, sizeof(conn->challenge.nonce)) != 0 ||
      kvf_data_challenge_encode(&conn->challenge, body, sizeof(body), &body_bytes) != KVF_OK) {
    conn_close(tcp, conn, KVF_LOG_ERROR, KVF_SYSTEM, "no random bytes for a challenge");
    return;
  }
  stage(conn, KVF_FRAME_DATA_CHALLENGE, KVF_OK, body, body_bytes);
  run(tcp, conn);
}

/* Reset before its turn came. */
static void count_reset(kvf_tcp *tcp, const kvf_address *peer)
{
  kvf_data_thread_log(&tcp->data_thread, KVF_LOG_INFO, KVF_PEER_DOWN, peer, "connection closed: %s",
                      strerror(ECONNRESET));
  tcp->data_thread.host.connection(tcp->data_thread.host.context, KVF_PEER_DOWN);
}

bool kvf_tcp_watch_listeners(kvf_tcp *tcp, uint32_t events)
{
  bool is_watched = true;
  for (size_t i = 0; i < KVF_TCP_LISTENERS_MAX; i++) {
    kvf_tcp_listener *listener = &tcp->listeners[i];
    is_watched = is_watched && (listener->fd < 0 || kvf_tcp_watch(tcp, listener->fd, &listener->source, events));
  }
  return is_watched;
}

static void accept_ready(kvf_tcp *tcp, kvf_tcp_source *source, uint32_t events)
{
  const int listener = KVF_CONTAINER_OF(source, kvf_tcp_listener, source)->fd;
  (void)events;
  for (int i = 0; i < KVF_TCP_ACCEPTS_MAX; i++) {
    kvf_address peer;
    int fd = kvf_socket_accept(listener, &peer);
    if (fd >= 0) {
      admit(tcp, fd, &peer);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      /* The listener stays readable: look away for a while, rather than to spin. */
      kvf_data_thread_log(&tcp->data_thread, KVF_LOG_ERROR, KVF_SYSTEM, &tcp->listen, "cannot accept connections: %s",
                          strerror(errno));
      if (kvf_tcp_watch_listeners(tcp, 0)) {
        tcp->accept_again_ns = kvf_time_add(tcp->data_thread.now_ns, KVF_TCP_ACCEPT_PAUSE_NS);
      }
      return;
    } else if (errno == EAGAIN) {
      return;
    } else if (errno == ECONNABORTED) {
      tcp->data_thread.host.connection(tcp->data_thread.host.context, KVF_OK);
      count_reset(tcp, &peer);
    }
  }
}

void kvf_tcp_server_init(kvf_tcp *tcp)
{
  for (size_t i = 0; i < KVF_TCP_LISTENERS_MAX; i++) {
    tcp->listeners[i] = (kvf_tcp_listener){.source.ready = accept_ready, .fd = -1};
  }
  tcp->accept_again_ns = KVF_TIME_NEVER;
  tcp->stuck_at_ns = KVF_TIME_NEVER;
  kvf_list_init(&tcp->greeting);
  kvf_list_init(&tcp->serving);
  kvf_list_init(&tcp->retired);
  kvf_crowd_init(&tcp->strangers);
  kvf_crowd_init(&tcp->proved);
}
