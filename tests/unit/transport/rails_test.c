/* How rails are opened, how links come of their parts, and where reads go. */
#include "transport/tcp/rails.h"

#include <sched.h>

#include "../../sides/rails_fake.h"
#include "test.h"

#define COUNT 3

static kvf_transport *made;
static char message[KVF_MESSAGE_BYTES_MAX];

static int begin(void **state)
{
  (void)state;
  fakes_begin();
  made = NULL;
  return 0;
}

static int set_up(void **state)
{
  (void)begin(state);
  assert_int_equal(made_open(COUNT, &made, message), KVF_OK);
  return 0;
}

static int tear_down(void **state)
{
  (void)state;
  if (made != NULL) {
    kvf_transport_tcp.close(made);
  }
  for (uint32_t i = 0; i < KVF_RAILS_MAX; i++) {
    assert_false(fakes.rails[i].is_open);
  }
  assert_int_equal(fakes.wrong, 0);
  fakes_end();
  return 0;
}

#define SET_TEST(name) TEST_WITH(name, set_up, tear_down)

/* Whoever tells of the link may be another thread. */
static void assert_events(uint64_t user, const char *events)
{
  side_link_record link = side_link(&told, user);
  for (int ms = 0; ms < 5000 && strlen(link.events) < strlen(events); ms++) {
    sleep_us(1000);
    link = side_link(&told, user);
  }
  assert_string_equal(link.events, events);
}

/* ---- open, memory, description ---- */

TEST_WITH(as_many_as_asked_for_are_opened, begin, tear_down)
{
  const uint32_t counts[] = {1, 2, KVF_RAILS_MAX};
  for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
    fakes.opened = 0;
    assert_int_equal(made_open(counts[i], &made, message), KVF_OK);
    assert_ptr_equal(made->ops, &kvf_transport_tcp);
    assert_int_equal(fakes.opened, counts[i]);
    assert_true(fakes.rails[counts[i] - 1].is_open);
    kvf_transport_tcp.close(made);
    made = NULL;
    assert_false(fakes.rails[0].is_open || fakes.rails[counts[i] - 1].is_open);
  }
}

TEST_WITH(one_that_does_not_open_closes_those_before, begin, tear_down)
{
  const char *const says[] = {"no rail 0", "no rail 1", "no rail 2"};
  for (uint32_t k = 0; k < COUNT; k++) {
    fakes.opened = 0;
    fakes.open_fails = k;
    fakes.status = k == 1 ? KVF_TRANSFER_SETUP : KVF_SYSTEM;
    made = (kvf_transport *)(void *)&fakes;
    assert_int_equal(made_open(COUNT, &made, message), fakes.status);
    assert_null(made);
    assert_string_equal(message, says[k]);
    assert_int_equal(fakes.opened, k);
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_false(fakes.rails[i].is_open);
    }
  }
}

static const kvf_transport_memory memory = {.table_slots = 7};

SET_TEST(all_have_the_memory)
{
  assert_int_equal(kvf_transport_tcp.set_memory(made, &memory), KVF_OK);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_true(fakes.rails[i].has_memory);
  }
  kvf_transport_tcp.clear_memory(made);
  assert_int_equal(fakes.clears, COUNT);
}

SET_TEST(all_or_none_have_the_memory)
{
  for (uint32_t k = 0; k < COUNT; k++) {
    fakes.clears = 0;
    fakes.memory_fails = k;
    assert_int_equal(kvf_transport_tcp.set_memory(made, &memory), fakes.status);
    assert_int_equal(fakes.clears, k);
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_false(fakes.rails[i].has_memory);
    }
  }
}

SET_TEST(its_description_is_those_of_all)
{
  const char *const expected[COUNT] = {"A", "BB", "CCC"};
  kvf_rails_description description;
  uint8_t out[64];
  size_t bytes = 0;
  assert_int_equal(kvf_transport_tcp.describe(made, out, sizeof(out), &bytes), KVF_OK);
  assert_int_equal(bytes, 1 + 3 + 4 + 5);
  assert_int_equal(kvf_rails_description_read(out, bytes, &description), KVF_OK);
  assert_int_equal(description.count, COUNT);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(description.each[i].bytes, i + 1);
    assert_memory_equal(description.each[i].data, expected[i], i + 1);
  }
  assert_int_equal(kvf_transport_tcp.describe(made, out, bytes, &bytes), KVF_OK);
  assert_int_equal(kvf_transport_tcp.describe(made, out, bytes - 1, &bytes), KVF_LIMIT);
}

SET_TEST(one_without_a_description_no_description)
{
  for (uint32_t k = 0; k < COUNT; k++) {
    uint8_t out[64];
    size_t bytes = 0;
    fakes.describe_fails = k;
    assert_int_equal(kvf_transport_tcp.describe(made, out, sizeof(out), &bytes), fakes.status);
    assert_int_equal(bytes, 0);
  }
}

/* ---- connect ---- */

static kvf_link *connected(uint64_t session_id, uint32_t theirs)
{
  kvf_link *link = NULL;
  assert_int_equal(made_connect(made, 1, session_id, theirs, &link), KVF_OK);
  assert_non_null(link);
  return link;
}

/* Which of the peer's, each described by one letter, a part is to be connected to. */
static char theirs_of(uint32_t rail)
{
  assert_int_equal(part_of(rail)->description_bytes, 1);
  return (char)part_of(rail)->description[0];
}

SET_TEST(parts_are_told_of_the_peer)
{
  kvf_link *link = connected(1234, COUNT);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(part_of(i)->session_id, 1234);
    assert_int_equal(part_of(i)->peer.port, 99);
    assert_int_equal(part_of(i)->remote->blocks, 9);
  }
  kvf_transport_tcp.disconnect(link);
}

SET_TEST(ours_share_those_of_a_peer_that_has_fewer)
{
  const char first[COUNT][COUNT + 1] = {"aaa", "aba", "abc"}; /* then they move on, from one turn to the next */
  for (uint32_t theirs = 1; theirs <= COUNT; theirs++) {
    for (uint64_t session = 0; session < 4 * (uint64_t)COUNT; session++) {
      uint32_t turn = theirs == COUNT ? 0 : (uint32_t)session / COUNT;
      kvf_link *link = connected(session, theirs);
      for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(theirs_of(i), first[theirs - 1][(i + turn) % theirs]);
      }
      kvf_transport_tcp.disconnect(link);
    }
  }
}

SET_TEST(sessions_take_turns_at_those_of_a_peer_that_has_more)
{
  uint32_t used[5] = {0};
  for (uint64_t session = 0; session < 5 * (uint64_t)COUNT; session++) {
    kvf_link *link = connected(session, 5);
    assert_true(theirs_of(0) != theirs_of(1) && theirs_of(1) != theirs_of(2) && theirs_of(0) != theirs_of(2));
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_in_range(theirs_of(i), 'a', 'e');
      used[theirs_of(i) - 'a']++;
    }
    kvf_transport_tcp.disconnect(link);
  }
  for (uint32_t i = 0; i < 5; i++) {
    assert_int_equal(used[i], COUNT * COUNT);
  }
}

SET_TEST(one_that_does_not_connect_gives_back_those_before)
{
  for (uint32_t k = 0; k < COUNT; k++) {
    kvf_link *link = (kvf_link *)(void *)&fakes;
    fakes.given_back = 0;
    fakes.connect_fails = k;
    fakes.status = k == 0 ? KVF_TRANSFER_SETUP : KVF_NO_MEMORY;
    assert_int_equal(made_connect(made, 1, 0, COUNT, &link), fakes.status);
    assert_null(link);
    assert_int_equal(fakes.given_back, k);
    for (uint32_t i = 0; i < k; i++) {
      assert_true(part_of(i)->is_given_back);
      part_up_late(i);
      part_down_late(i);
    }
  }
  assert_events(1, "");
}

SET_TEST(a_malformed_description_is_no_way_to_a_peer)
{
  const uint8_t bad[] = {1, 1, 0, 'a', 'b'};
  const size_t lengths[] = {0, 3, 5};
  for (size_t i = 0; i < 3; i++) {
    const kvf_link_spec spec = {.description = bad, .description_bytes = lengths[i]};
    kvf_link *link = (kvf_link *)(void *)&fakes;
    assert_int_equal(kvf_transport_tcp.connect(made, &spec, &link), KVF_PROTOCOL);
    assert_null(link);
  }
  assert_null(part_of(0));
}

/* ---- reads ---- */

static kvf_status read_over(kvf_link *link)
{
  const kvf_transfer read = side_read(&told, &(kvf_lease){0}, NULL, 0);
  return kvf_transport_tcp.read(link, &read);
}

/* Which rail gets it. */
static uint32_t begin_read(kvf_link *link)
{
  uint32_t before[COUNT];
  uint32_t at = COUNT;
  for (uint32_t i = 0; i < COUNT; i++) {
    before[i] = fakes.rails[i].reads;
  }
  (void)read_over(link);
  for (uint32_t i = 0; i < COUNT; i++) {
    if (fakes.rails[i].reads != before[i]) {
      assert_int_equal(at, COUNT);
      at = i;
      assert_ptr_equal(fakes.rails[i].read_link, part_of(i));
    }
  }
  assert_in_range(at, 0, COUNT - 1);
  return at;
}

static void end_reads(void)
{
  for (uint32_t i = 0; i < COUNT; i++) {
    while (read_end(i)) {
    }
  }
}

SET_TEST(a_read_goes_where_the_fewest_are)
{
  kvf_link *link = connected(1, COUNT);
  assert_int_equal(begin_read(link), 1);
  assert_int_equal(begin_read(link), 2);
  assert_int_equal(begin_read(link), 0);
  assert_int_equal(begin_read(link), 1);
  assert_true(read_end(0));
  assert_int_equal(begin_read(link), 0); /* 1 2 1 of which 0 had none */
  assert_int_equal(begin_read(link), 2); /* the next after 1, which has 2 */
  assert_true(read_end(1));
  assert_true(read_end(1));
  assert_int_equal(begin_read(link), 1);
  assert_int_equal(begin_read(link), 1);
  assert_int_equal(begin_read(link), 0);
  end_reads();
  kvf_transport_tcp.disconnect(link);
}

SET_TEST(a_read_that_does_not_begin_is_not_counted)
{
  kvf_link *link = connected(1, COUNT);
  fakes.has_no_memory = true;
  assert_int_equal(read_over(link), KVF_NO_MEMORY);
  told.last_read_id--; /* it has no end */
  fakes.has_no_memory = false;
  assert_int_equal(begin_read(link), 1);
  assert_true(read_end(1));
  kvf_transport_tcp.disconnect(link);
}

/* Of ours and of the peer's, however many it has. */
SET_TEST(sessions_with_one_read_at_a_time_use_all_rails)
{
  for (uint32_t theirs = 1; theirs <= 5; theirs++) {
    uint32_t ours_used[COUNT] = {0};
    uint32_t theirs_used[5] = {0};
    for (uint64_t session = 0; session < theirs * (uint64_t)COUNT; session++) {
      kvf_link *link = connected(session, theirs);
      uint32_t i = begin_read(link);
      ours_used[i]++;
      theirs_used[theirs_of(i) - 'a']++;
      assert_true(read_end(i));
      kvf_transport_tcp.disconnect(link);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_int_equal(ours_used[i], theirs);
    }
    for (uint32_t i = 0; i < theirs; i++) {
      assert_true(theirs_used[i] > 0);
      assert_true(theirs < COUNT || theirs_used[i] == COUNT);
    }
  }
}

/* A rail has the reads of all links. */
SET_TEST(links_share_the_count)
{
  kvf_link *first = connected(2, COUNT);
  assert_int_equal(begin_read(first), 2);
  kvf_link *second = connected(2, COUNT);
  assert_int_equal(begin_read(second), 0);
  assert_int_equal(begin_read(second), 1);
  assert_int_equal(begin_read(second), 2);
  end_reads();
  kvf_transport_tcp.disconnect(second);
  kvf_transport_tcp.disconnect(first);
}

SET_TEST(sessions_begin_with_different_rails)
{
  for (uint64_t session = 0; session < 6; session++) {
    kvf_link *link = connected(session, COUNT);
    for (int again = 0; again < 2; again++) {
      const uint32_t at = begin_read(link);
      assert_int_equal(at, session % COUNT);
      assert_true(read_end(at));
    }
    kvf_transport_tcp.disconnect(link);
  }
}

SET_TEST(the_end_of_a_read_is_told)
{
  kvf_link *link = connected(0, COUNT);
  assert_int_equal(begin_read(link), 0);
  assert_true(read_end(0));
  const kvf_read_result result = side_wait(&told, told.last_read_id);
  assert_int_equal(result.status, KVF_PEER_DOWN);
  assert_int_equal(result.bytes, 11);
  kvf_transport_tcp.disconnect(link);
}

SET_TEST(a_cancel_reaches_the_reads_rail)
{
  kvf_link *link = connected(0, COUNT);
  for (uint32_t i = 0; i < COUNT; i++) {
    const uint32_t at = begin_read(link);
    kvf_transport_tcp.cancel(link, told.last_read_id);
    assert_int_equal(fakes.rails[at].cancelled, told.last_read_id);
    assert_ptr_equal(fakes.rails[at].cancelled_link, part_of(at));
  }
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_true(read_end(i));
  }
  kvf_transport_tcp.disconnect(link);
}

SET_TEST(assist_asks_all)
{
  assert_false(kvf_transport_tcp.assist(made));
  for (uint32_t k = 0; k < COUNT; k++) {
    fakes.rails[k].has_more = true;
    assert_true(kvf_transport_tcp.assist(made));
    fakes.rails[k].has_more = false;
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_int_equal(fakes.rails[i].assists, k + 2);
    }
  }
}

/* ---- what else rails ask the host ---- */

SET_TEST(the_host_is_asked_and_told)
{
  kvf_link *link = connected(0, COUNT);
  const uint32_t at = begin_read(link);
  const kvf_transport_host *host = &fakes.rails[at].host;
  kvf_transfer_item items[2] = {{0}, {.position = 1}};
  kvf_key key = {.bytes = 0};
  assert_true(host->session_key(host->context, SIDE_SESSION_ID, &key));
  assert_int_equal(key.bytes, 32);
  assert_false(host->session_key(host->context, SIDE_SESSION_ID + 1, &key));
  side_lease *lease = side_reserve(&told, 23);
  assert_int_equal(host->authorize(host->context, &lease->lease, items, 2), KVF_NOT_PUBLISHED);
  lease->published = true;
  lease->positions = 2;
  lease->blocks[1] = 13;
  assert_int_equal(host->authorize(host->context, &lease->lease, items, 2), KVF_OK);
  assert_int_equal(items[1].remote_block, 13);
  host->read_progress(host->context, told.last_read_id);
  assert_int_equal(told.reads[told.last_read_id].progress, 1);
  host->connection(host->context, KVF_PROTOCOL);
  assert_int_equal(told.connection, KVF_PROTOCOL);
  host->log(host->context, KVF_LOG_WARN, "a line");
  assert_int_equal(told.level, KVF_LOG_WARN);
  assert_string_equal(told.lines[0], "a line");
  end_reads();
  kvf_transport_tcp.disconnect(link);
}

/* ---- the life of a link ---- */

#define USER 41

static kvf_link *the_link;

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

static int open_link(void **state)
{
  (void)set_up(state);
  atomic_store(&is_freed, false);
  assert_int_equal(made_connect(made, USER, 0, COUNT, &the_link), KVF_OK);
  atomic_store(&watched, the_link);
  return 0;
}

/* Each test has given its link back. */
static int close_link(void **state)
{
  assert_true(is_freed);
  assert_int_equal(fakes.given_back, COUNT);
  return tear_down(state);
}

#define LINK_TEST(name) TEST_WITH(name, open_link, close_link)

static void all_come_up(void)
{
  for (uint32_t i = 0; i < COUNT; i++) {
    part_up(i, KVF_OK);
  }
}

static void assert_up(kvf_status status)
{
  assert_events(USER, "Uu");
  assert_ptr_equal(told.links[USER].link, the_link);
  assert_int_equal(told.links[USER].up, status);
}

LINK_TEST(a_link_is_up_when_its_last_part_is)
{
  assert_ptr_equal(the_link->transport, made);
  assert_int_equal(the_link->user, USER);
  part_up(0, KVF_OK);
  part_up(2, KVF_OK);
  assert_events(USER, "");
  part_up(1, KVF_OK);
  assert_up(KVF_OK);
  kvf_transport_tcp.disconnect(the_link);
  assert_events(USER, "Uu");
}

LINK_TEST(a_part_that_does_not_come_up_fails_the_link_once)
{
  part_up(0, KVF_OK);
  part_up(1, KVF_TRANSFER_FAILED);
  assert_up(KVF_TRANSFER_FAILED);
  part_up(2, KVF_OK);
  part_down(0, KVF_PEER_DOWN);
  assert_up(KVF_TRANSFER_FAILED);
  kvf_transport_tcp.disconnect(the_link);
}

LINK_TEST(two_parts_that_do_not_come_up_fail_the_link_once)
{
  part_up(2, KVF_PEER_DOWN);
  part_up(1, KVF_TRANSFER_FAILED);
  part_up(0, KVF_TRANSFER_FAILED);
  assert_up(KVF_PEER_DOWN);
  kvf_transport_tcp.disconnect(the_link);
}

LINK_TEST(a_part_that_goes_down_before_all_are_up_fails_the_link)
{
  part_up(0, KVF_OK);
  part_down(0, KVF_PEER_DOWN);
  assert_up(KVF_PEER_DOWN);
  part_up(1, KVF_OK);
  part_up(2, KVF_OK);
  part_down(1, KVF_TRANSFER_FAILED);
  assert_up(KVF_PEER_DOWN);
  kvf_transport_tcp.disconnect(the_link);
}

LINK_TEST(the_first_part_that_goes_down_ends_the_link)
{
  all_come_up();
  part_down(1, KVF_PEER_DOWN);
  assert_events(USER, "UuDd");
  assert_ptr_equal(told.links[USER].link, the_link);
  assert_int_equal(told.links[USER].down, KVF_PEER_DOWN);
  part_down(0, KVF_TRANSFER_FAILED);
  assert_events(USER, "UuDd");
  assert_int_equal(told.links[USER].down, KVF_PEER_DOWN);
  kvf_transport_tcp.disconnect(the_link);
}

/* Its status is what they end with. */
LINK_TEST(reads_of_a_link_that_failed_go_to_the_part_that_did)
{
  all_come_up();
  part_down(2, KVF_PEER_DOWN);
  part_down(1, KVF_TRANSFER_FAILED);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(read_over(the_link), KVF_OK);
  }
  assert_int_equal(fakes.rails[2].reads, 4);
  assert_ptr_equal(fakes.rails[2].read_link, part_of(2));
  end_reads();
  kvf_transport_tcp.disconnect(the_link);
}

static pthread_t hold_link_up(void)
{
  told.holds = 'U';
  part_up(0, KVF_OK);
  part_up(1, KVF_OK);
  pthread_t thread = part_up_elsewhere(2);
  assert_events(USER, "U");
  return thread;
}

static void release(pthread_t thread)
{
  side_release(&told);
  assert_int_equal(pthread_join(thread, NULL), 0);
}

LINK_TEST(down_comes_when_up_has_been_told)
{
  pthread_t thread = hold_link_up();
  part_down(0, KVF_PEER_DOWN);
  part_down(1, KVF_TRANSFER_FAILED);
  assert_events(USER, "U");
  release(thread);
  assert_events(USER, "UuDd");
  assert_int_equal(told.links[USER].up, KVF_OK);
  assert_int_equal(told.links[USER].down, KVF_PEER_DOWN);
  kvf_transport_tcp.disconnect(the_link);
}

LINK_TEST(given_back_while_up_is_told)
{
  pthread_t thread = hold_link_up();
  kvf_transport_tcp.disconnect(the_link);
  assert_false(is_freed);
  part_down_late(0);
  part_up_late(1);
  release(thread);
  assert_events(USER, "Uu");
}

LINK_TEST(given_back_before_down_could_be_told)
{
  pthread_t thread = hold_link_up();
  part_down(0, KVF_PEER_DOWN);
  kvf_transport_tcp.disconnect(the_link);
  assert_false(is_freed);
  release(thread);
  assert_events(USER, "Uu");
}

LINK_TEST(given_back_while_down_is_told)
{
  pthread_t thread = hold_link_up();
  part_down(1, KVF_PEER_DOWN);
  (void)pthread_mutex_lock(&told.lock);
  told.holds = 'D';
  (void)pthread_cond_broadcast(&told.changed);
  (void)pthread_mutex_unlock(&told.lock);
  assert_events(USER, "UuD");
  kvf_transport_tcp.disconnect(the_link);
  assert_false(is_freed);
  part_down_late(0);
  release(thread);
  assert_events(USER, "UuDd");
}

LINK_TEST(the_host_gives_it_back_when_told_that_it_is_up)
{
  told.disconnects = 'U';
  all_come_up();
  assert_events(USER, "Uu");
  part_down_late(0);
  assert_events(USER, "Uu");
}

LINK_TEST(the_host_gives_it_back_when_told_that_it_failed)
{
  told.disconnects = 'U';
  part_up(1, KVF_TRANSFER_FAILED);
  part_up_late(0);
  assert_up(KVF_TRANSFER_FAILED);
}

LINK_TEST(the_host_gives_it_back_when_told_that_it_is_down)
{
  told.disconnects = 'D';
  all_come_up();
  part_down(0, KVF_PEER_DOWN);
  assert_events(USER, "UuDd");
}

/* What parts still say is not passed on. */
LINK_TEST(given_back_before_it_is_up)
{
  part_up(0, KVF_OK);
  part_up(1, KVF_OK);
  kvf_transport_tcp.disconnect(the_link);
  assert_true(is_freed);
  part_up_late(2);
  part_down_late(1);
  assert_events(USER, "");
}

LINK_TEST(links_do_not_mix)
{
  kvf_link *second = NULL;
  fake_part *firsts[COUNT];
  for (uint32_t i = 0; i < COUNT; i++) {
    firsts[i] = part_of(i);
  }
  assert_int_equal(made_connect(made, USER + 1, 0, COUNT, &second), KVF_OK);
  all_come_up();
  assert_events(USER, "");
  assert_events(USER + 1, "Uu");
  assert_ptr_equal(told.links[USER + 1].link, second);
  kvf_transport_tcp.disconnect(second);
  assert_int_equal(fakes.given_back, COUNT);
  fakes.given_back = 0;
  for (uint32_t i = 0; i < COUNT; i++) {
    part_tell(firsts[i], true, KVF_OK);
  }
  assert_up(KVF_OK);
  kvf_transport_tcp.disconnect(the_link);
}

LINK_TEST(parts_may_be_up_before_all_are_there)
{
  kvf_link *second = NULL;
  fakes.comes_up_at_once = true;
  assert_int_equal(made_connect(made, USER + 1, 0, COUNT, &second), KVF_OK);
  assert_events(USER + 1, "Uu");
  assert_int_equal(told.links[USER + 1].up, KVF_OK);
  assert_ptr_equal(told.links[USER + 1].link, second);
  kvf_transport_tcp.disconnect(second);
  fakes.given_back = 0;
  kvf_transport_tcp.disconnect(the_link);
}

LINK_TEST(the_host_gives_back_one_that_is_up_at_once)
{
  kvf_link *second = NULL;
  fakes.comes_up_at_once = true;
  told.disconnects = 'U';
  assert_int_equal(made_connect(made, USER + 1, 0, COUNT, &second), KVF_OK);
  assert_events(USER + 1, "Uu");
  fakes.given_back = 0;
  kvf_transport_tcp.disconnect(the_link);
}

/* ---- threads that bring parts up and down at random, while the host connects, reads and gives back ---- */

#define ROUNDS 1000
#define OPEN_MAX 4 /* links at a time */

static atomic_bool is_over;
static kvf_link *open_links[OPEN_MAX];
static uint64_t users[OPEN_MAX];
static uint32_t calls_max[ROUNDS]; /* of the host's, per link, as of the time when it had been given back */

static uint32_t draw(uint32_t *seed, uint32_t below)
{
  *seed = *seed * 1664525u + 1013904223u;
  return (*seed >> 8) % below;
}

/* One of the newest. */
static fake_part *some_part(uint32_t rail, uint32_t back)
{
  (void)pthread_mutex_lock(&fakes.lock);
  fake_part *part = part_of(rail);
  while (part != NULL && part->next != NULL && back-- > 0) {
    part = part->next;
  }
  (void)pthread_mutex_unlock(&fakes.lock);
  return part;
}

static void *run_rail(void *context)
{
  const uint32_t rail = (uint32_t)((fake_rail *)context - fakes.rails);
  uint32_t seed = rail;
  while (!atomic_load(&is_over)) {
    fake_part *part = some_part(rail, draw(&seed, OPEN_MAX + 1));
    const bool up = draw(&seed, 4) > 0;
    const kvf_status status = up && draw(&seed, 16) > 0 ? KVF_OK : KVF_PEER_DOWN;
    if (part != NULL) {
      part_tell(part, up, status);
    }
    (void)read_end(rail);
    (void)sched_yield();
  }
  while (read_end(rail)) {
  }
  return NULL;
}

static uint32_t events_of(const side_link_record *link)
{
  return (uint32_t)strlen(link->events);
}

/* A call that is under way may go on, or begin if it has not been seen yet. */
static void give_back(uint32_t slot)
{
  kvf_transport_tcp.disconnect(open_links[slot]);
  open_links[slot] = NULL;
  const side_link_record link = side_link(&told, users[slot]);
  calls_max[users[slot]] = events_of(&link) / 2 + 1;
}

static bool is_at_its_end(const side_link_record *link)
{
  return events_of(link) == 4 || (events_of(link) == 2 && link->up != KVF_OK);
}

static void wait_for(uint64_t user, bool end)
{
  side_link_record link = side_link(&told, user);
  while (end ? !is_at_its_end(&link) : events_of(&link) == 0) {
    (void)sched_yield();
    link = side_link(&told, user);
  }
}

static void read_some(uint32_t slot)
{
  const side_link_record link = side_link(&told, users[slot]);
  for (int i = 0; i < 5 && events_of(&link) >= 2 && link.up == KVF_OK; i++) {
    assert_int_equal(read_over(open_links[slot]), KVF_OK);
    kvf_transport_tcp.cancel(open_links[slot], told.last_read_id);
  }
}

static void run_host(void)
{
  uint32_t seed = 77;
  for (uint64_t round = 0; round < ROUNDS; round++) {
    const uint32_t slot = draw(&seed, OPEN_MAX);
    if (open_links[slot] != NULL) {
      read_some(slot);
      give_back(slot);
    }
    users[slot] = round;
    assert_int_equal(made_connect(made, round, round, 1 + draw(&seed, 5), &open_links[slot]), KVF_OK);
    if (round % 4 == 0) {
      wait_for(round, round % 8 == 0);
    }
    read_some(slot);
  }
  for (uint32_t slot = 0; slot < OPEN_MAX; slot++) {
    if (open_links[slot] != NULL) {
      give_back(slot);
    }
  }
}

/* Returns whether the link had been up, and went down. */
static bool check(uint64_t user)
{
  const side_link_record *link = &told.links[user];
  const bool was_down = strcmp(link->events, "UuDd") == 0;
  assert_true(events_of(link) == 0 || was_down || strcmp(link->events, "Uu") == 0);
  assert_true(!was_down || (link->up == KVF_OK && link->down == KVF_PEER_DOWN));
  assert_true(events_of(link) / 2 <= calls_max[user]);
  return was_down;
}

/* Where one rail had more than the others, they would not take turns. */
static void check_no_reads_are_left(void)
{
  kvf_link *link = NULL;
  assert_int_equal(made_connect(made, ROUNDS, 0, COUNT, &link), KVF_OK);
  for (int i = 0; i < 2 * COUNT; i++) {
    assert_int_equal(read_over(link), KVF_OK);
  }
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(fakes.rails[i].reads, 2);
  }
  end_reads();
  kvf_transport_tcp.disconnect(link);
}

SET_TEST(links_are_told_of_in_order)
{
  pthread_t threads[COUNT];
  uint32_t downs = 0;
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, run_rail, &fakes.rails[i]), 0);
  }
  run_host();
  atomic_store(&is_over, true);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  }
  for (uint64_t user = 0; user < ROUNDS; user++) {
    downs += check(user);
  }
  assert_true(downs > 0);
  assert_true(told.last_read_id > 0);
  assert_int_equal(told.reads_done, told.last_read_id);
  check_no_reads_are_left();
  assert_int_equal(fakes.given_back, (ROUNDS + 1) * COUNT);
}
