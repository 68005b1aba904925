/* Offers at a producer, asked for directly and in a session. */
#include "find_scene.h"

#include "core/core_state.h"
#include "wire/find_message.h"

#define RESERVED "control key=a-key-of-sixteen lease_ttl_ms=300 hold=dials"
#define PUBLISHED "published " RESERVED

SCENE(an_offer_is_found_by_its_prompt, PUBLISHED,
      "offer A\n"
      "ask 1 1 5 > none\n"
      "ask 1 1 4 > A\n"
      "finder P0 offers_made offers_given > 1; 1\n")

/* P3: a lease ends with the request that uses it. */
SCENE(an_offer_is_given_once, PUBLISHED,
      "offer A\n"
      "ask 1 1 4 > A\n"
      "ask 1 2 4 > none\n"
      "ask 2 1 4 > none\n"
      "finder P0 offers_given > 1\n")

/* Its answer may have been lost. */
SCENE(who_was_given_an_offer_may_ask_again, PUBLISHED,
      "offer A\n"
      "ask 1 1 4 > A\n" OFFER_B
      "ask 1 1 4 > A\n"
      "ask 1 1 5 > none\n" /* for the same prompt alone */
      "finder P0 offers_given > 1\n")

SCENE(equal_prompts_have_a_lease_each, PUBLISHED,
      "offer A\n" OFFER_B
      "ticket 4\n"
      "publish C\n"
      "offer C\n"
      "ask 1 1 4 > A\n" /* the oldest first */
      "ask 2 1 4 > B\n"
      "ask 1 2 4 > C\n"
      "ask 1 3 4 > none\n"
      "ask 2 1 4 > B\n")

/* At once, and for good. */
CLUSTER_TEST(an_offer_goes_with_its_lease)
{
  for (uint32_t given = 0; given < 2; given++) {
    cluster_open(PUBLISHED);
    scene(given ? "offer A\nask 1 1 4 > A\n" : "offer A\n");
    assert_int_equal(kvf_core_lease_end(c.p[0].core, c.now_ns, &c.tickets[0].lease), KVF_OK);
    scene(
        "ask 1 1 4 > none; P0 ends A: revoked\n"
        "finder P0 offers_open > 0\n"
        "ask 1 1 4 > none\n");
  }
}

/* Whether or not a tick has been. */
CLUSTER_TEST(an_offer_goes_when_its_lease_runs_out)
{
  cluster_open(PUBLISHED);
  scene(
      "offer A\n"
      "ticket 5\n"
      "publish B\n"
      "offer B\n"
      "ask 1 1 5 > B\n");
  c.now_ns += 301 * MS;
  scene(
      "ask 1 1 4 > none\n"
      "ask 1 1 5 > none\n"
      "+0 > P0 ends A: expired; P0 ends B: expired\n"
      "finder P0 offers_open > 0\n");
}

CLUSTER_TEST(a_younger_offer_takes_the_place_of_one_that_has_run_out)
{
  cluster_open(PUBLISHED);
  scene(
      "offer A\n"
      "+200\n" OFFER_B);
  c.now_ns += 101 * MS;
  scene("ask 1 1 4 > B\n");
}

SCENE(offers_go_with_the_memory, PUBLISHED,
      "offer A\n" OFFER_B
      "ask 1 1 4 > A\n"
      "clear P0 > P0 ends A: revoked; P0 ends B: revoked\n"
      "finder P0 offers_open > 0\n")

CLUSTER_TEST(only_what_is_published_is_offered)
{
  cluster_open(RESERVED);
  scene(
      "offer A > not_found\n" /* nothing is reserved on a rank */
      "publish A\n"
      "alter A token\n"
      "offer A > not_found\n"
      "alter A token\n");
  const uint32_t slot = c.tickets[0].lease.slot;
  c.tickets[0].lease.slot = UINT32_MAX;
  scene(
      "offer A > not_found\n"
      "finder P0 offers_open > 0\n");
  c.tickets[0].lease.slot = slot;
  scene(
      "offer A\n"
      "offer A > exists\n"
      "ask 1 1 4 > A\n"
      "offer A > exists\n" /* also when it has been given */
      "end A > P0 ends A: revoked\n"
      "offer A > not_found\n"
      "offer A D > not_found\n");
}

/* Its readers are told that it is not published yet, and try again. */
CLUSTER_TEST(what_is_incomplete_may_be_offered)
{
  cluster_open(RESERVED);
  const kvf_ticket *ticket = &c.tickets[0];
  const kvf_blocks list = {.ids = ticket->ids, .counts = ticket->counts, .groups = 1};
  assert_int_equal(kvf_core_publish(c.p[0].core, c.now_ns, &ticket->lease, &list, 1, 2, true), KVF_OK);
  scene(
      "offer A\n"
      "ask 1 1 4 > A\n");
}

/* While a fleet changes its key: sessions may have proved either. Given is given. */
SCENE(an_offer_is_found_under_the_key, "p.key=the-new-key-.... p.other=the-old-key-.... published",
      "offer A\n"
      "finder P0 offers_open > 1\n"
      "ask 1 1 4 > A\n"
      "ask 2 1 4 key=1 > none\n"
      "finder P0 offers_open > 1\n")
SCENE(an_offer_is_found_under_the_other_key, "p.key=the-new-key-.... p.other=the-old-key-.... published",
      "offer A\n"
      "ask 1 1 4 key=1 > A\n"
      "ask 2 1 4 > none\n"
      "finder P0 offers_open > 1\n")

/* P6 */
CLUSTER_TEST(texts_are_bounded_together)
{
  static char text[KVF_TICKET_BYTES_MAX];
  kvf_offers *offers = &finders[1].offers;
  cluster_open(PUBLISHED);
  offers->bytes = KVF_OFFERS_BYTES_MAX - sizeof(text) + 1; /* as if there were more */
  assert_int_equal(find_offer(&c.p[0], &c.tickets[0], text, sizeof(text)), KVF_NO_RESOURCE);
  assert_null(offers->by_slot);
  assert_int_equal(find_offer(&c.p[0], &c.tickets[0], text, sizeof(text) - 1), KVF_OK);
  assert_int_equal(offers->bytes, KVF_OFFERS_BYTES_MAX);
}

/* A slot's next lease is offered anew. */
CLUSTER_TEST(there_are_no_more_offers_than_slots)
{
  cluster_open(RESERVED);
  for (uint32_t i = 0; i < 1000; i++) {
    scene(
        "publish A\n"
        "offer A\n"
        "finder P0 offers_open > 1\n"
        "end A > P0 ends A: revoked\n");
    assert_int_equal(kvf_core_lease_release(c.p[0].core, c.tickets[0].lease.id), KVF_OK);
    c.tickets_count = 0;
    (void)cluster_ticket(0, 4);
  }
}

/* ---- in a session ---- */

static void send_find(uint64_t conn_id, uint64_t find_id, uint32_t blocks)
{
  const kvf_asker asker = find_asker(0, find_id, blocks, false);
  kvf_find_question question = {.id = find_id};
  uint8_t body[KVF_FIND_BYTES_MAX];
  size_t bytes = 0;
  memcpy(question.key, asker.key, sizeof(question.key));
  assert_int_equal(kvf_find_question_encode(&question, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(c.p[0].core, c.now_ns, conn_id, KVF_FRAME_FIND, body, bytes);
}

/* All that is sent, header and all. */
typedef struct answer {
  uint8_t frame[KVF_FRAME_HEADER_BYTES + KVF_FOUND_BYTES_MAX];
  size_t bytes;
} answer;

static void keep_answer(void *context, const kvf_core_output *output)
{
  answer *got = context;
  assert_true(output->bytes <= sizeof(got->frame));
  memcpy(got->frame, output->data, output->bytes);
  got->bytes = output->bytes;
}

static answer answer_to(uint64_t find_id, uint32_t blocks)
{
  answer got = {.bytes = 0};
  send_find(c.wires[0].producer_id, find_id, blocks);
  kvf_core_take_output(c.p[0].core, keep_answer, &got);
  return got;
}

/* P8: who asks does not learn why there is no ticket. */
CLUSTER_TEST(nothing_is_always_the_same_bytes)
{
  static answer others[3];
  cluster_open(PUBLISHED);
  scene(CONNECTED
        "offer A\n"
        "ask 1 1 4 > A\n");
  const answer unknown = answer_to(7, 5);
  assert_int_equal(unknown.bytes, KVF_FRAME_HEADER_BYTES + 9);
  others[0] = answer_to(7, 4); /* given to another one */
  scene(
      "ticket 6\n"
      "publish B\n"
      "offer B\n"
      "end B > P0 ends B: revoked\n");
  others[1] = answer_to(7, 6); /* ended */
  scene(
      "ticket 8\n"
      "publish C\n"
      "offer C\n");
  while (finders[1].counters.refused == 0) {
    (void)answer_to(8, 5);
  }
  others[2] = answer_to(7, 8); /* asked too often */
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(others[i].bytes, unknown.bytes);
    assert_memory_equal(others[i].frame, unknown.frame, unknown.bytes);
  }
  scene("finder P0 offers_given > 1\n");
}

CLUSTER_TEST(questions_have_a_budget)
{
  cluster_open(PUBLISHED);
  scene(CONNECTED "offer A\n");
  for (uint32_t i = 0; i < 2 * KVF_FINDS_PER_S; i++) {
    (void)answer_to(1, 5);
  }
  scene(
      "finder P0 finds_heard finds_refused > 1000; 1000\n"
      "+10\n");
  assert_true(answer_to(7, 4).bytes > KVF_FRAME_HEADER_BYTES + 9);
}

CLUSTER_TEST(who_only_checks_may_not_ask)
{
  cluster_open(PUBLISHED);
  scene(CONNECTED "offer A\n");
  c.p[0].core->sessions.by_id->role = KVF_ROLE_CHECK;
  send_find(c.wires[0].producer_id, 1, 4);
  scene(
      "stats P0 sessions_refused.protocol sessions_open > 1; 0; P0 hangs up on D\n"
      "finder P0 offers_given > 0\n");
}

CLUSTER_TEST(a_malformed_question_ends_the_session)
{
  const uint8_t cut[3] = {0};
  cluster_open(PUBLISHED);
  scene(CONNECTED "offer A\n");
  kvf_core_on_frame(c.p[0].core, c.now_ns, c.wires[0].producer_id, KVF_FRAME_FIND, cut, sizeof(cut));
  scene(
      "stats P0 sessions_refused.protocol sessions_open > 1; 0; P0 hangs up on D\n"
      "finder P0 finds_heard > 0\n");
}

/* P8: who has not proved the key is told nothing, and takes no offer. */
CLUSTER_TEST(a_stranger_is_not_answered)
{
  cluster_open(PUBLISHED);
  scene("offer A\n");
  send_find(cluster_accept(&c.p[0], 1), 1, 4);
  assert_int_equal(cluster_hang_ups(&c.p[0]), 1);
  assert_int_equal(c.stray.last.type, KVF_FRAME_REFUSED);
  scene(
      "stats P0 sessions_refused.protocol > 1\n"
      "finder P0 offers_given > 0\n");
}

/* P6: answers that nobody takes away do not heap up. */
CLUSTER_TEST(who_does_not_read_the_answers_is_hung_up_on)
{
  static char text[KVF_TICKET_BYTES_MAX];
  cluster_open(PUBLISHED);
  scene(CONNECTED "hold P0\n");
  memset(text, 'x', sizeof(text));
  assert_int_equal(find_offer(&c.p[0], &c.tickets[0], text, sizeof(text)), KVF_OK);
  const kvf_conn *conn = kvf_conns_find(&c.p[0].core->context.conns, c.wires[0].producer_id);
  for (uint32_t i = 0; i < 10 && c.p[0].core->sessions.by_id != NULL; i++) {
    send_find(conn->id, 1, 4);
    assert_true(conn->outbox_bytes <= KVF_OUTBOX_BYTES_MAX);
  }
  scene("stats P0 sessions_unread sessions_open > 1; 0\n");
}
