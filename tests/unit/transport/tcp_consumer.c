#include "tcp_consumer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

tcp_consumer *consumer_open(uint32_t handshake_timeout_ms)
{
  const node_shape shape = node_shape_simple(CONSUMER_BLOCKS, CONSUMER_BLOCK_BYTES);
  kvf_transport_config config = node_config();
  config.handshake_timeout_ms = handshake_timeout_ms;
  config.listen[0] = '\0';
  tcp_consumer *consumer = malloc(sizeof(*consumer));
  assert_non_null(consumer);
  memset(consumer, 0, sizeof(*consumer));
  node_open_with(&consumer->node, &kvf_transport_tcp_rail, &shape, 1, &config);
  node_set_all(&consumer->node, 0);
  consumer->introduction = (node_introduction){.incarnation = {{1, 2, 3}}, .shape = shape};
  consumer->listener = peer_listen(&consumer->introduction.incarnation, consumer->introduction.description,
                                   &consumer->introduction.description_bytes);
  consumer->spec = node_spec(&consumer->introduction);
  consumer->fd = -1;
  return consumer;
}

void consumer_connect(tcp_consumer *consumer)
{
  assert_int_equal(node_begin_connect(&consumer->node, &consumer->spec, &consumer->link), KVF_OK);
  consumer->user = consumer->link->user;
}

void consumer_link(tcp_consumer *consumer)
{
  consumer_connect(consumer);
  consumer->fd = peer_accept_proved(consumer->listener, &consumer->spec);
  assert_int_equal(node_wait_up(&consumer->node, consumer->link), KVF_OK);
}

void consumer_close(tcp_consumer *consumer)
{
  if (consumer->link != NULL) {
    kvf_transport_tcp_rail.disconnect(consumer->link);
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
