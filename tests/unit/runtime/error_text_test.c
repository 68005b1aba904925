/* kvf_error_text(): each public function that can fail, with a wrong argument, and what it then says. A rule of
 * tests/tidy demands a CASE() of each. */

#include <pthread.h>

#include "pair.h"
#include "test.h"

#define COUNT 8

static kvf_node *node; /* the producer's */
static pair_ticket ticket;

static void open_pair(void)
{
  static const pair_option options[] = {{"lease_slots", "2"}, {"lease_pool_share_percent", "50"}, {NULL, NULL}};
  pair_open(options);
  node = p.producer.node;
  pair_offer(&p.producer, 0, COUNT, 1, false, &ticket);
}

#define SET_TEST(name) TEST_WITH(name, open_pair, pair_close)

static void expect(const char *function, kvf_status status, kvf_status expected, const char *text)
{
  if (status != expected || strstr(kvf_error_text(), text) == NULL) {
    print_error("%s: %s: \"%s\", not %s: \"%s\"\n", function, kvf_status_name(status), kvf_error_text(),
                kvf_status_name(expected), text);
    fail();
  }
}

/* The status that the function returns with these arguments, and words of the text. */
#define CASE(function, status, text, ...) expect(#function, function(__VA_ARGS__), status, text)

/* ---- calls without a node ---- */

TEST(says_why_a_configuration_is_wrong)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  char long_name[2 * KVF_IDENTITY_BYTES_MAX];
  kvf_config config;
  kvf_node *none;
  kvf_config_init(&config);
  memset(long_name, 'n', sizeof(long_name) - 1);
  long_name[sizeof(long_name) - 1] = '\0';
  CASE(kvf_config_set, KVF_NOT_FOUND, "did you mean \"lease_ttl_ms\"", &config, "lease_ttl", "1", NULL);
  CASE(kvf_config_set, KVF_INVALID, "loads_max = \"many\"", &config, "loads_max", "many", message);
  assert_string_equal(kvf_error_text(), message);
  CASE(kvf_config_identity, KVF_INVALID, "value is NULL", &config, "dtype", NULL);
  CASE(kvf_config_identity, KVF_INVALID, "1 to 127 bytes", &config, long_name, "bf16");
  for (uint32_t i = 0; i < KVF_IDENTITY_FIELDS_MAX; i++) {
    assert_int_equal(kvf_config_identity(&config, (char[]){(char)('A' + i), '\0'}, "1"), KVF_OK);
  }
  CASE(kvf_config_identity, KVF_LIMIT, "32 fields", &config, "another", "1");
  CASE(kvf_node_open, KVF_INVALID, "block_tokens", &config, &none, NULL); /* the node's own is one too many */
  CASE(kvf_node_open, KVF_INVALID, "out is NULL", &config, NULL, message);
  CASE(kvf_node_open, KVF_INVALID, "kvf_config_init()", NULL, &none, NULL);
  CASE(kvf_log_queue_open, KVF_INVALID, "out is NULL", NULL);
  CASE(kvf_address_choose, KVF_INVALID, "kvf_config_init()", NULL, false, 0, NULL, message);
  CASE(kvf_address_choose, KVF_INVALID, "KVFERRY_ADVERTISE", &config, false, 0,
       (char *[]){(char[]){"KVFERRY_ADVERTISE=10.0.0.1"}, NULL}, message);
}

TEST(says_why_a_prompt_is_wrong)
{
  kvf_prompt prompt;
  CASE(kvf_prompt_hash, KVF_INVALID, "token_ids is NULL", NULL, 1, NULL, 0, &prompt);
  CASE(kvf_prompt_hash, KVF_INVALID, "salt_bytes = 3", (uint32_t[]){1}, 1, NULL, 3, &prompt);
  CASE(kvf_prompt_set_model, KVF_INVALID, "model is NULL", &prompt, NULL, 0);
}

TEST(says_why_a_check_fails)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_check_result found;
  kvf_config config;
  kvf_config_init(&config);
  CASE(kvf_check_node, KVF_INVALID, "HOST:PORT", &config, "127.0.0.1", &found, message);
  CASE(kvf_check_memory, KVF_INVALID, "31 is not a kind", (kvf_memory_kind)31, "", message);
  CASE(kvf_check_device, KVF_NOT_FOUND, "no devices", KVF_MEMORY_HOST, 0, message);
}

TEST(says_why_a_recovery_is_wrong)
{
  kvf_recovery_options options = {.ranks = 2, .block_tokens = 16, .requests_max = 1, .groups = 1};
  kvf_recovery *recovery;
  const uint32_t count = 2;
  const kvf_blocks blocks = {.ids = (uint32_t[]){1, 9}, .counts = &count, .groups = 1};
  kvf_recovery_request request = {.request_id = 7, .blocks = blocks, .tokens = 32, .prompt_tokens = 32};
  CASE(kvf_recovery_open, KVF_INVALID, "pool_blocks[0] = 0", &options, &recovery);
  options.pool_blocks[0] = 8;
  options.ranks = 65;
  CASE(kvf_recovery_open, KVF_LIMIT, "ranks = 65", &options, &recovery);
  options.ranks = 2;
  assert_int_equal(kvf_recovery_open(&options, &recovery), KVF_OK);
  CASE(kvf_recovery_admit, KVF_INVALID, "block id 9 of position 1 of group 0", recovery, &request);
  request.blocks.ids = (uint32_t[]){1, 2};
  request.local_prefix_tokens = 5;
  CASE(kvf_recovery_admit, KVF_INVALID, "local_prefix_tokens = 5", recovery, &request);
  request.local_prefix_tokens = 0;
  request.blockers = KVF_BLOCKER_TOO_LONG;
  CASE(kvf_recovery_admit, KVF_INVALID, "blockers = 0x100", recovery, &request);
  request.blockers = 0;
  assert_int_equal(kvf_recovery_admit(recovery, &request), KVF_OK);
  CASE(kvf_recovery_admit, KVF_EXISTS, "request 7", recovery, &request);
  request.request_id = 8;
  CASE(kvf_recovery_admit, KVF_NO_RESOURCE, "requests_max = 1", recovery, &request);
  CASE(kvf_recovery_report, KVF_NOT_FOUND, "request 9", recovery, &(kvf_report){.request_id = 9});
  CASE(kvf_recovery_report, KVF_INVALID, "contradicts status", recovery, &(kvf_report){.request_id = 7, .blocks = 2});
  CASE(kvf_recovery_report_blocks, KVF_INVALID, "block id 8 at index 1", recovery, 0, 0, (uint32_t[]){1, 8}, 2,
       KVF_PEER_DOWN);
  CASE(kvf_recovery_report_blocks, KVF_INVALID, "rank = 2", recovery, 2, 0, (uint32_t[]){1}, 1, KVF_PEER_DOWN);
  CASE(kvf_recovery_released, KVF_INVALID, "ranks_mask = 0x4", recovery, 7, 4);
  CASE(kvf_recovery_end, KVF_NOT_FOUND, "request 9", recovery, 9);
  kvf_recovery_close(recovery);
}

TEST(says_why_a_staging_is_wrong)
{
  static uint8_t pool[4][64];
  const kvf_region region = {
      .base = pool, .stride_bytes = 64, .block_bytes = 64, .blocks = 4, .heads = 1, .heads_total = 1};
  const uint32_t one = 1;
  const kvf_blocks first = {.ids = (uint32_t[]){0}, .counts = &one, .groups = 1};
  const kvf_blocks beyond = {.ids = (uint32_t[]){4}, .counts = &one, .groups = 1};
  kvf_staging *staging;
  CASE(kvf_staging_open, KVF_INVALID, "needs regions and blocks", &region, 1, 0, "", &staging, NULL);
  assert_int_equal(kvf_staging_open(&region, 1, 2, "", &staging, NULL), KVF_OK);
  CASE(kvf_staging_copy, KVF_INVALID, "number = 0", staging, 0, &first, &first, NULL);
  CASE(kvf_staging_copy, KVF_INVALID, "to id 4 of group 0", staging, 1, &first, &beyond, NULL);
  CASE(kvf_staging_copy, KVF_INVALID, "on must be NULL", staging, 1, &first, &first,
       &(kvf_ordering_point){.device = 0});
  kvf_staging_close(staging);
}

/* ---- a node's memory and place ---- */

SET_TEST(says_why_memory_is_not_registered)
{
  static uint8_t memory[64];
  const pair_option deaf[] = {{"listen", ""}, {NULL, NULL}};
  const kvf_region good = {
      .base = memory, .stride_bytes = 32, .block_bytes = 32, .blocks = 2, .heads = 1, .heads_total = 1};
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t bytes = 0;
  kvf_node *bare;
  char message[KVF_MESSAGE_BYTES_MAX];
  CASE(kvf_node_register, KVF_EXISTS, "registered already", node, &good, 1);
  assert_int_equal(pair_open_bare(deaf, &bare, message), KVF_OK);
  kvf_region region = good;
  CASE(kvf_node_register, KVF_INVALID, "count = 0 must be 1 to 1024", bare, &region, 0);
  CASE(kvf_node_register, KVF_LIMIT, "count = 1025 must be 1 to 1024", bare, &region, 1025);
  region.base = NULL;
  CASE(kvf_node_register, KVF_INVALID, "regions[0].base is NULL", bare, &region, 1);
  region = good;
  region.heads = 3;
  CASE(kvf_node_register, KVF_INVALID, "block_bytes = 32 must be a multiple of heads = 3", bare, &region, 1);
  region.heads = 0;
  CASE(kvf_node_register, KVF_INVALID, "heads = 0", bare, &region, 1);
  region = good;
  region.stride_bytes = 8;
  CASE(kvf_node_register, KVF_INVALID, "stride_bytes = 8 must be", bare, &region, 1);
  region = good;
  region.group = 1;
  CASE(kvf_node_register, KVF_INVALID, "group below the highest", bare, &region, 1);
  region = good;
  region.base = (void *)(uintptr_t)4096;
  CASE(kvf_node_register, KVF_INVALID, "are not this process' memory", bare, &region, 1);
  region = good;
  region.memory = (kvf_memory_kind)30;
  CASE(kvf_node_register, KVF_INVALID, "kind of memory", bare, &region, 1);
  const kvf_part part = {.rows = 1, .heads = 1, .heads_total = 1};
  kvf_layout layout = {.parts = &part, .parts_count = 0, .share = {.heads = 1, .heads_total = 1}};
  CASE(kvf_node_register_layout, KVF_INVALID, "parts_count = 0", bare, &good, 1, &layout);
  layout.parts_count = 1;
  CASE(kvf_node_register_layout, KVF_INVALID, "layer 0 KV 0", bare, &good, 1, &layout);
  CASE(kvf_node_register_layout, KVF_INVALID, "layout is NULL", bare, &good, 1, NULL);
  CASE(kvf_node_address, KVF_INVALID, "does not listen", bare, record, sizeof(record), &bytes);
  CASE(kvf_node_address, KVF_LIMIT, "capacity = 9", node, record, 9, &bytes);
  bytes = 3;
  CASE(kvf_node_set_ranks, KVF_INVALID, "record 0, of 3 bytes", node, record, &bytes, 1);
  CASE(kvf_node_set_ranks, KVF_INVALID, "ranks = 65", node, record, &bytes, 65);
  kvf_node_close(bare);
}

/* ---- leases and tickets ---- */

SET_TEST(says_why_a_lease_is_refused)
{
  uint32_t count = 2;
  uint32_t ids[2] = {64, 1};
  kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  kvf_lease lease;
  char text[1024];
  size_t bytes;
  CASE(kvf_lease_reserve, KVF_LIMIT, "33 blocks: lease_pool_share_percent = 50 of 64 pool blocks allows 32", node, 33,
       64, &lease);
  CASE(kvf_lease_reserve, KVF_NO_LEASE, "33 blocks would be leased", node, 25, 64, &lease);
  CASE(kvf_lease_reserve_blocks, KVF_INVALID, "blocks->ids is NULL", node, &(kvf_blocks){.counts = &count}, 64, &lease);
  CASE(kvf_lease_publish, KVF_INVALID, "block id 64 of position 0 of group 0 is not below the region's 64 blocks", node,
       &ticket.lease, &blocks, &ticket.prompt, NULL, 0);
  blocks.groups = 17;
  CASE(kvf_lease_reserve_blocks, KVF_LIMIT, "blocks->groups = 17", node, &blocks, 64, &lease);
  blocks.groups = 1;
  CASE(kvf_ticket_make, KVF_INVALID, "blocks->counts[0] = 2: 128 tokens in blocks of 16 are 8 positions", node,
       &ticket.lease, &blocks, &ticket.prompt, text, sizeof(text), &bytes);
  blocks.ids = ticket.blocks;
  count = COUNT;
  CASE(kvf_ticket_make, KVF_LIMIT, "capacity = 100", node, &ticket.lease, &blocks, &ticket.prompt, text, 100, &bytes);
  CASE(kvf_ticket_make, KVF_INVALID, "ticket_bytes is NULL", node, &ticket.lease, &blocks, &ticket.prompt, text,
       sizeof(text), NULL);
  CASE(kvf_lease_end, KVF_NOT_FOUND, "ended already, or was not published", node,
       &(kvf_lease){.id = 77, .slot = ticket.lease.slot});
  kvf_node *bare;
  char message[KVF_MESSAGE_BYTES_MAX];
  assert_int_equal(pair_open_bare((pair_option[]){{NULL, NULL}}, &bare, message), KVF_OK);
  CASE(kvf_ticket_make, KVF_INVALID, "kvf_node_set_ranks() has not been called", bare, &ticket.lease, &blocks,
       &ticket.prompt, text, sizeof(text), &bytes);
  kvf_node_close(bare);
}

SET_TEST(says_why_a_lease_is_not_there)
{
  kvf_lease lease;
  CASE(kvf_lease_ended, KVF_INVALID, "ranks_mask = 0x2", node, ticket.lease.id, 2);
  CASE(kvf_ticket_offer, KVF_NOT_FOUND, "is not published on this node", node, ticket.text, ticket.bytes);
  CASE(kvf_ticket_offer, KVF_BAD_TICKET, "forged", node, "nonsense", 8);
  assert_int_equal(kvf_lease_reserve(node, 1, 0, &lease), KVF_OK);
  CASE(kvf_lease_reserve, KVF_NO_LEASE, "option lease_slots", node, 1, 0, &lease);
  assert_int_equal(kvf_lease_release(node, lease.id), KVF_OK);
  CASE(kvf_lease_release, KVF_NOT_FOUND, "released already", node, lease.id);
  kvf_node_drain(node);
  CASE(kvf_lease_reserve, KVF_DRAINING, "kvf_node_drain()", node, 1, 0, &lease);
}

/* ---- requests and loads ---- */

SET_TEST(says_why_a_ticket_is_refused)
{
  kvf_prompt other = pair_prompt(COUNT * PAIR_BLOCK_TOKENS, 99);
  kvf_request_options options;
  kvf_request_info info;
  kvf_prompt prompt;
  uint64_t id;
  char text[8];
  size_t bytes;
  CASE(kvf_request_open, KVF_BAD_TICKET, "made for another prompt", node, ticket.text, ticket.bytes, &other, NULL, 0,
       &info);
  CASE(kvf_request_open, KVF_BAD_TICKET, "malformed", node, "x", 1, &other, NULL, 0, &info);
  CASE(kvf_request_open, KVF_INVALID, "info is NULL", node, ticket.text, ticket.bytes, &other, NULL, 0, NULL);
  CASE(kvf_request_refused, KVF_INVALID, "out is NULL", node, KVF_BAD_TICKET, 1, NULL, NULL);
  CASE(kvf_ticket_prompt, KVF_INVALID, "out is NULL", node, ticket.text, ticket.bytes, NULL);
  CASE(kvf_ticket_prompt, KVF_BAD_TICKET, "forged", node, "x", 1, &prompt);
  CASE(kvf_ticket_find, KVF_NOT_FOUND, "option peers", node, &other, NULL, 0, 0, &id);
  CASE(kvf_ticket_find, KVF_INVALID, "timeout_ms = 600001", node, &other, NULL, 600001, 0, &id);
  CASE(kvf_ticket_take, KVF_NOT_FOUND, "find 5", node, 5, text, sizeof(text), &bytes);
  kvf_request_options_init(node, &options);
  CASE(kvf_request_options_set, KVF_INVALID, "policy = \"maybe\"", &options, "policy", "maybe", NULL);
  CASE(kvf_request_options_set, KVF_NOT_FOUND, "not an option of a request", &options, "listen", "x", NULL);
}

SET_TEST(says_why_a_request_is_wrong)
{
  kvf_node *d = p.consumer.node;
  kvf_request_info info;
  assert_int_equal(kvf_request_open(d, ticket.text, ticket.bytes, &ticket.prompt, NULL, 0, &info), KVF_OK);
  const uint64_t id = info.id;
  CASE(kvf_request_report, KVF_INVALID, "before kvf_request_begin()", d, &(kvf_report){.request_id = id});
  CASE(kvf_request_released, KVF_INVALID, "before kvf_request_begin()", d, id, 1);
  assert_int_equal(kvf_request_begin(d, id), KVF_OK);
  CASE(kvf_request_begin, KVF_EXISTS, "has begun", d, id);
  CASE(kvf_request_wait, KVF_EXISTS, "has begun", d, id, true);
  CASE(kvf_request_report, KVF_INVALID, "blocks = 7 must be 8", d,
       &(kvf_report){.request_id = id, .ranks_mask = 1, .blocks = 7});
  CASE(kvf_request_report, KVF_INVALID, "report is NULL", d, NULL);
  CASE(kvf_request_released, KVF_INVALID, "ranks_mask = 0x2", d, id, 2);
  CASE(kvf_request_stuck, KVF_NOT_FOUND, "request 4711 is unknown", d, 4711);
  CASE(kvf_request_cancel, KVF_NOT_FOUND, "request 4712 is unknown", d, 4712);
  CASE(kvf_request_detach, KVF_NOT_FOUND, "request 4713 is unknown", d, 4713);
  CASE(kvf_load_abort, KVF_NOT_FOUND, "no load of request 4714", d, 4714);
}

SET_TEST(says_why_a_load_does_not_start)
{
  kvf_node *d = p.consumer.node;
  uint32_t ids[COUNT] = {0, 1, 2, 3, 4, 5, 6, 6};
  uint32_t count = COUNT;
  kvf_load_params load = {.request_id = 1,
                          .ticket = ticket.text,
                          .ticket_bytes = ticket.bytes,
                          .prompt = ticket.prompt,
                          .destination = {.ids = ids, .counts = &count, .groups = 1}};
  CASE(kvf_load_start, KVF_INVALID, "block id 6 of position 7 of group 0 is named twice", d, &load);
  ids[7] = 64;
  CASE(kvf_load_start, KVF_INVALID, "block id 64 of position 7", d, &load);
  ids[7] = 7;
  count = COUNT - 1;
  CASE(kvf_load_start, KVF_INVALID, "destination.counts[0] = 7: the ticket has 8", d, &load);
  count = COUNT;
  load.destination.groups = 2;
  CASE(kvf_load_start, KVF_INVALID, "destination.groups = 2", d, &load);
  load.destination.groups = 1;
  load.reserved = 1;
  CASE(kvf_load_start, KVF_INVALID, "must be zero", d, &load);
  load.reserved = 0;
  load.ticket = NULL;
  CASE(kvf_load_start, KVF_INVALID, "load->ticket is NULL", d, &load);
  load.ticket = ticket.text;
  load.after = &(kvf_ordering_point){.memory = KVF_MEMORY_HOST};
  CASE(kvf_load_start, KVF_INVALID, "host memory knows no ordering points", d, &load);
  load.after = NULL;
  assert_int_equal(kvf_load_start(d, &load), KVF_OK);
  CASE(kvf_load_start, KVF_EXISTS, "is not released yet", d, &load);
}

/* ---- the text ---- */

static void *text_of_a_thread(void *context)
{
  (void)context;
  assert_string_equal(kvf_error_text(), "");
  CASE(kvf_config_identity, KVF_INVALID, "config is NULL", NULL, "a", "b");
  return NULL;
}

SET_TEST(each_thread_has_its_own_text_which_calls_that_succeed_leave)
{
  kvf_prompt prompt;
  pthread_t thread;
  CASE(kvf_lease_end, KVF_INVALID, "lease is NULL", node, NULL);
  assert_int_equal(pthread_create(&thread, NULL, text_of_a_thread, NULL), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(kvf_prompt_hash((uint32_t[]){1}, 1, NULL, 0, &prompt), KVF_OK);
  assert_string_equal(kvf_error_text(), "lease is NULL");
}
