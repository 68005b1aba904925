/* What goes in under the node's lock, and what comes out of it: events, wake-ups, log lines, the transports' reports.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../sides/peer.h"
#include "core/core_state.h"
#include "pair.h"
#include "runtime/pump.h"
#include "test.h"
#include "transport/local/description.h"

static bool is_readable(pair_node *n)
{
  struct pollfd waiting = {.fd = kvf_node_event_fd(n->node), .events = POLLIN};
  return poll(&waiting, 1, 0) == 1;
}

/* Publishes and ends `count` leases: as many events. */
static void make_events(pair_node *n, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    pair_ticket ticket;
    pair_offer(n, i, 1, i, true, &ticket);
    assert_int_equal(kvf_lease_end(n->node, &ticket.lease), KVF_OK);
  }
}

/* ---- events ---- */

TEST(descriptor_is_readable_while_there_are_events)
{
  pair_node n;
  kvf_event events[8];
  pair_open_node(&n, NULL);
  assert_false(is_readable(&n));
  assert_int_equal(kvf_node_poll(n.node, events, 8), 0);
  make_events(&n, 5);
  assert_true(is_readable(&n));
  assert_int_equal(kvf_node_poll(n.node, events, 0), 0);
  assert_true(is_readable(&n));
  assert_int_equal(kvf_node_poll(n.node, events, 2), 2);
  assert_true(is_readable(&n)); /* three are left */
  assert_int_equal(kvf_node_poll(n.node, events, 3), 3);
  assert_false(is_readable(&n));
  assert_int_equal(kvf_node_poll(n.node, events, 8), 0);
  make_events(&n, 1); /* and again */
  assert_true(is_readable(&n));
  assert_int_equal(kvf_node_poll(n.node, events, 8), 1);
  assert_false(is_readable(&n));
  pair_close_node(&n);
}

/* An engine that sleeps on the descriptor is woken by what the library's own threads find out. */
TEST(descriptor_wakes_a_sleeper)
{
  const pair_option options[] = {{"lease_ttl_ms", "100"}, {NULL, NULL}};
  pair_node n;
  pair_ticket ticket;
  kvf_event event;
  pair_open_node(&n, options);
  pair_offer(&n, 0, 1, 1, true, &ticket);
  struct pollfd waiting = {.fd = kvf_node_event_fd(n.node), .events = POLLIN};
  assert_int_equal(poll(&waiting, 1, 10000), 1);
  assert_int_equal(kvf_node_poll(n.node, &event, 1), 1);
  assert_int_equal(event.u.lease_end, KVF_LEASE_END_EXPIRED);
  pair_close_node(&n);
}

typedef struct poller {
  kvf_node *node;
  uint32_t taken;
  atomic_bool *stop;
} poller;

static void *poll_events(void *context)
{
  poller *who = context;
  kvf_event events[4];
  while (!atomic_load(who->stop)) {
    who->taken += (uint32_t)kvf_node_poll(who->node, events, 4);
  }
  who->taken += (uint32_t)kvf_node_poll(who->node, events, 4);
  return NULL;
}

/* P3: however many threads poll, each event comes once. */
TEST(each_event_comes_once)
{
  enum { THREADS = 3, EVENTS = 300 };
  pair_node n;
  pthread_t threads[THREADS];
  poller pollers[THREADS];
  atomic_bool stop = false;
  pair_open_node(&n, NULL);
  for (size_t i = 0; i < THREADS; i++) {
    pollers[i] = (poller){.node = n.node, .stop = &stop};
    assert_int_equal(pthread_create(&threads[i], NULL, poll_events, &pollers[i]), 0);
  }
  make_events(&n, EVENTS);
  uint64_t until_ms = now_ms() + 10000;
  while (is_readable(&n) && pair_tick(until_ms)) {
  }
  atomic_store(&stop, true);
  uint32_t taken = 0;
  for (size_t i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    taken += pollers[i].taken;
  }
  assert_int_equal(taken, EVENTS);
  pair_close_node(&n);
}

/* ---- log lines ---- */

/* P2, P5: whoever reads the log has stalled. */
TEST(blocked_log_delays_nobody)
{
  pair_node n;
  pair_ticket ticket;
  kvf_request_info info;
  const pair_option options[] = {{"lease_ttl_ms", "1000"}, {NULL, NULL}};
  pair_open_node(&n, options);
  (void)pthread_mutex_lock(&n.log->lock); /* each line is written under it */
  assert_int_equal(kvf_request_open(n.node, "no ticket", 9, &(kvf_prompt){.tokens = 1}, NULL, 1, &info),
                   KVF_BAD_TICKET);                    /* a line of the caller's */
  int fd = stranger_dial(pair_record(n.node).address); /* a line of the control thread's */
  peer_send(fd, "GET / HTTP/1.1\r\n\r\n", 18);
  peer_expect_closed(fd);
  (void)close(fd);
  pair_offer(&n, 0, 4, 1, true, &ticket);
  assert_int_equal(pair_wait_lease_end(&n, ticket.lease.id, 1000 + PAIR_LATE_MS), KVF_LEASE_END_EXPIRED);
  (void)pthread_mutex_unlock(&n.log->lock);
  assert_true(pair_logged(&n, "bad_ticket", NULL));
  assert_true(pair_logged(&n, "127.0.0.1:", NULL));
  assert_int_equal(pair_stat(&n, "log_lines_dropped", ""), 0);
  pair_close_node(&n);
}

TEST(transports_log_at_the_nodes_level)
{
  pair_node n;
  const pair_option options[] = {{"log_level", "warn"}, {NULL, NULL}};
  pair_open_node(&n, options);
  kvf_transport_host host = kvf_node_host(n.node);
  host.log(host.context, KVF_LOG_INFO, "chatter");
  host.log(host.context, KVF_LOG_WARN, "news");
  assert_false(pair_logged(&n, "chatter", NULL));
  assert_true(pair_logged(&n, "news", NULL));
  pair_close_node(&n);
}

/* ---- what transports ask and tell ---- */

TEST(sessions_have_a_key_while_they_last)
{
  pair_node n;
  stranger s;
  kvf_key key;
  pair_open_node(&n, NULL);
  kvf_transport_host host = kvf_node_host(n.node);
  stranger_open(&s, pair_record(n.node).address, NULL);
  assert_true(host.session_key(host.context, s.session_id, &key));
  const kvf_key expected = stranger_session_key(&s);
  assert_int_equal(key.bytes, expected.bytes);
  assert_memory_equal(key.data, expected.data, key.bytes);
  assert_false(host.session_key(host.context, s.session_id + 1, &key));
  stranger_close(&s);
  uint64_t until_ms = now_ms() + 10000;
  while (pair_stat(&n, "sessions_open", "") > 0 && pair_tick(until_ms)) {
  }
  assert_false(host.session_key(host.context, s.session_id, &key));
  pair_close_node(&n);
}

/* P8: who does not show the lease's token reads nothing of it. */
TEST(reads_are_authorized_by_the_lease)
{
  pair_node n;
  pair_ticket ticket;
  pair_open_node(&n, NULL);
  kvf_transport_host host = kvf_node_host(n.node);
  pair_offer(&n, 3, 4, 1, false, &ticket);
  kvf_transfer_item item = {.position = 2};
  assert_int_equal(host.authorize(host.context, &ticket.lease, &item, 1), KVF_NOT_PUBLISHED);
  pair_publish(&n, &ticket);
  assert_int_equal(host.authorize(host.context, &ticket.lease, &item, 1), KVF_OK);
  assert_int_equal(item.remote_block, ticket.blocks[2]);
  item.position = 4;
  assert_int_equal(host.authorize(host.context, &ticket.lease, &item, 1), KVF_INVALID);
  item.position = 2;
  kvf_lease guessed = ticket.lease;
  guessed.token[15] ^= 1;
  assert_int_equal(host.authorize(host.context, &guessed, &item, 1), KVF_LEASE_UNKNOWN);
  assert_int_equal(kvf_lease_end(n.node, &ticket.lease), KVF_OK);
  assert_int_equal(host.authorize(host.context, &ticket.lease, &item, 1), KVF_LEASE_EXPIRED);
  pair_close_node(&n);
}

/* P3: reports on what is over already. */
TEST(late_reports_are_ignored)
{
  pair_node n;
  pair_open_node(&n, NULL);
  kvf_transport_host host = kvf_node_host(n.node);
  const kvf_read_result result = {.id = 99, .status = KVF_OK};
  kvf_link link = {.user = 99};
  host.read_done(host.context, &result);
  host.read_progress(host.context, 99);
  host.link_up(host.context, &link, KVF_OK);
  host.link_down(host.context, &link, KVF_TRANSFER_FAILED);
  assert_int_equal(pair_stat(&n, "late_reads", ""), 1);
  assert_int_equal(pair_stat(&n, "peer_failures", ""), 0);
  pair_close_node(&n);
}

/* ---- effects ---- */

/* Two nodes without a transport in common. */
TEST(no_common_transport_is_transfer_setup)
{
  const pair_option local_only[] = {{"transports", "local"}, {NULL, NULL}};
  const pair_option tcp_only[] = {{"transports", "tcp"}, {NULL, NULL}};
  pair p;
  pair_ticket ticket;
  pair_open_node(&p.producer, local_only);
  pair_open_node(&p.consumer, tcp_only);
  pair_offer(&p.producer, 0, 4, 1, true, &ticket);
  assert_int_equal(pair_fetch(&p.consumer, &ticket, 20, NULL), KVF_TRANSFER_SETUP);
  pair_close(&p);
}

/* Reads that the caller's own thread helps with, and reads that it does not. */
TEST(loads_are_the_same_inline_or_not)
{
  static const char *const inline_bytes[] = {"0", "1048576"};
  for (size_t i = 0; i < 2; i++) {
    const pair_option options[] = {{"inline_bytes", inline_bytes[i]}, {NULL, NULL}};
    pair p;
    pair_open(&p, options);
    for (uint32_t j = 0; j < 4; j++) {
      pair_ticket ticket;
      pair_offer(&p.producer, j, 8, j + 1, true, &ticket);
      pair_fetch_whole(&p.consumer, &ticket, 8 * j);
    }
    pair_close(&p);
  }
}

/* ---- stuck copies ---- */

#define PAGE_BYTES 4096u

/* From here whoever reads this page waits in the kernel. -1: this user may not do that. */
static int make_page_stick(uintptr_t page)
{
  int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  struct uffdio_api api = {.api = UFFD_API};
  struct uffdio_register range = {.range = {.start = page, .len = PAGE_BYTES}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  if (fd < 0) {
    return -1;
  }
  assert_int_equal(ioctl(fd, UFFDIO_API, &api), 0);
  assert_int_equal(ioctl(fd, UFFDIO_REGISTER, &range), 0);
  assert_int_equal(madvise((void *)page, PAGE_BYTES, MADV_DONTNEED), 0);
  return fd;
}

static void free_page(int fd, uintptr_t page)
{
  struct uffdio_range range = {.start = page, .len = PAGE_BYTES};
  assert_int_equal(ioctl(fd, UFFDIO_UNREGISTER, &range), 0);
  (void)close(fd);
}

/* The first page of a node's pool. */
static uintptr_t first_page(const pair_node *n)
{
  return ((uintptr_t)n->pool[0] + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* One that nobody else has, for what the pool's neighbours are not to meet. */
static uintptr_t new_page(void)
{
  void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(page, MAP_FAILED);
  return (uintptr_t)page;
}

/* P2, P6: neither the clock nor the caller waits for a copy that does not come back, be it the first try, which the
 * caller's thread hands over, or a later one, which the node's own does. */
static void load_from_a_stuck_page(bool retried)
{
  const pair_option options[] = {
      {"transports", "local"}, {"load_timeout_ms", "1000"}, {"backoff_max_ms", "20"}, {NULL, NULL}};
  pair p;
  pair_ticket ticket;
  pair_ticket other;
  uint64_t id = 0;
  pair_open(&p, options);
  pair_offer(&p.producer, 0, 4, 1, !retried, &ticket);
  if (retried) {
    id = pair_begin(&p.consumer, &ticket, 20);
    assert_true(pair_wait_stat(&p.consumer, "load_retries", "", 3, 10000));
  } else {
    pair_offer(&p.producer, 30, 4, 2, true, &other); /* from now on there is a link */
    pair_fetch_whole(&p.consumer, &other, 40);
  }
  uintptr_t page = first_page(&p.producer);
  int fd = make_page_stick(page);
  if (fd >= 0) {
    if (retried) {
      pair_publish(&p.producer, &ticket);
    } else {
      id = pair_begin(&p.consumer, &ticket, 20);
    }
    const pair_result result = pair_poll_for(&p.consumer, id, 10000);
    free_page(fd, page);
    assert_true(result.loaded);
    assert_int_equal(result.report.status, KVF_DEADLINE);
    assert_false(result.load_released);
    assert_true(result.decided);
  }
  pair_close(&p);
  if (fd < 0) {
    skip();
  }
}

TEST(stuck_copy_does_not_stop_its_caller)
{
  load_from_a_stuck_page(false);
}

TEST(stuck_copy_does_not_stop_the_clock)
{
  load_from_a_stuck_page(true);
}

/* P2: all copy threads there are wait for one producer's memory. */
TEST(stuck_copies_are_no_matter_of_other_producers)
{
  const pair_option options[] = {{"transports", "local"},
                                 {"inline_bytes", "0"},
                                 {"load_timeout_ms", "8000"},
                                 {"stall_timeout_ms", "2000"},
                                 {NULL, NULL}};
  pair p;
  pair_node healthy;
  pair_ticket stuck[2];
  pair_ticket ticket;
  pair_open(&p, options);
  pair_open_node(&healthy, options);
  pair_offer(&p.producer, 0, 4, 1, true, &stuck[0]);
  pair_offer(&p.producer, 0, 4, 1, true, &stuck[1]);
  pair_offer(&healthy, 0, 4, 2, true, &ticket);
  uintptr_t page = first_page(&p.producer);
  int fd = make_page_stick(page);
  if (fd >= 0) {
    (void)pair_begin(&p.consumer, &stuck[0], 20);
    (void)pair_begin(&p.consumer, &stuck[1], 30);
    pair_fetch_whole(&p.consumer, &ticket, 40);
    assert_int_equal(pair_stat(&p.consumer, "loads_done", ""), 1);
    free_page(fd, page);
    assert_true(pair_wait_stat(&p.consumer, "loads_done", "", 3, 10000));
  }
  pair_close(&p);
  pair_close_node(&healthy);
  if (fd < 0) {
    skip();
  }
}

/* What a producer says of itself leads the look at it to a page that does not answer. */
static void describe_page(const pair_node *producer, uintptr_t page)
{
  (void)pthread_mutex_lock(&producer->node->lock);
  kvf_welcome *welcome = &producer->node->core->pool.welcome;
  assert_string_equal(welcome->transports[0].name, "local");
  kvf_local_description head;
  memcpy(&head, welcome->transports[0].description, sizeof(head));
  head.cookie_address = page;
  memcpy(welcome->transports[0].description, &head, sizeof(head));
  (void)pthread_mutex_unlock(&producer->node->lock);
}

/* P2: its loads go over the next transport, others' are not delayed. */
TEST(stuck_check_is_no_matter_of_other_producers)
{
  const pair_option options[] = {{"transports", "local,tcp"}, {"handshake_timeout_ms", "1000"}, {NULL, NULL}};
  pair p;
  pair_node healthy;
  pair_ticket tickets[2];
  uintptr_t page = new_page();
  int fd = make_page_stick(page);
  pair_open(&p, options);
  pair_open_node(&healthy, options);
  pair_offer(&p.producer, 0, 4, 1, true, &tickets[0]);
  pair_offer(&healthy, 0, 4, 2, true, &tickets[1]);
  if (fd >= 0) {
    describe_page(&p.producer, page);
    uint64_t id = pair_begin(&p.consumer, &tickets[0], 20);
    uint64_t began_ms = now_ms();
    pair_fetch_whole(&p.consumer, &tickets[1], 40);
    assert_true(now_ms() < began_ms + 1000);
    assert_true(pair_logged(&p.consumer, "loads go over local", NULL));
    assert_int_equal(pair_wait(&p.consumer, id).report.status, KVF_OK);
    assert_true(pair_logged(&p.consumer, "loads go over tcp (local: handshake_timeout)", NULL));
  }
  pair_close(&p); /* nor does this wait for it */
  pair_close_node(&healthy);
  if (fd >= 0) {
    free_page(fd, page);
  }
  (void)munmap((void *)page, PAGE_BYTES);
  if (fd < 0) {
    skip();
  }
}
