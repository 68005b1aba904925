/* Finds at a consumer, and a producer that answers them. */
#include "find_scene.h"

#define ALONE "control key=a-key-of-sixteen hold=dials"
#define PUBLISHED "published " ALONE
#define OFFERED CONNECTED "offer A\n"

/* ---- what is found ---- */

SCENE(a_ticket_is_found, PUBLISHED ",events",
      OFFERED
      "find 1 4\n"
      "take 1 > not_found\n" /* before its event */
      "event > find 1: ok\n"
      "event\n"
      "take 1 short > limit\n"
      "take 1 > A\n"
      "take 1 > not_found\n"
      "finder P0 offers_given > 1\n"
      "finder D ok finds_open > 1; 0\n")

SCENE(no_ticket_is_found, PUBLISHED,
      OFFERED
      "find 1 5 > find 1: not_found\n"
      "take 1 > not_found\n"
      "finder D not_found finds_open > 1; 0\n")

SCENE(two_finds_have_two_tickets, PUBLISHED,
      OFFERED
      "find 1 4 > find 1: ok\n"
      "take 1 > A\n"
      "find 2 4 > find 2: not_found\n" OFFER_B
      "find 3 4 > find 3: ok\n"
      "take 3 > B\n"
      "finder D finds_open > 0\n")

/* A find may be started as soon as there is a node. */
#define CONNECTS_BY_ITSELF                                   \
  "known p:80 P0\n"                                          \
  "offer A\n"                                                \
  "find 1 4 > dial P0\n"                                     \
  "accept P0 > dial P0; D hangs up on P0\n" /* who is it? */ \
  "accept P0 > find 1: ok\n"                                 \
  "take 1 > A\n"                                             \
  "finder D finds_open > 0\n"

SCENE(a_find_connects_by_itself, PUBLISHED, CONNECTS_BY_ITSELF)

/* A rank's node, too, whether it has memory or not. */
SCENE(ranks_find_as_well, "hold=dials published", CONNECTS_BY_ITSELF)

/* While a fleet changes its key, whichever comes first. */
SCENE(is_found_while_the_old_key_is_the_first, "key=the-old-key-.... p.other=the-new-key-.... hold=dials published",
      CONNECTS_BY_ITSELF)
SCENE(is_found_while_the_new_key_is_the_first, "key=the-new-key-.... p.other=the-old-key-.... hold=dials published",
      CONNECTS_BY_ITSELF)

/* ---- who is asked ---- */

SCENE(one_peer_is_asked_by_name_or_address, ALONE,
      CONNECTED
      "find 1 4 at=p:80 > find 1: not_found\n"
      "find 1 4 at=[::1]:80 > find 1: not_found\n"
      "find 1 4 at=p:81 > not_found\n"
      "find 1 4 at=P:80 > not_found\n"
      "find 1 4 at=[::1]:81 > not_found\n"
      "find 1 4 at=[::2]:80 > not_found\n"
      "find 1 4 at=127.0.0.1:80 > not_found\n"
      "find 1 4 at= > not_found\n"
      "finder D finds_asked finds_open > 2; 0\n")

SCENE(without_peers_nobody_is_asked, ALONE,
      "find 1 4 > not_found\n"
      "stats D peer_dials > 0\n"
      "finder D finds_open > 0\n")

SCENE(a_peer_with_two_names_is_asked_once, ALONE,
      "known other:80 P0\n" CONNECTED
      "hold P0\n"
      "find 1 4\n"
      "finder D finds_asked > 1\n"
      "peers > P0 x3 +control; P0 x0 -control\n")

/* ---- who cannot be asked ---- */

SCENE(who_is_down_is_not_waited_for, ALONE,
      "known p:80 P0\n"
      "find 1 4 > dial P0\n"
      "refuse P0 > find 1: peer_down\n"
      "find 2 4 > find 2: peer_down\n" /* its breaker is open */
      "finder D peer_down finds_open > 2; 0\n")

/* P8: nothing is asked of, or believed from, who does not have our key. */
SCENE(who_has_another_key_is_not_asked, "control d.key=a-key-of-sixteen p.key=another-key-here hold=dials published",
      "known p:80 P0\n"
      "offer A\n"
      "find 1 4 > dial P0\n"
      "accept P0 > P0 hangs up on D; find 1: handshake_refused\n"
      "finder D finds_asked finds_open > 0; 0\n"
      "finder P0 offers_given > 0\n")

/* Another peer is known, of which nobody knows yet that it is down; the first is connected. */
#define ANOTHER "apart ranks=2 " PUBLISHED
#define KNOW_ANOTHER "known q:81 P1\n"

/* Nobody has it if those that can be asked have not. */
SCENE(one_of_two_is_down_and_the_other_has_none, ANOTHER,
      CONNECTED KNOW_ANOTHER
      "find 1 4 > dial P1\n" /* which may have it */
      "refuse P1 > find 1: not_found\n"
      "finder D finds_open > 0\n")

SCENE(the_first_ticket_is_taken, ANOTHER,
      OFFERED KNOW_ANOTHER
      "find 1 4 > dial P1; find 1: ok\n" /* nobody waits for the other one */
      "refuse P1\n"
      "take 1 > A\n"
      "finder D finds_open > 0\n")

SCENE(both_are_down, ANOTHER,
      CONNECTED KNOW_ANOTHER
      "hold P0\n"
      "find 1 4 > dial P1\n"
      "refuse P1\n"
      "cut P0 > dial P0\n"
      "refuse P0 > find 1: peer_down\n"
      "finder D finds_open > 0\n")

/* The successor of a process may have the ticket. */
SCENE(a_successor_is_asked, PUBLISHED,
      CONNECTED "restart P0\n" OFFER_B
                "find 1 4 > dial P0\n"
                "accept P0 > dial P0; D hangs up on P0\n"
                "peers > P0 x1 -control; P0 x1 -control peer_restarted\n"
                "accept P0 > dial P0; D hangs up on P0\n" /* who is it? */
                "accept P0 > find 1: ok\n"
                "take 1 > B\n")

SCENE(successors_without_end_are_not_asked, ALONE,
      CONNECTED
      "restart P0\n"
      "find 1 4 > dial P0\n"
      "accept P0 > dial P0; D hangs up on P0\n"
      "restart P0\n"
      "accept P0 > dial P0; D hangs up on P0\n" /* who is it? */
      "restart P0\n"
      "accept P0 > D hangs up on P0; find 1: peer_restarted\n"
      "finder D finds_open > 0\n")

/* ---- a connection that is lost ---- */

/* The answer was on its way: it is asked for again, and is the same. */
SCENE(a_lost_answer_comes_again, PUBLISHED,
      OFFERED
      "hold P0\n"
      "find 1 4\n"
      "finder P0 offers_given > 1\n"
      "cut P0 > dial P0\n"
      "let P0\n"
      "accept P0 > find 1: ok\n"
      "take 1 > A\n"
      "finder D finds_asked finds_open > 2; 0\n"
      "finder P0 offers_given > 1\n")

static kvf_status hear_nothing(__attribute__((unused)) kvf_guest *guest, __attribute__((unused)) uint64_t now_ns,
                               __attribute__((unused)) kvf_session *session,
                               __attribute__((unused)) const uint8_t *body, __attribute__((unused)) size_t body_bytes)
{
  return KVF_OK;
}

/* Who closes the connection whenever he is asked. */
CLUSTER_TEST(a_connection_that_is_lost_again_and_again_is_given_up)
{
  cluster_open(ALONE);
  finders[1].guest.on_question = hear_nothing;
  scene(CONNECTED
        "find 1 4\n"
        "cut P0 > dial P0\n"
        "accept P0\n"
        "finder D finds_asked > 2\n"
        "cut P0 > dial P0\n"
        "accept P0\n"
        "finder D finds_asked > 3\n"
        "cut P0 > find 1: peer_down\n"
        "finder D finds_asked finds_open > 3; 0\n");
}

/* Those that have not been asked yet wait for the next connection. */
SCENE(questions_that_wait_for_others_survive_their_connection, ALONE ",events",
      CONNECTED
      "hold P0\n"
      "find 1 4 x12\n"
      "finder D finds_asked > 4\n"
      "cut P0 > dial P0\n"
      "let P0\n"
      "accept P0\n"
      "finder D not_found > 12\n")

/* ---- time ---- */

SCENE(a_find_has_a_timeout, PUBLISHED,
      OFFERED
      "hold P0\n"
      "find 1 4 timeout=300\n"
      "+299\n"
      "+2 > find 1: deadline\n"
      "finder D finds_open > 0\n"
      "let P0\n" /* the answer is late: its lease runs out */
      "finder D finds_dropped > 1\n"
      "find 2 5 > find 2: not_found\n") /* the connection is as it was */

SCENE(a_timeout_is_bounded, ALONE,
      CONNECTED
      "find 1 4 timeout=600001 > invalid\n"
      "hold P0\n"
      "find 1 4\n"
      "+1001 > D hangs up on P0; find 1: deadline\n") /* both clocks have run out */

/* Before a long timeout has passed. */
SCENE(who_does_not_answer_is_down, ALONE,
      CONNECTED
      "hold P0\n"
      "find 1 4 timeout=60000\n"
      "+1001 > D hangs up on P0; find 1: peer_down\n"
      "stats D peer_failures > 1\n"
      "finder D finds_open > 0\n")

/* The event waits for as long as it takes; the ticket does not. */
SCENE(a_ticket_that_is_not_taken_is_forgotten, PUBLISHED ",events",
      OFFERED
      "find 1 4\n"
      "+120000\n"
      "event > find 1: ok; P0 ends A: expired\n"
      "+29999\n"
      "take 1 short > limit\n" /* still there */
      "+2\n"
      "take 1 > not_found\n"
      "finder D finds_forgotten finds_open > 1; 0\n")

/* ---- limits ---- */

/* P6 */
CLUSTER_TEST(finds_are_bounded)
{
  cluster_open(ALONE ",events");
  scene(CONNECTED
        "hold P0\n"
        "find 1 5 x1000\n"
        "finder D finds_asked > 4\n"
        "find 1 5 > no_resource\n"
        "let P0\n"
        "finder D finds_asked > 1000\n" /* each in its turn */
        "finder P0 finds_refused > 0\n"
        "find 1 5 > no_resource\n"); /* their events wait */
  for (uint64_t i = 1; i <= KVF_FINDS_MAX; i++) {
    assert_true(cluster_event(KVF_EVENT_TICKET));
    assert_int_equal(c.event.id, i); /* in their order */
    assert_int_equal(c.event.u.found, KVF_NOT_FOUND);
  }
  scene(
      "finder D finds_open > 0\n"
      "find 1 5\n");
}

/* ---- answers that are none ---- */

#define HUNG_UP                                                   \
  "log D protocol > peer [::1]:80: protocol: malformed message\n" \
  "stats D peer_failures > 1\n"                                   \
  "finder D finds_open > 0\n"

/* P2, P8: who has the key may not answer what he likes either. */
SCENE(a_ticket_of_another_prompt_is_not_told, PUBLISHED,
      OFFERED
      "hold P0\n"
      "find 1 5\n"
      "found 1 > D hangs up on P0; find 1: protocol\n" HUNG_UP)

SCENE(an_altered_ticket_is_not_told, PUBLISHED,
      OFFERED
      "hold P0\n"
      "find 1 4\n"
      "found 1 altered > D hangs up on P0; find 1: protocol\n" HUNG_UP)

SCENE(an_answer_that_was_not_asked_for_ends_the_session, PUBLISHED, CONNECTED "found 1 > D hangs up on P0\n" HUNG_UP)

/* Which opens its breaker: nobody is asked again. */
SCENE(a_malformed_answer_ends_the_session, PUBLISHED,
      OFFERED
      "hold P0\n"
      "find 1 4\n"
      "found 1 cut > D hangs up on P0; find 1: protocol\n" HUNG_UP)

/* An answer to another question than those that are open counts as one to a find that is over. */
SCENE(an_answer_to_another_question_is_dropped, PUBLISHED,
      OFFERED
      "hold P0\n"
      "find 1 4\n"
      "found 2\n"
      "finder D finds_dropped finds_open > 1; 1\n"
      "found 1 > D hangs up on P0; find 1: protocol\n" /* one too many */
      HUNG_UP)
