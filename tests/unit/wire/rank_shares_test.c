#include "wire/pages.h"

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

TEST(replicas_are_ranks_beyond_one_for_each_head)
{
  assert_false(kvf_ranks_have_replicas(1, 1, 1));
  assert_false(kvf_ranks_have_replicas(4, 4, 1));
  assert_false(kvf_ranks_have_replicas(2, 4, 2));
  assert_true(kvf_ranks_have_replicas(1, 2, 1));
  assert_true(kvf_ranks_have_replicas(2, 8, 2));
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
