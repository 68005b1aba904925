#include "load_world.h"

static void one_question_for_each_peer(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "12");
  world_start(w, 0);
  world_spec(w, 501, 1, "1");
  world_start(w, 0);
  expect(w, 0, "want 1; want 2");
  world_spec(w, 502, 1, "2");
  world_start(w, 0);
  expect(w, 0, ""); /* asked already */
  world_path(w, 0, 2, 12);
  expect(w, 0, "read 1 over 12: 0; read 2 over 12: 0");
  world_spec(w, 503, 1, "2");
  world_start(w, 0);
  expect(w, 0, "want 2"); /* answered: a new question */
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 3 over 11: 0; read 4 over 11: 0");
}

static void no_question_for_nobody(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  world_start(w, 0);
  kvf_loads_abort(w->loads, 0, 500);
  expect(w, 0, "outcome 500 aborted 0/1; quiet 500");
}

/* The peer is known by another part, but the one that had asked is gone before the question is taken. */
static void no_question_for_somebody_else(void **state)
{
  world *w = *state;
  world_spec(w, 500, 1, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0");
  world_spec(w, 501, 1, "1");
  world_start(w, 0);
  kvf_loads_abort(w->loads, 0, 501);
  expect(w, 0, "outcome 501 aborted 0/1; quiet 501");
}

static void loads_take_turns(void **state)
{
  world *w = *state;
  w->config.chunks_in_flight = 4;
  kvf_loads_destroy(w->loads);
  world_open(w);
  world_spec(w, 500, 100, "1");
  world_start(w, 0);
  world_spec(w, 501, 5, "1");
  for (uint32_t i = 0; i < 5; i++) {
    w->items[i].position = i + 200;
  }
  w->spec.positions = 300;
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0,
         "read 1 over 11: 0,1,2,3; read 2 over 11: 200,201,202,203; read 3 over 11: 4,5,6,7; "
         "read 4 over 11: 204; read 5 over 11: 8,9,10,11; read 6 over 11: 12,13,14,15");
}

/* A load of many parts has no more turns than a load of one. */
static void parts_share_their_load_s_turn(void **state)
{
  world *w = *state;
  world_spec(w, 500, 8, "12");
  world_start(w, 0);
  world_spec(w, 501, 8, "3");
  world_start(w, 0);
  expect(w, 0, "want 1; want 2; want 3");
  world_path(w, 0, 1, 11);
  world_path(w, 0, 2, 12);
  world_path(w, 0, 3, 13);
  expect(w, 0,
         "read 1 over 11: 0,1,2,3; read 2 over 13: 0,1,2,3; read 3 over 12: 0,1,2,3; read 4 over 13: 4,5,6,7; "
         "read 5 over 11: 4,5,6,7; read 6 over 12: 4,5,6,7");
}

static void limit_of_reads_in_flight(void **state)
{
  world *w = *state;
  world_spec(w, 500, 16, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  expect(w, 0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  expect(w, 0, "");
  world_live(w, 0, 1, 2);
  expect(w, 0, "read 3 over 11: 8,9,10,11");
  world_live(w, 0, 1, 1);
  world_live(w, 0, 1, 3);
  expect(w, 0, "read 4 over 11: 12,13,14,15");
}

static void no_read_once_decided(void **state)
{
  world *w = *state;
  world_spec(w, 500, 16, "1");
  world_start(w, 0);
  expect(w, 0, "want 1");
  world_path(w, 0, 1, 11);
  kvf_loads_abort(w->loads, 0, 500);
  expect(w, 0, "outcome 500 aborted 0/16; quiet 500");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      world_test(one_question_for_each_peer),    world_test(no_question_for_nobody),
      world_test(no_question_for_somebody_else), world_test(loads_take_turns),
      world_test(parts_share_their_load_s_turn), world_test(limit_of_reads_in_flight),
      world_test(no_read_once_decided),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
