#include "base/status.h"
#include "ranks_world.h"
#include "test.h"

#define POSITIONS 4

static kvf_ticket ticket;
static uint32_t ids[RANKS_BLOCKS];
static kvf_stat stats[KVF_STATS_MAX];

static int open_world(__attribute__((unused)) void **state)
{
  ranks_options options;
  ranks_options_init(&options, 1, 1, 2);
  ranks_open(&options);
  ranks_ticket(&ticket, ids, POSITIONS);
  return 0;
}

#define WORLD_TEST(name) TEST_WITH(name, open_world, ranks_close)

static const kvf_stat *stat_of(const kvf_core *core, const char *name, const char *reason)
{
  size_t count = kvf_core_stats(core, stats, KVF_STATS_MAX);
  for (size_t i = 0; i < count; i++) {
    if (strcmp(stats[i].name, name) == 0 && strcmp(stats[i].reason, reason) == 0) {
      return &stats[i];
    }
  }
  fail_msg("no statistic %s %s", name, reason);
  return NULL;
}

static void assert_stat(const kvf_core *core, const char *name, const char *reason, uint64_t value)
{
  if (stat_of(core, name, reason)->value != value) {
    fail_msg("%s %s is %llu, not %llu", name, reason, (unsigned long long)stat_of(core, name, reason)->value,
             (unsigned long long)value);
  }
}

WORLD_TEST(no_two_have_one_name)
{
  size_t count = kvf_core_stats(&world.consumer.core, stats, KVF_STATS_MAX);
  assert_true(count > 0 && count < KVF_STATS_MAX); /* all of them fit */
  for (size_t i = 0; i < count; i++) {
    assert_true(strlen(stats[i].name) > 0);
    assert_non_null(stats[i].reason);
    for (size_t j = 0; j < i; j++) {
      assert_false(strcmp(stats[i].name, stats[j].name) == 0 && strcmp(stats[i].reason, stats[j].reason) == 0);
    }
  }
}

WORLD_TEST(capacity_is_kept)
{
  size_t all = kvf_core_stats(&world.consumer.core, stats, KVF_STATS_MAX);
  for (size_t capacity = 0; capacity <= all; capacity++) {
    memset(stats, 0xee, sizeof(stats));
    const kvf_stat untouched = stats[0];
    assert_int_equal(kvf_core_stats(&world.consumer.core, stats, capacity), capacity);
    assert_memory_equal(&stats[capacity], &untouched, sizeof(untouched));
  }
}

/* Every status that a load can have is a reason of its own; a mistake of the caller's is none. */
WORLD_TEST(outcomes_are_by_reason)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    if (info->status != KVF_OK && info->lost != KVF_LOST_CALL) {
      assert_stat(&world.consumer.core, "loads_failed", info->name, 0);
    }
  }
}

WORLD_TEST(a_load_is_counted_on_both_sides)
{
  kvf_event event;
  const kvf_core *consumer = &world.consumer.core;
  const kvf_core *producer = &world.producers[0].core;
  ranks_publish(0, &ticket);
  world.hold_reads = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_stat(consumer, "loads_open", "", 1);
  assert_true(stat_of(consumer, "loads_open", "")->gauge);
  assert_int_equal(ranks_complete(0, POSITIONS, KVF_OK), POSITIONS);
  assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
  assert_stat(consumer, "loads_open", "", 0);
  assert_stat(consumer, "loads_done", "", 1);
  assert_false(stat_of(consumer, "loads_done", "")->gauge);
  assert_stat(consumer, "chunks", "", POSITIONS);
  assert_stat(consumer, "blocks_loaded", "", POSITIONS);
  assert_stat(consumer, "peers_known", "", 1);
  assert_stat(consumer, "peer_dials", "", 1);
  assert_stat(consumer, "peer_handshakes", "", 1);
  assert_stat(producer, "sessions_accepted", "", 1);
  assert_stat(producer, "sessions_open", "", 1);
  assert_stat(producer, "leases_published", "", 1);
  assert_stat(producer, "leases_live", "", 1);
  assert_stat(producer, "leases_untaken", "", 1);
  assert_true(stat_of(producer, "leases_untaken", "")->gauge);
  assert_stat(producer, "leases_reserved", "", 1);
  assert_stat(producer, "lease_blocks", "", POSITIONS);
  assert_true(stat_of(producer, "lease_blocks", "")->gauge);
  assert_int_equal(kvf_core_lease_end(&world.producers[0].core, world.now_ns, &ticket.lease), KVF_OK);
  ranks_settle();
  assert_stat(producer, "leases_live", "", 0);
  assert_stat(producer, "leases_untaken", "", 0);
  assert_stat(producer, "leases_ended", "revoked", 1);
}

RANKS_TEST(failures_are_counted_by_their_reason)
{
  kvf_event event;
  (void)open_world(NULL); /* not published */
  world.hold_reads = true;
  assert_int_equal(ranks_load(&ticket, 1), KVF_OK);
  assert_int_equal(ranks_complete(0, 1, KVF_LEASE_UNKNOWN), 1);
  assert_true(ranks_event(KVF_EVENT_RELEASED, &event));
  assert_stat(&world.consumer.core, "loads_failed", "lease_unknown", 1);
  assert_stat(&world.consumer.core, "loads_done", "", 0);
}

WORLD_TEST(histograms_fit)
{
  kvf_histogram histograms[KVF_HISTOGRAMS_MAX];
  size_t count = kvf_core_histograms(&world.consumer.core, histograms, KVF_HISTOGRAMS_MAX);
  assert_int_equal(count, 3);
  assert_string_equal(histograms[0].name, "load_ns");
  assert_string_equal(histograms[1].name, "load_bytes");
  assert_string_equal(histograms[2].name, "detection_ns");
  assert_int_equal(kvf_core_histograms(&world.consumer.core, histograms, 1), 1);
}

typedef struct stat_source {
  const char *name;
  const char *reason;
  uint64_t *counter;
} stat_source;

/* Each counter of the requests', peers' and sessions' machines is shown under its own name. */
WORLD_TEST(counters_are_not_mixed_up)
{
  kvf_core *core = &world.consumer.core;
  kvf_request_counters *requests = &core->requests.counters;
  kvf_ticket_counters *tickets = &core->context.tickets;
  kvf_peer_counters *peers = &core->peers.counters;
  kvf_session_counters *sessions = &core->sessions.counters;
  kvf_lease_counters *leases = &core->leases.counters;
  const stat_source sources[] = {
      {"requests_opened", "", &requests->opened},
      {"tickets_refused", "bad_ticket", &tickets->bad},
      {"tickets_refused", "other_key", &tickets->other_key},
      {"tickets_refused", "incompatible", &tickets->incompatible},
      {"verdicts", "use", &requests->verdicts[KVF_ACTION_USE]},
      {"verdicts", "recompute", &requests->verdicts[KVF_ACTION_RECOMPUTE]},
      {"verdicts", "fail", &requests->verdicts[KVF_ACTION_FAIL]},
      {"recomputed_tokens", "lease_expired", &requests->recomputed_tokens[kvf_status_index(KVF_LEASE_EXPIRED)]},
      {"requests_lost", "peer_down", &requests->lost[kvf_status_index(KVF_PEER_DOWN)]},
      {"requests_lost", "lease_expired", &requests->lost[kvf_status_index(KVF_LEASE_EXPIRED)]},
      {"requests_cancelled", "", &requests->cancelled},
      {"requests_detached", "", &requests->detached},
      {"ranks_lost", "", &requests->ranks_lost},
      {"renewals_sent", "", &core->requests.attachments.counters.renewals},
      {"acknowledgements_sent", "", &core->requests.attachments.counters.finishes},
      {"acknowledgements_given_up", "", &core->requests.attachments.counters.finishes_given_up},
      {"late_reports", "", &requests->late_reports},
      {"peer_dials", "", &peers->dials},
      {"peer_handshakes", "", &peers->handshakes},
      {"peer_failures", "", &peers->failures},
      {"peer_stalls", "", &peers->stalls},
      {"breaker_refusals", "", &peers->fast_failures},
      {"sessions_accepted", "", &sessions->accepted},
      {"sessions_refused", "handshake_refused", &sessions->refused_key},
      {"sessions_refused", "incompatible", &sessions->refused_incompatible},
      {"sessions_refused", "protocol", &sessions->protocol_errors},
      {"sessions_timed_out", "", &sessions->timed_out},
      {"sessions_abandoned", "", &sessions->abandoned},
      {"sessions_evicted", "", &sessions->evicted},
      {"sessions_unread", "", &sessions->unread},
      {"leases_published", "", &leases->published},
      {"leases_ended", "completed", &leases->ended[KVF_LEASE_END_COMPLETED]},
      {"leases_ended", "abandoned", &leases->ended[KVF_LEASE_END_ABANDONED]},
      {"leases_ended", "expired", &leases->ended[KVF_LEASE_END_EXPIRED]},
      {"leases_ended", "revoked", &leases->ended[KVF_LEASE_END_REVOKED]},
      {"late_acknowledgements", "", &leases->late_acknowledgements},
      {"late_renewals", "", &leases->late_renewals},
  };
  for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
    *sources[i].counter = 1000 + i;
  }
  for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
    assert_stat(core, sources[i].name, sources[i].reason, 1000 + i);
    assert_false(stat_of(core, sources[i].name, sources[i].reason)->gauge);
  }
  kvf_core_ticket_refused(core, 0, KVF_BAD_TICKET); /* refused before the requests' machine has seen it */
  assert_stat(core, "tickets_refused", "bad_ticket", 1002);
}
