/* Memory of GPUs over UCX's own gets: what UCX is told of it, in which order gets and looks come, what is flushed, and
 * where the transport does without. UCX and the driver are fakes. */
#include "../../memory_kind.h"
#include "fake_cuda.h"
#include "fake_ucp.h"
#include "node.h"
#include "test.h"
#include "transport/ucx/load.h"

#define BLOCKS 8
#define BLOCK_BYTES 4096
#define SEED 5
#define LEASE_ID 1001
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

static node_shape shape_of(uint32_t kind)
{
  node_shape shape = node_shape_simple(BLOCKS, BLOCK_BYTES);
  shape.regions[0].memory = kind;
  return shape;
}

/* ---- two sides ---- */

typedef struct world {
  side producer;
  side consumer;
  node_introduction introduction;
  node_lease *lease;
  kvf_link *link;
} world;

static void open_sides(world *w, uint32_t theirs, uint32_t ours)
{
  const node_shape producer = shape_of(theirs);
  const node_shape consumer = shape_of(ours);
  load_fakes();
  node_open(&w->producer, &kvf_transport_ucx, &producer, SEED);
  node_open(&w->consumer, &kvf_transport_ucx, &consumer, SEED + 1);
  node_introduce(&w->producer, &w->introduction);
  w->lease = node_publish(&w->producer, LEASE_ID);
}

static void close_sides(world *w)
{
  if (w->link != NULL) {
    kvf_transport_ucx.disconnect(w->link);
  }
  node_close(&w->consumer);
  node_close(&w->producer);
  assert_int_equal(fake_ucp_violations(), 0);
  free(w);
}

static world *open_linked(uint32_t theirs, uint32_t ours)
{
  world *w = allocate(sizeof(*w));
  open_sides(w, theirs, ours);
  w->link = node_connect_ok(&w->consumer, &w->introduction);
  return w;
}

/* Of the whole lease. */
static kvf_transfer begin_read(world *w)
{
  kvf_transfer read = node_read(&w->consumer);
  read.lease = w->lease->lease;
  read.items = node_items(&w->consumer, w->lease, 0, &read.items_count);
  assert_int_equal(kvf_transport_ucx.read(w->link, &read), KVF_OK);
  return read;
}

static kvf_status end_read(world *w, const kvf_transfer *read)
{
  kvf_status status = node_wait(&w->consumer, read->id).status;
  for (uint32_t i = 0; status == KVF_OK && i < BLOCKS; i++) {
    uint8_t got[BLOCK_BYTES];
    test_memory_get(got, node_block(&w->consumer, 0, i), sizeof(got));
    assert_true(pattern_is(got, (pattern_place){SEED, 0, w->lease->blocks[i], 0}, BLOCK_BYTES));
  }
  free((void *)read->items);
  return status;
}

static kvf_status read_all(world *w)
{
  const kvf_transfer read = begin_read(w);
  return end_read(w, &read);
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

TEST(memory_is_registered_as_what_it_is)
{
  static fake_ucp_event events[FAKE_UCP_TRACE_MAX];
  (void)fake_ucp_trace(events);
  node_has_checksums = true;
  world *w = open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_HOST);
  node_has_checksums = false;
  const size_t count = fake_ucp_trace(events);
  assert_int_equal(mapped(events, count, w->producer.regions[0].base, KVF_UCS_MEMORY_TYPE_CUDA), 1);
  assert_int_equal(mapped(events, count, w->producer.table, KVF_UCS_MEMORY_TYPE_HOST), 1);
  assert_int_equal(mapped(events, count, w->producer.checksums[0].base, KVF_UCS_MEMORY_TYPE_HOST), 1);
  assert_int_equal(mapped(events, count, w->producer.checksums_read[0].base, KVF_UCS_MEMORY_TYPE_HOST), 1);
  assert_int_equal(mapped(events, count, w->consumer.regions[0].base, KVF_UCS_MEMORY_TYPE_HOST), 1);
  close_sides(w);
}

/* ---- order ---- */

/* R4: what the look begins with is asked for when the last of the blocks' bytes has come, and none is asked for then.
 */
static void assert_look_is_last(const world *w, const fake_ucp_event *events, size_t count)
{
  const uint64_t table = (uintptr_t)w->producer.table;
  unsigned open = 0;
  unsigned looks = 0;
  unsigned gets = 0;
  for (size_t i = 0; i < count; i++) {
    const bool is_look = events[i].remote >= table && events[i].remote - table < kvf_fence_table_bytes(NODE_SLOTS);
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

TEST(the_second_look_comes_after_all_gets)
{
  static fake_ucp_event events[FAKE_UCP_TRACE_MAX];
  world *w = open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA);
  for (int i = 0; i < ROUNDS; i++) {
    (void)fake_ucp_trace(events);
    assert_int_equal(read_all(w), KVF_OK);
    assert_look_is_last(w, events, fake_ucp_trace(events));
  }
  close_sides(w);
}

/* ---- flushes ---- */

TEST(what_came_is_flushed_once_a_read)
{
  world *w = open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA);
  for (int i = 0; i < ROUNDS; i++) {
    const uint64_t before = flushes();
    assert_int_equal(read_all(w), KVF_OK);
    assert_int_equal(flushes() - before, 1);
    assert_int_equal(fake_cuda_unflushed(), 0);
  }
  close_sides(w);
}

TEST(a_device_that_orders_a_networks_writes_is_not_flushed)
{
  fake_cuda_order_network(KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
  world *w = open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA);
  const uint64_t before = flushes();
  assert_int_equal(read_all(w), KVF_OK);
  assert_int_equal(flushes(), before);
  close_sides(w);
  fake_cuda_order_network(KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE);
}

TEST(a_host_is_not_flushed)
{
  world *w = open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_HOST);
  const uint64_t before = flushes();
  assert_int_equal(read_all(w), KVF_OK);
  assert_int_equal(flushes(), before);
  close_sides(w);
}

/* The blocks may have their next owner then. */
TEST(a_cancelled_read_is_flushed_before_it_ends)
{
  unsigned cancelled = 0;
  world *w = open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA);
  for (int i = 0; i < ROUNDS; i++) {
    const kvf_transfer read = begin_read(w);
    sleep_us((uint64_t)i * 10);
    kvf_transport_ucx.cancel(w->link, read.id);
    cancelled += end_read(w, &read) == KVF_CANCELLED ? 1 : 0;
    assert_int_equal(fake_cuda_unflushed(), 0);
  }
  print_message("cancelled %u\n", cancelled);
  assert_true(cancelled > 0);
  close_sides(w);
}

TEST(a_flush_that_fails_is_the_reads_failure)
{
  world *w = open_linked(KVF_MEMORY_CUDA, KVF_MEMORY_CUDA);
  fake_cuda_fail("cuFlushGPUDirectRDMAWrites", KVF_CUDA_ERROR_NOT_SUPPORTED, 0, 1);
  assert_int_equal(read_all(w), KVF_TRANSFER_FAILED);
  assert_int_equal(read_all(w), KVF_OK);
  close_sides(w);
}

/* ---- where it does without ---- */

static kvf_status set_device_memory(const char *line)
{
  const node_shape host = shape_of(KVF_MEMORY_HOST);
  side *node = allocate(sizeof(*node));
  load_fakes();
  node_open(node, &kvf_transport_ucx, &host, SEED);
  kvf_transport_ucx.clear_memory(node->transport);
  kvf_region region = node->regions[0];
  region.memory = KVF_MEMORY_CUDA;
  region.base = test_memory_allocate(KVF_MEMORY_CUDA, (size_t)BLOCKS * BLOCK_BYTES);
  const kvf_transport_memory memory = {.regions = &region,
                                       .regions_count = 1,
                                       .table = node->table,
                                       .table_slots = NODE_SLOTS,
                                       .table_fd = node->table_fd};
  kvf_status status = kvf_transport_ucx.set_memory(node->transport, &memory);
  assert_int_equal(node->lines_count, line == NULL ? 0 : 1);
  assert_true(line == NULL || node_has_logged(node, line));
  node_close(node);
  test_memory_free(region.base);
  free(node);
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

static void refuse_link(uint32_t theirs, uint32_t ours, const char *line)
{
  world *w = allocate(sizeof(*w));
  open_sides(w, theirs, ours);
  kvf_link_spec spec = node_spec(&w->introduction);
  assert_int_equal(node_connect(&w->consumer, &spec, &w->link), KVF_TRANSFER_SETUP);
  assert_true(node_has_logged(&w->consumer, line));
  close_sides(w);
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
  world *w = allocate(sizeof(*w));
  open_sides(w, KVF_MEMORY_CUDA, KVF_MEMORY_HOST);
  const node_shape host = shape_of(KVF_MEMORY_HOST);
  side *other = allocate(sizeof(*other));
  say("KVFERRY_FAKE_UCP_CUDA", "0");
  node_open(other, &kvf_transport_ucx, &host, SEED);
  say("KVFERRY_FAKE_UCP_CUDA", NULL);
  kvf_link_spec spec = node_spec(&w->introduction);
  kvf_link *link = NULL;
  assert_int_equal(node_connect(other, &spec, &link), KVF_TRANSFER_SETUP);
  assert_true(node_has_logged(other, "it has memory of GPUs, and UCX here takes none"));
  kvf_transport_ucx.disconnect(link);
  node_close(other);
  free(other);
  close_sides(w);
}
