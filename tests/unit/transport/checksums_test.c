#include "transport/checksums.h"

#include "base/checksum.h"
#include "test.h"

/* Two groups; the first has regions of other strides, heads' sizes and, to be worse, numbers of blocks. */
#define BLOCKS 6
static uint8_t pools[3][BLOCKS * 512];
static const kvf_region regions[] = {
    {pools[0], 512, 400, BLOCKS, 4, 8, 0, KVF_MEMORY_HOST, 0},
    {pools[1], 300, 240, BLOCKS, 4, 8, 1, KVF_MEMORY_HOST, 0},
    {pools[2], 64, 64, BLOCKS - 1, 4, 8, 0, KVF_MEMORY_HOST, 0},
};
static kvf_region all[3 + KVF_GROUPS_MAX]; /* regions, then their checksums */
static kvf_region_layout layouts[3 + KVF_GROUPS_MAX];
static kvf_pair pairs[3 + KVF_GROUPS_MAX];
static kvf_plan plan;
static uint32_t checksums_count;

static int open_checksums(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof(pools); i++) {
    ((uint8_t *)pools)[i] = (uint8_t)(i * 7 + i / 251);
  }
  memcpy(all, regions, sizeof(regions));
  assert_int_equal(kvf_checksums_open(regions, 3, &all[3], &checksums_count), KVF_OK);
  for (uint32_t i = 0; i < 3 + checksums_count; i++) {
    layouts[i] = kvf_region_layout_of(&all[i]);
  }
  kvf_plan_own(&plan, pairs, &(kvf_pages){.regions = layouts, .regions_count = 3 + checksums_count});
  return 0;
}

static int close_checksums(void **state)
{
  (void)state;
  kvf_checksums_close(&all[3], checksums_count);
  assert_null(all[3].base);
  return 0;
}

#define SET_TEST(name) TEST_WITH(name, open_checksums, close_checksums)

SET_TEST(checksums_are_laid_out_like_a_region)
{
  kvf_region_layout out[KVF_GROUPS_MAX];
  assert_int_equal(kvf_checksums_layouts(layouts, 3, out), 2);
  assert_int_equal(checksums_count, 2);
  assert_int_equal(out[0].blocks, BLOCKS - 1);
  assert_int_equal(out[0].heads, 4);
  assert_int_equal(out[0].heads_total, 8);
  assert_int_equal(out[0].block_bytes, 4 * 2 * 8);
  assert_int_equal(out[1].blocks, BLOCKS);
  assert_int_equal(out[1].block_bytes, 4 * 8);
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(out[i].group, i);
    assert_int_equal(out[i].stride_bytes, out[i].block_bytes);
    assert_int_equal(layouts[3 + i].block_bytes, out[i].block_bytes);
    assert_int_equal(layouts[3 + i].blocks, out[i].blocks);
    assert_int_equal(layouts[3 + i].group, i);
  }
  assert_true(kvf_region_layouts_are_valid(layouts, 5));
}

static uint32_t compared(const kvf_chunk *chunk, uint32_t count)
{
  kvf_read_result result = {.sample = {.entry = {.word = kvf_fence_word_live(chunk->transfer->lease.id)}}};
  kvf_checksums_judge(chunk, count, &result);
  assert_int_equal(result.status, result.verified == chunk->transfer->items_count ? KVF_OK : KVF_CHECKSUM);
  return result.verified;
}

TEST(rows_too_long_are_refused)
{
  kvf_region_layout out[KVF_GROUPS_MAX];
  kvf_region_layout many[2];
  for (uint32_t i = 0; i < 2; i++) {
    many[i] = (kvf_region_layout){UINT32_C(1) << 28, UINT32_C(1) << 28, 1, UINT32_C(1) << 28, UINT32_C(1) << 28, 0, 0};
  }
  assert_true(kvf_region_layouts_are_valid(many, 2));
  assert_int_equal(kvf_checksums_layouts(many, 1, out), 1);
  assert_int_equal(kvf_checksums_layouts(many, 2, out), 0);
  static kvf_region_layout more[513]; /* rows of 4 GiB and then as much as one head has in 8 */
  for (uint32_t i = 0; i < 513; i++) {
    more[i] = (kvf_region_layout){UINT32_C(1) << 20, UINT32_C(1) << 20, 1, UINT32_C(1) << 20, UINT32_C(1) << 20, 0, 0};
  }
  assert_int_equal(kvf_checksums_layouts(more, 511, out), 1);
  assert_int_equal(kvf_checksums_layouts(more, 513, out), 0);
  many[0].blocks = UINT32_MAX;
  many[0].stride_bytes = many[0].block_bytes = many[0].heads = 65535; /* rows of 8 times the bytes */
  assert_true(kvf_region_layout_is_valid(&many[0]));
  assert_int_equal(kvf_checksums_layouts(many, 1, out), 0);
  const kvf_region too_long[] = {
      {pools, UINT32_MAX, UINT32_C(1) << 29, 1, UINT32_C(1) << 29, UINT32_C(1) << 29, 0, KVF_MEMORY_HOST, 0}};
  uint32_t count = 7;
  kvf_region none[KVF_GROUPS_MAX];
  assert_int_equal(kvf_checksums_open(too_long, 1, none, &count), KVF_LIMIT);
  assert_int_equal(count, 0);
}

static uint64_t stored(uint32_t group, uint32_t block, uint32_t at)
{
  uint64_t sum;
  memcpy(&sum, (uint8_t *)all[3 + group].base + block * all[3 + group].stride_bytes + at * sizeof(sum), sizeof(sum));
  return sum;
}

SET_TEST(heads_are_outermost)
{
  assert_true(kvf_checksums_make(regions, 3, &all[3], 2));
  for (uint32_t head = 0; head < 4; head++) {
    assert_int_equal(stored(0, 2, 2 * head), kvf_checksum(&pools[0][1024 + (size_t)head * 100], 100));
    assert_int_equal(stored(0, 2, 2 * head + 1), kvf_checksum(&pools[2][128 + (size_t)head * 16], 16));
    assert_int_equal(stored(0, 1, 2 * head), 0);
    assert_int_equal(stored(1, 2, head), 0);
  }
  assert_true(kvf_checksums_make(regions, 3, &all[4], BLOCKS - 1));
  assert_int_equal(stored(1, BLOCKS - 1, 3), kvf_checksum(pools[1] + (size_t)(BLOCKS - 1) * 300 + 180, 60));
}

SET_TEST(every_byte_that_is_read_counts)
{
  const kvf_transfer_item items[] = {{0, 0, 3, 3}, {1, 0, 5, 5}, {0, 1, 1, 1}};
  const kvf_transfer transfer = {.items = items, .items_count = 3, .remote_head = 1, .local_head = 1, .heads = 2};
  const kvf_chunk chunk = {&transfer, &plan, &plan.want, all};
  assert_int_equal(kvf_chunk_check(&chunk, NULL), KVF_OK);
  assert_true(kvf_checksums_make(regions, 3, &all[3], 3));
  assert_true(kvf_checksums_make(regions, 3, &all[4], 5));
  assert_int_equal(compared(&chunk, 2), 2);
  assert_true(kvf_checksums_make(regions, 3, &all[3], 1));
  assert_int_equal(compared(&chunk, 2), 3);
  for (uint32_t region = 0; region < 3; region++) {
    uint32_t head_bytes = regions[region].block_bytes / 4;
    for (size_t i = 0; i < sizeof(pools[region]); i++) {
      size_t block = i / regions[region].stride_bytes;
      size_t offset = i % regions[region].stride_bytes;
      bool is_read = offset >= head_bytes && offset < 3 * (size_t)head_bytes;
      uint32_t expected = 3;
      if (is_read && region == 1) {
        expected = block == 5 ? 1 : 3;
      } else if (is_read) {
        expected = block == 3 ? 0 : block == 1 ? 2 : 3;
      }
      pools[region][i] ^= 4;
      assert_int_equal(compared(&chunk, 2), expected);
      pools[region][i] ^= 4;
    }
  }
}

/* A result is judged only if the bytes are the lease's. */
SET_TEST(only_live_bytes_are_judged)
{
  const kvf_transfer_item items[] = {{1, 0, 0, 0}, {1, 1, 1, 1}};
  const kvf_transfer transfer = {.lease = {.id = 9}, .items = items, .items_count = 2, .heads = 4};
  const kvf_chunk chunk = {&transfer, &plan, &plan.want, all};
  assert_true(kvf_checksums_make(regions, 3, &all[4], 0));
  kvf_read_result live = {.status = KVF_OK, .sample = {.entry = {kvf_fence_word_live(9), 0}}};
  kvf_read_result over = {.status = KVF_OK, .sample = {.entry = {kvf_fence_word_ended(9), 0}}};
  kvf_read_result failed = {.status = KVF_PEER_DOWN, .sample = live.sample};
  kvf_read_result plain = live;
  kvf_checksums_judge(&chunk, 2, &live);
  assert_int_equal(live.status, KVF_CHECKSUM);
  assert_int_equal(live.verified, 1);
  kvf_checksums_judge(&chunk, 2, &over);
  assert_int_equal(over.status, KVF_OK);
  assert_int_equal(over.verified, 0);
  kvf_checksums_judge(&chunk, 2, &failed);
  assert_int_equal(failed.status, KVF_PEER_DOWN);
  kvf_checksums_judge(&chunk, 0, &plain);
  assert_int_equal(plain.status, KVF_OK);
  assert_int_equal(plain.verified, 0);
  assert_true(kvf_checksums_make(regions, 3, &all[4], 1));
  live.status = KVF_OK;
  kvf_checksums_judge(&chunk, 2, &live);
  assert_int_equal(live.status, KVF_OK);
  assert_int_equal(live.verified, 2);
}
