#include "../sanitizer.h"
#include "base/prng.h"
#include "fault_transport.h"
#include "pair.h"
#include "test.h"

#define ROUNDS (SANITIZED ? 40 : 150)
#define LATE_US 3000

static node_shape producer_shape(void)
{
  return node_shape_simple(VOLLEY_BLOCKS, VOLLEY_BLOCK_BYTES);
}

static pair *open_pair(void)
{
  const node_shape producer = producer_shape();
  const node_shape consumer = node_shape_simple(VOLLEY_BLOCKS + 1, VOLLEY_BLOCK_BYTES);
  fault_plan_set(NULL);
  pair *two = pair_open(&producer, &consumer);
  next_owner(&two->consumer);
  return two;
}

/* No byte of the volleys' comes any more, and without faults all is as ever. */
static void assert_over(pair *two, const node_lease *lease)
{
  fault_plan_set(NULL);
  volley_probe(&two->consumer, &two->link, &two->introduction, lease);
  assert_true(next_owner_is_alone(&two->consumer));
}

/* P1: whoever says OK has the fence's word and the right bytes; volley_end() compares them. */
static void assert_confirmed(const pair *two, const read_volley *volley, const node_lease *lease)
{
  const kvf_fence_claim claim = node_claim(&two->introduction, lease);
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    kvf_read_result result = node_wait(volley->consumer, volley->reads[i].id);
    assert_true(result.status != KVF_OK || node_verdict(&result, &claim) == KVF_OK);
  }
}

static uint32_t count_ended(const read_volley *volley, kvf_status status)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    count += node_wait(volley->consumer, volley->reads[i].id).status == status;
  }
  return count;
}

/* Each read ends with what was said of it, once, and its bytes are as released as those of a good one. */
FAULT_TEST(fault_every_status)
{
  pair *two = open_pair();
  const node_shape producer = producer_shape();
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  for (size_t i = 0; i < 2 * fault_statuses_count; i++) {
    fault_plan plan = {.status = fault_statuses[i / 2]};
    plan.permille[i % 2 == 0 ? FAULT_FAIL : FAULT_REFUSE] = 1000;
    fault_plan_set(&plan);
    read_volley volley = volley_start(&two->consumer, two->link, lease);
    assert_int_equal(count_ended(&volley, plan.status), VOLLEY_READS);
    volley_end(&volley, &producer);
    assert_over(two, lease);
  }
  pair_close(two);
}

FAULT_TEST(fault_at_random)
{
  pair *two = open_pair();
  const node_shape producer = producer_shape();
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  kvf_prng prng = {37};
  for (uint64_t round = 0; round < ROUNDS; round++) {
    fault_plan plan = {.seed = round, .permille = {0, 150, 150, 150, 150, 150}, .late_us_max = LATE_US};
    plan.down_after = round % 3 == 0 ? 1 + (uint32_t)kvf_prng_below(&prng, UINT64_C(3) * VOLLEY_READS) : 0;
    fault_plan_set(&plan);
    read_volley volley = volley_start(&two->consumer, two->link, lease);
    sleep_us(kvf_prng_below(&prng, LATE_US));
    if (round % 2 == 0) {
      volley_cancel(&volley, two->link);
      volley_cancel(&volley, two->link);
    } else {
      traits->ops->disconnect(two->link);
    }
    assert_confirmed(two, &volley, lease);
    volley_end(&volley, &producer);
    if (round % 2 != 0) {
      fault_plan_set(NULL);
      two->link = node_connect_ok(&two->consumer, &two->introduction);
    }
    assert_over(two, lease);
  }
  pair_close(two);
}

/* Nothing but a cancel, or the end of the link or of the memory, ends them. */
FAULT_TEST(fault_stalled_reads)
{
  const node_shape producer = producer_shape();
  for (int way = 0; way < 3; way++) {
    pair *two = open_pair();
    const node_lease *lease = node_publish(&two->producer, LEASE_ID);
    fault_plan plan = {.permille = {[FAULT_STALL] = 1000}};
    fault_plan_set(&plan);
    read_volley volley = volley_start(&two->consumer, two->link, lease);
    sleep_us(20000);
    for (uint32_t i = 0; i < VOLLEY_READS; i++) {
      assert_false(node_is_done(&two->consumer, volley.reads[i].id));
    }
    if (way == 0) {
      volley_cancel(&volley, two->link);
    } else if (way == 1) {
      traits->ops->disconnect(two->link);
      two->link = NULL;
    } else {
      traits->ops->clear_memory(two->consumer.transport);
      two->consumer.memory_set = false;
    }
    assert_int_equal(count_ended(&volley, KVF_CANCELLED), VOLLEY_READS);
    volley_end(&volley, &producer);
    pair_close(two);
  }
}

/* The n-th thing that happens on a link is its end, for every n that a volley and its cancels have. */
FAULT_TEST(fault_link_down_at_every_event)
{
  pair *two = open_pair();
  const node_shape producer = producer_shape();
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  for (uint32_t event = 1; event <= 3 * VOLLEY_READS; event++) {
    fault_plan plan = {.seed = event, .permille = {[FAULT_LATE] = 500}, .late_us_max = 300, .down_after = event};
    traits->ops->disconnect(two->link);
    two->link = node_connect_ok(&two->consumer, &two->introduction);
    fault_plan_set(&plan);
    read_volley volley = volley_start(&two->consumer, two->link, lease);
    if (event % 2 == 0) {
      volley_cancel(&volley, two->link);
    }
    assert_confirmed(two, &volley, lease);
    volley_end(&volley, &producer);
    if (event <= 2 * VOLLEY_READS) { /* those at least happen */
      assert_int_equal(node_wait_down(&two->consumer, two->link), KVF_PEER_DOWN);
      read_volley late = volley_start(&two->consumer, two->link, lease);
      assert_int_equal(count_ended(&late, KVF_PEER_DOWN), VOLLEY_READS);
      volley_end(&late, &producer);
    }
    assert_over(two, lease);
  }
  pair_close(two);
}

static kvf_status connect_once(pair *two)
{
  kvf_link_spec spec = node_spec(&two->introduction);
  kvf_link *link = NULL;
  kvf_status status = node_connect(&two->consumer, &spec, &link);
  if (link != NULL) {
    two->consumer.ops->disconnect(link);
  }
  return status;
}

FAULT_TEST(fault_in_every_operation)
{
  pair *two = open_pair();
  const kvf_transport_ops *ops = traits->ops;
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  for (size_t i = 0; i < fault_statuses_count; i++) {
    const kvf_status status = fault_statuses[i];
    const kvf_transport_memory memory = {.regions = two->producer.regions,
                                         .regions_count = 1,
                                         .table = two->producer.table,
                                         .table_slots = NODE_SLOTS,
                                         .table_fd = two->producer.table_fd};
    const kvf_transport_config config = node_config();
    const kvf_transport_host host = {0};
    kvf_transport *none = NULL;
    char message[KVF_MESSAGE_BYTES_MAX];
    node_introduction other;
    fault_plan plan = {.open = status, .set_memory = status, .describe = status, .connect = status};
    fault_plan_set(&plan);
    assert_int_equal(ops->open(&config, &host, &none, message), status);
    assert_null(none);
    assert_int_equal(ops->set_memory(two->producer.transport, &memory), status);
    assert_int_equal(
        ops->describe(two->producer.transport, other.description, sizeof(other.description), &other.description_bytes),
        status);
    assert_int_equal(connect_once(two), status);
    plan = (fault_plan){.link_up = status};
    fault_plan_set(&plan);
    assert_int_equal(connect_once(two), status);
    assert_over(two, lease);
  }
  node_introduction good = two->introduction;
  for (uint64_t seed = 0; seed < 50; seed++) {
    const fault_plan plan = {.seed = seed, .describes_garbage = true};
    fault_plan_set(&plan);
    node_introduce(&two->producer, &two->introduction);
    (void)connect_once(two);
    two->introduction = good;
    assert_over(two, lease);
  }
  pair_close(two);
}

/* A link that is given back before anything was said of it. */
FAULT_TEST(fault_late_news_of_links)
{
  pair *two = open_pair();
  const node_lease *lease = node_publish(&two->producer, LEASE_ID);
  kvf_prng prng = {41};
  for (int i = 0; i < 100; i++) {
    const fault_plan plan = {.link_up_us = 2000};
    fault_plan_set(&plan);
    kvf_link_spec spec = node_spec(&two->introduction);
    kvf_link *link = NULL;
    assert_int_equal(node_begin_connect(&two->consumer, &spec, &link), KVF_OK);
    sleep_us(kvf_prng_below(&prng, 4000));
    traits->ops->disconnect(link);
    sleep_us(2000);
  }
  assert_over(two, lease);
  pair_close(two);
}
