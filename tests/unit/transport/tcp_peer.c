#include "tcp_peer.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/socket.h"
#include "transport/tcp/common.h"
#include "wire/fields.h"
#include "wire/rails_description.h"

#define PATIENCE_MS 10000

static void wait_for(int fd, short events)
{
  struct pollfd waiting = {.fd = fd, .events = events};
  int ready = poll(&waiting, 1, PATIENCE_MS);
  if (ready != 1) {
    fail_msg("the other side is silent");
  }
}

/* ---- bytes and frames ---- */

void peer_send(int fd, const void *data, size_t bytes)
{
  const uint8_t *from = data;
  while (bytes > 0) {
    wait_for(fd, POLLOUT);
    ssize_t sent = send(fd, from, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) {
      continue;
    }
    assert_true(sent > 0);
    from += sent;
    bytes -= (size_t)sent;
  }
}

void peer_receive(int fd, void *data, size_t bytes)
{
  uint8_t *to = data;
  while (bytes > 0) {
    wait_for(fd, POLLIN);
    ssize_t got = recv(fd, to, bytes, 0);
    if (got < 0 && errno == EAGAIN) {
      continue;
    }
    assert_true(got > 0);
    to += got;
    bytes -= (size_t)got;
  }
}

void peer_send_frame(int fd, kvf_frame_type type, const void *body, size_t body_bytes)
{
  uint8_t *frame = malloc(KVF_FRAME_HEADER_BYTES + body_bytes);
  assert_non_null(frame);
  kvf_frame_header_encode(type, (uint32_t)body_bytes, frame);
  if (body_bytes > 0) {
    memcpy(frame + KVF_FRAME_HEADER_BYTES, body, body_bytes);
  }
  peer_send(fd, frame, KVF_FRAME_HEADER_BYTES + body_bytes);
  free(frame);
}

size_t peer_receive_frame(int fd, kvf_frame_type type, void *body, size_t capacity)
{
  uint8_t raw[KVF_FRAME_HEADER_BYTES];
  kvf_frame_header header;
  peer_receive(fd, raw, sizeof(raw));
  assert_int_equal(kvf_frame_header_decode(raw, KVF_FRAME_BODY_BYTES_MAX, &header), KVF_OK);
  assert_string_equal(kvf_frame_type_name(header.type), kvf_frame_type_name(type));
  assert_true(header.body_bytes <= capacity);
  size_t bytes = header.body_bytes < capacity ? header.body_bytes : capacity;
  if (bytes > 0) {
    peer_receive(fd, body, bytes);
  }
  return bytes;
}

void peer_expect_closed(int fd)
{
  for (;;) {
    uint8_t left[4096];
    wait_for(fd, POLLIN);
    ssize_t got = recv(fd, left, sizeof(left), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
      return;
    }
  }
}

void peer_expect_silence(int fd, int ms)
{
  struct pollfd waiting = {.fd = fd, .events = POLLIN};
  assert_int_equal(poll(&waiting, 1, ms), 0);
}

static int connect_from(const char *ip, const kvf_address *to)
{
  kvf_address from;
  struct sockaddr_storage ends[2];
  assert_int_equal(kvf_address_parse(ip, 0, &from), KVF_OK);
  socklen_t from_bytes = kvf_address_to_sockaddr(&from, &ends[0]);
  socklen_t to_bytes = kvf_address_to_sockaddr(to, &ends[1]);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (const struct sockaddr *)&ends[0], from_bytes), 0);
  assert_true(connect(fd, (const struct sockaddr *)&ends[1], to_bytes) == 0 || errno == EINPROGRESS);
  return fd;
}

static int finish_connect(const kvf_address *address)
{
  int fd = peer_from == NULL ? kvf_socket_connect(address, PATIENCE_MS, 0) : connect_from(peer_from, address);
  assert_true(fd >= 0);
  wait_for(fd, POLLOUT);
  assert_int_equal(kvf_socket_error(fd), 0);
  return fd;
}

static kvf_address loopback(uint16_t port)
{
  kvf_address address;
  assert_int_equal(kvf_address_parse("127.0.0.1", port, &address), KVF_OK);
  return address;
}

/* ---- a consumer ---- */

int peer_connect(const void *description, size_t description_bytes)
{
  kvf_tcp_description told = {0};
  kvf_codec codec = kvf_reader_of(description, description_bytes);
  kvf_tcp_description_code(&codec, &told);
  kvf_address address = loopback(told.port);
  return finish_connect(&address);
}

kvf_address peer_data_port(const void *description, size_t description_bytes)
{
  kvf_rails_description rails;
  assert_int_equal(kvf_rails_description_read(description, description_bytes, &rails), KVF_OK);
  kvf_tcp_description told = {0};
  kvf_codec codec = kvf_reader_of(rails.each[0].data, rails.each[0].bytes);
  kvf_tcp_description_code(&codec, &told);
  return loopback(told.port);
}

void peer_hello(int fd, uint64_t session_id, const kvf_key *session_key)
{
  uint8_t body[KVF_DATA_HELLO_BYTES_MAX];
  kvf_data_challenge challenge;
  size_t bytes = peer_receive_frame(fd, KVF_FRAME_DATA_CHALLENGE, body, sizeof(body));
  assert_int_equal(kvf_data_challenge_decode(body, bytes, &challenge), KVF_OK);
  kvf_data_hello hello = {.session_id = session_id, .generation = 1};
  assert_int_equal(kvf_data_hello_proof(session_key, &challenge, &hello, hello.proof), KVF_OK);
  assert_int_equal(kvf_data_hello_encode(&hello, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(fd, KVF_FRAME_DATA_HELLO, body, bytes);
}

bool peer_try(const kvf_link_spec *spec, int *fd)
{
  *fd = peer_connect(spec->description, spec->description_bytes);
  peer_hello(*fd, spec->session_id, &spec->session_key);
  uint8_t next;
  wait_for(*fd, POLLIN);
  if (recv(*fd, &next, sizeof(next), MSG_PEEK) <= 0) {
    (void)close(*fd);
    return false;
  }
  uint8_t body[KVF_DATA_READY_BYTES_MAX];
  assert_int_equal(peer_receive_frame(*fd, KVF_FRAME_DATA_READY, body, sizeof(body)), sizeof(body));
  return true;
}

int peer_connect_proved(const kvf_link_spec *spec)
{
  int fd;
  if (!peer_try(spec, &fd)) {
    fail_msg("the other side has closed");
  }
  return fd;
}

const char *peer_from;
uint32_t peer_layers = 1;

void peer_send_read(int fd, uint64_t read_id, const kvf_lease *lease, const kvf_transfer_item *items, uint32_t count)
{
  kvf_data_read read = {
      .read_id = read_id, .lease = *lease, .heads = 1, .want = kvf_want_whole(peer_layers), .items_count = count};
  size_t capacity = KVF_DATA_READ_HEAD_BYTES + (size_t)count * KVF_DATA_READ_RUN_BYTES;
  uint8_t *body = malloc(capacity);
  assert_non_null(body);
  size_t bytes;
  assert_int_equal(kvf_data_read_encode(&read, items, body, capacity, &bytes), KVF_OK);
  peer_send_frame(fd, KVF_FRAME_READ, body, bytes);
  free(body);
}

void peer_send_cancel(int fd, uint64_t read_id)
{
  uint8_t body[KVF_DATA_CANCEL_BYTES_MAX];
  size_t bytes;
  kvf_data_cancel cancel = {.read_id = read_id};
  assert_int_equal(kvf_data_cancel_encode(&cancel, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(fd, KVF_FRAME_CANCEL, body, bytes);
}

kvf_data_chunk peer_receive_chunk(int fd)
{
  uint8_t body[KVF_DATA_CHUNK_BYTES_MAX];
  kvf_data_chunk chunk;
  size_t bytes = peer_receive_frame(fd, KVF_FRAME_CHUNK, body, sizeof(body));
  assert_int_equal(kvf_data_chunk_decode(body, bytes, &chunk), KVF_OK);
  return chunk;
}

kvf_data_trailer peer_receive_trailer(int fd)
{
  uint8_t body[KVF_DATA_TRAILER_BYTES_MAX];
  kvf_data_trailer trailer;
  size_t bytes = peer_receive_frame(fd, KVF_FRAME_TRAILER, body, sizeof(body));
  assert_int_equal(kvf_data_trailer_decode(body, bytes, &trailer), KVF_OK);
  return trailer;
}

/* ---- a producer ---- */

int peer_listen(const kvf_incarnation *incarnation, void *description, size_t *description_bytes)
{
  kvf_address address = loopback(0);
  kvf_address bound;
  char message[KVF_MESSAGE_BYTES_MAX];
  int listener = -1;
  assert_int_equal(kvf_socket_listen(&address, PATIENCE_MS, &listener, &bound, message), KVF_OK);
  kvf_tcp_description told = {KVF_TCP_DESCRIPTION_MAGIC, bound.port, *incarnation, 0};
  kvf_codec codec = kvf_writer_of(description, KVF_TRANSPORT_DESCRIPTION_BYTES_MAX);
  kvf_tcp_description_code(&codec, &told);
  assert_int_equal(kvf_writer_end(&codec, true, description_bytes), KVF_OK);
  return listener;
}

int peer_accept(int listener)
{
  kvf_address peer;
  wait_for(listener, POLLIN);
  int fd = kvf_socket_accept(listener, &peer);
  assert_true(fd >= 0);
  return fd;
}

kvf_data_ready peer_challenge(int fd, const kvf_link_spec *spec)
{
  kvf_data_ready ready;
  kvf_data_challenge challenge = {.nonce = {1, 2, 3}};
  uint8_t body[KVF_DATA_HELLO_BYTES_MAX];
  uint8_t proof[KVF_HASH_BYTES];
  kvf_data_hello hello;
  size_t bytes;
  assert_int_equal(kvf_data_challenge_encode(&challenge, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(fd, KVF_FRAME_DATA_CHALLENGE, body, bytes);
  bytes = peer_receive_frame(fd, KVF_FRAME_DATA_HELLO, body, sizeof(body));
  assert_int_equal(kvf_data_hello_decode(body, bytes, &hello), KVF_OK);
  assert_int_equal(hello.session_id, spec->session_id);
  assert_int_equal(kvf_data_hello_proof(&spec->session_key, &challenge, &hello, proof), KVF_OK);
  assert_memory_equal(proof, hello.proof, sizeof(proof));
  assert_int_equal(kvf_data_ready_proof(&spec->session_key, &challenge, &hello, ready.proof), KVF_OK);
  return ready;
}

int peer_accept_proved(int listener, const kvf_link_spec *spec)
{
  int fd = peer_accept(listener);
  kvf_data_ready ready = peer_challenge(fd, spec);
  peer_send_frame(fd, KVF_FRAME_DATA_READY, &ready, sizeof(ready));
  return fd;
}

kvf_data_read peer_receive_read(int fd, kvf_transfer_item *items, uint32_t capacity)
{
  uint8_t body[4096];
  kvf_data_read read;
  size_t bytes = peer_receive_frame(fd, KVF_FRAME_READ, body, sizeof(body));
  assert_int_equal(kvf_data_read_decode(body, bytes, &read), KVF_OK);
  assert_true(read.items_count <= capacity);
  kvf_data_read_items(&read, items);
  return read;
}

void peer_send_chunk(int fd, uint64_t read_id, int32_t status, uint64_t payload_bytes)
{
  kvf_data_chunk chunk = {.read_id = read_id, .status = status, .payload_bytes = payload_bytes};
  uint8_t body[KVF_DATA_CHUNK_BYTES_MAX];
  size_t bytes;
  assert_int_equal(kvf_data_chunk_encode(&chunk, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(fd, KVF_FRAME_CHUNK, body, bytes);
}

void peer_send_trailer(int fd, uint64_t read_id, uint64_t word, uint64_t digest)
{
  kvf_data_trailer trailer = {.read_id = read_id, .word = word, .digest = digest};
  uint8_t body[KVF_DATA_TRAILER_BYTES_MAX];
  size_t bytes;
  assert_int_equal(kvf_data_trailer_encode(&trailer, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(fd, KVF_FRAME_TRAILER, body, bytes);
}
