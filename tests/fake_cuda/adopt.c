/* An engine's own memory as a device's: its pages become a file's, at the same addresses, which the engine goes on to
 * use and the driver's calls reach like all other memory of the fake. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

/* False: not all of it is there. */
static bool save(int fd, const uint8_t *from, size_t bytes)
{
  for (size_t done = 0; done < bytes;) {
    const ssize_t written = pwrite(fd, from + done, bytes - done, (off_t)done);
    if (written <= 0) {
      return false;
    }
    done += (size_t)written;
  }
  return true;
}

static void load(int fd, uint8_t *to, size_t bytes)
{
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = pread(fd, to + done, bytes - done, (off_t)done);
    if (got <= 0) {
      give_up("an engine's memory is lost");
    }
    done += (size_t)got;
  }
}

static void map_over(kvf_cu_memory base, size_t bytes, int flags, int fd)
{
  if (mmap((void *)(uintptr_t)base, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | flags, fd, 0) == MAP_FAILED) {
    give_up("an engine's memory cannot be mapped anew");
  }
}

kvf_cu_result fake_cuda_adopt(void *address, size_t bytes)
{
  const kvf_cu_memory base = (uintptr_t)address / PAGE_BYTES * PAGE_BYTES;
  const size_t whole = rounded((uintptr_t)address + bytes) - base;
  BEGIN(fake_cuda_adopt, NEEDS_CONTEXT);
  const mapping *known = mapping_at(base);
  if (known != NULL && known->is_adopted && known->base + known->bytes >= base + whole) {
    return call_end(KVF_CUDA_SUCCESS);
  }
  if (bytes == 0 || mapping_overlaps(base, whole)) {
    return call_end(bytes == 0 ? KVF_CUDA_ERROR_INVALID_VALUE : KVF_CUDA_ERROR_ALREADY_MAPPED);
  }
  backing *made = backing_create(whole);
  if (made == NULL) {
    return call_end(KVF_CUDA_ERROR_OUT_OF_MEMORY);
  }
  if (!save(made->fd, (const uint8_t *)(uintptr_t)base, whole)) {
    backing_drop(made);
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  made->device = context_current()->device;
  map_over(base, whole, MAP_SHARED, made->fd);
  mapping_add(MAPPING_MEMORY, base, whole, made)->is_adopted = true;
  return call_end(KVF_CUDA_SUCCESS);
}

void adopted_give_back(const mapping *gone)
{
  map_over(gone->base, gone->bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  load(gone->backing->fd, (uint8_t *)(uintptr_t)gone->base, gone->bytes);
}
