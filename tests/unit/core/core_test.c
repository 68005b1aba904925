/* A node's core as a whole: its life, its memory, its engine's ranks, tickets, and whose turn it is. */
#include "core/core_state.h" /* for secrets_are_wiped() */
#include "scene.h"

static kvf_core *producer(void)
{
  return c.p[0].core;
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

static kvf_core *open_core(const kvf_core_config *config)
{
  kvf_core *core = NULL;
  assert_int_equal(kvf_core_create(config, 1000 * MS, &core), KVF_OK);
  return core;
}

/* ---- life ---- */

/* A restarted control node must not use its predecessor's ids. */
TEST(first_lease_id_comes_from_the_secret)
{
  static const uint8_t names[] = {'a', 'a', 'b'};
  kvf_lease leases[3];
  for (size_t i = 0; i < 3; i++) {
    const kvf_core_config config = config_of(names[i]);
    kvf_core *core = open_core(&config);
    assert_int_equal(kvf_core_lease_reserve(core, NULL, 1, 0, &leases[i]), KVF_OK);
    assert_true(leases[i].id < KVF_LEASE_ID_MAX / 2);
    kvf_core_destroy(core);
  }
  assert_true(leases[0].id == leases[1].id);
  assert_true(leases[0].id != leases[2].id);
}

/* Blocks of another number of tokens do not pair. */
CLUSTER_TEST(block_tokens_are_part_of_the_identity)
{
  uint8_t compat[KVF_HASH_BYTES];
  cluster_open("block_tokens=32");
  memcpy(compat, c.tickets[0].compat, sizeof(compat));
  cluster_open("block_tokens=16");
  assert_memory_not_equal(compat, c.tickets[0].compat, sizeof(compat));
}

static void assert_transports(kvf_core *core, const char *names)
{
  char text[128] = "";
  for (uint32_t i = 0; kvf_core_transport(core, i) != NULL; i++) {
    (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i == 0 ? "" : ",",
                   kvf_core_transport(core, i));
  }
  assert_string_equal(text, names);
}

TEST(transports_keep_the_options_order_and_may_be_left_out)
{
  kvf_core_config config = config_of('a');
  (void)snprintf(config.options.transports, sizeof(config.options.transports), "%s", "tcp,ucx,local");
  kvf_core *core = open_core(&config);
  assert_transports(core, "tcp,ucx,local");
  kvf_core_leave_out_transport(core, 1);
  assert_transports(core, "tcp,local");
  kvf_core_leave_out_transport(core, 1);
  assert_transports(core, "tcp");
  kvf_core_destroy(core);
}

/* A name more than the table has is left out, and overwrites nothing. */
TEST(transports_are_bounded)
{
  kvf_core_config config = config_of('a');
  (void)snprintf(config.options.transports, sizeof(config.options.transports), "%s", "a,b,c,d,e");
  kvf_core *core = open_core(&config);
  assert_transports(core, "a,b,c,d");
  kvf_core_destroy(core);
}

/* P8: what has been freed holds neither the key nor what nonces are made of. */
TEST(secrets_are_wiped)
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

/* block_tokens is one field more. */
TEST(identity_must_have_room)
{
  kvf_core *core = NULL;
  kvf_core_config config = config_of('a');
  for (int i = 0; i < KVF_IDENTITY_FIELDS_MAX; i++) {
    char name[8];
    (void)snprintf(name, sizeof(name), "f%d", i);
    assert_int_equal(kvf_config_identity(&config.options, name, "v"), KVF_OK);
  }
  assert_int_equal(kvf_core_create(&config, 0, &core), KVF_LIMIT);
  assert_null(core);
  config.options.identity_fields--;
  kvf_core_destroy(open_core(&config));
}

/* ---- ranks and tickets ---- */

TEST(ranks_must_be_all_and_different)
{
  kvf_core_config config = config_of('a');
  config.options.ranks = 3;
  kvf_core *core = open_core(&config);
  kvf_rank_record records[3] = {{.rank = 2}, {.rank = 0}, {.rank = 1, .address = {.port = 7}}};
  assert_int_equal(kvf_core_set_ranks(core, records, 2), KVF_INVALID);
  for (uint32_t rank = 0; rank <= 3; rank += 3) { /* twice; one too many */
    records[2].rank = rank;
    assert_int_equal(kvf_core_set_ranks(core, records, 3), KVF_INVALID);
  }
  records[2].rank = 1;
  records[2].dealt = 2;
  assert_int_equal(kvf_core_set_ranks(core, records, 3), KVF_INVALID);
  records[2].dealt = 0;
  assert_int_equal(kvf_core_set_ranks(core, records, 3), KVF_OK);
  kvf_ticket ticket;
  uint32_t id = 1;
  const uint32_t count = 1;
  const kvf_blocks blocks = {.ids = &id, .counts = &count, .groups = 1};
  const kvf_prompt prompt = {.tokens = 1};
  assert_int_equal(kvf_core_ticket(core, &(kvf_lease){.id = 1}, &blocks, &prompt, &ticket), KVF_OK);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(ticket.rank[i].rank, i);
  }
  assert_int_equal(ticket.rank[1].address.port, 7);
  kvf_core_destroy(core);
}

static kvf_status make_ticket(kvf_core *core, const kvf_lease *lease, uint32_t groups, uint32_t tokens, kvf_ticket *out)
{
  static kvf_ticket other;
  const kvf_blocks blocks = {.ids = c.ids[0], .counts = c.tickets[0].counts, .groups = groups};
  kvf_prompt prompt = c.tickets[0].prompt;
  prompt.tokens = tokens;
  return kvf_core_ticket(core, lease, &blocks, &prompt, out == NULL ? &other : out);
}

CLUSTER_TEST(ticket_says_what_the_core_knows)
{
  kvf_ticket ticket;
  cluster_open("groups=2 group_block_tokens=16,8");
  assert_int_equal(make_ticket(producer(), &c.tickets[0].lease, 2, 64, &ticket), KVF_OK);
  assert_int_equal(ticket.ranks, 1);
  assert_memory_equal(&ticket.rank[0].incarnation, kvf_core_incarnation(producer()), sizeof(kvf_incarnation));
  assert_int_equal(ticket.fields, 2); /* model and block_tokens */
  assert_int_equal(ticket.block_tokens, 16);
  assert_int_equal(ticket.ttl_ms, 30000);
  assert_int_equal(ticket.groups, 2);
  assert_int_equal(ticket.group_tokens[0], 16);
  assert_int_equal(ticket.group_tokens[1], 8);
  assert_int_equal(ticket.counts[1], 8);
  assert_ptr_equal(ticket.ids, c.ids[0]);
  assert_int_equal(make_ticket(producer(), &c.tickets[0].lease, 1, 64, NULL), KVF_INVALID); /* the engine has two */
  assert_int_equal(make_ticket(producer(), &c.tickets[0].lease, 3, 64, NULL), KVF_INVALID);
}

CLUSTER_TEST(ticket_needs_ranks_blocks_and_tokens)
{
  cluster_open("groups=2");
  const kvf_lease *lease = &c.tickets[0].lease;
  assert_int_equal(make_ticket(c.d.core, lease, 2, 64, NULL), KVF_INVALID);
  assert_int_equal(make_ticket(producer(), lease, 0, 64, NULL), KVF_INVALID);
  assert_int_equal(make_ticket(producer(), lease, KVF_GROUPS_MAX + 1, 64, NULL), KVF_LIMIT);
  assert_int_equal(make_ticket(producer(), lease, 2, 0, NULL), KVF_INVALID);
  assert_int_equal(make_ticket(producer(), lease, 2, 64, NULL), KVF_OK);
}

/* Eight of the first ticket's, and those that are reserved until they are named. */
CLUSTER_TEST(a_ticket_names_the_blocks_of_its_lease)
{
  kvf_lease lease;
  cluster_open("groups=2");
  assert_int_equal(kvf_core_lease_reserve(producer(), NULL, 5, 0, &lease), KVF_OK);
  scene("stats P0 lease_blocks > 13\n");
  assert_int_equal(make_ticket(producer(), &lease, 2, 64, NULL), KVF_OK);
  scene("stats P0 lease_blocks > 8\n");
}

CLUSTER_TEST(lease_tokens_differ)
{
  kvf_lease lease;
  cluster_open("");
  assert_int_equal(kvf_core_lease_reserve(producer(), NULL, 1, 0, &lease), KVF_OK);
  assert_memory_not_equal(lease.token, c.tickets[0].lease.token, sizeof(lease.token));
  assert_int_equal(kvf_core_lease_release(producer(), lease.id), KVF_OK);
  assert_int_equal(kvf_core_lease_release(producer(), lease.id), KVF_NOT_FOUND);
}

/* ---- publication ---- */

static kvf_status publish(uint32_t groups, const uint32_t *counts, const uint32_t *ids)
{
  const kvf_blocks blocks = {.ids = ids, .counts = counts, .groups = groups};
  return kvf_core_publish(producer(), c.now_ns, &c.tickets[0].lease, &blocks, 1, 2, false);
}

CLUSTER_TEST(blocks_must_be_of_the_memory)
{
  static const uint32_t counts[] = {1, 2, 1};
  static const uint32_t past[] = {0, 1, CLUSTER_BLOCKS, 0};
  static const uint32_t good[] = {CLUSTER_BLOCKS - 1, KVF_BLOCK_NONE, 0, 0};
  cluster_open("groups=2");
  assert_int_equal(publish(0, counts, good), KVF_INVALID);
  assert_int_equal(publish(3, counts, good), KVF_INVALID); /* the memory has two */
  assert_int_equal(publish(2, counts, past), KVF_INVALID);
  scene("stats P0 leases_live > 0\n");
  assert_int_equal(publish(2, counts, good), KVF_OK);
}

/* A stage of a pipeline may have no layer of a group: its block ids name nothing here. */
CLUSTER_TEST(groups_without_memory_take_any_block)
{
  static const uint32_t counts[] = {2, 2, 1};
  uint32_t ids[] = {0, 1, UINT32_MAX - 1, UINT32_MAX - 1, 7};
  cluster_open("ranks=2 stages=0x04 groups=2 layers=6 blocks=1");
  assert_int_equal(publish(KVF_GROUPS_MAX + 1, counts, ids), KVF_INVALID);
  ids[1] = CLUSTER_BLOCKS;
  assert_int_equal(publish(3, counts, ids), KVF_INVALID);
  ids[1] = 1;
  assert_int_equal(publish(3, counts, ids), KVF_OK);
}

static void assert_record(kvf_core *core, uint32_t rank, uint32_t first, uint32_t count, uint32_t dealt)
{
  const kvf_rank_record record = kvf_core_record(core, &(kvf_address){.port = 7}, &(kvf_address){.port = 0});
  assert_int_equal(record.rank, rank);
  assert_int_equal(record.address.port, 7);
  assert_int_equal(record.layers.first, first);
  assert_int_equal(record.layers.count, count);
  assert_int_equal(record.dealt, dealt);
}

CLUSTER_TEST(a_record_says_which_layers_and_dealt_tokens)
{
  cluster_open("ranks=4 stages=0x02 dealt=2 layers=6");
  for (uint32_t rank = 0; rank < 4; rank++) {
    assert_record(c.p[rank].core, rank, rank < 2 ? 0 : 2, rank < 2 ? 2 : 4, 2);
  }
  assert_true(cluster_clear_memory(&c.p[0]));
  assert_record(producer(), 0, 0, 0, 1);
}

static kvf_welcome welcome_of(uint32_t regions)
{
  kvf_welcome welcome = {.ranks = 1, .block_tokens = 16, .regions = calloc(regions, sizeof(kvf_region_layout))};
  welcome.regions_count = regions;
  return welcome;
}

/* Regions of a group may differ in length: a block must be in all of them. */
TEST(smallest_region_bounds_its_group)
{
  kvf_lease lease;
  const kvf_core_config config = config_of('a');
  kvf_core *core = open_core(&config);
  kvf_welcome welcome = welcome_of(2);
  welcome.regions[0] = (kvf_region_layout){.block_bytes = 8, .heads = 2, .heads_total = 2, .blocks = 9};
  welcome.regions[1] = (kvf_region_layout){.block_bytes = 4, .heads = 2, .heads_total = 2, .blocks = 5};
  uint32_t count = 1;
  uint32_t block = 5;
  const kvf_blocks blocks = {.ids = &block, .counts = &count, .groups = 1};
  assert_int_equal(kvf_core_lease_reserve(core, NULL, 1, 0, &lease), KVF_OK);
  assert_int_equal(kvf_core_publish(core, 0, &lease, &blocks, 1, 2, false), KVF_INVALID); /* no memory at all */
  assert_int_equal(kvf_core_set_memory(core, &welcome), KVF_OK);
  assert_int_equal(kvf_core_publish(core, 0, &lease, &blocks, 1, 2, false), KVF_INVALID);
  block = 4;
  assert_int_equal(kvf_core_publish(core, 0, &lease, &blocks, 1, 2, false), KVF_OK);
  kvf_core_destroy(core);
}

/* P1, P5: the engine hears that the blocks are its own again once "over" has been stored, and once only. */
CLUSTER_TEST(blocks_come_back_after_over_is_stored)
{
  kvf_effect effect;
  cluster_open("published");
  const kvf_lease *lease = &c.tickets[0].lease;
  assert_int_equal(kvf_core_lease_end(producer(), c.now_ns, lease), KVF_OK);
  assert_false(kvf_core_has_event(producer()));
  assert_true(kvf_core_next_effect(producer(), c.now_ns, &effect));
  assert_int_equal(effect.kind, KVF_EFFECT_STORE);
  assert_true(effect.store.entry.word == kvf_fence_word_ended(lease->id));
  assert_false(kvf_core_has_event(producer()));
  assert_false(kvf_core_next_event(producer(), c.now_ns, &c.event));
  kvf_core_on_stored(producer(), &effect.store);
  assert_true(kvf_core_has_event(producer()));
  assert_true(kvf_core_next_event(producer(), c.now_ns, &c.event));
  assert_int_equal(c.event.kind, KVF_EVENT_LEASE_ENDED);
  assert_true(c.event.id == lease->id);
  assert_int_equal(c.event.user, 2);
  assert_int_equal(c.event.u.lease_end, KVF_LEASE_END_REVOKED);
  scene("end A > not_found\n");
}

/* It has no fence table: there is nothing to end, and nothing to store. */
TEST(control_node_ends_no_leases)
{
  kvf_lease lease;
  kvf_effect effect;
  kvf_core_config config = config_of('a');
  config.is_control = true;
  kvf_core *core = open_core(&config);
  assert_int_equal(kvf_core_lease_reserve(core, NULL, 1, 0, &lease), KVF_OK);
  assert_int_equal(kvf_core_lease_end(core, 0, &lease), KVF_NOT_FOUND);
  assert_false(kvf_core_next_effect(core, 0, &effect));
  kvf_core_destroy(core);
}

CLUSTER_TEST(lease_of_too_many_blocks_is_refused)
{
  static uint32_t none[KVF_BLOCKS_PER_LEASE_MAX + 1];
  static const uint32_t counts[] = {KVF_BLOCKS_PER_LEASE_MAX, 1};
  memset(none, 0xff, sizeof(none)); /* all slid out */
  cluster_open("groups=2");
  assert_int_equal(publish(2, counts, none), KVF_LIMIT);
  scene("stats P0 leases_live > 0\n");
  assert_int_equal(publish(1, counts, none), KVF_OK);
}

/* ---- memory ---- */

/* Of two groups, and then of one. */
CLUSTER_TEST(there_is_one_memory_at_a_time)
{
  static const uint32_t counts[] = {1, 1};
  static const uint32_t ids[] = {0, 0};
  kvf_welcome none = {0};
  cluster_open("groups=2");
  assert_int_equal(kvf_core_set_memory(producer(), &none), KVF_EXISTS);
  assert_true(cluster_clear_memory(&c.p[0]));
  kvf_welcome welcome = welcome_of(1);
  welcome.regions[0] =
      (kvf_region_layout){.stride_bytes = 64, .block_bytes = 64, .blocks = 16, .heads = 1, .heads_total = 1};
  assert_int_equal(kvf_core_set_memory(producer(), &welcome), KVF_OK);
  assert_int_equal(publish(2, counts, ids), KVF_INVALID);
  assert_int_equal(publish(1, counts, ids), KVF_OK);
}

CLUSTER_TEST(ranks_share_the_heads_evenly)
{
  kvf_region_layout region = {.stride_bytes = 64, .block_bytes = 64, .blocks = 16, .heads = 1, .heads_total = 3};
  kvf_welcome welcome = {.ranks = 2, .regions_count = 1, .regions = &region};
  cluster_open("ranks=2 heads=2");
  assert_true(cluster_clear_memory(&c.p[0]));
  assert_int_equal(kvf_core_set_memory(producer(), &welcome), KVF_INVALID);
}

SCENE(clearing_memory_ends_its_leases, "published",
      "clear P0 > P0 ends A: revoked\n"
      "log P0 unread > lease A has ended unread: this engine has taken its blocks back\n"
      "fence A P0 > ended\n"
      "publish A > invalid\n"
      "clear P0\n")

/* ---- time ---- */

CLUSTER_TEST(deadline_is_the_nearest_of_all)
{
  cluster_open("hold=reads");
  assert_true(kvf_core_next_deadline(producer()) == KVF_TIME_NEVER);
  assert_int_equal(cluster_publish(0, &c.tickets[0]), KVF_OK);
  const uint64_t of_lease = kvf_core_next_deadline(producer());
  assert_true(of_lease > c.now_ns && of_lease <= c.now_ns + 30000 * MS);
  (void)cluster_accept(&c.p[0], 1);
  const uint64_t of_session = kvf_core_next_deadline(producer());
  assert_true(of_session > c.now_ns && of_session <= c.now_ns + 1000 * MS);
  assert_int_equal(cluster_load("A", 1), KVF_OK);
  assert_true(kvf_core_next_deadline(c.d.core) <= c.now_ns + 500 * MS); /* its stall clock */
}

/* One input does a bounded amount of work, and what is left over is due at once. */
CLUSTER_TEST(ticks_are_bounded)
{
  cluster_open("connections_max=65536");
  for (int i = 0; i < 3000; i++) {
    (void)cluster_accept(&c.p[0], 1);
  }
  c.now_ns += 2000 * MS;
  uint64_t timed_out = 0;
  int ticks = 0;
  for (; timed_out < 3000; ticks++) {
    assert_true(kvf_core_next_deadline(producer()) <= c.now_ns);
    kvf_core_tick(producer(), c.now_ns);
    const uint64_t now = cluster_stat(&c.p[0], "sessions_timed_out", "");
    assert_true(now - timed_out <= 1024);
    timed_out = now;
  }
  assert_in_range(ticks, 3, 29);
  assert_true(kvf_core_next_deadline(producer()) == KVF_TIME_NEVER);
}
