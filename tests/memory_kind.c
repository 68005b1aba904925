/* Kinds of memory of the tests' own: see memory_kind.h. */
#include "memory_kind.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/status.h"
#include "cuda_driver.h"
#include "fake_cuda.h"
#include "test.h"

#define PIECES_MAX 4096
#define FILE_NAME "kvf-test-memory"
#define STEP_BYTES 65536u /* that a step of read() brings at most */

typedef enum piece_kind { PIECE_OWN = 1, PIECE_IMPORT = 2, PIECE_CUDA = 4, PIECE_CUDA_MAPPED = 8 } piece_kind;

/* Memory of the tests' own kinds, or an import of it; or what the driver has allocated for a test. */
typedef struct piece {
  piece_kind kind;
  uint8_t *base; /* NULL: there is none. Of memory of the tests' own: PROT_NONE */
  uint8_t *own;  /* the same, to be touched; NULL: it has been withdrawn */
  size_t bytes;
  int fd;
} piece;

/* As it travels. */
typedef struct exported {
  uint64_t fd;
  uint64_t offset;
} exported;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static piece pieces[PIECES_MAX]; /* under the lock */
static size_t pieces_end;        /* behind the last that there ever was; under the lock */
static atomic_uint imports;
atomic_bool test_memory_is_known = true;
atomic_bool test_memory_fails;
atomic_bool test_memory_stalls;
atomic_uint test_memory_stalled;
static const kvf_memory_ops test_ops;

const kvf_memory_ops *__wrap_kvf_memory_ops_of(uint32_t kind);
const char *__wrap_kvf_memory_kind_name(int kind);

static void give_up(const char *what)
{
  perror(what);
  abort();
}

/* ---- pieces ---- */

static void add(piece made)
{
  (void)pthread_mutex_lock(&lock);
  size_t i = 0;
  while (i < pieces_end && pieces[i].base != NULL) {
    i++;
  }
  if (i == PIECES_MAX) {
    give_up("too many pieces");
  }
  pieces[i] = made;
  pieces_end = i == pieces_end ? i + 1 : pieces_end;
  (void)pthread_mutex_unlock(&lock);
}

/* That of one of these kinds which has all of this. */
static piece find(unsigned kinds, const void *address, size_t bytes)
{
  piece found = {.base = NULL};
  (void)pthread_mutex_lock(&lock);
  for (size_t i = 0; i < pieces_end && found.base == NULL; i++) {
    const uintptr_t past = (uintptr_t)address - (uintptr_t)pieces[i].base;
    if (pieces[i].base != NULL && (pieces[i].kind & kinds) != 0 && past <= pieces[i].bytes &&
        bytes <= pieces[i].bytes - past) {
      found = pieces[i];
    }
  }
  (void)pthread_mutex_unlock(&lock);
  return found;
}

static piece take(const void *base)
{
  piece taken = {.base = NULL};
  (void)pthread_mutex_lock(&lock);
  for (size_t i = 0; i < pieces_end && base != NULL; i++) {
    if (pieces[i].base == base) {
      taken = pieces[i];
      pieces[i].base = NULL;
    }
  }
  (void)pthread_mutex_unlock(&lock);
  return taken;
}

void *test_memory_map(size_t bytes)
{
  void *base = cuda_driver_map(bytes);
  add((piece){.kind = PIECE_CUDA_MAPPED, .base = base, .bytes = bytes});
  return base;
}

void *test_memory_allocate(uint32_t kind, size_t bytes)
{
  if (kind == KVF_MEMORY_CUDA) {
    void *base = cuda_driver_allocate(bytes);
    add((piece){.kind = PIECE_CUDA, .base = base, .bytes = bytes});
    test_memory_set(base, 0, bytes);
    return base;
  }
  piece made = {.kind = PIECE_OWN, .bytes = bytes, .fd = memfd_create(FILE_NAME, MFD_CLOEXEC)};
  if (made.fd < 0 || ftruncate(made.fd, (off_t)bytes) != 0) {
    give_up("memfd");
  }
  made.base = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, made.fd, 0);
  made.own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
  if (made.base == MAP_FAILED || made.own == MAP_FAILED) {
    give_up("mmap");
  }
  add(made);
  return made.base;
}

static void close_own(const piece *gone)
{
  if (gone->own != NULL) {
    (void)munmap(gone->own, gone->bytes);
  }
}

void test_memory_withdraw(void *base)
{
  if (find(PIECE_OWN, base, 1).base == NULL) {
    test_memory_free(base);
    return;
  }
  piece left = take(base);
  close_own(&left);
  left.own = NULL;
  add(left);
}

/* It may have been withdrawn. */
void test_memory_free(void *base)
{
  const piece gone = take(base);
  if (gone.base == NULL) {
    return;
  }
  switch (gone.kind) {
    case PIECE_OWN:
      close_own(&gone);
      (void)munmap(base, gone.bytes);
      (void)close(gone.fd);
      break;
    case PIECE_IMPORT:
      (void)munmap(base, gone.bytes);
      break;
    case PIECE_CUDA:
      cuda_driver_free(base);
      break;
    case PIECE_CUDA_MAPPED:
      cuda_driver_unmap(base, gone.bytes);
      break;
  }
}

/* ---- bytes ---- */

/* Where a run of a region is touched. */
static uint8_t *own_of(const void *address, size_t bytes)
{
  piece found = find(PIECE_OWN, address, bytes);
  if (found.base == NULL || found.own == NULL) {
    give_up("touched what is no memory of the kind any more");
  }
  return found.own + ((const uint8_t *)address - found.base);
}

uint8_t *test_memory_bytes(const void *address)
{
  if (find(PIECE_OWN, address, 1).base != NULL) {
    return own_of(address, 1);
  }
  uint8_t *view = fake_cuda_view((uintptr_t)address);
  const bool is_cuda = find(PIECE_CUDA | PIECE_CUDA_MAPPED, address, 1).base != NULL;
  return view != NULL || is_cuda ? view : (uint8_t *)(uintptr_t)address;
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
  uint8_t *all = allocate(bytes);
  memset(all, value, bytes);
  test_memory_put(address, all, bytes);
  free(all);
}

bool test_memory_all_are(const void *address, uint8_t value, size_t bytes)
{
  uint8_t *all = allocate(bytes);
  test_memory_get(all, address, bytes);
  const bool are = all[0] == value && memcmp(all, all + 1, bytes - 1) == 0;
  free(all);
  return are;
}

/* ---- operations ---- */

static kvf_status check(const kvf_region *region, char *message)
{
  const size_t bytes = region->stride_bytes * (region->blocks - 1) + region->block_bytes;
  if (region->device >= TEST_MEMORY_DEVICES || find(PIECE_OWN, region->base, bytes).base == NULL) {
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
      give_up("bytes cannot be moved");
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
  piece found = find(PIECE_OWN, region->base, 1);
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
  piece map = {.kind = PIECE_IMPORT};
  if (fstat(fd, &file) == 0 && all.offset <= (uint64_t)file.st_size &&
      source->region_bytes <= (uint64_t)file.st_size - all.offset) {
    map.bytes = (size_t)file.st_size;
    map.base = mmap(NULL, map.bytes, PROT_READ, MAP_SHARED, fd, 0);
  }
  (void)close(fd);
  if (map.bytes == 0) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "the test's memory there is too short");
  }
  if (map.base == MAP_FAILED) {
    give_up("mmap of an import");
  }
  add(map);
  (void)atomic_fetch_add(&imports, 1);
  *out = (kvf_memory_import){.ops = &test_ops, .base = (uintptr_t)map.base + all.offset, .state = map.base};
  return KVF_OK;
}

static void release(kvf_memory_import *import)
{
  test_memory_free(import->state);
  (void)atomic_fetch_sub(&imports, 1);
}

unsigned test_memory_imports(void)
{
  const fake_cuda_open cuda = fake_cuda_count();
  return atomic_load(&imports) + cuda.imports + cuda.maps;
}

bool test_memory_is_released(void)
{
  for (unsigned i = 0; i < 5000 && test_memory_imports() > 0; i++) {
    sleep_ms(1);
  }
  return test_memory_imports() == 0;
}

static void stall(void)
{
  (void)atomic_fetch_add(&test_memory_stalled, 1);
  while (atomic_load(&test_memory_stalls)) {
    sleep_ms(1);
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
    uint8_t *own = find(PIECE_OWN, to->iov_base, some).base == NULL ? to->iov_base : own_of(to->iov_base, some);
    if (find(PIECE_IMPORT, batch->from[i].iov_base, some).base == NULL) {
      give_up("read what is no import of the kind");
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
