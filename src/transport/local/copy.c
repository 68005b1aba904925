#include "transport/local/copy.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include "base/time.h"

/* How often a sample is taken again because the entry changed meanwhile. */
#define SAMPLE_TRIES 4

/* An address in the other process: never used as a pointer here. */
static void *foreign(uint64_t address)
{
  return (void *)(uintptr_t)address;
}

static kvf_status status_of(int error)
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

/* Pairs of equal length, local and remote, and how far they are copied. */
typedef struct iov_batch {
  struct iovec local[KVF_LOCAL_CALL_SEGMENTS_MAX + 1]; /* one for the fence's head */
  struct iovec remote[KVF_LOCAL_CALL_SEGMENTS_MAX + 1];
  size_t first;
  size_t count;
  uint64_t bytes; /* of the chunk's, that have yet to come */
} iov_batch;

static void batch_fill(iov_batch *batch, const kvf_local_copy *copy, kvf_segment_cursor *cursor)
{
  kvf_segment segments[KVF_LOCAL_CALL_SEGMENTS_MAX];
  batch->first = 0;
  batch->bytes = 0;
  batch->count = kvf_segments_next(cursor, segments, KVF_LOCAL_CALL_SEGMENTS_MAX, KVF_LOCAL_CALL_BYTES_MAX);
  for (size_t i = 0; i < batch->count; i++) {
    const kvf_segment *segment = &segments[i];
    batch->local[i] = (struct iovec){kvf_segment_local(cursor->chunk, segment), segment->bytes};
    batch->remote[i] =
        (struct iovec){foreign(copy->bases[segment->remote_region] + segment->remote_offset), segment->bytes};
    batch->bytes += segment->bytes;
  }
}

static void batch_add(iov_batch *batch, kvf_fence_head *head, uint64_t table)
{
  batch->local[batch->count] = (struct iovec){head, sizeof(*head)};
  batch->remote[batch->count] = (struct iovec){foreign(table), sizeof(*head)};
  batch->count++;
}

static void batch_advance(iov_batch *batch, size_t bytes)
{
  while (bytes > 0 && batch->first < batch->count) {
    struct iovec *local = &batch->local[batch->first];
    struct iovec *remote = &batch->remote[batch->first];
    if (bytes < local->iov_len) {
      local->iov_base = (uint8_t *)local->iov_base + bytes;
      remote->iov_base = (uint8_t *)remote->iov_base + bytes;
      local->iov_len -= bytes;
      remote->iov_len -= bytes;
      return;
    }
    bytes -= local->iov_len;
    batch->first++;
  }
}

/* One system call. A short count is progress: the next call gets the rest, or the error that made it short. */
static kvf_status batch_copy(iov_batch *batch, pid_t pid, uint64_t *bytes)
{
  size_t left = batch->count - batch->first;
  ssize_t copied = process_vm_readv(pid, &batch->local[batch->first], left, &batch->remote[batch->first], left, 0);
  if (copied < 0) {
    return errno == EINTR ? KVF_OK : status_of(errno);
  }
  if (copied == 0) {
    return KVF_TRANSFER_FAILED;
  }
  uint64_t of_chunk = (uint64_t)copied < batch->bytes ? (uint64_t)copied : batch->bytes;
  batch->bytes -= of_chunk;
  *bytes += of_chunk;
  batch_advance(batch, (size_t)copied);
  return KVF_OK;
}

static uint64_t coarse_now_ns(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* With `head`, every call reads the fence table's head as well. */
static kvf_status copy_chunk(const kvf_local_copy *copy, const kvf_chunk *chunk, uint64_t table, kvf_fence_head *head,
                             uint64_t *bytes)
{
  kvf_segment_cursor cursor = kvf_segments_begin(chunk);
  uint64_t told_ns = coarse_now_ns();
  iov_batch batch;
  batch.first = 0;
  batch.count = 0;
  *bytes = 0;
  for (;;) {
    if (batch.first == batch.count) {
      batch_fill(&batch, copy, &cursor);
      if (batch.count == 0) {
        return KVF_OK;
      }
      if (head != NULL) {
        batch_add(&batch, head, table);
      }
    }
    if (atomic_load_explicit(copy->stop, memory_order_relaxed)) {
      return KVF_CANCELLED;
    }
    kvf_status status = batch_copy(&batch, copy->pid, bytes);
    if (status != KVF_OK) {
      return status;
    }
    uint64_t now_ns = coarse_now_ns();
    if (copy->moved_ns != NULL) {
      atomic_store_explicit(copy->moved_ns, now_ns, memory_order_relaxed);
    }
    if (now_ns - told_ns >= KVF_PROGRESS_NS) {
      told_ns = now_ns;
      copy->landed(copy->context);
    }
  }
}

kvf_status kvf_local_copy_chunk(const kvf_local_copy *copy, const kvf_chunk *chunk, uint64_t *bytes)
{
  return copy_chunk(copy, chunk, 0, NULL, bytes);
}

/* All of it, in one call: 0, or an errno. */
static int read_once(pid_t pid, const struct iovec *local, const struct iovec *remote, size_t count)
{
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    bytes += local[i].iov_len;
  }
  for (;;) {
    ssize_t copied = process_vm_readv(pid, local, count, remote, count, 0);
    if (copied == (ssize_t)bytes) {
      return 0;
    }
    if (copied >= 0) {
      return EFAULT; /* only unreadable memory cuts a call this short */
    }
    if (errno != EINTR) {
      return errno;
    }
  }
}

kvf_status kvf_local_sample(pid_t pid, uint64_t table, uint32_t slot, kvf_fence_sample *out)
{
  uint64_t address = table + kvf_fence_entry_offset(slot);
  kvf_fence_entry again;
  const struct iovec local[] = {
      {&out->head, sizeof(out->head)}, {&out->entry, sizeof(out->entry)}, {&again, sizeof(again)}};
  const struct iovec remote[] = {
      {foreign(table), sizeof(out->head)}, {foreign(address), sizeof(out->entry)}, {foreign(address), sizeof(again)}};

  /* Keeps the sample after the copies that it is to judge. */
  kvf_fence_barrier();
  for (int i = 0; i < SAMPLE_TRIES; i++) {
    int error = read_once(pid, local, remote, sizeof(local) / sizeof(local[0]));
    if (error != 0) {
      return status_of(error);
    }
    /* Read twice and found the same, word and digest are of one lease. */
    if (memcmp(&out->entry, &again, sizeof(again)) == 0) {
      break;
    }
    out->entry = again;
  }
  return KVF_OK;
}

/* After a copy that failed: whose blocks were taken back may have unmapped them. */
static kvf_status judge_failed(const kvf_local_copy *copy, uint64_t table, const kvf_lease *lease,
                               kvf_fence_sample *out)
{
  kvf_status status = kvf_local_sample(copy->pid, table, lease->slot, out);
  return status == KVF_OK && out->entry.word != kvf_fence_word_live(lease->id) ? KVF_OK : KVF_TRANSFER_FAILED;
}

/* Not in one call for entry, blocks and entry: such a call goes through its list in order, but promises nothing about
 * memory order. The kernel copies with plain loads; ARM and POWER may reorder them, since the lock that it takes and
 * releases in between is no full barrier. Here barriers stand between the calls.
 */
static kvf_status copy_between_samples(const kvf_local_copy *copy, const kvf_chunk *chunk, uint64_t table,
                                       uint64_t *bytes, kvf_fence_sample *out)
{
  const kvf_lease *lease = &chunk->transfer->lease;
  *bytes = 0;
  kvf_status status = kvf_local_sample(copy->pid, table, lease->slot, out);
  bool live = status == KVF_OK && out->entry.word == kvf_fence_word_live(lease->id);
  if (!live) {
    return status;
  }
  /* Keeps the copies after the sample that let them begin. */
  kvf_fence_barrier();
  status = kvf_local_copy_chunk(copy, chunk, bytes);
  if (status == KVF_TRANSFER_FAILED) {
    return judge_failed(copy, table, lease, out);
  }
  if (status != KVF_OK) {
    return status;
  }
  return kvf_local_sample(copy->pid, table, lease->slot, out);
}

/* The entry is looked at where it is mapped, which is two thirds of a 4 KiB load's system calls less. What a mapping
 * does not tell is whose memory the calls read: the process may have ended, another one may have its id. So they read
 * the head of the table too, which is constant, so that its place in the call's order is of no account. A call reads
 * one process only, and a process id does not come back to the process that had it: the last head is proof for all. */
static kvf_status copy_between_looks(const kvf_local_copy *copy, const kvf_chunk *chunk, uint64_t table,
                                     uint64_t *bytes, kvf_fence_sample *out)
{
  const kvf_lease *lease = &chunk->transfer->lease;
  *bytes = 0;
  const kvf_fence_entry first = kvf_fence_load(copy->fence, lease->slot);
  if (first.word != kvf_fence_word_live(lease->id)) {
    kvf_status there = kvf_local_sample(copy->pid, table, lease->slot, out);
    out->entry = first; /* by now it may be live, and nothing has been copied */
    return there;
  }
  out->entry = first;
  kvf_fence_barrier();
  kvf_status status = copy_chunk(copy, chunk, table, &out->head, bytes);
  if (status == KVF_OK && *bytes == 0) { /* without a call nothing is known of the process */
    return kvf_local_sample(copy->pid, table, lease->slot, out);
  }
  if (status == KVF_TRANSFER_FAILED) {
    return judge_failed(copy, table, lease, out);
  }
  if (status != KVF_OK) {
    return status;
  }
  kvf_fence_barrier();
  out->entry = kvf_fence_load(copy->fence, lease->slot);
  return KVF_OK;
}

kvf_status kvf_local_copy_lease(const kvf_local_copy *copy, const kvf_chunk *chunk, uint64_t table, uint64_t *bytes,
                                kvf_fence_sample *out)
{
  return copy->fence == NULL ? copy_between_samples(copy, chunk, table, bytes, out)
                             : copy_between_looks(copy, chunk, table, bytes, out);
}

int kvf_local_peek(pid_t pid, uint64_t cookie_address, void *cookie, size_t cookie_bytes, uint64_t table,
                   kvf_fence_head *head)
{
  const struct iovec local[] = {{cookie, cookie_bytes}, {head, sizeof(*head)}};
  const struct iovec remote[] = {{foreign(cookie_address), cookie_bytes}, {foreign(table), sizeof(*head)}};
  return read_once(pid, local, remote, 2);
}
