/* Leases, tickets, requests and loads: what the public calls refuse, and what they have done when they return. */

#include "pair.h"
#include "runtime/pump.h"
#include "test.h"

#define COUNT 8

static pair_ticket ticket;

static void open_pair(void)
{
  pair_open(NULL);
  pair_offer(&p.producer, 0, COUNT, 1, false, &ticket);
}

#define SET_TEST(name) TEST_WITH(name, open_pair, pair_close)

static kvf_blocks blocks_of_ticket(void)
{
  return (kvf_blocks){.ids = ticket.blocks, .counts = &ticket.count, .groups = 1};
}

static uint64_t fence_word(uint32_t slot)
{
  return kvf_fence_load(p.producer.node->memory.fence_table, slot).word;
}

/* ---- mistakes ---- */

SET_TEST(missing_arguments_are_refused)
{
  kvf_node *node = p.producer.node;
  kvf_lease lease = ticket.lease;
  kvf_blocks blocks = blocks_of_ticket();
  kvf_request_info info;
  char text[8192];
  size_t bytes = 0;
  assert_int_equal(kvf_lease_reserve(node, 1, 0, NULL), KVF_INVALID);
  assert_int_equal(kvf_lease_reserve_blocks(node, &blocks, 0, NULL), KVF_INVALID);
  assert_int_equal(kvf_lease_reserve_blocks(node, NULL, 0, &lease), KVF_INVALID);
  assert_int_equal(kvf_ticket_make(node, NULL, &blocks, &ticket.prompt, text, sizeof(text), &bytes), KVF_INVALID);
  assert_int_equal(kvf_ticket_make(node, &lease, NULL, &ticket.prompt, text, sizeof(text), &bytes), KVF_INVALID);
  assert_int_equal(kvf_ticket_make(node, &lease, &blocks, NULL, text, sizeof(text), &bytes), KVF_INVALID);
  assert_int_equal(kvf_ticket_make(node, &lease, &blocks, &ticket.prompt, NULL, 9, &bytes), KVF_INVALID);
  assert_int_equal(kvf_ticket_make(node, &lease, &blocks, &ticket.prompt, text, sizeof(text), NULL), KVF_INVALID);
  assert_int_equal(kvf_lease_publish(node, NULL, &blocks, &ticket.prompt, NULL, 1), KVF_INVALID);
  assert_int_equal(kvf_lease_publish(node, &lease, NULL, &ticket.prompt, NULL, 1), KVF_INVALID);
  assert_int_equal(kvf_lease_publish(node, &lease, &blocks, NULL, NULL, 1), KVF_INVALID);
  assert_int_equal(kvf_lease_end(node, NULL), KVF_INVALID);
  assert_int_equal(kvf_request_open(node, NULL, 0, &ticket.prompt, NULL, 1, &info), KVF_INVALID);
  assert_int_equal(kvf_request_open(node, ticket.text, ticket.bytes, NULL, NULL, 1, &info), KVF_INVALID);
  assert_int_equal(kvf_request_refused(node, KVF_BAD_TICKET, 1, NULL, NULL), KVF_INVALID);
  assert_int_equal(kvf_request_open(node, ticket.text, ticket.bytes, &ticket.prompt, NULL, 1, NULL), KVF_INVALID);
  assert_int_equal(kvf_request_report(node, NULL), KVF_INVALID);
  assert_int_equal(kvf_load_start(node, NULL), KVF_INVALID);
  assert_int_equal(pair_stat(&p.producer, "requests_open", ""), 0);
  assert_int_equal(pair_stat(&p.producer, "leases_live", ""), 0);
}

/* P6: an array that is not there. */
SET_TEST(missing_arrays_are_refused)
{
  char text[8192];
  size_t bytes = 0;
  const kvf_blocks no_ids = {.counts = &ticket.count, .groups = 1};
  const kvf_blocks no_counts = {.ids = ticket.blocks, .groups = 1};
  const kvf_blocks *const lists[] = {&no_ids, &no_counts};
  for (size_t i = 0; i < 2; i++) {
    kvf_load_params load = {.request_id = 1,
                            .ticket = ticket.text,
                            .ticket_bytes = ticket.bytes,
                            .prompt = ticket.prompt,
                            .destination = *lists[i]};
    assert_int_equal(
        kvf_ticket_make(p.producer.node, &ticket.lease, lists[i], &ticket.prompt, text, sizeof(text), &bytes),
        KVF_INVALID);
    kvf_lease lease;
    assert_int_equal(kvf_lease_reserve_blocks(p.producer.node, lists[i], 0, &lease), KVF_INVALID);
    assert_int_equal(kvf_lease_publish(p.producer.node, &ticket.lease, lists[i], &ticket.prompt, NULL, 1), KVF_INVALID);
    assert_int_equal(kvf_load_start(p.consumer.node, &load), KVF_INVALID);
  }
  kvf_load_params no_ticket = {.request_id = 1, .prompt = ticket.prompt, .destination = blocks_of_ticket()};
  assert_int_equal(kvf_load_start(p.consumer.node, &no_ticket), KVF_INVALID);
}

SET_TEST(reserved_room_is_zero)
{
  kvf_load_params load = {.request_id = 1,
                          .ticket = ticket.text,
                          .ticket_bytes = ticket.bytes,
                          .prompt = ticket.prompt,
                          .destination = blocks_of_ticket(),
                          .reserved_too = {[2] = 1}};
  kvf_request_options options;
  kvf_request_info info;
  assert_int_equal(kvf_load_start(p.consumer.node, &load), KVF_INVALID);
  kvf_request_options_init(p.consumer.node, &options);
  options.reserved[3] = 1;
  assert_int_equal(kvf_request_open(p.consumer.node, ticket.text, ticket.bytes, &ticket.prompt, &options, 9, &info),
                   KVF_INVALID);
}

/* A client may have chosen it. */
SET_TEST(lines_name_a_request_as_its_engine_does)
{
  char name[] = "cmpl-8cf8\n-0";
  kvf_request_options options;
  kvf_request_info info;
  kvf_request_options_init(p.consumer.node, &options);
  assert_null(options.name);
  options.name = name;
  assert_int_equal(kvf_request_open(p.consumer.node, "kvf", 3, &ticket.prompt, &options, 9, &info), KVF_BAD_TICKET);
  assert_true(pair_logged(&p.consumer, "request cmpl-8cf8?-0: ticket refused: bad_ticket", NULL));
  assert_int_equal(kvf_request_open(p.consumer.node, ticket.text, ticket.bytes, &ticket.prompt, &options, 9, &info),
                   KVF_OK);
  memset(name, 'x', sizeof(name) - 1); /* a copy is kept */
  assert_int_equal(kvf_request_begin(p.consumer.node, info.id), KVF_OK);
  assert_int_equal(kvf_request_released(p.consumer.node, info.id, 1), KVF_OK);
  assert_true(pair_wait_log(&p.consumer, "request cmpl-8cf8?-0 (", "): aborted: 0 of", 10000));
  const kvf_load_params load = {.request_id = 77,
                                .ticket = ticket.text,
                                .ticket_bytes = 3,
                                .prompt = ticket.prompt,
                                .destination = blocks_of_ticket(),
                                .name = "cmpl-load"};
  assert_int_equal(kvf_load_start(p.consumer.node, &load), KVF_BAD_TICKET);
  assert_true(pair_wait_log(&p.consumer, "request cmpl-load (77): ticket refused: bad_ticket", NULL, 10000));
}

SET_TEST(unknown_ids_are_not_found)
{
  kvf_report report = {.request_id = 99, .ranks_mask = 1};
  assert_int_equal(kvf_request_begin(p.consumer.node, 99), KVF_NOT_FOUND);
  assert_int_equal(kvf_request_report(p.consumer.node, &report), KVF_NOT_FOUND);
  assert_int_equal(kvf_request_cancel(p.consumer.node, 99), KVF_NOT_FOUND);
  assert_int_equal(kvf_load_abort(p.consumer.node, 99), KVF_NOT_FOUND);
  assert_int_equal(kvf_lease_release(p.producer.node, 99), KVF_NOT_FOUND);
  assert_int_equal(pair_stat(&p.consumer, "late_reports", ""), 1);
}

/* ---- leases ---- */

SET_TEST(draining_node_takes_no_leases)
{
  kvf_lease lease;
  kvf_node_drain(p.producer.node);
  assert_int_equal(kvf_lease_reserve(p.producer.node, 1, 0, &lease), KVF_DRAINING);
  pair_publish(&p.producer, &ticket); /* what was promised before is kept */
  assert_int_equal(pair_stat(&p.producer, "leases_live", ""), 1);
}

SET_TEST(share_of_the_pool_is_bounded)
{
  kvf_lease lease;
  assert_int_equal(kvf_lease_release(p.producer.node, ticket.lease.id), KVF_OK);
  assert_int_equal(kvf_lease_reserve(p.producer.node, 91, 100, &lease), KVF_LIMIT); /* 90 % of 100 */
  assert_int_equal(kvf_lease_reserve(p.producer.node, 90, 100, &lease), KVF_OK);
  assert_int_equal(kvf_lease_reserve(p.producer.node, 1, 100, &lease), KVF_NO_LEASE);
}

/* How many tickets a pool of 100 blocks gives for prompts of which the first 20 blocks are the same, and one is not. */
static uint32_t tickets_of_one_beginning(bool are_known)
{
  enum { PREFIX = 20, LENGTH = PREFIX + 1 };
  uint32_t ids[LENGTH], tickets = 0;
  const uint32_t count = LENGTH;
  const kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  const kvf_prompt prompt = pair_prompt(LENGTH * PAIR_BLOCK_TOKENS, 1);
  kvf_node *node = p.producer.node;
  for (uint32_t i = 0; i < LENGTH; i++) {
    ids[i] = i;
  }
  for (;; tickets++, ids[PREFIX]++) {
    char text[8192];
    size_t bytes = 0;
    kvf_lease lease;
    kvf_status status =
        are_known ? kvf_lease_reserve_blocks(node, &blocks, 100, &lease) : kvf_lease_reserve(node, LENGTH, 100, &lease);
    if (status != KVF_OK) {
      assert_int_equal(status, KVF_NO_LEASE);
      return tickets;
    }
    assert_int_equal(kvf_ticket_make(node, &lease, &blocks, &prompt, text, sizeof(text), &bytes), KVF_OK);
  }
}

/* 90 % of the pool are 20 and 70; the last one of which no more than the number of blocks is known needs 21. */
SET_TEST(a_block_of_several_leases_counts_once)
{
  assert_int_equal(kvf_lease_release(p.producer.node, ticket.lease.id), KVF_OK);
  assert_int_equal(tickets_of_one_beginning(true), 70);
}

SET_TEST(a_ticket_names_the_blocks)
{
  assert_int_equal(kvf_lease_release(p.producer.node, ticket.lease.id), KVF_OK);
  assert_int_equal(tickets_of_one_beginning(false), 50);
}

/* P1: the word is in the memory that readers read when the call returns, not some time later. */
SET_TEST(fence_is_stored_before_the_calls_return)
{
  uint32_t slot = ticket.lease.slot;
  assert_true(fence_word(slot) < kvf_fence_word_live(ticket.lease.id));
  pair_publish(&p.producer, &ticket);
  assert_true(fence_word(slot) == kvf_fence_word_live(ticket.lease.id));
  assert_int_equal(kvf_lease_end(p.producer.node, &ticket.lease), KVF_OK);
  assert_true(fence_word(slot) == kvf_fence_word_ended(ticket.lease.id));
  assert_int_equal(kvf_lease_end(p.producer.node, &ticket.lease), KVF_NOT_FOUND);
  assert_int_equal(pair_wait_lease_end(&p.producer, ticket.lease.id, 0 + 10000), KVF_LEASE_END_REVOKED);
}

SET_TEST(unregistering_stores_over_before_it_returns)
{
  pair_publish(&p.producer, &ticket);
  assert_int_equal(kvf_node_unregister(p.producer.node), KVF_OK);
  assert_true(fence_word(ticket.lease.slot) == kvf_fence_word_ended(ticket.lease.id));
}

/* What was ended before its publication must not come to life by it. */
SET_TEST(ended_lease_cannot_be_published)
{
  kvf_blocks blocks = blocks_of_ticket();
  assert_int_equal(kvf_lease_end(p.producer.node, &ticket.lease), KVF_NOT_FOUND);
  assert_int_equal(kvf_lease_publish(p.producer.node, &ticket.lease, &blocks, &ticket.prompt, NULL, 1), KVF_EXISTS);
  assert_int_equal(pair_stat(&p.producer, "leases_live", ""), 0);
}

SET_TEST(publication_is_checked)
{
  static uint32_t counts[KVF_GROUPS_MAX + 1];
  kvf_blocks blocks = {.ids = ticket.blocks, .counts = counts, .groups = KVF_GROUPS_MAX + 1};
  assert_int_equal(kvf_lease_publish(p.producer.node, &ticket.lease, &blocks, &ticket.prompt, NULL, 1), KVF_LIMIT);
  blocks.groups = 2; /* the memory has one; together they are too many */
  counts[0] = KVF_BLOCKS_PER_LEASE_MAX;
  counts[1] = 1;
  assert_int_equal(kvf_lease_publish(p.producer.node, &ticket.lease, &blocks, &ticket.prompt, NULL, 1), KVF_LIMIT);
  counts[0] = UINT32_MAX;
  counts[1] = UINT32_MAX;
  assert_int_equal(kvf_lease_publish(p.producer.node, &ticket.lease, &blocks, &ticket.prompt, NULL, 1), KVF_LIMIT);
  blocks = blocks_of_ticket();
  ticket.blocks[COUNT - 1] = PAIR_BLOCKS;
  assert_int_equal(kvf_lease_publish(p.producer.node, &ticket.lease, &blocks, &ticket.prompt, NULL, 1), KVF_INVALID);
  ticket.blocks[COUNT - 1] = 0;
  assert_int_equal(kvf_lease_publish(p.producer.node, &ticket.lease, &blocks, &ticket.prompt, NULL, 1), KVF_OK);
  assert_int_equal(kvf_lease_publish(p.producer.node, &ticket.lease, &blocks, &ticket.prompt, NULL, 1), KVF_EXISTS);
}

/* ---- tickets ---- */

SET_TEST(ticket_must_fit_its_prompt_and_its_room)
{
  char text[8192];
  size_t bytes = 0;
  kvf_blocks blocks = blocks_of_ticket();
  kvf_prompt longer = ticket.prompt;
  longer.tokens += PAIR_BLOCK_TOKENS;
  assert_int_equal(kvf_ticket_make(p.producer.node, &ticket.lease, &blocks, &longer, text, sizeof(text), &bytes),
                   KVF_INVALID);
  assert_int_equal(
      kvf_ticket_make(p.producer.node, &ticket.lease, &blocks, &ticket.prompt, text, ticket.bytes - 1, &bytes),
      KVF_LIMIT);
  assert_int_equal(bytes, 0);
  assert_int_equal(kvf_ticket_make(p.producer.node, &ticket.lease, &blocks, &ticket.prompt, text, ticket.bytes, &bytes),
                   KVF_OK);
  assert_int_equal(bytes, ticket.bytes);
  assert_memory_equal(text, ticket.text, bytes);
}

SET_TEST(request_says_what_the_ticket_offers)
{
  kvf_request_info info;
  uint64_t last_id = 0;
  for (int i = 0; i < 3; i++) {
    assert_int_equal(kvf_request_open(p.consumer.node, ticket.text, ticket.bytes, &ticket.prompt, NULL, 9, &info),
                     KVF_OK);
    assert_true(info.id > last_id);
    last_id = info.id;
    assert_int_equal(info.tokens, ticket.prompt.tokens);
    assert_int_equal(info.groups, 1);
    assert_int_equal(info.counts[0], COUNT);
    assert_non_null(strstr(info.peer, "127.0.0.1:"));
  }
  assert_int_equal(pair_stat(&p.consumer, "requests_open", ""), 3);
}

/* P8: counted and logged, and nobody is connected to. */
SET_TEST(bad_tickets_go_no_further)
{
  kvf_request_info info = {.id = 77};
  char text[8192];
  static const size_t lengths[] = {0, 1, 5, 60};
  for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
    assert_int_equal(kvf_request_open(p.consumer.node, ticket.text, lengths[i], &ticket.prompt, NULL, 9, &info),
                     KVF_BAD_TICKET);
  }
  memcpy(text, ticket.text, ticket.bytes);
  for (size_t i = 0; i < ticket.bytes; i += 7) {
    text[i] ^= 1;
    const bool is_of_key_id = i == 7 || i == 14;
    assert_int_equal(kvf_request_open(p.consumer.node, text, ticket.bytes, &ticket.prompt, NULL, 9, &info),
                     is_of_key_id ? KVF_OTHER_KEY : KVF_BAD_TICKET);
    text[i] ^= 1;
  }
  text[3] = '6';
  assert_int_equal(kvf_request_open(p.consumer.node, text, ticket.bytes, &ticket.prompt, NULL, 9, &info),
                   KVF_INCOMPATIBLE);
  assert_int_equal(info.id, 77); /* set on success only */
  assert_true(pair_logged(&p.consumer, "bad_ticket: malformed or altered", NULL));
  assert_true(pair_logged(&p.consumer, "other_key: signed with a key, and this engine has none", NULL));
  assert_true(pair_logged(&p.consumer, "incompatible: its version is of another release", NULL));
  assert_int_equal(pair_stat(&p.consumer, "tickets_refused", "bad_ticket"), 4 + (ticket.bytes + 6) / 7 - 2);
  assert_int_equal(pair_stat(&p.consumer, "tickets_refused", "other_key"), 2);
  assert_int_equal(pair_stat(&p.consumer, "tickets_refused", "incompatible"), 1);
  assert_int_equal(pair_stat(&p.consumer, "peers_known", ""), 0);
}

/* A request's own policy, and a deadline of its own. */
SET_TEST(options_of_a_request_come_before_the_nodes)
{
  kvf_request_options options;
  kvf_request_info info;
  kvf_request_options_init(p.consumer.node, &options);
  assert_int_equal(options.policy, KVF_POLICY_RECOMPUTE);
  assert_int_equal(kvf_request_options_set(&options, "policy", "fail", NULL), KVF_OK);
  assert_int_equal(kvf_request_options_set(&options, "load_timeout_ms", "1", NULL), KVF_OK);
  assert_int_equal(kvf_request_open(p.consumer.node, ticket.text, ticket.bytes, &ticket.prompt, &options, 9, &info),
                   KVF_OK);
  assert_int_equal(info.load_timeout_ms, 1);
  assert_int_equal(kvf_request_begin(p.consumer.node, info.id), KVF_OK);
  assert_int_equal(kvf_request_begin(p.consumer.node, info.id), KVF_EXISTS);
  assert_int_equal(pair_load(&p.consumer, &ticket, info.id, 20), KVF_OK);
  assert_int_equal(kvf_load_abort(p.consumer.node, info.id), KVF_OK);
  const pair_result result = pair_wait(&p.consumer, info.id);
  assert_int_equal(result.verdict.action, KVF_ACTION_FAIL);
  assert_int_equal(result.verdict.status, KVF_ABORTED);
}

static kvf_event next_event(pair_node *n)
{
  kvf_event event = {.kind = 0};
  const uint64_t until_ms = now_ms() + 1000; /* long before the load's deadline */
  while (kvf_node_poll(n->node, &event, 1) == 0 && pair_tick(until_ms)) {
  }
  return event;
}

/* P2: the engine says what consumer.h asks for, that the rank is released, and no more. The policy decides at once,
 * whatever the reason. */
static void assert_recomputed_at_once(uint64_t id)
{
  assert_int_equal(kvf_request_released(p.consumer.node, id, 1), KVF_OK);
  kvf_event event = next_event(&p.consumer);
  assert_int_equal(event.kind, KVF_EVENT_VERDICT);
  assert_int_equal(event.id, id);
  assert_int_equal(event.u.verdict.action, KVF_ACTION_RECOMPUTE);
  assert_int_equal(event.u.verdict.status, KVF_ABORTED);
  assert_int_equal(event.u.verdict.recompute_tokens, COUNT * PAIR_BLOCK_TOKENS);
  event = next_event(&p.consumer);
  assert_int_equal(event.kind, KVF_EVENT_REQUEST_RELEASED);
  assert_int_equal(event.id, id);
}

SET_TEST(a_load_that_cannot_start_is_recomputed)
{
  uint64_t id = 0;
  assert_int_equal(pair_request(&p.consumer, &ticket, &ticket.prompt, &id), KVF_OK);
  assert_int_equal(pair_load(&p.consumer, &ticket, id, PAIR_BLOCKS), KVF_INVALID); /* there is no such block */
  assert_true(pair_wait_log(&p.consumer, "no load: invalid", NULL, 10000));
  assert_recomputed_at_once(id);
}

PAIR_TEST(a_load_beyond_loads_max_is_recomputed)
{
  const pair_option options[] = {{"loads_max", "1"}, {NULL, NULL}};
  pair_ticket other;
  uint64_t id = 0;
  pair_open(options);
  pair_offer(&p.producer, 0, COUNT, 1, false, &ticket); /* so the first load goes on */
  pair_offer(&p.producer, 2 * COUNT, COUNT, 2, false, &other);
  const uint64_t first = pair_begin(&p.consumer, &ticket, 0);
  assert_int_equal(pair_request(&p.consumer, &other, &other.prompt, &id), KVF_OK);
  assert_int_equal(pair_load(&p.consumer, &other, id, COUNT), KVF_NO_RESOURCE);
  assert_recomputed_at_once(id);
  pair_publish(&p.producer, &ticket);
  assert_int_equal(pair_wait(&p.consumer, first).verdict.action, KVF_ACTION_USE);
}

SET_TEST(healthy_until_something_is_stuck)
{
  assert_true(kvf_node_healthy(p.consumer.node));
  kvf_node_drain(p.consumer.node);
  assert_true(kvf_node_healthy(p.consumer.node));
}

/* ---- pages with parts ---- */

#define HEADS 4
#define UNIT_BYTES (PAIR_BLOCK_BYTES / 2 / HEADS / PAIR_BLOCK_TOKENS)

/* Keys and values of a layer in each region: there heads first, here tokens first and from the last region on. */
static void lay_out(kvf_part parts[2 * PAIR_REGIONS], bool here)
{
  for (uint32_t i = 0; i < 2 * PAIR_REGIONS; i++) {
    parts[i] = (kvf_part){.layer = i / 2,
                          .kind = i % 2 == 0 ? KVF_PART_KEYS : KVF_PART_VALUES,
                          .region = here ? PAIR_REGIONS - 1 - i / 2 : i / 2,
                          .offset_bytes = i % 2 * PAIR_BLOCK_BYTES / 2,
                          .unit_bytes = UNIT_BYTES,
                          .row_bytes = here ? HEADS * UNIT_BYTES : UNIT_BYTES,
                          .head_bytes = here ? UNIT_BYTES : PAIR_BLOCK_TOKENS * UNIT_BYTES,
                          .rows = PAIR_BLOCK_TOKENS,
                          .block_tokens = PAIR_BLOCK_TOKENS,
                          .heads = HEADS,
                          .heads_total = HEADS};
  }
}

/* Whether each unit of the consumer's block is the one that the producer's has elsewhere. */
static bool is_reordered(uint32_t there, uint32_t here)
{
  bool same = true;
  for (uint32_t layer = 0; layer < PAIR_REGIONS; layer++) {
    const uint8_t *from = p.producer.pool[layer] + (size_t)there * PAIR_BLOCK_BYTES;
    const uint8_t *to = p.consumer.pool[PAIR_REGIONS - 1 - layer] + (size_t)here * PAIR_BLOCK_BYTES;
    for (uint32_t unit = 0; unit < 2 * HEADS * PAIR_BLOCK_TOKENS; unit++) {
      uint32_t half = unit / (HEADS * PAIR_BLOCK_TOKENS) * (HEADS * PAIR_BLOCK_TOKENS);
      uint32_t head = unit % (HEADS * PAIR_BLOCK_TOKENS) / PAIR_BLOCK_TOKENS;
      uint32_t token = unit % PAIR_BLOCK_TOKENS;
      same = same && memcmp(to + (size_t)(half + token * HEADS + head) * UNIT_BYTES, from + (size_t)unit * UNIT_BYTES,
                            UNIT_BYTES) == 0;
    }
  }
  return same;
}

EACH_TRANSPORT_TEST(parts_go_where_they_are_here)
{
  const pair_option options[] = {{"transports", transport}, {NULL, NULL}};
  kvf_part parts[2][2 * PAIR_REGIONS];
  for (int here = 0; here < 2; here++) {
    lay_out(parts[here], here == 1);
    const kvf_layout layout = {
        .parts = parts[here], .parts_count = (size_t)2 * PAIR_REGIONS, .share = {.heads = HEADS, .heads_total = HEADS}};
    pair_layout = &layout;
    pair_open_node(here == 1 ? &p.consumer : &p.producer, options);
  }
  pair_layout = NULL;
  pair_offer(&p.producer, 0, COUNT, 1, true, &ticket);
  assert_int_equal(pair_wait(&p.consumer, pair_begin(&p.consumer, &ticket, 0)).report.status, KVF_OK);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_true(is_reordered(ticket.blocks[i], i));
  }
  assert_int_equal(pair_stat(&p.consumer, "bytes_loaded", ""), COUNT * PAIR_REGIONS * PAIR_BLOCK_BYTES);
  /* A piece for each unit, but that the last key and the first value are neighbours on both sides. */
  assert_true(pair_stat(&p.consumer, "read_pieces", "") >=
              (uint64_t)COUNT * PAIR_REGIONS * (PAIR_BLOCK_BYTES / UNIT_BYTES - 1));
}

/* A part in each region, of layers from `first` on; the first layer of all is alone in its group. */
static void register_layers(pair_node *node, uint32_t first, uint32_t layers, const pair_option *options)
{
  kvf_part parts[PAIR_REGIONS];
  for (uint32_t i = 0; i < layers; i++) {
    parts[i] = (kvf_part){.layer = first + i,
                          .group = first + i > 0,
                          .region = i,
                          .unit_bytes = PAIR_BLOCK_BYTES,
                          .rows = 1,
                          .heads = 1,
                          .heads_total = 1};
  }
  const kvf_layout layout = {.parts = parts, .parts_count = layers, .share = {.heads = 1, .heads_total = 1}};
  pair_layout = &layout;
  pair_open_node(node, options);
  pair_layout = NULL;
}

/* A consumer that is the last stage of a pipeline: what is of the other group moves nothing, in a read of its own. */
EACH_TRANSPORT_TEST(a_stage_gets_its_layers)
{
  const pair_option options[] = {{"transports", transport}, {"chunk_bytes", "4096"}, {NULL, NULL}};
  register_layers(&p.producer, 0, PAIR_REGIONS, options);
  register_layers(&p.consumer, 1, PAIR_REGIONS - 1, options);
  pair_groups = 2;
  pair_offer(&p.producer, 0, COUNT, 1, true, &ticket);
  uint64_t id = pair_begin(&p.consumer, &ticket, 0);
  pair_groups = 1;
  const pair_result result = pair_wait(&p.consumer, id);
  assert_int_equal(result.report.status, KVF_OK);
  assert_int_equal(result.report.prefix, 2 * COUNT);
  for (uint32_t layer = 1; layer < PAIR_REGIONS; layer++) {
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_memory_equal(p.consumer.pool[layer - 1] + (size_t)i * PAIR_BLOCK_BYTES,
                          p.producer.pool[layer] + (size_t)ticket.blocks[i] * PAIR_BLOCK_BYTES, PAIR_BLOCK_BYTES);
    }
  }
  assert_int_equal(pair_stat(&p.consumer, "bytes_loaded", ""), COUNT * (PAIR_REGIONS - 1) * PAIR_BLOCK_BYTES);
  assert_int_equal(pair_stat(&p.consumer, "chunks", ""), 2 * COUNT);
}

/* Blocks that are neighbours on both sides are one piece, in each region. */
SET_TEST(pieces_are_counted)
{
  pair_publish(&p.producer, &ticket);
  pair_fetch_whole(&p.consumer, &ticket, 0);
  assert_int_equal(pair_stat(&p.consumer, "read_pieces", ""), PAIR_REGIONS * COUNT); /* every other block there */
}
