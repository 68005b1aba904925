/* Connections that strangers and consumers make: who is let in, who is thrown out, and that others notice nothing. */
#include "transport/tcp/server.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../sides/peer.h"
#include "../../sides/side.h"
#include "test.h"

#define SLOW_BYTES (256u << 10)

static const kvf_transport_ops *const ops = &kvf_transport_tcp;
static atomic_int accept_error; /* of the next accept4(); 0: none */

int __real_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
  int error = atomic_exchange(&accept_error, 0);
  if (error != 0) {
    errno = error;
    return -1;
  }
  return __real_accept4(fd, address, bytes, flags);
}

typedef struct scene {
  side producer;
  side_introduction introduction;
  kvf_link_spec spec;
  side_lease *lease;
} scene;

static scene s;

static void scene_open_with(const side_shape *shape, const kvf_transport_config *config)
{
  side_open(&s.producer, ops, shape, 1, config);
  side_introduce(&s.producer, &s.introduction);
  s.spec = side_spec(&s.introduction);
  s.lease = side_publish(&s.producer, 1001);
}

static void scene_open_tls(uint32_t connections_max, uint32_t handshake_timeout_ms, kvf_tls_context *tls)
{
  const side_shape shape = side_shape_simple(4, 4096);
  kvf_transport_config config = side_config();
  config.tls = (kvf_tls_use){.context = tls, .on_loopback = true};
  config.connections_max = connections_max;
  config.handshake_timeout_ms = handshake_timeout_ms;
  scene_open_with(&shape, &config);
}

static void scene_open(uint32_t connections_max, uint32_t handshake_timeout_ms)
{
  scene_open_tls(connections_max, handshake_timeout_ms, NULL);
}

/* Blocks of which the kernel does not take all at once; a handshake has a second. */
static void scene_open_large(uint32_t connections_max)
{
  const side_shape shape = side_shape_simple(64, 1 << 20);
  kvf_transport_config config = side_config();
  config.connections_max = connections_max;
  config.tcp_buffer_bytes = 65536;
  config.handshake_timeout_ms = 1000;
  scene_open_with(&shape, &config);
}

static void scene_close(void)
{
  side_close(&s.producer);
}

#define SCENE_TEST(name) TEST_WITH(name, NULL, scene_close)

static int connect_stranger(void)
{
  return peer_connect(s.introduction.description, s.introduction.description_bytes);
}

/* One that has been accepted. */
static int accepted_stranger(void)
{
  uint8_t challenge[KVF_DATA_CHALLENGE_BYTES_MAX];
  int fd = connect_stranger();
  (void)peer_receive_frame(fd, KVF_FRAME_DATA_CHALLENGE, challenge, sizeof(challenge));
  return fd;
}

/* This consumer is served. */
static void expect_served(int fd)
{
  const kvf_transfer_item item = {.position = 1};
  uint8_t payload[4096];
  peer_send_read(fd, 5, &s.lease->lease, &item, 1);
  kvf_data_chunk chunk = peer_receive_chunk(fd);
  assert_int_equal(chunk.status, KVF_OK);
  assert_int_equal(chunk.payload_bytes, sizeof(payload));
  peer_receive(fd, payload, sizeof(payload));
  assert_memory_equal(payload, side_block(&s.producer, 0, s.lease->blocks[1]), sizeof(payload));
  assert_int_equal(peer_receive_trailer(fd).word, kvf_fence_word_live(1001));
}

/* What was sent to `fd` closes it with this line, and disturbs nobody else. */
static void expect_thrown_out(int fd, int witness, const char *line)
{
  peer_expect_closed(fd);
  (void)close(fd);
  assert_true(side_has_logged(&s.producer, line));
  assert_true(side_has_logged(&s.producer, "peer 127.0.0.1:"));
  expect_served(witness);
}

SCENE_TEST(strangers_that_talk_nonsense_are_thrown_out)
{
  scene_open(64, 5000);
  int witness = peer_connect_proved(&s.spec);

  int fd = connect_stranger();
  peer_send(fd, "GET / HTTP/1.1\r\n\r\n", 18);
  expect_thrown_out(fd, witness, "not a frame");

  fd = connect_stranger();
  uint8_t header[KVF_FRAME_HEADER_BYTES];
  kvf_frame_header_encode(KVF_FRAME_DATA_HELLO, KVF_FRAME_BODY_BYTES_MAX, header);
  peer_send(fd, header, sizeof(header));
  expect_thrown_out(fd, witness, "too long");

  fd = connect_stranger();
  peer_send_frame(fd, KVF_FRAME_DATA_HELLO, "short", 5);
  expect_thrown_out(fd, witness, "malformed data_hello");

  fd = connect_stranger();
  peer_send_frame(fd, KVF_FRAME_READ, "read", 4); /* a whole one is too long for who is not proved */
  expect_thrown_out(fd, witness, "unexpected frame read before its handshake");
  (void)close(witness);
}

static kvf_tls_context *tls_with(const char *key_of_sixteen)
{
  kvf_key key = {.bytes = 16};
  kvf_tls_context *context;
  memcpy(key.data, key_of_sixteen, key.bytes);
  assert_int_equal(kvf_tls_context_new(&key, 1, &context), KVF_OK);
  return context;
}

/* Not a byte of a frame goes by outside TLS, and none inside to who has another key. */
TEST(inside_tls_nothing_is_said_to_strangers)
{
  kvf_tls_context *ours = tls_with("a key of sixteen");
  kvf_tls_context *theirs = tls_with("a key of 16, too");
  scene_open_tls(64, 1000, ours);

  int fd = connect_stranger();
  peer_expect_silence(fd, 100);
  peer_send_frame(fd, KVF_FRAME_DATA_HELLO, "short", 5);
  peer_expect_closed(fd);
  (void)close(fd);
  assert_true(side_has_logged(&s.producer, "TLS: it does not speak TLS (option tls)"));

  fd = connect_stranger();
  kvf_tls *tls = kvf_tls_new(theirs, fd, true);
  const struct msghdr nothing = {0};
  assert_non_null(tls);
  while (kvf_tls_sendmsg(tls, &nothing) < 0 && errno == EAGAIN) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, 10000), 1);
  }
  assert_string_equal(kvf_tls_why(tls), "TLS: it refused our key (option key_file)");
  peer_expect_closed(fd);
  assert_true(side_has_logged(&s.producer, "TLS: it has another key (option key_file)"));
  kvf_tls_free(tls);
  (void)close(fd);

  fd = connect_stranger();
  peer_expect_closed(fd);
  assert_true(side_has_logged(&s.producer, "it did not prove its key in time"));
  (void)close(fd);
  scene_close();
  kvf_tls_context_free(ours);
  kvf_tls_context_free(theirs);
}

SCENE_TEST(consumers_must_show_the_sessions_key)
{
  scene_open(64, 5000);
  int witness = peer_connect_proved(&s.spec);

  int fd = connect_stranger();
  kvf_key other = s.spec.session_key;
  other.data[31] ^= 1;
  peer_hello(fd, s.spec.session_id, &other);
  expect_thrown_out(fd, witness, "unknown session, or wrong proof");

  fd = connect_stranger();
  peer_hello(fd, s.spec.session_id + 1, &s.spec.session_key);
  expect_thrown_out(fd, witness, "unknown session, or wrong proof");
  (void)close(witness);
}

SCENE_TEST(proved_consumers_that_talk_nonsense_are_thrown_out)
{
  scene_open(64, 5000);
  int witness = peer_connect_proved(&s.spec);

  int fd = peer_connect_proved(&s.spec);
  peer_send_frame(fd, KVF_FRAME_DATA_HELLO, NULL, 0);
  expect_thrown_out(fd, witness, "unexpected frame data_hello after its handshake");

  fd = peer_connect_proved(&s.spec);
  peer_send_frame(fd, KVF_FRAME_READ, "nonsense", 8);
  expect_thrown_out(fd, witness, "malformed read");

  fd = peer_connect_proved(&s.spec);
  peer_send_frame(fd, KVF_FRAME_CANCEL, "nonsense", 7);
  expect_thrown_out(fd, witness, "malformed cancel");

  fd = peer_connect_proved(&s.spec);
  uint8_t header[KVF_FRAME_HEADER_BYTES] = {0xff, 0xff, 0xff, 0x7f, KVF_FRAME_READ};
  peer_send(fd, header, sizeof(header));
  expect_thrown_out(fd, witness, "too long");
  (void)close(witness);
}

SCENE_TEST(silent_strangers_are_dropped_in_time)
{
  scene_open(64, 100);
  int witness = peer_connect_proved(&s.spec);
  uint64_t begun_ns = now_ns();
  int fd = connect_stranger();
  uint8_t half[20]; /* of a challenge */
  peer_receive(fd, half, sizeof(half));
  peer_send(fd, half, 3); /* a start is not enough */
  peer_expect_closed(fd);
  assert_true(now_ns() - begun_ns >= 99 * KVF_NS_PER_MS);
  assert_true(side_has_logged(&s.producer, "it did not prove its key in time"));
  (void)close(fd);
  expect_served(witness); /* which has proved it, and may be silent for as long as it likes */
  (void)close(witness);
}

SCENE_TEST(strangers_cannot_keep_consumers_out)
{
  scene_open(8, 5000); /* 8 / 4 + 1 strangers at once */
  int strangers[20];
  for (size_t i = 0; i < 20; i++) {
    strangers[i] = accepted_stranger();
  }
  for (size_t i = 0; i < 17; i++) { /* the oldest made room */
    peer_expect_closed(strangers[i]);
  }
  peer_expect_silence(strangers[17], 20);
  peer_expect_silence(strangers[19], 20);
  assert_true(side_has_logged(&s.producer, "too many connections have not proved their key"));
  int fd = peer_connect_proved(&s.spec);
  expect_served(fd);
  (void)close(fd);
  for (size_t i = 0; i < 20; i++) {
    (void)close(strangers[i]);
  }
}

SCENE_TEST(strangers_of_one_host_keep_no_other_out)
{
  enum { CROWD = 20 };
  int crowd[CROWD];
  scene_open(8, 5000); /* 8 / 4 + 1 strangers at once */
  peer_from = "127.0.0.2";
  int other = accepted_stranger();
  peer_from = NULL;
  for (size_t i = 0; i < CROWD; i++) {
    crowd[i] = accepted_stranger();
  }
  peer_expect_closed(crowd[CROWD - 3]);
  peer_expect_silence(other, 20);
  peer_expect_silence(crowd[CROWD - 2], 20);
  peer_expect_silence(crowd[CROWD - 1], 20);
  for (size_t i = 0; i < CROWD; i++) {
    (void)close(crowd[i]);
  }
  (void)close(other);
}

/* In TLS a handshake has several turns: who has begun it does not make room for those who say nothing. */
TEST(silent_strangers_do_not_keep_out_who_speaks)
{
  enum { CROWD = 20 };
  static const uint8_t beginning[] = {22, 3, 1, 63, 255, 1}; /* of a record that is never whole */
  int crowd[CROWD];
  kvf_tls_context *tls = tls_with("a key of sixteen");
  scene_open_tls(8, 5000, tls);
  int speaker = connect_stranger();
  peer_send(speaker, beginning, sizeof(beginning));
  peer_expect_silence(speaker, 200); /* it has been heard by now */
  for (size_t i = 0; i < CROWD; i++) {
    crowd[i] = connect_stranger();
  }
  for (size_t i = 0; i < CROWD - 2; i++) {
    peer_expect_closed(crowd[i]);
  }
  peer_expect_silence(speaker, 20);
  peer_expect_silence(crowd[CROWD - 1], 20);
  for (size_t i = 0; i < CROWD; i++) {
    (void)close(crowd[i]);
  }
  (void)close(speaker);
  scene_close();
  kvf_tls_context_free(tls);
}

/* Among those that have proved the key. */
SCENE_TEST(the_host_with_most_consumers_makes_room)
{
  int fds[4];
  scene_open(3, 5000);
  peer_from = "127.0.0.2";
  fds[0] = peer_connect_proved(&s.spec);
  peer_from = NULL;
  for (size_t i = 1; i < 4; i++) {
    fds[i] = peer_connect_proved(&s.spec);
  }
  peer_expect_closed(fds[1]);
  expect_served(fds[0]);
  expect_served(fds[2]);
  expect_served(fds[3]);
  for (size_t i = 0; i < 4; i++) {
    (void)close(fds[i]);
  }
}

SCENE_TEST(the_longest_idle_consumer_makes_room)
{
  scene_open(3, 5000);
  int fds[4];
  for (size_t i = 0; i < 3; i++) {
    fds[i] = peer_connect_proved(&s.spec);
  }
  expect_served(fds[0]); /* so that fds[1] is the one */
  fds[3] = peer_connect_proved(&s.spec);
  peer_expect_closed(fds[1]);
  assert_true(side_has_logged(&s.producer, "connections_max is reached, and this connection was idle longest"));
  expect_served(fds[0]);
  expect_served(fds[2]);
  expect_served(fds[3]);
  for (size_t i = 0; i < 4; i++) {
    (void)close(fds[i]);
  }
}

/* When the kernel takes the last byte that it has room for is its affair: acknowledgements may be late. */
SCENE_TEST(busy_consumers_make_room_only_when_stuck)
{
  scene_open_large(1);
  int busy = peer_connect_proved(&s.spec);
  kvf_transfer_item items[16];
  for (uint32_t i = 0; i < 16; i++) {
    items[i] = (kvf_transfer_item){.position = i};
  }
  peer_send_read(busy, 5, &s.lease->lease, items, 16);
  assert_int_equal(peer_receive_chunk(busy).status, KVF_OK);
  uint64_t tries = 0;
  int late;
  while (!peer_try(&s.spec, &late)) {
    assert_true(side_has_logged(&s.producer, "connections_max is reached, and all connections are busy"));
    assert_true(++tries < 20);
    sleep_us(250000);
  }
  assert_true(tries > 0);
  assert_true(side_has_logged(&s.producer, "connections_max is reached, and the peer takes no bytes"));
  (void)close(late);
  (void)close(busy);
}

/* Whoever takes something now and then stays, and whoever has nothing to take. */
SCENE_TEST(who_takes_nothing_is_closed)
{
  scene_open_large(side_config().connections_max);
  const kvf_transfer_item items[] = {{.position = 0}, {.position = 1}, {.position = 2}, {.position = 3}};
  int stuck = peer_connect_proved(&s.spec);
  int slow = peer_connect_proved(&s.spec);
  int idle = peer_connect_proved(&s.spec);
  kvf_socket_set_buffers(slow, 65536); /* so that at no time all is in the kernel's hands */
  peer_send_read(stuck, 5, &s.lease->lease, items, 4);
  peer_send_read(slow, 6, &s.lease->lease, items, 4);
  assert_int_equal(peer_receive_chunk(stuck).status, KVF_OK);
  assert_int_equal(peer_receive_chunk(slow).status, KVF_OK);
  const uint64_t patience_us = UINT64_C(1000) * kvf_socket_patience_ms(1000);
  uint8_t *some = allocate(SLOW_BYTES);
  sleep_us(patience_us / 4);
  assert_false(side_has_logged(&s.producer, "it has open reads, and takes no bytes"));
  for (int i = 0; i < 8; i++) {
    peer_receive(slow, some, SLOW_BYTES);
    sleep_us(patience_us / 8);
  }
  peer_expect_closed(stuck);
  assert_true(side_has_logged(&s.producer, "it has open reads, and takes no bytes"));
  peer_send_read(idle, 7, &s.lease->lease, items, 1);
  assert_int_equal(peer_receive_chunk(idle).status, KVF_OK);
  peer_receive(slow, some, SLOW_BYTES);
  free(some);
  (void)close(stuck);
  (void)close(slow);
  (void)close(idle);
}

/* Nothing happens, and nothing is done: a thread that spins shows in the process' time. */
static void expect_rest(void)
{
  assert_true(used_us_in(500) < 50000);
}

SCENE_TEST(a_lack_of_descriptors_passes)
{
  scene_open(8, 5000);
  atomic_store(&accept_error, EMFILE);
  int fd = peer_connect_proved(&s.spec); /* a little later */
  expect_served(fd);
  assert_int_equal(atomic_load(&accept_error), 0);
  assert_true(side_has_logged(&s.producer, "cannot accept connections: Too many open files"));
  expect_rest();                             /* the pause is over and forgotten */
  atomic_store(&accept_error, ECONNABORTED); /* that one left; the next is taken at once */
  int next = peer_connect_proved(&s.spec);
  expect_served(next);
  (void)close(fd);
  (void)close(next);
}

/* A child of which no fork handler knows has copies of both ends and of the listener: who is thrown out sees it all
 * the same, the thread is not told of him again, and nobody can connect to a port that is not served any more. */
TEST(a_forked_child_keeps_nothing_open)
{
  scene_open(8, 5000);
  int fd = accepted_stranger();
  const child_process child = child_idle();
  peer_send(fd, "GET / HTTP/1.1\r\n\r\n", 18);
  peer_expect_closed(fd);
  (void)close(fd);
  expect_rest();
  kvf_address at;
  kvf_tcp_description found;
  assert_int_equal(kvf_tcp_description_read(s.introduction.description, s.introduction.description_bytes,
                                            &s.introduction.incarnation, &found),
                   KVF_OK);
  assert_int_equal(kvf_address_parse("127.0.0.1", found.port, &at), KVF_OK);
  scene_close();
  assert_int_equal(stranger_dial(at), -1);
  assert_int_equal(errno, ECONNREFUSED);
  assert_true(child_kill(&child));
}
