/* Whole nodes over the public API, on real sockets and memory: each promise once, on both transports. */

#include <pthread.h>
#include <unistd.h>

#include "../../sides/peer.h"
#include "core/core_state.h"
#include "pair.h"
#include "runtime/pump.h"
#include "test.h"

#define CROWD 16

static pair_ticket ticket;
static pair_result result;

/* Over one transport. */
static void open_over(const char *transport)
{
  pair_open((const pair_option[]){{"transports", transport}, {NULL, NULL}});
}

/* With eight blocks offered. */
static void open_offering(const pair_option *options)
{
  pair_open(options);
  pair_offer(&p.producer, 0, 8, 1, true, &ticket);
}

/* Loads them into blocks 20 and up. */
static void load(const pair_ticket *offered)
{
  (void)pair_fetch(&p.consumer, offered, 20, &result);
}

/* One request, to the end of its lease. */
static void carry(uint32_t seed)
{
  pair_offer(&p.producer, 3, 10, seed, true, &ticket);
  pair_fetch_whole(&p.consumer, &ticket, 20);
  assert_int_equal(pair_wait_lease_end(&p.producer, ticket.lease.id, 5000), KVF_LEASE_END_COMPLETED);
}

EACH_TRANSPORT_TEST(loads_a_request)
{
  open_over(transport);
  for (uint32_t round = 0; round < 3; round++) {
    carry(40 + round);
    assert_int_equal(kvf_lease_release(p.producer.node, ticket.lease.id), KVF_OK);
  }
  assert_int_equal(pair_stat(&p.producer, "leases_live", ""), 0);
}

EACH_TRANSPORT_TEST(waits_for_publication)
{
  open_over(transport);
  pair_offer(&p.producer, 0, 6, 1, false, &ticket);
  uint64_t id = pair_begin(&p.consumer, &ticket, 30);
  assert_false(pair_poll_for(&p.consumer, id, 200).loaded);
  pair_publish(&p.producer, &ticket);
  assert_int_equal(pair_wait(&p.consumer, id).verdict.action, KVF_ACTION_USE);
  assert_true(pair_holds_all(&p.consumer, 30, 6, 1));
}

/* P1: the producer takes the blocks back and gives them to another prompt before the consumer reads. */
EACH_TRANSPORT_TEST(never_takes_stale_blocks)
{
  open_over(transport);
  pair_offer(&p.producer, 0, 8, 1, true, &ticket);
  assert_int_equal(kvf_lease_end(p.producer.node, &ticket.lease), KVF_OK);
  for (uint32_t i = 0; i < ticket.count; i++) {
    pair_fill(&p.producer, ticket.blocks[i], 2, i);
  }
  load(&ticket);
  assert_int_equal(result.report.status, KVF_LEASE_EXPIRED);
  assert_int_equal(result.report.prefix, 0);
  assert_int_equal(result.verdict.action, KVF_ACTION_RECOMPUTE);
  assert_int_equal(result.verdict.recompute_tokens, 8 * PAIR_BLOCK_TOKENS);
}

/* P5: nobody comes; the lease runs out by itself. */
PAIR_TEST(lease_runs_out)
{
  const pair_option options[] = {{"lease_ttl_ms", "150"}, {NULL, NULL}};
  pair_open(options);
  uint64_t before_ms = now_ms();
  pair_offer(&p.producer, 0, 8, 1, true, &ticket);
  assert_int_equal(pair_wait_lease_end(&p.producer, ticket.lease.id, 10000), KVF_LEASE_END_EXPIRED);
  assert_true(now_ms() - before_ms >= 150);
}

/* P5: none of the nodes that are attached is forgotten, however many others have what they need. */
EACH_TRANSPORT_TEST(sixteen_nodes_load_from_one_lease)
{
  const pair_option options[] = {
      {"transports", transport}, {"lease_ttl_ms", "3000"}, {"lease_linger_ms", "0"}, {NULL, NULL}};
  static pair_node nodes[CROWD];
  uint64_t ids[CROWD];
  pair_open_node(&p.producer, options);
  pair_offer(&p.producer, 0, 8, 1, true, &ticket);
  for (uint32_t i = 0; i < CROWD; i++) {
    pair_open_node(&nodes[i], options);
    assert_int_equal(pair_request(&nodes[i], &ticket, &ticket.prompt, &ids[i]), KVF_OK);
  }
  for (uint32_t i = 0; i < CROWD; i++) { /* with the second, the first has been answered */
    assert_true(pair_wait_stat(&nodes[i], "renewals_sent", "", 2, 10000));
  }
  for (uint32_t i = 0; i < CROWD; i++) {
    assert_int_equal(pair_stat(&p.producer, "leases_live", ""), 1);
    assert_int_equal(pair_load(&nodes[i], &ticket, ids[i], 20), KVF_OK);
    assert_int_equal(pair_wait(&nodes[i], ids[i]).verdict.action, KVF_ACTION_USE);
    assert_true(pair_holds_all(&nodes[i], 20, 8, 1));
  }
  assert_int_equal(pair_wait_lease_end(&p.producer, ticket.lease.id, 5000), KVF_LEASE_END_COMPLETED);
  for (uint32_t i = 0; i < CROWD; i++) {
    pair_close_node(&nodes[i]);
  }
}

/* P5: a request that waits is renewed by the library's own thread, and released when it is cancelled. */
PAIR_TEST(waiting_request_renews_and_cancel_releases)
{
  const pair_option options[] = {{"lease_ttl_ms", "3000"}, {NULL, NULL}};
  kvf_request_info info;
  open_offering(options);
  assert_int_equal(kvf_request_open(p.consumer.node, ticket.text, ticket.bytes, &ticket.prompt, NULL, 9, &info),
                   KVF_OK);
  assert_int_equal(info.tokens, 8 * PAIR_BLOCK_TOKENS);
  sleep_ms(4500);
  assert_int_equal(pair_stat(&p.producer, "leases_live", ""), 1);
  assert_int_equal(kvf_request_cancel(p.consumer.node, info.id), KVF_OK);
  assert_int_equal(pair_wait_lease_end(&p.producer, ticket.lease.id, 10000), KVF_LEASE_END_ABANDONED);
  assert_int_equal(kvf_request_cancel(p.consumer.node, info.id), KVF_NOT_FOUND);
}

/* P8 */
PAIR_TEST(refuses_bad_tickets_without_connecting)
{
  uint64_t id = 0;
  open_offering(NULL);
  kvf_prompt other = pair_prompt(8 * PAIR_BLOCK_TOKENS, 2);
  assert_int_equal(pair_request(&p.consumer, &ticket, &other, &id), KVF_BAD_TICKET);
  ticket.text[ticket.bytes / 2] = ticket.text[ticket.bytes / 2] == 'A' ? 'B' : 'A';
  assert_int_equal(pair_request(&p.consumer, &ticket, &ticket.prompt, &id), KVF_BAD_TICKET);
  assert_int_equal(pair_load(&p.consumer, &ticket, 1, 0), KVF_BAD_TICKET);
  ticket.bytes = 10;
  assert_int_equal(pair_request(&p.consumer, &ticket, &ticket.prompt, &id), KVF_BAD_TICKET);
  assert_int_equal(pair_stat(&p.consumer, "tickets_refused", "bad_ticket"), 4);
  assert_int_equal(pair_stat(&p.consumer, "peer_dials", ""), 0);
  assert_int_equal(pair_stat(&p.producer, "sessions_accepted", ""), 0);
}

PAIR_TEST(refuses_other_models)
{
  const pair_option other[] = {{"model", "another"}, {NULL, NULL}};
  uint64_t id = 0;
  pair_open_node(&p.producer, NULL);
  pair_open_node(&p.consumer, other);
  pair_offer(&p.producer, 0, 8, 1, true, &ticket);
  assert_int_equal(pair_request(&p.consumer, &ticket, &ticket.prompt, &id), KVF_INCOMPATIBLE);
  assert_int_equal(pair_load(&p.consumer, &ticket, 1, 0), KVF_INCOMPATIBLE);
  static const char text[] =
      "ticket refused: incompatible: model differs: producer has another value, consumer has \"another\"";
  assert_true(pair_logged(&p.consumer, text, NULL));
  assert_int_equal(pair_stat(&p.consumer, "peer_dials", ""), 0);
}

/* A producer that is gone: its ticket fails at once, and a second load does not even try. */
EACH_TRANSPORT_TEST(dead_producer_fails_fast)
{
  pair_ticket tickets[2];
  const held_port port = hold_port();
  const pair_option fixed[] = {{"listen", port.address}, {"transports", transport}, {NULL, NULL}};
  pair_open_node(&p.producer, fixed);
  pair_open_node(&p.consumer, &fixed[1]);
  pair_offer(&p.producer, 0, 8, 1, true, &tickets[0]);
  pair_offer(&p.producer, 1, 8, 2, true, &tickets[1]);
  pair_close_node(&p.producer);
  for (uint32_t i = 0; i < 2; i++) {
    uint64_t before_ms = now_ms();
    load(&tickets[i]);
    assert_int_equal(result.report.status, KVF_PEER_DOWN);
    assert_int_equal(result.verdict.action, KVF_ACTION_RECOMPUTE);
    assert_true(now_ms() - before_ms < PAIR_LATE_MS);
  }
  assert_true(pair_stat(&p.consumer, "breaker_refusals", "") > 0);
  /* It may be that the producer is on another host, and has named its own loopback. */
  assert_true(
      pair_logged(&p.consumer, "peer_down: cannot connect", "a producer on another one needs a key (option key_file"));
  (void)close(port.fd);
}

/* Another process has taken over the producer's address. */
PAIR_TEST(restarted_producer_is_told_apart)
{
  const held_port port = hold_port();
  const pair_option fixed[] = {{"listen", port.address}, {NULL, NULL}};
  pair_ticket old;
  pair_ticket fresh;
  pair_open_node(&p.producer, fixed);
  pair_open_node(&p.consumer, NULL);
  pair_offer(&p.producer, 0, 8, 1, true, &old);
  pair_close_node(&p.producer);
  pair_open_node(&p.producer, fixed);
  pair_offer(&p.producer, 0, 8, 2, true, &fresh);
  load(&old);
  assert_int_equal(result.report.status, KVF_PEER_RESTARTED);
  pair_fetch_whole(&p.consumer, &fresh, 20);
  (void)close(port.fd);
}

PAIR_TEST(abort_is_idempotent)
{
  pair_open(NULL);
  pair_offer(&p.producer, 0, 8, 1, false, &ticket); /* never published: the load waits */
  uint64_t id = pair_begin(&p.consumer, &ticket, 20);
  assert_int_equal(pair_load(&p.consumer, &ticket, id, 20), KVF_EXISTS);
  assert_int_equal(kvf_load_abort(p.consumer.node, id), KVF_OK);
  assert_int_equal(kvf_load_abort(p.consumer.node, id), KVF_OK);
  assert_int_equal(pair_wait(&p.consumer, id).report.status, KVF_ABORTED);
  assert_int_equal(kvf_load_abort(p.consumer.node, id), KVF_NOT_FOUND);
}

/* P2: never published, never ended: the deadline decides. */
PAIR_TEST(deadline_decides)
{
  const pair_option options[] = {{"load_timeout_ms", "400"}, {NULL, NULL}};
  pair_open(options);
  pair_offer(&p.producer, 0, 8, 1, false, &ticket);
  uint64_t before_ms = now_ms();
  assert_int_equal(pair_fetch(&p.consumer, &ticket, 20, NULL), KVF_DEADLINE);
  uint64_t took_ms = now_ms() - before_ms;
  assert_true(took_ms >= 400 && took_ms < 400 + PAIR_LATE_MS);
}

/* A producer that listens, and a consumer that does not; both with one transport. */
static void open_deaf_consumer(const char *transport)
{
  const pair_option options[] = {{"listen", ""}, {"transports", transport}, {NULL, NULL}};
  pair_open_node(&p.producer, &options[1]);
  pair_open_node(&p.consumer, options);
}

EACH_TRANSPORT_TEST(a_rank_that_only_loads_need_not_listen)
{
  open_deaf_consumer(transport);
  for (uint32_t round = 0; round < 2; round++) {
    carry(40 + round);
    if (round == 0) {
      pair_move(&p.consumer);
    }
  }
}

PAIR_TEST(what_does_not_listen_offers_nothing)
{
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  char text[KVF_TICKET_BYTES_MAX];
  size_t bytes = 0;
  open_deaf_consumer("local");
  kvf_node *node = p.consumer.node;
  pair_offer(&p.producer, 0, 8, 1, false, &ticket);
  const kvf_blocks blocks = {.ids = ticket.blocks, .counts = &ticket.count, .groups = 1};
  assert_int_equal(kvf_node_address(node, record, sizeof(record), &bytes), KVF_INVALID);
  assert_non_null(strstr(kvf_error_text(), "option listen"));
  assert_int_equal(kvf_ticket_make(node, &ticket.lease, &blocks, &ticket.prompt, text, sizeof(text), &bytes),
                   KVF_INVALID);
  assert_int_equal(pair_publish_after(&p.consumer, &ticket, NULL), KVF_INVALID);
  assert_true(pair_wait_log(&p.consumer, "is not published", "option listen", 10000));
  assert_int_equal(pair_stat(&p.consumer, "leases_live", ""), 0);
  assert_int_equal(kvf_lease_end(node, &ticket.lease), KVF_NOT_FOUND);
}

/* Only what is wanted is read; what the engine has already counts as good. */
PAIR_TEST(loads_only_wanted_blocks)
{
  uint32_t destination[8] = {KVF_BLOCK_NONE, KVF_BLOCK_NONE, 22, 23, 24, 25, 26, 27};
  uint64_t id = 0;
  open_offering(NULL);
  assert_int_equal(pair_request(&p.consumer, &ticket, &ticket.prompt, &id), KVF_OK);
  kvf_load_params load = {.request_id = id,
                          .ticket = ticket.text,
                          .ticket_bytes = ticket.bytes,
                          .prompt = ticket.prompt,
                          .destination = {.ids = destination, .counts = &ticket.count, .groups = 1}};
  assert_int_equal(kvf_load_start(p.consumer.node, &load), KVF_OK);
  assert_int_equal(pair_wait(&p.consumer, id).report.prefix, 8);
  assert_int_equal(pair_stat(&p.consumer, "blocks_loaded", ""), 6);
  assert_false(pair_holds(&p.consumer, 20, 1, 0));
  assert_true(pair_holds(&p.consumer, 22, 1, 2));
}

static void expect_refused(const char *name, const char *value, kvf_status status, const char *said)
{
  pair_expect_refused((const pair_option[]){{name, value}, {NULL, NULL}}, status, said);
}

TEST(says_what_is_wrong_with_a_configuration)
{
  expect_refused("key_file", "/nonexistent/key", KVF_INVALID, "/nonexistent/key");
  expect_refused("listen", "0.0.0.0", KVF_INVALID, "key_file");
}

/* One line says what is missing, and the others serve; without another the node does not start. */
PAIR_TEST(goes_on_without_a_transport_that_the_machine_lacks)
{
  static const pair_option without[] = {
      {"transports", "ucx,tcp"}, {"ucx_library", "/nowhere/libucp.so.0"}, {NULL, NULL}};
  static const pair_option alone[] = {{"transports", "ucx"}, {"ucx_library", "/nowhere/libucp.so.0"}, {NULL, NULL}};
  static const pair_option required[] = {
      {"transports", "ucx,tcp"}, {"ucx_library", "/nowhere/libucp.so.0"}, {"require", "ucx,tcp"}, {NULL, NULL}};
  pair_open(without);
  assert_true(pair_wait_log(&p.consumer, "UCX cannot be loaded", "/nowhere/libucp.so.0", 5000));
  pair_offer(&p.producer, 3, 10, 40, true, &ticket);
  pair_fetch_whole(&p.consumer, &ticket, 20);

  pair_expect_refused(alone, KVF_TRANSFER_SETUP, "UCX cannot be loaded");
  pair_expect_refused(required, KVF_TRANSFER_SETUP, "UCX cannot be loaded");
}

/* `local` would do, and is not used. */
PAIR_TEST(a_required_transport_is_used_alone)
{
  static const pair_option tcp[] = {{"require", "tcp"}, {NULL, NULL}};
  pair_open(tcp);
  pair_offer(&p.producer, 3, 10, 40, true, &ticket);
  pair_fetch_whole(&p.consumer, &ticket, 20);
  assert_true(pair_wait_log(&p.consumer, "loads go over tcp", "", 5000));
}

/* The first load finds a connection and a link. */
PAIR_TEST(a_static_peer_is_connected_before_it_is_needed)
{
  char address[KVF_ADDRESS_TEXT_BYTES];
  pair_open_node(&p.producer, NULL);
  kvf_address_format(&p.producer.node->address, address);
  const pair_option knows[] = {{"peers", address}, {NULL, NULL}};
  pair_open_node(&p.consumer, knows);
  assert_true(pair_wait_log(&p.consumer, "loads go over local", NULL, 10000));
  pair_offer(&p.producer, 3, 10, 40, true, &ticket);
  pair_fetch_whole(&p.consumer, &ticket, 20);
  assert_int_equal(pair_stat(&p.consumer, "peer_handshakes", ""), 1);
}

PAIR_TEST(peers_that_cannot_be)
{
  expect_refused("peers", "192.0.2.1:80", KVF_INVALID,
                 "peers: 192.0.2.1:80 is off loopback, which needs a shared key (option key_file)");
  const pair_option nobody[] = {{"peers", "no-such-host.invalid:80"}, {NULL, NULL}};
  pair_open_node(&p.producer, nobody);
  assert_true(pair_logged(&p.producer, "peers: no-such-host.invalid:80 is left out", NULL));
}

TEST(says_that_a_port_is_in_use)
{
  const held_port port = hold_port();
  assert_int_equal(listen(port.fd, 1), 0);
  expect_refused("listen", port.address, KVF_ADDRESS_IN_USE, port.address);
  (void)close(port.fd);
}

PAIR_TEST(unregister_gives_the_memory_back)
{
  open_offering(NULL);
  assert_int_equal(kvf_node_unregister(p.producer.node), KVF_OK);
  assert_int_equal(pair_wait_lease_end(&p.producer, ticket.lease.id, 10000), KVF_LEASE_END_REVOKED);
  load(&ticket);
  assert_int_not_equal(result.report.status, KVF_OK);
}

/* ---- closing, while the network has its own news for the node ---- */

#define ROUNDS 60

typedef struct closer {
  pair_node *node;
  pthread_barrier_t *together;
} closer;

static void *close_node(void *context)
{
  closer *c = context;
  (void)pthread_barrier_wait(c->together);
  pair_close_node(c->node);
  return NULL;
}

static void close_together(void)
{
  pthread_barrier_t together;
  pthread_t threads[2];
  closer closers[2] = {{&p.producer, &together}, {&p.consumer, &together}};
  assert_int_equal(pthread_barrier_init(&together, NULL, 2), 0);
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, close_node, &closers[i]), 0);
  }
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  }
  (void)pthread_barrier_destroy(&together);
}

/* The links of the one go down while the other is closing. */
PAIR_TEST(both_ends_close_at_once)
{
  for (int round = 0; round < ROUNDS; round++) {
    open_over(round % 2 == 0 ? "local" : "tcp");
    pair_offer(&p.producer, 0, 8, 1, true, &ticket);
    pair_fetch_whole(&p.consumer, &ticket, 20);
    close_together();
  }
}

/* With a load in any state: being connected, being read, being retried. */
PAIR_TEST(both_ends_close_during_a_load)
{
  for (int round = 0; round < ROUNDS; round++) {
    open_over(round % 2 == 0 ? "local" : "tcp");
    pair_offer(&p.producer, 0, 8, 1, round % 4 < 2, &ticket);
    (void)pair_begin(&p.consumer, &ticket, 20);
    if (round % 3 != 0) {
      (void)pair_wait_stat(&p.consumer, round % 3 == 1 ? "peer_dials" : "peer_handshakes", "", 1, 10000);
    }
    close_together();
  }
}

TEST(closing_nothing_is_allowed)
{
  kvf_node_close(NULL);
}

/* P1, P5: a reader that still has the memory sees that its lease is over. */
PAIR_TEST(closing_ends_the_leases)
{
  open_over("tcp");
  pair_offer(&p.producer, 0, 8, 1, true, &ticket);
  pair_close_node(&p.producer);
  load(&ticket);
  assert_int_equal(result.report.prefix, 0);
  assert_int_equal(result.verdict.action, KVF_ACTION_RECOMPUTE);
}

/* ---- random numbers ---- */

/* Makes the node's secret what it was at some time: what a copy of the process has of then. */
static void keep_secret(kvf_node *node, kvf_entropy *out)
{
  (void)kvf_node_enter(node);
  *out = node->core->context.entropy;
  (void)pthread_mutex_unlock(&node->lock);
}

static void restore_secret(kvf_node *node, const kvf_entropy *kept)
{
  (void)kvf_node_enter(node);
  node->core->context.entropy = *kept;
  (void)pthread_mutex_unlock(&node->lock);
}

static bool is_stirred(kvf_node *node, const kvf_entropy *before)
{
  kvf_entropy now;
  keep_secret(node, &now);
  return memcmp(now.secret, before->secret, sizeof(now.secret)) != 0;
}

/* A copy of the process (a virtual machine's snapshot) goes on from the same secret: its tokens, and what its new
 * connections are challenged with, are its own all the same. */
PAIR_TEST(a_copy_of_the_process_draws_others)
{
  kvf_entropy producer;
  kvf_entropy consumer;
  kvf_lease leases[2];
  open_over("tcp");
  keep_secret(p.producer.node, &producer);
  for (int i = 0; i < 2; i++) {
    restore_secret(p.producer.node, &producer);
    assert_int_equal(kvf_lease_reserve(p.producer.node, 1, 0, &leases[i]), KVF_OK);
  }
  assert_memory_not_equal(leases[0].token, leases[1].token, sizeof(leases[0].token));

  pair_offer(&p.producer, 0, 8, 1, true, &ticket);
  keep_secret(p.producer.node, &producer);
  keep_secret(p.consumer.node, &consumer);
  pair_fetch_whole(&p.consumer, &ticket, 8);
  assert_true(is_stirred(p.producer.node, &producer)); /* it has accepted */
  assert_true(is_stirred(p.consumer.node, &consumer)); /* it has dialed */
}
