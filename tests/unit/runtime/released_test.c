/* P4 for whole nodes and two processes: loads are aborted at any time, with the producer running or stopped. After
 * KVF_EVENT_RELEASED not one byte of the destination changes, although the producer goes on and overwrites its blocks.
 */
#include <time.h>

#include "base/prng.h"
#include "base/time.h"
#include "producer_process.h"
#include "test.h"
#include "transport/thread.h"

#define PATIENCE_MS 20000
#define ROUNDS 100
#define COUNT 32 /* blocks of a load; the producer's are every second one of its pool */
#define FIRST 32 /* the destination: the upper half of the consumer's pool */
#define CHECK_COUNT 8

#define DESTINATION_BYTES ((size_t)COUNT * PAIR_BLOCK_BYTES)

typedef struct world {
  producer_process producer;
  pair_node consumer;
  uint8_t *snapshot[PAIR_REGIONS];
  kvf_prng prng;
  uint64_t usual_ns; /* what a load takes */
  uint64_t next_id;
  uint32_t aborted;
  uint32_t completed;
} world;

static uint64_t below(world *w, uint64_t bound)
{
  return bound == 0 ? 0 : kvf_prng_next(&w->prng) % bound;
}

static void open_world(world *w, const char *transports, const char *streams)
{
  const pair_option options[] = {{"transports", transports},        {"tcp_streams", streams},
                                 {"chunk_bytes", "65536"},          {"breaker_cooldown_ms", "10"},
                                 {"breaker_cooldown_max_ms", "20"}, {NULL, NULL}};
  memset(w, 0, sizeof(*w));
  w->prng.state = 4;
  w->next_id = 1;
  producer_process_start(&w->producer, options);
  pair_open_node(&w->consumer, options);
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    w->snapshot[i] = malloc(DESTINATION_BYTES);
    assert_non_null(w->snapshot[i]);
  }
}

static void close_world(world *w)
{
  pair_close_node(&w->consumer);
  producer_process_end(&w->producer);
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    free(w->snapshot[i]);
  }
}

/* Takes events until `until_ns`, or until the load is released. Returns whether it is. */
static bool take_events(world *w, uint64_t id, uint64_t until_ns, kvf_status *outcome)
{
  while (kvf_clock_now() < until_ns) {
    kvf_event event;
    if (kvf_node_poll(w->consumer.node, &event, 1) == 0) {
      const struct timespec moment = {.tv_nsec = 20000};
      (void)nanosleep(&moment, NULL);
    } else if (event.id != id) {
      continue;
    } else if (event.kind == KVF_EVENT_LOAD) {
      *outcome = (kvf_status)event.u.report.status;
    } else if (event.kind == KVF_EVENT_RELEASED) {
      return true;
    }
  }
  return false;
}

static uint64_t patience_ns(void)
{
  return kvf_clock_now() + kvf_ms_to_ns(PATIENCE_MS);
}

/* A load that nobody disturbs; it is the first to use streams that an aborted one had, or those that replace them. */
static void load_whole(world *w, uint32_t count, uint32_t seed, uint32_t first)
{
  pair_ticket ticket;
  kvf_status outcome = KVF_CANCELLED;
  uint64_t until_ns = patience_ns();
  producer_process_offer(&w->producer, 1, count, seed, &ticket);
  while (outcome != KVF_OK && kvf_clock_now() < until_ns) { /* a stopped producer may have tripped the breaker */
    uint64_t id = w->next_id++;
    assert_int_equal(pair_load(&w->consumer, &ticket, id, first), KVF_OK);
    assert_true(take_events(w, id, until_ns, &outcome));
  }
  assert_int_equal(outcome, KVF_OK);
  for (uint32_t i = 0; i < count; i++) {
    assert_true(pair_holds(&w->consumer, first + i, seed, i));
  }
  producer_process_overwrite(&w->producer, &ticket, seed + 1);
}

static void measure(world *w)
{
  w->usual_ns = UINT64_MAX;
  for (int i = 0; i < 8; i++) {
    pair_ticket ticket;
    kvf_status outcome = KVF_CANCELLED;
    producer_process_offer(&w->producer, 0, COUNT, 1, &ticket);
    uint64_t before_ns = kvf_clock_now();
    assert_int_equal(pair_load(&w->consumer, &ticket, w->next_id, FIRST), KVF_OK);
    assert_true(take_events(w, w->next_id++, patience_ns(), &outcome));
    assert_int_equal(outcome, KVF_OK);
    w->usual_ns = kvf_time_min(w->usual_ns, kvf_clock_now() - before_ns); /* others connected first, or were held up */
    producer_process_overwrite(&w->producer, &ticket, 2);
  }
}

static const uint8_t *destination(const world *w, uint32_t region)
{
  return w->consumer.pool[region] + (size_t)FIRST * PAIR_BLOCK_BYTES;
}

/* One load, aborted some time before its usual end; for every second one the producer is stopped
 * some time before that. */
static void abort_one(world *w, uint32_t round)
{
  pair_ticket ticket;
  kvf_status outcome = KVF_OK;
  uint32_t seed = 10 + round;
  uint64_t id = w->next_id++;
  bool stop = round % 2 == 1;
  uint64_t abort_after_ns = below(w, w->usual_ns);
  uint64_t stop_after_ns = below(w, abort_after_ns);
  producer_process_offer(&w->producer, 0, COUNT, seed, &ticket);
  uint64_t start_ns = kvf_clock_now();
  assert_int_equal(pair_load(&w->consumer, &ticket, id, FIRST), KVF_OK);
  bool load_released = stop && take_events(w, id, start_ns + stop_after_ns, &outcome);
  if (stop) {
    producer_process_stop(&w->producer);
  }
  load_released = load_released || take_events(w, id, start_ns + abort_after_ns, &outcome);
  (void)kvf_load_abort(w->consumer.node, id);
  if (!load_released && !take_events(w, id, patience_ns(), &outcome)) {
    fail_msg("round %u: not released", round);
  }
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    memcpy(w->snapshot[i], destination(w, i), DESTINATION_BYTES);
  }
  if (stop) {
    producer_process_continue(&w->producer);
  }
  producer_process_overwrite(&w->producer, &ticket, seed + 100);
  load_whole(w, CHECK_COUNT, seed + 200, 0);
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    if (memcmp(w->snapshot[i], destination(w, i), DESTINATION_BYTES) != 0) {
      fail_msg("round %u: bytes were written after released", round);
    }
  }
  assert_true(outcome == KVF_OK || outcome == KVF_ABORTED);
  for (uint32_t i = 0; outcome == KVF_OK && i < COUNT; i++) {
    assert_true(pair_holds(&w->consumer, FIRST + i, seed, i));
  }
  w->aborted += outcome == KVF_ABORTED;
  w->completed += outcome == KVF_OK;
}

static void abort_many(const char *transports, const char *streams, uint32_t rounds)
{
  world w;
  open_world(&w, transports, streams);
  measure(&w);
  for (uint32_t round = 0; round < rounds; round++) {
    abort_one(&w, round);
  }
  print_message("%s: %u aborted, %u had completed; a load takes %u us\n", transports, w.aborted, w.completed,
                (unsigned)(w.usual_ns / 1000));
  assert_true(w.aborted > 0);
  assert_int_equal(w.aborted + w.completed, rounds);
  assert_true(kvf_node_healthy(w.consumer.node));
  close_world(&w);
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
  bool is_producer = argc > 1 && strcmp(argv[1], "--producer") == 0;
  return is_producer ? producer_process_main() : test_run(NULL);
}
