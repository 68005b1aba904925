/* A producer that has forked a child is killed, and the child lives on: the consumer sees the end at once, and the
 * producer's address is free for the one that takes its place. */
#include <unistd.h>

#include "pair.h"
#include "test.h"

#define COUNT 4

static void outlive(const char *transports)
{
  producer_process producer;
  pair_node consumer;
  pair_ticket ticket;
  kvf_peer_stat peer;
  const pair_option options[] = {{"transports", transports}, {NULL, NULL}};
  pair_open_node(&consumer, options);
  producer_process_start(&producer, options);
  producer_process_offer(&producer, 0, COUNT, 1, (engine_write){0}, &ticket);
  pair_fetch_whole(&consumer, &ticket, 32);
  producer_process_fork(&producer);
  producer_process_offer(&producer, 8, COUNT, 2, (engine_write){0}, &ticket);
  pair_fetch_whole(&consumer, &ticket, 32); /* the child has closed its copy of the node */
  assert_int_equal(kvf_node_peers(consumer.node, &peer, 1), 1);

  producer_process_offer(&producer, 16, COUNT, 3, (engine_write){0}, &ticket);
  producer_process_kill(&producer);
  assert_int_equal(pair_fetch(&consumer, &ticket, 32, NULL), KVF_PEER_DOWN);

  pair_node next;
  const pair_option same_place[] = {{"transports", transports}, {"listen", peer.address}, {NULL, NULL}};
  pair_open_node(&next, same_place);
  pair_offer(&next, 0, COUNT, 4, true, &ticket);
  pair_fetch_whole(&consumer, &ticket, 32);
  pair_close_node(&next);
  (void)close(producer.child.channel);
  pair_close_node(&consumer);
}

TEST(a_killed_producers_child_holds_nothing_of_it_tcp)
{
  outlive("tcp");
}

TEST(a_killed_producers_child_holds_nothing_of_it_local)
{
  outlive("local");
}

int main(int argc, char **argv)
{
  return producer_process_main(argc, argv);
}
