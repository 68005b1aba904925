#include "load_world.h"

LOAD_TEST(one_question_for_each_peer)
{
  world_spec(500, 1, "12");
  world_start(0);
  world_spec(501, 1, "1");
  world_start(0);
  expect(0, "want 1; want 2");
  world_spec(502, 1, "2");
  world_start(0);
  expect(0, ""); /* asked already */
  world_path(0, 2, 12);
  expect(0, "read 1 over 12: 0; read 2 over 12: 0");
  world_spec(503, 1, "2");
  world_start(0);
  expect(0, "want 2"); /* answered: a new question */
  world_path(0, 1, 11);
  expect(0, "read 3 over 11: 0; read 4 over 11: 0");
}

LOAD_TEST(no_question_for_nobody)
{
  world_spec(500, 1, "1");
  world_start(0);
  kvf_loads_abort(w.loads, 0, 500);
  expect(0, "outcome 500 aborted 0/1; quiet 500");
}

/* The peer is known by another part, but the one that had asked is gone before the question is taken. */
LOAD_TEST(no_question_for_somebody_else)
{
  world_spec(500, 1, "1");
  expect_started(0, "read 1 over 11: 0");
  world_spec(501, 1, "1");
  world_start(0);
  kvf_loads_abort(w.loads, 0, 501);
  expect(0, "outcome 501 aborted 0/1; quiet 501");
}

LOAD_TEST(loads_take_turns)
{
  w.config.chunks_in_flight = 4;
  kvf_loads_destroy(w.loads);
  world_open();
  world_spec(500, 100, "1");
  world_start(0);
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
  world_spec(500, 8, "12");
  world_start(0);
  world_spec(501, 8, "3");
  world_start(0);
  expect(0, "want 1; want 2; want 3");
  world_path(0, 1, 11);
  world_path(0, 2, 12);
  world_path(0, 3, 13);
  expect(0,
         "read 1 over 11: 0,1,2,3; read 2 over 13: 0,1,2,3; read 3 over 12: 0,1,2,3; read 4 over 13: 4,5,6,7; "
         "read 5 over 11: 4,5,6,7; read 6 over 12: 4,5,6,7");
}

LOAD_TEST(limit_of_reads_in_flight)
{
  world_spec(500, 16, "1");
  expect_started(0, "read 1 over 11: 0,1,2,3; read 2 over 11: 4,5,6,7");
  expect(0, "");
  world_live(0, 1, 2);
  expect(0, "read 3 over 11: 8,9,10,11");
  world_live(0, 1, 1);
  world_live(0, 1, 3);
  expect(0, "read 4 over 11: 12,13,14,15");
}

LOAD_TEST(no_read_once_decided)
{
  world_spec(500, 16, "1");
  world_start(0);
  expect(0, "want 1");
  world_path(0, 1, 11);
  kvf_loads_abort(w.loads, 0, 500);
  expect(0, "outcome 500 aborted 0/16; quiet 500");
}
