/* Real nodes over loopback: a consumer that is told no ticket finds it. */
#include "../../sides/peer.h"
#include "pair.h"
#include "runtime/pump.h"
#include "test.h"

#include <unistd.h>

#define COUNT 12
#define SEED 5
#define TIMEOUT_MS 20000
#define KEY "a key of sixteen"
#define OTHER_KEY "another key here"

static char key_path[64];
static char other_key_path[64];
static kvf_node *control; /* of the consumer's engine: it listens to nobody */
static pair_ticket ticket;
static char producer_at[KVF_ADDRESS_TEXT_BYTES];

static void open_control(const char *key_file, const char *tls, const char *peers)
{
  const pair_option options[] = {{"listen", ""},   {"key_file", key_file}, {"tls", tls},
                                 {"peers", peers}, {"log_level", "error"}, {NULL, NULL}};
  char message[KVF_MESSAGE_BYTES_MAX];
  if (pair_open_bare(options, &control, message) != KVF_OK) {
    fail_msg("node: %s", message);
  }
}

/* A producer with a published ticket, and a consumer whose control node has this key. */
static void open_all(const char *tls, const char *control_key)
{
  const pair_option options[] = {{"key_file", key_path}, {"tls", tls}, {NULL, NULL}};
  pair_open(options);
  kvf_address_format(&p.producer.node->address, producer_at);
  pair_offer(&p.producer, 0, COUNT, SEED, true, &ticket);
  open_control(control_key, tls, producer_at);
}

static void close_all(void)
{
  kvf_node_close(control);
  control = NULL;
  pair_close();
}

#define FIND_TEST(name) TEST_WITH(name, NULL, close_all)

static kvf_status offer(void)
{
  return kvf_ticket_offer(p.producer.node, ticket.text, ticket.bytes);
}

/* What a find of the ticket's prompt comes to. */
static kvf_status find_on(kvf_node *node, uint64_t *id)
{
  const uint64_t until_ms = now_ms() + TIMEOUT_MS;
  assert_int_equal(kvf_ticket_find(node, &ticket.prompt, producer_at, TIMEOUT_MS, 3, id), KVF_OK);
  while (now_ms() < until_ms + PAIR_LATE_MS) {
    kvf_event event;
    if (kvf_node_poll(node, &event, 1) == 0) {
      sleep_ms(1);
    } else if (event.kind == KVF_EVENT_TICKET) {
      assert_int_equal(event.id, *id);
      assert_int_equal(event.user, 3);
      return event.u.found;
    }
  }
  fail_msg("no event");
  return KVF_AGAIN;
}

static pair_ticket take(kvf_node *node, uint64_t id)
{
  pair_ticket taken = ticket;
  taken.bytes = 0;
  memset(taken.text, 0, sizeof(taken.text));
  assert_int_equal(kvf_ticket_take(node, id, taken.text, sizeof(taken.text), &taken.bytes), KVF_OK);
  assert_int_equal(taken.bytes, ticket.bytes);
  assert_memory_equal(taken.text, ticket.text, ticket.bytes);
  return taken;
}

static void assert_loads(const pair_ticket *found)
{
  pair_fetch_whole(&p.consumer, found, 20);
  assert_int_equal(pair_wait_lease_end(&p.producer, ticket.lease.id, TIMEOUT_MS), KVF_LEASE_END_COMPLETED);
}

static void a_find_leads_to_a_load(const char *tls)
{
  uint64_t id = 0;
  open_all(tls, key_path);
  assert_int_equal(offer(), KVF_OK);
  assert_int_equal(find_on(control, &id), KVF_OK);
  const pair_ticket found = take(control, id);
  assert_int_equal(find_on(control, &id), KVF_NOT_FOUND); /* given to that one */
  assert_loads(&found);
  assert_int_equal(pair_stat(&p.producer, "offers_open", ""), 0);
  assert_int_equal(pair_stat(&p.producer, "offers_given", ""), 1);
}

FIND_TEST(a_find_leads_to_a_load_in_the_clear)
{
  a_find_leads_to_a_load("never");
}

FIND_TEST(a_find_leads_to_a_load_over_tls)
{
  a_find_leads_to_a_load("always");
}

/* P8: who lacks the key is told nothing, and no offer is spent on him. */
FIND_TEST(a_stranger_finds_nothing)
{
  uint64_t id = 0;
  open_all("never", other_key_path);
  assert_int_equal(offer(), KVF_OK);
  assert_int_equal(find_on(control, &id), KVF_HANDSHAKE_REFUSED);
  assert_int_equal(kvf_ticket_take(control, id, ticket.text, sizeof(ticket.text), &ticket.bytes), KVF_NOT_FOUND);
  assert_int_equal(pair_stat(&p.producer, "finds_heard", ""), 0);
  assert_int_equal(pair_stat(&p.producer, "offers_given", ""), 0);
  assert_int_equal(pair_stat(&p.producer, "offers_open", ""), 1);
}

/* A producer that is started after the find has failed is found by the next one. */
FIND_TEST(a_producer_that_comes_later_is_found)
{
  uint64_t id = 0;
  char at[KVF_ADDRESS_TEXT_BYTES];
  open_all("never", key_path);
  assert_int_equal(offer(), KVF_OK);
  memcpy(at, producer_at, sizeof(at));
  pair_close_node(&p.producer);
  assert_int_not_equal(find_on(control, &id), KVF_OK);
  const pair_option options[] = {{"key_file", key_path}, {"tls", "never"}, {"listen", at}, {NULL, NULL}};
  pair_open_node(&p.producer, options);
  pair_offer(&p.producer, 0, COUNT, SEED, true, &ticket);
  assert_int_equal(offer(), KVF_OK);
  kvf_status status = KVF_PEER_DOWN;
  for (const uint64_t until_ms = now_ms() + TIMEOUT_MS; status != KVF_OK && now_ms() < until_ms;) {
    status = find_on(control, &id);
    sleep_ms(20);
  }
  assert_int_equal(status, KVF_OK);
  (void)take(control, id);
}

FIND_TEST(calls_that_are_wrong)
{
  kvf_prompt prompt;
  uint64_t id = 0;
  size_t bytes = 0;
  char text[16];
  open_all("never", key_path);
  kvf_node *producer = p.producer.node;
  assert_int_equal(kvf_ticket_offer(producer, NULL, 0), KVF_INVALID);
  assert_int_equal(kvf_ticket_offer(producer, ticket.text, ticket.bytes - 1), KVF_BAD_TICKET);
  assert_int_equal(kvf_ticket_offer(control, ticket.text, ticket.bytes), KVF_NOT_FOUND);
  assert_int_equal(kvf_ticket_offer(p.consumer.node, ticket.text, ticket.bytes), KVF_NOT_FOUND);
  assert_int_equal(offer(), KVF_OK);
  assert_int_equal(offer(), KVF_EXISTS);
  assert_int_equal(kvf_ticket_find(control, NULL, NULL, 0, 0, &id), KVF_INVALID);
  assert_int_equal(kvf_ticket_find(control, &ticket.prompt, NULL, 0, 0, NULL), KVF_INVALID);
  assert_int_equal(kvf_ticket_find(control, &ticket.prompt, NULL, KVF_FIND_TIMEOUT_MS_MAX + 1, 0, &id), KVF_INVALID);
  assert_int_equal(kvf_ticket_find(control, &ticket.prompt, "127.0.0.1:1", 0, 0, &id), KVF_NOT_FOUND);
  assert_int_equal(kvf_ticket_find(producer, &ticket.prompt, NULL, 0, 0, &id), KVF_NOT_FOUND); /* has no peers */
  assert_int_equal(kvf_ticket_take(control, 1, NULL, 0, &bytes), KVF_INVALID);
  assert_int_equal(kvf_ticket_take(control, 1, text, sizeof(text), NULL), KVF_INVALID);
  assert_int_equal(kvf_ticket_take(control, 1, text, sizeof(text), &bytes), KVF_NOT_FOUND);
  assert_int_equal(kvf_ticket_prompt(control, NULL, 0, &prompt), KVF_INVALID);
  assert_int_equal(kvf_ticket_prompt(control, ticket.text, ticket.bytes, NULL), KVF_INVALID);
  assert_int_equal(find_on(control, &id), KVF_OK);
  assert_int_equal(kvf_ticket_take(control, id, text, sizeof(text), &bytes), KVF_LIMIT);
}

/* Also of a text of several, the first. */
FIND_TEST(a_ticket_says_its_prompt)
{
  kvf_prompt prompt = {.tokens = 77};
  pair_ticket other;
  open_all("never", key_path);
  pair_offer(&p.producer, 1, COUNT, SEED + 1, false, &other);
  assert_int_equal(kvf_ticket_prompt(control, ticket.text, ticket.bytes, &prompt), KVF_OK);
  assert_memory_equal(&prompt, &ticket.prompt, sizeof(prompt));
  const size_t first_bytes = other.bytes;
  pair_add_source(&other, &ticket);
  assert_int_equal(kvf_ticket_prompt(control, other.text, other.bytes, &prompt), KVF_OK);
  assert_memory_equal(&prompt, &other.prompt, sizeof(prompt));
  other.text[first_bytes / 2] ^= 1;
  prompt.tokens = 77;
  assert_int_equal(kvf_ticket_prompt(control, other.text, other.bytes, &prompt), KVF_BAD_TICKET);
  assert_int_equal(prompt.tokens, 77);
}

FIND_TEST(a_find_is_cut_short_by_the_end_of_its_node)
{
  uint64_t id = 0;
  open_all("never", key_path);
  for (int i = 0; i < 100; i++) {
    assert_int_equal(kvf_ticket_find(control, &ticket.prompt, NULL, TIMEOUT_MS, 3, &id), KVF_OK);
  }
}

int main(int argc, char **argv)
{
  stranger_key_file(KEY, key_path);
  stranger_key_file(OTHER_KEY, other_key_path);
  const int failed = test_run(argc > 1 ? argv[1] : NULL);
  (void)unlink(key_path);
  (void)unlink(other_key_path);
  return failed;
}
