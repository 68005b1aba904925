/* Memory of NVIDIA GPUs in other processes: a child exports, the test imports and reads. And in its own. */
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../fake_cuda/gpu.h"

#define MIB ((size_t)1 << 20)
#define GRAIN FAKE_CUDA_GRANULARITY_BYTES
#define SEED 11
#define WRITING_MODE "maps for writing"

static const kvf_memory_ops *const cuda = &kvf_memory_cuda;

/* A region at an odd place in a longer allocation, and one from inside its first mapping into its last. */
static const exporter_order in_allocation = {
    .kind = EXPORT_ALLOCATION, .bytes = 3 * MIB, .offset = 70000, .region_bytes = 2 * MIB + 333, .seed = SEED};
static const exporter_order in_mappings = {.kind = EXPORT_MAPPINGS,
                                           .bytes = 4 * GRAIN,
                                           .mappings = 4,
                                           .handle_types = KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           .offset = 70000,
                                           .region_bytes = 3 * GRAIN,
                                           .seed = SEED};
static const exporter_order *const both[] = {&in_allocation, &in_mappings};

/* What there is in this process that an import adds to. */
typedef struct books {
  fake_cuda_open cuda;
  size_t descriptors;
} books;

static books count(void)
{
  return (books){fake_cuda_count(), count_entries("/proc/self/fd")};
}

static void expect_as(books before)
{
  const books now = count();
  assert_int_equal(now.cuda.imports, before.cuda.imports);
  assert_int_equal(now.cuda.maps, before.cuda.maps);
  assert_int_equal(now.cuda.reservations, before.cuda.reservations);
  assert_int_equal(now.cuda.allocations, before.cuda.allocations);
  assert_int_equal(now.descriptors, before.descriptors);
}

/* The first import opens the device. */
static void begin(void)
{
  assert_int_equal(cuMemFree_v2(kind_allocate(MIB)), KVF_CUDA_SUCCESS);
}

#define SHARE_TEST(name) TEST_WITH(name, begin, NULL)

static kvf_memory_import import_for(uint32_t device, const exporter_reply *got, size_t region_bytes)
{
  kvf_memory_import import;
  if (kind_import(got->pid, device, &got->exported, region_bytes, &import) != KVF_OK) {
    fail_msg("%s", kind_message);
  }
  assert_ptr_equal(import.ops, cuda);
  return import;
}

static void expect_host_reads(const kvf_memory_import *import, pid_t pid, size_t bytes)
{
  uint8_t *to = allocate(bytes);
  assert_int_equal(kind_read(pid, import, 0, to, bytes), KVF_OK);
  assert_true(kind_is_written(to, bytes, SEED));
  free(to);
}

/* ---- what is read ---- */

SHARE_TEST(a_region_is_read_by_the_device_and_by_the_host)
{
  for (size_t i = 0; i < 2; i++) {
    static kvf_memory_batch batch;
    const size_t bytes = both[i]->region_bytes;
    child_process child;
    uint64_t read = 0;
    const kvf_cu_memory own = kind_allocate(bytes);
    const exporter_reply got = exporter_start(&child, both[i]);
    const kvf_memory_import import = import_for(0, &got, bytes);
    kind_batch(&batch, &import, cuda, (void *)(uintptr_t)own, bytes / 1000, 1000);
    assert_int_equal(kind_step(got.pid, &batch, &read), KVF_OK);
    assert_int_equal(read, bytes / 1000 * 1000);
    assert_true(kind_device_is_written(own, read, SEED));
    expect_host_reads(&import, got.pid, bytes);
    kvf_memory_import released = import;
    cuda->release(&released);
    assert_int_equal(cuMemFree_v2(own), KVF_CUDA_SUCCESS);
    exporter_end(&child);
  }
}

SHARE_TEST(a_release_gives_all_of_it_back)
{
  for (size_t i = 0; i < 2; i++) {
    child_process child;
    const exporter_reply got = exporter_start(&child, both[i]);
    const books before = count();
    kvf_memory_import first = import_for(0, &got, both[i]->region_bytes);
    kvf_memory_import second = import_for(0, &got, both[i]->region_bytes); /* a process may have many */
    expect_host_reads(&first, got.pid, both[i]->region_bytes);
    cuda->release(&first);
    expect_host_reads(&second, got.pid, both[i]->region_bytes);
    cuda->release(&second);
    expect_as(before);
    exporter_end(&child);
  }
}

/* No call of an import may leave anything behind when it fails. */
SHARE_TEST(an_import_that_fails_leaves_nothing)
{
  static const struct {
    const exporter_order *order;
    const char *call;
    unsigned after;
    const char *message;
  } rows[] = {
      {&in_allocation, "cuIpcOpenMemHandle_v2", 0, "cuIpcOpenMemHandle: CUDA_ERROR_OUT_OF_MEMORY"},
      {&in_mappings, "cuMemAddressReserve", 0, "cuMemAddressReserve: CUDA_ERROR_OUT_OF_MEMORY"},
      {&in_mappings, "cuMemImportFromShareableHandle", 0, "mapping its shared memory: CUDA_ERROR_OUT_OF_MEMORY"},
      {&in_mappings, "cuMemImportFromShareableHandle", 2, "mapping its shared memory"},
      {&in_mappings, "cuMemMap", 0, "mapping its shared memory"},
      {&in_mappings, "cuMemMap", 1, "mapping its shared memory"},
      {&in_mappings, "cuMemSetAccess", 2, "mapping its shared memory"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    child_process child;
    kvf_memory_import import;
    const exporter_reply got = exporter_start(&child, rows[i].order);
    const books before = count();
    fake_cuda_fail(rows[i].call, KVF_CUDA_ERROR_OUT_OF_MEMORY, rows[i].after, 2);
    assert_int_equal(kind_import(got.pid, 0, &got.exported, rows[i].order->region_bytes, &import), KVF_TRANSFER_SETUP);
    fake_cuda_fail(rows[i].call, KVF_CUDA_SUCCESS, 0, 0);
    assert_non_null(strstr(kind_message, rows[i].message));
    expect_as(before);
    import = import_for(0, &got, rows[i].order->region_bytes);
    cuda->release(&import);
    exporter_end(&child);
  }
}

/* Some drivers know no mapping that may only be read: they are asked once. In a process of its own, which knows then.
 */
static int map_for_writing(void)
{
  child_process child;
  begin();
  fake_cuda_map_for_reading(false);
  const exporter_reply got = exporter_start(&child, &in_mappings);
  for (unsigned i = 0; i < 3; i++) {
    const uint64_t asked = fake_cuda_calls("cuMemSetAccess");
    kvf_memory_import import = import_for(0, &got, in_mappings.region_bytes);
    assert_int_equal(fake_cuda_calls("cuMemSetAccess") - asked, in_mappings.mappings + (i == 0 ? 1 : 0));
    expect_host_reads(&import, got.pid, in_mappings.region_bytes);
    cuda->release(&import);
  }
  exporter_end(&child);
  return 0;
}

TEST(a_driver_that_maps_for_reading_and_writing_only_will_do)
{
  child_process child;
  assert_true(child_start(&child, WRITING_MODE, SOCK_STREAM));
  assert_int_equal(child_end(&child), 0);
}

/* ---- by which device ---- */

static int ordinal_of(kvf_cu_memory address)
{
  unsigned attribute = KVF_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
  uint64_t value = 0;
  void *out = &value;
  assert_int_equal(gpu->pointer_get_attributes(1, &attribute, &out, address), KVF_CUDA_SUCCESS);
  return (int)(uint32_t)value;
}

/* Processes count devices each in their own way; the host reads by the memory's own, if this process sees it. */
SHARE_TEST(devices_are_known_by_their_uuids)
{
  static const struct {
    const char *devices;
    uint32_t reader;
    int expected;
  } rows[] = {{"0,1", KVF_MEMORY_NO_DEVICE, 0},
              {"1,0", KVF_MEMORY_NO_DEVICE, 1},
              {"5", KVF_MEMORY_NO_DEVICE, 0},
              {"1,0", 0, 0},
              {"0", 1, 1},
              {"5", 1, 1}};
  for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
    child_process child;
    const exporter_order *order = both[i % 2];
    assert_int_equal(setenv("KVFERRY_FAKE_CUDA_DEVICES", rows[i / 2].devices, 1), 0);
    const exporter_reply got = exporter_start(&child, order);
    assert_int_equal(unsetenv("KVFERRY_FAKE_CUDA_DEVICES"), 0);
    kvf_memory_import import = import_for(rows[i / 2].reader, &got, order->region_bytes);
    assert_int_equal(ordinal_of(import.base), rows[i / 2].expected);
    expect_host_reads(&import, got.pid, order->region_bytes);
    cuda->release(&import);
    assert_int_equal(kind_import(got.pid, 2, &got.exported, order->region_bytes, &import), KVF_TRANSFER_SETUP);
    assert_string_equal(kind_message, "this process sees no CUDA device 2, but 2 others");
    exporter_end(&child);
  }
}

/* ---- exporting ---- */

SHARE_TEST(an_unexport_gives_all_of_it_back)
{
  for (size_t i = 0; i < 2; i++) {
    child_process child;
    const exporter_reply got = exporter_start(&child, both[i]);
    const exporter_reply back = exporter_ask(&child, EXPORTER_UNEXPORT);
    assert_int_equal(got.descriptors - got.descriptors_before, both[i]->mappings);
    assert_int_equal(back.descriptors, got.descriptors_before);
    assert_int_equal(back.allocations, got.allocations_before);
    exporter_end(&child);
  }
}

TEST(memory_that_has_no_handle_is_not_exported)
{
  exporter_order order = in_mappings;
  child_process child;
  order.handle_types = KVF_CU_MEM_HANDLE_TYPE_FABRIC;
  for (unsigned i = 0; i < 2; i++) {
    const exporter_reply got = exporter_start(&child, &order);
    assert_int_equal(got.status, KVF_TRANSFER_SETUP);
    assert_string_equal(got.message,
                        "its allocator made it without a handle for other processes (as vLLM's sleep mode does)");
    assert_int_equal(got.descriptors, got.descriptors_before);
    exporter_end(&child);
    order.handle_types = KVF_CU_MEM_HANDLE_TYPE_NONE;
  }
}

SHARE_TEST(an_export_that_fails_leaves_nothing)
{
  static const struct {
    const char *call;
    unsigned after;
    const char *message;
  } rows[] = {{"cuIpcGetMemHandle", 0, "cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED"},
              {"cuMemExportToShareableHandle", 0, "cuMemExportToShareableHandle: CUDA_ERROR_NOT_SUPPORTED"},
              {"cuMemExportToShareableHandle", 2, "cuMemExportToShareableHandle: CUDA_ERROR_NOT_SUPPORTED"},
              {"cuMemRetainAllocationHandle", 1, "cuMemExportToShareableHandle: CUDA_ERROR_NOT_SUPPORTED"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const size_t bytes = 3 * GRAIN;
    const kvf_cu_memory memory =
        i == 0 ? kind_allocate(bytes) : kind_map(bytes, 3, KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const kvf_region region = kind_region(memory, bytes);
    kind_export shared;
    const books before = count();
    fake_cuda_fail(rows[i].call, KVF_CUDA_ERROR_NOT_SUPPORTED, rows[i].after, 1);
    assert_int_equal(cuda->export(&region, shared.bytes, &shared.length, kind_message), KVF_TRANSFER_SETUP);
    assert_string_equal(kind_message, rows[i].message);
    expect_as(before);
    shared = kind_share(memory, bytes);
    cuda->unexport(shared.bytes);
    expect_as(before);
    i == 0 ? (void)cuMemFree_v2(memory) : gpu_unmap(memory, bytes);
  }
}

/* ---- an exporter that goes ---- */

/* What a legacy allocation has then is nobody's; that it is, the fence says. */
SHARE_TEST(a_process_that_dies_while_it_is_read)
{
  for (size_t i = 0; i < 2; i++) {
    static kvf_memory_batch batch;
    static kind_reading reading;
    const size_t bytes = both[i]->region_bytes;
    child_process child;
    const kvf_cu_memory own = kind_allocate(bytes);
    const exporter_reply got = exporter_start(&child, both[i]);
    books before = count();
    kvf_memory_import import = import_for(0, &got, bytes);
    const uint64_t asked = fake_cuda_calls("cuEventQuery");
    fake_cuda_stall_device(0, true);
    kind_batch(&batch, &import, cuda, (void *)(uintptr_t)own, bytes, 1);
    kind_reading_start(&reading, &batch);
    kind_wait_calls("cuEventQuery", asked + 5);
    assert_true(child_kill(&child));
    before.descriptors--; /* the channel to it */
    fake_cuda_stall_device(0, false);
    assert_int_equal(kind_reading_join(&reading), KVF_OK);
    assert_int_equal(kind_device_is_written(own, bytes, SEED), i == 1);
    assert_true(cuda->works(0));
    cuda->release(&import);
    expect_as(before);
    assert_int_equal(kind_import(got.pid, 0, &got.exported, bytes, &import), KVF_TRANSFER_SETUP);
    expect_as(before);
    assert_int_equal(cuMemFree_v2(own), KVF_CUDA_SUCCESS);
  }
}

/* ---- in its own process ---- */

typedef struct own_region {
  kvf_cu_memory memory;
  kind_export shared;
  kvf_memory_import import;
  kvf_memory_batch batch;
  kind_reading reading;
  kind_side unexport;
} own_region;

static void make_own(own_region *out, size_t bytes, uint8_t *to)
{
  out->memory = kind_allocate(bytes);
  kind_write_device(out->memory, bytes, SEED);
  out->shared = kind_share(out->memory, bytes);
  out->import = kind_import_own(&out->shared, bytes);
  kind_batch(&out->batch, &out->import, &kvf_memory_host, to, bytes, 1);
}

static void end_own(own_region *ended)
{
  cuda->release(&ended->import);
  assert_int_equal(cuMemFree_v2(ended->memory), KVF_CUDA_SUCCESS);
}

static void unexport(void *shared)
{
  cuda->unexport(shared);
}

SHARE_TEST(a_region_is_read_in_its_own_process)
{
  const books before = count();
  for (unsigned i = 0; i < 2; i++) {
    const size_t bytes = 2 * GRAIN;
    const kvf_cu_memory memory =
        i == 0 ? kind_allocate(bytes) : kind_map(bytes, 2, KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    kind_write_device(memory + 100, bytes - 100, SEED);
    const kind_export shared = kind_share(memory + 100, bytes - 100);
    kvf_memory_import import = kind_import_own(&shared, bytes - 100);
    expect_host_reads(&import, getpid(), bytes - 100);
    cuda->release(&import);
    cuda->unexport(shared.bytes);
    i == 0 ? (void)cuMemFree_v2(memory) : gpu_unmap(memory, bytes);
  }
  expect_as(before);
}

/* Only what is exported: whoever says that it is this process may be another. */
SHARE_TEST(nothing_else_of_its_own_process_is_read)
{
  static own_region own;
  static uint8_t to[MIB];
  kvf_memory_import import;
  uint64_t words[KVF_MEMORY_EXPORT_BYTES_MAX / 8];
  make_own(&own, MIB, to);
  for (size_t i = 0; i < own.shared.length / 8; i++) {
    kind_export altered = own.shared;
    memcpy(words, altered.bytes, sizeof(words));
    words[i] += 4096;
    memcpy(altered.bytes, words, sizeof(words));
    if (kind_import(getpid(), 0, &altered, MIB, &import) == KVF_OK) {
      assert_int_equal(import.base, own.memory);
      cuda->release(&import);
    }
    assert_int_equal(kind_import(getpid(), 0, &altered, MIB + 1, &import), KVF_TRANSFER_SETUP);
  }
  cuda->unexport(own.shared.bytes);
  end_own(&own);
}

SHARE_TEST(an_unexport_waits_for_who_reads)
{
  static own_region own;
  static uint8_t to[3 * MIB];
  kvf_memory_import second;
  uint64_t read = 99;
  make_own(&own, sizeof(to), to);
  second = kind_import_own(&own.shared, sizeof(to));
  const uint64_t asked = fake_cuda_calls("cuEventQuery");
  fake_cuda_stall_device(0, true);
  kind_reading_start(&own.reading, &own.batch);
  kind_wait_calls("cuEventQuery", asked + 5);
  kind_side_start(&own.unexport, unexport, own.shared.bytes);
  assert_true(kind_side_is_stuck(&own.unexport));
  /* who comes now comes too late, and does not make it wait for longer */
  static kind_reading late;
  kind_reading_start(&late, &own.batch);
  assert_true(kind_side_is_stuck(&late.side));
  fake_cuda_stall_device(0, false);
  kind_side_join(&own.unexport);
  assert_int_equal(fake_cuda_count().works, 0);
  assert_int_equal(kind_reading_join(&own.reading), KVF_OK);
  assert_true(kind_is_written(to, sizeof(to), SEED));
  assert_int_equal(kind_reading_join(&late), KVF_TRANSFER_FAILED);
  own.batch.import = &second;
  assert_int_equal(kind_step(getpid(), &own.batch, &read), KVF_TRANSFER_FAILED);
  assert_int_equal(read, 0);
  cuda->release(&second);
  assert_int_equal(kind_import(getpid(), 0, &own.shared, sizeof(to), &second), KVF_TRANSFER_SETUP);
  assert_string_equal(kind_message, "this process does not export it");
  assert_true(cuda->works(0));
  end_own(&own);
}

SHARE_TEST(exports_are_told_apart)
{
  static own_region first;
  static own_region second;
  static uint8_t to[MIB];
  uint64_t read;
  make_own(&first, sizeof(to), to);
  make_own(&second, sizeof(to), to);
  cuda->unexport(first.shared.bytes);
  assert_int_equal(kind_step(getpid(), &first.batch, &read), KVF_TRANSFER_FAILED);
  assert_int_equal(kind_step(getpid(), &second.batch, &read), KVF_OK);
  kind_export anew = kind_share(first.memory, sizeof(to)); /* the old import is not of this one */
  assert_int_equal(kind_step(getpid(), &first.batch, &read), KVF_TRANSFER_FAILED);
  cuda->unexport(anew.bytes);
  cuda->unexport(second.shared.bytes);
  end_own(&first);
  end_own(&second);
}

static void read_until_refused(void *context)
{
  const own_region *own = context;
  uint64_t read;
  while (kind_step(getpid(), &own->batch, &read) == KVF_OK) {
  }
}

/* As a node does that goes while others read: a copy from memory that is freed would lose the device. */
SHARE_TEST(memory_may_be_freed_after_an_unexport)
{
  static own_region own;
  static kind_side readers[3];
  static uint8_t to[MIB];
  for (unsigned round = 0; round < (SANITIZED ? 10 : 50); round++) {
    fake_cuda_seed(round);
    make_own(&own, 200000, to);
    own.batch.into = cuda;
    own.batch.to[0].iov_base = (void *)(uintptr_t)kind_allocate(200000);
    for (size_t i = 0; i < 3; i++) {
      kind_side_start(&readers[i], read_until_refused, &own);
    }
    (void)usleep(300);
    cuda->unexport(own.shared.bytes);
    assert_int_equal(cuMemFree_v2(own.memory), KVF_CUDA_SUCCESS);
    for (size_t i = 0; i < 3; i++) {
      kind_side_join(&readers[i]);
    }
    assert_true(cuda->works(0));
    assert_int_equal(cuMemFree_v2((uintptr_t)own.batch.to[0].iov_base), KVF_CUDA_SUCCESS);
    cuda->release(&own.import);
  }
}

/* ---- last, since it costs a device ---- */

SHARE_TEST(what_is_mapped_cannot_be_written)
{
  const uint8_t byte = 1;
  const struct iovec from = {(void *)(uintptr_t)&byte, 1};
  child_process child;
  const exporter_reply got = exporter_start(&child, &in_mappings);
  kvf_memory_import import = import_for(1, &got, in_mappings.region_bytes);
  expect_host_reads(&import, got.pid, in_mappings.region_bytes);
  for (size_t i = 0; i < in_mappings.region_bytes; i += GRAIN) {
    const struct iovec to = {(void *)(uintptr_t)(import.base + i), 1};
    assert_false(cuda->copy_in(1, &to, &from, 1));
    assert_false(cuda->works(1));
  }
  assert_true(cuda->works(0));
  cuda->release(&import);
  assert_int_equal(exporter_ask(&child, EXPORTER_LOOK).is_written, true);
  exporter_end(&child);
}

int main(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], EXPORTER_MODE) == 0) {
    return exporter_run();
  }
  if (argc > 1 && strcmp(argv[1], WRITING_MODE) == 0) {
    return map_for_writing();
  }
  return test_run(argc > 1 ? argv[1] : NULL);
}
