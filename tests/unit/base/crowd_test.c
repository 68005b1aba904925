/* Which connection makes room for which, by host, stage and age. */
#include "base/crowd.h"

#include "test.h"

#define MEMBERS 8

static kvf_crowd crowd;
static kvf_crowd_member members[MEMBERS];

static void begin(void)
{
  memset(members, 0, sizeof(members));
  kvf_crowd_init(&crowd);
}

static void end(void)
{
  for (size_t i = 0; i < MEMBERS; i++) {
    kvf_crowd_leave(&crowd, &members[i]);
  }
  assert_int_equal(crowd.count, 0);
  assert_null(kvf_crowd_victim(&crowd));
}

#define CROWD_TEST(name) TEST_WITH(name, begin, end)

/* The next members, one from each of these hosts. */
static void join(const char *hosts)
{
  for (const char *each = hosts; *each != '\0'; each++) {
    const kvf_host host = {{0, (uint8_t)*each}};
    assert_int_equal(kvf_crowd_join(&crowd, &members[crowd.count], &host), KVF_OK);
  }
}

static void expect_victims(const char *in_order)
{
  for (const char *each = in_order; *each != '\0'; each++) {
    kvf_crowd_member *victim = kvf_crowd_victim(&crowd);
    assert_non_null(victim);
    assert_int_equal(victim - members, *each - '0');
    kvf_crowd_leave(&crowd, victim);
  }
}

CROWD_TEST(one_host_may_have_all_places)
{
  join("aaaa");
  assert_int_equal(crowd.count, 4);
  expect_victims("0123");
}

CROWD_TEST(the_host_that_has_most_makes_room)
{
  join("abcaadaa");
  expect_victims("03461257");
}

CROWD_TEST(between_equals_whoever_has_been_there_longest)
{
  join("abcabc");
  expect_victims("012345");
}

CROWD_TEST(who_moves_is_the_newest)
{
  join("aaab");
  kvf_crowd_move(&crowd, &members[0], KVF_CROWD_SILENT);
  expect_victims("12");
  kvf_crowd_move(&crowd, &members[0], KVF_CROWD_SILENT);
  expect_victims("30");
}

CROWD_TEST(who_has_come_as_far_as_most_of_its_host_makes_room)
{
  join("aaaaab");
  kvf_crowd_move(&crowd, &members[0], KVF_CROWD_KNOWN);
  kvf_crowd_move(&crowd, &members[1], KVF_CROWD_HEARD);
  expect_victims("2"); /* silent: 2, 3 and 4 */
  kvf_crowd_move(&crowd, &members[3], KVF_CROWD_HEARD);
  expect_victims("1"); /* heard: 1 and 3 */
  kvf_crowd_move(&crowd, &members[5], KVF_CROWD_KNOWN);
  expect_victims("4305"); /* of each stage one: who is silent goes first; the last two are of two hosts */
}

CROWD_TEST(who_has_left_may_come_again)
{
  join("aab");
  kvf_crowd_move(&crowd, &members[0], KVF_CROWD_KNOWN);
  kvf_crowd_leave(&crowd, &members[0]);
  kvf_crowd_leave(&crowd, &members[0]);
  assert_int_equal(crowd.count, 2);
  assert_int_equal(kvf_crowd_join(&crowd, &members[0], &(kvf_host){{0, 'b'}}), KVF_OK);
  assert_int_equal(members[0].stage, KVF_CROWD_SILENT);
  expect_victims("2");
  expect_victims("10");
}
