/* Pages without parts: each region is one. */

#include "base/prng.h"
#include "plan/pages.h"
#include "test.h"

/* Addresses are never used: regions may lie anywhere. */
#define BASE(i) ((void *)(uintptr_t)(0x10000000u * ((i) + 1)))

static const kvf_region local_regions[] = {
    {BASE(0), 4096, 4096, 100, 4, 8, 0, KVF_MEMORY_HOST, 0},
    {BASE(1), 2048, 1024, 50, 4, 8, 1, KVF_MEMORY_HOST, 0},
    {BASE(2), 512, 512, 100, 4, 8, 0, KVF_MEMORY_HOST, 0},
};
static const kvf_region_layout remote_layouts[] = {
    {8192, 8192, 80, 8, 8, 0, 0},
    {2048, 2048, 40, 8, 8, 1, 0},
    {1024, 1024, 80, 8, 8, 0, 0},
};

static kvf_pair pairs[3];
static kvf_plan plan;
static char message[KVF_MESSAGE_BYTES_MAX];

static kvf_status make_plan(const kvf_region *local, uint32_t local_count, const kvf_region_layout *remote,
                            uint32_t remote_count)
{
  kvf_region_layout layouts[3];
  for (uint32_t i = 0; i < local_count; i++) {
    layouts[i] = kvf_region_layout_of(&local[i]);
  }
  const kvf_pages here = {.regions = layouts, .regions_count = local_count};
  const kvf_pages there = {.regions = remote, .regions_count = remote_count};
  return kvf_plan_make(&plan, pairs, &here, &there, message);
}

static kvf_chunk chunk_in(const kvf_transfer *moved, const kvf_region *local, const kvf_region_layout *remote,
                          uint32_t count)
{
  assert_int_equal(make_plan(local, count, remote, count), KVF_OK);
  return (kvf_chunk){moved, &plan, &plan.selection, local};
}

static kvf_transfer transfer; /* of chunk_of() */

static kvf_chunk chunk_of(const kvf_transfer_item *items, uint32_t count)
{
  transfer = (kvf_transfer){.items = items, .items_count = count, .remote_head = 4, .local_head = 0, .heads = 4};
  return chunk_in(&transfer, local_regions, remote_layouts, 3);
}

static void assert_segment(const kvf_segment *segment, uint32_t region, uint64_t local_offset, uint64_t remote_offset,
                           uint64_t bytes)
{
  assert_int_equal(segment->local_region, region);
  assert_int_equal(segment->remote_region, region);
  assert_int_equal(segment->local_offset, local_offset);
  assert_int_equal(segment->remote_offset, remote_offset);
  assert_int_equal(segment->bytes, bytes);
}

static void assert_incompatible(const kvf_region_layout *remote, const char *named)
{
  assert_int_equal(make_plan(local_regions, 3, remote, 3), KVF_INCOMPATIBLE);
  if (strstr(message, named) == NULL) {
    fail_msg("\"%s\" does not name %s", message, named);
  }
}

TEST(incompatible_layouts_are_named)
{
  assert_int_equal(make_plan(local_regions, 3, remote_layouts, 3), KVF_OK);
  assert_int_equal(make_plan(local_regions, 3, remote_layouts, 2), KVF_INCOMPATIBLE);
  assert_string_equal(message, "regions: 3 here, 2 there");

  kvf_region_layout remote[3];
  memcpy(remote, remote_layouts, sizeof(remote));
  remote[2].group = 1;
  assert_incompatible(remote, "region 2: group is 0 here, 1 there");
  memcpy(remote, remote_layouts, sizeof(remote));
  remote[1].heads_total = 16;
  assert_incompatible(remote, "region 1: heads_total is 8 here, 16 there");
  memcpy(remote, remote_layouts, sizeof(remote));
  remote[0].block_bytes = 4096;
  assert_incompatible(remote, "region 0: head_bytes (block_bytes / heads) is 1024 here, 512 there");
}

TEST(layouts_without_sense_are_refused)
{
  kvf_region_layout remote[7][3];
  for (size_t i = 0; i < 7; i++) {
    memcpy(remote[i], remote_layouts, sizeof(remote_layouts));
  }
  remote[0][1].blocks = 0;
  remote[1][1].heads = 0;
  remote[2][1].heads = 9;
  remote[3][1].block_bytes = 0;
  remote[4][1].block_bytes = 2047;
  remote[5][1].stride_bytes = 2047;
  remote[6][1].stride_bytes = UINT64_MAX / 2;
  for (size_t i = 0; i < 7; i++) {
    assert_incompatible(remote[i], "region 1 of the peer is invalid");
  }
}

static void assert_item(kvf_transfer_item item, kvf_status expected)
{
  kvf_chunk chunk = chunk_of(&item, 1);
  assert_int_equal(kvf_chunk_check(&chunk, NULL), expected);
}

TEST(blocks_and_groups_are_checked)
{
  assert_item((kvf_transfer_item){0, 0, 79, 99}, KVF_OK);
  assert_item((kvf_transfer_item){0, 0, 80, 99}, KVF_INVALID);
  assert_item((kvf_transfer_item){0, 0, 79, 100}, KVF_INVALID);
  assert_item((kvf_transfer_item){0, 0, UINT32_MAX, 0}, KVF_INVALID);
  assert_item((kvf_transfer_item){0, 0, 0, KVF_BLOCK_NONE}, KVF_INVALID);
  assert_item((kvf_transfer_item){1, 0, 39, 49}, KVF_OK);
  assert_item((kvf_transfer_item){1, 0, 40, 49}, KVF_INVALID);
  assert_item((kvf_transfer_item){1, 0, 39, 50}, KVF_INVALID);
  assert_item((kvf_transfer_item){2, 0, 0, 0}, KVF_INVALID);
  assert_item((kvf_transfer_item){UINT32_MAX, 0, 0, 0}, KVF_INVALID);
}

static kvf_status heads_status(uint32_t remote_head, uint32_t local_head, uint32_t heads)
{
  const kvf_transfer_item item = {0, 0, 1, 1};
  kvf_chunk chunk = chunk_of(&item, 1);
  transfer.remote_head = remote_head;
  transfer.local_head = local_head;
  transfer.heads = heads;
  return kvf_chunk_check(&chunk, NULL);
}

TEST(head_ranges_are_checked)
{
  assert_int_equal(heads_status(4, 0, 4), KVF_OK);
  assert_int_equal(heads_status(7, 3, 1), KVF_OK);
  assert_int_equal(heads_status(0, 0, 0), KVF_INVALID);
  assert_int_equal(heads_status(5, 0, 4), KVF_INVALID);
  assert_int_equal(heads_status(4, 1, 4), KVF_INVALID);
  assert_int_equal(heads_status(0, 0, 5), KVF_INVALID);
  assert_int_equal(heads_status(8, 0, 1), KVF_INVALID);
  assert_int_equal(heads_status(UINT32_MAX, 0, 2), KVF_INVALID);
  assert_int_equal(heads_status(0, UINT32_MAX, 2), KVF_INVALID);
}

TEST(size_is_the_sum_of_what_moves)
{
  const kvf_transfer_item items[] = {{0, 0, 1, 1}, {1, 0, 1, 1}};
  kvf_chunk chunk = chunk_of(items, 2);
  uint64_t bytes = 0;
  assert_int_equal(kvf_chunk_check(&chunk, &bytes), KVF_OK);
  assert_int_equal(bytes, 4096 + 512 + 1024);
}

TEST(segments_go_region_by_region_and_item_by_item)
{
  const kvf_transfer_item items[] = {{0, 0, 7, 3}, {1, 0, 2, 5}, {0, 1, 0, 0}};
  kvf_chunk chunk = chunk_of(items, 3);
  kvf_segment_cursor cursor = kvf_segments_begin(&chunk);
  kvf_segment segments[8];
  assert_int_equal(kvf_segments_next(&cursor, segments, 8, UINT64_MAX), 5);
  assert_segment(&segments[0], 0, UINT64_C(3) * 4096, UINT64_C(7) * 8192 + 4096, 4096);
  assert_segment(&segments[1], 0, 0, 4096, 4096);
  assert_segment(&segments[2], 1, UINT64_C(5) * 2048, UINT64_C(2) * 2048 + 1024, 1024);
  assert_segment(&segments[3], 2, UINT64_C(3) * 512, UINT64_C(7) * 1024 + 512, 512);
  assert_segment(&segments[4], 2, 0, 512, 512);
  assert_int_equal(cursor.segments, 5);
  assert_int_equal(kvf_segments_next(&cursor, segments, 8, UINT64_MAX), 0);
  assert_int_equal(kvf_segments_next(&cursor, segments, 8, UINT64_MAX), 0);
}

/* One region, whole blocks of 100 bytes: the remote ones packed, the local ones with this stride. */
static size_t segments_of(const kvf_transfer_item *items, uint32_t count, uint64_t stride_bytes, kvf_segment *out)
{
  const kvf_region local = {BASE(0), stride_bytes, 100, 50, 1, 1, 0, KVF_MEMORY_HOST, 0};
  const kvf_region_layout remote = {100, 100, 50, 1, 1, 0, 0};
  const kvf_transfer whole = {.items = items, .items_count = count, .heads = 1};
  const kvf_chunk chunk = chunk_in(&whole, &local, &remote, 1);
  kvf_segment_cursor cursor = kvf_segments_begin(&chunk);
  return kvf_segments_next(&cursor, out, 8, UINT64_MAX);
}

TEST(neighbours_on_both_sides_are_one_segment)
{
  const kvf_transfer_item items[] = {{0, 0, 10, 20}, {0, 1, 11, 21}, {0, 2, 12, 22}, {0, 3, 14, 23}, {0, 4, 15, 25}};
  kvf_segment segments[8];
  assert_int_equal(segments_of(items, 5, 100, segments), 3);
  assert_segment(&segments[0], 0, 2000, 1000, 300);
  assert_segment(&segments[1], 0, 2300, 1400, 100);
  assert_segment(&segments[2], 0, 2500, 1500, 100);
  assert_int_equal(segments_of(items, 5, 101, segments), 5);
}

TEST(heads_apart_are_not_one_segment)
{
  const kvf_region local = {BASE(0), 400, 400, 10, 4, 8, 0, KVF_MEMORY_HOST, 0};
  const kvf_region_layout remote = {800, 800, 10, 8, 8, 0, 0};
  const kvf_transfer_item items[] = {{0, 0, 1, 1}, {0, 1, 2, 2}};
  const kvf_transfer half = {.items = items, .items_count = 2, .remote_head = 4, .heads = 4};
  const kvf_chunk chunk = chunk_in(&half, &local, &remote, 1);
  kvf_segment_cursor cursor = kvf_segments_begin(&chunk);
  kvf_segment segments[4];
  assert_int_equal(kvf_segments_next(&cursor, segments, 4, UINT64_MAX), 2);
  assert_segment(&segments[0], 0, 400, 1200, 400);
  assert_segment(&segments[1], 0, 800, 2000, 400);
}

TEST(a_walk_goes_on_where_it_stopped)
{
  const kvf_transfer_item items[] = {{0, 0, 7, 3}, {1, 0, 2, 5}};
  kvf_chunk chunk = chunk_of(items, 2);
  kvf_segment_cursor cursor = kvf_segments_begin(&chunk);
  kvf_segment segments[2];
  assert_int_equal(kvf_segments_next(&cursor, segments, 0, 100), 0);
  assert_int_equal(kvf_segments_next(&cursor, segments, 2, 0), 0);
  assert_int_equal(kvf_segments_next(&cursor, segments, 2, 4000), 1);
  assert_segment(&segments[0], 0, UINT64_C(3) * 4096, UINT64_C(7) * 8192 + 4096, 4000);
  assert_int_equal(kvf_segments_next(&cursor, segments, 2, 100), 2);
  assert_segment(&segments[0], 0, UINT64_C(3) * 4096 + 4000, UINT64_C(7) * 8192 + 4096 + 4000, 96);
  assert_segment(&segments[1], 1, UINT64_C(5) * 2048, UINT64_C(2) * 2048 + 1024, 4);
  assert_int_equal(kvf_segments_next(&cursor, segments, 1, UINT64_MAX), 1);
  assert_segment(&segments[0], 1, UINT64_C(5) * 2048 + 4, UINT64_C(2) * 2048 + 1024 + 4, 1020);
  assert_int_equal(kvf_segments_next(&cursor, segments, 1, UINT64_MAX), 1);
  assert_segment(&segments[0], 2, UINT64_C(3) * 512, UINT64_C(7) * 1024 + 512, 512);
  assert_int_equal(kvf_segments_next(&cursor, segments, 1, UINT64_MAX), 0);
  assert_int_equal(cursor.segments, 3); /* one that was split is one */
}

/* Each byte of the walk, however it is split: where it goes and comes from. */
typedef struct placed_byte {
  uint64_t local_offset;
  uint64_t remote_offset;
  uint32_t region;
} placed_byte;

static size_t spread(const kvf_chunk *chunk, placed_byte *out, kvf_prng *prng)
{
  kvf_segment_cursor cursor = kvf_segments_begin(chunk);
  kvf_segment segments[16];
  size_t bytes = 0;
  for (;;) {
    size_t capacity = prng == NULL ? 16 : 1 + kvf_prng_below(prng, 16);
    uint64_t bytes_max = prng == NULL ? UINT64_MAX : 1 + kvf_prng_below(prng, 5000);
    size_t count = kvf_segments_next(&cursor, segments, capacity, bytes_max);
    if (count == 0) {
      return bytes;
    }
    uint64_t taken = 0;
    for (size_t i = 0; i < count; i++) {
      for (uint64_t byte = 0; byte < segments[i].bytes; byte++) {
        out[bytes++] =
            (placed_byte){segments[i].local_offset + byte, segments[i].remote_offset + byte, segments[i].local_region};
      }
      taken += segments[i].bytes;
    }
    assert_true(taken <= bytes_max);
  }
}

TEST(a_split_walk_is_the_same_walk)
{
  kvf_prng prng = {1};
  kvf_transfer_item items[10];
  for (uint32_t i = 0; i < 10; i++) {
    uint32_t block = (uint32_t)kvf_prng_below(&prng, 4) + i;
    items[i] = (kvf_transfer_item){i % 2, i, block, block};
  }
  kvf_chunk chunk = chunk_of(items, 10);
  uint64_t bytes = 0;
  assert_int_equal(kvf_chunk_check(&chunk, &bytes), KVF_OK);
  placed_byte *whole = allocate(bytes * sizeof(*whole));
  placed_byte *split = allocate(bytes * sizeof(*split));
  assert_int_equal(spread(&chunk, whole, NULL), bytes);
  for (int i = 0; i < 50; i++) {
    memset(split, 0, bytes * sizeof(*split));
    assert_int_equal(spread(&chunk, split, &prng), bytes);
    for (size_t byte = 0; byte < bytes; byte++) {
      assert_true(whole[byte].local_offset == split[byte].local_offset &&
                  whole[byte].remote_offset == split[byte].remote_offset && whole[byte].region == split[byte].region);
    }
  }
  free(whole);
  free(split);
}
