/* A control connection's socket: frames that come in pieces, and what waits to be written. */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/control_socket.h"
#include "test.h"

#define LIMIT 1000u

typedef struct fixture {
  kvf_control_socket *socket;
  int peer; /* the other end, non-blocking too */
} fixture;

static fixture f;

static void set_up(void)
{
  memset(&f, 0, sizeof(f));
  int ends[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  f.socket = kvf_control_socket_new(7, ends[0], false);
  assert_non_null(f.socket);
  f.peer = ends[1];
}

static void tear_down(void)
{
  kvf_control_socket_free(f.socket);
  if (f.peer >= 0) {
    (void)close(f.peer);
  }
}

#define SET_TEST(name) TEST_WITH(name, set_up, tear_down)

static void hang_up(void)
{
  (void)close(f.peer);
  f.peer = -1;
}

static void peer_sends(const void *data, size_t bytes)
{
  assert_int_equal(send(f.peer, data, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
}

static size_t frame_of(kvf_frame_type of_type, uint8_t first, uint32_t bytes, uint8_t *out)
{
  kvf_frame_header_encode(of_type, bytes, out);
  for (uint32_t i = 0; i < bytes; i++) {
    out[KVF_FRAME_HEADER_BYTES + i] = (uint8_t)(first + i);
  }
  return KVF_FRAME_HEADER_BYTES + bytes;
}

/* The next frame. */
static kvf_frame_type type;
static const uint8_t *body;
static size_t body_bytes;

static kvf_status next_frame(size_t limit)
{
  return kvf_control_socket_frame(f.socket, limit, &type, &body, &body_bytes);
}

/* ---- reading ---- */

SET_TEST(frames_come_whole_and_in_order)
{
  uint8_t data[64];
  size_t bytes = frame_of(KVF_FRAME_PING, 1, 5, data);
  bytes += frame_of(KVF_FRAME_PONG, 9, 0, data + bytes);
  bytes += frame_of(KVF_FRAME_LEASES, 100, 7, data + bytes);
  static const struct {
    kvf_frame_type type;
    size_t bytes;
    uint8_t first;
  } expected[] = {{KVF_FRAME_PING, 5, 1}, {KVF_FRAME_PONG, 0, 0}, {KVF_FRAME_LEASES, 7, 100}};
  size_t taken = 0;
  for (size_t i = 0; i < bytes; i++) { /* byte by byte */
    peer_sends(data + i, 1);
    assert_int_equal(kvf_control_socket_fill(f.socket), KVF_OK);
    kvf_status status = next_frame(LIMIT);
    if (status == KVF_OK) {
      assert_int_equal(type, expected[taken].type);
      assert_int_equal(body_bytes, expected[taken].bytes);
      assert_true(body_bytes == 0 || body[0] == expected[taken].first);
      kvf_control_socket_drop_frame(f.socket, body_bytes);
      taken++;
    } else {
      assert_int_equal(status, KVF_NOT_FOUND);
    }
  }
  assert_int_equal(taken, 3);
  assert_int_equal(kvf_control_socket_fill(f.socket), KVF_NOT_FOUND);
  assert_int_equal(next_frame(LIMIT), KVF_NOT_FOUND);
}

SET_TEST(several_frames_may_come_at_once)
{
  uint8_t data[1024];
  size_t bytes = 0;
  for (uint8_t i = 0; i < 20; i++) {
    bytes += frame_of(KVF_FRAME_PING, i, 3, data + bytes);
  }
  peer_sends(data, bytes);
  assert_int_equal(kvf_control_socket_fill(f.socket), KVF_OK);
  for (uint8_t i = 0; i < 20; i++) {
    assert_int_equal(next_frame(LIMIT), KVF_OK);
    assert_int_equal(body[0], i);
    kvf_control_socket_drop_frame(f.socket, body_bytes);
  }
  assert_int_equal(next_frame(LIMIT), KVF_NOT_FOUND);
}

SET_TEST(what_is_no_frame_is_refused)
{
  uint8_t data[KVF_FRAME_HEADER_BYTES];
  memset(data, 'G', sizeof(data)); /* "GET / HT", say */
  peer_sends(data, sizeof(data));
  assert_int_equal(kvf_control_socket_fill(f.socket), KVF_OK);
  assert_int_equal(next_frame(LIMIT), KVF_PROTOCOL);
}

/* P6: before its body has come, and before anything is allocated for it. */
SET_TEST(long_frames_are_refused_by_their_header)
{
  uint8_t data[KVF_FRAME_HEADER_BYTES];
  kvf_frame_header_encode(KVF_FRAME_LEASES, LIMIT + 1, data);
  peer_sends(data, sizeof(data));
  assert_int_equal(kvf_control_socket_fill(f.socket), KVF_OK);
  size_t capacity = f.socket->in_capacity;
  assert_int_equal(next_frame(LIMIT), KVF_PROTOCOL);
  assert_int_equal(f.socket->in_capacity, capacity);
  assert_int_equal(next_frame(LIMIT + 1), KVF_NOT_FOUND);
}

/* However much comes at once, no more is held than a buffer and a frame. */
SET_TEST(input_is_bounded)
{
  static uint8_t data[KVF_FRAME_HEADER_BYTES + KVF_FRAME_BODY_BYTES_MAX];
  size_t bytes = frame_of(KVF_FRAME_LEASES, 0, KVF_FRAME_BODY_BYTES_MAX, data);
  size_t sent = 0;
  uint32_t frames = 0;
  for (int turn = 0; turn < 100000 && frames < 3; turn++) {
    ssize_t some = send(f.peer, data + sent, bytes - sent, MSG_NOSIGNAL);
    sent += some > 0 ? (size_t)some : 0;
    sent = sent == bytes ? 0 : sent;
    if (kvf_control_socket_fill(f.socket) == KVF_OK) {
      if (next_frame(KVF_FRAME_BODY_BYTES_MAX) == KVF_OK) {
        assert_memory_equal(body, data + KVF_FRAME_HEADER_BYTES, body_bytes);
        kvf_control_socket_drop_frame(f.socket, body_bytes);
        frames++;
      }
    }
    assert_true(f.socket->in_capacity <= sizeof(data) + 4096);
  }
  assert_int_equal(frames, 3);
}

SET_TEST(idle_connections_keep_a_small_buffer)
{
  static uint8_t data[64 * 1024];
  size_t bytes = frame_of(KVF_FRAME_LEASES, 0, 60000, data);
  peer_sends(data, bytes);
  while (next_frame(KVF_FRAME_BODY_BYTES_MAX) == KVF_NOT_FOUND) {
    assert_int_equal(kvf_control_socket_fill(f.socket), KVF_OK);
  }
  kvf_control_socket_drop_frame(f.socket, body_bytes);
  assert_int_equal(f.socket->in_capacity, 0);
  bytes = frame_of(KVF_FRAME_PING, 0, 8, data);
  peer_sends(data, bytes);
  assert_int_equal(kvf_control_socket_fill(f.socket), KVF_OK);
  assert_int_equal(next_frame(LIMIT), KVF_OK);
}

SET_TEST(end_of_the_stream_is_told)
{
  assert_int_equal(kvf_control_socket_fill(f.socket), KVF_NOT_FOUND);
  peer_sends("x", 1);
  hang_up();
  assert_int_equal(kvf_control_socket_fill(f.socket), KVF_OK); /* what it still said comes first */
  assert_int_equal(f.socket->in_bytes, 1);
  assert_int_equal(kvf_control_socket_fill(f.socket), KVF_PEER_DOWN);
}

/* ---- writing ---- */

SET_TEST(bytes_go_out_in_order)
{
  char got[16] = {0};
  assert_int_equal(kvf_control_socket_queue(f.socket, "abc", 3), KVF_OK);
  assert_int_equal(kvf_control_socket_queue(f.socket, "", 0), KVF_OK);
  assert_int_equal(kvf_control_socket_queue(f.socket, "def", 3), KVF_OK);
  assert_int_equal(recv(f.peer, got, sizeof(got), 0), -1); /* nothing before the flush */
  assert_int_equal(kvf_control_socket_flush(f.socket), KVF_OK);
  assert_int_equal(recv(f.peer, got, sizeof(got), 0), 6);
  assert_string_equal(got, "abcdef");
  assert_null(f.socket->out);
  assert_int_equal(kvf_control_socket_flush(f.socket), KVF_OK);
}

/* P6: a peer that does not read: what waits is bounded, and nothing that was taken is lost or repeated. */
SET_TEST(output_is_bounded)
{
  uint32_t block[1024];
  uint32_t written = 0;
  uint32_t read = 0;
  kvf_status status;
  do {
    for (size_t i = 0; i < 1024; i++) {
      block[i] = written + (uint32_t)i;
    }
    status = kvf_control_socket_queue(f.socket, block, sizeof(block));
    written += status == KVF_OK ? 1024 : 0;
    assert_int_equal(kvf_control_socket_flush(f.socket), KVF_OK);
    assert_true(f.socket->out_capacity <= KVF_CONTROL_UNSENT_BYTES_MAX);
  } while (status == KVF_OK);
  assert_int_equal(status, KVF_LIMIT);
  for (int turn = 0; turn < 100000 && read < written; turn++) {
    uint32_t got[1024];
    ssize_t bytes = recv(f.peer, got, sizeof(got), 0);
    for (ssize_t i = 0; i < bytes / 4; i++) {
      assert_int_equal(got[i], read++);
    }
    assert_int_equal(kvf_control_socket_flush(f.socket), KVF_OK);
  }
  assert_int_equal(read, written);
  assert_int_equal(f.socket->out_capacity, 0);
}

SET_TEST(queueing_goes_on_behind_a_partial_write)
{
  static uint8_t large[512 * 1024];
  static uint8_t got[sizeof(large) + 3];
  size_t bytes = 0;
  memset(large, 'x', sizeof(large));
  assert_int_equal(kvf_control_socket_queue(f.socket, large, sizeof(large)), KVF_OK);
  assert_int_equal(kvf_control_socket_flush(f.socket), KVF_OK);
  assert_true(f.socket->out_first > 0 && f.socket->out_first < f.socket->out_bytes); /* the kernel took a part */
  assert_int_equal(kvf_control_socket_queue(f.socket, "end", 3), KVF_OK);
  assert_int_equal(f.socket->out_first, 0);
  for (int turn = 0; turn < 100000 && bytes < sizeof(got); turn++) {
    ssize_t some = recv(f.peer, got + bytes, sizeof(got) - bytes, 0);
    bytes += some > 0 ? (size_t)some : 0;
    assert_int_equal(kvf_control_socket_flush(f.socket), KVF_OK);
  }
  assert_int_equal(bytes, sizeof(got));
  assert_memory_equal(got, large, sizeof(large));
  assert_memory_equal(got + sizeof(large), "end", 3);
}

/* And no SIGPIPE ends the process. */
SET_TEST(writing_to_nobody_is_told)
{
  hang_up();
  assert_int_equal(kvf_control_socket_queue(f.socket, "abc", 3), KVF_OK);
  assert_int_equal(kvf_control_socket_flush(f.socket), KVF_PEER_DOWN);
}

TEST(freeing_closes_the_descriptor)
{
  int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  assert_true(fd >= 0);
  kvf_control_socket *socket = kvf_control_socket_new(1, fd, true);
  assert_non_null(socket);
  assert_true(socket->connecting);
  kvf_control_socket_free(socket);
  assert_int_equal(fcntl(fd, F_GETFD), -1);
}
