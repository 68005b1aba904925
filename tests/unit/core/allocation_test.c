/* The n-th allocation fails, for every n, in each machine of the core: the call says so, nothing changes and nothing
 * leaks. */
#include "../../allocation.h"
#include "cluster.h"
#include "core/lease_slots.h"

static kvf_sources sources;

/* A producer of two ranks, which have published; or two engines, of one each. */
static void open_two(bool apart)
{
  cluster_open(apart ? "ranks=2 apart blocks=6 published single hold=events"
                     : "ranks=2 heads=4 blocks=6 published single hold=events");
  sources = cluster_sources(apart ? "AB" : "A");
}

/* Calls until it succeeds. Returns how many allocations it needs. */
static uint32_t fail_each(kvf_status (*call)(void), void (*assert_unchanged)(void))
{
  for (uint32_t n = 0;; n++) {
    allocation_fail(n, 1);
    kvf_status status = call();
    bool failed = allocation_stop();
    if (status == KVF_OK) {
      return n;
    }
    assert_true(failed);
    assert_int_equal(status, KVF_NO_MEMORY);
    assert_unchanged();
  }
}

/* ---- a core ---- */

static kvf_core *core;

static kvf_status create_core(void)
{
  kvf_core_config config;
  memset(&config, 0, sizeof(config));
  kvf_config_init(&config.options);
  config.options.lease_linger_ms = 0;
  config.options.lease_slots = 4;
  return kvf_core_create(&config, 0, &core);
}

static void assert_no_core(void)
{
  assert_null(core);
}

static kvf_welcome welcome;

static kvf_status set_memory(void)
{
  return kvf_core_set_memory(core, &welcome);
}

static void assert_no_memory_is_set(void)
{
  assert_int_equal(welcome.regions_count, 2);
}

/* Of the memory the caller keeps what it gave, and may try again. */
TEST(node)
{
  assert_true(fail_each(create_core, assert_no_core) > 1);
  welcome = (kvf_welcome){.ranks = 1, .regions = calloc(2, sizeof(kvf_region_layout)), .regions_count = 2};
  for (uint32_t i = 0; i < 2; i++) {
    welcome.regions[i] = (kvf_region_layout){
        .block_bytes = 64, .stride_bytes = 64, .blocks = i == 0 ? 100 : 10, .heads = 1, .heads_total = 1, .group = i};
  }
  assert_int_equal(fail_each(set_memory, assert_no_memory_is_set), 2);
  kvf_core_destroy(core);
}

/* ---- leases ---- */

static kvf_status publish(void)
{
  const kvf_ticket *ticket = &c.tickets[1];
  const kvf_blocks blocks = {.ids = ticket->ids, .counts = ticket->counts, .groups = ticket->groups};
  return kvf_core_publish(c.p[0].core, c.now_ns, &ticket->lease, &blocks, 1, 2, false);
}

static void assert_not_published(void)
{
  kvf_effect effect;
  assert_false(kvf_core_next_effect(c.p[0].core, c.now_ns, &effect));
  assert_int_equal(cluster_stat(&c.p[0], "leases_live", ""), 1);
}

/* Freed with a lease in it. */
CLUSTER_TEST(lease)
{
  open_two(false);
  (void)cluster_ticket(0, 6);
  assert_true(fail_each(publish, assert_not_published) > 0);
  cluster_settle();
  assert_int_equal(cluster_stat(&c.p[0], "leases_live", ""), 2);
}

#define SLOTS 2000

static bool reserve_many(kvf_lease_slots *slots)
{
  static const uint8_t token[KVF_LEASE_TOKEN_BYTES] = {0};
  for (uint32_t i = 0; i < SLOTS; i++) {
    kvf_lease reserved;
    const uint32_t count = 1;
    const kvf_blocks block = {.ids = &i, .counts = &count, .groups = 1};
    kvf_status status = i % 100 == 0 ? kvf_lease_slots_reserve_blocks(slots, &block, 0, token, &reserved)
                                     : kvf_lease_slots_reserve(slots, 1, 0, token, &reserved);
    if (status != KVF_OK) {
      assert_int_equal(status, KVF_NO_MEMORY);
      assert_int_equal(kvf_lease_slots_live(slots), i);
      assert_int_equal(kvf_lease_slots_blocks(slots), i);
      return false;
    }
  }
  return true;
}

TEST(lease_slots)
{
  bool failed = true;
  uint32_t n = 0;
  for (; failed; n++) {
    kvf_lease_slots slots;
    allocation_fail(n, 1);
    kvf_status status = kvf_lease_slots_init(&slots, SLOTS, 0, 100);
    if (status != KVF_OK) {
      assert_int_equal(status, KVF_NO_MEMORY);
      continue;
    }
    bool done = reserve_many(&slots);
    failed = allocation_stop();
    assert_true(done != failed);
    for (uint32_t id = kvf_lease_slots_live(&slots); id > 0; id--) {
      assert_int_equal(kvf_lease_slots_release(&slots, id - 1), KVF_OK);
    }
    assert_true(reserve_many(&slots));
    kvf_lease_slots_free(&slots);
  }
  assert_in_range(n, 5, 100);
}

/* ---- loads ---- */

static uint64_t request_id;

static kvf_status start_load(void)
{
  const kvf_load_params load = cluster_load_params(&c.tickets[0], request_id);
  return kvf_core_load_start(c.d.core, c.now_ns, &sources, &load, 0);
}

static void assert_not_started(void)
{
  kvf_effect effect;
  assert_int_equal(cluster_users(), (request_id - 1) * (sources.count == 1 ? 2 : 1));
  assert_int_equal(cluster_stat(&c.d, "loads_open", ""), request_id - 1);
  assert_false(kvf_core_next_event(c.d.core, c.now_ns, &c.event));
  assert_false(kvf_core_next_effect(c.d.core, c.now_ns, &effect));
  assert_int_equal(kvf_core_load_abort(c.d.core, c.now_ns, request_id), KVF_NOT_FOUND);
}

/* The first of the core, and one beside another. Where all was there but for its first dial, its outcome says so. Of
 * several sources one without memory is passed over. */
CLUSTER_TEST(load_start)
{
  for (uint32_t apart = 0; apart < 2; apart++) {
    open_two(apart == 1);
    c.held |= CLUSTER_READS_ENDED;
    for (request_id = 1; request_id <= 2; request_id++) {
      const uint32_t at_first = apart == 0 ? 5 : 3;
      assert_true(fail_each(start_load, assert_not_started) > (request_id == 1 ? at_first : 1));
      cluster_settle();
      if (cluster_event(KVF_EVENT_LOAD)) {
        assert_int_equal(c.event.u.report.status, KVF_NO_MEMORY);
        assert_true(cluster_event(KVF_EVENT_RELEASED));
        assert_int_equal(start_load(), KVF_OK);
        cluster_settle();
      }
    }
  }
}

/* A source that cannot be started at is passed over: the outcome is what the last one came to. */
CLUSTER_TEST(next_source)
{
  kvf_status status = KVF_OK;
  uint32_t failed = 0;
  request_id = 1;
  for (uint32_t n = 0; n == 0 || status != KVF_OK; n++) {
    kvf_effect effect;
    open_two(true);
    c.held |= CLUSTER_READS_ENDED;
    assert_int_equal(start_load(), KVF_OK);
    cluster_settle();
    cluster_end_read(0, KVF_LEASE_EXPIRED);
    for (uint32_t i = c.reads_count; i > 0; i--) {
      assert_true(kvf_core_next_effect(c.d.core, c.now_ns, &effect));
      assert_int_equal(effect.kind, KVF_EFFECT_CANCEL);
    }
    while (c.reads_count > 0) {
      cluster_end_read(0, KVF_CANCELLED);
    }
    c.held &= ~(uint32_t)CLUSTER_READS_ENDED;
    allocation_fail(n, 1);
    const bool is_more = kvf_core_next_effect(c.d.core, c.now_ns, &effect);
    (void)allocation_stop();
    if (is_more) {
      cluster_carry_out(&c.d, &effect);
    }
    cluster_settle();
    assert_true(cluster_event(KVF_EVENT_LOAD));
    status = (kvf_status)c.event.u.report.status;
    assert_true(status == KVF_OK || status == KVF_LEASE_EXPIRED || status == KVF_NO_MEMORY); /* the last: its dial */
    failed += status == KVF_LEASE_EXPIRED;
    assert_true(cluster_event(KVF_EVENT_RELEASED));
    assert_int_equal(cluster_users(), 0);
  }
  assert_true(failed >= 2);
}

/* P6: what fails while connections are made costs a connection, never the node. A read that cannot be remembered is not
 * started, and tried again. */
CLUSTER_TEST(whole_load)
{
  bool some_failed = true;
  uint32_t lost = 0;
  uint64_t retried = 0;
  request_id = 1;
  for (uint32_t n = 0; some_failed; n++) {
    open_two(false);
    allocation_fail(n, 1);
    const kvf_status status = start_load();
    cluster_settle();
    some_failed = allocation_stop();
    for (int i = 0; status == KVF_OK && i < 100 && !kvf_core_has_event(c.d.core); i++) {
      cluster_advance(500);
    }
    if (status == KVF_OK) {
      assert_true(cluster_event(KVF_EVENT_LOAD));
      const bool is_lost = c.event.u.report.status != KVF_OK;
      lost += is_lost;
      retried += is_lost ? 0 : cluster_stat(&c.d, "load_retries", "");
      assert_true(cluster_event(KVF_EVENT_RELEASED));
    }
    assert_int_equal(cluster_users(), 0);
  }
  assert_true(lost > 0);
  assert_true(retried > 0);
}

/* ---- requests ---- */

static uint64_t opened_id;

static kvf_status open_request(void)
{
  return kvf_core_request_open(c.d.core, c.now_ns, &sources, &c.tickets[0].prompt, NULL, 5, &opened_id, NULL);
}

static void assert_not_opened(void)
{
  assert_int_equal(cluster_users(), 0);
  assert_int_equal(cluster_stat(&c.d, "requests_open", ""), 0);
}

CLUSTER_TEST(request)
{
  open_two(false);
  assert_true(fail_each(open_request, assert_not_opened) > 3);
  assert_int_equal(opened_id, 1); /* none was used up */
}
