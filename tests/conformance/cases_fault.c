/* What a fault transport may do, and still keeps the contract. */
#include "../sides/faults.h"
#include "base/prng.h"
#include "conformance.h"

#define ROUNDS (SANITIZED ? 40 : 150)
#define LATE_US 3000

static void open_sides(void)
{
  fault_plan_set(NULL);
  volley_sides();
}

/* No byte of the volleys' comes any more, and without faults all is as ever. */
static void assert_over(void)
{
  fault_plan_set(NULL);
  volleys_are_over();
}

/* P1: whoever says OK has the fence's word and the right bytes; volley_end() compares them. */
static void assert_confirmed(const read_volley *volley)
{
  const kvf_fence_claim claim = side_claim(&two->introduction, two->lease);
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    kvf_read_result result = side_wait(&two->consumer, volley->reads[i].id);
    assert_true(result.status != KVF_OK || side_verdict(&result, &claim) == KVF_OK);
  }
}

static uint32_t count_ended(const read_volley *volley, kvf_status status)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    count += side_wait(&two->consumer, volley->reads[i].id).status == status;
  }
  return count;
}

/* Each read ends with what was said of it, once, and its bytes are as released as those of a good one. */
FAULT_TEST(fault_every_status)
{
  open_sides();
  for (size_t i = 0; i < 2 * fault_statuses_count; i++) {
    fault_plan plan = {.status = fault_statuses[i / 2]};
    plan.permille[i % 2 == 0 ? FAULT_FAIL : FAULT_REFUSE] = 1000;
    fault_plan_set(&plan);
    read_volley volley = volley_start();
    assert_int_equal(count_ended(&volley, plan.status), VOLLEY_READS);
    volley_end(&volley);
    assert_over();
  }
}

FAULT_TEST(fault_at_random)
{
  open_sides();
  kvf_prng prng = {37};
  for (uint64_t round = 0; round < ROUNDS; round++) {
    fault_plan plan = {.seed = round, .permille = {0, 150, 150, 150, 150, 150}, .late_us_max = LATE_US};
    plan.down_after = round % 3 == 0 ? 1 + (uint32_t)kvf_prng_below(&prng, UINT64_C(3) * VOLLEY_READS) : 0;
    fault_plan_set(&plan);
    read_volley volley = volley_start();
    sleep_us(kvf_prng_below(&prng, LATE_US));
    if (round % 2 == 0) {
      volley_cancel(&volley);
      volley_cancel(&volley);
    } else {
      sides_disconnect();
    }
    assert_confirmed(&volley);
    volley_end(&volley);
    if (round % 2 != 0) {
      fault_plan_set(NULL);
      sides_link();
    }
    assert_over();
  }
}

/* Nothing but a cancel, or the end of the link or of the memory, ends them. */
FAULT_TEST(fault_stalled_reads)
{
  for (int way = 0; way < 3; way++) {
    open_sides();
    fault_plan plan = {.permille = {[FAULT_STALL] = 1000}};
    fault_plan_set(&plan);
    read_volley volley = volley_start();
    sleep_us(20000);
    for (uint32_t i = 0; i < VOLLEY_READS; i++) {
      assert_false(side_is_done(&two->consumer, volley.reads[i].id));
    }
    if (way == 0) {
      volley_cancel(&volley);
    } else if (way == 1) {
      sides_disconnect();
    } else {
      under_test.ops->clear_memory(two->consumer.transport);
      two->consumer.memory_set = false;
    }
    assert_int_equal(count_ended(&volley, KVF_CANCELLED), VOLLEY_READS);
    volley_end(&volley);
    sides_close();
  }
}

/* The n-th thing that happens on a link is its end, for every n that a volley and its cancels have. */
FAULT_TEST(fault_link_down_at_every_event)
{
  open_sides();
  for (uint32_t event = 1; event <= 3 * VOLLEY_READS; event++) {
    fault_plan plan = {.seed = event, .permille = {[FAULT_LATE] = 500}, .late_us_max = 300, .down_after = event};
    sides_disconnect();
    sides_link();
    fault_plan_set(&plan);
    read_volley volley = volley_start();
    if (event % 2 == 0) {
      volley_cancel(&volley);
    }
    assert_confirmed(&volley);
    volley_end(&volley);
    if (event <= 2 * VOLLEY_READS) { /* those at least happen */
      assert_int_equal(side_wait_down(&two->consumer, two->link), KVF_PEER_DOWN);
      read_volley late = volley_start();
      assert_int_equal(count_ended(&late, KVF_PEER_DOWN), VOLLEY_READS);
      volley_end(&late);
    }
    assert_over();
  }
}

static kvf_status connect_once(void)
{
  kvf_link_spec spec = side_spec(&two->introduction);
  kvf_link *link = NULL;
  kvf_status status = side_connect(&two->consumer, &spec, &link);
  if (link != NULL) {
    two->consumer.ops->disconnect(link);
  }
  return status;
}

FAULT_TEST(fault_in_every_operation)
{
  open_sides();
  const kvf_transport_ops *ops = under_test.ops;
  for (size_t i = 0; i < fault_statuses_count; i++) {
    const kvf_status status = fault_statuses[i];
    const kvf_transport_memory memory = side_memory(&two->producer);
    const kvf_transport_config config = side_config();
    const kvf_transport_host host = {0};
    kvf_transport *none = NULL;
    char message[KVF_MESSAGE_BYTES_MAX];
    side_introduction other;
    fault_plan plan = {.open = status, .set_memory = status, .describe = status, .connect = status};
    fault_plan_set(&plan);
    assert_int_equal(ops->open(&config, &host, &none, message), status);
    assert_null(none);
    assert_int_equal(ops->set_memory(two->producer.transport, &memory), status);
    assert_int_equal(
        ops->describe(two->producer.transport, other.description, sizeof(other.description), &other.description_bytes),
        status);
    assert_int_equal(connect_once(), status);
    plan = (fault_plan){.link_up = status};
    fault_plan_set(&plan);
    assert_int_equal(connect_once(), status);
    assert_over();
  }
  side_introduction good = two->introduction;
  for (uint64_t seed = 0; seed < 50; seed++) {
    const fault_plan plan = {.seed = seed, .describes_garbage = true};
    fault_plan_set(&plan);
    side_introduce(&two->producer, &two->introduction);
    (void)connect_once();
    two->introduction = good;
    assert_over();
  }
}

/* A link that is given back before anything was said of it. */
FAULT_TEST(fault_late_news_of_links)
{
  open_sides();
  kvf_prng prng = {41};
  for (int i = 0; i < 100; i++) {
    const fault_plan plan = {.link_up_us = 2000};
    fault_plan_set(&plan);
    kvf_link_spec spec = side_spec(&two->introduction);
    kvf_link *link = NULL;
    assert_int_equal(side_begin_connect(&two->consumer, &spec, &link), KVF_OK);
    sleep_us(kvf_prng_below(&prng, 4000));
    under_test.ops->disconnect(link);
    sleep_us(2000);
  }
  assert_over();
}
