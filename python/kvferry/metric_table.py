"""The metrics that an engine with kvferry shows, and the numbers of the library that each is made of.

The tables of docs/metrics.md are this one. It imports nothing, so that tools can read it without an engine.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX, VLLM_PREFIX = "kvferry_", "vllm:kvferry_"
"""What each name begins with, as the option metrics_prefix says: one or the other."""


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
    Metric("recomputed_tokens", "Prompt tokens computed here because their load or ticket was no good.",
           ("recomputed_tokens",), ("reason",)),
    Metric("loaded_bytes", "Bytes that arrived.", ("bytes_loaded",)),
    Metric("loaded_blocks", "Blocks that arrived and were confirmed by the fence.", ("blocks_loaded",)),
    Metric("verified_blocks", "Of these, blocks that agree with their checksums.", ("blocks_verified",)),
    Metric("checksum_mismatches", "Reads that brought a block that does not agree with its checksums.",
           ("checksum_mismatches",)),
    Metric("device_copy_seconds", "What copies that a GPU made took, one after the other, until they were done.",
           ("device_copy_ns",)),
    Metric("device_posting_seconds", "Of this, until the driver had been told.", ("device_posting_ns",)),
    Metric("load_retries", "Times that a part of a load was tried again.", ("load_retries",)),
    Metric("source_switches", "Times that a load went on from its ticket's next source.", ("source_switches",)),
    Metric("load_stalls", "Times that a read went without a byte for stall_timeout_ms.", ("load_stalls",)),
    Metric("weights_digest_mismatches", "Weights that had counted as those that a file of digests names, and could not be "
           "confirmed: all leases and loads have ended.", ("weights_digest_mismatches",)),
    Metric("leases_published", "Leases published, on each rank.", ("leases_published",)),
    Metric("leases_ended", "Leases ended, on each rank.", ("leases_ended",), ("cause",)),
    Metric("late_acknowledgements", "Renewals and acknowledgements that came after the lease had ended.",
           ("late_acknowledgements", "late_renewals")),
    Metric("peer_dials", "Connections begun to other engines.", ("peer_dials",)),
    Metric("peer_handshakes", "Handshakes completed with other engines.", ("peer_handshakes",)),
    Metric("sessions_refused", "Connections refused.", ("sessions_refused",), ("reason",)),
    Metric("sessions_dropped", "Connections that ended before their handshake, were silent, did not read, or had to "
           "make room.", ("sessions_abandoned", "sessions_timed_out", "sessions_evicted", "sessions_unread")),
    Metric("data_connections_ended", "Of these, those that were ended, or left with reads open.",
           ("data_connections_ended",), ("reason",)),
)

GAUGES = (
    Metric("leases", "Leases that the engine has given and not got back.", ("leases_reserved",), ("node",)),
    Metric("leases_untaken", "Published leases that no consumer has come for yet.", ("leases_untaken",), ("node",)),
    Metric("pinned_tokens", "As many tokens as the pool has room for in the blocks of leases; a block of several leases counts once.",
           ("pinned_tokens",), ("node",)),
    Metric("pinned_bytes", "Bytes of these blocks, on each rank.", ("pinned_bytes",), ("node",)),
    Metric("oldest_lease_timestamp_seconds", "When the oldest lease that is out was given; 0: none is.", ("oldest_lease",), ("node",)),
    Metric("oldest_waiting_timestamp_seconds", "When the request came that waits longest for its load to begin; 0: none waits.",
           ("oldest_waiting",), ("node",)),
    Metric("last_load_timestamp_seconds", "When the last load ended that brought all its blocks.", ("last_load",), ("node",)),
    Metric("requests_open", "Requests whose leases this engine keeps alive, or ends, or whose load may still write.",
           ("requests_open",), ("node",)),
    Metric("loads_open", "Loads that are not over.", ("loads_open",), ("node",)),
    Metric("loads_not_released", "Loads whose blocks are quarantined: replace the engine.", ("loads_not_released",),
           ("node",)),
    Metric("blocks_quarantined", "Blocks of these loads.", ("blocks_quarantined",), ("node",)),
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
    Metric("peer_connection_failures", "Failures of connections to it.", ("connection_failures",), ("peer",)),
)

PER_LINK = ("peer", "node", "link", "path")
"""The last is the old name of the one before, with the same values, for one release."""

PEER_GAUGES = (
    Metric("peer_breaker", "Its circuit breakers: 0 closed, 1 half open (being probed), 2 open. `path` is the old name of `link`, and goes with the next release.", ("breaker",), PER_LINK),
    Metric("peer_up", "Whether the link to it is connected. `path` is the old name of `link`, and goes with the next release.", ("up",), PER_LINK),
    Metric("peer_reads_in_flight", "Reads from it that have not ended.", ("reads_in_flight",), ("peer", "node")),
    Metric("peer_last_failure_timestamp_seconds", "When a load or connection last failed there, and why.",
           ("last_failure",), ("peer", "reason")),
)

GROUPS = {
    "The four that matter first": ("requests", "loads", "load_failures", "recomputed_tokens"),
    "Tickets and requests": ("no_tickets", "not_loaded", "verdicts", "requests_open", "oldest_waiting_timestamp_seconds"),
    "Loads": (
        "loaded_bytes", "loaded_blocks", "verified_blocks", "checksum_mismatches", "load_retries", "source_switches", "load_stalls", "loads_open",
        "last_load_timestamp_seconds", "load_seconds", "load_bytes", "detection_seconds", "device_copy_seconds", "device_posting_seconds"),
    "Leases, on prefill engines": (
        "leases_published", "leases_ended", "late_acknowledgements", "leases", "leases_untaken", "pinned_tokens", "pinned_bytes",
        "oldest_lease_timestamp_seconds"),
    "Connections": ("peer_dials", "peer_handshakes", "sessions_open", "sessions_refused", "sessions_dropped", "data_connections_ended"),
    "Each peer": tuple(metric.name for metric in PEER_COUNTERS + PEER_GAUGES),
}
"""Names by what one looks for, as docs/metrics.md shows them; all others are about the engine's state."""
OTHERS = "The engine's state"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BYTES = tuple(float(65536 * 4**i) for i in range(10))


def bounds_of(histogram: Metric) -> tuple[float, ...]:
    """The upper bounds of its buckets, but for the last, which has none."""
    return SECONDS if histogram.name.endswith("_seconds") else BYTES


def divisor_of(stat: str) -> float:
    """How many of the library's units are one of its metric. To be divided by: a bound must come out as it is."""
    return 1e9 if stat.endswith("_ns") else 1.0


def names() -> list[tuple[str, str, Metric]]:
    """(name as /metrics shows it by default, type, metric) of all of them."""
    return ([(f"{PREFIX}{metric.name}_total", "counter", metric) for metric in COUNTERS + PEER_COUNTERS]
            + [(PREFIX + metric.name, "gauge", metric) for metric in GAUGES + PEER_GAUGES]
            + [(PREFIX + metric.name, "histogram", metric) for metric in HISTOGRAMS])


def groups() -> dict[str, list[tuple[str, str, Metric]]]:
    """names(), by group and in the group's order."""
    rows = {row[2].name: row for row in names()}
    made = {title: [rows.pop(name) for name in group] for title, group in GROUPS.items()}
    return made | {OTHERS: list(rows.values())}
