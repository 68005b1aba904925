"""The metrics that an engine with kvferry shows, and the numbers of the library that each is made of.

docs/metrics.md is this table. It imports nothing, so that tools can read it without an engine.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "kvferry_"


class Metric(NamedTuple):
    name: str
    help: str
    stats: tuple[str, ...]
    """The numbers of the library that it is the sum of."""
    labels: tuple[str, ...] = ()
    """Besides vLLM's own `model_name` and `engine`."""


COUNTERS = (
    Metric("requests", "Requests that came with a good ticket.", ("requests_opened",)),
    Metric("verdicts", "What was decided about loads and refused tickets.", ("verdicts",), ("action",)),
    Metric("no_tickets", "Prompts for another engine that got no ticket.", ("no_tickets",), ("reason",)),
    Metric("not_loaded", "Requests computed here whatever their ticket.", ("not_loaded",), ("reason",)),
    Metric("loads", "Loads that brought all their blocks, on each rank.", ("loads_done",)),
    Metric("load_failures", "Loads that did not bring all their blocks, on each rank; refused tickets; requests that lost their "
           "last source while they waited.",
           ("loads_failed", "tickets_refused", "requests_lost", "ranks_lost"), ("reason",)),
    Metric("internal_errors", "Exceptions of kvferry's own that an engine was spared, by the hook: please report them.",
           ("internal_errors",), ("hook",)),
    Metric("requests_cancelled", "Requests cancelled before their verdict.", ("requests_cancelled",)),
    Metric("requests_detached", "Requests that this engine gave up before their verdict: another one may take their tickets.",
           ("requests_detached",)),
    Metric("recomputed_tokens", "Prompt tokens computed here because their load or ticket was no good.",
           ("recomputed_tokens",), ("reason",)),
    Metric("loaded_bytes", "Bytes that arrived.", ("bytes_loaded",)),
    Metric("loaded_blocks", "Blocks that arrived and were confirmed by the fence.", ("blocks_loaded",)),
    Metric("verified_blocks", "Of these, blocks that agree with their checksums.", ("blocks_verified",)),
    Metric("unverified_blocks", "Blocks from producers without checksums, on an engine whose option checksum is on.",
           ("blocks_unverified",)),
    Metric("checksum_mismatches", "Reads that brought a block that does not agree with its checksums.",
           ("checksum_mismatches",)),
    Metric("chunks", "Chunks whose reading began.", ("chunks",)),
    Metric("read_pieces", "Runs of bytes, contiguous on both sides, that reads were made of.", ("read_pieces",)),
    Metric("device_copy_seconds", "What copies that a GPU made took, one after the other, until they were done.",
           ("device_copy_ns",)),
    Metric("device_posting_seconds", "Of this, until the driver had been told.", ("device_posting_ns",)),
    Metric("load_retries", "Times that a part of a load was tried again.", ("load_retries",)),
    Metric("source_switches", "Times that a load went on from its ticket's next source.", ("source_switches",)),
    Metric("sources_left_out", "Sources of tickets that did not fit, on each node that was to use them.",
           ("sources_left_out",)),
    Metric("load_stalls", "Times that a read went without a byte for stall_timeout_ms.", ("load_stalls",)),
    Metric("loads_ever_not_released", "Loads that were not released release_timeout_ms after their outcome.",
           ("loads_not_released_total",)),
    Metric("late_reads", "Completions of reads that were not in flight.", ("late_reads",)),
    Metric("weights_digest_mismatches", "Weights that had counted as those that a file of digests names, and could not be "
           "confirmed: all leases and loads have ended.", ("weights_digest_mismatches",)),
    Metric("leases_published", "Leases published, on each rank.", ("leases_published",)),
    Metric("leases_ended", "Leases ended, on each rank.", ("leases_ended",), ("cause",)),
    Metric("late_acknowledgements", "Renewals and acknowledgements that came after the lease had ended.",
           ("late_acknowledgements", "late_renewals")),
    Metric("finds", "Tickets that were looked for by their prompt, by what came of it.", ("finds",), ("result",)),
    Metric("finds_asked", "Questions that were put to other engines for them.", ("finds_asked",)),
    Metric("finds_forgotten", "Finds that were cancelled, or whose ticket nobody took.", ("finds_forgotten",)),
    Metric("finds_dropped", "Tickets that came when nobody wanted them any more: their leases run out.", ("finds_dropped",)),
    Metric("finds_heard", "Other engines' questions for a ticket.", ("finds_heard",)),
    Metric("finds_refused", "Such questions beyond those that a connection may ask: answered as if there were no ticket.",
           ("finds_refused",)),
    Metric("offers_made", "Tickets offered to whoever asks for their prompt.", ("offers_made",)),
    Metric("offers_given", "Of these, those that were given to a find.", ("offers_given",)),
    Metric("renewals_sent", "Renewals of other engines' leases.", ("renewals_sent",)),
    Metric("acknowledgements_sent", "Acknowledgements sent: a request has ended.", ("acknowledgements_sent",)),
    Metric("acknowledgements_given_up", "Of these, those that no producer answered.", ("acknowledgements_given_up",)),
    Metric("late_reports", "Ranks' reports that came after the verdict.", ("late_reports",)),
    Metric("load_pings", "Signs of life asked of producers during a stall.", ("load_pings",)),
    Metric("peer_dials", "Connections begun to other engines.", ("peer_dials",)),
    Metric("peer_handshakes", "Handshakes completed with other engines.", ("peer_handshakes",)),
    Metric("peer_failures", "Failures of connections to other engines.", ("peer_failures",)),
    Metric("peer_stalls", "Stalls of other engines.", ("peer_stalls",)),
    Metric("breaker_refusals", "Loads refused at once because their peer had failed before.", ("breaker_refusals",)),
    Metric("sessions_accepted", "Connections from other engines.", ("sessions_accepted",)),
    Metric("sessions_refused", "Connections refused.", ("sessions_refused",), ("reason",)),
    Metric("sessions_dropped", "Connections that ended before their handshake, were silent, did not read, or had to "
           "make room.", ("sessions_abandoned", "sessions_timed_out", "sessions_evicted", "sessions_unread")),
    Metric("data_connections_accepted", "Connections for blocks from other engines.", ("data_connections_accepted",)),
    Metric("data_connections_ended", "Of these, those that were ended, or left with reads open.",
           ("data_connections_ended",), ("reason",)),
    Metric("log_lines_dropped", "Log lines left out, since whoever reads the log did not keep up.", ("log_lines_dropped",)),
)

GAUGES = (
    Metric("leases", "Leases that the engine has given and not got back.", ("leases_reserved",), ("node",)),
    Metric("leases_live", "Leases that consumers may read.", ("leases_live",), ("node",)),
    Metric("offers_open", "Tickets on offer, or given, whose leases have not ended.", ("offers_open",), ("node",)),
    Metric("finds_open", "Finds that are not over, or whose ticket has not been taken.", ("finds_open",), ("node",)),
    Metric("requests_open", "Requests whose leases this engine keeps alive, or ends, or whose load may still write.",
           ("requests_open",), ("node",)),
    Metric("loads_open", "Loads that are not over.", ("loads_open",), ("node",)),
    Metric("loads_not_released", "Loads whose blocks are quarantined: replace the engine.", ("loads_not_released",),
           ("node",)),
    Metric("blocks_quarantined", "Blocks of these loads.", ("blocks_quarantined",), ("node",)),
    Metric("peers_known", "Other engines' ranks.", ("peers_known",), ("node",)),
    Metric("sessions_open", "Connections from other engines.", ("sessions_open",), ("node",)),
    Metric("draft_layers_not_carried", "Layers of draft models (EAGLE, MTP) whose KV is not carried: after a load fewer "
           "of their tokens are accepted.", ("draft_layers_not_carried",), ("node",)),
    Metric("transfers_stopped", "1: after an internal error nothing is handed over or loaded until the engine is started "
           "anew.", ("transfers_stopped",), ("node",)),
    Metric("vllm_features_off", "What kvferry does without, since this version of vLLM has it not: the log names it.",
           ("vllm_features_off",), ("node",)),
)

HISTOGRAMS = (
    Metric("load_seconds", "From a load's start to its outcome, of loads that brought all their blocks.", ("load_ns",)),
    Metric("load_bytes", "What each of these brought.", ("load_bytes",)),
    Metric("detection_seconds", "How long a load that failed had been without a byte when it was given up.",
           ("detection_ns",)),
)

PEER_COUNTERS = (
    Metric("peer_loads", "Loads that this peer gave all its blocks to.", ("loads_done",), ("peer",)),
    Metric("peer_load_failures", "Loads that failed at this peer.", ("loads_failed",), ("peer", "reason")),
    Metric("peer_loaded_bytes", "Bytes that arrived from it.", ("bytes",), ("peer",)),
    Metric("peer_loaded_blocks", "Blocks from it that the fence has confirmed.", ("blocks",), ("peer",)),
    Metric("peer_chunks", "Chunks whose reading from it began.", ("chunks",), ("peer",)),
    Metric("peer_load_retries", "Times that a part of a load was tried again.", ("retries",), ("peer",)),
    Metric("peer_load_stalls", "Times that a read went without a byte for stall_timeout_ms.", ("stalls",), ("peer",)),
    Metric("peer_sessions", "Handshakes completed with it.", ("handshakes",), ("peer",)),
    Metric("peer_connection_failures", "Failures of connections to it.", ("connection_failures",), ("peer",)),
)

PEER_GAUGES = (
    Metric("peer_breaker", "Its circuit breakers: 0 closed, 1 half open (being probed), 2 open.", ("breaker",),
           ("peer", "node", "path")),
    Metric("peer_up", "Whether the path to it is connected.", ("up",), ("peer", "node", "path")),
    Metric("peer_reads_in_flight", "Reads from it that have not ended.", ("reads_in_flight",), ("peer", "node")),
    Metric("peer_users", "Loads and requests that hold it.", ("users",), ("peer", "node")),
    Metric("peer_last_failure_timestamp_seconds", "When a load or connection last failed there, and why.",
           ("last_failure",), ("peer", "reason")),
)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BYTES = tuple(float(65536 * 4**i) for i in range(10))


def bounds_of(histogram: Metric) -> tuple[float, ...]:
    """The upper bounds of its buckets, but for the last, which has none."""
    return SECONDS if histogram.name.endswith("_seconds") else BYTES


def divisor_of(stat: str) -> float:
    """How many of the library's units are one of its metric. To be divided by: a bound must come out as it is."""
    return 1e9 if stat.endswith("_ns") else 1.0


def names() -> list[tuple[str, str, Metric]]:
    """(name as /metrics shows it, type, metric) of all of them."""
    return ([(f"{PREFIX}{metric.name}_total", "counter", metric) for metric in COUNTERS + PEER_COUNTERS]
            + [(PREFIX + metric.name, "gauge", metric) for metric in GAUGES + PEER_GAUGES]
            + [(PREFIX + metric.name, "histogram", metric) for metric in HISTOGRAMS])
