/* A node's transports of one kind: opened, given memory, described and connected, all of them or none. */
#include "transport/rails.h"

#include "test.h"

#define COUNT 3
#define NEVER UINT32_MAX

typedef struct fake {
  kvf_transport base;
  kvf_link link;
  bool is_open;
  bool has_memory;
  bool is_linked;
  bool has_more; /* what assist() says */
  uint32_t assists;
  kvf_link_spec spec; /* of the last connect() */
  char theirs;        /* the peer's rail that it was for */
} fake;

static fake fakes[KVF_RAILS_MAX];
static uint32_t opened;
/* The one whose call fails, with this status. */
static uint32_t fails;
static kvf_status status;
static kvf_rails rails;
static char message[KVF_MESSAGE_BYTES_MAX];

static fake *fake_of(kvf_transport *transport)
{
  return (fake *)(void *)transport;
}

static kvf_status outcome(const fake *one)
{
  return (uint32_t)(one - fakes) == fails ? status : KVF_OK;
}

static kvf_status fake_open(const kvf_transport_config *config, const kvf_transport_host *host, kvf_transport **out,
                            char *text)
{
  fake *one = &fakes[opened];
  assert_int_equal(config->connections_max, (7 + config->tcp_streams - 1) / config->tcp_streams);
  assert_ptr_equal(host->context, &rails);
  (void)snprintf(text, KVF_MESSAGE_BYTES_MAX, "no rail %u", opened);
  one->is_open = outcome(one) == KVF_OK;
  opened += one->is_open;
  *out = &one->base;
  return outcome(one);
}

static void fake_close(kvf_transport *transport)
{
  assert_true(fake_of(transport)->is_open);
  fake_of(transport)->is_open = false;
}

static kvf_status fake_set_memory(kvf_transport *transport, const kvf_transport_memory *memory)
{
  assert_int_equal(memory->table_slots, 7);
  fake_of(transport)->has_memory = outcome(fake_of(transport)) == KVF_OK;
  return outcome(fake_of(transport));
}

static void fake_clear_memory(kvf_transport *transport)
{
  assert_true(fake_of(transport)->has_memory);
  fake_of(transport)->has_memory = false;
}

/* "A", "BB", "CCC" … */
static kvf_status fake_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes)
{
  const size_t i = (size_t)(fake_of(transport) - fakes);
  assert_true(capacity >= i + 1);
  memset(out, 'A' + (int)i, i + 1);
  *out_bytes = i + 1;
  return outcome(fake_of(transport));
}

static kvf_status fake_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  fake *one = fake_of(transport);
  assert_int_equal(spec->description_bytes, 1);
  one->spec = *spec;
  one->theirs = *(const char *)spec->description;
  one->link.transport = transport;
  one->is_linked = outcome(one) == KVF_OK;
  *out = &one->link;
  return outcome(one);
}

static void fake_disconnect(kvf_link *link)
{
  assert_true(fake_of(link->transport)->is_linked);
  fake_of(link->transport)->is_linked = false;
}

static bool fake_assist(kvf_transport *transport)
{
  fake_of(transport)->assists++;
  return fake_of(transport)->has_more;
}

static kvf_transport_ops ops = {.open = fake_open,
                                .close = fake_close,
                                .set_memory = fake_set_memory,
                                .clear_memory = fake_clear_memory,
                                .describe = fake_describe,
                                .connect = fake_connect,
                                .disconnect = fake_disconnect,
                                .assist = fake_assist};

static kvf_status open_rails(uint32_t count)
{
  const kvf_transport_config config = {.connections_max = 7, .tcp_streams = count};
  const kvf_transport_host host = {.context = &rails};
  opened = 0;
  return kvf_rails_open(&ops, &config, &host, &rails, message);
}

static void set_up(void)
{
  memset(fakes, 0, sizeof(fakes));
  fails = NEVER;
  status = KVF_SYSTEM;
  ops.has_rails = true;
  assert_int_equal(open_rails(COUNT), KVF_OK);
}

static void tear_down(void)
{
  kvf_rails_close(&rails);
  for (uint32_t i = 0; i < KVF_RAILS_MAX; i++) {
    assert_false(fakes[i].is_open || fakes[i].is_linked);
  }
}

#define RAILS_TEST(name) TEST_WITH(name, set_up, tear_down)

RAILS_TEST(as_many_as_asked_for_are_opened)
{
  const uint32_t counts[] = {1, 2, KVF_RAILS_MAX};
  for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
    kvf_rails_close(&rails);
    assert_int_equal(open_rails(counts[i]), KVF_OK);
    assert_int_equal(rails.count, counts[i]);
    assert_int_equal(opened, counts[i]);
    assert_ptr_equal(rails.each[counts[i] - 1], &fakes[counts[i] - 1].base);
  }
}

RAILS_TEST(all_or_none_are_opened)
{
  const char *const says[] = {"no rail 0", "no rail 1", "no rail 2"};
  kvf_rails_close(&rails);
  for (fails = 0; fails < COUNT; fails++) {
    status = fails == 1 ? KVF_TRANSFER_SETUP : KVF_SYSTEM;
    assert_int_equal(open_rails(COUNT), status);
    assert_string_equal(message, says[fails]);
    assert_int_equal(opened, fails);
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_false(fakes[i].is_open);
    }
  }
}

RAILS_TEST(all_or_none_have_the_memory)
{
  const kvf_transport_memory memory = {.table_slots = 7};
  for (fails = 0; fails <= COUNT; fails++) {
    assert_int_equal(kvf_rails_set_memory(&rails, &memory), fails < COUNT ? status : KVF_OK);
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_true(fakes[i].has_memory == (fails == COUNT));
    }
  }
  kvf_rails_clear_memory(&rails);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_false(fakes[i].has_memory);
  }
}

RAILS_TEST(its_description_is_those_of_all)
{
  const uint8_t expected[] = {COUNT, 1, 0, 'A', 2, 0, 'B', 'B', 3, 0, 'C', 'C', 'C'};
  uint8_t out[64];
  size_t bytes = 0;
  for (fails = 0; fails < COUNT; fails++) {
    assert_int_equal(kvf_rails_describe(&rails, out, sizeof(out), &bytes), status);
    assert_int_equal(bytes, 0);
  }
  assert_int_equal(kvf_rails_describe(&rails, out, sizeof(expected) - 1, &bytes), KVF_LIMIT);
  assert_int_equal(kvf_rails_describe(&rails, out, sizeof(expected), &bytes), KVF_OK);
  assert_int_equal(bytes, sizeof(expected));
  assert_memory_equal(out, expected, bytes);
}

/* To a peer of `theirs` rails, described as "a", "b", "c" … */
static kvf_status try_connect(uint64_t session_id, uint8_t theirs, kvf_link *parts[KVF_RAILS_MAX])
{
  static const kvf_region_layout remote = {64, 64, 9, 1, 1, 0, 0};
  uint8_t described[1 + 3 * KVF_RAILS_MAX] = {theirs};
  for (uint8_t i = 0; i < theirs; i++) {
    described[1 + 3 * i] = 1;
    described[3 + 3 * i] = (uint8_t)('a' + i);
  }
  const kvf_link_spec spec = {.user = 41,
                              .peer = {.port = 99},
                              .session_id = session_id,
                              .description = described,
                              .description_bytes = 1 + 3 * (size_t)theirs,
                              .remote = &remote,
                              .remote_count = 1};
  return kvf_rails_connect(&rails, &spec, parts);
}

static void connect_once(uint64_t session_id, uint8_t theirs)
{
  kvf_link *parts[KVF_RAILS_MAX];
  assert_int_equal(try_connect(session_id, theirs, parts), KVF_OK);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_ptr_equal(parts[i], &fakes[i].link);
    assert_in_range(fakes[i].theirs, 'a', 'a' + theirs - 1);
  }
  kvf_rails_disconnect(&rails, parts);
}

RAILS_TEST(parts_are_told_of_the_peer)
{
  connect_once(1234, COUNT);
  for (uint32_t i = 0; i < COUNT; i++) {
    assert_int_equal(fakes[i].spec.user, 41);
    assert_int_equal(fakes[i].spec.session_id, 1234);
    assert_int_equal(fakes[i].spec.peer.port, 99);
    assert_int_equal(fakes[i].spec.remote->blocks, 9);
  }
}

RAILS_TEST(ours_share_those_of_a_peer_that_has_fewer)
{
  const char first[COUNT][COUNT + 1] = {"aaa", "aba", "abc"}; /* then they move on, from one turn to the next */
  for (uint8_t theirs = 1; theirs <= COUNT; theirs++) {
    for (uint64_t session = 0; session < 4 * (uint64_t)COUNT; session++) {
      const uint32_t turn = theirs == COUNT ? 0 : (uint32_t)session / COUNT;
      connect_once(session, theirs);
      for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(fakes[i].theirs, first[theirs - 1][(i + turn) % theirs]);
      }
    }
  }
}

/* Whichever of ours they begin with: the core has `session` begin with session % COUNT. */
RAILS_TEST(sessions_take_turns_at_those_of_the_peer)
{
  for (uint8_t theirs = 1; theirs <= 5; theirs++) {
    uint32_t used[5] = {0};
    uint32_t begun[5] = {0};
    for (uint64_t session = 0; session < theirs * (uint64_t)COUNT; session++) {
      connect_once(session, theirs);
      begun[fakes[session % COUNT].theirs - 'a']++;
      for (uint32_t i = 0; i < COUNT; i++) {
        used[fakes[i].theirs - 'a']++;
        assert_true(theirs < COUNT || fakes[i].theirs != fakes[(i + 1) % COUNT].theirs);
      }
    }
    for (uint32_t i = 0; i < theirs; i++) {
      assert_true(begun[i] > 0);
      assert_true(theirs < COUNT || (begun[i] == COUNT && used[i] == COUNT * COUNT));
    }
  }
}

RAILS_TEST(all_or_none_are_connected)
{
  for (fails = 0; fails < COUNT; fails++) {
    kvf_link *parts[KVF_RAILS_MAX];
    status = fails == 0 ? KVF_TRANSFER_SETUP : KVF_NO_MEMORY;
    assert_int_equal(try_connect(0, COUNT, parts), status);
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_false(fakes[i].is_linked);
    }
  }
}

RAILS_TEST(a_malformed_description_is_no_way_to_a_peer)
{
  const uint8_t bad[] = {1, 1, 0, 'a', 'b'};
  const size_t lengths[] = {0, 3, 5};
  for (size_t i = 0; i < 3; i++) {
    const kvf_link_spec spec = {.description = bad, .description_bytes = lengths[i]};
    kvf_link *parts[KVF_RAILS_MAX];
    assert_int_equal(kvf_rails_connect(&rails, &spec, parts), KVF_PROTOCOL);
  }
  assert_int_equal(fakes[0].theirs, 0);
}

RAILS_TEST(assist_asks_all)
{
  assert_false(kvf_rails_assist(&rails));
  for (uint32_t k = 0; k < COUNT; k++) {
    fakes[k].has_more = true;
    assert_true(kvf_rails_assist(&rails));
    fakes[k].has_more = false;
    for (uint32_t i = 0; i < COUNT; i++) {
      assert_int_equal(fakes[i].assists, k + 2);
    }
  }
  ops.assist = NULL;
  assert_false(kvf_rails_assist(&rails));
  ops.assist = fake_assist;
}

/* Of a kind that has no rails there is one, and it is described as it says. */
RAILS_TEST(one_alone_is_what_it_is)
{
  uint8_t out[64];
  size_t bytes = 0;
  kvf_link *parts[KVF_RAILS_MAX];
  const kvf_link_spec spec = {.session_id = 8, .description = "x", .description_bytes = 1};
  kvf_rails_close(&rails);
  ops.has_rails = false;
  opened = 0;
  const kvf_transport_config config = {.connections_max = 7, .tcp_streams = 1};
  assert_int_equal(kvf_rails_open(&ops, &config, &(kvf_transport_host){.context = &rails}, &rails, message), KVF_OK);
  assert_int_equal(rails.count, 1);
  assert_int_equal(kvf_rails_describe(&rails, out, sizeof(out), &bytes), KVF_OK);
  assert_int_equal(bytes, 1);
  assert_int_equal(out[0], 'A');
  assert_int_equal(kvf_rails_connect(&rails, &spec, parts), KVF_OK);
  assert_int_equal(fakes[0].theirs, 'x');
  kvf_rails_disconnect(&rails, parts);
}
