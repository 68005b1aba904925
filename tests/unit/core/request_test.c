/* Requests, their attachments to leases, and verdicts: a control node and a producer of one rank. */
#include "core/request.h"
#include "base/status.h"
#include "scene.h"
#include "wire/lease_message.h"

/* ---- one request ---- */

SCENE(renews_while_it_waits, "control lease_ttl_ms=300 published hold=dials",
      "request 1 A > dial P0\n"
      "accept P0\n"
      "+90 x20\n"
      "hold P0\n"
      "cut P0\n"
      "+301 > dial P0; P0 ends A: expired\n")

SCENE(decides_once_when_all_ranks_are_in, "control published",
      "request 1 A\n"
      "report 1 1 transfer_failed 3 > invalid\n"
      "begin 1\n"
      "begin 1 > exists\n"
      "report 1 1 transfer_failed 5 > invalid\n"
      "report 1 1 transfer_failed 3 > request 1: recompute transfer_failed 48+16; P0 ends A: completed\n"
      "report 1 1 transfer_failed 3 > not_found\n"
      "released 1 1 > request 1 released\n"
      "stats D requests_open > 0\n")

/* P7: the engine says from which length on a prefix is of use to all its groups. */
SCENE(short_prefixes_are_not_kept, "control",
      "request 1 A keep_from=48\n"
      "begin 1\n"
      "report 1 1 deadline 3 > request 1: recompute deadline 48+16\n"
      "request 2 A keep_from=49\n"
      "begin 2\n"
      "report 2 1 deadline 3 > request 2: recompute deadline 0+64\n")

/* A verdict that sends the client elsewhere leaves the lease to whom it goes to; what nobody can mend ends it. */
SCENE(retryable_failure_detaches, "control policy=fail lease_ttl_ms=300 published",
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 peer_down 0 > request 1: fail peer_down retry\n"
      "released 1 1 > request 1 released\n"
      "stats D requests_open > 0\n"
      "request 2 A\n"
      "begin 2\n"
      "report 2 1 limit 0 > request 2: fail limit; P0 ends A: abandoned\n")

SCENE(detached_request_leaves_its_lease_until_it_runs_out, "control lease_ttl_ms=300 published",
      "request 1 A\n"
      "detach 1\n"
      "cancel 1 > not_found\n"
      "stats D requests_open requests_detached requests_cancelled > 0; 1; 0\n"
      "+290\n"
      "+20 > P0 ends A: expired\n")

SCENE(fails_by_policy, "control policy=fail",
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 lease_expired 0 > request 1: fail lease_expired retry\n")

/* There is no load, so nothing of it is good; policy, budget and counters are those of a load. */
CLUSTER_TEST(refused_tickets_follow_the_policy)
{
  static const struct {
    kvf_status status;
    uint32_t tokens;
    bool is_own;
    kvf_action action;
    bool retries;
  } rows[] = {{KVF_BAD_TICKET, 33, false, KVF_ACTION_FAIL, true},
              {KVF_BAD_TICKET, 33, true, KVF_ACTION_RECOMPUTE, false},
              {KVF_BAD_TICKET, 34, true, KVF_ACTION_FAIL, true},
              {KVF_LIMIT, 33, true, KVF_ACTION_FAIL, false}}; /* a caller's mistake: not safe */
  const kvf_request_options own = {.policy = KVF_POLICY_AUTO, .auto_max_recompute_tokens = 33};
  cluster_open("control policy=fail");
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const kvf_verdict verdict =
        kvf_core_request_refused(c.d.core, c.now_ns, rows[i].status, rows[i].tokens, rows[i].is_own ? &own : NULL);
    assert_int_equal(verdict.action, rows[i].action);
    assert_int_equal(verdict.status, rows[i].status);
    assert_int_equal(verdict.keep_tokens, 0);
    assert_int_equal(verdict.recompute_tokens, verdict.action == KVF_ACTION_RECOMPUTE ? 33 : 0);
    assert_in_range(verdict.retry_after_ms, rows[i].retries ? 500 : 0, rows[i].retries ? 1500 : 0);
  }
  scene("stats D verdicts.fail recomputed_tokens.bad_ticket > 3; 33\n");
}

/* P2, P7: a rank that never reports; its blocks are quarantined. */
SCENE(silent_rank_is_lost_at_the_deadline, "control lease_ttl_ms=600000",
      "request 1 A\n"
      "begin 1\n"
      "+34999\n"
      "+2 > request 1: fail rank_lost retry; request 1 stuck\n"
      "released 1 1 > request 1 released\n")

/* P3, P5: the end is told until the producer has answered. */
SCENE(tells_the_end_until_it_is_heard, "control published hold=dials",
      "request 1 A > dial P0\n"
      "accept P0\n"
      "cut P0\n"
      "cancel 1 > dial P0\n"
      "cancel 1 > not_found\n"
      "refuse P0\n"
      "+510 > dial P0\n" /* the breaker's probe */
      "accept P0\n"
      "+5000 > P0 ends A: abandoned\n"
      "stats D requests_open > 0\n")

SCENE(gives_up_when_the_lease_must_be_over, "control lease_ttl_ms=300",
      "down P0\n"
      "request 1 A\n"
      "cancel 1\n"
      "+440\n"
      "stats D requests_open acknowledgements_given_up > 1; 0\n"
      "+20\n"
      "stats D requests_open acknowledgements_given_up > 0; 1\n")

/* The engine may take its time with the verdict: a producer that has answered is not given up for that. */
SCENE(heard_end_is_not_given_up, "control lease_ttl_ms=300 published hold=events",
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 ok 4\n"
      "fence A P0 > ended\n"
      "+100 x10\n"
      "event > request 1: use; P0 ends A: completed\n"
      "released 1 1\n"
      "event > request 1 released\n"
      "stats D requests_open acknowledgements_given_up > 0; 0\n")

/* The only item of an answer to the consumer. */
static void answer(uint32_t producer, uint32_t seq, uint64_t lease_id, uint64_t attachment, kvf_lease_state state)
{
  kvf_lease_states states = {.seq = seq, .count = 1};
  uint8_t body[64];
  size_t bytes = 0;
  states.items[0] = (kvf_lease_states_item){lease_id, 0, attachment, (uint8_t)state};
  assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(c.d.core, c.now_ns, c.wires[producer].consumer_id, KVF_FRAME_LEASE_STATES, body, bytes);
  cluster_settle();
}

/* The answer to a renewal that was under way must not pass for the answer to the end; of which there are four messages
 * here: three renewals and the end. */
CLUSTER_TEST(late_renewal_answer_does_not_end_the_telling)
{
  cluster_open("control published");
  scene(
      "request 1 A\n"
      "+5000\n" /* renews */
      "hold P0\n"
      "+5000\n" /* renews; the answer is held */
      "cancel 1 > P0 ends A: abandoned\n"
      "stats D renewals_sent acknowledgements_sent requests_open > 3; 1; 1\n");
  answer(0, 3, c.tickets[0].lease.id, 1, KVF_LEASE_STATE_ENDED);
  scene("stats D requests_open > 1\n");
  answer(0, 4, c.tickets[0].lease.id, 1, KVF_LEASE_STATE_ENDED);
  scene("stats D requests_open > 0\n");
}

/* P8: nor can a producer answer for another one, for another lease, or for another node's attachment. */
CLUSTER_TEST(end_is_heard_from_its_own_producer_about_its_own_lease)
{
  cluster_open("ranks=2 apart control published");
  scene(
      "request 1 A\n"
      "request 2 B\n"
      "hold P0\n"
      "cancel 1 > P0 ends A: abandoned\n");
  const uint64_t lease_id = c.tickets[0].lease.id;
  answer(1, 3, lease_id, 1, KVF_LEASE_STATE_ENDED);
  answer(0, 3, lease_id + 1, 1, KVF_LEASE_STATE_ENDED);
  answer(0, 3, lease_id, 2, KVF_LEASE_STATE_ENDED);
  scene("stats D requests_open > 2\n");
  answer(0, 3, lease_id, 1, KVF_LEASE_STATE_ENDED);
  scene("stats D requests_open > 1\n");
}

/* ---- several requests with one ticket ---- */

/* P5: to the producer they are one consumer, and the last of them ends the lease, whichever that is. */
SCENE(requests_of_a_ticket_are_one_consumer, "control published",
      "request 1 A\n"
      "request 2 A\n"
      "request 3 A\n"
      "attachment 1 > 1\n"
      "attachment 3 > 1\n"
      "begin 1\n"
      "report 1 1 ok 4 > request 1: use\n"
      "released 1 1 > request 1 released\n"
      "cancel 2\n"
      "attachment 2 > 0\n"
      "detach 3 > P0 ends A: completed\n"
      "stats D acknowledgements_sent requests_open > 1; 0\n"
      "ticket 4\n"
      "publish B\n"
      "request 1 B\n"
      "request 2 B\n"
      "request 3 B\n"
      "cancel 1\n"
      "detach 2\n"
      "begin 3\n"
      "report 3 1 ok 4 > request 3: use; P0 ends B: completed\n"
      "ticket 4\n"
      "publish C\n"
      "request 1 C\n"
      "request 2 C\n"
      "request 3 C\n"
      "detach 1\n"
      "cancel 2\n"
      "detach 3 > P0 ends C: abandoned\n"
      "stats D acknowledgements_sent > 3\n")

/* What the first has finished with is over: the producer is asked anew. */
SCENE(request_after_the_last_has_an_attachment_of_its_own, "control published",
      "request 1 A\n"
      "attachment 1 > 1\n"
      "detach 1\n"
      "request 2 A\n"
      "attachment 2 > 2\n"
      "cancel 2 > P0 ends A: abandoned\n")

/* Each of them that waits is told of a loss, once, and one that comes later asks for itself. A load that has begun
 * finds out for itself. */
SCENE(all_that_wait_are_told_of_a_loss, "control published",
      "request 1 A\n"
      "begin 1\n"
      "request 2 A\n"
      "request 3 A\n"
      "end A > P0 ends A: revoked\n"
      "+5000 > request 2: recompute lease_expired 0+64; request 3: recompute lease_expired 0+64\n"
      "stats D requests_lost.lease_expired > 2\n"
      "attachment 1 > 1\n"
      "hold P0\n"
      "request 4 A\n"
      "attachment 4 > 2\n")

/* P2: whoever waits for another one's load waits no longer than for its own. */
SCENE(wait_for_another_load_has_a_deadline, "control published load_timeout_ms=1000",
      "request 1 A\n"
      "wait 1\n"
      "+500\n"
      "wait 1\n" /* changes nothing */
      "+490\n"
      "+20 > request 1: recompute deadline 0+64; P0 ends A: completed\n"
      "wait 1 > not_found\n")

/* Only while another one loads does its time run. */
SCENE(wait_that_is_over_takes_no_time, "control published load_timeout_ms=1000",
      "request 1 A\n"
      "wait 1\n"
      "+495\n"
      "unwait 1\n"
      "unwait 1\n"
      "+100\n"
      "wait 1\n"
      "+495\n"
      "unwait 1\n"
      "+100\n"
      "wait 1\n"
      "+20 > request 1: recompute deadline 0+64; P0 ends A: completed\n")

SCENE(load_after_a_wait_has_what_is_left_of_the_time, "control published load_timeout_ms=1000 release_timeout_ms=500",
      "request 1 A\n"
      "wait 1\n"
      "+500\n"
      "begin 1\n"
      "wait 1 > exists\n"
      "+990\n"
      "+20 > request 1: fail rank_lost retry; request 1 stuck\n")

/* ---- what is refused ---- */

/* Before anything is connected to. */
SCENE(refuses_other_prompts_and_models, "control hold=dials",
      "request 1 A prompt=hash > bad_ticket\n"
      "request 1 A prompt=tokens > bad_ticket\n"
      "alter A compat\n"
      "request 1 A > incompatible\n"
      "stats D peers_known > 0\n")

SCENE(refusal_names_the_field_that_differs, "control p.model=another hold=dials",
      "request 1 A > incompatible\n"
      "log D > ticket refused: incompatible: model differs: producer has another value, consumer has \"m\"\n")

SCENE(
    source_that_is_left_out_names_the_field_that_differs, "control",
    "ticket 4\n"
    "alter B compat\n"
    "alter B fields\n" /* block_tokens is the last */
    "request 1 B,A,B\n"
    "stats D sources_left_out > 2\n"
    "log D > the ticket's source [::1]:80 is left out: incompatible: block_tokens differs: producer has \"(nothing)\", "
    "consumer has \"16\"\n")

/* P8: without a key anybody can make a ticket, and would choose where this node connects to. */
SCENE(keyless_ticket_of_another_host_is_refused, "control two hold=dials",
      "alter A address\n"
      "request 1 A > bad_ticket\n"
      "alter A address\n"
      "alter A other\n"
      "request 1 A > bad_ticket\n"
      "stats D tickets_refused.bad_ticket peers_known > 2; 0\n"
      "alter A other\n"
      "request 1 A > dial P0\n")

CLUSTER_TEST(with_a_key_a_ticket_may_name_any_host)
{
  uint64_t id = 0;
  cluster_open("control key=a-key-of-sixteen");
  c.tickets[0].rank[0].address.ip[0] = 0x20;
  const kvf_sources sources = cluster_sources("A");
  assert_int_equal(kvf_core_request_open(c.d.core, c.now_ns, &sources, &c.tickets[0].prompt, NULL, 5, &id, NULL),
                   KVF_OK);
}

static kvf_status open_request(uint64_t user, uint64_t *id)
{
  const kvf_sources sources = {.count = 1, .tickets = {&c.tickets[0]}};
  return kvf_core_request_open(c.d.core, c.now_ns, &sources, &c.tickets[0].prompt, NULL, user, id, NULL);
}

/* P6, P3: a request that is refused for want of room holds nothing. */
CLUSTER_TEST(table_is_bounded)
{
  uint64_t id = 0;
  cluster_open("control");
  for (uint32_t i = 0; i < KVF_REQUESTS_MAX; i++) {
    assert_int_equal(open_request(i, &id), KVF_OK);
  }
  const uint64_t last = id;
  assert_int_equal(open_request(5, &id), KVF_NO_RESOURCE);
  assert_int_equal(id, last);
  assert_int_equal(cluster_stat(&c.d, "requests_open", ""), KVF_REQUESTS_MAX);
  assert_int_equal(cluster_users(), 1);
}

/* P6: and so are those of which a producer has not heard the end yet. */
CLUSTER_TEST(attachments_are_bounded)
{
  uint64_t id = 0;
  cluster_open("control hold=dials");
  for (uint32_t i = 0; i < KVF_REQUESTS_MAX; i++) {
    assert_int_equal(open_request(i, &id), KVF_OK);
    assert_int_equal(kvf_core_request_cancel(c.d.core, c.now_ns, id, KVF_FINISH_ABORTED), KVF_OK);
  }
  assert_int_equal(open_request(5, &id), KVF_NO_RESOURCE);
}

/* More than one message holds: all are told, to begin with and at the end. */
CLUSTER_TEST(many_requests_are_told_in_several_messages)
{
  const uint32_t count = KVF_LEASE_ITEMS_MAX + 1;
  uint64_t opened[KVF_LEASE_ITEMS_MAX + 1];
  cluster_open("control published hold=dials,events");
  for (uint32_t i = 0; i < count; i++) {
    c.tickets[0].lease.token[15] = (uint8_t)i;
    c.tickets[0].lease.token[14] = (uint8_t)(i >> 8);
    assert_int_equal(open_request(i, &opened[i]), KVF_OK);
  }
  cluster_settle();
  cluster_dial(0, KVF_OK);
  cluster_settle();
  assert_int_equal(cluster_stat(&c.d, "renewals_sent", ""), count);
  for (uint32_t i = 0; i < count; i++) { /* some have been lost already */
    (void)kvf_core_request_cancel(c.d.core, c.now_ns, opened[i], KVF_FINISH_ABORTED);
  }
  cluster_settle();
  assert_int_equal(cluster_stat(&c.d, "acknowledgements_sent", ""), count);
  assert_int_equal(cluster_users(), 0); /* each was answered */
}

/* A third of a short TTL would be a flood. */
SCENE(short_leases_are_renewed_every_50_ms, "control lease_ttl_ms=100 published",
      "request 1 A\n"
      "stats D renewals_sent > 1\n"
      "+49\n"
      "stats D renewals_sent > 1\n"
      "+3\n"
      "stats D renewals_sent > 2\n")

SCENE(unknown_requests_and_reports_that_do_not_fit_change_nothing, "control",
      "request 1 A\n"
      "begin 9 > not_found\n"
      "cancel 9 > not_found\n"
      "begin 1\n"
      "report 1 0 ok 4 > invalid\n"
      "report 1 3 ok 4 > invalid\n" /* there is one rank */
      "report 1 1 ok 4 5 > invalid\n"
      "report 1 1 ok 4 > request 1: use\n")

SCENE(sixty_four_ranks_are_all, "control own=64 heads=8",
      "request 1 A\n"
      "begin 1\n"
      "report 1 0x7fffffffffffffff ok 4\n"
      "report 1 0x8000000000000000 ok 4 > request 1: use\n")

/* P3, P5: nobody asks for its verdict any more, and the producer hears of its end all the same. */
SCENE(cancelled_verdict_is_not_told_and_the_lease_still_ends, "control published hold=dials,events",
      "request 1 A > dial P0\n"
      "begin 1\n"
      "report 1 1 ok 4\n"
      "cancel 1\n"
      "event\n"
      "accept P0\n"
      "event > P0 ends A: completed\n"
      "released 1 1\n"
      "event > request 1 released\n"
      "stats D requests_open > 0\n")

/* ---- when its ranks are released ---- */

/* P3, P4: once, when every rank has said so, and not before its verdict; the record stays until then (P6), and the
 * producer, which has heard, is let go. */
SCENE(released_after_the_verdict_when_all_ranks_are, "control own=2 published",
      "request 1 A\n"
      "begin 1\n"
      "released 1 1\n"
      "released 1 1\n"
      "report 1 1 ok 4\n"
      "report 1 2 ok 4 > request 1: use; P0 ends A: completed\n"
      "+120000\n"
      "stats D requests_open > 1\n"
      "peers > P0 x0 +control\n"
      "released 1 2 > request 1 released\n"
      "stats D requests_open > 0\n"
      "released 1 3 > not_found\n")

/* P2, P7: what kvf_load_start() has refused need not be reported. */
SCENE(a_rank_that_is_released_unheard_has_loaded_nothing, "control own=2",
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 ok 4\n"
      "released 1 2 > request 1: recompute aborted 0+64\n"
      "report 1 2 ok 4 > not_found\n" /* late */
      "released 1 3 > request 1 released\n")

/* P7: a report says more than the release, whichever comes first. */
SCENE(a_report_counts_though_its_rank_is_released, "control own=2",
      "request 1 A\n"
      "begin 1\n"
      "released 1 1\n"
      "report 1 1 ok 4\n"
      "report 1 2 ok 4 > request 1: use\n"
      "released 1 3 > request 1 released\n"
      "request 2 A\n"
      "begin 2\n"
      "released 2 1\n"
      "report 2 1 peer_down 0\n"
      "report 2 2 ok 4 > request 2: recompute peer_down 0+64\n"
      "request 3 A\n"
      "begin 3\n"
      "released 3 1\n"
      "report 3 1 invalid 0\n"
      "report 3 2 ok 4 > request 3: fail invalid\n")

SCENE(cancelled_load_is_released, "control own=2",
      "request 1 A\n"
      "begin 1\n"
      "cancel 1\n"
      "released 1 3 > request 1 released\n"
      "released 1 3 > not_found\n")

SCENE(only_a_load_that_has_begun_is_released, "control own=2",
      "request 1 A\n"
      "released 1 1 > invalid\n"
      "cancel 1\n"
      "released 1 1 > not_found\n"
      "request 2 A\n"
      "begin 2\n"
      "released 2 0 > invalid\n"
      "released 2 4 > invalid\n" /* there are two ranks */
      "released 9 1 > not_found\n"
      "stuck 9 > not_found\n")

/* P2: the engine need not wait for what a rank cannot say. */
SCENE(stuck_rank_is_told_once_after_the_verdict, "control own=2",
      "request 1 A\n"
      "begin 1\n"
      "stuck 1\n"
      "stuck 1\n"
      "report 1 3 transfer_failed 0 > request 1: recompute transfer_failed 0+64; request 1 stuck\n"
      "stuck 1\n"
      "released 1 3 > request 1 released\n")

SCENE(what_is_whole_is_waited_for_though_it_is_stuck, "control own=2",
      "request 1 A\n"
      "begin 1\n"
      "report 1 3 ok 4 > request 1: use\n"
      "stuck 1\n"
      "released 1 3 > request 1 released\n")

SCENE(silent_rank_is_stuck_and_may_still_be_released, "control own=2",
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 ok 4\n"
      "+35001 > request 1: fail rank_lost retry; request 1 stuck\n"
      "released 1 3 > request 1 released\n")

/* ---- what becomes of the producer while the request waits ---- */

/* No rank was told to load; the engine cannot know when it begins. */
SCENE(lease_that_ends_while_it_waits_is_heard_at_the_next_renewal, "control published hold=events",
      "request 1 A\n"
      "end A\n"
      "+4999\n"
      "event > P0 ends A: revoked\n"
      "+2\n"
      "begin 1\n"
      "begin 1 > exists\n"
      "event > request 1: recompute lease_expired 0+64\n"
      "stats D requests_lost.lease_expired > 1\n"
      "begin 1 > not_found\n"
      "released 1 1\n"
      "event > request 1 released\n"
      "stats D requests_open > 0\n")

SCENE(lease_that_ends_while_it_waits_fails_by_policy, "control policy=fail published",
      "request 1 A\n"
      "end A > P0 ends A: revoked\n"
      "+5001 > request 1: fail lease_expired retry\n")

SCENE(lease_that_the_producer_does_not_know_is_heard_at_once, "control published",
      "alter A token\n"
      "request 1 A > request 1: recompute lease_unknown 0+64\n"
      "stats D requests_lost.lease_unknown > 1\n")

/* What other consumers say to P0 of A's lease, over D's connection: `count` of them, from the `first` on. */
static void others(uint32_t first, uint32_t count, kvf_finish_kind kind)
{
  static kvf_leases leases;
  static uint8_t body[KVF_LEASES_BYTES_MAX];
  size_t bytes = 0;
  leases = (kvf_leases){.count = count};
  for (uint32_t i = 0; i < count; i++) {
    leases.items[i] = (kvf_leases_item){c.tickets[0].lease, 1000 + first + i, (uint8_t)kind};
  }
  assert_int_equal(kvf_leases_encode(&leases, body, sizeof(body), &bytes), KVF_OK);
  kvf_core_on_frame(c.p[0].core, c.now_ns, c.wires[0].producer_id, KVF_FRAME_LEASES, body, bytes);
  cluster_settle();
}

/* P0's lease has room for no consumer but D's next. */
static void open_crowded(const char *options)
{
  cluster_open(options);
  scene(
      "know P0\n"
      "publish A\n");
  others(0, KVF_LEASE_CONSUMERS_MAX, KVF_FINISH_NONE);
}

CLUSTER_TEST(lease_that_has_no_room_for_it_is_heard_at_once)
{
  open_crowded("control");
  scene("request 1 A > request 1: recompute lease_crowded 0+64\n");
}

/* Its load may be in time: the lease ends when those that it counts are done. */
CLUSTER_TEST(load_from_a_lease_that_has_no_room_for_it)
{
  open_crowded("control");
  scene(
      "cut P0\n"
      "down P0\n"
      "request 1 A\n"
      "begin 1\n"
      "up P0\n"
      "+501\n"
      "+5000\n"
      "report 1 1 lease_expired 0 > request 1: recompute lease_crowded 0+64\n");
}

/* It may be published a step later than its ticket arrives. */
SCENE(lease_that_is_not_published_yet_is_waited_for, "control",
      "request 1 A\n"
      "+5001\n"
      "publish A\n"
      "+5001\n"
      "fence A P0 > live\n")

SCENE(load_that_has_begun_hears_of_its_lease_itself, "control published",
      "request 1 A\n"
      "begin 1\n"
      "end A > P0 ends A: revoked\n"
      "+5001\n")

/* The probe says nothing. */
SCENE(producer_that_is_gone_is_given_up_after_two_tries, "control published hold=dials",
      "request 1 A > dial P0\n"
      "accept P0\n"
      "+4000\n"
      "cut P0\n"
      "+1001 > dial P0\n"
      "refuse P0\n"
      "+501 > dial P0\n"
      "refuse P0\n"
      "+4500 > dial P0\n"
      "refuse P0 > request 1: recompute peer_down 0+64\n"
      "stats D requests_lost.peer_down > 1\n")

SCENE(producer_that_is_another_process_is_given_up_at_once, "control published",
      "alter A incarnation\n"
      "request 1 A > D hangs up on P0; request 1: recompute peer_restarted 0+64\n"
      "stats D requests_lost.peer_restarted > 1\n")

SCENE(producer_that_is_back_in_time_is_not_given_up, "control published hold=dials",
      "request 1 A > dial P0\n"
      "refuse P0\n"
      "+501 > dial P0\n" /* the probe */
      "accept P0\n"
      "+4500\n" /* renews */
      "cut P0\n"
      "+5001 > dial P0\n"
      "refuse P0\n"
      "+501 > dial P0\n"
      "accept P0\n"
      "+4500\n"
      "cut P0\n"
      "+5001 > dial P0\n"
      "fence A P0 > live\n")

/* ---- what the log says of them ---- */

/* By the engine's name, how much has come, and what becomes of the rest. */
SCENE(
    a_verdict_is_one_line, "control",
    "request 1 A name=cmpl-one\n"
    "begin 1\n"
    "report 1 1 deadline 3 > request 1: recompute deadline 48+16\n"
    "log D > request cmpl-one (1): deadline: 48 of 64 tokens were loaded (3 of 4 blocks), the last 16 are computed "
    "here; lease A of [::1]:80\n"
    "request 2 A keep_from=49\n"
    "begin 2\n"
    "report 2 1 deadline 3 > request 2: recompute deadline 0+64\n"
    "log D > request 2: deadline: 48 of 64 tokens were loaded (3 of 4 blocks), the last 64 are computed here; lease A "
    "of [::1]:80\n")

SCENE(a_failure_says_by_what_rule, "control policy=recompute",
      "request 1 A name=cmpl-one policy=fail\n"
      "begin 1\n"
      "report 1 1 deadline 3 > request 1: fail deadline retry\n"
      "log D cmpl-one > request cmpl-one (1): deadline: 48 of 64 tokens were loaded (3 of 4 blocks), it fails (policy "
      "fail); lease A of [::1]:80\n"
      "request 2 A name=cmpl-two policy=auto auto_max_recompute_tokens=15\n"
      "begin 2\n"
      "report 2 1 deadline 3 > request 2: fail deadline retry\n"
      "log D cmpl-two > request cmpl-two (2): deadline: 48 of 64 tokens were loaded (3 of 4 blocks), it fails (policy "
      "auto: more tokens are missing than auto_max_recompute_tokens); lease A of [::1]:80\n"
      "request 3 A name=cmpl-three\n"
      "begin 3\n"
      "report 3 1 limit 0 > request 3: fail limit\n"
      "log D cmpl-three > request cmpl-three (3): limit: 0 of 64 tokens were loaded (0 of 4 blocks), it fails "
      "(recomputing "
      "is not safe after this); lease A of [::1]:80\n")

SCENE(a_spent_budget_is_named, "control recompute_budget_tokens_per_s=20",
      "request 1 A\n"
      "begin 1\n"
      "report 1 1 deadline 2 > request 1: recompute deadline 32+32\n"
      "request 2 A name=cmpl-two\n"
      "begin 2\n"
      "report 2 1 deadline 2 > request 2: fail deadline retry in 1834 ms\n"
      "log D cmpl-two > request cmpl-two (2): deadline: 32 of 64 tokens were loaded (2 of 4 blocks), it fails (the "
      "recompute_budget_tokens_per_s is spent); lease A of [::1]:80\n")

SCENE(a_refused_ticket_names_its_request, "control p.model=another",
      "request 1 A name=cmpl-one > incompatible\n"
      "log D cmpl-one > request cmpl-one: ticket refused: incompatible: model differs: producer has another value, "
      "consumer has \"m\"\n"
      "load 7 A name=cmpl-one > incompatible\n"
      "log D ticket > request cmpl-one (7): ticket refused: incompatible: model differs: producer has another value, "
      "consumer has \"m\"\n")
