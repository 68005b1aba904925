/* Making checksums and judging by them, of pages as regions and as parts; and what a peer says of its own. */
#include "transport/checksums.h"

#include "base/checksum.h"
#include "test.h"
#include "transport/paging.h"

/* Two groups; the first has regions of other strides, heads' sizes and, to be worse, numbers of blocks. */
#define BLOCKS 6
static uint8_t pools[3][BLOCKS * 512];
static const kvf_region regions[] = {
    {pools[0], 512, 400, BLOCKS, 4, 8, 0, KVF_MEMORY_HOST, 0},
    {pools[1], 300, 240, BLOCKS, 4, 8, 1, KVF_MEMORY_HOST, 0},
    {pools[2], 64, 64, BLOCKS - 1, 4, 8, 0, KVF_MEMORY_HOST, 0},
};
/* The same as parts: the first with gaps and fewer heads, the last replicated. */
static const kvf_part parts[] = {
    {.layer = 7,
     .kind = KVF_PART_KV,
     .offset_bytes = 24,
     .unit_bytes = 60,
     .head_bytes = 100,
     .rows = 1,
     .block_tokens = 16,
     .heads = 2,
     .heads_total = 4},
    {.layer = 8, .region = 1, .group = 1, .unit_bytes = 60, .head_bytes = 60, .rows = 1, .heads = 4, .heads_total = 8},
    {.layer = 9,
     .kind = KVF_PART_LATENT,
     .region = 2,
     .unit_bytes = 64,
     .rows = 1,
     .block_tokens = 16,
     .heads = 1,
     .heads_total = 1},
};
static const kvf_layout as_regions;
static const kvf_layout as_parts = {.parts = parts, .parts_count = 3, .share = {.heads = 4, .heads_total = 8}};

static kvf_region sums[KVF_GROUPS_MAX];
static kvf_checksums_layout rows;
static kvf_paging *pages;

static kvf_pages pages_of(const kvf_layout *layout)
{
  static kvf_region_layout layouts[3];
  for (uint32_t i = 0; i < 3; i++) {
    layouts[i] = kvf_region_layout_of(&regions[i]);
    if (layout->parts != NULL) {
      layouts[i].heads = layouts[i].heads_total = 1;
      layouts[i].group = 0;
    }
  }
  return (kvf_pages){.regions = layouts, .regions_count = 3, .layout = *layout};
}

static int open_checksums(void **state)
{
  const kvf_layout *layout = *state;
  const kvf_pages of = pages_of(layout);
  char message[KVF_MESSAGE_BYTES_MAX];
  for (size_t i = 0; i < sizeof(pools); i++) {
    ((uint8_t *)pools)[i] = (uint8_t)(i * 7 + i / 251);
  }
  assert_int_equal(kvf_checksums_lay_out(&of, &rows, message), KVF_OK);
  assert_int_equal(kvf_checksums_open(&rows, sums), KVF_OK);
  const kvf_transport_memory memory = {.regions = regions,
                                       .regions_count = 3,
                                       .layout = *layout,
                                       .checksums_count = rows.count,
                                       .checksums = sums,
                                       .checksums_read = sums};
  pages = kvf_paging_of_memory(&memory);
  assert_non_null(pages);
  return 0;
}

static int close_checksums(void **state)
{
  (void)state;
  free(pages);
  kvf_checksums_close(sums, rows.count);
  assert_null(sums[0].base);
  return 0;
}

static void make(uint32_t group, uint32_t block)
{
  assert_true(kvf_checksums_make(&pages->plan, pages->served, group, block));
}

static kvf_chunk chunk_of(const kvf_transfer *transfer)
{
  return kvf_chunk_of(&pages->plan, transfer, pages->local);
}

static void rows_have_a_sum_for_each_head(void **state)
{
  const bool has_parts = *state == &as_parts;
  const uint32_t of_first = has_parts ? 2 : 4;
  const uint32_t of_last = has_parts ? 1 : 4;
  assert_int_equal(rows.count, 2);
  assert_int_equal(rows.first_region, 3);
  assert_int_equal(rows.rows[0].blocks, BLOCKS - 1);
  assert_int_equal(rows.rows[0].block_bytes, (of_first + of_last) * 8);
  assert_int_equal(rows.rows[1].blocks, BLOCKS);
  assert_int_equal(rows.rows[1].block_bytes, 4 * 8);
  assert_int_equal(rows.offsets[0], 0);
  assert_int_equal(rows.offsets[1], 0);
  assert_int_equal(rows.offsets[2], of_first * 8);
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(rows.rows[i].group, i);
    assert_int_equal(rows.rows[i].stride_bytes, rows.rows[i].block_bytes);
    assert_int_equal(sums[i].block_bytes, rows.rows[i].block_bytes);
    assert_int_equal(sums[i].blocks, rows.rows[i].blocks);
    assert_true(kvf_region_layout_is_valid(&rows.rows[i]));
  }
}

static uint64_t stored(uint32_t group, uint32_t block, uint32_t at)
{
  uint64_t sum;
  memcpy(&sum, (uint8_t *)sums[group].base + block * sums[group].stride_bytes + at * sizeof(sum), sizeof(sum));
  return sum;
}

static void parts_follow_each_other(void **state)
{
  const bool has_parts = *state == &as_parts;
  make(0, 2);
  for (uint32_t head = 0; head < 2; head++) {
    const size_t at = 1024 + (has_parts ? 24u : 0u) + (size_t)head * 100;
    assert_int_equal(stored(0, 2, head), kvf_checksum(&pools[0][at], has_parts ? 60 : 100));
    assert_int_equal(stored(0, 1, head), 0);
    assert_int_equal(stored(1, 2, head), 0);
  }
  if (has_parts) {
    assert_int_equal(stored(0, 2, 2), kvf_checksum(&pools[2][128], 64));
  } else {
    assert_int_equal(stored(0, 2, 4 + 3), kvf_checksum(&pools[2][128 + 48], 16));
  }
  make(1, BLOCKS - 1);
  assert_int_equal(stored(1, BLOCKS - 1, 3), kvf_checksum(pools[1] + (size_t)(BLOCKS - 1) * 300 + 180, 60));
}

static uint32_t compared(const kvf_chunk *chunk)
{
  kvf_read_result result = {.sample = {.entry = {.word = kvf_fence_word_live(chunk->transfer->lease.id)}}};
  kvf_checksums_judge(chunk, &result);
  assert_int_equal(result.status, result.verified == chunk->transfer->items_count ? KVF_OK : KVF_CHECKSUM);
  return result.verified;
}

/* Of the two heads in the middle: as parts, these are one head of the first part, and nothing of the last. */
static bool is_read(bool has_parts, uint32_t region, size_t offset)
{
  if (!has_parts || region == 1) {
    const size_t head_bytes = regions[region].block_bytes / 4;
    return offset >= head_bytes && offset < 3 * head_bytes;
  }
  return region == 0 && offset >= 124 && offset < 184;
}

static void every_byte_that_is_read_counts(void **state)
{
  const bool has_parts = *state == &as_parts;
  const kvf_transfer_item items[] = {{0, 0, 3, 3}, {1, 0, 5, 5}, {0, 1, 1, 1}};
  const kvf_transfer transfer = {.items = items, .items_count = 3, .remote_head = 1, .local_head = 1, .heads = 2};
  const kvf_chunk chunk = chunk_of(&transfer);
  assert_int_equal(kvf_chunk_check(&chunk, NULL), KVF_OK);
  make(0, 3);
  make(1, 5);
  assert_int_equal(compared(&chunk), 2);
  make(0, 1);
  assert_int_equal(compared(&chunk), 3);
  for (uint32_t region = 0; region < 3; region++) {
    for (size_t i = 0; i < sizeof(pools[region]); i++) {
      size_t block = i / regions[region].stride_bytes;
      uint32_t expected = 3;
      if (is_read(has_parts, region, i % regions[region].stride_bytes) && region == 1) {
        expected = block == 5 ? 1 : 3;
      } else if (is_read(has_parts, region, i % regions[region].stride_bytes)) {
        expected = block == 3 ? 0 : block == 1 ? 2 : 3;
      }
      pools[region][i] ^= 4;
      assert_int_equal(compared(&chunk), expected);
      pools[region][i] ^= 4;
    }
  }
}

/* A result is judged only if the bytes are the lease's. */
static void only_live_bytes_are_judged(void **state)
{
  (void)state;
  const kvf_transfer_item items[] = {{1, 0, 0, 0}, {1, 1, 1, 1}};
  const kvf_transfer transfer = {.lease = {.id = 9}, .items = items, .items_count = 2, .heads = 4};
  const kvf_chunk chunk = chunk_of(&transfer);
  make(1, 0);
  kvf_read_result live = {.status = KVF_OK, .sample = {.entry = {kvf_fence_word_live(9), 0}}};
  kvf_read_result over = {.status = KVF_OK, .sample = {.entry = {kvf_fence_word_ended(9), 0}}};
  kvf_read_result failed = {.status = KVF_PEER_DOWN, .sample = live.sample};
  kvf_read_result plain = live;
  kvf_checksums_judge(&chunk, &live);
  assert_int_equal(live.status, KVF_CHECKSUM);
  assert_int_equal(live.verified, 1);
  kvf_checksums_judge(&chunk, &over);
  assert_int_equal(over.status, KVF_OK);
  assert_int_equal(over.verified, 0);
  kvf_checksums_judge(&chunk, &failed);
  assert_int_equal(failed.status, KVF_PEER_DOWN);
  const kvf_read_selection without = kvf_read_selection_whole(3);
  const kvf_chunk unverified = {&transfer, &pages->plan, &without, pages->local};
  kvf_checksums_judge(&unverified, &plain);
  assert_int_equal(plain.status, KVF_OK);
  assert_int_equal(plain.verified, 0);
  make(1, 1);
  live.status = KVF_OK;
  kvf_checksums_judge(&chunk, &live);
  assert_int_equal(live.status, KVF_OK);
  assert_int_equal(live.verified, 2);
}

/* A sender's: it has them, and whoever reads may want none. */
static void who_wants_none_is_sent_none(void **state)
{
  const bool has_parts = *state == &as_parts;
  const kvf_transfer_item item = {0};
  const kvf_transfer transfer = {.items = &item, .items_count = 1, .heads = 4};
  const kvf_read_selection without = kvf_read_selection_whole(has_parts ? 10 : 3);
  const kvf_chunk with = chunk_of(&transfer);
  const kvf_chunk plain = {&transfer, &pages->plan, &without, pages->served};
  uint64_t bytes[2];
  assert_int_equal(kvf_chunk_check(&with, &bytes[0]), KVF_OK);
  assert_int_equal(kvf_chunk_check(&plain, &bytes[1]), KVF_OK);
  assert_int_equal(bytes[0] - bytes[1], rows.rows[0].block_bytes);
  kvf_segment_cursor cursor = kvf_segments_begin(&plain);
  kvf_segment segment;
  while (kvf_segments_next(&cursor, &segment, 1, UINT64_MAX) == 1) {
    assert_true(segment.remote_region < 3);
    bytes[1] -= segment.bytes;
  }
  assert_int_equal(bytes[1], 0);
}

/* ---- what has none ---- */

static kvf_status lay_out(const kvf_region_layout *layouts, uint32_t count)
{
  const kvf_pages of = {.regions = layouts, .regions_count = count};
  kvf_checksums_layout out;
  char message[KVF_MESSAGE_BYTES_MAX];
  return kvf_checksums_lay_out(&of, &out, message);
}

static void rows_too_long_are_refused(void **state)
{
  (void)state;
  kvf_region_layout many[2];
  for (uint32_t i = 0; i < 2; i++) {
    many[i] = (kvf_region_layout){UINT32_C(1) << 28, UINT32_C(1) << 28, 1, UINT32_C(1) << 28, UINT32_C(1) << 28, 0, 0};
  }
  assert_true(kvf_region_layouts_are_valid(many, 2));
  assert_int_equal(lay_out(many, 1), KVF_OK);
  assert_int_equal(lay_out(many, 2), KVF_LIMIT);
  static kvf_region_layout more[513]; /* rows of 4 GiB and then as much as one head has in 8 */
  for (uint32_t i = 0; i < 513; i++) {
    more[i] = (kvf_region_layout){UINT32_C(1) << 20, UINT32_C(1) << 20, 1, UINT32_C(1) << 20, UINT32_C(1) << 20, 0, 0};
  }
  assert_int_equal(lay_out(more, 511), KVF_OK);
  assert_int_equal(lay_out(more, 513), KVF_LIMIT);
  many[0].blocks = UINT32_MAX;
  many[0].stride_bytes = many[0].block_bytes = many[0].heads = 65535; /* rows of 8 times the bytes */
  assert_true(kvf_region_layout_is_valid(&many[0]));
  assert_int_equal(lay_out(many, 1), KVF_LIMIT);
}

typedef struct refused_layout {
  kvf_part parts[3];
  kvf_layout layout;
  kvf_pages pages;
} refused_layout;

static void make_refused(refused_layout *out, uint32_t which)
{
  memcpy(out->parts, parts, sizeof(parts));
  out->layout = as_parts;
  out->layout.parts = out->parts;
  if (which == 0) {
    out->parts[2].rows = 2;
    out->parts[2].unit_bytes = out->parts[2].row_bytes = 32;
  } else if (which == 1) {
    out->parts[2].region = 0;
    out->parts[2].offset_bytes = 300;
  } else {
    out->layout.deal = (kvf_deal){.ranks = 2, .tokens = 16};
  }
  out->pages = pages_of(&out->layout);
  assert_true(kvf_pages_are_valid(&out->pages));
}

static void what_has_no_checksums_is_refused_by_name(void **state)
{
  (void)state;
  static const char *const whys[] = {
      "no checksums of part 2 (layer 9, region 2): it has more rows than one",
      "no checksums of part 2 (layer 9, region 0): another part is in its region",
      "no checksums of part 0 (layer 7, region 0): tokens are dealt to ranks",
  };
  for (uint32_t i = 0; i < 3; i++) {
    refused_layout refused;
    kvf_checksums_layout out;
    char message[KVF_MESSAGE_BYTES_MAX];
    make_refused(&refused, i);
    assert_int_equal(kvf_checksums_lay_out(&refused.pages, &out, message), KVF_INVALID);
    assert_string_equal(message, whys[i]);
  }
}

/* A peer that says it has checksums, and cannot: it is read without. */
static void expect_none(const kvf_pages *peer, uint32_t splits)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  const kvf_link_spec spec = {.remote = peer->regions, .remote_count = 3, .layout = peer->layout};
  kvf_paging *theirs = kvf_paging_of_link(&spec);
  assert_non_null(theirs);
  assert_int_equal(kvf_paging_pair(theirs, pages, message), KVF_OK);
  assert_int_equal(theirs->plan.selection.splits[0], splits);
  assert_int_equal(kvf_paging_lay_out_checksums(theirs), 0);
  assert_false(kvf_paging_agree_on_checksums(theirs, pages, true));
  assert_int_equal(theirs->plan.pairs_count, 3);
  assert_int_equal(theirs->checksums_count, 0);
  free(theirs);
}

static void peers_that_cannot_have_any(void **state)
{
  (void)state;
  refused_layout peer;
  make_refused(&peer, 1);
  expect_none(&peer.pages, 1);
  make_refused(&peer, 2);
  expect_none(&peer.pages, 2);

  /* Blocks of two rows, each a block of ours. */
  make_refused(&peer, 1);
  peer.parts[0].offset_bytes = 0;
  for (uint32_t i = 0; i < 3; i += 2) {
    peer.parts[i].block_tokens = 32;
    peer.parts[i].rows = 2;
    peer.parts[i].row_bytes = peer.parts[i].unit_bytes;
  }
  peer.parts[0].head_bytes = 120;
  peer.parts[2].offset_bytes = 272;
  expect_none(&peer.pages, 2);
}

/* The part that has fewer blocks is of a layer that the peer has not, but a row of sums is of all parts. */
static void blocks_without_a_row_are_out_of_range(void **state)
{
  (void)state;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_layout layout = as_parts;
  layout.parts_count = 2;
  const kvf_link_spec spec = {.remote = pages_of(&layout).regions, .remote_count = 3, .layout = layout};
  kvf_paging *theirs = kvf_paging_of_link(&spec);
  assert_non_null(theirs);
  assert_int_equal(kvf_paging_pair(theirs, pages, message), KVF_OK);
  assert_true(kvf_paging_agree_on_checksums(theirs, pages, true));
  for (uint32_t block = BLOCKS - 2; block <= BLOCKS - 1; block++) {
    const kvf_transfer_item item = {.group = 0, .remote_block = BLOCKS - 1, .local_block = block};
    const kvf_transfer transfer = {.items = &item, .items_count = 1, .heads = 4};
    const kvf_chunk chunk = kvf_chunk_of(&theirs->plan, &transfer, pages->local);
    assert_int_equal(kvf_chunk_check(&chunk, NULL), block < BLOCKS - 1 ? KVF_OK : KVF_INVALID);
  }
  free(theirs);
}

static uint32_t next_random(void)
{
  static uint64_t number = 12345;
  number = number * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(number >> 33);
}

static bool is_inside(const kvf_paging *of, uint32_t region, uint64_t offset, uint64_t bytes)
{
  const uint64_t size = region < kvf_paging_regions(of) ? kvf_region_layout_bytes(&of->regions[region]) : 0;
  return bytes <= size && offset <= size - bytes;
}

/* Whether all that is read of the peer, and all that is written here, is in bounds; false too: nothing may be read. */
static bool walk(const kvf_paging *theirs)
{
  const kvf_transfer_item items[] = {{0, 0, BLOCKS - 2, BLOCKS - 2}, {1, 1, BLOCKS - 1, BLOCKS - 1}};
  const kvf_transfer transfer = {.items = items, .items_count = 2, .heads = theirs->plan.share.heads};
  const kvf_chunk chunk = kvf_chunk_of(&theirs->plan, &transfer, pages->local);
  uint64_t bytes;
  kvf_segment segment;
  if (kvf_chunk_check(&chunk, &bytes) != KVF_OK) {
    return false;
  }
  kvf_segment_cursor cursor = kvf_segments_begin(&chunk);
  while (kvf_segments_next(&cursor, &segment, 1, UINT64_MAX) == 1) {
    assert_true(is_inside(theirs, segment.remote_region, segment.remote_offset, segment.bytes));
    assert_true(is_inside(pages, segment.local_region, segment.local_offset, segment.bytes));
    bytes -= segment.bytes;
  }
  assert_int_equal(bytes, 0);
  return true;
}

/* A peer may say anything of its pages, where its checksums lie is made of. */
static void what_a_peer_says_stays_in_bounds(void **state)
{
  uint32_t walked = 0;
  for (uint32_t i = 0; i < 20000; i++) {
    kvf_part told_parts[3];
    kvf_region_layout told_regions[3];
    kvf_layout layout = *(const kvf_layout *)*state;
    memcpy(told_parts, parts, sizeof(parts));
    memcpy(told_regions, pages_of(&layout).regions, sizeof(told_regions));
    for (uint32_t spoiled = next_random() % 3; spoiled > 0; spoiled--) {
      const bool is_part = next_random() % 2 == 0;
      uint32_t *fields = is_part ? (uint32_t *)told_parts : (uint32_t *)told_regions;
      const size_t count = (is_part ? sizeof(told_parts) : sizeof(told_regions)) / sizeof(*fields);
      fields[next_random() % count] = next_random() % 4 == 0 ? next_random() : next_random() % 8;
    }
    layout.parts = layout.parts == NULL ? NULL : told_parts;
    const kvf_link_spec spec = {.remote = told_regions, .remote_count = 3, .layout = layout};
    char message[KVF_MESSAGE_BYTES_MAX];
    kvf_paging *theirs = kvf_paging_of_link(&spec);
    assert_non_null(theirs);
    const kvf_pages told = theirs->pages;
    if (kvf_pages_are_valid(&told) && kvf_paging_pair(theirs, pages, message) == KVF_OK) {
      const uint32_t count = kvf_paging_lay_out_checksums(theirs);
      assert_int_equal(kvf_paging_agree_on_checksums(theirs, pages, true), count > 0);
      walked += count > 0 && walk(theirs);
    }
    free(theirs);
  }
  assert_true(walked > 5000); /* what was not spoiled, at least */
}

#define ON(name, layout) {#name "/" #layout, name, open_checksums, close_checksums, (void *)(uintptr_t)&(layout)}
#define BOTH(name) ON(name, as_regions), ON(name, as_parts)

int main(void)
{
  const struct CMUnitTest tests[] = {
      BOTH(rows_have_a_sum_for_each_head),
      BOTH(parts_follow_each_other),
      BOTH(every_byte_that_is_read_counts),
      BOTH(only_live_bytes_are_judged),
      BOTH(who_wants_none_is_sent_none),
      BOTH(what_a_peer_says_stays_in_bounds),
      ON(blocks_without_a_row_are_out_of_range, as_parts),
      ON(peers_that_cannot_have_any, as_parts),
      cmocka_unit_test(rows_too_long_are_refused),
      cmocka_unit_test(what_has_no_checksums_is_refused_by_name),
  };
  return cmocka_run_group_tests_name("transport/checksums", tests, NULL, NULL);
}
