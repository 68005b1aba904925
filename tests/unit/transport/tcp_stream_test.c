/* Frames and payload through a socket with small buffers, in both directions. */
#include "test.h"
#include "transport/tcp/stream.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCKS 1500 /* more than one system call takes */
#define BLOCK_BYTES 64
#define STRIDE 96

/* Two ends of a connection whose kernel buffers are small, and a chunk of all blocks, backwards, on either side. */
typedef struct scene {
  kvf_tcp_stream from;
  kvf_tcp_stream to;
  uint8_t *memory[2];
  kvf_region regions[2];
  kvf_region_layout layout;
  kvf_pair pair;
  kvf_plan plan;
  kvf_transfer_item items[BLOCKS];
  kvf_transfer transfer;
  kvf_chunk chunks[2];
  kvf_tcp_payload payloads[2];
} scene;

static scene s;

static void scene_open(void)
{
  memset(&s, 0, sizeof(s));
  int fds[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  int small = 4096;
  assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
  assert_int_equal(kvf_tcp_stream_open(&s.from, fds[0], 256, 64, NULL, false), KVF_OK);
  assert_int_equal(kvf_tcp_stream_open(&s.to, fds[1], 256, 64, NULL, false), KVF_OK);
  s.layout = (kvf_region_layout){STRIDE, BLOCK_BYTES, BLOCKS, 1, 1, 0, 0};
  kvf_plan_own(&s.plan, &s.pair, &(kvf_pages){.regions = &s.layout, .regions_count = 1});
  for (uint32_t i = 0; i < BLOCKS; i++) {
    s.items[i] = (kvf_transfer_item){.remote_block = BLOCKS - 1 - i, .local_block = BLOCKS - 1 - i};
  }
  s.transfer = (kvf_transfer){.items = s.items, .items_count = BLOCKS, .heads = 1};
  for (int side = 0; side < 2; side++) {
    s.memory[side] = allocate((size_t)BLOCKS * STRIDE);
    s.regions[side] = (kvf_region){s.memory[side], STRIDE, BLOCK_BYTES, BLOCKS, 1, 1, 0, KVF_MEMORY_HOST, 0};
    s.chunks[side] = (kvf_chunk){&s.transfer, &s.plan, &s.plan.selection, &s.regions[side]};
    s.payloads[side] =
        (kvf_tcp_payload){kvf_segments_begin(&s.chunks[side]), (uint64_t)BLOCKS * BLOCK_BYTES, NULL, NULL};
  }
  for (size_t i = 0; i < (size_t)BLOCKS * STRIDE; i++) {
    s.memory[0][i] = (uint8_t)(i * 31 >> 3);
  }
}

static void scene_close(void)
{
  kvf_tcp_stream_close(&s.from);
  kvf_tcp_stream_close(&s.to);
  kvf_tcp_stream_free(&s.from);
  kvf_tcp_stream_free(&s.to);
  free(s.memory[0]);
  free(s.memory[1]);
}

#define SCENE_TEST(name) TEST_WITH(name, scene_open, scene_close)

static void stage_text(kvf_tcp_stream *stream, const char *text)
{
  const size_t bytes = strlen(text);
  uint8_t *out = kvf_tcp_stage(stream, bytes);
  assert_non_null(out);
  for (size_t i = 0; i < bytes; i++) {
    out[i] = (uint8_t)text[i];
  }
  kvf_tcp_staged(stream, bytes);
}

static void expect_moving(kvf_tcp_io io)
{
  assert_true(io == KVF_TCP_IO_MOVED || io == KVF_TCP_IO_BLOCKED);
}

static void expect_text(kvf_tcp_stream *stream, const char *text)
{
  assert_true(kvf_tcp_waiting_bytes(stream) >= strlen(text));
  assert_memory_equal(kvf_tcp_waiting(stream), text, strlen(text));
  kvf_tcp_consume(stream, strlen(text));
}

/* Each block is the other side's, and the gaps between blocks are as they were. */
static void expect_blocks(void)
{
  static const uint8_t gap[STRIDE - BLOCK_BYTES] = {0};
  for (size_t i = 0; i < BLOCKS; i++) {
    assert_memory_equal(s.memory[1] + i * STRIDE, s.memory[0] + i * STRIDE, BLOCK_BYTES);
    assert_memory_equal(s.memory[1] + i * STRIDE + BLOCK_BYTES, gap, sizeof(gap));
  }
}

/* Sends what the kernel takes: the payload, then `trailer`. Returns whether the kernel could not take all. */
static bool send_some(const char *trailer)
{
  bool had_payload = s.payloads[0].left_bytes > 0;
  if (!had_payload && kvf_tcp_unsent_bytes(&s.from) == 0) {
    return false;
  }
  kvf_tcp_io io = kvf_tcp_send(&s.from, had_payload ? &s.payloads[0] : NULL, 10000);
  expect_moving(io);
  if (had_payload && s.payloads[0].left_bytes == 0) {
    stage_text(&s.from, trailer);
  }
  return io == KVF_TCP_IO_BLOCKED;
}

static void fill_until(kvf_tcp_stream *stream, size_t bytes)
{
  while (kvf_tcp_waiting_bytes(stream) < bytes) {
    expect_moving(kvf_tcp_fill(stream));
  }
}

SCENE_TEST(payload_travels_between_frames)
{
  stage_text(&s.from, "header");
  int blocked = send_some("trailer");
  fill_until(&s.to, 6);
  expect_text(&s.to, "header");
  while (s.payloads[1].left_bytes > 0) {
    blocked += send_some("trailer");
    expect_moving(kvf_tcp_receive(&s.to, &s.payloads[1], false, 7000));
  }
  assert_true(blocked > 0); /* sends were resumed in the middle of a block */
  expect_blocks();
  (void)send_some("");
  fill_until(&s.to, 7);
  expect_text(&s.to, "trailer");
  assert_int_equal(kvf_tcp_waiting_bytes(&s.to), 0);
}

SCENE_TEST(discarded_payload_writes_nothing)
{
  while (s.payloads[1].left_bytes > 0) {
    (void)send_some("next");
    expect_moving(kvf_tcp_receive(&s.to, &s.payloads[1], true, UINT64_MAX));
  }
  (void)send_some("");
  fill_until(&s.to, 4);
  expect_text(&s.to, "next");
  for (size_t i = 0; i < (size_t)BLOCKS * STRIDE; i++) {
    assert_int_equal(s.memory[1][i], 0);
  }
}

SCENE_TEST(staging_is_bounded)
{
  stage_text(&s.from, "0123456789012345678901234567890123456789"); /* 40 of 64 */
  assert_null(kvf_tcp_stage(&s.from, 25));
  assert_non_null(kvf_tcp_stage(&s.from, 24));
  assert_int_equal(kvf_tcp_send(&s.from, NULL, 0), KVF_TCP_IO_MOVED);
  assert_int_equal(kvf_tcp_unsent_bytes(&s.from), 0);
  assert_non_null(kvf_tcp_stage(&s.from, 64));
  assert_null(kvf_tcp_stage(&s.from, 65));
}

SCENE_TEST(what_waits_survives_growth_and_refill)
{
  assert_int_equal(kvf_tcp_fill(&s.to), KVF_TCP_IO_BLOCKED);
  for (int i = 0; i < 5; i++) { /* 250 of 256 */
    stage_text(&s.from, "01234567890123456789012345678901234567890123456789");
    assert_int_equal(kvf_tcp_send(&s.from, NULL, 0), KVF_TCP_IO_MOVED);
  }
  assert_int_equal(kvf_tcp_fill(&s.to), KVF_TCP_IO_BLOCKED);
  kvf_tcp_consume(&s.to, 240);
  stage_text(&s.from, "abcdefghijklmnopqrst");
  assert_int_equal(kvf_tcp_send(&s.from, NULL, 0), KVF_TCP_IO_MOVED);
  assert_int_equal(kvf_tcp_stream_grow(&s.to, 512, s.to.out.capacity), KVF_OK);
  assert_int_equal(kvf_tcp_fill(&s.to), KVF_TCP_IO_BLOCKED);
  expect_text(&s.to, "0123456789abcdefghijklmnopqrst");
}

SCENE_TEST(the_other_end_is_missed)
{
  kvf_tcp_stream_close(&s.from);
  kvf_tcp_stream_close(&s.from);
  assert_int_equal(kvf_tcp_receive(&s.to, &s.payloads[1], false, UINT64_MAX), KVF_TCP_IO_CLOSED);
  assert_int_equal(kvf_tcp_receive(&s.to, &s.payloads[1], true, UINT64_MAX), KVF_TCP_IO_CLOSED);
  assert_int_equal(kvf_tcp_fill(&s.to), KVF_TCP_IO_CLOSED);
  assert_int_equal(s.to.error, 0);
  stage_text(&s.to, "hello?");
  assert_int_equal(kvf_tcp_send(&s.to, NULL, 0), KVF_TCP_IO_CLOSED); /* and no SIGPIPE */
  assert_int_not_equal(s.to.error, 0);
}

SCENE_TEST(memory_that_is_gone_is_an_error)
{
  s.regions[0].base = (void *)8; /* nothing is mapped there */
  assert_int_equal(kvf_tcp_send(&s.from, &s.payloads[0], 4096), KVF_TCP_IO_FAILED);
  assert_int_not_equal(s.from.error, 0);
  assert_int_equal(s.payloads[0].left_bytes, BLOCKS * BLOCK_BYTES);
}
