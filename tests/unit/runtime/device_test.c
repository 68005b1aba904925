/* Two nodes whose memory is a GPU's, as engines use them: blocks are written by kernels that run later, publications
 * and loads come with the stream, blocks change owners. The fake driver does the work as late and as much out of order
 * as CUDA allows; each seed is another course of it. Rules R1 to R5 of base/fence.h. It runs on a real driver, too
 * (cuda_driver.h). */
#include <stdlib.h>
#include <time.h>

#include "../../cuda_driver.h"
#include "../../memory_kind.h"
#include "../../sanitizer.h"
#include "base/prng.h"
#include "fake_cuda.h"
#include "fake_ucp.h"
#include "pair.h"
#include "test.h"

#define BLOCKS 4
#define FIRST 20
#define PATIENCE_MS 20000
#define LATE_NS 50000  /* a real device's kernels are as late as this; the fake's by its seed */
#define MOST_ROUNDS 10 /* times as many as usual */
#define MEANWHILE_US (PAIR_BLOCK_BYTES > 4096 ? 8000 : 600) /* what most loads take */

static const cuda_driver *driver;
static pair p;

/* ---- an engine's work ---- */

/* One side's. */
typedef struct engine {
  pair_node *node;
  bool is_device;
  kvf_cu_stream stream;
  kvf_ordering_point point;
} engine;

static engine producer;
static engine consumer;

static engine engine_of(pair_node *node, const char *kind)
{
  engine made = {.node = node, .is_device = strcmp(kind, "cuda") == 0};
  if (made.is_device) {
    cuda_driver_must(driver->cuda->api.stream_create_with_priority(&made.stream, KVF_CU_STREAM_NON_BLOCKING, 0));
    made.point = (kvf_ordering_point){.memory = KVF_MEMORY_CUDA, .handle = made.stream};
  }
  return made;
}

static const kvf_ordering_point *point_of(const engine *one)
{
  return one->is_device ? &one->point : NULL;
}

/* Not a race with readers that are too late: pair.c. No memset(), which the sanitizer would see. */
__attribute__((no_sanitize("thread"))) static void write_now(volatile uint8_t *to, uint8_t value)
{
  for (size_t i = 0; i < PAIR_BLOCK_BYTES; i++) {
    to[i] = value;
  }
}

/* At the stream's turn, by a kernel; or at once. */
static void write_block(const engine *one, uint32_t block, uint8_t value)
{
  for (uint32_t region = 0; region < PAIR_REGIONS; region++) {
    const size_t offset = (size_t)block * PAIR_BLOCK_BYTES;
    if (one->is_device) {
      cuda_driver_fill(one->stream, (uint8_t *)one->node->bases[region] + offset, PAIR_BLOCK_BYTES, value, LATE_NS);
    } else {
      write_now(one->node->pool[region] + offset, value);
    }
  }
}

static bool block_is(const engine *one, uint32_t block, uint8_t value)
{
  bool is = true;
  for (uint32_t region = 0; region < PAIR_REGIONS; region++) {
    const uint8_t *bytes = (uint8_t *)one->node->bases[region] + (size_t)block * PAIR_BLOCK_BYTES;
    is = is && test_memory_all_are(bytes, value, PAIR_BLOCK_BYTES);
  }
  return is;
}

static void finish(const engine *one)
{
  if (one->is_device) {
    cuda_driver_must(driver->stream_synchronize(one->stream));
  }
}

/* ---- rounds ---- */

typedef struct round_counts {
  unsigned loaded;
  unsigned refused;
} round_counts;

static void sleep_us(uint64_t us)
{
  const struct timespec pause = {.tv_nsec = (long)us * 1000};
  (void)nanosleep(&pause, NULL);
}

/* The load's outcome, and then its release. */
static kvf_status wait_for_load(uint64_t id)
{
  const uint64_t until_ms = pair_now_ms() + PATIENCE_MS;
  kvf_status status = KVF_DEADLINE;
  kvf_event event;
  for (;;) {
    if (kvf_node_poll(p.consumer.node, &event, 1) == 0) {
      assert_true(pair_now_ms() < until_ms);
      sleep_us(20);
    } else if (event.id == id && event.kind == KVF_EVENT_LOAD) {
      status = (kvf_status)event.u.report.status;
    } else if (event.id == id && event.kind == KVF_EVENT_RELEASED) {
      return status;
    }
  }
}

/* A lease of blocks that the producer's engine writes, and that may get their next owner while they are read. */
static void run_round(uint64_t seed, round_counts *counts)
{
  kvf_prng prng = {seed};
  const uint8_t value = (uint8_t)(1 + kvf_prng_below(&prng, 120));
  const uint8_t next_value = (uint8_t)(value + 120);
  const uint64_t what_next = kvf_prng_below(&prng, 4);
  const bool ends_early = what_next < 2;
  const bool aborts = what_next == 2;
  pair_ticket ticket;
  fake_cuda_seed(seed);
  pair_offer(&p.producer, (uint32_t)kvf_prng_below(&prng, PAIR_BLOCKS), BLOCKS, (uint32_t)seed, false, &ticket);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    write_block(&producer, ticket.blocks[i], value);
    write_block(&consumer, FIRST + i, 0); /* as engines zero new blocks */
  }
  assert_int_equal(pair_publish_after(&p.producer, &ticket, point_of(&producer)), KVF_OK);
  assert_int_equal(pair_load_after(&p.consumer, &ticket, seed, FIRST, point_of(&consumer)), KVF_OK);
  if (ends_early) {
    sleep_us(kvf_prng_below(&prng, MEANWHILE_US));
    (void)kvf_lease_end(p.producer.node, &ticket.lease);
    for (uint32_t i = 0; i < BLOCKS; i++) {
      write_block(&producer, ticket.blocks[i], next_value);
    }
  }
  if (aborts) {
    sleep_us(kvf_prng_below(&prng, MEANWHILE_US));
    (void)kvf_load_abort(p.consumer.node, seed);
  }
  kvf_status status = wait_for_load(seed);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    if (status == KVF_OK && !block_is(&consumer, FIRST + i, value)) {
      fail_msg("seed %llu: block %u is wrong", (unsigned long long)seed, i);
    }
    write_block(&consumer, FIRST + i, 255); /* the next owner here: nobody else writes any more */
  }
  counts->loaded += status == KVF_OK ? 1 : 0;
  counts->refused += status == KVF_OK ? 0 : 1;
  if (status != KVF_OK && !(ends_early && status == KVF_LEASE_EXPIRED) && !(aborts && status == KVF_ABORTED)) {
    fail_msg("seed %llu: %s", (unsigned long long)seed, kvf_status_name(status));
  }
  (void)kvf_lease_end(p.producer.node, &ticket.lease);
  (void)pair_wait_lease_end(&p.producer, ticket.lease.id, PATIENCE_MS);
  assert_int_equal(kvf_lease_release(p.producer.node, ticket.lease.id), KVF_OK);
  finish(&consumer);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    assert_true(block_is(&consumer, FIRST + i, 255));
  }
}

/* Then they have tested nothing. */
static bool are_alike(const round_counts *counts)
{
  return counts->loaded == 0 || counts->refused == 0;
}

/* $KVFERRY_TEST_SEEDS of them, or as many as a run of all tests has time for. */
static unsigned seeds_count(void)
{
  const char *asked = getenv("KVFERRY_TEST_SEEDS");
  const unsigned usual = PAIR_BLOCK_BYTES > 4096 ? 40 : 150;
  return asked != NULL ? (unsigned)strtoul(asked, NULL, 10) : SANITIZED ? usual / 4 : usual;
}

static void run_seeds(const char *from, const char *to, const char *transport, const char *checksum)
{
  const pair_option of_producer[] = {{"transports", transport},
                                     {"checksum", checksum},
                                     {"memory", from},
                                     {"backoff_min_ms", "1"},
                                     {"backoff_max_ms", "1"},
                                     {"ucx_library", FAKE_UCP_LIBRARY},
                                     {NULL, NULL}};
  const pair_option of_consumer[] = {{"transports", transport},
                                     {"checksum", checksum},
                                     {"memory", to},
                                     {"backoff_min_ms", "1"},
                                     {"backoff_max_ms", "1"},
                                     {"ucx_library", FAKE_UCP_LIBRARY},
                                     {NULL, NULL}};
  round_counts counts = {0};
  driver = driver != NULL ? driver : cuda_driver_enter();
  if (strcmp(transport, "ucx") == 0 && !driver->is_linked) {
    skip(); /* the fake of UCX has the linked fake's memory alone */
  }
  pair_open_node(&p.producer, of_producer);
  pair_open_node(&p.consumer, of_consumer);
  producer = engine_of(&p.producer, from);
  consumer = engine_of(&p.consumer, to);
  /* Which comes first, the load's end or the lease's, is the machine's to say: few rounds may all end in one way. */
  const unsigned usual = seeds_count();
  for (unsigned seed = 1; seed <= usual || (seed <= MOST_ROUNDS * usual && are_alike(&counts)); seed++) {
    run_round(seed, &counts);
  }
  print_message("%s to %s over %s: loaded %u, refused %u\n", from, to, transport, counts.loaded, counts.refused);
  assert_false(are_alike(&counts));
  finish(&producer);
  pair_close(&p);
  assert_int_equal(fake_ucp_violations(), 0);
}

TEST(device_to_device_over_local)
{
  run_seeds("cuda", "cuda", "local", "off");
}

TEST(device_to_host_over_local)
{
  run_seeds("cuda", "host", "local", "off");
}

TEST(host_to_device_over_local)
{
  run_seeds("host", "cuda", "local", "off");
}

TEST(device_to_device_with_checksums)
{
  run_seeds("cuda", "cuda", "local", "on");
}

TEST(device_to_device_over_tcp)
{
  run_seeds("cuda", "cuda", "tcp", "off");
}

TEST(device_to_host_over_tcp)
{
  run_seeds("cuda", "host", "tcp", "off");
}

TEST(host_to_device_over_tcp)
{
  run_seeds("host", "cuda", "tcp", "off");
}

TEST(device_to_device_over_ucx)
{
  run_seeds("cuda", "cuda", "ucx", "off");
}

TEST(device_to_host_over_ucx)
{
  run_seeds("cuda", "host", "ucx", "off");
}

TEST(host_to_device_over_ucx)
{
  run_seeds("host", "cuda", "ucx", "off");
}
