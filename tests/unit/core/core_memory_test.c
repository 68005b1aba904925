/* Fails the n-th allocation, for every n, of what allocates in the core. Linked with --wrap for calloc, malloc and
 * realloc. */

#include "ranks_world.h"
#include "test.h"

#define POSITIONS 4

void *__real_calloc(size_t count, size_t bytes);
void *__real_malloc(size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

static long allocations_left = -1; /* until one fails; below 0: none does */

static bool fails_now(void)
{
  if (allocations_left < 0) {
    return false;
  }
  allocations_left--;
  return allocations_left < 0;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
  return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_malloc(size_t bytes)
{
  return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
  return fails_now() ? NULL : __real_realloc(memory, bytes);
}

static kvf_ticket ticket;
static uint32_t ids[RANKS_BLOCKS];

static void open_world(void)
{
  ranks_options options;
  ranks_options_init(&options, 2, 1, 4);
  ranks_open(&options);
  ranks_ticket(&ticket, ids, POSITIONS);
  ranks_publish(0, &ticket);
  ranks_publish(1, &ticket);
}

RANKS_TEST(init)
{
  kvf_core core;
  kvf_core_config config;
  memset(&config, 0, sizeof(config));
  kvf_config_init(&config.options);
  config.options.lease_slots = 4;
  long allocations = 0;
  kvf_status status;
  do {
    allocations_left = allocations++;
    status = kvf_core_init(&core, &config, 0);
    allocations_left = -1;
  } while (status == KVF_NO_MEMORY);
  assert_int_equal(status, KVF_OK);
  assert_true(allocations > 5);
  kvf_core_free(&core);
}

/* The caller keeps what it gave, and may try again. */
RANKS_TEST(set_memory)
{
  kvf_core core;
  kvf_core_config config;
  memset(&config, 0, sizeof(config));
  kvf_config_init(&config.options);
  config.options.lease_slots = 4;
  assert_int_equal(kvf_core_init(&core, &config, 0), KVF_OK);
  const kvf_region regions[2] = {
      {.block_bytes = 64, .stride_bytes = 64, .blocks = 100, .heads = 1, .heads_total = 1, .group = 0},
      {.block_bytes = 64, .stride_bytes = 64, .blocks = 10, .heads = 1, .heads_total = 1, .group = 1}};
  kvf_welcome welcome = {0};
  for (long allocations = 0; allocations < 2; allocations++) {
    allocations_left = allocations;
    kvf_status status = kvf_core_set_memory(&core, regions, 2, &welcome);
    allocations_left = -1;
    assert_int_equal(status, KVF_NO_MEMORY);
    assert_false(core.has_memory);
  }
  assert_int_equal(kvf_core_set_memory(&core, regions, 2, &welcome), KVF_OK);
  kvf_core_free(&core);
}

/* On failure no event comes, and no peer is held. */
RANKS_TEST(load_start)
{
  kvf_event event;
  kvf_core *consumer = &world.consumer.core;
  open_world();
  static const uint32_t destination[POSITIONS] = {0, 1, 2, 3};
  kvf_load load = {.request_id = 1,
                   .prompt = ticket.prompt,
                   .destination = {.ids = destination, .counts = ticket.counts, .groups = 1}};
  long allocations = 0;
  kvf_status status;
  for (;;) {
    allocations_left = allocations++;
    status = kvf_core_load_start(consumer, world.now_ns,
                                 &(kvf_sources){.count = 1, .tickets = {&ticket}, .digests = {1}}, &load);
    allocations_left = -1;
    if (status == KVF_OK) {
      break;
    }
    assert_int_equal(status, KVF_NO_MEMORY);
    assert_int_equal(ranks_peers_held(), 0);
    assert_int_equal(HASH_CNT(by_id, consumer->open_loads), 0);
    assert_false(kvf_core_next_event(consumer, world.now_ns, &event));
  }
  assert_true(allocations > 5);
  assert_int_equal(ranks_peers_held(), 2);
}

/* The same prompt at two ranks of the world, each an engine of its own. */
static kvf_sources open_sources(kvf_ticket copies[2])
{
  ranks_options options;
  kvf_sources sources = {.count = 2, .tickets = {&copies[0], &copies[1]}};
  ranks_options_init(&options, 2, 1, 1);
  ranks_open(&options);
  ranks_ticket(&ticket, ids, POSITIONS);
  for (uint32_t i = 0; i < 2; i++) {
    copies[i] = ticket;
    copies[i].ranks = 1;
    copies[i].rank[0] = ticket.rank[i];
    copies[i].rank[0].rank = 0;
    ranks_publish(i, &ticket);
  }
  assert_int_equal(kvf_sources_digest(&sources), KVF_OK);
  return sources;
}

static const uint32_t into[POSITIONS] = {0, 1, 2, 3};

static kvf_status load_from(const kvf_sources *sources)
{
  kvf_load load = {
      .request_id = 1, .prompt = ticket.prompt, .destination = {.ids = into, .counts = ticket.counts, .groups = 1}};
  return kvf_core_load_start(&world.consumer.core, world.now_ns, sources, &load);
}

RANKS_TEST(load_of_two_sources_start)
{
  kvf_ticket copies[2];
  kvf_sources sources = open_sources(copies);
  long allocations = 0;
  kvf_status status;
  do {
    assert_int_equal(ranks_peers_held(), 0);
    assert_null(world.consumer.core.open_loads);
    allocations_left = allocations++;
    status = load_from(&sources);
    allocations_left = -1;
  } while (status == KVF_NO_MEMORY);
  assert_int_equal(status, KVF_OK);
  assert_true(allocations > 6);
}

/* A source that cannot be started at is passed over: the outcome is what the last one came to. */
RANKS_TEST(next_source_start)
{
  kvf_status status = KVF_OK;
  uint32_t failed = 0;
  for (long allocations = 0; allocations == 0 || status != KVF_OK; allocations++) {
    kvf_ticket copies[2];
    kvf_event event;
    kvf_sources sources = open_sources(copies);
    assert_int_equal(load_from(&sources), KVF_OK);
    world.hold_reads = true;
    ranks_settle();
    world.hold_reads = false;
    kvf_core_on_read_done(&world.consumer.core, world.now_ns, world.reads[0].read_id, KVF_LEASE_EXPIRED, NULL, 0);
    kvf_effect effect;
    for (uint32_t i = 1; i < world.reads_count; i++) {
      assert_true(kvf_core_next_effect(&world.consumer.core, world.now_ns, &effect));
      assert_int_equal(effect.kind, KVF_EFFECT_CANCEL);
    }
    for (uint32_t i = 1; i < world.reads_count; i++) {
      kvf_core_on_read_done(&world.consumer.core, world.now_ns, world.reads[i].read_id, KVF_CANCELLED, NULL, 0);
    }
    allocations_left = allocations;
    bool told = kvf_core_next_event(&world.consumer.core, world.now_ns, &event);
    allocations_left = -1;
    ranks_settle();
    if (told) {
      assert_int_equal(event.u.report.status, KVF_LEASE_EXPIRED);
      failed++;
    } else {
      assert_true(ranks_event(KVF_EVENT_LOAD, &event));
    }
    status = (kvf_status)event.u.report.status;
    assert_true(ranks_event(KVF_EVENT_QUIET, &event));
    assert_int_equal(ranks_peers_held(), 0);
  }
  assert_true(failed >= 3);
}

RANKS_TEST(request_open)
{
  kvf_requests *requests = &world.consumer.core.requests;
  open_world();
  uint64_t id = 0;
  long allocations = 0;
  kvf_status status;
  for (;;) {
    allocations_left = allocations++;
    status = kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}}, &ticket.prompt,
                               NULL, 5, &id, NULL);
    allocations_left = -1;
    if (status == KVF_OK) {
      break;
    }
    assert_int_equal(status, KVF_NO_MEMORY);
    assert_int_equal(ranks_peers_held(), 0);
    assert_int_equal(HASH_CNT(by_id, requests->by_id), 0);
  }
  assert_true(allocations > 3);
  assert_int_equal(id, 1); /* none was used up */
}

/* P6: what fails while connections are made costs a connection, never the node. */
RANKS_TEST(a_load_survives_a_failed_allocation)
{
  kvf_event event;
  uint32_t failed = 0;
  for (long allocations = 0; allocations < 60; allocations++) {
    open_world();
    allocations_left = allocations;
    kvf_status status = ranks_load(&ticket, 1);
    allocations_left = -1;
    for (int i = 0; status == KVF_OK && i < 100 && !kvf_core_has_event(&world.consumer.core); i++) {
      ranks_advance(500);
    }
    if (status == KVF_OK) {
      assert_true(ranks_event(KVF_EVENT_LOAD, &event));
      failed += event.u.report.status != KVF_OK;
      assert_true(ranks_event(KVF_EVENT_QUIET, &event));
    }
    assert_int_equal(ranks_peers_held(), 0);
  }
  assert_true(failed > 0);
}
