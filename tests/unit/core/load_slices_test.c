/* One load after the other, step by step: what is asked for and when, how blocks are cut into reads, what becomes of a
 * part and of the whole, checksums, and the clock that finds a part that stands still. */
#include "base/status.h"
#include "core/core_state.h" /* for how many readers there are */
#include "scene.h"
#include "wire/ping_message.h"

/* Reads of four blocks of two bytes, two at a time; pauses are of 5 to 10 ms, no byte for 1000 ms is a stall. */
#define TIMES                                                                                    \
  "offers=local exact_inline_bytes=0 backoff_min_ms=10 backoff_max_ms=10 stall_timeout_ms=1000 " \
  "release_timeout_ms=5000 handshake_timeout_ms=60000 "
#define UNPUBLISHED TIMES "exact_chunk_bytes=8 chunks_in_flight=2 hold=links,reads,cancels "
#define LOAD UNPUBLISHED "published "
#define SIX LOAD "blocks=6"

/* Begins with a load of six blocks, whose reads 1 and 2 are in flight over link 1. */
static void start_reading(void)
{
  cluster_open(SIX);
  scene(
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 4,5\n");
}

#define READING_SCENE(name, text)               \
  TEST_WITH(name, start_reading, cluster_close) \
  {                                             \
    scene(text);                                \
  }

/* ---- the table of loads ---- */

READING_SCENE(whole_load,
              "done 2 ok\n"
              "done 1 ok > load 1: ok 6/6; load 1 released\n"
              "stats D loads_open loads_done chunks blocks_loaded bytes_loaded > 0; 1; 2; 6; 12\n")

SCENE(abort_in_every_state, SIX,
      "load 1 A > open 1 P0 local\n"
      "abort 1 > load 1: aborted 0/6; load 1 released\n"
      "abort 1 > not_found\n"
      "link 1 ok\n" /* nobody's */
      "load 2 A > read 1 of P0 over 1: 0,1,2,3 | 4,5\n"
      "done 1 ok\n"
      "abort 2 > cancel 2; load 2: aborted 4/6\n"
      "abort 2\n"
      "done 2 cancelled > load 2 released\n"
      "load 3 A > read 3 of P0 over 1: 0,1,2,3 | 4,5\n"
      "done 3 transfer_failed\n"
      "abort 3 > cancel 4; load 3: aborted 0/6\n"
      "done 4 ok > load 3 released\n"
      "load 4 A > read 5 of P0 over 1: 0,1,2,3 | 4,5\n"
      "done 5 transfer_failed\n"
      "done 6 transfer_failed\n"
      "abort 4 > load 4: aborted 0/6; load 4 released\n"
      "+100\n")

SCENE(all_are_aborted, SIX,
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 4,5\n"
      "load 2 A > read 3 of P0 over 1: 0,1,2,3 | 4,5\n"
      "clear D > not yet; cancel 1,2,3,4; load 1: aborted 0/6; load 2: aborted 0/6\n"
      "clear D > not yet\n"
      "done P0 2 ok > load 1 released\n"
      "done P0 2 cancelled > load 2 released\n")

/* ---- what is asked for, and whose turn it is ---- */

SCENE(one_question_for_each_peer, SIX " ranks=2 heads=2",
      "load 1 A > open 1 P0 local; open 2 P1 local\n"
      "load 2 A\n" /* asked already */
      "link 2 ok > read 1 of P1 over 2: 0,1,2,3 | 0,1,2,3 | 4,5 | 4,5\n"
      "load 3 A > read 5 of P1 over 2: 0,1,2,3 | 4,5\n"
      "link 1 ok > read 7 of P0 over 1: 0,1,2,3 | 0,1,2,3 | 0,1,2,3 | 4,5 | 4,5 | 4,5\n")

/* The answer to a question of a load that is gone is good for who waits by then. */
SCENE(a_question_outlives_its_load, LOAD,
      "load 1 A > open 1 P0 local\n"
      "abort 1 > load 1: aborted 0/4; load 1 released\n"
      "load 2 A\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3\n")

SCENE(loads_take_turns, TIMES "exact_chunk_bytes=8 chunks_in_flight=4 hold=links,reads blocks=16 published",
      "load 1 A want=0,1,2,3,4,5,6,7,8,9,10,11 > open 1 P0 local\n"
      "load 2 A want=12,13,14,15\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 12,13,14,15 | 4,5,6,7 | 8,9,10,11\n")

/* A load of many parts has no more turns than a load of one: of load 1, only the part of P0 is left. */
CLUSTER_TEST(parts_share_their_load_s_turn)
{
  cluster_open(LOAD "blocks=16 ranks=2 heads=2");
  scene(
      "load 1 A want=0,1,2,3,4,5,6,7 > open 1 P0 local; open 2 P1 local\n"
      "link 2 ok > read 1 of P1 over 2: 0,1,2,3 | 4,5,6,7\n"
      "done 1 ok\n"
      "done 2 ok\n"
      "linkdown 2 transfer_failed > close 2\n"
      "load 2 A want=8,9,10,11,12,13,14,15 > open 3 P1 local\n");
  kvf_core_on_link(c.d.core, c.now_ns, 1, KVF_OK);
  kvf_core_on_link(c.d.core, c.now_ns, 3, KVF_OK);
  scene(
      "+1 > read 3 of P0 over 1: 0,1,2,3 | 8,9,10,11 | 4,5,6,7; read 6 of P1 over 3: 8,9,10,11; "
      "read 7 of P0 over 1: 12,13,14,15; read 8 of P1 over 3: 12,13,14,15\n");
}

SCENE(limit_of_reads_in_flight, LOAD "blocks=16",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 4,5,6,7\n"
      "done 2 ok > read 3 of P0 over 1: 8,9,10,11\n"
      "done 1 ok > read 4 of P0 over 1: 12,13,14,15\n"
      "done 3 ok\n")

CLUSTER_TEST(no_read_once_decided)
{
  cluster_open(SIX);
  scene("load 1 A > open 1 P0 local\n");
  kvf_core_on_link(c.d.core, c.now_ns, 1, KVF_OK);
  scene("abort 1 > load 1: aborted 0/6; load 1 released\n");
}

/* ---- chunks ---- */

/* The first read of a load, with one in flight. */
static void expect_first(const char *options, uint32_t readers, uint32_t spread_bytes, const char *text)
{
  char all[256];
  (void)snprintf(all, sizeof(all), TIMES "chunks_in_flight=%u hold=reads published %s", readers, options);
  cluster_open(all);
  c.d.core->loads.readers = (kvf_load_readers){.count = readers, .spread_bytes = spread_bytes};
  assert_int_equal(cluster_load("A", 1), KVF_OK);
  char first[128];
  (void)snprintf(first, sizeof(first), "%s", cluster_said());
  first[strcspn(first, "|;")] = 0;
  char expected[128];
  (void)snprintf(expected, sizeof(expected), "read 1 of P0: %s", text);
  assert_memory_equal(first, expected, strlen(expected));
  assert_true(first[strlen(expected)] == 0 || first[strlen(expected)] == ' ');
}

CLUSTER_TEST(as_many_bytes_as_allowed)
{
  expect_first("blocks=9 exact_chunk_bytes=7", 1, 1, "0,1,2");
  expect_first("blocks=9 exact_chunk_bytes=8", 1, 1, "0,1,2,3");
  expect_first("blocks=9 exact_chunk_bytes=8 heads=2", 1, 1, "0,1");
  expect_first("blocks=9 exact_chunk_bytes=1", 1, 1, "0"); /* at least one item */
}

CLUSTER_TEST(all_readers_have_as_many)
{
  expect_first("blocks=4 exact_chunk_bytes=8", 2, 1, "0,1");
  expect_first("blocks=3 exact_chunk_bytes=8", 2, 1, "0,1"); /* whole items */
  expect_first("blocks=1 exact_chunk_bytes=8", 2, 1, "0");
  expect_first("blocks=8 exact_chunk_bytes=8", 2, 1, "0,1,2,3");
  expect_first("blocks=10 exact_chunk_bytes=8", 2, 1, "0,1,2"); /* four, since three are not even */
  expect_first("blocks=10 exact_chunk_bytes=8", 3, 1, "0,1,2,3");
  expect_first("blocks=16 exact_chunk_bytes=8", 3, 1, "0,1,2");
}

CLUSTER_TEST(no_chunk_is_made_small_for_that)
{
  expect_first("blocks=4 exact_chunk_bytes=8", 4, 4, "0,1");
  expect_first("blocks=3 exact_chunk_bytes=8", 4, 4, "0,1,2");
  expect_first("blocks=4 exact_chunk_bytes=8", 4, 6, "0,1,2,3");
  expect_first("blocks=4 exact_chunk_bytes=8", 4, 20, "0,1,2,3"); /* more than a chunk may have */
}

/* Of a memory that is longer than the cluster's: nothing is copied. */
CLUSTER_TEST(at_most_the_named_limit)
{
  static uint32_t ids[KVF_CHUNK_ITEMS_MAX + 1];
  cluster_open(TIMES "hold=reads blocks=0");
  cluster_node *const nodes[] = {&c.d, &c.p[0]};
  for (size_t i = 0; i < 2; i++) {
    assert_true(cluster_clear_memory(nodes[i]));
    nodes[i]->regions[0].blocks = KVF_CHUNK_ITEMS_MAX + 1;
    cluster_set_memory(nodes[i]);
  }
  for (uint32_t i = 0; i <= KVF_CHUNK_ITEMS_MAX; i++) {
    ids[i] = i;
  }
  const uint32_t count = KVF_CHUNK_ITEMS_MAX + 1;
  const kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  const kvf_prompt prompt = {.tokens = count * CLUSTER_BLOCK_TOKENS};
  kvf_lease lease;
  assert_int_equal(kvf_core_lease_reserve(c.p[0].core, NULL, count, 0, &lease), KVF_OK);
  assert_int_equal(kvf_core_ticket(c.p[0].core, &lease, &blocks, &prompt, &c.tickets[0]), KVF_OK);
  const kvf_sources sources = cluster_sources("A");
  const kvf_load_params load = {.request_id = 1, .prompt = prompt, .destination = blocks, .user = 1};
  assert_int_equal(kvf_core_load_start(c.d.core, c.now_ns, &sources, &load, 0), KVF_OK);
  cluster_settle();
  assert_int_equal(c.reads_count, 2);
  assert_int_equal(c.reads[0].transfer.items_count, KVF_CHUNK_ITEMS_MAX);
  assert_int_equal(c.reads[1].transfer.items_count, 1);
}

/* Blocks of the first group are twice as long as those of the second. */
SCENE(groups_have_sizes_of_their_own,
      TIMES "layers=3 groups=2 exact_chunk_bytes=192 chunks_in_flight=1 hold=reads published",
      "load 1 A > read 1 of P0 [0-2]: 0.0,1.0,0.1,1.1\n"
      "done 1 ok > read 2 of P0 [0-2]: 0.2,1.2,0.3,1.3\n"
      "done 2 ok > load 1: ok 8/8; load 1 released\n"
      "done 3 ok\n")

/* A chunk ends where the next item is in flight or good. */
SCENE(holes_are_filled_in_order, TIMES "exact_chunk_bytes=8 chunks_in_flight=3 hold=reads blocks=12 published",
      "load 1 A > read 1 of P0: 0,1,2,3 | 4,5,6,7 | 8,9,10,11\n"
      "done 3 not_published\n"
      "done 2 ok\n"
      "done 1 not_published\n"
      "+10 > read 4 of P0: 0,1,2,3 | 8,9,10,11\n")

/* What is left may be small; of a load of two parts nothing is, but for the last. */
SCENE(small_is_the_whole_rest, LOAD "exact_inline_bytes=8",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: small 0,1,2,3\n"
      "done 1 ok > load 1: ok 4/4; load 1 released\n")

SCENE(the_rest_is_small, LOAD "exact_inline_bytes=8 blocks=5",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 4\n"
      "done 1 ok\n"
      "done 2 not_published\n"
      "+10 > read 3 of P0 over 1: small 4\n"
      "done 3 ok > load 1: ok 5/5; load 1 released\n")

SCENE(one_part_of_two_is_not_small, LOAD "exact_inline_bytes=8 blocks=1 ranks=2 heads=2",
      "load 1 A > open 1 P0 local; open 2 P1 local\n"
      "link 1 ok > read 1 of P0 over 1: 0\n"
      "done 1 ok\n"
      "link 2 ok > read 2 of P1 over 2: small 0\n")

SCENE(too_many_bytes_for_small, LOAD "exact_inline_bytes=7",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3\n")

/* Of the group that this stage has no layer of. */
CLUSTER_TEST(a_load_of_no_bytes_is_read_all_the_same)
{
  cluster_open(TIMES "own=2 own_stages=0x04 rank=1 layers=6 groups=2 blocks=3 hold=reads published");
  c.d.core->loads.readers = (kvf_load_readers){.count = 2, .spread_bytes = 1};
  scene(
      "load 1 A want=0,1,2 > read 1 of P0 [3-5]: small 0.0,0.1,0.2\n"
      "done 1 ok > load 1: ok 6/6; load 1 released\n");
}

/* ---- retries ---- */

/* Read 2 is not released until then. */
READING_SCENE(retry_only_what_is_missing,
              "done 1 transfer_failed\n"
              "+100\n"
              "done 2 ok\n"
              "+4\n"
              "+6 > read 3 of P0 over 1: 0,1,2,3\n"
              "done 3 ok > load 1: ok 6/6; load 1 released\n"
              "stats D load_retries > 1\n")

CLUSTER_TEST(retryable_statuses)
{
  static const char *const statuses[] = {"transfer_failed", "transfer_stalled", "peer_down", "cancelled", "checksum"};
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    char text[256];
    cluster_open(LOAD "blocks=1");
    (void)snprintf(text, sizeof(text),
                   "load 1 A > open 1 P0 local\n"
                   "link 1 ok > read 1 of P0 over 1: 0\n"
                   "done 1 %s\n"
                   "+10 > read 2 of P0 over 1: 0\n"
                   "done 2 ok > load 1: ok 1/1; load 1 released\n",
                   statuses[i]);
    scene(text);
  }
}

CLUSTER_TEST(final_statuses)
{
  static const char *const statuses[] = {"lease_expired", "lease_unknown", "bad_ticket", "peer_restarted",
                                         "incompatible"};
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    char text[256];
    cluster_open(LOAD "blocks=1");
    (void)snprintf(text, sizeof(text),
                   "load 1 A > open 1 P0 local\n"
                   "link 1 ok > read 1 of P0 over 1: 0\n"
                   "done 1 %s > load 1: %s 0/1; load 1 released\n",
                   statuses[i], statuses[i]);
    scene(text);
  }
}

/* What this node was called with was right when the load began: a failure has another reason. */
CLUSTER_TEST(outcome_is_never_the_callers_mistake)
{
  static const int statuses[] = {KVF_LIMIT, KVF_CLOSED, -12345}; /* the last is no enumerator */
  cluster_open(LOAD "blocks=1");
  scene(
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0\n"
      "done 1 invalid > load 1: bad_ticket 0/1; load 1 released\n"); /* the producer has no such block */
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    cluster_open(LOAD "blocks=1");
    scene(
        "load 1 A > open 1 P0 local\n"
        "link 1 ok > read 1 of P0 over 1: 0\n");
    cluster_end_read(0, (kvf_status)statuses[i]);
    scene("+1\n");
  }
}

READING_SCENE(lease_over_midway,
              "done 1 ok\n"
              "end A > P0 ends A: revoked\n"
              "done 2 ok > load 1: lease_expired 4/6; load 1 released\n")

/* What comes then is too late to count. */
READING_SCENE(lease_over_cancels_the_rest,
              "end A > P0 ends A: revoked\n"
              "done 1 ok > cancel 2; load 1: lease_expired 0/6\n"
              "done 2 ok > load 1 released\n")

TEST_WITH(another_process_answers, start_reading, cluster_close)
{
  scene("done 1 ok\n");
  c.p[0].config.incarnation.bytes[1] ^= 1; /* as the fence says */
  scene("done 2 ok > load 1: peer_restarted 4/6; load 1 released\n");
}

/* Over the same link. */
SCENE(not_published_then_live, UNPUBLISHED "blocks=6",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 4,5\n"
      "done 1 ok\n"
      "done 2 not_published\n" /* the producer says it itself */
      "publish A\n"
      "+4\n"
      "+6 > read 3 of P0 over 1: 0,1,2,3 | 4,5\n"
      "done 3 ok\n"
      "done 4 ok > load 1: ok 6/6; load 1 released\n")

/* P1. Nobody has failed: a new session tells what there is now. */
TEST_WITH(other_memory_is_read_over_another_link, start_reading, cluster_close)
{
  kvf_fence_entry *entry = &c.p[0].table[c.tickets[0].lease.slot];
  const kvf_fence_entry live = *entry;
  scene(
      "hold P0\n"
      "move P0 > P0 ends A: revoked\n");
  *entry = live; /* as if the lease went on in the other memory */
  scene(
      "done 1 ok > close 1; D hangs up on P0\n"
      "done 2 ok\n"
      "let P0\n"
      "+10 > open 2 P0 local\n"
      "link 2 ok > read 3 of P0 over 2: 0,1,2,3 | 4,5\n"
      "done 3 ok\n"
      "done 4 ok > load 1: ok 6/6; load 1 released\n"
      "stats D peer_failures > 0\n");
}

CLUSTER_TEST(never_published)
{
  cluster_open(UNPUBLISHED "blocks=1 load_timeout_ms=100");
  scene(
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0\n");
  uint32_t reads = 1;
  for (uint32_t ms = 0; ms < 99; ms++) {
    if (c.reads_count > 0) {
      cluster_end_read(0, KVF_OK);
      reads++;
    }
    cluster_advance(1);
  }
  assert_in_range(reads, 10, 21);
  (void)cluster_said();
  scene(
      "done P0 1 ok > 0 reads\n"
      "+1 > load 1: deadline 0/1; load 1 released\n");
}

SCENE(link_lost_while_not_published, UNPUBLISHED,
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3\n"
      "done 1 ok\n"
      "+1\n"
      "linkdown 1 peer_down > close 1\n"
      "+9 > open 2 P0 local\n")

/* Pauses of 10, 20, 40 ms and so on, at least half of each, until a block is confirmed. */
SCENE(pauses_grow_until_a_success,
      "offers=local exact_inline_bytes=0 backoff_min_ms=10 exact_chunk_bytes=8 chunks_in_flight=1 blocks=5 published "
      "hold=reads",
      "load 1 A > read 1 of P0: 0,1,2,3\n"
      "done 1 not_published\n"
      "+10 > read 2 of P0: 0,1,2,3\n"
      "done 2 not_published\n"
      "+20 > read 3 of P0: 0,1,2,3\n"
      "done 3 not_published\n"
      "+19\n"
      "+21 > read 4 of P0: 0,1,2,3\n"
      "done 4 ok > read 5 of P0: 4\n"
      "done 5 not_published\n"
      "+10 > read 6 of P0: 4\n")

/* ---- links ---- */

READING_SCENE(first_trouble_is_remembered,
              "done 1 cancelled\n"
              "done 2 checksum\n"
              "+10 > read 3 of P0 over 1: 0,1,2,3 | 4,5\n"
              "done 3 transfer_failed\n"
              "done 4 transfer_failed\n"
              "linkdown 1 transfer_failed > close 1\n"
              "+10 > open 2 P0 local\n"
              "link 2 transfer_setup > close 2; load 1: checksum 0/6; load 1 released\n")

/* A producer that is killed is heard of by its data connection or its control connection, whichever ends first. */
CLUSTER_TEST(broken_link_of_a_peer_that_is_gone)
{
  static const struct {
    const char *refusal;
    const char *expected;
  } rows[] = {
      {"peer_down", "peer_down"}, {"transfer_setup", "transfer_failed"}, {"handshake_timeout", "transfer_failed"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    char text[512];
    cluster_open(LOAD "blocks=1");
    (void)snprintf(text, sizeof(text),
                   "load 1 A > open 1 P0 local\n"
                   "link 1 ok > read 1 of P0 over 1: 0\n"
                   "linkdown 1 transfer_failed > close 1\n"
                   "done 1 transfer_failed\n"
                   "+50 > open 2 P0 local\n"
                   "link 2 %s > close 2; load 1: %s 0/1; load 1 released\n",
                   rows[i].refusal, rows[i].expected);
    scene(text);
  }
}

READING_SCENE(broken_link_of_a_peer_that_is_another_process,
              "restart P0 > close 1\n"
              "done 1 transfer_failed\n"
              "done 2 transfer_failed\n"
              "+10 > D hangs up on P0; load 1: peer_restarted 0/6; load 1 released\n")

READING_SCENE(trouble_that_is_over_is_forgotten,
              "done 1 transfer_failed\n"
              "linkdown 1 peer_down > close 1\n"
              "done 2 ok\n"
              "+10 > open 2 P0 local\n"
              "link 2 peer_down > close 2; load 1: peer_down 0/6; load 1 released\n")

SCENE(link_down, LOAD "blocks=12",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 4,5,6,7\n"
      "linkdown 99 peer_down\n" /* another one */
      "done 1 ok > read 3 of P0 over 1: 8,9,10,11\n"
      "linkdown 1 peer_down > close 1\n"
      "linkdown 1 peer_down\n"
      "done 2 ok\n"
      "done 3 cancelled\n"
      "+10 > open 2 P0 local\n"
      "link 2 peer_down > close 2; load 1: peer_down 8/12; load 1 released\n")

CLUSTER_TEST(link_down_before_any_read)
{
  cluster_open(LOAD);
  scene("load 1 A > open 1 P0 local\n");
  kvf_core_on_link(c.d.core, c.now_ns, 1, KVF_OK);
  kvf_core_on_link_down(c.d.core, c.now_ns, 1, KVF_PEER_DOWN);
  scene(
      "+1 > read 1 of P0 over 1: 0,1,2,3; close 1\n"
      "done 1 peer_down\n"
      "+10 > open 2 P0 local\n");
}

READING_SCENE(last_read_ends_well_after_link_down,
              "linkdown 1 peer_down > close 1\n"
              "done 2 ok\n"
              "done 1 ok > load 1: ok 6/6; load 1 released\n")

READING_SCENE(answers_that_nobody_waits_for,
              "link 2 ok\n"
              "link 1 peer_down\n"
              "done 99 transfer_failed\n"
              "done 2 ok\n"
              "done 2 ok\n" /* twice */
              "progress 99\n"
              "stats D late_reads > 2\n")

/* ---- the outcome ---- */

/* Positions 2, 5 and 6 of 9 are wanted. */
CLUSTER_TEST(unwanted_positions_are_good)
{
  static const char *const prefixes[] = {"aborted 2/9", "aborted 5/9", "aborted 6/9", "ok 9/9"};
  for (uint32_t good = 0; good < 4; good++) {
    char expected[64];
    cluster_open(TIMES "single hold=reads blocks=9 published");
    scene("load 1 A want=2,5,6 > read 1 of P0: 2 | 5 | 6\n");
    assert_int_equal(cluster_end_reads(0, good, KVF_OK), good);
    assert_int_equal(cluster_end_reads(0, 3, KVF_TRANSFER_FAILED), 3 - good);
    (void)kvf_core_load_abort(c.d.core, c.now_ns, 1);
    cluster_settle();
    (void)snprintf(expected, sizeof(expected), "load 1: %s; load 1 released", prefixes[good]);
    assert_string_equal(cluster_said(), expected);
  }
}

SCENE(short_part_comes_first, LOAD "blocks=8 ranks=2 heads=2",
      "load 1 A > open 1 P0 local; open 2 P1 local\n"
      "link 2 ok > read 1 of P1 over 2: 0,1,2,3 | 4,5,6,7\n"
      "done 1 ok\n"
      "done 2 ok\n"
      "link 1 peer_down > close 1; load 1: peer_down 0/8; load 1 released\n")

SCENE(failed_part_ends_the_others, LOAD "blocks=8 ranks=2 heads=2",
      "load 1 A > open 1 P0 local; open 2 P1 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 4,5,6,7\n"
      "done 1 ok\n"
      "link 2 peer_down > close 2; cancel 2; load 1: peer_down 0/8\n"
      "done 2 cancelled > load 1 released\n")

/* Of one layer and of five. */
SCENE(parts_of_different_widths,
      TIMES "ranks=2 stages=0x01 layers=6 exact_chunk_bytes=160 chunks_in_flight=2 hold=reads published",
      "load 1 A > read 1 of P0 [0-0]: 0,1,2,3; read 2 of P1 [1-5]: 0 | 1\n"
      "done P0 1 ok\n"
      "done P1 2 ok > read 4 of P1 [1-5]: 2 | 3\n"
      "done P1 2 ok > load 1: ok 4/4; load 1 released\n")

/* What the other peer's fence says. */
CLUSTER_TEST(each_part_has_its_own_claim)
{
  cluster_open(LOAD "blocks=1 ranks=2 heads=2");
  scene(
      "load 1 A > open 1 P0 local; open 2 P1 local\n"
      "link 1 ok > read 1 of P0 over 1: 0\n"
      "link 2 ok > read 2 of P1 over 2: 0\n"
      "done 1 ok\n");
  c.p[1].config.incarnation = c.p[0].config.incarnation;
  scene("done 2 ok > load 1: peer_restarted 0/1; load 1 released\n");
}

SCENE(deadline, SIX " load_timeout_ms=100",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 4,5\n"
      "+50\n"
      "done 1 ok\n"
      "+49\n"
      "+1 > cancel 2; load 1: deadline 4/6\n"
      "done 2 ok > load 1 released\n")

SCENE(deadline_without_any_answer, LOAD "load_timeout_ms=100",
      "load 1 A > open 1 P0 local\n"
      "+100 > load 1: deadline 0/4; load 1 released\n")

SCENE(not_released_in_time, LOAD "blocks=3 load_timeout_ms=100",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2\n"
      "+100 > cancel 1; load 1: deadline 0/3\n"
      "+4999\n"
      "stats D loads_not_released blocks_quarantined > 0; 0\n"
      "+1\n"
      "stats D loads_not_released blocks_quarantined > 1; 3\n"
      "progress 1\n"
      "+84000 > ping P0; P0 ends A: expired\n"
      "done 1 cancelled > load 1 released\n"
      "stats D loads_not_released blocks_quarantined > 0; 0\n")

/* Two events, in order, though all is over before the first has been taken. */
CLUSTER_TEST(released_overtakes_nobody)
{
  cluster_open(TIMES "hold=reads blocks=1 published");
  scene("load 1 A > read 1 of P0: 0\n");
  assert_int_equal(kvf_core_load_abort(c.d.core, c.now_ns, 1), KVF_OK);
  cluster_end_read(0, KVF_CANCELLED); /* the cancel is not worth telling any more */
  scene("stats D loads_failed.aborted > 1; load 1: aborted 0/1; load 1 released\n");
}

static uint64_t sum_of(uint32_t histogram, bool of_counts)
{
  kvf_histogram all[3];
  uint64_t sum = 0;
  assert_int_equal(kvf_core_histograms(c.d.core, all, 3), 3);
  for (uint32_t i = 0; i < all[histogram].buckets; i++) {
    sum += of_counts ? all[histogram].counts[i] : all[histogram].sums[i];
  }
  return sum;
}

enum { LOAD_NS, LOAD_BYTES, DETECTION_NS };

CLUSTER_TEST(a_good_load_s_time_and_bytes)
{
  cluster_open(LOAD);
  scene(
      "load 1 A > open 1 P0 local\n"
      "+2\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3\n"
      "+5\n"
      "done 1 ok > load 1: ok 4/4; load 1 released\n");
  assert_int_equal(sum_of(LOAD_NS, true), 1);
  assert_int_equal(sum_of(LOAD_NS, false), 7 * MS);
  assert_int_equal(sum_of(LOAD_BYTES, false), 8);
  assert_int_equal(sum_of(DETECTION_NS, true), 0);
}

/* From the last byte on, not from the start: that is how long nobody noticed. */
TEST_WITH(detection_begins_with_the_last_byte, start_reading, cluster_close)
{
  scene(
      "+100\n"
      "done 1 ok\n"
      "end A > P0 ends A: revoked\n"
      "+50\n"
      "progress 2\n"
      "done 2 ok > load 1: lease_expired 4/6; load 1 released\n");
  assert_int_equal(sum_of(DETECTION_NS, true), 1);
  assert_int_equal(sum_of(DETECTION_NS, false), 0);
  scene(
      "linkdown 1 transfer_failed > close 1\n"
      "load 2 A > open 2 P0 local\n"
      "+60\n"
      "link 2 peer_down > close 2; load 2: peer_down 0/6; load 2 released\n");
  assert_int_equal(sum_of(DETECTION_NS, false), 60 * MS);
  assert_int_equal(sum_of(LOAD_NS, true), 0);
}

/* ---- blocks that do not agree with their checksums ---- */

/* The items before the wrong one are good: only it and what follows is read again. */
READING_SCENE(one_more_try,
              "done 2 ok 2\n"
              "done 1 checksum 2\n"
              "+10 > read 3 of P0 over 1: 2,3\n"
              "done 3 ok 2 > load 1: ok 6/6; load 1 released\n"
              "stats D checksum_mismatches blocks_verified blocks_unverified > 1; 6; 0\n")

READING_SCENE(wrong_twice_decides,
              "done 2 ok 2\n"
              "done 1 checksum 2\n"
              "+10 > read 3 of P0 over 1: 2,3\n"
              "done 3 checksum 0 > load 1: checksum 2/6; load 1 released\n"
              "stats D checksum_mismatches blocks_verified blocks_unverified > 2; 4; 0\n")

/* Each item has a second try of its own. */
SCENE(another_item_is_wrong, LOAD,
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3\n"
      "done 1 checksum 0\n"
      "+10 > read 2 of P0 over 1: 0,1,2,3\n"
      "done 2 checksum 1\n"
      "+10 > read 3 of P0 over 1: 1,2,3\n"
      "done 3 checksum 0 > load 1: checksum 1/4; load 1 released\n"
      "stats D checksum_mismatches blocks_verified blocks_unverified > 3; 1; 0\n")

/* A wrong checksum of bytes that are the lease's no more says nothing, and what was verified is not good either. */
READING_SCENE(the_fence_goes_first,
              "end A > P0 ends A: revoked\n"
              "done 2 checksum 1 > cancel 1; load 1: lease_expired 0/6\n"
              "done 1 cancelled > load 1 released\n"
              "stats D checksum_mismatches blocks_verified blocks_unverified > 0; 0; 0\n")

/* Says that all agree, and that one does not: taken for the latter. Without a sample nothing is good. */
TEST_WITH(contradictions, start_reading, cluster_close)
{
  scene("done 2 checksum 2\n");
  kvf_core_on_read_done(c.d.core, c.now_ns, 1, KVF_CHECKSUM, 3, NULL, 0, &(kvf_read_work){0});
  scene("+10 > read 3 of P0 over 1: 0,1,2,3 | 5\n");
}

SCENE(unverified_blocks_are_counted, SIX " checksum=on",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 4,5\n"
      "done 2 ok 2\n"
      "done 1 ok > load 1: ok 6/6; load 1 released\n"
      "stats D checksum_mismatches blocks_verified blocks_unverified > 0; 2; 4\n")

/* ---- a part's stall clock ---- */

/* While its reads are not released, no block is in another read. */
READING_SCENE(silent_peer,
              "hold P0\n"
              "+499\n"
              "+1 > ping P0\n"
              "+499\n"
              "+1 > cancel 1,2; close 1; D hangs up on P0\n"
              "progress 1\n"
              "+2000\n"
              "done 1 cancelled\n"
              "done 2 cancelled\n"
              "+10\n"
              "stats D peer_stalls load_stalls load_pings > 1; 1; 1\n"
              "log D peer > peer [::1]:80: transfer_stalled: no byte and no answer to a ping\n")

READING_SCENE(peer_that_only_answers_pings,
              "+500 > ping P0\n"
              "+500\n"
              "+999\n"
              "+1 > cancel 1,2; close 1\n")

/* It answers another question. */
TEST_WITH(pong_from_before_the_ping, start_reading, cluster_close)
{
  const kvf_ping pong = {.seq = 1};
  uint8_t body[KVF_PING_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_ping_encode(&pong, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(c.d.core, c.now_ns, c.wires[0].consumer_id, KVF_FRAME_PONG, body, bytes);
  scene(
      "hold P0\n"
      "+500 > ping P0\n"
      "+500 > cancel 1,2; close 1; D hangs up on P0\n");
}

READING_SCENE(progress_restarts_the_clock,
              "+400\n"
              "progress 1\n"
              "+499\n"
              "+1 > ping P0\n"
              "+200\n"
              "progress 2\n"
              "+499\n"
              "+1 > ping P0\n"
              "+900\n"
              "done 2 ok\n"
              "hold P0\n"
              "+499\n"
              "+1 > ping P0\n"
              "+499\n"
              "+1 > cancel 1; close 1; D hangs up on P0\n")

/* It starts as the read is taken. */
SCENE(clock_rests_without_reads, UNPUBLISHED,
      "load 1 A > open 1 P0 local\n"
      "+5000\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3\n"
      "+499\n"
      "+1 > ping P0\n")

/* The new reads have a clock of their own; what was cancelled was complete after all. */
READING_SCENE(remaining_reads_keep_the_clock,
              "done 1 transfer_failed\n"
              "hold P0\n"
              "+500 > ping P0\n"
              "+500 > cancel 2; close 1; D hangs up on P0\n"
              "done 2 ok\n")

READING_SCENE(late_tick_leaves_time_for_the_pong,
              "hold P0\n"
              "+900 > ping P0\n"
              "+499\n"
              "+1 > cancel 1,2; close 1; D hangs up on P0\n")

/* While this process did not run, nobody could be heard: the peer's pong may be waiting in the socket. */
READING_SCENE(silence_begins_anew_after_a_pause,
              "+2500 > ping P0\n"
              "progress 1\n"
              "+6500 > ping P0\n"
              "progress 1\n"
              "hold P0\n"
              "+499\n"
              "+1 > ping P0\n"
              "+500 > cancel 1,2; close 1; D hangs up on P0\n")

READING_SCENE(silence_begins_anew_once,
              "hold P0\n"
              "+2500 > ping P0\n"
              "+6500 > cancel 1,2; close 1; D hangs up on P0\n")

READING_SCENE(pause_that_is_short,
              "hold P0\n"
              "+500 > ping P0\n"
              "+999 > cancel 1,2; close 1; D hangs up on P0\n")

/* The timer was for 500. */
TEST_WITH(pause_with_progress_just_before_it, start_reading, cluster_close)
{
  kvf_core_on_read_progress(c.d.core, c.now_ns + 490 * MS, 1);
  kvf_core_on_read_progress(c.d.core, c.now_ns + 990 * MS, 1);
  scene(
      "+1100\n"
      "+390 > ping P0\n");
}

SCENE(loads_share_a_ping_and_a_stall, LOAD,
      "load 1 A > open 1 P0 local\n"
      "load 2 A\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3 | 0,1,2,3\n"
      "hold P0\n"
      "+500 > ping P0\n"
      "+500 > cancel 1,2; close 1; D hangs up on P0\n"
      "done 1 cancelled\n"
      "done 2 cancelled\n"
      "+10 > load 2: transfer_stalled 0/4; load 2 released; load 1: transfer_stalled 0/4; load 1 released\n")

/* A ping that is on its way tells as much as another one would; the link has been reported then. */
SCENE(ping_is_not_repeated, LOAD,
      "load 1 A > open 1 P0 local\n"
      "link 1 ok > read 1 of P0 over 1: 0,1,2,3\n"
      "+200\n"
      "load 2 A > read 2 of P0 over 1: 0,1,2,3\n"
      "hold P0\n"
      "+300 > ping P0\n"
      "+200\n"
      "+300 > cancel 1; close 1; D hangs up on P0\n"
      "+199\n"
      "+1 > cancel 2\n")
