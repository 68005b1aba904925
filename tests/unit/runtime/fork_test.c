/* A producer that has forked a child is killed, and the child lives on: the consumer sees the end at once, and the
 * producer's address is free for the one that takes its place. */
#include <unistd.h>

#include "pair.h"
#include "test.h"

#define COUNT 4

EACH_TRANSPORT_TEST(a_killed_producers_child_holds_nothing_of_it)
{
  producer_process producer;
  pair_ticket ticket;
  kvf_peer_stat peer;
  const pair_option options[] = {{"transports", transport}, {NULL, NULL}};
  pair_open_node(&p.consumer, options);
  producer_process_start(&producer, options);
  producer_process_offer(&producer, 0, COUNT, 1, (engine_write){0}, &ticket);
  pair_fetch_whole(&p.consumer, &ticket, 32);
  producer_process_fork(&producer);
  producer_process_offer(&producer, 8, COUNT, 2, (engine_write){0}, &ticket);
  pair_fetch_whole(&p.consumer, &ticket, 32); /* the child has closed its copy of the node */
  assert_int_equal(kvf_node_peers(p.consumer.node, &peer, 1), 1);

  producer_process_offer(&producer, 16, COUNT, 3, (engine_write){0}, &ticket);
  producer_process_kill(&producer);
  assert_int_equal(pair_fetch(&p.consumer, &ticket, 32, NULL), KVF_PEER_DOWN);

  const pair_option same_place[] = {{"transports", transport}, {"listen", peer.address}, {NULL, NULL}};
  pair_open_node(&p.producer, same_place);
  pair_offer(&p.producer, 0, COUNT, 4, true, &ticket);
  pair_fetch_whole(&p.consumer, &ticket, 32);
  (void)close(producer.child.channel);
}

int main(int argc, char **argv)
{
  return producer_process_main(argc, argv);
}
