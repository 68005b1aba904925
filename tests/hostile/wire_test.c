/* Whole nodes over a network that fails at any byte of the conversation, on the control and on the data connections:
 * resets, ends, garbage, a peer that vanishes without a word, and one byte in 10 ms. Each load ends in time in right
 * bytes or with a typed reason; afterwards loads succeed again; a consumer beside notices nothing; nothing is left. */
#include <unistd.h>

#include "proxy.h"
#include "test.h"
#include "world.h"

/* Left over of what is kept for a while by design: log lines, tables that have grown. */
#define SLACK_BYTES 65536

static pair_option options[12] = {{"transports", "tcp"},         {"handshake_timeout_ms", "200"},
                                  {"stall_timeout_ms", "200"},   {"load_timeout_ms", "1500"},
                                  {"breaker_cooldown_ms", "10"}, {"breaker_cooldown_max_ms", "20"},
                                  {"chunk_bytes", "16384"},      {"lease_ttl_ms", "5000"}};
/* The consumer beside must not take a slow machine for a stall. */
static pair_option patient[8] = {
    {"transports", "tcp"}, {"stall_timeout_ms", "20000"}, {"handshake_timeout_ms", "20000"}};

typedef struct scene {
  pair_node producer;
  beside beside;
  costs before;
} scene;

static int open_scene(void **state)
{
  scene *s = calloc(1, sizeof(*s));
  assert_non_null(s);
  pair_open_node(&s->producer, options);
  beside_start(&s->beside, &s->producer, patient);
  proxy_start();
  s->before = costs_now();
  *state = s;
  return 0;
}

static int close_scene(void **state)
{
  scene *s = *state;
  proxy_stop();
  beside_stop(&s->beside);
  pair_close_node(&s->producer);
  free(s);
  return 0;
}

static uint64_t failures(pair_node *n, kvf_status status)
{
  return pair_stat(n, "loads_failed", kvf_status_name(status));
}

typedef enum moment { MOMENT_CAME, MOMENT_NEVER, MOMENT_UNKNOWN } moment;

/* One load with the network as planned from its first connection on, and whether the plan's moment came. UNKNOWN: it
 * did not, and the load failed all the same, since the machine was too slow for its short timeouts. */
static moment load_over(scene *s, const proxy_plan *plan, uint32_t seed)
{
  pair_node consumer;
  outcome out;
  char address[32];
  (void)snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)world_control_port(&s->producer));
  pair_open_node(&consumer, options);
  proxy_set(plan);
  proxy_arm(world_control_port(&s->producer));
  world_load(&s->producer, &consumer, seed, &out);
  bool came = proxy_count() > 0;
  assert_int_equal(out.started, KVF_OK);
  if (out.took_ms > WORLD_LOAD_TIMEOUT_MS + PAIR_LATE_MS) {
    fail_msg("mode %d line %d after %llu: %s after %llu ms", (int)plan->mode, (int)plan->line,
             (unsigned long long)plan->after_bytes, kvf_status_name(out.status), (unsigned long long)out.took_ms);
  }
  if (out.status != KVF_OK) {
    assert_int_equal(failures(&consumer, out.status), 1);
    assert_true(pair_wait_log(&consumer, kvf_status_name(out.status), address, WORLD_PATIENCE_MS));
  }
  const proxy_plan pass = {.mode = PROXY_PASS};
  proxy_set(&pass);
  world_expect_recovery(&s->producer, &consumer, seed + 1);
  pair_close_node(&consumer);
  proxy_disarm();
  if (came) {
    return MOMENT_CAME;
  }
  return out.status == KVF_OK ? MOMENT_NEVER : MOMENT_UNKNOWN;
}

/* Every few bytes of the handshake, and some of what comes later. */
static void sweep(scene *s, proxy_mode mode, proxy_line line, bool to_consumer)
{
  uint32_t seed = 1;
  uint64_t step = 37;
  proxy_plan plan = {.mode = mode, .line = line, .to_consumer = to_consumer};
  moment came = MOMENT_CAME;
  for (int unknown = 0; came != MOMENT_NEVER; unknown += came == MOMENT_UNKNOWN) {
    came = load_over(s, &plan, seed);
    seed = (seed + 2) % 900;
    assert_true(unknown < 20);
    if (came == MOMENT_CAME) {
      plan.after_bytes += step;
      step = plan.after_bytes > 150 ? step * 3 : step;
    }
  }
  assert_true(plan.after_bytes > 37);
  beside_expect_undisturbed(&s->beside);
  costs_expect(s->before, SLACK_BYTES);
}

static void sweep_all(scene *s, proxy_mode mode)
{
  for (int way = 0; way < 4; way++) {
    sweep(s, mode, way < 2 ? PROXY_CONTROL : PROXY_DATA, way % 2 == 0);
  }
}

TEST_WITH(resets, open_scene, close_scene)
{
  sweep_all(*state, PROXY_RESET);
}

TEST_WITH(ends_of_streams, open_scene, close_scene)
{
  sweep_all(*state, PROXY_CLOSE);
}

TEST_WITH(garbage, open_scene, close_scene)
{
  sweep_all(*state, PROXY_GARBAGE);
}

TEST_WITH(peers_that_vanish, open_scene, close_scene)
{
  sweep_all(*state, PROXY_VANISH);
}

TEST_WITH(slow_drips, open_scene, close_scene)
{
  sweep_all(*state, PROXY_DRIP);
}

static void add(pair_option *list, const char *name, const char *value)
{
  while (list->name != NULL) {
    list++;
  }
  *list = (pair_option){name, value};
}

static void be_inside_tls(char link_id[])
{
  int fd = mkstemp(link_id);
  assert_true(fd >= 0 && write(fd, "a key of sixteen", 16) == 16);
  (void)close(fd);
  for (int i = 0; i < 2; i++) {
    pair_option *list = i == 0 ? options : patient;
    add(list, "key_file", link_id);
    add(list, "tls", "always");
  }
}

/* All, or those whose name contains argv[1]; if there is an argv[2], all connections are inside TLS. */
int main(int argc, char **argv)
{
  static char key_path[] = "hostile-key.XXXXXX";
  if (argc > 2) {
    be_inside_tls(key_path);
  }
  int failed = test_run(argc > 1 ? argv[1] : NULL);
  (void)unlink(key_path);
  return failed;
}
