/* A part's stall clock. */
#include "load_world.h"

static void silent_peer(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_tick(w, 499);
  expect(w, 499, "");
  world_tick(w, 500);
  expect(w, 500, "ping 1");
  world_tick(w, 999);
  expect(w, 999, "");
  world_tick(w, 1000);
  expect(w, 1000, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
  kvf_loads_on_path_down(w->loads, 1000 * MS, 1, 11);
  kvf_loads_on_read_progress(w->loads, 1500 * MS, 1);
  world_tick(w, 3000);
  expect(w, 3000, ""); /* the reads are not quiet: no block enters another attempt */
  world_failed(w, 3000, 1, KVF_CANCELLED);
  world_failed(w, 3000, 2, KVF_CANCELLED);
  world_tick(w, 3010);
  expect(w, 3010, "want 1");
  kvf_loads_on_path(w->loads, 3010 * MS, 1, 0, KVF_PEER_DOWN);
  expect(w, 3010, "outcome 500 transfer_stalled 0/6; quiet 500");
  assert_int_equal(kvf_loads_stats(w->loads)->stalls, 1);
  assert_int_equal(kvf_loads_stats(w->loads)->pings, 1);
}

static void peer_that_only_answers_pings(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_tick(w, 500);
  expect(w, 500, "ping 1");
  kvf_loads_on_pong(w->loads, 1);
  world_tick(w, 1000);
  expect(w, 1000, "");
  kvf_loads_on_pong(w->loads, 1);
  world_tick(w, 1999);
  expect(w, 1999, "");
  kvf_loads_on_pong(w->loads, 1);
  world_tick(w, 2000);
  expect(w, 2000, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1");
}

static void pong_from_before_the_ping(void **state)
{
  world *w = *state;
  world_start_reading(w);
  kvf_loads_on_pong(w->loads, 1);
  world_tick(w, 500);
  expect(w, 500, "ping 1");
  world_tick(w, 1000);
  expect(w, 1000, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
}

static void progress_restarts_the_clock(void **state)
{
  world *w = *state;
  world_start_reading(w);
  kvf_loads_on_read_progress(w->loads, 400 * MS, 1);
  world_tick(w, 899);
  expect(w, 899, "");
  world_tick(w, 900);
  expect(w, 900, "ping 1");
  kvf_loads_on_read_progress(w->loads, 1100 * MS, 2);
  world_tick(w, 1599);
  expect(w, 1599, "");
  world_tick(w, 1600);
  expect(w, 1600, "ping 1");
  kvf_loads_on_pong(w->loads, 1);
  world_live(w, 2500, 1, 2);
  world_tick(w, 2999);
  expect(w, 2999, "");
  world_tick(w, 3000);
  expect(w, 3000, "ping 1");
  world_tick(w, 3499);
  expect(w, 3499, "");
  world_tick(w, 3500);
  expect(w, 3500, "cancel 1 over 11; stalled 11 of 1 silent");
}

static void clock_rests_without_reads(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_tick(w, 5000);
  expect(w, 5000, "");
  world_path(w, 5000, 1, 11);
  expect(w, 9000, "read 1 over 11: 0"); /* the clock starts as the read is taken */
  world_tick(w, 9499);
  expect(w, 9499, "");
  world_tick(w, 9500);
  expect(w, 9500, "ping 1");
}

static void remaining_reads_keep_the_clock(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_failed(w, 10, 1, KVF_TRANSFER_FAILED);
  world_tick(w, 500);
  expect(w, 500, "ping 1");
  world_tick(w, 1000);
  expect(w, 1000, "cancel 2 over 11; stalled 11 of 1 silent");
  world_live(w, 1001, 1, 2); /* it was complete after all */
  world_tick(w, 1011);
  expect(w, 1011, "want 1");
  world_path(w, 1011, 1, 12);
  expect(w, 1011, "read 3 over 12: 0,1,2,3");
  world_tick(w, 1511); /* the new attempt has a clock of its own */
  expect(w, 1511, "ping 1");
}

static void late_tick_leaves_time_for_the_pong(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_tick(w, 900);
  expect(w, 900, "ping 1");
  world_tick(w, 1399);
  expect(w, 1399, "");
  world_tick(w, 1400);
  expect(w, 1400, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
}

/* While this process did not run, nobody could be heard. */
static void silence_begins_anew_after_a_pause(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_tick(w, 2500);
  expect(w, 2500, "ping 1"); /* the peer's pong may be waiting in the socket */
  kvf_loads_on_pong(w->loads, 1);
  kvf_loads_on_read_progress(w->loads, 2600 * MS, 1);
  world_tick(w, 9000);
  expect(w, 9000, "ping 1");
  kvf_loads_on_pong(w->loads, 1);
  kvf_loads_on_read_progress(w->loads, 9100 * MS, 1);
  world_tick(w, 9599);
  expect(w, 9599, "");
  world_tick(w, 9600);
  expect(w, 9600, "ping 1");
  world_tick(w, 10100);
  expect(w, 10100, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
}

static void silence_begins_anew_once(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_tick(w, 2500);
  expect(w, 2500, "ping 1");
  world_tick(w, 9000);
  expect(w, 9000, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
}

static void pause_that_is_short(void **state)
{
  world *w = *state;
  world_start_reading(w);
  world_tick(w, 500);
  expect(w, 500, "ping 1");
  world_tick(w, 1499);
  expect(w, 1499, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
}

static void pause_with_progress_just_before_it(void **state)
{
  world *w = *state;
  world_start_reading(w);
  kvf_loads_on_read_progress(w->loads, 490 * MS, 1);
  kvf_loads_on_read_progress(w->loads, 990 * MS, 1);
  world_tick(w, 1100); /* the timer was for 500 */
  expect(w, 1100, "");
  world_tick(w, 1490);
  expect(w, 1490, "ping 1");
}

static void loads_share_a_ping_and_a_stall(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  world_start(w, 0);
  world_spec(w, 501, 1, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0; read 2 over 11: 0");
  world_tick(w, 500);
  expect(w, 500, "ping 1");
  world_tick(w, 1000);
  expect(w, 1000, "cancel 1 over 11; cancel 2 over 11; stalled 11 of 1 silent");
  world_failed(w, 1000, 1, KVF_CANCELLED);
  world_failed(w, 1000, 2, KVF_CANCELLED);
  world_tick(w, 1010);
  expect(w, 1010, "want 1");
}

/* A ping that is on its way tells as much as another one would. */
static void ping_is_not_repeated(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0");
  world_spec(w, 501, 1, "1");
  world_start(w, 200);
  expect(w, 200, "want 1");
  world_path(w, 200, 1, 11);
  expect(w, 200, "read 2 over 11: 0");
  world_tick(w, 500);
  expect(w, 500, "ping 1");
  world_tick(w, 700);
  expect(w, 700, "");
  world_tick(w, 1000);
  expect(w, 1000, "cancel 1 over 11; stalled 11 of 1 silent");
  world_tick(w, 1199);
  expect(w, 1199, "");
  world_tick(w, 1200);
  expect(w, 1200, "cancel 2 over 11"); /* the path has been reported */
}

/* A stall that nobody has taken yet outlives the load's own events. */
static void stall_of_a_load_that_ends(void **state)
{
  world *w = *state;
  kvf_load_event event;
  world_start_reading(w);
  world_tick(w, 500);
  expect(w, 500, "ping 1");
  world_tick(w, 1000);
  kvf_loads_abort(w->loads, 1000 * MS, 500);
  world_failed(w, 1000, 1, KVF_CANCELLED);
  world_failed(w, 1000, 2, KVF_CANCELLED);
  assert_true(kvf_loads_next_event(w->loads, &event));
  assert_true(kvf_loads_next_event(w->loads, &event));
  assert_int_equal(kvf_loads_stats(w->loads)->open, 1);
  world_start(w, 1000); /* the same request, anew */
  expect(w, 1000, "stalled 11 of 1 silent; want 1");
  assert_int_equal(kvf_loads_stats(w->loads)->open, 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      world_test(silent_peer),
      world_test(peer_that_only_answers_pings),
      world_test(pong_from_before_the_ping),
      world_test(progress_restarts_the_clock),
      world_test(clock_rests_without_reads),
      world_test(remaining_reads_keep_the_clock),
      world_test(late_tick_leaves_time_for_the_pong),
      world_test(silence_begins_anew_after_a_pause),
      world_test(silence_begins_anew_once),
      world_test(pause_that_is_short),
      world_test(pause_with_progress_just_before_it),
      world_test(loads_share_a_ping_and_a_stall),
      world_test(ping_is_not_repeated),
      world_test(stall_of_a_load_that_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
