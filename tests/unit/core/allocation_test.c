/* The n-th allocation fails, for every n, in each machine of the core: the call says so, nothing changes and nothing
 * leaks. */
#include "../../allocation.h"
#include "core/lease_slots.h"
#include "ranks_world.h"
#include "wire/ticket.h"

enum { POSITIONS = 6 };

static kvf_ticket ticket;
static uint32_t ids[RANKS_BLOCKS];
static kvf_ticket copies[2];
static kvf_sources sources;

static kvf_core *consumer(void)
{
  return &world.consumer.core;
}

/* A producer of two ranks, which have published; with `apart`, each is an engine of its own. */
static void open_world(bool apart)
{
  ranks_options options;
  ranks_options_init(&options, 2, 1, apart ? 1 : 4);
  ranks_open(&options);
  ranks_ticket(&ticket, ids, POSITIONS);
  ranks_publish(0, &ticket);
  ranks_publish(1, &ticket);
  sources = (kvf_sources){.count = apart ? 2 : 1, .tickets = {&copies[0], &copies[1]}};
  for (uint32_t i = 0; i < sources.count; i++) {
    copies[i] = ticket;
    copies[i].rank[0] = ticket.rank[i];
    copies[i].rank[0].rank = 0;
    copies[i].ranks = apart ? 1 : 2;
  }
  assert_int_equal(kvf_sources_digest(&sources), KVF_OK);
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

static kvf_core core;

static kvf_status init_core(void)
{
  kvf_core_config config;
  memset(&config, 0, sizeof(config));
  kvf_config_init(&config.options);
  config.options.lease_linger_ms = 0;
  config.options.lease_slots = 4;
  return kvf_core_init(&core, &config, 0);
}

static kvf_status set_memory(void)
{
  static kvf_region_layout regions[2] = {
      {.block_bytes = 64, .stride_bytes = 64, .blocks = 100, .heads = 1, .heads_total = 1, .group = 0},
      {.block_bytes = 64, .stride_bytes = 64, .blocks = 10, .heads = 1, .heads_total = 1, .group = 1}};
  kvf_welcome welcome = {.ranks = 1, .regions = regions, .regions_count = 2};
  kvf_status status = kvf_core_set_memory(&core, &welcome);
  core.pool.welcome = status == KVF_OK ? (kvf_welcome){0} : core.pool.welcome; /* the regions are the test's */
  return status;
}

static void assert_no_memory_is_set(void)
{
  assert_false(core.pool.exists);
}

static void assert_nothing(void)
{
}

/* Of the memory the caller keeps what it gave, and may try again. */
TEST(node)
{
  assert_true(fail_each(init_core, assert_nothing) > 1);
  assert_int_equal(fail_each(set_memory, assert_no_memory_is_set), 2);
  kvf_core_free(&core);
}

/* ---- leases ---- */

static kvf_status publish(void)
{
  kvf_blocks blocks = {.ids = ticket.ids, .counts = ticket.counts, .groups = ticket.groups};
  return kvf_core_publish(&world.producers[0].core, world.now_ns, &ticket.lease, &blocks, 1, 2, false);
}

static void assert_not_published(void)
{
  kvf_effect effect;
  assert_false(kvf_core_next_effect(&world.producers[0].core, world.now_ns, &effect));
  assert_int_equal(world.producers[0].core.leases.unreleased, 1);
}

RANKS_TEST(lease)
{
  open_world(false);
  ranks_ticket(&ticket, ids, POSITIONS);
  assert_true(fail_each(publish, assert_not_published) > 0);
  ranks_settle();
  assert_int_equal(world.producers[0].core.leases.live, 2); /* freed with a lease in it */
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
  static const uint32_t into[POSITIONS] = {0, 1, 2, 3, 4, 5};
  kvf_load_params load = {.request_id = request_id,
                          .prompt = ticket.prompt,
                          .destination = {.ids = into, .counts = ticket.counts, .groups = 1}};
  return kvf_core_load_start(consumer(), world.now_ns, &sources, &load, 0);
}

static void assert_not_started(void)
{
  kvf_event event;
  kvf_effect effect;
  assert_int_equal(ranks_peers_held(), (request_id - 1) * (sources.count == 1 ? 2 : 1));
  assert_int_equal(kvf_loads_open(&consumer()->loads), request_id - 1);
  assert_false(kvf_core_next_event(consumer(), world.now_ns, &event));
  assert_false(kvf_core_next_effect(consumer(), world.now_ns, &effect));
  assert_int_equal(kvf_core_load_abort(consumer(), world.now_ns, request_id), KVF_NOT_FOUND);
}

/* The first of the core, and one beside another. Where all was there but for its first dial, its outcome says so. Of
 * several sources one without memory is passed over. */
RANKS_TEST(load_start)
{
  kvf_event event;
  for (uint32_t apart = 0; apart < 2; apart++) {
    open_world(apart == 1);
    for (request_id = 1; request_id <= 2; request_id++) {
      const uint32_t at_first = apart == 0 ? 5 : 3;
      assert_true(fail_each(start_load, assert_not_started) > (request_id == 1 ? at_first : 1));
      world.hold_reads = true;
      ranks_settle();
      if (ranks_event(KVF_EVENT_LOAD, &event)) {
        assert_int_equal(event.u.report.status, KVF_NO_MEMORY);
        assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
        assert_int_equal(start_load(), KVF_OK);
        ranks_settle();
      }
    }
  }
}

/* A source that cannot be started at is passed over: the outcome is what the last one came to. */
RANKS_TEST(next_source)
{
  kvf_status status = KVF_OK;
  uint32_t failed = 0;
  request_id = 1;
  for (uint32_t n = 0; n == 0 || status != KVF_OK; n++) {
    kvf_event event;
    open_world(true);
    assert_int_equal(start_load(), KVF_OK);
    world.hold_reads = true;
    ranks_settle();
    world.hold_reads = false;
    kvf_loads_on_read_done(&consumer()->loads, world.now_ns, world.reads[0].transfer.id, KVF_LEASE_EXPIRED, 0, NULL, 0);
    kvf_effect effect;
    for (uint32_t i = 1; i < world.reads_count; i++) {
      assert_true(kvf_core_next_effect(consumer(), world.now_ns, &effect));
      assert_int_equal(effect.kind, KVF_EFFECT_CANCEL);
    }
    for (uint32_t i = 1; i < world.reads_count; i++) {
      kvf_loads_on_read_done(&consumer()->loads, world.now_ns, world.reads[i].transfer.id, KVF_CANCELLED, 0, NULL, 0);
    }
    allocation_fail(n, 1);
    kvf_loads_go_on(&consumer()->loads, world.now_ns);
    (void)allocation_stop();
    ranks_settle();
    assert_true(ranks_event(KVF_EVENT_LOAD, &event));
    status = (kvf_status)event.u.report.status;
    assert_true(status == KVF_OK || status == KVF_LEASE_EXPIRED || status == KVF_NO_MEMORY); /* the last: its dial */
    failed += status == KVF_LEASE_EXPIRED;
    assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
    assert_int_equal(ranks_peers_held(), 0);
  }
  assert_true(failed >= 2);
}

/* P6: what fails while connections are made costs a connection, never the node. A read that cannot be remembered is not
 * started, and tried again. */
RANKS_TEST(whole_load)
{
  kvf_event event;
  bool some_failed = true;
  uint32_t lost = 0;
  uint64_t retried = 0;
  request_id = 1;
  for (uint32_t n = 0; some_failed; n++) {
    open_world(false);
    allocation_fail(n, 1);
    kvf_status status = ranks_load(&ticket, request_id);
    some_failed = allocation_stop();
    for (int i = 0; status == KVF_OK && i < 100 && !kvf_core_has_event(consumer()); i++) {
      ranks_advance(500);
    }
    if (status == KVF_OK) {
      assert_true(ranks_event(KVF_EVENT_LOAD, &event));
      lost += event.u.report.status != KVF_OK;
      retried += event.u.report.status == KVF_OK ? consumer()->loads.stats.retries : 0;
      assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
    }
    assert_int_equal(ranks_peers_held(), 0);
  }
  assert_true(lost > 0);
  assert_true(retried > 0);
}

/* ---- requests ---- */

static uint64_t opened_id;

static kvf_status open_request(void)
{
  return kvf_requests_open(&consumer()->requests, world.now_ns, &sources, &ticket.prompt, NULL, 5, &opened_id, NULL);
}

static void assert_not_opened(void)
{
  assert_int_equal(ranks_peers_held(), 0);
  assert_int_equal(HASH_CNT(by_id, consumer()->requests.attachments.by_id), 0);
}

RANKS_TEST(request)
{
  open_world(false);
  assert_true(fail_each(open_request, assert_not_opened) > 3);
  assert_int_equal(opened_id, 1); /* none was used up */
}
