#include "transport/shards.h"

#include "shards_fake.h"
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
    kvf_shards_close(made);
  }
  for (uint32_t i = 0; i < KVF_SHARDS_MAX; i++) {
    assert_false(fakes.shards[i].is_open);
  }
  assert_int_equal(fakes.wrong, 0);
  fakes_end();
  return 0;
}

#define SET_TEST(name) TEST_WITH(name, set_up, tear_down)

/* ---- open, memory, description ---- */

TEST_WITH(as_many_as_asked_for_are_opened, begin, tear_down)
{
  const uint32_t counts[] = {1, 2, KVF_SHARDS_MAX};
  for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
    fakes.opened = 0;
    assert_int_equal(made_open(counts[i], &made, message), KVF_OK);
    assert_ptr_equal(made->ops, &made_ops);
    assert_int_equal(fakes.opened, counts[i]);
    assert_true(fakes.shards[counts[i] - 1].is_open);
    kvf_shards_close(made);
    made = NULL;
    assert_false(fakes.shards[0].is_open || fakes.shards[counts[i] - 1].is_open);
  }
}

TEST_WITH(one_that_does_not_open_closes_those_before, begin, tear_down)
{
  const char *const says[] = {"no shard 0", "no shard 1", "no shard 2"};
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
      assert_false(fakes.shards[i].is_open);
    }
  }
}

static const kvf_transport_memory memory = {.table_slots = 7};

SET_TEST(all_have_the_memory)
{
  assert_int_equal(kvf_shards_set_memory(made, &memory), KVF_OK);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_true(fakes.shards[i].has_memory);
  }
  kvf_shards_clear_memory(made);
  assert_int_equal(fakes.clears, COUNT);
}

SET_TEST(all_or_none_have_the_memory)
{
  for (uint32_t k = 0; k < COUNT; k++) {
    fakes.clears = 0;
    fakes.memory_fails = k;
    assert_int_equal(kvf_shards_set_memory(made, &memory), fakes.status);
    assert_int_equal(fakes.clears, k);
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_false(fakes.shards[i].has_memory);
    }
  }
}

SET_TEST(its_description_is_those_of_all)
{
  const char *const expected[COUNT] = {"A", "BB", "CCC"};
  kvf_shards_description description;
  uint8_t out[64];
  size_t bytes = 0;
  assert_int_equal(kvf_shards_describe(made, out, sizeof(out), &bytes), KVF_OK);
  assert_int_equal(bytes, 1 + 3 + 4 + 5);
  assert_int_equal(kvf_shards_description_read(out, bytes, &description), KVF_OK);
  assert_int_equal(description.count, COUNT);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(description.each[i].bytes, i + 1);
    assert_memory_equal(description.each[i].data, expected[i], i + 1);
  }
  assert_int_equal(kvf_shards_describe(made, out, bytes, &bytes), KVF_OK);
  assert_int_equal(kvf_shards_describe(made, out, bytes - 1, &bytes), KVF_LIMIT);
}

SET_TEST(one_without_a_description_no_description)
{
  for (uint32_t k = 0; k < COUNT; k++) {
    uint8_t out[64];
    size_t bytes = 0;
    fakes.describe_fails = k;
    assert_int_equal(kvf_shards_describe(made, out, sizeof(out), &bytes), fakes.status);
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
static char theirs_of(uint32_t shard)
{
  assert_int_equal(part_of(shard)->description_bytes, 1);
  return (char)part_of(shard)->description[0];
}

SET_TEST(parts_are_told_of_the_peer)
{
  kvf_link *link = connected(1234, COUNT);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(part_of(i)->session_id, 1234);
    assert_int_equal(part_of(i)->peer.port, 99);
    assert_int_equal(part_of(i)->remote->blocks, 9);
  }
  kvf_shards_disconnect(link);
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
      kvf_shards_disconnect(link);
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
    kvf_shards_disconnect(link);
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
  assert_true(host_has(1, ""));
}

SET_TEST(a_malformed_description_is_no_way_to_a_peer)
{
  const uint8_t bad[] = {1, 1, 0, 'a', 'b'};
  const size_t lengths[] = {0, 3, 5};
  for (size_t i = 0; i < 3; i++) {
    const kvf_link_spec spec = {.description = bad, .description_bytes = lengths[i]};
    kvf_link *link = (kvf_link *)(void *)&fakes;
    assert_int_equal(kvf_shards_connect(made, &spec, &link), KVF_PROTOCOL);
    assert_null(link);
  }
  assert_null(part_of(0));
}

/* ---- reads ---- */

/* Which shard gets it. */
static uint32_t begin_read(kvf_link *link, uint64_t id)
{
  uint32_t before[COUNT];
  uint32_t at = COUNT;
  for (uint32_t i = 0; i < COUNT; i++) {
    before[i] = fakes.shards[i].reads;
  }
  kvf_shards_read(link, &(kvf_read){.id = id});
  for (uint32_t i = 0; i < COUNT; i++) {
    if (fakes.shards[i].reads != before[i]) {
      assert_int_equal(at, COUNT);
      at = i;
      assert_ptr_equal(fakes.shards[i].read_link, part_of(i));
    }
  }
  assert_in_range(at, 0, COUNT - 1);
  return at;
}

SET_TEST(a_read_goes_where_the_fewest_are)
{
  kvf_link *link = connected(1, COUNT);
  assert_int_equal(begin_read(link, 1), 1);
  assert_int_equal(begin_read(link, 2), 2);
  assert_int_equal(begin_read(link, 3), 0);
  assert_int_equal(begin_read(link, 4), 1);
  assert_true(read_end(0, 3));
  assert_int_equal(begin_read(link, 5), 0); /* 1 2 1 of which 0 had none */
  assert_int_equal(begin_read(link, 6), 2); /* the next after 1, which has 2 */
  assert_true(read_end(1, 1));
  assert_true(read_end(1, 4));
  assert_int_equal(begin_read(link, 7), 1);
  assert_int_equal(begin_read(link, 8), 1);
  assert_int_equal(begin_read(link, 9), 0);
  for (uint32_t i = 0; i < COUNT; i++) {
    while (read_end(i, 1)) {
    }
  }
  kvf_shards_disconnect(link);
}

/* Of ours and of the peer's, however many it has. */
SET_TEST(sessions_with_one_read_at_a_time_use_all_shards)
{
  for (uint32_t theirs = 1; theirs <= 5; theirs++) {
    uint32_t ours_used[COUNT] = {0};
    uint32_t theirs_used[5] = {0};
    for (uint64_t session = 0; session < theirs * (uint64_t)COUNT; session++) {
      kvf_link *link = connected(session, theirs);
      uint32_t i = begin_read(link, 1);
      ours_used[i]++;
      theirs_used[theirs_of(i) - 'a']++;
      assert_true(read_end(i, 1));
      kvf_shards_disconnect(link);
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

/* A shard has the reads of all links. */
SET_TEST(links_share_the_count)
{
  kvf_link *first = connected(2, COUNT);
  assert_int_equal(begin_read(first, 1), 2);
  kvf_link *second = connected(2, COUNT);
  assert_int_equal(begin_read(second, 2), 0);
  assert_int_equal(begin_read(second, 3), 1);
  assert_int_equal(begin_read(second, 4), 2);
  for (uint32_t i = 0; i < COUNT; i++) {
    while (read_end(i, 1)) {
    }
  }
  kvf_shards_disconnect(second);
  kvf_shards_disconnect(first);
}

SET_TEST(sessions_begin_with_different_shards)
{
  for (uint64_t session = 0; session < 6; session++) {
    kvf_link *link = connected(session, COUNT);
    for (int again = 0; again < 2; again++) {
      const uint32_t at = begin_read(link, 1);
      assert_int_equal(at, session % COUNT);
      assert_true(read_end(at, 1));
    }
    kvf_shards_disconnect(link);
  }
}

SET_TEST(the_end_of_a_read_is_told)
{
  kvf_link *link = connected(0, COUNT);
  assert_int_equal(begin_read(link, 17), 0);
  assert_true(read_end(0, 17));
  assert_int_equal(told.reads_done, 1);
  assert_int_equal(told.last.id, 17);
  assert_int_equal(told.last.status, KVF_PEER_DOWN);
  assert_int_equal(told.last.bytes, 11);
  kvf_shards_disconnect(link);
}

SET_TEST(a_cancel_reaches_the_reads_shard)
{
  kvf_link *link = connected(0, COUNT);
  for (uint64_t id = 1; id <= COUNT; id++) {
    const uint32_t at = begin_read(link, id);
    kvf_shards_cancel(link, id);
    assert_int_equal(fakes.shards[at].cancelled, id);
    assert_ptr_equal(fakes.shards[at].cancelled_link, part_of(at));
  }
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_true(read_end(i, i + 1));
  }
  kvf_shards_disconnect(link);
}

SET_TEST(assist_asks_all)
{
  assert_false(kvf_shards_assist(made));
  for (uint32_t k = 0; k < COUNT; k++) {
    fakes.shards[k].has_more = true;
    assert_true(kvf_shards_assist(made));
    fakes.shards[k].has_more = false;
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_int_equal(fakes.shards[i].assists, k + 2);
    }
  }
}

/* ---- what else shards ask the host ---- */

SET_TEST(the_host_is_asked_and_told)
{
  const kvf_transport_host *its_host = &fakes.shards[1].host;
  const kvf_lease lease = {.id = 23};
  kvf_read_item items[2] = {{0}};
  kvf_key key = {.bytes = 0};
  assert_true(its_host->session_key(its_host->context, 5, &key));
  assert_true(key.data[0] == 3 && key.bytes == 1);
  assert_false(its_host->session_key(its_host->context, 6, &key));
  assert_int_equal(told.session_asked, 6);
  assert_int_equal(its_host->authorize(its_host->context, &lease, items, 2), KVF_LEASE_EXPIRED);
  assert_int_equal(told.lease_asked, 23);
  assert_int_equal(items[1].remote_block, 13);
  its_host->read_progress(its_host->context, 31);
  assert_int_equal(told.progressed, 31);
  its_host->connection(its_host->context, KVF_PROTOCOL);
  assert_int_equal(told.connection_why, KVF_PROTOCOL);
  its_host->log(its_host->context, KVF_LOG_WARN, "a line");
  assert_int_equal(told.level, KVF_LOG_WARN);
  assert_string_equal(told.line, "a line");
}
