/* Merging ranks' reports: in any order, with the shortest prefix and the gravest status. */
#include "core/ranks.h"
#include "kvferry/consumer.h"

#include "base/prng.h"

#include "test.h"

static kvf_report report_of(uint64_t ranks_mask, uint32_t prefix, int status)
{
  return (kvf_report){.request_id = 9, .ranks_mask = ranks_mask, .blocks = 10, .prefix = prefix, .status = status};
}

static int worst(int a, int b)
{
  return kvf_report_merge(report_of(1, 0, a), report_of(2, 0, b)).status;
}

static bool same(kvf_report a, kvf_report b)
{
  return a.request_id == b.request_id && a.ranks_mask == b.ranks_mask && a.blocks == b.blocks && a.prefix == b.prefix &&
         a.status == b.status && a.reserved == b.reserved;
}

static int any_status(kvf_prng *prng)
{
  unsigned count = 0;
  while (kvf_status_at(count) != NULL) {
    count++;
  }
  /* Beyond the table: numbers that are no status, as a broken rank may send. */
  unsigned i = (unsigned)kvf_prng_below(prng, count + 3);
  return i < count ? (int)kvf_status_at(i)->status : (int)(i - count) * 1000 - 1000;
}

static kvf_report any_report(kvf_prng *prng)
{
  kvf_report report = report_of(kvf_prng_below(prng, 16), (uint32_t)kvf_prng_below(prng, 11), any_status(prng));
  report.request_id = kvf_prng_below(prng, 10) == 0 ? 8 : 9;
  report.blocks = kvf_prng_below(prng, 10) == 0 ? 11 : 10;
  return report;
}

TEST(order_and_repetition_do_not_matter)
{
  kvf_prng prng = {1};
  for (int i = 0; i < 100000; i++) {
    kvf_report a = any_report(&prng);
    kvf_report b = any_report(&prng);
    kvf_report c = any_report(&prng);
    assert_true(same(kvf_report_merge(a, b), kvf_report_merge(b, a)));
    assert_true(same(kvf_report_merge(kvf_report_merge(a, b), c), kvf_report_merge(a, kvf_report_merge(b, c))));
    assert_true(same(kvf_report_merge(a, a), a));
    kvf_report ab = kvf_report_merge(a, b);
    assert_true(same(kvf_report_merge(ab, b), ab));
  }
}

TEST(prefix_is_the_shortest)
{
  kvf_report merged = kvf_report_merge(report_of(1, 7, KVF_LEASE_EXPIRED), report_of(4, 3, KVF_PEER_DOWN));
  assert_true(same(merged, report_of(5, 3, KVF_PEER_DOWN)));
}

TEST(ok_takes_all)
{
  assert_true(same(kvf_report_merge(report_of(1, 10, KVF_OK), report_of(2, 10, KVF_OK)), report_of(3, 10, KVF_OK)));
  assert_int_equal(kvf_report_merge(report_of(1, 10, KVF_OK), report_of(2, 10, KVF_CANCELLED)).status, KVF_CANCELLED);
}

/* A rank's quarantine must show in the merged result, whatever the other ranks say. */
TEST(unsafe_is_never_hidden)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    for (unsigned j = 0; kvf_status_at(j) != NULL; j++) {
      const kvf_status_info *a = kvf_status_at(i);
      const kvf_status_info *b = kvf_status_at(j);
      const kvf_status_info *merged = kvf_status_describe(worst(a->status, b->status));
      assert_int_equal(merged->recompute_safe, a->recompute_safe && b->recompute_safe);
    }
  }
  assert_int_equal(worst(KVF_NO_MEMORY, KVF_RANK_LOST), KVF_RANK_LOST);
}

TEST(reports_that_do_not_belong_together_are_invalid)
{
  kvf_report other_request = report_of(2, 10, KVF_OK);
  other_request.request_id = 8;
  kvf_report other_blocks = report_of(2, 10, KVF_OK);
  other_blocks.blocks = 11;
  assert_int_equal(kvf_report_merge(report_of(1, 10, KVF_OK), other_request).status, KVF_INVALID);
  assert_int_equal(kvf_report_merge(report_of(1, 10, KVF_OK), other_blocks).status, KVF_INVALID);
}

TEST(ranks_are_merged_until_all_are_in)
{
  kvf_ranks ranks = kvf_ranks_of(3, 9, 10);
  kvf_report report = report_of(1, 10, KVF_OK);
  assert_int_equal(kvf_ranks_report(&ranks, &report), KVF_OK);
  assert_true(same(ranks.merged, report)); /* what no rank has found adds nothing */
  report = report_of(6, 4, KVF_PEER_DOWN);
  assert_false(kvf_ranks_have_reported(&ranks));
  assert_int_equal(kvf_ranks_report(&ranks, &report), KVF_OK);
  assert_true(kvf_ranks_have_reported(&ranks));
  assert_true(same(ranks.merged, report_of(7, 4, KVF_PEER_DOWN)));
}

/* Reports and releases of the same ranks, in any order: all are in once each rank has said one of them. */
TEST(released_ranks_are_in)
{
  const kvf_report report = report_of(1, 10, KVF_OK);
  for (int first = 0; first < 2; first++) {
    kvf_ranks ranks = kvf_ranks_of(2, 9, 10);
    for (int turn = 0; turn < 2; turn++) {
      assert_false(kvf_ranks_are_in(&ranks));
      assert_int_equal(turn == first ? kvf_ranks_report(&ranks, &report) : kvf_ranks_release(&ranks, 2), KVF_OK);
    }
    assert_true(kvf_ranks_are_in(&ranks));
    assert_false(kvf_ranks_have_reported(&ranks));
    assert_false(kvf_ranks_are_released(&ranks));
    assert_true(same(ranks.merged, report)); /* a release adds nothing to what was found */
  }
}

TEST(a_first_report_is_taken_as_it_is)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    kvf_ranks ranks = kvf_ranks_of(64, 9, 10);
    kvf_report report = report_of(UINT64_C(1) << 63, 3, (int)kvf_status_at(i)->status);
    assert_int_equal(kvf_ranks_report(&ranks, &report), KVF_OK);
    assert_true(same(ranks.merged, report));
  }
}

TEST(ranks_that_there_are_not_change_nothing)
{
  kvf_ranks ranks = kvf_ranks_of(2, 9, 10);
  kvf_report bad[] = {report_of(0, 0, 0), report_of(4, 0, 0), report_of(1, 11, 0), report_of(1, 0, 0)};
  bad[3].blocks = 9;
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    assert_int_equal(kvf_ranks_report(&ranks, &bad[i]), KVF_INVALID);
  }
  assert_int_equal(ranks.merged.ranks_mask, 0);
  assert_int_equal(kvf_ranks_release(&ranks, 0), KVF_INVALID);
  assert_int_equal(kvf_ranks_release(&ranks, 7), KVF_INVALID);
  assert_int_equal(kvf_ranks_release(&ranks, 2), KVF_OK);
  assert_false(kvf_ranks_are_released(&ranks));
  assert_int_equal(kvf_ranks_release(&ranks, 3), KVF_OK);
  assert_true(kvf_ranks_are_released(&ranks));
}
