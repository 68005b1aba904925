/* A consumer under test and the producer that the test plays for it. */
#ifndef KVF_TESTS_UNIT_TRANSPORT_TCP_CONSUMER_H
#define KVF_TESTS_UNIT_TRANSPORT_TCP_CONSUMER_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node.h"
#include "tcp_peer.h"
#include "test.h"

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

static inline tcp_consumer *consumer_open(uint32_t handshake_timeout_ms)
{
  const node_shape shape = node_shape_simple(CONSUMER_BLOCKS, CONSUMER_BLOCK_BYTES);
  kvf_transport_config config = node_config();
  config.handshake_timeout_ms = handshake_timeout_ms;
  config.listen[0] = '\0';
  tcp_consumer *consumer = malloc(sizeof(*consumer));
  assert_non_null(consumer);
  memset(consumer, 0, sizeof(*consumer));
  node_open_with(&consumer->node, &kvf_transport_tcp_shard, &shape, 1, &config);
  node_set_all(&consumer->node, 0);
  consumer->introduction = (node_introduction){.incarnation = {{1, 2, 3}}, .shape = shape};
  consumer->listener = peer_listen(&consumer->introduction.incarnation, consumer->introduction.description,
                                   &consumer->introduction.description_bytes);
  consumer->spec = node_spec(&consumer->introduction);
  consumer->fd = -1;
  return consumer;
}

/* Begins to connect. */
static inline void consumer_connect(tcp_consumer *consumer)
{
  assert_int_equal(node_begin_connect(&consumer->node, &consumer->spec, &consumer->link), KVF_OK);
  assert_non_null(consumer->link);
  consumer->user = consumer->link->user;
}

/* Connects and plays the handshake. */
static inline void consumer_link(tcp_consumer *consumer)
{
  consumer_connect(consumer);
  consumer->fd = peer_accept_proved(consumer->listener, &consumer->spec);
  assert_int_equal(node_wait_up(&consumer->node, consumer->link), KVF_OK);
}

/* Disconnects if there is a link, closes what is open. */
static inline void consumer_close(tcp_consumer *consumer)
{
  if (consumer->link != NULL) {
    kvf_transport_tcp_shard.disconnect(consumer->link);
  }
  if (consumer->fd >= 0) {
    (void)close(consumer->fd);
  }
  if (consumer->listener >= 0) {
    (void)close(consumer->listener);
  }
  node_close(&consumer->node);
  free(consumer);
}

#endif
