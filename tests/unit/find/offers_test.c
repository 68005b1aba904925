/* Offers at a producer, asked for directly and in a session. */
#include "find_world.h"

/* A ticket for each number of blocks is one for another prompt. */
static kvf_ticket tickets[8];
static uint32_t ids[8][16];

static void open_world(uint32_t lease_ttl_ms)
{
  control_options options;
  control_options_init(&options);
  options.consumer_key = "a key of sixteen";
  options.producer_key = "a key of sixteen";
  options.config.lease_ttl_ms = lease_ttl_ms;
  find_world_open(&options);
}

static kvf_status offer(const kvf_ticket *ticket, const char *text)
{
  return offer_ticket(producer(), ticket, text, strlen(text));
}

/* Makes, publishes and offers the i-th ticket, of so many blocks. */
static const kvf_lease *offer_new(uint32_t i, uint32_t blocks, const char *text)
{
  control_ticket(&tickets[i], ids[i], blocks);
  control_publish(&tickets[i]);
  assert_int_equal(offer(&tickets[i], text), KVF_OK);
  return &tickets[i].lease;
}

static int set_up(__attribute__((unused)) void **state)
{
  open_world(300);
  (void)offer_new(0, 4, "the ticket");
  return 0;
}

#define OFFER_TEST(name) TEST_WITH(name, set_up, control_world_close)

static kvf_asker asker_of(uint8_t who, uint64_t find_id, uint32_t blocks, const kvf_mac *mac)
{
  const kvf_find_key key = key_of(blocks);
  kvf_asker asker = {.find_id = find_id};
  asker.incarnation.bytes[0] = who;
  assert_int_equal(kvf_find_key_seal(&key, mac, asker.key), KVF_OK);
  return asker;
}

/* What is given to this consumer's find of the prompt of so many blocks; "": nothing. */
static const char *ask(uint8_t who, uint64_t find_id, uint32_t blocks)
{
  static char text[64];
  const kvf_asker asker = asker_of(who, find_id, blocks, &producer()->context.self.macs[0]);
  const kvf_offer *given = kvf_offers_take(&finders.producer.offers, world.now_ns, &asker);
  (void)snprintf(text, sizeof(text), "%.*s", given == NULL ? 0 : (int)given->text_bytes,
                 given == NULL ? "" : given->text);
  return text;
}

static uint32_t count(void)
{
  return HASH_CNT(by_slot, finders.producer.offers.by_slot);
}

/* Nothing is kept of an offer that has gone. */
static void assert_none(void)
{
  assert_int_equal(count(), 0);
  assert_int_equal(finders.producer.offers.bytes, 0);
  assert_null(finders.producer.offers.buckets);
  assert_null(finders.producer.offers.by_asker);
}

OFFER_TEST(an_offer_is_found_by_its_prompt)
{
  assert_string_equal(ask(1, 1, 5), "");
  assert_string_equal(ask(1, 1, 4), "the ticket");
  assert_int_equal(finders.producer.offers.counters.made, 1);
  assert_int_equal(finders.producer.offers.counters.given, 1);
}

/* P3: a lease ends with the request that uses it. */
OFFER_TEST(an_offer_is_given_once)
{
  assert_string_equal(ask(1, 1, 4), "the ticket");
  assert_string_equal(ask(1, 2, 4), "");
  assert_string_equal(ask(2, 1, 4), "");
  assert_int_equal(finders.producer.offers.counters.given, 1);
}

/* Its answer may have been lost. */
OFFER_TEST(who_was_given_an_offer_may_ask_again)
{
  assert_string_equal(ask(1, 1, 4), "the ticket");
  (void)offer_new(1, 4, "another");
  assert_string_equal(ask(1, 1, 4), "the ticket");
  assert_string_equal(ask(1, 1, 5), ""); /* for the same prompt alone */
  assert_int_equal(finders.producer.offers.counters.given, 1);
}

OFFER_TEST(equal_prompts_have_a_lease_each)
{
  (void)offer_new(1, 4, "the second");
  (void)offer_new(2, 4, "the third");
  assert_string_equal(ask(1, 1, 4), "the ticket"); /* the oldest first */
  assert_string_equal(ask(2, 1, 4), "the second");
  assert_string_equal(ask(1, 2, 4), "the third");
  assert_string_equal(ask(1, 3, 4), "");
  assert_string_equal(ask(2, 1, 4), "the second");
}

OFFER_TEST(an_offer_goes_with_its_lease)
{
  for (uint32_t given = 0; given < 2; given++) {
    const kvf_lease *lease = given == 0 ? &tickets[0].lease : offer_new(1, 4, "the ticket");
    if (given) {
      assert_string_equal(ask(1, 1, 4), "the ticket");
    }
    assert_int_equal(kvf_core_lease_end(producer(), world.now_ns, lease), KVF_OK);
    assert_string_equal(ask(1, 1, 4), ""); /* at once */
    control_settle();
    assert_none();
    assert_string_equal(ask(1, 1, 4), "");
  }
}

/* Whether or not a tick has been. */
OFFER_TEST(an_offer_goes_when_its_lease_runs_out)
{
  (void)offer_new(1, 5, "another");
  assert_string_equal(ask(1, 1, 5), "another");
  world.now_ns += 301 * MS;
  assert_string_equal(ask(1, 1, 4), "");
  assert_string_equal(ask(1, 1, 5), "");
  kvf_core_tick(producer(), world.now_ns);
  control_settle();
  assert_none();
}

OFFER_TEST(a_younger_offer_takes_the_place_of_one_that_has_run_out)
{
  world.now_ns += 200 * MS;
  (void)offer_new(1, 4, "the younger");
  world.now_ns += 101 * MS;
  assert_string_equal(ask(1, 1, 4), "the younger");
}

OFFER_TEST(offers_go_with_the_memory)
{
  (void)offer_new(1, 4, "another");
  assert_string_equal(ask(1, 1, 4), "the ticket");
  assert_true(kvf_core_clear_memory(producer(), world.now_ns));
  control_settle();
  assert_none();
}

CONTROL_TEST(only_what_is_published_is_offered)
{
  open_world(300);
  control_ticket(&tickets[0], ids[0], 4);
  assert_int_equal(offer(&tickets[0], "x"), KVF_NOT_FOUND); /* nothing is reserved on a rank */
  control_publish(&tickets[0]);
  kvf_ticket other = tickets[0];
  other.lease.token[0] ^= 1;
  assert_int_equal(offer(&other, "x"), KVF_NOT_FOUND);
  other = tickets[0];
  other.lease.slot = UINT32_MAX;
  assert_int_equal(offer(&other, "x"), KVF_NOT_FOUND);
  assert_none();
  assert_int_equal(offer(&tickets[0], "x"), KVF_OK);
  assert_int_equal(offer(&tickets[0], "x"), KVF_EXISTS);
  assert_string_equal(ask(1, 1, 4), "x");
  assert_int_equal(offer(&tickets[0], "x"), KVF_EXISTS); /* also when it has been given */
  assert_int_equal(kvf_core_lease_end(producer(), world.now_ns, &tickets[0].lease), KVF_OK);
  assert_int_equal(offer(&tickets[0], "x"), KVF_NOT_FOUND);
  assert_int_equal(offer_ticket(&world.consumer.core, &tickets[0], "x", 1), KVF_NOT_FOUND);
}

/* Its readers are told that it is not published yet, and try again. */
CONTROL_TEST(what_is_incomplete_may_be_offered)
{
  open_world(300);
  control_ticket(&tickets[0], ids[0], 4);
  const kvf_blocks list = {.ids = ids[0], .counts = tickets[0].counts, .groups = 1};
  assert_int_equal(kvf_core_publish(producer(), world.now_ns, &tickets[0].lease, &list, 1, 2, true), KVF_OK);
  assert_int_equal(offer(&tickets[0], "early"), KVF_OK);
  assert_string_equal(ask(1, 1, 4), "early");
}

/* While a fleet changes its key: sessions may have proved either. */
CONTROL_TEST(an_offer_is_found_under_either_key)
{
  for (uint32_t i = 0; i < 2; i++) {
    control_options options;
    control_options_init(&options);
    options.producer_key = "the new key ....";
    options.producer_other_key = "the old key ....";
    find_world_open(&options);
    (void)offer_new(0, 4, "the ticket");
    assert_int_equal(producer()->context.self.macs_count, 2);
    assert_int_equal(HASH_CNT(by_key, finders.producer.offers.buckets), 2);
    const kvf_asker asker = asker_of(1, 1, 4, &producer()->context.self.macs[i]);
    const kvf_asker other = asker_of(2, 1, 4, &producer()->context.self.macs[1 - i]);
    assert_non_null(kvf_offers_take(&finders.producer.offers, world.now_ns, &asker));
    assert_null(kvf_offers_take(&finders.producer.offers, world.now_ns, &other)); /* given is given */
    assert_null(finders.producer.offers.buckets);
  }
}

/* P6 */
OFFER_TEST(texts_are_bounded_together)
{
  static char text[KVF_TICKET_BYTES_MAX];
  kvf_offers *offers = &finders.producer.offers;
  offers->bytes = KVF_OFFERS_BYTES_MAX - sizeof(text) + 1; /* as if there were more */
  control_ticket(&tickets[1], ids[1], 4);
  control_publish(&tickets[1]);
  assert_int_equal(offer_ticket(producer(), &tickets[1], text, sizeof(text)), KVF_NO_RESOURCE);
  assert_int_equal(count(), 1);
  assert_int_equal(offer_ticket(producer(), &tickets[1], text, sizeof(text) - 1), KVF_OK);
  assert_int_equal(offers->bytes, KVF_OFFERS_BYTES_MAX);
}

/* A slot's next lease is offered anew. */
OFFER_TEST(there_are_no_more_offers_than_slots)
{
  kvf_event event;
  for (uint32_t i = 0; i < 1000; i++) {
    const kvf_lease lease = tickets[0].lease;
    assert_int_equal(kvf_core_lease_end(producer(), world.now_ns, &lease), KVF_OK);
    control_settle();
    assert_true(kvf_core_next_event(producer(), world.now_ns, &event));
    assert_int_equal(kvf_core_lease_release(producer(), lease.id), KVF_OK);
    (void)offer_new(0, 4, "the next");
    assert_int_equal(count(), 1);
  }
}

/* ---- in a session ---- */

static kvf_conn *connect_both(void)
{
  kvf_peer *peer;
  kvf_peers *peers = &world.consumer.core.peers;
  assert_int_equal(kvf_peers_acquire(peers, &tickets[0].rank[0].address, &tickets[0].rank[0].incarnation, &peer),
                   KVF_OK);
  kvf_peers_want_open(peers, world.now_ns, peer);
  control_settle();
  control_dial(KVF_OK);
  assert_int_equal(HASH_CNT(by_id, producer()->sessions.by_id), 1);
  return kvf_conns_find(&producer()->context.conns, world.producer.conn_id);
}

static void send_find(const kvf_conn *conn, uint64_t find_id, uint32_t blocks)
{
  const kvf_asker asker = asker_of(0, find_id, blocks, &producer()->context.self.macs[0]);
  kvf_find_question question = {.id = find_id};
  uint8_t body[KVF_FIND_BYTES_MAX];
  size_t bytes = 0;
  memcpy(question.key, asker.key, sizeof(question.key));
  assert_int_equal(kvf_find_question_encode(&question, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(producer(), world.now_ns, conn->id, KVF_FRAME_FIND, body, bytes);
}

typedef struct answer {
  uint8_t frame[64];
  size_t bytes;
} answer;

/* All that is sent, header and all. */
static answer answer_to(kvf_conn *conn, uint64_t find_id, uint32_t blocks)
{
  answer got = {.bytes = 0};
  send_find(conn, find_id, blocks);
  assert_true(conn->outbox_bytes <= sizeof(got.frame));
  got.bytes = conn->outbox_bytes;
  memcpy(got.frame, conn->outbox, got.bytes);
  kvf_conns_taken(conn);
  return got;
}

/* P8: who asks does not learn why there is no ticket. */
OFFER_TEST(nothing_is_always_the_same_bytes)
{
  kvf_conn *conn = connect_both();
  const answer unknown = answer_to(conn, 7, 5);
  assert_int_equal(unknown.bytes, KVF_FRAME_HEADER_BYTES + 9);
  answer others[3];
  assert_string_equal(ask(1, 1, 4), "the ticket");
  others[0] = answer_to(conn, 7, 4); /* given to another one */
  const kvf_lease *lease = offer_new(1, 6, "another");
  assert_int_equal(kvf_core_lease_end(producer(), world.now_ns, lease), KVF_OK);
  others[1] = answer_to(conn, 7, 6); /* ended */
  (void)offer_new(2, 8, "a third");
  while (finders.producer.counters.refused == 0) {
    (void)answer_to(conn, 8, 5);
  }
  others[2] = answer_to(conn, 7, 8); /* asked too often */
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(others[i].bytes, unknown.bytes);
    assert_memory_equal(others[i].frame, unknown.frame, unknown.bytes);
  }
  assert_int_equal(finders.producer.offers.counters.given, 1);
}

OFFER_TEST(questions_have_a_budget)
{
  kvf_conn *conn = connect_both();
  for (uint32_t i = 0; i < 2 * KVF_FINDS_PER_S; i++) {
    (void)answer_to(conn, 1, 5);
  }
  assert_int_equal(finders.producer.counters.heard, KVF_FINDS_PER_S);
  assert_int_equal(finders.producer.counters.refused, KVF_FINDS_PER_S);
  world.now_ns += 10 * MS;
  assert_true(answer_to(conn, 7, 4).bytes > KVF_FRAME_HEADER_BYTES + 9);
}

OFFER_TEST(who_only_checks_may_not_ask)
{
  kvf_conn *conn = connect_both();
  conn->session->role = KVF_ROLE_CHECK;
  send_find(conn, 1, 4);
  assert_int_equal(producer()->sessions.counters.protocol_errors, 1);
  assert_int_equal(HASH_CNT(by_id, producer()->sessions.by_id), 0);
  assert_int_equal(finders.producer.offers.counters.given, 0);
}

/* P8: who has not proved the key is told nothing, and takes no offer. */
OFFER_TEST(a_stranger_is_not_answered)
{
  uint64_t conn_id = 0;
  kvf_address from = {.port = 7};
  assert_int_equal(kvf_core_on_accepted(producer(), world.now_ns, from, &conn_id), KVF_OK);
  const kvf_conn *conn = kvf_conns_find(&producer()->context.conns, conn_id);
  send_find(conn, 1, 4);
  assert_true(conn->hanging_up);
  kvf_frame_header header;
  assert_int_equal(kvf_frame_header_decode(conn->outbox, KVF_FRAME_BODY_BYTES_MAX, &header), KVF_OK);
  assert_int_equal(header.type, KVF_FRAME_REFUSED);
  assert_int_equal(finders.producer.offers.counters.given, 0);
  assert_int_equal(producer()->sessions.counters.protocol_errors, 1);
}

/* P6: answers that nobody takes away do not heap up. */
OFFER_TEST(who_does_not_read_the_answers_is_hung_up_on)
{
  static char text[KVF_TICKET_BYTES_MAX];
  const kvf_conn *conn = connect_both();
  memset(text, 'x', sizeof(text));
  control_ticket(&tickets[1], ids[1], 5);
  control_publish(&tickets[1]);
  assert_int_equal(offer_ticket(producer(), &tickets[1], text, sizeof(text)), KVF_OK);
  for (uint32_t i = 0; i < 10 && HASH_CNT(by_id, producer()->sessions.by_id) > 0; i++) {
    send_find(conn, 1, 5);
    assert_true(conn->outbox_bytes <= KVF_OUTBOX_BYTES_MAX);
  }
  assert_int_equal(HASH_CNT(by_id, producer()->sessions.by_id), 0);
  assert_int_equal(producer()->sessions.counters.unread, 1);
}
