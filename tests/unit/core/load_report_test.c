#include "load_world.h"

LOAD_TEST(unwanted_positions_are_good)
{
  world_spec(500, 3, "1"); /* positions 2, 5 and 6 of 9 */
  w.items[0].position = 2;
  w.items[1].position = 5;
  w.items[2].position = 6;
  w.spec.positions = 9;
  w.config.chunk_bytes = 100;
  w.config.chunks_in_flight = 3;
  kvf_loads_destroy(w.loads);
  world_open();
  const char *const expected[] = {"outcome 500 aborted 2/9; quiet 500", "outcome 501 aborted 5/9; quiet 501",
                                  "outcome 502 aborted 6/9; quiet 502", "outcome 503 ok 9/9; quiet 503"};
  uint64_t read_id = 1;
  for (uint64_t good = 0; good < 4; good++) {
    w.spec.request_id = 500 + good;
    w.spec.user = 501 + good;
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
    kvf_loads_abort(w.loads, 0, w.spec.request_id);
    expect(0, expected[good]);
  }
}

LOAD_TEST(groups_are_all_or_nothing)
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
  expect(0, "outcome 500 lease_expired 0/8; quiet 500");
}

LOAD_TEST(prefix_is_the_least_of_the_parts)
{
  world_spec(500, 8, "12");
  world_start(0);
  expect(0, "want 1; want 2");
  world_path(0, 1, 11);
  expect(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  world_live(0, 1, 1);
  world_live(0, 1, 2);
  expect(0, "");
  world_path(1, 2, 12);
  expect(1, "read 3 over 12: 0,1,2,3; read 4 over 12: 4,5,6,7");
  world_live(1, 2, 3);
  world_over(1, 2, 4);
  expect(1, "outcome 500 lease_expired 4/8; quiet 500");
}

LOAD_TEST(short_part_comes_first)
{
  world_spec(500, 8, "12");
  world_start(0);
  expect(0, "want 1; want 2");
  world_path(0, 2, 12);
  expect(0, "read 1 over 12: 0,1,2,3; read 2 over 12: 4,5,6,7");
  world_live(0, 2, 1);
  world_live(0, 2, 2);
  kvf_loads_on_path(w.loads, 0, 1, 0, KVF_PEER_DOWN);
  expect(0, "outcome 500 peer_down 0/8; quiet 500");
}

LOAD_TEST(failed_part_ends_the_others)
{
  world_spec(500, 8, "12");
  world_start(0);
  expect(0, "want 1; want 2");
  world_path(0, 1, 11);
  expect(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  world_live(0, 1, 1);
  kvf_loads_on_path(w.loads, 0, 2, 0, KVF_PEER_DOWN);
  expect(0, "cancel 2 over 11; outcome 500 peer_down 0/8");
  world_failed(0, 2, KVF_CANCELLED);
  expect(0, "quiet 500");
}

/* Parts of different widths from ranks that hold different numbers of heads. */
LOAD_TEST(parts_of_different_widths)
{
  world_spec(500, 4, "12");
  w.parts[0].heads = 2;
  w.parts[1].local_head = 2;
  w.parts[1].heads = 4;
  world_start(0);
  expect(0, "want 1; want 2");
  world_path(0, 1, 11);
  world_path(0, 2, 12);
  expect(0, "read 1 over 11: 0,1; read 2 over 12: 0; read 3 over 11: 2,3; read 4 over 12: 1");
  world_live(0, 1, 1);
  world_live(0, 1, 3);
  world_live(0, 2, 4);
  world_live(0, 2, 2);
  expect(0, "read 5 over 12: 2; read 6 over 12: 3");
  world_live(0, 2, 5);
  expect(0, "");
  world_live(0, 2, 6);
  expect(0, "outcome 500 ok 4/4; quiet 500");
}

LOAD_TEST(each_part_has_its_own_claim)
{
  world_spec(500, 1, "12");
  w.parts[1].claim.digest = DIGEST + 1;
  world_start(0);
  expect(0, "want 1; want 2");
  world_path(0, 1, 11);
  world_path(0, 2, 12);
  expect(0, "read 1 over 11: 0; read 2 over 12: 0");
  world_live(0, 1, 1);
  world_live(0, 2, 2);
  expect(0, "outcome 500 bad_ticket 0/1; quiet 500");
}

LOAD_TEST(deadline)
{
  world_spec(500, 6, "1");
  w.spec.deadline_ns = 100 * MS;
  expect_started(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5");
  world_live(50, 1, 1);
  expect_at(99, "");
  expect_at(100, "cancel 2 over 11; outcome 500 deadline 4/6");
  world_live(101, 1, 2);
  expect(101, "quiet 500");
  assert_int_equal(kvf_loads_next_deadline(w.loads), KVF_TIME_NEVER);
}

LOAD_TEST(deadline_without_any_answer)
{
  world_spec(500, 6, "1");
  w.spec.deadline_ns = 100 * MS;
  world_start(0);
  assert_in_range(kvf_loads_next_deadline(w.loads), 0, 100 * MS);
  /* before anybody has taken an action */
  expect_at(100, "outcome 500 deadline 0/6; quiet 500");
}

LOAD_TEST(not_quiet_in_time)
{
  world_spec(500, 1, "1");
  w.spec.deadline_ns = 100 * MS;
  expect_started(0, "read 1 over 11: 0");
  expect_at(100, "cancel 1 over 11; outcome 500 deadline 0/1");
  world_tick(5099);
  assert_true(kvf_loads_healthy(w.loads));
  world_tick(5100);
  assert_false(kvf_loads_healthy(w.loads));
  assert_int_equal(kvf_loads_stats(w.loads)->overdue, 1);
  kvf_loads_on_read_progress(w.loads, 5200 * MS, 1);
  expect_at(90000, "");
  world_failed(90000, 1, KVF_CANCELLED);
  assert_true(kvf_loads_healthy(w.loads));
  expect(90000, "quiet 500");
  assert_int_equal(kvf_loads_stats(w.loads)->overdue, 0);
  assert_int_equal(kvf_loads_stats(w.loads)->overdue_total, 1);
}

/* Quiet before the outcome has been taken: still two events, in order. */
LOAD_TEST(quiet_overtakes_nobody)
{
  world_spec(500, 1, "1");
  expect_started(0, "read 1 over 11: 0");
  kvf_loads_abort(w.loads, 0, 500);
  world_failed(0, 1, KVF_CANCELLED); /* the cancel is not worth telling any more */
  expect(0, "outcome 500 aborted 0/1; quiet 500");
}

LOAD_TEST(outcomes_are_counted_by_status)
{
  for (uint64_t request_id = 500; request_id < 503; request_id++) {
    world_spec(request_id, 1, "1");
    world_start(0);
    kvf_loads_abort(w.loads, 0, request_id);
    world_trace(0);
  }
  uint64_t others = 0;
  for (unsigned i = 0; i < KVF_STATUSES_MAX; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    if (info != NULL && info->status == KVF_ABORTED) {
      assert_int_equal(kvf_loads_stats(w.loads)->outcomes[i], 3);
    } else {
      others += kvf_loads_stats(w.loads)->outcomes[i];
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
  const kvf_load_stats *stats = kvf_loads_stats(w.loads);
  kvf_load_tally tally = {0};
  world_spec(500, 1, "1");
  w.parts[0].tally = &tally;
  world_start(10);
  expect(10, "want 1");
  world_path(12, 1, 11);
  expect(12, "read 1 over 11: 0");
  world_live(17, 1, 1);
  world_trace(17);
  assert_int_equal(tally.bytes, 400);
  assert_int_equal(tally.loads[0], 1);
  assert_int_equal(total(stats->load_ns.counts), 1);
  assert_int_equal(total(stats->load_ns.sums), 7 * MS);
  assert_int_equal(total(stats->load_bytes.sums), 400);
  assert_int_equal(total(stats->detection_ns.counts), 0);
}

/* From the last byte on, not from the start: that is how long nobody noticed. */
LOAD_TEST(detection_begins_with_the_last_byte)
{
  const kvf_load_stats *stats = kvf_loads_stats(w.loads);
  world_spec(500, 8, "1");
  expect_started(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  world_live(100, 1, 1);
  kvf_loads_on_read_progress(w.loads, 150 * MS, 2);
  world_over(150, 1, 2);
  assert_int_equal(total(stats->detection_ns.counts), 1);
  assert_int_equal(total(stats->detection_ns.sums), 0);
  world_trace(150);
  world_spec(501, 1, "1");
  world_start(200);
  world_trace(200);
  kvf_loads_on_path(w.loads, 260 * MS, 1, 0, KVF_PEER_DOWN);
  assert_int_equal(total(stats->detection_ns.sums), 60 * MS);
  assert_int_equal(total(stats->load_ns.counts), 0);
}

LOAD_TEST(quarantined_blocks_are_counted_while_they_are)
{
  const kvf_load_stats *stats = kvf_loads_stats(w.loads);
  world_spec(500, 3, "1");
  expect_started(0, "read 1 over 11: 0,1,2");
  kvf_loads_abort(w.loads, 0, 500);
  world_trace(0);
  world_tick(5000);
  assert_int_equal(stats->overdue_blocks, 3);
  world_failed(6000, 1, KVF_CANCELLED);
  assert_int_equal(stats->overdue_blocks, 0);
}
