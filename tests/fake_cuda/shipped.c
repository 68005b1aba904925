/* The library's own kernels, as the host runs them: one entry of a list a step, on bytes that are fetched for it. */
#include <stdlib.h>
#include <string.h>

#include "memory/cuda/kernel_code.h"
#include "state.h"

/* Bytes at a place of their own, aligned as on the device, with room for whole words. */
typedef struct staged {
  uint8_t *room;
  uint8_t *bytes;
} staged;

static staged stage(kvf_cu_memory address, uint64_t bytes)
{
  staged made = {.room = aligned_alloc(UNIT_BYTES, (bytes / UNIT_BYTES + 3) * UNIT_BYTES)};
  if (made.room == NULL) {
    give_up("no memory");
  }
  made.bytes = made.room + address % UNIT_BYTES;
  return made;
}

static uint64_t argument(const fake_cuda_launch *launch, unsigned number)
{
  uint64_t value;
  memcpy(&value, launch->arguments[number], sizeof(value));
  return value;
}

/* It ends here, and its context with it. */
static bool broken(const fake_cuda_launch *launch)
{
  fake_cuda_break(launch->device, KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
  return true;
}

bool fake_checksums(const fake_cuda_launch *launch)
{
  const uint64_t count = argument(launch, 1);
  kvf_cuda_run run;
  uint64_t sum = 0;
  if (count == 0) {
    return true;
  }
  if (!fake_cuda_read(argument(launch, 0) + launch->step * sizeof(run), &run, sizeof(run))) {
    return broken(launch);
  }
  staged data = stage(run.address, run.bytes);
  const bool is_read = fake_cuda_read(run.address, data.bytes, run.bytes);
  if (is_read) {
    kvf_checksums(&(kvf_cuda_run){(uintptr_t)data.bytes, run.bytes}, 1, &sum);
  }
  free(data.room);
  if (!is_read || !fake_cuda_write(argument(launch, 2) + launch->step * sizeof(sum), &sum, sizeof(sum))) {
    return broken(launch);
  }
  return launch->step + 1 == count;
}

bool fake_gather(const fake_cuda_launch *launch)
{
  const uint64_t count = argument(launch, 1);
  kvf_cuda_piece copied;
  if (count == 0) {
    return true;
  }
  if (!fake_cuda_read(argument(launch, 0) + launch->step * sizeof(copied), &copied, sizeof(copied))) {
    return broken(launch);
  }
  staged from = stage(copied.from, copied.bytes);
  staged to = stage(copied.to, copied.bytes);
  bool is_good = fake_cuda_read(copied.from, from.bytes, copied.bytes);
  if (is_good) {
    kvf_gather(&(kvf_cuda_piece){(uintptr_t)to.bytes, (uintptr_t)from.bytes, copied.bytes}, 1);
    is_good = fake_cuda_write(copied.to, to.bytes, copied.bytes);
  }
  free(from.room);
  free(to.room);
  return is_good ? launch->step + 1 == count : broken(launch);
}
