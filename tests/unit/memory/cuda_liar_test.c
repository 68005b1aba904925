/* Exports of a process that lies about its memory: what an import takes for good can be read, and nothing else is. */
#include <sys/uio.h>
#include <unistd.h>

#include "../fake_cuda/gpu.h"
#include "base/prng.h"

#define MIB ((size_t)1 << 20)
#define GRAIN FAKE_CUDA_GRANULARITY_BYTES
#define MAPPINGS 3
#define SEEDS (SANITIZED ? 400 : 4000)

static const kvf_memory_ops *const cuda = &kvf_memory_cuda;

/* What travels, and the table in the exporter's memory, as memory/cuda/export.c has them. */
typedef struct shared_region {
  kvf_cu_uuid device;
  uint32_t how;
  uint32_t files_count;
  uint64_t address;
  uint64_t offset;
  uint64_t bytes;
  uint64_t own;
  union {
    kvf_cu_ipc_mem_handle handle;
    uint64_t files;
  } u;
} shared_region;

typedef struct shared_file {
  uint64_t bytes;
  int32_t fd;
  uint32_t reserved;
} shared_file;

#define WORDS (sizeof(shared_region) / sizeof(uint64_t))

static const exporter_order orders[] = {
    {.kind = EXPORT_ALLOCATION, .bytes = MIB, .offset = 4000, .region_bytes = MIB - 8000, .seed = 1},
    {.kind = EXPORT_MAPPINGS,
     .bytes = MAPPINGS * GRAIN,
     .mappings = MAPPINGS,
     .handle_types = KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
     .offset = 4000,
     .region_bytes = MAPPINGS * GRAIN - 8000,
     .seed = 2}};

/* The exporter, and what it says. */
static child_process child;
static pid_t pid;
static size_t region_bytes;
static shared_region truth;
static shared_file true_files[MAPPINGS];
static shared_region lie;
static size_t lie_length;
static unsigned told; /* of imports, by the driver */

static void move_files(shared_file *files, bool write)
{
  const struct iovec ours = {files, sizeof(true_files)};
  const struct iovec theirs = {(void *)(uintptr_t)truth.u.files, sizeof(true_files)};
  const ssize_t moved =
      write ? process_vm_writev(pid, &ours, 1, &theirs, 1, 0) : process_vm_readv(pid, &ours, 1, &theirs, 1, 0);
  assert_int_equal(moved, sizeof(true_files));
}

static void tell_of_imports(unsigned what)
{
  told = what;
  fake_cuda_tell_of_imports(told);
}

static void be_true(void)
{
  lie = truth;
  lie_length = sizeof(lie);
}

static void begin(exporter_kind kind)
{
  assert_int_equal(cuMemFree_v2(kind_allocate(MIB)), KVF_CUDA_SUCCESS);
  tell_of_imports(fake_cuda_defaults().told_of_imports);
  const exporter_order *order = &orders[kind];
  const exporter_reply got = exporter_start(&child, order);
  assert_int_equal(got.status, KVF_OK);
  assert_int_equal(got.exported.length, sizeof(truth));
  memcpy(&truth, got.exported.bytes, sizeof(truth));
  assert_int_equal(truth.offset, order->offset);
  assert_int_equal(truth.bytes, order->bytes);
  assert_int_equal(truth.files_count, order->mappings);
  pid = got.pid;
  region_bytes = order->region_bytes;
  if (kind == EXPORT_MAPPINGS) {
    move_files(true_files, false);
    assert_int_equal(true_files[1].bytes, GRAIN);
  }
  be_true();
}

/* It goes by what is true. */
static void end(void)
{
  if (truth.files_count > 0) {
    move_files(true_files, true);
  }
  exporter_end(&child);
}

static void begin_allocation(void)
{
  begin(EXPORT_ALLOCATION);
}

static void begin_mappings(void)
{
  begin(EXPORT_MAPPINGS);
}

#define ALLOCATION_TEST(name) TEST_WITH(name, begin_allocation, end)
#define MAPPINGS_TEST(name) TEST_WITH(name, begin_mappings, end)

static kvf_status import_lie(kvf_memory_import *out, size_t bytes)
{
  kind_export exported = {.length = lie_length};
  memcpy(exported.bytes, &lie, sizeof(lie));
  return kind_import(pid, 0, &exported, bytes, out);
}

/* ---- what becomes of an import ---- */

static fake_cuda_open before;
static size_t descriptors_before;

static void remember(void)
{
  before = fake_cuda_count();
  descriptors_before = count_entries("/proc/self/fd");
}

static void expect_nothing_left(void)
{
  const fake_cuda_open now = fake_cuda_count();
  assert_int_equal(now.imports, before.imports);
  assert_int_equal(now.maps, before.maps);
  assert_int_equal(now.reservations, before.reservations);
  assert_int_equal(now.allocations, before.allocations);
  assert_int_equal(count_entries("/proc/self/fd"), descriptors_before);
  assert_true(cuda->works(0));
}

static void expect_refused(const char *why)
{
  kvf_memory_import import;
  remember();
  assert_int_equal(import_lie(&import, region_bytes), KVF_TRANSFER_SETUP);
  if (strstr(kind_message, why) == NULL) {
    fail_msg("%s", kind_message);
  }
  expect_nothing_left();
}

/* All of it lies in what has been mapped just now. */
static void expect_mapped(const kvf_memory_import *import, size_t bytes)
{
  kvf_cu_memory at = import->base;
  fake_cuda_tell_of_imports(FAKE_CUDA_TELLS_ALL);
  while (at < import->base + bytes) {
    kvf_cu_memory base;
    size_t length;
    assert_int_equal(gpu->mem_get_address_range(&base, &length, at), KVF_CUDA_SUCCESS);
    at = base + length;
  }
  fake_cuda_tell_of_imports(told);
}

/* Its first and last bytes are read as well. */
static bool import_and_read(size_t bytes)
{
  static uint8_t to[70000];
  const size_t some = bytes < sizeof(to) ? bytes : sizeof(to);
  kvf_memory_import import;
  kvf_status status = import_lie(&import, bytes);
  if (status != KVF_OK) {
    assert_int_equal(status, KVF_TRANSFER_SETUP);
    return false;
  }
  expect_mapped(&import, bytes);
  assert_int_equal(kind_read(pid, &import, 0, to, some), KVF_OK);
  assert_int_equal(kind_read(pid, &import, bytes - some, to, some), KVF_OK);
  cuda->release(&import);
  return true;
}

/* ---- lies by chance ---- */

static uint64_t draw_word(kvf_prng *prng, uint64_t was)
{
  static const uint64_t odd[] = {0,
                                 1,
                                 GRAIN,
                                 2 * GRAIN,
                                 3 * GRAIN,
                                 4 * GRAIN,
                                 INT64_MAX,
                                 (uint64_t)INT64_MAX + 1,
                                 UINT64_MAX,
                                 UINT32_MAX,
                                 UINT64_MAX - GRAIN + 1,
                                 MIB,
                                 MIB + 1,
                                 4096,
                                 4097,
                                 INT64_MAX - MIB,
                                 (uint64_t)1 << 46};
  switch (kvf_prng_below(prng, 7)) {
    case 0:
      return was ^ UINT64_C(1) << kvf_prng_below(prng, 64);
    case 1:
      return odd[kvf_prng_below(prng, sizeof(odd) / sizeof(odd[0]))];
    case 2:
      return was + kvf_prng_below(prng, 3) - 1;
    case 3:
      return was + (kvf_prng_below(prng, 3) - 1) * GRAIN;
    case 4:
      return kvf_prng_next(prng);
    case 5:
      return was + kvf_prng_below(prng, 20000) - 10000;
    default:
      return (was & UINT64_C(0xffffffff00000000)) | (uint32_t)kvf_prng_next(prng);
  }
}

static void lie_by_chance(kvf_prng *prng)
{
  uint64_t words[WORDS];
  be_true();
  memcpy(words, &lie, sizeof(words));
  for (uint64_t i = kvf_prng_below(prng, 3); i > 0; i--) {
    /* most of the time not in the handle, of which the driver has its own idea */
    const size_t word = kvf_prng_below(prng, kvf_prng_below(prng, 4) == 0 ? WORDS : 8);
    words[word] = draw_word(prng, words[word]);
  }
  memcpy(&lie, words, sizeof(lie));
  if (kvf_prng_below(prng, 50) == 0) {
    lie_length = kvf_prng_below(prng, KVF_MEMORY_EXPORT_BYTES_MAX + 1);
  }
}

static void lie_in_files(kvf_prng *prng)
{
  shared_file files[MAPPINGS];
  memcpy(files, true_files, sizeof(files));
  if (kvf_prng_below(prng, 2) == 0) {
    shared_file *file = &files[kvf_prng_below(prng, MAPPINGS)];
    if (kvf_prng_below(prng, 2) == 0) {
      file->bytes = draw_word(prng, file->bytes);
    } else {
      file->fd = (int32_t)(kvf_prng_below(prng, 4) == 0 ? kvf_prng_next(prng) : kvf_prng_below(prng, 30));
    }
  }
  move_files(files, true);
}

static void believe_nothing(exporter_kind kind)
{
  uint64_t seed;
  unsigned good = 0;
  begin(kind);
  remember();
  while (test_next_seed(SEEDS, &seed)) {
    kvf_prng prng = {seed};
    size_t bytes = region_bytes;
    lie_by_chance(&prng);
    if (kind == EXPORT_MAPPINGS) {
      lie_in_files(&prng);
    }
    if (kvf_prng_below(&prng, 4) == 0) {
      bytes = draw_word(&prng, bytes);
    }
    good += bytes > 0 && import_and_read(bytes) ? 1 : 0;
    expect_nothing_left();
  }
  assert_true(!gpu_had_all_seeds() || (good > SEEDS / 20 && good < SEEDS / 4 * 3));
  if (kind == EXPORT_MAPPINGS) {
    move_files(true_files, true);
  }
  be_true();
  assert_true(import_and_read(region_bytes)); /* as before */
  end();
}

SEEDS_TEST(lies_about_an_allocation)
{
  believe_nothing(EXPORT_ALLOCATION);
}

SEEDS_TEST(lies_about_mappings)
{
  believe_nothing(EXPORT_MAPPINGS);
}

/* ---- certain lies ---- */

ALLOCATION_TEST(an_export_has_one_length)
{
  for (lie_length = 0; lie_length <= KVF_MEMORY_EXPORT_BYTES_MAX; lie_length++) {
    if (lie_length != sizeof(lie)) {
      expect_refused("it is described by");
    }
  }
}

static const unsigned ways[] = {FAKE_CUDA_TELLS_ALL, FAKE_CUDA_TELLS_RANGE, FAKE_CUDA_TELLS_ID, FAKE_CUDA_TELLS_SIZE,
                                FAKE_CUDA_TELLS_ID | FAKE_CUDA_TELLS_SIZE};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

static void expect_as_long_as_it_is(const char *why)
{
  be_true();
  lie.bytes = INT64_MAX;
  region_bytes = MIB - truth.offset; /* to its very end */
  assert_true(import_and_read(region_bytes));
  region_bytes++;
  expect_refused(why);
  lie.offset = MIB;
  region_bytes = 1;
  expect_refused(why);
  lie.offset = INT64_MAX - 1;
  expect_refused(why);
}

ALLOCATION_TEST(an_allocation_is_as_long_as_the_driver_says)
{
  for (size_t i = 0; i < WAYS; i++) {
    tell_of_imports(ways[i]);
    expect_as_long_as_it_is((ways[i] & FAKE_CUDA_TELLS_RANGE) != 0
                                ? "the allocation behind its handle is 1048576 bytes long"
                                : "the driver does not say that the allocation behind its handle has ");
  }
}

/* Of this process, at a higher address: whatever the exporter says, it is not to be read. */
TEST(a_region_does_not_end_in_other_memory)
{
  kvf_memory_import import;
  kvf_cu_memory own[4];
  for (size_t i = 0; i < 4; i++) {
    own[i] = kind_allocate(MIB);
  }
  begin(EXPORT_ALLOCATION);
  assert_int_equal(import_lie(&import, region_bytes), KVF_OK);
  const kvf_cu_memory opened = import.base - truth.offset;
  cuda->release(&import);
  assert_true(own[3] > opened);
  lie.bytes = INT64_MAX;
  for (size_t i = 0; i < WAYS; i++) {
    tell_of_imports(ways[i]);
    lie.offset = 0;
    region_bytes = own[3] - opened + 1;
    expect_refused("the allocation behind its handle");
    lie.offset = own[3] - opened;
    region_bytes = 1;
    expect_refused("the allocation behind its handle");
  }
  end();
  for (size_t i = 0; i < 4; i++) {
    assert_int_equal(cuMemFree_v2(own[i]), KVF_CUDA_SUCCESS);
  }
}

ALLOCATION_TEST(an_allocation_of_which_the_driver_says_nothing_is_refused)
{
  tell_of_imports(0);
  region_bytes = 1;
  expect_refused("the driver does not say that the allocation behind its handle has 4001 bytes");
  tell_of_imports(FAKE_CUDA_TELLS_ID);
  assert_true(import_and_read(1));
}

ALLOCATION_TEST(what_makes_no_sense_is_not_tried)
{
  static const char why[] = "its description is invalid";
  const uint64_t calls = fake_cuda_calls("cuIpcOpenMemHandle_v2");
  lie.bytes = (uint64_t)INT64_MAX + 1;
  expect_refused(why);
  be_true();
  lie.bytes = region_bytes + lie.offset - 1;
  expect_refused(why);
  lie.offset = UINT64_MAX;
  expect_refused(why);
  be_true();
  lie.address = 0;
  expect_refused(why);
  lie.address = INT64_MAX - region_bytes + 1;
  expect_refused(why);
  be_true();
  lie.how = 0;
  expect_refused(why);
  lie.how = 3;
  expect_refused(why);
  be_true();
  lie.files_count = 1; /* a handle has none */
  expect_refused(why);
  assert_int_equal(fake_cuda_calls("cuIpcOpenMemHandle_v2"), calls);
  end();
  begin(EXPORT_MAPPINGS);
  lie.files_count = 0;
  expect_refused(why);
  lie.files_count = 4097;
  expect_refused(why);
  lie.files_count = UINT32_MAX;
  expect_refused(why);
}

MAPPINGS_TEST(a_table_that_cannot_be_read)
{
  static const uint64_t addresses[] = {0, 8, UINT64_MAX - 7, INT64_MAX - 8, UINT64_MAX};
  char why[KVF_MESSAGE_BYTES_MAX];
  (void)snprintf(why, sizeof(why), "process %d sent an invalid description of its mappings", (int)pid);
  for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
    lie.u.files = addresses[i];
    expect_refused(why);
  }
}

static void expect_files_refused(size_t file, uint64_t bytes, int32_t fd, const char *why)
{
  shared_file files[MAPPINGS];
  memcpy(files, true_files, sizeof(files));
  files[file].bytes = bytes;
  files[file].fd = fd;
  move_files(files, true);
  expect_refused(why);
}

MAPPINGS_TEST(lengths_of_mappings_do_not_overflow)
{
  static const char why[] = "sent an invalid description of its mappings";
  shared_file files[MAPPINGS];
  expect_files_refused(0, UINT64_MAX, true_files[0].fd, why);
  expect_files_refused(1, 0, true_files[1].fd, why);
  expect_files_refused(2, GRAIN - 1, true_files[2].fd, why);
  expect_files_refused(2, GRAIN + 1, true_files[2].fd, why);
  memcpy(files, true_files, sizeof(files));
  files[0].bytes = 2 * GRAIN; /* the sum is right */
  files[1].bytes = 0;
  move_files(files, true);
  expect_refused(why);
  memcpy(files, true_files, sizeof(files)); /* and right modulo 2^64 */
  files[0].bytes += INT64_MAX;
  files[1].bytes += INT64_MAX;
  files[2].bytes += 2;
  move_files(files, true);
  expect_refused(why);
}

MAPPINGS_TEST(mappings_are_as_long_as_the_driver_says)
{
  shared_file files[MAPPINGS];
  lie.bytes += GRAIN;
  region_bytes += GRAIN;
  expect_files_refused(0, 2 * GRAIN, true_files[0].fd, "mapping its shared memory: CUDA_ERROR_INVALID_VALUE");
  expect_files_refused(2, 2 * GRAIN, true_files[2].fd, "mapping its shared memory: CUDA_ERROR_INVALID_VALUE");
  be_true();
  lie.bytes = INT64_MAX / GRAIN * GRAIN;
  expect_files_refused(2, lie.bytes - 2 * GRAIN, true_files[2].fd, "CUDA_ERROR_OUT_OF_MEMORY");
  be_true();
  region_bytes = orders[EXPORT_MAPPINGS].region_bytes;
  memcpy(files, true_files, sizeof(files)); /* the same one everywhere is no lie that matters */
  files[1].fd = files[2].fd = files[0].fd;
  move_files(files, true);
  assert_true(import_and_read(region_bytes));
}

MAPPINGS_TEST(descriptors_that_are_not_memory)
{
  static const int32_t fds[] = {STDIN_FILENO, STDOUT_FILENO, -1, INT32_MAX, INT32_MIN, 1000};
  for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
    for (size_t file = 0; file < MAPPINGS; file++) {
      expect_files_refused(file, GRAIN, fds[i], "mapping its shared memory: ");
    }
  }
}

/* It says that it is this process, where nothing is read but what is exported. */
TEST(a_process_that_says_it_is_another)
{
  kvf_memory_import import;
  begin(EXPORT_ALLOCATION);
  const kvf_cu_memory own = kind_allocate(MIB);
  const kind_export exported = kind_share(own, MIB);
  pid = getpid();
  for (lie.own = 0; lie.own < 20; lie.own++) {
    expect_refused("this process does not export it");
  }
  pid = child.pid;
  end();
  be_true();
  expect_refused("cuIpcOpenMemHandle: CUDA_ERROR_INVALID_HANDLE"); /* it is there no more */
  import = kind_import_own(&exported, MIB);
  cuda->release(&import);
  cuda->unexport(exported.bytes);
  assert_int_equal(cuMemFree_v2(own), KVF_CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], EXPORTER_MODE) == 0) {
    return exporter_run();
  }
  return test_run(argc > 1 ? argv[1] : NULL);
}
