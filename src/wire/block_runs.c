/* Finds the runs of a list and writes each as varints; reads them back, and refuses a list in any other form. */
#include "wire/block_runs.h"

#include "kvferry/types.h"

/* KIND_START is what comes before a list's first run: nothing to be joined with. It is never written. */
enum { KIND_SINGLE = 0, KIND_RUN = 1, KIND_NONE = 2, KIND_START = 3 };

#define KIND_BITS 2

/* How many ids, from the first, are one run. */
static uint32_t run_length(const uint32_t *ids, uint32_t count)
{
  uint32_t step = ids[0] == KVF_BLOCK_NONE ? 0 : 1;
  uint32_t length = 1;
  while (length < count && ids[length] == ids[length - 1] + step && (step == 0 || ids[length] != KVF_BLOCK_NONE)) {
    length++;
  }
  return length;
}

static uint64_t zigzag(int64_t value)
{
  return value < 0 ? (uint64_t)(-(value + 1)) << 1 | 1 : (uint64_t)value << 1;
}

static int64_t unzigzag(uint64_t value)
{
  return (value & 1) != 0 ? -(int64_t)(value >> 1) - 1 : (int64_t)(value >> 1);
}

static void put_runs(kvf_codec *codec, const uint32_t *ids, uint32_t count)
{
  int64_t expected = 0;
  for (uint32_t i = 0; i < count && !codec->failed;) {
    uint32_t length = run_length(ids + i, count - i);
    if (ids[i] == KVF_BLOCK_NONE) {
      kvf_code_varint(codec, &(uint64_t){(uint64_t)(length - 1) << KIND_BITS | KIND_NONE});
    } else {
      uint64_t distance = zigzag((int64_t)ids[i] - expected);
      kvf_code_varint(codec, &(uint64_t){distance << KIND_BITS | (length > 1 ? KIND_RUN : KIND_SINGLE)});
      if (length > 1) {
        kvf_code_varint(codec, &(uint64_t){length - 2});
      }
      expected = (int64_t)ids[i] + length;
    }
    i += length;
  }
}

/* Reads a run's kind and, unless it is one of KVF_BLOCK_NONE, *first. Returns its length, 0 if it cannot be one. */
static uint64_t get_run(kvf_codec *codec, int64_t expected, unsigned last_kind, unsigned *kind, int64_t *first)
{
  uint64_t value;
  kvf_code_varint(codec, &value);
  *kind = (unsigned)(value & ((1u << KIND_BITS) - 1));
  value >>= KIND_BITS;
  if (*kind == KIND_NONE) {
    return last_kind == KIND_NONE ? 0 : value + 1;
  }
  int64_t distance = unzigzag(value);
  *first = expected + distance;
  bool joins_last = distance == 0 && (last_kind == KIND_SINGLE || last_kind == KIND_RUN);
  if (*kind == KIND_START || *first < 0 || *first >= KVF_BLOCK_NONE || joins_last) {
    return 0;
  }
  if (*kind == KIND_SINGLE) {
    return 1;
  }
  uint64_t more;
  kvf_code_varint(codec, &more);
  return more > UINT32_MAX ? 0 : more + 2;
}

static void get_runs(kvf_codec *codec, uint32_t *ids, uint32_t count)
{
  int64_t expected = 0;
  unsigned last_kind = KIND_START;
  for (uint32_t i = 0; i < count;) {
    unsigned kind = KIND_SINGLE;
    int64_t first = 0;
    uint64_t length = get_run(codec, expected, last_kind, &kind, &first);
    if (codec->failed || length == 0 || length > count - i ||
        (kind == KIND_RUN && length > KVF_BLOCK_NONE - (uint64_t)first)) {
      kvf_codec_fail(codec);
      return;
    }
    for (uint64_t k = 0; k < length; k++) {
      ids[i++] = kind == KIND_NONE ? KVF_BLOCK_NONE : (uint32_t)((uint64_t)first + k);
    }
    if (kind != KIND_NONE) {
      expected = first + (int64_t)length;
    }
    last_kind = kind;
  }
}

void kvf_code_block_runs(kvf_codec *codec, uint32_t *ids, uint32_t count)
{
  if (codec->reads) {
    get_runs(codec, ids, count);
  } else {
    put_runs(codec, ids, count);
  }
}
