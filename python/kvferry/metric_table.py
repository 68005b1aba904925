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
    Metric("requests", "Requests with a good ticket.", ("requests_opened",)),
    Metric("verdicts", "Decisions about loads and refused tickets.", ("verdicts",), ("action",)),
    Metric("no_tickets", "Prompts for another engine that got no ticket.", ("no_tickets",), ("reason",)),
    Metric("not_loaded", "Requests computed here despite their tickets.", ("not_loaded",), ("reason",)),
    Metric("loads", "Complete loads, on each rank.", ("loads_done",)),
    Metric("load_failures", "Incomplete loads, on each rank; refused tickets; waiting requests that lost their last source.",
           ("loads_failed", "tickets_refused", "requests_lost", "ranks_lost"), ("reason",)),
    Metric("internal_errors", "kvferry's own exceptions that an engine survived, by hook: please report them.",
           ("internal_errors",), ("hook",)),
    Metric("recomputed_tokens", "Prompt tokens computed here after a failed load or refused ticket.",
           ("recomputed_tokens",), ("reason",)),
    Metric("loaded_bytes", "Bytes that arrived.", ("bytes_loaded",)),
    Metric("loaded_blocks", "Blocks that arrived and that the fence confirmed.", ("blocks_loaded",)),
    Metric("verified_blocks", "Loaded blocks that agree with their checksums.", ("blocks_verified",)),
    Metric("checksum_mismatches", "Reads of a block that disagrees with its checksums.", ("checksum_mismatches",)),
    Metric("device_copy_seconds", "Time of copies by a GPU, one after the other, until they were done.", ("device_copy_ns",)),
    Metric("device_posting_seconds", "The part of device_copy_seconds before the driver had the copies.", ("device_posting_ns",)),
    Metric("load_retries", "Retries of parts of loads.", ("load_retries",)),
    Metric("source_switches", "Switches of a load to its ticket's next source.", ("source_switches",)),
    Metric("load_stalls", "Reads that got no byte for stall_timeout_ms.", ("load_stalls",)),
    Metric("weights_digest_mismatches", "Weights whose digests from a file could not be confirmed: all leases and loads have ended.",
           ("weights_digest_mismatches",)),
    Metric("leases_published", "Leases published, on each rank.", ("leases_published",)),
    Metric("leases_ended", "Leases ended, on each rank.", ("leases_ended",), ("cause",)),
    Metric("late_acknowledgements", "Renewals and acknowledgements after the lease's end.", ("late_acknowledgements", "late_renewals")),
    Metric("peer_dials", "Dials of other engines.", ("peer_dials",)),
    Metric("peer_handshakes", "Completed handshakes with other engines.", ("peer_handshakes",)),
    Metric("sessions_refused", "Connections refused.", ("sessions_refused",), ("reason",)),
    Metric("sessions_dropped", "Connections without a handshake, silent, not reading, or closed to make room.",
           ("sessions_abandoned", "sessions_timed_out", "sessions_evicted", "sessions_unread")),
    Metric("data_connections_ended", "Data connections that were ended, or left with reads open.",
           ("data_connections_ended",), ("reason",)),
)

GAUGES = (
    Metric("leases", "Leases given and not got back.", ("leases_reserved",), ("node",)),
    Metric("leases_untaken", "Published leases without a consumer so far.", ("leases_untaken",), ("node",)),
    Metric("pinned_tokens", "Room for tokens in blocks under lease; a block of several leases counts once.",
           ("pinned_tokens",), ("node",)),
    Metric("pinned_bytes", "Bytes of these blocks, on each rank.", ("pinned_bytes",), ("node",)),
    Metric("oldest_lease_timestamp_seconds", "When the oldest open lease was given; 0: none.", ("oldest_lease",), ("node",)),
    Metric("oldest_waiting_timestamp_seconds", "When the longest waiting request came, whose load has not begun; 0: none.",
           ("oldest_waiting",), ("node",)),
    Metric("last_load_timestamp_seconds", "When the last complete load ended.", ("last_load",), ("node",)),
    Metric("requests_open", "Requests whose leases this engine renews or ends, or whose load may still write.",
           ("requests_open",), ("node",)),
    Metric("loads_open", "Loads that have not ended.", ("loads_open",), ("node",)),
    Metric("loads_not_released", "Loads whose blocks are quarantined: replace the engine.", ("loads_not_released",), ("node",)),
    Metric("blocks_quarantined", "Blocks of these loads.", ("blocks_quarantined",), ("node",)),
    Metric("sessions_open", "Connections from other engines.", ("sessions_open",), ("node",)),
    Metric("draft_layers_not_carried", "Draft layers (EAGLE, MTP) whose KV is not carried: after a load fewer drafts are accepted.",
           ("draft_layers_not_carried",), ("node",)),
    Metric("transfers_stopped", "1: an internal error has stopped all transfers; restart the engine.", ("transfers_stopped",), ("node",)),
    Metric("vllm_features_off", "Features off because this version of vLLM lacks them; the log names them.",
           ("vllm_features_off",), ("node",)),
)

HISTOGRAMS = (
    Metric("load_seconds", "Time of a complete load, from start to outcome.", ("load_ns",)),
    Metric("load_bytes", "Bytes of a complete load.", ("load_bytes",)),
    Metric("detection_seconds", "Time without a byte before a failed load was given up.", ("detection_ns",)),
)

PEER_COUNTERS = (
    Metric("peer_loads", "Complete loads from this peer.", ("loads_done",), ("peer",)),
    Metric("peer_load_failures", "Failed loads from this peer.", ("loads_failed",), ("peer", "reason")),
    Metric("peer_loaded_bytes", "Bytes from this peer.", ("bytes",), ("peer",)),
    Metric("peer_connection_failures", "Failed connections to this peer.", ("connection_failures",), ("peer",)),
)

PER_LINK = ("peer", "node", "link", "path")
"""The last is the old name of the one before, with the same values, for one release."""

PEER_GAUGES = (
    Metric("peer_breaker", "Circuit breakers: 0 closed, 1 half open (being probed), 2 open.", ("breaker",), PER_LINK),
    Metric("peer_up", "1 while the link is connected.", ("up",), PER_LINK),
    Metric("peer_reads_in_flight", "Reads from this peer that have not ended.", ("reads_in_flight",), ("peer", "node")),
    Metric("peer_last_failure_timestamp_seconds", "When a load or connection of this peer last failed, and why.",
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
