/* Which ranks a reader reads what from, with heads, stages, dealt tokens and replicas of either side. */
#include "plan/rank_shares.h"

#include "test.h"

static bool divides(uint32_t heads_total, uint32_t ranks)
{
  return ranks >= heads_total || heads_total % ranks == 0;
}

static uint32_t owned(uint32_t heads_total, uint32_t ranks)
{
  return heads_total / ranks > 0 ? heads_total / ranks : 1;
}

/* Of rank `rank` of so many, where they are even. */
static kvf_share share_of(uint32_t heads, uint32_t ranks, uint32_t rank)
{
  return (kvf_share){(uint32_t)((uint64_t)rank * heads / ranks), owned(heads, ranks), heads};
}

/* What a consumer rank reads of producers whose tokens are not dealt. */
static kvf_status plan(uint32_t heads, uint32_t producers, uint32_t consumers, uint32_t consumer,
                       kvf_rank_share shares[KVF_RANKS_MAX], uint32_t *count)
{
  const kvf_share own = share_of(heads, consumers, consumer);
  return kvf_rank_shares(&own, producers, 1, consumer, shares, count);
}

/* Every head of the consumer rank comes exactly once, from a rank that owns it. */
static void check_plan(uint32_t heads, uint32_t producers, uint32_t consumers, uint32_t consumer)
{
  kvf_rank_share shares[KVF_RANKS_MAX];
  uint32_t count = 0;
  assert_int_equal(plan(heads, producers, consumers, consumer, shares, &count), KVF_OK);
  const uint32_t mine = consumer * heads / consumers;
  uint64_t ranks_seen = 0;
  uint32_t next = 0;
  for (uint32_t i = 0; i < count; i++) {
    assert_true(shares[i].rank < producers && shares[i].heads > 0);
    assert_int_equal(shares[i].local_head, next);
    assert_int_equal(ranks_seen >> shares[i].rank & 1, 0);
    ranks_seen |= UINT64_C(1) << shares[i].rank;
    assert_int_equal(shares[i].rank * heads / producers + shares[i].remote_head, mine + next);
    assert_true(shares[i].remote_head + shares[i].heads <= owned(heads, producers));
    next += shares[i].heads;
  }
  assert_int_equal(next, owned(heads, consumers));
}

TEST(every_head_comes_once)
{
  for (uint32_t heads = 1; heads <= 16; heads++) {
    for (uint32_t producers = 1; producers <= 16; producers++) {
      for (uint32_t consumers = 1; consumers <= 16; consumers++) {
        if (divides(heads, producers) && divides(heads, consumers)) {
          for (uint32_t consumer = 0; consumer < consumers; consumer++) {
            check_plan(heads, producers, consumers, consumer);
          }
        }
      }
    }
  }
}

TEST(uneven_heads_are_incompatible)
{
  for (uint32_t heads = 1; heads <= 16; heads++) {
    for (uint32_t producers = 1; producers <= 16; producers++) {
      if (!divides(heads, producers)) {
        kvf_rank_share shares[KVF_RANKS_MAX];
        uint32_t count = 77;
        assert_int_equal(plan(heads, producers, 1, 0, shares, &count), KVF_INCOMPATIBLE);
        assert_int_equal(count, 77);
      }
    }
  }
}

static void assert_share(kvf_rank_share share, uint32_t rank, uint32_t remote_head, uint32_t local_head, uint32_t heads)
{
  assert_int_equal(share.rank, rank);
  assert_int_equal(share.remote_head, remote_head);
  assert_int_equal(share.local_head, local_head);
  assert_int_equal(share.heads, heads);
}

TEST(wider_and_narrower)
{
  kvf_rank_share shares[KVF_RANKS_MAX];
  uint32_t count = 0;
  assert_int_equal(plan(8, 2, 4, 3, shares, &count), KVF_OK);
  assert_int_equal(count, 1);
  assert_share(shares[0], 1, 2, 0, 2);
  assert_int_equal(plan(8, 4, 2, 1, shares, &count), KVF_OK);
  assert_int_equal(count, 2);
  assert_share(shares[0], 2, 0, 0, 2);
  assert_share(shares[1], 3, 0, 2, 2);
}

/* Loads and their readers' ranks take turns. */
TEST(replicas_share_the_readers)
{
  static const uint32_t heads[] = {1, 2};
  for (int h = 0; h < 2; h++) {
    unsigned readers[4] = {0};
    for (uint64_t turn = 0; turn < 1000; turn++) {
      const kvf_share own = share_of(heads[h], 1, 0);
      kvf_rank_share shares[KVF_RANKS_MAX];
      uint32_t count = 0;
      assert_int_equal(kvf_rank_shares(&own, 4, 1, turn, shares, &count), KVF_OK);
      assert_int_equal(count, heads[h]);
      for (uint32_t i = 0; i < count; i++) {
        readers[shares[i].rank]++;
      }
    }
    for (int rank = 0; rank < 4; rank++) {
      assert_int_equal(readers[rank], 250 * heads[h]);
    }
  }
}

static kvf_status read_of(kvf_share own, uint32_t producers, uint32_t dealt)
{
  kvf_rank_share shares[KVF_RANKS_MAX];
  uint32_t count = 0;
  return kvf_rank_shares(&own, producers, dealt, 0, shares, &count);
}

TEST(bad_numbers_are_refused)
{
  assert_int_equal(read_of((kvf_share){0, 0, 1}, 1, 1), KVF_INVALID);
  assert_int_equal(read_of((kvf_share){0, 2, 1}, 1, 1), KVF_INVALID);
  assert_int_equal(read_of((kvf_share){1, 1, 1}, 1, 1), KVF_INVALID);
  assert_int_equal(read_of((kvf_share){2, UINT32_MAX, 1}, 1, 1), KVF_INVALID);
  assert_int_equal(read_of((kvf_share){0, 1, 1}, 0, 1), KVF_INVALID);
  assert_int_equal(read_of((kvf_share){0, 1, 1}, 8, 0), KVF_INVALID);
  assert_int_equal(read_of((kvf_share){0, 1, 1}, 8, 3), KVF_INCOMPATIBLE);
  assert_int_equal(read_of((kvf_share){0, 1, 1}, KVF_RANKS_MAX + 1, 1), KVF_LIMIT);
}

TEST(as_many_as_there_can_be)
{
  kvf_rank_share shares[KVF_RANKS_MAX];
  uint32_t count = 0;
  assert_int_equal(plan(KVF_RANKS_MAX, KVF_RANKS_MAX, 1, 0, shares, &count), KVF_OK);
  assert_int_equal(count, KVF_RANKS_MAX);
  assert_int_equal(plan(UINT32_MAX, 1, 1, 0, shares, &count), KVF_OK);
  assert_share(shares[0], 0, 0, 0, UINT32_MAX);
}

TEST(dealt_ranks_are_all_read)
{
  const kvf_share two = {0, 2, 2};
  const kvf_share one = {0, 1, 1};
  kvf_rank_share shares[KVF_RANKS_MAX];
  uint32_t count = 0;
  assert_int_equal(kvf_rank_shares(&two, 4, 2, 0, shares, &count), KVF_OK);
  assert_int_equal(count, 4);
  assert_share(shares[0], 0, 0, 0, 1);
  assert_share(shares[1], 1, 0, 0, 1);
  assert_share(shares[2], 2, 0, 1, 1);
  assert_share(shares[3], 3, 0, 1, 1);
  assert_int_equal(kvf_rank_shares(&one, 8, 4, 1, shares, &count), KVF_OK);
  assert_int_equal(count, 4);
  assert_share(shares[0], 4, 0, 0, 1);
}

/* ---- stages ---- */

#define PARTS_MAX 8

typedef struct engine {
  kvf_rank_record ranks[KVF_RANKS_MAX];
  uint32_t count;
} engine;

/* So many ranks more, which have layers from `first` on. */
static void add_ranks(engine *e, uint32_t ranks, uint32_t first, uint32_t layers)
{
  for (uint32_t i = 0; i < ranks; i++, e->count++) {
    e->ranks[e->count] = (kvf_rank_record){.rank = e->count, .layers = {first, layers}, .dealt = 1};
  }
}

static engine two_stages(uint32_t ranks_each)
{
  engine e = {.count = 0};
  add_ranks(&e, ranks_each, 0, 2);
  add_ranks(&e, ranks_each, 2, 2);
  return e;
}

/* A consumer rank that has parts of these layers. */
typedef struct reader {
  kvf_part parts[PARTS_MAX];
  kvf_pages pages;
  kvf_rank_layout own;
} reader;

static void reader_of(reader *r, kvf_share share, const uint32_t *layers, uint32_t count)
{
  *r = (reader){.pages = {.layout = {.parts = r->parts, .parts_count = count, .share = share}}};
  for (uint32_t i = 0; i < count; i++) {
    r->parts[i].layer = layers[i];
  }
  r->own = kvf_pages_rank_layout(&r->pages, 0, 1);
}

static kvf_rank_share shares[KVF_RANKS_MAX];
static char message[KVF_MESSAGE_BYTES_MAX];

/* How many shares there are. */
static uint32_t planned(const reader *r, const engine *e, uint64_t turn)
{
  uint32_t count = 0;
  assert_int_equal(kvf_stage_shares(&r->pages, &r->own, e->ranks, e->count, turn, shares, &count, message), KVF_OK);
  return count;
}

static void assert_refused(const reader *r, const engine *e, const char *why)
{
  uint32_t count = 77;
  assert_int_equal(kvf_stage_shares(&r->pages, &r->own, e->ranks, e->count, 0, shares, &count, message),
                   KVF_INCOMPATIBLE);
  assert_int_equal(count, 77);
  assert_string_equal(message, why);
}

static void assert_layers(kvf_rank_share share, uint32_t rank, uint32_t first, uint32_t count)
{
  assert_int_equal(share.rank, rank);
  assert_int_equal(share.layers.first, first);
  assert_int_equal(share.layers.count, count);
}

static const uint32_t four_layers[] = {0, 1, 2, 3};

TEST(every_stage_is_read)
{
  const engine e = two_stages(2);
  reader r;
  reader_of(&r, (kvf_share){0, 2, 2}, four_layers, 4);
  assert_int_equal(planned(&r, &e, 0), 4);
  assert_layers(shares[0], 0, 0, 2);
  assert_layers(shares[1], 1, 0, 2);
  assert_layers(shares[2], 2, 2, 2);
  assert_layers(shares[3], 3, 2, 2);
  assert_share(shares[1], 1, 0, 1, 1);
  assert_share(shares[3], 3, 0, 1, 1);
}

/* Of a stage's layers only those that are the reader's are in a share; a stage without any is left alone. */
TEST(stages_of_the_reader)
{
  const engine e = two_stages(1);
  reader r;
  reader_of(&r, (kvf_share){0, 1, 1}, four_layers, 1);
  assert_int_equal(planned(&r, &e, 0), 1);
  assert_layers(shares[0], 0, 0, 1);
  reader_of(&r, (kvf_share){0, 1, 1}, four_layers + 1, 2);
  assert_int_equal(planned(&r, &e, 0), 2);
  assert_layers(shares[0], 0, 1, 1);
  assert_layers(shares[1], 1, 2, 1);
  reader_of(&r, (kvf_share){0, 1, 1}, four_layers + 3, 1);
  assert_int_equal(planned(&r, &e, 0), 1);
  assert_layers(shares[0], 1, 3, 1);
}

/* Ranks that follow each other need not be of one stage. */
TEST(stages_may_take_turns)
{
  engine e = {.count = 0};
  for (uint32_t i = 0; i < 4; i++) {
    add_ranks(&e, 1, i % 2 * 2, 2);
  }
  reader r;
  reader_of(&r, (kvf_share){1, 1, 2}, four_layers, 4);
  assert_int_equal(planned(&r, &e, 0), 2);
  assert_layers(shares[0], 2, 0, 2);
  assert_layers(shares[1], 3, 2, 2);
}

TEST(each_stage_has_its_replicas)
{
  const engine e = two_stages(2);
  reader r;
  reader_of(&r, (kvf_share){0, 1, 1}, four_layers, 4);
  for (uint64_t turn = 0; turn < 4; turn++) {
    assert_int_equal(planned(&r, &e, turn), 2);
    assert_int_equal(shares[0].rank, turn % 2);
    assert_int_equal(shares[1].rank, 2 + turn % 2);
  }
}

TEST(tokens_are_dealt_within_a_stage)
{
  engine e = two_stages(4);
  reader r;
  for (uint32_t i = 0; i < e.count; i++) {
    e.ranks[i].dealt = 2;
  }
  reader_of(&r, (kvf_share){1, 1, 2}, four_layers, 4);
  assert_int_equal(planned(&r, &e, 0), 4);
  for (uint32_t i = 0; i < 4; i++) {
    assert_int_equal(shares[i].rank, (i < 2 ? 2 : 6) + i % 2);
    assert_int_equal(shares[i].dealt, 2);
    assert_int_equal(shares[i].deal_rank, i % 2);
  }
}

/* Made before there was memory, a record says nothing. */
TEST(ranks_that_do_not_say_have_all_layers)
{
  engine e = {.count = 0};
  reader r;
  add_ranks(&e, 2, 0, 0);
  reader_of(&r, (kvf_share){0, 2, 2}, four_layers, 4);
  assert_int_equal(planned(&r, &e, 0), 2);
  assert_layers(shares[0], 0, 0, 4);
  assert_layers(shares[1], 1, 0, 4);
}

/* No more than layers in between that the reader has not either. */
TEST(layers_may_be_missing_on_both_sides)
{
  static const uint32_t layers[] = {0, 9, 1};
  engine e = {.count = 0};
  reader r;
  add_ranks(&e, 1, 0, 2);
  add_ranks(&e, 1, 4, 2);
  add_ranks(&e, 1, 8, 4);
  reader_of(&r, (kvf_share){0, 1, 1}, layers, 3);
  assert_int_equal(planned(&r, &e, 0), 2);
  assert_layers(shares[0], 0, 0, 2);
  assert_layers(shares[1], 2, 9, 1);
}

TEST(regions_are_layers)
{
  const engine e = two_stages(1);
  kvf_region_layout regions[3] = {{.heads = 1, .heads_total = 1}};
  const kvf_pages pages = {.regions = regions, .regions_count = 3};
  const kvf_rank_layout own = kvf_pages_rank_layout(&pages, 0, 1);
  uint32_t count = 0;
  assert_int_equal(kvf_stage_shares(&pages, &own, e.ranks, e.count, 0, shares, &count, message), KVF_OK);
  assert_int_equal(count, 2);
  assert_layers(shares[1], 1, 2, 1);
}

TEST(stages_that_do_not_fit_are_refused)
{
  reader r;
  engine e = two_stages(2);
  static const uint32_t layers[] = {3, 4};
  reader_of(&r, (kvf_share){0, 2, 2}, layers, 2);
  assert_refused(&r, &e, "no rank of the producer has layer 4");
  reader_of(&r, (kvf_share){0, 2, 2}, four_layers, 4);
  e.count = 3;
  assert_refused(&r, &e, "2 ranks of the producer have layers from 0 on, and 1 from 2 on");
  e.count = 0;
  add_ranks(&e, 1, 2, 2);
  add_ranks(&e, 1, 0, 3);
  assert_refused(&r, &e, "the producer's ranks have layers 2 to 3, and 0 to 2: neither equal nor separate");
  e.count = 0;
  add_ranks(&e, 1, 0, 4);
  add_ranks(&e, 1, 1, 1);
  assert_refused(&r, &e, "the producer's ranks have layers 0 to 3, and 1 to 1: neither equal nor separate");
  e.count = 0;
  add_ranks(&e, 1, 0, 4);
  add_ranks(&e, 1, 0, 0);
  assert_refused(&r, &e, "the producer's ranks have layers 0 to 3, and 0 to 65535: neither equal nor separate");
  e = two_stages(2);
  for (uint32_t i = 0; i < e.count; i++) {
    e.ranks[i].dealt = 3;
  }
  assert_refused(&r, &e, "2 of 2 heads cannot be read from 2 ranks with tokens dealt to 3");
}

TEST(numbers_of_ranks_have_a_limit)
{
  engine e = {.count = 0};
  reader r;
  uint32_t count = 77;
  reader_of(&r, (kvf_share){0, 1, 1}, four_layers, 1);
  assert_int_equal(kvf_stage_shares(&r.pages, &r.own, e.ranks, 0, 0, shares, &count, message), KVF_INVALID);
  assert_int_equal(kvf_stage_shares(&r.pages, &r.own, e.ranks, KVF_RANKS_MAX + 1, 0, shares, &count, message),
                   KVF_LIMIT);
  assert_int_equal(count, 77);
  for (uint32_t i = 0; i < KVF_RANKS_MAX; i++) {
    add_ranks(&e, 1, i, 1);
  }
  assert_int_equal(planned(&r, &e, 0), 1);
  assert_layers(shares[0], 0, 0, 1);
}

static bool have_replicas(uint32_t heads, uint32_t stage_ranks, uint32_t dealt)
{
  engine e = two_stages(stage_ranks);
  for (uint32_t i = 0; i < e.count; i++) {
    e.ranks[i].dealt = dealt;
  }
  return kvf_ranks_have_replicas(heads, e.ranks, e.count);
}

TEST(replicas_are_ranks_of_a_stage_beyond_one_for_each_head)
{
  assert_false(have_replicas(1, 1, 1));
  assert_false(have_replicas(4, 4, 1));
  assert_false(have_replicas(2, 4, 2));
  assert_true(have_replicas(1, 2, 1));
  assert_true(have_replicas(2, 8, 2));
}

/* What is planned of rank 2 of the four of two stages, which has head 0 of 2 of layers 2 and 3. */
TEST(a_rank_must_have_what_is_planned)
{
  const engine e = two_stages(2);
  reader r;
  reader_of(&r, (kvf_share){0, 2, 2}, four_layers, 4);
  assert_int_equal(planned(&r, &e, 0), 4);
  const kvf_rank_layout good = {{2, 2}, {0, 1, 2}, {1, 0, 1}};
  assert_true(kvf_rank_share_is_held(&shares[2], &r.own, &good));
  kvf_rank_layout more = good;
  more.layers = (kvf_layers){1, 9};
  assert_true(kvf_rank_share_is_held(&shares[2], &r.own, &more));
#define NOT_HELD(change)                                            \
  do {                                                              \
    kvf_rank_layout bad = good;                                     \
    bad.change;                                                     \
    assert_false(kvf_rank_share_is_held(&shares[2], &r.own, &bad)); \
  } while (0)
  NOT_HELD(layers.first = 3);
  NOT_HELD(layers.count = 1);
  NOT_HELD(layers.count = 0);
  NOT_HELD(share.first_head = 1);
  NOT_HELD(deal.ranks = 2);
  NOT_HELD(deal.rank = 1);
}
