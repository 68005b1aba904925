#include "wire/layout.h"

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
  kvf_region_layout *layouts = calloc(KVF_REGIONS_MAX + 1, sizeof(layouts[0]));
  assert_non_null(layouts);
  for (uint32_t i = 0; i <= KVF_REGIONS_MAX; i++) {
    layouts[i] = good;
  }
  assert_true(kvf_region_layouts_are_valid(layouts, KVF_REGIONS_MAX));
  assert_false(kvf_region_layouts_are_valid(layouts, KVF_REGIONS_MAX + 1));
  free(layouts);
}
