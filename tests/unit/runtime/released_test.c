/* P4 for whole nodes and two processes: loads are aborted at any time, with the producer running or stopped. After
 * KVF_EVENT_RELEASED not one byte of the destination changes, although the producer goes on and overwrites its blocks.
 */
#include "base/prng.h"
#include "base/time.h"
#include "pair.h"
#include "test.h"
#include "transport/thread.h"

#define PATIENCE_US UINT64_C(20000000)
#define ROUNDS 100
#define COUNT 32 /* blocks of a load; the producer's are every second one of its pool */
#define FIRST 32 /* the destination: the upper half of the consumer's pool */
#define CHECK_COUNT 8
#define BLOCK_BYTES 32768 /* that take a while to copy */
#define DESTINATION_BYTES ((size_t)COUNT * BLOCK_BYTES)

static producer_process producer;
static pair_node consumer;
static uint8_t snapshot[PAIR_REGIONS][DESTINATION_BYTES];
static uint64_t last_id;

/* A load that nobody disturbs; it is the first to use streams that an aborted one had, or those that replace them.
 * Returns what it took. */
static uint64_t load_whole(uint32_t count, uint32_t seed, uint32_t first)
{
  pair_ticket ticket;
  pair_result result = {.report.status = KVF_CANCELLED};
  uint64_t begin_ns = 0;
  const uint64_t until_ns = kvf_clock_now() + PATIENCE_US * 1000;
  producer_process_offer(&producer, 1, count, seed, (engine_write){0}, &ticket);
  while (result.report.status != KVF_OK &&
         kvf_clock_now() < until_ns) { /* a stopped one may have tripped the breaker */
    result = (pair_result){0};
    begin_ns = kvf_clock_now();
    assert_int_equal(pair_load(&consumer, &ticket, ++last_id, first), KVF_OK);
    assert_true(pair_poll_load(&consumer, last_id, PATIENCE_US, &result));
  }
  const uint64_t took_ns = kvf_clock_now() - begin_ns;
  assert_int_equal(result.report.status, KVF_OK);
  assert_true(pair_holds_all(&consumer, first, count, seed));
  producer_process_overwrite(&producer, &ticket, seed + 1, (engine_write){0});
  return took_ns;
}

static uint8_t *destination(uint32_t region)
{
  return consumer.pool[region] + (size_t)FIRST * BLOCK_BYTES;
}

/* One load, aborted some time before its usual end; for every second one the producer is stopped some time before that.
 * Returns its status. */
static int abort_one(uint32_t round, uint64_t usual_us, kvf_prng *prng)
{
  pair_ticket ticket;
  pair_result result = {0};
  const uint32_t seed = 10 + round;
  const uint64_t id = ++last_id;
  const bool stop = round % 2 == 1;
  const uint64_t abort_after_us = kvf_prng_below(prng, usual_us);
  const uint64_t stop_after_us = stop ? kvf_prng_below(prng, abort_after_us + 1) : 0;
  producer_process_offer(&producer, 0, COUNT, seed, (engine_write){0}, &ticket);
  assert_int_equal(pair_load(&consumer, &ticket, id, FIRST), KVF_OK);
  if (stop) {
    (void)pair_poll_load(&consumer, id, stop_after_us, &result);
    assert_true(child_stop(&producer.child));
  }
  (void)pair_poll_load(&consumer, id, abort_after_us - stop_after_us, &result);
  (void)kvf_load_abort(consumer.node, id);
  if (!pair_poll_load(&consumer, id, PATIENCE_US, &result)) {
    fail_msg("round %u: not released", round);
  }
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    memcpy(snapshot[i], destination(i), DESTINATION_BYTES);
  }
  if (stop) {
    assert_true(child_continue(&producer.child));
  }
  producer_process_overwrite(&producer, &ticket, seed + 100, (engine_write){0});
  (void)load_whole(CHECK_COUNT, seed + 200, 0);
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    if (memcmp(snapshot[i], destination(i), DESTINATION_BYTES) != 0) {
      fail_msg("round %u: bytes were written after released", round);
    }
  }
  assert_true(result.report.status != KVF_OK || pair_holds_all(&consumer, FIRST, COUNT, seed));
  return result.report.status;
}

static void abort_many(const char *transports, const char *streams, uint32_t rounds)
{
  const pair_option options[] = {{"transports", transports},
                                 {"tcp_streams", streams},
                                 {"chunk_bytes", "65536"},
                                 {"breaker_cooldown_ms", "10"},
                                 {"breaker_cooldown_max_ms", "20"},
                                 {"block_bytes", "32768"}, /* BLOCK_BYTES */
                                 {NULL, NULL}};
  kvf_prng prng = {4};
  uint64_t usual_ns = UINT64_MAX;
  uint32_t aborted = 0;
  producer_process_start(&producer, options);
  pair_open_node(&consumer, options);
  for (uint32_t i = 0; i < 8; i++) { /* some connected first, or were held up */
    usual_ns = kvf_time_min(usual_ns, load_whole(COUNT, 1000 + 2 * i, FIRST));
  }
  for (uint32_t round = 0; round < rounds; round++) {
    const int status = abort_one(round, usual_ns / 1000, &prng);
    assert_true(status == KVF_OK || status == KVF_ABORTED);
    aborted += status == KVF_ABORTED;
  }
  print_message("%s: %u of %u aborted; a load takes %u us\n", transports, aborted, rounds, (unsigned)(usual_ns / 1000));
  assert_true(aborted > 0);
  assert_true(kvf_node_healthy(consumer.node));
  pair_close_node(&consumer);
  producer_process_end(&producer);
}

TEST(nothing_is_written_after_released_local)
{
  abort_many("local", "1", ROUNDS);
}

TEST(nothing_is_written_after_released_tcp)
{
  abort_many("tcp", "1", ROUNDS / 2);
  abort_many("tcp", "4", ROUNDS / 2);
}

int main(int argc, char **argv)
{
  return producer_process_main(argc, argv);
}
