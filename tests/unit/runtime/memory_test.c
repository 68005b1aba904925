/* kvf_node_register() and its end, kvf_node_address(), kvf_node_set_ranks(). */
#include <pthread.h>

#include "core/core_state.h"
#include "pair.h"
#include "runtime/pump.h"
#include "test.h"

#define BLOCKS 8
#define BLOCK_BYTES 64

static uint8_t pool[BLOCKS * BLOCK_BYTES];

static kvf_node *open_node(const char *listen, uint32_t rank, uint32_t ranks)
{
  kvf_config config;
  kvf_node *node = NULL;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_config_init(&config);
  config.rank = rank;
  config.ranks = ranks;
  config.log_level = KVF_LOG_ERROR;
  assert_int_equal(kvf_config_set(&config, "listen", listen, message), KVF_OK);
  assert_int_equal(kvf_node_open(&config, &node, message), KVF_OK);
  return node;
}

static kvf_region region_of(uint32_t group)
{
  return (kvf_region){.base = pool,
                      .stride_bytes = BLOCK_BYTES,
                      .block_bytes = BLOCK_BYTES,
                      .blocks = BLOCKS,
                      .heads = 2,
                      .heads_total = 2,
                      .group = group};
}

TEST(regions_that_make_no_sense_are_refused)
{
  kvf_node *node = open_node("127.0.0.1", 0, 1);
  kvf_region regions[2] = {region_of(0), region_of(0)};
  assert_int_equal(kvf_node_register(node, NULL, 1), KVF_INVALID);
  assert_int_equal(kvf_node_register(node, regions, 0), KVF_INVALID);
  regions[1].base = NULL;
  assert_int_equal(kvf_node_register(node, regions, 2), KVF_INVALID);
  regions[1] = region_of(0);
  memset(&regions[1].memory, 1, sizeof(regions[1].memory)); /* no enumerator, as a C caller may pass */
  assert_int_equal(kvf_node_register(node, regions, 2), KVF_INVALID);
  regions[1] = region_of(0);
  regions[1].blocks = 0;
  assert_int_equal(kvf_node_register(node, regions, 2), KVF_INVALID);
  regions[1] = region_of(0);
  regions[1].heads = 3; /* block_bytes is no multiple */
  assert_int_equal(kvf_node_register(node, regions, 2), KVF_INVALID);
  regions[1] = region_of(0);
  regions[1].heads_total = 4;
  assert_int_equal(kvf_node_register(node, regions, 2), KVF_INVALID);
  regions[1] = region_of(2); /* and no group 1 */
  assert_int_equal(kvf_node_register(node, regions, 2), KVF_INVALID);
  regions[1] = region_of(1);
  regions[1].stride_bytes = BLOCK_BYTES - 1;
  assert_int_equal(kvf_node_register(node, regions, 2), KVF_INVALID);
  assert_int_equal(kvf_node_unregister(node), KVF_OK);
  regions[1] = region_of(1); /* and nothing of it has stuck */
  assert_int_equal(kvf_node_register(node, regions, 2), KVF_OK);
  kvf_node_close(node);
}

TEST(layouts_that_make_no_sense_are_refused)
{
  kvf_node *node = open_node("127.0.0.1", 0, 1);
  kvf_region region = {.base = pool, .stride_bytes = BLOCK_BYTES, .block_bytes = BLOCK_BYTES, .blocks = BLOCKS};
  kvf_part part = {.unit_bytes = BLOCK_BYTES, .rows = 1, .block_tokens = 16, .heads = 1, .heads_total = 1};
  kvf_layout layout = {.parts = &part, .parts_count = 1, .share = {.heads = 1, .heads_total = 1}};
  assert_int_equal(kvf_node_register_layout(node, &region, 1, NULL), KVF_INVALID);
  layout.parts_count = 0;
  assert_int_equal(kvf_node_register_layout(node, &region, 1, &layout), KVF_INVALID);
  layout.parts_count = KVF_PARTS_MAX + 1;
  assert_int_equal(kvf_node_register_layout(node, &region, 1, &layout), KVF_LIMIT);
  layout.parts_count = 1;
  part.unit_bytes++;
  assert_int_equal(kvf_node_register_layout(node, &region, 1, &layout), KVF_INVALID);
  part.unit_bytes--;
  assert_int_equal(kvf_node_register_layout(node, &region, 1, &layout), KVF_OK);
  assert_int_equal(kvf_node_register_layout(node, &region, 1, &layout), KVF_EXISTS);
  kvf_node_close(node);
}

TEST(number_of_regions_is_bounded)
{
  static kvf_region regions[KVF_REGIONS_MAX + 1];
  kvf_node *node = open_node("127.0.0.1", 0, 1);
  for (size_t i = 0; i <= KVF_REGIONS_MAX; i++) {
    regions[i] = region_of(0);
  }
  assert_int_equal(kvf_node_register(node, regions, KVF_REGIONS_MAX + 1), KVF_LIMIT);
  assert_int_equal(kvf_node_register(node, regions, KVF_REGIONS_MAX), KVF_OK);
  kvf_node_close(node);
}

static uint64_t generation_of(const kvf_node *node)
{
  const kvf_fence_head *head = node->memory.fence_table;
  return head->generation;
}

/* P1: peers tell one registration from another. */
TEST(there_is_one_registration_at_a_time)
{
  kvf_node *node = open_node("127.0.0.1", 0, 1);
  kvf_region region = region_of(0);
  assert_int_equal(kvf_node_unregister(node), KVF_OK); /* there is none: nothing to do */
  assert_true(generation_of(node) == 0);
  for (uint64_t generation = 1; generation <= 3; generation++) {
    assert_int_equal(kvf_node_register(node, &region, 1), KVF_OK);
    assert_true(generation_of(node) == generation);
    assert_true(node->core->pool.welcome.generation == generation);
    assert_int_equal(kvf_node_register(node, &region, 1), KVF_EXISTS);
    assert_int_equal(kvf_node_unregister(node), KVF_OK);
    assert_int_equal(kvf_node_unregister(node), KVF_OK);
    assert_true(generation_of(node) == 0);
  }
  kvf_node_close(node);
}

/* A control node has what its memory needs once it has memory, and not before. */
TEST(nodes_that_do_not_listen_may_have_memory)
{
  kvf_node *node = open_node("", 0, 1);
  const kvf_region region = region_of(0);
  assert_null(node->memory.fence_table);
  assert_int_equal(node->transports_count, 0);
  assert_true(node->core->peers.is_control);
  for (int turn = 0; turn < 2; turn++) {
    assert_int_equal(kvf_node_register(node, &region, 1), KVF_OK);
    assert_int_equal(node->transports_count, 2);
    assert_false(node->core->peers.is_control);
    assert_int_equal(node->core->pool.welcome.transports_count, 0); /* nobody is told of it */
    assert_int_equal(kvf_node_unregister(node), KVF_OK);
  }
  kvf_node_close(node);
}

/* What a consumer is told of it: the layouts, and a description for each transport, in the option's order. */
TEST(peers_are_told_what_is_registered)
{
  kvf_node *node = open_node("127.0.0.1", 0, 1);
  kvf_region regions[2] = {region_of(0), region_of(1)};
  assert_int_equal(kvf_node_register(node, regions, 2), KVF_OK);
  const kvf_welcome *welcome = &node->core->pool.welcome;
  assert_int_equal(welcome->regions_count, 2);
  assert_int_equal(welcome->regions[1].group, 1);
  assert_int_equal(welcome->regions[1].blocks, BLOCKS);
  assert_int_equal(welcome->transports_count, 2);
  assert_string_equal(welcome->transports[0].name, "local");
  assert_string_equal(welcome->transports[1].name, "tcp");
  assert_true(welcome->transports[0].description_bytes > 0);
  assert_true(welcome->transports[1].description_bytes > 0);
  assert_int_equal(kvf_node_unregister(node), KVF_OK);
  assert_int_equal(welcome->regions_count, 0);
  kvf_node_close(node);
}

typedef struct racer {
  kvf_node *node;
  kvf_status status;
} racer;

static void *register_memory(void *context)
{
  racer *r = context;
  kvf_region region = region_of(0);
  r->status = kvf_node_register(r->node, &region, 1);
  return NULL;
}

TEST(one_of_two_registrations_wins)
{
  for (int round = 0; round < 20; round++) {
    kvf_node *node = open_node("127.0.0.1", 0, 1);
    racer racers[2] = {{.node = node}, {.node = node}};
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) {
      assert_int_equal(pthread_create(&threads[i], NULL, register_memory, &racers[i]), 0);
    }
    for (size_t i = 0; i < 2; i++) {
      assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    kvf_status loser = racers[0].status == KVF_OK ? racers[1].status : racers[0].status;
    assert_true(racers[0].status == KVF_OK || racers[1].status == KVF_OK);
    assert_int_equal(loser, KVF_EXISTS);
    kvf_node_close(node);
  }
}

/* P4: until a load's released has been taken its destination is not the caller's to unmap. */
TEST(end_of_registration_waits_for_loads)
{
  pair p;
  pair_ticket ticket;
  pair_open(&p, NULL);
  pair_offer(&p.producer, 0, 8, 1, false, &ticket);
  uint64_t id = pair_begin(&p.consumer, &ticket, 20);
  assert_int_equal(kvf_node_unregister(p.consumer.node), KVF_AGAIN);
  assert_int_equal(kvf_node_unregister(p.consumer.node), KVF_AGAIN);
  assert_int_equal(pair_wait(&p.consumer, id).report.status, KVF_ABORTED);
  assert_int_equal(kvf_node_unregister(p.consumer.node), KVF_OK);
  assert_int_equal(pair_load(&p.consumer, &ticket, id, 20), KVF_INVALID);
  pair_close(&p);
}

/* ---- the engine ---- */

/* Once there is memory, which layers that has: of regions, one each. */
TEST(address_says_what_is_registered)
{
  uint8_t bytes[KVF_ADDRESS_BYTES_MAX];
  size_t count = 0;
  kvf_rank_record record;
  kvf_node *node = open_node("127.0.0.1", 0, 1);
  const kvf_region region = region_of(0);
  for (int registered = 0; registered < 2; registered++) {
    assert_int_equal(kvf_node_address(node, bytes, sizeof(bytes), &count), KVF_OK);
    assert_int_equal(kvf_rank_record_decode(bytes, count, &record), KVF_OK);
    assert_int_equal(record.layers.first, 0);
    assert_int_equal(record.layers.count, registered);
    assert_int_equal(record.dealt, 1);
    assert_int_equal(kvf_node_register(node, &region, 1), registered ? KVF_EXISTS : KVF_OK);
  }
  kvf_node_close(node);
}

TEST(address_says_who_listens_where)
{
  uint8_t bytes[KVF_ADDRESS_BYTES_MAX];
  size_t count = 0;
  kvf_rank_record record;
  kvf_node *node = open_node("127.0.0.1", 2, 4);
  assert_int_equal(kvf_node_address(node, bytes, sizeof(bytes), &count), KVF_OK);
  assert_int_equal(kvf_rank_record_decode(bytes, count, &record), KVF_OK);
  assert_int_equal(record.rank, 2);
  assert_int_not_equal(record.address.port, 0);
  assert_memory_equal(&record.incarnation, &node->core->context.self.incarnation, sizeof(record.incarnation));
  assert_int_equal(kvf_node_address(node, bytes, count - 1, &count), KVF_LIMIT);
  kvf_node_close(node);
  node = open_node("", 0, 1);
  assert_int_equal(kvf_node_address(node, bytes, sizeof(bytes), &count), KVF_INVALID);
  kvf_node_close(node);
}

TEST(ranks_come_in_any_order)
{
  uint8_t records[3 * KVF_ADDRESS_BYTES_MAX];
  size_t bytes[3];
  size_t total = 0;
  kvf_node *ranks[3];
  kvf_node *control = open_node("", 0, 3);
  for (uint32_t i = 0; i < 3; i++) {
    ranks[i] = open_node("127.0.0.1", 2 - i, 3);
    assert_int_equal(kvf_node_address(ranks[i], records + total, KVF_ADDRESS_BYTES_MAX, &bytes[i]), KVF_OK);
    total += bytes[i];
  }
  assert_int_equal(kvf_node_set_ranks(control, records, bytes, 3), KVF_OK);
  for (uint32_t i = 0; i < 3; i++) {
    assert_memory_equal(&control->core->engine[2 - i].incarnation, &ranks[i]->core->context.self.incarnation,
                        sizeof(kvf_incarnation));
  }
  assert_int_equal(kvf_node_set_ranks(control, records, bytes, 2), KVF_INVALID);
  memcpy(records, records + bytes[0], bytes[1]); /* one rank twice, another not at all */
  assert_int_equal(kvf_node_set_ranks(control, records, bytes, 3), KVF_INVALID);
  for (uint32_t i = 0; i < 3; i++) {
    kvf_node_close(ranks[i]);
  }
  kvf_node_close(control);
}

TEST(records_that_are_none_are_refused)
{
  uint8_t record[KVF_ADDRESS_BYTES_MAX] = {0};
  size_t bytes = 0;
  kvf_node *node = open_node("127.0.0.1", 0, 1);
  assert_int_equal(kvf_node_address(node, record, sizeof(record), &bytes), KVF_OK);
  assert_int_equal(kvf_node_set_ranks(node, NULL, &bytes, 1), KVF_INVALID);
  assert_int_equal(kvf_node_set_ranks(node, record, NULL, 1), KVF_INVALID);
  assert_int_equal(kvf_node_set_ranks(node, record, &bytes, 0), KVF_INVALID);
  assert_int_equal(kvf_node_set_ranks(node, record, &bytes, KVF_RANKS_MAX + 1), KVF_INVALID);
  for (size_t i = 0; i < bytes; i++) {
    record[i] ^= 1;
    assert_int_equal(kvf_node_set_ranks(node, record, &bytes, 1), KVF_INVALID);
    record[i] ^= 1;
  }
  size_t shorter = bytes - 1;
  assert_int_equal(kvf_node_set_ranks(node, record, &shorter, 1), KVF_INVALID);
  size_t none = 0;
  assert_int_equal(kvf_node_set_ranks(node, record, &none, 1), KVF_INVALID);
  assert_int_equal(kvf_node_set_ranks(node, record, &bytes, 1), KVF_OK);
  kvf_node_close(node);
}
