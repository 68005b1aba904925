/* What fails in the middle of a find, and what is counted. Linked with --wrap for allocations and kvf_mac_make. */
#include "../../allocation.h"
#include "find_world.h"

static kvf_ticket ticket;
static uint32_t ids[16];
static char text[KVF_TICKET_BYTES_MAX];
static size_t text_bytes;
static uint64_t find_id;
static bool macs_fail;

kvf_status __real_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __wrap_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);

kvf_status __wrap_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  return macs_fail ? KVF_NO_MEMORY : __real_kvf_mac_make(mac, spans, count, out);
}

/* A ticket is published, and the producer known to the consumer. */
static int set_up(__attribute__((unused)) void **state)
{
  control_options options;
  control_options_init(&options);
  options.control = true;
  find_world_open(&options);
  control_ticket(&ticket, ids, 4);
  control_publish(&ticket);
  assert_int_equal(kvf_ticket_encode(&ticket, &producer()->context.self.macs[0], text, sizeof(text), &text_bytes),
                   KVF_OK);
  assert_int_equal(kvf_core_add_static(consumer(), "p:80", &ticket.rank[0].address), KVF_OK);
  find_id = 0;
  return 0;
}

#define FINDER_TEST(name) TEST_WITH(name, set_up, control_world_close)

static kvf_status offer(void)
{
  return offer_ticket(producer(), &ticket, text, text_bytes);
}

static kvf_status start(void)
{
  const kvf_find_key key = key_of(4);
  return kvf_finds_start(&finders.consumer.finds, world.now_ns, &key, NULL, 0, 9, &find_id);
}

static void assert_not_offered(void)
{
  const kvf_offers *offers = &finders.producer.offers;
  assert_null(offers->by_slot);
  assert_null(offers->buckets);
  assert_int_equal(offers->bytes, 0);
}

static void assert_not_started(void)
{
  assert_int_equal(find_id, 0);
  assert_null(finders.consumer.finds.by_id);
  for (const kvf_peer *peer = consumer()->peers.by_key; peer != NULL; peer = peer->by_key.next) {
    assert_int_equal(peer->users, 0);
  }
}

/* Calls until it succeeds. Returns how many allocations it needs. */
static uint32_t fail_each(kvf_status (*call)(void), void (*assert_unchanged)(void))
{
  for (uint32_t n = 0;; n++) {
    allocation_fail(n, 1);
    const kvf_status status = call();
    const bool failed = allocation_stop();
    if (status == KVF_OK) {
      return n;
    }
    assert_true(failed);
    assert_int_equal(status, KVF_NO_MEMORY);
    assert_unchanged();
  }
}

FINDER_TEST(without_memory_nothing_is_offered_and_nothing_asked)
{
  assert_true(fail_each(offer, assert_not_offered) >= 3);
  assert_true(fail_each(start, assert_not_started) >= 2);
  assert_int_equal(find_id, 1); /* none was used up */
}

/* An offer that nobody could find is none, and what cannot be sealed is not asked for. */
FINDER_TEST(nothing_is_offered_and_nothing_asked_without_a_seal)
{
  macs_fail = true;
  assert_int_equal(offer(), KVF_NO_MEMORY);
  assert_int_equal(start(), KVF_NO_MEMORY);
  macs_fail = false;
  assert_not_offered();
  assert_not_started();
  assert_int_equal(offer(), KVF_OK);
}

/* P6: what fails on the way costs the find, or its offer, never the node; what is given is remembered, or not given. */
FINDER_TEST(what_fails_on_the_way_costs_the_find_alone)
{
  kvf_event event;
  bool some_failed = true;
  uint32_t lost = 0;
  for (uint32_t n = 0; some_failed; n++) {
    (void)set_up(NULL);
    kvf_core_start(consumer(), world.now_ns);
    control_settle();
    control_dial(KVF_OK); /* who is it? */
    control_dial(KVF_OK);
    assert_int_equal(offer(), KVF_OK);
    assert_int_equal(start(), KVF_OK);
    allocation_fail(n, 1);
    control_settle();
    some_failed = allocation_stop();
    for (int i = 0; i < 100 && !kvf_core_has_event(consumer()); i++) {
      control_advance(500);
    }
    assert_true(kvf_core_next_event(consumer(), world.now_ns, &event));
    assert_int_equal(event.kind, KVF_EVENT_TICKET);
    lost += event.u.found != KVF_OK;
    if (event.u.found == KVF_OK) {
      size_t bytes = 0;
      assert_int_equal(finders.producer.offers.counters.given, 1);
      assert_int_equal(kvf_finds_take(&finders.consumer.finds, world.now_ns, event.id, text, sizeof(text), &bytes),
                       KVF_OK);
    }
    assert_null(finders.consumer.finds.by_id);
  }
  assert_true(lost > 3);
}

/* Each counter is shown under its own name. */
FINDER_TEST(counters_are_not_mixed_up)
{
  kvf_finder *finder = &finders.producer;
  kvf_find_counters *finds = &finder->finds.counters;
  const struct {
    const char *name;
    const char *reason;
    uint64_t *counter;
  } sources[] = {
      {"offers_made", "", &finder->offers.counters.made},
      {"offers_given", "", &finder->offers.counters.given},
      {"finds_heard", "", &finder->counters.heard},
      {"finds_refused", "", &finder->counters.refused},
      {"finds_asked", "", &finds->asked},
      {"finds_dropped", "", &finds->dropped},
      {"finds_forgotten", "", &finds->forgotten},
      {"finds", "ok", &finds->over[kvf_status_index(KVF_OK)]},
      {"finds", "not_found", &finds->over[kvf_status_index(KVF_NOT_FOUND)]},
      {"finds", "deadline", &finds->over[kvf_status_index(KVF_DEADLINE)]},
      {"finds", "peer_down", &finds->over[kvf_status_index(KVF_PEER_DOWN)]},
  };
  const size_t sources_count = sizeof(sources) / sizeof(sources[0]);
  kvf_stat stats[64];
  assert_int_equal(offer(), KVF_OK);
  for (size_t i = 0; i < sources_count; i++) {
    *sources[i].counter = 1000 + i;
  }
  const size_t count = kvf_finder_stats(finder, stats, 64);
  assert_true(count > sources_count && count < 64);
  assert_int_equal(kvf_finder_stats(finder, stats, count - 1), count - 1);
  size_t found = 0;
  for (size_t k = 0; k < count; k++) {
    assert_int_equal(stats[k].gauge, strcmp(stats[k].name, "offers_open") == 0);
    assert_true(!stats[k].gauge || stats[k].value == 1);
    for (size_t i = 0; i < sources_count; i++) {
      if (strcmp(stats[k].name, sources[i].name) == 0 && strcmp(stats[k].reason, sources[i].reason) == 0) {
        assert_int_equal(stats[k].value, 1000 + i);
        found++;
      }
    }
  }
  assert_int_equal(found, sources_count);
}
