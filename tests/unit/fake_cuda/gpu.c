/* A process on the fake's first device: see gpu.h. */
#include "gpu.h"

#include <sys/socket.h>
#include <unistd.h>

#include "base/prng.h"

#define BATCH_MAX 8192

const kvf_cuda_api *gpu;
static kvf_cu_context contexts[FAKE_CUDA_DEVICES_MAX];

void gpu_begin(uint64_t seed, bool by_hand)
{
  const kvf_cuda *loaded;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_cu_context was;
  fake_cuda_settings settings = fake_cuda_defaults();
  settings.seed = seed;
  settings.by_hand = by_hand;
  assert_int_equal(kvf_cuda_load(FAKE_CUDA_LIBRARY, &loaded, message), KVF_OK);
  gpu = &loaded->api;
  while (gpu->ctx_pop_current(&was) == KVF_CUDA_SUCCESS) { /* those of the test before */
  }
  fake_cuda_reset(&settings);
  assert_int_equal(gpu->init(0), KVF_CUDA_SUCCESS);
  gpu_enter(0);
}

void gpu_enter(int device)
{
  assert_int_equal(gpu->device_primary_ctx_retain(&contexts[device], device), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->ctx_push_current(contexts[device]), KVF_CUDA_SUCCESS);
}

void gpu_leave(void)
{
  kvf_cu_context was;
  assert_int_equal(gpu->ctx_pop_current(&was), KVF_CUDA_SUCCESS);
}

kvf_cu_memory gpu_allocate(size_t bytes)
{
  kvf_cu_memory address = 0;
  assert_int_equal(cuMemAlloc_v2(&address, bytes), KVF_CUDA_SUCCESS);
  return address;
}

kvf_cu_stream gpu_stream(void)
{
  kvf_cu_stream made = NULL;
  assert_int_equal(gpu->stream_create_with_priority(&made, KVF_CU_STREAM_NON_BLOCKING, 99), KVF_CUDA_SUCCESS);
  return made;
}

kvf_cu_event gpu_event(void)
{
  kvf_cu_event made = NULL;
  assert_int_equal(gpu->event_create(&made, KVF_CU_EVENT_DISABLE_TIMING), KVF_CUDA_SUCCESS);
  return made;
}

kvf_cu_event gpu_record(kvf_cu_stream on)
{
  kvf_cu_event made = gpu_event();
  assert_int_equal(gpu->event_record(made, on), KVF_CUDA_SUCCESS);
  return made;
}

void gpu_fill(kvf_cu_stream on, kvf_cu_memory to, size_t bytes, uint8_t value)
{
  kvf_cu_module module;
  kvf_cu_function fill;
  uint64_t values[4] = {to, bytes, value, 0};
  void *arguments[] = {&values[0], &values[1], &values[2], &values[3]};
  assert_int_equal(gpu->module_load_data(&module, "image"), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->module_get_function(&fill, module, "test_fill"), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->launch_kernel(fill, 1, 1, 1, 32, 1, 1, 0, on, arguments, NULL), KVF_CUDA_SUCCESS);
  memset(values, 0xff, sizeof(values)); /* they are the caller's again */
}

void gpu_copy(kvf_cu_stream on, kvf_cu_memory to, kvf_cu_memory from, size_t bytes)
{
  assert_int_equal(gpu->memcpy_async(to, from, bytes, on), KVF_CUDA_SUCCESS);
}

void gpu_batch(kvf_cu_stream on, kvf_cu_memory to, kvf_cu_memory from, size_t bytes, size_t count, unsigned order)
{
  static kvf_cu_memory tos[BATCH_MAX];
  static kvf_cu_memory froms[BATCH_MAX];
  static size_t sizes[BATCH_MAX];
  kvf_cu_memcpy_attributes attributes = {.src_access_order = order};
  size_t first = 0;
  size_t failed;
  for (size_t i = 0; i < count; i++) {
    tos[i] = to + i * bytes;
    froms[i] = from + i * bytes;
    sizes[i] = bytes;
  }
  assert_int_equal(gpu->memcpy_batch_async(tos, froms, sizes, count, &attributes, &first, 1, &failed, on),
                   KVF_CUDA_SUCCESS);
  memset(tos, 0, sizeof(tos)); /* the driver has taken what is in the lists */
  memset(froms, 0, sizeof(froms));
}

uint8_t gpu_byte(kvf_cu_memory at)
{
  uint8_t byte;
  assert_true(fake_cuda_read(at, &byte, 1));
  return byte;
}

bool gpu_all_are(kvf_cu_memory at, size_t bytes, uint8_t value)
{
  uint8_t *found = allocate(bytes);
  assert_true(fake_cuda_read(at, found, bytes));
  bool all = true;
  for (size_t i = 0; i < bytes && all; i++) {
    all = found[i] == value;
  }
  free(found);
  return all;
}

kvf_cu_allocation gpu_create(size_t bytes, unsigned handle_types)
{
  kvf_cu_allocation made = 0;
  const kvf_cu_mem_allocation_prop prop = {.type = KVF_CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .requested_handle_types = handle_types,
                                           .location = {.type = KVF_CU_MEM_LOCATION_TYPE_DEVICE}};
  assert_int_equal(cuMemCreate(&made, bytes, &prop, 0), KVF_CUDA_SUCCESS);
  return made;
}

kvf_cu_memory gpu_map(kvf_cu_allocation allocation, size_t bytes, unsigned access)
{
  kvf_cu_memory at = 0;
  const kvf_cu_mem_access_desc desc = {{.type = KVF_CU_MEM_LOCATION_TYPE_DEVICE}, access};
  assert_int_equal(gpu->mem_address_reserve(&at, bytes, 0, 0, 0), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_map(at, bytes, 0, allocation, 0), KVF_CUDA_SUCCESS);
  if (access != KVF_CU_MEM_ACCESS_FLAGS_PROT_NONE) {
    assert_int_equal(gpu->mem_set_access(at, bytes, &desc, 1), KVF_CUDA_SUCCESS);
  }
  return at;
}

void gpu_unmap(kvf_cu_memory at, size_t bytes)
{
  assert_int_equal(gpu->mem_unmap(at, bytes), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->mem_address_free(at, bytes), KVF_CUDA_SUCCESS);
}

void gpu_finish(void)
{
  while (fake_cuda_step()) {
  }
}

bool gpu_had_all_seeds(void)
{
  return getenv("KVF_TEST_SEED") == NULL;
}

/* ---- the kind of memory ---- */

#define STILL_LOOKS 25 /* one a millisecond: a thread that sleeps in each of them waits in a lock */

char kind_message[KVF_MESSAGE_BYTES_MAX];

void kind_begin(void)
{
  static bool has_begun;
  if (!has_begun) {
    has_begun = true;
    gpu_begin(1, false);
  }
}

kvf_region kind_region(kvf_cu_memory base, size_t bytes)
{
  return (kvf_region){.base = (void *)(uintptr_t)base,
                      .stride_bytes = bytes,
                      .block_bytes = (uint32_t)bytes,
                      .blocks = 1,
                      .heads = 1,
                      .heads_total = 1,
                      .memory = KVF_MEMORY_CUDA};
}

kvf_cu_memory kind_allocate(size_t bytes)
{
  kind_begin();
  const kvf_cu_memory made = gpu_allocate(bytes);
  const kvf_region region = kind_region(made, bytes);
  assert_int_equal(kvf_memory_cuda.check(&region, kind_message), KVF_OK);
  return made;
}

kvf_cu_memory kind_map(size_t bytes, unsigned count, unsigned handle_types)
{
  kvf_cu_memory base = 0;
  const kvf_cu_mem_access_desc access = {{.type = KVF_CU_MEM_LOCATION_TYPE_DEVICE},
                                         KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  kind_begin();
  assert_int_equal(gpu->mem_address_reserve(&base, bytes, 0, 0, 0), KVF_CUDA_SUCCESS);
  for (unsigned i = 0; i < count; i++) {
    const kvf_cu_allocation one = gpu_create(bytes / count, handle_types);
    assert_int_equal(gpu->mem_map(base + i * (bytes / count), bytes / count, 0, one, 0), KVF_CUDA_SUCCESS);
    assert_int_equal(gpu->mem_release(one), KVF_CUDA_SUCCESS);
  }
  assert_int_equal(gpu->mem_set_access(base, bytes, &access, 1), KVF_CUDA_SUCCESS);
  return base;
}

void kind_write(uint8_t *to, size_t bytes, uint64_t seed)
{
  kvf_prng prng = {seed};
  for (size_t done = 0; done < bytes; done += sizeof(uint64_t)) {
    const uint64_t next = kvf_prng_next(&prng);
    memcpy(to + done, &next, bytes - done < sizeof(next) ? bytes - done : sizeof(next));
  }
}

void kind_write_device(kvf_cu_memory to, size_t bytes, uint64_t seed)
{
  uint8_t *all = allocate(bytes);
  kind_write(all, bytes, seed);
  assert_true(fake_cuda_write(to, all, bytes));
  free(all);
}

bool kind_is_written(const uint8_t *at, size_t bytes, uint64_t seed)
{
  uint8_t *expected = allocate(bytes);
  kind_write(expected, bytes, seed);
  const bool is = memcmp(at, expected, bytes) == 0;
  free(expected);
  return is;
}

bool kind_device_is_written(kvf_cu_memory at, size_t bytes, uint64_t seed)
{
  uint8_t *found = allocate(bytes);
  assert_true(fake_cuda_read(at, found, bytes));
  const bool is = kind_is_written(found, bytes, seed);
  free(found);
  return is;
}

void kind_finish(void)
{
  while (fake_cuda_count().works > 0) {
    sleep_ms(1);
  }
}

/* ---- regions that are read ---- */

kind_export kind_share(kvf_cu_memory base, size_t bytes)
{
  kind_export shared;
  const kvf_region region = kind_region(base, bytes);
  assert_int_equal(kvf_memory_cuda.export(&region, shared.bytes, &shared.length, kind_message), KVF_OK);
  assert_true(shared.length <= sizeof(shared.bytes));
  return shared;
}

kvf_status kind_import(pid_t pid, uint32_t device, const kind_export *shared, size_t region_bytes,
                       kvf_memory_import *out)
{
  const kvf_memory_source source = {pid, device, shared->bytes, shared->length, region_bytes};
  return kvf_memory_cuda.import(&source, out, kind_message);
}

kvf_memory_import kind_import_own(const kind_export *shared, size_t region_bytes)
{
  kvf_memory_import import;
  assert_int_equal(kind_import(getpid(), 0, shared, region_bytes, &import), KVF_OK);
  assert_ptr_equal(import.ops, &kvf_memory_cuda);
  return import;
}

void kind_batch(kvf_memory_batch *batch, const kvf_memory_import *import, const kvf_memory_ops *into, void *to,
                size_t bytes, size_t count)
{
  batch->import = import;
  batch->into = into;
  batch->first = 0;
  batch->count = count;
  batch->gather = (kvf_memory_gather){0};
  batch->work = NULL;
  for (size_t i = 0; i < count; i++) {
    const size_t past = (count - 1 - i) * bytes;
    batch->from[i] = (struct iovec){(void *)(uintptr_t)(import->base + past), bytes};
    batch->to[i] = (struct iovec){(uint8_t *)to + past, bytes};
  }
}

kvf_status kind_step(pid_t pid, const kvf_memory_batch *batch, uint64_t *bytes)
{
  kvf_read_work work = {0};
  kvf_memory_batch own;
  memcpy(&own, batch, sizeof(own));
  own.work = &work;
  return kvf_memory_cuda.read(pid, &own, bytes);
}

kvf_status kind_read(pid_t pid, const kvf_memory_import *import, uint64_t offset, uint8_t *to, size_t bytes)
{
  kvf_memory_batch *batch = allocate(sizeof(*batch));
  kvf_status status = KVF_OK;
  for (size_t done = 0; status == KVF_OK && done < bytes;) {
    uint64_t read = 0;
    kind_batch(batch, import, &kvf_memory_host, to + done, bytes - done, 1);
    batch->from[0].iov_base = (void *)(uintptr_t)(import->base + offset + done);
    status = kind_step(pid, batch, &read);
    assert_true(status == KVF_OK ? read > 0 : read == 0);
    done += read;
  }
  free(batch);
  return status;
}

/* ---- calls that may not return at once ---- */

static void *run_side(void *context)
{
  kind_side *side = context;
  atomic_store(&side->id, gettid());
  side->run(side->context);
  atomic_store(&side->is_done, true);
  return NULL;
}

void kind_side_start(kind_side *side, void (*run)(void *context), void *context)
{
  side->run = run;
  side->context = context;
  atomic_init(&side->id, 0);
  atomic_init(&side->is_done, false);
  assert_int_equal(pthread_create(&side->thread, NULL, run_side, side), 0);
}

void kind_side_join(kind_side *side)
{
  assert_int_equal(pthread_join(side->thread, NULL), 0);
}

/* By what the kernel says of the thread. */
static bool sleeps(int id)
{
  char path[64];
  char line[256] = "";
  (void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", id);
  FILE *file = fopen(path, "re");
  if (file == NULL) {
    return false;
  }
  const char *read = fgets(line, sizeof(line), file);
  (void)fclose(file);
  const char *state = read == NULL ? NULL : strrchr(line, ')');
  return state != NULL && state[1] != '\0' && state[2] == 'S';
}

bool kind_side_is_stuck(const kind_side *side)
{
  unsigned still = 0;
  while (still < STILL_LOOKS && !atomic_load(&side->is_done)) {
    const int id = atomic_load(&side->id);
    still = id != 0 && sleeps(id) ? still + 1 : 0;
    sleep_ms(1);
  }
  return !atomic_load(&side->is_done);
}

static void read_once(void *context)
{
  kind_reading *reading = context;
  reading->status = kind_step(getpid(), reading->batch, &reading->bytes);
}

void kind_reading_start(kind_reading *reading, const kvf_memory_batch *batch)
{
  reading->batch = batch;
  kind_side_start(&reading->side, read_once, reading);
}

kvf_status kind_reading_join(kind_reading *reading)
{
  kind_side_join(&reading->side);
  return reading->status;
}

void kind_wait_calls(const char *call, uint64_t count)
{
  while (fake_cuda_calls(call) < count) {
    sleep_ms(1);
  }
}

/* ---- a process that exports ---- */

static exporter_reply receive(const child_process *child)
{
  exporter_reply got;
  assert_true(child_receive(child->channel, &got, sizeof(got)));
  assert_int_equal(got.pid, child->pid);
  return got;
}

exporter_reply exporter_start(child_process *child, const exporter_order *order)
{
  assert_true(child_start(child, EXPORTER_MODE, SOCK_STREAM));
  assert_true(child_send(child->channel, order, sizeof(*order)));
  return receive(child);
}

exporter_reply exporter_ask(const child_process *child, exporter_question question)
{
  assert_true(child_send(child->channel, &question, sizeof(question)));
  return receive(child);
}

void exporter_end(const child_process *child)
{
  assert_int_equal(child_end(child), 0);
}

/* In the child. */

static void look(const exporter_order *order, kvf_cu_memory base, exporter_reply *out)
{
  out->pid = getpid();
  out->descriptors = (unsigned)count_entries("/proc/self/fd");
  out->allocations = fake_cuda_count().allocations;
  out->is_written = kind_device_is_written(base + order->offset, order->region_bytes, order->seed);
}

static kvf_cu_memory make(const exporter_order *order)
{
  kind_begin();
  const kvf_cu_memory base = order->kind == EXPORT_ALLOCATION
                                 ? kind_allocate(order->bytes)
                                 : kind_map(order->bytes, order->mappings, order->handle_types);
  const kvf_region region = kind_region(base + order->offset, order->region_bytes);
  kind_write_device(base + order->offset, order->region_bytes, order->seed);
  assert_int_equal(kvf_memory_cuda.check(&region, kind_message), KVF_OK);
  return base;
}

/* Until the test goes. */
static void answer(const exporter_order *order, kvf_cu_memory base, exporter_reply *reply)
{
  exporter_question question = EXPORTER_LOOK;
  bool is_exported = reply->status == KVF_OK;
  do {
    if (question == EXPORTER_UNEXPORT) {
      kvf_memory_cuda.unexport(reply->exported.bytes);
      is_exported = false;
    }
    look(order, base, reply);
  } while (child_send(STDIN_FILENO, reply, sizeof(*reply)) && child_receive(STDIN_FILENO, &question, sizeof(question)));
  if (is_exported) {
    kvf_memory_cuda.unexport(reply->exported.bytes);
  }
}

int exporter_run(void)
{
  exporter_order order;
  exporter_reply reply = {.pid = 0};
  if (!child_receive(STDIN_FILENO, &order, sizeof(order))) {
    return 1;
  }
  const kvf_cu_memory base = make(&order);
  const kvf_region region = kind_region(base + order.offset, order.region_bytes);
  reply.descriptors_before = (unsigned)count_entries("/proc/self/fd");
  reply.allocations_before = fake_cuda_count().allocations;
  reply.status = kvf_memory_cuda.export(&region, reply.exported.bytes, &reply.exported.length, reply.message);
  answer(&order, base, &reply);
  return 0;
}
