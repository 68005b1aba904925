/* How links come up, or do not, with a producer that does what it likes. */
#include "transport/tcp/tcp_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include "../../sides/peer.h"
#include "test.h"

static const kvf_transport_ops *const ops = &kvf_transport_tcp;

static tcp_consumer *consumer;

static void open_patient(void)
{
  consumer = tcp_consumer_open(5000);
}

static void open_impatient(void)
{
  consumer = tcp_consumer_open(100);
}

static void scene_close(void)
{
  tcp_consumer_close(consumer);
}

#define SET_TEST(name) TEST_WITH(name, open_patient, scene_close)

SET_TEST(a_link_is_up_when_both_ends_are_proved)
{
  tcp_consumer_connect(consumer);
  consumer->fd = peer_accept(consumer->listener);
  kvf_data_ready ready = peer_challenge(consumer->fd, &consumer->spec);
  sleep_us(20000);
  assert_string_equal(side_link(&consumer->one, consumer->user).events, "");
  peer_send_frame(consumer->fd, KVF_FRAME_DATA_READY, &ready, sizeof(ready));
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_OK);
}

SET_TEST(nobody_listens)
{
  (void)close(consumer->listener);
  consumer->listener = -1;
  tcp_consumer_connect(consumer);
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_PEER_DOWN);
  assert_true(side_has_logged(&consumer->one, "cannot connect: Connection refused"));
}

TEST_WITH(a_silent_producer_is_given_up, open_impatient, scene_close)
{
  uint64_t begun_ns = now_ns();
  tcp_consumer_connect(consumer);
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_HANDSHAKE_TIMEOUT);
  assert_true(now_ns() - begun_ns >= 99 * KVF_NS_PER_MS);
  assert_true(side_has_logged(&consumer->one, "no handshake in 100 ms"));
}

TEST_WITH(a_producer_that_does_not_answer_the_proof_is_given_up, open_impatient, scene_close)
{
  tcp_consumer_connect(consumer);
  consumer->fd = peer_accept(consumer->listener);
  (void)peer_challenge(consumer->fd, &consumer->spec);
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_HANDSHAKE_TIMEOUT);
  peer_expect_closed(consumer->fd);
}

SET_TEST(a_producer_that_hangs_up_first_is_down)
{
  tcp_consumer_connect(consumer);
  (void)close(peer_accept(consumer->listener));
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_PEER_DOWN);
}

SET_TEST(a_producer_that_hangs_up_on_the_proof_has_refused)
{
  tcp_consumer_connect(consumer);
  consumer->fd = peer_accept(consumer->listener);
  peer_challenge(consumer->fd, &consumer->spec);
  assert_int_equal(shutdown(consumer->fd, SHUT_WR), 0);
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_HANDSHAKE_REFUSED);
}

static void expect_protocol_error(const char *line)
{
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_PROTOCOL);
  peer_expect_closed(consumer->fd);
  assert_true(side_has_logged(&consumer->one, line));
  assert_true(side_has_logged(&consumer->one, "peer 127.0.0.1:"));
  ops->disconnect(consumer->link);
  consumer->link = NULL;
  (void)close(consumer->fd);
  consumer->fd = -1;
}

SET_TEST(nonsense_in_the_handshake_ends_it)
{
  tcp_consumer_connect(consumer);
  consumer->fd = peer_accept(consumer->listener);
  peer_send(consumer->fd, "SSH-2.0-OpenSSH_9.2\r\n", 21);
  expect_protocol_error("not a frame");

  tcp_consumer_connect(consumer);
  consumer->fd = peer_accept(consumer->listener);
  peer_send_frame(consumer->fd, KVF_FRAME_DATA_READY, NULL, 0);
  expect_protocol_error("unexpected frame data_ready");

  tcp_consumer_connect(consumer);
  consumer->fd = peer_accept(consumer->listener);
  peer_send_frame(consumer->fd, KVF_FRAME_DATA_CHALLENGE, "short", 5);
  expect_protocol_error("malformed data_challenge");

  tcp_consumer_connect(consumer);
  consumer->fd = peer_accept(consumer->listener);
  (void)peer_challenge(consumer->fd, &consumer->spec);
  peer_send_frame(consumer->fd, KVF_FRAME_DATA_READY, "x", 1);
  expect_protocol_error("malformed data_ready");
}

/* P8: somebody else has taken the producer's port. No READ, and so no lease's token, goes to him. */
SET_TEST(a_producer_without_the_session_key_gets_no_read)
{
  tcp_consumer_connect(consumer);
  consumer->fd = peer_accept(consumer->listener);
  kvf_data_ready ready = peer_challenge(consumer->fd, &consumer->spec);
  ready.proof[0] ^= 1;
  peer_send_frame(consumer->fd, KVF_FRAME_DATA_READY, &ready, sizeof(ready));
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_HANDSHAKE_REFUSED);
  peer_expect_closed(consumer->fd);
  assert_true(side_has_logged(&consumer->one, "has not proved the session's key"));
}

SET_TEST(a_link_that_was_up_fails_once)
{
  tcp_consumer_link(consumer);
  (void)close(consumer->fd);
  consumer->fd = -1;
  assert_int_equal(side_wait_down(&consumer->one, consumer->link), KVF_PEER_DOWN);
  assert_true(side_has_logged(&consumer->one, "closed by the producer"));
}

SET_TEST(unasked_chunks_end_the_link)
{
  tcp_consumer_link(consumer);
  peer_send_chunk(consumer->fd, 3, KVF_OK, 4096);
  assert_int_equal(side_wait_down(&consumer->one, consumer->link), KVF_PROTOCOL);
  peer_expect_closed(consumer->fd);
  assert_true(side_has_logged(&consumer->one, "a chunk that is not the next one"));
}

SET_TEST(disconnect_is_legal_at_any_time)
{
  for (int stage = 3; stage >= 0; stage--) {
    tcp_consumer_connect(consumer);
    if (stage > 0) {
      consumer->fd = peer_accept(consumer->listener);
    }
    kvf_data_ready ready = {0};
    if (stage > 1) {
      ready = peer_challenge(consumer->fd, &consumer->spec);
    }
    if (stage > 2) {
      peer_send_frame(consumer->fd, KVF_FRAME_DATA_READY, &ready, sizeof(ready));
    }
    ops->disconnect(consumer->link);
    consumer->link = NULL;
    if (stage > 0) {
      peer_expect_closed(consumer->fd);
      (void)close(consumer->fd);
      consumer->fd = -1;
    }
    const bool told = side_link(&consumer->one, consumer->user).link != NULL;
    assert_true(stage == 3 || !told); /* then it may have been up already */
  }
}

SET_TEST(links_need_memory_and_a_layout_that_pairs)
{
  consumer->introduction.shape.regions[0].block_bytes /= 2;
  tcp_consumer_connect(consumer);
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_INCOMPATIBLE);
  ops->disconnect(consumer->link);
  consumer->introduction.shape.regions[0].block_bytes *= 2;
  ops->clear_memory(consumer->one.transport);
  consumer->one.memory_set = false;
  tcp_consumer_connect(consumer);
  assert_int_equal(side_wait_up(&consumer->one, consumer->link), KVF_TRANSFER_SETUP);
  assert_true(side_has_logged(&consumer->one, "no memory is registered here"));
}
