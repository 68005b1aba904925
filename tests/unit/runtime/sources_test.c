/* Two producers of the same prompt, and a ticket that names both. */

#include "pair.h"
#include "test.h"

#define COUNT 24
#define SEED 3
#define TRIES 200
#define TIMEOUT_MS 20000

static pair_node other; /* producer */
static pair_ticket tickets[2];
static pair_ticket joined;

static void tear_down(void)
{
  pair_close_node(&other);
  pair_close();
}

#define THREE_TEST(name) TEST_WITH(name, NULL, tear_down)

static void join(void)
{
  joined = tickets[0];
  pair_add_source(&joined, &tickets[1]);
}

/* The second has it in other blocks. */
static void offer_both(void)
{
  pair_offer(&p.producer, 0, COUNT, SEED, true, &tickets[0]);
  pair_offer(&other, 11, COUNT, SEED, true, &tickets[1]);
  join();
}

static void open_three(const char *transports)
{
  const pair_option options[] = {{"transports", transports},
                                 {"chunk_bytes", "4096"},
                                 {"chunks_in_flight", "1"},
                                 {"inline_bytes", "0"},
                                 {NULL, NULL}};
  pair_open(options);
  pair_open_node(&other, options);
  offer_both();
}

static uint64_t blocks_from(const char *address)
{
  kvf_peer_stat peers[KVF_PEERS_LISTED_MAX];
  size_t count = kvf_node_peers(p.consumer.node, peers, KVF_PEERS_LISTED_MAX);
  uint64_t blocks = 0;
  for (size_t i = 0; i < count; i++) {
    blocks += strcmp(peers[i].address, address) == 0 ? peers[i].blocks : 0;
  }
  return blocks;
}

static void address_of(const pair_ticket *ticket, char *address)
{
  kvf_request_info info;
  assert_int_equal(kvf_request_open(p.consumer.node, ticket->text, ticket->bytes, &ticket->prompt, NULL, 9, &info),
                   KVF_OK);
  (void)snprintf(address, KVF_HOST_BYTES_MAX, "%s", info.peer);
}

EACH_TRANSPORT_TEST(closed_producer_is_replaced)
{
  open_three(transport);
  pair_close_node(&p.producer);
  pair_fetch_whole(&p.consumer, &joined, 0);
  assert_int_equal(pair_stat(&p.consumer, "source_switches", ""), 1);
  assert_int_equal(pair_stat(&p.consumer, "loads_done", ""), 1);
  assert_int_equal(pair_stat(&p.consumer, "loads_failed", "peer_down"), 0);
  assert_true(pair_logged(&p.consumer, "0 of 24 blocks were loaded, the others come from", NULL));
  assert_int_equal(pair_wait_lease_end(&other, tickets[1].lease.id, TIMEOUT_MS), KVF_LEASE_END_COMPLETED);
}

/* P5: both leases end when the request has its verdict, also the one that nobody read. */
THREE_TEST(unread_source_gets_its_blocks_back)
{
  open_three("local");
  pair_fetch_whole(&p.consumer, &joined, 0);
  assert_int_equal(pair_stat(&p.consumer, "source_switches", ""), 0);
  assert_int_equal(pair_wait_lease_end(&p.producer, tickets[0].lease.id, TIMEOUT_MS), KVF_LEASE_END_COMPLETED);
  assert_int_equal(pair_wait_lease_end(&other, tickets[1].lease.id, TIMEOUT_MS), KVF_LEASE_END_COMPLETED);
}

/* Ends the first producer's lease as soon as some blocks of it have arrived; false if that came too late. */
static bool cut_midway(void)
{
  char address[2][KVF_HOST_BYTES_MAX];
  uint64_t before[2];
  uint64_t switches = pair_stat(&p.consumer, "source_switches", "");
  for (uint32_t i = 0; i < 2; i++) {
    address_of(&tickets[i], address[i]);
    before[i] = blocks_from(address[i]);
  }
  uint64_t id = pair_begin(&p.consumer, &joined, 0);
  while (blocks_from(address[0]) < before[0] + 2) {
  }
  (void)kvf_lease_end(p.producer.node, &tickets[0].lease);
  for (uint32_t i = 0; i < COUNT; i++) {
    pair_fill(&p.producer, tickets[0].blocks[i], SEED + 1, i); /* the next owner's bytes */
  }
  const pair_result result = pair_wait(&p.consumer, id);
  assert_int_equal(result.report.status, KVF_OK);
  assert_int_equal(result.report.prefix, COUNT);
  assert_true(pair_holds_all(&p.consumer, 0, COUNT, SEED));
  bool switched = pair_stat(&p.consumer, "source_switches", "") > switches;
  uint64_t first = blocks_from(address[0]) - before[0];
  assert_int_equal(blocks_from(address[1]) - before[1], COUNT - first);
  assert_true(switched == (first < COUNT));
  return switched;
}

/* What the first has brought stays, and no block is read twice. */
THREE_TEST(only_the_rest_is_read_from_the_next)
{
  open_three("tcp");
  bool switched = false;
  for (uint32_t i = 0; i < TRIES && !switched; i++) {
    switched = cut_midway();
    if (!switched) {
      offer_both();
    }
  }
  assert_true(switched);
}

THREE_TEST(altered_source_spoils_the_text)
{
  kvf_request_info info;
  open_three("local");
  joined.text[tickets[0].bytes + 40] ^= 1;
  assert_int_equal(kvf_request_open(p.consumer.node, joined.text, joined.bytes, &joined.prompt, NULL, 9, &info),
                   KVF_BAD_TICKET);
  assert_int_equal(pair_load(&p.consumer, &joined, 1, 0), KVF_BAD_TICKET);
  assert_int_equal(pair_stat(&p.consumer, "peers_known", ""), 0);
}

/* A router's mistake, or a stale replica: the one that fits serves. */
THREE_TEST(source_of_another_prompt_is_left_out)
{
  open_three("local");
  pair_offer(&p.producer, 1, COUNT, SEED + 1, true, &tickets[0]);
  join();
  joined.prompt = tickets[1].prompt;
  joined.seed = SEED;
  pair_fetch_whole(&p.consumer, &joined, 0);
  assert_int_equal(pair_stat(&p.consumer, "sources_left_out", ""), 2); /* the request's, and the load's */
  assert_int_equal(pair_stat(&p.consumer, "tickets_refused", "bad_ticket"), 0);
  assert_true(pair_logged(&p.consumer, "is left out: bad_ticket: made for another prompt", NULL));
}
