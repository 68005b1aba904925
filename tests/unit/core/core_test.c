/* A node's core as a whole: its life, its memory, its engine's ranks, tickets, and whose turn it is. */

#include "ranks_world.h"
#include "test.h"

#define POSITIONS 4

static kvf_ticket ticket;
static uint32_t ids[RANKS_GROUPS * RANKS_BLOCKS];

static int open_world(__attribute__((unused)) void **state)
{
  ranks_options options;
  ranks_options_init(&options, 1, 1, 2);
  options.groups = 2;
  ranks_open(&options);
  ranks_ticket(&ticket, ids, POSITIONS);
  return 0;
}

#define WORLD_TEST(name) TEST_WITH(name, open_world, ranks_close)

static kvf_core *producer(void)
{
  return &world.producers[0].core;
}

static kvf_core_config config_of(uint8_t name)
{
  kvf_core_config config;
  memset(&config, 0, sizeof(config));
  kvf_config_init(&config.options);
  config.options.lease_linger_ms = 0;
  memset(&config.incarnation, name, sizeof(config.incarnation));
  memset(config.secret, name, sizeof(config.secret));
  return config;
}

/* ---- life ---- */

/* A restarted control node must not use its predecessor's ids. */
RANKS_TEST(first_lease_id_comes_from_the_secret)
{
  uint64_t first[3];
  static const uint8_t names[] = {'a', 'a', 'b'};
  for (size_t i = 0; i < 3; i++) {
    kvf_core core;
    kvf_lease lease;
    kvf_core_config config = config_of(names[i]);
    assert_int_equal(kvf_core_init(&core, &config, 0), KVF_OK);
    assert_int_equal(kvf_core_lease_reserve(&core, 1, 0, &lease), KVF_OK);
    first[i] = lease.id;
    assert_true(lease.id < KVF_LEASE_ID_MAX / 2);
    kvf_core_free(&core);
  }
  assert_true(first[0] == first[1]);
  assert_true(first[0] != first[2]);
}

/* Blocks of another number of tokens do not pair. */
RANKS_TEST(block_tokens_are_part_of_the_identity)
{
  kvf_core cores[2];
  for (uint32_t i = 0; i < 2; i++) {
    kvf_core_config config = config_of('a');
    config.options.block_tokens = 16 << i;
    assert_int_equal(kvf_core_init(&cores[i], &config, 0), KVF_OK);
  }
  assert_memory_not_equal(cores[0].context.self.compat, cores[1].context.self.compat,
                          sizeof(cores[0].context.self.compat));
  kvf_core_free(&cores[0]);
  kvf_core_free(&cores[1]);
}

RANKS_TEST(transports_keep_the_options_order)
{
  kvf_core core;
  kvf_core_config config = config_of('a');
  (void)snprintf(config.options.transports, sizeof(config.options.transports), "tcp,local");
  assert_int_equal(kvf_core_init(&core, &config, 0), KVF_OK);
  assert_int_equal(core.peers.transports_count, 2);
  assert_string_equal(core.peers.transports[0], "tcp");
  assert_string_equal(core.peers.transports[1], "local");
  kvf_core_free(&core);
}

RANKS_TEST(a_transport_that_is_not_there_is_left_out)
{
  kvf_core core;
  kvf_core_config config = config_of('a');
  (void)snprintf(config.options.transports, sizeof(config.options.transports), "tcp,ucx,local");
  assert_int_equal(kvf_core_init(&core, &config, 0), KVF_OK);
  kvf_core_leave_out_transport(&core, 1);
  assert_int_equal(core.peers.transports_count, 2);
  assert_string_equal(core.peers.transports[0], "tcp");
  assert_string_equal(core.peers.transports[1], "local");
  kvf_core_leave_out_transport(&core, 1);
  assert_int_equal(core.peers.transports_count, 1);
  kvf_core_free(&core);
}

/* P8: what has been freed holds neither the key nor what nonces are made of. */
RANKS_TEST(secrets_are_wiped)
{
  kvf_core core;
  kvf_core_config config = config_of('s');
  const kvf_key no_key = {0};
  const kvf_entropy no_entropy = {0};
  config.key.bytes = 16;
  memset(config.key.data, 'k', 16);
  assert_int_equal(kvf_core_init(&core, &config, 0), KVF_OK);
  kvf_core_free(&core);
  assert_memory_equal(&core.context.self.key, &no_key, sizeof(no_key));
  assert_memory_equal(&core.context.entropy, &no_entropy, sizeof(no_entropy));
}

/* ---- ranks and tickets ---- */

RANKS_TEST(ranks_must_be_all_and_different)
{
  kvf_core core;
  kvf_core_config config = config_of('a');
  config.options.ranks = 3;
  assert_int_equal(kvf_core_init(&core, &config, 0), KVF_OK);
  kvf_rank_record records[3] = {{.rank = 2}, {.rank = 0}, {.rank = 1}};
  assert_int_equal(kvf_core_set_ranks(&core, records, 2), KVF_INVALID);
  records[2].rank = 0;
  assert_int_equal(kvf_core_set_ranks(&core, records, 3), KVF_INVALID);
  records[2].rank = 3;
  assert_int_equal(kvf_core_set_ranks(&core, records, 3), KVF_INVALID);
  assert_int_equal(core.engine_ranks, 0);
  records[2].rank = 1;
  records[2].dealt = 2;
  assert_int_equal(kvf_core_set_ranks(&core, records, 3), KVF_INVALID);
  records[2].dealt = 0;
  records[2].address.port = 7;
  assert_int_equal(kvf_core_set_ranks(&core, records, 3), KVF_OK);
  assert_int_equal(core.engine_ranks, 3);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(core.engine[i].rank, i);
  }
  assert_int_equal(core.engine[1].address.port, 7);
  kvf_core_free(&core);
}

WORLD_TEST(ticket_says_what_the_core_knows)
{
  assert_int_equal(ticket.ranks, 1);
  assert_memory_equal(&ticket.rank[0].incarnation, &producer()->context.self.incarnation, sizeof(kvf_incarnation));
  assert_memory_equal(ticket.compat, producer()->context.self.compat, sizeof(ticket.compat));
  assert_int_equal(ticket.fields, producer()->context.config.identity_fields);
  assert_true(ticket.fields > 0);
  assert_memory_equal(ticket.field, producer()->context.self.fields, ticket.fields * sizeof(ticket.field[0]));
  assert_int_equal(ticket.block_tokens, 16);
  assert_int_equal(ticket.ttl_ms, 30000);
  assert_int_equal(ticket.groups, 2);
  assert_int_equal(ticket.counts[1], POSITIONS);
  assert_ptr_equal(ticket.ids, ids);
}

WORLD_TEST(ticket_has_the_groups_of_the_engine)
{
  kvf_ticket other;
  kvf_context *context = &producer()->context;
  const kvf_blocks blocks = {.ids = ids, .counts = ticket.counts, .groups = 2};
  context->self.groups = 2;
  context->self.group_tokens[1] = 8;
  assert_int_equal(kvf_core_ticket(producer(), &ticket.lease, &blocks, &ticket.prompt, &other), KVF_OK);
  assert_int_equal(other.group_tokens[0], 16);
  assert_int_equal(other.group_tokens[1], 8);
  context->self.groups = 3;
  assert_int_equal(kvf_core_ticket(producer(), &ticket.lease, &blocks, &ticket.prompt, &other), KVF_INVALID);
}

WORLD_TEST(ticket_needs_ranks_blocks_and_tokens)
{
  kvf_ticket other;
  kvf_prompt prompt = ticket.prompt;
  kvf_blocks blocks = {.ids = ids, .counts = ticket.counts, .groups = 2};
  assert_int_equal(kvf_core_ticket(&world.consumer.core, &ticket.lease, &blocks, &prompt, &other), KVF_INVALID);
  blocks.groups = 0;
  assert_int_equal(kvf_core_ticket(producer(), &ticket.lease, &blocks, &prompt, &other), KVF_INVALID);
  blocks.groups = KVF_GROUPS_MAX + 1;
  assert_int_equal(kvf_core_ticket(producer(), &ticket.lease, &blocks, &prompt, &other), KVF_LIMIT);
  blocks.groups = 2;
  prompt.tokens = 0;
  assert_int_equal(kvf_core_ticket(producer(), &ticket.lease, &blocks, &prompt, &other), KVF_INVALID);
}

WORLD_TEST(a_ticket_names_the_blocks_of_its_lease)
{
  kvf_ticket other;
  kvf_lease lease;
  const kvf_lease_slots *slots = &producer()->slots;
  const kvf_blocks blocks = {.ids = ids, .counts = ticket.counts, .groups = 2};
  assert_int_equal(kvf_lease_slots_blocks(slots), 2 * POSITIONS); /* of the world's lease */
  assert_int_equal(kvf_core_lease_reserve(producer(), 5, 0, &lease), KVF_OK);
  assert_int_equal(kvf_lease_slots_blocks(slots), 2 * POSITIONS + 5);
  assert_int_equal(kvf_core_ticket(producer(), &lease, &blocks, &ticket.prompt, &other), KVF_OK);
  assert_int_equal(kvf_lease_slots_blocks(slots), 2 * POSITIONS);
}

WORLD_TEST(lease_tokens_differ)
{
  kvf_lease lease;
  assert_int_equal(kvf_core_lease_reserve(producer(), 1, 0, &lease), KVF_OK);
  assert_memory_not_equal(lease.token, ticket.lease.token, sizeof(lease.token));
  assert_int_equal(kvf_lease_slots_release(&producer()->slots, lease.id), KVF_OK);
  assert_int_equal(kvf_lease_slots_release(&producer()->slots, lease.id), KVF_NOT_FOUND);
}

/* ---- publication ---- */

static kvf_status publish(uint32_t groups, const uint32_t *counts, const uint32_t *block_ids)
{
  kvf_blocks blocks = {.ids = block_ids, .counts = counts, .groups = groups};
  return kvf_core_publish(producer(), world.now_ns, &ticket.lease, &blocks, 1, 2, false);
}

WORLD_TEST(blocks_must_be_of_the_memory)
{
  static const uint32_t counts[] = {1, 2, 1};
  static const uint32_t past[] = {0, 1, RANKS_BLOCKS, 0};
  static const uint32_t good[] = {RANKS_BLOCKS - 1, KVF_BLOCK_NONE, 0, 0};
  assert_int_equal(publish(0, counts, good), KVF_INVALID);
  assert_int_equal(publish(3, counts, good), KVF_INVALID); /* the memory has two */
  assert_int_equal(publish(2, counts, past), KVF_INVALID);
  assert_int_equal(producer()->leases.live, 0);
  assert_int_equal(publish(2, counts, good), KVF_OK);
}

/* A stage of a pipeline may have no layer of a group: its block ids name nothing here. */
RANKS_TEST(groups_without_memory_take_any_block)
{
  static const uint32_t counts[] = {2, 2, 1};
  uint32_t block_ids[] = {0, 1, UINT32_MAX - 1, UINT32_MAX - 1, 7};
  ranks_options options;
  ranks_options_init(&options, 2, 1, 1);
  options.groups = 2;
  options.layers = RANKS_LAYERS;
  options.producer.stage_ends = 0x04;
  ranks_open(&options);
  ranks_ticket(&ticket, ids, 1);
  assert_int_equal(producer()->pool.groups, 1);
  assert_int_equal(publish(KVF_GROUPS_MAX + 1, counts, block_ids), KVF_INVALID);
  block_ids[1] = RANKS_BLOCKS;
  assert_int_equal(publish(3, counts, block_ids), KVF_INVALID);
  block_ids[1] = 1;
  assert_int_equal(publish(3, counts, block_ids), KVF_OK);
}

RANKS_TEST(a_record_says_which_layers_and_dealt_tokens)
{
  const kvf_address address = {.port = 7};
  ranks_options options;
  ranks_options_init(&options, 4, 1, 1);
  options.layers = RANKS_LAYERS;
  options.producer = (ranks_split){.stage_ends = 0x02, .dealt = 2};
  ranks_open(&options);
  for (uint32_t rank = 0; rank < 4; rank++) {
    const kvf_rank_record record = kvf_core_record(&world.producers[rank].core, &address, &(kvf_address){.port = 0});
    assert_int_equal(record.rank, rank);
    assert_int_equal(record.address.port, 7);
    assert_int_equal(record.layers.first, rank < 2 ? 0 : 2);
    assert_int_equal(record.layers.count, rank < 2 ? 2 : 4);
    assert_int_equal(record.dealt, 2);
  }
  assert_true(kvf_core_clear_memory(producer(), world.now_ns));
  const kvf_rank_record record = kvf_core_record(producer(), &address, &(kvf_address){.port = 0});
  assert_int_equal(record.layers.first, 0);
  assert_int_equal(record.layers.count, 0);
  assert_int_equal(record.dealt, 1);
}

/* Regions of a group may differ in length: a block must be in all of them. */
RANKS_TEST(smallest_region_bounds_its_group)
{
  kvf_core core;
  kvf_lease lease;
  kvf_core_config config = config_of('a');
  kvf_welcome welcome = {.ranks = 1, .regions = calloc(2, sizeof(kvf_region_layout)), .regions_count = 2};
  welcome.regions[0] = (kvf_region_layout){.block_bytes = 8, .heads = 2, .heads_total = 2, .blocks = 9};
  welcome.regions[1] = (kvf_region_layout){.block_bytes = 4, .heads = 2, .heads_total = 2, .blocks = 5};
  uint32_t count = 1;
  uint32_t block = 5;
  kvf_blocks blocks = {.ids = &block, .counts = &count, .groups = 1};
  assert_int_equal(kvf_core_init(&core, &config, 0), KVF_OK);
  assert_int_equal(kvf_core_lease_reserve(&core, 1, 0, &lease), KVF_OK);
  assert_int_equal(kvf_core_publish(&core, 0, &lease, &blocks, 1, 2, false), KVF_INVALID); /* no memory at all */
  assert_int_equal(kvf_core_set_memory(&core, &welcome), KVF_OK);
  assert_int_equal(core.pool.head_bytes[0], 4 + 2);
  assert_int_equal(kvf_core_publish(&core, 0, &lease, &blocks, 1, 2, false), KVF_INVALID);
  block = 4;
  assert_int_equal(kvf_core_publish(&core, 0, &lease, &blocks, 1, 2, false), KVF_OK);
  kvf_core_free(&core);
}

/* P1, P5: the engine hears that the blocks are its own again once "over" has been stored, and once only. */
WORLD_TEST(blocks_come_back_after_over_is_stored)
{
  kvf_effect effect;
  kvf_event event;
  ranks_publish(0, &ticket);
  assert_int_equal(kvf_core_lease_end(producer(), world.now_ns, &ticket.lease), KVF_OK);
  assert_false(kvf_core_has_event(producer()));
  assert_true(kvf_core_next_effect(producer(), world.now_ns, &effect));
  assert_int_equal(effect.kind, KVF_EFFECT_STORE);
  assert_true(effect.store.entry.word == kvf_fence_word_ended(ticket.lease.id));
  assert_false(kvf_core_next_event(producer(), world.now_ns, &event));
  kvf_core_on_stored(producer(), &effect.store);
  assert_true(kvf_core_has_event(producer()));
  assert_true(kvf_core_next_event(producer(), world.now_ns, &event));
  assert_int_equal(event.kind, KVF_EVENT_LEASE_ENDED);
  assert_true(event.id == ticket.lease.id);
  assert_int_equal(event.user, 2);
  assert_int_equal(event.u.lease_end, KVF_LEASE_END_REVOKED);
  assert_int_equal(kvf_core_lease_end(producer(), world.now_ns, &ticket.lease), KVF_NOT_FOUND);
  assert_false(kvf_core_next_event(producer(), world.now_ns, &event));
}

/* ---- memory ---- */

WORLD_TEST(there_is_one_memory_at_a_time)
{
  kvf_welcome welcome = {0};
  assert_int_equal(kvf_core_set_memory(producer(), &welcome), KVF_EXISTS);
  assert_int_equal(producer()->pool.groups, 2);
  assert_true(kvf_core_clear_memory(producer(), world.now_ns));
  welcome = (kvf_welcome){.generation = 2, .ranks = 1, .block_tokens = 16, .regions_count = 1};
  welcome.regions = calloc(1, sizeof(*welcome.regions));
  assert_non_null(welcome.regions);
  welcome.regions[0] =
      (kvf_region_layout){.stride_bytes = 64, .block_bytes = 64, .blocks = 16, .heads = 1, .heads_total = 1};
  assert_int_equal(kvf_core_set_memory(producer(), &welcome), KVF_OK);
  assert_int_equal(producer()->pool.groups, 1);
  assert_int_equal(producer()->pool.welcome.generation, 2);
}

WORLD_TEST(ranks_share_the_heads_evenly)
{
  kvf_region_layout region = {.stride_bytes = 64, .block_bytes = 64, .blocks = 16, .heads = 1, .heads_total = 3};
  kvf_welcome welcome = {.ranks = 2, .regions_count = 1, .regions = &region};
  assert_true(kvf_core_clear_memory(producer(), world.now_ns));
  producer()->context.config.ranks = 2;
  assert_int_equal(kvf_core_set_memory(producer(), &welcome), KVF_INVALID);
  assert_false(producer()->pool.exists);
}

WORLD_TEST(clearing_memory_ends_its_leases)
{
  kvf_event event;
  ranks_publish(0, &ticket);
  assert_true(kvf_core_clear_memory(producer(), world.now_ns));
  ranks_settle();
  assert_true(world.producers[0].table[ticket.lease.slot].word == kvf_fence_word_ended(ticket.lease.id));
  assert_true(kvf_core_next_event(producer(), world.now_ns, &event));
  assert_int_equal(event.u.lease_end, KVF_LEASE_END_REVOKED);
  assert_int_equal(producer()->pool.welcome.regions_count, 0);
  assert_int_equal(producer()->pool.welcome.transports_count, 0);
  kvf_blocks blocks = {.ids = ids, .counts = ticket.counts, .groups = 2};
  assert_int_equal(kvf_core_publish(producer(), world.now_ns, &ticket.lease, &blocks, 1, 2, false), KVF_INVALID);
  assert_true(kvf_core_clear_memory(producer(), world.now_ns));
}

/* P4: the memory is in use until the last load is released and its owner has heard so. */
WORLD_TEST(clearing_memory_waits_for_loads)
{
  kvf_event event;
  kvf_core *consumer = &world.consumer.core;
  ranks_publish(0, &ticket);
  world.hold_reads = true;
  world.hold_cancels = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_false(kvf_core_clear_memory(consumer, world.now_ns));
  ranks_settle();
  assert_true(ranks_event(KVF_EVENT_LOAD, &event));
  assert_int_equal(event.u.report.status, KVF_ABORTED);
  assert_false(kvf_core_clear_memory(consumer, world.now_ns));
  assert_int_equal(ranks_complete(0, 2 * POSITIONS, KVF_CANCELLED), 2 * POSITIONS);
  assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
  assert_true(kvf_core_clear_memory(consumer, world.now_ns));
  assert_false(consumer->pool.exists);
}

/* ---- time and events ---- */

WORLD_TEST(deadline_is_the_nearest_of_all)
{
  uint64_t conn_id = 0;
  kvf_address from = {.port = 1};
  assert_true(kvf_core_next_deadline(producer()) == KVF_TIME_NEVER);
  ranks_publish(0, &ticket);
  uint64_t of_lease = kvf_core_next_deadline(producer());
  assert_true(of_lease > world.now_ns && of_lease <= world.now_ns + 30000 * MS);
  assert_int_equal(kvf_core_on_accepted(producer(), world.now_ns, from, &conn_id), KVF_OK);
  uint64_t of_session = kvf_core_next_deadline(producer());
  assert_true(of_session > world.now_ns && of_session <= world.now_ns + 1000 * MS);
  world.hold_reads = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_true(kvf_core_next_deadline(&world.consumer.core) <= world.now_ns + 500 * MS); /* its stall clock */
}

/* One input does a bounded amount of work, and what is left over is due at once. */
RANKS_TEST(ticks_are_bounded)
{
  kvf_core core;
  kvf_address from = {.port = 1};
  kvf_core_config config = config_of('a');
  config.options.connections_max = 65536;
  assert_int_equal(kvf_core_init(&core, &config, 1000 * MS), KVF_OK);
  for (int i = 0; i < 3000; i++) {
    uint64_t conn_id;
    assert_int_equal(kvf_core_on_accepted(&core, 1000 * MS, from, &conn_id), KVF_OK);
  }
  uint64_t now_ns = 3000 * MS;
  int ticks = 0;
  while (core.sessions.counters.timed_out < 3000) {
    uint64_t before = core.sessions.counters.timed_out;
    assert_true(kvf_core_next_deadline(&core) <= now_ns);
    kvf_core_tick(&core, now_ns);
    assert_true(core.sessions.counters.timed_out - before <= 1024);
    ticks++;
  }
  assert_true(ticks >= 3 && ticks < 30);
  assert_true(kvf_core_next_deadline(&core) == KVF_TIME_NEVER);
  kvf_core_free(&core);
}

WORLD_TEST(events_of_a_load_come_in_order_and_once)
{
  kvf_event event;
  kvf_core *consumer = &world.consumer.core;
  ranks_publish(0, &ticket);
  assert_int_equal(ranks_load(&ticket, 77), KVF_OK);
  assert_true(kvf_core_has_event(consumer));
  assert_true(kvf_core_next_event(consumer, world.now_ns, &event));
  assert_int_equal(event.kind, KVF_EVENT_LOAD);
  assert_int_equal(event.id, 77);
  assert_int_equal(event.u.report.request_id, 77);
  assert_true(kvf_core_has_event(consumer));
  assert_true(kvf_core_next_event(consumer, world.now_ns, &event));
  assert_int_equal(event.kind, KVF_EVENT_RELEASED);
  assert_int_equal(event.id, 77);
  assert_false(kvf_core_has_event(consumer));
  assert_false(kvf_core_next_event(consumer, world.now_ns, &event));
}

/* block_tokens is one field more. */
RANKS_TEST(identity_must_have_room)
{
  kvf_core core;
  kvf_core_config config = config_of('a');
  for (int i = 0; i < KVF_IDENTITY_FIELDS_MAX; i++) {
    char name[8];
    (void)snprintf(name, sizeof(name), "f%d", i);
    assert_int_equal(kvf_config_identity(&config.options, name, "v"), KVF_OK);
  }
  assert_int_equal(kvf_core_init(&core, &config, 0), KVF_LIMIT);
  config.options.identity_fields--;
  assert_int_equal(kvf_core_init(&core, &config, 0), KVF_OK);
  kvf_core_free(&core);
}

/* A name more than the table has is left out, and overwrites nothing. */
RANKS_TEST(transports_are_bounded)
{
  kvf_core core;
  kvf_core_config config = config_of('a');
  (void)snprintf(config.options.transports, sizeof(config.options.transports), "a,b,c,d,e");
  assert_int_equal(kvf_core_init(&core, &config, 0), KVF_OK);
  assert_int_equal(core.peers.transports_count, KVF_TRANSPORTS_MAX);
  assert_string_equal(core.peers.transports[KVF_TRANSPORTS_MAX - 1], "d");
  kvf_core_free(&core);
}

RANKS_TEST(lease_of_too_many_blocks_is_refused)
{
  static uint32_t none[KVF_BLOCKS_PER_LEASE_MAX + 1];
  memset(none, 0xff, sizeof(none)); /* all slid out */
  (void)open_world(NULL);
  const uint32_t counts[] = {KVF_BLOCKS_PER_LEASE_MAX, 1};
  assert_int_equal(publish(2, counts, none), KVF_LIMIT);
  assert_int_equal(producer()->leases.live, 0);
  assert_int_equal(publish(1, counts, none), KVF_OK);
}

/* It has no fence table: there is nothing to end, and nothing to store. */
RANKS_TEST(control_node_ends_no_leases)
{
  kvf_core core;
  kvf_lease lease;
  kvf_effect effect;
  kvf_core_config config = config_of('a');
  config.is_control = true;
  assert_int_equal(kvf_core_init(&core, &config, 0), KVF_OK);
  assert_int_equal(kvf_core_lease_reserve(&core, 1, 0, &lease), KVF_OK);
  assert_int_equal(kvf_core_lease_end(&core, 0, &lease), KVF_NOT_FOUND);
  assert_false(kvf_core_next_effect(&core, 0, &effect));
  kvf_core_free(&core);
}
