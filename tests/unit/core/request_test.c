#include "core/request.h"
#include "base/status.h"
#include "control_world.h"
#include "test.h"
#include "wire/lease_message.h"

static kvf_ticket ticket;
static uint32_t ids[16];

static void open_world(kvf_policy policy, uint32_t ttl_ms)
{
  control_options options;
  control_options_init(&options);
  options.control = true;
  options.config.policy = policy;
  options.config.lease_ttl_ms = ttl_ms;
  control_world_open(&options);
  control_ticket(&ticket, ids, 4);
}

static uint64_t open_request(void)
{
  uint64_t id = 0;
  assert_int_equal(
      kvf_requests_open(&world.consumer.core.requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                        &ticket.prompt, NULL, 5, &id, NULL),
      KVF_OK);
  control_settle();
  return id;
}

static uint32_t live(void)
{
  return world.producer.core.leases.live;
}

static bool next_verdict(kvf_event *event)
{
  bool got = kvf_core_next_event(&world.consumer.core, world.now_ns, event);
  control_settle();
  return got;
}

/* The only rank is released, and so is the request. */
static void let_go(uint64_t id)
{
  kvf_event event;
  assert_int_equal(kvf_requests_released(&world.consumer.core.requests, world.now_ns, id, 1), KVF_OK);
  assert_true(next_verdict(&event));
  assert_int_equal(event.kind, KVF_EVENT_REQUEST_RELEASED);
  assert_int_equal(event.id, id);
  assert_int_equal(event.user, 5);
  assert_false(next_verdict(&event));
}

static int set_up(__attribute__((unused)) void **state)
{
  open_world(KVF_POLICY_RECOMPUTE, 30000);
  return 0;
}

#define WORLD_TEST(name) TEST_WITH(name, set_up, control_world_close)

CONTROL_TEST(renews_while_it_waits)
{
  open_world(KVF_POLICY_RECOMPUTE, 300);
  control_publish(&ticket);
  (void)open_request();
  control_dial(KVF_OK);
  for (int i = 0; i < 20; i++) {
    control_advance(90);
  }
  assert_int_equal(live(), 1);
  world.held = true; /* and without its renewals the lease runs out */
  control_cut();
  control_advance(301);
  assert_int_equal(live(), 0);
}

WORLD_TEST(decides_once_when_all_ranks_are_in)
{
  kvf_event event;
  control_publish(&ticket);
  uint64_t id = open_request();
  control_dial(KVF_OK);
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_report report = {.request_id = id, .ranks_mask = 1, .blocks = 4, .prefix = 3, .status = KVF_TRANSFER_FAILED};
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_INVALID); /* has not begun */
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_OK);
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_EXISTS);
  report.prefix = 5;
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_INVALID);
  report.prefix = 3;
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_OK);
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_NOT_FOUND);
  control_settle();
  assert_int_equal(live(), 0); /* the producer has its blocks back */
  assert_true(next_verdict(&event));
  assert_int_equal(event.kind, KVF_EVENT_VERDICT);
  assert_int_equal(event.user, 5);
  assert_int_equal(event.u.verdict.action, KVF_ACTION_RECOMPUTE);
  assert_int_equal(event.u.verdict.keep_tokens, 48);
  assert_int_equal(event.u.verdict.recompute_tokens, 16);
  assert_false(next_verdict(&event));
  let_go(id);
  assert_int_equal(HASH_CNT(by_id, requests->attachments.by_id), 0);
}

/* P7: the engine says from which length on a prefix is of use to all its groups. */
WORLD_TEST(short_prefixes_are_not_kept)
{
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_request_options options = kvf_requests_options(requests, NULL);
  for (uint32_t more = 0; more < 2; more++) {
    kvf_event event;
    uint64_t id = 0;
    options.keep_from_tokens = 48 + more;
    const kvf_sources sources = {.count = 1, .tickets = {&ticket}};
    assert_int_equal(kvf_requests_open(requests, world.now_ns, &sources, &ticket.prompt, &options, 5, &id, NULL),
                     KVF_OK);
    assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_OK);
    const kvf_report report = {.request_id = id, .ranks_mask = 1, .blocks = 4, .prefix = 3, .status = KVF_DEADLINE};
    assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_OK);
    assert_true(next_verdict(&event));
    assert_int_equal(event.u.verdict.keep_tokens, more > 0 ? 0 : 48);
    assert_int_equal(event.u.verdict.recompute_tokens, more > 0 ? 64 : 16);
    let_go(id);
  }
}

/* A verdict that sends the client elsewhere leaves the lease to whom it goes to. */
CONTROL_TEST(retryable_failure_detaches)
{
  kvf_event event;
  open_world(KVF_POLICY_FAIL, 300);
  control_publish(&ticket);
  uint64_t id = open_request();
  control_dial(KVF_OK);
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_report report = {.request_id = id, .ranks_mask = 1, .blocks = 4, .status = KVF_PEER_DOWN};
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_OK);
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_OK);
  control_settle();
  assert_true(next_verdict(&event));
  assert_in_range(event.u.verdict.retry_after_ms, 500, 1500);
  let_go(id);
  assert_int_equal(HASH_CNT(by_id, requests->attachments.by_id), 0); /* the producer has heard it */
  assert_int_equal(live(), 1);
  id = open_request();
  report = (kvf_report){.request_id = id, .ranks_mask = 1, .blocks = 4, .status = KVF_LIMIT}; /* nobody can mend it */
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_OK);
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_OK);
  control_settle();
  assert_true(next_verdict(&event));
  assert_int_equal(event.u.verdict.retry_after_ms, 0);
  assert_int_equal(live(), 0);
  assert_int_equal(world.producer.core.leases.counters.ended[KVF_LEASE_END_ABANDONED], 1);
}

CONTROL_TEST(detached_request_leaves_its_lease_until_it_runs_out)
{
  open_world(KVF_POLICY_RECOMPUTE, 300);
  control_publish(&ticket);
  uint64_t id = open_request();
  control_dial(KVF_OK);
  kvf_requests *requests = &world.consumer.core.requests;
  assert_int_equal(kvf_requests_cancel(requests, world.now_ns, id, KVF_FINISH_DETACHED), KVF_OK);
  assert_int_equal(kvf_requests_cancel(requests, world.now_ns, id, KVF_FINISH_ABORTED), KVF_NOT_FOUND);
  control_settle();
  assert_int_equal(HASH_CNT(by_id, requests->attachments.by_id), 0);
  assert_int_equal(requests->counters.detached, 1);
  assert_int_equal(requests->counters.cancelled, 0);
  control_advance(290);
  assert_int_equal(live(), 1);
  control_advance(20);
  assert_int_equal(live(), 0);
  assert_int_equal(world.producer.core.leases.counters.ended[KVF_LEASE_END_EXPIRED], 1);
}

CONTROL_TEST(fails_by_policy)
{
  kvf_event event;
  open_world(KVF_POLICY_FAIL, 30000);
  uint64_t id = open_request();
  kvf_report report = {.request_id = id, .ranks_mask = 1, .blocks = 4, .status = KVF_LEASE_EXPIRED};
  assert_int_equal(kvf_requests_begin(&world.consumer.core.requests, world.now_ns, id), KVF_OK);
  assert_int_equal(kvf_requests_report(&world.consumer.core.requests, world.now_ns, &report), KVF_OK);
  assert_true(next_verdict(&event));
  assert_int_equal(event.u.verdict.action, KVF_ACTION_FAIL);
  assert_int_equal(event.u.verdict.status, KVF_LEASE_EXPIRED);
}

/* There is no load, so nothing of it is good; policy, budget and counters are those of a load. */
CONTROL_TEST(refused_tickets_follow_the_policy)
{
  const kvf_request_options own = {.policy = KVF_POLICY_AUTO, .auto_max_recompute_tokens = 33};
  open_world(KVF_POLICY_FAIL, 30000);
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_verdict verdict = kvf_requests_refused(requests, world.now_ns, KVF_BAD_TICKET, 33, NULL);
  assert_int_equal(verdict.action, KVF_ACTION_FAIL);
  assert_int_equal(verdict.status, KVF_BAD_TICKET);
  assert_in_range(verdict.retry_after_ms, 500, 1500);
  assert_int_equal(requests->counters.verdicts[KVF_ACTION_FAIL], 1);
  verdict = kvf_requests_refused(requests, world.now_ns, KVF_BAD_TICKET, 33, &own);
  assert_int_equal(verdict.action, KVF_ACTION_RECOMPUTE);
  assert_int_equal(verdict.keep_tokens, 0);
  assert_int_equal(verdict.recompute_tokens, 33);
  assert_int_equal(requests->counters.recomputed_tokens[kvf_status_index(KVF_BAD_TICKET)], 33);
  verdict = kvf_requests_refused(requests, world.now_ns, KVF_BAD_TICKET, 34, &own);
  assert_int_equal(verdict.action, KVF_ACTION_FAIL);
  verdict = kvf_requests_refused(requests, world.now_ns, KVF_LIMIT, 33, &own); /* a caller's mistake: not safe */
  assert_int_equal(verdict.action, KVF_ACTION_FAIL);
  assert_int_equal(verdict.retry_after_ms, 0);
}

/* P2, P7: a rank that never reports. */
CONTROL_TEST(silent_rank_is_lost_at_the_deadline)
{
  kvf_event event;
  open_world(KVF_POLICY_RECOMPUTE, 600000);
  uint64_t id = open_request();
  assert_int_equal(kvf_requests_begin(&world.consumer.core.requests, world.now_ns, id), KVF_OK);
  control_advance(34999);
  assert_false(next_verdict(&event));
  control_advance(2);
  assert_true(next_verdict(&event));
  assert_int_equal(event.u.verdict.status, KVF_RANK_LOST);
  assert_int_equal(event.u.verdict.action, KVF_ACTION_FAIL); /* its blocks are quarantined */
  assert_true(next_verdict(&event));
  assert_int_equal(event.kind, KVF_EVENT_REQUEST_STUCK);
}

/* P3, P5: the end is told until the producer has answered. */
WORLD_TEST(tells_the_end_until_it_is_heard)
{
  control_publish(&ticket);
  uint64_t id = open_request();
  control_dial(KVF_OK);
  control_cut();
  assert_int_equal(kvf_requests_cancel(&world.consumer.core.requests, world.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
  assert_int_equal(kvf_requests_cancel(&world.consumer.core.requests, world.now_ns, id, KVF_FINISH_ABORTED),
                   KVF_NOT_FOUND);
  control_settle();
  control_dial(KVF_PEER_DOWN);
  assert_int_equal(live(), 1);
  control_advance(510); /* the breaker's probe */
  control_dial(KVF_OK);
  control_advance(5000);
  assert_int_equal(live(), 0);
  assert_int_equal(HASH_CNT(by_id, world.consumer.core.requests.attachments.by_id), 0);
}

CONTROL_TEST(gives_up_when_the_lease_must_be_over)
{
  open_world(KVF_POLICY_RECOMPUTE, 300);
  uint64_t id = open_request();
  control_dial(KVF_PEER_DOWN);
  assert_int_equal(kvf_requests_cancel(&world.consumer.core.requests, world.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
  control_advance(440);
  assert_int_equal(HASH_CNT(by_id, world.consumer.core.requests.attachments.by_id), 1);
  control_advance(20);
  assert_int_equal(HASH_CNT(by_id, world.consumer.core.requests.attachments.by_id), 0);
  assert_int_equal(world.consumer.core.requests.attachments.counters.finishes_given_up, 1);
}

/* The engine may take its time with the verdict: a producer that has answered is not given up for that. */
CONTROL_TEST(heard_end_is_not_given_up)
{
  kvf_event event;
  open_world(KVF_POLICY_RECOMPUTE, 300);
  control_publish(&ticket);
  uint64_t id = open_request();
  control_dial(KVF_OK);
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_report report = {.request_id = id, .ranks_mask = 1, .blocks = 4, .prefix = 4};
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_OK);
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_OK);
  control_settle();
  assert_int_equal(live(), 0);
  for (int i = 0; i < 10; i++) {
    control_advance(100);
  }
  assert_int_equal(requests->attachments.counters.finishes_given_up, 0);
  assert_true(next_verdict(&event));
  let_go(id);
  assert_int_equal(HASH_CNT(by_id, requests->attachments.by_id), 0);
}

/* The answer to a renewal that was under way must not pass for the answer to the end. */
WORLD_TEST(late_renewal_answer_does_not_end_the_telling)
{
  control_publish(&ticket);
  uint64_t id = open_request();
  world.held = true;
  control_dial(KVF_OK);
  world.held = false;
  control_settle();
  control_advance(5000); /* renews */
  world.held = true;
  control_advance(5000); /* renews; the answer is held */
  const kvf_peer *peer = world.consumer.core.requests.attachments.by_id->ranks[0].peer;
  assert_int_equal(peer->state, KVF_PEER_READY);
  assert_int_equal(kvf_requests_cancel(&world.consumer.core.requests, world.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
  /* The finish is lost with the connection; the renewal's answer arrives before that shows. */
  kvf_lease_states states = {.seq = world.consumer.core.requests.attachments.next_seq - 3, .count = 1};
  states.items[0] = (kvf_lease_states_item){ticket.lease.id, ticket.lease.slot, id, KVF_LEASE_STATE_LIVE};
  uint8_t body[64];
  size_t bytes = 0;
  assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(
      kvf_attachments_on_states(&world.consumer.core.requests.attachments, world.now_ns, peer, body, bytes), KVF_OK);
  assert_int_equal(HASH_CNT(by_id, world.consumer.core.requests.attachments.by_id), 1);
}

/* ---- several requests with one ticket ---- */

static void cancel(uint64_t id, kvf_finish_kind kind)
{
  assert_int_equal(kvf_requests_cancel(&world.consumer.core.requests, world.now_ns, id, kind), KVF_OK);
  control_settle();
}

static uint64_t ended(kvf_lease_end_cause cause)
{
  return world.producer.core.leases.counters.ended[cause];
}

/* P5: to the producer they are one consumer, and the last of them ends the lease, whichever that is. */
WORLD_TEST(requests_of_a_ticket_are_one_consumer)
{
  static const struct {
    kvf_finish_kind kinds[3];
    kvf_lease_end_cause cause;
  } cases[] = {{{KVF_FINISH_COMPLETED, KVF_FINISH_ABORTED, KVF_FINISH_DETACHED}, KVF_LEASE_END_COMPLETED},
               {{KVF_FINISH_ABORTED, KVF_FINISH_DETACHED, KVF_FINISH_COMPLETED}, KVF_LEASE_END_COMPLETED},
               {{KVF_FINISH_DETACHED, KVF_FINISH_ABORTED, KVF_FINISH_DETACHED}, KVF_LEASE_END_ABANDONED}};
  kvf_requests *requests = &world.consumer.core.requests;
  for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    uint64_t opened[3];
    ticket.lease.slot = i;
    ticket.lease.token[0]++;
    control_publish(&ticket);
    const uint64_t ended_before = ended(cases[i].cause);
    const uint64_t told_before = requests->attachments.counters.finishes;
    for (unsigned k = 0; k < 3; k++) {
      opened[k] = open_request();
      if (i + k == 0) {
        control_dial(KVF_OK);
      }
      assert_int_equal(kvf_requests_attachment(requests, opened[k]), i + 1);
    }
    for (unsigned k = 0; k < 3; k++) {
      assert_int_equal(live(), 1);
      cancel(opened[k], cases[i].kinds[k]);
      assert_int_equal(kvf_requests_attachment(requests, opened[k]), 0);
    }
    assert_int_equal(live(), 0);
    assert_int_equal(ended(cases[i].cause), ended_before + 1);
    assert_int_equal(requests->attachments.counters.finishes, told_before + 1);
    assert_int_equal(HASH_CNT(by_id, requests->attachments.by_id), 0);
  }
}

/* What the first has finished with is over: the producer is asked anew. */
WORLD_TEST(request_after_the_last_has_an_attachment_of_its_own)
{
  kvf_requests *requests = &world.consumer.core.requests;
  control_publish(&ticket);
  uint64_t first = open_request();
  control_dial(KVF_OK);
  const uint64_t attachment = kvf_requests_attachment(requests, first);
  cancel(first, KVF_FINISH_DETACHED);
  uint64_t second = open_request();
  assert_int_not_equal(kvf_requests_attachment(requests, second), attachment);
  assert_int_equal(live(), 1);
  cancel(second, KVF_FINISH_ABORTED);
  assert_int_equal(live(), 0);
}

/* Each of them that waits is told of a loss, once, and one that comes later asks for itself. */
WORLD_TEST(all_that_wait_are_told_of_a_loss)
{
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_event event;
  control_publish(&ticket);
  uint64_t loading = open_request();
  control_dial(KVF_OK);
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, loading), KVF_OK);
  (void)open_request();
  (void)open_request();
  assert_int_equal(kvf_lease_table_end(&world.producer.core.leases, world.now_ns, &ticket.lease), KVF_OK);
  control_settle();
  control_advance(5000); /* renews */
  for (unsigned i = 0; i < 2; i++) {
    assert_true(next_verdict(&event));
    assert_int_equal(event.u.verdict.status, KVF_LEASE_EXPIRED);
  }
  assert_false(next_verdict(&event)); /* a load that has begun finds out for itself */
  assert_int_equal(requests->counters.lost[kvf_status_index(KVF_LEASE_EXPIRED)], 2);
  assert_int_not_equal(kvf_requests_attachment(requests, open_request()), kvf_requests_attachment(requests, loading));
}

/* P2: whoever waits for another one's load waits no longer than for its own. */
WORLD_TEST(wait_for_another_load_has_a_deadline)
{
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_event event;
  control_publish(&ticket);
  uint64_t id = open_request();
  control_dial(KVF_OK);
  const uint32_t timeout_ms = kvf_requests_options(requests, NULL).load_timeout_ms;
  assert_int_equal(kvf_requests_wait(requests, world.now_ns, id, true), KVF_OK);
  control_advance(timeout_ms / 2);
  assert_int_equal(kvf_requests_wait(requests, world.now_ns, id, true), KVF_OK); /* changes nothing */
  control_advance(timeout_ms / 2 - 10);
  assert_false(next_verdict(&event));
  control_advance(20);
  assert_true(next_verdict(&event));
  assert_int_equal(event.u.verdict.status, KVF_DEADLINE);
  assert_int_equal(event.u.verdict.action, KVF_ACTION_RECOMPUTE);
  assert_int_equal(kvf_requests_wait(requests, world.now_ns, id, true), KVF_NOT_FOUND);
  assert_int_equal(live(), 0);
}

/* Only while another one loads does its time run. */
WORLD_TEST(wait_that_is_over_takes_no_time)
{
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_event event;
  control_publish(&ticket);
  uint64_t id = open_request();
  control_dial(KVF_OK);
  const uint32_t timeout_ms = kvf_requests_options(requests, NULL).load_timeout_ms;
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(kvf_requests_wait(requests, world.now_ns, id, true), KVF_OK);
    control_advance(timeout_ms / 2 - 5);
    assert_int_equal(kvf_requests_wait(requests, world.now_ns, id, false), KVF_OK);
    assert_int_equal(kvf_requests_wait(requests, world.now_ns, id, false), KVF_OK); /* changes nothing */
    control_advance(100);
    assert_false(next_verdict(&event));
  }
  assert_int_equal(kvf_requests_wait(requests, world.now_ns, id, true), KVF_OK);
  control_advance(20);
  assert_true(next_verdict(&event));
  assert_int_equal(event.u.verdict.status, KVF_DEADLINE);
}

WORLD_TEST(load_after_a_wait_has_what_is_left_of_the_time)
{
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_event event;
  control_publish(&ticket);
  uint64_t id = open_request();
  control_dial(KVF_OK);
  const uint32_t timeout_ms = kvf_requests_options(requests, NULL).load_timeout_ms;
  const uint32_t release_ms = world.consumer.core.context.config.release_timeout_ms;
  assert_int_equal(kvf_requests_wait(requests, world.now_ns, id, true), KVF_OK);
  control_advance(timeout_ms / 2);
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_OK);
  assert_int_equal(kvf_requests_wait(requests, world.now_ns, id, true), KVF_EXISTS);
  control_advance(timeout_ms / 2 + release_ms - 10);
  assert_false(next_verdict(&event));
  control_advance(20);
  assert_true(next_verdict(&event));
  assert_int_equal(event.u.verdict.status, KVF_RANK_LOST);
}

WORLD_TEST(refuses_other_prompts_and_models)
{
  uint64_t id = 0;
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_prompt other = ticket.prompt;
  other.hash[0] ^= 1;
  assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}}, &other,
                                     NULL, 5, &id, NULL),
                   KVF_BAD_TICKET);
  other = ticket.prompt;
  other.tokens++;
  assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}}, &other,
                                     NULL, 5, &id, NULL),
                   KVF_BAD_TICKET);
  ticket.compat[0] ^= 1;
  assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                                     &ticket.prompt, NULL, 5, &id, NULL),
                   KVF_INCOMPATIBLE);
  control_settle();
  assert_false(world.consumer.dial_wanted);
  assert_null(world.consumer.core.peers.by_key);
}

/* Before anything is connected to, and in one line. */
CONTROL_TEST(refusal_names_the_field_that_differs)
{
  uint64_t id = 0;
  control_options options;
  control_options_init(&options);
  options.control = true;
  options.consumer_model = "another";
  control_world_open(&options);
  control_ticket(&ticket, ids, 4);
  const uint32_t lines = world.consumer.log_lines;
  kvf_requests *requests = &world.consumer.core.requests;
  assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                                     &ticket.prompt, NULL, 5, &id, NULL),
                   KVF_INCOMPATIBLE);
  assert_int_equal(world.consumer.log_lines, lines + 1);
  assert_string_equal(
      world.consumer.last_log,
      "ticket refused: incompatible: model differs: producer has another value, consumer has \"another\"");
  control_settle();
  assert_false(world.consumer.dial_wanted);
}

WORLD_TEST(source_that_is_left_out_names_the_field_that_differs)
{
  uint64_t id = 0;
  kvf_ticket other = ticket;
  other.compat[0] ^= 1;
  other.fields--; /* block_tokens is the last */
  const uint32_t lines = world.consumer.log_lines;
  kvf_requests *requests = &world.consumer.core.requests;
  assert_int_equal(
      kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 3, .tickets = {&other, &ticket, &other}},
                        &ticket.prompt, NULL, 5, &id, NULL),
      KVF_OK);
  assert_int_equal(requests->context->tickets.sources_left_out, 2);
  assert_int_equal(world.consumer.log_lines, lines + 2);
  assert_non_null(
      strstr(world.consumer.last_log,
             "is left out: incompatible: block_tokens differs: producer has \"(nothing)\", consumer has \"16\""));
}

/* P8: without a key anybody can make a ticket, and would choose where this node connects to. */
WORLD_TEST(keyless_ticket_of_another_host_is_refused)
{
  uint64_t id = 0;
  kvf_requests *requests = &world.consumer.core.requests;
  ticket.rank[0].address.ip[0] = 0x20;
  assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                                     &ticket.prompt, NULL, 5, &id, NULL),
                   KVF_BAD_TICKET);
  ticket.rank[0].other = ticket.rank[0].address;
  ticket.rank[0].address.ip[0] = 0;
  assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                                     &ticket.prompt, NULL, 5, &id, NULL),
                   KVF_BAD_TICKET);
  assert_int_equal(requests->context->tickets.bad, 2);
  assert_null(world.consumer.core.peers.by_key);
  world.consumer.core.context.self.key.bytes = 16;
  assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                                     &ticket.prompt, NULL, 5, &id, NULL),
                   KVF_OK);
}

/* P6, P3: a request that is refused for want of room holds nothing. */
WORLD_TEST(table_is_bounded)
{
  uint64_t id = 0;
  kvf_requests *requests = &world.consumer.core.requests;
  for (uint32_t i = 0; i < KVF_REQUESTS_MAX; i++) {
    assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                                       &ticket.prompt, NULL, i, &id, NULL),
                     KVF_OK);
  }
  uint64_t last = id;
  assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                                     &ticket.prompt, NULL, 5, &id, NULL),
                   KVF_NO_RESOURCE);
  assert_int_equal(id, last);
  assert_int_equal(HASH_CNT(by_id, requests->by_id), KVF_REQUESTS_MAX);
  assert_int_equal(world.consumer.core.peers.by_key->users, 1);
}

/* P6: and so are those of which a producer has not heard the end yet. */
WORLD_TEST(attachments_are_bounded)
{
  uint64_t id = 0;
  kvf_requests *requests = &world.consumer.core.requests;
  for (uint32_t i = 0; i < KVF_REQUESTS_MAX; i++) {
    id = open_request();
    assert_int_equal(kvf_requests_cancel(requests, world.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
  }
  assert_int_equal(HASH_CNT(by_id, requests->by_id), 0);
  assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&ticket}},
                                     &ticket.prompt, NULL, 5, &id, NULL),
                   KVF_NO_RESOURCE);
}

/* More than one message holds: all are told, to begin with and at the end. */
WORLD_TEST(many_requests_are_told_in_several_messages)
{
  const uint32_t count = KVF_LEASE_ITEMS_MAX + 1;
  uint64_t opened[KVF_LEASE_ITEMS_MAX + 1];
  kvf_ticket other = ticket;
  kvf_requests *requests = &world.consumer.core.requests;
  control_publish(&ticket);
  for (uint32_t i = 0; i < count; i++) {
    other.lease.token[15] = (uint8_t)i;
    other.lease.token[14] = (uint8_t)(i >> 8);
    assert_int_equal(kvf_requests_open(requests, world.now_ns, &(kvf_sources){.count = 1, .tickets = {&other}},
                                       &ticket.prompt, NULL, i, &opened[i], NULL),
                     KVF_OK);
  }
  control_settle();
  control_dial(KVF_OK);
  assert_int_equal(requests->attachments.counters.renewals, count);
  for (uint32_t i = 0; i < count; i++) {
    (void)kvf_requests_cancel(requests, world.now_ns, opened[i], KVF_FINISH_ABORTED); /* some have been lost already */
  }
  control_settle();
  assert_int_equal(requests->attachments.counters.finishes, count);
  assert_int_equal(HASH_CNT(by_id, requests->attachments.by_id), 0); /* each was answered */
}

/* A third of a short TTL would be a flood. */
CONTROL_TEST(short_leases_are_renewed_every_50_ms)
{
  open_world(KVF_POLICY_RECOMPUTE, 60);
  control_publish(&ticket);
  (void)open_request();
  control_dial(KVF_OK);
  assert_int_equal(world.consumer.core.requests.attachments.counters.renewals, 1);
  control_advance(49);
  assert_int_equal(world.consumer.core.requests.attachments.counters.renewals, 1);
  control_advance(3);
  assert_int_equal(world.consumer.core.requests.attachments.counters.renewals, 2);
  assert_int_equal(live(), 1);
}

WORLD_TEST(unknown_requests_and_reports_that_do_not_fit_change_nothing)
{
  kvf_event event;
  uint64_t id = open_request();
  kvf_requests *requests = &world.consumer.core.requests;
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id + 1), KVF_NOT_FOUND);
  assert_int_equal(kvf_requests_cancel(requests, world.now_ns, id + 1, KVF_FINISH_ABORTED), KVF_NOT_FOUND);
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_OK);
  const kvf_report good = {.request_id = id, .ranks_mask = 1, .blocks = 4, .prefix = 4, .status = KVF_OK};
  kvf_report of_nobody = good;
  kvf_report of_no_rank = good;
  kvf_report of_others = good;
  of_nobody.ranks_mask = 0;
  of_no_rank.ranks_mask = 3; /* there is one rank */
  of_others.blocks = 5;
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &of_nobody), KVF_INVALID);
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &of_no_rank), KVF_INVALID);
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &of_others), KVF_INVALID);
  assert_false(next_verdict(&event));
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &good), KVF_OK);
  assert_true(next_verdict(&event));
  assert_int_equal(event.u.verdict.action, KVF_ACTION_USE);
}

WORLD_TEST(sixty_four_ranks_are_all)
{
  kvf_event event;
  world.consumer.core.context.config.ranks = 64;
  uint64_t id = open_request();
  kvf_requests *requests = &world.consumer.core.requests;
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_OK);
  kvf_report report = {.request_id = id, .ranks_mask = UINT64_MAX >> 1, .blocks = 4, .prefix = 4, .status = KVF_OK};
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_OK);
  assert_false(next_verdict(&event));
  report.ranks_mask = UINT64_C(1) << 63;
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_OK);
  assert_true(next_verdict(&event));
}

/* P3, P5: nobody asks for its verdict any more, and the producer hears of its end all the same. */
WORLD_TEST(cancelled_verdict_is_not_told_and_the_lease_still_ends)
{
  kvf_event event;
  control_publish(&ticket);
  uint64_t id = open_request();
  kvf_requests *requests = &world.consumer.core.requests;
  kvf_report report = {.request_id = id, .ranks_mask = 1, .blocks = 4, .prefix = 4, .status = KVF_OK};
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_OK);
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_OK);
  assert_int_equal(kvf_requests_cancel(requests, world.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
  assert_false(next_verdict(&event));
  assert_int_equal(HASH_CNT(by_id, requests->attachments.by_id), 1);
  control_dial(KVF_OK);
  assert_int_equal(live(), 0);
  let_go(id);
  assert_int_equal(HASH_CNT(by_id, requests->attachments.by_id), 0);
}

/* ---- when its ranks are released ---- */

static kvf_event_kind next_kind(void)
{
  kvf_event event = {.kind = 0};
  return next_verdict(&event) ? event.kind : 0;
}

static void report_of(uint64_t id, uint64_t ranks_mask, kvf_status status)
{
  kvf_report report = {.request_id = id, .ranks_mask = ranks_mask, .blocks = 4, .status = status};
  report.prefix = status == KVF_OK ? 4 : 0;
  assert_int_equal(kvf_requests_report(&world.consumer.core.requests, world.now_ns, &report), KVF_OK);
  control_settle();
}

/* Of an engine of two ranks. */
static uint64_t begin_request(void)
{
  world.consumer.core.context.config.ranks = 2;
  uint64_t id = open_request();
  assert_int_equal(kvf_requests_begin(&world.consumer.core.requests, world.now_ns, id), KVF_OK);
  return id;
}

static kvf_status released(uint64_t id, uint64_t ranks_mask)
{
  return kvf_requests_released(&world.consumer.core.requests, world.now_ns, id, ranks_mask);
}

static kvf_status stuck(uint64_t id)
{
  return kvf_requests_stuck(&world.consumer.core.requests, id);
}

/* P3, P4: once, when every rank has said so, and not before its verdict; the record stays until then (P6). */
WORLD_TEST(released_after_the_verdict_when_all_ranks_are)
{
  control_publish(&ticket);
  uint64_t id = begin_request();
  control_dial(KVF_OK);
  assert_int_equal(released(id, 1), KVF_OK);
  assert_int_equal(released(id, 1), KVF_OK);
  report_of(id, 1, KVF_OK);
  assert_int_equal(next_kind(), 0);
  report_of(id, 2, KVF_OK);
  assert_int_equal(next_kind(), KVF_EVENT_VERDICT);
  assert_int_equal(next_kind(), 0);
  control_advance(120000);
  assert_int_equal(HASH_CNT(by_id, world.consumer.core.requests.by_id), 1);
  assert_int_equal(world.consumer.core.peers.by_key->users, 0); /* its producer has heard, and is let go */
  assert_int_equal(released(id, 2), KVF_OK);
  assert_int_equal(next_kind(), KVF_EVENT_REQUEST_RELEASED);
  assert_int_equal(next_kind(), 0);
  assert_int_equal(HASH_CNT(by_id, world.consumer.core.requests.by_id), 0);
  assert_int_equal(released(id, 3), KVF_NOT_FOUND);
}

static kvf_verdict next_decision(void)
{
  kvf_event event;
  assert_true(next_verdict(&event));
  assert_int_equal(event.kind, KVF_EVENT_VERDICT);
  return event.u.verdict;
}

/* P2, P7: what kvf_load_start() has refused need not be reported. */
WORLD_TEST(a_rank_that_is_released_unheard_has_loaded_nothing)
{
  uint64_t id = begin_request();
  report_of(id, 1, KVF_OK);
  assert_int_equal(next_kind(), 0);
  assert_int_equal(released(id, 2), KVF_OK);
  const kvf_verdict verdict = next_decision();
  assert_int_equal(verdict.action, KVF_ACTION_RECOMPUTE);
  assert_int_equal(verdict.status, KVF_ABORTED);
  assert_int_equal(verdict.keep_tokens, 0);
  assert_int_equal(next_kind(), 0);
  assert_int_equal(kvf_requests_report(&world.consumer.core.requests, world.now_ns,
                                       &(kvf_report){.request_id = id, .ranks_mask = 2, .blocks = 4}),
                   KVF_NOT_FOUND); /* late */
  assert_int_equal(released(id, 3), KVF_OK);
  assert_int_equal(next_kind(), KVF_EVENT_REQUEST_RELEASED);
}

/* P7: a report says more than the release, whichever comes first. */
WORLD_TEST(a_report_counts_though_its_rank_is_released)
{
  static const struct {
    kvf_status status;
    kvf_action action;
  } cases[] = {{KVF_OK, KVF_ACTION_USE}, {KVF_PEER_DOWN, KVF_ACTION_RECOMPUTE}, {KVF_INVALID, KVF_ACTION_FAIL}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    uint64_t id = begin_request();
    assert_int_equal(released(id, 1), KVF_OK);
    report_of(id, 1, cases[i].status);
    report_of(id, 2, KVF_OK);
    const kvf_verdict verdict = next_decision();
    assert_int_equal(verdict.status, cases[i].status);
    assert_int_equal(verdict.action, cases[i].action);
    assert_int_equal(released(id, 3), KVF_OK);
    assert_int_equal(next_kind(), KVF_EVENT_REQUEST_RELEASED);
  }
}

WORLD_TEST(cancelled_load_is_released)
{
  kvf_requests *requests = &world.consumer.core.requests;
  uint64_t id = begin_request();
  assert_int_equal(kvf_requests_cancel(requests, world.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
  assert_int_equal(next_kind(), 0);
  assert_int_equal(released(id, 3), KVF_OK);
  assert_int_equal(next_kind(), KVF_EVENT_REQUEST_RELEASED);
  assert_int_equal(released(id, 3), KVF_NOT_FOUND);
  assert_int_equal(next_kind(), 0);
}

WORLD_TEST(only_a_load_that_has_begun_is_released)
{
  kvf_requests *requests = &world.consumer.core.requests;
  uint64_t id = open_request();
  assert_int_equal(released(id, 1), KVF_INVALID);
  assert_int_equal(kvf_requests_cancel(requests, world.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
  assert_int_equal(released(id, 1), KVF_NOT_FOUND);
  assert_int_equal(next_kind(), 0);
  id = begin_request();
  assert_int_equal(released(id, 0), KVF_INVALID);
  assert_int_equal(released(id, 4), KVF_INVALID); /* there are two ranks */
  assert_int_equal(released(id + 1, 1), KVF_NOT_FOUND);
  assert_int_equal(stuck(id + 1), KVF_NOT_FOUND);
}

/* P2: the engine need not wait for what a rank cannot say. */
WORLD_TEST(stuck_rank_is_told_once_after_the_verdict)
{
  uint64_t id = begin_request();
  assert_int_equal(stuck(id), KVF_OK);
  assert_int_equal(stuck(id), KVF_OK);
  assert_int_equal(next_kind(), 0);
  report_of(id, 3, KVF_TRANSFER_FAILED);
  assert_int_equal(next_kind(), KVF_EVENT_VERDICT);
  assert_int_equal(next_kind(), KVF_EVENT_REQUEST_STUCK);
  assert_int_equal(stuck(id), KVF_OK);
  assert_int_equal(next_kind(), 0);
  assert_int_equal(released(id, 3), KVF_OK);
  assert_int_equal(next_kind(), KVF_EVENT_REQUEST_RELEASED);
}

WORLD_TEST(what_is_whole_is_waited_for_though_it_is_stuck)
{
  uint64_t id = begin_request();
  report_of(id, 3, KVF_OK);
  assert_int_equal(stuck(id), KVF_OK);
  assert_int_equal(next_kind(), KVF_EVENT_VERDICT);
  assert_int_equal(next_kind(), 0);
  assert_int_equal(released(id, 3), KVF_OK);
  assert_int_equal(next_kind(), KVF_EVENT_REQUEST_RELEASED);
}

WORLD_TEST(silent_rank_is_stuck_and_may_still_be_released)
{
  uint64_t id = begin_request();
  report_of(id, 1, KVF_OK);
  control_advance(35001);
  assert_int_equal(next_kind(), KVF_EVENT_VERDICT);
  assert_int_equal(next_kind(), KVF_EVENT_REQUEST_STUCK);
  assert_int_equal(released(id, 3), KVF_OK);
  assert_int_equal(next_kind(), KVF_EVENT_REQUEST_RELEASED);
}

/* ---- what becomes of the producer while the request waits ---- */

static void assert_verdict(kvf_action action, kvf_status status)
{
  kvf_event event;
  assert_true(next_verdict(&event));
  assert_int_equal(event.u.verdict.action, action);
  assert_int_equal(event.u.verdict.status, status);
  assert_int_equal(event.u.verdict.keep_tokens, 0);
  assert_false(next_verdict(&event));
  assert_int_equal(world.consumer.core.requests.counters.lost[kvf_status_index(status)], 1);
}

WORLD_TEST(lease_that_ends_while_it_waits_is_heard_at_the_next_renewal)
{
  kvf_event event;
  control_publish(&ticket);
  uint64_t id = open_request();
  control_dial(KVF_OK);
  assert_int_equal(kvf_core_lease_end(&world.producer.core, world.now_ns, &ticket.lease), KVF_OK);
  control_advance(4999);
  assert_false(next_verdict(&event));
  control_advance(2);
  kvf_requests *requests = &world.consumer.core.requests;
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_OK); /* it cannot know */
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_EXISTS);
  assert_verdict(KVF_ACTION_RECOMPUTE, KVF_LEASE_EXPIRED);
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, id), KVF_NOT_FOUND);
  let_go(id); /* no rank was told to load */
  assert_int_equal(HASH_CNT(by_id, world.consumer.core.requests.attachments.by_id), 0);
}

CONTROL_TEST(lease_that_ends_while_it_waits_fails_by_policy)
{
  open_world(KVF_POLICY_FAIL, 30000);
  control_publish(&ticket);
  (void)open_request();
  control_dial(KVF_OK);
  assert_int_equal(kvf_core_lease_end(&world.producer.core, world.now_ns, &ticket.lease), KVF_OK);
  control_advance(5001);
  assert_verdict(KVF_ACTION_FAIL, KVF_LEASE_EXPIRED);
}

WORLD_TEST(lease_that_the_producer_does_not_know_is_heard_at_once)
{
  control_publish(&ticket);
  ticket.lease.token[0] ^= 1;
  (void)open_request();
  control_dial(KVF_OK);
  assert_verdict(KVF_ACTION_RECOMPUTE, KVF_LEASE_UNKNOWN);
}

static kvf_lease_state other_consumer(uint8_t name, kvf_finish_kind kind)
{
  const kvf_consumer_key other = {.incarnation.bytes = {name}};
  return kvf_lease_table_on_consumer(&world.producer.core.leases, world.now_ns, &ticket.lease, &other, kind);
}

/* The lease of `ticket` has room for no consumers but these. */
static void crowd(uint8_t others)
{
  world.producer.core.leases.consumers_max = KVF_LEASE_CONSUMERS_IN_SLOT;
  for (uint8_t i = 0; i < others; i++) {
    assert_int_equal(other_consumer(i + 1, KVF_FINISH_NONE), KVF_LEASE_STATE_LIVE);
  }
}

WORLD_TEST(lease_that_has_no_room_for_it_is_heard_at_once)
{
  control_publish(&ticket);
  crowd(KVF_LEASE_CONSUMERS_IN_SLOT);
  (void)open_request();
  control_dial(KVF_OK);
  assert_verdict(KVF_ACTION_RECOMPUTE, KVF_LEASE_CROWDED);
}

/* Its load may be in time: the lease ends when those that it counts are done. */
WORLD_TEST(load_from_a_lease_that_has_no_room_for_it)
{
  kvf_event event;
  kvf_requests *requests = &world.consumer.core.requests;
  control_publish(&ticket);
  crowd(KVF_LEASE_CONSUMERS_IN_SLOT);
  kvf_report report = {.request_id = open_request(), .ranks_mask = 1, .blocks = 4, .status = KVF_LEASE_EXPIRED};
  assert_int_equal(kvf_requests_begin(requests, world.now_ns, report.request_id), KVF_OK);
  control_dial(KVF_OK);
  assert_false(next_verdict(&event));
  assert_int_equal(kvf_requests_report(requests, world.now_ns, &report), KVF_OK);
  assert_true(next_verdict(&event));
  assert_int_equal(event.u.verdict.status, KVF_LEASE_CROWDED);
}

/* A node of before KVF_PROTOCOL_CROWDED would refuse the whole answer. */
WORLD_TEST(older_consumer_waits_for_room)
{
  kvf_event event;
  control_publish(&ticket);
  uint64_t first = open_request();
  control_dial(KVF_OK);
  assert_int_equal(world.producer.core.sessions.by_id->version, KVF_PROTOCOL_VERSION);
  world.producer.core.sessions.by_id->version = KVF_PROTOCOL_CROWDED - 1;
  crowd(KVF_LEASE_CONSUMERS_IN_SLOT - 1);
  (void)open_request();
  control_advance(5001);
  assert_false(next_verdict(&event));
  assert_int_equal(other_consumer(1, KVF_FINISH_COMPLETED), KVF_LEASE_STATE_LIVE);
  control_advance(5001); /* it attaches */
  assert_int_equal(kvf_requests_cancel(&world.consumer.core.requests, world.now_ns, first, KVF_FINISH_ABORTED), KVF_OK);
  control_settle();
  assert_int_equal(other_consumer(2, KVF_FINISH_COMPLETED), KVF_LEASE_STATE_LIVE);
  assert_int_equal(other_consumer(3, KVF_FINISH_COMPLETED), KVF_LEASE_STATE_LIVE);
  assert_false(next_verdict(&event));
}

/* It may be published a step later than its ticket arrives. */
WORLD_TEST(lease_that_is_not_published_yet_is_waited_for)
{
  kvf_event event;
  (void)open_request();
  control_dial(KVF_OK);
  control_advance(5001);
  assert_false(next_verdict(&event));
  control_publish(&ticket);
  control_advance(5001);
  assert_false(next_verdict(&event));
  assert_int_equal(live(), 1);
}

WORLD_TEST(load_that_has_begun_hears_of_its_lease_itself)
{
  kvf_event event;
  control_publish(&ticket);
  uint64_t id = open_request();
  control_dial(KVF_OK);
  assert_int_equal(kvf_requests_begin(&world.consumer.core.requests, world.now_ns, id), KVF_OK);
  assert_int_equal(kvf_core_lease_end(&world.producer.core, world.now_ns, &ticket.lease), KVF_OK);
  control_advance(5001);
  assert_false(next_verdict(&event));
}

WORLD_TEST(producer_that_is_gone_is_given_up_after_two_tries)
{
  kvf_event event;
  control_publish(&ticket);
  (void)open_request();
  control_dial(KVF_OK);
  control_advance(4000);
  control_cut();
  control_advance(1001);
  control_dial(KVF_PEER_DOWN);
  assert_false(next_verdict(&event));
  control_advance(501); /* the probe says nothing */
  control_dial(KVF_PEER_DOWN);
  assert_false(next_verdict(&event));
  control_advance(4500);
  control_dial(KVF_PEER_DOWN);
  assert_verdict(KVF_ACTION_RECOMPUTE, KVF_PEER_DOWN);
}

WORLD_TEST(producer_that_is_another_process_is_given_up_at_once)
{
  control_publish(&ticket);
  ticket.rank[0].incarnation.bytes[0] ^= 1;
  (void)open_request();
  control_dial(KVF_OK);
  assert_verdict(KVF_ACTION_RECOMPUTE, KVF_PEER_RESTARTED);
}

WORLD_TEST(producer_that_is_back_in_time_is_not_given_up)
{
  kvf_event event;
  control_publish(&ticket);
  (void)open_request();
  for (int i = 0; i < 3; i++) {
    control_dial(KVF_PEER_DOWN);
    control_advance(501); /* the probe */
    control_dial(KVF_OK);
    control_advance(4500); /* renews */
    assert_false(next_verdict(&event));
    control_cut();
    control_advance(5001);
  }
  assert_int_equal(live(), 1);
}

static void answer_states(const kvf_peer *peer, uint32_t seq, uint64_t lease_id, uint64_t request_id)
{
  kvf_lease_states states = {.seq = seq, .count = 1};
  uint8_t body[KVF_LEASE_STATES_BYTES_MAX];
  size_t bytes = 0;
  states.items[0] = (kvf_lease_states_item){lease_id, 0, request_id, KVF_LEASE_STATE_ENDED};
  assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(
      kvf_attachments_on_states(&world.consumer.core.requests.attachments, world.now_ns, peer, body, bytes), KVF_OK);
}

/* P8: one producer cannot answer for another, nor for another lease. */
WORLD_TEST(end_is_heard_from_its_own_producer_about_its_own_lease)
{
  control_publish(&ticket);
  uint64_t id = open_request();
  kvf_requests *requests = &world.consumer.core.requests;
  control_dial(KVF_OK);
  world.held = true;
  assert_int_equal(kvf_requests_cancel(requests, world.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
  control_settle();
  uint32_t seq = requests->attachments.next_seq;
  const kvf_peer *peer = requests->attachments.by_id->ranks[0].peer;
  const kvf_peer other = {.state = KVF_PEER_READY};
  answer_states(&other, seq, ticket.lease.id, id);
  answer_states(peer, seq, ticket.lease.id + 1, id);
  answer_states(peer, seq, ticket.lease.id, id + 1);
  assert_int_equal(HASH_CNT(by_id, requests->attachments.by_id), 1);
  answer_states(peer, seq, ticket.lease.id, id);
  assert_int_equal(HASH_CNT(by_id, requests->attachments.by_id), 0);
}
