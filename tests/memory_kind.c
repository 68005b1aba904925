/* Kinds of memory of the tests' own: see memory_kind.h. */
#include "memory_kind.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/status.h"
#include "cuda_driver.h"
#include "fake_cuda.h"

#define PIECES_MAX 1024
#define FILE_NAME "kvf-test-memory"
#define STEP_BYTES 65536u /* that a step of read() brings at most */

typedef struct piece {
  uint8_t *base; /* PROT_NONE */
  uint8_t *own;
  size_t bytes;
  int fd;
} piece;

/* As it travels. */
typedef struct exported {
  uint64_t fd;
  uint64_t offset;
} exported;

/* An import. */
typedef struct mapping {
  uint8_t *at;
  size_t bytes;
} mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static piece pieces[PIECES_MAX];     /* under the lock */
static mapping mappings[PIECES_MAX]; /* under the lock */
static atomic_uint imports;
atomic_bool test_memory_is_known = true;
atomic_bool test_memory_fails;
atomic_bool test_memory_stalls;
atomic_uint test_memory_stalled;
static const kvf_memory_ops test_ops;

const kvf_memory_ops *__wrap_kvf_memory_ops_of(uint32_t kind);
const char *__wrap_kvf_memory_kind_name(int kind);

static void fail(const char *what)
{
  perror(what);
  abort();
}

/* ---- CUDA's ---- */

#define CUDA_PIECES_MAX 1024

/* That the driver has allocated for a test. */
static struct {
  uintptr_t base;
  size_t bytes;
  bool is_mapped;
} cuda_pieces[CUDA_PIECES_MAX]; /* under the lock */

static void add_cuda(void *base, size_t bytes, bool is_mapped)
{
  (void)pthread_mutex_lock(&lock);
  size_t i = 0;
  while (i < CUDA_PIECES_MAX && cuda_pieces[i].base != 0) {
    i++;
  }
  if (i == CUDA_PIECES_MAX) {
    fail("too many pieces of CUDA's");
  }
  cuda_pieces[i].base = (uintptr_t)base;
  cuda_pieces[i].bytes = bytes;
  cuda_pieces[i].is_mapped = is_mapped;
  (void)pthread_mutex_unlock(&lock);
}

static void *allocate_cuda(size_t bytes)
{
  void *base = cuda_driver_allocate(bytes);
  add_cuda(base, bytes, false);
  test_memory_set(base, 0, bytes);
  return base;
}

void *test_memory_map(size_t bytes)
{
  void *base = cuda_driver_map(bytes);
  add_cuda(base, bytes, true);
  return base;
}

/* It may have been withdrawn. */
static void free_cuda(void *base)
{
  size_t mapped_bytes = 0;
  bool is_there = false;
  (void)pthread_mutex_lock(&lock);
  for (size_t i = 0; i < CUDA_PIECES_MAX && base != NULL; i++) {
    if (cuda_pieces[i].base == (uintptr_t)base) {
      mapped_bytes = cuda_pieces[i].is_mapped ? cuda_pieces[i].bytes : 0;
      cuda_pieces[i].base = 0;
      is_there = true;
    }
  }
  (void)pthread_mutex_unlock(&lock);
  if (mapped_bytes > 0) {
    cuda_driver_unmap(base, mapped_bytes);
  } else if (is_there) {
    cuda_driver_free(base);
  }
}

static bool is_cuda(const void *address)
{
  bool is = false;
  (void)pthread_mutex_lock(&lock);
  for (size_t i = 0; i < CUDA_PIECES_MAX; i++) {
    is = is || (cuda_pieces[i].base != 0 && (uintptr_t)address - cuda_pieces[i].base < cuda_pieces[i].bytes);
  }
  (void)pthread_mutex_unlock(&lock);
  return is;
}

void *test_memory_allocate(uint32_t kind, size_t bytes)
{
  if (kind == KVF_MEMORY_CUDA) {
    return allocate_cuda(bytes);
  }
  piece made = {.bytes = bytes, .fd = memfd_create(FILE_NAME, MFD_CLOEXEC)};
  if (made.fd < 0 || ftruncate(made.fd, (off_t)bytes) != 0) {
    fail("memfd");
  }
  made.base = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, made.fd, 0);
  made.own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
  if (made.base == MAP_FAILED || made.own == MAP_FAILED) {
    fail("mmap");
  }
  (void)pthread_mutex_lock(&lock);
  size_t i = 0;
  while (i < PIECES_MAX && pieces[i].base != NULL) {
    i++;
  }
  if (i == PIECES_MAX) {
    fail("too many pieces");
  }
  pieces[i] = made;
  (void)pthread_mutex_unlock(&lock);
  return made.base;
}

/* The piece that has all of this; its `base` is NULL: there is none. */
static piece find(const void *address, size_t bytes)
{
  piece found = {0};
  const uintptr_t at = (uintptr_t)address;
  (void)pthread_mutex_lock(&lock);
  for (size_t i = 0; i < PIECES_MAX && found.base == NULL; i++) {
    const uintptr_t base = (uintptr_t)pieces[i].base;
    if (base != 0 && at >= base && at - base <= pieces[i].bytes && bytes <= pieces[i].bytes - (at - base)) {
      found = pieces[i];
    }
  }
  (void)pthread_mutex_unlock(&lock);
  return found;
}

/* Where a run of a region is touched. */
static uint8_t *own_of(const void *address, size_t bytes)
{
  piece found = find(address, bytes);
  if (found.base == NULL || found.own == NULL) {
    fail("touched what is no memory of the kind any more");
  }
  return found.own + ((const uint8_t *)address - found.base);
}

uint8_t *test_memory_bytes(const void *address)
{
  if (find(address, 1).base != NULL) {
    return own_of(address, 1);
  }
  uint8_t *view = fake_cuda_view((uintptr_t)address);
  return view != NULL || is_cuda(address) ? view : (uint8_t *)(uintptr_t)address;
}

void test_memory_get(void *to, const void *address, size_t bytes)
{
  const uint8_t *at = test_memory_bytes(address);
  if (at != NULL) {
    memcpy(to, at, bytes);
  } else {
    cuda_driver_copy(to, address, bytes);
  }
}

void test_memory_put(void *address, const void *from, size_t bytes)
{
  uint8_t *at = test_memory_bytes(address);
  if (at != NULL) {
    memcpy(at, from, bytes);
  } else {
    cuda_driver_copy(address, from, bytes);
  }
}

void test_memory_set(void *address, uint8_t value, size_t bytes)
{
  uint8_t *at = test_memory_bytes(address);
  if (at != NULL) {
    memset(at, value, bytes);
    return;
  }
  uint8_t *copied = malloc(bytes);
  if (copied == NULL) {
    fail("malloc");
  }
  memset(copied, value, bytes);
  cuda_driver_copy(address, copied, bytes);
  free(copied);
}

bool test_memory_all_are(const void *address, uint8_t value, size_t bytes)
{
  const uint8_t *at = test_memory_bytes(address);
  uint8_t *copied = at == NULL ? malloc(bytes) : NULL;
  if (at == NULL) {
    if (copied == NULL) {
      fail("malloc");
    }
    cuda_driver_copy(copied, address, bytes);
    at = copied;
  }
  const bool are = at[0] == value && memcmp(at, at + 1, bytes - 1) == 0;
  free(copied);
  return are;
}

static void unmap(void *base, bool forget)
{
  if (find(base, 1).base == NULL) {
    free_cuda(base);
    return;
  }
  (void)pthread_mutex_lock(&lock);
  for (size_t i = 0; i < PIECES_MAX; i++) {
    piece *found = &pieces[i];
    if (found->base != base) {
      continue;
    }
    if (found->own != NULL) {
      (void)munmap(found->own, found->bytes);
      found->own = NULL;
    }
    if (forget) {
      (void)munmap(found->base, found->bytes);
      (void)close(found->fd);
      *found = (piece){0};
    }
  }
  (void)pthread_mutex_unlock(&lock);
}

void test_memory_withdraw(void *base)
{
  unmap(base, false);
}

void test_memory_free(void *base)
{
  unmap(base, true);
}

/* ---- operations ---- */

static kvf_status check(const kvf_region *region, char *message)
{
  const size_t bytes = region->stride_bytes * (region->blocks - 1) + region->block_bytes;
  if (region->device >= TEST_MEMORY_DEVICES || find(region->base, bytes).base == NULL) {
    return kvf_fail(KVF_INVALID, message, "%p is no memory of the test's device %u", region->base,
                    (unsigned)region->device);
  }
  return KVF_OK;
}

/* As the host's bytes are moved, by a system call: ThreadSanitizer does not see it, since a reader may be too late. */
static void move_bytes(uint8_t *to, const uint8_t *from, size_t bytes)
{
  while (bytes > 0) {
    const struct iovec into = {to, bytes};
    const struct iovec out_of = {(void *)(uintptr_t)from, bytes};
    const ssize_t moved = process_vm_readv(getpid(), &into, 1, &out_of, 1, 0);
    if (moved <= 0) {
      fail("bytes cannot be moved");
    }
    to += moved;
    from += moved;
    bytes -= (size_t)moved;
  }
}

static bool copy_in(uint32_t device, const struct iovec *to, const struct iovec *from, size_t count)
{
  (void)device;
  for (size_t i = 0; i < count; i++) {
    move_bytes(own_of(to[i].iov_base, to[i].iov_len), from[i].iov_base, to[i].iov_len);
  }
  return !atomic_load(&test_memory_fails);
}

static bool copy_out(uint32_t device, const struct iovec *to, const struct iovec *from, size_t count)
{
  (void)device;
  for (size_t i = 0; i < count; i++) {
    move_bytes(to[i].iov_base, own_of(from[i].iov_base, to[i].iov_len), to[i].iov_len);
  }
  return !atomic_load(&test_memory_fails);
}

static bool checksums(uint32_t device, const struct iovec *runs, size_t count, uint64_t *out)
{
  (void)device;
  for (size_t i = 0; i < count; i++) {
    out[i] = kvf_checksum(own_of(runs[i].iov_base, runs[i].iov_len), runs[i].iov_len);
  }
  return !atomic_load(&test_memory_fails);
}

static kvf_status export_region(const kvf_region *region, void *out, size_t *bytes, char *message)
{
  (void)message;
  piece found = find(region->base, 1);
  const exported all = {(uint64_t)found.fd, (uint64_t)((uint8_t *)region->base - found.base)};
  memcpy(out, &all, sizeof(all));
  *bytes = sizeof(all);
  return KVF_OK;
}

/* Not a device, a FIFO, or a file system that does not answer. */
static int open_file(pid_t pid, uint64_t fd)
{
  static const char expected[] = "/memfd:" FILE_NAME " ";
  char path[64];
  char name[sizeof(expected)];
  (void)snprintf(path, sizeof(path), "/proc/%d/fd/%llu", (int)pid, (unsigned long long)fd);
  if (readlink(path, name, sizeof(name)) != (ssize_t)sizeof(name) ||
      memcmp(name, expected, sizeof(expected) - 1) != 0) {
    return -1;
  }
  return open(path, O_RDONLY | O_CLOEXEC);
}

static kvf_status import_region(const kvf_memory_source *source, kvf_memory_import *out, char *message)
{
  const pid_t pid = source->pid;
  const size_t bytes = source->exported_bytes;
  exported all;
  struct stat file;
  if (bytes != sizeof(all)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "%zu bytes name no memory of the test's", bytes);
  }
  memcpy(&all, source->exported, sizeof(all));
  int fd = open_file(pid, all.fd);
  if (fd < 0) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "file %llu of process %d is no memory of the test's",
                    (unsigned long long)all.fd, (int)pid);
  }
  mapping map = {.bytes = 0};
  if (fstat(fd, &file) == 0 && all.offset <= (uint64_t)file.st_size &&
      source->region_bytes <= (uint64_t)file.st_size - all.offset) {
    map.bytes = (size_t)file.st_size;
    map.at = mmap(NULL, map.bytes, PROT_READ, MAP_SHARED, fd, 0);
  }
  (void)close(fd);
  if (map.bytes == 0) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "the test's memory there is too short");
  }
  if (map.at == MAP_FAILED) {
    fail("mmap of an import");
  }
  (void)pthread_mutex_lock(&lock);
  size_t i = 0;
  while (i < PIECES_MAX && mappings[i].at != NULL) {
    i++;
  }
  if (i == PIECES_MAX) {
    fail("too many imports");
  }
  mappings[i] = map;
  (void)pthread_mutex_unlock(&lock);
  (void)atomic_fetch_add(&imports, 1);
  *out = (kvf_memory_import){.ops = &test_ops, .base = (uintptr_t)map.at + all.offset, .state = &mappings[i]};
  return KVF_OK;
}

static void release(kvf_memory_import *import)
{
  mapping *map = import->state;
  (void)pthread_mutex_lock(&lock);
  (void)munmap(map->at, map->bytes);
  *map = (mapping){.bytes = 0};
  (void)pthread_mutex_unlock(&lock);
  (void)atomic_fetch_sub(&imports, 1);
}

static bool is_imported(const void *address, size_t bytes)
{
  bool found = false;
  (void)pthread_mutex_lock(&lock);
  for (size_t i = 0; i < PIECES_MAX && !found; i++) {
    const uintptr_t past = (uintptr_t)address - (uintptr_t)mappings[i].at;
    found = mappings[i].at != NULL && past < mappings[i].bytes && bytes <= mappings[i].bytes - past;
  }
  (void)pthread_mutex_unlock(&lock);
  return found;
}

unsigned test_memory_imports(void)
{
  const fake_cuda_open cuda = fake_cuda_count();
  return atomic_load(&imports) + cuda.imports + cuda.maps;
}

bool test_memory_is_released(void)
{
  const struct timespec pause = {.tv_nsec = 1000000};
  for (unsigned i = 0; i < 5000 && test_memory_imports() > 0; i++) {
    (void)nanosleep(&pause, NULL);
  }
  return test_memory_imports() == 0;
}

static void stall(void)
{
  const struct timespec pause = {.tv_nsec = 1000000};
  (void)atomic_fetch_add(&test_memory_stalled, 1);
  while (atomic_load(&test_memory_stalls)) {
    (void)nanosleep(&pause, NULL);
  }
  (void)atomic_fetch_sub(&test_memory_stalled, 1);
}

static kvf_status read_batch(pid_t pid, const kvf_memory_batch *batch, uint64_t *bytes)
{
  (void)pid;
  *bytes = 0;
  stall();
  for (size_t i = batch->first; i < batch->count && *bytes < STEP_BYTES; i++) {
    const struct iovec *to = &batch->to[i];
    size_t some = to->iov_len < STEP_BYTES ? to->iov_len : STEP_BYTES;
    uint8_t *own = find(to->iov_base, some).base == NULL ? to->iov_base : own_of(to->iov_base, some);
    if (!is_imported(batch->from[i].iov_base, some)) {
      fail("read what is no import of the kind");
    }
    move_bytes(own, batch->from[i].iov_base, some);
    *bytes += some;
    if (some < to->iov_len) {
      break;
    }
  }
  return KVF_OK;
}

/* ---- ordering points ---- */

kvf_ordering_point test_point(test_event *event)
{
  kvf_ordering_point point = {.handle = event};
  const uint32_t kind = TEST_MEMORY;
  memcpy(&point.memory, &kind, sizeof(point.memory)); /* no enumerator */
  return point;
}

static kvf_status mark_point(const kvf_ordering_point *point, void **mark)
{
  test_event *event = point->handle;
  if (event == NULL || point->device >= TEST_MEMORY_DEVICES) {
    return KVF_INVALID;
  }
  (void)atomic_fetch_add(&event->marks, 1);
  *mark = event;
  return KVF_OK;
}

static bool is_complete(void *mark)
{
  test_event *event = mark;
  (void)atomic_fetch_add(&event->asked, 1);
  return atomic_load(&event->complete);
}

static void unmark(void *mark)
{
  test_event *event = mark;
  (void)atomic_fetch_sub(&event->marks, 1);
}

/* ---- the kinds ---- */

#define OPERATIONS(number)                                                                                          \
  .kind = (kvf_memory_kind)(number), .batch_runs_max = 256, .batch_bytes_max = UINT64_C(1) << 20, .check = check,   \
  .copy_in = copy_in, .copy_out = copy_out, .checksums = checksums, .mark = mark_point, .is_complete = is_complete, \
  .unmark = unmark

static const kvf_memory_ops test_ops = {OPERATIONS(TEST_MEMORY), .export = export_region, .import = import_region,
                                        .release = release, .read = read_batch};

static kvf_status export_nothing(const kvf_region *region, void *out, size_t *bytes, char *message)
{
  (void)region;
  (void)out;
  (void)bytes;
  return kvf_fail(KVF_TRANSFER_SETUP, message, "it is of the other kind");
}

static const kvf_memory_ops other_ops = {OPERATIONS(TEST_MEMORY_OTHER), .export = export_nothing};

const kvf_memory_ops *__wrap_kvf_memory_ops_of(uint32_t kind)
{
  switch (kind) {
    case KVF_MEMORY_HOST:
      return &kvf_memory_host;
    case KVF_MEMORY_CUDA:
      return &kvf_memory_cuda;
    case TEST_MEMORY:
      return atomic_load(&test_memory_is_known) ? &test_ops : NULL;
    case TEST_MEMORY_OTHER:
      return &other_ops;
    default:
      return NULL;
  }
}

const char *__wrap_kvf_memory_kind_name(int kind)
{
  return kind == KVF_MEMORY_HOST     ? "host"
         : kind == KVF_MEMORY_CUDA   ? "cuda"
         : kind == TEST_MEMORY       ? "test"
         : kind == TEST_MEMORY_OTHER ? "other"
                                     : "unknown";
}
