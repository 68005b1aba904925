#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/prng.h"
#include "base/time.h"
#include "cases.h"
#include "pair.h"
#include "transport/fence_memory.h"

#define ROUNDS 100
#define READS 4
#define BLOCKS 64
#define BLOCK_BYTES 131072
#define NEXT_OWNER 0x5A
/* A cancelled read ends much sooner; a machine that is busy may take its time. */
#define CANCEL_NS (5 * KVF_NS_PER_S)

/* READS reads that together fetch a whole lease into the consumer's first BLOCKS blocks. */
typedef struct read_volley {
  side *consumer;
  kvf_read reads[READS];
  kvf_read_item *items;
} read_volley;

static read_volley volley_start(side *consumer, kvf_link *link, const node_lease *lease)
{
  read_volley volley = {.consumer = consumer};
  uint32_t count;
  volley.items = node_items(consumer, lease, 0, &count);
  for (uint32_t i = 0; i < READS; i++) {
    volley.reads[i] = node_read(consumer);
    volley.reads[i].lease = lease->lease;
    volley.reads[i].items = &volley.items[(size_t)i * (BLOCKS / READS)];
    volley.reads[i].items_count = BLOCKS / READS;
    consumer->ops->read(link, &volley.reads[i]);
  }
  return volley;
}

static void volley_cancel(const read_volley *volley, kvf_link *link)
{
  for (uint32_t i = 0; i < READS; i++) {
    volley->consumer->ops->cancel(link, volley->reads[i].id);
  }
}

/* Waits for all; those that say so must have the right bytes. Then the blocks get their next owner. */
static void volley_end(read_volley *volley, const node_shape *producer)
{
  uint64_t begun_ns = now_ns();
  for (uint32_t i = 0; i < READS; i++) {
    kvf_read_result result = node_wait(volley->consumer, volley->reads[i].id);
    assert_true(result.status != KVF_OK || pair_bytes_match(volley->consumer, producer, &volley->reads[i]));
  }
  assert_true(now_ns() - begun_ns < CANCEL_NS);
  free(volley->items);
  memset(node_block(volley->consumer, 0, 0), NEXT_OWNER, (size_t)BLOCKS * BLOCK_BYTES);
}

static bool next_owner_is_alone(const side *consumer)
{
  const uint8_t *bytes = node_block(consumer, 0, 0);
  return bytes[0] == NEXT_OWNER && memcmp(bytes, bytes + 1, (size_t)BLOCKS * BLOCK_BYTES - 1) == 0;
}

/* The link still works, or a new one does: reads one block into the block after the volleys'. */
static void probe(side *consumer, kvf_link **link, const node_introduction *introduction, const node_lease *lease)
{
  for (int tries = 0;; tries++) {
    const kvf_read_item item = {0, 1, lease->blocks[1], BLOCKS};
    kvf_read read = node_read(consumer);
    read.lease = lease->lease;
    read.items = &item;
    read.items_count = 1;
    if (node_read_now(consumer, *link, &read).status == KVF_OK) {
      assert_true(pair_bytes_match(consumer, &introduction->shape, &read));
      return;
    }
    assert_true(tries == 0);
    consumer->ops->disconnect(*link);
    *link = node_connect_ok(consumer, introduction);
  }
}

static node_shape producer_shape(void)
{
  return node_shape_simple(BLOCKS, BLOCK_BYTES);
}

static node_shape consumer_shape(void)
{
  return node_shape_simple(BLOCKS + 1, BLOCK_BYTES);
}

void cancel_at_random_times(void **state)
{
  const node_shape producer = producer_shape();
  const node_shape consumer = consumer_shape();
  pair *two = pair_open(*state, &producer, &consumer);
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  kvf_prng prng = {11};
  for (int i = 0; i < ROUNDS; i++) {
    read_volley volley = volley_start(&two->consumer, two->link, lease);
    sleep_us(kvf_prng_below(&prng, 3000));
    volley_cancel(&volley, two->link);
    volley_cancel(&volley, two->link);
    volley_end(&volley, &producer);
    probe(&two->consumer, &two->link, &two->introduction, lease);
    assert_true(next_owner_is_alone(&two->consumer));
  }
  pair_close(two);
}

void cancel_of_unknown_reads(void **state)
{
  const conformance_traits *traits = *state;
  const node_shape producer = producer_shape();
  const node_shape consumer = consumer_shape();
  pair *two = pair_open(traits, &producer, &consumer);
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  traits->ops->cancel(two->link, 77);
  probe(&two->consumer, &two->link, &two->introduction, lease);
  traits->ops->cancel(two->link, two->consumer.last_read_id);
  traits->ops->cancel(two->link, 0);
  probe(&two->consumer, &two->link, &two->introduction, lease);
  pair_close(two);
}

void producer_stopped(void **state)
{
  const conformance_traits *traits = *state;
  const node_shape shape = producer_shape();
  const node_shape own = consumer_shape();
  side *consumer = allocate(sizeof(*consumer));
  producer_process *process = allocate(sizeof(*process));
  process_start(process, &shape);
  node_open(consumer, traits->ops, &own, SEED + 1);
  kvf_link *link = node_connect_ok(consumer, &process->introduction);
  kvf_prng prng = {13};
  for (int i = 0; i < ROUNDS; i++) {
    read_volley volley = volley_start(consumer, link, &process->lease);
    sleep_us(kvf_prng_below(&prng, 800));
    process_stop(process);
    sleep_us(i % 4 < 2 ? 0 : kvf_prng_below(&prng, 800));
    if (i % 2 == 0) {
      volley_cancel(&volley, link);
      volley_end(&volley, &shape);
      process_continue(process);
    } else {
      traits->ops->disconnect(link);
      volley_end(&volley, &shape);
      process_continue(process);
      link = node_connect_ok(consumer, &process->introduction);
    }
    probe(consumer, &link, &process->introduction, &process->lease);
    assert_true(next_owner_is_alone(consumer));
  }
  if (traits->reads_stopped_producer) {
    process_stop(process);
    probe(consumer, &link, &process->introduction, &process->lease);
    process_continue(process);
  }
  traits->ops->disconnect(link);
  node_close(consumer);
  process_end(process);
  free(process);
  free(consumer);
}

void producer_killed(void **state)
{
  const conformance_traits *traits = *state;
  const node_shape shape = producer_shape();
  const node_shape own = consumer_shape();
  side *consumer = allocate(sizeof(*consumer));
  producer_process *process = allocate(sizeof(*process));
  node_open(consumer, traits->ops, &own, SEED + 1);
  kvf_prng prng = {17};
  for (int i = 0; i < 10; i++) {
    process_start(process, &shape);
    kvf_link *link = node_connect_ok(consumer, &process->introduction);
    read_volley volley = volley_start(consumer, link, &process->lease);
    sleep_us(kvf_prng_below(&prng, 2000));
    process_kill(process);
    assert_int_equal(node_wait_down(consumer, link), KVF_PEER_DOWN);
    volley_end(&volley, &shape);

    const kvf_read_item item = {0, 0, process->lease.blocks[0], BLOCKS};
    kvf_read late = node_read(consumer);
    late.lease = process->lease.lease;
    late.items = &item;
    late.items_count = 1;
    assert_int_equal(node_read_now(consumer, link, &late).status, KVF_PEER_DOWN);
    traits->ops->disconnect(link);

    const kvf_link_spec spec = node_spec(&process->introduction);
    assert_int_not_equal(node_connect(consumer, &spec, &link), KVF_OK);
    if (link != NULL) {
      traits->ops->disconnect(link);
    }
    assert_true(next_owner_is_alone(consumer));
    process_end(process);
  }
  node_close(consumer);
  free(process);
  free(consumer);
}

void disconnect_with_open_reads(void **state)
{
  const conformance_traits *traits = *state;
  const node_shape producer = producer_shape();
  const node_shape consumer = consumer_shape();
  pair *two = pair_open(traits, &producer, &consumer);
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  kvf_prng prng = {19};
  for (int i = 0; i < ROUNDS; i++) {
    read_volley volley = volley_start(&two->consumer, two->link, lease);
    sleep_us(kvf_prng_below(&prng, 1500));
    traits->ops->disconnect(two->link);
    volley_end(&volley, &producer);
    two->link = node_connect_ok(&two->consumer, &two->introduction);
    assert_true(next_owner_is_alone(&two->consumer));
  }
  pair_close(two);
}

void producer_clears_memory(void **state)
{
  const conformance_traits *traits = *state;
  const node_shape producer = producer_shape();
  const node_shape consumer = consumer_shape();
  kvf_prng prng = {23};
  for (int i = 0; i < 20; i++) {
    pair *two = pair_open(traits, &producer, &consumer);
    const node_lease *lease = node_publish(&two->producer, LEASE_ID);
    read_volley volley = volley_start(&two->consumer, two->link, lease);
    sleep_us(kvf_prng_below(&prng, 2000));
    traits->ops->clear_memory(two->producer.transport);
    two->producer.memory_set = false;
    /* Whoever still reads it now, crashes or gets an error. */
    assert_int_equal(mprotect(two->producer.regions[0].base, (size_t)BLOCKS * BLOCK_BYTES, PROT_NONE), 0);
    volley_end(&volley, &producer);
    pair_close(two);
  }
}
