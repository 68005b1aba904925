#include "transport/shards.h"

#include "shards_fake.h"
#include "test.h"

#define COUNT 3
#define USER 41

static kvf_transport *made;
static kvf_link *link;

/* Whether the link's memory has been freed. */
static _Atomic(void *) watched;
static atomic_bool is_freed;

void __real_free(void *room);
void __wrap_free(void *room);

void __wrap_free(void *room)
{
  if (room != NULL && room == atomic_load(&watched)) {
    atomic_store(&is_freed, true);
  }
  __real_free(room);
}

static int set_up(void **state)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  (void)state;
  fakes_begin();
  atomic_store(&is_freed, false);
  assert_int_equal(made_open(COUNT, &made, message), KVF_OK);
  assert_int_equal(made_connect(made, USER, 0, COUNT, &link), KVF_OK);
  atomic_store(&watched, link);
  return 0;
}

/* Each test has given its link back. */
static int tear_down(void **state)
{
  (void)state;
  assert_true(is_freed);
  assert_int_equal(fakes.given_back, COUNT);
  kvf_shards_close(made);
  assert_int_equal(fakes.wrong, 0);
  assert_false(told.links[USER].is_wrong);
  fakes_end();
  return 0;
}

#define SET_TEST(name) TEST_WITH(name, set_up, tear_down)

static void all_come_up(void)
{
  for (uint32_t i = 0; i < COUNT; i++) {
    part_up(i, KVF_OK);
  }
}

static void assert_up(kvf_status status)
{
  assert_true(host_has(USER, "Uu"));
  assert_ptr_equal(told.links[USER].link, link);
  assert_int_equal(told.links[USER].up, status);
}

SET_TEST(a_link_is_up_when_its_last_part_is)
{
  assert_ptr_equal(link->transport, made);
  assert_int_equal(link->user, USER);
  part_up(0, KVF_OK);
  part_up(2, KVF_OK);
  assert_true(host_has(USER, ""));
  part_up(1, KVF_OK);
  assert_up(KVF_OK);
  kvf_shards_disconnect(link);
  assert_true(host_has(USER, "Uu"));
}

SET_TEST(a_part_that_does_not_come_up_fails_the_link_once)
{
  part_up(0, KVF_OK);
  part_up(1, KVF_TRANSFER_FAILED);
  assert_up(KVF_TRANSFER_FAILED);
  part_up(2, KVF_OK);
  part_down(0, KVF_PEER_DOWN);
  assert_up(KVF_TRANSFER_FAILED);
  kvf_shards_disconnect(link);
}

SET_TEST(two_parts_that_do_not_come_up_fail_the_link_once)
{
  part_up(2, KVF_PEER_DOWN);
  part_up(1, KVF_TRANSFER_FAILED);
  part_up(0, KVF_TRANSFER_FAILED);
  assert_up(KVF_PEER_DOWN);
  kvf_shards_disconnect(link);
}

SET_TEST(a_part_that_goes_down_before_all_are_up_fails_the_link)
{
  part_up(0, KVF_OK);
  part_down(0, KVF_PEER_DOWN);
  assert_up(KVF_PEER_DOWN);
  part_up(1, KVF_OK);
  part_up(2, KVF_OK);
  part_down(1, KVF_TRANSFER_FAILED);
  assert_up(KVF_PEER_DOWN);
  kvf_shards_disconnect(link);
}

SET_TEST(the_first_part_that_goes_down_ends_the_link)
{
  all_come_up();
  part_down(1, KVF_PEER_DOWN);
  assert_true(host_has(USER, "UuDd"));
  assert_ptr_equal(told.links[USER].link, link);
  assert_int_equal(told.links[USER].down, KVF_PEER_DOWN);
  part_down(0, KVF_TRANSFER_FAILED);
  assert_true(host_has(USER, "UuDd"));
  assert_int_equal(told.links[USER].down, KVF_PEER_DOWN);
  kvf_shards_disconnect(link);
}

/* Its status is what they end with. */
SET_TEST(reads_of_a_link_that_failed_go_to_the_part_that_did)
{
  all_come_up();
  part_down(2, KVF_PEER_DOWN);
  part_down(1, KVF_TRANSFER_FAILED);
  for (uint64_t id = 1; id <= 4; id++) {
    kvf_shards_read(link, &(kvf_read){.id = id});
  }
  assert_int_equal(fakes.shards[2].reads, 4);
  assert_ptr_equal(fakes.shards[2].read_link, part_of(2));
  while (read_end(2, 1)) {
  }
  kvf_shards_disconnect(link);
}

static pthread_t hold_link_up(void)
{
  told.holds = 'U';
  part_up(0, KVF_OK);
  part_up(1, KVF_OK);
  pthread_t thread = part_up_elsewhere(2, KVF_OK);
  assert_true(host_has(USER, "U"));
  return thread;
}

static void release(pthread_t thread)
{
  host_release();
  assert_int_equal(pthread_join(thread, NULL), 0);
}

SET_TEST(down_comes_when_up_has_been_told)
{
  pthread_t thread = hold_link_up();
  part_down(0, KVF_PEER_DOWN);
  part_down(1, KVF_TRANSFER_FAILED);
  assert_true(host_has(USER, "U"));
  release(thread);
  assert_true(host_has(USER, "UuDd"));
  assert_int_equal(told.links[USER].up, KVF_OK);
  assert_int_equal(told.links[USER].down, KVF_PEER_DOWN);
  kvf_shards_disconnect(link);
}

SET_TEST(given_back_while_up_is_told)
{
  pthread_t thread = hold_link_up();
  kvf_shards_disconnect(link);
  assert_false(is_freed);
  part_down_late(0);
  part_up_late(1);
  release(thread);
  assert_true(host_has(USER, "Uu"));
}

SET_TEST(given_back_before_down_could_be_told)
{
  pthread_t thread = hold_link_up();
  part_down(0, KVF_PEER_DOWN);
  kvf_shards_disconnect(link);
  assert_false(is_freed);
  release(thread);
  assert_true(host_has(USER, "Uu"));
}

SET_TEST(given_back_while_down_is_told)
{
  pthread_t thread = hold_link_up();
  part_down(1, KVF_PEER_DOWN);
  (void)pthread_mutex_lock(&told.lock);
  told.holds = 'D';
  (void)pthread_cond_broadcast(&told.changed);
  (void)pthread_mutex_unlock(&told.lock);
  assert_true(host_has(USER, "UuD"));
  kvf_shards_disconnect(link);
  assert_false(is_freed);
  part_down_late(0);
  release(thread);
  assert_true(host_has(USER, "UuDd"));
}

SET_TEST(the_host_gives_it_back_when_told_that_it_is_up)
{
  told.disconnects = 'U';
  all_come_up();
  assert_true(host_has(USER, "Uu"));
  part_down_late(0);
  assert_true(host_has(USER, "Uu"));
}

SET_TEST(the_host_gives_it_back_when_told_that_it_failed)
{
  told.disconnects = 'U';
  part_up(1, KVF_TRANSFER_FAILED);
  part_up_late(0);
  assert_up(KVF_TRANSFER_FAILED);
}

SET_TEST(the_host_gives_it_back_when_told_that_it_is_down)
{
  told.disconnects = 'D';
  all_come_up();
  part_down(0, KVF_PEER_DOWN);
  assert_true(host_has(USER, "UuDd"));
}

/* What parts still say is not passed on. */
SET_TEST(given_back_before_it_is_up)
{
  part_up(0, KVF_OK);
  part_up(1, KVF_OK);
  kvf_shards_disconnect(link);
  assert_true(is_freed);
  part_up_late(2);
  part_down_late(1);
  assert_true(host_has(USER, ""));
}

SET_TEST(links_do_not_mix)
{
  kvf_link *second = NULL;
  fake_part *firsts[COUNT];
  for (uint32_t i = 0; i < COUNT; i++) {
    firsts[i] = part_of(i);
  }
  assert_int_equal(made_connect(made, USER + 1, 0, COUNT, &second), KVF_OK);
  all_come_up();
  assert_true(host_has(USER, ""));
  assert_true(host_has(USER + 1, "Uu"));
  assert_ptr_equal(told.links[USER + 1].link, second);
  kvf_shards_disconnect(second);
  assert_int_equal(fakes.given_back, COUNT);
  fakes.given_back = 0;
  for (uint32_t i = 0; i < COUNT; i++) {
    part_tell(i, firsts[i], true, KVF_OK);
  }
  assert_up(KVF_OK);
  kvf_shards_disconnect(link);
}

SET_TEST(parts_may_be_up_before_all_are_there)
{
  kvf_link *second = NULL;
  fakes.comes_up_at_once = true;
  assert_int_equal(made_connect(made, USER + 1, 0, COUNT, &second), KVF_OK);
  assert_true(host_has(USER + 1, "Uu"));
  assert_int_equal(told.links[USER + 1].up, KVF_OK);
  assert_ptr_equal(told.links[USER + 1].link, second);
  kvf_shards_disconnect(second);
  fakes.given_back = 0;
  kvf_shards_disconnect(link);
}

SET_TEST(the_host_gives_back_one_that_is_up_at_once)
{
  kvf_link *second = NULL;
  fakes.comes_up_at_once = true;
  told.disconnects = 'U';
  assert_int_equal(made_connect(made, USER + 1, 0, COUNT, &second), KVF_OK);
  assert_true(host_has(USER + 1, "Uu"));
  fakes.given_back = 0;
  kvf_shards_disconnect(link);
}
