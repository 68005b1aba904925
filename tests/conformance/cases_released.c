/* What has been released, or belongs to who has gone, nobody writes to. */
#include "../cuda_driver.h"
#include "base/prng.h"
#include "conformance.h"

#define ROUNDS (SANITIZED ? 25 : 100)
#define CONSUMERS (SANITIZED || cuda_driver_is_named() ? 10 : 30)
/* What a transport may take to notice that a process is dead; a real device's memory takes its time to be given back.
 */
#define DETECT_NS ((cuda_driver_is_named() ? 2000 : 50) * KVF_NS_PER_MS)

SIDES_TEST(cancel_at_random_times)
{
  volley_sides();
  kvf_prng prng = {11};
  for (int i = 0; i < ROUNDS; i++) {
    read_volley volley = volley_start();
    sleep_us(kvf_prng_below(&prng, 3000));
    volley_cancel(&volley);
    volley_cancel(&volley);
    volley_end(&volley);
    volleys_are_over();
  }
}

SIDES_TEST(cancel_of_unknown_reads)
{
  volley_sides();
  under_test.ops->cancel(two->link, 77);
  volleys_are_over();
  under_test.ops->cancel(two->link, two->consumer.last_read_id);
  under_test.ops->cancel(two->link, 0);
  volleys_are_over();
}

PEER_TEST(producer_stopped)
{
  volley_sides_apart();
  process_start();
  kvf_prng prng = {13};
  for (int i = 0; i < ROUNDS; i++) {
    read_volley volley = volley_start();
    sleep_us(kvf_prng_below(&prng, 800));
    assert_true(child_stop(&two->process));
    sleep_us(i % 4 < 2 ? 0 : kvf_prng_below(&prng, 800));
    if (i % 2 == 0) {
      volley_cancel(&volley);
      volley_end(&volley);
      assert_true(child_continue(&two->process));
    } else {
      sides_disconnect();
      volley_end(&volley);
      assert_true(child_continue(&two->process));
      sides_link();
    }
    volleys_are_over();
  }
  if (suite_traits().reads_stopped_producer) {
    assert_true(child_stop(&two->process));
    volleys_are_over();
    assert_true(child_continue(&two->process));
  }
}

PEER_TEST(producer_killed)
{
  volley_sides_apart();
  side *consumer = &two->consumer;
  kvf_prng prng = {17};
  for (int i = 0; i < 10; i++) {
    process_start();
    read_volley volley = volley_start();
    sleep_us(kvf_prng_below(&prng, 2000));
    process_kill();
    assert_int_equal(side_wait_down(consumer, two->link), KVF_PEER_DOWN);
    volley_end(&volley);

    const kvf_transfer_item item = {0, 0, two->lease->blocks[0], VOLLEY_BLOCKS};
    const kvf_transfer late = side_read(consumer, &two->lease->lease, &item, 1);
    assert_int_equal(side_read_now(consumer, two->link, &late).status, KVF_PEER_DOWN);
    sides_disconnect();

    const kvf_link_spec spec = side_spec(&two->introduction);
    assert_int_not_equal(side_connect(consumer, &spec, &two->link), KVF_OK);
    if (two->link != NULL) {
      sides_disconnect();
    }
    assert_true(next_owner_is_alone());
  }
}

/* From the disconnect on: how long the reads of a producer take that is killed right after it. */
static uint64_t end_with_producer_ns(void)
{
  process_start();
  assert_true(child_stop(&two->process));
  read_volley volley = volley_start();
  sleep_us(1000);
  uint64_t before_ns = now_ns();
  sides_disconnect();
  process_kill();
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    (void)side_wait(&two->consumer, volley.reads[i].id);
  }
  uint64_t took_ns = now_ns() - before_ns;
  volley_end(&volley);
  assert_true(next_owner_is_alone());
  return took_ns;
}

/* Reads of a link that is given back end with the producer, and wait for no clock. A busy machine may be late at some
 * tries. */
PEER_TEST(disconnect_then_killed)
{
  volley_sides_apart();
  uint64_t least_ns = KVF_TIME_NEVER;
  for (int i = 0; i < 10 && least_ns > DETECT_NS; i++) {
    least_ns = kvf_time_min(least_ns, end_with_producer_ns());
  }
  assert_in_range(least_ns, 0, DETECT_NS);
}

PEER_TEST(disconnect_with_open_reads)
{
  volley_sides();
  kvf_prng prng = {19};
  for (int i = 0; i < ROUNDS; i++) {
    read_volley volley = volley_start();
    sleep_us(kvf_prng_below(&prng, 1500));
    sides_disconnect();
    volley_end(&volley);
    sides_link();
  }
}

PEER_TEST(producer_clears_memory)
{
  kvf_prng prng = {23};
  for (int i = 0; i < 20; i++) {
    volley_sides();
    read_volley volley = volley_start();
    sleep_us(kvf_prng_below(&prng, 2000));
    under_test.ops->clear_memory(two->producer.transport);
    two->producer.memory_set = false;
    /* Whoever still reads it now, crashes or gets an error. */
    side_withdraw(&two->producer, 0);
    volley_end(&volley);
    sides_close();
  }
}

/* What a consumer leaves unfinished does not concern the producer, nor its other consumers. */
PEER_TEST(consumer_killed)
{
  volley_sides();
  kvf_prng prng = {29};
  for (int i = 0; i < CONSUMERS; i++) {
    child_process child;
    consumer_start(&child);
    sleep_us(kvf_prng_below(&prng, 3000));
    assert_true(child_kill(&child));
    volleys_are_over();
  }
}

/* Nor does one that stands still, with more on its way than its socket holds, and is killed then. */
PEER_TEST(consumer_stopped_then_killed)
{
  volley_sides();
  for (int i = 0; i < CONSUMERS; i++) {
    child_process child;
    consumer_start(&child);
    sleep_us(10000); /* until it has asked for it */
    assert_true(child_stop(&child));
    volleys_are_over();
    sleep_us(10000); /* until its socket is full */
    assert_true(child_kill(&child));
    volleys_are_over();
  }
}
