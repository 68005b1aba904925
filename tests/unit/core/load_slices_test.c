/* The load machine, one trace after the other: the table, what it asks for, how blocks are cut into chunks, what
 * becomes of a part and of the whole load, checksums, and the stall clock. */
#include "load_world.h"

/* A load of 6 items whose reads 1 (0 to 3) and 2 (4, 5) are in flight over link 11 since 0 ms. */
static void start_reading(void)
{
  world_started(0, 500, 6, "1", "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
}

static int set_up_reading(void **state)
{
  (void)world_setup(state);
  start_reading();
  return 0;
}

/* Begins with that load. */
#define READING_TEST(name) TEST_WITH(name, set_up_reading, world_teardown)

/* ---- the table of loads ---- */

LOAD_TEST(whole_load)
{
  world_begin(0, 500, 6, "1", "want 1");
  expect_path(1, 1, 11, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
  expect_live(2, 1, 2, "");
  expect_live(3, 1, 1, "outcome 500 ok 6/6; released 500");
  assert_int_equal(world_next_deadline(), KVF_TIME_NEVER);
  assert_int_equal(kvf_loads_open(&w.loads), 0);
  assert_int_equal(w.loads.stats.outcomes[0], 1);
  assert_int_equal(w.loads.stats.chunks, 2);
  assert_int_equal(w.loads.stats.blocks, 6);
  assert_int_equal(w.loads.stats.bytes, 800);
}

LOAD_TEST(nothing_wanted)
{
  world_spec(500, 0, "12");
  w.spec.positions = 9;
  world_start(0);
  expect(0, "outcome 500 ok 9/9; released 500");
  world_begin(0, 501, 0, "1", "outcome 501 ok 0/0; released 501");
}

LOAD_TEST(abort_in_every_state)
{
  world_spec(500, 6, "1"); /* WAIT_PATH */
  world_start(0);
  assert_true(world_abort(0, 500));
  assert_true(world_abort(0, 500));
  expect(0, "want 1; outcome 500 aborted 0/6; released 500");
  expect_path(0, 1, 10, ""); /* nobody's */
  world_started(0, 501, 6, "1", "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
  world_live(1, 1, 1);
  assert_true(world_abort(1, 501));
  expect(1, "cancel 2 over 11; outcome 501 aborted 4/6");
  assert_true(world_abort(1, 501));
  expect(1, "");
  world_failed(2, 2, KVF_CANCELLED);
  expect(2, "released 501");

  world_started(0, 502, 6, "1", "read 3 over 11: 0,1,2,3; read 4 over 11: 4,5");
  world_failed(2, 3, KVF_TRANSFER_FAILED);
  assert_true(world_abort(3, 502));
  expect(3, "cancel 4 over 11; outcome 502 aborted 0/6");
  expect_live(3, 1, 4, "released 502");

  world_started(0, 503, 1, "1", "read 5 over 11: 0");
  world_failed(4, 5, KVF_TRANSFER_FAILED);
  assert_true(world_abort(4, 503));
  expect(4, "outcome 503 aborted 0/1; released 503");
  expect_at(100, "");
}

LOAD_TEST(abort_all)
{
  world_ask(0, 500, 1, "1");
  world_begin(0, 501, 1, "2", "want 1; want 2");
  expect_path(0, 2, 12, "read 1 over 12: 0");
  kvf_loads_abort_all(&w.loads, 0);
  kvf_loads_abort_all(&w.loads, 0);
  expect(0, "cancel 1 over 12; outcome 500 aborted 0/1; released 500; outcome 501 aborted 0/1");
  expect_live(0, 2, 1, "released 501");
}

LOAD_TEST(tick_is_bounded)
{
  for (uint64_t request_id = 500; request_id < 503; request_id++) {
    world_spec(request_id, 1, "1");
    w.spec.deadline_ns = 100 * MS;
    world_start(0);
  }
  expect(0, "want 1");
  uint32_t ticks = 0;
  while (world_next_deadline() <= 100 * MS) {
    world_tick_some(100, 1);
    ticks++;
  }
  assert_true(ticks >= 3);
  expect(100,
         "outcome 500 deadline 0/1; released 500; outcome 501 deadline 0/1; released 501; "
         "outcome 502 deadline 0/1; released 502");
}

LOAD_TEST(destroyed_at_any_time)
{
  world_begin(0, 500, 6, "12", "want 1; want 2");
  expect_path(0, 1, 11, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
}

/* ---- what is asked for, and whose turn it is ---- */

LOAD_TEST(one_question_for_each_peer)
{
  world_ask(0, 500, 1, "12");
  world_begin(0, 501, 1, "1", "want 1; want 2");
  world_begin(0, 502, 1, "2", ""); /* asked already */
  expect_path(0, 2, 12, "read 1 over 12: 0; read 2 over 12: 0");
  world_begin(0, 503, 1, "2", "want 2"); /* answered: a new question */
  expect_path(0, 1, 11, "read 3 over 11: 0; read 4 over 11: 0");
}

/* The answer to a question of a load that is gone is good for who waits by then. */
LOAD_TEST(a_question_outlives_its_load)
{
  world_ask(0, 500, 1, "1");
  assert_true(world_abort(0, 500));
  expect(0, "want 1; outcome 500 aborted 0/1; released 500");
  world_begin(0, 501, 1, "1", "");
  expect_path(0, 1, 11, "read 1 over 11: 0");
}

LOAD_TEST(loads_take_turns)
{
  w.context.config.chunks_in_flight = 4;
  world_reopen();
  world_ask(0, 500, 100, "1");
  world_spec(501, 5, "1");
  for (uint32_t i = 0; i < 5; i++) {
    w.items[i].position = i + 200;
  }
  w.spec.positions = 300;
  expect_started(0,
                 "read 1 over 11: 0,1,2,3; read 2 over 11: 200,201,202,203; read 3 over 11: 4,5,6,7; "
                 "read 4 over 11: 204; read 5 over 11: 8,9,10,11; read 6 over 11: 12,13,14,15");
}

/* A load of many parts has no more turns than a load of one. */
LOAD_TEST(parts_share_their_load_s_turn)
{
  world_ask(0, 500, 8, "12");
  world_begin(0, 501, 8, "3", "want 1; want 2; want 3");
  world_path(0, 1, 11);
  world_path(0, 2, 12);
  world_path(0, 3, 13);
  expect(0,
         "read 1 over 11: 0,1,2,3; read 2 over 13: 0,1,2,3; read 3 over 12: 0,1,2,3; read 4 over 13: 4,5,6,7; "
         "read 5 over 11: 4,5,6,7; read 6 over 12: 4,5,6,7");
}

LOAD_TEST(limit_of_reads_in_flight)
{
  world_started(0, 500, 16, "1", "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  expect(0, "");
  expect_live(0, 1, 2, "read 3 over 11: 8,9,10,11");
  world_live(0, 1, 1);
  expect_live(0, 1, 3, "read 4 over 11: 12,13,14,15");
}

LOAD_TEST(no_read_once_decided)
{
  world_begin(0, 500, 16, "1", "want 1");
  world_path(0, 1, 11);
  assert_true(world_abort(0, 500));
  expect(0, "outcome 500 aborted 0/16; released 500");
}

/* ---- chunks ---- */

/* The first chunk of a load with one read in flight. */
static void expect_first(const char *text)
{
  w.context.config.chunks_in_flight = 1;
  world_reopen();
  expect_started(0, text);
}

LOAD_TEST(as_many_bytes_as_allowed)
{
  world_spec(500, 9, "1");
  w.context.config.chunk_bytes = 399;
  expect_first("read 1 over 11: 0,1,2");
  w.context.config.chunk_bytes = 400;
  expect_first("read 1 over 11: 0,1,2,3");
  w.slices[0].heads = 2;
  expect_first("read 1 over 11: 0,1");
}

LOAD_TEST(at_least_one_item)
{
  world_spec(500, 9, "1");
  w.context.config.chunk_bytes = 1;
  expect_first("read 1 over 11: 0");
}

LOAD_TEST(at_most_the_named_limit)
{
  kvf_load_read action;
  world_spec(500, KVF_CHUNK_ITEMS_MAX + 1, "1");
  w.context.config.chunk_bytes = UINT32_MAX;
  world_reopen();
  world_start(0);
  expect(0, "want 1");
  world_path(0, 1, 11);
  assert_true(kvf_loads_next_read(&w.loads, 0, &action));
  assert_int_equal(action.transfer.items_count, KVF_CHUNK_ITEMS_MAX);
  assert_true(kvf_loads_next_read(&w.loads, 0, &action));
  assert_int_equal(action.transfer.items_count, 1);
  assert_int_equal(action.transfer.items[0].position, KVF_CHUNK_ITEMS_MAX);
}

LOAD_TEST(all_readers_have_as_many)
{
  w.readers.count = 2;
  world_spec(500, 4, "1");
  expect_first("read 1 over 11: 0,1");
  world_spec(500, 3, "1");
  expect_first("read 1 over 11: 0,1"); /* whole items */
  world_spec(500, 1, "1");
  expect_first("read 1 over 11: 0");
  world_spec(500, 8, "1");
  expect_first("read 1 over 11: 0,1,2,3");
  world_spec(500, 10, "1"); /* four, since three are not even */
  expect_first("read 1 over 11: 0,1,2");
  w.readers.count = 3;
  expect_first("read 1 over 11: 0,1,2,3");
  world_spec(500, 20, "1");
  expect_first("read 1 over 11: 0,1,2,3");
}

LOAD_TEST(no_chunk_is_made_small_for_that)
{
  w.readers.count = 4;
  w.readers.spread_bytes = 200;
  world_spec(500, 4, "1");
  expect_first("read 1 over 11: 0,1");
  world_spec(500, 3, "1");
  expect_first("read 1 over 11: 0,1,2");
  w.readers.spread_bytes = 300;
  world_spec(500, 4, "1");
  expect_first("read 1 over 11: 0,1,2,3");
  w.readers.spread_bytes = 1000; /* more than a chunk may have */
  expect_first("read 1 over 11: 0,1,2,3");
}

LOAD_TEST(a_load_of_no_bytes_is_read_all_the_same)
{
  w.readers.count = 2;
  world_spec(500, 3, "1");
  w.pool.head_bytes[0] = 0;
  expect_first("read 1 over 11: small 0,1,2");
}

LOAD_TEST(groups_have_sizes_of_their_own)
{
  world_spec(500, 6, "1");
  w.spec.groups = 2;
  w.spec.positions = 8;
  w.pool.head_bytes[1] = 250;
  const kvf_transfer_item items[] = {{0, 0, 1, 1}, {1, 0, 2, 2}, {0, 1, 3, 3},
                                     {1, 1, 4, 4}, {0, 2, 5, 5}, {0, 3, 6, 6}};
  memcpy(w.items, items, sizeof(items));
  expect_first("read 1 over 11: 0.0,1.0"); /* 350 of 400 bytes */
  expect_live(0, 1, 1, "read 2 over 11: 0.1,1.1");
  expect_live(0, 1, 2, "read 3 over 11: 0.2,0.3");
  expect_live(0, 1, 3, "outcome 500 ok 8/8; released 500");
}

LOAD_TEST(read_says_what_the_spec_said)
{
  kvf_load_read action;
  world_spec(500, 3, "1");
  w.slices[0].remote_head = 4;
  w.slices[0].local_head = 2;
  w.spec.lease = (kvf_lease){.id = LEASE_ID, .slot = 9, .token = {1, 2, 3}};
  world_start(0);
  expect(0, "want 1");
  world_path(0, 1, 11);
  assert_true(kvf_loads_next_read(&w.loads, 0, &action));
  assert_int_equal(action.link_id, 11);
  assert_int_equal(action.transfer.remote_head, 4);
  assert_int_equal(action.transfer.local_head, 2);
  assert_int_equal(action.transfer.heads, 1);
  assert_memory_equal(&action.transfer.lease, &w.spec.lease, sizeof(action.transfer.lease));
  assert_memory_equal(action.transfer.items, w.items, 3 * sizeof(*w.items));
}

/* A chunk ends where the next item is in flight or good. */
LOAD_TEST(holes_are_filled_in_order)
{
  world_spec(500, 12, "1");
  w.context.config.chunks_in_flight = 3;
  world_reopen();
  expect_started(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7; read 3 over 11: 8,9,10,11");
  world_failed(0, 3, KVF_NOT_PUBLISHED);
  world_live(0, 1, 2);
  world_failed(0, 1, KVF_NOT_PUBLISHED);
  expect_at(10, "read 4 over 11: 0,1,2,3; read 5 over 11: 8,9,10,11");
}

LOAD_TEST(small_is_the_whole_rest)
{
  w.context.config.inline_bytes = 400;
  world_reopen();
  world_started(0, 500, 4, "1", "read 1 over 11: small 0,1,2,3");
  expect_live(0, 1, 1, "outcome 500 ok 4/4; released 500");

  world_started(0, 501, 5, "1", "read 2 over 11: 0,1,2,3; read 3 over 11: 4");
  world_live(0, 1, 2);
  world_failed(0, 3, KVF_NOT_PUBLISHED);
  expect_at(10, "read 4 over 11: small 4"); /* what is left */
  expect_live(10, 1, 4, "outcome 501 ok 5/5; released 501");

  world_spec(502, 1, "12"); /* two parts */
  world_start(10);
  expect(10, "want 1; want 2");
  expect_path(10, 1, 11, "read 5 over 11: 0");
  world_live(10, 1, 5);
  expect_path(10, 2, 12, "read 6 over 12: small 0");
}

LOAD_TEST(too_many_bytes_for_small)
{
  w.context.config.inline_bytes = 399;
  world_reopen();
  world_started(0, 500, 4, "1", "read 1 over 11: 0,1,2,3");
}

/* ---- a part: retries and links ---- */

/* ---- retries ---- */

READING_TEST(retry_only_what_is_missing)
{
  world_failed(1, 1, KVF_TRANSFER_FAILED);
  expect_at(100, ""); /* read 2 is not released */
  world_live(100, 1, 2);
  expect_at(104, "");
  expect_at(110, "want 1");
  expect_path(111, 1, 12, "read 3 over 12: 0,1,2,3");
  expect_live(112, 1, 3, "outcome 500 ok 6/6; released 500");
  assert_int_equal(w.loads.stats.retries, 1);
}

LOAD_TEST(retryable_statuses)
{
  const kvf_status statuses[] = {KVF_TRANSFER_FAILED, KVF_TRANSFER_STALLED, KVF_PEER_DOWN, KVF_CANCELLED, KVF_CHECKSUM};
  uint64_t read_id = 1;
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    world_begin(0, 500 + i, 1, "1", "want 1");
    world_path(0, 1, 11);
    world_trace(0);
    world_failed(0, read_id++, statuses[i]);
    expect(0, "");
    expect_at(10 * (i + 1), "want 1");
    world_path(10 * (i + 1), 1, 12);
    world_trace(10 * (i + 1));
    world_live(10 * (i + 1), 1, read_id++);
    assert_string_not_equal(world_trace(10 * (i + 1)), "");
    assert_int_equal(w.loads.stats.outcomes[0], i + 1);
  }
}

LOAD_TEST(final_statuses)
{
  const kvf_status statuses[] = {KVF_LEASE_EXPIRED, KVF_LEASE_UNKNOWN, KVF_BAD_TICKET, KVF_PEER_RESTARTED,
                                 KVF_INCOMPATIBLE};
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    world_begin(0, 500 + i, 1, "1", "want 1");
    world_path(0, 1, 11);
    world_trace(0);
    world_failed(0, 1 + i, statuses[i]);
    char text[128];
    (void)snprintf(text, sizeof(text), "outcome %d %s 0/1; released %d", (int)(500 + i), kvf_status_name(statuses[i]),
                   (int)(500 + i));
    expect(0, text);
  }
}

READING_TEST(lease_over_midway)
{
  expect_live(1, 1, 1, "");
  world_over(2, 1, 2);
  expect(2, "outcome 500 lease_expired 4/6; released 500");
}

READING_TEST(lease_over_cancels_the_rest)
{
  world_over(2, 1, 1);
  expect(2, "cancel 2 over 11; outcome 500 lease_expired 0/6");
  world_live(3, 1, 2); /* too late to count */
  expect(3, "released 500");
}

READING_TEST(another_process_answers)
{
  world_live(1, 1, 1);
  expect_live(2, 2, 2, "outcome 500 peer_restarted 4/6; released 500");
}

READING_TEST(not_published_then_live)
{
  world_not_published(1, 1, 1);
  expect(1, "");
  world_failed(2, 2, KVF_NOT_PUBLISHED); /* the producer says it itself */
  expect_at(6, "");
  expect_at(12, "read 3 over 11: 0,1,2,3; read 4 over 11: 4,5"); /* the same link */
  world_live(13, 1, 3);
  expect_live(13, 1, 4, "outcome 500 ok 6/6; released 500");
}

/* P1. Nobody has failed: a new session tells what there is now. */
READING_TEST(other_memory_is_read_over_another_link)
{
  w.peer[1].memory.generation = 2; /* as its next WELCOME says */
  world_live(1, 1, 1);             /* of generation 0, which the link was for */
  kvf_fence_sample sample = world_sample(1, kvf_fence_word_live(LEASE_ID));
  sample.head.generation = 2;
  kvf_loads_on_read_done(&w.loads, 2 * MS, 2, KVF_OK, 0, &sample, 200);
  assert_int_equal(w.stale_link_id, 11);
  expect(2, "");
  expect_at(12, "want 1");
  expect_path(12, 1, 12, "read 3 over 12: 4,5");
  kvf_loads_on_read_done(&w.loads, 13 * MS, 3, KVF_AGAIN, 0, NULL, 0); /* the producer says it itself */
  assert_int_equal(w.stale_link_id, 12);
  expect_at(23, "want 1");
  expect_path(23, 1, 13, "read 4 over 13: 4,5");
  sample.head.generation = 0;
  kvf_loads_on_read_done(&w.loads, 24 * MS, 4, KVF_OK, 0, &sample, 200);
  assert_int_equal(w.stale_link_id, 13);
  expect_at(44, "want 1");
  expect_path(44, 1, 14, "read 5 over 14: 4,5");
  sample.head.generation = 2;
  kvf_loads_on_read_done(&w.loads, 45 * MS, 5, KVF_OK, 0, &sample, 200);
  expect(45, "outcome 500 ok 6/6; released 500");
}

LOAD_TEST(never_published)
{
  world_spec(500, 1, "1");
  w.spec.deadline_ns = 100 * MS;
  world_start(0);
  expect(0, "want 1");
  world_path(0, 1, 11);
  uint64_t read_id = 1;
  for (uint64_t now_ms = 0; now_ms < 100; now_ms++) {
    world_tick(now_ms);
    if (world_trace(now_ms)[0] == 'r') {
      world_not_published(now_ms, 1, read_id++);
    }
  }
  assert_in_range(read_id, 10, 21);
  expect_at(100, "outcome 500 deadline 0/1; released 500");
}

LOAD_TEST(path_lost_while_not_published)
{
  world_started(0, 500, 1, "1", "read 1 over 11: 0");
  world_not_published(0, 1, 1);
  kvf_loads_on_link_down(&w.loads, 1 * MS, &w.peer[1], 11);
  expect_at(10, "want 1");
}

/* Pauses of 10, 20, 40 ms and so on, at least half of each, until a block is confirmed. */
LOAD_TEST(pauses_grow_until_a_success)
{
  w.context.config.backoff_max_ms = 1000;
  w.context.config.chunks_in_flight = 1;
  world_reopen();
  world_started(0, 500, 5, "1", "read 1 over 11: 0,1,2,3");
  world_not_published(0, 1, 1);
  expect_at(10, "read 2 over 11: 0,1,2,3");
  world_not_published(10, 1, 2);
  expect_at(30, "read 3 over 11: 0,1,2,3");
  world_not_published(30, 1, 3);
  expect_at(49, "");
  expect_at(70, "read 4 over 11: 0,1,2,3");
  expect_live(70, 1, 4, "read 5 over 11: 4");
  world_not_published(70, 1, 5);
  expect_at(80, "read 6 over 11: 4");
}

/* What this node was called with was right when the load began: a failure has another reason, which is counted. */
LOAD_TEST(outcome_is_never_the_callers_mistake)
{
  world_begin(0, 500, 1, "1", "want 1");
  world_path(0, 1, 11);
  world_trace(0);
  world_failed(0, 1, KVF_INVALID); /* the producer has no such block */
  expect(0, "outcome 500 bad_ticket 0/1; released 500");
  const int statuses[] = {KVF_INVALID, KVF_LIMIT, KVF_CLOSED, -12345}; /* the last is no enumerator */
  for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
    char text[128];
    world_begin(0, 600 + i, 1, "1", "want 1");
    kvf_loads_on_link(&w.loads, 0, &w.peer[1], 0, statuses[i]);
    (void)snprintf(text, sizeof(text), "outcome %d transfer_failed 0/1; released %d", (int)(600 + i), (int)(600 + i));
    expect(0, text);
  }
  uint64_t counted = 0;
  for (unsigned i = 0; kvf_status_at(i) != NULL && i < KVF_STATUSES_MAX; i++) {
    bool shown = kvf_status_at(i)->lost != KVF_LOST_CALL;
    counted += shown ? w.loads.stats.outcomes[i] : 0;
  }
  assert_int_equal(counted, 5);
}

/* ---- links ---- */

LOAD_TEST(path_refused)
{
  world_begin(0, 500, 6, "1", "want 1");
  expect_refused(1, 1, KVF_HANDSHAKE_REFUSED, "outcome 500 handshake_refused 0/6; released 500");
}

READING_TEST(first_trouble_is_remembered)
{
  world_failed(1, 1, KVF_CANCELLED);
  world_failed(1, 2, KVF_CHECKSUM);
  expect_at(11, "want 1");
  expect_path(11, 1, 12, "read 3 over 12: 0,1,2,3; read 4 over 12: 4,5");
  world_failed(12, 3, KVF_TRANSFER_FAILED);
  world_failed(12, 4, KVF_TRANSFER_FAILED);
  expect_at(22, "want 1");
  expect_refused(22, 1, KVF_PEER_DOWN, "outcome 500 checksum 0/6; released 500");
}

/* A producer that is killed is heard of by its data connection or its control connection, whichever ends first. */
LOAD_TEST(broken_path_of_a_peer_that_is_gone)
{
  static const struct {
    kvf_status refusal;
    const char *expected;
  } cases[] = {{KVF_PEER_DOWN, "peer_down"},
               {KVF_PEER_RESTARTED, "peer_restarted"},
               {KVF_TRANSFER_SETUP, "transfer_failed"},
               {KVF_HANDSHAKE_TIMEOUT, "transfer_failed"}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    char text[128];
    uint64_t now_ms = 100 * i;
    world_begin(now_ms, 500 + i, 1, "1", "want 1");
    world_path(now_ms, 1, 11);
    world_trace(now_ms);
    world_failed(now_ms, i + 1, KVF_TRANSFER_FAILED);
    expect_at(now_ms + 50, "want 1");
    kvf_loads_on_link(&w.loads, (now_ms + 50) * MS, &w.peer[1], 0, cases[i].refusal);
    (void)snprintf(text, sizeof(text), "outcome %d %s 0/1; released %d", (int)(500 + i), cases[i].expected,
                   (int)(500 + i));
    expect(now_ms + 50, text);
  }
}

READING_TEST(trouble_that_is_over_is_forgotten)
{
  world_failed(1, 1, KVF_TRANSFER_FAILED);
  world_live(1, 1, 2);
  expect_at(11, "want 1");
  expect_refused(11, 1, KVF_PEER_DOWN, "outcome 500 peer_down 0/6; released 500");
}

LOAD_TEST(path_down)
{
  world_started(0, 500, 12, "1", "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  kvf_loads_on_link_down(&w.loads, 1 * MS, &w.peer[1], 99); /* another one */
  kvf_loads_on_link_down(&w.loads, 1 * MS, &w.peer[2], 11);
  expect_live(1, 1, 1, "read 3 over 11: 8,9,10,11");
  kvf_loads_on_link_down(&w.loads, 2 * MS, &w.peer[1], 11);
  kvf_loads_on_link_down(&w.loads, 2 * MS, &w.peer[1], 11);
  expect_live(3, 1, 2, "");
  world_failed(4, 3, KVF_CANCELLED);
  expect_at(14, "want 1");
  expect_refused(15, 1, KVF_PEER_DOWN, "outcome 500 peer_down 8/12; released 500");
}

LOAD_TEST(path_down_before_any_read)
{
  world_begin(0, 500, 1, "1", "want 1");
  world_path(0, 1, 11);
  kvf_loads_on_link_down(&w.loads, 0, &w.peer[1], 11);
  expect(0, "");
  expect_at(10, "want 1");
}

READING_TEST(last_read_ends_well_after_path_down)
{
  kvf_loads_on_link_down(&w.loads, 1 * MS, &w.peer[1], 11);
  world_live(2, 1, 2);
  expect_live(2, 1, 1, "outcome 500 ok 6/6; released 500");
}

LOAD_TEST(answers_that_nobody_waits_for)
{
  world_path(0, 1, 11);
  kvf_loads_on_pong(&w.peer[1]);
  kvf_loads_on_link_down(&w.loads, 0, &w.peer[1], 11);
  start_reading();
  world_path(1, 1, 12);
  kvf_loads_on_link(&w.loads, 1 * MS, &w.peer[1], 0, KVF_PEER_DOWN);
  kvf_loads_on_pong(&w.peer[1]);
  expect(1, "");
  world_failed(1, 99, KVF_TRANSFER_FAILED);
  world_live(1, 1, 2);
  world_live(1, 1, 2); /* twice */
  kvf_loads_on_read_progress(&w.loads, 1 * MS, 99);
  expect(1, "");
  assert_int_equal(w.loads.stats.late, 2);
}

/* ---- the outcome ---- */

LOAD_TEST(unwanted_positions_are_good)
{
  world_spec(500, 3, "1"); /* positions 2, 5 and 6 of 9 */
  w.items[0].position = 2;
  w.items[1].position = 5;
  w.items[2].position = 6;
  w.spec.positions = 9;
  w.context.config.chunk_bytes = 100;
  w.context.config.chunks_in_flight = 3;
  world_reopen();
  const char *const expected[] = {"outcome 500 aborted 2/9; released 500", "outcome 501 aborted 5/9; released 501",
                                  "outcome 502 aborted 6/9; released 502", "outcome 503 ok 9/9; released 503"};
  uint64_t read_id = 1;
  for (uint64_t good = 0; good < 4; good++) {
    w.spec.request_id = 500 + good;
    world_start(0);
    expect(0, "want 1");
    world_path(0, 1, 11);
    world_trace(0);
    for (uint64_t i = 0; i < good; i++) {
      world_live(0, 1, read_id + i);
    }
    for (uint64_t i = good; i < 3; i++) {
      world_failed(0, read_id + i, KVF_TRANSFER_FAILED);
    }
    read_id += 3;
    assert_true(world_abort(0, w.spec.request_id));
    expect(0, expected[good]);
  }
}

LOAD_TEST(prefix_is_the_least_of_the_groups)
{
  world_spec(500, 6, "1");
  w.spec.groups = 2;
  w.spec.positions = 8;
  for (uint32_t i = 0; i < 6; i++) {
    w.items[i].group = i % 2;
    w.items[i].position = i / 2;
  }
  expect_started(0, "read 1 over 11: 0.0,1.0,0.1,1.1; read 2 over 11: 0.2,1.2");
  world_live(0, 1, 1);
  world_over(0, 1, 2);
  expect(0, "outcome 500 lease_expired 2/8; released 500");
}

LOAD_TEST(prefix_is_the_least_of_the_parts)
{
  world_begin(0, 500, 8, "12", "want 1; want 2");
  expect_path(0, 1, 11, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  world_live(0, 1, 1);
  expect_live(0, 1, 2, "");
  expect_path(1, 2, 12, "read 3 over 12: 0,1,2,3; read 4 over 12: 4,5,6,7");
  world_live(1, 2, 3);
  world_over(1, 2, 4);
  expect(1, "outcome 500 lease_expired 4/8; released 500");
}

LOAD_TEST(short_part_comes_first)
{
  world_begin(0, 500, 8, "12", "want 1; want 2");
  expect_path(0, 2, 12, "read 1 over 12: 0,1,2,3; read 2 over 12: 4,5,6,7");
  world_live(0, 2, 1);
  world_live(0, 2, 2);
  expect_refused(0, 1, KVF_PEER_DOWN, "outcome 500 peer_down 0/8; released 500");
}

LOAD_TEST(failed_part_ends_the_others)
{
  world_begin(0, 500, 8, "12", "want 1; want 2");
  expect_path(0, 1, 11, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  world_live(0, 1, 1);
  expect_refused(0, 2, KVF_PEER_DOWN, "cancel 2 over 11; outcome 500 peer_down 0/8");
  world_failed(0, 2, KVF_CANCELLED);
  expect(0, "released 500");
}

/* P1: its link is as good as any; what it brings would not be all that its part is to have. */
LOAD_TEST(a_rank_without_what_was_planned_is_not_read)
{
  w.other_peer = 2;
  world_begin(0, 500, 8, "12", "want 1; want 2");
  expect_path(0, 1, 11, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  world_live(0, 1, 1);
  expect_path(0, 2, 12, "cancel 2 over 11; outcome 500 incompatible 0/8");
  world_failed(0, 2, KVF_CANCELLED);
  expect(0, "released 500");
}

/* Parts of different widths from ranks that hold different numbers of heads. */
LOAD_TEST(parts_of_different_widths)
{
  world_spec(500, 4, "12");
  w.slices[0].heads = 2;
  w.slices[1].local_head = 2;
  w.slices[1].heads = 4;
  world_start(0);
  expect(0, "want 1; want 2");
  world_path(0, 1, 11);
  expect_path(0, 2, 12, "read 1 over 11: 0,1; read 2 over 12: 0; read 3 over 11: 2,3; read 4 over 12: 1");
  world_live(0, 1, 1);
  world_live(0, 1, 3);
  world_live(0, 2, 4);
  expect_live(0, 2, 2, "read 5 over 12: 2; read 6 over 12: 3");
  expect_live(0, 2, 5, "");
  expect_live(0, 2, 6, "outcome 500 ok 4/4; released 500");
}

LOAD_TEST(each_part_has_its_own_claim)
{
  world_begin(0, 500, 1, "12", "want 1; want 2");
  world_path(0, 1, 11);
  expect_path(0, 2, 12, "read 1 over 11: 0; read 2 over 12: 0");
  world_live(0, 1, 1);
  expect_live(0, 1, 2, "outcome 500 peer_restarted 0/1; released 500"); /* what the other peer's fence says */
}

LOAD_TEST(deadline)
{
  world_spec(500, 6, "1");
  w.spec.deadline_ns = 100 * MS;
  expect_started(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
  world_live(50, 1, 1);
  expect_at(99, "");
  expect_at(100, "cancel 2 over 11; outcome 500 deadline 4/6");
  expect_live(101, 1, 2, "released 500");
  assert_int_equal(world_next_deadline(), KVF_TIME_NEVER);
}

LOAD_TEST(deadline_without_any_answer)
{
  world_spec(500, 6, "1");
  w.spec.deadline_ns = 100 * MS;
  world_start(0);
  assert_in_range(world_next_deadline(), 0, 100 * MS);
  expect_at(100, "want 1; outcome 500 deadline 0/6; released 500");
}

LOAD_TEST(not_released_in_time)
{
  world_spec(500, 1, "1");
  w.spec.deadline_ns = 100 * MS;
  expect_started(0, "read 1 over 11: 0");
  expect_at(100, "cancel 1 over 11; outcome 500 deadline 0/1");
  world_tick(5099);
  assert_int_equal(w.loads.stats.overdue, 0);
  world_tick(5100);
  assert_int_equal(w.loads.stats.overdue, 1);
  assert_int_equal(w.loads.stats.overdue, 1);
  kvf_loads_on_read_progress(&w.loads, 5200 * MS, 1);
  expect_at(90000, "");
  world_failed(90000, 1, KVF_CANCELLED);
  assert_int_equal(w.loads.stats.overdue, 0);
  expect(90000, "released 500");
  assert_int_equal(w.loads.stats.overdue, 0);
}

/* Quiet before the outcome has been taken: still two events, in order. */
LOAD_TEST(released_overtakes_nobody)
{
  world_started(0, 500, 1, "1", "read 1 over 11: 0");
  assert_true(world_abort(0, 500));
  world_failed(0, 1, KVF_CANCELLED); /* the cancel is not worth telling any more */
  expect(0, "outcome 500 aborted 0/1; released 500");
}

LOAD_TEST(outcomes_are_counted_by_status)
{
  for (uint64_t request_id = 500; request_id < 503; request_id++) {
    world_ask(0, request_id, 1, "1");
    assert_true(world_abort(0, request_id));
    world_trace(0);
  }
  uint64_t others = 0;
  for (unsigned i = 0; i < KVF_STATUSES_MAX; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    if (info != NULL && info->status == KVF_ABORTED) {
      assert_int_equal(w.loads.stats.outcomes[i], 3);
    } else {
      others += w.loads.stats.outcomes[i];
    }
  }
  assert_int_equal(others, 0);
  assert_null(kvf_status_at(KVF_STATUSES_MAX));
}

static uint64_t total(const uint64_t *numbers)
{
  uint64_t sum = 0;
  for (size_t i = 0; i < KVF_HISTOGRAM_BUCKETS_MAX; i++) {
    sum += numbers[i];
  }
  return sum;
}

LOAD_TEST(a_good_load_s_time_and_bytes)
{
  const kvf_load_stats *stats = &w.loads.stats;
  const kvf_peer_stat *peer = &w.peer[1].stat;
  world_spec(500, 1, "1");
  world_start(10);
  expect(10, "want 1");
  expect_path(12, 1, 11, "read 1 over 11: 0");
  world_live(17, 1, 1);
  world_trace(17);
  assert_int_equal(peer->bytes, 400);
  assert_int_equal(peer->loads[0], 1);
  assert_int_equal(total(stats->load_ns.counts), 1);
  assert_int_equal(total(stats->load_ns.sums), 7 * MS);
  assert_int_equal(total(stats->load_bytes.sums), 400);
  assert_int_equal(total(stats->detection_ns.counts), 0);
}

/* From the last byte on, not from the start: that is how long nobody noticed. */
LOAD_TEST(detection_begins_with_the_last_byte)
{
  const kvf_load_stats *stats = &w.loads.stats;
  world_started(0, 500, 8, "1", "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  world_live(100, 1, 1);
  kvf_loads_on_read_progress(&w.loads, 150 * MS, 2);
  world_over(150, 1, 2);
  assert_int_equal(total(stats->detection_ns.counts), 1);
  assert_int_equal(total(stats->detection_ns.sums), 0);
  world_trace(150);
  world_ask(200, 501, 1, "1");
  world_trace(200);
  kvf_loads_on_link(&w.loads, 260 * MS, &w.peer[1], 0, KVF_PEER_DOWN);
  assert_int_equal(total(stats->detection_ns.sums), 60 * MS);
  assert_int_equal(total(stats->load_ns.counts), 0);
}

LOAD_TEST(quarantined_blocks_are_counted_while_they_are)
{
  const kvf_load_stats *stats = &w.loads.stats;
  world_started(0, 500, 3, "1", "read 1 over 11: 0,1,2");
  assert_true(world_abort(0, 500));
  world_trace(0);
  world_tick(5000);
  assert_int_equal(stats->overdue_blocks, 3);
  world_failed(6000, 1, KVF_CANCELLED);
  assert_int_equal(stats->overdue_blocks, 0);
}

/* ---- blocks that do not agree with their checksums ---- */

/* The read ends: `items` agree, and if they are not all, the next does not. */
static void verified(uint64_t now_ms, uint64_t read_id, kvf_status status, uint32_t items, uint64_t word)
{
  kvf_fence_sample sample = world_sample(1, word);
  kvf_loads_on_read_done(&w.loads, now_ms * MS, read_id, status, items, &sample, 400);
}

static void mismatch(uint64_t now_ms, uint64_t read_id, uint32_t items)
{
  verified(now_ms, read_id, KVF_CHECKSUM, items, kvf_fence_word_live(LEASE_ID));
}

static void good(uint64_t now_ms, uint64_t read_id, uint32_t items)
{
  verified(now_ms, read_id, KVF_OK, items, kvf_fence_word_live(LEASE_ID));
}

static void assert_counted(uint64_t mismatches, uint64_t agreed, uint64_t unverified)
{
  const kvf_load_stats *stats = &w.loads.stats;
  assert_int_equal(stats->mismatches, mismatches);
  assert_int_equal(stats->verified, agreed);
  assert_int_equal(stats->unverified, unverified);
}

/* The items before the wrong one are good: only it and what follows is read again. */
READING_TEST(one_more_try)
{
  good(1, 2, 2);
  mismatch(1, 1, 2);
  expect(1, "");
  expect_at(11, "want 1");
  expect_path(11, 1, 11, "read 3 over 11: 2,3");
  good(12, 3, 2);
  expect(12, "outcome 500 ok 6/6; released 500");
  assert_counted(1, 6, 0);
}

READING_TEST(wrong_twice_decides)
{
  good(1, 2, 2);
  mismatch(1, 1, 2);
  expect_at(11, "want 1");
  expect_path(11, 1, 11, "read 3 over 11: 2,3");
  mismatch(12, 3, 0);
  expect(12, "outcome 500 checksum 2/6; released 500");
  assert_counted(2, 4, 0);
}

/* Each item has a second try of its own. */
LOAD_TEST(another_item_is_wrong)
{
  world_started(0, 500, 4, "1", "read 1 over 11: 0,1,2,3");
  mismatch(1, 1, 0);
  expect_at(11, "want 1");
  expect_path(11, 1, 11, "read 2 over 11: 0,1,2,3");
  mismatch(12, 2, 1);
  expect_at(22, "want 1");
  expect_path(22, 1, 11, "read 3 over 11: 1,2,3");
  mismatch(23, 3, 0);
  expect(23, "outcome 500 checksum 1/4; released 500");
  assert_counted(3, 1, 0);
}

/* A wrong checksum of bytes that are the lease's no more says nothing, and what was verified is not good either. */
READING_TEST(the_fence_goes_first)
{
  verified(1, 2, KVF_CHECKSUM, 1, kvf_fence_word_ended(LEASE_ID));
  expect(1, "cancel 1 over 11; outcome 500 lease_expired 0/6");
  world_failed(2, 1, KVF_CANCELLED);
  expect(2, "released 500");
  assert_counted(0, 0, 0);
}

/* Says that all agree, and that one does not: taken for the latter. Without a sample nothing is good. */
READING_TEST(contradictions)
{
  mismatch(1, 2, 2);
  kvf_loads_on_read_done(&w.loads, 1 * MS, 1, KVF_CHECKSUM, 3, NULL, 0);
  expect_at(11, "want 1");
  expect_path(11, 1, 11, "read 3 over 11: 0,1,2,3; read 4 over 11: 5");
}

LOAD_TEST(unverified_blocks_are_counted)
{
  w.context.config.checksum = true;
  world_reopen();
  start_reading();
  good(1, 2, 2);
  expect_live(1, 1, 1, "outcome 500 ok 6/6; released 500");
  assert_counted(0, 2, 4);
}

/* ---- a part's stall clock ---- */

READING_TEST(silent_peer)
{
  expect_at(499, "");
  expect_at(500, "ping 1");
  expect_at(999, "");
  expect_at(1000, "stalled 11 silent; cancel 1 over 11; cancel 2 over 11");
  kvf_loads_on_link_down(&w.loads, 1000 * MS, &w.peer[1], 11);
  kvf_loads_on_read_progress(&w.loads, 1500 * MS, 1);
  expect_at(3000, ""); /* the reads are not released: no block is in another read */
  world_failed(3000, 1, KVF_CANCELLED);
  world_failed(3000, 2, KVF_CANCELLED);
  expect_at(3010, "want 1");
  expect_refused(3010, 1, KVF_PEER_DOWN, "outcome 500 transfer_stalled 0/6; released 500");
  assert_int_equal(w.loads.stats.stalls, 1);
  assert_int_equal(w.loads.stats.pings, 1);
}

READING_TEST(peer_that_only_answers_pings)
{
  expect_at(500, "ping 1");
  kvf_loads_on_pong(&w.peer[1]);
  expect_at(1000, "");
  kvf_loads_on_pong(&w.peer[1]);
  expect_at(1999, "");
  kvf_loads_on_pong(&w.peer[1]);
  expect_at(2000, "stalled 11; cancel 1 over 11; cancel 2 over 11");
}

READING_TEST(pong_from_before_the_ping)
{
  kvf_loads_on_pong(&w.peer[1]);
  expect_at(500, "ping 1");
  expect_at(1000, "stalled 11 silent; cancel 1 over 11; cancel 2 over 11");
}

READING_TEST(progress_restarts_the_clock)
{
  kvf_loads_on_read_progress(&w.loads, 400 * MS, 1);
  expect_at(899, "");
  expect_at(900, "ping 1");
  kvf_loads_on_read_progress(&w.loads, 1100 * MS, 2);
  expect_at(1599, "");
  expect_at(1600, "ping 1");
  kvf_loads_on_pong(&w.peer[1]);
  world_live(2500, 1, 2);
  expect_at(2999, "");
  expect_at(3000, "ping 1");
  expect_at(3499, "");
  expect_at(3500, "stalled 11 silent; cancel 1 over 11");
}

LOAD_TEST(clock_rests_without_reads)
{
  world_begin(0, 500, 1, "1", "want 1");
  expect_at(5000, "");
  world_path(5000, 1, 11);
  expect(9000, "read 1 over 11: 0"); /* the clock starts as the read is taken */
  expect_at(9499, "");
  expect_at(9500, "ping 1");
}

READING_TEST(remaining_reads_keep_the_clock)
{
  world_failed(10, 1, KVF_TRANSFER_FAILED);
  expect_at(500, "ping 1");
  expect_at(1000, "stalled 11 silent; cancel 2 over 11");
  world_live(1001, 1, 2); /* it was complete after all */
  expect_at(1011, "want 1");
  expect_path(1011, 1, 12, "read 3 over 12: 0,1,2,3");
  /* the new reads have a clock of its own */
  expect_at(1511, "ping 1");
}

READING_TEST(late_tick_leaves_time_for_the_pong)
{
  expect_at(900, "ping 1");
  expect_at(1399, "");
  expect_at(1400, "stalled 11 silent; cancel 1 over 11; cancel 2 over 11");
}

/* While this process did not run, nobody could be heard. */
READING_TEST(silence_begins_anew_after_a_pause)
{
  expect_at(2500, "ping 1"); /* the peer's pong may be waiting in the socket */
  kvf_loads_on_pong(&w.peer[1]);
  kvf_loads_on_read_progress(&w.loads, 2600 * MS, 1);
  expect_at(9000, "ping 1");
  kvf_loads_on_pong(&w.peer[1]);
  kvf_loads_on_read_progress(&w.loads, 9100 * MS, 1);
  expect_at(9599, "");
  expect_at(9600, "ping 1");
  expect_at(10100, "stalled 11 silent; cancel 1 over 11; cancel 2 over 11");
}

READING_TEST(silence_begins_anew_once)
{
  expect_at(2500, "ping 1");
  expect_at(9000, "stalled 11 silent; cancel 1 over 11; cancel 2 over 11");
}

READING_TEST(pause_that_is_short)
{
  expect_at(500, "ping 1");
  expect_at(1499, "stalled 11 silent; cancel 1 over 11; cancel 2 over 11");
}

READING_TEST(pause_with_progress_just_before_it)
{
  kvf_loads_on_read_progress(&w.loads, 490 * MS, 1);
  kvf_loads_on_read_progress(&w.loads, 990 * MS, 1);
  /* the timer was for 500 */
  expect_at(1100, "");
  expect_at(1490, "ping 1");
}

LOAD_TEST(loads_share_a_ping_and_a_stall)
{
  world_ask(0, 500, 1, "1");
  world_started(0, 501, 1, "1", "read 1 over 11: 0; read 2 over 11: 0");
  expect_at(500, "ping 1");
  expect_at(1000, "stalled 11 silent; cancel 1 over 11; cancel 2 over 11");
  world_failed(1000, 1, KVF_CANCELLED);
  world_failed(1000, 2, KVF_CANCELLED);
  expect_at(1010, "want 1");
}

/* A ping that is on its way tells as much as another one would. */
LOAD_TEST(ping_is_not_repeated)
{
  world_started(0, 500, 1, "1", "read 1 over 11: 0");
  world_started(200, 501, 1, "1", "read 2 over 11: 0");
  expect_at(500, "ping 1");
  expect_at(700, "");
  expect_at(1000, "stalled 11 silent; cancel 1 over 11");
  expect_at(1199, "");
  expect_at(1200, "cancel 2 over 11"); /* the link has been reported */
}
