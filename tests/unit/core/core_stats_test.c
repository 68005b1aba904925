/* What kvf_core_stats() and kvf_core_histograms() show. */
#include "base/status.h"
#include "core/core_state.h" /* for counters_are_not_mixed_up() */
#include "scene.h"

static kvf_stat stats[KVF_STATS_MAX];

static int open_one(__attribute__((unused)) void **state)
{
  cluster_open("hold=reads");
  return 0;
}

#define ONE_TEST(name) TEST_WITH(name, open_one, cluster_close)

ONE_TEST(no_two_have_one_name)
{
  const size_t count = kvf_core_stats(c.d.core, stats, KVF_STATS_MAX);
  assert_true(count > 0 && count < KVF_STATS_MAX); /* all of them fit */
  for (size_t i = 0; i < count; i++) {
    assert_true(strlen(stats[i].name) > 0);
    assert_non_null(stats[i].reason);
    for (size_t j = 0; j < i; j++) {
      assert_false(strcmp(stats[i].name, stats[j].name) == 0 && strcmp(stats[i].reason, stats[j].reason) == 0);
    }
  }
}

ONE_TEST(capacity_is_kept)
{
  const size_t all = kvf_core_stats(c.d.core, stats, KVF_STATS_MAX);
  for (size_t capacity = 0; capacity <= all; capacity++) {
    memset(stats, 0xee, sizeof(stats));
    const kvf_stat untouched = stats[0];
    assert_int_equal(kvf_core_stats(c.d.core, stats, capacity), capacity);
    assert_memory_equal(&stats[capacity], &untouched, sizeof(untouched));
  }
}

/* Every status that a load can have is a reason of its own; a mistake of the caller's is none. */
ONE_TEST(outcomes_are_by_reason)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    if (info->status != KVF_OK && info->lost != KVF_LOST_CALL) {
      assert_int_equal(cluster_stat(&c.d, "loads_failed", info->name), 0);
    }
  }
}

ONE_TEST(histograms_fit)
{
  kvf_histogram histograms[KVF_HISTOGRAMS_MAX];
  assert_int_equal(kvf_core_histograms(c.d.core, histograms, KVF_HISTOGRAMS_MAX), 3);
  assert_string_equal(histograms[0].name, "load_ns");
  assert_string_equal(histograms[1].name, "load_bytes");
  assert_string_equal(histograms[2].name, "detection_ns");
  assert_int_equal(kvf_core_histograms(c.d.core, histograms, 1), 1);
}

/* What is there now goes up and down; what is counted does not. */
ONE_TEST(gauges_say_so)
{
  static const char *const gauges[] = {"loads_open",     "loads_not_released", "blocks_quarantined", "leases_live",
                                       "leases_untaken", "leases_reserved",    "lease_blocks",       "offers_open",
                                       "requests_open",  "peers_known",        "sessions_open"};
  const size_t count = kvf_core_stats(c.d.core, stats, KVF_STATS_MAX);
  for (size_t i = 0; i < count; i++) {
    bool is_gauge = false;
    for (size_t k = 0; k < sizeof(gauges) / sizeof(gauges[0]); k++) {
      is_gauge = is_gauge || strcmp(stats[i].name, gauges[k]) == 0;
    }
    assert_int_equal(stats[i].gauge, is_gauge);
  }
}

SCENE(
    a_load_is_counted_on_both_sides, "published single hold=reads",
    "load 1 A > read 1 of P0: 0 | 1 | 2 | 3\n"
    "stats D loads_open loads_done > 1; 0\n"
    "done P0 4 ok > load 1: ok 4/4; load 1 released\n"
    "stats D loads_open loads_done chunks blocks_loaded peers_known peer_dials peer_handshakes > 0; 1; 4; 4; 1; 1; 1\n"
    "stats P0 sessions_accepted sessions_open leases_published leases_live leases_untaken leases_reserved lease_blocks "
    "> 1; 1; 1; 1; 1; 1; 4\n"
    "end A > P0 ends A: revoked\n"
    "stats P0 leases_live leases_untaken leases_ended.revoked > 0; 0; 1\n")

SCENE(failures_are_counted_by_their_reason, "hold=reads",
      "load 1 A > read 1 of P0: small 0,1,2,3\n"
      "done 1 lease_unknown > load 1: lease_unknown 0/4; load 1 released\n"
      "stats D loads_failed.lease_unknown loads_done > 1; 0\n")

SCENE(requests_are_counted, "control lease_ttl_ms=600000",
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 ok 4 > request 1: use\n"
      "report 1 1 ok 4 > not_found\n"
      "request 2 A\n"
      "begin 2\n"
      "report 2 1 deadline 1 > request 2: recompute deadline 16+48\n"
      "request 3 A\n"
      "begin 3\n"
      "report 3 1 deadline 3 > request 3: recompute deadline 48+16\n"
      "request 4 A\n"
      "begin 4\n"
      "+35001 > request 4: fail rank_lost retry; request 4 stuck\n"
      "stats D requests_opened verdicts.use verdicts.recompute verdicts.fail recomputed_tokens.deadline > 4; 1; 2; 1; "
      "64\n"
      "stats D ranks_lost late_reports > 1; 1\n")
