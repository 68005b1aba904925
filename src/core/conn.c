#include "core/conn.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
    kvf_conns_drop(conns, conn);
  }
}

kvf_conn *kvf_conns_add(kvf_conns *conns)
{
  kvf_conn *conn = calloc(1, sizeof(*conn));
  if (conn == NULL) {
    return NULL;
  }
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

void kvf_conns_hang_up(kvf_conns *conns, kvf_conn *conn)
{
  conn->session = NULL;
  conn->peer = NULL;
  conn->hanging_up = true;
  kvf_list_ensure_back(&conns->output, &conn->output);
}

void kvf_conns_drop(kvf_conns *conns, kvf_conn *conn)
{
  kvf_list_remove(&conn->output);
  HASH_DELETE(by_id, conns->by_id, conn);
  kvf_outbox_free(&conn->outbox);
  free(conn);
}

kvf_status kvf_conn_frame_begin(kvf_conn *conn, size_t body_bytes_max, uint8_t **body)
{
  uint8_t *frame;
  kvf_status status = kvf_outbox_reserve(&conn->outbox, KVF_FRAME_HEADER_BYTES + body_bytes_max, &frame);
  if (status == KVF_OK) {
    *body = frame + KVF_FRAME_HEADER_BYTES;
  }
  return status;
}

void kvf_conn_frame_end(kvf_conns *conns, kvf_conn *conn, kvf_frame_type type, size_t body_bytes)
{
  kvf_frame_header_encode(type, (uint32_t)body_bytes, conn->outbox.data + conn->outbox.bytes);
  kvf_outbox_commit(&conn->outbox, KVF_FRAME_HEADER_BYTES + body_bytes);
  kvf_list_ensure_back(&conns->output, &conn->output);
}

kvf_status kvf_conn_send(kvf_conns *conns, kvf_conn *conn, kvf_frame_type type, const uint8_t *body, size_t body_bytes)
{
  uint8_t *out;
  kvf_status status = kvf_conn_frame_begin(conn, body_bytes, &out);
  if (status == KVF_OK) {
    memcpy(out, body, body_bytes);
    kvf_conn_frame_end(conns, conn, type, body_bytes);
  }
  return status;
}

kvf_conn *kvf_conns_next_output(kvf_conns *conns)
{
  kvf_list *node = kvf_list_pop_front(&conns->output);
  return node == NULL ? NULL : KVF_CONTAINER_OF(node, kvf_conn, output);
}

/* ---- the outbox ---- */

void kvf_outbox_free(kvf_outbox *outbox)
{
  free(outbox->data);
  *outbox = (kvf_outbox){0};
}

kvf_status kvf_outbox_reserve(kvf_outbox *outbox, size_t bytes, uint8_t **out)
{
  if (bytes > KVF_OUTBOX_BYTES_MAX || outbox->bytes > KVF_OUTBOX_BYTES_MAX - bytes) {
    return KVF_LIMIT;
  }
  if (outbox->bytes + bytes > outbox->capacity) {
    /* Doubled, so that many small frames are not copied again for each. */
    size_t capacity = outbox->capacity == 0 ? KEEP_BYTES : 2 * outbox->capacity;
    while (capacity < outbox->bytes + bytes) {
      capacity *= 2;
    }
    uint8_t *data = realloc(outbox->data, capacity);
    if (data == NULL) {
      return KVF_NO_MEMORY;
    }
    outbox->data = data;
    outbox->capacity = capacity;
  }
  *out = outbox->data + outbox->bytes;
  return KVF_OK;
}

void kvf_outbox_commit(kvf_outbox *outbox, size_t bytes)
{
  assert(bytes <= outbox->capacity - outbox->bytes);
  outbox->bytes += bytes;
}

void kvf_outbox_clear(kvf_outbox *outbox)
{
  outbox->bytes = 0;
  if (outbox->capacity > KEEP_BYTES) {
    kvf_outbox_free(outbox);
  }
}
