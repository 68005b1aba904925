/* The kernels as they are shipped, in PTX (ptx_as_c.py), and as the host runs them: both do what the host's own code
 * does. */
#include <sys/mman.h>

#include "base/checksum.h"
#include "base/prng.h"
#include "memory/cuda/kernel_code.h"
#include "test.h"

#define PAGE_BYTES ((size_t)4096)
#define ROOM_BYTES ((size_t)8 << 20)
#define RUNS_MAX 4200

void ptx_kvf_checksums(const uint64_t *params, unsigned blocks, unsigned threads);
void ptx_kvf_gather(const uint64_t *params, unsigned blocks, unsigned threads);

static uint64_t address_of(const void *at)
{
  return (uint64_t)(uintptr_t)at;
}

/* Bytes between pages that nobody may touch: what a device has no access to beside an allocation. */
static uint8_t *room(void)
{
  uint8_t *at = mmap(NULL, ROOM_BYTES + 2 * PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(at != MAP_FAILED);
  assert_int_equal(mprotect(at + PAGE_BYTES, ROOM_BYTES, PROT_READ | PROT_WRITE), 0);
  return at + PAGE_BYTES;
}

static void room_free(uint8_t *freed)
{
  assert_int_equal(munmap(freed - PAGE_BYTES, ROOM_BYTES + 2 * PAGE_BYTES), 0);
}

static void fill(uint8_t *at, size_t bytes, kvf_prng *prng)
{
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    const uint64_t value = kvf_prng_next(prng);
    memcpy(at + i, &value, sizeof(value));
  }
}

/* Any grid does the whole list. */
static void draw_grid(kvf_prng *prng, unsigned *blocks, unsigned *threads)
{
  *blocks = 1 + (unsigned)kvf_prng_below(prng, KVF_CUDA_KERNEL_BLOCKS_MAX);
  *threads = WARP * (1 + (unsigned)kvf_prng_below(prng, KVF_CUDA_KERNEL_THREADS / WARP));
}

static void sums_are_right(const kvf_cuda_run *runs, uint64_t count, kvf_prng *prng)
{
  static uint64_t on_host[RUNS_MAX];
  static uint64_t as_ptx[RUNS_MAX];
  unsigned blocks;
  unsigned threads;
  memset(as_ptx, 0, sizeof(as_ptx));
  kvf_checksums(runs, count, on_host);
  draw_grid(prng, &blocks, &threads);
  ptx_kvf_checksums((const uint64_t[]){address_of(runs), count, address_of(as_ptx)}, blocks, threads);
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t wanted = kvf_checksum((const uint8_t *)(uintptr_t)runs[i].address, runs[i].bytes);
    if (on_host[i] != wanted || as_ptx[i] != wanted) {
      fail_msg("%s: of %llu bytes at %#llx", on_host[i] != wanted ? "host" : "ptx", (unsigned long long)runs[i].bytes,
               (unsigned long long)runs[i].address);
    }
  }
}

TEST(checksums_of_all_lengths_are_the_hosts)
{
  static kvf_cuda_run runs[RUNS_MAX];
  kvf_prng prng = {1};
  uint8_t *data = room();
  const uint64_t end = address_of(data + ROOM_BYTES);
  fill(data, ROOM_BYTES, &prng);
  for (int placed = 0; placed < 4; placed++) {
    for (uint64_t bytes = 0; bytes <= 4096; bytes++) {
      const uint64_t starts[] = {address_of(data), end - bytes, address_of(data) + kvf_prng_below(&prng, 16),
                                 address_of(data) + 16 * kvf_prng_below(&prng, 4096)};
      runs[bytes] = (kvf_cuda_run){starts[placed], bytes};
    }
    sums_are_right(runs, 4097, &prng);
  }
  room_free(data);
}

SEEDS_TEST(checksums_of_long_runs_are_the_hosts)
{
  uint64_t seed;
  uint8_t *data = room();
  while (test_next_seed(4, &seed)) {
    kvf_cuda_run runs[16];
    kvf_prng prng = {seed};
    fill(data, ROOM_BYTES, &prng);
    for (int i = 0; i < 16; i++) {
      const uint64_t most = i == 0 ? ROOM_BYTES - 64 : 65536;
      const uint64_t skip = kvf_prng_below(&prng, 2) == 0 ? 0 : kvf_prng_below(&prng, 64);
      runs[i] = (kvf_cuda_run){address_of(data) + skip, kvf_prng_below(&prng, most)};
    }
    sums_are_right(runs, 16, &prng);
  }
  room_free(data);
}

TEST(checksums_of_nothing_are_none)
{
  uint64_t sum = 7;
  kvf_checksums(NULL, 0, &sum);
  ptx_kvf_checksums((const uint64_t[]){0, 0, address_of(&sum)}, 2, 64);
  assert_int_equal(sum, 7);
}

/* Pieces side by side, or with room between them, of which some are alike in how they are aligned. */
static uint64_t draw_pieces(kvf_prng *prng, uint8_t *to, const uint8_t *from, kvf_cuda_piece pieces[RUNS_MAX])
{
  uint64_t count = 0;
  for (uint64_t at = kvf_prng_below(prng, 16); at < ROOM_BYTES / 4 && count < RUNS_MAX; count++) {
    const uint64_t bytes = kvf_prng_below(prng, kvf_prng_below(prng, 8) == 0 ? 20000 : 200);
    const uint64_t alike[] = {1, 4, 16, 64};
    const uint64_t unlike = alike[kvf_prng_below(prng, 4)] * kvf_prng_below(prng, 64);
    pieces[count] = (kvf_cuda_piece){address_of(to) + at, address_of(from) + at + unlike, bytes};
    at += bytes + kvf_prng_below(prng, 3) * kvf_prng_below(prng, 32);
  }
  return count;
}

SEEDS_TEST(gather_copies_what_is_listed_and_nothing_else)
{
  static kvf_cuda_piece pieces[RUNS_MAX];
  uint64_t seed;
  uint8_t *from = room();
  uint8_t *to = room();
  uint8_t *wanted = allocate(ROOM_BYTES);
  while (test_next_seed(4, &seed)) {
    kvf_prng prng = {seed};
    unsigned blocks;
    unsigned threads;
    fill(from, ROOM_BYTES, &prng);
    memset(wanted, 0xee, ROOM_BYTES);
    const uint64_t count = draw_pieces(&prng, to, from, pieces);
    for (uint64_t i = 0; i < count; i++) {
      memcpy(wanted + (pieces[i].to - address_of(to)), (const uint8_t *)(uintptr_t)pieces[i].from, pieces[i].bytes);
    }
    memset(to, 0xee, ROOM_BYTES);
    kvf_gather(pieces, count);
    assert_memory_equal(to, wanted, ROOM_BYTES);
    memset(to, 0xee, ROOM_BYTES);
    draw_grid(&prng, &blocks, &threads);
    ptx_kvf_gather((const uint64_t[]){address_of(pieces), count}, blocks, threads);
    assert_memory_equal(to, wanted, ROOM_BYTES);
  }
  free(wanted);
  room_free(to);
  room_free(from);
}

TEST(the_oldest_driver_can_load_them)
{
  assert_non_null(strstr(kvf_cuda_kernels_ptx, "\n.version 8.0\n"));
  assert_non_null(strstr(kvf_cuda_kernels_ptx, ".entry " KVF_CUDA_CHECKSUMS_KERNEL "("));
  assert_non_null(strstr(kvf_cuda_kernels_ptx, ".entry " KVF_CUDA_GATHER_KERNEL "("));
}
