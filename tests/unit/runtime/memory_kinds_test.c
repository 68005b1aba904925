/* Nodes whose memory is not the host's: which transports they use, what they refuse, and that blocks come whole. */
#include "../../memory_kind.h"
#include "core/core_state.h"
#include "fake_ucp.h"
#include "pair.h"
#include "runtime/pump.h"
#include "test.h"

#define BLOCKS 8
#define FIRST 20

static pair_option const *options(const char *memory, const char *transports, const char *checksum)
{
  static pair_option list[5];
  list[0] = (pair_option){"transports", transports};
  list[1] = (pair_option){"checksum", checksum};
  list[2] = (pair_option){"ucx_library", FAKE_UCP_LIBRARY};
  list[3] = (pair_option){memory == NULL ? NULL : "memory", memory};
  list[4] = (pair_option){NULL, NULL};
  return list;
}

/* Over the transport of this name. */
static void expect_load(pair *p, uint32_t seed, const char *transport)
{
  pair_ticket ticket;
  pair_offer(&p->producer, 0, BLOCKS, seed, true, &ticket);
  pair_fetch_whole(&p->consumer, &ticket, FIRST);
  assert_true(pair_logged(&p->consumer, "loads go over", transport));
}

TEST(blocks_come_whole_between_all_kinds)
{
  static const char *const transports[] = {"local", "tcp"};
  static const char *const kinds[][2] = {{"test", "test"}, {NULL, "test"}, {"test", NULL},   {"cuda", "cuda"},
                                         {NULL, "cuda"},   {"cuda", NULL}, {"cuda", "test"}, {"test", "cuda"}};
  const size_t pairs = sizeof(kinds) / sizeof(kinds[0]);
  for (size_t i = 0; i < 2 * pairs * 2; i++) {
    const char *transport = transports[i % 2];
    const char *checksum = i >= 2 * pairs ? "on" : "off";
    pair p;
    pair_open_node(&p.producer, options(kinds[i / 2 % pairs][0], transport, checksum));
    pair_open_node(&p.consumer, options(kinds[i / 2 % pairs][1], transport, checksum));
    expect_load(&p, (uint32_t)i, transport);
    pair_close(&p);
    assert_true(test_memory_is_released());
  }
}

/* ---- what is no memory of its kind ---- */

static kvf_status register_one(pair_node *n, void *base, uint32_t memory, uint32_t device)
{
  kvf_region region = {.base = base,
                       .stride_bytes = PAIR_BLOCK_BYTES,
                       .block_bytes = PAIR_BLOCK_BYTES,
                       .blocks = PAIR_BLOCKS,
                       .heads = 1,
                       .heads_total = 1,
                       .device = device};
  memcpy(&region.memory, &memory, sizeof(memory));
  return kvf_node_register(n->node, &region, 1);
}

/* Without memory. */
static void open_bare(pair_node *n, const char *transports, const char *require)
{
  pair_open_node(n, options(NULL, transports, "off"));
  kvf_config config = n->node->config;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_node_close(n->node);
  n->node = NULL;
  config.identity_fields = 1; /* without the node's own */
  assert_int_equal(kvf_config_set(&config, "require", require, message), KVF_OK);
  assert_int_equal(kvf_node_open(&config, &n->node, message), KVF_OK);
}

TEST(memory_must_be_of_its_kind)
{
  pair_node n;
  open_bare(&n, "local,tcp", "");
  void *test_memory = test_memory_allocate(TEST_MEMORY, (size_t)PAIR_BLOCKS * PAIR_BLOCK_BYTES);
  void *host_memory = n.bases[0];
  assert_int_equal(register_one(&n, host_memory, 3, 0), KVF_INVALID);
  assert_true(pair_logged(&n, "region 0", "this library does not know its kind of memory"));
  assert_int_equal(register_one(&n, host_memory, KVF_MEMORY_KINDS_MAX, 0), KVF_INVALID);
  assert_int_equal(register_one(&n, host_memory, TEST_MEMORY, 0), KVF_INVALID);
  assert_true(pair_logged(&n, "region 0", "is no memory of the test's device 0"));
  assert_int_equal(register_one(&n, test_memory, TEST_MEMORY, TEST_MEMORY_DEVICES), KVF_INVALID);
  assert_int_equal(register_one(&n, host_memory, KVF_MEMORY_HOST, 1), KVF_INVALID);
  assert_true(pair_logged(&n, "region 0", "host memory has no device 1"));
  assert_int_equal(register_one(&n, test_memory, KVF_MEMORY_HOST, 0), KVF_INVALID);
  assert_true(pair_logged(&n, "region 0", "are not this process' memory"));
  assert_int_equal(register_one(&n, (uint8_t *)test_memory + PAIR_BLOCK_BYTES, TEST_MEMORY, 0), KVF_INVALID);
  assert_int_equal(register_one(&n, test_memory, TEST_MEMORY, TEST_MEMORY_DEVICES - 1), KVF_OK);
  pair_close_node(&n);
  test_memory_free(test_memory);
}

/* ---- transports that do not serve ---- */

/* Its memory cannot be read by another process, so local has nothing to offer. */
TEST(a_transport_that_cannot_serve_is_left_out)
{
  pair p;
  pair_open_node(&p.producer, options("other", "local,tcp", "off"));
  pair_open_node(&p.consumer, options("other", "local,tcp", "off"));
  assert_true(pair_logged(&p.producer, "transport local is left out",
                          "no other process can read region 0: it is of the other kind"));
  const kvf_welcome *welcome = &p.producer.node->core->pool.welcome;
  assert_int_equal(welcome->transports_count, 1);
  assert_string_equal(welcome->transports[0].name, "tcp");
  assert_int_equal(welcome->regions[0].memory, TEST_MEMORY_OTHER);
  expect_load(&p, 1, "tcp");
  pair_close(&p);
}

TEST(a_transport_that_is_required_must_serve)
{
  pair_node n;
  void *memory = test_memory_allocate(TEST_MEMORY, (size_t)PAIR_BLOCKS * PAIR_BLOCK_BYTES);
  for (int only = 0; only < 2; only++) { /* named as required, or the only one */
    open_bare(&n, only ? "local" : "local,tcp", only ? "" : "local,tcp");
    assert_int_equal(register_one(&n, memory, TEST_MEMORY_OTHER, 0), KVF_TRANSFER_SETUP);
    assert_int_equal(register_one(&n, memory, TEST_MEMORY, 0), KVF_OK); /* and nothing of it has stuck */
    pair_close_node(&n);
  }
  test_memory_free(memory);
}

/* A producer with the test's memory, and a consumer with a library that knew nothing of it. */
static void open_unserved(pair *p, const char *producer_transports)
{
  pair_open_node(&p->producer, options("test", producer_transports, "off"));
  atomic_store(&test_memory_is_known, false);
  pair_open_node(&p->consumer, options(NULL, "local,tcp", "off"));
  atomic_store(&test_memory_is_known, true);
}

TEST(the_next_best_that_serves_is_taken)
{
  pair p;
  open_unserved(&p, "local,tcp");
  expect_load(&p, 3, "tcp (local: does not bring test memory into host memory)");
  pair_close(&p);
}

TEST(none_that_serves_is_an_error_of_its_own)
{
  pair p;
  pair_ticket ticket;
  open_unserved(&p, "local");
  pair_offer(&p.producer, 0, BLOCKS, 1, true, &ticket);
  assert_int_equal(pair_fetch(&p.consumer, &ticket, FIRST, NULL), KVF_TRANSFER_SETUP);
  assert_true(pair_logged(&p.consumer, "loads go over no transport",
                          "(local: does not bring test memory into host memory, tcp: not offered)"));
  assert_int_equal(pair_stat(&p.consumer, "peer_failures", ""), 0); /* the peer is well */
  pair_close(&p);
}

/* ---- ucx, where it cannot carry memory of GPUs ---- */

static void expect_over(const char *producer, const char *consumer, uint32_t seed, const char *transport,
                        const char *line)
{
  pair p;
  pair_open_node(&p.producer, options(producer, "ucx,tcp", "off"));
  pair_open_node(&p.consumer, options(consumer, "ucx,tcp", "off"));
  expect_load(&p, seed, transport);
  assert_true(line == NULL || pair_logged(&p.consumer, line, NULL));
  pair_close(&p);
  assert_int_equal(fake_ucp_violations(), 0);
}

TEST(ucx_carries_memory_of_gpus)
{
  expect_over("cuda", "cuda", 4, "ucx", NULL);
  expect_over("cuda", NULL, 5, "ucx", NULL);
  expect_over(NULL, "cuda", 6, "ucx", NULL);
  expect_over("test", "cuda", 7, "tcp (ucx: ", NULL);
}

TEST(without_its_module_for_cuda_tcp_is_taken)
{
  (void)setenv("KVFERRY_FAKE_UCP_CUDA", "0", 1);
  expect_over("cuda", "cuda", 8, "tcp (ucx: ", "ucx: memory of GPUs goes another way: UCX here takes none");
  expect_over(NULL, "cuda", 9, "tcp (ucx: ", "ucx: memory of GPUs goes another way: UCX here takes none");
  expect_over("cuda", NULL, 10, "tcp (ucx: ", NULL);
  expect_over(NULL, NULL, 11, "ucx", NULL);
  (void)unsetenv("KVFERRY_FAKE_UCP_CUDA");
}

TEST(without_a_network_that_reads_memory_tcp_is_taken)
{
  (void)setenv("KVFERRY_FAKE_UCP_PATH", "tcp/lo", 1);
  expect_over("cuda", "cuda", 12, "tcp (ucx: ", "no network between it and here reads memory by itself");
  (void)unsetenv("KVFERRY_FAKE_UCP_PATH");
}

/* ---- devices that fail ---- */

static void load_fails(const char *producer, const char *consumer, const char *transport, const char *checksum,
                       uint32_t blocks, kvf_status expected)
{
  pair p;
  pair_ticket ticket;
  pair_open_node(&p.producer, options(producer, transport, checksum));
  pair_open_node(&p.consumer, options(consumer, transport, checksum));
  pair_offer(&p.producer, 0, blocks, 1, true, &ticket);
  assert_int_equal(pair_fetch(&p.consumer, &ticket, FIRST, NULL), KVF_OK);
  pair_offer(&p.producer, 1, blocks, 2, true, &ticket);
  if (strcmp(checksum, "on") == 0) {
    sleep_ms(100); /* until its checksums are made */
  }
  atomic_store(&test_memory_fails, true);
  kvf_request_info info;
  assert_int_equal(kvf_request_open(p.consumer.node, ticket.text, ticket.bytes, &ticket.prompt, NULL, 9, &info),
                   KVF_OK);
  assert_int_equal(kvf_request_begin(p.consumer.node, info.id), KVF_OK);
  assert_int_equal(pair_load_after(&p.consumer, &ticket, info.id, FIRST, NULL, 2000), KVF_OK);
  const pair_result result = pair_wait(&p.consumer, info.id);
  assert_int_equal(result.report.prefix, 0);
  if (result.report.status != (int)expected) {
    fail_msg("%s to %s over %s: %s", producer, consumer, transport, kvf_status_name(result.report.status));
  }
  atomic_store(&test_memory_fails, false);
  pair_close(&p);
}

/* Never wrong bytes, and no end but that of the load. */
TEST(a_device_that_fails_costs_the_load)
{
  load_fails("test", NULL, "tcp", "off", 1, KVF_PEER_DOWN); /* hangs up: copied, and sent from its blocks: */
  load_fails("test", NULL, "tcp", "off", BLOCKS, KVF_PEER_DOWN);
  load_fails(NULL, "test", "tcp", "off", 1, KVF_TRANSFER_FAILED); /* received with its frame, and into its blocks: */
  load_fails(NULL, "test", "tcp", "off", BLOCKS, KVF_TRANSFER_FAILED);
  load_fails(NULL, "test", "local", "off", BLOCKS, KVF_TRANSFER_FAILED); /* staged */
  load_fails("test", "test", "local", "on", BLOCKS, KVF_CHECKSUM);
}
