/* Memory of GPUs over UCX's own gets: what UCX is told of it, in which order gets and looks come, what is flushed, and
 * where the transport does without. UCX and the driver are fakes. */
#include "../../memory_kind.h"
#include "../../sides/side.h"
#include "fake_cuda.h"
#include "fake_ucp.h"
#include "test.h"
#include "transport/ucx/libucp.h"

#define BLOCKS 8
#define BLOCK_BYTES 4096
#define ROUNDS 50

static void load_fakes(void)
{
  const kvf_ucx_api *api;
  char message[KVF_MESSAGE_BYTES_MAX];
  assert_int_equal(kvf_memory_cuda.open(FAKE_CUDA_LIBRARY, message), KVF_OK);
  assert_int_equal(kvf_ucx_load(FAKE_UCP_LIBRARY, &api, message), KVF_OK);
}

/* Contexts and endpoints that are made later are as it says; NULL: as ever. */
static void say(const char *variable, const char *value)
{
  assert_int_equal(value == NULL ? unsetenv(variable) : setenv(variable, value, 1), 0);
}

static const side_shape shape = {.count = 1, .regions = {{BLOCK_BYTES, BLOCK_BYTES, BLOCKS, 1, 1, 0, 0}}};

/* ---- two sides ---- */

static void choose(uint32_t theirs, uint32_t ours)
{
  load_fakes();
  under_test.ops = &kvf_transport_ucx;
  under_test.producer_memory = theirs;
  under_test.consumer_memory = ours;
}

static void open_linked(uint32_t theirs, uint32_t ours)
{
  choose(theirs, ours);
  sides_open_simple(BLOCKS, BLOCK_BYTES);
}

static void close_sides(void)
{
  sides_close();
  assert_int_equal(fake_ucp_violations(), 0);
}

#define LINKED_TEST(name) TEST_WITH(name, NULL, close_sides)

/* Of the whole lease. */
static kvf_transfer begin_read(void)
{
  const kvf_transfer read = lease_read(&two->consumer, two->lease, 0);
  assert_int_equal(kvf_transport_ucx.read(two->link, &read), KVF_OK);
  return read;
}

static kvf_status end_read(const kvf_transfer *read)
{
  kvf_status status = side_wait(&two->consumer, read->id).status;
  assert_true(status != KVF_OK || sides_match(read));
  read_free(read);
  return status;
}

static kvf_status read_all(void)
{
  const kvf_transfer read = begin_read();
  return end_read(&read);
}

static uint64_t flushes(void)
{
  return fake_cuda_calls("cuFlushGPUDirectRDMAWrites");
}

/* ---- what UCX is told ---- */

static unsigned mapped(const fake_ucp_event *events, size_t count, const void *address, int type)
{
  unsigned found = 0;
  for (size_t i = 0; i < count; i++) {
    found += events[i].what == FAKE_UCP_MAPPED && events[i].local == (uintptr_t)address && events[i].type == type;
  }
  return found;
}

LINKED_TEST(memory_is_registered_as_what_it_is)
{
  static fake_ucp_event events[FAKE_UCP_TRACE_MAX];
  (void)fake_ucp_trace(events);
  under_test.has_checksums = true;
  open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_HOST);
  under_test.has_checksums = false;
  const size_t count = fake_ucp_trace(events);
  assert_int_equal(mapped(events, count, two->producer.regions[0].base, KVF_UCS_MEMORY_TYPE_CUDA), 1);
  assert_int_equal(mapped(events, count, two->producer.table, KVF_UCS_MEMORY_TYPE_HOST), 1);
  assert_int_equal(mapped(events, count, two->producer.checksums[0].base, KVF_UCS_MEMORY_TYPE_HOST), 1);
  assert_int_equal(mapped(events, count, two->producer.checksums_read[0].base, KVF_UCS_MEMORY_TYPE_HOST), 1);
  assert_int_equal(mapped(events, count, two->consumer.regions[0].base, KVF_UCS_MEMORY_TYPE_HOST), 1);
}

/* ---- order ---- */

/* R4: what the look begins with is asked for when the last of the blocks' bytes has come, and none is asked for then.
 */
static void assert_look_is_last(const fake_ucp_event *events, size_t count)
{
  const uint64_t table = (uintptr_t)two->producer.table;
  unsigned open = 0;
  unsigned looks = 0;
  unsigned gets = 0;
  for (size_t i = 0; i < count; i++) {
    const bool is_look = events[i].remote >= table && events[i].remote - table < kvf_fence_table_bytes(SIDE_SLOTS);
    if (!is_look) {
      assert_int_equal(events[i].type, KVF_UCS_MEMORY_TYPE_CUDA);
      assert_true(looks == 0);
      gets++;
      open += events[i].what == FAKE_UCP_ASKED ? 1 : -1u;
    } else if (events[i].what == FAKE_UCP_ASKED && gets > 0) {
      assert_int_equal(events[i].type, KVF_UCS_MEMORY_TYPE_HOST);
      assert_int_equal(open, 0);
      looks++;
    }
  }
  assert_true(gets >= 2 * BLOCKS && looks >= 2);
}

LINKED_TEST(the_second_look_comes_after_all_gets)
{
  static fake_ucp_event events[FAKE_UCP_TRACE_MAX];
  open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA);
  for (int i = 0; i < ROUNDS; i++) {
    (void)fake_ucp_trace(events);
    assert_int_equal(read_all(), KVF_OK);
    assert_look_is_last(events, fake_ucp_trace(events));
  }
}

/* ---- flushes ---- */

LINKED_TEST(what_came_is_flushed_once_a_read)
{
  open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA);
  for (int i = 0; i < ROUNDS; i++) {
    const uint64_t before = flushes();
    assert_int_equal(read_all(), KVF_OK);
    assert_int_equal(flushes() - before, 1);
    assert_int_equal(fake_cuda_unflushed(), 0);
  }
}

TEST(a_device_that_orders_a_networks_writes_is_not_flushed)
{
  fake_cuda_order_network(KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
  open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA);
  const uint64_t before = flushes();
  assert_int_equal(read_all(), KVF_OK);
  assert_int_equal(flushes(), before);
  close_sides();
  fake_cuda_order_network(KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE);
}

LINKED_TEST(a_host_is_not_flushed)
{
  open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_HOST);
  const uint64_t before = flushes();
  assert_int_equal(read_all(), KVF_OK);
  assert_int_equal(flushes(), before);
}

/* The blocks may have their next owner then. */
LINKED_TEST(a_cancelled_read_is_flushed_before_it_ends)
{
  unsigned cancelled = 0;
  open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA);
  for (int i = 0; i < ROUNDS; i++) {
    const kvf_transfer read = begin_read();
    sleep_us((uint64_t)i * 10);
    kvf_transport_ucx.cancel(two->link, read.id);
    cancelled += end_read(&read) == KVF_CANCELLED ? 1 : 0;
    assert_int_equal(fake_cuda_unflushed(), 0);
  }
  print_message("cancelled %u\n", cancelled);
  assert_true(cancelled > 0);
}

LINKED_TEST(a_flush_that_fails_is_the_reads_failure)
{
  open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA);
  fake_cuda_fail("cuFlushGPUDirectRDMAWrites", KVF_CUDA_ERROR_NOT_SUPPORTED, 0, 1);
  assert_int_equal(read_all(), KVF_TRANSFER_FAILED);
  assert_int_equal(read_all(), KVF_OK);
}

/* ---- where it does without ---- */

static kvf_status set_device_memory(const char *line)
{
  side *one = allocate(sizeof(*one));
  load_fakes();
  side_open(one, &kvf_transport_ucx, &shape, SEED, NULL);
  kvf_transport_ucx.clear_memory(one->transport);
  kvf_region region = one->regions[0];
  region.memory = KVF_MEMORY_CUDA;
  region.base = test_memory_allocate(KVF_MEMORY_CUDA, (size_t)BLOCKS * BLOCK_BYTES);
  kvf_transport_memory memory = side_memory(one);
  memory.regions = &region;
  kvf_status status = kvf_transport_ucx.set_memory(one->transport, &memory);
  assert_int_equal(one->lines_count, line == NULL ? 0 : 1);
  assert_true(line == NULL || side_has_logged(one, line));
  side_close(one);
  test_memory_free(region.base);
  free(one);
  return status;
}

TEST(ucx_without_cuda_takes_no_memory_of_devices)
{
  say("KVFERRY_FAKE_UCP_CUDA", "0");
  assert_int_equal(set_device_memory("PyPI's libucx-cu12 has it"), KVF_TRANSFER_SETUP);
  say("KVFERRY_FAKE_UCP_CUDA", NULL);
  assert_int_equal(set_device_memory(NULL), KVF_OK);
  assert_int_equal(fake_ucp_violations(), 0);
}

TEST(a_driver_that_cannot_flush_takes_none)
{
  load_fakes();
  fake_cuda_fail("cuFlushGPUDirectRDMAWrites", KVF_CUDA_ERROR_NOT_SUPPORTED, 0, 1);
  assert_int_equal(set_device_memory("does not wait for what a network has written"), KVF_TRANSFER_SETUP);
}

/* Closes them. */
static void assert_refused(const char *line)
{
  const kvf_link_spec spec = side_spec(&two->introduction);
  assert_int_equal(side_connect(&two->consumer, &spec, &two->link), KVF_TRANSFER_SETUP);
  assert_true(side_has_logged(&two->consumer, line));
}

static void refuse_link(uint32_t theirs, uint32_t ours, const char *line)
{
  choose(theirs, ours);
  sides_open_unlinked(&shape, &shape);
  assert_refused(line);
}

TEST(a_network_of_messages_carries_no_memory_of_devices)
{
  static const char line[] = "no network between it and here reads memory by itself";
  say("KVFERRY_FAKE_UCP_PATH", "tcp/lo");
  refuse_link(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA, line);
  refuse_link(KVF_MEMORY_CUDA, KVF_MEMORY_HOST, line);
  refuse_link(KVF_MEMORY_HOST, KVF_MEMORY_CUDA, line);
  say("KVFERRY_FAKE_UCP_PATH", NULL);
}

/* Its own memory is the host's, so it has not met it before. */
TEST(ucx_without_cuda_reads_no_memory_of_devices)
{
  two = allocate(sizeof(*two));
  choose(KVF_MEMORY_CUDA, KVF_MEMORY_HOST);
  producer_open(&two->producer, &shape);
  say("KVFERRY_FAKE_UCP_CUDA", "0");
  consumer_open(&two->consumer, &shape);
  say("KVFERRY_FAKE_UCP_CUDA", NULL);
  sides_meet();
  assert_refused("it has memory of GPUs, and UCX here takes none");
}
