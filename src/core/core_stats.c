/* Names and values of the core's counters. */
#include "core/core.h"
#include "core/core_state.h"

typedef struct writer {
  kvf_stat *out;
  size_t capacity;
  size_t count;
} writer;

static void put(writer *to, const char *name, const char *reason, uint64_t value, bool gauge)
{
  if (to->count < to->capacity) {
    to->out[to->count++] = (kvf_stat){.name = name, .reason = reason, .value = value, .gauge = gauge};
  }
}

static void counter(writer *to, const char *name, uint64_t value)
{
  put(to, name, "", value, false);
}

static void gauge(writer *to, const char *name, uint64_t value)
{
  put(to, name, "", value, true);
}

static void put_loads(writer *to, const kvf_core *core)
{
  const kvf_load_stats *stats = &core->loads.stats;
  gauge(to, "loads_open", kvf_loads_open(&core->loads));
  gauge(to, "loads_not_released", stats->stuck);
  gauge(to, "blocks_quarantined", stats->stuck_blocks);
  counter(to, "chunks", stats->chunks);
  counter(to, "read_pieces", core->read_work.pieces);
  counter(to, "device_copy_ns", core->read_work.device_copy_ns);
  counter(to, "device_posting_ns", core->read_work.device_posting_ns);
  counter(to, "bytes_loaded", stats->bytes);
  counter(to, "blocks_loaded", stats->blocks);
  counter(to, "blocks_verified", stats->verified);
  counter(to, "blocks_unverified", stats->unverified);
  counter(to, "checksum_mismatches", stats->mismatches);
  counter(to, "load_retries", stats->retries);
  counter(to, "load_stalls", stats->stalls);
  counter(to, "load_pings", stats->pings);
  counter(to, "source_switches", stats->source_switches);
  counter(to, "late_reads", stats->late);
  for (unsigned i = 0; kvf_status_at(i) != NULL && i < KVF_STATUSES_MAX; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    if (info->lost != KVF_LOST_CALL) {
      put(to, info->status == KVF_OK ? "loads_done" : "loads_failed", info->status == KVF_OK ? "" : info->name,
          stats->outcomes[i], false);
    }
  }
}

static void put_leases(writer *to, const kvf_core *core)
{
  const kvf_lease_counters *counters = &core->leases.counters;
  gauge(to, "leases_live", core->leases.live);
  gauge(to, "leases_untaken", core->leases.untaken);
  gauge(to, "leases_reserved", kvf_lease_slots_live(&core->slots));
  gauge(to, "lease_blocks", kvf_lease_slots_blocks(&core->slots));
  counter(to, "leases_published", counters->published);
  put(to, "leases_ended", "completed", counters->ended[KVF_LEASE_END_COMPLETED], false);
  put(to, "leases_ended", "abandoned", counters->ended[KVF_LEASE_END_ABANDONED], false);
  put(to, "leases_ended", "expired", counters->ended[KVF_LEASE_END_EXPIRED], false);
  put(to, "leases_ended", "revoked", counters->ended[KVF_LEASE_END_REVOKED], false);
  counter(to, "late_acknowledgements", counters->late_acknowledgements);
  counter(to, "late_renewals", counters->late_renewals);
}

static void put_requests(writer *to, const kvf_core *core)
{
  const kvf_request_counters *counters = &core->requests.counters;
  const kvf_ticket_counters *tickets = &core->context.tickets;
  const kvf_attachment_counters *told = &core->requests.attachments.counters;
  gauge(to, "requests_open", HASH_CNT(by_id, core->requests.by_id) + core->requests.attachments.left);
  counter(to, "requests_opened", counters->opened);
  put(to, "tickets_refused", "bad_ticket", tickets->bad, false);
  put(to, "tickets_refused", "other_key", tickets->other_key, false);
  put(to, "tickets_refused", "incompatible", tickets->incompatible, false);
  counter(to, "sources_left_out", tickets->sources_left_out);
  put(to, "verdicts", "use", counters->verdicts[KVF_ACTION_USE], false);
  put(to, "verdicts", "recompute", counters->verdicts[KVF_ACTION_RECOMPUTE], false);
  put(to, "verdicts", "fail", counters->verdicts[KVF_ACTION_FAIL], false);
  for (unsigned i = 0; kvf_status_at(i) != NULL && i < KVF_STATUSES_MAX; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    if (info->lost != KVF_LOST_CALL && info->status != KVF_OK && info->recompute_safe) {
      put(to, "recomputed_tokens", info->name, counters->recomputed_tokens[i], false);
    }
    if (info->lost == KVF_LOST_PEER || info->lost == KVF_LOST_REQUEST) {
      put(to, "requests_lost", info->name, counters->lost[i], false);
    }
  }
  counter(to, "requests_cancelled", counters->cancelled);
  counter(to, "requests_detached", counters->detached);
  counter(to, "ranks_lost", counters->ranks_lost);
  counter(to, "renewals_sent", told->renewals);
  counter(to, "acknowledgements_sent", told->finishes);
  counter(to, "acknowledgements_given_up", told->finishes_given_up);
  counter(to, "late_reports", counters->late_reports);
}

static void put_peers(writer *to, const kvf_core *core)
{
  const kvf_peer_counters *peers = &core->peers.counters;
  const kvf_session_counters *sessions = &core->sessions.counters;
  gauge(to, "peers_known", HASH_CNT(by_key, core->peers.by_key));
  counter(to, "peer_dials", peers->dials);
  counter(to, "peer_handshakes", peers->handshakes);
  counter(to, "peer_failures", peers->failures);
  counter(to, "peer_stalls", peers->stalls);
  counter(to, "breaker_refusals", peers->fast_failures);
  gauge(to, "sessions_open", HASH_CNT(by_id, core->sessions.by_id));
  counter(to, "sessions_accepted", sessions->accepted);
  put(to, "sessions_refused", "handshake_refused", sessions->refused_key, false);
  put(to, "sessions_refused", "incompatible", sessions->refused_incompatible, false);
  put(to, "sessions_refused", "protocol", sessions->protocol_errors, false);
  counter(to, "sessions_timed_out", sessions->timed_out);
  counter(to, "sessions_abandoned", sessions->abandoned);
  counter(to, "sessions_evicted", sessions->evicted);
  counter(to, "sessions_unread", sessions->unread);
}

size_t kvf_core_stats(const kvf_core *core, kvf_stat *out, size_t capacity)
{
  writer to = {.out = out, .capacity = capacity};
  put_loads(&to, core);
  put_leases(&to, core);
  put_requests(&to, core);
  put_peers(&to, core);
  return to.count;
}

size_t kvf_core_histograms(const kvf_core *core, kvf_histogram *out, size_t capacity)
{
  const kvf_load_stats *stats = &core->loads.stats;
  const kvf_histogram *all[] = {&stats->load_ns, &stats->load_bytes, &stats->detection_ns};
  size_t count = 0;
  for (; count < sizeof(all) / sizeof(all[0]) && count < capacity; count++) {
    out[count] = *all[count];
  }
  return count;
}
