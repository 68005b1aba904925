/* A chunk's segments in batches, begun ahead where the memory can, or by way of the host, between two samples. */
#include "transport/local/copy.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#include "base/time.h"

/* How often a sample is taken again because the entry changed meanwhile. */
#define SAMPLE_TRIES 4

/* An address in the other process: never used as a pointer here. */
static void *remote_pointer(uint64_t address)
{
  return (void *)(uintptr_t)address;
}

#define SEGMENTS_MAX 256 /* that are looked up at a time */
#define STAGED_MAX 64    /* runs in the staging */

/* A walk over a chunk, a batch of runs of the same two kinds at a time. */
typedef struct chunk_walk {
  const kvf_local_copy *copy;
  const kvf_chunk *chunk;
  kvf_segment_cursor cursor;
  kvf_segment segments[SEGMENTS_MAX];
  size_t next; /* of the segments, that is in no batch yet */
  size_t count;
  const kvf_memory_ops *theirs; /* of the batch */
  const kvf_memory_ops *ours;   /* of the batch */
  uint64_t bytes;               /* of the chunk's, that the batch has yet to bring */
  size_t staged_bytes;
  size_t staged_count;
  uint32_t staged_device;
  struct iovec staged_to[STAGED_MAX];     /* where they are to be copied in, when the batch has come */
  struct iovec staged_from[STAGED_MAX];   /* in the staging */
  uint8_t staging[KVF_LOCAL_STAGE_BYTES]; /* touched only where their kind cannot be read into ours */
  kvf_memory_batch batch;
  const kvf_memory_ops *begun; /* whose step is under way; NULL: none is */
  kvf_memory_step step;
  uint64_t step_bytes; /* of the chunk's */
} chunk_walk;

static const kvf_region *local_of(const chunk_walk *walk)
{
  return &walk->chunk->local[walk->segments[walk->next].local_region];
}

static const kvf_memory_import *import_of(const chunk_walk *walk)
{
  return &walk->copy->imports[walk->segments[walk->next].remote_region];
}

static void batch_add(kvf_memory_batch *batch, void *to, uint64_t from, size_t bytes)
{
  batch->to[batch->count] = (struct iovec){to, bytes};
  batch->from[batch->count] = (struct iovec){remote_pointer(from), bytes};
  batch->count++;
}

/* Adds the next segment, or as much of it as can be staged. */
static void add_segment(chunk_walk *walk, bool staged)
{
  kvf_segment *segment = &walk->segments[walk->next];
  const uint64_t from = walk->copy->imports[segment->remote_region].base + segment->remote_offset;
  uint8_t *to = kvf_segment_local(walk->chunk, segment);
  uint64_t bytes = segment->bytes;
  if (staged) {
    const size_t room = sizeof(walk->staging) - walk->staged_bytes;
    uint8_t *staged_at = walk->staging + walk->staged_bytes;
    bytes = bytes < room ? bytes : room;
    walk->staged_to[walk->staged_count] = (struct iovec){to, bytes};
    walk->staged_from[walk->staged_count] = (struct iovec){staged_at, bytes};
    walk->staged_count++;
    walk->staged_bytes += bytes;
    walk->staged_device = local_of(walk)->device;
    to = staged_at;
    segment->local_offset += bytes;
    segment->remote_offset += bytes;
    segment->bytes -= bytes;
  }
  batch_add(&walk->batch, to, from, bytes);
  walk->bytes += bytes;
  walk->next += !staged || segment->bytes == 0;
}

/* The next segment is at walk->next, looked up if need be. False: there is none. */
static bool find_segment(chunk_walk *walk, size_t count_max, uint64_t bytes_max)
{
  if (walk->next == walk->count) {
    walk->next = 0;
    walk->count = kvf_segments_next(&walk->cursor, walk->segments, count_max < SEGMENTS_MAX ? count_max : SEGMENTS_MAX,
                                    bytes_max);
  }
  return walk->count > 0;
}

/* Whether the next segment, if there is one, goes into the same batch. */
static bool goes_along(chunk_walk *walk)
{
  const size_t count = walk->batch.count;
  const uint64_t bytes_max = walk->theirs->batch_bytes_max;
  return count < walk->theirs->batch_runs_max && walk->bytes < bytes_max &&
         find_segment(walk, walk->theirs->batch_runs_max - count, bytes_max - walk->bytes) &&
         import_of(walk)->ops == walk->theirs && kvf_memory_ops_of(local_of(walk)->memory) == walk->ours;
}

/* False: there is none. The one before has been brought, or begun. */
static bool next_batch(chunk_walk *walk)
{
  const kvf_memory_ops *any = walk->copy->imports[0].ops;
  if (!find_segment(walk, any->batch_runs_max, any->batch_bytes_max)) {
    return false;
  }
  walk->theirs = import_of(walk)->ops;
  walk->ours = kvf_memory_ops_of(local_of(walk)->memory);
  const bool staged = !walk->ours->is_addressable && walk->ours != walk->theirs;
  walk->batch.import = import_of(walk);
  walk->batch.into = staged ? &kvf_memory_host : walk->ours;
  walk->batch.first = 0;
  walk->batch.count = 0;
  walk->batch.gather = walk->copy->gather;
  walk->batch.work = walk->copy->work;
  do {
    add_segment(walk, staged);
  } while (walk->staged_bytes < sizeof(walk->staging) && walk->staged_count < STAGED_MAX && goes_along(walk));
  walk->copy->work->pieces = walk->cursor.segments;
  return true;
}

/* What has come is where it should be. False: our device has failed. */
static bool end_batch(chunk_walk *walk)
{
  const size_t count = walk->staged_count;
  walk->staged_count = walk->staged_bytes = 0;
  return count == 0 || walk->ours->copy_in(walk->staged_device, walk->staged_to, walk->staged_from, count);
}

static void move_on(kvf_memory_batch *batch, size_t bytes)
{
  while (bytes > 0 && batch->first < batch->count) {
    struct iovec *to = &batch->to[batch->first];
    struct iovec *from = &batch->from[batch->first];
    if (bytes < to->iov_len) {
      to->iov_base = (uint8_t *)to->iov_base + bytes;
      from->iov_base = (uint8_t *)from->iov_base + bytes;
      to->iov_len -= bytes;
      from->iov_len -= bytes;
      return;
    }
    bytes -= to->iov_len;
    batch->first++;
  }
}

/* After it no step is under way. */
static kvf_status end_step(chunk_walk *walk, uint64_t *bytes)
{
  if (walk->begun == NULL) {
    return KVF_OK;
  }
  kvf_status status = walk->begun->finish(&walk->step, walk->copy->work);
  *bytes += status == KVF_OK ? walk->step_bytes : 0;
  walk->begun = NULL;
  return status;
}

/* Begins a step of a device's behind the one before, so that the device never waits for us, and ends that one. The next
 * batch is filled while the device copies. */
static kvf_status read_ahead(chunk_walk *walk, uint64_t *bytes)
{
  kvf_memory_step step;
  kvf_status status = walk->theirs->begin(&walk->batch, walk->begun == NULL ? NULL : &walk->step, &step);
  if (status != KVF_OK) {
    return status;
  }
  const uint64_t step_bytes = walk->bytes;
  walk->batch.first = walk->batch.count;
  walk->bytes = 0;
  status = end_step(walk, bytes);
  walk->begun = walk->theirs;
  walk->step = step;
  walk->step_bytes = step_bytes;
  return status;
}

/* One step. */
static kvf_status read_batch(chunk_walk *walk, uint64_t *bytes)
{
  uint64_t read = 0;
  if (walk->theirs->begin != NULL && walk->batch.into == walk->theirs) {
    return read_ahead(walk, bytes);
  }
  kvf_status status = end_step(walk, bytes);
  if (status != KVF_OK) {
    return status;
  }
  status = walk->theirs->read(walk->copy->pid, &walk->batch, &read);
  move_on(&walk->batch, read);
  uint64_t of_chunk = read < walk->bytes ? read : walk->bytes;
  walk->bytes -= of_chunk;
  *bytes += of_chunk;
  if (status == KVF_OK && walk->batch.first == walk->batch.count && !end_batch(walk)) {
    status = KVF_TRANSFER_FAILED;
  }
  return status;
}

static uint64_t coarse_now_ns(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
}

static kvf_status read_all(chunk_walk *walk, uint64_t table, kvf_fence_head *head, uint64_t *bytes)
{
  const kvf_local_copy *copy = walk->copy;
  uint64_t reported_ns = coarse_now_ns();
  for (;;) {
    if (walk->batch.first == walk->batch.count) {
      if (!next_batch(walk)) {
        return KVF_OK;
      }
      if (head != NULL) {
        batch_add(&walk->batch, head, table, sizeof(*head));
      }
    }
    if (atomic_load_explicit(copy->stop, memory_order_relaxed)) {
      return KVF_CANCELLED;
    }
    kvf_status status = read_batch(walk, bytes);
    if (status != KVF_OK) {
      return status;
    }
    uint64_t now_ns = coarse_now_ns();
    atomic_store_explicit(copy->moved_ns, now_ns, memory_order_relaxed);
    if (now_ns - reported_ns >= KVF_PROGRESS_NS) {
      reported_ns = now_ns;
      copy->arrived(copy->context);
    }
  }
}

kvf_status kvf_local_copy_chunk(const kvf_local_copy *copy, const kvf_chunk *chunk, uint64_t table,
                                kvf_fence_head *head, uint64_t *bytes)
{
  chunk_walk walk;
  walk.copy = copy;
  walk.chunk = chunk;
  walk.cursor = kvf_segments_begin(chunk);
  walk.next = walk.count = 0;
  walk.batch.first = walk.batch.count = 0;
  walk.bytes = walk.staged_bytes = walk.staged_count = 0;
  walk.begun = NULL;
  *bytes = 0;
  kvf_status status = read_all(&walk, table, head, bytes);
  kvf_status ended = end_step(&walk, bytes);
  return status != KVF_OK ? status : ended;
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
  const struct iovec remote[] = {{remote_pointer(table), sizeof(out->head)},
                                 {remote_pointer(address), sizeof(out->entry)},
                                 {remote_pointer(address), sizeof(again)}};

  /* Keeps the sample after the copies that it is to judge. */
  kvf_fence_barrier();
  for (int i = 0; i < SAMPLE_TRIES; i++) {
    int error = read_once(pid, local, remote, sizeof(local) / sizeof(local[0]));
    if (error != 0) {
      return kvf_memory_host_error(error);
    }
    /* Read twice and found the same, word and digest are of one lease. */
    if (memcmp(&out->entry, &again, sizeof(again)) == 0) {
      break;
    }
    out->entry = again;
  }
  return KVF_OK;
}

static bool is_readable(const kvf_local_copy *copy, const kvf_lease *lease, const kvf_fence_sample *sample)
{
  return sample->entry.word == kvf_fence_word_live(lease->id) && sample->head.generation == copy->generation;
}

/* After a copy that failed: whose blocks were taken back may have unmapped them. */
static kvf_status judge_failed(const kvf_local_copy *copy, uint64_t table, const kvf_lease *lease,
                               kvf_fence_sample *out)
{
  kvf_status status = kvf_local_sample(copy->pid, table, lease->slot, out);
  return status == KVF_OK && !is_readable(copy, lease, out) ? KVF_OK : KVF_TRANSFER_FAILED;
}

/* Not in one call for entry, blocks and entry: such a call goes through its list in order, but promises nothing about
 * memory order. The kernel copies with plain loads. ARM and POWER may reorder them, because the lock that the kernel
 * takes in between is not a full barrier. Here barriers stand between the calls.
 *
 * If the table is mapped, the entry is read there; this saves two thirds of the system calls of a 4 KiB load. A mapping
 * does not tell whose memory the calls read: the process may have ended, and another one may have its id. So the calls
 * read the head of the table too. The fields of the head that identify the process are constant, so its place in the
 * call's order does not matter. A call reads one process only, and a process id does not return to its old process. So
 * the last head is proof for all calls.
 *
 * The generation of the first look, if that was a call, may be older than its entry; that of the last is not. */
kvf_status kvf_local_copy_lease(const kvf_local_copy *copy, const kvf_chunk *chunk, uint64_t table, uint64_t *bytes,
                                kvf_fence_sample *out)
{
  const kvf_lease *lease = &chunk->transfer->lease;
  const bool is_mapped = copy->fence != NULL;
  kvf_status status = KVF_OK;
  *bytes = 0;
  if (is_mapped) {
    out->entry = kvf_fence_load(copy->fence, lease->slot);
    out->head.generation = kvf_fence_generation(copy->fence);
  } else {
    status = kvf_local_sample(copy->pid, table, lease->slot, out);
  }
  if (status != KVF_OK) {
    return status;
  }
  const kvf_fence_entry first = out->entry;
  if (!is_readable(copy, lease, out)) {
    status = is_mapped ? kvf_local_sample(copy->pid, table, lease->slot, out) : KVF_OK;
    out->entry = first; /* by now it may be live, and nothing has been copied */
    return status;
  }
  /* Keeps the copies after the look that let them begin. */
  kvf_fence_barrier();
  status = kvf_local_copy_chunk(copy, chunk, table, is_mapped ? &out->head : NULL, bytes);
  if (status == KVF_TRANSFER_FAILED) {
    return judge_failed(copy, table, lease, out);
  }
  if (status != KVF_OK) {
    return status;
  }
  if (!is_mapped || *bytes == 0) { /* without a call nothing is known of the process */
    return kvf_local_sample(copy->pid, table, lease->slot, out);
  }
  kvf_fence_barrier();
  out->entry = kvf_fence_load(copy->fence, lease->slot);
  out->head.generation = kvf_fence_generation(copy->fence);
  return KVF_OK;
}

int kvf_local_fetch(pid_t pid, uint64_t address, void *out, size_t bytes)
{
  const struct iovec local = {out, bytes};
  const struct iovec remote = {remote_pointer(address), bytes};
  return read_once(pid, &local, &remote, 1);
}

int kvf_local_peek(pid_t pid, uint64_t cookie_address, void *cookie, size_t cookie_bytes, uint64_t table,
                   kvf_fence_head *head)
{
  const struct iovec local[] = {{cookie, cookie_bytes}, {head, sizeof(*head)}};
  const struct iovec remote[] = {{remote_pointer(cookie_address), cookie_bytes},
                                 {remote_pointer(table), sizeof(*head)}};
  return read_once(pid, local, remote, 2);
}
