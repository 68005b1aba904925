/* Two nodes with checksums: what is found, what a retry saves, who has none. */
#include "pair.h"
#include "test.h"

#define BLOCKS 8

static void open_nodes(pair *p, const char *transport, const char *producer, const char *consumer)
{
  const pair_option producer_options[] = {{"transports", transport}, {"checksum", producer}, {NULL, NULL}};
  const pair_option consumer_options[] = {{"transports", transport},
                                          {"checksum", consumer},
                                          {"backoff_min_ms", "300"},
                                          {"backoff_max_ms", "300"},
                                          {NULL, NULL}};
  pair_open_node(&p->producer, producer_options);
  pair_open_node(&p->consumer, consumer_options);
}

static kvf_report wait_released(pair *p, uint64_t id)
{
  pair_result result = {0};
  assert_true(pair_poll_load(&p->consumer, id, UINT64_C(10000000), &result));
  return result.report;
}

/* A load without a request: its producer is not told, and the lease stays. */
static kvf_report load(pair *p, const pair_ticket *ticket, uint64_t id)
{
  assert_int_equal(pair_load(&p->consumer, ticket, id, 20), KVF_OK);
  return wait_released(p, id);
}

static void expect_good(pair *p, const pair_ticket *ticket, uint64_t id, uint32_t seed)
{
  kvf_report report = load(p, ticket, id);
  assert_int_equal(report.status, KVF_OK);
  assert_true(pair_holds_all(&p->consumer, 20, BLOCKS, seed));
}

static uint8_t *byte_of(pair *p, const pair_ticket *ticket, uint32_t region, uint32_t position, uint32_t offset)
{
  return p->producer.pool[region] + (size_t)ticket->blocks[position] * PAIR_BLOCK_BYTES + offset;
}

/* Memory goes wrong behind everybody's back, ThreadSanitizer's too. */
__attribute__((no_sanitize("thread"))) static void flip(volatile uint8_t *byte, uint8_t bits)
{
  *byte = (uint8_t)(*byte ^ bits);
}

/* And a ticket of blocks that have been loaded once. */
static void open_loaded(pair *p, const char *transports, const char *producer, const char *consumer,
                        pair_ticket *ticket)
{
  open_nodes(p, transports, producer, consumer);
  pair_offer(&p->producer, 0, BLOCKS, 1, true, ticket);
  expect_good(p, ticket, 900, 1);
}

static void wrong_bytes_are_found(void **state)
{
  pair p;
  pair_ticket ticket;
  open_loaded(&p, *state, "on", "on", &ticket);
  assert_int_equal(pair_stat(&p.consumer, "blocks_verified", ""), BLOCKS);
  assert_int_equal(pair_stat(&p.consumer, "blocks_unverified", ""), 0);
  assert_int_equal(pair_stat(&p.consumer, "checksum_mismatches", ""), 0);

  flip(byte_of(&p, &ticket, 2, 5, PAIR_BLOCK_BYTES - 1), 1);
  kvf_report report = load(&p, &ticket, 901);
  assert_int_equal(report.status, KVF_CHECKSUM);
  assert_int_equal(report.prefix, 5);
  assert_int_equal(pair_stat(&p.consumer, "checksum_mismatches", ""), 2);
  assert_int_equal(pair_stat(&p.consumer, "loads_failed", "checksum"), 1);
  assert_true(pair_holds_all(&p.consumer, 20, 5, 1));
  pair_close(&p);
}

static void a_retry_saves_what_is_mended(void **state)
{
  pair p;
  pair_ticket ticket;
  open_loaded(&p, *state, "on", "on", &ticket);
  uint8_t *byte = byte_of(&p, &ticket, 0, 0, 17);
  flip(byte, 0x10);
  assert_int_equal(pair_load(&p.consumer, &ticket, 901, 20), KVF_OK);
  assert_true(pair_wait_stat(&p.consumer, "checksum_mismatches", "", 1, 5000));
  flip(byte, 0x10);
  assert_int_equal(wait_released(&p, 901).status, KVF_OK);
  assert_int_equal(pair_stat(&p.consumer, "checksum_mismatches", ""), 1);
  pair_close(&p);
}

/* The whole way: the verdict is to recompute what is missing, and the lease ends. */
static void a_request_keeps_the_prefix(void **state)
{
  pair p;
  pair_ticket ticket;
  pair_result result;
  open_loaded(&p, *state, "on", "on", &ticket);
  flip(byte_of(&p, &ticket, 1, 3, 0), 1);
  assert_int_equal(pair_fetch(&p.consumer, &ticket, 20, &result), KVF_CHECKSUM);
  assert_int_equal(result.verdict.status, KVF_CHECKSUM);
  assert_int_equal(result.report.prefix, 3);
  (void)pair_wait_lease_end(&p.producer, ticket.lease.id, 5000);
  pair_close(&p);
}

static void who_has_none_is_loaded_from_all_the_same(void **state)
{
  pair p;
  pair_ticket ticket;
  open_loaded(&p, *state, "off", "on", &ticket);
  expect_good(&p, &ticket, 901, 1);
  assert_int_equal(pair_stat(&p.consumer, "blocks_verified", ""), 0);
  assert_int_equal(pair_stat(&p.consumer, "blocks_unverified", ""), 2 * BLOCKS);
  assert_true(pair_wait_log(&p.consumer, "it has no checksums", NULL, 1000));
  pair_close(&p);
}

static void who_wants_none_gets_none(void **state)
{
  pair p;
  pair_ticket ticket;
  open_loaded(&p, *state, "on", "off", &ticket);
  flip(byte_of(&p, &ticket, 1, 3, 0), 1);
  assert_int_equal(load(&p, &ticket, 901).status, KVF_OK);
  assert_int_equal(pair_stat(&p.consumer, "blocks_verified", ""), 0);
  assert_int_equal(pair_stat(&p.consumer, "blocks_unverified", ""), 0);
  assert_false(pair_logged(&p.consumer, "checksums", NULL));
  pair_close(&p);
}

/* Of the regions: heads that are split, and what every rank has. */
static void lay_out(kvf_part parts[PAIR_REGIONS])
{
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    const uint32_t heads = i == 1 ? 1 : 4;
    parts[i] = (kvf_part){.layer = i,
                          .kind = i == 1 ? KVF_PART_LATENT : KVF_PART_KV,
                          .region = i,
                          .unit_bytes = PAIR_BLOCK_BYTES / heads,
                          .head_bytes = PAIR_BLOCK_BYTES / heads,
                          .rows = 1,
                          .block_tokens = PAIR_BLOCK_TOKENS,
                          .heads = heads,
                          .heads_total = heads};
  }
}

static void wrong_bytes_of_any_part_are_found(void **state)
{
  pair p;
  pair_ticket ticket;
  kvf_part parts[PAIR_REGIONS];
  lay_out(parts);
  const kvf_layout layout = {.parts = parts, .parts_count = PAIR_REGIONS, .share = {.heads = 4, .heads_total = 4}};
  pair_layout = &layout;
  open_loaded(&p, *state, "on", "on", &ticket);
  pair_layout = NULL;
  assert_int_equal(pair_stat(&p.consumer, "blocks_verified", ""), BLOCKS);
  for (uint32_t region = 0; region < PAIR_REGIONS; region++) {
    uint8_t *byte = byte_of(&p, &ticket, region, 2 + region, region * 1500);
    flip(byte, 1);
    const kvf_report report = load(&p, &ticket, 901 + region);
    flip(byte, 1);
    assert_int_equal(report.status, KVF_CHECKSUM);
    assert_int_equal(report.prefix, 2 + region);
  }
  expect_good(&p, &ticket, 910, 1);
  pair_close(&p);
}

static void parts_without_checksums_are_refused(void **state)
{
  pair_node node;
  kvf_part parts[PAIR_REGIONS];
  kvf_layout layout = {.parts = parts, .parts_count = PAIR_REGIONS, .share = {.heads = 4, .heads_total = 4}};
  const pair_option options[] = {{"transports", *state}, {"checksum", "on"}, {NULL, NULL}};
  pair_open_node(&node, options);
  assert_int_equal(kvf_node_unregister(node.node), KVF_OK);
  kvf_region regions[PAIR_REGIONS];
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    regions[i] = (kvf_region){.base = node.bases[i],
                              .stride_bytes = PAIR_BLOCK_BYTES,
                              .block_bytes = PAIR_BLOCK_BYTES,
                              .blocks = PAIR_BLOCKS};
  }
  lay_out(parts);
  parts[1].rows = 2;
  parts[1].unit_bytes = parts[1].row_bytes = PAIR_BLOCK_BYTES / 2;
  assert_int_equal(kvf_node_register_layout(node.node, regions, PAIR_REGIONS, &layout), KVF_INVALID);
  assert_true(pair_wait_log(&node, "option checksum: no checksums of part 1 (layer 1, region 1)", "rows", 5000));
  lay_out(parts);
  assert_int_equal(kvf_node_register_layout(node.node, regions, PAIR_REGIONS, &layout), KVF_OK);
  pair_close_node(&node);
}

/* As with a prefix cache: two live leases of the same blocks; then other bytes in them, under a third. */
static void blocks_are_published_again(void **state)
{
  pair p;
  pair_ticket first;
  pair_ticket second;
  pair_ticket third;
  open_nodes(&p, *state, "on", "on");
  pair_offer(&p.producer, 0, BLOCKS, 1, true, &first);
  pair_offer(&p.producer, 0, BLOCKS, 1, true, &second);
  expect_good(&p, &first, 900, 1);
  expect_good(&p, &second, 901, 1);
  assert_int_equal(kvf_lease_end(p.producer.node, &first.lease), KVF_OK);
  assert_int_equal(kvf_lease_end(p.producer.node, &second.lease), KVF_OK);
  pair_offer(&p.producer, 0, BLOCKS, 2, true, &third);
  expect_good(&p, &third, 902, 2);
  assert_int_equal(pair_stat(&p.consumer, "checksum_mismatches", ""), 0);
  pair_close(&p);
}

/* Leases end, and the node with them, while their blocks are being checksummed. */
static void ends_while_it_checksums(void **state)
{
  for (uint32_t round = 0; round < 20; round++) {
    pair_node node;
    pair_ticket tickets[8];
    const pair_option options[] = {{"transports", *state}, {"checksum", "on"}, {NULL, NULL}};
    pair_open_node(&node, options);
    for (uint32_t i = 0; i < 8; i++) {
      pair_offer(&node, 0, 30, i, true, &tickets[i]);
      if (i % 2 == 0) {
        assert_int_equal(kvf_lease_end(node.node, &tickets[i].lease), KVF_OK);
        (void)pair_wait_lease_end(&node, tickets[i].lease.id, 5000);
      }
    }
    if (round % 2 == 0) {
      assert_int_equal(kvf_node_unregister(node.node), KVF_OK);
    }
    pair_close_node(&node);
  }
}

#define ON(name, test) {#test "/" name, test, NULL, NULL, (void *)(uintptr_t)(name)}
#define BOTH(test) ON("local", test), ON("tcp", test)

int main(void)
{
  const struct CMUnitTest tests[] = {
      BOTH(wrong_bytes_are_found),
      BOTH(a_retry_saves_what_is_mended),
      BOTH(a_request_keeps_the_prefix),
      BOTH(who_has_none_is_loaded_from_all_the_same),
      BOTH(who_wants_none_gets_none),
      BOTH(blocks_are_published_again),
      BOTH(ends_while_it_checksums),
      BOTH(wrong_bytes_of_any_part_are_found),
      ON("local", parts_without_checksums_are_refused),
  };
  return cmocka_run_group_tests_name("runtime/checksummer", tests, NULL, NULL);
}
