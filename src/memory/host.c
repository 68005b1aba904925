/* The memory of processes: ours by its address, a peer's by process_vm_readv. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/status.h"
#include "memory/memory.h"

static bool is_readable(const uint8_t *at)
{
  uint8_t byte;
  const struct iovec to = {&byte, 1};
  const struct iovec from = {(void *)(uintptr_t)at, 1};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 || errno != EFAULT; /* else the call is not allowed */
}

/* The ends of it: what lies between would take too long. */
static kvf_status check(const kvf_region *region, char *message)
{
  const uint8_t *base = region->base;
  const uint64_t bytes = region->stride_bytes * (region->blocks - 1) + region->block_bytes;
  if (region->device != 0) {
    return kvf_fail(KVF_INVALID, message, "host memory has no device %u", (unsigned)region->device);
  }
  if (!kvf_address_is_possible((uintptr_t)base, bytes) || !is_readable(base) || !is_readable(base + bytes - 1)) {
    return kvf_fail(KVF_INVALID, message, "%llu bytes at %p are not this process' memory", (unsigned long long)bytes,
                    (const void *)base);
  }
  return KVF_OK;
}

static bool copy(uint32_t device, const struct iovec *to, const struct iovec *from, size_t count)
{
  (void)device;
  for (size_t i = 0; i < count; i++) {
    memcpy(to[i].iov_base, from[i].iov_base, to[i].iov_len);
  }
  return true;
}

static bool checksums(uint32_t device, const struct iovec *runs, size_t count, uint64_t *out)
{
  (void)device;
  for (size_t i = 0; i < count; i++) {
    out[i] = kvf_checksum(runs[i].iov_base, runs[i].iov_len);
  }
  return true;
}

static kvf_status export_region(const kvf_region *region, void *out, size_t *bytes, char *message)
{
  (void)message;
  const uint64_t base = (uintptr_t)region->base;
  memcpy(out, &base, sizeof(base));
  *bytes = sizeof(base);
  return KVF_OK;
}

static kvf_status import_region(const kvf_memory_source *source, kvf_memory_import *out, char *message)
{
  uint64_t base = 0;
  if (source->exported_bytes == sizeof(base)) {
    memcpy(&base, source->exported, sizeof(base));
  }
  if (!kvf_address_is_possible(base, source->region_bytes)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its address is impossible");
  }
  *out = (kvf_memory_import){.ops = &kvf_memory_host, .base = base};
  return KVF_OK;
}

kvf_status kvf_memory_host_error(int error)
{
  switch (error) {
    case ESRCH:
      return KVF_PEER_DOWN;
    case ENOMEM:
      return KVF_NO_MEMORY;
    default:
      return KVF_TRANSFER_FAILED;
  }
}

/* One system call. A short count is progress: the next call gets the rest, or the error that made it short. */
static kvf_status read_batch(pid_t pid, const kvf_memory_batch *batch, uint64_t *bytes)
{
  size_t left = batch->count - batch->first;
  ssize_t copied = process_vm_readv(pid, &batch->to[batch->first], left, &batch->from[batch->first], left, 0);
  *bytes = copied < 0 ? 0 : (uint64_t)copied;
  if (copied > 0) {
    return KVF_OK;
  }
  if (copied == 0) {
    return KVF_TRANSFER_FAILED;
  }
  return errno == EINTR ? KVF_OK : kvf_memory_host_error(errno);
}

const kvf_memory_ops kvf_memory_host = {
    .kind = KVF_MEMORY_HOST,
    .is_addressable = true,
    .batch_runs_max = 256,
    .batch_bytes_max = UINT64_C(1) << 20,
    .check = check,
    .copy_in = copy,
    .copy_out = copy,
    .checksums = checksums,
    .export = export_region,
    .import = import_region,
    .read = read_batch,
};
