/* A producer in another process that is stopped or killed at any moment of a load, for both transports, while a
 * consumer beside loads from another producer. The load ends in time in right bytes, or with a typed reason that is
 * logged with the peer and counted; when the producer goes on, or another takes its place, loads succeed; and all
 * descriptors, threads and memory are given back. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/prng.h"
#include "pair.h"
#include "test.h"

#define ROUNDS 25
#define SLACK_BYTES 131072
#define MOMENT_US 1500 /* about what connecting and loading take */

static const char *transports;
static pthread_t striker;

static void start_producer(producer_process *process)
{
  producer_process_start(process, (const pair_option[]){{"transports", transports}, {NULL, NULL}});
}

typedef struct strike {
  pid_t pid;
  int signal;
  uint32_t after_us;
} strike;

static void *strike_later(void *context)
{
  const strike *s = context;
  (void)usleep(s->after_us);
  (void)kill(s->pid, s->signal);
  return NULL;
}

static void open_consumer(pair_node *n)
{
  const pair_option options[] = {
      {"transports", transports},
      {"handshake_timeout_ms", "200"},
      {"stall_timeout_ms", "200"},
      {"load_timeout_ms", "1500"},
      {"breaker_cooldown_ms", "400"},
      /* probes of the dead must not use up the log's lines */ {"breaker_cooldown_max_ms", "2000"},
      {"chunk_bytes", "16384"},
      {NULL, NULL}};
  pair_open_node(n, options);
}

/* When the signal comes: once before the load begins, which fails however late the striker wakes up. */
static uint32_t moment_us(kvf_prng *prng, uint32_t round)
{
  return round == 0 ? 0 : 1 + (uint32_t)kvf_prng_below(prng, MOMENT_US);
}

/* A load during which the signal comes. Returns its status. */
static kvf_status load_struck(pair_node *consumer, producer_process *process, int signal, uint32_t after_us,
                              uint32_t seed)
{
  pair_ticket ticket;
  pair_outcome out;
  strike s = {.pid = process->child.pid, .signal = signal, .after_us = after_us};
  producer_process_offer(process, 1, PAIR_TRY_BLOCKS, seed, (engine_write){0}, &ticket);
  if (after_us == 0) {
    (void)strike_later(&s);
  }
  assert_int_equal(pthread_create(&striker, NULL, strike_later, &s), 0);
  pair_try_ticket(consumer, &ticket, &out);
  (void)pthread_join(striker, NULL);
  pair_expect_told(consumer, &out, "127.0.0.1:");
  return out.status;
}

static void expect_served(pair_node *consumer, producer_process *process, uint32_t seed)
{
  pair_outcome out = {.status = KVF_PEER_DOWN};
  uint64_t until_ms = now_ms() + PAIR_PATIENCE_MS;
  do {
    pair_ticket ticket;
    assert_true(now_ms() < until_ms);
    producer_process_offer(process, 1, PAIR_TRY_BLOCKS, seed, (engine_write){0}, &ticket);
    pair_try_ticket(consumer, &ticket, &out);
    sleep_ms(5);
  } while (out.started != KVF_OK || out.status != KVF_OK);
}

static void with_neighbours(void (*rounds)(void))
{
  static pair_node producer;
  static beside b; /* its thread outlives a test that fails */
  const pair_option patient[] = {{"transports", transports}, {NULL, NULL}};
  pair_open_node(&producer, patient);
  beside_start(&b, &producer, patient);
  rounds();
  beside_expect_undisturbed(&b, SLACK_BYTES);
  beside_stop(&b);
  pair_close_node(&producer);
}

static void stop_rounds(void)
{
  kvf_prng prng = {3};
  producer_process process;
  pair_node consumer;
  uint32_t failed = 0;
  start_producer(&process);
  open_consumer(&consumer);
  for (uint32_t i = 0; i < ROUNDS; i++) {
    kvf_status status = load_struck(&consumer, &process, SIGSTOP, moment_us(&prng, i), 2 * i + 1);
    failed += status != KVF_OK;
    assert_true(child_continue(&process.child));
    expect_served(&consumer, &process, 2 * i + 2);
  }
  assert_true(failed > 0 || strcmp(transports, "local") == 0); /* whose memory can be read while it stands still */
  pair_close_node(&consumer);
  producer_process_end(&process);
}

static void kill_rounds(void)
{
  kvf_prng prng = {5};
  pair_node consumer;
  uint32_t failed = 0;
  open_consumer(&consumer);
  for (uint32_t i = 0; i < ROUNDS; i++) {
    producer_process process;
    start_producer(&process);
    if (i % 2 == 0) { /* it knows the producer already */
      expect_served(&consumer, &process, 2 * i + 2);
    }
    failed += load_struck(&consumer, &process, SIGKILL, moment_us(&prng, i), 2 * i + 1) != KVF_OK;
    assert_true(WIFSIGNALED(child_end(&process.child)));
  }
  assert_true(failed > 0);
  pair_close_node(&consumer);
}

TEST(stopped_and_killed)
{
  static const char *const each[] = {"tcp", "local"};
  for (size_t i = 0; i < 2; i++) {
    transports = each[i];
    with_neighbours(stop_rounds);
    with_neighbours(kill_rounds);
  }
}

int main(int argc, char **argv)
{
  return producer_process_main(argc, argv);
}
