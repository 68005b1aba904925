#include "world.h"

#include <malloc.h>

#include "../sanitizer.h"
#include "test.h"
#include "wire/rank_record.h"

#define HEALTHY_FIRST 0 /* blocks 0, 2, … of the producer */
#define HARMED_FIRST 17 /* blocks 17, 19, … */
#define DESTINATION 20

/* ---- costs ---- */

costs costs_now(void)
{
  costs now = {.descriptors = pair_count_entries("/proc/self/fd"), .threads = pair_count_entries("/proc/self/task")};
  if (!SANITIZED) { /* whose allocator does not tell */
    const struct mallinfo2 info = mallinfo2();
    now.memory_bytes = info.uordblks + info.hblkhd;
  }
  return now;
}

void costs_expect(costs before, size_t slack_bytes)
{
  uint64_t until_ms = pair_now_ms() + WORLD_PATIENCE_MS;
  costs now = costs_now();
  while ((now.descriptors != before.descriptors || now.threads != before.threads ||
          now.memory_bytes > before.memory_bytes + slack_bytes) &&
         pair_now_ms() < until_ms) {
    pair_sleep_ms(5);
    now = costs_now();
  }
  assert_int_equal(now.descriptors, before.descriptors);
  assert_int_equal(now.threads, before.threads);
  if (now.memory_bytes > before.memory_bytes + slack_bytes) {
    fail_msg("%zu bytes are allocated, %zu were", now.memory_bytes, before.memory_bytes);
  }
}

/* ---- beside ---- */

static kvf_status load_good(beside *b, uint32_t seed)
{
  pair_node *producer = b->producer;
  pair_node *consumer = &b->consumer;
  pair_ticket ticket;
  pair_result result;
  uint64_t id = 0;
  (void)pthread_mutex_lock(&b->offers);
  pair_offer(producer, HEALTHY_FIRST, WORLD_BLOCKS, seed, true, &ticket);
  (void)pthread_mutex_unlock(&b->offers);
  kvf_status status = pair_request(consumer, &ticket, &ticket.prompt, &id);
  if (status == KVF_OK) {
    status = pair_load(consumer, &ticket, id, DESTINATION);
  }
  if (status == KVF_OK) {
    pair_wait(consumer, id, WORLD_PATIENCE_MS, &result);
    status = result.load_released && result.decided ? (kvf_status)result.report.status : KVF_DEADLINE;
  }
  for (uint32_t i = 0; status == KVF_OK && i < WORLD_BLOCKS; i++) {
    status = pair_holds(consumer, DESTINATION + i, seed, i) ? KVF_OK : KVF_CHECKSUM;
  }
  (void)kvf_lease_end(producer->node, &ticket.lease);
  (void)kvf_lease_release(producer->node, ticket.lease.id);
  return status;
}

/* The producer's engine takes its blocks back: a lease is kept until its end has been polled. */
static void take_ends(pair_node *producer)
{
  kvf_event events[16];
  while (kvf_node_poll(producer->node, events, 16) > 0) {
  }
}

static void *load_on(void *context)
{
  beside *b = context;
  for (uint32_t seed = 1; !atomic_load(&b->stop); seed++) {
    kvf_status status = load_good(b, seed % 1000);
    int none = KVF_OK;
    if (status != KVF_OK) {
      (void)atomic_compare_exchange_strong(&b->failure, &none, (int)status);
    }
    take_ends(b->producer);
    atomic_fetch_add(&b->loads, 1);
    pair_sleep_ms(2); /* the machine is for the others, too */
  }
  return NULL;
}

static void wait_loads(beside *b, unsigned count)
{
  uint64_t until_ms = pair_now_ms() + WORLD_PATIENCE_MS;
  while (atomic_load(&b->loads) < count && pair_now_ms() < until_ms) {
    pair_sleep_ms(1);
  }
  assert_true(atomic_load(&b->loads) >= count);
}

void beside_start(beside *b, pair_node *producer, const pair_option *options)
{
  memset(b, 0, sizeof(*b));
  b->producer = producer;
  (void)pthread_mutex_init(&b->offers, NULL);
  pair_open_node(&b->consumer, options);
  assert_int_equal(pthread_create(&b->thread, NULL, load_on, b), 0);
  wait_loads(b, 2);
}

void beside_expect_undisturbed(beside *b)
{
  wait_loads(b, atomic_load(&b->loads) + 2);
  int failure = atomic_load(&b->failure);
  if (failure != KVF_OK) {
    fail_msg("a load beside has failed: %s", kvf_status_name(failure));
  }
  assert_int_equal(pair_stat(&b->consumer, "load_retries", ""), 0);
  assert_int_equal(pair_stat(&b->consumer, "peer_failures", ""), 0);
}

void beside_stop(beside *b)
{
  atomic_store(&b->stop, true);
  (void)pthread_join(b->thread, NULL);
  pair_close_node(&b->consumer);
}

/* ---- a load ---- */

static void check(const pair_node *consumer, uint32_t seed, const pair_result *result, outcome *out)
{
  assert_true(result->loaded);
  assert_true(result->load_released);
  assert_true(result->decided);
  out->status = (kvf_status)result->report.status;
  out->prefix = result->report.prefix;
  out->verdict = result->verdict;
  const kvf_status_info *info = kvf_status_describe(result->report.status);
  assert_int_equal(info->status, out->status);
  assert_int_not_equal(info->lost, KVF_LOST_CALL);
  assert_true(out->status != KVF_OK || out->prefix == WORLD_BLOCKS);
  for (uint32_t i = 0; i < out->prefix; i++) {
    assert_true(pair_holds(consumer, DESTINATION + i, seed, i));
  }
}

void world_load_ticket(pair_node *consumer, const pair_ticket *ticket, uint32_t seed, outcome *out)
{
  pair_result result;
  uint64_t id = 0;
  uint64_t begun_ms = pair_now_ms();
  uint64_t retries = pair_stat(consumer, "load_retries", "");
  memset(out, 0, sizeof(*out));
  for (uint32_t i = 0; i < WORLD_BLOCKS; i++) {
    pair_fill(consumer, DESTINATION + i, seed + 1, i); /* so that nothing is right by chance */
  }
  out->started = pair_request(consumer, ticket, &ticket->prompt, &id);
  if (out->started != KVF_OK) {
    return;
  }
  out->started = pair_load(consumer, ticket, id, DESTINATION);
  if (out->started != KVF_OK) {
    (void)kvf_request_cancel(consumer->node, id);
    return;
  }
  pair_wait(consumer, id, WORLD_PATIENCE_MS, &result);
  out->took_ms = pair_now_ms() - begun_ms;
  out->retries = pair_stat(consumer, "load_retries", "") - retries;
  check(consumer, seed, &result, out);
}

void world_load(pair_node *producer, pair_node *consumer, uint32_t seed, outcome *out)
{
  pair_ticket ticket;
  pair_offer(producer, HARMED_FIRST, WORLD_BLOCKS, seed, true, &ticket);
  world_load_ticket(consumer, &ticket, seed, out);
  (void)kvf_lease_end(producer->node, &ticket.lease);
  (void)kvf_lease_release(producer->node, ticket.lease.id);
}

void world_expect_recovery(pair_node *producer, pair_node *consumer, uint32_t seed)
{
  outcome out = {.status = KVF_PEER_DOWN};
  uint64_t until_ms = pair_now_ms() + WORLD_PATIENCE_MS;
  do {
    if (pair_now_ms() >= until_ms) {
      fail_msg("no recovery: %s, %s", kvf_status_name(out.started), kvf_status_name(out.status));
    }
    world_load(producer, consumer, seed, &out);
    if (out.status != KVF_OK) {
      pair_sleep_ms(10);
    }
  } while (out.started != KVF_OK || out.status != KVF_OK);
}

uint16_t world_control_port(const pair_node *producer)
{
  uint8_t bytes[KVF_ADDRESS_BYTES_MAX];
  size_t count = 0;
  kvf_rank_record record;
  assert_int_equal(kvf_node_address(producer->node, bytes, sizeof(bytes), &count), KVF_OK);
  assert_int_equal(kvf_rank_record_decode(bytes, count, &record), KVF_OK);
  return record.address.port;
}
