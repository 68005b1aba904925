/* Crowds and bores at a producer's two ports: 10,000 connections that say nothing, 10,000 that say nonsense, peers that
 * prove the key and then send nothing, and peers that prove it, ask, and never read. Memory and descriptors are bounded
 * while they are there and given back afterwards, each is counted, and a consumer beside notices nothing. */
#include <errno.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../sides/peer.h"
#include "pair.h"
#include "test.h"
#include "transport/socket.h"
#include "wire/address.h"

#define CROWD 10000
#define SPARE_DESCRIPTORS 512 /* of the process, besides the crowd's */
#define CONNECTIONS_MAX 64
#define SLACK_BYTES 131072
/* What CONNECTIONS_MAX connections on each of two ports may take. */
#define CROWD_BYTES_MAX ((size_t)CONNECTIONS_MAX * 2 * 65536)
#define BORES 8
#define HANDSHAKE_MS 1500
#define READS 16       /* as many as may wait on a connection */
#define READ_BLOCKS 24 /* of one of them: more than the sockets hold */

typedef struct scene {
  pair_node producer;
  beside beside;
  size_t crowd;
  int fds[CROWD];
} scene;

static scene s;

/* As many descriptors as this process may have; returns how large the crowd can be. */
static size_t raise_descriptors(void)
{
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < CROWD + SPARE_DESCRIPTORS) {
    limit.rlim_cur = limit.rlim_max < CROWD + SPARE_DESCRIPTORS ? limit.rlim_max : CROWD + SPARE_DESCRIPTORS;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  if (limit.rlim_cur >= CROWD + SPARE_DESCRIPTORS) {
    return CROWD;
  }
  size_t crowd = (size_t)limit.rlim_cur - SPARE_DESCRIPTORS;
  print_message("only %zu connections instead of %d: RLIMIT_NOFILE\n", crowd, CROWD);
  return crowd;
}

static void open_scene(void)
{
  memset(&s, 0, sizeof(s));
  const pair_option options[] = {
      {"transports", "tcp"},        {"connections_max", "64"},   {"handshake_timeout_ms", "1500"}, /* HANDSHAKE_MS */
      {"tcp_buffer_bytes", "8192"}, {"idle_timeout_ms", "3000"}, {NULL, NULL}};
  const pair_option patient[] = {{"transports", "tcp"}, {NULL, NULL}};
  s.crowd = raise_descriptors();
  pair_open_node(&s.producer, options);
  beside_start(&s.beside, &s.producer, patient);
}

static void close_scene(void)
{
  beside_stop(&s.beside);
  pair_close_node(&s.producer);
}

/* Where the data port is, as a session of the stranger's is told. */
static kvf_address data_port(void)
{
  stranger control;
  stranger_open(&control, pair_record(s.producer.node).address, NULL);
  stranger_close(&control);
  return control.data;
}

static kvf_address control_port(void)
{
  kvf_address at;
  assert_int_equal(kvf_address_parse("127.0.0.1", pair_record(s.producer.node).address.port, &at), KVF_OK);
  return at;
}

/* Connects them all. `say` may be NULL. */
static void gather(const kvf_address *at, const char *say)
{
  struct sockaddr_storage storage;
  socklen_t bytes = kvf_address_to_sockaddr(at, &storage);
  uint64_t until_ms = now_ms() + UINT64_C(4) * PAIR_PATIENCE_MS;
  for (size_t i = 0; i < s.crowd; i++) {
    s.fds[i] = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s.fds[i] >= 0);
    if (connect(s.fds[i], (const struct sockaddr *)&storage, bytes) != 0) {
      fail_msg("connection %zu: %s", i, strerror(errno));
    }
    if (say != NULL) {
      (void)send(s.fds[i], say, strlen(say), MSG_NOSIGNAL);
    }
    assert_true(now_ms() < until_ms);
  }
}

static void expect_bounded(void)
{
  costs now = costs_now();
  assert_true(now.descriptors <= s.beside.before.descriptors + s.crowd + (size_t)2 * CONNECTIONS_MAX + 2);
  assert_int_equal(now.threads, s.beside.before.threads);
  assert_true(now.memory_bytes <= s.beside.before.memory_bytes + CROWD_BYTES_MAX);
}

/* Each of them sees its end, which the producer caused. */
static void see_off(void)
{
  for (size_t i = 0; i < s.crowd; i++) {
    peer_expect_closed(s.fds[i]);
    (void)close(s.fds[i]);
  }
}

static void endure(const kvf_address *at, const char *say)
{
  gather(at, say);
  expect_bounded();
  see_off();
  beside_expect_undisturbed(&s.beside, SLACK_BYTES);
}

static uint64_t ended(const char *reason)
{
  return pair_stat(&s.producer, "data_connections_ended", reason);
}

TEST_WITH(crowd_at_the_control_port, open_scene, close_scene)
{
  uint64_t accepted = pair_stat(&s.producer, "sessions_accepted", "");
  const kvf_address at = control_port();
  gather(&at, NULL);
  expect_bounded();
  assert_true(pair_wait_log(&s.producer, "limit: too many connections have not proved their key",
                            "127.0.0.1:", PAIR_PATIENCE_MS));
  see_off();
  beside_expect_undisturbed(&s.beside, SLACK_BYTES);
  assert_int_equal(pair_stat(&s.producer, "sessions_accepted", ""), accepted + s.crowd);
  assert_int_equal(pair_stat(&s.producer, "sessions_evicted", "") + pair_stat(&s.producer, "sessions_timed_out", ""),
                   s.crowd);
}

TEST_WITH(nonsense_at_the_control_port, open_scene, close_scene)
{
  const kvf_address at = control_port();
  endure(&at, "GET / HTTP/1.1\r\n\r\n");
  uint64_t refused = pair_stat(&s.producer, "sessions_refused", "protocol");
  assert_true(refused > 0); /* the others were pushed out, or took too long to say it */
  assert_int_equal(
      refused + pair_stat(&s.producer, "sessions_evicted", "") + pair_stat(&s.producer, "sessions_timed_out", ""),
      s.crowd);
}

TEST_WITH(crowd_at_the_data_port, open_scene, close_scene)
{
  uint64_t accepted = pair_stat(&s.producer, "data_connections_accepted", "");
  const kvf_address at = data_port();
  endure(&at, NULL);
  assert_int_equal(pair_stat(&s.producer, "data_connections_accepted", ""), accepted + s.crowd);
  assert_int_equal(ended("limit") + ended("handshake_timeout"), s.crowd);
}

TEST_WITH(nonsense_at_the_data_port, open_scene, close_scene)
{
  const kvf_address at = data_port();
  endure(&at, "GET / HTTP/1.1\r\n\r\n");
  assert_true(ended("protocol") > 0);
  assert_int_equal(ended("protocol") + ended("limit") + ended("handshake_timeout"), s.crowd);
}

/* They proved the key, and that was all: closed when they have been idle for too long. */
TEST_WITH(proved_and_silent, open_scene, close_scene)
{
  stranger bores[BORES];
  for (size_t i = 0; i < BORES; i++) {
    stranger_open(&bores[i], pair_record(s.producer.node).address, NULL);
  }
  for (size_t i = 0; i < BORES; i++) {
    peer_expect_closed(bores[i].fd);
    stranger_close(&bores[i]);
  }
  beside_expect_undisturbed(&s.beside, SLACK_BYTES);
  assert_true(pair_stat(&s.producer, "sessions_timed_out", "") >= BORES);
}

/* A session of one's own, and a data connection that is proved with its key. */
static int connect_data(void)
{
  stranger control;
  uint8_t ready[KVF_DATA_READY_BYTES_MAX];
  stranger_open(&control, pair_record(s.producer.node).address, NULL);
  const kvf_key session_key = stranger_session_key(&control);
  const int fd = stranger_connect_data(&control).fd;
  peer_hello(fd, control.session_id, &session_key);
  assert_int_equal(peer_receive_frame(fd, KVF_FRAME_DATA_READY, ready, sizeof(ready)), sizeof(ready));
  stranger_close(&control);
  return fd;
}

/* They proved the key and asked for more than the sockets hold, and take none of it: the producer's clock ends them. */
TEST_WITH(proved_and_never_reading, open_scene, close_scene)
{
  int fds[BORES];
  pair_ticket ticket;
  kvf_transfer_item items[READ_BLOCKS];
  for (uint32_t i = 0; i < READ_BLOCKS; i++) {
    items[i] = (kvf_transfer_item){.position = i};
  }
  peer_layers = PAIR_REGIONS;
  pair_offer(&s.producer, 17, READ_BLOCKS, 1, true, &ticket);
  for (size_t i = 0; i < BORES; i++) {
    const int small = 4096;
    fds[i] = connect_data();
    assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    for (uint64_t read_id = 1; read_id <= READS; read_id++) {
      peer_send_read(fds[i], read_id, &ticket.lease, items, READ_BLOCKS);
    }
    assert_int_equal(peer_receive_chunk(fds[i]).status, KVF_OK); /* and not a byte of its payload */
  }
  uint64_t begin_ms = now_ms();
  (void)kvf_lease_end(s.producer.node, &ticket.lease); /* what nobody reads keeps no block from its owner */
  (void)kvf_lease_release(s.producer.node, ticket.lease.id);
  assert_true(pair_wait_stat(&s.producer, "data_connections_ended", "transfer_stalled", BORES, PAIR_PATIENCE_MS));
  assert_true(now_ms() >= begin_ms + kvf_socket_patience_ms(HANDSHAKE_MS) / 4);
  assert_true(pair_wait_log(&s.producer, "it has open reads, and takes no bytes", "127.0.0.1:", PAIR_PATIENCE_MS));
  for (size_t i = 0; i < BORES; i++) {
    (void)send(fds[i], "", 1, MSG_NOSIGNAL); /* where the kernel's clock came first, nobody is told unless he asks */
    peer_expect_closed(fds[i]);
    (void)close(fds[i]);
  }
  beside_expect_undisturbed(&s.beside, SLACK_BYTES);
}
