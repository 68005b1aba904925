/* Threads that bring parts up and down at random, while the host connects, reads and gives back. */
#include "transport/shards.h"

#include <sched.h>

#include "shards_fake.h"
#include "test.h"

#define COUNT 3
#define ROUNDS 1000
#define OPEN_MAX 4 /* links at a time */

static kvf_transport *made;
static atomic_bool is_over;
static kvf_link *open_links[OPEN_MAX];
static uint64_t users[OPEN_MAX];
static uint32_t calls_max[ROUNDS]; /* of the host's, per link, as of the time when it had been given back */
static uint64_t reads;

static uint32_t draw(uint32_t *seed, uint32_t below)
{
  *seed = *seed * 1664525u + 1013904223u;
  return (*seed >> 8) % below;
}

/* One of the newest. */
static fake_part *some_part(uint32_t shard, uint32_t back)
{
  (void)pthread_mutex_lock(&fakes.lock);
  fake_part *part = part_of(shard);
  while (part != NULL && part->next != NULL && back-- > 0) {
    part = part->next;
  }
  (void)pthread_mutex_unlock(&fakes.lock);
  return part;
}

static void *run_shard(void *context)
{
  const uint32_t shard = (uint32_t)((fake_shard *)context - fakes.shards);
  uint32_t seed = shard;
  while (!atomic_load(&is_over)) {
    fake_part *part = some_part(shard, draw(&seed, OPEN_MAX + 1));
    const bool up = draw(&seed, 4) > 0;
    const kvf_status status = up && draw(&seed, 16) > 0 ? KVF_OK : KVF_PEER_DOWN;
    if (part != NULL) {
      part_tell(shard, part, up, status);
    }
    (void)read_end(shard, 1);
    (void)sched_yield();
  }
  while (read_end(shard, 1)) {
  }
  return NULL;
}

static uint32_t calls_of(const host_link *link)
{
  return (link->events_count + 1) / 2;
}

static bool is_inside(const host_link *link)
{
  return link->events_count % 2 == 1;
}

/* A call that is under way may go on, or begin if it has not been seen yet. */
static void give_back(uint32_t slot)
{
  const host_link *link = &told.links[users[slot]];
  kvf_shards_disconnect(open_links[slot]);
  open_links[slot] = NULL;
  (void)pthread_mutex_lock(&told.lock);
  calls_max[users[slot]] = calls_of(link) + !is_inside(link);
  (void)pthread_mutex_unlock(&told.lock);
}

static host_link seen(uint64_t user)
{
  (void)pthread_mutex_lock(&told.lock);
  const host_link copy = told.links[user];
  (void)pthread_mutex_unlock(&told.lock);
  return copy;
}

static bool is_at_its_end(const host_link *link)
{
  return link->events_count == 4 || (link->events_count == 2 && link->up != KVF_OK);
}

static void wait_for(uint64_t user, bool end)
{
  host_link link = seen(user);
  while (end ? !is_at_its_end(&link) : link.events_count == 0) {
    (void)sched_yield();
    link = seen(user);
  }
}

static void read_some(uint32_t slot)
{
  const host_link link = seen(users[slot]);
  for (int i = 0; i < 5 && link.events_count >= 2 && link.up == KVF_OK; i++) {
    kvf_shards_read(open_links[slot], &(kvf_read){.id = ++reads});
    kvf_shards_cancel(open_links[slot], reads);
  }
}

static void run_host(void)
{
  uint32_t seed = 77;
  for (uint64_t round = 0; round < ROUNDS; round++) {
    const uint32_t slot = draw(&seed, OPEN_MAX);
    if (open_links[slot] != NULL) {
      read_some(slot);
      give_back(slot);
    }
    users[slot] = round;
    assert_int_equal(made_connect(made, round, round, 1 + draw(&seed, 5), &open_links[slot]), KVF_OK);
    if (round % 4 == 0) {
      wait_for(round, round % 8 == 0);
    }
    read_some(slot);
  }
  for (uint32_t slot = 0; slot < OPEN_MAX; slot++) {
    if (open_links[slot] != NULL) {
      give_back(slot);
    }
  }
}

/* Returns whether the link had been up, and went down. */
static bool check(uint64_t user)
{
  const host_link *link = &told.links[user];
  const bool was_down = strcmp(link->events, "UuDd") == 0;
  assert_false(link->is_wrong);
  assert_true(link->events_count == 0 || was_down || strcmp(link->events, "Uu") == 0);
  assert_true(!was_down || (link->up == KVF_OK && link->down == KVF_PEER_DOWN));
  assert_true(calls_of(link) <= calls_max[user]);
  return was_down;
}

/* Where one shard had more than the others, they would not take turns. */
static void check_no_reads_are_left(void)
{
  kvf_link *link = NULL;
  assert_int_equal(made_connect(made, ROUNDS, 0, COUNT, &link), KVF_OK);
  for (uint64_t id = 1; id <= UINT64_C(2) * COUNT; id++) {
    kvf_shards_read(link, &(kvf_read){.id = id});
  }
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(fakes.shards[i].reads, 2);
    while (read_end(i, 1)) {
    }
  }
  kvf_shards_disconnect(link);
}

TEST(links_are_told_of_in_order)
{
  pthread_t threads[COUNT];
  char message[KVF_MESSAGE_BYTES_MAX];
  uint32_t downs = 0;
  fakes_begin();
  assert_int_equal(made_open(COUNT, &made, message), KVF_OK);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, run_shard, &fakes.shards[i]), 0);
  }
  run_host();
  atomic_store(&is_over, true);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  }
  for (uint64_t user = 0; user < ROUNDS; user++) {
    downs += check(user);
  }
  assert_true(downs > 0);
  assert_true(reads > 0);
  assert_int_equal(told.reads_done, reads);
  check_no_reads_are_left();
  assert_int_equal(fakes.given_back, (ROUNDS + 1) * COUNT);
  kvf_shards_close(made);
  assert_int_equal(fakes.wrong, 0);
  fakes_end();
}
