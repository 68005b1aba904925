/* Finds at a consumer, and a producer that answers them. */
#include "find_world.h"

/* A ticket for each number of blocks is one for another prompt. */
static kvf_ticket ticket;
static uint32_t ids[16];
static char text[KVF_TICKET_BYTES_MAX];
static size_t text_bytes;

static const kvf_address somewhere = {.ip = {[15] = 1}, .port = 81};

/* The consumer knows the producer's address as "p:80". */
static void open_with(const control_options *options)
{
  find_world_open(options);
  control_ticket(&ticket, ids, 4);
  assert_int_equal(kvf_core_add_static(consumer(), "p:80", &ticket.rank[0].address), KVF_OK);
}

static void open_unconnected(void)
{
  control_options options;
  control_options_init(&options);
  options.consumer_key = "a key of sixteen";
  options.producer_key = "a key of sixteen";
  options.control = true;
  open_with(&options);
}

/* Offers the ticket, or another one of so many blocks. */
static void offer(uint32_t blocks)
{
  if (blocks != ticket.counts[0]) {
    control_ticket(&ticket, ids, blocks);
  }
  control_publish(&ticket);
  assert_int_equal(kvf_ticket_encode(&ticket, &producer()->context.self.macs[0], text, sizeof(text), &text_bytes),
                   KVF_OK);
  assert_int_equal(offer_ticket(producer(), &ticket, text, text_bytes), KVF_OK);
}

static int open_world(__attribute__((unused)) void **state)
{
  open_unconnected();
  kvf_core_start(consumer(), world.now_ns);
  control_settle();
  control_dial(KVF_OK); /* who is it? */
  control_dial(KVF_OK);
  assert_int_equal(consumer()->peers.counters.handshakes, 1);
  return 0;
}

#define FIND_TEST(name) TEST_WITH(name, open_world, control_world_close)

static kvf_status start_at(uint32_t blocks, const char *at, uint32_t timeout_ms, uint64_t *id)
{
  const kvf_find_key key = key_of(blocks);
  kvf_status status = kvf_finds_start(&finders.consumer.finds, world.now_ns, &key, at, timeout_ms, 9, id);
  control_settle();
  return status;
}

static uint64_t start(uint32_t blocks)
{
  uint64_t id = 0;
  assert_int_equal(start_at(blocks, NULL, 0, &id), KVF_OK);
  return id;
}

/* What its event says; KVF_AGAIN: none has come. */
static kvf_status result_of(uint64_t id)
{
  kvf_event event;
  if (!kvf_core_next_event(consumer(), world.now_ns, &event)) {
    assert_false(kvf_core_has_event(consumer()));
    return KVF_AGAIN;
  }
  assert_int_equal(event.kind, KVF_EVENT_TICKET);
  assert_int_equal(event.id, id);
  assert_int_equal(event.user, 9);
  return event.u.found;
}

static kvf_status take(uint64_t id, size_t capacity)
{
  static char taken[KVF_TICKET_BYTES_MAX];
  size_t bytes = 77;
  kvf_status status = kvf_finds_take(&finders.consumer.finds, world.now_ns, id, taken, capacity, &bytes);
  if (status == KVF_OK) {
    assert_int_equal(bytes, text_bytes);
    assert_memory_equal(taken, text, bytes);
  } else {
    assert_int_equal(bytes, 77);
  }
  return status;
}

static const kvf_find_counters *counters(void)
{
  return &finders.consumer.finds.counters;
}

/* Nothing is kept of finds that are over, and no peer is held. */
static void assert_none(void)
{
  assert_null(finders.consumer.finds.by_id);
  assert_true(kvf_list_is_empty(&finders.consumer.guest.events));
  for (const kvf_peer *peer = consumer()->peers.by_key; peer != NULL; peer = peer->by_key.next) {
    assert_true(kvf_list_is_empty(&peer->guest.due) && kvf_list_is_empty(&peer->guest.asked));
    assert_true(peer->users <= 1); /* the option's */
  }
}

static kvf_peer *peer_at(const kvf_address *address, bool is_named)
{
  static const kvf_incarnation nobody = {0};
  for (kvf_peer *peer = consumer()->peers.by_key; peer != NULL; peer = peer->by_key.next) {
    if (peer->key.address.port == address->port &&
        is_named == (memcmp(&peer->key.incarnation, &nobody, sizeof(nobody)) != 0)) {
      return peer;
    }
  }
  fail_msg("no peer at port %u", address->port);
  return NULL;
}

/* ---- what is found ---- */

FIND_TEST(a_ticket_is_found)
{
  offer(4);
  const uint64_t id = start(4);
  assert_int_equal(take(id, sizeof(text)), KVF_NOT_FOUND); /* before its event */
  assert_int_equal(result_of(id), KVF_OK);
  assert_int_equal(result_of(id), KVF_AGAIN);
  assert_int_equal(take(id, text_bytes - 1), KVF_LIMIT);
  assert_int_equal(take(id, text_bytes), KVF_OK);
  assert_int_equal(take(id, sizeof(text)), KVF_NOT_FOUND);
  assert_int_equal(finders.producer.offers.counters.given, 1);
  assert_int_equal(counters()->over[kvf_status_index(KVF_OK)], 1);
  assert_none();
}

FIND_TEST(no_ticket_is_found)
{
  offer(4);
  const uint64_t id = start(5);
  assert_int_equal(result_of(id), KVF_NOT_FOUND);
  assert_int_equal(take(id, sizeof(text)), KVF_NOT_FOUND);
  assert_int_equal(counters()->over[kvf_status_index(KVF_NOT_FOUND)], 1);
  assert_none();
}

FIND_TEST(two_finds_have_two_tickets)
{
  offer(4);
  uint64_t first = start(4);
  assert_int_equal(result_of(first), KVF_OK);
  assert_int_equal(take(first, sizeof(text)), KVF_OK);
  assert_int_equal(result_of(start(4)), KVF_NOT_FOUND);
  control_ticket(&ticket, ids, 4);
  offer(4);
  uint64_t second = start(4);
  assert_int_equal(result_of(second), KVF_OK);
  assert_int_equal(take(second, sizeof(text)), KVF_OK);
  assert_none();
}

/* A rank's node, too, whether it has memory or not. */
CONTROL_TEST(ranks_find_as_well)
{
  control_options options;
  control_options_init(&options);
  open_with(&options);
  offer(4);
  const uint64_t id = start(4);
  control_dial(KVF_OK);
  control_dial(KVF_OK);
  assert_int_equal(result_of(id), KVF_OK);
  assert_int_equal(take(id, sizeof(text)), KVF_OK);
}

/* While a fleet changes its key: the ticket is sealed with one, the session has proved the other. */
CONTROL_TEST(is_found_while_the_key_changes)
{
  control_options options;
  control_options_init(&options);
  options.consumer_key = "the old key ....";
  options.producer_key = "the old key ....";
  options.producer_other_key = "the new key ....";
  for (int i = 0; i < 2; i++) {
    open_with(&options);
    offer(4);
    const uint64_t id = start(4);
    control_dial(KVF_OK);
    control_dial(KVF_OK);
    assert_int_equal(result_of(id), KVF_OK);
    options.consumer_key = "the new key ....";
    options.producer_key = "the new key ....";
    options.producer_other_key = "the old key ....";
  }
}

/* ---- who is asked ---- */

FIND_TEST(one_peer_is_asked_by_name_or_address)
{
  static const char *const names[] = {"p:80", "[::1]:80"};
  static const char *const others[] = {"p:81", "P:80", "[::1]:81", "[::2]:80", "127.0.0.1:80", ""};
  uint64_t id = 0;
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    assert_int_equal(start_at(4, names[i], 0, &id), KVF_OK);
    assert_int_equal(result_of(id), KVF_NOT_FOUND);
  }
  const uint64_t asked = counters()->asked;
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
    assert_int_equal(start_at(4, others[i], 0, &id), KVF_NOT_FOUND);
  }
  assert_int_equal(counters()->asked, asked);
  assert_none();
}

CONTROL_TEST(without_peers_nobody_is_asked)
{
  uint64_t id = 77;
  control_options options;
  control_options_init(&options);
  find_world_open(&options);
  assert_int_equal(start_at(4, NULL, 0, &id), KVF_NOT_FOUND);
  assert_int_equal(id, 77);
  assert_int_equal(consumer()->peers.counters.dials, 0);
  assert_none();
}

FIND_TEST(a_peer_with_two_names_is_asked_once)
{
  world.deaf = true;
  assert_int_equal(kvf_core_add_static(consumer(), "other:80", &ticket.rank[0].address), KVF_OK);
  consumer()->peers.static_peers[1].peer = consumer()->peers.static_peers[0].peer; /* as when it has been looked at */
  consumer()->peers.static_peers[1].peer->users++;
  (void)start(4);
  assert_int_equal(counters()->asked, 1);
  assert_int_equal(consumer()->peers.static_peers[0].peer->users, 3);
}

/* A find may be started as soon as there is a node. */
CONTROL_TEST(a_find_connects_by_itself)
{
  open_unconnected();
  offer(4);
  const uint64_t id = start(4);
  control_dial(KVF_OK);
  assert_int_equal(result_of(id), KVF_AGAIN);
  control_dial(KVF_OK);
  assert_int_equal(result_of(id), KVF_OK);
  assert_int_equal(take(id, sizeof(text)), KVF_OK);
  assert_none();
}

/* ---- who cannot be asked ---- */

CONTROL_TEST(who_is_down_is_not_waited_for)
{
  open_unconnected();
  uint64_t id = start(4);
  control_dial(KVF_PEER_DOWN);
  assert_int_equal(result_of(id), KVF_PEER_DOWN);
  id = start(4); /* its breaker is open */
  assert_int_equal(result_of(id), KVF_PEER_DOWN);
  assert_int_equal(counters()->over[kvf_status_index(KVF_PEER_DOWN)], 2);
  assert_none();
}

/* P8: nothing is asked of, or believed from, who does not have our key. */
CONTROL_TEST(who_has_another_key_is_not_asked)
{
  control_options options;
  control_options_init(&options);
  options.consumer_key = "a key of sixteen";
  options.producer_key = "another key here";
  open_with(&options);
  offer(4);
  const uint64_t id = start(4);
  control_dial(KVF_OK);
  assert_int_equal(result_of(id), KVF_HANDSHAKE_REFUSED);
  assert_int_equal(counters()->asked, 0);
  assert_int_equal(finders.producer.offers.counters.given, 0);
  assert_none();
}

/* Another peer is known, of which nobody knows yet that it is down; the first is connected. */
static uint64_t start_with_another(void)
{
  assert_int_equal(kvf_core_add_static(consumer(), "q:81", &somewhere), KVF_OK);
  const uint64_t id = start(4);
  assert_true(world.consumer.dial_wanted);
  return id;
}

static void refuse_dial(void)
{
  world.consumer.dial_wanted = false;
  kvf_core_on_dialed(consumer(), world.now_ns, world.consumer.dial_conn_id, KVF_PEER_DOWN);
  control_settle();
}

/* Nobody has it if those that can be asked have not. */
FIND_TEST(one_of_two_is_down_and_the_other_has_none)
{
  const uint64_t id = start_with_another();
  assert_int_equal(result_of(id), KVF_AGAIN); /* the other one may have it */
  refuse_dial();
  assert_int_equal(result_of(id), KVF_NOT_FOUND);
  assert_none();
}

FIND_TEST(the_first_ticket_is_taken)
{
  offer(4);
  const uint64_t id = start_with_another();
  assert_int_equal(result_of(id), KVF_OK); /* nobody waits for the other one */
  refuse_dial();
  assert_int_equal(result_of(id), KVF_AGAIN);
  assert_int_equal(take(id, sizeof(text)), KVF_OK);
  assert_none();
}

FIND_TEST(both_are_down)
{
  world.deaf = true;
  const uint64_t id = start_with_another();
  refuse_dial();
  assert_int_equal(result_of(id), KVF_AGAIN);
  control_cut();
  control_dial(KVF_PEER_DOWN);
  assert_int_equal(result_of(id), KVF_PEER_DOWN);
  assert_none();
}

/* The successor of a process may have the ticket. */
FIND_TEST(a_successor_is_asked)
{
  control_cut();
  producer()->context.self.incarnation.bytes[0] ^= 1; /* another process */
  offer(4);
  const uint64_t id = start(4);
  control_dial(KVF_OK);
  assert_int_equal(peer_at(&ticket.rank[0].address, true)->gone, KVF_PEER_RESTARTED);
  assert_int_equal(result_of(id), KVF_AGAIN);
  control_dial(KVF_OK); /* who is it? */
  control_dial(KVF_OK);
  assert_int_equal(result_of(id), KVF_OK);
  assert_int_equal(take(id, sizeof(text)), KVF_OK);
}

FIND_TEST(successors_without_end_are_not_asked)
{
  control_cut();
  const uint64_t id = start(4);
  for (int dials = 0; dials < 3; dials++) {
    producer()->context.self.incarnation.bytes[0] ^= 1;
    producer()->context.self.incarnation.bytes[1]++;
    control_dial(KVF_OK);
  }
  assert_int_equal(result_of(id), KVF_PEER_RESTARTED);
  assert_none();
}

/* ---- a connection that is lost ---- */

/* The answer was on its way: it is asked for again, and is the same. */
FIND_TEST(a_lost_answer_comes_again)
{
  offer(4);
  world.held = true;
  const uint64_t id = start(4);
  assert_int_equal(finders.producer.offers.counters.given, 1);
  control_cut();
  world.held = false;
  control_dial(KVF_OK);
  assert_int_equal(result_of(id), KVF_OK);
  assert_int_equal(take(id, sizeof(text)), KVF_OK);
  assert_int_equal(counters()->asked, 2);
  assert_int_equal(finders.producer.offers.counters.given, 1);
  assert_none();
}

/* Who closes the connection whenever he is asked. */
FIND_TEST(a_connection_that_is_lost_again_and_again_is_given_up)
{
  world.deaf = true;
  const uint64_t id = start(4);
  for (uint64_t i = 1; i < KVF_FIND_TRIES_MAX; i++) {
    assert_int_equal(counters()->asked, i);
    control_cut();
    assert_int_equal(result_of(id), KVF_AGAIN);
    control_dial(KVF_OK);
  }
  control_cut();
  assert_int_equal(result_of(id), KVF_PEER_DOWN);
  assert_false(world.consumer.dial_wanted);
  assert_int_equal(counters()->asked, KVF_FIND_TRIES_MAX);
  assert_none();
}

/* Those that have not been asked yet wait for the next connection. */
FIND_TEST(questions_that_wait_for_others_survive_their_connection)
{
  world.deaf = true;
  for (uint32_t i = 0; i < 3 * KVF_FINDS_IN_FLIGHT_MAX; i++) {
    (void)start(4);
  }
  assert_int_equal(counters()->asked, KVF_FINDS_IN_FLIGHT_MAX);
  control_cut();
  world.deaf = false;
  control_dial(KVF_OK);
  assert_int_equal(counters()->over[kvf_status_index(KVF_NOT_FOUND)], 3 * KVF_FINDS_IN_FLIGHT_MAX);
}

/* ---- time ---- */

FIND_TEST(a_find_has_a_timeout)
{
  offer(4);
  world.held = true;
  uint64_t id = 0;
  assert_int_equal(start_at(4, NULL, 300, &id), KVF_OK);
  control_advance(299);
  assert_int_equal(result_of(id), KVF_AGAIN);
  control_advance(2);
  assert_int_equal(result_of(id), KVF_DEADLINE);
  assert_none();
  world.held = false;
  control_settle(); /* the answer is late: its lease runs out */
  assert_int_equal(counters()->dropped, 1);
  assert_int_equal(result_of(start(5)), KVF_NOT_FOUND); /* the connection is as it was */
}

FIND_TEST(a_timeout_is_bounded)
{
  uint64_t id = 77;
  assert_int_equal(start_at(4, NULL, KVF_FIND_TIMEOUT_MS_MAX + 1, &id), KVF_INVALID);
  assert_int_equal(id, 77);
  world.held = true;
  assert_int_equal(start_at(4, NULL, 0, &id), KVF_OK);
  control_advance(consumer()->context.config.handshake_timeout_ms + 1);
  const kvf_status status = result_of(id); /* both clocks have run out */
  assert_true(status == KVF_DEADLINE || status == KVF_PEER_DOWN);
}

/* Before a long timeout has passed. */
FIND_TEST(who_does_not_answer_is_down)
{
  world.held = true;
  uint64_t id = 0;
  assert_int_equal(start_at(4, NULL, 60000, &id), KVF_OK);
  control_advance(1001);
  assert_int_equal(result_of(id), KVF_PEER_DOWN);
  assert_int_equal(consumer()->peers.counters.failures, 1);
  assert_none();
}

FIND_TEST(a_ticket_that_is_not_taken_is_forgotten)
{
  offer(4);
  const uint64_t id = start(4);
  control_advance(120000); /* the event waits for as long as it takes */
  assert_int_equal(result_of(id), KVF_OK);
  control_advance(KVF_FIND_KEPT_NS / MS - 1);
  assert_int_equal(take(id, 0), KVF_LIMIT); /* still there */
  control_advance(2);
  assert_int_equal(take(id, sizeof(text)), KVF_NOT_FOUND);
  assert_int_equal(counters()->forgotten, 1);
  assert_none();
}

/* ---- limits ---- */

/* P6 */
FIND_TEST(finds_are_bounded)
{
  uint64_t id = 0;
  world.held = true;
  for (uint32_t i = 0; i < KVF_FINDS_MAX; i++) {
    assert_int_equal(start_at(5, NULL, 0, &id), KVF_OK);
    assert_true(peer_at(&ticket.rank[0].address, true)->guest.in_flight <= KVF_FINDS_IN_FLIGHT_MAX);
  }
  assert_int_equal(counters()->asked, KVF_FINDS_IN_FLIGHT_MAX);
  assert_int_equal(start_at(5, NULL, 0, &id), KVF_NO_RESOURCE);
  world.held = false;
  control_settle();
  assert_int_equal(counters()->asked, KVF_FINDS_MAX); /* each in its turn */
  assert_int_equal(finders.producer.counters.refused, 0);
  assert_int_equal(start_at(5, NULL, 0, &id), KVF_NO_RESOURCE); /* their events wait */
  kvf_event event;
  for (uint64_t i = 1; i <= KVF_FINDS_MAX; i++) {
    assert_true(kvf_core_next_event(consumer(), world.now_ns, &event));
    assert_int_equal(event.id, i); /* in their order */
    assert_int_equal(event.u.found, KVF_NOT_FOUND);
  }
  assert_none();
  assert_int_equal(start_at(5, NULL, 0, &id), KVF_OK);
}

/* ---- answers that are none ---- */

static void send_found(const kvf_found *found)
{
  static uint8_t body[KVF_FOUND_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_found_encode(found, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(consumer(), world.now_ns, world.consumer.conn_id, KVF_FRAME_FOUND, body, bytes);
}

static void assert_hung_up(uint64_t failures)
{
  assert_int_equal(consumer()->peers.counters.failures, failures);
  assert_non_null(strstr(world.consumer.last_log, "protocol: malformed message"));
  assert_int_equal(peer_at(&ticket.rank[0].address, true)->state, KVF_PEER_IDLE);
}

/* P2, P8: who has the key may not answer what he likes either. */
FIND_TEST(a_ticket_of_another_prompt_is_not_told)
{
  offer(5);
  world.held = true;
  const uint64_t id = start(4);
  send_found(&(kvf_found){.id = id, .status = KVF_FOUND_TICKET, .text = text, .text_bytes = text_bytes});
  assert_hung_up(1);
  assert_int_equal(result_of(id), KVF_PROTOCOL);
  assert_none();
}

FIND_TEST(an_altered_ticket_is_not_told)
{
  offer(4);
  world.held = true;
  const uint64_t id = start(4);
  text[text_bytes / 2] ^= 1;
  send_found(&(kvf_found){.id = id, .status = KVF_FOUND_TICKET, .text = text, .text_bytes = text_bytes});
  assert_hung_up(1);
  assert_int_equal(result_of(id), KVF_PROTOCOL);
  assert_none();
}

FIND_TEST(an_answer_that_was_not_asked_for_ends_the_session)
{
  send_found(&(kvf_found){.id = 1});
  assert_hung_up(1);
}

FIND_TEST(a_malformed_answer_ends_the_session)
{
  static const uint8_t garbage[3] = {1, 2, 3};
  world.held = true;
  const uint64_t id = start(4);
  kvf_core_on_frame(consumer(), world.now_ns, world.consumer.conn_id, KVF_FRAME_FOUND, garbage, sizeof(garbage));
  assert_hung_up(1);
  control_settle();
  assert_int_equal(result_of(id), KVF_PROTOCOL); /* which has opened its breaker */
  assert_none();
}

/* An answer to another question than those that are open counts as one to a find that is over. */
FIND_TEST(an_answer_to_another_question_is_dropped)
{
  offer(4);
  world.held = true;
  const uint64_t id = start(4);
  send_found(&(kvf_found){.id = id + 1, .status = KVF_FOUND_TICKET, .text = text, .text_bytes = text_bytes});
  assert_int_equal(counters()->dropped, 1);
  assert_int_equal(result_of(id), KVF_AGAIN);
  send_found(&(kvf_found){.id = id, .status = KVF_FOUND_TICKET, .text = text, .text_bytes = text_bytes});
  assert_hung_up(1); /* one too many */
}
