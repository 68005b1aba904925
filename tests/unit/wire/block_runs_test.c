/* Lists of block ids there and back, chosen and random, and bytes that are no list. */
#include "wire/block_runs.h"

#include "base/prng.h"
#include "kvferry/types.h"
#include "wire_test.h"

#define NONE KVF_BLOCK_NONE
#define IDS_MAX 64

/* Encodes, decodes, compares; returns the encoded length. */
static size_t round_trip(const uint32_t *ids, uint32_t count)
{
  uint8_t data[IDS_MAX * 12];
  uint32_t back[IDS_MAX];
  kvf_codec writer = kvf_writer_of(data, sizeof(data));
  kvf_code_block_runs(&writer, (uint32_t *)ids, count);
  assert_false(writer.failed);
  for (size_t bytes = 0; bytes <= writer.at; bytes++) {
    uint8_t *copy = exact_copy(data, bytes);
    kvf_codec reader = kvf_reader_of(copy, bytes);
    kvf_code_block_runs(&reader, back, count);
    assert_int_equal(kvf_reader_end(&reader, true), bytes == writer.at ? KVF_OK : KVF_PROTOCOL);
    free(copy);
  }
  assert_memory_equal(back, ids, count * sizeof(ids[0]));
  return writer.at;
}

TEST(test_round_trips)
{
  static const struct {
    uint32_t ids[8];
    uint32_t count;
    size_t bytes;
  } rows[] = {{{0}, 0, 0},
              {{0}, 1, 1},
              {{0, 1, 2, 3, 4, 5, 6, 7}, 8, 2},
              {{9, 8, 7}, 3, 3},
              {{5, 5, 5}, 3, 3},
              {{NONE, NONE, NONE, NONE, 7, 8, 9}, 7, 3},
              {{5, NONE, 6, 7}, 4, 4},
              {{NONE}, 1, 1},
              {{NONE - 1}, 1, 5},
              {{NONE - 2, NONE - 1, NONE, NONE}, 4, 7},
              {{NONE - 1, 0, NONE - 1, 0}, 4, 20},
              {{0, NONE, 0, NONE}, 4, 4}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    assert_int_equal(round_trip(rows[i].ids, rows[i].count), rows[i].bytes);
  }
}

TEST(test_random_round_trips)
{
  kvf_prng prng = {1};
  for (unsigned i = 0; i < 2000; i++) {
    uint32_t ids[IDS_MAX];
    uint32_t count = (uint32_t)kvf_prng_below(&prng, IDS_MAX + 1);
    for (uint32_t k = 0; k < count; k++) {
      uint64_t kind = kvf_prng_below(&prng, 4);
      ids[k] = kind == 0 ? (uint32_t)kvf_prng_next(&prng) : kind == 1 ? NONE : k == 0 ? NONE - 2 : ids[k - 1] + 1;
    }
    (void)round_trip(ids, count);
  }
}

typedef struct refused_row {
  uint64_t varints[5];
  size_t varints_count;
  uint32_t count;
} refused_row;

static bool is_taken(const refused_row *row)
{
  uint8_t data[64];
  kvf_codec writer = kvf_writer_of(data, sizeof(data));
  for (size_t i = 0; i < row->varints_count; i++) {
    kvf_code_varint(&writer, &(uint64_t){row->varints[i]});
  }
  /* Room for not one id more than it may write. */
  uint32_t *exact = exact_room(row->count * sizeof(*exact));
  kvf_codec reader = kvf_reader_of(data, writer.at);
  kvf_code_block_runs(&reader, exact, row->count);
  free(exact);
  return kvf_reader_end(&reader, true) == KVF_OK;
}

/* A run's first number: kind 0 single, 1 run, 2 none, in the low two bits; above them the zigzag distance. */
TEST(test_what_is_no_list_is_refused)
{
  static const refused_row good[] = {{{2 << 2 | 1, 1}, 2, 3}, {{1 << 2 | 2, 2 << 2}, 2, 3}};
  static const refused_row bad[] = {
      {{2 << 2 | 1, 2}, 2, 3},                              /* a run beyond the count */
      {{2 << 2 | 1, UINT64_MAX}, 2, 1},                     /* a length that overflows */
      {{2 << 2 | 1, UINT32_MAX}, 2, 3},                     /* … */
      {{UINT64_MAX & ~UINT64_C(1), 0}, 1, 3},               /* … of "none" */
      {{2 << 2 | 2}, 1, 2},                                 /* "none" beyond the count */
      {{2 << 2 | 3, 0}, 2, 1},                              /* a kind that is none */
      {{1 << 2}, 1, 1},                                     /* a block of a negative id */
      {{UINT64_C(2) * UINT32_MAX << 2}, 1, 1},              /* KVF_BLOCK_NONE as a block */
      {{UINT64_C(2) * (UINT32_MAX - 1) << 2 | 1, 0}, 2, 2}, /* … as the last of a run */
      {{UINT64_C(4) * UINT32_MAX << 2}, 1, 1},              /* an id of more than 32 bits */
      {{2 << 2, 0}, 2, 2},                                  /* two blocks that are one run */
      {{2 << 2 | 1, 0, 0}, 3, 3},                           /* a run that goes on */
      {{2 << 2 | 1, 0, 1, 0}, 4, 4},                        /* … */
      {{0 << 2 | 2, 0 << 2 | 2}, 2, 2},                     /* "none" that goes on */
      {{2 << 2 | 1, 1, 0}, 3, 3},                           /* more than was asked for */
  };
  for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
    assert_true(is_taken(&good[i]));
  }
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    if (is_taken(&bad[i])) {
      fail_msg("row %zu was taken", i);
    }
  }
}

TEST(test_capacity)
{
  static const uint32_t ids[] = {9, 8, 7};
  uint8_t data[2];
  kvf_codec writer = kvf_writer_of(data, sizeof(data));
  kvf_code_block_runs(&writer, (uint32_t *)ids, 3);
  assert_true(writer.failed);
}
