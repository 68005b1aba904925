"""The nodes' numbers on their way to vLLM's /metrics, as kvferry_*."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT

    from kvferry import Node

PREFIX = "kvferry_"


class Metric(NamedTuple):
    """One metric, and the numbers of the library that it is the sum of."""

    name: str
    help: str
    stats: tuple[str, ...]
    label: str | None = None
    """The label that holds a number's reason."""


COUNTERS = (
    Metric("requests", "Requests that came with a good ticket.", ("requests_opened",)),
    Metric("verdicts", "What was decided about loads and refused tickets.", ("verdicts",), "action"),
    Metric("loads", "Loads that brought all their blocks, on each rank.", ("loads_done",)),
    Metric("load_failures", "Loads that did not bring all their blocks, on each rank, and refused tickets.",
           ("loads_failed", "tickets_refused", "ranks_lost"), "reason"),
    Metric("requests_cancelled", "Requests cancelled before their verdict.", ("requests_cancelled",)),
    Metric("recomputed_tokens", "Prompt tokens computed here because their load or ticket was no good.",
           ("recomputed_tokens",)),
    Metric("loaded_bytes", "Bytes that arrived.", ("bytes_loaded",)),
    Metric("loaded_blocks", "Blocks that arrived and were confirmed by the fence.", ("blocks_loaded",)),
    Metric("chunks", "Chunks whose reading began.", ("chunks",)),
    Metric("load_retries", "Times that a part of a load was tried again.", ("load_retries",)),
    Metric("load_stalls", "Times that a read went without a byte for stall_timeout_ms.", ("load_stalls",)),
    Metric("loads_ever_not_quiet", "Loads that were not quiet quiet_timeout_ms after their outcome.",
           ("loads_not_quiet_total",)),
    Metric("late_reads", "Completions of reads that were not in flight.", ("late_reads",)),
    Metric("leases_published", "Leases published, on each rank.", ("leases_published",)),
    Metric("leases_ended", "Leases ended, on each rank.", ("leases_ended",), "cause"),
    Metric("late_acknowledgements", "Consumers' words about leases that were over.",
           ("late_acknowledgements", "late_renewals")),
    Metric("renewals_sent", "Renewals of other engines' leases.", ("renewals_sent",)),
    Metric("acknowledgements_sent", "Words to producers that a request is over.", ("acknowledgements_sent",)),
    Metric("acknowledgements_given_up", "Of these, those that no producer answered.", ("acknowledgements_given_up",)),
    Metric("late_reports", "Ranks' reports that came after the verdict.", ("late_reports",)),
    Metric("load_pings", "Signs of life asked of producers during a stall.", ("load_pings",)),
    Metric("peer_dials", "Connections begun to other engines.", ("peer_dials",)),
    Metric("peer_handshakes", "Handshakes completed with other engines.", ("peer_handshakes",)),
    Metric("peer_failures", "Failures of other engines.", ("peer_failures",)),
    Metric("peer_stalls", "Stalls of other engines.", ("peer_stalls",)),
    Metric("breaker_refusals", "Loads refused at once because their peer had failed before.", ("breaker_refusals",)),
    Metric("sessions_accepted", "Connections from other engines.", ("sessions_accepted",)),
    Metric("sessions_refused", "Connections refused.", ("sessions_refused",), "reason"),
    Metric("sessions_dropped", "Connections that ended before their handshake, were silent, did not read, or had to "
           "make room.", ("sessions_abandoned", "sessions_timed_out", "sessions_evicted", "sessions_unread")),
    Metric("data_connections_accepted", "Connections for blocks from other engines.", ("data_connections_accepted",)),
    Metric("data_connections_ended", "Of these, those that were ended, or left with reads open.",
           ("data_connections_ended",), "reason"),
)

GAUGES = (
    Metric("leases", "Leases that the engine has given and not got back.", ("leases_reserved",)),
    Metric("leases_live", "Leases that consumers may read, on each rank.", ("leases_live",)),
    Metric("requests_open", "Requests whose leases this engine keeps alive, or ends.", ("requests_open",)),
    Metric("loads_open", "Loads that are not over, on each rank.", ("loads_open",)),
    Metric("loads_not_quiet", "Loads whose blocks are quarantined: replace the engine.", ("loads_not_quiet",)),
    Metric("peers_known", "Other engines' ranks, on each node.", ("peers_known",)),
    Metric("sessions_open", "Connections from other engines.", ("sessions_open",)),
)

REASON_OF = {"ranks_lost": "rank_lost"}
"""Numbers that come without a reason and are counted under one."""


@dataclass
class Stats(KVConnectorStats):
    """What has changed since the last step: {"counters": {name: {reason: increase}}, "gauges": {name: {node: value}}}."""

    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = {"counters": {}, "gauges": {}}

    def count(self, name: str, reason: str, increase: int) -> None:
        reasons = self.data["counters"].setdefault(name, {})
        reasons[reason] = reasons.get(reason, 0) + increase

    def aggregate(self, other: KVConnectorStats) -> Stats:
        for name, reasons in other.data["counters"].items():
            for reason, increase in reasons.items():
                self.count(name, reason, increase)
        for name, values in other.data["gauges"].items():
            self.data["gauges"].setdefault(name, {}).update(values)
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log: the counters that have moved."""
        return {f"{name} {reason}".rstrip(): increase
                for name, reasons in self.data["counters"].items() for reason, increase in reasons.items()}

    def is_empty(self) -> bool:
        return not (self.data["counters"] or self.data["gauges"])


class Meter:
    """Reads one node's numbers and says what is new."""

    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._name = name
        self._seen: dict[tuple[str, str], int] = {}

    def read(self) -> Stats | None:
        """What has changed since the last read; None if nothing has."""
        stats = Stats()
        for name, reason, value, is_gauge in self._node.stats():
            old = self._seen.get((name, reason), 0)
            if value == old:
                continue
            self._seen[name, reason] = value
            if is_gauge:
                stats.data["gauges"].setdefault(name, {})[self._name] = value
            else:
                stats.count(name, reason, value - old)
        return None if stats.is_empty() else stats


class PromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config: VllmConfig, metric_types: dict[type[PromMetric], type[PromMetricT]],
                 labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {stat: (metric, prom) for metric, prom in self._make(COUNTERS, metric_types[Counter])
                          for stat in metric.stats}
        self._gauges = {stat: prom for metric, prom in self._make(GAUGES, metric_types[Gauge])
                        for stat in metric.stats}
        self._values: dict[tuple[int, str], dict[str, int]] = {}

    def _make(self, metrics: tuple[Metric, ...], kind: type[PromMetricT]) -> list[tuple[Metric, PromMetricT]]:
        made = []
        for metric in metrics:
            labels = [*self._labelnames, metric.label] if metric.label else self._labelnames
            mode = {"multiprocess_mode": "mostrecent"} if metrics is GAUGES else {}
            prom = kind(name=PREFIX + metric.name, documentation=metric.help, labelnames=labels, **mode)
            if not metric.label:
                for values in self.per_engine_labelvalues.values():
                    prom.labels(*values)
            made.append((metric, prom))
        return made

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        engine = self.per_engine_labelvalues[engine_idx]
        for name, reasons in transfer_stats_data["counters"].items():
            if name in self._counters:
                metric, prom = self._counters[name]
                for reason, increase in reasons.items():
                    label = [REASON_OF.get(name, reason)] if metric.label else []
                    prom.labels(*engine, *label).inc(increase)
        for name, values in transfer_stats_data["gauges"].items():
            if name in self._gauges:
                known = self._values.setdefault((engine_idx, name), {})
                known.update(values)
                self._gauges[name].labels(*engine).set(sum(known.values()))
