/* The other side of the tcp transport, played by the test over a blocking socket. */
#include "tcp_peer.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test.h"
#include "transport/socket.h"
#include "transport/tcp/common.h"
#include "wire/fields.h"
#include "wire/rails_description.h"

#define PATIENCE_MS 10000
#define BODY_BYTES_MAX 256 /* of all but a READ */

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
  uint8_t *frame = allocate(KVF_FRAME_HEADER_BYTES + body_bytes);
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

#define SEND(fd, type, name, message)                                                        \
  do {                                                                                       \
    uint8_t body[BODY_BYTES_MAX];                                                            \
    size_t bytes = 0;                                                                        \
    assert_int_equal(kvf_data_##name##_encode(message, body, sizeof(body), &bytes), KVF_OK); \
    peer_send_frame(fd, type, body, bytes);                                                  \
  } while (0)

#define RECEIVE(fd, type, name, message)                                      \
  do {                                                                        \
    uint8_t body[BODY_BYTES_MAX];                                             \
    size_t bytes = peer_receive_frame(fd, type, body, sizeof(body));          \
    assert_int_equal(kvf_data_##name##_decode(body, bytes, message), KVF_OK); \
  } while (0)

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

static kvf_address port_of(const void *description, size_t description_bytes)
{
  kvf_tcp_description told = {0};
  kvf_codec codec = kvf_reader_of(description, description_bytes);
  kvf_tcp_description_code(&codec, &told);
  return loopback(told.port);
}

int peer_connect(const void *description, size_t description_bytes)
{
  const kvf_address address = port_of(description, description_bytes);
  return finish_connect(&address);
}

kvf_address peer_data_port(const void *description, size_t description_bytes)
{
  kvf_rails_description rails;
  assert_int_equal(kvf_rails_description_read(description, description_bytes, &rails), KVF_OK);
  return port_of(rails.each[0].data, rails.each[0].bytes);
}

void peer_hello(int fd, uint64_t session_id, const kvf_key *session_key)
{
  kvf_data_challenge challenge;
  kvf_data_hello hello = {.session_id = session_id, .generation = 1};
  RECEIVE(fd, KVF_FRAME_DATA_CHALLENGE, challenge, &challenge);
  assert_int_equal(kvf_data_hello_proof(session_key, &challenge, &hello, hello.proof), KVF_OK);
  SEND(fd, KVF_FRAME_DATA_HELLO, hello, &hello);
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
  kvf_data_ready ready;
  RECEIVE(*fd, KVF_FRAME_DATA_READY, ready, &ready);
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
  uint8_t *body = allocate(capacity);
  size_t bytes;
  assert_int_equal(kvf_data_read_encode(&read, items, body, capacity, &bytes), KVF_OK);
  peer_send_frame(fd, KVF_FRAME_READ, body, bytes);
  free(body);
}

void peer_send_cancel(int fd, uint64_t read_id)
{
  const kvf_data_cancel cancel = {.read_id = read_id};
  SEND(fd, KVF_FRAME_CANCEL, cancel, &cancel);
}

kvf_data_chunk peer_receive_chunk(int fd)
{
  kvf_data_chunk chunk;
  RECEIVE(fd, KVF_FRAME_CHUNK, chunk, &chunk);
  return chunk;
}

kvf_data_trailer peer_receive_trailer(int fd)
{
  kvf_data_trailer trailer;
  RECEIVE(fd, KVF_FRAME_TRAILER, trailer, &trailer);
  return trailer;
}

/* ---- a producer ---- */

/* At a free port of loopback, for a description of this incarnation. */
static int listen_as(const kvf_incarnation *incarnation, void *description, size_t *description_bytes)
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
  const kvf_data_challenge challenge = {.nonce = {1, 2, 3}};
  uint8_t proof[KVF_HASH_BYTES];
  kvf_data_hello hello;
  kvf_data_ready ready;
  SEND(fd, KVF_FRAME_DATA_CHALLENGE, challenge, &challenge);
  RECEIVE(fd, KVF_FRAME_DATA_HELLO, hello, &hello);
  assert_int_equal(hello.session_id, spec->session_id);
  assert_int_equal(kvf_data_hello_proof(&spec->session_key, &challenge, &hello, proof), KVF_OK);
  assert_memory_equal(proof, hello.proof, sizeof(proof));
  assert_int_equal(kvf_data_ready_proof(&spec->session_key, &challenge, &hello, ready.proof), KVF_OK);
  return ready;
}

/* Accepts a connection and does the whole handshake. */
static int accept_proved(int listener, const kvf_link_spec *spec)
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
  const kvf_data_chunk chunk = {.read_id = read_id, .status = status, .payload_bytes = payload_bytes};
  SEND(fd, KVF_FRAME_CHUNK, chunk, &chunk);
}

void peer_send_trailer(int fd, uint64_t read_id, uint64_t word, uint64_t digest)
{
  const kvf_data_trailer trailer = {.read_id = read_id, .word = word, .digest = digest};
  SEND(fd, KVF_FRAME_TRAILER, trailer, &trailer);
}

/* ---- a consumer under test ---- */

tcp_consumer *tcp_consumer_open(uint32_t handshake_timeout_ms)
{
  const side_shape shape = side_shape_simple(CONSUMER_BLOCKS, CONSUMER_BLOCK_BYTES);
  kvf_transport_config config = side_config();
  config.handshake_timeout_ms = handshake_timeout_ms;
  config.listen[0] = '\0';
  tcp_consumer *consumer = allocate(sizeof(*consumer));
  side_introduction *told = &consumer->introduction;
  side_open_with(&consumer->one, &kvf_transport_tcp, &shape, 1, &config);
  side_set_all(&consumer->one, 0);
  *told = (side_introduction){.incarnation = {{1, 2, 3}}, .shape = shape};
  consumer->listener = listen_as(&told->incarnation, told->description, &told->description_bytes);
  consumer->spec = side_spec(told);
  consumer->fd = -1;
  return consumer;
}

void tcp_consumer_connect(tcp_consumer *consumer)
{
  assert_int_equal(side_begin_connect(&consumer->one, &consumer->spec, &consumer->link), KVF_OK);
  consumer->user = consumer->link->user;
}

void tcp_consumer_link(tcp_consumer *consumer)
{
  tcp_consumer_connect(consumer);
  consumer->fd = accept_proved(consumer->listener, &consumer->spec);
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_OK);
}

void tcp_consumer_close(tcp_consumer *consumer)
{
  if (consumer->link != NULL) {
    kvf_transport_tcp.disconnect(consumer->link);
  }
  if (consumer->fd >= 0) {
    (void)close(consumer->fd);
  }
  if (consumer->listener >= 0) {
    (void)close(consumer->listener);
  }
  side_close(&consumer->one);
  free(consumer);
}
