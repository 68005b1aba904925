/* The litmus producer: publishes a lease, waits, ends it and overwrites the blocks, plainly or by streaming stores. */
#include <sched.h>
#include <stdlib.h>

#include "litmus.h"

/* How long a lease lives: at most 2^LIFE_BITS turns of an empty loop, on average far fewer; often long enough for a
 * copy of it. */
#if defined(__SANITIZE_THREAD__)
#define LIFE_BITS 19
#else
#define LIFE_BITS 15
#endif

const kvf_incarnation litmus_incarnation = {{'l', 'i', 't', 'm', 'u', 's'}};

#if defined(__x86_64__)
#include <immintrin.h>

bool litmus_has_streams(void)
{
  return true;
}

static void store_stream(_Atomic uint64_t *word, uint64_t value)
{
  void *at = word;
  _mm_stream_si64(at, (long long)value);
}
#else
bool litmus_has_streams(void)
{
  return false;
}

static void store_stream(_Atomic uint64_t *word, uint64_t value)
{
  atomic_store_explicit(word, value, memory_order_relaxed);
}
#endif

/* Plain stores: for TSan a race, unless the fence orders them. */
static void fill_plainly(litmus_world *world, uint64_t lease_id)
{
  for (size_t i = 0; i < LITMUS_WORDS; i++) {
    void *word = &world->blocks[i];
    *(uint64_t *)word = lease_id;
  }
}

/* In either direction, so that no copy is always behind or ahead of it. For TSan a race with sendmsg(), on purpose. */
__attribute__((no_sanitize("thread"))) static void fill(litmus_world *world, uint64_t lease_id, bool backwards)
{
  for (size_t i = 0; i < LITMUS_WORDS; i++) {
    _Atomic uint64_t *word = &world->blocks[backwards ? LITMUS_WORDS - 1 - i : i];
    if (world->streams) {
      store_stream(word, lease_id);
    } else {
      atomic_store_explicit(word, lease_id, memory_order_relaxed);
    }
  }
}

static void pass_time(kvf_prng *prng)
{
  uint64_t turns = kvf_prng_below(prng, UINT64_C(1) << kvf_prng_below(prng, LIFE_BITS));
  for (volatile uint64_t i = 0; i < turns; i++) {
  }
}

static void live(litmus_world *world, uint64_t lease_id, kvf_prng *prng)
{
  if (world->handover) {
    while (atomic_load_explicit(&world->taken, memory_order_acquire) != lease_id && !atomic_load(&world->stop)) {
      (void)sched_yield();
    }
    return;
  }
  pass_time(prng);
}

static void end(litmus_world *world, uint64_t lease_id)
{
  kvf_fence_store_ended(world->table, litmus_slot(lease_id), (kvf_fence_entry){kvf_fence_word_ended(lease_id), 0});
}

static void produce(litmus_world *world)
{
  kvf_prng prng = {world->seed};
  for (uint64_t id = 1; !atomic_load_explicit(&world->stop, memory_order_relaxed); id++) {
    atomic_store_explicit(&world->ticket, id, memory_order_relaxed);
    if (world->handover) {
      fill_plainly(world, id);
    } else {
      pass_time(&prng); /* for readers that come too early */
      fill(world, id, kvf_prng_below(&prng, 2) == 0);
    }
    kvf_fence_store_live(world->table, litmus_slot(id), litmus_entry(id));
    live(world, id, &prng);
    end(world, id);
  }
}

bool litmus_produce(litmus_world *world)
{
  void *table = NULL;
  world->blocks = calloc(LITMUS_WORDS, sizeof(*world->blocks));
  if (world->blocks == NULL ||
      kvf_fence_table_open(LITMUS_SLOTS, &litmus_incarnation, &table, &world->table_fd) != KVF_OK) {
    free(world->blocks);
    return false;
  }
  world->table = table;
  atomic_store(&world->ready, true);
  produce(world);
  return true; /* a reader may still be at table and blocks: they go with the process */
}
