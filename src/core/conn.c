/* Control connections: ids and outboxes. */
#include "core/conn.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/check_list.h"

#define KEEP_BYTES 4096u

void kvf_conns_init(kvf_conns *conns)
{
  *conns = (kvf_conns){.next_id = 1};
  kvf_list_init(&conns->output);
}

void kvf_conns_free(kvf_conns *conns)
{
  kvf_conn *conn;
  kvf_conn *next;
  HASH_ITER(by_id, conns->by_id, conn, next)
  {
    kvf_conns_drop(conn);
  }
}

kvf_conn *kvf_conns_add(kvf_conns *conns)
{
  kvf_conn *conn = calloc(1, sizeof(*conn));
  if (conn == NULL) {
    return NULL;
  }
  conn->conns = conns;
  conn->id = conns->next_id++;
  kvf_list_init(&conn->output);
  HASH_ADD(by_id, conns->by_id, id, sizeof(conn->id), conn);
  if (conn->by_id.tbl == NULL) {
    free(conn);
    return NULL;
  }
  return conn;
}

kvf_conn *kvf_conns_find(kvf_conns *conns, uint64_t id)
{
  kvf_conn *conn;
  HASH_FIND(by_id, conns->by_id, &id, sizeof(id), conn);
  return conn;
}

void kvf_conns_hang_up(kvf_conn *conn)
{
  conn->session = NULL;
  conn->peer = NULL;
  conn->is_trusted = false;
  conn->hanging_up = true;
  kvf_list_ensure_back(&conn->conns->output, &conn->output);
}

void kvf_conns_drop(kvf_conn *conn)
{
  assert((conn->session == NULL && conn->peer == NULL) || !conn->hanging_up);
  kvf_list_remove(&conn->output);
  HASH_DELETE(by_id, conn->conns->by_id, conn);
  free(conn->outbox);
  free(conn);
}

kvf_status kvf_conn_frame_begin(kvf_conn *conn, size_t body_bytes_max, uint8_t **body)
{
  const size_t bytes = KVF_FRAME_HEADER_BYTES + body_bytes_max;
  assert(!conn->hanging_up && conn->outbox_bytes <= KVF_OUTBOX_BYTES_MAX);
  if (bytes > KVF_OUTBOX_BYTES_MAX - conn->outbox_bytes) {
    return KVF_LIMIT;
  }
  if (conn->outbox_bytes + bytes > conn->outbox_capacity) {
    /* Doubled, so that many small frames are not copied again for each. */
    size_t capacity = conn->outbox_capacity == 0 ? KEEP_BYTES : 2 * conn->outbox_capacity;
    while (capacity < conn->outbox_bytes + bytes) {
      capacity *= 2;
    }
    uint8_t *data = realloc(conn->outbox, capacity);
    if (data == NULL) {
      return KVF_NO_MEMORY;
    }
    conn->outbox = data;
    conn->outbox_capacity = capacity;
  }
  *body = conn->outbox + conn->outbox_bytes + KVF_FRAME_HEADER_BYTES;
  return KVF_OK;
}

void kvf_conn_frame_end(kvf_conn *conn, kvf_frame_type type, size_t body_bytes)
{
  kvf_frame_header_encode(type, (uint32_t)body_bytes, conn->outbox + conn->outbox_bytes);
  conn->outbox_bytes += KVF_FRAME_HEADER_BYTES + body_bytes;
  assert(conn->outbox_bytes <= conn->outbox_capacity);
  kvf_list_ensure_back(&conn->conns->output, &conn->output);
}

kvf_status kvf_conn_send(kvf_conn *conn, kvf_frame_type type, const uint8_t *body, size_t body_bytes)
{
  uint8_t *out;
  kvf_status status = kvf_conn_frame_begin(conn, body_bytes, &out);
  if (status == KVF_OK) {
    memcpy(out, body, body_bytes);
    kvf_conn_frame_end(conn, type, body_bytes);
  }
  return status;
}

kvf_conn *kvf_conns_next_output(kvf_conns *conns)
{
  kvf_list *node = kvf_list_pop_front(&conns->output);
  return node == NULL ? NULL : KVF_CONTAINER_OF(node, kvf_conn, output);
}

void kvf_conns_taken(kvf_conn *conn)
{
  conn->outbox_bytes = 0;
  if (conn->hanging_up) {
    kvf_conns_drop(conn);
  } else if (conn->outbox_capacity > KEEP_BYTES) {
    free(conn->outbox);
    conn->outbox = NULL;
    conn->outbox_capacity = 0;
  }
}

#ifndef NDEBUG

uint32_t kvf_conns_check(const kvf_conns *conns)
{
  uint32_t outputs = 0;
  uint32_t owned = 0;
  for (const kvf_conn *conn = conns->by_id; conn != NULL; conn = conn->by_id.next) {
    const bool is_owned = conn->session != NULL || conn->peer != NULL;
    assert(conn->conns == conns && conn->id < conns->next_id);
    assert(conn->session == NULL || conn->peer == NULL);
    assert(conn->hanging_up == !is_owned);
    assert(!conn->hanging_up || !conn->is_trusted);
    assert(conn->outbox_bytes <= conn->outbox_capacity);
    assert((conn->outbox != NULL) == (conn->outbox_capacity > 0));
    assert(kvf_list_is_linked(&conn->output) == (conn->hanging_up || conn->outbox_bytes > 0));
    outputs += kvf_list_is_linked(&conn->output);
    owned += is_owned;
  }
  assert(outputs == kvf_check_list(&conns->output));
  return owned;
}

#endif
