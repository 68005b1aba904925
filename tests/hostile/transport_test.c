/* Whole nodes on a transport that fails in every way it may (tests/sides/faults.h). P1 to P4 for each load, whatever
 * the transport says and however late; loads succeed again when the faults end; nothing is left. */

#include "../sides/faults.h"
#include "../sides/side.h"
#include "base/prng.h"
#include "pair.h"
#include "test.h"

#define ROUNDS 120
#define ROUNDS_SLOW 30
#define SLACK_BYTES 65536
#define QUARANTINE 0x77

extern const kvf_transport_ops __real_kvf_transport_local;
extern const kvf_transport_ops __real_kvf_transport_tcp;
extern const kvf_transport_ops __real_kvf_transport_ucx;

static const char *transports;
static uint32_t rounds;

typedef struct scene {
  pair_node producer;
  pair_node consumer;
  costs before;
} scene;

static scene s;

static void open_node(pair_node *n)
{
  const pair_option options[] = {{"transports", transports},
                                 {"handshake_timeout_ms", "300"},
                                 {"stall_timeout_ms", "150"},
                                 {"load_timeout_ms", "1500"},
                                 {"release_timeout_ms", "300"},
                                 {"breaker_cooldown_ms", "5"},
                                 {"breaker_cooldown_max_ms", "10"},
                                 {"backoff_min_ms", "1"},
                                 {"backoff_max_ms", "20"},
                                 {"chunk_bytes", "16384"},
                                 {NULL, NULL}};
  pair_open_node(n, options);
}

static void open_scene(void)
{
  fault_plan_set(NULL);
  s.before = costs_now();
  open_node(&s.producer);
  open_node(&s.consumer);
}

static void close_scene(void)
{
  fault_plan_set(NULL);
  pair_close_node(&s.consumer);
  pair_close_node(&s.producer);
  costs_expect(s.before, SLACK_BYTES);
}

/* A load under the plan, and then good ones. Returns what came of the first one. */
static pair_outcome load_under(const fault_plan *plan, uint32_t seed)
{
  pair_outcome out;
  fault_plan_set(plan);
  pair_try(&s.producer, &s.consumer, seed, &out);
  pair_expect_told(&s.consumer, &out, "127.0.0.1:");
  fault_plan_set(NULL);
  pair_expect_recovery(&s.producer, &s.consumer, seed + 1);
  assert_true(kvf_node_healthy(s.consumer.node));
  return out;
}

/* What is for ever ends the load with a reason; what is only now and then costs a retry. */
TEST_WITH(every_status, open_scene, close_scene)
{
  for (uint32_t i = 0; i < 2 * fault_statuses_count; i++) {
    fault_plan plan = {.seed = i, .status = fault_statuses[i / 2]};
    fault_kind kind = i % 2 == 0 ? FAULT_FAIL : FAULT_REFUSE;
    plan.permille[kind] = 1000;
    assert_int_not_equal(load_under(&plan, 4 * i + 1).status, KVF_OK);
    plan.permille[kind] = 200;
    (void)load_under(&plan, 4 * i + 3);
  }
}

TEST_WITH(everything_at_random, open_scene, close_scene)
{
  kvf_prng prng = {7};
  uint32_t saved = 0;
  for (uint32_t round = 0; round < rounds; round++) {
    fault_plan plan = {.seed = round, .late_us_max = 100000};
    for (fault_kind kind = FAULT_LATE; kind < FAULT_KINDS; kind++) {
      plan.permille[kind] = (uint32_t)kvf_prng_below(&prng, 150);
    }
    plan.down_after = round % 2 == 0 ? 0 : 1 + (uint32_t)kvf_prng_below(&prng, 20);
    plan.link_up_us = round % 4 == 0 ? 20000 : 0;
    pair_outcome out = load_under(&plan, 2 * round + 1);
    saved += out.status == KVF_OK && out.retries > 0;
  }
  assert_true(saved > 0);
}

TEST_WITH(links_down_at_every_event, open_scene, close_scene)
{
  for (uint32_t event = 1; event <= 16; event++) {
    const fault_plan plan = {.seed = event, .permille = {[FAULT_LATE] = 300}, .late_us_max = 2000, .down_after = event};
    (void)load_under(&plan, 2 * event);
  }
}

TEST_WITH(links_that_do_not_come_up, open_scene, close_scene)
{
  for (uint32_t i = 0; i < 2 * fault_statuses_count; i++) {
    fault_plan plan = {.seed = i};
    *(i % 2 == 0 ? &plan.connect : &plan.link_up) = fault_statuses[i / 2];
    pair_close_node(&s.consumer); /* one that knows no link yet */
    open_node(&s.consumer);
    assert_int_not_equal(load_under(&plan, 2 * i + 1).status, KVF_OK);
  }
  const fault_plan never = {.link_up_us = 4000000};
  pair_close_node(&s.consumer);
  open_node(&s.consumer);
  assert_int_not_equal(load_under(&never, 1).status, KVF_OK);
}

/* P4, P2: cancels that the transport takes its time with. The outcome does not wait, released does, and by then no byte
 * comes any more. */
TEST_WITH(aborts_that_take_long, open_scene, close_scene)
{
  kvf_prng prng = {11};
  for (uint32_t round = 0; round < rounds / 2; round++) {
    const fault_plan plan = {.seed = round,
                             .permille = {[FAULT_NO_STOP] = 400, [FAULT_LATE] = 300, [FAULT_STALL] = 200},
                             .late_us_max = 30000};
    pair_ticket ticket;
    fault_plan_set(&plan);
    pair_offer(&s.producer, 17, PAIR_TRY_BLOCKS, round, true, &ticket);
    uint64_t id = pair_begin(&s.consumer, &ticket, 20);
    sleep_ms((uint32_t)kvf_prng_below(&prng, 4));
    (void)kvf_load_abort(s.consumer.node, id);
    assert_true(pair_wait_for(&s.consumer, id, PAIR_PATIENCE_MS).loaded);
    for (uint32_t region = 0; region < PAIR_REGIONS; region++) {
      memset(s.consumer.pool[region] + (size_t)20 * PAIR_BLOCK_BYTES, QUARANTINE,
             (size_t)PAIR_TRY_BLOCKS * PAIR_BLOCK_BYTES);
    }
    sleep_ms(5);
    for (uint32_t region = 0; region < PAIR_REGIONS; region++) {
      const uint8_t *bytes = s.consumer.pool[region] + (size_t)20 * PAIR_BLOCK_BYTES;
      assert_true(bytes[0] == QUARANTINE &&
                  memcmp(bytes, bytes + 1, (size_t)PAIR_TRY_BLOCKS * PAIR_BLOCK_BYTES - 1) == 0);
    }
    pair_take_back(&s.producer, &ticket);
  }
  fault_plan_set(NULL);
  pair_expect_recovery(&s.producer, &s.consumer, 5);
}

/* A node that cannot be opened, or registered, says so, leaves nothing, and can be tried again. */
TEST_WITH(nodes_that_cannot_open, open_scene, close_scene)
{
  costs before = costs_now();
  for (size_t i = 0; i < 3 * fault_statuses_count; i++) {
    kvf_status status = fault_statuses[i / 3];
    fault_plan plan = {0};
    *(i % 3 == 0 ? &plan.open : i % 3 == 1 ? &plan.set_memory : &plan.describe) = status;
    fault_plan_set(&plan);
    kvf_config config;
    kvf_node *node = NULL;
    char message[KVF_MESSAGE_BYTES_MAX];
    kvf_region region = {.base = s.consumer.pool[0],
                         .stride_bytes = PAIR_BLOCK_BYTES,
                         .block_bytes = PAIR_BLOCK_BYTES,
                         .blocks = PAIR_BLOCKS,
                         .heads = 1,
                         .heads_total = 1};
    kvf_config_init(&config);
    assert_int_equal(kvf_config_set(&config, "transports", transports, message), KVF_OK);
    if (i % 3 == 0) {
      assert_int_equal(kvf_node_open(&config, &node, message), status);
      assert_null(node);
      assert_true(message[0] != '\0');
    } else {
      assert_int_equal(kvf_node_open(&config, &node, message), KVF_OK);
      assert_int_equal(kvf_node_register(node, &region, 1), status);
      fault_plan_set(NULL);
      assert_int_equal(kvf_node_register(node, &region, 1), KVF_OK);
      kvf_node_close(node);
    }
  }
  fault_plan_set(NULL);
  costs_expect(before, SLACK_BYTES);
}

/* What a producer says of its transports may be wrong in any bit. */
TEST_WITH(garbled_descriptions, open_scene, close_scene)
{
  if (strstr(transports, "local") != NULL) {
    skip(); /* a local description holds addresses, which are the word of whoever has the key */
  }
  for (uint32_t seed = 0; seed < 40; seed++) {
    const fault_plan plan = {.seed = seed, .describes_garbage = true};
    pair_node producer;
    pair_outcome out;
    fault_plan_set(&plan);
    open_node(&producer);
    pair_try(&producer, &s.consumer, seed, &out);
    assert_int_equal(out.started, KVF_OK);
    assert_true(out.took_ms <= PAIR_TRY_TIMEOUT_MS + PAIR_LATE_MS);
    fault_plan_set(NULL);
    pair_close_node(&producer);
  }
  pair_expect_recovery(&s.producer, &s.consumer, 5);
}

#define IN_SCENE(test) cmocka_unit_test_setup_teardown(test, open_scene, close_scene)

/* What a process allocates once, it has after this. */
static void warm_up(void)
{
  open_node(&s.producer);
  open_node(&s.consumer);
  pair_expect_recovery(&s.producer, &s.consumer, 1);
  pair_close_node(&s.consumer);
  pair_close_node(&s.producer);
}

/* The transport, and optionally a part of tests' names. */
int main(int argc, char **argv)
{
  transports = argc > 1 ? argv[1] : "tcp";
  fault_inner_local = &__real_kvf_transport_local;
  fault_inner_tcp = &__real_kvf_transport_tcp;
  fault_inner_ucx = &__real_kvf_transport_ucx;
  bool has_ucx = strstr(transports, "ucx") != NULL;
  rounds = SANITIZED || has_ucx ? ROUNDS_SLOW : ROUNDS;
  if (has_ucx && with_ucx() != 0) {
    return WITHOUT_UCX;
  }
  warm_up();
  return test_run(argc > 2 ? argv[2] : NULL);
}
