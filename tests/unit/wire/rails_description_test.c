/* What several rails say, as bytes; and bytes that are missing, or too many. */
#include "wire/rails_description.h"

#include "wire_test.h"

#define ROOM 512

static const uint8_t bytes_of_all[KVF_RAILS_MAX + 1] = "abcdefghijklmnopq";

/* The i-th says i + 1 bytes, or fewer near the end of what there is. */
static kvf_rails_description good(uint32_t count)
{
  kvf_rails_description description = {.count = count};
  for (uint32_t i = 0; i < count && i < KVF_RAILS_MAX; i++) {
    description.each[i].data = bytes_of_all + i;
    description.each[i].bytes = (uint16_t)(i < 8 ? i + 1 : KVF_RAILS_MAX - i);
  }
  return description;
}

static size_t written(uint32_t count, uint8_t out[ROOM])
{
  const kvf_rails_description description = good(count);
  size_t bytes = 0;
  assert_int_equal(kvf_rails_description_write(&description, out, ROOM, &bytes), KVF_OK);
  return bytes;
}

static void check_round_trip(uint32_t count)
{
  const kvf_rails_description in = good(count);
  uint8_t bytes[ROOM];
  kvf_rails_description out;
  assert_int_equal(kvf_rails_description_read(bytes, written(count, bytes), &out), KVF_OK);
  assert_int_equal(out.count, count);
  for (uint32_t i = 0; i < count; i++) {
    assert_int_equal(out.each[i].bytes, in.each[i].bytes);
    assert_memory_equal(out.each[i].data, in.each[i].data, in.each[i].bytes);
    assert_true(out.each[i].data > bytes && out.each[i].data < bytes + ROOM);
  }
}

TEST(what_is_written_is_read)
{
  check_round_trip(1);
  check_round_trip(2);
  check_round_trip(KVF_RAILS_MAX);
}

TEST(its_bytes_are_as_documented)
{
  uint8_t bytes[ROOM];
  const uint8_t two[] = {2, 1, 0, 'a', 2, 0, 'b', 'c'};
  assert_int_equal(written(2, bytes), sizeof(two));
  assert_memory_equal(bytes, two, sizeof(two));
}

TEST(a_long_one_has_both_bytes_of_its_length)
{
  static uint8_t data[300];
  static uint8_t bytes[ROOM];
  kvf_rails_description description = {.count = 1, .each = {{data, sizeof(data)}}};
  size_t used = 0;
  fill(data, sizeof(data), 3);
  assert_int_equal(kvf_rails_description_write(&description, bytes, ROOM, &used), KVF_OK);
  assert_int_equal(used, 1 + 2 + sizeof(data));
  assert_int_equal(kvf_rails_description_read(bytes, used, &description), KVF_OK);
  assert_int_equal(description.each[0].bytes, sizeof(data));
  assert_memory_equal(description.each[0].data, data, sizeof(data));
}

static kvf_status read_only(const void *body, size_t body_bytes)
{
  kvf_rails_description out;
  return kvf_rails_description_read(body, body_bytes, &out);
}

TEST(no_byte_may_be_missing_or_too_many)
{
  uint8_t bytes[ROOM];
  check_length(read_only, bytes, written(1, bytes));
  check_length(read_only, bytes, written(3, bytes));
  check_length(read_only, bytes, written(KVF_RAILS_MAX, bytes));
}

TEST(none_and_too_many_are_refused)
{
  uint8_t bytes[1 + 3 * (KVF_RAILS_MAX + 1)] = {KVF_RAILS_MAX + 1};
  for (size_t i = 0; i <= KVF_RAILS_MAX; i++) {
    bytes[1 + 3 * i] = 1;
  }
  assert_int_equal(read_only(bytes, sizeof(bytes)), KVF_PROTOCOL);
  bytes[0] = KVF_RAILS_MAX;
  assert_int_equal(read_only(bytes, sizeof(bytes) - 3), KVF_OK);
  bytes[0] = 0;
  assert_int_equal(read_only(bytes, 1), KVF_PROTOCOL);
  assert_int_equal(read_only(NULL, 0), KVF_PROTOCOL);
}

TEST(one_that_says_nothing_is_refused)
{
  const uint8_t only[] = {1, 0, 0};
  const uint8_t first[] = {2, 0, 0, 1, 0, 'a'};
  const uint8_t last[] = {2, 1, 0, 'a', 0, 0};
  assert_int_equal(read_only(only, sizeof(only)), KVF_PROTOCOL);
  assert_int_equal(read_only(first, sizeof(first)), KVF_PROTOCOL);
  assert_int_equal(read_only(last, sizeof(last)), KVF_PROTOCOL);
}

TEST(no_room_no_description)
{
  const kvf_rails_description description = good(3);
  uint8_t bytes[ROOM];
  const size_t count = written(3, bytes);
  for (size_t room = 0; room <= count; room++) {
    uint8_t *exact = exact_room(room);
    size_t used = 77;
    assert_int_equal(kvf_rails_description_write(&description, exact, room, &used), room < count ? KVF_LIMIT : KVF_OK);
    assert_int_equal(used, room < count ? 77 : count);
    free(exact);
  }
}

TEST(what_is_over_a_limit_is_not_written)
{
  const uint32_t counts[] = {0, KVF_RAILS_MAX + 1, UINT32_MAX};
  for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
    const kvf_rails_description description = good(counts[i]);
    uint8_t bytes[ROOM];
    size_t used = 77;
    assert_int_equal(kvf_rails_description_write(&description, bytes, ROOM, &used), KVF_LIMIT);
    assert_int_equal(used, 77);
  }
  kvf_rails_description description = good(3);
  uint8_t bytes[ROOM];
  size_t used = 77;
  description.each[1].bytes = 0;
  assert_int_equal(kvf_rails_description_write(&description, bytes, ROOM, &used), KVF_LIMIT);
  assert_int_equal(used, 77);
}
