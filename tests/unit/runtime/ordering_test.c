/* Publications and loads that wait for an ordering point. */
#include "../../memory_kind.h"
#include "pair.h"
#include "runtime/pump.h"
#include "test.h"

#define BLOCKS 8
#define FIRST 20
#define UNTOUCHED 0xEE
#define A_WHILE_MS 150

static test_event event;
static kvf_ordering_point point; /* the event */
static pair_ticket ticket;

/* And offers blocks. */
static void open_pair(const char *transport, const char *checksum, bool is_published)
{
  const pair_option options[] = {{"transports", transport}, {"checksum", checksum},   {"memory", "test"},
                                 {"backoff_min_ms", "5"},   {"backoff_max_ms", "20"}, {NULL, NULL}};
  memset(&event, 0, sizeof(event));
  point = test_point(&event);
  pair_open(options);
  pair_offer(&p.producer, 0, BLOCKS, 1, is_published, &ticket);
}

static void close_pair(void)
{
  pair_close();
  assert_int_equal(atomic_load(&event.marks), 0);
}

#define POINT_TEST(name) TEST_WITH(name, NULL, close_pair)

static void set_untouched(void)
{
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    memset(p.consumer.pool[i], UNTOUCHED, (size_t)PAIR_BLOCKS * PAIR_BLOCK_BYTES);
  }
}

static bool is_untouched(void)
{
  bool untouched = true;
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    const uint8_t *bytes = p.consumer.pool[i];
    untouched =
        untouched && bytes[0] == UNTOUCHED && memcmp(bytes, bytes + 1, (size_t)PAIR_BLOCKS * PAIR_BLOCK_BYTES - 1) == 0;
  }
  return untouched;
}

static void expect_over(kvf_status status)
{
  pair_result result = {0};
  assert_true(pair_poll_load(&p.consumer, 900, PAIR_LATE_MS * UINT64_C(1000), &result));
  assert_int_equal(result.report.status, status);
}

static void expect_loaded(uint32_t seed)
{
  expect_over(KVF_OK);
  assert_true(pair_holds_all(&p.consumer, FIRST, BLOCKS, seed));
}

static void expect_nothing(void)
{
  pair_result result = {0};
  (void)pair_poll_load(&p.consumer, 900, A_WHILE_MS * UINT64_C(1000), &result);
  assert_false(result.loaded);
  assert_true(is_untouched());
}

/* Nothing happens but that it asks again, which may take its time where the machine has other work. */
static void expect_it_asks_again(void)
{
  unsigned tries = 0;
  do {
    expect_nothing();
  } while ((pair_stat(&p.consumer, "load_retries", "") == 0 || atomic_load(&event.asked) < 2) && tries++ < 100);
  assert_true(pair_stat(&p.consumer, "load_retries", "") > 0);
  assert_true(atomic_load(&event.asked) > 1);
}

/* ---- publications ---- */

static void publish_waits(const char *transport, const char *checksum)
{
  open_pair(transport, checksum, false);
  assert_int_equal(pair_publish_after(&p.producer, &ticket, &point), KVF_OK);
  set_untouched();
  assert_int_equal(pair_load(&p.consumer, &ticket, 900, FIRST), KVF_OK);
  expect_it_asks_again();
  for (uint32_t i = 0; i < BLOCKS; i++) {
    pair_fill(&p.producer, ticket.blocks[i], 2, i); /* what the device has done by then */
  }
  atomic_store(&event.complete, true);
  expect_loaded(2);
  assert_int_equal(atomic_load(&event.marks), 0);
  close_pair();
}

TEST(nobody_reads_before_the_point_of_a_publication)
{
  publish_waits("local", "off");
  publish_waits("tcp", "off");
}

/* Which are made of the bytes that are there then. */
TEST(nor_are_checksums_made_before_it)
{
  publish_waits("local", "on");
  publish_waits("tcp", "on");
}

POINT_TEST(a_point_that_is_complete_is_not_waited_for)
{
  open_pair("local", "off", false);
  atomic_store(&event.complete, true);
  assert_int_equal(pair_publish_after(&p.producer, &ticket, &point), KVF_OK);
  assert_int_equal(atomic_load(&event.marks), 0);
  assert_int_equal(pair_load_after(&p.consumer, &ticket, 900, FIRST, &point, 0), KVF_OK);
  expect_loaded(1);
}

POINT_TEST(a_lease_may_end_before_its_point)
{
  open_pair("local", "on", false);
  assert_int_equal(pair_publish_after(&p.producer, &ticket, &point), KVF_OK);
  assert_int_equal(kvf_lease_end(p.producer.node, &ticket.lease), KVF_OK);
  assert_int_equal(pair_wait_lease_end(&p.producer, ticket.lease.id, PAIR_LATE_MS), KVF_LEASE_END_REVOKED);
  atomic_store(&event.complete, true);
  assert_int_equal(pair_load(&p.consumer, &ticket, 900, FIRST), KVF_OK);
  expect_over(KVF_LEASE_EXPIRED);
}

/* ---- loads ---- */

static void load_waits(const char *transport)
{
  open_pair(transport, "off", true);
  set_untouched();
  assert_int_equal(pair_load_after(&p.consumer, &ticket, 900, FIRST, &point, 0), KVF_OK);
  for (unsigned tries = 0; tries < 100 && !pair_logged(&p.consumer, "loads go over", transport); tries++) {
    expect_nothing();
  }
  expect_nothing();
  assert_true(pair_logged(&p.consumer, "loads go over", transport)); /* the way is there already */
  atomic_store(&event.complete, true);
  expect_loaded(1);
  assert_int_equal(atomic_load(&event.marks), 0);
  close_pair();
}

TEST(no_byte_is_written_before_the_point_of_a_load)
{
  load_waits("local");
  load_waits("tcp");
}

POINT_TEST(a_load_may_be_aborted_before_its_point)
{
  open_pair("local", "off", true);
  set_untouched();
  assert_int_equal(pair_load_after(&p.consumer, &ticket, 900, FIRST, &point, 0), KVF_OK);
  assert_int_equal(kvf_load_abort(p.consumer.node, 900), KVF_OK);
  expect_over(KVF_ABORTED);
  atomic_store(&event.complete, true);
  expect_nothing();
}

/* The request's number may come again; the point is the earlier load's. */
POINT_TEST(a_point_is_that_of_its_load_only)
{
  test_event second = {0};
  open_pair("local", "off", true);
  const kvf_ordering_point points[] = {test_point(&event), test_point(&second)};
  set_untouched();
  assert_int_equal(pair_load_after(&p.consumer, &ticket, 900, FIRST, &points[0], 0), KVF_OK);
  assert_int_equal(kvf_load_abort(p.consumer.node, 900), KVF_OK);
  expect_over(KVF_ABORTED);
  assert_int_equal(pair_load_after(&p.consumer, &ticket, 900, FIRST, &points[1], 0), KVF_OK);
  atomic_store(&event.complete, true);
  expect_nothing();
  assert_int_equal(atomic_load(&event.marks), 0);
  atomic_store(&second.complete, true);
  expect_loaded(1);
  close_pair();
  assert_int_equal(atomic_load(&second.marks), 0);
}

POINT_TEST(a_load_that_waits_has_its_outcome_by_its_deadline)
{
  open_pair("local", "off", true);
  set_untouched();
  assert_int_equal(pair_load_after(&p.consumer, &ticket, 900, FIRST, &point, 100), KVF_OK);
  expect_over(KVF_DEADLINE);
  assert_true(is_untouched());
}

/* ---- what is no point ---- */

POINT_TEST(points_of_no_such_kind_are_refused)
{
  open_pair("local", "off", false);
  kvf_ordering_point bad[4] = {test_point(&event), test_point(NULL), test_point(&event), {.handle = &event}};
  const uint32_t unknown = 3;
  bad[0].device = TEST_MEMORY_DEVICES;
  memcpy(&bad[2].memory, &unknown, sizeof(unknown));
  for (size_t i = 0; i < 4; i++) { /* the last is the host's, which has none */
    assert_int_equal(pair_publish_after(&p.producer, &ticket, &bad[i]), KVF_INVALID);
    assert_int_equal(pair_load_after(&p.consumer, &ticket, 900, FIRST, &bad[i], 0), KVF_INVALID);
  }
  pair_publish(&p.producer, &ticket); /* nothing has been published */
  close_pair();

  /* Nor does memory that knows none take another kind's. */
  const pair_option host[] = {{"transports", "local"}, {"checksum", "on"}, {NULL, NULL}};
  pair_open(host);
  pair_offer(&p.producer, 0, BLOCKS, 1, false, &ticket);
  assert_int_equal(pair_publish_after(&p.producer, &ticket, &point), KVF_INVALID);
  assert_int_equal(pair_load_after(&p.consumer, &ticket, 900, FIRST, &point, 0), KVF_INVALID);
  pair_publish(&p.producer, &ticket);
}

/* With points that never come. */
POINT_TEST(memory_can_be_unregistered_while_points_are_waited_for)
{
  open_pair("local", "on", false);
  assert_int_equal(pair_publish_after(&p.producer, &ticket, &point), KVF_OK);
  assert_int_equal(pair_load_after(&p.consumer, &ticket, 900, FIRST, &point, 0), KVF_OK);
  assert_int_equal(kvf_node_unregister(p.producer.node), KVF_OK);
  assert_int_equal(atomic_load(&event.marks), 1);
}
