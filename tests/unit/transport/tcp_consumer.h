/* A consumer under test and the producer that the test plays for it. */
#ifndef KVF_TESTS_UNIT_TRANSPORT_TCP_CONSUMER_H
#define KVF_TESTS_UNIT_TRANSPORT_TCP_CONSUMER_H

#include "node.h"
#include "tcp_peer.h"

#define CONSUMER_BLOCKS 96 /* as many as the reads of a test */
#define CONSUMER_BLOCK_BYTES UINT64_C(65536)

typedef struct tcp_consumer {
  side node;
  node_introduction introduction; /* of the played producer */
  kvf_link_spec spec;
  int listener;
  kvf_link *link;
  uint64_t user; /* of the last link, whose record outlives it */
  int fd;        /* the producer's end; -1: none */
} tcp_consumer;

tcp_consumer *consumer_open(uint32_t handshake_timeout_ms);
/* Begins to connect. */
void consumer_connect(tcp_consumer *consumer);
/* Connects and plays the handshake. */
void consumer_link(tcp_consumer *consumer);
/* Disconnects if there is a link, closes what is open. */
void consumer_close(tcp_consumer *consumer);

#endif
