"""The nodes' numbers on their way to vLLM's /metrics, as kvferry_*, and to its log.

A node's Meter says what has changed since the last step; vLLM merges the ranks' Stats and hands each step's to one of
its API servers. So counters travel as increases, and gauges as values with the node that they are of: whichever server
shows a gauge last is right, and no server has to know what the others were told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvferry.metric_table import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    PEER_COUNTERS,
    PEER_GAUGES,
    PREFIX,
    Metric,
    bounds_of,
    divisor_of,
)

from .summary import summary

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT

    from kvferry import Node

REASON_OF = {"ranks_lost": "rank_lost"}
"""Numbers that come without a reason and are counted under one."""

OUTCOMES = frozenset(("loads_done", "loads_failed"))
"""Without one of these no distribution has changed, which is cheaper to see: a Meter reads in every step."""

PEER_LABELS_MAX = 256
"""Peers of one engine that have a label of their own; what others do counts under OTHER."""
OTHER = "other"
PEERS_REMEMBERED_MAX = 4096
"""Peers whose counters a Meter remembers after they have gone, lest it count twice what a peer that comes back did."""

Counts = dict[str, dict[str, int]]
"""Increase by name and reason."""


def add_counts(to: Counts, more: Counts) -> None:
    for name, reasons in more.items():
        known = to.setdefault(name, {})
        for reason, increase in reasons.items():
            known[reason] = known.get(reason, 0) + increase


@dataclass
class Stats(KVConnectorStats):
    """What has changed, as plain data:

    counters    {name: {reason: increase}}
    gauges      {name: {node: value}}
    histograms  {name: {bucket: [count, sum]}}, increases
    peers       {address: {"counters": as above, "gauges": {name: {node: {path: value}}}, "failures": {reason: time}}}
    gone        {node: [address]}: that it lists no more
    """

    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = {"counters": {}, "gauges": {}, "histograms": {}, "peers": {}, "gone": {}}

    def peer(self, address: str) -> dict[str, Any]:
        return self.data["peers"].setdefault(address, {"counters": {}, "gauges": {}, "failures": {}})

    def aggregate(self, other: KVConnectorStats) -> Stats:
        add_counts(self.data["counters"], other.data["counters"])
        for name, values in other.data["gauges"].items():
            self.data["gauges"].setdefault(name, {}).update(values)
        for name, buckets in other.data["histograms"].items():
            known = self.data["histograms"].setdefault(name, {})
            for bucket, (count, total) in buckets.items():
                old = known.get(bucket, (0, 0))
                known[bucket] = [old[0] + count, old[1] + total]
        for address, news in other.data["peers"].items():
            peer = self.peer(address)
            add_counts(peer["counters"], news["counters"])
            for name, nodes in news["gauges"].items():
                peer["gauges"].setdefault(name, {}).update(nodes)
            for reason, at in news["failures"].items():
                peer["failures"][reason] = max(at, peer["failures"].get(reason, 0.0))
        for node, addresses in other.data["gone"].items():
            self.data["gone"].setdefault(node, []).extend(addresses)
        return self

    def reduce(self) -> dict[str, int | float]:
        return summary(self.data)

    def is_empty(self) -> bool:
        return not any(self.data.values())


class Tally:
    """What the scheduler side decides by itself, until the next Stats."""

    def __init__(self) -> None:
        self._counts: Counts = {}

    def add(self, name: str, reason: str) -> None:
        add_counts(self._counts, {name: {reason: 1}})

    def take(self) -> Counts:
        counts, self._counts = self._counts, {}
        return counts


class Meter:
    """Reads one node's numbers and says what is new."""

    def __init__(self, node: Node, name: str, tally: Tally | None = None, constants: dict[str, int] | None = None) -> None:
        """`constants` are gauges of the engine, which do not change."""
        self._node = node
        self._tally = tally or Tally()
        self._name = name
        self._constants = {name: value for name, value in (constants or {}).items() if value}
        self._seen: dict[tuple[str, str], int] = {}
        self._buckets: dict[tuple[str, int], tuple[int, int]] = {}
        self._peer_counters: dict[int, dict[tuple[str, str], int]] = {}
        """By the peer's id, latest seen last."""
        self._peer_gauges: dict[str, dict[tuple[str, str], int]] = {}
        """By address: the peers that are listed."""

    def read(self) -> Stats | None:
        """What has changed since the last read; None if nothing has."""
        stats = Stats()
        self._read_numbers(stats)
        add_counts(stats.data["counters"], self._tally.take())
        if not OUTCOMES.isdisjoint(stats.data["counters"]):
            self._read_histograms(stats)
        self._read_peers(stats)
        return None if stats.is_empty() else stats

    def _read_numbers(self, stats: Stats) -> None:
        for name, value in self._constants.items():
            stats.data["gauges"][name] = {self._name: value}
        self._constants = {}
        for name, reason, value, is_gauge in self._node.stats():
            old = self._seen.get((name, reason), 0)
            if value == old:
                continue
            self._seen[name, reason] = value
            if is_gauge:
                stats.data["gauges"].setdefault(name, {})[self._name] = value
            else:
                stats.data["counters"].setdefault(name, {})[reason] = value - old

    def _read_histograms(self, stats: Stats) -> None:
        for name, buckets in self._node.histograms():
            for i, (_, count, total) in enumerate(buckets):
                old = self._buckets.get((name, i), (0, 0))
                if count != old[0]:
                    self._buckets[name, i] = (count, total)
                    stats.data["histograms"].setdefault(name, {})[str(i)] = [count - old[0], total - old[1]]

    def _read_peers(self, stats: Stats) -> None:
        listed: dict[str, dict[tuple[str, str], int]] = {}
        for id_, address, failure, age_ms, paths, numbers in self._node.peers():
            gauges = {(name, ""): value for name, _, value, is_gauge in numbers if is_gauge}
            for path, breaker, _, up in paths:
                gauges["breaker", path] = breaker
                gauges["up", path] = int(up)
            # An address may be that of several lives of a process: the latest used comes first.
            listed.setdefault(address, gauges)
            if self._count(stats, id_, address, numbers) and failure:
                stats.peer(address)["failures"][failure] = time.time() - age_ms / 1000
        gone = [address for address in self._peer_gauges if address not in listed]
        for address in gone:
            self._show(stats, address, dict.fromkeys(self._peer_gauges[address], 0))
        if gone:
            stats.data["gone"][self._name] = gone
        for address, gauges in listed.items():
            self._show(stats, address, gauges)
        self._peer_gauges = listed

    def _count(self, stats: Stats, id_: int, address: str, numbers: list[tuple[str, str, int, bool]]) -> bool:
        """Whether a failure is among what is new."""
        seen = self._peer_counters.pop(id_, {})
        failed = False
        for name, reason, value, is_gauge in numbers:
            old = seen.get((name, reason), 0)
            if is_gauge or value == old:
                continue
            seen[name, reason] = value
            add_counts(stats.peer(address)["counters"], {name: {reason: value - old}})
            failed = failed or name in ("loads_failed", "connection_failures")
        self._peer_counters[id_] = seen
        if len(self._peer_counters) > PEERS_REMEMBERED_MAX:
            del self._peer_counters[next(iter(self._peer_counters))]
        return failed

    def _show(self, stats: Stats, address: str, gauges: dict[tuple[str, str], int]) -> None:
        """All paths of a gauge, if one has changed: the merged Stats hold a node's paths as one value."""
        known = self._peer_gauges.get(address, {})
        changed = {name for (name, path), value in gauges.items() if known.get((name, path)) != value}
        for name in changed:
            stats.peer(address)["gauges"].setdefault(name, {})[self._name] = {
                path: value for (other, path), value in gauges.items() if other == name}


class PromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config: VllmConfig, metric_types: dict[type[PromMetric], type[PromMetricT]],
                 labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        latest = {"multiprocess_mode": "mostrecent"}
        self._counters = self._make(COUNTERS, metric_types[Counter])
        self._gauges = self._make(GAUGES, metric_types[Gauge], **latest)
        self._histograms = {stat: made for metric in HISTOGRAMS for stat, made in
                            self._make((metric,), metric_types[Histogram], buckets=bounds_of(metric)).items()}
        self._peer_counters = self._make(PEER_COUNTERS, metric_types[Counter])
        self._peer_gauges = self._make(PEER_GAUGES, metric_types[Gauge], **latest)
        self._peers: dict[tuple[int, str], Peer] = {}
        # The files of several API servers keep each label that ever was: what goes cannot be taken out.
        self._removes = "PROMETHEUS_MULTIPROC_DIR" not in os.environ

    def _make(self, metrics: tuple[Metric, ...], kind: type[PromMetricT],
              **arguments: Any) -> dict[str, tuple[Metric, PromMetricT]]:
        """By the library's numbers."""
        made = {}
        for metric in metrics:
            prom = kind(name=PREFIX + metric.name, documentation=metric.help,
                        labelnames=[*self._labelnames, *metric.labels], **arguments)
            if not metric.labels:
                for values in self.per_engine_labelvalues.values():
                    prom.labels(*values)
            made.update(dict.fromkeys(metric.stats, (metric, prom)))
        return made

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Numbers that it does not know come from an engine with a newer library."""
        data = Stats(data=transfer_stats_data).data
        engine = self.per_engine_labelvalues[engine_idx]
        for name, reasons in data["counters"].items():
            if name in self._counters:
                metric, prom = self._counters[name]
                for reason, increase in reasons.items():
                    label = [REASON_OF.get(name, reason)] if metric.labels else []
                    prom.labels(*engine, *label).inc(increase)
        for name, nodes in data["gauges"].items():
            if name in self._gauges:
                for node, value in nodes.items():
                    self._gauges[name][1].labels(*engine, node).set(value)
        for name, buckets in data["histograms"].items():
            if name in self._histograms:
                child = self._histograms[name][1].labels(*engine)
                for count, total in buckets.values():
                    # The mean of a bucket's values lies in that bucket.
                    for _ in range(count):
                        child.observe(total / count / divisor_of(name))
        for address, news in data["peers"].items():
            self._observe_peer(engine_idx, address, news)
        for node, addresses in data["gone"].items():
            for address in addresses:
                self._forget(engine_idx, node, address)

    def _observe_peer(self, engine_idx: int, address: str, news: dict[str, Any]) -> None:
        known = (engine_idx, address) in self._peers
        if not known and sum(index == engine_idx for index, _ in self._peers) >= PEER_LABELS_MAX:
            address = OTHER
        peer = self._peers.setdefault((engine_idx, address), Peer())
        engine = self.per_engine_labelvalues[engine_idx]
        for name, reasons in news["counters"].items():
            if name in self._peer_counters:
                metric, prom = self._peer_counters[name]
                for reason, increase in reasons.items():
                    label = [reason] if "reason" in metric.labels else []
                    peer.child(prom, [*engine, address, *label]).inc(increase)
        if address == OTHER:
            return  # of many peers there is no one state
        for name, node, path, value in gauges_of(news):
            peer.nodes.add(node)
            if name in self._peer_gauges:
                metric, prom = self._peer_gauges[name]
                label = [node, path] if "path" in metric.labels else [node]
                peer.child(prom, [*engine, address, *label]).set(value)
        for reason, at in news["failures"].items():
            peer.child(self._peer_gauges["last_failure"][1], [*engine, address, reason]).set(at)

    def _forget(self, engine_idx: int, node: str, address: str) -> None:
        """A peer that no node lists any more takes its labels with it."""
        peer = self._peers.get((engine_idx, address))
        if peer is None:
            return
        peer.nodes.discard(node)
        if not peer.nodes and self._removes:
            peer.remove()
            del self._peers[engine_idx, address]


def gauges_of(news: dict[str, Any]) -> Iterator[tuple[str, str, str, int]]:
    """(name, node, path, value)."""
    for name, nodes in news["gauges"].items():
        for node, paths in nodes.items():
            for path, value in paths.items():
                yield name, node, path, value


@dataclass
class Peer:
    """A peer's label: which nodes list it, and its series."""

    nodes: set[str] = field(default_factory=set)
    series: set[tuple[Any, tuple[Any, ...]]] = field(default_factory=set)

    def child(self, prom: Any, values: list[Any]) -> Any:
        self.series.add((prom, tuple(values)))
        return prom.labels(*values)

    def remove(self) -> None:
        for prom, values in self.series:
            if hasattr(prom, "remove"):  # Ray's metrics keep what they have
                prom.remove(*values)

