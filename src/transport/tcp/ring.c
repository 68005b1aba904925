/* Fills one half of a stage from blocks, or empties it into them, while the socket uses the other. */
#include "transport/tcp/ring.h"

#define FIRST_BYTES (KVF_STAGE_HALF_BYTES / 4) /* so that the first byte is sent soon */

void kvf_tcp_rings_open(kvf_tcp_rings *rings, const kvf_region *regions, uint32_t count)
{
  *rings = (kvf_tcp_rings){.count = 0};
  while (rings->count < KVF_TCP_RINGS_MAX && kvf_stage_open(&rings->all[rings->count].stage, regions, count)) {
    kvf_tcp_ring_give(rings, &rings->all[rings->count]);
    rings->count++;
  }
}

void kvf_tcp_rings_close(kvf_tcp_rings *rings)
{
  for (uint32_t i = 0; i < rings->count; i++) {
    kvf_stage_close(&rings->all[i].stage);
  }
}

kvf_tcp_ring *kvf_tcp_ring_take(kvf_tcp_rings *rings)
{
  kvf_tcp_ring *taken = rings->free;
  if (taken != NULL) {
    rings->free = taken->next;
  }
  return taken;
}

static bool wait_for_all(kvf_tcp_ring *ring)
{
  const bool first = kvf_stage_wait(&ring->stage, 0);
  const bool second = kvf_stage_wait(&ring->stage, 1);
  return first && second;
}

void kvf_tcp_ring_give(kvf_tcp_rings *rings, kvf_tcp_ring *ring)
{
  if (ring != NULL) {
    (void)wait_for_all(ring);
    ring->half = 0;
    ring->filled[0] = ring->filled[1] = 0;
    ring->sent = 0;
    ring->next = rings->free;
    rings->free = ring;
  }
}

size_t kvf_tcp_runs_next(kvf_segment_cursor *cursor, uint8_t **staged, uint64_t *bytes,
                         kvf_stage_run runs[KVF_TCP_RUNS_MAX])
{
  kvf_segment segments[KVF_TCP_RUNS_MAX];
  const size_t count = kvf_segments_next(cursor, segments, KVF_TCP_RUNS_MAX, *bytes);
  for (size_t i = 0; i < count; i++) {
    runs[i] = (kvf_stage_run){&cursor->chunk->local[segments[i].local_region],
                              kvf_segment_local(cursor->chunk, &segments[i]), *staged, segments[i].bytes};
    *staged += segments[i].bytes;
    *bytes -= segments[i].bytes;
  }
  return count;
}

/* Begins to copy the cursor's next `bytes` bytes between their blocks and the half. */
static bool copy_half(kvf_tcp_ring *ring, unsigned half, kvf_stage_way way, kvf_segment_cursor *cursor, uint64_t bytes)
{
  kvf_stage_run runs[KVF_TCP_RUNS_MAX];
  uint8_t *staged = ring->stage.halves[half];
  bool good = true;
  while (good && bytes > 0) {
    size_t count = kvf_tcp_runs_next(cursor, &staged, &bytes, runs);
    good = kvf_stage_copy(&ring->stage, half, way, runs, count);
  }
  return good;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

/* ---- sending ---- */

static bool fill(kvf_tcp_ring *ring, unsigned half, kvf_segment_cursor *cursor, uint64_t bytes)
{
  ring->filled[half] = bytes;
  return bytes == 0 || copy_half(ring, half, KVF_STAGE_OUT_OF_BLOCKS, cursor, bytes);
}

bool kvf_tcp_ring_offer(kvf_tcp_ring *ring, kvf_segment_cursor *cursor, uint64_t left, struct iovec *out)
{
  const unsigned half = ring->half;
  uint64_t unstaged = left - (ring->filled[half] - ring->sent) - ring->filled[half ^ 1];
  if (ring->filled[half] == 0) {
    if (!fill(ring, half, cursor, smaller(unstaged, FIRST_BYTES))) {
      return false;
    }
    unstaged -= ring->filled[half];
  }
  if (ring->filled[half ^ 1] == 0 && !fill(ring, half ^ 1, cursor, smaller(unstaged, KVF_STAGE_HALF_BYTES))) {
    return false;
  }
  *out = (struct iovec){ring->stage.halves[half] + ring->sent, ring->filled[half] - ring->sent};
  return kvf_stage_wait(&ring->stage, half);
}

void kvf_tcp_ring_sent(kvf_tcp_ring *ring, uint64_t bytes)
{
  ring->sent += bytes;
  if (ring->sent == ring->filled[ring->half]) {
    ring->filled[ring->half] = 0;
    ring->sent = 0;
    ring->half ^= 1;
  }
}

/* ---- receiving ---- */

bool kvf_tcp_ring_room(kvf_tcp_ring *ring, uint64_t left, struct iovec *out)
{
  const uint64_t filled = ring->filled[ring->half];
  *out = (struct iovec){ring->stage.halves[ring->half] + filled, smaller(KVF_STAGE_HALF_BYTES - filled, left)};
  return kvf_stage_wait(&ring->stage, ring->half);
}

bool kvf_tcp_ring_received(kvf_tcp_ring *ring, kvf_segment_cursor *cursor, uint64_t bytes, uint64_t left)
{
  const unsigned half = ring->half;
  bool good = true;
  ring->filled[half] += bytes;
  if (ring->filled[half] == KVF_STAGE_HALF_BYTES || left == 0) {
    good = copy_half(ring, half, KVF_STAGE_INTO_BLOCKS, cursor, ring->filled[half]);
    ring->filled[half] = 0;
    ring->half ^= 1;
  }
  return left > 0 ? good : wait_for_all(ring) && good;
}
