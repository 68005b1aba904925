/* Staging by a lane of its own: copies are begun in its stream, and each half has an event behind its last. */
#include "memory/cuda/device_stage.h"

#include <stdlib.h>

#include "memory/cuda/device_copy.h"

typedef struct cuda_stage {
  kvf_cuda_gpu *gpu;
  kvf_cuda_lane *lane;
} cuda_stage;

static bool open_stage(uint32_t device, uint8_t *halves[2], void **out)
{
  kvf_cuda_gpu *gpu = kvf_cuda_gpu_opened(device);
  cuda_stage *stage = calloc(1, sizeof(*stage));
  kvf_cuda_stay stay;
  if (stage == NULL || gpu == NULL || !kvf_cuda_gpu_enter(gpu, &stay)) {
    free(stage);
    return false;
  }
  *stage = (cuda_stage){.gpu = gpu};
  kvf_status status = kvf_cuda_lane_make(gpu, &stage->lane);
  kvf_cuda_leave(&stay);
  if (status != KVF_OK) {
    free(stage);
    return false;
  }
  halves[0] = stage->lane->pinned.bytes;
  halves[1] = stage->lane->pinned.bytes + KVF_CUDA_HALF_BYTES;
  *out = stage;
  return true;
}

static void close_stage(void *state)
{
  cuda_stage *stage = state;
  kvf_cuda_stay stay;
  if (kvf_cuda_gpu_enter(stage->gpu, &stay)) { /* else its memory stays with the driver, which may still write there */
    kvf_cuda_lane_free(stage->gpu, stage->lane);
    kvf_cuda_leave(&stay);
  }
  free(stage);
}

static bool copy(void *state, const struct iovec *to, const struct iovec *from, size_t count)
{
  const cuda_stage *stage = state;
  return kvf_cuda_begin(stage->gpu, stage->lane->stream, to, from, count) == KVF_OK;
}

/* Also of a device that is not healthy: what is under way is waited for, if its context is still there. */
static bool do_half(const cuda_stage *stage, unsigned half,
                    kvf_status (*what)(kvf_cuda_gpu *gpu, kvf_cuda_lane *lane, unsigned half))
{
  kvf_cuda_stay stay;
  if (kvf_cuda_enter(stage->gpu->cuda, stage->gpu->context, &stay) != KVF_OK) {
    return false;
  }
  kvf_status status = what(stage->gpu, stage->lane, half);
  kvf_cuda_leave(&stay);
  return status == KVF_OK;
}

static bool mark(void *state, unsigned half)
{
  return do_half(state, half, kvf_cuda_lane_record);
}

static bool wait(void *state, unsigned half)
{
  return do_half(state, half, kvf_cuda_lane_wait);
}

const kvf_stage_ops kvf_cuda_stage_ops = {
    .open = open_stage, .close = close_stage, .copy = copy, .mark = mark, .wait = wait};
