/* What a consumer that has proved its key is answered. */
#include "transport/tcp/server.h"

#include <sys/mman.h>
#include <unistd.h>

#include "../../sides/peer.h"
#include "../../sides/side.h"
#include "test.h"
#include "transport/fence_memory.h"

#define BLOCKS 64
#define BLOCK_BYTES (256 << 10)
#define LARGE 32 /* blocks: more than the kernel takes at once */

static const kvf_transport_ops *const ops = &kvf_transport_tcp;

typedef struct scene {
  side producer;
  side_introduction introduction;
  kvf_link_spec spec;
  side_lease *lease;
  kvf_transfer_item items[BLOCKS];
  uint8_t *payload; /* room for all blocks */
  int fd;
} scene;

static scene s;

static void scene_open(void)
{
  const side_shape shape = side_shape_simple(BLOCKS, BLOCK_BYTES);
  kvf_transport_config config = side_config();
  config.tcp_buffer_bytes = 65536;
  memset(&s, 0, sizeof(s));
  side_open(&s.producer, ops, &shape, 1, &config);
  side_introduce(&s.producer, &s.introduction);
  s.spec = side_spec(&s.introduction);
  s.lease = side_publish(&s.producer, 1001);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    s.items[i] = (kvf_transfer_item){.position = i};
  }
  s.payload = allocate((size_t)BLOCKS * BLOCK_BYTES);
  s.fd = peer_connect_proved(&s.spec);
}

static void scene_close(void)
{
  (void)close(s.fd);
  side_close(&s.producer);
  free(s.payload);
}

#define SCENE_TEST(name) TEST_WITH(name, scene_open, scene_close)

static void expect_payload(const kvf_transfer_item *items, uint32_t count)
{
  peer_receive(s.fd, s.payload, (size_t)count * BLOCK_BYTES);
  for (uint32_t i = 0; i < count; i++) {
    const uint8_t *block = side_block(&s.producer, 0, s.lease->blocks[items[i].position]);
    assert_memory_equal(s.payload + (size_t)i * BLOCK_BYTES, block, BLOCK_BYTES);
  }
}

static void expect_answer(uint64_t read_id, const kvf_transfer_item *items, uint32_t count)
{
  kvf_data_chunk chunk = peer_receive_chunk(s.fd);
  assert_int_equal(chunk.read_id, read_id);
  assert_int_equal(chunk.status, KVF_OK);
  assert_int_equal(chunk.payload_bytes, (uint64_t)count * BLOCK_BYTES);
  expect_payload(items, count);
  kvf_data_trailer trailer = peer_receive_trailer(s.fd);
  assert_int_equal(trailer.read_id, read_id);
  assert_int_equal(trailer.word, kvf_fence_word_live(1001));
  assert_int_equal(trailer.digest, s.lease->digest);
}

static void expect_refusal(uint64_t read_id, kvf_status status)
{
  kvf_data_chunk chunk = peer_receive_chunk(s.fd);
  assert_int_equal(chunk.read_id, read_id);
  assert_int_equal(chunk.status, status);
  assert_int_equal(chunk.payload_bytes, 0);
}

SCENE_TEST(reads_are_answered_in_order)
{
  peer_send_read(s.fd, 1, &s.lease->lease, s.items, 3);
  peer_send_read(s.fd, 2, &s.lease->lease, s.items + 7, 1);
  expect_answer(1, s.items, 3);
  expect_answer(2, s.items + 7, 1);
}

SCENE_TEST(more_reads_than_are_queued_are_answered_too)
{
  const uint64_t count = 4 * KVF_TCP_REQUESTS_MAX + 3;
  for (uint64_t id = 1; id <= count; id++) {
    peer_send_read(s.fd, id, &s.lease->lease, s.items + id % BLOCKS, 1);
  }
  for (uint64_t id = 1; id <= count; id++) {
    expect_answer(id, s.items + id % BLOCKS, 1);
  }
}

SCENE_TEST(refusals_carry_the_reason_and_nothing_else)
{
  kvf_lease lease = s.lease->lease;
  lease.token[0] ^= 1;
  peer_send_read(s.fd, 1, &lease, s.items, 1);
  expect_refusal(1, KVF_LEASE_UNKNOWN);

  lease = s.lease->lease;
  lease.slot = SIDE_SLOTS;
  peer_send_read(s.fd, 2, &lease, s.items, 1);
  expect_refusal(2, KVF_LEASE_UNKNOWN);

  const kvf_transfer_item beyond = {.position = BLOCKS};
  peer_send_read(s.fd, 3, &s.lease->lease, &beyond, 1);
  expect_refusal(3, KVF_INVALID);

  const kvf_transfer_item group = {.position = 1, .group = 3};
  peer_send_read(s.fd, 4, &s.lease->lease, &group, 1);
  expect_refusal(4, KVF_INVALID);

  side_end(&s.producer, s.lease);
  for (uint64_t id = 5; id < 100; id++) { /* more than there is room for at once */
    peer_send_read(s.fd, id, &s.lease->lease, s.items, 1);
  }
  for (uint64_t id = 5; id < 100; id++) {
    expect_refusal(id, KVF_LEASE_EXPIRED);
  }
}

SCENE_TEST(heads_are_those_that_were_asked_for)
{
  kvf_data_read read = {
      .read_id = 1, .lease = s.lease->lease, .heads = 1, .selection = kvf_read_selection_whole(1), .items_count = 1};
  uint8_t body[256];
  size_t bytes;
  read.remote_head = 1; /* the region has one */
  assert_int_equal(kvf_data_read_encode(&read, s.items, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(s.fd, KVF_FRAME_READ, body, bytes);
  expect_refusal(1, KVF_INVALID);
  read.remote_head = 0;
  read.heads = UINT32_MAX;
  assert_int_equal(kvf_data_read_encode(&read, s.items, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(s.fd, KVF_FRAME_READ, body, bytes);
  expect_refusal(1, KVF_INVALID);
  peer_send_read(s.fd, 2, &s.lease->lease, s.items, 1);
  expect_answer(2, s.items, 1);

  read = (kvf_data_read){
      .read_id = 3, .lease = s.lease->lease, .heads = 1, .selection = kvf_read_selection_whole(2), .items_count = 1};
  assert_int_equal(kvf_data_read_encode(&read, s.items, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(s.fd, KVF_FRAME_READ, body, bytes);
  expect_refusal(3, KVF_INVALID); /* it has one layer, and no checksums */
}

SCENE_TEST(a_cancelled_read_that_waits_is_not_sent)
{
  peer_send_read(s.fd, 1, &s.lease->lease, s.items, LARGE);
  assert_int_equal(peer_receive_chunk(s.fd).status, KVF_OK); /* and now the kernel is full */
  peer_send_read(s.fd, 2, &s.lease->lease, s.items, 1);
  peer_send_read(s.fd, 3, &s.lease->lease, s.items, 1);
  peer_send_cancel(s.fd, 2);
  peer_send_cancel(s.fd, 1);   /* too late */
  peer_send_cancel(s.fd, 400); /* never heard of */
  sleep_us(20000);
  expect_payload(s.items, LARGE);
  assert_int_equal(peer_receive_trailer(s.fd).read_id, 1);
  expect_refusal(2, KVF_CANCELLED);
  expect_answer(3, s.items, 1);
}

/* Not seen by ThreadSanitizer: that the old owner's bytes may still be on their way is what it is about. */
__attribute__((no_sanitize("thread"))) static void next_owner_writes(uint8_t *block)
{
  for (volatile uint8_t *byte = block; byte < block + BLOCK_BYTES; byte++) {
    *byte = 0x5a;
  }
}

/* The consumer learns from the trailer what became of the lease while the chunk was on its way. */
SCENE_TEST(the_trailer_tells_what_was_after_the_last_byte)
{
  peer_send_read(s.fd, 1, &s.lease->lease, s.items, LARGE);
  assert_int_equal(peer_receive_chunk(s.fd).status, KVF_OK);
  peer_receive(s.fd, s.payload, BLOCK_BYTES);
  side_end(&s.producer, s.lease);
  next_owner_writes(side_block(&s.producer, 0, s.lease->blocks[LARGE - 1]));
  peer_receive(s.fd, s.payload, (size_t)(LARGE - 1) * BLOCK_BYTES);
  assert_int_equal(s.payload[(size_t)(LARGE - 1) * BLOCK_BYTES - 1], 0x5a);
  kvf_data_trailer trailer = peer_receive_trailer(s.fd);
  assert_int_equal(trailer.word, kvf_fence_word_ended(1001));

  side_lease *next = side_publish(&s.producer, 1009); /* of the same slot: the stream is in step */
  peer_send_read(s.fd, 2, &next->lease, s.items, 1);
  assert_int_equal(peer_receive_chunk(s.fd).status, KVF_OK);
  peer_receive(s.fd, s.payload, BLOCK_BYTES);
  assert_int_equal(peer_receive_trailer(s.fd).word, kvf_fence_word_live(1009));
}

SCENE_TEST(memory_that_goes_away_ends_what_is_being_sent)
{
  int idle = peer_connect_proved(&s.spec);
  peer_send_read(s.fd, 1, &s.lease->lease, s.items, LARGE);
  assert_int_equal(peer_receive_chunk(s.fd).status, KVF_OK);
  ops->clear_memory(s.producer.transport);
  s.producer.memory_set = false;
  /* Whoever reads it now is found out. */
  assert_int_equal(mprotect(s.producer.regions[0].base, (size_t)BLOCKS * BLOCK_BYTES, PROT_NONE), 0);
  peer_expect_closed(s.fd);
  assert_true(side_has_logged(&s.producer, "the memory is not registered any more"));
  (void)close(s.fd);
  s.fd = idle; /* lives on */
  peer_send_read(s.fd, 2, &s.lease->lease, s.items, 1);
  expect_refusal(2, KVF_AGAIN);
}

/* A consumer that stands still costs the others nothing. */
SCENE_TEST(consumers_are_served_side_by_side)
{
  int still = peer_connect_proved(&s.spec);
  for (uint64_t id = 1; id <= KVF_TCP_REQUESTS_MAX; id++) {
    peer_send_read(still, id, &s.lease->lease, s.items, LARGE);
  }
  assert_int_equal(peer_receive_chunk(still).status, KVF_OK);
  peer_send_read(s.fd, 1, &s.lease->lease, s.items, LARGE);
  expect_answer(1, s.items, LARGE);
  (void)close(still);
  peer_send_read(s.fd, 2, &s.lease->lease, s.items, 1);
  expect_answer(2, s.items, 1);
}
