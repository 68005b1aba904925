/* Reads judge the lease that they are of, whenever it begins and ends. */
#include <stdatomic.h>

#include "../memory_kind.h"
#include "base/prng.h"
#include "base/time.h"
#include "conformance.h"
#include "transport/fence_memory.h"

#define UNTOUCHED 0xEE

/* What a read of this lease says in the end, whoever says it: the producer, or the sample. */
static kvf_status verdict_of(const side_lease *lease)
{
  side_set_all(&two->consumer, UNTOUCHED);
  kvf_transfer read = lease_read(&two->consumer, lease, 0);
  kvf_read_result result = side_read_now(&two->consumer, two->link, &read);
  read_free(&read);
  if (suite_traits().producer_checks && result.status != KVF_OK) {
    assert_true(side_all_are(&two->consumer, UNTOUCHED));
  }
  const kvf_fence_claim claim = side_claim(&two->introduction, lease);
  return side_verdict(&result, &claim);
}

static void small_sides(void)
{
  sides_open_simple(8, 4096);
}

#define SMALL_TEST(name) TEST_WITH(name, small_sides, sides_close)

SMALL_TEST(lease_not_published)
{
  side_lease *lease = side_reserve(&two->producer, LEASE_ID + 1);
  assert_int_equal(verdict_of(lease), KVF_NOT_PUBLISHED);
  lease = side_publish(&two->producer, LEASE_ID + 1);
  assert_int_equal(verdict_of(lease), KVF_OK);
}

/* ---- of other memory than the link is for ---- */

SMALL_TEST(lease_of_other_memory)
{
  side_lease *old = two->lease;
  assert_int_equal(verdict_of(old), KVF_OK);
  side_end(&two->producer, old);
  kvf_fence_store_generation(two->producer.table, SIDE_GENERATION + 1);
  assert_int_equal(verdict_of(old), KVF_LEASE_EXPIRED);
  assert_int_equal(verdict_of(side_reserve(&two->producer, LEASE_ID + 1)), KVF_AGAIN);
  const side_lease *lease = side_publish(&two->producer, LEASE_ID + 1);
  assert_int_equal(verdict_of(lease), KVF_AGAIN);
  assert_true(!suite_traits().looks_first || side_all_are(&two->consumer, UNTOUCHED));

  const kvf_link_spec spec = side_spec(&two->introduction); /* as it was told before */
  sides_disconnect();
  if (suite_traits().producer_checks) {
    assert_int_equal(side_connect(&two->consumer, &spec, &two->link), KVF_OK);
    assert_int_equal(verdict_of(lease), KVF_AGAIN);
  } else {
    assert_int_equal(side_connect(&two->consumer, &spec, &two->link), KVF_AGAIN);
  }
  sides_disconnect();
  side_introduce(&two->producer, &two->introduction);
  sides_link();
  assert_int_equal(verdict_of(lease), KVF_OK);
}

/* ---- published while it is asked for ---- */

#define PUBLISHED_LEASES 500
#define PUBLISHED_AFTER_US 200

typedef struct publisher {
  side *producer;
  atomic_uint_fast64_t asked; /* id of the lease that is to be published soon */
} publisher;

static void *publisher_main(void *argument)
{
  publisher *leases = argument;
  kvf_prng prng = {4};
  for (uint64_t id = LEASE_ID + 1; id <= LEASE_ID + PUBLISHED_LEASES; id++) {
    while (atomic_load(&leases->asked) < id) {
      sleep_us(10);
    }
    sleep_us(kvf_prng_below(&prng, PUBLISHED_AFTER_US));
    side_go_live(leases->producer, side_reserve(leases->producer, id));
  }
  return NULL;
}

/* Whoever asks in this moment is told one or the other, and nothing else happens. The blocks of all these leases are
 * those of the first, so are their sums. */
SMALL_TEST(lease_published_meanwhile)
{
  publisher leases = {.producer = &two->producer};
  uint32_t refused = 0;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, publisher_main, &leases), 0);
  for (uint64_t id = LEASE_ID + 1; id <= LEASE_ID + PUBLISHED_LEASES; id++) {
    const side_lease lease = *side_reserve(&two->producer, id);
    kvf_status verdict = KVF_NOT_PUBLISHED;
    atomic_store(&leases.asked, id);
    while (verdict == KVF_NOT_PUBLISHED) {
      verdict = verdict_of(&lease);
      if (verdict == KVF_NOT_PUBLISHED) {
        refused++;
        sleep_us(10); /* or the publisher gets no processor where there are few */
      }
    }
    assert_int_equal(verdict, KVF_OK);
  }
  (void)pthread_join(thread, NULL);
  print_message("refused %u\n", refused);
  assert_true(refused > 0);
}

SMALL_TEST(lease_unknown)
{
  side_lease stranger = *two->lease;
  if (suite_traits().producer_checks) {
    stranger.lease.token[3] ^= 1;
    assert_int_equal(verdict_of(&stranger), KVF_LEASE_UNKNOWN);
    stranger.lease.id++;
    assert_int_equal(verdict_of(&stranger), KVF_LEASE_UNKNOWN);
  } else {
    stranger.lease.id++;
    assert_int_equal(verdict_of(&stranger), KVF_NOT_PUBLISHED);
    stranger.lease.id -= 2;
    assert_int_equal(verdict_of(&stranger), KVF_LEASE_EXPIRED);
  }
  stranger = *two->lease;
  stranger.lease.slot = SIDE_SLOTS;
  assert_int_equal(verdict_of(&stranger), KVF_LEASE_UNKNOWN);
}

SMALL_TEST(lease_over)
{
  assert_int_equal(verdict_of(two->lease), KVF_OK);
  side_end(&two->producer, two->lease);
  assert_int_equal(verdict_of(two->lease), KVF_LEASE_EXPIRED);
}

SMALL_TEST(lease_of_other_blocks)
{
  side_lease other = *two->lease;
  other.digest++;
  assert_int_equal(verdict_of(&other), KVF_BAD_TICKET);
}

/* ---- the sample follows the last byte ---- */

#define OWNERS_BLOCKS 16
#define OWNERS_BLOCK_BYTES 16384
#define OWNERS_SMALL_BLOCK_BYTES 1024
#define OWNERS_ROUNDS 3000
#define OWNERS_ROUNDS_SLOW 600
#define OWNERS_PATIENCE_S 40
#define OWNERS_PAUSE_US 10
/* A lease lasts at most so long: some, not all, must end while they are read. */
#define OWNERS_LEASE_US 400
#define OWNERS_LEASE_US_SLOW 2000
#define OWNERS_LEASE_US_SLOWEST 6000 /* a fake GPU's kernels, under the sanitizer of threads */

/* A producer that hands the same blocks from one lease to the next as fast as it can. */
typedef struct owner_loop {
  side *producer;
  uint32_t block_bytes;
  uint32_t lease_us;
  atomic_uint_fast64_t current; /* id of the lease that is live, or was until just now */
  atomic_bool stop;
} owner_loop;

/* Every word of a lease's blocks is the lease's id. Not seen by ThreadSanitizer: that readers of these bytes may be too
 * late is what the case is about. */
__attribute__((no_sanitize("thread"))) static void own_words(volatile uint64_t *words, size_t count, uint64_t id)
{
  for (size_t i = 0; i < count; i++) {
    words[i] = id;
  }
}

static void own_blocks(const owner_loop *owners, uint64_t id)
{
  const size_t bytes = (size_t)OWNERS_BLOCKS * owners->block_bytes;
  void *blocks = side_block(owners->producer, 0, 0);
  void *seen = test_memory_bytes(blocks);
  void *words = seen != NULL ? seen : allocate(bytes);
  own_words(words, bytes / sizeof(uint64_t), id);
  if (seen == NULL) {
    test_memory_put(blocks, words, bytes);
    free(words);
  }
}

static void *owners_main(void *argument)
{
  owner_loop *owners = argument;
  kvf_prng prng = {3};
  for (uint64_t id = LEASE_ID + 1; !atomic_load(&owners->stop); id++) {
    own_blocks(owners, id);
    side_lease *lease = side_publish(owners->producer, id);
    atomic_store(&owners->current, id);
    sleep_us(kvf_prng_below(&prng, owners->lease_us));
    side_end(owners->producer, lease);
  }
  return NULL;
}

typedef struct owners_counts {
  uint32_t good;
  uint32_t refused;
  uint32_t refused_in_a_row;
  uint32_t foreign; /* refused ones whose bytes were indeed another lease's */
} owners_counts;

static bool all_words_are(const side *consumer, uint32_t first, uint32_t block_bytes, uint64_t id)
{
  const size_t bytes = (size_t)OWNERS_BLOCKS * block_bytes;
  uint64_t *words = allocate(bytes);
  size_t own = 0;
  test_memory_get(words, side_block(consumer, 0, first), bytes);
  while (own < bytes / sizeof(*words) && words[own] == id) {
    own++;
  }
  free(words);
  return own == bytes / sizeof(*words);
}

/* One read of the lease that is live now, into blocks from `first` on. */
static void owners_round(const owner_loop *owners, const kvf_transfer_item *items, owners_counts *counts)
{
  uint64_t id = atomic_load(&owners->current);
  side_lease lease = {.lease = {.id = id, .slot = (uint32_t)(id % SIDE_SLOTS)}, .digest = id * 1000003};
  for (size_t i = 0; i < sizeof(lease.lease.token); i++) {
    lease.lease.token[i] = (uint8_t)id;
  }
  kvf_transfer read = side_read(&two->consumer, &lease.lease, items, OWNERS_BLOCKS);
  read.small = owners->block_bytes == OWNERS_SMALL_BLOCK_BYTES;
  kvf_read_result result = side_read_now(&two->consumer, two->link, &read);
  const kvf_fence_claim claim = side_claim(&two->introduction, &lease);
  kvf_status verdict = side_verdict(&result, &claim);
  bool own = all_words_are(&two->consumer, items[0].local_block, owners->block_bytes, id);
  if (verdict == KVF_OK) {
    assert_true(own);
    counts->good++;
    counts->refused_in_a_row = 0;
  } else {
    /* A producer that checks leases remembers the last SIDE_LEASES_MAX only. */
    assert_true(verdict == KVF_LEASE_EXPIRED || result.status == KVF_LEASE_UNKNOWN);
    counts->refused++;
    counts->foreign += result.status == KVF_OK && !own;
    /* Longer each time, or the owner gets no processor, and no device, to hand the blocks on. */
    counts->refused_in_a_row++;
    sleep_us((uint64_t)OWNERS_PAUSE_US * counts->refused_in_a_row);
  }
}

static void check_samples(uint32_t block_bytes)
{
  sides_open_simple(OWNERS_BLOCKS, block_bytes);
  const bool is_slow = SANITIZED || suite_traits().is_slow;
  const uint32_t slow_us = SANITIZED_THREADS ? OWNERS_LEASE_US_SLOWEST : OWNERS_LEASE_US_SLOW;
  owner_loop owners = {
      .producer = &two->producer, .block_bytes = block_bytes, .lease_us = is_slow ? slow_us : OWNERS_LEASE_US};

  kvf_transfer_item items[OWNERS_BLOCKS];
  for (uint32_t i = 0; i < OWNERS_BLOCKS; i++) {
    items[i] = (kvf_transfer_item){0, i, (uint32_t)((uint64_t)i * 7919 % OWNERS_BLOCKS), i};
  }
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, owners_main, &owners), 0);
  while (atomic_load(&owners.current) == 0) {
    sleep_us(10);
  }
  owners_counts counts = {0};
  const uint32_t rounds = is_slow ? OWNERS_ROUNDS_SLOW : OWNERS_ROUNDS;
  uint64_t until_ns = now_ns() + OWNERS_PATIENCE_S * KVF_NS_PER_S;
  while ((counts.good < rounds || counts.refused < rounds / 10 || counts.foreign == 0) &&
         counts.good + counts.refused < SIDE_READS_MAX - 1 && now_ns() < until_ns) {
    owners_round(&owners, items, &counts);
  }
  atomic_store(&owners.stop, true);
  (void)pthread_join(thread, NULL);
  print_message("good %u, refused %u, of these foreign %u\n", counts.good, counts.refused, counts.foreign);
  /* The case has tested nothing unless both happened, and foreign bytes were among what the sample had to catch. */
  assert_true(counts.good > 0);
  assert_true(counts.foreign > 0);
  sides_close();
}

TEST(sample_follows_last_byte)
{
  check_samples(OWNERS_BLOCK_BYTES);
}

/* Which transports may do in another way. */
TEST(sample_follows_last_small_byte)
{
  check_samples(OWNERS_SMALL_BLOCK_BYTES);
}
