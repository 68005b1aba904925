/* The kernels of kernels.h: compiled for the device by `./dev ptx`, and for the host as functions of the tests. So they
 * use the common part of C and CUDA's C++.
 *
 * A warp does each entry of a list. Its lanes are the rounds of loops: on a device each thread is one lane, and such a
 * loop has one round; on the host one thread does all 32. What a lane keeps from one loop to the next is in arrays.
 *
 * The checksum is XXH3 of 64 bits, with its default secret and seed 0 (xxhash.h, doc/xxhash_spec.md). Bytes are summed
 * as little-endian numbers, as devices and the hosts that they are in have them.
 */
#ifndef KVF_MEMORY_CUDA_KERNEL_CODE_H
#define KVF_MEMORY_CUDA_KERNEL_CODE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "memory/cuda/kernels.h"

/* ---- what differs between a device and the host ---- */

#define WARP 32u

#ifdef __CUDACC_RTC__
#define DEVICE static __device__ __forceinline__
#define DEVICE_TABLE static __device__ const
#define KERNEL extern "C" __global__ __launch_bounds__(KVF_CUDA_KERNEL_THREADS, 1) void
/* Entries go to one block after the other, so that few are spread over as many as there are. */
#define FIRST_WARP (blockIdx.x + (uint64_t)(threadIdx.x / WARP) * gridDim.x)
#define WARPS ((uint64_t)(blockDim.x / WARP) * gridDim.x)
#define FIRST_LANE (threadIdx.x % WARP)
#define LANES_HERE 1u
#define ROLLED _Pragma("unroll 1") /* the loop after it: unrolling would gain less than the text costs */
#else
#define DEVICE static inline
#define DEVICE_TABLE static const
#define KERNEL static inline void
#define FIRST_WARP 0
#define WARPS 1
#define FIRST_LANE 0
#define LANES_HERE WARP
#define ROLLED
#endif

/* To each lane's value those of the lanes are added whose numbers differ in the bits from `first` to below `end`. */
DEVICE void add_up(uint64_t value[LANES_HERE], unsigned first, unsigned end)
{
  for (unsigned bit = first; bit < end; bit *= 2) {
#ifdef __CUDACC_RTC__
    value[0] += __shfl_xor_sync(0xffffffff, value[0], (int)bit);
#else
    uint64_t was[LANES_HERE];
    memcpy(was, value, sizeof(was));
    for (unsigned lane = 0; lane < LANES_HERE; lane++) {
      value[lane] += was[lane ^ bit];
    }
#endif
  }
}

/* The two halves of the product, one xor the other. */
DEVICE uint64_t fold(uint64_t a, uint64_t b)
{
#ifdef __CUDACC_RTC__
  return (a * b) ^ __umul64hi(a, b);
#else
  __extension__ typedef unsigned __int128 wide;
  const wide product = (wide)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
#endif
}

/* ---- bytes ---- */

typedef struct unit {
  uint64_t low;
  uint64_t high;
} unit;

#define UNIT_BYTES ((uint64_t)16)

DEVICE uint32_t read32(const uint8_t *at)
{
  uint32_t value;
  memcpy(&value, at, sizeof(value));
  return value;
}

/* The word that the byte is in. A device has access to all of it, or to none. */
DEVICE uint64_t word_of(const uint8_t *byte)
{
  uint64_t value;
  const uint8_t *at = byte - (uintptr_t)byte % sizeof(value);
  memcpy(&value, __builtin_assume_aligned(at, sizeof(value)), sizeof(value));
  return value;
}

/* Eight bytes, beginning with byte `skip` of the first of two words; if that is 0 the second may be any. */
DEVICE uint64_t joined(uint64_t first, uint64_t second, unsigned skip)
{
  return first >> 8 * skip | second << 1 << (63 - 8 * skip);
}

DEVICE uint64_t read64(const uint8_t *at)
{
  return joined(word_of(at), word_of(at + 7), (uintptr_t)at % 8);
}

/* Where it is aligned, in one access of a device's memory. */
DEVICE unit read_unit(const uint8_t *at, bool is_aligned)
{
  unit value;
  if (is_aligned) {
    memcpy(&value, __builtin_assume_aligned(at, UNIT_BYTES), sizeof(value));
  } else {
    const uint64_t middle = word_of(at + 8 - (uintptr_t)at % 8);
    value.low = joined(word_of(at), middle, (uintptr_t)at % 8);
    value.high = joined(middle, word_of(at + UNIT_BYTES - 1), (uintptr_t)at % 8);
  }
  return value;
}

/* ---- XXH3: up to 240 bytes ---- */

#define PRIME32_1 0x9e3779b1u
#define PRIME32_2 0x85ebca77u
#define PRIME32_3 0xc2b2ae3du
#define PRIME64_1 0x9e3779b185ebca87u
#define PRIME64_2 0xc2b2ae3d27d4eb4fu
#define PRIME64_3 0x165667b19e3779f9u
#define PRIME64_4 0x85ebca77c2b2ae63u
#define PRIME64_5 0x27d4eb2f165667c5u

#define SHORT_BYTES_MAX 240u
#define SECRET_BYTES 192u

/* Eight of its bytes, from any of them on. */
DEVICE uint64_t secret_at(unsigned offset)
{
  DEVICE_TABLE uint64_t words[SECRET_BYTES / 8] = {
      0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u, 0x78e5c0cc4ee679cbu,
      0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u, 0xcb00c391bb52283cu, 0xa32e531b8b65d088u,
      0x4ef90da297486471u, 0xd8acdea946ef1938u, 0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au,
      0x647378d9c97e9fc8u, 0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
      0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu,
  };
  return joined(words[offset / 8], words[(offset + 7) / 8], offset % 8);
}

DEVICE uint64_t avalanche(uint64_t sum)
{
  sum = (sum ^ sum >> 37) * 0x165667919e3779f9u;
  return sum ^ sum >> 32;
}

/* That of XXH64. */
DEVICE uint64_t old_avalanche(uint64_t sum)
{
  sum = (sum ^ sum >> 33) * PRIME64_2;
  sum = (sum ^ sum >> 29) * PRIME64_3;
  return sum ^ sum >> 32;
}

DEVICE uint64_t turned(uint64_t value, unsigned bits)
{
  return value << bits | value >> (64 - bits);
}

DEVICE uint64_t bytes_swapped(uint64_t value)
{
  value = (value & 0x00ff00ff00ff00ffu) << 8 | (value >> 8 & 0x00ff00ff00ff00ffu);
  value = (value & 0x0000ffff0000ffffu) << 16 | (value >> 16 & 0x0000ffff0000ffffu);
  return turned(value, 32);
}

DEVICE uint64_t sum_to_16(const uint8_t *data, unsigned bytes)
{
  if (bytes > 8) {
    const uint64_t low = read64(data) ^ secret_at(24) ^ secret_at(32);
    const uint64_t high = read64(data + bytes - 8) ^ secret_at(40) ^ secret_at(48);
    return avalanche(bytes + bytes_swapped(low) + high + fold(low, high));
  }
  if (bytes >= 4) {
    uint64_t sum = ((uint64_t)read32(data) << 32) + read32(data + bytes - 4);
    sum ^= secret_at(8) ^ secret_at(16);
    sum = (sum ^ turned(sum, 49) ^ turned(sum, 24)) * 0x9fb21c651e98df25u;
    sum = (sum ^ ((sum >> 35) + bytes)) * 0x9fb21c651e98df25u;
    return sum ^ sum >> 28;
  }
  if (bytes > 0) {
    const uint32_t all = (uint32_t)data[0] << 16 | (uint32_t)data[bytes / 2] << 24 | data[bytes - 1] | bytes << 8;
    return old_avalanche(all ^ ((uint32_t)secret_at(0) ^ (uint32_t)secret_at(4)));
  }
  return old_avalanche(secret_at(56) ^ secret_at(64));
}

DEVICE uint64_t mixed(const uint8_t *data, unsigned secret)
{
  return fold(read64(data) ^ secret_at(secret), read64(data + 8) ^ secret_at(secret + 8));
}

DEVICE uint64_t sum_to_128(const uint8_t *data, unsigned bytes)
{
  uint64_t sum = bytes * PRIME64_1;
  ROLLED
  for (unsigned i = 0; i <= (bytes - 1) / 32; i++) {
    sum += mixed(data + UNIT_BYTES * i, 32 * i) + mixed(data + bytes - UNIT_BYTES * (i + 1), 32 * i + 16);
  }
  return avalanche(sum);
}

DEVICE uint64_t sum_to_240(const uint8_t *data, unsigned bytes)
{
  uint64_t sum = bytes * PRIME64_1;
  ROLLED
  for (unsigned i = 0; i < 8; i++) {
    sum += mixed(data + UNIT_BYTES * i, 16 * i);
  }
  sum = avalanche(sum);
  ROLLED
  for (unsigned i = 8; i < bytes / UNIT_BYTES; i++) {
    sum += mixed(data + UNIT_BYTES * i, 16 * (i - 8) + 3);
  }
  return avalanche(sum + mixed(data + bytes - UNIT_BYTES, 119));
}

DEVICE uint64_t sum_short(const uint8_t *data, unsigned bytes)
{
  if (bytes <= 16) {
    return sum_to_16(data, bytes);
  }
  return bytes <= 128 ? sum_to_128(data, bytes) : sum_to_240(data, bytes);
}

/* ---- XXH3: more than 240 bytes ----
 *
 * Eight accumulators; stripes of 64 bytes are added to them, and they are scrambled after each block of 16. Within a
 * block the order does not matter: each lane adds two units of a block to zero, then the lanes' results are added up.
 * Unit i is a quarter of a stripe. All units of a lane are the same quarter, for the same two accumulators. */
#define STRIPE_BYTES ((uint64_t)64)
#define STRIPE_UNITS 4u
#define BLOCK_STRIPES 16u
#define BLOCK_BYTES (BLOCK_STRIPES * STRIPE_BYTES)
#define AHEAD 4u
#define LAST_SECRET 128u /* where the last 64 bytes of the secret begin */

/* Of each lane, two accumulators. */
typedef struct lane_sums {
  uint64_t even[LANES_HERE];
  uint64_t odd[LANES_HERE];
} lane_sums;

/* The number of the lane's even one. */
DEVICE unsigned first_sum(unsigned i)
{
  return 2 * ((FIRST_LANE + i) % STRIPE_UNITS);
}

DEVICE void add_unit(lane_sums *sums, unsigned i, unit added, unsigned secret)
{
  const uint64_t low = added.low ^ secret_at(secret + 8 * first_sum(i));
  const uint64_t high = added.high ^ secret_at(secret + 8 * first_sum(i) + 8);
  sums->even[i] += added.high + (low & 0xffffffff) * (low >> 32);
  sums->odd[i] += added.low + (high & 0xffffffff) * (high >> 32);
}

/* Each lane's part of the first `stripes` of a block. */
DEVICE void begin_block(lane_sums *parts, const uint8_t *block, unsigned stripes, bool is_aligned)
{
  for (unsigned i = 0; i < LANES_HERE; i++) {
    parts->even[i] = 0;
    parts->odd[i] = 0;
    for (unsigned at = FIRST_LANE + i; at < STRIPE_UNITS * BLOCK_STRIPES; at += WARP) {
      if (at < STRIPE_UNITS * stripes) {
        add_unit(parts, i, read_unit(block + UNIT_BYTES * at, is_aligned), at / STRIPE_UNITS * 8);
      }
    }
  }
}

/* Adds all lanes' parts to the sums that each lane has. */
DEVICE void add_parts(lane_sums *sums, lane_sums *parts)
{
  add_up(parts->even, STRIPE_UNITS, WARP);
  add_up(parts->odd, STRIPE_UNITS, WARP);
  for (unsigned i = 0; i < LANES_HERE; i++) {
    sums->even[i] += parts->even[i];
    sums->odd[i] += parts->odd[i];
  }
}

DEVICE uint64_t scrambled(uint64_t sum, unsigned number)
{
  return (sum ^ sum >> 47 ^ secret_at(LAST_SECRET + 8 * number)) * PRIME32_1;
}

DEVICE void scramble(lane_sums *sums)
{
  for (unsigned i = 0; i < LANES_HERE; i++) {
    sums->even[i] = scrambled(sums->even[i], first_sum(i));
    sums->odd[i] = scrambled(sums->odd[i], first_sum(i) + 1);
  }
}

DEVICE void begin_sums(lane_sums *sums)
{
  DEVICE_TABLE uint64_t begin[] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                   PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
  for (unsigned i = 0; i < LANES_HERE; i++) {
    sums->even[i] = begin[first_sum(i)];
    sums->odd[i] = begin[first_sum(i) + 1];
  }
}

/* So many blocks, whose bytes are on their way at the same time. */
DEVICE void add_blocks(lane_sums *sums, const uint8_t *data, unsigned count, bool is_aligned)
{
  lane_sums parts[AHEAD];
  for (unsigned i = 0; i < count; i++) {
    begin_block(&parts[i], data + BLOCK_BYTES * i, BLOCK_STRIPES, is_aligned);
  }
  for (unsigned i = 0; i < count; i++) {
    add_parts(sums, &parts[i]);
    scramble(sums);
  }
}

/* What is not scrambled: less than a block, and then the very last 64 bytes, which one lane for each quarter adds. */
DEVICE void add_rest(lane_sums *sums, const uint8_t *data, unsigned bytes, bool is_aligned)
{
  lane_sums parts;
  begin_block(&parts, data, (unsigned)((bytes - 1) / STRIPE_BYTES), is_aligned);
  for (unsigned i = 0; i < LANES_HERE; i++) {
    if (FIRST_LANE + i < STRIPE_UNITS) {
      const uint8_t *last = data + bytes - STRIPE_BYTES + UNIT_BYTES * (FIRST_LANE + i);
      add_unit(&parts, i, read_unit(last, false), LAST_SECRET - 7);
    }
  }
  add_parts(sums, &parts);
}

DEVICE uint64_t sum_long(const uint8_t *data, uint64_t bytes, bool is_aligned)
{
  const uint64_t blocks = (bytes - 1) / BLOCK_BYTES;
  uint64_t done = 0;
  lane_sums sums;
  uint64_t merged[LANES_HERE];
  begin_sums(&sums);
  ROLLED
  for (; blocks - done >= AHEAD; done += AHEAD) {
    add_blocks(&sums, data + BLOCK_BYTES * done, AHEAD, is_aligned);
  }
  ROLLED
  for (; done < blocks; done++) {
    add_blocks(&sums, data + BLOCK_BYTES * done, 1, is_aligned);
  }
  add_rest(&sums, data + BLOCK_BYTES * blocks, (unsigned)(bytes - BLOCK_BYTES * blocks), is_aligned);
  for (unsigned i = 0; i < LANES_HERE; i++) {
    const unsigned secret = 11 + 8 * first_sum(i);
    merged[i] = fold(sums.even[i] ^ secret_at(secret), sums.odd[i] ^ secret_at(secret + 8));
  }
  add_up(merged, 1, STRIPE_UNITS);
  return avalanche(bytes * PRIME64_1 + merged[0]);
}

KERNEL kvf_checksums(const kvf_cuda_run *runs, uint64_t count, uint64_t *out)
{
  for (uint64_t i = FIRST_WARP; i < count; i += WARPS) {
    const kvf_cuda_run run = runs[i];
    const uint8_t *data = (const uint8_t *)(uintptr_t)run.address;
    uint64_t sum;
    if (run.bytes <= SHORT_BYTES_MAX) {
      sum = sum_short(data, (unsigned)run.bytes);
    } else if (run.address % UNIT_BYTES == 0) {
      sum = sum_long(data, run.bytes, true);
    } else {
      sum = sum_long(data, run.bytes, false);
    }
    if (FIRST_LANE == 0) {
      out[i] = sum;
    }
  }
}

/* ---- copies ---- */

/* A lane reads eight before it writes the first, so that all are on their way at the same time. */
#define COPY_AS(name, type, alignment)                                                   \
  DEVICE type name##_get(const uint8_t *from)                                            \
  {                                                                                      \
    type value;                                                                          \
    memcpy(&value, __builtin_assume_aligned(from, alignment), sizeof(value));            \
    return value;                                                                        \
  }                                                                                      \
                                                                                         \
  DEVICE void name##_put(uint8_t *to, type value)                                        \
  {                                                                                      \
    memcpy(__builtin_assume_aligned(to, alignment), &value, sizeof(value));              \
  }                                                                                      \
                                                                                         \
  DEVICE void name(uint8_t *to, const uint8_t *from, uint64_t count)                     \
  {                                                                                      \
    const uint64_t lanes = WARP;                                                         \
    const uint64_t step = lanes * sizeof(type);                                          \
    for (unsigned i = 0; i < LANES_HERE; i++) {                                          \
      uint64_t at = FIRST_LANE + i;                                                      \
      uint8_t *out = to + at * sizeof(type);                                             \
      const uint8_t *in = from + at * sizeof(type);                                      \
      ROLLED                                                                             \
      for (; at + 7 * lanes < count; at += 8 * lanes, in += 8 * step, out += 8 * step) { \
        type ahead[8];                                                                   \
        for (unsigned j = 0; j < 8; j++) {                                               \
          ahead[j] = name##_get(in + j * step);                                          \
        }                                                                                \
        for (unsigned j = 0; j < 8; j++) {                                               \
          name##_put(out + j * step, ahead[j]);                                          \
        }                                                                                \
      }                                                                                  \
      ROLLED                                                                             \
      for (; at < count; at += lanes, in += step, out += step) {                         \
        name##_put(out, name##_get(in));                                                 \
      }                                                                                  \
    }                                                                                    \
  }

COPY_AS(copy_units, unit, 16)
COPY_AS(copy_words, uint32_t, 4)
COPY_AS(copy_bytes, uint8_t, 1)

/* How many of the bytes lie before the first multiple of `alignment`. */
DEVICE uint64_t bytes_before(uint64_t address, uint64_t bytes, unsigned alignment)
{
  const uint64_t before = (0 - address) % alignment;
  return before < bytes ? before : bytes;
}

DEVICE void copy_piece(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
  const uint64_t apart = (uint64_t)((uintptr_t)to ^ (uintptr_t)from);
  const unsigned alignment = apart % 16 == 0 ? 16 : apart % 4 == 0 ? 4 : 1;
  const uint64_t before = bytes_before((uintptr_t)to, bytes, alignment);
  const uint64_t rest = bytes - before;
  const uint64_t done = bytes - rest % alignment;
  copy_bytes(to, from, before);
  if (alignment == 16) {
    copy_units(to + before, from + before, rest / 16);
  } else if (alignment == 4) {
    copy_words(to + before, from + before, rest / 4);
  } else {
    copy_bytes(to + before, from + before, rest);
  }
  copy_bytes(to + done, from + done, bytes - done);
}

/* An entry is asked for before the one before it is copied: lists are in the host's memory, which is far. */
KERNEL kvf_gather(const kvf_cuda_piece *pieces, uint64_t count)
{
  const kvf_cuda_piece nothing = {0, 0, 0};
  uint64_t i = FIRST_WARP;
  kvf_cuda_piece next = i < count ? pieces[i] : nothing;
  for (; i < count; i += WARPS) {
    const kvf_cuda_piece piece = next;
    next = i + WARPS < count ? pieces[i + WARPS] : nothing;
    copy_piece((uint8_t *)(uintptr_t)piece.to, (const uint8_t *)(uintptr_t)piece.from, piece.bytes);
  }
}

#endif
