/* What a sample means to a reader, in which order that is judged, and what the digest covers. */
#include "base/fence.h"
#include "test.h"

static kvf_fence_claim claim_of(uint64_t lease_id)
{
  return (kvf_fence_claim){.incarnation = {{1, 2, 3}}, .generation = 6, .lease_id = lease_id, .digest = 77};
}

/* What a reader sees whose lease is live. */
static kvf_fence_sample live_sample(uint64_t lease_id)
{
  return (kvf_fence_sample){.head = {.magic = KVF_FENCE_MAGIC, .incarnation = {{1, 2, 3}}, .slots = 4, .generation = 6},
                            .entry = {.word = kvf_fence_word_live(lease_id), .digest = 77}};
}

static kvf_status check(kvf_fence_sample sample)
{
  kvf_fence_claim claim = claim_of(10);
  return kvf_fence_check(&sample, &claim);
}

TEST(live_is_good)
{
  assert_int_equal(check(live_sample(10)), KVF_OK);
}

TEST(words_only_grow)
{
  for (uint64_t id = 0; id < 3; id++) {
    assert_true(kvf_fence_word_live(id) < kvf_fence_word_ended(id));
    assert_true(kvf_fence_word_ended(id) < kvf_fence_word_live(id + 1));
  }
  assert_true(kvf_fence_word_ended(KVF_LEASE_ID_MAX) > kvf_fence_word_live(KVF_LEASE_ID_MAX));
}

TEST(less_is_not_published)
{
  kvf_fence_sample sample = live_sample(10);
  sample.entry.word = 0;
  assert_int_equal(check(sample), KVF_NOT_PUBLISHED);
  assert_int_equal(check(live_sample(9)), KVF_NOT_PUBLISHED);
  sample.entry.word = kvf_fence_word_ended(9);
  assert_int_equal(check(sample), KVF_NOT_PUBLISHED);
}

TEST(more_is_over)
{
  kvf_fence_sample sample = live_sample(10);
  sample.entry.word = kvf_fence_word_ended(10);
  assert_int_equal(check(sample), KVF_LEASE_EXPIRED);
  assert_int_equal(check(live_sample(11)), KVF_LEASE_EXPIRED);
}

TEST(another_table_is_a_restart_whatever_its_words)
{
  kvf_fence_sample sample = live_sample(10);
  sample.head.incarnation.bytes[KVF_INCARNATION_BYTES - 1] = 1;
  assert_int_equal(check(sample), KVF_PEER_RESTARTED);
  sample = live_sample(10);
  sample.head.magic++;
  assert_int_equal(check(sample), KVF_PEER_RESTARTED);
}

/* But one that has ended has ended: other memory brings it no more than this one. */
TEST(other_memory_is_asked_for_again)
{
  for (uint64_t generation = 0; generation <= 7; generation += 7) {
    kvf_fence_sample sample = live_sample(10);
    sample.head.generation = generation;
    assert_int_equal(check(sample), KVF_AGAIN);
    sample.entry.word = 0;
    assert_int_equal(check(sample), KVF_AGAIN);
    sample.entry.word = kvf_fence_word_ended(10);
    assert_int_equal(check(sample), KVF_LEASE_EXPIRED);
    sample.head.incarnation.bytes[0]++;
    assert_int_equal(check(sample), KVF_PEER_RESTARTED);
  }
}

TEST(other_blocks_are_a_bad_ticket)
{
  kvf_fence_sample sample = live_sample(10);
  sample.entry.digest = 78;
  assert_int_equal(check(sample), KVF_BAD_TICKET);
}

TEST(entries_follow_the_head)
{
  assert_int_equal(kvf_fence_entry_offset(0), sizeof(kvf_fence_head));
  assert_int_equal(kvf_fence_entry_offset(2), sizeof(kvf_fence_head) + 2 * sizeof(kvf_fence_entry));
  assert_int_equal(kvf_fence_table_bytes(2), kvf_fence_entry_offset(2));
}

typedef struct covered {
  kvf_lease lease;
  kvf_prompt prompt;
  uint32_t ids[3];
  uint32_t counts[2];
  uint32_t groups;
} covered;

static uint64_t digest_of(covered what)
{
  uint64_t digest = 0;
  const kvf_blocks blocks = {.ids = what.ids, .counts = what.counts, .groups = what.groups};
  assert_int_equal(kvf_fence_digest(&what.lease, &blocks, &what.prompt, &digest), KVF_OK);
  return digest;
}

TEST(digest_covers_all_that_the_lease_is_of)
{
  const covered base = {.lease = {.id = 10, .token = {1}},
                        .prompt = {.hash = {2}, .tokens = 40},
                        .ids = {5, 6, 7},
                        .counts = {1, 2},
                        .groups = 2};
  covered other[7];
  for (int i = 0; i < 7; i++) {
    other[i] = base;
  }
  other[0].lease.id++;
  other[1].lease.token[15]++;
  other[2].prompt.hash[31]++;
  other[3].prompt.tokens++;
  other[4].ids[2]++;
  other[5].counts[0] = 2;
  other[5].counts[1] = 1;
  other[6].groups = 1;
  other[6].counts[0] = 3;
  assert_true(digest_of(base) == digest_of(base));
  for (int i = 0; i < 7; i++) {
    assert_false(digest_of(other[i]) == digest_of(base));
  }
}
