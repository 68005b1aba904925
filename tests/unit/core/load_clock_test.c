/* A part's stall clock. */
#include "load_world.h"

LOAD_TEST(silent_peer)
{
  world_start_reading();
  expect_at(499, "");
  expect_at(500, "ping 1");
  expect_at(999, "");
  expect_at(1000, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
  kvf_loads_on_path_down(w.loads, 1000 * MS, 1, 11);
  kvf_loads_on_read_progress(w.loads, 1500 * MS, 1);
  expect_at(3000, ""); /* the reads are not quiet: no block enters another attempt */
  world_failed(3000, 1, KVF_CANCELLED);
  world_failed(3000, 2, KVF_CANCELLED);
  expect_at(3010, "want 1");
  kvf_loads_on_path(w.loads, 3010 * MS, 1, 0, KVF_PEER_DOWN);
  expect(3010, "outcome 500 transfer_stalled 0/6; quiet 500");
  assert_int_equal(kvf_loads_stats(w.loads)->stalls, 1);
  assert_int_equal(kvf_loads_stats(w.loads)->pings, 1);
}

LOAD_TEST(peer_that_only_answers_pings)
{
  world_start_reading();
  expect_at(500, "ping 1");
  kvf_loads_on_pong(w.loads, 1);
  expect_at(1000, "");
  kvf_loads_on_pong(w.loads, 1);
  expect_at(1999, "");
  kvf_loads_on_pong(w.loads, 1);
  expect_at(2000, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1");
}

LOAD_TEST(pong_from_before_the_ping)
{
  world_start_reading();
  kvf_loads_on_pong(w.loads, 1);
  expect_at(500, "ping 1");
  expect_at(1000, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
}

LOAD_TEST(progress_restarts_the_clock)
{
  world_start_reading();
  kvf_loads_on_read_progress(w.loads, 400 * MS, 1);
  expect_at(899, "");
  expect_at(900, "ping 1");
  kvf_loads_on_read_progress(w.loads, 1100 * MS, 2);
  expect_at(1599, "");
  expect_at(1600, "ping 1");
  kvf_loads_on_pong(w.loads, 1);
  world_live(2500, 1, 2);
  expect_at(2999, "");
  expect_at(3000, "ping 1");
  expect_at(3499, "");
  expect_at(3500, "cancel 1 over 11; stalled 11 of 1 silent");
}

LOAD_TEST(clock_rests_without_reads)
{
  world_spec(500, 1, "1");
  world_start(0);
  expect(0, "want 1");
  expect_at(5000, "");
  world_path(5000, 1, 11);
  expect(9000, "read 1 over 11: 0"); /* the clock starts as the read is taken */
  expect_at(9499, "");
  expect_at(9500, "ping 1");
}

LOAD_TEST(remaining_reads_keep_the_clock)
{
  world_start_reading();
  world_failed(10, 1, KVF_TRANSFER_FAILED);
  expect_at(500, "ping 1");
  expect_at(1000, "cancel 2 over 11; stalled 11 of 1 silent");
  world_live(1001, 1, 2); /* it was complete after all */
  expect_at(1011, "want 1");
  world_path(1011, 1, 12);
  expect(1011, "read 3 over 12: 0,1,2,3");
  /* the new attempt has a clock of its own */
  expect_at(1511, "ping 1");
}

LOAD_TEST(late_tick_leaves_time_for_the_pong)
{
  world_start_reading();
  expect_at(900, "ping 1");
  expect_at(1399, "");
  expect_at(1400, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
}

/* While this process did not run, nobody could be heard. */
LOAD_TEST(silence_begins_anew_after_a_pause)
{
  world_start_reading();
  expect_at(2500, "ping 1"); /* the peer's pong may be waiting in the socket */
  kvf_loads_on_pong(w.loads, 1);
  kvf_loads_on_read_progress(w.loads, 2600 * MS, 1);
  expect_at(9000, "ping 1");
  kvf_loads_on_pong(w.loads, 1);
  kvf_loads_on_read_progress(w.loads, 9100 * MS, 1);
  expect_at(9599, "");
  expect_at(9600, "ping 1");
  expect_at(10100, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
}

LOAD_TEST(silence_begins_anew_once)
{
  world_start_reading();
  expect_at(2500, "ping 1");
  expect_at(9000, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
}

LOAD_TEST(pause_that_is_short)
{
  world_start_reading();
  expect_at(500, "ping 1");
  expect_at(1499, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
}

LOAD_TEST(pause_with_progress_just_before_it)
{
  world_start_reading();
  kvf_loads_on_read_progress(w.loads, 490 * MS, 1);
  kvf_loads_on_read_progress(w.loads, 990 * MS, 1);
  /* the timer was for 500 */
  expect_at(1100, "");
  expect_at(1490, "ping 1");
}

LOAD_TEST(loads_share_a_ping_and_a_stall)
{
  world_spec(500, 1, "1");
  world_start(0);
  world_spec(501, 1, "1");
  expect_started(0, "read 1 over 11: 0; read 2 over 11: 0");
  expect_at(500, "ping 1");
  expect_at(1000, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
  world_failed(1000, 1, KVF_CANCELLED);
  world_failed(1000, 2, KVF_CANCELLED);
  expect_at(1010, "want 1");
}

/* A ping that is on its way tells as much as another one would. */
LOAD_TEST(ping_is_not_repeated)
{
  world_spec(500, 1, "1");
  expect_started(0, "read 1 over 11: 0");
  world_spec(501, 1, "1");
  expect_started(200, "read 2 over 11: 0");
  expect_at(500, "ping 1");
  expect_at(700, "");
  expect_at(1000, "cancel 1 over 11; stalled 11 of 1 silent");
  expect_at(1199, "");
  expect_at(1200, "cancel 2 over 11"); /* the path has been reported */
}

/* A stall that nobody has taken yet outlives the load's own events. */
LOAD_TEST(stall_of_a_load_that_ends)
{
  kvf_load_event event;
  world_start_reading();
  expect_at(500, "ping 1");
  world_tick(1000);
  kvf_loads_abort(w.loads, 1000 * MS, 500);
  world_failed(1000, 1, KVF_CANCELLED);
  world_failed(1000, 2, KVF_CANCELLED);
  assert_true(kvf_loads_next_event(w.loads, &event));
  assert_true(kvf_loads_next_event(w.loads, &event));
  assert_int_equal(kvf_loads_stats(w.loads)->open, 1);
  world_start(1000); /* the same request, anew */
  expect(1000, "stalled 11 of 1 silent; want 1");
  assert_int_equal(kvf_loads_stats(w.loads)->open, 1);
}
