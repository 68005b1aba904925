/* The table of statuses: names, groups, and what each lets an engine do. */
#include "base/status.h"
#include "test.h"

TEST(every_status_is_described_once)
{
  unsigned count = 0;
  for (const kvf_status_info *info = NULL; (info = kvf_status_at(count)) != NULL; count++) {
    assert_ptr_equal(kvf_status_describe(info->status), info);
    assert_ptr_equal(kvf_status_name(info->status), info->name);
    for (unsigned i = 0; i < count; i++) {
      assert_int_not_equal(kvf_status_at(i)->status, info->status);
      assert_string_not_equal(kvf_status_at(i)->name, info->name);
    }
  }
  assert_null(kvf_status_at(UINT32_MAX));
}

/* A rule that a row breaks is said with the row's name. */
static void expect(const kvf_status_info *info, bool holds, const char *rule)
{
  if (!holds) {
    fail_msg("%s: %s", info->name, rule);
  }
}

TEST(values_that_are_no_status_are_invalid)
{
  const int strangers[] = {1, -1, -100, -199, -509, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++) {
    assert_int_equal(kvf_status_describe(strangers[i])->status, KVF_INVALID);
  }
}

TEST(names_are_fit_for_metrics)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    expect(info, strspn(info->name, "abcdefghijklmnopqrstuvwxyz_") == strlen(info->name),
           "its name has lower-case letters and _ only");
    expect(info, info->meaning[strlen(info->meaning) - 1] == '.', "its meaning ends with a full stop");
  }
}

/* The group of a value says what was lost: -2xx a request. */
TEST(groups_follow_values)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    expect(info, (int)info->lost == -(int)info->status / 100, "its value is of the group of what it loses");
  }
}

/* A ticket of another key is no better the next time, but what it brings can be recomputed. */
TEST(only_losses_allow_anything)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    bool is_loss = info->lost != KVF_LOST_NOTHING && info->lost != KVF_LOST_CALL;
    expect(info, info->retry_elsewhere == (is_loss && info->status != KVF_OTHER_KEY), "ELSEWHERE is for every loss");
    expect(info, is_loss || (!info->retry_here && !info->trips_breaker), "HERE and BREAKER are for losses only");
  }
}

TEST(recompute_is_unsafe_after_mistakes_and_lost_ranks_only)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    expect(info, info->recompute_safe == (info->lost != KVF_LOST_CALL && info->status != KVF_RANK_LOST),
           "RECOMPUTE is for all but wrong calls and lost ranks");
  }
}

static void expect_flags(bool (*flag)(const kvf_status_info *), const int *expected, size_t count, const char *rule)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    bool is_expected = false;
    for (size_t j = 0; j < count; j++) {
      is_expected = is_expected || expected[j] == (int)kvf_status_at(i)->status;
    }
    expect(kvf_status_at(i), flag(kvf_status_at(i)) == is_expected, rule);
  }
}

static bool retry_here(const kvf_status_info *info)
{
  return info->retry_here;
}

static bool trips_breaker(const kvf_status_info *info)
{
  return info->trips_breaker;
}

TEST(retries_here)
{
  const int expected[] = {KVF_TRANSFER_FAILED, KVF_TRANSFER_STALLED, KVF_CHECKSUM,         KVF_CANCELLED,
                          KVF_NOT_PUBLISHED,   KVF_LEASE_CROWDED,    KVF_HANDSHAKE_TIMEOUT};
  expect_flags(retry_here, expected, sizeof(expected) / sizeof(expected[0]), "HERE is for those of the test's list");
}

TEST(breaker_counts_paths_not_requests)
{
  const int expected[] = {KVF_TRANSFER_FAILED,   KVF_TRANSFER_STALLED, KVF_PEER_DOWN,
                          KVF_HANDSHAKE_TIMEOUT, KVF_TRANSFER_SETUP,   KVF_PROTOCOL};
  expect_flags(trips_breaker, expected, sizeof(expected) / sizeof(expected[0]),
               "BREAKER is for those of the test's list");
}

TEST(a_reason_is_of_one_call)
{
  assert_int_equal(kvf_answer(kvf_because(KVF_LIMIT, "of this call")), KVF_LIMIT);
  assert_string_equal(kvf_error_text(), "of this call");
  assert_int_equal(kvf_because(KVF_NO_MEMORY, "of a way that was left"), KVF_NO_MEMORY);
  assert_int_equal(kvf_answer(KVF_OK), KVF_OK);
  assert_string_equal(kvf_error_text(), "of this call");
  assert_int_equal(kvf_answer(KVF_NO_MEMORY), KVF_NO_MEMORY);
  assert_string_equal(kvf_error_text(), kvf_status_describe(KVF_NO_MEMORY)->meaning);
}

TEST(each_status_has_its_index)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    assert_int_equal(kvf_status_index(kvf_status_at(i)->status), i);
  }
  assert_int_equal(kvf_status_index(-1), kvf_status_index(KVF_INVALID));
}
