/* Two nodes with checksums: what is found, what a retry saves, who has none. */
#include "pair.h"
#include "test.h"

#define BLOCKS 8

static pair_ticket ticket;

static void open_nodes(const char *transport, const char *producer, const char *consumer)
{
  const pair_option producer_options[] = {{"transports", transport}, {"checksum", producer}, {NULL, NULL}};
  const pair_option consumer_options[] = {{"transports", transport},
                                          {"checksum", consumer},
                                          {"backoff_min_ms", "300"},
                                          {"backoff_max_ms", "300"},
                                          {NULL, NULL}};
  pair_open_node(&p.producer, producer_options);
  pair_open_node(&p.consumer, consumer_options);
}

static kvf_report wait_released(uint64_t id)
{
  pair_result result = {0};
  assert_true(pair_poll_load(&p.consumer, id, UINT64_C(10000000), &result));
  return result.report;
}

/* A load without a request: its producer is not told, and the lease stays. */
static kvf_report load(const pair_ticket *from, uint64_t id)
{
  assert_int_equal(pair_load(&p.consumer, from, id, 20), KVF_OK);
  return wait_released(id);
}

static void expect_good(const pair_ticket *from, uint64_t id, uint32_t seed)
{
  kvf_report report = load(from, id);
  assert_int_equal(report.status, KVF_OK);
  assert_true(pair_holds_all(&p.consumer, 20, BLOCKS, seed));
}

static uint8_t *byte_of(uint32_t region, uint32_t position, uint32_t offset)
{
  return p.producer.pool[region] + (size_t)ticket.blocks[position] * PAIR_BLOCK_BYTES + offset;
}

/* Memory goes wrong behind everybody's back, ThreadSanitizer's too. */
__attribute__((no_sanitize("thread"))) static void flip(volatile uint8_t *byte, uint8_t bits)
{
  *byte = (uint8_t)(*byte ^ bits);
}

/* And a ticket of blocks that have been loaded once. */
static void open_loaded(const char *transports, const char *producer, const char *consumer)
{
  open_nodes(transports, producer, consumer);
  pair_offer(&p.producer, 0, BLOCKS, 1, true, &ticket);
  expect_good(&ticket, 900, 1);
}

EACH_TRANSPORT_TEST(wrong_bytes_are_found)
{
  open_loaded(transport, "on", "on");
  assert_int_equal(pair_stat(&p.consumer, "blocks_verified", ""), BLOCKS);
  assert_int_equal(pair_stat(&p.consumer, "blocks_unverified", ""), 0);
  assert_int_equal(pair_stat(&p.consumer, "checksum_mismatches", ""), 0);

  flip(byte_of(2, 5, PAIR_BLOCK_BYTES - 1), 1);
  kvf_report report = load(&ticket, 901);
  assert_int_equal(report.status, KVF_CHECKSUM);
  assert_int_equal(report.prefix, 5);
  assert_int_equal(pair_stat(&p.consumer, "checksum_mismatches", ""), 2);
  assert_int_equal(pair_stat(&p.consumer, "loads_failed", "checksum"), 1);
  assert_true(pair_holds_all(&p.consumer, 20, 5, 1));
}

EACH_TRANSPORT_TEST(a_retry_saves_what_is_mended)
{
  open_loaded(transport, "on", "on");
  uint8_t *byte = byte_of(0, 0, 17);
  flip(byte, 0x10);
  assert_int_equal(pair_load(&p.consumer, &ticket, 901, 20), KVF_OK);
  assert_true(pair_wait_stat(&p.consumer, "checksum_mismatches", "", 1, 5000));
  flip(byte, 0x10);
  assert_int_equal(wait_released(901).status, KVF_OK);
  assert_int_equal(pair_stat(&p.consumer, "checksum_mismatches", ""), 1);
}

/* The whole way: the verdict is to recompute what is missing, and the lease ends. */
EACH_TRANSPORT_TEST(a_request_keeps_the_prefix)
{
  pair_result result;
  open_loaded(transport, "on", "on");
  flip(byte_of(1, 3, 0), 1);
  assert_int_equal(pair_fetch(&p.consumer, &ticket, 20, &result), KVF_CHECKSUM);
  assert_int_equal(result.verdict.status, KVF_CHECKSUM);
  assert_int_equal(result.report.prefix, 3);
  (void)pair_wait_lease_end(&p.producer, ticket.lease.id, 5000);
}

EACH_TRANSPORT_TEST(who_has_none_is_loaded_from_all_the_same)
{
  open_loaded(transport, "off", "on");
  expect_good(&ticket, 901, 1);
  assert_int_equal(pair_stat(&p.consumer, "blocks_verified", ""), 0);
  assert_int_equal(pair_stat(&p.consumer, "blocks_unverified", ""), 2 * BLOCKS);
  assert_true(pair_wait_log(&p.consumer, "it has no checksums", NULL, 1000));
}

EACH_TRANSPORT_TEST(who_wants_none_gets_none)
{
  open_loaded(transport, "on", "off");
  flip(byte_of(1, 3, 0), 1);
  assert_int_equal(load(&ticket, 901).status, KVF_OK);
  assert_int_equal(pair_stat(&p.consumer, "blocks_verified", ""), 0);
  assert_int_equal(pair_stat(&p.consumer, "blocks_unverified", ""), 0);
  assert_false(pair_logged(&p.consumer, "checksums", NULL));
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

EACH_TRANSPORT_TEST(wrong_bytes_of_any_part_are_found)
{
  kvf_part parts[PAIR_REGIONS];
  lay_out(parts);
  const kvf_layout layout = {.parts = parts, .parts_count = PAIR_REGIONS, .share = {.heads = 4, .heads_total = 4}};
  pair_layout = &layout;
  open_loaded(transport, "on", "on");
  pair_layout = NULL;
  assert_int_equal(pair_stat(&p.consumer, "blocks_verified", ""), BLOCKS);
  for (uint32_t region = 0; region < PAIR_REGIONS; region++) {
    uint8_t *byte = byte_of(region, 2 + region, region * 1500);
    flip(byte, 1);
    const kvf_report report = load(&ticket, 901 + region);
    flip(byte, 1);
    assert_int_equal(report.status, KVF_CHECKSUM);
    assert_int_equal(report.prefix, 2 + region);
  }
  expect_good(&ticket, 910, 1);
}

PAIR_TEST(parts_without_checksums_are_refused)
{
  kvf_part parts[PAIR_REGIONS];
  kvf_layout layout = {.parts = parts, .parts_count = PAIR_REGIONS, .share = {.heads = 4, .heads_total = 4}};
  const pair_option options[] = {{"transports", "local"}, {"checksum", "on"}, {NULL, NULL}};
  pair_open_node(&p.producer, options);
  assert_int_equal(kvf_node_unregister(p.producer.node), KVF_OK);
  kvf_region regions[PAIR_REGIONS];
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    regions[i] = (kvf_region){.base = p.producer.bases[i],
                              .stride_bytes = PAIR_BLOCK_BYTES,
                              .block_bytes = PAIR_BLOCK_BYTES,
                              .blocks = PAIR_BLOCKS};
  }
  lay_out(parts);
  parts[1].rows = 2;
  parts[1].unit_bytes = parts[1].row_bytes = PAIR_BLOCK_BYTES / 2;
  assert_int_equal(kvf_node_register_layout(p.producer.node, regions, PAIR_REGIONS, &layout), KVF_INVALID);
  assert_true(pair_wait_log(&p.producer, "option checksum: no checksums of part 1 (layer 1, region 1)", "rows", 5000));
  lay_out(parts);
  assert_int_equal(kvf_node_register_layout(p.producer.node, regions, PAIR_REGIONS, &layout), KVF_OK);
}

/* As with a prefix cache: two live leases of the same blocks; then other bytes in them, under a third. */
EACH_TRANSPORT_TEST(blocks_are_published_again)
{
  pair_ticket first;
  pair_ticket second;
  pair_ticket third;
  open_nodes(transport, "on", "on");
  pair_offer(&p.producer, 0, BLOCKS, 1, true, &first);
  pair_offer(&p.producer, 0, BLOCKS, 1, true, &second);
  expect_good(&first, 900, 1);
  expect_good(&second, 901, 1);
  assert_int_equal(kvf_lease_end(p.producer.node, &first.lease), KVF_OK);
  assert_int_equal(kvf_lease_end(p.producer.node, &second.lease), KVF_OK);
  pair_offer(&p.producer, 0, BLOCKS, 2, true, &third);
  expect_good(&third, 902, 2);
  assert_int_equal(pair_stat(&p.consumer, "checksum_mismatches", ""), 0);
}

/* Leases end, and the node with them, while their blocks are being checksummed. */
EACH_TRANSPORT_TEST(ends_while_it_checksums)
{
  for (uint32_t round = 0; round < 20; round++) {
    pair_ticket tickets[8];
    const pair_option options[] = {{"transports", transport}, {"checksum", "on"}, {NULL, NULL}};
    pair_open_node(&p.producer, options);
    for (uint32_t i = 0; i < 8; i++) {
      pair_offer(&p.producer, 0, 30, i, true, &tickets[i]);
      if (i % 2 == 0) {
        assert_int_equal(kvf_lease_end(p.producer.node, &tickets[i].lease), KVF_OK);
        (void)pair_wait_lease_end(&p.producer, tickets[i].lease.id, 5000);
      }
    }
    if (round % 2 == 0) {
      assert_int_equal(kvf_node_unregister(p.producer.node), KVF_OK);
    }
    pair_close_node(&p.producer);
  }
}
