/* What fails in the middle of a find, and what is counted. Linked with --wrap for allocations and kvf_mac_make. */
#include "../../allocation.h"
#include "base/status.h"
#include "find_scene.h"

#define OPTIONS "control published hold=dials"

static uint64_t find_id;
static bool macs_fail;

kvf_status __real_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __wrap_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);

kvf_status __wrap_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  return macs_fail ? KVF_NO_MEMORY : __real_kvf_mac_make(mac, spans, count, out);
}

static kvf_status offer(void)
{
  return find_offer(&c.p[0], &c.tickets[0], "x", 1);
}

static kvf_status start(void)
{
  return find_start(4, NULL, 0, 1, &find_id);
}

static void assert_not_offered(void)
{
  scene("finder P0 offers_open > 0\n");
}

static void assert_not_started(void)
{
  assert_int_equal(find_id, 0);
  assert_int_equal(cluster_users(), 0);
  scene("finder D finds_open > 0\n");
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

CLUSTER_TEST(without_memory_nothing_is_offered_and_nothing_asked)
{
  cluster_open(OPTIONS);
  scene("known p:80 P0\n");
  assert_true(fail_each(offer, assert_not_offered) >= 3);
  assert_true(fail_each(start, assert_not_started) >= 2);
  assert_int_equal(find_id, 1); /* none was used up */
}

/* An offer that nobody could find is none, and what cannot be sealed is not asked for. */
CLUSTER_TEST(nothing_is_offered_and_nothing_asked_without_a_seal)
{
  cluster_open(OPTIONS);
  scene("known p:80 P0\n");
  find_id = 0;
  macs_fail = true;
  assert_int_equal(offer(), KVF_NO_MEMORY);
  assert_int_equal(start(), KVF_NO_MEMORY);
  macs_fail = false;
  assert_not_offered();
  assert_not_started();
  assert_int_equal(offer(), KVF_OK);
}

/* P6: what fails on the way costs the find, or its offer, never the node; what is given is remembered, or not given. */
CLUSTER_TEST(what_fails_on_the_way_costs_the_find_alone)
{
  bool some_failed = true;
  uint32_t lost = 0;
  for (uint32_t n = 0; some_failed; n++) {
    cluster_open(OPTIONS);
    scene(CONNECTED "offer A\n");
    c.held = CLUSTER_EVENTS;
    assert_int_equal(start(), KVF_OK);
    allocation_fail(n, 1);
    cluster_settle();
    some_failed = allocation_stop();
    for (int i = 0; i < 100 && !kvf_core_has_event(c.d.core); i++) {
      cluster_advance(500);
    }
    assert_true(cluster_event(KVF_EVENT_TICKET));
    lost += c.event.u.found != KVF_OK;
    if (c.event.u.found == KVF_OK) {
      c.requests[1] = find_id;
      (void)cluster_said();
      scene(
          "finder P0 offers_given > 1\n"
          "take 1 > A\n");
    }
    (void)cluster_said();
    scene("finder D finds_open > 0\n");
  }
  assert_true(lost > 3);
}

/* Each counter is shown under its own name. */
CLUSTER_TEST(counters_are_not_mixed_up)
{
  kvf_finder *finder = &finders[1];
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
  cluster_open(OPTIONS);
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
