#include <sys/mman.h>

#include "../cuda_driver.h"
#include "../sanitizer.h"
#include "base/prng.h"
#include "pair.h"
#include "test.h"

#define ROUNDS (SANITIZED ? 25 : 100)
#define CONSUMERS (SANITIZED || cuda_driver_is_named() ? 10 : 30)
/* What a transport may take to notice that a process is dead; a real device's memory takes its time to be given back.
 */
#define DETECT_NS ((cuda_driver_is_named() ? 2000 : 50) * KVF_NS_PER_MS)

static node_shape producer_shape(void)
{
  return node_shape_simple(VOLLEY_BLOCKS, VOLLEY_BLOCK_BYTES);
}

static node_shape consumer_shape(void)
{
  return node_shape_simple(VOLLEY_BLOCKS + 1, VOLLEY_BLOCK_BYTES);
}

TEST(cancel_at_random_times)
{
  const node_shape producer = producer_shape();
  const node_shape consumer = consumer_shape();
  pair *two = pair_open(&producer, &consumer);
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  kvf_prng prng = {11};
  for (int i = 0; i < ROUNDS; i++) {
    read_volley volley = volley_start(&two->consumer, two->link, lease);
    sleep_us(kvf_prng_below(&prng, 3000));
    volley_cancel(&volley, two->link);
    volley_cancel(&volley, two->link);
    volley_end(&volley, &producer);
    volley_probe(&two->consumer, &two->link, &two->introduction, lease);
    assert_true(next_owner_is_alone(&two->consumer));
  }
  pair_close(two);
}

TEST(cancel_of_unknown_reads)
{
  const node_shape producer = producer_shape();
  const node_shape consumer = consumer_shape();
  pair *two = pair_open(&producer, &consumer);
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  traits->ops->cancel(two->link, 77);
  volley_probe(&two->consumer, &two->link, &two->introduction, lease);
  traits->ops->cancel(two->link, two->consumer.last_read_id);
  traits->ops->cancel(two->link, 0);
  volley_probe(&two->consumer, &two->link, &two->introduction, lease);
  pair_close(two);
}

PEER_TEST(producer_stopped)
{
  const node_shape shape = producer_shape();
  const node_shape own = consumer_shape();
  side *consumer = allocate(sizeof(*consumer));
  producer_process *process = allocate(sizeof(*process));
  process_start(process, &shape);
  consumer_open(consumer, &own);
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
    volley_probe(consumer, &link, &process->introduction, &process->lease);
    assert_true(next_owner_is_alone(consumer));
  }
  if (traits->reads_stopped_producer) {
    process_stop(process);
    volley_probe(consumer, &link, &process->introduction, &process->lease);
    process_continue(process);
  }
  traits->ops->disconnect(link);
  node_close(consumer);
  process_end(process);
  free(process);
  free(consumer);
}

PEER_TEST(producer_killed)
{
  const node_shape shape = producer_shape();
  const node_shape own = consumer_shape();
  side *consumer = allocate(sizeof(*consumer));
  producer_process *process = allocate(sizeof(*process));
  consumer_open(consumer, &own);
  kvf_prng prng = {17};
  for (int i = 0; i < 10; i++) {
    process_start(process, &shape);
    kvf_link *link = node_connect_ok(consumer, &process->introduction);
    read_volley volley = volley_start(consumer, link, &process->lease);
    sleep_us(kvf_prng_below(&prng, 2000));
    process_kill(process);
    assert_int_equal(node_wait_down(consumer, link), KVF_PEER_DOWN);
    volley_end(&volley, &shape);

    const kvf_transfer_item item = {0, 0, process->lease.blocks[0], VOLLEY_BLOCKS};
    kvf_transfer late = node_read(consumer);
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

/* From the disconnect on: how long the reads of a producer take that is killed right after it. */
static uint64_t end_with_producer_ns(side *consumer, producer_process *process)
{
  const node_shape shape = producer_shape();
  process_start(process, &shape);
  kvf_link *link = node_connect_ok(consumer, &process->introduction);
  process_stop(process);
  read_volley volley = volley_start(consumer, link, &process->lease);
  sleep_us(1000);
  uint64_t before_ns = now_ns();
  consumer->ops->disconnect(link);
  process_kill(process);
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    (void)node_wait(consumer, volley.reads[i].id);
  }
  uint64_t took_ns = now_ns() - before_ns;
  volley_end(&volley, &shape);
  assert_true(next_owner_is_alone(consumer));
  process_end(process);
  return took_ns;
}

/* Reads of a link that is given back end with the producer, and wait for no clock. A busy machine may be late at some
 * tries. */
PEER_TEST(disconnect_then_killed)
{
  const node_shape own = consumer_shape();
  side *consumer = allocate(sizeof(*consumer));
  producer_process *process = allocate(sizeof(*process));
  consumer_open(consumer, &own);
  uint64_t least_ns = KVF_TIME_NEVER;
  for (int i = 0; i < 10 && least_ns > DETECT_NS; i++) {
    least_ns = kvf_time_min(least_ns, end_with_producer_ns(consumer, process));
  }
  assert_in_range(least_ns, 0, DETECT_NS);
  node_close(consumer);
  free(process);
  free(consumer);
}

PEER_TEST(disconnect_with_open_reads)
{
  const node_shape producer = producer_shape();
  const node_shape consumer = consumer_shape();
  pair *two = pair_open(&producer, &consumer);
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

PEER_TEST(producer_clears_memory)
{
  const node_shape producer = producer_shape();
  const node_shape consumer = consumer_shape();
  kvf_prng prng = {23};
  for (int i = 0; i < 20; i++) {
    pair *two = pair_open(&producer, &consumer);
    const node_lease *lease = node_publish(&two->producer, LEASE_ID);
    read_volley volley = volley_start(&two->consumer, two->link, lease);
    sleep_us(kvf_prng_below(&prng, 2000));
    traits->ops->clear_memory(two->producer.transport);
    two->producer.memory_set = false;
    /* Whoever still reads it now, crashes or gets an error. */
    node_withdraw(&two->producer, 0);
    volley_end(&volley, &producer);
    pair_close(two);
  }
}

/* What a consumer leaves unfinished does not concern the producer, nor its other consumers. */
PEER_TEST(consumer_killed)
{
  const node_shape producer = producer_shape();
  const node_shape consumer = consumer_shape();
  pair *two = pair_open(&producer, &consumer);
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  kvf_prng prng = {29};
  for (int i = 0; i < CONSUMERS; i++) {
    child_process child;
    consumer_start(&child, &two->introduction, lease);
    sleep_us(kvf_prng_below(&prng, 3000));
    consumer_kill(&child);
    volley_probe(&two->consumer, &two->link, &two->introduction, lease);
  }
  pair_close(two);
}

/* Nor does one that stands still, with more on its way than its socket holds, and is killed then. */
PEER_TEST(consumer_stopped_then_killed)
{
  const node_shape producer = producer_shape();
  const node_shape consumer = consumer_shape();
  pair *two = pair_open(&producer, &consumer);
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  for (int i = 0; i < CONSUMERS; i++) {
    child_process child;
    consumer_start(&child, &two->introduction, lease);
    sleep_us(10000); /* until it has asked for it */
    assert_true(child_stop(&child));
    volley_probe(&two->consumer, &two->link, &two->introduction, lease);
    sleep_us(10000); /* until its socket is full */
    consumer_kill(&child);
    volley_probe(&two->consumer, &two->link, &two->introduction, lease);
  }
  pair_close(two);
}
