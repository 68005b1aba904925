/* kvf_node_close() while the network has its own news for the node. */
#include <pthread.h>
#include <stdatomic.h>

#include "pair.h"
#include "test.h"

#define ROUNDS 60

static const pair_option local_only[] = {{"transports", "local"}, {NULL, NULL}};
static const pair_option tcp_only[] = {{"transports", "tcp"}, {NULL, NULL}};
static const pair_option *const each_transport[] = {local_only, tcp_only};

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

static void close_together(pair *p)
{
  pthread_barrier_t together;
  pthread_t threads[2];
  closer closers[2] = {{&p->producer, &together}, {&p->consumer, &together}};
  assert_int_equal(pthread_barrier_init(&together, NULL, 2), 0);
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, close_node, &closers[i]), 0);
  }
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  }
  (void)pthread_barrier_destroy(&together);
}

static void load(pair *p, const pair_ticket *ticket, uint64_t *id)
{
  assert_int_equal(pair_request(&p->consumer, ticket, &ticket->prompt, id), KVF_OK);
  assert_int_equal(pair_load(&p->consumer, ticket, *id, 20), KVF_OK);
}

/* The links of the one go down while the other is closing. */
TEST(both_ends_close_at_once)
{
  for (int round = 0; round < ROUNDS; round++) {
    pair p;
    pair_ticket ticket;
    pair_result result;
    uint64_t id = 0;
    pair_open(&p, each_transport[round % 2]);
    pair_offer(&p.producer, 0, 8, 1, true, &ticket);
    load(&p, &ticket, &id);
    pair_wait(&p.consumer, id, 10000, &result);
    assert_int_equal(result.report.status, KVF_OK);
    close_together(&p);
  }
}

/* With a load in any state: being connected, being read, being retried. */
TEST(both_ends_close_during_a_load)
{
  for (int round = 0; round < ROUNDS; round++) {
    pair p;
    pair_ticket ticket;
    uint64_t id = 0;
    pair_open(&p, each_transport[round % 2]);
    pair_offer(&p.producer, 0, 8, 1, round % 4 < 2, &ticket);
    load(&p, &ticket, &id);
    if (round % 3 != 0) {
      (void)pair_wait_stat(&p.consumer, round % 3 == 1 ? "peer_dials" : "peer_handshakes", "", 1, 10000);
    }
    close_together(&p);
  }
}

TEST(closing_nothing_is_allowed)
{
  kvf_node_close(NULL);
}

/* P1, P5: a reader that still has the memory sees that its lease is over. */
TEST(closing_ends_the_leases)
{
  pair p;
  pair_ticket ticket;
  pair_result result;
  uint64_t id = 0;
  pair_open(&p, tcp_only);
  pair_offer(&p.producer, 0, 8, 1, true, &ticket);
  pair_close_node(&p.producer);
  load(&p, &ticket, &id);
  pair_wait(&p.consumer, id, 10000, &result);
  assert_true(result.decided);
  assert_int_equal(result.report.prefix, 0);
  assert_int_equal(result.verdict.action, KVF_ACTION_RECOMPUTE);
  pair_close_node(&p.consumer);
}
