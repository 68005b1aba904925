/* What becomes of reads, with a producer that does what it likes. */
#include <assert.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../allocation.h"
#include "../../sides/peer.h"
#include "test.h"
#include "transport/tcp/tcp_link.h"

#define FILL 0x77

static const kvf_transport_ops *const ops = &kvf_transport_tcp;

typedef struct scene {
  tcp_consumer *consumer;
  side *one;
  kvf_transfer_item items[CONSUMER_BLOCKS];
  uint8_t *bytes; /* CONSUMER_BLOCKS blocks of FILL */
} scene;

static scene s;

static void scene_open(void)
{
  memset(&s, 0, sizeof(s));
  s.consumer = tcp_consumer_open(5000);
  s.one = &s.consumer->one;
  for (uint32_t i = 0; i < CONSUMER_BLOCKS; i++) {
    s.items[i] = (kvf_transfer_item){.position = i, .remote_block = i, .local_block = i};
  }
  s.bytes = allocate((size_t)CONSUMER_BLOCKS * CONSUMER_BLOCK_BYTES);
  memset(s.bytes, FILL, (size_t)CONSUMER_BLOCKS * CONSUMER_BLOCK_BYTES);
  tcp_consumer_link(s.consumer);
}

static void scene_close(void)
{
  tcp_consumer_close(s.consumer);
  free(s.bytes);
}

#define SCENE_TEST(name) TEST_WITH(name, scene_open, scene_close)

/* A read of blocks [first, first + count). */
static kvf_transfer read_of(uint32_t first, uint32_t count)
{
  const kvf_lease lease = {.id = 9, .slot = 4, .token = {1, 2, 3}};
  return side_read(s.one, &lease, s.items + first, count);
}

static kvf_transfer started(uint32_t first, uint32_t count)
{
  kvf_transfer read = read_of(first, count);
  assert_int_equal(ops->read(s.consumer->link, &read), KVF_OK);
  return read;
}

/* Receives the read at the producer's end. */
static void expect_asked(const kvf_transfer *read)
{
  kvf_transfer_item items[CONSUMER_BLOCKS];
  kvf_data_read asked = peer_receive_read(s.consumer->fd, items, CONSUMER_BLOCKS);
  assert_int_equal(asked.read_id, read->id);
  assert_memory_equal(&asked.lease, &read->lease, sizeof(asked.lease));
  assert_int_equal(asked.items_count, read->items_count);
  for (uint32_t i = 0; i < asked.items_count; i++) {
    assert_int_equal(items[i].position, read->items[i].position);
  }
}

static void send_payload(uint64_t bytes)
{
  peer_send(s.consumer->fd, s.bytes, bytes);
}

static void answer(const kvf_transfer *read)
{
  uint64_t bytes = (uint64_t)read->items_count * CONSUMER_BLOCK_BYTES;
  peer_send_chunk(s.consumer->fd, read->id, KVF_OK, bytes);
  send_payload(bytes);
  peer_send_trailer(s.consumer->fd, read->id, 19, 77);
}

static bool blocks_are(uint32_t first, uint32_t count, uint8_t value)
{
  const uint8_t *bytes = side_block(s.one, 0, first);
  return bytes[0] == value && memcmp(bytes, bytes + 1, (size_t)count * CONSUMER_BLOCK_BYTES - 1) == 0;
}

static void expect_good(const kvf_transfer *read)
{
  kvf_read_result result = side_wait(s.one, read->id);
  assert_int_equal(result.status, KVF_OK);
  assert_int_equal(result.bytes, (uint64_t)read->items_count * CONSUMER_BLOCK_BYTES);
  assert_int_equal(result.sample.head.magic, KVF_FENCE_MAGIC);
  assert_memory_equal(&result.sample.head.incarnation, &s.consumer->spec.incarnation, sizeof(kvf_incarnation));
  assert_int_equal(result.sample.entry.word, 19);
  assert_int_equal(result.sample.entry.digest, 77);
  assert_true(blocks_are(read->items[0].local_block, read->items_count, FILL));
}

static void expect_status(const kvf_transfer *read, kvf_status status)
{
  assert_int_equal(side_wait(s.one, read->id).status, status);
}

SCENE_TEST(a_read_gets_its_bytes_and_its_sample)
{
  kvf_transfer read = started(3, 5);
  expect_asked(&read);
  answer(&read);
  expect_good(&read);
  assert_true(blocks_are(0, 3, 0));
  assert_true(blocks_are(8, CONSUMER_BLOCKS - 8, 0));
}

SCENE_TEST(more_reads_than_may_be_open_wait)
{
  enum { COUNT = 6 * KVF_TCP_REQUESTS_MAX };
  static_assert(COUNT <= CONSUMER_BLOCKS, "each has a block of its own");
  kvf_transfer reads[COUNT];
  for (uint32_t i = 0; i < COUNT; i++) {
    reads[i] = started(i, 1);
  }
  for (uint32_t i = 0; i < COUNT; i++) {
    if (i >= KVF_TCP_REQUESTS_MAX) {
      answer(&reads[i - KVF_TCP_REQUESTS_MAX]);
    }
    expect_asked(&reads[i]);
    if (i == KVF_TCP_REQUESTS_MAX - 1) {
      peer_expect_silence(s.consumer->fd, 20);
    }
  }
  for (uint32_t i = COUNT - KVF_TCP_REQUESTS_MAX; i < COUNT; i++) {
    answer(&reads[i]);
  }
  for (uint32_t i = 0; i < COUNT; i++) {
    expect_good(&reads[i]);
  }
}

SCENE_TEST(refusals_are_told)
{
  static const struct {
    int32_t said;
    kvf_status told;
  } cases[] = {{KVF_LEASE_EXPIRED, KVF_LEASE_EXPIRED}, {KVF_LEASE_UNKNOWN, KVF_LEASE_UNKNOWN},
               {KVF_NOT_PUBLISHED, KVF_NOT_PUBLISHED}, {KVF_INVALID, KVF_BAD_TICKET},
               {KVF_CANCELLED, KVF_TRANSFER_FAILED},   {-9999, KVF_TRANSFER_FAILED}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    kvf_transfer read = started(0, 1);
    expect_asked(&read);
    peer_send_chunk(s.consumer->fd, read.id, cases[i].said, 0);
    expect_status(&read, cases[i].told);
  }
  kvf_transfer read = started(0, 1);
  expect_asked(&read);
  answer(&read);
  expect_good(&read);
}

static void expect_failed_link(const kvf_transfer *reads, size_t count, const char *line)
{
  for (size_t i = 0; i < count; i++) {
    expect_status(&reads[i], KVF_PROTOCOL);
  }
  assert_int_equal(side_wait_down(s.one, s.consumer->link), KVF_PROTOCOL);
  assert_true(side_has_logged(s.one, line));
  kvf_transfer late = started(0, 1);
  expect_status(&late, KVF_PROTOCOL);
}

SCENE_TEST(a_chunk_of_another_size_ends_the_link)
{
  const kvf_transfer reads[] = {started(0, 2), started(2, 1)};
  expect_asked(&reads[0]);
  peer_send_chunk(s.consumer->fd, reads[0].id, KVF_OK, 2 * CONSUMER_BLOCK_BYTES + 1);
  expect_failed_link(reads, 2, "a chunk of another size");
  assert_true(side_all_are(s.one, 0));
}

SCENE_TEST(an_answer_out_of_turn_ends_the_link)
{
  const kvf_transfer reads[] = {started(0, 1)};
  expect_asked(&reads[0]);
  peer_send_chunk(s.consumer->fd, reads[0].id + 1, KVF_OK, CONSUMER_BLOCK_BYTES);
  expect_failed_link(reads, 1, "a chunk that is not the next one");
}

SCENE_TEST(a_trailer_of_another_chunk_ends_the_link)
{
  const kvf_transfer reads[] = {started(0, 1)};
  expect_asked(&reads[0]);
  peer_send_chunk(s.consumer->fd, reads[0].id, KVF_OK, CONSUMER_BLOCK_BYTES);
  send_payload(CONSUMER_BLOCK_BYTES);
  peer_send_trailer(s.consumer->fd, reads[0].id + 1, 19, 77);
  expect_failed_link(reads, 1, "a trailer that is not the chunk's");
}

SCENE_TEST(a_chunk_instead_of_a_trailer_ends_the_link)
{
  const kvf_transfer reads[] = {started(0, 1)};
  expect_asked(&reads[0]);
  peer_send_chunk(s.consumer->fd, reads[0].id, KVF_OK, CONSUMER_BLOCK_BYTES);
  send_payload(CONSUMER_BLOCK_BYTES);
  peer_send_chunk(s.consumer->fd, reads[0].id, KVF_OK, CONSUMER_BLOCK_BYTES);
  expect_failed_link(reads, 1, "unexpected frame chunk");
}

SCENE_TEST(a_producer_that_leaves_fails_its_reads)
{
  kvf_transfer half = started(0, 2);
  kvf_transfer whole = started(2, 1);
  expect_asked(&half);
  peer_send_chunk(s.consumer->fd, half.id, KVF_OK, 2 * CONSUMER_BLOCK_BYTES);
  send_payload(CONSUMER_BLOCK_BYTES);
  sleep_us(20000);
  assert_int_equal(shutdown(s.consumer->fd, SHUT_RDWR), 0);
  kvf_read_result result = side_wait(s.one, half.id);
  assert_int_equal(result.status, KVF_TRANSFER_FAILED);
  assert_int_equal(result.bytes, CONSUMER_BLOCK_BYTES);
  expect_status(&whole, KVF_TRANSFER_FAILED);
  assert_int_equal(side_wait_down(s.one, s.consumer->link), KVF_PEER_DOWN);
  kvf_transfer late = started(0, 1);
  expect_status(&late, KVF_PEER_DOWN);
}

/* The producer has been told, but had begun already: what it still sends must land nowhere. */
SCENE_TEST(a_cancelled_read_writes_nothing_more)
{
  kvf_transfer read = started(0, 4);
  kvf_transfer next = started(8, 1);
  expect_asked(&read);
  expect_asked(&next);
  ops->cancel(s.consumer->link, read.id);
  ops->cancel(s.consumer->link, read.id);
  expect_status(&read, KVF_CANCELLED); /* at once: the producer has said nothing yet */
  uint8_t body[KVF_DATA_CANCEL_BYTES_MAX];
  kvf_data_cancel cancel;
  size_t bytes = peer_receive_frame(s.consumer->fd, KVF_FRAME_CANCEL, body, sizeof(body));
  assert_int_equal(kvf_data_cancel_decode(body, bytes, &cancel), KVF_OK);
  assert_int_equal(cancel.read_id, read.id);
  answer(&read);
  answer(&next);
  expect_good(&next);
  assert_true(blocks_are(0, 8, 0));
}

SCENE_TEST(a_read_that_is_cancelled_half_way_stops_there)
{
  kvf_transfer read = started(0, 4);
  expect_asked(&read);
  peer_send_chunk(s.consumer->fd, read.id, KVF_OK, 4 * CONSUMER_BLOCK_BYTES);
  send_payload(CONSUMER_BLOCK_BYTES + 100);
  sleep_us(20000);
  ops->cancel(s.consumer->link, read.id);
  kvf_read_result result = side_wait(s.one, read.id);
  assert_int_equal(result.status, KVF_CANCELLED);
  assert_int_equal(result.bytes, CONSUMER_BLOCK_BYTES + 100);
  side_set_all(s.one, 0);
  send_payload(3 * CONSUMER_BLOCK_BYTES - 100);
  peer_send_trailer(s.consumer->fd, read.id, 19, 77);
  kvf_transfer next = started(8, 1);
  expect_asked(&next); /* and no CANCEL before it: it would have come too late */
  answer(&next);
  expect_good(&next);
  assert_true(blocks_are(0, 8, 0));
}

SCENE_TEST(reads_that_wait_can_be_cancelled)
{
  enum { COUNT = KVF_TCP_REQUESTS_MAX };
  for (uint32_t i = 0; i < COUNT; i++) {
    (void)started(i, 1);
  }
  kvf_transfer waiting = started(COUNT, 1);
  kvf_transfer last = started(COUNT + 1, 1);
  ops->cancel(s.consumer->link, waiting.id);
  expect_status(&waiting, KVF_CANCELLED);
  ops->disconnect(s.consumer->link);
  s.consumer->link = NULL;
  expect_status(&last, KVF_CANCELLED);
}

SCENE_TEST(memory_that_goes_away_cancels_reads)
{
  kvf_transfer half = started(0, 2);
  kvf_transfer asked = started(2, 2);
  expect_asked(&half);
  expect_asked(&asked);
  peer_send_chunk(s.consumer->fd, half.id, KVF_OK, 2 * CONSUMER_BLOCK_BYTES);
  send_payload(CONSUMER_BLOCK_BYTES);
  sleep_us(20000);
  ops->clear_memory(s.one->transport);
  s.one->memory_set = false;
  assert_true(side_is_done(s.one, half.id));
  assert_true(side_is_done(s.one, asked.id));
  side_set_all(s.one, 0);
  send_payload(CONSUMER_BLOCK_BYTES);
  peer_send_trailer(s.consumer->fd, half.id, 19, 77);
  kvf_transfer late = started(0, 1);
  expect_status(&late, KVF_TRANSFER_SETUP);
  sleep_us(20000);
  assert_true(side_all_are(s.one, 0));
}

SCENE_TEST(progress_is_told_now_and_then)
{
  kvf_transfer read = started(0, 40);
  expect_asked(&read);
  peer_send_chunk(s.consumer->fd, read.id, KVF_OK, 40 * CONSUMER_BLOCK_BYTES);
  uint64_t begun_ns = now_ns();
  for (int i = 0; i < 40; i++) {
    send_payload(CONSUMER_BLOCK_BYTES);
    sleep_us(5000);
  }
  uint64_t most = (now_ns() - begun_ns) / KVF_PROGRESS_NS + 1;
  (void)pthread_mutex_lock(&s.one->lock);
  uint32_t told = s.one->reads[read.id].progress;
  (void)pthread_mutex_unlock(&s.one->lock);
  assert_true(told >= 1);
  assert_true(told <= most);
  peer_send_trailer(s.consumer->fd, read.id, 19, 77);
  expect_good(&read);
}

SCENE_TEST(a_read_for_which_there_is_no_memory_does_not_begin)
{
  kvf_transfer read = read_of(0, 1);
  allocation_fail(0, 1);
  kvf_status status = ops->read(s.consumer->link, &read);
  assert_true(allocation_stop());
  assert_int_equal(status, KVF_NO_MEMORY);
  assert_false(side_is_done(s.one, read.id));
  assert_int_equal(ops->read(s.consumer->link, &read), KVF_OK);
  expect_asked(&read);
  answer(&read);
  expect_good(&read);
}

SCENE_TEST(blocks_that_are_not_there_are_not_asked_for)
{
  s.items[0].local_block = CONSUMER_BLOCKS;
  s.items[1].remote_block = CONSUMER_BLOCKS;
  kvf_transfer local = started(0, 1);
  kvf_transfer remote = started(1, 1);
  expect_status(&local, KVF_INVALID);
  expect_status(&remote, KVF_INVALID);
  peer_expect_silence(s.consumer->fd, 20);
}
