/* Two processes without the key open thousands of connections a second to a producer, and reset them. Fresh consumers,
 * one after the other, connect and load all the same: from another address as if nobody else was there, and even from
 * the address that the flood comes from. At both of the producer's ports, with TLS. */
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../child_process.h"
#include "../sides/peer.h"
#include "pair.h"
#include "test.h"
#include "transport/thread.h"

#define KEY "a key of sixteen"
#define FLOODERS 2
#define HELD 400                         /* by each flooder */
#define PERIOD_NS (KVF_NS_PER_S / 10000) /* of each; it spins in between, so that it takes a processor, too */
#define CONSUMERS 12
#define FROM_ELSEWHERE_MS 250
#define AT_ONCE_MS 1000 /* nothing is gained by who comes later: handshake_timeout_ms */

static const uint32_t elsewhere = 0x7f000002; /* 127.0.0.2; consumers come from 127.0.0.1 */
static const uint32_t same_place = INADDR_LOOPBACK;

static char key_path[64];

/* ---- a flooder: this program, once more ---- */

typedef struct target {
  uint32_t from;
  uint16_t port;
} target;

static int connect_to(const target *at)
{
  const int one = 1;
  const struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = {htonl(at->from)}};
  const struct sockaddr_in to = {
      .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons(at->port)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
  if (bind(fd, (const struct sockaddr *)&from, sizeof(from)) != 0 ||
      (connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS)) {
    (void)close(fd); /* of so many one more or less */
    return -1;
  }
  return fd;
}

static bool is_told_to_end(void)
{
  char none;
  return recv(STDIN_FILENO, &none, 1, MSG_DONTWAIT) >= 0;
}

/* Says so when it holds as many as it ever does. */
static int flood(void)
{
  target at;
  int fds[HELD];
  if (!child_receive(STDIN_FILENO, &at, sizeof(at))) {
    return 1;
  }
  for (size_t i = 0; i < HELD; i++) {
    fds[i] = connect_to(&at);
  }
  if (!child_send(STDIN_FILENO, "", 1)) {
    return 1;
  }
  uint64_t next_ns = kvf_clock_now();
  for (size_t i = 0; i % HELD != 0 || !is_told_to_end(); i++) {
    peer_reset(fds[i % HELD]);
    fds[i % HELD] = connect_to(&at);
    while (kvf_clock_now() < next_ns) {
    }
    next_ns = kvf_clock_now() + PERIOD_NS; /* what was missed is not made up for */
  }
  return 0;
}

/* ---- the scene ---- */

static child_process flooders[FLOODERS];

static pair_option options[] = {{"transports", "tcp"},       {"tls", "always"},
                                {"key_file", key_path},      {"handshake_timeout_ms", "1000"}, /* AT_ONCE_MS */
                                {"load_timeout_ms", "5000"}, {NULL, NULL}};

/* The port of the other listener of this process. */
static uint16_t data_port(void)
{
  const uint16_t control_port = pair_record(p.producer.node).address.port;
  for (int fd = 0; fd < 1024; fd++) {
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    struct sockaddr_in at = {0};
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0) {
      bytes = sizeof(at);
      assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
      if (at.sin_family == AF_INET && ntohs(at.sin_port) != control_port) {
        return ntohs(at.sin_port);
      }
    }
  }
  fail_msg("there is no listener for data");
  return 0;
}

static void begin_flood(uint32_t from, uint16_t port)
{
  const target at = {from, port};
  char full;
  for (size_t i = 0; i < FLOODERS; i++) {
    assert_true(child_start(&flooders[i], "flood", SOCK_STREAM));
    assert_true(child_send(flooders[i].channel, &at, sizeof(at)));
  }
  for (size_t i = 0; i < FLOODERS; i++) {
    assert_true(child_receive(flooders[i].channel, &full, 1));
  }
}

static void end_flood(void)
{
  for (size_t i = 0; i < FLOODERS; i++) {
    assert_int_equal(child_end(&flooders[i]), 0);
  }
}

/* Returns how many have loaded in time. */
static unsigned load_freshly(uint64_t within_ms)
{
  unsigned good = 0;
  for (uint32_t i = 0; i < CONSUMERS; i++) {
    pair_outcome out;
    pair_open_node(&p.consumer, options);
    pair_try(&p.producer, &p.consumer, i + 1, &out);
    bool in_time = SANITIZED || out.took_ms <= within_ms;
    good += out.started == KVF_OK && out.status == KVF_OK && in_time;
    print_message("consumer %u: %s, %u ms\n", i, kvf_status_name(out.status), (unsigned)out.took_ms);
    pair_close_node(&p.consumer);
  }
  return good;
}

static void expect_room(uint32_t from, bool at_data_port)
{
  pair_open_node(&p.producer, options);
  begin_flood(from, at_data_port ? data_port() : pair_record(p.producer.node).address.port);
  const unsigned good = from == elsewhere ? load_freshly(FROM_ELSEWHERE_MS) : load_freshly(UINT64_C(2) * AT_ONCE_MS);
  end_flood();
  const unsigned wanted = from == elsewhere ? CONSUMERS : CONSUMERS - 1;
  assert_true(good >= wanted);
  /* It was one, and took all the room that there is. */
  const uint64_t evicted = at_data_port ? pair_stat(&p.producer, "data_connections_ended", "limit")
                                        : pair_stat(&p.producer, "sessions_evicted", "");
  print_message("%u of %u loaded, %u strangers made room\n", good, CONSUMERS, (unsigned)evicted);
  assert_true(evicted > HELD);
}

PAIR_TEST(flood_from_elsewhere_at_the_control_port)
{
  expect_room(elsewhere, false);
}

PAIR_TEST(flood_from_elsewhere_at_the_data_port)
{
  expect_room(elsewhere, true);
}

PAIR_TEST(flood_from_the_same_address_at_the_control_port)
{
  expect_room(same_place, false);
}

PAIR_TEST(flood_from_the_same_address_at_the_data_port)
{
  expect_room(same_place, true);
}

int main(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], "flood") == 0) {
    return flood();
  }
  stranger_key_file(KEY, key_path);
  int failed = test_run(argc > 1 ? argv[1] : NULL);
  (void)unlink(key_path);
  return failed;
}
