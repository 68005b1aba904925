/* Pools: where blocks lie in them, what is in them, and whether it has arrived. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/prng.h"
#include "gpu_bench.h"

#define REGION_ALIGNMENT 512u          /* as allocations of engines have it */
#define POOL_GRAIN ((uint64_t)2 << 20) /* smaller memory may share its handle with other memory */
#define CLEAR 0xa5
#define CLEAR_BYTES ((uint64_t)1 << 20)
/* No power of two: blocks of the same number in two layers differ. */
#define TILE_BYTES (((uint64_t)64 << 20) - 40)
#define LOOK_BYTES ((uint64_t)16 << 20)

/* ---- where ---- */

static uint64_t rounded(uint64_t bytes, uint64_t to)
{
  return (bytes + to - 1) / to * to;
}

static uint64_t bytes_of_block(const bench_shape *shape)
{
  return (uint64_t)shape->layers * (shape->block_bytes[0] + shape->block_bytes[1]);
}

/* A fifth of a pool is not asked for. */
static uint32_t pool_blocks_for(uint32_t blocks)
{
  return blocks + blocks / 4 + 1;
}

static void lay_out(bench_geometry *out)
{
  uint64_t layer_bytes = 0;
  for (uint32_t part = 0; part < out->parts; part++) {
    out->part_bytes[part] = rounded((uint64_t)out->pool_blocks * out->block_bytes[part], REGION_ALIGNMENT);
    layer_bytes += out->part_bytes[part];
  }
  out->pool_bytes = rounded(layer_bytes * out->layers, POOL_GRAIN);
}

void bench_fit(const bench_shape *shape, const bench_settings *settings, uint64_t budget_bytes, bench_geometry *out)
{
  const uint64_t block_bytes = bytes_of_block(shape);
  uint64_t most = budget_bytes / block_bytes / 5 * 4;
  most = most < settings->bytes_max / block_bytes ? most : settings->bytes_max / block_bytes;
  most = most < KVF_BLOCKS_PER_LEASE_MAX ? most : KVF_BLOCKS_PER_LEASE_MAX;
  most = most > 0 ? most : 1;
  *out = (bench_geometry){.layers = shape->layers,
                          .parts = shape->block_bytes[1] == 0 ? 1 : 2,
                          .block_bytes = {shape->block_bytes[0], shape->block_bytes[1]},
                          .blocks = shape->blocks < most ? shape->blocks : (uint32_t)most};
  out->pool_blocks = pool_blocks_for(out->blocks);
  if (out->blocks < shape->blocks) {
    (void)snprintf(out->cut, sizeof(out->cut), "%u of %u blocks%s", (unsigned)out->blocks, (unsigned)shape->blocks,
                   settings->is_quick ? "" : ": more than a quarter of the device's free memory");
  }
  lay_out(out);
}

uint64_t bench_pieces(const bench_geometry *geometry)
{
  return (uint64_t)geometry->blocks * geometry->layers * geometry->parts;
}

uint64_t bench_bytes(const bench_geometry *geometry)
{
  return (uint64_t)geometry->blocks * geometry->layers * (geometry->block_bytes[0] + geometry->block_bytes[1]);
}

uint64_t bench_region_at(const bench_geometry *geometry, uint32_t region)
{
  const uint32_t layer = region / geometry->parts;
  const uint32_t part = region % geometry->parts;
  return layer * (geometry->part_bytes[0] + geometry->part_bytes[1]) + (part == 0 ? 0 : geometry->part_bytes[0]);
}

uint32_t bench_region_bytes(const bench_geometry *geometry, uint32_t region)
{
  return geometry->block_bytes[region % geometry->parts];
}

uint32_t *bench_choose(uint32_t pool_blocks, uint64_t seed)
{
  kvf_prng prng = {seed};
  uint32_t *ids = calloc(pool_blocks, sizeof(*ids));
  bench_must(ids != NULL, "no memory for block ids");
  for (uint32_t i = 0; i < pool_blocks; i++) {
    const uint32_t j = (uint32_t)kvf_prng_below(&prng, i + 1);
    ids[i] = ids[j];
    ids[j] = i;
  }
  return ids;
}

/* ---- what ---- */

uint8_t *bench_allocate(bool is_host, uint64_t bytes)
{
  if (!is_host) {
    return cuda_driver_allocate(bytes);
  }
  void *pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  bench_must(pool != MAP_FAILED, "no memory for the pool");
  return pool;
}

uint8_t *bench_tile(uint64_t pool_bytes)
{
  const uint64_t bytes = pool_bytes < TILE_BYTES ? pool_bytes : TILE_BYTES; /* a multiple of 8, either way */
  kvf_prng prng = {11};
  uint64_t *tile = malloc(bytes);
  bench_must(tile != NULL, "no memory for the pattern");
  for (uint64_t i = 0; i < bytes / sizeof(*tile); i++) {
    tile[i] = kvf_prng_next(&prng);
  }
  return (uint8_t *)tile;
}

static void copy(bool is_host, uint8_t *to, const uint8_t *from, uint64_t bytes)
{
  if (is_host) {
    memcpy(to, from, bytes);
  } else {
    cuda_driver_copy(to, from, bytes);
  }
}

/* `first` again and again: what is there already is doubled. */
static void repeat(bool is_host, uint8_t *pool, uint64_t bytes, const uint8_t *first, uint64_t first_bytes)
{
  uint64_t done = first_bytes < bytes ? first_bytes : bytes;
  copy(is_host, pool, first, done);
  while (done < bytes) {
    const uint64_t more = done < bytes - done ? done : bytes - done;
    copy(is_host, pool + done, pool, more);
    done += more;
  }
}

void bench_fill(bool is_host, uint8_t *pool, uint64_t bytes, const uint8_t *tile)
{
  repeat(is_host, pool, bytes, tile, TILE_BYTES);
}

void bench_clear(const bench_pair *pair)
{
  uint8_t *first = malloc(CLEAR_BYTES);
  bench_must(first != NULL, "no memory");
  memset(first, CLEAR, CLEAR_BYTES);
  repeat(pair->of->destination_is_host, pair->pool, pair->geometry.pool_bytes, first, CLEAR_BYTES);
  free(first);
}

/* ---- whether ---- */

static bool is_tile(const uint8_t *tile, uint64_t at, const uint8_t *found, uint64_t bytes)
{
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t past = (at + done) % TILE_BYTES;
    const uint64_t some = bytes - done < TILE_BYTES - past ? bytes - done : TILE_BYTES - past;
    if (memcmp(found + done, tile + past, some) != 0) {
      return false;
    }
    done += some;
  }
  return true;
}

static bool is_clear(const uint8_t *found, uint64_t bytes)
{
  return found[0] == CLEAR && memcmp(found, found + 1, bytes - 1) == 0;
}

/* The load's n-th block is in each of D's blocks: or none. */
static uint32_t *make_owners(const bench_pair *pair)
{
  const bench_geometry *geometry = &pair->geometry;
  uint32_t *owners = malloc(geometry->pool_blocks * sizeof(*owners));
  bench_must(owners != NULL, "no memory");
  memset(owners, 0xff, geometry->pool_blocks * sizeof(*owners));
  for (uint32_t i = 0; i < geometry->blocks; i++) {
    owners[pair->local_ids[i]] = i;
  }
  return owners;
}

static bool is_right(const bench_pair *pair, uint32_t region, uint32_t owner, uint64_t pieces, const uint8_t *found)
{
  const bench_geometry *geometry = &pair->geometry;
  const uint64_t bytes = bench_region_bytes(geometry, region);
  if (owner == BENCH_NONE || (uint64_t)owner * geometry->layers * geometry->parts + region >= pieces) {
    return is_clear(found, bytes);
  }
  return is_tile(pair->tile, bench_region_at(geometry, region) + pair->remote_ids[owner] * bytes, found, bytes);
}

static void verify_region(const bench_pair *pair, uint32_t region, const uint32_t *owners, uint64_t pieces,
                          uint8_t *look, const char *impl)
{
  const bench_geometry *geometry = &pair->geometry;
  const uint64_t bytes = bench_region_bytes(geometry, region);
  const uint32_t each = (uint32_t)(LOOK_BYTES / bytes);
  for (uint32_t first = 0; first < geometry->pool_blocks; first += each) {
    const uint32_t count = geometry->pool_blocks - first < each ? geometry->pool_blocks - first : each;
    copy(pair->of->destination_is_host, look, pair->pool + bench_region_at(geometry, region) + first * bytes,
         count * bytes);
    for (uint32_t i = 0; i < count; i++) {
      if (!is_right(pair, region, owners[first + i], pieces, look + i * bytes)) {
        bench_give_up("wrong bytes: %s, region %u, block %u", impl, (unsigned)region, (unsigned)(first + i));
      }
    }
  }
}

void bench_verify(bench_pair *pair, uint64_t pieces, const char *impl)
{
  const bench_geometry *geometry = &pair->geometry;
  uint32_t *owners = make_owners(pair);
  void *look = NULL;
  bench_cuda(pair->driver, pair->driver->cuda->api.mem_host_alloc(&look, LOOK_BYTES, 0), "cuMemHostAlloc");
  for (uint32_t region = 0; region < geometry->layers * geometry->parts; region++) {
    verify_region(pair, region, owners, pieces, look, impl);
  }
  bench_cuda(pair->driver, pair->driver->cuda->api.mem_free_host(look), "cuMemFreeHost");
  free(owners);
}
