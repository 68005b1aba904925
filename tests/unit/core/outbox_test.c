#include "core/conn.h"
#include "test.h"

static uint8_t *reserve(kvf_outbox *outbox, size_t bytes)
{
  uint8_t *room = NULL;
  assert_int_equal(kvf_outbox_reserve(outbox, bytes, &room), KVF_OK);
  assert_non_null(room);
  return room;
}

TEST(bytes_come_out_in_order)
{
  kvf_outbox outbox = {0};
  memcpy(reserve(&outbox, 3), "abc", 3);
  kvf_outbox_commit(&outbox, 3);
  memcpy(reserve(&outbox, 5), "defgh", 5);
  kvf_outbox_commit(&outbox, 5);
  assert_int_equal(outbox.bytes, 8);
  assert_memory_equal(outbox.data, "abcdefgh", 8);
  kvf_outbox_free(&outbox);
}

TEST(what_is_not_committed_does_not_count)
{
  kvf_outbox outbox = {0};
  (void)reserve(&outbox, 100);
  assert_int_equal(outbox.bytes, 0);
  memcpy(reserve(&outbox, 100), "ab", 2);
  kvf_outbox_commit(&outbox, 2);
  assert_int_equal(outbox.bytes, 2);
  kvf_outbox_free(&outbox);
}

/* P6: a peer that asks and does not read. */
TEST(refuses_past_its_limit)
{
  kvf_outbox outbox = {0};
  uint8_t *room = NULL;
  assert_int_equal(kvf_outbox_reserve(&outbox, KVF_OUTBOX_BYTES_MAX + 1, &room), KVF_LIMIT);
  assert_int_equal(kvf_outbox_reserve(&outbox, SIZE_MAX, &room), KVF_LIMIT);
  (void)reserve(&outbox, KVF_OUTBOX_BYTES_MAX);
  kvf_outbox_commit(&outbox, KVF_OUTBOX_BYTES_MAX - 10);
  (void)reserve(&outbox, 10);
  assert_int_equal(kvf_outbox_reserve(&outbox, 11, &room), KVF_LIMIT);
  assert_int_equal(kvf_outbox_reserve(&outbox, SIZE_MAX, &room), KVF_LIMIT);
  assert_int_equal(outbox.bytes, KVF_OUTBOX_BYTES_MAX - 10);
  assert_null(room);
  kvf_outbox_free(&outbox);
}

/* An idle connection keeps a page at most. */
TEST(clearing_gives_large_buffers_back)
{
  kvf_outbox outbox = {0};
  (void)reserve(&outbox, 10);
  kvf_outbox_commit(&outbox, 10);
  const uint8_t *kept = outbox.data;
  kvf_outbox_clear(&outbox);
  assert_int_equal(outbox.bytes, 0);
  assert_ptr_equal(outbox.data, kept);
  (void)reserve(&outbox, 4097);
  kvf_outbox_commit(&outbox, 4097);
  kvf_outbox_clear(&outbox);
  assert_int_equal(outbox.bytes, 0);
  assert_int_equal(outbox.capacity, 0);
  assert_null(outbox.data);
  (void)reserve(&outbox, 1);
  kvf_outbox_free(&outbox);
  kvf_outbox_free(&outbox);
}
