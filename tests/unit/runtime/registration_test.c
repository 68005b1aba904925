/* Nodes that take their memory back and register other memory, while a peer knows the old one. */
#include "../../memory_kind.h"
#include "../../sides/side.h"
#include "core/session.h"
#include "pair.h"
#include "test.h"

#define BLOCKS 8
#define FIRST 20
#define UCX 3     /* of the ways that bytes go, the last */
#define SPOILT 99 /* what the old memory is filled with */

static pair_ticket ticket;
static uint32_t seed;

static const pair_option over[][3] = {
    {{"transports", "local"}},
    {{"transports", "local"}, {"memory", "test"}},
    {{"transports", "tcp"}},
    [UCX] = {{"transports", "ucx"}},
};

static bool has_ucx;

static size_t ways(void)
{
  return has_ucx ? UCX + 1 : UCX;
}

static bool sessions_go_on; /* where the producer would end them */

/* The linker's names. NOLINTBEGIN(bugprone-reserved-identifier) */
void __real_kvf_sessions_end_readers(kvf_sessions *sessions);
void __wrap_kvf_sessions_end_readers(kvf_sessions *sessions);
void __wrap_kvf_sessions_end_readers(kvf_sessions *sessions)
{
  if (!sessions_go_on) {
    __real_kvf_sessions_end_readers(sessions);
  }
}
/* NOLINTEND(bugprone-reserved-identifier) */

/* Of what `ticket` names. */
static void fill(uint32_t with)
{
  for (uint32_t i = 0; i < BLOCKS; i++) {
    pair_fill(&p.producer, ticket.blocks[i], with, i);
  }
}

static void load(void)
{
  pair_offer(&p.producer, 0, BLOCKS, ++seed, true, &ticket);
  pair_fetch_whole(&p.consumer, &ticket, FIRST);
}

/* Two nodes with a link, over which a load has come. */
static void open_linked(size_t way)
{
  pair_open(over[way]);
  load();
}

static void tear_down(void)
{
  atomic_store(&test_memory_stalls, false);
  pair_close();
  pair_layout = NULL;
  sessions_go_on = false;
}

#define MOVE_TEST(name) TEST_WITH(name, NULL, tear_down)

/* Layer i of the model lies in region i, or, turned, in that many from the last. */
static void describe(kvf_part parts[PAIR_REGIONS], bool turned)
{
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    parts[i] = (kvf_part){.layer = i,
                          .region = turned ? PAIR_REGIONS - 1 - i : i,
                          .unit_bytes = PAIR_BLOCK_BYTES,
                          .rows = 1,
                          .block_tokens = PAIR_BLOCK_TOKENS,
                          .heads = 1,
                          .heads_total = 1};
  }
}

/* The producer's memory moves, and then its blocks hold what the ticket says. Those of the old one do not. */
static void move_producer(bool turned)
{
  fill(SPOILT);
  pair_move(&p.producer);
  if (turned) { /* the pool's layers are as they were */
    uint8_t *first = p.producer.pool[0];
    p.producer.pool[0] = p.producer.pool[PAIR_REGIONS - 1];
    p.producer.pool[PAIR_REGIONS - 1] = first;
  }
  fill(seed);
  pair_publish(&p.producer, &ticket);
}

static void move_under_a_link(size_t way, bool turns)
{
  kvf_part parts[PAIR_REGIONS];
  const kvf_layout layout = {.parts = parts, .parts_count = PAIR_REGIONS, .share = {.heads = 1, .heads_total = 1}};
  pair_layout = turns ? &layout : NULL;
  describe(parts, false);
  open_linked(way);
  pair_offer(&p.producer, 0, BLOCKS, ++seed, false, &ticket);
  describe(parts, true);
  move_producer(turns);
  pair_fetch_whole(&p.consumer, &ticket, FIRST);
  pair_layout = NULL;
}

/* P1, without a word from the producer. The endpoints of ucx end with the memory. */
MOVE_TEST(a_link_to_the_old_memory_brings_nothing)
{
  sessions_go_on = true;
  for (size_t way = 0; way < (size_t)2 * UCX; way++) {
    move_under_a_link(way / 2, way % 2 == 1);
    assert_true(pair_logged(&p.consumer, "has registered other memory", NULL));
    pair_close();
  }
}

static void wait_until_heard(void)
{
  kvf_peer_stat peer;
  const uint64_t until_ms = now_ms() + PAIR_LATE_MS;
  do {
    assert_int_equal(kvf_node_peers(p.consumer.node, &peer, 1), 1);
  } while (peer.links[0].up && now_ms() < until_ms);
  assert_false(peer.links[0].up);
}

MOVE_TEST(blocks_come_from_the_new_memory)
{
  for (size_t way = 0; way < ways(); way++) {
    open_linked(way);
    pair_offer(&p.producer, 0, BLOCKS, ++seed, false, &ticket);
    move_producer(false);
    if (way == UCX) { /* else its endpoint may fail first, and the load over it */
      wait_until_heard();
    }
    pair_fetch_whole(&p.consumer, &ticket, FIRST);
    load();
    pair_close();
  }
}

MOVE_TEST(blocks_go_into_the_new_memory)
{
  for (size_t way = 0; way < ways(); way++) {
    open_linked(way);
    pair_move(&p.consumer);
    load();
    pair_close();
  }
}

/* A device's memory is free only when all who have it mapped let go of it. */
MOVE_TEST(peers_let_go_of_memory_that_is_taken_back)
{
  open_linked(1);
  assert_true(test_memory_imports() > 0);
  assert_int_equal(kvf_node_unregister(p.producer.node), KVF_OK);
  for (uint64_t until_ms = now_ms() + PAIR_LATE_MS; test_memory_imports() > 0 && now_ms() < until_ms;) {
    sleep_ms(1);
  }
  assert_true(test_memory_is_released());
}

/* But not while a copy has yet to end that no cancel takes back. */
MOVE_TEST(peers_let_go_of_memory_when_its_last_copy_has_ended)
{
  open_linked(1);
  const unsigned imports = test_memory_imports();
  pair_offer(&p.producer, 0, BLOCKS, ++seed, true, &ticket);
  atomic_store(&test_memory_stalls, true);
  const uint64_t id = pair_begin(&p.consumer, &ticket, FIRST);
  while (atomic_load(&test_memory_stalled) == 0) {
    sleep_ms(1);
  }
  assert_int_equal(kvf_node_unregister(p.producer.node), KVF_OK);
  wait_until_heard();
  sleep_ms(20);
  assert_int_equal(test_memory_imports(), imports);
  atomic_store(&test_memory_stalls, false);
  assert_int_not_equal(pair_wait(&p.consumer, id).report.status, KVF_OK);
  assert_true(test_memory_is_released());
}

/* What has failed with the memory before is not held against the new one. */
MOVE_TEST(a_producer_without_memory_fails_loads_and_comes_back)
{
  for (size_t way = 0; way < ways(); way++) {
    open_linked(way);
    pair_offer(&p.producer, 0, BLOCKS, ++seed, true, &ticket);
    assert_int_equal(kvf_node_unregister(p.producer.node), KVF_OK);
    assert_int_not_equal(pair_fetch(&p.consumer, &ticket, FIRST, NULL), KVF_OK);
    pair_move(&p.producer);
    load();
    pair_close();
  }
}

int main(int argc, char **argv)
{
  has_ucx = with_ucx() == 0;
  return test_run(argc > 1 ? argv[1] : NULL);
}
