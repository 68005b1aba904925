/* A request whose producer has several ranks: each is told of the end, those that nobody read included (P5, P7). */
#include "scene.h"

#define FOUR "control ranks=4 heads=4 "

/* The engine's only rank read from one producer rank; the others hold a lease all the same. */
SCENE(every_rank_is_told_of_completion, FOUR "published",
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 ok 4 > request 1: use; P0,P1,P2,P3 ends A: completed\n"
      "released 1 1 > request 1 released\n"
      "stats D requests_open > 0\n"
      "peers > P3 x0 +control; P2 x0 +control; P1 x0 +control; P0 x0 +control\n")

SCENE(every_rank_is_told_of_a_cancellation, FOUR "published",
      "request 1 A\n"
      "cancel 1 > P0,P1,P2,P3 ends A: abandoned\n"
      "stats D requests_open > 0\n")

SCENE(every_rank_is_renewed, FOUR "published lease_ttl_ms=300",
      "request 1 A\n"
      "+90 x20\n"
      "cancel 1 > P0,P1,P2,P3 ends A: abandoned\n")

/* One producer rank cannot be reached: the others have their blocks back, the verdict does not wait, and it is told
 * when it can be reached again; P3: once. */
SCENE(unreachable_rank_is_told_later, FOUR "published",
      "down P2\n"
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 ok 4 > request 1: use; P0,P1,P3 ends A: completed\n"
      "up P2\n"
      "+510\n" /* the breaker's probe */
      "+5000 > P2 ends A: completed\n"
      "stats P0 late_acknowledgements > 0\n"
      "stats P2 late_acknowledgements > 0\n"
      "released 1 1 > request 1 released\n"
      "stats D requests_open > 0\n")

SCENE(rank_that_never_comes_back_is_given_up, FOUR "published lease_ttl_ms=300",
      "down P3\n"
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 ok 4 > request 1: use; P0,P1,P2 ends A: completed\n"
      "released 1 1 > request 1 released\n"
      "+440 > P3 ends A: expired\n"
      "stats D requests_open acknowledgements_given_up > 1; 0\n"
      "+20\n"
      "stats D requests_open acknowledgements_given_up > 0; 1\n")

/* A rank that had not published when the end came: it hears it again, and keeps nothing. */
SCENE(rank_that_publishes_late_is_told_again, FOUR "lease_ttl_ms=3000",
      "publish A P0 P1 P2\n"
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 ok 4 > request 1: use; P0,P1,P2 ends A: completed\n"
      "released 1 1 > request 1 released\n"
      "publish A P3\n"
      "+1001 > P3 ends A: completed\n"
      "stats D requests_open > 0\n")

/* Connections that break while the end is under way. */
SCENE(end_survives_a_broken_connection, FOUR "published",
      "request 1 A\n"
      "begin 1\n"
      "cut P0 P1 P2 P3\n"
      "report 1 1 transfer_failed 1 > request 1: recompute transfer_failed 16+48; P0,P1,P2,P3 ends A: completed\n"
      "released 1 1 > request 1 released\n"
      "stats D requests_open > 0\n")

/* P7: all of the engine's own ranks must be in, and the shortest prefix counts. */
SCENE(verdict_waits_for_all_own_ranks, "control ranks=4 own=2 heads=4 published",
      "request 1 A\n"
      "begin 1\n"
      "report 1 2 ok 4\n"
      "report 1 2 lease_expired 2\n" /* it has said */
      "report 1 1 lease_expired 1 > request 1: recompute lease_expired 16+48; P0,P1,P2,P3 ends A: completed\n"
      "released 1 3 > request 1 released\n"
      "stats D requests_open > 0\n")

/* ---- several sources ---- */

/* P0 and P1 are one engine, P2 and P3 another, each with a lease of its own, A and B, of these TTLs. */
static void open_two_sources(const char *options, uint32_t ttl_ms, uint32_t other_ttl_ms)
{
  cluster_open(options);
  (void)cluster_ticket(0, 4);
  for (uint32_t source = 0; source < 2; source++) {
    kvf_ticket *ticket = &c.tickets[source];
    ticket->ttl_ms = source == 0 ? ttl_ms : other_ttl_ms;
    ticket->ranks = 2;
    for (uint32_t i = 0; i < 2; i++) {
      ticket->rank[i] = c.tickets[0].rank[2 * source + i];
      ticket->rank[i].rank = i;
      assert_int_equal(cluster_publish(2 * source + i, ticket), KVF_OK);
    }
  }
}

#define TWO_SOURCES(name, text)                             \
  CLUSTER_TEST(name)                                        \
  {                                                         \
    open_two_sources(FOUR "lease_ttl_ms=1000", 1000, 1000); \
    scene(text);                                            \
  }

/* P5: nobody knows here which of them the ranks read from. */
TWO_SOURCES(every_source_is_kept_alive_and_told,
            "request 1 A,B\n"
            "+100 x50\n"
            "begin 1\n"
            "report 1 1 ok 4 > request 1: use; P0,P1 ends A: completed; P2,P3 ends B: completed\n"
            "released 1 1 > request 1 released\n"
            "stats D requests_open > 0\n")

TWO_SOURCES(every_source_is_told_of_a_cancellation,
            "request 1 A,B\n"
            "cancel 1 > P0,P1 ends A: abandoned; P2,P3 ends B: abandoned\n"
            "stats D requests_open > 0\n")

/* A source that is dead concerns no one but the ranks that read from it. */
TWO_SOURCES(a_lost_source_costs_the_request_nothing,
            "request 1 A,B\n"
            "down P0 P1\n"
            "cut P0 P1\n"
            "+100 x30 > P0,P1 ends A: expired\n"
            "begin 1\n"
            "report 1 1 ok 4 > request 1: use; P2,P3 ends B: completed\n"
            "stats D requests_open acknowledgements_given_up > 2; 0\n" /* two ranks have not heard of it */
            "released 1 1 > request 1 released\n"
            "+100 x16\n"
            "stats D requests_open acknowledgements_given_up > 0; 2\n")

/* It cannot be loaded whole from a source that lacks a rank. */
TWO_SOURCES(a_waiting_request_ends_with_its_last_source,
            "request 1 A,B\n"
            "down P1\n"
            "cut P1\n"
            "+100 x20 > P1 ends A: expired\n"
            "end B P2 > P2 ends B: revoked\n"
            "+100 x4 > request 1: recompute lease_expired 0+64; P0 ends A: completed; P3 ends B: completed\n"
            "begin 1 > not_found\n")

/* Renewed as often as the shortest lease needs, told of the end for as long as the longest may live. */
CLUSTER_TEST(each_source_has_its_own_life)
{
  for (uint32_t turn = 0; turn < 2; turn++) {
    open_two_sources(FOUR "lease_ttl_ms=300", turn == 0 ? 300 : 3000, turn == 0 ? 3000 : 300);
    scene(
        "request 1 A,B\n"
        "stats D renewals_sent > 4\n"
        "+101\n"
        "stats D renewals_sent > 8\n"
        "down P0 P1 P2 P3\n"
        "cut P0 P1 P2 P3\n"
        "cancel 1\n"
        "+300 > P0,P1 ends A: expired; P2,P3 ends B: expired\n"
        "+4100\n"
        "stats D requests_open > 1\n"
        "+200\n"
        "stats D requests_open acknowledgements_given_up > 0; 4\n");
  }
}

/* Two leases of one engine: what a rank says of one is not said of the other, which is not published yet. */
SCENE(leases_of_one_rank_are_apart, FOUR "published",
      "ticket 4\n"
      "request 1 A,B\n"
      "cancel 1 > P0,P1,P2,P3 ends A: abandoned\n"
      "stats D requests_open > 1\n"
      "publish B\n"
      "+6000 > P0,P1,P2,P3 ends B: abandoned\n"
      "stats D requests_open > 0\n")

SCENE(a_lease_that_is_named_twice_is_told_once, FOUR "published",
      "request 1 A,A\n"
      "cancel 1 > P0,P1,P2,P3 ends A: abandoned\n"
      "stats D requests_open > 0\n")
