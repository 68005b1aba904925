/* The n-th allocation of the library's own code fails, for every n, over a node's whole life on the public interface:
 * open, register, publish, ticket, request, load, abort, cancel, expiry, close, with real sockets and threads. Each
 * call and each load ends in time, well or with a typed reason; no wrong byte is confirmed; nothing leaks, as the
 * count of live allocations tells in every build, and a sanitizer in its own.
 */
#include "../allocation.h"
#include "pair.h"
#include "test.h"

#define BLOCKS 64
#define BLOCK_BYTES 1024
#define BLOCK_TOKENS 16
#define COUNT 8
#define TIMEOUT_MS 200 /* of a handshake, and of a stall */
#define LOAD_TIMEOUT_MS 1500

static bool healed; /* memory is there again: calls succeed from here on, and loads soon */

/* ---- the scenario: nothing in it but the library allocates, and of pair.h nothing that does is called ---- */

static uint8_t pools[2][BLOCKS * BLOCK_BYTES];
static char ticket[8192];
static size_t ticket_bytes;
static const char *transports;
static const char *where; /* the call that gave an unexpected status */
static kvf_status unexpected;
static uint64_t offered_ms; /* when the last lease was offered */
static long late;           /* loads that failed by time alone: the machine stood still */

/* The statuses that a call may give when memory is short. */
static bool is_well(kvf_status status, const char *call)
{
  if (status == KVF_OK) {
    return true;
  }
  bool typed = status == KVF_NO_MEMORY || status == KVF_SYSTEM || status == KVF_TRANSFER_SETUP;
  if (!typed || healed || !allocation_has_failed()) {
    where = call;
    unexpected = status;
  }
  return false;
}

static void be_silent(void *context, kvf_log_level level, const char *line)
{
  (void)context;
  (void)level;
  (void)line;
}

static bool open_node(pair_node *n, uint8_t *pool)
{
  static const char *const options[][2] = {
      {"handshake_timeout_ms", "200"},                              /* TIMEOUT_MS */
      {"stall_timeout_ms", "200"},     {"load_timeout_ms", "1500"}, /* LOAD_TIMEOUT_MS */
      {"lease_ttl_ms", "400"},         {"lease_slots", "16"},       {"loads_max", "16"}, {"chunk_bytes", "4096"}};
  kvf_config config;
  uint8_t address[KVF_ADDRESS_BYTES_MAX];
  size_t address_bytes;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_config_init(&config);
  config.block_tokens = BLOCK_TOKENS;
  config.log = be_silent;
  config.breaker_cooldown_ms = 5;
  config.breaker_cooldown_max_ms = 10;
  assert_int_equal(kvf_config_set(&config, "transports", transports, message), KVF_OK);
  for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
    assert_int_equal(kvf_config_set(&config, options[i][0], options[i][1], message), KVF_OK);
  }
  *n = (pair_node){.node = NULL};
  if (!is_well(kvf_node_open(&config, &n->node, message), "node_open")) {
    assert_null(n->node);
    return false;
  }
  const kvf_region region = {.base = pool,
                             .stride_bytes = BLOCK_BYTES,
                             .block_bytes = BLOCK_BYTES,
                             .blocks = BLOCKS,
                             .heads = 1,
                             .heads_total = 1};
  return is_well(kvf_node_register(n->node, &region, 1), "register") &&
         is_well(kvf_node_address(n->node, address, sizeof(address), &address_bytes), "address") &&
         is_well(kvf_node_set_ranks(n->node, address, &address_bytes, 1), "set_ranks");
}

static uint8_t byte_of(uint32_t seed, uint32_t position)
{
  return (uint8_t)(seed * 37 + position * 11 + 1);
}

static const uint32_t count_of[1] = {COUNT};
static const uint32_t source[COUNT] = {3, 1, 4, 15, 9, 2, 6, 5};
static const uint32_t target[COUNT] = {32, 33, 34, 35, 36, 37, 38, 39};

static kvf_prompt prompt_of(uint32_t seed)
{
  kvf_prompt prompt = {.tokens = COUNT * BLOCK_TOKENS};
  memset(prompt.hash, (int)seed, sizeof(prompt.hash));
  return prompt;
}

/* Ends the lease, and takes the events of it and others, without which nothing is freed. */
static void take_back(pair_node *producer, const kvf_lease *lease)
{
  kvf_event event;
  (void)kvf_lease_end(producer->node, lease);
  (void)kvf_lease_release(producer->node, lease->id);
  while (kvf_node_poll(producer->node, &event, 1) > 0) {
  }
}

/* Reserves, publishes, makes the ticket. */
static bool offer(pair_node *producer, uint32_t seed, kvf_lease *lease)
{
  const kvf_blocks blocks = {.ids = source, .counts = count_of, .groups = 1};
  const kvf_prompt prompt = prompt_of(seed);
  offered_ms = now_ms();
  for (uint32_t i = 0; i < COUNT; i++) {
    memset(pools[0] + (size_t)source[i] * BLOCK_BYTES, byte_of(seed, i), BLOCK_BYTES);
  }
  if (!is_well(kvf_lease_reserve(producer->node, COUNT, 0, lease), "reserve")) {
    return false;
  }
  if (is_well(kvf_lease_publish(producer->node, lease, &blocks, &prompt, NULL, 7), "publish") &&
      is_well(kvf_ticket_make(producer->node, lease, &blocks, &prompt, ticket, sizeof(ticket), &ticket_bytes),
              "ticket")) {
    return true;
  }
  take_back(producer, lease);
  return false;
}

static void check(const pair_result *w, uint32_t seed)
{
  const kvf_status_info *info = kvf_status_describe(w->report.status);
  assert_int_equal(info->status, w->report.status);
  assert_int_not_equal(info->lost, KVF_LOST_CALL);
  if (w->report.status != KVF_OK && !healed && !allocation_has_failed()) {
    uint64_t took_ms = now_ms() - offered_ms;
    late++;
    if (took_ms < TIMEOUT_MS) {
      fail_msg("no allocation failed, and the load gave %s after %llu ms", kvf_status_name(w->report.status),
               (unsigned long long)took_ms);
    }
  }
  assert_true(w->report.status != KVF_OK || w->report.prefix == COUNT);
  for (uint32_t i = 0; i < w->report.prefix; i++) {
    const uint8_t *bytes = pools[1] + (size_t)target[i] * BLOCK_BYTES;
    assert_true(bytes[0] == byte_of(seed, i) && memcmp(bytes, bytes + 1, BLOCK_BYTES - 1) == 0);
  }
}

typedef enum ending { END_LOADED, END_ABORTED, END_CANCELLED } ending;

/* Returns whether all blocks came. */
static bool consume(pair_node *consumer, uint32_t seed, ending how)
{
  const kvf_prompt prompt = prompt_of(seed);
  kvf_request_info info;
  memset(pools[1], 0, sizeof(pools[1]));
  if (!is_well(kvf_request_open(consumer->node, ticket, ticket_bytes, &prompt, NULL, 9, &info), "request_open")) {
    return false;
  }
  if (how == END_CANCELLED) {
    assert_int_equal(kvf_request_cancel(consumer->node, info.id), KVF_OK);
    return false;
  }
  assert_int_equal(kvf_request_begin(consumer->node, info.id), KVF_OK);
  const kvf_load_params load = {.request_id = info.id,
                                .ticket = ticket,
                                .ticket_bytes = ticket_bytes,
                                .prompt = prompt,
                                .destination = {.ids = target, .counts = count_of, .groups = 1},
                                .user = 5};
  if (!is_well(kvf_load_start(consumer->node, &load), "load_start")) {
    (void)kvf_request_cancel(consumer->node, info.id);
    (void)kvf_request_released(consumer->node, info.id, 1);
    return false;
  }
  if (how == END_ABORTED) {
    (void)kvf_load_abort(consumer->node, info.id);
  }
  const uint64_t begun_ms = now_ms();
  const pair_result w = pair_wait_for(consumer, info.id, PAIR_PATIENCE_MS);
  assert_true(now_ms() - begun_ms < LOAD_TIMEOUT_MS + PAIR_LATE_MS);
  if (how != END_ABORTED) {
    check(&w, seed);
  }
  return w.report.status == KVF_OK;
}

static void load_between(pair_node *producer, pair_node *consumer)
{
  kvf_lease lease;
  for (uint32_t i = 0; i < 3; i++) {
    if (offer(producer, i + 1, &lease)) {
      (void)consume(consumer, i + 1, (ending)i);
      take_back(producer, &lease);
    }
  }
}

/* A lease that nobody reads ends by itself, however little memory there is. */
static void expire(pair_node *producer)
{
  kvf_lease lease;
  if (!offer(producer, 9, &lease)) {
    return;
  }
  (void)pair_wait_lease_end(producer, lease.id, PAIR_PATIENCE_MS);
  assert_int_equal(kvf_lease_release(producer->node, lease.id), KVF_OK);
}

/* Memory is there again: as if nothing had been, but that the nodes may have to find each other again. */
static void expect_recovery(pair_node *producer, pair_node *consumer, long nth)
{
  kvf_lease lease;
  bool loaded = false;
  (void)allocation_stop();
  healed = true;
  for (int tries = 0; tries < 200 && !loaded && offer(producer, 20, &lease); tries++) {
    loaded = consume(consumer, 20, END_LOADED);
    take_back(producer, &lease);
    sleep_ms(loaded ? 0 : 10);
  }
  healed = false;
  if (!loaded && where == NULL) {
    fail_msg("allocation %ld failed; for ever after no load succeeds", nth);
  }
}

/* Returns whether all came about without a failure of an allocation. */
static bool scenario(long nth, bool for_good, bool with_expiry)
{
  static pair_node producer;
  static pair_node consumer;
  long before = allocation_live();
  where = NULL;
  allocation_fail(nth - 1, for_good ? LONG_MAX : 1);
  consumer.node = NULL;
  if (open_node(&producer, pools[0]) && open_node(&consumer, pools[1])) {
    load_between(&producer, &consumer);
    if (with_expiry) {
      expire(&producer);
    }
    expect_recovery(&producer, &consumer, nth);
  }
  kvf_node_close(consumer.node);
  kvf_node_close(producer.node);
  (void)allocation_stop();
  if (where != NULL) {
    fail_msg("allocation %ld failed: %s() gave %s", nth, where, kvf_status_name(unexpected));
  }
  /* The thread that has looked at a peer (transport/local/local_check.h) outlives its link by a moment. */
  for (int tries = 0; tries < 100 && allocation_live() != before; tries++) {
    sleep_ms(10);
  }
  if (allocation_live() != before) {
    fail_msg("allocation %ld failed: %ld allocations are left", nth, allocation_live() - before);
  }
  return !allocation_has_failed();
}

/* Threads of several nodes allocate, so that the n-th is not always the same one: over several n it is each of them. */
static void every_allocation_fails(const char *names, bool all_after)
{
  transports = names;
  long nth = 1;
  late = 0;
  while (!scenario(nth, all_after, nth % 10 == 0)) {
    nth++;
    assert_true(nth < 5000);
  }
  print_message("%s: %ld allocations%s\n", names, nth - 1, all_after ? ", and all after" : "");
  assert_true(nth > 60);
  assert_true(late < nth / 10);
}

EACH_TRANSPORT_TEST(once)
{
  every_allocation_fails(transport, false);
}

EACH_TRANSPORT_TEST(from_there_on)
{
  every_allocation_fails(transport, true);
}
