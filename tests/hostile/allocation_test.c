/* The n-th allocation of the library's own code fails, for every n, over a node's whole life on the public interface:
 * open, register, publish, ticket, request, load, abort, cancel, expiry, close, with real sockets and threads. Each
 * call and each load ends in time, well or with a typed reason; no wrong byte is confirmed; nothing leaks, as the
 * count of live allocations tells in every build, and a sanitizer in its own.
 */
#include <time.h>

#include "../allocation.h"
#include "kvferry/kvferry.h"
#include "test.h"

#define BLOCKS 64
#define BLOCK_BYTES 1024
#define BLOCK_TOKENS 16
#define COUNT 8
#define PATIENCE_MS 20000
#define TIMEOUT_MS 200 /* of a handshake, and of a stall */
#define LOAD_TIMEOUT_MS 1500
#define LATE_MS 8000

static bool healed; /* what had failed is excused */

static bool is_excused(void)
{
  return healed || allocation_has_failed();
}

static uint64_t now_ms(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void sleep_ms(uint32_t ms)
{
  const struct timespec pause = {.tv_nsec = (long)ms * 1000000};
  (void)nanosleep(&pause, NULL);
}

/* ---- the scenario: nothing in it but the library allocates ---- */

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
  if (!typed || !is_excused()) {
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

static kvf_node *open_node(uint8_t *pool, size_t *address_bytes, uint8_t address[KVF_ADDRESS_BYTES_MAX])
{
  static const char *const options[][2] = {{"handshake_timeout_ms", "200"}, /* TIMEOUT_MS */
                                           {"stall_timeout_ms", "200"},
                                           {"load_timeout_ms", "1500"}, /* LOAD_TIMEOUT_MS */
                                           {"breaker_cooldown_ms", "5"},
                                           {"breaker_cooldown_max_ms", "10"},
                                           {"lease_ttl_ms", "400"},
                                           {"lease_slots", "16"},
                                           {"loads_max", "16"},
                                           {"chunk_bytes", "4096"}};
  kvf_config config;
  kvf_node *node = NULL;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_config_init(&config);
  config.block_tokens = BLOCK_TOKENS;
  config.log = be_silent;
  assert_int_equal(kvf_config_set(&config, "transports", transports, message), KVF_OK);
  for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
    assert_int_equal(kvf_config_set(&config, options[i][0], options[i][1], message), KVF_OK);
  }
  if (!is_well(kvf_node_open(&config, &node, message), "node_open")) {
    assert_null(node);
    return NULL;
  }
  const kvf_region region = {.base = pool,
                             .stride_bytes = BLOCK_BYTES,
                             .block_bytes = BLOCK_BYTES,
                             .blocks = BLOCKS,
                             .heads = 1,
                             .heads_total = 1};
  bool good = is_well(kvf_node_register(node, &region, 1), "register") &&
              is_well(kvf_node_address(node, address, KVF_ADDRESS_BYTES_MAX, address_bytes), "address") &&
              is_well(kvf_node_set_ranks(node, address, address_bytes, 1), "set_ranks");
  if (!good) {
    kvf_node_close(node);
    return NULL;
  }
  return node;
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
static void take_back(kvf_node *producer, const kvf_lease *lease)
{
  kvf_event event;
  (void)kvf_lease_end(producer, lease);
  (void)kvf_lease_release(producer, lease->id);
  while (kvf_node_poll(producer, &event, 1) > 0) {
  }
}

/* Reserves, publishes, makes the ticket. */
static bool offer(kvf_node *producer, uint32_t seed, kvf_lease *lease)
{
  const kvf_blocks blocks = {.ids = source, .counts = count_of, .groups = 1};
  const kvf_prompt prompt = prompt_of(seed);
  offered_ms = now_ms();
  for (uint32_t i = 0; i < COUNT; i++) {
    memset(pools[0] + (size_t)source[i] * BLOCK_BYTES, byte_of(seed, i), BLOCK_BYTES);
  }
  if (!is_well(kvf_lease_reserve(producer, COUNT, 0, lease), "reserve")) {
    return false;
  }
  if (is_well(kvf_lease_publish(producer, lease, &blocks, &prompt, NULL, 7), "publish") &&
      is_well(kvf_ticket_make(producer, lease, &blocks, &prompt, ticket, sizeof(ticket), &ticket_bytes), "ticket")) {
    return true;
  }
  take_back(producer, lease);
  return false;
}

typedef struct waited {
  bool loaded;
  bool load_released;
  bool decided;
  kvf_report report;
} waited;

static void take(kvf_node *consumer, uint64_t id, const kvf_event *event, waited *w)
{
  if (event->id != id) {
    return;
  }
  if (event->kind == KVF_EVENT_LOAD) {
    assert_false(w->loaded);
    w->loaded = true;
    w->report = event->u.report;
    (void)kvf_request_report(consumer, &event->u.report);
  } else if (event->kind == KVF_EVENT_RELEASED) {
    assert_true(w->loaded && !w->load_released);
    w->load_released = true;
    (void)kvf_request_released(consumer, id, 1);
  } else if (event->kind == KVF_EVENT_VERDICT) {
    assert_false(w->decided);
    w->decided = true;
  }
}

static void wait_for(kvf_node *consumer, uint64_t id, waited *w)
{
  uint64_t begun_ms = now_ms();
  while (!(w->load_released && w->decided)) {
    kvf_event event;
    if (kvf_node_poll(consumer, &event, 1) > 0) {
      take(consumer, id, &event, w);
    } else {
      sleep_ms(1);
    }
    assert_true(now_ms() - begun_ms < PATIENCE_MS);
  }
  assert_true(now_ms() - begun_ms < LOAD_TIMEOUT_MS + LATE_MS);
}

static void check(const waited *w, uint32_t seed)
{
  const kvf_status_info *info = kvf_status_describe(w->report.status);
  assert_int_equal(info->status, w->report.status);
  assert_int_not_equal(info->lost, KVF_LOST_CALL);
  if (w->report.status != KVF_OK && !is_excused()) {
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

static void consume(kvf_node *consumer, uint32_t seed, ending how)
{
  const kvf_prompt prompt = prompt_of(seed);
  kvf_request_info info;
  waited w = {0};
  memset(pools[1], 0, sizeof(pools[1]));
  if (!is_well(kvf_request_open(consumer, ticket, ticket_bytes, &prompt, NULL, 9, &info), "request_open")) {
    return;
  }
  if (how == END_CANCELLED) {
    assert_int_equal(kvf_request_cancel(consumer, info.id), KVF_OK);
    return;
  }
  assert_int_equal(kvf_request_begin(consumer, info.id), KVF_OK);
  const kvf_load_params load = {.request_id = info.id,
                                .ticket = ticket,
                                .ticket_bytes = ticket_bytes,
                                .prompt = prompt,
                                .destination = {.ids = target, .counts = count_of, .groups = 1},
                                .user = 5};
  if (!is_well(kvf_load_start(consumer, &load), "load_start")) {
    (void)kvf_request_cancel(consumer, info.id);
    (void)kvf_request_released(consumer, info.id, 1);
    return;
  }
  if (how == END_ABORTED) {
    (void)kvf_load_abort(consumer, info.id);
  }
  wait_for(consumer, info.id, &w);
  if (how != END_ABORTED) {
    check(&w, seed);
  }
}

static void load_between(kvf_node *producer, kvf_node *consumer)
{
  kvf_lease lease;
  for (uint32_t i = 0; i < 3; i++) {
    if (offer(producer, i + 1, &lease)) {
      consume(consumer, i + 1, (ending)i);
      take_back(producer, &lease);
    }
  }
}

/* A lease that nobody reads ends by itself, however little memory there is. */
static void expire(kvf_node *producer)
{
  kvf_lease lease;
  if (!offer(producer, 9, &lease)) {
    return;
  }
  uint64_t until_ms = now_ms() + PATIENCE_MS;
  bool over = false;
  while (!over) {
    kvf_event event;
    over = kvf_node_poll(producer, &event, 1) > 0 && event.kind == KVF_EVENT_LEASE_ENDED && event.id == lease.id;
    if (!over) {
      sleep_ms(2);
    }
    assert_true(now_ms() < until_ms);
  }
  assert_int_equal(kvf_lease_release(producer, lease.id), KVF_OK);
}

/* Returns whether all came about without a failure of an allocation. */
static bool scenario(long nth, bool for_good, bool with_expiry)
{
  uint8_t addresses[2][KVF_ADDRESS_BYTES_MAX];
  size_t bytes[2];
  long before = allocation_live();
  where = NULL;
  allocation_fail(nth - 1, for_good ? LONG_MAX : 1);
  kvf_node *producer = open_node(pools[0], &bytes[0], addresses[0]);
  kvf_node *consumer = producer == NULL ? NULL : open_node(pools[1], &bytes[1], addresses[1]);
  if (consumer != NULL) {
    load_between(producer, consumer);
    if (with_expiry) {
      expire(producer);
    }
    (void)allocation_stop(); /* and memory is there again: as if nothing had been */
    kvf_lease lease;
    healed = true;
    waited w = {0};
    for (int tries = 0; tries < 200 && w.report.prefix < COUNT; tries++) {
      if (!offer(producer, 20, &lease)) {
        fail_msg("allocation %ld failed, later %s() gave %s", nth, where, kvf_status_name(unexpected));
      }
      w = (waited){0};
      const kvf_prompt prompt = prompt_of(20);
      kvf_request_info info;
      assert_int_equal(kvf_request_open(consumer, ticket, ticket_bytes, &prompt, NULL, 9, &info), KVF_OK);
      assert_int_equal(kvf_request_begin(consumer, info.id), KVF_OK);
      const kvf_load_params load = {.request_id = info.id,
                                    .ticket = ticket,
                                    .ticket_bytes = ticket_bytes,
                                    .prompt = prompt,
                                    .destination = {.ids = target, .counts = count_of, .groups = 1}};
      assert_int_equal(kvf_load_start(consumer, &load), KVF_OK);
      wait_for(consumer, info.id, &w);
      check(&w, 20);
      take_back(producer, &lease);
      if (w.report.status != KVF_OK) {
        sleep_ms(10);
      }
    }
    if (w.report.status != KVF_OK) {
      fail_msg("allocation %ld failed; for ever after: %s", nth, kvf_status_name(w.report.status));
    }
    healed = false;
  }
  kvf_node_close(consumer);
  kvf_node_close(producer);
  (void)allocation_stop();
  if (where != NULL) {
    fail_msg("allocation %ld failed: %s() gave %s", nth, where, kvf_status_name(unexpected));
  }
  /* The thread that has looked at a peer (transport/local/check.h) outlives its link by a moment. */
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

TEST(once_local)
{
  every_allocation_fails("local", false);
}

TEST(once_tcp)
{
  every_allocation_fails("tcp", false);
}

TEST(from_there_on_local)
{
  every_allocation_fails("local", true);
}

TEST(from_there_on_tcp)
{
  every_allocation_fails("tcp", true);
}
