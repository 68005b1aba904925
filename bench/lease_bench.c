/* What a lease costs with a million of them live: nanoseconds of each operation, up to and including the stores and
 * give-backs that it leads to, and bytes; slots are visited in random order, time is virtual. And what a node's poll
 * costs that has nothing to report. One JSON object a line. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/prng.h"
#include "core/lease_table.h"
#include "kvferry/kvferry.h"

#define LEASES 1000000u
#define BATCH 1000u
#define BATCHES (LEASES / BATCH)
#define ROUNDS 3u
#define POLL_BATCHES 41u
#define BLOCKS 8u
#define TTL_MS 30000u
#define TTL_NS (TTL_MS * KVF_NS_PER_MS)
#define STEP_NS KVF_NS_PER_US

enum { PUBLISH, RENEW, ACKNOWLEDGE, REARM, EXPIRE, POLL, CASES };

static const char *const case_names[CASES] = {"lease/publish", "lease/renew",  "lease/acknowledge",
                                              "lease/rearm",   "lease/expire", "poll/nothing"};

typedef struct bench {
  kvf_lease_table table;
  kvf_fence_entry *fence;
  uint32_t *order;
  kvf_prng prng;
  uint64_t now_ns;
  uint64_t first_id;      /* of the leases that are live: slot i has first_id + i */
  double *samples[CASES]; /* ns an operation, one a batch */
  size_t samples_count[CASES];
  uint64_t given_back;
} bench;

/* The thread's own time: what other processes take is not the table's. */
static uint64_t clock_ns(void)
{
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
}

static void must(bool good, const char *what)
{
  if (!good) {
    fprintf(stderr, "lease_bench: %s\n", what);
    exit(1);
  }
}

static void shuffle(bench *b)
{
  for (uint32_t i = LEASES - 1; i > 0; i--) {
    uint32_t j = (uint32_t)kvf_prng_below(&b->prng, i + 1);
    uint32_t swap = b->order[i];
    b->order[i] = b->order[j];
    b->order[j] = swap;
  }
}

static void drain(bench *b)
{
  kvf_lease_store store;
  kvf_event ended;
  while (kvf_lease_table_next_store(&b->table, &store)) {
    b->fence[store.slot] = store.entry;
    kvf_lease_table_stored(&b->table, store.slot, store.entry.word);
  }
  while (kvf_lease_table_next_ended(&b->table, &ended)) {
    b->given_back += 1;
  }
}

static void operate(bench *b, int what, uint32_t slot)
{
  static const uint32_t ids[BLOCKS] = {7, 3, 11, 2, 19, 5, 13, 17};
  static const uint32_t counts[] = {BLOCKS};
  static const kvf_blocks blocks = {ids, counts, 1};
  const kvf_lease lease = {.id = b->first_id + slot, .slot = slot, .token = {(uint8_t)slot}};
  const kvf_consumer_key key = {.request_id = slot};
  b->now_ns += STEP_NS;
  if (what == PUBLISH) {
    must(kvf_lease_table_publish(&b->table, b->now_ns, &lease, &blocks, slot, slot, false) == KVF_OK, "publish");
  } else if (what == RENEW) {
    must(kvf_lease_table_on_consumer(&b->table, b->now_ns, &lease, &key, KVF_FINISH_NONE) == KVF_LEASE_STATE_LIVE,
         "renew");
  } else {
    must(kvf_lease_table_on_consumer(&b->table, b->now_ns, &lease, &key, KVF_FINISH_COMPLETED) == KVF_LEASE_STATE_ENDED,
         "acknowledge");
  }
}

static void add_sample(bench *b, int what, double ns)
{
  b->samples[what][b->samples_count[what]++] = ns;
}

/* Does it to every lease. */
static void sweep(bench *b, int what, bool measured)
{
  shuffle(b);
  for (uint32_t batch = 0; batch < BATCHES; batch++) {
    uint64_t begin_ns = clock_ns();
    for (uint32_t i = 0; i < BATCH; i++) {
      operate(b, what, b->order[batch * BATCH + i]);
    }
    drain(b);
    if (measured) {
      add_sample(b, what, (double)(clock_ns() - begin_ns) / BATCH);
    }
  }
}

/* Lets the time go by in which the timers of one sweep fire, from `begin_ns` on: that ends a lease unless it was
 * renewed after that sweep. A sample is the time that a slot of the wheel's second level spans, so that each has its
 * part of the moves between levels. */
static void let_fire(bench *b, int what, uint64_t begin_ns)
{
  uint64_t end_ns = begin_ns + LEASES * STEP_NS + KVF_WHEEL_GRANULE_NS;
  uint32_t fired = 0;
  uint64_t spent_ns = 0;
  for (b->now_ns = begin_ns; b->now_ns < end_ns; b->now_ns += KVF_WHEEL_GRANULE_NS) {
    uint64_t clock_begin_ns = clock_ns();
    while (kvf_wheel_next_deadline(&b->table.wheel) <= b->now_ns) {
      kvf_lease_table_tick(&b->table, b->now_ns, BATCH);
      drain(b);
    }
    spent_ns += clock_ns() - clock_begin_ns;
    fired += (uint32_t)(KVF_WHEEL_GRANULE_NS / STEP_NS);
    if (fired >= KVF_WHEEL_LEVEL_SLOTS * KVF_WHEEL_GRANULE_NS / STEP_NS) {
      add_sample(b, what, (double)spent_ns / fired);
      fired = 0;
      spent_ns = 0;
    }
  }
}

static void publish_all(bench *b, bool measured)
{
  b->first_id += LEASES;
  sweep(b, PUBLISH, measured);
  must(b->table.live == LEASES, "not all leases are live");
}

static void round_of_all(bench *b, bool measured)
{
  publish_all(b, measured);
  sweep(b, RENEW, measured);
  sweep(b, ACKNOWLEDGE, measured);
  must(b->table.unreleased == 0, "not all leases were given back");
  if (!measured) {
    return;
  }
  uint64_t published_ns = b->now_ns;
  publish_all(b, measured);
  b->now_ns += TTL_NS / 4; /* so that no renewed lease runs out while the first timers fire */
  uint64_t renewed_ns = b->now_ns;
  sweep(b, RENEW, measured);
  let_fire(b, REARM, published_ns + TTL_NS);
  must(b->table.live == LEASES, "renewed leases ran out");
  let_fire(b, EXPIRE, renewed_ns + TTL_NS);
  must(b->table.unreleased == 0, "leases did not run out");
}

static void poll_nothing(bench *b)
{
  kvf_config config;
  kvf_event event;
  kvf_node *node = NULL;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_config_init(&config);
  must(kvf_config_set(&config, "transports", "local", message) == KVF_OK, message);
  must(kvf_node_open(&config, &node, message) == KVF_OK, message);
  for (uint32_t batch = 0; batch < POLL_BATCHES; batch++) {
    uint64_t begin_ns = clock_ns();
    for (uint32_t i = 0; i < BATCH; i++) {
      (void)kvf_node_poll(node, &event, 1);
    }
    add_sample(b, POLL, (double)(clock_ns() - begin_ns) / BATCH);
  }
  kvf_node_close(node);
}

static int compare(const void *a, const void *b)
{
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

static void print_case(bench *b, int what)
{
  size_t count = b->samples_count[what];
  qsort(b->samples[what], count, sizeof(double), compare);
  printf("{\"case\":\"%s\",\"impl\":\"kvferry\",\"unit\":\"ns\",\"median\":%.1f,\"p99\":%.1f,\"runs\":%zu}\n",
         case_names[what], b->samples[what][count / 2], b->samples[what][count * 99 / 100], count);
}

int main(void)
{
  static bench b = {.prng = {1}, .now_ns = KVF_NS_PER_S};
  const kvf_config config = {.lease_slots = LEASES, .lease_ttl_ms = TTL_MS, .lease_max_ms = 100 * TTL_MS};
  b.fence = calloc(LEASES, sizeof(*b.fence));
  b.order = calloc(LEASES, sizeof(*b.order));
  must(b.fence != NULL && b.order != NULL, "no memory");
  for (int what = 0; what < CASES; what++) {
    b.samples[what] = calloc((size_t)2 * ROUNDS * BATCHES, sizeof(double));
    must(b.samples[what] != NULL, "no memory");
  }
  for (uint32_t i = 0; i < LEASES; i++) {
    b.order[i] = i;
  }
  must(kvf_lease_table_init(&b.table, &config, b.now_ns) == KVF_OK, "no memory for the table");
  round_of_all(&b, false); /* warms up: page faults are not the table's */
  for (uint32_t round = 0; round < ROUNDS; round++) {
    round_of_all(&b, true);
  }
  poll_nothing(&b);
  for (int what = 0; what < CASES; what++) {
    print_case(&b, what);
  }
  kvf_lease_table_free(&b.table);
  for (int what = 0; what < CASES; what++) {
    free(b.samples[what]);
  }
  free(b.order);
  free(b.fence);
  return 0;
}
