/* A host that vanishes: no end, no reset, no answer, on connections that nobody waits for, so that only the kernel's
 * probes can tell. In a network of the process's own, which is taken down; where the system allows no such network (it
 * takes CLONE_NEWNET or user namespaces) those tests are skipped. */
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pair.h"
#include "test.h"
#include "transport/socket.h"

#define HANDSHAKE_MS 300
#define STREAMS 2
#define SESSION_SOCKETS (2 * (1 + STREAMS)) /* both ends of a control connection and of data connections */
#define SLACK_BYTES 65536
/* After the patience: until the next probe, and what a busy machine takes. */

static bool has_network; /* of its own */

/* ---- the network ---- */

static bool set_loopback(bool up)
{
  struct ifreq request = {.ifr_name = "lo", .ifr_flags = (short)(up ? IFF_UP : 0)};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  bool set = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  (void)close(fd);
  return set;
}

static void open_network(void)
{
  has_network = (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) && set_loopback(true);
}

static void need_network(void)
{
  if (!has_network) {
    print_message("the system allows no network of its own\n");
    skip();
  }
}

static void mend_network(void)
{
  assert_true(!has_network || set_loopback(true));
}

/* ---- sockets ---- */

static int option_of(int fd, int level, int option)
{
  int value = -1;
  socklen_t bytes = sizeof(value);
  assert_int_equal(getsockopt(fd, level, option, &value, &bytes), 0);
  return value;
}

static bool is_connection(int fd)
{
  struct sockaddr_storage peer = {.ss_family = AF_UNSPEC};
  socklen_t bytes = sizeof(peer);
  return getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0 && peer.ss_family == AF_INET;
}

/* Of this process. `check` may be NULL. */
static uint32_t count_connections(void (*check)(int fd))
{
  struct rlimit limit;
  uint32_t count = 0;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  for (int fd = 0; fd < (int)limit.rlim_cur && fd < 1024; fd++) {
    if (is_connection(fd)) {
      count++;
      if (check != NULL) {
        check(fd);
      }
    }
  }
  return count;
}

static void check_options(int fd)
{
  assert_int_equal(option_of(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), kvf_socket_patience_ms(HANDSHAKE_MS));
  assert_int_equal(option_of(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
  assert_int_equal(option_of(fd, IPPROTO_TCP, TCP_KEEPIDLE), 1);
  assert_int_equal(option_of(fd, IPPROTO_TCP, TCP_KEEPINTVL), 1);
  assert_int_equal(option_of(fd, IPPROTO_TCP, TCP_KEEPCNT), KVF_SOCKET_PROBES);
}

/* ---- a session ---- */

typedef struct scene {
  pair_node producer;
  pair_node consumer;
  costs before;
} scene;

static scene s;

static void open_scene(void)
{
  const pair_option options[] = {
      {"transports", "tcp"}, {"handshake_timeout_ms", "300"}, {"tcp_streams", "2"}, {NULL, NULL}};
  pair_open_node(&s.producer, options);
  pair_open_node(&s.consumer, options);
  s.before = costs_now();
  pair_expect_recovery(&s.producer, &s.consumer, 1);
}

static void close_scene(void)
{
  pair_close_node(&s.consumer);
  pair_close_node(&s.producer);
  mend_network();
}

TEST_WITH(both_ends_have_the_options, open_scene, close_scene)
{
  assert_int_equal(count_connections(check_options), SESSION_SOCKETS);
}

/* Nothing is open but the connections, which idle_timeout_ms would keep for five minutes. */
TEST_WITH(idle_connections_end, open_scene, close_scene)
{
  need_network();
  const uint64_t begin_ms = now_ms();
  const uint64_t patience_ms = kvf_socket_patience_ms(HANDSHAKE_MS);
  assert_int_equal(count_connections(NULL), SESSION_SOCKETS);
  assert_true(set_loopback(false));
  while (count_connections(NULL) > 0 && now_ms() < begin_ms + patience_ms + PAIR_LATE_MS) {
    sleep_ms(20);
  }
  assert_int_equal(count_connections(NULL), 0);
  assert_true(now_ms() >= begin_ms + patience_ms / 2);
  costs_expect(s.before, SLACK_BYTES);
  assert_true(set_loopback(true));
  pair_expect_recovery(&s.producer, &s.consumer, 3);
  assert_true(kvf_node_healthy(s.producer.node) && kvf_node_healthy(s.consumer.node));
}

/* ---- a socket ---- */

/* Bytes wait for an acknowledgement: then the kernel probes nothing, and the user timeout must serve alone. */
TEST_WITH(unacknowledged_bytes_end_it, NULL, mend_network)
{
  need_network();
  kvf_address at;
  kvf_address peer;
  char message[KVF_MESSAGE_BYTES_MAX];
  int listener = -1;
  assert_int_equal(kvf_address_resolve("127.0.0.1", NULL, &at, message), KVF_OK);
  assert_int_equal(kvf_socket_listen(&at, HANDSHAKE_MS, &listener, &at, message), KVF_OK);
  int client = kvf_socket_connect(&at, HANDSHAKE_MS, 0);
  struct pollfd waiting = {.fd = listener, .events = POLLIN};
  assert_int_equal(poll(&waiting, 1, PAIR_PATIENCE_MS), 1);
  int server = kvf_socket_accept(listener, &peer);
  assert_true(client >= 0 && server >= 0);
  const int none = 0;
  assert_int_equal(setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &none, sizeof(none)), 0);
  assert_true(set_loopback(false));
  assert_int_equal(send(client, "?", 1, MSG_NOSIGNAL), 1);
  waiting = (struct pollfd){.fd = client, .events = 0};
  assert_int_equal(poll(&waiting, 1, (int)kvf_socket_patience_ms(HANDSHAKE_MS) + PAIR_LATE_MS), 1);
  assert_int_not_equal(kvf_socket_error(client), 0);
  kvf_socket_close(client);
  kvf_socket_close(server);
  kvf_socket_close(listener);
}

int main(void)
{
  open_network();
  return test_run(NULL);
}
