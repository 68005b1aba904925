/* Loads whose ticket names several sources: one outcome and one release, whatever the attempts come to. Each producer
 * rank is an engine of its own here, with a ticket of its own, and has the prompt in other blocks. */
#include "scene.h"

#define THREE "ranks=3 apart blocks=6 published load_timeout_ms=400 stall_timeout_ms=4000 single hold=reads"
#define STUCK THREE ",cancels"

/* What is loaded of each position: which source's it is. */
static void assert_from(const char *sources)
{
  for (uint32_t position = 0; sources[position] != 0; position++) {
    for (uint32_t group = 0; group < c.groups; group++) {
      assert_true(cluster_holds(&c.tickets[sources[position] - 'A'], group, position));
    }
  }
}

/* ---- going on ---- */

/* The first two blocks of the first source are good, then its lease is over. */
CLUSTER_TEST(the_next_source_brings_the_rest)
{
  cluster_open(THREE);
  scene(
      "load 1 A,B > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6; read 7 of P1: 2 | 3 | 4 | 5\n"
      "done P1 4 ok > load 1: ok 6/6; load 1 released\n"
      "stats D source_switches loads_done > 1; 1\n");
  assert_from("AABBBB");
}

SCENE(one_source_is_all_there_is, THREE,
      "load 1 A > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6; load 1: lease_expired 2/6; load 1 released\n")

SCENE(sources_that_cannot_be_reached_are_passed_over, THREE,
      "down P0 P1\n"
      "load 1 A,B,C > read 1 of P2: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P2 6 ok > load 1: ok 6/6; load 1 released\n"
      "stats D source_switches > 2\n")

/* They have not this rank's layers. */
CLUSTER_TEST(sources_that_cannot_be_begun_are_passed_over)
{
  for (uint32_t bad = 1; bad <= 3; bad++) {
    cluster_open(THREE);
    for (uint32_t i = 0; i < bad; i++) {
      c.tickets[i].rank[0].layers.first += 100;
    }
    assert_int_equal(cluster_load("A,B,C", 1), bad < 3 ? KVF_OK : KVF_INCOMPATIBLE);
    assert_int_equal(c.wires[0].dials, 0);
    (void)cluster_said();
    if (bad < 3) {
      assert_int_equal(cluster_end_reads(bad, 6, KVF_OK), 6);
      assert_string_equal(cluster_said(), "load 1: ok 6/6; load 1 released");
      assert_int_equal(cluster_stat(&c.d, "source_switches", ""), 1);
    } else {
      scene("stats D loads_failed.incompatible loads_open > 1; 0\n");
    }
  }
}

/* What an earlier source has brought counts, and the last one says why it is not more. */
SCENE(the_prefix_only_grows, THREE,
      "load 1 A,B,C > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6; read 7 of P1: 2 | 3 | 4 | 5\n"
      "done P1 1 ok\n"
      "done P1 1 peer_restarted > cancel 9,10; read 11 of P2: 3 | 4 | 5\n"
      "done P2 1 lease_unknown > cancel 12,13; load 1: lease_unknown 3/6; load 1 released\n")

CLUSTER_TEST(its_time_is_that_of_all_attempts)
{
  kvf_histogram load_ns;
  uint64_t sum_ns = 0;
  cluster_open(THREE);
  scene(
      "load 1 A,B > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "+70\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6; read 7 of P1: 2 | 3 | 4 | 5\n"
      "+30\n"
      "done P1 4 ok > load 1: ok 6/6; load 1 released\n");
  assert_int_equal(kvf_core_histograms(c.d.core, &load_ns, 1), 1);
  for (uint32_t bucket = 0; bucket < load_ns.buckets; bucket++) {
    sum_ns += load_ns.sums[bucket];
  }
  assert_int_equal(sum_ns, 100 * MS);
}

/* The next source is asked for what is missing in some group. */
CLUSTER_TEST(several_groups_go_on_from_the_shortest_prefix)
{
  cluster_open("ranks=2 apart groups=2 published single hold=reads");
  scene(
      "load 1 A,B > read 1 of P0: 0.0 | 1.0 | 0.1 | 1.1 | 0.2 | 1.2 | 0.3 | 1.3\n"
      "done P0 3 ok\n"
      "done P0 1 lease_expired > cancel 5,6,7,8; read 9 of P1: 0.1 | 1.1 | 0.2 | 1.2 | 0.3 | 1.3\n"
      "done P1 6 ok > load 1: ok 8/8; load 1 released\n");
  assert_from("ABBB");
}

/* ---- held back ---- */

/* P4: no block is in two attempts at a time. */
SCENE(the_next_source_waits_for_released, STUCK,
      "load 1 A,B > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6\n"
      "done P0 2 cancelled\n"
      "done P0 1 cancelled > read 7 of P1: 2 | 3 | 4 | 5\n"
      "done P1 4 ok > load 1: ok 6/6; load 1 released\n")

/* P2: a copy that does not end costs the next source, not the deadline. */
SCENE(the_deadline_ends_the_wait, STUCK,
      "load 1 A,B > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6\n"
      "+399\n"
      "+2 > load 1: lease_expired 2/6\n"
      "done P0 3 cancelled > load 1 released\n"
      "stats D peers_known > 1\n")

/* P2: reads that do not end make the node unhealthy; the engine has its outcome by then. */
SCENE(what_is_never_released_is_not_waited_for, STUCK " release_timeout_ms=100",
      "load 1 A,B > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6\n"
      "+99\n"
      "+2 > load 1: lease_expired 2/6\n"
      "done P0 3 cancelled > load 1 released\n"
      "stats D peers_known > 1\n")

/* P2: at once, where there is nothing to wait for. */
SCENE(all_sources_share_one_deadline, STUCK,
      "load 1 A,B,C > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "+300\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6\n"
      "done P0 3 cancelled > read 7 of P1: 2 | 3 | 4 | 5\n"
      "+98\n"
      "+4 > cancel 7,8,9,10; load 1: deadline 2/6\n"
      "done P1 4 cancelled > load 1 released\n"
      "stats D peers_known > 2\n")

/* The clock has not been looked at since. */
CLUSTER_TEST(released_past_the_deadline_tries_no_other)
{
  cluster_open(STUCK);
  scene(
      "load 1 A,B > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6\n");
  c.now_ns += 400 * MS;
  scene(
      "done P0 3 cancelled > load 1: lease_expired 2/6; load 1 released\n"
      "stats D peers_known > 1\n");
}

/* ---- abort ---- */

SCENE(abort_between_sources_works_at_once, STUCK,
      "load 1 A,B > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6\n"
      "abort 1 > load 1: aborted 2/6\n"
      "abort 1\n"
      "done P0 3 cancelled > load 1 released\n"
      "stats D peers_known > 1\n")

SCENE(abort_at_a_source_tries_no_other, THREE,
      "load 1 A,B,C > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "abort 1 > cancel 1,2,3,4,5,6; load 1: aborted 0/6; load 1 released\n"
      "load 2 A,B,C > read 7 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 10,11,12; read 13 of P1: 2 | 3 | 4 | 5\n"
      "abort 2 > cancel 13,14,15,16; load 2: aborted 2/6; load 2 released\n"
      "stats D peers_known > 2\n")

/* P4: memory that is let go of is written to by no further source. */
SCENE(unregistering_tries_no_other, STUCK ",events",
      "load 1 A,B > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P0 2 ok\n"
      "done P0 1 lease_expired > cancel 4,5,6\n"
      "clear D > not yet\n"
      "done P0 3 cancelled\n"
      "clear D > not yet\n"
      "event > load 1: aborted 2/6; load 1 released\n"
      "clear D > close 1\n")

/* ---- others of a source's ranks ---- */

#define REPLICAS "ranks=8 blocks=6 published single hold=reads"

SCENE(another_replica_brings_the_rest, REPLICAS,
      "load 1 A > read 1 of P5: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done 1 ok\n"
      "done 2 ok\n"
      "done 3 peer_restarted > cancel 4,5,6; read 7 of P6: 2 | 3 | 4 | 5\n"
      "done 7 ok\n"
      "done 8 ok\n"
      "done 9 ok\n"
      "done 10 ok > load 1: ok 6/6; load 1 released\n"
      "holds A > 6\n")

SCENE(a_third_replica_is_not_tried, REPLICAS,
      "load 1 A > read 1 of P5: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done 1 lease_expired > cancel 2,3,4,5,6; read 7 of P6: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done 7 ok\n"
      "done 8 ok\n"
      "done 9 lease_expired > cancel 10,11,12; load 1: lease_expired 2/6; load 1 released\n")

SCENE(abort_at_a_replica_tries_no_other, REPLICAS,
      "load 1 A > read 1 of P5: 0 | 1 | 2 | 3 | 4 | 5\n"
      "abort 1 > cancel 1,2,3,4,5,6; load 1: aborted 0/6; load 1 released\n")

/* ---- sources that do not fit ---- */

CLUSTER_TEST(source_of_another_layout_is_left_out)
{
  static const char *const others[] = {"slid", "compat", "hash", "counts", "model", "groups"};
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
    cluster_open(THREE);
    char text[64];
    (void)snprintf(text, sizeof(text), "alter B %s\n", others[i]);
    scene(text);
    scene(
        "load 1 A,B,C > read 1 of P0: 0 | 1 | 2 | 3 | 4 | 5\n"
        "stats D sources_left_out tickets_refused.bad_ticket tickets_refused.incompatible > 1; 0; 0\n"
        "done P0 2 ok\n"
        "done P0 1 lease_expired > cancel 4,5,6; read 7 of P2: 2 | 3 | 4 | 5\n"
        "done P2 4 ok > load 1: ok 6/6; load 1 released\n");
  }
}

/* The first that fits is the one that the others are held against. */
SCENE(the_first_source_may_be_left_out, THREE,
      "alter A compat\n"
      "load 1 A,B > read 1 of P1: 0 | 1 | 2 | 3 | 4 | 5\n"
      "done P1 6 ok > load 1: ok 6/6; load 1 released\n")

SCENE(another_model_is_incompatible, THREE,
      "alter A model\n"
      "load 1 A > incompatible\n"
      "stats D tickets_refused.incompatible > 1\n")

SCENE(no_source_that_fits_is_a_refusal, THREE,
      "alter A hash\n"
      "alter B compat\n"
      "load 1 A,B > bad_ticket\n"
      "stats D tickets_refused.bad_ticket tickets_refused.incompatible sources_left_out loads_open > 1; 0; 0; 0\n")
