/* The node's own thread: what it listens on, whom it accepts, how it writes to who reads slowly. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../sides/peer.h"
#include "pair.h"
#include "runtime/control.h"
#include "test.h"
#include "transport/socket.h"
#include "wire/ping_message.h"

static atomic_int watches; /* 0: as many as there are; else the last of so many fails */

static atomic_bool only_dials; /* of these: the peer's end of a connection may be watched before ours */
static atomic_bool away;       /* control threads that have waited for events stay away */
static atomic_int away_count;

int __real_epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event);

int __real_epoll_wait(int epoll_fd, struct epoll_event *events, int capacity, int timeout_ms);
int __wrap_epoll_wait(int epoll_fd, struct epoll_event *events, int capacity, int timeout_ms);

int __wrap_epoll_wait(int epoll_fd, struct epoll_event *events, int capacity, int timeout_ms)
{
  int count = __real_epoll_wait(epoll_fd, events, capacity, timeout_ms);
  char name[16] = "";
  (void)pthread_getname_np(pthread_self(), name, sizeof(name));
  if (atomic_load(&away) && strcmp(name, "kvf-control") == 0) {
    (void)atomic_fetch_add(&away_count, 1);
    while (atomic_load(&away)) {
      sleep_ms(1);
    }
  }
  return count;
}

int __wrap_epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event)
{
  const bool counts = !atomic_load(&only_dials) || (event != NULL && (event->events & EPOLLOUT) != 0);
  if (operation == EPOLL_CTL_ADD && counts && atomic_load(&watches) > 0 && atomic_fetch_sub(&watches, 1) == 1) {
    errno = ENOSPC;
    return -1;
  }
  return __real_epoll_ctl(epoll_fd, operation, fd, event);
}

static atomic_bool without_random;

ssize_t __real_getrandom(void *out, size_t bytes, unsigned flags);
ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags);

ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags)
{
  if (atomic_load(&without_random)) {
    errno = ENOSYS;
    return -1;
  }
  return __real_getrandom(out, bytes, flags);
}

static stranger s = {.fd = -1};
static pair_ticket ticket;
static char key_file[64];

static void tear_down(void)
{
  stranger_close(&s);
  pair_close();
  (void)unlink(key_file);
  key_file[0] = 0;
}

#define NODES_TEST(name) TEST_WITH(name, NULL, tear_down)

/* ---- listening ---- */

TEST(port_is_chosen_and_told)
{
  const pair_option options[] = {{"listen", "127.0.0.1"}, {NULL, NULL}};
  kvf_node *nodes[2];
  uint16_t ports[2];
  char message[KVF_MESSAGE_BYTES_MAX];
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(pair_open_bare(options, &nodes[i], message), KVF_OK);
    kvf_rank_record record = pair_record(nodes[i]);
    assert_true(kvf_address_is_loopback(&record.address));
    ports[i] = record.address.port;
    assert_int_not_equal(ports[i], 0);
  }
  assert_int_not_equal(ports[0], ports[1]);
  kvf_node_close(nodes[0]);
  kvf_node_close(nodes[1]);
}

/* What it comes to is where tcp's data listens, too. */
NODES_TEST(interface_or_network_is_an_address)
{
  static const char *const named[] = {"lo", "127.0.0.0/8"};
  for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
    const pair_option options[] = {{"listen", named[i]}, {"transports", "tcp"}, {NULL, NULL}};
    pair_open_node(&p.producer, options);
    pair_open_node(&p.consumer, options);
    kvf_rank_record record = pair_record(p.producer.node);
    assert_true(kvf_address_is_v4(&record.address) && kvf_address_is_loopback(&record.address));
    pair_offer(&p.producer, 0, 4, 1, true, &ticket);
    pair_fetch_whole(&p.consumer, &ticket, 0);
    pair_close();
  }
  const pair_option none[] = {{"listen", "198.51.100.0/24"}, {NULL, NULL}};
  pair_expect_refused(none, KVF_INVALID, "listen = 198.51.100.0/24: no address of this machine is in that network");
}

/* ---- an address of each family ---- */

#define SECOND_KEY "a key of sixteen"

/* A producer at both, whose tickets name `first` for the one of IPv4; NULL: where it is. */
static void open_dual(const char *first, const char *ports)
{
  const pair_option producer[] = {{"listen", "127.0.0.1"},
                                  {"listen_other", "::1"},
                                  {"key_file", key_file},
                                  {"transports", "tcp"},
                                  {"data_ports", ports},
                                  {first == NULL ? NULL : "advertise", first},
                                  {NULL, NULL}};
  const pair_option consumer[] = {{"listen", ""}, {"key_file", key_file}, {"transports", "tcp"}, {NULL, NULL}};
  pair_open_node(&p.producer, producer);
  pair_open_node(&p.consumer, consumer);
}

static void load_from(const char *expected_host)
{
  kvf_peer_stat peers[2];
  pair_offer(&p.producer, 0, 4, 1, true, &ticket);
  pair_fetch_whole(&p.consumer, &ticket, 0);
  assert_int_equal(kvf_node_peers(p.consumer.node, peers, 2), 1);
  assert_memory_equal(peers[0].address, expected_host, strlen(expected_host));
}

NODES_TEST(one_address_of_each_family)
{
  stranger_key_file(SECOND_KEY, key_file);
  open_dual(NULL, "");
  const kvf_rank_record record = pair_record(p.producer.node);
  char text[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format_host(&record.other, text);
  assert_string_equal(text, "::1");
  load_from("127.0.0.1:");
  pair_close();

  /* Nobody is where the ticket says first: control connection and data take the other way. */
  const held_port nobody = hold_port();
  open_dual(nobody.address, "");
  load_from("[::1]:");
  (void)close(nobody.fd);
}

/* Data has the same port at both: one that is taken at either is passed over. */
NODES_TEST(a_data_port_is_free_at_both_addresses)
{
  char ports[16];
  const held_port v6 = hold_port_of(AF_INET6);
  const held_port nobody = hold_port();
  assert_int_equal(listen(v6.fd, 1), 0);
  stranger_key_file(SECOND_KEY, key_file);
  (void)snprintf(ports, sizeof(ports), "%u-%u", (unsigned)v6.port, (unsigned)v6.port + 40);
  open_dual(nobody.address, ports);
  load_from("[::1]:");
  (void)close(nobody.fd);
  (void)close(v6.fd);
}

/* An engine whose second address is not there (yet) has one. */
NODES_TEST(a_node_does_without_the_second_address)
{
  stranger_key_file(SECOND_KEY, key_file);
  const pair_option options[] = {{"key_file", key_file}, {"listen_other", "2001:db8::1"}, {NULL, NULL}};
  const pair_option same[] = {{"key_file", key_file}, {"listen_other", "127.0.0.2"}, {NULL, NULL}};
  const pair_option keyless[] = {{"listen_other", "::1"}, {NULL, NULL}};
  const pair_option *const rows[] = {options, same, keyless};
  for (size_t i = 0; i < 3; i++) {
    pair_open_node(&p.producer, rows[i]);
    assert_int_equal(pair_record(p.producer.node).other.port, 0);
    assert_int_equal(pair_logged(&p.producer, "has one address instead of one of each family", NULL), i == 0);
    pair_close_node(&p.producer);
  }
}

/* As ranks of one host do, and whoever advertises another address: tickets name the port that was taken. */
TEST(first_free_port_of_a_range_is_taken_and_told)
{
  const held_port taken = hold_port();
  char range[64];
  char message[KVF_MESSAGE_BYTES_MAX];
  const pair_option options[] = {{"listen", range}, {"advertise", "10.1.2.3"}, {NULL, NULL}};
  const pair_option plain[] = {{"listen", range}, {NULL, NULL}};
  const pair_option with_port[] = {{"listen", range}, {"advertise", "10.1.2.3:80"}, {NULL, NULL}};
  kvf_node *nodes[3];
  uint16_t ports[3];
  (void)snprintf(range, sizeof(range), "%s-%u", taken.address, (unsigned)taken.port + 40);
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(pair_open_bare(i == 1 ? plain : options, &nodes[i], message), KVF_OK);
    ports[i] = pair_record(nodes[i]).address.port;
  }
  assert_int_equal(ports[0], taken.port);
  assert_in_range(ports[1], ports[0] + 1, ports[0] + 39);
  assert_in_range(ports[2], ports[1] + 1, ports[0] + 40);
  pair_expect_refused(with_port, KVF_INVALID, "advertise = 10.1.2.3:80 names a port, and listen = ");

  (void)snprintf(range, sizeof(range), "%s-%u", taken.address, (unsigned)taken.port);
  pair_expect_refused(options, KVF_ADDRESS_IN_USE, range);
  pair_expect_refused(options, KVF_ADDRESS_IN_USE, "no port of it is free");
  for (size_t i = 0; i < 3; i++) {
    kvf_node_close(nodes[i]);
  }
  (void)close(taken.fd);
}

/* Where a firewall lets only these through: who finds none of them free says so, and does not take another. */
TEST(data_is_served_at_the_ports_that_are_named)
{
  const held_port taken = hold_port();
  char ports[16];
  char message[KVF_MESSAGE_BYTES_MAX];
  const pair_option options[] = {
      {"data_ports", ports}, {"transports", "tcp"}, {"tcp_streams", "1"}, {"listen", "127.0.0.1"}, {NULL, NULL}};
  kvf_node *node;
  (void)snprintf(ports, sizeof(ports), "%u", (unsigned)taken.port);
  assert_int_equal(pair_open_bare(options, &node, message), KVF_OK);
  pair_expect_refused(options, KVF_ADDRESS_IN_USE, "data_ports = ");
  kvf_node_close(node);
  assert_int_equal(pair_open_bare(options, &node, message), KVF_OK);
  kvf_node_close(node);
  (void)close(taken.fd);
}

TEST(advertised_address_is_what_tickets_name)
{
  pair_option options[] = {{"advertise", "10.1.2.3"}, {NULL, NULL}};
  kvf_node *node;
  char message[KVF_MESSAGE_BYTES_MAX];
  char text[KVF_ADDRESS_TEXT_BYTES];
  assert_int_equal(pair_open_bare(options, &node, message), KVF_OK);
  kvf_rank_record record = pair_record(node);
  assert_int_not_equal(record.address.port, 0); /* the one that it listens on */
  record.address.port = 0;
  kvf_address_format(&record.address, text);
  assert_string_equal(text, "10.1.2.3:0");
  kvf_node_close(node);
  options[0].value = "10.1.2.3:4567"; /* a forwarded port */
  assert_int_equal(pair_open_bare(options, &node, message), KVF_OK);
  record = pair_record(node);
  kvf_address_format(&record.address, text);
  assert_string_equal(text, "10.1.2.3:4567");
  kvf_node_close(node);
}

/* P8: off loopback only with a key, and never with an address that nobody can connect to. */
NODES_TEST(other_addresses_need_a_key)
{
  stranger_key_file("a key of sixteen", key_file);
  const pair_option open_to_all[] = {{"listen", "0.0.0.0"}, {"advertise", "127.0.0.1"}, {NULL, NULL}};
  const pair_option nameless[] = {{"listen", "0.0.0.0"}, {"key_file", key_file}, {NULL, NULL}};
  const pair_option advertised_to_all[] = {
      {"listen", "0.0.0.0"}, {"advertise", "0.0.0.0"}, {"key_file", key_file}, {NULL, NULL}};
  const pair_option good[] = {{"listen", "0.0.0.0"}, {"advertise", "127.0.0.1"}, {"key_file", key_file}, {NULL, NULL}};
  kvf_node *node;
  char message[KVF_MESSAGE_BYTES_MAX];
  pair_expect_refused(open_to_all, KVF_INVALID, "needs a shared key (option key_file)");
  pair_expect_refused(nameless, KVF_INVALID, "set the option advertise");
  pair_expect_refused(advertised_to_all, KVF_INVALID, "advertise = 0.0.0.0 names no address");
  assert_int_equal(pair_open_bare(good, &node, message), KVF_OK);
  kvf_node_close(node);
}

NODES_TEST(addresses_that_are_not_ours_are_refused)
{
  stranger_key_file("a key of sixteen", key_file);
  const pair_option options[] = {{"listen", "192.0.2.1"}, {"key_file", key_file}, {NULL, NULL}};
  pair_expect_refused(options, KVF_ADDRESS_IN_USE, "192.0.2.1");
}

/* A control node takes no connections; it makes them. */
NODES_TEST(control_node_does_not_listen)
{
  const pair_option options[] = {{"listen", ""}, {NULL, NULL}};
  kvf_node *control;
  kvf_request_info info;
  char message[KVF_MESSAGE_BYTES_MAX];
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(pair_open_bare(options, &control, message), KVF_OK);
  assert_int_equal(kvf_node_address(control, record, sizeof(record), &bytes), KVF_INVALID);
  pair_open_node(&p.producer, NULL);
  pair_offer(&p.producer, 0, 4, 1, true, &ticket);
  assert_int_equal(kvf_lease_end(control, &ticket.lease), KVF_NOT_FOUND); /* it has no fence to store to */
  assert_int_equal(kvf_request_open(control, ticket.text, ticket.bytes, &ticket.prompt, NULL, 9, &info), KVF_OK);
  assert_true(pair_wait_stat(&p.producer, "sessions_open", "", 1, 10000));
  assert_int_equal(kvf_request_cancel(control, info.id), KVF_OK);
  assert_int_equal(pair_wait_lease_end(&p.producer, ticket.lease.id, 10000), KVF_LEASE_END_ABANDONED);
  kvf_node_close(control);
}

/* ---- descriptors ---- */

typedef struct descriptors {
  struct rlimit before;
  int taken[256];
  size_t count;
} descriptors;

static void take_all(descriptors *d)
{
  d->count = 0;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &d->before), 0);
  const struct rlimit few = {.rlim_cur = 128, .rlim_max = d->before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  while (d->count < 256 && (d->taken[d->count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
    d->count++;
  }
  assert_true(d->count > 0 && d->count < 256);
}

static void give_back(descriptors *d)
{
  while (d->count > 0) {
    (void)close(d->taken[--d->count]);
  }
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &d->before), 0);
}

/* Nothing happens, and nothing is done: a thread that spins shows in the process' time. */
static void assert_at_rest(void)
{
  assert_true(used_us_in(500) < 50000);
}

/* P6: without descriptors nobody is accepted; when there are some again those who waited are. */
NODES_TEST(running_out_of_descriptors_is_survived)
{
  descriptors d;
  pair_open_node(&p.producer, NULL);
  take_all(&d);
  (void)close(d.taken[--d.count]); /* for the stranger's own end */
  stranger_connect(&s, pair_record(p.producer.node).address, NULL);
  assert_true(pair_wait_log(&p.producer, "cannot accept connections: out of descriptors or memory", NULL, 10000));
  assert_int_equal(pair_stat(&p.producer, "sessions_accepted", ""), 0);
  give_back(&d);
  assert_true(pair_wait_stat(&p.producer, "sessions_accepted", "", 1, 10000));
  assert_at_rest(); /* the pause is over and forgotten */
}

static const pair_option patient_breaker[] = {{"handshake_timeout_ms", "10"},
                                              {"breaker_cooldown_ms", "60000"},
                                              {"breaker_cooldown_max_ms", "60000"},
                                              {"lease_ttl_ms", "300"},
                                              {NULL, NULL}};

/* The consumer dials. */
static void open_request(void)
{
  kvf_request_info info;
  assert_int_equal(kvf_request_open(p.consumer.node, ticket.text, ticket.bytes, &ticket.prompt, NULL, 9, &info),
                   KVF_OK);
}

/* What this process lacks is not held against the peer. */
NODES_TEST(running_out_of_descriptors_opens_no_breaker)
{
  descriptors d;
  pair_open_node(&p.producer, &patient_breaker[1]);
  pair_open_node(&p.consumer, &patient_breaker[1]);
  pair_offer(&p.producer, 0, 4, 1, true, &ticket);
  take_all(&d);
  open_request();
  assert_true(pair_wait_log(&p.consumer, "no_memory", "cannot connect", 10000));
  give_back(&d);
  assert_true(pair_wait_stat(&p.consumer, "peer_handshakes", "", 1, 10000));
}

/* A node that is told of nothing does not open. */
TEST(a_node_that_cannot_watch_does_not_open)
{
  const pair_option options[] = {{"listen", "127.0.0.1"}, {NULL, NULL}};
  const size_t fds = count_entries("/proc/self/fd");
  for (int i = 1; i <= 2; i++) { /* its wake-ups, its listener */
    atomic_store(&watches, i);
    pair_expect_refused(options, KVF_SYSTEM,
                        "does not watch one more descriptor: No space left on device (fs.epoll.max_user_watches)");
    assert_int_equal(atomic_load(&watches), 0);
  }
  assert_int_equal(count_entries("/proc/self/fd"), fds);
}

NODES_TEST(a_connection_that_cannot_be_watched_is_closed)
{
  pair_open_node(&p.producer, NULL);
  atomic_store(&watches, 1);
  stranger_connect(&s, pair_record(p.producer.node).address, NULL);
  peer_expect_closed(s.fd);
  stranger_close(&s);
  assert_true(pair_wait_log(&p.producer, "connection closed", "descriptors that may be watched", 10000));
  assert_int_equal(pair_stat(&p.producer, "sessions_abandoned", ""), 1); /* the core knows */
  stranger_connect(&s, pair_record(p.producer.node).address, NULL);
  assert_true(pair_wait_stat(&p.producer, "sessions_accepted", "", 2, 10000));
}

/* Nothing is drawn that a copy of this process would draw as well. */
NODES_TEST(without_random_numbers_nothing_is_drawn)
{
  kvf_lease lease;
  pair_open_node(&p.producer, NULL);
  atomic_store(&without_random, true);
  assert_int_equal(kvf_lease_reserve(p.producer.node, 1, 0, &lease), KVF_SYSTEM);
  stranger_connect(&s, pair_record(p.producer.node).address, NULL);
  peer_expect_closed(s.fd);
  stranger_close(&s);
  assert_true(pair_wait_log(&p.producer, "connection closed: the system gives no random numbers", NULL, 10000));
  atomic_store(&without_random, false);
  assert_int_equal(kvf_lease_reserve(p.producer.node, 1, 0, &lease), KVF_OK);
  stranger_connect(&s, pair_record(p.producer.node).address, NULL);
  assert_true(pair_wait_stat(&p.producer, "sessions_accepted", "", 1, 10000));
}

NODES_TEST(a_dial_that_cannot_be_watched_is_tried_again)
{
  pair_open_node(&p.producer, &patient_breaker[1]);
  pair_open_node(&p.consumer, &patient_breaker[1]);
  pair_offer(&p.producer, 0, 4, 1, true, &ticket);
  atomic_store(&only_dials, true);
  atomic_store(&watches, 1);
  open_request();
  assert_true(pair_wait_log(&p.consumer, "no_memory", "cannot connect", 10000));
  atomic_store(&only_dials, false);
  assert_true(pair_wait_stat(&p.consumer, "peer_handshakes", "", 1, 10000));
}

/* ---- dialing ---- */

/* The thread was away until the core had given a dial up. Nobody would close the connection. */
NODES_TEST(abandoned_dial_does_not_begin)
{
  pair_open_node(&p.producer, NULL);
  pair_open_node(&p.consumer, patient_breaker);
  pair_offer(&p.producer, 0, 4, 1, true, &ticket);
  atomic_store(&away, true);
  while (atomic_load(&away_count) < 2) {
    kvf_node_wake(p.producer.node);
    kvf_node_wake(p.consumer.node);
    sleep_ms(1);
  }
  open_request();
  sleep_ms(50);
  atomic_store(&away, false);
  assert_true(pair_wait_stat(&p.consumer, "peer_failures", "", 1, 10000));
  assert_true(pair_wait_stat(&p.producer, "sessions_accepted", "", 1, 10000));
  sleep_ms(100);
  assert_int_equal(pair_stat(&p.consumer, "peer_dials", ""), 2);
  assert_int_equal(pair_stat(&p.producer, "sessions_accepted", ""), 1); /* the second of them */
}

/* ---- writing ---- */

static size_t ping_frame(uint64_t seq, uint8_t out[KVF_FRAME_HEADER_BYTES + KVF_PING_BYTES_MAX])
{
  kvf_ping ping = {.seq = seq};
  size_t bytes = 0;
  assert_int_equal(kvf_ping_encode(&ping, out + KVF_FRAME_HEADER_BYTES, KVF_PING_BYTES_MAX, &bytes), KVF_OK);
  kvf_frame_header_encode(KVF_FRAME_PING, (uint32_t)bytes, out);
  return KVF_FRAME_HEADER_BYTES + bytes;
}

/* The node's end of this connection, which is in this process too. */
static int other_end(void)
{
  for (int fd = 3; fd < 1024; fd++) {
    struct sockaddr_storage storage;
    socklen_t length = sizeof(storage);
    kvf_address peer;
    char name[KVF_ADDRESS_TEXT_BYTES];
    if (getpeername(fd, (struct sockaddr *)&storage, &length) == 0 && kvf_address_from_sockaddr(&storage, &peer)) {
      kvf_address_format(&peer, name);
      if (strcmp(name, s.name) == 0) {
        return fd;
      }
    }
  }
  fail_msg("no connection from %s", s.name);
  return -1;
}

static void shrink_buffer(int fd, int option)
{
  const int bytes = 65536;
  assert_int_equal(setsockopt(fd, SOL_SOCKET, option, &bytes, sizeof(bytes)), 0);
}

/* Waits until the node has read all that was sent to it. */
static void wait_until_read(int node_fd)
{
  uint64_t until_ms = now_ms() + 20000;
  int unsent = 1;
  int unread = 1;
  while (unsent > 0 || unread > 0) {
    assert_true(now_ms() < until_ms);
    assert_int_equal(ioctl(s.fd, SIOCOUTQ, &unsent), 0);
    assert_int_equal(ioctl(node_fd, FIONREAD, &unread), 0);
  }
}

#define PINGS 60000
#define PING_BYTES (KVF_FRAME_HEADER_BYTES + KVF_PING_BYTES_MAX)

/* More answers than the kernel takes at once: the rest waits, and comes in order. */
NODES_TEST(slow_readers_get_everything)
{
  uint8_t *pings = allocate((size_t)PINGS * PING_BYTES);
  uint8_t *pongs = allocate((size_t)PINGS * PING_BYTES);
  size_t bytes = 0;
  pair_open_node(&p.producer, NULL);
  stranger_open(&s, pair_record(p.producer.node).address, NULL);
  int node_fd = other_end();
  shrink_buffer(node_fd, SO_SNDBUF);
  shrink_buffer(s.fd, SO_RCVBUF);
  for (uint64_t i = 0; i < PINGS; i++) {
    bytes += ping_frame(i, pings + bytes);
  }
  peer_send(s.fd, pings, bytes);
  wait_until_read(node_fd);
  peer_receive(s.fd, pongs, bytes);
  for (uint64_t i = 0; i < PINGS; i++) { /* the same but for their type */
    kvf_frame_header_encode(KVF_FRAME_PONG, KVF_PING_BYTES_MAX, pings + i * PING_BYTES);
  }
  assert_memory_equal(pings, pongs, bytes);
  free(pings);
  free(pongs);
}

/* P6: who asks and asks, and never reads, is hung up on. */
NODES_TEST(who_never_reads_is_hung_up_on)
{
  uint8_t frame[KVF_FRAME_HEADER_BYTES + KVF_PING_BYTES_MAX];
  pair_open_node(&p.producer, NULL);
  stranger_open(&s, pair_record(p.producer.node).address, NULL);
  uint64_t until_ms = now_ms() + 60000;
  size_t bytes = ping_frame(1, frame);
  while (send(s.fd, frame, bytes, MSG_NOSIGNAL) > 0) {
    assert_true(now_ms() < until_ms);
  }
  while (pair_stat(&p.producer, "sessions_open", "") > 0) {
    assert_true(now_ms() < until_ms);
  }
  assert_int_equal(pair_stat(&p.producer, "sessions_unread", ""), 1);
  assert_true(pair_wait_log(&p.producer, "limit: it sends requests and does not read the answers", s.name, 10000));
}

/* A child of which no fork handler knows has copies of both ends and of the listener: who is hung up on sees it all
 * the same, the thread is not told of him again, and nobody can connect to a node that is closed. */
NODES_TEST(forked_child_keeps_nothing_open)
{
  pair_open_node(&p.producer, NULL);
  const kvf_address at = pair_record(p.producer.node).address;
  stranger_connect(&s, at, NULL);
  assert_true(pair_wait_stat(&p.producer, "sessions_accepted", "", 1, 10000));
  const child_process child = child_idle();
  peer_send(s.fd, "GET / HTTP/1.1\r\n\r\n", 18);
  peer_expect_closed(s.fd);
  stranger_close(&s);
  assert_at_rest();
  pair_close_node(&p.producer);
  assert_int_equal(stranger_dial(at), -1);
  assert_int_equal(errno, ECONNREFUSED);
  assert_true(child_kill(&child));
}

/* ---- time ---- */

/* The thread sleeps until the next deadline; what comes in between may need it earlier. */
NODES_TEST(earlier_deadlines_wake_the_thread)
{
  const pair_option options[] = {
      {"lease_ttl_ms", "60000"}, {"lease_max_ms", "60000"}, {"handshake_timeout_ms", "500"}, {NULL, NULL}};
  pair_open_node(&p.producer, options);
  pair_offer(&p.producer, 0, 4, 1, true, &ticket);                  /* the next deadline is a minute away */
  stranger_connect(&s, pair_record(p.producer.node).address, NULL); /* a second */
  assert_true(pair_wait_stat(&p.producer, "sessions_timed_out", "", 1, 10000));
  peer_expect_closed(s.fd);
}
