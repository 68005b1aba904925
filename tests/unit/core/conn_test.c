/* Outboxes of control connections: order, turns, limits and hanging up. */
#include "core/conn.h"
#include "test.h"

static kvf_conns conns;
static kvf_conn *conn; /* one of them */

static void set_up(void)
{
  kvf_conns_init(&conns);
  conn = kvf_conns_add(&conns);
}

static void tear_down(void)
{
  kvf_conns_free(&conns);
}

#define CONNS_TEST(name) TEST_WITH(name, set_up, tear_down)

CONNS_TEST(ids_are_never_used_again)
{
  uint64_t last = 0;
  for (int i = 0; i < 100; i++) {
    conn = kvf_conns_add(&conns);
    assert_non_null(conn);
    assert_true(conn->id > last);
    last = conn->id;
    assert_ptr_equal(kvf_conns_find(&conns, last), conn);
    if (i % 2 == 0) {
      kvf_conns_drop(conn);
      assert_null(kvf_conns_find(&conns, last));
    }
  }
  assert_null(kvf_conns_find(&conns, 0));
}

CONNS_TEST(frames_wait_in_order)
{
  uint8_t *body = NULL;
  kvf_frame_header header;
  assert_int_equal(kvf_conn_frame_begin(conn, 100, &body), KVF_OK);
  memset(body, 1, 3);
  assert_null(kvf_conns_next_output(&conns)); /* not ended yet */
  kvf_conn_frame_end(conn, KVF_FRAME_PING, 3);
  assert_int_equal(kvf_conn_frame_begin(conn, 4, &body), KVF_OK);
  memset(body, 2, 4);
  kvf_conn_frame_end(conn, KVF_FRAME_PONG, 4);

  assert_ptr_equal(kvf_conns_next_output(&conns), conn);
  assert_null(kvf_conns_next_output(&conns));
  const uint8_t *data = conn->outbox;
  assert_int_equal(conn->outbox_bytes, 2 * KVF_FRAME_HEADER_BYTES + 7);
  assert_int_equal(kvf_frame_header_decode(data, 100, &header), KVF_OK);
  assert_int_equal(header.type, KVF_FRAME_PING);
  assert_int_equal(header.body_bytes, 3);
  assert_memory_equal(data + KVF_FRAME_HEADER_BYTES, "\1\1\1", 3);
  data += KVF_FRAME_HEADER_BYTES + 3;
  assert_int_equal(kvf_frame_header_decode(data, 100, &header), KVF_OK);
  assert_int_equal(header.type, KVF_FRAME_PONG);
  assert_memory_equal(data + KVF_FRAME_HEADER_BYTES, "\2\2\2\2", 4);
}

CONNS_TEST(what_is_not_ended_does_not_count)
{
  static const uint8_t ping[] = {'a', 'b'};
  uint8_t *body = NULL;
  assert_int_equal(kvf_conn_frame_begin(conn, 100, &body), KVF_OK);
  assert_int_equal(conn->outbox_bytes, 0);
  assert_int_equal(kvf_conn_frame_begin(conn, 100, &body), KVF_OK);
  memcpy(body, ping, sizeof(ping));
  kvf_conn_frame_end(conn, KVF_FRAME_PING, sizeof(ping));
  assert_int_equal(conn->outbox_bytes, KVF_FRAME_HEADER_BYTES + sizeof(ping));
  assert_memory_equal(conn->outbox + KVF_FRAME_HEADER_BYTES, ping, sizeof(ping));
}

CONNS_TEST(connections_take_turns)
{
  kvf_conn *each[3];
  uint8_t *body;
  for (size_t i = 0; i < 3; i++) {
    each[i] = kvf_conns_add(&conns);
  }
  for (size_t i = 3; i-- > 0;) {
    for (int twice = 0; twice < 2; twice++) {
      assert_int_equal(kvf_conn_frame_begin(each[i], 0, &body), KVF_OK);
      kvf_conn_frame_end(each[i], KVF_FRAME_PING, 0);
    }
  }
  for (size_t i = 3; i-- > 0;) {
    assert_ptr_equal(kvf_conns_next_output(&conns), each[i]);
  }
  assert_null(kvf_conns_next_output(&conns));
}

/* The last word is still sent: the connection lives until the runtime has taken it. */
CONNS_TEST(hanging_up_keeps_what_is_to_be_sent)
{
  uint8_t *body;
  uint64_t id = conn->id;
  int owner;
  conn->session = (kvf_session *)(void *)&owner;
  assert_int_equal(kvf_conn_frame_begin(conn, 1, &body), KVF_OK);
  body[0] = 1;
  kvf_conn_frame_end(conn, KVF_FRAME_REFUSED, 1);
  kvf_conns_hang_up(conn);
  assert_null(conn->session);
  assert_null(conn->peer);
  assert_ptr_equal(kvf_conns_next_output(&conns), conn);
  assert_true(conn->hanging_up);
  assert_int_equal(conn->outbox_bytes, KVF_FRAME_HEADER_BYTES + 1);
  kvf_conns_drop(conn);
  assert_null(kvf_conns_find(&conns, id));
  assert_null(kvf_conns_next_output(&conns));
}

CONNS_TEST(hanging_up_needs_nothing_to_be_sent)
{
  kvf_conns_hang_up(conn);
  assert_ptr_equal(kvf_conns_next_output(&conns), conn);
  assert_int_equal(conn->outbox_bytes, 0);
}

CONNS_TEST(dropping_takes_it_out_of_the_queue)
{
  kvf_conn *gone = kvf_conns_add(&conns);
  kvf_conn *stays = kvf_conns_add(&conns);
  kvf_conns_hang_up(gone);
  kvf_conns_hang_up(stays);
  kvf_conns_drop(gone);
  assert_ptr_equal(kvf_conns_next_output(&conns), stays);
  assert_null(kvf_conns_next_output(&conns));
}

/* P6: a peer that asks and does not read. */
CONNS_TEST(refuses_past_its_limit)
{
  uint8_t *body = NULL;
  uint8_t *none = NULL;
  size_t frames = 0;
  assert_int_equal(kvf_conn_frame_begin(conn, KVF_OUTBOX_BYTES_MAX - KVF_FRAME_HEADER_BYTES + 1, &none), KVF_LIMIT);
  while (kvf_conn_frame_begin(conn, KVF_FRAME_BODY_BYTES_MAX, &body) == KVF_OK) {
    kvf_conn_frame_end(conn, KVF_FRAME_PONG, KVF_FRAME_BODY_BYTES_MAX);
    frames++;
  }
  assert_int_equal(frames, KVF_OUTBOX_BYTES_MAX / (KVF_FRAME_HEADER_BYTES + KVF_FRAME_BODY_BYTES_MAX));
  assert_int_equal(kvf_conn_frame_begin(conn, KVF_FRAME_BODY_BYTES_MAX, &none), KVF_LIMIT);
  const size_t left = KVF_OUTBOX_BYTES_MAX - conn->outbox_bytes - KVF_FRAME_HEADER_BYTES;
  assert_int_equal(kvf_conn_frame_begin(conn, left + 1, &none), KVF_LIMIT);
  assert_int_equal(kvf_conn_frame_begin(conn, SIZE_MAX / 2, &none), KVF_LIMIT);
  assert_null(none);
  assert_int_equal(kvf_conn_frame_begin(conn, left, &body), KVF_OK);
  kvf_conn_frame_end(conn, KVF_FRAME_PONG, left);
  assert_int_equal(conn->outbox_bytes, KVF_OUTBOX_BYTES_MAX);
}

/* An idle connection keeps a page at most. */
CONNS_TEST(large_buffers_are_given_back)
{
  uint8_t *body;
  assert_int_equal(kvf_conn_frame_begin(conn, 10, &body), KVF_OK);
  kvf_conn_frame_end(conn, KVF_FRAME_PING, 10);
  const uint8_t *kept = conn->outbox;
  kvf_conns_taken(conn);
  assert_int_equal(conn->outbox_bytes, 0);
  assert_ptr_equal(conn->outbox, kept);
  assert_int_equal(kvf_conn_frame_begin(conn, 4097, &body), KVF_OK);
  kvf_conn_frame_end(conn, KVF_FRAME_PING, 4097);
  kvf_conns_taken(conn);
  assert_int_equal(conn->outbox_bytes, 0);
  assert_int_equal(conn->outbox_capacity, 0);
  assert_null(conn->outbox);
  assert_int_equal(kvf_conn_frame_begin(conn, 1, &body), KVF_OK);
}
