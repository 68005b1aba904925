/* Which regions and parts make a valid description. */
#include "wire/layout.h"

#include "described.h"
#include "wire_test.h"

static const kvf_region_layout good = {
    .stride_bytes = 4096, .block_bytes = 4096, .blocks = 100, .heads = 4, .heads_total = 8, .group = 0};

TEST(test_one_region)
{
  assert_true(kvf_region_layout_is_valid(&good));
  static const struct {
    uint64_t stride_bytes;
    uint32_t block_bytes, blocks, heads, heads_total, group;
    bool valid;
  } rows[] = {{4096, 4096, 100, 4, 4, 15, true}, {4096, 4096, 100, 4, 3, 0, false}, {4096, 4096, 100, 4, 4, 16, false},
              {4096, 4096, 0, 4, 4, 0, false},   {4096, 0, 100, 4, 4, 0, false},    {4096, 4096, 100, 0, 4, 0, false},
              {4096, 4096, 100, 3, 4, 0, false}, {4096, 4095, 100, 3, 3, 0, true},  {4095, 4096, 100, 4, 4, 0, false},
              {4097, 4096, 100, 4, 4, 0, true}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    kvf_region_layout layout = {.stride_bytes = rows[i].stride_bytes,
                                .block_bytes = rows[i].block_bytes,
                                .blocks = rows[i].blocks,
                                .heads = rows[i].heads,
                                .heads_total = rows[i].heads_total,
                                .group = rows[i].group};
    assert_int_equal(kvf_region_layout_is_valid(&layout), rows[i].valid);
  }
}

TEST(test_size_limit)
{
  kvf_region_layout layout = good;
  layout.blocks = 3;
  layout.stride_bytes = (KVF_REGION_BYTES_MAX - 4096) / 2;
  assert_true(kvf_region_layout_is_valid(&layout));
  layout.stride_bytes++;
  assert_false(kvf_region_layout_is_valid(&layout));
  layout.stride_bytes = UINT64_MAX;
  assert_false(kvf_region_layout_is_valid(&layout));
  layout.blocks = UINT32_MAX;
  layout.block_bytes = UINT32_MAX;
  layout.heads = 1;
  assert_false(kvf_region_layout_is_valid(&layout));
  layout.blocks = 1; /* its stride leads nowhere */
  assert_true(kvf_region_layout_is_valid(&layout));
  layout.memory = KVF_MEMORY_KINDS_MAX - 1; /* a newer peer's: not ours */
  assert_true(kvf_region_layout_is_valid(&layout));
  layout.memory++;
  assert_false(kvf_region_layout_is_valid(&layout));
}

TEST(test_regions_together)
{
  kvf_region_layout layouts[3] = {good, good, good};
  assert_true(kvf_region_layouts_are_valid(NULL, 0));
  assert_true(kvf_region_layouts_are_valid(layouts, 3));
  layouts[1].group = 1;
  layouts[2].group = 2;
  assert_true(kvf_region_layouts_are_valid(layouts, 3));
  layouts[1].group = 0; /* group 1 is missing */
  assert_false(kvf_region_layouts_are_valid(layouts, 3));
  layouts[2].group = 0;
  layouts[2].heads_total++;
  assert_false(kvf_region_layouts_are_valid(layouts, 3));
  layouts[2].heads_total--;
  layouts[2].blocks = 0;
  assert_false(kvf_region_layouts_are_valid(layouts, 3));
  layouts[0].group = 1;
  assert_false(kvf_region_layouts_are_valid(layouts, 1));
}

TEST(test_regions_limit)
{
  kvf_region_layout *layouts = allocate((size_t)(KVF_REGIONS_MAX + 1) * sizeof(layouts[0]));
  for (uint32_t i = 0; i <= KVF_REGIONS_MAX; i++) {
    layouts[i] = good;
  }
  assert_true(kvf_region_layouts_are_valid(layouts, KVF_REGIONS_MAX));
  assert_false(kvf_region_layouts_are_valid(layouts, KVF_REGIONS_MAX + 1));
  free(layouts);
}

TEST(layout_of_a_region_is_the_region_without_its_address)
{
  const kvf_region region = {(void *)(uintptr_t)0x20000000u, 2048, 1024, 50, 4, 8, 1, KVF_MEMORY_HOST, 0};
  const kvf_region_layout layout = kvf_region_layout_of(&region);
  assert_int_equal(layout.stride_bytes, 2048);
  assert_int_equal(layout.block_bytes, 1024);
  assert_int_equal(layout.blocks, 50);
  assert_int_equal(layout.heads, 4);
  assert_int_equal(layout.heads_total, 8);
  assert_int_equal(layout.group, 1);
}

TEST(descriptions_are_checked)
{
  described d;
  describe(&d);
  assert_true(kvf_pages_are_valid(&d.pages));
#define REFUSED(change)                          \
  do {                                           \
    describe(&d);                                \
    change;                                      \
    assert_false(kvf_pages_are_valid(&d.pages)); \
  } while (0)
  REFUSED(d.parts[1].offset_bytes = 33);
  REFUSED(d.parts[1].offset_bytes = UINT32_MAX);
  REFUSED(d.parts[1].region = 1);
  REFUSED(d.parts[1].unit_bytes = 0);
  REFUSED(d.parts[1].unit_bytes = 3);
  REFUSED(d.parts[1].row_bytes = 1);
  REFUSED(d.parts[1].head_bytes = 7);
  REFUSED(d.parts[1].rows = 0);
  REFUSED(d.parts[1].rows = 3);
  REFUSED(d.parts[1].rows = KVF_PART_ROWS_MAX + 1);
  REFUSED(d.parts[1].block_tokens = 8); /* other than its group's */
  REFUSED(d.parts[1].heads = 0);
  REFUSED(d.parts[1].heads = 5);
  REFUSED(d.parts[1].first_head = 1);
  REFUSED(d.parts[1].heads_total = 8); /* above the layout's */
  REFUSED(d.parts[1].layer = KVF_LAYERS_MAX);
  REFUSED(d.parts[1].index = KVF_PART_INDEX_MAX);
  REFUSED(d.parts[1].kind = (kvf_part_kind)256);
  REFUSED(d.parts[1].dtype = (kvf_dtype)256);
  REFUSED(d.parts[1].group = KVF_GROUPS_MAX);
  REFUSED(d.regions[0].blocks = 0);
  REFUSED(d.pages.layout.parts_count = 0);
  REFUSED(d.pages.layout.parts_count = KVF_PARTS_MAX + 1);
  REFUSED(d.pages.regions_count = KVF_REGIONS_MAX + 1);
  REFUSED(d.pages.layout.share.heads = 0);
  REFUSED(d.pages.layout.share.heads = 3); /* parts have 4: the last one would never move */
  REFUSED(d.pages.layout.share = ((kvf_share){2, 2, 8}));
  REFUSED(d.pages.layout.share.first_head = 1);
  REFUSED(d.pages.layout.share.heads_total = KVF_PART_HEADS_MAX + 1);
  REFUSED(d.pages.layout.deal = ((kvf_deal){2, 2, 1}));
  REFUSED(d.pages.layout.deal = ((kvf_deal){2, 0, 0}));
  REFUSED(d.pages.layout.deal = ((kvf_deal){2, 0, 3})); /* a block has no whole number of turns */
  REFUSED(d.pages.layout.deal = ((kvf_deal){KVF_RANKS_MAX + 1, 0, 1}));
  describe(&d);
  d.parts[0].group = d.parts[1].group = 2; /* and none in 0 or 1, as in a stage of a pipeline */
  assert_true(kvf_pages_are_valid(&d.pages));
  describe(&d);
  d.pages.layout.deal = (kvf_deal){2, 1, 2};
  assert_true(kvf_pages_are_valid(&d.pages));
}
