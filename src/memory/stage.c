/* Copies runs by the operations of the kind that each lies in, begun where the kind can, else done at once. */
#include "memory/stage.h"

#include <stdlib.h>

#define RUNS_MAX 256 /* that are copied at a time: no kind takes fewer */

static const kvf_region *device_region(const kvf_region *regions, uint32_t count)
{
  uint32_t i = 0;
  while (i + 1 < count && kvf_memory_ops_of(regions[i].memory)->is_addressable) {
    i++;
  }
  return &regions[i];
}

bool kvf_stage_open(kvf_stage *stage, const kvf_region *regions, uint32_t count)
{
  const kvf_region *region = device_region(regions, count);
  *stage = (kvf_stage){.ops = kvf_memory_ops_of(region->memory)};
  if (stage->ops->stage != NULL) {
    return stage->ops->stage->open(region->device, stage->halves, &stage->state);
  }
  stage->halves[0] = malloc(2 * KVF_STAGE_HALF_BYTES);
  stage->halves[1] = stage->halves[0] == NULL ? NULL : stage->halves[0] + KVF_STAGE_HALF_BYTES;
  return stage->halves[0] != NULL;
}

void kvf_stage_close(kvf_stage *stage)
{
  for (unsigned half = 0; half < 2; half++) {
    (void)kvf_stage_wait(stage, half);
  }
  if (stage->state != NULL) {
    stage->ops->stage->close(stage->state);
  } else {
    free(stage->halves[0]);
  }
}

/* All of one kind and device. `stage` NULL: at once. */
static bool copy_alike(const kvf_stage *stage, kvf_stage_way way, const kvf_region *region, const struct iovec *blocks,
                       const struct iovec *staged, size_t count)
{
  const kvf_memory_ops *ops = kvf_memory_ops_of(region->memory);
  const bool out = way == KVF_STAGE_OUT_OF_BLOCKS;
  if (stage != NULL && ops == stage->ops && stage->state != NULL) {
    return out ? ops->stage->copy(stage->state, staged, blocks, count)
               : ops->stage->copy(stage->state, blocks, staged, count);
  }
  return out ? ops->copy_out(region->device, staged, blocks, count)
             : ops->copy_in(region->device, blocks, staged, count);
}

static bool copy_all(const kvf_stage *stage, kvf_stage_way way, const kvf_stage_run *runs, size_t count)
{
  struct iovec blocks[RUNS_MAX];
  struct iovec staged[RUNS_MAX];
  size_t alike = 0;
  bool good = true;
  for (size_t i = 0; good && i < count; i++) {
    blocks[alike] = (struct iovec){runs[i].block, runs[i].bytes};
    staged[alike] = (struct iovec){runs[i].staged, runs[i].bytes};
    alike++;
    if (i + 1 == count || alike == RUNS_MAX || runs[i + 1].region->memory != runs[i].region->memory) {
      good = copy_alike(stage, way, runs[i].region, blocks, staged, alike);
      alike = 0;
    }
  }
  return good;
}

bool kvf_stage_copy_now(kvf_stage_way way, const kvf_stage_run *runs, size_t count)
{
  return copy_all(NULL, way, runs, count);
}

/* Marked also where not all could be begun: what was is to be waited for. */
bool kvf_stage_copy(kvf_stage *stage, unsigned half, kvf_stage_way way, const kvf_stage_run *runs, size_t count)
{
  bool good = copy_all(stage, way, runs, count);
  if (stage->state != NULL) {
    stage->open[half] = stage->ops->stage->mark(stage->state, half);
    good = good && stage->open[half];
  }
  return good;
}

bool kvf_stage_wait(kvf_stage *stage, unsigned half)
{
  const bool good = !stage->open[half] || stage->ops->stage->wait(stage->state, half);
  stage->open[half] = false;
  return good;
}
