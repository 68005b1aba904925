/* Lists of pieces for the driver's batch call or for our own kernel, and copies by halves of a lane's pinned memory. */
#include "memory/cuda/device_copy.h"

#include <assert.h>
#include <string.h>

/* What one call of the driver's takes. */
typedef struct pieces {
  kvf_cu_memory to[KVF_CUDA_PIECES_MAX];
  kvf_cu_memory from[KVF_CUDA_PIECES_MAX];
  size_t bytes[KVF_CUDA_PIECES_MAX];
  size_t count;
} pieces;

static void add_piece(pieces *all, uintptr_t to, uintptr_t from, size_t bytes)
{
  all->to[all->count] = to;
  all->from[all->count] = from;
  all->bytes[all->count] = bytes;
  all->count++;
}

/* Returns the bytes of all. */
static uint64_t list_runs(pieces *all, const struct iovec *to, const struct iovec *from, size_t count)
{
  uint64_t bytes = 0;
  all->count = 0;
  for (size_t i = 0; i < count; i++) {
    add_piece(all, (uintptr_t)to[i].iov_base, (uintptr_t)from[i].iov_base, from[i].iov_len);
    bytes += from[i].iov_len;
  }
  return bytes;
}

static kvf_cu_result one_by_one(const kvf_cuda_api *api, kvf_cu_stream stream, const pieces *all)
{
  kvf_cu_result result = KVF_CUDA_SUCCESS;
  for (size_t i = 0; result == KVF_CUDA_SUCCESS && i < all->count; i++) {
    result = api->memcpy_async(all->to[i], all->from[i], all->bytes[i], stream);
  }
  return result;
}

/* The source is read at its turn in the stream, and so not before the call, as rule R3 of base/fence.h wants it. */
static kvf_cu_result post(kvf_cuda_gpu *gpu, kvf_cu_stream stream, pieces *all)
{
  const kvf_cuda_api *api = &gpu->cuda->api;
  kvf_cu_memcpy_attributes attributes = {.src_access_order = KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  size_t first = 0;
  size_t failed = 0;
  if (api->memcpy_batch_async == NULL || (uintptr_t)stream <= KVF_CU_STREAM_LEGACY) {
    return one_by_one(api, stream, all);
  }
  return api->memcpy_batch_async(all->to, all->from, all->bytes, all->count, &attributes, &first, 1, &failed, stream);
}

/* Behind all copies that were begun, also if some could not be: *open says that the half's event must be waited for. */
static kvf_status post_and_record(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane, unsigned half, pieces *all, bool *open)
{
  kvf_status posted = kvf_cuda_gpu_status(gpu, post(gpu, lane->stream, all));
  kvf_status recorded = kvf_cuda_lane_record(gpu, lane, half);
  *open = recorded == KVF_OK;
  return posted != KVF_OK ? posted : recorded;
}

#define ENTRIES_MAX (KVF_CUDA_HALF_BYTES / sizeof(kvf_cuda_piece))

/* Cut into entries, of which the last of a piece has what is left where the list would be too long. */
static size_t list_entries(kvf_cuda_piece *list, const pieces *all)
{
  size_t count = 0;
  for (size_t i = 0; i < all->count; i++) {
    kvf_cuda_piece left = {all->to[i], all->from[i], all->bytes[i]};
    const size_t rest = all->count - i; /* of the pieces, which have an entry each at least */
    for (; left.bytes > KVF_CUDA_ENTRY_BYTES && count + rest < ENTRIES_MAX; count++) {
      list[count] = (kvf_cuda_piece){left.to, left.from, KVF_CUDA_ENTRY_BYTES};
      left.to += KVF_CUDA_ENTRY_BYTES;
      left.from += KVF_CUDA_ENTRY_BYTES;
      left.bytes -= KVF_CUDA_ENTRY_BYTES;
    }
    list[count++] = left;
  }
  return count;
}

/* Its list lies in the half until the kernel has ended. */
static kvf_cu_result post_gather(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane, unsigned half, kvf_memory_gather gather,
                                 const pieces *all)
{
  kvf_cuda_shape shape = kvf_cuda_usual_shape;
  kvf_cuda_piece *list = (void *)(lane->pinned.bytes + half * KVF_CUDA_HALF_BYTES);
  uint64_t at = (uintptr_t)list;
  uint64_t count = list_entries(list, all);
  void *arguments[] = {&at, &count};
  shape.blocks = gather.blocks != 0 ? gather.blocks : shape.blocks;
  shape.threads = gather.threads >= KVF_CUDA_WARP ? gather.threads / KVF_CUDA_WARP * KVF_CUDA_WARP : shape.threads;
  return kvf_cuda_launch(gpu->cuda, lane->stream, gpu->kernels.gather, shape, count, arguments);
}

_Static_assert(KVF_CUDA_PIECES_MAX <= ENTRIES_MAX, "a list fits a half");

/* With its event behind all posted copies, also if some could not be posted: then the event is waited for. */
static kvf_status post_within(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane, unsigned half, kvf_memory_gather gather,
                              pieces *all, uint64_t bytes, uint64_t *posting_ns)
{
  const uint64_t since_ns = kvf_cuda_now_ns();
  const bool is_small = gpu->kernels.gather != NULL && all->count > 1 && bytes / all->count < gather.bytes;
  kvf_status posted =
      kvf_cuda_gpu_status(gpu, is_small ? post_gather(gpu, lane, half, gather, all) : post(gpu, lane->stream, all));
  *posting_ns = kvf_cuda_now_ns() - since_ns;
  kvf_status recorded = kvf_cuda_lane_record(gpu, lane, half);
  if (posted != KVF_OK && recorded == KVF_OK) {
    recorded = kvf_cuda_lane_wait(gpu, lane, half);
  }
  return posted != KVF_OK ? posted : recorded;
}

/* For a first copy, which makes the device's context the thread's. */
static kvf_status take_lane(kvf_cuda_gpu *gpu, kvf_cuda_lane **out)
{
  kvf_cuda_stay stay;
  if (!kvf_cuda_gpu_enter(gpu, &stay)) {
    return KVF_TRANSFER_FAILED;
  }
  *out = kvf_cuda_lane_take(gpu);
  if (*out == NULL) {
    kvf_cuda_leave(&stay);
    return KVF_NO_MEMORY;
  }
  (*out)->stay = stay;
  return KVF_OK;
}

static void give_lane(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane)
{
  const kvf_cuda_stay stay = lane->stay;
  kvf_cuda_lane_give(gpu, lane);
  kvf_cuda_leave(&stay);
}

kvf_status kvf_cuda_begin_within(kvf_cuda_gpu *gpu, kvf_memory_gather gather, const struct iovec *to,
                                 const struct iovec *from, size_t count, kvf_cuda_lane **out, uint64_t *posting_ns)
{
  pieces all;
  kvf_cuda_lane *lane = *out;
  const uint64_t bytes = list_runs(&all, to, from, count);
  *posting_ns = 0;
  kvf_status status = lane == NULL ? take_lane(gpu, &lane) : KVF_OK;
  if (status != KVF_OK) {
    return status;
  }
  assert(lane->under_way == (*out == NULL ? 0 : 1));
  status = post_within(gpu, lane, (lane->oldest + lane->under_way) % 2, gather, &all, bytes, posting_ns);
  if (status == KVF_OK) {
    lane->under_way++;
    *out = lane;
  } else if (lane->under_way == 0) {
    give_lane(gpu, lane);
  }
  return status;
}

kvf_status kvf_cuda_finish(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane)
{
  kvf_status status = kvf_cuda_lane_wait(gpu, lane, lane->oldest);
  lane->oldest ^= 1;
  if (--lane->under_way == 0) {
    give_lane(gpu, lane);
  }
  return status;
}

kvf_status kvf_cuda_begin(kvf_cuda_gpu *gpu, kvf_cu_stream stream, const struct iovec *to, const struct iovec *from,
                          size_t count)
{
  pieces all;
  kvf_cuda_stay stay;
  list_runs(&all, to, from, count);
  if (!kvf_cuda_gpu_enter(gpu, &stay)) {
    return KVF_TRANSFER_FAILED;
  }
  kvf_status status = kvf_cuda_gpu_status(gpu, post(gpu, stream, &all));
  kvf_cuda_leave(&stay);
  return status;
}

/* ---- checksums ---- */

/* Behind all posted copies, also if some could not be posted. */
static kvf_status record_and_wait(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane, kvf_cu_result posted)
{
  kvf_status status = kvf_cuda_gpu_status(gpu, posted);
  kvf_status ended = kvf_cuda_lane_record(gpu, lane, 0);
  if (ended == KVF_OK) {
    ended = kvf_cuda_lane_wait(gpu, lane, 0);
  }
  return status == KVF_OK ? ended : status;
}

/* The list in the first half, the results in the second. */
static kvf_status sum_runs(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane, const struct iovec *runs, size_t count,
                           uint64_t *out)
{
  kvf_cuda_run *list = (void *)lane->pinned.bytes;
  uint64_t *sums = (void *)(lane->pinned.bytes + KVF_CUDA_HALF_BYTES);
  uint64_t at = (uintptr_t)list;
  uint64_t sums_at = (uintptr_t)sums;
  uint64_t entries = count;
  void *arguments[] = {&at, &entries, &sums_at};
  for (size_t i = 0; i < count; i++) {
    list[i] = (kvf_cuda_run){(uintptr_t)runs[i].iov_base, runs[i].iov_len};
  }
  kvf_status status = record_and_wait(
      gpu, lane,
      kvf_cuda_launch(gpu->cuda, lane->stream, gpu->kernels.checksums, kvf_cuda_usual_shape, count, arguments));
  if (status == KVF_OK) {
    memcpy(out, sums, count * sizeof(*out));
  }
  return status;
}

kvf_status kvf_cuda_checksums(kvf_cuda_gpu *gpu, const struct iovec *runs, size_t count, uint64_t *out)
{
  kvf_cuda_stay stay;
  kvf_status status = KVF_NO_MEMORY;
  if (gpu->kernels.checksums == NULL) {
    return KVF_INVALID;
  }
  if (!kvf_cuda_gpu_enter(gpu, &stay)) {
    return KVF_TRANSFER_FAILED;
  }
  kvf_cuda_lane *lane = kvf_cuda_lane_take(gpu);
  if (lane != NULL) {
    status = sum_runs(gpu, lane, runs, count, out);
    kvf_cuda_lane_give(gpu, lane);
  }
  kvf_cuda_leave(&stay);
  return status;
}

/* ---- between the device and the host ---- */

/* Runs, of which some have been gone through. */
typedef struct walk {
  const struct iovec *device;
  const struct iovec *host;
  size_t count;
  size_t run;
  size_t offset; /* in the run */
} walk;

typedef struct run_part {
  uintptr_t device;
  uint8_t *host;
  size_t bytes;
} run_part;

/* The next part, of bytes_max at most; its bytes 0: there is none. */
static run_part next_part(walk *at, size_t bytes_max)
{
  while (at->run < at->count && at->offset == at->device[at->run].iov_len) {
    at->run++;
    at->offset = 0;
  }
  if (at->run == at->count) {
    return (run_part){0};
  }
  const size_t left = at->device[at->run].iov_len - at->offset;
  const run_part part = {(uintptr_t)at->device[at->run].iov_base + at->offset,
                         (uint8_t *)at->host[at->run].iov_base + at->offset, left < bytes_max ? left : bytes_max};
  at->offset += part.bytes;
  return part;
}

typedef struct staged_copy {
  kvf_cuda_gpu *gpu;
  kvf_cuda_lane *lane;
  bool in; /* else out */
  walk ahead;
  walk behind; /* out: what has come to the host */
  bool open[2];
  pieces all;
} staged_copy;

static uint8_t *half_at(const staged_copy *copy, unsigned half)
{
  return copy->lane->pinned.bytes + half * KVF_CUDA_HALF_BYTES;
}

/* The next parts that fit the half, all listed and, on their way in, already there. */
static void fill_half(staged_copy *copy, unsigned half)
{
  uint8_t *pinned = half_at(copy, half);
  size_t room = KVF_CUDA_HALF_BYTES;
  run_part part;
  copy->all.count = 0;
  while (room > 0 && copy->all.count < KVF_CUDA_PIECES_MAX && (part = next_part(&copy->ahead, room)).bytes > 0) {
    if (copy->in) {
      memcpy(pinned, part.host, part.bytes);
      add_piece(&copy->all, part.device, (uintptr_t)pinned, part.bytes);
    } else {
      add_piece(&copy->all, (uintptr_t)pinned, part.device, part.bytes);
    }
    pinned += part.bytes;
    room -= part.bytes;
  }
}

/* Out: the same parts, now that they have come. */
static void empty_half(staged_copy *copy, unsigned half)
{
  const uint8_t *pinned = half_at(copy, half);
  size_t room = KVF_CUDA_HALF_BYTES;
  run_part part;
  for (size_t i = 0; room > 0 && i < KVF_CUDA_PIECES_MAX && (part = next_part(&copy->behind, room)).bytes > 0; i++) {
    memcpy(part.host, pinned, part.bytes);
    pinned += part.bytes;
    room -= part.bytes;
  }
}

static kvf_status end_half(staged_copy *copy, unsigned half)
{
  if (!copy->open[half]) {
    return KVF_OK;
  }
  kvf_status status = kvf_cuda_lane_wait(copy->gpu, copy->lane, half);
  copy->open[half] = false;
  if (status == KVF_OK && !copy->in) {
    empty_half(copy, half);
  }
  return status;
}

/* One half is copied while the other is filled or emptied. */
static kvf_status run(staged_copy *copy)
{
  kvf_status status = KVF_OK;
  unsigned half = 0;
  do {
    kvf_status ended = end_half(copy, half);
    status = status == KVF_OK ? ended : status;
    copy->all.count = 0;
    if (status == KVF_OK) {
      fill_half(copy, half);
    }
    if (copy->all.count > 0) {
      status = post_and_record(copy->gpu, copy->lane, half, &copy->all, &copy->open[half]);
    }
    half ^= 1;
  } while (copy->open[0] || copy->open[1]);
  return status;
}

static kvf_status copy_staged(kvf_cuda_gpu *gpu, bool in, const struct iovec *device, const struct iovec *host,
                              size_t count)
{
  kvf_cuda_stay stay;
  kvf_status status = KVF_NO_MEMORY;
  staged_copy copy;
  copy.gpu = gpu;
  copy.in = in;
  copy.ahead = copy.behind = (walk){.device = device, .host = host, .count = count};
  copy.open[0] = copy.open[1] = false;
  if (!kvf_cuda_gpu_enter(gpu, &stay)) {
    return KVF_TRANSFER_FAILED;
  }
  copy.lane = kvf_cuda_lane_take(gpu);
  if (copy.lane != NULL) {
    status = run(&copy);
    kvf_cuda_lane_give(gpu, copy.lane);
  }
  kvf_cuda_leave(&stay);
  return status;
}

kvf_status kvf_cuda_copy_out(kvf_cuda_gpu *gpu, const struct iovec *to, const struct iovec *from, size_t count)
{
  return copy_staged(gpu, false, from, to, count);
}

kvf_status kvf_cuda_copy_in(kvf_cuda_gpu *gpu, const struct iovec *to, const struct iovec *from, size_t count)
{
  return copy_staged(gpu, true, to, from, count);
}
