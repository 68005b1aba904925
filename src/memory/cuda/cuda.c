/* Memory of NVIDIA GPUs. Each call waits for its copies, so for the caller it behaves as host memory. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/status.h"
#include "memory/cuda/describe.h"
#include "memory/cuda/device_copy.h"
#include "memory/cuda/device_stage.h"
#include "memory/cuda/export.h"
#include "memory/cuda/network.h"
#include "memory/memory.h"

#define CHECKSUM_PIECE_BYTES 65536

static kvf_status open_kind(const char *library, char *message)
{
  const kvf_cuda *cuda;
  return kvf_cuda_load(library, &cuda, message);
}

static bool works(uint32_t device)
{
  kvf_cuda_gpu *gpu = kvf_cuda_gpu_opened(device);
  return gpu == NULL || !atomic_load_explicit(&gpu->is_lost, memory_order_relaxed);
}

/* ---- what a region is ---- */

typedef struct pointer_facts {
  unsigned memory_type;
  int ordinal;
  int is_managed;
} pointer_facts;

static kvf_cu_result look_at(const kvf_cuda *cuda, kvf_cu_memory address, pointer_facts *out)
{
  unsigned attributes[] = {KVF_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, KVF_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                           KVF_CU_POINTER_ATTRIBUTE_IS_MANAGED};
  uint64_t values[3] = {0}; /* cuda_api.h: why each has eight bytes */
  void *data[] = {&values[0], &values[1], &values[2]};
  kvf_cu_result result = cuda->api.pointer_get_attributes(3, attributes, data, address);
  *out = (pointer_facts){(unsigned)values[0], (int)(uint32_t)values[1], (int)(uint32_t)values[2]};
  return result;
}

/* Whether all from `at` on has been allocated on the device; more than one allocation may lie side by side. */
static bool is_allocated(const kvf_cuda *cuda, kvf_cu_memory at, uint64_t bytes, uint32_t device)
{
  const kvf_cu_memory end = at + bytes;
  while (at < end) {
    kvf_cu_memory base;
    size_t length;
    pointer_facts facts;
    if (cuda->api.mem_get_address_range(&base, &length, at) != KVF_CUDA_SUCCESS || base + length <= at ||
        look_at(cuda, at, &facts) != KVF_CUDA_SUCCESS || (uint32_t)facts.ordinal != device) {
      return false;
    }
    at = base + length;
  }
  return true;
}

static kvf_status check_there(kvf_cuda_gpu *gpu, const kvf_region *region, char *message)
{
  const kvf_cuda *cuda = gpu->cuda;
  const kvf_cu_memory base = (uintptr_t)region->base;
  const uint64_t bytes = region->stride_bytes * (region->blocks - 1) + region->block_bytes;
  pointer_facts facts;
  kvf_cu_result result = look_at(cuda, base, &facts);
  if (result != KVF_CUDA_SUCCESS) {
    return kvf_fail(KVF_INVALID, message, "the driver does not describe the memory at %p: %s", region->base,
                    kvf_cuda_error_name(cuda, result));
  }
  if (facts.memory_type != KVF_CU_MEMORYTYPE_DEVICE || facts.is_managed != 0) {
    return kvf_fail(KVF_INVALID, message, "%p is %s, not memory of a CUDA device", region->base,
                    facts.is_managed != 0    ? "managed memory"
                    : facts.memory_type == 0 ? "nothing that CUDA knows"
                                             : "the host's memory");
  }
  if ((uint32_t)facts.ordinal != region->device) {
    return kvf_fail(KVF_INVALID, message, "%p is memory of CUDA device %d, not %u", region->base, facts.ordinal,
                    (unsigned)region->device);
  }
  if (!kvf_address_is_possible(base, bytes) || !is_allocated(cuda, base, bytes, region->device)) {
    return kvf_fail(KVF_INVALID, message, "%llu bytes at %p are not all allocated on CUDA device %u",
                    (unsigned long long)bytes, region->base, (unsigned)region->device);
  }
  return KVF_OK;
}

static kvf_status check(const kvf_region *region, char *message)
{
  kvf_cuda_gpu *gpu;
  kvf_cuda_stay stay;
  kvf_status status = kvf_cuda_gpu_of(region->device, &gpu, message);
  if (status != KVF_OK) {
    return status;
  }
  if (!kvf_cuda_gpu_enter(gpu, &stay)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "CUDA device %u is lost", (unsigned)region->device);
  }
  status = check_there(gpu, region, message);
  kvf_cuda_leave(&stay);
  return status;
}

/* ---- bytes ---- */

static bool copy_in(uint32_t device, const struct iovec *to, const struct iovec *from, size_t count)
{
  return kvf_cuda_copy_in(kvf_cuda_gpu_opened(device), to, from, count) == KVF_OK;
}

static bool copy_out(uint32_t device, const struct iovec *to, const struct iovec *from, size_t count)
{
  return kvf_cuda_copy_out(kvf_cuda_gpu_opened(device), to, from, count) == KVF_OK;
}

typedef struct run_source {
  uint32_t device;
  const uint8_t *at;
  size_t left;
  uint8_t piece[CHECKSUM_PIECE_BYTES];
} run_source;

static bool next_piece(void *context, const void **data, size_t *bytes)
{
  run_source *source = context;
  *data = source->piece;
  *bytes = source->left < sizeof(source->piece) ? source->left : sizeof(source->piece);
  const struct iovec to = {source->piece, *bytes};
  const struct iovec from = {(void *)(uintptr_t)source->at, *bytes};
  if (*bytes > 0 && !copy_out(source->device, &to, &from, 1)) {
    return false;
  }
  source->at += *bytes;
  source->left -= *bytes;
  return true;
}

/* By way of the host. */
static bool checksum_here(uint32_t device, const struct iovec *run, uint64_t *out)
{
  run_source source;
  source.device = device;
  source.at = run->iov_base;
  source.left = run->iov_len;
  return kvf_checksum_of_pieces(next_piece, &source, out);
}

static bool copy_on(const kvf_ordering_point *point, const struct iovec *to, const struct iovec *from, size_t count)
{
  kvf_cuda_gpu *gpu = kvf_cuda_gpu_opened(point->device);
  return gpu != NULL && kvf_cuda_begin(gpu, point->handle, to, from, count) == KVF_OK;
}

/* ---- pinned memory ---- */

typedef struct pinned_memory {
  kvf_cuda_gpu *gpu;
  kvf_cuda_pinned pinned;
} pinned_memory;

static bool pin(uint32_t device, size_t bytes, uint8_t **memory, void **out)
{
  kvf_cuda_gpu *gpu = kvf_cuda_gpu_opened(device);
  pinned_memory *made = calloc(1, sizeof(*made));
  kvf_cuda_stay stay;
  if (made == NULL || gpu == NULL || !kvf_cuda_gpu_enter(gpu, &stay)) {
    free(made);
    return false;
  }
  made->gpu = gpu;
  kvf_status status = kvf_cuda_gpu_status(gpu, kvf_cuda_pin(gpu->cuda, gpu->device->ordinal, bytes, &made->pinned));
  kvf_cuda_leave(&stay);
  if (status != KVF_OK) {
    free(made);
    return false;
  }
  *memory = made->pinned.bytes;
  *out = made;
  return true;
}

static void unpin(void *pinned)
{
  pinned_memory *memory = pinned;
  kvf_cuda_stay stay;
  if (kvf_cuda_gpu_enter(memory->gpu, &stay)) { /* else the driver may still have it in hand */
    kvf_cuda_unpin(memory->gpu->cuda, &memory->pinned);
    kvf_cuda_leave(&stay);
  }
  free(memory);
}

/* ---- checksums and reads ---- */

static bool checksums(uint32_t device, const struct iovec *runs, size_t count, uint64_t *out)
{
  kvf_status status = kvf_cuda_checksums(kvf_cuda_gpu_opened(device), runs, count, out);
  bool summed = status == KVF_OK || status == KVF_INVALID;
  for (size_t i = 0; summed && status == KVF_INVALID && i < count; i++) {
    summed = checksum_here(device, &runs[i], &out[i]);
  }
  return summed;
}

static kvf_status import_region(const kvf_memory_source *source, kvf_memory_import *out, char *message)
{
  kvf_status status = kvf_cuda_import(source, out, message);
  if (status == KVF_OK) {
    out->ops = &kvf_memory_cuda;
  }
  return status;
}

/* By the path that it takes, unless that is said. */
static kvf_memory_gather gather_of(const kvf_memory_batch *batch)
{
  kvf_memory_gather gather = batch->gather;
  if (gather.bytes == 0) {
    gather.bytes = kvf_cuda_import_is_of_reader(batch->import) ? KVF_CUDA_GATHER_BYTES : KVF_CUDA_GATHER_PEER_BYTES;
  }
  return gather;
}

static uint64_t bytes_of(const struct iovec *runs, size_t count)
{
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    bytes += runs[i].iov_len;
  }
  return bytes;
}

static kvf_status begin_batch(const kvf_memory_batch *batch, const kvf_memory_step *before, kvf_memory_step *step)
{
  const struct iovec *to = &batch->to[batch->first];
  const struct iovec *from = &batch->from[batch->first];
  const size_t count = batch->count - batch->first;
  uint64_t posting_ns = 0;
  kvf_cuda_gpu *gpu;
  kvf_cuda_lane *lane = before == NULL ? NULL : before->state;
  *step = (kvf_memory_step){.import = batch->import, .bytes = bytes_of(to, count), .since_ns = kvf_cuda_now_ns()};
  if (!kvf_cuda_import_enter(batch->import, &gpu)) {
    return KVF_TRANSFER_FAILED;
  }
  assert(before == NULL || kvf_cuda_import_gpu(before->import) == gpu);
  kvf_status status = kvf_cuda_begin_within(gpu, gather_of(batch), to, from, count, &lane, &posting_ns);
  if (status != KVF_OK) {
    kvf_cuda_import_leave(batch->import);
  }
  step->state = lane;
  batch->work->device_posting_ns += posting_ns;
  return status;
}

static kvf_status finish_batch(kvf_memory_step *step, kvf_read_work *work)
{
  kvf_status status = kvf_cuda_finish(kvf_cuda_import_gpu(step->import), step->state);
  kvf_cuda_import_leave(step->import);
  work->device_copy_ns += kvf_cuda_now_ns() - step->since_ns;
  return status;
}

static kvf_status read_into_host(const kvf_memory_batch *batch, uint64_t *bytes)
{
  const struct iovec *to = &batch->to[batch->first];
  const size_t count = batch->count - batch->first;
  const uint64_t since_ns = kvf_cuda_now_ns();
  kvf_cuda_gpu *gpu;
  if (!kvf_cuda_import_enter(batch->import, &gpu)) {
    return KVF_TRANSFER_FAILED;
  }
  kvf_status status = kvf_cuda_copy_out(gpu, to, &batch->from[batch->first], count);
  kvf_cuda_import_leave(batch->import);
  batch->work->device_copy_ns += kvf_cuda_now_ns() - since_ns;
  *bytes = status == KVF_OK ? bytes_of(to, count) : 0;
  return status;
}

static kvf_status read_batch(pid_t pid, const kvf_memory_batch *batch, uint64_t *bytes)
{
  kvf_memory_step step;
  (void)pid;
  *bytes = 0;
  if (batch->into != &kvf_memory_cuda) {
    return read_into_host(batch, bytes);
  }
  kvf_status status = begin_batch(batch, NULL, &step);
  if (status == KVF_OK) {
    status = finish_batch(&step, batch->work);
    *bytes = status == KVF_OK ? step.bytes : 0;
  }
  return status;
}

/* ---- ordering points ---- */

/* What a stream is given while it is captured becomes part of a graph, and an event behind it is never complete. The
 * legacy stream would end the capture of a stream that it waits for. To ask ends none. */
static kvf_status check_stream(kvf_cuda_gpu *gpu, kvf_cu_stream stream)
{
  unsigned captured = KVF_CU_STREAM_CAPTURE_STATUS_NONE;
  kvf_cu_result result = gpu->cuda->api.stream_is_capturing(stream, &captured);
  const bool is_waited_for = result == KVF_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  kvf_status status = is_waited_for ? KVF_OK : kvf_cuda_gpu_status(gpu, result);
  return status == KVF_OK && (is_waited_for || captured != KVF_CU_STREAM_CAPTURE_STATUS_NONE)
             ? kvf_because(KVF_INVALID, "the stream of the ordering point, or one that it waits for, is being captured")
             : status;
}

static kvf_status no_device(const kvf_ordering_point *point)
{
  return kvf_because(KVF_INVALID, "ordering point: no memory of CUDA device %u is registered", (unsigned)point->device);
}

static kvf_status check_point(const kvf_ordering_point *point)
{
  kvf_cuda_gpu *gpu = kvf_cuda_gpu_opened(point->device);
  kvf_cuda_stay stay;
  if (gpu == NULL || !kvf_cuda_gpu_enter(gpu, &stay)) {
    return gpu == NULL ? no_device(point) : KVF_TRANSFER_FAILED;
  }
  kvf_status status = check_stream(gpu, point->handle);
  kvf_cuda_leave(&stay);
  return status;
}

static kvf_status mark_stream(kvf_cuda_gpu *gpu, kvf_cu_stream stream, void **out)
{
  kvf_cuda_mark *mark;
  kvf_status status = kvf_cuda_mark_take(gpu, &mark);
  if (status != KVF_OK) {
    return status;
  }
  status = kvf_cuda_gpu_status(gpu, gpu->cuda->api.event_record(mark->event, stream));
  if (status != KVF_OK) {
    kvf_cuda_mark_give(mark);
    return status;
  }
  *out = mark;
  return KVF_OK;
}

static kvf_status mark_point(const kvf_ordering_point *point, void **out)
{
  kvf_cuda_gpu *gpu = kvf_cuda_gpu_opened(point->device);
  kvf_cuda_stay stay;
  if (gpu == NULL) {
    return no_device(point);
  }
  if (!kvf_cuda_gpu_enter(gpu, &stay)) {
    return KVF_TRANSFER_FAILED;
  }
  kvf_status status = check_stream(gpu, point->handle);
  if (status == KVF_OK) {
    status = mark_stream(gpu, point->handle, out);
  }
  kvf_cuda_leave(&stay);
  return status;
}

/* An error is none of completion: what waits for the point runs out, and the node says that the device is lost. */
static bool is_complete(void *context)
{
  kvf_cuda_mark *mark = context;
  kvf_cuda_stay stay;
  if (!kvf_cuda_gpu_enter(mark->gpu, &stay)) {
    return false;
  }
  kvf_cu_result result = mark->gpu->cuda->api.event_query(mark->event);
  kvf_cuda_leave(&stay);
  return kvf_cuda_gpu_status(mark->gpu, result) == KVF_OK; /* not of one that is not complete */
}

static void unmark(void *mark)
{
  kvf_cuda_mark_give(mark);
}

const kvf_memory_ops kvf_memory_cuda = {
    .kind = KVF_MEMORY_CUDA,
    .batch_runs_max = KVF_CUDA_PIECES_MAX,
    .batch_bytes_max = UINT64_C(32) << 20,
    .open = open_kind,
    .describe = kvf_cuda_describe,
    .remark = kvf_cuda_remark,
    .works = works,
    .check = check,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .stage = &kvf_cuda_stage_ops,
    .copy_on = copy_on,
    .pin = pin,
    .unpin = unpin,
    .checksums = checksums,
    .within = kvf_cuda_within,
    .flush = kvf_cuda_flush,
    .check_point = check_point,
    .mark = mark_point,
    .is_complete = is_complete,
    .unmark = unmark,
    .export = kvf_cuda_export,
    .unexport = kvf_cuda_unexport,
    .import = import_region,
    .release = kvf_cuda_release,
    .read = read_batch,
    .begin = begin_batch,
    .finish = finish_batch,
};
